//! Emulation of networks on one machine: hosts, switches and links of a network file in network
//! namespaces, with a real broker, publishers, subscribers, and undeclared traffic.
//!
//! Measured delays are compared with the bounds of the analysis, path by path. A shaped link
//! delivers a frame when its transmission would *begin*, so the transmission times of a path are
//! added to the measured delays. File descriptors hold the namespaces, which have no name in the
//! file system, and programs end with this process: nothing remains, even if it is killed.

mod background;
mod broker;
mod experiment;
mod fabric;
mod flows;
mod layout;
mod load;
mod loss;
mod mrt;
mod observe;
mod openflow;
mod outputs;
mod papers;
mod recovery;
mod report;
mod results;
mod rt_mqtt;
mod stamp;
mod switching;
mod tools;
mod tree;

use std::fs;
use std::io::Read as _;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, ValueEnum};
use punctual_model::network::{Document, Format, Network};
use punctual_sim::network::families::{self, Load};

use self::background::Background;
use self::broker::Kind;
use self::experiment::Experiment;
use self::fabric::Driver;
use self::loss::Loss;
pub(crate) use self::mrt::MrtArgs;
pub(crate) use self::papers::PapersArgs;
use self::papers::checked;
pub(crate) use self::recovery::RecoveryArgs;
use self::report::Report;
use self::results::Verdict;
use self::tools::Wanted;
use crate::arguments::seconds;
use punctual_measure::{Error, Result};
use punctual_testbed::netns::Namespace;

/// Options of `emulate`.
#[derive(Args, Debug)]
pub(crate) struct EmulateArgs {
    /// The network (JSON or TOML, as for `punctual analyze`); - reads standard input. With --load:
    /// fig2 or fig15, a network of the papers
    #[arg(value_name = "NETWORK")]
    file: PathBuf,
    /// Number of active publishers of a paper's network
    #[arg(long, value_name = "LOAD")]
    load: Option<LoadName>,
    /// Driver of the switches
    #[arg(long, value_name = "DRIVER", default_value = "linux")]
    driver: Driver,
    /// Program of the broker
    #[arg(long, value_name = "BROKER", default_value = "punctual")]
    broker: Kind,
    /// Run `punctual manager` in front of the broker; publishers then state the requirements of
    /// their flows
    #[arg(long)]
    manager: bool,
    /// Duration of the measurement, seconds
    #[arg(long, short, value_name = "S", default_value = "10", value_parser = seconds)]
    duration: Duration,
    /// Duration of traffic before the measurement, seconds
    #[arg(long, value_name = "S", default_value = "1", value_parser = seconds)]
    warm_up: Duration,
    /// QoS of publications and subscriptions
    #[arg(long, short, default_value_t = 1, value_parser = clap::value_parser!(u8).range(0..=1))]
    qos: u8,
    /// Mark all packets alike: every port forwards them in the order of arrival
    #[arg(long)]
    no_priorities: bool,
    /// Undeclared traffic: `none`, or KIND:FROM>TO:RATE with KIND bulk (TCP), media (UDP), files
    /// (TCP connections) or mqtt, FROM and TO switches or hosts (for mqtt TO is the broker's); can be
    /// given several times [default: that of the RT-MQTT paper, and for fig15 that of the MRT-MQTT
    /// paper, if the network expects any]
    #[arg(long, value_name = "TRAFFIC")]
    background: Vec<String>,
    /// Programs that generate the undeclared traffic of their kind, separated by commas; none is
    /// installed automatically. Without this option, the emulation generates all traffic itself
    #[arg(long, value_name = "TOOL", value_delimiter = ',')]
    tools: Vec<Wanted>,
    /// Seed of the publishers' phases and release jitter
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Percent of the packets to a broker that its host discards at random, as if damaged in
    /// transit
    #[arg(long, value_name = "PERCENT", default_value = "0", value_parser = loss::percent)]
    loss: f64,
    /// First measure the forwarding delay of each switch, with single frames and captures at its
    /// ports
    #[arg(long)]
    measure_switching: bool,
    /// TOML file for the network with the measured delays of its switches and, in comments, of its
    /// paths
    #[arg(long, value_name = "FILE", requires = "measure_switching")]
    write: Option<PathBuf>,
    /// Neither pin broker and clients to cores nor give them real-time priority
    #[arg(long)]
    unpinned: bool,
    /// JSON file for the results
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// HTML file for the results with charts
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// SVG file for the chart of bounds and delays
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
}

/// [`Load`] on the command line.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum LoadName {
    Low,
    Medium,
    High,
}

impl From<LoadName> for Load {
    fn from(name: LoadName) -> Self {
        match name {
            LoadName::Low => Self::Low,
            LoadName::Medium => Self::Medium,
            LoadName::High => Self::High,
        }
    }
}

impl EmulateArgs {
    /// Emulates the network and writes the table to `out`. Returns whether at least 999 of 1000
    /// messages of every path kept its bound.
    ///
    /// # Errors
    /// The file cannot be read, privileges or programs are missing, or the network cannot be
    /// emulated.
    pub(crate) fn run(&self, out: &mut dyn Write) -> Result<bool> {
        let (name, document) = match self.load {
            Some(load) => paper(&self.file, load.into())?,
            None => read(&self.file)?,
        };
        let network = checked(&name, &document)?;
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
        let broker = self.broker.find()?;
        let experiment = Experiment {
            driver: self.driver,
            broker: match self.manager {
                true => broker.behind_manager()?,
                false => broker,
            },
            warm_up: self.warm_up,
            duration: self.duration,
            qos: self.qos,
            priorities: !self.no_priorities,
            background: self.background(&network)?,
            seed: self.seed,
            loss: Loss::of_percent(self.loss),
            switching: self.measure_switching,
            pinned: !self.unpinned && cores() > 1,
        };
        let outcome = experiment::run(&network, &experiment)?;
        let report = Report::new(&name, &experiment, &outcome);
        write!(out, "{}", report.text()).map_err(Error::io("cannot write the table"))?;
        let files = [
            (&self.json, format!("{:#}\n", report.json())),
            (&self.html, report.html()),
            (&self.plot, report.plot()),
            (&self.write, report.network(&document)),
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
            if !background::is_expected(network) {
                return Ok(Vec::new());
            }
            let layout = layout::Layout::new(network)?;
            return Ok(mrt::background(&layout).unwrap_or_else(|| background::usual(&layout)));
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

/// A network of the papers, with its title.
fn paper(name: &Path, load: Load) -> Result<(String, Document)> {
    let document = match name.to_str() {
        Some("fig2") => families::fig2(load),
        Some("fig15") => families::fig15(load, false),
        _ => {
            return Err(Error::Config {
                field: "--load",
                value: name.display().to_string(),
                remedy: "has none; it is for fig2 and fig15".to_owned(),
            });
        }
    };
    Ok((format!("{}-{}", name.display(), load.name()), document))
}

/// The network in a file, or on standard input for `-`, with its title.
fn read(file: &Path) -> Result<(String, Document)> {
    let (place, text) = match file.to_str() {
        Some("-") => {
            let mut text = String::new();
            let read = std::io::stdin().lock().read_to_string(&mut text);
            ("standard input".to_owned(), read.map(|_| text))
        }
        _ => (file.display().to_string(), fs::read_to_string(file)),
    };
    let text = text.map_err(Error::io(format!("{place} cannot be read")))?;
    let document = Document::parse(&text, Format::of(file, &text));
    let document = document.map_err(|error| Error::Config {
        field: "NETWORK",
        value: place.clone(),
        remedy: error.to_string(),
    })?;
    let stem = file.file_stem().filter(|stem| *stem != "-");
    let name = stem.map_or(place, |stem| stem.to_string_lossy().into_owned());
    Ok((name, document))
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, Into::into)
}
