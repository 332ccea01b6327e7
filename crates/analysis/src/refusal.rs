//! Why flows are not admitted, in words.

use std::error::Error;
use std::fmt;
use std::time::Duration;

use punctual_model::format_duration;
use punctual_model::network::{Flow, Topology};

use crate::load::{FULL, Load, percent, share};
use crate::system::{PortId, System};

/// Why flows are not admitted.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Refusal {
    /// The flow that could miss its deadline: one of the new ones, or one that
    /// is admitted.
    pub flow: String,
    /// It is one of the new ones.
    pub new: bool,
    /// Why.
    pub reason: Reason,
    /// Other flows that could miss their deadlines, too; those that were
    /// examined.
    pub others: u64,
    /// It would be late at any priority, even alone in the network.
    pub hopeless: bool,
}

/// What stands against a flow.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Reason {
    /// A flow of this name is admitted.
    #[default]
    Taken,
    /// A link has no time left for the flow's priority.
    Overload {
        /// The link.
        link: String,
        /// Its load by what is not less urgent, in per cent, rounded up.
        percent: u64,
    },
    /// A message may come too late.
    Late {
        /// Index of the path, which is that of the destination.
        path: usize,
        /// The bound, ns; none if none was found.
        bound: Option<u64>,
        /// The deadline, ns.
        deadline: u64,
    },
}

impl Refusal {
    pub(crate) fn taken(flow: &Flow) -> Self {
        Self {
            flow: flow.id.clone(),
            new: true,
            reason: Reason::Taken,
            others: 0,
            hopeless: false,
        }
    }

    pub(crate) fn late(
        flow: Option<&Flow>,
        path: usize,
        bound: Option<u64>,
        overload: Option<(String, u64)>,
        new: bool,
        others: u64,
    ) -> Self {
        let reason = match overload {
            Some((link, percent)) => Reason::Overload { link, percent },
            None => Reason::Late {
                path,
                bound,
                deadline: flow.map_or(0, |flow| flow.deadline),
            },
        };
        Self {
            flow: flow.map(|flow| flow.id.clone()).unwrap_or_default(),
            new,
            reason,
            others,
            hopeless: false,
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            flow, new, reason, ..
        } = self;
        let whose = if *new { "" } else { "admitted " };
        let time = |nanos: &u64| shown(*nanos);
        match reason {
            Reason::Taken => write!(f, "a flow {flow:?} is admitted already; remove it first"),
            Reason::Overload { link, percent } => write!(
                f,
                "{whose}flow {flow:?} is unschedulable: link {link} loaded {percent} %"
            ),
            Reason::Late {
                path,
                bound: Some(bound),
                deadline,
            } => write!(
                f,
                "{whose}flow {flow:?} could take {} to destination {path}, {} beyond its deadline of {}",
                time(bound),
                time(&(bound - deadline)),
                time(deadline),
            ),
            Reason::Late {
                path,
                bound: None,
                deadline,
            } => write!(
                f,
                "{whose}flow {flow:?} has no bound to destination {path} that could meet its deadline of {}",
                time(deadline),
            ),
        }
    }
}

impl Error for Refusal {}

/// A time for people: to the microsecond upwards if it is longer than ten.
pub(crate) fn shown(nanos: u64) -> String {
    let nanos = match nanos {
        0..10_000 => nanos,
        _ => nanos.div_ceil(1_000).saturating_mul(1_000),
    };
    format_duration(Duration::from_nanos(nanos))
}

/// A port that has no time left for a level.
pub(crate) struct Overload {
    port: PortId,
    percent: u64,
}

impl Overload {
    /// The port's load by this priority and above, if it is all of it.
    pub(crate) fn of(system: &System, port: PortId, priority: u64) -> Option<Self> {
        let level = system.level(port, priority).iter();
        let parts = level.map(|stage| {
            let stage = &system.stages[*stage];
            let class = &system.classes[stage.class];
            let flows = u128::from(stage.frames) * u128::from(class.count);
            share(u128::from(stage.cost).saturating_mul(flows), class.period)
        });
        let sum = parts.fold(0, Load::saturating_add);
        (sum >= FULL).then(|| Self {
            port,
            percent: percent(sum),
        })
    }

    /// The link's name and its load in per cent.
    pub(crate) fn named(&self, topology: &Topology) -> (String, u64) {
        (topology.links[self.port].id.clone(), self.percent)
    }
}
