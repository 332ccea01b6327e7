//! When a neighbour has acknowledged what is queued for it at a moment.
//!
//! Nothing is noted with each message for that: while it is asked for, it is looked at times at what
//! waits and what is in flight.

use super::Shard;
use crate::Nanos;
use crate::hub::Hub;
use crate::session::{Session, Step};
use crate::timers::Timer;

/// After this it is looked again.
const AGAIN: Nanos = Nanos::from_millis(10);

/// What was queued for a neighbour at a moment, and is not acknowledged.
#[derive(Debug)]
pub(crate) struct Flush {
    /// For [`crate::Federation::flushed`].
    number: u64,
    slot: u32,
    /// Numbers of the session and of the connection.
    session: u64,
    conn: u64,
    /// When that was.
    since: Nanos,
    /// When who has asked does not wait any more.
    until: Nanos,
    /// Packet identifiers of those in flight, once none of them waits any more.
    in_flight: Option<Vec<u16>>,
}

impl Flush {
    /// The messages that the link of that session has held count as queued now.
    pub(super) fn renew(&mut self, slot: u32, now: Nanos) {
        if self.slot == slot {
            self.since = now;
        }
    }

    /// Whether all is acknowledged; the session is the neighbour's.
    fn is_done(&mut self, session: &Session) -> bool {
        let sent = |step| matches!(step, Step::Ack | Step::Rec);
        if let Some(ids) = &mut self.in_flight {
            ids.retain(|id| {
                let inflight = session.window.in_flight(*id);
                inflight.is_some_and(|inflight| sent(inflight.step))
            });
        } else if !session.queue.has_since(self.since) {
            let all = session.window.unfinished();
            let ids = all.filter(|it| sent(it.step)).map(|it| it.packet_id);
            self.in_flight = Some(ids.collect());
        }
        self.in_flight.as_ref().is_some_and(Vec::is_empty)
    }
}

impl Shard {
    /// When a neighbour has acknowledged all that is queued for it now,
    /// [`crate::Federation::flushed`] is called with that number; not if its connection is lost before.
    pub fn link_flush(&mut self, peer: &str, number: u64, now: Nanos) {
        let heal = self.hub.move_times().heal;
        let Some(slot) = self.link_session(peer) else {
            return;
        };
        let hub = &mut self.hub;
        let session = hub.sessions.get(slot);
        let conn = session.and_then(|session| hub.conns.get(session.conn?));
        let (Some(session), Some(conn)) = (session, conn) else {
            return;
        };
        if hub.flushes.is_empty() {
            hub.timers.arm(now + AGAIN, Timer::Flushes);
        }
        hub.flushes.push(Flush {
            number,
            slot,
            session: session.handle.number,
            conn: conn.number,
            since: now,
            until: now + heal,
            in_flight: None,
        });
        hub.look_after_flushes(now);
    }
}

impl Hub {
    /// It is time to look again.
    pub(crate) fn flushes_are_due(&mut self, now: Nanos) {
        self.look_after_flushes(now);
        if !self.flushes.is_empty() {
            self.timers.arm(now + AGAIN, Timer::Flushes);
        }
    }

    fn look_after_flushes(&mut self, now: Nanos) {
        let (sessions, conns) = (&self.sessions, &self.conns);
        let federation = self.directory.federation();
        self.flushes.retain_mut(|flush| {
            let session = sessions.get(flush.slot);
            let session = session.filter(|session| session.handle.number == flush.session);
            let conn = session.and_then(|session| conns.get(session.conn?));
            let same = conn.is_some_and(|conn| conn.number == flush.conn);
            let Some(session) = session.filter(|_| same && flush.until > now) else {
                return false;
            };
            let is_done = flush.is_done(session);
            if let Some(federation) = federation.filter(|_| is_done) {
                federation.flushed(flush.number);
            }
            !is_done
        });
    }
}
