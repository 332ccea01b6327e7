//! Where clients are in the network: rules such as `client press-*: h1`,
//! `user line2: h2`, `address 10.0.1.0/24: h3`.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// Whom a rule is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Who {
    /// Clients whose identifier matches; `*` stands for any text.
    Client(String),
    /// Clients of users whose name matches.
    User(String),
    /// Clients whose address begins with these bits.
    Address(IpAddr, u8),
}

/// A rule: who is at which node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlaceRule {
    /// Whom it is about.
    pub who: Who,
    /// The node.
    pub node: String,
}

impl PlaceRule {
    /// Whether it is about a client.
    pub fn is_about(&self, client: &str, user: Option<&str>, address: Option<IpAddr>) -> bool {
        match &self.who {
            Who::Client(pattern) => like(pattern, client),
            Who::User(pattern) => user.is_some_and(|user| like(pattern, user)),
            Who::Address(prefix, bits) => address.is_some_and(|a| begins(a, *prefix, *bits)),
        }
    }
}

impl FromStr for PlaceRule {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // Addresses have colons, node names have none.
        let (who, node) = text
            .rsplit_once(':')
            .ok_or("a place is who, a colon and a node, such as \"client press-*: h1\"")?;
        let (who, node) = (who.trim(), node.trim());
        if node.is_empty() {
            return Err("the node after the colon is missing".into());
        }
        let (kind, what) = who.split_once(' ').unwrap_or((who, ""));
        let what = what.trim();
        if what.is_empty() {
            return Err(format!(
                "{who:?} says nobody; write client ID, user NAME or address PREFIX/BITS"
            ));
        }
        let who = match kind {
            "client" => Who::Client(what.into()),
            "user" => Who::User(what.into()),
            "address" => prefix(what)?,
            _ => {
                return Err(format!(
                    "{kind:?} is unknown; there are client, user and address"
                ));
            }
        };
        Ok(Self {
            who,
            node: node.into(),
        })
    }
}

impl fmt::Display for PlaceRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.who {
            Who::Client(pattern) => write!(f, "client {pattern}: {}", self.node),
            Who::User(pattern) => write!(f, "user {pattern}: {}", self.node),
            Who::Address(prefix, bits) => write!(f, "address {prefix}/{bits}: {}", self.node),
        }
    }
}

fn prefix(text: &str) -> Result<Who, String> {
    let (address, bits) = text
        .split_once('/')
        .map_or((text, None), |(a, b)| (a, Some(b)));
    let address: IpAddr = address
        .parse()
        .map_err(|_| format!("{address:?} is no IP address"))?;
    let most = if address.is_ipv6() { 128 } else { 32 };
    let bits = match bits {
        None => most,
        Some(bits) => bits
            .parse()
            .ok()
            .filter(|bits| *bits <= most)
            .ok_or_else(|| format!("{bits:?} must be a number of bits, 0 to {most}"))?,
    };
    Ok(Who::Address(address, bits))
}

fn begins(address: IpAddr, prefix: IpAddr, bits: u8) -> bool {
    match (address.to_canonical(), prefix) {
        (IpAddr::V4(address), IpAddr::V4(prefix)) => {
            let differ = u32::from(address) ^ u32::from(prefix);
            differ.checked_shr(32 - u32::from(bits)).unwrap_or(0) == 0
        }
        (IpAddr::V6(address), IpAddr::V6(prefix)) => {
            let differ = u128::from(address) ^ u128::from(prefix);
            differ.checked_shr(128 - u32::from(bits)).unwrap_or(0) == 0
        }
        _ => false,
    }
}

/// Whether `text` is like `pattern`, where `*` stands for any text.
fn like(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = text.strip_prefix(first) else {
        return false;
    };
    let Some(last) = parts.next_back() else {
        return rest.is_empty();
    };
    for part in parts {
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    rest.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_read_and_shown() {
        for text in [
            "client press-*: h1",
            "user line 2: h2",
            "address 10.0.1.0/24: h3",
            "address fd00::/8: h4",
        ] {
            let rule: PlaceRule = text.parse().unwrap();
            assert_eq!(rule.to_string(), text);
        }
        for (text, word) in [
            ("h1", "colon"),
            ("client x:", "node"),
            ("client: h1", "nobody"),
            ("host x: h1", "unknown"),
            ("address 10.0.0: h1", "IP address"),
            ("address 10.0.0.0/33: h1", "bits"),
        ] {
            let error = text.parse::<PlaceRule>().unwrap_err();
            assert!(error.contains(word), "{text}: {error}");
        }
    }

    #[test]
    fn stars_stand_for_any_text() {
        for (pattern, text, expected) in [
            ("a", "a", true),
            ("a", "ab", false),
            ("a*", "ab", true),
            ("*b", "ab", true),
            ("a*c*e", "abcde", true),
            ("a*c*e", "abde", false),
            ("*", "", true),
            ("ab*ba", "aba", false),
        ] {
            assert_eq!(like(pattern, text), expected, "{pattern} {text}");
        }
    }

    #[test]
    fn addresses_begin_with_prefixes() {
        let is = |rule: &str, address: &str| {
            let rule: PlaceRule = rule.parse().unwrap();
            rule.is_about("c", None, Some(address.parse().unwrap()))
        };
        assert!(is("address 10.0.1.0/24: h", "10.0.1.255"));
        assert!(!is("address 10.0.1.0/24: h", "10.0.2.0"));
        assert!(is("address 0.0.0.0/0: h", "1.2.3.4"));
        assert!(is("address 10.0.0.1: h", "::ffff:10.0.0.1"));
        assert!(is("address fd00::/8: h", "fd12::1"));
        assert!(!is("address ::/0: h", "1.2.3.4"));
    }
}
