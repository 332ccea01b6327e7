//! Flushes: the detection that a neighbour has acknowledged all messages queued for it at a moment.
//!
//! Messages carry no mark for that: while a flush is requested, the queue and the window are
//! checked periodically.

use super::Shard;
use crate::Nanos;
use crate::flush::{AGAIN, Flush};
use crate::timers::Timer;

impl Shard {
    /// Requests a flush: when a neighbour has acknowledged all messages that are queued for it now,
    /// [`crate::Interest::flushed`] is called with that number; not if its connection is lost
    /// before.
    pub fn link_flush(&mut self, peer: &str, number: u64, now: Nanos) {
        let heal = self.hub.move_times().heal;
        let Some(slot) = self.link_session(peer) else {
            return;
        };
        let hub = &mut self.hub;
        let session = hub.sessions.get(slot);
        let conn = session.and_then(|session| hub.outlets.conns.get(session.conn?));
        let (Some(session), Some(conn)) = (session, conn) else {
            return;
        };
        if hub.links.flushes.is_empty() {
            hub.timers.arm(now + AGAIN, Timer::Flushes);
        }
        hub.links.flushes.push(Flush {
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
