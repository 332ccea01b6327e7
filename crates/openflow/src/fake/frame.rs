//! Frames as a switch sees them: where fields lie, how they are rewritten.
//!
//! Invariant: a field that a frame does not have is neither read nor written, whatever the
//! frame's bytes say about themselves. Checksums that cover a rewritten field are corrected by
//! the difference (RFC 1624), so a wrong one stays wrong. One VLAN tag is looked into, as Open
//! vSwitch does unless told otherwise, and those that the switch has put before it.

use crate::matching::{ETH_ARP, ETH_IPV4, ETH_IPV6, ETH_VLAN, IP_ICMP, IP_ICMPV6, IP_TCP, IP_UDP};
use crate::oxm::{FieldKind, OxmField, VLAN_PRESENT};

/// Ethernet type of a service tag (802.1ad).
pub(super) const ETH_QINQ: u16 = 0x88a8;
/// What stands for the Ethernet type of a frame that has a length there instead.
const NO_ETH_TYPE: u16 = 0x05ff;
/// IPv6 headers that are skipped to find the transport's.
const MAX_EXTENSIONS: usize = 8;

/// Where a frame's headers are.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layers {
    tagged: bool,
    eth_type: u16,
    network: usize,
    transport: Option<Transport>,
}

#[derive(Clone, Copy, Debug)]
struct Transport {
    proto: u8,
    /// `None` in a later fragment or if the frame ends before.
    at: Option<usize>,
}

/// Where a field is.
enum Place {
    Bytes {
        at: usize,
        length: usize,
    },
    /// `bits` of a big-endian number, `shift` from its end.
    Bits {
        at: usize,
        length: usize,
        shift: u32,
        bits: u32,
    },
}

impl Layers {
    /// Of a frame as it comes. `None` for what is shorter than an Ethernet header.
    #[cfg(test)]
    pub(super) fn of(frame: &[u8]) -> Option<Self> {
        Self::behind(frame, Tags::of(frame))
    }

    /// Behind these tags.
    pub(super) fn behind(frame: &[u8], tags: Tags) -> Option<Self> {
        let tagged = tags.0 > 0;
        let at = 12 + 4 * tags.0;
        let eth_type = match word(frame, at)? {
            length if length < 0x600 => NO_ETH_TYPE,
            eth_type => eth_type,
        };
        let network = at + 2;
        let transport = match eth_type {
            ETH_IPV4 => transport_of_v4(frame, network),
            ETH_IPV6 => transport_of_v6(frame, network),
            _ => None,
        };
        Some(Self {
            tagged,
            eth_type,
            network,
            transport,
        })
    }

    fn is_v4(&self) -> bool {
        self.eth_type == ETH_IPV4 && self.transport.is_some()
    }

    fn is_v6(&self) -> bool {
        self.eth_type == ETH_IPV6 && self.transport.is_some()
    }

    fn transport(&self, proto: u8) -> Option<usize> {
        self.transport
            .filter(|transport| transport.proto == proto)
            .and_then(|transport| transport.at)
    }

    /// Where the field is, if the frame has it at one place.
    fn place(&self, frame: &[u8], kind: FieldKind) -> Option<Place> {
        use FieldKind as Kind;
        let net = self.network;
        let (v4, v6, arp) = (self.is_v4(), self.is_v6(), self.eth_type == ETH_ARP);
        let bytes = |at, length| Some(Place::Bytes { at, length });
        let bits = |at, length, shift, bits| {
            Some(Place::Bits {
                at,
                length,
                shift,
                bits,
            })
        };
        match kind {
            Kind::EthDst => bytes(0, 6),
            Kind::EthSrc => bytes(6, 6),
            Kind::VlanVid if self.tagged => bits(14, 2, 0, 0xfff),
            Kind::VlanPcp if self.tagged => bits(14, 1, 5, 7),
            Kind::IpDscp if v4 => bits(net + 1, 1, 2, 0x3f),
            Kind::IpDscp if v6 => bits(net, 2, 6, 0x3f),
            Kind::IpEcn if v4 => bits(net + 1, 1, 0, 3),
            Kind::IpEcn if v6 => bits(net, 2, 4, 3),
            Kind::Ipv4Src if v4 => bytes(net + 12, 4),
            Kind::Ipv4Dst if v4 => bytes(net + 16, 4),
            Kind::Ipv6Src if v6 => bytes(net + 8, 16),
            Kind::Ipv6Dst if v6 => bytes(net + 24, 16),
            Kind::Ipv6Flabel if v6 => bits(net, 4, 0, 0xf_ffff),
            Kind::ArpOp if arp => bytes(net + 6, 2),
            Kind::ArpSha if arp => bytes(net + 8, 6),
            Kind::ArpSpa if arp => bytes(net + 14, 4),
            Kind::ArpTha if arp => bytes(net + 18, 6),
            Kind::ArpTpa if arp => bytes(net + 24, 4),
            Kind::TcpSrc => bytes(self.transport(IP_TCP)?, 2),
            Kind::TcpDst => bytes(self.transport(IP_TCP)? + 2, 2),
            Kind::UdpSrc => bytes(self.transport(IP_UDP)?, 2),
            Kind::UdpDst => bytes(self.transport(IP_UDP)? + 2, 2),
            Kind::SctpSrc => bytes(self.transport(crate::IP_SCTP)?, 2),
            Kind::SctpDst => bytes(self.transport(crate::IP_SCTP)? + 2, 2),
            Kind::Icmpv4Type if v4 => bytes(self.transport(IP_ICMP)?, 1),
            Kind::Icmpv4Code if v4 => bytes(self.transport(IP_ICMP)? + 1, 1),
            Kind::Icmpv6Type if v6 => bytes(self.transport(IP_ICMPV6)?, 1),
            Kind::Icmpv6Code if v6 => bytes(self.transport(IP_ICMPV6)? + 1, 1),
            Kind::Ipv6NdTarget if v6 => bytes(self.neighbour(frame)? + 8, 16),
            Kind::Ipv6NdSll if v6 => bytes(self.neighbour_option(frame, 135, 1)?, 6),
            Kind::Ipv6NdTll if v6 => bytes(self.neighbour_option(frame, 136, 2)?, 6),
            _ => None,
        }
        .filter(|place| place.end() <= frame.len())
    }

    /// Where neighbour discovery's message begins.
    fn neighbour(&self, frame: &[u8]) -> Option<usize> {
        let at = self.transport(IP_ICMPV6)?;
        matches!(frame.get(at), Some(135 | 136)).then_some(at)
    }

    /// Where the link address is in the option of that type of the message of that type.
    fn neighbour_option(&self, frame: &[u8], message: u8, option: u8) -> Option<usize> {
        let start = self.neighbour(frame)?;
        if frame.get(start) != Some(&message) {
            return None;
        }
        let mut at = start + 24;
        loop {
            let &[kind, eights] = frame.get(at..at + 2)?.first_chunk()?;
            match (kind == option, eights) {
                (_, 0) => return None,
                (true, _) => return Some(at + 2),
                _ => at += usize::from(eights) * 8,
            }
        }
    }

    /// The value of a field of the frame, encoded as in an OXM match.
    pub(super) fn read(&self, frame: &[u8], kind: FieldKind) -> Option<Vec<u8>> {
        match kind {
            FieldKind::EthType => return Some(self.eth_type.to_be_bytes().to_vec()),
            FieldKind::IpProto => return Some(vec![self.transport?.proto]),
            FieldKind::VlanVid if !self.tagged => return Some(vec![0, 0]),
            _ => {}
        }
        match self.place(frame, kind)? {
            Place::Bytes { at, length } => frame.get(at..at + length).map(<[u8]>::to_vec),
            Place::Bits {
                at,
                length,
                shift,
                bits,
            } => {
                let mut value = (number(frame.get(at..at + length)?) >> shift) & bits;
                if kind == FieldKind::VlanVid {
                    value |= u32::from(VLAN_PRESENT);
                }
                let value = value.to_be_bytes();
                value.get(4 - kind.length()?..).map(<[u8]>::to_vec)
            }
        }
    }

    /// Gives the field a value if the frame has it, and corrects checksums.
    pub(super) fn write(&self, frame: &mut [u8], field: &OxmField) {
        let kind = field.kind();
        let value = field.bytes().0;
        let Some(place) = self.place(frame, kind) else {
            return;
        };
        let (at, new) = match place {
            Place::Bytes { at, .. } => (at, value),
            Place::Bits {
                at,
                length,
                shift,
                bits,
            } => {
                let old = frame.get(at..at + length).map_or(0, number);
                let new = old & !(bits << shift) | (number(&value) & bits) << shift;
                let new = new.to_be_bytes();
                (at, new.get(4 - length..).unwrap_or_default().to_vec())
            }
        };
        self.patch(frame, kind, at, &new);
    }

    /// The time to live of IP.
    pub(super) fn ttl(&self, frame: &[u8]) -> Option<u8> {
        frame.get(self.ttl_place()?).copied()
    }

    pub(super) fn set_ttl(&self, frame: &mut [u8], ttl: u8) {
        if let Some(at) = self.ttl_place() {
            self.patch(frame, FieldKind::IpEcn, at, &[ttl]);
        }
    }

    fn ttl_place(&self) -> Option<usize> {
        match (self.is_v4(), self.is_v6()) {
            (true, _) => Some(self.network + 8),
            (_, true) => Some(self.network + 7),
            _ => None,
        }
    }

    /// Replaces bytes of a field and corrects the checksums over it.
    fn patch(&self, frame: &mut [u8], kind: FieldKind, at: usize, new: &[u8]) {
        use FieldKind as Kind;
        let header = self.is_v4().then_some(self.network + 10);
        let transport = self.checksum(frame);
        let sums = match kind {
            Kind::IpDscp | Kind::IpEcn => [header, None],
            Kind::Ipv4Src | Kind::Ipv4Dst => {
                // ICMP does not cover the addresses.
                let covered = self.transport(IP_ICMP).is_none();
                [header, transport.filter(|_| covered)]
            }
            Kind::EthDst | Kind::EthSrc | Kind::VlanVid | Kind::VlanPcp => [None, None],
            Kind::Ipv6Flabel => [None, None],
            Kind::ArpOp | Kind::ArpSha | Kind::ArpSpa | Kind::ArpTha | Kind::ArpTpa => [None, None],
            _ => [None, transport],
        };
        // All headers begin at even distances from the network header.
        let start = at - (at.abs_diff(self.network) % 2);
        let end = at + new.len();
        let end = (end + end.abs_diff(start) % 2).min(frame.len());
        let old = frame.get(start..end).map_or(0, sum);
        if let Some(place) = frame.get_mut(at..at + new.len()) {
            place.copy_from_slice(new);
        }
        let new = frame.get(start..end).map_or(0, sum);
        let udp = self.transport(IP_UDP).map(|at| at + 6);
        for place in sums.into_iter().flatten() {
            let Some(before) = word(frame, place) else {
                continue;
            };
            if Some(place) == udp && before == 0 {
                continue;
            }
            let after = match !fold(u64::from(!before) + u64::from(!fold(old)) + new) {
                0 if Some(place) == udp => 0xffff,
                after => after,
            };
            if let Some(bytes) = frame.get_mut(place..place + 2) {
                bytes.copy_from_slice(&after.to_be_bytes());
            }
        }
    }

    /// Where the transport's checksum is.
    fn checksum(&self, frame: &[u8]) -> Option<usize> {
        let transport = self.transport?;
        let offset = match transport.proto {
            IP_TCP => 16,
            IP_UDP => 6,
            IP_ICMP | IP_ICMPV6 => 2,
            _ => return None,
        };
        Some(transport.at? + offset).filter(|at| at + 2 <= frame.len())
    }
}

impl Place {
    fn end(&self) -> usize {
        match self {
            Self::Bytes { at, length } | Self::Bits { at, length, .. } => at + length,
        }
    }
}

fn transport_of_v4(frame: &[u8], at: usize) -> Option<Transport> {
    let header = frame.get(at..at + 20)?;
    let first = *header.first()?;
    let length = usize::from(first & 0xf) * 4;
    if first >> 4 != 4 || length < 20 || frame.len() < at + length {
        return None;
    }
    let fragment = word(header, 6)? & 0x1fff != 0;
    Some(Transport {
        proto: *header.get(9)?,
        at: (!fragment).then_some(at + length),
    })
}

fn transport_of_v6(frame: &[u8], at: usize) -> Option<Transport> {
    let header = frame.get(at..at + 40)?;
    if header.first()? >> 4 != 6 {
        return None;
    }
    let (mut proto, mut at) = (*header.get(6)?, at + 40);
    for _ in 0..MAX_EXTENSIONS {
        let Some(&[next, length]) = frame.get(at..).and_then(<[u8]>::first_chunk) else {
            return Some(Transport { proto, at: None });
        };
        match proto {
            0 | 43 | 60 => at += (usize::from(length) + 1) * 8,
            44 => {
                if word(frame, at + 2)? & 0xfff8 != 0 {
                    return Some(Transport {
                        proto: next,
                        at: None,
                    });
                }
                at += 8;
            }
            51 => at += (usize::from(length) + 2) * 4,
            _ => break,
        }
        proto = next;
    }
    let at = Some(at);
    Some(Transport { proto, at })
}

/// The tags of a frame that the switch knows of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tags(usize);

impl Tags {
    /// No tags.
    pub(super) const NONE: Self = Self(0);
    /// As many as Open vSwitch puts before each other.
    pub(super) const MAX: usize = 2;

    /// Of a frame as it comes.
    pub(super) fn of(frame: &[u8]) -> Self {
        let is_tagged = matches!(word(frame, 12), Some(ETH_VLAN | ETH_QINQ)) && frame.len() >= 18;
        Self(usize::from(is_tagged))
    }

    /// Adds a tag with number and priority 0. If that is one too many, the inner one goes.
    pub(super) fn push(&mut self, frame: &mut Vec<u8>, eth_type: u16) {
        if frame.len() < 14 + 4 * self.0 {
            return;
        }
        if self.0 == Self::MAX {
            frame.drain(16..20);
        } else {
            self.0 += 1;
        }
        let [high, low] = eth_type.to_be_bytes();
        frame.splice(12..12, [high, low, 0, 0]);
    }

    /// Removes the outer tag.
    pub(super) fn pop(&mut self, frame: &mut Vec<u8>) {
        if self.0 > 0 && frame.len() >= 16 {
            frame.drain(12..16);
            self.0 -= 1;
        }
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u16> {
    let bytes = bytes.get(at..at + 2)?;
    bytes.try_into().ok().map(u16::from_be_bytes)
}

fn number(bytes: &[u8]) -> u32 {
    bytes
        .iter()
        .fold(0, |number, byte| number << 8 | u32::from(*byte))
}

/// Sum of 16-bit words; a last odd byte counts as if a 0 followed.
fn sum(bytes: &[u8]) -> u64 {
    bytes
        .chunks(2)
        .map(|pair| match pair {
            [high, low] => u64::from(u16::from_be_bytes([*high, *low])),
            _ => u64::from(pair.first().copied().unwrap_or(0)) << 8,
        })
        .sum()
}

/// The sum in ones' complement.
fn fold(mut sum: u64) -> u16 {
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Mac;
    use crate::fake::example;
    use std::net::{Ipv4Addr, Ipv6Addr};

    /// Whether the checksums of a frame are right: summed with what they cover they give 0.
    fn is_sound(frame: &[u8]) -> bool {
        let layers = Layers::of(frame).unwrap();
        let net = layers.network;
        let at = layers.transport.unwrap().at.unwrap();
        let addresses = if layers.is_v4() {
            if fold(sum(&frame[net..at])) != 0xffff {
                return false;
            }
            net + 12..net + 20
        } else {
            net + 8..net + 40
        };
        let proto = layers.transport.unwrap().proto;
        let pseudo = match proto {
            IP_ICMP => 0,
            _ => sum(&frame[addresses]) + u64::from(proto) + (frame.len() - at) as u64,
        };
        fold(pseudo + sum(&frame[at..])) == 0xffff
    }

    #[test]
    fn rewriting_keeps_checksums_right() {
        use OxmField as F;
        let v4 = Ipv4Addr::new(192, 168, 7, 201);
        let v6 = Ipv6Addr::new(0xfd00, 1, 2, 3, 4, 5, 6, 7);
        let fields = [
            F::EthDst(Mac([2, 3, 4, 5, 6, 7]).into()),
            F::VlanPcp(7),
            F::VlanVid((VLAN_PRESENT | 77).into()),
            F::IpDscp(46),
            F::IpEcn(1),
            F::Ipv4Src(v4.into()),
            F::Ipv4Dst(v4.into()),
            F::Ipv6Src(v6.into()),
            F::Ipv6Dst(v6.into()),
            F::Ipv6Flabel(0xabcde.into()),
            F::TcpSrc(1.into()),
            F::TcpDst(0xfffe.into()),
            F::UdpSrc(1.into()),
            F::UdpDst(0xfffe.into()),
            F::Icmpv4Type(8),
            F::Icmpv4Code(3),
            F::Icmpv6Type(129),
        ];
        let mut rewritten = 0;
        for tagged in [false, true] {
            for proto in [IP_TCP, IP_UDP, IP_ICMP, IP_ICMPV6] {
                for six in [false, true] {
                    if (proto == IP_ICMP && six) || (proto == IP_ICMPV6 && !six) {
                        continue;
                    }
                    let mut frame = match six {
                        false => example::v4(proto, b"an odd payload."),
                        true => example::v6(proto, b"an odd payload."),
                    };
                    if tagged {
                        Tags::of(&frame).push(&mut frame, ETH_VLAN);
                    }
                    assert!(is_sound(&frame));
                    for field in &fields {
                        let layers = Layers::of(&frame).unwrap();
                        let has = layers.place(&frame, field.kind()).is_some();
                        layers.write(&mut frame, field);
                        assert!(is_sound(&frame), "{field:?} of protocol {proto}");
                        let read = layers.read(&frame, field.kind());
                        if has {
                            assert_eq!(read, Some(field.bytes().0), "{field:?}");
                            rewritten += 1;
                        }
                    }
                    Layers::of(&frame).unwrap().set_ttl(&mut frame, 9);
                    assert!(is_sound(&frame));
                    assert_eq!(Layers::of(&frame).unwrap().ttl(&frame), Some(9));
                }
            }
        }
        assert!(rewritten > 60, "{rewritten}");
    }

    #[test]
    fn a_datagram_without_checksum_stays_without() {
        let mut frame = example::v4(IP_UDP, b"x");
        frame[40..42].fill(0);
        let layers = Layers::of(&frame).unwrap();
        layers.write(&mut frame, &OxmField::UdpDst(9.into()));
        assert_eq!(frame[36..42], [0, 9, 0, 9, 0, 0]);
    }

    #[test]
    fn tags_come_and_go() {
        let plain = example::v4(IP_UDP, b"x");
        let mut frame = plain.clone();
        Tags::of(&frame).pop(&mut frame);
        assert_eq!(frame, plain);
        let mut tags = Tags::of(&frame);
        for number in 1..=3 {
            tags.push(&mut frame, ETH_VLAN);
            let layers = Layers::behind(&frame, tags).unwrap();
            assert_eq!(layers.eth_type, ETH_IPV4);
            assert_eq!(layers.read(&frame, FieldKind::VlanVid), Some(vec![0x10, 0]));
            layers.write(
                &mut frame,
                &OxmField::VlanVid((VLAN_PRESENT | number).into()),
            );
        }
        // The first one gave way.
        assert_eq!(frame[12..20], [0x81, 0, 0, 3, 0x81, 0, 0, 2]);
        tags.pop(&mut frame);
        tags.pop(&mut frame);
        assert_eq!(frame, plain);
    }

    #[test]
    fn what_ends_too_early_has_fewer_fields() {
        let whole = example::v6(IP_TCP, b"payload");
        for length in 0..whole.len() {
            let frame = &whole[..length];
            let Some(layers) = Layers::of(frame) else {
                assert!(length < 14);
                continue;
            };
            for &kind in FieldKind::EACH {
                if let Some(value) = layers.read(frame, kind) {
                    assert_eq!(Some(value.len()), kind.length());
                    let same = OxmField::from_bytes(kind, &value, &vec![0xff; value.len()]);
                    let mut copy = frame.to_vec();
                    layers.write(&mut copy, &same.unwrap());
                    assert_eq!(copy, frame);
                }
            }
        }
    }
}
