//! What was queued for a neighbour at a moment.

use crate::Nanos;
use crate::session::{Session, Step};

/// After this it is looked again.
pub(crate) const AGAIN: Nanos = Nanos::from_millis(10);

/// What was queued for a neighbour at a moment, and is not acknowledged.
#[derive(Debug)]
pub(crate) struct Flush {
    /// For [`crate::Interest::flushed`].
    pub(crate) number: u64,
    pub(crate) slot: u32,
    /// Numbers of the session and of the connection.
    pub(crate) session: u64,
    pub(crate) conn: u64,
    /// When that was.
    pub(crate) since: Nanos,
    /// When who has asked does not wait any more.
    pub(crate) until: Nanos,
    /// Packet identifiers of those in flight, once none of them waits any more.
    pub(crate) in_flight: Option<Vec<u16>>,
}

impl Flush {
    /// The messages that the link of that session has held count as queued now.
    pub(super) fn renew(&mut self, slot: u32, now: Nanos) {
        if self.slot == slot {
            self.since = now;
        }
    }

    /// Whether all is acknowledged; the session is the neighbour's.
    pub(crate) fn is_done(&mut self, session: &Session) -> bool {
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
