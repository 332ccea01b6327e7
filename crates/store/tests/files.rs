//! A log on real files: locks, damage, a full file system, reading while it is
//! written.
#![allow(clippy::unwrap_used, reason = "tests may unwrap")]

#[path = "support/small.rs"]
mod small;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use punctual_store::op::{Content, EntryOp, Ids, SessionOp};
use punctual_store::{
    Batch, Files, Log, LogConfig, Medium as _, Op, Start, Store as _, StoreError,
};

use small::Small;

const CONFIG: LogConfig = LogConfig {
    segment_bytes: 64 << 10,
    max_bytes: 1 << 30,
    overdraft: 0,
};

const START: Start = Start { seed: 1, wall: 0 };

fn open(place: &Path) -> Log<Files> {
    // Another test starts a program: until that runs, it has the locks of this process.
    let own = Some(std::process::id());
    let until = Instant::now() + Duration::from_secs(10);
    let files = loop {
        match Files::open(place) {
            Err(StoreError::Locked { process, .. }) if process == own && Instant::now() < until => {
                std::thread::yield_now();
            }
            files => break files.unwrap(),
        }
    };
    Log::open(files, CONFIG, START).unwrap()
}

fn session(session: u64) -> Batch {
    let op = Op::Session(SessionOp {
        session,
        client_id: "client",
        user: None,
        version: 5,
        expiry: 60,
        detached: None,
        next_packet_id: 1,
    });
    [op].into_iter().collect()
}

fn message(message: u64, payload: &[u8]) -> Batch {
    let content = Content {
        topic: "t",
        properties: &[],
        payload,
        publisher: 1,
        qos: 1,
        retain: false,
        expires: None,
        stamp: &[],
    };
    let entry = EntryOp {
        session: 1,
        entry: message,
        message,
        qos: 1,
        retain: false,
        subscription_ids: Ids::NONE,
        number: None,
    };
    [Op::Message { message, content }, Op::Entry(entry)]
        .into_iter()
        .collect()
}

fn done(entry: u64) -> Batch {
    [Op::Done { session: 1, entry }].into_iter().collect()
}

fn joined(batches: impl Iterator<Item = Batch>) -> Batch {
    let mut all = Batch::new();
    batches.for_each(|batch| all.append(&batch));
    all
}

fn told(log: &mut Log<Files>) -> Vec<String> {
    let mut told = Vec::new();
    log.recover(&mut |op| told.push(format!("{op:?}"))).unwrap();
    told
}

fn segments(place: &Path) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = fs::read_dir(place)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|end| end == "segment"))
        .collect();
    files.sort();
    files
}

#[test]
fn what_was_committed_is_there_again() {
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().join("made").join("with its parents");
    let mut log = open(&place);
    log.commit(&session(1)).unwrap();
    // More than one segment, most of it done with.
    for first in (0..1000).step_by(20) {
        let mut group = Batch::new();
        for number in first + 1..=first + 20 {
            group.append(&message(number, &[7; 1000]));
            if number > 40 {
                group.append(&done(number - 40));
            }
        }
        log.commit(&group).unwrap();
    }
    let before = told(&mut log);
    let stats = log.stats();
    assert!(stats.disk_bytes < 10 * CONFIG.segment_bytes, "{stats:?}");
    drop(log);
    let mut log = open(&place);
    assert_eq!(log.report().damages, []);
    assert_eq!(told(&mut log), before);
    log.compact().unwrap();
    assert_eq!(told(&mut log), before);
    assert!(segments(&place).len() <= 2);
}

#[test]
fn a_second_process_is_refused_and_told_why() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(dir.path());
    let refused = Files::open(dir.path()).unwrap_err();
    assert!(
        matches!(
            refused,
            StoreError::Locked {
                process: Some(_),
                ..
            }
        ),
        "{refused}"
    );
    assert!(
        refused
            .to_string()
            .contains(&std::process::id().to_string())
    );
    drop(log);
    open(dir.path());
}

#[test]
fn a_store_in_use_can_be_read() {
    let dir = tempfile::tempdir().unwrap();
    let mut log = open(dir.path());
    log.commit(&session(1)).unwrap();
    for first in (0..500).step_by(20) {
        let messages = (first + 1..=first + 20).map(|number| message(number, &[7; 1000]));
        log.commit(&joined(messages)).unwrap();
    }
    let before = told(&mut log);
    let files = Files::read_only(dir.path()).unwrap();
    let mut copy = Log::open(files, CONFIG, START).unwrap();
    // It goes on, and gives back all the segments that were there.
    log.commit(&joined((1..=500).map(done))).unwrap();
    log.compact().unwrap();
    assert_eq!(told(&mut copy), before);
    let refused = copy.commit(&session(2)).unwrap_err();
    assert!(matches!(refused, StoreError::Io { .. }), "{refused}");
}

#[test]
fn a_file_that_lost_its_end_loses_its_end() {
    let dir = tempfile::tempdir().unwrap();
    let mut log = open(dir.path());
    for number in 1..=100 {
        log.commit(&session(number)).unwrap();
    }
    let end = log.stats().written_bytes;
    drop(log);
    let file = segments(dir.path()).remove(0);
    let file = fs::OpenOptions::new().write(true).open(file).unwrap();
    file.set_len(1024 + end / 2).unwrap();
    let mut log = open(dir.path());
    let kept = log.report().sessions;
    assert!((10..100).contains(&kept), "{kept}");
    // The last of them may be damaged as well.
    let what = &log.report().damages[0].what;
    assert_eq!(what, "the file has lost its end");
    // It can be used as before.
    log.commit(&session(1000)).unwrap();
    drop(log);
    let mut log = open(dir.path());
    assert_eq!(log.report().sessions, kept + 1);
    log.compact().unwrap();
    drop(log);
    assert_eq!(open(dir.path()).report().damages, []);
}

#[test]
fn something_else_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    for number in 1..3 {
        let file = dir.path().join(format!("{number:010}.segment"));
        fs::write(file, b"a file of somebody else").unwrap();
    }
    let refused = Log::open(Files::open(dir.path()).unwrap(), CONFIG, START).unwrap_err();
    assert!(matches!(refused, StoreError::Foreign(_)), "{refused}");
    let kept = fs::read(&segments(dir.path())[0]).unwrap();
    assert_eq!(kept, b"a file of somebody else");
}

#[test]
fn a_full_file_system_refuses_and_recovers() {
    let Some(small) = Small::mount(1) else {
        return;
    };
    let place = small.path().join("store");
    let mut log = open(&place);
    log.commit(&session(1)).unwrap();
    let mut number = 0;
    let refused = loop {
        number += 1;
        if let Err(error) = log.commit(&message(number, &[7; 1000])) {
            break error;
        }
    };
    assert!(
        matches!(
            refused,
            StoreError::Full {
                what: "the disk",
                ..
            }
        ),
        "{refused}"
    );
    assert!(number > 300, "{number}");
    let before = told(&mut log);
    // Nothing of what was refused is there, also not after a restart.
    drop(log);
    let mut log = open(&place);
    assert_eq!(told(&mut log), before);
    assert_eq!(log.report().entries, number - 1);
    // What is done with makes room.
    log.commit(&joined((1..number).map(done))).unwrap();
    let mut tries = 0;
    while let Err(error) = log.commit(&message(number, &[7; 1000])) {
        tries += 1;
        assert!(tries < 10, "{error}");
    }
    drop(log);
    assert_eq!(open(&place).report().entries, 1);
}

#[test]
fn a_file_with_nearly_the_name_of_a_segment_is_named_with_the_right_one() {
    let place = tempfile::tempdir().unwrap();
    let files = Files::open(place.path()).unwrap();
    drop(files);
    fs::write(place.path().join("notes.segment"), "not ours").unwrap();
    assert_eq!(
        Files::read_only(place.path()).unwrap().list().unwrap(),
        [] as [u32; 0]
    );
    fs::write(place.path().join("1.segment"), "").unwrap();
    let mut files = Files::open(place.path()).unwrap();
    for error in [
        Files::read_only(place.path()).unwrap_err().to_string(),
        files.list().unwrap_err().to_string(),
    ] {
        for word in ["/1.segment is no name", "call it 0000000001.segment"] {
            assert!(error.contains(word), "{error}");
        }
    }
}

fn is_lost<T: std::fmt::Debug>(result: Result<T, StoreError>, words: &[&str]) {
    let Err(StoreError::Lost(why)) = result else {
        panic!("{result:?}");
    };
    for word in words {
        assert!(why.contains(word), "{why}");
    }
}

/// What is written to files that were removed would be confirmed and gone.
#[test]
fn a_store_that_is_removed_while_it_is_used_confirms_nothing_any_more() {
    type Harm = fn(&Path);
    let harms: [(&str, &str, Harm); 4] = [
        ("the directory", "was removed or renamed", |place| {
            fs::remove_dir_all(place).unwrap();
        }),
        (
            "another one",
            "another directory is in the place",
            |place| {
                fs::remove_dir_all(place).unwrap();
                fs::create_dir(place).unwrap();
            },
        ),
        ("the segments", "was removed while", |place| {
            segments(place)
                .iter()
                .for_each(|it| fs::remove_file(it).unwrap());
        }),
        ("their ends", "has lost its end", |place| {
            for segment in segments(place) {
                let file = fs::OpenOptions::new().write(true).open(segment);
                file.unwrap().set_len(0).unwrap();
            }
        }),
    ];
    for (what, why, harm) in harms {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join("store");
        let mut log = open(&place);
        log.commit(&session(1)).unwrap();
        assert_eq!(log.full(), None, "{what}");
        harm(&place);
        let count = |place: &Path| place.exists().then(|| segments(place).len());
        let left = count(&place);
        // Whether the next thing is a commit or a look.
        is_lost(log.commit(&session(2)), &[why, "restore a backup"]);
        for _ in 0..3 {
            is_lost(log.full().map_or(Ok(()), Err), &[why]);
            is_lost(log.commit(&session(2)), &[why]);
        }
        assert_eq!(count(&place), left, "{what}: nothing is begun anew");
    }
}

#[test]
fn a_store_that_is_put_back_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let [place, elsewhere] = ["store", "elsewhere"].map(|name| dir.path().join(name));
    let mut log = open(&place);
    log.commit(&session(1)).unwrap();
    fs::rename(&place, &elsewhere).unwrap();
    is_lost(log.full().map_or(Ok(()), Err), &["was removed or renamed"]);
    is_lost(log.commit(&session(2)), &[]);
    fs::rename(&elsewhere, &place).unwrap();
    assert_eq!(log.full(), None);
    log.commit(&session(2)).unwrap();
    drop(log);
    assert_eq!(open(&place).report().sessions, 2);
}

/// Every segment is looked at, however many there are.
#[test]
fn an_old_segment_that_is_removed_is_missed() {
    let dir = tempfile::tempdir().unwrap();
    let mut log = open(dir.path());
    log.commit(&session(1)).unwrap();
    for first in (0..1500).step_by(20) {
        let messages = (first + 1..=first + 20).map(|number| message(number, &[7; 1000]));
        log.commit(&joined(messages)).unwrap();
    }
    let all = segments(dir.path());
    assert!(all.len() > 20);
    fs::remove_file(&all[11]).unwrap();
    let lost = (0..all.len()).find_map(|_| log.full());
    let name = all[11].display().to_string();
    is_lost(lost.map_or(Ok(()), Err), &[&name, "was removed"]);
    // As long as it is gone.
    is_lost(log.full().map_or(Ok(()), Err), &[]);
    is_lost(log.commit(&session(2)), &[]);
}

#[test]
fn a_lock_that_is_removed_lets_nobody_in() {
    let dir = tempfile::tempdir().unwrap();
    let mut log = open(dir.path());
    log.commit(&session(1)).unwrap();
    let lock = dir.path().join("lock");
    for replaces in [false, true] {
        fs::remove_file(&lock).unwrap();
        if replaces {
            fs::write(&lock, "").unwrap();
        }
        let refused = Files::open(dir.path()).unwrap_err();
        assert!(matches!(refused, StoreError::Locked { .. }), "{refused}");
        // It is said once, and the lock is there again.
        let _ = fs::remove_file(&lock);
        is_lost(
            log.full().map_or(Ok(()), Err),
            &["lock was removed", "made again"],
        );
        assert_eq!(log.full(), None);
        let refused = Files::open(dir.path()).unwrap_err();
        let process = Some(std::process::id());
        assert!(
            matches!(refused, StoreError::Locked { process: it, .. } if it == process),
            "{refused}"
        );
        log.commit(&session(2)).unwrap();
    }
    drop(log);
    assert!(!Files::open(dir.path()).unwrap().lacked_lock());
    fs::remove_file(&lock).unwrap();
    assert!(Files::open(dir.path()).unwrap().lacked_lock());
}

#[test]
fn a_directory_that_lost_its_segments_is_no_new_store() {
    let dir = tempfile::tempdir().unwrap();
    let mut log = open(dir.path());
    assert!(log.is_new());
    log.commit(&session(1)).unwrap();
    drop(log);
    assert!(!open(dir.path()).is_new());
    for segment in segments(dir.path()) {
        fs::remove_file(segment).unwrap();
    }
    for _ in 0..2 {
        for files in [Files::open(dir.path()), Files::read_only(dir.path())] {
            let refused = Log::open(files.unwrap(), CONFIG, START).unwrap_err();
            assert!(
                matches!(refused, StoreError::Emptied { commit: 1, .. }),
                "{refused}"
            );
        }
    }
}
