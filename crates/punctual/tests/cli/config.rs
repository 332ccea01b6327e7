//! `punctual config`.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use punctual_testbed::Run;
use tempfile::{TempDir, tempdir};

use crate::{command, run};

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

fn config(command: &str, file: &Path) -> Run {
    run(["config".as_ref(), command.as_ref(), file.as_os_str()])
}

/// Checks a file with `text`, in a directory with the other `files`.
fn check(text: &str, others: &[(&str, &str)]) -> Run {
    let directory = files(others);
    let place = format!("{}/", directory.path().display());
    let file = directory.path().join("p.toml");
    fs::write(&file, text.replace("DIR/", &place)).unwrap();
    let mut run = config("check", &file);
    run.err = run.err.replace(&place, "");
    run
}

#[test]
fn the_default_file_is_correct() {
    let text = run(["config", "default"]).ok();
    assert!(text.contains("\n#max_packet_size = "));
    assert!(check(&text, &[]).ok().ends_with("is correct\n"));
}

#[test]
fn the_default_can_be_printed_into_a_pipe_that_closes() {
    let mut child = command(["config", "default"])
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty());
}

#[test]
fn the_reference_is_markdown() {
    let text = run(["config", "default", "--markdown"]).ok();
    assert!(text.starts_with("# Configuration\n"));
}

#[test]
fn every_mistake_is_reported_with_line_value_and_remedy() {
    check(
        "[limits]\nmax_packet_sise = 1\nmax_sessions = 0\n[server]\nconnect_timeout = 3\n",
        &[],
    )
    .fails(
        1,
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
    check(text, &others).fails(
        1,
        &[
            "listener.0: no.crt: cannot be read",
            "passwd:2: ",
            "acl:1: ",
            "server.data = \"text\": this is not a directory",
            "4 problems",
        ],
    );
    let text = "[auth]\npassword_file = \"DIR/no\"\nacl_file = \"DIR/neither\"\n";
    check(text, &[]).fails(1, &["no\": the file cannot be read", "2 problems"]);
}

#[test]
fn a_rule_that_never_applies_is_warned_of() {
    let rules = |list: &str| {
        let run = check(&format!("[egress]\nrules = [{list}]\n"), &[]);
        assert_eq!(run.code, Some(0), "{}", run.err);
        run.err
    };
    let said = rules("'a/b: priority=1', 'a/#: bulk', 'a/b: priority=2'");
    let why = "it never applies: a/b: priority=1 comes before it";
    assert!(
        said.contains("egress.rules") && said.contains(why),
        "{said}"
    );
    let said = rules("'a/+: priority=1', 'a/b: bulk'");
    assert!(said.contains("a/+: priority=1 comes before it"), "{said}");
    assert_eq!(rules("'a/+: priority=1', 'a/#: bulk', '+/+: bulk'"), "");
    check("[egress]\nrules = ['$share/g/a: priority=0']\n", &[]).fails(1, &["leave out $share"]);
}

#[test]
fn a_durability_that_never_applies_is_warned_of() {
    let rules = |list: &str| {
        let run = check(&format!("[store]\nrules = [{list}]\n"), &[]);
        assert_eq!(run.code, Some(0), "{}", run.err);
        run.err
    };
    let said = rules("'a/#: none', 'a/b: sync'");
    let why = "it never applies: a/#: none comes before it";
    assert!(said.contains("store.rules") && said.contains(why), "{said}");
    assert_eq!(rules("'a/b: sync', 'a/#: none'"), "");
    check("[store]\nrules = ['$share/g/a: sync']\n", &[]).fails(1, &["leave out $share"]);
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
    check(&one.signing_key).ok();
    check(&other.signing_key).fails(1, &["k.pem: the private key does not belong", "c.pem"]);
}

#[test]
fn a_file_of_another_format_is_refused() {
    check("listener 1883\nallow_anonymous true\n", &[]).fails(
        1,
        &["p.toml:1: this is not TOML", "p.toml:2:", "config import"],
    );
    config("check", Path::new("/no/such.toml")).fails(1, &["/no/such.toml cannot be read"]);
    config("check", Path::new("/")).fails(1, &["/ cannot be read"]);
    let directory = tempdir().unwrap();
    let file = directory.path().join("binary.toml");
    fs::write(&file, [0xff, 0xfe, 0]).unwrap();
    config("check", &file).fails(1, &["UTF-8"]);
    run(["config", "check"]).fails(2, &["<FILE>"]);
}

#[test]
fn values_in_force_come_from_the_file_and_the_environment() {
    let directory = files(&[(
        "p.toml",
        "[limits]\nmax_inflight = 7\nreceive_maximum = 8\n",
    )]);
    let file = directory.path().join("p.toml");
    let mut show = command(["config".as_ref(), "show".as_ref(), file.as_os_str()]);
    show.env("PUNCTUAL__LIMITS__MAX_INFLIGHT", "9")
        .env("PUNCTUAL__LISTENER__0__ADDRESS", "ws://[::1]");
    let shown = Run::of(&mut show).ok();
    for line in [
        "limits.max_inflight = 9\n",
        "limits.receive_maximum = 8\n",
        "listener.0.address = \"ws://[::1]:8083\"\n",
        "log.level = \"info\"\n",
    ] {
        assert!(shown.contains(line), "{line} is not in {shown}");
    }
    assert!(
        run(["config", "show"])
            .ok()
            .contains("\nlimits.max_inflight = 1000\n")
    );
}

/// Translates `text`, and exits with that code; what was said, and the file that was printed.
fn import(text: &str, code: i32) -> (String, TempDir, PathBuf) {
    let directory = files(&[("m.conf", text)]);
    let run = config("import", &directory.path().join("m.conf"));
    assert_eq!(run.code, Some(code), "{}", run.err);
    let file = directory.path().join("p.toml");
    fs::write(&file, run.out).unwrap();
    (run.err, directory, file)
}

#[test]
fn a_translated_file_is_correct() {
    let (said, _directory, file) = import(
        "listener 1883 0.0.0.0\nallow_anonymous true\nmax_queued_messages 0\nmax_keepalive 60\n",
        0,
    );
    assert_eq!(said, "");
    config("check", &file).ok();
    let shown = config("show", &file).ok();
    for line in [
        "listener.0.address = \"tcp://0.0.0.0:1883\"\n",
        "listener.0.allow_anonymous = true\n",
        "limits.max_queued_messages = \"unlimited\"\n",
        "limits.max_keep_alive = \"1m\"\n",
    ] {
        assert!(shown.contains(line), "{line} is not in {shown}");
    }
}

#[test]
fn lines_that_cannot_be_translated_are_listed_twice() {
    // Who may connect as whom is lost with the second.
    let (said, _directory, file) = import("connection site\nuse_subject_as_username true\n", 1);
    assert!(said.contains("was not taken over"), "{said}");
    let text = fs::read_to_string(&file).unwrap();
    for line in [
        "m.conf:1: connection site: ",
        "m.conf:2: use_subject_as_username true: ",
    ] {
        assert!(said.contains(line), "{said}");
        assert!(text.contains(line), "{text}");
    }
    config("check", &file).ok();
}

#[test]
fn a_file_that_cannot_be_read_is_not_translated() {
    config("import", Path::new("/no/such.conf")).fails(1, &["/no/such.conf cannot be read"]);
}
