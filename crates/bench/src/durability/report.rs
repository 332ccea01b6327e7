//! The tables: goals with measured values, and all results.

use std::time::Duration;

use punctual_report::Page;
use serde_json::{Value, json};

use super::loss::Loss;
use super::plain;
use super::restart::Restarted;
use super::systems::{BATCHED, Commits, NO_STORE, NONE};
use super::throughput::{CLEAN, PACED, PACED_LATE, Run};
use crate::compare::machine::Machine;
use crate::compare::peers::BrokerProgram;
use punctual_measure::load::Latency;

/// Name and version of the JSON format.
const FORMAT: &str = "punctual-durability-1";

/// Bytes in a MiB.
const MIB: f64 = (1 << 20) as f64;

/// Runs by case and system (`K`).
type Runs<K> = Vec<(K, Vec<Run>)>;

/// All results.
pub(super) struct Results {
    machine: Machine,
    repeat: u32,
    duration: Duration,
    pub(super) systems: Vec<BrokerProgram>,
    /// Runs by case and system.
    throughput: Runs<(&'static str, &'static str)>,
    pub(super) plain: Plain,
    pub(super) restarts: Vec<Restarted>,
    pub(super) losses: Vec<(&'static str, Loss)>,
    /// Runs by delay, bytes and case.
    sweep: Runs<(&'static str, &'static str, &'static str)>,
}

/// Runs with a fully loaded store, and runs at level `none`.
#[derive(Default)]
pub(super) struct Plain {
    pub(super) batched: Vec<plain::Run>,
    pub(super) none: Vec<plain::Run>,
}

/// The middle value; 0 of an empty list.
pub(super) fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_unstable_by(f64::total_cmp);
    let upper = values.get(values.len() / 2).copied().unwrap_or(0.0);
    match values.len() % 2 {
        0 if !values.is_empty() => (upper + values[values.len() / 2 - 1]) / 2.0,
        _ => upper,
    }
}

impl Results {
    pub(super) fn new(machine: Machine, repeat: u32, duration: Duration) -> Self {
        Self {
            machine,
            repeat,
            duration,
            systems: Vec::new(),
            throughput: Vec::new(),
            plain: Plain::default(),
            restarts: Vec::new(),
            losses: Vec::new(),
            sweep: Vec::new(),
        }
    }

    pub(super) fn add_throughput(&mut self, case: &'static str, system: &'static str, run: Run) {
        add(&mut self.throughput, (case, system), run);
    }

    pub(super) fn add_sweep(
        &mut self,
        delay: &'static str,
        bytes: &'static str,
        case: &'static str,
        run: Run,
    ) {
        add(&mut self.sweep, (delay, bytes, case), run);
    }

    /// The median of `what` over the runs of a system in a case.
    fn of(&self, case: &str, system: &str, what: impl Fn(&Run) -> Option<f64>) -> Option<f64> {
        let found = |key: &(&str, &str)| *key == (case, system);
        let (_, runs) = self.throughput.iter().find(|(key, _)| found(key))?;
        let values: Vec<f64> = runs.iter().filter_map(what).collect();
        (!values.is_empty()).then(|| median(values))
    }

    /// Median over rounds of one system's value divided by another's in the same round.
    fn ratio(
        &self,
        case: &str,
        systems: [&str; 2],
        what: impl Fn(&Run) -> Option<f64>,
    ) -> Option<f64> {
        let [above, below] = systems.map(|system| {
            let found = |key: &(&str, &str)| *key == (case, system);
            let runs = self.throughput.iter().find(|(key, _)| found(key));
            runs.map_or(&[][..], |(_, runs)| runs)
        });
        let rounds = above.iter().zip(below);
        let ratios: Vec<f64> = rounds
            .filter_map(|(above, below)| Some(what(above)? / what(below)?))
            .collect();
        (!ratios.is_empty()).then(|| median(ratios))
    }

    fn cases(&self) -> Vec<&'static str> {
        let mut cases: Vec<&str> = self.throughput.iter().map(|((case, _), _)| *case).collect();
        cases.dedup();
        cases
    }

    pub(super) fn page(&self) -> Page {
        let mut page = Page::new("Durability");
        page.paragraph(self.about());
        page.heading("Goals");
        page.table(texts(["", "goal", "measured"]), self.goals());
        self.throughput_tables(&mut page);
        self.plain_table(&mut page);
        self.restart_table(&mut page);
        self.loss_table(&mut page);
        self.sweep_table(&mut page);
        page
    }

    fn about(&self) -> String {
        let machine = &self.machine;
        let systems: Vec<String> = self
            .systems
            .iter()
            .map(|found| {
                let note = found.peer.note.unwrap_or_default();
                format!("**{}** {} ({note})", found.peer.name, found.version)
            })
            .collect();
        format!(
            "Measured {} by `punctual bench durability` on {} ({} cores, {:.0} GiB), Linux {}, load \
             average before {}. Runs of {} s, {} of each in turn, medians; every run with a fresh \
             process and an empty directory, broker and clients on a core each. {}.",
            machine.date,
            machine.cpu,
            machine.cores,
            machine.memory_gib,
            machine.kernel,
            machine.load_average,
            self.duration.as_secs_f64(),
            self.repeat,
            systems.join(", ")
        )
    }

    fn goals(&self) -> Vec<Vec<String>> {
        let mut rows = Vec::new();
        let mut goal = |what: String, goal: &str, measured: Option<f64>| {
            if let Some(measured) = measured {
                rows.push(vec![what, goal.to_owned(), short(measured)]);
            }
        };
        let rate = |run: &Run| Some(run.report.delivered_per_s);
        let cpu = |run: &Run| run.report.broker?.cpu_s_per_million;
        for case in self.cases() {
            if !is_paced(case) && case != CLEAN {
                let share = self.ratio(case, [BATCHED, NONE], rate);
                goal(
                    format!("{case}: messages per second, `batched` as a share of `none`"),
                    "≥ 0.6",
                    share,
                );
            }
        }
        for case in [PACED, PACED_LATE] {
            goal(
                format!("{case}: acknowledgement p50 as a multiple of a commit's"),
                "≤ 2",
                self.of(case, BATCHED, |run| {
                    let ack = run.report.acks?.p50_us / 1e3;
                    Some(ack / run.commits?.p50_ms)
                }),
            );
        }
        for case in self.cases() {
            if is_paced(case) {
                continue;
            }
            goal(
                format!("{case}: messages per second, `none` as a share of no store"),
                "1",
                self.ratio(case, [NONE, NO_STORE], rate),
            );
            goal(
                format!("{case}: CPU per message, the same"),
                "1",
                self.ratio(case, [NONE, NO_STORE], cpu),
            );
        }
        goal(
            format!("{CLEAN}: messages per second, `batched` as a share of no store"),
            "1",
            self.ratio(CLEAN, [BATCHED, NO_STORE], rate),
        );
        goal(
            "plain traffic's p99.9 beside a saturated store, as a multiple of that beside the \
             same bulk with `none`"
                .to_owned(),
            "≤ 1.1",
            self.plain_ratio(|run| Some(run.plain.latency?.p999_us)),
        );
        let acks = self
            .plain
            .batched
            .iter()
            .filter_map(|run| Some(run.urgent.acks?.p99_us / 1e3 / run.commits?.p99_ms));
        let acks: Vec<f64> = acks.collect();
        goal(
            "urgent acknowledgements' p99 beside it, as a multiple of a commit's p99".to_owned(),
            "≤ 2",
            (!acks.is_empty()).then(|| median(acks)),
        );
        let slowest = |cold| {
            let of = self.restarts.iter();
            let of = of.filter(|it| it.killed && it.cold == cold);
            of.map(|it| it.first_connack_s).reduce(f64::max)
        };
        for (cold, how) in [(false, "files in memory"), (true, "files on disk only")] {
            let first = self.restarts.first();
            let size = first.map_or(String::new(), |it| {
                format!("{} messages in {} sessions", it.messages, it.sessions)
            });
            goal(
                format!("restart with {size}, {how}: seconds to the first CONNACK"),
                "≤ 3",
                slowest(cold),
            );
        }
        let lost = self.losses.iter().find(|(system, _)| *system == BATCHED);
        goal(
            "acknowledged messages lost by kill -9".to_owned(),
            "0",
            lost.map(|(_, loss)| loss.lost as f64),
        );
        rows
    }

    fn plain_ratio(&self, what: impl Fn(&plain::Run) -> Option<f64>) -> Option<f64> {
        let pairs = self.plain.batched.iter().zip(&self.plain.none);
        let ratios: Vec<f64> = pairs
            .filter_map(|(batched, none)| Some(what(batched)? / what(none)?))
            .collect();
        (!ratios.is_empty()).then(|| median(ratios))
    }

    fn throughput_tables(&self, page: &mut Page) {
        let cases = self.cases();
        if cases.is_empty() {
            return;
        }
        page.heading("Messages per second");
        page.paragraph(
            "QoS 1 at both ends, 64 bytes where nothing else is said; sessions of subscribers \
             outlive their connections except where they are clean. **late**: subscribers \
             acknowledge after 20 ms, so that everything has to be written.",
        );
        let table = |what: &dyn Fn(&Run) -> Option<f64>, show: &dyn Fn(f64) -> String| {
            let systems = self.systems.iter().map(|found| found.peer.name);
            systems
                .map(|system| {
                    let cells = cases.iter().map(|case| {
                        self.of(case, system, what)
                            .map_or_else(|| "–".to_owned(), show)
                    });
                    std::iter::once(system.to_owned()).chain(cells).collect()
                })
                .collect::<Vec<Vec<String>>>()
        };
        let header = || {
            let cases = cases.iter().map(|case| (*case).to_owned());
            std::iter::once("broker".to_owned()).chain(cases).collect()
        };
        page.table(
            header(),
            table(&|run| Some(run.report.delivered_per_s), &|rate| {
                format!("{rate:.0}")
            }),
        );
        page.heading("CPU seconds of the broker per million messages");
        page.table(
            header(),
            table(&|run| run.report.broker?.cpu_s_per_million, &short),
        );
        page.heading("Bytes written per message");
        page.paragraph("What is acknowledged by everybody before its commit need not be written.");
        page.table(
            header(),
            table(
                &|run| {
                    let sent = run.report.sent.max(1) as f64;
                    Some(run.commits?.written_bytes as f64 / sent)
                },
                &|bytes| format!("{bytes:.0}"),
            ),
        );
        for (case, title) in [
            (PACED, "Acknowledgements at 5000 messages per second, ms"),
            (
                PACED_LATE,
                "The same with subscribers that acknowledge late, ms",
            ),
        ] {
            self.ack_table(page, case, title);
        }
    }

    fn ack_table(&self, page: &mut Page, case: &str, title: &str) {
        let rows = self.systems.iter().filter_map(|found| {
            let system = found.peer.name;
            let ack = |what: fn(&Latency) -> f64| {
                self.of(case, system, |run| Some(what(run.report.acks.as_ref()?)))
                    .map(|us| short(us / 1e3))
            };
            let commit = |what: fn(&Commits) -> f64| {
                self.of(case, system, |run| Some(what(run.commits.as_ref()?)))
                    .map_or_else(|| "–".to_owned(), short)
            };
            Some(vec![
                system.to_owned(),
                ack(|it| it.p50_us)?,
                ack(|it| it.p99_us)?,
                ack(|it| it.max_us)?,
                commit(|it| it.p50_ms),
                commit(|it| it.p99_ms),
            ])
        });
        let rows: Vec<_> = rows.collect();
        if !rows.is_empty() {
            page.heading(title);
            let header = ["broker", "p50", "p99", "max", "commit p50", "commit p99"];
            page.table(texts(header), rows);
        }
    }

    fn plain_table(&self, page: &mut Page) {
        let rows = [("batched", &self.plain.batched), ("none", &self.plain.none)];
        let rows = rows.into_iter().filter(|(_, runs)| !runs.is_empty());
        let rows = rows.map(|(name, runs)| {
            let of = |what: &dyn Fn(&plain::Run) -> f64| short(median(runs.iter().map(what)));
            let plain = |run: &plain::Run| run.plain.latency.unwrap_or_default();
            let urgent = |run: &plain::Run| run.urgent.acks.unwrap_or_default();
            let commits = |run: &plain::Run| run.commits.unwrap_or_default();
            vec![
                name.to_owned(),
                of(&|run| run.bulk.delivered_per_s),
                of(&|run| commits(run).written_bytes as f64 / MIB / run.bulk.measured_s),
                of(&|run| commits(run).pauses as f64),
                of(&|run| plain(run).p50_us / 1e3),
                of(&|run| plain(run).p99_us / 1e3),
                of(&|run| plain(run).p999_us / 1e3),
                of(&|run| urgent(run).p50_us / 1e3),
                of(&|run| urgent(run).p99_us / 1e3),
                of(&|run| commits(run).p50_ms),
                of(&|run| commits(run).p99_ms),
            ]
        });
        let rows: Vec<_> = rows.collect();
        if rows.is_empty() {
            return;
        }
        page.heading("Plain and urgent traffic beside a busy store");
        page.paragraph(
            "Plain: QoS 0 over 20 pairs, 5000 messages per second, from the time that one was \
             meant to be sent to its receipt. Urgent: QoS 1 with priority 0 to a session that \
             outlives its connection, 200 per second, to the acknowledgement. Bulk: 10 pairs with \
             QoS 1 and 8 KiB, acknowledged late, as much as `batched` takes; with `none` at the \
             same rate. Times in ms.",
        );
        page.table(
            texts([
                "bulk",
                "bulk, msg/s",
                "written, MiB/s",
                "pauses",
                "plain p50",
                "p99",
                "p99.9",
                "urgent p50",
                "p99",
                "commit p50",
                "p99",
            ]),
            rows,
        );
    }

    fn restart_table(&self, page: &mut Page) {
        let rows = self.restarts.iter().map(|it| {
            let mib = |bytes: u64| format!("{:.0}", bytes as f64 / MIB);
            vec![
                it.system.to_owned(),
                if it.killed { "kill -9" } else { "in order" }.to_owned(),
                if it.cold { "disk" } else { "memory" }.to_owned(),
                short(it.first_connack_s),
                mib(it.disk_bytes),
                mib(it.rss_before),
                mib(it.rss_after),
                mib(it.rss_peak),
                short(it.fill_s),
                match it.looked_at {
                    0 => "–".to_owned(),
                    sessions => format!("{} of {sessions} sessions", it.missing),
                },
            ]
        });
        let rows: Vec<_> = rows.collect();
        let Some(first) = self.restarts.first() else {
            return;
        };
        page.heading("Restart");
        page.paragraph(format!(
            "{} messages of {} bytes wait in {} sessions, each message for one of them.",
            first.messages, first.payload, first.sessions
        ));
        page.table(
            texts([
                "broker",
                "ended",
                "files in",
                "first CONNACK, s",
                "files, MiB",
                "RSS before, MiB",
                "after",
                "peak",
                "filled in, s",
                "missing",
            ]),
            rows,
        );
    }

    fn loss_table(&self, page: &mut Page) {
        if self.losses.is_empty() {
            return;
        }
        page.heading("What kill -9 loses");
        page.paragraph(
            "A publisher with 100 messages in flight for ten sessions without connections; after \
             the restart they connect and take what there is.",
        );
        let rows = self.losses.iter().map(|(system, loss)| {
            vec![
                (*system).to_owned(),
                loss.rounds.to_string(),
                loss.acknowledged.to_string(),
                loss.lost.to_string(),
                loss.sessions_lost.to_string(),
                loss.duplicates.to_string(),
            ]
        });
        page.table(
            texts([
                "broker",
                "kills",
                "acknowledged",
                "of these lost",
                "sessions lost",
                "came twice",
            ]),
            rows.collect(),
        );
    }

    fn sweep_table(&self, page: &mut Page) {
        let mut settings: Vec<_> = self.sweep.iter().map(|((d, b, _), _)| (*d, *b)).collect();
        settings.dedup();
        let mut seen = Vec::new();
        settings.retain(|it| {
            !seen.contains(it) && {
                seen.push(*it);
                true
            }
        });
        let mut cases: Vec<&str> = Vec::new();
        for ((_, _, case), _) in &self.sweep {
            if !cases.contains(case) {
                cases.push(case);
            }
        }
        let rows = settings.into_iter().map(|(delay, bytes)| {
            let of = |case: &str, what: &dyn Fn(&Run) -> f64| {
                let found = |(d, b, c): &(&str, &str, &str)| (*d, *b, *c) == (delay, bytes, case);
                let runs = self.sweep.iter().find(|(key, _)| found(key));
                median(runs.into_iter().flat_map(|(_, runs)| runs.iter().map(what)))
            };
            let mut row = vec![delay.to_owned(), bytes.to_owned()];
            for case in &cases {
                if is_paced(case) {
                    let ack = |run: &Run| run.report.acks.unwrap_or_default();
                    row.push(short(of(case, &|run| ack(run).p50_us / 1e3)));
                    row.push(short(of(case, &|run| ack(run).p99_us / 1e3)));
                } else {
                    row.push(format!(
                        "{:.0}",
                        of(case, &|run| run.report.delivered_per_s)
                    ));
                }
            }
            row
        });
        let rows: Vec<_> = rows.collect();
        if rows.is_empty() {
            return;
        }
        page.heading("Groups");
        page.paragraph("Messages per second, and at 5000 per second acknowledgements in ms.");
        let mut header = texts(["group_delay", "group_bytes"]);
        for case in cases {
            match is_paced(case) {
                true => header.extend([format!("{case}: ack p50"), "ack p99".to_owned()]),
                false => header.push(case.to_owned()),
            }
        }
        page.table(header, rows);
    }

    pub(super) fn json(&self) -> Value {
        let throughput = self
            .throughput
            .iter()
            .map(|((case, system), runs)| json!({ "case": case, "system": system, "runs": runs }));
        let sweep = self.sweep.iter().map(|((delay, bytes, case), runs)| {
            json!({ "group_delay": delay, "group_bytes": bytes, "case": case, "runs": runs })
        });
        let losses = self
            .losses
            .iter()
            .map(|(system, loss)| json!({ "system": system, "loss": loss }));
        let systems = self.systems.iter().map(|found| {
            json!({
                "name": found.peer.name,
                "version": found.version,
                "note": found.peer.note,
            })
        });
        json!({
            "format": FORMAT,
            "machine": self.machine,
            "repeat": self.repeat,
            "duration_s": self.duration.as_secs_f64(),
            "systems": systems.collect::<Vec<_>>(),
            "throughput": throughput.collect::<Vec<_>>(),
            "plain": { "batched": self.plain.batched, "none": self.plain.none },
            "restarts": self.restarts,
            "losses": losses.collect::<Vec<_>>(),
            "sweep": sweep.collect::<Vec<_>>(),
        })
    }
}

fn add<K: PartialEq>(all: &mut Runs<K>, key: K, run: Run) {
    match all.iter_mut().find(|(other, _)| *other == key) {
        Some((_, runs)) => runs.push(run),
        None => all.push((key, vec![run])),
    }
}

/// Whether a case measures the latency of acknowledgements.
fn is_paced(case: &str) -> bool {
    case == PACED || case == PACED_LATE
}

fn texts<const N: usize>(texts: [&str; N]) -> Vec<String> {
    texts.map(str::to_owned).to_vec()
}

/// Formats a number with three significant digits.
fn short(value: f64) -> String {
    match value.abs() {
        large if large >= 100.0 => format!("{value:.0}"),
        large if large >= 10.0 => format!("{value:.1}"),
        0.0 => "0".to_owned(),
        _ => format!("{value:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!(median([]), 0.0);
        assert_eq!(median([3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median([4.0, 1.0, 2.0, 3.0]), 2.5);
    }
}
