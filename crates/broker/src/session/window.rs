//! The window: messages in flight of one session, with packet identifiers and the state of each
//! handshake.

use std::collections::VecDeque;

use punctual_codec::QoS;

use crate::base::delivery::Delivery;

/// Packet identifiers run from 1 to 65 535.
const PACKET_IDS: u32 = 65_535;

/// The state of the handshake of a message in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// PUBLISH sent, QoS 1: PUBACK is due.
    Ack,
    /// PUBLISH sent, QoS 2: PUBREC is due.
    Rec,
    /// PUBREL sent: PUBCOMP is due.
    Comp,
    /// Complete; kept until everything before it is complete.
    Done,
}

/// A receiver's acknowledgement of a message with QoS 1 or 2.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Acknowledgement {
    PubAck,
    /// PUBREC with success.
    PubRec,
    /// PUBREC with an error.
    Refusal,
    PubComp,
}

pub(crate) fn first_step(qos: QoS) -> Step {
    if qos == QoS::ExactlyOnce {
        Step::Rec
    } else {
        Step::Ack
    }
}

impl Step {
    /// The step after an acknowledgement; `None` if it is not one that the message waits for, which
    /// is a protocol error (sections 4.3.2 and 4.3.3):
    ///
    /// | waits for | PUBACK | PUBREC | PUBREC with an error | PUBCOMP |
    /// |---|---|---|---|---|
    /// | `Ack` | `Done` | error | error | error |
    /// | `Rec` | error | `Comp` | `Done` | error |
    /// | `Comp` | error | `Comp` | `Comp` | `Done` |
    ///
    /// PUBREC may be repeated before PUBREL has arrived. For a message that is `Done`, late copies
    /// of any acknowledgement may arrive, which are ignored.
    fn after(self, ack: Acknowledgement) -> Option<Self> {
        use Acknowledgement as A;
        match (self, ack) {
            (Self::Ack, A::PubAck) | (Self::Rec, A::Refusal) | (Self::Comp, A::PubComp) => {
                Some(Self::Done)
            }
            (Self::Rec, A::PubRec) | (Self::Comp, A::PubRec | A::Refusal) => Some(Self::Comp),
            (Self::Ack | Self::Rec | Self::Comp | Self::Done, _) => None,
        }
    }
}

/// An acknowledgement for which a message does not wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct WrongAck {
    packet_id: u16,
    ack: Acknowledgement,
    waits_for: Step,
}

impl std::fmt::Display for WrongAck {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let came = match self.ack {
            Acknowledgement::PubAck => "PUBACK",
            Acknowledgement::PubRec | Acknowledgement::Refusal => "PUBREC",
            Acknowledgement::PubComp => "PUBCOMP",
        };
        let due = match self.waits_for {
            Step::Ack => "PUBACK",
            Step::Rec => "PUBREC",
            Step::Comp | Step::Done => "PUBCOMP",
        };
        let id = self.packet_id;
        write!(f, "{came} for message {id}, for which {due} is due")
    }
}

/// A message in flight.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Inflight<'a> {
    pub(crate) packet_id: u16,
    pub(crate) step: Step,
    pub(crate) delivery: Option<&'a Delivery>,
}

impl<'a> Inflight<'a> {
    fn of_overtaken((slot, delivery): &'a (Slot, Option<Delivery>)) -> Self {
        Self {
            packet_id: slot.packet_id,
            step: slot.step,
            delivery: delivery.as_ref(),
        }
    }

    /// Number of the entry in the store; 0 for none.
    #[inline]
    pub(crate) fn entry(&self) -> u64 {
        self.delivery.map_or(0, |delivery| delivery.entry)
    }
}

/// The state of a message in a window, without its content.
#[derive(Debug, Clone, Copy)]
pub(super) struct Slot {
    packet_id: u16,
    step: Step,
    /// Whether the message is under remote flow control: the peer takes only few of these at a
    /// time.
    throttled: bool,
}

/// Maximum capacity, in message contents, that an empty window keeps allocated.
const ROOM: usize = 64;

/// Number of later messages after which a message counts as overtaken: half of all identifiers, so
/// that the age of an identifier stays unambiguous.
const FAR: usize = if cfg!(test) { 12 } else { 1 << 15 };

/// Messages that [`FAR`] later ones have overtaken, at least one; their identifiers are skipped
/// when identifiers are assigned again.
#[derive(Debug, Default)]
struct Overtaken {
    /// The overtaken messages with their content, the oldest first.
    all: VecDeque<(Slot, Option<Delivery>)>,
    /// Number of them that were sent on the current connection, from the front.
    sent: usize,
}

impl Overtaken {
    fn find(&self, packet_id: u16) -> Option<usize> {
        let mut all = self.all.iter();
        all.position(|(slot, _)| slot.packet_id == packet_id)
    }

    /// Whether some of them wait to be sent again.
    fn is_rewound(&self) -> bool {
        self.sent < self.all.len()
    }
}

/// Messages in flight, in the order in which their packet identifiers were assigned, which ends
/// before the next identifier. The identifiers are consecutive unless the session was transferred
/// from another broker, has taken up an identifier, or an identifier was still in use when it would
/// have been assigned again, so an identifier is mostly found by subtraction.
#[derive(Debug)]
pub(crate) struct Window {
    /// The overtaken messages, older than all others; `None` if there are none, as almost always.
    overtaken: Option<Box<Overtaken>>,
    pub(super) entries: VecDeque<Slot>,
    /// Content of the first entries. It is kept only for sessions that can be resumed, since only
    /// these re-send messages, and for messages that another member of a shared subscription may
    /// get. It is kept apart from the entries because a window may have thousands of these, and
    /// most sessions end with their connection.
    kept: VecDeque<Option<Delivery>>,
    next_id: u16,
    /// Whether the identifiers may have gaps.
    gaps: bool,
    /// Number of entries that are not `Done`.
    open: u32,
    /// Number of open entries under remote flow control.
    throttled: u32,
    /// Number of entries sent on the current connection, from the front.
    sent: usize,
    /// Number of the sent entries that are not `Done`.
    sent_open: u32,
}

impl Default for Window {
    fn default() -> Self {
        Self {
            overtaken: None,
            entries: VecDeque::new(),
            kept: VecDeque::new(),
            next_id: 1,
            gaps: false,
            open: 0,
            throttled: 0,
            sent: 0,
            sent_open: 0,
        }
    }
}

impl Window {
    /// Sets the identifier of the first message, if none is in the window yet.
    pub(crate) fn begin_at(&mut self, packet_id: u16) {
        if self.entries.is_empty() {
            self.next_id = packet_id.max(1);
        }
    }

    /// Number of messages that are not completely acknowledged.
    #[inline]
    pub(crate) fn open(&self) -> u32 {
        self.open
    }

    /// Whether another message may be sent when the peer allows `max` messages in flight, and as
    /// many again that are under remote flow control.
    #[inline]
    pub(crate) fn has_room(&self, max: u16) -> bool {
        let max = u32::from(max);
        (self.open < max || self.open - self.throttled.min(max) < max) && self.takes_another()
    }

    /// As [`Self::has_room`], for an urgent message. A neighbour takes twice `max` messages in
    /// total, so an urgent message does not wait for acknowledgements that the neighbour's disk
    /// delays.
    #[inline]
    pub(crate) fn has_urgent_room(&self, max: u16, is_link: bool) -> bool {
        self.open < Self::most(max, is_link) && self.takes_another() || self.has_room(max)
    }

    /// Number of messages that may be in flight in total when the peer allows `max`.
    #[inline]
    fn most(max: u16, is_link: bool) -> u32 {
        u32::from(max) * (1 + u32::from(is_link))
    }

    /// Whether an identifier is free for another message, and no message has to be sent again
    /// before it.
    #[inline]
    fn takes_another(&self) -> bool {
        !self.is_rewound()
            && ((self.entries.len() + self.overtaken_len()) as u32) < PACKET_IDS - 1
            && !(self.gaps && self.is_used_up())
    }

    /// Whether the next identifier is in use by the oldest message.
    #[cold]
    fn is_used_up(&self) -> bool {
        let oldest = self.entries.front();
        oldest.is_some_and(|oldest| oldest.packet_id == self.next_id)
    }

    /// Number of identifiers that were assigned after the given one, if that is in use.
    fn age(next_id: u16, packet_id: u16) -> u32 {
        (u32::from(next_id) + PACKET_IDS - 1 - u32::from(packet_id)) % PACKET_IDS
    }

    /// Advances the next identifier past those that are still in use.
    #[inline]
    fn leave_out(&mut self) {
        if self.gaps || self.overtaken.is_some() {
            self.leave_out_some();
        }
    }

    #[cold]
    fn leave_out_some(&mut self) {
        for _ in 0..PACKET_IDS {
            if self.is_used_up() && !self.is_rewound() {
                self.overtake();
            }
            if self.find_overtaken(self.next_id).is_none() {
                return;
            }
            self.next_id = following(self.next_id);
            self.gaps = true;
        }
    }

    #[inline]
    pub(crate) fn overtaken_len(&self) -> usize {
        self.overtaken.as_ref().map_or(0, |it| it.all.len())
    }

    #[cold]
    fn find_overtaken(&self, packet_id: u16) -> Option<usize> {
        self.overtaken.as_ref()?.find(packet_id)
    }

    /// Frees the list of overtaken messages if it is empty.
    fn forget_overtaken(&mut self) {
        self.overtaken.take_if(|it| it.all.is_empty());
    }

    /// Moves the oldest message to the overtaken ones, which do not block the assignment of
    /// identifiers.
    #[cold]
    fn overtake(&mut self) {
        if let Some(slot) = self.entries.pop_front() {
            let delivery = self.kept.pop_front().flatten();
            let overtaken = self.overtaken.get_or_insert_default();
            overtaken.all.push_back((slot, delivery));
            overtaken.sent += 1;
            self.sent -= 1;
            self.forget_done();
        }
    }

    /// Opens an entry and returns its packet identifier.
    #[inline]
    pub(crate) fn push(&mut self, qos: QoS) -> u16 {
        if self.entries.len() >= FAR && !self.is_rewound() {
            self.overtake();
        }
        let packet_id = self.next_id;
        self.next_id = following(packet_id);
        self.leave_out();
        let step = if qos == QoS::ExactlyOnce {
            Step::Rec
        } else {
            Step::Ack
        };
        self.entries.push_back(Slot {
            packet_id,
            step,
            throttled: false,
        });
        self.open += 1;
        self.sent += 1;
        self.sent_open += 1;
        packet_id
    }

    /// Whether another message under remote flow control may be sent.
    pub(crate) fn has_throttled_room(&self, max: u16) -> bool {
        self.has_room(max) && self.throttled < u32::from(max)
    }

    /// Marks the last message as under remote flow control.
    pub(crate) fn throttle_last(&mut self) {
        if let Some(last) = self.entries.back_mut()
            && last.step != Step::Done
            && !std::mem::replace(&mut last.throttled, true)
        {
            self.throttled += 1;
        }
    }

    /// Marks exactly those messages that `is_throttled` selects as under remote flow control.
    pub(crate) fn throttle(&mut self, mut is_throttled: impl FnMut(&Delivery) -> bool) {
        self.throttled = 0;
        let overtaken = self.overtaken.iter_mut().flat_map(|it| &mut it.all);
        let overtaken = overtaken.map(|(slot, delivery)| (slot, delivery.as_ref()));
        let kept = self.kept.iter().map(Option::as_ref);
        let kept = kept.chain(std::iter::repeat(None));
        for (slot, delivery) in overtaken.chain(self.entries.iter_mut().zip(kept)) {
            slot.throttled = slot.step != Step::Done && delivery.is_some_and(&mut is_throttled);
            self.throttled += u32::from(slot.throttled);
        }
    }

    /// Stores the content of the last message.
    #[inline]
    pub(crate) fn keep(&mut self, delivery: Delivery) {
        if self.kept.len() + 1 != self.entries.len() {
            self.keep_none();
        }
        self.kept.push_back(Some(delivery));
    }

    /// The content of the last message, if it is kept.
    #[inline]
    pub(crate) fn last(&self) -> Option<&Delivery> {
        self.kept.back()?.as_ref()
    }

    /// Keeps no content of the messages before the last one, where none is stored yet.
    #[cold]
    fn keep_none(&mut self) {
        let before = self.entries.len().saturating_sub(1);
        self.kept.resize_with(before, || None);
    }

    /// Sets the number of the last message's entry in the store.
    pub(crate) fn name_last(&mut self, entry: u64) {
        if self.kept.len() == self.entries.len()
            && let Some(Some(delivery)) = self.kept.back_mut()
        {
            delivery.entry = entry;
        }
    }

    /// The position of the message with that identifier, if it was sent and the identifiers between
    /// it and the oldest are consecutive.
    #[inline]
    fn find(&self, packet_id: u16) -> Option<usize> {
        let first = self.entries.front()?.packet_id;
        let at = match packet_id.checked_sub(first) {
            Some(at) => usize::from(at),
            None => usize::from(packet_id) + PACKET_IDS as usize - usize::from(first),
        };
        let slot = self.entries.get(at)?;
        (at < self.sent && slot.packet_id == packet_id).then_some(at)
    }

    /// As [`Self::find`], if the identifiers have gaps.
    fn find_between_gaps(&self, packet_id: u16) -> Option<usize> {
        let at = self.search(packet_id).ok()?;
        (at < self.sent).then_some(at)
    }

    /// The position of the message with that identifier, or the position at which it would be.
    fn search(&self, packet_id: u16) -> Result<usize, usize> {
        let age = |packet_id| Self::age(self.next_id, packet_id);
        let own = age(packet_id);
        self.entries
            .binary_search_by(|slot| own.cmp(&age(slot.packet_id)))
    }

    /// Advances the handshake of an identifier from `from` to `to`; `Done` frees the identifier.
    /// Returns the number of its entry in the store, 0 for none; `None` if no message with that
    /// identifier waits for that step.
    #[inline]
    pub(crate) fn advance(&mut self, packet_id: u16, from: Step, to: Step) -> Option<u64> {
        self.advance_with(packet_id, from, to, drop)
    }

    /// As [`Self::advance`]; `done` receives the content that is not needed any more.
    #[inline]
    pub(crate) fn advance_with(
        &mut self,
        packet_id: u16,
        from: Step,
        to: Step,
        done: impl FnOnce(Delivery),
    ) -> Option<u64> {
        match self.find(packet_id) {
            Some(at) => self.advance_at(at, from, to, done),
            None => self.advance_elsewhere(packet_id, from, to, done),
        }
    }

    #[cold]
    #[inline(never)]
    fn advance_elsewhere(
        &mut self,
        packet_id: u16,
        from: Step,
        to: Step,
        done: impl FnOnce(Delivery),
    ) -> Option<u64> {
        if let Some(at) = self.find_between_gaps(packet_id) {
            return self.advance_at(at, from, to, done);
        }
        let overtaken = self.overtaken.as_mut()?;
        let at = overtaken.find(packet_id)?;
        let (slot, kept) = overtaken.all.get_mut(at)?;
        if at >= overtaken.sent || slot.step != from {
            return None;
        }
        slot.step = to;
        let entry = take_kept(kept, to, done);
        if to == Step::Done {
            self.open -= 1;
            self.throttled -= u32::from(slot.throttled);
            self.sent_open -= 1;
            overtaken.sent -= 1;
            overtaken.all.remove(at);
            self.forget_overtaken();
        }
        Some(entry)
    }

    #[inline(always)]
    fn advance_at(
        &mut self,
        at: usize,
        from: Step,
        to: Step,
        done: impl FnOnce(Delivery),
    ) -> Option<u64> {
        let slot = self.entries.get_mut(at).filter(|slot| slot.step == from)?;
        slot.step = to;
        let kept = self.kept.get_mut(at);
        let entry = kept.map_or(0, |kept| take_kept(kept, to, done));
        if to == Step::Done {
            self.open -= 1;
            self.throttled -= u32::from(slot.throttled);
            self.sent_open -= 1;
            self.forget_done();
        }
        Some(entry)
    }

    /// Whether a message with that identifier waits for an acknowledgement on the current
    /// connection.
    #[cold]
    pub(crate) fn waits_for_more(&self, packet_id: u16) -> bool {
        let inflight = self.in_flight(packet_id);
        inflight.is_some_and(|inflight| inflight.step != Step::Done)
    }

    /// Handles an acknowledgement. Returns the step for which the message waits then, and the
    /// number of its entry in the store, 0 for none; `None` if no message with that identifier
    /// waits for an acknowledgement on the current connection.
    #[inline]
    pub(crate) fn acknowledge(
        &mut self,
        packet_id: u16,
        ack: Acknowledgement,
    ) -> Result<Option<(Step, u64)>, WrongAck> {
        let usual = match ack {
            Acknowledgement::PubAck => Step::Ack,
            Acknowledgement::PubRec | Acknowledgement::Refusal => Step::Rec,
            Acknowledgement::PubComp => Step::Comp,
        };
        if let Some(next) = usual.after(ack)
            && let Some(entry) = self.advance(packet_id, usual, next)
        {
            return Ok(Some((next, entry)));
        }
        self.acknowledge_otherwise(packet_id, ack)
    }

    /// As [`Self::acknowledge`], for a message that does not wait for the step that this
    /// acknowledgement usually ends.
    #[cold]
    fn acknowledge_otherwise(
        &mut self,
        packet_id: u16,
        ack: Acknowledgement,
    ) -> Result<Option<(Step, u64)>, WrongAck> {
        let step = self.in_flight(packet_id).map(|inflight| inflight.step);
        let Some(step) = step.filter(|step| *step != Step::Done) else {
            return Ok(None);
        };
        let Some(next) = step.after(ack) else {
            return Err(WrongAck {
                packet_id,
                ack,
                waits_for: step,
            });
        };
        let entry = self.advance(packet_id, step, next);
        Ok(entry.map(|entry| (next, entry)))
    }

    /// The message with that identifier that was sent, or is about to be sent, on the current
    /// connection.
    pub(crate) fn in_flight(&self, packet_id: u16) -> Option<Inflight<'_>> {
        let overtaken = || {
            let overtaken = self.overtaken.as_ref()?;
            let at = overtaken.find(packet_id);
            let at = at.filter(|at| *at < overtaken.sent)?;
            overtaken.all.get(at).map(Inflight::of_overtaken)
        };
        let at = self.find_between_gaps(packet_id);
        at.and_then(|at| self.entry_at(at)).or_else(overtaken)
    }

    /// The identifier that the next message gets.
    pub(crate) fn next_id(&self) -> u16 {
        self.next_id
    }

    /// Restores the messages in flight before a restart. They are sent again in the order in which
    /// their identifiers were assigned, up to the one before `next_id`.
    pub(crate) fn restore(next_id: u16, mut inflight: Vec<(u16, Step, Delivery)>) -> Self {
        let next_id = next_id.max(1);
        let age = |packet_id: u16| Self::age(next_id, packet_id);
        inflight.sort_by_key(|(packet_id, ..)| std::cmp::Reverse(age(*packet_id)));
        inflight.dedup_by_key(|(packet_id, ..)| *packet_id);
        let slot = |(packet_id, step, _): &(u16, Step, Delivery)| Slot {
            packet_id: *packet_id,
            step: *step,
            throttled: false,
        };
        Self {
            entries: inflight.iter().map(slot).collect(),
            overtaken: None,
            open: inflight.len() as u32,
            kept: inflight.into_iter().map(|(.., it)| Some(it)).collect(),
            next_id,
            gaps: true,
            throttled: 0,
            sent: 0,
            sent_open: 0,
        }
    }

    /// Takes up a packet identifier that another session of the same client assigned to a message
    /// with QoS 2, as one for which PUBCOMP is due: until PUBCOMP arrives, no other message gets
    /// the identifier. Returns whether PUBREL must be sent now, which requires that the client is
    /// connected (`listens`); `None` if the window already has a message with that identifier.
    pub(crate) fn take_up(
        &mut self,
        packet_id: u16,
        delivery: Option<Delivery>,
        listens: bool,
    ) -> Option<bool> {
        if self.find_overtaken(packet_id).is_some() {
            return None;
        }
        let found = self.search(packet_id);
        let (Ok(at) | Err(at)) = found;
        let is_done = |slot: &Slot| slot.step == Step::Done;
        if found.is_ok() && !self.entries.get(at).is_some_and(is_done) {
            return None;
        }
        let slot = Slot {
            packet_id,
            step: Step::Comp,
            throttled: false,
        };
        match self.entries.get_mut(at).filter(|_| found.is_ok()) {
            Some(done) => *done = slot,
            None => {
                self.gaps = true;
                self.entries.insert(at, slot);
                self.sent += usize::from(at < self.sent);
                if at < self.kept.len() {
                    self.kept.insert(at, None);
                }
            }
        }
        if delivery.is_some() && self.kept.len() <= at {
            self.kept.resize_with(at + 1, || None);
        }
        if let Some(kept) = self.kept.get_mut(at) {
            *kept = delivery;
        }
        // PUBREL is sent at once if nothing before it is still to be sent.
        let is_next = self.sent <= at && self.entries.range(self.sent..at).all(is_done);
        if listens && is_next && !self.is_overtaken_rewound() {
            self.sent = at + 1;
        }
        self.open += 1;
        let is_sent = at < self.sent;
        self.sent_open += u32::from(is_sent);
        self.leave_out();
        Some(is_sent)
    }

    /// The message at that position; the oldest is at 0.
    pub(crate) fn at(&self, place: usize) -> Option<Inflight<'_>> {
        match place.checked_sub(self.overtaken_len()) {
            Some(place) => self.entry_at(place),
            None => {
                let overtaken = self.overtaken.as_ref()?.all.get(place);
                overtaken.map(Inflight::of_overtaken)
            }
        }
    }

    fn entry_at(&self, place: usize) -> Option<Inflight<'_>> {
        let slot = *self.entries.get(place)?;
        Some(self.with_content(place, slot))
    }

    fn with_content(&self, place: usize, slot: Slot) -> Inflight<'_> {
        Inflight {
            packet_id: slot.packet_id,
            step: slot.step,
            delivery: self.kept.get(place).and_then(Option::as_ref),
        }
    }

    /// All messages of the window, the oldest first.
    fn iter(&self) -> impl Iterator<Item = Inflight<'_>> {
        let overtaken = self.overtaken.iter().flat_map(|it| &it.all);
        let overtaken = overtaken.map(Inflight::of_overtaken);
        let slots = self.entries.iter().enumerate();
        overtaken.chain(slots.map(|(at, slot)| self.with_content(at, *slot)))
    }

    /// All contents that are kept.
    pub(crate) fn deliveries_mut(&mut self) -> impl Iterator<Item = &mut Delivery> {
        let overtaken = self.overtaken.iter_mut().flat_map(|it| &mut it.all);
        let overtaken = overtaken.map(|(_, delivery)| delivery);
        overtaken.chain(&mut self.kept).flatten()
    }

    /// The messages that are not completely acknowledged, the oldest first.
    pub(crate) fn unfinished(&self) -> impl Iterator<Item = Inflight<'_>> {
        self.iter().filter(|it| it.step != Step::Done)
    }

    /// Contents of messages that were sent and may not have arrived, the oldest first.
    pub(crate) fn unacknowledged(&self) -> impl Iterator<Item = &Delivery> {
        Self::contents(self.iter())
    }

    /// Contents of messages that must be sent again on the current connection, the oldest first.
    pub(crate) fn unsent(&self) -> impl Iterator<Item = &Delivery> {
        let overtaken = self.overtaken.iter();
        let overtaken = overtaken.flat_map(|it| it.all.iter().skip(it.sent));
        let overtaken = overtaken.map(Inflight::of_overtaken);
        let slots = self.entries.iter().enumerate().skip(self.sent);
        let slots = slots.map(|(at, slot)| self.with_content(at, *slot));
        Self::contents(overtaken.chain(slots))
    }

    /// Contents of those messages that may not have arrived.
    fn contents<'a>(all: impl Iterator<Item = Inflight<'a>>) -> impl Iterator<Item = &'a Delivery> {
        let unsure = |it: &Inflight<'_>| matches!(it.step, Step::Ack | Step::Rec);
        all.filter(unsure).filter_map(|it| it.delivery)
    }

    /// Completes the messages that were sent and may not have arrived; returns the numbers of their
    /// entries in the store.
    pub(crate) fn give_up(&mut self) -> Vec<u64> {
        let mut given_up = Vec::new();
        if let Some(overtaken) = &mut self.overtaken {
            let mut at = 0;
            overtaken.all.retain(|(slot, delivery)| {
                let stays = !matches!(slot.step, Step::Ack | Step::Rec);
                let sent = at < overtaken.sent;
                if stays {
                    at += 1;
                } else {
                    given_up.push(delivery.as_ref().map_or(0, |delivery| delivery.entry));
                    self.open -= 1;
                    self.throttled -= u32::from(slot.throttled);
                    self.sent_open -= u32::from(sent);
                    overtaken.sent -= usize::from(sent);
                }
                stays
            });
        }
        self.forget_overtaken();
        for (at, slot) in self.entries.iter_mut().enumerate() {
            if matches!(slot.step, Step::Ack | Step::Rec) {
                let delivery = self.kept.get_mut(at).and_then(Option::take);
                given_up.push(delivery.map_or(0, |delivery| delivery.entry));
                slot.step = Step::Done;
                self.open -= 1;
                self.throttled -= u32::from(slot.throttled);
                self.sent_open -= u32::from(at < self.sent);
            }
        }
        self.forget_done();
        given_up
    }

    /// Removes the oldest message, for a session that has ended: with its content if it may not
    /// have arrived, else without. `None` if the window is empty.
    pub(crate) fn take_first(&mut self) -> Option<Option<Delivery>> {
        let unsure = |step, delivery| match step {
            Step::Ack => delivery,
            Step::Rec | Step::Comp | Step::Done => None,
        };
        let overtaken = self.overtaken.as_mut();
        if let Some((slot, delivery)) = overtaken.and_then(|it| it.all.pop_front()) {
            return Some(unsure(slot.step, delivery));
        }
        let slot = self.entries.pop_front()?;
        Some(unsure(slot.step, self.kept.pop_front().flatten()))
    }

    /// Completes all messages; returns the numbers of the entries in the store.
    pub(crate) fn clear(&mut self) -> Vec<u64> {
        let open = self.unfinished().map(|it| it.entry()).collect();
        *self = Self {
            next_id: self.next_id,
            ..Self::default()
        };
        open
    }

    #[inline]
    fn forget_done(&mut self) {
        while let Some(Slot {
            step: Step::Done, ..
        }) = self.entries.front()
        {
            self.entries.pop_front();
            self.sent = self.sent.saturating_sub(1);
            if self.kept.pop_front().is_some() && self.kept.is_empty() {
                self.kept.shrink_to(ROOM);
            }
        }
    }

    /// Resets the window after the loss of the connection: all open messages must be sent again.
    pub(crate) fn rewind(&mut self) {
        if let Some(overtaken) = &mut self.overtaken {
            overtaken.sent = 0;
        }
        self.sent = 0;
        self.sent_open = 0;
    }

    /// The next entry to send again on a new connection, while the entries already sent leave
    /// capacity when the peer allows `max` messages in flight. A neighbour is sent all its entries
    /// again, since no new message is sent before them.
    pub(crate) fn next_resend(&mut self, max: u16, is_link: bool) -> Option<Inflight<'_>> {
        let has_room = self.sent_open < Self::most(max, is_link);
        if self.is_overtaken_rewound() {
            if !has_room {
                return None;
            }
            let overtaken = self.overtaken.as_mut()?;
            overtaken.sent += 1;
            self.sent_open += 1;
            let last = overtaken.all.get(overtaken.sent - 1);
            return last.map(Inflight::of_overtaken);
        }
        while self
            .entries
            .get(self.sent)
            .is_some_and(|entry| entry.step == Step::Done)
        {
            self.sent += 1;
        }
        if self.sent == self.entries.len() || !has_room {
            return None;
        }
        self.sent += 1;
        self.sent_open += 1;
        self.entry_at(self.sent - 1)
    }

    /// Whether entries wait to be sent again.
    #[inline]
    pub(crate) fn is_rewound(&self) -> bool {
        self.sent < self.entries.len() || self.is_overtaken_rewound()
    }

    #[inline]
    fn is_overtaken_rewound(&self) -> bool {
        self.overtaken.as_ref().is_some_and(|it| it.is_rewound())
    }
}

/// Takes the kept content of a message with its next step, if the content is not needed any more:
/// the message is done, or not stored. Returns the number of the stored entry.
#[inline(always)]
fn take_kept(kept: &mut Option<Delivery>, to: Step, done: impl FnOnce(Delivery)) -> u64 {
    let entry = kept.as_ref().map_or(0, |delivery| delivery.entry);
    // Until the message is done, the number of its stored entry must be known.
    if let Some(delivery) = kept.take_if(|_| to == Step::Done || entry == 0) {
        done(delivery);
    }
    entry
}

/// The identifier that follows the given one.
#[inline]
fn following(packet_id: u16) -> u16 {
    match packet_id {
        u16::MAX => 1,
        packet_id => packet_id + 1,
    }
}
