//! Golden bytes: each packet type of each version decodes to what the
//! specification says and encodes to the same bytes.

mod support;

use std::collections::HashSet;

use punctual_codec::{Packet, PacketType};
use support::golden::golden;
use support::model::Model;
use support::{hex, whole_frame};

#[test]
fn decode_to_what_they_mean() {
    for case in golden() {
        let bytes = hex(case.hex);
        let packet = Packet::decode(whole_frame(&bytes), case.version)
            .unwrap_or_else(|e| panic!("{}: {e}", case.name));
        assert_eq!(Model::of(&packet), case.model, "{}", case.name);
    }
}

#[test]
fn encode_to_the_same_bytes() {
    for case in golden() {
        assert_eq!(
            case.model.encode(case.version),
            hex(case.hex),
            "{}",
            case.name
        );
    }
}

#[test]
fn cover_every_packet_type() {
    let kinds: HashSet<_> = golden()
        .iter()
        .map(|case| whole_frame(&hex(case.hex)).kind)
        .collect();
    for kind in PacketType::ALL {
        assert!(kinds.contains(&kind), "{kind:?}");
    }
}
