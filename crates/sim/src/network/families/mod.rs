//! Networks of the literature, as documents.
//!
//! `[RT]`: Shahri, Pedreiras, Almeida, "End-to-End Response Time Analysis for
//! RT-MQTT", Fig. 2 and Table I. `[MRT]`: the same authors, "A Scalable
//! Real-Time SDN-Based MQTT Framework for Industrial Applications", Fig. 15.
//! `PrioMQTT`: Patti, Leonardi, Testa, Lo Bello, Computer Communications 2024,
//! section 5. What the papers leave open is an assumption, stated with each
//! network here and in `examples/networks/README.md`.

pub mod tiny;

use std::collections::BTreeMap;

use punctual_model::network::{Document, FlowEntry, LinkEntry, NodeEntry};

const MICRO: u64 = 1_000;
const MILLI: u64 = 1_000_000;
const FAST_ETHERNET: u64 = 100_000_000;
/// Bytes of a frame with 1500 bytes of data, with header, check sequence, preamble and gap.
const FULL_FRAME: u64 = 1538;
/// Bytes of a TCP acknowledgement: the shortest Ethernet frame, with preamble and gap.
const ACKNOWLEDGEMENT: u64 = 84;

/// How many publishers of the network of a paper send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Load {
    /// Fig. 2: 12 publishers; Fig. 15: 20 for each topic.
    Low,
    /// Fig. 2: 24 publishers; Fig. 15: 40 for each topic.
    Medium,
    /// Fig. 2: 42 publishers; Fig. 15: 60 for each topic.
    High,
}

impl Load {
    /// All loads, the least first.
    pub const ALL: [Self; 3] = [Self::Low, Self::Medium, Self::High];

    /// The name in lower case.
    pub fn name(self) -> &'static str {
        match self {
            Self::Low => "low",
            Self::Medium => "medium",
            Self::High => "high",
        }
    }
}

/// Every network of this module with the name of its file in
/// `examples/networks`, without the ending.
pub fn all() -> Vec<(String, Document)> {
    let mut all = Vec::new();
    for load in Load::ALL {
        all.push((format!("fig2-{}", load.name()), fig2(load)));
    }
    for load in Load::ALL {
        all.push((format!("fig15-{}", load.name()), fig15(load, false)));
    }
    for load in [Load::Low, Load::Medium] {
        all.push((format!("fig15-abc-{}", load.name()), fig15(load, true)));
    }
    all.push(("factory-cell".to_owned(), factory_cell()));
    all.push(("factory-cell-late".to_owned(), factory_cell_late()));
    all.push(("line".to_owned(), line()));
    all
}

/// Fig. 2 of `[RT]`: publishers at six switches, one broker, seven priorities.
///
/// Assumed: the period is the deadline (the paper draws periods between 10 and
/// 20 ms and asks for deadlines not above them); switches take 10 to 30 us;
/// every port but the publishers' own also carries undeclared traffic.
pub fn fig2(load: Load) -> Document {
    const DEADLINES: [u64; 7] = [10, 12, 14, 16, 18, 19, 20];
    const ROUTES: [&[&str]; 6] = [
        &["s1", "s8", "s7", "h49"],
        &["s2", "s3", "s10", "s7", "h49"],
        &["s3", "s10", "s7", "h49"],
        &["s4", "s10", "s7", "h49"],
        &["s5", "s6", "s7", "h49"],
        &["s6", "s7", "h49"],
    ];
    let classes = match load {
        Load::Low => 2,
        Load::Medium => 4,
        Load::High => 7,
    };
    let mut network = Builder::default();
    for switch in ["s1", "s2", "s3", "s4", "s5", "s6", "s7", "s8", "s10"] {
        network.switch(switch, 10 * MICRO, 30 * MICRO, 0);
    }
    network.host("h49");
    for (group, route) in ROUTES.iter().enumerate() {
        for (class, deadline) in DEADLINES.iter().enumerate().take(classes) {
            let number = 8 * group + class + 1;
            let host = format!("h{number}");
            network.host(&host);
            let first = network.link(&host, route[0], 0);
            let mut path = vec![first];
            path.extend(
                route
                    .windows(2)
                    .map(|l| network.link(l[0], l[1], FULL_FRAME)),
            );
            network.flow(FlowEntry {
                id: format!("m{number}"),
                prio: 7 - class as u64,
                period_ns: deadline * MILLI,
                jitter_ns: 400 * MICRO,
                deadline_ns: Some(deadline * MILLI),
                wire_bytes: Some(FULL_FRAME),
                paths: vec![path],
                ..FlowEntry::default()
            });
        }
    }
    network.document
}

/// Fig. 15 of `[MRT]`: three edge networks whose topics go to the brokers of
/// all three, by multicast. `all_publish`: all edge networks publish, not only
/// A, which is what the paper evaluates.
///
/// Assumed: periods from 15 to 20 ms in equal steps, both of them included (the
/// paper draws them at random in that range); switches take 10 to 30 us and up to 20 us more to replicate a frame;
/// all ports, those of the publishers' gateways too, carry undeclared traffic;
/// B and C reach the others by the links that A uses, in the other direction. What
/// s6, s7 and s8 are linked to is assumed, too, for the paper's text names no link of
/// theirs: a second way from s1 to s2 over s6 and s7, and from s5 to s3 over s8, each a
/// switch longer than the one that flows take. All of h1 to h15 are there.
pub fn fig15(load: Load, all_publish: bool) -> Document {
    // Gateways of the topics alpha and beta, and the paths of both from there.
    type Edge = (
        &'static str,
        [&'static str; 2],
        [&'static [&'static str]; 3],
    );
    const EDGES: [Edge; 3] = [
        (
            "a",
            ["h1", "h2"],
            [
                &["s1", "h5"],
                &["s1", "s4", "s2", "h10"],
                &["s1", "s4", "s5", "s3", "h15"],
            ],
        ),
        (
            "b",
            ["h6", "h7"],
            [
                &["s2", "h10"],
                &["s2", "s4", "s1", "h5"],
                &["s2", "s4", "s5", "s3", "h15"],
            ],
        ),
        (
            "c",
            ["h11", "h12"],
            [
                &["s3", "h15"],
                &["s3", "s5", "s4", "s1", "h5"],
                &["s3", "s5", "s4", "s2", "h10"],
            ],
        ),
    ];
    let publishers = match load {
        Load::Low => 20,
        Load::Medium => 40,
        Load::High => 60,
    };
    let mut network = Builder::default();
    for switch in ["s1", "s2", "s3", "s4", "s5", "s6", "s7", "s8"] {
        network.switch(switch, 10 * MICRO, 30 * MICRO, 20 * MICRO);
    }
    for broker in ["h5", "h10", "h15"] {
        network.host(broker);
    }
    let edges = if all_publish { &EDGES[..] } else { &EDGES[..1] };
    for (edge, hosts, routes) in edges {
        for (topic, (host, deadline)) in hosts.iter().zip([20, 15]).enumerate() {
            network.host(host);
            let mut paths = Vec::new();
            for route in routes {
                let mut path = vec![network.link(host, route[0], FULL_FRAME)];
                path.extend(
                    route
                        .windows(2)
                        .map(|l| network.link(l[0], l[1], FULL_FRAME)),
                );
                paths.push(path);
            }
            for publisher in 0..publishers {
                let name = ["alpha", "beta"][topic];
                network.flow(FlowEntry {
                    id: format!("{name}-{edge}-{publisher:02}"),
                    prio: topic as u64 + 1,
                    period_ns: 15 * MILLI + 5 * MILLI * publisher / (publishers - 1),
                    jitter_ns: 400 * MICRO,
                    deadline_ns: Some(deadline * MILLI),
                    wire_bytes: Some(FULL_FRAME),
                    paths: paths.clone(),
                    ..FlowEntry::default()
                });
            }
        }
    }
    for (first, second) in FIG15_SPARE {
        network.cable(first, second);
    }
    for (edge, switch) in ["s1", "s2", "s3"].into_iter().enumerate() {
        for number in 5 * edge + 1..=5 * edge + 5 {
            network.cable(&format!("h{number}"), switch);
        }
    }
    network.document
}

/// Links of Fig. 15 that no flow takes; assumed.
const FIG15_SPARE: [(&str, &str); 5] = [
    ("s1", "s6"),
    ("s6", "s7"),
    ("s7", "s2"),
    ("s5", "s8"),
    ("s8", "s3"),
];

/// The factory cell of `PrioMQTT`: four modules ask a controller, which
/// answers; all through one broker, which sends a copy to each of the two
/// clients of a couple.
///
/// Assumed: 500 bytes of payload are 620 on the wire; the broker takes 20 us
/// for a message, is busy with something else for 50 us at most, and is served
/// by priority; switches take 5 to 15 us; questions and answers leave once a
/// period, at most 0.1 ms late; acknowledgements of TCP are all that is not
/// declared. The paper's priorities, of which 1 is the most urgent, become 7, 6,
/// 5 and 3.
pub fn factory_cell() -> Document {
    cell(|_| 100 * MICRO)
}

/// The factory cell with a controller that answers late, up to three tenths of
/// a period after an answer is due: too late for the one of the shortest
/// period, T2.
pub fn factory_cell_late() -> Document {
    cell(|period| period * 3 / 10)
}

/// The factory cell, in which `answer_jitter` returns the jitter of answers for their period, ns.
fn cell(answer_jitter: impl Fn(u64) -> u64) -> Document {
    // Module, switch, period in ms, priority, topics of question and answer.
    const COUPLES: [(&str, &str, u64, u64, [&str; 2]); 4] = [
        ("S1", "sw2", 1, 7, ["T1", "T2"]),
        ("S2", "sw1", 2, 6, ["T3", "T4"]),
        ("S4", "sw2", 3, 5, ["T7", "T8"]),
        ("S3", "sw2", 5, 3, ["T5", "T6"]),
    ];
    let mut network = Builder::default();
    network.switch("sw1", 5 * MICRO, 15 * MICRO, 0);
    network.switch("sw2", 5 * MICRO, 15 * MICRO, 0);
    // The broker's processor is a link from where messages come in to where
    // they go out.
    network.host("broker-in");
    network.host("broker-out");
    network.document.links.push(LinkEntry {
        id: "broker".to_owned(),
        from: "broker-in".to_owned(),
        to: "broker-out".to_owned(),
        be_ns: Some(50 * MICRO),
        ..LinkEntry::default()
    });
    network.host("controller");
    for (module, switch, period, priority, topics) in COUPLES {
        network.host(module);
        let mut there = |client: &str, switch: &str| {
            let mut path = vec![network.link(client, switch, 0)];
            if switch == "sw2" {
                path.push(network.link("sw2", "sw1", ACKNOWLEDGEMENT));
            }
            path.push(network.link("sw1", "broker-in", ACKNOWLEDGEMENT));
            path.push("broker".to_owned());
            path
        };
        let from_module = there(module, switch);
        let from_controller = there("controller", "sw2");
        let mut back = |client: &str, switch: &str| {
            let mut path = vec![network.link("broker-out", "sw1", ACKNOWLEDGEMENT)];
            if switch == "sw2" {
                path.push(network.link("sw1", "sw2", ACKNOWLEDGEMENT));
            }
            path.push(network.link(switch, client, ACKNOWLEDGEMENT));
            path
        };
        let to_module = back(module, switch);
        let to_controller = back("controller", "sw2");
        let answers = [
            (topics[0], &from_module, 100 * MICRO),
            (topics[1], &from_controller, answer_jitter(period * MILLI)),
        ];
        for (topic, start, jitter) in answers {
            let to = |rest: &[String]| [start.as_slice(), rest].concat();
            network.flow(FlowEntry {
                id: topic.to_owned(),
                prio: priority,
                period_ns: period * MILLI,
                jitter_ns: jitter,
                deadline_ns: Some(period * MILLI),
                wire_bytes: Some(620),
                paths: vec![to(&to_controller), to(&to_module)],
                cost_ns: BTreeMap::from([("broker".to_owned(), 20 * MICRO)]),
                fanout_node: Some("broker-out".to_owned()),
                ..FlowEntry::default()
            });
        }
    }
    network.document
}

/// Three publishers along a line of two switches, and one receiver at its end.
pub fn line() -> Document {
    let mut network = Builder::default();
    network.switch("s1", 5 * MICRO, 10 * MICRO, 0);
    network.switch("s2", 5 * MICRO, 10 * MICRO, 0);
    network.host("receiver");
    let flows = [
        ("motor", "s1", 7, 2, 320),
        ("valve", "s1", 5, 5, 320),
        ("camera", "s2", 3, 10, FULL_FRAME),
    ];
    for (name, switch, prio, period, wire_bytes) in flows {
        network.host(name);
        let mut path = vec![network.link(name, switch, 0)];
        if switch == "s1" {
            path.push(network.link("s1", "s2", FULL_FRAME));
        }
        path.push(network.link("s2", "receiver", FULL_FRAME));
        network.flow(FlowEntry {
            id: name.to_owned(),
            prio,
            period_ns: period * MILLI,
            jitter_ns: 100 * MICRO,
            deadline_ns: Some(period * MILLI),
            wire_bytes: Some(wire_bytes),
            frames: (name == "camera").then_some(4),
            paths: vec![path],
            ..FlowEntry::default()
        });
    }
    network.document
}

/// Builds a document: nodes and links are added when they are first used.
#[derive(Default)]
struct Builder {
    document: Document,
}

impl Builder {
    fn host(&mut self, id: &str) {
        self.switch(id, 0, 0, 0);
    }

    fn switch(&mut self, id: &str, sd_min_ns: u64, sd_max_ns: u64, copy_max_ns: u64) {
        if self.document.nodes.iter().any(|node| node.id == id) {
            return;
        }
        self.document.nodes.push(NodeEntry {
            id: id.to_owned(),
            sd_min_ns,
            sd_max_ns: (sd_max_ns != sd_min_ns).then_some(sd_max_ns),
            copy_max_ns,
        });
    }

    /// Returns the name of the link between two nodes, and adds the link if it does not exist.
    fn link(&mut self, from: &str, to: &str, best_effort: u64) -> String {
        let id = format!("{from}>{to}");
        if !self.document.links.iter().any(|link| link.id == id) {
            self.document.links.push(LinkEntry {
                id: id.clone(),
                from: from.to_owned(),
                to: to.to_owned(),
                rate_bps: Some(FAST_ETHERNET),
                be_bytes: (best_effort > 0).then_some(best_effort),
                ..LinkEntry::default()
            });
        }
        id
    }

    /// Links of both directions between two nodes, which are there afterwards.
    fn cable(&mut self, first: &str, second: &str) {
        for end in [first, second] {
            self.host(end);
        }
        self.link(first, second, FULL_FRAME);
        self.link(second, first, FULL_FRAME);
    }

    fn flow(&mut self, flow: FlowEntry) {
        self.document.flows.push(flow);
    }
}
