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

/// Small, so that segments come and go.
const CONFIG: LogConfig = LogConfig {
    segment_bytes: 16 << 10,
    max_bytes: 1 << 30,
    overdraft: 0,
};
/// Calls of the disk, at most, that succeed before it fails.
const CALLS: u64 = 8;
/// Time between two attempts to commit the same.
const RETRY: Nanos = Nanos(2_000_000);
/// What the wall clock shows when the simulation's time is 0, ns since 1970.
pub const WALL: u64 = 1_700_000_000_000_000_000;

/// What becomes one commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Commits {
    /// One commit is under way at a time, as with the writer of real brokers; what comes meanwhile is
    /// the next one.
    Groups,
    /// What a shard hands over at once is a commit of its own, and many are under way.
    Batches,
}

/// What a shard handed over.
#[derive(Debug)]
struct PendingWrite {
    shard: u16,
    operations: Operations,
}

/// The store of a broker and its writer.
#[derive(Debug)]
pub struct SimulatedStore {
    /// Not there while it is being read again.
    log: Option<Log<SimulatedDisk>>,
    shards: u16,
    commits: Commits,
    /// The least and the greatest time that a commit takes.
    takes: [Nanos; 2],
    waiting: VecDeque<PendingWrite>,
    /// How many of them are being committed, all together or each by itself.
    running: usize,
    /// What the disk does.
    trouble: Option<StoreTrouble>,
    /// Calls of the disk until the power fails.
    power: Option<u64>,
    /// How often it was read again.
    starts: u64,
    /// Those of `waiting` that were told so.
    told: usize,
    /// Why shards were told that it is full.
    full: Option<StoreTrouble>,
}

/// What a shard is told of its store.
#[derive(Debug, Clone, Copy)]
pub enum StoreNews {
    /// What it handed over up to this ticket is committed.
    Committed(u64),
    /// What it handed over could not be committed, and is tried again.
    Failed(StoreTrouble),
    /// The store may grow no more for this reason, or may again.
    Full(Option<StoreTrouble>),
}

impl StoreNews {
    /// Tells a shard.
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
    /// Well or not; the shards that are to be told, in this order.
    Told(Vec<(u16, StoreNews)>),
    /// The power has failed.
    Power,
}

impl SimulatedStore {
    /// An empty store for so many shards; `takes` are the least and the greatest time of a commit.
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

    /// What becomes one commit from now on, and at least and at most how long each takes.
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

    /// What is wrong with the disk from now on: it has room for nothing more than
    /// it has reserved, or fails after some calls, each time. Returns the shards that are to be told.
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

    /// Whether something is wrong with the disk.
    pub fn has_trouble(&self) -> bool {
        self.trouble.is_some()
    }

    /// The power fails when the disk has been called so many times.
    pub fn set_power(&mut self, calls: u64) {
        self.power = Some(calls);
    }

    /// Whether it was called less often than that.
    pub fn has_power_left(&self) -> bool {
        self.power.is_some()
    }

    /// Takes what a shard hands over.
    pub fn post(&mut self, shard: u16, operations: Operations) {
        self.waiting.push_back(PendingWrite { shard, operations });
    }

    /// Begins a commit of what waits for one, unless one has to end before; returns the time until it
    /// ends. There may be another one to begin.
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

    /// A commit that is under way ends, the one that began first.
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

    /// Sees whether the store may grow; returns the shards that are to be told if that has changed.
    pub fn look(&mut self) -> Vec<(u16, StoreNews)> {
        let full = self.log().full().as_ref().map(StoreTrouble::from);
        self.see(full)
    }

    fn see(&mut self, full: Option<StoreTrouble>) -> Vec<(u16, StoreNews)> {
        let changed = std::mem::replace(&mut self.full, full) != full;
        let shards = (0..self.shards).filter(|_| changed);
        shards.map(|shard| (shard, StoreNews::Full(full))).collect()
    }

    /// Commits the first `size` of what waits, with the disk as it is; why the store is
    /// full then.
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

    /// Some of the batches that are being committed are committed, in their order, if the disk works; returns how
    /// many come next.
    fn commit_some(&mut self, rng: &mut Rng) -> usize {
        let some = rng.index(self.running);
        if self.commit(some, rng).is_ok() {
            self.waiting.drain(..some);
        }
        1
    }

    /// The process ends, or the power fails, and what is on the disk is read
    /// again. What was under way has got as far as it may be; what waited is lost.
    ///
    /// # Panics
    /// If what was confirmed cannot be read.
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
