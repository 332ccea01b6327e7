//! The little MQTT that a load generator and a floor need: frames, a handful of packets to
//! send, PUBLISH and CONNACK to read.
//!
//! It shares no code with the broker's codec on purpose: a fault in that codec must not hide
//! itself from the measurement. Sources: MQTT 3.1.1 section 2.2 and chapter 3, MQTT 5.0
//! section 2.1 and chapter 3.

use std::fmt;
use std::str::FromStr;

use serde::Serialize;

/// Packet types as they stand in the high half of the first byte.
pub mod kind {
    /// Client to server.
    pub const CONNECT: u8 = 1;
    /// Server to client.
    pub const CONNACK: u8 = 2;
    /// Both ways.
    pub const PUBLISH: u8 = 3;
    /// Ends QoS 1.
    pub const PUBACK: u8 = 4;
    /// QoS 2, first answer.
    pub const PUBREC: u8 = 5;
    /// QoS 2, second step.
    pub const PUBREL: u8 = 6;
    /// Ends QoS 2.
    pub const PUBCOMP: u8 = 7;
    /// Client to server.
    pub const SUBSCRIBE: u8 = 8;
    /// Server to client.
    pub const SUBACK: u8 = 9;
    /// Client to server.
    pub const UNSUBSCRIBE: u8 = 10;
    /// Server to client.
    pub const UNSUBACK: u8 = 11;
    /// Client to server.
    pub const PINGREQ: u8 = 12;
    /// Both ways; from a server in version 5 only.
    pub const DISCONNECT: u8 = 14;
}

/// A whole PINGRESP.
pub const PINGRESP: [u8; 2] = [13 << 4, 0];

/// Protocol version spoken by the generator's clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Version {
    /// MQTT 3.1.1 (protocol level 4).
    #[serde(rename = "3.1.1")]
    V311,
    /// MQTT 5.0 (protocol level 5).
    #[serde(rename = "5.0")]
    V5,
}

impl Version {
    fn level(self) -> u8 {
        match self {
            Self::V311 => 4,
            Self::V5 => 5,
        }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::V311 => "3.1.1",
            Self::V5 => "5.0",
        })
    }
}

impl FromStr for Version {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "3" | "4" | "311" | "3.1.1" | "v3" | "mqttv311" => Ok(Self::V311),
            "5" | "5.0" | "v5" | "mqttv5" => Ok(Self::V5),
            _ => Err("write 3.1.1 or 5".to_owned()),
        }
    }
}

/// What stands at the front of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frame {
    /// Not yet a whole packet.
    Incomplete,
    /// A whole packet.
    Packet {
        /// First byte: type and flags.
        first: u8,
        /// Where the body begins.
        body: usize,
        /// Where the packet ends.
        end: usize,
    },
    /// A remaining length of more than four bytes.
    Malformed,
}

/// Looks for one packet at the front of `bytes`.
#[inline]
pub fn frame(bytes: &[u8]) -> Frame {
    // One-byte lengths are the common case of small messages.
    if let [first, length, ..] = *bytes
        && length < 0x80
    {
        let end = 2 + usize::from(length);
        if bytes.len() < end {
            return Frame::Incomplete;
        }
        return Frame::Packet {
            first,
            body: 2,
            end,
        };
    }
    let Some((&first, rest)) = bytes.split_first() else {
        return Frame::Incomplete;
    };
    match varint(rest) {
        Varint::Value { value, len } => {
            let body = 1 + len;
            let end = body + value;
            if bytes.len() < end {
                Frame::Incomplete
            } else {
                Frame::Packet { first, body, end }
            }
        }
        Varint::Incomplete => Frame::Incomplete,
        Varint::Malformed => Frame::Malformed,
    }
}

/// Bytes of the packet at the front of `bytes`, its header included, as soon as the header is whole;
/// for those who do not keep large ones. `None` before that, and if it is malformed.
pub fn packet_length(bytes: &[u8]) -> Option<usize> {
    match varint(bytes.get(1..)?) {
        Varint::Value { value, len } => Some(1 + len + value),
        Varint::Incomplete | Varint::Malformed => None,
    }
}

enum Varint {
    Value { value: usize, len: usize },
    Incomplete,
    Malformed,
}

fn varint(bytes: &[u8]) -> Varint {
    let mut value = 0;
    for (i, &byte) in bytes.iter().take(4).enumerate() {
        value |= usize::from(byte & 0x7f) << (7 * i);
        if byte < 0x80 {
            return Varint::Value { value, len: i + 1 };
        }
    }
    if bytes.len() < 4 {
        Varint::Incomplete
    } else {
        Varint::Malformed
    }
}

fn put_varint(out: &mut Vec<u8>, mut value: usize) {
    loop {
        let low = (value & 0x7f) as u8;
        value >>= 7;
        if value == 0 {
            out.push(low);
            return;
        }
        out.push(low | 0x80);
    }
}

/// Appends a text with its length before it.
pub fn put_string(out: &mut Vec<u8>, text: &str) {
    put_u16(out, text.len() as u16);
    out.extend_from_slice(text.as_bytes());
}

fn put_u16(out: &mut Vec<u8>, value: u16) {
    out.extend_from_slice(&value.to_be_bytes());
}

/// Appends a fixed header for a body of `remaining` bytes.
pub fn put_header(out: &mut Vec<u8>, first: u8, remaining: usize) {
    out.push(first);
    put_varint(out, remaining);
}

fn put_packet(out: &mut Vec<u8>, first: u8, body: &[u8]) {
    put_header(out, first, body.len());
    out.extend_from_slice(body);
}

/// Keep-alive of the generator's clients, s: longer than any run, so that nobody pings. Not 0,
/// which some brokers take for a fault.
const KEEP_ALIVE: u16 = 3600;

/// Appends a CONNECT with a clean session.
pub fn put_connect(out: &mut Vec<u8>, version: Version, client_id: &str) {
    put_connect_with(out, version, client_id, false);
}

/// Appends a CONNECT; a persistent session is taken up, and never expires.
pub fn put_connect_with(out: &mut Vec<u8>, version: Version, client_id: &str, persistent: bool) {
    const CLEAN_START: u8 = 0x02;
    const SESSION_EXPIRY_FOR_EVER: [u8; 5] = [0x11, 0xFF, 0xFF, 0xFF, 0xFF];
    let mut body = Vec::with_capacity(32 + client_id.len());
    put_string(&mut body, "MQTT");
    body.push(version.level());
    body.push(if persistent { 0 } else { CLEAN_START });
    put_u16(&mut body, KEEP_ALIVE);
    if version == Version::V5 {
        // Receive Maximum 65535 is the default, so it need not be said.
        let properties: &[u8] = match persistent {
            true => &SESSION_EXPIRY_FOR_EVER,
            false => &[],
        };
        put_varint(&mut body, properties.len());
        body.extend_from_slice(properties);
    }
    put_string(&mut body, client_id);
    put_packet(out, kind::CONNECT << 4, &body);
}

/// Appends a CONNACK that accepts.
pub fn put_connack(out: &mut Vec<u8>, version: Version) {
    let body: &[u8] = match version {
        Version::V311 => &[0, 0],
        Version::V5 => &[0, 0, 0],
    };
    put_packet(out, kind::CONNACK << 4, body);
}

/// Appends a SUBSCRIBE to `filters`, all at `qos`.
pub fn put_subscribe(out: &mut Vec<u8>, version: Version, id: u16, filters: &[String], qos: u8) {
    let mut body = Vec::with_capacity(32);
    put_u16(&mut body, id);
    if version == Version::V5 {
        body.push(0);
    }
    for filter in filters {
        put_string(&mut body, filter);
        body.push(qos);
    }
    put_packet(out, kind::SUBSCRIBE << 4 | 2, &body);
}

/// Appends a SUBACK that grants `granted`.
pub fn put_suback(out: &mut Vec<u8>, version: Version, id: u16, granted: &[u8]) {
    let mut body = Vec::with_capacity(3 + granted.len());
    put_u16(&mut body, id);
    if version == Version::V5 {
        body.push(0);
    }
    body.extend_from_slice(granted);
    put_packet(out, kind::SUBACK << 4, &body);
}

/// Appends PUBACK, PUBREC, PUBREL or PUBCOMP (`kind`) for `id`; the short form means success in
/// both versions.
#[inline]
pub fn put_ack(out: &mut Vec<u8>, kind: u8, id: u16) {
    let flags = if kind == kind::PUBREL { 2 } else { 0 };
    let [high, low] = id.to_be_bytes();
    out.extend_from_slice(&[kind << 4 | flags, 2, high, low]);
}

/// A PUBLISH encoded once; sending it is a copy and a few patched bytes.
#[derive(Clone, Debug)]
pub struct PublishTemplate {
    /// The packet.
    pub bytes: Vec<u8>,
    /// Where the packet identifier stands; `None` at QoS 0.
    pub id_at: Option<usize>,
    /// Where the payload begins.
    pub payload_at: usize,
}

impl PublishTemplate {
    /// Without user properties.
    pub fn new(version: Version, topic: &str, qos: u8, payload: &[u8]) -> Self {
        Self::with_user_properties(version, topic, qos, &[], payload)
    }

    /// With user properties, which version 3.1.1 leaves out (MQTT 5.0 section 3.3.2.3.7).
    pub fn with_user_properties(
        version: Version,
        topic: &str,
        qos: u8,
        user_properties: &[(String, String)],
        payload: &[u8],
    ) -> Self {
        const USER_PROPERTY: u8 = 0x26;
        let mut body = Vec::with_capacity(topic.len() + payload.len() + 8);
        put_string(&mut body, topic);
        let id_in_body = (qos > 0).then_some(body.len());
        if qos > 0 {
            put_u16(&mut body, 0);
        }
        if version == Version::V5 {
            let mut properties = Vec::new();
            for (key, value) in user_properties {
                properties.push(USER_PROPERTY);
                put_string(&mut properties, key);
                put_string(&mut properties, value);
            }
            put_varint(&mut body, properties.len());
            body.extend_from_slice(&properties);
        }
        body.extend_from_slice(payload);
        let mut bytes = Vec::with_capacity(body.len() + 5);
        put_packet(&mut bytes, kind::PUBLISH << 4 | qos << 1, &body);
        let header = bytes.len() - body.len();
        Self {
            id_at: id_in_body.map(|at| header + at),
            payload_at: bytes.len() - payload.len(),
            bytes,
        }
    }
}

/// A received PUBLISH, borrowed from the receive buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Publish<'a> {
    /// QoS, 0 to 2.
    pub qos: u8,
    /// The topic.
    pub topic: &'a [u8],
    /// 0 at QoS 0.
    pub id: u16,
    /// Where the packet identifier stands in the body (QoS 1 and 2) or would stand (QoS 0).
    pub id_at: usize,
    /// The payload.
    pub payload: &'a [u8],
}

/// Reads the body of a PUBLISH; `None` if it is malformed.
#[inline]
pub fn publish(first: u8, body: &[u8], version: Version) -> Option<Publish<'_>> {
    let qos = first >> 1 & 3;
    let [high, low, ..] = *body else { return None };
    let id_at = 2 + usize::from(u16::from_be_bytes([high, low]));
    let topic = body.get(2..id_at)?;
    let mut rest = body.get(id_at..)?;
    let mut id = 0;
    if qos > 0 {
        let [high, low, ..] = *rest else { return None };
        id = u16::from_be_bytes([high, low]);
        rest = &rest[2..];
    }
    if version == Version::V5 {
        let Varint::Value { value, len } = varint(rest) else {
            return None;
        };
        rest = rest.get(len + value..)?;
    }
    Some(Publish {
        qos,
        topic,
        id,
        id_at,
        payload: rest,
    })
}

/// The packet identifier that begins a body (acknowledgements, SUBSCRIBE, SUBACK).
#[inline]
pub fn leading_id(body: &[u8]) -> Option<u16> {
    let [high, low, ..] = *body else { return None };
    Some(u16::from_be_bytes([high, low]))
}

/// The version asked for by a CONNECT body; `None` if it is neither of ours.
pub fn connect_version(body: &[u8]) -> Option<Version> {
    match body.strip_prefix(b"\x00\x04MQTT")?.first()? {
        4 => Some(Version::V311),
        5 => Some(Version::V5),
        _ => None,
    }
}

/// The filters and requested QoS of a SUBSCRIBE body; `None` if it is malformed.
pub fn subscribe_filters(body: &[u8], version: Version) -> Option<Vec<(&[u8], u8)>> {
    let mut rest = body.get(2..)?;
    if version == Version::V5 {
        let Varint::Value { value, len } = varint(rest) else {
            return None;
        };
        rest = rest.get(len + value..)?;
    }
    let mut filters = Vec::new();
    while !rest.is_empty() {
        let end = 2 + usize::from(leading_id(rest)?);
        filters.push((rest.get(2..end)?, rest.get(end)? & 3));
        rest = &rest[end + 1..];
    }
    Some(filters)
}

/// What a CONNACK tells a publisher.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connack {
    /// Whether the broker had a session of the client.
    pub session_present: bool,
    /// 0 is success.
    pub code: u8,
    /// How many QoS 1 and 2 messages the broker takes unacknowledged.
    pub receive_maximum: u16,
}

/// Reads a CONNACK body; `None` if it is malformed.
pub fn connack(body: &[u8], version: Version) -> Option<Connack> {
    let [flags, code, ref rest @ ..] = *body else {
        return None;
    };
    let mut receive_maximum = u16::MAX;
    if version == Version::V5 && !rest.is_empty() {
        let Varint::Value { value, len } = varint(rest) else {
            return None;
        };
        let properties = rest.get(len..len + value)?;
        if let Some(value) = find_receive_maximum(properties)? {
            receive_maximum = value;
        }
    }
    Some(Connack {
        session_present: flags & 1 != 0,
        code,
        receive_maximum,
    })
}

/// Walks CONNACK properties (MQTT 5.0 section 3.2.2.3) to Receive Maximum (0x21).
fn find_receive_maximum(mut properties: &[u8]) -> Option<Option<u16>> {
    const RECEIVE_MAXIMUM: u8 = 0x21;
    while let Some((&key, rest)) = properties.split_first() {
        if key == RECEIVE_MAXIMUM {
            return leading_id(rest).map(Some);
        }
        let len = match key {
            0x24 | 0x25 | 0x28 | 0x29 | 0x2A => 1,
            0x13 | 0x22 => 2,
            0x11 | 0x27 => 4,
            0x12 | 0x15 | 0x16 | 0x1A | 0x1C | 0x1F => 2 + usize::from(leading_id(rest)?),
            0x26 => {
                let name = 2 + usize::from(leading_id(rest)?);
                name + 2 + usize::from(leading_id(rest.get(name..)?)?)
            }
            _ => return None,
        };
        properties = rest.get(len..)?;
    }
    Some(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn only_packet(bytes: &[u8]) -> (u8, &[u8]) {
        match frame(bytes) {
            Frame::Packet { first, body, end } if end == bytes.len() => (first, &bytes[body..]),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn frame_knows_every_prefix_as_incomplete() {
        let template = PublishTemplate::new(Version::V311, "a/b", 1, &[7; 300]);
        for cut in 0..template.bytes.len() {
            assert_eq!(frame(&template.bytes[..cut]), Frame::Incomplete, "{cut}");
            let length = (cut >= 3).then_some(template.bytes.len());
            assert_eq!(packet_length(&template.bytes[..cut]), length, "{cut}");
        }
        assert_eq!(
            frame(&template.bytes),
            Frame::Packet {
                first: 0x32,
                body: 3,
                end: template.bytes.len()
            }
        );
    }

    #[test]
    fn frame_refuses_a_length_of_five_bytes() {
        assert_eq!(frame(&[0x30, 0x80, 0x80, 0x80]), Frame::Incomplete);
        assert_eq!(frame(&[0x30, 0x80, 0x80, 0x80, 0x80]), Frame::Malformed);
        assert_eq!(packet_length(&[0x30, 0x80, 0x80, 0x80, 0x80]), None);
    }

    #[test]
    fn user_properties_stand_between_topic_and_payload() {
        let properties = [("priority".to_owned(), "3".to_owned())];
        let template =
            PublishTemplate::with_user_properties(Version::V5, "t", 0, &properties, b"load");
        let expected = [
            &[0x30, 22, 0, 1, b't', 14, 0x26, 0, 8][..],
            b"priority",
            &[0, 1, b'3'],
            b"load",
        ]
        .concat();
        assert_eq!(template.bytes, expected);
        let (first, body) = only_packet(&template.bytes);
        let publish = publish(first, body, Version::V5).unwrap();
        assert_eq!((publish.topic, publish.payload), (&b"t"[..], &b"load"[..]));
    }

    #[test]
    fn connack_finds_receive_maximum_behind_other_properties() {
        // Session expiry, assigned client id, user property, then Receive Maximum.
        let mut body = vec![0, 0, 0];
        body.extend([0x11, 0, 0, 0, 9]);
        body.extend([0x12, 0, 2, b'i', b'd']);
        body.extend([0x26, 0, 1, b'k', 0, 2, b'v', b'w']);
        body.extend([0x21, 0, 20]);
        body[2] = (body.len() - 3) as u8;
        assert_eq!(
            connack(&body, Version::V5),
            Some(Connack {
                session_present: false,
                code: 0,
                receive_maximum: 20
            })
        );
        assert_eq!(connack(&[0, 5], Version::V311).map(|c| c.code), Some(5));
        assert_eq!(connack(&[0, 0, 1, 0x99], Version::V5), None);
    }

    #[test]
    fn subscribe_is_read_as_it_was_written() {
        for version in [Version::V311, Version::V5] {
            let mut bytes = Vec::new();
            let filters = ["a/b".to_owned(), "c".to_owned()];
            put_subscribe(&mut bytes, version, 9, &filters, 1);
            let (first, body) = only_packet(&bytes);
            assert_eq!(first, 0x82);
            assert_eq!(leading_id(body), Some(9));
            assert_eq!(
                subscribe_filters(body, version).unwrap(),
                [(&b"a/b"[..], 1), (&b"c"[..], 1)]
            );
        }
        assert_eq!(subscribe_filters(&[0, 1, 0, 5, b'a'], Version::V311), None);
    }

    #[test]
    fn connect_names_its_version() {
        for version in [Version::V311, Version::V5] {
            let mut bytes = Vec::new();
            put_connect(&mut bytes, version, "c1");
            let (first, body) = only_packet(&bytes);
            assert_eq!(first, 0x10);
            assert_eq!(connect_version(body), Some(version));
        }
        assert_eq!(connect_version(b"\x00\x06MQIsdp\x03"), None);
    }

    proptest! {
        #[test]
        fn publish_is_read_as_it_was_written(
            v5: bool,
            topic in "[a-z/]{1,40}",
            qos in 0u8..3,
            id: u16,
            payload in proptest::collection::vec(any::<u8>(), 0..40_000),
        ) {
            let version = if v5 { Version::V5 } else { Version::V311 };
            let mut template = PublishTemplate::new(version, &topic, qos, &payload);
            prop_assert_eq!(&template.bytes[template.payload_at..], &payload[..]);
            if let Some(at) = template.id_at {
                template.bytes[at..at + 2].copy_from_slice(&id.to_be_bytes());
            }
            let (first, body) = only_packet(&template.bytes);
            let read = publish(first, body, version).unwrap();
            prop_assert_eq!(read.qos, qos);
            prop_assert_eq!(read.topic, topic.as_bytes());
            prop_assert_eq!(read.id, if qos > 0 { id } else { 0 });
            prop_assert_eq!(read.payload, &payload[..]);
        }

        #[test]
        fn reading_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..64), first: u8) {
            let _ = frame(&bytes);
            for version in [Version::V311, Version::V5] {
                let _ = publish(first, &bytes, version);
                let _ = connack(&bytes, version);
                let _ = subscribe_filters(&bytes, version);
            }
        }
    }
}
