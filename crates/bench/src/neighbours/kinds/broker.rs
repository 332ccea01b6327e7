//! A neighbour broker of a mesh that does no more than advertise its filters.

use std::io::ErrorKind;
use std::net::TcpStream;

use punctual_measure::wire::{self as mqtt, PublishTemplate, Version, kind};
use punctual_measure::{Error, Result};
use punctual_mesh::tree::Advert;
use punctual_mesh::wire::{self, BUCKETS, Hello, Message, Open};
use punctual_mesh::{BrokerId, Rank, Strategy};
use punctual_model::Nanos;

use super::{MANY, Place, await_kind, await_packets, filters};
use crate::blocking::Connection;

/// Configuration that lets other brokers connect, with a broker name that does not depend on the
/// host.
pub(super) const MESH: &str = "[mesh]\n\
    enabled = true\n\
    join_wait = \"0s\"\n\
    id = \"bench\"\n\
    secret_file = \"{directory}/neighbours.secret\"\n";

/// Secret with which a neighbour broker authenticates itself to the broker under test.
pub(super) const SECRET: &str = "known to the neighbour brokers of benchmarks";
const USER: &str = "$mesh";

/// Name of the neighbour broker.
const NAME: &str = "neighbour";
/// How often all filters are advertised and withdrawn over one connection.
const ROUNDS: u64 = 20;
/// Filters in one message; the next message waits until the broker has handled this one.
const AT_ONCE: usize = 2500;

pub(super) fn filter_changes(place: &Place<'_>, n: u64) -> Result<()> {
    let mut link = link(place, n)?;
    let filters: Vec<Box<str>> = filters("mesh", place.of(MANY))
        .into_iter()
        .map(String::into_boxed_str)
        .collect();
    let mut said = 0;
    for round in 0..2 * ROUNDS {
        for part in filters.chunks(AT_ONCE) {
            if place.is_over() {
                return Ok(());
            }
            let (add, remove) = match round % 2 {
                0 => (part.to_vec(), Vec::new()),
                _ => (Vec::new(), part.to_vec()),
            };
            // A neighbour that sends no hello for long counts as lost.
            said += 1;
            say(&mut link, &hello(said)?)?;
            say(&mut link, &Message::Filters { add, remove })?;
            await_all(&mut link)?;
        }
    }
    Ok(())
}

/// Opens a link, on which both ends have identified themselves.
fn link(place: &Place<'_>, n: u64) -> Result<Connection> {
    let mut link = Connection::new(NAME.to_owned(), TcpStream::connect(place.mqtt))?;
    let mut bytes = Vec::new();
    put_connect(&mut bytes);
    link.send(&bytes)?;
    await_kind(&mut link, kind::CONNACK)?;
    let open = Open {
        versions: (*wire::VERSIONS.start(), *wire::VERSIONS.end()),
        id: id()?,
        instance: n + 1,
        strategy: Strategy::SubscriptionTable,
        dialled: true,
    };
    say(&mut link, &Message::Open(open))?;
    Ok(link)
}

/// Appends CONNECT of version 5 with the secret, and without properties.
fn put_connect(bytes: &mut Vec<u8>) {
    let mut body = Vec::new();
    mqtt::put_string(&mut body, "MQTT");
    // Clean Start with user name and password, and a Keep Alive of 0.
    body.extend_from_slice(&[5, 0b1100_0010, 0, 0, 0]);
    for field in [&*format!("$mesh/{NAME}"), USER, SECRET] {
        mqtt::put_string(&mut body, field);
    }
    mqtt::put_header(bytes, kind::CONNECT << 4, body.len());
    bytes.extend_from_slice(&body);
}

fn id() -> Result<BrokerId> {
    let none = || Error::io("cannot name a broker")(ErrorKind::InvalidInput.into());
    BrokerId::new(NAME).ok_or_else(none)
}

/// Hello of a broker that is the root of its own tree, and a worse root than the broker under test.
fn hello(number: u64) -> Result<Message> {
    let advert = Advert {
        number,
        root: Rank {
            capacity: 0,
            id: id()?,
        },
        epoch: 1,
        cost: 0,
        hops: 0,
        age: Nanos(0),
        asks: 0,
        answered: 0,
        held: false,
        epoch_request: None,
    };
    Ok(Message::Hello(Hello {
        advert,
        sent: 0,
        echo: None,
        clock: None,
    }))
}

fn say(link: &mut Connection, message: &Message) -> Result<()> {
    let publish = PublishTemplate::new(Version::V5, wire::TOPIC, 0, &message.encode());
    link.send(&publish.bytes)
}

/// Waits until the broker has handled all messages: it requests all filters after a wrong digest.
fn await_all(link: &mut Connection) -> Result<()> {
    say(link, &Message::Digest(Box::new([1; BUCKETS])))?;
    await_packets(link, 1, |first, body| {
        let publish = mqtt::publish(first, body, Version::V5);
        let is_mesh = first >> 4 == kind::PUBLISH;
        let message = publish.map(|publish| Message::decode(publish.payload));
        is_mesh && matches!(message, Some(Ok(Message::Want(_))))
    })
}
