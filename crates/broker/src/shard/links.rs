//! Sessions of neighbour brokers, as the federation directs them.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use punctual_codec::packet::RetainHandling;
use punctual_codec::{
    Connect, Packet, Properties, PropertyBuf, PropertyId, PropertySet, Publish, QoS, RawPublish,
    ReasonCode, SubscribeOptions, Version,
};

use super::{Fail, Shard};
use crate::federation::{LINK_PREFIX, LINK_TOPIC, LinkNews, MessageName, NAME_KEY, Relay};
use crate::hub::{ConnId, ConnMeta, Hub};
use crate::index::Subscriber;
use crate::route::{Matched, Target};
use crate::session::Delivery;
use crate::{Nanos, Permissions};

/// What a neighbour accepts, as its CONNACK says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinkLimits {
    /// Messages in flight.
    pub receive_maximum: u16,
    /// Bytes of a packet.
    pub max_packet: u32,
    /// Topic aliases.
    pub topic_aliases: u16,
}

/// What a PUBLISH from a neighbour is.
pub(super) enum Incoming<'a> {
    /// A message for the federation.
    Told(&'a [u8]),
    /// A message with a name, which is not among its properties any more.
    Named(MessageName),
}

/// Takes the name out of a PUBLISH from a neighbour.
pub(super) fn incoming<'a>(raw: &mut RawPublish<'a>) -> Result<Incoming<'a>, Fail> {
    if raw.topic.starts_with(LINK_TOPIC) {
        return Ok(Incoming::Told(raw.payload));
    }
    let nameless = || {
        Fail::new(
            ReasonCode::ProtocolError,
            "message of a neighbour without name",
        )
    };
    let last = raw.properties.iter().last().ok_or_else(nameless)?;
    if last.id != PropertyId::UserProperty {
        return Err(nameless());
    }
    let (key, value) = last.pair();
    let name = MessageName::parse(value).filter(|_| key == NAME_KEY);
    let bytes = raw.properties.as_bytes();
    let rest = &bytes[..bytes.len() - last.bytes.len()];
    raw.properties = Properties::check(rest, PropertySet::PUBLISH)?;
    name.map(Incoming::Named).ok_or_else(nameless)
}

/// Who gets a message that goes by the root.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Reach {
    parent: Option<Arc<str>>,
    /// Whether clients do.
    pub(super) clients: bool,
    up: bool,
    down: bool,
}

impl Reach {
    /// From a client, or from the neighbour `peer`; `own` if it was taken in here.
    pub(super) fn new(relay: Relay, peer: Option<&str>, own: bool) -> Self {
        let (clients, up, down) = match (peer, relay.parent.as_deref()) {
            (None, parent) => (true, parent.is_some(), parent.is_none()),
            (Some(_), None) => (!own, false, true),
            (Some(peer), Some(parent)) if peer == parent => (!own, false, true),
            (Some(_), Some(_)) => (false, true, false),
        };
        Self {
            parent: relay.parent,
            clients,
            up,
            down,
        }
    }

    /// Whether the message only passes here on its way to the root.
    pub(super) fn is_upwards(&self) -> bool {
        !self.clients && self.up
    }

    /// Those of the receivers who get it.
    pub(super) fn of(&self, matched: &Matched) -> Matched {
        let gets = |target: &&Target| match peer_of(&target.session.client_id) {
            None => self.clients,
            Some(peer) if Some(peer) == self.parent.as_deref() => self.up,
            Some(_) => self.down,
        };
        let all = matched
            .shards
            .iter()
            .flat_map(|(_, targets)| targets.iter());
        let groups = match self.clients {
            true => matched.groups.to_vec(),
            false => Vec::new(),
        };
        Matched::new(all.filter(gets).cloned().collect(), groups)
    }
}

/// Whether a client may be a neighbour.
pub(super) fn may_be_link(hub: &Hub, permissions: Option<&dyn Permissions>) -> bool {
    hub.directory.federation().is_some() && permissions.is_none_or(Permissions::is_broker)
}

impl Shard {
    /// A connection that this broker has opened to another one, after CONNACK: the
    /// neighbour `peer` is treated from now on as if it had connected here, and both
    /// ends speak as servers do.
    pub fn open_link(
        &mut self,
        meta: ConnMeta,
        peer: &str,
        limits: LinkLimits,
        now: Nanos,
    ) -> ConnId {
        let id = self.open(meta, now);
        if let Some(conn) = self.hub.conn(id) {
            conn.version = Version::V5;
            conn.link = true;
        }
        let client_id = format!("{LINK_PREFIX}{peer}");
        let mut properties = PropertyBuf::new();
        for (property, value) in [
            (
                PropertyId::ReceiveMaximum,
                u32::from(limits.receive_maximum),
            ),
            (PropertyId::MaximumPacketSize, limits.max_packet),
            (
                PropertyId::TopicAliasMaximum,
                u32::from(limits.topic_aliases),
            ),
        ] {
            properties.push_number(property, value);
        }
        let connect = Connect {
            version: Version::V5,
            clean_start: false,
            keep_alive: 0,
            properties: properties.as_properties(),
            client_id: &client_id,
            will: None,
            username: None,
            password: None,
        };
        self.accept_link(id, &connect, now);
        id
    }

    /// Lets messages go to a neighbour, or keeps them for it.
    pub fn link_carry(&mut self, peer: &str, carries: bool, now: Nanos) {
        let Some(slot) = self.link_session(peer) else {
            return;
        };
        let hub = &mut self.hub;
        let Some(session) = hub.sessions.get_mut(slot) else {
            return;
        };
        let (Some(link), Some(conn)) = (&mut session.link, session.conn) else {
            return;
        };
        let Some(conn) = hub.conns.get_mut(conn) else {
            return;
        };
        match (carries, link.held) {
            (true, Some(max)) => {
                (conn.receive_max, link.held) = (max, None);
                hub.pump(slot, now);
            }
            (false, None) => (conn.receive_max, link.held) = (0, Some(conn.receive_max)),
            _ => {}
        }
    }

    /// Changes which messages go to a neighbour; additions first.
    pub fn link_interest(&mut self, peer: &str, add: &[Box<str>], remove: &[Box<str>]) {
        let Some(slot) = self.link_session(peer) else {
            return;
        };
        let hub = &mut self.hub;
        let federation = hub.directory.federation();
        let by_root = federation.is_some_and(|federation| federation.relay().is_some());
        let Some(session) = hub.sessions.get_mut(slot) else {
            return;
        };
        let Some(link) = &mut session.link else {
            return;
        };
        let options = SubscribeOptions {
            qos: QoS::ExactlyOnce,
            // What goes by the root comes back from there.
            no_local: !by_root,
            retain_as_published: true,
            retain_handling: RetainHandling::DoNotSend,
        };
        let mut index = hub.directory.index_mut();
        for filter in add {
            if link.filters.insert(filter.clone()) {
                let subscriber = Subscriber {
                    session: session.handle.clone(),
                    options,
                    id: 0,
                    demoted: false,
                    numbered: true,
                };
                index.subscribe(filter, subscriber, &hub.directory.generations);
            }
        }
        for filter in remove {
            if link.filters.remove(filter) {
                index.unsubscribe(filter, &session.handle, &hub.directory.generations);
            }
        }
    }

    /// Puts a copy of what waits for one neighbour, or is in flight to it, into the
    /// queue of another. What has no room there is counted as dropped.
    pub fn link_copy(&mut self, from: &str, to: &str, now: Nanos) {
        let (Some(from), Some(to)) = (self.link_session(from), self.link_session(to)) else {
            return;
        };
        let hub = &mut self.hub;
        let Some(session) = hub.sessions.get(from) else {
            return;
        };
        let kept: Vec<Delivery> = session
            .window
            .unacknowledged()
            .chain(session.queue.iter())
            .map(|delivery| Delivery {
                number: delivery.number.map(crate::sequence::Number::again),
                ..delivery.clone()
            })
            .collect();
        let limits = &hub.config.limits;
        let Some(session) = hub.sessions.get_mut(to) else {
            return;
        };
        for delivery in kept {
            let size = delivery.message.size();
            if session.queue.len() >= limits.max_queued_messages
                || session.queue.bytes() + size > limits.max_queued_bytes
            {
                hub.stats.dropped_queue_full += 1;
                continue;
            }
            session.queue.push(delivery);
            hub.stats.queued_messages += 1;
            hub.stats.queued_bytes += size as u64;
            hub.directory
                .queued_bytes
                .fetch_add(size, Ordering::Relaxed);
        }
        session.share_queue_len();
        hub.pump(to, now);
    }

    /// Nothing is kept for a neighbour any more, and nothing goes to it until it
    /// wants something again.
    pub fn link_forget(&mut self, peer: &str, now: Nanos) {
        let Some(slot) = self.link_session(peer) else {
            return;
        };
        let hub = &mut self.hub;
        let Some(session) = hub.sessions.get_mut(slot) else {
            return;
        };
        if session.conn.is_none() {
            self.end_session(slot, now);
            return;
        }
        if let Some(link) = &mut session.link {
            let mut index = hub.directory.index_mut();
            for filter in link.filters.drain() {
                index.unsubscribe(&filter, &session.handle, &hub.directory.generations);
            }
        }
        let (messages, bytes) = (session.queue.len(), session.queue.bytes());
        session.queue = Default::default();
        session.share_queue_len();
        hub.stats.dropped_session_ended += messages as u64;
        hub.forget_queued(messages, bytes);
    }

    /// Sends a message of the federation to a neighbour, before all that waits.
    pub fn link_send(&mut self, conn: ConnId, topic: &str, payload: &[u8]) {
        if self.hub.conn(conn).is_none_or(|conn| !conn.link) {
            return;
        }
        let publish = Publish {
            dup: false,
            qos: QoS::AtMostOnce,
            retain: false,
            topic,
            packet_id: 0,
            properties: Properties::default(),
            payload,
        };
        self.hub.send(conn.slot, &Packet::Publish(publish));
    }

    /// Ends a connection to a neighbour; what is kept for it stays.
    pub fn link_close(&mut self, conn: ConnId, why: &str, now: Nanos) {
        if self.hub.conn(conn).is_some_and(|conn| conn.link) {
            let fail = Fail::new(ReasonCode::AdministrativeAction, why.to_owned());
            self.fail(conn, &fail, now);
        }
    }

    /// Tells the federation, and prepares the session.
    pub(super) fn link_is_up(&mut self, id: ConnId, slot: u32, dialled: bool) {
        let hub = &mut self.hub;
        let (Some(conn), Some(session)) = (hub.conns.get_mut(id.slot), hub.sessions.get_mut(slot))
        else {
            return;
        };
        conn.link = true;
        session.expiry = u32::MAX;
        let link = session.link.get_or_insert_default();
        link.held = Some(std::mem::take(&mut conn.receive_max));
        if let (Some(federation), Some(peer)) = (
            hub.directory.federation(),
            peer_of(&session.handle.client_id),
        ) {
            federation.link(id, peer, LinkNews::Up { dialled });
        }
    }

    fn link_session(&self, peer: &str) -> Option<u32> {
        self.hub.session_named(&format!("{LINK_PREFIX}{peer}"))
    }

    /// Forgets what a session's neighbour wanted.
    pub(super) fn end_link(&mut self, slot: u32) {
        let hub = &mut self.hub;
        let Some(session) = hub.sessions.get_mut(slot) else {
            return;
        };
        if let Some(link) = session.link.take() {
            let mut index = hub.directory.index_mut();
            for filter in &link.filters {
                index.unsubscribe(filter, &session.handle, &hub.directory.generations);
            }
        }
    }
}

/// The neighbour's name in a client identifier.
pub(super) fn peer_of(client_id: &str) -> Option<&str> {
    client_id.strip_prefix(LINK_PREFIX)
}
