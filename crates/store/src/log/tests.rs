//! A log against the model, on a disk that loses, tears, fails and fills.

mod damage;
mod formats;

use proptest::collection::vec;
use proptest::prelude::*;
use punctual_model::Rng;

use super::*;
use crate::SimulatedDisk;
use crate::script::{Progress, Script};

const CONFIG: LogConfig = LogConfig {
    segment_bytes: 8 << 10,
    max_bytes: 1 << 30,
    overdraft: 0,
};

fn start(seed: u64) -> Start {
    Start { seed, wall: 3 }
}

fn open(disk: SimulatedDisk) -> Log<SimulatedDisk> {
    Log::open(disk, CONFIG, start(7)).expect("a store")
}

/// What is kept, without what need not be exact: which numbers were used, and
/// the next packet identifier where a message was sent and done with at once.
fn kept(tell: impl FnOnce(&mut dyn FnMut(Op<'_>))) -> Vec<String> {
    let mut ops = Vec::new();
    tell(&mut |op| {
        ops.push(match op {
            Op::Highest(_) => return,
            Op::Session(session) => {
                let next_packet_id = 1;
                format!(
                    "{:?}",
                    Op::Session(crate::op::SessionOp {
                        next_packet_id,
                        ..session
                    })
                )
            }
            op => format!("{op:?}"),
        });
    });
    // A log tells contents as they lie.
    ops.sort_unstable();
    ops
}

fn of_image(image: &Image) -> Vec<String> {
    kept(|tell| image.operations(tell))
}

fn of_log(log: &mut Log<SimulatedDisk>) -> Vec<String> {
    kept(|tell| {
        log.recover(tell).expect("it can be read");
    })
}

/// What one has and the other has not, shortened.
fn difference(log: &[String], model: &[String]) -> Vec<String> {
    let missing = model.iter().filter(|it| !log.contains(it));
    let surplus = log.iter().filter(|it| !model.contains(it));
    let missing = missing.map(|it| format!("missing {it:.120}"));
    let surplus = surplus.map(|it| format!("surplus {it:.120}"));
    let double = log.len().abs_diff(model.len());
    let double = (double > 0).then(|| format!("{double} more or fewer"));
    missing.chain(surplus).chain(double).collect()
}

const NONE: [&str; 0] = [];

/// The state after a crash, as a model that remembers nothing else.
fn recovered(image: &Image) -> Image {
    let mut image = image.clone();
    image.drop_unfinished();
    let mut all = Batch::new();
    image.operations(&mut |op| all.push(&op));
    let mut fresh = Image::default();
    fresh.apply(&all);
    fresh
}

fn progress(entry: &crate::image::Entry) -> Progress {
    match (entry.sent, entry.step) {
        (Some(_), true) => Progress::Stepped,
        (Some(_), false) => Progress::Sent,
        (None, _) => Progress::Waiting,
    }
}

fn groups() -> impl Strategy<Value = Vec<Vec<u64>>> {
    vec(vec(any::<u64>(), 1..20), 1..60)
}

/// Follows a script, with a model beside.
struct Run {
    script: Script,
    model: Image,
    log: Option<Log<SimulatedDisk>>,
}

impl Run {
    fn new() -> Self {
        Self {
            script: Script::default(),
            model: Image::default(),
            log: Some(open(SimulatedDisk::default())),
        }
    }

    fn log(&mut self) -> &mut Log<SimulatedDisk> {
        self.log.as_mut().expect("a log")
    }

    fn group(&mut self, draws: &[u64]) -> Batch {
        let mut group = Batch::new();
        for draw in draws {
            self.script.say(*draw, &mut group);
        }
        group
    }

    /// The power fails, perhaps while a group is being committed.
    fn crash(&mut self, rng: &mut Rng, uncertain: Option<&Batch>) {
        let mut disk = self.log.take().expect("a log").into_medium();
        disk.crash(|| rng.chance(50));
        let mut log = open(disk);
        assert_eq!(log.report().damages, []);
        let now = of_log(&mut log);
        let mut expected = recovered(&self.model);
        if let Some(group) = uncertain
            && now != of_image(&expected)
        {
            self.model.apply(group);
            expected = recovered(&self.model);
        }
        assert_eq!(difference(&now, &of_image(&expected)), NONE);
        self.script.crash(
            expected.sessions.keys().copied().collect(),
            expected
                .sessions
                .values()
                .flat_map(|it| it.entries.iter())
                .map(|(entry, it)| (entry, progress(it)))
                .collect(),
            expected.messages.keys().copied().collect(),
        );
        self.model = expected;
        self.log = Some(log);
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 64,
        max_shrink_iters: 300,
        ..ProptestConfig::default()
    })]

    #[test]
    fn what_is_committed_is_kept(groups in groups(), seed in any::<u64>()) {
        let mut run = Run::new();
        let mut rng = Rng::new(seed);
        for (at, draws) in groups.iter().enumerate() {
            let group = run.group(draws);
            prop_assert_eq!(run.log().commit(&group), Ok(()));
            run.model.apply(&group);
            let kept = of_log(run.log());
            prop_assert_eq!(difference(&kept, &of_image(&run.model)), NONE);
            if at % 8 == 7 {
                run.crash(&mut rng, None);
            }
            if at % 20 == 19 {
                prop_assert_eq!(run.log().compact(), Ok(()));
                let kept = of_log(run.log());
                prop_assert_eq!(difference(&kept, &of_image(&run.model)), NONE);
            }
        }
        run.crash(&mut rng, None);
        // All that is done with is given back.
        for _ in 0..3 {
            let _ = run.log().compact();
        }
        let stats = run.log().stats();
        prop_assert!(stats.disk_bytes <= 2 * stats.live_bytes + 4 * CONFIG.segment_bytes);
        run.crash(&mut rng, None);
    }

    #[test]
    fn a_crash_at_any_write_leaves_a_group_or_nothing_of_it(
        groups in groups(),
        seed in any::<u64>(),
        steps in vec(0u64..12, 60),
    ) {
        let mut run = Run::new();
        let mut rng = Rng::new(seed);
        for (draws, steps) in groups.iter().zip(steps) {
            let group = run.group(draws);
            run.log().medium_mut().fail_after = Some(steps);
            match run.log().commit(&group) {
                Ok(()) => {
                    run.model.apply(&group);
                    run.log().medium_mut().fail_after = None;
                }
                Err(StoreError::Io { .. }) => run.crash(&mut rng, Some(&group)),
                Err(other) => prop_assert!(false, "{other}"),
            }
        }
        run.crash(&mut rng, None);
    }

    #[test]
    fn what_failed_can_be_tried_again(
        groups in groups(),
        seed in any::<u64>(),
        steps in vec(0u64..12, 60),
    ) {
        let mut run = Run::new();
        let mut rng = Rng::new(seed);
        for (at, (draws, steps)) in groups.iter().zip(steps).enumerate() {
            let mut group = run.group(draws);
            run.log().medium_mut().fail_after = Some(steps);
            if run.log().commit(&group).is_err() {
                run.log().medium_mut().fail_after = None;
                // With what came since.
                group.append(&run.group(&[3, 18, 40]));
                prop_assert_eq!(run.log().commit(&group), Ok(()));
            }
            run.log().medium_mut().fail_after = None;
            run.model.apply(&group);
            let kept = of_log(run.log());
            prop_assert_eq!(difference(&kept, &of_image(&run.model)), NONE);
            if at % 4 == 3 {
                run.crash(&mut rng, None);
            }
        }
        run.crash(&mut rng, None);
    }

    #[test]
    fn a_full_disk_refuses_whole_groups_until_there_is_room(
        groups in groups(),
        seed in any::<u64>(),
        capacity in 2u64..8,
    ) {
        let mut run = Run::new();
        let mut rng = Rng::new(seed);
        run.log().medium_mut().capacity = Some(capacity * CONFIG.segment_bytes);
        let mut refused = Batch::new();
        for draws in &groups {
            let group = run.group(draws);
            refused.append(&group);
            match run.log().commit(&refused) {
                Ok(()) => {
                    run.model.apply(&refused);
                    refused.clear();
                    let kept = of_log(run.log());
                    prop_assert_eq!(difference(&kept, &of_image(&run.model)), NONE);
                }
                Err(error) => prop_assert!(matches!(error, StoreError::Full { .. }), "{error}"),
            }
            prop_assert!(run.log().medium().used() <= capacity * CONFIG.segment_bytes);
        }
        run.log().medium_mut().capacity = None;
        prop_assert_eq!(run.log().commit(&refused), Ok(()));
        run.model.apply(&refused);
        run.crash(&mut rng, None);
    }

    #[test]
    fn after_any_cut_of_the_end_a_prefix_of_the_commits_is_there(
        groups in groups(),
        cut in any::<prop::sample::Index>(),
    ) {
        // What is moved makes later commits necessary to read earlier ones.
        let config = LogConfig {
            segment_bytes: 1 << 20,
            ..CONFIG
        };
        let mut run = Run::new();
        run.log = Some(Log::open(SimulatedDisk::default(), config, start(7)).expect("a store"));
        let mut states = vec![Vec::new()];
        for draws in &groups {
            let group = run.group(draws);
            run.log().commit(&group).expect("room");
            run.model.apply(&group);
            states.push(of_image(&recovered(&run.model)));
        }
        let mut disk = run.log.take().expect("a log").into_medium();
        let bytes = disk.safe_bytes(1).expect("a segment");
        let written = bytes.iter().rposition(|it| *it != 0).expect("a commit");
        let from = cut.index(written + 2);
        bytes[from..].fill(0);
        match Log::open(disk, config, start(7)) {
            Ok(mut log) => {
                let now = of_log(&mut log);
                prop_assert!(states.contains(&now), "{} records", now.len());
            }
            Err(error) => prop_assert!(matches!(error, StoreError::Emptied { .. }), "{error}"),
        }
    }

}

fn sessions(log: &mut Log<SimulatedDisk>) -> Vec<u64> {
    let mut found = Vec::new();
    let tell = &mut |op: Op<'_>| {
        if let Op::Session(op) = op {
            found.push(op.session);
        }
    };
    log.recover(tell).expect("it can be read");
    found
}

fn with_sessions(count: u64) -> Log<SimulatedDisk> {
    let mut log = open(SimulatedDisk::default());
    for session in 1..=count {
        let mut group = Batch::new();
        group.push(&session_op(session));
        log.commit(&group).expect("room");
    }
    log
}

fn session_op(session: u64) -> Op<'static> {
    Op::Session(crate::op::SessionOp {
        session,
        client_id: "client",
        user: None,
        version: 5,
        expiry: 60,
        detached: None,
        next_packet_id: 1,
    })
}

/// However often the first commit fails, at whatever call of the disk, and what is left of
/// it cannot be taken back before the power fails: it is still a store, and goes on.
#[test]
fn what_is_left_of_first_commits_is_no_other_thing() {
    let group: Batch = [session_op(1)].into_iter().collect();
    let tries = (0..4).flat_map(|first| (0..4).map(move |second| [first, second]));
    for calls in tries {
        let mut disk = SimulatedDisk::default();
        for _ in 0..3 {
            let mut log = open(disk);
            for calls in calls {
                log.medium_mut().fail_after = Some(calls);
                let _ = log.commit(&group);
            }
            disk = log.into_medium();
            disk.crash(|| true);
        }
        let mut log = open(disk);
        assert_eq!(log.report().damages, []);
        log.commit(&group).expect("the disk works");
        assert_eq!(sessions(&mut open(log.into_medium())), [1], "{calls:?}");
    }
}

#[test]
fn numbers_are_remembered_when_all_is_gone() {
    let mut log = with_sessions(300);
    for session in 1..=300 {
        let mut group = Batch::new();
        group.push(&Op::SessionEnd { session });
        log.commit(&group).expect("room");
    }
    log.compact().expect("room");
    assert_eq!(log.segments.len(), 1);
    let log = open(log.into_medium());
    assert_eq!(log.report().sessions, 0);
    assert_eq!(log.report().highest.session, 300);
}

#[test]
fn a_bound_on_what_is_kept_holds_and_what_gives_back_passes() {
    let config = LogConfig {
        max_bytes: 1000,
        ..CONFIG
    };
    let mut log = Log::open(SimulatedDisk::default(), config, start(7)).expect("a store");
    let mut group = Batch::new();
    let mut session = 0;
    let refused = loop {
        session += 1;
        group.clear();
        group.push(&session_op(session));
        if let Err(error) = log.commit(&group) {
            break error;
        }
    };
    assert!(
        matches!(
            refused,
            StoreError::Full {
                what: "the store",
                ..
            }
        ),
        "{refused}"
    );
    // With it what gives room back.
    group.push(&Op::SessionEnd { session: 1 });
    group.push(&Op::SessionEnd { session: 2 });
    log.commit(&group).expect("room");
    assert!(session > 10 && log.stats().sessions == session - 2);
}

#[test]
fn a_bound_is_said_before_it_refuses() {
    let config = LogConfig {
        max_bytes: 1000,
        overdraft: 500,
        ..CONFIG
    };
    let mut log = Log::open(SimulatedDisk::default(), config, start(7)).expect("a store");
    let mut session = 0;
    let mut grow = |log: &mut Log<SimulatedDisk>| {
        session += 1;
        let group: Batch = [session_op(session)].into_iter().collect();
        log.commit(&group).map(|()| session)
    };
    let said = loop {
        let last = grow(&mut log).expect("nothing is refused before it is said");
        if log.full().is_some() {
            break last;
        }
    };
    assert!(log.stats().live_bytes > 1000);
    let refused = loop {
        match grow(&mut log) {
            Ok(last) => assert!(log.full().is_some(), "{last}"),
            Err(_) => break log.stats().sessions,
        }
    };
    assert!(refused > said, "{refused} {said}");
    // Highest numbers are counted, too, when they are written.
    assert!(log.stats().live_bytes < 1600, "{}", log.stats().live_bytes);
    let mut ended = 0;
    while log.full().is_some() {
        ended += 1;
        log.commit(&end(ended)).expect("it gives back room");
    }
    assert!(log.stats().live_bytes <= 1000 - 1000 / 32);
}

#[test]
fn a_full_disk_is_said_before_it_refuses_and_not_for_ever() {
    let mut log = on_small_disk();
    let mut sessions = 0;
    let mut said = None;
    loop {
        sessions += 1;
        let group: Batch = [session_op(sessions)].into_iter().collect();
        if log.commit(&group).is_err() {
            break;
        }
        if log.full().is_some() {
            said.get_or_insert(sessions);
        }
    }
    let said = said.expect("it was said");
    assert!(said < sessions, "{said} {sessions}");
    for session in 1..sessions {
        log.commit(&end(session)).expect("it gives back room");
    }
    // Nobody has given the disk more room.
    assert_eq!(log.full(), None);
    let group: Batch = [session_op(sessions)].into_iter().collect();
    log.commit(&group).expect("there is room");
}

#[test]
fn what_begins_and_ends_at_once_is_not_written() {
    let mut log = open(SimulatedDisk::default());
    let mut group = Batch::new();
    group.push(&session_op(1));
    log.commit(&group).expect("room");
    let before = log.stats();
    let mut script = Script::default();
    group.clear();
    script.say(0, &mut group);
    // One message for one session, and its end.
    script.say(6 + (1 << 8), &mut group);
    let published = group.iter().filter(|op| !matches!(op, Op::Session(_)));
    let mut group: Batch = published.collect();
    let entry = group.iter().find_map(|op| match op {
        Op::Entry(op) => Some(op.entry),
        _ => None,
    });
    group.push(&Op::Done {
        session: 1,
        entry: entry.expect("an entry"),
    });
    log.commit(&group).expect("room");
    let after = log.stats();
    assert_eq!(after.written_bytes, before.written_bytes);
    assert_eq!((after.entries, after.messages), (0, 0));
}

fn on_small_disk() -> Log<SimulatedDisk> {
    let mut log = open(SimulatedDisk::default());
    log.medium_mut().capacity = Some(4 * CONFIG.segment_bytes);
    log
}

/// Takes away what it has for a full disk, as one had that an earlier version filled.
fn strip(log: &mut Log<SimulatedDisk>) {
    let reserves = [log.reserve.take(), log.ballast.take()];
    for reserve in reserves.into_iter().flatten() {
        assert!(log.remove(reserve.segment));
    }
    others_take_the_rest(log);
}

/// A store on a disk that it fills, as an earlier version left it: its last segment was the
/// one in reserve. And which sessions it has.
fn full() -> (Log<SimulatedDisk>, u64) {
    let mut log = open(SimulatedDisk::default());
    let mut sessions = 0;
    while log.segments.len() < 4 {
        sessions += 1;
        let group: Batch = [session_op(sessions)].into_iter().collect();
        log.commit(&group).expect("room");
    }
    strip(&mut log);
    (log, sessions)
}

fn end(session: u64) -> Batch {
    [Op::SessionEnd { session }].into_iter().collect()
}

/// Ends sessions until there is room for others.
fn makes_room(mut log: Log<SimulatedDisk>, from: u64, to: u64) {
    for session in from..=to {
        log.commit(&end(session)).expect("it gives back room");
        let group: Batch = [session_op(to + 1)].into_iter().collect();
        if log.commit(&group).is_ok() {
            let mut disk = log.into_medium();
            disk.crash(|| false);
            let mut log = open(disk);
            assert_eq!(log.report().damages, []);
            let left: Vec<u64> = (session + 1..=to + 1).collect();
            let mut now = sessions(&mut log);
            now.sort_unstable();
            assert_eq!(now, left);
            return;
        }
    }
    panic!("there was never room again");
}

#[test]
fn a_torn_commit_does_not_keep_a_full_store_from_giving_back_room() {
    let torn = (0..20).find_map(|calls| {
        let (mut log, count) = full();
        assert!(log.reserve.is_none());
        log.medium_mut().fail_after = Some(calls);
        let _ = log.commit(&end(1));
        let mut disk = log.into_medium();
        disk.crash(|| true);
        let log = open(disk);
        (log.report().torn > 0).then_some((log, count))
    });
    let (log, count) = torn.expect("a call after which a part of a commit is there");
    assert!(!log.open);
    makes_room(log, 1, count);
}

#[test]
fn a_failed_commit_does_not_keep_a_full_store_from_giving_back_room() {
    let (mut log, count) = full();
    let failed = (0..20).find(|calls| {
        log.medium_mut().fail_after = Some(*calls);
        let failed = log.commit(&end(1)).is_err();
        failed && !log.open
    });
    assert!(failed.is_some());
    log.medium_mut().fail_after = None;
    makes_room(log, 1, count);
}

/// Of the first commit of the last segment all got to the disk but the header.
#[test]
fn a_segment_without_header_does_not_keep_a_full_store_from_giving_back_room() {
    let mut log = on_small_disk();
    let mut count = 0;
    let (mut log, group) = loop {
        let before = log.medium().clone();
        let group: Batch = [session_op(count + 1)].into_iter().collect();
        log.commit(&group).expect("room");
        if log.segments.len() == 3 {
            break (open(before), group);
        }
        count += 1;
    };
    log.medium_mut().fail_after = Some(1);
    log.commit(&group).expect_err("the disk fails");
    let mut disk = log.into_medium();
    let mut sectors = 0;
    disk.crash(|| {
        sectors += 1;
        sectors > 2
    });
    let log = open(disk);
    assert!(log.report().torn > 0 && log.report().damages.is_empty());
    assert!(log.segments.len() == 3);
    let mut log = log;
    strip(&mut log);
    makes_room(log, 1, count);
}

#[test]
fn where_all_cannot_be_given_back_for_want_of_room_the_log_goes_on() {
    let mut log = with_sessions(3);
    if let Some(reserve) = log.reserve.take() {
        assert!(log.remove(reserve.segment));
    }
    assert_eq!(log.segments.len(), 1);
    log.medium_mut().capacity = Some(CONFIG.segment_bytes);
    let refused = log.compact();
    assert!(
        matches!(refused, Err(StoreError::Full { .. })),
        "{refused:?}"
    );
    log.commit(&end(2)).expect("it gives back room");
    assert_eq!(sessions(&mut open(log.into_medium())), [1, 3]);
}

/// What a program that writes for ever leaves of a disk: what is given back is gone.
fn others_take_the_rest(log: &mut Log<SimulatedDisk>) {
    let used = log.medium().used();
    log.medium_mut().capacity = Some(used);
}

/// Sessions with messages that wait, until no more can be stored; how many each has.
fn filled(sessions: u64, capacity: u64) -> (Log<SimulatedDisk>, Image, u64) {
    let mut log = open(SimulatedDisk::default());
    log.medium_mut().capacity = Some(capacity * CONFIG.segment_bytes);
    let mut model = Image::default();
    let mut entry = 0;
    loop {
        let mut group = Batch::new();
        if entry == 0 {
            group = (1..=sessions).map(session_op).collect();
        }
        for session in 1..=sessions {
            entry += 1;
            put_message(session, entry, &mut group);
        }
        match log.commit(&group) {
            Ok(()) => model.apply(&group),
            Err(StoreError::Full { .. }) => {
                others_take_the_rest(&mut log);
                return (log, model, entry / sessions - 1);
            }
            Err(other) => panic!("{other}"),
        }
    }
}

fn put_message(session: u64, entry: u64, group: &mut Batch) {
    group.push(&Op::Message {
        message: entry,
        content: crate::op::Content {
            topic: "a/b",
            properties: &[],
            payload: &[entry as u8; 60],
            publisher: 1,
            qos: 1,
            retain: false,
            expires: None,
            stamp: &[],
        },
    });
    group.push(&Op::Entry(crate::op::EntryOp {
        session,
        entry,
        message: entry,
        qos: 1,
        retain: false,
        subscription_ids: crate::op::Ids::NONE,
        number: None,
    }));
}

/// What has to be there is there after the power fails, too.
fn is_as(log: Log<SimulatedDisk>, model: &Image) -> Log<SimulatedDisk> {
    let mut disk = log.into_medium();
    disk.crash(|| false);
    let mut log = open(disk);
    assert_eq!(log.report().damages, []);
    let now = of_log(&mut log);
    assert_eq!(difference(&now, &of_image(&recovered(model))), NONE);
    log
}

/// Nothing new comes, what is acknowledged is scattered over the log, and whatever the
/// log gave back to the disk somebody else would take: every acknowledgement is written.
#[test]
fn a_full_store_takes_acknowledgements_until_none_is_left() {
    for sessions in [1, 2, 3, 7] {
        for capacity in [4, 7, 16] {
            let (mut log, mut model, each) = filled(sessions, capacity);
            // The last session's first: the oldest segments stay in use the longest.
            for session in (1..=sessions).rev() {
                for turn in 0..each {
                    let entry = turn * sessions + session;
                    let packet_id = turn as u16 + 1;
                    for op in [
                        Op::Sent {
                            session,
                            entry,
                            packet_id,
                        },
                        Op::Done { session, entry },
                    ] {
                        let group: Batch = [op].into_iter().collect();
                        let done = log.commit(&group);
                        let used = log.medium().used() / CONFIG.segment_bytes;
                        assert_eq!(done, Ok(()), "{sessions} {capacity} {entry} {used}");
                        model.apply(&group);
                        others_take_the_rest(&mut log);
                    }
                    if turn % 50 == 0 {
                        log = is_as(log, &model);
                        others_take_the_rest(&mut log);
                    }
                }
            }
            log = is_as(log, &model);
            // With nothing left to keep there is room, though the disk is full.
            others_take_the_rest(&mut log);
            let mut group = Batch::new();
            put_message(1, each * sessions + 9, &mut group);
            let _ = log.commit(&group);
            let _ = log.commit(&group);
            assert_eq!(log.commit(&group), Ok(()), "{sessions} {capacity}");
        }
    }
}

/// Clients that come and go while nothing can be stored change what is kept without end, and
/// never make it more.
#[test]
fn a_full_store_takes_what_does_not_grow_for_ever() {
    for capacity in [4, 6, 12] {
        let (mut log, mut model, each) = filled(3, capacity);
        for turn in 0..20_000u64 {
            let session = 1 + turn % 3;
            let group: Batch = [session_op(session)].into_iter().collect();
            let done = log.commit(&group);
            assert_eq!(done, Ok(()), "{capacity}: {turn}");
            model.apply(&group);
            others_take_the_rest(&mut log);
            if turn % 1000 == 0 {
                log = is_as(log, &model);
                others_take_the_rest(&mut log);
            }
        }
        let group: Batch = [Op::SessionEnd { session: 1 }].into_iter().collect();
        assert_eq!(log.commit(&group), Ok(()));
        model.apply(&group);
        let mut log = is_as(log, &model);
        // And goes on by itself when there is room.
        let mut group = Batch::new();
        put_message(2, 3 * each + 9, &mut group);
        log.medium_mut().capacity = None;
        assert_eq!(log.commit(&group), Ok(()));
    }
}

/// The power fails at any call of a disk that is full, or the disk does and what failed is
/// tried again.
#[test]
fn a_full_store_survives_whatever_happens_to_it() {
    for seed in 0..6 {
        let mut rng = Rng::new(seed);
        let (mut log, mut model, each) = filled(3, 5);
        let mut left: Vec<(u64, u64)> = (1..=3)
            .flat_map(|session| (0..each).map(move |turn| (session, turn * 3 + session)))
            .collect();
        for turn in 0..1500u64 {
            // Of every four one acknowledges.
            let op = match left.last() {
                Some(&(session, entry)) if turn % 4 == 0 => Op::Done { session, entry },
                _ => session_op(1 + turn % 3),
            };
            let group: Batch = [op].into_iter().collect();
            let calls = (0..5).fold(0, |all, _| 2 * all + u64::from(rng.chance(50)));
            log.medium_mut().fail_after = Some(calls);
            let done = log.commit(&group);
            log.medium_mut().fail_after = None;
            if done.is_err() && rng.chance(50) {
                let mut disk = log.into_medium();
                disk.crash(|| rng.chance(50));
                log = open(disk);
                assert_eq!(log.report().damages, []);
            }
            if done.is_err() {
                assert_eq!(log.commit(&group), Ok(()), "{seed}: {turn}");
            }
            model.apply(&group);
            if matches!(op, Op::Done { .. }) {
                left.pop();
            }
            others_take_the_rest(&mut log);
            if turn % 100 == 0 {
                log = is_as(log, &model);
                others_take_the_rest(&mut log);
            }
        }
        is_as(log, &model);
    }
}

/// Even a log of two segments has room again when all is acknowledged.
#[test]
fn the_smallest_full_store_goes_on_when_it_is_empty() {
    for capacity in 2..6 {
        let (mut log, mut model, each) = filled(1, capacity);
        for entry in 1..=each {
            let group: Batch = [Op::Done { session: 1, entry }].into_iter().collect();
            assert_eq!(log.commit(&group), Ok(()), "{capacity}");
            model.apply(&group);
            others_take_the_rest(&mut log);
        }
        for entry in each + 1..2 * each {
            let mut group = Batch::new();
            put_message(1, entry, &mut group);
            // With all that it gave back it may not be as large as it was.
            let most = 40;
            let done = (0..most).any(|_| log.commit(&group).is_ok());
            assert!(done, "{capacity} {entry} of {each}");
            model.apply(&group);
            let group: Batch = [Op::Done { session: 1, entry }].into_iter().collect();
            assert_eq!(log.commit(&group), Ok(()), "{capacity}");
            model.apply(&group);
            others_take_the_rest(&mut log);
        }
        is_as(log, &model);
    }
}
