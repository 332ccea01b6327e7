//! Observation of admitted flows, for comparison with their guarantees.
//!
//! A message of an admitted flow carries a reference to its flow's counters, which are updated when
//! it is written to a receiver: plain atomic additions, on the receiver's shard, without lock or
//! allocation. Each flow has one histogram of fixed size. The measured time is the broker's own
//! stage: from the last moment at which the publisher's socket was known to be empty to the moment
//! at which the message's first byte was handed to the receiver's socket. So it is never less than
//! the broker's time, and exceeds it by at most one turn. Networks and clients are not included;
//! the bound covers them, too.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Bound::{Excluded, Unbounded};
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use crate::Nanos;
use crate::lock::lock;
use crate::wait::{SharedWait, Wait};

/// The counters of one admitted flow.
#[derive(Debug)]
pub(crate) struct Watch {
    name: Arc<str>,
    /// Nanoseconds; `u64::MAX` if not known.
    bound: AtomicU64,
    deadline: AtomicU64,
    latency: SharedWait,
    misses: AtomicU64,
    held: AtomicU64,
    violations: AtomicU64,
    ended: AtomicBool,
    /// Number of misses that no alarm has reported.
    untold: AtomicU64,
    /// The longest time of these in the broker, in nanoseconds.
    longest: AtomicU64,
    /// The time of the last alarm; 0 for never.
    told_at: AtomicU64,
    /// Set with each miss, for the task that raises alarms.
    raised: Arc<AtomicBool>,
}

/// Minimum time between two alarms about one flow.
pub(crate) const ALARM_INTERVAL: Nanos = Nanos::from_secs(10);

/// Messages of an admitted flow that were too late.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Missed {
    /// Name of the flow.
    pub flow: Arc<str>,
    /// Number of late messages, counted for each receiver, since the last alarm about the flow.
    pub messages: u64,
    /// The longest time of one of them in the broker.
    pub longest: Nanos,
    /// The end-to-end bound that its publisher was guaranteed.
    pub bound: Option<Nanos>,
    /// The end-to-end deadline.
    pub deadline: Option<Nanos>,
}

/// Statistics of an admitted flow, counted for each receiver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlowSight {
    /// Name of the flow.
    pub name: Arc<str>,
    /// The end-to-end bound that its publisher was last notified of.
    pub bound: Option<Nanos>,
    /// The end-to-end deadline.
    pub deadline: Option<Nanos>,
    /// Times from a message's arrival at the broker to its writing to a receiver.
    pub latency: Wait,
    /// Messages that were past the deadline or beyond the bound when they were
    /// written, or dropped because they were.
    pub misses: u64,
    /// Messages that waited in a session's queue, because the client was away or its Receive
    /// Maximum reached; no guarantee covers these, and they are not counted above.
    pub held: u64,
    /// Messages that did not conform to the publisher's declaration.
    pub violations: u64,
}

impl Watch {
    /// Applies a decision about the flow; `None` keeps the earlier value.
    pub(crate) fn promise(&self, bound: Option<Nanos>, deadline: Option<Nanos>) {
        for (own, said) in [(&self.bound, bound), (&self.deadline, deadline)] {
            if let Some(said) = said {
                own.store(said.0, Ordering::Relaxed);
            }
        }
    }

    /// Counts a message that is written to a receiver. A time above the end-to-end bound is a miss,
    /// whatever the deadline.
    #[inline]
    pub(crate) fn sent(&self, latency: Nanos, late: bool) {
        self.latency.record(latency);
        if late || latency.0 > self.bound.load(Ordering::Relaxed) {
            self.missed(latency);
        }
    }

    /// Counts a message that is past its deadline after so long in the broker.
    #[cold]
    pub(crate) fn missed(&self, latency: Nanos) {
        self.misses.fetch_add(1, Ordering::Relaxed);
        self.longest.fetch_max(latency.0, Ordering::Relaxed);
        self.untold.fetch_add(1, Ordering::Relaxed);
        self.raised.store(true, Ordering::Relaxed);
    }

    /// The misses since the last alarm; if that was less than [`ALARM_INTERVAL`] ago, they are
    /// checked again later ([`Watches::take_raised`]).
    pub(crate) fn alarm(&self, now: Nanos) -> Option<Missed> {
        if self.untold.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let told_at = self.told_at.load(Ordering::Relaxed);
        if told_at != 0 && now < Nanos(told_at) + ALARM_INTERVAL {
            self.raised.store(true, Ordering::Relaxed);
            return None;
        }
        self.told_at.store(now.0, Ordering::Relaxed);
        let FlowSight {
            name: flow,
            bound,
            deadline,
            ..
        } = self.sight();
        Some(Missed {
            flow,
            messages: self.untold.swap(0, Ordering::Relaxed),
            longest: Nanos(self.longest.swap(0, Ordering::Relaxed)),
            bound,
            deadline,
        })
    }

    pub(crate) fn name(&self) -> &Arc<str> {
        &self.name
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Relaxed)
    }

    /// Whether the flow has ended, and all its misses were reported.
    pub(crate) fn is_over(&self) -> bool {
        self.has_ended() && self.untold.load(Ordering::Relaxed) == 0
    }

    /// Counts a message that had to wait for its receiver.
    pub(crate) fn held(&self) {
        self.held.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a message that does not conform to the declaration.
    pub(crate) fn violated(&self) {
        self.violations.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn sight(&self) -> FlowSight {
        let nanos = |own: &AtomicU64| match own.load(Ordering::Relaxed) {
            u64::MAX => None,
            nanos => Some(Nanos(nanos)),
        };
        FlowSight {
            name: self.name.clone(),
            bound: nanos(&self.bound),
            deadline: nanos(&self.deadline),
            latency: self.latency.read(),
            misses: self.misses.load(Ordering::Relaxed),
            held: self.held.load(Ordering::Relaxed),
            violations: self.violations.load(Ordering::Relaxed),
        }
    }
}

/// One line for human readers, of words `key=value`; times in microseconds, rounded up.
impl fmt::Display for FlowSight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let micros = |nanos: Nanos| nanos.0.div_ceil(1000);
        for (key, value) in [("bound_us", self.bound), ("deadline_us", self.deadline)] {
            if let Some(value) = value {
                write!(f, "{key}={} ", micros(value))?;
            }
        }
        let latency = &self.latency;
        write!(
            f,
            "messages={} broker_p50_us={} broker_p99_us={} broker_max_us={} misses={} held={} \
             violations={}",
            latency.count,
            micros(latency.percentile(500)),
            micros(latency.percentile(990)),
            micros(latency.max),
            self.misses,
            self.held,
            self.violations,
        )
    }
}

/// A flow that is watched for as long as this lives.
#[derive(Debug)]
pub(crate) struct Watched {
    watch: Arc<Watch>,
    list: Arc<List>,
}

impl Watched {
    /// The counters, for messages that may still be in the broker when the flow ends.
    pub(crate) fn numbers(&self) -> Arc<Watch> {
        self.watch.clone()
    }
}

impl Deref for Watched {
    type Target = Watch;

    fn deref(&self) -> &Watch {
        &self.watch
    }
}

impl Drop for Watched {
    /// Removes the flow from the list at once. The list then never has more entries than there are
    /// flows and unreported misses, and a walk through it is bounded by them.
    fn drop(&mut self) {
        self.watch.ended.store(true, Ordering::Relaxed);
        if self.watch.is_over() {
            self.list.remove(&self.watch);
        }
    }
}

/// Watches by name of the flow.
#[derive(Debug, Default)]
struct List(Mutex<BTreeMap<Arc<str>, Arc<Watch>>>);

impl List {
    /// Adds a watch. Memory is freed after the lock is released, since shards wait for it.
    fn insert(&self, watch: Arc<Watch>) {
        let before = lock(&self.0).insert(watch.name.clone(), watch);
        drop(before);
    }

    /// Removes a watch, freeing memory as in [`Self::insert`].
    fn remove(&self, watch: &Arc<Watch>) {
        let mut flows = lock(&self.0);
        // Another flow may have its name by now.
        let is_this = |own: &Arc<Watch>| Arc::ptr_eq(own, watch);
        let gone = match flows.get(&watch.name).is_some_and(is_this) {
            true => flows.remove_entry(&watch.name),
            false => None,
        };
        drop(flows);
        drop(gone);
    }
}

/// The admitted flows of a broker by name, and ended ones with misses that were not reported.
#[derive(Debug, Default)]
pub(crate) struct Watches {
    list: Arc<List>,
    raised: Arc<AtomicBool>,
}

impl Watches {
    /// Begins to watch a flow.
    pub(crate) fn begin(&self, name: &str) -> Watched {
        let watch = Arc::new(Watch {
            name: name.into(),
            bound: AtomicU64::new(u64::MAX),
            deadline: AtomicU64::new(u64::MAX),
            latency: SharedWait::default(),
            misses: AtomicU64::new(0),
            held: AtomicU64::new(0),
            violations: AtomicU64::new(0),
            ended: AtomicBool::new(false),
            untold: AtomicU64::new(0),
            longest: AtomicU64::new(0),
            told_at: AtomicU64::new(0),
            raised: self.raised.clone(),
        });
        self.list.insert(watch.clone());
        Watched {
            watch,
            list: self.list.clone(),
        }
    }

    /// The next `most` watches after `name`, in the order of names.
    pub(crate) fn after(&self, name: Option<&str>, most: usize) -> Vec<Arc<Watch>> {
        let mut next = Vec::with_capacity(most);
        let from = name.map_or(Unbounded, Excluded);
        let flows = lock(&self.list.0);
        let watches = flows.range::<str, _>((from, Unbounded));
        next.extend(watches.take(most).map(|(_, watch)| watch.clone()));
        next
    }

    /// Removes a watch that [is over](Watch::is_over).
    pub(crate) fn forget(&self, watch: &Arc<Watch>) {
        self.list.remove(watch);
    }

    /// Whether there may be misses that [`Watch::alarm`] has not reported; resets this flag.
    pub(crate) fn take_raised(&self) -> bool {
        self.raised.swap(false, Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Wherever the time was spent, and whether or not there is a deadline.
    #[test]
    fn what_is_beyond_the_bound_is_a_miss() {
        let watch = Watches::default().begin("t@a");
        watch.sent(Nanos(9_000), false);
        assert_eq!(watch.sight().misses, 0);
        watch.promise(Some(Nanos(5_000)), Some(Nanos(10_000)));
        watch.sent(Nanos(5_000), false);
        assert_eq!(watch.sight().misses, 0);
        watch.sent(Nanos(5_001), false);
        assert_eq!(watch.sight().misses, 1);
    }

    #[test]
    fn a_flow_is_seen_until_it_ends() {
        let watches = Watches::default();
        let watch = watches.begin("t@b");
        let other = watches.begin("t@a");
        watch.promise(Some(Nanos(5_000)), None);
        watch.sent(Nanos(1_000), false);
        watch.sent(Nanos(9_000), true);
        watch.missed(Nanos(0));
        watch.held();
        watch.violated();
        let sight = watch.sight();
        assert_eq!((sight.bound, sight.deadline), (Some(Nanos(5_000)), None));
        assert_eq!((sight.latency.count, sight.latency.max), (2, Nanos(9_000)));
        assert_eq!((sight.misses, sight.held, sight.violations), (2, 1, 1));
        assert_eq!(
            sight.to_string(),
            "bound_us=5 messages=2 broker_p50_us=2 broker_p99_us=9 broker_max_us=9 misses=2 held=1 \
             violations=1"
        );
        watch.promise(None, Some(Nanos(7)));
        assert_eq!(watch.sight().bound, Some(Nanos(5_000)));
        let names = |after, most| {
            let next = watches.after(after, most);
            next.iter().map(|w| w.name.to_string()).collect::<Vec<_>>()
        };
        assert_eq!(names(None, 9), ["t@a", "t@b"]);
        assert_eq!(names(None, 1), ["t@a"]);
        assert_eq!(names(Some("t@a"), 9), ["t@b"]);
        drop(other);
        assert_eq!(names(None, 9), ["t@b"]);
        // With one that has not been told of.
        drop(watch);
        let watch = watches.after(None, 9).remove(0);
        assert!(watch.has_ended() && !watch.is_over());
        assert_eq!(watch.alarm(Nanos::from_secs(1)).unwrap().messages, 2);
        assert!(watch.is_over());
        watches.forget(&watch);
        assert!(watches.after(None, 9).is_empty());
    }

    /// A client that comes back has flows with the names of those that its last session has left.
    #[test]
    fn the_end_of_a_flow_is_not_that_of_the_next_one_with_its_name() {
        let watches = Watches::default();
        let old = watches.begin("t@a");
        let new = watches.begin("t@a");
        drop(old);
        assert!(Arc::ptr_eq(&watches.after(None, 9)[0], &new.numbers()));
        drop(new);
        assert!(watches.after(None, 9).is_empty());
    }

    #[test]
    fn alarms_tell_of_misses_together() {
        let watches = Watches::default();
        let watch = watches.begin("t@a");
        watch.promise(Some(Nanos(5_000)), None);
        let now = Nanos::from_secs(100);
        assert_eq!(watch.alarm(now), None);
        assert!(!watches.take_raised());
        watch.sent(Nanos(7_000), false);
        watch.sent(Nanos(6_000), false);
        assert!(watches.take_raised() && !watches.take_raised());
        let missed = watch.alarm(now).unwrap();
        assert_eq!((missed.messages, missed.longest), (2, Nanos(7_000)));
        watch.sent(Nanos(8_000), false);
        assert!(watches.take_raised());
        assert_eq!(watch.alarm(now + Nanos::from_secs(9)), None);
        assert!(watches.take_raised(), "it is told of later");
        let missed = watch.alarm(now + ALARM_INTERVAL);
        assert_eq!(missed.unwrap().messages, 1);
        assert_eq!(watch.alarm(now + ALARM_INTERVAL), None);
        assert!(!watches.take_raised());
    }
}
