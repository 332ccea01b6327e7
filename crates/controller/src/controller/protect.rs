//! Detours: entries installed in advance for the failure of each cable between
//! switches.
//!
//! For each cable, the network without it is analysed: flows that do not cross the cable stay; the
//! others leave their paths at the switch before the cable and take the shortest path from there.
//! They are admitted in the order of importance; for each admitted flow the switch gets a detour,
//! to which it switches over without the controller. The other flows are reported: they would lose
//! their guarantee until a new path is found. The analysis runs in the background, one cable after
//! the other, and again whenever the admitted flows change.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use punctual_analysis::{Admission, shortest_paths};
use punctual_model::Nanos;
use punctual_model::network::{Flow, FlowEntry, LinkIndex, NodeIndex, Topology};

use super::{BACKGROUND, Controller};
use crate::event::Effect;
use crate::plan::Header;
use crate::streams::{Detours, Key, PathSet, Stream, flow_id};

/// Most flows that are analysed between two events (at least those of one cable), which bounds the
/// delay of a request meanwhile.
const FLOWS_AT_ONCE: usize = 2_000;

/// Most flows, summed over cables, that are analysed before the first entries are installed.
const FLOWS_AT_BEGIN: usize = 100_000;

/// Both directions of a cable, the smaller index first.
pub(super) type Cable = (LinkIndex, LinkIndex);

/// Cached paths around a cable, by the switches at its ends; `None` if there is
/// no path.
type BypassCache = HashMap<(NodeIndex, NodeIndex), Option<Vec<LinkIndex>>>;

#[derive(Debug)]
pub(super) struct Protection {
    enabled: bool,
    pending: VecDeque<Cable>,
    /// Flows without a detour, by cable, the least important first.
    pub(super) uncovered: BTreeMap<Cable, Vec<Key>>,
    /// Requests that are answered when their streams are installed.
    pub(super) answers: Vec<Key>,
}

impl Protection {
    pub(super) fn new(enabled: bool) -> Self {
        Self {
            enabled,
            pending: VecDeque::new(),
            uncovered: BTreeMap::new(),
            answers: Vec::new(),
        }
    }

    /// Whether all cables were analysed since the last change.
    pub(super) fn is_complete(&self) -> bool {
        self.pending.is_empty()
    }
}

impl Controller {
    /// Starts over after a change of the admitted flows.
    pub(super) fn protect_anew(&mut self, now: Nanos) {
        if !self.protection.enabled || !self.begun {
            return;
        }
        let mut used = vec![false; self.map.model().links.len()];
        for stream in self.ledger.streams.values() {
            for link in stream.path_set.paths.iter().flatten() {
                used[*link] = true;
            }
        }
        let used = (0..).zip(used).filter(|(_, used)| *used);
        let cables: BTreeSet<Cable> = used.filter_map(|(link, _)| self.cable(link)).collect();
        self.protection
            .uncovered
            .retain(|cable, _| cables.contains(cable));
        self.protection.pending = cables.into_iter().collect();
        if !self.protection.pending.is_empty() {
            self.background_due = Some(now + BACKGROUND);
        }
    }

    /// The cable to which a link between switches belongs.
    fn cable(&self, link: LinkIndex) -> Option<Cable> {
        let ends = self.map.ends(link)?;
        let (out, into) = (ends.out?, ends.into?);
        let back = self.topology.far(into).filter(|far| *far == out);
        let back = back.and_then(|_| self.map.link_at(into)).unwrap_or(link);
        Some((link.min(back), link.max(back)))
    }

    /// Analyses the next cables.
    pub(super) fn protect(&mut self, now: Nanos, effects: &mut Vec<Effect>) {
        if !self.updates.is_idle() {
            self.background_due = Some(now + BACKGROUND);
            return;
        }
        let flows = self.ledger.admission().network().flows.len().max(1);
        let cables = (FLOWS_AT_ONCE / flows).max(1);
        let pending = self.protection.pending.len();
        let some: Vec<Cable> = self
            .protection
            .pending
            .drain(..cables.min(pending))
            .collect();
        for cable in some {
            let uncovered = self.cover(cable);
            self.protection.uncovered.insert(cable, uncovered);
        }
        let rest = std::mem::take(&mut self.protection.pending);
        // Installing detours does not change the admitted flows.
        self.lay(Vec::new(), now, effects);
        self.protection.pending = rest;
        self.background_due = (!self.protection.pending.is_empty()).then(|| now + BACKGROUND);
    }

    /// Plans detours before switches are compared with the plan for the first time, so that their
    /// existing detours are not removed and installed again. In a network that is too large for
    /// this, they are.
    pub(super) fn protect_now(&mut self, now: Nanos) {
        self.protect_anew(now);
        let flows = self.ledger.admission().network().flows.len();
        if self.protection.pending.len() * flows > FLOWS_AT_BEGIN {
            return;
        }
        while let Some(cable) = self.protection.pending.pop_front() {
            let uncovered = self.cover(cable);
            self.protection.uncovered.insert(cable, uncovered);
        }
    }

    /// Plans detours around a cable; returns the requests without a detour, the least important
    /// first.
    fn cover(&mut self, cable: Cable) -> Vec<Key> {
        let crosses = |stream: &&Stream| {
            stream
                .path_set
                .paths
                .iter()
                .flatten()
                .any(|link| *link == cable.0 || *link == cable.1)
        };
        let affected: Vec<Header> = self
            .ledger
            .streams
            .values()
            .filter(crosses)
            .map(|stream| stream.header)
            .collect();
        let mut topology = self.map.model().clone();
        for link in [cable.0, cable.1] {
            topology.links[link].rate = 0;
        }
        let mut found: HashMap<Header, (Detours, PathSet)> = HashMap::new();
        let mut bypasses = BypassCache::new();
        let mut of: BTreeMap<Key, Vec<Header>> = BTreeMap::new();
        for header in &affected {
            let Some(stream) = self.ledger.streams.get(header) else {
                continue;
            };
            let detours = self.detours(stream, cable, &topology, &mut bypasses);
            found.extend(detours.map(|detours| (*header, detours)));
            for key in stream.users.keys() {
                of.entry(key.clone()).or_default().push(*header);
            }
        }
        if found.is_empty() {
            // No flow crosses the cable: its detours are removed.
            for header in &affected {
                self.strip(header, cable);
            }
            let mut uncovered = self.ledger.by_importance(of.into_keys());
            uncovered.reverse();
            return uncovered;
        }
        let mut without = self.ledger.admission().clone();
        let crossing: Vec<String> = of.keys().map(flow_id).collect();
        without.remove_all(&crossing);
        let mut decided: BTreeSet<Header> = BTreeSet::new();
        let mut around: HashMap<Header, PathSet> = HashMap::new();
        let mut uncovered = Vec::new();
        for key in self.ledger.by_importance(of.keys().cloned()) {
            let mut covered = true;
            for header in of.get(&key).into_iter().flatten() {
                if !decided.insert(*header) {
                    covered &= self.is_covered(header, cable);
                    continue;
                }
                let detours = found.remove(header);
                let laid = detours.is_some_and(|(detours, path_set)| {
                    around.insert(*header, path_set);
                    self.admits_with(header, &around, &mut without)
                        && self.lay_detours(header, cable, detours)
                });
                if !laid {
                    around.remove(header);
                    self.strip(header, cable);
                }
                covered &= laid;
            }
            if !covered {
                uncovered.push(key);
            }
        }
        uncovered.reverse();
        uncovered
    }

    fn is_covered(&self, header: &Header, cable: Cable) -> bool {
        self.ledger.streams.get(header).is_some_and(|stream| {
            let detours = &stream.detours;
            detours.contains_key(&cable.0) || detours.contains_key(&cable.1)
        })
    }

    /// Replaces the detours around a cable. False if the new ones contradict those around other
    /// cables.
    fn lay_detours(&mut self, header: &Header, cable: Cable, detours: Detours) -> bool {
        let Some(stream) = self.ledger.streams.get(header) else {
            return false;
        };
        let mut all = stream.detours.clone();
        all.retain(|link, _| *link != cable.0 && *link != cable.1);
        all.extend(detours);
        self.ledger.set_detours(header, all)
    }

    /// Removes the detours around a cable.
    fn strip(&mut self, header: &Header, cable: Cable) {
        if self.is_covered(header, cable) {
            self.lay_detours(header, cable, Detours::new());
        }
    }

    /// Whether all flows of a stream are admitted with these paths around a cable, in place of
    /// their current paths.
    fn admits_with(
        &self,
        header: &Header,
        around: &HashMap<Header, PathSet>,
        without: &mut Admission,
    ) -> bool {
        let Some(stream) = self.ledger.streams.get(header) else {
            return false;
        };
        let keys = stream.users.keys();
        let flows: Option<Vec<Flow>> = keys
            .map(|key| {
                self.ledger
                    .rerouted(key, |header| around.get(header), &self.map)
            })
            .collect();
        let ids: Vec<String> = stream.users.keys().map(flow_id).collect();
        flows.is_some_and(|flows| without.replace(&ids, flows).is_ok())
    }

    /// For each direction of a cable that a stream uses, the links around the cable to each
    /// receiver beyond it, and the resulting whole paths.
    fn detours(
        &self,
        stream: &Stream,
        cable: Cable,
        topology: &Topology,
        known: &mut BypassCache,
    ) -> Option<(Detours, PathSet)> {
        let entry = FlowEntry {
            wire_bytes: Some(1538),
            ..FlowEntry::default()
        };
        let mut detours = Detours::new();
        let mut path_set = PathSet {
            paths: Vec::new(),
            rendezvous: stream.path_set.rendezvous,
        };
        for path in &stream.path_set.paths {
            let crossed = path
                .iter()
                .position(|link| *link == cable.0 || *link == cable.1);
            let Some(at) = crossed else {
                path_set.paths.push(path.clone());
                continue;
            };
            let from = topology.links[path[at]].from;
            let last = *path.last()?;
            let to = topology.links[last].from;
            let around = match from == to {
                true => Vec::new(),
                false => {
                    let look = || {
                        let mut paths = shortest_paths(topology, &entry, from, to, 1);
                        paths.pop().map(|path| path.links)
                    };
                    known.entry((from, to)).or_insert_with(look).clone()?
                }
            };
            let around = [around.as_slice(), &[last]].concat();
            path_set.paths.push([&path[..at], &around].concat());
            detours.entry(path[at]).or_default().push(around);
        }
        // A switch sends one copy, by one port: all detours have to begin with the same link.
        let one_port = detours.values().all(|paths| {
            let mut firsts = paths.iter().map(|path| path.first());
            let first = firsts.next();
            firsts.all(|other| Some(other) == first)
        });
        one_port.then_some((detours, path_set))
    }
}
