//! What is lost of what was acknowledged when a broker is killed (SIGKILL).
//!
//! The kernel keeps what was written to files, so this shows less than a power failure would.

use std::collections::HashSet;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;

use super::client::{self, Client, Numbered, Packet};
use super::systems::System;
use punctual_measure::Result;

/// Sessions that wait.
const SESSIONS: u32 = 10;
const PAYLOAD: usize = 64;
const WINDOW: usize = 100;
/// Most messages: no queue is to be full.
const MOST: u64 = 200_000;
/// Longest that is published.
const PATIENCE: Duration = Duration::from_secs(120);
/// Pause between looks at whether anything was acknowledged.
const POLL: Duration = Duration::from_millis(5);
/// How long nothing comes before what is due is lost.
const SILENCE: Duration = Duration::from_secs(2);
/// The same when nothing is due any more: what was not acknowledged may still come.
const SURPLUS: Duration = Duration::from_millis(100);

/// What became of the messages of some rounds.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Loss {
    pub(super) rounds: u32,
    /// Messages acknowledged before the kills.
    pub(super) acknowledged: u64,
    /// Those of them that did not come after the restart.
    pub(super) lost: u64,
    /// Sessions that were not there any more.
    pub(super) sessions_lost: u32,
    /// Messages that came twice.
    pub(super) duplicates: u64,
}

impl Loss {
    /// One round more: publishes for that long, kills, restarts, and counts.
    pub(super) fn round(&mut self, system: &System, time: Duration) -> Result<()> {
        let broker = system.start_empty()?;
        client::make_sessions(broker.address, SESSIONS, topic)?;
        let topics = (0..SESSIONS).map(topic);
        let mut publisher = Numbered::connect(broker.address, topics, PAYLOAD, WINDOW)?;
        let count = publisher.count.clone();
        let acknowledged = thread::scope(|scope| {
            let publishing = scope.spawn(move || {
                publisher.publish_until(MOST, Instant::now() + PATIENCE);
                publisher.acknowledged
            });
            thread::sleep(time);
            while count.load(Ordering::Relaxed) == 0 && !publishing.is_finished() {
                thread::sleep(POLL);
            }
            broker.kill();
            publishing.join().unwrap_or_default()
        });
        let broker = system.start()?;
        let mut came = HashSet::new();
        for session in 0..SESSIONS {
            let name = client::session_name(session);
            let (mut client, present) = Client::connect(broker.address, name, true)?;
            self.sessions_lost += u32::from(!present);
            let own = |number: &&u64| **number % u64::from(SESSIONS) == u64::from(session);
            let mut due: HashSet<u64> = acknowledged.iter().filter(own).copied().collect();
            while present
                && let Some(packet) = client.next(if due.is_empty() { SURPLUS } else { SILENCE })?
            {
                if let Packet::Publish(number) = packet {
                    due.remove(&number);
                    self.duplicates += u64::from(!came.insert(number));
                }
            }
        }
        self.rounds += 1;
        self.acknowledged += acknowledged.len() as u64;
        let missing = acknowledged.iter().filter(|number| !came.contains(number));
        self.lost += missing.count() as u64;
        drop(broker);
        system.remove_data()
    }
}

fn topic(session: u32) -> String {
    format!("bench/loss/{session}")
}
