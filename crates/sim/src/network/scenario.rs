//! A behaviour of a network, written down: everything that the model leaves
//! open, message by message. It can be kept as JSON and run again.

use std::error::Error;
use std::fmt;

use punctual_model::network::Network;
use serde::{Deserialize, Serialize};

use super::engine::{Behaviour, Release};
use super::layout::Layout;

/// All choices of a run.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Scenario {
    /// What flows do, in the order of the network.
    pub flows: Vec<FlowChoices>,
    /// What links do, in the order of the network.
    pub links: Vec<LinkChoices>,
}

/// What a flow does.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct FlowChoices {
    /// Its name, for the reader; the order decides.
    #[serde(default)]
    pub id: String,
    /// Its messages in order of time.
    pub messages: Vec<Message>,
    /// Its place among frames that arrive at one instant: low ones are first.
    #[serde(default)]
    pub rank: u32,
    /// Which copy is the first where its frames are copied.
    #[serde(default)]
    pub rotation: u32,
    /// Delays at the nodes before its hops, in the order of its hops.
    pub delays: Vec<RepeatedChoice>,
}

/// A message of a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Message {
    /// When it is due.
    pub nominal_ns: u64,
    /// How much later it is queued: at most the release jitter.
    #[serde(default)]
    pub late_ns: u64,
}

/// A choice that is made again and again.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct RepeatedChoice {
    /// What it is unless something else is said.
    pub usual: u64,
    /// How many of the first have another value, and which.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first: Option<(u32, u64)>,
    /// Other values: for which message, or which time in a row, from 0.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub except: Vec<(u32, u64)>,
}

impl RepeatedChoice {
    /// Always the same.
    pub fn always(usual: u64) -> Self {
        Self {
            usual,
            ..Self::default()
        }
    }

    /// The value for a message, or the time in a row.
    #[inline]
    pub fn at(&self, index: u32) -> u64 {
        let mut except = self.except.iter();
        match (except.find(|(at, _)| *at == index), self.first) {
            (Some((_, value)), _) => *value,
            (None, Some((count, value))) if index < count => value,
            _ => self.usual,
        }
    }

    /// All values that there are.
    fn values(&self) -> impl Iterator<Item = u64> {
        let except = self.except.iter().map(|(_, value)| *value);
        let first = self.first.map(|(_, value)| value);
        except.chain(first).chain([self.usual])
    }
}

/// What a link does.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct LinkChoices {
    /// Its name, for the reader; the order decides.
    #[serde(default)]
    pub id: String,
    /// What is left of the undeclared frame when a frame comes to the idle
    /// link, for each time that one does.
    pub residual: RepeatedChoice,
}

/// Why a scenario does not belong to a network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScenarioError(String);

impl fmt::Display for ScenarioError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Error for ScenarioError {}

impl Scenario {
    /// Nothing is sent; every delay and every residual is as large as it may be.
    pub fn silent(network: &Network) -> Self {
        let layout = Layout::new(network);
        let flows = layout.flows.iter().enumerate().map(|(index, row)| {
            let hops = layout.hops.iter().skip(row.first_hop as usize);
            FlowChoices {
                id: network.flows[index].id.clone(),
                delays: hops
                    .take(row.hop_count as usize)
                    .map(|hop| RepeatedChoice::always(hop.delay.1))
                    .collect(),
                ..FlowChoices::default()
            }
        });
        let links = network.topology.links.iter().map(|link| LinkChoices {
            id: link.id.clone(),
            residual: RepeatedChoice::always(link.best_effort.saturating_sub(1)),
        });
        Self {
            flows: flows.collect(),
            links: links.collect(),
        }
    }

    /// Checks that the network may behave so.
    ///
    /// # Errors
    /// The first choice that the model forbids.
    pub fn check(&self, network: &Network) -> Result<(), ScenarioError> {
        let layout = Layout::new(network);
        let fail = |problem: String| Err(ScenarioError(problem));
        let (flows, links) = (layout.flows.len(), layout.links.len());
        if self.flows.len() != flows || self.links.len() != links {
            return fail(format!(
                "the scenario is for {} flows and {} links, the network has {flows} and {links}",
                self.flows.len(),
                self.links.len()
            ));
        }
        for (index, (choices, row)) in self.flows.iter().zip(&layout.flows).enumerate() {
            let name = &network.flows[index].id;
            for (number, message) in choices.messages.iter().enumerate() {
                if message.late_ns > row.jitter {
                    return fail(format!(
                        "flow {name:?}, message {number}: late_ns {} is above the jitter {}",
                        message.late_ns, row.jitter
                    ));
                }
                let before = number
                    .checked_sub(1)
                    .map(|n| choices.messages[n].nominal_ns);
                if before.is_some_and(|t| message.nominal_ns < t.saturating_add(row.period)) {
                    return fail(format!(
                        "flow {name:?}, message {number}: less than a period after the one before"
                    ));
                }
            }
            if choices.delays.len() != row.hop_count as usize {
                return fail(format!("flow {name:?}: one delay for each of its hops"));
            }
            for (number, delays) in choices.delays.iter().enumerate() {
                let (least, most) = layout.hops[row.first_hop as usize + number].delay;
                let mut values = delays.values();
                if let Some(value) = values.find(|value| !(least..=most).contains(value)) {
                    return fail(format!(
                        "flow {name:?}, hop {number}: delay {value} is not from {least} to {most}"
                    ));
                }
            }
        }
        for (index, choices) in self.links.iter().enumerate() {
            let most = layout.links[index].best_effort.saturating_sub(1);
            let mut values = choices.residual.values();
            if let Some(value) = values.find(|value| *value > most) {
                let name = &network.topology.links[index].id;
                return fail(format!("link {name:?}: residual {value} is above {most}"));
            }
        }
        Ok(())
    }

    /// The scenario as a behaviour.
    pub fn play<'a>(&'a self, layout: &'a Layout) -> Play<'a> {
        Play {
            scenario: self,
            layout,
            flows: vec![(0, 0); self.flows.len()],
            idle: vec![0; self.links.len()],
        }
    }
}

/// A scenario in progress.
#[derive(Debug)]
pub struct Play<'a> {
    scenario: &'a Scenario,
    layout: &'a Layout,
    /// Next message and the time when the last one was queued.
    flows: Vec<(u32, u64)>,
    /// How often a frame came to the idle link.
    idle: Vec<u32>,
}

impl Behaviour for Play<'_> {
    #[inline]
    fn release(&mut self, flow: usize) -> Option<Release> {
        let (next, queued) = &mut self.flows[flow];
        let message = self.scenario.flows[flow].messages.get(*next as usize)?;
        *next += 1;
        // A publisher hands over its messages in order.
        *queued = (message.nominal_ns + message.late_ns).max(*queued);
        Some(Release {
            nominal: message.nominal_ns,
            queued: *queued,
        })
    }

    #[inline]
    fn delay(&mut self, hop: usize, message: u32, _range: (u64, u64)) -> u64 {
        let row = &self.layout.hops[hop];
        let first = self.layout.flows[row.flow as usize].first_hop as usize;
        self.scenario.flows[row.flow as usize].delays[hop - first].at(message)
    }

    #[inline]
    fn residual(&mut self, link: usize, _best_effort: u64) -> u64 {
        let time = self.idle[link];
        self.idle[link] += 1;
        self.scenario.links[link].residual.at(time)
    }

    #[inline]
    fn rank(&self, flow: usize) -> u32 {
        self.scenario.flows[flow].rank
    }

    #[inline]
    fn rotation(&self, flow: usize) -> u32 {
        self.scenario.flows[flow].rotation
    }
}
