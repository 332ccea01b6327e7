//! PUBLISH from clients, wills and `$SYS`: from a topic to its receivers.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use punctual_codec::{
    DecodeError, Frame, PacketType, PropertyId, QoS, RawPublish, ReasonCode, Version, topic,
};
use smallvec::SmallVec;

use super::links::{self, Incoming, Reach, Wait};
use super::run::not_a_run;
use super::shares::Sharing;
use super::stated::asked;
use super::{Fail, Next, Shard, admission, common, redistribution};
use crate::base::author::Author;
use crate::base::connection::ConnId;
use crate::base::durability::Durability;
use crate::base::name::{MessageName, peer_of};
use crate::custody::FORWARD;
use crate::directory::Directory;
use crate::egress::{Class, Stamp};
use crate::fanouts::Receipt;
use crate::federation::{Heed, LinkNews, Notes, Service};
use crate::hub::{Alias, Hub};
use crate::index::matched::{Matched, TargetList};
use crate::index::target::Target;
use crate::journal::After;
use crate::journal::keeping::Nature;
use crate::message::{Parts, expiry, put_forwarded};
use crate::publication::{Promise, Publication};
use crate::sequence::Number;
use crate::session::gist;
use crate::shard::acknowledge::{
    acknowledge, acknowledge_with, note_reception, pause_or_go_on, refuse, refuse_unstored,
};
use crate::shard::capacity::is_neighbour;
use crate::shard::deliver::{Whom, deliver_all};
use crate::shard::links::Packed;
use crate::shard::retain::{has_retained_room, retain};
use crate::shard::stated::{Course, Sizes, Stated, is_urgent, report_urgency};
use crate::{Message, Nanos, answers, order, urgency};

/// Why nothing is confirmed that others may have to get.
const NOT_JOINED: &str = "this broker has reached none of its neighbours and knows nothing of them";
impl Shard {
    /// A PUBLISH from a connected client.
    #[inline(never)]
    pub(super) fn publish_packet(
        &mut self,
        id: ConnId,
        frame: Frame<'_>,
        now: Nanos,
    ) -> Result<Next, Fail> {
        let Self {
            hub,
            routes,
            alias_topic,
            properties,
            ..
        } = self;
        let Some(conn) = hub.conns.get_mut(id.slot) else {
            return Ok(Next::Closed);
        };
        let in_turn = hub.unpacking.is_none() && !hub.unparking;
        if in_turn && hub.fanouts.are_under_way(conn.number) {
            // An earlier connection of the client has sent them.
            let publisher = conn.number;
            hub.wait_for_fan_out(publisher, id);
            return Ok(Next::Hold);
        }
        let version = match hub.unpacking {
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
            return Err(Fail::new(ReasonCode::QosNotSupported, "QoS not supported"));
        }
        if raw.retain && !hub.config.retain_available {
            return Err(Fail::new(
                ReasonCode::RetainNotSupported,
                "retain not supported",
            ));
        }
        let (mut name, mut notes) = (None, Notes::default());
        if conn.link && hub.unpacking.is_none() {
            let told = match links::incoming(&mut raw, conn.aliases_in())? {
                Incoming::Told(message) => Some(message),
                Incoming::Retains(message) => {
                    let session = conn.session;
                    self.told_of_retained(session, message, now)?;
                    return Ok(Next::Packet);
                }
                Incoming::Brakes(message) => {
                    let session = conn.session;
                    self.told_to_brake(session, message, now)?;
                    return Ok(Next::Packet);
                }
                Incoming::Named(of, with) => {
                    (name, notes) = (Some(of), with);
                    // It is retained, and not urgent any more.
                    if notes.missing {
                        notes.heed = Heed::Nothing;
                    }
                    None
                }
            };
            if let (Some(told), Some(federation)) = (told, hub.directory.federation())
                && let Some(session) = hub.sessions.get(conn.session)
                && let Some(peer) = peer_of(&session.handle.client_id)
            {
                federation.link(id, peer, LinkNews::Message(told));
                return Ok(Next::Packet);
            }
        }
        let mut topic_bytes = raw.topic;
        let mut forwardable = true;
        if !raw.properties.is_empty() {
            let limits = &hub.config.limits;
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
            forwardable = !raw.properties.contains(PropertyId::TopicAlias)
                && !raw.properties.contains(PropertyId::MessageExpiryInterval);
            if let Some(alias) = raw.properties.number(PropertyId::TopicAlias) {
                if alias > u32::from(limits.topic_alias_maximum) {
                    return Err(Fail::new(
                        ReasonCode::TopicAliasInvalid,
                        "topic alias above Topic Alias Maximum",
                    ));
                }
                let at = alias as usize - 1;
                if raw.topic.is_empty() {
                    let aliases = &conn.extra.get_or_insert_default().aliases_in;
                    let known = aliases.get(at).map(|alias| &alias.topic);
                    let known = known.filter(|topic| !topic.is_empty());
                    let Some(known) = known else {
                        return Err(Fail::new(
                            ReasonCode::ProtocolError,
                            "topic alias was never defined",
                        ));
                    };
                    alias_topic.clear();
                    alias_topic.extend_from_slice(known);
                    topic_bytes = alias_topic;
                } else {
                    topic::validate_name(raw.topic)?;
                    let aliases = &mut conn.extra().aliases_in;
                    if aliases.len() <= at {
                        aliases.resize_with(at + 1, Alias::default);
                    }
                    aliases[at].topic = raw.topic.into();
                }
                if let (Some(name), Some(extra)) = (name, &mut conn.extra) {
                    extra.aliases_in[at].origin = Some(name.origin);
                }
            }
        }
        if conn.link && topic_bytes.starts_with(FORWARD.as_bytes()) && hub.unpacking.is_none() {
            let (packet_id, payload) = (raw.packet_id, raw.payload);
            if raw.qos != QoS::AtLeastOnce || !self.forwarded_packet(id, packet_id, payload) {
                return Err(DecodeError::Malformed("message for a session").into());
            }
            return Ok(Next::Packet);
        }
        let mut route = match routes.find(topic_bytes, conn.route, &hub.directory) {
            Some(route) => route,
            None => {
                let name = topic::validate_name(topic_bytes)?;
                let limits = &hub.config.limits;
                if name.len() > limits.max_topic_length
                    || topic::levels(name) > limits.max_topic_levels
                {
                    return Err(Fail::new(
                        ReasonCode::TopicNameInvalid,
                        "topic exceeds limits.max_topic_length or limits.max_topic_levels",
                    ));
                }
                routes.insert(name, &hub.directory)
            }
        };
        let topic_name = routes.get(route).topic();
        let mut stamp = Stamp::PLAIN;
        let (mut watch, mut answer) = (None, None);
        let states = conn.states || raw.properties.contains(PropertyId::UserProperty);
        conn.set_route(route, topic_name);
        let (allowed, number, session_slot) = (conn.route_allowed, conn.number, conn.session);
        let is_link = conn.link;
        let durability = conn.durability;
        let unreleased = conn.unreleased;
        if let (Some(packing), Some(name)) = (notes.packing, name) {
            let packed = Packed {
                bytes: raw.payload,
                packing,
                name,
            };
            let mut properties = raw.properties.iter();
            let bare = properties.all(|property| property.id == PropertyId::TopicAlias);
            if !bare || raw.qos != QoS::AtMostOnce || raw.retain || !allowed {
                return Err(not_a_run());
            }
            return self.publish_packed(id, route, packed, now);
        }
        let rule = routes.get(route).rule.as_deref();
        let stated = (states || rule.is_some()).then_some(Stated {
            route,
            topic: topic_bytes,
            properties: raw.properties,
            rule,
            heed: notes.heed,
            sizes: Sizes::of(&raw, frame.bytes.len()),
            matched: &routes.get(route).matched,
        });
        if let (Some(stated), true, Some(_)) = (&stated, allowed, hub.config.admission)
            && hub.unpacking.is_none()
            && admission::must_wait(hub, id, stated, raw.qos, now)
        {
            return Ok(Next::Hold);
        }
        if is_link && raw.qos != QoS::AtMostOnce {
            let entry = routes.get(route);
            let matched = &entry.matched;
            if let (Some(name), true) = (&mut name, hub.ripe) {
                // Nobody else is to wait for it either.
                name.back = 0;
            }
            let durability = entry.durability.unwrap_or(durability);
            let nature = Nature {
                qos: raw.qos,
                retain: raw.retain,
                publisher: number,
                relayed: false,
            };
            let size = raw.topic.len() + raw.properties.as_bytes().len() + raw.payload.len();
            let urgent = stated.as_ref().is_some_and(|it| is_urgent(hub, id, it));
            let promise = (durability, urgent);
            let topic = topic_bytes;
            let cause = |hub: &Hub, matched: &Matched| {
                links::cause_to_wait(hub, session_slot, topic, matched, nature, size, promise)
            };
            let cause = match cause(hub, matched) {
                None if raw.retain => cause(hub, &common::keepers(hub)),
                cause => cause,
            };
            // What came before it on its topic may be what it waits behind.
            let wait = cause.map(Wait::Room).or_else(|| {
                let previous = links::missing(hub, entry, name?, raw.qos)?;
                Some(Wait::Previous(previous))
            });
            if let Some(wait) = wait {
                return links::park(hub, id, topic_bytes, &raw, (name, &notes), wait, now);
            }
        }
        hub.stats.publish_bytes_received += raw.payload.len() as u64;
        // What an alias stands for is part of what it says.
        let raw = RawPublish {
            topic: topic_bytes,
            ..raw
        };

        // QoS 2: a repetition is acknowledged again and not delivered again
        // [MQTT-4.3.3-10].
        match raw.qos {
            QoS::AtMostOnce => hub.stats.publishes_received_qos0 += 1,
            QoS::AtLeastOnce => hub.stats.publishes_received_qos1 += 1,
            QoS::ExactlyOnce => {
                if let Some(session) = hub.sessions.get_mut(session_slot) {
                    let incoming = session.incoming.as_mut();
                    // A neighbour may have begun anew: there the name decides.
                    let incoming = incoming.filter(|_| name.is_none());
                    let known = incoming.and_then(|it| it.get_mut(&raw.packet_id));
                    let is_void = known.as_ref().is_some_and(|known| {
                        known.is_other(raw.dup, || gist(raw.topic, raw.payload))
                    });
                    if let (Some(known), false) = (known, is_void) {
                        known.earlier = false;
                        let (kind, after) = (PacketType::PubRec, After::ticket(known.ticket));
                        let reason = ReasonCode::Success;
                        hub.answer(id.slot, kind, raw.packet_id, reason, Some(after));
                        return Ok(Next::Packet);
                    }
                    // A neighbour may send as many again where it was told to brake.
                    let most = hub.config.limits.receive_maximum;
                    let most = most.saturating_mul(1 + u16::from(is_link));
                    if v5 && unreleased >= most {
                        return Err(Fail::new(
                            ReasonCode::ReceiveMaximumExceeded,
                            "more unreleased QoS 2 messages than Receive Maximum",
                        ));
                    }
                    if is_void {
                        hub.forget_received(session_slot, raw.packet_id);
                    }
                }
                hub.stats.publishes_received_qos2 += 1;
            }
        }
        if !allowed {
            hub.stats.refused_not_authorized += 1;
            return Ok(acknowledge(
                hub,
                id,
                &raw,
                session_slot,
                ReasonCode::NotAuthorized,
                None,
            ));
        }

        if raw.qos != QoS::AtMostOnce && !is_link && hub.service() != Service::Full {
            hub.stats.refused_not_joined += 1;
            return refuse(hub, id, &raw, session_slot, NOT_JOINED);
        }

        let mut reach = None;
        if let Some(federation) = hub.directory.federation()
            && let Some(relay) = federation.relay()
        {
            let session = hub.sessions.get(session_slot);
            let peer = session.and_then(|s| peer_of(&s.handle.client_id));
            let own = name.is_some_and(|name| name.origin == federation.origin());
            reach = Some(Reach::new(relay, peer, own));
        }
        let mut relayed = false;
        if let (Some(name), Some(federation)) = (name, hub.directory.federation())
            && !match &reach {
                Some(reach) if reach.is_upwards() => federation.is_new_upwards(name),
                _ => {
                    federation.is_new(name, raw.qos != QoS::AtLeastOnce)
                        && !hub.directory.is_own_will(name)
                }
            }
        {
            hub.stats.publishes_recognised += 1;
            // Who has come to a neighbour since it was here may not have it.
            relayed = name.again
                && raw.qos != QoS::AtMostOnce
                && reach.is_none()
                && hub.passed_on.is_due(name, number);
            if !relayed {
                // What came before it is perhaps not committed yet.
                let (reason, after) = (ReasonCode::Success, hub.after_all());
                return Ok(acknowledge(hub, id, &raw, session_slot, reason, after));
            }
        }

        properties.clear();
        let forwarded = if forwardable {
            raw.properties.as_bytes()
        } else {
            put_forwarded(raw.properties, properties);
            properties
        };
        let interval = match forwardable {
            true => None,
            false => raw.properties.number(PropertyId::MessageExpiryInterval),
        };
        // What a neighbour sends has its name in it.
        let plain = raw.qos == QoS::AtMostOnce && !raw.retain && forwardable && name.is_none();
        if let Some(stated) = &stated {
            let (course, heed) = decide_stamp(hub, id, stated, now);
            if hub.directory.federation().is_some() {
                notes.heed = heed;
            }
            match course {
                Course::Go(course, flow, said) => (stamp, watch, answer) = (course, flow, said),
                Course::Refuse(answer) => {
                    let reason = ReasonCode::QuotaExceeded;
                    return Ok(acknowledge_with(
                        hub,
                        id,
                        &raw,
                        session_slot,
                        reason,
                        &answer,
                        None,
                    ));
                }
            }
        }
        let durability = routes.get(route).durability.unwrap_or(durability);
        let keeping = hub.keeping(durability, raw.retain || raw.qos != QoS::AtMostOnce);
        let stream = match (name, hub.directory.federation()) {
            (None, Some(_)) => order::stream(raw.qos, stamp.class(), interval.is_some()),
            _ => None,
        };
        let last_given = |stream| routes.get(route).order(|order| order.last_given(stream));
        let follows = stream.map_or(0, last_given);
        let mut publication = Publication {
            parts: Parts {
                topic: topic_bytes,
                properties: forwarded,
                expiry: interval,
                payload: raw.payload,
                shared: None,
            },
            qos: raw.qos,
            retain: raw.retain,
            publisher: number,
            frame: (plain && raw.payload.len() < crate::egress::SHARE_FROM && frame.is_minimal())
                .then_some((frame.bytes, v5)),
            expires: expiry(interval, now),
            stamp,
            watch,
            promise: Promise::None,
            reserved: 0,
            message: None,
            keeping,
            name: name.map(Number::from),
            follows,
            relayed,
            queue_full: routes.get(route).queue_full,
            sole: false,
            author: match raw.retain && !is_link {
                true => hub.author_of(id),
                false => None,
            },
        };
        // Held until the message is stored, so that who subscribes meanwhile on
        // another shard is either found as a receiver or finds it retained.
        let retains = raw.retain && !relayed && reach.as_ref().is_none_or(|reach| reach.clients);
        let directory = retains.then(|| hub.directory.clone());
        let mut retained = directory.as_ref().map(|d| d.retained_mut());
        let mut kept = None;
        let name_of_topic = std::str::from_utf8(topic_bytes).unwrap_or_default();
        let mut entry = retained.as_mut().map(|it| it.entry(name_of_topic));
        if let (Some(entry), Some(directory)) = (&mut entry, &directory) {
            // What another broker says of the future would stay for ever.
            let clock = directory.version_clock();
            let latest = Directory::latest_version(clock);
            let is_true = notes.version <= latest;
            hub.stats.refused_versions += u64::from(!is_true);
            let known = Some(entry.version()).filter(|known| *known <= latest);
            let known = known.unwrap_or(0);
            let keeps = has_retained_room(hub, entry, &publication);
            hub.stats.refused_retained_full += u64::from(!keeps);
            if !keeps && name.is_none() {
                return refuse(hub, id, &raw, session_slot, "no room for retained messages");
            }
            // Who hears here of a topic that it has nothing any more knew nothing of it.
            publication.relayed |= notes.missing && known == 0 && raw.payload.is_empty();
            if notes.missing && (known >= notes.version || !keeps || !is_true) {
                let (reason, after) = (ReasonCode::Success, hub.after_all());
                return Ok(acknowledge(hub, id, &raw, session_slot, reason, after));
            }
            let version = match notes.version {
                0 => entry.next_version(clock),
                version => version,
            };
            kept = (keeps && is_true && version > known).then_some(version);
            if common::is_common(hub, topic_bytes) {
                notes.version = version;
            }
            route = match routes.find(topic_bytes, route, &hub.directory) {
                Some(route) => route,
                None => routes.insert(topic::validate_name(topic_bytes)?, &hub.directory),
            };
        }
        let matched = &routes.get(route).matched;
        let upwards = reach.as_ref().is_some_and(Reach::is_upwards);
        let wanted = matched;
        let mut handed = SmallVec::new();
        let shares = !matched.groups.is_empty() && common::is_common(hub, topic_bytes);
        let common = match hub.directory.federation() {
            Some(federation) if shares || !notes.is_empty() => {
                let named = name.is_some() || hub.unpacking.is_some();
                let decided = named && is_neighbour(hub, session_slot);
                let sharing = match decided {
                    true => Sharing::follow(federation.name(), matched, &notes),
                    false => Sharing::decide(hub, matched, &publication),
                };
                let all = notes.version > 0 && (retains || upwards);
                let (common, others) = sharing.reach(hub, matched, &mut notes, all);
                handed = others;
                Some(common)
            }
            _ => None,
        };
        let matched = common.as_ref().unwrap_or(matched);
        let reached = reach.map(|reach| reach.of(matched));
        let matched = reached.as_ref().unwrap_or(matched);
        if let Some(trouble) = hub.trouble_for(matched, &publication) {
            return refuse_unstored(hub, id, &raw, trouble);
        }
        if raw.payload.len() >= crate::egress::SHARE_FROM && !matched.is_empty() {
            publication.parts.shared = Some(share(hub.packet.as_ref(), publication.parts.payload));
        }
        // A neighbour waits for its acknowledgement instead, see `links::cause_to_wait`.
        let patient = is_link && raw.qos != QoS::AtMostOnce;
        let publisher = (!patient).then_some(id);
        let whom = match is_link {
            true => Whom::Neighbour,
            false => Whom::Publisher,
        };
        if deliver_all(hub, matched, &mut publication, publisher, now, whom).is_err() {
            hub.stats.refused_queue_full += 1;
            return refuse(hub, id, &raw, session_slot, "a receiver's queue is full");
        }
        if !handed.is_empty() && !relayed {
            let handed = (handed, notes.heed);
            redistribution::hand_on(hub, wanted, &mut publication, handed, now);
        }
        if let (Some(entry), Some(version)) = (entry, kept) {
            retain(hub, entry, &mut publication, version);
        }
        drop(retained);
        let entry = routes.get(route);
        if let (Some(stream), Some(given)) = (stream, publication.name) {
            entry.order_mut(|order| order.give(stream, given.parts().1));
        }
        if let (Some(name), false) = (name, relayed || raw.qos == QoS::AtMostOnce)
            && entry.has_clients()
        {
            entry.order_mut(|order| order.hear(name, raw.qos));
        }
        let crowd = matched.crowd && !relayed;
        let awaited = publication.keeping.awaited && raw.qos != QoS::AtMostOnce;
        let may_be_stored = awaited || crowd && publication.keeping.message != 0;
        if let (Some(name), false, Some(federation)) =
            (name, relayed || upwards, hub.directory.federation())
        {
            federation.note(name);
            if may_be_stored {
                hub.directory.names().note(name);
            }
        }
        // Its name has to survive, too.
        publication.keeping.firm |= name.is_some();
        if crowd {
            let receipt = Receipt {
                conn: id,
                session: session_slot,
                packet_id: raw.packet_id,
                answer,
            };
            if raw.qos == QoS::ExactlyOnce {
                // Sent again on another connection, it is recognised.
                note_reception(hub, &raw, session_slot, None);
            }
            hub.fan_out(&mut publication, (Some(id), !patient), Some(receipt));
            return Ok(pause_or_go_on(hub, id));
        }
        let mut after = hub.after(&publication.keeping).filter(|_| awaited);
        if let (Some(name), true) = (name, relayed) {
            after = hub.after_all();
            hub.passed_on.note(name, number);
        }
        if publication.keeping.awaited {
            hub.pace(id, stamp.class());
        }
        if raw.qos == QoS::AtMostOnce {
            return Ok(pause_or_go_on(hub, id));
        }
        let reason = if v5 && matched.is_empty() {
            ReasonCode::NoMatchingSubscribers
        } else {
            ReasonCode::Success
        };
        if let Some(answer) = answer {
            return Ok(acknowledge_with(
                hub,
                id,
                &raw,
                session_slot,
                reason,
                &answer,
                after,
            ));
        }
        Ok(acknowledge(hub, id, &raw, session_slot, reason, after))
    }

    /// Publishes a message that no client waits for an answer to.
    pub(super) fn publish_message(
        &mut self,
        message: &Arc<Message>,
        durability: Durability,
        now: Nanos,
    ) {
        self.publish_named(message, durability, Source::default(), Audience::All, now);
    }

    /// The same of something that comes from there, for those.
    pub(super) fn publish_named(
        &mut self,
        message: &Arc<Message>,
        durability: Durability,
        source: Source,
        audience: Audience,
        now: Nanos,
    ) {
        let Self { hub, routes, .. } = self;
        let Source { name, heed, author } = source;
        let mut publication = Publication::from_message(message, now);
        publication.author = author;
        publication.name = name.map(Number::from);
        publication.relayed = audience == Audience::Neighbours;
        publication.keeping = hub.keeping(durability, true);
        publication.keeping.insists = true;
        if publication.keeping.message != 0 {
            // Made again, with its number.
            publication.message = None;
        }
        let mut notes = Notes {
            heed,
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
            // Who is reached later may have it from elsewhere, and those behind may not.
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
        // Without anyone to refuse it to, a full queue is a counted drop.
        let _ = deliver_all(hub, matched, &mut publication, None, now, Whom::Nobody);
        if matched.crowd && !publication.relayed {
            hub.fan_out(&mut publication, (None, false), None);
        }
    }
}

/// For whom a publication is that nobody waits for an answer to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Audience {
    /// All who want it.
    All,
    /// Those of them that are reached: nothing is kept for neighbours that are lost.
    Reached,
    /// Neighbours that are reached, since all others have it.
    Neighbours,
}

/// Where a publication comes from that nobody waits for an answer to.
#[derive(Debug, Default)]
pub(super) struct Source {
    /// What it is called in the mesh.
    pub(super) name: Option<MessageName>,
    /// How far neighbours follow what it states.
    pub(super) heed: Heed,
    /// The client that published it.
    pub(super) author: Option<Arc<Author>>,
}

impl Hub {
    /// The client of a connection as the publisher of a retained message.
    #[cold]
    fn author_of(&mut self, id: ConnId) -> Option<Arc<Author>> {
        let conn = self.conns.get_mut(id.slot)?;
        let session = self.sessions.get(conn.session)?;
        let author = &mut conn.extra().author;
        Some(
            author
                .get_or_insert_with(|| Arc::new(session.author()))
                .clone(),
        )
    }
}

/// How urgent a publication is, what its publisher is to be told, and how far neighbours are to
/// follow what it states.
#[inline(never)]
fn decide_stamp(hub: &mut Hub, id: ConnId, stated: &Stated<'_>, now: Nanos) -> (Course, Heed) {
    let Some((asked, mut remark)) = asked(hub, id, stated) else {
        return (Course::Go(Stamp::PLAIN, None, None), stated.heed);
    };
    let heed = match stated.heed {
        Heed::Nothing => Heed::Nothing,
        Heed::All | Heed::UpTo(_) => Heed::of(&asked),
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
            Course::Go(stamp, None, None)
        }
    };
    let course = match course {
        Course::Go(stamp, watch, answer) => {
            hub.stats.publishes_received_urgent += u64::from(stamp.class().is_urgent());
            Course::Go(stamp, watch, remark.or(answer))
        }
        refused => refused,
    };
    (course, heed)
}

/// A payload as receivers share it: a part of the packet that it came in, or a copy where other things
/// take more than half of the packet, which is kept as long as the payload.
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
