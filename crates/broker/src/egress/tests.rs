//! What a connection is sent, byte by byte, against a sorted list; how long
//! lane 0 waits; and that the shares hold in what is written.

use std::sync::Arc;
use std::time::Instant;

use proptest::prelude::*;
use punctual_codec::QoS;

use super::world::{World, message};
use super::{Bound, Class, Enqueue, LaneLimits, OVERHEAD, Overflow, Rank, Scope, Shares};
use crate::{Message, Nanos};

const UNBOUNDED: LaneLimits = LaneLimits {
    enqueue: Enqueue::PerReceiver,
    urgent: Bound::NONE,
    priority: Bound::NONE,
    overflow: Overflow::EvictOldest,
};

#[derive(Debug, Clone)]
enum Step {
    /// A message with bytes of payload; the class says which lane.
    Push(Rank, QoS, usize),
    Control,
    Write(usize, Scope),
}

pub(super) fn bound() -> impl Strategy<Value = Bound> {
    (1..30usize, 1000..20_000usize).prop_map(|(messages, bytes)| Bound { messages, bytes })
}

fn step() -> impl Strategy<Value = Step> {
    let class = (0..4usize).prop_map(|class| Class::ALL[class]);
    let qos = prop_oneof![3 => Just(QoS::AtMostOnce), 1 => Just(QoS::AtLeastOnce)];
    let push = (class, 0..4u64, qos, 1..1500usize).prop_map(|(class, key, qos, len)| {
        let key = if class.is_urgent() { key } else { 0 };
        Step::Push(Rank { class, key }, qos, len)
    });
    let scope = prop_oneof![Just(Scope::All), Just(Scope::Urgent)];
    let bytes = prop_oneof![0..200usize, 0..6000usize];
    prop_oneof![
        8 => push,
        1 => Just(Step::Control),
        5 => (bytes, scope).prop_map(|(n, scope)| Step::Write(n, scope)),
    ]
}

/// A packet that waits, in a list that is sorted by rank and then by arrival;
/// control packets, which have none, are first.
struct Waiting {
    rank: Option<Rank>,
    bytes: Vec<u8>,
    size: usize,
    may_go: bool,
}

/// What the egress is to do, with the strictest order: no shares.
struct Model {
    waiting: Vec<Waiting>,
    /// What is left of the packet under way.
    cut: Vec<u8>,
    limits: LaneLimits,
}

impl Model {
    fn insert(&mut self, new: Waiting) {
        let at = self.waiting.partition_point(|old| old.rank <= new.rank);
        self.waiting.insert(at, new);
    }

    fn urgent(&self) -> impl Iterator<Item = &Waiting> {
        let is_urgent = |rank: Rank| rank.class.is_urgent();
        self.waiting
            .iter()
            .filter(move |one| one.rank.is_some_and(is_urgent))
    }

    /// Adds an urgent message. No message goes while one stays that ranks lower.
    fn push(&mut self, new: Waiting) {
        let over = |model: &Self, bound: Bound, from: Class| {
            let lanes =
                |one: &&Waiting| one.may_go && one.rank.is_some_and(|rank| rank.class >= from);
            let bytes: usize = model.urgent().filter(lanes).map(|one| one.size).sum();
            model.urgent().filter(lanes).count() >= bound.messages || bytes + new.size > bound.bytes
        };
        let is_priority = new.rank.is_some_and(|rank| rank.class == Class::Priority);
        let full = |model: &Self| {
            over(model, model.limits.urgent, Class::RealTime)
                || is_priority && over(model, model.limits.priority, Class::Priority)
        };
        while new.may_go && full(self) {
            let rank = |one: &Waiting| one.rank.filter(|rank| rank.class.is_urgent() && one.may_go);
            let worst = self.waiting.iter().filter_map(rank).max();
            let goes = worst.is_some_and(|worst| match self.limits.overflow {
                Overflow::EvictOldest => Some(worst) >= new.rank,
                Overflow::RefuseNew => Some(worst) > new.rank,
            });
            let oldest = self.waiting.iter().position(|one| rank(one) == worst);
            match oldest.filter(|_| goes) {
                Some(at) => drop(self.waiting.remove(at)),
                None => return,
            }
        }
        self.insert(new);
    }

    /// The next `n` bytes.
    fn write(&mut self, mut n: usize, scope: Scope) -> Vec<u8> {
        let mut out = Vec::new();
        while n > 0 {
            if self.cut.is_empty() {
                let next = self.waiting.remove(0);
                let urgent = next.rank.is_none_or(|rank| rank.class.is_urgent());
                assert!(urgent || scope == Scope::All, "a plain packet was begun");
                self.cut = next.bytes;
            }
            let now = n.min(self.cut.len());
            out.extend(self.cut.drain(..now));
            n -= now;
        }
        out
    }
}

fn push(
    world: &mut World,
    rank: Rank,
    qos: QoS,
    len: usize,
    number: usize,
) -> Option<Arc<Message>> {
    if !rank.class.is_urgent() {
        world.append(0, rank.class, len, number as u8);
        return None;
    }
    let message = message(rank, qos, len, number as u8, Nanos::MAX);
    world.push(0, &message, number as u16 + 1, Nanos(0));
    Some(message)
}

/// The packet by which it is sent to who has nothing else to get.
fn alone(rank: Rank, qos: QoS, len: usize, number: usize) -> Vec<u8> {
    let mut world = World::new(1, UNBOUNDED);
    push(&mut world, rank, qos, len, number);
    world.leave(0, Nanos(0));
    world.written.remove(0)
}

/// First bytes and lengths of whole packets.
fn packets(mut bytes: &[u8]) -> Vec<&[u8]> {
    let mut packets = Vec::new();
    while bytes.len() > 1 {
        let (mut len, mut at) = (0, 1);
        loop {
            len |= usize::from(bytes[at] & 0x7F) << (7 * (at - 1));
            at += 1;
            if bytes[at - 1] < 0x80 {
                break;
            }
        }
        let (packet, rest) = bytes.split_at(at + len);
        packets.push(packet);
        bytes = rest;
    }
    packets
}

proptest! {
    /// Whatever is pushed and written in part: control packets, lanes 0 and 1 by
    /// rank, lane 2, lane 3, nothing in front of the rest of the packet under
    /// way, and nothing lost but what the bounds say.
    #[test]
    fn bytes_leave_in_the_order_of_their_ranks(
        steps in proptest::collection::vec(step(), 1..120),
        urgent in bound(),
        priority in bound(),
        refuse in any::<bool>(),
    ) {
        let overflow = if refuse { Overflow::RefuseNew } else { Overflow::EvictOldest };
        let limits = LaneLimits { urgent, priority, overflow, ..UNBOUNDED };
        let mut world = World::new(1, limits);
        world.shares = Shares([0; 4]);
        let mut model = Model { waiting: Vec::new(), cut: Vec::new(), limits };
        let mut expected = Vec::new();
        let all = [Step::Write(usize::MAX, Scope::All)];
        for (number, step) in steps.iter().chain(all.iter().cycle()).enumerate() {
            match *step {
                Step::Push(rank, qos, len) => {
                    let message = push(&mut world, rank, qos, len, number);
                    let new = Waiting {
                        rank: Some(rank),
                        bytes: alone(rank, qos, len, number),
                        size: message.map_or(0, |message| message.size() + OVERHEAD),
                        may_go: qos == QoS::AtMostOnce,
                    };
                    match rank.class.is_urgent() {
                        true => model.push(new),
                        false => model.insert(new),
                    }
                }
                Step::Control => {
                    let bytes = vec![0x40, 2, 0, number as u8];
                    world.control(0, &bytes);
                    model.insert(Waiting { rank: None, bytes, size: 0, may_go: false });
                }
                Step::Write(n, scope) => {
                    let taken = world.write(0, n, scope, Nanos(0));
                    expected.extend(model.write(taken, scope));
                    if number >= steps.len() && taken == 0 {
                        break;
                    }
                }
            }
            prop_assert_eq!(&world.written[0], &expected, "step {}", number);
            for class in [Class::RealTime, Class::Priority] {
                let waiting = model.urgent().filter(|one| one.rank.is_some_and(|r| r.class == class));
                let counted = world.stats.class(class).waiting;
                prop_assert_eq!(counted, waiting.count() as u64, "step {}", number);
            }
        }
        prop_assert!(model.waiting.is_empty() && model.cut.is_empty());
    }

    /// Whatever shares the others have earned: who comes to an empty lane 0 waits
    /// for the rest of the packet under way, and for control packets.
    #[test]
    fn who_comes_to_an_empty_lane_0_is_next(
        steps in proptest::collection::vec(step(), 1..120),
        shares in [0..1u16, 0..167u16, 0..167u16, 0..167u16],
        bytes in 1..3000usize,
    ) {
        let mut world = World::new(1, UNBOUNDED);
        world.shares = Shares(shares);
        for (number, step) in steps.iter().enumerate() {
            match *step {
                Step::Push(rank, qos, len) => drop(push(&mut world, rank, qos, len, number)),
                Step::Control => world.control(0, &[0x40, 2, 0, 1]),
                Step::Write(n, scope) => drop(world.write(0, n, scope, Nanos(0))),
            }
        }
        while world.stats.class(Class::RealTime).waiting > 0 {
            world.write(0, bytes, Scope::All, Nanos(0));
        }
        let before = world.written[0].len();
        let rank = Rank { class: Class::RealTime, key: 0 };
        push(&mut world, rank, QoS::AtMostOnce, 10, 0xEE);
        while world.write(0, bytes, Scope::All, Nanos(0)) > 0 {}
        let mut begins = 0;
        let next = packets(&world.written[0]).into_iter().find(|packet| {
            let begun_after = begins >= before;
            begins += packet.len();
            begun_after && packet[0] >> 4 == 3
        });
        prop_assert_eq!(next, Some(&*alone(rank, QoS::AtMostOnce, 10, 0xEE)));
    }
}

/// Bytes that each lane is written while those with a length in `lens` always
/// have a packet with so much payload, of the first `total` or a few more; the
/// socket takes `pieces` in turn, over and over.
fn written(lens: [Option<usize>; 4], shares: Shares, pieces: &[usize], total: usize) -> [usize; 4] {
    let mut world = World::new(1, UNBOUNDED);
    world.shares = shares;
    for (lane, len) in lens.iter().enumerate() {
        let rank = Rank {
            class: Class::ALL[lane],
            key: 0,
        };
        for _ in 0..len.map_or(0, |len| (total + 20_000) / len + 1) {
            push(&mut world, rank, QoS::AtMostOnce, len.unwrap_or(0), lane);
        }
    }
    let mut pieces = pieces.iter().cycle();
    while world.written[0].len() < total
        && let Some(n) = pieces.next()
    {
        world.write(0, *n, Scope::All, Nanos(0));
    }
    let all = world.written[0].len();
    world.leave(0, Nanos(0));
    let mut written = [0; 4];
    let mut sum = 0;
    for packet in packets(&world.written[0]) {
        let lane = packet.last().copied().unwrap_or(0);
        written[usize::from(lane)] += packet.len();
        sum += packet.len();
        if sum >= all {
            break;
        }
    }
    written
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// While some lanes always have something, each is written its share, and
    /// lane 0 all but the others' shares, however little a socket takes at once.
    #[test]
    fn shares_hold_in_what_is_written(
        lens in proptest::array::uniform4(proptest::option::weighted(0.8, 100..3000usize)),
        shares in [0..1u16, 0..167u16, 0..167u16, 0..167u16],
        pieces in proptest::collection::vec(prop_oneof![1..50usize, 1..20_000usize], 1..20),
    ) {
        prop_assume!(lens.iter().any(Option::is_some));
        let written = written(lens, Shares(shares), &pieces, 120_000);
        let all: usize = written.iter().sum();
        let largest = lens.iter().flatten().max().copied().unwrap_or(0) + OVERHEAD;
        let slack = 4 * largest.max(1600);
        let others: usize = (1..4).map(|lane| usize::from(shares[lane])).sum();
        for lane in 0..4 {
            let share = if lane == 0 { 1000 - others } else { usize::from(shares[lane]) };
            if lens[lane].is_some() {
                let least = all * share / 1000;
                prop_assert!(written[lane] + slack >= least, "lane {}: {:?}", lane, written);
            }
        }
    }
}

/// A lane whose packets are longer than a frame earns one of them, be it a byte
/// at a time.
#[test]
fn a_lane_of_long_packets_has_its_share_of_a_slow_socket() {
    let lens = [Some(100), Some(2000), Some(100), Some(2000)];
    let written = written(lens, Shares([0, 150, 100, 150]), &[1], 90_000);
    let all: usize = written.iter().sum();
    for (lane, share) in [(1, 150), (2, 100), (3, 150)] {
        assert!(
            written[lane] + 3 * 2100 >= all * share / 1000,
            "lane {lane}: {written:?}"
        );
        assert!(written[lane] > 0, "lane {lane}: {written:?}");
    }
}

/// That a socket has taken a byte of a packet earns its lane no second one before the first is paid.
#[test]
fn a_packet_that_is_begun_earns_nothing() {
    let lens = [Some(373), Some(777), Some(563), Some(209)];
    let shares = [721, 106, 40, 133];
    let written = written(lens, Shares([0, 106, 40, 133]), &[1, 791], 120_000);
    let all: usize = written.iter().sum();
    for (lane, share) in shares.into_iter().enumerate() {
        let slack = 2000;
        assert!(
            written[lane].abs_diff(all * share / 1000) < slack,
            "lane {lane}: {written:?}"
        );
    }
}

/// What a receiver that is gone was not sent is not counted as sent, however it
/// waited; what it was sent in part is.
#[test]
fn what_is_lost_with_a_connection_is_no_departure() {
    for enqueue in [Enqueue::PerReceiver, Enqueue::Shared] {
        let limits = LaneLimits {
            enqueue,
            ..UNBOUNDED
        };
        let mut world = World::new(2, limits);
        let rank = |class| Rank { class, key: 3 };
        for (number, (class, qos)) in [
            (Class::RealTime, QoS::AtMostOnce),
            (Class::RealTime, QoS::AtMostOnce),
            (Class::RealTime, QoS::AtLeastOnce),
            (Class::Priority, QoS::AtMostOnce),
        ]
        .into_iter()
        .enumerate()
        {
            // The deadline has passed when the connection is lost.
            let message = message(rank(class), qos, 50, 1, Nanos(5));
            world.push(0, &message, number as u16 + 1, Nanos(0));
            world.push(1, &message, number as u16 + 1, Nanos(0));
        }
        world.append(0, Class::Normal, 10, 7);
        assert_eq!(world.write(0, 20, Scope::All, Nanos(1)), 20);
        world.lose(0, Nanos(9));
        let [real_time, priority] = [Class::RealTime, Class::Priority].map(|class| {
            let stats = world.stats.class(class);
            (stats.sent, stats.missed, stats.dropped_gone, stats.waiting)
        });
        assert_eq!(real_time, (1, 0, 1, 3), "{enqueue:?}");
        assert_eq!(priority, (0, 0, 1, 1), "{enqueue:?}");
        // The rest of the packet under way, and what is not urgent.
        assert_eq!(packets(&world.written[0]).len(), 2, "{enqueue:?}");
        world.leave(1, Nanos(2));
        assert_eq!(packets(&world.written[1]).len(), 4, "{enqueue:?}");
    }
}

/// What a message of lane 0 costs from the moment at which it is handed over, one
/// that exists already, until a socket has taken it: queued, chosen, encoded.
/// `cargo test --release -p punctual-broker --lib -- --ignored --nocapture a_message_costs`
#[test]
#[ignore = "measures"]
fn a_message_costs() {
    const BATCHES: usize = 30;
    const MESSAGES: usize = 20_480;
    let messages: Vec<Arc<Message>> = (0..8)
        .map(|key| {
            let rank = Rank {
                class: Class::RealTime,
                key,
            };
            message(rank, QoS::AtMostOnce, 100, 0, Nanos::MAX)
        })
        .collect();
    let packet = alone(messages[0].stamp.rank, QoS::AtMostOnce, 100, 0).len();
    for (queued, at_once) in [(10, 1), (1000, 1), (1000, 16), (1000, 64), (1_000_000, 64)] {
        let mut world = World::new(1, UNBOUNDED);
        (0..queued).for_each(|n| world.push(0, &messages[n % 8], 0, Nanos(0)));
        let mut best = f64::INFINITY;
        let mut n = 0;
        for _ in 0..BATCHES {
            let begin = Instant::now();
            for _ in 0..MESSAGES / at_once {
                for _ in 0..at_once {
                    // An order that no heap likes.
                    n += 5;
                    world.push(0, &messages[n * n % 11 % 8], 0, Nanos(0));
                }
                let mut left = at_once * packet;
                while left > 0 {
                    // A socket that takes all that it is offered until it is full.
                    left -= world.offer(0, Scope::All, Nanos(0), |slices| {
                        left.min(slices.iter().map(|slice| slice.len()).sum())
                    });
                }
            }
            best = best.min(begin.elapsed().as_secs_f64() * 1e9 / MESSAGES as f64);
        }
        println!("{queued} queued, {at_once} taken at once: {best:.0} ns a message");
    }
}
