//! Statistics of urgent messages that were written.

use super::{Attempt, Class, Entry};
use crate::Nanos;
use crate::stats::Stats;

impl Stats {
    /// Counts an urgent message that was written at `now`.
    pub(crate) fn departed(&mut self, entry: &Entry, now: Nanos) {
        let message = &entry.delivery.message;
        let class = message.stamp.class();
        let wait = now - entry.since;
        let stats = self.class(class);
        stats.waiting -= 1;
        stats.sent += 1;
        let missed = entry.attempt != Attempt::Redelivery && message.stamp.deadline < now;
        stats.missed += u64::from(missed);
        stats.wait.record(wait);
        if let Some(watch) = &message.watch {
            match entry.attempt {
                Attempt::Queued | Attempt::Redelivery => watch.held(),
                Attempt::First => watch.sent(now - message.stamp.admitted_at(), missed),
            }
        }
        if class == Class::Priority {
            let value = message.stamp.rank.key.min(15) as usize;
            self.priorities[value].record(wait);
        }
        self.packets_sent += 1;
        self.published(entry.delivery.qos, message.payload().len());
    }
}
