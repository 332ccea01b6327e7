//! Packets of a neighbour that are passed on together, as they are or in the other protocol
//! version.

use punctual_codec::{Publish, QoS, Split, put_varint, split};

/// First byte of a PUBLISH with QoS 0, not retained.
pub(crate) const PLAIN: u8 = Publish::first_byte(false, QoS::AtMostOnce, false);

/// The form in which a receiver accepts plain publications of one protocol version.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Taking {
    /// Whether they must be encoded for the other version.
    pub(crate) other_version: bool,
    /// Size in bytes of the largest packet that the receiver is known to accept.
    pub(crate) most: u32,
}

/// The packets of a batch.
pub(crate) struct Packets<'a> {
    /// Whether they were received as packets of MQTT 5.
    pub(crate) v5: bool,
    pub(crate) received: &'a [u8],
    /// The packets encoded for the other version, if a receiver needs that.
    pub(crate) rewritten: &'a [u8],
    pub(crate) messages: u64,
    /// Bytes of all payloads.
    pub(crate) payload: usize,
}

impl Packets<'_> {
    /// The packets in the version of a receiver.
    #[inline]
    pub(crate) fn bytes(&self, v5: bool) -> &[u8] {
        match v5 == self.v5 {
            true => self.received,
            false => self.rewritten,
        }
    }
}

/// Encodes plain publications without properties for the other protocol version: with the length of
/// the properties between topic and payload, or without it. `v5` is the version of `data`, whose
/// packets begin with `topic` bytes of topic and its length.
pub(crate) fn rewrite(data: &[u8], topic: usize, v5: bool, rewritten: &mut Vec<u8>) {
    rewritten.clear();
    let mut rest = data;
    while let Ok(Split::Frame(frame)) = split(rest, u32::MAX) {
        rest = &rest[frame.bytes.len()..];
        let (prefix, payload) = frame.body.split_at(topic.min(frame.body.len()));
        rewritten.push(PLAIN);
        if v5 {
            let payload = payload.get(1..).unwrap_or_default();
            put_varint(rewritten, prefix.len() + payload.len());
            rewritten.extend_from_slice(prefix);
            rewritten.extend_from_slice(payload);
        } else {
            put_varint(rewritten, frame.body.len() + 1);
            rewritten.extend_from_slice(prefix);
            rewritten.push(0);
            rewritten.extend_from_slice(payload);
        }
    }
}
