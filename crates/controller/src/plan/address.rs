//! Ethernet addresses.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// An Ethernet address; as text `02:00:00:00:00:01`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Mac(pub [u8; 6]);

impl Mac {
    /// The broadcast address.
    pub const BROADCAST: Self = Self([0xff; 6]);

    /// Whether it is a group address, broadcast included.
    pub fn is_group(self) -> bool {
        self.0[0] & 1 == 1
    }

    /// The address that frames to an IP group have (RFC 1112, RFC 2464).
    pub fn of_group(group: IpAddr) -> Self {
        match group {
            IpAddr::V4(group) => {
                let [_, b, c, d] = group.octets();
                Self([0x01, 0x00, 0x5e, b & 0x7f, c, d])
            }
            IpAddr::V6(group) => {
                let [.., a, b, c, d] = Ipv6Addr::octets(&group);
                Self([0x33, 0x33, a, b, c, d])
            }
        }
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl fmt::Debug for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Mac {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut octets = [0; 6];
        let mut parts = text.split(':');
        let read = octets.iter_mut().all(|octet| {
            let part = parts.next().filter(|part| part.len() == 2);
            let value = part.and_then(|part| u8::from_str_radix(part, 16).ok());
            value.map(|value| *octet = value).is_some()
        });
        match read && parts.next().is_none() {
            true => Ok(Self(octets)),
            false => Err(format!(
                "{text:?} must be six pairs of hexadecimal digits, such as 02:00:00:00:00:01"
            )),
        }
    }
}

impl TryFrom<String> for Mac {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Mac> for String {
    fn from(mac: Mac) -> Self {
        mac.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_they_are_written() {
        for text in ["00:00:00:00:00:00", "02:ab:cd:ef:01:09"] {
            assert_eq!(text.parse::<Mac>().unwrap().to_string(), text);
        }
        for text in [
            "",
            "02:ab:cd:ef:01",
            "02:ab:cd:ef:01:09:0a",
            "2:ab:cd:ef:01:09",
            "+2:ab:cd:ef:01:zz",
        ] {
            assert!(text.parse::<Mac>().unwrap_err().contains("pairs"), "{text}");
        }
    }

    #[test]
    fn groups_have_addresses_of_their_own() {
        let v4 = Mac::of_group([239, 129, 2, 3].into());
        assert_eq!(v4.to_string(), "01:00:5e:01:02:03");
        let v6 = Mac::of_group("ff15::1:203".parse().unwrap());
        assert_eq!(v6.to_string(), "33:33:00:01:02:03");
        assert!(v4.is_group() && v6.is_group() && Mac::BROADCAST.is_group());
        assert!(!Mac([2, 0, 0, 0, 0, 1]).is_group());
    }
}
