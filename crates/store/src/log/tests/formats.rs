//! Logs of other formats: read, carried over, or refused.

use super::*;
use crate::log::format1;
use crate::log::segment::{GISTS, GIVES_BACK};
use crate::op::{RECORD_HEADER, seal_records};

/// What format 1 wrote for these groups, each of which is a commit.
fn format_1(groups: &[Batch]) -> Simulated {
    let mut disk = Simulated::default();
    let size = CONFIG.segment_bytes as usize;
    let mut header = Header {
        format: 1,
        salt: 77,
        ..Header::nothing(0, 0)
    };
    let mut segment: Vec<u8> = Vec::new();
    for (sequence, group) in (1u64..).zip(groups) {
        let mut records = group.as_bytes().to_vec();
        seal_records(&mut records, 0);
        let len = format1::HEADER + records.len();
        assert!(START + len <= size);
        if header.segment == 0 || segment.len() + len > size {
            put(&mut disk, header.segment, &segment);
            header.previous = header.segment;
            header.previous_end = segment.len() as u64;
            header.segment += 1;
            segment = header.encode().to_vec();
            // What follows was not there.
            for copy in [40..512, 552..START] {
                segment[copy].fill(0);
            }
        }
        let mut frame = format1::MAGIC.to_vec();
        frame.extend_from_slice(&sequence.to_le_bytes());
        frame.extend_from_slice(&(records.len() as u32).to_le_bytes());
        frame.extend_from_slice(&(group.len() as u32).to_le_bytes());
        frame.extend_from_slice(&header.checksum(None, &frame).to_le_bytes());
        segment.extend_from_slice(&frame);
        segment.extend_from_slice(&records);
    }
    put(&mut disk, header.segment, &segment);
    disk
}

fn put(disk: &mut Simulated, segment: u32, bytes: &[u8]) {
    if segment > 0 {
        disk.create(segment, CONFIG.segment_bytes).expect("room");
        let safe = disk.safe_bytes(segment).expect("it was made");
        safe[..bytes.len()].copy_from_slice(bytes);
    }
}

/// An old store with several segments, and what it has.
fn old() -> (Simulated, Vec<String>) {
    let mut run = Run::new();
    let groups: Vec<Batch> = (0..60u64)
        .map(|at| {
            let draws: Vec<u64> = (at * 15..at * 15 + 15).map(mix).collect();
            let group = run.group(&draws);
            run.model.apply(&group);
            group
        })
        .collect();
    let expected = of_image(&recovered(&run.model));
    assert!(expected.len() > 50);
    (format_1(&groups), expected)
}

/// What is safe of the segments of the old store.
fn old_bytes(disk: &mut Simulated) -> Vec<Option<Vec<u8>>> {
    let segments = 1..=old().0.segments().count() as u32;
    segments.map(|it| disk.safe_bytes(it).cloned()).collect()
}

#[test]
fn format_1_is_read_and_carried_over() {
    let (disk, expected) = old();
    assert!(disk.segments().count() > 2);
    let mut log = open(disk);
    assert_eq!((log.format(), log.identity()), (1, None));
    assert_eq!(log.report().damages, []);
    assert_eq!(difference(&of_log(&mut log), &expected), NONE);
    let numbers = log.report().highest;
    assert_eq!(log.migrate(), Ok(true));
    assert_eq!((log.format(), log.created()), (FORMAT, Some(3)));
    assert_eq!(difference(&of_log(&mut log), &expected), NONE);
    assert_eq!(log.migrate(), Ok(false));
    let identity = log.identity();
    let mut log = open(log.into_medium());
    assert_eq!(log.identity(), identity);
    assert_eq!(difference(&of_log(&mut log), &expected), NONE);
    assert_eq!(log.report().damages, []);
    assert_eq!(log.report().highest, numbers);
}

#[test]
fn a_crash_while_it_is_carried_over_leaves_one_format_whole() {
    let (disk, expected) = old();
    let before = old_bytes(&mut disk.clone());
    let mut coin = Coin(1);
    let mut log = open(disk.clone());
    log.medium_mut().fail_after = Some(1000);
    assert_eq!(log.migrate(), Ok(true));
    let calls = 1000 - log.medium().fail_after.unwrap_or(0);
    for at in 0..=calls {
        let mut log = open(disk.clone());
        log.medium_mut().fail_after = Some(at);
        assert_eq!(
            log.migrate().is_ok(),
            at == calls || log.format() == FORMAT,
            "{at}"
        );
        log.medium_mut().fail_after = None;
        assert_eq!(difference(&of_log(&mut log), &expected), NONE, "{at}");
        // The power fails at once: it is one or the other.
        let mut crashed = log.medium().clone();
        crashed.crash(|| coin.toss());
        let mut again = open(crashed);
        assert_eq!(difference(&of_log(&mut again), &expected), NONE, "{at}");
        assert_eq!(again.report().damages, []);
        if again.format() == 1 {
            assert!(old_bytes(again.medium_mut()) == before, "{at}");
        }
        again.migrate().expect("room");
        assert_eq!(again.format(), FORMAT);
        let first = again.medium().segments().find(|it| *it != BALLAST);
        assert!(first >= Some(again.base), "{at}");
        let mut again = open(again.into_medium());
        assert_eq!(difference(&of_log(&mut again), &expected), NONE, "{at}");
        // It goes on instead, and fails again a little later.
        for later in 0..8 {
            let mut log = open(disk.clone());
            log.medium_mut().fail_after = Some(at);
            let _ = log.migrate();
            log.medium_mut().fail_after = Some(later);
            let committed = log.commit(&[session_op(9999)].into_iter().collect());
            let mut crashed = log.into_medium();
            crashed.crash(|| coin.toss());
            let mut again = open(crashed);
            let now = of_log(&mut again);
            assert_eq!(again.report().damages, []);
            match committed {
                Ok(()) => assert_eq!(now.len(), expected.len() + 1, "{at} {later}"),
                Err(_) => assert!(now.len() - expected.len() <= 1, "{at} {later}"),
            }
            // Nothing that was sure goes while most of it is the same.
            if at + 12 < calls {
                break;
            }
        }
    }
}

#[test]
fn without_room_for_a_copy_format_1_goes_on() {
    let (disk, expected) = old();
    for segments in 0..6 {
        let mut log = open(disk.clone());
        let capacity = disk.used() + segments * CONFIG.segment_bytes;
        log.medium_mut().capacity = Some(capacity);
        match log.migrate() {
            Ok(true) => assert!(segments > 2),
            other => assert!(matches!(other, Err(StoreError::Full { .. })), "{other:?}"),
        }
        assert_eq!(difference(&of_log(&mut log), &expected), NONE);
        log.medium_mut().capacity = None;
        let op = Op::Flow {
            key: "new",
            value: b"1",
        };
        log.commit(&[op].into_iter().collect()).expect("room");
        // Both formats beside each other.
        let mut log = open(log.into_medium());
        assert_eq!(log.report().damages, []);
        assert_eq!(of_log(&mut log).len(), expected.len() + 1);
        log.migrate().expect("room");
        let mut log = open(log.into_medium());
        assert_eq!(log.format(), FORMAT);
        assert_eq!(of_log(&mut log).len(), expected.len() + 1);
    }
}

#[test]
fn a_segment_of_another_store_is_left_alone() {
    let other = Log::open(with_sessions(3).into_medium(), CONFIG, start(9)).expect("a store");
    let mut other = other.into_medium();
    let mut log = Log::open(Simulated::default(), CONFIG, start(8)).expect("a store");
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

/// A publication with that gist, under an identifier of its own.
fn received_op(gist: u32) -> Op<'static> {
    Op::Received {
        session: 1,
        packet_id: gist as u16 + 1,
        gist,
    }
}

/// What an earlier version would take for damage is in segments that it refuses, from the first
/// such operation on; a log without one is such as it reads.
#[test]
fn gists_are_in_segments_that_say_so() {
    let mut log = with_sessions(3);
    let features = |log: &Log<Simulated>| -> Vec<u32> {
        let segments = log.segments.iter();
        segments.map(|it| it.header.features).collect()
    };
    let mut expected = Vec::new();
    for (gist, segments) in [
        (0, &[GIVES_BACK][..]),
        (7, &[GIVES_BACK, GIVES_BACK | GISTS]),
        (8, &[GIVES_BACK, GIVES_BACK | GISTS]),
    ] {
        let op = received_op(gist);
        log.commit(&[op].into_iter().collect()).expect("room");
        expected.push(format!("{op:?}"));
        assert_eq!(features(&log), segments);
        // It is the same store after a restart, and goes on where it was.
        log = open(log.into_medium());
        assert_eq!(log.report().damages, []);
        let all = of_log(&mut log);
        assert!(expected.iter().all(|op| all.contains(op)), "{all:?}");
    }
    // All segments that come later may have what is moved there.
    for session in 4..2000 {
        let group = [session_op(session), Op::SessionEnd { session }];
        for op in group {
            log.commit(&[op].into_iter().collect()).expect("room");
        }
    }
    let all = features(&log);
    assert!(all.iter().all(|it| *it == GIVES_BACK | GISTS), "{all:?}");
    let mut log = open(log.into_medium());
    let all = of_log(&mut log);
    assert!(expected.iter().all(|op| all.contains(op)), "{all:?}");
}

#[test]
fn a_damaged_record_of_format_1_costs_itself() {
    let groups = [[1, 2, 3], [4, 5, 6]].map(|it| it.map(session_op).into_iter().collect());
    let mut disk = format_1(&groups);
    let bytes = disk.safe_bytes(1).expect("a segment");
    let client = { bytes.windows(6).enumerate() }.filter(|(_, it)| *it == b"client");
    let (at, _) = { client }.nth(1).expect("the second");
    bytes[at] ^= 1;
    let mut log = open(disk);
    assert_eq!(sessions(&mut log), [1, 3, 4, 5, 6]);
    let [damage] = &log.report().damages[..] else {
        panic!("{:?}", log.report().damages);
    };
    assert!((damage.offset..damage.offset + damage.len).contains(&(at as u64)));
    assert!(damage.len < 3 * (RECORD_HEADER as u64 + 20));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn no_flipped_bit_of_format_1_passes_unnoticed(bit in any::<prop::sample::Index>()) {
        let (mut disk, expected) = old();
        let bytes = disk.safe_bytes(2).expect("a segment");
        let bit = bit.index(bytes.len() * 8);
        bytes[bit / 8] ^= 1 << (bit % 8);
        let mut log = open(disk);
        let now = of_log(&mut log);
        let noticed = !log.report().damages.is_empty() || log.report().torn > 0;
        prop_assert!(now == expected || noticed);
    }
}
