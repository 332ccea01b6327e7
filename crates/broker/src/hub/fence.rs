//! Fences between shards: whether all has come that other shards had sent at a moment.
//!
//! A shard asks the others, and each answers behind what it has sent before. Retained messages are the
//! same for all shards, while live ones come through queues between them: so a retained message that
//! is newer than a subscription is sent for it only when older live messages of its topic have come.

use std::collections::VecDeque;

use super::{Hub, Remote, RemoteMessage};
use crate::hub::outbox::Outbox;
use crate::tasks::Task;

/// The fences of one shard.
#[derive(Debug)]
pub(crate) struct Fences {
    /// Number of the last one that was asked for; 0 if there was none.
    asked: u64,
    /// By shard, the number of the last one that it has answered.
    answered: Box<[u64]>,
    /// Sessions that wait for one, each with its slot and its number; each session once at most.
    waiting: VecDeque<(u64, u32, u64)>,
}

impl Fences {
    /// Of the shard `own` of so many.
    pub(crate) fn new(own: u16, shards: u16) -> Self {
        let answered = (0..shards).map(|shard| match shard == own {
            true => u64::MAX,
            false => 0,
        });
        Self {
            asked: 0,
            answered: answered.collect(),
            waiting: VecDeque::new(),
        }
    }

    /// Asks for one that is passed when all has come that was sent until now. Returns its number.
    pub(crate) fn ask(&mut self, own: u16, outboxes: &mut [Outbox]) -> u64 {
        if self.answered.len() < 2 {
            return 0;
        }
        let others = outboxes.iter_mut().enumerate();
        let mut others = others.filter(|(shard, _)| *shard != usize::from(own));
        // The answer to a question that is still here comes after all that was sent until now.
        if others.all(|(_, outbox)| outbox.asks) {
            return self.asked;
        }
        self.asked += 1;
        let number = self.asked;
        for (shard, outbox) in outboxes.iter_mut().enumerate() {
            if shard != usize::from(own) {
                let ask = Remote::Fence { from: own, number };
                outbox.messages.push(RemoteMessage(ask));
                outbox.asks = true;
            }
        }
        number
    }

    /// Whether all others have answered that one.
    #[inline]
    pub(crate) fn is_passed(&self, number: u64) -> bool {
        number == 0 || self.answered.iter().all(|answered| *answered >= number)
    }

    /// A session goes on with retained messages when that one is passed.
    pub(crate) fn wait(&mut self, number: u64, slot: u32, session: u64) {
        self.waiting.push_back((number, slot, session));
    }
}

impl Hub {
    /// Another shard has answered a fence of this one.
    pub(crate) fn fence_answered(&mut self, from: u16, number: u64) {
        self.wake_fenced();
        let fences = &mut self.outboxes.fences;
        fences.answered[usize::from(from)] = number;
        while let Some((number, slot, session)) = fences.waiting.front().copied() {
            if !fences.is_passed(number) {
                return;
            }
            fences.waiting.pop_front();
            self.work.tasks.push(Task::Replay { slot, session });
        }
    }
}
