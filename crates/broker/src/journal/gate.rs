//! Packets that wait until what they say is on disk.

use punctual_codec::{Ack, Packet, PacketType, PropertyBuf, PropertyId, QoS, ReasonCode};

use super::{HELD, Journal, StoreTrouble};
use crate::Nanos;
use crate::egress::Class;
use crate::hub::{ConnId, Hub, count_publish, put_publish};
use crate::message::Form;
use crate::session::{Delivery, Step};

/// A packet that waits.
#[derive(Debug)]
pub(crate) struct Held {
    ticket: u64,
    /// Whether it waits for a commit, and not only for its turn.
    uncertain: bool,
    conn: ConnId,
    what: What,
}

/// How many answers to a connection wait, by what has to keep its order.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct HeldAnswers([u32; 4]);

impl HeldAnswers {
    /// Others of the same place must not overtake, except for those in the last
    /// one (MQTT 5, 4.6).
    fn place(kind: PacketType) -> usize {
        match kind {
            PacketType::PubAck => 0,
            PacketType::PubRec => 1,
            PacketType::PubRel => 2,
            _ => 3,
        }
    }

    /// Whether an answer of that kind has to wait for others.
    fn are_before(&self, kind: PacketType) -> bool {
        let place = Self::place(kind);
        place < 3 && self.0[place] > 0
    }

    fn all(&self) -> u32 {
        self.0.iter().sum()
    }

    fn add(&mut self, kind: PacketType) {
        self.0[Self::place(kind)] += 1;
    }

    fn remove(&mut self, kind: PacketType) {
        self.0[Self::place(kind)] -= 1;
    }
}

/// Which packet.
#[derive(Debug)]
pub(crate) enum What {
    /// An acknowledgement without properties.
    Ack {
        kind: PacketType,
        packet_id: u16,
        reason: ReasonCode,
    },
    /// An encoded packet; its kind, its identifier, and whether it says that
    /// something was done.
    Encoded {
        kind: PacketType,
        packet_id: u16,
        success: bool,
        bytes: Box<[u8]>,
    },
    /// The PUBLISH of a QoS 2 message in flight.
    Publish {
        packet_id: u16,
        class: Class,
        dup: bool,
    },
    /// CONNACK, and with it everything that comes after it: the connection is
    /// corked. Whether its session is new.
    Connection { new: bool },
}

impl What {
    /// Of which kind it is, if it is an answer.
    fn answer(&self) -> Option<PacketType> {
        match self {
            Self::Ack { kind, .. } | Self::Encoded { kind, .. } => Some(*kind),
            _ => None,
        }
    }

    /// Packet identifier, for a PUBACK that says that a message was accepted.
    fn accepted(&self) -> Option<u16> {
        match self {
            Self::Ack {
                kind: PacketType::PubAck,
                packet_id,
                reason,
            } if !reason.is_error() => Some(*packet_id),
            Self::Encoded {
                kind: PacketType::PubAck,
                packet_id,
                success: true,
                ..
            } => Some(*packet_id),
            _ => None,
        }
    }
}

impl Journal {
    /// Holds a packet until a ticket is committed, and all before it.
    fn hold(&mut self, ticket: u64, conn: ConnId, what: What) {
        let last = self.gate.back().map_or(0, |held| held.ticket);
        self.gate.push_back(Held {
            ticket: ticket.max(last),
            uncertain: !self.is_committed(ticket),
            conn,
            what,
        });
    }

    /// Holds the PUBLISH of a message in flight until what was emitted last is
    /// committed.
    pub(super) fn hold_publish(&mut self, conn: ConnId, packet_id: u16, class: Class) {
        let what = What::Publish {
            packet_id,
            class,
            dup: false,
        };
        self.hold(self.latest(), conn, what);
    }

    /// Holds what is sent again while commits fail: perhaps it is what they
    /// would say. False if it may be sent.
    pub(crate) fn hold_again(&mut self, conn: ConnId, packet_id: u16, entry: u64) -> bool {
        let hold = self.is_failing() && entry != 0;
        if hold {
            let what = What::Publish {
                packet_id,
                class: Class::Normal,
                dup: true,
            };
            self.hold(self.latest(), conn, what);
        }
        hold
    }
}

impl Hub {
    /// Sends an acknowledgement when what a ticket stands for is committed, and
    /// after those of its kind that wait already; at once with `None` and none
    /// that waits.
    #[inline]
    pub(crate) fn answer(
        &mut self,
        slot: u32,
        kind: PacketType,
        packet_id: u16,
        reason: ReasonCode,
        after: Option<u64>,
    ) {
        if self.journal.is_some() && self.must_hold(slot, kind, after) {
            let what = What::Ack {
                kind,
                packet_id,
                reason,
            };
            return self.hold(slot, after, what);
        }
        self.send_ack(slot, kind, packet_id, reason);
    }

    /// The same for a packet with properties; `about` is its kind, its
    /// identifier, and whether it says that something was done.
    pub(crate) fn answer_with(
        &mut self,
        slot: u32,
        packet: &Packet<'_>,
        about: (PacketType, u16, bool),
        after: Option<u64>,
    ) {
        let (kind, packet_id, success) = about;
        if self.journal.is_none() || !self.must_hold(slot, kind, after) {
            return self.send(slot, packet);
        }
        let Some(conn) = self.conns.get(slot) else {
            return;
        };
        let mut bytes = Vec::new();
        let encoded = packet.encode(conn.version, &mut bytes);
        if encoded.is_err() || bytes.len() > conn.max_packet as usize {
            return;
        }
        let what = What::Encoded {
            kind,
            packet_id,
            success,
            bytes: bytes.into(),
        };
        self.hold(slot, after, what);
    }

    fn must_hold(&self, slot: u32, kind: PacketType, after: Option<u64>) -> bool {
        let open = |ticket| {
            let journal = self.journal.as_ref();
            journal.is_some_and(|journal| !journal.is_committed(ticket))
        };
        let conn = self.conns.get(slot);
        after.is_some_and(open) || conn.is_some_and(|conn| conn.held.are_before(kind))
    }

    fn hold(&mut self, slot: u32, after: Option<u64>, what: What) {
        let (Some(conn), Some(journal)) = (self.conns.get_mut(slot), &mut self.journal) else {
            return;
        };
        let id = ConnId {
            slot,
            generation: conn.generation,
        };
        if let Some(kind) = what.answer() {
            conn.held.add(kind);
        }
        let many = conn.held.all() >= HELD;
        journal.hold(after.unwrap_or(0), id, what);
        if many {
            self.wait_for_commit(id);
        }
    }

    /// Lets nothing leave to a connection until what has been emitted is
    /// committed.
    pub(crate) fn cork(&mut self, slot: u32, ticket: u64, new: bool) {
        if let Some(conn) = self.conns.get_mut(slot) {
            conn.corked = true;
            self.hold(slot, Some(ticket), What::Connection { new });
        }
    }

    /// Does not read from a publisher until commits have caught up.
    pub(crate) fn wait_for_commit(&mut self, id: ConnId) {
        let Some(journal) = &mut self.journal else {
            return;
        };
        if !journal.waiters.contains(&id) {
            journal.waiters.push(id);
            if let Some(conn) = self.conn(id) {
                conn.paused += 1;
            }
        }
    }

    /// Holds a publisher back whose messages are not committed as fast as they
    /// come.
    pub(crate) fn pace(&mut self, id: ConnId, class: Class) {
        let Some(journal) = &self.journal else {
            return;
        };
        let max = self.config.durability.max_uncommitted;
        let urgent = matches!(class, Class::RealTime | Class::Priority);
        let max = if urgent { max.saturating_mul(2) } else { max };
        // Who is refused need not wait.
        if journal.uncommitted() >= max && journal.failed.is_none() {
            self.stats.store_pauses += 1;
            self.wait_for_commit(id);
        }
    }

    /// Everything up to `ticket` is committed: what waited for it leaves.
    pub(crate) fn committed(&mut self, ticket: u64, now: Nanos) {
        let Some(journal) = &mut self.journal else {
            return;
        };
        let troubled = journal.failed.is_some();
        journal.commit(ticket);
        let committed = journal.committed;
        while let Some(journal) = &mut self.journal
            && let Some(held) = journal.gate.pop_front_if(|held| held.ticket <= committed)
        {
            self.let_go(held, now);
        }
        if troubled {
            self.catch_up(now);
        }
        let max = self.config.durability.max_uncommitted;
        if let Some(journal) = &mut self.journal
            && journal.uncommitted() <= max / 2
            && !journal.waiters.is_empty()
        {
            let waiters = std::mem::take(&mut journal.waiters);
            self.resume(waiters);
        }
    }

    fn let_go(&mut self, held: Held, now: Nanos) {
        let Held { conn: id, what, .. } = held;
        let conn = self.conns.get_mut(id.slot);
        let Some(conn) = conn.filter(|conn| conn.generation == id.generation) else {
            return;
        };
        if let Some(kind) = what.answer() {
            conn.held.remove(kind);
        }
        match what {
            What::Ack {
                kind,
                packet_id,
                reason,
            } => self.send_ack(id.slot, kind, packet_id, reason),
            What::Encoded { bytes, .. } => self.send_bytes(id.slot, &bytes),
            What::Publish {
                packet_id,
                class,
                dup,
            } => self.send_held(id.slot, packet_id, class, dup, now),
            What::Connection { .. } => {
                conn.corked = false;
                Self::mark_dirty(conn, id.slot, &mut self.dirty);
                if conn.out.rank().is_some_and(|rank| rank.class.is_urgent()) {
                    Self::mark_urgent(conn, id.slot, &mut self.urgent);
                }
            }
        }
    }

    fn send_bytes(&mut self, slot: u32, bytes: &[u8]) {
        if let Some(conn) = self.conns.get_mut(slot) {
            conn.out
                .control(&mut self.pool, |buffer| buffer.extend_from_slice(bytes));
            self.stats.packets_sent += 1;
            Self::mark_dirty(conn, slot, &mut self.dirty);
        }
    }

    /// Sends the PUBLISH of a message whose packet identifier is on disk.
    fn send_held(&mut self, slot: u32, packet_id: u16, class: Class, dup: bool, now: Nanos) {
        let Some(conn) = self.conns.get_mut(slot) else {
            return;
        };
        let Some(session) = self.sessions.get_mut(conn.session) else {
            return;
        };
        let Some(inflight) = session.window.in_flight(packet_id) else {
            return;
        };
        if inflight.step == Step::Comp {
            // Held with its PUBREL, which was to be sent again.
            return self.send_ack(slot, PacketType::PubRel, packet_id, ReasonCode::Success);
        }
        let (Some(delivery), Step::Rec) = (&inflight.delivery, inflight.step) else {
            return;
        };
        if class.is_urgent() {
            let delivery = Delivery::clone(delivery);
            return self.push_urgent(slot, delivery, packet_id, now);
        }
        let form = Form {
            v5: conn.version.is_v5(),
            dup,
            qos: delivery.qos,
            retain: delivery.retain,
            packet_id,
            subscription_ids: delivery.subscription_ids.as_deref().unwrap_or(&[]),
            number: delivery.number,
            alias: None,
        };
        let parts = delivery.message.parts(now);
        if put_publish(conn, &mut self.pool, &parts, form, class) {
            self.stats.packets_sent += 1;
            self.stats.class(class).sent += 1;
            count_publish(
                &mut self.stats,
                QoS::ExactlyOnce,
                delivery.message.payload().len(),
            );
            Self::mark_dirty(conn, slot, &mut self.dirty);
        } else {
            let entry = session.window.advance(packet_id, Step::Rec, Step::Done);
            self.stats.inflight_messages -= 1;
            self.stats.dropped_too_large += 1;
            Journal::done(&mut self.journal, session, entry.unwrap_or(0));
        }
    }

    /// A commit failed, and is tried again until it succeeds. Who can be told
    /// that a message may be lost is told; the others wait. Returns clients that
    /// were connecting, and whether their sessions are new and would not survive.
    pub(crate) fn store_failed(
        &mut self,
        trouble: StoreTrouble,
        now: Nanos,
    ) -> Vec<(ConnId, bool)> {
        let Some(journal) = &mut self.journal else {
            return Vec::new();
        };
        journal.failed = Some(trouble);
        let waiters = std::mem::take(&mut journal.waiters);
        let held = std::mem::take(&mut journal.gate);
        let mut connecting = Vec::new();
        for held in held {
            if let What::Connection { new } = held.what {
                connecting.push((held.conn, new));
            } else if let Some(held) = self.refuse_held(held, trouble, now)
                && let Some(journal) = &mut self.journal
            {
                journal.gate.push_back(held);
            }
        }
        self.resume(waiters);
        connecting
    }

    /// Refuses what can be refused, and lets go what only waited for its turn
    /// behind that; returns the rest.
    fn refuse_held(&mut self, held: Held, trouble: StoreTrouble, now: Nanos) -> Option<Held> {
        let id = held.conn;
        let conn = self.conn(id)?;
        // With QoS 2, a refusal that does not arrive would make a repetition a new
        // message.
        if !conn.v5() || held.what.answer() != Some(PacketType::PubAck) {
            return Some(held);
        }
        match held.what.accepted().filter(|_| held.uncertain) {
            Some(packet_id) => {
                conn.held.remove(PacketType::PubAck);
                let words = self.words(id.slot, trouble);
                let ack = Ack {
                    packet_id,
                    reason: trouble.reason(),
                    properties: words.as_properties(),
                };
                self.stats.refused_store += 1;
                self.send(id.slot, &Packet::PubAck(ack));
            }
            None => self.let_go(held, now),
        }
        None
    }

    /// Says that a message cannot be stored; to MQTT 5 clients only.
    pub(crate) fn send_refusal(
        &mut self,
        slot: u32,
        kind: PacketType,
        packet_id: u16,
        trouble: StoreTrouble,
    ) {
        let words = self.words(slot, trouble);
        let ack = Ack {
            packet_id,
            reason: trouble.reason(),
            properties: words.as_properties(),
        };
        self.stats.refused_store += 1;
        let packet = match kind {
            PacketType::PubAck => Packet::PubAck(ack),
            _ => Packet::PubRec(ack),
        };
        self.answer_with(slot, &packet, (kind, packet_id, false), None);
    }

    /// The reason in words, if the client wants any.
    fn words(&self, slot: u32, trouble: StoreTrouble) -> PropertyBuf {
        let mut properties = PropertyBuf::new();
        let conn = self.conns.get(slot);
        if conn.is_some_and(|conn| {
            conn.problem_information && trouble.why().len() + 16 < conn.max_packet as usize
        }) {
            let _ = properties.push_data(PropertyId::ReasonString, trouble.why().as_bytes());
        }
        properties
    }
}

impl StoreTrouble {
    /// For MQTT 5.
    pub(crate) fn reason(self) -> ReasonCode {
        match self {
            Self::Full => ReasonCode::QuotaExceeded,
            Self::Failed => ReasonCode::ImplementationSpecificError,
        }
    }
}
