//! What is seen of an admitted flow, beside what it was promised.
//!
//! A message of an admitted flow carries a reference to its flow's numbers, and
//! whoever writes it to a receiver counts there: plain atomic additions, on
//! whichever shard the receiver is, no lock and no allocation. Each flow has one
//! histogram of fixed size. What is measured is the broker's own stage: from the
//! last moment at which the publisher's socket was known to be empty to that at
//! which the message's first byte was handed to the receiver's socket. So it is
//! never less than what the broker took, and more by one turn at most. Networks
//! and clients are not in it; the bound covers them too.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use crate::Nanos;
use crate::lock::lock;
use crate::wait::{SharedWait, Wait};

/// The numbers of one admitted flow.
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
}

/// What has been seen of an admitted flow. Counted for each receiver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlowSight {
    /// Name of the flow.
    pub name: Arc<str>,
    /// The worst case from end to end, as its publisher was last told.
    pub bound: Option<Nanos>,
    /// From end to end.
    pub deadline: Option<Nanos>,
    /// Times from a message's arrival at the broker to its writing to a receiver.
    pub latency: Wait,
    /// Messages that were past the deadline or beyond the bound when they were
    /// written, or dropped because they were.
    pub misses: u64,
    /// Messages that waited in a session's queue, because the client was away or
    /// its Receive Maximum reached; nothing is promised for that, and they are not
    /// among the others.
    pub held: u64,
    /// Messages that were not as the publisher declared.
    pub violations: u64,
}

impl Watch {
    /// The flow has been decided about; `None` leaves what was said before.
    pub(crate) fn promise(&self, bound: Option<Nanos>, deadline: Option<Nanos>) {
        for (own, said) in [(&self.bound, bound), (&self.deadline, deadline)] {
            if let Some(said) = said {
                own.store(said.0, Ordering::Relaxed);
            }
        }
    }

    /// Counts a message that is written to a receiver. Longer than what was promised from end to end
    /// is too late, whatever the deadline.
    #[inline]
    pub(crate) fn sent(&self, latency: Nanos, late: bool) {
        self.latency.record(latency);
        if late || latency.0 > self.bound.load(Ordering::Relaxed) {
            self.missed();
        }
    }

    /// Counts a message that is past its deadline.
    pub(crate) fn missed(&self) {
        self.misses.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a message that its receiver has kept waiting.
    pub(crate) fn held(&self) {
        self.held.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a message that is not as declared.
    pub(crate) fn violated(&self) {
        self.violations.fetch_add(1, Ordering::Relaxed);
    }

    /// There is no such flow any more.
    pub(crate) fn end(&self) {
        self.ended.store(true, Ordering::Relaxed);
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

/// One line for people, of words `key=value`; times in microseconds, rounded up.
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

/// The admitted flows of a broker by name. As many as are admitted.
#[derive(Debug, Default)]
pub(crate) struct Watches(Mutex<BTreeMap<Arc<str>, Arc<Watch>>>);

impl Watches {
    /// Begins to watch a flow.
    pub(crate) fn begin(&self, name: &str) -> Arc<Watch> {
        let name: Arc<str> = name.into();
        let watch = Arc::new(Watch {
            name: name.clone(),
            bound: AtomicU64::new(u64::MAX),
            deadline: AtomicU64::new(u64::MAX),
            latency: SharedWait::default(),
            misses: AtomicU64::new(0),
            held: AtomicU64::new(0),
            violations: AtomicU64::new(0),
            ended: AtomicBool::new(false),
        });
        let mut flows = lock(&self.0);
        flows.insert(name, watch.clone());
        watch
    }

    /// The first flows by name.
    pub(crate) fn first(&self, most: usize) -> Vec<Arc<Watch>> {
        let mut flows = lock(&self.0);
        flows.retain(|_, watch| !watch.ended.load(Ordering::Relaxed));
        flows.values().take(most).cloned().collect()
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
        watch.missed();
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
        let names = |most| {
            let first = watches.first(most);
            first.iter().map(|w| w.name.to_string()).collect::<Vec<_>>()
        };
        assert_eq!(names(9), ["t@a", "t@b"]);
        assert_eq!(names(1), ["t@a"]);
        other.end();
        assert_eq!(names(9), ["t@b"]);
    }
}
