//! Packets of the client, on their way to the broker.

use std::time::Duration;

use punctual_codec::{
    ConnAck, Connect, DecodeError, Frame, Packet, PacketType, Properties, PropertyBuf, PropertyId,
    Publish, QoS, RawPublish, ReasonCode, Subscribe, SubscribeOptions, Unsubscribe, Version,
};
use punctual_model::{Requirements, is_requirement_key};

use super::{HELD, Phase, Relay, RelayFailure, Stop, encoded};
use crate::marking::Class;
use crate::sidecar::translate::within;

impl Relay {
    pub(super) fn on_connect(&mut self, frame: Frame<'_>, now: Duration) -> Result<(), Stop> {
        if frame.kind != PacketType::Connect {
            return Err(DecodeError::Protocol("packet before CONNECT").into());
        }
        let connect = Connect::decode(frame.body)?;
        self.version = connect.version;
        self.bridge = Connect::is_bridge(frame.body);
        self.client_id = connect.client_id.to_owned();
        let v5 = connect.version.is_v5();
        if !v5 && connect.client_id.is_empty() && !connect.clean_start {
            let _ = ConnAck {
                session_present: false,
                reason: ReasonCode::ClientIdentifierNotValid,
                properties: Properties::EMPTY,
            }
            .encode(self.version, &mut self.to_client);
            self.phase = Phase::Over;
            let why = "a session that is kept needs a client identifier";
            return Err(RelayFailure::Client(why.into()).into());
        }
        let mut properties = PropertyBuf::new();
        if v5 {
            let dropped = self
                .common
                .datagrams
                .then_some(PropertyId::TopicAliasMaximum);
            within(connect.properties, dropped, &mut properties);
            self.default = requirements(connect.properties);
        } else if !connect.clean_start {
            // Before MQTT 5 a session that is kept is kept for ever.
            properties.push_number(PropertyId::SessionExpiryInterval, u32::MAX);
        }
        let mut will_properties = PropertyBuf::new();
        let mut will = connect.will;
        if let Some(will) = &mut will {
            let rule = self.common.rules.find(will.topic);
            within(will.properties, None, &mut will_properties);
            add(rule, will.properties, &mut will_properties);
            will.properties = will_properties.as_properties();
        }
        let patience = Duration::from_secs(connect.keep_alive.into()) * 3 / 2;
        self.patience = (!patience.is_zero()).then_some(patience);
        let connect = Connect {
            version: Version::V5,
            will,
            properties: properties.as_properties(),
            ..connect
        };
        self.put(Class::Normal, |out| connect.encode(out), now)?;
        self.phase = Phase::Connecting;
        Ok(())
    }

    pub(super) fn on_client(&mut self, frame: Frame<'_>, now: Duration) -> Result<(), Stop> {
        if frame.kind == PacketType::Publish {
            return self.on_client_publish(frame, now);
        }
        if frame.kind == PacketType::PingReq {
            self.pings += 1;
        }
        if self.version.is_v5() {
            // The broker validates its content.
            self.put_bytes(Class::Normal, frame.bytes, now)?;
            if frame.kind == PacketType::Disconnect {
                self.phase = Phase::Over;
            }
            return Ok(());
        }
        match Packet::decode(frame, self.version)? {
            Packet::Subscribe(subscribe) => {
                let bridge = self.bridge;
                let translated = |(filter, options): (_, SubscribeOptions)| match bridge {
                    true => (filter, options.of_bridge(filter)),
                    false => (filter, options),
                };
                let filters: Vec<_> = subscribe.filters().map(translated).collect();
                let id = subscribe.packet_id;
                let put = |out: &mut Vec<u8>| {
                    Subscribe::put(id, Properties::EMPTY, &filters, Version::V5, out)
                };
                self.put(Class::Normal, put, now)?;
            }
            Packet::Unsubscribe(unsubscribe) => {
                let filters: Vec<&str> = unsubscribe.filters().collect();
                let id = unsubscribe.packet_id;
                let put = |out: &mut Vec<u8>| {
                    Unsubscribe::put(id, Properties::EMPTY, &filters, Version::V5, out)
                };
                self.put(Class::Normal, put, now)?;
            }
            packet @ (Packet::PubAck(_)
            | Packet::PubRec(_)
            | Packet::PubRel(_)
            | Packet::PubComp(_)
            | Packet::PingReq) => {
                self.put(Class::Normal, |out| packet.encode(Version::V5, out), now)?;
            }
            Packet::Disconnect(_) => {
                self.put_disconnect(ReasonCode::Success);
                self.phase = Phase::Over;
            }
            _ => return Err(DecodeError::Protocol("packet that a client does not send").into()),
        }
        Ok(())
    }

    fn on_client_publish(&mut self, frame: Frame<'_>, now: Duration) -> Result<(), Stop> {
        let publish = RawPublish::decode(frame.first, frame.body, self.version)?.validate()?;
        let rule = self.rule(&publish)?;
        let asked = requirements(publish.properties);
        let class = Class::of(&asked.or(rule).or(self.default));
        let mut scratch = std::mem::take(&mut self.scratch);
        scratch.clear();
        within(publish.properties, None, &mut scratch);
        let added = add(rule, publish.properties, &mut scratch);
        self.ruled += u64::from(added);
        let mut packet = Vec::new();
        let properties = scratch.as_properties();
        let result = match self.version.is_v5() && !added {
            true => {
                packet.extend_from_slice(frame.bytes);
                Ok(())
            }
            false => Publish {
                properties,
                ..publish
            }
            .encode(Version::V5, &mut packet),
        };
        self.scratch = scratch;
        encoded(result)?;
        if packet.len() > self.max_packet {
            let why = format!(
                "a message on {:?} makes a packet of {} bytes, and the broker takes {}{}",
                publish.topic,
                packet.len(),
                self.max_packet,
                match self.common.datagrams {
                    true => "; use tcp:// or tls:// towards the broker for longer ones",
                    false => "",
                }
            );
            return Err(self.unable(ReasonCode::PacketTooLarge, why).into());
        }
        // A client of MQTT 5 knows the Receive Maximum.
        let counts = !self.version.is_v5() && publish.qos != QoS::AtMostOnce;
        if !counts || self.flying.contains(&publish.packet_id) {
            return Ok(self.put_bytes(class, &packet, now)?);
        }
        if self.flying.len() < self.receive_maximum {
            self.flying.insert(publish.packet_id);
            return Ok(self.put_bytes(class, &packet, now)?);
        }
        self.held_bytes += packet.len();
        if self.held_bytes > HELD {
            let why = format!(
                "it has more unacknowledged messages than the {} that the broker takes, and \
                 more than {HELD} bytes of them",
                self.receive_maximum
            );
            return Err(self.unable(ReasonCode::ReceiveMaximumExceeded, why).into());
        }
        self.held.push_back((class, packet));
        Ok(())
    }

    /// What the rules say about a publication.
    fn rule(&mut self, publish: &Publish<'_>) -> Result<Requirements, Stop> {
        let alias = publish.properties.number(PropertyId::TopicAlias);
        let alias = alias.map(|alias| alias as u16);
        if let (Some(alias), false) = (alias, publish.topic.is_empty()) {
            self.aliases.insert(alias, publish.topic.to_owned());
        }
        let topic = match (alias, publish.topic) {
            (Some(alias), "") => self.aliases.get(&alias).map(String::as_str),
            (_, topic) => Some(topic),
        };
        let topic = topic.ok_or(DecodeError::Protocol("topic alias without topic"))?;
        Ok(self.common.rules.find(topic))
    }
}

/// The requirements in valid properties. The broker answers invalid ones.
fn requirements(properties: Properties<'_>) -> Requirements {
    let mut requirements = Requirements::NONE;
    for (key, value) in properties.user() {
        if is_requirement_key(key.as_bytes()) {
            let _ = requirements.set(key.as_bytes(), value.as_bytes());
        }
    }
    requirements
}

/// Appends what a rule requires and `given` does not speak of; whether that is
/// anything.
fn add(rule: Requirements, given: Properties<'_>, out: &mut PropertyBuf) -> bool {
    let mut added = false;
    for (key, value) in rule.user_properties() {
        if given.user_value(key).is_none() {
            // Keys and values of requirements are some ten bytes long.
            added |= out.push_user(key, &value).is_ok();
        }
    }
    added
}
