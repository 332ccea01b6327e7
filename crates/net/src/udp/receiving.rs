//! Input of UDP: datagrams of the sockets, and what the endpoints make of them.

use std::sync::atomic::Ordering;

use punctual_broker::lock::read;
use punctual_broker::{ConnId, ConnMeta, Nanos};
use punctual_codec::ReasonCode;
use punctual_udp::{Event, PeerId};

use super::link::{PeerKey, Route};
use super::mail::{UNDER_WAY, UdpMail};
use super::peers::Home;
use super::{Udp, since_origin};
use crate::datagram::CLASSES;
use crate::transport::{Context, Progress, TransportKind};

/// Datagrams read from one socket in one turn, in batches.
const BATCHES: usize = 8;

/// How far a turn has come: which listener, which class' socket of it, and how many batches of that.
/// After the last class come the listener's timers.
#[derive(Debug, Default)]
pub(super) struct Cursor {
    listener: usize,
    class: usize,
    batches: usize,
}

impl Udp {
    /// Handles the next event of an endpoint; reads sockets, and has timers fire, until there is one.
    pub(super) fn receive_next(&mut self, cx: &mut Context, now: Nanos) -> Progress {
        while let Some(listener) = self.listeners.get_mut(self.cursor.listener) {
            if let Some(event) = listener.endpoint.poll_event() {
                self.event(cx, self.cursor.listener, event, now);
                return Progress::Handled {
                    conn: None,
                    flush: false,
                };
            }
            let Cursor { class, batches, .. } = &mut self.cursor;
            let class_now = *class;
            if class_now == CLASSES {
                *class += 1;
                let due = listener.endpoint.next_timeout();
                if due.is_some_and(|due| due <= since_origin(now)) {
                    listener.endpoint.handle_timeout(since_origin(now));
                }
            } else if class_now > CLASSES {
                self.cursor = Cursor {
                    listener: self.cursor.listener + 1,
                    ..Cursor::default()
                };
            } else if *batches == BATCHES || !listener.readable[class_now] {
                (*class, *batches) = (class_now + 1, 0);
            } else {
                *batches += 1;
                match listener.sockets.receive(class_now, &mut self.received) {
                    Ok(more) => listener.readable[class_now] = more,
                    Err(error) => {
                        listener.readable[class_now] = false;
                        tracing::warn!(%error, "reading from a UDP socket failed");
                    }
                }
                for (path, datagram) in self.received.datagrams() {
                    listener.endpoint.handle(path, datagram, since_origin(now));
                }
            }
        }
        Progress::Done
    }

    fn event(&mut self, cx: &mut Context, at: usize, event: Event, now: Nanos) {
        match event {
            Event::Opened(peer) => self.open(cx, at, peer, now),
            Event::Received(peer) => self.feed(cx, at, peer, now),
            Event::Lost(peer, why) => self.lost(cx, at, peer, why, now),
            Event::Moved(peer, to) => match self.listeners[at].peers.get(peer) {
                Some(Home::Local(conn)) => cx.shard.identify(conn, None, Some(to)),
                Some(Home::Remote { shard, .. }) => {
                    let remote = PeerKey { listener: at, peer };
                    cx.post(shard, UdpMail::Moved { remote, to });
                }
                None => {}
            },
        }
    }

    fn open(&mut self, cx: &mut Context, at: usize, peer: PeerId, now: Nanos) {
        let listener = &mut self.listeners[at];
        let Some(path) = listener.endpoint.path(peer) else {
            return;
        };
        let accept = *read(&cx.shared.accept);
        let open = cx.counters.open.load(Ordering::Relaxed);
        let mut nonce = [0; 16];
        let random = getrandom::fill(&mut nonce).is_ok();
        if open >= accept.max_connections || !random {
            let refused = &cx.counters.connections_refused;
            refused.fetch_add(1, Ordering::Relaxed);
            let reason = ReasonCode::ServerBusy;
            listener.endpoint.reject(peer, reason, since_origin(now));
            return;
        }
        let policy = cx.shared.policies.of(listener.index);
        let local = listener.sockets.destination(path.local);
        let meta = policy.meta(listener.index, path.remote, local, nonce);
        cx.counters.opened(listener.index);
        let conn = cx.open(TransportKind::Udp, meta, now);
        let capacity = listener.endpoint.capacity(peer);
        cx.shard.bound_packets(conn, capacity);
        listener.peers.insert(peer, Home::Local(conn));
        let route = Route::Local { listener: at, peer };
        self.links.insert(conn, route);
        self.feed(cx, at, peer, now);
    }

    /// Gives packets of a peer to the broker, or to the shard that its session
    /// lives on.
    pub(super) fn feed(&mut self, cx: &mut Context, at: usize, peer: PeerId, now: Nanos) {
        let listener = &mut self.listeners[at];
        let inbox = listener.endpoint.inbox(peer);
        if inbox.is_empty() {
            return;
        }
        match listener.peers.get_mut(peer) {
            Some(Home::Local(conn)) => {
                let received = cx.shard.receive(*conn, inbox, now);
                listener.endpoint.consumed(peer, received.consumed);
            }
            Some(Home::Remote { shard, under_way }) if *under_way < UNDER_WAY => {
                let packets = inbox.to_vec();
                *under_way += packets.len();
                let shard = *shard;
                listener.endpoint.consumed(peer, packets.len());
                let remote = PeerKey { listener: at, peer };
                cx.post(shard, UdpMail::Packets { remote, packets });
            }
            _ => {}
        }
    }

    pub(super) fn lost(
        &mut self,
        cx: &mut Context,
        at: usize,
        peer: PeerId,
        why: &'static str,
        now: Nanos,
    ) {
        let listener = &mut self.listeners[at];
        match listener.peers.get(peer) {
            // The broker's answer closes it here.
            Some(Home::Local(conn)) => cx.lose(conn, why, now),
            Some(Home::Remote { shard, .. }) => {
                listener.peers.remove(peer);
                cx.counters.closed(listener.index);
                let remote = PeerKey { listener: at, peer };
                cx.post(shard, UdpMail::Lost { remote, why });
            }
            None => {}
        }
    }

    /// Gives the broker what has come by shard 0.
    pub(super) fn feed_forwarded(&mut self, cx: &mut Context, conn: ConnId, now: Nanos) {
        let Some(Route::Forwarded { remote, unread, .. }) =
            self.links.get_mut(conn).map(|link| &mut link.route)
        else {
            return;
        };
        if unread.is_empty() {
            return;
        }
        let received = cx.shard.receive(conn, unread, now);
        unread.drain(..received.consumed.min(unread.len()));
        let (remote, bytes) = (*remote, received.consumed);
        if bytes > 0 {
            cx.post(0, UdpMail::Taken { remote, bytes });
        }
    }

    /// On shard 0: gives a connection to the shard of its session.
    pub(super) fn settle(
        &mut self,
        cx: &mut Context,
        remote: PeerKey,
        shard: u16,
        meta: Box<ConnMeta>,
        packets: Vec<u8>,
    ) {
        let Some(listener) = self.listeners.get_mut(remote.listener) else {
            return;
        };
        let capacity = listener.endpoint.capacity(remote.peer);
        let home = Home::Remote {
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
        cx.post(shard, mail);
    }
}
