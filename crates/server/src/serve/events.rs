//! Events of the broker, written to the log by a thread of its own.

use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use punctual_broker::{Alarm, Event};

/// Refused clients that are named in one [`WINDOW`]; the others are counted.
const NAMED: u32 = 20;
/// For how long they are counted.
const WINDOW: Duration = Duration::from_secs(60);

/// For how long events are gathered after one. A shard that reports an event while this thread waits
/// has to wake it up, which takes a system call and a context switch for each client that comes or goes.
const GATHER: Duration = Duration::from_millis(10);

/// Clients that were refused lately. Each may try again every second, and nobody has to have
/// a password for that.
#[derive(Default)]
struct Refusals {
    since: Option<Instant>,
    count: u32,
}

impl Refusals {
    /// Whether another one is named.
    fn add(&mut self, now: Instant) -> bool {
        self.since.get_or_insert(now);
        self.count = self.count.saturating_add(1);
        self.count <= NAMED
    }

    /// When they are over.
    fn end(&self) -> Option<Instant> {
        Some(self.since? + WINDOW)
    }

    /// How many were not named, if it is over.
    fn take(&mut self, now: Instant) -> u32 {
        match self.end() {
            Some(end) if now >= end => std::mem::take(self).count.saturating_sub(NAMED),
            _ => 0,
        }
    }
}

/// Logs until the broker is gone.
pub(super) fn log(events: Receiver<Event>) {
    let mut refusals = Refusals::default();
    loop {
        let more = refusals.take(Instant::now());
        if more > 0 {
            tracing::info!("{more} more clients were refused in the last minute");
        }
        let event = match refusals.end() {
            Some(end) => events.recv_timeout(end.saturating_duration_since(Instant::now())),
            None => events.recv().map_err(RecvTimeoutError::from),
        };
        match event {
            Ok(event) => write(event, &mut refusals),
            Err(RecvTimeoutError::Timeout) => continue,
            Err(RecvTimeoutError::Disconnected) => return,
        }
        thread::sleep(GATHER);
        for event in events.try_iter() {
            write(event, &mut refusals);
        }
    }
}

fn write(event: Event, refusals: &mut Refusals) {
    match event {
        Event::ConnectRefused {
            client_id,
            peer,
            username,
            reason,
            why,
        } => {
            if refusals.add(Instant::now()) {
                tracing::info!(
                    client = client_id.as_deref(),
                    peer = peer.map(tracing::field::display),
                    user = username.as_deref(),
                    "client refused: {}, {why}",
                    reason.name()
                );
            }
        }
        Event::Connected {
            client_id,
            peer,
            version,
            username,
        } => tracing::debug!(
            client = %client_id,
            peer = peer.map(tracing::field::display),
            version = ?version,
            user = username.as_deref(),
            "client connected"
        ),
        Event::Disconnected { client_id, reason } => {
            tracing::debug!(client = %client_id, reason, "client disconnected");
        }
        Event::Refused { peer, reason } => {
            tracing::debug!(
                peer = peer.map(tracing::field::display),
                reason,
                "connection ended before a client was connected"
            );
        }
        Event::SessionCame { client_id, broker } => tracing::info!(
            client = %client_id,
            "mesh: its session came from {broker}: the client has connected here"
        ),
        Event::SessionLeft {
            client_id,
            broker,
            messages,
        } => tracing::info!(
            client = %client_id,
            messages,
            "mesh: its session went to {broker}: the client has connected there"
        ),
        Event::TransferGivenUp { client_id, what } => tracing::warn!(
            client = %client_id,
            "mesh: {what} is given up: the other broker has been away for longer than mesh.keep"
        ),
        Event::SlowConsumer {
            client_id,
            buffered,
            queued,
        } => tracing::warn!(
            client = %client_id,
            buffered,
            queued,
            "client does not keep up; its QoS 0 messages are dropped until it has caught up"
        ),
        Event::Alarm(Alarm::Missed(missed)) => tracing::warn!(
            flow = %missed.flow,
            "deadline missed: {}",
            Alarm::Missed(missed.clone())
        ),
        Event::Alarm(Alarm::Overrun(overrun)) => tracing::warn!(
            work = overrun.work,
            "a piece of work kept a thread for longer than bounds assume: {}",
            Alarm::Overrun(overrun.clone())
        ),
        Event::UrgencyIgnored { client_id, reason } => tracing::warn!(
            client = %client_id,
            reason,
            "what the client states about urgency is not followed"
        ),
        Event::QueueFull {
            client_id,
            queued,
            refused: true,
        } => tracing::warn!(
            client = %client_id,
            queued,
            "queue is full; publications to it are refused (queue.full, \
             limits.max_queued_messages)"
        ),
        Event::QueueFull {
            client_id,
            queued,
            refused: false,
        } => tracing::warn!(
            client = %client_id,
            queued,
            "queue is full; messages for the client are dropped (queue.full, \
             limits.max_queued_messages)"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_of_refused_clients_is_counted() {
        let start = Instant::now();
        let mut refusals = Refusals::default();
        let named = (0..NAMED + 7).filter(|_| refusals.add(start)).count();
        assert_eq!(named, NAMED as usize);
        assert_eq!(refusals.take(start + WINDOW / 2), 0);
        assert_eq!(refusals.take(start + WINDOW), 7);
        assert_eq!(refusals.end(), None);
        assert!(refusals.add(start + 2 * WINDOW));
        assert_eq!(refusals.take(start + 3 * WINDOW), 0);
    }
}
