//! A neighbour broker: `gate:1883`, `tls://gate:8883 weight=0.2`.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use super::value::Listed;

/// Where another broker is, and how its distance counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Neighbour {
    /// Host and port, with `tls://` in front if that is wanted.
    pub address: String,
    /// Thousandths by which its round-trip time is scaled.
    weight: u32,
}

/// In front of addresses that are connected by TLS.
const TLS: &str = "tls://";

impl Neighbour {
    /// Host and port.
    pub(crate) fn target(&self) -> &str {
        self.address.strip_prefix(TLS).unwrap_or(&self.address)
    }

    /// The host, an IPv6 address without brackets.
    pub(crate) fn host(&self) -> &str {
        let host = self.target().rsplit_once(':').map_or("", |(host, _)| host);
        host.trim_start_matches('[').trim_end_matches(']')
    }

    /// Whether the connection is to be TLS.
    pub(crate) fn is_tls(&self) -> bool {
        self.address.starts_with(TLS)
    }

    /// Whether others may read what is sent there: it leaves this machine, and not by TLS.
    pub(crate) fn is_exposed(&self) -> bool {
        let host = self.host();
        let is_here = match host.parse::<IpAddr>() {
            Ok(address) => address.to_canonical().is_loopback(),
            Err(_) => host.eq_ignore_ascii_case("localhost"),
        };
        !self.is_tls() && !is_here
    }

    /// By what its round-trip time is scaled; 1 leaves it.
    pub(crate) fn weight(&self) -> f64 {
        f64::from(self.weight) / 1e3
    }
}

impl FromStr for Neighbour {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut words = text.split_whitespace();
        let address = words.next().unwrap_or_default();
        let target = address.strip_prefix(TLS).unwrap_or(address);
        let port = target
            .rsplit_once(':')
            .map(|(host, port)| (host, port.parse::<u16>()));
        match port {
            Some((host, Ok(1..))) if !host.is_empty() && !host.contains('/') => {}
            _ => {
                return Err(
                    "write host and port, such as broker-2:1883 or tls://broker-2:8883".into(),
                );
            }
        }
        let mut weight = 1000;
        for word in words {
            let value = word
                .strip_prefix("weight=")
                .and_then(|value| value.parse::<f64>().ok());
            weight = match value {
                Some(value) if (0.001..=1000.0).contains(&value) => (value * 1e3).round() as u32,
                _ => {
                    return Err(format!(
                        "{word:?}: write weight= and a number from 0.001 to 1000"
                    ));
                }
            };
        }
        Ok(Self {
            address: address.into(),
            weight,
        })
    }
}

impl fmt::Display for Neighbour {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.address)?;
        match self.weight {
            1000 => Ok(()),
            _ => write!(f, " weight={}", self.weight()),
        }
    }
}

impl Listed for Neighbour {
    const EXPECTS: &'static str =
        "a list of brokers such as [\"broker-2:1883\", \"gate:1883 weight=0.2\"]";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_weights_are_read() {
        for text in [
            "a:1883",
            "[::1]:1 weight=0.2",
            "10.0.0.1:65535 weight=1000",
            "tls://b:8883",
        ] {
            let neighbour: Neighbour = text.parse().unwrap();
            assert_eq!(neighbour.to_string(), text);
        }
        let tls: Neighbour = "tls://[::1]:8883".parse().unwrap();
        assert_eq!(
            (tls.host(), tls.target(), tls.is_tls()),
            ("::1", "[::1]:8883", true)
        );
        let wrong = [
            "",
            "a",
            "ssl://a:1",
            "tls://:1",
            ":1",
            "a:0",
            "a:b",
            "a:1 weight=0",
            "a:1 weight=x",
            "a:1 heavy",
        ];
        for text in wrong {
            assert!(text.parse::<Neighbour>().is_err(), "{text}");
        }
    }
}
