//! Cost of a broker's operations as numbers grow, compared with Mosquitto and a forwarder: rates,
//! CPU time and memory for 10^2 to 10^6 subscriptions, retained messages, topics and connections.
//!
//! Every run has a fresh broker on one core, and all clients on one thread on another core. Systems
//! alternate, and every second pair of runs has the opposite order; ratios are of adjacent runs.

mod cases;
mod crowd;
mod ending;
mod ground;
mod report;
mod traffic;

use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use punctual_measure::{Error, Result};

use self::cases::{CASES, Case};
use self::ground::{Extent, Ground, MOSQUITTO, RELAY, System};
use self::report::Outcome;
use crate::arguments::seconds;
use crate::compare::machine::Machine;
use crate::compare::peers::{self, FLOOR, PUNCTUAL, Setup};
use crate::results_file::ResultsFile;
use crate::sys;

/// Files that a process has open besides its connections.
const SPARE_FILES: u64 = 100;

/// Options of `scale`.
#[derive(Args, Debug)]
pub(crate) struct ScaleArgs {
    /// Cases, several with commas: subscriptions, sessions, retained, reconnect, topics, shared,
    /// mixed, connections, offline, payloads [default: all]
    #[arg(long, value_name = "CASE", value_delimiter = ',')]
    only: Vec<String>,
    /// Sizes, several with commas; a case skips sizes that are too large for it, and mixed and
    /// payloads have sizes of their own
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = report::size,
        default_value = "10^2,10^3,10^4,10^5,10^6")]
    sizes: Vec<u64>,
    /// Runs of each case, size and system, alternating; medians are reported
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=99))]
    pairs: u32,
    /// Clients of `reconnect`
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    clients: u64,
    /// Seconds measured where messages are sent continuously
    #[arg(long, short, value_name = "S", default_value = "1", value_parser = seconds)]
    duration: Duration,
    /// Longest time in seconds of one step of a run, such as all subscriptions; a longer step fails
    #[arg(long, value_name = "S", default_value = "120", value_parser = seconds)]
    patience: Duration,
    /// Core of the brokers
    #[arg(long, value_name = "CORE", default_value_t = 0)]
    broker_core: usize,
    /// Core of the clients
    #[arg(long, value_name = "CORE", default_value_t = 1)]
    clients_core: usize,
    /// Directory for configurations and logs
    #[arg(long, value_name = "DIR", default_value = "target/bench")]
    directory: PathBuf,
    /// File for the results as JSON, written after each case [default: DIR/scale.json]
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

impl ScaleArgs {
    /// Runs all cases; progress goes to standard error, each table to `out` as soon as it is
    /// complete.
    ///
    /// # Errors
    /// A case is not known, our broker is not found, or a file cannot be written. A run that fails
    /// is reported below its table.
    pub(crate) fn run(&self, out: &mut dyn Write) -> Result<()> {
        let cases = self.cases()?;
        if self.patience < self.duration * 3 {
            return Err(Error::Config {
                field: "--patience",
                value: self.patience.as_secs_f64().to_string(),
                remedy: "give three times as long as --duration, or more".to_owned(),
            });
        }
        fs::create_dir_all(&self.directory).map_err(Error::io(format!(
            "cannot create {}",
            self.directory.display()
        )))?;
        let machine = Machine::read();
        let systems = self.systems()?;
        sys::pin_to_core(self.clients_core).map_err(Error::io("cannot pin the clients"))?;
        let files = sys::raise_file_limit().map_err(Error::io("cannot read the file limit"))?;
        let table = Error::io("cannot write the tables");
        self.introduce(&machine, &systems, out).map_err(table)?;
        let file = ResultsFile::new(self.json.as_deref(), &self.directory, "scale.json")?;
        let mut outcomes = Vec::new();
        for case in cases {
            let outcome = self.outcome(case, &systems, files);
            out.write_all(outcome.markdown().as_bytes())
                .and_then(|()| out.flush())
                .map_err(Error::io("cannot write the tables"))?;
            outcomes.push(outcome);
            file.write(&self.json(&machine, &systems, &outcomes), false)?;
        }
        file.write(&self.json(&machine, &systems, &outcomes), true)
    }

    fn cases(&self) -> Result<Vec<&'static Case>> {
        let unknown = |word: &&String| !CASES.iter().any(|case| case.is_meant_by(word));
        if let Some(unknown) = self.only.iter().find(unknown) {
            let names: Vec<&str> = CASES.iter().map(|case| case.name).collect();
            return Err(Error::Config {
                field: "--only",
                value: unknown.clone(),
                remedy: format!("choose from {}", names.join(", ")),
            });
        }
        let wanted = |case: &&Case| {
            self.only.is_empty() || self.only.iter().any(|word| case.is_meant_by(word))
        };
        Ok(CASES.iter().filter(wanted).collect())
    }

    fn systems(&self) -> Result<Vec<System>> {
        let find = |name| System::find(name, &self.directory);
        let ours = find(PUNCTUAL).ok_or_else(peers::punctual_is_missing)?;
        let mosquitto = find(MOSQUITTO);
        if mosquitto.is_none() {
            eprintln!(
                "{MOSQUITTO} is not found and left out: install it, or name it in MOSQUITTO_BIN"
            );
        }
        let others = [mosquitto, find(FLOOR), find(RELAY)];
        Ok(std::iter::once(ours)
            .chain(others.into_iter().flatten())
            .collect())
    }

    /// All runs of one case.
    fn outcome(&self, case: &Case, systems: &[System], files: u64) -> Outcome {
        let systems: Vec<&System> = systems
            .iter()
            .filter(|system| case.systems.contains(&system.name()))
            .collect();
        let names = systems.iter().map(|system| system.name()).collect();
        let mut outcome = Outcome::new(case.name, case.what, case.of, names);
        for size in case.sizes(&self.sizes) {
            for pair in 0..self.pairs as usize {
                let mut turns: Vec<usize> = (0..systems.len()).collect();
                if pair % 2 == 1 {
                    turns.reverse();
                }
                for turn in turns {
                    if outcome.has_failed(size, turn) {
                        continue;
                    }
                    let run = self.run_once(case, size, systems[turn], files);
                    let run = run.map_err(|error| error.to_string());
                    let name = systems[turn].name();
                    match &run {
                        Ok(measures) => {
                            eprintln!("{} | {size} | {name} | {pair} | {measures:.3?}", case.name);
                        }
                        Err(why) => eprintln!("{} | {size} | {name} | {pair} | {why}", case.name),
                    }
                    outcome.add(size, turn, pair, run);
                }
            }
        }
        outcome
    }

    fn run_once(
        &self,
        case: &Case,
        size: u64,
        system: &System,
        files: u64,
    ) -> Result<report::Measures> {
        let connections = match case.name {
            "connections" => size,
            "reconnect" => self.clients,
            _ => 1000,
        };
        if connections + SPARE_FILES > files {
            return Err(Error::Config {
                field: "connections",
                value: connections.to_string(),
                remedy: format!("raise the limit of open files (ulimit -n), which is {files}"),
            });
        }
        let setup = Setup {
            core: self.broker_core,
            directory: self.directory.clone(),
            further: Vec::new(),
        };
        let extent = Extent {
            duration: self.duration,
            patience: self.patience,
            clients: self.clients,
        };
        let ground = Ground::start(system, &setup, extent)?;
        (case.run)(&ground, size)
    }

    fn introduce(
        &self,
        machine: &Machine,
        systems: &[System],
        out: &mut dyn Write,
    ) -> std::io::Result<()> {
        let titles: Vec<String> = systems.iter().map(System::title).collect();
        writeln!(
            out,
            "`punctual bench scale` on {}: {}, {} cores, Linux {}, load average {}. {}. Medians of {} runs, \
             ratios of runs next to each other; a fresh broker for each, on one core. Memory is RssAnon once the \
             broker has nothing to do, above what it was before. Messages have 16 bytes and QoS 0 where nothing \
             else is said, at most 1000 of them or 4 MiB are undelivered, and they are counted for {} s after a \
             round of all topics. An end is measured by a client that pings 0.2 ms after each answer: prompt is \
             within 1 ms, idle is less than half of the core in 10 ms. The floor forwards by exact topic, the \
             relay copies bytes.",
            machine.date,
            machine.cpu,
            machine.cores,
            machine.kernel,
            machine.load_average,
            titles.join(", "),
            self.pairs,
            self.duration.as_secs_f64(),
        )?;
        out.flush()
    }

    fn json(
        &self,
        machine: &Machine,
        systems: &[System],
        outcomes: &[Outcome],
    ) -> serde_json::Value {
        let titles: Vec<String> = systems.iter().map(System::title).collect();
        serde_json::json!({
            "machine": machine,
            "systems": titles,
            "clients": self.clients,
            "duration_s": self.duration.as_secs_f64(),
            "cases": outcomes,
        })
    }
}
