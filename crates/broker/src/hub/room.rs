//! Room for messages in the queues of a shard.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use punctual_codec::topic;

use crate::base::handle::SessionHandle;
use crate::hub::{Conn, Hub};
use crate::index::target::Target;
use crate::room::{Bounds, Filled, Need, Shortage};
use crate::session::{Session, Subscription};

impl Hub {
    #[inline]
    pub(crate) fn session_of(&self, target: &Target) -> Option<&Session> {
        self.sessions
            .get(target.slot)
            .filter(|session| Arc::ptr_eq(&session.handle, &target.session))
    }

    /// The receiver of a message in transit between shards whose session was replaced by another
    /// one of the same client of a mesh: the new session, if it has a subscription for the message.
    pub(crate) fn successor(&self, target: &Target, topic: &str) -> Option<Target> {
        let slot = self.sessions.named(&target.session.client_id)?;
        let session = self.sessions.get(slot)?;
        let wants = |it: &Subscription| topic::matches(&it.filter, topic);
        // A session that began with Clean Start 1 receives no earlier messages.
        let follows = session.history.is_some() && session.link.is_none() && target.share == 0;
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
        let conn = session.conn.and_then(|slot| self.outlets.conns.get(slot));
        conn.is_some_and(|conn| takes_at_once(session, conn, self.config.limits.send_buffer, need))
    }

    /// Whether an urgent message with QoS above 0 would be sent at once, without regard to plain
    /// messages.
    pub(crate) fn sends_urgent_at_once(&self, session: &Session) -> bool {
        let conn = session.conn.and_then(|slot| self.outlets.conns.get(slot));
        conn.is_some_and(|conn| {
            let window = &session.window;
            window.has_urgent_room(conn.receive_max, conn.link) && session.queue.has_no_urgent()
        })
    }

    /// Whether a message with QoS above 0 can be sent to a local session at once or queued, or the
    /// session is gone or away, so that publishers do not wait for it.
    #[inline]
    pub(crate) fn has_room(&self, target: &Target, need: Need) -> bool {
        let Some(session) = self.session_of(target) else {
            return true;
        };
        self.sends_at_once(session, need)
            || target.session.is_away()
            || self.queue_has_room(target, need)
    }

    /// Whether a message fits into the queue of a local session.
    pub(crate) fn queue_has_room(&self, target: &Target, need: Need) -> bool {
        let Need { class, size, .. } = need;
        let Some(session) = self.session_of(target) else {
            return true;
        };
        let total = self.directory.queued_bytes.load(Ordering::Relaxed);
        let bounds = Bounds::of(&self.config.limits, class).for_session(&target.session);
        bounds.fit(session, need, 0) && total + size <= bounds.total
    }

    /// The bound that a message would exceed in the queue of a local session where other messages
    /// may be dropped for it. Room that is reserved for messages in transit from other shards does
    /// not count.
    pub(crate) fn shortage(&self, target: &Target, need: Need) -> Option<Shortage> {
        let session = self.session_of(target)?;
        let bounds = Bounds::of(&self.config.limits, need.class);
        let total = self.directory.queued_bytes.load(Ordering::Relaxed);
        if !bounds.have(&Filled::of_queue(session), need, 0) {
            return Some(Shortage::Session);
        }
        (total + need.size > bounds.total).then_some(Shortage::Total)
    }

    /// Whether a message would fit into an empty queue.
    pub(crate) fn may_ever_fit(&self, need: Need) -> bool {
        let bounds = Bounds::of(&self.config.limits, need.class);
        let empty = Filled {
            messages: 0,
            bytes: 0,
            throttled: (0, 0),
        };
        bounds.have(&empty, need, 0) && need.size <= bounds.total
    }

    /// Reserves room for a message with QoS above 0 in a local session that receives `copies`
    /// earlier copies of it. Its bytes in the queue are added to the total of all sessions at once,
    /// and to `reserved`. Returns whether there is room.
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
        // Publishers do not wait for a session that is away for long: a message without room is
        // dropped.
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

    /// Releases reserved bytes that were not used.
    #[inline]
    pub(crate) fn release(&self, reserved: usize) {
        if reserved > 0 {
            self.directory
                .queued_bytes
                .fetch_sub(reserved, Ordering::Relaxed);
        }
    }

    /// Whether a session of another shard has room, by its shared counters.
    pub(crate) fn may_have_room(&self, handle: &SessionHandle, need: Need) -> bool {
        if handle.is_away() {
            return true;
        }
        let bounds = Bounds::of(&self.config.limits, need.class);
        let messages = handle.reserved.load(Ordering::Relaxed) as usize;
        let bytes = handle.reserved_bytes.load(Ordering::Relaxed);
        bounds.have(&Filled::of_handle(handle, messages, bytes), need, 0)
    }

    /// Reserves room for one message in a session of another shard; unless `asks`, also beyond the
    /// bounds. Returns whether the room is reserved.
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

    /// Ends a reservation in a session. Its bytes stay in the total of all sessions, for the
    /// message in its place or for [`Self::release`].
    pub(crate) fn give_back(&self, handle: &SessionHandle, size: usize) {
        handle.reserved.fetch_sub(1, Ordering::AcqRel);
        handle.reserved_bytes.fetch_sub(size, Ordering::AcqRel);
    }
}

/// Whether a plain message with QoS above 0 can be sent to a session at once. At most `send_buffer`
/// bytes may wait before it in the connection.
#[inline(always)]
pub(super) fn takes_at_once(
    session: &Session,
    conn: &Conn,
    send_buffer: usize,
    need: Need,
) -> bool {
    session.queue.is_clear()
        && !need.throttled
        && session.replays.is_empty()
        && session.window.has_room(conn.receive_max)
        && conn.out.backlog_before(need.class) < send_buffer
        && !(need.fleeting && conn.is_behind())
}
