//! What cannot be brought about from outside the process: silent shards, the
//! time of the shutdown, small bounds.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::channel;
use std::time::Duration;

use punctual_net::layer::LayerConfig;
use punctual_net::{
    AcceptPolicy, Anonymous, Identity, ListenerOptions, ListenerPolicy, ServerOptions,
};

use punctual_auth::{HttpRole, TokenFile};

use super::authorization::{Access, AuthorizerOptions};
use super::*;
use crate::config::{Auto, HttpAuth};

/// A broker without clients.
fn server() -> Server {
    Server::start(ServerOptions {
        listeners: vec![ListenerOptions {
            address: "127.0.0.1:0".parse().unwrap(),
            policy: ListenerPolicy {
                layer: LayerConfig::default(),
                identity: Identity::None,
                anonymous: Anonymous::Local,
                checks_passwords: false,
                unproven: Arc::default(),
                refuse: None,
                admits: punctual_broker::Admits::All,
                max_connections: usize::MAX,
            },
            udp: None,
            quic: None,
        }],
        broker: punctual_broker::Config::default(),
        shards: 2,
        realtime: None,
        tcp: punctual_net::TcpOptions::default(),
        marking: punctual_net::marking::Marking::default(),
        accept: AcceptPolicy {
            max_connections: usize::MAX,
            rate: 0,
            max_drift: punctual_broker::Nanos::MAX,
        },
        max_receive_bytes: 1 << 20,
        slice: punctual_broker::Nanos(100_000),
        shutdown_timeout: punctual_broker::Nanos::from_secs(1),
        authentication_threads: 1,
        authenticator: None,
        admission: None,
        store: None,
        federation: None,
        access: None,
    })
    .unwrap()
}

/// Nobody is asked for credentials.
fn start(server: &Server, bounds: Bounds) -> (Http, SocketAddr) {
    let authorizer = Authorizer::new(AuthorizerOptions {
        address: &any_port(),
        auth: HttpAuth::Off,
        open: Auto::Auto,
        token_file: None,
        is_named: false,
        users: None,
    });
    start_behind(server, bounds, authorizer.unwrap())
}

fn any_port() -> HttpAddress {
    "127.0.0.1:0".parse().unwrap()
}

fn start_behind(
    server: &Server,
    bounds: Bounds,
    authorizer: Arc<Authorizer>,
) -> (Http, SocketAddr) {
    let mut opened = Opened::open(&any_port()).unwrap().unwrap();
    opened.bounds = bounds;
    let HttpAddress::Tcp(address) = opened.address else {
        panic!("it is at {}", opened.address);
    };
    let urls = vec![format!("tcp://{}", server.addresses()[0])];
    let parts = Parts::default();
    let started = opened.start(server, urls, &Config::default(), parts, authorizer);
    (started.unwrap(), address)
}

fn get(address: SocketAddr, path: &str) -> String {
    ask(address, "GET", path, "")
}

/// Asks with more lines in the head.
fn ask(address: SocketAddr, method: &str, path: &str, more: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(60)))
        .unwrap();
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\n{more}Connection: close\r\n\r\n"
    )
    .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// Reads until the other side closes, or has reset, the connection.
fn read_to_the_end(mut stream: &TcpStream) -> Vec<u8> {
    stream
        .set_read_timeout(Some(Duration::from_secs(60)))
        .unwrap();
    let mut bytes = Vec::new();
    if let Err(error) = stream.read_to_end(&mut bytes) {
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    }
    bytes
}

#[test]
fn a_silent_shard_is_reported_and_not_waited_for() {
    let server = server();
    let (http, address) = start(&server, Bounds::default());
    assert!(get(address, "/healthz").starts_with("HTTP/1.1 200 "));
    let (release, released) = channel::<()>();
    server.handle().call(1, move |_, _| {
        let _ = released.recv();
    });
    for path in [
        "/healthz",
        "/api/v1/clients",
        "/api/v1/subscriptions",
        "/api/v1/clients/x",
    ] {
        let answer = get(address, path);
        assert!(answer.starts_with("HTTP/1.1 503 "), "{path}: {answer}");
        assert!(
            answer.contains("shard 1 does not answer"),
            "{path}: {answer}"
        );
        assert!(answer.contains("remedy"), "{path}: {answer}");
    }
    let metrics = get(address, "/metrics");
    assert!(
        metrics.contains("punctual_shard_up{shard=\"0\"} 1\n"),
        "{metrics}"
    );
    assert!(
        metrics.contains("punctual_shard_up{shard=\"1\"} 0\n"),
        "{metrics}"
    );
    assert!(get(address, "/readyz").starts_with("HTTP/1.1 200 "));
    drop(release);
    assert!(get(address, "/healthz").starts_with("HTTP/1.1 200 "));
    http.stop();
    server.shut_down();
}

#[test]
fn questions_to_a_silent_shard_are_bounded_and_not_run_later() {
    let server = server();
    let shards = Shards::new(server.handle());
    let (release, released) = channel::<()>();
    server.handle().call(0, move |_, _| {
        let _ = released.recv();
    });
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .unwrap();
    let (ran, run) = channel();
    let asking = (0..100).map(|n| {
        let (shards, ran) = (shards.clone(), ran.clone());
        async move { shards.ask(0, move |_, _| ran.send(n)).await.is_err() }
    });
    runtime.block_on(async {
        let mut set = tokio::task::JoinSet::new();
        for question in asking {
            set.spawn(question);
        }
        assert!(set.join_all().await.into_iter().all(|silent| silent));
    });
    drop((release, ran));
    // Every question is gone, and none was run.
    assert!(run.recv().is_err());
    assert!(runtime.block_on(shards.ask(0, |_, _| ())).is_ok());
    server.shut_down();
}

#[test]
fn the_shutdown_shows_and_ends_connections() {
    let server = server();
    let (http, address) = start(&server, Bounds::default());
    http.shutting_down();
    let answer = get(address, "/readyz");
    assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
    assert!(answer.contains("shuts down"), "{answer}");
    server.shut_down();
    // The shards are gone, which is no reason to be restarted.
    assert!(get(address, "/healthz").starts_with("HTTP/1.1 200 "));
    let answer = get(address, "/api/v1/clients");
    assert!(answer.contains("shuts down"), "{answer}");
    let idle = TcpStream::connect(address).unwrap();
    // Answered, so that the connection before it is accepted too.
    assert!(get(address, "/readyz").starts_with("HTTP/1.1 503 "));
    http.stop();
    assert_eq!(read_to_the_end(&idle), b"");
    assert!(TcpStream::connect(address).is_err());
}

#[test]
fn slow_and_long_heads_end_the_connection() {
    let server = server();
    let bounds = Bounds {
        head: Duration::from_millis(50),
        ..Bounds::default()
    };
    let (http, address) = start(&server, bounds);
    let slow = TcpStream::connect(address).unwrap();
    (&slow)
        .write_all(b"GET /healthz HTTP/1.1\r\nHost: lo")
        .unwrap();
    assert!(!read_to_the_end(&slow).starts_with(b"HTTP/1.1 200 "));

    let long = TcpStream::connect(address).unwrap();
    // The other side may have closed before everything is written.
    let _ = (&long).write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: ");
    let _ = (&long).write_all(&vec![b'x'; bounds.head_bytes]);
    let answer = read_to_the_end(&long);
    assert!(answer.is_empty() || answer.starts_with(b"HTTP/1.1 431 "));

    let many = TcpStream::connect(address).unwrap();
    let headers: String = (0..=bounds.headers)
        .map(|n| format!("X{n}: 1\r\n"))
        .collect();
    let _ = (&many).write_all(format!("GET / HTTP/1.1\r\n{headers}\r\n").as_bytes());
    assert!(!read_to_the_end(&many).starts_with(b"HTTP/1.1 200 "));
    http.stop();
    server.shut_down();
}

/// Who waits for its next request makes room for a new connection.
#[test]
fn connections_beyond_the_bound_take_the_place_of_idle_ones() {
    let server = server();
    let bounds = Bounds {
        connections: 2,
        per_source: 2,
        head: Duration::from_secs(600),
        ..Bounds::default()
    };
    let (http, address) = start(&server, bounds);
    let request = b"GET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let mut held = Vec::new();
    for _ in 0..5 {
        let mut stream = TcpStream::connect(address).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(60)))
            .unwrap();
        stream.write_all(request).unwrap();
        let mut some = [0; 12];
        stream.read_exact(&mut some).unwrap();
        assert_eq!(&some, b"HTTP/1.1 200");
        held.push(stream);
    }
    // Those before the last two are closed.
    for stream in &held[..3] {
        read_to_the_end(stream);
    }
    http.stop();
    server.shut_down();
}

/// What a slow reader or a head that never ends holds, is there for others after a while.
#[test]
fn a_health_check_is_answered_while_others_hold_all_places() {
    let server = server();
    let bounds = Bounds {
        connections: 4,
        per_source: 4,
        slow: Duration::from_millis(50),
        head: Duration::from_secs(600),
        ..Bounds::default()
    };
    let (http, address) = start(&server, bounds);
    let held = [(); 8].map(|()| {
        let mut stream = TcpStream::connect(address).unwrap();
        stream
            .write_all(b"GET /readyz HTTP/1.1\r\nHost: lo")
            .unwrap();
        stream
    });
    assert!(get(address, "/healthz").starts_with("HTTP/1.1 200 "));
    drop(held);
    http.stop();
    server.shut_down();
}

/// Many more than have places or may wait for one.
#[test]
fn health_checks_are_answered_while_any_number_of_heads_does_not_end() {
    let server = server();
    let bounds = Bounds {
        connections: 8,
        per_source: 4,
        waiting: 4,
        slow: Duration::from_secs(1),
        patience: Duration::from_secs(600),
        head: Duration::from_secs(600),
        ..Bounds::default()
    };
    let (http, address) = start(&server, bounds);
    let held = [(); 40].map(|()| {
        let mut stream = TcpStream::connect(address).unwrap();
        // It may be closed already.
        let _ = stream.write_all(b"GET /readyz HTTP/1.1\r\nHost: lo");
        stream
    });
    for _ in 0..5 {
        let answer = get(address, "/healthz");
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    }
    drop(held);
    http.stop();
    server.shut_down();
}

/// An authorizer with a token for each role.
fn authorizer(directory: &std::path::Path, open: Auto<bool>) -> (Arc<Authorizer>, TokenFile) {
    let path = directory.join("tokens");
    let authorizer = Authorizer::new(AuthorizerOptions {
        address: &any_port(),
        auth: HttpAuth::Required,
        open,
        token_file: Some(path.clone()),
        is_named: true,
        users: None,
    });
    let text = std::fs::read_to_string(path).unwrap();
    (authorizer.unwrap(), TokenFile::parse(&text).unwrap())
}

fn bearer(token: &str) -> String {
    format!("Authorization: Bearer {token}\r\n")
}

/// A path that leads to the route.
fn concrete(path: &str) -> String {
    path.replace("{*topic}", "x/y")
        .replace("{*id}", "x")
        .replace("{id}", "x")
        .replace("{address}", "127.0.0.1:1")
        .replace("{broker}", "x")
}

#[test]
fn every_route_that_is_not_open_asks_for_a_role_and_for_one_that_is_great_enough() {
    let directory = tempfile::tempdir().unwrap();
    let server = server();
    let (authorizer, tokens) = authorizer(directory.path(), Auto::Auto);
    let (http, address) = start_behind(&server, Bounds::default(), authorizer);
    for route in routes::routes() {
        let (method, path) = (route.method.as_str(), concrete(route.path));
        let status = |credentials: &str| {
            let answer = ask(address, method, &path, credentials);
            answer.split(' ').nth(1).unwrap().parse::<u16>().unwrap()
        };
        let refused = |status: u16| status == 401 || status == 403;
        let Access::Role(needed) = route.access else {
            assert!(!refused(status("")), "{method} {path}");
            continue;
        };
        assert_eq!(status(""), 401, "{method} {path}");
        for role in HttpRole::ALL {
            let status = status(&bearer(tokens.token_for(role).unwrap()));
            match role >= needed {
                true => assert!(!refused(status), "{method} {path} as {role}: {status}"),
                false => assert_eq!(status, 403, "{method} {path} as {role}"),
            }
        }
    }
    http.stop();
    server.shut_down();
}

#[test]
fn open_routes_take_a_role_where_they_are_not_to_be_open() {
    let directory = tempfile::tempdir().unwrap();
    let server = server();
    let (authorizer, tokens) = authorizer(directory.path(), Auto::Fixed(false));
    let (http, address) = start_behind(&server, Bounds::default(), authorizer);
    let read = bearer(tokens.token_for(HttpRole::Read).unwrap());
    for path in ["/healthz", "/metrics"] {
        assert!(get(address, path).starts_with("HTTP/1.1 401 "), "{path}");
        assert!(
            ask(address, "GET", path, &read).starts_with("HTTP/1.1 200 "),
            "{path}"
        );
    }
    http.stop();
    server.shut_down();
}

/// Guessing tokens is hopeless, and a program with an old one is not to hold up others.
#[test]
fn wrong_tokens_are_refused_and_lead_to_no_pause() {
    let directory = tempfile::tempdir().unwrap();
    let server = server();
    let (authorizer, _) = authorizer(directory.path(), Auto::Auto);
    let (http, address) = start_behind(&server, Bounds::default(), authorizer);
    for _ in 0..20 {
        let answer = ask(address, "GET", "/api/v1/role", &bearer("guess"));
        assert!(answer.starts_with("HTTP/1.1 401 "), "{answer}");
        assert!(answer.contains("www-authenticate: Bearer"), "{answer}");
    }
    http.stop();
    server.shut_down();
}

#[test]
fn many_failures_lead_to_a_pause_that_a_right_token_does_not_see() {
    let directory = tempfile::tempdir().unwrap();
    let server = server();
    let (authorizer, tokens) = authorizer(directory.path(), Auto::Auto);
    let (http, address) = start_behind(&server, Bounds::default(), authorizer);
    let role = "/api/v1/role";
    let right = bearer(tokens.token_for(HttpRole::Operate).unwrap());
    let unreadable = ["Bearer", "Digest x", "Basic !", "Basic eA==", "\u{e9}"];
    let unreadable = unreadable.map(|bad| format!("Authorization: {bad}\r\n"));
    for bad in &unreadable {
        let answer = ask(address, "GET", role, bad);
        assert!(answer.starts_with("HTTP/1.1 401 "), "{bad}: {answer}");
        assert!(
            answer.contains("www-authenticate: Bearer"),
            "{bad}: {answer}"
        );
    }
    let twice = format!("{right}{right}");
    for bad in [&twice, &unreadable[0], &unreadable[1]] {
        let answer = ask(address, "GET", role, bad);
        assert!(answer.starts_with("HTTP/1.1 429 "), "{bad}: {answer}");
        assert!(answer.contains("\r\nretry-after: "), "{answer}");
    }
    let answer = ask(address, "GET", role, &right);
    assert!(answer.ends_with("{\"role\":\"operate\"}"), "{answer}");
    http.stop();
    server.shut_down();
}

/// A probe with an old token: a broker that is well is not to be restarted for it.
#[test]
fn health_is_told_to_who_shows_wrong_credentials_and_nothing_else_is() {
    let directory = tempfile::tempdir().unwrap();
    let server = server();
    let (authorizer, _) = authorizer(directory.path(), Auto::Auto);
    let (http, address) = start_behind(&server, Bounds::default(), authorizer);
    for (path, status) in [("/healthz", 200), ("/readyz", 200), ("/metrics", 401)] {
        let answer = ask(address, "GET", path, &bearer("guess"));
        let expected = format!("HTTP/1.1 {status} ");
        assert!(answer.starts_with(&expected), "{path}: {answer}");
    }
    http.stop();
    server.shut_down();
}

/// Whose system has no place for tokens is told how to come to some.
#[test]
fn without_tokens_it_says_so_and_with_broken_ones_it_does_not_start() {
    let server = server();
    let authorizer = |token_file| {
        Authorizer::new(AuthorizerOptions {
            address: &any_port(),
            auth: HttpAuth::Required,
            open: Auto::Auto,
            token_file,
            is_named: false,
            users: None,
        })
    };
    let nowhere = [None, Some("/proc/none/tokens".into())];
    for token_file in nowhere {
        let (http, address) =
            start_behind(&server, Bounds::default(), authorizer(token_file).unwrap());
        let answer = get(address, "/api/v1/role");
        assert!(answer.starts_with("HTTP/1.1 401 "), "{answer}");
        assert!(answer.contains("there are no tokens: set "), "{answer}");
        assert!(answer.contains("server.http_token_file"), "{answer}");
        http.stop();
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("tokens");
    std::fs::write(&path, "root x\n").unwrap();
    assert!(authorizer(Some(path)).is_err());
    server.shut_down();
}

#[test]
fn without_authentication_it_is_for_this_machine_alone() {
    for (address, is_allowed) in [
        ("127.0.0.1:0", true),
        ("unix:/x", true),
        ("0.0.0.0:0", false),
    ] {
        let authorizer = Authorizer::new(AuthorizerOptions {
            address: &address.parse().unwrap(),
            auth: HttpAuth::Off,
            open: Auto::Auto,
            token_file: None,
            is_named: false,
            users: None,
        });
        assert_eq!(authorizer.is_ok(), is_allowed, "{address}");
    }
}

#[test]
fn an_address_in_use_is_named_with_the_key_and_the_remedy() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let error = Opened::open(&address.into()).err().unwrap().to_string();
    for part in ["server.http", &address.to_string(), "--http", "off"] {
        assert!(error.contains(part), "{error}");
    }
}
