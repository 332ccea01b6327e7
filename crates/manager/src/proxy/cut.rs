//! Cutting a stream into packets of which only the head is looked at: the rest,
//! payloads above all, passes as it comes, in pieces of any size.

use punctual_codec::{PacketType, Version};

/// Largest head that is looked at, bytes; a packet with a larger one passes
/// unread.
pub(crate) const MAX_HEAD: usize = 256 * 1024;

/// How much of a packet is wanted before anything is done with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Want {
    /// Nothing but the fixed header.
    Header,
    /// Everything before the payload of a PUBLISH.
    Publish(Version),
    /// All of it.
    Whole,
}

/// A packet whose head is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Head {
    /// First byte: type and flags.
    pub(crate) first: u8,
    /// Length of the fixed header.
    pub(crate) header: usize,
    /// Length of what was wanted, with the fixed header.
    pub(crate) head: usize,
    /// Length of the packet, with the fixed header.
    pub(crate) total: usize,
    /// Whether `head` is what was wanted; else only the fixed header, because
    /// what was wanted is too large.
    pub(crate) complete: bool,
}

/// What is at the beginning of some bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cut {
    /// More bytes are needed.
    Incomplete,
    /// This is not MQTT.
    Foreign,
    /// A packet.
    Packet(PacketType, Head),
}

/// Looks at what begins at `bytes`.
pub(crate) fn cut(bytes: &[u8], want: impl FnOnce(PacketType) -> Want) -> Cut {
    let Some(&first) = bytes.first() else {
        return Cut::Incomplete;
    };
    let Some(kind) = PacketType::from_first_byte(first) else {
        return Cut::Foreign;
    };
    let (remaining, varint) = match varint(&bytes[1..]) {
        Varint::Value(value, len) => (value, len),
        Varint::Incomplete => return Cut::Incomplete,
        Varint::Malformed => return Cut::Foreign,
    };
    let header = 1 + varint;
    let total = header + remaining;
    let wanted = match want(kind) {
        Want::Header => Some(0),
        Want::Whole => Some(remaining),
        Want::Publish(version) => {
            let body = &bytes[header..bytes.len().min(total)];
            match publish_head(first, body, version) {
                Varint::Value(len, _) if len <= remaining => Some(len),
                // It claims to be longer than it is: the broker's business.
                Varint::Value(..) | Varint::Malformed => None,
                Varint::Incomplete if body.len() == remaining => None,
                Varint::Incomplete if body.len() > MAX_HEAD => None,
                Varint::Incomplete => return Cut::Incomplete,
            }
        }
    };
    let wanted = wanted.filter(|wanted| *wanted <= MAX_HEAD);
    let head = header + wanted.unwrap_or(0);
    if bytes.len() < head {
        return Cut::Incomplete;
    }
    let head = Head {
        first,
        header,
        head,
        total,
        complete: wanted.is_some(),
    };
    Cut::Packet(kind, head)
}

enum Varint {
    Value(usize, usize),
    Incomplete,
    Malformed,
}

/// A variable byte integer (section 1.5.5): its value and its length.
fn varint(bytes: &[u8]) -> Varint {
    let mut value = 0;
    for (at, byte) in bytes.iter().take(4).enumerate() {
        value |= usize::from(byte & 0x7F) << (7 * at);
        if byte & 0x80 == 0 {
            return Varint::Value(value, at + 1);
        }
    }
    match bytes.len() {
        0..4 => Varint::Incomplete,
        _ => Varint::Malformed,
    }
}

/// Length of topic, packet identifier and properties of a PUBLISH.
fn publish_head(first: u8, body: &[u8], version: Version) -> Varint {
    let Some(&[high, low]) = body.first_chunk() else {
        return Varint::Incomplete;
    };
    let packet_id = if first & 0b0110 == 0 { 0 } else { 2 };
    let before = 2 + usize::from(u16::from_be_bytes([high, low])) + packet_id;
    if !version.is_v5() {
        return Varint::Value(before, 0);
    }
    match varint(body.get(before..).unwrap_or_default()) {
        Varint::Value(properties, len) => Varint::Value(before + len + properties, 0),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use punctual_codec::{Packet, Properties, PropertyBuf, Publish, QoS};

    fn publish(payload: &[u8], properties: Properties<'_>) -> Vec<u8> {
        let mut bytes = Vec::new();
        let packet = Publish {
            dup: false,
            qos: QoS::AtLeastOnce,
            retain: false,
            topic: "a/b",
            packet_id: 7,
            properties,
            payload,
        };
        let encoded = Packet::Publish(packet).encode(Version::V5, &mut bytes);
        assert!(encoded.is_ok());
        bytes
    }

    #[test]
    fn the_head_of_a_publish_is_all_but_its_payload() {
        let mut properties = PropertyBuf::new();
        properties.push_user("k", "v").unwrap();
        let bytes = publish(&[9; 1000], properties.as_properties());
        let want = |_| Want::Publish(Version::V5);
        let mut found = None;
        for len in 0..bytes.len() {
            match cut(&bytes[..len], want) {
                Cut::Incomplete => assert_eq!(found, None),
                Cut::Packet(PacketType::Publish, head) => {
                    assert_eq!(head.total, bytes.len());
                    assert_eq!(head.head, bytes.len() - 1000);
                    assert!(head.complete && len >= head.head);
                    found = Some(head);
                }
                other => panic!("{other:?}"),
            }
        }
        assert!(found.is_some());
    }

    #[test]
    fn what_is_too_large_or_wrong_is_not_looked_at() {
        // Properties that claim to be longer than the packet.
        let bytes = [0x30, 5, 0, 1, b'a', 9, 0];
        let Cut::Packet(_, head) = cut(&bytes, |_| Want::Publish(Version::V5)) else {
            panic!("not a packet");
        };
        assert!(!head.complete && head.head == 2 && head.total == 7);
        // A SUBSCRIBE of a megabyte.
        let bytes = [0x82, 0x80, 0x80, 0x40, 0];
        let Cut::Packet(_, head) = cut(&bytes, |_| Want::Whole) else {
            panic!("not a packet");
        };
        assert!(!head.complete && head.head == 4 && head.total == 4 + (1 << 20));
        assert_eq!(cut(&[0x00], |_| Want::Header), Cut::Foreign);
        let endless = [0x30, 0xFF, 0xFF, 0xFF, 0xFF];
        assert_eq!(cut(&endless, |_| Want::Header), Cut::Foreign);
        assert_eq!(cut(&endless[..4], |_| Want::Header), Cut::Incomplete);
    }
}
