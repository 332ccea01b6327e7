//! The load generator: options, the phases of a run, the report.
//!
//! A run connects everyone, warms up, measures, counts system calls in an interval of its own
//! if asked to, stops publishing and drains. Throughput is what arrived in the measured
//! interval; loss, order and duplicates are checked over the whole run, warm-up included.

pub mod client;
mod engine;
mod idle;
pub mod meter;
pub mod publisher;
mod report;
pub mod scenario;
pub mod stamp;
pub mod track;

use std::net::SocketAddr;
use std::time::Duration;

use serde::Serialize;

use self::engine::Engine;
use self::stamp::STAMP_LEN;
use crate::error::{Error, Result};
use crate::sys;
use crate::watch::Watch;
use crate::wire::Version;

pub use self::meter::Latency;
pub use self::report::{BrokerCost, IdleCost, Report};
pub use self::scenario::Scenario;

/// Least payload that carries a stamp, bytes.
pub const LEAST_PAYLOAD: usize = STAMP_LEN;

/// Largest payload, bytes: one message must fit the floor's receive buffer.
pub const LARGEST_PAYLOAD: usize = 200_000;

/// When publishers send.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pace {
    /// Each publisher whenever fewer than so many of its messages are undelivered.
    Window(u32),
    /// As fast as the sockets take it.
    FlatOut,
    /// So many messages per second over all publishers, on a schedule that waits for nobody.
    Rate(f64),
}

/// Everything that determines a run.
#[derive(Clone, Debug)]
pub struct Options {
    /// Shape of the traffic.
    pub scenario: Scenario,
    /// Where the broker listens.
    pub address: SocketAddr,
    /// Where the broker of those who only receive (factory: of the controller) listens, if it is
    /// another one: a federation or a bridge leads there.
    pub receivers: Option<SocketAddr>,
    /// Protocol version of all clients.
    pub version: Version,
    /// QoS of publications and subscriptions, 0 to 2.
    pub qos: u8,
    /// When publishers send; the factory cell keeps its own periods.
    pub pace: Pace,
    /// Payload bytes, [`LEAST_PAYLOAD`] to [`LARGEST_PAYLOAD`].
    pub payload: usize,
    /// Traffic before the measurement.
    pub warm_up: Duration,
    /// Length of the measurement.
    pub duration: Duration,
    /// Messages per publisher after which the run ends; then there is no warm-up.
    pub messages: Option<u64>,
    /// Idle connections to open (scenario `idle`).
    pub connections: u32,
    /// Process whose CPU time and memory are reported.
    pub broker_pid: Option<u32>,
    /// Traffic during which the broker's system calls are counted; zero counts none.
    pub syscalls: Duration,
    /// Core for the generator's thread.
    pub core: Option<usize>,
    /// `SCHED_FIFO` priority of the generator's thread, 0 for none. Only for paced scenarios: a
    /// saturated generator would be throttled.
    pub fifo: u8,
    /// Never block in `epoll_wait`.
    pub spin: bool,
    /// Factory clients receive their own topics too, as in the paper.
    pub echo: bool,
    /// Sessions of subscribers outlive their connections.
    pub persistent: bool,
    /// Publications are timed to their acknowledgement too (QoS 1 and 2).
    pub acks: bool,
    /// Time that receivers take to acknowledge (QoS 1 and 2).
    pub ack_delay: Duration,
    /// Messages of which the times of sending and receipt are kept one by one.
    pub keep: usize,
    /// User properties of every publication (version 5 only).
    pub user_properties: Vec<(String, String)>,
    /// Begins every topic.
    pub topic_prefix: String,
    /// Begins every client identifier.
    pub client_prefix: String,
}

impl Options {
    /// Usual values for `scenario` against `address`: 3.1.1, QoS 0, 64 byte payload, 1 s of
    /// warm-up, 5 s of measurement.
    #[must_use]
    pub fn new(scenario: Scenario, address: SocketAddr) -> Self {
        Self {
            scenario,
            address,
            receivers: None,
            version: Version::V311,
            qos: 0,
            pace: scenario.default_pace(),
            payload: if scenario == Scenario::Factory {
                500
            } else {
                64
            },
            warm_up: Duration::from_secs(1),
            duration: Duration::from_secs(5),
            messages: None,
            connections: 10_000,
            broker_pid: None,
            syscalls: Duration::ZERO,
            core: None,
            fifo: 0,
            spin: false,
            echo: true,
            persistent: false,
            acks: false,
            ack_delay: Duration::ZERO,
            keep: 0,
            user_properties: Vec::new(),
            topic_prefix: String::new(),
            client_prefix: format!("bench-{}-", std::process::id()),
        }
    }

    fn check(&self) -> Result<()> {
        let wrong = |field, value: String, remedy: String| {
            Err(Error::Config {
                field,
                value,
                remedy,
            })
        };
        if self.qos > 2 {
            return wrong("--qos", self.qos.to_string(), "give 0, 1 or 2".to_owned());
        }
        if !(LEAST_PAYLOAD..=LARGEST_PAYLOAD).contains(&self.payload) {
            return wrong(
                "--payload",
                self.payload.to_string(),
                format!("give {LEAST_PAYLOAD} to {LARGEST_PAYLOAD} bytes"),
            );
        }
        match self.pace {
            Pace::Window(0) => wrong("--window", "0".to_owned(), "give at least 1".to_owned()),
            Pace::Rate(rate) if !(0.001..=1e9).contains(&rate) => wrong(
                "--rate",
                rate.to_string(),
                "give messages per second, more than 0".to_owned(),
            ),
            _ => Ok(()),
        }
    }
}

/// How long subscriptions are given to become known at another broker.
const SPREAD: Duration = Duration::from_millis(500);

/// Does one run on the calling thread.
///
/// # Errors
/// An option is out of range, the broker cannot be reached, refuses a client, closes a
/// connection or sends what is not MQTT.
pub fn run(options: &Options) -> Result<Report> {
    options.check()?;
    if let Some(core) = options.core {
        sys::pin_to_core(core).map_err(Error::io(format!("cannot pin to core {core}")))?;
    }
    sys::set_least_timer_slack();
    if options.fifo > 0 {
        sys::set_fifo(options.fifo).map_err(Error::io("cannot set SCHED_FIFO"))?;
    }
    sys::raise_file_limit().map_err(Error::io("cannot raise the limit of open files"))?;
    let watch = options.broker_pid.map(Watch::new).transpose()?;
    let report = if options.scenario == Scenario::Idle {
        idle::run(options, watch)
    } else {
        run_traffic(options, watch)
    };
    if options.fifo > 0 {
        sys::set_fifo(0).map_err(Error::io("cannot leave SCHED_FIFO"))?;
    }
    report
}

/// Clocks and counters at one instant.
struct Mark {
    time: u64,
    own_cpu: u64,
    broker_cpu: Option<u64>,
    delivered: u64,
}

impl Mark {
    fn take(engine: &Engine, watch: Option<Watch>) -> Result<Self> {
        Ok(Self {
            time: sys::now_ns(),
            own_cpu: sys::thread_cpu_ns(),
            broker_cpu: watch.map(Watch::cpu_ns).transpose()?,
            delivered: engine.meter.delivered,
        })
    }
}

fn run_traffic(options: &Options, watch: Option<Watch>) -> Result<Report> {
    let mut plan = options.scenario.plan(options.pace, options.echo);
    plan.begin_topics(&options.topic_prefix);
    let mut engine = Engine::connect(&plan, options)?;
    engine.meter.keep = options.keep;
    engine.meter.times.reserve_exact(options.keep);
    if options.receivers.is_some() {
        std::thread::sleep(SPREAD);
    }
    let ns = |duration: Duration| u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
    let counted = options.messages.is_some();

    engine.start();
    if !counted {
        engine.run_until(sys::now_ns() + ns(options.warm_up))?;
    }
    let begin = Mark::take(&engine, watch)?;
    let deadline = begin.time.saturating_add(ns(options.duration));
    // A counted run has no warm-up to leave out.
    engine.meter.interval = if counted { 0 } else { begin.time }..deadline;
    engine.run_until(deadline)?;
    let end = Mark::take(&engine, watch)?;

    let syscalls = match watch {
        Some(watch) if !options.syscalls.is_zero() && !counted => {
            count_syscalls(&mut engine, watch, ns(options.syscalls))?
        }
        _ => None,
    };
    engine.drain()?;
    let memory = watch.map(Watch::memory).transpose()?;
    Ok(Report::of_traffic(
        options,
        &mut engine,
        &begin,
        &end,
        syscalls,
        memory,
    ))
}

/// System calls per delivered message over `interval` nanoseconds of traffic; `None` where the
/// kernel does not let us count.
fn count_syscalls(engine: &mut Engine, watch: Watch, interval: u64) -> Result<Option<f64>> {
    let Ok(counter) = watch.count_syscalls() else {
        return Ok(None);
    };
    let before = engine.meter.delivered;
    engine.run_until(sys::now_ns() + interval)?;
    let delivered = engine.meter.delivered - before;
    let calls = counter
        .total()
        .map_err(Error::io("cannot read the count of system calls"))?;
    Ok((delivered > 0).then(|| calls as f64 / delivered as f64))
}
