//! The state that outlives a connection (section 4.1): subscriptions, messages
//! in flight and waiting, packet identifiers, the will.

mod replays;
mod subscriptions;

pub(crate) use replays::Replays;
pub(crate) use subscriptions::{Subscription, Subscriptions};

use std::collections::VecDeque;
use std::hash::BuildHasher;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use foldhash::fast::RandomState;
use hashbrown::{HashMap, HashTable};
use punctual_codec::QoS;
use punctual_mesh::transfer::{Mark, Record};
use punctual_store::Wall;

use crate::admission::Flows;
use crate::base::author::Author;
use crate::base::delivery::{Delivery, Load};
use crate::base::durability::Durability;
use crate::base::handle::SessionHandle;
use crate::base::name::MessageName;
use crate::brake::Brake;
use crate::egress::{Class, Lane, Rank};
use crate::federation::LinkState;
use crate::moves::{Began, Had, TakenUp};
use crate::overflow::Losses;
use crate::reserved::Reserved;
use crate::sequence::{Number, Sequences};
use crate::slab::Slab;
use crate::{Message, Nanos};

/// Packet identifiers run from 1 to 65 535.
const PACKET_IDS: u32 = 65_535;

/// How far the handshake of a message in flight is.
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

/// What a receiver answers to a message with QoS 1 or 2.
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
    /// PUBREC may come again before PUBREL has arrived. To a message that is `Done` there may be
    /// late copies of any of them, which are ignored.
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

/// An acknowledgement that a message does not wait for.
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

/// What a window has of a message beside its content.
#[derive(Debug, Clone, Copy)]
struct Slot {
    packet_id: u16,
    step: Step,
    /// It is of what the peer takes only little of.
    braked: bool,
}

/// Contents that an empty window has room for at most.
const ROOM: usize = 64;
/// After so many others a message is taken for overtaken: half of all identifiers, so that it is
/// told which ones are old.
const FAR: usize = if cfg!(test) { 12 } else { 1 << 15 };

/// Messages that very many have overtaken, at least one; their identifiers are left out when they
/// would be given again.
#[derive(Debug, Default)]
struct Overtaken {
    /// With their content, the oldest first.
    all: VecDeque<(Slot, Option<Delivery>)>,
    /// How many of them were sent on the current connection, from the front.
    sent: usize,
}

impl Overtaken {
    fn find(&self, packet_id: u16) -> Option<usize> {
        let mut all = self.all.iter();
        all.position(|(slot, _)| slot.packet_id == packet_id)
    }

    /// Whether some wait to be sent again.
    fn is_rewound(&self) -> bool {
        self.sent < self.all.len()
    }
}

/// Messages in flight, in the order in which their packet identifiers are given: from the next
/// one backwards. They are consecutive unless the session came from elsewhere or took one up, or
/// one is still in use when it would be given again, so an identifier is mostly found by
/// subtraction.
#[derive(Debug)]
pub(crate) struct Window {
    /// Those before all others that very many have overtaken; `None` if there are none, as almost
    /// always.
    overtaken: Option<Box<Overtaken>>,
    entries: VecDeque<Slot>,
    /// Content of the first of them: it is kept only for sessions that can be
    /// resumed, since nothing else could ever re-send it, and of what another member of a shared
    /// subscription may get; and apart: a window may
    /// have thousands of entries, and most sessions end with their connection.
    kept: VecDeque<Option<Delivery>>,
    next_id: u16,
    /// They may not be consecutive.
    gaps: bool,
    /// Entries not `Done`.
    open: u32,
    /// Those of them that are braked.
    braked: u32,
    /// Entries sent on the current connection, from the front.
    sent: usize,
    /// Those of them that are not `Done`.
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
            braked: 0,
            sent: 0,
            sent_open: 0,
        }
    }
}

impl Window {
    /// The identifier of the first message, if there was none yet.
    pub(crate) fn begin_at(&mut self, packet_id: u16) {
        if self.entries.is_empty() {
            self.next_id = packet_id.max(1);
        }
    }

    /// Messages not completely acknowledged.
    #[inline]
    pub(crate) fn open(&self) -> u32 {
        self.open
    }

    /// Whether another message may be sent when the peer allows `max` at once, and as many beside
    /// them of what it takes only little of.
    #[inline]
    pub(crate) fn has_room(&self, max: u16) -> bool {
        let max = u32::from(max);
        (self.open < max || self.open - self.braked.min(max) < max) && self.takes_another()
    }

    /// The same of an urgent one. A neighbour takes twice as many altogether, so it does not wait for
    /// the disk that others wait for there.
    #[inline]
    pub(crate) fn has_urgent_room(&self, max: u16, is_link: bool) -> bool {
        let most = u32::from(max) * (1 + u32::from(is_link));
        self.open < most && self.takes_another() || self.has_room(max)
    }

    /// Whether there is an identifier for another message, and nothing to be sent again before it.
    #[inline]
    fn takes_another(&self) -> bool {
        !self.is_rewound()
            && ((self.entries.len() + self.overtaken_len()) as u32) < PACKET_IDS - 1
            && !(self.gaps && self.is_used_up())
    }

    /// Whether the next identifier is the oldest one that is in use.
    #[cold]
    fn is_used_up(&self) -> bool {
        let oldest = self.entries.front();
        oldest.is_some_and(|oldest| oldest.packet_id == self.next_id)
    }

    /// How many identifiers were given after that one, if it is in use.
    fn age(next_id: u16, packet_id: u16) -> u32 {
        (u32::from(next_id) + PACKET_IDS - 1 - u32::from(packet_id)) % PACKET_IDS
    }

    /// The next identifier is none that is still in use.
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
    fn overtaken_len(&self) -> usize {
        self.overtaken.as_ref().map_or(0, |it| it.all.len())
    }

    #[cold]
    fn find_overtaken(&self, packet_id: u16) -> Option<usize> {
        self.overtaken.as_ref()?.find(packet_id)
    }

    /// Nothing is kept of those that were overtaken if there are none any more.
    fn forget_overtaken(&mut self) {
        self.overtaken.take_if(|it| it.all.is_empty());
    }

    /// The oldest one is not waited for when identifiers are given again.
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
            braked: false,
        });
        self.open += 1;
        self.sent += 1;
        self.sent_open += 1;
        packet_id
    }

    /// Whether another one may be sent of what the peer takes only little of.
    pub(crate) fn has_braked_room(&self, max: u16) -> bool {
        self.has_room(max) && self.braked < u32::from(max)
    }

    /// The message that was put in last is one of those.
    pub(crate) fn brake_last(&mut self) {
        if let Some(last) = self.entries.back_mut()
            && last.step != Step::Done
            && !std::mem::replace(&mut last.braked, true)
        {
            self.braked += 1;
        }
    }

    /// These are, and no others.
    pub(crate) fn brake(&mut self, mut is_braked: impl FnMut(&Delivery) -> bool) {
        self.braked = 0;
        let overtaken = self.overtaken.iter_mut().flat_map(|it| &mut it.all);
        let overtaken = overtaken.map(|(slot, delivery)| (slot, delivery.as_ref()));
        let kept = self.kept.iter().map(Option::as_ref);
        let kept = kept.chain(std::iter::repeat(None));
        for (slot, delivery) in overtaken.chain(self.entries.iter_mut().zip(kept)) {
            slot.braked = slot.step != Step::Done && delivery.is_some_and(&mut is_braked);
            self.braked += u32::from(slot.braked);
        }
    }

    /// That is the content of the message that was put in last.
    #[inline]
    pub(crate) fn keep(&mut self, delivery: Delivery) {
        if self.kept.len() + 1 != self.entries.len() {
            self.keep_none();
        }
        self.kept.push_back(Some(delivery));
    }

    /// The content of the message that was put in last, if it is kept.
    #[inline]
    pub(crate) fn last(&self) -> Option<&Delivery> {
        self.kept.back()?.as_ref()
    }

    /// Nothing is kept of what was put in before the last.
    #[cold]
    fn keep_none(&mut self) {
        let before = self.entries.len().saturating_sub(1);
        self.kept.resize_with(before, || None);
    }

    /// The message that was put in last has that number in the store.
    pub(crate) fn name_last(&mut self, entry: u64) {
        if self.kept.len() == self.entries.len()
            && let Some(Some(delivery)) = self.kept.back_mut()
        {
            delivery.entry = entry;
        }
    }

    /// The place of the message with that identifier, if it was sent and those between it and the
    /// oldest have consecutive ones.
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

    /// The same, wherever there are gaps.
    fn find_between_gaps(&self, packet_id: u16) -> Option<usize> {
        let at = self.search(packet_id).ok()?;
        (at < self.sent).then_some(at)
    }

    /// The place of the message with that identifier, or where it would be.
    fn search(&self, packet_id: u16) -> Result<usize, usize> {
        let age = |packet_id| Self::age(self.next_id, packet_id);
        let own = age(packet_id);
        self.entries
            .binary_search_by(|slot| own.cmp(&age(slot.packet_id)))
    }

    /// Takes the step from `from` to `to` for an identifier; `Done` frees it.
    /// Returns the number of its entry in the store, 0 for none; `None` if no
    /// message with that identifier waits for that step.
    #[inline]
    pub(crate) fn advance(&mut self, packet_id: u16, from: Step, to: Step) -> Option<u64> {
        self.advance_with(packet_id, from, to, drop)
    }

    /// The same; `done` gets what is not needed any more.
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
            self.braked -= u32::from(slot.braked);
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
            self.braked -= u32::from(slot.braked);
            self.sent_open -= 1;
            self.forget_done();
        }
        Some(entry)
    }

    /// Whether a message with that identifier waits for an answer on the current connection.
    #[cold]
    pub(crate) fn waits_for_more(&self, packet_id: u16) -> bool {
        let inflight = self.in_flight(packet_id);
        inflight.is_some_and(|inflight| inflight.step != Step::Done)
    }

    /// Takes an acknowledgement. Returns the step that the message waits for then, and the number of
    /// its entry in the store, 0 for none; `None` if no message with that identifier waits for
    /// anything on the current connection.
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

    /// The same for a message that does not wait for the step that this acknowledgement usually ends.
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

    /// The message with that identifier that was sent, or is about to be, on the
    /// current connection.
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

    /// What was in flight before a restart, to be sent again in the order in which the identifiers
    /// were given, up to the one before `next_id`.
    pub(crate) fn restore(next_id: u16, mut inflight: Vec<(u16, Step, Delivery)>) -> Self {
        let next_id = next_id.max(1);
        let age = |packet_id: u16| Self::age(next_id, packet_id);
        inflight.sort_by_key(|(packet_id, ..)| std::cmp::Reverse(age(*packet_id)));
        inflight.dedup_by_key(|(packet_id, ..)| *packet_id);
        let slot = |(packet_id, step, _): &(u16, Step, Delivery)| Slot {
            packet_id: *packet_id,
            step: *step,
            braked: false,
        };
        Self {
            entries: inflight.iter().map(slot).collect(),
            overtaken: None,
            open: inflight.len() as u32,
            kept: inflight.into_iter().map(|(.., it)| Some(it)).collect(),
            next_id,
            gaps: true,
            braked: 0,
            sent: 0,
            sent_open: 0,
        }
    }

    /// Takes up an identifier that another session of the same client has given to a message with
    /// QoS 2, as one of which PUBCOMP is due: until it comes no other message gets it. Returns
    /// whether PUBREL is to be sent now, which can only be with a connection, if the client
    /// `listens`; `None` if there is a message with that identifier here.
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
            braked: false,
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
        // It goes at once where nothing before it is still to be sent.
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

    /// The message at that place, the oldest at 0.
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

    /// All, the oldest first.
    fn iter(&self) -> impl Iterator<Item = Inflight<'_>> {
        let overtaken = self.overtaken.iter().flat_map(|it| &it.all);
        let overtaken = overtaken.map(Inflight::of_overtaken);
        let slots = self.entries.iter().enumerate();
        overtaken.chain(slots.map(|(at, slot)| self.with_content(at, *slot)))
    }

    /// All that are known.
    pub(crate) fn deliveries_mut(&mut self) -> impl Iterator<Item = &mut Delivery> {
        let overtaken = self.overtaken.iter_mut().flat_map(|it| &mut it.all);
        let overtaken = overtaken.map(|(_, delivery)| delivery);
        overtaken.chain(&mut self.kept).flatten()
    }

    /// What is not completely acknowledged, the oldest first.
    pub(crate) fn unfinished(&self) -> impl Iterator<Item = Inflight<'_>> {
        self.iter().filter(|it| it.step != Step::Done)
    }

    /// What was sent and may not have arrived, the oldest first.
    pub(crate) fn unacknowledged(&self) -> impl Iterator<Item = &Delivery> {
        Self::contents(self.iter())
    }

    /// What is to be sent again on the current connection, the oldest first.
    pub(crate) fn unsent(&self) -> impl Iterator<Item = &Delivery> {
        let overtaken = self.overtaken.iter();
        let overtaken = overtaken.flat_map(|it| it.all.iter().skip(it.sent));
        let overtaken = overtaken.map(Inflight::of_overtaken);
        let slots = self.entries.iter().enumerate().skip(self.sent);
        let slots = slots.map(|(at, slot)| self.with_content(at, *slot));
        Self::contents(overtaken.chain(slots))
    }

    /// Of these, what may not have arrived.
    fn contents<'a>(all: impl Iterator<Item = Inflight<'a>>) -> impl Iterator<Item = &'a Delivery> {
        let unsure = |it: &Inflight<'_>| matches!(it.step, Step::Ack | Step::Rec);
        all.filter(unsure).filter_map(|it| it.delivery)
    }

    /// Takes for done what was sent and may not have arrived; returns the numbers of
    /// the entries in the store.
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
                    self.braked -= u32::from(slot.braked);
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
                self.braked -= u32::from(slot.braked);
                self.sent_open -= u32::from(at < self.sent);
            }
        }
        self.forget_done();
        given_up
    }

    /// Takes the oldest out, for a session that has ended: a message that may not have arrived, or
    /// something else. `None` if nothing is left.
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

    /// Takes everything for done; returns the numbers of the entries in the store.
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

    /// The connection is gone: everything open has to be sent again.
    pub(crate) fn rewind(&mut self) {
        if let Some(overtaken) = &mut self.overtaken {
            overtaken.sent = 0;
        }
        self.sent = 0;
        self.sent_open = 0;
    }

    /// The next entry to send again on a new connection, while the entries
    /// already sent leave room below `max`.
    pub(crate) fn next_resend(&mut self, max: u16) -> Option<Inflight<'_>> {
        if self.is_overtaken_rewound() {
            if self.sent_open >= u32::from(max) {
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
        if self.sent == self.entries.len() || self.sent_open >= u32::from(max) {
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

/// Takes the content that is kept of a message with its next step, if it is not needed any more: the
/// message is done, or not stored; returns the number of what is stored.
#[inline(always)]
fn take_kept(kept: &mut Option<Delivery>, to: Step, done: impl FnOnce(Delivery)) -> u64 {
    let entry = kept.as_ref().map_or(0, |delivery| delivery.entry);
    // Until it is done, what is stored is known by its number.
    if let Some(delivery) = kept.take_if(|_| to == Step::Done || entry == 0) {
        done(delivery);
    }
    entry
}

/// The identifier after that one.
#[inline]
fn following(packet_id: u16) -> u16 {
    match packet_id {
        u16::MAX => 1,
        packet_id => packet_id + 1,
    }
}

/// Whether a message for a neighbour overtakes the newer messages that the link holds
/// ([`SessionHandle::holds`]): a copy of a message that was kept is older than these, and a message that
/// expires has no order.
#[inline]
pub(crate) fn overtakes_held(expires: Nanos, number: Option<Number>) -> bool {
    expires != Nanos::MAX || number.is_some_and(Number::is_again)
}

fn is_older(delivery: &Delivery) -> bool {
    overtakes_held(delivery.message.expires, delivery.number)
}

/// Messages that wait for room in the window: urgent ones by their rank, then
/// normal ones and bulk, each in the order of arrival; those that are braked
/// ([`crate::brake`]) apart. Most sessions have none and pay one word for it.
#[derive(Debug, Default)]
pub(crate) struct Queue(Option<Box<Waiting>>);

/// A message that waits, and since when.
#[derive(Debug)]
struct Queued {
    since: Nanos,
    delivery: Delivery,
}

/// Where a message is put that is not urgent.
#[derive(Debug, Clone, Copy)]
enum End {
    Front,
    Back,
}

impl End {
    #[inline]
    fn put(self, list: &mut VecDeque<Queued>, queued: Queued) {
        match self {
            Self::Front => list.push_front(queued),
            Self::Back => list.push_back(queued),
        }
    }
}

#[derive(Debug, Default)]
struct Waiting {
    normal: VecDeque<Queued>,
    bulk: VecDeque<Queued>,
    urgent: Option<Box<[Lane<Queued>; 2]>>,
    /// Kept back: braked, or held ([`SessionHandle::holds`]).
    braked: Option<Box<Braked>>,
    bytes: usize,
    /// How many have QoS 0.
    unacknowledged: usize,
}

/// Messages that are kept back, normal ones and bulk, each in the order of arrival.
#[derive(Debug, Default)]
struct Braked {
    lanes: [VecDeque<Queued>; 2],
    bytes: usize,
    /// How many are on topics with that hash.
    topics: HashMap<u64, usize, RandomState>,
}

impl Braked {
    fn len(&self) -> usize {
        self.lanes.iter().map(VecDeque::len).sum()
    }

    fn hash(&self, topic: &[u8]) -> u64 {
        self.topics.hasher().hash_one(topic)
    }

    fn push(&mut self, queued: Queued) {
        let message = &queued.delivery.message;
        let topic = self.hash(message.topic_bytes());
        *self.topics.entry(topic).or_default() += 1;
        self.bytes += message.size();
        let bulk = message.stamp.class() == Class::Bulk;
        self.lanes[usize::from(bulk)].push_back(queued);
    }

    fn forget(&mut self, message: &Message) {
        self.bytes -= message.size();
        let topic = self.hash(message.topic_bytes());
        if let Some(count) = self.topics.get_mut(&topic) {
            *count -= 1;
            if *count == 0 {
                self.topics.remove(&topic);
            }
        }
    }
}

impl Waiting {
    fn len(&self) -> usize {
        let urgent = self.urgent().map(Lane::len).sum::<usize>();
        self.normal.len() + self.bulk.len() + urgent + self.braked().map_or(0, Braked::len)
    }

    fn braked(&self) -> Option<&Braked> {
        self.braked.as_deref()
    }

    #[inline(never)]
    fn is_clear(&self) -> bool {
        self.len() == self.braked().map_or(0, Braked::len)
    }

    #[inline(never)]
    fn has_braked(&self, topic: &[u8]) -> bool {
        let braked = self.braked();
        braked.is_some_and(|braked| braked.topics.contains_key(&braked.hash(topic)))
    }

    /// Those that are kept back, by class.
    fn braked_lanes(&self) -> impl Iterator<Item = &VecDeque<Queued>> {
        self.braked().into_iter().flat_map(|braked| &braked.lanes)
    }

    fn urgent(&self) -> impl Iterator<Item = &Lane<Queued>> {
        self.urgent.iter().flat_map(|lanes| lanes.iter())
    }

    /// Removes one of the least urgent class if it is not more urgent than that: the first, if its
    /// deadline has passed, or the least urgent.
    fn give_up_urgent(&mut self, rank: Rank, now: Nanos) -> Option<Queued> {
        let lanes = self.urgent.as_mut()?;
        let mut classes = [Class::Priority, Class::RealTime].into_iter();
        let class = classes.find(|class| !lanes[*class as usize].is_empty())?;
        if class < rank.class {
            return None;
        }
        let lane = &mut lanes[class as usize];
        let is_late = |queued: &Queued| queued.delivery.message.stamp.deadline < now;
        if lane.peek().is_some_and(|(_, first)| is_late(first)) {
            return lane.pop().map(|(_, _, first)| first);
        }
        match lane.worst_key() {
            Some(key) if (class, key) >= (rank.class, rank.key) => {
                lane.give_up().map(|(_, worst)| worst)
            }
            _ => None,
        }
    }

    #[inline]
    fn has_urgent(&self) -> bool {
        self.urgent().any(|lane| !lane.is_empty())
    }
}

impl Queue {
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.0.as_ref().map_or(0, |waiting| waiting.len())
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Whether nothing waits that goes before a message that comes now.
    #[inline]
    pub(crate) fn is_clear(&self) -> bool {
        self.0.as_deref().is_none_or(Waiting::is_clear)
    }

    /// How many messages are kept back, and their bytes.
    pub(crate) fn braked(&self) -> (usize, usize) {
        let braked = self.0.as_ref().and_then(|waiting| waiting.braked());
        braked.map_or((0, 0), |braked| (braked.len(), braked.bytes))
    }

    /// Whether one on that topic is kept back.
    #[inline]
    pub(crate) fn has_braked(&self, topic: &[u8]) -> bool {
        let waiting = self.0.as_deref();
        waiting.is_some_and(|waiting| waiting.has_braked(topic))
    }

    /// Whether no urgent messages wait.
    pub(crate) fn has_no_urgent(&self) -> bool {
        self.0.as_ref().is_none_or(|waiting| !waiting.has_urgent())
    }

    /// All that wait: first the urgent ones, in no order, then normal ones, then
    /// bulk, then what is kept back.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Delivery> {
        self.0.iter().flat_map(|waiting| {
            let urgent = waiting.urgent().flat_map(Lane::iter);
            let all = urgent.chain(&waiting.normal).chain(&waiting.bulk);
            let all = all.chain(waiting.braked_lanes().flatten());
            all.map(|queued| &queued.delivery)
        })
    }

    /// Puts messages before all that wait, each with the time since which it waits. The work is that of
    /// these messages and of the urgent ones that wait.
    pub(crate) fn put_before(&mut self, earlier: Vec<(Nanos, Delivery)>) {
        // Urgent messages of one rank leave in the order in which they came.
        let mut later = Vec::new();
        while let Some(urgent) = self.pop_urgent() {
            later.push(urgent);
        }
        let is_urgent = |it: &Delivery| it.message.stamp.class() < Class::Normal;
        let mut lower = Vec::new();
        for (since, delivery) in earlier {
            match is_urgent(&delivery) {
                true => self.push(delivery, since),
                false => lower.push((since, delivery)),
            }
        }
        for (since, delivery) in later {
            self.push(delivery, since);
        }
        for (since, delivery) in lower.into_iter().rev() {
            self.put(delivery, since, End::Front);
        }
    }

    /// Puts the messages of another queue behind all that wait. The work is that of these messages.
    pub(crate) fn append(&mut self, mut later: Self) {
        while let Some((since, delivery)) = later.pop().or_else(|| later.pop_braked()) {
            self.push(delivery, since);
        }
    }

    /// How much waits.
    pub(crate) fn load(&self) -> Load {
        let Some(waiting) = &self.0 else {
            return Load::default();
        };
        let mut messages = [0, 0, waiting.normal.len(), waiting.bulk.len()];
        for (count, lane) in messages.iter_mut().zip(waiting.urgent()) {
            *count = lane.len();
        }
        for (count, lane) in messages[2..].iter_mut().zip(waiting.braked_lanes()) {
            *count += lane.len();
        }
        Load {
            messages,
            bytes: waiting.bytes,
        }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.0.as_ref().map_or(0, |waiting| waiting.bytes)
    }

    /// Whether messages with QoS 0 wait, which none may overtake.
    #[inline]
    pub(crate) fn has_qos0(&self) -> bool {
        self.0
            .as_ref()
            .is_some_and(|waiting| waiting.unacknowledged > 0)
    }

    /// Whether something waits since that time or longer.
    pub(crate) fn has_since(&self, time: Nanos) -> bool {
        let Some(waiting) = &self.0 else {
            return false;
        };
        let fronts = [waiting.normal.front(), waiting.bulk.front()];
        let braked = waiting.braked_lanes().filter_map(VecDeque::front);
        let urgent = waiting.urgent().flat_map(Lane::iter);
        let mut oldest = fronts.into_iter().flatten().chain(braked).chain(urgent);
        oldest.any(|queued| queued.since <= time)
    }

    /// What goes next.
    pub(crate) fn front(&mut self) -> Option<&Delivery> {
        let waiting = self.0.as_mut()?;
        if let Some(lanes) = &mut waiting.urgent {
            for lane in lanes.iter_mut() {
                if !lane.is_empty() {
                    return lane.peek().map(|(_, queued)| &queued.delivery);
                }
            }
        }
        let lower = waiting.normal.front().or_else(|| waiting.bulk.front());
        lower.map(|queued| &queued.delivery)
    }

    /// Bytes that are copied when the next message comes that is not urgent, since the memory for those
    /// that wait is full.
    pub(crate) fn growth(&self) -> usize {
        let full = |list: &VecDeque<Queued>| match list.len() == list.capacity() {
            true => size_of_val(list.as_slices().0) + size_of_val(list.as_slices().1),
            false => 0,
        };
        let growth = |waiting: &Waiting| full(&waiting.normal).max(full(&waiting.bulk));
        self.0.as_deref().map_or(0, growth)
    }

    pub(crate) fn push(&mut self, delivery: Delivery, now: Nanos) {
        self.put(delivery, now, End::Back);
    }

    #[inline]
    fn put(&mut self, delivery: Delivery, now: Nanos, end: End) {
        let waiting = self.0.get_or_insert_default();
        let rank = delivery.message.stamp.rank;
        let size = delivery.message.size();
        let unacknowledged = usize::from(delivery.qos == QoS::AtMostOnce);
        let queued = Queued {
            since: now,
            delivery,
        };
        match rank.class {
            Class::RealTime | Class::Priority => {
                let lanes = waiting.urgent.get_or_insert_default();
                if lanes[rank.class as usize & 1]
                    .push(rank.key, true, queued)
                    .is_err()
                {
                    // Sixteen million wait: a bound of messages that high is none.
                    return;
                }
            }
            Class::Normal => end.put(&mut waiting.normal, queued),
            Class::Bulk => end.put(&mut waiting.bulk, queued),
        }
        waiting.bytes += size;
        waiting.unacknowledged += unacknowledged;
    }

    /// Keeps one back that is not urgent.
    pub(crate) fn push_braked(&mut self, delivery: Delivery, now: Nanos) {
        let waiting = self.0.get_or_insert_default();
        waiting.bytes += delivery.message.size();
        let braked = waiting.braked.get_or_insert_default();
        braked.push(Queued {
            since: now,
            delivery,
        });
    }

    /// Counts the waiting time of all messages that are kept back from now on.
    fn renew_braked(&mut self, now: Nanos) {
        let braked = self.0.as_mut().and_then(|waiting| waiting.braked.as_mut());
        let lanes = braked.into_iter().flat_map(|braked| &mut braked.lanes);
        lanes.flatten().for_each(|queued| queued.since = now);
    }

    /// Takes the first of those that are kept back, unless something of its class has waited in the
    /// queue for as long.
    pub(crate) fn pop_braked(&mut self) -> Option<(Nanos, Delivery)> {
        let waiting = self.0.as_mut()?;
        let lanes = &mut waiting.braked.as_mut()?.lanes;
        let before = [waiting.normal.front(), waiting.bulk.front()];
        let queued = lanes.iter_mut().zip(before).find_map(|(lane, before)| {
            lane.pop_front_if(|first| before.is_none_or(|before| first.since < before.since))
        })?;
        self.forget_braked(&queued.delivery);
        Some((queued.since, queued.delivery))
    }

    /// From now on these are kept back, and what comes behind them on their topics.
    pub(crate) fn sort_out(&mut self, mut is_braked: impl FnMut(&Delivery) -> bool) {
        let Some(waiting) = &mut self.0 else {
            return;
        };
        let mut before = waiting.braked.take().unwrap_or_default();
        let mut braked = Box::<Braked>::default();
        let queues = [&mut waiting.normal, &mut waiting.bulk];
        for (queue, kept) in queues.into_iter().zip(&mut before.lanes) {
            let mut all = std::mem::take(queue);
            // As they came; what is kept back came last of those that came at once.
            while let Some(next) = match (all.front(), kept.front()) {
                (Some(first), Some(other)) if first.since > other.since => kept.pop_front(),
                (Some(_), _) => all.pop_front(),
                (None, _) => kept.pop_front(),
            } {
                let topic = next.delivery.message.topic_bytes();
                let is_kept = is_braked(&next.delivery)
                    || next.delivery.qos > QoS::AtMostOnce
                        && braked.topics.contains_key(&braked.hash(topic));
                match is_kept {
                    true => braked.push(next),
                    false => queue.push_back(next),
                }
            }
        }
        waiting.braked = (braked.len() > 0).then_some(braked);
    }

    /// Takes what goes next, and since when it has waited.
    pub(crate) fn pop(&mut self) -> Option<(Nanos, Delivery)> {
        let waiting = self.0.as_mut()?;
        if waiting.has_urgent() {
            return self.pop_urgent();
        }
        // One branch for each list: their messages are moved once.
        if let Some(Queued { since, delivery }) = waiting.normal.pop_front() {
            self.forget(&delivery);
            return Some((since, delivery));
        }
        let Queued { since, delivery } = waiting.bulk.pop_front()?;
        self.forget(&delivery);
        Some((since, delivery))
    }

    #[inline(never)]
    fn pop_urgent(&mut self) -> Option<(Nanos, Delivery)> {
        let lanes = self.0.as_mut()?.urgent.as_mut()?;
        let (_, _, queued) = lanes.iter_mut().find_map(Lane::pop)?;
        self.forget(&queued.delivery);
        Some((queued.since, queued.delivery))
    }

    /// Removes what goes first for a message with that QoS and rank that needs the room: the oldest of
    /// bulk, then of the normal ones, then an urgent one that is not more urgent, see
    /// [`crate::overflow`]. Plain messages stay that `may_go` does not let go by their topic, and with
    /// `spares_urgent` all urgent ones.
    pub(crate) fn give_up(
        &mut self,
        (qos, rank): (QoS, Rank),
        now: Nanos,
        spares_urgent: bool,
        may_go: impl Fn(&str) -> bool,
    ) -> Option<Delivery> {
        let waiting = self.0.as_mut()?;
        let goes = |queued: &mut Queued| {
            let delivery = &queued.delivery;
            let is_worth_it = qos > QoS::AtMostOnce || delivery.qos == QoS::AtMostOnce;
            is_worth_it && may_go(delivery.message.topic())
        };
        let mut queued = waiting.bulk.pop_front_if(goes);
        if queued.is_none() && rank.class != Class::Bulk {
            queued = waiting.normal.pop_front_if(goes);
        }
        if queued.is_none() && !spares_urgent {
            queued = waiting.give_up_urgent(rank, now);
        }
        let delivery = queued?.delivery;
        self.forget(&delivery);
        Some(delivery)
    }

    fn forget_braked(&mut self, delivery: &Delivery) {
        if let Some(waiting) = &mut self.0
            && let Some(braked) = &mut waiting.braked
        {
            braked.forget(&delivery.message);
            if braked.len() == 0 {
                waiting.braked = None;
            }
        }
        self.forget(delivery);
    }

    fn forget(&mut self, delivery: &Delivery) {
        if let Some(waiting) = &mut self.0 {
            waiting.bytes -= delivery.message.size();
            waiting.unacknowledged -= usize::from(delivery.qos == QoS::AtMostOnce);
            if waiting.len() == 0 {
                self.0 = None;
            }
        }
    }

    /// Removes what has expired and tells `gone` the numbers of the entries in
    /// the store; returns how much that was, and when the next expires.
    pub(crate) fn sweep(&mut self, now: Nanos, gone: impl FnMut(u64)) -> (Load, Nanos) {
        let mut next = Nanos::MAX;
        let lasts = |message: &Message| {
            let lasts = !message.is_expired(now);
            if lasts {
                next = next.min(message.expires);
            }
            lasts
        };
        (self.retain(lasts, gone), next)
    }

    /// Removes all messages but those, and tells `gone` the numbers of the entries in the store;
    /// returns how much that was.
    pub(crate) fn retain(
        &mut self,
        mut stays: impl FnMut(&Message) -> bool,
        mut gone: impl FnMut(u64),
    ) -> Load {
        let mut swept = Load::default();
        if let Some(waiting) = &mut self.0 {
            let mut unacknowledged = 0;
            let mut keep = |Queued { delivery, .. }: &Queued| {
                let keep = stays(&delivery.message);
                if !keep {
                    gone(delivery.entry);
                    swept.add(&delivery.message);
                    unacknowledged += usize::from(delivery.qos == QoS::AtMostOnce);
                }
                keep
            };
            waiting.normal.retain(&mut keep);
            waiting.bulk.retain(&mut keep);
            for lane in waiting.urgent.iter_mut().flat_map(|lanes| lanes.iter_mut()) {
                lane.retain(&mut keep);
            }
            if let Some(mut before) = waiting.braked.take() {
                let mut braked = Box::<Braked>::default();
                for queued in before.lanes.iter_mut().flat_map(std::mem::take) {
                    if keep(&queued) {
                        braked.push(queued);
                    }
                }
                waiting.braked = (braked.len() > 0).then_some(braked);
            }
            waiting.bytes -= swept.bytes;
            waiting.unacknowledged -= unacknowledged;
            if waiting.len() == 0 {
                self.0 = None;
            }
        }
        swept
    }
}

/// A will message; its `expires` is an interval until it is published.
#[derive(Debug)]
pub(crate) struct Will {
    pub(crate) message: Arc<Message>,
    /// Seconds between the loss of the connection and its publication.
    pub(crate) delay: u32,
    /// What it is called in the mesh.
    pub(crate) name: Option<MessageName>,
    /// When it is to be published, once its client is gone.
    pub(crate) due: Option<Nanos>,
    /// Its bytes among those of all wills, as long as it waits.
    #[expect(dead_code, reason = "it is there to be dropped with the will")]
    pub(crate) reserved: Option<Reserved>,
}

/// What is known of a QoS 2 message until its PUBREL comes.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Received {
    /// What its PUBREC waits for; 0 for nothing.
    pub(crate) ticket: u64,
    /// The store knows of it.
    pub(crate) stored: bool,
    /// In a mesh: it came before the client connected last.
    pub(crate) earlier: bool,
    /// In a mesh: of its topic and content, see [`gist`]; 0 if that is not known.
    pub(crate) gist: u32,
}

impl Received {
    /// Whether a PUBLISH with the same identifier is another message, and what is known here is void.
    ///
    /// In a mesh another broker may have a copy of the session, if a link was cut while it moved, or
    /// the client another session. There it may have sent PUBREL, and have had PUBCOMP, for what is
    /// noted here, so that the identifier is free, and is used again; and neither broker need have
    /// heard of the other's connection. On one connection all with the same identifier is one
    /// message until PUBREL, whatever DUP says [MQTT-4.3.3-10]. What came on an earlier one is
    /// repeated with DUP [MQTT-3.3.1-1], while a new message has DUP 0 [MQTT-4.3.3-2] and an identifier
    /// that is not in use [MQTT-2.2.1-3]: with DUP 0 it is no repetition. With DUP 1 it is one, here or of
    /// something that went elsewhere and may not have arrived there (3.3.1.1); that is another one
    /// unless it says the same.
    pub(crate) fn is_other(&self, dup: bool, gist: impl FnOnce() -> u32) -> bool {
        self.earlier && (!dup || self.gist != 0 && self.gist != gist())
    }
}

/// A number for a message, the same at all brokers, by which another one is told from a repetition;
/// never 0.
pub(crate) fn gist(topic: &[u8], payload: &[u8]) -> u32 {
    let mix = |hash: u64, word: u64| {
        let hash = (hash ^ word).wrapping_mul(0xD6E8_FEB8_6659_FD93);
        hash ^ hash >> 32
    };
    let (words, rest) = payload.as_chunks();
    let words = words.iter().copied().map(u64::from_le_bytes);
    let rest = rest.iter().copied().map(u64::from);
    let begin = punctual_model::digest(topic.iter().copied());
    let all = [payload.len() as u64].into_iter().chain(words).chain(rest);
    (all.fold(begin, mix) as u32).max(1)
}

/// A session.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) handle: Arc<SessionHandle>,
    /// Slot of the connection, while there is one.
    pub(crate) conn: Option<u32>,
    /// Changes with every connect and disconnect, so that timers of earlier
    /// epochs are recognised.
    pub(crate) epoch: u64,
    /// Seconds it outlives its connection; `u32::MAX` for ever.
    pub(crate) expiry: u32,
    /// When its client connected last, for a mesh.
    pub(crate) arrived: u64,
    pub(crate) window: Window,
    pub(crate) queue: Queue,
    pub(crate) subscriptions: Subscriptions,
    pub(crate) replays: Replays,
    /// A task looks retained messages up for it.
    pub(crate) replay_waits: bool,
    /// QoS 2 identifiers received and not yet released.
    pub(crate) incoming: Option<Box<HashMap<u16, Received, RandomState>>>,
    pub(crate) will: Option<Box<Will>>,
    pub(crate) username: Option<Arc<str>>,
    /// The listener that its client has come by last, since this process runs.
    pub(crate) listener: Option<u16>,
    /// When the queue is next swept; `MAX` if it need not be.
    pub(crate) sweep_at: Nanos,
    /// Traffic classes it receives, a bit each.
    pub(crate) classes: u8,
    /// Whether whoever admits flows knows of it.
    pub(crate) asked: bool,
    /// Whether the store has it.
    pub(crate) durable: bool,
    /// Whether the store has what it leaves behind, though not itself: it ends with its connection.
    pub(crate) has_testament: bool,
    /// Ticket of what says that it exists.
    pub(crate) created: u64,
    /// The store does not know what it is now.
    pub(crate) stale: bool,
    /// Since when it has no connection, as that is stored.
    pub(crate) detached: Option<Wall>,
    /// What is promised about what its client publishes.
    pub(crate) durability: Durability,
    /// Flows that its client publishes.
    pub(crate) flows: Option<Box<Flows>>,
    /// Numbers of what it is sent, since a subscription asked for them.
    pub(crate) sequences: Option<Box<Sequences>>,
    /// It is that of a neighbour broker.
    pub(crate) link: Option<Box<LinkState>>,
    /// In a mesh: what had been here when it began to be here with subscriptions; `None` if that was
    /// before this broker started, and is not stored.
    pub(crate) began: Option<Box<Stored<Began>>>,
    /// What may come again, while that is likely.
    pub(crate) had: Option<Box<Had>>,
    /// What it is where sessions move between brokers.
    pub(crate) custody: Option<Box<Stored<Record>>>,
    /// What it has lost because its queue was full, if anything.
    pub(crate) losses: Option<Box<Losses>>,
    /// In a mesh: its policy is to refuse, and its queue is nearly full, as neighbours are told.
    pub(crate) is_full: bool,
}

/// Something of a session that the store has under a key of its own, or is to be told.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stored<T> {
    pub(crate) value: T,
    /// The store has it.
    pub(crate) is_stored: bool,
}

impl<T> Stored<T> {
    /// The store is to be told of it.
    pub(crate) const fn new(value: T) -> Self {
        Self {
            value,
            is_stored: false,
        }
    }

    /// The store has it.
    pub(crate) const fn restored(value: T) -> Self {
        Self {
            value,
            is_stored: true,
        }
    }
}

impl Session {
    /// What decides between it and another session of its client; `None` if it is none, or sessions do
    /// not move.
    pub(crate) fn mark(&self) -> Option<&Mark> {
        match self.record() {
            Some(Record::Session(mark)) => Some(mark),
            _ => None,
        }
    }

    /// Whether what it queues is forwarded.
    pub(crate) fn is_stub(&self) -> bool {
        matches!(self.record(), Some(Record::Stub { .. }))
    }

    /// Its client as publisher.
    pub(crate) fn author(&self) -> Author {
        Author {
            user: self.username.clone(),
            client_id: self.handle.client_id.clone(),
            listener: self.listener,
        }
    }

    /// What had been here when it began to be here.
    pub(crate) fn began(&self) -> Option<Began> {
        self.began.as_deref().map(|began| began.value)
    }

    pub(crate) fn set_began(&mut self, began: Option<Stored<Began>>) {
        self.began = began.map(Box::new);
    }

    /// What it is where sessions move.
    pub(crate) fn record(&self) -> Option<&Record> {
        self.custody.as_deref().map(|custody| &custody.value)
    }

    pub(crate) fn new(handle: Arc<SessionHandle>) -> Self {
        Self {
            handle,
            conn: None,
            epoch: 0,
            expiry: 0,
            arrived: 0,
            window: Window::default(),
            queue: Queue::default(),
            subscriptions: Subscriptions::default(),
            replay_waits: false,
            replays: Replays::default(),
            incoming: None,
            will: None,
            username: None,
            listener: None,
            sweep_at: Nanos::MAX,
            classes: crate::urgency::ALL_CLASSES,
            asked: false,
            durable: false,
            has_testament: false,
            created: 0,
            stale: false,
            detached: None,
            durability: Durability::None,
            flows: None,
            sequences: None,
            link: None,
            began: None,
            had: None,
            custody: None,
            losses: None,
            is_full: false,
        }
    }

    /// The number of the next message on a topic, if messages are numbered.
    #[inline]
    pub(crate) fn number(&mut self, topic: &[u8], most: usize) -> Option<Number> {
        let sequences = self.sequences.as_mut()?;
        Some(sequences.next(topic, most))
    }

    /// Whether a message that is sent again waits already for a neighbour that takes nothing now; so much
    /// says its Receive Maximum, if it is connected.
    pub(crate) fn keeps_copy(&self, number: Option<Number>, receive_max: Option<u16>) -> bool {
        if !number.is_some_and(Number::is_again) || receive_max.is_some_and(|max| max > 0) {
            return false;
        }
        let mut kept = self.undelivered();
        kept.any(|delivery| delivery.number == number)
    }

    /// Messages that its client may not have: first those in flight, the oldest first, then those that
    /// wait.
    pub(crate) fn undelivered(&self) -> impl Iterator<Item = &Delivery> {
        self.window.unacknowledged().chain(self.queue.iter())
    }

    /// Packet identifiers of messages with QoS 2 that its client may remember, and these messages.
    pub(crate) fn remembered(&self) -> impl Iterator<Item = TakenUp> {
        let exactly = |it: &Inflight<'_>| matches!(it.step, Step::Rec | Step::Comp);
        let handshakes = self.window.unfinished().filter(exactly);
        handshakes.map(|it| (it.packet_id, it.delivery.cloned()))
    }

    /// What it is from now on where sessions move.
    pub(crate) fn set_record(&mut self, record: Stored<Record>) {
        let is_stub = matches!(record.value, Record::Stub { .. });
        self.handle.carries.store(is_stub, Ordering::Relaxed);
        self.custody = Some(Box::new(record));
    }

    /// Puts one in the queue, or keeps it back.
    pub(crate) fn enqueue(&mut self, delivery: Delivery, now: Nanos) {
        let topic = delivery.message.topic_bytes();
        let is_plain =
            delivery.qos > QoS::AtMostOnce && !delivery.message.stamp.class().is_urgent();
        let handle = &self.handle;
        let is_older = is_older(&delivery);
        let is_behind = !(is_older && handle.holds()) && self.queue.has_braked(topic);
        match is_plain && (handle.is_kept_back(topic, delivery.retain, is_older) || is_behind) {
            true => self.queue.push_braked(delivery, now),
            false => self.queue.push(delivery, now),
        }
    }

    /// Of what is on these filters the neighbour takes only little from now on.
    pub(crate) fn set_brake(&mut self, filters: Arc<[Box<str>]>) {
        let Some(link) = &mut self.link else {
            return;
        };
        if link.brake.is_empty() && filters.is_empty() {
            return;
        }
        self.handle.set_brake(Brake::new(&filters));
        link.brake = filters;
        self.sort_out();
    }

    /// The link does not hold newer messages any more: they queue behind all messages that wait. Returns
    /// whether the link held them before.
    pub(crate) fn end_hold(&mut self, now: Nanos) -> bool {
        let held = self.handle.set_holds(false);
        if held {
            self.queue.renew_braked(now);
            self.sort_out();
        }
        held
    }

    /// Decides anew for each waiting message whether it is kept back.
    fn sort_out(&mut self) {
        let handle = &self.handle;
        let is_braked = |delivery: &Delivery| {
            let topic = delivery.message.topic_bytes();
            delivery.qos > QoS::AtMostOnce
                && handle.is_kept_back(topic, delivery.retain, is_older(delivery))
        };
        self.queue.sort_out(is_braked);
        self.window.brake(is_braked);
        self.share_queue_len();
    }

    /// The client connects where brokers form a mesh, see [`Received::is_other`].
    pub(crate) fn mark_received(&mut self) {
        let incoming = self.incoming.iter_mut();
        let known = incoming.flat_map(|incoming| incoming.values_mut());
        known.for_each(|known| known.earlier = true);
    }

    /// Whether it ends with its connection.
    #[inline]
    pub(crate) fn is_transient(&self) -> bool {
        self.expiry == 0
    }

    /// Notes that something in the queue expires then; true if the queue is to
    /// be swept earlier because of that. Rounded up to whole seconds, so that a
    /// queue is swept at most once a second.
    pub(crate) fn sweep_by(&mut self, expires: Nanos) -> bool {
        if expires == Nanos::MAX {
            return false;
        }
        let at = Nanos::from_secs(expires.as_secs().saturating_add(1));
        let earlier = at < self.sweep_at;
        self.sweep_at = self.sweep_at.min(at);
        earlier
    }

    /// Tells other shards how much waits.
    #[inline]
    pub(crate) fn share_queue_len(&self) {
        self.handle
            .queued
            .store(self.queue.len() as u32, Ordering::Release);
        self.handle
            .queued_bytes
            .store(self.queue.bytes(), Ordering::Release);
        if let Some(braking) = &self.handle.braking {
            let (messages, bytes) = self.queue.braked();
            braking.share(messages, bytes);
        }
    }
}

/// Sessions by client identifier. The identifiers are not stored again: a slot
/// leads to the session that has it.
#[derive(Debug, Default)]
pub(crate) struct Names {
    table: HashTable<u32>,
    hasher: foldhash::quality::RandomState,
}

impl Names {
    pub(crate) fn find(&self, sessions: &Slab<Session>, client_id: &str) -> Option<u32> {
        let named = |slot: &u32| name(sessions, *slot) == client_id;
        let hash = self.hasher.hash_one(client_id);
        self.table.find(hash, named).copied()
    }

    /// Adds a session that is in `sessions`.
    pub(crate) fn insert(&mut self, sessions: &Slab<Session>, slot: u32) {
        let hash = |slot: &u32| self.hasher.hash_one(name(sessions, *slot));
        self.table.insert_unique(hash(&slot), slot, hash);
    }

    /// Removes a session, which may have left `sessions` already.
    pub(crate) fn remove(&mut self, client_id: &str, slot: u32) {
        let hash = self.hasher.hash_one(client_id);
        if let Ok(entry) = self.table.find_entry(hash, |other| *other == slot) {
            entry.remove();
        }
    }
}

fn name(sessions: &Slab<Session>, slot: u32) -> &str {
    sessions
        .get(slot)
        .map_or("", |session| &session.handle.client_id)
}

#[cfg(test)]
mod tests {
    use punctual_codec::Properties;

    use super::*;

    /// With that number in the store.
    fn delivery(entry: u64) -> Delivery {
        let (qos, none) = (QoS::ExactlyOnce, Properties::EMPTY);
        Delivery {
            message: Message::new(b"t", none, &[], qos, false, Nanos(0), 1),
            subscription_ids: None,
            qos,
            retain: false,
            share: 0,
            number: None,
            entry,
        }
    }

    proptest::proptest! {
        #[test]
        fn a_window_has_the_content_of_what_is_kept(
            // A message that is kept or not, or the end of one that is open.
            steps in proptest::collection::vec(
                (proptest::bool::ANY, proptest::option::of(0..8_usize)),
                0..300,
            ),
        ) {
            let mut window = Window::default();
            let mut model: Vec<(u16, u64)> = Vec::new();
            for (at, (kept, done)) in steps.into_iter().enumerate() {
                match done {
                    Some(place) if !model.is_empty() => {
                        let (id, entry) = model.remove(place % model.len());
                        let advanced = window.advance(id, Step::Ack, Step::Done);
                        proptest::prop_assert_eq!(advanced, Some(entry));
                        proptest::prop_assert_eq!(window.advance(id, Step::Ack, Step::Done), None);
                    }
                    _ => {
                        let entry = if kept { at as u64 + 1 } else { 0 };
                        let id = window.push(QoS::AtLeastOnce);
                        if kept {
                            window.keep(delivery(0));
                            window.name_last(entry);
                        }
                        model.push((id, entry));
                    }
                }
                let open: Vec<_> = window.unfinished().map(|it| (it.packet_id, it.entry())).collect();
                proptest::prop_assert_eq!(&open, &model);
                for (id, entry) in &model {
                    let found = window.in_flight(*id).map(|it| it.entry());
                    proptest::prop_assert_eq!(found, Some(*entry));
                }
                let kept = model.iter().filter(|(_, entry)| *entry > 0).count();
                proptest::prop_assert_eq!(window.unacknowledged().count(), kept);
            }
        }
    }

    /// What a window is to do, in a plain way: what is open, in the order of the identifiers, which
    /// are counted on without end.
    #[derive(Debug, Default)]
    struct Model {
        open: Vec<Open>,
        next: u64,
    }

    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    struct Open {
        count: u64,
        step: Step,
        entry: u64,
        sent: bool,
    }

    fn id_of(count: u64) -> u16 {
        (count % u64::from(u16::MAX)) as u16 + 1
    }

    impl Model {
        fn place(&self, packet_id: u16) -> Option<usize> {
            self.open.iter().position(|it| id_of(it.count) == packet_id)
        }

        fn is_sent(&self) -> bool {
            self.open.iter().all(|it| it.sent)
        }

        /// Identifiers that may be given, where the oldest of those that were not overtaken is at
        /// that place.
        fn free(&self, oldest: usize) -> u64 {
            let oldest = self.open.get(oldest).map_or(self.next, |it| it.count);
            u64::from(u16::MAX) - (self.next - oldest)
        }

        /// Leaves out those that are in use, up to that one; false if others are between.
        fn leave_out(&mut self, packet_id: u16) -> bool {
            while id_of(self.next) != packet_id {
                if self.place(id_of(self.next)).is_none() {
                    return false;
                }
                self.next += 1;
            }
            true
        }

        /// The order in which identifiers seem to have been given.
        fn sort(&mut self) {
            let ids = u64::from(u16::MAX);
            for it in &mut self.open {
                while it.count + ids < self.next {
                    it.count += ids;
                }
            }
            self.open.sort_by_key(|it| it.count);
        }

        fn push(&mut self, step: Step, entry: u64) {
            let (count, sent) = (self.next, true);
            self.open.push(Open {
                count,
                step,
                entry,
                sent,
            });
            self.next += 1;
        }

        fn advance(&mut self, packet_id: u16, from: Step, to: Step) -> Option<u64> {
            let place = self.place(packet_id)?;
            let it = &mut self.open[place];
            if !it.sent || it.step != from {
                return None;
            }
            it.step = to;
            let entry = it.entry;
            if to == Step::Done {
                self.open.remove(place);
            }
            Some(entry)
        }

        fn take_up(
            &mut self,
            packet_id: u16,
            entry: u64,
            listens: bool,
            overtaken: usize,
        ) -> Option<bool> {
            if self.place(packet_id).is_some() {
                return None;
            }
            let ids = u64::from(u16::MAX);
            let counts = self.next - ids..self.next;
            let count = counts.into_iter().find(|it| id_of(*it) == packet_id)?;
            let rest = &self.open[overtaken..];
            let at = overtaken + rest.partition_point(|it| it.count < count);
            let sent = listens && self.open[..at].iter().all(|it| it.sent);
            let step = Step::Comp;
            self.open.insert(
                at,
                Open {
                    count,
                    step,
                    entry,
                    sent,
                },
            );
            Some(sent)
        }

        fn next_resend(&mut self, max: u16) -> Option<Open> {
            let sent = self.open.iter().filter(|it| it.sent).count();
            let next = self.open.iter_mut().find(|it| !it.sent)?;
            (sent < usize::from(max)).then(|| {
                next.sent = true;
                *next
            })
        }
    }

    #[derive(Debug, Clone)]
    enum Act {
        Push(bool, bool),
        /// Which of those that are open.
        Advance(usize, Step, Step),
        AdvanceAny(i32, Step, Step),
        /// How far behind the next identifier.
        TakeUp(i32, bool),
        Disconnect,
        Connect(u16),
        Resend(u16),
        Restart,
    }

    fn act() -> impl proptest::strategy::Strategy<Value = Act> {
        use proptest::prelude::*;
        let step = || {
            proptest::sample::select(vec![
                (Step::Ack, Step::Done),
                (Step::Rec, Step::Comp),
                (Step::Rec, Step::Done),
                (Step::Comp, Step::Done),
            ])
        };
        let distance = || prop_oneof![-20..20, -70_000..70_000];
        prop_oneof![
            8 => any::<(bool, bool)>().prop_map(|(exactly, kept)| Act::Push(exactly, kept)),
            8 => (0..20_usize, step()).prop_map(|(at, (from, to))| Act::Advance(at, from, to)),
            1 => (distance(), step()).prop_map(|(at, (from, to))| Act::AdvanceAny(at, from, to)),
            2 => (distance(), any::<bool>()).prop_map(|(at, kept)| Act::TakeUp(at, kept)),
            1 => Just(Act::Disconnect),
            2 => (1..12_u16).prop_map(Act::Connect),
            4 => (1..12_u16).prop_map(Act::Resend),
            1 => Just(Act::Restart),
        ]
    }

    proptest::proptest! {
        #[test]
        fn a_window_does_what_its_model_does(
            begin in proptest::sample::select(vec![1_u16, 100, 65_500, 65_535]),
            acts in proptest::collection::vec(act(), 0..300),
        ) {
            let ids = u64::from(u16::MAX);
            let mut window = Window::default();
            window.begin_at(begin);
            let mut model = Model { next: 10 * ids + u64::from(begin) - 1, ..Model::default() };
            let (mut listens, mut entries) = (true, 0);
            for act in acts {
                entries += 1;
                let overtaken = window.overtaken_len();
                let far = |distance: i32| id_of(model.next.wrapping_add_signed(-i64::from(distance)));
                let number = |kept: bool| if kept { entries } else { 0 };
                match act {
                    Act::Push(exactly, kept) if listens && window.has_room(u16::MAX) => {
                        let (qos, step) = match exactly {
                            true => (QoS::ExactlyOnce, Step::Rec),
                            false => (QoS::AtLeastOnce, Step::Ack),
                        };
                        let id = window.push(qos);
                        proptest::prop_assert_eq!(id, id_of(model.next));
                        proptest::prop_assert_eq!(model.place(id), None);
                        if kept {
                            window.keep(delivery(0));
                            window.name_last(entries);
                        }
                        model.push(step, number(kept));
                    }
                    Act::Push(..) => {}
                    Act::Advance(at, from, to) => {
                        let Some(it) = model.open.get(at % model.open.len().max(1)) else {
                            continue;
                        };
                        let id = id_of(it.count);
                        let advanced = window.advance(id, from, to);
                        proptest::prop_assert_eq!(advanced, model.advance(id, from, to));
                    }
                    Act::AdvanceAny(distance, from, to) => {
                        let id = far(distance);
                        let advanced = window.advance(id, from, to);
                        proptest::prop_assert_eq!(advanced, model.advance(id, from, to));
                    }
                    Act::TakeUp(distance, kept) => {
                        let id = far(distance);
                        let content = kept.then(|| delivery(entries));
                        let taken = window.take_up(id, content, listens);
                        proptest::prop_assert_eq!(taken, model.take_up(id, number(kept), listens, overtaken));
                    }
                    Act::Disconnect => {
                        window.rewind();
                        listens = false;
                        model.open.iter_mut().for_each(|it| it.sent = false);
                    }
                    Act::Connect(max) | Act::Resend(max) => {
                        listens |= matches!(act, Act::Connect(_));
                        if !listens {
                            continue;
                        }
                        loop {
                            let next = window.next_resend(max);
                            let next = next.map(|it| (it.packet_id, it.step, it.entry()));
                            let own = model.next_resend(max);
                            let own = own.map(|it| (id_of(it.count), it.step, it.entry));
                            proptest::prop_assert_eq!(next, own);
                            if next.is_none() {
                                let room = model.is_sent() && model.free(overtaken) > 0;
                                proptest::prop_assert_eq!(window.has_room(u16::MAX), room);
                                break;
                            }
                        }
                    }
                    Act::Restart => {
                        // What was not kept is not known any more.
                        model.open.retain(|it| it.entry > 0);
                        model.open.iter_mut().for_each(|it| it.sent = false);
                        let open = model.open.iter().rev();
                        let open = open.map(|it| (id_of(it.count), it.step, delivery(it.entry)));
                        window = Window::restore(window.next_id(), open.collect());
                        model.sort();
                        listens = false;
                    }
                }
                proptest::prop_assert!(model.leave_out(window.next_id()));
                let overtaken = window.overtaken_len();
                let open: Vec<_> = window
                    .unfinished()
                    .map(|it| (it.packet_id, it.step, it.entry()))
                    .collect();
                let own = model.open.iter().map(|it| (id_of(it.count), it.step, it.entry));
                proptest::prop_assert_eq!(open, own.collect::<Vec<_>>());
                proptest::prop_assert_eq!(window.open() as usize, model.open.len());
                proptest::prop_assert!(window.entries.len() <= 300);
                if window.has_room(u16::MAX) {
                    proptest::prop_assert!(model.is_sent() && model.free(overtaken) > 0);
                }
                for it in &model.open {
                    let found = window.in_flight(id_of(it.count)).map(|it| it.entry());
                    proptest::prop_assert_eq!(found, it.sent.then_some(it.entry));
                }
            }
        }
    }

    #[test]
    fn window_wraps_and_finds_identifiers() {
        let mut window = Window::default();
        let mut open = VecDeque::new();
        for _ in 0..200_000 {
            open.push_back(window.push(QoS::AtLeastOnce));
            if open.len() > 10 {
                // The third is acknowledged before the first.
                let id = open.remove(2).unwrap();
                assert!(window.advance(id, Step::Ack, Step::Done).is_some());
                assert!(window.advance(id, Step::Ack, Step::Done).is_none());
                let id = open.pop_front().unwrap();
                assert_ne!(id, 0);
                assert!(window.advance(id, Step::Ack, Step::Done).is_some());
            }
            assert_eq!(window.open() as usize, open.len());
        }
        assert!(window.entries.len() < 20);
    }

    #[test]
    fn resends_in_order_within_the_window() {
        let mut window = Window::default();
        let ids: Vec<u16> = (0..5).map(|_| window.push(QoS::ExactlyOnce)).collect();
        assert!(window.advance(ids[1], Step::Rec, Step::Comp).is_some());
        assert!(window.advance(ids[2], Step::Rec, Step::Comp).is_some());
        assert!(window.advance(ids[2], Step::Comp, Step::Done).is_some());
        window.rewind();
        assert!(!window.has_room(10));
        assert!(window.advance(ids[0], Step::Rec, Step::Comp).is_none());
        assert_eq!(window.next_resend(2).unwrap().packet_id, ids[0]);
        let second = window.next_resend(2).unwrap();
        assert_eq!((second.packet_id, second.step), (ids[1], Step::Comp));
        assert!(window.next_resend(2).is_none());
        assert!(window.advance(ids[1], Step::Comp, Step::Done).is_some());
        assert_eq!(window.next_resend(2).unwrap().packet_id, ids[3]);
        assert!(window.next_resend(2).is_none());
        assert_eq!(window.next_resend(3).unwrap().packet_id, ids[4]);
        assert!(!window.is_rewound());
        assert!(window.has_room(10));
    }

    #[test]
    fn identifiers_of_another_session_are_not_given_again_until_they_are_released() {
        for (listens, taken) in [(true, [7, 3]), (false, [3, 7]), (true, [65_535, 1])] {
            let mut window = Window::default();
            window.begin_at(5);
            assert_eq!(window.push(QoS::ExactlyOnce), 5);
            if !listens {
                window.rewind();
            }
            assert_eq!(window.take_up(5, None, listens), None, "in use");
            for id in taken {
                assert_eq!(window.take_up(id, None, listens), Some(listens), "{id}");
                assert_eq!(window.take_up(id, None, listens), None, "{id}");
            }
            assert_eq!(window.open(), 3);
            let again: Vec<_> = std::iter::from_fn(|| {
                let next = window.next_resend(10)?;
                Some((next.packet_id, next.step))
            })
            .collect();
            assert_eq!(again.len(), if listens { 0 } else { 3 }, "{again:?}");
            let mut given = Vec::new();
            for _ in 0..100_000 {
                assert!(window.has_room(u16::MAX));
                let id = window.push(QoS::AtLeastOnce);
                assert!(window.advance(id, Step::Ack, Step::Done).is_some());
                given.push(id);
            }
            assert!(taken.iter().all(|id| !given.contains(id)));
            for id in taken {
                assert!(window.advance(id, Step::Comp, Step::Done).is_some());
            }
            assert!(window.advance(5, Step::Rec, Step::Done).is_some());
            assert_eq!((window.open(), window.entries.len()), (0, 0));
        }
    }

    #[test]
    fn a_restored_window_goes_on_where_it_was() {
        let inflight = |packet_id, step| (packet_id, step, delivery(u64::from(packet_id)));
        // The identifiers wrap, and one in between is done.
        let kept = vec![
            inflight(2, Step::Ack),
            inflight(u16::MAX, Step::Comp),
            inflight(u16::MAX - 2, Step::Rec),
        ];
        let mut window = Window::restore(3, kept);
        assert_eq!((window.open(), window.next_id()), (3, 3));
        assert!(window.is_rewound() && !window.has_room(10));
        let mut again = Vec::new();
        while let Some(next) = window.next_resend(10) {
            again.push((next.packet_id, next.step));
        }
        assert_eq!(
            again,
            [
                (u16::MAX - 2, Step::Rec),
                (u16::MAX, Step::Comp),
                (2, Step::Ack)
            ]
        );
        assert!(window.has_room(10));
        assert_eq!(window.push(QoS::AtLeastOnce), 3);
        assert_eq!(window.advance(2, Step::Ack, Step::Done), Some(2));
        assert_eq!(window.advance(1, Step::Ack, Step::Done), None);
        // Nothing in flight: only the identifiers go on.
        let mut window = Window::restore(7, Vec::new());
        assert!(window.has_room(1) && !window.is_rewound());
        assert_eq!(window.push(QoS::AtLeastOnce), 7);
    }
}
