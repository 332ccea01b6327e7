//! Who may use the interface of a running broker.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::process::{Command, Output, Stdio};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use punctual_auth::{HttpRole, PasswordFile, hash_argon2id};
use serde_json::{Value, json};

use crate::broker::log::Log;
use crate::broker::{Answer, Broker, PATIENCE};
use crate::mqtt::Mqtt;

/// Sends a request with these lines in its head, and no others that show who it is.
fn ask(broker: &Broker, method: &str, path: &str, more: &str) -> Answer {
    broker.send_as_it_is(&format!(
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{more}\r\n"
    ))
}

fn basic(user: &str, password: &str) -> String {
    let pair = BASE64_STANDARD.encode(format!("{user}:{password}"));
    format!("Authorization: Basic {pair}\r\n")
}

fn punctual(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_punctual"))
        .args(arguments)
        .output()
        .unwrap()
}

#[test]
fn a_token_file_is_made_at_the_first_start_and_stays() {
    let data = tempfile::tempdir().unwrap();
    let file = data.path().join("http-tokens");
    let start = || {
        let mut process = Command::new(env!("CARGO_BIN_EXE_punctual"))
            .args([
                "serve",
                "--listen",
                "tcp://127.0.0.1:0",
                "--http",
                "127.0.0.1:0",
                "--data",
            ])
            .arg(data.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        Log::of(process.stderr.take().unwrap()).logged("listening on http://");
        process.kill().unwrap();
        process.wait().unwrap();
        fs::read_to_string(&file).unwrap()
    };
    let first = start();
    let mode = fs::metadata(&file).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    assert_eq!(start(), first);
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
    let config = data.path().join("c.toml");
    fs::write(&config, format!("server.http_token_file = {file:?}\n")).unwrap();
    let checked = punctual(&["config", "check", config.to_str().unwrap()]);
    let said = String::from_utf8(checked.stderr).unwrap();
    assert!(said.contains("server.http_token_file"), "{said}");
    assert!(
        said.contains("every user of this machine may read it"),
        "{said}"
    );
}

/// An administrator's request must say so: before, any local user had the mesh's secret sent to an
/// address of his choice.
#[test]
fn nobody_without_a_role_has_the_secret_of_the_mesh_sent() {
    let directory = tempfile::tempdir().unwrap();
    let secret = directory.path().join("secret");
    fs::write(&secret, "what all brokers know\n").unwrap();
    let config = directory.path().join("c.toml");
    let text = format!("[mesh]\nenabled = true\nid = \"a\"\nsecret_file = {secret:?}\n");
    fs::write(&config, text).unwrap();
    let broker = Broker::with_arguments(&["--config", config.to_str().unwrap()]);
    let trap = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = trap.local_addr().unwrap().to_string();
    let body = json!({ "neighbour": address }).to_string();
    let add = |more: &str| {
        broker.send_as_it_is(&format!(
            "POST /api/v1/mesh/neighbours HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n{more}\r\n{body}",
            body.len()
        ))
    };
    add("").refused(401);
    add("Authorization: Bearer guess\r\n").refused(401);
    add(&broker.credentials(HttpRole::Operate)).refused(403);
    // No neighbour was added, so nobody will ever be connected to.
    let mesh = broker.get("/api/v1/mesh").ok();
    assert_eq!(mesh["neighbours"], json!([]));
    assert_eq!(add(&broker.credentials(HttpRole::Administer)).status, 204);
    let (mut stream, _) = trap.accept().unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    assert!(stream.read(&mut [0]).unwrap() > 0);
}

#[test]
fn users_of_the_password_file_have_the_role_of_their_http_line() {
    let directory = tempfile::tempdir().unwrap();
    let mut users = PasswordFile::default();
    for (user, salt) in [("reader", 1), ("boss", 2), ("device", 3)] {
        let hash = hash_argon2id(format!("{user}-pw").as_bytes(), [salt; 16]);
        users.set(user, &hash).unwrap();
    }
    let (passwords, acl) = (
        directory.path().join("passwd"),
        directory.path().join("acl"),
    );
    fs::write(&passwords, users.to_string()).unwrap();
    fs::write(
        &acl,
        "user reader\nhttp read\nuser boss\nhttp administer\nuser device\ntopic #\n",
    )
    .unwrap();
    let config = directory.path().join("c.toml");
    fs::write(
        &config,
        format!("[auth]\npassword_file = {passwords:?}\nacl_file = {acl:?}\n"),
    )
    .unwrap();
    let broker = Broker::with_arguments(&["--config", config.to_str().unwrap()]);
    let role = |user: &str, password: &str| {
        let answer = ask(&broker, "GET", "/api/v1/role", &basic(user, password));
        let body: Value = serde_json::from_str(&answer.body).unwrap();
        (
            answer.status,
            body["role"].as_str().unwrap_or_default().to_owned(),
        )
    };
    let ok = |role: &str| (200, role.to_owned());
    for _ in 0..2 {
        assert_eq!(role("reader", "reader-pw"), ok("read"));
        assert_eq!(role("boss", "boss-pw"), ok("administer"));
    }
    assert_eq!(broker.nice_of_thread("http-auth"), Some(10));
    for (user, password) in [
        ("device", "device-pw"),
        ("reader", "boss-pw"),
        ("nobody", ""),
    ] {
        assert_eq!(role(user, password).0, 401, "{user}");
    }
    let challenge = ask(&broker, "GET", "/api/v1/role", "");
    assert!(challenge.header("www-authenticate").is_some());
    ask(
        &broker,
        "DELETE",
        "/api/v1/clients/x",
        &basic("reader", "reader-pw"),
    )
    .refused(403);
    ask(
        &broker,
        "DELETE",
        "/api/v1/clients/x",
        &basic("boss", "boss-pw"),
    )
    .refused(404);

    // Guessing gets slower, and those whom the broker knows are not held up.
    let guesses = (0..10).map(|n| role("boss", &format!("guess {n}")).0);
    assert!(guesses.collect::<Vec<_>>().ends_with(&[429, 429]));
    assert_eq!(role("boss", "boss-pw"), ok("administer"));

    // What is taken away is gone with the reload, remembered or not.
    fs::write(&acl, "user reader\nhttp read\nuser boss\ntopic #\n").unwrap();
    broker.signal(libc::SIGHUP);
    broker.logged("configuration reloaded");
    assert_ne!(role("boss", "boss-pw").0, 200);
}

/// The names of flows are made of topics and client identifiers.
#[test]
fn metrics_of_single_flows_are_for_those_who_may_read() {
    let directory = tempfile::tempdir().unwrap();
    let config = directory.path().join("c.toml");
    fs::write(&config, "admission.enabled = true\n").unwrap();
    let broker = Broker::with_arguments(&["--config", config.to_str().unwrap()]);
    let _client = Mqtt::connect(&broker, "press", 0);
    let body = json!({
        "client": "press", "topic": "axis/1", "requirements": "deadline=1s, period=100ms, size=64"
    });
    let body = body.to_string();
    let answer = broker.send(&format!(
        "POST /api/v1/flows HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    ));
    assert_eq!(answer.status, 201, "{answer:?}");
    let open = ask(&broker, "GET", "/metrics", "");
    assert_eq!(open.status, 200);
    assert!(
        open.body.contains("punctual_flows_admitted 1\n"),
        "{}",
        open.body
    );
    assert!(!open.body.contains("press"), "{}", open.body);
    let read = ask(
        &broker,
        "GET",
        "/metrics",
        &broker.credentials(HttpRole::Read),
    );
    assert!(read.body.contains("flow=\"axis/1@press\""), "{}", read.body);
}

#[test]
fn the_system_says_who_is_at_a_unix_socket() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("http.sock");
    // What a broker that was killed leaves behind is no obstacle.
    drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
    let address = format!("unix:{}", socket.display());
    let mut process = Command::new(env!("CARGO_BIN_EXE_punctual"))
        .args(["serve", "--listen", "tcp://127.0.0.1:0", "--http", &address])
        .env(
            "PUNCTUAL__SERVER__HTTP_TOKEN_FILE",
            directory.path().join("tokens"),
        )
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let log = Log::of(process.stderr.take().unwrap());
    log.logged("listening on unix:");
    let mut stream = UnixStream::connect(&socket).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
        .write_all(b"GET /api/v1/role HTTP/1.0\r\nHost: localhost\r\n\r\n")
        .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.ends_with("{\"role\":\"administer\"}"), "{answer}");
    let top = punctual(&["top", &address, "--once"]);
    assert!(top.status.success(), "{top:?}");
    process.kill().unwrap();
    process.wait().unwrap();
}

#[test]
fn commands_find_the_token_themselves_or_are_told() {
    let broker = Broker::start();
    let address = broker.http.to_string();
    // 409: it is let in, and there is no mesh.
    let ask = |more: &[&str]| {
        let arguments = [&["mesh", "status", "--broker", &address], more].concat();
        String::from_utf8(punctual(&arguments).stderr).unwrap()
    };
    let file = broker.token_file();
    assert!(ask(&[]).contains("not in a mesh"), "{}", ask(&[]));
    let copy = tempfile::NamedTempFile::new().unwrap();
    fs::copy(&file, copy.path()).unwrap();
    // Where others can read the file, it may be a trap.
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
    assert!(ask(&[]).contains("--token-file"), "{}", ask(&[]));
    let given = ask(&["--token-file", copy.path().to_str().unwrap()]);
    assert!(given.contains("not in a mesh"), "{given}");
}

#[test]
fn without_authentication_it_warns_and_serves_this_machine_only() {
    let directory = tempfile::tempdir().unwrap();
    let config = directory.path().join("c.toml");
    fs::write(&config, "server.http_auth = \"off\"\n").unwrap();
    let path = config.to_str().unwrap();
    let broker = Broker::with_arguments(&["--config", path]);
    ask(&broker, "GET", "/api/v1/clients", "").ok();
    fs::write(
        &config,
        "server.http_auth = \"off\"\nserver.http = \"0.0.0.0:0\"\n",
    )
    .unwrap();
    let refused = punctual(&["config", "check", path]);
    assert!(!refused.status.success());
    let said = String::from_utf8(refused.stderr).unwrap();
    assert!(said.contains("server.http_auth"), "{said}");
}

/// Connections that stay open and ask now and then, as many as a process may have: a health check is
/// answered.
#[test]
fn health_checks_are_answered_while_others_hold_their_connections() {
    let broker = Broker::start();
    let request = b"GET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let hold = || {
        let mut stream = TcpStream::connect(broker.http).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(request).unwrap();
        stream
    };
    let mut held: Vec<TcpStream> = (0..192).map(|_| hold()).collect();
    for round in 0..20 {
        // Those that were closed come again.
        for stream in held.iter_mut().skip(round * 8).take(8) {
            *stream = hold();
        }
        assert_eq!(ask(&broker, "GET", "/healthz", "").status, 200);
    }
}

/// An identifier with a line break and an escape sequence.
#[test]
fn what_clients_choose_forges_no_line_of_the_log_and_commands_no_terminal() {
    let hostile = "x\n2026-01-01T00:00:00.000000Z ERROR forged line\u{1b}[2J";
    let broker = Broker::with_arguments(&["--log-level", "debug"]);
    Mqtt::connect(&broker, hostile, 60).disconnect();
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
