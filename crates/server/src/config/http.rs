//! Where the HTTP interface is.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

use super::value::{Scalar, Setting, Unreadable, quote};

/// In front of the path of a Unix socket.
const UNIX: &str = "unix:";

/// Address of an HTTP interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HttpAddress {
    /// A TCP port.
    Tcp(SocketAddr),
    /// A Unix socket, of which the system says who connects.
    Unix(PathBuf),
}

impl HttpAddress {
    /// Whether only this machine can reach it.
    pub(crate) fn is_local(&self) -> bool {
        match self {
            Self::Tcp(address) => address.ip().is_loopback(),
            Self::Unix(_) => true,
        }
    }

    /// As an URL, for the log.
    pub(crate) fn url(&self) -> String {
        match self {
            Self::Tcp(address) => format!("http://{address}"),
            Self::Unix(_) => self.to_string(),
        }
    }
}

impl fmt::Display for HttpAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "{UNIX}{}", path.display()),
        }
    }
}

impl FromStr for HttpAddress {
    /// What is expected instead.
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(path) = text.strip_prefix(UNIX) {
            return match path.starts_with('/') {
                true => Ok(Self::Unix(path.into())),
                false => Err("the path of a Unix socket begins with /".into()),
            };
        }
        text.parse().map(Self::Tcp).map_err(|_| Self::expects())
    }
}

impl From<SocketAddr> for HttpAddress {
    fn from(address: SocketAddr) -> Self {
        Self::Tcp(address)
    }
}

impl Setting for HttpAddress {
    fn expects() -> String {
        "an address and a port such as \"127.0.0.1:8080\" or \"[::1]:8080\", or a Unix socket such as \
         \"unix:/run/punctual/http.sock\""
            .into()
    }

    fn read(scalar: &Scalar) -> Result<Self, Unreadable> {
        let text = scalar.text().ok_or(Unreadable::Kind)?;
        text.parse()
            .map_err(|why: String| match text.strip_prefix(UNIX) {
                Some(_) => Unreadable::Because(why),
                None => Unreadable::Kind,
            })
    }

    fn show(&self) -> Option<String> {
        Some(quote(&self.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_and_unix_sockets_are_read_and_shown() {
        for (text, local) in [
            ("127.0.0.1:8080", true),
            ("[::1]:80", true),
            ("10.0.0.1:8080", false),
            ("0.0.0.0:0", false),
            ("unix:/run/a b.sock", true),
        ] {
            let address: HttpAddress = text.parse().unwrap();
            assert_eq!(
                (address.to_string().as_str(), address.is_local()),
                (text, local)
            );
        }
        for text in [
            "",
            "8080",
            "localhost:8080",
            "unix:",
            "unix:run.sock",
            "/run/x",
        ] {
            assert!(text.parse::<HttpAddress>().is_err(), "{text}");
        }
    }
}
