//! Where a server is and how to reach it.

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use crate::transport::tls;
use crate::{Error, Marking};

/// What carries the packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Scheme {
    /// TCP; `mqtt://`, `tcp://`. Port 1883.
    #[default]
    Tcp,
    /// TLS over TCP; `mqtts://`, `tls://`, `ssl://`. Port 8883.
    Tls,
    /// WebSocket; `ws://`. Port 8083.
    Ws,
    /// WebSocket over TLS; `wss://`. Port 8084.
    Wss,
    /// UDP, not encrypted; `udp://`. Port 1883. A packet has to fit into a
    /// datagram.
    Udp,
    /// QUIC, with its TLS 1.3; `quic://`. Port 14567.
    Quic,
}

impl Scheme {
    /// The port servers use when none is given.
    pub fn default_port(self) -> u16 {
        match self {
            Self::Tcp | Self::Udp => 1883,
            Self::Tls => 8883,
            Self::Ws => 8083,
            Self::Wss => 8084,
            Self::Quic => 14567,
        }
    }

    /// Whether it is encrypted.
    pub fn is_tls(self) -> bool {
        matches!(self, Self::Tls | Self::Wss | Self::Quic)
    }

    /// Whether it is a WebSocket.
    pub fn is_websocket(self) -> bool {
        matches!(self, Self::Ws | Self::Wss)
    }

    fn name(self) -> &'static str {
        match self {
            Self::Tcp => "mqtt",
            Self::Tls => "mqtts",
            Self::Ws => "ws",
            Self::Wss => "wss",
            Self::Udp => "udp",
            Self::Quic => "quic",
        }
    }
}

/// Versions of TLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum TlsVersion {
    /// TLS 1.2.
    V12,
    /// TLS 1.3.
    V13,
}

/// How to authenticate the server, and the client towards it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TlsOptions {
    /// PEM file with the certificates of trusted authorities.
    pub ca_file: Option<PathBuf>,
    /// Directory with such files, named `*.crt` or `*.pem`.
    pub ca_dir: Option<PathBuf>,
    /// Trust the authorities that the operating system trusts, in addition.
    /// Without `ca_file` and `ca_dir` they are trusted in any case.
    pub os_authorities: bool,
    /// PEM file with the client's certificate and its chain.
    pub cert_file: Option<PathBuf>,
    /// PEM file with the key of that certificate.
    pub key_file: Option<PathBuf>,
    /// Accept a certificate for another host name. The chain is still checked.
    pub insecure: bool,
    /// Name to ask for (SNI) and to find in the certificate, if not the host.
    pub server_name: Option<String>,
    /// Protocol names to offer (ALPN).
    pub alpn: Vec<String>,
    /// The only version to use; both if `None`.
    pub version: Option<TlsVersion>,
}

impl TlsOptions {
    /// Reads the files as a connection would, so that errors in them are found before.
    ///
    /// # Errors
    /// `ApiMisuse` or `Tls`, with the file.
    pub fn check(&self) -> Result<(), Error> {
        tls::client_config(self).map(drop)
    }
}

/// A server's address and how to connect to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// What carries the packets.
    pub scheme: Scheme,
    /// Host name or IP address, an IPv6 address without brackets.
    pub host: String,
    /// TCP or UDP port.
    pub port: u16,
    /// Path of the WebSocket, beginning with a slash.
    pub path: String,
    /// Local address to connect from.
    pub bind: Option<IpAddr>,
    /// For the schemes with TLS.
    pub tls: TlsOptions,
    /// Bytes of the largest datagram over UDP, if not what an Ethernet frame
    /// holds.
    pub max_datagram: Option<u16>,
    /// Whether messages with QoS 0 travel in datagrams (RFC 9221) over QUIC, if
    /// the server can do that: nothing waits for one that was lost. Everything
    /// else, and what does not fit into one, goes by the stream.
    pub datagrams: bool,
    /// Whether the kernel is asked when bytes arrived, so that
    /// [`Delivery::received`](crate::Delivery::received) does not have the time
    /// in it that they waited to be read.
    pub kernel_times: bool,
    /// Marks on the packets sent there, by class.
    pub marking: Marking,
    /// Time for a transport to be ready, from the name look-up (which itself
    /// cannot be interrupted) to the end of the last handshake.
    pub timeout: Duration,
}

impl Default for Endpoint {
    fn default() -> Self {
        Self::new(Scheme::Tcp, "localhost")
    }
}

impl Endpoint {
    /// An endpoint on the default port.
    pub fn new(scheme: Scheme, host: impl Into<String>) -> Self {
        Self {
            scheme,
            host: host.into(),
            port: scheme.default_port(),
            path: "/mqtt".into(),
            bind: None,
            tls: TlsOptions::default(),
            max_datagram: None,
            datagrams: false,
            kernel_times: false,
            marking: Marking::default(),
            timeout: Duration::from_secs(10),
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, port, .. } = self;
        match self.scheme {
            Scheme::Tcp if host.contains(':') => write!(f, "[{host}]:{port}"),
            Scheme::Tcp => write!(f, "{host}:{port}"),
            scheme => {
                let host = match host.contains(':') {
                    true => format!("[{host}]"),
                    false => host.clone(),
                };
                let path = if scheme.is_websocket() {
                    &self.path
                } else {
                    ""
                };
                write!(f, "{}://{host}:{port}{path}", scheme.name())
            }
        }
    }
}

/// A URL taken apart: `scheme://[user[:password]@]host[:port][/rest]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Url {
    /// Scheme, host and port.
    pub endpoint: Endpoint,
    /// User name, percent-decoded.
    pub username: Option<String>,
    /// Password, percent-decoded.
    pub password: Option<String>,
    /// The part after the slash that follows host and port; a topic in mosquitto's
    /// convention.
    pub rest: Option<String>,
}

impl Url {
    /// Takes a URL apart.
    ///
    /// # Errors
    /// [`Error::ApiMisuse`] with the reason.
    pub fn parse(url: &str) -> Result<Self, Error> {
        let wrong = |remedy: &'static str| Error::misuse("URL", url, remedy);
        let Some((scheme, after)) = url.split_once("://") else {
            return Err(wrong(
                "must begin with mqtt://, mqtts://, ws://, wss://, udp:// or quic://",
            ));
        };
        let scheme = match scheme {
            "mqtt" | "tcp" => Scheme::Tcp,
            "mqtts" | "tls" | "ssl" => Scheme::Tls,
            "ws" => Scheme::Ws,
            "wss" => Scheme::Wss,
            "udp" => Scheme::Udp,
            "quic" => Scheme::Quic,
            _ => {
                return Err(wrong(
                    "must begin with mqtt://, mqtts://, ws://, wss://, udp:// or quic://",
                ));
            }
        };
        let (authority, rest) = match after.split_once('/') {
            Some((authority, rest)) => (authority, Some(rest.to_owned())),
            None => (after, None),
        };
        let (user, host_port) = match authority.rsplit_once('@') {
            Some((user, host_port)) => (Some(user), host_port),
            None => (None, authority),
        };
        let (host, port) = match host_port.strip_prefix('[') {
            Some(inner) => {
                let (host, port) = inner
                    .split_once(']')
                    .ok_or_else(|| wrong("the bracket before the IPv6 address is not closed"))?;
                (host, port)
            }
            None => match host_port.find(':') {
                Some(at) => host_port.split_at(at),
                None => (host_port, ""),
            },
        };
        if host.is_empty() {
            return Err(wrong("has no host"));
        }
        let mut endpoint = Endpoint::new(scheme, host);
        if let Some(port) = port.strip_prefix(':') {
            let port = port.parse().ok().filter(|port| *port != 0);
            endpoint.port = port.ok_or_else(|| wrong("the port must be 1 to 65535"))?;
        } else if !port.is_empty() {
            return Err(wrong("has something between host and port"));
        }
        let decode = |text: &str| {
            percent_decode(text)
                .ok_or_else(|| wrong("has a % that is not followed by two hex digits of UTF-8"))
        };
        let (username, password) = match user.map(|user| user.split_once(':').unwrap_or((user, "")))
        {
            Some((name, "")) => (Some(decode(name)?), None),
            Some((name, password)) => (Some(decode(name)?), Some(decode(password)?)),
            None => (None, None),
        };
        Ok(Self {
            endpoint,
            username,
            password,
            rest: rest.filter(|rest| !rest.is_empty()),
        })
    }
}

fn percent_decode(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, tail)) = rest.split_first() {
        if *first == b'%' {
            let hex = std::str::from_utf8(tail.get(..2)?).ok()?;
            bytes.push(u8::from_str_radix(hex, 16).ok()?);
            rest = &tail[2..];
        } else {
            bytes.push(*first);
            rest = tail;
        }
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_come_apart() {
        let url = Url::parse("mqtts://me:p%40ss@[::1]:8884/a/b").unwrap();
        assert_eq!(url.endpoint.scheme, Scheme::Tls);
        assert_eq!(url.endpoint.host, "::1");
        assert_eq!(url.endpoint.port, 8884);
        assert_eq!(url.username.as_deref(), Some("me"));
        assert_eq!(url.password.as_deref(), Some("p@ss"));
        assert_eq!(url.rest.as_deref(), Some("a/b"));
        assert_eq!(url.endpoint.to_string(), "mqtts://[::1]:8884");

        let url = Url::parse("ws://example.org").unwrap();
        assert_eq!(url.endpoint.port, 8083);
        assert_eq!((url.username, url.password, url.rest), (None, None, None));
        assert_eq!(url.endpoint.to_string(), "ws://example.org:8083/mqtt");

        let url = Url::parse("quic://[::1]").unwrap();
        assert_eq!(url.endpoint.port, 14567);
        assert_eq!(url.endpoint.to_string(), "quic://[::1]:14567");

        let url = Url::parse("mqtt://me@host/").unwrap();
        assert_eq!(url.username.as_deref(), Some("me"));
        assert_eq!(url.endpoint.to_string(), "host:1883");
    }

    #[test]
    fn bad_urls_are_refused() {
        for url in [
            "host",
            "http://host",
            "mqtt://",
            "mqtt://:1883",
            "mqtt://host:0",
            "mqtt://host:x",
            "mqtt://[::1",
            "mqtt://[::1]x",
            "mqtt://a%2@host",
            "mqtt://%ff@host",
        ] {
            assert!(
                matches!(Url::parse(url), Err(Error::ApiMisuse { .. })),
                "{url}"
            );
        }
    }
}
