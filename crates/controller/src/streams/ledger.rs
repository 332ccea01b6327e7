//! The ledger of guarantees: requests, their streams, and the analysis of all of
//! them.
//!
//! Requests are decided in the order of their importance: higher classes first, and within a class
//! the oldest request first. Many requests are tried at once, and in halves if that is refused, so
//! that a network with room for all is planned with a single analysis. A request is admitted as a
//! whole or not at all.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, Ipv6Addr};
use std::ops::Bound;

use punctual_analysis::Admission;
use punctual_model::MAX_PRIORITY;
use punctual_model::network::{Flow, LinkIndex, Network};
use punctual_model::srt::{Channel, Peer, Request, State};

use super::entries::are_consistent;
use super::flow::FlowPaths;
use super::router::PathQuery;
use super::{
    Detours, Key, NotReadyReason, Parts, PathSet, Role, Router, Segment, Stream, Use, flow_id,
};
use crate::plan::{Header, Mark, Police};
use crate::settings::{Policing, Service, Settings};
use crate::topology::{End, Map, Topology};

/// Limit on the effort of a decision, in streams of other flows that the analysis examines: some
/// milliseconds (see [`Admission::set_effort`]).
const EFFORT: u64 = 1 << 18;
/// Limit on the effort for bounds, in the same unit; beyond it bounds are computed by priority
/// levels.
const EFFORT_OF_BOUNDS: u64 = 1 << 13;
/// Most multicast addresses that are assigned.
const MAX_GROUPS: u32 = 1 << 16;

/// A request and its state.
#[derive(Debug, Clone)]
pub(crate) struct RequestEntry {
    pub(crate) request: Request,
    pub(crate) granted: Option<Allocation>,
    /// Increases from request to request.
    rank: u64,
    /// The answer to the request in an earlier run of the controller.
    hint: Option<Channel>,
}

/// The streams and segments of an admitted request.
#[derive(Debug, Clone)]
pub(crate) struct Allocation {
    pub(crate) parts: Parts,
    pub(crate) bounds: BTreeMap<Peer, u64>,
}

/// Result of a decision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    Admitted,
    /// The request cannot be decided before more is known, such as the location of a host.
    Waiting(String),
    Refused(String),
}

/// All requests, their guarantees and their streams.
#[derive(Debug, Clone)]
pub(crate) struct Ledger {
    pub(crate) flows: BTreeMap<Key, RequestEntry>,
    pub(crate) streams: BTreeMap<Header, Stream>,
    /// Streams before the current change, to give a new path another version than the old one.
    before: HashMap<Header, Stream>,
    /// Marks that were found on switches after a restart, by header.
    found: HashMap<Header, Mark>,
    /// Streams that have changed since the last [`Ledger::take_touched`].
    touched: BTreeSet<Header>,
    admission: Admission,
    router: Router,
    groups: BTreeMap<IpAddr, (String, u8)>,
    /// Whether flows were admitted since the bounds of others were computed.
    outgrown: bool,
    /// The last request whose bound was recomputed in the current round; `None` between rounds.
    refreshed: Option<Key>,
    ranks: u64,
    paths: usize,
    service: Service,
    policing: Policing,
    groups_from: u32,
}

/// A request whose input is complete, so that it can be decided.
#[derive(Debug, Clone)]
struct Candidate {
    key: Key,
    parts: Parts,
    class: u8,
}

/// A change of streams and flows that has not been admitted yet.
#[derive(Debug, Default)]
struct Draft {
    out: Vec<String>,
    new: Vec<Flow>,
    streams: BTreeMap<Header, Stream>,
    granted: Vec<(Key, Allocation)>,
}

/// Input of decisions: the topology and the settings.
#[derive(Clone, Copy)]
pub(crate) struct DecisionInput<'a> {
    pub(crate) map: &'a Map,
    pub(crate) topology: &'a Topology,
}

impl Ledger {
    pub(crate) fn new(settings: &Settings) -> Self {
        let mut admission = Admission::new(Network::default());
        admission.set_effort(EFFORT);
        Self {
            flows: BTreeMap::new(),
            streams: BTreeMap::new(),
            before: HashMap::new(),
            found: HashMap::new(),
            touched: BTreeSet::new(),
            admission,
            router: Router::new(settings.routing),
            groups: BTreeMap::new(),
            outgrown: false,
            refreshed: None,
            ranks: 0,
            paths: settings.paths.max(1),
            service: settings.service,
            policing: settings.police,
            groups_from: settings.groups_from.into(),
        }
    }

    /// Updates paths and analysis after nodes or links were added, or links removed.
    pub(crate) fn network_changed(&mut self, map: &Map) {
        self.admission.grow(map.model().clone());
        self.router.update(map);
    }

    /// The analysis of the admitted flows.
    pub(crate) fn admission(&self) -> &Admission {
        &self.admission
    }

    /// Records a mark that a switch puts on packets since an earlier run of the controller.
    pub(crate) fn found(&mut self, header: Header, mark: Mark) {
        self.found.insert(header, mark);
    }

    /// Adds a request, or changes an existing one.
    pub(crate) fn insert(&mut self, request: Request, hint: Option<Channel>) {
        let key = (request.manager.clone(), request.flow.clone());
        match self.flows.get_mut(&key) {
            Some(held) => held.request = request,
            None => {
                self.ranks += 1;
                let held = RequestEntry {
                    request,
                    granted: None,
                    rank: self.ranks,
                    hint,
                };
                self.flows.insert(key, held);
            }
        }
    }

    /// Whether the request was admitted in an earlier run of the controller.
    pub(crate) fn had_guarantee(&self, key: &Key) -> bool {
        let hint = self.flows.get(key).and_then(|held| held.hint.as_ref());
        hint.is_some_and(|hint| hint.state == State::Admitted)
    }

    /// Requests that were admitted in an earlier run and have no allocation yet, with their answers
    /// from that run.
    pub(crate) fn guaranteed(&self) -> impl Iterator<Item = (&Request, &Channel)> {
        self.flows.values().filter_map(|held| {
            let hint = held.hint.as_ref()?;
            let is_guaranteed = held.granted.is_none() && hint.state == State::Admitted;
            is_guaranteed.then_some((&held.request, hint))
        })
    }

    /// Removes a request and its allocation. False if there is none.
    pub(crate) fn remove(&mut self, key: &Key) -> bool {
        self.release([key]);
        self.flows.remove(key).is_some()
    }

    /// Releases the allocations of requests.
    pub(crate) fn release<'a>(&mut self, keys: impl IntoIterator<Item = &'a Key>) {
        let mut out = Vec::new();
        for key in keys {
            let Some(granted) = self.flows.get_mut(key).and_then(|held| held.granted.take()) else {
                continue;
            };
            out.push(flow_id(key));
            for segment in &granted.parts.segments {
                let Some(stream) = self.streams.get_mut(&segment.header) else {
                    continue;
                };
                stream.users.remove(key);
                self.touched.insert(segment.header);
                if stream.users.is_empty()
                    && let Some(stream) = self.streams.remove(&segment.header)
                {
                    self.before.insert(segment.header, stream);
                }
            }
            if let Some(group) = granted.parts.group
                && !self
                    .streams
                    .keys()
                    .any(|header| header.destination == group)
            {
                self.groups.remove(&group);
            }
        }
        self.take_out(&out);
    }

    fn take_out(&mut self, ids: &[String]) {
        let flows = &self.admission.network().flows;
        // Removes these flows, or rebuilds the analysis with the others, whichever is less work.
        if ids.len() * 2 < flows.len() {
            self.admission.remove_all(ids);
        } else if !ids.is_empty() {
            let out: BTreeSet<&String> = ids.iter().collect();
            let mut network = self.admission.network().clone();
            network.flows.retain(|flow| !out.contains(&flow.id));
            self.admission = Admission::new(network);
            self.admission.set_effort(EFFORT);
        }
    }

    /// Requests whose paths use links that are down, or end where a host has disappeared.
    pub(crate) fn broken(&self, world: DecisionInput<'_>) -> BTreeSet<Key> {
        let is_broken = |stream: &&Stream| {
            let links = stream.path_set.paths.iter().flatten();
            let moved = |address: IpAddr, at: End| {
                !address.is_multicast()
                    && world.topology.host(address).and_then(|(_, host)| host.at) != Some(at)
            };
            let mut receivers = stream.receivers.iter();
            links.clone().any(|link| !world.map.is_up(*link))
                || moved(stream.header.source, stream.source)
                || receivers.any(|receiver| moved(receiver.peer.address, receiver.at))
        };
        let broken = self.streams.values().filter(is_broken);
        broken
            .flat_map(|stream| stream.users.keys().cloned())
            .collect()
    }

    /// Streams that have changed since the last call.
    pub(crate) fn take_touched(&mut self) -> BTreeSet<Header> {
        std::mem::take(&mut self.touched)
    }

    /// Marks streams whose entries on the switches differ from the plan.
    pub(crate) fn touch(&mut self, headers: impl IntoIterator<Item = Header>) {
        self.touched.extend(headers);
    }

    /// Forgets a stream that has no entry left on any switch.
    pub(crate) fn forget(&mut self, header: &Header) {
        self.before.remove(header);
    }

    /// The rate and burst to which a stream is policed.
    pub(crate) fn police(&self, stream: &Stream) -> Option<Police> {
        let applies = match self.policing {
            Policing::Nothing => false,
            Policing::Datagrams => stream.header.protocol == punctual_model::srt::Protocol::Udp,
            Policing::Everything => true,
        };
        let sum =
            |each: fn(&Use) -> u64| stream.users.values().map(each).fold(0, u64::saturating_add);
        let rate = sum(|user| user.rate_bps);
        applies.then(|| Police {
            // Meters count in kilobits per second, and their clock has a granularity of its own.
            rate_bps: rate.saturating_add(rate / 8).saturating_add(1_000),
            burst_bytes: sum(|user| user.burst_bytes),
        })
    }

    /// Requests in the order of importance: the first is decided first, and loses
    /// its guarantee last.
    pub(crate) fn by_importance(&self, keys: impl IntoIterator<Item = Key>) -> Vec<Key> {
        let mut keys: Vec<Key> = keys
            .into_iter()
            .filter(|key| self.flows.contains_key(key))
            .collect();
        keys.sort_by_cached_key(|key| {
            let held = self.flows.get(key);
            held.map(|held| (Reverse(class_of(&held.request)), held.rank))
        });
        keys.dedup();
        keys
    }

    /// The ports of brokers whose service has to be known before these requests can be decided.
    pub(crate) fn brokers(&self, keys: &[Key], topology: &Topology) -> BTreeSet<End> {
        let held = keys.iter().filter_map(|key| self.flows.get(key));
        let brokers = held.filter_map(|held| held.request.broker);
        brokers
            .filter_map(|broker| topology.host(broker.address)?.1.at)
            .collect()
    }

    /// Decides requests without an allocation, in the order of their importance.
    pub(crate) fn decide(
        &mut self,
        keys: Vec<Key>,
        world: DecisionInput<'_>,
    ) -> Vec<(Key, Outcome)> {
        let mut outcomes = Vec::with_capacity(keys.len());
        let mut ready = Vec::with_capacity(keys.len());
        for key in self.by_importance(keys) {
            match self.ready(&key, world) {
                Ok(one) => ready.push(one),
                Err(NotReadyReason::Unknown(address)) => {
                    let reason = format!("nothing was heard of host {address} yet");
                    outcomes.push((key, Outcome::Waiting(reason)));
                }
                Err(NotReadyReason::Impossible(reason)) => {
                    outcomes.push((key, Outcome::Refused(reason)));
                }
            }
        }
        self.decide_all(&ready, world, &mut outcomes);
        outcomes
    }

    fn ready(&mut self, key: &Key, world: DecisionInput<'_>) -> Result<Candidate, NotReadyReason> {
        let request = match self.flows.get(key) {
            Some(held) => held.request.clone(),
            None => return Err(NotReadyReason::Impossible("it was withdrawn".into())),
        };
        let class = class_of(&request);
        let parts = Parts::of(&request, world.topology, || self.group(&request, class))?;
        Ok(Candidate {
            key: key.clone(),
            parts,
            class,
        })
    }

    /// The multicast address of a topic and a class; it is a function of both unless the address is
    /// already assigned.
    fn group(&mut self, request: &Request, class: u8) -> Option<IpAddr> {
        let name = (request.topic.clone(), class);
        let start = hash(name.0.as_bytes(), class.into()) as u32;
        for step in 0..MAX_GROUPS {
            let offset = start.wrapping_add(step) % MAX_GROUPS;
            let v4 = std::net::Ipv4Addr::from(self.groups_from.wrapping_add(offset));
            let address = match request.publisher.address {
                IpAddr::V4(_) => IpAddr::V4(v4),
                IpAddr::V6(_) => {
                    let [a, b, c, d] = v4.octets();
                    let (high, low) = (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
                    // A transient multicast address of site-local scope (RFC 4291, section 2.7).
                    IpAddr::V6(Ipv6Addr::new(0xff15, 0, 0, 0, 0, 0, high, low))
                }
            };
            match self.groups.get(&address) {
                Some(taken) if *taken != name => {}
                Some(_) => return Some(address),
                None => {
                    self.groups.insert(address, name);
                    return Some(address);
                }
            }
        }
        None
    }

    fn decide_all(
        &mut self,
        ready: &[Candidate],
        world: DecisionInput<'_>,
        outcomes: &mut Vec<(Key, Outcome)>,
    ) {
        match ready {
            [] => {}
            [one] => {
                let outcome = self.decide_one(one, world);
                outcomes.push((one.key.clone(), outcome));
            }
            all => {
                if self.attempt(all, 0, 0, world).is_ok() {
                    let keys = all.iter().map(|one| (one.key.clone(), Outcome::Admitted));
                    outcomes.extend(keys);
                    return;
                }
                // The more important half first.
                let (first, second) = all.split_at(all.len().div_ceil(2));
                self.decide_all(first, world, outcomes);
                self.decide_all(second, world, outcomes);
            }
        }
    }

    /// Tries one path set after the other, and higher classes if the request states none.
    fn decide_one(&mut self, one: &Candidate, world: DecisionInput<'_>) -> Outcome {
        let mut reason = None;
        for choice in 0..self.paths {
            match self.attempt(std::slice::from_ref(one), choice, 0, world) {
                Ok(()) => return Outcome::Admitted,
                Err(Attempt::NoMorePaths) if choice > 0 => break,
                Err(why) => {
                    reason.get_or_insert(why);
                }
            }
        }
        let states = self
            .flows
            .get(&one.key)
            .and_then(|held| held.request.priority);
        if states.is_none() && matches!(reason, Some(Attempt::Refused(_))) {
            for raise in 1..=MAX_PRIORITY.saturating_sub(one.class) {
                if self
                    .attempt(std::slice::from_ref(one), 0, raise, world)
                    .is_ok()
                {
                    return Outcome::Admitted;
                }
            }
        }
        match reason {
            Some(Attempt::Refused(reason)) => Outcome::Refused(reason),
            Some(Attempt::NoMorePaths) | None => {
                // A link may come up, or be discovered.
                Outcome::Waiting("no links lead from the publisher to all receivers".into())
            }
        }
    }

    fn attempt(
        &mut self,
        ready: &[Candidate],
        choice: usize,
        raise: u8,
        world: DecisionInput<'_>,
    ) -> Result<(), Attempt> {
        let draft = self.draft(ready, choice, raise, world)?;
        let keys: Vec<Key> = draft.granted.iter().map(|(key, _)| key.clone()).collect();
        self.apply(draft)?;
        self.set_bounds(&keys, EFFORT_OF_BOUNDS, world);
        Ok(())
    }

    /// Makes a change if every flow keeps its deadline with it.
    fn apply(&mut self, draft: Draft) -> Result<(), Attempt> {
        let Draft {
            out,
            new,
            streams,
            granted,
        } = draft;
        let count = new.len();
        self.admission
            .replace(&out, new)
            .map_err(|refusal| Attempt::Refused(refusal.to_string()))?;
        self.outgrown |= self.admission.network().flows.len() > count;
        self.touched.extend(streams.keys());
        self.streams.extend(streams);
        for (key, granted) in granted {
            if let Some(held) = self.flows.get_mut(&key) {
                held.granted = Some(granted);
            }
        }
        Ok(())
    }

    /// The change that gives these requests streams over their `choice`th path set.
    fn draft(
        &mut self,
        ready: &[Candidate],
        choice: usize,
        raise: u8,
        world: DecisionInput<'_>,
    ) -> Result<Draft, Attempt> {
        let mut draft = Draft::default();
        // Streams that get another class or path: other flows that use them have to be recomputed.
        let mut anew: BTreeSet<Header> = BTreeSet::new();
        let mut fresh = choice == 0;
        for one in ready {
            let Some(held) = self.flows.get(&one.key) else {
                continue;
            };
            let (request, hint) = (held.request.clone(), held.hint.clone());
            let class = (one.class + raise).min(MAX_PRIORITY);
            for segment in &one.parts.segments {
                let known = draft
                    .streams
                    .get(&segment.header)
                    .or_else(|| self.streams.get(&segment.header));
                let fits = |stream: &&Stream| {
                    (stream.source, &stream.receivers) == (segment.source, &segment.receivers)
                        && stream
                            .path_set
                            .paths
                            .iter()
                            .flatten()
                            .all(|link| world.map.is_up(*link))
                };
                let mut stream = match known.filter(fits) {
                    Some(stream) => stream.clone(),
                    None => {
                        if known.is_some() {
                            anew.insert(segment.header);
                        }
                        let users = known.map(|stream| stream.users.clone()).unwrap_or_default();
                        let hinted = hint.as_ref().filter(|_| choice == 0);
                        let hinted = hinted.and_then(|hint| hinted_paths(hint, segment, world.map));
                        let entry = request.flow_entry(String::new(), Vec::new(), None);
                        let wanted = PathQuery {
                            source: segment.source,
                            receivers: &segment.receivers,
                            flow: &entry,
                            paths: if ready.len() == 1 { self.paths } else { 1 },
                        };
                        let path_sets = match hinted {
                            Some(path_set) => vec![path_set],
                            None => self.router.path_sets(world.map, &self.admission, wanted),
                        };
                        fresh |= choice < path_sets.len();
                        let path_set = path_sets.get(choice).or(path_sets.first()).cloned();
                        Stream {
                            header: segment.header,
                            source: segment.source,
                            class,
                            tag: 0,
                            receivers: segment.receivers.clone(),
                            path_set: path_set.ok_or(Attempt::NoMorePaths)?,
                            detours: BTreeMap::new(),
                            users,
                        }
                    }
                };
                if stream.class < class {
                    stream.class = class;
                    anew.insert(segment.header);
                }
                stream.tag = self.tag(&stream);
                let bits =
                    u128::from(request.wire_bytes) * u128::from(request.frames) * 8_000_000_000;
                let rate =
                    u64::try_from(bits / u128::from(request.period_ns.max(1))).unwrap_or(u64::MAX);
                let message = u64::from(request.wire_bytes) * u64::from(request.frames);
                let late = 1 + request.jitter_ns.div_ceil(request.period_ns.max(1));
                let user = Use {
                    rate_bps: request.bandwidth.unwrap_or(rate),
                    burst_bytes: message.saturating_mul(late.max(2)),
                };
                stream.users.insert(one.key.clone(), user);
                draft.streams.insert(segment.header, stream);
            }
        }
        if !fresh {
            return Err(Attempt::NoMorePaths);
        }
        for one in ready {
            let Some(held) = self.flows.get(&one.key) else {
                continue;
            };
            let flow = self.flow(&one.key, held, &one.parts, &draft.streams, world.map)?;
            draft.new.extend(flow);
            let granted = Allocation {
                parts: one.parts.clone(),
                bounds: BTreeMap::new(),
            };
            draft.granted.push((one.key.clone(), granted));
        }
        self.reckon_anew(&anew, ready, &mut draft, world)?;
        Ok(draft)
    }

    /// Recomputes the other flows of streams that a draft changes, and adds them to the draft.
    fn reckon_anew(
        &self,
        streams: &BTreeSet<Header>,
        ready: &[Candidate],
        draft: &mut Draft,
        world: DecisionInput<'_>,
    ) -> Result<(), Attempt> {
        let deciding: BTreeSet<&Key> = ready.iter().map(|one| &one.key).collect();
        let changed = streams
            .iter()
            .filter_map(|header| draft.streams.get(header));
        let keys: BTreeSet<Key> = changed
            .flat_map(|stream| stream.users.keys())
            .filter(|key| !deciding.contains(key))
            .cloned()
            .collect();
        for key in keys {
            let Some(held) = self.flows.get(&key) else {
                continue;
            };
            let Some(granted) = &held.granted else {
                continue;
            };
            let flow = self.flow(&key, held, &granted.parts, &draft.streams, world.map)?;
            draft.new.extend(flow);
            draft.out.push(flow_id(&key));
        }
        Ok(())
    }

    /// Headers of the streams that switches copy for several receivers.
    pub(crate) fn trees(&self) -> impl Iterator<Item = Header> {
        let streams = self.streams.iter();
        let trees = streams.filter(|(_, stream)| stream.receivers.len() > 1);
        trees.map(|(header, _)| *header)
    }

    /// Gives a stream the best available tree, if that is at least a tenth faster and all requests
    /// of the stream keep their deadlines. Returns the requests whose paths have changed.
    pub(crate) fn improve(
        &mut self,
        header: &Header,
        world: DecisionInput<'_>,
    ) -> Option<Vec<Key>> {
        let stream = self.streams.get(header)?;
        let keys: Vec<Key> = stream.users.keys().cloned().collect();
        let first = &self.flows.get(keys.first()?)?.request;
        let entry = first.flow_entry(String::new(), Vec::new(), None);
        let wanted = PathQuery {
            source: stream.source,
            receivers: &stream.receivers,
            flow: &entry,
            paths: self.paths,
        };
        let trees = self.router.path_sets(world.map, &self.admission, wanted);
        let path_set = trees.into_iter().next()?;
        let delay = |tree| u128::from(self.router.delay(world.map, &entry, tree));
        if delay(&path_set) * 110 > delay(&stream.path_set) * 100 {
            return None;
        }
        let mut moved = Stream {
            path_set,
            detours: Detours::new(),
            ..stream.clone()
        };
        moved.tag = self.tag(&moved);
        let mut draft = Draft::default();
        draft.streams.insert(*header, moved);
        self.reckon_anew(&BTreeSet::from([*header]), &[], &mut draft, world)
            .ok()?;
        self.apply(draft).ok()?;
        self.set_bounds(&keys, EFFORT_OF_BOUNDS, world);
        Some(keys)
    }

    /// The version of a stream's path, which differs from the version before if the path differs.
    fn tag(&self, stream: &Stream) -> u8 {
        let known = self
            .streams
            .get(&stream.header)
            .or_else(|| self.before.get(&stream.header));
        match known {
            Some(known) if same_paths(known, stream) => known.tag,
            Some(known) => (known.tag + 1) % super::entries::DETOURS,
            None => {
                let found = self.found.get(&stream.header);
                found.map_or(0, |mark| (mark.dscp & 7) % super::entries::DETOURS)
            }
        }
    }

    /// The flow of a request in the analysis, over streams of a draft or the current ones; `None`
    /// if it takes no time on any link.
    fn flow(
        &self,
        key: &Key,
        held: &RequestEntry,
        parts: &Parts,
        drafted: &BTreeMap<Header, Stream>,
        map: &Map,
    ) -> Result<Option<Flow>, Attempt> {
        let course = |header: &Header| {
            let drafted = drafted.get(header);
            let drafted = drafted.map(|stream| (&stream.path_set, stream.class));
            drafted.or_else(|| self.course(header))
        };
        let missing = || Attempt::Refused("a stream of it is not laid".into());
        let paths = FlowPaths::of(parts, course, map).ok_or_else(missing)?;
        let entry = paths.entry(flow_id(key), &held.request, &self.service, map);
        if entry.paths.is_empty() {
            return Ok(None);
        }
        let flow = map.model().flow(&entry);
        flow.map(Some)
            .map_err(|error| Attempt::Refused(error.to_string()))
    }

    /// Recomputes the guaranteed bounds of these requests; see [`Admission::guarantees`] for
    /// `effort`.
    fn set_bounds(&mut self, keys: &[Key], effort: u64, world: DecisionInput<'_>) {
        let granted = |key: &Key| Some((key.clone(), self.flows.get(key)?.granted.as_ref()?));
        let wanted: BTreeMap<Key, &Allocation> = keys.iter().filter_map(granted).collect();
        let ids: Vec<String> = wanted.keys().map(flow_id).collect();
        let guarantees = match ids.is_empty() {
            true => Vec::new(),
            false => self.admission.guarantees(&ids, effort),
        };
        let each = wanted.into_iter().zip(guarantees);
        let bounds = each.map(|((key, granted), guaranteed)| {
            let bounds = self.bounds_of(granted, world, &guaranteed);
            (key, bounds)
        });
        for (key, bounds) in bounds.collect::<Vec<_>>() {
            if let Some(granted) = self
                .flows
                .get_mut(&key)
                .and_then(|held| held.granted.as_mut())
            {
                granted.bounds = bounds;
            }
        }
    }

    /// The bound to each receiver in ns, from the bounds of a flow's paths.
    fn bounds_of(
        &self,
        granted: &Allocation,
        world: DecisionInput<'_>,
        guaranteed: &[u64],
    ) -> BTreeMap<Peer, u64> {
        let paths = FlowPaths::of(&granted.parts, |header| self.course(header), world.map);
        let receivers = paths.into_iter().flat_map(|paths| paths.receivers);
        let bound = |(peer, place): (Peer, Option<usize>)| match place {
            Some(place) => Some((peer, *guaranteed.get(place)?)),
            // Hosts at one port receive each other's packets without the network.
            None => Some((peer, 0)),
        };
        receivers.filter_map(bound).collect()
    }

    /// The path set of a stream, and its class.
    fn course<'a>(&'a self, header: &Header) -> Option<(&'a PathSet, u8)> {
        let stream = self.streams.get(header)?;
        Some((&stream.path_set, stream.class))
    }

    /// Recomputes, in turn, the bounds of at most `most` requests that may be outdated since other
    /// requests were admitted. Returns the requests whose bounds have grown.
    pub(crate) fn refresh_bounds(&mut self, most: usize, world: DecisionInput<'_>) -> Vec<Key> {
        let from = match self.refreshed.take() {
            Some(last) => Bound::Excluded(last),
            None if std::mem::take(&mut self.outgrown) => Bound::Unbounded,
            None => return Vec::new(),
        };
        let flows = self.flows.range((from, Bound::Unbounded));
        let granted = flows.filter_map(|(key, held)| {
            let granted = held.granted.as_ref()?;
            Some((key.clone(), granted.bounds.clone()))
        });
        let before: BTreeMap<Key, BTreeMap<Peer, u64>> = granted.take(most).collect();
        if before.len() == most {
            self.refreshed = before.last_key_value().map(|(key, _)| key.clone());
        }
        let keys: Vec<Key> = before.keys().cloned().collect();
        // The limit on effort is divided among all requests, so a round takes no more than
        // [`EFFORT_OF_BOUNDS`].
        let effort = EFFORT_OF_BOUNDS * keys.len() as u64 / self.flows.len().max(1) as u64;
        self.set_bounds(&keys, effort, world);
        let has_grown = |key: &Key| {
            let now = self.flows.get(key).and_then(|held| held.granted.as_ref());
            let before = before.get(key);
            now.zip(before).is_some_and(|(now, before)| {
                let grown =
                    |(peer, bound): (&Peer, &u64)| before.get(peer).is_some_and(|old| old < bound);
                now.bounds.iter().any(grown)
            })
        };
        let (grown, kept): (Vec<_>, Vec<_>) = keys.into_iter().partition(has_grown);
        // A published bound that still holds is not changed.
        for key in kept {
            if let Some(granted) = self
                .flows
                .get_mut(&key)
                .and_then(|held| held.granted.as_mut())
                && let Some(old) = before.get(&key)
            {
                granted.bounds.clone_from(old);
            }
        }
        grown
    }

    /// Whether the current round of recomputation has requests left.
    pub(crate) fn is_refreshing(&self) -> bool {
        self.refreshed.is_some()
    }

    /// Whether bounds may be outdated since other requests were admitted, after or during the
    /// current round.
    pub(crate) fn is_outgrown(&self) -> bool {
        self.outgrown
    }

    /// The answer to an admitted request; `None` if it is not admitted.
    pub(crate) fn channel(&self, key: &Key, map: &Map, topology: &Topology) -> Option<Channel> {
        let held = self.flows.get(key)?;
        let granted = held.granted.as_ref()?;
        let mut channel = Channel::of(&held.request, State::Admitted, "");
        channel.bounds_ns.clone_from(&granted.bounds);
        let mut up: Vec<LinkIndex> = Vec::new();
        let named = |links: &[LinkIndex]| {
            links
                .iter()
                .map(|link| map.link_name(*link).to_owned())
                .collect()
        };
        for segment in &granted.parts.segments {
            let stream = self.streams.get(&segment.header)?;
            if channel.queue.is_none_or(|queue| queue < stream.class) {
                channel.queue = Some(stream.class);
                channel.dscp = Some(Mark::code_point(stream.class, stream.tag));
            }
            if let Role::Up { .. } = segment.role {
                up.clone_from(stream.path_set.paths.first()?);
                let node = segment
                    .receivers
                    .first()
                    .and_then(|receiver| map.node_at(receiver.at));
                up.extend(node.and_then(|node| map.service_of(node)));
                for peer in &granted.parts.local {
                    channel.paths.insert(*peer, named(&up));
                }
                continue;
            }
            for (receiver, path) in stream.receivers.iter().zip(&stream.path_set.paths) {
                let whole = [up.as_slice(), path.as_slice()].concat();
                channel.paths.insert(receiver.peer, named(&whole));
            }
            let point = stream
                .path_set
                .rendezvous
                .and_then(|point| topology.switches.get(&point));
            channel.rendezvous = point.map(|switch| switch.name.clone());
        }
        channel.group_address = granted.parts.group;
        channel.group = granted.parts.group.map(|group| match group {
            IpAddr::V4(group) => u32::from(group),
            IpAddr::V6(group) => (u128::from(group) & 0xffff_ffff) as u32,
        });
        Some(channel)
    }

    /// Sets the detours of a stream. If the new ones contradict each other, the stream keeps its
    /// previous detours and the result is false.
    pub(crate) fn set_detours(&mut self, header: &Header, detours: Detours) -> bool {
        let Some(stream) = self.streams.get_mut(header) else {
            return false;
        };
        if stream.detours == detours {
            return true;
        }
        let old = std::mem::replace(&mut stream.detours, detours);
        if !are_consistent(stream) {
            stream.detours = old;
            return false;
        }
        self.touched.insert(*header);
        true
    }

    /// The flow of an admitted request, with other paths for some of its streams.
    pub(crate) fn rerouted<'a>(
        &'a self,
        key: &Key,
        other: impl Fn(&Header) -> Option<&'a PathSet>,
        map: &Map,
    ) -> Option<Flow> {
        let held = self.flows.get(key)?;
        let granted = held.granted.as_ref()?;
        let course = |header: &Header| {
            let (path_set, class) = self.course(header)?;
            Some((other(header).unwrap_or(path_set), class))
        };
        let paths = FlowPaths::of(&granted.parts, course, map)?;
        let entry = paths.entry(flow_id(key), &held.request, &self.service, map);
        map.model().flow(&entry).ok()
    }
}

/// Reason why an attempt failed.
#[derive(Debug)]
enum Attempt {
    /// The request has fewer path sets.
    NoMorePaths,
    /// Reason for the manager, in plain words.
    Refused(String),
}

/// The class of a request: queue 0 is for traffic without reservation, so the least urgent priority
/// uses class 1.
pub(crate) fn class_of(request: &Request) -> u8 {
    request.effective_priority().clamp(1, MAX_PRIORITY)
}

fn same_paths(a: &Stream, b: &Stream) -> bool {
    (a.source, a.class, &a.receivers, &a.path_set.paths)
        == (b.source, b.class, &b.receivers, &b.path_set.paths)
}

/// The path set of an answer from an earlier run, if all of its links exist.
fn hinted_paths(hint: &Channel, segment: &Segment, map: &Map) -> Option<PathSet> {
    let links = |names: &[String]| -> Option<Vec<LinkIndex>> {
        let links = names
            .iter()
            .map(|name| map.link_named(name).filter(|link| map.is_up(*link)));
        links.collect()
    };
    let part = |path: Vec<LinkIndex>| -> Vec<LinkIndex> {
        let service = path.iter().position(|link| map.is_service(*link));
        match (segment.role, service) {
            (Role::Up { .. }, Some(at)) => path[..at].to_vec(),
            (Role::Down, Some(at)) => path[at + 1..].to_vec(),
            _ => path,
        }
    };
    let mut paths = Vec::new();
    for receiver in &segment.receivers {
        let names = match segment.role {
            Role::Up { .. } => hint.paths.values().next()?,
            Role::Down | Role::Direct => hint.paths.get(&receiver.peer)?,
        };
        let path = part(links(names)?);
        if segment.source == receiver.at {
            paths.push(Vec::new());
            continue;
        }
        let (first, _) = map.access_links(segment.source)?;
        let (_, last) = map.access_links(receiver.at)?;
        let model = map.model();
        let joined = path
            .windows(2)
            .all(|pair| model.links[pair[0]].to == model.links[pair[1]].from);
        if path.first() != Some(&first) || path.last() != Some(&last) || !joined {
            return None;
        }
        paths.push(path);
    }
    let rendezvous = hint.rendezvous.as_deref();
    let rendezvous = map.switch_nodes().find(|(_, node)| {
        let name = map.model().nodes.get(*node).map(|node| node.id.as_str());
        name.is_some() && name == rendezvous
    });
    Some(PathSet {
        paths,
        rendezvous: rendezvous.map(|(datapath, _)| datapath),
    })
}

/// The hash function FNV-1a.
pub(crate) fn hash(bytes: &[u8], seed: u64) -> u64 {
    let start = 0xcbf2_9ce4_8422_2325 ^ seed;
    bytes.iter().fold(start, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}
