//! Every violation that can be seen in one packet, and the error it must give:
//! the rows of `strictness.md`, and those that are easier to make by a loop.

mod support;

use punctual_codec::{
    DecodeError, Packet, PacketType, Properties, PropertyId, PropertySet, ReasonCode, Split,
    Version, put_varint, split, split_of,
};
use support::generate::reason_codes;
use support::{VERSIONS, hex};

/// An outcome, without the text that errors carry for people.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Is {
    Valid,
    Malformed,
    Protocol,
    Version,
    Name,
    Filter,
    Alias,
}
use Is::{Alias, Filter, Malformed, Name, Protocol, Valid};

fn outcome(bytes: &[u8], version: Version) -> Is {
    let result = split(bytes, u32::MAX).and_then(|found| match found {
        Split::Frame(frame) => {
            assert_eq!(frame.bytes.len(), bytes.len(), "bytes after the packet");
            Packet::decode(frame, version).map(|_| ())
        }
        Split::Incomplete { .. } => panic!("packet is incomplete: {bytes:02x?}"),
    });
    let (is, reason) = match result {
        Ok(()) => return Valid,
        Err(error) => (
            match error {
                DecodeError::Malformed(_) => Malformed,
                DecodeError::Protocol(_) => Protocol,
                DecodeError::UnsupportedVersion => Is::Version,
                DecodeError::TopicNameInvalid => Name,
                DecodeError::TopicFilterInvalid => Filter,
                DecodeError::TopicAliasInvalid => Alias,
                other => panic!("{other}"),
            },
            error.reason().byte(),
        ),
    };
    let expected = match is {
        Malformed => 0x81,
        Protocol => 0x82,
        Is::Version => 0x84,
        Filter => 0x8F,
        Name => 0x90,
        Alias => 0x94,
        Valid => unreachable!(),
    };
    assert_eq!(reason, expected, "{is:?}");
    is
}

/// A packet from its first byte and its body.
fn assemble(first: u8, body: &[u8]) -> Vec<u8> {
    let mut bytes = vec![first];
    put_varint(&mut bytes, body.len());
    bytes.extend_from_slice(body);
    bytes
}

#[test]
fn rows_of_the_table() {
    let mut wrong = Vec::new();
    let mut rows = 0;
    for line in include_str!("strictness.md").lines() {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let [_, versions, packet, expected, why, _] = cells[..] else {
            continue;
        };
        let versions = match versions {
            "3.1" => &[Version::V31][..],
            "3.1.1" => &[Version::V311],
            "3" => &[Version::V31, Version::V311],
            "5" => &[Version::V5],
            "all" => &VERSIONS,
            _ => continue,
        };
        let expected = match expected {
            "valid" => Valid,
            "malformed" => Malformed,
            "protocol" => Protocol,
            "version" => Is::Version,
            "name" => Name,
            "filter" => Filter,
            "alias" => Alias,
            other => panic!("outcome {other} in {line}"),
        };
        let packet = packet.trim_matches('`');
        let (firsts, body) = packet.split_once(' ').unwrap_or((packet, ""));
        let body = hex(body);
        for first in hex(&firsts.replace(',', "")) {
            for version in versions {
                let is = outcome(&assemble(first, &body), *version);
                if is != expected {
                    wrong.push(format!(
                        "{is:?} in {version:?} instead of {expected:?}: {why}"
                    ));
                }
            }
        }
        rows += 1;
    }
    assert!(rows > 200, "only {rows} rows");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// In MQTT 3.1 three types have DUP; nothing else is laxer, and no other version is.
#[test]
fn dup_in_mqtt_3_1() {
    let again = [
        PacketType::PubRel,
        PacketType::Subscribe,
        PacketType::Unsubscribe,
    ];
    for kind in PacketType::ALL {
        for flags in 0..16u8 {
            let first = [(kind as u8) << 4 | flags];
            let strict = split(&first, u32::MAX).is_ok();
            let dup = flags == 0b1010 && again.contains(&kind);
            for version in VERSIONS {
                let expected = strict || dup && version == Version::V31;
                let is = split_of(&first, u32::MAX, version).is_ok();
                assert_eq!(is, expected, "{version:?} {kind:?} {flags:#x}");
            }
        }
    }
}

#[test]
fn fixed_header_flags() {
    for kind in PacketType::ALL {
        for flags in 0..16u8 {
            let first = (kind as u8) << 4 | flags;
            let expected = match kind {
                PacketType::Publish => continue,
                PacketType::PubRel | PacketType::Subscribe | PacketType::Unsubscribe => 2,
                _ => 0,
            };
            assert_eq!(
                split(&[first], u32::MAX).is_ok(),
                flags == expected,
                "MQTT-2.1.3-1: {kind:?} {flags:#x}"
            );
        }
    }
}

#[test]
fn remaining_length() {
    let zero_in = |length: &str| hex(&format!("C0 {length}"));
    for version in VERSIONS {
        assert_eq!(outcome(&zero_in("00"), version), Valid);
        // 3.1.1 says nothing about the shortest form [MQTT-1.5.5-1].
        let expected = if version.is_v5() { Malformed } else { Valid };
        for length in ["8000", "808000", "80808000"] {
            assert_eq!(outcome(&zero_in(length), version), expected, "{length}");
        }
        for length in ["80808080", "8080808000", "FFFFFFFF"] {
            assert_eq!(outcome(&zero_in(length), version), Malformed, "{length}");
        }
    }
    // CONNECT is judged by the version it asks for, not by the caller's.
    let v5 = hex("10 8D00 0004 'MQTT' 05 02 0000 00 0000");
    let v311 = hex("10 8C00 0004 'MQTT' 04 02 0000 0000");
    for version in VERSIONS {
        assert_eq!(outcome(&v5, version), Malformed);
        assert_eq!(outcome(&v311, version), Valid);
    }
    // The fifth byte need not arrive for the fourth to be refused.
    assert!(split(&hex("30 80808080"), u32::MAX).is_err());
    assert!(matches!(
        split(&hex("30 808080"), u32::MAX),
        Ok(Split::Incomplete { total: None })
    ));
}

#[test]
fn announced_size() {
    // Nothing but the fixed header is there.
    for (bytes, size, limit) in [
        ("30 7F", 129, 128),
        ("30 8001", 131, 100),
        ("30 FFFFFF7F", 268_435_460, 268_435_455),
        ("C0 00", 2, 1),
    ] {
        assert_eq!(
            split(&hex(bytes), limit).map(|_| ()),
            Err(DecodeError::PacketTooLarge { size, limit })
        );
        assert_eq!(
            DecodeError::PacketTooLarge { size, limit }.reason(),
            ReasonCode::PacketTooLarge
        );
        assert!(split(&hex(bytes), size as u32).is_ok());
    }
}

/// A property with its smallest valid value.
fn smallest(id: PropertyId) -> Vec<u8> {
    let value = match id as u8 {
        0x03 | 0x08 | 0x09 | 0x12 | 0x15 | 0x16 | 0x1A | 0x1C | 0x1F => "0000",
        0x26 => "0000 0000",
        0x0B => "01",
        0x02 | 0x11 | 0x18 => "00000000",
        0x27 => "00000001",
        0x13 | 0x22 => "0000",
        0x21 | 0x23 => "0001",
        _ => "00",
    };
    hex(&format!("{:02X} {value}", id as u8))
}

/// Table 2-4: which packet has which property, and which may repeat.
#[test]
fn property_sets() {
    let sets: [(PropertySet, &[u8]); 9] = [
        (PropertySet::CONNECT, &[17, 33, 39, 34, 25, 23, 38, 21, 22]),
        (
            PropertySet::CONNACK,
            &[
                17, 33, 36, 37, 39, 18, 34, 31, 38, 40, 41, 42, 19, 26, 28, 21, 22,
            ],
        ),
        (PropertySet::PUBLISH, &[1, 2, 35, 8, 9, 38, 11, 3]),
        (PropertySet::WILL, &[24, 1, 2, 3, 8, 9, 38]),
        (PropertySet::ACK, &[31, 38]),
        (PropertySet::SUBSCRIBE, &[11, 38]),
        (PropertySet::UNSUBSCRIBE, &[38]),
        (PropertySet::DISCONNECT, &[17, 31, 38, 28]),
        (PropertySet::AUTH, &[21, 22, 31, 38]),
    ];
    for (set, allowed) in sets {
        for id in PropertyId::ALL {
            let one = smallest(*id);
            let has = allowed.contains(&(*id as u8));
            assert_eq!(set.contains(*id), has, "{id:?}");
            match Properties::check(&one, set) {
                Ok(properties) => {
                    assert!(has, "{id:?}");
                    assert!(properties.contains(*id));
                }
                Err(error) => {
                    assert!(!has, "{id:?}");
                    assert_eq!(error.reason(), ReasonCode::MalformedPacket);
                }
            }
            if has {
                let repeats = *id == PropertyId::UserProperty
                    || (*id == PropertyId::SubscriptionIdentifier && set == PropertySet::PUBLISH);
                match Properties::check(&[one.clone(), one].concat(), set) {
                    Ok(_) => assert!(repeats, "{id:?}"),
                    Err(error) => {
                        assert!(!repeats, "{id:?}");
                        assert_eq!(error.reason(), ReasonCode::ProtocolError);
                    }
                }
            }
        }
    }
}

/// Each packet accepts the codes of its table and no other byte.
#[test]
fn reason_codes_of_each_packet() {
    for kind in PacketType::ALL {
        let first = (kind as u8) << 4 | if kind == PacketType::PubRel { 2 } else { 0 };
        for code in 0..=255u8 {
            let body = match kind {
                PacketType::ConnAck => format!("00 {code:02X} 00"),
                PacketType::PubAck
                | PacketType::PubRec
                | PacketType::PubRel
                | PacketType::PubComp => format!("0001 {code:02X}"),
                PacketType::SubAck | PacketType::UnsubAck => format!("0001 00 {code:02X}"),
                PacketType::Disconnect => format!("{code:02X}"),
                PacketType::Auth => format!("{code:02X} 03 15 0000"),
                _ => continue,
            };
            // Table 2-6 gives 0x8C to DISCONNECT, section 3.14.2.1 forgets it.
            let known = reason_codes(kind).contains(&code)
                || (kind == PacketType::Disconnect && code == 0x8C);
            let expected = if known { Valid } else { Protocol };
            let is = outcome(&assemble(first, &hex(&body)), Version::V5);
            assert_eq!(is, expected, "{kind:?} {code:#04x}");
        }
    }
}
