//! Brokers of a mesh in virtual time: real [`Node`]s, and around each what its
//! shell and broker do, as far as messages depend on it: a session for every
//! neighbour (filters, queue, what is in flight), hop-by-hop acknowledgement, and
//! names that are recognised. Connections keep their order; they break, fall silent
//! and come back; brokers crash and start again with what a durable store keeps.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, HashMap, VecDeque};

use punctual_mesh::seen::{Name, Seen, Verdict};
use punctual_mesh::wire::{Message, Open};
use punctual_mesh::{BrokerId, LinkId, Node, Output, Settings};
use punctual_model::{Nanos, Rng};

#[derive(Debug, Clone)]
struct Msg {
    name: Name,
    topic: String,
    /// It was sent over another link before.
    again: bool,
}

#[derive(Debug, Clone)]
enum Frame {
    Open(Open),
    Mesh(Vec<u8>),
    Publish(Msg),
    Ack(Name),
}

/// What a broker keeps for a neighbour.
#[derive(Debug, Default)]
struct Session {
    filters: BTreeSet<Box<str>>,
    queue: VecDeque<Msg>,
    /// Sent and not acknowledged; the front of what `queue` would be.
    flight: VecDeque<Msg>,
    /// The connection that carries, if one does.
    conn: Option<usize>,
}

impl Session {
    fn matches(&self, topic: &str) -> bool {
        self.filters
            .iter()
            .any(|f| punctual_codec::topic::matches(f, topic))
    }

    /// Whether the same message, sent again too, is there.
    fn has_copy(&self, msg: &Msg) -> bool {
        let mut all = self.flight.iter().chain(&self.queue);
        msg.again && all.any(|other| other.again && other.name == msg.name)
    }

    fn rewind(&mut self) {
        while let Some(msg) = self.flight.pop_back() {
            self.queue.push_front(msg);
        }
    }
}

pub struct Broker {
    pub node: Option<Node>,
    settings: Settings,
    pub own: BTreeSet<String>,
    sessions: BTreeMap<BrokerId, Session>,
    seen: Seen,
    conns: BTreeMap<LinkId, usize>,
    next: u32,
    /// What its clients got, in order.
    pub received: Vec<(Name, String)>,
    pub repeated: u64,
}

#[derive(Debug)]
struct Conn {
    /// Who dialled first.
    ends: [usize; 2],
    links: [Option<LinkId>; 2],
    closed: [bool; 2],
    silent: bool,
    since: Nanos,
    /// When the last byte of each direction arrives.
    arrives: [Nanos; 2],
}

#[derive(Debug, Clone)]
enum Event {
    Frame {
        conn: usize,
        to: usize,
        frame: Frame,
    },
    End {
        conn: usize,
        to: usize,
    },
    Tick(usize),
    Dial(usize),
}

pub struct Edge {
    pub ends: [usize; 2],
    pub delay: Nanos,
    /// No connection can be made, and those that exist carry nothing.
    pub cut: bool,
}

pub struct World {
    pub now: Nanos,
    pub brokers: Vec<Broker>,
    pub edges: Vec<Edge>,
    conns: Vec<Conn>,
    events: BinaryHeap<Reverse<(Nanos, u64)>>,
    what: HashMap<u64, Event>,
    serial: u64,
    /// From which broker nothing comes to which, over connections that both take to be open.
    pub mute: BTreeSet<[usize; 2]>,
    /// By how much frames are late, each by another time, and in their order.
    pub noise: Option<(Rng, Nanos)>,
    pub control_bytes: u64,
    pub hellos: u64,
    pub publishes: u64,
}

pub fn name(n: usize) -> BrokerId {
    BrokerId::new(&format!("b{n:03}")).unwrap()
}

fn number(id: &BrokerId) -> usize {
    id.as_str()[1..].parse().unwrap()
}

impl World {
    pub fn new(capacities: &[u64], edges: Vec<Edge>, change: impl Fn(&mut Settings)) -> Self {
        let brokers = capacities.iter().enumerate().map(|(n, capacity)| {
            let mut settings = Settings::new(name(n), 1, *capacity);
            change(&mut settings);
            Broker {
                node: None,
                settings,
                own: BTreeSet::new(),
                sessions: BTreeMap::new(),
                seen: Seen::new(100_000),
                conns: BTreeMap::new(),
                next: 0,
                received: Vec::new(),
                repeated: 0,
            }
        });
        let mut world = Self {
            now: Nanos::from_secs(1),
            brokers: brokers.collect(),
            edges,
            conns: Vec::new(),
            events: BinaryHeap::new(),
            what: HashMap::new(),
            serial: 0,
            mute: BTreeSet::new(),
            noise: None,
            control_bytes: 0,
            hellos: 0,
            publishes: 0,
        };
        for broker in 0..world.brokers.len() {
            world.start(broker);
        }
        for edge in 0..world.edges.len() {
            world.at(world.now, Event::Dial(edge));
        }
        world
    }

    fn at(&mut self, at: Nanos, event: Event) {
        self.serial += 1;
        self.what.insert(self.serial, event);
        self.events.push(Reverse((at, self.serial)));
    }

    /// Starts a broker with what it kept.
    pub fn start(&mut self, n: usize) {
        let now = self.now;
        let broker = &mut self.brokers[n];
        if broker.node.is_some() {
            return;
        }
        broker.settings.instance += 1;
        let mut node = Node::new(broker.settings.clone(), now);
        for filter in &broker.own {
            node.subscribe(filter, false, now);
        }
        for (peer, session) in &mut broker.sessions {
            session.rewind();
            session.conn = None;
            let filters = session.filters.iter().cloned().collect();
            node.remember(peer, filters, Vec::new(), Vec::new(), now);
        }
        broker.node = Some(node);
        self.after(n);
    }

    /// Ends a broker without a word; its system closes the connections.
    pub fn crash(&mut self, n: usize) {
        self.brokers[n].node = None;
        self.brokers[n].conns.clear();
        for session in self.brokers[n].sessions.values_mut() {
            session.conn = None;
        }
        for conn in 0..self.conns.len() {
            if let Some(side) = self.conns[conn].ends.iter().position(|end| *end == n) {
                self.close(conn, side);
            }
        }
    }

    /// Nothing passes an edge from now on, and nobody is told.
    pub fn cut(&mut self, edge: usize, silently: bool) {
        self.edges[edge].cut = true;
        let ends = self.edges[edge].ends;
        for conn in 0..self.conns.len() {
            let found = &mut self.conns[conn];
            if found.ends == ends || found.ends == [ends[1], ends[0]] {
                if silently {
                    found.silent = true;
                } else {
                    self.close(conn, 0);
                    self.close(conn, 1);
                }
            }
        }
    }

    pub fn mend(&mut self, edge: usize) {
        self.edges[edge].cut = false;
    }

    /// One end of a connection closes it.
    fn close(&mut self, conn: usize, side: usize) {
        if std::mem::replace(&mut self.conns[conn].closed[side], true) {
            return;
        }
        let to = 1 - side;
        if !self.conns[conn].silent {
            let at = self.conns[conn].arrives[to].max(self.now);
            self.at(at, Event::End { conn, to });
        }
        let n = self.conns[conn].ends[side];
        self.ended(conn, n, side, "closed here");
    }

    fn ended(&mut self, conn: usize, n: usize, side: usize, why: &str) {
        let now = self.now;
        let Some(link) = self.conns[conn].links[side].take() else {
            return;
        };
        let broker = &mut self.brokers[n];
        for session in broker.sessions.values_mut() {
            if session.conn == Some(conn) {
                session.conn = None;
                session.rewind();
            }
        }
        if broker.conns.get(&link) == Some(&conn) {
            broker.conns.remove(&link);
            if let Some(node) = &mut broker.node {
                node.link_down(link, why, now);
            }
        }
        self.after(n);
    }

    fn send(&mut self, conn: usize, from: usize, frame: Frame) {
        let Some(side) = self.conns[conn].ends.iter().position(|end| *end == from) else {
            return;
        };
        if self.conns[conn].closed[side] || self.conns[conn].silent {
            return;
        }
        match &frame {
            Frame::Mesh(bytes) => {
                self.control_bytes += bytes.len() as u64;
                self.hellos += u64::from(matches!(Message::decode(bytes), Ok(Message::Hello(_))));
            }
            Frame::Publish(_) => self.publishes += 1,
            _ => {}
        }
        let to = 1 - side;
        let is_mute = self.mute.contains(&[from, self.conns[conn].ends[to]]);
        if is_mute && !matches!(frame, Frame::Open(_)) {
            return;
        }
        let late = self
            .noise
            .as_mut()
            .map_or(Nanos(0), |(rng, most)| Nanos(rng.below(most.0)));
        let delay = self.delay(conn) + late;
        let at = self.conns[conn].arrives[to].max(self.now + delay);
        self.conns[conn].arrives[to] = at;
        self.at(at, Event::Frame { conn, to, frame });
    }

    fn delay(&self, conn: usize) -> Nanos {
        let [a, b] = self.conns[conn].ends;
        let edge = self
            .edges
            .iter()
            .find(|e| e.ends == [a, b] || e.ends == [b, a]);
        edge.map_or(Nanos(0), |edge| edge.delay)
    }

    /// Lets time pass.
    pub fn run(&mut self, until: Nanos) {
        while let Some(Reverse((at, _))) = self.events.peek()
            && *at <= until
        {
            let Some(Reverse((at, serial))) = self.events.pop() else {
                break;
            };
            self.now = at;
            if let Some(event) = self.what.remove(&serial) {
                self.handle(event);
            }
        }
        self.now = until;
    }

    /// No broker runs for a while: what happens meanwhile happens then, and clocks have gone on before
    /// anybody reads what has come.
    pub fn stand_still(&mut self, time: Nanos) {
        let until = self.now + time;
        let mut due = Vec::new();
        while let Some(Reverse((at, _))) = self.events.peek()
            && *at <= until
        {
            due.extend(self.events.pop().and_then(|it| self.what.remove(&it.0.1)));
        }
        self.now = until;
        for n in 0..self.brokers.len() {
            self.at(until, Event::Tick(n));
        }
        due.into_iter().for_each(|event| self.at(until, event));
    }

    pub fn run_for(&mut self, millis: u64) {
        self.run(self.now + Nanos::from_millis(millis));
    }

    fn handle(&mut self, event: Event) {
        let now = self.now;
        match event {
            Event::Tick(n) => {
                if let Some(node) = &mut self.brokers[n].node
                    && node.next_timeout() <= now
                {
                    node.tick(now);
                    self.after(n);
                }
            }
            Event::Dial(edge) => {
                self.dial(edge);
                self.at(now + Nanos::from_millis(100), Event::Dial(edge));
            }
            Event::End { conn, to } => {
                let n = self.conns[conn].ends[to];
                self.conns[conn].closed[to] = true;
                self.ended(conn, n, to, "closed by the neighbour");
            }
            Event::Frame { conn, to, frame } => {
                if self.conns[conn].closed[to] || self.conns[conn].silent {
                    return;
                }
                let n = self.conns[conn].ends[to];
                self.received(n, conn, to, frame);
                self.after(n);
            }
        }
    }

    fn dial(&mut self, edge: usize) {
        let Edge { ends, cut, .. } = self.edges[edge];
        // Who does not say who it is is not waited for.
        let mute = |conn: &Conn| {
            let patience = Nanos::from_secs(1);
            conn.ends == ends && conn.links[0].is_none() && self.now - conn.since > patience
        };
        if let Some(mute) = self.conns.iter().position(|c| mute(c) && !c.closed[0]) {
            self.close(mute, 0);
        }
        let connected = self.conns.iter().any(|c| c.ends == ends && !c.closed[0]);
        let Some(node) = &self.brokers[ends[0]].node else {
            return;
        };
        if cut || connected || self.brokers[ends[1]].node.is_none() {
            return;
        }
        let open = node.open(true);
        self.conns.push(Conn {
            ends,
            links: [None, None],
            closed: [false, false],
            silent: false,
            since: self.now,
            arrives: [self.now, self.now],
        });
        self.send(self.conns.len() - 1, ends[0], Frame::Open(open));
    }

    fn received(&mut self, n: usize, conn: usize, side: usize, frame: Frame) {
        let now = self.now;
        let broker = &mut self.brokers[n];
        let Some(node) = &mut broker.node else {
            return;
        };
        match frame {
            Frame::Open(open) => {
                let answer = open.dialled.then(|| node.open(false));
                match node.link_up(&open, 1.0, now) {
                    Ok(link) => {
                        // A replaced connection is closed by an output.
                        let old = broker.conns.insert(link, conn);
                        self.conns[conn].links[side] = Some(link);
                        if let Some(answer) = answer {
                            self.send(conn, n, Frame::Open(answer));
                        }
                        if let Some(old) = old {
                            self.abandon(old, n);
                        }
                    }
                    Err(_) => self.close(conn, side),
                }
            }
            Frame::Mesh(bytes) => {
                if let Some(link) = self.conns[conn].links[side]
                    && broker.conns.get(&link) == Some(&conn)
                {
                    node.receive(link, &bytes, now)
                        .expect("neighbours speak well");
                }
            }
            Frame::Publish(msg) => {
                let from = name(self.conns[conn].ends[1 - side]);
                self.send(conn, n, Frame::Ack(msg.name));
                let broker = &mut self.brokers[n];
                match broker.seen.judge(msg.name, msg.again) {
                    Verdict::New => {
                        broker.seen.note(msg.name);
                        self.publish_from(n, Some(from), msg, true);
                    }
                    Verdict::Seen | Verdict::Unknown => {
                        broker.repeated += 1;
                        if msg.again {
                            self.publish_from(n, Some(from), msg, false);
                        }
                    }
                }
            }
            Frame::Ack(name) => {
                let from = self::name(self.conns[conn].ends[1 - side]);
                if let Some(session) = broker.sessions.get_mut(&from) {
                    session.flight.retain(|msg| msg.name != name);
                }
            }
        }
    }

    /// Closes a connection that another has replaced.
    fn abandon(&mut self, conn: usize, n: usize) {
        if let Some(side) = self.conns[conn].ends.iter().position(|end| *end == n) {
            self.conns[conn].links[side] = None;
            self.close(conn, side);
        }
    }

    /// A client of a broker publishes; acknowledged at once.
    pub fn publish(&mut self, n: usize, topic: &str) -> Name {
        let broker = &mut self.brokers[n];
        broker.next += 1;
        let name = Name {
            origin: n as u32,
            number: broker.next,
        };
        broker.seen.note(name);
        let msg = Msg {
            name,
            topic: topic.into(),
            again: false,
        };
        self.publish_from(n, None, msg, true);
        name
    }

    fn publish_from(&mut self, n: usize, from: Option<BrokerId>, msg: Msg, new: bool) {
        let broker = &mut self.brokers[n];
        if new
            && broker
                .own
                .iter()
                .any(|f| punctual_codec::topic::matches(f, &msg.topic))
        {
            broker.received.push((msg.name, msg.topic.clone()));
        }
        for (peer, session) in &mut broker.sessions {
            let kept = session.conn.is_none() && session.has_copy(&msg);
            if Some(peer) != from.as_ref() && session.matches(&msg.topic) && !kept {
                session.queue.push_back(msg.clone());
            }
        }
        self.pump(n);
    }

    fn pump(&mut self, n: usize) {
        let mut due = Vec::new();
        for session in self.brokers[n].sessions.values_mut() {
            if let Some(conn) = session.conn {
                while let Some(msg) = session.queue.pop_front() {
                    session.flight.push_back(msg.clone());
                    due.push((conn, msg));
                }
            }
        }
        for (conn, msg) in due {
            self.send(conn, n, Frame::Publish(msg));
        }
    }

    /// A client of a broker subscribes.
    pub fn subscribe(&mut self, n: usize, filter: &str) {
        let now = self.now;
        let broker = &mut self.brokers[n];
        if broker.own.insert(filter.into())
            && let Some(node) = &mut broker.node
        {
            node.subscribe(filter, false, now);
            self.after(n);
        }
    }

    /// Does what a node asks, and sees to it that its time comes.
    fn after(&mut self, n: usize) {
        loop {
            let Some(node) = &mut self.brokers[n].node else {
                return;
            };
            let outputs = node.take_outputs();
            if outputs.is_empty() {
                let at = node.next_timeout();
                if at < Nanos::MAX {
                    self.at(at.max(self.now), Event::Tick(n));
                }
                return;
            }
            for output in outputs {
                self.act(n, output);
            }
            self.pump(n);
        }
    }

    fn act(&mut self, n: usize, output: Output) {
        let now = self.now;
        let broker = &mut self.brokers[n];
        let Some(node) = &mut broker.node else {
            return;
        };
        match output {
            Output::Send(link, bytes) => {
                if let Some(conn) = broker.conns.get(&link).copied() {
                    self.send(conn, n, Frame::Mesh(bytes));
                }
            }
            Output::Close(link, _) => {
                if let Some(conn) = broker.conns.remove(&link) {
                    self.abandon(conn, n);
                    for session in self.brokers[n].sessions.values_mut() {
                        if session.conn == Some(conn) {
                            session.conn = None;
                            session.rewind();
                        }
                    }
                }
            }
            Output::Carry {
                link, carries: on, ..
            } => {
                let Some(peer) = node.peer(link).cloned() else {
                    return;
                };
                let conn = broker.conns.get(&link).copied().filter(|_| on);
                let session = broker.sessions.entry(peer).or_default();
                session.rewind();
                session.conn = conn;
            }
            Output::Interest { link, add, remove } => {
                let Some(peer) = node.peer(link).cloned() else {
                    return;
                };
                let session = broker.sessions.entry(peer).or_default();
                session.filters.extend(add);
                remove.iter().for_each(|f| {
                    session.filters.remove(f);
                });
            }
            Output::Members { .. }
            | Output::Behind { .. }
            | Output::Leads { .. }
            | Output::Lasting { .. }
            | Output::Narrow(_)
            | Output::Trim(_) => {}
            Output::Copy { from, to, moves } => {
                let kept: Vec<Msg> = broker
                    .sessions
                    .get(&from)
                    .into_iter()
                    .flat_map(|s| s.flight.iter().chain(&s.queue))
                    .map(|msg| Msg {
                        again: true,
                        ..msg.clone()
                    })
                    .collect();
                if let Some(session) = broker.sessions.get_mut(&from).filter(|_| moves) {
                    session.queue.clear();
                    session.flight.clear();
                }
                let session = broker.sessions.entry(to).or_default();
                for msg in kept {
                    if !session.has_copy(&msg) {
                        session.queue.push_back(msg);
                    }
                }
            }
            Output::Forget { peer, .. } => {
                if let Some(session) = broker.sessions.get_mut(&peer) {
                    session.filters.clear();
                    session.queue.clear();
                    session.flight.clear();
                }
            }
            Output::Keep(number) => node.kept(number, now),
            // Nothing is under way for long here.
            Output::Flush { number, .. } => node.flushed(number),
            Output::Reached
            | Output::Hold { .. }
            | Output::Arrived(_)
            | Output::Will { .. }
            | Output::Published { .. }
            | Output::LookUp { .. }
            | Output::Located { .. }
            | Output::Reach { .. }
            | Output::FenceAsked { .. }
            | Output::FencePassed { .. }
            | Output::Letter { .. }
            | Output::Traced(_)
            | Output::Membership(_)
            | Output::Event(_) => {}
        }
    }

    /// Brokers that are up and reach each other.
    pub fn components(&self) -> Vec<BTreeSet<usize>> {
        let mut left: BTreeSet<usize> = (0..self.brokers.len())
            .filter(|n| self.brokers[*n].node.is_some())
            .collect();
        let mut components = Vec::new();
        while let Some(first) = left.pop_first() {
            let mut component = BTreeSet::from([first]);
            loop {
                let next: Vec<usize> = self
                    .edges
                    .iter()
                    .filter(|edge| !edge.cut)
                    .flat_map(|edge| [edge.ends, [edge.ends[1], edge.ends[0]]])
                    .filter(|[a, b]| component.contains(a) && left.contains(b))
                    .map(|[_, b]| b)
                    .collect();
                if next.is_empty() {
                    break;
                }
                for n in next {
                    left.remove(&n);
                    component.insert(n);
                }
            }
            components.push(component);
        }
        components
    }

    /// Connections so far.
    pub fn connections(&self) -> usize {
        self.conns.len()
    }

    /// Links held by both ends, child first.
    pub fn held(&self) -> Vec<(usize, usize)> {
        let mut held = Vec::new();
        for (child, broker) in self.brokers.iter().enumerate() {
            let Some(node) = &broker.node else { continue };
            let Some((link, true)) = node.tree().parent() else {
                continue;
            };
            let Some(parent) = node.peer(link).map(number) else {
                continue;
            };
            let back = self.brokers[parent].node.as_ref().is_some_and(|node| {
                node.status()
                    .links
                    .iter()
                    .any(|l| l.peer == name(child) && l.edge == punctual_mesh::tree::Edge::Child)
            });
            if back {
                held.push((child, parent));
            }
        }
        held
    }

    /// Whether every component agrees on its best broker as root and is held
    /// together; an error where links that both ends hold form a circle.
    pub fn settled(&self) -> Result<bool, String> {
        let held = self.held();
        let mut part: Vec<usize> = (0..self.brokers.len()).collect();
        for (a, b) in &held {
            let (a, b) = (part[*a], part[*b]);
            if a == b {
                return Err(format!("a circle: {held:?}"));
            }
            part.iter_mut().filter(|p| **p == a).for_each(|p| *p = b);
        }
        for component in self.components() {
            let nodes = component
                .iter()
                .filter_map(|n| self.brokers[*n].node.as_ref());
            let statuses: Vec<_> = nodes.map(Node::status).collect();
            let best = statuses.iter().map(|s| punctual_mesh::Rank {
                capacity: s.capacity,
                id: s.id.clone(),
            });
            let best = best.min();
            if statuses
                .iter()
                .any(|s| Some(&s.root) != best.as_ref() || !s.attached)
            {
                return Ok(false);
            }
            let links = held
                .iter()
                .filter(|(child, _)| component.contains(child))
                .count();
            if links + 1 != component.len() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Runs until [`Self::settled`], at most that long; says how long it took.
    pub fn settle(&mut self, most: Nanos) -> Nanos {
        let start = self.now;
        while !self.settled().unwrap() {
            assert!(self.now - start < most, "not settled after {most:?}");
            self.run_for(5);
        }
        self.now - start
    }
}

/// A connected graph with some more edges than a tree.
pub fn graph(rng: &mut Rng, n: usize, more: usize) -> Vec<Edge> {
    let mut pairs: BTreeSet<(usize, usize)> = BTreeSet::new();
    for b in 1..n {
        pairs.insert((rng.index(b), b));
    }
    for _ in 0..more {
        let (a, b) = (rng.index(n), rng.index(n));
        if a != b {
            pairs.insert((a.min(b), a.max(b)));
        }
    }
    let edges = pairs.into_iter().map(|(a, b)| Edge {
        ends: if rng.chance(50) { [a, b] } else { [b, a] },
        delay: Nanos(100_000 + rng.below(5_000_000)),
        cut: false,
    });
    edges.collect()
}
