//! Derives the hosts, switches and cables of an emulation, and the paths between hosts, from a
//! network's nodes, links and flows. Pure.
//!
//! A node is a switch if a flow enters it by one link with a rate and leaves it by another, or if
//! no flow crosses it and it has links to two other nodes; all other nodes are hosts. A link
//! without a rate is a server (the broker's processor), and the nodes at its ends are one host. Two
//! links between the same nodes, one in each direction, are one cable. A direction that the network
//! does not declare gets the rate of the other one, for acknowledgements.
//!
//! The server on a flow's paths is the flow's broker, and the ends of the paths are its
//! subscribers. A flow whose paths contain no server ends at brokers, as in the papers, whose
//! bounds end there too. A flow to several brokers is published to a multicast group, along the
//! tree of its paths.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::net::Ipv4Addr;

use punctual_model::network::{Flow, HopIndex, Link, LinkIndex, Network, NodeIndex};

use punctual_measure::{Error, Result};

/// Strict priority levels of a port.
const LEVELS: usize = 8;

/// Rate of a cable without declared traffic, bit/s.
const SIDE_RATE: u64 = 100_000_000;

/// The device at an end of a cable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Place {
    /// Index in [`Layout::hosts`].
    Host(usize),
    /// Index in [`Layout::switches`].
    Switch(usize),
}

/// A host of the emulated network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Host {
    pub(super) name: String,
    pub(super) address: Ipv4Addr,
    pub(super) broker: bool,
}

/// A cable. Each end receives what the other end sends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Cable {
    pub(super) ends: [Place; 2],
    /// Names of the network devices at the ends: `eth0`, `eth1`, ... on a host; `p0`, `p1`, ... on
    /// switches, unique in the whole network.
    pub(super) devices: [String; 2],
    /// Rates at which the ends send, bit/s.
    pub(super) rates: [u64; 2],
}

/// A step of a path: a cable, and the end that sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Step {
    pub(super) cable: usize,
    pub(super) from: usize,
}

/// The steps of a path from one host to another.
pub(super) type FlowPath = Vec<Step>;

/// A broker that a flow is published to, with the path to this broker.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Up {
    /// The broker's host.
    pub(super) broker: usize,
    /// Path from the publisher to the broker.
    pub(super) path: FlowPath,
}

/// A host at which arriving messages are captured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Destination {
    /// Index of the path among the flow's paths.
    pub(super) path: usize,
    pub(super) host: usize,
    /// Index of the host of the broker that the path crosses or ends at.
    pub(super) broker: usize,
    /// Path from the broker to the subscriber; `None` if the path ends at the broker.
    pub(super) down: Option<FlowPath>,
    /// Sum of a frame's transmission times on the path, ns. Emulated links do not take these times.
    pub(super) serialization: u64,
}

/// A flow with its publisher, brokers and destinations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Publication {
    /// Index in [`Network::flows`].
    pub(super) flow: usize,
    pub(super) publisher: usize,
    /// The brokers that the flow is published to, at least one, in the order of the flow's paths:
    /// one broker over TCP, several as a multicast group.
    pub(super) ups: Vec<Up>,
    /// Priority level of the flow's packets, 0 to 7; 7 is served first.
    pub(super) level: u8,
    /// Bytes of a frame on the wire, preamble and gap included.
    pub(super) wire_bytes: u64,
    pub(super) destinations: Vec<Destination>,
}

impl Publication {
    /// Whether the flow is published to a group of several brokers.
    pub(super) fn is_group(&self) -> bool {
        self.ups.len() > 1
    }
}

/// The hosts, switches, cables and publications of an emulated network.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Layout {
    pub(super) hosts: Vec<Host>,
    pub(super) switches: Vec<String>,
    pub(super) cables: Vec<Cable>,
    pub(super) publications: Vec<Publication>,
    devices: usize,
}

impl Layout {
    /// Derives the layout of a network.
    ///
    /// # Errors
    /// If the network has no flows, or contains what cannot be emulated: a host in the middle of a
    /// path, too many priorities, several brokers on one path, a tree that uses a cable in both
    /// directions, a message of several frames for several brokers.
    pub(super) fn new(network: &Network) -> Result<Self> {
        let topology = &network.topology;
        if network.flows.is_empty() {
            return Err(cannot("flows", "0", "declare at least one flow"));
        }
        let is_server = |link: LinkIndex| topology.links[link].rate == 0;
        let mut inner = BTreeSet::new();
        let mut outer = BTreeSet::new();
        for flow in &network.flows {
            for leaf in 0..flow.leaves.len() {
                let path = path(flow, leaf);
                for pair in path.windows(2) {
                    if !is_server(pair[0]) && !is_server(pair[1]) {
                        inner.insert(topology.links[pair[0]].to);
                    }
                }
                if let (Some(&first), Some(&last)) = (path.first(), path.last()) {
                    outer.extend([topology.links[first].from, topology.links[last].to]);
                }
            }
        }
        if let Some(&both) = inner.intersection(&outer).next() {
            return Err(cannot(
                "node",
                &topology.nodes[both].id,
                "some flow begins or ends at this node and another passes it; give the programs \
                 a host of their own behind it",
            ));
        }

        inner.extend(spare_switches(&topology.links, &inner, &outer));

        let mut layout = Self::default();
        // The nodes at the ends of a server are one host.
        let mut group: Vec<NodeIndex> = (0..topology.nodes.len()).collect();
        for link in topology.links.iter().filter(|link| link.rate == 0) {
            let (gone, stays) = (group[link.to], group[link.from]);
            group
                .iter_mut()
                .filter(|of| **of == gone)
                .for_each(|of| *of = stays);
        }
        let mut places: HashMap<NodeIndex, Place> = HashMap::new();
        for (node, &of) in group.iter().enumerate() {
            let name = &topology.nodes[node].id;
            let place = match places.get(&of) {
                Some(&place) => place,
                None if inner.contains(&node) => {
                    layout.switches.push(name.clone());
                    Place::Switch(layout.switches.len() - 1)
                }
                None => Place::Host(layout.add_host(name)?),
            };
            places.insert(of, place);
            places.insert(node, place);
        }
        let mut steps = HashMap::new();
        for (index, link) in topology.links.iter().enumerate() {
            if link.rate > 0 {
                steps.insert(
                    index,
                    layout.lay(link, [places[&link.from], places[&link.to]]),
                );
            }
        }
        for cable in &mut layout.cables {
            // A direction that the network does not declare gets the rate of the other one.
            let known = cable.rates[0].max(cable.rates[1]);
            cable
                .rates
                .iter_mut()
                .filter(|rate| **rate == 0)
                .for_each(|rate| *rate = known);
        }
        let levels = levels(network)?;
        for (index, flow) in network.flows.iter().enumerate() {
            let level = levels[&flow.priority];
            let publication = layout.publication(network, index, level, &places, &steps)?;
            for up in &publication.ups {
                layout.hosts[up.broker].broker = true;
            }
            layout.publications.push(publication);
        }
        Ok(layout)
    }

    fn publication(
        &self,
        network: &Network,
        index: usize,
        level: u8,
        places: &HashMap<NodeIndex, Place>,
        steps: &HashMap<LinkIndex, Step>,
    ) -> Result<Publication> {
        let flow = &network.flows[index];
        let links = &network.topology.links;
        let host = |node: NodeIndex| match places[&node] {
            Place::Host(host) => Ok(host),
            Place::Switch(_) => Err(cannot(
                "flow",
                &flow.id,
                "a switch is at an end of it; let it begin and end at hosts",
            )),
        };
        let mut publication: Option<Publication> = None;
        for leaf in 0..flow.leaves.len() {
            let path = path(flow, leaf);
            let rated = |part: &[LinkIndex]| -> FlowPath {
                let rated = part.iter().filter(|link| links[**link].rate > 0);
                rated.map(|link| steps[link]).collect()
            };
            let (Some(&first), Some(&last)) = (path.first(), path.last()) else {
                continue;
            };
            let servers: Vec<usize> = (0..path.len())
                .filter(|at| links[path[*at]].rate == 0)
                .collect();
            let together = servers.windows(2).all(|pair| pair[0] + 1 == pair[1]);
            if !together {
                return Err(cannot(
                    "flow",
                    &flow.id,
                    "a path of it passes two brokers; emulate one of them",
                ));
            }
            let publisher = host(links[first].from)?;
            let end = host(links[last].to)?;
            let serialization = serialization(flow, leaf, links);
            let (broker, up, down) = match (servers.first(), servers.last()) {
                (Some(&begin), Some(&after)) => {
                    let down = rated(&path[after + 1..]);
                    let broker = host(links[path[begin]].from)?;
                    let down = (!down.is_empty()).then_some(down);
                    (broker, rated(&path[..begin]), down)
                }
                _ => (end, rated(&path), None),
            };
            if publisher == broker || up.is_empty() {
                return Err(cannot(
                    "flow",
                    &flow.id,
                    "it begins at its broker; give the publisher a host of its own",
                ));
            }
            let publication = publication.get_or_insert_with(|| Publication {
                flow: index,
                publisher,
                ups: Vec::new(),
                level,
                wire_bytes: wire_bytes(flow, links),
                destinations: Vec::new(),
            });
            if !publication.ups.iter().any(|up| up.broker == broker) {
                publication.ups.push(Up { broker, path: up });
            }
            publication.destinations.push(Destination {
                path: leaf,
                host: end,
                broker,
                down,
                serialization,
            });
        }
        let publication = publication.ok_or_else(|| cannot("flow", &flow.id, "it has no path"))?;
        if publication.is_group() {
            check_group(flow, &publication.ups)?;
        }
        Ok(publication)
    }

    fn add_host(&mut self, name: &str) -> Result<usize> {
        // 10.0.1.1, 10.0.1.2, ... 10.0.1.250, 10.0.2.1, ...
        let index = self.hosts.len();
        let [third, fourth] = [index / 250 + 1, index % 250 + 1];
        let third = u8::try_from(third)
            .map_err(|_| cannot("hosts", &index.to_string(), "emulate fewer hosts"))?;
        self.hosts.push(Host {
            name: name.to_owned(),
            address: Ipv4Addr::new(10, 0, third, fourth as u8),
            broker: false,
        });
        Ok(index)
    }

    /// Adds a host that the network does not declare, with a cable to a switch.
    pub(super) fn attach_host(&mut self, name: &str, switch: usize) -> Result<usize> {
        let host = self.add_host(name)?;
        self.add_cable([Place::Host(host), Place::Switch(switch)], [SIDE_RATE; 2]);
        Ok(host)
    }

    /// The step along a link: on the cable of the opposite direction if there is one, else on a new
    /// cable.
    fn lay(&mut self, link: &Link, [from, to]: [Place; 2]) -> Step {
        let free = self
            .cables
            .iter_mut()
            .enumerate()
            .find(|(_, cable)| cable.ends == [to, from] && cable.rates[1] == 0);
        if let Some((index, cable)) = free {
            cable.rates[1] = link.rate;
            return Step {
                cable: index,
                from: 1,
            };
        }
        let cable = self.add_cable([from, to], [link.rate, 0]);
        Step { cable, from: 0 }
    }

    fn add_cable(&mut self, ends: [Place; 2], rates: [u64; 2]) -> usize {
        let devices = ends.map(|end| match end {
            Place::Host(_) => {
                let there = self.cables.iter().filter(|cable| cable.ends.contains(&end));
                format!("eth{}", there.count())
            }
            Place::Switch(_) => {
                self.devices += 1;
                format!("p{}", self.devices - 1)
            }
        });
        self.cables.push(Cable {
            ends,
            devices,
            rates,
        });
        self.cables.len() - 1
    }

    /// The switch to which a host is connected.
    pub(super) fn switch_of(&self, host: usize) -> Option<usize> {
        self.cables.iter().find_map(|cable| match cable.ends {
            [Place::Host(at), Place::Switch(switch)] | [Place::Switch(switch), Place::Host(at)]
                if at == host =>
            {
                Some(switch)
            }
            _ => None,
        })
    }

    /// The switches to which publishers are connected, in the order of the switches, with the
    /// number of cables from the publisher to the broker.
    pub(super) fn entries(&self, broker: usize) -> Vec<(usize, usize)> {
        let mut entries = BTreeMap::new();
        for publication in &self.publications {
            let up = publication.ups.iter().find(|up| up.broker == broker);
            if let (Some(up), Some(switch)) = (up, self.switch_of(publication.publisher)) {
                entries.insert(switch, up.path.len());
            }
        }
        entries.into_iter().collect()
    }

    /// A shortest path between two hosts that crosses switches only; of several shortest paths, the
    /// one whose cables have the lowest indexes.
    pub(super) fn path(&self, from: usize, to: usize) -> Option<FlowPath> {
        let (start, goal) = (Place::Host(from), Place::Host(to));
        let mut before: HashMap<Place, Step> = HashMap::new();
        let mut queue = VecDeque::from([start]);
        while let Some(place) = queue.pop_front() {
            if place == goal {
                let mut path = Vec::new();
                let mut at = goal;
                while at != start {
                    let step = before[&at];
                    path.push(step);
                    at = self.cables[step.cable].ends[step.from];
                }
                path.reverse();
                return Some(path);
            }
            if matches!(place, Place::Host(_)) && place != start {
                continue;
            }
            for (cable, ends) in self.cables.iter().map(|cable| cable.ends).enumerate() {
                for end in [0, 1] {
                    let next = ends[1 - end];
                    if ends[end] == place && next != start && !before.contains_key(&next) {
                        before.insert(next, Step { cable, from: end });
                        queue.push_back(next);
                    }
                }
            }
        }
        None
    }

    /// The host or switch that sends on a step, and its device.
    pub(super) fn sender(&self, step: Step) -> (Place, &str) {
        let cable = &self.cables[step.cable];
        (cable.ends[step.from], &cable.devices[step.from])
    }

    /// The host or switch that receives on a step, and its device.
    pub(super) fn receiver(&self, step: Step) -> (Place, &str) {
        self.sender(reversed(step))
    }
}

/// The path in the opposite direction.
pub(super) fn back(path: &[Step]) -> FlowPath {
    path.iter().rev().copied().map(reversed).collect()
}

fn reversed(step: Step) -> Step {
    Step {
        from: 1 - step.from,
        ..step
    }
}

/// The links of a path, in the order from the publisher to the destination.
fn path(flow: &Flow, leaf: usize) -> Vec<LinkIndex> {
    let mut links: Vec<_> = hops(flow, leaf).map(|hop| flow.hops[hop].link).collect();
    links.reverse();
    links
}

/// The hops of a path, in the order from the destination to the publisher.
fn hops(flow: &Flow, leaf: usize) -> impl Iterator<Item = HopIndex> {
    std::iter::successors(flow.leaves.get(leaf).copied(), |hop| flow.hops[*hop].parent)
}

/// Sum of a frame's transmission times on a path, ns, without servers: these run for real.
fn serialization(flow: &Flow, leaf: usize, links: &[Link]) -> u64 {
    let hops = hops(flow, leaf).map(|hop| &flow.hops[hop]);
    hops.filter(|hop| links[hop.link].rate > 0)
        .fold(0, |sum, hop| sum.saturating_add(hop.cost))
}

/// Size of the flow's frames on the wire, bytes, computed from the transmission time on the first
/// link with a rate.
fn wire_bytes(flow: &Flow, links: &[Link]) -> u64 {
    let rated = flow.hops.iter().find(|hop| links[hop.link].rate > 0);
    rated.map_or(0, |hop| {
        let bits = u128::from(hop.cost) * u128::from(links[hop.link].rate) / 1_000_000_000;
        // Transmission times are rounded up to whole nanoseconds, so the result may be slightly
        // high.
        u64::try_from(bits / 8).unwrap_or(u64::MAX)
    })
}

/// Nodes that no flow crosses and that have links to at least two other nodes.
fn spare_switches(
    links: &[Link],
    inner: &BTreeSet<NodeIndex>,
    outer: &BTreeSet<NodeIndex>,
) -> BTreeSet<NodeIndex> {
    let mut others: BTreeMap<NodeIndex, BTreeSet<NodeIndex>> = BTreeMap::new();
    for link in links.iter().filter(|link| link.rate > 0) {
        others.entry(link.from).or_default().insert(link.to);
        others.entry(link.to).or_default().insert(link.from);
    }
    let is_spare = |node: &NodeIndex| !inner.contains(node) && !outer.contains(node);
    let spare = others
        .into_iter()
        .filter(|(node, others)| is_spare(node) && others.len() > 1);
    spare.map(|(node, _)| node).collect()
}

/// # Errors
/// If a flow to a group of brokers exceeds one datagram, or uses a cable in both directions.
fn check_group(flow: &Flow, ups: &[Up]) -> Result<()> {
    if flow.frames > 1 {
        return Err(cannot(
            "flow",
            &flow.id,
            "it goes to several brokers in one datagram, which is one frame; leave frames out",
        ));
    }
    let steps: BTreeSet<Step> = ups.iter().flat_map(|up| up.path.iter().copied()).collect();
    match steps.iter().any(|step| steps.contains(&reversed(*step))) {
        true => Err(cannot(
            "flow",
            &flow.id,
            "its paths use a cable in both directions; let them part before it",
        )),
        false => Ok(()),
    }
}

/// The level of each priority: the priority itself if all are below eight, else its rank.
fn levels(network: &Network) -> Result<BTreeMap<u64, u8>> {
    let priorities: BTreeSet<u64> = network.flows.iter().map(|flow| flow.priority).collect();
    if priorities.iter().all(|priority| *priority < LEVELS as u64) {
        return Ok(priorities.into_iter().map(|of| (of, of as u8)).collect());
    }
    // Level 0 is reserved for best-effort traffic.
    if priorities.len() >= LEVELS {
        return Err(cannot(
            "flows",
            &format!("{} priorities", priorities.len()),
            "a port has eight levels, and best effort takes one; use at most seven priorities",
        ));
    }
    let ranked = priorities.into_iter().rev().zip((0..LEVELS as u8).rev());
    Ok(ranked.collect())
}

fn cannot(field: &'static str, value: &str, remedy: &str) -> Error {
    Error::Config {
        field,
        value: value.to_owned(),
        remedy: remedy.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use punctual_sim::network::families::{self, Load};

    fn layout(document: &punctual_model::network::Document) -> Layout {
        Layout::new(&Network::new(document).unwrap()).unwrap()
    }

    #[test]
    fn fig2_has_nine_switches_and_one_broker() {
        let layout = layout(&families::fig2(Load::Low));
        assert_eq!(layout.switches.len(), 9);
        assert_eq!(layout.hosts.len(), 13);
        let brokers: Vec<_> = layout.hosts.iter().filter(|host| host.broker).collect();
        assert_eq!(brokers.len(), 1);
        assert_eq!(brokers[0].name, "h49");
        let first = &layout.publications[0];
        assert_eq!(
            (first.ups[0].path.len(), first.level, first.wire_bytes),
            (4, 7, 1538)
        );
        // Four transmission times of 123.04 us.
        assert_eq!(first.destinations[0].serialization, 492_160);
        assert_eq!(first.destinations[0].down, None);
        assert!(
            layout
                .cables
                .iter()
                .all(|cable| cable.rates == [100_000_000; 2])
        );
    }

    #[test]
    fn the_ends_of_a_server_are_one_host_with_one_cable() {
        let layout = layout(&families::factory_cell());
        assert_eq!(layout.switches, ["sw1", "sw2"]);
        let broker = layout.hosts.iter().position(|host| host.broker).unwrap();
        let cables = layout.cables.iter();
        let there = cables.filter(|cable| cable.ends.contains(&Place::Host(broker)));
        assert_eq!(there.count(), 1);
        let first = &layout.publications[0];
        assert_eq!(first.destinations.len(), 2);
        for destination in &first.destinations {
            let down = destination.down.as_ref().unwrap();
            assert_eq!(layout.sender(down[0]).0, Place::Host(broker));
            let last = layout.receiver(down[down.len() - 1]).0;
            assert_eq!(last, Place::Host(destination.host));
        }
    }

    #[test]
    fn fig15_has_eight_switches_and_its_flows_go_to_three_brokers() {
        let layout = layout(&families::fig15(Load::Low, false));
        let switches = ["s1", "s2", "s3", "s4", "s5", "s6", "s7", "s8"];
        assert_eq!(layout.switches, switches);
        let mut hosts: Vec<_> = layout.hosts.iter().map(|host| host.name.clone()).collect();
        hosts.sort_by_key(|name| name[1..].parse::<u8>().unwrap());
        let all: Vec<_> = (1..=15).map(|number| format!("h{number}")).collect();
        assert_eq!(hosts, all);
        let paths = layout.publications.iter().map(|of| of.destinations.len());
        assert_eq!(paths.sum::<usize>(), 120);
        for publication in &layout.publications {
            let brokers = publication.ups.iter();
            let brokers: Vec<_> = brokers.map(|up| &layout.hosts[up.broker]).collect();
            assert!(brokers.iter().all(|host| host.broker));
            let names: Vec<_> = brokers.iter().map(|host| host.name.as_str()).collect();
            assert_eq!(names, ["h5", "h10", "h15"]);
        }
    }

    #[test]
    fn a_tree_that_uses_a_cable_in_both_directions_is_refused() {
        let mut document = families::fig15(Load::Low, true);
        document.flows.truncate(1);
        // To the switch of the second edge network first.
        let way = [
            "h1>s1", "s1>s4", "s4>s2", "s2>s4", "s4>s5", "s5>s3", "s3>h15",
        ];
        document.flows[0].paths[2] = way.map(str::to_owned).to_vec();
        let network = Network::new(&document).unwrap();
        let error = Layout::new(&network).unwrap_err().to_string();
        assert!(error.contains("in both directions"), "{error}");
    }

    #[test]
    fn a_message_of_several_frames_is_for_one_broker() {
        let mut document = families::fig15(Load::Low, false);
        document.flows[3].frames = Some(2);
        let network = Network::new(&document).unwrap();
        let error = Layout::new(&network).unwrap_err().to_string();
        assert!(
            error.contains("alpha-a-03") && error.contains("one frame"),
            "{error}"
        );
    }

    #[test]
    fn ways_pass_switches_only_and_come_back() {
        let mut layout = layout(&families::line());
        let host = |layout: &Layout, name: &str| {
            layout
                .hosts
                .iter()
                .position(|host| host.name == name)
                .unwrap()
        };
        let path = layout
            .path(host(&layout, "motor"), host(&layout, "receiver"))
            .unwrap();
        assert_eq!(path, layout.publications[0].ups[0].path);
        assert_eq!(back(&back(&path)), path);
        let switch = layout.switch_of(host(&layout, "camera")).unwrap();
        assert_eq!(layout.switches[switch], "s2");
        let extra = layout.attach_host("extra", switch).unwrap();
        assert_eq!(
            layout.path(extra, host(&layout, "receiver")).unwrap().len(),
            2
        );
    }

    #[test]
    fn many_priorities_are_ranked_and_too_many_refused() {
        let network = |priorities: &[u64]| {
            let mut document = families::line();
            let flow = document.flows[0].clone();
            document.flows = priorities
                .iter()
                .enumerate()
                .map(|(index, &prio)| {
                    let mut flow = flow.clone();
                    flow.id = index.to_string();
                    flow.prio = prio;
                    flow
                })
                .collect();
            Network::new(&document).unwrap()
        };
        let ranked = levels(&network(&[1, 100, 50])).unwrap();
        assert_eq!(ranked, BTreeMap::from([(1, 5), (50, 6), (100, 7)]));
        assert_eq!(levels(&network(&[7, 0])).unwrap()[&0], 0);
        assert!(levels(&network(&[1, 2, 3, 4, 5, 6, 7, 8])).is_err());
    }

    #[test]
    fn an_end_in_the_middle_of_a_way_is_named() {
        let mut document = families::line();
        document.flows[0].paths[0].pop();
        let network = Network::new(&document).unwrap();
        let error = Layout::new(&network).unwrap_err().to_string();
        assert!(error.starts_with("node = s2: "), "{error}");
    }
}
