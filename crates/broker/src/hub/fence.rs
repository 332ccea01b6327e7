//! Fences between shards: they pass when all messages have arrived that other shards had sent
//! before a moment.
//!
//! A shard sends a request to the other shards, and each sends its answer behind its earlier
//! messages. Retained messages are common to all shards, while live ones pass through queues
//! between them: so a retained message that is newer than a subscription is sent for it only when
//! older live messages of its topic have arrived.

use std::collections::VecDeque;

use super::{Hub, Remote, RemoteMessage};
use crate::hub::outbox::Outbox;
use crate::tasks::Task;

/// The fences of one shard.
#[derive(Debug)]
pub(crate) struct Fences {
    /// Number of the last requested fence; 0 for none.
    asked: u64,
    /// By shard, the number of the last fence that it has answered.
    answered: Box<[u64]>,
    /// Sessions that wait for a fence: the number of the fence, and slot and number of the session;
    /// each session at most once.
    waiting: VecDeque<(u64, u32, u64)>,
}

impl Fences {
    /// The fences of the shard `own` of that many shards.
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

    /// Requests a fence that passes when all messages that other shards have sent until now have
    /// arrived. Returns its number; 0 with a single shard.
    pub(crate) fn ask(&mut self, own: u16, outboxes: &mut [Outbox]) -> u64 {
        if self.answered.len() < 2 {
            return 0;
        }
        let others = outboxes.iter_mut().enumerate();
        let mut others = others.filter(|(shard, _)| *shard != usize::from(own));
        // The answer to a request that is still in the outbox comes after all messages that were
        // sent until now.
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

    /// Whether a fence has passed: all other shards have answered it.
    #[inline]
    pub(crate) fn is_passed(&self, number: u64) -> bool {
        number == 0 || self.answered.iter().all(|answered| *answered >= number)
    }

    /// A session continues with retained messages when that fence has passed.
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
