//! A behaviour of a network, written down: everything that the model leaves
//! open, message by message. It can be kept as JSON and run again.

use std::error::Error;
use std::fmt;

use punctual_model::network::Network;
use serde::{Deserialize, Serialize};

use super::engine::{Behaviour, Release};
use super::layout::Layout;

/// All choices that determine a run of a network.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Scenario {
    /// The choices for each flow, in the order of the network.
    pub flows: Vec<FlowChoices>,
    /// The choices for each link, in the order of the network.
    pub links: Vec<LinkChoices>,
}

/// The choices for a flow.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct FlowChoices {
    /// Name of the link, for readers only: entries are matched with links by their order.
    #[serde(default)]
    pub id: String,
    /// The messages of the flow in order of time.
    pub messages: Vec<Message>,
    /// The rank of the flow: of frames that arrive at the same time, those of lower rank are queued first.
    #[serde(default)]
    pub rank: u32,
    /// Which copy of a frame is made first where the path of the flow branches.
    #[serde(default)]
    pub rotation: u32,
    /// For each hop of the flow, the delays at the node before it, ns.
    pub delays: Vec<RepeatedChoice>,
}

/// A message of a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Message {
    /// The nominal release, ns.
    pub nominal_ns: u64,
    /// How much later the message is queued, ns: at most the release jitter.
    #[serde(default)]
    pub late_ns: u64,
}

/// Values of a choice that is made repeatedly.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct RepeatedChoice {
    /// The value where no other is stated.
    pub usual: u64,
    /// A number of first choices with another value, and that value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first: Option<(u32, u64)>,
    /// Other values, each with the number of its message or of the occasion, from 0.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub except: Vec<(u32, u64)>,
}

impl RepeatedChoice {
    /// The same value each time.
    pub fn always(usual: u64) -> Self {
        Self {
            usual,
            ..Self::default()
        }
    }

    /// The value for a message or an occasion with this number.
    #[inline]
    pub fn at(&self, index: u32) -> u64 {
        let mut except = self.except.iter();
        match (except.find(|(at, _)| *at == index), self.first) {
            (Some((_, value)), _) => *value,
            (None, Some((count, value))) if index < count => value,
            _ => self.usual,
        }
    }

    /// All values that occur.
    fn values(&self) -> impl Iterator<Item = u64> {
        let except = self.except.iter().map(|(_, value)| *value);
        let first = self.first.map(|(_, value)| value);
        except.chain(first).chain([self.usual])
    }
}

/// The choices for a link.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct LinkChoices {
    /// Its name, for the reader; the order decides.
    #[serde(default)]
    pub id: String,
    /// The remaining transmission time of an undeclared frame, ns, for each time that a frame comes to the idle
    /// link.
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
    /// A scenario without messages, in which all delays and residuals have their greatest values.
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

    /// Checks that the model of the network allows the choices.
    ///
    /// # Errors
    /// The first choice that it forbids.
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

    /// Makes a behaviour that follows the scenario.
    pub fn play<'a>(&'a self, layout: &'a Layout) -> Play<'a> {
        Play {
            scenario: self,
            layout,
            flows: vec![(0, 0); self.flows.len()],
            idle: vec![0; self.links.len()],
        }
    }
}

/// The behaviour of a run that follows a scenario.
#[derive(Debug)]
pub struct Play<'a> {
    scenario: &'a Scenario,
    layout: &'a Layout,
    /// For each flow: the number of its next message and the time when the last one was queued, ns.
    flows: Vec<(u32, u64)>,
    /// For each link: how often a frame has come to it while it was idle.
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
