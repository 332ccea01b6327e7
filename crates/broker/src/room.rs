//! Room for messages that have to be kept. A message with QoS 1 or 2 is
//! accepted only if everyone who is to receive it has room, so room is promised
//! to it before it is delivered to anyone. Within a shard nothing happens in
//! between; for a session of another shard the promise is a reservation, which
//! that shard gives back when it delivers. The bytes of all sessions are
//! reserved in both cases, because all shards share them.
//!
//! The last part of every bound is kept free for urgent messages, so that one
//! session full of others does not have every alarm refused that it subscribes to.
//!
//! What is kept back for a neighbour ([`crate::mesh::brake`]) is refused when it takes half of a
//! bound, and this half does not count for the others.
//!
//! Where the policy is to drop ([`crate::overflow`]), nothing is promised: what needs room takes it
//! from what waits.
//!
//! Invariant: with policy `refuse`, what waits in a session and what is
//! reserved in it never exceed its bounds, and by half at most where something is kept back,
//! nor all sessions theirs.

use std::sync::atomic::Ordering;

use crate::Limits;
use crate::base::handle::SessionHandle;
use crate::egress::Class;
use crate::session::Session;

/// Which bound keeps a message from waiting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shortage {
    /// One of its session.
    Session,
    /// That of all sessions.
    Total,
}

/// What a message needs of one receiver.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Need {
    /// Its class there.
    pub(crate) class: Class,
    pub(crate) size: usize,
    /// It may expire: it waits in the session, where that is seen, while the
    /// connection has not taken everything.
    pub(crate) fleeting: bool,
    /// It is kept back for that neighbour.
    pub(crate) braked: bool,
}

/// What messages of one class may fill, what waits of others included.
pub(crate) struct Bounds {
    messages: usize,
    /// Messages for a neighbour that is away for long.
    kept: usize,
    bytes: usize,
    /// Bytes in all sessions.
    pub(crate) total: usize,
}

impl Bounds {
    #[inline]
    pub(crate) fn of(limits: &Limits, class: Class) -> Self {
        let kept = match class.is_urgent() {
            true => 0,
            false => usize::from(limits.urgent_reserve),
        };
        // In this order there is no overflow.
        let open = |bound: usize| bound - (bound / 100 * kept + bound % 100 * kept / 100);
        Self {
            messages: open(limits.max_queued_messages),
            kept: open(limits.max_kept_messages),
            bytes: open(limits.max_queued_bytes),
            total: open(limits.max_total_queued_bytes),
        }
    }

    /// Those of a session.
    pub(crate) fn for_session(mut self, handle: &SessionHandle) -> Self {
        if handle.is_away() {
            self.messages = self.messages.max(self.kept);
        }
        self
    }

    /// Whether a session's queue takes another message after `copies` of it.
    pub(crate) fn fit(&self, session: &Session, need: Need, copies: usize) -> bool {
        let handle = &session.handle;
        let mut filled = Filled::of_queue(session);
        filled.messages += handle.reserved.load(Ordering::Acquire) as usize;
        filled.bytes += handle.reserved_bytes.load(Ordering::Acquire);
        // For who is away for long all is kept that there is room for.
        let braked = need.braked && !handle.is_away();
        self.have(&filled, Need { braked, ..need }, copies)
    }

    /// Whether they let another message in after `copies` of it.
    pub(crate) fn have(&self, filled: &Filled, need: Need, copies: usize) -> bool {
        let (messages, bytes) = filled.open(self);
        let size = need.size;
        let fits = messages + copies < self.messages && bytes + (copies + 1) * size <= self.bytes;
        let (messages, bytes) = filled.braked;
        let (most, most_bytes) = self.braked();
        fits && (!need.braked
            || messages + copies < most && bytes + (copies + 1) * size <= most_bytes)
    }

    /// What may be kept back: messages and bytes.
    fn braked(&self) -> (usize, usize) {
        ((self.messages / 2).max(1), self.bytes / 2)
    }
}

/// What waits in a queue, or has been promised room there.
pub(crate) struct Filled {
    pub(crate) messages: usize,
    pub(crate) bytes: usize,
    /// Messages among them that are kept back, and their bytes.
    pub(crate) braked: (usize, usize),
}

impl Filled {
    /// What waits in a session of this shard.
    pub(crate) fn of_queue(session: &Session) -> Self {
        Self {
            messages: session.queue.len(),
            bytes: session.queue.bytes(),
            braked: session.queue.braked(),
        }
    }

    /// That of a session of another shard, with what is reserved there.
    pub(crate) fn of_handle(
        handle: &SessionHandle,
        reserved: usize,
        reserved_bytes: usize,
    ) -> Self {
        Self {
            messages: handle.queued.load(Ordering::Acquire) as usize + reserved,
            bytes: handle.queued_bytes.load(Ordering::Acquire) + reserved_bytes,
            braked: handle.braking.as_ref().map_or((0, 0), |it| it.load()),
        }
    }

    /// What of it counts for messages that are not kept back.
    fn open(&self, bounds: &Bounds) -> (usize, usize) {
        let (most, most_bytes) = bounds.braked();
        let (messages, bytes) = self.braked;
        // Another shard may say the parts at different moments.
        let open = self.messages.saturating_sub(messages.min(most));
        (open, self.bytes.saturating_sub(bytes.min(most_bytes)))
    }
}

/// How full the queue of a neighbour is in eighths, but for what is kept back, and that.
pub(crate) fn fullness(limits: &Limits, session: &Session) -> [usize; 2] {
    let bounds = Bounds::of(limits, Class::Normal);
    let filled = Filled::of_queue(session);
    let eighths = |(messages, bytes): (usize, usize), (most, most_bytes): (usize, usize)| {
        let of = |part: usize, all: usize| part.saturating_mul(8) / all.max(1);
        of(messages, most).max(of(bytes, most_bytes))
    };
    [
        eighths(filled.open(&bounds), (bounds.messages, bounds.bytes)),
        eighths(filled.braked, bounds.braked()),
    ]
}
