//! Clients with sessions that survive, while their broker has a bad day.
//!
//! Publishers and subscribers talk with QoS 1 and 2. In the end every message
//! that a publisher was told is safe has come to every subscriber, a QoS 2 message
//! once, and first occurrences in order.

use std::collections::HashMap;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Barrier};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use punctual_client::{Backoff, Client, Config, Endpoint, Event, Message, Options, Scheme, Token};
use punctual_codec::{PropertyBuf, PropertyId, QoS, ReasonCode, SubscribeOptions};

use tempfile::NamedTempFile;

use crate::broker::{PATIENCE, eventually};

const PUBLISHERS: usize = 2;
const SUBSCRIBERS: usize = 2;
/// Messages of one publisher that are not acknowledged.
const WINDOW: usize = 50;
/// After which silence a subscriber has everything.
const QUIET: Duration = Duration::from_secs(5);
/// What a client waits for before it looks at the time.
const LOOK: Duration = Duration::from_millis(20);

/// A broker that is killed and started again on the same ports and directory.
pub(crate) struct Mortal {
    pub(crate) port: u16,
    http: u16,
    data: PathBuf,
    config: NamedTempFile,
    process: Option<Child>,
}

impl Mortal {
    /// Starts one that keeps its state in that directory.
    pub(crate) fn start_in(data: &Path) -> Self {
        Self::start_with(data, "")
    }

    /// The same with more of a configuration.
    pub(crate) fn start_with(data: &Path, more: &str) -> Self {
        // Free now; nobody else is given them before the broker binds them again.
        let probes = [(); 2].map(|()| std::net::TcpListener::bind("127.0.0.1:0").unwrap());
        let [port, http] = probes.map(|probe| probe.local_addr().unwrap().port());
        let mut config = NamedTempFile::with_suffix(".toml").unwrap();
        let usual = "[server]\nsys_interval = \"1s\"\n[limits]\nmax_queued_bytes = \"256MiB\"\n";
        config.write_all(usual.as_bytes()).unwrap();
        config.write_all(more.as_bytes()).unwrap();
        let mut mortal = Self {
            port,
            http,
            data: data.into(),
            config,
            process: None,
        };
        mortal.start();
        mortal
    }

    pub(crate) fn start(&mut self) {
        let command = Command::new(env!("CARGO_BIN_EXE_punctual"))
            .args(["serve", "--shards", "2", "--log-level", "error"])
            .args(["--listen", &format!("tcp://127.0.0.1:{}", self.port)])
            .args(["--http", &format!("127.0.0.1:{}", self.http)])
            .arg("--data")
            .arg(&self.data)
            .arg("--config")
            .arg(self.config.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn();
        self.process = Some(command.unwrap());
    }

    /// Waits until it takes connections.
    pub(crate) fn wait(&self) {
        eventually("the broker starts", || {
            TcpStream::connect(("127.0.0.1", self.port)).ok()
        });
    }

    pub(crate) fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            // SIGKILL.
            process.kill().unwrap();
            process.wait().unwrap();
        }
    }

    /// Number of its process.
    pub(crate) fn process(&self) -> u32 {
        self.process.as_ref().unwrap().id()
    }

    /// Asks its HTTP interface as an administrator; status and body.
    pub(crate) fn get(&self, path: &str) -> (u16, String) {
        let tokens = std::fs::read_to_string(self.data.join("http-tokens")).unwrap();
        let token = tokens
            .lines()
            .find_map(|line| line.strip_prefix("administer "));
        let token = token.unwrap();
        let mut stream = TcpStream::connect(("127.0.0.1", self.http)).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let credentials = format!("Authorization: Bearer {token}");
        write!(stream, "GET {path} HTTP/1.0\r\n{credentials}\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        let status = head.split(' ').nth(1).unwrap();
        (status.parse().unwrap(), body.to_owned())
    }

    /// A number of `GET /metrics` that has no labels.
    pub(crate) fn metric(&self, name: &str) -> f64 {
        let (status, metrics) = self.get("/metrics");
        assert_eq!(status, 200);
        let mut lines = metrics.lines().filter_map(|line| line.split_once(' '));
        let found = lines.find(|(found, _)| *found == name);
        found.unwrap_or_else(|| panic!("{name}")).1.parse().unwrap()
    }
}

impl Drop for Mortal {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A client with a session that survives.
pub(crate) fn client(port: u16, client_id: String) -> Client {
    client_of(port, client_id, PropertyBuf::new())
}

/// The same with other properties of CONNECT.
pub(crate) fn client_of(port: u16, client_id: String, mut properties: PropertyBuf) -> Client {
    properties.push_number(PropertyId::SessionExpiryInterval, 3600);
    let options = Options {
        endpoint: Endpoint {
            port,
            timeout: Duration::from_secs(5),
            ..Endpoint::new(Scheme::Tcp, "127.0.0.1")
        },
        config: Config {
            client_id,
            clean_start: false,
            keep_alive: 0,
            properties,
            ..Config::default()
        },
        reconnect: Some(Backoff {
            first: Duration::from_millis(5),
            longest: Duration::from_millis(50),
        }),
    };
    Client::new(options).unwrap()
}

/// What publishers are told, and what they tell.
struct Seen {
    stop: AtomicBool,
    /// What they may be refused with; `Success` for nothing.
    refusal: ReasonCode,
    safe: AtomicU64,
    refused: AtomicU64,
}

/// What a publisher was told.
struct PublisherAnswers {
    publisher: usize,
    /// Numbers of messages that are safe, with their QoS.
    safe: Vec<(u32, QoS)>,
}

/// Publishes until told to stop, and then until everything is acknowledged.
fn publish(port: u16, publisher: usize, seen: &Seen) -> PublisherAnswers {
    let mut client = client(port, format!("publisher-{publisher}"));
    let mut open: HashMap<Token, (u32, QoS)> = HashMap::new();
    let (mut number, mut safe) = (0, Vec::new());
    let mut told = Instant::now();
    loop {
        assert!(
            told.elapsed() < 10 * PATIENCE,
            "{} are never acknowledged",
            open.len()
        );
        if !seen.stop.load(Ordering::Relaxed) {
            while open.len() < WINDOW && client.is_connected() {
                let qos = [QoS::AtLeastOnce, QoS::ExactlyOnce][number as usize % 2];
                let topic = format!("kill/{publisher}/{}", number % 3);
                let message = Message::new(topic, number.to_string()).qos(qos);
                match client.publish(&message) {
                    Ok(token) => open.insert(token, (number, qos)),
                    Err(_) => break,
                };
                number += 1;
            }
        } else if open.is_empty() {
            return PublisherAnswers { publisher, safe };
        }
        // What else there is to say are broken connections.
        if let Ok(Some(Event::Published { token, reason, .. })) = client.next(Some(LOOK)) {
            let message = open.remove(&token).unwrap();
            told = Instant::now();
            // PUBREL came twice: the broker was killed after it had released the
            // message, and before it could say so.
            let released =
                message.1 == QoS::ExactlyOnce && reason == ReasonCode::PacketIdentifierNotFound;
            if reason.is_error() && reason == seen.refusal {
                seen.refused.fetch_add(1, Ordering::Relaxed);
                continue;
            }
            assert!(released || !reason.is_error(), "{message:?}: {reason}");
            seen.safe.fetch_add(1, Ordering::Relaxed);
            safe.push(message);
        }
    }
}

/// What a subscriber got: publisher, topic and number, in order.
type Got = Vec<(String, u32, QoS)>;

fn subscribe(port: u16, subscriber: usize, ready: &Barrier, stop: &AtomicBool) -> Got {
    let mut client = client(port, format!("subscriber-{subscriber}"));
    let options = SubscribeOptions {
        qos: QoS::ExactlyOnce,
        ..SubscribeOptions::default()
    };
    let none = PropertyBuf::new();
    let until = Instant::now() + PATIENCE;
    let mut asked = false;
    loop {
        assert!(Instant::now() < until, "no subscription in time");
        if client.is_connected() && !asked {
            asked = client.subscribe(&[("kill/#", options)], &none).is_ok();
        }
        if let Ok(Some(Event::Subscribed { reasons, .. })) = client.next(Some(LOOK)) {
            assert!(!reasons[0].is_error());
            break;
        }
    }
    ready.wait();
    let mut got = Got::new();
    let mut silent_since = Instant::now();
    let mut finishing = false;
    loop {
        match client.next(Some(LOOK)) {
            Ok(Some(Event::Message(delivery))) => {
                silent_since = Instant::now();
                let message = &delivery.message;
                let number = std::str::from_utf8(&message.payload).unwrap();
                let qos = delivery.message.qos;
                got.push((message.topic.clone(), number.parse().unwrap(), qos));
            }
            Ok(Some(Event::Connected(connected))) => {
                assert!(connected.session_present, "the session was lost");
            }
            Ok(_) | Err(_) => {}
        }
        // Publishers are done, and nothing has come for a while since: the silence
        // before was perhaps that of a broker which was being started.
        if stop.load(Ordering::Relaxed) && !finishing {
            (finishing, silent_since) = (true, Instant::now());
        }
        if finishing && silent_since.elapsed() > QUIET {
            return got;
        }
    }
}

/// Clients that publish and receive until they are told to stop.
pub(crate) struct Load {
    seen: Arc<Seen>,
    done: Arc<AtomicBool>,
    told: Receiver<PublisherAnswers>,
    publishers: Vec<JoinHandle<()>>,
    subscribers: Vec<JoinHandle<Got>>,
}

impl Load {
    /// Starts them. Publishers may be refused with that reason.
    pub(crate) fn start(port: u16, refusal: ReasonCode) -> Self {
        let seen = Arc::new(Seen {
            stop: AtomicBool::new(false),
            refusal,
            safe: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        });
        let done = Arc::new(AtomicBool::new(false));
        let ready = Arc::new(Barrier::new(SUBSCRIBERS + 1));
        let (sender, told): (Sender<PublisherAnswers>, Receiver<PublisherAnswers>) = channel();
        let subscribers = (0..SUBSCRIBERS)
            .map(|n| {
                let (ready, done) = (ready.clone(), done.clone());
                thread::spawn(move || subscribe(port, n, &ready, &done))
            })
            .collect();
        ready.wait();
        let publishers = (0..PUBLISHERS)
            .map(|n| {
                let (seen, sender) = (seen.clone(), sender.clone());
                thread::spawn(move || sender.send(publish(port, n, &seen)).unwrap())
            })
            .collect();
        Self {
            seen,
            done,
            told,
            publishers,
            subscribers,
        }
    }

    /// Messages that were acknowledged up to now.
    pub(crate) fn safe(&self) -> u64 {
        self.seen.safe.load(Ordering::Relaxed)
    }

    /// Messages that were refused up to now.
    pub(crate) fn refused(&self) -> u64 {
        self.seen.refused.load(Ordering::Relaxed)
    }

    /// Waits until so many more are acknowledged.
    pub(crate) fn wait_for(&self, more: u64) {
        let before = self.safe();
        eventually("messages are acknowledged", || {
            (self.safe() >= before + more).then_some(())
        });
    }

    /// Lets everything come to an end, and looks at what came of it; how many
    /// acknowledged messages were received.
    pub(crate) fn finish(self) -> u64 {
        self.seen.stop.store(true, Ordering::Relaxed);
        for publisher in self.publishers {
            publisher.join().unwrap();
        }
        self.done.store(true, Ordering::Relaxed);
        let told: Vec<PublisherAnswers> = self.told.try_iter().collect();
        assert_eq!(told.len(), PUBLISHERS);
        let mut count = 0;
        for subscriber in self.subscribers {
            count += check(&subscriber.join().unwrap(), &told);
        }
        count
    }
}

/// Compares what a subscriber got with what publishers were told.
fn check(got: &Got, told: &[PublisherAnswers]) -> u64 {
    let mut count = 0;
    let mut times: HashMap<(&str, u32), u32> = HashMap::new();
    let mut last: HashMap<(&str, QoS), u32> = HashMap::new();
    for (topic, number, qos) in got {
        let times = times.entry((topic, *number)).or_default();
        *times += 1;
        assert!(
            *times == 1 || *qos != QoS::ExactlyOnce,
            "{topic} {number} came {times} times"
        );
        if *times == 1 {
            let before = last.insert((topic, *qos), *number);
            assert!(before < Some(*number), "{topic}: {number} after {before:?}");
        }
    }
    for PublisherAnswers { publisher, safe } in told {
        for (number, qos) in safe {
            let topic = format!("kill/{publisher}/{}", number % 3);
            assert!(
                times.contains_key(&(topic.as_str(), *number)),
                "{topic} {number} ({qos:?}) was acknowledged and is lost"
            );
            count += 1;
        }
    }
    count
}
