//! What the reliability layer needs to know of a packet, looked up without
//! decoding all of it.

use std::hash::{DefaultHasher, Hasher};
use std::time::Duration;

use punctual_codec::{Frame, PacketType, PropertyId, QoS, RawPublish, Split, Version, split};
use punctual_model::{Late, Requirements, is_requirement_key};

/// The DUP flag of PUBLISH.
pub(crate) const DUP: u8 = 0x08;

/// The packet identifier; `None` if the packet has none, or is malformed.
pub(crate) fn packet_id(frame: &Frame<'_>) -> Option<u16> {
    let at = match frame.kind {
        PacketType::Publish => match publish_qos(frame)? {
            QoS::AtMostOnce => return None,
            _ => 2 + usize::from(u16_at(frame.body, 0)?),
        },
        PacketType::PubAck
        | PacketType::PubRec
        | PacketType::PubRel
        | PacketType::PubComp
        | PacketType::Subscribe
        | PacketType::SubAck
        | PacketType::Unsubscribe
        | PacketType::UnsubAck => 0,
        _ => return None,
    };
    u16_at(frame.body, at).filter(|id| *id != 0)
}

pub(crate) fn publish_qos(frame: &Frame<'_>) -> Option<QoS> {
    QoS::from_bits((frame.first >> 1) & 3)
}

/// The reason code of an acknowledgement; success where it has none.
pub(crate) fn reason(frame: &Frame<'_>) -> u8 {
    frame.body.get(2).copied().unwrap_or(0)
}

fn u16_at(body: &[u8], at: usize) -> Option<u16> {
    let bytes = body.get(at..at + 2)?;
    Some(u16::from_be_bytes([bytes[0], bytes[1]]))
}

/// Tells packets with the same identifier apart. The DUP flag does not count.
pub(crate) fn digest(frame: &Frame<'_>) -> u64 {
    let mut hasher = DefaultHasher::new();
    let first = match frame.kind {
        PacketType::Publish => frame.first & !DUP,
        _ => frame.first,
    };
    hasher.write_u8(first);
    hasher.write(frame.body);
    hasher.finish()
}

/// Whether a PUBLISH has a topic alias.
pub(crate) fn has_topic_alias(frame: &Frame<'_>, version: Version) -> bool {
    if !version.is_v5() {
        return false;
    }
    // Most messages have no properties: that is seen from their length.
    let topic = u16_at(frame.body, 0).map_or(0, usize::from);
    let id = match publish_qos(frame) {
        Some(QoS::AtMostOnce) => 0,
        _ => 2,
    };
    if frame.body.get(2 + topic + id) == Some(&0) {
        return false;
    }
    RawPublish::decode(frame.first, frame.body, version)
        .is_ok_and(|publish| publish.properties.contains(PropertyId::TopicAlias))
}

/// How long a PUBLISH may be repeated: its Message Expiry Interval and, where
/// the publisher asked for late messages to be dropped, its deadline. `None`
/// for as long as the connection lasts.
pub(crate) fn lifetime(frame: &Frame<'_>, version: Version) -> Option<Duration> {
    if !version.is_v5() {
        return None;
    }
    let publish = RawPublish::decode(frame.first, frame.body, version).ok()?;
    if publish.properties.is_empty() {
        return None;
    }
    let expiry = publish
        .properties
        .number(PropertyId::MessageExpiryInterval)
        .map(|seconds| Duration::from_secs(seconds.into()));
    let mut wanted = Requirements::default();
    for (key, value) in publish.properties.user() {
        if is_requirement_key(key.as_bytes()) {
            // A value that is not understood bounds nothing; the broker
            // reports it.
            let _ = wanted.set(key.as_bytes(), value.as_bytes());
        }
    }
    let deadline = wanted.deadline.filter(|_| wanted.late == Some(Late::Drop));
    match (expiry, deadline) {
        (Some(expiry), Some(deadline)) => Some(expiry.min(deadline)),
        (expiry, deadline) => expiry.or(deadline),
    }
}

/// The whole packets at the start of `bytes`, up to the first that is not
/// whole, or none at all, or larger than `max`.
pub(crate) fn frames(bytes: &[u8], max: usize) -> Frames<'_> {
    Frames {
        rest: bytes,
        max: u32::try_from(max).unwrap_or(u32::MAX),
    }
}

/// Whether that is whole packets and nothing else, as the content of every
/// datagram has to be. One that was cut or altered is not believed in part.
pub(crate) fn are_whole(bytes: &[u8]) -> bool {
    let mut all = frames(bytes, bytes.len());
    for _ in &mut all {}
    all.rest().is_empty()
}

/// See [`frames`].
pub(crate) struct Frames<'a> {
    rest: &'a [u8],
    max: u32,
}

impl<'a> Frames<'a> {
    /// What has not been cut into packets.
    pub(crate) fn rest(&self) -> &'a [u8] {
        self.rest
    }
}

impl<'a> Iterator for Frames<'a> {
    type Item = Frame<'a>;

    fn next(&mut self) -> Option<Frame<'a>> {
        match split(self.rest, self.max) {
            Ok(Split::Frame(frame)) => {
                self.rest = &self.rest[frame.bytes.len()..];
                Some(frame)
            }
            _ => None,
        }
    }
}

/// Appends a packet that is sent again: a PUBLISH with the DUP flag set.
pub(crate) fn put_repeated(packet: &[u8], out: &mut Vec<u8>) {
    let at = out.len();
    out.extend_from_slice(packet);
    if out[at] >> 4 == PacketType::Publish as u8 {
        out[at] |= DUP;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use punctual_codec::{PropertyBuf, Publish};

    fn publish(qos: QoS, properties: &PropertyBuf, payload: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        Publish {
            dup: false,
            qos,
            retain: false,
            topic: "a/b",
            packet_id: if qos == QoS::AtMostOnce { 0 } else { 7 },
            properties: properties.as_properties(),
            payload,
        }
        .encode(Version::V5, &mut out)
        .unwrap();
        out
    }

    fn frame(packet: &[u8]) -> Frame<'_> {
        frames(packet, packet.len()).next().unwrap()
    }

    #[test]
    fn identifiers_are_found() {
        let none = PropertyBuf::new();
        assert_eq!(
            packet_id(&frame(&publish(QoS::AtMostOnce, &none, b"x"))),
            None
        );
        for qos in [QoS::AtLeastOnce, QoS::ExactlyOnce] {
            assert_eq!(packet_id(&frame(&publish(qos, &none, b"x"))), Some(7));
        }
        assert_eq!(packet_id(&frame(&[0x40, 2, 0, 9])), Some(9));
        assert_eq!(packet_id(&frame(&[0x40, 0])), None);
        assert_eq!(packet_id(&frame(&[0xC0, 0])), None);
    }

    #[test]
    fn a_repetition_has_the_same_digest_and_the_flag() {
        let packet = publish(QoS::AtLeastOnce, &PropertyBuf::new(), b"x");
        let mut again = Vec::new();
        put_repeated(&packet, &mut again);
        assert_ne!(packet, again);
        assert_eq!(digest(&frame(&packet)), digest(&frame(&again)));
        let other = publish(QoS::AtLeastOnce, &PropertyBuf::new(), b"y");
        assert_ne!(digest(&frame(&packet)), digest(&frame(&other)));
        let mut release = Vec::new();
        put_repeated(&[0x62, 2, 0, 9], &mut release);
        assert_eq!(release, [0x62, 2, 0, 9]);
    }

    #[test]
    fn lifetimes_are_expiry_and_a_deadline_that_drops() {
        let of = |build: &dyn Fn(&mut PropertyBuf)| {
            let mut properties = PropertyBuf::new();
            build(&mut properties);
            let packet = publish(QoS::AtLeastOnce, &properties, b"x");
            lifetime(&frame(&packet), Version::V5)
        };
        let expiry = PropertyId::MessageExpiryInterval;
        assert_eq!(of(&|_| {}), None);
        assert_eq!(
            of(&|p| {
                p.push_number(expiry, 3);
            }),
            Some(Duration::from_secs(3))
        );
        assert_eq!(
            of(&|p| {
                p.push_user("rt-deadline", "20ms").unwrap();
            }),
            None,
            "late messages are delivered unless asked otherwise"
        );
        assert_eq!(
            of(&|p| {
                p.push_user("rt-deadline", "20ms").unwrap();
                p.push_user("rt-late", "drop").unwrap();
                p.push_number(expiry, 3);
            }),
            Some(Duration::from_millis(20))
        );
    }

    #[test]
    fn aliases_are_seen() {
        let mut properties = PropertyBuf::new();
        properties.push_number(PropertyId::TopicAlias, 1);
        for qos in [QoS::AtMostOnce, QoS::AtLeastOnce] {
            let packet = publish(qos, &properties, b"x");
            assert!(has_topic_alias(&frame(&packet), Version::V5));
            let packet = publish(qos, &PropertyBuf::new(), b"x");
            assert!(!has_topic_alias(&frame(&packet), Version::V5));
        }
    }

    proptest! {
        #[test]
        fn frames_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let mut all = frames(&bytes, 150);
            let mut len = 0;
            for frame in &mut all {
                len += frame.bytes.len();
                let _ = (packet_id(&frame), reason(&frame), digest(&frame));
                let _ = (has_topic_alias(&frame, Version::V5), lifetime(&frame, Version::V5));
            }
            prop_assert_eq!(len + all.rest().len(), bytes.len());
        }
    }
}
