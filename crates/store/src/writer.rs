//! The writer thread, which waits for the disk so that no other thread has to.
//!
//! Shards post batches and do not wait. The writer takes waiting batches, up to a number
//! of bytes, as one group, commits it, and notifies each shard. A group is closed when
//! its first batch has waited for [`WriterConfig::group_delay`] or for the recent
//! duration of commits, when it is large enough, or when a batch requests it; while one
//! commit runs, the next group gathers. Batches are taken in the order in which they were
//! posted.
//!
//! On a core that is wanted by both, the threads that serve clients come first.
//!
//! A store with little space reports that before it refuses a batch, and the writer
//! forwards the report: shards then post no batches that make the store grow, and batches
//! posted before still have space. A group that fails nevertheless stays, is retried with
//! all batches posted since, and its batches are reported once. Posting never waits and
//! never refuses: a shard knows by the reports how many of its bytes wait, and stops
//! reading from the clients that cause them at a bound of its own.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::{Batch, Store, StoreError, StoreStats};

/// How far the thread gives way to others: about a quarter of a core that both want.
const NICE: i32 = 5;

/// When groups are closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WriterConfig {
    /// How long a batch waits for others, at most. It does not wait longer than
    /// commits take lately: on a fast disk waiting would be most of it.
    pub group_delay: Duration,
    /// Bytes of a group after which it takes no other batch.
    pub group_bytes: usize,
    /// How long after a failure it is tried again.
    pub retry: Duration,
    /// How long nothing is posted before it is seen whether the store is still there.
    pub watch: Duration,
}

impl Default for WriterConfig {
    fn default() -> Self {
        Self {
            group_delay: Duration::from_millis(1),
            group_bytes: 1 << 20,
            retry: Duration::from_millis(200),
            watch: Duration::from_secs(1),
        }
    }
}

/// What became of a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// It and all before it of the same shard is safe.
    Committed(u64),
    /// It is not, and is tried again.
    Failed {
        /// Its number.
        ticket: u64,
        /// Why not.
        error: StoreError,
    },
}

/// A notification of the writer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WriterEvent {
    /// To a shard, what became of a batch.
    Batch(u16, Outcome),
    /// To all shards: no batch that makes the store grow should be posted, and why
    /// (repeated when the reason changes); or, with `None`, such batches are allowed
    /// again. Batches posted before are reported as usual.
    Full(Option<StoreError>),
}

/// Counts by size: four buckets for each power of two, so that a value is known to a fifth.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Histogram {
    /// How many values were above the bound of the bucket before and not above its own.
    pub buckets: [u64; Self::BUCKETS],
    /// Sum of the values.
    pub sum: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self {
            buckets: [0; Self::BUCKETS],
            sum: 0,
        }
    }
}

impl Histogram {
    const BUCKETS: usize = 4 * 40;

    fn record(&mut self, value: u64) {
        self.buckets[Self::bucket(value)] += 1;
        self.sum = self.sum.saturating_add(value);
    }

    /// The bucket of a value: four times the position of its first bit, and the two bits after
    /// it; the last one also has all that is larger.
    pub fn bucket(value: u64) -> usize {
        let Some(first) = value.checked_ilog2() else {
            return 0;
        };
        let next = (value << 2 >> first) & 3;
        (4 * first as usize + next as usize).min(Self::BUCKETS - 1)
    }

    /// How many values there were.
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// The largest value of a bucket, except the last.
    pub fn upper(bucket: usize) -> u64 {
        let next = bucket as u64 + 1;
        let (first, quarters) = (next / 4, 4 + next % 4);
        ((quarters << first) - 1) >> 2
    }
}

/// What the writer has done.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WriterStats {
    /// Duration of commits that had something to write, in nanoseconds.
    pub commit_nanos: Histogram,
    /// From the post of a batch to its commit, in nanoseconds.
    pub wait_nanos: Histogram,
    /// Operations of a group.
    pub group_operations: Histogram,
    /// Bytes of a group.
    pub group_bytes: Histogram,
    /// Attempts that failed.
    pub failures: u64,
    /// Why it fails now, or takes nothing that grows.
    pub failing: Option<StoreError>,
    /// Bytes that wait.
    pub waiting_bytes: usize,
    /// How long the oldest batch has waited, if one does.
    pub oldest_wait: Option<Duration>,
    /// State of the store.
    pub store: StoreStats,
}

/// The thread.
#[derive(Debug)]
pub struct Writer<S> {
    shared: Arc<WriterQueue>,
    thread: JoinHandle<S>,
}

/// A way to the writer.
#[derive(Debug, Clone)]
pub struct Poster(Arc<WriterQueue>);

#[derive(Debug)]
struct WriterQueue {
    config: WriterConfig,
    queue: Mutex<Queue>,
    changed: Condvar,
    /// Bytes posted and not committed.
    bytes: AtomicUsize,
    stats: Mutex<WriterStats>,
}

#[derive(Debug, Default)]
struct Queue {
    /// What the writer has not taken. It takes all of it in one move, for shards wait
    /// for the lock.
    posted: Vec<QueuedBatch>,
    /// Bytes of this, and of what the writer had in no group when it looked last.
    bytes: usize,
    /// How many of these ask that their group is closed.
    impatient: usize,
    /// Since when the first batch waits of those that the writer has taken.
    taken: Option<Instant>,
    closed: bool,
}

#[derive(Debug)]
struct QueuedBatch {
    shard: u16,
    ticket: u64,
    ops: Batch,
    bytes: usize,
    sync: bool,
    at: Instant,
    reported: bool,
}

impl<S: Store + Send + 'static> Writer<S> {
    /// Starts the thread. The thread calls `tell` once for each batch that was committed,
    /// once for each that failed before, and when the store becomes [full](Store::full)
    /// or ceases to be. `full` is the state that the receivers of `tell` know already.
    ///
    /// # Errors
    /// There can be no other thread.
    pub fn spawn(
        store: S,
        full: Option<StoreError>,
        config: WriterConfig,
        tell: impl Fn(WriterEvent) + Send + 'static,
    ) -> io::Result<Self> {
        let shared = Arc::new(WriterQueue {
            config,
            queue: Mutex::default(),
            changed: Condvar::new(),
            bytes: AtomicUsize::new(0),
            stats: Mutex::new(WriterStats {
                store: store.stats(),
                failing: full.clone(),
                ..WriterStats::default()
            }),
        });
        let work = Work {
            shared: shared.clone(),
            store,
            tell,
            swapped: Vec::new(),
            taken: VecDeque::new(),
            batches: Vec::new(),
            group: Batch::new(),
            grouped_bytes: 0,
            grouped_impatient: 0,
            usual: config.group_delay,
            full,
        };
        let thread = thread::Builder::new().name("store".into()).spawn(move || {
            // Bulk writes must not take the processor from the threads that serve
            // clients. Failure of this call is harmless.
            let _ = rustix::process::setpriority_process(None, NICE);
            work.run()
        })?;
        Ok(Self { shared, thread })
    }

    /// A way to post.
    pub fn poster(&self) -> Poster {
        Poster(self.shared.clone())
    }

    /// Commits the waiting batches, with one more attempt if that fails, and ends the
    /// thread. Batches posted later are lost.
    ///
    /// # Panics
    /// As the store did.
    pub fn close(self) -> S {
        self.shared.queue().closed = true;
        self.shared.changed.notify_one();
        match self.thread.join() {
            Ok(store) => store,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }
}

impl Poster {
    /// Gives the writer the operations of a shard, of which the first has `waited`
    /// already. Tickets of a shard rise. `sync` closes the group with this batch.
    pub fn post(&self, shard: u16, ticket: u64, ops: Batch, waited: Duration, sync: bool) {
        let bytes = ops.as_bytes().len();
        self.0.bytes.fetch_add(bytes, Ordering::Relaxed);
        let (config, now) = (&self.0.config, Instant::now());
        let wakes = {
            let mut queue = self.0.queue();
            let was_ready = queue.is_ready(config);
            let was_empty = queue.posted.is_empty();
            queue.bytes += bytes;
            queue.impatient += usize::from(sync);
            queue.posted.push(QueuedBatch {
                shard,
                ticket,
                ops,
                bytes,
                sync,
                at: now.checked_sub(waited).unwrap_or(now),
                reported: false,
            });
            was_empty || !was_ready && queue.is_ready(config)
        };
        if wakes {
            self.0.changed.notify_one();
        }
    }

    /// Bytes that are posted and not committed.
    pub fn waiting_bytes(&self) -> usize {
        self.0.bytes.load(Ordering::Relaxed)
    }

    /// Statistics so far.
    pub fn stats(&self) -> WriterStats {
        let mut stats = self.0.stats().clone();
        stats.waiting_bytes = self.waiting_bytes();
        stats.oldest_wait = self.0.queue().oldest().map(|at| at.elapsed());
        stats
    }
}

impl WriterQueue {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn stats(&self) -> MutexGuard<'_, WriterStats> {
        self.stats.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Queue {
    /// When the batch that waits longest was posted.
    fn oldest(&self) -> Option<Instant> {
        self.taken.or_else(|| Some(self.posted.first()?.at))
    }

    /// Whether a group need not wait for others.
    fn is_ready(&self, config: &WriterConfig) -> bool {
        self.closed || self.impatient > 0 || self.bytes >= config.group_bytes
    }
}

/// What the thread does.
struct Work<S, T> {
    shared: Arc<WriterQueue>,
    store: S,
    tell: T,
    /// An empty list that replaces the posted one, to reuse its memory.
    swapped: Vec<QueuedBatch>,
    /// Batches that are in no group yet.
    taken: VecDeque<QueuedBatch>,
    /// Of the group.
    batches: Vec<QueuedBatch>,
    group: Batch,
    /// Bytes that are in a group and still counted in the queue.
    grouped_bytes: usize,
    grouped_impatient: usize,
    /// How long commits take lately, at most [`WriterConfig::group_delay`].
    usual: Duration,
    /// Why the store should not grow.
    full: Option<StoreError>,
}

impl<S: Store, T: Fn(WriterEvent)> Work<S, T> {
    fn run(mut self) -> S {
        self.look();
        loop {
            let closed = self.gather();
            if self.batches.is_empty() {
                self.look();
            } else {
                self.commit();
            }
            // A failure now is final.
            if closed {
                return self.store;
            }
        }
    }

    /// Waits for something to do and takes it; says whether it is the last. That may be
    /// nothing: it is to be seen whether there is room again, and the store still there.
    fn gather(&mut self) -> bool {
        let shared = self.shared.clone();
        let config = &shared.config;
        let mut queue = shared.queue();
        queue.bytes -= std::mem::take(&mut self.grouped_bytes);
        queue.impatient -= std::mem::take(&mut self.grouped_impatient);
        let first = self.batches.first().or(self.taken.front());
        queue.taken = first.map(|it| it.at);
        let has_failed = !self.batches.is_empty();
        if has_failed {
            // The last attempt failed. Batches posted since may free space.
            if !queue.closed {
                let waited = shared
                    .changed
                    .wait_timeout_while(queue, config.retry, |it| !it.closed);
                queue = waited.unwrap_or_else(PoisonError::into_inner).0;
            }
        } else {
            loop {
                let Some(first) = queue.oldest() else {
                    if queue.closed {
                        return true;
                    }
                    let pause = match self.full {
                        None => config.watch,
                        Some(_) => config.retry,
                    };
                    let waited = shared.changed.wait_timeout(queue, pause);
                    let (waited, result) = waited.unwrap_or_else(PoisonError::into_inner);
                    if result.timed_out() {
                        return false;
                    }
                    queue = waited;
                    continue;
                };
                let left = self.usual.saturating_sub(first.elapsed());
                if queue.is_ready(config) || left.is_zero() {
                    break;
                }
                let waited = shared.changed.wait_timeout(queue, left);
                queue = waited.unwrap_or_else(PoisonError::into_inner).0;
            }
        }
        std::mem::swap(&mut queue.posted, &mut self.swapped);
        queue.taken = queue.taken.or(self.swapped.first().map(|it| it.at));
        let closed = queue.closed;
        drop(queue);
        self.taken.extend(self.swapped.drain(..));
        self.fill(if has_failed {
            usize::MAX
        } else {
            config.group_bytes
        });
        closed && self.taken.is_empty()
    }

    /// Puts batches into the group until there are `enough` bytes.
    fn fill(&mut self, enough: usize) {
        while self.group.as_bytes().len() < enough
            && let Some(mut posted) = self.taken.pop_front()
        {
            self.grouped_bytes += posted.bytes;
            self.grouped_impatient += usize::from(posted.sync);
            if self.group.is_empty() {
                // It need not be copied.
                std::mem::swap(&mut self.group, &mut posted.ops);
            } else {
                self.group.append(&posted.ops);
                posted.ops = Batch::new();
            }
            self.batches.push(posted);
        }
    }

    fn commit(&mut self) {
        let before = self.store.stats().written_operations;
        let begun = Instant::now();
        let result = self.store.commit(&self.group);
        let took = begun.elapsed();
        match result {
            Ok(()) => self.committed(took, before),
            Err(error) => {
                let store = self.store.stats();
                let mut stats = self.shared.stats();
                stats.failures += 1;
                stats.failing = Some(error.clone());
                stats.store = store;
                drop(stats);
                for batch in self.batches.iter_mut().filter(|it| !it.reported) {
                    batch.reported = true;
                    let (ticket, error) = (batch.ticket, error.clone());
                    let outcome = Outcome::Failed { ticket, error };
                    (self.tell)(WriterEvent::Batch(batch.shard, outcome));
                }
            }
        }
    }

    /// Checks whether the store may grow, and notifies if that has changed.
    fn look(&mut self) {
        let full = self.store.full();
        // How much is missing, and of which segment, changes all the time.
        let kind = |why: &Option<StoreError>| why.as_ref().map(std::mem::discriminant);
        let is_news = kind(&full) != kind(&self.full);
        let store = self.store.stats();
        let mut stats = self.shared.stats();
        stats.failing = full.clone();
        stats.store = store;
        drop(stats);
        if is_news {
            (self.tell)(WriterEvent::Full(full.clone()));
        }
        self.full = full;
    }

    /// `before` operations had been written.
    fn committed(&mut self, took: Duration, before: u64) {
        // This precedes the notification that publishers may continue.
        self.look();
        let bytes: usize = self.batches.iter().map(|it| it.bytes).sum();
        let mut stats = self.shared.stats();
        stats.group_operations.record(self.group.len() as u64);
        stats.group_bytes.record(bytes as u64);
        if stats.store.written_operations > before {
            stats.commit_nanos.record(took.as_nanos() as u64);
            // A mean that forgets within some tens of commits.
            self.usual = (self.usual * 15 + took) / 16;
            self.usual = self.usual.min(self.shared.config.group_delay);
        }
        let now = Instant::now();
        for batch in &self.batches {
            let waited = now.saturating_duration_since(batch.at);
            stats.wait_nanos.record(waited.as_nanos() as u64);
        }
        drop(stats);
        self.shared.bytes.fetch_sub(bytes, Ordering::Relaxed);
        for batch in self.batches.drain(..) {
            let outcome = Outcome::Committed(batch.ticket);
            (self.tell)(WriterEvent::Batch(batch.shard, outcome));
        }
        self.group.clear();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;
    use crate::{Memory, Op, Report};

    /// Commits when it is allowed to, with the result that it is given.
    struct Slow {
        memory: Memory,
        begun: mpsc::Sender<usize>,
        results: mpsc::Receiver<Result<(), StoreError>>,
        is_full: Arc<Mutex<Option<StoreError>>>,
    }

    impl Store for Slow {
        fn commit(&mut self, group: &Batch) -> Result<(), StoreError> {
            self.begun.send(group.len()).expect("the test listens");
            self.results.recv().expect("the test goes on")?;
            self.memory.commit(group)
        }

        fn recover(&mut self, tell: &mut dyn FnMut(Op<'_>)) -> Result<Report, StoreError> {
            self.memory.recover(tell)
        }

        fn stats(&self) -> StoreStats {
            self.memory.stats()
        }

        fn full(&mut self) -> Option<StoreError> {
            self.is_full.lock().expect("nobody panics").clone()
        }

        fn compact(&mut self) -> Result<(), StoreError> {
            Ok(())
        }
    }

    struct Rig {
        writer: Writer<Slow>,
        begun: mpsc::Receiver<usize>,
        results: mpsc::Sender<Result<(), StoreError>>,
        told: mpsc::Receiver<(u16, Outcome)>,
        full: mpsc::Receiver<Option<StoreError>>,
        is_full: Arc<Mutex<Option<StoreError>>>,
    }

    fn rig(config: WriterConfig) -> Rig {
        rig_with(config, None)
    }

    /// Where everyone knows that the store was full, for that reason.
    fn rig_with(config: WriterConfig, was_full: Option<StoreError>) -> Rig {
        let (begun_sender, begun) = mpsc::channel();
        let (results, results_receiver) = mpsc::channel();
        let (teller, told) = mpsc::channel();
        let (teller_of_full, full) = mpsc::channel();
        let is_full = Arc::default();
        let store = Slow {
            memory: Memory::default(),
            begun: begun_sender,
            results: results_receiver,
            is_full: Arc::clone(&is_full),
        };
        let writer = Writer::spawn(store, was_full, config, move |told| match told {
            WriterEvent::Batch(shard, outcome) => {
                teller.send((shard, outcome)).expect("the test listens");
            }
            WriterEvent::Full(why) => teller_of_full.send(why).expect("the test listens"),
        });
        Rig {
            writer: writer.expect("a thread"),
            begun,
            results,
            told,
            full,
            is_full,
        }
    }

    #[test]
    fn a_value_is_in_the_bucket_with_its_bounds() {
        assert_eq!(Histogram::bucket(0), 0);
        for value in (0..4096).chain([1 << 30, (1 << 30) - 1, 5 << 28, (5 << 28) - 1]) {
            let bucket = Histogram::bucket(value);
            assert!(value <= Histogram::upper(bucket), "{value} in {bucket}");
            assert!(
                bucket == 0 || value > Histogram::upper(bucket - 1),
                "{value} in {bucket}"
            );
        }
        assert_eq!(Histogram::bucket(u64::MAX), Histogram::BUCKETS - 1);
    }

    fn session(session: u64) -> Batch {
        let mut batch = Batch::new();
        batch.push(&Op::SessionEnd { session });
        batch
    }

    #[test]
    fn what_comes_during_a_commit_is_one_group() {
        let rig = rig(WriterConfig::default());
        let poster = rig.writer.poster();
        poster.post(0, 1, session(1), Duration::ZERO, true);
        assert_eq!(rig.begun.recv(), Ok(1));
        // The disk stands still, and nobody waits for it.
        for ticket in 2..6 {
            poster.post(1, ticket, session(ticket), Duration::ZERO, true);
        }
        assert!(poster.waiting_bytes() > 0);
        assert!(poster.stats().oldest_wait.is_some());
        rig.results.send(Ok(())).expect("the writer goes on");
        assert_eq!(rig.told.recv(), Ok((0, Outcome::Committed(1))));
        assert_eq!(rig.begun.recv(), Ok(4));
        rig.results.send(Ok(())).expect("the writer goes on");
        for ticket in 2..6 {
            assert_eq!(rig.told.recv(), Ok((1, Outcome::Committed(ticket))));
        }
        let stats = poster.stats();
        assert_eq!(stats.waiting_bytes, 0);
        assert_eq!(stats.group_operations.sum, 5);
        assert_eq!(stats.wait_nanos.count(), 5);
        poster.post(0, 7, session(7), Duration::ZERO, true);
        assert_eq!(rig.begun.recv(), Ok(1));
        let one = poster.stats().oldest_wait;
        assert!(one.is_some());
        assert!(poster.stats().oldest_wait >= one);
        rig.results.send(Ok(())).expect("the writer goes on");
        rig.writer.close();
    }

    #[test]
    fn a_group_has_an_end() {
        let config = WriterConfig {
            group_bytes: 1,
            ..WriterConfig::default()
        };
        let rig = rig(config);
        let poster = rig.writer.poster();
        for ticket in 1..4 {
            poster.post(0, ticket, session(ticket), Duration::ZERO, false);
        }
        assert!(poster.waiting_bytes() > 0);
        for ticket in 1..4 {
            assert_eq!(rig.begun.recv(), Ok(1));
            rig.results.send(Ok(())).expect("the writer goes on");
            assert_eq!(rig.told.recv(), Ok((0, Outcome::Committed(ticket))));
        }
        assert_eq!(poster.waiting_bytes(), 0);
        rig.writer.close();
    }

    #[test]
    fn all_that_waits_is_taken_at_once_and_put_into_groups_without_the_lock() {
        let config = WriterConfig {
            group_bytes: 1,
            ..WriterConfig::default()
        };
        let rig = rig(config);
        let poster = rig.writer.poster();
        poster.post(0, 1, session(1), Duration::ZERO, true);
        assert_eq!(rig.begun.recv(), Ok(1));
        for ticket in 2..5 {
            poster.post(0, ticket, session(ticket), Duration::ZERO, true);
        }
        for ticket in 1..5 {
            let left = if ticket == 1 { 3 } else { 0 };
            assert_eq!(rig.writer.shared.queue().posted.len(), left, "{ticket}");
            assert!(poster.stats().oldest_wait.is_some());
            rig.results.send(Ok(())).expect("the writer goes on");
            assert_eq!(rig.told.recv(), Ok((0, Outcome::Committed(ticket))));
            if ticket < 4 {
                assert_eq!(rig.begun.recv(), Ok(1));
            }
        }
        poster.post(0, 5, session(5), Duration::ZERO, true);
        assert_eq!(rig.begun.recv(), Ok(1));
        let queue = rig.writer.shared.queue();
        let own = session(5).as_bytes().len();
        assert_eq!((queue.bytes, queue.impatient), (own, 1));
        drop(queue);
        rig.results.send(Ok(())).expect("the writer goes on");
        assert_eq!(rig.told.recv(), Ok((0, Outcome::Committed(5))));
        assert_eq!(poster.waiting_bytes(), 0);
        rig.writer.close();
    }

    #[test]
    fn that_it_is_full_is_said_before_what_filled_it_is_safe_and_again_when_it_is_not() {
        let config = WriterConfig {
            retry: Duration::from_millis(1),
            ..WriterConfig::default()
        };
        let rig = rig(config);
        let poster = rig.writer.poster();
        let full = StoreError::Full {
            what: "the store",
            needed: 1,
        };
        poster.post(0, 1, session(1), Duration::ZERO, true);
        assert_eq!(rig.begun.recv(), Ok(1));
        *rig.is_full.lock().expect("nobody panics") = Some(full.clone());
        rig.results.send(Ok(())).expect("the writer goes on");
        assert_eq!(rig.told.recv(), Ok((0, Outcome::Committed(1))));
        assert_eq!(rig.full.try_recv(), Ok(Some(full.clone())));
        assert_eq!(poster.stats().failing, Some(full));
        // Another amount is no news, another reason is.
        let more = StoreError::Full {
            what: "the store",
            needed: 2,
        };
        *rig.is_full.lock().expect("nobody panics") = Some(more);
        poster.post(0, 2, session(2), Duration::ZERO, true);
        assert_eq!(rig.begun.recv(), Ok(1));
        rig.results.send(Ok(())).expect("the writer goes on");
        assert_eq!(rig.told.recv(), Ok((0, Outcome::Committed(2))));
        let broken = StoreError::Io {
            what: "segment 2 cannot be made".into(),
            kind: io::ErrorKind::Other,
            message: "broken".into(),
        };
        *rig.is_full.lock().expect("nobody panics") = Some(broken.clone());
        assert_eq!(rig.full.recv(), Ok(Some(broken)));
        // Nothing is posted; that there is room shows all the same.
        *rig.is_full.lock().expect("nobody panics") = None;
        assert_eq!(rig.full.recv(), Ok(None));
        poster.post(0, 3, session(3), Duration::ZERO, true);
        assert_eq!(rig.begun.recv(), Ok(1));
        rig.results.send(Ok(())).expect("the writer goes on");
        assert_eq!(rig.told.recv(), Ok((0, Outcome::Committed(3))));
        assert_eq!(poster.stats().failing, None);
        rig.writer.close();
    }

    #[test]
    fn that_it_is_full_no_more_is_said_to_who_heard_so_before_the_start() {
        let full = StoreError::Full {
            what: "the store",
            needed: 1,
        };
        let rig = rig_with(WriterConfig::default(), Some(full));
        assert_eq!(rig.full.recv(), Ok(None));
        assert_eq!(rig.writer.poster().stats().failing, None);
        rig.writer.close();
    }

    #[test]
    fn what_fails_is_said_once_and_tried_again_with_what_came_since() {
        let config = WriterConfig {
            retry: Duration::from_millis(1),
            ..WriterConfig::default()
        };
        let rig = rig(config);
        let poster = rig.writer.poster();
        let full = StoreError::Full {
            what: "the disk",
            needed: 1,
        };
        let failed = |ticket| Outcome::Failed {
            ticket,
            error: full.clone(),
        };
        poster.post(0, 1, session(1), Duration::ZERO, true);
        assert_eq!(rig.begun.recv(), Ok(1));
        poster.post(3, 7, session(2), Duration::ZERO, true);
        rig.results
            .send(Err(full.clone()))
            .expect("the writer goes on");
        assert_eq!(rig.told.recv(), Ok((0, failed(1))));
        assert_eq!(rig.begun.recv(), Ok(2));
        assert_eq!(poster.stats().failing, Some(full.clone()));
        rig.results
            .send(Err(full.clone()))
            .expect("the writer goes on");
        assert_eq!(rig.told.recv(), Ok((3, failed(7))));
        assert_eq!(rig.begun.recv(), Ok(2));
        rig.results.send(Ok(())).expect("the writer goes on");
        assert_eq!(rig.told.recv(), Ok((0, Outcome::Committed(1))));
        assert_eq!(rig.told.recv(), Ok((3, Outcome::Committed(7))));
        let stats = poster.stats();
        assert_eq!((stats.failing, stats.failures), (None, 2));
        rig.writer.close();
    }

    #[test]
    fn closing_commits_what_waits() {
        let config = WriterConfig {
            group_delay: Duration::from_secs(3600),
            ..WriterConfig::default()
        };
        let rig = rig(config);
        rig.writer
            .poster()
            .post(0, 1, session(1), Duration::ZERO, false);
        rig.results.send(Ok(())).expect("the writer goes on");
        let store = rig.writer.close();
        assert_eq!(store.stats().operations, 1);
        assert_eq!(rig.told.recv(), Ok((0, Outcome::Committed(1))));
    }

    #[test]
    fn closing_does_not_wait_for_a_disk_that_fails() {
        let rig = rig(WriterConfig::default());
        rig.writer
            .poster()
            .post(0, 1, session(1), Duration::ZERO, true);
        let error = StoreError::io("it", &io::ErrorKind::Other.into());
        rig.results
            .send(Err(error.clone()))
            .expect("the writer goes on");
        rig.results.send(Err(error)).expect("the writer goes on");
        let store = rig.writer.close();
        assert_eq!(store.stats().operations, 0);
    }
}
