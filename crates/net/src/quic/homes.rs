//! Which shard a connection is on: where it begins, how it gets to its session, and how it ends.

use std::sync::atomic::Ordering;

use punctual_broker::lock::read;
use punctual_broker::{Class, ConnMeta, Nanos};
use quinn_proto::{EndpointEvent, Incoming};

use super::endpoint::{Decision, Room};
use super::link::Link;
use super::mail::{Key, QuicMail};
use super::options::count;
use super::{Quic, class_number};
use crate::transport::{Context, TransportKind};

impl Quic {
    /// Decides about a client that wants to connect.
    pub(super) fn admit(&mut self, cx: &mut Context, at: usize, incoming: Incoming, now: Nanos) {
        let quic = &mut *self;
        let listener = &mut quic.listeners[at];
        let (output, counters) = (&mut quic.outputs[at], &quic.counters);
        let index = usize::from(listener.index);
        let accept = *read(&cx.shared.accept);
        let policy = cx.shared.policies.of(listener.index);
        let answers = class_number(Class::Normal);
        let mut answer = output.buffer();
        let drift = cx.counters.drift.load(Ordering::Relaxed);
        let mut nonce = [0; 16];
        let here = cx.counters.per_listener[index].load(Ordering::Relaxed);
        let room = Room {
            busy: quic.stopping || drift > accept.max_drift.0,
            rate: accept.rate,
            is_full: || {
                here >= policy.max_connections
                    || cx.counters.open.load(Ordering::Relaxed) >= accept.max_connections
                    || getrandom::fill(&mut nonce).is_err()
            },
        };
        let peer = incoming.remote_address();
        let local = output.sockets().destination(incoming.local_ip());
        let times = (now, cx.clock.instant(now));
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
                cx.counters
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
        let shards = cx.mailboxes.len() as u16;
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
        let meta = policy.meta(listener.index, peer, local, nonce);
        cx.counters.opened(listener.index);
        self.place(cx, key, shard, Box::new(meta), link, now);
    }

    /// Gives a connection to a shard.
    pub(super) fn place(
        &mut self,
        cx: &mut Context,
        key: Key,
        shard: u16,
        meta: Box<ConnMeta>,
        link: Box<Link>,
        now: Nanos,
    ) {
        if shard == cx.index {
            self.open(cx, key, *meta, link, now);
        } else {
            cx.post(shard, QuicMail::Open { key, meta, link });
        }
    }

    /// Opens a connection here.
    pub(super) fn open(
        &mut self,
        cx: &mut Context,
        key: Key,
        meta: ConnMeta,
        mut link: Box<Link>,
        now: Nanos,
    ) {
        let conn = cx.open(TransportKind::Quic, meta, now);
        link.conn = Some(conn);
        (link.touched, link.ready, link.paused) = (false, false, false);
        link.armed = Nanos::MAX;
        let slot = conn.slot as usize;
        if self.slots.len() <= slot {
            self.slots.resize(slot + 1, None);
        }
        self.slots[slot] = Some((conn, key));
        cx.unread += link.unread.len();
        self.links.insert(key, link);
        self.touch(key);
    }

    /// On shard 0: from now on a connection is another shard's.
    pub(super) fn rehome(
        &mut self,
        cx: &mut Context,
        key: Key,
        shard: u16,
        meta: Box<ConnMeta>,
        link: Box<Link>,
        now: Nanos,
    ) {
        let listener = self.listeners.get_mut(key.listener);
        if let Some(owner) = listener.and_then(|l| l.owners.get_mut(key.handle.0)) {
            *owner = shard;
        }
        self.place(cx, key, shard, meta, link, now);
    }

    /// On shard 0: lets the endpoint know what a connection says.
    pub(super) fn for_endpoint(&mut self, cx: &Context, key: Key, event: EndpointEvent) {
        let Some(listener) = self.listeners.get_mut(key.listener) else {
            return;
        };
        let Some(answer) = listener.handle_event(key.handle, event) else {
            return;
        };
        let owner = listener.owners.get(key.handle.0).copied().unwrap_or(0);
        if owner == cx.index {
            self.event(cx, key, answer);
        } else {
            cx.post(owner, QuicMail::Events([(key, answer)].into()));
        }
    }

    /// Tells the endpoint what a connection has for it; true if the connection is gone. One that the
    /// broker knows stays until it has closed it: before, its number must not be given to another one.
    pub(super) fn settle(&mut self, cx: &Context, key: Key) -> bool {
        while let Some(link) = self.links.get_mut(&key)
            && let Some(event) = link.connection.poll_endpoint_events()
        {
            if event.is_drained() {
                link.drained = true;
            } else {
                self.send_to_endpoint(cx, key, event);
            }
        }
        let link = self.links.get(&key);
        let is_over = link.is_none_or(|link| link.drained && link.conn.is_none());
        if is_over && self.links.remove(&key).is_some() {
            self.send_to_endpoint(cx, key, EndpointEvent::drained());
        }
        is_over
    }

    pub(super) fn send_to_endpoint(&mut self, cx: &Context, key: Key, event: EndpointEvent) {
        if cx.index == 0 {
            self.for_endpoint(cx, key, event);
        } else {
            cx.post(0, QuicMail::Endpoint(key, event));
        }
    }
}
