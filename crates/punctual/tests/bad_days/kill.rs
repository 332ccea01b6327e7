//! kill -9: whatever was acknowledged is there when the broker runs again.
//!
//! Publishers and subscribers with sessions that survive talk with QoS 1 and 2
//! while the broker is killed again and again. In the end every message that a
//! publisher was told is safe has come to every subscriber, a QoS 2 message once,
//! and first occurrences in order.

use std::collections::HashMap;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use punctual_client::{Backoff, Client, Config, Endpoint, Event, Message, Options, Scheme, Token};
use punctual_codec::{PropertyBuf, PropertyId, QoS, ReasonCode, SubscribeOptions};

use crate::broker::PATIENCE;

const PUBLISHERS: usize = 2;
const SUBSCRIBERS: usize = 2;
/// Messages of one publisher that are not acknowledged.
const WINDOW: usize = 50;
/// After which silence a subscriber has everything.
const QUIET: Duration = Duration::from_secs(5);
/// What a client waits for before it looks at the time.
const LOOK: Duration = Duration::from_millis(20);

/// A broker that is killed and started again on the same port and directory.
struct Mortal {
    port: u16,
    data: tempfile::TempDir,
    process: Option<Child>,
}

impl Mortal {
    fn new() -> Self {
        // Free now; nobody else is given it before the broker binds it again.
        let probe = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = probe.local_addr().unwrap().port();
        drop(probe);
        let mut mortal = Self {
            port,
            data: tempfile::tempdir().unwrap(),
            process: None,
        };
        mortal.start();
        mortal
    }

    fn start(&mut self) {
        let command = Command::new(env!("CARGO_BIN_EXE_punctual"))
            .args(["serve", "--http", "off", "--shards", "2"])
            .args(["--log-level", "error"])
            .arg("--listen")
            .arg(format!("tcp://127.0.0.1:{}", self.port))
            .arg("--data")
            .arg(self.data.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn();
        self.process = Some(command.unwrap());
    }

    /// Waits until it takes connections.
    fn wait(&self) {
        let until = Instant::now() + PATIENCE;
        while std::net::TcpStream::connect(("127.0.0.1", self.port)).is_err() {
            assert!(Instant::now() < until, "the broker does not start");
            thread::sleep(LOOK);
        }
    }

    fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            // SIGKILL.
            process.kill().unwrap();
            process.wait().unwrap();
        }
    }
}

impl Drop for Mortal {
    fn drop(&mut self) {
        self.kill();
    }
}

fn client(port: u16, client_id: String) -> Client {
    let mut properties = PropertyBuf::new();
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

/// What a publisher was told.
struct Told {
    publisher: usize,
    /// Numbers of messages that are safe, with their QoS.
    safe: Vec<(u32, QoS)>,
}

/// Publishes until told to stop, and then until everything is acknowledged.
fn publish(port: u16, publisher: usize, stop: &AtomicBool) -> Told {
    let mut client = client(port, format!("publisher-{publisher}"));
    let mut open: HashMap<Token, (u32, QoS)> = HashMap::new();
    let (mut number, mut safe) = (0, Vec::new());
    let until = Instant::now() + 10 * PATIENCE;
    loop {
        assert!(
            Instant::now() < until,
            "{} are never acknowledged",
            open.len()
        );
        if !stop.load(Ordering::Relaxed) {
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
            return Told { publisher, safe };
        }
        // What else there is to say are broken connections.
        if let Ok(Some(Event::Published { token, reason, .. })) = client.next(Some(LOOK)) {
            let message = open.remove(&token).unwrap();
            // PUBREL came twice: the broker was killed after it had released the
            // message, and before it could say so.
            let released =
                message.1 == QoS::ExactlyOnce && reason == ReasonCode::PacketIdentifierNotFound;
            assert!(released || !reason.is_error(), "{message:?}: {reason}");
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

fn survives(rounds: u32) {
    let mut broker = Mortal::new();
    let port = broker.port;
    let (stop, done) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicBool::new(false)),
    );
    let ready = Arc::new(Barrier::new(SUBSCRIBERS + 1));
    let (sender, told): (Sender<Told>, Receiver<Told>) = channel();
    let subscribers: Vec<_> = (0..SUBSCRIBERS)
        .map(|n| {
            let (ready, done) = (ready.clone(), done.clone());
            thread::spawn(move || subscribe(port, n, &ready, &done))
        })
        .collect();
    ready.wait();
    let publishers: Vec<_> = (0..PUBLISHERS)
        .map(|n| {
            let (stop, sender) = (stop.clone(), sender.clone());
            thread::spawn(move || sender.send(publish(port, n, &stop)).unwrap())
        })
        .collect();
    for round in 0..rounds {
        broker.wait();
        // Not always at the same point of what goes on.
        thread::sleep(Duration::from_millis(u64::from(150 + 37 * (round % 11))));
        broker.kill();
        broker.start();
    }
    stop.store(true, Ordering::Relaxed);
    for publisher in publishers {
        publisher.join().unwrap();
    }
    done.store(true, Ordering::Relaxed);
    let told: Vec<Told> = told.try_iter().collect();
    assert_eq!(told.len(), PUBLISHERS);
    let mut count = 0;
    for subscriber in subscribers {
        let got = subscriber.join().unwrap();
        let mut times: HashMap<(&str, u32), u32> = HashMap::new();
        let mut last: HashMap<(&str, QoS), u32> = HashMap::new();
        for (topic, number, qos) in &got {
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
        for Told { publisher, safe } in &told {
            for (number, qos) in safe {
                let topic = format!("kill/{publisher}/{}", number % 3);
                assert!(
                    times.contains_key(&(topic.as_str(), *number)),
                    "{topic} {number} ({qos:?}) was acknowledged and is lost"
                );
                count += 1;
            }
        }
    }
    println!("{rounds} times killed, {count} acknowledged messages received");
    assert!(
        count > 100 * rounds,
        "hardly any messages: nothing is proven"
    );
}

#[test]
fn nothing_acknowledged_is_lost() {
    survives(10);
}

#[test]
#[ignore = "takes minutes"]
fn nothing_acknowledged_is_lost_in_the_long_run() {
    survives(200);
}
