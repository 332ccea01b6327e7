//! Large meshes in virtual time, of nodes alone: what is about the tree and the tables. Around
//! each [`Node`] is what its shell does: it connects to its neighbours, and a durable store keeps
//! what each neighbour wants. Connections keep their order; they break, fall silent and come back;
//! brokers crash and start again. What becomes of messages is tested with real brokers (`whole`).

use std::collections::{BTreeMap, BTreeSet};

use punctual_mesh::wire::{Message, Open};
use punctual_mesh::{BrokerId, LinkId, Node, Output, Settings};
use punctual_model::{Nanos, Rng};
use punctual_sim::{Connection, Edge, Queue};

#[derive(Debug)]
enum Frame {
    Open(Open),
    Mesh(Vec<u8>),
}

pub struct Broker {
    pub node: Option<Node>,
    settings: Settings,
    own: BTreeSet<String>,
    /// What neighbours want, as its store has it.
    interest: BTreeMap<BrokerId, BTreeSet<Box<str>>>,
    conns: BTreeMap<LinkId, usize>,
}

#[derive(Debug)]
struct Conn {
    /// Who dialled first.
    ends: [usize; 2],
    links: [Option<LinkId>; 2],
    connection: Connection,
}

#[derive(Debug)]
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

pub struct World {
    pub now: Nanos,
    pub brokers: Vec<Broker>,
    pub edges: Vec<Edge>,
    conns: Vec<Conn>,
    events: Queue<Event>,
    /// From which broker nothing comes to which, over connections that both take to be open.
    pub mute: BTreeSet<[usize; 2]>,
    /// By how much frames are late, each by another time, and in their order.
    pub noise: Option<(Rng, Nanos)>,
    pub control_bytes: u64,
    pub hellos: u64,
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
                interest: BTreeMap::new(),
                conns: BTreeMap::new(),
            }
        });
        let mut world = Self {
            now: Nanos::from_secs(1),
            brokers: brokers.collect(),
            edges,
            conns: Vec::new(),
            events: Queue::new(),
            mute: BTreeSet::new(),
            noise: None,
            control_bytes: 0,
            hellos: 0,
        };
        for broker in 0..world.brokers.len() {
            world.start(broker);
        }
        for edge in 0..world.edges.len() {
            world.events.schedule(world.now, Event::Dial(edge));
        }
        world
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
        for (peer, filters) in &broker.interest {
            let filters = filters.iter().cloned().collect();
            node.remember(peer, filters, Vec::new(), Vec::new(), now);
        }
        broker.node = Some(node);
        self.after(n);
    }

    /// Ends a broker without a word; its system closes the connections.
    pub fn crash(&mut self, n: usize) {
        self.brokers[n].node = None;
        self.brokers[n].conns.clear();
        for conn in 0..self.conns.len() {
            if let Some(side) = self.conns[conn].ends.iter().position(|end| *end == n) {
                self.close(conn, side);
            }
        }
    }

    /// Nothing passes an edge from now on, and nobody is told.
    pub fn cut(&mut self, edge: usize, silently: bool) {
        self.edges[edge].is_cut = true;
        let ends = self.edges[edge].ends;
        for conn in 0..self.conns.len() {
            let found = &mut self.conns[conn];
            if found.ends == ends || found.ends == [ends[1], ends[0]] {
                if silently {
                    found.connection.silence();
                } else {
                    self.close(conn, 0);
                    self.close(conn, 1);
                }
            }
        }
    }

    pub fn mend(&mut self, edge: usize) {
        self.edges[edge].is_cut = false;
    }

    /// One end of a connection closes it.
    fn close(&mut self, conn: usize, side: usize) {
        let connection = &mut self.conns[conn].connection;
        if !connection.close(side) {
            return;
        }
        if let Some(at) = connection.end(side, self.now) {
            let to = 1 - side;
            self.events.schedule(at, Event::End { conn, to });
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
        if !self.conns[conn].connection.is_live(side) {
            return;
        }
        if let Frame::Mesh(bytes) = &frame {
            self.control_bytes += bytes.len() as u64;
            self.hellos += u64::from(matches!(Message::decode(bytes), Ok(Message::Hello(_))));
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
        let at = self.now + self.delay(conn) + late;
        if let Some(at) = self.conns[conn].connection.send(side, at) {
            self.events.schedule(at, Event::Frame { conn, to, frame });
        }
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
        while let Some((at, event)) = self.events.pop(until) {
            self.now = at;
            self.handle(event);
        }
        self.now = until;
    }

    /// No broker runs for a while: what happens meanwhile happens then, and clocks have gone on before
    /// anybody reads what has come.
    pub fn stand_still(&mut self, time: Nanos) {
        let until = self.now + time;
        let due: Vec<_> = std::iter::from_fn(|| self.events.pop(until)).collect();
        self.now = until;
        for n in 0..self.brokers.len() {
            self.events.schedule(until, Event::Tick(n));
        }
        for (_, event) in due {
            self.events.schedule(until, event);
        }
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
                self.events
                    .schedule(now + Nanos::from_millis(100), Event::Dial(edge));
            }
            Event::End { conn, to } => {
                let n = self.conns[conn].ends[to];
                self.conns[conn].connection.close(to);
                self.ended(conn, n, to, "closed by the neighbour");
            }
            Event::Frame { conn, to, frame } => {
                if !self.conns[conn].connection.is_live(to) {
                    return;
                }
                let n = self.conns[conn].ends[to];
                self.received(n, conn, to, frame);
                self.after(n);
            }
        }
    }

    fn dial(&mut self, edge: usize) {
        let Edge { ends, is_cut, .. } = self.edges[edge];
        // Who does not say who it is is not waited for.
        let is_open = |conn: &Conn| conn.ends == ends && conn.connection.is_open(0);
        let mute = |conn: &Conn| {
            let patience = Nanos::from_secs(1);
            conn.links[0].is_none() && self.now - conn.connection.opened > patience
        };
        if let Some(mute) = self.conns.iter().position(|c| is_open(c) && mute(c)) {
            self.close(mute, 0);
        }
        let connected = self.conns.iter().any(is_open);
        let Some(node) = &self.brokers[ends[0]].node else {
            return;
        };
        if is_cut || connected || self.brokers[ends[1]].node.is_none() {
            return;
        }
        let open = node.open(true);
        self.conns.push(Conn {
            ends,
            links: [None, None],
            connection: Connection::new(self.now),
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
        }
    }

    /// Closes a connection that another has replaced.
    fn abandon(&mut self, conn: usize, n: usize) {
        if let Some(side) = self.conns[conn].ends.iter().position(|end| *end == n) {
            self.conns[conn].links[side] = None;
            self.close(conn, side);
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
                    self.events.schedule(at.max(self.now), Event::Tick(n));
                }
                return;
            }
            for output in outputs {
                self.act(n, output);
            }
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
                }
            }
            Output::Interest { link, add, remove } => {
                let Some(peer) = node.peer(link).cloned() else {
                    return;
                };
                let interest = broker.interest.entry(peer).or_default();
                interest.extend(add);
                remove.iter().for_each(|filter| {
                    interest.remove(filter);
                });
            }
            Output::Forget { peer, .. } => {
                broker.interest.remove(&peer);
            }
            Output::CommitInterest(number) => node.interest_committed(number, now),
            // Nothing is under way for long here.
            Output::Flush { number, .. } => node.flushed(number),
            Output::Carry { .. }
            | Output::Members { .. }
            | Output::Behind { .. }
            | Output::Leads { .. }
            | Output::PersistentInterest { .. }
            | Output::Narrow(_)
            | Output::Trim(_)
            | Output::Copy { .. }
            | Output::Reached
            | Output::Hold { .. }
            | Output::Arrived(_)
            | Output::Will { .. }
            | Output::Published { .. }
            | Output::LookUp { .. }
            | Output::Located { .. }
            | Output::Reach { .. }
            | Output::FenceAsked { .. }
            | Output::FencePassed { .. }
            | Output::Envelope { .. }
            | Output::TraceReply(_)
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
                    .filter(|edge| !edge.is_cut)
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
