//! Where a server is: `unix:/run/openvswitch/db.sock`, `tcp:10.0.0.1:6641`,
//! `ssl:db.example:6642`; and how it is to be trusted.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// A server.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Endpoint {
    /// A socket of this machine.
    Unix(PathBuf),
    /// TCP.
    Tcp(Address),
    /// TLS over TCP.
    Ssl(Address),
}

/// A host and a port.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Address {
    /// Name or IP address, without brackets.
    pub host: String,
    /// Port.
    pub port: u16,
}

/// Port of OVSDB where none is given.
const PORT: u16 = 6640;

/// What names no server.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} names no server: write unix:PATH, tcp:HOST:PORT or ssl:HOST:PORT")]
pub struct EndpointError(String);

impl Endpoint {
    /// Reads a list with commas.
    ///
    /// # Errors
    /// The first that names no server.
    pub fn parse_list(text: &str) -> Result<Vec<Self>, EndpointError> {
        text.split(',').map(|one| one.trim().parse()).collect()
    }

    /// Whether certificates are needed.
    pub fn is_tls(&self) -> bool {
        matches!(self, Self::Ssl(_))
    }
}

impl FromStr for Endpoint {
    type Err = EndpointError;

    fn from_str(text: &str) -> Result<Self, EndpointError> {
        let wrong = || EndpointError(text.to_owned());
        let (scheme, rest) = text.split_once(':').ok_or_else(wrong)?;
        match scheme {
            "unix" if !rest.is_empty() => Ok(Self::Unix(rest.into())),
            "tcp" => rest.parse().map(Self::Tcp).map_err(|()| wrong()),
            "ssl" => rest.parse().map(Self::Ssl).map_err(|()| wrong()),
            _ => Err(wrong()),
        }
    }
}

impl FromStr for Address {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (host, port) = match text.strip_prefix('[') {
            Some(rest) => {
                let (host, port) = rest.split_once(']').ok_or(())?;
                host.parse::<std::net::Ipv6Addr>().map_err(|_| ())?;
                match port {
                    "" => (host, None),
                    port => (host, Some(port.strip_prefix(':').ok_or(())?)),
                }
            }
            None => match text.split_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (text, None),
            },
        };
        let port = match port {
            Some(port) => port.parse().ok().filter(|port| *port != 0).ok_or(())?,
            None => PORT,
        };
        if host.is_empty() {
            return Err(());
        }
        Ok(Self {
            host: host.to_owned(),
            port,
        })
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Tcp(address) => write!(f, "tcp:{address}"),
            Self::Ssl(address) => write!(f, "ssl:{address}"),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "[{}]:{}", self.host, self.port),
            false => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

/// Certificates, PEM files. TLS 1.3 only.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsOptions {
    /// The trusted certificate authorities.
    pub ca: PathBuf,
    /// Own certificate, which names this client.
    pub certificate: PathBuf,
    /// Its key.
    pub key: PathBuf,
    /// Whether the name in the server's certificate has to be that of the
    /// endpoint. Certificates made by `ovs-pki` carry no such name.
    pub check_name: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_read_as_they_are_written() {
        for text in [
            "unix:/run/db.sock",
            "tcp:10.0.0.1:6641",
            "tcp:[::1]:6641",
            "ssl:db.example:6642",
        ] {
            assert_eq!(text.parse::<Endpoint>().unwrap().to_string(), text);
        }
        let default = "ssl:[fd00::1]".parse::<Endpoint>().unwrap();
        assert_eq!(default.to_string(), "ssl:[fd00::1]:6640");
        let list = Endpoint::parse_list("tcp:a:1, tcp:b:2").unwrap();
        assert_eq!(list.len(), 2);
    }

    #[test]
    fn what_names_no_server_is_refused() {
        for text in [
            "",
            "tcp",
            "unix:",
            "tcp::1",
            "tcp:a:0",
            "tcp:a:x",
            "udp:a:1",
            "tcp:[x]:1",
            "tcp:[::1]1",
            "tcp:a:1,",
        ] {
            assert!(Endpoint::parse_list(text).is_err(), "{text}");
        }
    }
}
