//! Requests to report when a neighbour has acknowledged its queue.

use crate::Nanos;
use crate::flush::AGAIN;
use crate::hub::Hub;
use crate::timers::Timer;

impl Hub {
    /// The timer fires: checks the flush requests again.
    pub(crate) fn flushes_are_due(&mut self, now: Nanos) {
        self.look_after_flushes(now);
        if !self.links.flushes.is_empty() {
            self.timers.arm(now + AGAIN, Timer::Flushes);
        }
    }

    pub(crate) fn look_after_flushes(&mut self, now: Nanos) {
        let (sessions, conns) = (&self.sessions, &self.outlets.conns);
        let federation = self.directory.federation();
        self.links.flushes.retain_mut(|flush| {
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
