//! The methods that can be chosen, and what each says of a network.

use clap::ValueEnum;
use punctual_analysis::{Bounds, PathBounds};

/// A way to bound response times.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Method {
    /// One port after the other.
    Holistic,
    /// The whole path at once.
    Trajectory,
    /// The tightest of all ways to cut the path.
    Best,
}

impl Method {
    /// Those that are shown if none is chosen.
    pub(super) const USUAL: [Self; 3] = [Self::Holistic, Self::Trajectory, Self::Best];

    /// The name in a table's head.
    pub(super) fn title(self) -> &'static str {
        match self {
            Self::Holistic => "holistic",
            Self::Trajectory => "trajectory",
            Self::Best => "best",
        }
    }

    /// The name in JSON and CSV: that of the contract for machines, where it
    /// has one.
    pub(super) fn key(self) -> &'static str {
        match self {
            Self::Holistic => "ha_ns",
            Self::Trajectory => "ta_ns",
            Self::Best => "wcrt_ns",
        }
    }

    /// What it says of each flow and path, ns.
    pub(super) fn bounds(self, bounds: &Bounds) -> Vec<Vec<Option<u64>>> {
        let of = |path: &PathBounds| match self {
            Self::Holistic => path.holistic,
            Self::Trajectory => path.trajectory,
            Self::Best => path.best,
        };
        let flows = bounds.flows.iter();
        flows.map(|paths| paths.iter().map(of).collect()).collect()
    }
}
