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
//! What is kept back for a neighbour ([`crate::brake`]) is refused when it takes half of a
//! bound, and this half does not count for the others.
//!
//! Where the policy is to drop ([`crate::overflow`]), nothing is promised: what needs room takes it
//! from what waits.
//!
//! Invariant: with policy `refuse`, what waits in a session and what is
//! reserved in it never exceed its bounds, and by half at most where something is kept back,
//! nor all sessions theirs.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use punctual_codec::topic;

use crate::Limits;
use crate::base::handle::SessionHandle;
use crate::egress::Class;
use crate::hub::{Conn, Hub};
use crate::index::target::Target;
use crate::session::{Session, Subscription};

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

impl Hub {
    #[inline]
    pub(crate) fn session_of(&self, target: &Target) -> Option<&Session> {
        self.sessions
            .get(target.slot)
            .filter(|session| Arc::ptr_eq(&session.handle, &target.session))
    }

    /// The same receiver, where another session has taken the place of the one of a client of a mesh
    /// and has a subscription for it, too: what was on its way between shards then is for that.
    pub(crate) fn successor(&self, target: &Target, topic: &str) -> Option<Target> {
        let slot = self.session_named(&target.session.client_id)?;
        let session = self.sessions.get(slot)?;
        let wants = |it: &Subscription| topic::matches(&it.filter, topic);
        // One that began with Clean Start 1 has nothing of before.
        let follows = session.had.is_some() && session.link.is_none() && target.share == 0;
        let follows = follows && session.subscriptions.iter().any(wants);
        follows.then(|| Target {
            session: session.handle.clone(),
            slot: session.handle.slot,
            ..target.clone()
        })
    }

    /// Whether a message with QoS above 0 would be sent at once.
    #[inline(always)]
    fn sends_at_once(&self, session: &Session, need: Need) -> bool {
        if need.class.is_urgent() {
            return self.sends_urgent_at_once(session);
        }
        let conn = session.conn.and_then(|slot| self.conns.get(slot));
        conn.is_some_and(|conn| takes_at_once(session, conn, self.config.limits.send_buffer, need))
    }

    /// Whether an urgent message with QoS above 0 would be sent at once,
    /// whatever plain messages wait.
    pub(crate) fn sends_urgent_at_once(&self, session: &Session) -> bool {
        let conn = session.conn.and_then(|slot| self.conns.get(slot));
        conn.is_some_and(|conn| {
            let window = &session.window;
            window.has_urgent_room(conn.receive_max, conn.link) && session.queue.has_no_urgent()
        })
    }

    /// Whether a message with QoS above 0 can be kept for a local session now, or
    /// sent at once, or is not waited for.
    #[inline]
    pub(crate) fn has_room(&self, target: &Target, need: Need) -> bool {
        let Some(session) = self.session_of(target) else {
            return true;
        };
        self.sends_at_once(session, need)
            || target.session.is_away()
            || self.queue_has_room(target, need)
    }

    /// Whether a message can wait in a local session.
    pub(crate) fn queue_has_room(&self, target: &Target, need: Need) -> bool {
        let Need { class, size, .. } = need;
        let Some(session) = self.session_of(target) else {
            return true;
        };
        let total = self.directory.queued_bytes.load(Ordering::Relaxed);
        let bounds = Bounds::of(&self.config.limits, class).for_session(&target.session);
        bounds.fit(session, need, 0) && total + size <= bounds.total
    }

    /// What keeps a message from waiting in a local session where others may be dropped for it: what is
    /// promised to messages on their way from other shards does not count.
    pub(crate) fn shortage(&self, target: &Target, need: Need) -> Option<Shortage> {
        let session = self.session_of(target)?;
        let bounds = Bounds::of(&self.config.limits, need.class);
        let total = self.directory.queued_bytes.load(Ordering::Relaxed);
        if !bounds.have(&Filled::of_queue(session), need, 0) {
            return Some(Shortage::Session);
        }
        (total + need.size > bounds.total).then_some(Shortage::Total)
    }

    /// Whether a message could wait in a session if nothing else did.
    pub(crate) fn may_ever_fit(&self, need: Need) -> bool {
        let bounds = Bounds::of(&self.config.limits, need.class);
        let empty = Filled {
            messages: 0,
            bytes: 0,
            braked: (0, 0),
        };
        bounds.have(&empty, need, 0) && need.size <= bounds.total
    }

    /// Promises room for a message with QoS above 0 in a local session, of which
    /// `copies` copies go there before. What it will take in the queue is added to
    /// the bytes of all sessions right away, and to `reserved`.
    #[inline]
    pub(crate) fn promise(
        &self,
        target: &Target,
        need: Need,
        copies: usize,
        reserved: &mut usize,
    ) -> bool {
        let Need { class, size, .. } = need;
        let Some(session) = self.session_of(target) else {
            return true;
        };
        if copies == 0 && self.sends_at_once(session, need) {
            return true;
        }
        // Nobody waits for who is away for long: what has no room then is dropped.
        if target.session.is_away() {
            return true;
        }
        let total = self
            .directory
            .queued_bytes
            .fetch_add(size, Ordering::Relaxed);
        *reserved += size;
        let bounds = Bounds::of(&self.config.limits, class);
        bounds.fit(session, need, copies) && total + size <= bounds.total
    }

    /// Gives back what was reserved and not used.
    #[inline]
    pub(crate) fn release(&self, reserved: usize) {
        if reserved > 0 {
            self.directory
                .queued_bytes
                .fetch_sub(reserved, Ordering::Relaxed);
        }
    }

    /// Whether a session of another shard seems to have room.
    pub(crate) fn may_have_room(&self, handle: &SessionHandle, need: Need) -> bool {
        if handle.is_away() {
            return true;
        }
        let bounds = Bounds::of(&self.config.limits, need.class);
        let messages = handle.reserved.load(Ordering::Relaxed) as usize;
        let bytes = handle.reserved_bytes.load(Ordering::Relaxed);
        bounds.have(&Filled::of_handle(handle, messages, bytes), need, 0)
    }

    /// Promises room for one message in a session of another shard, where it is
    /// of that class, if it has that, or without asking.
    pub(crate) fn reserve(&self, handle: &SessionHandle, need: Need, asks: bool) -> bool {
        let Need { class, size, .. } = need;
        let bounds = Bounds::of(&self.config.limits, class);
        let messages = handle.reserved.fetch_add(1, Ordering::AcqRel) as usize;
        let bytes = handle.reserved_bytes.fetch_add(size, Ordering::AcqRel);
        let filled = Filled::of_handle(handle, messages, bytes);
        let total = self
            .directory
            .queued_bytes
            .fetch_add(size, Ordering::Relaxed);
        let fits = bounds.have(&filled, need, 0) && total + size <= bounds.total;
        let fits = fits || handle.is_away() || !asks;
        if !fits {
            self.give_back(handle, size);
            self.release(size);
        }
        fits
    }

    /// Ends a reservation in a session; its bytes among those of all sessions
    /// stay, for the message that comes in its place or [`Self::release`].
    pub(crate) fn give_back(&self, handle: &SessionHandle, size: usize) {
        handle.reserved.fetch_sub(1, Ordering::AcqRel);
        handle.reserved_bytes.fetch_sub(size, Ordering::AcqRel);
    }
}

/// What messages of one class may fill, what waits of others included.
struct Bounds {
    messages: usize,
    /// Messages for a neighbour that is away for long.
    kept: usize,
    bytes: usize,
    /// Bytes in all sessions.
    total: usize,
}

impl Bounds {
    #[inline]
    fn of(limits: &Limits, class: Class) -> Self {
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
    fn for_session(mut self, handle: &SessionHandle) -> Self {
        if handle.is_away() {
            self.messages = self.messages.max(self.kept);
        }
        self
    }

    /// Whether a session's queue takes another message after `copies` of it.
    fn fit(&self, session: &Session, need: Need, copies: usize) -> bool {
        let handle = &session.handle;
        let mut filled = Filled::of_queue(session);
        filled.messages += handle.reserved.load(Ordering::Acquire) as usize;
        filled.bytes += handle.reserved_bytes.load(Ordering::Acquire);
        // For who is away for long all is kept that there is room for.
        let braked = need.braked && !handle.is_away();
        self.have(&filled, Need { braked, ..need }, copies)
    }

    /// Whether they let another message in after `copies` of it.
    fn have(&self, filled: &Filled, need: Need, copies: usize) -> bool {
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
struct Filled {
    messages: usize,
    bytes: usize,
    /// Messages among them that are kept back, and their bytes.
    braked: (usize, usize),
}

impl Filled {
    /// What waits in a session of this shard.
    fn of_queue(session: &Session) -> Self {
        Self {
            messages: session.queue.len(),
            bytes: session.queue.bytes(),
            braked: session.queue.braked(),
        }
    }

    /// That of a session of another shard, with what is reserved there.
    fn of_handle(handle: &SessionHandle, reserved: usize, reserved_bytes: usize) -> Self {
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

/// Whether a session with that connection is sent a plain message with QoS above 0
/// at once, with `send_buffer` as bound for what waits before it in the connection.
#[inline(always)]
pub(crate) fn takes_at_once(
    session: &Session,
    conn: &Conn,
    send_buffer: usize,
    need: Need,
) -> bool {
    session.queue.is_clear()
        && !need.braked
        && session.replays.is_empty()
        && session.window.has_room(conn.receive_max)
        && conn.out.backlog_before(need.class) < send_buffer
        && !(need.fleeting && conn.is_behind())
}
