//! Errors, ordered by their cause: the server refused or ended the connection, the peer
//! violated the protocol, the caller misused the interface, or the network failed. Each
//! variant contains enough for a user to act on.

use std::borrow::Cow;
use std::fmt;
use std::io;

use punctual_codec::{DecodeError, EncodeError, Properties, PropertyBuf, PropertyId, ReasonCode};

/// What the server said when it refused or ended a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Farewell {
    /// Why. Return codes of MQTT 3.1.1 appear as the MQTT 5 reason code of the
    /// same meaning.
    pub reason: ReasonCode,
    /// All that it added: Reason String, Server Reference, User Properties.
    pub properties: PropertyBuf,
}

impl Farewell {
    pub(crate) fn new(reason: ReasonCode, properties: Properties<'_>) -> Self {
        Self {
            reason,
            properties: owned(properties),
        }
    }

    /// The server's own words, if it gave some.
    pub fn text(&self) -> Option<&str> {
        let properties = self.properties.as_properties();
        properties.text(PropertyId::ReasonString)
    }

    /// Another server to use, if it named one.
    pub fn server_reference(&self) -> Option<&str> {
        let properties = self.properties.as_properties();
        properties.text(PropertyId::ServerReference)
    }
}

impl fmt::Display for Farewell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.reason.name())?;
        if let Some(text) = self.text() {
            write!(f, " ({text})")?;
        }
        if let Some(server) = self.server_reference() {
            write!(f, "; it refers to server {server}")?;
        }
        Ok(())
    }
}

/// Copies borrowed properties.
pub(crate) fn owned(properties: Properties<'_>) -> PropertyBuf {
    let mut buf = PropertyBuf::new();
    for property in properties.iter() {
        buf.push(property);
    }
    buf
}

/// Why an operation failed or a connection ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The server answered CONNECT with a refusal.
    #[error("the server refused the connection: {0}")]
    Refused(Farewell),
    /// The server sent DISCONNECT.
    #[error("the server ended the connection: {0}")]
    Disconnected(Farewell),
    /// The server has said in CONNACK that it does not do this.
    #[error("the server does not support this: {0}")]
    Unsupported(ReasonCode),
    /// The server sent what MQTT forbids.
    #[error("the server broke the protocol: {what}")]
    PeerMisbehaved {
        /// Reason code the connection was ended with.
        reason: ReasonCode,
        /// The violation.
        what: String,
    },
    /// The caller asked for what MQTT cannot do.
    #[error("{field} {value:?}: {remedy}")]
    ApiMisuse {
        /// Option or argument at fault.
        field: &'static str,
        /// Its value.
        value: String,
        /// What to do instead.
        remedy: Cow<'static, str>,
    },
    /// As many messages are waiting as [`Config::max_queued`] or the output
    /// buffer allows; try again after output was sent or acknowledged.
    ///
    /// [`Config::max_queued`]: crate::Config::max_queued
    #[error("the queue of messages to send is full")]
    Full,
    /// There is no connection.
    #[error("not connected")]
    NotConnected,
    /// The server did not do something in time.
    #[error("time-out: {0}")]
    TimedOut(&'static str),
    /// The host's name has no address.
    #[error("cannot find the host {host:?}: {source}")]
    UnknownHost {
        /// Its name.
        host: String,
        /// What the system says.
        source: io::Error,
    },
    /// No connection could be made.
    #[error("cannot connect to {endpoint}: {source}")]
    Unreachable {
        /// Host and port, or URL.
        endpoint: String,
        /// What the system says.
        source: io::Error,
    },
    /// An address cannot be listened on.
    #[error("cannot listen on {endpoint}: {source}; {}", if_unheard(source))]
    Unheard {
        /// URL.
        endpoint: String,
        /// What the system says.
        source: io::Error,
    },
    /// The connection broke, or the server closed it without a word.
    #[error("the connection was lost: {0}")]
    Lost(#[source] io::Error),
    /// Certificates, keys, or the result of the TLS handshake.
    #[error("TLS: {0}")]
    Tls(String),
}

/// What helps where an address cannot be listened on.
fn if_unheard(source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::AddrInUse => "another program does: end it, or choose another port",
        io::ErrorKind::PermissionDenied => "choose a port from 1024 on",
        _ => "choose an address of this machine",
    }
}

impl Error {
    /// Whether connecting again, unchanged, may help.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Refused(farewell) => matches!(
                farewell.reason,
                ReasonCode::ServerUnavailable
                    | ReasonCode::ServerBusy
                    | ReasonCode::QuotaExceeded
                    | ReasonCode::ConnectionRateExceeded
                    | ReasonCode::UnspecifiedError
            ),
            // A second client with the same identifier took the session; to
            // come back would end *its* connection, and so on for ever.
            Self::Disconnected(farewell) => !matches!(
                farewell.reason,
                ReasonCode::SessionTakenOver
                    | ReasonCode::NotAuthorized
                    | ReasonCode::UseAnotherServer
                    | ReasonCode::ServerMoved
                    | ReasonCode::ProtocolError
                    | ReasonCode::MalformedPacket
            ),
            Self::TimedOut(_)
            | Self::UnknownHost { .. }
            | Self::Unreachable { .. }
            | Self::Lost(_) => true,
            _ => false,
        }
    }

    pub(crate) fn misuse(
        field: &'static str,
        value: impl Into<String>,
        remedy: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self::ApiMisuse {
            field,
            value: value.into(),
            remedy: remedy.into(),
        }
    }

    pub(crate) fn protocol(reason: ReasonCode, what: impl Into<String>) -> Self {
        Self::PeerMisbehaved {
            reason,
            what: what.into(),
        }
    }
}

impl From<DecodeError> for Error {
    fn from(error: DecodeError) -> Self {
        Self::protocol(error.reason(), error.to_string())
    }
}

impl From<EncodeError> for Error {
    fn from(error: EncodeError) -> Self {
        match error {
            EncodeError::FieldTooLong(what) => {
                Self::misuse(what, "", "is longer than the 65535 bytes that MQTT allows")
            }
            _ => Self::misuse(
                "packet",
                "",
                "is longer than the 268435455 bytes that MQTT allows",
            ),
        }
    }
}
