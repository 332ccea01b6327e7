//! Back-pressure: a receiver whose unsent bytes or queue exceed a high mark is *congested*; the
//! broker does not read from its publishers until it has caught up, or for `max_publisher_pause`. A
//! receiver that has not caught up by then is *slow*: from then on its QoS 0 messages are dropped
//! above the mark and publishers do not wait for it, until it has drained.

use std::sync::atomic::Ordering;

use super::{Conn, Event, Hub, Output, Remote, RemoteMessage};
use crate::Nanos;
use crate::base::connection::ConnId;
use crate::timers::Timer;

impl Hub {
    pub(super) fn congest(&mut self, slot: u32, now: Nanos) {
        self.congest_for(slot, self.config.max_publisher_pause, now);
    }

    /// Like [`Self::congest`], but publishers wait for `most` at most. A longer wait that has begun
    /// continues.
    pub(super) fn congest_for(&mut self, slot: u32, most: Nanos, now: Nanos) {
        let Some(conn) = self.outlets.conns.get_mut(slot) else {
            return;
        };
        if conn.slow {
            return;
        }
        let until = now + most;
        let was = std::mem::replace(&mut conn.congested, true);
        let extra = conn.extra();
        if was {
            // When the armed timer fires, it is armed again for the remaining time.
            if most > extra.congested_for {
                extra.congested_until = extra.congested_until + (most - extra.congested_for);
                extra.congested_for = most;
            }
            return;
        }
        extra.congested_until = until;
        extra.congested_for = most;
        self.stats.publisher_pauses += 1;
        if !conn.pause_armed {
            conn.pause_armed = true;
            let timer = Timer::Pause {
                slot,
                generation: conn.generation,
            };
            self.timers.arm(until, timer);
        }
        if let Some(session) = self.sessions.get(conn.session) {
            session.handle.congested.store(true, Ordering::Release);
        }
    }

    /// Makes a publisher wait for a congested local receiver.
    pub(crate) fn wait_for(&mut self, publisher: ConnId, receiver: u32) {
        let Some(conn) = self.outlets.conns.get_mut(receiver) else {
            return;
        };
        if conn.slow || conn.extra().waiters.contains(&publisher) {
            return;
        }
        conn.extra().waiters.push(publisher);
        if let Some(conn) = self.outlets.conn(publisher) {
            conn.paused += 1;
        }
    }

    /// Makes a publisher wait for a congested receiver of another shard. That shard notifies all
    /// other shards when one of its receivers is relieved.
    pub(crate) fn wait_for_remote(&mut self, publisher: ConnId) {
        if !self.outboxes.remote_waiters.contains(&publisher) {
            self.outboxes.remote_waiters.push(publisher);
            if let Some(conn) = self.outlets.conn(publisher) {
                conn.paused += 1;
            }
        }
    }

    /// Makes a publisher wait until another shard takes its messages.
    pub(crate) fn wait_for_outbox(&mut self, publisher: ConnId, shard: u16) {
        let waiters = &mut self.outboxes.list[usize::from(shard)].waiters;
        if !waiters.contains(&publisher) {
            waiters.push(publisher);
            if let Some(conn) = self.outlets.conn(publisher) {
                conn.paused += 1;
            }
        }
    }

    /// Moves the messages for another shard to the end of `list`, urgent ones first.
    pub(crate) fn take_outbox(&mut self, shard: u16, list: &mut Vec<RemoteMessage>) {
        let outbox = &mut self.outboxes.list[usize::from(shard)];
        list.append(&mut outbox.urgent);
        list.append(&mut outbox.messages);
        (outbox.bytes, outbox.asks) = (0, false);
        let waiters = std::mem::take(&mut outbox.waiters);
        self.resume(waiters);
    }

    /// Moves the urgent messages for another shard to the end of `list`.
    pub(crate) fn take_urgent_outbox(&mut self, shard: u16, list: &mut Vec<RemoteMessage>) {
        let outbox = &mut self.outboxes.list[usize::from(shard)];
        outbox.bytes -= outbox.urgent.iter().map(RemoteMessage::size).sum::<usize>();
        list.append(&mut outbox.urgent);
        let waiters = std::mem::take(&mut outbox.waiters);
        self.resume(waiters);
    }

    /// Ends one wait of each of these publishers; reads again from those that wait for nothing
    /// else.
    pub(crate) fn resume(&mut self, waiters: Vec<ConnId>) {
        for waiter in waiters {
            if let Some(conn) = self.outlets.conn(waiter) {
                conn.paused = conn.paused.saturating_sub(1);
                if conn.paused == 0 {
                    conn.resumed = true;
                    self.outlets.outputs.push(Output::Resume(waiter));
                }
            }
        }
    }

    pub(super) fn relieve(&mut self, slot: u32) {
        let Some(conn) = self.outlets.conns.get_mut(slot) else {
            return;
        };
        conn.congested = false;
        let waiters = conn.take_waiters();
        if let Some(session) = self.sessions.get(conn.session) {
            session.handle.congested.store(false, Ordering::Release);
        }
        self.resume(waiters);
        self.notify_shards_of_relief();
    }

    /// Notifies other shards, so that their publishers go on.
    pub(super) fn notify_shards_of_relief(&mut self) {
        for (shard, outbox) in self.outboxes.list.iter_mut().enumerate() {
            if shard != usize::from(self.index) {
                outbox.messages.push(RemoteMessage(Remote::Relief));
            }
        }
    }

    /// The timer of a congested receiver fires: if its publishers have waited long enough, the
    /// receiver counts as slow and they go on.
    pub(crate) fn pause_over(&mut self, slot: u32, now: Nanos) {
        let Some(conn) = self.outlets.conns.get_mut(slot) else {
            return;
        };
        conn.pause_armed = false;
        if !conn.congested {
            return;
        }
        let until = conn.extra().congested_until;
        if now < until {
            // The timer was armed for a congestion that ended.
            conn.pause_armed = true;
            let timer = Timer::Pause {
                slot,
                generation: conn.generation,
            };
            self.timers.arm(until, timer);
            return;
        }
        conn.slow = true;
        self.stats.slow_consumers += 1;
        let buffered = conn.out.backlog();
        if let Some(session) = self.sessions.get(conn.session) {
            self.outlets
                .outputs
                .push(Output::Event(Event::SlowConsumer {
                    client_id: session.handle.client_id.clone(),
                    buffered,
                    queued: session.queue.len(),
                }));
        }
        self.relieve(slot);
    }

    /// Whether a client has `limit` unsent bytes or more; then the broker does not read from it
    /// until half of them are sent.
    #[inline]
    pub(crate) fn check_unread(conn: &mut Conn, limit: usize) -> bool {
        if conn.out.backlog() < limit {
            return false;
        }
        conn.unread = true;
        conn.paused += 1;
        true
    }

    /// Reads again from a client that has read enough.
    pub(crate) fn has_read(&mut self, id: ConnId, now: Nanos) {
        let limit = self.config.limits.send_buffer;
        let Some(conn) = self.outlets.conn(id) else {
            return;
        };
        // The client is alive, although its packets are not read.
        conn.last_received = now;
        if conn.out.backlog() <= limit / 2 {
            conn.unread = false;
            self.resume(vec![id]);
        }
    }

    /// Ends congestion and slowness of a receiver that has caught up.
    #[inline]
    pub(crate) fn check_relief(&mut self, slot: u32) {
        let Some(conn) = self.outlets.conns.get_mut(slot) else {
            return;
        };
        if !conn.congested && !conn.slow {
            return;
        }
        let limits = &self.config.limits;
        let drained = conn.out.backlog() <= limits.send_buffer / 2
            && self.sessions.get(conn.session).is_none_or(|session| {
                let (throttled, throttled_bytes) = session.queue.throttled();
                session.queue.len() - throttled <= limits.max_queued_messages / 4
                    && session.queue.bytes() - throttled_bytes <= limits.max_queued_bytes / 4
                    && throttled <= limits.max_queued_messages / 8
                    && throttled_bytes <= limits.max_queued_bytes / 8
            });
        if drained {
            conn.slow = false;
            if conn.congested {
                self.relieve(slot);
            }
        }
    }
}
