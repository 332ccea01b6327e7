//! Messages of the publishers, and their response times at each receiver.

use std::collections::{HashMap, VecDeque};

use punctual_broker::{ConnId, Output};
use punctual_codec::{Packet, QoS, Split, Version, split};
use punctual_model::Rng;
use punctual_model::network::{Flow, Hop, Network};
use punctual_model::wire::{Carriage, ETHERNET_MTU, Transport, frames};
use punctual_sim::network::{Behaviour, Engine, Layout, Observer, Release};
use punctual_sim::stage::{Arrival, Order, Service, serve};

use crate::plant::Plant;

/// Time between two patterns, ns: longer than the messages of one pattern are in the network.
const APART: u64 = 10_000_000_000;

/// An admitted flow.
pub(crate) struct Sent {
    pub(crate) id: String,
    pub(crate) priority: u64,
    pub(crate) period: u64,
    pub(crate) jitter: u64,
    /// Time to the broker without interference, ns.
    to_broker: u64,
    /// Time that the broker takes for the message, ns.
    work: u64,
    conn: ConnId,
    publisher: usize,
    pub(crate) receivers: Vec<Receiver>,
}

pub(crate) struct Receiver {
    pub(crate) client: String,
    conn: ConnId,
    /// Promised bound (`rt-bound`), with all admitted flows, ns.
    pub(crate) bound: u64,
    /// The largest response so far, ns.
    pub(crate) largest: u64,
}

/// The nominal release of each message, and its release delay, by flow, ns.
#[derive(Clone)]
pub(crate) struct Pattern {
    flows: Vec<Vec<(u64, u64)>>,
    /// Whether delays and remaining undeclared traffic are at their maximum, instead of random.
    extreme: bool,
}

impl Pattern {
    /// Random phases, jitters and gaps.
    pub(crate) fn random(flows: &[Sent], messages: usize, rng: &mut Rng) -> Self {
        let flow = |flow: &Sent, rng: &mut Rng| {
            let mut due = rng.below(flow.period);
            let mut messages: Vec<_> = (0..messages)
                .map(|_| {
                    let late = match rng.below(3) {
                        0 => 0,
                        1 => flow.jitter,
                        _ => rng.below(flow.jitter + 1),
                    };
                    let message = (due, late);
                    let gap = if rng.chance(10) {
                        rng.below(flow.period)
                    } else {
                        0
                    };
                    due += flow.period + gap;
                    message
                })
                .collect();
            in_order(&mut messages);
            messages
        };
        Self {
            flows: flows.iter().map(|each| flow(each, rng)).collect(),
            extreme: rng.chance(50),
        }
    }

    /// All flows meet at the broker's entrance: a message of the target flow, and of each other
    /// flow a delayed message that is followed by undelayed ones.
    pub(crate) fn critical(flows: &[Sent], target: usize, variant: usize, rng: &mut Rng) -> Self {
        let meeting = flows.iter().map(|flow| 2 * flow.jitter + flow.to_broker);
        let meeting = meeting.max().unwrap_or(0) + APART / 10;
        let urgency = flows[target].priority;
        let all: u64 = flows.iter().map(|flow| flow.work).sum();
        let flow = |index: usize, flow: &Sent, rng: &mut Rng| {
            let lower = flow.priority < urgency;
            let earlier = match variant {
                _ if index == target => 0,
                0 => u64::from(lower),
                1 => 0,
                2 if lower => 1 + rng.below(all),
                _ => rng.below(2),
            };
            let due = meeting - earlier - flow.to_broker - flow.jitter;
            let mut messages: Vec<_> = (0..4).map(|n| (due + n * flow.period, 0)).collect();
            messages[0].1 = flow.jitter;
            in_order(&mut messages);
            messages
        };
        let each = flows.iter().enumerate();
        Self {
            flows: each.map(|(index, each)| flow(index, each, rng)).collect(),
            extreme: true,
        }
    }

    /// A copy of the pattern in which one flow is slightly earlier or later, or has another jitter.
    pub(crate) fn changed(&self, flows: &[Sent], target: usize, rng: &mut Rng) -> Self {
        let mut changed = self.clone();
        let index = rng.below(flows.len() as u64) as usize;
        let all: u64 = flows.iter().map(|flow| flow.work).sum();
        let messages = &mut changed.flows[index];
        match rng.below(3) {
            0 if index != target => {
                let jitter = flows[index].jitter;
                for (_, late) in messages.iter_mut() {
                    let any = rng.below(jitter + 1);
                    *late = *rng.pick(&[0, jitter, jitter, any]);
                }
            }
            1 => {
                let by = 1 + rng.below(3);
                messages.iter_mut().for_each(|(due, _)| *due += by);
            }
            _ => {
                let by = rng.below(2 * all);
                let moved = |due: u64| (due + by).saturating_sub(all);
                messages.iter_mut().for_each(|(due, _)| *due = moved(*due));
            }
        }
        in_order(messages);
        changed.extreme ^= rng.chance(10);
        changed
    }
}

/// A publisher sends its messages in order: a release is not before an earlier one.
fn in_order(messages: &mut [(u64, u64)]) {
    let mut last = 0;
    for (due, late) in messages {
        last = last.max(*due + *late);
        *late = last - *due;
    }
}

/// Given releases; all other choices of the simulator are maximal or random.
struct Given<'a> {
    releases: Vec<VecDeque<Release>>,
    ranks: Vec<u32>,
    extreme: bool,
    rng: &'a mut Rng,
}

impl<'a> Given<'a> {
    fn new(releases: Vec<VecDeque<Release>>, extreme: bool, rng: &'a mut Rng) -> Self {
        Self {
            ranks: releases.iter().map(|_| rng.below(1 << 16) as u32).collect(),
            releases,
            extreme,
            rng,
        }
    }

    fn choose(&mut self, least: u64, most: u64) -> u64 {
        match self.extreme {
            true => most,
            false => self.rng.within(least..=most),
        }
    }
}

impl Behaviour for Given<'_> {
    fn release(&mut self, flow: usize) -> Option<Release> {
        self.releases[flow].pop_front()
    }

    fn delay(&mut self, _hop: usize, _message: u32, (least, most): (u64, u64)) -> u64 {
        self.choose(least, most)
    }

    fn residual(&mut self, _link: usize, best_effort: u64) -> u64 {
        self.choose(0, best_effort.saturating_sub(1))
    }

    fn rank(&self, flow: usize) -> u32 {
        self.ranks[flow]
    }

    fn rotation(&self, _flow: usize) -> u32 {
        0
    }
}

/// Records the response of each message at its last hop.
#[derive(Default)]
struct Notes(Vec<(usize, u32, u64)>);

impl Observer for Notes {
    fn responded(&mut self, hop: usize, message: u32, response: u64) {
        self.0.push((hop, message, response));
    }
}

/// A part of the network with its flows, which is simulated alone.
struct Part {
    layout: Layout,
    /// The flow that ends at each leaf hop.
    flow_at: HashMap<usize, usize>,
}

impl Part {
    fn new(network: &Network) -> Self {
        let layout = Layout::new(network);
        let flows = 0..network.flows.len();
        let flow_at = flows.map(|flow| (layout.leaf(flow, 0), flow)).collect();
        Self { layout, flow_at }
    }

    /// Flow, message and response of each message that arrives at the end of this part.
    fn run(&self, given: &mut Given<'_>) -> Vec<(usize, u32, u64)> {
        let mut notes = Notes::default();
        Engine::new(&self.layout).run(given, &mut notes);
        let notes = notes.0.into_iter();
        notes
            .map(|(hop, message, response)| (self.flow_at[&hop], message, response))
            .collect()
    }
}

/// Time that the broker takes for a step.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Steps {
    AsDeclared,
    AtMost,
}

/// A plant whose flows are sent in several patterns.
pub(crate) struct Traffic<'a> {
    plant: &'a mut Plant,
    order: Order,
    steps: Steps,
    flows: Vec<Sent>,
    up: Part,
    down: Part,
    /// For each flow, the index of its first flow behind the broker, where it has one flow for each
    /// receiver.
    down_from: Vec<usize>,
    begin: u64,
    responses: u64,
}

impl<'a> Traffic<'a> {
    pub(crate) fn new(plant: &'a mut Plant, order: Order, steps: Steps) -> Self {
        let office = plant.office.borrow();
        let network = office.manager.network().clone();
        let views = network
            .flows
            .iter()
            .map(|flow| office.manager.view(&flow.id));
        let views: Vec<_> = views.map(|view| view.unwrap()).collect();
        drop(office);
        let server = network.topology.links.iter();
        let server = server.clone().position(|link| link.rate == 0).unwrap();
        let empty = |network: &Network| Network {
            topology: network.topology.clone(),
            flows: Vec::new(),
        };
        let (mut up, mut down) = (empty(&network), empty(&network));
        let (mut flows, mut down_from) = (Vec::new(), Vec::new());
        for (flow, view) in network.flows.iter().zip(views) {
            let at_server = flow.hops.iter().position(|hop| hop.link == server).unwrap();
            let before = flow.hops[..at_server].to_vec();
            let to_broker = before.iter().map(|hop| hop.cost).sum::<u64>()
                + (flow.frames - 1) * before.iter().map(|hop| hop.cost).max().unwrap_or(0)
                + delays(&network, &before);
            up.flows.push(part_of(flow, before));
            down_from.push(down.flows.len());
            assert_eq!(flow.leaves.len(), view.receivers.len(), "a path for each");
            for leaf in &flow.leaves {
                down.flows
                    .push(part_of(flow, behind(flow, at_server, *leaf)));
            }
            let receivers = view.receivers.iter().map(|receiver| {
                let mut known = plant.receivers.iter();
                let (_, link) = known.find(|(id, _)| *id == receiver.client).unwrap();
                Receiver {
                    client: receiver.client.clone(),
                    conn: plant.world.conn(*link).unwrap().1,
                    bound: receiver.bound_ns,
                    largest: 0,
                }
            });
            let receivers: Vec<_> = receivers.collect();
            let mut known = plant.publishers.iter();
            let publisher = known.position(|known| known.id == view.client).unwrap();
            let link = plant.publishers[publisher].link;
            flows.push(Sent {
                id: flow.id.clone(),
                priority: flow.priority,
                period: view.period_ns,
                jitter: view.jitter_ns,
                to_broker,
                work: flow.hops[at_server].cost,
                conn: plant.world.conn(link).unwrap().1,
                publisher,
                receivers,
            });
        }
        let begin = plant.world.now().0 + APART;
        Self {
            plant,
            order,
            steps,
            flows,
            up: Part::new(&up),
            down: Part::new(&down),
            down_from,
            begin,
            responses: 0,
        }
    }

    pub(crate) fn flows(&self) -> &[Sent] {
        &self.flows
    }

    /// Number of messages that arrived at a receiver.
    pub(crate) fn responses(&self) -> u64 {
        self.responses
    }

    /// Sends all messages of a pattern. Returns for each flow its largest ratio of response to
    /// bound, in millionths.
    pub(crate) fn run(&mut self, pattern: &Pattern, rng: &mut Rng) -> Vec<u64> {
        let begin = self.begin;
        self.begin += 2 * APART;
        let due = |flow: usize, message: u32| begin + pattern.flows[flow][message as usize].0;
        let releases = pattern.flows.iter().map(|messages| {
            let release = |(due, late): &(u64, u64)| Release {
                nominal: begin + due,
                queued: begin + due + late,
            };
            messages.iter().map(release).collect()
        });
        let mut given = Given::new(releases.collect(), pattern.extreme, rng);
        let mut arrivals: Vec<Arrival> = Vec::new();
        for (flow, message, response) in self.up.run(&mut given) {
            let sent = &self.flows[flow];
            let publisher = &self.plant.publishers[sent.publisher];
            let mut beginning = (flow as u32).to_be_bytes().to_vec();
            beginning.extend(message.to_be_bytes());
            arrivals.push(Arrival {
                at: due(flow, message) + response,
                conn: sent.conn,
                packet: publisher.packet(QoS::AtMostOnce, &beginning),
            });
        }
        // Messages that arrive at the same instant are handled in random order.
        let ranks: Vec<u64> = arrivals.iter().map(|_| rng.below(1 << 16)).collect();
        let mut order: Vec<usize> = (0..arrivals.len()).collect();
        order.sort_by_key(|index| (arrivals[*index].at, ranks[*index]));
        let arrivals = order.iter().map(|index| arrivals[*index].clone()).collect();
        let service = self.plant.service;
        let least = |declared: u64| match self.steps {
            Steps::AsDeclared => declared,
            Steps::AtMost => 1,
        };
        let service = Service {
            receive: (least(service.receive_ns), service.receive_ns),
            send: (least(service.send_ns), service.send_ns),
            blocking: service.blocking_ns,
        };
        let shard = &mut self.plant.world.shards()[0];
        let extreme = pattern.extreme;
        let mut choose = |least: u64, most: u64| match extreme {
            true => most,
            false => rng.within(least..=most),
        };
        let served = serve(shard, service, self.order, arrivals, &mut choose);
        for output in &served.outputs {
            assert!(matches!(output, Output::Event(_)), "{output:?}");
        }
        let mut releases = vec![VecDeque::new(); self.down.flow_at.len()];
        for departure in &served.departures {
            let (flow, message) = read(&departure.packet);
            let sent = &self.flows[flow];
            let mut receivers = sent.receivers.iter();
            let receiver = receivers.position(|to| to.conn == departure.conn);
            let receiver = receiver.expect("it goes to who is promised it");
            releases[self.down_from[flow] + receiver].push_back(Release {
                nominal: due(flow, message),
                queued: departure.at,
            });
        }
        for (flow, messages) in pattern.flows.iter().enumerate() {
            for receiver in 0..self.flows[flow].receivers.len() {
                let came = releases[self.down_from[flow] + receiver].len();
                assert_eq!(came, messages.len(), "{}", self.flows[flow].id);
            }
        }
        let mut given = Given::new(releases, pattern.extreme, rng);
        let mut fullest = vec![0; self.flows.len()];
        for (number, _, response) in self.down.run(&mut given) {
            let flow = self.down_from.partition_point(|from| *from <= number) - 1;
            let receiver = &mut self.flows[flow].receivers[number - self.down_from[flow]];
            receiver.largest = receiver.largest.max(response);
            fullest[flow] = fullest[flow].max(response.saturating_mul(1_000_000) / receiver.bound);
            self.responses += 1;
        }
        fullest
    }

    /// No message was policed, and no packet is longer than was admitted.
    pub(crate) fn check(&mut self) {
        let network = self.plant.office.borrow().manager.network().clone();
        for (sent, flow) in self.flows.iter().zip(&network.flows) {
            let publisher = &self.plant.publishers[sent.publisher];
            let shard = &self.plant.world.shards()[0];
            let seen = shard.flow(&publisher.id, &publisher.topic).unwrap();
            assert_eq!(seen.violations, 0, "{}", sent.id);
            let packet = publisher.packet(QoS::AtMostOnce, &[0; 8]).len() as u64;
            let carriage = Carriage {
                transport: Transport::Tcp,
                ipv6: false,
                mtu: ETHERNET_MTU,
            };
            assert!(frames(packet, carriage).count <= flow.frames, "{}", sent.id);
        }
    }
}

/// Flow and message number from the payload of a PUBLISH that [`Traffic`] sent.
fn read(packet: &[u8]) -> (usize, u32) {
    let Ok(Split::Frame(frame)) = split(packet, u32::MAX) else {
        panic!("half a packet was sent");
    };
    let Ok(Packet::Publish(publish)) = Packet::decode(frame, Version::V5) else {
        panic!("no PUBLISH was sent");
    };
    let number = |at: usize| u32::from_be_bytes(publish.payload[at..at + 4].try_into().unwrap());
    (number(0) as usize, number(4))
}

/// A copy of the flow with these hops only, in sequence.
fn part_of(flow: &Flow, hops: Vec<Hop>) -> Flow {
    Flow {
        leaves: vec![hops.len() - 1],
        hops,
        fanout: None,
        ..flow.clone()
    }
}

/// The hops behind a server up to a leaf.
fn behind(flow: &Flow, server: usize, leaf: usize) -> Vec<Hop> {
    let parent = |hop: &usize| flow.hops[*hop].parent;
    let path = std::iter::successors(Some(leaf), parent);
    let mut path: Vec<_> = path.take_while(|hop| *hop != server).collect();
    path.reverse();
    let hop = |(place, hop): (usize, &usize)| Hop {
        parent: place.checked_sub(1),
        ..flow.hops[*hop].clone()
    };
    path.iter().enumerate().map(hop).collect()
}

/// Sum of the maximum delays between hops, ns.
fn delays(network: &Network, hops: &[Hop]) -> u64 {
    let links = &network.topology.links;
    let between = hops.iter().skip(1);
    between
        .map(|hop| network.topology.nodes[links[hop.link].from].sd_max)
        .sum()
}
