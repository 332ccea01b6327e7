//! A store in virtual time: the log that real brokers have, on a disk that fills,
//! fails, and loses, tears and reorders what was not synced when the power fails.
//!
//! The simulation gives it the operations of shards, schedules the end of each commit
//! ([`SimulatedStore::begin`]), and tells the shards how it ended ([`SimulatedStore::end`]).
//!
//! Invariant: commits end in the order in which shards handed their operations over, and nobody
//! is told of a commit that would not survive a crash.

use std::collections::VecDeque;
use std::sync::Arc;

use punctual_broker::{Config, Directory, Nanos, Operations, Shard, StoreTrouble};
use punctual_model::Rng;
use punctual_store::{Batch, Log, LogConfig, SimulatedDisk, Start, Store, StoreError};

use crate::broker::SimulatedBroker;

/// Small segments, so that the log of a short run adds and removes some.
const CONFIG: LogConfig = LogConfig {
    segment_bytes: 16 << 10,
    max_bytes: 1 << 30,
    overdraft: 0,
};
/// Fewer calls of the disk than this succeed before it fails.
const CALLS: u64 = 8;
/// Time between two attempts to commit the same.
const RETRY: Nanos = Nanos(2_000_000);
/// What the wall clock shows when the simulation's time is 0, ns since 1970.
pub const WALL: u64 = 1_700_000_000_000_000_000;

/// How a store groups operations into commits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Commits {
    /// One commit is under way at a time, as with the writer of real brokers. All operations that are handed
    /// over meanwhile become the next one.
    Groups,
    /// All operations that a shard hands over at once become a commit. Any number of commits is under way at a
    /// time, as if the disk wrote them in parallel.
    Batches,
}

/// Operations that a shard handed over and that are not committed.
#[derive(Debug)]
struct PendingWrite {
    shard: u16,
    operations: Operations,
}

/// The store of a broker and its writer.
#[derive(Debug)]
pub struct SimulatedStore {
    /// The log; `None` only while a crash is simulated.
    log: Option<Log<SimulatedDisk>>,
    shards: u16,
    commits: Commits,
    /// The least and the greatest time that a commit takes.
    takes: [Nanos; 2],
    waiting: VecDeque<PendingWrite>,
    /// How many of `waiting`, from the first on, belong to commits that are under way.
    running: usize,
    /// How the disk fails, if it does.
    trouble: Option<StoreTrouble>,
    /// Calls of the disk until the power fails.
    power: Option<u64>,
    /// How many crashes there were.
    starts: u64,
    /// For how many of `waiting`, from the first on, the shards were told that a commit failed.
    told: usize,
    /// Why the store is full, as the shards were told.
    full: Option<StoreTrouble>,
}

/// A message of the store to a shard.
#[derive(Debug, Clone, Copy)]
pub enum StoreNews {
    /// The operations that the shard handed over with tickets up to this one are committed.
    Committed(u64),
    /// Operations of the shard could not be committed for this reason. They are tried again.
    Failed(StoreTrouble),
    /// The store is full for this reason; with `None` it has room again.
    Full(Option<StoreTrouble>),
}

impl StoreNews {
    /// Calls the method of the shard that takes this message.
    pub fn tell(self, shard: &mut Shard, now: Nanos) {
        match self {
            Self::Committed(ticket) => shard.committed(ticket, now),
            Self::Failed(trouble) => shard.store_failed(trouble, now),
            Self::Full(why) => shard.store_full(why, now),
        }
    }
}

/// How a commit ended.
#[derive(Debug)]
pub enum CommitEnd {
    /// The commit succeeded or failed: messages for shards, which they must get in this order.
    Told(Vec<(u16, StoreNews)>),
    /// The power has failed, and the simulation must crash the broker.
    Power,
}

impl SimulatedStore {
    /// Creates an empty store for a number of shards; `takes` are the least and the greatest time of a commit.
    pub fn new(shards: u16, commits: Commits, takes: [Nanos; 2]) -> Self {
        Self {
            log: Some(open(SimulatedDisk::default(), 0)),
            shards,
            commits,
            takes,
            waiting: VecDeque::new(),
            running: 0,
            trouble: None,
            power: None,
            starts: 0,
            told: 0,
            full: None,
        }
    }

    /// Changes how operations are grouped into commits, and the least and the greatest time of a commit.
    pub fn set_commits(&mut self, commits: Commits, takes: [Nanos; 2]) {
        (self.commits, self.takes) = (commits, takes);
    }

    /// Starts a broker with what the store has.
    ///
    /// # Panics
    /// If what was confirmed of it cannot be read.
    pub fn restore(
        &mut self,
        directory: Arc<Directory>,
        config: &Arc<Config>,
        now: Nanos,
    ) -> SimulatedBroker {
        SimulatedBroker::restore(directory, config, self.log(), WALL, now)
    }

    fn log(&mut self) -> &mut Log<SimulatedDisk> {
        let log = self.log.as_mut();
        log.unwrap_or_else(|| unreachable!("it is there but while it is read"))
    }

    /// Sets how the disk fails from now on; `None` repairs it. A full disk has no space except what the log has
    /// reserved; a disk that fails does so after some calls in each commit. Returns messages for shards.
    pub fn set_trouble(&mut self, trouble: Option<StoreTrouble>) -> Vec<(u16, StoreNews)> {
        self.trouble = trouble;
        self.limit();
        self.look()
    }

    fn limit(&mut self) {
        let full = self.trouble == Some(StoreTrouble::Full);
        let disk = self.log().medium_mut();
        disk.capacity = full.then(|| disk.used());
    }

    /// Whether the disk fails or is full.
    pub fn has_trouble(&self) -> bool {
        self.trouble.is_some()
    }

    /// Lets `calls` more calls of the disk succeed; with the next one the power fails ([`CommitEnd::Power`]).
    pub fn set_power(&mut self, calls: u64) {
        self.power = Some(calls);
    }

    /// Whether the failure of [`Self::set_power`] is still to come.
    pub fn has_power_left(&self) -> bool {
        self.power.is_some()
    }

    /// Takes operations that a shard hands over; [`Self::begin`] commits them.
    pub fn post(&mut self, shard: u16, operations: Operations) {
        self.waiting.push_back(PendingWrite { shard, operations });
    }

    /// Begins a commit, if operations wait for one that can begin now. Returns the time after which the caller
    /// has to call [`Self::end`]. The caller repeats this until it returns `None`.
    pub fn begin(&mut self, rng: &mut Rng) -> Option<Nanos> {
        let waiting = self.waiting.len();
        self.running = match self.commits {
            Commits::Groups if self.running == 0 && waiting > 0 => waiting,
            Commits::Batches if self.running < waiting => self.running + 1,
            _ => return None,
        };
        let [least, most] = self.takes;
        let takes = Nanos(rng.within(least.0..=most.0));
        let is_retry = self.told > 0;
        Some(if is_retry { RETRY + takes } else { takes })
    }

    /// Ends the commit that began first.
    pub fn end(&mut self, rng: &mut Rng) -> CommitEnd {
        let size = match self.commits {
            Commits::Groups => self.running,
            Commits::Batches => self.running.min(1),
        };
        let committed = self.commit(size, rng);
        if self.power == Some(0) {
            return CommitEnd::Power;
        }
        let told = self.told.min(self.running);
        let news = match committed {
            Ok(full) => {
                let mut news = self.see(full);
                let group = self.waiting.drain(..size);
                news.extend(group.map(|it| {
                    let committed = StoreNews::Committed(it.operations.ticket);
                    (it.shard, committed)
                }));
                self.told = told - size.min(told);
                news
            }
            Err(error) => {
                let trouble = StoreTrouble::from(&error);
                let news = self.waiting.range(told..self.running);
                let news = news.map(|it| (it.shard, StoreNews::Failed(trouble)));
                self.told = self.running;
                news.collect()
            }
        };
        self.running -= size;
        CommitEnd::Told(news)
    }

    /// Checks whether the store is full; if that has changed, returns messages for all shards.
    pub fn look(&mut self) -> Vec<(u16, StoreNews)> {
        let full = self.log().full().as_ref().map(StoreTrouble::from);
        self.see(full)
    }

    fn see(&mut self, full: Option<StoreTrouble>) -> Vec<(u16, StoreNews)> {
        let changed = std::mem::replace(&mut self.full, full) != full;
        let shards = (0..self.shards).filter(|_| changed);
        shards.map(|shard| (shard, StoreNews::Full(full))).collect()
    }

    /// Commits the first `size` of the waiting operations to the log, with the failures of the disk. Returns
    /// why the store is full afterwards, if it is.
    fn commit(&mut self, size: usize, rng: &mut Rng) -> Result<Option<StoreTrouble>, StoreError> {
        let mut batch = Batch::new();
        for it in self.waiting.range(..size) {
            batch.append(&it.operations.batch);
        }
        let fails = self.trouble == Some(StoreTrouble::Failed);
        let trouble = fails.then(|| rng.below(CALLS));
        let power = self.power;
        let fail_after = power.into_iter().chain(trouble).min();
        let log = self.log();
        log.medium_mut().fail_after = fail_after;
        let committed = log.commit(&batch);
        let committed = committed.map(|()| log.full().as_ref().map(StoreTrouble::from));
        let left = std::mem::take(&mut log.medium_mut().fail_after);
        if let (Some(power), Some(before), Some(left)) = (power, fail_after, left) {
            self.power = Some(power - (before - left));
        }
        committed
    }

    /// Before a crash, ends some of the commits that are under way, in their order, if the disk works. Returns
    /// the size of the next one.
    fn commit_some(&mut self, rng: &mut Rng) -> usize {
        let some = rng.index(self.running);
        if self.commit(some, rng).is_ok() {
            self.waiting.drain(..some);
        }
        1
    }

    /// Simulates the end of the process or of the power, and opens the log again with the bytes that the disk
    /// still has. A commit that is under way is interrupted at any call of the disk; operations that wait are
    /// lost.
    ///
    /// # Panics
    /// If the log is damaged.
    pub fn crash(&mut self, rng: &mut Rng) {
        let power = self.power.filter(|left| *left > 0);
        if self.running > 0 && self.power != Some(0) {
            let size = match self.commits {
                Commits::Groups => self.running,
                Commits::Batches => self.commit_some(rng),
            };
            self.power = Some(rng.below(CALLS));
            let _ = self.commit(size, rng);
        }
        self.power = power;
        self.waiting.clear();
        (self.running, self.told, self.full) = (0, 0, None);
        let Some(log) = self.log.take() else {
            return;
        };
        let mut disk = log.into_medium();
        // All of it where only the process ended.
        let survives = *rng.pick(&[100, 100, 0, 50, 90]);
        disk.crash(|| rng.chance(survives));
        self.starts += 1;
        let log = open(disk, self.starts);
        let damages = &log.report().damages;
        assert!(damages.is_empty(), "damaged without a reason: {damages:?}");
        self.log = Some(log);
        self.limit();
    }
}

fn open(disk: SimulatedDisk, seed: u64) -> Log<SimulatedDisk> {
    let opened = Log::open(disk, CONFIG, Start { seed, wall: 0 });
    opened.unwrap_or_else(|error| panic!("it cannot be read: {error}"))
}
