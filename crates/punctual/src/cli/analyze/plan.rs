//! What the tool chooses itself before it analyses: paths and priorities.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use punctual_analysis::{
    Method, NoRoute, Selection, SelectionError, Unassignable, assign, choose_paths,
};
use punctual_model::network::{Document, Network};
use punctual_sim::network::to_toml;

use super::study::route;
use crate::cli::Failure;
use crate::cli::input::Input;

/// What is chosen, and how.
#[derive(Debug, Args)]
pub(super) struct Plan {
    /// Choose the paths of these flows anew, as is done for flows that state
    /// from and to and no paths.
    #[arg(long, value_delimiter = ',', value_name = "FLOW")]
    route: Vec<String>,
    /// How paths are chosen.
    #[arg(long, value_enum, value_name = "HOW", default_value_t = PathSelection::Admission)]
    paths: PathSelection,
    /// Find priorities with which every deadline is kept.
    #[arg(long, value_enum, value_name = "HOW")]
    assign: Option<Order>,
    /// Priorities to assign: from 0 to one below, as many as switches have queues.
    #[arg(long, default_value_t = 8, requires = "assign", value_name = "NUMBER")]
    levels: usize,
    /// Flows that keep the priority that they state.
    #[arg(long, value_delimiter = ',', requires = "assign", value_name = "FLOW")]
    keep: Vec<String>,
    /// Write the network with the paths and priorities that were chosen: JSON
    /// if the name ends in .json, else TOML.
    #[arg(long, value_name = "FILE")]
    write: Option<PathBuf>,
}

/// How paths are chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum PathSelection {
    /// Those that leave every flow the most time, and nobody late.
    Admission,
    /// As the RT-MQTT papers do: by delay and bandwidth (equation 1), to several
    /// destinations by a rendezvous point. Deadlines are not looked at.
    Paper,
}

/// How priorities are found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Order {
    /// Deadline monotonic: the less time a deadline leaves, the more urgent.
    Dm,
    /// Audsley's optimal assignment, with the fewest levels.
    Opa,
    /// Deadline monotonic, repaired where somebody is late; then optimal.
    Repair,
}

impl Order {
    fn method(self) -> Method {
        match self {
            Self::Dm => Method::DeadlineMonotonic,
            Self::Opa => Method::Optimal,
            Self::Repair => Method::Repair,
        }
    }

    fn title(self) -> &'static str {
        match self {
            Self::Dm => "deadline monotonic",
            Self::Opa => "optimal assignment",
            Self::Repair => "repaired deadline monotonic",
        }
    }
}

/// A network as it was read and planned.
#[derive(Debug)]
pub(super) struct Planned {
    pub(super) network: Network,
    /// What was chosen, a line each.
    pub(super) remarks: Vec<String>,
}

/// What came of a plan.
pub(super) enum Outcome {
    Planned(Planned),
    /// There are no such paths or priorities; why.
    Impossible(String),
}

impl Plan {
    /// Reads a network and does with it what is asked for.
    pub(super) fn read(&self, file: &Path) -> Result<Outcome, Failure> {
        let input = Input::read(file)?;
        let mut document = input.document()?;
        let selection = match self.paths {
            PathSelection::Admission => Selection::Admission,
            PathSelection::Paper => Selection::Paper,
        };
        let chosen = match choose_paths(&mut document, &self.route, selection) {
            Ok(chosen) => chosen,
            Err(SelectionError {
                why: NoRoute::Invalid(error),
                ..
            }) => return Err(input.blame(&error)),
            Err(stuck) => return Ok(Outcome::Impossible(stuck.to_string())),
        };
        let mut network = Network::new(&document).map_err(|error| input.blame(&error))?;
        let mut remarks = Vec::new();
        for index in chosen {
            let flow = &network.flows[index];
            let paths = flow.leaves.iter().map(|leaf| route(&network, flow, *leaf));
            let paths: Vec<_> = paths.collect();
            remarks.push(format!("{} goes {}", flow.id, paths.join(", ")));
        }
        if let Some(order) = self.assign {
            match self.assign(order, &network)? {
                Ok(priorities) => {
                    remarks.push(summary(order, &network, &priorities));
                    set(&mut document, &mut network, &priorities);
                }
                Err(why) => return Ok(Outcome::Impossible(why.to_string())),
            }
        }
        if let Some(file) = &self.write {
            write(file, &document)?;
        }
        Ok(Outcome::Planned(Planned { network, remarks }))
    }

    /// Finds priorities for the flows of a network; the inner error says why there are none.
    fn assign(
        &self,
        order: Order,
        network: &Network,
    ) -> Result<Result<Vec<u64>, Unassignable>, Failure> {
        let mut kept = BTreeSet::new();
        for id in &self.keep {
            let place = network.flows.iter().position(|flow| flow.id == *id);
            kept.insert(place.ok_or_else(|| format!("--keep {id:?}: is not among the flows"))?);
        }
        match assign(network, &kept, self.levels, order.method()) {
            Err(wrong @ (Unassignable::NoLevels | Unassignable::Fixed { .. })) => {
                Err(format!("--levels {}: {wrong}", self.levels).into())
            }
            answer => Ok(answer),
        }
    }
}

fn summary(order: Order, network: &Network, priorities: &[u64]) -> String {
    let levels = priorities.iter().collect::<BTreeSet<_>>().len();
    let flows = network.flows.iter().zip(priorities);
    let others = flows.filter(|(flow, priority)| flow.priority != **priority);
    format!(
        "{}: {levels} priorities; {} of {} flows have another one than before",
        order.title(),
        others.count(),
        network.flows.len()
    )
}

fn set(document: &mut Document, network: &mut Network, priorities: &[u64]) {
    for (entry, priority) in document.flows.iter_mut().zip(priorities) {
        entry.prio = *priority;
    }
    for (flow, priority) in network.flows.iter_mut().zip(priorities) {
        flow.priority = *priority;
    }
}

fn write(file: &Path, document: &Document) -> Result<(), Failure> {
    let is_json = file
        .extension()
        .is_some_and(|extension| extension == "json");
    let text = match is_json {
        true => serde_json::to_string_pretty(document)? + "\n",
        false => to_toml(document),
    };
    fs::write(file, text)
        .map_err(|error| format!("{} cannot be written: {error}", file.display()).into())
}
