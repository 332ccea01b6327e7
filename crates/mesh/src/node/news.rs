//! What neighbours are told, and when: what wants to be said gathers for [`super::Settings::batch`]
//! after some was told.
//!
//! Changes of the table are told in rounds, each of which may take several slices
//! ([`crate::table::Table::changes`]); between two of them the broker does other work. What is said
//! of members of shared subscriptions, in letters about sessions, and of who is where, is taken down
//! when a round begins, and sent when it ends, so only after all that those want: who hears that a
//! broker is back can send what it kept for it. Who is where, and letters, do not wait for the batch
//! to end.

use punctual_model::Nanos;

use super::Node;
use crate::id::{BrokerId, LinkId};
use crate::reach::Told;
use crate::table::parts;
use crate::wire::{Letter, Member, Message};

/// When news may be told.
#[derive(Debug)]
pub(super) struct Pace {
    /// Time in which news gather after some were told.
    batch: Nanos,
    told_at: Nanos,
    /// When those that wait are told.
    due: Option<Nanos>,
    /// While a round of the table goes on: what is sent when it ends.
    held: Option<Held>,
    /// Letters for the next round, and who sent them.
    letters: Vec<(Option<LinkId>, Letter)>,
}

impl Pace {
    pub(super) fn new(batch: Nanos) -> Self {
        Self {
            batch,
            told_at: Nanos(0),
            due: None,
            held: None,
            letters: Vec::new(),
        }
    }

    /// A letter is to be sent after what is wanted by now was told.
    pub(super) fn add_letter(&mut self, from: Option<LinkId>, letter: Letter) {
        self.letters.push((from, letter));
    }

    /// What is due is to be seen anew.
    pub(super) fn reset(&mut self) {
        self.due = None;
    }

    /// There is more to be told at once.
    pub(super) fn set_due(&mut self, now: Nanos) {
        self.due = Some(now);
    }

    /// A link does not carry any more: nothing that is held is for it. All is told when it carries
    /// again.
    pub(super) fn drop_held(&mut self, link: LinkId) {
        if let Some(held) = &mut self.held {
            held.members.retain(|told| told.link != link);
            held.reach.retain(|told| told.link != link);
        }
    }

    /// Whether some wait for the end of a round of the table.
    pub(super) fn is_amid(&self) -> bool {
        self.held.is_some()
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

/// What is sent when a round of the table ends.
#[derive(Debug)]
struct Held {
    members: Vec<Told<Member>>,
    letters: Vec<(Option<LinkId>, Letter)>,
    reach: Vec<Told<BrokerId>>,
}

impl Node {
    /// Tells neighbours what changed, now or after a while.
    pub(super) fn tell(&mut self, now: Nanos) {
        let held = self.pace.held.take();
        let begins = held.is_none();
        let is_urgent = self.reach.has_changes() || !self.pace.letters.is_empty();
        if begins && !is_urgent && !(self.has_news() && self.pace.is_due(now)) {
            return;
        }
        if self.has_news() {
            self.pace.told_at = now;
        }
        let held = held.unwrap_or_else(|| Held {
            members: self.members.changes(),
            letters: std::mem::take(&mut self.pace.letters),
            reach: self.reach.changes(),
        });
        for change in self.filters.table.changes() {
            let (add, remove) = (change.add, change.remove);
            let message = Message::Filters { add, remove };
            self.outputs.send(change.link, &message);
        }
        if self.filters.table.is_amid() {
            if begins {
                self.tell_of_sessions();
            }
            self.pace.due = Some(now);
            self.pace.held = Some(held);
            return;
        }
        for told in held.members {
            self.send_members(told.link, told.all, told.add, told.remove);
        }
        self.tell_of_sessions();
        for (from, letter) in held.letters {
            self.post_letter(from, letter);
        }
        for told in held.reach {
            self.send_reach(told);
        }
        self.pace.due = None;
        if self.reach.has_changes() || !self.pace.letters.is_empty() {
            self.pace.due = Some(now);
        } else if self.has_news() {
            self.pace.due = Some(now + self.pace.batch);
        }
    }

    fn has_news(&self) -> bool {
        self.filters.table.has_changes()
            || self.members.has_changes()
            || self.lasting.has_changes()
            || self.has_news_of_clients()
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

    /// Tells neighbours what does not depend on the table.
    fn tell_of_sessions(&mut self) {
        self.tell_lasting();
        self.tell_of_clients();
    }

    fn send_reach(&mut self, told: Told<BrokerId>) {
        let Told {
            link,
            all,
            add,
            remove,
        } = told;
        let sums = self.lasting.sums(&add);
        self.outputs.send(link, &Message::Here { all, add, remove });
        if !sums.is_empty() && self.links.carries(link) {
            self.outputs.send(link, &Message::Sums(sums));
        }
    }
}
