//! Input of QUIC: datagrams of the sockets, timers, and what has happened on connections by them.

use std::cmp::Reverse;

use punctual_broker::{Class, ConnId, Flow, Nanos};
use quinn_proto::{ConnectionEvent, DatagramEvent, VarInt};

use super::link::{Read, rest_of};
use super::mail::{Key, QuicMail};
use super::options::count;
use super::{Quic, class_number};
use crate::datagram::CLASSES;
use crate::transport::{Context, Progress, TOO_MUCH_UNREAD};

/// Batches of datagrams read from one socket in one turn.
const BATCHES: usize = 8;
/// Bytes of a stream that are read in one turn.
const READ: usize = 64 << 10;
/// Datagrams of messages that the broker is given in one turn.
const DATAGRAMS: usize = 64;
/// What a connection is closed with that broke a rule.
const REFUSED: VarInt = VarInt::from_u32(1);

/// How far a turn has come.
#[derive(Debug, Clone, Copy)]
pub(super) enum Stage {
    /// Reading a class' socket of a listener, after so many batches.
    Sockets {
        listener: usize,
        class: usize,
        batches: usize,
    },
    /// Timers that are due.
    Timers,
    /// Links on which something has happened.
    Links,
}

impl Stage {
    pub(super) const FIRST: Self = Self::of(0);

    const fn of(listener: usize) -> Self {
        Self::Sockets {
            listener,
            class: 0,
            batches: 0,
        }
    }
}

const HANDLED: Progress = Progress::Handled {
    conn: None,
    flush: false,
};

impl Quic {
    /// Handles a datagram of a connection, a client that wants to connect, or what has happened on a
    /// link; goes through the stages of the turn until there is one. Each datagram may be a step of a
    /// handshake, which takes up to a millisecond.
    pub(super) fn receive_next(&mut self, cx: &mut Context) -> Progress {
        let now = self.turn_began;
        loop {
            if let Some((key, event)) = self.arrived.pop_front() {
                self.event(cx, key, event);
                return HANDLED;
            }
            // Decided about at once: until then the endpoint keeps them.
            if let Some((at, incoming)) = self.incoming.pop_front() {
                self.admit(cx, at, incoming, now);
                return HANDLED;
            }
            match self.stage {
                Stage::Sockets {
                    listener,
                    class,
                    batches,
                } => self.stage = self.receive_batch(cx, listener, class, batches),
                Stage::Timers => {
                    self.fire_timers(cx, now);
                    // Those that ask for another turn get it in the next.
                    std::mem::swap(&mut self.handling, &mut self.touched);
                    self.stage = Stage::Links;
                }
                Stage::Links => {
                    let Some(key) = self.handling.pop_front() else {
                        return Progress::Done;
                    };
                    self.handle_link(cx, key, now);
                    return HANDLED;
                }
            }
        }
    }

    /// Reads a batch of datagrams; which is the next one.
    fn receive_batch(&mut self, cx: &Context, at: usize, class: usize, batches: usize) -> Stage {
        let Some(listener) = self.listeners.get_mut(at) else {
            return Stage::Timers;
        };
        if class == CLASSES {
            self.post_arrived(cx);
            return Stage::of(at + 1);
        }
        let next_class = Stage::Sockets {
            listener: at,
            class: class + 1,
            batches: 0,
        };
        if batches == BATCHES || !listener.readable[class] {
            return next_class;
        }
        let (output, received) = (&mut self.outputs[at], &mut self.received);
        match output.sockets().receive(class, received) {
            Ok(more) => listener.readable[class] = more,
            Err(error) => {
                listener.readable[class] = false;
                tracing::warn!(%error, "reading from a QUIC socket failed");
                return next_class;
            }
        }
        let instant = cx.clock.instant(self.turn_began);
        let mut n = 0;
        for (path, datagram) in received.datagrams() {
            n += 1;
            let mut answer = output.buffer();
            match listener.handle(instant, path, datagram, &mut answer) {
                Some(DatagramEvent::ConnectionEvent(handle, event)) => {
                    let key = Key {
                        listener: at,
                        handle,
                    };
                    let owner = listener.owners.get(handle.0).copied().unwrap_or(0);
                    if owner == cx.index {
                        self.arrived.push_back((key, event));
                    } else if self.under_way.add(owner) {
                        self.posts[usize::from(owner)].push_back((key, event));
                    } else {
                        count(&self.counters.behind, 1);
                    }
                }
                Some(DatagramEvent::Response(transmit)) => {
                    output.answer(class_number(Class::Normal), transmit, answer);
                    continue;
                }
                Some(DatagramEvent::NewConnection(new)) => self.incoming.push_back((at, new)),
                None => {}
            }
            output.recycle(answer);
        }
        count(&self.counters.received, n);
        Stage::Sockets {
            listener: at,
            class,
            batches: batches + 1,
        }
    }

    /// Sends datagrams to the shards of their connections.
    fn post_arrived(&mut self, cx: &Context) {
        for (shard, events) in (0_u16..).zip(&mut self.posts) {
            if !events.is_empty() {
                cx.post(shard, QuicMail::Events(std::mem::take(events)));
            }
        }
    }

    fn fire_timers(&mut self, cx: &Context, now: Nanos) {
        while let Some(Reverse((at, key))) = self.timers.peek().copied()
            && at <= now
        {
            self.timers.pop();
            if let Some(link) = self.links.get_mut(&key)
                && link.armed == at
            {
                link.armed = Nanos::MAX;
                let instant = cx.clock.instant(now);
                link.connection.handle_timeout(instant);
                if link.closing.as_ref().is_some_and(|c| c.until <= now) {
                    link.connection.close(instant, REFUSED, bytes::Bytes::new());
                }
                self.touch(key);
            }
        }
    }

    /// A datagram of a connection, or what the endpoint says to it.
    pub(super) fn event(&mut self, cx: &Context, key: Key, event: ConnectionEvent) {
        if let Some(link) = self.links.get_mut(&key) {
            link.connection.handle_event(event);
            self.touch(key);
        } else if cx.index != 0 {
            let from = cx.index;
            cx.post(0, QuicMail::Return { key, event, from });
        }
    }

    /// Handles what has happened on a connection.
    fn handle_link(&mut self, cx: &mut Context, key: Key, now: Nanos) {
        let Some(link) = self.links.get_mut(&key) else {
            return;
        };
        link.touched = false;
        let instant = cx.clock.instant(now);
        let happened = link.happened(instant, &self.counters);
        if let Some(conn) = link.conn {
            if happened.established {
                let chain = link.certificates();
                let name = link.name(&chain).map(Into::into);
                cx.shard.identify(conn, name, None);
                if let Some(policy) = link.policy.take() {
                    let (shared, listener) = (&cx.shared, link.listener);
                    let (certificates, policies) = (&shared.certificates, &shared.policies);
                    let held = certificates.hold(listener, chain, &policy, policies);
                    cx.shard.credit(conn, held);
                }
            }
            if let Some(address) = happened.moved {
                count(&self.counters.moves, 1);
                cx.shard.identify(conn, None, Some(address));
            }
            match happened.lost {
                Some(why) => cx.lose(conn, &why, now),
                None => self.feed(cx, key, conn, now),
            }
        }
        if !self.settle(cx, key) {
            self.send_for(key);
        }
    }

    /// Gives the broker what has come.
    fn feed(&mut self, cx: &mut Context, key: Key, conn: ConnId, now: Nanos) {
        let quic = &mut *self;
        let Some(link) = quic.links.get_mut(&key) else {
            return;
        };
        if link.paused {
            return;
        }
        quic.buffer.clear();
        cx.unread -= link.unread.len();
        quic.buffer.append(&mut link.unread);
        let kept = quic.buffer.len();
        let outcome = link.read(&mut quic.buffer, kept + READ);
        if !quic.buffer.is_empty() {
            link.sniff(&quic.buffer);
            let received = cx.shard.receive(conn, &quic.buffer, now);
            link.spoke |= received.consumed > 0 && received.flow != Flow::Closed;
            link.paused = received.flow == Flow::Pause;
            let rest = &quic.buffer[received.consumed..];
            if received.flow == Flow::Closed {
                cx.unread += rest.len();
            } else if !cx.keep_unread(rest.len()) {
                cx.lose(conn, TOO_MUCH_UNREAD, now);
                return;
            }
            link.unread = rest.to_vec();
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
            let received = cx.shard.receive(conn, &datagram, now);
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
                cx.lose(conn, "connection closed by peer", now);
            }
            Read::More if !link.paused => quic.touch(key),
            _ => {}
        }
    }
}
