//! A network in virtual time: switches that carry out plans, with delays that a
//! seed decides, around a controller.
#![allow(dead_code)]

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use punctual_controller::plan::{Entry, Mac, Match, Packet};
use punctual_controller::{
    Change, Controller, Effect, End, Event, KnownHost, Notice, PortState, Settings, SwitchProtocol,
};
use punctual_model::srt::{Channel, Peer, Protocol, Request, State};
use punctual_model::{Nanos, Rng};
use punctual_sim::Queue;

/// Longest time that a control message takes, ns.
const CONTROL: u64 = 2_000_000;
/// Time of a hop, ns: longer than the control plane takes at best.
const HOP: u64 = 300_000;

/// A switch: what it was told, and nothing else.
#[derive(Debug, Default)]
struct Switch {
    entries: BTreeMap<Match, Entry>,
    connected: bool,
    ports: BTreeMap<u32, bool>,
}

/// Something under way.
#[derive(Debug)]
enum Due {
    Told(Event),
    Apply(u64, u64, Vec<Change>, u64),
    Frame(usize, End, Packet, usize),
}

/// A packet that was sent, and where its copies came.
#[derive(Debug)]
pub struct Sent {
    pub flow: String,
    pub at: u64,
    /// Ports by which copies left the network, as they were.
    pub copies: Vec<(End, Packet)>,
    /// Queues on the path, of all copies.
    pub queues: BTreeSet<u8>,
    /// Copies that no entry knew any more.
    pub lost: usize,
}

/// A network around a controller.
pub struct World {
    pub controller: Controller,
    pub settings: Settings,
    pub now: u64,
    switches: BTreeMap<u64, Switch>,
    /// Both directions.
    cables: BTreeMap<End, End>,
    pub hosts: Vec<KnownHost>,
    due: Queue<Due, u64>,
    /// When each switch has what was sent to it: messages keep their order.
    busy: BTreeMap<u64, u64>,
    /// When the controller has what each switch said about its ports: that keeps its order, too.
    said: BTreeMap<u64, u64>,
    /// Grows when a switch or the controller begins anew.
    life: BTreeMap<u64, u64>,
    pub rows: BTreeMap<(String, String), Channel>,
    pub requests: BTreeMap<(String, String), Request>,
    pub sent: Vec<Sent>,
    pub notices: Vec<Notice>,
    pub applied: usize,
    pub rng: Rng,
}

impl World {
    /// Switches in a ring with chords, hosts at each.
    pub fn new(seed: u64, switches: u64, hosts: u64) -> Self {
        Self::with(seed, switches, hosts, |_| {})
    }

    pub fn with(seed: u64, switches: u64, hosts: u64, change: impl Fn(&mut Settings)) -> Self {
        let mut rng = Rng::new(seed);
        let mut pairs: Vec<(u64, u64)> = (1..=switches).map(|s| (s, s % switches + 1)).collect();
        for _ in 0..switches / 3 {
            let (a, b) = (1 + rng.below(switches), 1 + rng.below(switches));
            if a != b && !pairs.contains(&(a, b)) && !pairs.contains(&(b, a)) {
                pairs.push((a, b));
            }
        }
        let mut ports: BTreeMap<u64, u32> = BTreeMap::new();
        let mut port = |datapath| {
            let number = ports.entry(datapath).or_default();
            *number += 1;
            End {
                datapath,
                port: *number,
            }
        };
        let mut known = Vec::new();
        for datapath in 1..=switches {
            for host in 0..hosts {
                let at = port(datapath);
                known.push(KnownHost {
                    name: format!("h{datapath}-{host}"),
                    mac: Some(Mac([2, 0, 0, 0, datapath as u8, host as u8])),
                    addresses: vec![[10, 0, datapath as u8, host as u8 + 1].into()],
                    at: Some(at),
                });
            }
        }
        let mut cables = BTreeMap::new();
        for (a, b) in pairs {
            let (a, b) = (port(a), port(b));
            cables.insert(a, b);
            cables.insert(b, a);
        }
        let mut settings = Settings {
            hosts: known.clone(),
            ..Settings::default()
        };
        change(&mut settings);
        let mut world = Self {
            controller: Controller::new(&settings),
            settings,
            now: 0,
            switches: BTreeMap::new(),
            cables,
            hosts: known,
            due: Queue::new(),
            busy: BTreeMap::new(),
            said: BTreeMap::new(),
            life: BTreeMap::new(),
            rows: BTreeMap::new(),
            requests: BTreeMap::new(),
            sent: Vec::new(),
            notices: Vec::new(),
            applied: 0,
            rng,
        };
        for (datapath, count) in ports {
            let ports = (1..=count).map(|number| (number, true)).collect();
            let switch = Switch {
                ports,
                ..Switch::default()
            };
            world.switches.insert(datapath, switch);
        }
        for datapath in 1..=switches {
            world.connect(datapath);
        }
        world.tell(Event::Synchronised);
        world.settle();
        world
    }

    fn port(&self, end: End) -> PortState {
        PortState {
            number: end.port,
            name: format!("s{}-eth{}", end.datapath, end.port),
            mac: Mac([6, 0, 0, 0, end.datapath as u8, end.port as u8]),
            up: self.switches[&end.datapath].ports[&end.port],
            rate_bps: 100_000_000,
        }
    }

    fn connect(&mut self, datapath: u64) {
        let numbers: Vec<u32> = self.switches[&datapath].ports.keys().copied().collect();
        let ports = numbers
            .iter()
            .map(|port| {
                self.port(End {
                    datapath,
                    port: *port,
                })
            })
            .collect();
        if let Some(switch) = self.switches.get_mut(&datapath) {
            switch.connected = true;
        }
        self.tell(Event::Connected {
            datapath,
            speaks: SwitchProtocol::Plans,
            meters: 0,
            ports,
        });
        for (from, to) in self.cables.clone() {
            if from.datapath == datapath || to.datapath == datapath {
                self.tell(Event::Link { from, to });
            }
        }
        for host in self.hosts.clone() {
            if let (Some(at), Some(mac)) = (host.at.filter(|at| at.datapath == datapath), host.mac)
            {
                self.tell(Event::Host {
                    mac,
                    address: Some(host.addresses[0]),
                    at,
                });
            }
        }
    }

    /// Tells the controller at once.
    pub fn tell(&mut self, event: Event) {
        let mut effects = Vec::new();
        self.controller.handle(event, Nanos(self.now), &mut effects);
        for effect in effects {
            match effect {
                Effect::Apply {
                    datapath,
                    step,
                    changes,
                } => {
                    let free = self.busy.get(&datapath).copied().unwrap_or(0);
                    let at = free.max(self.now + 1 + self.rng.below(CONTROL));
                    self.busy.insert(datapath, at);
                    let life = self.life.get(&datapath).copied().unwrap_or(0);
                    self.due
                        .schedule(at, Due::Apply(datapath, step, changes, life));
                }
                Effect::Write(channel) => {
                    let key = (channel.manager.clone(), channel.flow.clone());
                    self.rows.insert(key, channel);
                }
                Effect::Erase { manager, flow } => {
                    self.rows.remove(&(manager, flow));
                }
                Effect::Notice(notice) => self.notices.push(notice),
                Effect::Send { .. } => panic!("no switch speaks OpenFlow here"),
            }
        }
    }

    /// Lets time pass.
    pub fn run(&mut self, nanos: u64) {
        let end = self.now + nanos;
        loop {
            let tick = self.controller.next_tick().0.max(self.now + 1);
            let next = self.due.next_time().unwrap_or(u64::MAX);
            let at = tick.min(next);
            if at > end {
                self.now = end;
                return;
            }
            self.now = at;
            if next <= tick {
                if let Some((_, due)) = self.due.pop(at) {
                    self.happen(due);
                }
            } else {
                self.tell(Event::Tick);
            }
        }
    }

    /// Lets time pass until everything has been done.
    pub fn settle(&mut self) {
        for _ in 0..10_000 {
            self.run(5_000_000);
            if self.due.is_empty() && self.controller.is_settled() {
                return;
            }
        }
        panic!("it does not come to rest");
    }

    fn happen(&mut self, due: Due) {
        match due {
            Due::Told(event) => self.tell(event),
            Due::Apply(datapath, step, changes, life) => {
                if self.life.get(&datapath).copied().unwrap_or(0) != life {
                    return;
                }
                let Some(switch) = self.switches.get_mut(&datapath) else {
                    return;
                };
                for change in changes {
                    match change {
                        Change::Set(matching, entry) => {
                            self.applied += 1;
                            switch.entries.insert(matching, entry);
                        }
                        Change::Unset(matching) => {
                            self.applied += 1;
                            switch.entries.remove(&matching);
                        }
                        Change::Reset => switch.entries.clear(),
                        Change::Base => {}
                    }
                }
                let at = self.now + 1 + self.rng.below(CONTROL);
                let applied = Event::Applied {
                    datapath,
                    step,
                    problem: None,
                };
                self.due.schedule(at, Due::Told(applied));
            }
            Due::Frame(sent, at, packet, hops) => self.forward(sent, at, packet, hops),
        }
    }

    fn forward(&mut self, sent: usize, at: End, mut packet: Packet, hops: usize) {
        assert!(hops < 64, "{packet:?} goes in circles");
        let switch = &self.switches[&at.datapath];
        let matches = |matching: &Match| {
            let header = &matching.header;
            matching.in_port == at.port
                && (header.protocol, header.source, header.destination)
                    == (packet.protocol, packet.source, packet.destination)
                && header
                    .source_port
                    .is_none_or(|port| port == packet.source_port)
                && header
                    .destination_port
                    .is_none_or(|port| port == packet.destination_port)
                && matching.dscp.is_none_or(|dscp| dscp == packet.dscp)
        };
        let entries = switch
            .entries
            .iter()
            .filter(|(matching, _)| matches(matching));
        let entry = entries.max_by_key(|(matching, _)| matching.header.precision());
        let Some((_, entry)) = entry else {
            self.sent[sent].lost += 1;
            return;
        };
        let entry = entry.clone();
        let up = switch.ports.clone();
        if let Some(mark) = entry.mark {
            packet.dscp = mark.dscp;
        }
        for leg in entry.legs {
            let mut copy = packet;
            let (mut port, mut queue) = (leg.port, leg.queue);
            if !up.get(&port).copied().unwrap_or(false) {
                let Some(detour) = leg.detour else {
                    self.sent[sent].lost += 1;
                    continue;
                };
                (port, queue, copy.dscp) = (detour.port, detour.queue, detour.dscp);
            } else if let Some(last) = leg.hand_over {
                copy.dscp = last.dscp;
                if let Some(address) = last.address {
                    copy.destination = address.ip;
                    copy.destination_port = address.port.unwrap_or(copy.destination_port);
                }
            }
            self.sent[sent].queues.insert(queue);
            let out = End {
                datapath: at.datapath,
                port,
            };
            match self.cables.get(&out).copied() {
                Some(to) => {
                    let delay = HOP / 2 + self.rng.below(HOP);
                    self.due
                        .schedule(self.now + delay, Due::Frame(sent, to, copy, hops + 1));
                }
                None => self.sent[sent].copies.push((out, copy)),
            }
        }
    }

    pub fn host(&self, address: IpAddr) -> &KnownHost {
        let host = self
            .hosts
            .iter()
            .find(|host| host.addresses.contains(&address));
        host.expect("a host has that address")
    }

    /// A host sends a packet.
    pub fn send(&mut self, flow: &str, packet: Packet) {
        let at = self.host(packet.source).at.expect("hosts have places");
        let sent = Sent {
            flow: flow.to_owned(),
            at: self.now,
            copies: Vec::new(),
            queues: BTreeSet::new(),
            lost: 0,
        };
        self.sent.push(sent);
        self.due
            .schedule(self.now, Due::Frame(self.sent.len() - 1, at, packet, 0));
    }

    /// The packets of an admitted flow, one for each of its parts, and the
    /// receivers of each.
    pub fn packets(&self, key: &(String, String)) -> Vec<(Packet, Vec<Peer>)> {
        let (request, channel) = (&self.requests[key], &self.rows[key]);
        let packet = |from: Peer, to: Peer| Packet {
            protocol: to.protocol,
            source: from.address,
            source_port: from.port.unwrap_or(40_000),
            destination: to.address,
            destination_port: to.port.unwrap_or(40_001),
            dscp: 17,
        };
        if let Some(broker) = request.broker {
            let mut packets = vec![(packet(request.publisher, broker), vec![broker])];
            for subscriber in &request.subscribers {
                packets.push((packet(broker, *subscriber), vec![*subscriber]));
            }
            let same = |(packet, _): &(Packet, Vec<Peer>)| {
                self.host(packet.source).at == self.host(packet.destination).at
            };
            packets.retain(|each| !same(each));
            return packets;
        }
        match channel.group_address {
            Some(group) => {
                let to = Peer {
                    protocol: Protocol::Udp,
                    address: group,
                    port: None,
                };
                let all = request.subscribers.iter().copied();
                let own = self.host(request.publisher.address).at;
                let all: Vec<Peer> = all
                    .filter(|peer| self.host(peer.address).at != own)
                    .collect();
                // Nothing is to be done for those at the publisher's own port.
                match all.is_empty() {
                    true => Vec::new(),
                    false => vec![(packet(request.publisher, to), all)],
                }
            }
            None => Vec::new(),
        }
    }

    /// Sends a packet of every part of every admitted flow and checks that each
    /// comes once to each receiver, in one queue on all hops.
    pub fn check(&mut self, trace: &str) {
        let admitted = self
            .rows
            .iter()
            .filter(|(_, row)| row.state == State::Admitted);
        let admitted: Vec<_> = admitted.map(|(key, _)| key.clone()).collect();
        let mut expected = Vec::new();
        for key in admitted {
            assert!(
                self.requests.contains_key(&key),
                "{trace}: a row for nobody: {key:?}"
            );
            assert_eq!(
                self.rows[&key].generation, self.requests[&key].generation,
                "{trace}"
            );
            if self.requests[&key].broker.is_none() {
                let links: BTreeSet<&String> = self.rows[&key].paths.values().flatten().collect();
                let is_reversed = |link: &&String| {
                    let ends = link.split_once('>');
                    ends.is_some_and(|(from, to)| links.contains(&format!("{to}>{from}")))
                };
                let reversed = links.iter().find(|link| is_reversed(link));
                assert_eq!(
                    reversed, None,
                    "{trace}: {key:?} uses a cable in both directions"
                );
            }
            for (packet, receivers) in self.packets(&key) {
                self.send(&key.1, packet);
                expected.push((self.sent.len() - 1, key.clone(), receivers));
            }
        }
        self.run(20_000_000);
        for (sent, key, receivers) in expected {
            let sent = &self.sent[sent];
            let mut found: Vec<_> = sent
                .copies
                .iter()
                .map(|(end, packet)| (*end, packet.destination, packet.destination_port))
                .collect();
            let mut wanted: Vec<_> = receivers
                .iter()
                .map(|peer| {
                    (
                        self.host(peer.address).at.unwrap(),
                        peer.address,
                        peer.port.unwrap(),
                    )
                })
                .collect();
            found.sort_unstable();
            wanted.sort_unstable();
            assert_eq!(found, wanted, "{trace}: {key:?}");
            assert_eq!(sent.lost, 0, "{trace}: {key:?}");
            if !wanted.is_empty() {
                assert_eq!(sent.queues.len(), 1, "{trace}: {key:?}: {:?}", sent.queues);
                let class = self.requests[&key].effective_priority().max(1);
                assert!(sent.queues.first() >= Some(&class), "{trace}: {key:?}");
            }
        }
        self.sent.clear();
    }

    pub fn request(&mut self, request: Request) {
        let key = (request.manager.clone(), request.flow.clone());
        self.requests.insert(key, request.clone());
        self.tell(Event::Request(request));
    }

    pub fn withdraw(&mut self, key: &(String, String)) {
        self.requests.remove(key);
        self.tell(Event::Withdrawn {
            manager: key.0.clone(),
            flow: key.1.clone(),
        });
    }

    /// The cables, each once.
    pub fn cables(&self) -> Vec<(End, End)> {
        let once = self.cables.iter().filter(|(from, to)| from < to);
        once.map(|(from, to)| (*from, *to)).collect()
    }

    /// A cable fails, or works again; the switches see it at once, the
    /// controller is told later.
    pub fn set_cable(&mut self, cable: (End, End), up: bool) {
        for end in [cable.0, cable.1] {
            if let Some(switch) = self.switches.get_mut(&end.datapath) {
                switch.ports.insert(end.port, up);
            }
            let before = self.said.get(&end.datapath).copied().unwrap_or(0);
            let at = before.max(self.now + 1 + self.rng.below(CONTROL));
            self.said.insert(end.datapath, at);
            let port = self.port(end);
            self.due.schedule(
                at,
                Due::Told(Event::Port {
                    datapath: end.datapath,
                    port,
                }),
            );
        }
        if up {
            let at = self.now + CONTROL + 2;
            for (from, to) in [cable, (cable.1, cable.0)] {
                self.due.schedule(at, Due::Told(Event::Link { from, to }));
            }
        }
    }

    /// A switch begins anew: it knows nothing, and connects again.
    pub fn restart_switch(&mut self, datapath: u64) {
        *self.life.entry(datapath).or_default() += 1;
        if let Some(switch) = self.switches.get_mut(&datapath) {
            switch.entries.clear();
        }
        self.tell(Event::Disconnected { datapath });
        self.run(3_000_000);
        self.connect(datapath);
    }

    /// The controller begins anew: it is told the rows, and the switches keep
    /// what they have.
    pub fn restart_controller(&mut self) {
        for datapath in self.switches.keys() {
            *self.life.entry(*datapath).or_default() += 1;
        }
        self.due.retain(|due| matches!(due, Due::Frame(..)));
        self.controller = Controller::new(&self.settings);
        for datapath in self.switches.keys().copied().collect::<Vec<_>>() {
            self.connect(datapath);
        }
        for channel in self.rows.values().cloned().collect::<Vec<_>>() {
            self.tell(Event::Known(channel));
        }
        for request in self.requests.values().cloned().collect::<Vec<_>>() {
            self.tell(Event::Request(request));
        }
        self.tell(Event::Synchronised);
    }

    pub fn entries(&self) -> usize {
        self.switches
            .values()
            .map(|switch| switch.entries.len())
            .sum()
    }
}

/// A request of small messages, every 10 ms.
pub fn request(flow: &str, publisher: Peer, subscribers: &[Peer], broker: Option<Peer>) -> Request {
    Request {
        manager: "m".into(),
        flow: flow.into(),
        generation: 1,
        topic: flow.into(),
        qos: 0,
        publisher,
        subscribers: subscribers.iter().copied().collect(),
        broker,
        deadline_ns: 10_000_000,
        period_ns: 10_000_000,
        jitter_ns: 0,
        size: 100,
        wire_bytes: 200,
        frames: 1,
        priority: Some(5),
        bandwidth: None,
    }
}
