//! The broker as a stage of the model, from what was measured.
//!
//! A message costs `c_in` and `c_out` for each subscriber on the link that
//! stands for the broker; the host's part is the switching delay before it.
//! Together they are never less than what was seen at the chosen percentile.

use std::fmt::Write as _;
use std::time::Duration;

use clap::ValueEnum;
use punctual_measure::Latency;
use punctual_model::format_duration;
use punctual_model::network::{Document, NetworkError};

use super::measure::{Measured, SLICE_US, Sample};

/// Which value of a distribution stands for the worst.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Percentile {
    /// 99 of 100 were faster.
    P99,
    /// 999 of 1000 were faster.
    #[value(name = "p99.9")]
    P999,
    /// The slowest that was seen.
    Max,
}

impl Percentile {
    fn of(self, latency: &Latency) -> f64 {
        match self {
            Self::P99 => latency.p99_us,
            Self::P999 => latency.p999_us,
            Self::Max => latency.max_us,
        }
    }

    fn text(self) -> &'static str {
        match self {
            Self::P99 => "99th percentile",
            Self::P999 => "99.9th percentile",
            Self::Max => "largest value",
        }
    }
}

/// What a message of a size costs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Cost {
    /// Payload, bytes.
    pub(super) payload: usize,
    /// For the message, ns.
    pub(super) fixed: u64,
    /// For each subscriber, ns.
    pub(super) each: u64,
}

impl Cost {
    /// A line above all samples (subscribers, µs) less the host's part.
    fn fit(payload: usize, samples: &[(u32, f64)], host_us: f64) -> Self {
        let (first, least) = samples.first().copied().unwrap_or_default();
        let slope = |(subscribers, us): &(u32, f64)| {
            (us - least) / f64::from(subscribers.saturating_sub(first).max(1))
        };
        let each = samples.iter().skip(1).map(slope).fold(0.0, f64::max);
        let rest = |(subscribers, us): &(u32, f64)| us - host_us - f64::from(*subscribers) * each;
        let fixed = samples.iter().map(rest).fold(0.0, f64::max);
        Self {
            payload,
            fixed: nanos(fixed).max(1),
            each: nanos(each),
        }
    }

    /// For so many subscribers, ns.
    pub(super) fn total(&self, subscribers: usize) -> u64 {
        self.fixed + self.each * subscribers as u64
    }
}

/// µs as whole ns, rounded up.
fn nanos(us: f64) -> u64 {
    (us.max(0.0) * 1000.0).ceil() as u64
}

/// The broker's stage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Stage {
    /// The smallest size first.
    pub(super) costs: Vec<Cost>,
    /// Greatest switching delay of the host, ns.
    pub(super) switching: u64,
    /// What the host usually takes, and the costs do not count, ns.
    usual: u64,
    /// Longest time for which other work holds the broker, ns.
    pub(super) best_effort: u64,
}

impl Stage {
    pub(super) fn new(measured: &Measured, percentile: Percentile) -> Self {
        let host = measured.host.iter();
        let switching = host
            .map(|sample| percentile.of(&sample.latency))
            .fold(0.0, f64::max);
        let host = measured.host.iter();
        let usual = host.map(|sample| sample.latency.p50_us).fold(0.0, f64::max);
        let cost = |host: &Sample| {
            let broker = measured
                .broker
                .iter()
                .filter(|sample| sample.payload == host.payload);
            let mut points: Vec<_> = broker
                .map(|sample| (sample.subscribers, percentile.of(&sample.latency)))
                .collect();
            points.sort_by_key(|(subscribers, _)| *subscribers);
            Cost::fit(host.payload, &points, host.latency.p50_us)
        };
        let mut costs: Vec<_> = measured.host.iter().map(cost).collect();
        costs.sort_by_key(|cost| cost.payload);
        let beside = [&measured.beside_bulk, &measured.beside_storm];
        let alone = measured
            .broker
            .iter()
            .filter(|sample| sample.payload == measured.beside_bulk.payload);
        let alone = alone
            .map(|sample| sample.latency.p50_us)
            .fold(f64::INFINITY, f64::min);
        Self {
            costs,
            switching: nanos(switching),
            usual: nanos(usual),
            best_effort: beside
                .map(|sample| percentile.of(&sample.latency) - alone)
                .into_iter()
                // It may have come when the last piece of a slice was about to begin.
                .chain([f64::from(SLICE_US) + measured.longest_piece_us])
                .map(nanos)
                .fold(0, u64::max),
        }
    }

    /// The cost of a message of that size: the next size that was measured.
    /// `None` if it is larger than all.
    fn cost(&self, bytes: u64) -> Option<&Cost> {
        let covers = |cost: &&Cost| cost.payload as u64 >= bytes;
        self.costs.iter().find(covers)
    }

    /// Sets what the broker costs in a network: on the flows that cross the
    /// link, the link, and the node before it.
    pub(super) fn set(&self, network: &mut Document, link: &str) -> Result<(), NetworkError> {
        let known = network.links.iter_mut().find(|entry| entry.id == link);
        let entry = known.ok_or_else(|| {
            NetworkError::new(
                "--link",
                format!("{link:?} is not among the links; name the one that stands for the broker"),
            )
        })?;
        entry.be_bytes = None;
        entry.be_ns = Some(self.best_effort);
        (entry.fifo, entry.edf) = (false, false);
        (entry.unordered, entry.whole) = (true, true);
        let from = entry.from.clone();
        for node in network.nodes.iter_mut().filter(|node| node.id == from) {
            node.sd_min_ns = 0;
            node.sd_max_ns = Some(self.switching);
        }
        let crosses = |path: &Vec<String>| path.iter().any(|name| name == link);
        for flow in &mut network.flows {
            let copies = flow.paths.iter().filter(|path| crosses(path)).count();
            if copies == 0 {
                continue;
            }
            let frame = flow.wire_bytes.unwrap_or(0);
            let bytes = frame.saturating_mul(flow.frames.unwrap_or(1));
            let cost = self.cost(bytes).ok_or_else(|| {
                NetworkError::new(
                    format!("flows {:?}: wire_bytes", flow.id),
                    format!("{bytes} is more than what was measured; add it to --sizes"),
                )
            })?;
            flow.cost_ns.insert(link.to_owned(), cost.total(copies));
        }
        Ok(())
    }

    /// What `[admission]` takes: above all that was seen at the percentile, of
    /// all sizes, the host's part included; in whole microseconds upwards.
    pub(super) fn settings(&self) -> [(&'static str, u64); 3] {
        let most = |part: fn(&Cost) -> u64| self.costs.iter().map(part).max().unwrap_or(0);
        let micros = |nanos: u64| nanos.div_ceil(1_000) * 1_000;
        [
            ("receive_time", micros(self.usual + most(|cost| cost.fixed))),
            ("send_time", micros(most(|cost| cost.each))),
            ("blocking_time", micros(self.best_effort)),
        ]
    }

    /// Nodes and links to be put into a network file.
    pub(super) fn fragment(&self) -> String {
        let Self {
            switching,
            best_effort,
            ..
        } = self;
        format!(
            "nodes = [\n  {{ id = \"broker-in\", sd_max_ns = {switching} }},\n  {{ id = \"broker-out\" }},\n]\n\
             links = [\n  {{ id = \"broker\", from = \"broker-in\", to = \"broker-out\", be_ns = {best_effort}, unordered = true, whole = true }},\n]\n"
        )
    }
}

/// The method, the machine and all figures, as comments of TOML.
pub(super) fn remarks(
    measured: &Measured,
    stage: &Stage,
    percentile: Percentile,
    machine: &Machine,
) -> String {
    let mut text = String::new();
    let mut line = |words: std::fmt::Arguments<'_>| {
        let _ = writeln!(text, "# {words}");
    };
    line(format_args!(
        "Broker stage measured by punctual {} calibrate, kernel {}, {} CPUs.",
        env!("CARGO_PKG_VERSION"),
        machine.kernel,
        machine.cpus
    ));
    line(format_args!(
        "Worst: {}. One shard, loopback, QoS 0, one message at a time, from send to the last receipt.",
        percentile.text()
    ));
    if machine.is_hard() {
        line(format_args!(
            "Kernel and threads are real-time: still a measurement, not a proof."
        ));
    } else {
        line(format_args!("STATISTICAL, NOT HARD: {}.", machine.doubt()));
    }
    line(format_args!(
        "through    payload  subscribers  messages      p50      p99    p99.9      max us"
    ));
    let rows = measured.host.iter().map(|sample| ("forwarder", sample));
    let rows = rows.chain(measured.broker.iter().map(|sample| ("broker", sample)));
    let beside = [
        ("with bulk", &measured.beside_bulk),
        ("w. storm", &measured.beside_storm),
    ];
    for (through, sample) in rows.chain(beside) {
        let Latency {
            p50_us,
            p99_us,
            p999_us,
            max_us,
            count,
            ..
        } = sample.latency;
        line(format_args!(
            "{through:9}  {:7}  {:11}  {count:8}  {p50_us:7.1}  {p99_us:7.1}  {p999_us:7.1}  {max_us:7.1}",
            sample.payload, sample.subscribers
        ));
    }
    if measured.longest_piece_us > 0.0 {
        line(format_args!(
            "Longest piece of other work beside these, by the broker's account: {:.1} us.",
            measured.longest_piece_us
        ));
    }
    for saturated in &measured.saturated {
        let cpu = saturated.cpu_ns.map_or_else(String::new, |ns| {
            format!(", {:.2} us of CPU each", ns / 1000.0)
        });
        line(format_args!(
            "Saturated, {} B, one to one: {:.0} messages/s{cpu}.",
            saturated.payload, saturated.per_second
        ));
    }
    line(format_args!(
        "Cost of a message on the broker's link, cost_ns = c_in + subscribers * c_out:"
    ));
    for Cost {
        payload,
        fixed,
        each,
    } in &stage.costs
    {
        line(format_args!(
            "  up to {payload} B: c_in = {fixed} ns, c_out = {each} ns"
        ));
    }
    line(format_args!(
        "The same for a broker that admits flows itself:"
    ));
    for (key, nanos) in stage.settings() {
        let time = format_duration(Duration::from_nanos(nanos));
        line(format_args!("  admission.{key} = \"{time}\""));
    }
    text
}

/// What a figure depends on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Machine {
    /// Release and version.
    pub(super) kernel: String,
    /// Number of CPUs.
    pub(super) cpus: usize,
    /// The kernel is preemptible everywhere (PREEMPT_RT).
    pub(super) real_time_kernel: bool,
    /// The broker asked for real-time threads.
    pub(super) real_time_threads: bool,
}

impl Machine {
    /// This one.
    pub(super) fn read(real_time_threads: bool) -> Self {
        let file = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let release = file("/proc/sys/kernel/osrelease");
        Self {
            kernel: release.trim().to_owned(),
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
            real_time_kernel: file("/sys/kernel/realtime").trim() == "1",
            real_time_threads,
        }
    }

    fn is_hard(&self) -> bool {
        self.real_time_kernel && self.real_time_threads
    }

    /// Why a figure is no limit.
    pub(super) fn doubt(&self) -> String {
        let kernel = (!self.real_time_kernel)
            .then_some("the kernel has no real-time scheduling (PREEMPT_RT)");
        let threads =
            (!self.real_time_threads).then_some("the broker had no real-time threads (--realtime)");
        let why: Vec<_> = kernel.into_iter().chain(threads).collect();
        format!("{}; later messages may take longer", why.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn latency(p50_us: f64, max_us: f64) -> Latency {
        Latency {
            count: 10,
            p50_us,
            p99_us: max_us / 4.0,
            p999_us: max_us / 2.0,
            max_us,
            ..Latency::default()
        }
    }

    fn measured() -> Measured {
        let sample = |payload, subscribers, p50, max| Sample {
            payload,
            subscribers,
            latency: latency(p50, max),
        };
        Measured {
            host: vec![sample(64, 1, 10.0, 30.0), sample(1000, 1, 12.0, 25.0)],
            broker: vec![
                sample(64, 1, 20.0, 50.0),
                sample(64, 3, 20.0, 70.0),
                sample(64, 5, 20.0, 74.0),
                sample(1000, 1, 25.0, 40.0),
                sample(1000, 5, 25.0, 40.0),
            ],
            beside_bulk: sample(64, 1, 90.0, 220.5),
            beside_storm: sample(64, 1, 50.0, 110.0),
            longest_piece_us: 50.0,
            saturated: Vec::new(),
        }
    }

    #[test]
    fn the_stage_is_never_below_what_was_seen() {
        let measured = measured();
        let stage = Stage::new(&measured, Percentile::Max);
        assert_eq!(stage.switching, 30_000);
        assert_eq!(stage.best_effort, 200_500);
        assert_eq!(
            stage.settings(),
            [
                ("receive_time", 42_000),
                ("send_time", 10_000),
                ("blocking_time", 201_000)
            ]
        );
        let [small, large] = stage.costs[..] else {
            panic!("two sizes")
        };
        assert_eq!((small.fixed, small.each), (30_000, 10_000));
        assert_eq!((large.fixed, large.each), (28_000, 0));
        for sample in &measured.broker {
            let cost = stage.cost(sample.payload as u64).unwrap();
            let bound = cost.total(sample.subscribers as usize) + stage.switching;
            assert!(bound >= nanos(sample.latency.max_us), "{sample:?}");
        }
    }

    #[test]
    fn the_longest_piece_of_other_work_blocks() {
        let longest = Measured {
            longest_piece_us: 812.25,
            ..measured()
        };
        assert_eq!(Stage::new(&longest, Percentile::P99).best_effort, 912_250);
        let storm = Measured {
            beside_storm: measured().broker[0],
            beside_bulk: measured().broker[0],
            ..longest
        };
        assert_eq!(Stage::new(&storm, Percentile::Max).best_effort, 912_250);
    }

    #[test]
    fn a_network_takes_the_costs_of_its_flows() {
        let stage = Stage::new(&measured(), Percentile::Max);
        let text = r#"{"nodes":[{"id":"in"},{"id":"out"},{"id":"s"}],
            "links":[{"id":"b","from":"in","to":"out","be_bytes":0},{"id":"o","from":"out","to":"s","rate_bps":1000}],
            "flows":[{"id":"x","period_ns":1,"wire_bytes":64,"paths":[["b"],["b","o"]]},
                     {"id":"y","period_ns":1,"wire_bytes":33,"frames":2,"paths":[["b"]]},
                     {"id":"z","period_ns":1,"wire_bytes":9000,"paths":[["o"]]}]}"#;
        let mut network = Document::from_json(text).unwrap();
        stage.set(&mut network, "b").unwrap();
        let costs: Vec<_> = network
            .flows
            .iter()
            .map(|flow| flow.cost_ns.get("b").copied())
            .collect();
        assert_eq!(costs, [Some(50_000), Some(28_000), None]);
        assert_eq!(
            (network.links[0].be_ns, network.links[0].be_bytes),
            (Some(200_500), None)
        );
        assert_eq!(network.nodes[0].sd_max_ns, Some(30_000));
        assert!(network.links[0].whole, "it serves messages, not frames");

        let error = stage.set(&mut network, "o").unwrap_err();
        assert!(error.to_string().contains("add it to --sizes"), "{error}");
        assert!(stage.set(&mut network, "x").is_err());
    }

    #[test]
    fn the_fragment_is_a_document_and_doubts_are_said() {
        let measured = measured();
        let stage = Stage::new(&measured, Percentile::P99);
        let mut machine = Machine {
            kernel: "6.1".into(),
            cpus: 2,
            real_time_kernel: false,
            real_time_threads: true,
        };
        let text = remarks(&measured, &stage, Percentile::P99, &machine);
        assert!(
            text.contains("STATISTICAL, NOT HARD: the kernel has no real-time"),
            "{text}"
        );
        assert!(text.lines().all(|line| line.starts_with("# ")), "{text}");
        let document = Document::from_toml(&format!("{text}{}", stage.fragment())).unwrap();
        assert_eq!(document.links[0].be_ns, Some(stage.best_effort));
        machine.real_time_kernel = true;
        let text = remarks(&measured, &stage, Percentile::P99, &machine);
        assert!(text.contains("still a measurement"), "{text}");
    }
}
