//! What cannot be brought about from outside the process: silent shards, the
//! time of the shutdown, small bounds.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::sync::mpsc::channel;
use std::time::Duration;

use punctual_net::layer::LayerConfig;
use punctual_net::{
    AcceptPolicy, Anonymous, Identity, ListenerOptions, ListenerPolicy, ServerOptions,
};

use super::*;

/// A broker without clients.
fn server() -> Server {
    Server::start(ServerOptions {
        listeners: vec![ListenerOptions {
            address: "127.0.0.1:0".parse().unwrap(),
            policy: ListenerPolicy {
                layer: LayerConfig::default(),
                identity: Identity::None,
                anonymous: Anonymous::Local,
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

fn start(server: &Server, bounds: Bounds) -> (Http, SocketAddr) {
    let opened = Opened::open("127.0.0.1:0".parse().unwrap()).unwrap();
    let mut opened = opened.unwrap();
    opened.bounds = bounds;
    let address = opened.address;
    let urls = vec![format!("tcp://{}", server.addresses()[0])];
    (
        opened
            .start(server, urls, &Config::default(), Parts::default())
            .unwrap(),
        address,
    )
}

fn get(address: SocketAddr, path: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(60)))
        .unwrap();
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
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

#[test]
fn connections_beyond_the_bound_wait_for_room() {
    let server = server();
    let bounds = Bounds {
        connections: 1,
        head: Duration::from_secs(600),
        ..Bounds::default()
    };
    let (http, address) = start(&server, bounds);
    let request = b"GET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let mut first = TcpStream::connect(address).unwrap();
    first.write_all(request).unwrap();
    let mut some = [0; 12];
    first.read_exact(&mut some).unwrap();
    assert_eq!(&some, b"HTTP/1.1 200");
    // The first one stays open, so this one is not accepted.
    let mut second = TcpStream::connect(address).unwrap();
    second.write_all(request).unwrap();
    second
        .set_read_timeout(Some(Duration::from_millis(100)))
        .unwrap();
    assert!(second.read(&mut some).is_err());
    drop(first);
    second
        .set_read_timeout(Some(Duration::from_secs(60)))
        .unwrap();
    second.read_exact(&mut some).unwrap();
    assert_eq!(&some, b"HTTP/1.1 200");
    second.shutdown(Shutdown::Both).unwrap();
    http.stop();
    server.shut_down();
}

#[test]
fn an_address_in_use_is_named_with_the_key_and_the_remedy() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let error = Opened::open(address).err().unwrap().to_string();
    for part in ["server.http", &address.to_string(), "--http", "off"] {
        assert!(error.contains(part), "{error}");
    }
}
