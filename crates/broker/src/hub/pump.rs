//! Sends waiting messages: those in flight again, retained ones, and queued ones.

use std::sync::Arc;

use punctual_codec::{PacketType, QoS, ReasonCode};

use super::{Conn, Hub, put_publish};
use crate::base::connection::ConnId;
use crate::base::delivery::{Delivery, Load};
use crate::base::notes::Notes;
use crate::egress::{Attempt, Class, Entry, LaneLimits, Pool, Seat};
use crate::hub::outlets::Outlets;
use crate::index::delivered_qos;
use crate::journal::Journal;
use crate::journal::keeping::{Flight, Reception};
use crate::message::{Form, Messages};
use crate::retained::RetainedMatch;
use crate::sequence::Number;
use crate::session::{Session, Step, first_step};
use crate::tasks::Task;
use crate::{Budget, Directory, Nanos, Stats};

/// Unsent bytes in a connection's buffer up to which retained and queued messages are added.
const AHEAD: usize = 64 << 10;
/// The same for messages that may expire, for a client that is behind: an encoded message is sent
/// even when it has expired.
const AHEAD_FLEETING: usize = 4 << 10;
/// Largest number of retained messages fetched for a subscription at once.
const REPLAY_BATCH: usize = 256;
/// Units of work for retained messages, to find and to send them, that a call of [`Hub::pump`] may
/// do.
const AT_ONCE: u64 = 64;

impl Hub {
    /// Sends as much as a session's window and its connection's buffer allow: first redeliveries,
    /// then queued urgent messages, then retained messages for new subscriptions, then other queued
    /// messages.
    pub(crate) fn pump(&mut self, session_slot: u32, now: Nanos) {
        self.pump_within(session_slot, &mut Budget::new(AT_ONCE), now);
    }

    /// Like [`Self::pump`], with a budget for finding and sending retained messages. When the
    /// budget is spent, a task continues.
    #[expect(
        clippy::too_many_lines,
        reason = "retained and queued messages alternate, and each step needs the session, its connection and the counters"
    )]
    pub(crate) fn pump_within(&mut self, session_slot: u32, budget: &mut Budget, now: Nanos) {
        let Some(session) = self.sessions.get_mut(session_slot) else {
            return;
        };
        let Some(slot) = session.conn else {
            return;
        };
        let Some(conn) = self.outlets.conns.get_mut(slot) else {
            return;
        };
        let limit = self.config.limits.send_buffer;
        // New messages wait behind the bytes that are added here.
        let ahead = limit.min(AHEAD);
        let (mut sent, mut taken) = (false, Taken::default());
        let mut outlet = Outlet {
            messages: &mut self.messages,
            limits: &self.config.lanes,
            seat: self.outlets.shared.seat(slot),
            pool: &mut self.outlets.pool,
            stats: &mut self.stats,
            journal: &mut self.journal,
            directory: &self.directory,
            conn: conn.id(slot),
        };
        taken.resend(session, conn, &mut outlet, limit, now);
        taken.send(session, conn, &mut outlet, ahead, now);
        // Retained messages that a neighbour lacks wait for new messages.
        let waits = session.link.is_some() && !session.queue.is_empty();
        while conn.out.backlog() < ahead && !waits {
            let Some(replay) = session.replays.front_mut() else {
                break;
            };
            if replay.ready.is_empty() && replay.complete {
                if let Some(ended) = session.replays.pop_front() {
                    Journal::replayed(outlet.journal, session, &ended.filter);
                }
                continue;
            }
            if budget.is_spent() {
                if !std::mem::replace(&mut session.replay_waits, true) {
                    let (slot, session) = (session_slot, session.handle.number);
                    self.work.tasks.push(Task::Replay { slot, session });
                }
                break;
            }
            if !self.outboxes.fences.is_passed(replay.fence) {
                if !std::mem::replace(&mut session.replay_waits, true) {
                    let session = session.handle.number;
                    self.outboxes
                        .fences
                        .wait(replay.fence, session_slot, session);
                }
                break;
            }
            if replay.ready.is_empty() {
                let retained = self.directory.retained();
                let (filter, from) = (&*replay.filter, &replay.from);
                let piece = retained.scan(filter, from, REPLAY_BATCH, budget, now);
                replay.ready = piece.found.into();
                if let Some(lack) = &replay.lack {
                    replay.ready.retain(|found| {
                        let version = retained.current_version(found);
                        version.is_some_and(|version| lack.has(found.message.topic(), version))
                    });
                    if piece.next.is_none() {
                        replay.ready.extend(lack.gone(&retained, now));
                    }
                }
                drop(retained);
                // Older live messages with QoS 0 may be in transit from other shards.
                let (began, most) = (replay.began, replay.qos);
                let may_be_late = |it: &RetainedMatch| {
                    it.change > began && it.message.qos.min(most) == QoS::AtMostOnce
                };
                if replay.ready.iter().any(may_be_late) {
                    replay.fence = self.outboxes.fence(self.index);
                }
                match piece.next {
                    Some(next) => replay.from = next,
                    None => replay.complete = true,
                }
                continue;
            }
            budget.spend(1);
            let Some(found) = replay.ready.front() else {
                break;
            };
            let qos = delivered_qos(found.message.qos, replay.qos);
            let class = 1 << found.message.stamp.class() as u8;
            if qos != QoS::AtMostOnce && found.change > replay.began && session.classes & class != 0
            {
                // It was published after the subscription, and was queued or sent then.
                replay.ready.pop_front();
                continue;
            }
            if qos != QoS::AtMostOnce && !session.window.has_room(conn.receive_max) {
                break;
            }
            let Some(found) = replay.ready.pop_front() else {
                break;
            };
            let message = &found.message;
            let allowed = conn.may_receive(message.topic_bytes());
            let own = replay.no_local && message.publisher == session.handle.number;
            // A retained message that was replaced since it was fetched would arrive after its
            // successor, which was delivered when it was published.
            if !allowed || own || message.is_expired(now) {
                continue;
            }
            let checks = self.config.check_retain_source && !session.handle.link;
            let current = self
                .directory
                .retained()
                .current(&found)
                .map(|(version, author)| {
                    let author = author.filter(|_| checks);
                    (version, author.cloned())
                });
            let Some((version, author)) = current else {
                continue;
            };
            let message = found.message;
            if let Some(author) = author
                && !self.author_rights.may_publish(
                    &author,
                    message.topic(),
                    &self.directory,
                    budget,
                )
            {
                outlet.stats.dropped_not_authorized += 1;
                continue;
            }
            let missing = replay.lack.is_some();
            let ids: Option<Arc<[u32]>> = match replay.id {
                0 => missing.then(|| Notes::missing(version).ids()),
                id => Some(Arc::from([id])),
            };
            let number = match replay.numbered {
                true if missing => self.directory.new_name().map(Number::from),
                true => {
                    let most = self.config.limits.max_numbered_topics;
                    session.number(message.topic_bytes(), most)
                }
                false => None,
            };
            let entry = match qos {
                QoS::AtMostOnce => 0,
                _ => Journal::keep_retained(
                    outlet.journal,
                    &self.directory,
                    &message,
                    session,
                    Reception {
                        qos,
                        retain: true,
                        number,
                        subscription_ids: ids.as_deref().unwrap_or(&[]),
                    },
                    false,
                ),
            };
            let delivery = Delivery {
                message,
                subscription_ids: ids,
                qos,
                retain: true,
                share: 0,
                number,
                entry,
            };
            // A retained message is not urgent any more, whatever its class when it was published.
            sent |= send_delivery(delivery, Class::Normal, session, conn, &mut outlet, now);
        }
        if session.replays.is_empty() {
            taken.send(session, conn, &mut outlet, ahead, now);
        }
        let mut was_full = false;
        if taken.load.total() > 0 {
            session.share_queue_len();
            was_full = session.is_full;
        }
        if sent || taken.sent {
            Outlets::mark_dirty(conn, slot, &mut self.outlets.dirty);
        }
        if taken.urgent {
            Outlets::mark_urgent(conn, slot, &mut self.outlets.urgent);
        }
        if taken.load.total() > 0 {
            self.forget_queued(&taken.load);
        }
        if was_full {
            self.look_how_full(session_slot);
        }
    }

    /// Whether a session has messages that [`Self::pump`] could send.
    #[inline]
    pub(crate) fn has_backlog(session: &Session) -> bool {
        !session.queue.is_empty() || !session.replays.is_empty() || session.window.is_rewound()
    }
}

/// Messages that were taken from a session's queue, or sent again.
#[derive(Default)]
struct Taken {
    load: Load,
    /// Whether a message was sent.
    sent: bool,
    /// Whether an urgent message was sent.
    urgent: bool,
}

impl Taken {
    /// Sends messages that were in flight on an earlier connection again, as far as the window and
    /// `limit` bytes in the connection's buffer allow.
    fn resend(
        &mut self,
        session: &mut Session,
        conn: &mut Conn,
        outlet: &mut Outlet<'_>,
        limit: usize,
        now: Nanos,
    ) {
        while session.window.is_rewound() && conn.out.backlog() < limit {
            let Some(inflight) = session.window.next_resend(conn.receive_max, conn.link) else {
                break;
            };
            let (packet_id, step) = (inflight.packet_id, inflight.step);
            let stored = inflight.entry();
            let withheld = |it: &Delivery| !conn.may_receive(it.message.topic_bytes());
            if matches!(step, Step::Ack | Step::Rec) && inflight.delivery.is_some_and(withheld) {
                self.withhold(packet_id, step, session, conn, outlet);
                continue;
            }
            // In the lane of the first attempt: later messages in that lane must not overtake it.
            let class = inflight
                .delivery
                .map(|delivery| delivery.message.stamp.class())
                .filter(|class| class.is_urgent())
                .unwrap_or(Class::Normal);
            if let Some(journal) = outlet.journal
                && step != Step::Ack
                && journal.hold_again(outlet.conn, packet_id, stored, class)
            {
                continue;
            }
            let delivery = match (inflight.delivery, step) {
                (Some(delivery), Step::Ack | Step::Rec) => delivery,
                _ => {
                    conn.put_ack(
                        outlet.pool,
                        PacketType::PubRel,
                        packet_id,
                        ReasonCode::Success,
                    );
                    outlet.stats.packets_sent += 1;
                    self.sent = true;
                    continue;
                }
            };
            if class.is_urgent() {
                let entry = Entry {
                    delivery: delivery.clone(),
                    packet_id,
                    since: now,
                    attempt: Attempt::Redelivery,
                };
                if outlet.push(entry, conn) {
                    outlet.stats.publishes_resent += 1;
                    self.urgent = true;
                }
                continue;
            }
            let form = delivery.form(conn.version.is_v5(), packet_id, true);
            if put_publish(conn, outlet.pool, &delivery.message.parts(now), form, class) {
                outlet.stats.packets_sent += 1;
                outlet.stats.publishes_resent += 1;
                self.sent = true;
            } else {
                session.window.advance(packet_id, step, Step::Done);
                Journal::done(outlet.journal, session, stored);
                outlet.stats.inflight_messages -= 1;
                outlet.stats.dropped_too_large += 1;
            }
        }
    }

    /// Ends the delivery of a message that the client has lost the right to receive. A QoS 1
    /// message is dropped. For a QoS 2 message the broker sends PUBREL: the client may have stored
    /// the packet identifier, and would take another message with that identifier for a duplicate.
    fn withhold(
        &mut self,
        packet_id: u16,
        step: Step,
        session: &mut Session,
        conn: &mut Conn,
        outlet: &mut Outlet<'_>,
    ) {
        outlet.stats.dropped_not_authorized += 1;
        if step == Step::Ack {
            if let Some(entry) = session.window.advance(packet_id, step, Step::Done) {
                Journal::done(outlet.journal, session, entry);
                outlet.stats.inflight_messages -= 1;
            }
            return;
        }
        let entry = session.window.advance(packet_id, step, Step::Comp);
        if let Some(journal) = outlet.journal {
            journal.step(session, entry.unwrap_or(0));
        }
        let (kind, reason) = (PacketType::PubRel, ReasonCode::Success);
        conn.put_ack(outlet.pool, kind, packet_id, reason);
        outlet.stats.packets_sent += 1;
        self.sent = true;
    }

    /// Sends queued messages; only urgent ones while retained messages are to be sent to a client.
    fn send(
        &mut self,
        session: &mut Session,
        conn: &mut Conn,
        outlet: &mut Outlet<'_>,
        ahead: usize,
        now: Nanos,
    ) {
        while session.window.has_throttled_room(conn.receive_max)
            && conn.out.backlog() < ahead
            && !session.handle.holds()
            && let Some((since, delivery)) = session.queue.pop_throttled()
        {
            let open = session.window.open();
            self.send_one(since, delivery, session, conn, outlet, now);
            if session.window.open() > open {
                session.window.throttle_last();
            }
        }
        while let Some(next) = session.queue.front()
            && match next.message.stamp.class() {
                class if class.is_urgent() => {
                    next.qos > QoS::AtMostOnce || conn.out.has_room(class, outlet.limits)
                }
                _ => {
                    let first = session.replays.is_empty() || session.link.is_some();
                    let fleeting = next.message.expires != Nanos::MAX && conn.behind;
                    let ahead = if fleeting { AHEAD_FLEETING } else { ahead };
                    first && conn.out.backlog() < ahead
                }
            }
            && match next.message.stamp.class() {
                _ if next.qos == QoS::AtMostOnce => true,
                class if class.is_urgent() => {
                    session.window.has_urgent_room(conn.receive_max, conn.link)
                }
                _ => session.window.has_room(conn.receive_max),
            }
            && let Some((since, delivery)) = session.queue.pop()
        {
            self.send_one(since, delivery, session, conn, outlet, now);
        }
    }

    fn send_one(
        &mut self,
        since: Nanos,
        delivery: Delivery,
        session: &mut Session,
        conn: &mut Conn,
        outlet: &mut Outlet<'_>,
        now: Nanos,
    ) {
        self.load.add(&delivery.message);
        let class = delivery.message.stamp.class();
        if delivery.message.is_expired(now) {
            outlet.stats.expired(class);
            Journal::done(outlet.journal, session, delivery.entry);
            return;
        }
        // The message may have been queued under other rights, or at another broker.
        if !conn.may_receive(delivery.message.topic_bytes()) {
            outlet.stats.dropped_not_authorized += 1;
            Journal::done(outlet.journal, session, delivery.entry);
            return;
        }
        outlet.stats.class(class).held.record(now - since);
        if send_delivery(delivery, class, session, conn, outlet, now) {
            self.sent = true;
            self.urgent |= class.is_urgent();
        }
    }
}

/// Sends a queued or retained message; false if it was dropped, or has to wait for the commit of
/// its packet identifier.
fn send_delivery(
    delivery: Delivery,
    class: Class,
    session: &mut Session,
    conn: &mut Conn,
    parts: &mut Outlet<'_>,
    now: Nanos,
) -> bool {
    let (qos, stored) = (delivery.qos, delivery.entry);
    let packet_id = match qos {
        QoS::AtMostOnce => 0,
        _ => {
            parts.stats.inflight_messages += 1;
            session.window.push(qos)
        }
    };
    let keeps = qos != QoS::AtMostOnce && (!session.is_transient() || delivery.share != 0);
    // Not cloned if a place in the window suffices: thousands may be sent in a row.
    let own = match (keeps, class.is_urgent()) {
        (true, false) => {
            session.window.keep(delivery);
            None
        }
        (true, true) => {
            session.window.keep(delivery.clone());
            Some(delivery)
        }
        (false, _) => Some(delivery),
    };
    let flight = Flight {
        entry: stored,
        packet_id,
        qos,
        class,
    };
    if Journal::sent(parts.journal, parts.directory, session, parts.conn, flight) {
        return false;
    }
    if class.is_urgent()
        && let Some(delivery) = own
    {
        let entry = Entry {
            delivery,
            packet_id,
            since: now,
            attempt: Attempt::Queued,
        };
        return parts.push(entry, conn);
    }
    let Some(delivery) = own.as_ref().or_else(|| session.window.last()) else {
        return false;
    };
    let message = &delivery.message;
    let form = Form {
        v5: conn.version.is_v5(),
        dup: false,
        qos,
        retain: delivery.retain,
        packet_id,
        subscription_ids: delivery.ids(),
        number: delivery.number,
        alias: None,
    };
    let stats = &mut *parts.stats;
    let sent = put_publish(conn, parts.pool, &message.parts(now), form, class);
    if sent {
        stats.packets_sent += 1;
        stats.class(class).sent += 1;
        stats.published(qos, message.payload().len());
    } else {
        if qos != QoS::AtMostOnce {
            session
                .window
                .advance(packet_id, first_step(qos), Step::Done);
            Journal::done(parts.journal, session, stored);
            stats.inflight_messages -= 1;
        }
        stats.dropped_too_large += 1;
    }
    if let Some(own) = own {
        parts.messages.give_back(own.message);
    }
    sent
}

/// The parts of the hub that sending a message needs.
struct Outlet<'a> {
    messages: &'a mut Messages,
    limits: &'a LaneLimits,
    seat: Seat<'a>,
    pool: &'a mut Pool,
    stats: &'a mut Stats,
    journal: &'a mut Option<Box<Journal>>,
    directory: &'a Directory,
    conn: ConnId,
}

impl Outlet<'_> {
    /// Adds a message to the urgent lanes; false if it was dropped.
    fn push(&mut self, entry: Entry, conn: &mut Conn) -> bool {
        conn.class = conn.class.min(entry.delivery.message.stamp.class());
        conn.out
            .push(entry, self.limits, &mut self.seat, self.pool, self.stats)
    }
}
