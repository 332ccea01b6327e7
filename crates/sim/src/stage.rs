//! A real broker shard as a stage of a network: messages reach it at a cost,
//! and leave it one after the other, at a cost each, in the order in which its
//! egress gives them.
//!
//! One processor does both and is not interrupted. What comes before it and
//! after it is [`network`](crate::network)'s: nothing that leaves the broker
//! comes back to it, so a network is run up to the broker, then the broker, then
//! the network behind it.

use std::collections::{BTreeMap, VecDeque};
use std::io::IoSlice;

use punctual_broker::{ConnId, Flow, Nanos, Need, Output, Ready, Scope, Shard};
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

/// Which of the sockets is read next that have as urgent messages; one message at a
/// time, and what follows from it leaves before another is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// As the shell of a shard reads: [`Ready`] says which.
    Shell,
    /// That which became ready last: the worst that bounds allow for.
    Latest,
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
        sockets: BTreeMap::new(),
        ready: Ready::default(),
        served: Served::default(),
    };
    loop {
        processor.take();
        match processor.next(order) {
            Some(slot) => processor.message(slot),
            None => {
                let Some(next) = processor.coming.front() else {
                    return processor.served;
                };
                // Undeclared work begins only while nothing waits.
                let idle = processor.now < next.at;
                processor.now = next.at;
                if idle && service.blocking > 0 {
                    processor.take_time((0, service.blocking - 1));
                }
            }
        }
    }
}

struct Processor<'a> {
    shard: &'a mut Shard,
    service: Service,
    choose: &'a mut dyn FnMut(u64, u64) -> u64,
    now: u64,
    coming: VecDeque<Arrival>,
    /// What lies in each socket, by its slot.
    sockets: BTreeMap<u32, VecDeque<Arrival>>,
    /// Sockets that have something.
    ready: Ready,
    served: Served,
}

impl Processor<'_> {
    fn take_time(&mut self, (least, most): (u64, u64)) {
        self.now += (self.choose)(least, most);
    }

    /// What has come lies in sockets.
    fn take(&mut self) {
        while let Some(next) = self.coming.pop_front_if(|next| next.at <= self.now) {
            let (slot, need) = (next.conn.slot, self.shard.need(next.conn));
            let socket = self.sockets.entry(slot).or_default();
            if socket.is_empty() {
                self.ready.push(slot, need);
            }
            socket.push_back(next);
        }
    }

    /// The socket to be read.
    fn next(&mut self, order: Order) -> Option<u32> {
        let first = self.next_in_turn()?;
        if order == Order::Shell {
            return Some(first);
        }
        let urgency = |processor: &Self, slot: u32| {
            let conn = processor.sockets[&slot].front().map(|first| first.conn);
            conn.map_or(Need::Plain, |conn| processor.shard.need(conn))
        };
        let mut ready = vec![first];
        ready.extend(std::iter::from_fn(|| self.next_in_turn()));
        let need = urgency(self, first);
        let equals = ready
            .iter()
            .take_while(|slot| urgency(self, **slot) == need);
        let chosen = ready.remove(equals.count() - 1);
        for slot in ready {
            self.ready.push(slot, urgency(self, slot));
        }
        Some(chosen)
    }

    fn next_in_turn(&mut self) -> Option<u32> {
        let ready = &mut self.ready;
        let next = ready.pop_promised().or_else(|| ready.pop_urgent());
        next.or_else(|| self.ready.pop_plain())
    }

    /// Reads a socket: handles its first message, and lets leave what follows.
    fn message(&mut self, slot: u32) {
        let Some(socket) = self.sockets.get(&slot) else {
            return;
        };
        let Some(first) = socket.front() else {
            return;
        };
        let (conn, length) = (first.conn, first.packet.len());
        let bytes: Vec<u8> = socket
            .iter()
            .flat_map(|each| &each.packet)
            .copied()
            .collect();
        self.take_time(self.service.receive);
        let received = self
            .shard
            .receive_promised(conn, &bytes, Nanos(self.now), Nanos(self.now));
        assert_eq!(
            (received.flow, received.consumed, received.promised),
            (Flow::Read, length, true),
            "the broker handles one message that was admitted"
        );
        self.shard.take_outputs(&mut self.served.outputs);
        // It is seen that something is left before more is looked for.
        if let Some(socket) = self.sockets.get_mut(&slot) {
            socket.pop_front();
            if !socket.is_empty() {
                self.ready.push(slot, self.shard.need(conn));
            }
        }
        self.flush();
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
