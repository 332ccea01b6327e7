//! `punctual config`: what is printed, and how it ends. What is said about configurations is in the tests
//! of `punctual-server`.

use std::fs;
use std::path::Path;

use punctual_testbed::Run;
use tempfile::tempdir;

use crate::{command, run};

fn config(command: &str, file: &Path) -> Run {
    run(["config".as_ref(), command.as_ref(), file.as_os_str()])
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
fn check_says_what_is_wrong_and_ends_with_1() {
    let directory = tempdir().unwrap();
    let file = directory.path().join("p.toml");
    fs::write(&file, "limits.max_sessions = 0\n").unwrap();
    let problem = "p.toml:1: limits.max_sessions = 0: the value is out of range";
    config("check", &file).fails(1, &[problem, "1 problem"]);
    fs::write(&file, "egress.rules = ['a/+: priority=1', 'a/b: bulk']\n").unwrap();
    let warned = config("check", &file);
    assert!(
        warned.err.starts_with("warning: egress.rules"),
        "{}",
        warned.err
    );
    assert_eq!(warned.code, Some(0));
    assert!(
        warned.out.ends_with("p.toml is correct\n"),
        "{}",
        warned.out
    );
    config("check", Path::new("/no/such.toml")).fails(1, &["/no/such.toml cannot be read"]);
    run(["config", "check"]).fails(2, &["<FILE>"]);
}

#[test]
fn values_in_force_come_from_the_file_and_the_environment() {
    let directory = tempdir().unwrap();
    let file = directory.path().join("p.toml");
    fs::write(&file, "limits.receive_maximum = 8\n").unwrap();
    let mut show = command(["config".as_ref(), "show".as_ref(), file.as_os_str()]);
    show.env("PUNCTUAL__LIMITS__MAX_INFLIGHT", "9");
    let shown = Run::of(&mut show).ok();
    for line in [
        "limits.max_inflight = 9\n",
        "limits.receive_maximum = 8\n",
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

#[test]
fn lines_that_cannot_be_translated_are_listed_twice() {
    let directory = tempdir().unwrap();
    let mosquitto = directory.path().join("m.conf");
    // Who may connect as whom is lost with the second.
    fs::write(
        &mosquitto,
        "connection site\nuse_subject_as_username true\n",
    )
    .unwrap();
    let imported = config("import", &mosquitto);
    let (said, text) = (&imported.err, &imported.out);
    assert_eq!(imported.code, Some(1), "{said}");
    assert!(said.contains("was not taken over"), "{said}");
    for line in [
        "m.conf:1: connection site: ",
        "m.conf:2: use_subject_as_username true: ",
    ] {
        assert!(said.contains(line), "{said}");
        assert!(text.contains(line), "{text}");
    }
    let file = directory.path().join("p.toml");
    fs::write(&file, text).unwrap();
    config("check", &file).ok();
    config("import", Path::new("/no/such.conf")).fails(1, &["/no/such.conf cannot be read"]);
}
