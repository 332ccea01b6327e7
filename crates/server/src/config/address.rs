//! Where to listen: `tcp://0.0.0.0:1883`, `wss://*:8084/mqtt`, `udp://*:1883`,
//! `quic://*:14567`.
//!
//! Host names stay names until the socket is opened. `*` stands for every
//! address of the machine, IPv4 and IPv6.

use std::fmt;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, ToSocketAddrs};

use super::value::{Scalar, Setting, Unreadable, quote};

/// How the bytes of MQTT packets travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// Plain TCP.
    Tcp,
    /// TLS over TCP.
    Tls,
    /// WebSocket, subprotocol `mqtt`.
    Ws,
    /// WebSocket over TLS.
    Wss,
    /// Datagrams of UDP.
    Udp,
    /// QUIC.
    Quic,
}

/// Spelling and default port. `mqtt` and `mqtts` are read, and written as `tcp`
/// and `tls`.
const SCHEMES: [(&str, Transport, u16); 8] = [
    ("tcp", Transport::Tcp, 1883),
    ("tls", Transport::Tls, 8883),
    ("ws", Transport::Ws, 8083),
    ("wss", Transport::Wss, 8084),
    ("udp", Transport::Udp, 1883),
    ("quic", Transport::Quic, 14567),
    ("mqtt", Transport::Tcp, 1883),
    ("mqtts", Transport::Tls, 8883),
];

impl Transport {
    /// Whether a certificate is needed.
    pub(crate) fn is_encrypted(self) -> bool {
        matches!(self, Self::Tls | Self::Wss | Self::Quic)
    }

    /// Whether its ports are those of UDP.
    pub(crate) fn is_over_udp(self) -> bool {
        matches!(self, Self::Udp | Self::Quic)
    }

    /// Whether the URL has a path.
    pub(crate) fn is_websocket(self) -> bool {
        matches!(self, Self::Ws | Self::Wss)
    }
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tcp => "tcp",
            Self::Tls => "tls",
            Self::Ws => "ws",
            Self::Wss => "wss",
            Self::Udp => "udp",
            Self::Quic => "quic",
        })
    }
}

/// The URL of a listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenAddress {
    /// How bytes travel.
    pub transport: Transport,
    /// Name or IP address (IPv6 without brackets), or `*` for all addresses.
    pub host: String,
    /// Port; 0 lets the system choose a free one.
    pub port: u16,
    /// The only path on which WebSockets are opened; empty for any path, and for
    /// TCP and TLS.
    pub path: String,
}

impl ListenAddress {
    /// Reads a URL; the error says what is wrong with it.
    pub fn parse(url: &str) -> Result<Self, String> {
        let (scheme, rest) = url.split_once("://").ok_or_else(|| {
            format!("the transport is missing; write tcp://{url}, tls://, ws://, wss://, udp:// or quic://")
        })?;
        let (_, transport, default_port) = SCHEMES
            .into_iter()
            .find(|(name, ..)| name.eq_ignore_ascii_case(scheme))
            .ok_or_else(|| {
                format!("{scheme} is not a transport; there are tcp, tls, ws, wss, udp and quic")
            })?;
        let (authority, path) = match rest.find('/') {
            Some(slash) => rest.split_at(slash),
            None => (rest, ""),
        };
        let path = match (transport.is_websocket(), path) {
            (_, "/") => "",
            (false, path) if !path.is_empty() => {
                return Err(format!("a {transport} address has no path ({path})"));
            }
            (_, path) => path,
        };
        let (host, port) = split_port(authority)?;
        let port = match port {
            Some(port) => port
                .parse()
                .map_err(|_| format!("{port} is not a port; a port is a number from 0 to 65535"))?,
            None => default_port,
        };
        Ok(Self {
            transport,
            host: host.into(),
            port,
            path: path.into(),
        })
    }

    /// The socket addresses that this stands for. A name may have several, all
    /// of which are meant. `*` is one: the IPv6 address that takes IPv4 too, or
    /// the IPv4 one on a machine without IPv6.
    ///
    /// # Errors
    ///
    /// The name is unknown to the system's resolver.
    pub fn resolve(&self) -> io::Result<Vec<SocketAddr>> {
        if self.host == "*" {
            let has_ipv6 = TcpListener::bind((Ipv6Addr::UNSPECIFIED, 0)).is_ok();
            return Ok(vec![if has_ipv6 {
                (Ipv6Addr::UNSPECIFIED, self.port).into()
            } else {
                (Ipv4Addr::UNSPECIFIED, self.port).into()
            }]);
        }
        let mut addresses: Vec<_> = (self.host.as_str(), self.port).to_socket_addrs()?.collect();
        addresses.sort_unstable();
        addresses.dedup();
        Ok(addresses)
    }
}

/// Splits `host:port`; the host comes without its brackets.
fn split_port(authority: &str) -> Result<(&str, Option<&str>), String> {
    let (host, port) = if let Some(rest) = authority.strip_prefix('[') {
        let (host, rest) = rest
            .split_once(']')
            .ok_or_else(|| format!("the closing bracket is missing in {authority}"))?;
        host.parse::<Ipv6Addr>()
            .map_err(|_| format!("{host} is not an IPv6 address"))?;
        match rest.strip_prefix(':') {
            None if rest.is_empty() => (host, None),
            None => return Err(format!("a port must follow [{host}], not {rest}")),
            port => (host, port),
        }
    } else {
        match authority.split_once(':') {
            Some((_, rest)) if rest.contains(':') => {
                return Err(format!("write an IPv6 address in brackets: [{authority}]"));
            }
            Some((host, port)) => (host, Some(port)),
            None => (authority, None),
        }
    };
    if host.is_empty() {
        return Err("the host is missing; write * for all addresses of this machine".into());
    }
    let outside = |c: char| !(c.is_alphanumeric() || matches!(c, '.' | '-' | '_' | ':'));
    if host != "*" && host.contains(outside) {
        return Err(format!("{host} is not a host name or an address"));
    }
    Ok((host, port))
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            transport,
            host,
            port,
            path,
        } = self;
        if host.contains(':') {
            write!(f, "{transport}://[{host}]:{port}{path}")
        } else {
            write!(f, "{transport}://{host}:{port}{path}")
        }
    }
}

impl Setting for ListenAddress {
    fn expects() -> String {
        "an address such as \"tcp://0.0.0.0:1883\", \"tls://[::]:8883\", \
         \"ws://*:8083/mqtt\", \"wss://*:8084/mqtt\", \"udp://*:1883\" or \"quic://*:14567\""
            .into()
    }

    fn read(scalar: &Scalar) -> Result<Self, Unreadable> {
        match scalar {
            Scalar::Text(text) | Scalar::Untyped(text) => {
                Self::parse(text).map_err(Unreadable::Because)
            }
            _ => Err(Unreadable::Kind),
        }
    }

    fn show(&self) -> Option<String> {
        Some(quote(&self.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_read_and_show() {
        for (written, shown) in [
            ("tcp://0.0.0.0:1883", "tcp://0.0.0.0:1883"),
            ("tcp://localhost", "tcp://localhost:1883"),
            ("mqtts://broker.example", "tls://broker.example:8883"),
            ("TLS://[::1]", "tls://[::1]:8883"),
            ("ws://*", "ws://*:8083"),
            ("ws://*:80/", "ws://*:80"),
            ("wss://*:443/broker", "wss://*:443/broker"),
            ("tcp://127.0.0.1:0/", "tcp://127.0.0.1:0"),
            ("udp://*", "udp://*:1883"),
            ("quic://*", "quic://*:14567"),
        ] {
            let address = ListenAddress::parse(written).unwrap();
            assert_eq!(address.to_string(), shown);
            assert_eq!(ListenAddress::parse(shown), Ok(address));
        }
    }

    #[test]
    fn wrong_urls_are_refused_with_the_reason() {
        for (written, reason) in [
            ("0.0.0.0:1883", "tcp://0.0.0.0:1883"),
            ("sctp://*:1883", "sctp is not a transport"),
            ("udp://*:1883/mqtt", "no path"),
            ("tcp://:1883", "host is missing"),
            ("tcp://*:65536", "65536 is not a port"),
            ("tcp://*:", " is not a port"),
            ("tcp://*:1883/mqtt", "no path"),
            ("tcp://::1:1883", "in brackets"),
            ("tcp://[::1", "closing bracket"),
            ("tcp://[::1]1883", "a port must follow"),
            ("tcp://[host]:1883", "not an IPv6"),
            ("tcp://a b:1883", "not a host name"),
        ] {
            let error = ListenAddress::parse(written).unwrap_err();
            assert!(error.contains(reason), "{written}: {error}");
        }
    }

    #[test]
    fn a_star_stands_for_all_addresses_and_an_address_for_itself() {
        let resolved = |url: &str| {
            ListenAddress::parse(url)
                .and_then(|address| address.resolve().map_err(|error| error.to_string()))
        };
        let all = resolved("tcp://*:7").unwrap();
        assert_eq!(all.len(), 1);
        assert!(all[0].ip().is_unspecified() && all[0].port() == 7);
        let one = ["[::1]:7".parse().unwrap()];
        assert_eq!(resolved("tcp://[::1]:7").unwrap(), one);
        let one = ["127.0.0.1:7".parse().unwrap()];
        assert_eq!(resolved("tcp://127.0.0.1:7").unwrap(), one);
    }
}
