//! Batches of similar PUBLISH packets: each like the one before, without properties, or
//! from a neighbour with the message name as the only property.

use std::num::NonZeroU32;

use punctual_codec::{Frame, PropertyId};

use crate::base::name::{MessageName, NAME_KEY};
use crate::hub::Alias;
use crate::packets::PLAIN;

/// The property identifier before a topic alias.
const ALIAS: u8 = PropertyId::TopicAlias as u8;
/// The bytes before a name and its length: a user property with the key of names.
const NAMED: &[u8] = &[PropertyId::UserProperty as u8, 0, 1, NAME_KEY.as_bytes()[0]];

/// A PUBLISH of a [`Row`].
pub(super) struct Packet<'a> {
    /// Size of the packet in bytes.
    pub(super) len: usize,
    /// Packet identifier; 0 with QoS 0.
    pub(super) id: u16,
    /// The name of the message, in a packet of a neighbour.
    pub(super) name: Option<MessageName>,
    pub(super) payload: &'a [u8],
}

/// The common properties of the packets of a batch.
pub(super) struct Row<'a> {
    /// The first byte of the packets.
    first: u8,
    /// The topic, with its length.
    prefix: &'a [u8],
    /// The topic alias in packets of a neighbour.
    pub(super) alias: Option<u16>,
    /// The origin of the last message under that alias.
    pub(super) origin: Option<NonZeroU32>,
    v5: bool,
    /// Whether the packets are from a neighbour, with a name, for the first time, as the only
    /// property.
    pub(super) named: bool,
}

impl<'a> Row<'a> {
    /// The batch that begins with that PUBLISH; `named` if it is from a neighbour.
    #[inline]
    pub(super) fn of(frame: Frame<'a>, v5: bool, named: bool) -> Option<Self> {
        let [high, low, rest @ ..] = frame.body else {
            return None;
        };
        let topic = usize::from(u16::from_be_bytes([*high, *low]));
        let prefix = frame.body.get(..2 + topic)?;
        let mut row = Self {
            first: frame.first,
            prefix,
            alias: None,
            origin: None,
            v5,
            named,
        };
        if named && topic == 0 {
            let properties = rest.get(usize::from(row.has_id()) * 2..)?;
            let [_, ALIAS, high, low, ..] = properties else {
                return None;
            };
            row.alias = Some(u16::from_be_bytes([*high, *low]));
        }
        Some(row)
    }

    fn has_id(&self) -> bool {
        self.first != PLAIN
    }

    /// The topic, given the aliases that the client has defined. Also notes the origin of the last
    /// message under a neighbour's alias.
    #[inline]
    pub(super) fn topic<'t>(&mut self, aliases: &'t [Alias]) -> Option<&'t [u8]>
    where
        'a: 't,
    {
        let Some(alias) = self.alias else {
            return Some(&self.prefix[2..]);
        };
        let alias = aliases.get(usize::from(alias).checked_sub(1)?)?;
        self.origin = alias.origin;
        Some(&alias.topic)
    }

    /// The first packet of `data`, if it is complete and belongs to the batch.
    #[inline]
    pub(super) fn packet<'d>(&self, data: &'d [u8]) -> Option<Packet<'d>> {
        let (len, header) = match *data {
            [first, len, ..] if first == self.first && len < 0x80 => (usize::from(len), 2),
            [first, low, high, ..] if first == self.first && high < 0x80 && high != 0 => {
                (usize::from(low & 0x7F) | usize::from(high) << 7, 3)
            }
            // Larger packets are left to the general code.
            _ => return None,
        };
        let body = data.get(header..header + len)?;
        let mut payload = body.strip_prefix(self.prefix)?;
        let mut id = 0;
        if self.has_id() {
            let ([high, low], rest) = payload.split_first_chunk()?;
            (id, payload) = (u16::from_be_bytes([*high, *low]), rest);
            if id == 0 {
                return None;
            }
        }
        let mut name = None;
        if self.named {
            let (properties, after) = payload.split_first()?;
            if *properties >= 0x80 {
                return None;
            }
            let (properties, after) = after.split_at_checked(usize::from(*properties))?;
            name = Some(self.name(properties)?);
            payload = after;
        } else if self.v5 {
            payload = payload.strip_prefix(&[0])?;
        }
        Some(Packet {
            len: header + len,
            id,
            name,
            payload,
        })
    }

    /// The name in the properties of a packet from a neighbour.
    #[inline]
    fn name(&self, mut properties: &[u8]) -> Option<MessageName> {
        if let Some(alias) = self.alias {
            properties = properties.strip_prefix(&[ALIAS])?;
            properties = properties.strip_prefix(&alias.to_be_bytes())?;
        }
        let ([0, len], text) = properties.strip_prefix(NAMED)?.split_first_chunk::<2>()? else {
            return None;
        };
        let name = MessageName::parse(text, || self.origin);
        let name = name.filter(|_| text.len() == usize::from(*len))?;
        (!name.again).then_some(name)
    }
}
