//! The network as paths are found in it: from a node to the broker, through the
//! broker's processor, and from there to a node.
//!
//! The broker is two nodes with a server between them: links to it end at its
//! entrance, where messages wait for the processor, and a message leaves from
//! the broker's own node once for each receiver. Paths have the fewest links;
//! among equals the links named first. Those from the broker are a tree.

use std::collections::VecDeque;

use punctual_analysis::{NoRoute, Selection, SelectionError, choose_paths};
use punctual_model::network::{Document, LinkEntry, Network, NetworkError, NodeEntry, Topology};
use punctual_model::wire::ETHERNET;

use crate::settings::{Settings, Star};

/// The switch of a star.
const SWITCH: &str = "switch";

/// A host that was added to a star.
#[derive(Debug)]
pub(crate) struct Host {
    pub(crate) node: NodeEntry,
    /// To the switch, and from it.
    pub(crate) links: [LinkEntry; 2],
}

/// Nodes, links and the ways between them and the broker.
#[derive(Debug, Clone)]
pub(crate) struct Map {
    pub(crate) topology: Topology,
    broker: String,
    entrance: String,
    /// The processor, as a link; where several threads serve clients, also the one that a message is
    /// handed over to.
    pub(crate) servers: Vec<String>,
    star: Option<Star>,
    mtu: u32,
    hosts: usize,
    max_hosts: usize,
    /// For each node its first link on the way to the entrance.
    up: Vec<Option<usize>>,
    /// For each node its last link on the way from the broker.
    down: Vec<Option<usize>>,
}

impl Map {
    /// The map, and with it the network's own flows.
    ///
    /// Flows of the document that state from where and to where get paths that
    /// keep every deadline.
    ///
    /// # Errors
    /// The entry of the network that means nothing, a flow for which there is
    /// no way, or a broker that is not in it.
    pub(crate) fn new(settings: &Settings) -> Result<(Self, Network), NetworkError> {
        let mut document = match &settings.network {
            Some(document) => document.clone(),
            None => star(settings),
        };
        let broker = settings.broker.clone();
        if !document.nodes.iter().any(|node| node.id == broker) {
            let problem = "is not among the nodes; name the node that the broker is";
            return Err(NetworkError::new(format!("broker {broker:?}"), problem));
        }
        choose_paths(&mut document, &[], Selection::Admission).map_err(
            |SelectionError { flow, why }| match why {
                NoRoute::Invalid(error) => error,
                why => NetworkError::new(format!("flows {flow:?}"), why.to_string()),
            },
        )?;
        let (entrance, server) = processor(&mut document, &broker, settings);
        let mut servers = vec![server];
        if settings.threads > 1 {
            let hand_over = hand_over(&mut document, &broker, &servers[0], settings);
            servers.push(hand_over);
        }
        let network = Network::new(&document)?;
        let mut map = Self {
            topology: network.topology.clone(),
            broker,
            entrance,
            servers,
            star: settings.network.is_none().then_some(settings.star),
            mtu: settings.mtu,
            hosts: 0,
            max_hosts: settings.max_hosts,
            up: Vec::new(),
            down: Vec::new(),
        };
        map.find_ways();
        Ok((map, network))
    }

    /// Whether hosts are added as they are seen.
    pub(crate) fn is_star(&self) -> bool {
        self.star.is_some()
    }

    /// Whether there is such a node.
    pub(crate) fn has(&self, node: &str) -> bool {
        self.topology.node(node).is_some()
    }

    /// Adds a host to a star, and says what has been added to the network; `None`
    /// if there is no room. Takes the same time however many hosts there are.
    pub(crate) fn add_host(&mut self, name: &str) -> Option<Host> {
        let star = self.star?;
        if self.hosts >= self.max_hosts {
            return None;
        }
        self.hosts += 1;
        let host = Host {
            node: NodeEntry {
                id: name.into(),
                ..NodeEntry::default()
            },
            links: [(name, SWITCH), (SWITCH, name)]
                .map(|(from, to)| link(from, to, star.access_rate, self.mtu)),
        };
        let first = self.topology.links.len();
        let node = std::slice::from_ref(&host.node);
        // Nothing in it can be wrong: the name is new and the rates were
        // checked with the broker's.
        self.topology.extend(node, &host.links).ok()?;
        // Nobody's way leads through a host, so that the others stay as they are.
        self.up.push(Some(first));
        self.down.push(Some(first + 1));
        Some(host)
    }

    /// The links from a node to the broker and through its processor; `None`
    /// if none lead there.
    pub(crate) fn up_from(&self, node: &str) -> Option<Vec<String>> {
        let mut at = self.topology.node(node)?;
        let entrance = self.topology.node(&self.entrance)?;
        let mut path = Vec::new();
        while at != entrance {
            let link = self.up[at]?;
            path.push(self.topology.links[link].id.clone());
            at = self.topology.links[link].to;
        }
        path.extend_from_slice(&self.servers);
        Some(path)
    }

    /// The links from the broker to a node; `None` if none lead there.
    pub(crate) fn down_to(&self, node: &str) -> Option<Vec<String>> {
        let mut at = self.topology.node(node)?;
        let broker = self.topology.node(&self.broker)?;
        let mut path = Vec::new();
        while at != broker {
            let link = self.down[at]?;
            path.push(self.topology.links[link].id.clone());
            at = self.topology.links[link].from;
        }
        path.reverse();
        Some(path)
    }

    fn find_ways(&mut self) {
        let links = &self.topology.links;
        let mut out = vec![Vec::new(); self.topology.nodes.len()];
        let mut into = vec![Vec::new(); self.topology.nodes.len()];
        for (index, link) in links.iter().enumerate() {
            if !self.servers.contains(&link.id) {
                out[link.from].push(index);
                into[link.to].push(index);
            }
        }
        let search = |from: Option<usize>, edges: &[Vec<usize>], end: &dyn Fn(usize) -> usize| {
            let mut way = vec![None; edges.len()];
            let mut queue: VecDeque<usize> = from.into_iter().collect();
            while let Some(node) = queue.pop_front() {
                for link in &edges[node] {
                    let next = end(*link);
                    if Some(next) != from && way[next].is_none() {
                        way[next] = Some(*link);
                        queue.push_back(next);
                    }
                }
            }
            way
        };
        let (entrance, broker) = (
            self.topology.node(&self.entrance),
            self.topology.node(&self.broker),
        );
        self.up = search(entrance, &into, &|link| links[link].from);
        self.down = search(broker, &out, &|link| links[link].to);
    }
}

/// The name of the node that a link of a star joins, and the switch.
fn link(from: &str, to: &str, rate: u64, mtu: u32) -> LinkEntry {
    LinkEntry {
        id: format!("{from}>{to}"),
        from: from.into(),
        to: to.into(),
        rate_bps: Some(rate),
        be_bytes: Some(ETHERNET + u64::from(mtu)),
        ..LinkEntry::default()
    }
}

fn star(settings: &Settings) -> Document {
    let Star {
        broker_rate,
        switch_delay_ns,
        ..
    } = settings.star;
    let broker = &settings.broker;
    Document {
        nodes: vec![
            NodeEntry {
                id: SWITCH.into(),
                sd_max_ns: Some(switch_delay_ns),
                ..NodeEntry::default()
            },
            NodeEntry {
                id: broker.clone(),
                ..NodeEntry::default()
            },
        ],
        links: vec![
            link(SWITCH, broker, broker_rate, settings.mtu),
            link(broker, SWITCH, broker_rate, settings.mtu),
        ],
        flows: Vec::new(),
    }
}

/// Finds the broker's entrance and processor, or puts them in: links that
/// ended at the broker then end at its entrance, and the flows of the document
/// pass the processor. It serves as the broker does: by priority, and
/// connections that are as urgent in turn. Returns both names.
fn processor(document: &mut Document, broker: &str, settings: &Settings) -> (String, String) {
    let own = document
        .links
        .iter_mut()
        .find(|link| link.to == broker && link.rate_bps.is_none_or(|rate| rate == 0));
    if let Some(own) = own {
        (own.fifo, own.edf) = (false, false);
        (own.unordered, own.whole) = (true, true);
        return (own.from.clone(), own.id.clone());
    }
    let (entrance, server) = (format!("{broker}.in"), format!("{broker}.cpu"));
    let mut node = NodeEntry {
        id: entrance.clone(),
        ..NodeEntry::default()
    };
    // What the node delays, it delays on the way in; on the way out the
    // processor was busy with the message itself.
    for known in document.nodes.iter_mut().filter(|node| node.id == broker) {
        (node.sd_min_ns, node.sd_max_ns) = (known.sd_min_ns, known.sd_max_ns);
        (known.sd_min_ns, known.sd_max_ns) = (0, None);
    }
    document.nodes.push(node);
    for link in document.links.iter_mut().filter(|link| link.to == broker) {
        link.to.clone_from(&entrance);
    }
    document.links.push(LinkEntry {
        id: server.clone(),
        from: entrance.clone(),
        to: broker.into(),
        be_ns: Some(settings.service.blocking_ns),
        unordered: true,
        whole: true,
        ..LinkEntry::default()
    });
    let leaves: Vec<String> = document
        .links
        .iter()
        .filter(|link| link.from == broker)
        .map(|link| link.id.clone())
        .collect();
    for flow in &mut document.flows {
        let mut copies = 0;
        for path in &mut flow.paths {
            if let Some(at) = path.iter().position(|link| leaves.contains(link))
                && at > 0
            {
                path.insert(at, server.clone());
                copies += 1;
            }
        }
        if copies > 0 {
            let Settings { service, .. } = settings;
            let cost = service.receive_ns + copies * service.send_ns;
            flow.cost_ns.entry(server.clone()).or_insert(cost.max(1));
        }
    }
    (entrance, server)
}

/// Puts in what comes after the processor where several threads serve clients: the thread of the
/// receiver, which may do anything else when a message is handed over to it, and works on it once
/// more. That all messages pass one of each is more than any takes. Returns its name.
fn hand_over(document: &mut Document, broker: &str, server: &str, settings: &Settings) -> String {
    let (between, hand_over) = (format!("{broker}.threads"), format!("{broker}.hand-over"));
    document.nodes.push(NodeEntry {
        id: between.clone(),
        ..NodeEntry::default()
    });
    for link in document.links.iter_mut().filter(|link| link.id == server) {
        link.to.clone_from(&between);
    }
    document.links.push(LinkEntry {
        id: hand_over.clone(),
        from: between,
        to: broker.into(),
        be_ns: Some(settings.service.blocking_ns),
        unordered: true,
        whole: true,
        ..LinkEntry::default()
    });
    for flow in &mut document.flows {
        for path in &mut flow.paths {
            if let Some(at) = path.iter().position(|link| link == server) {
                path.insert(at + 1, hand_over.clone());
            }
        }
        if let Some(cost) = flow.cost_ns.get(server).copied() {
            flow.cost_ns.insert(hand_over.clone(), cost);
        }
    }
    hand_over
}
