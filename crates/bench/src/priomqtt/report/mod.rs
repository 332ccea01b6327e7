//! The report of the experiments: measured figures and tables beside those of the paper.

use punctual_report::{Bars, Cumulative, Group, Page, Panel, Part, Unit, bars, cumulative};
use serde::Serialize;

use super::brokers::{BrokerProgram, MOSQUITTO};
use super::cell::{COUPLES, by_priority};
use super::network::{HOPS, RATE};
use super::paper;
use super::results::{Cell, Experiment, Faults, Results};
use crate::compare::machine::Machine;
use crate::compare::results::median;
use punctual_measure::load::Latency;

/// Bytes of the largest frame on the wire: payload of 1500 bytes, headers, check sequence,
/// preamble, inter-frame gap.
const LARGEST_FRAME: u64 = 1538;

/// The content of the report.
#[derive(Serialize)]
pub(crate) struct Report<'a> {
    pub(crate) machine: &'a Machine,
    pub(crate) setting: Setting,
    pub(crate) brokers: Vec<BrokerNote>,
    #[serde(rename = "cases")]
    pub(crate) results: &'a [Cell],
    #[serde(skip)]
    pub(crate) all: &'a Results,
    /// Brokers that were not measured, with the reason.
    pub(crate) absent: Vec<String>,
}

/// The conditions of the runs.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Setting {
    pub(crate) round_trip_s: f64,
    pub(crate) queue_s: f64,
    pub(crate) bulk_s: f64,
    pub(crate) warm_up_s: f64,
    pub(crate) repetitions: u32,
    pub(crate) payloads: Vec<usize>,
    pub(crate) bulk_payload: usize,
    pub(crate) link_bit_per_s: u64,
    /// CPU cores and scheduling classes of broker and stations, in words.
    pub(crate) scheduling: String,
}

/// A broker that was measured.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct BrokerNote {
    pub(crate) name: &'static str,
    pub(crate) version: String,
    pub(crate) note: &'static str,
}

impl BrokerNote {
    pub(crate) fn of(found: &BrokerProgram) -> Self {
        Self {
            name: found.variant.name,
            version: found.version.clone(),
            note: found.variant.note,
        }
    }
}

impl Report<'_> {
    /// The report as Markdown tables.
    pub(crate) fn markdown(&self) -> String {
        self.page().markdown()
    }

    /// The report as one HTML file with tables and charts.
    pub(crate) fn html(&self) -> String {
        self.page().html()
    }

    fn page(&self) -> Page {
        let mut page = Page::new("The factory cell of the PrioMQTT paper");
        self.introduction(&mut page);
        self.curves(&mut page);
        self.round_trips(&mut page);
        self.ratios(&mut page);
        self.within(&mut page);
        self.queue(&mut page);
        self.bulk(&mut page);
        self.loss(&mut page);
        self.failures(&mut page);
        page
    }

    fn introduction(&self, page: &mut Page) {
        let Setting {
            round_trip_s,
            queue_s,
            bulk_s,
            warm_up_s,
            repetitions,
            scheduling,
            ..
        } = &self.setting;
        let Machine {
            cpu,
            cores,
            kernel,
            congestion_control,
            load_average,
            date,
            ..
        } = self.machine;
        page.paragraph(format!(
            "Controller, four modules and broker in network namespaces, every cable {} Mbit/s in \
             each direction, S2 one switch closer to the broker. RTT = (TD - TA) - (TC - TB). \
             Round trips {round_trip_s} s, queue {queue_s} s, bulk {bulk_s} s per run after \
             {warm_up_s} s of warm-up, medians of {repetitions} runs (queue: one). {scheduling}. \
             {cpu}, {cores} cores, Linux {kernel}, TCP {congestion_control}, load average \
             {load_average} before, {date}.",
            RATE / 1_000_000
        ));
        let brokers = self.brokers.iter();
        page.parts.push(Part::List(
            brokers
                .map(|b| format!("`{}` {}: {}", b.name, b.version, b.note))
                .collect(),
        ));
        page.paragraph(
            "The paper ran its broker on a PC and its stations on Raspberry Pi 4, on copper; here \
             all run on one machine, and a shaped link delivers a frame when its transmission \
             begins. Compare ratios between brokers, not microseconds between the columns of the \
             paper and ours.",
        );
    }

    /// Figs. 6 to 8.
    fn curves(&self, page: &mut Page) {
        let cells: Vec<&Cell> = self.all.of(Experiment::RoundTrip).collect();
        let number = |of: &dyn Fn(&Latency) -> f64| {
            let latencies = cells.iter().flat_map(|cell| &cell.runs);
            let latencies = latencies.flat_map(|run| &run.couples);
            let numbers = latencies.filter_map(|couple| couple.round_trip.as_ref().map(of));
            numbers.collect::<Vec<f64>>()
        };
        let slowest = number(&|l| l.p99_us).into_iter().fold(0.0, f64::max);
        let fastest = number(&|l| l.p50_us).into_iter().fold(f64::MAX, f64::min);
        if cells.is_empty() {
            return;
        }
        page.heading("Cumulative round trips (Figs 6 to 8)");
        page.paragraph(
            "A row for each broker, a column for each payload. A topic couple that is further left \
             is faster. The circles are what the paper's text says of its own broker.",
        );
        let mut brokers: Vec<&str> = Vec::new();
        for broker in cells.iter().map(|cell| cell.case.broker) {
            if !brokers.contains(&broker) {
                brokers.push(broker);
            }
        }
        let panels = brokers.iter().flat_map(|broker| {
            let cells = &cells;
            self.setting
                .payloads
                .iter()
                .map(move |payload| panel(cells, broker, *payload))
        });
        let chart = cumulative(&Cumulative {
            title: "Round trips by broker and payload".to_owned(),
            series: by_priority()
                .map(|couple| {
                    let couple = &COUPLES[couple];
                    format!("{} (priority {})", couple.name(), couple.priority)
                })
                .to_vec(),
            mark: "the paper: PrioMQTT".to_owned(),
            columns: self.setting.payloads.len(),
            panels: panels.collect(),
            axis_us: (fastest / 2.0, (slowest * 1.5).max(fastest * 4.0)),
        });
        let caption = "Figs 6 to 8: share of round trips that took so long at most".to_owned();
        page.charts(vec![(caption, chart)]);
    }

    /// Table 3, for every payload.
    fn round_trips(&self, page: &mut Page) {
        for &payload in &self.setting.payloads {
            let cells = self.cells(Experiment::RoundTrip, payload);
            if cells.is_empty() {
                continue;
            }
            let with_paper = payload == 1000;
            let title = if with_paper { " (Table 3)" } else { "" };
            page.heading(&format!("Round trips with {payload} B{title}"));
            page.paragraph("Mean ± standard deviation / p99, µs.");
            let mut header = vec!["topics".to_owned(), "priority".to_owned()];
            header.extend(cells.iter().map(|cell| cell.case.broker.to_owned()));
            if with_paper {
                header.extend(["paper: PrioMQTT".to_owned(), "paper: MQTT".to_owned()]);
            }
            let row = |couple: usize| {
                let mut row = vec![COUPLES[couple].name(), COUPLES[couple].priority.to_string()];
                row.extend(cells.iter().map(|cell| round_trip(cell, couple)));
                if with_paper {
                    let published = [paper::PRIOMQTT[couple], paper::MQTT[couple]];
                    row.extend(published.map(|p| {
                        format!("{:.0} ± {:.0}", 1000.0 * p.mean_ms, 1000.0 * p.deviation_ms)
                    }));
                }
                row
            };
            page.table(header, by_priority().into_iter().map(row).collect());
        }
    }

    /// By how many times the round trips of each broker are shorter than Mosquitto's.
    fn ratios(&self, page: &mut Page) {
        let peers = |payload| {
            let mut cells = self.cells(Experiment::RoundTrip, payload);
            cells.retain(|cell| cell.case.broker.starts_with(MOSQUITTO));
            cells
        };
        let mut rows = Vec::new();
        for &payload in &self.setting.payloads {
            for cell in self.cells(Experiment::RoundTrip, payload) {
                for peer in peers(payload) {
                    if cell.case.broker.starts_with(MOSQUITTO) {
                        continue;
                    }
                    let ratio = |couple: usize, number: fn(&Latency) -> f64| {
                        let (own, other) =
                            (cell.median(couple, number), peer.median(couple, number));
                        own.zip(other)
                            .map_or_else(dash, |(own, other)| format!("{:.2}", other / own))
                    };
                    let mut row = vec![
                        format!("{} against {}", cell.case.broker, peer.case.broker),
                        format!("{payload} B"),
                        ratio(0, |l| l.p99_us),
                        ratio(0, |l| l.mean_us),
                    ];
                    let others = by_priority().into_iter().skip(1);
                    row.extend(others.map(|couple| ratio(couple, |l| l.mean_us)));
                    rows.push(row);
                }
            }
        }
        if rows.is_empty() {
            return;
        }
        let published = by_priority().map(|couple| {
            let ratio = paper::MQTT[couple].mean_ms / paper::PRIOMQTT[couple].mean_ms;
            format!("{ratio:.2}")
        });
        let mut row = vec!["paper".to_owned(), "1000 B".to_owned(), dash()];
        row.extend(published);
        rows.push(row);
        page.heading("How many times lower than Mosquitto's");
        let mut header: Vec<String> = ["brokers", "payload", "T1, T2 p99"]
            .map(str::to_owned)
            .into();
        header.extend(by_priority().map(|couple| format!("{} mean", COUPLES[couple].name())));
        page.table(header, rows);
    }

    /// Shares within a bound that the paper's text states for Figs. 7 and 8, beside the measured
    /// shares.
    fn within(&self, page: &mut Page) {
        let mut rows = Vec::new();
        for within in paper::WITHIN {
            let what = format!("{} B, ≤ {} ms", within.payload, within.bound_us / 1000.0);
            let cells = self.cells(Experiment::RoundTrip, within.payload);
            for cell in &cells {
                let share = |couple| {
                    let share = cell.share_within(couple, within.bound_us);
                    share.map_or_else(dash, |share| format!("{:.2}", 100.0 * share))
                };
                let mut row = vec![cell.case.broker.to_owned(), what.clone()];
                row.extend(by_priority().map(share));
                rows.push(row);
            }
            if !cells.is_empty() {
                let mut row = vec!["paper: PrioMQTT".to_owned(), what];
                row.extend(by_priority().map(|couple| format!("{:.1}", within.percent[couple])));
                rows.push(row);
            }
        }
        if rows.is_empty() {
            return;
        }
        page.heading("Share of round trips within a bound (text on Figs 7 and 8), %");
        let mut header = vec!["broker".to_owned(), "payload and bound".to_owned()];
        header.extend(by_priority().map(|couple| COUPLES[couple].name()));
        page.table(header, rows);
    }

    /// Fig. 9 and Table 2.
    fn queue(&self, page: &mut Page) {
        let cells: Vec<&Cell> = self.all.of(Experiment::Queue).collect();
        let Some(payload) = cells.first().map(|cell| cell.case.payload) else {
            return;
        };
        page.heading("The broker's queue (Fig. 9, Table 2)");
        page.paragraph(format!(
            "{payload} B, time from enqueueing to the socket, µs."
        ));
        let mut rows = Vec::new();
        let mut series = Vec::new();
        let mut groups: Vec<Group> = Vec::new();
        for cell in &cells {
            let name = format!(
                "{}, {} subscribers",
                cell.case.broker, cell.case.subscribers
            );
            let Some(report) = cell.queue() else {
                continue;
            };
            for wait in &report.waits {
                rows.push(vec![
                    name.clone(),
                    wait.of.clone(),
                    format!("{:.0}", wait.messages),
                    format!("{:.1}", wait.mean_us),
                    format!("{:.1}", wait.p50_us),
                    format!("{:.1}", wait.p99_us),
                ]);
                let at = match groups.iter().position(|group| group.name == wait.of) {
                    Some(at) => at,
                    None => {
                        groups.push(Group {
                            name: wait.of.clone(),
                            values: Vec::new(),
                            mark: None,
                        });
                        groups.len() - 1
                    }
                };
                groups[at].values.resize(series.len(), None);
                groups[at].values.push(Some(wait.mean_us));
            }
            series.push(name);
        }
        // The figure shows priorities; classes replace them where a broker reports only classes.
        if groups
            .iter()
            .any(|group| group.name.starts_with("priority "))
        {
            groups.retain(|group| group.name.starts_with("priority "));
        }
        if groups.is_empty() {
            page.paragraph("The broker has no numbers about its queue.");
        } else {
            let chart = bars(&Bars {
                title: "Mean time in the queue, µs".to_owned(),
                series,
                mark: String::new(),
                unit: Unit::Micros,
                groups,
            });
            let caption = "Fig. 9: mean time in the queue, µs".to_owned();
            page.charts(vec![(caption, chart)]);
        }
        let header = ["broker", "messages", "number", "mean", "p50", "p99"];
        page.table(header.map(str::to_owned).into(), rows);

        let count = |value: Option<f64>| value.map_or_else(dash, |value| format!("{value:.0}"));
        let mut rows = Vec::new();
        for cell in &cells {
            let report = cell.queue();
            rows.push(vec![
                cell.case.broker.to_owned(),
                cell.case.subscribers.to_string(),
                count(report.and_then(|report| report.median_entries)),
                count(report.and_then(|report| report.max_entries)),
                loss_ratio(&cell.faults()),
            ]);
        }
        for row in paper::QUEUE {
            rows.push(vec![
                "paper".to_owned(),
                row.subscribers.to_string(),
                row.median.to_string(),
                row.max.to_string(),
                "< 1e-7".to_owned(),
            ]);
        }
        let header = [
            "broker",
            "subscribers",
            "median entries",
            "max entries",
            "loss ratio",
        ];
        page.table(header.map(str::to_owned).into(), rows);
    }

    /// The highest priority, alone and beside bulk traffic.
    fn bulk(&self, page: &mut Page) {
        let mut rows = Vec::new();
        let frame_us = (LARGEST_FRAME * 8) as f64 * 1e6 / RATE as f64;
        // A message crosses the network to the broker and to the controller; so does the answer.
        let frames_us = f64::from(4 * HOPS) * frame_us;
        for beside in self.all.of(Experiment::Bulk) {
            let case = &beside.case;
            let alone = self.all.find(
                Experiment::Idle,
                case.broker,
                case.payload,
                case.subscribers,
            );
            let Some(alone) = alone else { continue };
            let p999 = |cell: &Cell| cell.median(0, |l| l.p999_us);
            let us = |value: Option<f64>| value.map_or_else(dash, micros);
            let idle = p999(alone);
            let bulk = median(
                beside
                    .runs
                    .iter()
                    .filter_map(|run| Some(run.bulk?.delivered_mbit_per_s)),
            );
            rows.push(vec![
                case.broker.to_owned(),
                us(alone.median(0, |l| l.p50_us)),
                us(idle),
                us(beside.median(0, |l| l.p50_us)),
                us(p999(beside)),
                us(idle.map(|idle| 1.2 * idle + frames_us)),
                bulk.map_or_else(dash, |mbit| format!("{mbit:.1}")),
                loss_ratio(&beside.faults()),
            ]);
        }
        if rows.is_empty() {
            return;
        }
        page.heading("The highest priority beside a saturating bulk flow");
        page.paragraph(format!(
            "Round trips of T1, T2, µs. Switches and devices serve eight strict priorities, the \
             cell's stations mark their packets, bulk ({} B messages without priority, as fast as \
             the link takes them) shares every link that T1 and T2 take but the stations' own. \
             Allowed: p99.9 of the idle case and a fifth, and a largest frame ({frame_us:.0} µs) \
             on each of the {} hops of a round trip.",
            self.setting.bulk_payload,
            4 * HOPS
        ));
        let header = [
            "broker",
            "idle p50",
            "idle p99.9",
            "with bulk p50",
            "with bulk p99.9",
            "allowed p99.9",
            "bulk, Mbit/s",
            "loss ratio of the cell",
        ];
        page.table(header.map(str::to_owned).into(), rows);
    }

    fn loss(&self, page: &mut Page) {
        page.heading("Loss, order, and how punctual the stations were");
        let mut rows = Vec::new();
        for cell in self.results.iter().filter(|cell| !cell.runs.is_empty()) {
            let case = &cell.case;
            let faults = cell.faults();
            let late = cell.runs.iter().filter_map(|run| run.lateness);
            let late = median(late.map(|late| late.p999_us));
            let cpu = median(cell.runs.iter().map(|run| run.broker_cpu_share));
            rows.push(vec![
                case.broker.to_owned(),
                format!(
                    "{}, {} B, {} subscribers",
                    what(case.experiment),
                    case.payload,
                    case.subscribers
                ),
                faults.expected.to_string(),
                faults.lost.to_string(),
                faults.out_of_order.to_string(),
                (faults.duplicates + faults.strays).to_string(),
                loss_ratio(&faults),
                late.map_or_else(dash, micros),
                cpu.map_or_else(dash, |share| format!("{:.0}", 100.0 * share)),
            ]);
        }
        let header = [
            "broker",
            "case",
            "deliveries due",
            "lost",
            "out of order",
            "duplicate or stray",
            "loss ratio",
            "sent late, p99.9 µs",
            "broker's CPU, %",
        ];
        page.table(header.map(str::to_owned).into(), rows);
    }

    fn failures(&self, page: &mut Page) {
        let mut items = self.absent.clone();
        for cell in self.results {
            let case = &cell.case;
            items.extend(cell.errors.iter().map(|error| {
                let what = what(case.experiment);
                format!("`{}`, {what}, {} B: {error}", case.broker, case.payload)
            }));
        }
        if !items.is_empty() {
            page.heading("What could not be run");
            page.parts.push(Part::List(items));
        }
    }

    fn cells(&self, experiment: Experiment, payload: usize) -> Vec<&Cell> {
        let cells = self.all.of(experiment);
        cells.filter(|cell| cell.case.payload == payload).collect()
    }
}

/// The curves of a broker for a payload, with the paper's values for its own broker.
fn panel(cells: &[&Cell], broker: &str, payload: usize) -> Panel {
    let of = |cell: &&&Cell| cell.case.broker == broker && cell.case.payload == payload;
    let cell = cells.iter().find(of);
    let figure = paper::PAYLOADS.iter().position(|p| *p == payload);
    let figure = figure.map_or_else(String::new, |at| format!("Fig. {}, ", 6 + at));
    let said = paper::WITHIN.iter().filter(|of| of.payload == payload);
    let marks = said.flat_map(|within| {
        let couples = by_priority().into_iter().enumerate();
        couples.map(|(at, couple)| (at, within.bound_us, within.percent[couple]))
    });
    Panel {
        title: format!("{figure}{payload} B: {broker}"),
        curves: by_priority()
            .map(|couple| cell.map_or_else(Vec::new, |cell| cell.curve(couple)))
            .to_vec(),
        marks: marks.collect(),
    }
}

/// Describes an experiment in words.
pub(crate) fn what(experiment: Experiment) -> &'static str {
    match experiment {
        Experiment::RoundTrip => "round trips",
        Experiment::Queue => "queue",
        Experiment::Idle => "without bulk",
        Experiment::Bulk => "with bulk",
    }
}

fn round_trip(cell: &Cell, couple: usize) -> String {
    let number = |of: fn(&Latency) -> f64| cell.median(couple, of).map_or_else(dash, micros);
    format!(
        "{} ± {} / {}",
        number(|l| l.mean_us),
        number(|l| l.stdev_us),
        number(|l| l.p99_us)
    )
}

/// The loss ratio; "below" one in all deliveries if none was lost.
fn loss_ratio(faults: &Faults) -> String {
    if faults.expected == 0 {
        dash()
    } else if faults.lost == 0 {
        format!("< {:.0e}", 1.0 / faults.expected as f64)
    } else {
        format!("{:.1e}", faults.loss_ratio())
    }
}

fn micros(us: f64) -> String {
    if us >= 10.0 {
        format!("{us:.0}")
    } else {
        format!("{us:.1}")
    }
}

fn dash() -> String {
    "–".to_owned()
}

#[cfg(test)]
mod tests;
