//! Time from the start of a killed broker to its first CONNACK, and its memory.

use std::fs::{self, File};
use std::time::{Duration, Instant};

use serde::Serialize;

use super::client::{self, Client, Numbered, Packet};
use super::systems::{BATCHED, System};
use crate::sys;
use punctual_measure::watch::Watch;
use punctual_measure::{Error, Result};

/// Amount of stored data.
#[derive(Clone, Copy, Debug)]
pub(super) struct Size {
    pub(super) sessions: u32,
    pub(super) messages: u64,
    pub(super) payload: usize,
}

/// Messages in flight while the broker is filled.
const WINDOW: usize = 4000;
/// Longest that filling may take.
const FILLING: Duration = Duration::from_secs(240);
/// A session is read completely when nothing arrives for this long.
const SILENCE: Duration = Duration::from_secs(2);

/// Results of one restart.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Restarted {
    pub(super) system: &'static str,
    /// Whether the broker was killed; others end in order, because they would have stored nothing.
    pub(super) killed: bool,
    /// Whether the broker's files were evicted from the page cache.
    pub(super) cold: bool,
    pub(super) sessions: u32,
    pub(super) messages: u64,
    pub(super) payload: usize,
    /// Time to fill the broker, s.
    pub(super) fill_s: f64,
    /// Bytes of the broker's files.
    pub(super) disk_bytes: u64,
    /// Resident memory before the end and after the start, and its peak during the start.
    pub(super) rss_before: u64,
    pub(super) rss_after: u64,
    pub(super) rss_peak: u64,
    /// Time from the start of the process to the first CONNACK, s.
    pub(super) first_connack_s: f64,
    /// Sessions that were read, and how many of their messages were missing.
    pub(super) looked_at: u32,
    pub(super) missing: u64,
}

/// Fills a broker, ends it, and starts it once for each element of `colds`.
pub(super) fn run(system: &System, size: Size, colds: &[bool]) -> Result<Vec<Restarted>> {
    let mut broker = system.start_empty()?;
    let begun = Instant::now();
    client::make_sessions(broker.address, size.sessions, topic)?;
    let topics = (0..size.sessions).map(topic);
    let mut filler = Numbered::connect(broker.address, topics, size.payload, WINDOW)?;
    if !filler.publish_until(size.messages, begun + FILLING)
        || (filler.acknowledged.len() as u64) < size.messages
    {
        return Err(Error::Peer {
            peer: system.name().to_owned(),
            why: format!(
                "it took only {} of {} messages",
                filler.acknowledged.len(),
                size.messages
            ),
        });
    }
    let fill_s = begun.elapsed().as_secs_f64();
    let killed = system.name() == BATCHED;
    let mut seen = Vec::new();
    for &cold in colds {
        let rss_before = Watch::new(broker.pid())?.memory()?.resident;
        match killed {
            true => broker.kill(),
            false => broker.stop(),
        }
        let disk_bytes = files(system, cold)?;
        let begun = Instant::now();
        broker = system.start()?;
        let (first, _) = Client::connect(broker.address, "first".to_owned(), false)?;
        let first_connack_s = begun.elapsed().as_secs_f64();
        drop(first);
        let memory = Watch::new(broker.pid())?.memory()?;
        seen.push(Restarted {
            system: system.name(),
            killed,
            cold,
            sessions: size.sessions,
            messages: size.messages,
            payload: size.payload,
            fill_s,
            disk_bytes,
            rss_before,
            rss_after: memory.resident,
            rss_peak: memory.peak,
            first_connack_s,
            looked_at: 0,
            missing: 0,
        });
    }
    // After the last restart, some of the sessions are read.
    if let Some(last) = seen.last_mut() {
        const LOOKS: u32 = 50;
        let step = (size.sessions / LOOKS).max(1);
        for session in (0..size.sessions).step_by(step as usize) {
            let all =
                (size.messages + u64::from(size.sessions - 1 - session)) / u64::from(size.sessions);
            last.looked_at += 1;
            last.missing += all - in_order(&broker, session, size, all)?;
        }
    }
    drop(broker);
    system.remove_data()?;
    Ok(seen)
}

/// Number of a session's messages that arrive in order.
fn in_order(broker: &super::systems::Broker, session: u32, size: Size, all: u64) -> Result<u64> {
    let name = client::session_name(session);
    let (mut client, _) = Client::connect(broker.address, name, true)?;
    let mut came = 0;
    while came < all
        && let Some(packet) = client.next(SILENCE)?
    {
        let due = u64::from(session) + came * u64::from(size.sessions);
        if let Packet::Publish(number) = packet
            && number == due
        {
            came += 1;
        }
    }
    Ok(came)
}

fn topic(session: u32) -> String {
    format!("bench/restart/{session}")
}

/// Bytes of the broker's files, which are evicted from the page cache if `cold`.
fn files(system: &System, cold: bool) -> Result<u64> {
    let context = || format!("cannot look into {}", system.data().display());
    let mut bytes = 0;
    for entry in fs::read_dir(system.data()).map_err(Error::io(context()))? {
        let file = entry.and_then(|entry| File::open(entry.path()));
        let file = file.map_err(Error::io(context()))?;
        bytes += file.metadata().map_err(Error::io(context()))?.len();
        if cold {
            sys::forget_cached(&file).map_err(Error::io(context()))?;
        }
    }
    Ok(bytes)
}
