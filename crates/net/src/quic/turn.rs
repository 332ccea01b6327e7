//! QUIC's part of a shard's turn: read and let the broker handle, do what is
//! due, send.

use std::cmp::Reverse;
use std::sync::atomic::Ordering;

use punctual_broker::lock::read;
use punctual_broker::{Class, ConnId, ConnMeta, Flow, Nanos, Rank, Scope};
use quinn_proto::{ConnectionEvent, DatagramEvent, EndpointEvent, Incoming, VarInt};

use super::class_number;
use super::endpoint::{Decision, Room};
use super::link::{Link, Read, rest_of};
use super::mail::{Key, QuicMail};
use super::options::count;
use super::output::QUEUE;
use crate::layer::ClientAddress;
use crate::lingering::LINGER;
use crate::mailbox::Mail;
use crate::overrun::Piece;
use crate::udp::socket::CLASSES;
use crate::worker::{State, Worker};

/// Batches of datagrams read from one socket in one turn.
const BATCHES: usize = 8;
/// Bytes of a stream that are read in one turn.
const READ: usize = 64 << 10;
/// Datagrams of messages that the broker is given in one turn.
const DATAGRAMS: usize = 64;
/// Datagrams made for one connection before others have their turn.
const TURN: usize = 4 * QUEUE;
/// What a connection is closed with that broke a rule.
const REFUSED: VarInt = VarInt::from_u32(1);

impl Worker {
    /// Reads what has come, and does what is due.
    pub(crate) fn quic_turn(&mut self, state: &mut State, now: Nanos) {
        for at in 0..self.quic.listeners.len() {
            self.quic_receive(state, at, now);
        }
        while let Some(Reverse((at, key))) = self.quic.timers.peek().copied()
            && at <= now
        {
            self.quic.timers.pop();
            if let Some(link) = self.quic.links.get_mut(&key)
                && link.armed == at
            {
                link.armed = Nanos::MAX;
                let instant = self.clock.instant(now);
                link.connection.handle_timeout(instant);
                if link.closing.as_ref().is_some_and(|c| c.until <= now) {
                    link.connection.close(instant, REFUSED, bytes::Bytes::new());
                }
                self.quic.touch(key);
            }
        }
        // Those that ask for another turn get it in the next.
        let mut touched = std::mem::take(&mut self.quic.touched);
        for key in touched.drain(..) {
            self.piece(state, Piece::Quic, |worker, state| {
                worker.quic_link(state, key, now);
            });
        }
        if self.quic.touched.is_empty() {
            self.quic.touched = touched;
        }
    }

    fn quic_receive(&mut self, state: &mut State, at: usize, now: Nanos) {
        let instant = self.clock.instant(now);
        let (mut own, mut incoming) = (Vec::new(), Vec::new());
        for class in 0..CLASSES {
            for _ in 0..BATCHES {
                let quic = &mut self.quic;
                let listener = &mut quic.listeners[at];
                if !listener.readable[class] {
                    break;
                }
                let (output, received) = (&mut quic.outputs[at], &mut quic.received);
                match output.sockets().receive(class, received) {
                    Ok(more) => listener.readable[class] = more,
                    Err(error) => {
                        listener.readable[class] = false;
                        tracing::warn!(%error, "reading from a QUIC socket failed");
                        break;
                    }
                }
                let mut n = 0;
                for (path, datagram) in received.datagrams() {
                    n += 1;
                    let mut answer = output.buffer();
                    let event = listener.handle(instant, path, datagram, &mut answer);
                    match event {
                        Some(DatagramEvent::ConnectionEvent(handle, event)) => {
                            let key = Key {
                                listener: at,
                                handle,
                            };
                            let owner = listener.owners.get(handle.0).copied().unwrap_or(0);
                            if owner != self.index {
                                if quic.under_way.add(owner) {
                                    quic.posts[usize::from(owner)].push((key, event));
                                } else {
                                    count(&quic.counters.behind, 1);
                                }
                            } else {
                                own.push((key, event));
                            }
                        }
                        Some(DatagramEvent::Response(transmit)) => {
                            output.answer(class_number(Class::Normal), transmit, answer);
                            continue;
                        }
                        Some(DatagramEvent::NewConnection(new)) => incoming.push(new),
                        None => {}
                    }
                    output.recycle(answer);
                }
                count(&quic.counters.received, n);
                // Each may be a step of a handshake, which takes up to a millisecond.
                for (key, event) in own.drain(..) {
                    self.piece(state, Piece::Quic, |worker, _| {
                        worker.quic_event(key, event);
                    });
                }
                // Decided about at once: until then the endpoint keeps them.
                for new in incoming.drain(..) {
                    self.piece(state, Piece::Quic, |worker, state| {
                        worker.quic_admit(state, at, new, now);
                    });
                }
            }
        }
        for shard in 0..self.quic.posts.len() {
            if !self.quic.posts[shard].is_empty() {
                let events = std::mem::take(&mut self.quic.posts[shard]);
                self.quic_post(shard as u16, QuicMail::Events(events));
            }
        }
    }

    fn quic_post(&self, shard: u16, mail: QuicMail) {
        self.mailboxes[usize::from(shard)].post(Mail::Quic(mail));
    }

    /// Decides about a client that wants to connect.
    fn quic_admit(&mut self, state: &mut State, at: usize, incoming: Incoming, now: Nanos) {
        let quic = &mut self.quic;
        let listener = &mut quic.listeners[at];
        let (output, counters) = (&mut quic.outputs[at], &quic.counters);
        let index = usize::from(listener.index);
        let accept = *read(&self.shared.accept);
        let policy = self.shared.policies.of(listener.index);
        let answers = class_number(Class::Normal);
        let mut answer = output.buffer();
        let drift = self.counters.drift.load(Ordering::Relaxed);
        let mut nonce = [0; 16];
        let here = self.counters.per_listener[index].load(Ordering::Relaxed);
        let room = Room {
            busy: quic.stopping || drift > accept.max_drift.0,
            rate: accept.rate,
            is_full: || {
                here >= policy.max_connections
                    || self.counters.open.load(Ordering::Relaxed) >= accept.max_connections
                    || getrandom::fill(&mut nonce).is_err()
            },
        };
        let peer = incoming.remote_address();
        let local = output.sockets().destination(incoming.local_ip());
        let times = (now, self.clock.instant(now));
        let decision = listener.decide(incoming, &policy, room, times, &mut answer);
        let (handle, link) = match decision {
            Decision::Retried(transmit) => {
                output.answer(answers, transmit, answer);
                count(&counters.retries, 1);
                return;
            }
            Decision::Ignored => {
                output.recycle(answer);
                count(&counters.ignored, 1);
                return;
            }
            Decision::Refused(transmit) => {
                output.answer(answers, transmit, answer);
                count(&counters.refused, 1);
                self.counters
                    .connections_refused
                    .fetch_add(1, Ordering::Relaxed);
                return;
            }
            Decision::Failed(response) => {
                count(&counters.handshakes_failed, 1);
                if let Some(transmit) = response {
                    output.answer(answers, transmit, answer);
                }
                return;
            }
            Decision::Accepted(handle, link) => (handle, link),
        };
        output.recycle(answer);
        let shards = self.mailboxes.len() as u16;
        quic.next_shard = (quic.next_shard + 1) % shards;
        let shard = quic.next_shard;
        if listener.owners.len() <= handle.0 {
            listener.owners.resize(handle.0 + 1, 0);
        }
        listener.owners[handle.0] = shard;
        let key = Key {
            listener: at,
            handle,
        };
        let meta = ConnMeta {
            peer: Some(peer),
            local,
            listener: listener.index,
            allow_anonymous: policy.anonymous.lets_in(peer.ip(), ClientAddress::Socket),
            identity: None,
            credential: None,
            unproven: Some(policy.unproven.clone()),
            nonce,
            refuse: policy.refuse,
        };
        self.counters.opened(listener.index);
        self.quic_settle(state, key, shard, Box::new(meta), link, now);
    }

    /// Gives a connection to a shard.
    fn quic_settle(
        &mut self,
        state: &mut State,
        key: Key,
        shard: u16,
        meta: Box<ConnMeta>,
        link: Box<Link>,
        now: Nanos,
    ) {
        if shard == self.index {
            self.quic_open(state, key, *meta, link, now);
        } else {
            self.quic_post(shard, QuicMail::Open { key, meta, link });
        }
    }

    fn quic_open(
        &mut self,
        state: &mut State,
        key: Key,
        meta: ConnMeta,
        mut link: Box<Link>,
        now: Nanos,
    ) {
        let conn = self.shard.open(meta, now);
        link.conn = Some(conn);
        (link.touched, link.ready, link.paused) = (false, false, false);
        link.armed = Nanos::MAX;
        let slot = conn.slot as usize;
        if self.quic.slots.len() <= slot {
            self.quic.slots.resize(slot + 1, None);
        }
        self.quic.slots[slot] = Some((conn, key));
        self.quic.unread += link.unread.len();
        self.quic.links.insert(key, link);
        self.quic.touch(key);
        // The broker may have closed another to make room for it.
        self.act(state, now);
    }

    /// Mail from shard 0, or to it.
    pub(crate) fn quic_mail(&mut self, state: &mut State, mail: QuicMail, now: Nanos) {
        match mail {
            QuicMail::Open { key, meta, link } => self.quic_open(state, key, *meta, link, now),
            QuicMail::Events(events) => {
                self.quic.under_way.take(self.index, events.len());
                for (key, event) in events {
                    self.piece(state, Piece::Quic, |worker, _| {
                        worker.quic_event(key, event);
                    });
                }
            }
            QuicMail::Endpoint(key, event) => self.quic_for_endpoint(key, event),
            QuicMail::Return { key, event, from } => {
                let listener = self.quic.listeners.get(key.listener);
                let owner = listener.and_then(|l| l.owners.get(key.handle.0)).copied();
                match owner {
                    Some(owner) if owner == self.index => self.quic_event(key, event),
                    // Where it came from it was not wanted: the connection has ended.
                    Some(owner) if owner != from => {
                        self.quic_post(owner, QuicMail::Events(vec![(key, event)]));
                    }
                    _ => {}
                }
            }
            QuicMail::Rehome {
                key,
                shard,
                meta,
                link,
            } => self.quic_rehome(state, key, shard, meta, link, now),
        }
    }

    fn quic_event(&mut self, key: Key, event: ConnectionEvent) {
        if let Some(link) = self.quic.links.get_mut(&key) {
            link.connection.handle_event(event);
            self.quic.touch(key);
        } else if self.index != 0 {
            let from = self.index;
            self.quic_post(0, QuicMail::Return { key, event, from });
        }
    }

    /// On shard 0: lets the endpoint know what a connection says.
    fn quic_for_endpoint(&mut self, key: Key, event: EndpointEvent) {
        let Some(listener) = self.quic.listeners.get_mut(key.listener) else {
            return;
        };
        let Some(answer) = listener.handle_event(key.handle, event) else {
            return;
        };
        let owner = listener.owners.get(key.handle.0).copied().unwrap_or(0);
        if owner == self.index {
            self.quic_event(key, answer);
        } else {
            self.quic_post(owner, QuicMail::Events(vec![(key, answer)]));
        }
    }

    /// On shard 0: from now on a connection is another shard's.
    fn quic_rehome(
        &mut self,
        state: &mut State,
        key: Key,
        shard: u16,
        meta: Box<ConnMeta>,
        link: Box<Link>,
        now: Nanos,
    ) {
        let listener = self.quic.listeners.get_mut(key.listener);
        if let Some(owner) = listener.and_then(|l| l.owners.get_mut(key.handle.0)) {
            *owner = shard;
        }
        self.quic_settle(state, key, shard, meta, link, now);
    }

    /// The session lives on another shard.
    pub(crate) fn quic_hand_over(
        &mut self,
        state: &mut State,
        conn: ConnId,
        shard: u16,
        meta: Box<ConnMeta>,
        now: Nanos,
    ) {
        let Some(key) = self.quic.key(conn) else {
            return;
        };
        self.quic.forget(conn);
        let Some(mut link) = self.quic.links.remove(&key) else {
            return;
        };
        self.quic.unread -= link.unread.len();
        link.conn = None;
        if self.index == 0 {
            self.quic_rehome(state, key, shard, meta, link, now);
        } else {
            let mail = QuicMail::Rehome {
                key,
                shard,
                meta,
                link,
            };
            self.quic_post(0, mail);
        }
    }

    /// The broker reads again from a connection that it had paused.
    pub(crate) fn quic_resume(&mut self, conn: ConnId) {
        if let Some(key) = self.quic.key(conn)
            && let Some(link) = self.quic.links.get_mut(&key)
        {
            link.paused = false;
            self.quic.touch(key);
        }
    }

    /// The broker has ended a connection.
    pub(crate) fn quic_close(&mut self, conn: ConnId, tail: Vec<u8>, now: Nanos) {
        let Some(key) = self.quic.key(conn) else {
            return;
        };
        self.quic.forget(conn);
        if let Some(link) = self.quic.links.get_mut(&key) {
            self.quic.unread -= link.unread.len();
            self.counters.closed(link.listener);
            link.close(tail, now + LINGER, self.clock.instant(now));
            self.quic.send_for(key);
        }
    }

    /// Handles what has happened on a connection.
    fn quic_link(&mut self, state: &mut State, key: Key, now: Nanos) {
        let Some(link) = self.quic.links.get_mut(&key) else {
            return;
        };
        link.touched = false;
        let instant = self.clock.instant(now);
        let happened = link.happened(instant, &self.quic.counters);
        if let Some(conn) = link.conn {
            if happened.established {
                let chain = link.certificates();
                let name = link.name(&chain).map(Into::into);
                self.shard.identify(conn, name, None);
                if let Some(policy) = link.policy.take() {
                    let (shared, listener) = (&self.shared, link.listener);
                    let (certificates, policies) = (&shared.certificates, &shared.policies);
                    let held = certificates.hold(listener, chain, &policy, policies);
                    self.shard.credit(conn, held);
                }
            }
            if let Some(address) = happened.moved {
                count(&self.quic.counters.moves, 1);
                self.shard.identify(conn, None, Some(address));
            }
            match happened.lost {
                Some(why) => self.shard.closed(conn, &why, now),
                None => self.quic_feed(state, key, conn, now),
            }
            self.act(state, now);
        }
        if self.quic_settled(key) {
            return;
        }
        self.quic.send_for(key);
    }

    /// Tells the endpoint what a connection has for it; true if the connection
    /// is gone.
    fn quic_settled(&mut self, key: Key) -> bool {
        let mut drained = false;
        while let Some(link) = self.quic.links.get_mut(&key)
            && let Some(event) = link.connection.poll_endpoint_events()
        {
            drained |= event.is_drained();
            self.quic_tell_endpoint(key, event);
        }
        if drained {
            self.quic.links.remove(&key);
        }
        !self.quic.links.contains_key(&key)
    }

    fn quic_tell_endpoint(&mut self, key: Key, event: EndpointEvent) {
        if self.index == 0 {
            self.quic_for_endpoint(key, event);
        } else {
            self.quic_post(0, QuicMail::Endpoint(key, event));
        }
    }

    /// Gives the broker what has come.
    fn quic_feed(&mut self, state: &State, key: Key, conn: ConnId, now: Nanos) {
        let quic = &mut self.quic;
        let Some(link) = quic.links.get_mut(&key) else {
            return;
        };
        if link.paused {
            return;
        }
        quic.buffer.clear();
        quic.unread -= link.unread.len();
        quic.buffer.append(&mut link.unread);
        let kept = quic.buffer.len();
        let outcome = link.read(&mut quic.buffer, kept + READ);
        if !quic.buffer.is_empty() {
            link.sniff(&quic.buffer);
            let received = self.shard.receive(conn, &quic.buffer, now);
            link.spoke |= received.consumed > 0 && received.flow != Flow::Closed;
            link.paused = received.flow == Flow::Pause;
            let rest = &quic.buffer[received.consumed..];
            let before = state.unread() + quic.unread;
            if received.flow != Flow::Closed && before + rest.len() > self.max_unread {
                self.counters
                    .receive_memory_exceeded
                    .fetch_add(1, Ordering::Relaxed);
                let why = "limits.max_receive_bytes of incomplete packets reached";
                self.shard.closed(conn, why, now);
                return;
            }
            link.unread = rest.to_vec();
            quic.unread += rest.len();
            if received.flow == Flow::Closed {
                return;
            }
        }
        for _ in 0..DATAGRAMS {
            if link.paused {
                break;
            }
            let Some(datagram) = link.datagram(&quic.counters) else {
                break;
            };
            let received = self.shard.receive(conn, &datagram, now);
            match received.flow {
                Flow::Closed => return,
                Flow::Read => {}
                Flow::Pause => {
                    link.paused = true;
                    link.held = rest_of(datagram, received.consumed);
                }
            }
        }
        link.ended |= outcome == Read::End;
        match outcome {
            _ if link.ended && !link.paused => {
                self.shard.closed(conn, "connection closed by peer", now);
            }
            Read::More if !link.paused => quic.touch(key),
            _ => {}
        }
    }

    /// Sends for the connections that have something to send, those with the
    /// most urgent first.
    pub(crate) fn quic_flush(&mut self, scope: Scope, now: Nanos) {
        if !self.quic.ready.is_empty() {
            let mut ranked: Vec<(Option<Rank>, Key)> = Vec::with_capacity(self.quic.ready.len());
            let mut others = Vec::new();
            for key in std::mem::take(&mut self.quic.ready) {
                let conn = self.quic.links.get(&key).and_then(|link| link.conn);
                let rank = conn.and_then(|conn| self.shard.rank(conn));
                let urgent = rank.is_some_and(|rank| rank.class < Class::Normal);
                if scope == Scope::Urgent && !urgent {
                    others.push(key);
                } else {
                    ranked.push((rank, key));
                }
            }
            self.quic.ready = others;
            // None is less than any rank: acknowledgements and last words wait.
            ranked.sort_by_key(|(rank, _)| (rank.is_none(), *rank));
            for (_, key) in ranked {
                self.quic_send(key, scope, now);
            }
        }
        let quic = &mut self.quic;
        for output in &mut quic.outputs {
            output.send(&mut quic.sent, self.poll.registry(), &quic.counters);
        }
    }

    /// Has one connection send what the broker, the network and the socket let it.
    fn quic_send(&mut self, key: Key, scope: Scope, now: Nanos) {
        let instant = self.clock.instant(now);
        let quic = &mut self.quic;
        let Some(link) = quic.links.get_mut(&key) else {
            return;
        };
        link.ready = false;
        let output = &mut quic.outputs[key.listener];
        if let Some(conn) = link.conn {
            link.class = self.shard.class(conn);
        }
        let class = class_number(link.class);
        let mut left = TURN;
        let mut waits = false;
        let mut again = false;
        loop {
            // What is ready to leave, leaves first: then it is known how much
            // more may be handed over.
            loop {
                if !output.has_room(class) {
                    output.send(&mut quic.sent, self.poll.registry(), &quic.counters);
                    if !output.has_room(class) {
                        waits = true;
                        break;
                    }
                }
                if left == 0 {
                    again = true;
                    break;
                }
                let mut data = output.buffer();
                match link.transmit(instant, &mut data) {
                    Some(transmit) => {
                        output.push(class, transmit, data);
                        left -= 1;
                    }
                    None => {
                        output.recycle(data);
                        break;
                    }
                }
            }
            if waits || again || !link.has_room() {
                break;
            }
            let handed = if link.closing.is_some() {
                link.close_on(instant)
            } else if let Some(conn) = link.conn {
                let mut slices = [std::io::IoSlice::new(&[]); 32];
                let filled = self.shard.pending(conn, scope, now, &mut slices);
                let n = link.hand_over(&slices[..filled], &quic.counters);
                if n > 0 {
                    self.shard.sent(conn, n, now);
                }
                n > 0
            } else {
                false
            };
            if !handed {
                // A last look: closing makes packets without bytes.
                if link.closing.is_some() {
                    while output.has_room(class) {
                        let mut data = output.buffer();
                        let Some(transmit) = link.transmit(instant, &mut data) else {
                            output.recycle(data);
                            break;
                        };
                        output.push(class, transmit, data);
                    }
                }
                break;
            }
        }
        if again {
            link.ready = true;
            quic.ready.push(key);
        } else if waits {
            output.waiting.push(key);
        }
        let gone = quic.stopping && link.conn.is_none() && link.connection.is_closed() && !waits;
        let due = link.connection.poll_timeout();
        let mut due = due.map_or(Nanos::MAX, |due| self.clock.nanos(due));
        if let Some(closing) = &link.closing
            && !link.connection.is_closed()
        {
            due = due.min(closing.until);
        }
        // A timer that is too early is set anew when it fires.
        if due < link.armed {
            link.armed = due;
            quic.timers.push(Reverse((due, key)));
        }
        if !self.quic_settled(key) && gone {
            self.quic.links.remove(&key);
            self.quic_tell_endpoint(key, EndpointEvent::drained());
        }
    }
}
