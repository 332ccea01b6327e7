//! From which pages browsers may open WebSockets.
//!
//! Any page may open one to any address that its browser reaches, this machine's included, and the
//! browser sends the page's origin with it (RFC 6455 section 10.2). Clients that are no browsers send
//! none.

use std::net::IpAddr;
use std::sync::Arc;

/// All origins, where it is listed.
const ALL: &str = "*";

/// The pages that may open WebSockets here: those that come from here, and those that are listed.
#[derive(Debug, Clone, Default)]
pub struct Origins {
    /// Such as `https://factory.example`, compared without case; `*` for all.
    pub listed: Arc<[String]>,
    /// Whether a page comes from here, too, that comes from a name which the browser was told leads
    /// here (DNS rebinding), and not from an address or `localhost`. Only for listeners that let
    /// nobody in who does not prove who it is.
    pub names: bool,
}

impl Origins {
    /// Whether a page of that origin may connect that asks for `host`.
    pub(super) fn allow(&self, origin: &str, host: Option<&str>) -> bool {
        let listed = |known: &String| known == ALL || known.eq_ignore_ascii_case(origin);
        self.listed.iter().any(listed) || host.is_some_and(|host| self.is_same(origin, host))
    }

    fn is_same(&self, origin: &str, host: &str) -> bool {
        let (port, authority) = match origin.split_once("://") {
            Some((scheme, rest)) if scheme.eq_ignore_ascii_case("http") => ("80", rest),
            Some((scheme, rest)) if scheme.eq_ignore_ascii_case("https") => ("443", rest),
            _ => return false,
        };
        let (Some(page), Some(here)) = (split(authority), split(host)) else {
            return false;
        };
        page.0.eq_ignore_ascii_case(here.0)
            && page.1.unwrap_or(port) == here.1.unwrap_or(port)
            && (self.names || is_fixed(here.0))
    }
}

/// The name or address, with its brackets, and the port.
fn split(authority: &str) -> Option<(&str, Option<&str>)> {
    let end = authority.rfind(']').map_or(0, |at| at + 1);
    let (host, port) = match authority[end..].split_once(':') {
        Some((rest, port)) => (&authority[..end + rest.len()], Some(port)),
        None => (authority, None),
    };
    let is_port = |port: &str| port.parse::<u16>().is_ok_and(|port| port > 0);
    (!host.is_empty() && port.is_none_or(is_port)).then_some((host, port))
}

/// Whether nobody outside decides where it leads.
fn is_fixed(host: &str) -> bool {
    let address = host.strip_prefix('[').and_then(|it| it.strip_suffix(']'));
    host.eq_ignore_ascii_case("localhost") || address.unwrap_or(host).parse::<IpAddr>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_that_come_from_here_may_connect() {
        let cases = [
            // Origin, Host, whether it may connect, and whether where names count, too.
            ("http://localhost:8083", "localhost:8083", true, true),
            ("http://LOCALHOST:8083", "localhost:8083", true, true),
            ("http://192.0.2.1:8083", "192.0.2.1:8083", true, true),
            (
                "http://[2001:db8::1]:8083",
                "[2001:db8::1]:8083",
                true,
                true,
            ),
            ("http://192.0.2.1", "192.0.2.1", true, true),
            ("https://192.0.2.1", "192.0.2.1:443", true, true),
            ("http://192.0.2.1:80", "192.0.2.1", true, true),
            ("https://factory.example", "factory.example", false, true),
            (
                "http://rebound.example:8083",
                "rebound.example:8083",
                false,
                true,
            ),
            (
                "http://localhost.evil.example",
                "localhost.evil.example",
                false,
                true,
            ),
            ("http://localhost:8080", "localhost:8083", false, false),
            ("http://localhost", "localhost:8083", false, false),
            ("https://evil.example", "localhost:8083", false, false),
            ("https://evil.example", "factory.example", false, false),
            ("null", "null", false, false),
            ("file://", "", false, false),
            ("http://", "", false, false),
            ("http://localhost:x", "localhost:x", false, false),
            ("http://[::1", "[::1", false, false),
            ("ftp://localhost", "localhost", false, false),
        ];
        for (origin, host, allowed, by_name) in cases {
            let mut origins = Origins::default();
            assert_eq!(
                origins.allow(origin, Some(host)),
                allowed,
                "{origin} {host}"
            );
            assert!(!origins.allow(origin, None));
            origins.names = true;
            assert_eq!(
                origins.allow(origin, Some(host)),
                by_name,
                "{origin} {host}"
            );
        }
    }

    #[test]
    fn listed_pages_may_connect() {
        let listed = |origins: &[&str]| Origins {
            listed: origins.iter().map(|origin| (*origin).to_owned()).collect(),
            names: false,
        };
        let one = listed(&["https://factory.example"]);
        assert!(one.allow("HTTPS://Factory.Example", Some("broker:8083")));
        assert!(one.allow("http://127.0.0.1:1", Some("127.0.0.1:1")));
        for other in [
            "http://factory.example",
            "https://factory.example:1",
            "null",
        ] {
            assert!(!one.allow(other, Some("broker:8083")), "{other}");
        }
        assert!(listed(&["*"]).allow("https://evil.example", None));
    }
}
