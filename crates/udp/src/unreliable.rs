//! Which packets may travel where they can be lost or overtaken alone: in the
//! DATAGRAM frames (RFC 9221) of a QUIC connection whose stream carries
//! everything else.
//!
//! A PUBLISH with QoS 0 may be lost by definition [MQTT-4.3.1-1]. One with a
//! topic alias may not: it means something only together with another packet.

use punctual_codec::{Frame, PacketType, QoS, Split, Version, split};

use crate::packet::{are_whole, has_topic_alias, publish_qos};

/// Whether a packet may be sent in a datagram beside the stream.
pub fn may_be_lost(frame: &Frame<'_>, version: Version) -> bool {
    frame.kind == PacketType::Publish
        && publish_qos(frame) == Some(QoS::AtMostOnce)
        && !has_topic_alias(frame, version)
}

/// Whether a received datagram is one or more whole messages with QoS 0 and
/// nothing else. One that is not is ignored as a whole.
pub fn are_messages(datagram: &[u8]) -> bool {
    let mut rest = datagram;
    while let Ok(Split::Frame(frame)) = split(rest, u32::MAX) {
        if frame.kind != PacketType::Publish || publish_qos(&frame) != Some(QoS::AtMostOnce) {
            return false;
        }
        rest = &rest[frame.bytes.len()..];
    }
    !datagram.is_empty() && are_whole(datagram)
}

#[cfg(test)]
mod tests {
    use super::*;
    use punctual_codec::{PropertyBuf, PropertyId, Publish};

    fn publish(qos: QoS, alias: bool, version: Version) -> Vec<u8> {
        let mut properties = PropertyBuf::new();
        if alias {
            properties.push_number(PropertyId::TopicAlias, 1);
        }
        let publish = Publish {
            dup: false,
            qos,
            retain: true,
            topic: "a/b",
            packet_id: u16::from(qos != QoS::AtMostOnce),
            properties: properties.as_properties(),
            payload: b"x",
        };
        let mut out = Vec::new();
        publish.encode(version, &mut out).unwrap();
        out
    }

    fn verdict(packet: &[u8], version: Version) -> bool {
        match split(packet, u32::MAX) {
            Ok(Split::Frame(frame)) => may_be_lost(&frame, version),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn messages_of_qos_0_may_be_lost_and_nothing_else() {
        for version in [Version::V311, Version::V5] {
            assert!(verdict(&publish(QoS::AtMostOnce, false, version), version));
            assert!(!verdict(
                &publish(QoS::AtLeastOnce, false, version),
                version
            ));
            assert!(!verdict(
                &publish(QoS::ExactlyOnce, false, version),
                version
            ));
            assert!(!verdict(&[0xC0, 0], version), "PINGREQ");
        }
        let alias = publish(QoS::AtMostOnce, true, Version::V5);
        assert!(!verdict(&alias, Version::V5));
    }

    #[test]
    fn a_datagram_is_whole_messages() {
        let one = publish(QoS::AtMostOnce, false, Version::V5);
        let two = [&one[..], &one[..]].concat();
        assert!(are_messages(&one) && are_messages(&two));
        for cut in 0..one.len() {
            assert!(!are_messages(&one[..cut]), "cut to {cut}");
            assert!(!are_messages(&two[..one.len() + cut]) || cut == 0);
        }
        let acked = publish(QoS::AtLeastOnce, false, Version::V5);
        assert!(!are_messages(&[&one[..], &acked[..]].concat()));
        assert!(!are_messages(&[0xC0, 0]));
        assert!(!are_messages(&[0x36, 0]), "QoS 3");
    }
}
