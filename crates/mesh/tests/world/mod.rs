//! Large meshes of nodes in virtual time, for tests of the tree and the tables. Code around each
//! [`Node`] does what its shell does: it connects to neighbours, and a durable store keeps the
//! filters of each neighbour. Connections keep their order; they break, fall silent and are
//! restored; brokers crash and restart. Tests of messages use real brokers (`whole`).

use std::collections::{BTreeMap, BTreeSet};

use punctual_mesh::wire::{Message, Open};
use punctual_mesh::{BrokerId, LinkId, Node, Output, Settings};
use punctual_model::{Nanos, Rng};
use punctual_sim::{Dialled, Edge, NetworkEvent, Socket, VirtualNetwork};

#[derive(Debug)]
pub enum Frame {
    Open(Open),
    Mesh(Vec<u8>),
}

pub struct Broker {
    pub node: Option<Node>,
    settings: Settings,
    own: BTreeSet<String>,
    /// Filters of each neighbour, as in the broker's store.
    interest: BTreeMap<BrokerId, BTreeSet<Box<str>>>,
    sockets: BTreeMap<LinkId, Socket>,
}

/// One end of a connection.
#[derive(Debug)]
pub struct End {
    broker: usize,
    /// The link, when the neighbour has identified itself.
    link: Option<LinkId>,
}

impl End {
    fn new(broker: usize) -> Self {
        Self { broker, link: None }
    }
}

/// A timer of a broker.
#[derive(Debug)]
pub struct Tick(usize);

pub struct World {
    pub network: VirtualNetwork<End, Frame, Tick>,
    pub brokers: Vec<Broker>,
    /// Pairs of sender and receiver between which all bytes are lost, over connections that both
    /// regard as open.
    pub mute: BTreeSet<[usize; 2]>,
    /// Random additional delay of frames, up to a maximum; frames stay in order.
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
                sockets: BTreeMap::new(),
            }
        });
        let mut world = Self {
            network: VirtualNetwork::new(Nanos::from_secs(1), edges),
            brokers: brokers.collect(),
            mute: BTreeSet::new(),
            noise: None,
            control_bytes: 0,
            hellos: 0,
        };
        for broker in 0..world.brokers.len() {
            world.start(broker);
        }
        world.network.dial_all();
        world
    }

    pub fn now(&self) -> Nanos {
        self.network.now()
    }

    /// Starts a broker with the contents of its store.
    pub fn start(&mut self, n: usize) {
        let now = self.now();
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

    /// Crashes a broker; its operating system closes the connections.
    pub fn crash(&mut self, n: usize) {
        self.brokers[n].node = None;
        self.brokers[n].sockets.clear();
        for socket in self.network.sockets(|end| end.broker == n) {
            self.close(socket);
        }
    }

    /// Cuts an edge; with `silently`, its ends are not notified.
    pub fn cut(&mut self, edge: usize, silently: bool) {
        for connection in self.network.cut(edge) {
            for side in (0..2).filter(|_| !silently) {
                self.close(Socket { connection, side });
            }
        }
    }

    pub fn mend(&mut self, edge: usize) {
        self.network.mend(edge);
    }

    /// One end of a connection closes it.
    fn close(&mut self, at: Socket) {
        if self.network.close(at) {
            self.ended(at, "closed here");
        }
    }

    fn ended(&mut self, at: Socket, why: &str) {
        let now = self.now();
        let end = self.network.end_mut(at);
        let n = end.broker;
        let Some(link) = end.link.take() else {
            return;
        };
        let broker = &mut self.brokers[n];
        if broker.sockets.get(&link) == Some(&at) {
            broker.sockets.remove(&link);
            if let Some(node) = &mut broker.node {
                node.link_down(link, why, now);
            }
        }
        self.after(n);
    }

    fn send(&mut self, from: Socket, frame: Frame) {
        if !self.network.is_live(from) {
            return;
        }
        if let Frame::Mesh(bytes) = &frame {
            self.control_bytes += bytes.len() as u64;
            self.hellos += u64::from(matches!(Message::decode(bytes), Ok(Message::Hello(_))));
        }
        let ends = [from, from.peer()].map(|socket| self.network.end(socket).broker);
        if self.mute.contains(&ends) && !matches!(frame, Frame::Open(_)) {
            return;
        }
        let late = self
            .noise
            .as_mut()
            .map_or(Nanos(0), |(rng, most)| Nanos(rng.below(most.0)));
        self.network.send(from, frame, late);
    }

    /// Lets time pass.
    pub fn run(&mut self, until: Nanos) {
        while let Some(event) = self.network.next(until) {
            self.handle(event);
        }
    }

    /// No broker runs for a while: events are handled at the end of that time, and clocks have
    /// advanced before any broker reads the bytes that have arrived.
    pub fn stand_still(&mut self, time: Nanos) {
        let ticks = (0..self.brokers.len()).map(Tick);
        self.network.stand_still(time, ticks);
    }

    pub fn run_for(&mut self, millis: u64) {
        self.run(self.now() + Nanos::from_millis(millis));
    }

    fn handle(&mut self, event: NetworkEvent<Frame, Tick>) {
        let now = self.now();
        match event {
            NetworkEvent::Other(Tick(n)) => {
                if let Some(node) = &mut self.brokers[n].node
                    && node.next_timeout() <= now
                {
                    node.tick(now);
                    self.after(n);
                }
            }
            NetworkEvent::Dial(edge) => self.dial(edge),
            NetworkEvent::Ended(at) => {
                self.network.drop_end(at);
                self.ended(at, "closed by the neighbour");
            }
            NetworkEvent::Arrived(at, frame) => self.received(at, frame),
        }
    }

    fn dial(&mut self, edge: usize) {
        let runs = |n: usize| self.brokers[n].node.is_some();
        let has_heard = |end: &End| end.link.is_some();
        match self.network.dial(edge, runs, has_heard) {
            Dialled::Nothing | Dialled::Fails => {}
            Dialled::GivesUp(socket) => {
                self.close(socket);
                self.dial(edge);
            }
            Dialled::Connects => {
                let ends = self.network.edges[edge].ends;
                if let Some(node) = &self.brokers[ends[0]].node {
                    let open = node.open(true);
                    let connection = self.network.connect_over(edge, ends.map(End::new));
                    let socket = Socket {
                        connection,
                        side: 0,
                    };
                    self.send(socket, Frame::Open(open));
                }
            }
        }
    }

    fn received(&mut self, at: Socket, frame: Frame) {
        let now = self.now();
        let n = self.network.end(at).broker;
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
                        let old = broker.sockets.insert(link, at);
                        self.network.end_mut(at).link = Some(link);
                        if let Some(answer) = answer {
                            self.send(at, Frame::Open(answer));
                        }
                        if let Some(old) = old {
                            self.abandon(old);
                        }
                    }
                    Err(_) => self.close(at),
                }
            }
            Frame::Mesh(bytes) => {
                if let Some(link) = self.network.end(at).link
                    && broker.sockets.get(&link) == Some(&at)
                {
                    node.receive(link, &bytes, now)
                        .expect("neighbours speak well");
                }
            }
        }
        self.after(n);
    }

    /// Closes a connection that another has replaced.
    fn abandon(&mut self, at: Socket) {
        self.network.end_mut(at).link = None;
        self.close(at);
    }

    /// A client of a broker subscribes.
    pub fn subscribe(&mut self, n: usize, filter: &str) {
        let now = self.now();
        let broker = &mut self.brokers[n];
        if broker.own.insert(filter.into())
            && let Some(node) = &mut broker.node
        {
            node.subscribe(filter, false, now);
            self.after(n);
        }
    }

    /// Performs the outputs of a node, and schedules its next timer.
    fn after(&mut self, n: usize) {
        loop {
            let Some(node) = &mut self.brokers[n].node else {
                return;
            };
            let outputs = node.take_outputs();
            if outputs.is_empty() {
                let at = node.next_timeout();
                if at < Nanos::MAX {
                    self.network.schedule(at.max(self.now()), Tick(n));
                }
                return;
            }
            for output in outputs {
                self.act(n, output);
            }
        }
    }

    fn act(&mut self, n: usize, output: Output) {
        let now = self.now();
        let broker = &mut self.brokers[n];
        let Some(node) = &mut broker.node else {
            return;
        };
        match output {
            Output::Send(link, bytes) => {
                if let Some(socket) = broker.sockets.get(&link).copied() {
                    self.send(socket, Frame::Mesh(bytes));
                }
            }
            Output::Close(link, _) => {
                if let Some(socket) = broker.sockets.remove(&link) {
                    self.abandon(socket);
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
            // Here no message is in flight for long.
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

    /// Sets of running brokers that reach each other.
    pub fn components(&self) -> Vec<BTreeSet<usize>> {
        let mut left: BTreeSet<usize> = (0..self.brokers.len())
            .filter(|n| self.brokers[*n].node.is_some())
            .collect();
        let mut components = Vec::new();
        while let Some(first) = left.pop_first() {
            let mut component = BTreeSet::from([first]);
            loop {
                let next: Vec<usize> = self
                    .network
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

    /// Number of connections so far.
    pub fn connections(&self) -> usize {
        self.network.connections()
    }

    /// Links that both ends use in the tree, child first.
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

    /// Whether all brokers of each component agree on the best one as root and are connected by the
    /// tree; an error if links that both ends use form a cycle.
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

    /// Runs until [`Self::settled`], for at most that time; returns the time it took.
    pub fn settle(&mut self, most: Nanos) -> Nanos {
        let start = self.now();
        while !self.settled().unwrap() {
            assert!(self.now() - start < most, "not settled after {most:?}");
            self.run_for(5);
        }
        self.now() - start
    }
}
