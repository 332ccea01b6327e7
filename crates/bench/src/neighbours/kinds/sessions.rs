//! Kinds of neighbours that begin and end sessions, or fill the queues of sessions.

use std::net::TcpStream;

use punctual_measure::Result;
use punctual_measure::wire::{self, PublishTemplate, Version, kind};

use super::{MANY, Place, ask, ask_with, await_kind, await_packets, client, filters};
use crate::blocking::Connection;

/// Most unacknowledged messages of one client.
const WINDOW: usize = 500;
/// Flows of a session, which is the most that the broker allows.
const FLOWS: usize = 1000;
/// Number of clients with wills, and of clients that receive the wills.
const WILLS: usize = 100;
/// Disconnected sessions for which messages are stored.
const AWAY: usize = 10;

/// Flags of CONNECT (MQTT 3.1.1, section 3.1.2.3).
const CLEAN_SESSION: u8 = 1 << 1;
const WILL: u8 = 1 << 2;
const PASSWORD: u8 = 1 << 6;
const USER_NAME: u8 = 1 << 7;

/// Configuration of the broker's store.
pub(super) const STORE: &str = "data = \"{store}\"\n";

/// CONNECT of version 3.1.1 with these flags, and the fields that the flags require.
fn connect(flags: u8, fields: &[&str]) -> Vec<u8> {
    let mut body = Vec::new();
    wire::put_string(&mut body, "MQTT");
    // Protocol level 4 (version 3.1.1), and a Keep Alive of 0.
    body.extend_from_slice(&[4, flags, 0, 0]);
    for field in fields {
        wire::put_string(&mut body, field);
    }
    let mut bytes = Vec::new();
    wire::put_header(&mut bytes, kind::CONNECT << 4, body.len());
    bytes.extend_from_slice(&body);
    bytes
}

/// Connects and waits for CONNACK with any return code.
fn greet(place: &Place<'_>, id: &str, bytes: &[u8]) -> Result<Connection> {
    let mut connection = Connection::new(id.to_owned(), TcpStream::connect(place.mqtt))?;
    connection.send(bytes)?;
    await_kind(&mut connection, kind::CONNACK)?;
    Ok(connection)
}

fn leave(mut connection: Connection) -> Result<()> {
    connection.send(&[kind::DISCONNECT << 4, 0])
}

/// Publishes with QoS 1, as many messages at a time as may be unacknowledged.
fn publish(connection: &mut Connection, mut messages: Vec<PublishTemplate>) -> Result<()> {
    for part in messages.chunks_mut(WINDOW) {
        let mut bytes = Vec::new();
        for (id, message) in (1_u16..).zip(part.iter_mut()) {
            if let Some(at) = message.id_at {
                message.bytes[at..at + 2].copy_from_slice(&id.to_be_bytes());
            }
            bytes.extend_from_slice(&message.bytes);
        }
        connection.send(&bytes)?;
        await_packets(connection, part.len(), |first, _| {
            first >> 4 == kind::PUBACK
        })?;
    }
    Ok(())
}

/// Publishes `count` messages on one topic.
fn fill(place: &Place<'_>, topic: &str, payload: &[u8], count: usize) -> Result<()> {
    let mut publisher = client(place, "filler", false)?;
    let message = PublishTemplate::new(Version::V311, topic, 1, payload);
    publish(&mut publisher, vec![message; count])?;
    leave(publisher)
}

pub(super) fn ends(place: &Place<'_>, _: u64) -> Result<()> {
    let mut subscriber = client(place, "ends-subscriptions", false)?;
    ask(&mut subscriber, &filters("ends", place.of(MANY)))?;
    leave(subscriber)?;
    let mut queue = client(place, "ends-queue", true)?;
    ask_with(&mut queue, &["queue".to_owned()], 1)?;
    leave(queue)?;
    fill(place, "queue", b"", place.of(MANY))?;
    // A clean session replaces the stored one.
    leave(client(place, "ends-queue", false)?)
}

pub(super) fn wills(place: &Place<'_>, _: u64) -> Result<()> {
    let count = place.of(WILLS);
    let heir = |n: usize| {
        let mut heir = client(place, &format!("heir-{n}"), false)?;
        ask(&mut heir, &["will".to_owned()])?;
        Ok(heir)
    };
    let mut heirs = (0..WILLS).map(heir).collect::<Result<Vec<_>>>()?;
    for n in 0..count {
        let id = format!("testator-{n}");
        let bytes = connect(CLEAN_SESSION | WILL, &[&id, "will", "gone"]);
        // The connection is closed without DISCONNECT.
        drop(greet(place, &id, &bytes)?);
    }
    for heir in &mut heirs {
        await_packets(heir, count, |first, _| first >> 4 == kind::PUBLISH)?;
    }
    Ok(())
}

pub(super) fn logins(place: &Place<'_>, _: u64) -> Result<()> {
    let flags = CLEAN_SESSION | USER_NAME | PASSWORD;
    let bytes = connect(flags, &["guesser", "neighbour", "wrong"]);
    greet(place, "guesser", &bytes).map(drop)
}

/// Creates sessions that outlive their connections, all with one subscription.
pub(super) fn crowd(place: &Place<'_>) -> Result<()> {
    for n in 0..place.of(MANY) {
        let mut session = client(place, &format!("crowd-{n}"), true)?;
        ask_with(&mut session, &["crowd".to_owned()], 1)?;
        leave(session)?;
    }
    Ok(())
}

pub(super) fn publish_to_crowd(place: &Place<'_>, _: u64) -> Result<()> {
    fill(place, "crowd", b"all", 10)
}

pub(super) fn store(place: &Place<'_>, _: u64) -> Result<()> {
    let away = |n: usize| format!("away-{n}");
    for n in 0..AWAY {
        let mut session = client(place, &away(n), true)?;
        ask_with(&mut session, &["stored".to_owned()], 1)?;
        leave(session)?;
    }
    fill(place, "stored", &[b'x'; 1024], place.of(MANY) / 10)?;
    for n in 0..AWAY {
        leave(client(place, &away(n), false)?)?;
    }
    Ok(())
}

pub(super) fn admissions(place: &Place<'_>, n: u64) -> Result<()> {
    let id = format!("asker-{}", n % 1000);
    let mut bytes = Vec::new();
    wire::put_connect(&mut bytes, Version::V5, &id);
    let mut asker = greet(place, &id, &bytes)?;
    let wishes = [("rt-deadline", "1s"), ("rt-period", "10s")];
    let wishes = wishes.map(|(key, value)| (key.to_owned(), value.to_owned()));
    let flow = |flow: usize| {
        let topic = format!("asked/{n}/{flow}");
        PublishTemplate::with_user_properties(Version::V5, &topic, 1, &wishes, b"")
    };
    publish(&mut asker, (0..place.of(FLOWS)).map(flow).collect())?;
    leave(asker)
}
