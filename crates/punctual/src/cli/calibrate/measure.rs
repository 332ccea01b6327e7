//! The measurements: a broker of this binary over loopback, and a plain
//! forwarder in its place for what the host alone takes.
//!
//! What goes through the broker has a deadline that is admitted, for that is what
//! the figures are for; what it has to pass has none.

use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use punctual_client::{Client, Config, Event, PropertyBuf, ReasonCode, SubscribeOptions, Url};
use punctual_measure::{Floor, Latency, Options, Pace, Report, Scenario, Version, http_get, run};

use crate::cli::{Failure, complain};

/// Longest wait for the broker to listen.
const PATIENCE: Duration = Duration::from_secs(20);
/// What begins the line in which the broker says where it listens.
const LISTENING: &str = "listening on tcp://";
/// And where its numbers are.
const NUMBERS: &str = "listening on http://";
/// Begins the lines of `/metrics` that say how long the longest piece of each kind of work took.
const LONGEST: &str = "punctual_turn_longest_seconds{";
/// For how long the broker does other work before it looks for admitted messages (`server.slice`), µs.
pub(super) const SLICE_US: u32 = 100;
/// Filters that the storm subscribes to and gives up again in turn, and in one packet.
const STORM: usize = 5000;
/// Messages in flight of the bulk that probes have to pass.
const BULK_WINDOW: u32 = 200;

/// What is measured.
#[derive(Debug, Clone)]
pub(super) struct Plan {
    /// Payloads, bytes.
    pub(super) sizes: Vec<usize>,
    /// Numbers of subscribers.
    pub(super) subscribers: Vec<u32>,
    /// Probes per second.
    pub(super) rate: u32,
    /// Length of each run.
    pub(super) duration: Duration,
    /// The broker's threads are real-time threads.
    pub(super) realtime: bool,
    /// Whether to say what is being done.
    pub(super) talk: bool,
}

/// Probes of one size to so many subscribers.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sample {
    pub(super) payload: usize,
    pub(super) subscribers: u32,
    pub(super) latency: Latency,
}

/// A saturated broker with messages of one size.
#[derive(Debug, Clone, Copy)]
pub(super) struct Saturated {
    pub(super) payload: usize,
    pub(super) per_second: f64,
    /// CPU time of the broker, ns for each message.
    pub(super) cpu_ns: Option<f64>,
}

/// All that was measured.
#[derive(Debug, Clone)]
pub(super) struct Measured {
    /// Through the forwarder, one subscriber.
    pub(super) host: Vec<Sample>,
    /// Through the broker.
    pub(super) broker: Vec<Sample>,
    /// Beside a publisher that sends as fast as it can.
    pub(super) beside_bulk: Sample,
    /// Beside a client that subscribes to many filters and gives them up, all the time.
    pub(super) beside_storm: Sample,
    /// The longest piece of work while these two were measured, by the broker's own account, µs.
    pub(super) longest_piece_us: f64,
    pub(super) saturated: Vec<Saturated>,
}

impl Plan {
    /// Does all runs.
    pub(super) fn run(&self) -> Result<Measured, Failure> {
        let mut host = Vec::new();
        let forwarder = forwarder()?;
        for payload in &self.sizes {
            self.say(format_args!("forwarder: {payload} B"));
            host.push(self.sample(self.probe(forwarder, *payload, 1))?);
        }
        let broker = Broker::start(self.realtime)?;
        let mut samples = Vec::new();
        for payload in &self.sizes {
            for subscribers in &self.subscribers {
                self.say(format_args!("broker: {payload} B to {subscribers}"));
                samples.push(self.sample(self.admitted(&broker, *payload, *subscribers))?);
            }
        }
        let saturated = self
            .sizes
            .iter()
            .map(|payload| self.saturate(&broker, *payload));
        let saturated = saturated.collect::<Result<_, _>>()?;
        let before = broker.longest_pieces()?;
        let beside_bulk = self.beside_bulk(&broker)?;
        let beside_storm = self.beside_storm(&broker)?;
        let after = broker.longest_pieces()?;
        // One that did not grow may be older: from when nothing was in the caches yet.
        let grown = after.iter().filter(|piece| !before.contains(piece));
        Ok(Measured {
            host,
            broker: samples,
            beside_bulk,
            beside_storm,
            longest_piece_us: grown.map(|(_, us)| *us).fold(0.0, f64::max),
            saturated,
        })
    }

    fn options(&self, scenario: Scenario, address: SocketAddr, payload: usize) -> Options {
        let mut options = Options::new(scenario, address);
        options.payload = payload;
        options.duration = self.duration;
        options.warm_up = self.duration / 5;
        options
    }

    /// Messages one at a time: what one takes when nobody else is there.
    fn probe(&self, address: SocketAddr, payload: usize, subscribers: u32) -> Options {
        let scenario = Scenario::Fan {
            publishers: 1,
            subscribers,
        };
        let mut options = self.options(scenario, address, payload);
        options.pace = Pace::Rate(self.rate.into());
        options
    }

    /// The same with a deadline that the broker admits.
    fn admitted(&self, broker: &Broker, payload: usize, subscribers: u32) -> Options {
        let mut options = self.probe(broker.address, payload, subscribers);
        let period = 1_000_000_000 / u64::from(self.rate.max(1));
        options.version = Version::V5;
        options.user_properties = vec![
            ("rt-deadline".into(), "10s".into()),
            ("rt-period".into(), format!("{period}ns")),
        ];
        options
    }

    fn sample(&self, options: Options) -> Result<Sample, Failure> {
        let subscribers = match options.scenario {
            Scenario::Fan { subscribers, .. } => subscribers,
            _ => 1,
        };
        Ok(Sample {
            payload: options.payload,
            subscribers,
            latency: latency(&run(&options)?)?,
        })
    }

    fn saturate(&self, broker: &Broker, payload: usize) -> Result<Saturated, Failure> {
        self.say(format_args!("broker: {payload} B, saturated"));
        let scenario = Scenario::Fan {
            publishers: 1,
            subscribers: 1,
        };
        let mut options = self.options(scenario, broker.address, payload);
        options.broker_pid = Some(broker.process.id());
        let report = run(&options)?;
        let cpu = report.broker.and_then(|cost| cost.cpu_s_per_million);
        Ok(Saturated {
            payload,
            per_second: report.delivered_per_s,
            cpu_ns: cpu.map(|seconds_per_million| seconds_per_million * 1000.0),
        })
    }

    /// Probes of the smallest size while another client sends bulk of the
    /// largest.
    fn beside_bulk(&self, broker: &Broker) -> Result<Sample, Failure> {
        let smallest = self.sizes.iter().min().copied().unwrap_or_default();
        let largest = self.sizes.iter().max().copied().unwrap_or_default();
        let mut bulk = self.options(Scenario::Pairs(1), broker.address, largest);
        bulk.pace = Pace::Window(BULK_WINDOW);
        // It begins before the probes and ends after them.
        bulk.duration = self.duration * 2;
        bulk.client_prefix.push_str("bulk-");
        let bulk = thread::spawn(move || run(&bulk));
        self.say(format_args!("broker: {smallest} B beside bulk"));
        let sample = self.sample(self.admitted(broker, smallest, 1));
        match bulk.join() {
            Ok(report) => report.map(drop)?,
            Err(_) => return Err("the publisher of bulk has failed".into()),
        }
        sample
    }

    /// The same while another client subscribes to many filters and gives them up again.
    fn beside_storm(&self, broker: &Broker) -> Result<Sample, Failure> {
        let smallest = self.sizes.iter().min().copied().unwrap_or_default();
        self.say(format_args!(
            "broker: {smallest} B beside a subscriber to {STORM} filters"
        ));
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            let storm = scope.spawn(|| storm(broker.address, &stop));
            let sample = self.sample(self.admitted(broker, smallest, 1));
            stop.store(true, Ordering::Relaxed);
            match storm.join() {
                Ok(ended) => ended.map(drop)?,
                Err(_) => return Err("the subscriber to many filters has failed".into()),
            }
            sample
        })
    }

    fn say(&self, what: std::fmt::Arguments<'_>) {
        if self.talk {
            complain(&what);
        }
    }
}

/// The latencies of a run that lost nothing.
fn latency(report: &Report) -> Result<Latency, Failure> {
    match report.latency {
        Some(latency) if report.lost == 0 => Ok(latency),
        _ => Err(format!(
            "{} of {} messages were lost; is the machine overloaded?",
            report.lost, report.expected
        )
        .into()),
    }
}

/// Subscribes to many filters and gives them up, until it is to stop.
fn storm(broker: SocketAddr, stop: &AtomicBool) -> Result<(), punctual_client::Error> {
    let (mut client, _) = Client::connect(punctual_client::Options {
        endpoint: Url::parse(&format!("mqtt://{broker}"))?.endpoint,
        config: Config {
            client_id: "calibrate-storm".into(),
            ..Config::default()
        },
        reconnect: None,
    })?;
    let filters: Vec<String> = (0..STORM).map(|n| format!("storm/{n}/+")).collect();
    let options = SubscribeOptions::default();
    let wanted: Vec<_> = filters.iter().map(|filter| (&**filter, options)).collect();
    let given_up: Vec<&str> = filters.iter().map(|filter| &**filter).collect();
    let properties = PropertyBuf::new();
    while !stop.load(Ordering::Relaxed) {
        client.subscribe(&wanted, &properties)?;
        while !matches!(
            client.next(Some(PATIENCE))?,
            Some(Event::Subscribed { .. }) | None
        ) {}
        client.unsubscribe(&given_up, &properties)?;
        while !matches!(
            client.next(Some(PATIENCE))?,
            Some(Event::Unsubscribed { .. }) | None
        ) {}
    }
    client.disconnect(ReasonCode::Success, &properties)
}

/// A forwarder on a thread of this process; it ends with it.
fn forwarder() -> Result<SocketAddr, Failure> {
    let (send, address) = channel();
    thread::spawn(move || {
        let loopback = SocketAddr::from(([127, 0, 0, 1], 0));
        let floor = Floor::bind(loopback).and_then(|floor| Ok((floor.local_addr()?, floor)));
        match floor {
            Ok((address, mut floor)) => {
                // Nobody waits any more if this fails.
                let _ = send.send(Ok(address));
                let _ = floor.run();
            }
            Err(error) => {
                let _ = send.send(Err(error));
            }
        }
    });
    Ok(address.recv().map_err(|_| "the forwarder has failed")??)
}

/// A broker of this binary with one shard; it ends when this is dropped.
struct Broker {
    process: Child,
    address: SocketAddr,
    /// Of its HTTP interface.
    numbers: SocketAddr,
}

impl Broker {
    fn start(realtime: bool) -> Result<Self, Failure> {
        let program = std::env::current_exe()
            .map_err(|error| format!("the program does not find itself: {error}"))?;
        let mut command = Command::new(program);
        command
            .args([
                "serve",
                "--listen",
                "tcp://127.0.0.1:0",
                "--http",
                "127.0.0.1:0",
                "--shards",
                "1",
            ])
            .args(realtime.then_some("--realtime"))
            .env("PUNCTUAL__SERVER__SYS_INTERVAL", "off")
            .env("PUNCTUAL__SERVER__SLICE", format!("{SLICE_US}us"))
            // All probes are admitted and none is policed.
            .env("PUNCTUAL__ADMISSION__ENABLED", "true")
            .env("PUNCTUAL__ADMISSION__POLICING", "off")
            .env("PUNCTUAL__ADMISSION__RECEIVE_TIME", "1us")
            .env("PUNCTUAL__ADMISSION__SEND_TIME", "1us")
            .env("PUNCTUAL__ADMISSION__BLOCKING_TIME", "0us")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        let mut process = command
            .spawn()
            .map_err(|error| format!("the broker cannot be started: {error}"))?;
        let log = process.stderr.take();
        let (send, lines) = channel();
        if let Some(log) = log {
            // To the end, or the broker would stop at a full pipe.
            thread::spawn(move || {
                for line in BufReader::new(log).lines().map_while(Result::ok) {
                    let _ = send.send(line);
                }
            });
        }
        let mut broker = Self {
            process,
            address: ([127, 0, 0, 1], 0).into(),
            numbers: ([127, 0, 0, 1], 0).into(),
        };
        loop {
            let line = lines
                .recv_timeout(PATIENCE)
                .map_err(|_| "the broker does not say where it listens")?;
            if let Some((_, address)) = line.split_once(LISTENING) {
                broker.address = address.trim().parse()?;
            }
            if let Some((_, address)) = line.split_once(NUMBERS) {
                // It is the last thing that is opened.
                broker.numbers = address.trim().parse()?;
                return Ok(broker);
            }
            if realtime && line.contains("WARN") {
                complain(&line);
            }
        }
    }
}

impl Broker {
    /// The longest piece of each kind of work so far, µs.
    fn longest_pieces(&self) -> Result<Vec<(String, f64)>, Failure> {
        let metrics = http_get(self.numbers, "/metrics")?;
        let lines = metrics
            .lines()
            .filter_map(|line| line.strip_prefix(LONGEST));
        let pieces = lines.filter_map(|line| {
            let (kind, seconds) = line.rsplit_once(' ')?;
            Some((kind.to_owned(), seconds.parse::<f64>().ok()? * 1e6))
        });
        Ok(pieces.collect())
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        // It keeps nothing.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
