//! Flow-mods per second: `cargo bench -p punctual-openflow`.
//!
//! Each line is the fastest of several rounds of 10 000 entries, which is what the code costs
//! when nothing else disturbs it; run on an otherwise idle machine.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a program for developers"
)]

use std::hint::black_box;
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use punctual_model::Nanos;
use punctual_openflow::fake::{Switch, example};
use punctual_openflow::{
    Action, DatapathId, Envelope, FlowMod, IP_UDP, Instruction, Match, Message, OxmField, PortNo,
    QueueId, TableId, Xid, split,
};

const ROUNDS: u32 = 30;
const COUNT: u32 = 10_000;

/// What a real-time flow is on one switch: marked, queued and sent on.
fn flow_mod(number: u32) -> Envelope {
    let matching = Match::new([
        OxmField::InPort(PortNo(number % 8 + 1)),
        OxmField::Ipv4Src(Ipv4Addr::from(0x0a00_0000 + number).into()),
        OxmField::Ipv4Dst(Ipv4Addr::from(0x0b00_0000 + number).into()),
        OxmField::UdpDst(1883.into()),
    ]);
    let actions = vec![
        Action::SetField(OxmField::IpDscp(46)),
        Action::SetQueue(QueueId(6)),
        Action::output(PortNo(9)),
    ];
    let instructions = vec![Instruction::ApplyActions(actions)];
    let change = FlowMod::add(TableId(0), 100, matching.unwrap(), instructions);
    Envelope::new(Xid(number), Message::FlowMod(change))
}

/// Prints how often `op`, which does [`COUNT`] of something, does it in a second.
fn measure(name: &str, mut op: impl FnMut()) {
    let time = |op: &mut dyn FnMut()| {
        let start = Instant::now();
        op();
        start.elapsed()
    };
    let best = (0..ROUNDS)
        .map(|_| time(&mut op))
        .min()
        .unwrap_or(Duration::MAX);
    let nanos = best.as_secs_f64() * 1e9 / f64::from(COUNT);
    println!("{name:40} {nanos:8.1} ns {:10.0} per s", 1e9 / nanos);
}

fn main() {
    let changes: Vec<_> = (0..COUNT).map(flow_mod).collect();
    let mut bytes = Vec::new();
    measure("build a flow-mod", || {
        for number in 0..COUNT {
            black_box(flow_mod(black_box(number)));
        }
    });
    measure("encode a flow-mod", || {
        bytes.clear();
        for change in black_box(&changes) {
            change.encode(&mut bytes).unwrap();
        }
    });
    println!("{:40} {:8} bytes", "one is", bytes.len() / COUNT as usize);
    measure("split and decode a flow-mod", || {
        let mut rest = black_box(&bytes[..]);
        while let Some(frame) = split(rest, u16::MAX).unwrap() {
            black_box(Envelope::decode(frame).unwrap());
            rest = &rest[frame.len()..];
        }
    });
    measure("apply a flow-mod to the fake switch", || {
        let mut switch = Switch::new(DatapathId(1), (1..10).map(PortNo), Nanos(0));
        for change in &changes {
            black_box(switch.handle(change, Nanos(0)));
        }
    });
    let mut switch = Switch::new(DatapathId(1), (1..10).map(PortNo), Nanos(0));
    switch.handle(&changes[7], Nanos(0));
    let frame = example::v4(IP_UDP, &[0; 1000]);
    measure("a packet through the fake switch", || {
        for _ in 0..COUNT {
            black_box(switch.packet(PortNo(8), black_box(&frame), Nanos(0)));
        }
    });
}
