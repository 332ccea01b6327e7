//! The shared queue of a shard, in which an urgent message waits once, with the set of its
//! receivers, instead of in a lane of each: the PrioMQTT paper calls this one message with an array
//! of addresses.
//!
//! A receiver takes its messages out when they can be sent to it, in the order of their keys and
//! then of arrival; a receiver that takes nothing does not block others. An entry leaves with its
//! last receiver. Entries for others lie between those for one receiver, so finding the next
//! message of a receiver, or the one that it drops, is linear in these; everything else is O(log
//! n). The egress of each receiver bounds the messages that wait for it, and so the whole queue.

use std::collections::BTreeMap;
use std::sync::Arc;

use punctual_codec::QoS;

use super::{Attempt, Class, Entry};
use crate::Nanos;
use crate::base::delivery::Delivery;
use crate::message::Message;
use crate::sequence::Number;
use crate::slab::Slab;

/// Lists of receivers that are kept for further entries, and their capacity.
const SPARE: usize = 256;
const SPARE_RECEIVERS: usize = 256;

/// Order in one lane: smallest key first, FIFO among equals.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    pub(super) key: u64,
    arrival: u64,
}

/// The delivery of a message to one receiver.
#[derive(Debug)]
struct Receiver {
    /// Slot of its connection.
    slot: u32,
    packet_id: u16,
    qos: QoS,
    retain: bool,
    number: Option<Number>,
    attempt: Attempt,
    /// Whether the receiver has taken the message out.
    gone: bool,
    subscription_ids: Option<Arc<[u32]>>,
}

/// A waiting message.
#[derive(Debug)]
struct Common {
    class: Class,
    place: Place,
    message: Arc<Message>,
    since: Nanos,
    /// The receivers, sorted by slot.
    receivers: Vec<Receiver>,
    /// Number of receivers that have not taken the message out.
    left: usize,
}

impl Common {
    /// The position of the first delivery to `slot` among the receivers; with `give_up` of one that
    /// may be dropped.
    fn position(&self, slot: u32, give_up: bool) -> Option<usize> {
        let from = self.receivers.partition_point(|r| r.slot < slot);
        let mut own = self.receivers[from..].iter().take_while(|r| r.slot == slot);
        let at = own.position(|r| !r.gone && (!give_up || r.qos == QoS::AtMostOnce))?;
        Some(from + at)
    }
}

/// The queue of one shard.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    entries: Slab<Common>,
    /// For lanes 0 and 1: the position in `entries` by place.
    order: [BTreeMap<Place, u32>; 2],
    /// The entry added last: further receivers of its message join it.
    last: u32,
    arrivals: u64,
    spare: Vec<Vec<Receiver>>,
}

impl Shared {
    /// The part of the queue that belongs to the connection in that slot.
    #[inline]
    pub(crate) fn seat(&mut self, slot: u32) -> Seat<'_> {
        Seat { queue: self, slot }
    }

    /// Number of waiting messages, whatever their number of receivers.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }
}

/// One connection's part of the queue.
#[derive(Debug)]
pub(crate) struct Seat<'a> {
    queue: &'a mut Shared,
    slot: u32,
}

impl Seat<'_> {
    /// Adds a message for this receiver. The receivers of one message must be added one after the
    /// other.
    pub(super) fn push(&mut self, class: Class, key: u64, entry: Entry) -> Place {
        let Entry {
            delivery,
            packet_id,
            since,
            attempt,
        } = entry;
        let receiver = Receiver {
            slot: self.slot,
            packet_id,
            qos: delivery.qos,
            retain: delivery.retain,
            number: delivery.number,
            attempt,
            gone: false,
            subscription_ids: delivery.subscription_ids,
        };
        let queue = &mut *self.queue;
        if let Some(last) = queue.entries.get_mut(queue.last)
            && Arc::ptr_eq(&last.message, &delivery.message)
            && last.since == since
        {
            let at = last.receivers.partition_point(|r| r.slot <= self.slot);
            last.receivers.insert(at, receiver);
            last.left += 1;
            return last.place;
        }
        queue.arrivals += 1;
        let place = Place {
            key,
            arrival: queue.arrivals,
        };
        let mut receivers = queue.spare.pop().unwrap_or_default();
        receivers.push(receiver);
        queue.last = queue.entries.insert(Common {
            class,
            place,
            message: delivery.message,
            since,
            receivers,
            left: 1,
        });
        queue.order[class as usize & 1].insert(place, queue.last);
        place
    }

    /// The place of the receiver's first message from that place on.
    pub(super) fn next(&self, class: Class, from: Place) -> Option<Place> {
        let order = &self.queue.order[class as usize & 1];
        let mut further = order.range(from..);
        let (place, _) = further.find(|(_, at)| {
            let entry = self.queue.entries.get(**at);
            entry.is_some_and(|entry| entry.position(self.slot, false).is_some())
        })?;
        Some(*place)
    }

    /// The place of the oldest of the receiver's least urgent messages that may be dropped.
    pub(super) fn worst(&self, class: Class) -> Option<Place> {
        let order = &self.queue.order[class as usize & 1];
        let goes = |at: &u32| {
            let entry = self.queue.entries.get(*at);
            entry.is_some_and(|entry| entry.position(self.slot, true).is_some())
        };
        let (worst, _) = order.iter().rev().find(|(_, at)| goes(at))?;
        let equals = Place {
            key: worst.key,
            arrival: 0,
        };
        let (oldest, _) = order.range(equals..).find(|(_, at)| goes(at))?;
        Some(*oldest)
    }

    /// Takes out the receiver's message at that place; with `give_up` one that may be dropped.
    pub(super) fn take(&mut self, class: Class, place: Place, give_up: bool) -> Option<Entry> {
        let queue = &mut *self.queue;
        let at = *queue.order[class as usize & 1].get(&place)?;
        let common = queue.entries.get_mut(at)?;
        let own = common.position(self.slot, give_up)?;
        let receiver = &mut common.receivers[own];
        receiver.gone = true;
        common.left -= 1;
        let entry = Entry {
            delivery: Delivery {
                message: common.message.clone(),
                subscription_ids: receiver.subscription_ids.take(),
                qos: receiver.qos,
                retain: receiver.retain,
                share: 0,
                number: receiver.number,
                // The window, which has the message in flight, has the number.
                entry: 0,
            },
            packet_id: receiver.packet_id,
            since: common.since,
            attempt: receiver.attempt,
        };
        if common.left == 0
            && let Some(mut common) = queue.entries.remove(at)
        {
            queue.order[common.class as usize & 1].remove(&place);
            common.receivers.clear();
            if queue.spare.len() < SPARE && common.receivers.capacity() <= SPARE_RECEIVERS {
                queue.spare.push(common.receivers);
            }
        }
        Some(entry)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::egress::tests::bound;
    use crate::egress::world::{World, message};
    use crate::egress::{Enqueue, LaneLimits, Overflow, Rank, Scope};
    use proptest::prelude::*;

    const RECEIVERS: u32 = 5;

    #[derive(Debug, Clone)]
    enum Step {
        /// Publishes to the receivers in the mask, and to those in `twice` once more.
        Publish {
            class: Class,
            key: u64,
            to: u32,
            twice: u32,
            qos: QoS,
            len: usize,
            lifetime: Option<u64>,
        },
        Plain(u32, usize),
        Write(u32, usize, Scope),
        Leave(u32),
        Method(Enqueue),
    }

    fn step() -> impl Strategy<Value = Step> {
        let class = prop_oneof![Just(Class::RealTime), Just(Class::Priority)];
        let qos = prop_oneof![3 => Just(QoS::AtMostOnce), 1 => Just(QoS::AtLeastOnce)];
        let lifetime = proptest::option::weighted(0.2, 1..60u64);
        let mask = 0..1u32 << RECEIVERS;
        let publish = (
            class,
            0..4u64,
            mask.clone(),
            mask,
            qos,
            0..2000usize,
            lifetime,
        );
        let scope = prop_oneof![Just(Scope::All), Just(Scope::Urgent)];
        let method = prop_oneof![Just(Enqueue::Shared), Just(Enqueue::PerReceiver)];
        prop_oneof![
            12 => publish.prop_map(|(class, key, to, twice, qos, len, lifetime)| Step::Publish {
                class, key, to, twice: twice & to & 1, qos, len, lifetime,
            }),
            3 => (0..RECEIVERS, 0..5000usize).prop_map(|(to, len)| Step::Plain(to, len)),
            8 => (0..RECEIVERS, 0..20_000usize, scope)
                .prop_map(|(of, n, scope)| Step::Write(of, n, scope)),
            1 => (0..RECEIVERS).prop_map(Step::Leave),
            1 => method.prop_map(Step::Method),
        ]
    }

    fn take(world: &mut World, step: &Step, number: u16, now: Nanos) {
        match *step {
            Step::Publish {
                class,
                key,
                to,
                twice,
                qos,
                len,
                lifetime,
            } => {
                let deadline = lifetime.map_or(Nanos::MAX, |after| now + Nanos(after));
                let rank = Rank { class, key };
                let message = message(rank, qos, len, number as u8, deadline);
                // Not in the order of slots, as sessions are not either.
                for n in 0..RECEIVERS {
                    let to_one = (n * 3 + u32::from(number)) % RECEIVERS;
                    for _ in 0..(to >> to_one & 1) + (twice >> to_one & 1) {
                        world.push(to_one, &message, number, now);
                    }
                }
            }
            Step::Plain(to, len) => world.append(to, Class::Normal, len, 7),
            Step::Write(of, n, scope) => {
                world.write(of, n, scope, now);
            }
            Step::Leave(of) => world.leave(of, now),
            Step::Method(_) => {}
        }
    }

    proptest! {
        /// Whatever is published, written in part or dropped, and whichever receivers leave: each
        /// receiver is sent the same bytes with either method, also when the method changes
        /// meanwhile, and the counters are the same.
        #[test]
        fn both_methods_send_the_same(
            steps in proptest::collection::vec(step(), 1..150),
            urgent in bound(),
            priority in bound(),
            refuse in any::<bool>(),
        ) {
            let limits = LaneLimits {
                enqueue: Enqueue::PerReceiver,
                urgent,
                priority,
                overflow: if refuse { Overflow::RefuseNew } else { Overflow::EvictOldest },
            };
            let mut own = World::new(RECEIVERS, limits);
            let mut common = World::new(RECEIVERS, LaneLimits { enqueue: Enqueue::Shared, ..limits });
            for (number, step) in steps.iter().enumerate() {
                let now = Nanos(number as u64);
                if let Step::Method(method) = step {
                    common.limits.enqueue = *method;
                }
                take(&mut own, step, number as u16 + 1, now);
                take(&mut common, step, number as u16 + 1, now);
                prop_assert_eq!(&own.written, &common.written, "step {}", number);
                prop_assert_eq!(&own.stats, &common.stats, "step {}", number);
                for (own, common) in own.egresses.iter_mut().zip(&mut common.egresses) {
                    prop_assert_eq!(own.rank(), common.rank());
                    prop_assert_eq!(own.len(), common.len());
                }
            }
            for of in 0..RECEIVERS {
                let now = Nanos(1000);
                while common.write(of, usize::MAX, Scope::All, now) > 0 {}
                while own.write(of, usize::MAX, Scope::All, now) > 0 {}
                prop_assert!(common.egresses[of as usize].is_empty());
            }
            prop_assert_eq!(&own.written, &common.written);
            prop_assert_eq!(common.shared.len(), 0);
            prop_assert!(common.shared.order.iter().all(BTreeMap::is_empty));
        }
    }

    #[test]
    fn one_entry_however_many_receivers() {
        let limits = LaneLimits {
            enqueue: Enqueue::Shared,
            ..LaneLimits::default()
        };
        let mut world = World::new(RECEIVERS, limits);
        let publish = Step::Publish {
            class: Class::Priority,
            key: 3,
            to: 0b11111,
            twice: 0,
            qos: QoS::AtMostOnce,
            len: 10,
            lifetime: None,
        };
        for number in 1..=4 {
            take(&mut world, &publish, number, Nanos(0));
        }
        assert_eq!(world.shared.len(), 4);
        // A receiver that does not read keeps its messages there, and blocks no other receiver.
        for of in 1..RECEIVERS {
            while world.write(of, 1000, Scope::All, Nanos(1)) > 0 {}
            assert!(world.egresses[of as usize].is_empty());
        }
        assert_eq!(world.shared.len(), 4);
        while world.write(0, 1000, Scope::All, Nanos(2)) > 0 {}
        assert_eq!(world.shared.len(), 0);
        assert_eq!(world.written[0].len(), world.written[1].len());
    }
}
