//! When updates are sent to neighbours: changes are batched for [`super::Settings::batch`] after the last
//! updates.
//!
//! Changes of the table are sent in rounds, each of which may take several slices
//! ([`crate::table::Table::changes`]); between two slices the broker does other work. Updates of shared
//! members, envelopes about sessions, and updates of reached brokers are collected when a round begins, and
//! sent when it ends. So they follow the filters of the brokers that they name, and a neighbour that
//! learns that a broker is reached again can send it what it has queued. Updates of reached brokers, and
//! envelopes, do not wait for the batch.

use punctual_model::Nanos;

use super::Node;
use crate::id::{BrokerId, LinkId};
use crate::reach::ReachUpdate;
use crate::table::parts;
use crate::wire::{Envelope, Member, Message};

/// Schedule of the updates to neighbours.
#[derive(Debug)]
pub(super) struct Pace {
    /// Time for which changes are batched after the last updates.
    batch: Nanos,
    told_at: Nanos,
    /// When waiting updates are sent.
    due: Option<Nanos>,
    /// During a round of the table: the updates that are sent at its end.
    held: Option<DeferredUpdates>,
    /// Envelopes for the next round, and the links on which they came.
    envelopes: Vec<(Option<LinkId>, Envelope)>,
}

impl Pace {
    pub(super) fn new(batch: Nanos) -> Self {
        Self {
            batch,
            told_at: Nanos(0),
            due: None,
            held: None,
            envelopes: Vec::new(),
        }
    }

    /// Adds an envelope, to be sent after the present filters.
    pub(super) fn add_envelope(&mut self, from: Option<LinkId>, envelope: Envelope) {
        self.envelopes.push((from, envelope));
    }

    /// Clears the schedule, to be computed again.
    pub(super) fn reset(&mut self) {
        self.due = None;
    }

    /// Schedules updates for now.
    pub(super) fn set_due(&mut self, now: Nanos) {
        self.due = Some(now);
    }

    /// Drops the deferred updates for a link that ceased to carry. When it carries again, full updates
    /// are sent.
    pub(super) fn drop_held(&mut self, link: LinkId) {
        if let Some(held) = &mut self.held {
            held.members.retain(|told| told.link != link);
            held.reach.retain(|told| told.link != link);
        }
    }

    /// Whether updates wait for the end of a round of the table.
    pub(super) fn is_amid(&self) -> bool {
        self.held.is_some()
    }

    /// When waiting updates are to be sent.
    pub(super) fn next(&self) -> Option<Nanos> {
        self.due
    }

    /// Whether updates may be sent now; if not, schedules them.
    fn is_due(&mut self, now: Nanos) -> bool {
        let due = self.told_at + self.batch;
        let waits = now < due && self.told_at.0 > 0;
        if waits {
            self.due = Some(due);
        }
        !waits
    }
}

/// Updates that are sent when a round of the table ends.
#[derive(Debug)]
struct DeferredUpdates {
    members: Vec<ReachUpdate<Member>>,
    envelopes: Vec<(Option<LinkId>, Envelope)>,
    reach: Vec<ReachUpdate<BrokerId>>,
}

impl Node {
    /// Sends updates to neighbours, or schedules them.
    pub(super) fn tell(&mut self, now: Nanos) {
        let held = self.pace.held.take();
        let begins = held.is_none();
        let is_urgent = self.reach.has_changes() || !self.pace.envelopes.is_empty();
        if begins && !is_urgent && !(self.has_news() && self.pace.is_due(now)) {
            return;
        }
        if self.has_news() {
            self.pace.told_at = now;
        }
        let held = held.unwrap_or_else(|| DeferredUpdates {
            members: self.members.changes(),
            envelopes: std::mem::take(&mut self.pace.envelopes),
            reach: self.reach.changes(),
        });
        for change in self.filters.table.changes() {
            let (add, remove) = (change.add, change.remove);
            let message = Message::Filters { add, remove };
            self.outputs.send(change.link, &message);
        }
        if self.filters.table.is_amid() {
            if begins {
                self.send_session_news();
            }
            self.pace.due = Some(now);
            self.pace.held = Some(held);
            return;
        }
        for told in held.members {
            self.send_members(told.link, told.all, told.add, told.remove);
        }
        self.send_session_news();
        for (from, envelope) in held.envelopes {
            self.post_envelope(from, envelope);
        }
        for told in held.reach {
            self.send_reach(told);
        }
        self.pace.due = None;
        if self.reach.has_changes() || !self.pace.envelopes.is_empty() {
            self.pace.due = Some(now);
        } else if self.has_news() {
            self.pace.due = Some(now + self.pace.batch);
        }
    }

    fn has_news(&self) -> bool {
        self.filters.table.has_changes()
            || self.members.has_changes()
            || self.interest.has_changes()
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

    /// Sends updates that do not depend on the table.
    fn send_session_news(&mut self) {
        self.send_interest_changes();
        self.send_client_news();
    }

    fn send_reach(&mut self, told: ReachUpdate<BrokerId>) {
        let ReachUpdate {
            link,
            all,
            add,
            remove,
        } = told;
        let sums = self.interest.sums(&add);
        self.outputs.send(link, &Message::Here { all, add, remove });
        if !sums.is_empty() && self.links.carries(link) {
            self.outputs.send(link, &Message::Sums(sums));
        }
    }
}
