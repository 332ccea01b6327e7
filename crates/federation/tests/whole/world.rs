//! Brokers, clients and the connections between them in virtual time. Bytes keep
//! their order on a connection; connections break, fall silent and come again,
//! brokers crash and start again, and a seed decides all of it.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use punctual_broker::{Config, LINK_PREFIX, SECRET_USER};
use punctual_codec::{
    Connect, Packet, Properties, PropertyBuf, PropertyId, Publish, QoS, Split, Subscribe, Version,
    split,
};
use punctual_mesh::wire::{Message, TOPIC};
use punctual_mesh::{BrokerId, Dialling, Membership, Settings};
use punctual_model::{Nanos, Rng};
use punctual_sim::{Connection, Edge, Queue};

use crate::client::{Client, Fate, Published};
use crate::shards;
use crate::site::{Conn, Effect, SECRET, Site};

/// What is at one end of a connection.
#[derive(Debug, Clone, Copy)]
enum End {
    Site(usize, Conn),
    /// A broker that has not heard who the other is.
    Dialling(usize),
    /// Whoever comes to a broker.
    Accepting(usize),
    Client(usize),
}

#[derive(Debug)]
struct Pipe {
    ends: [End; 2],
    delay: Nanos,
    connection: Connection,
    /// What arrived there and is not consumed.
    inbox: [Vec<u8>; 2],
}

#[derive(Debug)]
enum Event {
    Bytes(usize, usize, Vec<u8>),
    End(usize, usize),
    Tick(usize),
    Commit(usize, u64),
    Dial(usize),
    /// A client connects that was refused for a moment.
    Retry(usize),
}

pub struct World {
    pub now: Nanos,
    pub rng: Rng,
    pub sites: Vec<Site>,
    pub edges: Vec<Edge>,
    /// Those over which the broker that dials could not connect, at least once since it started.
    missed: BTreeSet<usize>,
    pub clients: Vec<Client>,
    pub published: BTreeMap<u64, Published>,
    pipes: Vec<Pipe>,
    conns: HashMap<(usize, Conn), (usize, usize)>,
    events: Queue<Event>,
    /// Longest time that the stores take.
    pub commit: Nanos,
    /// Each store writes one group after the other, and takes [`Self::commit`] for each; what comes
    /// meanwhile is the next group. Otherwise each batch takes a time of its own, up to that.
    pub one_by_one: bool,
    /// Batches of the group that each store writes.
    writing: BTreeMap<usize, usize>,
    /// Messages in flight between two brokers.
    pub window: u16,
    /// When something last came back.
    mended: Nanos,
    /// If that is asked for, the numbers of all messages that links have carried, and the brokers to
    /// which they did.
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
            now: Nanos::from_secs(1),
            rng,
            sites: Vec::new(),
            edges,
            missed: BTreeSet::new(),
            clients: Vec::new(),
            published: BTreeMap::new(),
            pipes: Vec::new(),
            conns: HashMap::new(),
            events: Queue::new(),
            commit: Nanos::from_millis(3),
            one_by_one: false,
            writing: BTreeMap::new(),
            window: 16,
            mended: Nanos(0),
            carried: None,
        };
        for site in 0..n {
            let mut settings = Settings::new(name(site), 0, world.rng.below(3));
            // Most tests are about what comes later.
            settings.join_wait = Nanos(0);
            change(&mut settings);
            world
                .sites
                .push(Site::new(settings, config.clone(), store, shards()));
            world.start(site);
        }
        for edge in 0..world.edges.len() {
            world.events.schedule(world.now, Event::Dial(edge));
        }
        world
    }

    pub fn run_for(&mut self, millis: u64) {
        self.run(self.now + Nanos::from_millis(millis));
    }

    fn run(&mut self, until: Nanos) {
        while let Some((at, event)) = self.events.pop(until) {
            self.now = at;
            self.happen(event);
        }
        self.now = until;
    }

    fn happen(&mut self, event: Event) {
        let now = self.now;
        match event {
            Event::Tick(n) => {
                if let Some(running) = &mut self.sites[n].running
                    && running.next_timeout() <= now
                {
                    running.tick(now);
                    self.settle(n);
                }
            }
            Event::Commit(n, instance) => {
                if self.sites[n].settings.instance == instance {
                    let group = self.writing.remove(&n).unwrap_or(1);
                    (0..group).for_each(|_| self.sites[n].commit(now));
                    self.settle(n);
                    if self.one_by_one && self.sites[n].uncommitted() > 0 {
                        self.commit_soon(n);
                    }
                }
            }
            Event::Dial(edge) => {
                self.dial(edge);
                self.events
                    .schedule(now + Nanos::from_millis(100), Event::Dial(edge));
            }
            Event::Retry(client) => {
                if self.clients[client].refused.is_some() {
                    self.connect(client);
                }
            }
            Event::End(pipe, to) => self.ended(pipe, to),
            Event::Bytes(pipe, to, bytes) => {
                let found = &mut self.pipes[pipe];
                if found.connection.is_live(to) {
                    found.inbox[to].extend(bytes);
                    self.read(pipe, to);
                }
            }
        }
    }

    fn write(&mut self, pipe: usize, from: usize, bytes: Vec<u8>) {
        if bytes.is_empty() {
            return;
        }
        let found = &mut self.pipes[pipe];
        let Some(at) = found.connection.send(from, self.now + found.delay) else {
            return;
        };
        let to = 1 - from;
        if let (Some(carried), [End::Site(..), End::Site(..)], End::Site(n, _)) =
            (&mut self.carried, found.ends, found.ends[to])
        {
            carried.extend(numbers(&bytes).map(|number| (n, number)));
        }
        self.events.schedule(at, Event::Bytes(pipe, to, bytes));
    }

    /// One end closes a connection.
    fn close(&mut self, pipe: usize, side: usize) {
        let connection = &mut self.pipes[pipe].connection;
        if connection.close(side)
            && let Some(at) = connection.end(side, self.now)
        {
            self.events.schedule(at, Event::End(pipe, 1 - side));
        }
    }

    /// One end sees that the other has closed.
    fn ended(&mut self, pipe: usize, to: usize) {
        let found = &mut self.pipes[pipe];
        if !found.connection.close(to) {
            return;
        }
        match found.ends[to] {
            End::Site(n, conn) => {
                let now = self.now;
                if let Some(running) = &mut self.sites[n].running {
                    running.closed(conn, now);
                    self.settle(n);
                }
            }
            End::Client(client) => {
                self.clients[client].lose();
                if self.clients[client].refused.is_some() {
                    let pause = Nanos::from_millis(self.rng.within(100..=300));
                    self.events.schedule(self.now + pause, Event::Retry(client));
                }
            }
            End::Dialling(_) | End::Accepting(_) => {}
        }
    }

    fn read(&mut self, pipe: usize, to: usize) {
        let now = self.now;
        match self.pipes[pipe].ends[to] {
            End::Client(client) => {
                let bytes = std::mem::take(&mut self.pipes[pipe].inbox[to]);
                self.clients[client].receive(&bytes, now);
                self.flush(client);
            }
            End::Accepting(n) => {
                let nonce = u128::from(self.rng.any());
                let Some(running) = &mut self.sites[n].running else {
                    return;
                };
                let conn = running.accept(nonce, now);
                self.pipes[pipe].ends[to] = End::Site(n, conn);
                self.conns.insert((n, conn), (pipe, to));
                self.read(pipe, to);
            }
            End::Site(n, conn) => {
                let bytes = std::mem::take(&mut self.pipes[pipe].inbox[to]);
                let Some(running) = &mut self.sites[n].running else {
                    return;
                };
                let received = running.receive(conn, &bytes, now);
                let rest = bytes[received.consumed..].to_vec();
                self.pipes[pipe].inbox[to] = rest;
                self.settle(n);
            }
            End::Dialling(n) => self.introduced(pipe, to, n),
        }
    }

    fn dial(&mut self, edge: usize) {
        let Edge {
            ends,
            is_cut,
            delay,
        } = self.edges[edge];
        let of = |pipe: &Pipe| match pipe.ends {
            [
                End::Dialling(a) | End::Site(a, _),
                End::Accepting(b) | End::Site(b, _),
            ] => [a, b] == ends,
            _ => false,
        };
        let is_open = |pipe: &Pipe| of(pipe) && pipe.connection.is_open(0);
        if let Some(open) = self.pipes.iter().position(is_open) {
            // Who does not say who it is is not waited for.
            let pipe = &self.pipes[open];
            let mute = self.now - pipe.connection.opened > Nanos::from_secs(1);
            if mute && matches!(pipe.ends[0], End::Dialling(_)) {
                self.close(open, 0);
            }
            return;
        }
        let Some(running) = &self.sites[ends[0]].running else {
            return;
        };
        if is_cut || self.sites[ends[1]].running.is_none() {
            if self.missed.insert(edge) {
                self.settle(ends[0]);
            }
            return;
        }
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
        let pipe = self.pipe([End::Dialling(ends[0]), End::Accepting(ends[1])], delay);
        self.write(pipe, 0, bytes);
    }

    fn pipe(&mut self, ends: [End; 2], delay: Nanos) -> usize {
        self.pipes.push(Pipe {
            ends,
            delay,
            connection: Connection::new(self.now),
            inbox: [Vec::new(), Vec::new()],
        });
        self.pipes.len() - 1
    }

    /// The first words of a neighbour that a broker has connected to.
    fn introduced(&mut self, pipe: usize, to: usize, n: usize) {
        let inbox = &mut self.pipes[pipe].inbox[to];
        while let Ok(Split::Frame(frame)) = split(inbox, 1 << 20) {
            let length = frame.bytes.len();
            let open = match Packet::decode(frame, Version::V5).unwrap() {
                Packet::ConnAck(answer) if answer.reason.is_error() => {
                    self.close(pipe, to);
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
                let now = self.now;
                let Some(running) = &mut self.sites[n].running else {
                    return;
                };
                let conn = running.dialled(open, self.window, nonce, now);
                self.pipes[pipe].ends[to] = End::Site(n, conn);
                self.conns.insert((n, conn), (pipe, to));
                self.settle(n);
                self.read(pipe, to);
                return;
            }
        }
    }

    fn settle(&mut self, n: usize) {
        let now = self.now;
        loop {
            self.tell_dialling(n);
            let Some(running) = &mut self.sites[n].running else {
                return;
            };
            let effects = running.settle(now);
            if effects.is_empty() {
                let at = running.next_timeout();
                if at < Nanos::MAX {
                    self.events.schedule(at.max(now + Nanos(1)), Event::Tick(n));
                }
                return;
            }
            let mut resumed = Vec::new();
            for effect in effects {
                match effect {
                    Effect::Write(conn, bytes) => {
                        if let Some((pipe, side)) = self.conns.get(&(n, conn)).copied() {
                            self.write(pipe, side, bytes);
                        }
                    }
                    Effect::Close(conn) => {
                        if let Some((pipe, side)) = self.conns.remove(&(n, conn)) {
                            self.close(pipe, side);
                        }
                    }
                    Effect::Resume(conn) => resumed.extend(self.conns.get(&(n, conn))),
                    Effect::HandOver(conn, shard, meta) => {
                        if let Some((pipe, side)) = self.conns.remove(&(n, conn))
                            && let Some(running) = &mut self.sites[n].running
                        {
                            let conn = running.open_on(shard, *meta, now);
                            self.pipes[pipe].ends[side] = End::Site(n, conn);
                            self.conns.insert((n, conn), (pipe, side));
                            resumed.push((pipe, side));
                        }
                    }
                    Effect::Commit => self.commit_soon(n),
                }
            }
            for (pipe, side) in resumed {
                self.read(pipe, side);
            }
        }
    }

    pub fn start(&mut self, n: usize) {
        if self.sites[n].running.is_none() {
            self.sites[n].start(self.now);
            let edges = &self.edges;
            self.missed.retain(|edge| edges[*edge].ends[0] != n);
            self.mended = self.now;
            self.settle(n);
        }
    }

    /// A broker that is joining is told whether its neighbours were tried, if it is one that names them.
    fn tell_dialling(&mut self, n: usize) {
        let Site { named, running, .. } = &mut self.sites[n];
        let named = *named;
        if let Some(running) = running
            && running.member.node().membership() == Membership::Joining
        {
            let mut own = (0..).zip(&self.edges).filter(|(_, it)| it.ends[0] == n);
            let is_untried = |(edge, it): (usize, &Edge)| {
                !self.missed.contains(&edge) && !running.has_answered(&name(it.ends[1]))
            };
            let untried = named && own.any(is_untried);
            let dialling = Dialling { named, untried };
            running.member.set_dialling(dialling, self.now);
        }
    }

    fn commit_soon(&mut self, n: usize) {
        let mut took = Nanos(self.rng.within(1..=self.commit.0));
        if self.one_by_one {
            if self.writing.contains_key(&n) {
                return;
            }
            self.writing.insert(n, self.sites[n].uncommitted());
            took = self.commit;
        }
        let instance = self.sites[n].settings.instance;
        self.events
            .schedule(self.now + took, Event::Commit(n, instance));
    }

    /// The store of a broker has room only for what is on its way.
    pub fn fill(&mut self, n: usize) {
        self.sites[n].set_short(true, self.now);
        self.settle(n);
    }

    /// The store of a broker can write again, and has room.
    pub fn make_room(&mut self, n: usize) {
        if self.sites[n].set_short(false, self.now) {
            self.mended = self.now;
            self.settle(n);
        }
        if std::mem::take(&mut self.sites[n].is_full) {
            self.mended = self.now;
            for _ in 0..self.sites[n].uncommitted() {
                self.commit_soon(n);
            }
        }
    }

    pub fn crash(&mut self, n: usize) {
        let survive = self.rng.below(self.sites[n].uncommitted() as u64 + 1);
        self.writing.remove(&n);
        self.sites[n].crash(survive as usize);
        self.part();
        let lost: Vec<(usize, Conn)> = self
            .conns
            .keys()
            .filter(|(m, _)| *m == n)
            .copied()
            .collect();
        lost.iter().for_each(|conn| {
            self.conns.remove(conn);
        });
        for pipe in 0..self.pipes.len() {
            for side in 0..2 {
                let end = self.pipes[pipe].ends[side];
                if let End::Site(m, _) | End::Dialling(m) | End::Accepting(m) = end
                    && m == n
                {
                    self.close(pipe, side);
                }
            }
        }
    }

    /// Nothing passes an edge from now on; with `silently`, nobody is told.
    pub fn cut(&mut self, edge: usize, silently: bool) {
        self.edges[edge].is_cut = true;
        self.part();
        let ends = self.edges[edge].ends;
        for pipe in 0..self.pipes.len() {
            let found = &mut self.pipes[pipe];
            let [a, b] = found.ends.map(|end| match end {
                End::Site(n, _) | End::Dialling(n) | End::Accepting(n) => Some(n),
                End::Client(_) => None,
            });
            if [a, b] == ends.map(Some)
                && (found.connection.is_open(0) || found.connection.is_open(1))
            {
                found.connection.silence();
                if !silently {
                    self.ended(pipe, 0);
                    self.ended(pipe, 1);
                }
            }
        }
    }

    pub fn mend(&mut self, edge: usize) {
        if self.edges[edge].is_cut {
            self.mended = self.now;
        }
        self.edges[edge].is_cut = false;
    }

    /// Who waits for CONNACK may be told of another session than the one that it has.
    fn part(&mut self) {
        for client in &mut self.clients {
            client.parted |= client.pipe.is_some() && !client.is_connected();
        }
    }

    /// Connects a client to its broker, unless it is connected.
    pub fn connect(&mut self, client: usize) {
        let home = self.clients[client].home;
        let site = self.sites.get(home);
        let runs = site.is_some_and(|site| site.running.is_some());
        if self.clients[client].pipe.is_none() && runs {
            let delay = Nanos(self.rng.within(50_000..=1_000_000));
            let pipe = self.pipe([End::Client(client), End::Accepting(home)], delay);
            if self.clients[client].refused.is_none() {
                self.bequeath(client);
            }
            self.clients[client].parted = !self.is_whole(Nanos::from_secs(3));
            self.clients[client].connect(pipe);
            self.flush(client);
        }
    }

    /// A client that is always there subscribes to all these filters at a broker.
    pub fn subscribe_much(&mut self, n: usize, filters: Vec<String>) {
        let now = self.now;
        let nonce = u128::from(self.rng.any());
        let Some(running) = &mut self.sites[n].running else {
            return;
        };
        let conn = running.accept(nonce, now);
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
        running.receive(conn, &bytes, now);
        self.settle(n);
    }

    /// Whether all brokers run and all edges have been there for as long.
    pub fn is_whole(&self, since: Nanos) -> bool {
        let whole = self.edges.iter().all(|edge| !edge.is_cut)
            && self.sites.iter().all(|site| site.running.is_some());
        whole && self.now - self.mended > since
    }

    /// What a client leaves behind with its next connection is another message.
    fn bequeath(&mut self, client: usize) {
        let number = self.published.len() as u64;
        if let Some(bequest) = &mut self.clients[client].bequest {
            bequest.numbers.push(number);
            let message = Published {
                publisher: client,
                topic: bequest.topic,
                qos: bequest.qos,
                retain: bequest.retain,
                is_empty: false,
                sent: self.now,
                fate: Fate::Unknown,
            };
            self.published.insert(number, message);
        }
    }

    /// A client's connection breaks.
    pub fn hang_up(&mut self, client: usize) {
        if let Some(clean) = self.clients[client].refused.take() {
            self.clients[client].clean_start |= clean;
        }
        if let Some(pipe) = self.clients[client].pipe {
            self.pipes[pipe].connection.silence();
            self.ended(pipe, 0);
            self.ended(pipe, 1);
        }
    }

    /// A client's connection breaks, and it connects to that broker.
    pub fn move_to(&mut self, client: usize, home: usize) {
        self.hang_up(client);
        self.clients[client].home = home;
        self.connect(client);
    }

    /// A client's connection breaks, and its broker does not notice.
    pub fn vanish(&mut self, client: usize) {
        if let Some(pipe) = self.clients[client].pipe {
            self.pipes[pipe].connection.silence();
            self.ended(pipe, 0);
        }
    }

    fn flush(&mut self, client: usize) {
        if let Some(pipe) = self.clients[client].pipe {
            let bytes = self.clients[client].take_out();
            self.write(pipe, 0, bytes);
        }
    }

    /// A client says that it is there, if it is connected.
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
            sent: self.now,
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

    /// Notes what publishers were answered.
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

/// The numbers of the messages in what a broker sends to a neighbour.
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
