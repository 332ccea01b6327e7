//! Brokers, clients and the connections between them in virtual time. Bytes keep their order on a
//! connection; connections break, fall silent and are restored, brokers crash and restart; a seed
//! determines all events.

use std::collections::{BTreeMap, BTreeSet};

use punctual_broker::{Config, LINK_PREFIX, SECRET_USER, StoreTrouble};
use punctual_codec::{
    Connect, Packet, Properties, PropertyBuf, PropertyId, Publish, QoS, Split, Subscribe, Version,
    split,
};
use punctual_mesh::wire::{Message, TOPIC};
use punctual_mesh::{BrokerId, Dialling, Membership, Settings};
use punctual_model::{Nanos, Rng};
use punctual_sim::{Dialled, Edge, NetworkEvent, Socket, VirtualNetwork};

use crate::client::{Client, Fate, Published};
use crate::shards;
use crate::site::{Effect, SECRET, Site};

/// The owner of one end of a connection.
#[derive(Debug, Clone, Copy)]
pub enum End {
    Site(usize),
    /// A broker that does not know yet which neighbour is at the other end.
    Dialling(usize),
    Client(usize),
    /// A client that receives messages, and sends nothing.
    Listener,
}

impl End {
    fn is_at(self, site: usize) -> bool {
        matches!(self, Self::Site(n) | Self::Dialling(n) if n == site)
    }
}

#[derive(Debug)]
pub enum Event {
    Tick(usize),
    Commit(usize, u64),
    /// Connects a client again that was refused temporarily.
    Retry(usize),
}

pub struct World {
    pub network: VirtualNetwork<End, Vec<u8>, Event>,
    pub rng: Rng,
    pub sites: Vec<Site>,
    /// Edges over which the dialling broker failed to connect at least once since it started.
    missed: BTreeSet<usize>,
    pub clients: Vec<Client>,
    pub published: BTreeMap<u64, Published>,
    /// Most messages in flight between two brokers.
    pub window: u16,
    /// When an edge or a broker was last restored.
    mended: Nanos,
    /// Receiving broker and number of each message that a link has carried, if a test records them.
    pub carried: Option<Vec<(usize, u64)>>,
}

pub fn name(n: usize) -> BrokerId {
    BrokerId::new(&format!("b{n}")).unwrap()
}

impl World {
    pub fn new(
        rng: Rng,
        n: usize,
        edges: Vec<Edge>,
        store: bool,
        config: &Config,
        change: impl Fn(&mut Settings),
    ) -> Self {
        let mut world = Self {
            network: VirtualNetwork::new(Nanos::from_secs(1), edges),
            rng,
            sites: Vec::new(),
            missed: BTreeSet::new(),
            clients: Vec::new(),
            published: BTreeMap::new(),
            window: 16,
            mended: Nanos(0),
            carried: None,
        };
        for site in 0..n {
            let mut settings = Settings::new(name(site), 0, world.rng.below(3));
            // Most tests begin with brokers that have joined.
            settings.join_wait = Nanos(0);
            change(&mut settings);
            world
                .sites
                .push(Site::new(settings, config.clone(), store, shards()));
            world.start(site);
        }
        world.network.dial_all();
        world
    }

    pub fn now(&self) -> Nanos {
        self.network.now()
    }

    pub fn run_for(&mut self, millis: u64) {
        let until = self.now() + Nanos::from_millis(millis);
        while let Some(event) = self.network.next(until) {
            self.happen(event);
        }
    }

    fn happen(&mut self, event: NetworkEvent<Vec<u8>, Event>) {
        let now = self.now();
        match event {
            NetworkEvent::Arrived(at, bytes) => self.arrived(at, &bytes),
            NetworkEvent::Ended(at) => self.ended(at),
            NetworkEvent::Dial(edge) => self.dial(edge),
            NetworkEvent::Other(Event::Tick(n)) => {
                if let Some(running) = &mut self.sites[n].running
                    && running.next_timeout() <= now
                {
                    running.tick(now);
                    self.settle(n);
                }
            }
            NetworkEvent::Other(Event::Commit(n, instance)) => {
                if self.sites[n].settings.instance == instance {
                    self.sites[n].commit(&mut self.rng, now);
                    self.begin_commit(n);
                    self.settle(n);
                }
            }
            NetworkEvent::Other(Event::Retry(client)) => {
                if self.clients[client].refused.is_some() {
                    self.connect(client);
                }
            }
        }
    }

    fn arrived(&mut self, at: Socket, bytes: &[u8]) {
        let now = self.now();
        match *self.network.end(at) {
            End::Client(client) => {
                self.clients[client].receive(bytes, now);
                self.flush(client);
            }
            End::Listener => {}
            End::Site(n) => {
                if let Some(running) = &mut self.sites[n].running {
                    running.broker.inbox(at).extend(bytes);
                    if running.broker.conn(at).is_none() {
                        let nonce = u128::from(self.rng.any());
                        running.accept(at, nonce, now);
                    }
                    self.read(n, at);
                }
            }
            End::Dialling(n) => {
                if let Some(running) = &mut self.sites[n].running {
                    running.broker.inbox(at).extend(bytes);
                    self.introduced(at, n);
                }
            }
        }
    }

    fn write(&mut self, from: Socket, bytes: Vec<u8>) {
        if bytes.is_empty() {
            return;
        }
        let ends = [from, from.peer()].map(|socket| *self.network.end(socket));
        if let (Some(carried), [End::Site(_), End::Site(n)]) = (&mut self.carried, ends) {
            carried.extend(numbers(&bytes).map(|number| (n, number)));
        }
        self.network.send(from, bytes, Nanos(0));
    }

    /// Handles a connection that the other end has closed.
    fn ended(&mut self, at: Socket) {
        if !self.network.drop_end(at) {
            return;
        }
        let now = self.now();
        match *self.network.end(at) {
            End::Site(n) => {
                if let Some(running) = &mut self.sites[n].running {
                    running.broker.lose(at, now);
                    self.settle(n);
                }
            }
            End::Client(client) => {
                self.clients[client].lose();
                if self.clients[client].refused.is_some() {
                    let pause = Nanos::from_millis(self.rng.within(100..=300));
                    self.network.schedule(now + pause, Event::Retry(client));
                }
            }
            End::Dialling(_) | End::Listener => {}
        }
    }

    /// A broker reads the bytes that have arrived on a connection.
    fn read(&mut self, n: usize, at: Socket) {
        let now = self.now();
        while let Some(running) = &mut self.sites[n].running
            && let Some(reading) = running.read(at, now)
        {
            self.settle(n);
            if !reading.has_more {
                return;
            }
        }
    }

    fn dial(&mut self, edge: usize) {
        let Edge { ends, .. } = self.network.edges[edge];
        let runs = |n: usize| self.sites[n].running.is_some();
        let has_heard = |end: &End| matches!(end, End::Site(_));
        match self.network.dial(edge, runs, has_heard) {
            Dialled::Nothing => {}
            Dialled::GivesUp(socket) => _ = self.network.close(socket),
            Dialled::Fails => {
                if self.missed.insert(edge) {
                    self.settle(ends[0]);
                }
            }
            Dialled::Connects => self.introduce(edge),
        }
    }

    /// A broker connects to a neighbour, and identifies itself.
    fn introduce(&mut self, edge: usize) {
        let Edge { ends, .. } = self.network.edges[edge];
        let Some(running) = &self.sites[ends[0]].running else {
            return;
        };
        let open = Message::Open(running.open(true)).encode();
        let mut bytes = Vec::new();
        let mut properties = PropertyBuf::new();
        properties.push_number(PropertyId::SessionExpiryInterval, u32::MAX);
        properties.push_number(PropertyId::ReceiveMaximum, self.window.into());
        let connect = Packet::Connect(Connect {
            version: Version::V5,
            clean_start: false,
            keep_alive: 0,
            properties: properties.as_properties(),
            client_id: &format!("{LINK_PREFIX}{}", name(ends[0])),
            will: None,
            username: Some(SECRET_USER),
            password: Some(SECRET.as_bytes()),
        });
        connect.encode(Version::V5, &mut bytes).unwrap();
        let told = Packet::Publish(Publish {
            dup: false,
            qos: QoS::AtMostOnce,
            retain: false,
            topic: TOPIC,
            packet_id: 0,
            properties: Properties::default(),
            payload: &open,
        });
        told.encode(Version::V5, &mut bytes).unwrap();
        let ends = [End::Dialling(ends[0]), End::Site(ends[1])];
        let connection = self.network.connect_over(edge, ends);
        self.write(
            Socket {
                connection,
                side: 0,
            },
            bytes,
        );
    }

    /// Handles the first message of a neighbour to which a broker has connected.
    fn introduced(&mut self, at: Socket, n: usize) {
        let now = self.now();
        let Some(running) = &mut self.sites[n].running else {
            return;
        };
        let inbox = running.broker.inbox(at);
        while let Ok(Split::Frame(frame)) = split(inbox, 1 << 20) {
            let length = frame.bytes.len();
            let open = match Packet::decode(frame, Version::V5).unwrap() {
                Packet::ConnAck(answer) if answer.reason.is_error() => {
                    self.network.close(at);
                    return;
                }
                Packet::Publish(publish) => match Message::decode(publish.payload) {
                    Ok(Message::Open(open)) => Some(open),
                    _ => panic!("not who it is"),
                },
                _ => None,
            };
            inbox.drain(..length);
            if let Some(open) = open {
                let nonce = u128::from(self.rng.any());
                running.dialled(at, open, self.window, nonce, now);
                *self.network.end_mut(at) = End::Site(n);
                self.settle(n);
                self.read(n, at);
                return;
            }
        }
    }

    fn settle(&mut self, n: usize) {
        let now = self.now();
        loop {
            self.update_dialling(n);
            let Some(running) = &mut self.sites[n].running else {
                return;
            };
            let effects = running.settle(now);
            if effects.is_empty() {
                let at = running.next_timeout();
                if at < Nanos::MAX {
                    let at = at.max(now + Nanos(1));
                    self.network.schedule(at, Event::Tick(n));
                }
                return;
            }
            let mut resumed = Vec::new();
            for effect in effects {
                match effect {
                    Effect::Write(at, bytes) => self.write(at, bytes),
                    Effect::Close(at) => _ = self.network.close(at),
                    Effect::Resume(at) => resumed.push(at),
                    Effect::HandOver(at, shard, meta) => {
                        if let Some(running) = &mut self.sites[n].running {
                            running.broker.accept(at, shard, *meta, now);
                            resumed.push(at);
                        }
                    }
                    Effect::Store(shard, operations) => {
                        if let Some(store) = &mut self.sites[n].store {
                            store.post(shard, operations);
                            self.begin_commit(n);
                        }
                    }
                }
            }
            for at in resumed {
                self.read(n, at);
            }
        }
    }

    pub fn start(&mut self, n: usize) {
        if self.sites[n].running.is_none() {
            self.sites[n].start(self.network.now());
            let edges = &self.network.edges;
            self.missed.retain(|edge| edges[*edge].ends[0] != n);
            self.mended = self.now();
            self.settle(n);
        }
    }

    /// Tells a joining broker that names its neighbours whether connections to all of them were
    /// tried.
    fn update_dialling(&mut self, n: usize) {
        let now = self.now();
        let Site { named, running, .. } = &mut self.sites[n];
        let named = *named;
        if let Some(running) = running
            && running.member.node().membership() == Membership::Joining
        {
            let mut own = (0..)
                .zip(&self.network.edges)
                .filter(|(_, it)| it.ends[0] == n);
            let is_untried = |(edge, it): (usize, &Edge)| {
                !self.missed.contains(&edge) && !running.has_answered(&name(it.ends[1]))
            };
            let untried = named && own.any(is_untried);
            let dialling = Dialling { named, untried };
            running.member.set_dialling(dialling, now);
        }
    }

    /// Begins pending commits at a broker.
    fn begin_commit(&mut self, n: usize) {
        let site = &mut self.sites[n];
        let instance = site.settings.instance;
        while let Some(store) = &mut site.store
            && let Some(takes) = store.begin(&mut self.rng)
        {
            let at = self.network.now() + takes;
            self.network.schedule(at, Event::Commit(n, instance));
        }
    }

    /// Sets how the disk of a broker fails: it is full or returns errors.
    pub fn trouble(&mut self, n: usize, trouble: StoreTrouble) {
        let now = self.now();
        self.sites[n].set_trouble(Some(trouble), now);
        self.settle(n);
    }

    /// Repairs the disk of a broker, which then has room.
    pub fn repair(&mut self, n: usize) {
        let now = self.now();
        if self.sites[n].set_trouble(None, now) {
            self.mended = now;
            self.settle(n);
        }
    }

    pub fn crash(&mut self, n: usize) {
        self.sites[n].crash(&mut self.rng);
        self.part();
        for socket in self.network.sockets(|end| end.is_at(n)) {
            self.network.close(socket);
        }
    }

    /// Cuts an edge; with `silently`, its ends are not notified.
    pub fn cut(&mut self, edge: usize, silently: bool) {
        self.part();
        for connection in self.network.cut(edge) {
            for side in (0..2).filter(|_| !silently) {
                self.ended(Socket { connection, side });
            }
        }
    }

    pub fn mend(&mut self, edge: usize) {
        if self.network.mend(edge) {
            self.mended = self.now();
        }
    }

    /// Marks clients that wait for CONNACK: they may be given another session than their own.
    fn part(&mut self) {
        for client in &mut self.clients {
            client.parted |= client.socket.is_some() && !client.is_connected();
        }
    }

    /// Connects a client to its broker, unless it is connected.
    pub fn connect(&mut self, client: usize) {
        let home = self.clients[client].home;
        let site = self.sites.get(home);
        let runs = site.is_some_and(|site| site.running.is_some());
        if self.clients[client].socket.is_none() && runs {
            let delay = Nanos(self.rng.within(50_000..=1_000_000));
            let ends = [End::Client(client), End::Site(home)];
            let connection = self.network.connect(ends, delay);
            let socket = Socket {
                connection,
                side: 0,
            };
            if self.clients[client].refused.is_none() {
                self.bequeath(client);
            }
            self.clients[client].parted = !self.is_whole(Nanos::from_secs(3));
            self.clients[client].connect(socket);
            self.flush(client);
        }
    }

    /// Subscribes a client that is always connected to all these filters at a broker.
    pub fn subscribe_much(&mut self, n: usize, filters: Vec<String>) {
        let mut bytes = Vec::new();
        let connect = Packet::Connect(Connect {
            version: Version::V5,
            clean_start: true,
            keep_alive: 0,
            properties: Properties::default(),
            client_id: &format!("much-{n}"),
            will: None,
            username: None,
            password: None,
        });
        connect.encode(Version::V5, &mut bytes).unwrap();
        for filters in filters.chunks(100) {
            let mut body = vec![0, 1, 0];
            for filter in filters {
                body.extend((filter.len() as u16).to_be_bytes());
                body.extend(filter.bytes());
                body.push(0);
            }
            let subscribe = Subscribe::decode(&body, Version::V5).unwrap();
            let subscribe = Packet::Subscribe(subscribe);
            subscribe.encode(Version::V5, &mut bytes).unwrap();
        }
        let ends = [End::Listener, End::Site(n)];
        let connection = self.network.connect(ends, Nanos(0));
        self.arrived(
            Socket {
                connection,
                side: 1,
            },
            &bytes,
        );
    }

    /// Whether all brokers have run, and all edges have been up, since that time.
    pub fn is_whole(&self, since: Nanos) -> bool {
        let whole = self.network.edges.iter().all(|edge| !edge.is_cut)
            && self.sites.iter().all(|site| site.running.is_some());
        whole && self.now() - self.mended > since
    }

    /// Gives the next connection of a client a new will.
    fn bequeath(&mut self, client: usize) {
        let (number, sent) = (self.published.len() as u64, self.now());
        if let Some(bequest) = &mut self.clients[client].bequest {
            bequest.numbers.push(number);
            let message = Published {
                publisher: client,
                topic: bequest.topic,
                qos: bequest.qos,
                retain: bequest.retain,
                is_empty: false,
                sent,
                fate: Fate::Unknown,
            };
            self.published.insert(number, message);
        }
    }

    /// Breaks a client's connection.
    pub fn hang_up(&mut self, client: usize) {
        if let Some(clean) = self.clients[client].refused.take() {
            self.clients[client].clean_start |= clean;
        }
        if let Some(socket) = self.clients[client].socket {
            self.network.silence(socket.connection);
            self.ended(socket);
            self.ended(socket.peer());
        }
    }

    /// Breaks a client's connection, and connects the client to another broker.
    pub fn move_to(&mut self, client: usize, home: usize) {
        self.hang_up(client);
        self.clients[client].home = home;
        self.connect(client);
    }

    /// Breaks a client's connection without its broker noticing.
    pub fn vanish(&mut self, client: usize) {
        if let Some(socket) = self.clients[client].socket {
            self.network.silence(socket.connection);
            self.ended(socket);
        }
    }

    fn flush(&mut self, client: usize) {
        if let Some(socket) = self.clients[client].socket {
            let bytes = self.clients[client].take_out();
            self.write(socket, bytes);
        }
    }

    /// Sends PINGREQ from a client, if it is connected.
    pub fn ping(&mut self, client: usize) {
        if self.clients[client].is_connected() {
            self.clients[client].ping();
            self.flush(client);
        }
    }

    pub fn publish(&mut self, client: usize, topic: &'static str, qos: QoS) {
        self.send(Published {
            publisher: client,
            topic,
            qos,
            retain: false,
            is_empty: false,
            sent: self.now(),
            fate: Fate::Unknown,
        });
    }

    /// Publishes a message, if its publisher is connected.
    pub fn send(&mut self, message: Published) {
        let client = message.publisher;
        if self.clients[client].is_connected() && self.clients[client].has_room() {
            let number = self.published.len() as u64;
            self.clients[client].publish(number, &message);
            self.published.insert(number, message);
            self.flush(client);
        }
    }

    /// Records the answers to publishers.
    pub fn note_answers(&mut self) {
        for client in &mut self.clients {
            for (number, fate) in client.answers.drain(..) {
                if let Some(message) = self.published.get_mut(&number) {
                    message.fate = fate;
                }
            }
        }
    }
}

/// The numbers of the messages in the bytes that a broker sends to a neighbour.
fn numbers(mut bytes: &[u8]) -> impl Iterator<Item = u64> {
    std::iter::from_fn(move || {
        let Ok(Split::Frame(frame)) = split(bytes, u32::MAX) else {
            return None;
        };
        bytes = &bytes[frame.bytes.len()..];
        Some(match Packet::decode(frame, Version::V5) {
            Ok(Packet::Publish(publish)) => std::str::from_utf8(publish.payload)
                .ok()
                .and_then(|text| text.parse().ok()),
            _ => None,
        })
    })
    .flatten()
}
