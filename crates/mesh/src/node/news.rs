//! What neighbours are told, and when: what wants to be said gathers for [`super::Settings::batch`]
//! after some was told.
//!
//! Who is where is told at once, and only after all that those want: who hears that a broker is
//! back can send what it kept for it.

use punctual_model::Nanos;

use super::Node;
use crate::id::LinkId;
use crate::reach::Told;
use crate::strategy::Strategy;
use crate::table::parts;
use crate::wire::{LASTING, Member, Message};

/// When news may be told.
#[derive(Debug)]
pub(super) struct Pace {
    /// Time in which news gather after some were told.
    batch: Nanos,
    told_at: Nanos,
    /// When those that wait are told.
    due: Option<Nanos>,
}

impl Pace {
    pub(super) fn new(batch: Nanos) -> Self {
        Self {
            batch,
            told_at: Nanos(0),
            due: None,
        }
    }

    /// When news that wait are to be told.
    pub(super) fn next(&self) -> Option<Nanos> {
        self.due
    }

    /// Whether there is to be told now what there is; if not, it will be.
    fn is_due(&mut self, now: Nanos) -> bool {
        let due = self.told_at + self.batch;
        let waits = now < due && self.told_at.0 > 0;
        if waits {
            self.due = Some(due);
        }
        !waits
    }
}

impl Node {
    /// Tells neighbours what changed, now or after a while.
    pub(super) fn tell(&mut self, now: Nanos) {
        if self.has_news() && self.pace.is_due(now) {
            self.tell_filters(now);
        }
    }

    fn has_news(&self) -> bool {
        let by_table = self.settings.strategy == Strategy::SubscriptionTable;
        by_table && self.filters.table.has_changes()
            || self.members.has_changes()
            || self.lasting.has_changes()
            || self.has_news_of_clients()
    }

    /// Tells neighbours what is wanted, and all else that is not about who is where.
    pub(super) fn tell_filters(&mut self, now: Nanos) {
        self.pace.due = None;
        if !self.has_news() {
            return;
        }
        self.pace.told_at = now;
        if self.settings.strategy == Strategy::SubscriptionTable {
            for change in self.filters.table.changes() {
                let (add, remove) = (change.add, change.remove);
                let message = Message::Filters { add, remove };
                self.outputs.send(change.link, &message);
            }
        }
        for told in self.members.changes() {
            self.send_members(told.link, told.all, told.add, told.remove);
        }
        self.tell_lasting();
        self.tell_of_clients();
    }

    /// In messages of bounded size.
    fn send_members(&mut self, link: LinkId, mut all: bool, add: Vec<Member>, remove: Vec<Member>) {
        let size = |member: &Member| member.0.as_str().len() + member.1.len() + 4;
        for (add, remove) in parts(all, add, remove, size, size) {
            let all = std::mem::take(&mut all);
            let message = Message::Members { all, add, remove };
            self.outputs.send(link, &message);
        }
    }

    /// Tells neighbours who is where, after all that those want, and sees who is back.
    pub(super) fn tell_reach(&mut self, now: Nanos) {
        self.tell_filters(now);
        for told in self.reach.changes() {
            let Told {
                link,
                all,
                add,
                remove,
            } = told;
            let sums = self.lasting.sums(&add);
            self.outputs.send(link, &Message::Here { all, add, remove });
            if !sums.is_empty() && self.links.speaks(link, LASTING) {
                self.outputs.send(link, &Message::Sums(sums));
            }
        }
        self.pass_on(now);
    }
}
