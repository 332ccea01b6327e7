//! What must hold for any input, one function a fuzz target.
//!
//! The fuzz targets call these with inputs from libFuzzer (nightly toolchain);
//! `crates/codec/tests/replay.rs` includes this file and calls them with the
//! seeds and with pseudo-random mutations of them (stable toolchain). All panic
//! when something does not hold, and do nothing else.

use punctual_codec::{
    Connect, DecodeError, EncodeError, Frame, Packet, PacketType, Properties, Property,
    PropertyBuf, PropertyId, PropertySet, Split, Version, put_varint, split, topic,
};

const VERSIONS: [Version; 3] = [Version::V31, Version::V311, Version::V5];

/// Decodes the input as a packet with its fixed header, and as a first byte
/// and a body, in every version: no panic, and what decodes survives encoding
/// and decoding.
pub fn decode(data: &[u8]) {
    if let Ok(Split::Frame(frame)) = split(data, u32::MAX) {
        stable(frame);
    }
    if let Some((first, body)) = data.split_first() {
        let mut packet = vec![*first];
        put_varint(&mut packet, body.len());
        packet.extend_from_slice(body);
        if let Ok(Split::Frame(frame)) = split(&packet, u32::MAX) {
            stable(frame);
        }
    }
}

fn stable(frame: Frame<'_>) {
    let _ = Connect::peek_version(frame.body);
    for version in VERSIONS {
        let packet = match Packet::decode(frame, version) {
            Ok(packet) => packet,
            Err(error) => {
                assert!(error.reason().is_error());
                assert!(!error.to_string().is_empty());
                continue;
            }
        };
        visit(&packet);
        let mut out = b"before".to_vec();
        assert_eq!(packet.encode(version, &mut out), Ok(()));
        let (before, out) = out.split_at(6);
        assert_eq!(before, b"before");
        assert!(out.len() <= frame.bytes.len(), "encoding got longer");
        let Ok(Split::Frame(again)) = split(out, u32::MAX) else {
            panic!("encoded packet is not whole");
        };
        assert_eq!(again.bytes.len(), out.len());
        assert!(again.is_minimal());
        match Packet::decode(again, version) {
            Ok(decoded) => assert_eq!(decoded, packet),
            Err(error) => panic!("{packet:?} does not decode any more: {error}"),
        }
    }
}

/// Reads every field that is decoded lazily.
fn visit(packet: &Packet<'_>) {
    match packet {
        Packet::Connect(p) => {
            walk(&p.properties);
            if let Some(will) = &p.will {
                walk(&will.properties);
                assert!(!will.topic.is_empty());
            }
        }
        Packet::ConnAck(p) => walk(&p.properties),
        Packet::Publish(p) => {
            walk(&p.properties);
            assert!(!p.topic.is_empty() || p.properties.contains(PropertyId::TopicAlias));
            assert_eq!(p.packet_id == 0, p.qos == punctual_codec::QoS::AtMostOnce);
        }
        Packet::PubAck(p) | Packet::PubRec(p) | Packet::PubRel(p) | Packet::PubComp(p) => {
            walk(&p.properties);
            assert_ne!(p.packet_id, 0);
        }
        Packet::Subscribe(p) => {
            walk(&p.properties);
            assert!(p.filters().next().is_some());
            for (filter, _) in p.filters() {
                assert_eq!(topic::validate_filter(filter), Ok(()));
            }
        }
        Packet::SubAck(p) => {
            walk(&p.properties);
            assert!(!p.reasons.is_empty());
        }
        Packet::Unsubscribe(p) => {
            walk(&p.properties);
            assert!(p.filters().next().is_some());
            for filter in p.filters() {
                assert_eq!(topic::validate_filter(filter), Ok(()));
            }
        }
        Packet::UnsubAck(p) => walk(&p.properties),
        Packet::PingReq | Packet::PingResp => {}
        Packet::Disconnect(p) => walk(&p.properties),
        Packet::Auth(p) => walk(&p.properties),
    }
}

/// Cuts a stream into frames all at once and in pieces, with a size limit: both
/// give the same frames and the same error. The input's first bytes choose
/// limit and pieces.
pub fn stream(data: &[u8]) {
    let [limit, cuts, stream @ ..] = data else {
        return;
    };
    let limit = u32::from(*limit) * 4 + 2;
    // Pieces of 1 to 16 bytes in a pattern that `cuts` chooses.
    let mut state = u32::from(*cuts) | 0x100;

    let mut whole = Vec::new();
    let mut rest = stream;
    let verdict = loop {
        match split(rest, limit) {
            Ok(Split::Frame(frame)) => {
                assert!(frame.bytes.len() <= limit as usize);
                assert_eq!(PacketType::from_first_byte(frame.first), Some(frame.kind));
                assert!(frame.bytes.ends_with(frame.body));
                whole.push(frame.bytes);
                rest = &rest[frame.bytes.len()..];
            }
            Ok(Split::Incomplete { total }) => {
                if let Some(total) = total {
                    assert!(total > rest.len() && total <= limit as usize);
                }
                break None;
            }
            Err(error) => break Some(error),
        }
    };

    let mut buffer: Vec<u8> = Vec::new();
    let (mut fed, mut found) = (0, 0);
    let pieces = loop {
        match split(&buffer, limit) {
            Ok(Split::Frame(frame)) => {
                assert_eq!(whole.get(found), Some(&frame.bytes));
                found += 1;
                let used = frame.bytes.len();
                buffer.drain(..used);
            }
            Ok(Split::Incomplete { total }) => {
                if let Some(total) = total {
                    assert!(total > buffer.len() && total <= limit as usize);
                }
                if fed == stream.len() {
                    break None;
                }
                state = state.wrapping_mul(0x9E37_79B1).rotate_left(7);
                let piece = (1 + (state as usize & 15)).min(stream.len() - fed);
                buffer.extend_from_slice(&stream[fed..fed + piece]);
                fed += piece;
            }
            Err(error) => break Some(error),
        }
    };
    assert_eq!(found, whole.len());
    assert_eq!(pieces, verdict);
    if let Some(DecodeError::PacketTooLarge { size, limit: named }) = verdict {
        assert!(size > u64::from(limit) && named == limit);
    }
}

/// Checks the input as the properties of a packet that its first byte chooses.
pub fn properties(data: &[u8]) {
    const SETS: [PropertySet; 9] = [
        PropertySet::CONNECT,
        PropertySet::WILL,
        PropertySet::CONNACK,
        PropertySet::PUBLISH,
        PropertySet::ACK,
        PropertySet::SUBSCRIBE,
        PropertySet::UNSUBSCRIBE,
        PropertySet::DISCONNECT,
        PropertySet::AUTH,
    ];
    let Some((choice, bytes)) = data.split_first() else {
        return;
    };
    let set = SETS[usize::from(*choice) % SETS.len()];
    let properties = match Properties::check(bytes, set) {
        Ok(properties) => properties,
        Err(error) => {
            assert!(error.reason().is_error());
            return;
        }
    };
    assert_eq!(properties.as_bytes(), bytes);
    walk(&properties);
    for property in properties.iter() {
        assert!(set.contains(property.id));
    }
}

/// Reads checked properties in every way there is and builds them again, as
/// they are and value by value.
fn walk(properties: &Properties<'_>) {
    let mut forwarded = PropertyBuf::new();
    let mut rebuilt = PropertyBuf::new();
    let mut length = 0;
    for property in properties.iter() {
        assert!(properties.contains(property.id));
        length += property.bytes.len();
        forwarded.push(property);
        assert_eq!(push_value(&mut rebuilt, property), Ok(()));
    }
    assert_eq!(
        length,
        properties.as_bytes().len(),
        "iteration stopped early"
    );
    assert_eq!(forwarded.as_properties(), *properties);
    assert_eq!(rebuilt.as_properties(), *properties);
    assert_eq!(properties.is_empty(), length == 0);

    for id in PropertyId::ALL {
        let first = properties.iter().find(|p| p.id == *id);
        assert_eq!(properties.get(*id), first);
        assert_eq!(properties.number(*id), first.map(Property::number));
        assert_eq!(properties.text(*id), first.map(Property::text));
        assert_eq!(properties.data(*id), first.map(Property::data));
    }
    for (name, _) in properties.user() {
        let first = properties.user().find(|(other, _)| *other == name);
        assert_eq!(properties.user_value(name), first.map(|(_, value)| value));
    }
    for id in properties.subscription_ids() {
        assert!((1..=268_435_455).contains(&id));
    }
}

fn push_value(to: &mut PropertyBuf, property: Property<'_>) -> Result<(), EncodeError> {
    use PropertyId as P;
    match property.id {
        P::UserProperty => {
            let (name, value) = property.pair();
            to.push_user(name, value)?;
        }
        P::CorrelationData | P::AuthenticationData => {
            to.push_data(property.id, property.data())?;
        }
        P::ContentType
        | P::ResponseTopic
        | P::AssignedClientIdentifier
        | P::AuthenticationMethod
        | P::ResponseInformation
        | P::ServerReference
        | P::ReasonString => {
            to.push_data(property.id, property.text().as_bytes())?;
        }
        _ => {
            to.push_number(property.id, property.number());
        }
    }
    Ok(())
}

/// Takes the input, cut at its first line feed, as topic filter and topic name,
/// and compares validation and matching with plain renderings of section 4.7.
pub fn topic(data: &[u8]) {
    let cut = data.iter().position(|b| *b == b'\n').unwrap_or(data.len());
    let (filter, name) = (&data[..cut], data.get(cut + 1..).unwrap_or(&[]));

    let name = match (topic::validate_name(name), std::str::from_utf8(name)) {
        (Ok(valid), _) => {
            assert!(!valid.is_empty() && !valid.contains(['+', '#', '\0']));
            Some(valid)
        }
        (Err(error), Ok(text)) => {
            let malformed = matches!(error, DecodeError::Malformed(_));
            assert_eq!(malformed, text.contains('\0'));
            assert!(text.is_empty() || text.contains(['+', '#', '\0']));
            None
        }
        (Err(error), Err(_)) => {
            assert!(matches!(error, DecodeError::Malformed(_)));
            None
        }
    };
    let Ok(filter) = std::str::from_utf8(filter) else {
        return;
    };
    let valid = topic::validate_filter(filter).is_ok();
    assert_eq!(valid, filter_by_the_book(filter), "{filter:?}");
    if !valid {
        return;
    }
    let (share, plain) = topic::split_share(filter);
    assert_eq!(share.is_some(), filter.starts_with(topic::SHARE_PREFIX));
    if let Some(share) = share {
        assert_eq!(format!("{}{share}/{plain}", topic::SHARE_PREFIX), filter);
    }
    assert_eq!(topic::levels(plain), plain.split('/').count());
    assert_eq!(topic::has_wildcard(plain), plain.contains(['+', '#']));
    if let Some(name) = name {
        assert_eq!(
            topic::matches(plain, name),
            matches_by_the_book(plain, name),
            "{plain:?} {name:?}"
        );
    }
}

fn filter_by_the_book(filter: &str) -> bool {
    let mut plain: Vec<char> = filter.chars().collect();
    if filter.starts_with("$share/") {
        plain.drain(..7);
        let Some(slash) = plain.iter().position(|c| *c == '/') else {
            return false;
        };
        let share: Vec<char> = plain.drain(..=slash).collect();
        if slash == 0 || share.iter().any(|c| matches!(c, '+' | '#')) {
            return false;
        }
    }
    let at = |i: usize| plain.get(i).copied().unwrap_or('/');
    !plain.is_empty()
        && (0..plain.len()).all(|i| {
            let alone = (i == 0 || at(i - 1) == '/') && at(i + 1) == '/';
            match plain[i] {
                '+' => alone,
                '#' => alone && i + 1 == plain.len(),
                _ => true,
            }
        })
}

fn matches_by_the_book(filter: &str, name: &str) -> bool {
    fn from(filter: &[&str], name: &[&str]) -> bool {
        match (filter, name) {
            (["#"], _) => true,
            ([f, filter @ ..], [n, name @ ..]) => (*f == "+" || f == n) && from(filter, name),
            ([], []) => true,
            _ => false,
        }
    }
    let hidden = name.starts_with('$') && filter.starts_with(['+', '#']);
    let filter: Vec<&str> = filter.split('/').collect();
    let name: Vec<&str> = name.split('/').collect();
    !hidden && from(&filter, &name)
}
