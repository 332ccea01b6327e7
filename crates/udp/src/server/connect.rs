//! What over UDP has to be different in CONNECT and CONNACK, and packets that
//! the endpoint says by itself.
//!
//! Topic aliases are state that a lost datagram would tear apart, so neither
//! side may have them; and no packet may be larger than a datagram can carry,
//! which MQTT 5 has a property for.

use punctual_codec::{
    ConnAck, Connect, Disconnect, Frame, Packet, Properties, PropertyBuf, PropertyId, ReasonCode,
    Version,
};

/// Appends CONNECT, without topic aliases and with a Maximum Packet Size of at
/// most `capacity`. One that is malformed, or no MQTT 5, stays as it is.
pub(super) fn put_connect(frame: &Frame<'_>, capacity: usize, out: &mut Vec<u8>) {
    let start = out.len();
    if let Ok(mut connect) = Connect::decode(frame.body)
        && connect.version.is_v5()
        && frame.is_minimal()
    {
        let properties = adjusted(connect.properties, capacity);
        connect.properties = properties.as_properties();
        if connect.encode(out).is_ok() {
            return;
        }
        out.truncate(start);
    }
    out.extend_from_slice(frame.bytes);
}

/// Appends CONNACK, with the same changes.
pub(super) fn put_connack(frame: &Frame<'_>, version: Version, capacity: usize, out: &mut Vec<u8>) {
    let start = out.len();
    if version.is_v5()
        && let Ok(mut connack) = ConnAck::decode(frame.body, version)
        && !connack.reason.is_error()
    {
        let properties = adjusted(connack.properties, capacity);
        connack.properties = properties.as_properties();
        if connack.encode(version, out).is_ok() {
            return;
        }
        out.truncate(start);
    }
    out.extend_from_slice(frame.bytes);
}

fn adjusted(properties: Properties<'_>, capacity: usize) -> PropertyBuf {
    let capacity = u32::try_from(capacity).unwrap_or(u32::MAX);
    let mut adjusted = PropertyBuf::new();
    let mut max = capacity;
    for property in properties.iter() {
        match property.id {
            PropertyId::TopicAliasMaximum => {}
            PropertyId::MaximumPacketSize => max = max.min(property.number()),
            _ => {
                adjusted.push(property);
            }
        }
    }
    adjusted.push_number(PropertyId::MaximumPacketSize, max);
    adjusted
}

/// Appends a CONNACK that refuses; nothing where the version is not known.
pub(super) fn put_connack_refusal(version: Option<Version>, reason: ReasonCode, out: &mut Vec<u8>) {
    let connack = ConnAck {
        session_present: false,
        reason,
        properties: Properties::EMPTY,
    };
    if let Some(version) = version {
        let _ = connack.encode(version, out);
    }
}

/// Appends a DISCONNECT with a reason; nothing before MQTT 5, where servers
/// have none.
pub(super) fn put_disconnect(version: Version, reason: ReasonCode, why: &str, out: &mut Vec<u8>) {
    if !version.is_v5() {
        return;
    }
    let mut properties = PropertyBuf::new();
    let _ = properties.push_data(PropertyId::ReasonString, why.as_bytes());
    let disconnect = Disconnect {
        reason,
        properties: properties.as_properties(),
    };
    let _ = Packet::Disconnect(disconnect).encode(version, out);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::frames;

    fn frame(packet: &[u8]) -> Frame<'_> {
        frames(packet, packet.len()).next().unwrap()
    }

    fn connect(version: Version, properties: &PropertyBuf) -> Vec<u8> {
        let mut out = Vec::new();
        Connect {
            version,
            clean_start: true,
            keep_alive: 10,
            client_id: "c",
            will: None,
            username: Some("u"),
            password: Some(b"p"),
            properties: properties.as_properties(),
        }
        .encode(&mut out)
        .unwrap();
        out
    }

    #[test]
    fn aliases_go_and_the_size_is_bounded() {
        let mut properties = PropertyBuf::new();
        properties
            .push_number(PropertyId::TopicAliasMaximum, 10)
            .push_number(PropertyId::ReceiveMaximum, 7)
            .push_number(PropertyId::MaximumPacketSize, 100_000);
        let packet = connect(Version::V5, &properties);
        let mut out = Vec::new();
        put_connect(&frame(&packet), 1400, &mut out);
        let read = Connect::decode(frame(&out).body).unwrap();
        assert_eq!(read.properties.number(PropertyId::TopicAliasMaximum), None);
        assert_eq!(read.properties.number(PropertyId::ReceiveMaximum), Some(7));
        assert_eq!(
            read.properties.number(PropertyId::MaximumPacketSize),
            Some(1400)
        );
        assert_eq!((read.username, read.password), (Some("u"), Some(&b"p"[..])));

        let mut smaller = PropertyBuf::new();
        smaller.push_number(PropertyId::MaximumPacketSize, 99);
        let packet = connect(Version::V5, &smaller);
        out.clear();
        put_connect(&frame(&packet), 1400, &mut out);
        let read = Connect::decode(frame(&out).body).unwrap();
        assert_eq!(
            read.properties.number(PropertyId::MaximumPacketSize),
            Some(99)
        );
    }

    #[test]
    fn what_is_not_mqtt_5_stays() {
        let packet = connect(Version::V311, &PropertyBuf::new());
        let mut out = Vec::new();
        put_connect(&frame(&packet), 1400, &mut out);
        assert_eq!(out, packet);
        let garbage = [0x10, 2, 0, 9];
        out.clear();
        put_connect(&frame(&garbage), 1400, &mut out);
        assert_eq!(out, garbage);
        let refusal = [0x20, 3, 0, 0x89, 0];
        out.clear();
        put_connack(&frame(&refusal), Version::V5, 1400, &mut out);
        assert_eq!(out, refusal);
    }

    #[test]
    fn connack_says_how_large_a_packet_may_be() {
        let mut packet = Vec::new();
        let mut properties = PropertyBuf::new();
        properties.push_number(PropertyId::TopicAliasMaximum, 64);
        ConnAck {
            session_present: true,
            reason: ReasonCode::Success,
            properties: properties.as_properties(),
        }
        .encode(Version::V5, &mut packet)
        .unwrap();
        let mut out = Vec::new();
        put_connack(&frame(&packet), Version::V5, 1445, &mut out);
        let read = ConnAck::decode(frame(&out).body, Version::V5).unwrap();
        assert!(read.session_present);
        assert_eq!(read.properties.number(PropertyId::TopicAliasMaximum), None);
        assert_eq!(
            read.properties.number(PropertyId::MaximumPacketSize),
            Some(1445)
        );
    }
}
