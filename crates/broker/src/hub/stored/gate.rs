//! Holds packets that wait for a commit, and sends them afterwards.

use punctual_codec::{Ack, Packet, PacketType, PropertyBuf, PropertyId, QoS, ReasonCode};

use crate::Nanos;
use crate::base::connection::ConnId;
use crate::base::delivery::Delivery;
use crate::base::durability::StoreTrouble;
use crate::egress::{Attempt, Class};
use crate::hub::outlets::Outlets;
use crate::hub::{Hub, put_publish};
use crate::index::matched::Matched;
use crate::journal::answers::{After, Answer, HeldAnswers, Needed, Waiting};
use crate::journal::gate::{FEW, Held, What};
use crate::journal::keeping::Nature;
use crate::journal::messages::is_to_be_stored;
use crate::journal::{HELD, Journal, Operations};
use crate::session::Step;

impl Hub {
    /// Sends an acknowledgement when its condition `after` holds, and after the waiting ones of its
    /// kind; without a condition and waiting ones, like [`Self::send_ack_late`].
    #[inline]
    pub(crate) fn answer(
        &mut self,
        slot: u32,
        kind: PacketType,
        packet_id: u16,
        reason: ReasonCode,
        after: Option<After>,
    ) {
        if self.journal.is_some() && self.must_hold(slot, kind, after) {
            let answer = Answer::Plain {
                kind,
                packet_id,
                reason,
            };
            return self.hold(slot, after, answer);
        }
        self.send_ack_late(slot, kind, packet_id, reason);
    }

    /// Like [`Self::answer`], for a packet with properties; `about` is its kind, its packet
    /// identifier, and whether it reports success.
    pub(crate) fn answer_with(
        &mut self,
        slot: u32,
        packet: &Packet<'_>,
        about: (PacketType, u16, bool),
        after: Option<After>,
    ) {
        let (kind, packet_id, success) = about;
        if self.journal.is_none() || !self.must_hold(slot, kind, after) {
            self.send(slot, packet);
            return;
        }
        let Some(conn) = self.outlets.conns.get(slot) else {
            return;
        };
        let mut bytes = Vec::new();
        let encoded = packet.encode(conn.version, &mut bytes);
        if encoded.is_err() || bytes.len() > conn.max_packet as usize {
            return;
        }
        let answer = Answer::Encoded {
            kind,
            packet_id,
            success,
            bytes: bytes.into(),
        };
        self.hold(slot, after, answer);
    }

    fn must_hold(&self, slot: u32, kind: PacketType, after: Option<After>) -> bool {
        let journal = self.journal.as_ref();
        let is_open = |after: After| journal.is_some_and(|journal| !after.is_over(journal));
        let conn = self.outlets.conns.get(slot);
        after.is_some_and(is_open) || conn.is_some_and(|conn| conn.held.are_before(kind))
    }

    fn hold(&mut self, slot: u32, after: Option<After>, answer: Answer) {
        let (Some(conn), Some(journal)) = (self.outlets.conns.get_mut(slot), &mut self.journal)
        else {
            return;
        };
        let id = conn.id(slot);
        let places = conn.held.0.get_or_insert_default();
        match HeldAnswers::place(answer.kind()) {
            None => {
                places.others += 1;
                let ticket = after.map_or(0, |after| after.ticket);
                journal.hold(ticket, id, What::Answer(answer));
            }
            Some(place) => {
                let after = after.filter(|after| !after.is_over(journal));
                if let Some(Needed::Content(content)) = after.map(|after| after.or) {
                    journal.kept.tell(content, id);
                }
                places.queues[place].push_back(Waiting { after, answer });
            }
        }
        self.has_held(slot);
    }

    /// Holds the acknowledgement of a QoS 1 message that was just recorded with only that entry.
    pub(crate) fn hold_light(&mut self, slot: u32, packet_id: u16, entry: u64) {
        let (Some(conn), Some(journal)) = (self.outlets.conns.get_mut(slot), &mut self.journal)
        else {
            return;
        };
        let places = conn.held.0.get_or_insert_default();
        places.queues[0].push_back(Waiting {
            after: Some(After::light(entry, journal.latest())),
            answer: Answer::Plain {
                kind: PacketType::PubAck,
                packet_id,
                reason: ReasonCode::Success,
            },
        });
        self.has_held(slot);
    }

    /// An answer to a connection was held: lists the connection, and stops reading from it if too
    /// many answers wait.
    fn has_held(&mut self, slot: u32) {
        let (Some(conn), Some(journal)) = (self.outlets.conns.get_mut(slot), &mut self.journal)
        else {
            return;
        };
        let id = conn.id(slot);
        let many = conn.held.all() >= HELD;
        if conn.held.begin_list() {
            journal.answering.push(id);
            if journal.answering.len() > journal.most_answering {
                let conns = &self.outlets.conns;
                journal.answering.retain(|id| {
                    let conn = conns.get(id.slot);
                    conn.is_some_and(|conn| conn.generation == id.generation)
                });
                journal.most_answering = 2 * journal.answering.len() + FEW;
            }
        }
        // For a neighbour, its window bounds their number.
        let is_link = self.outlets.conns.get(slot).is_some_and(|conn| conn.link);
        if many && !is_link {
            self.wait_for_commit(id);
        }
    }

    /// Sends nothing to a connection until `ticket` is committed.
    pub(crate) fn cork(&mut self, slot: u32, ticket: u64, new: bool) {
        if let (Some(conn), Some(journal)) = (self.outlets.conns.get_mut(slot), &mut self.journal) {
            conn.corked = true;
            journal.hold(ticket, conn.id(slot), What::Connection { new });
        }
    }

    /// Number of held packets.
    pub(crate) fn held(&self) -> usize {
        let Some(journal) = &self.journal else {
            return 0;
        };
        let conns = journal.answering.iter();
        let conns = conns.filter_map(|id| {
            let conn = self.outlets.conns.get(id.slot);
            conn.filter(|conn| conn.generation == id.generation)
        });
        journal.gate() + conns.map(|conn| conn.held.in_order()).sum::<usize>()
    }

    /// Stops reading from a publisher until commits have caught up.
    pub(crate) fn wait_for_commit(&mut self, id: ConnId) {
        let Some(journal) = &mut self.journal else {
            return;
        };
        if !journal.waiters.contains(&id) {
            journal.waiters.push(id);
            if let Some(conn) = self.outlets.conn(id) {
                conn.paused += 1;
            }
        }
    }

    /// Holds a publisher back if too many bytes are uncommitted. The connection of a neighbour is
    /// still read, since other brokers' messages arrive over it; a single message that has to be
    /// stored is blocked ([`Self::is_store_behind`]).
    pub(crate) fn pace(&mut self, id: ConnId, class: Class) {
        let max = self.config.durability.max_uncommitted;
        let max = match class.is_urgent() {
            true => max.saturating_mul(2),
            false => max,
        };
        // While commits fail, publications are refused and publishers need not wait.
        let is_behind = self
            .journal
            .as_ref()
            .is_some_and(|journal| journal.uncommitted() >= max && journal.failed.is_none());
        if is_behind && self.outlets.conn(id).is_some_and(|conn| !conn.link) {
            self.stats.store_pauses += 1;
            self.wait_for_commit(id);
        }
    }

    /// Whether a publication has to be stored while the uncommitted bytes have
    /// reached `durability.max_uncommitted`; its publisher then waits.
    pub(crate) fn is_store_behind(&self, matched: &Matched, nature: Nature) -> bool {
        let max = self.config.durability.max_uncommitted;
        let journal = self.journal.as_ref();
        journal.is_some_and(|journal| journal.uncommitted() >= max)
            && is_to_be_stored(matched, nature)
    }

    /// Everything up to `ticket` is committed: sends the packets that waited for it.
    pub(crate) fn committed(&mut self, ticket: u64, now: Nanos) {
        let Some(journal) = &mut self.journal else {
            return;
        };
        let was_failing = journal.is_failing();
        journal.commit(ticket, now);
        self.open_gate(now);
        self.custody_committed(now);
        self.notify_kept_wishes();
        if was_failing {
            self.catch_up(now);
        }
        self.resume_waiters();
    }

    /// Sets whether the store is full, so that it accepts only operations that were emitted
    /// already.
    pub(crate) fn store_full(&mut self, full: Option<StoreTrouble>, now: Nanos) {
        let Some(journal) = &mut self.journal else {
            return;
        };
        let was_full = std::mem::replace(&mut journal.full, full);
        if was_full.is_some() && journal.trouble().is_none() {
            self.catch_up(now);
        }
    }

    /// Sends the held packets whose operations are committed or needless now.
    fn open_gate(&mut self, now: Nanos) {
        let Some(journal) = &mut self.journal else {
            return;
        };
        let committed = journal.committed;
        let mut answering = std::mem::take(&mut journal.answering);
        while let Some(journal) = &mut self.journal
            && let Some(held) = journal.gate.pop_front_if(|held| held.ticket <= committed)
        {
            self.let_go(held, now);
        }
        answering.retain(|id| self.let_answers_go(*id));
        if let Some(journal) = &mut self.journal {
            // Packets that are sent here cause no further answers.
            journal.answering.append(&mut answering);
        }
    }

    /// Sends the answers to a connection whose conditions hold; returns whether others remain.
    fn let_answers_go(&mut self, id: ConnId) -> bool {
        while let Some(answer) = self.next_answer(id) {
            self.send_answer(id.slot, answer);
        }
        let Some(conn) = self.outlets.conn(id) else {
            return false;
        };
        let remain = conn.held.in_order() > 0;
        conn.held.list(remain);
        remain
    }

    /// The next answer to a connection that may be sent.
    fn next_answer(&mut self, id: ConnId) -> Option<Answer> {
        let conn = self.outlets.conns.get_mut(id.slot)?;
        let journal = self.journal.as_ref()?;
        (conn.generation == id.generation).then(|| conn.held.next(journal))?
    }

    /// Sends answers about messages that are not needed any more. Called after the received packets
    /// were handled.
    #[inline]
    pub(crate) fn let_needless_go(&mut self) {
        if let Some(journal) = &mut self.journal
            && !journal.kept.freed.is_empty()
        {
            let mut freed = std::mem::take(&mut journal.kept.freed);
            for id in freed.drain(..) {
                // The connection stays listed until the next commit.
                while let Some(answer) = self.next_answer(id) {
                    self.send_answer(id.slot, answer);
                }
            }
            if let Some(journal) = &mut self.journal {
                // For the next.
                journal.kept.freed = freed;
            }
            self.resume_waiters();
        }
    }

    /// Reads again from publishers of which few enough messages wait for commits.
    pub(crate) fn resume_waiters(&mut self) {
        let max = self.config.durability.max_uncommitted;
        let Some(journal) = &mut self.journal else {
            return;
        };
        if journal.waiters.is_empty() || journal.uncommitted() > max / 2 {
            return;
        }
        let conns = &self.outlets.conns;
        let has_many = |id: &mut ConnId| {
            let conn = conns.get(id.slot);
            conn.is_some_and(|conn| conn.generation == id.generation && conn.held.all() > HELD / 2)
        };
        let mut waiters = std::mem::take(&mut journal.waiters);
        journal.waiters = waiters.extract_if(.., has_many).collect();
        self.resume(waiters);
    }

    /// Takes the operations to commit now; others stay in the shard.
    pub(crate) fn take_operations(&mut self, now: Nanos) -> Option<Operations> {
        let patience = self.config.durability.patience;
        let journal = self.journal.as_mut()?;
        let before = journal.committed;
        let operations = journal.take(patience, now);
        if journal.committed > before {
            let committed = journal.committed;
            journal.kept.forget(committed);
            self.open_gate(now);
            self.custody_committed(now);
            self.notify_kept_wishes();
        }
        self.let_needless_go();
        self.resume_waiters();
        self.notify_shards_of_finished();
        operations
    }

    fn let_go(&mut self, held: Held, now: Nanos) {
        let Held { conn: id, what, .. } = held;
        let conn = self.outlets.conns.get_mut(id.slot);
        let Some(conn) = conn.filter(|conn| conn.generation == id.generation) else {
            return;
        };
        match what {
            What::Answer(answer) => {
                conn.held.remove_other();
                self.send_answer(id.slot, answer);
            }
            What::Publish {
                packet_id,
                class,
                dup,
            } => self.send_held(id.slot, packet_id, class, dup, now),
            What::Connection { .. } => {
                conn.corked = false;
                Outlets::mark_dirty(conn, id.slot, &mut self.outlets.dirty);
                if conn.out.rank().is_some_and(|rank| rank.class.is_urgent()) {
                    Outlets::mark_urgent(conn, id.slot, &mut self.outlets.urgent);
                }
            }
        }
    }

    fn send_answer(&mut self, slot: u32, answer: Answer) {
        match answer {
            Answer::Plain {
                kind,
                packet_id,
                reason,
            } => self.send_ack(slot, kind, packet_id, reason),
            Answer::Encoded { bytes, .. } => self.send_bytes(slot, &bytes),
        }
    }

    fn send_bytes(&mut self, slot: u32, bytes: &[u8]) {
        if let Some(conn) = self.outlets.conns.get_mut(slot) {
            conn.out.control(&mut self.outlets.pool, |buffer| {
                buffer.extend_from_slice(bytes);
            });
            self.stats.packets_sent += 1;
            Outlets::mark_dirty(conn, slot, &mut self.outlets.dirty);
        }
    }

    /// Sends the PUBLISH of a message whose packet identifier is committed.
    fn send_held(&mut self, slot: u32, packet_id: u16, class: Class, dup: bool, now: Nanos) {
        let Some(conn) = self.outlets.conns.get_mut(slot) else {
            return;
        };
        let Some(session) = self.sessions.get_mut(conn.session) else {
            return;
        };
        let Some(inflight) = session.window.in_flight(packet_id) else {
            return;
        };
        if inflight.step == Step::Comp {
            // The held packet is a PUBREL that is to be sent again.
            return self.send_ack(slot, PacketType::PubRel, packet_id, ReasonCode::Success);
        }
        let (Some(delivery), Step::Rec) = (inflight.delivery, inflight.step) else {
            return;
        };
        if class.is_urgent() {
            let attempt = match dup {
                true => Attempt::Redelivery,
                false => Attempt::First,
            };
            let delivery = Delivery::clone(delivery);
            return self.push_urgent(slot, delivery, packet_id, attempt, now);
        }
        let form = delivery.form(conn.version.is_v5(), packet_id, dup);
        let parts = delivery.message.parts(now);
        if put_publish(conn, &mut self.outlets.pool, &parts, form, class) {
            self.stats.packets_sent += 1;
            self.stats.class(class).sent += 1;
            self.stats
                .published(QoS::ExactlyOnce, delivery.message.payload().len());
            Outlets::mark_dirty(conn, slot, &mut self.outlets.dirty);
        } else {
            let entry = session.window.advance(packet_id, Step::Rec, Step::Done);
            self.stats.inflight_messages -= 1;
            self.stats.dropped_too_large += 1;
            Journal::done(&mut self.journal, session, entry.unwrap_or(0));
        }
    }

    /// A commit failed, and is retried until it succeeds. Publications are refused where a refusal
    /// can be sent; other answers wait. Returns the connections that wait for CONNACK, each with
    /// whether its session is new and would not survive a restart.
    pub(crate) fn store_failed(
        &mut self,
        trouble: StoreTrouble,
        now: Nanos,
    ) -> Vec<(ConnId, bool)> {
        // Messages that need not be stored are not lost.
        self.let_needless_go();
        let Some(journal) = &mut self.journal else {
            return Vec::new();
        };
        journal.failed = Some(trouble);
        let waiters = std::mem::take(&mut journal.waiters);
        let (mut connecting, gate) = (Vec::new(), std::mem::take(&mut journal.gate));
        for held in gate {
            let conn = self.outlets.conns.get(held.conn.slot);
            match held.what {
                What::Connection { new } => connecting.push((held.conn, new)),
                _ if conn.is_some_and(|conn| conn.generation == held.conn.generation) => {
                    journal.gate.push_back(held);
                }
                _ => {}
            }
        }
        for id in journal.answering.clone() {
            self.refuse_held(id, trouble);
        }
        self.open_gate(now);
        self.resume(waiters);
        connecting
    }

    /// Replaces the held PUBACKs of a connection by refusals, and sends answers that only waited
    /// behind them.
    fn refuse_held(&mut self, id: ConnId, trouble: StoreTrouble) {
        // With QoS 2, if a refusal is lost, the receiver would take the redelivery for a new
        // message. A neighbour's message was acknowledged to its publisher.
        let Some(conn) = self.outlets.conn(id).filter(|conn| conn.v5() && !conn.link) else {
            return;
        };
        let Some(places) = &mut conn.held.0 else {
            return;
        };
        for Waiting { after, answer } in std::mem::take(&mut places.queues[0]) {
            let is_open = |after: &After| {
                let journal = self.journal.as_ref();
                journal.is_some_and(|journal| !after.is_over(journal))
            };
            match answer.accepted() {
                Some(packet_id) if after.as_ref().is_some_and(is_open) => {
                    let words = self.words(id.slot, trouble);
                    let ack = Ack {
                        packet_id,
                        reason: trouble.reason(),
                        properties: words.as_properties(),
                    };
                    self.stats.refused_store += 1;
                    self.send(id.slot, &Packet::PubAck(ack));
                }
                _ => self.send_answer(id.slot, answer),
            }
        }
    }

    /// Sends a refusal of a message that cannot be stored; to MQTT 5 clients only.
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

    /// The reason string, if the client accepts one.
    fn words(&self, slot: u32, trouble: StoreTrouble) -> PropertyBuf {
        let mut properties = PropertyBuf::new();
        let conn = self.outlets.conns.get(slot);
        if conn.is_some_and(|conn| {
            conn.problem_information && trouble.why().len() + 16 < conn.max_packet as usize
        }) {
            let _ = properties.push_data(PropertyId::ReasonString, trouble.why().as_bytes());
        }
        properties
    }
}
