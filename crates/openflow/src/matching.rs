//! Which packets an entry applies to: fields that must have given values.
//!
//! [`Match::new`] adds what fields presuppose (an IPv4 address the Ethernet type) where that is
//! unambiguous, and refuses contradictions; a match from the wire is kept as it came, in its
//! order, and [`Match::check`] says what a switch would say. Source: OpenFlow 1.3.5, section
//! 7.2.3.8 (prerequisites).

use crate::error_code::{BadMatch, ErrorCode};
use crate::oxm::{FieldKind, Masked, OxmField, VLAN_PRESENT};
use crate::wire::{Reader, Result as Decoded, Wire, pad, to_eight};
use crate::{DecodeError, PortNo};

/// Ethernet type of IPv4.
pub const ETH_IPV4: u16 = 0x0800;
/// Ethernet type of ARP.
pub const ETH_ARP: u16 = 0x0806;
/// Ethernet type of IPv6.
pub const ETH_IPV6: u16 = 0x86dd;
/// Ethernet type of an 802.1Q tag.
pub const ETH_VLAN: u16 = 0x8100;
/// Ethernet type of link discovery.
pub const ETH_LLDP: u16 = 0x88cc;
/// IP protocol of ICMP.
pub const IP_ICMP: u8 = 1;
/// IP protocol of TCP.
pub const IP_TCP: u8 = 6;
/// IP protocol of UDP.
pub const IP_UDP: u8 = 17;
/// IP protocol of ICMPv6.
pub const IP_ICMPV6: u8 = 58;
/// IP protocol of SCTP.
pub const IP_SCTP: u8 = 132;

/// Fields and the values they must have; without fields it applies to every packet.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Match {
    fields: Vec<OxmField>,
}

/// Why fields do not make a match.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum MatchError {
    /// A field twice.
    #[error("field {0:?} is given twice")]
    Duplicate(FieldKind),
    /// A field that presupposes another, of which several values would do.
    #[error("field {0:?} needs field {1:?} as well")]
    Missing(FieldKind, FieldKind),
    /// A field that presupposes another value of another field.
    #[error("field {0:?} does not go with the value of field {1:?}")]
    Conflict(FieldKind, FieldKind),
    /// Bits that the mask does not cover.
    #[error("field {0:?} has a value with bits outside its mask")]
    OutsideMask(FieldKind),
    /// A value that the field cannot have.
    #[error("the value of field {0:?} is out of range")]
    Range(FieldKind),
}

impl MatchError {
    /// What a switch answers.
    pub fn reply(self) -> ErrorCode {
        match self {
            Self::Duplicate(_) => BadMatch::DupField,
            Self::Missing(..) | Self::Conflict(..) => BadMatch::BadPrereq,
            Self::OutsideMask(_) => BadMatch::BadWildcards,
            Self::Range(_) => BadMatch::BadValue,
        }
        .into()
    }
}

impl Match {
    /// Applies to every packet.
    pub const fn any() -> Self {
        Self { fields: Vec::new() }
    }

    /// Fields in whatever order; what they presuppose is added where only one value will do.
    ///
    /// # Errors
    /// Fields twice or in contradiction, and what has to be said and was not: ports of TCP need
    /// IPv4 or IPv6, for instance.
    pub fn new(fields: impl IntoIterator<Item = OxmField>) -> Result<Self, MatchError> {
        let mut made = Self {
            fields: fields.into_iter().collect(),
        };
        let mut next = 0;
        while let Some(field) = made.fields.get(next) {
            let implied: Vec<_> = needs(field.kind())
                .iter()
                .filter(|need| made.get(need.kind()).is_none())
                .filter_map(|need| need.only_value())
                .collect();
            made.fields.extend(implied);
            next += 1;
        }
        made.fields.sort_by_key(OxmField::kind);
        made.check()?;
        Ok(made)
    }

    /// The fields in their order.
    pub fn fields(&self) -> &[OxmField] {
        &self.fields
    }

    /// Whether it applies to every packet.
    pub fn is_any(&self) -> bool {
        self.fields.is_empty()
    }

    /// The field of that kind.
    pub fn get(&self, kind: FieldKind) -> Option<&OxmField> {
        self.fields.iter().find(|field| field.kind() == kind)
    }

    /// The port it came in by, if that matters.
    pub fn in_port(&self) -> Option<PortNo> {
        self.fields.iter().find_map(|field| match field {
            OxmField::InPort(port) => Some(*port),
            _ => None,
        })
    }

    /// The same packets in one way of saying it: fields in order, without those of which no bit
    /// counts, masks only where they leave something out. Two entries are the same to a switch if
    /// their priorities and these are equal.
    #[must_use]
    pub fn normalized(&self) -> Self {
        // Nearly all fields are such, and nothing is to be done with them.
        let is_plain =
            |field: &OxmField| !field.is_masked() && !matches!(field, OxmField::Other(_));
        let counts =
            |field: &&OxmField| is_plain(field) || field.bytes().1.iter().any(|&byte| byte != 0);
        let mut fields: Vec<_> = self
            .fields
            .iter()
            .filter(counts)
            .map(|field| {
                if is_plain(field) {
                    return field.clone();
                }
                let (value, mask) = field.bytes();
                let value: Vec<_> = value.iter().zip(&mask).map(|(v, m)| v & m).collect();
                OxmField::from_bytes(field.kind(), &value, &mask).unwrap_or_else(|| field.clone())
            })
            .collect();
        fields.sort_by_key(OxmField::kind);
        Self { fields }
    }

    /// Whether a switch takes it.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn check(&self) -> Result<(), MatchError> {
        for (index, field) in self.fields.iter().enumerate() {
            let kind = field.kind();
            let before = self.fields.get(..index).unwrap_or_default();
            if before.iter().any(|other| other.kind() == kind) {
                return Err(MatchError::Duplicate(kind));
            }
            if field.is_masked() {
                let (value, mask) = field.bytes();
                if value.iter().zip(&mask).any(|(v, m)| v & !m != 0) {
                    return Err(MatchError::OutsideMask(kind));
                }
            }
            if !in_range(field) {
                return Err(MatchError::Range(kind));
            }
            for need in needs(kind) {
                match self.get(need.kind()) {
                    Some(found) if need.holds(found) => {}
                    Some(_) => return Err(MatchError::Conflict(kind, need.kind())),
                    None => return Err(MatchError::Missing(kind, need.kind())),
                }
            }
        }
        Ok(())
    }
}

/// Whether a value fits into the bits that the field has on the wire.
pub(crate) fn in_range(field: &OxmField) -> bool {
    match field {
        OxmField::VlanVid(vid) => vid.value < 0x2000,
        OxmField::VlanPcp(value) | OxmField::MplsTc(value) => *value < 8,
        OxmField::IpDscp(value) => *value < 64,
        OxmField::IpEcn(value) => *value < 4,
        OxmField::MplsBos(value) => *value < 2,
        OxmField::Ipv6Flabel(label) => label.value < 1 << 20,
        OxmField::MplsLabel(label) => *label < 1 << 20,
        _ => true,
    }
}

/// What a field presupposes.
pub(crate) enum Need {
    EthType(&'static [u16]),
    IpProto(u8),
    Icmpv6Type(&'static [u8]),
    Vlan,
    InPort,
}

impl Need {
    pub(crate) fn kind(&self) -> FieldKind {
        match self {
            Self::EthType(_) => FieldKind::EthType,
            Self::IpProto(_) => FieldKind::IpProto,
            Self::Icmpv6Type(_) => FieldKind::Icmpv6Type,
            Self::Vlan => FieldKind::VlanVid,
            Self::InPort => FieldKind::InPort,
        }
    }

    pub(crate) fn holds(&self, field: &OxmField) -> bool {
        match (self, field) {
            (Self::EthType(types), OxmField::EthType(found)) => types.contains(found),
            (Self::IpProto(proto), OxmField::IpProto(found)) => proto == found,
            (Self::Icmpv6Type(types), OxmField::Icmpv6Type(found)) => types.contains(found),
            (Self::Vlan, OxmField::VlanVid(vid)) => {
                vid.value & vid.mask.unwrap_or(u16::MAX) & VLAN_PRESENT != 0
            }
            (Self::InPort, OxmField::InPort(_)) => true,
            _ => false,
        }
    }

    fn only_value(&self) -> Option<OxmField> {
        match self {
            Self::EthType([only]) => Some(OxmField::EthType(*only)),
            Self::IpProto(proto) => Some(OxmField::IpProto(*proto)),
            Self::Icmpv6Type([only]) => Some(OxmField::Icmpv6Type(*only)),
            Self::Vlan => Some(OxmField::VlanVid(Masked::with_mask(
                VLAN_PRESENT,
                VLAN_PRESENT,
            ))),
            _ => None,
        }
    }
}

pub(crate) fn needs(kind: FieldKind) -> &'static [Need] {
    use FieldKind as Kind;
    const IP: Need = Need::EthType(&[ETH_IPV4, ETH_IPV6]);
    match kind {
        Kind::InPhyPort => &[Need::InPort],
        Kind::VlanPcp => &[Need::Vlan],
        Kind::IpDscp | Kind::IpEcn | Kind::IpProto => &[IP],
        Kind::Ipv4Src | Kind::Ipv4Dst => &[Need::EthType(&[ETH_IPV4])],
        Kind::TcpSrc | Kind::TcpDst => &[IP, Need::IpProto(IP_TCP)],
        Kind::UdpSrc | Kind::UdpDst => &[IP, Need::IpProto(IP_UDP)],
        Kind::SctpSrc | Kind::SctpDst => &[IP, Need::IpProto(IP_SCTP)],
        Kind::Icmpv4Type | Kind::Icmpv4Code => {
            &[Need::EthType(&[ETH_IPV4]), Need::IpProto(IP_ICMP)]
        }
        Kind::ArpOp | Kind::ArpSpa | Kind::ArpTpa | Kind::ArpSha | Kind::ArpTha => {
            &[Need::EthType(&[ETH_ARP])]
        }
        Kind::Ipv6Src | Kind::Ipv6Dst | Kind::Ipv6Flabel => &[Need::EthType(&[ETH_IPV6])],
        Kind::Icmpv6Type | Kind::Icmpv6Code => {
            &[Need::EthType(&[ETH_IPV6]), Need::IpProto(IP_ICMPV6)]
        }
        Kind::Ipv6NdTarget => &[Need::Icmpv6Type(&[135, 136])],
        Kind::Ipv6NdSll => &[Need::Icmpv6Type(&[135])],
        Kind::Ipv6NdTll => &[Need::Icmpv6Type(&[136])],
        Kind::MplsLabel | Kind::MplsTc | Kind::MplsBos => &[Need::EthType(&[0x8847, 0x8848])],
        _ => &[],
    }
}

impl Wire for Match {
    fn put(&self, out: &mut Vec<u8>) {
        let start = out.len();
        crate::wire::sized(out, 2, |out| {
            out.extend_from_slice(&[0, 1, 0, 0]);
            self.fields.put(out);
        });
        pad(out, to_eight(out.len() - start));
    }

    fn get(from: &mut Reader<'_>) -> Decoded<Self> {
        let kind: u16 = from.get()?;
        if kind != 1 {
            return Err(DecodeError::MatchType(kind.into()));
        }
        let length = usize::from(from.get::<u16>()?);
        let body = length.checked_sub(4).ok_or(DecodeError::Length("match"))?;
        let fields = from.part(body, "match")?.get()?;
        from.skip(to_eight(length))?;
        Ok(Self { fields })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use OxmField as F;
    use std::net::Ipv4Addr;

    #[test]
    fn what_fields_presuppose_is_added() {
        let address = Ipv4Addr::new(10, 0, 0, 1);
        let made = Match::new([F::UdpDst(1883.into()), F::Ipv4Dst(address.into())]).unwrap();
        assert_eq!(
            made.fields(),
            [
                F::EthType(ETH_IPV4),
                F::IpProto(IP_UDP),
                F::Ipv4Dst(address.into()),
                F::UdpDst(1883.into())
            ]
        );
        let tagged = Match::new([F::VlanPcp(5)]).unwrap();
        assert_eq!(
            tagged.fields()[0],
            F::VlanVid(Masked::with_mask(VLAN_PRESENT, VLAN_PRESENT))
        );
        let found = Match::new([F::Ipv6NdSll(crate::Mac::LLDP)]).unwrap();
        assert_eq!(found.fields().len(), 4);
    }

    #[test]
    fn what_is_ambiguous_or_contradicts_itself_is_refused() {
        use FieldKind as K;
        let refused = |fields: &[F]| Match::new(fields.iter().cloned()).unwrap_err();
        assert_eq!(
            refused(&[F::TcpDst(1883.into())]),
            MatchError::Missing(K::IpProto, K::EthType)
        );
        assert_eq!(
            refused(&[F::EthType(ETH_ARP), F::IpDscp(8)]),
            MatchError::Conflict(K::IpDscp, K::EthType)
        );
        assert_eq!(
            refused(&[F::EthType(ETH_ARP), F::EthType(ETH_ARP)]),
            MatchError::Duplicate(K::EthType)
        );
        assert_eq!(
            refused(&[F::EthType(ETH_IPV4), F::IpDscp(64)]),
            MatchError::Range(K::IpDscp)
        );
        assert_eq!(
            refused(&[F::Metadata(Masked::with_mask(3, 1))]),
            MatchError::OutsideMask(K::Metadata)
        );
        assert_eq!(
            refused(&[F::VlanPcp(1), F::VlanVid(0.into())]),
            MatchError::Conflict(K::VlanPcp, K::VlanVid)
        );
    }

    #[test]
    fn the_same_packets_have_one_normal_form() {
        let net = |address, mask| F::Ipv4Src(Masked::with_mask(address, mask));
        let a = Match {
            fields: vec![
                F::Ipv4Dst(Masked::with_mask(Ipv4Addr::BROADCAST, Ipv4Addr::BROADCAST)),
                F::EthType(ETH_IPV4),
                net(Ipv4Addr::new(1, 2, 3, 4), Ipv4Addr::UNSPECIFIED),
            ],
        };
        let b = Match::new([F::Ipv4Dst(Ipv4Addr::BROADCAST.into())]).unwrap();
        assert_eq!(a.normalized(), b);
        assert_eq!(b.normalized(), b);
    }
}
