//! `bench federation`: what five brokers send each other for the same publications, by topology,
//! locality and way of forwarding; and what plain Mosquitto bridges send.
//!
//! The experiments of Antonielli's thesis (chapter 4: tree, star and line of five brokers;
//! publisher and subscriber at one broker, at two, or at all; QoS 1). Each broker has a network
//! namespace, each connection between two a cable of its own; bytes are those of the frames that
//! leave by these cables, counted by the kernel. Clients talk over their broker's loopback, so
//! they do not count.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use serde::Serialize;
use serde_json::Value;

use crate::error::{Error, Result};
use crate::http::http_get;
use crate::netns::Namespace;
use crate::process::Process;
use crate::wire::{self, Frame, PublishTemplate, Version, kind};

/// Brokers, the root of the thesis third.
const NAMES: [&str; 5] = ["A", "B", "C", "D", "E"];
const ROOT: usize = 2;
/// Connections of each topology, by brokers; the first one connects.
const TOPOLOGIES: [(&str, [(usize, usize); 4]); 3] = [
    ("tree", [(0, 2), (1, 2), (3, 2), (4, 3)]),
    ("star", [(0, 2), (1, 2), (3, 2), (4, 2)]),
    ("line", [(0, 2), (1, 0), (3, 1), (4, 3)]),
];
/// What publications contain, a number in front: 17 bytes.
const FILL: &str = "0123456789ab";
const TOPIC: &str = "test";
/// Topic with which is found out whether everybody hears everybody.
const PROBE: &str = "probe";
/// How long brokers may take to be one.
const PATIENCE: Duration = Duration::from_secs(30);
/// Pause before counters are read, for what is still under way.
const SETTLE: Duration = Duration::from_millis(500);
const MQTT: u16 = 1883;
const HTTP: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 8080);

/// Options of `bench federation`.
#[derive(Args, Debug)]
pub struct FederationArgs {
    /// Publications of each experiment
    #[arg(long, value_name = "N", default_value_t = 500, value_parser = clap::value_parser!(u32).range(5..=100_000))]
    publishes: u32,
    /// Publications in a second
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    rate: u32,
    /// Topologies: tree, star, line
    #[arg(long, value_name = "NAME", value_delimiter = ',', default_values_t = ["tree".to_owned(), "star".into(), "line".into()])]
    topologies: Vec<String>,
    /// Directory for configurations and logs
    #[arg(long, value_name = "DIR", default_value = "target/bench/federation")]
    directory: PathBuf,
    /// File for all results as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// What forwards between the brokers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum System {
    SubscriptionTable,
    Flooding,
    RootRelay,
    MosquittoBridges,
}

impl System {
    const ALL: [Self; 4] = [
        Self::SubscriptionTable,
        Self::Flooding,
        Self::RootRelay,
        Self::MosquittoBridges,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::SubscriptionTable => "subscription-table",
            Self::Flooding => "flooding",
            Self::RootRelay => "root-relay",
            Self::MosquittoBridges => "mosquitto bridges",
        }
    }
}

/// Who publishes and who has subscribed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
enum Locality {
    /// Both at A.
    #[serde(rename = "100 %")]
    Same,
    /// At A, and at E.
    #[serde(rename = "0 %")]
    Apart,
    /// Both at each broker.
    #[serde(rename = "n %")]
    All,
}

impl Locality {
    const ALL: [Self; 3] = [Self::Same, Self::Apart, Self::All];

    fn name(self) -> &'static str {
        match self {
            Self::Same => "100 %",
            Self::Apart => "0 %",
            Self::All => "n %",
        }
    }

    /// Brokers of publishers and of subscribers.
    fn places(self) -> (&'static [usize], &'static [usize]) {
        match self {
            Self::Same => (&[0], &[0]),
            Self::Apart => (&[0], &[4]),
            Self::All => (&[0, 1, 2, 3, 4], &[0, 1, 2, 3, 4]),
        }
    }
}

/// What came of one experiment.
#[derive(Debug, Serialize)]
struct Outcome {
    topology: String,
    system: System,
    locality: Locality,
    publishes: u32,
    /// Bytes of frames between brokers, all of them together.
    bytes: u64,
    /// The same in a time as long without publications.
    idle_bytes: u64,
    /// Time of that, in seconds.
    idle_seconds: f64,
    expected: u64,
    received: u64,
    lost: u64,
    duplicates: u64,
    /// From the first publication to the last receipt.
    seconds: f64,
    /// Processor time of all brokers, in milliseconds.
    cpu_ms: f64,
    /// Changes of subscriptions told between brokers, for this experiment.
    advertised: Option<u64>,
}

impl FederationArgs {
    /// Runs the experiments; progress goes to standard error, the table to `out`. `own_words` lead
    /// from this program's name to its bench subcommands.
    ///
    /// # Errors
    /// Without the privilege to make namespaces, or if brokers do not become one.
    pub fn run(&self, own_words: &[&str], out: &mut dyn Write) -> Result<()> {
        Namespace::check()?;
        fs::create_dir_all(&self.directory).map_err(Error::io(format!(
            "cannot create {}",
            self.directory.display()
        )))?;
        let program = program(own_words)?;
        let mut outcomes = Vec::new();
        for name in &self.topologies {
            let found = TOPOLOGIES.iter().find(|(known, _)| known == name);
            let Some((name, links)) = found else {
                return Err(Error::Config {
                    field: "--topologies",
                    value: name.clone(),
                    remedy: "write tree, star or line".into(),
                });
            };
            for system in System::ALL {
                if system == System::MosquittoBridges && !has_mosquitto() {
                    eprintln!("mosquitto is not installed (apt install mosquitto): left out");
                    continue;
                }
                let brokers = Brokers::start(&program, system, links, &self.directory)?;
                brokers.become_one()?;
                for locality in Locality::ALL {
                    eprintln!("{name}, {}, {}", system.name(), locality.name());
                    outcomes.push(self.experiment(&brokers, name, locality)?);
                }
            }
        }
        if let Some(path) = &self.json {
            let text = serde_json::to_string_pretty(&outcomes).unwrap_or_default();
            fs::write(path, text).map_err(Error::io(format!("cannot write {}", path.display())))?;
        }
        out.write_all(table(&outcomes).as_bytes())
            .map_err(Error::io("cannot write the table"))
    }

    fn experiment(&self, brokers: &Brokers, topology: &str, locality: Locality) -> Result<Outcome> {
        let (publishers, subscribers) = locality.places();
        let told = brokers.advertised()?;
        let subscribers = subscribers.iter().map(|at| Subscriber::start(brokers, *at));
        let subscribers = subscribers.collect::<Result<Vec<_>>>()?;
        thread::sleep(SETTLE);
        let advertised = brokers
            .advertised()?
            .zip(told)
            .map(|(after, before)| after - before);

        // Counters of a quiet time as long as the experiment.
        let time = Duration::from_secs_f64(f64::from(self.publishes) / f64::from(self.rate));
        let before = brokers.bytes()?;
        thread::sleep(time + SETTLE);
        let idle_bytes = brokers.bytes()? - before;

        let mut clients = publishers
            .iter()
            .map(|at| Client::connect(brokers, *at, "publisher"))
            .collect::<Result<Vec<_>>>()?;
        let (bytes, cpu) = (brokers.bytes()?, brokers.cpu());
        let start = Instant::now();
        for n in 0..self.publishes {
            let due = start + Duration::from_secs_f64(f64::from(n) / f64::from(self.rate));
            thread::sleep(due.saturating_duration_since(Instant::now()));
            let at = n as usize % clients.len();
            clients[at].publish(TOPIC, &format!("{n:05}{FILL}"))?;
        }
        let expected = u64::from(self.publishes) * subscribers.len() as u64;
        let end = Instant::now() + PATIENCE;
        let count = || {
            subscribers
                .iter()
                .map(|s| s.seen().values().count() as u64)
                .sum::<u64>()
        };
        while count() < expected && Instant::now() < end && !stalled(&subscribers) {
            thread::sleep(Duration::from_millis(5));
        }
        let last = subscribers.iter().filter_map(Subscriber::last).max();
        thread::sleep(SETTLE);
        let copies: u64 = subscribers
            .iter()
            .map(|s| s.seen().values().sum::<u64>())
            .sum();
        let received = count();
        Ok(Outcome {
            topology: topology.into(),
            system: brokers.system,
            locality,
            publishes: self.publishes,
            bytes: brokers.bytes()? - bytes,
            idle_bytes,
            idle_seconds: (time + SETTLE).as_secs_f64(),
            expected,
            received,
            lost: expected - received.min(expected),
            duplicates: copies - received,
            seconds: last.map_or(0.0, |at| (at - start).as_secs_f64()),
            cpu_ms: (brokers.cpu() - cpu) * 1e3,
            advertised,
        })
    }
}

/// Whether nobody has received anything for long.
fn stalled(subscribers: &[Subscriber]) -> bool {
    let last = subscribers.iter().filter_map(Subscriber::last).max();
    last.is_some_and(|at| at.elapsed() > Duration::from_secs(3))
}

fn table(outcomes: &[Outcome]) -> String {
    let mut out = String::from(
        "| topology | forwarding | locality | bytes between brokers | by publication | idle B/s \
         on each link | received | lost | duplicates | total time s | messages/s | CPU ms | \
         advertisements |\n|---|---|---|---|---|---|---|---|---|---|---|---|---|\n",
    );
    for o in outcomes {
        let _ = writeln!(
            out,
            "| {} | {} | {} | {} | {:.0} | {:.0} | {} | {} | {} | {:.2} | {:.1} | {:.0} | {} |",
            o.topology,
            o.system.name(),
            o.locality.name(),
            o.bytes,
            o.bytes as f64 / f64::from(o.publishes),
            o.idle_bytes as f64 / o.idle_seconds / 4.0,
            o.received,
            o.lost,
            o.duplicates,
            o.seconds,
            o.received as f64 / o.seconds.max(1e-9),
            o.cpu_ms,
            o.advertised.map_or("-".into(), |n| n.to_string()),
        );
    }
    out
}

/// The broker under test: this program, or the one beside it.
fn program(own_words: &[&str]) -> Result<PathBuf> {
    let own = std::env::current_exe().map_err(Error::io("cannot find this program"))?;
    Ok(match own_words.is_empty() {
        true => own.with_file_name("punctual"),
        false => own,
    })
}

fn has_mosquitto() -> bool {
    let mut command = Command::new("mosquitto");
    command
        .arg("-h")
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command.status().is_ok()
}

/// Five brokers, each in its namespace.
struct Brokers {
    system: System,
    /// They end before their namespaces do.
    processes: Vec<Process>,
    spaces: Vec<Namespace>,
}

impl Brokers {
    fn start(
        program: &PathBuf,
        system: System,
        links: &[(usize, usize); 4],
        directory: &std::path::Path,
    ) -> Result<Self> {
        let spaces: Vec<Namespace> = NAMES
            .iter()
            .map(|n| Namespace::new(n))
            .collect::<Result<_>>()?;
        let mut neighbours = vec![Vec::new(); NAMES.len()];
        for (number, (from, to)) in links.iter().enumerate() {
            let names = [format!("to{}", NAMES[*to]), format!("to{}", NAMES[*from])];
            spaces[*from].cable(&names[0], &spaces[*to], &names[1])?;
            let address = |end: u8| Ipv4Addr::new(10, 9, number as u8, end);
            spaces[*from].address(&names[0], address(1).into(), 24)?;
            spaces[*to].address(&names[1], address(2).into(), 24)?;
            neighbours[*from].push((*to, address(2)));
        }
        let mut processes = Vec::new();
        for (at, space) in spaces.iter().enumerate() {
            let path = directory.join(format!("{}.conf", NAMES[at]));
            let log = directory.join(format!("{}.log", NAMES[at]));
            let context = || format!("cannot write {}", directory.display());
            let text = match system {
                System::MosquittoBridges => mosquitto(&neighbours[at], at),
                _ => punctual(system, &neighbours[at], at),
            };
            fs::write(&path, text).map_err(Error::io(context()))?;
            let log = fs::File::create(log).map_err(Error::io(context()))?;
            let mut command = match system {
                System::MosquittoBridges => {
                    let mut command = Command::new("mosquitto");
                    command.arg("-c").arg(&path);
                    command
                }
                _ => {
                    let mut command = Command::new(program);
                    command.args(["serve", "--config"]).arg(&path);
                    command
                }
            };
            command
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(log);
            space.place(&mut command);
            let process = Process::spawn(&mut command);
            processes.push(process.map_err(Error::io(format!("cannot start {command:?}")))?);
        }
        Ok(Self {
            system,
            processes,
            spaces,
        })
    }

    /// Waits until everybody hears everybody.
    fn become_one(&self) -> Result<()> {
        let end = Instant::now() + PATIENCE;
        let mut clients = Vec::new();
        for at in 0..NAMES.len() {
            let mut client = loop {
                match Client::connect(self, at, "probe") {
                    Ok(client) => break client,
                    Err(error) if Instant::now() > end => return Err(error),
                    Err(_) => thread::sleep(Duration::from_millis(20)),
                }
            };
            client.subscribe(&format!("{PROBE}/#"))?;
            clients.push(client);
        }
        for from in 0..clients.len() {
            let mut heard = vec![false; clients.len()];
            while heard.contains(&false) {
                if Instant::now() > end {
                    return Err(Error::Peer {
                        peer: self.system.name().into(),
                        why: format!("{} is not heard by all: {heard:?}", NAMES[from]),
                    });
                }
                clients[from].publish(&format!("{PROBE}/{from}"), "?")?;
                for (client, heard) in clients.iter_mut().zip(&mut heard) {
                    client.receive(Duration::from_millis(20), |topic, _| {
                        *heard |= topic == format!("{PROBE}/{from}").as_bytes();
                    })?;
                }
            }
        }
        Ok(())
    }

    /// Bytes that left by cables so far.
    fn bytes(&self) -> Result<u64> {
        let mut sum = 0;
        for space in &self.spaces {
            let text = space.run("ip", &["-s", "-j", "link", "show"])?;
            let devices: Vec<Value> = serde_json::from_str(&text).unwrap_or_default();
            let cables = devices.iter().filter(|device| device["ifname"] != "lo");
            sum += cables
                .filter_map(|cable| cable["stats64"]["tx"]["bytes"].as_u64())
                .sum::<u64>();
        }
        Ok(sum)
    }

    /// Seconds of processor time of all brokers so far.
    fn cpu(&self) -> f64 {
        let of_process = |process: &Process| -> f64 {
            let tasks = fs::read_dir(format!("/proc/{}/task", process.id()));
            let tasks = tasks.into_iter().flatten().flatten();
            let times = tasks.filter_map(|task| {
                let text = fs::read_to_string(task.path().join("schedstat")).ok()?;
                text.split(' ').next()?.parse::<f64>().ok()
            });
            times.sum::<f64>() / 1e9
        };
        self.processes.iter().map(of_process).sum()
    }

    /// Changes of subscriptions told so far, where that is counted.
    fn advertised(&self) -> Result<Option<u64>> {
        if self.system == System::MosquittoBridges {
            return Ok(None);
        }
        let mut sum = 0;
        for space in &self.spaces {
            let text = space.enter(|| http_get(HTTP, "/api/v1/mesh"))??;
            let status: Value = serde_json::from_str(&text).unwrap_or_default();
            sum += status["advertised"].as_u64().unwrap_or(0);
        }
        Ok(Some(sum))
    }
}

fn punctual(system: System, neighbours: &[(usize, Ipv4Addr)], at: usize) -> String {
    let neighbours: Vec<String> = neighbours
        .iter()
        .map(|(_, address)| format!("\"{address}:{MQTT}\""))
        .collect();
    let gamma = if at == ROOT { 1_000_000 } else { 0 };
    format!(
        "[[listener]]\naddress = \"tcp://0.0.0.0:{MQTT}\"\nallow_anonymous = true\n\
         [server]\nhttp = \"{HTTP}\"\nshards = 1\n\
         [mesh]\nenabled = true\nid = \"{}\"\nstrategy = \"{}\"\ngamma = {gamma}\n\
         neighbours = [{}]\n",
        NAMES[at],
        system.name(),
        neighbours.join(", ")
    )
}

fn mosquitto(neighbours: &[(usize, Ipv4Addr)], at: usize) -> String {
    let mut text = format!(
        "listener {MQTT}\nallow_anonymous true\nset_tcp_nodelay true\nmax_inflight_messages 0\n\
         max_queued_messages 0\n"
    );
    for (to, address) in neighbours {
        let _ = writeln!(
            text,
            "connection {}-{}\naddress {address}:{MQTT}\ntopic # both 1\nbridge_protocol_version \
             mqttv311\ntry_private true",
            NAMES[at], NAMES[*to]
        );
    }
    text
}

/// A client at one broker, over its loopback.
struct Client {
    stream: TcpStream,
    buffer: Vec<u8>,
    name: String,
    next: u16,
}

impl Client {
    fn connect(brokers: &Brokers, at: usize, name: &str) -> Result<Self> {
        let name = format!("{name}-{}", NAMES[at]);
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, MQTT));
        let context = || format!("{name} cannot connect");
        let stream = brokers.spaces[at].enter(|| TcpStream::connect(address))?;
        let stream = stream.map_err(Error::io(context()))?;
        stream.set_nodelay(true).map_err(Error::io(context()))?;
        let mut client = Self {
            stream,
            buffer: Vec::new(),
            name,
            next: 0,
        };
        let mut out = Vec::new();
        wire::put_connect(&mut out, Version::V311, &client.name);
        client.send(&out)?;
        client.until(kind::CONNACK)?;
        Ok(client)
    }

    fn send(&mut self, bytes: &[u8]) -> Result<()> {
        let context = format!("{} cannot send", self.name);
        self.stream.write_all(bytes).map_err(Error::io(context))
    }

    fn subscribe(&mut self, filter: &str) -> Result<()> {
        let mut out = Vec::new();
        wire::put_subscribe(&mut out, Version::V311, 1, &[filter.to_owned()], 1);
        self.send(&out)?;
        self.until(kind::SUBACK)
    }

    /// Publishes with QoS 1, and takes in what has come meanwhile.
    fn publish(&mut self, topic: &str, payload: &str) -> Result<()> {
        self.next = self.next.wrapping_add(1).max(1);
        let mut template = PublishTemplate::new(Version::V311, topic, 1, payload.as_bytes());
        if let Some(at) = template.id_at {
            template.bytes[at..at + 2].copy_from_slice(&self.next.to_be_bytes());
        }
        self.send(&template.bytes)
    }

    /// Waits for a packet of that kind.
    fn until(&mut self, wanted: u8) -> Result<()> {
        let end = Instant::now() + PATIENCE;
        while Instant::now() < end {
            if self
                .turn(Duration::from_millis(100), &mut |_, _| {})?
                .contains(&wanted)
            {
                return Ok(());
            }
        }
        Err(Error::Broker {
            client: self.name.clone(),
            what: "does not answer".into(),
        })
    }

    /// Reads for that long, or until something comes, and acknowledges publications.
    fn receive(&mut self, time: Duration, mut take: impl FnMut(&[u8], &[u8])) -> Result<()> {
        self.turn(time, &mut take).map(drop)
    }

    /// Kinds of the packets that came.
    fn turn(&mut self, time: Duration, take: &mut dyn FnMut(&[u8], &[u8])) -> Result<Vec<u8>> {
        let context = || format!("{} cannot read", self.name);
        self.stream
            .set_read_timeout(Some(time))
            .map_err(Error::io(context()))?;
        let mut bytes = [0; 16 << 10];
        match self.stream.read(&mut bytes) {
            Ok(0) => {
                return Err(Error::Broker {
                    client: self.name.clone(),
                    what: "closed the connection".into(),
                });
            }
            Ok(n) => self.buffer.extend_from_slice(&bytes[..n]),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Err(error) => return Err(Error::io(context())(error)),
        }
        let (mut kinds, mut acks, mut done) = (Vec::new(), Vec::new(), 0);
        while let Frame::Packet { first, body, end } = wire::frame(&self.buffer[done..]) {
            let packet = &self.buffer[done + body..done + end];
            kinds.push(first >> 4);
            if first >> 4 == kind::PUBLISH
                && let Some(publish) = wire::publish(first, packet, Version::V311)
            {
                if publish.qos == 1 {
                    wire::put_ack(&mut acks, kind::PUBACK, publish.id);
                }
                take(publish.topic, publish.payload);
            }
            done += end;
        }
        self.buffer.drain(..done);
        if !acks.is_empty() {
            self.send(&acks)?;
        }
        Ok(kinds)
    }
}

/// Copies by payload, and when the last came.
type Seen = (BTreeMap<Vec<u8>, u64>, Option<Instant>);

/// A subscriber on a thread of its own, until dropped.
struct Subscriber {
    seen: Arc<Mutex<Seen>>,
    stop: Arc<AtomicBool>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Subscriber {
    fn start(brokers: &Brokers, at: usize) -> Result<Self> {
        let mut client = Client::connect(brokers, at, "subscriber")?;
        client.subscribe(TOPIC)?;
        let seen = Arc::new(Mutex::new(Seen::default()));
        let stop = Arc::new(AtomicBool::new(false));
        let (into, stopped) = (seen.clone(), stop.clone());
        let thread = thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                let turn = client.receive(Duration::from_millis(50), |_, payload| {
                    let mut seen = into.lock().unwrap_or_else(PoisonError::into_inner);
                    let copies = seen.0.entry(payload.to_vec()).or_default();
                    *copies += 1;
                    // Later copies are counted and not waited for.
                    if *copies == 1 {
                        seen.1 = Some(Instant::now());
                    }
                });
                if turn.is_err() {
                    return;
                }
            }
        });
        Ok(Self {
            seen,
            stop,
            thread: Some(thread),
        })
    }

    fn seen(&self) -> BTreeMap<Vec<u8>, u64> {
        self.seen
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .0
            .clone()
    }

    fn last(&self) -> Option<Instant> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).1
    }
}

impl Drop for Subscriber {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn topologies_are_trees_around_the_root() {
        for (name, links) in TOPOLOGIES {
            let mut reached = vec![ROOT];
            for _ in 0..NAMES.len() {
                for (a, b) in links {
                    if reached.contains(&a) != reached.contains(&b) {
                        reached.push(if reached.contains(&a) { b } else { a });
                    }
                }
            }
            assert_eq!(reached.len(), NAMES.len(), "{name}");
        }
    }

    #[test]
    fn the_table_has_a_row_for_each() {
        let outcome = Outcome {
            topology: "star".into(),
            system: System::Flooding,
            locality: Locality::Apart,
            publishes: 100,
            bytes: 16_000,
            idle_bytes: 800,
            idle_seconds: 2.0,
            expected: 100,
            received: 100,
            lost: 0,
            duplicates: 0,
            seconds: 1.0,
            cpu_ms: 12.0,
            advertised: Some(4),
        };
        let text = table(&[outcome]);
        let row =
            "| star | flooding | 0 % | 16000 | 160 | 100 | 100 | 0 | 0 | 1.00 | 100.0 | 12 | 4 |";
        assert!(text.ends_with(&format!("{row}\n")), "{text}");
    }
}
