//! A store in virtual time: commits take as long as the seed says, fail when the
//! test says, and are lost or kept when the broker crashes.
//!
//! Invariant: a group is one commit, as long as it waits everything joins it, and
//! nobody is told of a commit that would not survive a crash.

use std::collections::VecDeque;

use punctual_broker::{Nanos, Operations, StoreTrouble};
use punctual_store::{Batch, Memory, Store};

/// What a shard handed over.
#[derive(Debug)]
struct Waiting {
    shard: u16,
    operations: Operations,
}

/// The store of a [`crate::World`] and its writer.
#[derive(Debug)]
pub(crate) struct Keeper {
    store: Memory,
    /// Wall clock's time at the zero of the world's.
    pub(crate) wall: u64,
    /// Longest commit.
    pub(crate) delay: Nanos,
    waiting: VecDeque<Waiting>,
    /// How many of them are being committed.
    running: usize,
    /// Commits fail.
    pub(crate) failing: Option<StoreTrouble>,
    /// Those of `waiting` that were told so.
    told: usize,
    /// When the last news for each shard arrives.
    pub(crate) last: Vec<Nanos>,
}

/// What a shard is told.
#[derive(Debug, Clone, Copy)]
pub(crate) enum News {
    Committed(u64),
    Failed(StoreTrouble),
}

impl Keeper {
    pub(crate) fn new(shards: u16, delay: Nanos) -> Self {
        Self {
            store: Memory::default(),
            wall: 1_700_000_000_000_000_000,
            delay,
            waiting: VecDeque::new(),
            running: 0,
            failing: None,
            told: 0,
            last: vec![Nanos(0); usize::from(shards)],
        }
    }

    /// Takes what a shard hands over. True if a commit is to begin.
    pub(crate) fn post(&mut self, shard: u16, operations: Operations) -> bool {
        self.waiting.push_back(Waiting { shard, operations });
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

    /// The commit that is under way ends, well or not; returns whom to tell.
    pub(crate) fn end(&mut self) -> Vec<(u16, News)> {
        if let Some(trouble) = self.failing {
            let news = self
                .waiting
                .range(self.told.min(self.running)..self.running);
            let news = news.map(|it| (it.shard, News::Failed(trouble))).collect();
            self.told = self.running;
            self.running = 0;
            return news;
        }
        let group = self.waiting.drain(..self.running).collect::<Vec<_>>();
        (self.running, self.told) = (0, 0);
        self.commit(&group);
        group
            .iter()
            .map(|it| (it.shard, News::Committed(it.operations.ticket)))
            .collect()
    }

    fn commit(&mut self, group: &[Waiting]) {
        let mut batch = Batch::new();
        for it in group {
            batch.append(&it.operations.batch);
        }
        if self.store.commit(&batch).is_err() {
            unreachable!("memory takes everything");
        }
    }

    /// The process ends: what was under way is on disk or not, what waited is
    /// lost.
    pub(crate) fn crash(&mut self, survives: bool) {
        let mut waiting = std::mem::take(&mut self.waiting);
        if survives && self.failing.is_none() {
            let group = waiting.drain(..self.running).collect::<Vec<_>>();
            self.commit(&group);
        }
        (self.running, self.told) = (0, 0);
        self.last.fill(Nanos(0));
    }

    pub(crate) fn store(&mut self) -> &mut Memory {
        &mut self.store
    }
}
