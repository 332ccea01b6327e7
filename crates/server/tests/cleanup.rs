//! What a server leaves in the process: nothing, whether it was stopped or could not start.

#![allow(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]

#[path = "support/mod.rs"]
mod support;

use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::thread;
use std::time::Instant;

use punctual_server::Server;
use punctual_server::config::{Config, HttpAddress, ListenAddress, Switch};
use tempfile::TempDir;

use support::{PATIENCE, config};

/// A host of the loopback that no connection of this process comes from, so that ports stay free.
const HOST: [u8; 4] = [127, 83, 0, 1];

/// Descriptors and threads of this process.
#[derive(Debug, PartialEq, Eq)]
struct Usage {
    descriptors: usize,
    threads: usize,
}

impl Usage {
    fn now() -> Self {
        let count = |directory: &str| fs::read_dir(directory).unwrap().count();
        Self {
            descriptors: count("/proc/self/fd"),
            threads: count("/proc/self/task"),
        }
    }

    /// Waits for it to be that of the process again. Threads that check passwords or connect to
    /// neighbours end by themselves.
    #[track_caller]
    fn comes_back(&self) {
        let end = Instant::now() + PATIENCE;
        loop {
            let now = Self::now();
            if now == *self {
                return;
            }
            assert!(Instant::now() < end, "{now:?} instead of {self:?}");
            thread::yield_now();
        }
    }
}

/// A server with every part: store, HTTP interface, admission by a controller that is away, mesh and
/// a bridge, to brokers that are away.
struct Everything {
    directory: TempDir,
    mqtt: u16,
    http: u16,
}

impl Everything {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let [mqtt, http, away] = free_ports();
        let file = |name: &str, text: String| fs::write(directory.path().join(name), text).unwrap();
        file("secret", "what all brokers know\n".into());
        file(
            "bridges",
            format!("connection away\naddress 127.83.0.1:{away}\ntopic # both\n"),
        );
        Self {
            directory,
            mqtt,
            http,
        }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// The configuration, with one listener for that transport.
    fn config(&self, transport: &str) -> Config {
        let (secret, bridges) = (self.at("secret"), self.at("bridges"));
        let (data, nowhere) = (self.at("data"), self.at("nowhere"));
        let mut config = config(&format!(
            "[server]\ndata = {data:?}\n\
             [admission]\nenabled = true\nsrt = \"unix:{}\"\n\
             [mesh]\nenabled = true\nid = \"a\"\nsecret_file = {secret:?}\nbridges = {bridges:?}\n",
            nowhere.display()
        ));
        listen(&mut config, transport, self.mqtt, self.http);
        config
    }
}

fn listen(config: &mut Config, transport: &str, mqtt: u16, http: u16) {
    let mqtt = SocketAddr::from((HOST, mqtt));
    config.listeners[0].address = ListenAddress::parse(&format!("{transport}://{mqtt}")).unwrap();
    config.server.http = Switch::On(HttpAddress::Tcp((HOST, http).into()));
}

/// Ports that nobody listens on.
fn free_ports<const N: usize>() -> [u16; N] {
    let sockets = [(); N].map(|()| TcpListener::bind(SocketAddr::from((HOST, 0))).unwrap());
    sockets.map(|socket| socket.local_addr().unwrap().port())
}

#[track_caller]
fn fails(config: Config, words: &str) {
    let error = Server::start(config).err().unwrap();
    assert!(error.to_string().contains(words), "{error}");
}

/// Everything of the process is counted, so one test does it all.
#[test]
fn a_server_leaves_nothing_in_the_process() {
    let everything = Everything::new();
    // What libraries open once and keep is there from the first start on.
    Server::start(everything.config("tcp")).unwrap().stop();
    let before = Usage::now();
    a_last_part_that_cannot_start(&everything, &before);
    ports_in_use(&everything, &before);
    another_has_the_store(&everything, &before);
    twenty_starts(&everything, &before);
}

/// Bridges start last but for the HTTP interface, and want a listener for MQTT over TCP.
fn a_last_part_that_cannot_start(everything: &Everything, before: &Usage) {
    fails(everything.config("ws"), "a bridge needs a listener");
    before.comes_back();
    Server::start(everything.config("tcp")).unwrap().stop();
}

fn ports_in_use(everything: &Everything, before: &Usage) {
    for port in [everything.mqtt, everything.http] {
        let taken = TcpListener::bind(SocketAddr::from((HOST, port))).unwrap();
        fails(everything.config("tcp"), &port.to_string());
        drop(taken);
        before.comes_back();
        Server::start(everything.config("tcp")).unwrap().stop();
    }
}

/// It has the lock of the directory, and keeps it while others fail.
fn another_has_the_store(everything: &Everything, before: &Usage) {
    let [mqtt, http] = free_ports();
    let first = Server::start(everything.config("tcp")).unwrap();
    let mut second = everything.config("tcp");
    listen(&mut second, "tcp", mqtt, http);
    fails(second.clone(), "server.data");
    first.stop();
    before.comes_back();
    Server::start(second).unwrap().stop();
}

fn twenty_starts(everything: &Everything, before: &Usage) {
    for _ in 0..20 {
        Server::start(everything.config("tcp")).unwrap().stop();
    }
    before.comes_back();
}
