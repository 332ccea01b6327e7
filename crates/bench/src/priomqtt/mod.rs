//! The experiments of the PrioMQTT paper (section 5), repeated in network namespaces.
//!
//! Every run gets a fresh network, broker and stations. Brokers alternate within each repetition,
//! so that a disturbance of the machine affects all of them. The kernel ends child processes with
//! this process, and removes each namespace after its last process.

mod brokers;
mod cell;
mod link;
mod network;
mod paper;
mod queue;
mod report;
mod results;
mod run;
mod station;
mod talk;

use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};

use self::brokers::{BrokerProgram, PUNCTUAL, Placement, VARIANTS};
use self::cell::Traffic;
use self::network::{RATE, Switches};
use self::report::{BrokerNote, Report, Setting};
use self::results::{Case, Experiment, Results, RunResult};
use self::run::Setup;
use crate::arguments::seconds;
use crate::compare::machine::Machine;
use crate::results_file::{ResultsFile, replace};
use punctual_measure::{Error, Result};
use punctual_testbed::netns::Namespace;

pub(crate) use self::station::serve as serve_station;

/// Name of the hidden subcommand that runs a station.
pub(crate) const STATION_COMMAND: &str = "priomqtt-station";

/// `SCHED_FIFO` priorities: the broker's is higher, so that it serves the stations before they run.
const BROKER_FIFO: u8 = 60;
const STATION_FIFO: u8 = 50;

/// Payload of a bulk message, bytes: the message fills a frame.
const BULK_PAYLOAD: usize = 1400;

/// Payload of the cell's messages in the bulk experiment, bytes.
const BULK_CELL_PAYLOAD: usize = 500;

/// Factor on the duration of a run with `--paper`, for clocks slower than nominal.
const SAMPLE_MARGIN: f64 = 1.005;

/// The experiments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Round trips with each payload: Figs 6 to 8, Table 3
    Rtt,
    /// Time in the queue with 2 and 5 subscribers: Fig. 9, Table 2
    Queue,
    /// The highest priority alone and beside a saturating bulk flow
    Bulk,
}

/// Options of `bench priomqtt`.
#[derive(Args, Debug)]
pub(crate) struct PriomqttArgs {
    /// Experiments to run [default: all]
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    only: Vec<Part>,
    /// Brokers: punctual, punctual-udp, punctual-edf, punctual-fifo, mosquitto, mosquitto-nagle,
    /// floor [default: punctual, punctual-udp, mosquitto, mosquitto-nagle]
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    brokers: Vec<String>,
    /// Payload bytes of the round-trip experiments [default: 100,500,1000; short: 1000]
    #[arg(long, value_name = "BYTES", value_delimiter = ',')]
    payloads: Vec<usize>,
    /// Smoke test: everything works and no message is lost; one run of one second per case
    #[arg(long, conflicts_with = "paper")]
    short: bool,
    /// Take as many samples as the paper: 150 s per round-trip run, one hour per queue run
    #[arg(long)]
    paper: bool,
    /// Runs of each case and broker; the report shows medians [default: 3; short: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=99))]
    repeat: Option<u32>,
    /// Measured seconds per run [default: 20, queue 60; short: 1]
    #[arg(long, short, value_name = "S", value_parser = seconds)]
    duration: Option<Duration>,
    /// CPU core for the broker
    #[arg(long, value_name = "CORE", default_value_t = 0)]
    broker_core: usize,
    /// CPU core for the stations
    #[arg(long, value_name = "CORE", default_value_t = 1)]
    station_core: usize,
    /// Run broker and stations on any core and in the normal scheduling class
    #[arg(long)]
    unpinned: bool,
    /// Directory for configurations, logs and the report; executables of other brokers are searched
    /// for in its bin/
    #[arg(long, value_name = "DIR", default_value = "target/bench")]
    directory: PathBuf,
    /// HTML file for the report with its charts [default: DIR/priomqtt.html]
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// JSON file for all results, written after each run [default: DIR/priomqtt.json]
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Fail if a run fails, or if the floor or punctual loses, duplicates or reorders a message of
    /// the cell; implied by --short
    #[arg(long)]
    strict: bool,
}

impl PriomqttArgs {
    /// Runs the experiments; progress goes to standard error, the tables to `out`.
    ///
    /// # Errors
    /// Namespaces cannot be created (root is required), a named broker is not found, files cannot
    /// be written, or `--strict` applies. Without `--strict`, a failed run is only reported.
    pub(crate) fn run(&self, out: &mut dyn Write) -> Result<()> {
        Namespace::check()?;
        fs::create_dir_all(&self.directory).map_err(Error::io(format!(
            "cannot create {}",
            self.directory.display()
        )))?;
        let machine = Machine::read();
        let (brokers, absent) = self.find_brokers()?;
        let file = ResultsFile::new(self.json.as_deref(), &self.directory, "priomqtt.json")?;
        let mut results = Results::default();
        for part in [Part::Rtt, Part::Queue, Part::Bulk] {
            if self.only.is_empty() || self.only.contains(&part) {
                let keep = |results: &Results| {
                    file.write(&self.report(&machine, &brokers, &absent, results), false)
                };
                self.experiment(part, &brokers, &mut results, &keep)?;
            }
        }
        let report = self.report(&machine, &brokers, &absent, &results);
        file.write(&report, true)?;
        let html = self.html.clone();
        let html = html.unwrap_or_else(|| self.directory.join("priomqtt.html"));
        replace(&html, &report.html())?;
        eprintln!("written: {}", html.display());
        write!(out, "{}", report.markdown()).map_err(Error::io("cannot write the tables"))?;
        if self.strict || self.short {
            check_strictly(&results)?;
        }
        Ok(())
    }

    fn report<'a>(
        &self,
        machine: &'a Machine,
        brokers: &[BrokerProgram],
        absent: &[String],
        results: &'a Results,
    ) -> Report<'a> {
        Report {
            machine,
            setting: self.setting(),
            brokers: brokers.iter().map(BrokerNote::of).collect(),
            results: &results.cells,
            all: results,
            absent: absent.to_vec(),
        }
    }

    /// Runs one experiment, and calls `keep` after each run.
    fn experiment(
        &self,
        part: Part,
        brokers: &[BrokerProgram],
        all: &mut Results,
        keep: &dyn Fn(&Results) -> Result<()>,
    ) -> Result<()> {
        let cases: Vec<(Experiment, usize, bool)> = match part {
            Part::Rtt => {
                let payloads = self.payloads().into_iter();
                payloads
                    .map(|payload| (Experiment::RoundTrip, payload, false))
                    .collect()
            }
            Part::Queue => [false, true]
                .map(|all| (Experiment::Queue, paper::QUEUE_PAYLOAD, all))
                .into(),
            Part::Bulk => [Experiment::Idle, Experiment::Bulk]
                .map(|experiment| (experiment, BULK_CELL_PAYLOAD, false))
                .into(),
        };
        let repetitions = match part {
            Part::Queue => 1,
            _ => self.repetitions(),
        };
        for repetition in 1..=repetitions {
            for &(experiment, payload, all_subscribe) in &cases {
                for broker in brokers {
                    // Without queue statistics of the broker there is nothing to measure.
                    if experiment == Experiment::Queue && !broker.variant.has_metrics {
                        continue;
                    }
                    let setup = Setup {
                        directory: &self.directory,
                        broker: self.placement(self.broker_core, BROKER_FIFO),
                        stations: self.placement(self.station_core, STATION_FIFO),
                        switches: match part {
                            Part::Bulk => Switches::Priority,
                            _ => Switches::Fifo,
                        },
                        warm_up: self.warm_up(),
                        duration: self.duration_of(part),
                    };
                    let traffic = Traffic {
                        payload,
                        all_subscribe,
                        urgency: broker.variant.urgency,
                        bulk: (experiment == Experiment::Bulk).then_some(BULK_PAYLOAD),
                        seed: u64::from(repetition) << 8,
                    };
                    let case = Case {
                        experiment,
                        broker: broker.variant.name,
                        payload,
                        subscribers: traffic.subscribers(),
                    };
                    let outcome = setup.run(broker, traffic).map_err(|e| e.to_string());
                    progress(&case, repetition, &outcome);
                    all.add(&case, outcome);
                    keep(all)?;
                }
            }
        }
        Ok(())
    }

    /// The brokers to measure, and the reasons why others are left out.
    fn find_brokers(&self) -> Result<(Vec<BrokerProgram>, Vec<String>)> {
        let names: Vec<&str> = VARIANTS.iter().map(|variant| variant.name).collect();
        if let Some(unknown) = self.brokers.iter().find(|b| !names.contains(&b.as_str())) {
            return Err(Error::Config {
                field: "--brokers",
                value: unknown.clone(),
                remedy: format!("choose from {}", names.join(", ")),
            });
        }
        let bin = self.directory.join("bin");
        let mut brokers = Vec::new();
        let mut absent = Vec::new();
        for variant in VARIANTS {
            let named = self.brokers.iter().any(|name| name == variant.name);
            let wanted = named || (self.brokers.is_empty() && variant.by_default);
            if !wanted {
                continue;
            }
            match variant.find(&bin) {
                Some(found) => brokers.push(found),
                None if named => {
                    return Err(Error::Config {
                        field: "--brokers",
                        value: variant.name.to_owned(),
                        remedy: format!("install it in PATH or {}", bin.display()),
                    });
                }
                None => absent.push(format!(
                    "`{}`: not found in PATH or {}",
                    variant.name,
                    bin.display()
                )),
            }
        }
        Ok((brokers, absent))
    }

    fn payloads(&self) -> Vec<usize> {
        match (&self.payloads[..], self.short) {
            ([], true) => vec![1000],
            ([], false) => paper::PAYLOADS.into(),
            (given, _) => given.to_vec(),
        }
    }

    fn repetitions(&self) -> u32 {
        self.repeat.unwrap_or(if self.short { 1 } else { 3 })
    }

    fn duration_of(&self, part: Part) -> Duration {
        let seconds = |samples: u64| samples as f64 / 1000.0 * SAMPLE_MARGIN;
        let usual = match (part, self.short, self.paper) {
            (_, true, _) => 1.0,
            (Part::Queue, _, true) => seconds(paper::QUEUE_SAMPLES),
            (_, _, true) => seconds(paper::ROUND_TRIP_SAMPLES),
            (Part::Queue, ..) => 60.0,
            _ => 20.0,
        };
        self.duration
            .unwrap_or_else(|| Duration::from_secs_f64(usual))
    }

    fn warm_up(&self) -> Duration {
        Duration::from_millis(if self.short { 300 } else { 1000 })
    }

    fn placement(&self, core: usize, fifo: u8) -> Placement {
        if self.unpinned {
            Placement {
                core: None,
                fifo: 0,
            }
        } else {
            Placement {
                core: Some(core),
                fifo,
            }
        }
    }

    fn setting(&self) -> Setting {
        let scheduling = if self.unpinned {
            "Nothing pinned, normal scheduling class".to_owned()
        } else {
            format!(
                "Broker on core {} under `SCHED_FIFO` {BROKER_FIFO}, stations on core {} under \
                 {STATION_FIFO}, bulk stations in the normal class",
                self.broker_core, self.station_core
            )
        };
        Setting {
            round_trip_s: self.duration_of(Part::Rtt).as_secs_f64(),
            queue_s: self.duration_of(Part::Queue).as_secs_f64(),
            bulk_s: self.duration_of(Part::Bulk).as_secs_f64(),
            warm_up_s: self.warm_up().as_secs_f64(),
            repetitions: self.repetitions(),
            payloads: self.payloads(),
            bulk_payload: BULK_PAYLOAD,
            link_bit_per_s: RATE,
            scheduling,
        }
    }
}

/// Prints one line per run on standard error: the experiments take long.
fn progress(case: &Case, repetition: u32, outcome: &std::result::Result<RunResult, String>) {
    let outcome = match outcome {
        Err(error) => error.clone(),
        Ok(run) => {
            let means = run.couples.iter().map(|couple| {
                let round_trip = couple.round_trip.as_ref();
                round_trip.map_or_else(
                    || format!("{}: none", couple.topics),
                    |l| format!("{}: {:.0} / {:.0}", couple.topics, l.mean_us, l.p99_us),
                )
            });
            let means: Vec<String> = means.collect();
            format!(
                "mean / p99 µs {}, {} of {} lost",
                means.join("; "),
                run.faults.lost,
                run.faults.expected
            )
        }
    };
    eprintln!(
        "{} {} B, {} subscribers | {} | {repetition} | {outcome}",
        report::what(case.experiment),
        case.payload,
        case.subscribers,
        case.broker
    );
}

/// Fails unless every run succeeded and all runs of Punctual and the floor are free of faults.
fn check_strictly(results: &Results) -> Result<()> {
    for cell in &results.cells {
        let case = &cell.case;
        let what = format!("{}, {}", case.broker, report::what(case.experiment));
        if let Some(error) = cell.errors.first() {
            return Err(Error::Strict {
                what: format!("{what}: {error}"),
            });
        }
        let faults = cell.faults();
        let ours = case.broker.starts_with(PUNCTUAL) || case.broker == "floor";
        if ours && !faults.is_clean() {
            return Err(Error::Strict {
                what: format!("{what}: {faults:?}"),
            });
        }
    }
    Ok(())
}
