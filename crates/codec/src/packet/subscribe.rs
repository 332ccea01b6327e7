//! SUBSCRIBE (section 3.8).

use crate::wire::{Reader, put_binary, put_header, put_u16};
use crate::{DecodeError, EncodeError, Properties, PropertySet, QoS, Version, topic};

/// When retained messages are sent at subscribe time (section 3.8.3.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(u8)]
pub enum RetainHandling {
    /// At every SUBSCRIBE.
    #[default]
    Send = 0,
    /// Only if the subscription is new.
    SendIfNew = 1,
    /// Never.
    DoNotSend = 2,
}

/// Options of one subscription.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SubscribeOptions {
    /// Maximum quality of service to deliver with.
    pub qos: QoS,
    /// Whether the client's own publications are left out.
    pub no_local: bool,
    /// Whether the retain flag is forwarded as published.
    pub retain_as_published: bool,
    /// When retained messages are sent.
    pub retain_handling: RetainHandling,
}

impl SubscribeOptions {
    /// Decodes the options byte.
    ///
    /// # Errors
    /// `Malformed` for reserved bits [MQTT-3.8.3-5]; for QoS 3 and retain
    /// handling 3 `Protocol` (section 3.8.3.1), before MQTT 5 `Malformed`.
    pub fn from_byte(byte: u8, version: Version) -> Result<Self, DecodeError> {
        let reserved = if version.is_v5() { 0xC0 } else { 0xFC };
        if byte & reserved != 0 {
            return Err(DecodeError::Malformed("reserved subscription options"));
        }
        Ok(Self {
            qos: match QoS::from_bits(byte & 3) {
                Some(qos) => qos,
                None if version.is_v5() => return Err(DecodeError::Protocol("subscription QoS")),
                None => return Err(DecodeError::Malformed("subscription QoS")),
            },
            no_local: byte & 0x04 != 0,
            retain_as_published: byte & 0x08 != 0,
            retain_handling: match (byte >> 4) & 3 {
                0 => RetainHandling::Send,
                1 => RetainHandling::SendIfNew,
                2 => RetainHandling::DoNotSend,
                _ => return Err(DecodeError::Protocol("retain handling")),
            },
        })
    }

    /// The options of a subscription of a bridge before MQTT 5, whose SUBSCRIBE has no
    /// bits for them: No Local, so that no message returns to the bridge that published
    /// it, and Retain As Published, so that messages retained here are retained there. A
    /// shared subscription has no No Local [MQTT-3.8.3-4].
    #[must_use]
    pub fn of_bridge(self, filter: &str) -> Self {
        Self {
            no_local: !filter.starts_with(topic::SHARE_PREFIX),
            retain_as_published: true,
            ..self
        }
    }

    /// The options byte.
    pub fn byte(self) -> u8 {
        self.qos as u8
            | u8::from(self.no_local) << 2
            | u8::from(self.retain_as_published) << 3
            | (self.retain_handling as u8) << 4
    }
}

/// A request to subscribe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Subscribe<'a> {
    /// Packet identifier; never 0 when decoded.
    pub packet_id: u16,
    /// Empty before MQTT 5.
    pub properties: Properties<'a>,
    payload: &'a [u8],
    version: Version,
}

impl<'a> Subscribe<'a> {
    /// Decodes the body of SUBSCRIBE and checks every filter.
    ///
    /// # Errors
    /// `Protocol` without a filter; `TopicFilterInvalid`; `Malformed`; and
    /// `Protocol` for No Local on a shared subscription [MQTT-3.8.3-4].
    pub fn decode(body: &'a [u8], version: Version) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(body);
        let packet_id = reader.packet_id()?;
        let properties = if version.is_v5() {
            Properties::read(&mut reader, PropertySet::SUBSCRIBE)?
        } else {
            Properties::EMPTY
        };
        let payload = reader.rest();
        if payload.is_empty() {
            return Err(DecodeError::Protocol("SUBSCRIBE without topic filter"));
        }
        while !reader.is_empty() {
            let filter = reader.string("topic filter")?;
            let options = SubscribeOptions::from_byte(reader.u8("subscription options")?, version)?;
            topic::validate_filter(filter)?;
            if options.no_local && filter.starts_with(topic::SHARE_PREFIX) {
                return Err(DecodeError::Protocol("No Local on a shared subscription"));
            }
        }
        Ok(Self {
            packet_id,
            properties,
            payload,
            version,
        })
    }

    /// The filters and their options, in order.
    pub fn filters(&self) -> SubscribeFilters<'a> {
        SubscribeFilters::new(self.payload, self.version)
    }

    /// The payload, from which [`SubscribeFilters::new`] reads the filters, too.
    pub fn payload(&self) -> &'a [u8] {
        self.payload
    }

    /// Appends a SUBSCRIBE made of `filters`.
    ///
    /// # Errors
    /// See [`EncodeError`]. `out` is unchanged then.
    pub fn put(
        packet_id: u16,
        properties: Properties<'_>,
        filters: &[(&str, SubscribeOptions)],
        version: Version,
        out: &mut Vec<u8>,
    ) -> Result<(), EncodeError> {
        let mut payload = Vec::with_capacity(filters.iter().map(|(f, _)| f.len() + 3).sum());
        for (filter, options) in filters {
            put_binary(&mut payload, filter.as_bytes(), "topic filter")?;
            payload.push(options.byte());
        }
        Subscribe {
            packet_id,
            properties,
            payload: &payload,
            version,
        }
        .encode(version, out)
    }

    /// Appends the packet.
    ///
    /// # Errors
    /// `PacketTooLong`.
    pub fn encode(&self, version: Version, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        let properties = if version.is_v5() {
            self.properties.encoded_len()
        } else {
            0
        };
        put_header(out, 0x82, 2 + properties + self.payload.len())?;
        put_u16(out, self.packet_id);
        if version.is_v5() {
            self.properties.put(out);
        }
        out.extend_from_slice(self.payload);
        Ok(())
    }
}

/// Iterator over the filters of a [`Subscribe`].
#[derive(Clone)]
pub struct SubscribeFilters<'a> {
    reader: Reader<'a>,
    version: Version,
}

impl<'a> SubscribeFilters<'a> {
    /// Those of a payload that was checked by [`Subscribe::decode`], or of what an earlier iterator
    /// left of it ([`Self::rest`]).
    pub fn new(payload: &'a [u8], version: Version) -> Self {
        Self {
            reader: Reader::new(payload),
            version,
        }
    }

    /// The bytes that were not read yet.
    pub fn rest(&self) -> &'a [u8] {
        self.reader.rest()
    }
}

impl<'a> Iterator for SubscribeFilters<'a> {
    type Item = (&'a str, SubscribeOptions);

    fn next(&mut self) -> Option<Self::Item> {
        let filter = self.reader.string("").ok()?;
        let options = self.reader.u8("").ok()?;
        Some((
            filter,
            SubscribeOptions::from_byte(options, self.version).ok()?,
        ))
    }
}
