//! What packets from the server do to the connection and the session.

use std::ops::Range;
use std::time::Duration;

use punctual_codec::{
    Ack, ConnAck, DecodeError, Packet, PacketType, Properties, PropertyBuf, PropertyId, Publish,
    QoS, ReasonCode, Split, split,
};

use super::alias;
use super::core::{Core, Phase};
use super::event::{Connected, Event};
use super::flight::PubRecAction;
use crate::error::{Farewell, owned};
use crate::{Delivery, Error, Message};

impl Core {
    /// Handles received packets, up to the next event.
    ///
    /// # Errors
    /// The connection has ended: `Refused`, `Disconnected`, `PeerMisbehaved`. Output
    /// buffered before that may still be sent.
    pub fn poll(&mut self, now: Duration) -> Result<Option<Event>, Error> {
        loop {
            if let Some(event) = self.events.pop_front() {
                return Ok(Some(event));
            }
            if !matches!(self.phase, Phase::Up | Phase::Connecting { .. }) {
                return Ok(None);
            }
            match self.next_frame() {
                Ok(None) => return Ok(None),
                Ok(Some(frame)) => {
                    // The buffer is lent out while its packet is handled; the
                    // handlers never touch it.
                    let input = std::mem::take(&mut self.input);
                    let result = self.on_frame(&input[frame], now);
                    self.input = input;
                    result.map_err(|error| self.fail(error))?;
                }
                Err(error) => return Err(self.fail(error.into())),
            }
        }
    }

    /// The place of the next whole packet in the input.
    fn next_frame(&mut self) -> Result<Option<Range<usize>>, DecodeError> {
        let start = self.handled;
        let maximum = self.config.number(PropertyId::MaximumPacketSize);
        match split(
            &self.input[start..],
            maximum.unwrap_or(self.config.max_packet),
        )? {
            Split::Incomplete { .. } => Ok(None),
            Split::Frame(frame) => {
                self.handled += frame.bytes.len();
                Ok(Some(start..self.handled))
            }
        }
    }

    fn on_frame(&mut self, bytes: &[u8], now: Duration) -> Result<(), Error> {
        let version = self.config.version;
        let Split::Frame(frame) = split(bytes, u32::MAX)? else {
            return Ok(());
        };
        let connecting = matches!(self.phase, Phase::Connecting { .. });
        // A server that knows only MQTT 3 refuses later versions in its own
        // words: return code 1.
        if connecting && frame.kind == PacketType::ConnAck && matches!(frame.body, [_, 1]) {
            let reason = ReasonCode::UnsupportedProtocolVersion;
            return Err(Error::Refused(Farewell::new(reason, Properties::EMPTY)));
        }
        let packet = Packet::decode(frame, version)?;
        match packet {
            Packet::ConnAck(connack) if connecting => self.on_connack(connack, now),
            Packet::Auth(auth) => {
                self.events.push_back(Event::Auth {
                    reason: auth.reason,
                    properties: owned(auth.properties),
                });
                Ok(())
            }
            _ if connecting => Err(unexpected(frame.kind, "before CONNACK")),
            Packet::Publish(publish) => self.on_publish(publish, now),
            Packet::PubAck(ack) => self.on_puback(ack, now),
            Packet::PubRec(ack) => self.on_pubrec(ack, now),
            Packet::PubRel(ack) => self.on_pubrel(ack, now),
            Packet::PubComp(ack) => self.on_pubcomp(ack, now),
            Packet::SubAck(suback) => self.on_answer(
                suback.packet_id,
                suback.reasons,
                suback.properties,
                PacketType::SubAck,
            ),
            Packet::UnsubAck(unsuback) => self.on_answer(
                unsuback.packet_id,
                unsuback.reasons,
                unsuback.properties,
                PacketType::UnsubAck,
            ),
            Packet::PingResp => {
                self.ping_deadline = None;
                Ok(())
            }
            Packet::Disconnect(disconnect) if version.is_v5() => Err(Error::Disconnected(
                Farewell::new(disconnect.reason, disconnect.properties),
            )),
            _ => Err(unexpected(frame.kind, "from a server")),
        }
    }

    fn on_connack(&mut self, connack: ConnAck<'_>, now: Duration) -> Result<(), Error> {
        let properties = connack.properties;
        if connack.reason.is_error() {
            return Err(Error::Refused(Farewell::new(connack.reason, properties)));
        }
        if connack.session_present && self.clean_start_sent {
            return Err(Error::protocol(
                ReasonCode::ProtocolError,
                "a session is said to be present after a clean start",
            ));
        }
        self.phase = Phase::Up;
        self.output.accept(properties, self.config.topic_aliases);
        let own = self.config.number(PropertyId::TopicAliasMaximum);
        self.aliases_in = alias::InboundAliases::new(own.unwrap_or(0) as u16);
        let keep_alive = properties.number(PropertyId::ServerKeepAlive);
        let keep_alive = keep_alive.unwrap_or(self.config.keep_alive.into());
        self.keep_alive = Duration::from_secs(keep_alive.into());
        if let Some(id) = properties.text(PropertyId::AssignedClientIdentifier) {
            self.assigned_id = Some(id.to_owned());
        }
        let expiry = properties
            .number(PropertyId::SessionExpiryInterval)
            .or(self.config.number(PropertyId::SessionExpiryInterval));
        self.resumable = expiry.unwrap_or(0) > 0;
        let client_id = self.assigned_id.as_ref().unwrap_or(&self.config.client_id);
        self.events.push_back(Event::Connected(Connected {
            session_present: connack.session_present,
            client_id: client_id.clone(),
            properties: owned(properties),
        }));
        if connack.session_present {
            for id in self.flight.resume() {
                self.acknowledge(PacketType::PubRel, id, ReasonCode::Success, now)?;
            }
        } else {
            self.inbound.clear();
            for token in self.flight.restart() {
                self.events.push_back(Event::Published {
                    token,
                    reason: ReasonCode::PacketIdentifierNotFound,
                    properties: PropertyBuf::new(),
                });
            }
        }
        self.pump(now);
        Ok(())
    }

    fn on_publish(&mut self, publish: Publish<'_>, now: Duration) -> Result<(), Error> {
        let id = publish.packet_id;
        let topic = match publish.properties.number(PropertyId::TopicAlias) {
            Some(alias) => self.aliases_in.resolve(publish.topic, alias)?,
            None => publish.topic.to_owned(),
        };
        match publish.qos {
            QoS::AtMostOnce => {}
            QoS::AtLeastOnce => {
                self.acknowledge(PacketType::PubAck, id, ReasonCode::Success, now)?;
            }
            QoS::ExactlyOnce => {
                let maximum = self.config.number(PropertyId::ReceiveMaximum);
                let new = self
                    .inbound
                    .receive(id, maximum.map_or(u16::MAX, |n| n as u16))?;
                self.acknowledge(PacketType::PubRec, id, ReasonCode::Success, now)?;
                if !new {
                    return Ok(());
                }
            }
        }
        self.events.push_back(Event::Message(Delivery {
            message: Message {
                topic,
                payload: publish.payload.to_vec(),
                qos: publish.qos,
                retain: publish.retain,
                properties: owned(publish.properties),
            },
            dup: publish.dup,
            packet_id: id,
            received: self.received,
        }));
        Ok(())
    }

    fn on_puback(&mut self, ack: Ack<'_>, now: Duration) -> Result<(), Error> {
        match self.flight.puback(ack.packet_id) {
            // Of a message that an earlier connection had; nothing is wrong.
            None => Ok(()),
            Some(Ok(token)) => {
                self.published(token, ack);
                self.pump(now);
                Ok(())
            }
            Some(Err(())) => Err(unexpected(PacketType::PubAck, "for a message with QoS 2")),
        }
    }

    fn on_pubrec(&mut self, ack: Ack<'_>, now: Duration) -> Result<(), Error> {
        let id = ack.packet_id;
        match self.flight.pubrec(id) {
            PubRecAction::WrongQoS => {
                Err(unexpected(PacketType::PubRec, "for a message with QoS 1"))
            }
            _ if ack.reason.is_error() => {
                if let Some(token) = self.flight.finish(id) {
                    self.published(token, ack);
                    self.pump(now);
                }
                Ok(())
            }
            PubRecAction::Release => {
                self.acknowledge(PacketType::PubRel, id, ReasonCode::Success, now)
            }
            PubRecAction::Unknown => {
                let reason = ReasonCode::PacketIdentifierNotFound;
                self.acknowledge(PacketType::PubRel, id, reason, now)
            }
        }
    }

    fn on_pubrel(&mut self, ack: Ack<'_>, now: Duration) -> Result<(), Error> {
        let reason = match self.inbound.release(ack.packet_id) {
            true => ReasonCode::Success,
            false => ReasonCode::PacketIdentifierNotFound,
        };
        self.acknowledge(PacketType::PubComp, ack.packet_id, reason, now)
    }

    fn on_pubcomp(&mut self, ack: Ack<'_>, now: Duration) -> Result<(), Error> {
        match self.flight.pubcomp(ack.packet_id) {
            None => Ok(()),
            Some(Ok(token)) => {
                self.published(token, ack);
                self.pump(now);
                Ok(())
            }
            Some(Err(())) => Err(unexpected(PacketType::PubComp, "before PUBREC")),
        }
    }

    fn published(&mut self, token: super::Token, ack: Ack<'_>) {
        self.events.push_back(Event::Published {
            token,
            reason: ack.reason,
            properties: owned(ack.properties),
        });
    }

    fn on_answer(
        &mut self,
        id: u16,
        reasons: &[u8],
        properties: Properties<'_>,
        kind: PacketType,
    ) -> Result<(), Error> {
        let subscribe = kind == PacketType::SubAck;
        let Some(request) = self.requests.get(&id).copied() else {
            return Err(unexpected(kind, "without request"));
        };
        if request.subscribe != subscribe {
            return Err(unexpected(kind, "for a request of the other kind"));
        }
        let counted = subscribe || self.config.version.is_v5();
        if counted && reasons.len() != request.filters {
            return Err(unexpected(kind, "with a wrong number of reason codes"));
        }
        self.requests.remove(&id);
        let token = request.token;
        let reasons = reasons.iter().filter_map(|r| ReasonCode::from_byte(*r));
        let reasons = reasons.collect();
        let properties = owned(properties);
        self.events.push_back(match subscribe {
            true => Event::Subscribed {
                token,
                reasons,
                properties,
            },
            false => Event::Unsubscribed {
                token,
                reasons,
                properties,
            },
        });
        Ok(())
    }

    fn acknowledge(
        &mut self,
        kind: PacketType,
        id: u16,
        reason: ReasonCode,
        now: Duration,
    ) -> Result<(), Error> {
        self.last_sent = now;
        self.output.acknowledge(kind, id, reason)
    }
}

fn unexpected(kind: PacketType, when: &str) -> Error {
    let name = format!("{kind:?}").to_uppercase();
    Error::protocol(ReasonCode::ProtocolError, format!("{name} {when}"))
}
