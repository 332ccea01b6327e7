//! Output of UDP: what is sent is chosen when it can be sent, the most urgent first.

use std::collections::VecDeque;
use std::io;
use std::os::fd::AsRawFd as _;
use std::time::Duration;

use mio::unix::SourceFd;
use mio::{Interest, Token};
use punctual_broker::{Class, Nanos, Rank, Shard};
use punctual_udp::{Path, Transmit};

use super::link::{Links, PeerKey, Route};
use super::mail::{QueuedPackets, UdpMail};
use super::peers::Home;
use super::waiting::Waiting;
use super::{Listener, TURN, Udp, since_origin};
use crate::datagram::{CLASSES, SendBatch, path_capacity};
use crate::transport::Context;

/// Datagrams of one class that may wait for the socket or the link: answers to
/// what has come. Further ones are lost; messages wait in the broker.
const OUTGOING: usize = 1024;
/// Datagrams that are made before they are sent.
const AHEAD: usize = 32;

impl Udp {
    /// Sends what may be sent, the most urgent first.
    pub(super) fn flush_listeners(&mut self, cx: &mut Context, now: Nanos) {
        for (at, listener) in self.listeners.iter_mut().enumerate() {
            let (packets, batch) = (&mut self.packets, &mut self.sent);
            listener.flush(&mut cx.shard, &self.links, packets, batch, now);
            for peer in listener.ended.drain(..) {
                if listener.peers.remove(peer) {
                    cx.counters.closed(listener.index);
                }
            }
            for (shard, peer, capacity) in listener.narrowed.drain(..) {
                let remote = PeerKey { listener: at, peer };
                cx.post(shard, UdpMail::Narrowed { remote, capacity });
            }
            for (shard, bytes) in listener.taken.drain(..) {
                if self.credit.give_back(shard, bytes) {
                    cx.post(shard, UdpMail::Room);
                }
            }
        }
        if !self.listeners.is_empty() {
            let listeners = self.listeners.iter();
            let counted = listeners.map(|l| (l.endpoint.counters(), &l.refused.count));
            self.counters.set(counted);
        }
    }

    /// Hands shard 0 what it has credit for, the most urgent first.
    pub(super) fn flush_forwarded(&mut self, cx: &mut Context, now: Nanos) {
        let from = cx.index;
        let shares = cx.shard.shares();
        let udp = &mut *self;
        let mut list = Vec::new();
        while udp.credit.is_left(from) {
            let heads = Class::ALL.map(|class| {
                let slot = udp.short.first(class as usize)?;
                match udp.links.at(slot).map(|link| &link.route) {
                    Some(Route::Forwarded { capacity, .. }) => Some(*capacity),
                    _ => Some(0),
                }
            });
            let Some(first) = udp.earned.pick(&shares, &heads) else {
                break;
            };
            let Some(slot) = udp.short.first(first as usize) else {
                break;
            };
            let link = udp.links.at(slot).map(|link| (link.conn, &link.route));
            let Some((
                conn,
                Route::Forwarded {
                    remote, capacity, ..
                },
            )) = link
            else {
                udp.short.set(slot, None);
                continue;
            };
            let mut packets = Vec::new();
            let first = udp.short.rank(slot).unwrap_or(Rank::CONTROL);
            let class = cx.shard.next_packets(conn, *capacity, &mut packets, now);
            let rank = class.and_then(|_| cx.shard.rank(conn));
            udp.short.served(slot, rank);
            let Some(class) = class.filter(|_| !packets.is_empty()) else {
                continue;
            };
            udp.credit.use_up(from, packets.len());
            udp.earned.sent(&shares, &heads, class, packets.len());
            list.push(QueuedPackets {
                remote: *remote,
                class: class as u8,
                rank: first,
                from,
                packets,
                last: false,
            });
        }
        if !list.is_empty() {
            cx.post(0, UdpMail::Send { from, list });
        }
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

    /// When the listener's next turn is due; `now` if at once.
    pub(super) fn next_turn(&mut self, now: Duration) -> Option<Duration> {
        if self.readable.contains(&true) || self.endpoint.has_transmits() {
            return Some(now);
        }
        let sendable = (0..CLASSES).any(|class| {
            let to_send = !self.outgoing[class].is_empty()
                || !self.queued[class].is_empty()
                || self.waiting.has(class);
            to_send && !self.blocked[class]
        });
        let paced = sendable.then(|| self.next_send(now));
        let timeout = self.endpoint.next_timeout();
        paced.into_iter().chain(timeout).min()
    }

    /// When the next datagram may leave; `now` if at once.
    fn next_send(&mut self, now: Duration) -> Duration {
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
                Some(Home::Local(conn)) => shard.bound_packets(conn, capacity),
                Some(Home::Remote { shard, .. }) => self.narrowed.push((shard, peer, capacity)),
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
        // Without a place in epoll nobody would be notified of room: try again soon.
        let watched = self.watch(class, Interest::READABLE | Interest::WRITABLE);
        self.blocked[class] = watched.is_ok();
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
        let token = Token(self.token.0 | class);
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
        let route = links.at(slot).map(|link| (link.conn, &link.route));
        let Some((conn, Route::Local { peer, .. })) = route else {
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
    queued: &[VecDeque<QueuedPackets>; CLASSES],
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
