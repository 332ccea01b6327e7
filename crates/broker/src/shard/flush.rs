//! When a neighbour has acknowledged what is queued for it at a moment.
//!
//! Nothing is noted with each message for that: while it is asked for, it is looked at times at what
//! waits and what is in flight.

use super::Shard;
use crate::Nanos;
use crate::flush::{AGAIN, Flush};
use crate::timers::Timer;

impl Shard {
    /// When a neighbour has acknowledged all that is queued for it now,
    /// [`crate::Interest::flushed`] is called with that number; not if its connection is lost before.
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
