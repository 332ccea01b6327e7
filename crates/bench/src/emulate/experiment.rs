//! One run: builds the network, starts all programs, observes the traffic, and removes everything.

use std::collections::BTreeMap;
use std::fs;
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, Scope};
use std::time::{Duration, Instant};

use punctual_analysis::analyze;
use punctual_model::Requirements;
use punctual_model::network::{Flow, Network};
use punctual_model::srt::Protocol;
use serde::Serialize;

use super::background::{Background, FULL_FRAME, Generator, Kind as Traffic};
use super::broker::{self, BrokerProgram};
use super::fabric::{Driver, Fabric};
use super::flows::Stream;
use super::layout::{FlowPath, Layout, Up, back};
use super::load::{Endpoint, Load, Publisher, RelaySpec, Sent, Subscriber, topic};
use super::loss::{Loss, Losses, Recoveries};
use super::observe::{Observed, Observer};
use super::results::{self, PathResult, Processors};
use super::switching::{self, SwitchDelay};
use super::tools::{Running, Tool};
use super::tree::Trees;
use crate::process::Process;
use crate::sys;
use punctual_measure::load::Latency;
use punctual_measure::load::meter::Recorder;
use punctual_measure::{Error, Result};

/// First ports of publishers, of subscribers, and of plain publishers of the background.
const PUBLISHERS: u16 = 20_000;
const SUBSCRIBERS: u16 = 30_000;

/// Time between the last connection and the first message.
pub(super) const LEAD: Duration = Duration::from_millis(200);

/// Wait for messages in transit at the end.
const DRAIN: Duration = Duration::from_millis(300);

/// Polling interval for the end of threads.
const LOOK: Duration = Duration::from_millis(20);

/// A run is doubtful if more than one in `LATE_OF` messages was written late.
pub(super) const LATE_OF: u64 = 1000;

/// `SCHED_FIFO` priorities of broker, clients and captures, which keep other programs from
/// disturbing the measurement.
const BROKER_FIFO: u8 = 40;
pub(super) const CLIENTS_FIFO: u8 = 30;
const OBSERVER_FIFO: u8 = 20;

/// Parameters of a run.
#[derive(Clone, Debug)]
pub(crate) struct Experiment {
    pub(crate) driver: Driver,
    pub(crate) broker: BrokerProgram,
    pub(crate) warm_up: Duration,
    pub(crate) duration: Duration,
    pub(crate) qos: u8,
    /// Packets are marked with their flow's priority level; otherwise all have the same mark.
    pub(crate) priorities: bool,
    pub(crate) background: Vec<Background>,
    pub(crate) seed: u64,
    /// Share of the packets to brokers that the brokers' hosts discard.
    pub(crate) loss: Option<Loss>,
    /// Measure the forwarding delays of the switches first.
    pub(crate) switching: bool,
    /// Broker and clients have one core each, with priority over other programs.
    pub(crate) pinned: bool,
}

/// Results of a run.
#[derive(Debug, Serialize)]
pub(crate) struct Outcome {
    pub(crate) priorities: bool,
    pub(crate) hosts: usize,
    pub(crate) switches: usize,
    pub(crate) cables: usize,
    /// Time to build the network, ms.
    pub(crate) set_up_ms: u64,
    pub(crate) paths: Vec<PathResult>,
    /// Forwarding delays of the switches, if they were measured.
    pub(crate) switching: Vec<SwitchDelay>,
    /// Time from when messages were due until they were written, µs.
    pub(crate) lateness: Option<Latency>,
    /// Messages that were written more than 0.1 ms later than their flow's release jitter allows.
    /// Bounds do not hold for them, nor for messages that wait behind them.
    pub(crate) late: u64,
    /// Messages that publishers wrote, and how many of them the broker acknowledged.
    pub(crate) written: u64,
    pub(crate) acknowledged: u64,
    /// Messages that subscribers received.
    pub(crate) received: u64,
    /// Flows whose deadline the manager guaranteed, if a manager ran.
    pub(crate) promised: Option<usize>,
    /// Messages that TCP retransmitted.
    pub(crate) repeated: u64,
    pub(crate) losses: Losses,
    /// Packets that the capture missed.
    pub(crate) missed: u64,
    /// Undeclared traffic: its description, the received rate in bit/s, and the tool that generated
    /// it.
    pub(crate) background: Vec<(String, u64, Option<&'static str>)>,
    pub(crate) processors: Option<Processors>,
    /// Datagrams to multicast groups that relays passed on to the brokers.
    pub(crate) relayed: u64,
    /// Copies of messages that were not written because a send buffer was full.
    pub(crate) withheld: u64,
}

impl Outcome {
    /// The machine had too little CPU time: programs waited for a processor, or publishers did not
    /// keep the release jitter that their flows declare.
    pub(crate) fn is_doubtful(&self) -> bool {
        let undeclared = self.late * LATE_OF > self.written;
        undeclared || self.processors.is_some_and(Processors::are_too_busy)
    }
}

/// Carries out a run on a network.
pub(crate) fn run(network: &Network, experiment: &Experiment) -> Result<Outcome> {
    let begun = Instant::now();
    let mut layout = Layout::new(network)?;
    let undeclared = experiment.background.iter().enumerate();
    let generators = undeclared
        .map(|(index, background)| Generator::place(background, index, &mut layout))
        .collect::<Result<Vec<_>>>()?;
    let mut plan = Plan::new(network, &mut layout, experiment)?;
    plan.add_background(&generators, &layout, network.flows.len() as u32);
    let probes = experiment.switching.then(|| switching::probes(&layout));
    let probes = probes.unwrap_or_default();
    let streams = probes.iter().map(|probe| probe.stream.clone());
    plan.streams.extend(streams);
    let mut fabric = Fabric::new(&layout, experiment.driver, experiment.pinned)?;
    fabric.connect(&layout, &plan.streams, &plan.trees)?;
    let set_up_ms = begun.elapsed().as_millis() as u64;

    let [broker_core, clients_core] = [0, 1].map(|core| experiment.pinned.then_some(core));
    let fifo_of_clients = fifo(experiment, CLIENTS_FIFO);
    let switching = measure_switching(&layout, &fabric, &probes, (clients_core, fifo_of_clients))?;
    let _brokers = start_brokers(&layout, &fabric, experiment, broker_core)?;

    let observer = Observer::new(plan.observed().map(|host| (host, fabric.host(host))))?;
    let load = Load::connect(
        &plan.subscribers,
        &plan.publishers,
        &plan.relays(),
        experiment.seed,
        |host| fabric.host(host),
    )?;

    let servers = Generator::prepare(&generators, |host| fabric.host(host))?;

    Loss::begin(experiment.loss, &layout, &fabric)?;
    let (ended, seen) = (AtomicBool::new(false), AtomicBool::new(false));
    let arrived: Vec<AtomicU64> = generators.iter().map(|_| AtomicU64::new(0)).collect();
    let begin = Instant::now() + LEAD;
    let whole = experiment.warm_up + experiment.duration;
    let begin_ns = sys::now_ns() + LEAD.as_nanos() as u64;
    let end_ns = begin_ns + whole.as_nanos() as u64;
    let from = sys::real_time_ns() + (LEAD + experiment.warm_up).as_nanos() as u64;
    let counted = (from, experiment.loss);
    let (sent, observed, processors, generated) = thread::scope(|scope| -> Result<_> {
        let observing = scope.spawn(|| {
            take_turn(clients_core, fifo(experiment, OBSERVER_FIFO))?;
            observer.run(&seen)
        });
        let loading = scope.spawn(|| {
            take_turn(clients_core, fifo_of_clients)?;
            load.run(begin_ns, end_ns, &ended)
        });
        let started = Generated::start(scope, &generators, &fabric, &ended, &arrived);
        let generated = started.wait([begin, begin + whole], || loading.is_finished());
        let checked = generated.tools.and_then(|tools| {
            let mut tools = servers.into_iter().chain(tools);
            tools.try_for_each(|mut tool| tool.check())
        });
        ended.store(true, Ordering::Release);
        let (processors, generated) = (generated.processors, generated.began.elapsed());
        let sent = join(loading);
        seen.store(true, Ordering::Release);
        let observed = join(observing);
        checked?;
        Ok((sent?, observed?, processors, generated))
    })?;

    let background = generators.iter().zip(&arrived);
    let background = background
        .map(|(generator, arrived)| {
            let (bytes, time) = match generator.background.kind {
                Traffic::Mqtt => (plan.acknowledged_of(generator, &sent) * FULL_FRAME, whole),
                _ => {
                    let source = layout.hosts[generator.stream.from].address;
                    // A broker's host receives other traffic too: its capture counts bytes by
                    // source.
                    let bytes = match observed.unstamped.get(&(generator.stream.to, source)) {
                        Some(bytes) => *bytes,
                        None => generator.arrived(|host| fabric.host(host), arrived)?,
                    };
                    (bytes, generated)
                }
            };
            Ok(rate(generator, bytes, time))
        })
        .collect::<Result<_>>()?;
    let flows = network.flows.len();
    Ok(Outcome {
        priorities: experiment.priorities,
        hosts: layout.hosts.len(),
        switches: layout.switches.len(),
        cables: layout.cables.len(),
        set_up_ms,
        paths: measured(network, &layout, &sent, &observed, counted),
        switching,
        lateness: lateness(&sent),
        late: sent.late,
        written: sent.messages.iter().take(flows).sum(),
        acknowledged: sent.acknowledged.iter().take(flows).sum(),
        received: sent.received,
        promised: experiment
            .broker
            .has_manager()
            .then(|| sent.promised.iter().filter(|promised| **promised).count()),
        repeated: observed.repeated.len() as u64,
        losses: Losses::of(experiment.loss, &layout, &fabric, &observed)?,
        missed: observed.missed,
        background,
        processors,
        relayed: sent.relayed,
        withheld: sent.withheld,
    })
}

/// Measures the forwarding delays of switches in a separate thread with this core and priority.
fn measure_switching(
    layout: &Layout,
    fabric: &Fabric,
    probes: &[switching::Probe],
    (core, priority): (Option<usize>, u8),
) -> Result<Vec<SwitchDelay>> {
    let measure = || {
        take_turn(core, priority)?;
        switching::measure(layout, fabric, probes)
    };
    thread::scope(|scope| join(scope.spawn(measure)))
}

/// Time from when messages were due until they were written.
fn lateness(sent: &Sent) -> Option<Latency> {
    let mut lateness = Recorder::default();
    lateness.add(&sent.lateness);
    lateness.summary()
}

/// Starts a broker on every host whose `broker` flag is set.
fn start_brokers(
    layout: &Layout,
    fabric: &Fabric,
    experiment: &Experiment,
    core: Option<usize>,
) -> Result<Vec<Vec<Process>>> {
    let hosts = layout.hosts.iter().enumerate();
    let hosts = hosts.filter(|(_, host)| host.broker);
    let start = |(index, _)| {
        let broker = &experiment.broker;
        broker.start(fabric.host(index), core, fifo(experiment, BROKER_FIFO))
    };
    hosts.map(start).collect()
}

/// The real-time priority if threads are pinned; 0 otherwise.
fn fifo(experiment: &Experiment, priority: u8) -> u8 {
    if experiment.pinned { priority } else { 0 }
}

/// Describes a generator of undeclared traffic, with its rate in bit/s and the tool that sent it.
fn rate(generator: &Generator, bytes: u64, time: Duration) -> (String, u64, Option<&'static str>) {
    let rate = bytes as f64 * 8.0 / time.as_secs_f64();
    let tool = generator.background.tool.map(Tool::name);
    (generator.background.to_string(), rate as u64, tool)
}

/// Results of the messages that were written during the measurement.
fn measured(
    network: &Network,
    layout: &Layout,
    sent: &Sent,
    observed: &Observed,
    (from, loss): (u64, Option<Loss>),
) -> Vec<PathResult> {
    let recoveries = Recoveries::new(loss, &observed.repeated);
    let counted: Vec<_> = observed
        .arrivals
        .iter()
        .filter(|arrival| arrival.stamp.written >= from && !recoveries.may_hold_back(arrival))
        .copied()
        .collect();
    results::paths(
        network,
        layout,
        &analyze(network).flows,
        &sent.messages,
        &counted,
    )
}

/// Sets the core and the real-time priority of the calling thread.
pub(super) fn take_turn(core: Option<usize>, fifo: u8) -> Result<()> {
    let context = "cannot give a thread its core and priority; try --unpinned";
    if let Some(core) = core {
        sys::pin_to_core(core).map_err(Error::io(context))?;
    }
    sys::set_fifo(fifo).map_err(Error::io(context))
}

pub(super) fn join<T>(thread: thread::ScopedJoinHandle<'_, Result<T>>) -> Result<T> {
    let result = thread.join();
    result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Undeclared traffic that is being generated during a run.
pub(super) struct Generated {
    /// When it began.
    pub(super) began: Instant,
    /// The tools that generate it, or why a generator could not start.
    pub(super) tools: Result<Vec<Running>>,
    /// Times of the processors during the run; set by [`Self::wait`].
    pub(super) processors: Option<Processors>,
}

impl Generated {
    /// Starts all generators. Their threads run until `ended` is set, and count in `arrived`.
    pub(super) fn start<'scope>(
        scope: &'scope Scope<'scope, '_>,
        generators: &'scope [Generator],
        fabric: &'scope Fabric,
        ended: &'scope AtomicBool,
        arrived: &'scope [AtomicU64],
    ) -> Self {
        let began = Instant::now();
        let start = |(generator, arrived): (&'scope Generator, _)| {
            generator.start(scope, |host| fabric.host(host), ended, arrived)
        };
        let tools: Result<Vec<_>> = generators.iter().zip(arrived).map(start).collect();
        Self {
            began,
            tools: tools.map(|tools| tools.into_iter().flatten().collect()),
            processors: None,
        }
    }

    /// Waits for the end of the run, which is from the first instant to the second or until
    /// `is_finished`, and for messages in transit. A generator that did not start ends the wait.
    pub(super) fn wait(self, [begin, end]: [Instant; 2], is_finished: impl Fn() -> bool) -> Self {
        thread::sleep(begin.saturating_duration_since(Instant::now()));
        let before = processor_time();
        while self.tools.is_ok() && Instant::now() < end && !is_finished() {
            thread::sleep(LOOK);
        }
        let processors = Processors::between(&before, &processor_time());
        thread::sleep(DRAIN);
        Self { processors, ..self }
    }
}

/// The content of `/proc/stat`; empty if it cannot be read, then no idle time is reported.
fn processor_time() -> String {
    fs::read_to_string("/proc/stat").unwrap_or_default()
}

/// The requirements of a flow as user properties of its publications.
fn requirements(flow: &Flow, level: u8) -> Vec<(String, String)> {
    let stated = Requirements {
        deadline: Some(Duration::from_nanos(flow.deadline)),
        period: Some(Duration::from_nanos(flow.period)),
        jitter: Some(Duration::from_nanos(flow.jitter)),
        priority: Some(level),
        ..Requirements::default()
    };
    let stated = stated.user_properties();
    stated.map(|(key, value)| (key.to_owned(), value)).collect()
}

/// A subscriber that is to be connected.
struct Receiver {
    filters: Vec<String>,
    /// Path from the broker to the subscriber.
    path: FlowPath,
    /// The level of the most urgent flow that the subscriber receives.
    level: u8,
}

impl Receiver {
    fn by(path: FlowPath) -> Self {
        Self {
            filters: Vec::new(),
            path,
            level: 0,
        }
    }
}

/// The clients with their brokers, and the streams that the network has to carry.
struct Plan {
    publishers: Vec<Publisher>,
    subscribers: Vec<Subscriber>,
    streams: Vec<Stream>,
    /// Multicast trees of the flows to several brokers.
    trees: Trees,
    /// Flow number of each generator of plain MQTT, by its host.
    plain: BTreeMap<usize, u32>,
    /// Hosts at which arrivals are captured.
    hosts: Vec<usize>,
    priorities: bool,
    qos: u8,
}

impl Plan {
    fn new(network: &Network, layout: &mut Layout, experiment: &Experiment) -> Result<Self> {
        let mut plan = Self {
            publishers: Vec::new(),
            subscribers: Vec::new(),
            streams: Vec::new(),
            trees: Trees::default(),
            plain: BTreeMap::new(),
            hosts: Vec::new(),
            priorities: experiment.priorities,
            qos: experiment.qos,
        };
        // Topic filters and path of each subscriber, by broker and host.
        let mut receivers: BTreeMap<(usize, usize), Receiver> = BTreeMap::new();
        let publications = layout.publications.clone();
        for publication in &publications {
            let flow = &network.flows[publication.flow];
            plan.hosts
                .extend(publication.ups.iter().map(|up| up.broker));
            for destination in &publication.destinations {
                if let Some(down) = &destination.down {
                    let receiver = receivers.entry((destination.broker, destination.host));
                    let receiver = receiver.or_insert_with(|| Receiver::by(down.clone()));
                    receiver.filters.push(topic(&flow.id));
                    receiver.level = receiver.level.max(publication.level);
                    plan.hosts.push(destination.host);
                }
            }
            let mut publisher = Publisher::of(publication, flow, experiment.qos);
            if experiment.broker.has_manager() {
                publisher.requirements = requirements(flow, publication.level);
            }
            let level = if plan.priorities {
                publication.level
            } else {
                0
            };
            plan.publish(layout, publisher, &publication.ups, level);
        }
        // Brokers at the end of paths get a subscriber to all topics, as in the papers.
        let brokers: Vec<usize> = (0..layout.hosts.len())
            .filter(|host| layout.hosts[*host].broker)
            .filter(|host| !receivers.keys().any(|(broker, _)| broker == host))
            .collect();
        for broker in brokers {
            let Some(switch) = layout.switch_of(broker) else {
                continue;
            };
            let name = format!("subscriber of {}", layout.hosts[broker].name);
            let host = layout.attach_host(&name, switch)?;
            if let Some(path) = layout.path(broker, host) {
                let mut receiver = Receiver::by(path);
                receiver.filters.push("#".to_owned());
                receivers.insert((broker, host), receiver);
            }
        }
        for (index, ((broker, host), receiver)) in receivers.into_iter().enumerate() {
            let Receiver {
                filters,
                path,
                level,
            } = receiver;
            let level = if plan.priorities { level } else { 0 };
            let port = SUBSCRIBERS + index as u16;
            plan.streams.push(Stream {
                from: host,
                to: broker,
                protocol: Protocol::Tcp,
                ports: [port, broker::PORT],
                path: back(&path),
                levels: [0, level],
            });
            plan.subscribers.push(Subscriber {
                name: format!("subscriber-{index}"),
                filters,
                qos: experiment.qos,
                endpoint: Endpoint {
                    host,
                    port,
                    broker: layout.hosts[broker].address,
                    dscp: 0,
                },
            });
        }
        plan.hosts.sort_unstable();
        plan.hosts.dedup();
        Ok(plan)
    }

    /// Adds a publisher that sends to one broker, or to a group of several brokers, at a level.
    fn publish(&mut self, layout: &Layout, mut publisher: Publisher, ups: &[Up], level: u8) {
        let mut endpoint = Endpoint {
            host: publisher.host,
            port: 0,
            broker: Ipv4Addr::UNSPECIFIED,
            dscp: level << 3,
        };
        if let [up] = ups {
            endpoint.port = PUBLISHERS + self.publishers.len() as u16;
            endpoint.broker = layout.hosts[up.broker].address;
            self.streams.push(Stream {
                from: publisher.host,
                to: up.broker,
                protocol: Protocol::Tcp,
                ports: [endpoint.port, broker::PORT],
                path: up.path.clone(),
                levels: [level, 0],
            });
        } else {
            endpoint.broker = self.trees.group(publisher.host, ups, [level, level]);
        }
        publisher.endpoints.push(endpoint);
        self.publishers.push(publisher);
    }

    /// Relays that pass datagrams to groups on to the brokers that are members.
    fn relays(&self) -> Vec<RelaySpec> {
        let members = self.trees.members().into_iter();
        let qos = self.qos;
        members.map(|host| RelaySpec { host, qos }).collect()
    }

    /// Adds undeclared traffic: each generator of plain MQTT is one more publisher, with flow
    /// numbers from `first` on.
    fn add_background(&mut self, generators: &[Generator], layout: &Layout, first: u32) {
        for generator in generators {
            let Generator {
                background, stream, ..
            } = generator;
            if background.kind != Traffic::Mqtt {
                self.streams.push(stream.clone());
                continue;
            }
            let flow = first + self.plain.len() as u32;
            self.plain.insert(stream.from, flow);
            let publisher = Publisher {
                flow,
                name: format!("plain-{flow}"),
                wire_bytes: FULL_FRAME,
                frames: 1,
                period: FULL_FRAME * 8 * 1_000_000_000 / background.rate,
                jitter: 0,
                qos: self.qos,
                requirements: Vec::new(),
                host: stream.from,
                endpoints: Vec::new(),
            };
            let up = Up {
                broker: stream.to,
                path: stream.path.clone(),
            };
            self.publish(layout, publisher, &[up], 0);
        }
    }

    fn observed(&self) -> impl Iterator<Item = usize> {
        self.hosts.iter().copied()
    }

    /// Messages of a generator of plain MQTT that its broker acknowledged.
    fn acknowledged_of(&self, generator: &Generator, sent: &Sent) -> u64 {
        let flow = self.plain.get(&generator.stream.from);
        let counts = if self.qos == 0 {
            &sent.messages
        } else {
            &sent.acknowledged
        };
        flow.and_then(|flow| counts.get(*flow as usize))
            .copied()
            .unwrap_or(0)
    }
}
