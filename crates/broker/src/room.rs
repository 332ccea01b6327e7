//! Capacity for messages that have to be kept. A message with QoS 1 or 2 is accepted only if all
//! its receivers have capacity, so capacity is reserved for it before it is delivered to any.
//! Within a shard no other work is done in between; for a session of another shard there is a
//! reservation, which that shard releases when it delivers. The bytes of all sessions are reserved
//! in both cases, because all shards share them.
//!
//! The last part of every bound is kept free for urgent messages, so that a session full of other
//! messages still accepts alarms.
//!
//! Deferred messages for a neighbour ([`crate::mesh::throttle`]) are refused when they take half of a
//! bound, and this half does not count for the others.
//!
//! Where the policy is to drop ([`crate::overflow`]), nothing is reserved: a new message replaces
//! waiting ones.
//!
//! Invariant: with policy `refuse`, the messages that wait in a session and those reserved in it
//! never exceed its bounds, or exceed them by at most half if some are deferred; and those of all
//! sessions never exceed the total bound.

use std::sync::atomic::Ordering;

use crate::Limits;
use crate::base::handle::SessionHandle;
use crate::egress::Class;
use crate::session::Session;

/// The bound that prevents a message from being queued.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shortage {
    /// A bound of its session.
    Session,
    /// The bound of all sessions.
    Total,
}

/// The capacity that a message needs at one receiver.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Need {
    /// The class of the message at that receiver.
    pub(crate) class: Class,
    pub(crate) size: usize,
    /// Whether it may expire: then it waits in the session, where expiry is checked, until the
    /// connection has taken all earlier output.
    pub(crate) fleeting: bool,
    /// Whether it is deferred for that neighbour.
    pub(crate) throttled: bool,
}

/// The bounds up to which messages of one class may fill a queue, including messages of other
/// classes.
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

    /// The bounds for a session.
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
        // For a neighbour that is away for long, messages are kept up to the full bound.
        let throttled = need.throttled && !handle.is_away();
        self.have(&filled, Need { throttled, ..need }, copies)
    }

    /// Whether the bounds admit another message after `copies` of it.
    pub(crate) fn have(&self, filled: &Filled, need: Need, copies: usize) -> bool {
        let (messages, bytes) = filled.open(self);
        let size = need.size;
        let fits = messages + copies < self.messages && bytes + (copies + 1) * size <= self.bytes;
        let (messages, bytes) = filled.throttled;
        let (most, most_bytes) = self.throttled();
        fits && (!need.throttled
            || messages + copies < most && bytes + (copies + 1) * size <= most_bytes)
    }

    /// The bounds of deferred messages: messages and bytes.
    fn throttled(&self) -> (usize, usize) {
        ((self.messages / 2).max(1), self.bytes / 2)
    }
}

/// The load of a queue: waiting messages and reservations.
pub(crate) struct Filled {
    pub(crate) messages: usize,
    pub(crate) bytes: usize,
    /// Number of deferred messages among them, and their bytes.
    pub(crate) throttled: (usize, usize),
}

impl Filled {
    /// The load of a session of this shard.
    pub(crate) fn of_queue(session: &Session) -> Self {
        Self {
            messages: session.queue.len(),
            bytes: session.queue.bytes(),
            throttled: session.queue.throttled(),
        }
    }

    /// The load of a session of another shard, with its reservations.
    pub(crate) fn of_handle(
        handle: &SessionHandle,
        reserved: usize,
        reserved_bytes: usize,
    ) -> Self {
        Self {
            messages: handle.queued.load(Ordering::Acquire) as usize + reserved,
            bytes: handle.queued_bytes.load(Ordering::Acquire) + reserved_bytes,
            throttled: handle.throttling.as_ref().map_or((0, 0), |it| it.load()),
        }
    }

    /// The part that counts for messages that are not deferred.
    fn open(&self, bounds: &Bounds) -> (usize, usize) {
        let (most, most_bytes) = bounds.throttled();
        let (messages, bytes) = self.throttled;
        // Another shard may publish the parts at different moments.
        let open = self.messages.saturating_sub(messages.min(most));
        (open, self.bytes.saturating_sub(bytes.min(most_bytes)))
    }
}

/// The fill level of a neighbour's queue in eighths: without deferred messages, and of deferred
/// messages.
pub(crate) fn fullness(limits: &Limits, session: &Session) -> [usize; 2] {
    let bounds = Bounds::of(limits, Class::Normal);
    let filled = Filled::of_queue(session);
    let eighths = |(messages, bytes): (usize, usize), (most, most_bytes): (usize, usize)| {
        let of = |part: usize, all: usize| part.saturating_mul(8) / all.max(1);
        of(messages, most).max(of(bytes, most_bytes))
    };
    [
        eighths(filled.open(&bounds), (bounds.messages, bounds.bytes)),
        eighths(filled.throttled, bounds.throttled()),
    ]
}
