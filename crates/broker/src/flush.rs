//! Flushes: messages that were queued for a neighbour at a moment.

use crate::Nanos;
use crate::session::{Session, Step};

/// Time between two checks of a flush.
pub(crate) const AGAIN: Nanos = Nanos::from_millis(10);

/// The messages that were queued for a neighbour at a moment, and are not all acknowledged.
#[derive(Debug)]
pub(crate) struct Flush {
    /// The number for [`crate::Interest::flushed`].
    pub(crate) number: u64,
    pub(crate) slot: u32,
    /// Numbers of the session and of the connection.
    pub(crate) session: u64,
    pub(crate) conn: u64,
    /// The moment of the flush.
    pub(crate) since: Nanos,
    /// The time after which the caller does not wait any more.
    pub(crate) until: Nanos,
    /// Packet identifiers of the messages in flight, once none of the messages is queued any more.
    pub(crate) in_flight: Option<Vec<u16>>,
}

impl Flush {
    /// Counts messages that the link of that session has held as queued now.
    pub(super) fn renew(&mut self, slot: u32, now: Nanos) {
        if self.slot == slot {
            self.since = now;
        }
    }

    /// Whether all messages are acknowledged; `session` is the neighbour's.
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
