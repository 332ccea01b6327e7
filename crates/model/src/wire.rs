//! What a message takes on the wire: the PUBLISH, what carries it, and the
//! Ethernet frames that it fills.
//!
//! Every function gives an upper bound, so that results computed from it are never below
//! the traffic in a network. Sources: MQTT 5.0 section 3.3; RFC 9293 and RFC 7323 (TCP
//! with timestamps); RFC 768; RFC 9000; RFC 8446 and RFC 5246 (TLS records); RFC 6455
//! section 5.2; IEEE 802.3 clauses 3.1 and 4.4.

/// Preamble and start of frame, header, check sequence and gap of an Ethernet
/// frame without VLAN tag, bytes.
pub const ETHERNET: u64 = 8 + 14 + 4 + 12;
/// Payload of Ethernet's smallest frame, bytes.
pub const ETHERNET_LEAST: u64 = 46;
/// Payload of Ethernet's largest ordinary frame, bytes.
pub const ETHERNET_MTU: u32 = 1500;
/// Smallest MTU that is accepted, bytes: IPv4's smallest reassembly buffer.
pub const LEAST_MTU: u32 = 576;

const IPV4: u64 = 20;
const IPV6: u64 = 40;
/// With the timestamps option.
const TCP: u64 = 20 + 12;
const UDP: u64 = 8;
/// Header of a UDP fragment of IPv6.
const IPV6_FRAGMENT: u64 = 8;
/// Header, explicit nonce (TLS 1.2) and tag of a record.
const TLS_RECORD: u64 = 5 + 8 + 16;
const TLS_RECORD_MOST: u64 = 16 << 10;
/// Header of a WebSocket frame with a mask.
const WEBSOCKET: u64 = 14;
/// Token in front of the packets of an MQTT datagram.
const DATAGRAM_TOKEN: u64 = 27;
/// Short header with the longest identifier and packet number, the header of a
/// STREAM frame, and the tag of a QUIC packet (RFC 9000 sections 17.3 and 19.8).
const QUIC: u64 = 1 + 20 + 4 + 1 + 3 * 8 + 16;
/// Datagram that every QUIC path carries (RFC 9000 section 14).
const QUIC_DATAGRAM: u64 = 1200;
/// Subscription identifier, expiry interval and alias that the broker may add
/// for a receiver.
const ADDED: u64 = 5 + 5 + 3;

/// What carries MQTT packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Transport {
    /// TCP.
    #[default]
    Tcp,
    /// TLS over TCP.
    Tls,
    /// WebSocket over TCP.
    WebSocket,
    /// WebSocket over TLS.
    SecureWebSocket,
    /// MQTT in UDP datagrams.
    Udp,
    /// QUIC.
    Quic,
}

/// How a client's packets travel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Carriage {
    /// What carries them.
    pub transport: Transport,
    /// Whether by IPv6.
    pub ipv6: bool,
    /// Payload of a frame, bytes; values below [`LEAST_MTU`] count as [`LEAST_MTU`].
    pub mtu: u32,
}

/// The frames of one message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Frames {
    /// How many, at least one.
    pub count: u64,
    /// Bytes of the largest on the wire, preamble, check sequence and gap
    /// included.
    pub bytes: u64,
}

impl Frames {
    /// One frame of that many bytes on the wire, or several of at most `mtu`
    /// bytes of payload.
    pub fn of_wire_bytes(bytes: u64, mtu: u32) -> Self {
        let most = ETHERNET + u64::from(mtu.max(LEAST_MTU));
        Self {
            count: bytes.div_ceil(most).max(1),
            bytes: bytes.clamp(ETHERNET + ETHERNET_LEAST, most),
        }
    }
}

/// Bytes of a PUBLISH with a topic, properties and a payload of these lengths,
/// with a packet identifier, and with what the broker may add for a receiver.
pub fn publish_bytes(topic: usize, properties: usize, payload: u64) -> u64 {
    let properties = properties as u64 + ADDED;
    let body = 2 + topic as u64 + 2 + varint(properties) + properties + payload;
    1 + varint(body) + body
}

/// The frames that a packet of that many bytes fills.
pub fn frames(packet: u64, carriage: Carriage) -> Frames {
    let mtu = u64::from(carriage.mtu.max(LEAST_MTU));
    let ip = if carriage.ipv6 { IPV6 } else { IPV4 };
    let records = packet.div_ceil(TLS_RECORD_MOST).max(1) * TLS_RECORD;
    // What a frame carries beside a part of `bytes`.
    let (bytes, header, room) = match carriage.transport {
        Transport::Udp => {
            let datagram = DATAGRAM_TOKEN + packet;
            if ip + UDP + datagram <= mtu {
                (datagram, ip + UDP, mtu - ip - UDP)
            } else {
                let header = ip + if carriage.ipv6 { IPV6_FRAGMENT } else { 0 };
                (UDP + datagram, header, (mtu - header) / 8 * 8)
            }
        }
        Transport::Quic => {
            let room = QUIC_DATAGRAM.min(mtu - ip - UDP) - QUIC;
            (packet, ip + UDP + QUIC, room)
        }
        stream => {
            let added = match stream {
                Transport::Tls => records,
                Transport::WebSocket => WEBSOCKET,
                Transport::SecureWebSocket => WEBSOCKET + records,
                Transport::Tcp | Transport::Udp | Transport::Quic => 0,
            };
            (packet + added, ip + TCP, mtu - ip - TCP)
        }
    };
    let most = match carriage.transport {
        // The path may carry more than was counted on.
        Transport::Quic => mtu - header,
        _ => room,
    };
    Frames {
        count: bytes.div_ceil(room).max(1),
        bytes: (header + bytes.min(most)).max(ETHERNET_LEAST) + ETHERNET,
    }
}

/// Bytes of a variable byte integer.
fn varint(value: u64) -> u64 {
    match value {
        0..=127 => 1,
        128..=16_383 => 2,
        16_384..=2_097_151 => 3,
        _ => 4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const V4: Carriage = Carriage {
        transport: Transport::Tcp,
        ipv6: false,
        mtu: ETHERNET_MTU,
    };

    #[test]
    fn a_small_message_is_one_frame() {
        // 1 + 1 + 2 + 4 + 2 + 1 + 13 + 10.
        assert_eq!(publish_bytes(4, 0, 10), 34);
        let frames = frames(34, V4);
        assert_eq!((frames.count, frames.bytes), (1, 34 + 20 + 32 + 38));
    }

    #[test]
    fn a_large_message_fills_frames_of_the_mtu() {
        let full = Frames {
            count: 1,
            bytes: 1538,
        };
        assert_eq!(frames(1448, V4), full);
        assert_eq!(frames(1449, V4), Frames { count: 2, ..full });
        let v6 = Carriage { ipv6: true, ..V4 };
        assert_eq!(frames(1428, v6), full);
        assert_eq!(frames(1429, v6), Frames { count: 2, ..full });
    }

    #[test]
    fn what_is_wrapped_is_larger() {
        let by = |transport| frames(100, Carriage { transport, ..V4 }).bytes;
        let tcp = by(Transport::Tcp);
        assert_eq!(by(Transport::Tls), tcp + 29);
        assert_eq!(by(Transport::WebSocket), tcp + 14);
        assert_eq!(by(Transport::SecureWebSocket), tcp + 43);
        assert_eq!(by(Transport::Udp), tcp - 32 + 8 + 27);
        assert_eq!(by(Transport::Quic), tcp - 32 + 8 + 66);
    }

    #[test]
    fn large_datagrams_are_fragmented() {
        let udp = Carriage {
            transport: Transport::Udp,
            ..V4
        };
        assert_eq!(frames(1445, udp).count, 1);
        assert_eq!(frames(1446, udp).count, 2);
        // 1480 bytes of each fragment, of 8 + 27 + 10 000.
        assert_eq!(frames(10_000, udp).count, 7);
    }

    #[test]
    fn the_smallest_frame_is_84_bytes() {
        assert_eq!(Frames::of_wire_bytes(1, 1500).bytes, 84);
        assert_eq!(
            Frames::of_wire_bytes(1539, 1500),
            Frames {
                count: 2,
                bytes: 1538
            }
        );
    }
}
