//! Exit codes as mosquitto's tools have them, and what to do about errors.
//!
//! A refused connection ends with the CONNACK code of its protocol version;
//! other failures with the number libmosquitto has for them.

use std::io;
use std::process::ExitCode;

use punctual_client::{Error, ReasonCode, Version};

/// Anything that has no number of its own.
pub(super) const FAILURE: u8 = 1;
const PROTOCOL: u8 = 2;
const INVALID: u8 = 3;
const CONNECTION_LOST: u8 = 7;
const TLS: u8 = 8;
const KEEP_ALIVE: u8 = 19;
const QOS_NOT_SUPPORTED: u8 = 24;
const PACKET_TOO_LARGE: u8 = 25;
/// `-W` is over.
pub(super) const TIMED_OUT: u8 = 27;
const RETAIN_NOT_SUPPORTED: u8 = 28;
/// Exit status after a second interrupt, as shells report a signal: 128 + SIGINT.
pub(super) const INTERRUPTED: i32 = 130;

/// How a command ends if not well.
#[derive(Debug)]
pub(super) struct Failed {
    pub(super) code: u8,
    /// For standard error, unless `--quiet`.
    pub(super) text: String,
}

impl Failed {
    pub(super) fn new(code: u8, text: impl Into<String>) -> Self {
        Self {
            code,
            text: text.into(),
        }
    }

    /// The command line asks for what cannot be.
    pub(super) fn usage(text: impl Into<String>) -> Self {
        Self::new(FAILURE, text)
    }

    /// What a client's error means to the user of the command.
    pub(super) fn from_client(error: &Error, version: Version) -> Self {
        Self::new(code(error, version), describe(error))
    }
}

/// An error in words, with the flag that helps.
pub(super) fn describe(error: &Error) -> String {
    match remedy(error) {
        Some(remedy) => format!("{error}; {remedy}"),
        None => error.to_string(),
    }
}

fn code(error: &Error, version: Version) -> u8 {
    match error {
        Error::Refused(farewell) if version.is_v5() => farewell.reason.byte(),
        Error::Refused(farewell) => farewell.reason.connack_v3().unwrap_or(FAILURE),
        Error::Disconnected(farewell) if farewell.reason.is_error() => farewell.reason.byte(),
        Error::Disconnected(_) | Error::Lost(_) => CONNECTION_LOST,
        Error::Unsupported(ReasonCode::QosNotSupported) => QOS_NOT_SUPPORTED,
        Error::Unsupported(ReasonCode::RetainNotSupported) => RETAIN_NOT_SUPPORTED,
        Error::Unsupported(ReasonCode::PacketTooLarge) => PACKET_TOO_LARGE,
        Error::PeerMisbehaved { .. } => PROTOCOL,
        Error::ApiMisuse { .. } => INVALID,
        Error::Tls(_) => TLS,
        Error::TimedOut(_) => KEEP_ALIVE,
        _ => FAILURE,
    }
}

fn remedy(error: &Error) -> Option<&'static str> {
    match error {
        Error::Unreachable { source, .. } => match source.kind() {
            io::ErrorKind::ConnectionRefused => {
                Some("no broker listens there: check -h and -p, or start one with `punctual serve`")
            }
            io::ErrorKind::TimedOut => Some("check -h, -p and the firewalls between"),
            _ => None,
        },
        Error::UnknownHost { .. } => Some("check the host after -h"),
        Error::Refused(farewell) => match farewell.reason {
            ReasonCode::NotAuthorized | ReasonCode::BadUserNameOrPassword => {
                Some("give the user with -u and the password with -P")
            }
            ReasonCode::UnsupportedProtocolVersion => Some("try -V 311"),
            ReasonCode::ClientIdentifierNotValid => Some("give another client id with -i"),
            _ => None,
        },
        Error::Unsupported(ReasonCode::PacketTooLarge) => {
            Some("over UDP a message has to fit into a datagram, over TCP not")
        }
        Error::TimedOut(_) => Some("is it an MQTT broker, and is it overloaded?"),
        _ => None,
    }
}

/// The process's exit code for the way a command ended.
pub(super) fn exit(result: Result<(), Failed>, quiet: bool) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failed) => {
            if !quiet && !failed.text.is_empty() {
                super::super::complain(&format_args!("Error: {}", failed.text));
            }
            ExitCode::from(failed.code)
        }
    }
}
