//! Networks on one machine: hosts, switches and links of a network file in network namespaces,
//! with a real broker, publishers and subscribers, and what nobody declared beside them.
//!
//! What a run shows is compared with the bounds of the analysis, path by path. A shaped link
//! delivers a frame when its transmission would *begin*, so the transmission times of a path are
//! added to what was measured. Nothing has a name outside the run: namespaces are held by file
//! descriptors and programs end with this one, so nothing stays behind even when it is killed.

mod background;
mod broker;
mod experiment;
mod fabric;
mod layout;
mod load;
mod observe;
mod openflow;
mod papers;
mod recovery;
mod report;
mod results;
mod stamp;
mod switching;
mod tools;
mod ways;

use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use punctual_model::network::{Document, Network};

use self::background::Background;
use self::broker::Kind;
use self::experiment::Experiment;
use self::fabric::Driver;
pub(crate) use self::papers::Paper;
pub use self::papers::PapersArgs;
pub use self::recovery::RecoveryArgs;
use self::report::Report;
use self::results::Verdict;
use self::tools::Wanted;
use crate::cli::seconds;
use crate::error::{Error, Result};
use crate::netns::Namespace;

/// Options of `emulate`.
#[derive(Args, Debug)]
pub struct EmulateArgs {
    /// What forwards
    #[arg(long, value_name = "DRIVER", default_value = "linux")]
    driver: Driver,
    /// The broker
    #[arg(long, value_name = "BROKER", default_value = "punctual")]
    broker: Kind,
    /// Put `punctual manager` before the broker; then publishers state what their flows declare
    #[arg(long)]
    manager: bool,
    /// Seconds measured
    #[arg(long, short, value_name = "S", default_value = "10", value_parser = seconds)]
    duration: Duration,
    /// Seconds of traffic before the measurement
    #[arg(long, value_name = "S", default_value = "1", value_parser = seconds)]
    warm_up: Duration,
    /// QoS of publications and subscriptions
    #[arg(long, short, default_value_t = 1, value_parser = clap::value_parser!(u8).range(0..=1))]
    qos: u8,
    /// Leave all packets alike: every port serves them in the order of arrival
    #[arg(long)]
    no_priorities: bool,
    /// Undeclared traffic: `none`, or KIND:FROM>TO:RATE with KIND bulk (TCP), media (UDP), files
    /// (TCP connections) or mqtt, FROM and TO switches (for mqtt TO is the broker's host); can be
    /// given several times [default: that of the RT-MQTT paper, if the network expects any]
    #[arg(long, value_name = "TRAFFIC")]
    background: Vec<String>,
    /// Programs that make the undeclared traffic of their kind, several with commas; nothing is
    /// installed. Without it this program makes all
    #[arg(long, value_name = "TOOL", value_delimiter = ',')]
    tools: Vec<Wanted>,
    /// Seed of the publishers' phases and release jitter
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Measure first what each switch takes for a frame: one at a time, with captures at its ports
    #[arg(long)]
    measure_switching: bool,
    /// File for the network with what was measured: its switches' delays, and in comments those of
    /// its paths (TOML)
    #[arg(long, value_name = "FILE", requires = "measure_switching")]
    write: Option<PathBuf>,
    /// Neither pin broker and clients to cores nor put them before other programs
    #[arg(long)]
    unpinned: bool,
    /// File for the results as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// File for the results as a page with pictures
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// File for the picture of bounds and delays (SVG)
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
}

impl EmulateArgs {
    /// Emulates a network and writes the table to `out`. `name` is what the report calls it;
    /// `is_broker` says that this program has the broker's commands. Returns whether 999 of 1000
    /// messages of every path kept its bound.
    ///
    /// # Errors
    /// Without the privileges or programs, or if the network cannot be emulated.
    pub fn run(
        &self,
        name: &str,
        document: &Document,
        is_broker: bool,
        out: &mut dyn Write,
    ) -> Result<bool> {
        let network = Network::new(document).map_err(|error| Error::Config {
            field: "network",
            value: name.to_owned(),
            remedy: error.to_string(),
        })?;
        if self.measure_switching && self.driver != Driver::Linux {
            return Err(Error::Config {
                field: "--measure-switching",
                value: "--driver openflow".to_owned(),
                remedy: "measure with --driver linux; a userspace datapath has one thread for all \
                         switches"
                    .to_owned(),
            });
        }
        Namespace::check()?;
        let broker = self.broker.find(is_broker)?;
        let experiment = Experiment {
            driver: self.driver,
            broker: match self.manager {
                true => broker.behind_manager(is_broker)?,
                false => broker,
            },
            warm_up: self.warm_up,
            duration: self.duration,
            qos: self.qos,
            priorities: !self.no_priorities,
            background: self.background(&network)?,
            seed: self.seed,
            switching: self.measure_switching,
            pinned: !self.unpinned && cores() > 1,
        };
        let outcome = experiment::run(&network, &experiment)?;
        let report = Report::new(name, &experiment, &outcome);
        write!(out, "{}", report.text()).map_err(Error::io("cannot write the table"))?;
        let files = [
            (&self.json, format!("{:#}\n", report.json())),
            (&self.html, report.html()),
            (&self.plot, report.plot()),
            (&self.write, report.network(document)),
        ];
        for (path, text) in files {
            if let Some(path) = path {
                let context = || format!("cannot write {}", path.display());
                fs::write(path, text).map_err(Error::io(context()))?;
            }
        }
        let kept = [Verdict::Kept, Verdict::KeptAtP999, Verdict::NoBound];
        Ok(outcome
            .paths
            .iter()
            .all(|path| kept.contains(&path.verdict)))
    }

    fn background(&self, network: &Network) -> Result<Vec<Background>> {
        let mut all = self.sources(network)?;
        tools::assign(&self.tools, &mut all)?;
        Ok(all)
    }

    fn sources(&self, network: &Network) -> Result<Vec<Background>> {
        if self.background.is_empty() {
            return match background::is_expected(network) {
                true => Ok(background::usual(&layout::Layout::new(network)?)),
                false => Ok(Vec::new()),
            };
        }
        let given = self.background.iter().filter(|text| *text != "none");
        given
            .map(|text| {
                text.parse().map_err(|remedy| Error::Config {
                    field: "--background",
                    value: text.clone(),
                    remedy,
                })
            })
            .collect()
    }
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, Into::into)
}
