//! Segments of other stores and formats are left alone or refused.

use super::*;

#[test]
fn a_segment_of_another_store_is_left_alone() {
    let other = Log::open(with_sessions(3).into_medium(), CONFIG, start(9)).expect("a store");
    let mut other = other.into_medium();
    let mut log = Log::open(SimulatedDisk::default(), CONFIG, start(8)).expect("a store");
    for session in 100..400 {
        log.commit(&[session_op(session)].into_iter().collect())
            .expect("room");
    }
    let mut disk = log.into_medium();
    let before = of_log(&mut open(disk.clone()));
    let bytes = other.safe_bytes(1).expect("a segment").clone();
    disk.create(50, CONFIG.segment_bytes).expect("room");
    let number = 50u32.to_le_bytes();
    let safe = disk.safe_bytes(50).expect("it was made");
    safe.copy_from_slice(&bytes);
    for copy in [0, 512] {
        safe[copy + 12..copy + 16].copy_from_slice(&number);
        seal(&mut safe[copy..], 36);
        seal(&mut safe[copy..], 124);
    }
    let mut log = open(disk);
    assert_eq!(of_log(&mut log), before);
    let what = &log.report().damages[0].what;
    assert!(what.contains("another store"), "{what}");
    log.compact().expect("room");
    assert!(log.medium().segments().any(|it| it == 50));
}

/// Puts the checksum of what is before it at `at`.
fn seal(bytes: &mut [u8], at: usize) {
    let checksum = crc32fast::hash(&bytes[..at]);
    bytes[at..at + 4].copy_from_slice(&checksum.to_le_bytes());
}

#[test]
fn a_later_format_is_refused() {
    let mut disk = with_sessions(3).into_medium();
    let bytes = disk.safe_bytes(1).expect("a segment");
    for copy in [0, 512] {
        bytes[copy + 8] = 9;
        seal(&mut bytes[copy..], 36);
    }
    let refused = Log::open(disk, CONFIG, start(7)).err();
    let newer = StoreError::Newer {
        found: 9,
        known: FORMAT,
        by: Some(concat!("punctual ", env!("CARGO_PKG_VERSION")).into()),
    };
    assert_eq!(refused, Some(newer));
}

#[test]
fn features_that_are_not_known_are_refused() {
    let mut disk = with_sessions(3).into_medium();
    let bytes = disk.safe_bytes(1).expect("a segment");
    bytes[43] = 0x80;
    seal(bytes, 124);
    let refused = Log::open(disk, CONFIG, start(7)).err();
    assert!(
        matches!(
            refused,
            Some(StoreError::Features {
                bits: 0x8000_0000,
                ..
            })
        ),
        "{refused:?}"
    );
}
