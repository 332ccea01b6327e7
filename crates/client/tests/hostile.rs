//! Servers that send anything: the core reports it and never panics, whatever
//! state it is in, and it never keeps more than it was given.

#![allow(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]

use std::time::Duration;

use punctual_client::{Config, Core, Error, Message, PropertyBuf, PropertyId, QoS, Version};
use punctual_client::{ReasonCode, SubscribeOptions};
use punctual_model::Rng;

const NOW: Duration = Duration::from_secs(1);
const SEEDS: u64 = 3000;
const STEPS: usize = 80;

/// A packet that is often well-formed, with identifiers that are often in use.
fn packet(rng: &mut Rng, v5: bool) -> Vec<u8> {
    let id = rng.below(10) as u8;
    let mut packet = match rng.below(12) {
        0 if v5 => vec![
            0x20,
            6,
            rng.below(2) as u8,
            0,
            3,
            0x21,
            0,
            rng.below(4) as u8,
        ],
        0 => vec![0x20, 2, rng.below(2) as u8, 0],
        1 | 2 => {
            let qos = rng.below(3) as u8;
            let mut body = vec![0, 1, b'a'];
            if qos > 0 {
                body.extend_from_slice(&[0, id]);
            }
            if v5 {
                body.push(0);
            }
            [vec![0x30 | qos << 1, body.len() as u8], body].concat()
        }
        3 => vec![0x40, 2, 0, id],
        4 | 5 => vec![0x50, 2, 0, id],
        6 => vec![0x62, 2, 0, id],
        7 => vec![0x70, 2, 0, id],
        8 if v5 => vec![0x90, 4, 0, id, 0, 0],
        8 => vec![0x90, 3, 0, id, 0],
        9 => vec![0xD0, 0],
        10 if v5 => vec![0x40, 3, 0, id, 0x97],
        _ => (0..rng.below(8)).map(|_| rng.any() as u8).collect(),
    };
    if rng.index(40) == 0 && !packet.is_empty() {
        let at = rng.index(packet.len());
        packet[at] = rng.any() as u8;
    }
    packet
}

fn config(version: Version) -> Config {
    let mut properties = PropertyBuf::new();
    if version.is_v5() {
        properties.push_number(PropertyId::SessionExpiryInterval, 60);
    }
    Config {
        version,
        client_id: "x".into(),
        clean_start: false,
        properties,
        max_inflight: 3,
        max_queued: 5,
        max_packet: 1000,
        ..Config::default()
    }
}

fn torment(seed: u64, version: Version) {
    let mut rng = Rng::new(seed);
    let mut core = Core::new(config(version)).unwrap();
    core.connect(NOW).unwrap();
    let connack: &[u8] = match version.is_v5() {
        true => &[0x20, 3, 0, 0, 0],
        false => &[0x20, 2, 0, 0],
    };
    core.receive(connack, NOW);
    for _ in 0..STEPS {
        match rng.below(8) {
            0 => {
                let qos = QoS::from_bits(rng.below(3) as u8).unwrap();
                match core.publish(&Message::new("a", "b").qos(qos), NOW) {
                    Ok(_) | Err(Error::Full) => {}
                    Err(error) => panic!("{error}"),
                }
            }
            1 => {
                let filters = [("a", SubscribeOptions::default())];
                match core.subscribe(&filters, &PropertyBuf::new(), NOW) {
                    Ok(_) | Err(Error::NotConnected | Error::Unsupported(_)) => {}
                    Err(error) => panic!("{error}"),
                }
            }
            2 => {
                let n = rng.index(core.output().len() + 1);
                core.sent(n, NOW);
            }
            _ => core.receive(&packet(&mut rng, version.is_v5()), NOW),
        }
        loop {
            match core.poll(NOW) {
                Ok(Some(_)) => {}
                Ok(None) => break,
                Err(error) => {
                    assert!(!error.to_string().is_empty());
                    core.connect(NOW).unwrap();
                    let present = rng.below(2) as u8;
                    let connack = match version.is_v5() {
                        true => vec![0x20, 6, present, 0, 3, 0x21, 0, 1],
                        false => vec![0x20, 2, present, 0],
                    };
                    core.receive(&connack, NOW);
                }
            }
        }
        assert!(core.unfinished() <= 3 + 5);
    }
    let _ = core.disconnect(ReasonCode::Success, &PropertyBuf::new());
}

#[test]
fn no_server_makes_it_panic() {
    for version in [Version::V5, Version::V311] {
        for seed in 0..SEEDS {
            let result = std::panic::catch_unwind(|| torment(seed, version));
            if let Err(panic) = result {
                eprintln!("failing seed: {seed} {version:?}");
                std::panic::resume_unwind(panic);
            }
        }
    }
}
