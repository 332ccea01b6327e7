//! Publication: the path of a PUBLISH, a will or a `$SYS` message from its topic to its receivers.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use punctual_codec::{
    DecodeError, Frame, PacketType, PropertyId, QoS, RawPublish, ReasonCode, Version, topic,
};
use punctual_model::Answer;
use smallvec::SmallVec;

use super::run::not_a_run;
use super::shares::Sharing;
use super::stated::asked;
use super::{Fail, Next, Shard, admission, common, redistribution};
use crate::base::author::Author;
use crate::base::connection::ConnId;
use crate::base::durability::Durability;
use crate::base::name::{MessageName, peer_of};
use crate::base::notes::{Duty, Notes, UrgencyTrust};
use crate::config::Limits;
use crate::directory::Directory;
use crate::egress::{Class, Stamp};
use crate::fanouts::Receipt;
use crate::hub::conn::Conn;
use crate::hub::{Alias, Hub};
use crate::index::matched::{Matched, TargetList};
use crate::index::target::Target;
use crate::journal::After;
use crate::journal::keeping::Nature;
use crate::mesh::custody::FORWARD;
use crate::mesh::federation::{LinkNews, Service};
use crate::mesh::shard::links::{self, Incoming, PublicationBatch, Reach, Wait};
use crate::message::{Parts, expiry, put_forwarded};
use crate::publication::Publication;
use crate::retained::Entry;
use crate::route::{Route, RouteCache};
use crate::sequence::Number;
use crate::session::gist;
use crate::shard::acknowledge::{
    acknowledge, acknowledge_with, note_reception, pause_or_go_on, refuse, refuse_unstored,
};
use crate::shard::capacity::is_neighbour;
use crate::shard::deliver::{DependentSender, deliver_all};
use crate::shard::retain::{has_retained_room, retain};
use crate::shard::stated::{Sizes, StatedRequirements, UrgencyDecision, is_urgent, report_urgency};
use crate::watch::Watch;
use crate::{Message, Nanos, answers, order, urgency};

/// The reason for refusing messages with QoS 1 and 2 while the broker has not joined the mesh.
const NOT_JOINED: &str = "this broker has reached none of its neighbours and knows nothing of them";

/// Buffers that are reused for each PUBLISH.
#[derive(Debug, Default)]
pub(super) struct PublishBuffers {
    /// The topic for which a topic alias stands.
    alias_topic: Vec<u8>,
    /// Properties that must be rewritten before they are forwarded.
    properties: Vec<u8>,
}

/// A PUBLISH that passes through the steps of [`Shard::publish_packet`].
struct Arrival<'a> {
    id: ConnId,
    frame: Frame<'a>,
    /// The decoded packet; a topic alias has been replaced by its topic.
    raw: RawPublish<'a>,
    /// The name of the message in the mesh, and the notes of the neighbour that sent it.
    name: Option<MessageName>,
    notes: Notes,
    /// Whether the packet is of MQTT 5.
    v5: bool,
    /// Whether the properties may be forwarded unchanged.
    forwardable: bool,
    now: Nanos,
}

/// The publisher of a message, as known once the topic is resolved.
#[derive(Clone, Copy)]
struct Publisher {
    /// Number of the publisher's session, and the slot of that session.
    number: u64,
    session: u32,
    is_link: bool,
    /// Whether the publisher may publish to the topic.
    allowed: bool,
    /// Whether messages of the publisher may state requirements.
    states: bool,
    /// The durability that is guaranteed for messages from the publisher's listener.
    durability: Durability,
    /// Messages with QoS 2 that the publisher has not released.
    unreleased: u16,
}

/// The reason why a PUBLISH goes through no further step.
enum Exit {
    /// The packet has been handled completely.
    Done(Next),
    /// The connection must be closed.
    Fail(Fail),
}

impl<T: Into<Fail>> From<T> for Exit {
    fn from(fail: T) -> Self {
        Self::Fail(fail.into())
    }
}

impl Shard {
    /// Handles a PUBLISH from a connected client or neighbour. The packet is decoded, its topic is
    /// resolved to a route, the message is admitted, and the message is delivered; each step may be
    /// the last.
    #[inline(never)]
    pub(crate) fn publish_packet(
        &mut self,
        id: ConnId,
        frame: Frame<'_>,
        now: Nanos,
    ) -> Result<Next, Fail> {
        let mut buffers = std::mem::take(&mut self.buffers);
        let next = self.publish_in_steps(id, frame, &mut buffers, now);
        self.buffers = buffers;
        match next {
            Ok(next) | Err(Exit::Done(next)) => Ok(next),
            Err(Exit::Fail(fail)) => Err(fail),
        }
    }

    fn publish_in_steps(
        &mut self,
        id: ConnId,
        frame: Frame<'_>,
        buffers: &mut PublishBuffers,
        now: Nanos,
    ) -> Result<Next, Exit> {
        let mut arrival = self.decode(id, frame, &mut buffers.alias_topic, now)?;
        let (route, publisher) = self.resolve(&arrival)?;
        self.admit(&mut arrival, publisher, route)?;
        self.deliver(arrival, publisher, route, &mut buffers.properties)
    }

    /// The first step: decodes the packet to a message. Messages of a neighbour about the link
    /// itself, or for a forwarded session, are handled here and go no further.
    fn decode<'a>(
        &mut self,
        id: ConnId,
        frame: Frame<'a>,
        alias_topic: &'a mut Vec<u8>,
        now: Nanos,
    ) -> Result<Arrival<'a>, Exit> {
        let hub = &mut self.hub;
        let Some(conn) = hub.outlets.conns.get_mut(id.slot) else {
            return Err(Exit::Done(Next::Closed));
        };
        let (is_link, publisher) = (conn.link, conn.number);
        let in_turn = hub.links.unpacking.is_none() && !hub.links.unparking;
        if in_turn && hub.work.fanouts.are_under_way(publisher) {
            // An earlier connection of the client has sent messages whose fan-out has not ended.
            hub.wait_for_fan_out(publisher, id);
            return Err(Exit::Done(Next::Hold));
        }
        let version = match hub.links.unpacking {
            None => conn.version,
            Some(packing) if packing.v5 => Version::V5,
            Some(_) => Version::V311,
        };
        let v5 = version.is_v5();
        let mut raw = RawPublish::decode(frame.first, frame.body, version)?;
        if v5 && !frame.is_minimal() {
            return Err(DecodeError::Malformed("remaining length").into());
        }
        if raw.qos as u8 > hub.config.maximum_qos {
            return Err(Fail::new(ReasonCode::QosNotSupported, "QoS not supported").into());
        }
        if raw.retain && !hub.config.retain_available {
            let why = "retain not supported";
            return Err(Fail::new(ReasonCode::RetainNotSupported, why).into());
        }
        let (mut name, mut notes) = (None, Notes::default());
        if is_link && hub.links.unpacking.is_none() {
            (name, notes) = self.hear_neighbour(id, &mut raw, now)?;
        }
        let hub = &mut self.hub;
        let limits = &hub.config.limits;
        let mut forwardable = true;
        if !raw.properties.is_empty() {
            check_properties(&raw, limits)?;
            forwardable = !raw.properties.contains(PropertyId::TopicAlias)
                && !raw.properties.contains(PropertyId::MessageExpiryInterval);
            if let Some(alias) = raw.properties.number(PropertyId::TopicAlias)
                && let Some(conn) = hub.outlets.conns.get_mut(id.slot)
            {
                raw.topic = resolve_alias(conn, limits, &raw, (alias, name), alias_topic)?;
            }
        }
        if is_link && raw.topic.starts_with(FORWARD.as_bytes()) && hub.links.unpacking.is_none() {
            let (packet_id, payload) = (raw.packet_id, raw.payload);
            if raw.qos != QoS::AtLeastOnce || !self.forwarded_packet(id, packet_id, payload) {
                return Err(DecodeError::Malformed("message for a session").into());
            }
            return Err(Exit::Done(Next::Packet));
        }
        Ok(Arrival {
            id,
            frame,
            raw,
            name,
            notes,
            v5,
            forwardable,
            now,
        })
    }

    /// Interprets the PUBLISH of a neighbour: either a message with its name and notes on it, or
    /// information about the link, flow control or retained messages, which is handled here and
    /// goes no further.
    fn hear_neighbour(
        &mut self,
        id: ConnId,
        raw: &mut RawPublish<'_>,
        now: Nanos,
    ) -> Result<(Option<MessageName>, Notes), Exit> {
        let hub = &mut self.hub;
        let Some(conn) = hub.outlets.conns.get_mut(id.slot) else {
            return Err(Exit::Done(Next::Closed));
        };
        let session = conn.session;
        let told = match links::incoming(raw, conn.aliases_in())? {
            Incoming::Told(message) => message,
            Incoming::Retains(message) => {
                self.told_of_retained(session, message, now)?;
                return Err(Exit::Done(Next::Packet));
            }
            Incoming::Throttles(message) => {
                self.told_to_throttle(session, message, now)?;
                return Err(Exit::Done(Next::Packet));
            }
            Incoming::Named(name, mut notes) => {
                // The neighbour sends a retained message again, which is no longer urgent.
                if notes.missing {
                    notes.trust = UrgencyTrust::Nothing;
                }
                return Ok((Some(name), notes));
            }
        };
        if let Some(federation) = hub.directory.federation()
            && let Some(session) = hub.sessions.get(session)
            && let Some(peer) = peer_of(&session.handle.client_id)
        {
            federation.link(id, peer, LinkNews::Message(told));
            return Err(Exit::Done(Next::Packet));
        }
        Ok((None, Notes::default()))
    }

    /// The second step: resolves the topic to the route of its messages. A batch of messages from a
    /// neighbour is unpacked or passed on here.
    fn resolve(&mut self, arrival: &Arrival<'_>) -> Result<(u64, Publisher), Exit> {
        let Self { hub, routes, .. } = self;
        let Arrival { id, raw, .. } = arrival;
        let Some(conn) = hub.outlets.conns.get_mut(id.slot) else {
            return Err(Exit::Done(Next::Closed));
        };
        let route = match routes.find(raw.topic, conn.route, &hub.directory) {
            Some(route) => route,
            None => {
                let name = topic::validate_name(raw.topic)?;
                let limits = &hub.config.limits;
                if name.len() > limits.max_topic_length
                    || topic::levels(name) > limits.max_topic_levels
                {
                    let why = "topic exceeds limits.max_topic_length or limits.max_topic_levels";
                    return Err(Fail::new(ReasonCode::TopicNameInvalid, why).into());
                }
                routes.insert(name, &hub.directory)
            }
        };
        conn.set_route(route, routes.get(route).topic());
        let publisher = Publisher {
            number: conn.number,
            session: conn.session,
            is_link: conn.link,
            allowed: conn.route_allowed,
            states: conn.states || raw.properties.contains(PropertyId::UserProperty),
            durability: conn.durability,
            unreleased: conn.unreleased,
        };
        if let (Some(packing), Some(name)) = (arrival.notes.packing, arrival.name) {
            let packed = PublicationBatch {
                bytes: raw.payload,
                packing,
                name,
            };
            let mut properties = raw.properties.iter();
            let bare = properties.all(|property| property.id == PropertyId::TopicAlias);
            if !bare || raw.qos != QoS::AtMostOnce || raw.retain || !publisher.allowed {
                return Err(not_a_run().into());
            }
            let next = self.publish_packed(*id, route, packed, arrival.now)?;
            return Err(Exit::Done(next));
        }
        Ok((route, publisher))
    }

    /// The third step: checks that the message need not wait, that it is not a repetition, and that
    /// its publisher may publish it.
    fn admit(
        &mut self,
        arrival: &mut Arrival<'_>,
        publisher: Publisher,
        route: u64,
    ) -> Result<(), Exit> {
        let Self { hub, routes, .. } = self;
        let Arrival { id, now, .. } = *arrival;
        let qos = arrival.raw.qos;
        let stated = stated_of(routes, arrival, publisher, route);
        if let (Some(stated), true, Some(_)) = (&stated, publisher.allowed, hub.config.admission)
            && hub.links.unpacking.is_none()
            && admission::must_wait(hub, id, stated, qos, now)
        {
            return Err(Exit::Done(Next::Hold));
        }
        if publisher.is_link && qos != QoS::AtMostOnce {
            if let (Some(name), true) = (&mut arrival.name, hub.links.ripe) {
                // No later message shall wait for this one either.
                name.back = 0;
            }
            let urgent = stated.as_ref().is_some_and(|it| is_urgent(hub, id, it));
            if let Some(wait) =
                wait_of_neighbour(hub, arrival, publisher, routes.get(route), urgent)
            {
                let said = (arrival.name, &arrival.notes);
                let raw = &arrival.raw;
                return Err(Exit::Done(links::park(
                    hub, id, raw.topic, raw, said, wait, now,
                )?));
            }
        }
        hub.stats.publish_bytes_received += arrival.raw.payload.len() as u64;
        match qos {
            QoS::AtMostOnce => hub.stats.publishes_received_qos0 += 1,
            QoS::AtLeastOnce => hub.stats.publishes_received_qos1 += 1,
            QoS::ExactlyOnce => {
                recognise(hub, arrival, publisher)?;
                hub.stats.publishes_received_qos2 += 1;
            }
        }
        let raw = &arrival.raw;
        if !publisher.allowed {
            hub.stats.refused_not_authorized += 1;
            let reason = ReasonCode::NotAuthorized;
            let next = acknowledge(hub, id, raw, publisher.session, reason, None);
            return Err(Exit::Done(next));
        }
        if qos != QoS::AtMostOnce && !publisher.is_link && hub.service() != Service::Full {
            hub.stats.refused_not_joined += 1;
            let next = refuse(hub, id, raw, publisher.session, NOT_JOINED)?;
            return Err(Exit::Done(next));
        }
        Ok(())
    }

    /// The fourth step: delivers the message to its receivers and answers its publisher.
    fn deliver(
        &mut self,
        mut arrival: Arrival<'_>,
        publisher: Publisher,
        mut route: u64,
        properties: &mut Vec<u8>,
    ) -> Result<Next, Exit> {
        let Self { hub, routes, .. } = self;
        let Arrival { id, now, .. } = arrival;
        let reach = reach_of(hub, &arrival, publisher);
        let upwards = reach.as_ref().is_some_and(Reach::is_upwards);
        let relayed = is_relayed(hub, &arrival, publisher, reach.as_ref())?;
        let mut urgency = Urgency::PLAIN;
        if let Some(stated) = stated_of(routes, &arrival, publisher, route) {
            urgency = decide_urgency(hub, &mut arrival, publisher, &stated)?;
        }
        let Urgency {
            stamp,
            watch,
            answer,
        } = urgency;
        let raw = &arrival.raw;
        let name = arrival.name;
        let stream = match (name, hub.directory.federation()) {
            (None, Some(_)) => order::stream(raw.qos, stamp.class(), arrival.expiry().is_some()),
            _ => None,
        };
        let entry = routes.get(route);
        let parts = arrival.parts(properties);
        let mut publication = publication_of(hub, &arrival, publisher, entry, parts, stamp);
        publication.watch = watch;
        publication.relayed = relayed;
        publication.follows = stream.map_or(0, |it| entry.order(|order| order.last_given(it)));
        // The lock is held until the message is stored: a client that subscribes meanwhile on
        // another shard is either found as a receiver or finds the retained message.
        let retains = raw.retain && !relayed && reach.as_ref().is_none_or(|reach| reach.clients);
        let directory = retains.then(|| hub.directory.clone());
        let mut retained = directory.as_ref().map(|d| d.retained_mut());
        let mut kept = None;
        let name_of_topic = std::str::from_utf8(arrival.raw.topic).unwrap_or_default();
        let mut entry = retained.as_mut().map(|it| it.entry(name_of_topic));
        if let (Some(entry), Some(directory)) = (&mut entry, &directory) {
            kept = retained_version(
                hub,
                &mut arrival,
                publisher,
                entry,
                directory,
                &mut publication,
            )?;
            route = match routes.find(arrival.raw.topic, route, &hub.directory) {
                Some(route) => route,
                None => routes.insert(topic::validate_name(arrival.raw.topic)?, &hub.directory),
            };
        }
        let wanted = &routes.get(route).matched;
        let all = retains || upwards;
        let (narrowed, handed) = receivers(
            hub,
            &mut arrival,
            publisher,
            wanted,
            (reach, all),
            &publication,
        );
        let matched = narrowed.as_ref().unwrap_or(wanted);
        let raw = &arrival.raw;
        if let Some(trouble) = hub.trouble_for(matched, &publication) {
            return Ok(refuse_unstored(hub, id, raw, trouble)?);
        }
        if raw.payload.len() >= crate::egress::SHARE_FROM && !matched.is_empty() {
            publication.parts.shared = Some(share(hub.packet.as_ref(), publication.parts.payload));
        }
        // A neighbour is not paused: its acknowledgement is delayed, see `links::cause_to_wait`.
        let patient = publisher.is_link && raw.qos != QoS::AtMostOnce;
        let waiting = (!patient).then_some(id);
        let whom = match publisher.is_link {
            true => DependentSender::Neighbour,
            false => DependentSender::Publisher,
        };
        if deliver_all(hub, matched, &mut publication, waiting, now, whom).is_err() {
            hub.stats.refused_queue_full += 1;
            let why = "a receiver's queue is full";
            return Ok(refuse(hub, id, raw, publisher.session, why)?);
        }
        if !handed.is_empty() && !relayed {
            let handed = (handed, arrival.notes.trust);
            redistribution::hand_on(hub, wanted, &mut publication, handed, now);
        }
        if let (Some(entry), Some(version)) = (entry, kept) {
            retain(hub, entry, &mut publication, version);
        }
        drop(retained);
        note_order(routes.get(route), &arrival, (stream, relayed), &publication);
        let delivered = Delivered {
            relayed,
            crowd: matched.crowd && !relayed,
            nobody: matched.is_empty(),
            upwards,
            patient,
            answer,
        };
        Ok(conclude(
            hub,
            &arrival,
            publisher,
            &mut publication,
            delivered,
        ))
    }

    /// Publishes a message for which no publisher expects an acknowledgement.
    pub(super) fn publish_message(
        &mut self,
        message: &Arc<Message>,
        durability: Durability,
        now: Nanos,
    ) {
        self.publish_named(message, durability, Source::default(), Audience::All, now);
    }

    /// As [`Self::publish_message`], with the given source, for the given audience.
    pub(super) fn publish_named(
        &mut self,
        message: &Arc<Message>,
        durability: Durability,
        source: Source,
        audience: Audience,
        now: Nanos,
    ) {
        let Self { hub, routes, .. } = self;
        let Source {
            name,
            trust,
            author,
        } = source;
        let mut publication = Publication::from_message(message, now);
        publication.author = author;
        publication.name = name.map(Number::from);
        publication.relayed = audience == Audience::Neighbours;
        publication.keeping = hub.keeping(durability, true);
        publication.keeping.insists = true;
        if publication.keeping.message != 0 {
            // The message is created again, with its number in the store.
            publication.message = None;
        }
        let mut notes = Notes {
            trust,
            ..Notes::default()
        };
        if message.retain && !publication.relayed {
            let directory = hub.directory.clone();
            let mut retained = directory.retained_mut();
            let mut entry = retained.entry(message.topic());
            if has_retained_room(hub, &entry, &publication) {
                notes.version = entry.next_version(directory.version_clock());
                retain(hub, entry, &mut publication, notes.version);
            } else {
                hub.stats.refused_retained_full += 1;
            }
        }
        let route = match routes.find(message.topic_bytes(), 0, &hub.directory) {
            Some(route) => route,
            None => routes.insert(message.topic(), &hub.directory),
        };
        publication.queue_full = routes.get(route).queue_full;
        let matched = &routes.get(route).matched;
        let common = common::is_common(hub, message.topic_bytes())
            && (!notes.is_empty() || !matched.groups.is_empty());
        let common = common.then(|| {
            let all = notes.version > 0;
            let sharing = Sharing::decide(hub, matched, &publication);
            sharing.reach(hub, matched, &mut notes, all).0
        });
        let matched = common.as_ref().unwrap_or(matched);
        let federation = hub.directory.federation();
        let relay = federation.and_then(|federation| federation.relay());
        let reached = relay.map(|relay| Reach::new(relay, None, false).of(matched));
        let matched = reached.as_ref().unwrap_or(matched);
        let carries = |target: &&Target| target.session.carries.load(Ordering::Acquire);
        let waits = matched.targets().any(|it| it.session.link && !carries(&it));
        if let (Some(name), true) = (name, waits || publication.relayed) {
            // A neighbour that is reached later may have the message from elsewhere, and the
            // brokers behind that neighbour may not.
            publication.name = Some(Number::from(MessageName {
                again: true,
                ..name
            }));
        }
        let near = (audience != Audience::All).then(|| {
            let near = matched
                .targets()
                .filter(|it| !it.session.link || carries(it));
            Matched::new(
                near.cloned().collect::<TargetList>(),
                matched.groups.clone(),
            )
            .with_crowd(matched.crowd)
        });
        let matched = near.as_ref().unwrap_or(matched);
        // No publisher can be refused, so a full queue causes a counted drop.
        let _ = deliver_all(
            hub,
            matched,
            &mut publication,
            None,
            now,
            DependentSender::Nobody,
        );
        if matched.crowd && !publication.relayed {
            hub.fan_out(&mut publication, (None, false), None);
        }
    }
}

/// Checks that a publisher may send these properties.
fn check_properties(raw: &RawPublish<'_>, limits: &Limits) -> Result<(), Fail> {
    if raw.properties.contains(PropertyId::SubscriptionIdentifier) {
        return Err(Fail::new(
            ReasonCode::ProtocolError,
            "Subscription Identifier in a PUBLISH from a client",
        ));
    }
    if raw.properties.contains(PropertyId::UserProperty)
        && raw.properties.user_count() > limits.max_user_properties
    {
        return Err(Fail::new(
            ReasonCode::QuotaExceeded,
            "more user properties than limits.max_user_properties",
        ));
    }
    if let Some(response) = raw.properties.data(PropertyId::ResponseTopic) {
        topic::validate_name(response)?;
    }
    Ok(())
}

/// The topic of a PUBLISH with a topic alias: the packet either defines the alias or uses it. The
/// origin in a neighbour's message name is noted with the alias, so that the next name can be
/// short.
fn resolve_alias<'a>(
    conn: &mut Conn,
    limits: &Limits,
    raw: &RawPublish<'a>,
    (alias, name): (u32, Option<MessageName>),
    alias_topic: &'a mut Vec<u8>,
) -> Result<&'a [u8], Fail> {
    if alias > u32::from(limits.topic_alias_maximum) {
        return Err(Fail::new(
            ReasonCode::TopicAliasInvalid,
            "topic alias above Topic Alias Maximum",
        ));
    }
    let at = alias as usize - 1;
    let mut topic = raw.topic;
    if topic.is_empty() {
        let aliases = &conn.extra.get_or_insert_default().aliases_in;
        let known = aliases.get(at).map(|alias| &alias.topic);
        let Some(known) = known.filter(|topic| !topic.is_empty()) else {
            return Err(Fail::new(
                ReasonCode::ProtocolError,
                "topic alias was never defined",
            ));
        };
        alias_topic.clear();
        alias_topic.extend_from_slice(known);
        topic = alias_topic;
    } else {
        topic::validate_name(topic)?;
        let aliases = &mut conn.extra().aliases_in;
        if aliases.len() <= at {
            aliases.resize_with(at + 1, Alias::default);
        }
        aliases[at].topic = topic.into();
    }
    if let (Some(name), Some(extra)) = (name, &mut conn.extra) {
        extra.aliases_in[at].origin = Some(name.origin);
    }
    Ok(topic)
}

/// The reason why a publication of a neighbour must wait, if there is one: for queue capacity, or,
/// as an earlier message on its topic may wait for capacity, for that message.
fn wait_of_neighbour(
    hub: &Hub,
    arrival: &Arrival<'_>,
    publisher: Publisher,
    route: &Route,
    urgent: bool,
) -> Option<Wait> {
    let raw = &arrival.raw;
    let nature = Nature {
        qos: raw.qos,
        retain: raw.retain,
        publisher: publisher.number,
        relayed: false,
    };
    let size = raw.topic.len() + raw.properties.as_bytes().len() + raw.payload.len();
    let promise = (route.durability.unwrap_or(publisher.durability), urgent);
    let session = publisher.session;
    let cause = |matched: &Matched| {
        links::cause_to_wait(hub, session, raw.topic, matched, nature, size, promise)
    };
    let cause = match cause(&route.matched) {
        None if raw.retain => cause(&common::keepers(hub)),
        cause => cause,
    };
    cause.map(Wait::Room).or_else(|| {
        let previous = links::missing(hub, route, arrival.name?, raw.qos)?;
        Some(Wait::Previous(previous))
    })
}

/// A repetition of a message with QoS 2 is acknowledged again and not delivered again
/// [MQTT-4.3.3-10].
fn recognise(hub: &mut Hub, arrival: &Arrival<'_>, publisher: Publisher) -> Result<(), Exit> {
    let raw = &arrival.raw;
    let Some(session) = hub.sessions.get_mut(publisher.session) else {
        return Ok(());
    };
    let incoming = session.incoming.as_mut();
    // A neighbour may have started again and reused packet identifiers: there the message name
    // decides.
    let incoming = incoming.filter(|_| arrival.name.is_none());
    let known = incoming.and_then(|it| it.get_mut(&raw.packet_id));
    let is_void = known
        .as_ref()
        .is_some_and(|known| known.is_other(raw.dup, || gist(raw.topic, raw.payload)));
    if let (Some(known), false) = (known, is_void) {
        known.earlier = false;
        let (kind, after) = (PacketType::PubRec, After::ticket(known.ticket));
        let (slot, reason) = (arrival.id.slot, ReasonCode::Success);
        hub.answer(slot, kind, raw.packet_id, reason, Some(after));
        return Err(Exit::Done(Next::Packet));
    }
    // A neighbour that was asked to slow down may send as many messages once more.
    let most = hub.config.limits.receive_maximum;
    let most = most.saturating_mul(1 + u16::from(publisher.is_link));
    if arrival.v5 && publisher.unreleased >= most {
        let why = "more unreleased QoS 2 messages than Receive Maximum";
        return Err(Fail::new(ReasonCode::ReceiveMaximumExceeded, why).into());
    }
    if is_void {
        hub.forget_received(publisher.session, raw.packet_id);
    }
    Ok(())
}

/// The urgency of a publication.
struct Urgency {
    stamp: Stamp,
    /// The admitted flow to which the publication belongs.
    watch: Option<Arc<Watch>>,
    /// The answer to the publisher about the requirements that the publication states.
    answer: Option<Answer>,
}

impl Urgency {
    const PLAIN: Self = Self {
        stamp: Stamp::PLAIN,
        watch: None,
        answer: None,
    };
}

/// The outcome of a publication that was delivered to its receivers.
struct Delivered {
    /// The broker had the publication before and sent it to neighbours only.
    relayed: bool,
    /// A crowd of clients has still to receive the publication.
    crowd: bool,
    /// No subscription matches the publication.
    nobody: bool,
    /// The publication goes to the root of the mesh, which sends it back.
    upwards: bool,
    /// The publisher is a neighbour, whose acknowledgement is delayed instead of its connection
    /// paused.
    patient: bool,
    answer: Option<Answer>,
}

impl<'a> Arrival<'a> {
    /// The message expiry interval in seconds, if the properties are not forwarded unchanged.
    fn expiry(&self) -> Option<u32> {
        match self.forwardable {
            true => None,
            false => self
                .raw
                .properties
                .number(PropertyId::MessageExpiryInterval),
        }
    }

    /// The parts of the message that receivers get; rewritten properties are put into the buffer.
    fn parts(&self, properties: &'a mut Vec<u8>) -> Parts<'a> {
        properties.clear();
        let forwarded = match self.forwardable {
            true => self.raw.properties.as_bytes(),
            false => {
                put_forwarded(self.raw.properties, properties);
                properties
            }
        };
        Parts {
            topic: self.raw.topic,
            properties: forwarded,
            expiry: self.expiry(),
            payload: self.raw.payload,
            shared: None,
        }
    }

    /// The packet, if receivers with QoS 0 and the same protocol version may get it unchanged. A
    /// packet of a neighbour contains the name of the message, and is never sent unchanged.
    fn frame_as_it_is(&self) -> Option<(&'a [u8], bool)> {
        let raw = &self.raw;
        let plain = raw.qos == QoS::AtMostOnce
            && !raw.retain
            && self.forwardable
            && self.name.is_none()
            && raw.payload.len() < crate::egress::SHARE_FROM
            && self.frame.is_minimal();
        plain.then_some((self.frame.bytes, self.v5))
    }
}

/// Builds the publication of a PUBLISH.
fn publication_of<'a>(
    hub: &mut Hub,
    arrival: &Arrival<'a>,
    publisher: Publisher,
    route: &Route,
    parts: Parts<'a>,
    stamp: Stamp,
) -> Publication<'a> {
    let raw = &arrival.raw;
    let durability = route.durability.unwrap_or(publisher.durability);
    Publication {
        qos: raw.qos,
        retain: raw.retain,
        frame: arrival.frame_as_it_is(),
        expires: expiry(arrival.expiry(), arrival.now),
        stamp,
        keeping: hub.keeping(durability, raw.retain || raw.qos != QoS::AtMostOnce),
        name: arrival.name.map(Number::from),
        queue_full: route.queue_full,
        author: match raw.retain && !publisher.is_link {
            true => hub.author_of(arrival.id),
            false => None,
        },
        ..Publication::plain(parts, publisher.number)
    }
}

/// The requirements that a publication states, if it may state any.
fn stated_of<'s>(
    routes: &'s RouteCache,
    arrival: &Arrival<'s>,
    publisher: Publisher,
    route: u64,
) -> Option<StatedRequirements<'s>> {
    let entry = routes.get(route);
    let rule = entry.rule.as_deref();
    (publisher.states || rule.is_some()).then(|| StatedRequirements {
        route,
        topic: arrival.raw.topic,
        properties: arrival.raw.properties,
        rule,
        trust: arrival.notes.trust,
        sizes: Sizes::of(&arrival.raw, arrival.frame.bytes.len()),
        matched: &entry.matched,
    })
}

/// The direction of a publication in the mesh; `None` if it goes to all interested receivers.
fn reach_of(hub: &Hub, arrival: &Arrival<'_>, publisher: Publisher) -> Option<Reach> {
    let federation = hub.directory.federation()?;
    let relay = federation.relay()?;
    let session = hub.sessions.get(publisher.session);
    let peer = session.and_then(|session| peer_of(&session.handle.client_id));
    let own = arrival
        .name
        .is_some_and(|name| name.origin == federation.origin());
    Some(Reach::new(relay, peer, own))
}

/// Whether a publication that this broker had before is sent on to neighbours: clients that have
/// since connected to a neighbour may lack it. If not, the publication is acknowledged, and nothing
/// else is done.
fn is_relayed(
    hub: &mut Hub,
    arrival: &Arrival<'_>,
    publisher: Publisher,
    reach: Option<&Reach>,
) -> Result<bool, Exit> {
    let (Some(name), Some(federation)) = (arrival.name, hub.directory.federation()) else {
        return Ok(false);
    };
    let raw = &arrival.raw;
    let is_new = match reach {
        Some(reach) if reach.is_upwards() => federation.is_new_upwards(name),
        _ => {
            federation.is_new(name, raw.qos != QoS::AtLeastOnce) && !hub.directory.is_own_will(name)
        }
    };
    if is_new {
        return Ok(false);
    }
    hub.stats.publishes_recognised += 1;
    let relayed = name.again
        && raw.qos != QoS::AtMostOnce
        && reach.is_none()
        && hub.links.passed_on.is_due(name, publisher.number);
    if !relayed {
        // Earlier entries may not be committed yet.
        let (reason, after) = (ReasonCode::Success, hub.after_all());
        let next = acknowledge(hub, arrival.id, raw, publisher.session, reason, after);
        return Err(Exit::Done(next));
    }
    Ok(true)
}

/// Decides the urgency of a publication that states requirements, or refuses the publication.
fn decide_urgency(
    hub: &mut Hub,
    arrival: &mut Arrival<'_>,
    publisher: Publisher,
    stated: &StatedRequirements<'_>,
) -> Result<Urgency, Exit> {
    let id = arrival.id;
    let (course, trust) = decide_stamp(hub, id, stated, arrival.now);
    if hub.directory.federation().is_some() {
        arrival.notes.trust = trust;
    }
    match course {
        UrgencyDecision::Go(stamp, watch, answer) => Ok(Urgency {
            stamp,
            watch,
            answer,
        }),
        UrgencyDecision::Refuse(answer) => {
            let reason = ReasonCode::QuotaExceeded;
            let (raw, session) = (&arrival.raw, publisher.session);
            let next = acknowledge_with(hub, id, raw, session, reason, &answer, None);
            Err(Exit::Done(next))
        }
    }
}

/// The version with which a publication is retained, if it is retained. A message that a neighbour
/// sends only because this broker lacked it goes no further if this broker has it by now.
fn retained_version(
    hub: &mut Hub,
    arrival: &mut Arrival<'_>,
    publisher: Publisher,
    entry: &mut Entry<'_>,
    directory: &Directory,
    publication: &mut Publication<'_>,
) -> Result<Option<u64>, Exit> {
    let notes = &mut arrival.notes;
    let raw = &arrival.raw;
    // A version from the future would never be superseded.
    let clock = directory.version_clock();
    let latest = Directory::latest_version(clock);
    let is_true = notes.version <= latest;
    hub.stats.refused_versions += u64::from(!is_true);
    let known = Some(entry.version()).filter(|known| *known <= latest);
    let known = known.unwrap_or(0);
    let keeps = has_retained_room(hub, entry, publication);
    hub.stats.refused_retained_full += u64::from(!keeps);
    if !keeps && arrival.name.is_none() {
        let why = "no room for retained messages";
        let next = refuse(hub, arrival.id, raw, publisher.session, why)?;
        return Err(Exit::Done(next));
    }
    // A broker that learns here that a topic has no retained message any more never knew of one.
    publication.relayed |= notes.missing && known == 0 && raw.payload.is_empty();
    if notes.missing && (known >= notes.version || !keeps || !is_true) {
        let (reason, after) = (ReasonCode::Success, hub.after_all());
        let next = acknowledge(hub, arrival.id, raw, publisher.session, reason, after);
        return Err(Exit::Done(next));
    }
    let version = match notes.version {
        0 => entry.next_version(clock),
        version => version,
    };
    if common::is_common(hub, raw.topic) {
        notes.version = version;
    }
    Ok((keeps && is_true && version > known).then_some(version))
}

/// The receivers of a publication, if they are not simply all that match, and the other brokers
/// that choose members of shared subscriptions for it.
fn receivers(
    hub: &mut Hub,
    arrival: &mut Arrival<'_>,
    publisher: Publisher,
    wanted: &Matched,
    (reach, all): (Option<Reach>, bool),
    publication: &Publication<'_>,
) -> (Option<Matched>, SmallVec<[Duty; 1]>) {
    let mut handed = SmallVec::new();
    let notes = &mut arrival.notes;
    let shares = !wanted.groups.is_empty() && common::is_common(hub, arrival.raw.topic);
    let common = match hub.directory.federation() {
        Some(federation) if shares || !notes.is_empty() => {
            let named = arrival.name.is_some() || hub.links.unpacking.is_some();
            let decided = named && is_neighbour(hub, publisher.session);
            let sharing = match decided {
                true => Sharing::follow(federation.name(), wanted, notes),
                false => Sharing::decide(hub, wanted, publication),
            };
            let all = notes.version > 0 && all;
            let (common, others) = sharing.reach(hub, wanted, notes, all);
            handed = others;
            Some(common)
        }
        _ => None,
    };
    let reached = reach.map(|reach| reach.of(common.as_ref().unwrap_or(wanted)));
    (reached.or(common), handed)
}

/// Notes the latest message of a topic in its order.
fn note_order(
    route: &Route,
    arrival: &Arrival<'_>,
    (stream, relayed): (Option<usize>, bool),
    publication: &Publication<'_>,
) {
    if let (Some(stream), Some(given)) = (stream, publication.name) {
        route.order_mut(|order| order.give(stream, given.parts().1));
    }
    let qos = arrival.raw.qos;
    if let (Some(name), false) = (arrival.name, relayed || qos == QoS::AtMostOnce)
        && route.has_clients()
    {
        route.order_mut(|order| order.hear(name, qos));
    }
}

/// Answers the publisher of a publication that was delivered to its receivers.
fn conclude(
    hub: &mut Hub,
    arrival: &Arrival<'_>,
    publisher: Publisher,
    publication: &mut Publication<'_>,
    delivered: Delivered,
) -> Next {
    let (id, raw, name) = (arrival.id, &arrival.raw, arrival.name);
    let (session, relayed) = (publisher.session, delivered.relayed);
    let awaited = publication.keeping.awaited && raw.qos != QoS::AtMostOnce;
    let may_be_stored = awaited || delivered.crowd && publication.keeping.message != 0;
    if let (Some(name), false, Some(federation)) = (
        name,
        relayed || delivered.upwards,
        hub.directory.federation(),
    ) {
        federation.note(name);
        if may_be_stored {
            hub.directory.names().note(name);
        }
    }
    // The name of the message must survive a restart, too.
    publication.keeping.firm |= name.is_some();
    if delivered.crowd {
        let receipt = Receipt {
            conn: id,
            session,
            packet_id: raw.packet_id,
            answer: delivered.answer,
        };
        if raw.qos == QoS::ExactlyOnce {
            // A repetition on another connection is recognised.
            note_reception(hub, raw, session, None);
        }
        hub.fan_out(publication, (Some(id), !delivered.patient), Some(receipt));
        return pause_or_go_on(hub, id);
    }
    let mut after = hub.after(&publication.keeping).filter(|_| awaited);
    if let (Some(name), true) = (name, relayed) {
        after = hub.after_all();
        hub.links.passed_on.note(name, publisher.number);
    }
    if publication.keeping.awaited {
        hub.pace(id, publication.stamp.class());
    }
    if raw.qos == QoS::AtMostOnce {
        return pause_or_go_on(hub, id);
    }
    let reason = match arrival.v5 && delivered.nobody {
        true => ReasonCode::NoMatchingSubscribers,
        false => ReasonCode::Success,
    };
    match delivered.answer {
        Some(answer) => acknowledge_with(hub, id, raw, session, reason, &answer, after),
        None => acknowledge(hub, id, raw, session, reason, after),
    }
}

/// The audience of a publication for which no publisher expects an acknowledgement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Audience {
    /// All matching subscribers and neighbours.
    All,
    /// The matching receivers that are reachable: nothing is queued for lost neighbours.
    Reached,
    /// Reachable neighbours only, since all other receivers have the publication.
    Neighbours,
}

/// The source of a publication for which no publisher expects an acknowledgement.
#[derive(Debug, Default)]
pub(super) struct Source {
    /// The name of the message in the mesh.
    pub(super) name: Option<MessageName>,
    /// How far neighbours trust the requirements that the publication states.
    pub(super) trust: UrgencyTrust,
    /// The client that published it.
    pub(super) author: Option<Arc<Author>>,
}

impl Hub {
    /// The client of a connection as the publisher of a retained message.
    #[cold]
    fn author_of(&mut self, id: ConnId) -> Option<Arc<Author>> {
        let conn = self.outlets.conns.get_mut(id.slot)?;
        let session = self.sessions.get(conn.session)?;
        let author = &mut conn.extra().author;
        Some(
            author
                .get_or_insert_with(|| Arc::new(session.author()))
                .clone(),
        )
    }
}

/// Decides the urgency of a publication, the answer to its publisher, and how far neighbours trust
/// the stated requirements.
#[inline(never)]
fn decide_stamp(
    hub: &mut Hub,
    id: ConnId,
    stated: &StatedRequirements<'_>,
    now: Nanos,
) -> (UrgencyDecision, UrgencyTrust) {
    let Some((asked, mut remark)) = asked(hub, id, stated) else {
        return (UrgencyDecision::Go(Stamp::PLAIN, None, None), stated.trust);
    };
    let trust = match stated.trust {
        UrgencyTrust::Nothing => UrgencyTrust::Nothing,
        UrgencyTrust::All | UrgencyTrust::UpTo(_) => UrgencyTrust::of(&asked),
    };
    hub.stats.bad_requirements += u64::from(remark.is_some());
    if let Some(excess) = asked.refused {
        hub.stats.refused_urgency += 1;
        remark = Some(excess.on(&String::from_utf8_lossy(stated.topic)));
    }
    if let Some(why) = &remark {
        report_urgency(hub, id, why, now);
    }
    let remark = remark.map(answers::best_effort);
    let course = match hub.config.admission {
        Some(admission) => {
            let plain = urgency::without_real_time(asked.urgency);
            let plain = Stamp::new(hub.config.discipline, &plain, now);
            let real_time = asked.urgency.class() == Class::RealTime;
            admission::carry(hub, id, admission, stated, plain, real_time, now)
        }
        None => {
            let stamp = Stamp::new(hub.config.discipline, &asked.urgency, now);
            UrgencyDecision::Go(stamp, None, None)
        }
    };
    let course = match course {
        UrgencyDecision::Go(stamp, watch, answer) => {
            hub.stats.publishes_received_urgent += u64::from(stamp.class().is_urgent());
            UrgencyDecision::Go(stamp, watch, remark.or(answer))
        }
        refused => refused,
    };
    (course, trust)
}

/// A payload as receivers share it: a slice of the packet in which it was received, or a copy if
/// the payload is less than half of the packet, since a slice keeps the whole packet in memory.
fn share(packet: Option<&Bytes>, payload: &[u8]) -> Bytes {
    let is_part = |packet: &&Bytes| {
        let (packet, payload) = (packet.as_ptr_range(), payload.as_ptr_range());
        packet.start <= payload.start && payload.end <= packet.end
    };
    match packet.filter(is_part) {
        Some(packet) if payload.len() >= packet.len() / 2 => packet.slice_ref(payload),
        _ => Bytes::copy_from_slice(payload),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_payload_stays_where_it_came() {
        let packet = Bytes::from((0..100).collect::<Vec<u8>>());
        let shared = share(Some(&packet), &packet[10..90]);
        assert_eq!(shared, packet[10..90]);
        assert_eq!(shared.as_ptr(), packet[10..].as_ptr());
    }

    #[test]
    fn a_payload_keeps_no_more_than_twice_its_length() {
        let packet = Bytes::from(vec![7; 100]);
        for (packet, payload) in [(Some(&packet), &packet[60..]), (None, &packet[..])] {
            let shared = share(packet, payload);
            assert_eq!(shared, payload);
            assert_ne!(shared.as_ptr(), payload.as_ptr());
        }
        // A payload that is no part of the packet, such as that of a will, is copied.
        let other = vec![8; 100];
        assert_eq!(share(Some(&packet), &other), other);
    }
}
