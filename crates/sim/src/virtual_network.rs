//! The clock, the events and the connections of a simulation.
//!
//! A simulation takes the next event, lets its parties react, and sends, closes and schedules the
//! results. A connection joins two parties, or two nodes over an [`Edge`]. Connections over an edge
//! are dialled again and again, and break when the edge is cut.
//!
//! Invariant: equal calls lead to equal events in equal order. Payloads from one end of a connection
//! arrive in the order of sending, and the end of the connection arrives after them.

use punctual_model::Nanos;

use crate::connection::{Connection, Edge};
use crate::queue::Queue;

/// Time between two attempts to connect over an edge.
const DIAL: Nanos = Nanos::from_millis(100);
/// Time for which a node that has dialled waits for the identity of the other node.
const PATIENCE: Nanos = Nanos::from_secs(1);

/// One end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Socket {
    /// Number of the connection, in the order in which they were opened, from 0 on.
    pub connection: usize,
    /// 0 at the party that opened the connection, 1 at the other.
    pub side: usize,
}

impl Socket {
    /// The other end of the connection.
    #[must_use]
    pub fn peer(self) -> Self {
        Self {
            side: 1 - self.side,
            ..self
        }
    }
}

/// An event of a simulation. `P` is the payload of connections, and `E` the type of the simulation's
/// own events.
#[derive(Debug)]
pub enum NetworkEvent<P, E> {
    /// Something that was sent arrives at a socket that is open.
    Arrived(Socket, P),
    /// A socket that is open learns that nothing more comes: its peer has closed, or has finished.
    Ended(Socket),
    /// The first node of this edge is to connect to the second one ([`VirtualNetwork::dial`]).
    Dial(usize),
    /// An event of the simulation itself.
    Other(E),
}

/// Reaction of a node that is due to connect over an edge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialled {
    /// Nothing: it is connected, or does not run.
    Nothing,
    /// The node closes this end of a connection, because the other node has not identified itself in time.
    GivesUp(Socket),
    /// The attempt fails: the edge is cut, or the other node does not run.
    Fails,
    /// The node connects.
    Connects,
}

/// Source of the delay of a connection.
#[derive(Debug, Clone, Copy)]
enum Way {
    /// The delay of this edge.
    Over(usize),
    /// This time.
    Takes(Nanos),
}

#[derive(Debug)]
struct Wire<N> {
    ends: [N; 2],
    way: Way,
    state: Connection,
}

/// The clock and the events of a simulation, and its connections with a party `N` at each end.
#[derive(Debug)]
pub struct VirtualNetwork<N, P, E> {
    now: Nanos,
    events: Queue<NetworkEvent<P, E>>,
    wires: Vec<Wire<N>>,
    /// The edges over which nodes can connect.
    pub edges: Vec<Edge>,
}

impl<N, P, E> VirtualNetwork<N, P, E> {
    /// A network without connections.
    pub fn new(now: Nanos, edges: Vec<Edge>) -> Self {
        Self {
            now,
            events: Queue::new(),
            wires: Vec::new(),
            edges,
        }
    }

    /// The simulated time.
    pub fn now(&self) -> Nanos {
        self.now
    }

    /// Schedules an event of the simulation.
    pub fn schedule(&mut self, at: Nanos, event: E) {
        self.events.schedule(at, NetworkEvent::Other(event));
    }

    /// Time of the next event, if there is one.
    pub fn next_time(&self) -> Option<Nanos> {
        self.events.next_time()
    }

    /// Takes the next event up to `until`, and sets the clock to its time. Without such an event, sets the
    /// clock to `until`.
    pub fn next(&mut self, until: Nanos) -> Option<NetworkEvent<P, E>> {
        while let Some((at, event)) = self.events.pop(until) {
            self.now = self.now.max(at);
            match &event {
                NetworkEvent::Arrived(to, _) if !self.is_live(*to) => {}
                NetworkEvent::Ended(at) if !self.is_open(*at) => {}
                NetworkEvent::Dial(edge) => {
                    self.schedule_dial(*edge, self.now + DIAL);
                    return Some(event);
                }
                _ => return Some(event),
            }
        }
        self.advance(until);
        None
    }

    /// Sets the clock to `until`, unless it is later already.
    pub fn advance(&mut self, until: Nanos) {
        self.now = self.now.max(until);
    }

    /// Advances the clock by `time` while no party reacts: events that are due meanwhile happen at the end,
    /// after the events `first`.
    pub fn stand_still(&mut self, time: Nanos, first: impl IntoIterator<Item = E>) {
        let until = self.now + time;
        let due: Vec<_> = std::iter::from_fn(|| self.events.pop(until)).collect();
        self.now = until;
        for event in first {
            self.schedule(until, event);
        }
        for (_, event) in due {
            self.events.schedule(until, event);
        }
    }

    /// Whether no event is scheduled.
    pub fn is_quiet(&self) -> bool {
        self.events.is_empty()
    }

    /// Breaks all connections without notice to their ends, and discards all scheduled events.
    pub fn clear(&mut self) {
        self.events.clear();
        let all = self.wires.iter_mut();
        all.for_each(|wire| wire.state.silence());
    }

    /// Opens a connection with this delay; returns its number.
    pub fn connect(&mut self, ends: [N; 2], delay: Nanos) -> usize {
        self.open(ends, Way::Takes(delay))
    }

    /// Opens a connection over an edge, from its first node to the second one; returns its number.
    pub fn connect_over(&mut self, edge: usize, ends: [N; 2]) -> usize {
        self.open(ends, Way::Over(edge))
    }

    fn open(&mut self, ends: [N; 2], way: Way) -> usize {
        self.wires.push(Wire {
            ends,
            way,
            state: Connection::new(self.now),
        });
        self.wires.len() - 1
    }

    /// How many connections have been opened so far.
    pub fn connections(&self) -> usize {
        self.wires.len()
    }

    /// The party at a socket.
    pub fn end(&self, at: Socket) -> &N {
        &self.wires[at.connection].ends[at.side]
    }

    /// The party at a socket, to be changed.
    pub fn end_mut(&mut self, at: Socket) -> &mut N {
        &mut self.wires[at.connection].ends[at.side]
    }

    /// The sockets of all connections so far, open or not, whose party `is_meant` accepts.
    pub fn sockets(&self, is_meant: impl Fn(&N) -> bool) -> Vec<Socket> {
        let all = (0..).zip(&self.wires).flat_map(|(connection, wire)| {
            let sides = (0..).zip(&wire.ends);
            sides.map(move |(side, end)| (Socket { connection, side }, end))
        });
        all.filter(|(_, end)| is_meant(end))
            .map(|(socket, _)| socket)
            .collect()
    }

    /// Sends a payload, which arrives after the delay of the connection plus `late`. It is lost if this end
    /// has closed the connection, or if the connection breaks.
    pub fn send(&mut self, from: Socket, what: P, late: Nanos) {
        if let Some(at) = self.arrival(from, late) {
            let event = NetworkEvent::Arrived(from.peer(), what);
            self.events.schedule(at, event);
        }
    }

    /// Ends the sending direction of a socket, which still receives. The peer is notified after the payloads
    /// in transit.
    pub fn finish(&mut self, from: Socket, late: Nanos) {
        if let Some(at) = self.arrival(from, late) {
            self.events.schedule(at, NetworkEvent::Ended(from.peer()));
        }
    }

    fn arrival(&mut self, from: Socket, late: Nanos) -> Option<Nanos> {
        let wire = &mut self.wires[from.connection];
        let delay = match wire.way {
            Way::Over(edge) => self.edges[edge].delay,
            Way::Takes(delay) => delay,
        };
        wire.state.send(from.side, self.now + delay + late)
    }

    /// Closes one end of a connection; returns whether it was open. The peer is notified after the payloads
    /// in transit.
    pub fn close(&mut self, at: Socket) -> bool {
        let state = &mut self.wires[at.connection].state;
        let is_new = state.close(at.side);
        if is_new && let Some(when) = state.end(at.side, self.now) {
            self.events.schedule(when, NetworkEvent::Ended(at.peer()));
        }
        is_new
    }

    /// Closes one end of a connection without notice to its peer; returns whether it was open.
    pub fn drop_end(&mut self, at: Socket) -> bool {
        self.wires[at.connection].state.close(at.side)
    }

    /// Breaks a connection: payloads are lost, and the ends get no notice.
    pub fn silence(&mut self, connection: usize) {
        self.wires[connection].state.silence();
    }

    /// Whether a connection is broken.
    pub fn is_silent(&self, connection: usize) -> bool {
        self.wires[connection].state.is_silent()
    }

    /// Whether an end has not closed the connection.
    pub fn is_open(&self, at: Socket) -> bool {
        self.wires[at.connection].state.is_open(at.side)
    }

    /// Whether an end has not closed the connection, and the connection is not broken.
    pub fn is_live(&self, at: Socket) -> bool {
        self.wires[at.connection].state.is_live(at.side)
    }

    /// Schedules that the first node of each edge connects to the second node, from now on again and again.
    pub fn dial_all(&mut self) {
        for edge in 0..self.edges.len() {
            self.schedule_dial(edge, self.now);
        }
    }

    fn schedule_dial(&mut self, edge: usize, at: Nanos) {
        self.events.schedule(at, NetworkEvent::Dial(edge));
    }

    /// Decides how the first node of an edge reacts when it is due to connect to the second node. `runs`
    /// says whether a node runs, and `has_heard` whether a party has heard from its peer.
    pub fn dial(
        &self,
        edge: usize,
        runs: impl Fn(usize) -> bool,
        has_heard: impl Fn(&N) -> bool,
    ) -> Dialled {
        let is_over = |wire: &Wire<N>| matches!(wire.way, Way::Over(way) if way == edge);
        let is_open = |wire: &Wire<N>| is_over(wire) && wire.state.is_open(0);
        if let Some(connection) = self.wires.iter().position(is_open) {
            let wire = &self.wires[connection];
            let is_mute = self.now - wire.state.opened > PATIENCE && !has_heard(&wire.ends[0]);
            return match is_mute {
                true => Dialled::GivesUp(Socket {
                    connection,
                    side: 0,
                }),
                false => Dialled::Nothing,
            };
        }
        let Edge { ends, is_cut, .. } = self.edges[edge];
        match (runs(ends[0]), is_cut || !runs(ends[1])) {
            (false, _) => Dialled::Nothing,
            (true, true) => Dialled::Fails,
            (true, false) => Dialled::Connects,
        }
    }

    /// Cuts an edge. Breaks the connections over it that are open at an end, without notice to their ends,
    /// and returns their numbers.
    pub fn cut(&mut self, edge: usize) -> Vec<usize> {
        self.edges[edge].is_cut = true;
        let mut broken = Vec::new();
        for (number, wire) in (0..).zip(&mut self.wires) {
            let is_open = wire.state.is_open(0) || wire.state.is_open(1);
            if is_open && matches!(wire.way, Way::Over(way) if way == edge) {
                wire.state.silence();
                broken.push(number);
            }
        }
        broken
    }

    /// Mends an edge; returns whether it was cut.
    pub fn mend(&mut self, edge: usize) -> bool {
        std::mem::take(&mut self.edges[edge].is_cut)
    }
}
