//! The cases of `scale`, among them those that measure memory for stored state.

use std::time::{Duration, Instant};

use punctual_measure::wire::{self, PublishTemplate, Version, kind};
use punctual_measure::{Error, Result};

use super::crowd::Crowd;
use super::ending;
use super::ground::{Ground, MOSQUITTO, RELAY};
use super::report::Measures;
use super::traffic::{mixed, payloads, shared, topics};
use crate::compare::peers::{FLOOR, PUNCTUAL};

/// Sizes in which a case is run.
#[derive(Clone, Copy, Debug)]
pub(super) enum Sizes {
    /// All sizes that the user chose, up to this one.
    UpTo(u64),
    /// These sizes, whatever the user chose.
    These(&'static [u64]),
}

/// A measurement that is repeated in several sizes.
pub(super) struct Case {
    pub(super) name: &'static str,
    pub(super) what: &'static str,
    /// Unit of the sizes.
    pub(super) of: &'static str,
    pub(super) sizes: Sizes,
    /// Names of the systems that run the case.
    pub(super) systems: &'static [&'static str],
    /// Runs the case once, in the given size.
    pub(super) run: fn(&Ground, u64) -> Result<Measures>,
}

const MILLION: Sizes = Sizes::UpTo(1_000_000);
const BROKERS: &[&str] = &[PUNCTUAL, MOSQUITTO];
const WITH_FLOOR: &[&str] = &[PUNCTUAL, MOSQUITTO, FLOOR];
const WITH_RELAY: &[&str] = &[PUNCTUAL, MOSQUITTO, RELAY];

/// All cases.
#[rustfmt::skip]
pub(super) const CASES: &[Case] = &[
    case("subscriptions", "one session subscribes to `s/{i}/v`, 100 filters a packet, and its connection is closed", "subscriptions", MILLION, BROKERS, one_session),
    case("sessions", "the same by a tenth as many sessions, 1000 at most, whose connections are closed at once", "subscriptions", MILLION, BROKERS, many_sessions),
    case("retained", "`ret/{a}/{b}/v` with 16 bytes is retained (a tenth as many `a`, 1000 at most), then `ret/+/7/v` and `ret/#` are subscribed to", "messages", MILLION, BROKERS, retained),
    case("reconnect", "clients connect and subscribe to `ret/+/7/v` at once, over retained messages; their TCP connections are there", "messages", MILLION, BROKERS, reconnect),
    case("topics", "a publisher goes through topics, one subscriber to `t/#` (at the floor, to each of them)", "topics", MILLION, WITH_FLOOR, topics),
    case("shared-1", "the same to `$share/g/t/#` with 1 member", "topics", MILLION, BROKERS, shared::<1>),
    case("shared-10", "with 10 members", "topics", MILLION, BROKERS, shared::<10>),
    case("shared-100", "with 100 members", "topics", MILLION, BROKERS, shared::<100>),
    case("shared-1000", "with 1000 members", "topics", MILLION, BROKERS, shared::<1000>),
    case("mixed", "receivers of the other version and shared ones, beside one of the publisher's version", "topics", Sizes::These(&[1, 1000]), BROKERS, mixed),
    case("connections", "clients connect, are closed, and connect again; memory is that above the memory before the first time, with 100 others connected", "connections", Sizes::UpTo(10_000), BROKERS, connections),
    case("offline", "persistent sessions of version 5 without subscriptions, their clients gone, 100 of them connected at one time at most; memory is that above 100 such sessions", "sessions", Sizes::UpTo(100_000), BROKERS, offline),
    case("payloads", "one topic, one subscriber, larger and larger payloads", "bytes", Sizes::These(&[1 << 10, 16 << 10, 256 << 10, 1 << 20, 16 << 20]), WITH_RELAY, payloads),
];

const fn case(
    name: &'static str,
    what: &'static str,
    of: &'static str,
    sizes: Sizes,
    systems: &'static [&'static str],
    run: fn(&Ground, u64) -> Result<Measures>,
) -> Case {
    Case {
        name,
        what,
        of,
        sizes,
        systems,
        run,
    }
}

impl Case {
    /// Whether a word of `--only` selects the case: its name, or the part of it before a number.
    pub(super) fn is_meant_by(&self, word: &str) -> bool {
        let rest = self.name.strip_prefix(word);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
    }

    /// The sizes in which the case is run, by those that the user chose.
    pub(super) fn sizes(&self, asked: &[u64]) -> Vec<u64> {
        match self.sizes {
            Sizes::UpTo(most) => asked.iter().copied().filter(|&n| n <= most).collect(),
            Sizes::These(sizes) => sizes.to_vec(),
        }
    }
}

fn per_second(count: u64, time: Duration) -> f64 {
    count as f64 / time.as_secs_f64()
}

fn micros_each(time: Duration, count: u64) -> f64 {
    time.as_secs_f64() * 1e6 / count as f64
}

fn one_session(ground: &Ground, n: u64) -> Result<Measures> {
    subscribe(ground, n, 1)
}

fn many_sessions(ground: &Ground, n: u64) -> Result<Measures> {
    subscribe(ground, n, tenth(n))
}

/// A tenth of `n`, but at least 1 and at most 1000.
fn tenth(n: u64) -> u64 {
    (n / 10).clamp(1, 1000)
}

fn subscribe(ground: &Ground, n: u64, sessions: u64) -> Result<Measures> {
    let mut crowd = ground.crowd()?;
    crowd.greet("subscriber", sessions, Version::V311, false)?;
    let clients: Vec<usize> = (0..sessions as usize).collect();
    let filters: Vec<String> = (0..n).map(|i| format!("s/{i}/v")).collect();
    let (memory, cpu) = (ground.memory()?, ground.cpu_at_rest()?);
    let time = crowd.subscribe(&clients, &filters)?;
    let memory = ground.memory()? - memory;
    let cpu = ground.cpu_at_rest()? - cpu;
    let mut measures = vec![
        ("subscriptions/s", per_second(n, time)),
        ("µs CPU/subscription", micros_each(cpu, n)),
        ("bytes/subscription", memory / n as f64),
    ];
    measures.extend(ending::end(ground, crowd)?);
    Ok(measures)
}

/// How many values `a` and `b` take in topics `ret/{a}/{b}/v`; there are about `n` such topics.
fn levels(n: u64) -> (u64, u64) {
    (tenth(n), n / tenth(n))
}

/// Publishes retained messages; returns the time until the last one was stored.
fn store(crowd: &mut Crowd, n: u64) -> Result<Duration> {
    const RETAIN: u8 = 1;
    const PAYLOAD: &[u8] = b"0123456789abcdef";
    let publisher = crowd.client("retainer", Version::V311, &[])?;
    let (a, b) = levels(n);
    let mut left = 0..a * b;
    let mut marker = PublishTemplate::new(Version::V311, "end", 1, b"");
    if let Some(at) = marker.id_at {
        marker.bytes[at + 1] = 1;
    }
    let (started, acked) = (Instant::now(), crowd.seen.pubacks);
    let mut marked = false;
    crowd.until("PUBACK", 1, |crowd| {
        while !marked && crowd.has_room(publisher) {
            crowd.send(publisher, |out| {
                for n in left.by_ref().take(1000) {
                    let from = out.len();
                    let topic = format!("ret/{}/{}/v", n / b, n % b);
                    let publish = PublishTemplate::new(Version::V311, &topic, 0, PAYLOAD);
                    out.extend_from_slice(&publish.bytes);
                    out[from] |= RETAIN;
                }
            })?;
            if left.is_empty() {
                // The broker answers with PUBACK when it has stored all messages before.
                crowd.send(publisher, |out| out.extend_from_slice(&marker.bytes))?;
                marked = true;
            }
        }
        Ok(crowd.seen.pubacks - acked)
    })?;
    Ok(started.elapsed())
}

/// Subscribes; returns the time until `due` messages have arrived.
fn fetch(crowd: &mut Crowd, client: usize, filter: &str, due: u64) -> Result<Duration> {
    let (started, before) = (Instant::now(), crowd.seen.publishes);
    let filters = [filter.to_owned()];
    crowd.send(client, |out| {
        wire::put_subscribe(out, Version::V311, 1, &filters, 0);
    })?;
    crowd.until("retained messages", due, |crowd| {
        Ok(crowd.seen.publishes - before)
    })?;
    Ok(started.elapsed())
}

fn retained(ground: &Ground, n: u64) -> Result<Measures> {
    // The first lookup may build data structures that later ones use, and is not counted.
    const LOOKUPS: usize = 11;
    let (a, b) = levels(n);
    let all = a * b;
    let mut crowd = ground.crowd()?;
    let (memory, cpu) = (ground.memory()?, ground.cpu_at_rest()?);
    let time = store(&mut crowd, n)?;
    let memory = ground.memory()? - memory;
    let cpu = ground.cpu_at_rest()? - cpu;
    let seeker = crowd.client("seeker", Version::V311, &[])?;
    let mut lookups = Vec::new();
    for _ in 0..LOOKUPS {
        lookups.push(fetch(&mut crowd, seeker, "ret/+/7/v", a)?);
    }
    lookups[1..].sort_unstable();
    let lookup = lookups[LOOKUPS / 2 + 1];
    let (cpu_before, replay) = (
        ground.cpu_at_rest()?,
        fetch(&mut crowd, seeker, "ret/#", all)?,
    );
    let replay_cpu = ground.cpu_at_rest()? - cpu_before;
    Ok(vec![
        ("messages stored/s", per_second(all, time)),
        ("µs CPU/message stored", micros_each(cpu, all)),
        ("bytes/message", memory / all as f64),
        ("`ret/+/7/v`, ms", lookup.as_secs_f64() * 1e3),
        ("`ret/+/7/v`, µs/match", micros_each(lookup, a)),
        ("`ret/#`, messages/s", per_second(all, replay)),
        ("`ret/#`, µs CPU/message", micros_each(replay_cpu, all)),
    ])
}

fn reconnect(ground: &Ground, n: u64) -> Result<Measures> {
    let clients = ground.extent.clients;
    store(&mut ground.crowd()?, n)?;
    let mut crowd = ground.crowd()?;
    for n in 0..clients {
        crowd.open(&format!("comer-{n}"), Version::V311)?;
    }
    let (owed, _) = levels(n);
    let filters = ["ret/+/7/v".to_owned()];
    let cpu = ground.cpu_at_rest()?;
    let started = Instant::now();
    for n in 0..clients {
        crowd.send(n as usize, |out| {
            wire::put_connect(out, Version::V311, &format!("comer-{n}"));
            wire::put_subscribe(out, Version::V311, 1, &filters, 0);
        })?;
    }
    crowd.until("retained messages", clients * owed, |crowd| {
        Ok(crowd.seen.publishes)
    })?;
    let time = started.elapsed();
    let cpu = ground.cpu_at_rest()? - cpu;
    // The total is right: now check that each client has its share.
    crowd.until(
        "retained messages to each",
        owed,
        |crowd| Ok(crowd.fewest()),
    )?;
    Ok(vec![
        ("ms until all have all", time.as_secs_f64() * 1e3),
        ("messages/s", per_second(clients * owed, time)),
        ("µs CPU/message", micros_each(cpu, clients * owed)),
    ])
}

/// Clients that connect before the measured ones.
const WARM: u64 = 100;

fn connections(ground: &Ground, n: u64) -> Result<Measures> {
    let connected = |prefix: &str, count| {
        let mut crowd = ground.crowd()?;
        let time = crowd.greet(prefix, count, Version::V311, false)?;
        Ok::<_, Error>((crowd, time))
    };
    // The first clients make the broker allocate what it allocates once, and leave freed memory
    // that it reuses.
    drop(connected("warm", WARM)?);
    ground.memory()?;
    let _held = connected("warm", WARM)?;
    let (before, cpu) = (ground.memory()?, ground.cpu_at_rest()?);
    let (crowd, time) = connected("idle", n)?;
    let first = ground.memory()? - before;
    let cpu = ground.cpu_at_rest()? - cpu;
    drop(crowd);
    let kept = ground.memory()? - before;
    let _again = connected("idle", n)?;
    let again = ground.memory()? - before;
    let each = |bytes: f64| bytes / n as f64;
    Ok(vec![
        ("CONNECTs/s", per_second(n, time)),
        ("µs CPU/connection", micros_each(cpu, n)),
        ("bytes/connection", each(first)),
        ("bytes/connection kept after closing", each(kept)),
        ("bytes/connection, connected again", each(again)),
    ])
}

fn offline(ground: &Ground, n: u64) -> Result<Measures> {
    let come_and_go = |prefix: &str, count: u64, persistent| {
        let mut crowd = ground.crowd()?;
        crowd.greet(prefix, count, Version::V5, persistent)?;
        for index in 0..crowd.len() as usize {
            crowd.send(index, |out| out.extend([kind::DISCONNECT << 4, 0]))?;
        }
        Ok::<_, Error>(())
    };
    // Memory for the connections is allocated before sessions are counted, and the first sessions
    // reuse memory that the clean sessions have freed.
    come_and_go("visitor", WARM, false)?;
    come_and_go("first", WARM, true)?;
    let (memory, cpu) = (ground.memory()?, ground.cpu_at_rest()?);
    let mut made = 0;
    while made < n {
        let part = WARM.min(n - made);
        come_and_go(&format!("sleeper-{made}"), part, true)?;
        made += part;
    }
    let memory = ground.memory()? - memory;
    let cpu = ground.cpu_at_rest()? - cpu;
    Ok(vec![
        ("bytes/session", memory / n as f64),
        ("µs CPU/session", micros_each(cpu, n)),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn names_are_unique_and_a_family_has_one_word() {
        let names: HashSet<_> = CASES.iter().map(|case| case.name).collect();
        assert_eq!(names.len(), CASES.len());
        let meant = |word| CASES.iter().filter(|case| case.is_meant_by(word)).count();
        assert_eq!(meant("shared"), 4);
        assert_eq!(meant("shared-10"), 1);
        assert_eq!(meant("share"), 0);
    }

    #[test]
    fn sizes_are_those_that_make_sense() {
        let case = |name| CASES.iter().find(|case| case.name == name).unwrap();
        let asked = [100, 10_000, 1_000_000];
        assert_eq!(case("topics").sizes(&asked), asked);
        assert_eq!(case("connections").sizes(&asked), [100, 10_000]);
        assert_eq!(case("mixed").sizes(&asked), [1, 1000]);
    }

    #[test]
    fn every_size_has_retained_messages_that_match() {
        for n in [10, 100, 1000, 12_345, 1_000_000] {
            let (a, b) = levels(n);
            assert!(b > 7 && a * b <= n && a * b > n - n / 10 - 1, "{n}");
        }
        assert_eq!(levels(1_000_000), (1000, 1000));
    }
}
