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

/// The least and the greatest time that the processor needs for each kind of work, ns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Service {
    /// To receive a message.
    pub receive: (u64, u64),
    /// To send one copy of a message.
    pub send: (u64, u64),
    /// The longest time for which work that belongs to no declared message occupies the processor.
    pub blocking: u64,
}

/// Which socket is read next among those whose messages are equally urgent. One message is read at
/// a time, and all its copies leave before the next one is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// The order of [`Ready`], which the shells of real brokers use.
    Shell,
    /// The one that became ready last, which is the worst order that the response time bounds cover.
    Latest,
}

/// A PUBLISH packet at the broker's socket.
#[derive(Debug, Clone)]
pub struct Arrival {
    /// When its last byte has arrived, ns.
    pub at: u64,
    /// The publisher's connection.
    pub conn: ConnId,
    /// The encoded packet.
    pub packet: Vec<u8>,
}

/// A packet that the broker has sent.
#[derive(Debug, Clone)]
pub struct Departure {
    /// When the broker hands it to the network, ns.
    pub at: u64,
    /// The receiver's connection.
    pub conn: ConnId,
    /// The encoded packet.
    pub packet: Vec<u8>,
}

/// The result of [`serve`].
#[derive(Debug, Default)]
pub struct Served {
    /// PUBLISH packets, in the order in which they left.
    pub departures: Vec<Departure>,
    /// What the shard asked its shell to do.
    pub outputs: Vec<Output>,
}

/// Serves arrivals, which are in order of time, until all copies have left. `choose` returns the duration
/// of each step between a least and a greatest time, ns. When a message comes to an idle
/// processor, it also returns how much is left of undeclared work that began a nanosecond before.
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
    /// Messages that have arrived and are not read, by the slot of their connection.
    sockets: BTreeMap<u32, VecDeque<Arrival>>,
    /// Sockets with messages, in the order in which the shell reads them.
    ready: Ready,
    served: Served,
}

impl Processor<'_> {
    fn take_time(&mut self, (least, most): (u64, u64)) {
        self.now += (self.choose)(least, most);
    }

    /// Moves the messages that have arrived by now to their sockets.
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

    /// Chooses the socket that is read next.
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

    /// Receives the first message of a socket and sends its copies.
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

    /// Sends urgent packets, the most urgent first, then all others.
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

    /// Sends one packet of a connection; returns false if there is none.
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
