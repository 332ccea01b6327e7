//! `bench federation`: the bytes that five brokers send each other for equal publications, by
//! topology, locality and method of forwarding, compared with plain Mosquitto bridges and a
//! RabbitMQ cluster; the time that a mesh takes to recover; and the cost of a broker on a path.
//!
//! The experiments are those of Antonielli's thesis (chapter 4: tree, star and line of five
//! brokers, and a cluster; publisher and subscriber at one broker, at two, or at all; 50, 500 and
//! 1500 publications with QoS 1), shown beside its figures.

mod circle;
mod client;
mod experiment;
mod figures;
mod healing;
mod hops;
mod network;
mod rabbitmq;
pub(crate) mod relay;
mod report;
mod thesis;
mod throughput;
mod usage;

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use clap::{Args, ValueEnum};

use self::circle::circle;
use self::experiment::{CLUSTER, TOPOLOGIES};
use self::healing::{Event, MESH};
use self::network::{Plan, System};
use self::report::Report;
use self::throughput::Places;
use crate::arguments::seconds;
use crate::compare::machine::Machine;
use crate::compare::peers;
use crate::results_file::{ResultsFile, replace};
use punctual_measure::{Error, Result};
use punctual_testbed::netns::Namespace;

/// Names of the brokers; the third is the root, as in the thesis.
const NAMES: [&str; 5] = ["A", "B", "C", "D", "E"];
const ROOT: usize = 2;
/// Connections among A, B and C that form a loop, and two more.
const CIRCLE: [(usize, usize); 5] = [(0, 1), (1, 2), (2, 0), (3, 2), (4, 2)];
/// Longest wait until every broker hears every other one.
const PATIENCE: Duration = Duration::from_secs(30);
/// Pause for messages in flight before counters are read.
const SETTLE: Duration = Duration::from_millis(500);

/// A group of experiments.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Bytes between brokers, losses, duplicates, times
    Traffic,
    /// One publication where connections form a circle
    Circle,
    /// Recovery time of a mesh after a failure
    Healing,
    /// Latency that a hop adds
    Hops,
    /// Throughput of the connection between two brokers
    Throughput,
}

/// Options of `bench federation`.
#[derive(Args, Debug)]
pub(crate) struct FederationArgs {
    /// What to measure [default: everything]
    #[arg(long, value_name = "PART", value_delimiter = ',', default_values_t = Part::value_variants().to_vec(), hide_default_value = true)]
    only: Vec<Part>,
    /// Publications of each experiment, made in 5 s; a multiple of 500 runs as rounds of 500
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = [50, 500, 1500], value_parser = clap::value_parser!(u32).range(5..=100_000))]
    publishes: Vec<u32>,
    /// Topologies: tree, star, line, and cluster (RabbitMQ, each node connected to each other one)
    #[arg(long, value_name = "NAME", value_delimiter = ',', default_values_t = topologies())]
    topologies: Vec<String>,
    /// Seconds for which an idle mesh is measured
    #[arg(long, value_name = "S", default_value = "15", value_parser = seconds)]
    quiet: Duration,
    /// Rounds of recovery for each failure
    #[arg(long, value_name = "N", default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    heal_rounds: u32,
    /// Milliseconds between two hellos in the rounds with a silent cable
    #[arg(long, value_name = "MS", default_value_t = 100, value_parser = clap::value_parser!(u64).range(50..=60_000))]
    hello: u64,
    /// Rounds of latency and throughput
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    hop_rounds: u32,
    /// Program of the brokers, such as another build; publishers, subscribers and relays are always
    /// of this program [default: this program]
    #[arg(long, value_name = "PROGRAM")]
    broker: Option<PathBuf>,
    /// Directory for configurations and logs
    #[arg(long, value_name = "DIR", default_value = "target/bench/federation")]
    directory: PathBuf,
    /// File for all results as JSON, written after each experiment [default: DIR/results.json]
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// File for an HTML page that compares all results with the thesis, written after each
    /// experiment
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

impl std::fmt::Display for Part {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let name = self.to_possible_value();
        f.write_str(name.as_ref().map_or("", |name| name.get_name()))
    }
}

impl FederationArgs {
    /// Runs the experiments; progress goes to standard error, the tables to `out`.
    ///
    /// # Errors
    /// Without the privilege to create network namespaces, or if the brokers do not reach each
    /// other.
    pub(crate) fn run(&self, out: &mut dyn Write) -> Result<()> {
        Namespace::check()?;
        let program = match &self.broker {
            // A name without a slash would be searched for in PATH.
            Some(program) => fs::canonicalize(program).map_err(|error| Error::Config {
                field: "--broker",
                value: program.display().to_string(),
                remedy: format!("name a program ({error})"),
            })?,
            None => peers::punctual()?,
        };
        let mut report = Report::new(Machine::read());
        let cores = report.machine.cores;
        if System::present().len() < System::ALL.len() {
            let what = "Mosquitto's bridges were not measured: mosquitto is not installed";
            report.left_out.push(what.to_owned());
        }
        let keeper = Keeper {
            report: Mutex::new(report),
            json: ResultsFile::new(self.json.as_deref(), &self.directory, "results.json")?,
            html: self.html.as_deref(),
        };
        if self.only.contains(&Part::Traffic) {
            self.traffic(&program, &keeper)?;
        }
        if self.only.contains(&Part::Circle) {
            for system in System::present() {
                eprintln!("circle, {}", system.name());
                let plan = self.plan(&program, system, &CIRCLE, "circle");
                let circle = circle(&plan)?;
                keeper.keep(|report| report.circles.push(circle))?;
            }
        }
        let mesh = self.plan(&program, System::SubscriptionTable, &MESH, "mesh");
        if self.only.contains(&Part::Healing) {
            let hello = Duration::from_millis(self.hello);
            for (event, hello) in [
                (Event::RootKilled, Duration::from_secs(2)),
                (Event::CableSilent, hello),
            ] {
                let healing = healing::rounds(&mesh, event, hello, self.heal_rounds)?;
                keeper.keep(|report| report.healing.push(healing))?;
            }
        }
        let places = Places::of(cores);
        if self.only.contains(&Part::Hops) {
            let line = &TOPOLOGIES[2].1;
            let plan = self.plan(&program, System::SubscriptionTable, line, "hops");
            let latencies = hops::measure(&plan, places, self.hop_rounds)?;
            keeper.keep(|report| report.latencies = latencies)?;
        }
        if self.only.contains(&Part::Throughput) {
            let line = &TOPOLOGIES[2].1;
            let plan = self.plan(&program, System::SubscriptionTable, line, "throughput");
            let throughputs = throughput::measure(&plan, places, self.hop_rounds)?;
            keeper.keep(|report| report.throughputs = throughputs)?;
        }
        keeper.finish(out)
    }

    /// Runs the thesis' experiments with every topology that was chosen.
    fn traffic(&self, program: &Path, keeper: &Keeper<'_>) -> Result<()> {
        let known = topologies();
        if let Some(unknown) = self.topologies.iter().find(|name| !known.contains(name)) {
            return Err(Error::Config {
                field: "--topologies",
                value: unknown.clone(),
                remedy: format!("write {}", known.join(", ")),
            });
        }
        let is_wanted = |name: &str| self.topologies.iter().any(|wanted| wanted == name);
        let keep = |measured| keeper.keep(|report| report.add(measured));
        for (name, links) in TOPOLOGIES.iter().filter(|(name, _)| is_wanted(name)) {
            of_all(|system| {
                let plan = self.plan(program, system, links, name);
                experiment::series(&plan, name, &self.publishes, self.quiet, &keep)
            })?;
        }
        let (name, links) = &CLUSTER;
        if is_wanted(name) {
            let plan = self.plan(program, System::RabbitmqCluster, links, name);
            // RabbitMQ runs alone: its nodes keep two processors busy while they start.
            let measured = rabbitmq::server()
                .and_then(|_| experiment::series(&plan, name, &self.publishes, self.quiet, &keep));
            if let Err(why) = measured {
                eprintln!("\nTHE CLUSTER WAS NOT MEASURED: {why}\n");
                keeper.keep(|report| {
                    let what = format!("The cluster was not measured: {why}.");
                    report.left_out.push(what);
                })?;
            }
        }
        Ok(())
    }

    fn plan<'a>(
        &self,
        program: &'a Path,
        system: System,
        links: &'a [(usize, usize)],
        name: &str,
    ) -> Plan<'a> {
        Plan {
            program,
            system,
            links,
            directory: self.directory.join(name),
            hello: None,
            joins_frames: false,
        }
    }
}

/// All results so far, and the files to which they are written.
struct Keeper<'a> {
    report: Mutex<Report>,
    json: ResultsFile,
    html: Option<&'a Path>,
}

impl Keeper<'_> {
    /// Adds a result and writes the files.
    fn keep(&self, add: impl FnOnce(&mut Report)) -> Result<()> {
        let mut report = self.report.lock().unwrap_or_else(PoisonError::into_inner);
        add(&mut report);
        self.write(&report, false)
    }

    /// Writes the files, and the tables to `out`.
    fn finish(self, out: &mut dyn Write) -> Result<()> {
        let report = self.report.lock().unwrap_or_else(PoisonError::into_inner);
        self.write(&report, true)?;
        out.write_all(report.page().markdown().as_bytes())
            .map_err(Error::io("cannot write the tables"))
    }

    fn write(&self, report: &Report, complete: bool) -> Result<()> {
        self.json.write(&report.json(), complete)?;
        self.html
            .map_or(Ok(()), |path| replace(path, &report.page().html()))
    }
}

/// Names of all topologies.
fn topologies() -> Vec<String> {
    let names = TOPOLOGIES.iter().map(|(name, _)| *name);
    names.chain([CLUSTER.0]).map(str::to_owned).collect()
}

/// Calls `work` for all methods of forwarding in parallel: each has its own networks.
fn of_all(work: impl Fn(System) -> Result<()> + Sync) -> Result<()> {
    let work = &work;
    thread::scope(|scope| {
        let running: Vec<_> = System::present()
            .into_iter()
            .map(|system| scope.spawn(move || work(system)))
            .collect();
        let mut results = running.into_iter().map(|thread| {
            thread
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        });
        results.try_for_each(|result| result)
    })
}

/// The middle value, or the upper one of the two in the middle; 0 of an empty list.
fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(0.0)
}
