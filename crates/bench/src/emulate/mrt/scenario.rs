//! The scenario of Fig. 15: the network with the trees that this project's routing computes, and
//! the traffic of each of the three compared systems. Pure.

use std::collections::BTreeMap;

use clap::ValueEnum;
use punctual_analysis::printed::{self, Floor};
use punctual_analysis::{
    PathBounds, analyze, link_loads, rendezvous_point, shortest_paths, without_loops,
};
use punctual_model::network::{Document, FlowEntry, Network, NodeIndex};
use punctual_model::srt::Protocol;
use punctual_sim::network::families::{self, Load};
use serde::Serialize;

use super::super::background::{Background, FULL_FRAME, Kind as Traffic};
use super::super::flows::Stream;
use super::super::layout::{Layout, Place, Publication, Up};
use super::super::load::{Endpoint, Publisher, RelaySpec, Subscriber, topic};
use super::super::papers::checked;
use super::super::tree::Trees;
use super::super::{background::Generator, broker};
use punctual_measure::{Error, Result};

/// Hosts of the brokers, of the subscribers and of the publishers of plain MQTT, by edge network.
pub(super) const BROKERS: [&str; 3] = ["h5", "h10", "h15"];
const SUBSCRIBERS: [&str; 3] = ["h4", "h9", "h14"];
const PLAIN: [&str; 3] = ["h3", "h8", "h13"];

/// Undeclared traffic of h3, h8 and h13, one kind each, to every broker's host, bit/s.
const UNDECLARED: [(Traffic, u64); 3] = [
    (Traffic::Bulk, 10_000_000),
    (Traffic::Media, 6_000_000),
    (Traffic::Files, 4_000_000),
];

/// Shortest and longest period of a publisher, and its release jitter, ns.
const PERIODS: [u64; 2] = [15_000_000, 20_000_000];
const JITTER: u64 = 400_000;

/// Priority level of DM-MQTT's traffic with reserved bandwidth.
const RESERVED_LEVEL: u8 = 4;

/// Greatest utilisation of a link after scaling the periods.
const MOST_LOADED: f64 = 0.9;

/// Factor by which periods grow in each further step, and the greatest number of steps.
const STEP: f64 = 1.1;
const MOST_STEPS: u32 = 40;

/// QoS of all publications, as in the paper.
const QOS: u8 = 1;

/// A compared system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Series {
    /// One TCP publication for each broker, with all packets marked alike
    Mqtt,
    /// One multicast group for the brokers of other edge networks, in one class with reserved
    /// bandwidth between switches; TCP to the publisher's own broker
    DmMqtt,
    /// A multicast group with strict priorities
    MrtMqtt,
}

impl Series {
    pub(super) const ALL: [Self; 3] = [Self::Mqtt, Self::DmMqtt, Self::MrtMqtt];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Mqtt => "mqtt",
            Self::DmMqtt => "dm-mqtt",
            Self::MrtMqtt => "mrt-mqtt",
        }
    }
}

/// How MRT-MQTT reaches the broker in the publisher's own edge network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(super) enum OwnEdge {
    /// As a member of the group: the publisher sends one packet
    Group,
    /// Over TCP with priority, as in the paper: the publisher sends two packets
    Tcp,
}

/// What subscribers subscribe to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Subscribed {
    /// The topics of the publishers without requirements in their edge network
    Plain,
    /// All topics, as in the paper
    All,
}

/// A combination of parameters that is run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Setting {
    pub(super) load: Load,
    /// All edge networks publish; otherwise only A does.
    pub(super) all_publish: bool,
    pub(super) own_edge: OwnEdge,
    /// Periods and deadlines are scaled by a common factor, until no link's utilisation exceeds
    /// [`MOST_LOADED`] and no bound exceeds its deadline.
    pub(super) scaled: bool,
}

impl Setting {
    pub(super) fn name(self) -> String {
        let scaled = if self.scaled { ", periods scaled" } else { "" };
        let who = if self.all_publish { "A, B and C" } else { "A" };
        format!("{}, {who} publishing{scaled}", self.load.name())
    }
}

/// Bounds, or results of formulas, by flow and path, ns.
type PerPath = Vec<Vec<Option<u64>>>;

/// A setting with its network and bounds, computed before the run.
pub(super) struct Scenario {
    pub(super) setting: Setting,
    pub(super) network: Network,
    /// Factor by which periods and deadlines were scaled.
    pub(super) scale: f64,
    pub(super) bounds: Vec<Vec<PathBounds>>,
    /// The network with the flows that MRT-MQTT sends: with own-edge TCP, two for each flow.
    pub(super) declared: Network,
    document: Document,
}

/// Results of the paper's formulas: those of RT-MQTT inside the own edge network, Algorithms 3 and
/// 4 beyond it.
pub(super) struct Printed {
    pub(super) holistic: PerPath,
    pub(super) trajectory: PerPath,
}

impl Scenario {
    pub(super) fn new(setting: Setting) -> Result<Self> {
        let mut document = families::fig15(setting.load, setting.all_publish);
        route(&mut document)?;
        let plain = Self::of(setting, document.clone(), 1.0)?;
        if !setting.scaled {
            return Ok(plain);
        }
        let mut factor = (plain.most_loaded() / MOST_LOADED).max(1.0);
        for _ in 0..MOST_STEPS {
            let scaled = Self::of(setting, stretch(&document, factor), factor)?;
            if scaled.is_in_time() {
                return Ok(scaled);
            }
            factor *= STEP;
        }
        Err(Error::Config {
            field: "--scale-periods",
            value: setting.name(),
            remedy: format!("does not help, even by a factor of {factor:.0}"),
        })
    }

    fn of(setting: Setting, document: Document, scale: f64) -> Result<Self> {
        let name = setting.name();
        let network = checked(&name, &document)?;
        let declared = match setting.own_edge {
            OwnEdge::Group => network.clone(),
            OwnEdge::Tcp => checked(&name, &apart(&document))?,
        };
        let analysed = analyze(&declared).flows;
        let bounds = match setting.own_edge {
            OwnEdge::Group => analysed,
            // The path to the own broker is a flow after the group's flow; results list it first.
            OwnEdge::Tcp => {
                let pairs = analysed.chunks(2);
                let both = pairs.map(|pair| pair.iter().rev().flatten().copied().collect());
                both.collect()
            }
        };
        Ok(Self {
            setting,
            network,
            scale,
            bounds,
            declared,
            document,
        })
    }

    /// Results of the paper's formulas for each flow and path, ns.
    pub(super) fn printed(&self) -> Result<Printed> {
        let [own, others] = [true, false].map(|own| part(&self.document, own));
        let name = self.setting.name();
        let (own, others) = (checked(&name, &own)?, checked(&name, &others)?);
        let joined = |own: PerPath, others: PerPath| -> PerPath {
            let both = own.into_iter().zip(others);
            both.map(|(own, others)| own.into_iter().chain(others).collect())
                .collect()
        };
        Ok(Printed {
            holistic: joined(printed::holistic(&own), printed::mrt_holistic(&others)),
            trajectory: joined(
                printed::trajectory(&own, Floor::AsPrinted),
                printed::mrt_trajectory(&others, Floor::AsPrinted),
            ),
        })
    }

    /// Utilisation, 0 to 1, of the most loaded link with the flows as MRT-MQTT sends them.
    pub(super) fn most_loaded(&self) -> f64 {
        let loads = link_loads(&self.declared);
        let shares = loads.iter().map(|load| load.percent() / 100.0);
        shares.fold(0.0, f64::max)
    }

    /// Whether every path has a bound that is within its deadline.
    fn is_in_time(&self) -> bool {
        let flows = self.network.flows.iter().zip(&self.bounds);
        let mut each = flows.flat_map(|(flow, paths)| paths.iter().map(move |path| (flow, path)));
        each.all(|(flow, path)| path.best.is_some_and(|bound| bound <= flow.deadline))
    }

    /// Utilisation, 0 to 1, and name of the link that unicast loads most. Unicast sends the flow's
    /// frames once for each broker behind a link; undeclared traffic is not included.
    pub(super) fn unicast_load(&self) -> (f64, String) {
        let topology = &self.network.topology;
        let mut shares = vec![0.0; topology.links.len()];
        for flow in &self.network.flows {
            for leaf in &flow.leaves {
                let hops = std::iter::successors(Some(*leaf), |hop| flow.hops[*hop].parent);
                for hop in hops.map(|hop| &flow.hops[hop]) {
                    shares[hop.link] += hop.cost as f64 / flow.period as f64;
                }
            }
        }
        let most = (0..shares.len()).max_by(|a, b| shares[*a].total_cmp(&shares[*b]));
        most.map_or((0.0, String::new()), |link| {
            (shares[link], topology.links[link].id.clone())
        })
    }
}

/// Gives each flow the tree that this project's routing computes: the shortest path to the
/// rendezvous point, and shortest paths from there to every receiver. The tree uses no cable in
/// both directions.
fn route(document: &mut Document) -> Result<()> {
    let network = checked("fig15", document)?;
    let topology = &network.topology;
    let node = |id: &str| topology.nodes.iter().position(|node| node.id == id);
    let switches: Vec<NodeIndex> = (0..topology.nodes.len())
        .filter(|index| topology.nodes[*index].id.starts_with('s'))
        .collect();
    let receivers: Vec<NodeIndex> = BROKERS.into_iter().filter_map(node).collect();
    for (entry, flow) in document.flows.iter_mut().zip(&network.flows) {
        let own: Vec<usize> = flow
            .leaves
            .iter()
            .map(|leaf| topology.links[flow.hops[*leaf].link].to)
            .collect();
        let first = flow.hops.iter().find(|hop| hop.parent.is_none());
        let source = first.map_or(0, |hop| topology.links[hop.link].from);
        let unreachable = || Error::Config {
            field: "flow",
            value: flow.id.clone(),
            remedy: "has no tree to its brokers".to_owned(),
        };
        let pathless = FlowEntry {
            paths: Vec::new(),
            ..entry.clone()
        };
        let (point, _) = rendezvous_point(topology, &pathless, source, &switches, &receivers)
            .ok_or_else(unreachable)?;
        let way = |from, to| {
            let paths = shortest_paths(topology, &pathless, from, to, 1);
            paths.into_iter().next().map(|path| path.links)
        };
        let trunk = way(source, point).ok_or_else(unreachable)?;
        entry.paths = own
            .iter()
            .map(|receiver| {
                let branch = way(point, *receiver).ok_or_else(unreachable)?;
                let path = without_loops(topology, &[trunk.clone(), branch].concat());
                Ok(path
                    .iter()
                    .map(|link| topology.links[*link].id.clone())
                    .collect())
            })
            .collect::<Result<_>>()?;
    }
    Ok(())
}

/// A copy of the network with periods and deadlines multiplied by `factor`.
fn stretch(document: &Document, factor: f64) -> Document {
    let longer = |ns: u64| (ns as f64 * factor).ceil() as u64;
    let mut document = document.clone();
    for flow in &mut document.flows {
        flow.period_ns = longer(flow.period_ns);
        flow.deadline_ns = flow.deadline_ns.map(longer);
    }
    document
}

/// The flows with only their first path, which leads to the broker of their own edge network, or
/// with all other paths.
fn part(document: &Document, own: bool) -> Document {
    let mut document = document.clone();
    for flow in &mut document.flows {
        match own {
            true => flow.paths.truncate(1),
            false => drop(flow.paths.remove(0)),
        }
    }
    document
}

/// Splits each flow in two: its paths to other edge networks, then its path to the own broker.
fn apart(document: &Document) -> Document {
    let [own, others] = [true, false].map(|own| part(document, own).flows);
    let mut document = document.clone();
    document.flows.clear();
    for (mut own, other) in own.into_iter().zip(others) {
        own.id.push_str("-own");
        document.flows.extend([other, own]);
    }
    document
}

/// The undeclared traffic of the MRT-MQTT paper, if the layout has its hosts.
pub(crate) fn background(layout: &Layout) -> Option<Vec<Background>> {
    let is_there = |name: &str| layout.hosts.iter().any(|host| host.name == name);
    if !PLAIN.into_iter().chain(BROKERS).all(is_there) {
        return None;
    }
    let from = UNDECLARED.into_iter().zip(PLAIN);
    let all = from.flat_map(|((kind, rate), from)| {
        BROKERS.map(|to| Background {
            kind,
            from: from.to_owned(),
            to: to.to_owned(),
            rate,
            // The paper limits the rate of the sender.
            limited: true,
            tool: None,
        })
    });
    Some(all.collect())
}

/// The clients of a case, and the streams and trees that the network has to carry.
pub(super) struct Cast {
    pub(super) publishers: Vec<Publisher>,
    pub(super) subscribers: Vec<Subscriber>,
    pub(super) relays: Vec<RelaySpec>,
    pub(super) streams: Vec<Stream>,
    pub(super) trees: Trees,
    /// Bandwidth reserved at ports, by switch and device, bit/s.
    pub(super) reserved: BTreeMap<(usize, String), u64>,
}

impl Cast {
    /// The clients for a system: `plain` publishers without requirements on each of their hosts,
    /// and subscribers of what `subscribed` says.
    pub(super) fn new(
        scenario: &Scenario,
        layout: &Layout,
        series: Series,
        (plain, subscribed): (usize, Subscribed),
        generators: &[Generator],
    ) -> Result<Self> {
        let mut cast = Self {
            publishers: Vec::new(),
            subscribers: Vec::new(),
            relays: Vec::new(),
            streams: generators.iter().map(|of| of.stream.clone()).collect(),
            trees: Trees::default(),
            reserved: BTreeMap::new(),
        };
        for publication in &layout.publications {
            cast.publish(scenario, layout, series, publication);
        }
        let most = layout.publications.iter().map(|of| of.level).max();
        for index in 0..BROKERS.len() {
            let host = |names: [&str; 3]| host(layout, names[index]);
            let (broker, own, subscriber) = (host(BROKERS)?, host(PLAIN)?, host(SUBSCRIBERS)?);
            let mut filters = Vec::new();
            for number in 0..plain {
                let flow = scenario.network.flows.len() + index * plain + number;
                let endpoint = cast.connect(layout, own, &way(layout, own, broker)?, [0, 0]);
                let [shortest, longest] =
                    PERIODS.map(|period| (period as f64 * scenario.scale) as u64);
                let step = (longest - shortest) / (plain as u64 - 1).max(1);
                let name = format!("plain-{}-{number:02}", PLAIN[index]);
                filters.push(topic(&name));
                cast.publishers.push(Publisher {
                    flow: flow as u32,
                    name,
                    wire_bytes: FULL_FRAME,
                    frames: 1,
                    period: shortest + step * number as u64,
                    jitter: JITTER,
                    qos: QOS,
                    requirements: Vec::new(),
                    host: own,
                    endpoints: vec![endpoint],
                });
            }
            let level = match series {
                Series::MrtMqtt => most.unwrap_or(0),
                Series::Mqtt | Series::DmMqtt => 0,
            };
            let up = way(layout, subscriber, broker)?;
            let endpoint = cast.connect(layout, subscriber, &up, [0, level]);
            cast.subscribers.push(Subscriber {
                name: format!("subscriber-{}", SUBSCRIBERS[index]),
                filters: match subscribed {
                    Subscribed::Plain => filters,
                    Subscribed::All => vec!["#".to_owned()],
                },
                // Delays behind a broker are not measured, and acknowledgements would take CPU
                // time.
                qos: 0,
                endpoint,
            });
        }
        let members = cast.trees.members().into_iter();
        cast.relays = members.map(|host| RelaySpec { host, qos: QOS }).collect();
        Ok(cast)
    }

    /// Adds a TCP connection to a broker, with the priority levels of both directions.
    fn connect(&mut self, layout: &Layout, from: usize, up: &Up, levels: [u8; 2]) -> Endpoint {
        self.streams.push(Stream {
            from,
            to: up.broker,
            protocol: Protocol::Tcp,
            // All streams between two hosts have one level here, so switches do not match ports.
            ports: [0, broker::PORT],
            path: up.path.clone(),
            levels,
        });
        Endpoint {
            host: from,
            port: 0,
            broker: layout.hosts[up.broker].address,
            dscp: levels[0] << 3,
        }
    }

    fn publish(
        &mut self,
        scenario: &Scenario,
        layout: &Layout,
        series: Series,
        publication: &Publication,
    ) {
        let from = publication.publisher;
        let flow = &scenario.network.flows[publication.flow];
        let at = layout.switch_of(from);
        let is_own = |up: &&Up| layout.switch_of(up.broker) == at;
        let (own, others): (Vec<Up>, Vec<Up>) =
            publication.ups.iter().cloned().partition(|up| is_own(&up));
        let level = publication.level;
        let (by_tcp, by_group, tcp_level, levels) = match (series, scenario.setting.own_edge) {
            (Series::Mqtt, _) => (publication.ups.clone(), Vec::new(), 0, [0, 0]),
            (Series::DmMqtt, _) => (own, others, 0, [0, RESERVED_LEVEL]),
            (Series::MrtMqtt, OwnEdge::Tcp) => (own, others, level, [level, level]),
            (Series::MrtMqtt, OwnEdge::Group) => {
                (Vec::new(), publication.ups.clone(), level, [level, level])
            }
        };
        let mut endpoints: Vec<_> = by_tcp
            .iter()
            .map(|up| self.connect(layout, from, up, [tcp_level, 0]))
            .collect();
        if !by_group.is_empty() {
            endpoints.push(Endpoint {
                host: from,
                port: 0,
                broker: self.trees.group(from, &by_group, levels),
                dscp: levels[0] << 3,
            });
        }
        if series == Series::DmMqtt {
            self.reserve(layout, &by_group, publication.wire_bytes, flow.period);
        }
        let publisher = Publisher::of(publication, flow, QOS);
        self.publishers.push(Publisher {
            endpoints,
            ..publisher
        });
    }

    /// Adds a flow's rate to the bandwidth reserved between switches.
    fn reserve(&mut self, layout: &Layout, ups: &[Up], wire_bytes: u64, period: u64) {
        let mut steps: Vec<_> = ups.iter().flat_map(|up| up.path.iter().copied()).collect();
        steps.sort_unstable();
        steps.dedup();
        for step in steps {
            let (from, device) = layout.sender(step);
            let (to, _) = layout.receiver(step);
            if let (Place::Switch(switch), Place::Switch(_)) = (from, to) {
                let rate = self
                    .reserved
                    .entry((switch, device.to_owned()))
                    .or_default();
                *rate += (wire_bytes * 8 * 1_000_000_000).div_ceil(period);
            }
        }
    }

    /// `tc` commands for the ports with reserved bandwidth, by switch.
    pub(super) fn reservations(&self, layout: &Layout) -> BTreeMap<usize, String> {
        let mut texts: BTreeMap<usize, String> = BTreeMap::new();
        for cable in &layout.cables {
            for end in [0, 1] {
                let Place::Switch(switch) = cable.ends[end] else {
                    continue;
                };
                let device = &cable.devices[end];
                if let Some(rate) = self.reserved.get(&(switch, device.clone())) {
                    let text = punctual_southbound::linux::reserve(
                        device,
                        RESERVED_LEVEL,
                        *rate,
                        cable.rates[end],
                    );
                    texts.entry(switch).or_default().push_str(&text);
                }
            }
        }
        texts
    }
}

fn host(layout: &Layout, name: &str) -> Result<usize> {
    let found = layout.hosts.iter().position(|host| host.name == name);
    found.ok_or_else(|| Error::Config {
        field: "network",
        value: name.to_owned(),
        remedy: "is not a host of it".to_owned(),
    })
}

fn way(layout: &Layout, from: usize, broker: usize) -> Result<Up> {
    let path = layout.path(from, broker).ok_or_else(|| Error::Config {
        field: "network",
        value: layout.hosts[from].name.clone(),
        remedy: "has no way to its broker".to_owned(),
    })?;
    Ok(Up { broker, path })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn setting(load: Load, all_publish: bool) -> Setting {
        Setting {
            load,
            all_publish,
            own_edge: OwnEdge::Group,
            scaled: false,
        }
    }

    fn cast(scenario: &Scenario, series: Series) -> (Layout, Cast) {
        let layout = Layout::new(&scenario.network).unwrap();
        let cast = Cast::new(scenario, &layout, series, (20, Subscribed::Plain), &[]).unwrap();
        (layout, cast)
    }

    #[test]
    fn our_routing_finds_the_trees_of_the_paper() {
        for all_publish in [false, true] {
            let paper = families::fig15(Load::Low, all_publish);
            let mut routed = paper.clone();
            route(&mut routed).unwrap();
            for (routed, paper) in routed.flows.iter().zip(&paper.flows) {
                assert_eq!(routed.paths, paper.paths, "{}", paper.id);
            }
        }
    }

    #[test]
    fn each_system_sends_as_many_copies_as_it_says() {
        let scenario = Scenario::new(setting(Load::Low, false)).unwrap();
        let copies = |series| {
            let (_, cast) = cast(&scenario, series);
            let first = &cast.publishers[0].endpoints;
            let groups = first.iter().filter(|of| of.broker.is_multicast()).count();
            (first.len() - groups, groups, cast.relays.len())
        };
        assert_eq!(copies(Series::Mqtt), (3, 0, 0));
        assert_eq!(copies(Series::DmMqtt), (1, 1, 2));
        assert_eq!(copies(Series::MrtMqtt), (0, 1, 3));
    }

    #[test]
    fn every_edge_network_has_plain_publishers_and_a_subscriber() {
        let scenario = Scenario::new(setting(Load::Low, false)).unwrap();
        let (layout, cast) = cast(&scenario, Series::MrtMqtt);
        let plain = cast
            .publishers
            .iter()
            .filter(|of| of.name.starts_with("plain"));
        assert_eq!(plain.clone().count(), 60);
        assert!(plain.clone().all(|of| of.endpoints[0].dscp == 0));
        let flows: std::collections::BTreeSet<_> =
            cast.publishers.iter().map(|of| of.flow).collect();
        assert_eq!(flows.len(), 100);
        let hosts = cast.subscribers.iter();
        let hosts: Vec<_> = hosts
            .map(|of| layout.hosts[of.endpoint.host].name.as_str())
            .collect();
        assert_eq!(hosts, SUBSCRIBERS);
        let filters = &cast.subscribers[1].filters;
        assert_eq!(
            (filters.len(), filters[0].as_str()),
            (20, "flow/plain-h8-00")
        );
        let all = (20, Subscribed::All);
        let cast = Cast::new(&scenario, &layout, Series::MrtMqtt, all, &[]).unwrap();
        assert_eq!(cast.subscribers[1].filters, ["#"]);
        // Nine streams, which end at the brokers' hosts.
        let undeclared = background(&layout).unwrap();
        let rates: u64 = undeclared.iter().map(|of| of.rate).sum();
        assert_eq!((undeclared.len(), rates), (9, 60_000_000));
    }

    #[test]
    fn what_is_reserved_is_the_sum_of_the_rates_between_switches() {
        let scenario = Scenario::new(setting(Load::Low, false)).unwrap();
        let (layout, cast) = cast(&scenario, Series::DmMqtt);
        // s1>s4, s4>s2, s4>s5 and s5>s3, each with the total rate of forty flows.
        assert_eq!(cast.reserved.len(), 4);
        for rate in cast.reserved.values() {
            let share = *rate as f64 / 1e8;
            assert!((0.27..0.29).contains(&share), "{share}");
        }
        let commands = cast.reservations(&layout);
        assert_eq!(
            commands
                .values()
                .map(|of| of.lines().count())
                .sum::<usize>(),
            4
        );
        let (_, cast) = self::cast(&scenario, Series::MrtMqtt);
        assert!(cast.reserved.is_empty());
    }

    #[test]
    fn periods_are_stretched_until_links_have_room_and_bounds_keep_deadlines() {
        let mut all = setting(Load::Medium, true);
        let plain = Scenario::new(all).unwrap();
        assert!(plain.scale == 1.0 && plain.most_loaded() > 1.0);
        all.scaled = true;
        let scenario = Scenario::new(all).unwrap();
        assert!(scenario.scale > 1.8, "{}", scenario.scale);
        assert!(scenario.most_loaded() <= 0.9);
        assert!(scenario.is_in_time() && !plain.is_in_time());
    }

    #[test]
    fn the_papers_formulas_are_those_of_the_own_and_of_other_edge_networks() {
        let scenario = Scenario::new(setting(Load::Low, false)).unwrap();
        let Printed {
            holistic,
            trajectory,
        } = scenario.printed().unwrap();
        for all in [holistic, trajectory] {
            assert_eq!(all.len(), 40);
            for paths in all {
                assert!(paths[0] < paths[1] && paths[1] < paths[2], "{paths:?}");
            }
        }
    }

    #[test]
    fn over_tcp_the_own_broker_has_a_bound_of_its_own() {
        let mut setting = setting(Load::Low, false);
        let one = Scenario::new(setting).unwrap();
        setting.own_edge = OwnEdge::Tcp;
        let two = Scenario::new(setting).unwrap();
        assert_eq!(two.bounds.len(), one.bounds.len());
        for (one, two) in one.bounds.iter().zip(&two.bounds) {
            assert_eq!((one.len(), two.len()), (3, 3));
            // The nearest broker has the least bound; with two packets, one waits for the other.
            assert!(two[0].best < two[1].best && two[1].best < two[2].best);
            assert!(one[0].best < two[0].best);
        }
        // Eighty frames per mean period of 17.4 ms: unicast sends two copies of forty frames on
        // s1>s4.
        assert_eq!(one.declared.flows.len() * 2, two.declared.flows.len());
        let (most, link) = one.unicast_load();
        assert!(
            (0.55..0.58).contains(&most) && link == "s1>s4",
            "{most} {link}"
        );
    }
}
