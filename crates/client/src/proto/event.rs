//! What the core reports to its owner.

use punctual_codec::{PropertyBuf, PropertyId, ReasonCode};
use punctual_model::Answer;

use crate::{Delivery, RealTimeProperties as _};

/// Names one publish, subscribe or unsubscribe of a [`Core`](super::Core), to
/// recognise its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(pub(super) u64);

/// Something that happened.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// The server accepted the connection.
    Connected(Connected),
    /// A message arrived. It counts as received from now on: its PUBACK or
    /// PUBREC is in the output.
    Message(Delivery),
    /// A message with QoS 1 or 2 was acknowledged to its end, or will never
    /// be: then the reason is an error.
    Published {
        /// The message, as named by the publish.
        token: Token,
        /// What the server said. After a lost session,
        /// `PacketIdentifierNotFound` for a message with QoS 2 whose fate is
        /// unknown: the server took it and then forgot the session.
        reason: ReasonCode,
        /// Reason String and User Properties.
        properties: PropertyBuf,
    },
    /// The server answered a subscribe.
    Subscribed {
        /// The request.
        token: Token,
        /// One a filter, in order; errors among them are refusals.
        reasons: Vec<ReasonCode>,
        /// Reason String and User Properties.
        properties: PropertyBuf,
    },
    /// The server answered an unsubscribe.
    Unsubscribed {
        /// The request.
        token: Token,
        /// One a filter, in order; empty before MQTT 5.
        reasons: Vec<ReasonCode>,
        /// Reason String and User Properties.
        properties: PropertyBuf,
    },
    /// The server sent AUTH; answer with [`Core::auth`](super::Core::auth).
    Auth {
        /// Continue or re-authentication done.
        reason: ReasonCode,
        /// Authentication Method and Data, Reason String, User Properties.
        properties: PropertyBuf,
    },
}

impl Event {
    /// What the server says to the requirements of the connection, the message
    /// or the subscription, if it says something.
    pub fn answer(&self) -> Option<Answer> {
        match self {
            Self::Connected(Connected { properties, .. })
            | Self::Published { properties, .. }
            | Self::Subscribed { properties, .. } => properties.answer(),
            _ => None,
        }
    }
}

/// What the server said in CONNACK.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Connected {
    /// Whether the server had the session. If not, subscriptions are gone.
    pub session_present: bool,
    /// The client identifier in use: the configured or the assigned one.
    pub client_id: String,
    /// Properties of CONNACK; empty before MQTT 5.
    pub properties: PropertyBuf,
}

impl Connected {
    /// The server's bound or choice for a numeric property, if it gave one.
    pub fn number(&self, id: PropertyId) -> Option<u32> {
        self.properties.as_properties().number(id)
    }
}
