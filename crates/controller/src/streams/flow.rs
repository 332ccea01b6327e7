//! The flow of a request in the analysis: one flow over all of the request's streams.

use std::collections::{BTreeMap, HashMap};

use punctual_model::network::{FlowEntry, LinkIndex, NodeIndex};
use punctual_model::srt::{Peer, Request};

use super::{Parts, PathSet, Role};
use crate::plan::Header;
use crate::settings::Service;
use crate::topology::Map;

/// The paths of a request's flow, from the publisher to every receiver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FlowPaths {
    paths: Vec<Vec<LinkIndex>>,
    /// Each receiver with the index of its path; `None` if the receiver is at the sender's port,
    /// and its packets cross no link of the network.
    pub(crate) receivers: Vec<(Peer, Option<usize>)>,
    /// Class of the packets that the publisher sends.
    class: u8,
    /// The node at which the messages of the paths diverge, and the class of each path behind it: a
    /// broker, or a publisher with a connection to each receiver. `None` for a multicast group,
    /// whose packets are copied by switches.
    fanout: Option<(NodeIndex, Vec<u8>)>,
    /// The link that represents the broker's service, and the number of copies that the broker
    /// sends.
    service: Option<(LinkIndex, u64)>,
}

impl FlowPaths {
    /// The paths of a request, where `course` returns the path set and the class of a stream.
    /// `None` if a stream is missing.
    pub(crate) fn of<'a>(
        parts: &Parts,
        course: impl Fn(&Header) -> Option<(&'a PathSet, u8)>,
        map: &Map,
    ) -> Option<Self> {
        let mut flow = Self {
            paths: Vec::new(),
            receivers: Vec::new(),
            class: 0,
            fanout: None,
            service: None,
        };
        let mut segments = parts.segments.as_slice();
        if let [only] = segments
            && parts.group.is_some()
        {
            let (path_set, class) = course(&only.header)?;
            flow.class = class;
            for (receiver, path) in only.receivers.iter().zip(&path_set.paths) {
                let place = flow.place(path);
                flow.receivers.push((receiver.peer, place));
            }
            return Some(flow);
        }
        let mut head: Vec<LinkIndex> = Vec::new();
        if let [up, rest @ ..] = segments
            && let Role::Up { copies } = up.role
        {
            let (path_set, class) = course(&up.header)?;
            flow.class = class;
            head.extend(path_set.paths.first()?);
            let node = up.receivers.first().and_then(|at| map.node_at(at.at));
            let service = node.and_then(|node| map.service_of(node));
            head.extend(service);
            flow.service = service.map(|service| (service, copies));
            segments = rest;
        }
        let mut classes = Vec::new();
        for segment in segments {
            let (path_set, class) = course(&segment.header)?;
            let path = path_set.paths.first()?;
            let place = (!path.is_empty()).then_some(flow.paths.len());
            for receiver in &segment.receivers {
                flow.receivers.push((receiver.peer, place));
            }
            if let Some(first) = path.first() {
                let node = map.model().links.get(*first)?.from;
                classes.push(class);
                flow.paths.push([&head[..], path].concat());
                flow.fanout = Some((node, Vec::new()));
            }
        }
        if !parts.local.is_empty() {
            let place = flow.place(&head);
            classes.resize(flow.paths.len(), flow.class);
            let local = parts.local.iter().map(|peer| (*peer, place));
            flow.receivers.extend(local);
        }
        if flow.paths.is_empty() {
            // The broker takes its messages although nobody has subscribed.
            flow.place(&head);
        }
        if head.is_empty() {
            flow.class = classes.iter().copied().max().unwrap_or(0);
        }
        if let Some((_, of)) = &mut flow.fanout {
            *of = classes;
        }
        Some(flow)
    }

    /// The index of a path, which is added if it is new.
    fn place(&mut self, path: &[LinkIndex]) -> Option<usize> {
        if path.is_empty() {
            return None;
        }
        let known = self.paths.iter().position(|known| known == path);
        Some(known.unwrap_or_else(|| {
            self.paths.push(path.to_vec());
            self.paths.len() - 1
        }))
    }

    /// The flow for the analysis; it has no paths if it takes no time on any link.
    pub(crate) fn entry(
        &self,
        id: String,
        request: &Request,
        service: &Service,
        map: &Map,
    ) -> FlowEntry {
        let named = |path: &Vec<LinkIndex>| {
            let links = path.iter().map(|link| map.link_name(*link).to_owned());
            links.collect()
        };
        let paths = self.paths.iter().map(named).collect();
        let node = |node: NodeIndex| map.model().nodes.get(node).map(|node| node.id.clone());
        let fanout = self.fanout.as_ref().and_then(|(at, _)| node(*at));
        let mut entry = request.flow_entry(id, paths, fanout);
        entry.prio = self.class.into();
        entry.cost_ns = self.costs(request, service, map);
        if let Some((_, classes)) = &self.fanout
            && classes.iter().any(|class| *class != self.class)
        {
            entry.fanout_prio = classes.iter().map(|class| u64::from(*class)).collect();
        }
        entry
    }

    /// Times in ns on links where the time does not follow from the size of one frame.
    fn costs(&self, request: &Request, service: &Service, map: &Map) -> BTreeMap<String, u64> {
        let mut costs = BTreeMap::new();
        if let Some((link, copies)) = self.service {
            let copies = service.send_ns.saturating_mul(copies);
            let time = service.receive_ns.saturating_add(copies).max(1);
            costs.insert(map.link_name(link).to_owned(), time);
        }
        if self.fanout.is_some() || self.service.is_some() {
            return costs;
        }
        // Copies for several receivers of a group at one port follow each other on its link.
        let mut copies: HashMap<usize, u64> = HashMap::new();
        for place in self.receivers.iter().filter_map(|(_, place)| *place) {
            *copies.entry(place).or_default() += 1;
        }
        for (place, count) in copies.into_iter().filter(|(_, count)| *count > 1) {
            let last = self.paths.get(place).and_then(|path| path.last());
            let link = last.and_then(|link| map.model().links.get(*link));
            if let Some(link) = link {
                let bits = u128::from(request.wire_bytes) * 8_000_000_000;
                let time = bits.div_ceil(u128::from(link.rate.max(1))) * u128::from(count);
                let time = u64::try_from(time).unwrap_or(u64::MAX);
                costs.insert(link.id.clone(), time);
            }
        }
        costs
    }
}
