//! How urgent a message is, and what that means for its place.
//!
//! A publisher states a priority or a deadline, or a configured rule does; a
//! [`Policy`] turns that into a [`Rank`]: a traffic class, which is a lane of
//! the egress scheduler, and a key inside the lane. Smaller is more urgent.

use punctual_model::{deadline_monotonic, implied_deadline};

use crate::Nanos;

/// Traffic class of a message, most urgent first. The class is the lane that a
/// message waits in, and what the network below is told by marking.
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
    /// All, most urgent first.
    pub const ALL: [Self; 4] = [Self::RealTime, Self::Priority, Self::Normal, Self::Bulk];

    /// The word for it in configuration, topics and metrics.
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

/// Place of a message among all that wait: class, then key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(C)]
pub struct Rank {
    /// Lane.
    pub class: Class,
    /// Order inside the lane; equal keys are served in the order of arrival.
    pub key: u64,
}

impl Rank {
    /// Of control packets, which go before all messages.
    pub const CONTROL: Self = Self {
        class: Class::RealTime,
        key: 0,
    };

    /// What the messages of a flow have in common, smaller for more urgent ones: the class, and
    /// inside it the `rt-priority` or `priority`. By deadline alone nothing is told apart.
    pub const fn level(self) -> Level {
        let level = match self.class {
            Class::RealTime => self.key >> DEADLINE_BITS,
            Class::Priority | Class::Normal | Class::Bulk => self.key,
        };
        Level(self.class, level)
    }
}

/// How urgent the messages of a flow are, see [`Rank::level`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Level(Class, u64);

/// What is stated about a message. Anything stated makes it urgent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Urgency {
    /// `rt-priority`: 0..=7, 7 most urgent.
    pub rt_priority: Option<u8>,
    /// `rt-deadline`: from the publication, in nanoseconds.
    pub deadline: Option<Nanos>,
    /// `priority`: 0 most urgent.
    pub priority: Option<u64>,
    /// Shortest deadline that counts where deadlines alone give the order: who
    /// may not state any `rt-priority` does not get by with a short deadline.
    /// 0 for any.
    pub least_deadline: Nanos,
    /// `rt-late = drop`: a message past its deadline is not sent any more.
    pub drop_late: bool,
    /// A rule calls the topic bulk.
    pub bulk: bool,
}

impl Urgency {
    /// Class of a message of which this is stated. A real-time requirement
    /// outweighs a priority.
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

/// Real-time messages by `rt-priority`, then by absolute deadline; messages
/// with a `priority` by that.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FixedPriority;

/// Real-time messages by absolute deadline, as far as the publisher may state
/// it; messages with a `priority` by that.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Edf;

/// Everything in the order of arrival: no classes.
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

/// A message's rank and what happens when it is late.
///
/// The class comes first: [`crate::Message`] counts on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct Stamp {
    /// Its place.
    pub rank: Rank,
    /// Absolute deadline; [`Nanos::MAX`] for none.
    pub deadline: Nanos,
    /// Whether it is dropped rather than sent after its deadline.
    pub drop_late: bool,
}

impl Stamp {
    /// Of a plain message.
    pub const PLAIN: Self = Self {
        rank: Rank {
            class: Class::Normal,
            key: 0,
        },
        deadline: Nanos::MAX,
        drop_late: false,
    };

    /// Of a message published at `now` of which `urgency` is stated.
    #[inline]
    pub fn new(discipline: Discipline, urgency: &Urgency, now: Nanos) -> Self {
        Self {
            rank: discipline.rank(urgency, now),
            deadline: urgency.deadline.map_or(Nanos::MAX, |d| now + d),
            drop_late: urgency.drop_late,
        }
    }

    /// Of a message of an admitted flow, published at `now`: by priority, and
    /// inside it in the order of arrival, which is what bounds assume.
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

    /// When a message of an admitted flow was published.
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

        /// With a right to priorities up to `most`, nothing stated is before what
        /// those may state who have more.
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

        /// Messages of which the same is stated keep their order.
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
