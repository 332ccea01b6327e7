//! Properties (section 2.2.2), kept as the bytes they arrived in.
//!
//! [`Properties`] is a slice that has been checked once: every identifier is known and
//! allowed in its packet, none but User Property and Subscription Identifier repeats,
//! every value is in range. So it can be iterated without errors, queried for one
//! property without iteration (a bit set records which are present), and forwarded byte
//! for byte.

use crate::wire::{
    MAX_REMAINING_LENGTH, Reader, put_binary, put_u16, put_u32, put_varint, varint_len,
};
use crate::{DecodeError, EncodeError};

macro_rules! properties {
    ($($(#[$doc:meta])* $name:ident = $id:literal, $kind:ident, $text:literal;)*) => {
        /// A property identifier (table 2-4).
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[repr(u8)]
        #[allow(missing_docs, reason = "the names are those of the specification")]
        pub enum PropertyId { $($name = $id,)* }

        impl PropertyId {
            /// All identifiers, ascending.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            #[inline]
            fn from_byte(byte: u8) -> Option<Self> {
                match byte { $($id => Some(Self::$name),)* _ => None }
            }

            #[inline]
            fn kind(self) -> Kind {
                match self { $(Self::$name => Kind::$kind,)* }
            }

            /// The name the specification gives it.
            pub fn name(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }
        }
    };
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// One byte that is 0 or 1.
    Bool,
    U16,
    /// Two bytes, not zero.
    NonZeroU16,
    U32,
    /// Four bytes, not zero.
    NonZeroU32,
    /// Variable byte integer, not zero.
    NonZeroVarint,
    Str,
    Binary,
    Pair,
}

properties! {
    PayloadFormatIndicator = 0x01, Bool, "Payload Format Indicator";
    MessageExpiryInterval = 0x02, U32, "Message Expiry Interval";
    ContentType = 0x03, Str, "Content Type";
    ResponseTopic = 0x08, Str, "Response Topic";
    CorrelationData = 0x09, Binary, "Correlation Data";
    SubscriptionIdentifier = 0x0B, NonZeroVarint, "Subscription Identifier";
    SessionExpiryInterval = 0x11, U32, "Session Expiry Interval";
    AssignedClientIdentifier = 0x12, Str, "Assigned Client Identifier";
    ServerKeepAlive = 0x13, U16, "Server Keep Alive";
    AuthenticationMethod = 0x15, Str, "Authentication Method";
    AuthenticationData = 0x16, Binary, "Authentication Data";
    RequestProblemInformation = 0x17, Bool, "Request Problem Information";
    WillDelayInterval = 0x18, U32, "Will Delay Interval";
    RequestResponseInformation = 0x19, Bool, "Request Response Information";
    ResponseInformation = 0x1A, Str, "Response Information";
    ServerReference = 0x1C, Str, "Server Reference";
    ReasonString = 0x1F, Str, "Reason String";
    ReceiveMaximum = 0x21, NonZeroU16, "Receive Maximum";
    TopicAliasMaximum = 0x22, U16, "Topic Alias Maximum";
    TopicAlias = 0x23, NonZeroU16, "Topic Alias";
    MaximumQoS = 0x24, Bool, "Maximum QoS";
    RetainAvailable = 0x25, Bool, "Retain Available";
    UserProperty = 0x26, Pair, "User Property";
    MaximumPacketSize = 0x27, NonZeroU32, "Maximum Packet Size";
    WildcardSubscriptionAvailable = 0x28, Bool, "Wildcard Subscription Available";
    SubscriptionIdentifierAvailable = 0x29, Bool, "Subscription Identifier Available";
    SharedSubscriptionAvailable = 0x2A, Bool, "Shared Subscription Available";
}

/// A set of property identifiers; among them those each packet allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PropertySet(u64);

impl PropertySet {
    /// Properties of CONNECT.
    pub const CONNECT: Self = Self::of(&[0x11, 0x15, 0x16, 0x17, 0x19, 0x21, 0x22, 0x26, 0x27]);
    /// Properties of the Will in CONNECT.
    pub const WILL: Self = Self::of(&[0x01, 0x02, 0x03, 0x08, 0x09, 0x18, 0x26]);
    /// Properties of CONNACK.
    pub const CONNACK: Self = Self::of(&[
        0x11, 0x12, 0x13, 0x15, 0x16, 0x1A, 0x1C, 0x1F, 0x21, 0x22, 0x24, 0x25, 0x26, 0x27, 0x28,
        0x29, 0x2A,
    ]);
    /// Properties of PUBLISH.
    pub const PUBLISH: Self = Self::of(&[0x01, 0x02, 0x03, 0x08, 0x09, 0x0B, 0x23, 0x26]);
    /// Properties of PUBACK, PUBREC, PUBREL, PUBCOMP, SUBACK and UNSUBACK.
    pub const ACK: Self = Self::of(&[0x1F, 0x26]);
    /// Properties of SUBSCRIBE.
    pub const SUBSCRIBE: Self = Self::of(&[0x0B, 0x26]);
    /// Properties of UNSUBSCRIBE.
    pub const UNSUBSCRIBE: Self = Self::of(&[0x26]);
    /// Properties of DISCONNECT.
    pub const DISCONNECT: Self = Self::of(&[0x11, 0x1C, 0x1F, 0x26]);
    /// Properties of AUTH.
    pub const AUTH: Self = Self::of(&[0x15, 0x16, 0x1F, 0x26]);

    const fn of(ids: &[u8]) -> Self {
        let mut bits = 0;
        let mut i = 0;
        while i < ids.len() {
            bits |= 1 << ids[i];
            i += 1;
        }
        Self(bits)
    }

    #[inline]
    fn bit(id: PropertyId) -> u64 {
        1 << (id as u8)
    }

    /// Whether `id` is in the set.
    #[inline]
    pub fn contains(self, id: PropertyId) -> bool {
        self.0 & Self::bit(id) != 0
    }
}

/// One property: identifier and value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Property<'a> {
    /// Which property.
    pub id: PropertyId,
    /// Identifier and value as encoded, for forwarding.
    pub bytes: &'a [u8],
}

impl<'a> Property<'a> {
    fn value(self) -> &'a [u8] {
        &self.bytes[1..]
    }

    /// The value of a boolean or numeric property; 0 for others.
    pub fn number(self) -> u32 {
        let mut reader = Reader::new(self.value());
        match self.id.kind() {
            Kind::Bool => reader.u8("").map(u32::from),
            Kind::U16 | Kind::NonZeroU16 => reader.u16("").map(u32::from),
            Kind::U32 | Kind::NonZeroU32 => reader.u32(""),
            Kind::NonZeroVarint => reader.varint(""),
            Kind::Str | Kind::Binary | Kind::Pair => Ok(0),
        }
        .unwrap_or(0)
    }

    /// The value of a string or binary property; empty for others.
    pub fn data(self) -> &'a [u8] {
        match self.id.kind() {
            Kind::Str | Kind::Binary => Reader::new(self.value()).binary("").unwrap_or(&[]),
            _ => &[],
        }
    }

    /// The value of a string property; empty for others.
    pub fn text(self) -> &'a str {
        std::str::from_utf8(self.data()).unwrap_or("")
    }

    /// Name and value of a User Property; empty strings for others.
    pub fn pair(self) -> (&'a str, &'a str) {
        let (name, value) = self.raw_pair();
        (
            std::str::from_utf8(name).unwrap_or(""),
            std::str::from_utf8(value).unwrap_or(""),
        )
    }

    #[inline]
    fn raw_pair(self) -> (&'a [u8], &'a [u8]) {
        if self.id.kind() != Kind::Pair {
            return (&[], &[]);
        }
        let mut reader = Reader::new(self.value());
        let name = reader.binary("").unwrap_or(&[]);
        let value = reader.binary("").unwrap_or(&[]);
        (name, value)
    }
}

/// The checked properties of one packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Properties<'a> {
    bytes: &'a [u8],
    seen: PropertySet,
}

impl Default for Properties<'_> {
    fn default() -> Self {
        Self::EMPTY
    }
}

impl<'a> Properties<'a> {
    /// No properties.
    pub const EMPTY: Self = Self {
        bytes: &[],
        seen: PropertySet(0),
    };

    /// Reads the length and the properties from `reader` and checks them
    /// against what the packet allows.
    #[inline]
    pub(crate) fn read(reader: &mut Reader<'a>, allowed: PropertySet) -> Result<Self, DecodeError> {
        let len = reader.varint("property length")?;
        if len == 0 {
            return Ok(Self::EMPTY);
        }
        Self::check(reader.take(len as usize, "property length")?, allowed)
    }

    /// Checks `bytes` (without their length) as the properties of a packet
    /// that allows `allowed`.
    ///
    /// # Errors
    /// `Malformed` for what cannot be parsed and for a property that the
    /// packet does not have (section 2.2.2.2); `Protocol` for a property that
    /// is repeated or out of range; `TopicAliasInvalid` for Topic Alias 0.
    pub fn check(bytes: &'a [u8], allowed: PropertySet) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(bytes);
        let mut seen = PropertySet(0);
        while !reader.is_empty() {
            let id = PropertyId::from_byte(reader.u8("property identifier")?)
                .ok_or(DecodeError::Malformed("unknown property identifier"))?;
            let name = id.name();
            if !allowed.contains(id) {
                return Err(DecodeError::Malformed(name));
            }
            let repeatable = id == PropertyId::UserProperty
                || (id == PropertyId::SubscriptionIdentifier && allowed == PropertySet::PUBLISH);
            if seen.contains(id) && !repeatable {
                return Err(DecodeError::Protocol(name));
            }
            seen.0 |= PropertySet::bit(id);
            let in_range = match id.kind() {
                Kind::Bool => reader.u8(name)? <= 1,
                Kind::U16 => reader.u16(name).map(|_| true)?,
                Kind::NonZeroU16 => reader.u16(name)? != 0,
                Kind::U32 => reader.u32(name).map(|_| true)?,
                Kind::NonZeroU32 => reader.u32(name)? != 0,
                Kind::NonZeroVarint => reader.varint(name)? != 0,
                Kind::Str => reader.skip_string(name).map(|()| true)?,
                Kind::Binary => reader.binary(name).map(|_| true)?,
                Kind::Pair => {
                    reader.skip_string(name)?;
                    reader.skip_string(name)?;
                    true
                }
            };
            if !in_range {
                return Err(match id {
                    PropertyId::TopicAlias => DecodeError::TopicAliasInvalid,
                    _ => DecodeError::Protocol(name),
                });
            }
        }
        Ok(Self { bytes, seen })
    }

    /// The encoded properties without their length.
    #[inline]
    pub fn as_bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Whether there are none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Whether `id` is present.
    #[inline]
    pub fn contains(&self, id: PropertyId) -> bool {
        self.seen.contains(id)
    }

    /// All properties in order.
    #[inline]
    pub fn iter(&self) -> PropertyIter<'a> {
        PropertyIter { rest: self.bytes }
    }

    /// The first property with that identifier.
    #[inline]
    pub fn get(&self, id: PropertyId) -> Option<Property<'a>> {
        if !self.contains(id) {
            return None;
        }
        self.iter().find(|p| p.id == id)
    }

    /// The value of a boolean or numeric property.
    #[inline]
    pub fn number(&self, id: PropertyId) -> Option<u32> {
        self.get(id).map(Property::number)
    }

    /// The value of a string property.
    #[inline]
    pub fn text(&self, id: PropertyId) -> Option<&'a str> {
        self.get(id).map(Property::text)
    }

    /// The value of a binary (or string) property.
    #[inline]
    pub fn data(&self, id: PropertyId) -> Option<&'a [u8]> {
        self.get(id).map(Property::data)
    }

    /// The User Properties in order, as name and value.
    pub fn user(&self) -> impl Iterator<Item = (&'a str, &'a str)> + use<'a> {
        let present = self.contains(PropertyId::UserProperty);
        self.iter()
            .take_while(move |_| present)
            .filter(|p| p.id == PropertyId::UserProperty)
            .map(Property::pair)
    }

    /// How many User Properties there are.
    pub fn user_count(&self) -> usize {
        if !self.contains(PropertyId::UserProperty) {
            return 0;
        }
        self.iter()
            .filter(|p| p.id == PropertyId::UserProperty)
            .count()
    }

    /// The value of the first User Property called `name`. Compares bytes, so
    /// it is several times faster than a search through [`Properties::user`].
    #[inline]
    pub fn user_value(&self, name: &str) -> Option<&'a str> {
        if !self.contains(PropertyId::UserProperty) {
            return None;
        }
        self.iter()
            .filter(|p| p.id == PropertyId::UserProperty)
            .map(Property::raw_pair)
            .find(|(key, _)| *key == name.as_bytes())
            .and_then(|(_, value)| std::str::from_utf8(value).ok())
    }

    /// The Subscription Identifiers in order.
    pub fn subscription_ids(&self) -> impl Iterator<Item = u32> + use<'a> {
        let present = self.contains(PropertyId::SubscriptionIdentifier);
        self.iter()
            .take_while(move |_| present)
            .filter(|p| p.id == PropertyId::SubscriptionIdentifier)
            .map(Property::number)
    }

    /// Bytes that length and properties take on the wire.
    pub(crate) fn encoded_len(&self) -> usize {
        varint_len(self.bytes.len()) + self.bytes.len()
    }

    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        put_varint(out, self.bytes.len());
        out.extend_from_slice(self.bytes);
    }
}

/// Iterator over [`Properties`].
#[derive(Debug, Clone)]
pub struct PropertyIter<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for PropertyIter<'a> {
    type Item = Property<'a>;

    #[inline]
    fn next(&mut self) -> Option<Property<'a>> {
        let id = PropertyId::from_byte(*self.rest.first()?)?;
        let value = &self.rest[1..];
        let string_len = |at: usize| -> Option<usize> {
            let len = value.get(at..at + 2)?;
            Some(2 + usize::from(u16::from_be_bytes([len[0], len[1]])))
        };
        let len = match id.kind() {
            Kind::Bool => 1,
            Kind::U16 | Kind::NonZeroU16 => 2,
            Kind::U32 | Kind::NonZeroU32 => 4,
            Kind::NonZeroVarint => 1 + value.iter().position(|b| b & 0x80 == 0)?,
            Kind::Str | Kind::Binary => string_len(0)?,
            Kind::Pair => {
                let key = string_len(0)?;
                key + string_len(key)?
            }
        };
        let (bytes, rest) = self.rest.split_at_checked(1 + len)?;
        self.rest = rest;
        Some(Property { id, bytes })
    }
}

/// Builds properties to send. Methods append a property in its encoding. The caller
/// ensures that the packet allows the property, that it is not repeated, that a number is
/// not a forbidden zero, and that a string is UTF-8 without U+0000 ([`Properties::check`]
/// checks this).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PropertyBuf {
    bytes: Vec<u8>,
    seen: u64,
}

impl PropertyBuf {
    /// Without properties; allocates nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Forgets all properties and keeps the memory.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.seen = 0;
    }

    /// The properties as a packet takes them.
    #[inline]
    pub fn as_properties(&self) -> Properties<'_> {
        Properties {
            bytes: &self.bytes,
            seen: PropertySet(self.seen),
        }
    }

    fn start(&mut self, id: PropertyId) {
        self.seen |= PropertySet::bit(id);
        self.bytes.push(id as u8);
    }

    /// Appends a boolean or numeric property in the width its identifier has;
    /// a value that is too large for it becomes the largest there is. For a
    /// string or binary identifier an empty value.
    pub fn push_number(&mut self, id: PropertyId, value: u32) -> &mut Self {
        self.start(id);
        match id.kind() {
            Kind::Bool => self.bytes.push(u8::from(value != 0)),
            Kind::U16 | Kind::NonZeroU16 => {
                put_u16(&mut self.bytes, u16::try_from(value).unwrap_or(u16::MAX));
            }
            Kind::U32 | Kind::NonZeroU32 => put_u32(&mut self.bytes, value),
            Kind::NonZeroVarint => {
                put_varint(&mut self.bytes, (value as usize).min(MAX_REMAINING_LENGTH));
            }
            Kind::Str | Kind::Binary => put_u16(&mut self.bytes, 0),
            Kind::Pair => put_u32(&mut self.bytes, 0),
        }
        self
    }

    /// Appends a string or binary property.
    ///
    /// # Errors
    /// `FieldTooLong` above 65 535 bytes; nothing is appended then.
    pub fn push_data(&mut self, id: PropertyId, value: &[u8]) -> Result<&mut Self, EncodeError> {
        if value.len() > usize::from(u16::MAX) {
            return Err(EncodeError::FieldTooLong(id.name()));
        }
        self.start(id);
        put_binary(&mut self.bytes, value, id.name())?;
        Ok(self)
    }

    /// Appends a User Property.
    ///
    /// # Errors
    /// `FieldTooLong` if name or value exceeds 65 535 bytes; nothing is
    /// appended then.
    pub fn push_user(&mut self, name: &str, value: &str) -> Result<&mut Self, EncodeError> {
        let id = PropertyId::UserProperty;
        if name.len().max(value.len()) > usize::from(u16::MAX) {
            return Err(EncodeError::FieldTooLong(id.name()));
        }
        self.start(id);
        put_binary(&mut self.bytes, name.as_bytes(), id.name())?;
        put_binary(&mut self.bytes, value.as_bytes(), id.name())?;
        Ok(self)
    }

    /// Appends an already encoded property.
    pub fn push(&mut self, property: Property<'_>) -> &mut Self {
        self.seen |= PropertySet::bit(property.id);
        self.bytes.extend_from_slice(property.bytes);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use PropertyId as P;

    #[test]
    fn numbers_that_do_not_fit_are_clamped() {
        let mut buf = PropertyBuf::new();
        buf.push_number(P::TopicAlias, 70_000)
            .push_number(P::MaximumQoS, 2)
            .push_number(P::SubscriptionIdentifier, u32::MAX)
            .push_number(P::MessageExpiryInterval, u32::MAX);
        let properties = buf.as_properties();
        assert_eq!(properties.number(P::TopicAlias), Some(65_535));
        assert_eq!(properties.number(P::MaximumQoS), Some(1));
        assert_eq!(
            properties.number(P::SubscriptionIdentifier),
            Some(268_435_455)
        );
        assert_eq!(properties.number(P::MessageExpiryInterval), Some(u32::MAX));
    }

    #[test]
    fn what_is_too_long_is_not_appended() {
        let long = "x".repeat(65_536);
        let mut buf = PropertyBuf::new();
        let too_long = |id: P| Some(EncodeError::FieldTooLong(id.name()));
        assert_eq!(
            buf.push_data(P::ReasonString, long.as_bytes()).err(),
            too_long(P::ReasonString)
        );
        assert_eq!(buf.push_user(&long, "").err(), too_long(P::UserProperty));
        assert_eq!(buf.push_user("", &long).err(), too_long(P::UserProperty));
        assert_eq!(buf, PropertyBuf::new());
        assert!(buf.push_user(&long[1..], &long[1..]).is_ok());
    }

    #[test]
    fn clear_forgets_all() {
        let mut buf = PropertyBuf::new();
        buf.push_number(P::TopicAlias, 1);
        buf.clear();
        assert!(buf.as_properties().is_empty());
        assert!(!buf.as_properties().contains(P::TopicAlias));
    }

    #[test]
    fn first_of_equal_names_is_found() {
        let mut buf = PropertyBuf::new();
        for (name, value) in [("a", "1"), ("b", "2"), ("a", "3")] {
            assert!(buf.push_user(name, value).is_ok());
        }
        let properties = buf.as_properties();
        assert_eq!(properties.user_value("a"), Some("1"));
        assert_eq!(properties.user_value("b"), Some("2"));
        assert_eq!(properties.user_value("c"), None);
        assert_eq!(properties.user().count(), 3);
        assert_eq!(properties.user_count(), 3);
        assert_eq!(Properties::EMPTY.user_count(), 0);
        assert_eq!(Properties::EMPTY.user_value("a"), None);
    }

    /// Accessors of another kind give their documented empty values.
    #[test]
    fn values_of_another_kind() {
        let mut buf = PropertyBuf::new();
        assert!(buf.push_data(P::ReasonString, b"text").is_ok());
        let text = buf.as_properties().get(P::ReasonString);
        assert_eq!(text.map(Property::number), Some(0));
        assert_eq!(text.map(Property::pair), Some(("", "")));
        assert_eq!(text.map(Property::text), Some("text"));
    }
}
