//! The disk of the store is full, stands still, or fails: what has to survive is
//! refused or held back, everything else goes on, the broker says so, goes on by
//! itself afterwards, and nothing acknowledged is lost, also not by kill -9.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use punctual_client::{Client, Config, Endpoint, Error, Event, Message, Options, Scheme, Token};
use punctual_codec::{PropertyBuf, PropertyId, QoS, ReasonCode, SubscribeOptions};

use crate::broker::{PATIENCE, eventually};
use crate::client::{Pair, connect_packet, expect, publish_packet};
use crate::grip::{Disk, Grip};
use crate::load::{Load, Mortal, client, client_of};
use crate::small::Small;

/// Room for six segments of the log, and for no other while there is ballast.
pub(crate) const DISK_MIB: u32 = 200;
/// Of what is to fill the store.
const PAYLOAD: usize = 64 << 10;
/// Messages of one publisher that are not acknowledged.
const WINDOW: usize = 16;

fn event<T>(client: &mut Client, mut wanted: impl FnMut(Event) -> Option<T>) -> T {
    eventually("an event", || {
        let event = client.next(Some(PATIENCE)).ok()??;
        wanted(event)
    })
}

/// A file that takes all that is left of a file system, as long as it lives.
pub(crate) struct Ballast(PathBuf);

impl Ballast {
    pub(crate) fn fill(disk: &Small) -> Self {
        let path = disk.path().join("ballast");
        let full = io::copy(&mut io::repeat(7), &mut File::create(&path).unwrap()).unwrap_err();
        assert_eq!(full.kind(), io::ErrorKind::StorageFull);
        Self(path)
    }
}

impl Drop for Ballast {
    fn drop(&mut self) {
        let removed = std::fs::remove_file(&self.0);
        assert!(std::thread::panicking() || removed.is_ok());
    }
}

/// A session for which messages wait, and the numbers of those that were
/// acknowledged.
pub(crate) struct Absent {
    port: u16,
    numbers: u32,
    safe: Vec<u32>,
}

impl Absent {
    pub(crate) fn new(port: u16) -> Self {
        let mut subscriber = client(port, "absent".into());
        event(&mut subscriber, |event| {
            matches!(event, Event::Connected(_)).then_some(())
        });
        let options = SubscribeOptions {
            qos: QoS::AtLeastOnce,
            ..SubscribeOptions::default()
        };
        let none = PropertyBuf::new();
        subscriber
            .subscribe(&[("stuff/#", options)], &none)
            .unwrap();
        let reason = event(&mut subscriber, |event| match event {
            Event::Subscribed { reasons, .. } => Some(reasons[0]),
            _ => None,
        });
        assert!(!reason.is_error(), "{reason}");
        Self {
            port,
            numbers: 0,
            safe: Vec::new(),
        }
    }

    /// Publishes that many messages for it, or until one is refused; with which
    /// reason, in which words.
    fn stuff(&mut self, most: u32) -> Option<(ReasonCode, String)> {
        let mut publisher = client(self.port, "stuffer".into());
        event(&mut publisher, |event| {
            matches!(event, Event::Connected(_)).then_some(())
        });
        let mut open: HashMap<Token, u32> = HashMap::new();
        let until = self.numbers + most;
        let mut refusal = None;
        loop {
            while open.len() < WINDOW && self.numbers < until && refusal.is_none() {
                let message = Message::new("stuff/x", payload(self.numbers)).qos(QoS::AtLeastOnce);
                let token = publisher.publish(&message).unwrap();
                open.insert(token, self.numbers);
                self.numbers += 1;
            }
            if open.is_empty() {
                return refusal;
            }
            let (token, reason, properties) = event(&mut publisher, |event| match event {
                Event::Published {
                    token,
                    reason,
                    properties,
                } => Some((token, reason, properties)),
                _ => None,
            });
            let number = open.remove(&token).unwrap();
            if reason.is_error() {
                let words = properties.as_properties().text(PropertyId::ReasonString);
                refusal = Some((reason, words.unwrap_or_default().to_owned()));
            } else {
                self.safe.push(number);
            }
        }
    }

    /// Publishes for it until the store is full.
    pub(crate) fn stuff_until_full(&mut self) {
        // More than the whole disk: the log may have most of it, with nothing that counts.
        let refusal = self.stuff((DISK_MIB << 20) / PAYLOAD as u32);
        let expected = (ReasonCode::QuotaExceeded, "the store is full".to_owned());
        assert_eq!(refusal, Some(expected));
    }

    /// It comes back, gets what was acknowledged, and is absent again.
    pub(crate) fn has_everything(&mut self) {
        let mut subscriber = client(self.port, "absent".into());
        while !self.safe.is_empty() {
            let got = event(&mut subscriber, |event| match event {
                Event::Message(delivery) => Some(delivery.message.payload),
                Event::Connected(connected) => {
                    assert!(connected.session_present, "the session was lost");
                    None
                }
                _ => None,
            });
            assert_eq!(got.len(), PAYLOAD);
            let number = u32::from_be_bytes(*got.first_chunk().unwrap());
            self.safe.retain(|it| *it != number);
        }
    }
}

fn payload(number: u32) -> Vec<u8> {
    let mut payload = vec![b'.'; PAYLOAD];
    payload[..4].copy_from_slice(&number.to_be_bytes());
    payload
}

/// What goes on whatever the disk does.
struct Unconcerned(Pair);

impl Unconcerned {
    fn new(broker: &Mortal) -> Self {
        Self(Pair::at(broker.port, "unconcerned"))
    }

    fn goes_on(&mut self) {
        for _ in 0..20 {
            self.0.exchange();
            self.0.exchange_urgent();
        }
    }
}

/// Waits until `$SYS` says of the store what is wanted, and nothing of trouble without `why`.
fn sys_says(port: u16, status: &str, why: Option<&str>) {
    let mut watcher = crate::client::client(Scheme::Tcp, port, "watcher");
    let none = PropertyBuf::new();
    let filters = [("$SYS/broker/store/+", SubscribeOptions::default())];
    watcher.subscribe(&filters, &none).unwrap();
    let mut said: HashMap<String, String> = HashMap::new();
    event(&mut watcher, |event| {
        if let Event::Message(delivery) = event {
            let value = String::from_utf8(delivery.message.payload.to_vec()).unwrap();
            said.insert(delivery.message.topic, value);
        }
        let says = |name: &str| said.get(&format!("$SYS/broker/store/{name}"));
        let trouble = says("trouble").map_or("", |trouble| trouble);
        let is_so = match why {
            Some(why) => trouble.contains(why) && says("failures").is_some(),
            None => trouble.is_empty(),
        };
        let is_complete = says("waiting_seconds").is_some() && says("disk_bytes")? != "0";
        (says("status")? == status && is_so && is_complete).then_some(())
    });
}

/// What the broker says of itself while it cannot store anything.
fn is_in_trouble(broker: &Mortal, why: &str) {
    sys_says(broker.port, "degraded", Some(why));
    // What others acknowledge may make it well for a moment.
    eventually("it is said everywhere", || {
        let (status, health) = broker.get("/healthz");
        let is_told = status == 200 && health.contains("degraded") && health.contains(why);
        let (status, ready) = broker.get("/readyz");
        let is_told = is_told && status == 503 && ready.contains(why);
        let is_told = is_told && broker.get("/api/v1/store").1.contains(why);
        (is_told && broker.metric("punctual_store_failing") == 1.0).then_some(())
    });
    assert_eq!(broker.get("/readyz?store=optional").0, 200);
}

fn is_well(broker: &Mortal) {
    // Trouble that the broker has only just noticed may be reported after it is over.
    eventually("the broker is well again", || {
        let is_ready = broker.get("/readyz").0 == 200;
        let is_well = is_ready && !broker.get("/healthz").1.contains("degraded");
        (is_well && broker.metric("punctual_store_failing") == 0.0).then_some(())
    });
    sys_says(broker.port, "ok", None);
}

/// What becomes of a client that wants a session that would not survive.
fn refused_session(port: u16) -> ReasonCode {
    let mut properties = PropertyBuf::new();
    properties.push_number(PropertyId::SessionExpiryInterval, 3600);
    let options = Options {
        endpoint: Endpoint {
            port,
            timeout: PATIENCE,
            ..Endpoint::new(Scheme::Tcp, "127.0.0.1")
        },
        config: Config {
            client_id: "stranger".into(),
            clean_start: false,
            properties,
            ..Config::default()
        },
        reconnect: None,
    };
    match Client::connect(options) {
        Ok(_) => ReasonCode::Success,
        Err(Error::Refused(farewell)) => farewell.reason,
        Err(other) => panic!("{other}"),
    }
}

/// What a person who publishes is told.
fn told_by_pub(port: u16) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_punctual"))
        .args(["pub", "-V", "5", "-q", "1", "-t", "stuff/x", "-m", "x"])
        .args(["-p", &port.to_string()])
        .output()
        .unwrap();
    String::from_utf8(output.stderr).unwrap()
}

/// Says that it is over, also to those who would wait for ever if a test fails.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn it_is_full() {
    let Some(disk) = Small::mount(DISK_MIB) else {
        return;
    };
    let mut broker = Mortal::start_in(&disk.path().join("data"));
    broker.wait();
    let load = Load::start(broker.port, ReasonCode::QuotaExceeded);
    let mut absent = Absent::new(broker.port);
    let mut unconcerned = Unconcerned::new(&broker);
    load.wait_for(100);
    assert_eq!(absent.stuff(10), None);
    is_well(&broker);

    let ballast = Ballast::fill(&disk);
    absent.stuff_until_full();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // What the others have done with is given back, and filled again.
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                absent.stuff(1);
            }
        });
        let over = Over(&is_over);
        is_in_trouble(&broker, "the disk is full");
        unconcerned.goes_on();
        eventually("a session is refused", || {
            (refused_session(broker.port) == ReasonCode::QuotaExceeded).then_some(())
        });
        eventually("the load is refused too", || {
            (load.refused() > 0).then_some(())
        });
        eventually("who publishes is told", || {
            let told = told_by_pub(broker.port);
            let words = "0x97 Quota exceeded (the store is full)";
            told.contains(words).then_some(())
        });
        drop(over);
    });

    drop(ballast);
    is_well(&broker);
    load.wait_for(100);
    assert_eq!(absent.stuff(10), None);
    assert_eq!(refused_session(broker.port), ReasonCode::Success);
    broker.kill();
    broker.start();
    absent.has_everything();
    println!("{} acknowledged messages received", load.finish());
}

/// A subscriber of which two messages with QoS 2 are in flight.
fn exact(port: u16) -> Client {
    let mut properties = PropertyBuf::new();
    properties.push_number(PropertyId::ReceiveMaximum, 2);
    client_of(port, "exact".into(), properties)
}

/// Publishes with QoS 2, once all others are connected, until one is refused; which were not.
fn publish_until_refused(port: u16, name: &str, all: &Barrier) -> Vec<String> {
    let mut publisher = client(port, name.into());
    event(&mut publisher, |event| {
        matches!(event, Event::Connected(_)).then_some(())
    });
    all.wait();
    let (mut open, mut safe, mut refused) = (HashMap::new(), Vec::new(), false);
    for number in 0.. {
        while open.len() == WINDOW || refused && !open.is_empty() {
            let (token, reason) = event(&mut publisher, |event| match event {
                Event::Published { token, reason, .. } => Some((token, reason)),
                _ => None,
            });
            let message = open.remove(&token).unwrap();
            match reason.is_error() {
                true => refused = true,
                false => safe.push(message),
            }
        }
        if refused {
            break;
        }
        let text = format!("{name} {number} ");
        let mut payload = text.clone().into_bytes();
        payload.resize(PAYLOAD, b'.');
        let message = Message::new("exact/x", payload).qos(QoS::ExactlyOnce);
        open.insert(publisher.publish(&message).unwrap(), text);
    }
    safe
}

/// What was accepted when it became full does not stand before what gives room back.
#[test]
fn it_is_full_of_what_one_client_gets_exactly_once() {
    let data = tempfile::tempdir().unwrap();
    let broker = Mortal::start_with(data.path(), "[store]\nmax_bytes = \"1MiB\"\n");
    broker.wait();
    let port = broker.port;
    let options = SubscribeOptions {
        qos: QoS::ExactlyOnce,
        ..SubscribeOptions::default()
    };
    let mut subscriber = exact(port);
    event(&mut subscriber, |event| {
        matches!(event, Event::Connected(_)).then_some(())
    });
    let none = PropertyBuf::new();
    subscriber
        .subscribe(&[("exact/#", options)], &none)
        .unwrap();
    event(&mut subscriber, |event| {
        matches!(event, Event::Subscribed { .. }).then_some(())
    });
    drop(subscriber);
    let names = ["a", "b", "c", "d"];
    let all = Barrier::new(names.len());
    let mut expected: Vec<String> = std::thread::scope(|scope| {
        let all = &all;
        let publish = |name| scope.spawn(move || publish_until_refused(port, name, all));
        let publishers = names.map(publish);
        let accepted = publishers.map(|publisher| publisher.join().unwrap());
        accepted.into_iter().flatten().collect()
    });
    // More than the two that it has in flight could make room for.
    assert!(expected.len() > WINDOW, "{expected:?}");

    let mut subscriber = exact(port);
    let mut got = Vec::new();
    while got.len() < expected.len() {
        let payload = event(&mut subscriber, |event| match event {
            Event::Message(delivery) => Some(delivery.message.payload),
            _ => None,
        });
        got.push(
            String::from_utf8(payload.to_vec())
                .unwrap()
                .trim_end_matches('.')
                .to_owned(),
        );
    }
    is_well(&broker);
    // Nothing that was refused, and nothing twice.
    let mut publisher = client(port, "last".into());
    let last = Message::new("exact/x", "last").qos(QoS::ExactlyOnce);
    publisher.publish(&last).unwrap();
    let reason = event(&mut publisher, |event| match event {
        Event::Published { reason, .. } => Some(reason),
        _ => None,
    });
    assert_eq!(reason, ReasonCode::Success);
    let next = event(&mut subscriber, |event| match event {
        Event::Message(delivery) => Some(delivery.message.payload),
        _ => None,
    });
    assert_eq!(next, b"last");
    expected.sort_unstable();
    got.sort_unstable();
    assert_eq!(got, expected);
}

/// Subscribes again and again, to what it has subscribed to: it is written each time, and
/// nothing more is kept afterwards.
fn subscribe_again(port: u16, times: usize) {
    let filter = format!("again/{}", "x".repeat(60_000));
    let mut subscriber = client(port, "again".into());
    event(&mut subscriber, |event| {
        matches!(event, Event::Connected(_)).then_some(())
    });
    let none = PropertyBuf::new();
    for _ in 0..times {
        let filters = [(filter.as_str(), SubscribeOptions::default())];
        subscriber.subscribe(&filters, &none).unwrap();
        let reason = event(&mut subscriber, |event| match event {
            Event::Subscribed { reasons, .. } => Some(reasons[0]),
            _ => None,
        });
        assert!(!reason.is_error(), "{reason}");
    }
}

/// As long as nothing more is to be kept a full disk does not matter: far more is written
/// than there is room for.
#[test]
fn it_is_full_for_long() {
    let Some(disk) = Small::mount(DISK_MIB) else {
        return;
    };
    let mut broker = Mortal::start_in(&disk.path().join("data"));
    broker.wait();
    let mut absent = Absent::new(broker.port);
    subscribe_again(broker.port, 1);
    let ballast = Ballast::fill(&disk);
    absent.stuff_until_full();
    // Far more than is left in what the log has.
    subscribe_again(broker.port, 2000);
    broker.kill();
    broker.start();
    broker.wait();
    subscribe_again(broker.port, 200);
    absent.has_everything();
    // What was acknowledged gives back room, though the disk is as full as before.
    eventually("there is room for others", || {
        absent.stuff(10).is_none().then_some(())
    });
    is_well(&broker);
    drop(ballast);
    absent.has_everything();
}

/// What cannot be read at the start is told wherever the store is, until a start finds
/// nothing; what is left is served.
#[test]
fn it_is_damaged() {
    let data = tempfile::tempdir().unwrap();
    let mut broker = Mortal::start_in(data.path());
    broker.wait();
    let _absent = Absent::new(broker.port);
    is_well(&broker);
    assert_eq!(broker.metric("punctual_store_damages"), 0.0);
    broker.kill();

    let store = |command: &str| {
        let output = Command::new(env!("CARGO_BIN_EXE_punctual"))
            .args(["store", command])
            .arg(data.path())
            .output()
            .unwrap();
        String::from_utf8([output.stdout, output.stderr].concat()).unwrap()
    };
    assert!(store("stats").contains("\ndamages 0\n"));
    let segment = data.path().join("0000000001.segment");
    let mut bytes = std::fs::read(&segment).unwrap();
    bytes[50] ^= 1;
    std::fs::write(&segment, bytes).unwrap();
    let stats = store("stats");
    assert!(stats.contains("\ndamages 1\n"), "{stats}");

    let what = "segment 1, bytes 0 to 128: a copy of the header is damaged";
    broker.start();
    broker.wait();
    let (status, health) = broker.get("/healthz");
    assert!(status == 200 && health.contains("degraded"), "{health}");
    assert!(health.contains(what), "{health}");
    let (status, ready) = broker.get("/readyz");
    assert!(status == 200 && ready.contains(what), "{ready}");
    let (_, told) = broker.get("/api/v1/store");
    assert!(told.contains(r#""damages":1"#), "{told}");
    assert!(told.contains("a copy of the header"), "{told}");
    assert_eq!(broker.metric("punctual_store_damages"), 1.0);
    assert_eq!(broker.metric("punctual_store_failing"), 0.0);
    let mut watcher = crate::client::client(Scheme::Tcp, broker.port, "watcher");
    let filters = [("$SYS/broker/store/+", SubscribeOptions::default())];
    watcher.subscribe(&filters, &PropertyBuf::new()).unwrap();
    let mut said = HashMap::new();
    event(&mut watcher, |event| {
        if let Event::Message(delivery) = event {
            let value = String::from_utf8(delivery.message.payload.to_vec()).unwrap();
            said.insert(delivery.message.topic, value);
        }
        let says = |name: &str| said.get(&format!("$SYS/broker/store/{name}"));
        let is_told = says("status")? == "degraded" && says("damages")? == "1";
        (is_told && says("damage")?.starts_with(what)).then_some(())
    });
    broker.kill();

    assert!(store("compact").contains(what));
    broker.start();
    broker.wait();
    is_well(&broker);
    assert_eq!(broker.metric("punctual_store_damages"), 0.0);
}

/// What was stored is not where it was: nothing is confirmed and nothing begun anew until it
/// is there again, also not by a start.
#[test]
fn its_directory_is_taken_away() {
    let data = tempfile::tempdir().unwrap();
    let [place, elsewhere] = ["data", "elsewhere"].map(|name| data.path().join(name));
    let mut broker = Mortal::start_in(&place);
    broker.wait();
    let mut absent = Absent::new(broker.port);
    let mut unconcerned = Unconcerned::new(&broker);
    assert_eq!(absent.stuff(10), None);
    std::fs::rename(&place, &elsewhere).unwrap();
    // Another one in its place, with what shows who asks.
    std::fs::create_dir(&place).unwrap();
    let tokens = [&elsewhere, &place].map(|place| place.join("http-tokens"));
    std::fs::copy(&tokens[0], &tokens[1]).unwrap();
    is_in_trouble(&broker, "another directory is in the place");
    let refusal = eventually("a refusal", || absent.stuff(1));
    let why = "the store cannot be written".to_owned();
    assert_eq!(refusal, (ReasonCode::ImplementationSpecificError, why));
    unconcerned.goes_on();
    assert_eq!(std::fs::read_dir(&place).unwrap().count(), 1);
    std::fs::remove_dir_all(&place).unwrap();
    std::fs::rename(&elsewhere, &place).unwrap();
    is_well(&broker);
    assert_eq!(absent.stuff(10), None);
    std::fs::remove_file(place.join("lock")).unwrap();
    eventually("it is locked again", || {
        place.join("lock").exists().then_some(())
    });
    is_well(&broker);
    broker.kill();
    broker.start();
    absent.has_everything();
    broker.kill();

    for entry in std::fs::read_dir(&place).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|it| it == "segment") {
            std::fs::remove_file(path).unwrap();
        }
    }
    let output = Command::new(env!("CARGO_BIN_EXE_punctual"))
        .args(["serve", "--http", "off", "--listen", "tcp://127.0.0.1:0"])
        .arg("--data")
        .arg(&place)
        .output()
        .unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success(), "{said}");
    for words in [
        "none of them can be read",
        "from a backup",
        "move the directory away",
    ] {
        assert!(said.contains(words), "{said}");
    }
}

#[test]
fn it_fails() {
    let data = tempfile::tempdir().unwrap();
    let mut broker = Mortal::start_in(data.path());
    broker.wait();
    let load = Load::start(broker.port, ReasonCode::ImplementationSpecificError);
    let mut absent = Absent::new(broker.port);
    let mut unconcerned = Unconcerned::new(&broker);
    load.wait_for(100);
    assert_eq!(absent.stuff(10), None);
    for _ in 0..2 {
        let Some(grip) = Grip::take(broker.process(), "store", Disk::Fails) else {
            return;
        };
        let refusal = eventually("a refusal", || absent.stuff(1));
        let why = "the store cannot be written".to_owned();
        assert_eq!(refusal, (ReasonCode::ImplementationSpecificError, why));
        is_in_trouble(&broker, "Input/output error");
        assert!(broker.metric("punctual_store_failures_total") >= 1.0);
        unconcerned.goes_on();
        drop(grip);
        is_well(&broker);
        load.wait_for(100);
        assert_eq!(absent.stuff(10), None);
    }
    // And dies of it.
    let grip = Grip::take(broker.process(), "store", Disk::Fails);
    eventually("a refusal", || absent.stuff(1));
    broker.kill();
    drop(grip);
    broker.start();
    absent.has_everything();
    println!("{} acknowledged messages received", load.finish());
}

/// A publisher that writes as much as it can.
struct Flood {
    stream: TcpStream,
    packet_ids: u16,
    /// Of the packet that is being written, the rest.
    rest: Vec<u8>,
}

impl Flood {
    fn new(broker: &Mortal, name: &str) -> Self {
        let mut stream = TcpStream::connect(("127.0.0.1", broker.port)).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(&connect_packet(name)).unwrap();
        expect(&mut stream, &[0x20, 2, 0, 0]);
        Self {
            stream,
            packet_ids: 0,
            rest: Vec::new(),
        }
    }

    /// Writes until nothing has been taken for so long; whether anything was.
    fn push(&mut self, silence: Duration) -> bool {
        self.stream.set_nonblocking(true).unwrap();
        let (mut last, mut any) = (Instant::now(), false);
        while last.elapsed() < silence {
            if self.rest.is_empty() {
                self.packet_ids += 1;
                assert!(self.packet_ids < 10_000, "it is never held back");
                self.rest =
                    publish_packet("stuff/flood", &payload(u32::MAX), Some(self.packet_ids));
            }
            match self.stream.write(&self.rest) {
                Ok(taken) => {
                    self.rest.drain(..taken);
                    (last, any) = (Instant::now(), true);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    std::thread::sleep(Duration::from_millis(10));
                }
                Err(error) => panic!("{error}"),
            }
        }
        self.stream.set_nonblocking(false).unwrap();
        any
    }

    /// Writes what is left of the last packet, and waits for all
    /// acknowledgements.
    fn wait_for_all(mut self) {
        self.stream.write_all(&self.rest).unwrap();
        for packet_id in 1..=self.packet_ids {
            let [high, low] = packet_id.to_be_bytes();
            expect(&mut self.stream, &[0x40, 2, high, low]);
        }
    }

    /// Whether nothing was acknowledged.
    fn is_unanswered(&mut self) -> bool {
        self.stream.set_nonblocking(true).unwrap();
        let nothing = self.stream.read(&mut [0]).is_err();
        self.stream.set_nonblocking(false).unwrap();
        nothing
    }
}

#[test]
fn it_stands_still() {
    let data = tempfile::tempdir().unwrap();
    let mut broker = Mortal::start_in(data.path());
    broker.wait();
    let load = Load::start(broker.port, ReasonCode::Success);
    let mut absent = Absent::new(broker.port);
    let mut unconcerned = Unconcerned::new(&broker);
    let mut floods = ["one", "other"].map(|name| Flood::new(&broker, name));
    load.wait_for(100);
    assert_eq!(absent.stuff(10), None);

    let Some(grip) = Grip::take(broker.process(), "store", Disk::StandsStill) else {
        return;
    };
    // As much as the kernel and the broker take, then no more.
    while floods
        .iter_mut()
        .fold(false, |any, flood| flood.push(Duration::from_secs(1)) | any)
    {}
    unconcerned.goes_on();
    assert!(floods.iter_mut().all(Flood::is_unanswered));
    // A group of each thread, and what was read before they stopped.
    let waiting = broker.metric("punctual_store_waiting_bytes");
    assert!((1e5..32e6).contains(&waiting), "{waiting} bytes wait");
    assert!(broker.metric("punctual_store_waiting_seconds") > 1.0);
    drop(grip);
    floods.into_iter().for_each(Flood::wait_for_all);
    load.wait_for(100);
    assert_eq!(broker.metric("punctual_store_failures_total"), 0.0);

    // It never gets over the next time.
    let grip = Grip::take(broker.process(), "store", Disk::StandsStill);
    unconcerned.goes_on();
    broker.kill();
    drop(grip);
    broker.start();
    absent.has_everything();
    println!("{} acknowledged messages received", load.finish());
}
