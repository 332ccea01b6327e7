//! What is damaged is named, and costs no more than itself.

use super::*;
use crate::log::segment::{self, Opening, ReadStep, SegmentItem};

/// Where the records of the first segment are, and what of them is told.
fn records(disk: &mut SimulatedDisk) -> Vec<(std::ops::Range<usize>, Option<String>)> {
    let bytes = disk.safe_bytes(1).expect("a segment").clone();
    let Opening::Header(header) = Header::read(&bytes) else {
        panic!("no header");
    };
    let (mut at, mut records) = (START, Vec::new());
    let mut found = |found: SegmentItem<'_>| {
        if let SegmentItem::Record { record, offset } = found {
            let told = kept(|tell| tell(record.op().expect("an operation"))).pop();
            let (at, len) = (offset as usize, record.bytes.len());
            records.push((at..at + len, told));
        }
    };
    while let ReadStep::At(next) = segment::read(&header, &bytes, at, None, &mut found) {
        at = next;
    }
    records
}

#[test]
fn each_flipped_bit_is_found_and_costs_only_what_it_is_in() {
    let mut log = open(SimulatedDisk::default());
    let zeros = |key| Op::Flow {
        key,
        value: &[0; 1100],
    };
    let groups = [
        vec![session_op(1), session_op(2)],
        vec![zeros("a")],
        vec![session_op(3), zeros("b"), session_op(4)],
    ];
    for group in groups {
        log.commit(&group.into_iter().collect()).expect("room");
    }
    let end = log.segments[0].end as usize;
    let mut disk = log.into_medium();
    let before = of_log(&mut open(disk.clone()));
    let records = records(&mut disk);
    let copies = [0..128, 512..640];
    let bytes = disk.safe_bytes(1).expect("a segment").clone();
    for bit in 0..(end + 64) * 8 {
        let (byte, bit) = (bit / 8, bit % 8);
        // One of those that are all alike.
        if bytes[byte.saturating_sub(8)..byte + 8] == [0; 16] && byte % 64 != bit * 8 {
            continue;
        }
        let mut disk = disk.clone();
        disk.safe_bytes(1).expect("a segment")[byte] ^= 1 << bit;
        let mut log = open(disk);
        let record = records.iter().find(|(place, _)| place.contains(&byte));
        let lost = record.and_then(|(_, op)| op.as_ref());
        let expected = before.iter().filter(|op| Some(*op) != lost);
        let expected: Vec<String> = expected.cloned().collect();
        assert_eq!(
            difference(&of_log(&mut log), &expected),
            NONE,
            "{byte}.{bit}"
        );
        let report = log.report();
        let is_used = copies.iter().any(|it| it.contains(&byte)) || (START..end).contains(&byte);
        match &report.damages[..] {
            [damage] => {
                let place = damage.offset..damage.offset + damage.len;
                assert!(place.contains(&(byte as u64)), "{byte}.{bit}: {damage}");
                assert!(is_used || byte >= end, "{byte}.{bit}: {damage}");
            }
            [] => assert!(!is_used, "{byte}.{bit}"),
            more => panic!("{byte}.{bit}: {more:?}"),
        }
        assert!(report.torn == 0 || byte >= end, "{byte}.{bit}");
        // It goes on, and finds the same again.
        if byte % 16 == bit {
            log.commit(&[session_op(9)].into_iter().collect())
                .expect("room");
            let mut again = open(log.into_medium());
            assert_eq!(of_log(&mut again).len(), expected.len() + 1, "{byte}.{bit}");
            assert!(again.report().damages.len() <= 1, "{:?}", again.report());
        }
    }
}

#[test]
fn what_never_got_to_the_disk_is_not_called_damaged() {
    let mut log = open(SimulatedDisk::default());
    log.commit(&[session_op(1)].into_iter().collect())
        .expect("room");
    let before = of_log(&mut log);
    let ops = [
        session_op(2),
        Op::Flow {
            key: "k",
            value: &[0; 2000],
        },
    ];
    // A segment is reserved, and the write succeeds.
    log.medium_mut().fail_after = Some(2);
    assert!(log.commit(&ops.into_iter().collect()).is_err());
    let disk = log.into_medium();
    let mut whole = disk.clone();
    whole.crash(|| true);
    let after = of_log(&mut open(whole));
    assert_eq!(after.len(), before.len() + 2);
    for survivors in 0u32..1 << 5 {
        let (mut disk, mut sector) = (disk.clone(), 0);
        disk.crash(|| {
            sector += 1;
            survivors & 1 << (sector - 1) != 0
        });
        assert_eq!(sector, 5);
        let mut log = open(disk);
        let now = of_log(&mut log);
        assert!(now == before || now == after, "{survivors:05b}: {now:?}");
        assert_eq!(log.report().damages, [], "{survivors:05b}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn no_flipped_bit_passes_unnoticed(
        groups in groups(),
        segment in any::<prop::sample::Index>(),
        bit in any::<prop::sample::Index>(),
    ) {
        let mut run = Run::new();
        for draws in &groups {
            let group = run.group(draws);
            run.log().commit(&group).expect("room");
        }
        let mut disk = run.log.take().expect("a log").into_medium();
        let before = of_log(&mut open(disk.clone()));
        let segments: Vec<u32> = disk.segments().collect();
        prop_assume!(!segments.is_empty());
        let bytes = disk.safe_bytes(segments[segment.index(segments.len())]).expect("it is there");
        let bit = bit.index(bytes.len() * 8);
        bytes[bit / 8] ^= 1 << (bit % 8);
        let mut log = open(disk);
        let after = of_log(&mut log);
        prop_assert!(after == before || !log.report().damages.is_empty());
    }
}

#[test]
fn one_damaged_record_costs_itself_and_is_named() {
    let log = with_sessions(100);
    let mut disk = log.into_medium();
    let bytes = disk.safe_bytes(1).expect("a segment");
    let client = { bytes.windows(6).enumerate() }.filter(|(_, it)| *it == b"client");
    let (at, _) = { client }.nth(41).expect("the forty-second");
    bytes[at] = b'k';
    let mut log = open(disk);
    let expected: Vec<u64> = (1..=100).filter(|it| *it != 42).collect();
    assert_eq!(sessions(&mut log), expected);
    let [damage] = &log.report().damages[..] else {
        panic!("{:?}", log.report().damages);
    };
    assert_eq!(damage.segment, 1);
    assert!((damage.offset..damage.offset + damage.len).contains(&(at as u64)));
    assert_eq!(damage.what, "the checksum is wrong");
}

#[test]
fn a_damaged_beginning_costs_nothing_else() {
    let log = with_sessions(10);
    let mut disk = log.into_medium();
    let bytes = disk.safe_bytes(1).expect("a segment");
    let frames = { bytes.windows(4).enumerate() }.filter(|(_, it)| *it == [0xF5, b'p', b'f', 10]);
    let (at, _) = { frames }.nth(4).expect("the fifth");
    bytes[at..at + 32].fill(0x55);
    let mut log = open(disk);
    // Its records can still be read.
    assert_eq!(sessions(&mut log).len(), 10);
    let damage = Damage {
        segment: 1,
        offset: at as u64,
        len: 32,
        what: "no commit begins here".into(),
    };
    assert_eq!(log.report().damages, [damage]);
}

#[test]
fn a_missing_segment_is_noticed() {
    let log = with_sessions(1000);
    let mut disk = log.into_medium();
    let middle = { disk.segments() }.nth(2).expect("several segments");
    disk.remove(middle).expect("it is there");
    let log = open(disk);
    let what = &log.report().damages[0].what;
    assert!(what.contains("are missing"), "{what}");
}

/// Several segments of which none was given back.
fn segments() -> SimulatedDisk {
    let mut log = open(SimulatedDisk::default());
    let mut session = 0;
    while log.segments.len() < 3 {
        session += 1;
        log.commit(&[session_op(session)].into_iter().collect())
            .expect("room");
    }
    log.commit(&[session_op(session + 1)].into_iter().collect())
        .expect("room");
    let made = log.medium().segments().filter(|it| *it != BALLAST);
    assert_eq!(made.collect::<Vec<u32>>(), [1, 2, 3, 4]);
    log.into_medium()
}

/// What is damaged, or why it is not opened at all.
fn damages(disk: &SimulatedDisk) -> Vec<String> {
    match Log::open(disk.clone(), CONFIG, start(7)) {
        Ok(log) => {
            let damages = log.report().damages.iter();
            damages.map(ToString::to_string).collect()
        }
        Err(error) => vec![error.to_string()],
    }
}

#[test]
fn whichever_segments_are_missing_are_named() {
    let disk = segments();
    assert_eq!(damages(&disk), NONE);
    let expected = [
        (&[1][..], "segments 1 to 1 are missing"),
        (&[2][..], "are missing"),
        (&[3][..], "segments 3 to 3 are missing"),
        (&[1, 2][..], "segments 1 to 2 are missing"),
        (&[2, 3][..], "segments 2 to 3 are missing"),
        (&[1, 2, 3][..], "segments 1 to 3 are missing"),
    ];
    for (missing, what) in expected {
        let mut disk = disk.clone();
        for segment in missing {
            disk.remove(*segment).expect("it is there");
        }
        let damages = damages(&disk);
        assert!(damages[0].contains(what), "{missing:?}: {damages:?}");
        // That the last of them are missing is known for another reason as well.
        let others = damages[1..].iter();
        assert!(
            { others }.all(|it| it.contains("were confirmed")),
            "{missing:?}: {damages:?}"
        );
    }
    // What was given back is not missing, whatever went with it.
    let mut log = open(disk);
    for _ in 0..3 {
        log.compact().expect("room");
        let disk = log.into_medium();
        assert_eq!(damages(&disk), NONE);
        log = open(disk);
    }
    // The first of what is left is.
    log.commit(&[session_op(9)].into_iter().collect())
        .expect("room");
    let mut disk = log.into_medium();
    let first = { disk.segments() }.find(|it| *it != BALLAST);
    disk.remove(first.expect("a segment")).expect("it is there");
    let [damage] = &damages(&disk)[..] else {
        panic!("{:?}", damages(&disk));
    };
    assert!(damage.contains("missing"), "{damage}");
}

#[test]
fn segments_with_other_names_are_left_alone() {
    let mut disk = segments();
    let [one, two] = [1, 2].map(|it| disk.safe_bytes(it).expect("a segment").clone());
    disk.safe_bytes(1).expect("a segment").clone_from(&two);
    disk.safe_bytes(2).expect("a segment").clone_from(&one);
    let named = damages(&disk);
    assert!(
        named[0].contains("it is segment 2 under another name"),
        "{named:?}"
    );
    assert!(
        named[1].contains("it is segment 1 under another name"),
        "{named:?}"
    );
    // Until they have theirs again.
    let mut log = open(disk);
    log.commit(&[session_op(9)].into_iter().collect())
        .expect("room");
    log.compact().expect("room");
    let mut disk = log.into_medium();
    assert_eq!(disk.safe_bytes(1), Some(&mut two.clone()));
    assert_eq!(disk.safe_bytes(2), Some(&mut one.clone()));
}

#[test]
fn a_segment_whose_header_is_gone_is_not_taken_for_a_first_commit() {
    let mut log = with_sessions(5);
    let before = sessions(&mut log);
    assert_eq!(before.len(), 5);
    let mut disk = log.into_medium();
    disk.safe_bytes(1).expect("a segment")[..START].fill(0);
    let [damage] = &damages(&disk)[..] else {
        panic!("{:?}", damages(&disk));
    };
    assert!(damage.contains("neither copy of its header"), "{damage}");
    for left in [0, 100, CONFIG.segment_bytes as usize] {
        let bytes = disk.safe_bytes(1).expect("a segment");
        bytes.resize(left, 0);
        bytes.fill(0);
        let [damage] = &damages(&disk)[..] else {
            panic!("{left}: {:?}", damages(&disk));
        };
        assert!(damage.contains("nothing is in it"), "{damage}");
    }
}

/// Whatever is left of the files: nothing that was confirmed can be read.
#[test]
fn a_store_that_was_emptied_is_not_begun_anew() {
    type Harm = fn(&mut SimulatedDisk);
    let harms: [(&str, Harm); 5] = [
        ("all segments removed", |disk| {
            let all: Vec<u32> = disk.segments().collect();
            all.into_iter()
                .for_each(|it| disk.remove(it).expect("it is there"));
        }),
        ("only the reserve left", |disk| {
            disk.remove(1).expect("it is there");
        }),
        ("all segments cut to nothing", |disk| {
            let all: Vec<u32> = disk.segments().collect();
            all.into_iter()
                .for_each(|it| disk.safe_bytes(it).expect("it is there").clear());
        }),
        ("all bytes zero", |disk| {
            disk.safe_bytes(1).expect("it is there").fill(0);
        }),
        ("both headers overwritten", |disk| {
            let bytes = disk.safe_bytes(1).expect("it is there");
            [0..128, 512..640]
                .into_iter()
                .for_each(|copy| bytes[copy].fill(0xFF));
        }),
    ];
    for commits in [1, 5] {
        for (what, harm) in harms {
            let mut disk = with_sessions(commits).into_medium();
            harm(&mut disk);
            let refused = Log::open(disk, CONFIG, start(8)).err();
            assert!(
                matches!(refused, Some(StoreError::Emptied { commit: 1, .. })),
                "{commits}, {what}: {refused:?}"
            );
        }
    }
    // A store that never had a commit has nothing to lose.
    let mut log = open(SimulatedDisk::default());
    log.medium_mut().fail_after = Some(1);
    log.commit(&[session_op(1)].into_iter().collect())
        .expect_err("the disk fails");
    let mut disk = log.into_medium();
    disk.crash(|| false);
    assert_eq!(damages(&disk), NONE);
}

/// A header of which both copies are garbage is not one that never got to the disk, also
/// where only one commit follows.
#[test]
fn an_overwritten_header_is_named() {
    let mut disk = segments();
    let group: Batch = [session_op(1000)].into_iter().collect();
    let mut log = open(disk);
    let before = log.segments.len();
    while log.segments.len() == before {
        log.commit(&group).expect("room");
    }
    let last = log.segments.back().expect("segments").header.segment;
    disk = log.into_medium();
    let bytes = disk.safe_bytes(last).expect("it is there");
    [0..128, 512..640]
        .into_iter()
        .for_each(|copy| bytes[copy].fill(0x5A));
    let damages = damages(&disk);
    assert!(
        damages[0].contains("neither copy of its header"),
        "{damages:?}"
    );
}

#[test]
fn after_an_orderly_end_it_is_known_what_is_missing_at_the_end() {
    for closes in [false, true] {
        let mut log = with_sessions(10);
        if closes {
            log.close();
        }
        let mut disk = log.into_medium();
        let bytes = disk.safe_bytes(1).expect("a segment");
        let frames =
            { bytes.windows(4).enumerate() }.filter(|(_, it)| *it == [0xF5, b'p', b'f', 10]);
        let (sixth, _) = { frames }.nth(5).expect("the sixth");
        // The sixth commit has lost its end, and all after it.
        bytes[sixth + 40..].fill(0);
        let log = open(disk);
        let report = log.report();
        assert_eq!(report.sessions, 5);
        assert_eq!(report.torn, 40);
        if closes {
            let [damage] = &report.damages[..] else {
                panic!("{:?}", report.damages);
            };
            assert_eq!((damage.offset, damage.len), (sixth as u64, 40));
            assert_eq!(
                damage.what,
                "commits after 5 are missing; those up to 10 were confirmed"
            );
            assert_eq!(report.tail, None);
        } else {
            assert_eq!(report.damages, []);
            let tail = report.tail.expect("the last commit");
            let place = (tail.segment, tail.offset, tail.len);
            assert_eq!(place, (1, sixth as u64, 40));
            for word in ["never confirmed", "may have been confirmed", "do not tell"] {
                assert!(tail.to_string().contains(word), "{tail}");
            }
        }
    }
}

#[test]
fn a_payload_cannot_pass_for_a_commit() {
    // Someone who has seen the files of another store publishes one of its
    // commits, and this one is cut off in the middle of that.
    let mut other = with_sessions(2).into_medium();
    let stolen = other.safe_bytes(1).expect("a segment")[START..].to_vec();
    // At whatever byte it comes to lie.
    for shift in 0..32 {
        let mut value = vec![1; shift];
        value.extend_from_slice(&stolen[..200]);
        let mut log = Log::open(SimulatedDisk::default(), CONFIG, start(8)).expect("a store");
        log.commit(&[session_op(9)].into_iter().collect())
            .expect("room");
        let flow = Op::Flow {
            key: "k",
            value: &value,
        };
        log.commit(&[flow].into_iter().collect()).expect("room");
        let mut disk = log.into_medium();
        let mut damaged = disk.clone();
        let bytes = disk.safe_bytes(1).expect("a segment");
        let end = bytes.iter().rposition(|byte| *byte != 0).expect("bytes");
        bytes[end] = 0;
        let mut log = Log::open(disk, CONFIG, start(8)).expect("a store");
        assert_eq!(sessions(&mut log), [9]);
        assert!(log.report().torn > 0);
        // Nor is it found where the record that it is in has no length any more.
        let bytes = damaged.safe_bytes(1).expect("a segment");
        let key = bytes
            .windows(2)
            .rposition(|it| it == [1, b'k'])
            .expect("a key");
        bytes[key - 5 - 4] ^= 0x40;
        let mut log = Log::open(damaged, CONFIG, start(8)).expect("a store");
        assert_eq!(sessions(&mut log), [9]);
        assert_eq!(log.report().damages.len(), 1);
    }
}

#[test]
fn what_is_left_of_a_first_commit_passes_for_no_part_of_the_next() {
    // Records that lie at the same bytes in both.
    let groups = [1..=30, 31..=60].map(|sessions| sessions.map(session_op).collect::<Batch>());
    let mut log = open(SimulatedDisk::default());
    log.medium_mut().fail_after = Some(2);
    assert!(log.commit(&groups[0]).is_err());
    // Of the first all but the header of the segment gets to the disk.
    let mut disk = log.into_medium();
    let mut sector = 0;
    disk.crash(|| {
        sector += 1;
        sector > 2
    });
    let mut log = Log::open(disk, CONFIG, start(8)).expect("a store");
    assert!(log.report().torn > 0);
    log.medium_mut().fail_after = Some(2);
    assert!(log.commit(&groups[1]).is_err());
    // Of the second only that and the beginning.
    let mut disk = log.into_medium();
    let mut sector = 0;
    disk.crash(|| {
        sector += 1;
        sector <= 3
    });
    let mut log = Log::open(disk, CONFIG, start(9)).expect("a store");
    assert_eq!(sessions(&mut log), [0; 0]);
    assert_eq!(log.report().damages, []);
}
