//! One case: a load with one of the three systems. The network is built once; the repetitions
//! differ in phases and release jitter.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use punctual_measure::noise::{Gaps, Watcher};
use serde::Serialize;

use super::super::background::{Background, Generator};
use super::super::broker::BrokerProgram;
use super::super::experiment::{CLIENTS_FIFO, Generated, LATE_OF, LEAD, join, take_turn};
use super::super::fabric::{Driver, Fabric};
use super::super::layout::Layout;
use super::super::load::{Load, Publisher, RelaySpec, Sent, Subscriber};
use super::super::observe::{Observed, Observer};
use super::super::results::Processors;
use super::super::tools::{Running, Tool};
use super::counters::{self, Links};
use super::scenario::{BROKERS, Cast, Scenario, Series, Subscribed};
use super::tally::{Tally, TallyResult};
use crate::process::Process;
use crate::sys;
use punctual_measure::Result;

/// CPU core of the clients. Only clients get real-time priority: three brokers with it would keep
/// the kernel from forwarding, and the measured paths end before the brokers.
const CLIENTS_CORE: usize = 1;

/// Parameters that all cases share.
pub(super) struct Setup {
    pub(super) broker: BrokerProgram,
    pub(super) background: Vec<Background>,
    /// Publishers without requirements on each of their hosts.
    pub(super) plain: usize,
    pub(super) subscribed: Subscribed,
    pub(super) warm_up: Duration,
    pub(super) duration: Duration,
    pub(super) repeats: u64,
    pub(super) pinned: bool,
}

/// Results of a case.
#[derive(Clone, Debug, Serialize)]
pub(super) struct CaseResult {
    /// Name of the setting: the load and the publishing edge networks.
    pub(super) setting: String,
    pub(super) series: Series,
    pub(super) repeats: u64,
    #[serde(flatten)]
    pub(super) tally: TallyResult,
    /// Bytes by link, such as `s1>s4`, over all repetitions.
    pub(super) links: Links,
    /// Undeclared traffic: its description, the received rate in bit/s, and the tool that generated
    /// it.
    pub(super) background: Vec<(String, u64, Option<&'static str>)>,
    /// Number of times that a tool ended by itself, by its output.
    pub(super) stopped: BTreeMap<String, u64>,
    /// Least idle time of the processors in a repetition, percent.
    pub(super) idle: Option<f64>,
    /// Time to build the network, ms, and time of the whole case, s.
    pub(super) set_up_ms: u64,
    pub(super) took_s: f64,
}

impl CaseResult {
    /// Whether programs waited for a processor, or publishers wrote too many messages late.
    pub(super) fn is_doubtful(&self) -> bool {
        let tally = &self.tally;
        let idle = self.idle.map(|idle| Processors { idle, stolen: 0.0 });
        tally.late * LATE_OF > tally.written || idle.is_some_and(Processors::are_too_busy)
    }
}

/// The network of a case with its brokers.
struct Stage<'a> {
    setup: &'a Setup,
    layout: Layout,
    fabric: Fabric,
    cast: Cast,
    generators: Vec<Generator>,
    _brokers: Vec<Vec<Process>>,
}

/// Results of one repetition.
struct Round {
    sent: Sent,
    observed: Observed,
    gaps: Gaps,
    processors: Option<Processors>,
    /// Offset to add to the monotonic clock to get the real-time clock, ns.
    offset: u64,
    /// Start of the measurement, ns on the real-time clock.
    measured_from: u64,
    /// Duration of the undeclared traffic, s.
    generated: f64,
    /// Output of the tools that ended by themselves.
    stopped: Vec<String>,
}

/// Runs all repetitions of a case.
pub(super) fn run(scenario: &Scenario, series: Series, setup: &Setup) -> Result<CaseResult> {
    let begun = Instant::now();
    let mut stage = Stage::build(scenario, series, setup)?;
    let set_up_ms = begun.elapsed().as_millis() as u64;
    let mut sources: Vec<usize> = stage
        .layout
        .publications
        .iter()
        .map(|of| of.publisher)
        .collect();
    sources.sort_unstable();
    sources.dedup();
    let read = |stage: &Stage<'_>| counters::read(&stage.layout, &stage.fabric, &sources);
    let before = read(&stage)?;
    let mut tally = Tally::new(scenario, &scenario.printed()?, &stage.layout, series);
    let (mut came, mut generated) = (BTreeMap::new(), 0.0);
    let mut stopped = BTreeMap::new();
    let mut idle: Option<f64> = None;
    for seed in 1..=setup.repeats {
        let round = stage.play(seed)?;
        for (place, bytes) in &round.observed.unstamped {
            *came.entry(*place).or_insert(0) += bytes;
        }
        generated += round.generated;
        for said in round.stopped {
            *stopped.entry(said).or_insert(0) += 1;
        }
        if let Some(processors) = round.processors {
            idle = Some(idle.map_or(processors.idle, |idle| idle.min(processors.idle)));
        }
        tally.add(
            &round.sent,
            &round.observed,
            &round.gaps,
            [round.offset, round.measured_from],
        );
    }
    let links = counters::since(&before, &read(&stage)?);
    let background = stage.generators.iter().map(|generator| {
        let source = stage.layout.hosts[generator.stream.from].address;
        let bytes = came
            .get(&(generator.stream.to, source))
            .copied()
            .unwrap_or(0);
        let rate = bytes as f64 * 8.0 / generated.max(f64::MIN_POSITIVE);
        let tool = generator.background.tool.map(Tool::name);
        (generator.background.to_string(), rate as u64, tool)
    });
    Ok(CaseResult {
        setting: scenario.setting.name(),
        series,
        repeats: setup.repeats,
        tally: tally.result(),
        background: background.collect(),
        stopped,
        links,
        idle,
        set_up_ms,
        took_s: begun.elapsed().as_secs_f64(),
    })
}

impl<'a> Stage<'a> {
    fn build(scenario: &Scenario, series: Series, setup: &'a Setup) -> Result<Self> {
        let mut layout = Layout::new(&scenario.network)?;
        let generators = setup
            .background
            .iter()
            .enumerate()
            .map(|(index, background)| Generator::place(background, index, &mut layout))
            .collect::<Result<Vec<_>>>()?;
        let cast = Cast::new(
            scenario,
            &layout,
            series,
            (setup.plain, setup.subscribed),
            &generators,
        )?;
        let mut fabric = Fabric::new(&layout, Driver::Linux, setup.pinned)?;
        fabric.connect(&layout, &cast.streams, &cast.trees)?;
        for (switch, commands) in cast.reservations(&layout) {
            fabric
                .switch(switch)
                .feed("tc", &["-batch", "-"], &commands)?;
        }
        let brokers = (0..layout.hosts.len()).filter(|host| layout.hosts[*host].broker);
        let start = |host| setup.broker.start(fabric.host(host), None, 0);
        let brokers = brokers.map(start).collect::<Result<_>>()?;
        Ok(Self {
            setup,
            layout,
            fabric,
            cast,
            generators,
            _brokers: brokers,
        })
    }

    /// Connects all clients, publishes for the duration of a repetition and captures the messages.
    fn play(&mut self, seed: u64) -> Result<Round> {
        let (setup, fabric) = (self.setup, &self.fabric);
        let hosts = self.layout.hosts.iter().enumerate();
        let seen_at = hosts.filter(|(_, host)| BROKERS.contains(&host.name.as_str()));
        let observer = Observer::new(seen_at.map(|(host, _)| (host, fabric.host(host))))?;
        // Relays and subscribers, which are behind the brokers, run in a separate thread, so that
        // they do not delay the publishers.
        let connect =
            |subscribers: &[Subscriber], publishers: &[Publisher], relays: &[RelaySpec]| {
                Load::connect(subscribers, publishers, relays, seed, |host| {
                    fabric.host(host)
                })
            };
        let behind = connect(&self.cast.subscribers, &[], &self.cast.relays)?;
        let load = connect(&[], &self.cast.publishers, &[])?;
        let servers = Generator::prepare(&self.generators, |host| fabric.host(host))?;
        let watcher = setup.pinned.then(|| Watcher::start(&[0, CLIENTS_CORE]));
        let (ended, seen) = (AtomicBool::new(false), AtomicBool::new(false));
        let counts: Vec<AtomicU64> = self.generators.iter().map(|_| AtomicU64::new(0)).collect();
        let core = setup.pinned.then_some(CLIENTS_CORE);
        let fifo = if setup.pinned { CLIENTS_FIFO } else { 0 };
        let whole = setup.warm_up + setup.duration;
        let begin = Instant::now() + LEAD;
        let begin_ns = sys::now_ns() + LEAD.as_nanos() as u64;
        let end_ns = begin_ns + whole.as_nanos() as u64;
        let offset = sys::real_time_ns().saturating_sub(sys::now_ns());
        let measured_from = begin_ns + setup.warm_up.as_nanos() as u64 + offset;
        let (sent, observed, processors, generated, stopped) =
            thread::scope(|scope| -> Result<_> {
                let observing = scope.spawn(|| observer.run(&seen));
                let receiving = scope.spawn(|| behind.run(begin_ns, end_ns, &ended));
                let loading = scope.spawn(|| {
                    take_turn(core, fifo)?;
                    load.run(begin_ns, end_ns, &ended)
                });
                let started = Generated::start(scope, &self.generators, fabric, &ended, &counts);
                let generated = started.wait([begin, begin + whole], || loading.is_finished());
                let tools = generated.tools;
                let stopped = tools.map(|tools| said_at_end(servers.into_iter().chain(tools)));
                ended.store(true, Ordering::Release);
                let processors = generated.processors;
                let generated = generated.began.elapsed().as_secs_f64();
                let (sent, received) = (join(loading), join(receiving));
                seen.store(true, Ordering::Release);
                let observed = join(observing);
                let stopped = stopped?;
                let received = received?;
                let sent = Sent {
                    received: received.received,
                    relayed: received.relayed,
                    not_relayed: received.not_relayed,
                    ..sent?
                };
                Ok((sent, observed?, processors, generated, stopped))
            })?;
        Ok(Round {
            sent,
            observed,
            gaps: watcher.map_or_else(|| Ok(Gaps::default()), Watcher::end)?,
            processors,
            offset,
            measured_from,
            generated,
            stopped,
        })
    }
}

/// Output of the tools that ended by themselves. Then less traffic arrived, but the results are
/// valid.
fn said_at_end(tools: impl Iterator<Item = Running>) -> Vec<String> {
    let ended = tools.filter_map(|mut tool| tool.check().err());
    ended.map(|error| error.to_string()).collect()
}
