//! The report of the experiment: tables and charts. Pure.

use punctual_report::{Bars, Chart, Group, Page, Unit, bars};
use punctual_sim::network::families::Load;
use serde::Serialize;

use super::checks::{self, Check};
use super::run::CaseResult;
use super::scenario::{BROKERS, OwnEdge, Scenario, Series};
use super::tally::Row;
use crate::compare::machine::Machine;

/// The decision of admission control on a set of flows.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Verdict {
    pub(super) setting: String,
    pub(super) flows: usize,
    /// Factor by which periods and deadlines were scaled.
    pub(super) scale: f64,
    /// Reason for the refusal; `None` if all flows can be admitted.
    pub(super) refused: Option<String>,
    /// Greatest bound of each topic of edge network A, and its deadline, ns.
    pub(super) bounds: Vec<(String, Option<u64>, u64)>,
    /// Utilisation, 0 to 1, and name of the link that unicast loads most.
    pub(super) unicast: (f64, String),
}

/// By how many percent the paper's bounds exceed its greatest measured delays, according to its
/// text: by the trajectory and by the holistic approach.
pub(super) fn claims(load: Load) -> [f64; 2] {
    match load {
        Load::Low => [7.3, 32.7],
        Load::Medium => [8.5, 34.9],
        Load::High => [9.7, 36.8],
    }
}

/// The input of a report.
pub(super) struct Report<'a> {
    pub(super) machine: &'a Machine,
    pub(super) about: String,
    pub(super) own_edge: OwnEdge,
    /// Scenarios of the settings, in the order of their runs.
    pub(super) settings: &'a [Scenario],
    pub(super) cases: &'a [CaseResult],
    pub(super) verdicts: &'a [Verdict],
    pub(super) checks: &'a [Check],
}

impl Report<'_> {
    pub(super) fn page(&self) -> Page {
        let mut page = Page::new("MRT-MQTT, Figs. 16 to 18");
        let machine = self.machine;
        page.paragraph(format!(
            "Measured on {} by `punctual bench mrt-mqtt`: {}, {} cores, Linux {}, load average {}. \
             {}",
            machine.date,
            machine.cpu,
            machine.cores,
            machine.kernel,
            machine.load_average,
            self.about
        ));
        page.paragraph(
            "From the write to the kernel's time at the broker, with the transmission time of each \
             link of the path, which the emulation does not have; µs, the worst of all publishers \
             and repetitions (max) and percentiles over all. `HA`, `TA` and `best` are our bounds \
             by the holistic approach, by the trajectory approach and the tightest, for MRT-MQTT; \
             `paper's` are the paper's formulas as printed, which are no bounds: RT-MQTT's inside \
             the own edge network, Algorithms 3 and 4 beyond.",
        );
        page.table(
            ["check", "setting", "found", "result"]
                .map(str::to_owned)
                .to_vec(),
            self.checks.iter().map(check_cells).collect(),
        );
        page.heading("What can be carried");
        page.table(
            [
                "setting",
                "flows",
                "admission",
                "greatest bounds / deadlines",
                "unicast asks for",
            ]
            .map(str::to_owned)
            .to_vec(),
            self.verdicts.iter().map(verdict_cells).collect(),
        );
        for scenario in self.settings {
            let name = scenario.setting.name();
            let cases: Vec<&CaseResult> = self
                .cases
                .iter()
                .filter(|case| case.setting == name)
                .collect();
            self.setting(&mut page, scenario, &cases);
        }
        page
    }

    fn setting(&self, page: &mut Page, scenario: &Scenario, cases: &[&CaseResult]) {
        let Some(first) = cases.first() else { return };
        let name = scenario.setting.name();
        page.heading(&format!("Load {name}"));
        let chart = chart(&name, first, cases);
        page.charts(vec![(format!("Load {name}"), chart)]);
        let mut head = vec!["topic at".to_owned()];
        for case in cases {
            head.push(format!("{} max", case.series.name()));
            head.extend(["p99", "p50"].map(str::to_owned));
        }
        let bounds = ["HA", "TA", "best", "paper's HA", "paper's TA", "deadline"];
        head.extend(bounds.map(str::to_owned));
        let rows = first.tally.rows.iter();
        page.table(head, rows.map(|row| row_cells(row, cases)).collect());
        if let Some(claim) = self.claim(scenario, cases) {
            page.paragraph(claim);
        }
        let links = first.links.keys();
        let used = links.filter(|link| {
            cases
                .iter()
                .any(|case| case.links.get(*link).is_some_and(|of| of.declared > 0))
        });
        let mut head = vec!["link".to_owned()];
        for case in cases {
            head.push(format!("{} MB by the port", case.series.name()));
            head.push("of the publishers' hosts".to_owned());
        }
        page.table(head, used.map(|link| link_cells(link, cases)).collect());
        page.table(
            [
                "system",
                "paths",
                "messages",
                "lost or late at the end",
                "not written",
                "repeated",
                "passed on",
                "received",
                "late",
                "idle",
                "gaps",
                "machine",
                "took",
            ]
            .map(str::to_owned)
            .to_vec(),
            cases.iter().map(|case| case_cells(case)).collect(),
        );
        for case in cases {
            undeclared(page, case);
        }
    }

    /// The paper's claims beside the measured results.
    fn claim(&self, scenario: &Scenario, cases: &[&CaseResult]) -> Option<String> {
        let mrt = cases.iter().find(|case| case.series == Series::MrtMqtt)?;
        let range = |bound: fn(&Row) -> Option<u64>| {
            let shares = mrt.tally.rows.iter().filter_map(|row| {
                let measured = row.delay?.max_us * 1e3;
                Some((bound(row)? as f64 / measured.max(1.0) - 1.0) * 100.0)
            });
            let all: Vec<f64> = shares.collect();
            let least = all.iter().copied().fold(f64::INFINITY, f64::min);
            let most = all.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            format!("{least:.0} to {most:.0} %")
        };
        let [trajectory, holistic] = claims(scenario.setting.load);
        let own = match self.own_edge {
            OwnEdge::Group => "The own broker is in the group here; the paper serves it over TCP.",
            OwnEdge::Tcp => "The own broker is served over TCP, as in the paper.",
        };
        Some(format!(
            "The paper says that its trajectory approach is at most {trajectory} % above what it \
             measured, its holistic approach {holistic} %. Ours are {} and {} above the greatest \
             value measured with MRT-MQTT, the paper's formulas as printed {} and {}. {own}",
            range(|row| row.trajectory),
            range(|row| row.holistic),
            range(|row| row.printed_trajectory),
            range(|row| row.printed_holistic),
        ))
    }
}

/// The undeclared traffic of a case: its tools, and how much of it arrived.
fn undeclared(page: &mut Page, case: &CaseResult) {
    let all = case.background.iter().map(|(asked, rate, tool)| {
        let by = tool.unwrap_or("our generator");
        format!("{asked} by {by} ({:.1} Mbit/s came)", *rate as f64 / 1e6)
    });
    let ended = case.stopped.iter();
    let ended = ended.map(|(said, times)| format!(" Ended by itself, {times} times: {said}."));
    page.paragraph(format!(
        "Undeclared traffic, {}: {}.{}",
        case.series.name(),
        all.collect::<Vec<_>>().join(", "),
        ended.collect::<String>()
    ));
}

fn micro(ns: Option<u64>) -> String {
    ns.map_or_else(|| "-".to_owned(), |ns| format!("{:.0}", ns as f64 / 1e3))
}

fn check_cells(check: &Check) -> Vec<String> {
    vec![
        check.what.clone(),
        check.setting.clone(),
        check.found.clone(),
        if check.passed { "pass" } else { "**fail**" }.to_owned(),
    ]
}

fn verdict_cells(verdict: &Verdict) -> Vec<String> {
    let bounds = verdict.bounds.iter().map(|(topic, bound, deadline)| {
        let above = bound.is_none_or(|bound| bound > *deadline);
        let mark = if above { " (above its deadline)" } else { "" };
        format!(
            "{topic} {} / {}{mark}",
            micro(*bound),
            micro(Some(*deadline))
        )
    });
    let (share, link) = &verdict.unicast;
    vec![
        match verdict.scale > 1.0 {
            true => format!("{} (times {:.2})", verdict.setting, verdict.scale),
            false => verdict.setting.clone(),
        },
        verdict.flows.to_string(),
        match &verdict.refused {
            Some(reason) => format!("refused: {reason}"),
            None => "admitted".to_owned(),
        },
        bounds.collect::<Vec<_>>().join(", "),
        format!("{:.0} % of {link}", share * 100.0),
    ]
}

/// The row of a case with the topic and the broker of `row`.
fn same<'a>(case: &'a CaseResult, row: &Row) -> Option<&'a Row> {
    let mut rows = case.tally.rows.iter();
    rows.find(|other| other.topic == row.topic && other.broker == row.broker)
}

fn row_cells(row: &Row, cases: &[&CaseResult]) -> Vec<String> {
    let mut cells = vec![format!("{} {}", row.topic, row.broker)];
    for case in cases {
        let delay = same(case, row).and_then(|row| row.delay);
        let values = delay.map_or([None; 3], |of| [of.max_us, of.p99_us, of.p50_us].map(Some));
        cells.extend(values.map(|us| us.map_or("-".to_owned(), |us| format!("{us:.0}"))));
    }
    let bounds = [
        row.holistic,
        row.trajectory,
        row.bound,
        row.printed_holistic,
        row.printed_trajectory,
        Some(row.deadline),
    ];
    cells.extend(bounds.map(micro));
    cells
}

fn link_cells(link: &str, cases: &[&CaseResult]) -> Vec<String> {
    let mega = |bytes: u64| format!("{:.2}", bytes as f64 / 1e6);
    let mut cells = vec![link.to_owned()];
    for case in cases {
        let carried = case.links.get(link).copied().unwrap_or_default();
        cells.extend([mega(carried.port), mega(carried.declared)]);
    }
    cells
}

fn case_cells(case: &CaseResult) -> Vec<String> {
    let tally = &case.tally;
    let missing = tally
        .rows
        .iter()
        .map(|row| row.written.saturating_sub(row.seen));
    vec![
        case.series.name().to_owned(),
        format!("{} of {}", tally.paths[0], tally.paths[1]),
        tally.written.to_string(),
        missing.sum::<u64>().to_string(),
        tally.withheld.to_string(),
        tally.repeated.to_string(),
        match tally.not_relayed {
            0 => tally.relayed.to_string(),
            not => format!("{} ({not} not)", tally.relayed),
        },
        tally.received.to_string(),
        tally.late.to_string(),
        case.idle
            .map_or("-".to_owned(), |idle| format!("{idle:.0} %")),
        format!(
            "{}, at most {:.1} ms",
            tally.gaps,
            tally.longest_gap as f64 / 1e6
        ),
        if case.is_doubtful() {
            "too busy"
        } else {
            "had time"
        }
        .to_owned(),
        format!("{:.0} s", case.took_s),
    ]
}

/// The chart of a figure: the greatest delays of each system, and the bounds.
fn chart(name: &str, first: &CaseResult, cases: &[&CaseResult]) -> Chart {
    let micro = |ns: Option<u64>| ns.map(|ns| ns as f64 / 1e3);
    let group = |row: &Row| {
        let measured = cases
            .iter()
            .map(|case| Some(same(case, row)?.delay?.max_us));
        let bounds = [micro(row.trajectory), micro(row.holistic)];
        Group {
            name: format!("{} {}", row.topic, row.broker),
            values: measured.chain(bounds).collect(),
            mark: micro(row.bound),
        }
    };
    let series = cases.iter().map(|case| case.series.name());
    bars(&Bars {
        title: format!("Load {name}"),
        series: series.chain(["TA", "HA"]).map(str::to_owned).collect(),
        mark: "tightest bound".to_owned(),
        unit: Unit::Micros,
        groups: first.tally.rows.iter().map(group).collect(),
    })
}

/// Bytes that each system's access link and trunk carry for a message of edge network A, for the
/// progress output.
pub(super) fn progress(case: &CaseResult) -> String {
    let figure = |topic: &str, broker: &str| {
        let mut rows = case.tally.rows.iter();
        let row = rows.find(|row| row.topic == topic && row.broker == broker);
        let p99 = row.and_then(|row| row.delay).map(|delay| delay.p99_us);
        format!("{:.0}", p99.unwrap_or(f64::NAN))
    };
    let of = |topic: &str| BROKERS.map(|broker| figure(topic, broker)).join("/");
    let trunk = checks::bytes_for_a_message(case, "s1>s4", &["h10", "h15"]);
    format!(
        "{}, {}: p99 at h5/h10/h15 of alpha {} us, of beta {} us; s1>s4 {:.0} bytes a message; idle \
         {:.0} %, {:.0} s",
        case.setting,
        case.series.name(),
        of("alpha-a"),
        of("beta-a"),
        trunk.unwrap_or(f64::NAN),
        case.idle.unwrap_or(f64::NAN),
        case.took_s
    )
}
