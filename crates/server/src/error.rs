//! Why a server does not start.

use std::error;
use std::fmt;
use std::io;

use punctual_net::StartError;
use punctual_net::tls::TlsError;

use crate::config::Problems;

/// Why a server does not start, or does not take new settings.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// The configuration is wrong: a line for each mistake, with its key, its value and the remedy.
    Config(Problems),
    /// A setting does not fit this machine, or a file that it names is wrong: key, value and remedy.
    Setting(String),
    /// A certificate or a private key cannot be used.
    Tls(TlsError),
    /// A listener cannot be opened, or the store cannot be read.
    Start(StartError),
    /// The operating system refuses something: a socket, a thread, a signal handler.
    System(io::Error),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Config(problems) => problems.fmt(f),
            Self::Setting(why) => why.fmt(f),
            Self::Tls(error) => error.fmt(f),
            Self::Start(error) => error.fmt(f),
            Self::System(error) => error.fmt(f),
        }
    }
}

impl error::Error for Error {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        match self {
            Self::Config(problems) => problems.source(),
            Self::Setting(_) => None,
            Self::Tls(error) => error.source(),
            Self::Start(error) => error.source(),
            Self::System(error) => error.source(),
        }
    }
}

impl From<Problems> for Error {
    fn from(problems: Problems) -> Self {
        Self::Config(problems)
    }
}

impl From<String> for Error {
    fn from(why: String) -> Self {
        Self::Setting(why)
    }
}

impl From<&str> for Error {
    fn from(why: &str) -> Self {
        Self::Setting(why.into())
    }
}

impl From<TlsError> for Error {
    fn from(error: TlsError) -> Self {
        Self::Tls(error)
    }
}

impl From<StartError> for Error {
    fn from(error: StartError) -> Self {
        Self::Start(error)
    }
}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Self {
        Self::System(error)
    }
}
