//! What a bound is made of.
//!
//! The path is cut where the best bound cuts it; each segment has parts, whose
//! sum is the bound.

use std::fmt;

use punctual_model::network::Network;
use serde::Serialize;

use crate::bounds::Solution;
use crate::levels::Limits;
use crate::segment::{Scratch, Segment, What};
use crate::system::{ClassId, StageId, System, UNBOUNDED};

/// What the bound of a flow to one destination is made of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Explanation {
    /// The flow.
    pub flow: String,
    /// Index of the path.
    pub path: usize,
    /// The bound, ns.
    pub bound_ns: u64,
    /// The deadline, ns.
    pub deadline_ns: u64,
    /// The parts, in the order of the path; their sum is the bound.
    pub parts: Vec<Part>,
}

impl Explanation {
    /// Segments into which the path is cut.
    pub fn segments(&self) -> usize {
        self.parts.last().map_or(0, |part| part.segment + 1)
    }
}

/// A part of a bound.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Part {
    /// Index of the segment of the path in which it counts.
    pub segment: usize,
    /// The link.
    pub link: String,
    /// What takes the time.
    pub cause: Cause,
    /// How long, ns; negative where it takes away.
    pub nanos: i64,
}

/// What takes the time of a part.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Cause {
    /// The message is late at the first link.
    ReleaseJitter,
    /// A frame of undeclared traffic had begun.
    BestEffort,
    /// A frame of lower priority had begun.
    Blocking {
        /// The flow that it is of.
        flow: String,
    },
    /// More urgent frames.
    Higher {
        /// The flow that they are of.
        flow: String,
        /// How many flows are just like it, itself included.
        alike: u64,
    },
    /// Frames of the same priority that came before.
    Same {
        /// The flow that they are of.
        flow: String,
        /// How many flows are just like it, itself included.
        alike: u64,
    },
    /// Frames of another priority, at a link without priorities; or of a lower
    /// one that are on the path before the message and not in it at each link.
    Other {
        /// The flow that they are of.
        flow: String,
        /// How many flows are just like it, itself included.
        alike: u64,
    },
    /// All that goes first where service is by deadline, the frame's own flow
    /// included. It is one part: which frames go first depends on what else is
    /// there, and the greatest sum is not one of greatest shares.
    Due,
    /// All that comes and what is there at once, where so much comes that its
    /// frames are not counted one by one. It is one part: the rates of all flows
    /// are added up first.
    LongRun,
    /// The flow's own frames before this one.
    Own,
    /// Copies of the frame for other destinations.
    Copies,
    /// A frame that is before at this link and the next.
    Carried,
    /// Switching, propagation included.
    Switching,
    /// The frame itself.
    Transmission,
    /// Propagation on the last link.
    Propagation,
    /// Frames that come over one link come one after the other.
    LinkShaping,
    /// The frame comes after the busy period has begun.
    Offset,
    /// Another path to count is better by this.
    Better,
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let flows = |f: &mut fmt::Formatter<'_>, flow: &str, alike: &u64| match alike {
            1 => write!(f, " {flow}"),
            alike => write!(f, " {flow} and {} like it", alike - 1),
        };
        match self {
            Self::ReleaseJitter => f.write_str("release jitter"),
            Self::BestEffort => f.write_str("a frame of best effort"),
            Self::Blocking { flow } => write!(f, "a frame of lower priority: {flow}"),
            Self::Higher { flow, alike } => {
                f.write_str("higher priority:")?;
                flows(f, flow, alike)
            }
            Self::Same { flow, alike } => {
                f.write_str("same priority:")?;
                flows(f, flow, alike)
            }
            Self::Other { flow, alike } => {
                f.write_str("other priority:")?;
                flows(f, flow, alike)
            }
            Self::LongRun => f.write_str("all that comes in the long run"),
            Self::Due => f.write_str("all that is due earlier"),
            Self::Own => f.write_str("its own frames before"),
            Self::Copies => f.write_str("copies for other destinations"),
            Self::Carried => f.write_str("a frame that goes on ahead"),
            Self::Switching => f.write_str("switching"),
            Self::Transmission => f.write_str("transmission"),
            Self::Propagation => f.write_str("propagation"),
            Self::LinkShaping => f.write_str("what links cannot bring at once"),
            Self::Offset => f.write_str("time passed when it comes"),
            Self::Better => f.write_str("counted port by port instead"),
        }
    }
}

/// Explains the bound of a flow to the destination of one of its paths.
/// `None` if there is no such flow or path, or no bound.
pub fn explain(network: &Network, flow: &str, path: usize) -> Option<Explanation> {
    let place = network.flows.iter().position(|known| known.id == flow)?;
    Explainer::new(network).explain(place, path)
}

fn part(segment: usize, link: String, cause: Cause, nanos: u64) -> Part {
    Part {
        segment,
        link,
        cause,
        nanos: i64::try_from(nanos).unwrap_or(i64::MAX),
    }
}

/// A network that was analysed, to explain any of its bounds.
pub(crate) struct Explainer<'a> {
    network: &'a Network,
    system: System,
    best: Limits,
    classes: Vec<ClassId>,
}

impl<'a> Explainer<'a> {
    pub(crate) fn new(network: &'a Network) -> Self {
        let mut system = System::empty(&network.topology);
        let classes = system.add_all(&network.flows);
        Self {
            network,
            best: Solution::new(&system).best,
            system,
            classes,
        }
    }

    /// Explains the bound of the flow at this place of the network, as
    /// [`explain`] does.
    pub(crate) fn explain(&self, place: usize, path: usize) -> Option<Explanation> {
        let system = &self.system;
        let flow = self.network.flows.get(place)?;
        let leaf = *system.classes[self.classes[place]].leaves.get(path)?;
        let end = self.best.end[leaf];
        if end == UNBOUNDED {
            return None;
        }
        let port = system.stages[leaf].port;
        let prop = system.ports[port].prop;
        let bound_ns = end.saturating_add(prop);
        let mut parts = self.parts(leaf)?;
        let last = parts.last().map_or(0, |part| part.segment);
        if prop > 0 {
            parts.push(part(last, self.link(port), Cause::Propagation, prop));
        }
        let sum: i64 = parts.iter().map(|part| part.nanos).sum();
        let rest = i64::try_from(bound_ns).ok()? - sum;
        if rest != 0 {
            parts.push(Part {
                segment: last,
                link: self.link(port),
                cause: Cause::Better,
                nanos: rest,
            });
        }
        Some(Explanation {
            flow: flow.id.clone(),
            path,
            bound_ns,
            deadline_ns: flow.deadline,
            parts,
        })
    }

    /// The parts of the bound up to the end of transmission at a leaf.
    fn parts(&self, leaf: StageId) -> Option<Vec<Part>> {
        let system = &self.system;
        let path = system.path(leaf);
        let mut scratch = Scratch::new(u64::MAX);
        // From the end: where the segment of the least end begins.
        let mut cuts = Vec::new();
        let mut to = path.len();
        while to > 0 {
            let all = (0..to).rev().flat_map(|from| {
                let own = Segment {
                    system,
                    limits: &self.best,
                    path: &path,
                    from,
                    to: to - 1,
                    shaped: true,
                    floor: system.priority(leaf),
                };
                let floors = own.floors().into_iter();
                let lower = floors.map(move |floor| Segment { floor, ..own });
                std::iter::once(own).chain(lower)
            });
            let best = all.min_by_key(|segment| segment.end(&mut scratch))?;
            to = best.from;
            cuts.push(best);
        }
        let mut parts = Vec::new();
        let jitter = system.classes[system.stages[leaf].class].jitter;
        if jitter > 0 {
            parts.push(part(
                0,
                self.link(system.stages[path[0]].port),
                Cause::ReleaseJitter,
                jitter,
            ));
        }
        for (index, segment) in cuts.into_iter().rev().enumerate() {
            if segment.from > 0 {
                let stage = &system.stages[path[segment.from]];
                parts.push(part(
                    index,
                    self.link(stage.port),
                    Cause::Switching,
                    stage.delay_max,
                ));
            }
            for term in segment.terms(&mut scratch)? {
                parts.push(Part {
                    segment: index,
                    link: self.link(term.port),
                    cause: self.cause(term.what),
                    nanos: term.nanos,
                });
            }
        }
        Some(parts)
    }

    fn link(&self, port: usize) -> String {
        self.network.topology.links[port].id.clone()
    }

    fn cause(&self, what: What) -> Cause {
        match what {
            What::BestEffort => Cause::BestEffort,
            What::Blocking(stage) => Cause::Blocking {
                flow: self.flow(stage).0,
            },
            What::Carried => Cause::Carried,
            What::Switching => Cause::Switching,
            What::Copies => Cause::Copies,
            What::Higher(stage) => {
                let (flow, alike) = self.flow(stage);
                Cause::Higher { flow, alike }
            }
            What::Same(stage) => {
                let (flow, alike) = self.flow(stage);
                Cause::Same { flow, alike }
            }
            What::Other(stage) => {
                let (flow, alike) = self.flow(stage);
                Cause::Other { flow, alike }
            }
            What::LongRun => Cause::LongRun,
            What::Due => Cause::Due,
            What::Own => Cause::Own,
            What::Transmission => Cause::Transmission,
            What::Shaping => Cause::LinkShaping,
            What::Offset => Cause::Offset,
        }
    }

    /// The name of a flow of a stage's class, and how many it has.
    fn flow(&self, stage: StageId) -> (String, u64) {
        let class = self.system.stages[stage].class;
        let place = self.classes.iter().position(|known| *known == class);
        let name = place.map(|place| self.network.flows[place].id.clone());
        (name.unwrap_or_default(), self.system.classes[class].count)
    }
}
