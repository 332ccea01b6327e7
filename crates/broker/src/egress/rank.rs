//! The urgency of a message, and the place in the output that follows from it.
//!
//! A publisher states a priority or a deadline, or a configured rule does; a
//! [`Policy`] turns that into a [`Rank`]: a traffic class, which is a lane of
//! the egress scheduler, and a key inside the lane. Smaller is more urgent.

use punctual_model::{deadline_monotonic, implied_deadline};

use crate::Nanos;

/// Traffic class of a message, most urgent first. The class is the lane in which a message waits,
/// and determines the marking of its network packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[repr(u8)]
pub enum Class {
    /// Messages with a real-time requirement: `rt-priority`, `rt-deadline`.
    RealTime = 0,
    /// Messages with a `priority`, stated or by a rule.
    Priority = 1,
    /// Everything else.
    #[default]
    Normal = 2,
    /// Topics that a rule calls bulk.
    Bulk = 3,
}

impl Class {
    /// All classes, most urgent first.
    pub const ALL: [Self; 4] = [Self::RealTime, Self::Priority, Self::Normal, Self::Bulk];

    /// The name of the class in configuration, topics and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::RealTime => "realtime",
            Self::Priority => "priority",
            Self::Normal => "normal",
            Self::Bulk => "bulk",
        }
    }

    /// Whether its messages are sorted before those of lower classes, rather
    /// than appended.
    #[inline]
    pub(crate) const fn is_urgent(self) -> bool {
        matches!(self, Self::RealTime | Self::Priority)
    }
}

/// Place of a message among all waiting messages: class, then key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(C)]
pub struct Rank {
    /// Lane.
    pub class: Class,
    /// Order inside the lane; equal keys are served in the order of arrival.
    pub key: u64,
}

impl Rank {
    /// The rank of control packets, which go before all messages.
    pub const CONTROL: Self = Self {
        class: Class::RealTime,
        key: 0,
    };

    /// The urgency that all messages of a flow share, smaller for more urgent ones: the class, and
    /// inside it the `rt-priority` or `priority`. Flows that differ only in their deadlines have
    /// the same level.
    pub const fn level(self) -> Level {
        let level = match self.class {
            Class::RealTime => self.key >> DEADLINE_BITS,
            Class::Priority | Class::Normal | Class::Bulk => self.key,
        };
        Level(self.class, level)
    }
}

/// The urgency of the messages of a flow, see [`Rank::level`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Level(Class, u64);

/// The urgency that is stated for a message. A real-time requirement or a priority makes it urgent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Urgency {
    /// `rt-priority`: 0..=7, 7 most urgent.
    pub rt_priority: Option<u8>,
    /// `rt-deadline`: from the publication, in nanoseconds.
    pub deadline: Option<Nanos>,
    /// `priority`: 0 most urgent.
    pub priority: Option<u64>,
    /// Shortest effective deadline where deadlines alone give the order: a publisher that may not
    /// state every `rt-priority` gains nothing from a shorter deadline. 0 for any.
    pub least_deadline: Nanos,
    /// `rt-late = drop`: a message past its deadline is not sent any more.
    pub drop_late: bool,
    /// Whether a rule declares the topic bulk.
    pub bulk: bool,
}

impl Urgency {
    /// Class of a message with this urgency. A real-time requirement outweighs a priority.
    #[inline]
    pub const fn class(&self) -> Class {
        if self.rt_priority.is_some() || self.deadline.is_some() {
            Class::RealTime
        } else if self.priority.is_some() {
            Class::Priority
        } else if self.bulk {
            Class::Bulk
        } else {
            Class::Normal
        }
    }
}

/// A scheduling discipline: it ranks messages.
pub trait Policy {
    /// Rank of a message published at `now`.
    fn rank(&self, urgency: &Urgency, now: Nanos) -> Rank;
}

/// Orders real-time messages by `rt-priority`, then by absolute deadline; messages with a
/// `priority` by that.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FixedPriority;

/// Orders real-time messages by absolute deadline, as far as the publisher may state it; messages
/// with a `priority` by that.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Edf;

/// Keeps all messages in the order of arrival: no classes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Fifo;

/// Bits of a fixed-priority key that hold the absolute deadline: 73 years.
const DEADLINE_BITS: u32 = 61;

impl Policy for FixedPriority {
    #[inline]
    fn rank(&self, urgency: &Urgency, now: Nanos) -> Rank {
        let class = urgency.class();
        let key = match class {
            Class::RealTime => {
                let stated = urgency.rt_priority;
                let priority = stated
                    .or(urgency
                        .deadline
                        .map(|deadline| deadline_monotonic(deadline.0)))
                    .unwrap_or(0)
                    .min(7);
                let latest = (1 << DEADLINE_BITS) - 1;
                let deadline = urgency.deadline.map_or(latest, |d| (now + d).0.min(latest));
                u64::from(7 - priority) << DEADLINE_BITS | deadline
            }
            Class::Priority => urgency.priority.unwrap_or(u64::MAX),
            Class::Normal | Class::Bulk => 0,
        };
        Rank { class, key }
    }
}

impl Policy for Edf {
    #[inline]
    fn rank(&self, urgency: &Urgency, now: Nanos) -> Rank {
        let class = urgency.class();
        let key = match class {
            Class::RealTime => {
                let implied = || Nanos(implied_deadline(urgency.rt_priority.unwrap_or(0)));
                let deadline = urgency.deadline.unwrap_or_else(implied);
                (now + deadline.max(urgency.least_deadline)).0
            }
            Class::Priority => urgency.priority.unwrap_or(u64::MAX),
            Class::Normal | Class::Bulk => 0,
        };
        Rank { class, key }
    }
}

impl Policy for Fifo {
    #[inline]
    fn rank(&self, _: &Urgency, _: Nanos) -> Rank {
        Rank {
            class: Class::Normal,
            key: 0,
        }
    }
}

/// The disciplines that can be configured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Discipline {
    /// [`FixedPriority`].
    #[default]
    FixedPriority,
    /// [`Edf`].
    Edf,
    /// [`Fifo`].
    Fifo,
}

impl Policy for Discipline {
    #[inline]
    fn rank(&self, urgency: &Urgency, now: Nanos) -> Rank {
        match self {
            Self::FixedPriority => FixedPriority.rank(urgency, now),
            Self::Edf => Edf.rank(urgency, now),
            Self::Fifo => Fifo.rank(urgency, now),
        }
    }
}

/// A message's rank, its deadline, and the policy when the message is late.
///
/// The class comes first: [`crate::Message`] counts on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct Stamp {
    /// The place of the message among all waiting ones.
    pub rank: Rank,
    /// Absolute deadline; [`Nanos::MAX`] for none.
    pub deadline: Nanos,
    /// Whether the message is dropped rather than sent after its deadline.
    pub drop_late: bool,
}

impl Stamp {
    /// The stamp of a plain message.
    pub const PLAIN: Self = Self {
        rank: Rank {
            class: Class::Normal,
            key: 0,
        },
        deadline: Nanos::MAX,
        drop_late: false,
    };

    /// The stamp of a message published at `now` with that urgency.
    #[inline]
    pub fn new(discipline: Discipline, urgency: &Urgency, now: Nanos) -> Self {
        Self {
            rank: discipline.rank(urgency, now),
            deadline: urgency.deadline.map_or(Nanos::MAX, |d| now + d),
            drop_late: urgency.drop_late,
        }
    }

    /// The stamp of a message of an admitted flow, published at `now`: ordered by priority, and
    /// inside a priority by the time of arrival, as the delay bounds assume.
    #[inline]
    pub fn admitted(priority: u8, deadline: Option<Nanos>, drop_late: bool, now: Nanos) -> Self {
        let latest = (1 << DEADLINE_BITS) - 1;
        Self {
            rank: Rank {
                class: Class::RealTime,
                key: u64::from(7 - priority.min(7)) << DEADLINE_BITS | now.0.min(latest),
            },
            deadline: deadline.map_or(Nanos::MAX, |d| now + d),
            drop_late,
        }
    }

    /// The publication time of a message of an admitted flow.
    #[inline]
    pub(crate) fn admitted_at(&self) -> Nanos {
        Nanos(self.rank.key & ((1 << DEADLINE_BITS) - 1))
    }

    /// Traffic class.
    #[inline]
    pub const fn class(&self) -> Class {
        self.rank.class
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn realtime(priority: Option<u8>, deadline: Option<u64>) -> Urgency {
        Urgency {
            rt_priority: priority,
            deadline: deadline.map(Nanos),
            ..Urgency::default()
        }
    }

    #[test]
    fn the_class_follows_from_what_is_stated() {
        let priority = Urgency {
            priority: Some(3),
            ..Urgency::default()
        };
        let bulk = Urgency {
            bulk: true,
            ..Urgency::default()
        };
        assert_eq!(Urgency::default().class(), Class::Normal);
        assert_eq!(priority.class(), Class::Priority);
        assert_eq!(bulk.class(), Class::Bulk);
        assert_eq!(realtime(Some(0), None).class(), Class::RealTime);
        assert_eq!(realtime(None, Some(1)).class(), Class::RealTime);
    }

    proptest! {
        #[test]
        fn fixed_priority_compares_priorities_then_deadlines(
            p in 0..8u8, q in 0..8u8, d in 1..1u64 << 40, e in 1..1u64 << 40, now in 0..1u64 << 50,
        ) {
            let now = Nanos(now);
            let a = FixedPriority.rank(&realtime(Some(p), Some(d)), now);
            let b = FixedPriority.rank(&realtime(Some(q), Some(e)), now);
            prop_assert_eq!(a.cmp(&b), q.cmp(&p).then(d.cmp(&e)));
        }

        #[test]
        fn edf_compares_deadlines(
            p in 0..8u8, q in 0..8u8, d in 1..1u64 << 40, e in 1..1u64 << 40, now in 0..1u64 << 50,
        ) {
            let now = Nanos(now);
            let a = Edf.rank(&realtime(Some(p), Some(d)), now);
            let b = Edf.rank(&realtime(Some(q), Some(e)), now);
            prop_assert_eq!(a.cmp(&b), d.cmp(&e));
        }

        /// With a right to priorities up to `most`, no stated urgency ranks before those of
        /// publishers with more rights.
        #[test]
        fn edf_counts_no_deadline_below_the_least(
            p in 0..8u8, d in 1..1u64 << 40, most in 0..7u8, now in 0..1u64 << 50,
        ) {
            let now = Nanos(now);
            let least_deadline = Nanos(punctual_model::shortest_deadline(most));
            let bound = Urgency { least_deadline, ..realtime(Some(p.min(most)), Some(d)) };
            let higher = realtime(Some(most + 1), None);
            prop_assert!(Edf.rank(&higher, now) < Edf.rank(&bound, now));
            prop_assert_eq!(Stamp::new(Discipline::Edf, &bound, now).deadline, now + Nanos(d));
        }

        /// Messages with the same stated urgency keep their order.
        #[test]
        fn later_messages_never_rank_before_earlier_ones(
            p in proptest::option::of(0..8u8),
            d in proptest::option::of(1..1u64 << 40),
            v in proptest::option::of(any::<u64>()),
            now in 0..1u64 << 50,
            wait in 0..1u64 << 40,
        ) {
            let urgency = Urgency { priority: v, ..realtime(p, d) };
            for discipline in [Discipline::FixedPriority, Discipline::Edf, Discipline::Fifo] {
                let first = discipline.rank(&urgency, Nanos(now));
                let second = discipline.rank(&urgency, Nanos(now + wait));
                prop_assert!(first <= second);
            }
        }
    }
}
