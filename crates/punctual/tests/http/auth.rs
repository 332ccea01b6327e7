//! Commands that have to show who they are, and what others make the log and a terminal show.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, Output};

use punctual_server::Server;

use crate::broker::{Broker, support};

fn punctual(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_punctual"))
        .args(arguments)
        .output()
        .unwrap()
}

#[test]
fn commands_ask_at_a_unix_socket() {
    let directory = tempfile::tempdir().unwrap();
    let address = format!("unix:{}", directory.path().join("http.sock").display());
    let tokens = directory.path().join("tokens");
    let variables = [
        ("PUNCTUAL__SERVER__HTTP", address.as_str()),
        (
            "PUNCTUAL__SERVER__HTTP_TOKEN_FILE",
            tokens.to_str().unwrap(),
        ),
    ];
    let server = Server::start(support::load("", &variables).unwrap()).unwrap();
    let top = punctual(&["top", &address, "--once"]);
    assert!(top.status.success(), "{top:?}");
    server.stop();
}

#[test]
fn commands_find_the_token_themselves_or_are_told() {
    let broker = support::Broker::start();
    let address = broker.http.to_string();
    // 409: it is let in, and there is no mesh.
    let ask = |more: &[&str]| {
        let arguments = [&["mesh", "status", "--broker", &address], more].concat();
        String::from_utf8(punctual(&arguments).stderr).unwrap()
    };
    let file = &broker.tokens;
    assert!(ask(&[]).contains("not in a mesh"), "{}", ask(&[]));
    let copy = tempfile::NamedTempFile::new().unwrap();
    fs::copy(file, copy.path()).unwrap();
    // Where others can read the file, it may be a trap.
    fs::set_permissions(file, fs::Permissions::from_mode(0o644)).unwrap();
    assert!(ask(&[]).contains("--token-file"), "{}", ask(&[]));
    let given = ask(&["--token-file", copy.path().to_str().unwrap()]);
    assert!(given.contains("not in a mesh"), "{given}");
}

/// An identifier with a line break and an escape sequence.
#[test]
fn what_clients_choose_forges_no_line_of_the_log_and_commands_no_terminal() {
    let hostile = "x\n2026-01-01T00:00:00.000000Z ERROR forged line\u{1b}[2J";
    let broker = Broker::with_arguments(&["--log-level", "debug"]);
    support::Mqtt::connect(broker.tcp, hostile, 60).disconnect();
    let said = broker.logged("client connected");
    assert!(said.contains("x\\n2026-01-01"), "{said}");
    assert!(said.contains("\\u{1b}[2J"), "{said}");
    broker.logged("client disconnected");
    for line in broker.log.take() {
        assert!(!line.starts_with("2026-01-01T00:00:00.0"), "{line:?}");
        assert!(!line.contains('\u{1b}'), "{line:?}");
    }
    let shown = broker.get("/api/v1/clients");
    assert!(!shown.body.contains('\u{1b}'));
    assert_eq!(shown.ok()["clients"][0]["client_id"], hostile);
}
