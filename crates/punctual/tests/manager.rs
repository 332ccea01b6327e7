//! `punctual manager` before a broker that knows nothing of real time: what
//! clients are told, what the broker gets, and what happens when somebody goes.
//! Mosquitto is that broker. (That everything else passes is what the wire tests
//! show: scripts/wire-through-manager.)

#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests may panic; clippy knows only the tests themselves"
)]

#[path = "../../client/tests/support/broker.rs"]
#[expect(dead_code, reason = "the tests of the client need more of it")]
mod broker;
#[path = "support/process.rs"]
#[expect(dead_code, reason = "the tests of the sidecar need more of it")]
mod process;

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use broker::Broker;
use process::Process;
use punctual_client::{
    Answer, Client, Config, Delivery, Endpoint, Event, Message, Options, PropertyBuf, QoS,
    ReasonCode, Status, SubscribeOptions, Url,
};
use punctual_net::realtime::set_fifo;

/// Where a test ends that would hang.
const LONG: Duration = Duration::from_secs(30);

/// Everyone is a host with a link of 100 Mbit/s.
const CONFIG: &str = "[admission]\nplaces = [\"client *: hosts\"]\n";

struct Manager {
    process: Process,
    _config: tempfile::NamedTempFile,
}

impl Manager {
    fn start(upstream: u16, config: &str, more: &[&str]) -> Self {
        let file = tempfile::NamedTempFile::with_suffix(".toml").unwrap();
        std::fs::write(file.path(), config).unwrap();
        let upstream = format!("127.0.0.1:{upstream}");
        let path = file.path().to_str().unwrap();
        let mut arguments = vec!["manager", "--upstream", &upstream, "--config", path];
        arguments.extend(["--listen", "tcp://127.0.0.1:0"]);
        arguments.extend(more);
        Self {
            process: Process::start("tcp", &arguments).quiet(),
            _config: file,
        }
    }

    fn client(&self, id: &str) -> Client {
        let url = format!("mqtt://127.0.0.1:{}", self.process.port);
        let endpoint: Endpoint = Url::parse(&url).unwrap().endpoint;
        let config = Config {
            client_id: id.into(),
            ..Config::default()
        };
        let options = Options {
            endpoint,
            config,
            reconnect: None,
        };
        Client::connect(options).unwrap().0
    }
}

/// Mosquitto with a manager before it; `None` if it is not installed.
fn with_mosquitto(config: &str, more: &[&str]) -> Option<(Broker, Manager)> {
    let broker = Broker::start("");
    assert!(
        broker.is_some() || std::env::var_os("PUNCTUAL_REQUIRE_MOSQUITTO").is_none(),
        "mosquitto is not installed (apt install mosquitto)"
    );
    let broker = broker?;
    let manager = Manager::start(broker.tcp, &format!("{CONFIG}{config}"), more);
    Some((broker, manager))
}

fn answer(properties: &PropertyBuf) -> Option<Answer> {
    Answer::read(properties.as_properties().user())
}

fn subscribe(client: &mut Client, filter: &str) -> Option<Answer> {
    let filters = [(filter, SubscribeOptions::default())];
    client.subscribe(&filters, &PropertyBuf::new()).unwrap();
    loop {
        match client.next(Some(LONG)).unwrap().unwrap() {
            Event::Subscribed { properties, .. } => return answer(&properties),
            _ => continue,
        }
    }
}

fn publish(client: &mut Client, message: &Message) -> (ReasonCode, Option<Answer>) {
    client.publish(message).unwrap();
    loop {
        match client.next(Some(LONG)).unwrap().unwrap() {
            Event::Published {
                reason, properties, ..
            } => return (reason, answer(&properties)),
            _ => continue,
        }
    }
}

fn message(client: &mut Client) -> Delivery {
    loop {
        match client.next(Some(LONG)).unwrap().unwrap() {
            Event::Message(delivery) => return delivery,
            _ => continue,
        }
    }
}

fn asking(topic: &str, deadline: Duration) -> Message {
    Message::new(topic, "17")
        .qos(QoS::AtLeastOnce)
        .deadline(deadline)
        .period(Duration::from_millis(50))
}

/// The acknowledgement carries the bound, the subscriber gets the message as it
/// was sent, and what cannot be met is carried and told why.
#[test]
fn deadlines_are_promised_before_mosquitto() {
    let Some((_broker, manager)) = with_mosquitto("", &[]) else {
        return;
    };
    let mut subscriber = manager.client("s");
    subscribe(&mut subscriber, "axis/#");
    let mut publisher = manager.client("p");
    let asked = asking("axis/1", Duration::from_millis(20));
    let (reason, told) = publish(&mut publisher, &asked);
    let told = told.unwrap();
    assert_eq!(
        (reason, told.status),
        (ReasonCode::Success, Some(Status::Admitted))
    );
    assert_eq!(told.flow.as_deref(), Some("axis/1@p"));
    assert!(told.bound.unwrap() < Duration::from_millis(20));
    let delivered = message(&mut subscriber);
    assert_eq!(delivered.message.payload, b"17");
    let properties = delivered.message.properties.as_properties();
    assert_eq!(properties.user_value("rt-deadline"), Some("20ms"));

    let (reason, told) = publish(&mut publisher, &asking("axis/2", Duration::from_micros(5)));
    let told = told.unwrap();
    assert_eq!(
        (reason, told.status),
        (ReasonCode::Success, Some(Status::BestEffort))
    );
    let why = told.reason.unwrap();
    assert!(
        why.contains("axis/2@p") && why.contains("too long"),
        "{why}"
    );
    message(&mut subscriber);
}

/// With `rejected = "refuse"` Mosquitto never sees what cannot be promised.
#[test]
fn what_is_refused_does_not_reach_the_broker() {
    let Some((_broker, manager)) = with_mosquitto("rejected = \"refuse\"\n", &[]) else {
        return;
    };
    let mut subscriber = manager.client("s");
    subscribe(&mut subscriber, "axis/#");
    let mut publisher = manager.client("p");
    let (reason, told) = publish(&mut publisher, &asking("axis/2", Duration::from_micros(5)));
    assert_eq!(reason, ReasonCode::QuotaExceeded);
    assert_eq!(told.unwrap().status, Some(Status::Rejected));
    publish(&mut publisher, &asking("axis/1", Duration::from_millis(20)));
    assert_eq!(message(&mut subscriber).message.topic, "axis/1");
}

/// Flows end with their publishers: what they had is there for others.
#[test]
fn flows_end_with_their_publishers() {
    // Room for one flow.
    let Some((_broker, manager)) = with_mosquitto("max_flows = 1\n", &[]) else {
        return;
    };
    let mut subscriber = manager.client("s");
    subscribe(&mut subscriber, "$SYS/rt/clients/#");
    subscribe(&mut subscriber, "axis/#");
    let mut first = manager.client("first");
    let deadline = Duration::from_millis(20);
    let (_, told) = publish(&mut first, &asking("axis/1", deadline));
    assert_eq!(told.unwrap().status, Some(Status::Admitted));
    let mut second = manager.client("second");
    let (_, told) = publish(&mut second, &asking("axis/2", deadline));
    assert_eq!(told.unwrap().status, Some(Status::BestEffort));
    first
        .disconnect(ReasonCode::Success, &PropertyBuf::new())
        .unwrap();
    // Told when its turn comes, without having asked again.
    let admitted = "axis/2 rt-status=admitted";
    loop {
        let news = message(&mut subscriber).message;
        let text = String::from_utf8(news.payload).unwrap();
        if news.topic == "$SYS/rt/clients/second" && text.starts_with(admitted) {
            break;
        }
    }
}

/// Who waits for a decision is not to wait for other programs, too.
#[test]
fn threads_that_serve_and_decide_have_real_time_priority() {
    let tried = std::thread::spawn(|| set_fifo(1)).join().unwrap();
    if let Err(error) = tried {
        eprintln!("skipped: no real-time priority here: {error}");
        return;
    }
    let more = ["--realtime", "--ovsdb", "unix:/nonexistent/srt.sock"];
    let manager = Manager::start(1, "", &more);
    let tasks = format!("/proc/{}/task", manager.process.child.id());
    let end = Instant::now() + LONG;
    for (name, priority) in [("punctual", "40"), ("admission", "39"), ("srt", "39")] {
        let is_so = || {
            let stats = std::fs::read_dir(&tasks).unwrap().filter_map(|task| {
                // One may have ended.
                std::fs::read_to_string(task.ok()?.path().join("stat")).ok()
            });
            stats.into_iter().any(|stat| {
                let (thread, numbers) = stat.rsplit_once(") ").unwrap();
                let numbers: Vec<&str> = numbers.split(' ').collect();
                // The 40th and 41st of proc_pid_stat(5); SCHED_FIFO is 1.
                thread.ends_with(&format!("({name}")) && numbers[37..39] == [priority, "1"]
            })
        };
        while !is_so() {
            assert!(Instant::now() < end, "{name} has no priority {priority}");
            std::thread::yield_now();
        }
    }
}

/// What is no MQTT, TLS above all, passes as it is.
#[test]
fn what_it_cannot_read_passes() {
    let upstream = TcpListener::bind("127.0.0.1:0").unwrap();
    let manager = Manager::start(upstream.local_addr().unwrap().port(), CONFIG, &[]);
    let mut client = TcpStream::connect(("127.0.0.1", manager.process.port)).unwrap();
    let hello = b"\x16\x03\x01\x00\x05hello";
    client.write_all(hello).unwrap();
    let (mut broker, _) = upstream.accept().unwrap();
    let mut got = [0; 10];
    broker.read_exact(&mut got).unwrap();
    assert_eq!(&got, hello);
    broker.write_all(b"\x16\x03\x03answer").unwrap();
    let mut got = [0; 9];
    client.read_exact(&mut got).unwrap();
    assert_eq!(&got, b"\x16\x03\x03answer");
    // And who goes is gone on the other side, too.
    drop(client);
    assert_eq!(broker.read(&mut got).unwrap(), 0);
}

/// A side that does not read makes the other one wait, and nothing is lost.
#[test]
fn a_slow_side_loses_nothing() {
    const SIZE: usize = 8 << 20;
    let upstream = TcpListener::bind("127.0.0.1:0").unwrap();
    let manager = Manager::start(upstream.local_addr().unwrap().port(), CONFIG, &[]);
    let mut client = TcpStream::connect(("127.0.0.1", manager.process.port)).unwrap();
    let (mut broker, _) = upstream.accept().unwrap();
    let bytes: Vec<u8> = (0..SIZE).map(|n| (n % 251) as u8 | 1).collect();
    let sent = bytes.clone();
    let sender = std::thread::spawn(move || {
        client.write_all(&sent).unwrap();
        drop(client);
    });
    let mut got = Vec::new();
    broker.read_to_end(&mut got).unwrap();
    sender.join().unwrap();
    assert!(got == bytes, "{} of {SIZE} bytes", got.len());
}

/// A broker that is not there: the client is turned away, and the next one is
/// served when it is.
#[test]
fn a_broker_that_is_away_comes_back() {
    let upstream = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = upstream.local_addr().unwrap();
    drop(upstream);
    let manager = Manager::start(address.port(), CONFIG, &[]);
    let mut client = TcpStream::connect(("127.0.0.1", manager.process.port)).unwrap();
    let closed = client.read(&mut [0]);
    assert!(matches!(closed, Ok(0) | Err(_)), "{closed:?}");
    let upstream = TcpListener::bind(address).unwrap();
    let _client = TcpStream::connect(("127.0.0.1", manager.process.port)).unwrap();
    upstream.accept().unwrap();
}
