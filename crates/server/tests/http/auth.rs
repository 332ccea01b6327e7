//! Who may use the interface of a running broker.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use punctual_auth::{HttpRole, PasswordFile, hash_argon2id};
use punctual_server::Server;
use punctual_server::config::check_files;
use serde_json::{Value, json};

use crate::support::{Answer, Broker, Mqtt, PATIENCE, config, load};

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

/// The nice value of a thread with that name.
fn nice_of_thread(name: &str) -> Option<i32> {
    let threads = fs::read_dir("/proc/self/task").unwrap();
    threads.flatten().find_map(|thread| {
        let stat = fs::read_to_string(thread.path().join("stat")).ok()?;
        let (before, after) = stat.rsplit_once(')')?;
        let is_it = before.split_once('(')?.1 == name;
        // Field 19 of proc_pid_stat(5); those after the name begin with the third.
        let nice = after.split_ascii_whitespace().nth(16)?;
        is_it.then(|| nice.parse().ok()).flatten()
    })
}

#[test]
fn a_token_file_is_made_at_the_first_start_and_stays() {
    let data = tempfile::tempdir().unwrap();
    let file = data.path().join("http-tokens");
    let start = || {
        let config = config(&format!("server.data = {:?}\n", data.path()));
        Server::start(config).unwrap().stop();
        fs::read_to_string(&file).unwrap()
    };
    let first = start();
    let mode = fs::metadata(&file).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    assert_eq!(start(), first);
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
    let checked = check_files(&config(&format!("server.http_token_file = {file:?}\n")));
    let said = checked.unwrap()[0].to_string();
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
    let broker = Broker::with(&format!(
        "[mesh]\nenabled = true\nid = \"a\"\nsecret_file = {secret:?}\n"
    ));
    let trap = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = trap.local_addr().unwrap().to_string();
    let body = json!({ "neighbour": address });
    let add = |lines: &str| broker.post_as(lines, "/api/v1/mesh/neighbours", &body);
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
    let config = format!("[auth]\npassword_file = {passwords:?}\nacl_file = {acl:?}\n");
    let broker = Broker::with(&config);
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
    assert_eq!(nice_of_thread("http-auth"), Some(10));
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
    broker.reload(&config);
    assert_ne!(role("boss", "boss-pw").0, 200);
}

/// The names of flows are made of topics and client identifiers.
#[test]
fn metrics_of_single_flows_are_for_those_who_may_read() {
    let broker = Broker::with("admission.enabled = true\n");
    let _client = Mqtt::connect(broker.tcp, "press", 0);
    let body = json!({
        "client": "press", "topic": "axis/1", "requirements": "deadline=1s, period=100ms, size=64"
    });
    let answer = broker.post("/api/v1/flows", &body);
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
    let tokens = directory.path().join("tokens");
    let variables = [
        ("PUNCTUAL__SERVER__HTTP", address.as_str()),
        (
            "PUNCTUAL__SERVER__HTTP_TOKEN_FILE",
            tokens.to_str().unwrap(),
        ),
    ];
    let server = Server::start(load("", &variables).unwrap()).unwrap();
    assert_eq!(server.http_url(), Some(address.as_str()));
    let mut stream = UnixStream::connect(&socket).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
        .write_all(b"GET /api/v1/role HTTP/1.0\r\nHost: localhost\r\n\r\n")
        .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.ends_with("{\"role\":\"administer\"}"), "{answer}");
    server.stop();
    assert!(!socket.exists());
}

#[test]
fn without_authentication_it_warns_and_serves_this_machine_only() {
    let broker = Broker::with("server.http_auth = \"off\"\n");
    ask(&broker, "GET", "/api/v1/clients", "").ok();
    let everywhere = [("PUNCTUAL__SERVER__HTTP", "0.0.0.0:0")];
    let refused = load("server.http_auth = \"off\"\n", &everywhere);
    let said = refused.unwrap_err().to_string();
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
