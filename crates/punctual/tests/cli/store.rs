//! Stores of other versions: what format 1 wrote is read and written anew, and
//! what a later version wrote is refused and left alone.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tempfile::{TempDir, tempdir};

use super::run;

const SEGMENT: &str = "0000000001.segment";

/// A copy of a directory beside this file, to be written to.
pub(crate) fn copy(name: &str) -> TempDir {
    let copy = tempdir().unwrap();
    fs::copy(fixture(name).join(SEGMENT), copy.path().join(SEGMENT)).unwrap();
    copy
}

pub(crate) fn fixture(name: &str) -> PathBuf {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cli");
    tests.join(name)
}

pub(crate) fn store(command: &str, place: &Path) -> super::Run {
    run(["store".as_ref(), command.as_ref(), place.as_os_str()])
}

#[test]
fn what_format_1_wrote_is_read_and_written_anew() {
    // Sessions of a user and of nobody, one with a share; queued messages with both
    // QoS, a priority and an expiry; a retained message.
    let expected = fs::read_to_string(fixture("store-1").join("export.jsonl")).unwrap();
    let old = copy("store-1");
    assert!(store("check", old.path()).ok().contains("2 sessions"));
    assert_eq!(store("export", old.path()).ok(), expected);
    store("compact", old.path()).ok();
    assert!(!old.path().join(SEGMENT).exists());
    assert_eq!(store("export", old.path()).ok(), expected);

    let new = tempdir().unwrap();
    let backup = fixture("store-1").join("export.jsonl");
    let [command, import] = ["store", "import"].map(AsRef::as_ref);
    let import = [command, import, new.path().as_os_str(), backup.as_os_str()];
    run(import).ok();
    assert_eq!(store("export", new.path()).ok(), expected);
    run(import).fails(1, &["name a new directory"]);
}

#[test]
fn a_broker_carries_format_1_over_before_it_serves() {
    let old = copy("store-1");
    let stats = store("stats", old.path()).ok();
    assert!(stats.starts_with("format 1\n"), "{stats}");
    let mut broker = Command::new(env!("CARGO_BIN_EXE_punctual"))
        .args(["serve", "--http", "off", "--listen", "tcp://127.0.0.1:0"])
        .arg("--data")
        .arg(old.path())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let log = BufReader::new(broker.stderr.take().unwrap());
    let mut lines = log.lines().map_while(Result::ok);
    let said = lines.find(|line| line.contains("what format 1 had is in format 2 now"));
    broker.kill().unwrap();
    broker.wait().unwrap();
    assert!(said.is_some());
    let stats = store("stats", old.path()).ok();
    assert!(stats.starts_with("format 2\nidentity "), "{stats}");
    assert!(!old.path().join(SEGMENT).exists());
    assert!(store("check", old.path()).ok().contains("2 sessions"));
}

#[test]
fn what_a_later_version_wrote_is_refused() {
    let new = copy("store-1000");
    let before = fs::read(new.path().join(SEGMENT)).unwrap();
    let words = ["format 1000", "up to 2", "start the version that wrote it"];
    for command in ["check", "export", "compact"] {
        store(command, new.path()).fails(1, &words);
    }
    let data = new.path().to_str().unwrap();
    let serve = ["serve", "--http", "off", "--listen", "tcp://127.0.0.1:0"];
    run(serve.into_iter().chain(["--data", data])).fails(1, &words);
    assert_eq!(fs::read(new.path().join(SEGMENT)).unwrap(), before);
}

/// Whether a directory has no store, nor anything that a broker would take for one.
fn is_empty(place: &Path) -> bool {
    let names = fs::read_dir(place).unwrap();
    let mut names = names.map(|entry| entry.unwrap().file_name());
    names.all(|name| name == "lock")
}

#[test]
fn what_is_not_a_whole_backup_fills_nothing() {
    let backup = fs::read_to_string(fixture("store-1").join("export.jsonl")).unwrap();
    let all: Vec<&str> = backup.lines().collect();
    let (file, new) = (tempdir().unwrap(), tempdir().unwrap());
    let file = file.path().join("backup");
    let import = |text: &str| {
        fs::write(&file, text).unwrap();
        let import = ["store".as_ref(), "import".as_ref()];
        run(import
            .into_iter()
            .chain([new.path().as_os_str(), file.as_os_str()]))
    };
    for lines in 0..all.len() {
        let cut = all[..lines].join("\n");
        import(&cut).fails(
            1,
            &["something was cut off", &format!("\"lines\":{lines}}}")],
        );
        assert!(is_empty(new.path()), "{lines}");
    }
    import(&(backup.clone() + &backup)).fails(1, &["nothing may follow"]);
    import(&backup[..backup.len() / 2]).fails(1, &["line "]);
    let wrong = [
        (r#""qos":1"#, r#""qos":7"#, "qos = 7: write 0, 1 or 2"),
        (r#""options":1"#, r#""options":255"#, "options = 255"),
        (r#""version":5"#, r#""version":9"#, "version = 9"),
        (r#""topic":""#, r#""topic":"+/"#, "topic = \"+/"),
        (r#""filter":""#, r#""filter":"a+/"#, "filter = \"a+/"),
        (
            r#""properties":""#,
            r#""properties":"////"#,
            "properties = ",
        ),
        (
            r#""client_id":""#,
            r#""client_id":"","was":""#,
            "client_id = \"\"",
        ),
    ];
    for (old, text, named) in wrong {
        assert!(backup.contains(old), "{old}");
        import(&backup.replace(old, text)).fails(1, &[named, "line "]);
        assert!(is_empty(new.path()), "{named}");
    }
    // What was left by one that was killed is in nobody's way.
    fs::create_dir(new.path().join("import")).unwrap();
    fs::write(new.path().join("import").join(SEGMENT), "half").unwrap();
    store("check", new.path()).fails(1, &["has no store"]);
    import(&backup).ok();
    assert!(!new.path().join("import").exists());
    assert_eq!(store("export", new.path()).ok(), backup);
}

#[test]
fn what_compaction_leaves_out_is_named() {
    let old = copy("store-1");
    store("compact", old.path()).ok();
    let mut names = fs::read_dir(old.path()).unwrap();
    let segment = names.find_map(|entry| {
        let path = entry.unwrap().path();
        path.extension()
            .is_some_and(|it| it == "segment")
            .then_some(path)
    });
    let segment = segment.unwrap();
    let mut bytes = fs::read(&segment).unwrap();
    bytes[20] ^= 1;
    fs::write(&segment, bytes).unwrap();
    store("compact", old.path()).fails(1, &["1 places were damaged", "a copy of the header"]);
    store("check", old.path()).ok();
}
