//! Shared by the tests: packets that own their data, strategies that make
//! valid ones, and hand-written bytes.
#![allow(
    dead_code,
    unreachable_pub,
    clippy::unwrap_used,
    reason = "every test binary uses another part, and tests may unwrap"
)]

pub mod generate;
pub mod golden;
pub mod model;
pub mod mutate;

use proptest::test_runner::Config;
use punctual_codec::{Frame, Split, Version, split};

pub const VERSIONS: [Version; 3] = [Version::V31, Version::V311, Version::V5];

/// `cases` runs; a failing input is printed and not written into the sources.
pub fn config(cases: u32) -> Config {
    Config {
        cases,
        failure_persistence: None,
        ..Config::default()
    }
}

/// The one frame that `bytes` must be.
pub fn whole_frame(bytes: &[u8]) -> Frame<'_> {
    match split(bytes, u32::MAX).unwrap() {
        Split::Frame(frame) => {
            assert_eq!(frame.bytes.len(), bytes.len(), "bytes after the packet");
            frame
        }
        incomplete => panic!("{incomplete:?} of {} bytes", bytes.len()),
    }
}

/// Bytes from hexadecimal digits; spaces are skipped, `'…'` holds text.
pub fn hex(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (i, part) in text.split('\'').enumerate() {
        if i % 2 == 1 {
            bytes.extend_from_slice(part.as_bytes());
            continue;
        }
        let digits: Vec<u32> = part
            .chars()
            .filter(|c| !c.is_whitespace())
            .map(|c| {
                c.to_digit(16)
                    .unwrap_or_else(|| panic!("not hex: {c} in {text}"))
            })
            .collect();
        assert!(digits.len().is_multiple_of(2), "odd digits in {text}");
        bytes.extend(digits.chunks(2).map(|pair| (pair[0] << 4 | pair[1]) as u8));
    }
    bytes
}
