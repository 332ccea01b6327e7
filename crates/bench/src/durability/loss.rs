//! Counts acknowledged messages that are lost when a broker is killed with SIGKILL.
//!
//! The kernel keeps data that was written to files, so this shows fewer losses than a power failure
//! would cause.

use std::collections::HashSet;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;

use super::client::{self, Client, Numbered, Packet};
use super::systems::System;
use punctual_measure::Result;

/// Disconnected sessions for which messages are stored.
const SESSIONS: u32 = 10;
const PAYLOAD: usize = 64;
const WINDOW: usize = 100;
/// Most messages of a round: no session's queue may be full.
const MOST: u64 = 200_000;
/// Longest duration of the publishing.
const PATIENCE: Duration = Duration::from_secs(120);
/// Polling interval until the first message was acknowledged.
const POLL: Duration = Duration::from_millis(5);
/// Missing messages count as lost when nothing arrives for this long.
const SILENCE: Duration = Duration::from_secs(2);
/// Wait for further messages when all acknowledged ones have arrived: the broker may also have
/// stored unacknowledged ones.
const SURPLUS: Duration = Duration::from_millis(100);

/// Results of all rounds.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Loss {
    pub(super) rounds: u32,
    /// Messages that were acknowledged before the broker was killed.
    pub(super) acknowledged: u64,
    /// Acknowledged messages that did not arrive after the restart.
    pub(super) lost: u64,
    /// Sessions that the broker no longer had after the restart.
    pub(super) sessions_lost: u32,
    /// Messages that arrived more than once.
    pub(super) duplicates: u64,
}

impl Loss {
    /// Performs a round: publishes for `time`, kills the broker, restarts it, and counts messages.
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
