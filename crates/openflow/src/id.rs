//! Numbers, addresses and texts that name things in a switch.
//!
//! Source: OpenFlow 1.3.5, section 7.2.1 (ports), 7.3.4 (flow tables), 7.3.4.2 (groups),
//! 7.3.4.4 (meters).

use std::fmt;
use std::str::FromStr;

use crate::wire::{Reader, Result, Wire, numbers};

numbers! {
    /// A port of a switch.
    pub struct PortNo(u32) {
        /// Largest number of a port that exists.
        MAX = 0xffff_ff00, "MAX";
        /// Back out where the packet came in: must be said explicitly.
        IN_PORT = 0xffff_fff8, "IN_PORT";
        /// Through the flow tables; only in a packet-out.
        TABLE = 0xffff_fff9, "TABLE";
        /// As a switch without OpenFlow would forward.
        NORMAL = 0xffff_fffa, "NORMAL";
        /// All ports but the one it came in by and those that do not flood.
        FLOOD = 0xffff_fffb, "FLOOD";
        /// All ports but the one it came in by.
        ALL = 0xffff_fffc, "ALL";
        /// To the controller, or from it.
        CONTROLLER = 0xffff_fffd, "CONTROLLER";
        /// The switch's own network stack.
        LOCAL = 0xffff_fffe, "LOCAL";
        /// No port, or any: a wildcard in requests.
        ANY = 0xffff_ffff, "ANY";
    }

    /// An egress queue of a port.
    pub struct QueueId(u32) {
        /// All queues, in requests.
        ALL = 0xffff_ffff, "ALL";
    }

    /// An entry of the group table.
    pub struct GroupId(u32) {
        /// Largest number of a group that exists.
        MAX = 0xffff_ff00, "MAX";
        /// All groups, in requests to delete or to count.
        ALL = 0xffff_fffc, "ALL";
        /// No group, or any: a wildcard in requests.
        ANY = 0xffff_ffff, "ANY";
    }

    /// An entry of the meter table; the first is 1.
    pub struct MeterId(u32) {
        /// Largest number of a meter that exists.
        MAX = 0xffff_0000, "MAX";
        /// What passes to the controller by the slow path.
        SLOWPATH = 0xffff_fffd, "SLOWPATH";
        /// What passes to the controller.
        CONTROLLER = 0xffff_fffe, "CONTROLLER";
        /// All meters, in requests.
        ALL = 0xffff_ffff, "ALL";
    }

    /// A flow table.
    pub struct TableId(u8) {
        /// Largest number of a table that exists.
        MAX = 0xfe, "MAX";
        /// All tables, in requests to delete or to count.
        ALL = 0xff, "ALL";
    }

    /// A packet that the switch keeps while the controller decides.
    pub struct BufferId(u32) {
        /// Not kept: the message has the packet's bytes.
        NONE = 0xffff_ffff, "NONE";
    }

    /// Matches a reply with its request; chosen by the requester.
    pub struct Xid(u32) {}

    /// Names a bundle on a connection; chosen by the controller.
    pub struct BundleId(u32) {}

    /// The controller's own mark on a flow entry.
    pub struct Cookie(u64) {}
}

/// A switch: its number is unique in the network, by custom 16 bits of the implementer's and a
/// MAC address. Written as sixteen hexadecimal digits, as `ovs-vsctl` does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct DatapathId(pub u64);

impl fmt::Display for DatapathId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl FromStr for DatapathId {
    type Err = ParseIdError;

    fn from_str(text: &str) -> std::result::Result<Self, ParseIdError> {
        let wrong = || ParseIdError {
            what: "datapath id",
            value: text.to_owned(),
            remedy: "1 to 16 hexadecimal digits, such as 00000000000000a1",
        };
        if text.len() > 16 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(wrong());
        }
        u64::from_str_radix(text, 16).map(Self).map_err(|_| wrong())
    }
}

impl Wire for DatapathId {
    fn put(&self, out: &mut Vec<u8>) {
        self.0.put(out);
    }

    fn get(from: &mut Reader<'_>) -> Result<Self> {
        from.get().map(Self)
    }
}

/// An Ethernet address.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Mac(pub [u8; 6]);

impl Mac {
    /// Every station.
    pub const BROADCAST: Self = Self([0xff; 6]);
    /// Where link discovery (LLDP) sends to; switches do not forward it by themselves.
    pub const LLDP: Self = Self([0x01, 0x80, 0xc2, 0x00, 0x00, 0x0e]);

    /// Whether it names a group of stations.
    pub fn is_multicast(self) -> bool {
        self.0[0] & 1 == 1
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
    type Err = ParseIdError;

    fn from_str(text: &str) -> std::result::Result<Self, ParseIdError> {
        let wrong = || ParseIdError {
            what: "Ethernet address",
            value: text.to_owned(),
            remedy: "six pairs of hexadecimal digits, such as 02:00:00:00:00:0a",
        };
        let mut octets = [0; 6];
        let mut pairs = text.split(':');
        for octet in &mut octets {
            let pair = pairs.next().unwrap_or_default();
            if pair.len() != 2 || !pair.bytes().all(|byte| byte.is_ascii_hexdigit()) {
                return Err(wrong());
            }
            *octet = u8::from_str_radix(pair, 16).map_err(|_| wrong())?;
        }
        match pairs.next() {
            None => Ok(Self(octets)),
            Some(_) => Err(wrong()),
        }
    }
}

impl From<[u8; 6]> for Mac {
    fn from(octets: [u8; 6]) -> Self {
        Self(octets)
    }
}

impl Wire for Mac {
    fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.0);
    }

    fn get(from: &mut Reader<'_>) -> Result<Self> {
        from.array().map(Self)
    }
}

/// A text that cannot be read as what it should name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what} `{value}`: write {remedy}")]
pub struct ParseIdError {
    what: &'static str,
    value: String,
    remedy: &'static str,
}

/// A text of at most `N` - 1 bytes, followed by zeros. What follows the first zero is kept but
/// not shown.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Text<const N: usize>(pub [u8; N]);

impl<const N: usize> Text<N> {
    /// Takes as much of `text` as there is room for.
    pub fn new(text: &str) -> Self {
        let mut bytes = [0; N];
        let mut room = text.len().min(N.saturating_sub(1));
        while !text.is_char_boundary(room) {
            room -= 1;
        }
        for (place, byte) in bytes.iter_mut().zip(text.bytes().take(room)) {
            *place = byte;
        }
        Self(bytes)
    }
}

impl<const N: usize> fmt::Display for Text<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.0.split(|&byte| byte == 0).next().unwrap_or_default();
        f.pad(&String::from_utf8_lossy(text))
    }
}

impl<const N: usize> fmt::Debug for Text<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.to_string())
    }
}

impl<const N: usize> Wire for Text<N> {
    fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.0);
    }

    fn get(from: &mut Reader<'_>) -> Result<Self> {
        from.array().map(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserved_numbers_have_names() {
        assert_eq!(PortNo(7).to_string(), "7");
        assert_eq!(PortNo::CONTROLLER.to_string(), "CONTROLLER");
        assert_eq!(format!("{:>4}", TableId::ALL), " ALL");
    }

    #[test]
    fn addresses_and_datapaths_are_read_as_they_are_written() {
        for text in ["02:00:00:00:00:0a", "ff:ff:ff:ff:ff:ff"] {
            assert_eq!(text.parse::<Mac>().unwrap().to_string(), text);
        }
        assert!(Mac::LLDP.is_multicast() && !Mac([2, 0, 0, 0, 0, 1]).is_multicast());
        for wrong in [
            "",
            "1:2:3:4:5:6",
            "+1:00:00:00:00:00",
            "02:00:00:00:00:0a:00",
        ] {
            let said = wrong.parse::<Mac>().unwrap_err().to_string();
            assert!(said.contains("02:00:00:00:00:0a"), "{said}");
        }
        let id = DatapathId(0xa1);
        assert_eq!(id.to_string(), "00000000000000a1");
        assert_eq!(id.to_string().parse(), Ok(id));
        assert!("00000000000000000".parse::<DatapathId>().is_err());
        assert!("+1".parse::<DatapathId>().is_err());
        assert!("".parse::<DatapathId>().is_err());
    }

    #[test]
    fn texts_are_cut_where_a_character_ends() {
        assert_eq!(Text::<4>::new("abcd").to_string(), "abc");
        assert_eq!(Text::<4>::new("abü").to_string(), "ab");
        assert_eq!(Text::<4>(*b"a\0xy").to_string(), "a");
    }
}
