//! Improvement of multicast trees: a link that comes up may allow a better tree for a group than
//! the one that was computed when the link failed.
//!
//! After a change of the network each group is examined once, one after the other in the
//! background. Its tree is replaced if messages arrive at least a tenth sooner over another one, so
//! that small differences change nothing, and if all of its flows are admitted with the new tree.
//! As every change of a path, this one uses two versions of the stream: no packet is lost or
//! duplicated. A group changes its tree at most once a minute for this reason.

use std::collections::VecDeque;

use punctual_model::Nanos;

use super::{Controller, REFRESH};
use crate::event::Effect;
use crate::plan::Header;
use crate::streams::DecisionInput;

/// Least time between two rounds, in each of which every group is examined once.
const INTERVAL: Nanos = Nanos::from_secs(60);
/// Pause between two groups of a round.
const PAUSE: Nanos = Nanos::from_millis(10);

/// Groups that are to be examined, and the time of the next one.
#[derive(Debug, Default)]
pub(super) struct Improvement {
    /// Whether the network has changed since the last round began.
    pub(super) stale: bool,
    pending: VecDeque<Header>,
    /// When the last round began.
    began: Option<Nanos>,
    due: Option<Nanos>,
}

impl Improvement {
    /// When the next group is to be examined.
    pub(super) fn due(&self) -> Option<Nanos> {
        self.due
    }
}

impl Controller {
    /// Schedules a round, if the network has changed.
    pub(super) fn plan_improvement(&mut self, now: Nanos) {
        let turn = &mut self.improvement;
        if !self.begun || !turn.stale || turn.due.is_some() {
            return;
        }
        let earliest = turn.began.map_or(now, |began| began + INTERVAL);
        turn.due = Some(earliest.max(now + PAUSE));
    }

    /// Examines the next group.
    pub(super) fn improve(&mut self, now: Nanos, effects: &mut Vec<Effect>) {
        if self.improvement.due.is_none_or(|due| due > now) {
            return;
        }
        if !self.updates.is_idle() {
            self.improvement.due = Some(now + PAUSE);
            return;
        }
        if std::mem::take(&mut self.improvement.stale) && self.improvement.pending.is_empty() {
            self.improvement.began = Some(now);
            self.improvement.pending = self.ledger.trees().collect();
        }
        let world = DecisionInput {
            map: &self.map,
            topology: &self.topology,
        };
        let next = self.improvement.pending.pop_front();
        let moved = next.and_then(|header| self.ledger.improve(&header, world));
        self.improvement.due = (!self.improvement.pending.is_empty()).then_some(now + PAUSE);
        if let Some(keys) = moved {
            // Bounds of other flows may have grown.
            self.refresh_due.get_or_insert(now + REFRESH);
            self.lay(keys, now, effects);
        }
        self.plan_improvement(now);
    }
}
