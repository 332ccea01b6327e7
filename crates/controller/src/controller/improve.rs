//! Trees that are shortened again: a link that comes up may give a group a better
//! tree than the one it has had since that link failed.
//!
//! After the network has changed each group is looked at once, one after the other in the
//! background. It gets another tree if the messages come at least a tenth sooner by
//! that, so that small differences move nothing, and if all of its flows are
//! admitted with it. The change has two versions, as every other: nothing is lost and
//! nothing comes twice. A group changes its tree at most once a minute for this reason.

use std::collections::VecDeque;

use punctual_model::Nanos;

use super::{Controller, REFRESH};
use crate::event::Effect;
use crate::plan::Header;
use crate::streams::DecisionInput;

/// Between two turns, in each of which every group is looked at once.
const INTERVAL: Nanos = Nanos::from_secs(60);
/// Between two groups of a turn.
const PAUSE: Nanos = Nanos::from_millis(10);

/// Which groups are to be looked at, and when.
#[derive(Debug, Default)]
pub(super) struct Improvement {
    /// The network has changed since the last turn began.
    pub(super) stale: bool,
    pending: VecDeque<Header>,
    /// When the last turn began.
    began: Option<Nanos>,
    due: Option<Nanos>,
}

impl Improvement {
    /// When the next group is to be looked at.
    pub(super) fn due(&self) -> Option<Nanos> {
        self.due
    }
}

impl Controller {
    /// Sets when the groups are looked at, if the network has changed.
    pub(super) fn plan_improvement(&mut self, now: Nanos) {
        let turn = &mut self.improvement;
        if !self.begun || !turn.stale || turn.due.is_some() {
            return;
        }
        let earliest = turn.began.map_or(now, |began| began + INTERVAL);
        turn.due = Some(earliest.max(now + PAUSE));
    }

    /// Looks at the next group.
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
