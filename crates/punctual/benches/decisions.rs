//! How long a publisher waits for a decision: `cargo bench -p punctual --bench decisions`.
//!
//! A broker with admission and one shard, and clients at twenty hosts of a star,
//! over loopback. With so many flows admitted, one PUBLISH after the other states
//! a new flow and waits for its PUBACK with the answer; beside it stand messages
//! of a known flow, which need no decision. Run on an otherwise idle machine.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a program for developers"
)]

use std::fmt::Write as _;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use punctual_codec::packet::RetainHandling;
use punctual_codec::{
    Connect, Packet, Properties, PropertyBuf, Publish, QoS, Split, Subscribe, SubscribeOptions,
    Version, split,
};
use punctual_model::{Answer, Status};

const HOSTS: usize = 20;
const SUBSCRIBERS: usize = 10;
const SAMPLES: usize = 51;

struct Broker {
    process: Child,
    address: SocketAddr,
    _directory: tempfile::TempDir,
}

impl Drop for Broker {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Broker {
    fn start() -> Self {
        let places = (0..HOSTS).map(|host| format!("\"client p{host}: p{host}\""));
        let others = (0..SUBSCRIBERS).map(|host| format!("\"client s{host}: s{host}\""));
        let places: Vec<_> = places.chain(others).collect();
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("punctual.toml");
        let mut text = String::new();
        let _ = writeln!(text, "[server]\nshards = 1\nsys_interval = \"off\"");
        let _ = writeln!(
            text,
            "[admission]\nenabled = true\nplaces = [{}]",
            places.join(", ")
        );
        std::fs::write(&file, text).unwrap();
        let mut process = Command::new(env!("CARGO_BIN_EXE_punctual"))
            .args(["serve", "--listen", "tcp://127.0.0.1:0", "--config"])
            .arg(&file)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(process.stderr.take().unwrap()).lines();
        let address = lines.find_map(|line| {
            let line = line.unwrap();
            let (_, address) = line.split_once("listening on tcp://")?;
            Some(address.parse().unwrap())
        });
        // What it says later is read, lest it waits for room in the pipe.
        std::thread::spawn(move || lines.for_each(drop));
        Self {
            process,
            address: address.unwrap(),
            _directory: directory,
        }
    }
}

struct Client {
    stream: TcpStream,
    buffer: Vec<u8>,
}

impl Client {
    fn connect(broker: &Broker, id: &str) -> Self {
        let stream = TcpStream::connect(broker.address).unwrap();
        stream.set_nodelay(true).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(60)))
            .unwrap();
        let mut client = Self {
            stream,
            buffer: Vec::new(),
        };
        let mut bytes = Vec::new();
        let connect = Connect {
            version: Version::V5,
            clean_start: true,
            keep_alive: 0,
            client_id: id,
            will: None,
            username: None,
            password: None,
            properties: Properties::EMPTY,
        };
        connect.encode(&mut bytes).unwrap();
        client.ask(&bytes);
        client
    }

    /// Sends a packet, and waits for the next; the answer in its properties.
    fn ask(&mut self, bytes: &[u8]) -> Option<Answer> {
        self.stream.write_all(bytes).unwrap();
        loop {
            if let Ok(Split::Frame(frame)) = split(&self.buffer, u32::MAX) {
                let size = frame.bytes.len();
                let answer = match Packet::decode(frame, Version::V5).unwrap() {
                    Packet::PubAck(ack) => Answer::read(ack.properties.user()),
                    _ => None,
                };
                self.buffer.drain(..size);
                return answer;
            }
            let mut piece = [0; 4096];
            let read = self.stream.read(&mut piece).unwrap();
            assert!(read > 0, "the broker has closed");
            self.buffer.extend_from_slice(&piece[..read]);
        }
    }

    /// Publishes with QoS 1 for a flow of this deadline: the time until the
    /// acknowledgement, and its answer.
    fn publish(&mut self, topic: &str, deadline: &str) -> (Duration, Option<Answer>) {
        let mut properties = PropertyBuf::new();
        properties.push_user("rt-deadline", deadline).unwrap();
        properties.push_user("rt-period", "20s").unwrap();
        let publish = Publish {
            dup: false,
            qos: QoS::AtLeastOnce,
            retain: false,
            topic,
            packet_id: 1,
            properties: properties.as_properties(),
            payload: &[7; 40],
        };
        let mut bytes = Vec::new();
        publish.encode(Version::V5, &mut bytes).unwrap();
        let start = Instant::now();
        let answer = self.ask(&bytes);
        (start.elapsed(), answer)
    }
}

fn subscriber(broker: &Broker, n: usize) -> Client {
    let mut client = Client::connect(broker, &format!("s{n}"));
    let options = SubscribeOptions {
        qos: QoS::AtMostOnce,
        no_local: false,
        retain_as_published: false,
        retain_handling: RetainHandling::DoNotSend,
    };
    let mut bytes = Vec::new();
    let filter = format!("{n}/#");
    let filters = &[(&*filter, options)];
    Subscribe::put(1, Properties::EMPTY, filters, Version::V5, &mut bytes).unwrap();
    client.ask(&bytes);
    client
}

fn status(answer: Option<Answer>) -> Option<Status> {
    answer.and_then(|answer| answer.status)
}

fn main() {
    let shown = |times: &mut Vec<Duration>| {
        times.sort_unstable();
        format!(
            "{:.2?} ({:.2?})",
            times[times.len() / 2],
            times[times.len() - 1]
        )
    };
    println!("PUBLISH to PUBACK, median (longest) of {SAMPLES}\n");
    println!("| flows admitted | known flow | admitted | rejected |");
    println!("|--:|--:|--:|--:|");
    for flows in [0, 100, 1_000] {
        let broker = Broker::start();
        let subscribers: Vec<_> = (0..SUBSCRIBERS).map(|n| subscriber(&broker, n)).collect();
        for client in subscribers {
            // What comes to them is not looked at.
            let mut stream = client.stream;
            std::thread::spawn(move || while stream.read(&mut [0; 4096]).is_ok_and(|n| n > 0) {});
        }
        let mut clients: Vec<_> = (0..HOSTS)
            .map(|host| Client::connect(&broker, &format!("p{host}")))
            .collect();
        let topic = |n: usize| format!("{}/{n}", n % SUBSCRIBERS);
        for n in 0..flows {
            let (_, answer) = clients[n % HOSTS].publish(&topic(n), "10s");
            assert_eq!(status(answer), Some(Status::Admitted), "flow {n}");
        }
        let mut admitted = Vec::new();
        let mut rejected = Vec::new();
        for n in flows..flows + SAMPLES {
            let client = &mut clients[n % HOSTS];
            let (time, answer) = client.publish(&topic(n), "10s");
            assert_eq!(status(answer), Some(Status::Admitted), "flow {n}");
            admitted.push(time);
            let (time, answer) = client.publish(&format!("{}/no", topic(n)), "200us");
            assert_eq!(status(answer), Some(Status::BestEffort), "flow {n}");
            rejected.push(time);
        }
        let again = clients[flows % HOSTS].publish(&topic(flows), "10s").1;
        assert_eq!(status(again), None, "it was told");
        let mut known: Vec<_> = (0..SAMPLES)
            .map(|_| clients[flows % HOSTS].publish(&topic(flows), "10s").0)
            .collect();
        println!(
            "| {flows} | {} | {} | {} |",
            shown(&mut known),
            shown(&mut admitted),
            shown(&mut rejected)
        );
    }
}
