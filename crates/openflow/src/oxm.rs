//! Fields of packets, as matches and set-field actions name them (OXM).
//!
//! Fields of the basic class have a type each; others (Nicira's registers, experimenters') are
//! kept as bytes. Sources: OpenFlow 1.3.5, section 7.2.3; ports of TCP, UDP and SCTP take a mask
//! here because Open vSwitch gives and takes them so.

use std::net::{Ipv4Addr, Ipv6Addr};

use crate::wire::{Reader, Result, Wire, to_eight};
use crate::{DecodeError, Mac, PortNo};

const BASIC: u16 = 0x8000;

/// Set in `VlanVid` of every packet with a tag; without a tag the whole field is 0.
pub const VLAN_PRESENT: u16 = 0x1000;

/// A value of which a mask may tell which bits count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Masked<T> {
    /// The value; bits that do not count should be 0.
    pub value: T,
    /// Bits that count; `None`: all.
    pub mask: Option<T>,
}

impl<T> Masked<T> {
    /// All bits count.
    pub fn exact(value: T) -> Self {
        Self { value, mask: None }
    }

    /// Only the bits set in `mask` count.
    pub fn with_mask(value: T, mask: T) -> Self {
        let mask = Some(mask);
        Self { value, mask }
    }
}

impl<T> From<T> for Masked<T> {
    fn from(value: T) -> Self {
        Self::exact(value)
    }
}

impl Masked<Ipv4Addr> {
    /// A network: `length` (0 to 32) leading bits count, the others are cleared.
    pub fn network(address: Ipv4Addr, length: u8) -> Self {
        let mask = u32::MAX.checked_shl(32 - u32::from(length.min(32)));
        let mask = Ipv4Addr::from(mask.unwrap_or(0));
        Self::with_mask(address & mask, mask)
    }
}

/// A value that can be a field's: its length is fixed, a mask doubles it.
pub(crate) trait FieldValue: Sized {
    /// Appends the value, then the mask; returns whether there is one.
    fn put(&self, out: &mut Vec<u8>) -> bool;
    /// `masked`: whether a mask follows the value.
    fn get(from: &mut Reader<'_>, masked: bool, name: &'static str) -> Result<Self>;
    fn is_masked(&self) -> bool;
    /// Value and mask as bytes of the same length.
    fn bytes(&self) -> (Vec<u8>, Vec<u8>);
    fn from_bytes(value: &[u8], mask: &[u8]) -> Option<Self>;
}

macro_rules! exact {
    ($($type:ty)*) => {$(
        impl FieldValue for $type {
            fn put(&self, out: &mut Vec<u8>) -> bool {
                Wire::put(self, out);
                false
            }
            fn get(from: &mut Reader<'_>, masked: bool, name: &'static str) -> Result<Self> {
                match masked {
                    true => Err(DecodeError::Mask(name)),
                    false => from.get(),
                }
            }
            fn is_masked(&self) -> bool {
                false
            }
            fn bytes(&self) -> (Vec<u8>, Vec<u8>) {
                let mut value = Vec::new();
                Wire::put(self, &mut value);
                let mask = vec![0xff; value.len()];
                (value, mask)
            }
            fn from_bytes(value: &[u8], mask: &[u8]) -> Option<Self> {
                let all = mask.iter().all(|&byte| byte == 0xff);
                Reader::new(value, "field").get().ok().filter(|_| all)
            }
        }
    )*};
}
exact!(u8 u16 u32 PortNo Mac Ipv6Addr);

impl<T: Wire> FieldValue for Masked<T> {
    fn put(&self, out: &mut Vec<u8>) -> bool {
        self.value.put(out);
        if let Some(mask) = &self.mask {
            mask.put(out);
        }
        self.mask.is_some()
    }

    fn get(from: &mut Reader<'_>, masked: bool, _: &'static str) -> Result<Self> {
        let value = from.get()?;
        let mask = if masked { Some(from.get()?) } else { None };
        Ok(Self { value, mask })
    }

    fn is_masked(&self) -> bool {
        self.mask.is_some()
    }

    fn bytes(&self) -> (Vec<u8>, Vec<u8>) {
        let (mut value, mut mask) = (Vec::new(), Vec::new());
        self.value.put(&mut value);
        match &self.mask {
            Some(given) => given.put(&mut mask),
            None => mask.resize(value.len(), 0xff),
        }
        (value, mask)
    }

    fn from_bytes(value: &[u8], mask: &[u8]) -> Option<Self> {
        let value = Reader::new(value, "field").get().ok()?;
        let mask = match mask.iter().all(|&byte| byte == 0xff) {
            true => None,
            false => Some(Reader::new(mask, "field").get().ok()?),
        };
        Some(Self { value, mask })
    }
}

/// The basic class: number, length in bytes, variant, type.
macro_rules! fields {
    ($($(#[$about:meta])* $number:literal $length:literal $variant:ident($type:ty),)*) => {
        /// A field of a packet and its value.
        #[derive(Debug, Clone, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum OxmField {
            $($(#[$about])* $variant($type),)*
            /// A field without a type here.
            Other(OtherField),
        }

        /// Which field, without a value, in the order in which fields may follow one another.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum FieldKind {
            $($(#[$about])* $variant,)*
            /// A field without a type here.
            Other {
                /// Its class.
                class: u16,
                /// Its number, 0 to 127.
                number: u8,
            },
        }

        impl OxmField {
            /// Which field it is.
            pub fn kind(&self) -> FieldKind {
                match self {
                    $(Self::$variant(_) => FieldKind::$variant,)*
                    Self::Other(other) => FieldKind::Other {
                        class: other.class,
                        number: other.number,
                    },
                }
            }

            /// Whether a mask is given.
            pub fn is_masked(&self) -> bool {
                match self {
                    $(Self::$variant(value) => FieldValue::is_masked(value),)*
                    Self::Other(other) => other.masked,
                }
            }

            /// Value and mask (all ones without one) as bytes of the same length.
            pub(crate) fn bytes(&self) -> (Vec<u8>, Vec<u8>) {
                match self {
                    $(Self::$variant(value) => FieldValue::bytes(value),)*
                    Self::Other(other) => other.split(),
                }
            }

            /// The field of that kind; `None` if the lengths are wrong or the kind takes no mask
            /// and one is given.
            pub(crate) fn from_bytes(kind: FieldKind, value: &[u8], mask: &[u8]) -> Option<Self> {
                match kind {
                    $(FieldKind::$variant => {
                        FieldValue::from_bytes(value, mask).map(Self::$variant)
                    })*
                    FieldKind::Other { class, number } => {
                        let masked = !mask.iter().all(|&byte| byte == 0xff);
                        let mut data = value.to_vec();
                        if masked {
                            data.extend_from_slice(mask);
                        }
                        let other = OtherField { class, number, masked, data };
                        Some(Self::Other(other))
                    }
                }
            }

            fn put_body(&self, out: &mut Vec<u8>) -> (u16, u8, bool) {
                match self {
                    $(Self::$variant(value) => (BASIC, $number, FieldValue::put(value, out)),)*
                    Self::Other(other) => {
                        out.extend_from_slice(&other.data);
                        (other.class, other.number, other.masked)
                    }
                }
            }

            fn get_body(number: u8, masked: bool, mut from: Reader<'_>) -> Option<Result<Self>> {
                let value = match number {
                    $($number => FieldValue::get(&mut from, masked, stringify!($variant))
                        .map(Self::$variant)
                        .and_then(|field| from.end().map(|()| field))
                        .map_err(|error| match error {
                            DecodeError::Length(_) => {
                                DecodeError::FieldLength(stringify!($variant))
                            }
                            other => other,
                        }),)*
                    _ => return None,
                };
                Some(value)
            }
        }

        impl FieldKind {
            /// Class and number as they are sent.
            pub fn numbers(self) -> (u16, u8) {
                match self {
                    $(Self::$variant => (BASIC, $number),)*
                    Self::Other { class, number } => (class, number),
                }
            }

            /// Bytes of the value; `None` for fields without a type.
            pub fn length(self) -> Option<usize> {
                match self {
                    $(Self::$variant => Some($length),)*
                    Self::Other { .. } => None,
                }
            }

            /// Those with a type.
            pub const EACH: &'static [Self] = &[$(Self::$variant),*];
        }
    };
}

fields! {
    /// Port it came in by; may be one that is logical.
    0 4 InPort(PortNo),
    /// Physical port it came in by.
    1 4 InPhyPort(PortNo),
    /// Handed from table to table.
    2 8 Metadata(Masked<u64>),
    /// Destination.
    3 6 EthDst(Masked<Mac>),
    /// Source.
    4 6 EthSrc(Masked<Mac>),
    /// What is inside, behind VLAN tags.
    5 2 EthType(u16),
    /// VLAN number with [`VLAN_PRESENT`]; 0 means without a tag, and [`VLAN_PRESENT`] with itself
    /// as mask means with any tag.
    6 2 VlanVid(Masked<u16>),
    /// VLAN priority, 0 to 7. Needs a tag.
    7 1 VlanPcp(u8),
    /// Traffic class, 0 to 63. Needs IPv4 or IPv6.
    8 1 IpDscp(u8),
    /// Congestion mark, 0 to 3. Needs IPv4 or IPv6.
    9 1 IpEcn(u8),
    /// Protocol. Needs IPv4 or IPv6.
    10 1 IpProto(u8),
    /// Source address.
    11 4 Ipv4Src(Masked<Ipv4Addr>),
    /// Destination address.
    12 4 Ipv4Dst(Masked<Ipv4Addr>),
    /// Source port.
    13 2 TcpSrc(Masked<u16>),
    /// Destination port.
    14 2 TcpDst(Masked<u16>),
    /// Source port.
    15 2 UdpSrc(Masked<u16>),
    /// Destination port.
    16 2 UdpDst(Masked<u16>),
    /// Source port.
    17 2 SctpSrc(Masked<u16>),
    /// Destination port.
    18 2 SctpDst(Masked<u16>),
    /// Type of the message.
    19 1 Icmpv4Type(u8),
    /// Code of the message.
    20 1 Icmpv4Code(u8),
    /// 1 asks, 2 answers.
    21 2 ArpOp(u16),
    /// Address of the sender.
    22 4 ArpSpa(Masked<Ipv4Addr>),
    /// Address that is asked for.
    23 4 ArpTpa(Masked<Ipv4Addr>),
    /// Ethernet address of the sender.
    24 6 ArpSha(Masked<Mac>),
    /// Ethernet address of the target.
    25 6 ArpTha(Masked<Mac>),
    /// Source address.
    26 16 Ipv6Src(Masked<Ipv6Addr>),
    /// Destination address.
    27 16 Ipv6Dst(Masked<Ipv6Addr>),
    /// Flow label, 20 bits.
    28 4 Ipv6Flabel(Masked<u32>),
    /// Type of the message.
    29 1 Icmpv6Type(u8),
    /// Code of the message.
    30 1 Icmpv6Code(u8),
    /// Address that neighbour discovery asks for.
    31 16 Ipv6NdTarget(Ipv6Addr),
    /// Ethernet address of the one that asks.
    32 6 Ipv6NdSll(Mac),
    /// Ethernet address of the one that answers.
    33 6 Ipv6NdTll(Mac),
    /// MPLS label, 20 bits.
    34 4 MplsLabel(u32),
    /// MPLS traffic class, 0 to 7.
    35 1 MplsTc(u8),
    /// Whether it is the last label: 1 or 0.
    36 1 MplsBos(u8),
    /// Number of a tunnel.
    38 8 TunnelId(Masked<u64>),
}

/// A field that is kept as it came.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct OtherField {
    class: u16,
    number: u8,
    masked: bool,
    data: Vec<u8>,
}

impl OtherField {
    /// A field of a class other than the basic one; `data` is the value and, if `masked`, a mask
    /// of the same length. `None` if the basic class is asked for, the number is above 127 or the
    /// data are longer than 255 bytes.
    pub fn new(class: u16, number: u8, masked: bool, data: Vec<u8>) -> Option<Self> {
        let fits = class != BASIC && number < 128 && data.len() < 256;
        fits.then_some(Self {
            class,
            number,
            masked,
            data,
        })
    }

    /// Whether the second half of the data is a mask.
    pub fn is_masked(&self) -> bool {
        self.masked
    }

    /// Value and mask.
    pub fn data(&self) -> &[u8] {
        &self.data
    }

    fn split(&self) -> (Vec<u8>, Vec<u8>) {
        if self.masked {
            let (value, mask) = self.data.split_at(self.data.len() / 2);
            (value.to_vec(), mask.to_vec())
        } else {
            (self.data.clone(), vec![0xff; self.data.len()])
        }
    }
}

impl Wire for OxmField {
    fn put(&self, out: &mut Vec<u8>) {
        let start = out.len();
        out.extend_from_slice(&[0; 4]);
        let (class, number, masked) = self.put_body(out);
        let length = (out.len() - start - 4) as u8;
        if let Some(header) = out.get_mut(start..start + 4) {
            let [high, low] = class.to_be_bytes();
            header.copy_from_slice(&[high, low, number << 1 | u8::from(masked), length]);
        }
    }

    fn get(from: &mut Reader<'_>) -> Result<Self> {
        let class = from.get()?;
        let [number, length] = from.array()?;
        let (number, masked) = (number >> 1, number & 1 == 1);
        let body = from.part(length.into(), "field")?;
        if class == BASIC
            && let Some(field) = Self::get_body(number, masked, body)
        {
            return field;
        }
        let data = { body }.rest().to_vec();
        Ok(Self::Other(OtherField {
            class,
            number,
            masked,
            data,
        }))
    }
}

/// A field on its own, padded to eight bytes behind `before` bytes: the body of a set-field
/// action.
pub(crate) fn put_padded(field: &OxmField, before: usize, out: &mut Vec<u8>) {
    let start = out.len();
    field.put(out);
    crate::wire::pad(out, to_eight(before + out.len() - start));
}
