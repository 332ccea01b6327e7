//! Backups and compaction of stores; what a later version wrote is refused and left
//! alone.

use std::fs;
use std::path::{Path, PathBuf};

use tempfile::{TempDir, tempdir};

use super::run;

const SEGMENT: &str = "0000000001.segment";

/// A file beside this one.
pub(crate) fn fixture(name: &str) -> PathBuf {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cli");
    tests.join(name)
}

/// A backup: sessions of a user and of nobody, one with a share; queued messages with
/// both QoS, a priority and an expiry; a retained message.
pub(crate) fn backup() -> PathBuf {
    fixture("backup.jsonl")
}

/// A new store with what the backup has.
fn imported() -> TempDir {
    let new = tempdir().unwrap();
    import(new.path(), &backup()).ok();
    new
}

fn import(place: &Path, file: &Path) -> super::Run {
    run([
        "store".as_ref(),
        "import".as_ref(),
        place.as_os_str(),
        file.as_os_str(),
    ])
}

pub(crate) fn store(command: &str, place: &Path) -> super::Run {
    run(["store".as_ref(), command.as_ref(), place.as_os_str()])
}

#[test]
fn a_backup_is_what_was_imported() {
    let expected = fs::read_to_string(backup()).unwrap();
    let new = imported();
    assert!(store("check", new.path()).ok().contains("2 sessions"));
    let stats = store("stats", new.path()).ok();
    assert!(stats.starts_with("format 1\nidentity "), "{stats}");
    for _ in 0..2 {
        assert_eq!(store("export", new.path()).ok(), expected);
        store("compact", new.path()).ok();
    }
    import(new.path(), &backup()).fails(1, &["name a new directory"]);
}

#[test]
fn what_a_later_version_wrote_is_refused() {
    let new = tempdir().unwrap();
    let written = fixture("store-format-1000").join(SEGMENT);
    fs::copy(written, new.path().join(SEGMENT)).unwrap();
    let before = fs::read(new.path().join(SEGMENT)).unwrap();
    let words = ["format 1000", "up to 1", "start the version that wrote it"];
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
    let backup = fs::read_to_string(backup()).unwrap();
    let all: Vec<&str> = backup.lines().collect();
    let (file, new) = (tempdir().unwrap(), tempdir().unwrap());
    let file = file.path().join("backup");
    let import = |text: &str| {
        fs::write(&file, text).unwrap();
        import(new.path(), &file)
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
    let old = imported();
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
