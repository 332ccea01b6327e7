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
