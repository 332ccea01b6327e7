//! Wills: published by the broker of the client, or by other brokers of a mesh if that broker is
//! lost.
//!
//! In a mesh a will has a name from CONNECT on, and the federation is sent the will as a whole
//! PUBLISH packet with that name. Whichever broker publishes the will first, brokers that have
//! received it before recognise it. A client that connects to another broker is disconnected here,
//! as if it had connected here again.

use std::sync::Arc;

use punctual_codec::{
    Packet, Properties, PropertyBuf, PropertyId, PropertySet, Publish, QoS, RawPublish, Split,
    Version, split,
};
use punctual_mesh::WillTurn;
use punctual_model::Requirements;

use super::Shard;
use super::publish::{Audience, Source};
use crate::access::may_publish;
use crate::base::durability::Durability;
use crate::base::notes::UrgencyTrust;
use crate::egress::Stamp;
use crate::hub::Hub;
use crate::mesh::federation::WillRecord;
use crate::mesh::shard::links::{Incoming, incoming};
use crate::message::put_forwarded;
use crate::sequence::Number;
use crate::session::Will;
use crate::urgency::{self, UrgencyRights};
use crate::{Message, Nanos, Permissions};

impl Shard {
    pub(super) fn will_due(&mut self, slot: u32, epoch: u64, now: Nanos) {
        let session = self.hub.sessions.get(slot);
        if session.is_none_or(|session| session.epoch != epoch) {
            return;
        }
        if let Some(will) = self.hub.take_will(slot) {
            self.publish_will(slot, &will, now);
            self.hub.store_no_will(slot);
        }
    }

    /// Publishes the will of a session, unless other brokers have published it.
    pub(crate) fn publish_will(&mut self, session: u32, will: &Will, now: Nanos) {
        let topic = will.message.topic();
        let durability = self.hub.sessions.get(session);
        let durability = durability.map_or(Durability::None, |session| session.durability);
        let durability = self.durability_of_will(topic, durability);
        let permissions = self.hub.permissions_of(session);
        if !may_publish(permissions.as_deref(), topic) {
            self.hub.stats.refused_not_authorized += 1;
            return;
        }
        let rights =
            || permissions.map_or(UrgencyRights::ALL, |permissions| permissions.urgency(topic));
        let author = self.hub.sessions.get(session);
        let source = Source {
            name: will.name,
            trust: UrgencyTrust::All,
            author: author.map(|session| Arc::new(session.author())),
        };
        self.publish_as_will(will, (source, rights), durability, Audience::All, now);
    }

    /// Publishes the will of a client of a lost broker, unless the client is connected here. Must
    /// be called on the shard that would own the session. With [`WillTurn::Guarded`] nothing is
    /// queued for lost brokers: they may be alive, and this one be cut off. With
    /// [`WillTurn::Again`] the will goes to neighbours only.
    pub fn link_will(&mut self, client_id: &str, packet: &[u8], turn: WillTurn, now: Nanos) {
        let slot = self.hub.sessions.named(client_id);
        let session = slot.and_then(|slot| self.hub.sessions.get(slot));
        if session.is_some_and(|session| session.conn.is_some()) {
            return;
        }
        let Some((will, trust)) = told_will(packet) else {
            return;
        };
        let default = self.hub.config.durability.default;
        let durability = self.durability_of_will(will.message.topic(), default);
        // The broker of the client has checked the client's rights.
        let rights = || trust.limit(UrgencyRights::ALL);
        let source = Source {
            name: will.name,
            trust,
            author: None,
        };
        let audience = match turn {
            WillTurn::Own => Audience::All,
            WillTurn::Guarded => Audience::Reached,
            WillTurn::Again => Audience::Neighbours,
        };
        self.publish_as_will(&will, (source, rights), durability, audience, now);
    }

    fn publish_as_will(
        &mut self,
        will: &Will,
        (mut source, rights): (Source, impl FnOnce() -> UrgencyRights),
        durability: Durability,
        audience: Audience,
        now: Nanos,
    ) {
        let hub = &mut self.hub;
        if let (Some(name), Some(federation)) = (will.name, hub.directory.federation())
            && audience != Audience::Neighbours
        {
            if !hub.directory.is_own_will(name) && !federation.is_new(name, false) {
                hub.stats.publishes_recognised += 1;
                return;
            }
            federation.note(name);
            if hub.journal.is_some() {
                hub.directory.names().note(name);
            }
        }
        let config = &hub.config;
        let rule = urgency::of_topic(&config.rules, will.message.topic());
        let stated = match source.trust {
            UrgencyTrust::Nothing => Requirements::NONE,
            UrgencyTrust::All | UrgencyTrust::UpTo(_) => stated(will),
        };
        let asked = urgency::asked(stated, rule, rights);
        source.trust = match source.trust {
            UrgencyTrust::Nothing => UrgencyTrust::Nothing,
            UrgencyTrust::All | UrgencyTrust::UpTo(_) => UrgencyTrust::of(&asked),
        };
        // A will belongs to no admitted flow.
        let urgency = match config.admission {
            Some(_) => urgency::without_real_time(asked.urgency),
            None => asked.urgency,
        };
        let stamp = Stamp::new(config.discipline, &urgency, now);
        let message = will.message.published_at(now, stamp);
        hub.stats.refused_urgency += u64::from(asked.refused.is_some());
        self.publish_named(&message, durability, source, audience, now);
    }

    /// Notes that a client has connected to another broker, at a time as defined by
    /// [`crate::SessionTransfers::arrived`]. If the client left this broker before that time, its
    /// will here is void. A lookup from that broker, or a request for the session, does the rest.
    pub fn arrived_elsewhere(&mut self, client_id: &str, at: u64, now: Nanos) {
        let hub = &mut self.hub;
        let slot = hub.sessions.named(client_id);
        let session = slot.and_then(|slot| Some((slot, hub.sessions.get(slot)?)));
        let Some((slot, session)) = session else {
            return;
        };
        if session.conn.is_some() || session.arrived >= at {
            return;
        }
        let is_over = session.is_transient();
        if hub.take_will(slot).is_some() {
            hub.store_no_will(slot);
        }
        if is_over {
            self.end_session(slot, now);
        }
    }

    /// As [`Self::arrived_elsewhere`], for a client that connected there as the given user. A
    /// session of another user does not belong to that client, and stays unchanged.
    pub fn user_arrived_elsewhere(
        &mut self,
        client_id: &str,
        user: Option<&str>,
        at: u64,
        now: Nanos,
    ) {
        let slot = self.hub.sessions.named(client_id);
        let session = slot.and_then(|slot| self.hub.sessions.get(slot));
        let is_foreign = session.is_some_and(|it| it.username.as_deref() != user);
        if !(is_foreign && self.hub.config.client_ids.keep_owner()) {
            self.arrived_elsewhere(client_id, at, now);
        }
    }

    /// Notes that other brokers, which had lost this one, have published the will of a client of
    /// this broker. If this broker was running meanwhile (`same`), the client's will is a new
    /// message from now on; if not, the subscribers here have not received the will.
    pub fn will_was_published(&mut self, client_id: &str, packet: &[u8], same: bool, now: Nanos) {
        let Some((told, _)) = told_will(packet) else {
            return;
        };
        // A retained will arrives as a retained message.
        if !same && !told.message.retain {
            self.link_will(client_id, packet, WillTurn::Own, now);
        }
        let hub = &mut self.hub;
        let Some(slot) = hub.sessions.named(client_id) else {
            return;
        };
        let name = hub.directory.will_name();
        let session = hub.sessions.get_mut(slot);
        let session = session.filter(|s| s.will.as_ref().is_some_and(|w| w.name == told.name));
        let Some(session) = session else {
            return;
        };
        if let (Some(_), Some(will)) = (session.conn, &mut session.will) {
            will.name = name;
            hub.send_will_to_federation(slot);
            hub.store_will(slot);
        } else if !same {
            hub.take_will(slot);
            hub.store_no_will(slot);
        }
    }
}

impl Hub {
    /// Sets the will of a session.
    pub(super) fn set_will(&mut self, slot: u32, will: Option<Will>) {
        self.take_will(slot);
        if let Some(session) = self.sessions.get_mut(slot) {
            session.will = will.map(Box::new);
            self.send_will_to_federation(slot);
        }
    }

    /// Removes and returns the will of a session.
    pub(crate) fn take_will(&mut self, slot: u32) -> Option<Box<Will>> {
        let session = self.sessions.get_mut(slot)?;
        let will = session.will.take()?;
        self.store_no_will_record(slot);
        let session = self.sessions.get(slot)?;
        if let (Some(_), Some(federation)) = (will.name, self.directory.federation()) {
            federation.left_behind(&session.handle.client_id, None);
        }
        Some(will)
    }

    /// Sends the will of a session to the federation, if the client may publish it.
    pub(crate) fn send_will_to_federation(&self, slot: u32) {
        let (Some(federation), Some(session)) =
            (self.directory.federation(), self.sessions.get(slot))
        else {
            return;
        };
        let Some(will) = &session.will else {
            return;
        };
        let permissions = self.permissions_of(slot);
        if !may_publish(permissions.as_deref(), will.message.topic()) {
            return;
        }
        let rights = || {
            let topic = will.message.topic();
            permissions.map_or(UrgencyRights::ALL, |permissions| permissions.urgency(topic))
        };
        let trust = UrgencyTrust::of(&urgency::asked(stated(will), None, rights));
        if let Some(message) = packet(will, trust) {
            let record = WillRecord {
                at: session.arrived,
                delay: will.delay.min(session.expiry),
                message,
            };
            federation.left_behind(&session.handle.client_id, Some(record));
        }
    }

    fn permissions_of(&self, session: u32) -> Option<Arc<dyn Permissions>> {
        let session = self.sessions.get(session)?;
        let (user, client_id) = (session.username.as_deref(), &session.handle.client_id);
        self.directory
            .permissions(session.listener, user, client_id)
    }
}

/// The requirements that a will states. Those that cannot be decoded were reported to the client
/// with CONNACK.
fn stated(will: &Will) -> Requirements {
    urgency::stated(will.message.properties()).unwrap_or_default()
}

/// A will as it is sent to other brokers, if it has a name. The trust level of its requirements is
/// encoded as a Topic Alias, which has no other meaning here and is ignored by brokers that do not
/// know it.
fn packet(will: &Will, trust: UrgencyTrust) -> Option<Arc<[u8]>> {
    let message = &will.message;
    let mut properties = PropertyBuf::new();
    if trust != UrgencyTrust::All {
        properties.push_number(PropertyId::TopicAlias, u32::from(trust.code()));
    }
    if message.expires < Nanos::MAX {
        // Until the will is published this is an interval.
        let interval = message.expires.as_secs() as u32;
        properties.push_number(PropertyId::MessageExpiryInterval, interval);
    }
    let mut bytes = properties.as_properties().as_bytes().to_vec();
    bytes.extend_from_slice(message.properties().as_bytes());
    Number::from(will.name?).encode(&mut bytes);
    let publish = Publish {
        dup: false,
        qos: message.qos,
        retain: message.retain,
        topic: message.topic(),
        packet_id: u16::from(message.qos != QoS::AtMostOnce),
        properties: Properties::check(&bytes, PropertySet::PUBLISH).ok()?,
        payload: message.payload(),
    };
    let mut packet = Vec::new();
    let publish = Packet::Publish(publish);
    publish.encode(Version::V5, &mut packet).ok()?;
    Some(packet.into())
}

/// Decodes a will that [`packet`] encoded, with the trust level of its requirements.
fn told_will(packet: &[u8]) -> Option<(Will, UrgencyTrust)> {
    let Ok(Split::Frame(frame)) = split(packet, u32::MAX) else {
        return None;
    };
    let mut raw = RawPublish::decode(frame.first, frame.body, Version::V5).ok()?;
    let Ok(Incoming::Named(name, _)) = incoming(&mut raw, &[]) else {
        return None;
    };
    let topic = punctual_codec::topic::validate_name(raw.topic).ok()?;
    let mut properties = Vec::new();
    put_forwarded(raw.properties, &mut properties);
    let expiry = raw.properties.number(PropertyId::MessageExpiryInterval);
    let message = Message::will(topic, &properties, raw.payload, raw.qos, raw.retain, expiry);
    let alias = raw.properties.number(PropertyId::TopicAlias);
    let trust = UrgencyTrust::from_code(alias.unwrap_or(0))?;
    let will = Will {
        message,
        delay: 0,
        name: Some(name),
        due: None,
        reserved: None,
    };
    may_publish(None, topic).then_some((will, trust))
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use super::*;
    use crate::base::name::MessageName;

    #[test]
    fn a_will_is_read_as_it_was_told() {
        let mut properties = PropertyBuf::new();
        properties
            .push_data(PropertyId::ContentType, b"text")
            .unwrap();
        properties.push_user("key", "value").unwrap();
        for (qos, expiry) in [
            (QoS::AtMostOnce, None),
            (QoS::AtLeastOnce, Some(7)),
            (QoS::ExactlyOnce, Some(u32::MAX)),
        ] {
            let bytes = properties.as_properties().as_bytes();
            let will = Will {
                message: Message::will("a/b", bytes, b"gone", qos, true, expiry),
                delay: 3,
                name: Some(MessageName {
                    origin: NonZeroU32::MIN,
                    number: 9,
                    again: false,
                    back: 0,
                }),
                due: None,
                reserved: None,
            };
            for trust in [UrgencyTrust::All, UrgencyTrust::UpTo(6)] {
                let (_, told) = told_will(&packet(&will, trust).unwrap()).unwrap();
                assert_eq!(told, trust);
            }
            let (told, trust) = told_will(&packet(&will, UrgencyTrust::Nothing).unwrap()).unwrap();
            assert_eq!(trust, UrgencyTrust::Nothing);
            assert_eq!(told.name, will.name);
            assert_eq!(told.message.properties().as_bytes(), bytes);
            assert_eq!(told.message.topic(), "a/b");
            assert_eq!(told.message.payload(), b"gone");
            assert_eq!((told.message.qos, told.message.retain), (qos, true));
            assert_eq!(told.message.expires, will.message.expires);
            let nameless = Will { name: None, ..will };
            assert!(packet(&nameless, UrgencyTrust::All).is_none());
        }
        assert!(told_will(b"other").is_none());
    }
}
