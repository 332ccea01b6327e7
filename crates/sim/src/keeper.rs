//! A store in virtual time: the log that real brokers have, on a disk that fills,
//! fails, and loses, tears and reorders what was not synced when the power fails.
//!
//! Invariant: a group is one commit, as long as it waits everything joins it, and
//! nobody is told of a commit that would not survive a crash.

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

/// What a shard handed over.
#[derive(Debug)]
struct PendingWrite {
    shard: u16,
    operations: Operations,
}

/// The store of a [`crate::World`] and its writer.
#[derive(Debug)]
pub(crate) struct Keeper {
    /// Not there while it is being read again.
    store: Option<Log<SimulatedDisk>>,
    /// Wall clock's time at the zero of the world's.
    wall: u64,
    /// Longest time until a commit ends.
    pub(crate) delay: Nanos,
    waiting: VecDeque<PendingWrite>,
    /// How many of them are being committed.
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
    /// When the last news for each shard arrives.
    pub(crate) last: Vec<Nanos>,
}

/// What a shard is told.
#[derive(Debug, Clone, Copy)]
pub(crate) enum News {
    Committed(u64),
    Failed(StoreTrouble),
    Full(Option<StoreTrouble>),
}

impl News {
    pub(crate) fn tell(self, shard: &mut Shard, now: Nanos) {
        match self {
            Self::Committed(ticket) => shard.committed(ticket, now),
            Self::Failed(trouble) => shard.store_failed(trouble, now),
            Self::Full(why) => shard.store_full(why, now),
        }
    }
}

/// How a commit ended.
#[derive(Debug)]
pub(crate) enum End {
    /// Well or not; who is to be told.
    Told(Vec<(u16, News)>),
    /// The power has failed.
    Power,
}

impl Keeper {
    pub(crate) fn new(shards: u16, delay: Nanos) -> Self {
        Self {
            store: Some(open(SimulatedDisk::default(), 0)),
            wall: 1_700_000_000_000_000_000,
            delay,
            waiting: VecDeque::new(),
            running: 0,
            trouble: None,
            power: None,
            starts: 0,
            told: 0,
            full: None,
            last: vec![Nanos(0); usize::from(shards)],
        }
    }

    /// Starts a broker with what the store has.
    pub(crate) fn restore(
        &mut self,
        directory: Arc<Directory>,
        config: &Arc<Config>,
        now: Nanos,
    ) -> SimulatedBroker {
        let wall = self.wall;
        SimulatedBroker::restore(directory, config, self.store(), wall, now)
    }

    fn store(&mut self) -> &mut Log<SimulatedDisk> {
        let store = self.store.as_mut();
        store.unwrap_or_else(|| unreachable!("it is there but while it is read"))
    }

    /// What is wrong with the disk from now on: it has room for nothing more than
    /// it has reserved, or fails after some calls, each time.
    pub(crate) fn set_trouble(&mut self, trouble: Option<StoreTrouble>) {
        self.trouble = trouble;
        let full = trouble == Some(StoreTrouble::Full);
        let disk = self.store().medium_mut();
        disk.capacity = full.then(|| disk.used());
    }

    /// The power fails when the disk has been called so many times.
    pub(crate) fn set_power(&mut self, calls: u64) {
        self.power = Some(calls);
    }

    /// Whether it was called less often than that.
    pub(crate) fn has_power_left(&self) -> bool {
        self.power.is_some()
    }

    /// Whether something could not be committed, and is tried again.
    pub(crate) fn is_failing(&self) -> bool {
        self.told > 0
    }

    /// Takes what a shard hands over. True if a commit is to begin.
    pub(crate) fn post(&mut self, shard: u16, operations: Operations) -> bool {
        self.waiting.push_back(PendingWrite { shard, operations });
        self.begin()
    }

    /// Begins a commit of all that waits, unless one is under way.
    pub(crate) fn begin(&mut self) -> bool {
        let begin = self.running == 0 && !self.waiting.is_empty();
        if begin {
            self.running = self.waiting.len();
        }
        begin
    }

    /// The commit that is under way ends.
    pub(crate) fn end(&mut self, rng: &mut Rng) -> End {
        let committed = self.commit(rng);
        if self.power == Some(0) {
            return End::Power;
        }
        let error = match committed {
            Ok(full) => {
                let mut news = self.see(full);
                let group = self.waiting.drain(..self.running);
                news.extend(group.map(|it| (it.shard, News::Committed(it.operations.ticket))));
                (self.running, self.told) = (0, 0);
                return End::Told(news);
            }
            Err(error) => error,
        };
        let trouble = StoreTrouble::from(&error);
        let news = self
            .waiting
            .range(self.told.min(self.running)..self.running);
        let news = news.map(|it| (it.shard, News::Failed(trouble))).collect();
        self.told = self.running;
        self.running = 0;
        End::Told(news)
    }

    /// Sees whether the store may grow; who is to be told if that has changed.
    pub(crate) fn look(&mut self) -> Vec<(u16, News)> {
        let full = self.store().full().as_ref().map(StoreTrouble::from);
        self.see(full)
    }

    fn see(&mut self, full: Option<StoreTrouble>) -> Vec<(u16, News)> {
        let changed = std::mem::replace(&mut self.full, full) != full;
        let shards = (0..self.last.len() as u16).filter(|_| changed);
        shards.map(|shard| (shard, News::Full(full))).collect()
    }

    /// Commits what is being committed, with the disk as it is; why the store is
    /// full then.
    fn commit(&mut self, rng: &mut Rng) -> Result<Option<StoreTrouble>, StoreError> {
        let mut batch = Batch::new();
        for it in self.waiting.range(..self.running) {
            batch.append(&it.operations.batch);
        }
        let fails = self.trouble == Some(StoreTrouble::Failed);
        let trouble = fails.then(|| rng.below(CALLS));
        let power = self.power;
        let fail_after = power.into_iter().chain(trouble).min();
        let store = self.store();
        store.medium_mut().fail_after = fail_after;
        let committed = store.commit(&batch);
        let committed = committed.map(|()| store.full().as_ref().map(StoreTrouble::from));
        let left = std::mem::take(&mut store.medium_mut().fail_after);
        if let (Some(power), Some(before), Some(left)) = (power, fail_after, left) {
            self.power = Some(power - (before - left));
        }
        committed
    }

    /// The process ends, or the power fails, and what is on the disk is read
    /// again. What was under way has got as far as it may be; what waited is lost.
    pub(crate) fn crash(&mut self, rng: &mut Rng) {
        let power = self.power.filter(|left| *left > 0);
        if self.running > 0 && self.power != Some(0) {
            self.power = Some(rng.below(CALLS));
            let _ = self.commit(rng);
        }
        self.power = power;
        self.waiting.clear();
        (self.running, self.told, self.full) = (0, 0, None);
        self.last.fill(Nanos(0));
        let Some(store) = self.store.take() else {
            return;
        };
        let mut disk = store.into_medium();
        // All of it where only the process ended.
        let survives = *rng.pick(&[100, 100, 0, 50, 90]);
        disk.crash(|| rng.chance(survives));
        self.starts += 1;
        let store = open(disk, self.starts);
        let damages = &store.report().damages;
        assert!(damages.is_empty(), "damaged without a reason: {damages:?}");
        self.store = Some(store);
        self.set_trouble(self.trouble);
    }
}

fn open(disk: SimulatedDisk, seed: u64) -> Log<SimulatedDisk> {
    let opened = Log::open(disk, CONFIG, Start { seed, wall: 0 });
    opened.unwrap_or_else(|error| panic!("it cannot be read: {error}"))
}
