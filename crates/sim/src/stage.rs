//! A real broker shard as a stage of a network: messages reach it at a cost,
//! and leave it one after the other, at a cost each, in the order in which its
//! egress gives them.
//!
//! One processor does both and is not interrupted. What comes before it and
//! after it is [`network`](crate::network)'s: nothing that leaves the broker
//! comes back to it, so a network is run up to the broker, then the broker, then
//! the network behind it.

use std::collections::VecDeque;
use std::io::IoSlice;

use punctual_broker::{ConnId, Flow, Nanos, Output, Scope, Shard};
use punctual_codec::{PacketType, Split, split};

/// What the processor takes, ns: least and greatest times.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Service {
    /// For a message that comes.
    pub receive: (u64, u64),
    /// For each copy that leaves.
    pub send: (u64, u64),
    /// Longest time for which something undeclared holds it.
    pub blocking: u64,
}

/// Which socket is read next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// That with the most urgent message, one message at a time; what follows
    /// from it leaves before another is read. This is the processor that the
    /// analysis knows.
    Urgency,
    /// All that have something, as they became ready, each with all that it has;
    /// then what is urgent leaves, most urgent first; then the next turn begins.
    /// This is how the shell of a shard reads clients that sent something urgent
    /// lately.
    Turns,
}

/// A PUBLISH packet at the broker's socket.
#[derive(Debug, Clone)]
pub struct Arrival {
    /// When it is there whole, ns.
    pub at: u64,
    /// The publisher's connection.
    pub conn: ConnId,
    /// Its bytes.
    pub packet: Vec<u8>,
    /// Its priority, the higher the more urgent; only [`Order::Urgency`] looks
    /// at it.
    pub priority: u64,
}

/// A packet that the broker has sent.
#[derive(Debug, Clone)]
pub struct Departure {
    /// When it is handed to the network, ns.
    pub at: u64,
    /// The receiver's connection.
    pub conn: ConnId,
    /// Its bytes.
    pub packet: Vec<u8>,
}

/// What became of arrivals.
#[derive(Debug, Default)]
pub struct Served {
    /// PUBLISH packets, in the order in which they left.
    pub departures: Vec<Departure>,
    /// What the shard asked of its shell.
    pub outputs: Vec<Output>,
}

/// Serves arrivals, in order of time, until nothing is left. `choose` says what
/// each step takes, from a least to a greatest time; and what is left of the
/// undeclared work that began a nanosecond before something came to the idle
/// processor.
pub fn serve(
    shard: &mut Shard,
    service: Service,
    order: Order,
    arrivals: Vec<Arrival>,
    choose: &mut dyn FnMut(u64, u64) -> u64,
) -> Served {
    let mut processor = Processor {
        shard,
        service,
        choose,
        now: 0,
        coming: arrivals.into(),
        ready: Vec::new(),
        served: Served::default(),
    };
    loop {
        processor.take();
        if processor.ready.is_empty() {
            let Some(next) = processor.coming.front() else {
                return processor.served;
            };
            // Undeclared work begins only while nothing waits.
            let idle = processor.now < next.at;
            processor.now = next.at;
            if idle && service.blocking > 0 {
                processor.take_time((0, service.blocking - 1));
            }
            continue;
        }
        match order {
            Order::Urgency => processor.one_message(),
            Order::Turns => processor.turn(),
        }
    }
}

struct Processor<'a> {
    shard: &'a mut Shard,
    service: Service,
    choose: &'a mut dyn FnMut(u64, u64) -> u64,
    now: u64,
    coming: VecDeque<Arrival>,
    /// Sockets that have something, as they became ready.
    ready: Vec<VecDeque<Arrival>>,
    served: Served,
}

impl Processor<'_> {
    fn take_time(&mut self, (least, most): (u64, u64)) {
        self.now += (self.choose)(least, most);
    }

    /// What has come lies in sockets.
    fn take(&mut self) {
        while let Some(next) = self.coming.pop_front_if(|next| next.at <= self.now) {
            let conn = |socket: &&mut VecDeque<Arrival>| {
                socket.front().is_some_and(|first| first.conn == next.conn)
            };
            match self.ready.iter_mut().find(conn) {
                Some(socket) => socket.push_back(next),
                None => self.ready.push(VecDeque::from([next])),
            }
        }
    }

    fn one_message(&mut self) {
        let urgency = |socket: &VecDeque<Arrival>| socket.front().map(|first| first.priority);
        let mut next = 0;
        for socket in 1..self.ready.len() {
            if urgency(&self.ready[socket]) > urgency(&self.ready[next]) {
                next = socket;
            }
        }
        let mut socket = self.ready.remove(next);
        if let Some(arrival) = socket.pop_front() {
            // Behind those that are as urgent and came before its next one.
            self.put_back(socket);
            self.receive(&arrival);
        }
        self.flush();
    }

    fn put_back(&mut self, socket: VecDeque<Arrival>) {
        let Some(first) = socket.front() else {
            return;
        };
        let at = first.at;
        let before = |other: &VecDeque<Arrival>| other.front().is_some_and(|o| o.at <= at);
        let place = self.ready.partition_point(before);
        self.ready.insert(place, socket);
    }

    fn turn(&mut self) {
        let ready: Vec<ConnId> = self
            .ready
            .iter()
            .filter_map(|socket| socket.front().map(|first| first.conn))
            .collect();
        for conn in ready {
            // What came while others were read is read with it.
            self.take();
            let of =
                |socket: &VecDeque<Arrival>| socket.front().is_some_and(|first| first.conn == conn);
            if let Some(place) = self.ready.iter().position(of) {
                for arrival in self.ready.remove(place) {
                    self.receive(&arrival);
                }
            }
        }
        self.flush();
    }

    fn receive(&mut self, arrival: &Arrival) {
        self.take_time(self.service.receive);
        let received = self
            .shard
            .receive(arrival.conn, &arrival.packet, Nanos(self.now));
        assert_eq!(
            (received.flow, received.consumed),
            (Flow::Read, arrival.packet.len()),
            "the broker reads what was admitted"
        );
        self.shard.take_outputs(&mut self.served.outputs);
    }

    /// Writes what is urgent, the most urgent first, then the rest.
    fn flush(&mut self) {
        let mut conns = Vec::new();
        for scope in [Scope::Urgent, Scope::All] {
            match scope {
                Scope::Urgent => self.shard.take_urgent(&mut conns),
                Scope::All => self.shard.take_dirty(&mut conns),
            }
            for conn in conns.drain(..) {
                while self.send(conn, scope) {}
            }
        }
        self.shard.take_outputs(&mut self.served.outputs);
    }

    /// Sends a packet. False if there is none.
    fn send(&mut self, conn: ConnId, scope: Scope) -> bool {
        let mut slices = [IoSlice::new(&[]); 8];
        let filled = self
            .shard
            .pending(conn, scope, Nanos(self.now), &mut slices);
        let mut bytes = Vec::new();
        for slice in &slices[..filled] {
            bytes.extend_from_slice(slice);
        }
        let Ok(Split::Frame(frame)) = split(&bytes, u32::MAX) else {
            return false;
        };
        if frame.kind == PacketType::Publish {
            self.take_time(self.service.send);
            self.served.departures.push(Departure {
                at: self.now,
                conn,
                packet: frame.bytes.to_vec(),
            });
        }
        self.shard.sent(conn, frame.bytes.len(), Nanos(self.now));
        true
    }
}
