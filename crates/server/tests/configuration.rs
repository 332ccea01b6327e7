//! Configurations: what is said about mistakes in them and in the files that they name, which values are
//! in force, and what becomes of a mosquitto.conf.

#![allow(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use punctual_server::config::{self, Config, check_files};
use punctual_server::{Error, Source};
use tempfile::{TempDir, tempdir};

/// A directory with files of these names and contents, which their owner alone can read.
fn files(files: &[(&str, &str)]) -> TempDir {
    let directory = tempdir().unwrap();
    for (name, text) in files {
        let file = directory.path().join(name);
        fs::write(&file, text).unwrap();
        fs::set_permissions(&file, Permissions::from_mode(0o600)).unwrap();
    }
    directory
}

fn load(file: &Path, variables: &[(&str, &str)]) -> Result<Config, Error> {
    let own = |&(name, value): &(&str, &str)| (name.to_owned(), value.to_owned());
    let source = Source {
        file: Some(file.to_owned()),
        variables: variables.iter().map(own).collect(),
        ..Source::default()
    };
    source.load()
}

/// Warnings about a configuration file and those that it names, or what is wrong.
fn check_file(file: &Path) -> Result<String, String> {
    let config = load(file, &[]).map_err(|error| error.to_string())?;
    let warnings = check_files(&config).map_err(|problems| problems.to_string())?;
    let lines = warnings.iter().map(|warning| format!("{warning}\n"));
    Ok(lines.collect())
}

/// Checks a file with `text`, in a directory with the other `files`.
fn check(text: &str, others: &[(&str, &str)]) -> Result<String, String> {
    let directory = files(others);
    let place = format!("{}/", directory.path().display());
    let file = directory.path().join("p.toml");
    fs::write(&file, text.replace("DIR/", &place)).unwrap();
    check_file(&file).map_err(|error| error.replace(&place, ""))
}

/// Whether the file is refused, with all these words.
#[track_caller]
fn refused(checked: Result<String, String>, words: &[&str]) {
    let error = checked.unwrap_err();
    for word in words {
        assert!(error.contains(word), "{word:?} is not in: {error}");
    }
}

/// That they are in force.
#[track_caller]
fn in_force(config: &Config, lines: &[(&str, &str)]) {
    let values = config.values();
    for (key, value) in lines {
        let line = (String::from(*key), String::from(*value));
        assert!(values.contains(&line), "{line:?} is not in {values:?}");
    }
}

#[test]
fn the_default_file_is_correct() {
    let text = config::toml();
    assert!(text.contains("\n#max_packet_size = "));
    check(&text, &[]).unwrap();
}

#[test]
fn every_mistake_is_reported_with_line_value_and_remedy() {
    let text = "[limits]\nmax_packet_sise = 1\nmax_sessions = 0\n[server]\nconnect_timeout = 3\n";
    refused(
        check(text, &[]),
        &[
            "p.toml:2: limits.max_packet_sise: there is no such key",
            "did you mean limits.max_packet_size?",
            "p.toml:3: limits.max_sessions = 0: the value is out of range",
            "p.toml:5: server.connect_timeout = 3: a duration needs a unit",
            "3 problems",
        ],
    );
}

#[test]
fn files_that_are_named_must_be_there_and_parse() {
    let text = r#"
        [[listener]]
        address = "tls://127.0.0.1:0"
        certificate = "DIR/no.crt"
        key = "DIR/text"
        [auth]
        password_file = "DIR/passwd"
        acl_file = "DIR/acl"
        [server]
        data = "DIR/text"
    "#;
    let others = [
        ("text", "not PEM\n"),
        ("passwd", "# users\nalice:secret\n"),
        ("acl", "topic sometimes a/b\n"),
    ];
    refused(
        check(text, &others),
        &[
            "listener.0: no.crt: cannot be read",
            "passwd:2: ",
            "acl:1: ",
            "server.data = \"text\": this is not a directory",
            "4 problems",
        ],
    );
    let text = "[auth]\npassword_file = \"DIR/no\"\nacl_file = \"DIR/neither\"\n";
    refused(
        check(text, &[]),
        &["no\": the file cannot be read", "2 problems"],
    );
}

#[test]
fn a_rule_that_never_applies_is_warned_of() {
    let rules = |list: &str| check(&format!("[egress]\nrules = [{list}]\n"), &[]).unwrap();
    let said = rules("'a/b: priority=1', 'a/#: bulk', 'a/b: priority=2'");
    let why = "it never applies: a/b: priority=1 comes before it";
    assert!(
        said.contains("egress.rules") && said.contains(why),
        "{said}"
    );
    let said = rules("'a/+: priority=1', 'a/b: bulk'");
    assert!(said.contains("a/+: priority=1 comes before it"), "{said}");
    assert_eq!(rules("'a/+: priority=1', 'a/#: bulk', '+/+: bulk'"), "");
    refused(
        check("[egress]\nrules = ['$share/g/a: priority=0']\n", &[]),
        &["leave out $share"],
    );
}

#[test]
fn a_durability_that_never_applies_is_warned_of() {
    let rules = |list: &str| check(&format!("[store]\nrules = [{list}]\n"), &[]).unwrap();
    let said = rules("'a/#: none', 'a/b: sync'");
    let why = "it never applies: a/#: none comes before it";
    assert!(said.contains("store.rules") && said.contains(why), "{said}");
    assert_eq!(rules("'a/b: sync', 'a/#: none'"), "");
    refused(
        check("[store]\nrules = ['$share/g/a: sync']\n", &[]),
        &["leave out $share"],
    );
}

#[test]
fn a_key_must_belong_to_its_certificate() {
    let names = ["localhost".to_owned()];
    let one = rcgen::generate_simple_self_signed(names.clone()).unwrap();
    let other = rcgen::generate_simple_self_signed(names).unwrap();
    let text = r#"
        [[listener]]
        address = "tls://127.0.0.1:0"
        certificate = "DIR/c.pem"
        key = "DIR/k.pem"
        client_ca = "DIR/c.pem"
    "#;
    let certificate = one.cert.pem();
    let check = |key: &rcgen::KeyPair| {
        let key = key.serialize_pem();
        check(text, &[("c.pem", &certificate), ("k.pem", &key)])
    };
    check(&one.signing_key).unwrap();
    refused(
        check(&other.signing_key),
        &["k.pem: the private key does not belong", "c.pem"],
    );
}

#[test]
fn a_file_of_another_format_is_refused() {
    refused(
        check("listener 1883\nallow_anonymous true\n", &[]),
        &["p.toml:1: this is not TOML", "p.toml:2:", "config import"],
    );
    let absent = Path::new("/no/such.toml");
    refused(check_file(absent), &["/no/such.toml cannot be read"]);
    refused(check_file(Path::new("/")), &["/ cannot be read"]);
    let directory = tempdir().unwrap();
    let file = directory.path().join("binary.toml");
    fs::write(&file, [0xff, 0xfe, 0]).unwrap();
    refused(check_file(&file), &["UTF-8"]);
}

#[test]
fn values_in_force_come_from_the_file_and_the_environment() {
    let directory = files(&[(
        "p.toml",
        "[limits]\nmax_inflight = 7\nreceive_maximum = 8\n",
    )]);
    let file = directory.path().join("p.toml");
    let variables = [
        ("PUNCTUAL__LIMITS__MAX_INFLIGHT", "9"),
        ("PUNCTUAL__LISTENER__0__ADDRESS", "ws://[::1]"),
    ];
    in_force(
        &load(&file, &variables).unwrap(),
        &[
            ("limits.max_inflight", "9"),
            ("limits.receive_maximum", "8"),
            ("listener.0.address", "\"ws://[::1]:8083\""),
            ("log.level", "\"info\""),
        ],
    );
    in_force(&Config::default(), &[("limits.max_inflight", "1000")]);
}

#[test]
fn a_translated_file_is_correct() {
    let text =
        "listener 1883 0.0.0.0\nallow_anonymous true\nmax_queued_messages 0\nmax_keepalive 60\n";
    let directory = files(&[("m.conf", text)]);
    let imported = config::import(&directory.path().join("m.conf")).unwrap();
    assert_eq!(imported.notes.len(), 0, "{:?}", imported.notes);
    let file = directory.path().join("p.toml");
    fs::write(&file, imported.toml).unwrap();
    check_file(&file).unwrap();
    in_force(
        &load(&file, &[]).unwrap(),
        &[
            ("listener.0.address", "\"tcp://0.0.0.0:1883\""),
            ("listener.0.allow_anonymous", "true"),
            ("limits.max_queued_messages", "\"unlimited\""),
            ("limits.max_keep_alive", "\"1m\""),
        ],
    );
}

#[test]
fn a_file_that_cannot_be_read_is_not_translated() {
    let error = config::import(Path::new("/no/such.conf")).err().unwrap();
    assert!(error.contains("/no/such.conf cannot be read"), "{error}");
}
