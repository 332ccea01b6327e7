//! Properties of valid packets: what is encoded decodes to the same, however
//! the stream is cut.

mod support;

use proptest::prelude::*;
use punctual_codec::{DecodeError, Packet, Split, Version, split, topic};
use support::generate::{filter, packet, topic_name, version, versioned_packet};
use support::model::Model;
use support::{config, whole_frame};

proptest! {
    #![proptest_config(config(1000))]

    #[test]
    fn encode_then_decode((version, model) in versioned_packet()) {
        let bytes = model.encode(version);
        let packet = Packet::decode(whole_frame(&bytes), version).unwrap();
        prop_assert_eq!(Model::of(&packet), model);
        let mut again = Vec::new();
        packet.encode(version, &mut again).unwrap();
        prop_assert_eq!(again, bytes);
    }

    /// A packet cut off anywhere never decodes, and `split` says how long it
    /// is as soon as its header is there.
    #[test]
    fn prefix_is_incomplete((version, model) in versioned_packet(), at: prop::sample::Index) {
        let bytes = model.encode(version);
        let at = at.index(bytes.len());
        let header = bytes.len() - whole_frame(&bytes).body.len();
        match split(&bytes[..at], u32::MAX) {
            Ok(Split::Incomplete { total }) => {
                prop_assert_eq!(total, (at >= header).then_some(bytes.len()));
            }
            other => prop_assert!(false, "{:?}", other),
        }
    }

    #[test]
    fn size_limit_counts_before_the_body_is_there((version, model) in versioned_packet()) {
        let bytes = model.encode(version);
        let header = bytes.len() - whole_frame(&bytes).body.len();
        let size = bytes.len() as u32;
        prop_assert!(matches!(split(&bytes, size), Ok(Split::Frame(_))));
        for known in header..=bytes.len().min(header + 2) {
            match split(&bytes[..known], size - 1) {
                Err(DecodeError::PacketTooLarge { size: announced, limit }) => {
                    prop_assert_eq!(announced, u64::from(size));
                    prop_assert_eq!(limit, size - 1);
                }
                other => prop_assert!(false, "{:?}", other),
            }
        }
    }
}

fn stream() -> impl Strategy<Value = (Version, Vec<Model>)> {
    version().prop_flat_map(|v| (Just(v), prop::collection::vec(packet(v), 1..8)))
}

proptest! {
    #![proptest_config(config(300))]

    #[test]
    fn any_cut_of_the_stream_gives_the_same_packets(
        (version, models) in stream(),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..40),
        every_byte in prop::bool::weighted(0.1),
    ) {
        let stream: Vec<u8> = models.iter().flat_map(|m| m.encode(version)).collect();
        let mut ends: Vec<usize> = cuts.iter().map(|cut| cut.index(stream.len())).collect();
        if every_byte && stream.len() < 2000 {
            ends.extend(1..stream.len());
        }
        ends.push(stream.len());
        ends.sort_unstable();

        let (mut received, mut start) = (Vec::new(), 0);
        for end in ends {
            while let Split::Frame(frame) = split(&stream[start..end], u32::MAX).unwrap() {
                received.push(Model::of(&Packet::decode(frame, version).unwrap()));
                start += frame.bytes.len();
            }
        }
        prop_assert_eq!(start, stream.len());
        prop_assert_eq!(received, models);
    }

    #[test]
    fn generated_topics_are_valid(name in topic_name(), filter in filter()) {
        prop_assert_eq!(topic::validate_name(name.as_bytes()), Ok(name.as_str()));
        prop_assert_eq!(topic::validate_filter(&filter), Ok(()));
        let (share, plain) = topic::split_share(&filter);
        prop_assert_eq!(share.is_some(), filter.starts_with("$share/"));
        prop_assert!(filter.ends_with(plain));
        prop_assert_eq!(topic::levels(&name), name.split('/').count());
    }

    /// A filter made from a topic by putting wildcards in matches the topic.
    #[test]
    fn wildcards_match(name in topic_name(), plus: u8, hash in prop::option::of(0usize..6)) {
        let mut levels: Vec<&str> = name.split('/').collect();
        for (i, level) in levels.iter_mut().enumerate() {
            // A leading wildcard would not match a topic that begins with `$`.
            if plus & (1 << i) != 0 && (i > 0 || !name.starts_with('$')) {
                *level = "+";
            }
        }
        if let Some(hash) = hash && hash > 0 && hash <= levels.len() {
            levels.truncate(hash);
            levels.push("#");
        }
        let filter = levels.join("/");
        prop_assume!(!filter.starts_with("$share/"));
        prop_assert_eq!(topic::validate_filter(&filter), Ok(()));
        prop_assert!(topic::matches(&filter, &name), "{} {}", filter, name);
    }

    #[test]
    fn a_filter_without_wildcard_matches_only_itself(a in topic_name(), b in topic_name()) {
        prop_assert!(topic::matches(&a, &a));
        prop_assert_eq!(topic::matches(&a, &b), a == b);
    }
}
