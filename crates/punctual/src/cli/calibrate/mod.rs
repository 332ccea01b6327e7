//! `punctual calibrate`: what the broker costs on this machine, for a network
//! file.
//!
//! The broker is a link of the model whose flows state their cost (WCRT.md
//! 8.7). What is written is measured, with its method, and says how far it can
//! be relied on.

mod measure;
mod stage;

use std::fs;
use std::io::{self, IsTerminal as _};
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use punctual_measure::{LARGEST_PAYLOAD, LEAST_PAYLOAD};
use punctual_model::network::{Network, Topology};
use punctual_sim::network::to_toml;

use self::measure::Plan;
use self::stage::{Machine, Percentile, Stage, remarks};
use super::input::Input;
use super::{Failure, complain, print};

/// Arguments of `punctual calibrate`.
#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Payloads to measure, bytes. A flow takes the cost of the next that is
    /// not below its size on the wire.
    #[arg(long, value_delimiter = ',', value_name = "BYTES", default_values_t = [64, 512, 1538])]
    sizes: Vec<usize>,
    /// Numbers of subscribers to measure.
    #[arg(long, value_delimiter = ',', value_name = "N", default_values_t = [1, 2, 4, 8])]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1000))]
    subscribers: Vec<u32>,
    /// Messages per second, one at a time.
    #[arg(long, default_value_t = 500)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=100_000))]
    rate: u32,
    /// Length of each run, seconds.
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    /// Which value stands for the worst.
    #[arg(long, value_enum, default_value_t = Percentile::P999)]
    percentile: Percentile,
    /// Run the broker with real-time threads, as serve --realtime does.
    #[arg(long)]
    realtime: bool,
    /// A network: it is written with the costs of its brokers filled in. Without
    /// it, a broker's nodes and link are written.
    #[arg(long, value_name = "FILE")]
    network: Option<PathBuf>,
    /// The links that stand for brokers on a machine like this [default: all
    /// without a rate].
    #[arg(long, value_name = "ID", value_delimiter = ',', requires = "network")]
    link: Vec<String>,
    /// Write to FILE instead of standard output.
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

impl Arguments {
    fn check(&self) -> Result<(), Failure> {
        if !(0.05..=3600.0).contains(&self.seconds) {
            return Err(format!("--seconds {}: give 0.05 to 3600", self.seconds).into());
        }
        let wrong = |size: &&usize| !(LEAST_PAYLOAD..=LARGEST_PAYLOAD).contains(*size);
        match self.sizes.iter().find(wrong) {
            None => Ok(()),
            Some(size) => Err(format!(
                "--sizes {size}: give {LEAST_PAYLOAD} to {LARGEST_PAYLOAD} bytes"
            )
            .into()),
        }
    }
}

pub(super) fn run(arguments: &Arguments) -> Result<(), Failure> {
    arguments.check()?;
    // What is wrong with the network is said before a minute of measurements.
    let mut network = None;
    if let Some(file) = &arguments.network {
        let input = Input::read(file)?;
        let document = input.document()?;
        let checked = Network::new(&document).map_err(|error| input.blame(&error))?;
        let links = brokers(&checked.topology, &arguments.link)
            .map_err(|problem| format!("{}: {problem}", input.place()))?;
        network = Some((input, document, links));
    }
    let plan = Plan {
        sizes: arguments.sizes.clone(),
        subscribers: arguments.subscribers.clone(),
        rate: arguments.rate,
        duration: Duration::from_secs_f64(arguments.seconds),
        realtime: arguments.realtime,
        talk: io::stderr().is_terminal(),
    };
    let machine = Machine::read(arguments.realtime);
    let measured = plan.run()?;
    let stage = Stage::new(&measured, arguments.percentile);
    let mut text = remarks(&measured, &stage, arguments.percentile, &machine);
    match &mut network {
        None => text.push_str(&stage.fragment()),
        Some((input, document, links)) => {
            for link in links {
                stage
                    .set(document, link)
                    .map_err(|error| input.blame(&error))?;
            }
            text.push_str(&to_toml(document));
        }
    }
    match &arguments.output {
        None => print(&text)?,
        Some(file) => fs::write(file, text)
            .map_err(|error| format!("{} cannot be written: {error}", file.display()))?,
    }
    if !(machine.real_time_kernel && machine.real_time_threads) {
        complain(&format_args!(
            "note: these figures are statistical, not hard: {}",
            machine.doubt()
        ));
    }
    Ok(())
}

/// The links that stand for brokers: those that are named, or all without a
/// rate.
fn brokers(topology: &Topology, named: &[String]) -> Result<Vec<String>, String> {
    if let Some(unknown) = named.iter().find(|id| topology.link(id).is_none()) {
        return Err(format!(
            "--link {unknown:?} is not among the links; name those that stand for brokers"
        ));
    }
    if !named.is_empty() {
        return Ok(named.to_vec());
    }
    let servers = topology.links.iter().filter(|link| link.rate == 0);
    let servers: Vec<_> = servers.map(|link| link.id.clone()).collect();
    if servers.is_empty() {
        return Err("every link has a rate; name those that stand for brokers (--link)".into());
    }
    Ok(servers)
}

#[cfg(test)]
mod tests {
    use punctual_model::network::Document;

    use super::*;

    #[test]
    fn brokers_are_named_or_have_no_rate() {
        let text = r#"{"nodes":[{"id":"a"},{"id":"b"}],
            "links":[{"id":"x","from":"a","to":"b"},{"id":"y","from":"b","to":"a","rate_bps":0},
                     {"id":"z","from":"a","to":"b","rate_bps":5}]}"#;
        let network = Network::new(&Document::from_json(text).unwrap()).unwrap();
        let found = |named: &[&str]| {
            let named: Vec<_> = named.iter().map(|id| (*id).to_owned()).collect();
            brokers(&network.topology, &named).map(|found| found.join(" "))
        };
        assert_eq!(found(&[]), Ok("x y".into()));
        assert_eq!(found(&["z"]), Ok("z".into()));
        assert!(
            found(&["w"])
                .unwrap_err()
                .contains("--link \"w\" is not among")
        );
    }
}
