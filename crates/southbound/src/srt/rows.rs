//! Typed rows to and from those of the database.
//!
//! A party with write access may write values that the schema does not exclude (an invalid
//! address): reading returns an error, and never guesses.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use punctual_model::srt::{Channel, Manager, Peer, Request, State};

use crate::ovsdb::value::{Atom, Datum, Row};

/// Table of requests.
pub const REQUEST: &str = "Request";
/// Table of channels.
pub const CHANNEL: &str = "Channel";
/// Table of managers.
pub const MANAGER: &str = "Manager";

/// Whose flow a row is about: its manager and the flow's name.
pub type Key = (String, String);

/// Key of a row of requests or channels.
pub fn key(row: &Row) -> Key {
    (row.text("manager").to_owned(), row.text("flow").to_owned())
}

/// Row of a request.
pub fn of_request(request: &Request) -> Row {
    let peers = request.subscribers.iter();
    let broker = request.broker.map(|peer| peer.to_string());
    Row::default()
        .with("manager", request.manager.as_str())
        .with("flow", request.flow.as_str())
        .with("generation", signed(request.generation))
        .with("topic", request.topic.as_str())
        .with("qos", i64::from(request.qos))
        .with("publisher", request.publisher.to_string())
        .with("subscribers", set(peers.map(Peer::to_string)))
        .with("broker", Datum::optional(broker))
        .with("deadline_ns", signed(request.deadline_ns))
        .with("period_ns", signed(request.period_ns))
        .with("jitter_ns", signed(request.jitter_ns))
        .with("size", i64::from(request.size))
        .with("wire_bytes", i64::from(request.wire_bytes))
        .with("frames", i64::from(request.frames))
        .with("priority", Datum::optional(request.priority.map(i64::from)))
        .with("bandwidth", Datum::optional(request.bandwidth.map(signed)))
}

/// Request of a row.
///
/// # Errors
/// The column and what is wrong with it.
pub fn to_request(row: &Row) -> Result<Request, String> {
    let request = Request {
        manager: row.text("manager").to_owned(),
        flow: row.text("flow").to_owned(),
        generation: unsigned(row, "generation")?,
        topic: row.text("topic").to_owned(),
        qos: small(row, "qos")?,
        publisher: peer("publisher", row.text("publisher"))?,
        subscribers: texts(row, "subscribers")?
            .into_iter()
            .map(|text| peer("subscribers", text))
            .collect::<Result<_, _>>()?,
        broker: texts(row, "broker")?
            .first()
            .map(|text| peer("broker", text))
            .transpose()?,
        deadline_ns: unsigned(row, "deadline_ns")?,
        period_ns: unsigned(row, "period_ns")?,
        jitter_ns: unsigned(row, "jitter_ns")?,
        size: small(row, "size")?,
        wire_bytes: small(row, "wire_bytes")?,
        frames: small(row, "frames")?,
        priority: optional(row, "priority")?,
        bandwidth: optional(row, "bandwidth")?,
    };
    request.check().map_err(|error| error.to_string())?;
    Ok(request)
}

/// Row of a channel.
pub fn of_channel(channel: &Channel) -> Row {
    let bounds = channel.bounds_ns.iter();
    let bounds = bounds.map(|(peer, bound)| (peer.to_string().into(), signed(*bound).into()));
    let paths = channel.paths.iter();
    // Ordered, which sets and maps are not.
    let path = |links: &Vec<String>| serde_json::Value::from(links.clone()).to_string();
    let paths = paths.map(|(peer, links)| (peer.to_string().into(), path(links).into()));
    let address = channel.group_address.map(|address| address.to_string());
    Row::default()
        .with("manager", channel.manager.as_str())
        .with("flow", channel.flow.as_str())
        .with("generation", signed(channel.generation))
        .with("state", channel.state.name())
        .with("reason", channel.reason.as_str())
        .with("bounds_ns", Datum::Map(bounds.collect()))
        .with("paths", Datum::Map(paths.collect()))
        .with("queue", Datum::optional(channel.queue.map(i64::from)))
        .with("dscp", Datum::optional(channel.dscp.map(i64::from)))
        .with("group", Datum::optional(channel.group.map(i64::from)))
        .with("group_address", Datum::optional(address))
        .with("rendezvous", Datum::optional(channel.rendezvous.clone()))
}

/// Channel of a row.
///
/// # Errors
/// The column and what is wrong with it.
pub fn to_channel(row: &Row) -> Result<Channel, String> {
    let state = row.text("state");
    let mut bounds_ns = BTreeMap::new();
    let mut paths = BTreeMap::new();
    for (key, value) in pairs(row, "bounds_ns")? {
        let (Atom::String(text), Atom::Integer(bound)) = (key, value) else {
            return Err("bounds_ns: must be a map of texts to numbers".into());
        };
        let bound = u64::try_from(*bound).map_err(|_| format!("bounds_ns: {bound} is negative"))?;
        bounds_ns.insert(peer("bounds_ns", text)?, bound);
    }
    for (key, value) in pairs(row, "paths")? {
        let (Atom::String(text), Atom::String(path)) = (key, value) else {
            return Err("paths: must be a map of texts to texts".into());
        };
        let links: Vec<String> = serde_json::from_str(path)
            .map_err(|_| format!("paths: {path:?} is no JSON list of links"))?;
        paths.insert(peer("paths", text)?, links);
    }
    let address = |text: &&str| -> Result<IpAddr, String> {
        text.parse()
            .map_err(|_| format!("group_address: {text:?} is no address"))
    };
    let channel = Channel {
        manager: row.text("manager").to_owned(),
        flow: row.text("flow").to_owned(),
        generation: unsigned(row, "generation")?,
        state: State::named(state).ok_or_else(|| format!("state: {state:?} is none"))?,
        reason: row.text("reason").to_owned(),
        bounds_ns,
        paths,
        queue: optional(row, "queue")?,
        dscp: optional(row, "dscp")?,
        group: optional(row, "group")?,
        group_address: texts(row, "group_address")?
            .first()
            .map(address)
            .transpose()?,
        rendezvous: texts(row, "rendezvous")?
            .first()
            .map(|text| (*text).to_owned()),
    };
    channel.check().map_err(|error| error.to_string())?;
    Ok(channel)
}

/// Row of a manager.
pub fn of_manager(manager: &Manager) -> Row {
    Row::default()
        .with("name", manager.name.as_str())
        .with("address", manager.address.as_str())
        .with("generation", signed(manager.generation))
        .with("last_seen_ms", signed(manager.last_seen_ms))
}

/// Manager of a row.
///
/// # Errors
/// The column and what is wrong with it.
pub fn to_manager(row: &Row) -> Result<Manager, String> {
    Ok(Manager {
        name: row.text("name").to_owned(),
        address: row.text("address").to_owned(),
        generation: unsigned(row, "generation")?,
        last_seen_ms: unsigned(row, "last_seen_ms")?,
    })
}

/// Numbers of the table are within the signed range; what is not is cut there.
fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn unsigned(row: &Row, column: &str) -> Result<u64, String> {
    let number = row.integer(column);
    u64::try_from(number).map_err(|_| format!("{column}: {number} is negative"))
}

fn small<T: TryFrom<i64>>(row: &Row, column: &str) -> Result<T, String> {
    let number = row.integer(column);
    T::try_from(number).map_err(|_| format!("{column}: {number} is out of range"))
}

fn optional<T: TryFrom<i64>>(row: &Row, column: &str) -> Result<Option<T>, String> {
    match row.get(column) {
        None => Ok(None),
        Some(datum) if *datum == Datum::EMPTY => Ok(None),
        Some(_) => small(row, column).map(Some),
    }
}

fn set(texts: impl Iterator<Item = String>) -> Datum {
    Datum::Set(texts.map(Atom::String).collect::<BTreeSet<_>>())
}

fn texts<'a>(row: &'a Row, column: &str) -> Result<Vec<&'a str>, String> {
    let wrong = || format!("{column}: must be a set of texts");
    match row.get(column) {
        None => Ok(Vec::new()),
        Some(Datum::Set(set)) => set
            .iter()
            .map(|atom| match atom {
                Atom::String(text) => Ok(text.as_str()),
                _ => Err(wrong()),
            })
            .collect(),
        Some(Datum::Map(_)) => Err(wrong()),
    }
}

fn pairs<'a>(
    row: &'a Row,
    column: &str,
) -> Result<impl Iterator<Item = (&'a Atom, &'a Atom)>, String> {
    match row.get(column) {
        Some(Datum::Map(map)) => Ok(Some(map).into_iter().flatten()),
        // Absent, or an empty map that is written as a set.
        None => Ok(None.into_iter().flatten()),
        Some(datum) if *datum == Datum::EMPTY => Ok(None.into_iter().flatten()),
        Some(_) => Err(format!("{column}: must be a map")),
    }
}

fn peer(column: &str, text: &str) -> Result<Peer, String> {
    text.parse()
        .map_err(|problem| format!("{column}: {problem}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn a_peer() -> impl Strategy<Value = Peer> {
        (any::<bool>(), any::<IpAddr>(), any::<Option<u16>>()).prop_map(|(tcp, address, port)| {
            let peer = if tcp {
                Peer::tcp(address, 0)
            } else {
                Peer::udp(address, 0)
            };
            Peer { port, ..peer }
        })
    }

    fn a_request() -> impl Strategy<Value = Request> {
        let peers = proptest::collection::btree_set(a_peer(), 0..4);
        let times = (1..1_000_000_u64, 1..1_000_000_u64, 0..1_000_u64);
        let numbers = (
            0..=2_u8,
            any::<Option<u64>>(),
            proptest::option::of(0..=7_u8),
        );
        (
            a_peer(),
            peers,
            proptest::option::of(a_peer()),
            times,
            numbers,
            ".{1,20}",
        )
            .prop_map(
                |(publisher, subscribers, broker, times, (qos, bandwidth, priority), name)| {
                    Request {
                        manager: "m".into(),
                        flow: name.clone(),
                        generation: 7,
                        topic: name,
                        qos,
                        publisher,
                        subscribers,
                        broker,
                        deadline_ns: times.0,
                        period_ns: times.1,
                        jitter_ns: times.2,
                        size: 5,
                        wire_bytes: 84,
                        frames: 1,
                        priority,
                        bandwidth: bandwidth.map(|bits| bits % (1 << 40) + 1),
                    }
                },
            )
    }

    proptest! {
        #[test]
        fn requests_survive_the_database(request in a_request()) {
            let row = of_request(&request);
            prop_assert_eq!(Row::from_json(&row.to_json()).map(|row| to_request(&row)), Ok(Ok(request)));
        }
    }

    fn channel() -> Channel {
        let peer = Peer::tcp([10, 0, 0, 1], 5);
        Channel {
            manager: "m".into(),
            flow: "f".into(),
            generation: 3,
            state: State::Admitted,
            reason: String::new(),
            bounds_ns: [(peer, 17)].into(),
            paths: [(peer, vec!["z".into(), "a b".into(), "\"".into()])].into(),
            queue: Some(7),
            dscp: Some(56),
            group: Some(1),
            group_address: Some([239, 1, 2, 3].into()),
            rendezvous: Some("s4".into()),
        }
    }

    #[test]
    fn channels_survive_the_database() {
        for channel in [
            channel(),
            Channel {
                manager: "m".into(),
                flow: "f".into(),
                ..Channel::default()
            },
        ] {
            let row = Row::from_json(&of_channel(&channel).to_json()).unwrap();
            assert_eq!(to_channel(&row), Ok(channel));
        }
    }

    #[test]
    fn nonsense_is_named() {
        for (column, value, word) in [
            ("state", Datum::from("maybe"), "none"),
            (
                "paths",
                Datum::Map([("tcp:1.2.3.4".into(), "x".into())].into()),
                "JSON list",
            ),
            (
                "bounds_ns",
                Datum::Map([("here".into(), 1.into())].into()),
                "bounds_ns",
            ),
            ("bounds_ns", Datum::from(1), "must be a map"),
            ("group_address", Datum::from("10.0.0.1"), "multicast"),
            ("queue", Datum::from(300), "out of range"),
            ("generation", Datum::from(-1), "negative"),
        ] {
            let problem = to_channel(&of_channel(&channel()).with(column, value)).unwrap_err();
            assert!(problem.contains(word), "{problem}");
        }
    }
}
