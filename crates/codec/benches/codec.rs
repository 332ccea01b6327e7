//! Nanoseconds per packet: `cargo bench -p punctual-codec [FILTER]`.
//!
//! Each line is the fastest of several batches, which is what the code costs
//! when nothing else disturbs it; run on an otherwise idle machine. Inputs go
//! through `black_box`, so that nothing is computed at compile time.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a program for developers"
)]

use std::hint::black_box;
use std::time::{Duration, Instant};

use punctual_codec::{
    Ack, Frame, Packet, PacketType, PropertyBuf, PropertyId, Publish, QoS, RawPublish, ReasonCode,
    Split, Subscribe, SubscribeOptions, Version, split, topic,
};

const BATCHES: u32 = 500;
const BATCH: Duration = Duration::from_micros(200);

/// Prints what one call of `op` takes.
fn measure<R>(name: &str, mut op: impl FnMut() -> R) {
    if let Some(filter) = std::env::args().skip(1).find(|arg| !arg.starts_with('-'))
        && !name.contains(&filter)
    {
        return;
    }
    let mut time = |calls: u32| {
        let start = Instant::now();
        for _ in 0..calls {
            black_box(op());
        }
        start.elapsed()
    };
    let mut calls = 1;
    while time(calls) < BATCH {
        calls *= 2;
    }
    let best = (0..BATCHES).map(|_| time(calls)).min().unwrap();
    let nanos = best.as_secs_f64() * 1e9 / f64::from(calls);
    println!("{name:48} {nanos:8.1} ns");
}

fn frame(bytes: &[u8]) -> Frame<'_> {
    match split(bytes, u32::MAX) {
        Ok(Split::Frame(frame)) => frame,
        other => panic!("{other:?}"),
    }
}

/// A QoS 1 PUBLISH of `size` bytes in all.
fn publish(version: Version, properties: &PropertyBuf, size: usize) -> Vec<u8> {
    let encode = |payload: &[u8]| {
        let mut out = Vec::new();
        Publish {
            dup: false,
            qos: QoS::AtLeastOnce,
            retain: false,
            topic: "plant/line4/robot2/joint/position",
            packet_id: 77,
            properties: properties.as_properties(),
            payload,
        }
        .encode(version, &mut out)
        .unwrap();
        out
    };
    let empty = encode(&[]).len();
    let packet = encode(&vec![0x5A; size.saturating_sub(empty)]);
    assert!(packet.len() == size || empty > size);
    packet
}

fn user_properties(count: usize) -> PropertyBuf {
    let mut buf = PropertyBuf::new();
    let pairs = [
        ("rt-deadline", "10ms"),
        ("rt-period", "100ms"),
        ("rt-priority", "7"),
        ("origin", "gateway-12"),
        ("priority", "3"),
    ];
    for (name, value) in pairs.iter().cycle().take(count) {
        buf.push_user(name, value).unwrap();
    }
    buf
}

fn main() {
    let none = PropertyBuf::new();
    let five = user_properties(5);
    let v311 = publish(Version::V311, &none, 100);
    let v5 = publish(Version::V5, &none, 100);
    let v5_five = publish(Version::V5, &five, 200);

    for (name, bytes, version) in [
        ("PUBLISH 3.1.1, 100 B", &v311, Version::V311),
        ("PUBLISH 5, 100 B", &v5, Version::V5),
        ("PUBLISH 5, 200 B, 5 user properties", &v5_five, Version::V5),
    ] {
        measure(&format!("split {name}"), || {
            split(black_box(bytes), 1 << 20).map(|found| matches!(found, Split::Frame(_)))
        });
        measure(&format!("raw decode {name}"), || {
            let frame = frame(black_box(bytes));
            RawPublish::decode(frame.first, frame.body, version)
        });
        measure(&format!("decode {name}"), || {
            Packet::decode(frame(black_box(bytes)), version)
        });
    }

    let packet = match Packet::decode(frame(&v5_five), Version::V5) {
        Ok(Packet::Publish(packet)) => packet,
        other => panic!("{other:?}"),
    };
    measure("find the last of 5 user properties", || {
        black_box(&packet.properties).user_value("priority")
    });
    measure("miss in 5 user properties", || {
        black_box(&packet.properties).user_value("rt-jitter")
    });
    measure("walk 5 user properties as strings", || {
        black_box(&packet.properties)
            .user()
            .map(|(name, value)| name.len() + value.len())
            .sum::<usize>()
    });
    measure("ask for an absent property", || {
        black_box(&packet.properties).number(PropertyId::TopicAlias)
    });

    let mut out = Vec::with_capacity(4096);
    for (name, bytes, version) in [
        ("PUBLISH 3.1.1, 100 B", &v311, Version::V311),
        ("PUBLISH 5, 100 B", &v5, Version::V5),
        ("PUBLISH 5, 200 B, 5 user properties", &v5_five, Version::V5),
    ] {
        let packet = Packet::decode(frame(bytes), version).unwrap();
        measure(&format!("encode {name}"), || {
            out.clear();
            black_box(&packet).encode(version, &mut out)
        });
    }
    let ack = Ack::new(77, ReasonCode::Success);
    measure("encode PUBACK", || {
        out.clear();
        black_box(&ack).encode(PacketType::PubAck, Version::V5, &mut out)
    });
    let puback = [0x40, 2, 0, 77];
    measure("decode PUBACK", || {
        Packet::decode(frame(black_box(&puback)), Version::V5)
    });

    let mut subscribe = Vec::new();
    Subscribe::put(
        1,
        none.as_properties(),
        &[("plant/+/robot2/#", SubscribeOptions::default())],
        Version::V5,
        &mut subscribe,
    )
    .unwrap();
    measure("decode SUBSCRIBE, 1 filter", || {
        Packet::decode(frame(black_box(&subscribe)), Version::V5)
    });
    measure("validate a topic name of 33 B", || {
        topic::validate_name(black_box(b"plant/line4/robot2/joint/position"))
    });
    measure("match a filter", || {
        topic::matches(
            black_box("plant/+/robot2/#"),
            black_box("plant/line4/robot2/joint/position"),
        )
    });
}
