//! What requirements cost a PUBLISH: `cargo bench -p punctual-broker --bench publish`.
//!
//! One publisher's messages with QoS 0 go through a shard to nobody, with what
//! they state changing from line to line. Each line is the fastest of several
//! batches; run on an otherwise idle machine.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a program for developers"
)]

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use punctual_broker::{
    Admission, Config, ConnId, ConnMeta, Directory, Flow, FlowDecision, Nanos, Output, Policing,
    Shard,
};
use punctual_codec::{Connect, Properties, PropertyBuf, Publish, QoS, Version};
use punctual_model::{Answer, Grant, Requirements, Status};

const BATCHES: u32 = 60;
/// Messages that are handed over at once.
const PIPELINED: usize = 50;
const ROUNDS: u32 = 400;
const TOPIC: &str = "line/3/press/7/position";
const PERIOD: Duration = Duration::from_millis(10);

struct Broker {
    shard: Shard,
    conn: ConnId,
    now: Nanos,
}

impl Broker {
    fn new(admission: Option<Admission>) -> Self {
        let config = Config {
            admission,
            ..Config::default()
        };
        let mut now = Nanos(1_000_000_000);
        let mut shard = Shard::new(Directory::new(1), 0, Arc::new(config), now);
        let meta = ConnMeta {
            allow_anonymous: true,
            nonce: [1; 16],
            ..ConnMeta::default()
        };
        let conn = shard.open(meta, now);
        let connect = Connect {
            version: Version::V5,
            clean_start: true,
            keep_alive: 0,
            client_id: "press-7",
            will: None,
            username: None,
            password: None,
            properties: Properties::EMPTY,
        };
        let mut bytes = Vec::new();
        connect.encode(&mut bytes).unwrap();
        now = now + Nanos(1_000);
        shard.receive(conn, &bytes, now);
        shard.go_on(conn);
        let mut broker = Self { shard, conn, now };
        broker.settle();
        broker
    }

    fn settle(&mut self) {
        let mut outputs: Vec<Output> = Vec::new();
        self.shard.take_outputs(&mut outputs);
        black_box(outputs);
    }

    /// The requirements' flow is admitted.
    fn admit(&mut self, requirements: Requirements) {
        let decision = FlowDecision {
            answer: Answer {
                status: Some(Status::Admitted),
                ..Answer::default()
            },
            grant: Some(Grant {
                priority: 5,
                period_ns: 1,
                tolerance_ns: 1_000_000_000,
                bandwidth: None,
                max_payload: None,
                max_packet: 1_000,
            }),
        };
        let now = self.now;
        self.shard.decide_flow(
            "press-7",
            0,
            TOPIC,
            requirements,
            Some(decision),
            false,
            now,
        );
        self.settle();
    }

    fn receive(&mut self, bytes: &[u8]) {
        self.now = self.now + Nanos(1_000_000);
        let received = self.shard.receive(self.conn, bytes, self.now);
        assert_eq!(
            (received.consumed, received.flow),
            (bytes.len(), Flow::Read)
        );
        self.settle();
    }
}

fn packets(stated: &[(&str, &str)]) -> Vec<u8> {
    let mut properties = PropertyBuf::new();
    for (key, value) in stated {
        properties.push_user(key, value).unwrap();
    }
    let publish = Publish {
        dup: false,
        qos: QoS::AtMostOnce,
        retain: false,
        topic: TOPIC,
        packet_id: 0,
        properties: properties.as_properties(),
        payload: &[7; 40],
    };
    let mut bytes = Vec::new();
    for _ in 0..PIPELINED {
        publish.encode(Version::V5, &mut bytes).unwrap();
    }
    bytes
}

/// The fastest time of a message, ns.
fn measure(broker: &mut Broker, bytes: &[u8]) -> f64 {
    broker.receive(bytes);
    let batches = (0..BATCHES).map(|_| {
        let start = Instant::now();
        for _ in 0..ROUNDS {
            broker.receive(bytes);
        }
        start.elapsed()
    });
    let best = batches.min().unwrap();
    best.as_secs_f64() * 1e9 / f64::from(ROUNDS) / PIPELINED as f64
}

fn main() {
    let admission = Admission {
        refuse: false,
        policing: Policing::Off,
        max_flows_per_session: 10,
        absent_after: Nanos::from_secs(3600),
        conditions: Default::default(),
    };
    let requirements = Requirements {
        deadline: Some(PERIOD / 2),
        period: Some(PERIOD),
        ..Requirements::NONE
    };
    let stated = [("rt-deadline", "5ms"), ("rt-period", "10ms")];
    let other = [("trace-id", "5f3b0c"), ("unit", "10mm")];
    let plain = measure(&mut Broker::new(None), &packets(&[]));
    println!("{:52} {plain:7.1} ns", "nothing stated, admission off");
    let show = |name: &str, nanos: f64| {
        println!("{name:52} {nanos:7.1} ns  {:+7.1} ns", nanos - plain);
    };
    let mut broker = Broker::new(Some(admission));
    show("nothing stated", measure(&mut broker, &packets(&[])));
    show(
        "two other properties, admission off",
        measure(&mut Broker::new(None), &packets(&other)),
    );
    show(
        "two other properties",
        measure(&mut broker, &packets(&other)),
    );
    broker.admit(requirements);
    show(
        "nothing stated on the topic of a flow",
        measure(&mut broker, &packets(&[])),
    );
    show(
        "deadline and period of a known flow",
        measure(&mut broker, &packets(&stated)),
    );
    show(
        "deadline and period, admission off",
        measure(&mut Broker::new(None), &packets(&stated)),
    );
}
