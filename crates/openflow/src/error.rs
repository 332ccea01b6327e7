//! What can be wrong with bytes from the peer, and with messages we were asked to encode. Each
//! decoding error has the OpenFlow error that the specification answers it with.

use crate::error_code::{
    BadAction, BadMatch, BadRequest, BundleFailed, ErrorCode, FlowModFailed, GroupModFailed,
    HelloFailed, MeterModFailed, RoleRequestFailed,
};

/// Why bytes are not a valid message. Except for [`Version`](Self::Version), [`TooLong`](
/// Self::TooLong) and [`TooShort`](Self::TooShort) the stream is still in step: the message can
/// be answered with an error and skipped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// Not version 1.3 of the protocol.
    #[error("protocol version {0:#04x} instead of 0x04 (OpenFlow 1.3)")]
    Version(u8),
    /// A message longer than the reader's limit.
    #[error("message of {length} bytes exceeds the limit of {limit}")]
    TooLong {
        /// Announced bytes, header included.
        length: u16,
        /// The reader's limit.
        limit: u16,
    },
    /// The header announces less than a header.
    #[error("message announces a length of {0}, less than its header's 8")]
    TooShort(u16),
    /// A part that is shorter or longer than it must be.
    #[error("length of {0} does not fit")]
    Length(&'static str),
    /// Unknown type of message.
    #[error("unknown message type {0}")]
    Type(u8),
    /// Unknown type of multipart message.
    #[error("unknown multipart type {0}")]
    Multipart(u32),
    /// Unknown command of a flow-mod.
    #[error("unknown flow-mod command {0}")]
    FlowCommand(u32),
    /// Unknown command of a group-mod.
    #[error("unknown group-mod command {0}")]
    GroupCommand(u32),
    /// Unknown type of group.
    #[error("unknown group type {0}")]
    GroupType(u32),
    /// Unknown command of a meter-mod.
    #[error("unknown meter-mod command {0}")]
    MeterCommand(u32),
    /// Unknown type of a meter's band.
    #[error("unknown type of meter band {0}")]
    Band(u32),
    /// Unknown role.
    #[error("unknown controller role {0}")]
    Role(u32),
    /// Unknown reason of a message from the switch.
    #[error("unknown reason {0}")]
    Reason(u32),
    /// Unknown type of a bundle's control message.
    #[error("unknown bundle control type {0}")]
    Bundle(u32),
    /// A message that cannot be part of a bundle.
    #[error("message type {0} cannot be part of a bundle")]
    NotInBundle(u8),
    /// A multipart request in several parts.
    #[error("multipart request in several parts")]
    MoreRequests,
    /// A match that is not a list of fields (OXM).
    #[error("unknown type of match {0}")]
    MatchType(u32),
    /// A field's value does not have the field's length.
    #[error("length of field {0} does not fit")]
    FieldLength(&'static str),
    /// A field that takes no mask has one.
    #[error("field {0} takes no mask")]
    Mask(&'static str),
    /// An action that sets no field, or one with a mask.
    #[error("a set-field action takes one field without mask")]
    SetField,
}

impl DecodeError {
    /// What to answer with (OpenFlow 1.3.5, section 7.4.4).
    pub fn reply(&self) -> ErrorCode {
        match self {
            Self::Version(_) => HelloFailed::Incompatible.into(),
            Self::TooLong { .. } | Self::TooShort(_) | Self::Length(_) => BadRequest::BadLen.into(),
            Self::Type(_) | Self::Reason(_) => BadRequest::BadType.into(),
            Self::Multipart(_) => BadRequest::BadMultipart.into(),
            Self::FlowCommand(_) => FlowModFailed::BadCommand.into(),
            Self::GroupCommand(_) => GroupModFailed::BadCommand.into(),
            Self::GroupType(_) => GroupModFailed::BadType.into(),
            Self::MeterCommand(_) => MeterModFailed::BadCommand.into(),
            Self::Band(_) => MeterModFailed::BadBand.into(),
            Self::Role(_) => RoleRequestFailed::BadRole.into(),
            Self::Bundle(_) => BundleFailed::BadType.into(),
            Self::NotInBundle(_) => BundleFailed::MsgUnsup.into(),
            Self::MoreRequests => BadRequest::MultipartBufferOverflow.into(),
            Self::MatchType(_) => BadMatch::BadType.into(),
            Self::FieldLength(_) => BadMatch::BadLen.into(),
            Self::Mask(_) => BadMatch::BadMask.into(),
            Self::SetField => BadAction::BadSetType.into(),
        }
    }
}

/// Why a message cannot be encoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum EncodeError {
    /// More than a length field of 16 bits can say: split it into several messages.
    #[error("message of {length} bytes exceeds the protocol's 65535: split it")]
    TooLong {
        /// Bytes it would take.
        length: usize,
    },
}
