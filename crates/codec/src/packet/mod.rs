//! The control packets, one module each. All borrow from the buffer they were
//! decoded from; all encode by appending to a `Vec<u8>`.

mod ack;
mod auth;
mod connack;
mod connect;
mod disconnect;
mod publish;
mod suback;
mod subscribe;
mod unsubscribe;

pub use ack::Ack;
pub use auth::Auth;
pub use connack::ConnAck;
pub use connect::{Connect, Will};
pub use disconnect::Disconnect;
pub use publish::{Publish, RawPublish};
pub use suback::{SubAck, UnsubAck};
pub use subscribe::{RetainHandling, Subscribe, SubscribeFilters, SubscribeOptions};
pub use unsubscribe::{Unsubscribe, UnsubscribeFilters};

use crate::{DecodeError, EncodeError, Frame, PacketType, Version};

/// Any control packet.
#[derive(Debug, Clone, Copy, PartialEq)]
#[allow(missing_docs, reason = "the names are those of the specification")]
pub enum Packet<'a> {
    Connect(Connect<'a>),
    ConnAck(ConnAck<'a>),
    Publish(Publish<'a>),
    PubAck(Ack<'a>),
    PubRec(Ack<'a>),
    PubRel(Ack<'a>),
    PubComp(Ack<'a>),
    Subscribe(Subscribe<'a>),
    SubAck(SubAck<'a>),
    Unsubscribe(Unsubscribe<'a>),
    UnsubAck(UnsubAck<'a>),
    PingReq,
    PingResp,
    Disconnect(Disconnect<'a>),
    Auth(Auth<'a>),
}

impl<'a> Packet<'a> {
    /// Decodes a frame by the rules of `version`. For CONNECT the version in
    /// the packet counts instead.
    ///
    /// # Errors
    /// See [`DecodeError`]; a packet type the version does not have is
    /// `Protocol`.
    pub fn decode(frame: Frame<'a>, version: Version) -> Result<Self, DecodeError> {
        let body = frame.body;
        let kind = frame.kind;
        let version = match kind {
            PacketType::Connect => Connect::peek_version(body).unwrap_or(version),
            _ => version,
        };
        if version.is_v5() && !frame.is_minimal() {
            return Err(DecodeError::Malformed("remaining length"));
        }
        Ok(match kind {
            PacketType::Connect => Self::Connect(Connect::decode(body)?),
            PacketType::ConnAck => Self::ConnAck(ConnAck::decode(body, version)?),
            PacketType::Publish => {
                Self::Publish(RawPublish::decode(frame.first, body, version)?.validate()?)
            }
            PacketType::PubAck => Self::PubAck(Ack::decode(kind, body, version)?),
            PacketType::PubRec => Self::PubRec(Ack::decode(kind, body, version)?),
            PacketType::PubRel => Self::PubRel(Ack::decode(kind, body, version)?),
            PacketType::PubComp => Self::PubComp(Ack::decode(kind, body, version)?),
            PacketType::Subscribe => Self::Subscribe(Subscribe::decode(body, version)?),
            PacketType::SubAck => Self::SubAck(SubAck::decode(body, version)?),
            PacketType::Unsubscribe => Self::Unsubscribe(Unsubscribe::decode(body, version)?),
            PacketType::UnsubAck => Self::UnsubAck(UnsubAck::decode(body, version)?),
            PacketType::PingReq | PacketType::PingResp => {
                if !body.is_empty() {
                    return Err(DecodeError::Malformed("ping with a body"));
                }
                if kind == PacketType::PingReq {
                    Self::PingReq
                } else {
                    Self::PingResp
                }
            }
            PacketType::Disconnect => Self::Disconnect(Disconnect::decode(body, version)?),
            PacketType::Auth => Self::Auth(Auth::decode(body, version)?),
        })
    }

    /// Appends the packet in the encoding of `version`. On error `out` is as
    /// before.
    ///
    /// # Errors
    /// See [`EncodeError`].
    pub fn encode(&self, version: Version, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        match self {
            Self::Connect(p) => p.encode(out),
            Self::ConnAck(p) => p.encode(version, out),
            Self::Publish(p) => p.encode(version, out),
            Self::PubAck(p) => p.encode(PacketType::PubAck, version, out),
            Self::PubRec(p) => p.encode(PacketType::PubRec, version, out),
            Self::PubRel(p) => p.encode(PacketType::PubRel, version, out),
            Self::PubComp(p) => p.encode(PacketType::PubComp, version, out),
            Self::Subscribe(p) => p.encode(version, out),
            Self::SubAck(p) => p.encode(version, out),
            Self::Unsubscribe(p) => p.encode(version, out),
            Self::UnsubAck(p) => p.encode(version, out),
            Self::PingReq => {
                out.extend_from_slice(&[0xC0, 0]);
                Ok(())
            }
            Self::PingResp => {
                out.extend_from_slice(&[0xD0, 0]);
                Ok(())
            }
            Self::Disconnect(p) => p.encode(version, out),
            Self::Auth(p) => p.encode(out),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::put_header;
    use crate::{MAX_REMAINING_LENGTH, Properties, QoS};

    const CONNECT: Connect<'static> = Connect {
        version: Version::V5,
        clean_start: true,
        keep_alive: 0,
        client_id: "id",
        will: None,
        username: None,
        password: None,
        properties: Properties::EMPTY,
    };

    fn publish<'a>(topic: &'a str, payload: &'a [u8]) -> Publish<'a> {
        Publish {
            dup: false,
            qos: QoS::AtMostOnce,
            retain: false,
            topic,
            packet_id: 0,
            properties: Properties::EMPTY,
            payload,
        }
    }

    /// Each field that can be too long is refused, and `out` is as before.
    #[test]
    fn failed_encoding_leaves_nothing() {
        let long = "x".repeat(65_536);
        let will = Will {
            topic: &long,
            payload: b"",
            qos: QoS::AtMostOnce,
            retain: false,
            properties: Properties::EMPTY,
        };
        let packets = [
            Packet::Connect(Connect {
                client_id: &long,
                ..CONNECT
            }),
            Packet::Connect(Connect {
                username: Some(&long),
                ..CONNECT
            }),
            Packet::Connect(Connect {
                password: Some(long.as_bytes()),
                ..CONNECT
            }),
            Packet::Connect(Connect {
                will: Some(will),
                ..CONNECT
            }),
            Packet::Publish(publish(&long, b"")),
        ];
        for packet in packets {
            let mut out = b"before".to_vec();
            let result = packet.encode(Version::V5, &mut out);
            assert!(
                matches!(result, Err(EncodeError::FieldTooLong(_))),
                "{result:?}"
            );
            assert_eq!(out, b"before");
        }
        let mut out = b"before".to_vec();
        let options = SubscribeOptions::default();
        let none = Properties::EMPTY;
        assert!(
            Subscribe::put(
                1,
                none,
                &[("a", options), (&long, options)],
                Version::V5,
                &mut out
            )
            .is_err()
        );
        assert!(Unsubscribe::put(1, none, &["a", &long], Version::V5, &mut out).is_err());
        assert_eq!(out, b"before");
    }

    #[test]
    fn remaining_length_has_an_end() {
        // Zeroed pages that nobody touches cost no memory.
        let payload = vec![0; MAX_REMAINING_LENGTH - 2];
        let mut out = b"before".to_vec();
        assert_eq!(
            publish("a", &payload).encode(Version::V311, &mut out),
            Err(EncodeError::PacketTooLong)
        );
        assert_eq!(out, b"before");
        assert_eq!(put_header(&mut out, 0x30, MAX_REMAINING_LENGTH), Ok(()));
        assert_eq!(out, b"before\x30\xFF\xFF\xFF\x7F");
    }

    #[test]
    fn peek_version_needs_only_the_start() {
        assert_eq!(Connect::peek_version(b"\0\x04MQTT\x05"), Some(Version::V5));
        assert_eq!(
            Connect::peek_version(b"\0\x04MQTT\x04"),
            Some(Version::V311)
        );
        assert_eq!(
            Connect::peek_version(b"\0\x06MQIsdp\x03"),
            Some(Version::V31)
        );
        assert_eq!(Connect::peek_version(b"\0\x04MQTT\x06"), None);
        assert_eq!(Connect::peek_version(b"\0\x04MQTT"), None);
        assert_eq!(Connect::peek_version(b""), None);
    }

    #[test]
    fn bridges_before_mqtt_5_say_so_in_the_protocol_level() {
        let bodies: [(&[u8], _, _); 6] = [
            (b"\0\x06MQIsdp\x83", Some(Version::V31), true),
            (b"\0\x04MQTT\x84", Some(Version::V311), true),
            (b"\0\x04MQTT\x04", Some(Version::V311), false),
            (b"\0\x04MQTT\x85", None, false),
            (b"\0\x04MQTT\x83", None, false),
            (b"\0\x06MQIsdp\x84", None, false),
        ];
        for (body, version, is_bridge) in bodies {
            assert_eq!(Connect::peek_version(body), version, "{body:?}");
            assert_eq!(Connect::is_bridge(body), is_bridge, "{body:?}");
        }
        let plain = SubscribeOptions::default();
        let own = plain.of_bridge("a/#");
        assert!(own.no_local && own.retain_as_published);
        let shared = plain.of_bridge("$share/g/a");
        assert!(!shared.no_local && shared.retain_as_published);
    }

    /// What `RawPublish` leaves for later is the topic name, and no more.
    #[test]
    fn raw_publish_checks_the_topic_later() {
        let body = b"\0\x01#\0payload";
        let raw = RawPublish::decode(0x30, body, Version::V5);
        assert_eq!(
            raw.map(|p| (p.topic, p.payload)),
            Ok((&b"#"[..], &b"payload"[..]))
        );
        assert_eq!(
            raw.and_then(RawPublish::validate),
            Err(DecodeError::TopicNameInvalid)
        );
        assert!(RawPublish::decode(0x30, b"\0\x01a\x02\x01\x02", Version::V5).is_err());
    }

    /// 3.1.1 cannot say why; reasons without a return code become 3.
    #[test]
    fn connack_before_mqtt_5() {
        for (reason, code) in [
            (crate::ReasonCode::BadUserNameOrPassword, 4),
            (crate::ReasonCode::Banned, 5),
            (crate::ReasonCode::MalformedPacket, 3),
        ] {
            let connack = ConnAck {
                session_present: false,
                reason,
                properties: Properties::EMPTY,
            };
            let mut out = Vec::new();
            assert_eq!(connack.encode(Version::V311, &mut out), Ok(()));
            assert_eq!(out, [0x20, 2, 0, code]);
        }
    }
}
