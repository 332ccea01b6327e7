//! Packets of the broker, on their way to the client.

use std::time::Duration;

use punctual_codec::{
    Ack, ConnAck, DecodeError, Disconnect, Frame, Packet, PacketType, Properties, PropertyBuf,
    PropertyId, Publish, RawPublish, ReasonCode, Split, SubAck, UnsubAck, Version, split,
};

use super::{Phase, Relay, RelayFailure, Stop, encoded};
use crate::sidecar::translate::{is_final, return_code, within};

impl Relay {
    pub(super) fn on_connack(&mut self, frame: Frame<'_>) -> Result<(), Stop> {
        if frame.kind == PacketType::Auth && self.version.is_v5() {
            self.to_client.extend_from_slice(frame.bytes);
            return Ok(());
        }
        if frame.kind != PacketType::ConnAck {
            return Err(DecodeError::Protocol("packet before CONNACK").into());
        }
        let connack = ConnAck::decode(frame.body, Version::V5)?;
        let number = |id| connack.properties.number(id);
        let assigned = connack
            .properties
            .text(PropertyId::AssignedClientIdentifier);
        if let Some(assigned) = assigned {
            assigned.clone_into(&mut self.client_id);
        }
        let maximum = number(PropertyId::MaximumPacketSize);
        if let Some(maximum) = maximum {
            self.carry(maximum as usize);
        }
        let mut properties = PropertyBuf::new();
        let words = if self.version.is_v5() {
            let dropped = self
                .common
                .datagrams
                .then_some(PropertyId::TopicAliasMaximum);
            within(connack.properties, dropped, &mut properties);
            true
        } else {
            let maximum = number(PropertyId::ReceiveMaximum).unwrap_or(u16::MAX.into());
            self.receive_maximum = maximum as usize;
            self.ping_every = number(PropertyId::ServerKeepAlive)
                .filter(|seconds| *seconds > 0)
                .map(|seconds| Duration::from_secs(seconds.into()));
            connack.reason.connack_v3().is_some()
        };
        if words {
            let translated = ConnAck {
                properties: properties.as_properties(),
                ..connack
            };
            encoded(translated.encode(self.version, &mut self.to_client))?;
        }
        if connack.reason.is_error() {
            self.phase = Phase::Over;
            return Err(RelayFailure::Refused(connack.reason).into());
        }
        self.phase = Phase::Up;
        Ok(())
    }

    pub(super) fn on_broker(&mut self, frame: Frame<'_>, now: Duration) -> Result<(), Stop> {
        if frame.kind == PacketType::PingResp {
            match &mut self.own_ping {
                Some(0) => {
                    self.own_ping = None;
                    return Ok(());
                }
                Some(before) => *before -= 1,
                None => {}
            }
            self.pings = self.pings.saturating_sub(1);
        }
        if self.version.is_v5() {
            self.to_client.extend_from_slice(frame.bytes);
            if frame.kind == PacketType::Disconnect {
                let reason = Disconnect::decode(frame.body, Version::V5)?.reason;
                self.phase = Phase::Over;
                return Err(RelayFailure::Refused(reason).into());
            }
            return Ok(());
        }
        let version = self.version;
        match Packet::decode(frame, Version::V5)? {
            Packet::Publish(publish) => {
                let publish = Publish {
                    properties: Properties::EMPTY,
                    ..publish
                };
                encoded(publish.encode(version, &mut self.to_client))?;
            }
            Packet::PubAck(ack) => {
                self.landed(ack.packet_id, now)?;
                self.acknowledge(PacketType::PubAck, ack)?;
            }
            Packet::PubRec(ack) => {
                if ack.reason.is_error() {
                    self.landed(ack.packet_id, now)?;
                }
                self.acknowledge(PacketType::PubRec, ack)?;
            }
            Packet::PubRel(ack) => self.acknowledge(PacketType::PubRel, ack)?,
            Packet::PubComp(ack) => {
                self.landed(ack.packet_id, now)?;
                self.acknowledge(PacketType::PubComp, ack)?;
            }
            Packet::SubAck(suback) => {
                let reasons: Vec<u8> = suback.reasons.iter().map(|r| return_code(*r)).collect();
                let suback = SubAck {
                    packet_id: suback.packet_id,
                    properties: Properties::EMPTY,
                    reasons: &reasons,
                };
                encoded(suback.encode(version, &mut self.to_client))?;
            }
            Packet::UnsubAck(unsuback) => {
                let unsuback = UnsubAck {
                    packet_id: unsuback.packet_id,
                    properties: Properties::EMPTY,
                    reasons: &[],
                };
                encoded(unsuback.encode(version, &mut self.to_client))?;
            }
            Packet::PingResp => encoded(Packet::PingResp.encode(version, &mut self.to_client))?,
            Packet::Disconnect(disconnect) => {
                self.phase = Phase::Over;
                return Err(RelayFailure::Refused(disconnect.reason).into());
            }
            _ => return Err(DecodeError::Protocol("packet that a broker does not send").into()),
        }
        Ok(())
    }

    /// Passes an acknowledgement to a client that knows no reasons.
    fn acknowledge(&mut self, kind: PacketType, ack: Ack<'_>) -> Result<(), Stop> {
        if is_final(ack.reason) {
            // As the broker itself does: before MQTT 5 the only refusal is to
            // close, and the client may try again.
            self.client_gone();
            return Err(RelayFailure::Refused(ack.reason).into());
        }
        let ack = Ack::new(ack.packet_id, ReasonCode::Success);
        encoded(ack.encode(kind, self.version, &mut self.to_client))
    }

    /// A publication has come to its end, so another may go.
    fn landed(&mut self, id: u16, now: Duration) -> Result<(), Stop> {
        self.flying.remove(&id);
        while self.flying.len() < self.receive_maximum
            && let Some((class, packet)) = self.held.pop_front()
        {
            self.held_bytes -= packet.len();
            if let Ok(Split::Frame(frame)) = split(&packet, u32::MAX) {
                let publish = RawPublish::decode(frame.first, frame.body, Version::V5)?;
                self.flying.insert(publish.packet_id);
            }
            self.put_bytes(class, &packet, now)?;
        }
        Ok(())
    }
}
