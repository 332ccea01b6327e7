//! UNSUBSCRIBE (section 3.10).

use crate::wire::{Reader, put_binary, put_header, put_u16};
use crate::{DecodeError, EncodeError, Properties, PropertySet, Version, topic};

/// A request to end subscriptions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unsubscribe<'a> {
    /// Packet identifier; never 0 when decoded.
    pub packet_id: u16,
    /// Empty before MQTT 5.
    pub properties: Properties<'a>,
    payload: &'a [u8],
}

impl<'a> Unsubscribe<'a> {
    /// Decodes the body of UNSUBSCRIBE and checks every filter.
    ///
    /// # Errors
    /// `Protocol` without a filter; `TopicFilterInvalid`; `Malformed`.
    pub fn decode(body: &'a [u8], version: Version) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(body);
        let packet_id = reader.packet_id()?;
        let properties = if version.is_v5() {
            Properties::read(&mut reader, PropertySet::UNSUBSCRIBE)?
        } else {
            Properties::EMPTY
        };
        let payload = reader.rest();
        if payload.is_empty() {
            return Err(DecodeError::Protocol("UNSUBSCRIBE without topic filter"));
        }
        while !reader.is_empty() {
            topic::validate_filter(reader.string("topic filter")?)?;
        }
        Ok(Self {
            packet_id,
            properties,
            payload,
        })
    }

    /// The filters, in order.
    pub fn filters(&self) -> UnsubscribeFilters<'a> {
        UnsubscribeFilters::new(self.payload)
    }

    /// The payload, from which [`UnsubscribeFilters::new`] reads the filters, too.
    pub fn payload(&self) -> &'a [u8] {
        self.payload
    }

    /// Appends an UNSUBSCRIBE made of `filters`.
    ///
    /// # Errors
    /// See [`EncodeError`]. `out` is unchanged then.
    pub fn put(
        packet_id: u16,
        properties: Properties<'_>,
        filters: &[&str],
        version: Version,
        out: &mut Vec<u8>,
    ) -> Result<(), EncodeError> {
        let mut payload = Vec::with_capacity(filters.iter().map(|f| f.len() + 2).sum());
        for filter in filters {
            put_binary(&mut payload, filter.as_bytes(), "topic filter")?;
        }
        Unsubscribe {
            packet_id,
            properties,
            payload: &payload,
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
        put_header(out, 0xA2, 2 + properties + self.payload.len())?;
        put_u16(out, self.packet_id);
        if version.is_v5() {
            self.properties.put(out);
        }
        out.extend_from_slice(self.payload);
        Ok(())
    }
}

/// Iterator over the filters of an [`Unsubscribe`].
#[derive(Clone)]
pub struct UnsubscribeFilters<'a> {
    reader: Reader<'a>,
}

impl<'a> UnsubscribeFilters<'a> {
    /// Those of a payload that was checked by [`Unsubscribe::decode`], or of what an earlier iterator
    /// left of it ([`Self::rest`]).
    pub fn new(payload: &'a [u8]) -> Self {
        Self {
            reader: Reader::new(payload),
        }
    }

    /// The bytes that were not read yet.
    pub fn rest(&self) -> &'a [u8] {
        self.reader.rest()
    }
}

impl<'a> Iterator for UnsubscribeFilters<'a> {
    type Item = &'a str;

    fn next(&mut self) -> Option<&'a str> {
        self.reader.string("").ok()
    }
}
