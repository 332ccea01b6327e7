//! Real broker, endpoint and clients over a bad network, in virtual time.
//!
//! Datagrams are lost (30 %), doubled, delayed so that they overtake each
//! other, cut short and run together; strangers replay what they have seen
//! from addresses of their own and forge datagrams; clients change address
//! and vanish. What has to hold: QoS 2 arrives exactly once, QoS 1 at least
//! once, nothing is made up, nobody is disconnected who should not be, and
//! nothing is kept of who is gone. A failing seed is printed and can be
//! repeated with `PUNCTUAL_SEED`; `PUNCTUAL_SEEDS` sets how many are tried.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use punctual_broker::{Config, ConnId, ConnMeta, Directory, Flow, Nanos, Output, Shard};
use punctual_codec::{
    Ack, Connect, Packet, PacketType, Properties, Publish, QoS, ReasonCode, Split, Subscribe,
    SubscribeOptions, Version, split,
};
use punctual_model::Rng;
use punctual_sim::{Queue, are_seeds_chosen, seeds, seeds_from, take_pending};
use punctual_udp::{
    Client, ClientConfig, ClientState, Endpoint, EndpointConfig, Event, Header, Path, PeerId,
};

/// How bad the network is, in percent.
#[derive(Clone, Copy)]
struct Network {
    loss: u64,
    doubled: u64,
    cut: u64,
    merged: u64,
    hostile: bool,
    /// Largest part of the delay that changes.
    jitter: Duration,
}

const BAD: Network = Network {
    loss: 30,
    doubled: 10,
    cut: 3,
    merged: 3,
    hostile: true,
    jitter: Duration::from_millis(60),
};

const GOOD: Network = Network {
    loss: 0,
    doubled: 0,
    cut: 0,
    merged: 0,
    hostile: false,
    jitter: Duration::from_millis(1),
};

const ALL_QOS: [QoS; 3] = [QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce];

/// An MQTT client as simple as can be that still keeps every rule.
struct App {
    version: Version,
    udp: Client,
    address: SocketAddr,
    name: String,
    connected: bool,
    subscribed: bool,
    next_id: u16,
    /// Payloads to publish, last first.
    to_publish: Vec<(QoS, String)>,
    next_publish: Duration,
    /// Payload by identifier, and whether PUBREC has come.
    flying: BTreeMap<u16, (QoS, String, bool)>,
    done: BTreeSet<String>,
    unreleased: BTreeSet<u16>,
    received: HashMap<String, u32>,
    vanished: bool,
    next_ping: Duration,
}

const KEEP_ALIVE: Duration = Duration::from_secs(10);

impl App {
    fn new(n: usize, rng: &mut Rng, sealed: bool, messages: usize) -> Self {
        let version = match n % 3 {
            0 => Version::V311,
            _ => Version::V5,
        };
        let name = format!("client-{n}");
        let to_publish = (0..messages)
            .map(|m| (ALL_QOS[m % 3], format!("{name}/{m}")))
            .rev()
            .collect();
        let config = ClientConfig {
            sealed,
            ..ClientConfig::default()
        };
        Self {
            version,
            udp: Client::new(config, rng.any().to_be_bytes()),
            address: ([10, 0, 0, n as u8 + 1], 1000).into(),
            name,
            connected: false,
            subscribed: false,
            next_id: 1,
            to_publish,
            next_publish: Duration::ZERO,
            flying: BTreeMap::new(),
            done: BTreeSet::new(),
            unreleased: BTreeSet::new(),
            received: HashMap::new(),
            vanished: false,
            next_ping: Duration::MAX,
        }
    }

    fn send(&mut self, packet: &Packet<'_>, now: Duration) {
        let mut out = Vec::new();
        packet.encode(self.version, &mut out).unwrap();
        self.udp.send(&out, 2, now).unwrap();
        self.next_ping = now + KEEP_ALIVE / 2;
    }

    fn connect(&mut self, now: Duration) {
        let name = self.name.clone();
        self.send(
            &Packet::Connect(Connect {
                version: self.version,
                clean_start: true,
                keep_alive: KEEP_ALIVE.as_secs() as u16,
                client_id: &name,
                will: None,
                username: None,
                password: None,
                properties: Properties::EMPTY,
            }),
            now,
        );
        let options = SubscribeOptions {
            qos: QoS::ExactlyOnce,
            ..SubscribeOptions::default()
        };
        let mut out = Vec::new();
        let filters = [("messages", options)];
        let id = self.take_id();
        Subscribe::put(id, Properties::EMPTY, &filters, self.version, &mut out).unwrap();
        self.udp.send(&out, 2, now).unwrap();
    }

    fn take_id(&mut self) -> u16 {
        let id = self.next_id;
        self.next_id += 1;
        id
    }

    fn publish(&mut self, now: Duration) {
        let Some((qos, payload)) = self.to_publish.pop() else {
            return;
        };
        let packet_id = match qos {
            QoS::AtMostOnce => 0,
            _ => self.take_id(),
        };
        self.send(
            &Packet::Publish(Publish {
                dup: false,
                qos,
                retain: false,
                topic: "messages",
                packet_id,
                properties: Properties::EMPTY,
                payload: payload.as_bytes(),
            }),
            now,
        );
        if qos != QoS::AtMostOnce {
            self.flying.insert(packet_id, (qos, payload, false));
        }
    }

    /// Handles what came; anything illegal fails.
    fn handle(&mut self, now: Duration) {
        let input = self.udp.received().to_vec();
        self.udp.take_received(input.len());
        let mut rest = &input[..];
        while let Ok(Split::Frame(frame)) = split(rest, u32::MAX) {
            rest = &rest[frame.bytes.len()..];
            match Packet::decode(frame, self.version).unwrap() {
                Packet::ConnAck(connack) => {
                    assert!(!self.connected, "{}: CONNACK twice", self.name);
                    assert_eq!(connack.reason, ReasonCode::Success);
                    self.connected = true;
                }
                Packet::SubAck(_) => {
                    assert!(!self.subscribed, "{}: SUBACK twice", self.name);
                    self.subscribed = true;
                }
                Packet::Publish(publish) => self.message(&publish, now),
                Packet::PubAck(ack) => {
                    let (qos, payload, _) = self.flying.remove(&ack.packet_id).unwrap();
                    assert_eq!(qos, QoS::AtLeastOnce);
                    self.done.insert(payload);
                }
                Packet::PubRec(ack) => {
                    let flying = self.flying.get_mut(&ack.packet_id).unwrap();
                    assert!(flying.0 == QoS::ExactlyOnce && !flying.2);
                    flying.2 = true;
                    let release = Ack::new(ack.packet_id, ReasonCode::Success);
                    self.send(&Packet::PubRel(release), now);
                }
                Packet::PubComp(ack) => {
                    assert_eq!(ack.reason, ReasonCode::Success, "{}", self.name);
                    let (_, payload, released) = self.flying.remove(&ack.packet_id).unwrap();
                    assert!(released);
                    self.done.insert(payload);
                }
                Packet::PubRel(ack) => {
                    assert!(self.unreleased.remove(&ack.packet_id), "PUBREL twice");
                    let ack = Ack::new(ack.packet_id, ReasonCode::Success);
                    self.send(&Packet::PubComp(ack), now);
                }
                Packet::PingResp => {}
                other => panic!("{}: {other:?}", self.name),
            }
        }
        assert!(rest.is_empty(), "only whole packets come out");
    }

    fn message(&mut self, publish: &Publish<'_>, now: Duration) {
        let id = publish.packet_id;
        match publish.qos {
            QoS::AtMostOnce => {}
            QoS::AtLeastOnce => {
                self.send(&Packet::PubAck(Ack::new(id, ReasonCode::Success)), now);
            }
            QoS::ExactlyOnce => {
                assert!(self.unreleased.insert(id), "{}: twice", self.name);
                self.send(&Packet::PubRec(Ack::new(id, ReasonCode::Success)), now);
            }
        }
        let payload = String::from_utf8(publish.payload.to_vec()).unwrap();
        *self.received.entry(payload).or_default() += 1;
    }
}

/// A datagram under way: to the server, or to the client at an address.
struct Flight {
    from: Option<SocketAddr>,
    to: Option<SocketAddr>,
    data: Vec<u8>,
}

struct World {
    sealed: bool,
    rng: Rng,
    network: Network,
    now: Duration,
    flights: Queue<Flight, Duration>,
    endpoint: Endpoint,
    shard: Shard,
    conns: HashMap<PeerId, ConnId>,
    peers: HashMap<ConnId, PeerId>,
    apps: Vec<App>,
    /// What strangers have seen.
    seen: Vec<Vec<u8>>,
    /// Bytes from and to each address that has opened nothing.
    strangers: HashMap<SocketAddr, (usize, usize)>,
}

fn nanos(now: Duration) -> Nanos {
    Nanos(now.as_nanos() as u64)
}

impl World {
    fn new(seed: u64, network: Network, config: EndpointConfig, clients: usize) -> Self {
        let mut rng = Rng::new(seed);
        let now = Duration::from_secs(1000);
        let broker = Config {
            sys_interval: None,
            ..Config::default()
        };
        let sealed = seed.is_multiple_of(2);
        let messages = 30;
        let apps = (0..clients)
            .map(|n| App::new(n, &mut rng, sealed, messages))
            .collect();
        Self {
            sealed,
            network,
            now,
            flights: Queue::new(),
            endpoint: Endpoint::new(config, &[seed as u8; 32], now),
            shard: Shard::new(Directory::new(1), 0, Arc::new(broker), nanos(now)),
            conns: HashMap::new(),
            peers: HashMap::new(),
            apps,
            seen: Vec::new(),
            strangers: HashMap::new(),
            rng,
        }
    }

    /// Sends a datagram through the network.
    fn launch(&mut self, from: Option<SocketAddr>, to: Option<SocketAddr>, data: Vec<u8>) {
        if self.network.hostile && self.seen.len() < 500 && self.rng.chance(20) {
            self.seen.push(data.clone());
        }
        let copies = 1 + u64::from(self.rng.chance(self.network.doubled));
        for _ in 0..copies {
            if self.rng.chance(self.network.loss) {
                continue;
            }
            let mut data = data.clone();
            if self.rng.chance(self.network.cut) {
                data.truncate(self.rng.index(data.len() + 1));
            }
            // No part of one run into another: without tokens nothing would
            // tell such a chimera from a packet.
            else if self.rng.chance(self.network.merged) {
                data.extend_from_within(..);
            }
            let delay = Duration::from_micros(1000)
                + Duration::from_nanos(self.rng.below(self.network.jitter.as_nanos() as u64));
            let flight = Flight { from, to, data };
            self.flights.schedule(self.now + delay, flight);
        }
    }

    /// Strangers do what they can.
    fn attack(&mut self) {
        let from: SocketAddr = ([192, 0, 2, self.rng.below(20) as u8], 9).into();
        // Spoofing the address of a client, or from an address of their own.
        let client = self.rng.index(self.apps.len());
        let from = match self.rng.chance(50) {
            true => from,
            false => self.apps[client].address,
        };
        let mut data = match self.seen.len() {
            0 => return,
            n => self.seen[self.rng.index(n)].clone(),
        };
        if self.rng.chance(30) && !data.is_empty() {
            let at = self.rng.index(data.len());
            data[at] ^= 1 << self.rng.below(8);
        }
        // Bare packets cannot be told from the client's own, but in sealed
        // sessions; forged ones would prove nothing there.
        let sealed = matches!(Header::split(&data), Ok((Some(_), _)));
        if from == self.apps[client].address && !sealed {
            return;
        }
        self.deliver_to_server(from, &data);
    }

    fn deliver_to_server(&mut self, from: SocketAddr, data: &[u8]) {
        let path = Path {
            remote: from,
            local: None,
        };
        self.endpoint.handle(path, data, self.now);
        if from.ip().to_string().starts_with("192.0.2.") {
            self.strangers.entry(from).or_default().0 += data.len();
        }
        self.serve();
    }

    /// What the shell does around endpoint and broker.
    fn serve(&mut self) {
        loop {
            while let Some(event) = self.endpoint.poll_event() {
                match event {
                    Event::Opened(peer) => {
                        let meta = ConnMeta {
                            peer: self.endpoint.path(peer).map(|path| path.remote),
                            allow_anonymous: true,
                            nonce: u128::from(self.rng.any()).to_be_bytes(),
                            ..ConnMeta::default()
                        };
                        let conn = self.shard.open(meta, nanos(self.now));
                        self.conns.insert(peer, conn);
                        self.peers.insert(conn, peer);
                        self.feed(peer);
                    }
                    Event::Received(peer) => self.feed(peer),
                    Event::Lost(peer, why) => {
                        if let Some(conn) = self.conns.remove(&peer) {
                            self.peers.remove(&conn);
                            self.shard.closed(conn, why, nanos(self.now));
                        }
                    }
                    Event::Moved(..) => {}
                }
            }
            let mut outputs = Vec::new();
            self.shard.take_outputs(&mut outputs);
            for output in outputs.drain(..) {
                match output {
                    Output::Close { conn, tail } => {
                        if let Some(peer) = self.peers.remove(&conn) {
                            self.conns.remove(&peer);
                            self.endpoint.close(peer, &tail, self.now);
                        }
                    }
                    Output::Resume(conn) => {
                        if let Some(peer) = self.peers.get(&conn) {
                            self.feed(*peer);
                        }
                    }
                    _ => {}
                }
            }
            let mut dirty = Vec::new();
            self.shard.take_dirty(&mut dirty);
            for conn in dirty.drain(..) {
                self.flush(conn);
            }
            if !self.shard.has_outputs() && !self.shard.has_dirty() {
                break;
            }
        }
        while let Some(transmit) = self.endpoint.poll_transmit() {
            let to = transmit.path.remote;
            if let Some(stranger) = self.strangers.get_mut(&to) {
                stranger.1 += transmit.data.len();
            }
            self.launch(None, Some(to), transmit.data);
        }
    }

    fn feed(&mut self, peer: PeerId) {
        let Some(conn) = self.conns.get(&peer).copied() else {
            return;
        };
        let inbox = self.endpoint.inbox(peer).to_vec();
        let received = self.shard.receive(conn, &inbox, nanos(self.now));
        if received.flow != Flow::Closed {
            self.endpoint.consumed(peer, received.consumed);
        }
    }

    fn flush(&mut self, conn: ConnId) {
        let bytes = take_pending(&mut self.shard, conn, nanos(self.now));
        if let Some(peer) = self.peers.get(&conn) {
            self.endpoint.send(*peer, &bytes, 2, self.now);
        }
    }

    /// Runs until `end`; clients that vanished stay silent.
    fn run(&mut self, end: Duration) {
        for n in 0..self.apps.len() {
            self.drive(n);
        }
        while self.now < end {
            let next = self.next_time().min(end);
            self.now = self.now.max(next);
            self.shard.tick(nanos(self.now));
            self.endpoint.handle_timeout(self.now);
            self.serve();
            if self.network.hostile && self.rng.chance(10) {
                self.attack();
            }
            while let Some((_, flight)) = self.flights.pop(self.now) {
                match (flight.from, flight.to) {
                    (Some(from), _) => self.deliver_to_server(from, &flight.data),
                    (None, Some(to)) => {
                        let now = self.now;
                        let app = self.apps.iter_mut().find(|app| app.address == to);
                        if let Some(app) = app.filter(|app| !app.vanished) {
                            app.udp.handle(&flight.data, now);
                        }
                    }
                    (None, None) => {}
                }
            }
            for n in 0..self.apps.len() {
                self.drive(n);
            }
        }
    }

    fn next_time(&self) -> Duration {
        let flights = self.flights.next_time();
        let apps = self
            .apps
            .iter()
            .filter(|app| !app.vanished)
            .flat_map(|app| {
                let publish =
                    (app.subscribed && !app.to_publish.is_empty()).then_some(app.next_publish);
                let ping = app.connected.then_some(app.next_ping);
                [app.udp.next_timeout(), publish, ping]
            });
        let shard = self
            .shard
            .next_timeout()
            .map(|at| Duration::from_nanos(at.0));
        [flights, self.endpoint.next_timeout(), shard]
            .into_iter()
            .chain(apps)
            .flatten()
            .min()
            .unwrap_or(Duration::MAX)
    }

    fn drive(&mut self, n: usize) {
        let now = self.now;
        let rebind = self.network.hostile && self.rng.below(4000) == 0;
        let pause = Duration::from_millis(self.rng.below(400));
        let app = &mut self.apps[n];
        if app.vanished {
            return;
        }
        if rebind && app.connected {
            app.address.set_port(app.address.port() + 1);
        }
        app.udp.handle_timeout(now);
        app.handle(now);
        if app.subscribed && now >= app.next_publish {
            app.publish(now);
            app.next_publish = now + pause;
        }
        if app.connected && now >= app.next_ping {
            app.send(&Packet::PingReq, now);
        }
        let address = app.address;
        while let Some(transmit) = self.apps[n].udp.poll_transmit() {
            self.launch(Some(address), None, transmit.data);
        }
    }
}

fn check(world: &World, vanished: Option<usize>) {
    let published: BTreeSet<&String> = world.apps.iter().flat_map(|app| &app.done).collect();
    for (n, app) in world.apps.iter().enumerate() {
        if Some(n) == vanished {
            continue;
        }
        assert_eq!(app.udp.state(), ClientState::Connected, "{}", app.name);
        assert!(app.subscribed && app.to_publish.is_empty(), "{}", app.name);
        assert!(app.flying.is_empty(), "{}: {:?}", app.name, app.flying);
        for (payload, copies) in &app.received {
            let (publisher, number) = payload.split_once('/').unwrap();
            assert!(publisher.starts_with("client-"), "{payload}");
            let number: usize = number.parse().unwrap();
            assert!(number < 30);
            // QoS 0 without tokens comes as often as the network brings it.
            if world.sealed || !number.is_multiple_of(3) {
                assert_eq!(*copies, 1, "{} got {payload} again", app.name);
            }
        }
    }
    // Who was subscribed all the time has everything acknowledged.
    let last_subscribed = world.apps.iter().filter(|app| app.subscribed).count();
    assert!(last_subscribed >= world.apps.len() - 1);
    assert!(!published.is_empty());
}

#[test]
fn nothing_acknowledged_is_lost_or_doubled() {
    for seed in seeds(40) {
        let mut world = World::new(seed, BAD, EndpointConfig::default(), 4);
        // All are there before anybody publishes, so that all get everything.
        for n in 0..world.apps.len() {
            world.apps[n].connect(world.now);
            world.apps[n].next_publish = world.now + Duration::from_secs(30);
        }
        let end = world.now + Duration::from_secs(120);
        world.run(end);
        check(&world, None);
        for publisher in &world.apps {
            for payload in &publisher.done {
                for app in &world.apps {
                    assert!(
                        app.received.contains_key(payload),
                        "{} missed {payload}",
                        app.name
                    );
                }
            }
            assert_eq!(publisher.done.len(), 20, "10 of each QoS above 0");
        }
        assert_eq!(world.endpoint.open(), 4);
        for (address, (got, gave)) in &world.strangers {
            assert!(gave <= got, "{address} got {gave} bytes for {got}");
        }
        let counters = world.endpoint.counters();
        assert!(counters.repeated_received > 0 && counters.repeated_sent > 0);
        assert!(counters.unproven + counters.unknown + counters.malformed > 0);
    }
}

#[test]
fn who_vanishes_is_forgotten() {
    for seed in seeds_from(100, 10) {
        let mut world = World::new(seed, BAD, EndpointConfig::default(), 3);
        for n in 0..3 {
            world.apps[n].connect(world.now);
        }
        let leave = world.now + Duration::from_secs(3 + seed % 7);
        world.run(leave);
        world.apps[1].vanished = true;
        let end = world.now + Duration::from_secs(90);
        world.run(end);
        check(&world, Some(1));
        assert_eq!(world.endpoint.open(), 2, "keep-alive ended the third");
        assert_eq!(world.shard.clients_connected(), 2);
    }
}

#[test]
fn a_good_network_needs_no_repetitions() {
    let mut world = World::new(7, GOOD, EndpointConfig::default(), 3);
    for n in 0..3 {
        world.apps[n].connect(world.now);
    }
    let end = world.now + Duration::from_secs(60);
    world.run(end);
    check(&world, None);
    assert_eq!(world.endpoint.counters().repeated_sent, 0);
    assert_eq!(world.endpoint.counters().retries, 3);
    assert!(world.apps.iter().all(|app| app.udp.repeated() == 0));
}

/// The confirmation of DISCONNECT works over a bad network, and no will is
/// caused by a lost datagram more often than four lost ones explain.
#[test]
fn goodbyes_are_said() {
    let mut clean = 0;
    for seed in seeds_from(200, 20) {
        let mut world = World::new(seed, BAD, EndpointConfig::default(), 2);
        for n in 0..2 {
            world.apps[n].to_publish.clear();
            world.apps[n].connect(world.now);
        }
        let end = world.now + Duration::from_secs(15);
        world.run(end);
        let mut out = Vec::new();
        let goodbye = [0xE0, 0];
        out.extend_from_slice(&goodbye);
        let now = world.now;
        world.apps[0].udp.send(&out, 0, now).unwrap();
        world.apps[0].connected = false;
        let end = world.now + Duration::from_secs(8);
        world.run(end);
        assert!(matches!(world.apps[0].udp.state(), ClientState::Closed(_)));
        clean += usize::from(world.endpoint.open() == 1);
    }
    assert!(clean >= 19 || are_seeds_chosen(), "{clean} of 20");
}

/// Every header kind that a client sends begins with a byte that no MQTT
/// packet begins with.
#[test]
fn headers_and_packets_cannot_be_confused() {
    for kind in PacketType::ALL {
        assert_ne!((kind as u8) << 4, 0);
    }
    let mut client = Client::new(ClientConfig::default(), [1; 8]);
    let mut connect = Vec::new();
    Connect {
        version: Version::V5,
        clean_start: true,
        keep_alive: 0,
        client_id: "c",
        will: None,
        username: None,
        password: None,
        properties: Properties::EMPTY,
    }
    .encode(&mut connect)
    .unwrap();
    client.send(&connect, 0, Duration::ZERO).unwrap();
    let hello = client.poll_transmit().unwrap().data;
    assert_eq!(
        (hello[0], hello.len()),
        (0, Header::HELLO_LEN + connect.len())
    );
    assert!(hello.len() >= Header::RETRY_LEN, "a cookie is never larger");
}
