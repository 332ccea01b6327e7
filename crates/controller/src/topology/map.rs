//! The network that was found as the analysis wants it: nodes and directed
//! links with rates and delays, which come from the document where it names
//! them.
//!
//! Nodes and links are never removed, so indices stay valid: a link that is down
//! has no rate, which closes it to paths. All hosts at one port are one node, as
//! they share its link. A broker is two nodes, one for arrivals and one for
//! departures, and the link between them is its service.

use std::collections::{BTreeMap, HashMap};

use punctual_model::network::{
    LinkEntry, LinkIndex, NetworkError, NodeEntry, NodeIndex, Topology as Model,
};

use super::{End, Topology};
use crate::settings::{Defaults, Service, Settings};

/// How the names of brokers' service links end.
const SERVICE: &str = "!service";

/// Ends of a link of the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ends {
    /// The port by which it leaves; none if it leaves a host.
    pub(crate) out: Option<End>,
    /// The port by which it comes in; none if it comes to a host.
    pub(crate) into: Option<End>,
}

/// The network as the analysis wants it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Map {
    nodes: Vec<NodeEntry>,
    links: Vec<LinkEntry>,
    ends: Vec<Ends>,
    up: Vec<bool>,
    node_of: HashMap<String, NodeIndex>,
    link_of: HashMap<String, LinkIndex>,
    switch_node: BTreeMap<u64, NodeIndex>,
    /// The node of the hosts at a port.
    edge_node: BTreeMap<End, NodeIndex>,
    /// The link that leaves by a port, with the port it leads to, if to a
    /// switch.
    leaving: BTreeMap<(End, Option<End>), LinkIndex>,
    /// Links from hosts, by the port to which they come.
    coming: BTreeMap<End, LinkIndex>,
    /// Where what a broker sends begins, and its service.
    servers: BTreeMap<NodeIndex, (NodeIndex, LinkIndex)>,
    /// Links of the document by their ends.
    stated: HashMap<(String, String), Vec<LinkEntry>>,
    stated_nodes: HashMap<String, NodeEntry>,
    defaults: Option<Defaults>,
    service: Option<Service>,
    model: Model,
    dirty: bool,
}

impl Map {
    pub(crate) fn new(settings: &Settings) -> Self {
        let mut stated: HashMap<_, Vec<LinkEntry>> = HashMap::new();
        // The first is taken first.
        for link in settings.network.links.iter().rev() {
            let ends = (link.from.clone(), link.to.clone());
            stated.entry(ends).or_default().push(link.clone());
        }
        let nodes = settings.network.nodes.iter();
        Self {
            stated,
            stated_nodes: nodes.map(|node| (node.id.clone(), node.clone())).collect(),
            defaults: Some(settings.defaults),
            service: Some(settings.service),
            ..Self::default()
        }
    }

    /// Takes over what there is. True if anything is other than it was.
    ///
    /// # Errors
    /// A value of the document is out of range.
    pub(crate) fn update(&mut self, topology: &Topology) -> Result<bool, NetworkError> {
        for (datapath, switch) in &topology.switches {
            self.switch(*datapath, &switch.name);
        }
        let mut up = vec![false; self.links.len()];
        let mut is_up = |link: LinkIndex| {
            if up.len() <= link {
                up.resize(link + 1, false);
            }
            up[link] = true;
        };
        for (from, to) in topology.links() {
            let rate = topology.port_of(from).map_or(0, |port| port.state.rate_bps);
            if let Some(link) = self.between(from, to, rate) {
                is_up(link);
            }
        }
        for host in topology.hosts.values() {
            let Some(at) = host.at else {
                continue;
            };
            let Some(port) = topology.port_of(at) else {
                continue;
            };
            if let Some((into, out)) = self.access(at, &host.name, port.state.rate_bps)
                && port.works()
            {
                is_up(into);
                is_up(out);
            }
        }
        for (_, service) in self.servers.values() {
            is_up(*service);
        }
        up.resize(self.links.len(), false);
        let changed = self.dirty || up != self.up;
        self.up = up;
        if std::mem::take(&mut self.dirty) {
            self.model = Model::new(&self.nodes, &self.links)?;
        }
        if changed {
            for (index, link) in self.model.links.iter_mut().enumerate() {
                let rate = self.links[index].rate_bps.unwrap_or(0);
                link.rate = if self.up[index] { rate } else { 0 };
            }
        }
        Ok(changed)
    }

    /// The network; links that are down have no rate.
    pub(crate) fn model(&self) -> &Model {
        &self.model
    }

    pub(crate) fn is_up(&self, link: LinkIndex) -> bool {
        self.up.get(link).copied().unwrap_or(false)
    }

    pub(crate) fn ends(&self, link: LinkIndex) -> Option<Ends> {
        self.ends.get(link).copied()
    }

    pub(crate) fn link_name(&self, link: LinkIndex) -> &str {
        self.links.get(link).map_or("", |link| &link.id)
    }

    pub(crate) fn link_named(&self, name: &str) -> Option<LinkIndex> {
        self.link_of.get(name).copied()
    }

    /// The link that leaves by a port, among those that are up.
    pub(crate) fn link_at(&self, out: End) -> Option<LinkIndex> {
        let from = (out, None);
        let all = self
            .leaving
            .range(from..)
            .take_while(|((end, _), _)| *end == out);
        let mut all = all.map(|(_, link)| *link);
        all.find(|link| self.is_up(*link))
    }

    /// The node of the hosts at a port.
    pub(crate) fn node_at(&self, at: End) -> Option<NodeIndex> {
        self.edge_node.get(&at).copied()
    }

    pub(crate) fn switch_nodes(&self) -> impl Iterator<Item = (u64, NodeIndex)> {
        self.switch_node
            .iter()
            .map(|(datapath, node)| (*datapath, *node))
    }

    /// Links from and to the hosts at a port.
    pub(crate) fn access_links(&self, at: End) -> Option<(LinkIndex, LinkIndex)> {
        Some((*self.coming.get(&at)?, *self.leaving.get(&(at, None))?))
    }

    /// The service link of a broker at a node; it is made if there is none.
    pub(crate) fn server(&mut self, node: NodeIndex) -> LinkIndex {
        if let Some((_, link)) = self.servers.get(&node) {
            return *link;
        }
        let name = format!("{}!out", self.nodes[node].id);
        let out = self.node(
            &name,
            NodeEntry {
                id: name.clone(),
                ..NodeEntry::default()
            },
        );
        // What a broker sends leaves from there.
        let id = self.nodes[node].id.clone();
        for link in &mut self.links {
            if link.from == id {
                link.from.clone_from(&name);
            }
        }
        let blocking = self.service.map_or(0, |service| service.blocking_ns);
        let service = LinkEntry {
            id: format!("{id}{SERVICE}"),
            from: id,
            to: name,
            be_ns: Some(blocking),
            // Its threads may finish equally urgent messages in any order, and take each
            // when all of it is there.
            unordered: true,
            whole: true,
            ..LinkEntry::default()
        };
        let link = self.push(
            service,
            Ends {
                out: None,
                into: None,
            },
        );
        self.servers.insert(node, (out, link));
        link
    }

    /// The service link of a broker, if there is one at a node.
    pub(crate) fn service_of(&self, node: NodeIndex) -> Option<LinkIndex> {
        self.servers.get(&node).map(|(_, link)| *link)
    }

    /// Whether a link with that name is there and works.
    pub(crate) fn is_up_named(&self, name: &str) -> bool {
        self.link_named(name).is_some_and(|link| self.is_up(link))
    }

    /// Whether it is the name of a broker's service link, which is made when it is needed.
    pub(crate) fn is_service_name(name: &str) -> bool {
        name.ends_with(SERVICE)
    }

    pub(crate) fn is_service(&self, link: LinkIndex) -> bool {
        self.servers.values().any(|(_, service)| *service == link)
    }

    fn switch(&mut self, datapath: u64, name: &str) -> NodeIndex {
        if let Some(node) = self.switch_node.get(&datapath) {
            return *node;
        }
        let defaults = self.defaults;
        let unknown = || {
            let (least, most) = defaults.map_or((0, 0), |defaults| defaults.switching_ns);
            NodeEntry {
                id: name.to_owned(),
                sd_min_ns: least,
                sd_max_ns: Some(most),
                copy_max_ns: defaults.map_or(0, |defaults| defaults.copy_ns),
            }
        };
        let entry = self.stated_nodes.get(name).cloned().unwrap_or_else(unknown);
        let node = self.node(name, entry);
        self.switch_node.insert(datapath, node);
        node
    }

    /// Makes a node; its name gets a sign if it is taken.
    fn node(&mut self, name: &str, mut entry: NodeEntry) -> NodeIndex {
        let mut id = name.to_owned();
        while self.node_of.contains_key(&id) {
            id.push('\'');
        }
        entry.id.clone_from(&id);
        self.node_of.insert(id, self.nodes.len());
        self.nodes.push(entry);
        self.dirty = true;
        self.nodes.len() - 1
    }

    fn between(&mut self, from: End, to: End, rate: u64) -> Option<LinkIndex> {
        if let Some(link) = self.leaving.get(&(from, Some(to))) {
            return Some(*link);
        }
        let a = *self.switch_node.get(&from.datapath)?;
        let b = *self.switch_node.get(&to.datapath)?;
        let link = self.connect(
            a,
            b,
            rate,
            Ends {
                out: Some(from),
                into: Some(to),
            },
        );
        self.leaving.insert((from, Some(to)), link);
        Some(link)
    }

    /// Links from and to the hosts at a port.
    fn access(&mut self, at: End, name: &str, rate: u64) -> Option<(LinkIndex, LinkIndex)> {
        if let Some(links) = self.access_links(at) {
            return Some(links);
        }
        let switch = *self.switch_node.get(&at.datapath)?;
        let node = match self.edge_node.get(&at) {
            Some(node) => *node,
            None => {
                let entry = self.stated_nodes.get(name).cloned().unwrap_or_default();
                let node = self.node(name, entry);
                self.edge_node.insert(at, node);
                node
            }
        };
        let into = self.connect(
            node,
            switch,
            rate,
            Ends {
                out: None,
                into: Some(at),
            },
        );
        let out = self.connect(
            switch,
            node,
            rate,
            Ends {
                out: Some(at),
                into: None,
            },
        );
        self.coming.insert(at, into);
        self.leaving.insert((at, None), out);
        Some((into, out))
    }

    fn connect(&mut self, a: NodeIndex, b: NodeIndex, rate: u64, ends: Ends) -> LinkIndex {
        let (from, to) = (self.nodes[a].id.clone(), self.nodes[b].id.clone());
        let stated = self.stated.get_mut(&(from.clone(), to.clone()));
        let stated = stated.and_then(Vec::pop);
        let entry = stated.unwrap_or_else(|| {
            let defaults = self.defaults;
            let other = |pick: fn(Defaults) -> u64| defaults.map_or(0, pick);
            LinkEntry {
                id: format!("{from}>{to}"),
                from,
                to,
                rate_bps: Some(if rate > 0 {
                    rate
                } else {
                    other(|d| d.rate_bps)
                }),
                be_bytes: Some(other(|d| d.be_bytes)),
                ..LinkEntry::default()
            }
        });
        self.push(entry, ends)
    }

    fn push(&mut self, mut entry: LinkEntry, ends: Ends) -> LinkIndex {
        while self.link_of.contains_key(&entry.id) {
            entry.id.push('\'');
        }
        self.link_of.insert(entry.id.clone(), self.links.len());
        self.links.push(entry);
        self.ends.push(ends);
        self.dirty = true;
        self.links.len() - 1
    }
}
