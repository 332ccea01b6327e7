//! One end of a connection: `tcp:10.0.0.1:41000`, `udp:[fd00::1]:1883`, and
//! without the port where any is meant.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// What carries the packets of a leg.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[serde(rename_all = "kebab-case")]
pub enum Protocol {
    /// TCP, also below TLS and WebSocket.
    #[default]
    Tcp,
    /// UDP, also below QUIC.
    Udp,
}

impl Protocol {
    /// `tcp` or `udp`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
        }
    }

    /// Number in the IP header.
    pub fn number(self) -> u8 {
        match self {
            Self::Tcp => 6,
            Self::Udp => 17,
        }
    }
}

/// One end of a connection. As text `tcp:ADDRESS[:PORT]`, with brackets around
/// IPv6 addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Peer {
    /// What carries the packets.
    pub protocol: Protocol,
    /// Its address.
    pub address: IpAddr,
    /// Its port; `None` is any.
    pub port: Option<u16>,
}

impl Peer {
    /// An end with a port, TCP.
    pub fn tcp(address: impl Into<IpAddr>, port: u16) -> Self {
        Self {
            protocol: Protocol::Tcp,
            address: address.into(),
            port: Some(port),
        }
    }

    /// An end with a port, UDP.
    pub fn udp(address: impl Into<IpAddr>, port: u16) -> Self {
        Self {
            protocol: Protocol::Udp,
            ..Self::tcp(address, port)
        }
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.protocol.name())?;
        match self.address {
            IpAddr::V4(address) => write!(f, "{address}")?,
            IpAddr::V6(address) => write!(f, "[{address}]")?,
        }
        match self.port {
            Some(port) => write!(f, ":{port}"),
            None => Ok(()),
        }
    }
}

impl FromStr for Peer {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let read = || {
            let (protocol, rest) = text.split_once(':')?;
            let protocol = match protocol {
                "tcp" => Protocol::Tcp,
                "udp" => Protocol::Udp,
                _ => return None,
            };
            let (address, port): (IpAddr, _) = match rest.strip_prefix('[') {
                Some(rest) => {
                    let (address, port) = rest.split_once(']')?;
                    (address.parse::<Ipv6Addr>().ok()?.into(), port)
                }
                None => {
                    let end = rest.find(':').unwrap_or(rest.len());
                    let address = rest[..end].parse::<std::net::Ipv4Addr>().ok()?;
                    (address.into(), &rest[end..])
                }
            };
            let port = match port {
                "" => None,
                port => Some(port.strip_prefix(':')?.parse().ok()?),
            };
            Some(Self {
                protocol,
                address,
                port,
            })
        };
        let problem = || {
            format!(
                "{text:?} must be tcp:ADDRESS:PORT or udp:ADDRESS:PORT, IPv6 in brackets; :PORT may be absent"
            )
        };
        read().ok_or_else(problem)
    }
}

impl TryFrom<String> for Peer {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Peer> for String {
    fn from(peer: Peer) -> Self {
        peer.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_are_read_as_they_are_written() {
        for text in [
            "tcp:10.0.0.1:41000",
            "udp:10.0.0.1",
            "udp:[fd00::1]:1883",
            "tcp:[::1]",
        ] {
            assert_eq!(text.parse::<Peer>().unwrap().to_string(), text);
        }
        assert_eq!(
            "tcp:127.0.0.1:5".parse(),
            Ok(Peer::tcp([127, 0, 0, 1], 5)),
            "the parts"
        );
    }

    #[test]
    fn what_is_no_peer_is_refused_with_the_form() {
        for text in [
            "",
            "tcp:",
            "10.0.0.1:1",
            "tcp:10.0.0:1",
            "sctp:10.0.0.1:1",
            "tcp:10.0.0.1:",
            "tcp:10.0.0.1:65536",
            "tcp:::1:1",
            "tcp:[::1",
            "tcp:[::1]1",
            "tcp:host:1",
        ] {
            let problem = text.parse::<Peer>().unwrap_err();
            assert!(problem.contains("tcp:ADDRESS:PORT"), "{problem}");
        }
    }
}
