//! `bench durability`: the cost of durable acknowledgements, and whether acknowledged data
//! survives.
//!
//! All figures are ratios within one run of the command: the durability levels of our broker
//! alternate with each other and with Mosquitto's kinds of persistence, each with a fresh process
//! and an empty directory, and medians are compared. The broker has one core, the clients have
//! another.

mod client;
mod loss;
mod plain;
mod report;
mod restart;
mod systems;
mod throughput;

use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};

use self::loss::Loss;
use self::plain::Bulk;
use self::report::Results;
use self::restart::Size;
use self::systems::{BATCHED, NONE, SYSTEMS, System};
use self::throughput::CASES;
use crate::arguments::seconds;
use crate::compare::document;
use crate::compare::machine::Machine;
use crate::results_file::{ResultsFile, replace};
use punctual_measure::{Error, Result};

/// Values of `store.group_delay` and `store.group_bytes` in the sweep.
const DELAYS: [&str; 5] = ["0us", "250us", "1ms", "2ms", "5ms"];
const BYTES: [&str; 3] = ["256KiB", "1MiB", "4MiB"];

/// An experiment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Experiment {
    /// Messages per second, and latency of acknowledgements, at each durability level
    Throughput,
    /// Plain and urgent traffic beside a fully loaded store (needs root, for `SCHED_FIFO`)
    Plain,
    /// Time from the start of a killed broker to the first CONNACK
    Restart,
    /// Acknowledged messages that are lost by kill -9
    Loss,
    /// Throughput and latency of acknowledgements by `store.group_delay` and `store.group_bytes`
    Sweep,
}

/// Options of `bench durability`.
#[derive(Args, Debug)]
pub(crate) struct DurabilityArgs {
    /// What to measure [default: all but sweep]
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    experiments: Vec<Experiment>,
    /// Durability levels and peers: no-store, none, batched, sync, mosquitto, mosquitto-default,
    /// mosquitto-autosave, rmqtt-sessions [default: all whose program is found]
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    systems: Vec<String>,
    /// Only cases of throughput and sweep whose title contains this; repeatable
    #[arg(long = "case", value_name = "TEXT")]
    cases: Vec<String>,
    /// Runs of each case and system; medians are reported
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=99))]
    repeat: u32,
    /// Seconds measured per run
    #[arg(long, short, value_name = "S", default_value = "2", value_parser = seconds)]
    duration: Duration,
    /// Sessions in the restart experiment
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    sessions: u32,
    /// Stored messages in the restart experiment
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    messages: u64,
    /// Payload bytes of the stored messages
    #[arg(long, value_name = "BYTES", default_value_t = 200)]
    payload: usize,
    /// Core for the broker
    #[arg(long, value_name = "CORE", default_value_t = 0)]
    broker_core: usize,
    /// Core for the clients
    #[arg(long, value_name = "CORE", default_value_t = 1)]
    generator_core: usize,
    /// Directory for configurations and logs; peers' programs are looked for in its bin/
    #[arg(long, value_name = "DIR", default_value = "target/bench")]
    directory: PathBuf,
    /// Directory on the disk that is measured; the created files are removed
    #[arg(long, value_name = "DIR", default_value = "target/bench/stores")]
    data: PathBuf,
    /// Markdown file whose generated part is replaced
    #[arg(long, value_name = "FILE")]
    document: Option<PathBuf>,
    /// File for the tables as an HTML page
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// File for all results as JSON, written after each run [default: DIR/durability.json]
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Writes the results so far to files.
type Keep<'a> = &'a dyn Fn(&Results) -> Result<()>;

impl DurabilityArgs {
    /// Runs the experiments; progress goes to standard error, the tables to `out`.
    ///
    /// # Errors
    /// A broker is not found or does not start, or files cannot be written.
    pub(crate) fn run(&self, out: &mut dyn Write) -> Result<()> {
        for directory in [&self.directory, &self.data] {
            fs::create_dir_all(directory)
                .map_err(Error::io(format!("cannot create {}", directory.display())))?;
        }
        let file = ResultsFile::new(self.json.as_deref(), &self.directory, "durability.json")?;
        let keep = |results: &Results| file.write(&results.json(), false);
        let mut results = Results::new(Machine::read(), self.repeat, self.duration);
        let systems = self.systems()?;
        results.systems = systems.iter().map(|it| it.found.clone()).collect();
        if self.wants(Experiment::Throughput) {
            self.throughput(&systems, &mut results, &keep)?;
        }
        if self.wants(Experiment::Plain) {
            self.plain(&systems, &mut results, &keep)?;
        }
        if self.wants(Experiment::Restart) {
            self.restart(&systems, &mut results, &keep)?;
        }
        if self.wants(Experiment::Loss) {
            self.loss(&systems, &mut results, &keep)?;
        }
        if self.experiments.contains(&Experiment::Sweep) {
            self.sweep(&mut results, &keep)?;
        }
        file.write(&results.json(), true)?;
        self.write(&results, out)
    }

    fn wants(&self, experiment: Experiment) -> bool {
        let all_but_sweep = self.experiments.is_empty() && experiment != Experiment::Sweep;
        all_but_sweep || self.experiments.contains(&experiment)
    }

    fn system(&self, name: &str, store: &str) -> Option<System> {
        let peer = SYSTEMS.iter().find(|peer| peer.name == name)?;
        let core = self.broker_core;
        System::find(peer, &self.directory, &self.data, core, store)
    }

    fn systems(&self) -> Result<Vec<System>> {
        let mut systems = Vec::new();
        let names = SYSTEMS.iter().map(|peer| peer.name);
        let wanted: Vec<&str> = match self.systems.is_empty() {
            true => names.collect(),
            false => self.systems.iter().map(String::as_str).collect(),
        };
        for name in wanted {
            match self.system(name, "") {
                Some(system) => systems.push(system),
                None if self.systems.is_empty() => eprintln!("{name} is not found: left out"),
                None => {
                    return Err(Error::Config {
                        field: "--systems",
                        value: name.to_owned(),
                        remedy: "write one that is named in --help and installed".to_owned(),
                    });
                }
            }
        }
        Ok(systems)
    }

    /// Whether the user chose a case of throughput or sweep.
    fn wants_case(&self, title: &str) -> bool {
        self.cases.is_empty() || self.cases.iter().any(|part| title.contains(part))
    }

    fn throughput(&self, systems: &[System], results: &mut Results, keep: Keep<'_>) -> Result<()> {
        for case in CASES.iter().filter(|case| self.wants_case(case.title)) {
            for round in 1..=self.repeat {
                for system in systems {
                    let run = case.run(system, self.duration, self.generator_core)?;
                    eprintln!(
                        "{}, {}, {round}: {:.0} msg/s",
                        case.title,
                        system.name(),
                        run.report.delivered_per_s
                    );
                    results.add_throughput(case.title, system.name(), run);
                    keep(results)?;
                }
            }
        }
        Ok(())
    }

    fn plain(&self, systems: &[System], results: &mut Results, keep: Keep<'_>) -> Result<()> {
        let named = |name| systems.iter().find(|system| system.name() == name);
        let (Some(none), Some(batched)) = (named(NONE), named(BATCHED)) else {
            return Ok(());
        };
        for round in 1..=self.repeat {
            let core = self.generator_core;
            let run = plain::run(batched, Bulk::All, self.duration, core)?;
            let rate = run.bulk.delivered_per_s;
            eprintln!("plain beside {rate:.0} msg/s of bulk, {round}");
            results.plain.batched.push(run);
            let run = plain::run(none, Bulk::Rate(rate.max(1.0)), self.duration, core)?;
            results.plain.none.push(run);
            keep(results)?;
        }
        Ok(())
    }

    fn restart(&self, systems: &[System], results: &mut Results, keep: Keep<'_>) -> Result<()> {
        let size = Size {
            sessions: self.sessions,
            messages: self.messages,
            payload: self.payload,
        };
        for name in [BATCHED, "mosquitto-default"] {
            let Some(system) = systems.iter().find(|system| system.name() == name) else {
                continue;
            };
            eprintln!("restart, {name}: {} messages", size.messages);
            let seen = restart::run(system, size, &[false, true, false])?;
            results.restarts.extend(seen);
            keep(results)?;
        }
        Ok(())
    }

    fn loss(&self, systems: &[System], results: &mut Results, keep: Keep<'_>) -> Result<()> {
        for system in systems {
            let mut loss = Loss::default();
            for round in 0..self.repeat {
                // The time of the kill varies, so that it is not in phase with periodic work of the
                // broker.
                let time = self.duration / 2 + self.duration / (2 * self.repeat) * round;
                loss.round(system, time)?;
            }
            eprintln!(
                "kill -9, {}: {} of {} lost",
                system.name(),
                loss.lost,
                loss.acknowledged
            );
            results.losses.push((system.name(), loss));
            keep(results)?;
        }
        Ok(())
    }

    fn sweep(&self, results: &mut Results, keep: Keep<'_>) -> Result<()> {
        for _ in 0..self.repeat {
            for bytes in BYTES {
                for delay in DELAYS {
                    let store = format!("group_delay = \"{delay}\"\ngroup_bytes = \"{bytes}\"\n");
                    let Some(system) = self.system(BATCHED, &store) else {
                        return Ok(());
                    };
                    let cases = CASES.iter().filter(|case| self.wants_case(case.title));
                    for case in cases.filter(|case| case.title != throughput::CLEAN) {
                        let run = case.run(&system, self.duration, self.generator_core)?;
                        eprintln!(
                            "{delay}, {bytes}, {}: {:.0} msg/s",
                            case.title, run.report.delivered_per_s
                        );
                        results.add_sweep(delay, bytes, case.title, run);
                        keep(results)?;
                    }
                }
            }
        }
        Ok(())
    }

    fn write(&self, results: &Results, out: &mut dyn Write) -> Result<()> {
        let page = results.page();
        let markdown = page.markdown();
        // The document has a title of its own.
        let tables = markdown.split_once('\n').map_or("", |(_, tables)| tables);
        write!(out, "{markdown}").map_err(Error::io("cannot write the tables"))?;
        if let Some(path) = &self.document {
            // The document has the tables below a second-level heading.
            document::update(path, &tables.replace("\n## ", "\n### "))?;
        }
        self.html
            .as_deref()
            .map_or(Ok(()), |path| replace(path, &page.html()))
    }
}
