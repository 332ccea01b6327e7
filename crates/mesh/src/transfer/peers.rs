//! Other homes, and whose claims are still to be heard.

use std::collections::{BTreeMap, BTreeSet};

use super::MAX_AWAY;
use super::identity::HomeId;

/// Homes that ask at a time; others ask again.
const MAX_ASKING: usize = 1 << 12;

/// Which other homes are reached, since when, and what has been compared with them.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Peers {
    /// With a number for each time that one came into reach.
    reached: BTreeMap<HomeId, u64>,
    visits: u64,
    /// Whether there are others that are not reached.
    away: bool,
    /// Absent homes that were reached before, or that other homes know (bounded); with the value of
    /// `visits` when that was noticed.
    absent: BTreeMap<HomeId, u64>,
    /// Whose blind sessions have not all been heard of since it came.
    awaited: BTreeSet<HomeId>,
    /// Homes that wait for [`TransferMessage::ClaimsDone`](super::TransferMessage::ClaimsDone).
    asking: BTreeSet<HomeId>,
}

impl Default for Peers {
    /// Before the first report of reached homes, others may be away.
    fn default() -> Self {
        Self {
            reached: BTreeMap::new(),
            visits: 0,
            away: true,
            absent: BTreeMap::new(),
            awaited: BTreeSet::new(),
            asking: BTreeSet::new(),
        }
    }
}

impl Peers {
    /// Sets the reached homes; returns those that were not reached before.
    pub(super) fn set(&mut self, reached: &BTreeSet<HomeId>, away: bool) -> Vec<HomeId> {
        self.away = away;
        let gone = self.reached.keys().filter(|home| !reached.contains(*home));
        let room = MAX_AWAY.saturating_sub(self.absent.len());
        let gone = gone.take(room).map(|home| (home.clone(), self.visits));
        self.absent.extend(gone);
        self.absent.retain(|home, _| !reached.contains(home));
        self.reached.retain(|home, _| reached.contains(home));
        self.awaited.retain(|home| reached.contains(home));
        let new = reached
            .iter()
            .filter(|home| !self.reached.contains_key(*home));
        let new: Vec<HomeId> = new.cloned().collect();
        for home in &new {
            self.visits += 1;
            self.reached.insert(home.clone(), self.visits);
            self.awaited.insert(home.clone());
        }
        new
    }

    pub(super) fn reaches(&self, home: &HomeId) -> bool {
        self.reached.contains_key(home)
    }

    /// The number of a home's visit; `None` if it is not reached.
    pub(super) fn visit(&self, home: &HomeId) -> Option<u64> {
        self.reached.get(home).copied()
    }

    pub(super) fn reached(&self) -> impl Iterator<Item = (&HomeId, u64)> {
        self.reached.iter().map(|(home, visit)| (home, *visit))
    }

    /// Whether a home is reachable, or may become reachable again.
    pub(super) fn knows(&self, home: &HomeId) -> bool {
        self.reaches(home) || self.absent.contains_key(home)
    }

    pub(super) fn are_away(&self) -> bool {
        self.away || !self.absent.is_empty()
    }

    /// Homes that are known, and are not reached.
    pub(super) fn absent(&self) -> impl Iterator<Item = &HomeId> {
        self.absent.keys()
    }

    /// Since when a home is not reached, as a number that differs after each of its visits; `None` if it
    /// is reached.
    pub(super) fn away_since(&self, home: &HomeId) -> Option<u64> {
        let since = self.absent.get(home).copied().unwrap_or(0);
        (!self.reaches(home)).then_some(since)
    }

    /// One of them does not come back.
    pub(super) fn forget(&mut self, home: &HomeId) {
        self.absent.remove(home);
    }

    /// Whether every other home is reached and no greater session can be there of which this one has not
    /// heard.
    pub(super) fn are_all_compared(&self) -> bool {
        !self.are_away() && self.awaited.is_empty()
    }

    pub(super) fn awaits(&self, home: &HomeId) -> bool {
        self.awaited.contains(home)
    }

    /// A home has had all its claims answered, and knows these that it does not reach.
    pub(super) fn claims_done(&mut self, home: &HomeId, away: Vec<HomeId>, own: &HomeId) {
        self.awaited.remove(home);
        for home in away {
            let is_missed = home != *own && !self.reached.contains_key(&home);
            if is_missed && self.absent.len() < MAX_AWAY {
                self.absent.entry(home).or_insert(self.visits);
            }
        }
    }

    /// A home has sent `Resync`.
    pub(super) fn ask(&mut self, home: &HomeId) {
        // It may be known here a little later that it is reached.
        if self.asking.len() < MAX_ASKING {
            self.asking.insert(home.clone());
        }
    }

    /// Those that asked and are reached.
    pub(super) fn take_asking(&mut self) -> Vec<HomeId> {
        let reached = &self.reached;
        let asking = self
            .asking
            .extract_if(.., |home| reached.contains_key(home));
        asking.collect()
    }
}
