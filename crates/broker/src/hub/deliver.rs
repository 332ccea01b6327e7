//! Delivery to the sessions of this shard: at once, or into a queue.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use punctual_codec::QoS;

use super::{Conn, Hub};
use crate::Nanos;
use crate::base::delivery::{Delivery, Load};
use crate::base::queue_full::QueueFull;
use crate::egress::{Attempt, Class, Entry, Pool, Rank, Stamp};
use crate::hub::outlets::Outlets;
use crate::hub::room::takes_at_once;
use crate::index::delivered_qos;
use crate::index::target::Target;
use crate::journal::Journal;
use crate::journal::keeping::{Flight, Keeping, Reception};
use crate::message::{Form, Parts};
use crate::packets::{Packets, Taking};
use crate::publication::{Promise, Publication};
use crate::room::Need;
use crate::sequence::Number;
use crate::session::{Step, first_step};
use crate::timers::Timer;

/// Bytes of growth of a queue's memory that count as one unit of work, as the kernel may have to
/// provide the memory.
const GROWTH: usize = 128;

impl Hub {
    /// Delivers to one local subscriber. Returns the receiver's connection if its publishers should
    /// hold back. It runs once for each receiver of each message, and every step needs the session
    /// and its connection, which a function for a step would have to look up again.
    #[inline]
    #[expect(
        clippy::too_many_lines,
        reason = "runs for each receiver of each message; a function for a step would look the session up again"
    )]
    pub(crate) fn deliver(
        &mut self,
        publication: &mut Publication<'_>,
        target: &Target,
        now: Nanos,
    ) -> Option<u32> {
        if target.no_local && publication.publisher == target.session.number {
            return None;
        }
        if publication.class_for(target) != publication.stamp.class() {
            return self.deliver_demoted(publication, target, now);
        }
        if self.links.unpacking.is_some() && self.takes_runs(target) {
            // The neighbour receives the whole run as one message.
            return None;
        }
        let session = self.sessions.get_mut(target.slot)?;
        if !Arc::ptr_eq(&session.handle, &target.session)
            || publication.relayed && session.link.is_none()
        {
            return None;
        }
        let qos = delivered_qos(publication.qos, target.qos);
        let retain = publication.retain && target.retain_as_published;
        let class = publication.stamp.class();
        if session.classes & (1 << class as u8) == 0 {
            return None;
        }
        // A shared subscription needs no history: one member in the whole mesh receives the
        // message.
        if let Some(history) = session.history.as_mut().filter(|_| target.share == 0)
            && let Some(name) = publication.named(&self.directory)
        {
            let once = qos == QoS::ExactlyOnce;
            if !history.note(name.name_key().unwrap_or(0), once) {
                return None;
            }
            if history
                .log
                .as_mut()
                .is_some_and(|log| log.is_to_be_listed())
            {
                self.links.moves.history_grew.push(target.slot);
            }
        }
        let number = match target.numbered {
            // Urgent messages have an order of their own.
            true if session.link.is_some() => match class.is_urgent() {
                true => publication.named(&self.directory).map(Number::alone),
                false => publication.named(&self.directory),
            },
            true => {
                let most = self.config.limits.max_numbered_topics;
                session.number(publication.parts.topic, most)
            }
            false => None,
        };
        // The copy that is queued for a neighbour that is away suffices.
        let receive_max = || Some(self.outlets.conns.get(session.conn?)?.receive_max);
        if session.link.is_some() && session.keeps_copy(number, receive_max()) {
            return None;
        }
        if qos != QoS::AtMostOnce {
            return self.deliver_acknowledged(publication, target, qos, retain, number, now);
        }
        let Some(slot) = session.conn else {
            if self.config.queue_qos0_offline {
                self.enqueue(publication, target, qos, retain, number, now);
            } else {
                self.stats.dropped_offline += 1;
            }
            return None;
        };
        let conn = self.outlets.conns.get_mut(slot)?;
        let waits = match class.is_urgent() {
            true => session.queue.has_qos0() && !session.queue.has_no_urgent(),
            false => {
                let fleeting = publication.expires != Nanos::MAX && session.link.is_none();
                session.queue.has_qos0() || fleeting && conn.is_behind()
            }
        };
        if waits {
            let high = self.config.limits.send_buffer;
            let waiting = conn.out.backlog_before(class) + session.queue.bytes();
            if conn.slow && waiting >= high {
                self.stats.too_slow(class, 1);
                return None;
            }
            let receiver = self.enqueue(publication, target, qos, retain, number, now);
            if receiver.is_none() && waiting >= high {
                self.congest(slot, now);
                return Some(slot);
            }
            return receiver;
        }
        if conn.receive_max == 0 {
            // A link that carries no messages now.
            self.stats.dropped_offline += 1;
            return None;
        }
        if class.is_urgent() {
            let delivery = Delivery {
                message: publication.message(&mut self.messages),
                subscription_ids: target.subscription_ids.clone(),
                qos,
                retain,
                share: target.share,
                number,
                entry: 0,
            };
            self.push_urgent(slot, delivery, 0, Attempt::First, now);
            return None;
        }
        let high = self.config.limits.send_buffer;
        if conn.slow && conn.out.backlog_before(class) >= high {
            self.stats.too_slow(class, 1);
            return None;
        }
        if class == Class::Normal && !retain {
            let frame = publication.frame;
            return self.put_at_once(slot, &publication.parts, frame, target, number, now);
        }
        let form = Form {
            v5: conn.version.is_v5(),
            dup: false,
            qos,
            retain,
            packet_id: 0,
            subscription_ids: target.ids(),
            number,
            alias: None,
        };
        let sent = put_publish(
            conn,
            &mut self.outlets.pool,
            &publication.parts,
            form,
            class,
        );
        let size = publication.parts.payload.len();
        self.note_put(slot, sent.then_some(size), class, now)
    }

    /// Writes a QoS 0 message without the retain flag to a connection, in the lane of plain
    /// messages. Returns like [`Self::deliver`].
    #[inline(never)]
    pub(crate) fn put_at_once(
        &mut self,
        slot: u32,
        parts: &Parts<'_>,
        frame: Option<(&[u8], bool)>,
        target: &Target,
        number: Option<Number>,
        now: Nanos,
    ) -> Option<u32> {
        let conn = self.outlets.conns.get_mut(slot)?;
        let v5 = conn.version.is_v5();
        let sent = match frame {
            Some((frame, frame_v5))
                if frame_v5 == v5
                    && target.subscription_ids.is_none()
                    && number.is_none()
                    && conn.alias_max == 0
                    && frame.len() <= conn.max_packet as usize =>
            {
                let buffer = conn.out.plain().tail(&mut self.outlets.pool);
                buffer.extend_from_slice(frame);
                true
            }
            _ => {
                let form = Form {
                    v5,
                    dup: false,
                    qos: QoS::AtMostOnce,
                    retain: false,
                    packet_id: 0,
                    subscription_ids: target.ids(),
                    number,
                    alias: None,
                };
                put_publish(conn, &mut self.outlets.pool, parts, form, Class::Normal)
            }
        };
        let size = parts.payload.len();
        self.note_put(slot, sent.then_some(size), Class::Normal, now)
    }

    /// Counts a QoS 0 message that was written to a connection. `sent` is its payload in bytes;
    /// `None` if the packet is too large for the client. Returns like [`Self::deliver`].
    #[inline]
    fn note_put(
        &mut self,
        slot: u32,
        sent: Option<usize>,
        class: Class,
        now: Nanos,
    ) -> Option<u32> {
        let Some(size) = sent else {
            self.stats.dropped_too_large += 1;
            return None;
        };
        self.stats.packets_sent += 1;
        self.stats.publishes_sent_qos0 += 1;
        self.stats.publish_bytes_sent += size as u64;
        self.stats.class(class).sent += 1;
        let conn = self.outlets.conns.get_mut(slot)?;
        let full = conn.out.backlog_before(class) >= self.config.limits.send_buffer;
        self.sampling.given(conn.id(slot), class);
        Outlets::mark_dirty(conn, slot, &mut self.outlets.dirty);
        if full {
            self.congest(slot, now);
            return Some(slot);
        }
        None
    }

    /// Delivers a real-time message as a plain one, to a receiver with another class for it.
    #[inline(never)]
    fn deliver_demoted(
        &mut self,
        publication: &mut Publication<'_>,
        target: &Target,
        now: Nanos,
    ) -> Option<u32> {
        let mut plain = Publication {
            parts: publication.parts.clone(),
            stamp: Stamp::PLAIN,
            watch: None,
            author: publication.author.clone(),
            message: None,
            sole: false,
            keeping: Keeping {
                // With another stamp the store needs another content.
                written: false,
                ..match publication.keeping.entry {
                    0 => self.keeping(publication.keeping.durability, true),
                    _ => publication.keeping,
                }
            },
            ..*publication
        };
        let congested = self.deliver(&mut plain, target, now);
        (publication.promise, publication.reserved) = (plain.promise, plain.reserved);
        publication.keeping.entry = plain.keeping.entry;
        publication.keeping.awaited |= plain.keeping.awaited;
        publication.keeping.firm |= plain.keeping.awaited;
        congested
    }

    /// Adds a message to the urgent lanes of a connection.
    #[inline(never)]
    pub(crate) fn push_urgent(
        &mut self,
        slot: u32,
        delivery: Delivery,
        packet_id: u16,
        attempt: Attempt,
        now: Nanos,
    ) {
        let Some(conn) = self.outlets.conns.get_mut(slot) else {
            return;
        };
        let class = delivery.message.stamp.class();
        let entry = Entry {
            delivery,
            packet_id,
            since: now,
            attempt,
        };
        let limits = &self.config.lanes;
        let seat = &mut self.outlets.shared.seat(slot);
        if conn
            .out
            .push(entry, limits, seat, &mut self.outlets.pool, &mut self.stats)
        {
            conn.class = conn.class.min(class);
            self.sampling.given(conn.id(slot), class);
            Outlets::mark_urgent(conn, slot, &mut self.outlets.urgent);
            Outlets::mark_dirty(conn, slot, &mut self.outlets.dirty);
        }
    }

    /// How a subscriber accepts a run of encoded plain publications of that protocol version;
    /// `None` if it cannot receive the bytes as they are.
    #[inline]
    pub(crate) fn takes_packets(&self, target: &Target, v5: bool) -> Option<Taking> {
        if target.subscription_ids.is_some() || target.numbered {
            return None;
        }
        let any = Taking {
            other_version: false,
            most: u32::MAX,
        };
        let Some(session) = self.session_of(target) else {
            return Some(any);
        };
        let Some(slot) = session.conn else {
            return (!self.config.queue_qos0_offline).then_some(any);
        };
        if session.queue.has_qos0() {
            return None;
        }
        let Some(conn) = self.outlets.conns.get(slot) else {
            return Some(any);
        };
        let other_version = conn.v5() != v5;
        let taking = Taking {
            other_version,
            // For MQTT 5, the length of the properties is added, and perhaps one more byte of the
            // remaining length.
            most: match other_version && !v5 {
                true => conn.max_packet.saturating_sub(2),
                false => conn.max_packet,
            },
        };
        (conn.alias_max == 0).then_some(taking)
    }

    /// Delivers a run of plain publications to a local subscriber for which [`Self::takes_packets`]
    /// is not `None`. Returns like [`Self::deliver`].
    #[inline]
    pub(crate) fn deliver_run(
        &mut self,
        run: &Packets<'_>,
        target: &Target,
        publisher: u64,
        now: Nanos,
    ) -> Option<u32> {
        if target.no_local && publisher == target.session.number {
            return None;
        }
        let session = self.session_of(target)?;
        if session.classes & (1 << Class::Normal as u8) == 0 {
            return None;
        }
        let Some(slot) = session.conn else {
            self.stats.dropped_offline += run.messages;
            return None;
        };
        let conn = self.outlets.conns.get_mut(slot)?;
        let high = self.config.limits.send_buffer;
        if conn.slow && conn.out.backlog_before(Class::Normal) >= high {
            self.stats.too_slow(Class::Normal, run.messages);
            return None;
        }
        let bytes = run.bytes(conn.v5());
        conn.out
            .plain()
            .tail(&mut self.outlets.pool)
            .extend_from_slice(bytes);
        self.stats.packets_sent += run.messages;
        self.stats.publishes_sent_qos0 += run.messages;
        self.stats.publish_bytes_sent += run.payload as u64;
        self.stats.class(Class::Normal).sent += run.messages;
        let full = conn.out.backlog_before(Class::Normal) >= high;
        self.sampling.given(conn.id(slot), Class::Normal);
        Outlets::mark_dirty(conn, slot, &mut self.outlets.dirty);
        if full {
            self.congest(slot, now);
            return Some(slot);
        }
        None
    }

    /// Delivers with QoS 1 or 2: sends at once if the window has room and the queue is empty, and
    /// queues otherwise.
    #[inline]
    pub(crate) fn deliver_acknowledged(
        &mut self,
        publication: &mut Publication<'_>,
        target: &Target,
        qos: QoS,
        retain: bool,
        number: Option<Number>,
        now: Nanos,
    ) -> Option<u32> {
        let class = publication.stamp.class();
        if class.is_urgent() {
            return self.deliver_urgent_acknowledged(publication, target, qos, retain, number, now);
        }
        let mut need = publication.need(target);
        let session = self.sessions.get_mut(target.slot)?;
        need.throttled |= publication.is_behind(target, &session.queue);
        let send_buffer = self.config.limits.send_buffer;
        if let Some(slot) = session.conn
            && let Some(conn) = self.outlets.conns.get_mut(slot)
            && takes_at_once(session, conn, send_buffer, need)
        {
            let reception = Reception {
                qos,
                retain,
                number,
                subscription_ids: target.ids(),
            };
            let (journal, directory) = (&mut self.journal, &self.directory);
            let next_id = session.window.next_id();
            let messages = &mut self.messages;
            let mut entry =
                Journal::keep_alone(journal, directory, publication, messages, session, next_id);
            let is_said = entry != 0;
            if !is_said {
                entry = Journal::keep(journal, directory, publication, session, reception);
            }
            let packet_id = session.window.push(qos);
            if !session.is_transient() || target.share != 0 {
                session.window.keep(Delivery {
                    message: publication.last_message(&mut self.messages),
                    subscription_ids: target.subscription_ids.clone(),
                    qos,
                    retain,
                    share: target.share,
                    number,
                    entry,
                });
            }
            let flight = Flight {
                entry,
                packet_id,
                qos,
                class,
            };
            if !is_said && Journal::sent(journal, directory, session, conn.id(slot), flight) {
                self.stats.inflight_messages += 1;
                return None;
            }
            let form = Form {
                v5: conn.version.is_v5(),
                dup: false,
                qos,
                retain,
                packet_id,
                subscription_ids: target.ids(),
                number,
                alias: None,
            };
            if put_publish(
                conn,
                &mut self.outlets.pool,
                &publication.parts,
                form,
                class,
            ) {
                self.stats.packets_sent += 1;
                self.stats.published(qos, publication.parts.payload.len());
                self.stats.class(class).sent += 1;
                self.stats.inflight_messages += 1;
                self.sampling.given(conn.id(slot), class);
                Outlets::mark_dirty(conn, slot, &mut self.outlets.dirty);
            } else {
                let first = first_step(qos);
                session.window.advance(packet_id, first, Step::Done);
                self.stats.dropped_too_large += 1;
                Journal::done(journal, session, entry);
            }
            return None;
        }
        self.enqueue(publication, target, qos, retain, number, now)
    }

    #[inline(never)]
    fn deliver_urgent_acknowledged(
        &mut self,
        publication: &mut Publication<'_>,
        target: &Target,
        qos: QoS,
        retain: bool,
        number: Option<Number>,
        now: Nanos,
    ) -> Option<u32> {
        let session = self.sessions.get(target.slot)?;
        if self.sends_urgent_at_once(session)
            && let Some(slot) = session.conn
            && let Some(session) = self.sessions.get_mut(target.slot)
        {
            let reception = Reception {
                qos,
                retain,
                number,
                subscription_ids: target.ids(),
            };
            let (journal, directory) = (&mut self.journal, &self.directory);
            let entry = Journal::keep(journal, directory, publication, session, reception);
            let delivery = Delivery {
                message: publication.message(&mut self.messages),
                subscription_ids: target.subscription_ids.clone(),
                qos,
                retain,
                share: target.share,
                number,
                entry,
            };
            let packet_id = session.window.push(qos);
            if !session.is_transient() || target.share != 0 {
                session.window.keep(delivery.clone());
            }
            self.stats.inflight_messages += 1;
            let class = publication.stamp.class();
            let flight = Flight {
                entry,
                packet_id,
                qos,
                class,
            };
            let conn = self.outlets.conns.get(slot)?;
            if !Journal::sent(journal, directory, session, conn.id(slot), flight) {
                self.push_urgent(slot, delivery, packet_id, Attempt::First, now);
            }
            return None;
        }
        self.enqueue(publication, target, qos, retain, number, now)
    }

    /// Reserves room for a message in the session of its only receiver, or refuses the message.
    /// Returns whether there is room.
    fn make_promise(
        &mut self,
        publication: &mut Publication<'_>,
        target: &Target,
        need: Need,
        number: Option<Number>,
    ) -> bool {
        let mut reserved = 0;
        let room = self.promise(target, need, 0, &mut reserved);
        publication.reserved = reserved;
        publication.promise = match room {
            true => Promise::Made,
            false => Promise::Refused,
        };
        // The publisher is notified; the receiver's sequence number is taken back.
        if let (false, Some(number)) = (room, number)
            && let Some(session) = self.sessions.get_mut(target.slot)
            && let Some(sequences) = &mut session.sequences
        {
            sequences.take_back(publication.parts.topic, number);
        }
        room
    }

    /// Applies the policy for a full queue. Returns whether there is room for the message
    /// afterwards.
    fn find_room(
        &mut self,
        policy: QueueFull,
        target: &Target,
        (need, qos, rank): (Need, QoS, Rank),
        now: Nanos,
    ) -> bool {
        match policy {
            QueueFull::DropOldest => self.make_room(target, (need, qos), rank, now),
            // With a policy that refuses, the publisher was refused before; a message in this
            // branch is a will, or another message that needs no answer.
            QueueFull::DropNew | QueueFull::Refuse | QueueFull::Hold => false,
            QueueFull::Disconnect => {
                self.end_overflowing(target.slot, now);
                false
            }
        }
    }

    /// Puts a message into a session's queue; applies the policy if that is full. Returns the
    /// receiver's connection if its publishers should hold back.
    pub(super) fn enqueue(
        &mut self,
        publication: &mut Publication<'_>,
        target: &Target,
        qos: QoS,
        retain: bool,
        number: Option<Number>,
        now: Nanos,
    ) -> Option<u32> {
        let mut need = publication.need(target);
        let Need { class, size, .. } = need;
        if qos != QoS::AtMostOnce && !class.is_urgent() {
            let queue = &self.sessions.get(target.slot)?.queue;
            need.throttled |= publication.is_behind(target, queue);
        }
        if target.session.is_away() && !self.queue_has_room(target, need) {
            self.note_dropped(target.slot, class, now);
            return None;
        }
        let config = &self.config;
        let policy = config.queue_full_of(&target.session, publication.queue_full);
        if publication.promise == Promise::Due
            && qos != QoS::AtMostOnce
            && !self.make_promise(publication, target, need, number)
        {
            return None;
        }
        let is_promised = publication.promise == Promise::Made && qos != QoS::AtMostOnce;
        let promised = is_promised && policy.refuses();
        if !promised && !self.queue_has_room(target, need) {
            let rank = publication.stamp.rank;
            let has_room = self.find_room(policy, target, (need, qos, rank), now);
            if !has_room {
                self.note_dropped(target.slot, class, now);
                return None;
            }
        }
        let session = self.sessions.get_mut(target.slot)?;
        let reception = Reception {
            qos,
            retain,
            number,
            subscription_ids: target.ids(),
        };
        let entry = match qos {
            // QoS 0 messages are not stored.
            QoS::AtMostOnce => 0,
            _ => {
                let (journal, directory) = (&mut self.journal, &self.directory);
                let messages = &mut self.messages;
                match Journal::keep_alone(journal, directory, publication, messages, session, 0) {
                    0 => Journal::keep(journal, directory, publication, session, reception),
                    entry => entry,
                }
            }
        };
        let delivery = Delivery {
            message: publication.last_message(&mut self.messages),
            subscription_ids: target.subscription_ids.clone(),
            qos,
            retain,
            share: target.share,
            number,
            entry,
        };
        let expires = delivery.message.expires;
        let load = Load::of(&delivery.message);
        let reserved = if promised {
            publication.reserved.min(size)
        } else {
            0
        };
        publication.reserved -= reserved;
        let session = self.sessions.get_mut(target.slot)?;
        self.work.offered += (session.queue.growth() / GROWTH) as u64;
        match need.throttled {
            true => session.queue.push_throttled(delivery, now),
            false => session.queue.push(delivery, now),
        }
        session.share_queue_len();
        self.fullest.see(target.slot, session.queue.bytes());
        self.stats.queued(&load);
        let held = need.throttled && target.session.holds();
        self.stats.publishes_throttled += u64::from(need.throttled && !held);
        self.stats.publishes_held += u64::from(held);
        // Almost always its room was reserved, and so counted, before.
        if reserved < size {
            self.directory
                .queued_bytes
                .fetch_add(size - reserved, Ordering::Relaxed);
        }
        if session.conn.is_none() {
            self.queued_while_away(target.slot, expires, now);
        }
        let session = self.sessions.get_mut(target.slot)?;
        let slot = session.conn.filter(|_| !session.handle.is_away());
        let (throttled, throttled_bytes) = session.queue.throttled();
        let (len, bytes) = match need.throttled {
            // Half of the queue may be held back.
            true => (2 * throttled, 2 * throttled_bytes),
            false => (
                session.queue.len() - throttled,
                session.queue.bytes() - throttled_bytes,
            ),
        };
        let half = self.config.limits.max_queued_messages / 2;
        let is_half_full = len >= half.max(1) || bytes >= self.config.limits.max_queued_bytes / 2;
        if target.session.link && is_half_full {
            self.look_at_throttles(now);
        }
        if need.throttled {
            // More held messages would have no room, or take the room of the copies that they wait
            // for.
            let limits = &self.config.limits;
            let is_much = throttled >= (limits.max_queued_messages / 4).max(1)
                || throttled_bytes >= limits.max_queued_bytes / 4;
            if is_much && held {
                self.end_hold(target.slot, now);
            }
            self.pump(target.slot, now);
        }
        if is_half_full && policy.refuses() && !target.session.link {
            self.look_how_full(target.slot);
        }
        let slot = slot.filter(|_| is_half_full)?;
        match policy {
            QueueFull::Hold => self.congest_for(slot, self.config.max_publisher_hold, now),
            _ => self.congest(slot, now),
        }
        Some(slot)
    }

    /// The policy `disconnect`: a timer ends the session, because the caller is using its
    /// subscriptions.
    pub(super) fn end_overflowing(&mut self, slot: u32, now: Nanos) {
        if let Some(session) = self.sessions.get_mut(slot) {
            session.expiry = 0;
            let timer = Timer::SessionExpiry {
                slot,
                epoch: session.epoch,
            };
            self.timers.arm(now, timer);
        }
    }

    /// Adds messages that were put into a queue to the totals.
    pub(crate) fn note_queued(&mut self, come: &Load) {
        self.stats.queued(come);
        let queued = &self.directory.queued_bytes;
        queued.fetch_add(come.bytes, Ordering::Relaxed);
    }

    /// A session without a connection has queued a message that expires at `expires`.
    fn queued_while_away(&mut self, slot: u32, expires: Nanos, now: Nanos) {
        let Some(session) = self.sessions.get_mut(slot) else {
            return;
        };
        if session.sweep_by(expires) {
            let epoch = session.epoch;
            let timer = Timer::Sweep { slot, epoch };
            self.timers.arm(session.sweep_at, timer);
        }
        if session.is_stub() {
            self.stub_has_queued(slot, now);
        }
    }

    /// Subtracts messages that left a queue from the totals.
    pub(crate) fn forget_queued(&mut self, gone: &Load) {
        self.stats.left_queue(gone);
        self.directory
            .queued_bytes
            .fetch_sub(gone.bytes, Ordering::Relaxed);
    }
}

/// Appends a PUBLISH, with a topic alias if the client accepts them; false if the packet is too
/// large for the client.
#[inline]
pub(crate) fn put_publish(
    conn: &mut Conn,
    pool: &mut Pool,
    parts: &Parts<'_>,
    mut form: Form<'_>,
    class: Class,
) -> bool {
    if class == Class::Bulk {
        // An alias is valid only for packets that are written later, so other lanes use none.
        let max = conn.max_packet;
        return parts.put(&form, max, conn.out.bulk(pool), pool);
    }
    if conn.alias_max > 0 {
        let aliases = &mut conn.extra.get_or_insert_default().aliases_out;
        let known = aliases.get(parts.topic);
        let number = form.number;
        if known.is_some() {
            form.number = number.map(|number| aliases.shorten(number));
        }
        let next = || {
            let len = aliases.len();
            (len < usize::from(conn.alias_max)).then(|| len as u16 + 1)
        };
        if let Some(alias) = known.or_else(next) {
            form.alias = Some((alias, known.is_some()));
            let sent = parts.put(&form, conn.max_packet, conn.out.plain(), pool);
            if sent && known.is_none() {
                aliases.insert(parts.topic);
            }
            if let (true, Some(number)) = (sent, number) {
                aliases.wrote(number);
            }
            return sent;
        }
    }
    parts.put(&form, conn.max_packet, conn.out.plain(), pool)
}
