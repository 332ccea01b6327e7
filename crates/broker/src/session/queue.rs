//! The queue of messages that wait in one session.

use std::collections::VecDeque;
use std::hash::BuildHasher;

use foldhash::fast::RandomState;
use hashbrown::HashMap;
use punctual_codec::QoS;

use crate::Nanos;
use crate::base::delivery::{Delivery, Load};
use crate::egress::lane::Lane;
use crate::egress::rank::{Class, Rank};
use crate::message::Message;
use crate::sequence::Number;

/// Whether a message for a neighbour overtakes the newer messages that the link holds
/// ([`SessionHandle::holds`]): a copy of a kept message is older than these, and a message that
/// expires has no order.
#[inline]
pub(crate) fn overtakes_held(expires: Nanos, number: Option<Number>) -> bool {
    expires != Nanos::MAX || number.is_some_and(Number::is_again)
}

pub(crate) fn is_older(delivery: &Delivery) -> bool {
    overtakes_held(delivery.message.expires, delivery.number)
}

/// Messages that wait for capacity in the window: urgent ones by their rank, then normal ones and
/// bulk, each in the order of arrival. Messages deferred by remote flow control
/// ([`crate::mesh::throttle`]) are kept apart. Most sessions have no messages waiting and pay one word
/// for the queue.
#[derive(Debug, Default)]
pub(crate) struct Queue(Option<Box<Waiting>>);

/// A waiting message, and the time since which it waits.
#[derive(Debug)]
struct Queued {
    since: Nanos,
    delivery: Delivery,
}

/// The end of a list at which a message that is not urgent is added.
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
    /// Deferred messages: by remote flow control, or held ([`SessionHandle::holds`]).
    throttled: Option<Box<Throttled>>,
    bytes: usize,
    /// Number of messages with QoS 0.
    unacknowledged: usize,
}

/// Deferred messages, normal ones and bulk, each in the order of arrival.
#[derive(Debug, Default)]
struct Throttled {
    lanes: [VecDeque<Queued>; 2],
    bytes: usize,
    /// Number of deferred messages by the hash of their topic.
    topics: HashMap<u64, usize, RandomState>,
}

impl Throttled {
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
        self.normal.len() + self.bulk.len() + urgent + self.throttled().map_or(0, Throttled::len)
    }

    fn throttled(&self) -> Option<&Throttled> {
        self.throttled.as_deref()
    }

    #[inline(never)]
    fn is_clear(&self) -> bool {
        self.len() == self.throttled().map_or(0, Throttled::len)
    }

    #[inline(never)]
    fn has_throttled(&self, topic: &[u8]) -> bool {
        let throttled = self.throttled();
        throttled.is_some_and(|throttled| throttled.topics.contains_key(&throttled.hash(topic)))
    }

    /// The deferred messages, by class.
    fn throttled_lanes(&self) -> impl Iterator<Item = &VecDeque<Queued>> {
        self.throttled()
            .into_iter()
            .flat_map(|throttled| &throttled.lanes)
    }

    fn urgent(&self) -> impl Iterator<Item = &Lane<Queued>> {
        self.urgent.iter().flat_map(|lanes| lanes.iter())
    }

    /// Removes a message of the least urgent class, unless that class is more urgent than the rank:
    /// the first message, if its deadline has passed, or the least urgent.
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

    /// Whether no message waits that would be sent before a message that arrives now.
    #[inline]
    pub(crate) fn is_clear(&self) -> bool {
        self.0.as_deref().is_none_or(Waiting::is_clear)
    }

    /// Number of deferred messages, and their bytes.
    pub(crate) fn throttled(&self) -> (usize, usize) {
        let throttled = self.0.as_ref().and_then(|waiting| waiting.throttled());
        throttled.map_or((0, 0), |throttled| (throttled.len(), throttled.bytes))
    }

    /// Whether a message on that topic is deferred.
    #[inline]
    pub(crate) fn has_throttled(&self, topic: &[u8]) -> bool {
        let waiting = self.0.as_deref();
        waiting.is_some_and(|waiting| waiting.has_throttled(topic))
    }

    /// Whether no urgent messages wait.
    pub(crate) fn has_no_urgent(&self) -> bool {
        self.0.as_ref().is_none_or(|waiting| !waiting.has_urgent())
    }

    /// All waiting messages: first the urgent ones, in no order, then normal ones, then bulk, then
    /// deferred ones.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Delivery> {
        self.0.iter().flat_map(|waiting| {
            let urgent = waiting.urgent().flat_map(Lane::iter);
            let all = urgent.chain(&waiting.normal).chain(&waiting.bulk);
            let all = all.chain(waiting.throttled_lanes().flatten());
            all.map(|queued| &queued.delivery)
        })
    }

    /// Puts messages before all waiting messages, each with the time since which it waits. The cost
    /// is proportional to these messages and the urgent ones that wait.
    pub(crate) fn put_before(&mut self, earlier: Vec<(Nanos, Delivery)>) {
        // Urgent messages of one rank leave in the order in which they were added.
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

    /// Puts the messages of another queue behind all waiting messages. The cost is proportional to
    /// the messages of that queue.
    pub(crate) fn append(&mut self, mut later: Self) {
        while let Some((since, delivery)) = later.pop().or_else(|| later.pop_throttled()) {
            self.push(delivery, since);
        }
    }

    /// Messages and bytes that wait.
    pub(crate) fn load(&self) -> Load {
        let Some(waiting) = &self.0 else {
            return Load::default();
        };
        let mut messages = [0, 0, waiting.normal.len(), waiting.bulk.len()];
        for (count, lane) in messages.iter_mut().zip(waiting.urgent()) {
            *count = lane.len();
        }
        for (count, lane) in messages[2..].iter_mut().zip(waiting.throttled_lanes()) {
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

    /// Whether messages with QoS 0 wait, which no other message may overtake.
    #[inline]
    pub(crate) fn has_qos0(&self) -> bool {
        self.0
            .as_ref()
            .is_some_and(|waiting| waiting.unacknowledged > 0)
    }

    /// Whether a message has waited since that time or longer.
    pub(crate) fn has_since(&self, time: Nanos) -> bool {
        let Some(waiting) = &self.0 else {
            return false;
        };
        let fronts = [waiting.normal.front(), waiting.bulk.front()];
        let throttled = waiting.throttled_lanes().filter_map(VecDeque::front);
        let urgent = waiting.urgent().flat_map(Lane::iter);
        let mut oldest = fronts.into_iter().flatten().chain(throttled).chain(urgent);
        oldest.any(|queued| queued.since <= time)
    }

    /// The message that is sent next.
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

    /// Bytes that are copied when the next message that is not urgent arrives, because the memory
    /// for waiting messages is full.
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
                    // Sixteen million messages wait: a configured bound above that has no effect.
                    return;
                }
            }
            Class::Normal => end.put(&mut waiting.normal, queued),
            Class::Bulk => end.put(&mut waiting.bulk, queued),
        }
        waiting.bytes += size;
        waiting.unacknowledged += unacknowledged;
    }

    /// Defers a message that is not urgent.
    pub(crate) fn push_throttled(&mut self, delivery: Delivery, now: Nanos) {
        let waiting = self.0.get_or_insert_default();
        waiting.bytes += delivery.message.size();
        let throttled = waiting.throttled.get_or_insert_default();
        throttled.push(Queued {
            since: now,
            delivery,
        });
    }

    /// Restarts the waiting time of all deferred messages.
    pub(crate) fn renew_throttled(&mut self, now: Nanos) {
        let throttled = self
            .0
            .as_mut()
            .and_then(|waiting| waiting.throttled.as_mut());
        let lanes = throttled
            .into_iter()
            .flat_map(|throttled| &mut throttled.lanes);
        lanes.flatten().for_each(|queued| queued.since = now);
    }

    /// Takes the first deferred message, unless a queued message of its class has waited as long.
    pub(crate) fn pop_throttled(&mut self) -> Option<(Nanos, Delivery)> {
        let waiting = self.0.as_mut()?;
        let lanes = &mut waiting.throttled.as_mut()?.lanes;
        let before = [waiting.normal.front(), waiting.bulk.front()];
        let queued = lanes.iter_mut().zip(before).find_map(|(lane, before)| {
            lane.pop_front_if(|first| before.is_none_or(|before| first.since < before.since))
        })?;
        self.forget_throttled(&queued.delivery);
        Some((queued.since, queued.delivery))
    }

    /// Defers the messages that `is_throttled` selects, and those behind them on their topics; all
    /// others are queued.
    pub(crate) fn sort_out(&mut self, mut is_throttled: impl FnMut(&Delivery) -> bool) {
        let Some(waiting) = &mut self.0 else {
            return;
        };
        let mut before = waiting.throttled.take().unwrap_or_default();
        let mut throttled = Box::<Throttled>::default();
        let queues = [&mut waiting.normal, &mut waiting.bulk];
        for (queue, kept) in queues.into_iter().zip(&mut before.lanes) {
            let mut all = std::mem::take(queue);
            // In the order of arrival; of messages that arrived at the same time, deferred ones are
            // last.
            while let Some(next) = match (all.front(), kept.front()) {
                (Some(first), Some(other)) if first.since > other.since => kept.pop_front(),
                (Some(_), _) => all.pop_front(),
                (None, _) => kept.pop_front(),
            } {
                let topic = next.delivery.message.topic_bytes();
                let is_kept = is_throttled(&next.delivery)
                    || next.delivery.qos > QoS::AtMostOnce
                        && throttled.topics.contains_key(&throttled.hash(topic));
                match is_kept {
                    true => throttled.push(next),
                    false => queue.push_back(next),
                }
            }
        }
        waiting.throttled = (throttled.len() > 0).then_some(throttled);
    }

    /// Takes the next message, and the time since which it has waited.
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

    /// Removes the message that is dropped first in favour of a message with that QoS and rank: the
    /// oldest of bulk, then of the normal ones, then an urgent one that is not more urgent, see
    /// [`crate::overflow`]. Plain messages whose topics `may_go` excludes stay, and with
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

    fn forget_throttled(&mut self, delivery: &Delivery) {
        if let Some(waiting) = &mut self.0
            && let Some(throttled) = &mut waiting.throttled
        {
            throttled.forget(&delivery.message);
            if throttled.len() == 0 {
                waiting.throttled = None;
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

    /// Removes expired messages and passes the numbers of their entries in the store to `gone`;
    /// returns the removed load, and the time at which the next message expires.
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

    /// Removes all messages but those that `stays` selects, and passes the numbers of their entries
    /// in the store to `gone`; returns the removed load.
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
            if let Some(mut before) = waiting.throttled.take() {
                let mut throttled = Box::<Throttled>::default();
                for queued in before.lanes.iter_mut().flat_map(std::mem::take) {
                    if keep(&queued) {
                        throttled.push(queued);
                    }
                }
                waiting.throttled = (throttled.len() > 0).then_some(throttled);
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
