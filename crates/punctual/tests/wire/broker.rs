//! The broker under test: a process of its own on free loopback ports.
//!
//! One broker serves all tests of the process; a test that needs small limits
//! starts another with a config of its own. A spawned broker dies with the test
//! process, and the tail of its log is shown with a failure.
//! `PUNCTUAL_TEST_BROKER=host:port` (and `PUNCTUAL_TEST_BROKER_WS` for its
//! WebSocket listener) runs the tests against a broker that is already there;
//! tests that need their own config are then skipped.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock};
use std::time::Duration;

use tempfile::NamedTempFile;

/// How long a broker may take to open its listeners.
const START: Duration = Duration::from_secs(20);
/// Lines of the broker's log shown with a failure.
const TAIL: usize = 30;

/// A running broker; a spawned one ends when this is dropped.
pub(crate) struct Broker {
    tcp: SocketAddr,
    ws: Option<SocketAddr>,
    log: Log,
    process: Option<Process>,
}

#[derive(Clone, Default)]
pub(crate) struct Log(Arc<(Mutex<Vec<String>>, Condvar)>);

struct Process {
    child: Child,
    /// Kept while the broker may re-read it.
    config: Option<NamedTempFile>,
}

impl Broker {
    /// The broker that all tests share.
    pub(crate) fn shared() -> &'static Self {
        static SHARED: OnceLock<Broker> = OnceLock::new();
        SHARED.get_or_init(|| external().unwrap_or_else(spawn_for_process))
    }

    /// A broker with this TOML config, in which the first listener is for TCP if it names any;
    /// nothing (the test is to be skipped) when the tests run against a broker that they did not
    /// start.
    pub(crate) fn with_config(config: &str) -> Option<Self> {
        if external().is_some() {
            eprintln!("skipped: needs a broker with its own config");
            return None;
        }
        let mut file = NamedTempFile::with_suffix(".toml").expect("create the config file");
        file.write_all(config.as_bytes())
            .expect("write the config file");
        Some(spawn(Some(file), !config.contains("[[listener]]")))
    }

    /// Its TCP listener.
    pub(crate) fn tcp(&self) -> SocketAddr {
        self.tcp
    }

    /// The TCP listener of that number among those of a config of its own.
    #[track_caller]
    pub(crate) fn listener(&self, at: usize) -> SocketAddr {
        let addresses = |lines: &Vec<String>| -> Vec<SocketAddr> {
            let urls = lines.iter().filter_map(|line| url(line));
            let tcp = urls.filter_map(|url| url.strip_prefix("tcp://"));
            tcp.map(socket_address).collect()
        };
        let lines = self
            .log
            .wait(&|lines: &Vec<String>| addresses(lines).len() > at);
        addresses(&lines)[at]
    }

    /// Its WebSocket listener; nothing when an external broker has none.
    pub(crate) fn ws(&self) -> Option<SocketAddr> {
        self.ws
    }

    /// Asks a spawned broker to stop (SIGTERM).
    pub(crate) fn stop(&self) {
        self.signal(libc::SIGTERM);
    }

    /// Has it read its configuration, and the files that this names, again.
    #[track_caller]
    pub(crate) fn reload(&self) {
        let said = self.log.lines().len();
        self.signal(libc::SIGHUP);
        self.log.until(said, "configuration reloaded");
    }

    /// The same, with another configuration than [`Self::with_config`] has given it.
    #[track_caller]
    pub(crate) fn reload_with(&self, config: &str) {
        let process = self.process.as_ref().expect("a broker of our own");
        let file = process.config.as_ref().expect("a config of its own");
        std::fs::write(file.path(), config).expect("write the config file");
        self.reload();
    }

    /// What is done meanwhile the broker finds all at once.
    pub(crate) fn while_held(&self, act: impl FnOnce()) {
        let id = self.signal(libc::SIGSTOP);
        // SAFETY: waits for a child to stop, whose status is not asked for.
        let stopped = unsafe { libc::waitpid(id, std::ptr::null_mut(), libc::WUNTRACED) };
        assert_eq!(stopped, id, "the broker is held");
        act();
        self.signal(libc::SIGCONT);
    }

    fn signal(&self, signal: libc::c_int) -> libc::pid_t {
        let process = self.process.as_ref().expect("a broker of our own");
        let id = process.child.id() as libc::pid_t;
        // SAFETY: a signal to a child that has not been waited for.
        let sent = unsafe { libc::kill(id, signal) };
        assert_eq!(sent, 0, "signal {signal} to the broker");
        id
    }

    pub(crate) fn log(&self) -> Log {
        self.log.clone()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Log {
    /// The last lines.
    pub(crate) fn tail(&self) -> String {
        let lines = self.lines();
        lines[lines.len().saturating_sub(TAIL)..].join("\n")
    }

    fn lines(&self) -> MutexGuard<'_, Vec<String>> {
        self.0.0.lock().expect("no panic while holding the log")
    }

    fn push(&self, line: String) {
        self.lines().push(line);
        self.0.1.notify_all();
    }

    /// Waits for a line with these words behind the first `from` lines.
    #[track_caller]
    pub(crate) fn until(&self, from: usize, words: &str) {
        let is_said = |lines: &Vec<String>| lines[from..].iter().any(|line| line.contains(words));
        let lines = self.wait(&is_said);
        assert!(is_said(&lines), "not said: {words:?}\n{}", lines.join("\n"));
    }

    /// The lines once they are as wanted, or after a while.
    fn wait(&self, is_wanted: &dyn Fn(&Vec<String>) -> bool) -> MutexGuard<'_, Vec<String>> {
        let (Self(log), lines) = (self, self.lines());
        let waited = log
            .1
            .wait_timeout_while(lines, START, |lines| !is_wanted(lines));
        waited.expect("no panic while holding the log").0
    }
}

fn external() -> Option<Broker> {
    Some(Broker {
        tcp: address_in("PUNCTUAL_TEST_BROKER")?,
        ws: address_in("PUNCTUAL_TEST_BROKER_WS"),
        log: Log::default(),
        process: None,
    })
}

fn address_in(variable: &str) -> Option<SocketAddr> {
    let value = std::env::var(variable).ok()?;
    let mut addresses = value
        .to_socket_addrs()
        .expect("host:port in the environment");
    addresses.next()
}

/// A broker that lives as long as the process. The kernel's parent-death signal
/// follows the thread that forked, so that thread must outlive all tests.
fn spawn_for_process() -> Broker {
    let (send, receive) = channel();
    std::thread::spawn(move || {
        let mut broker = spawn(None, true);
        let _process = broker.process.take();
        let _ = send.send(broker);
        loop {
            std::thread::park();
        }
    });
    receive.recv().expect("the broker starts")
}

fn spawn(config: Option<NamedTempFile>, listens: bool) -> Broker {
    let Some(program) = option_env!("CARGO_BIN_EXE_punctual") else {
        panic!("PUNCTUAL_TEST_BROKER names the broker where cargo does not");
    };
    let mut command = Command::new(program);
    command
        .args(["serve", "--http", "off"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    if listens {
        command
            .args(["--listen", "tcp://127.0.0.1:0"])
            .args(["--listen", "ws://127.0.0.1:0"]);
    }
    if let Some(file) = &config {
        command.arg("--config").arg(file.path());
    }
    // SAFETY: prctl is async-signal-safe and touches only the child.
    unsafe {
        command.pre_exec(|| {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            Ok(())
        });
    }
    let mut child = command.spawn().expect("start the broker");
    let stderr = child.stderr.take().expect("its standard error is piped");
    let log = Log::default();
    let lines = follow(BufReader::new(stderr), log.clone());
    let process = Process { child, config };
    let (mut tcp, mut ws) = (None, None);
    while tcp.is_none() || ws.is_none() && listens {
        let url = lines.recv_timeout(START).unwrap_or_else(|_| {
            panic!(
                "the listeners do not come up; the broker says:\n{}",
                log.tail()
            )
        });
        match url.split_once("://") {
            Some(("tcp" | "tls", address)) => tcp = Some(socket_address(address)),
            Some(("ws", address)) => ws = Some(socket_address(address)),
            _ => panic!("a listener nobody asked for: {url}"),
        }
    }
    Broker {
        tcp: tcp.expect("the loop ends with both"),
        ws,
        log,
        process: Some(process),
    }
}

/// `127.0.0.1:8083/mqtt` and the like.
fn socket_address(url: &str) -> SocketAddr {
    let address = url.split('/').next().unwrap_or_default();
    address.parse().expect("an address and a port")
}

/// What a line `listening on URL` names.
fn url(line: &str) -> Option<&str> {
    let (_, after) = line.split_once("listening on ")?;
    after
        .split(|at: char| at.is_whitespace() || at == '"')
        .next()
}

/// Keeps the log and reports each `listening on URL` line.
fn follow(lines: impl BufRead + Send + 'static, log: Log) -> Receiver<String> {
    let (send, receive) = channel();
    std::thread::spawn(move || {
        for line in lines.lines().map_while(Result::ok) {
            if let Some(url) = url(&line) {
                let _ = send.send(url.to_owned());
            }
            log.push(line);
        }
    });
    receive
}
