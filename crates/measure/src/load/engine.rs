//! The generator's loop: one thread, one epoll, both ends of every message.
//!
//! A turn waits for events, reads every ready client once, tops up the publishers, and flushes
//! each client that has something to send once. Because the generator owns both ends it knows
//! how many messages of each publisher are undelivered and never asks more of a broker than the
//! window allows.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::os::fd::AsRawFd;

use super::Options;
use super::client::{Client, Handshake};
use super::meter::Meter;
use super::publisher::{PacketIds, Publisher};
use super::scenario::{Plan, PublisherPace};
use super::stamp::{STAMP_LEN, Stamp};
use super::track::{Track, Verdict};
use crate::error::{Error, Result};
use crate::io::{FlushOutcome, Outbox, READ_CHUNK, ReadOutcome, Tail};
use crate::sys::{self, Epoll, Interest};
use crate::wire::{self, Frame, PublishTemplate, Version, kind};

/// Bytes that one client may have pending before more is put; one `send` takes them.
const PUT_CHUNK: usize = 128 * 1024;

/// Without a single arrival for so long a window counts as stalled and is written off.
const STALL_NS: u64 = 1_000_000_000;

/// Without a single arrival for so long the rest of a run counts as lost.
const DRAIN_NS: u64 = 2_000_000_000;

/// Wait before a publication held back by the inflight limit is tried again.
const HELD_RETRY_NS: u64 = 100_000;

/// Longest drain, whatever arrives.
const DRAIN_MOST_NS: u64 = 60_000_000_000;

/// Connected clients and everything they count.
pub(super) struct Engine {
    epoll: Epoll,
    version: Version,
    spin: bool,
    clients: Vec<Client>,
    publishers: Vec<Publisher>,
    /// Publishers with a window or flat out.
    greedy: Vec<u32>,
    /// When to look at each publisher with a period.
    due: BinaryHeap<Reverse<(u64, u32)>>,
    /// For each publisher the one that answers it, if any does.
    answered_by: Vec<Option<u32>>,
    /// Clients to flush at the end of the turn.
    dirty: Vec<u32>,
    /// Acknowledgements of receivers that take their time: when they are due, whose, which kind and
    /// which identifier. In the order of arrival, which is that of the times.
    late: VecDeque<(u64, u32, u8, u16)>,
    /// Delay of the acknowledgements of these receivers, ns.
    ack_delay: u64,
    /// A greedy publisher had room for more than was put in this turn.
    eager: bool,
    publishing: bool,
    shared: Vec<u8>,
    pub meter: Meter,
    /// Deliveries due for what was sent: messages times receivers.
    pub expected: u64,
    /// Times that all windows stood still for [`STALL_NS`].
    pub stalls: u64,
}

impl Engine {
    /// Connects every client of `plan`.
    pub(super) fn connect(plan: &Plan, options: &Options) -> Result<Self> {
        let epoll = Epoll::new().map_err(Error::io("cannot create an epoll instance"))?;
        let mut engine = Self {
            epoll,
            version: options.version,
            spin: options.spin,
            clients: Vec::with_capacity(plan.clients.len()),
            publishers: Vec::with_capacity(plan.publishers.len()),
            greedy: Vec::new(),
            due: BinaryHeap::new(),
            answered_by: vec![None; plan.publishers.len()],
            dirty: Vec::new(),
            late: VecDeque::new(),
            ack_delay: u64::try_from(options.ack_delay.as_nanos()).unwrap_or(u64::MAX),
            eager: false,
            publishing: false,
            shared: vec![0; READ_CHUNK.max(4 * options.payload)],
            meter: Meter::default(),
            expected: 0,
            stalls: 0,
        };
        engine.connect_clients(plan, options)?;
        engine.make_publishers(plan, options);
        Ok(engine)
    }

    fn connect_clients(&mut self, plan: &Plan, options: &Options) -> Result<()> {
        for (token, client) in (0u32..).zip(&plan.clients) {
            let id = format!("{}{}", options.client_prefix, client.id);
            let (stream, connack) = Handshake {
                address: match options.receivers {
                    Some(address) if client.far => address,
                    _ => options.address,
                },
                version: options.version,
                client_id: &id,
                filters: &client.filters,
                qos: options.qos,
                persistent: options.persistent && !client.filters.is_empty(),
            }
            .run()?;
            self.epoll
                .add(stream.as_raw_fd(), token, Interest::READ)
                .map_err(Error::io("cannot watch a connection"))?;
            self.clients.push(Client {
                id,
                stream,
                tail: Tail::default(),
                out: Outbox::default(),
                blocked: false,
                in_dirty: false,
                first_publisher: client.receives.start,
                tracks: client.receives.clone().map(|_| Track::default()).collect(),
                ids: (options.qos > 0)
                    .then(|| PacketIds::new(connack.receive_maximum, options.acks)),
            });
        }
        Ok(())
    }

    fn make_publishers(&mut self, plan: &Plan, options: &Options) {
        let payload = vec![b'.'; options.payload.max(STAMP_LEN)];
        for (index, publisher) in (0u32..).zip(&plan.publishers) {
            let receivers = publisher.receivers.iter().map(|&client| {
                let first = self.clients[client as usize].first_publisher;
                (client, index - first)
            });
            match publisher.pace {
                PublisherPace::Window(_) | PublisherPace::FlatOut => self.greedy.push(index),
                PublisherPace::Every { .. } => {}
                PublisherPace::Answers(asked) => self.answered_by[asked as usize] = Some(index),
            }
            self.publishers.push(Publisher::new(
                index,
                publisher.client,
                receivers.collect(),
                publisher.pace,
                PublishTemplate::with_user_properties(
                    options.version,
                    &publisher.topic,
                    options.qos,
                    &options.user_properties,
                    &payload,
                ),
                options.messages.unwrap_or(u64::MAX),
            ));
        }
    }

    /// Lets the publishers begin.
    pub(super) fn start(&mut self) {
        let now = sys::now_ns();
        self.publishing = true;
        self.meter.last_arrival = now;
        for (index, publisher) in (0u32..).zip(&mut self.publishers) {
            if let PublisherPace::Every { offset, .. } = publisher.pace {
                publisher.next_due = now + offset;
                self.due.push(Reverse((publisher.next_due, index)));
            }
        }
        self.eager = true;
    }

    /// Runs until `deadline`, or until every publisher has sent its last message and all have
    /// arrived. Returns whether the deadline came first.
    pub(super) fn run_until(&mut self, deadline: u64) -> Result<bool> {
        loop {
            let now = sys::now_ns();
            if now >= deadline {
                return Ok(true);
            }
            if self.complete() && self.publishers.iter().all(Publisher::finished) {
                return Ok(false);
            }
            self.turn(deadline - now)?;
            if self.stalled() {
                self.stalls += 1;
                self.meter.last_arrival = sys::now_ns();
                for publisher in &mut self.publishers {
                    publisher.forgive();
                }
            }
        }
    }

    /// Stops publishing and waits for what is still under way.
    pub(super) fn drain(&mut self) -> Result<()> {
        self.publishing = false;
        let start = sys::now_ns();
        self.meter.last_arrival = start;
        loop {
            let now = sys::now_ns();
            let silent = now.saturating_sub(self.meter.last_arrival);
            if self.complete() || silent >= DRAIN_NS || now - start >= DRAIN_MOST_NS {
                return Ok(());
            }
            self.turn(DRAIN_NS - silent)?;
        }
    }

    /// Whether all that was sent has arrived.
    fn complete(&self) -> bool {
        self.meter.delivered >= self.expected
    }

    fn stalled(&self) -> bool {
        !self.complete()
            && !self.greedy.is_empty()
            && sys::now_ns().saturating_sub(self.meter.last_arrival) >= STALL_NS
    }

    pub(super) fn sent(&self) -> u64 {
        self.publishers.iter().map(Publisher::sent).sum()
    }

    pub(super) fn tracks(&self) -> impl Iterator<Item = &Track> {
        self.clients.iter().flat_map(|client| &client.tracks)
    }

    fn turn(&mut self, longest: u64) -> Result<()> {
        let timeout = self.timeout(longest);
        let count = self
            .epoll
            .wait(Some(timeout))
            .map_err(Error::io("cannot wait for events"))?;
        for index in 0..count {
            let ready = self.epoll.ready(index);
            if ready.writable {
                self.mark_dirty(ready.token);
            }
            if ready.readable {
                self.read(ready.token)?;
            }
        }
        self.acknowledge_late();
        self.eager = false;
        if self.publishing {
            self.publish_due()?;
            self.publish_greedy();
        }
        let mut dirty = std::mem::take(&mut self.dirty);
        for client in dirty.drain(..) {
            self.flush(client)?;
        }
        self.dirty = dirty;
        Ok(())
    }

    fn timeout(&self, longest: u64) -> u64 {
        if self.spin || (self.eager && self.publishing) {
            return 0;
        }
        let mut timeout = longest;
        if let Some(&(due, ..)) = self.late.front() {
            timeout = timeout.min(due.saturating_sub(sys::now_ns()));
        }
        if self.publishing {
            if let Some(&Reverse((due, _))) = self.due.peek() {
                timeout = timeout.min(due.saturating_sub(sys::now_ns()));
            }
            if !self.greedy.is_empty() {
                timeout = timeout.min(STALL_NS);
            }
        }
        timeout
    }

    /// Puts the acknowledgements that are due by now.
    fn acknowledge_late(&mut self) {
        if self.late.is_empty() {
            return;
        }
        let now = sys::now_ns();
        while let Some((_, token, kind, id)) = self.late.pop_front_if(|(due, ..)| *due <= now) {
            wire::put_ack(self.clients[token as usize].out.buffer(), kind, id);
            self.mark_dirty(token);
        }
    }

    fn read(&mut self, token: u32) -> Result<()> {
        let client = &mut self.clients[token as usize];
        let len = match client.tail.read(&client.stream, &mut self.shared) {
            ReadOutcome::Bytes(len) => len,
            ReadOutcome::Nothing => return Ok(()),
            ReadOutcome::Closed => return Err(self.failure(token, "closed the connection")),
        };
        let now = sys::now_ns();
        let shared = std::mem::take(&mut self.shared);
        let used = self.packets(token, &shared[..len], now)?;
        self.clients[token as usize].tail.keep(&shared[used..len]);
        self.shared = shared;
        Ok(())
    }

    /// Handles every whole packet in `bytes`; returns how many bytes they took.
    fn packets(&mut self, token: u32, bytes: &[u8], now: u64) -> Result<usize> {
        let mut at = 0;
        loop {
            match wire::frame(&bytes[at..]) {
                Frame::Incomplete => return Ok(at),
                Frame::Malformed => return Err(self.failure(token, "sent a malformed length")),
                Frame::Packet { first, body, end } => {
                    let body = &bytes[at + body..at + end];
                    at += end;
                    if first >> 4 == kind::PUBLISH {
                        let Some(publish) = wire::publish(first, body, self.version) else {
                            return Err(self.failure(token, "sent a malformed PUBLISH"));
                        };
                        self.arrival(token, &publish, now)?;
                    } else {
                        self.control(token, first >> 4, body)?;
                    }
                }
            }
        }
    }

    #[inline]
    fn arrival(&mut self, token: u32, publish: &wire::Publish<'_>, now: u64) -> Result<()> {
        let client = &mut self.clients[token as usize];
        if publish.qos > 0 {
            let answer = if publish.qos == 1 {
                kind::PUBACK
            } else {
                kind::PUBREC
            };
            if self.ack_delay > 0 {
                let due = now.saturating_add(self.ack_delay);
                self.late.push_back((due, token, answer, publish.id));
            } else {
                wire::put_ack(client.out.buffer(), answer, publish.id);
                if !client.in_dirty {
                    client.in_dirty = true;
                    self.dirty.push(token);
                }
            }
        }
        let Some(stamp) = Stamp::read(publish.payload) else {
            self.meter.strays += 1;
            return Ok(());
        };
        let place = stamp.publisher.wrapping_sub(client.first_publisher);
        let Some(track) = client.tracks.get_mut(place as usize) else {
            self.meter.strays += 1;
            return Ok(());
        };
        if track.receive(stamp.seq) == Verdict::Duplicate {
            return Ok(());
        }
        self.meter.delivered += 1;
        self.meter.last_arrival = now;
        let publisher = &self.publishers[stamp.publisher as usize];
        if let PublisherPace::Answers(asked) = publisher.pace {
            if self.publishers[asked as usize].client == token {
                self.meter.round_trip(now, stamp.time, stamp.extra);
            }
            return Ok(());
        }
        self.meter.arrival(now, stamp.time);
        match self.answered_by[stamp.publisher as usize] {
            Some(answer) if self.publishers[answer as usize].client == token => {
                self.answer(answer, stamp.extra, now)
            }
            _ => Ok(()),
        }
    }

    /// Replies at once; `sensed` is TA, `received` is TB.
    fn answer(&mut self, publisher: u32, sensed: u64, received: u64) -> Result<()> {
        let state = &self.publishers[publisher as usize];
        let client = state.client;
        let ids = self.clients[client as usize].ids.as_ref();
        if state.room(0, ids) == 0 {
            return Ok(());
        }
        let sending = sys::now_ns();
        self.put(publisher, 1, sensed, sending - received);
        self.flush(client)
    }

    fn control(&mut self, token: u32, kind: u8, body: &[u8]) -> Result<()> {
        let Some(id) = wire::leading_id(body) else {
            return if kind == kind::DISCONNECT {
                Err(self.failure(token, &format!("sent DISCONNECT {body:02x?}")))
            } else {
                Ok(())
            };
        };
        let client = &mut self.clients[token as usize];
        let answer = match kind {
            kind::PUBACK | kind::PUBCOMP => None,
            kind::PUBREC => Some(kind::PUBREL),
            kind::PUBREL => Some(kind::PUBCOMP),
            kind::DISCONNECT => {
                return Err(self.failure(token, &format!("sent DISCONNECT {body:02x?}")));
            }
            _ => return Ok(()),
        };
        // From 0x80 on a version 5 reason code is a refusal that ends the exchange.
        let refused = body.get(2).is_some_and(|&code| code >= 0x80);
        if refused {
            self.meter.refused += 1;
        }
        match answer {
            Some(answer) if !refused => {
                wire::put_ack(client.out.buffer(), answer, id);
                self.mark_dirty(token);
            }
            _ => {
                if let Some(ids) = &mut client.ids
                    && let Some(sent) = ids.free(id)
                    && !refused
                {
                    self.meter.acknowledged(sent);
                }
            }
        }
        Ok(())
    }

    /// Sends what is due by now, each message at once so that its TA is exact.
    fn publish_due(&mut self) -> Result<()> {
        while let Some(&Reverse((wake, index))) = self.due.peek() {
            let now = sys::now_ns();
            if wake > now {
                return Ok(());
            }
            self.due.pop();
            let publisher = &mut self.publishers[index as usize];
            if publisher.finished() {
                continue;
            }
            let client = &self.clients[publisher.client as usize];
            // The schedule never waits for the broker. Only its inflight limit can hold a
            // message back, and then it goes out late with its intended time.
            if publisher.room(0, client.ids.as_ref()) == 0 {
                self.due.push(Reverse((now + HELD_RETRY_NS, index)));
                continue;
            }
            let intended = publisher.next_due;
            publisher.next_due += publisher.period();
            let client = publisher.client;
            self.due.push(Reverse((publisher.next_due, index)));
            self.put(index, 1, intended, now);
            self.flush(client)?;
        }
        Ok(())
    }

    fn publish_greedy(&mut self) {
        for at in 0..self.greedy.len() {
            let index = self.greedy[at];
            let publisher = &self.publishers[index as usize];
            let client = &self.clients[publisher.client as usize];
            if client.blocked {
                continue;
            }
            let delivered = self.delivered(publisher);
            let room = publisher.room(delivered, client.ids.as_ref());
            let fits = PUT_CHUNK.saturating_sub(client.out.pending()) / publisher.wire_len();
            let count = room.min(fits as u64 + 1);
            if count > 0 {
                self.eager |= count < room;
                self.put(index, count, sys::now_ns(), 0);
            }
        }
    }

    /// The number below which every receiver has got this publisher's messages.
    #[inline]
    fn delivered(&self, publisher: &Publisher) -> u64 {
        publisher
            .receivers
            .iter()
            .map(|&(client, track)| self.clients[client as usize].tracks[track as usize].next())
            .min()
            .unwrap_or(publisher.sent())
    }

    fn put(&mut self, index: u32, count: u64, time: u64, extra: u64) {
        let publisher = &mut self.publishers[index as usize];
        let token = publisher.client;
        let client = &mut self.clients[token as usize];
        publisher.put(client.out.buffer(), client.ids.as_mut(), count, time, extra);
        self.expected += count * publisher.receivers.len() as u64;
        self.mark_dirty(token);
    }

    fn mark_dirty(&mut self, token: u32) {
        let client = &mut self.clients[token as usize];
        if !client.in_dirty {
            client.in_dirty = true;
            self.dirty.push(token);
        }
    }

    fn flush(&mut self, token: u32) -> Result<()> {
        let client = &mut self.clients[token as usize];
        client.in_dirty = false;
        if client.out.pending() == 0 && !client.blocked {
            return Ok(());
        }
        let blocked = match client.out.flush(&client.stream) {
            FlushOutcome::All => false,
            FlushOutcome::Blocked => true,
            FlushOutcome::Closed => return Err(self.failure(token, "closed the connection")),
        };
        if blocked != client.blocked {
            client.blocked = blocked;
            let interest = Interest {
                read: true,
                write: blocked,
            };
            self.epoll
                .change(client.stream.as_raw_fd(), token, interest)
                .map_err(Error::io("cannot watch a connection"))?;
        }
        Ok(())
    }

    fn failure(&self, token: u32, what: &str) -> Error {
        Error::Broker {
            client: self.clients[token as usize].id.clone(),
            what: what.to_owned(),
        }
    }
}
