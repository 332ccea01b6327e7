//! UDP's part of a shard's turn: read and let the broker handle, do what is
//! due, choose and send.

use std::collections::VecDeque;
use std::io;
use std::os::fd::AsRawFd as _;
use std::time::Duration;

use mio::unix::SourceFd;
use mio::{Interest, Token};
use punctual_broker::lock::read;
use punctual_broker::{Class, ConnId, ConnMeta, Nanos, Rank, Shard};
use punctual_codec::ReasonCode;
use punctual_udp::{Event, Path, PeerId, Transmit};

use super::link::{Links, Remote, Way};
use super::peers::Home;
use super::remote::{Credit, Queued, UNDER_WAY, UdpMail};
use super::socket::{CLASSES, SendBatch, path_capacity};
use super::waiting::Waiting;
use super::{Listener, TURN, since_origin};
use crate::layer::ClientAddress;
use crate::mailbox::{Mail, Mailbox};
use crate::overrun::Piece;
use crate::worker::{State, Worker};

/// Datagrams read from one socket in one turn, in batches.
const BATCHES: usize = 8;
/// Datagrams of one class that may wait for the socket or the link: answers to
/// what has come. Further ones are lost; messages wait in the broker.
const OUTGOING: usize = 1024;
/// Datagrams that are made before they are sent.
const AHEAD: usize = 32;

impl Worker {
    /// Reads what has come, and does what is due.
    pub(crate) fn udp_turn(&mut self, state: &mut State, now: Nanos) {
        for at in 0..self.udp.listeners.len() {
            for class in 0..CLASSES {
                for _ in 0..BATCHES {
                    let udp = &mut self.udp;
                    let listener = &mut udp.listeners[at];
                    if !listener.readable[class] {
                        break;
                    }
                    match listener.sockets.receive(class, &mut udp.received) {
                        Ok(more) => listener.readable[class] = more,
                        Err(error) => {
                            listener.readable[class] = false;
                            tracing::warn!(%error, "reading from a UDP socket failed");
                        }
                    }
                    for (path, datagram) in udp.received.datagrams() {
                        let now = since_origin(now);
                        listener.endpoint.handle(path, datagram, now);
                    }
                    self.udp_events(state, at, now);
                }
            }
            let endpoint = &mut self.udp.listeners[at].endpoint;
            let due = endpoint.next_timeout();
            if due.is_some_and(|due| due <= since_origin(now)) {
                endpoint.handle_timeout(since_origin(now));
                self.udp_events(state, at, now);
            }
        }
    }

    /// Does what an endpoint says.
    fn udp_events(&mut self, state: &mut State, at: usize, now: Nanos) {
        while let Some(event) = self.udp.listeners[at].endpoint.poll_event() {
            self.piece(state, Piece::Udp, |worker, state| {
                worker.udp_event(at, event, now);
                // Before the next event, which may bring a connection that gets
                // the slot of one that has just ended.
                worker.act(state, now);
            });
        }
    }

    fn udp_event(&mut self, at: usize, event: Event, now: Nanos) {
        match event {
            Event::Opened(peer) => self.udp_open(at, peer, now),
            Event::Received(peer) => self.udp_feed(at, peer, now),
            Event::Lost(peer, why) => self.udp_lost(at, peer, why, now),
            Event::Moved(peer, to) => match self.udp.listeners[at].peers.get(peer) {
                Some(Home::Here(conn)) => self.shard.identify(conn, None, Some(to)),
                Some(Home::There { shard, .. }) => {
                    let remote = Remote { listener: at, peer };
                    self.udp_post(shard, UdpMail::Moved { remote, to });
                }
                None => {}
            },
        }
    }

    fn udp_post(&self, shard: u16, mail: UdpMail) {
        self.mailboxes[usize::from(shard)].post(Mail::Udp(mail));
    }

    fn udp_open(&mut self, at: usize, peer: PeerId, now: Nanos) {
        let listener = &mut self.udp.listeners[at];
        let Some(path) = listener.endpoint.path(peer) else {
            return;
        };
        let shared = &self.shared;
        let accept = *read(&shared.accept);
        let open = self
            .counters
            .open
            .load(std::sync::atomic::Ordering::Relaxed);
        let mut nonce = [0; 16];
        let random = getrandom::fill(&mut nonce).is_ok();
        if open >= accept.max_connections || !random {
            let refused = &self.counters.connections_refused;
            refused.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            let reason = ReasonCode::ServerBusy;
            listener.endpoint.reject(peer, reason, since_origin(now));
            return;
        }
        let policy = shared.policies.of(listener.index);
        let meta = ConnMeta {
            peer: Some(path.remote),
            local: listener.sockets.destination(path.local),
            listener: listener.index,
            allow_anonymous: policy
                .anonymous
                .lets_in(path.remote.ip(), ClientAddress::Socket),
            identity: None,
            credential: None,
            unproven: Some(policy.unproven.clone()),
            nonce,
            refuse: policy.refuse,
        };
        self.counters.opened(listener.index);
        let conn = self.shard.open(meta, now);
        let capacity = listener.endpoint.capacity(peer);
        self.shard.bound_packets(conn, capacity);
        listener.peers.insert(peer, Home::Here(conn));
        let way = Way::Here { listener: at, peer };
        self.udp.links.insert(conn, way);
        self.udp_feed(at, peer, now);
    }

    /// Gives packets of a peer to the broker, or to the shard that its session
    /// lives on.
    fn udp_feed(&mut self, at: usize, peer: PeerId, now: Nanos) {
        let listener = &mut self.udp.listeners[at];
        let inbox = listener.endpoint.inbox(peer);
        if inbox.is_empty() {
            return;
        }
        match listener.peers.get_mut(peer) {
            Some(Home::Here(conn)) => {
                let received = self.shard.receive(*conn, inbox, now);
                listener.endpoint.consumed(peer, received.consumed);
            }
            Some(Home::There { shard, under_way }) if *under_way < UNDER_WAY => {
                let packets = inbox.to_vec();
                *under_way += packets.len();
                let shard = *shard;
                listener.endpoint.consumed(peer, packets.len());
                let remote = Remote { listener: at, peer };
                self.udp_post(shard, UdpMail::Packets { remote, packets });
            }
            _ => {}
        }
    }

    fn udp_lost(&mut self, at: usize, peer: PeerId, why: &'static str, now: Nanos) {
        let listener = &mut self.udp.listeners[at];
        match listener.peers.get(peer) {
            // The broker's answer closes it here.
            Some(Home::Here(conn)) => self.shard.closed(conn, why, now),
            Some(Home::There { shard, .. }) => {
                listener.peers.remove(peer);
                self.counters.closed(listener.index);
                let remote = Remote { listener: at, peer };
                self.udp_post(shard, UdpMail::Lost { remote, why });
            }
            None => {}
        }
    }

    /// The broker reads again from a connection that it had paused.
    pub(crate) fn udp_resume(&mut self, conn: ConnId, now: Nanos) {
        match self.udp.links.get(conn).map(|link| &link.way) {
            Some(Way::Here { listener, peer }) => {
                let (listener, peer) = (*listener, *peer);
                self.udp_feed(listener, peer, now);
            }
            Some(Way::Through { .. }) => self.udp_feed_through(conn, now),
            None => {}
        }
    }

    /// Gives the broker what has come by shard 0.
    fn udp_feed_through(&mut self, conn: ConnId, now: Nanos) {
        let Some(Way::Through { remote, unread, .. }) =
            self.udp.links.get_mut(conn).map(|link| &mut link.way)
        else {
            return;
        };
        if unread.is_empty() {
            return;
        }
        let received = self.shard.receive(conn, unread, now);
        unread.drain(..received.consumed.min(unread.len()));
        let (remote, bytes) = (*remote, received.consumed);
        if bytes > 0 {
            self.udp_post(0, UdpMail::Taken { remote, bytes });
        }
    }

    /// The broker has ended a connection.
    pub(crate) fn udp_close(&mut self, conn: ConnId, tail: Vec<u8>, now: Nanos) {
        match self.udp.links.remove(conn) {
            Some(Way::Here { listener, peer }) => {
                let listener = &mut self.udp.listeners[listener];
                listener.waiting.set(conn.slot, None);
                listener.peers.remove(peer);
                listener.endpoint.close(peer, &tail, since_origin(now));
                self.counters.closed(listener.index);
            }
            Some(Way::Through { remote, .. }) => {
                self.udp.short.set(conn.slot, None);
                let from = self.index;
                self.udp.credit.use_up(from, tail.len());
                let last = Queued {
                    remote,
                    class: Class::Bulk as u8,
                    rank: Rank::CONTROL,
                    from,
                    packets: tail,
                    last: true,
                };
                let list = vec![last];
                self.udp_post(0, UdpMail::Send { from, list });
            }
            None => {}
        }
    }

    /// The session lives on another shard.
    pub(crate) fn udp_hand_over(&mut self, conn: ConnId, shard: u16, meta: Box<ConnMeta>) {
        match self.udp.links.remove(conn) {
            Some(Way::Here { listener: at, peer }) => {
                self.udp.listeners[at].waiting.set(conn.slot, None);
                let packets = self.udp.listeners[at].endpoint.inbox(peer).to_vec();
                let endpoint = &mut self.udp.listeners[at].endpoint;
                endpoint.consumed(peer, packets.len());
                let remote = Remote { listener: at, peer };
                self.udp_settle(remote, shard, meta, packets);
            }
            Some(Way::Through { remote, unread, .. }) => {
                self.udp.short.set(conn.slot, None);
                let mail = UdpMail::Rehome {
                    remote,
                    shard,
                    meta,
                    packets: unread,
                };
                self.udp_post(0, mail);
            }
            None => {}
        }
    }

    /// On shard 0: gives a connection to the shard of its session.
    fn udp_settle(&mut self, remote: Remote, shard: u16, meta: Box<ConnMeta>, packets: Vec<u8>) {
        let Some(listener) = self.udp.listeners.get_mut(remote.listener) else {
            return;
        };
        let capacity = listener.endpoint.capacity(remote.peer);
        let home = Home::There {
            shard,
            under_way: packets.len(),
        };
        listener.peers.insert(remote.peer, home);
        let mail = UdpMail::Open {
            remote,
            meta,
            packets,
            capacity,
        };
        self.udp_post(shard, mail);
    }

    /// Mail from shard 0, or to it.
    pub(crate) fn udp_mail(&mut self, state: &mut State, mail: UdpMail, now: Nanos) {
        match mail {
            UdpMail::Open {
                remote,
                meta,
                packets,
                capacity,
            } => {
                let conn = self.shard.open(*meta, now);
                self.shard.bound_packets(conn, capacity);
                let way = Way::Through {
                    remote,
                    unread: packets,
                    capacity,
                };
                self.udp.links.insert(conn, way);
                self.udp_feed_through(conn, now);
            }
            UdpMail::Packets { remote, packets } => {
                if let Some(conn) = self.udp.links.through(remote) {
                    if let Some(link) = self.udp.links.get_mut(conn)
                        && let Way::Through { unread, .. } = &mut link.way
                    {
                        unread.extend_from_slice(&packets);
                    }
                    self.udp_feed_through(conn, now);
                }
            }
            UdpMail::Lost { remote, why } => {
                if let Some(conn) = self.udp.links.through(remote) {
                    self.shard.closed(conn, why, now);
                }
            }
            UdpMail::Moved { remote, to } => {
                if let Some(conn) = self.udp.links.through(remote) {
                    self.shard.identify(conn, None, Some(to));
                }
            }
            UdpMail::Narrowed { remote, capacity } => {
                if let Some(conn) = self.udp.links.through(remote) {
                    self.shard.bound_packets(conn, capacity);
                    if let Some(link) = self.udp.links.get_mut(conn)
                        && let Way::Through { capacity: of, .. } = &mut link.way
                    {
                        *of = capacity;
                    }
                }
            }
            UdpMail::Room => {}
            UdpMail::Taken { remote, bytes } => {
                let Some(listener) = self.udp.listeners.get_mut(remote.listener) else {
                    return;
                };
                if let Some(Home::There { under_way, .. }) = listener.peers.get_mut(remote.peer) {
                    *under_way = under_way.saturating_sub(bytes);
                }
                self.udp_feed(remote.listener, remote.peer, now);
                self.act(state, now);
            }
            UdpMail::Send { from, list } => {
                for queued in list {
                    let class = usize::from(queued.class).min(CLASSES - 1);
                    match self.udp.listeners.get_mut(queued.remote.listener) {
                        Some(listener) => listener.queued[class].push_back(queued),
                        None => {
                            self.udp.credit.give_back(from, queued.packets.len());
                        }
                    }
                }
            }
            UdpMail::Rehome {
                remote,
                shard,
                meta,
                packets,
            } => self.udp_settle(remote, shard, meta, packets),
        }
    }

    /// Sends what may be sent, the most urgent first.
    pub(crate) fn udp_flush(&mut self, now: Nanos) {
        let udp = &mut self.udp;
        for (at, listener) in udp.listeners.iter_mut().enumerate() {
            listener.flush(
                &mut self.shard,
                &udp.links,
                &mut udp.packets,
                &mut udp.sent,
                now,
            );
            let ended = listener.ended.drain(..);
            for peer in ended {
                if listener.peers.remove(peer) {
                    self.counters.closed(listener.index);
                }
            }
            for (shard, peer, capacity) in listener.narrowed.drain(..) {
                let remote = Remote { listener: at, peer };
                let mail = UdpMail::Narrowed { remote, capacity };
                self.mailboxes[usize::from(shard)].post(Mail::Udp(mail));
            }
            for (shard, bytes) in listener.taken.drain(..) {
                give_back(&udp.credit, &self.mailboxes, shard, bytes);
            }
        }
        if !udp.listeners.is_empty() {
            let listeners = udp.listeners.iter();
            let counted = listeners.map(|l| (l.endpoint.counters(), &l.refused.count));
            udp.counters.set(counted);
        }
        if !udp.short.is_empty() {
            self.udp_flush_through(now);
        }
    }

    /// Hands shard 0 what it has credit for, the most urgent first.
    fn udp_flush_through(&mut self, now: Nanos) {
        let from = self.index;
        let shares = self.shard.shares();
        let udp = &mut self.udp;
        let mut list = Vec::new();
        while udp.credit.is_left(from) {
            let heads = Class::ALL.map(|class| {
                let slot = udp.short.first(class as usize)?;
                match udp.links.at(slot).map(|link| &link.way) {
                    Some(Way::Through { capacity, .. }) => Some(*capacity),
                    _ => Some(0),
                }
            });
            let Some(first) = udp.earned.pick(&shares, &heads) else {
                break;
            };
            let Some(slot) = udp.short.first(first as usize) else {
                break;
            };
            let link = udp.links.at(slot).map(|link| (link.conn, &link.way));
            let Some((
                conn,
                Way::Through {
                    remote, capacity, ..
                },
            )) = link
            else {
                udp.short.set(slot, None);
                continue;
            };
            let mut packets = Vec::new();
            let first = udp.short.rank(slot).unwrap_or(Rank::CONTROL);
            let class = self.shard.next_packets(conn, *capacity, &mut packets, now);
            let rank = class.and_then(|_| self.shard.rank(conn));
            udp.short.served(slot, rank);
            let Some(class) = class.filter(|_| !packets.is_empty()) else {
                continue;
            };
            udp.credit.use_up(from, packets.len());
            udp.earned.sent(&shares, &heads, class, packets.len());
            list.push(Queued {
                remote: *remote,
                class: class as u8,
                rank: first,
                from,
                packets,
                last: false,
            });
        }
        if !list.is_empty() {
            self.udp_post(0, UdpMail::Send { from, list });
        }
    }
}

fn give_back(credit: &Credit, mailboxes: &[Mailbox], shard: u16, bytes: usize) {
    if credit.give_back(shard, bytes) {
        mailboxes[usize::from(shard)].post(Mail::Udp(UdpMail::Room));
    }
}

impl Listener {
    /// Takes from the broker and sends, as far as link and sockets allow.
    fn flush(
        &mut self,
        shard: &mut Shard,
        links: &Links,
        packets: &mut Vec<u8>,
        batch: &mut SendBatch,
        now: Nanos,
    ) {
        let mut left = TURN;
        loop {
            self.collect();
            self.send(batch, now);
            self.narrow(shard);
            if self.next_send(since_origin(now)) > since_origin(now) {
                return;
            }
            let paced = match &self.pace {
                Some(_) => 1,
                None => AHEAD,
            };
            let wanted = paced.min(left);
            let mut taken = 0;
            while taken < wanted && self.take(shard, links, packets, now) {
                taken += 1;
            }
            left -= taken;
            if taken < wanted || left == 0 {
                self.collect();
                self.send(batch, now);
                self.narrow(shard);
                return;
            }
        }
    }

    /// When the next datagram may leave; `now` if at once.
    pub(super) fn next_send(&mut self, now: Duration) -> Duration {
        match &self.pace {
            Some(pace) => {
                let rank = first_rank(&self.outgoing, &self.queued, &mut self.waiting);
                pace.next(rank, now)
            }
            None => now,
        }
    }

    /// Sends less at once where a path does not take what was sent.
    fn narrow(&mut self, shard: &mut Shard) {
        while let Some(address) = self.refused.too_long.pop() {
            let Ok(max) = path_capacity(address) else {
                continue;
            };
            let Some(peer) = self.endpoint.narrow(address, max) else {
                continue;
            };
            let capacity = self.endpoint.capacity(peer);
            match self.peers.get(peer) {
                Some(Home::Here(conn)) => shard.bound_packets(conn, capacity),
                Some(Home::There { shard, .. }) => self.narrowed.push((shard, peer, capacity)),
                None => {}
            }
        }
    }

    /// Moves what the endpoint wants to send to the queues of the sockets.
    fn collect(&mut self) {
        while let Some(transmit) = self.endpoint.poll_transmit() {
            let class = usize::from(transmit.class).min(CLASSES - 1);
            if self.outgoing[class].len() < OUTGOING {
                self.outgoing[class].push_back(transmit);
            } else {
                self.refused.count += 1;
                self.endpoint.recycle(transmit.data);
            }
        }
    }

    fn send(&mut self, batch: &mut SendBatch, now: Nanos) {
        for class in 0..CLASSES {
            let queue = &mut self.outgoing[class];
            if self.blocked[class] || queue.is_empty() {
                continue;
            }
            let mut allowed = queue.len();
            if let Some(pace) = &mut self.pace {
                // What was taken from the broker was let through before.
                while self.passed[class] < queue.len()
                    && pace.next(Rank::CONTROL, since_origin(now)) <= since_origin(now)
                {
                    let transmit = &queue[self.passed[class]];
                    let ipv6 = transmit.path.remote.is_ipv6();
                    pace.sent(transmit.data.len(), ipv6, since_origin(now));
                    self.passed[class] += 1;
                }
                allowed = self.passed[class];
            }
            let before = queue.len();
            let endpoint = &mut self.endpoint;
            let result = self.sockets.send(
                class,
                batch,
                queue,
                allowed,
                |data| endpoint.recycle(data),
                &mut self.refused,
            );
            let sent = before - queue.len();
            self.passed[class] = self.passed[class].saturating_sub(sent);
            if result.is_err() {
                self.block(class);
            }
        }
    }

    /// A socket is full. Only now epoll is asked for room: it would wake the
    /// shard after every datagram that has left.
    fn block(&mut self, class: usize) {
        // Without a place in epoll nobody would be told of room: try again soon.
        let told = self.watch(class, Interest::READABLE | Interest::WRITABLE);
        self.blocked[class] = told.is_ok();
    }

    /// A socket has room again.
    pub(super) fn unblock(&mut self, class: usize) {
        if std::mem::take(&mut self.blocked[class]) {
            // At worst it wakes the shard too often.
            let _ = self.watch(class, Interest::READABLE);
        }
    }

    fn watch(&self, class: usize, interest: Interest) -> io::Result<()> {
        let fd = self.sockets.of(class).as_raw_fd();
        let token = Token(self.token | class);
        self.registry
            .reregister(&mut SourceFd(&fd), token, interest)
    }

    /// Takes the next datagram's packets from the broker, or from another
    /// shard; false if there is nothing, or no socket to send it. The most
    /// urgent goes first, but every class has its minimum share of what the
    /// listener sends, whoever the receivers are.
    fn take(
        &mut self,
        shard: &mut Shard,
        links: &Links,
        packets: &mut Vec<u8>,
        now: Nanos,
    ) -> bool {
        let shares = shard.shares();
        let heads = Class::ALL.map(|class| {
            let class = class as usize;
            let waits = self.waiting.has(class) || !self.queued[class].is_empty();
            waits.then_some(self.largest)
        });
        let free = Class::ALL.map(|class| {
            let class = class as usize;
            heads[class].filter(|_| !self.blocked[class])
        });
        let Some(class) = self.credits.pick(&shares, &free) else {
            return false;
        };
        let class = class as usize;
        let own = self.waiting.first(class);
        let sent = match own.filter(|_| self.others_last || self.queued[class].is_empty()) {
            Some(slot) => self.take_waiting(slot, shard, links, packets, now),
            None => self.take_queued(class, now),
        };
        if let Some((class, bytes)) = sent {
            self.credits.sent(&shares, &heads, class, bytes);
        }
        true
    }

    fn take_waiting(
        &mut self,
        slot: u32,
        shard: &mut Shard,
        links: &Links,
        packets: &mut Vec<u8>,
        now: Nanos,
    ) -> Option<(Class, usize)> {
        self.others_last = false;
        let way = links.at(slot).map(|link| (link.conn, &link.way));
        let Some((conn, Way::Here { peer, .. })) = way else {
            self.waiting.set(slot, None);
            return None;
        };
        packets.clear();
        let first = self.waiting.rank(slot);
        let capacity = self.endpoint.capacity(*peer);
        let class = shard.next_packets(conn, capacity, packets, now);
        let rank = class.and_then(|_| shard.rank(conn));
        self.waiting.served(slot, rank);
        let class = class?;
        let now = since_origin(now);
        if let (Some(pace), Some(rank)) = (&mut self.pace, first) {
            pace.taken(rank, now);
        }
        self.endpoint.send(*peer, packets, class as u8, now);
        Some((class, packets.len()))
    }

    fn take_queued(&mut self, class: usize, now: Nanos) -> Option<(Class, usize)> {
        self.others_last = true;
        let queued = self.queued[class].pop_front()?;
        let (peer, now) = (queued.remote.peer, since_origin(now));
        if queued.last {
            // After everything that was said before, in whatever class.
            let Self {
                endpoint, taken, ..
            } = self;
            for waiting in &mut self.queued {
                waiting.retain(|queued| {
                    let before = queued.remote.peer == peer;
                    if before {
                        endpoint.send(peer, &queued.packets, queued.class, now);
                        taken.push((queued.from, queued.packets.len()));
                    }
                    !before
                });
            }
            self.endpoint.close(peer, &queued.packets, now);
            self.ended.push(peer);
        } else {
            if let Some(pace) = &mut self.pace {
                pace.taken(queued.rank, now);
            }
            self.endpoint.send(peer, &queued.packets, queued.class, now);
        }
        self.taken.push((queued.from, queued.packets.len()));
        Some((Class::ALL[class], queued.packets.len()))
    }
}

/// Rank of the most urgent that waits to be sent; what is ready goes before all of it.
fn first_rank(
    outgoing: &[VecDeque<Transmit<Path>>; CLASSES],
    queued: &[VecDeque<Queued>; CLASSES],
    waiting: &mut Waiting,
) -> Rank {
    if outgoing.iter().any(|ready| !ready.is_empty()) {
        return Rank::CONTROL;
    }
    let of = |class: usize| {
        let own = waiting.first(class).and_then(|slot| waiting.rank(slot));
        let others = queued[class].front().map(|queued| queued.rank);
        own.into_iter().chain(others).min()
    };
    (0..CLASSES).find_map(of).unwrap_or(Rank::CONTROL)
}
