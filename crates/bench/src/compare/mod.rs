//! Compares several brokers in one run of the command, on one machine, by medians over repetitions.
//!
//! Every run gets a fresh broker process pinned to one core while the generator has another.
//! Brokers alternate within each repetition of a case, so that a temporary slowdown of the machine
//! affects all of them.

mod cases;
pub(crate) mod document;
pub(crate) mod machine;
pub(crate) mod peers;
pub(crate) mod results;
pub(crate) mod table;

use std::fs;
use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use clap::Args;

use self::cases::{Case, Extent, Subject};
use self::machine::Machine;
use self::peers::{BrokerProgram, FLOOR, PEERS, PUNCTUAL, Setup};
use self::results::Results;
use self::table::Comparison;
use crate::arguments::seconds;
use crate::results_file::ResultsFile;
use punctual_measure::load::{self, Options, Report};
use punctual_measure::{Error, Result};

/// `SCHED_FIFO` priority of realtime cases, below the kernel's threaded interrupts (50).
const REALTIME_PRIORITY: u8 = 40;

/// Pause between the start of a broker and its first client.
const SETTLE: Duration = Duration::from_millis(200);

/// Options of `bench compare`.
#[derive(Args, Debug)]
pub(crate) struct CompareArgs {
    /// Brokers to compare [default: all that are found]
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    brokers: Vec<String>,
    /// Only cases whose title contains this, such as 1→1 or factory; repeatable
    #[arg(long = "case", value_name = "TEXT")]
    filters: Vec<String>,
    /// A short check: floor, punctual and mosquitto, the main cases once, one second each
    #[arg(long)]
    quick: bool,
    /// Runs of each case and broker; medians are reported [default: 3; quick: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=99))]
    repeat: Option<u32>,
    /// Seconds measured per throughput run [default: 3; quick: 1]
    #[arg(long, short, value_name = "S", value_parser = seconds)]
    duration: Option<Duration>,
    /// Seconds measured per latency run [default: 10; quick: 1]
    #[arg(long, value_name = "S", value_parser = seconds)]
    paced_duration: Option<Duration>,
    /// Idle connections [default: 10000; quick: 1000]
    #[arg(long, value_name = "N")]
    connections: Option<u32>,
    /// Payload bytes of throughput and latency runs
    #[arg(long, value_name = "BYTES", default_value_t = 64)]
    payload: usize,
    /// Core for the broker
    #[arg(long, value_name = "CORE", default_value_t = 0)]
    broker_core: usize,
    /// Core for the generator
    #[arg(long, value_name = "CORE", default_value_t = 1)]
    generator_core: usize,
    /// Directory for configurations and logs; peers' programs are looked for in its bin/
    #[arg(long, value_name = "DIR", default_value = "target/bench")]
    directory: PathBuf,
    /// Markdown file whose generated part is replaced
    #[arg(long, value_name = "FILE")]
    document: Option<PathBuf>,
    /// File for all results as JSON, written after each run [default: DIR/compare.json]
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Fail if punctual loses, duplicates or reorders a message, or if one of its runs fails
    #[arg(long)]
    strict: bool,
}

impl CompareArgs {
    /// Runs the comparison; progress goes to standard error, the tables to `out`.
    ///
    /// # Errors
    /// A chosen broker is not found, a file cannot be written, or `--strict` has found a fault. The
    /// document reports runs that fail.
    pub(crate) fn run(&self, out: &mut dyn Write) -> Result<()> {
        fs::create_dir_all(&self.directory).map_err(Error::io(format!(
            "cannot create {}",
            self.directory.display()
        )))?;
        let brokers = self.find_brokers()?;
        let extent = self.extent();
        let mut cases = cases::cases(self.quick, self.payload);
        cases.retain(|case| {
            self.filters.is_empty() || self.filters.iter().any(|f| case.title.contains(f))
        });
        let machine = Machine::read();
        let mut results = Results::default();
        let file = ResultsFile::new(self.json.as_deref(), &self.directory, "compare.json")?;
        let repetitions = self.repeat.unwrap_or(if self.quick { 1 } else { 3 });
        for case in &cases {
            for repetition in 1..=repetitions {
                for broker in &brokers {
                    if !broker.peer.takes_part(case) {
                        continue;
                    }
                    let outcome = self.run_once(broker, case, extent);
                    progress(broker, case, repetition, &outcome);
                    let outcome = outcome.map_err(|error| error.to_string());
                    results.add(&case.title, broker.peer.name, outcome);
                    file.write(&json(&machine, &brokers, &results), false)?;
                }
            }
        }

        let markdown = Comparison {
            machine: &machine,
            brokers: &brokers,
            cases: &cases,
            results: &results,
            extent,
            repetitions,
        }
        .markdown();
        document::publish(self.document.as_deref(), &markdown, out)?;
        file.write(&json(&machine, &brokers, &results), true)?;
        if self.strict {
            check_strictly(&results)?;
        }
        Ok(())
    }

    fn extent(&self) -> Extent {
        let quick = self.quick;
        let pick = |given: Option<Duration>, full: f64, short: f64| {
            given.unwrap_or(Duration::from_secs_f64(if quick { short } else { full }))
        };
        Extent {
            duration: pick(self.duration, 3.0, 1.0),
            paced_duration: pick(self.paced_duration, 10.0, 1.0),
            warm_up: pick(None, 1.0, 0.3),
            syscalls: pick(None, 0.5, 0.2),
            connections: self
                .connections
                .unwrap_or(if quick { 1000 } else { 10_000 }),
        }
    }

    fn find_brokers(&self) -> Result<Vec<BrokerProgram>> {
        if let Some(unknown) = self
            .brokers
            .iter()
            .find(|name| PEERS.iter().all(|peer| peer.name != name.as_str()))
        {
            let known: Vec<&str> = PEERS.iter().map(|peer| peer.name).collect();
            return Err(Error::Config {
                field: "--brokers",
                value: unknown.clone(),
                remedy: format!("choose from {}", known.join(", ")),
            });
        }
        let bin = self.directory.join("bin");
        let mut brokers = Vec::new();
        for peer in PEERS {
            let named = self.brokers.iter().any(|name| name == peer.name);
            let wanted = if self.brokers.is_empty() {
                !self.quick || [FLOOR, PUNCTUAL, "mosquitto"].contains(&peer.name)
            } else {
                named
            };
            if !wanted {
                continue;
            }
            match peer.find(&bin) {
                Some(found) => brokers.push(found),
                None if named => {
                    return Err(Error::Config {
                        field: "--brokers",
                        value: peer.name.to_owned(),
                        remedy: format!(
                            "install it in PATH or {}, or name its program in {}",
                            bin.display(),
                            peer.variable
                        ),
                    });
                }
                None => {}
            }
        }
        Ok(brokers)
    }

    fn run_once(&self, broker: &BrokerProgram, case: &Case, extent: Extent) -> Result<Report> {
        let setup = Setup {
            core: self.broker_core,
            directory: self.directory.clone(),
            further: Vec::new(),
        };
        let fifo = if case.realtime { REALTIME_PRIORITY } else { 0 };
        let running = broker.start(&setup, fifo)?;
        thread::sleep(SETTLE);
        let address = SocketAddr::from(([127, 0, 0, 1], running.port(case.version)));
        let paced = matches!(case.subject, Subject::Latency | Subject::RoundTrip);
        load::run(&Options {
            version: case.version,
            qos: case.qos,
            pace: case.pace,
            payload: case.payload,
            warm_up: extent.warm_up,
            duration: match case.subject {
                _ if paced => extent.paced_duration,
                Subject::Idle => Duration::from_secs(1),
                _ => extent.duration,
            },
            connections: extent.connections,
            broker_pid: Some(running.pid()),
            syscalls: extent.syscalls,
            core: Some(self.generator_core),
            fifo,
            ..Options::new(case.scenario, address)
        })
    }
}

/// One line per run on standard error, because a comparison takes long.
fn progress(broker: &BrokerProgram, case: &Case, repetition: u32, outcome: &Result<Report>) {
    let outcome = match outcome {
        Err(error) => error.to_string(),
        Ok(report) => {
            let mut text = match case.subject {
                Subject::Throughput => format!("{:.0} msg/s", report.delivered_per_s),
                Subject::Latency => report.latency.map_or_else(String::new, |l| l.to_string()),
                Subject::RoundTrip => report
                    .round_trip
                    .map_or_else(String::new, |l| l.to_string()),
                Subject::Idle => report
                    .idle
                    .map_or_else(String::new, |idle| idle.to_string()),
            };
            if !report.is_clean() {
                text = format!("{text}, {}", report.faults());
            }
            text
        }
    };
    eprintln!(
        "{} | {} | {repetition} | {outcome}",
        case.title, broker.peer.name
    );
}

fn json(machine: &Machine, brokers: &[BrokerProgram], results: &Results) -> serde_json::Value {
    let versions: serde_json::Map<String, serde_json::Value> = brokers
        .iter()
        .map(|broker| (broker.peer.name.to_owned(), broker.version.clone().into()))
        .collect();
    serde_json::json!({
        "machine": machine,
        "versions": versions,
        "results": results.cells,
    })
}

fn check_strictly(results: &Results) -> Result<()> {
    for cell in results.cells.iter().filter(|cell| cell.broker == PUNCTUAL) {
        let unclean = cell.reports.iter().find(|report| !report.is_clean());
        let faults = unclean.map(Report::faults);
        if let Some(what) = cell.errors.first().cloned().or(faults) {
            return Err(Error::Strict {
                what: format!("{PUNCTUAL}, {}: {what}", cell.case),
            });
        }
    }
    Ok(())
}
