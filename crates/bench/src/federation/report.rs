//! Results as a page, as tables and as JSON, compared with the thesis and with the goals.

use punctual_report::{Page, Part};
use serde_json::{Value, json};

use super::circle::Circle;
use super::experiment::{Idle, Locality, Measured, Outcome};
use super::healing::{Event, Healing};
use super::hops::Latency;
use super::network::System;
use super::throughput::Throughput;
use super::{NAMES, median};
use crate::compare::machine::Machine;

/// Name and version of the JSON format.
const FORMAT: &str = "punctual-federation-4";
/// Goal: most bytes per second on a connection of an idle mesh.
const IDLE: f64 = 200.0;

/// All results.
pub(super) struct Report {
    pub(super) machine: Machine,
    pub(super) idle: Vec<Idle>,
    pub(super) outcomes: Vec<Outcome>,
    pub(super) circles: Vec<Circle>,
    pub(super) healing: Vec<Healing>,
    pub(super) latencies: Vec<Latency>,
    pub(super) throughputs: Vec<Throughput>,
    /// Experiments that could not be run, with the reason.
    pub(super) left_out: Vec<String>,
}

impl Report {
    pub(super) fn new(machine: Machine) -> Self {
        Self {
            machine,
            idle: Vec::new(),
            outcomes: Vec::new(),
            circles: Vec::new(),
            healing: Vec::new(),
            latencies: Vec::new(),
            throughputs: Vec::new(),
            left_out: Vec::new(),
        }
    }

    /// Adds a result at its rank in the tables.
    pub(super) fn add(&mut self, measured: Measured) {
        match measured {
            Measured::Idle(idle) => {
                let before = self.idle.partition_point(|of| of.place() <= idle.place());
                self.idle.insert(before, idle);
            }
            Measured::Outcome(outcome) => {
                let place = outcome.place();
                let before = self.outcomes.partition_point(|of| of.place() <= place);
                self.outcomes.insert(before, outcome);
            }
        }
    }

    pub(super) fn json(&self) -> Value {
        json!({
            "format": FORMAT,
            "machine": self.machine,
            "idle": self.idle,
            "outcomes": self.outcomes,
            "circle": self.circles,
            "healing": self.healing,
            "latencies": self.latencies,
            "throughputs": self.throughputs,
            "left_out": self.left_out,
        })
    }

    pub(super) fn page(&self) -> Page {
        let mut page = Page::new("Five brokers");
        let machine = &self.machine;
        page.paragraph(format!(
            "`punctual bench federation` on {}: {}, {} cores, Linux {}, load average {}.",
            machine.date, machine.cpu, machine.cores, machine.kernel, machine.load_average
        ));
        if !self.left_out.is_empty() {
            page.heading("Left out");
            page.parts.push(Part::List(self.left_out.clone()));
        }
        self.goals(&mut page);
        self.traffic(&mut page);
        self.thesis(&mut page);
        self.others(&mut page);
        page
    }

    /// The goals, and the values that were measured for them.
    fn goals(&self, page: &mut Page) {
        let mut rows = Vec::new();
        let mut goal = |what: String, value: String, aim: &str, met: bool| {
            let met = if met { "met" } else { "missed" };
            rows.push(vec![what, value, aim.to_owned(), met.to_owned()]);
        };
        let tables = self.idle.iter();
        for idle in tables.filter(|idle| idle.system == System::SubscriptionTable) {
            let most = idle.rates.iter().copied().fold(0.0, f64::max);
            goal(
                format!("{}: quiet, on the busiest connection", idle.topology),
                format!("{most:.0} B/s"),
                "200 B/s",
                most <= IDLE,
            );
        }
        for o in &self.outcomes {
            if o.system != System::SubscriptionTable {
                continue;
            }
            let what = format!(
                "{}, {}, {} publications",
                o.topology,
                o.locality.name(),
                o.publishes
            );
            if o.locality == Locality::Same
                && let Some(relay) = self.same_as(o, System::RootRelay)
            {
                let all = o.bytes as f64 / relay.bytes as f64 * 100.0;
                let net = o.net() / relay.net() * 100.0;
                goal(
                    format!("{what}: of root-relay's bytes"),
                    format!("{all:.2} % ({net:.2} % without upkeep)"),
                    "2 %",
                    all <= 2.0,
                );
            }
            if let Some(least) = o.least() {
                let least = least as f64;
                let (all, net) = (o.bytes as f64 / least, o.net() / least);
                goal(
                    format!("{what}: of the least"),
                    format!("{all:.3} ({net:.3} without upkeep)"),
                    "1.10",
                    all <= 1.1,
                );
            }
        }
        for healing in &self.healing {
            let limit = match healing.event {
                Event::RootKilled => 100.0,
                Event::CableSilent => 3.0 * healing.hello_ms as f64,
            };
            goal(
                format!("{}: healed, p99", healing.event.name()),
                format!("{:.1} ms", healing.percentile(99)),
                &format!("{limit:.0} ms"),
                healing.percentile(99) <= limit,
            );
        }
        for latency in &self.latencies {
            let [broker, relay, _] = latency.added();
            goal(
                format!(
                    "a hop adds, QoS {}, {}, of what a raw relay adds",
                    latency.qos,
                    latency.pace.name()
                ),
                format!("{:.2} ({broker:.1} / {relay:.1} µs)", broker / relay),
                "1.30",
                broker <= 1.3 * relay,
            );
        }
        for throughput in &self.throughputs {
            let [one, two] = throughput.broker.each_ref().map(|of| median(&of.rate));
            let [share, _] = throughput.shares();
            goal(
                format!(
                    "over a connection, QoS {}, of one broker's messages, with {} processors",
                    throughput.qos, self.machine.cores
                ),
                format!("{share:.2} ({two:.0} / {one:.0} msg/s)"),
                "0.70",
                share >= 0.7,
            );
            let [one, two] = throughput.broker.each_ref().map(|of| median(&of.cpu));
            goal(
                "the same by processor time of the busier broker".into(),
                format!("{:.2} ({one:.3} / {two:.3} µs a message)", one / two),
                "0.70",
                one >= 0.7 * two,
            );
        }
        page.heading("What is aimed at");
        page.table(["", "measured", "aim", ""].map(String::from).to_vec(), rows);
    }

    fn same_as(&self, other: &Outcome, system: System) -> Option<&Outcome> {
        self.outcomes.iter().find(|o| {
            o.system == system
                && o.topology == other.topology
                && o.locality == other.locality
                && o.publishes == other.publishes
        })
    }

    fn traffic(&self, page: &mut Page) {
        if self.outcomes.is_empty() {
            return;
        }
        page.heading("Between the brokers");
        page.paragraph(
            "Bytes of all frames that left by a cable between two brokers, headers and \
             acknowledgements included; clients use their broker's loopback. Upkeep is what the \
             same brokers sent in as much time while nobody published; it is part of the bytes. \
             The least is one frame with the PUBLISH and one with the PUBACK on each connection \
             of the way; TCP needs a bare acknowledgement more where publications are further \
             apart than it waits (40 ms).",
        );
        let header = [
            "topology",
            "forwarding",
            "locality",
            "publications",
            "bytes",
            "by publication",
            "upkeep",
            "least",
            "received",
            "lost",
            "duplicates",
            "total time s",
            "messages/s",
            "advertisements",
        ];
        let row = |o: &Outcome| {
            vec![
                o.topology.to_owned(),
                o.system.name().to_owned(),
                o.locality.name().to_owned(),
                o.publishes.to_string(),
                o.bytes.to_string(),
                format!("{:.0}", o.bytes as f64 / f64::from(o.publishes)),
                format!("{:.0}", o.idle_bytes),
                o.least().map_or("-".into(), |least| least.to_string()),
                o.received.to_string(),
                o.lost.to_string(),
                o.duplicates.to_string(),
                format!("{:.2}", o.seconds),
                format!("{:.1}", o.received as f64 / o.seconds.max(1e-9)),
                o.advertised.map_or("-".into(), |n| n.to_string()),
            ]
        };
        let rows = self.outcomes.iter().map(row).collect();
        page.table(header.map(String::from).to_vec(), rows);
        page.paragraph("Quiet, in bytes by second on each connection, both ways together:");
        let rows = self.idle.iter().map(|idle| {
            let rates: Vec<String> = idle.rates.iter().map(|rate| format!("{rate:.0}")).collect();
            vec![
                idle.topology.to_owned(),
                idle.system.name().to_owned(),
                rates.join(", "),
            ]
        });
        page.table(
            ["topology", "forwarding", "B/s"].map(String::from).to_vec(),
            rows.collect(),
        );
    }

    fn others(&self, page: &mut Page) {
        if !self.circles.is_empty() {
            page.heading("A circle");
            page.paragraph(
                "A, B and C are connected to each other, D and E to C. One publication at A with \
                 QoS 0; copies that each subscriber received in two seconds.",
            );
            let rows = self.circles.iter().map(|circle| {
                let mut row = vec![circle.system.name().to_owned()];
                row.extend(circle.copies.iter().map(u64::to_string));
                row.push(circle.bytes.to_string());
                row
            });
            let mut header = vec!["forwarding".to_owned()];
            header.extend(NAMES.map(|name| format!("at {name}")));
            header.push("bytes between brokers".into());
            page.table(header, rows.collect());
        }
        if !self.healing.is_empty() {
            page.heading("Healing");
            page.paragraph(
                "Five brokers, each connected to each other one, publishing to all others with \
                 QoS 1 every few milliseconds. From before the event until something published \
                 after it had arrived from each broker at each other one. What the brokers do \
                 not have on disk dies with the root that had acknowledged it.",
            );
            let header = [
                "event",
                "hello ms",
                "rounds",
                "p50 ms",
                "p90 ms",
                "p99 ms",
                "worst ms",
                "publications",
                "missing at a subscriber",
            ];
            let rows = self.healing.iter().map(|h| {
                let mut row = vec![
                    h.event.name().to_owned(),
                    h.hello_ms.to_string(),
                    h.milliseconds.len().to_string(),
                ];
                row.extend([50, 90, 99, 100].map(|p| format!("{:.1}", h.percentile(p))));
                row.extend([h.publications.to_string(), h.missing.to_string()]);
                row
            });
            page.table(header.map(String::from).to_vec(), rows.collect());
        }
        if !self.latencies.is_empty() {
            page.heading("A hop");
            page.paragraph(
                "Medians of rounds, µs: from a publication to its receipt, at the same broker and \
                 four brokers away; and the same way over processes that read from one connection \
                 and write to the next, at once or after they have waited with epoll, as those \
                 have to that serve many; with QoS 1 they carry an acknowledgement back. Messages \
                 come one after the other, each 30 µs after the one before has arrived and is \
                 acknowledged, or one every 2 ms, when caches have forgotten most of what it takes.",
            );
            let rows = self.latencies.iter().map(|latency| {
                let kinds = [&latency.broker, &latency.relay, &latency.epoll_relay];
                let all = kinds.into_iter().flatten();
                let mut row = vec![format!("QoS {}, {}", latency.qos, latency.pace.name())];
                row.extend(all.map(|medians| format!("{:.1}", median(medians))));
                let added = latency.added().map(|time| format!("{time:.1}"));
                row.push(added.join(", "));
                row
            });
            let header = [
                "",
                "one broker",
                "five brokers",
                "one relay",
                "five relays",
                "one with epoll",
                "five with epoll",
                "a hop: broker, relay, with epoll",
            ];
            page.table(header.map(String::from).to_vec(), rows.collect());
        }
        self.throughput(page);
    }

    fn throughput(&self, page: &mut Page) {
        if self.throughputs.is_empty() {
            return;
        }
        page.heading("A connection between two brokers");
        page.paragraph(
            "Messages of 100 bytes by second, by round. The first broker has a processor for \
             itself in both cases; publisher and subscriber share another one, with the second \
             broker where there are only two. Relays are threads that read from one connection \
             and write to the next, at the same places; their messages are as many as there are \
             in the bytes. The processors that publisher and subscriber keep busy together are \
             what is not left for the second broker.",
        );
        let header = [
            "",
            "messages/s",
            "processor time of a message in the busier broker, µs",
            "processors of publisher and subscriber",
        ];
        let mut rows = Vec::new();
        for throughput in &self.throughputs {
            let [broker, relay] = [&throughput.broker, &throughput.relay];
            for (what, series) in [
                ("one broker", &broker[0]),
                ("two brokers", &broker[1]),
                ("one relay", &relay[0]),
                ("two relays", &relay[1]),
            ] {
                if series.rate.is_empty() {
                    continue;
                }
                let cpu = match median(&series.cpu) {
                    0.0 => "-".to_owned(),
                    cpu => format!("{cpu:.3}"),
                };
                rows.push(vec![
                    format!("QoS {}, {what}", throughput.qos),
                    list(&series.rate),
                    cpu,
                    format!("{:.2}", median(&series.generator)),
                ]);
            }
        }
        page.table(header.map(String::from).to_vec(), rows);
        if let [share, relayed] = self.throughputs[0].shares()
            && relayed > 0.0
        {
            page.paragraph(format!(
                "Two brokers carry {share:.2} of what one does with QoS 0, two relays \
                 {relayed:.2} of what one does."
            ));
        }
    }
}

fn list(values: &[f64]) -> String {
    let texts: Vec<String> = values.iter().map(|value| format!("{value:.0}")).collect();
    texts.join(", ")
}

#[cfg(test)]
mod tests {
    use super::super::usage::{Cpu, Traffic, Usage};
    use super::*;

    fn outcome(system: System, locality: Locality, bytes: u64) -> Outcome {
        Outcome {
            topology: "star",
            system,
            locality,
            publishes: 500,
            rounds: 1,
            rate: 100.0,
            bytes,
            idle_bytes: 800.0,
            expected: 500,
            received: 500,
            lost: 0,
            duplicates: 0,
            seconds: 5.0,
            usage: Usage {
                traffic: vec![
                    Traffic {
                        until_ms: 100,
                        bytes: bytes / 4,
                    },
                    Traffic {
                        until_ms: 200,
                        bytes: bytes - bytes / 4,
                    },
                ],
                cpu: [1.0, 2.0, 3.0, 4.0, 5.0]
                    .map(|ms| Cpu {
                        ms,
                        peak_percent: 2.0 * ms,
                        average_percent: ms / 2.0,
                    })
                    .to_vec(),
            },
            advertised: Some(4),
        }
    }

    fn machine() -> Machine {
        Machine::read()
    }

    #[test]
    fn ratios_are_told_beside_what_is_aimed_at() {
        let mut report = Report::new(machine());
        report.outcomes = vec![
            outcome(System::SubscriptionTable, Locality::Same, 4_800),
            outcome(System::RootRelay, Locality::Same, 400_800),
            outcome(System::SubscriptionTable, Locality::Apart, 200_000),
        ];
        let text = report.page().markdown();
        assert!(
            text.contains("of root-relay's bytes | 1.20 % (1.00 % without upkeep) | 2 % | met"),
            "{text}"
        );
        // Two connections, 500 publications, frames of 93 and 70 bytes.
        assert!(
            text.contains("of the least | 1.227 (1.222 without upkeep) | 1.10 | missed"),
            "{text}"
        );
        assert!(
            text.contains("| 5: star | root-relay | 100 % | 500 | 21.59 | 5.00 |"),
            "{text}"
        );
        assert!(report.page().html().contains("As figure 42"));
        assert_eq!(report.json()["outcomes"][0]["locality"], "100 %");
    }

    #[test]
    fn the_cluster_stands_beside_the_star() {
        let mut report = Report::new(machine());
        let star = outcome(System::SubscriptionTable, Locality::Same, 4_800);
        let cluster = Outcome {
            topology: "cluster",
            ..outcome(System::RabbitmqCluster, Locality::Same, 900_000)
        };
        for measured in [cluster, star] {
            report.add(Measured::Outcome(measured));
        }
        assert_eq!(report.outcomes[0].topology, "star", "the order of tables");
        let text = report.page().markdown();
        for row in [
            "| 7: cluster | rabbitmq cluster | 100 % | 500 | 13.97 | 5.00 | 35.8 | 100.0 |",
            "| star | subscription-table | 100 % | 500 | 1.0, 2.0, 3.0, 4.0, 5.0 | 0.5, 1.0, 1.5, 2.0, 2.5 | 2.0, 4.0, 6.0, 8.0, 10.0 |",
        ] {
            assert!(text.lines().any(|line| line == row), "{row}\n{text}");
        }
        assert!(!text.contains("of the least"), "{text}");
        let html = report.page().html();
        for caption in [
            "As figure 21 of the thesis: star, 500 publications",
            "As figure 22 of the thesis: star, 500 publications, 100 %",
            "As figure 45 of the thesis: star and cluster, 500 publications",
        ] {
            assert!(html.contains(caption), "{caption}");
        }
    }

    #[test]
    fn what_is_left_out_is_said_first() {
        let mut report = Report::new(machine());
        report
            .left_out
            .push("The cluster was not measured: why.".into());
        let text = report.page().markdown();
        assert!(
            text.contains("- The cluster was not measured: why.\n"),
            "{text}"
        );
        assert_eq!(
            report.json()["left_out"][0],
            "The cluster was not measured: why."
        );
    }

    #[test]
    fn nothing_measured_is_an_empty_page() {
        let text = Report::new(machine()).page().markdown();
        assert!(
            !text.contains("thesis") && !text.contains("Healing"),
            "{text}"
        );
    }
}
