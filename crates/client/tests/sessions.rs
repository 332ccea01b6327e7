//! Sessions over connections that are cut at random bytes: QoS 1 arrives at
//! least once, QoS 2 exactly once, both in order, in both directions.

#![allow(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]

mod support;

use std::collections::BTreeMap;
use std::time::Duration;

use punctual_client::{Config, Core, Event, Message};
use punctual_codec::{PropertyBuf, PropertyId, QoS, ReasonCode, Version};
use punctual_model::Rng;
use support::{Server, Taken};

const MESSAGES: usize = 60;
const SEEDS: u64 = 400;

fn config(version: Version) -> Config {
    let mut properties = PropertyBuf::new();
    if version.is_v5() {
        properties
            .push_number(PropertyId::SessionExpiryInterval, 3600)
            .push_number(PropertyId::ReceiveMaximum, 20);
    }
    Config {
        version,
        client_id: "client".into(),
        clean_start: version.is_v5(),
        properties,
        max_queued: 10,
        topic_aliases: 3,
        ..Config::default()
    }
}

fn qos(rng: &mut Rng) -> QoS {
    QoS::from_bits(rng.below(2) as u8 + 1).unwrap()
}

/// A client and a server with a wire between them that holds bytes back and
/// breaks.
struct World {
    rng: Rng,
    core: Core,
    server: Server,
    up: bool,
    /// Whether the client has ever been connected. Until it is, each of its
    /// attempts starts clean.
    established: bool,
    to_server: Vec<u8>,
    to_client: Vec<u8>,
    /// What the client got, and what ended at the client.
    got: Vec<Taken>,
    ended: BTreeMap<punctual_client::Token, ReasonCode>,
    now: Duration,
}

impl World {
    fn new(seed: u64, version: Version) -> Self {
        let mut rng = Rng::new(seed);
        let receive_maximum = 1 + rng.below(8) as u16;
        let aliases = rng.below(4) as u16;
        Self {
            core: Core::new(config(version)).unwrap(),
            server: Server::new(version, receive_maximum, aliases),
            up: false,
            established: false,
            to_server: Vec::new(),
            to_client: Vec::new(),
            got: Vec::new(),
            ended: BTreeMap::new(),
            now: Duration::ZERO,
            rng,
        }
    }

    fn cut(&mut self) {
        self.up = false;
        self.to_server.clear();
        self.to_client.clear();
        self.core.connection_lost();
        self.server.connection_lost();
    }

    /// Moves some bytes some of the way; connects if there is no connection.
    fn step(&mut self) {
        self.now += Duration::from_millis(1);
        if !self.up {
            self.core.connect(self.now).unwrap();
            self.up = true;
        }
        let n = self.rng.index(self.core.output().len() + 1);
        self.to_server.extend_from_slice(&self.core.output()[..n]);
        self.core.sent(n, self.now);
        let n = self.rng.index(self.to_server.len() + 1);
        let bytes: Vec<u8> = self.to_server.drain(..n).collect();
        self.server.receive(&bytes);
        self.to_client.append(&mut self.server.output);
        let n = self.rng.index(self.to_client.len() + 1);
        let bytes: Vec<u8> = self.to_client.drain(..n).collect();
        self.core.receive(&bytes, self.now);
        while let Some(event) = self.core.poll(self.now).unwrap() {
            match event {
                Event::Message(delivery) => self.got.push(Taken {
                    topic: delivery.message.topic,
                    payload: delivery.message.payload,
                    qos: delivery.message.qos,
                }),
                Event::Published { token, reason, .. } => {
                    let before = self.ended.insert(token, reason);
                    assert_eq!(before, None, "{token:?} ended twice");
                }
                Event::Connected(_) => self.established = true,
                _ => {}
            }
        }
    }
}

fn message(i: usize, qos: QoS) -> Taken {
    Taken {
        topic: format!("topic/{}", i % 5),
        payload: (i as u32).to_be_bytes().to_vec(),
        qos,
    }
}

/// What should have arrived, given what did: QoS 2 must match, repetitions of
/// QoS 1 are allowed.
fn without_repetitions(arrived: &[Taken]) -> Vec<Taken> {
    let mut seen = Vec::new();
    for message in arrived {
        if message.qos == QoS::ExactlyOnce || !seen.contains(message) {
            seen.push(message.clone());
        }
    }
    seen
}

fn of(messages: &[Taken], qos: QoS) -> Vec<Taken> {
    let of_qos = messages.iter().filter(|m| m.qos == qos);
    of_qos.cloned().collect()
}

fn assert_arrived(sent: &[Taken], arrived: &[Taken], what: &str) {
    let arrived = without_repetitions(arrived);
    for qos in [QoS::AtLeastOnce, QoS::ExactlyOnce] {
        assert_eq!(of(&arrived, qos), of(sent, qos), "{what} {qos:?}");
    }
}

fn survives_cuts(seed: u64, version: Version) {
    let mut world = World::new(seed, version);
    let mut sent = Vec::new();
    let mut tokens = Vec::new();
    let mut delivered = Vec::new();
    let mut cuts = 30;
    let mut steps = 0;
    while tokens.len() < MESSAGES
        || delivered.len() < MESSAGES
        || world.ended.len() < MESSAGES
        || !world.server.is_idle()
    {
        steps += 1;
        assert!(steps < 100_000, "no progress");
        if tokens.len() < MESSAGES && world.rng.chance(50) {
            let next = message(tokens.len(), qos(&mut world.rng));
            let publish = Message::new(&*next.topic, &*next.payload).qos(next.qos);
            match world.core.publish(&publish, world.now) {
                Ok(token) => {
                    tokens.push(token);
                    sent.push(next);
                }
                Err(punctual_client::Error::Full) => {}
                Err(error) => panic!("{error}"),
            }
        }
        if world.established && delivered.len() < MESSAGES && world.rng.chance(50) {
            let next = message(delivered.len(), qos(&mut world.rng));
            delivered.push(next.clone());
            world.server.deliver(next);
        }
        world.step();
        if cuts > 0 && world.rng.index(12) == 0 {
            cuts -= 1;
            world.cut();
        }
    }
    assert_arrived(&sent, &world.server.taken, "to the server");
    assert_arrived(&delivered, &world.got, "to the client");
    assert_eq!(world.core.unfinished(), 0);
    for token in tokens {
        assert_eq!(world.ended.get(&token), Some(&ReasonCode::Success));
    }
}

fn with_seeds(test: fn(u64, Version), version: Version) {
    for seed in 0..SEEDS {
        let result = std::panic::catch_unwind(|| test(seed, version));
        if let Err(panic) = result {
            eprintln!("failing seed: {seed} {version:?}");
            std::panic::resume_unwind(panic);
        }
    }
}

#[test]
fn sessions_survive_cuts_in_v5() {
    with_seeds(survives_cuts, Version::V5);
}

#[test]
fn sessions_survive_cuts_in_v311() {
    with_seeds(survives_cuts, Version::V311);
}

/// A server that forgets its session now and then: nothing with QoS 1 is lost
/// on the way to it, every message ends exactly once at the publisher, and a
/// message with QoS 2 of unknown fate is reported as such.
fn survives_forgetting(seed: u64, version: Version) {
    let mut world = World::new(seed, version);
    let mut sent = Vec::new();
    let mut tokens = Vec::new();
    let mut cuts = 20;
    let mut steps = 0;
    while tokens.len() < MESSAGES || world.ended.len() < MESSAGES {
        steps += 1;
        assert!(steps < 100_000, "no progress");
        if tokens.len() < MESSAGES && world.rng.chance(50) {
            let next = message(tokens.len(), qos(&mut world.rng));
            let publish = Message::new(&*next.topic, &*next.payload).qos(next.qos);
            if let Ok(token) = world.core.publish(&publish, world.now) {
                tokens.push(token);
                sent.push(next);
            }
        }
        world.step();
        if cuts > 0 && world.rng.index(12) == 0 {
            cuts -= 1;
            world.cut();
            if world.rng.chance(50) {
                world.server.forget_session();
            }
        }
    }
    for (message, token) in sent.iter().zip(&tokens) {
        let reason = world.ended[token];
        let unknown = reason == ReasonCode::PacketIdentifierNotFound;
        assert!(reason == ReasonCode::Success || unknown && message.qos == QoS::ExactlyOnce);
        assert!(world.server.taken.contains(message), "{message:?} lost");
    }
}

#[test]
fn lost_sessions_lose_no_message_in_v5() {
    with_seeds(survives_forgetting, Version::V5);
}

#[test]
fn lost_sessions_lose_no_message_in_v311() {
    with_seeds(survives_forgetting, Version::V311);
}
