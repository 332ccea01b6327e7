//! The methods that can be chosen, and what each says of a network.

use clap::ValueEnum;
use punctual_analysis::printed::{self, Floor};
use punctual_analysis::{Bounds, PathBounds, tfa};
use punctual_model::network::Network;

/// A way to bound response times, or to fail to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Method {
    /// One port after the other.
    Holistic,
    /// The whole path at once.
    Trajectory,
    /// The tightest of all ways to cut the path.
    Best,
    /// Network calculus, class by class: a cross-check.
    Tfa,
    /// The RT-MQTT paper's formula, errors included. Not safe.
    HolisticAsPrinted,
    /// The RT-MQTT paper's formula, errors included. Not safe, by far.
    TrajectoryAsPrinted,
    /// The same with (1+⌊x⌋)⁺ as it is meant. Not safe, by far.
    TrajectoryRepaired,
    /// The MRT-MQTT paper's formulas for multicast, errors included. Not safe.
    MrtHolisticAsPrinted,
    /// The MRT-MQTT paper's formulas for multicast, errors included. Not safe, by
    /// far.
    MrtTrajectoryAsPrinted,
}

impl Method {
    /// Those that are shown if none is chosen.
    pub(super) const USUAL: [Self; 3] = [Self::Holistic, Self::Trajectory, Self::Best];

    /// No response is above what it says: a verdict may rest on it.
    pub(super) fn is_safe(self) -> bool {
        match self {
            Self::Holistic | Self::Trajectory | Self::Best | Self::Tfa => true,
            Self::HolisticAsPrinted
            | Self::TrajectoryAsPrinted
            | Self::TrajectoryRepaired
            | Self::MrtHolisticAsPrinted
            | Self::MrtTrajectoryAsPrinted => false,
        }
    }

    /// The name in a table's head.
    pub(super) fn title(self) -> &'static str {
        match self {
            Self::Holistic => "holistic",
            Self::Trajectory => "trajectory",
            Self::Best => "best",
            Self::Tfa => "TFA",
            Self::HolisticAsPrinted => "holistic as printed",
            Self::TrajectoryAsPrinted => "trajectory as printed",
            Self::TrajectoryRepaired => "trajectory repaired",
            Self::MrtHolisticAsPrinted => "MRT holistic as printed",
            Self::MrtTrajectoryAsPrinted => "MRT trajectory as printed",
        }
    }

    /// The name in JSON and CSV: that of the contract for machines, where it
    /// has one.
    pub(super) fn key(self) -> &'static str {
        match self {
            Self::Holistic => "ha_ns",
            Self::Trajectory => "ta_ns",
            Self::Best => "wcrt_ns",
            Self::Tfa => "tfa_ns",
            Self::HolisticAsPrinted => "ha_printed_ns",
            Self::TrajectoryAsPrinted => "ta_printed_ns",
            Self::TrajectoryRepaired => "ta_repaired_ns",
            Self::MrtHolisticAsPrinted => "mrt_ha_printed_ns",
            Self::MrtTrajectoryAsPrinted => "mrt_ta_printed_ns",
        }
    }

    /// What it says of each flow and path, ns; `bounds` are those of the
    /// analysis.
    pub(super) fn bounds(self, network: &Network, bounds: &Bounds) -> Vec<Vec<Option<u64>>> {
        let each = |of: fn(&PathBounds) -> Option<u64>| {
            let flows = bounds.flows.iter();
            flows.map(|paths| paths.iter().map(of).collect()).collect()
        };
        match self {
            Self::Holistic => each(|path| path.holistic),
            Self::Trajectory => each(|path| path.trajectory),
            Self::Best => each(|path| path.best),
            Self::Tfa => tfa(network),
            Self::HolisticAsPrinted => printed::holistic(network),
            Self::TrajectoryAsPrinted => printed::trajectory(network, Floor::AsPrinted),
            Self::TrajectoryRepaired => printed::trajectory(network, Floor::Repaired),
            Self::MrtHolisticAsPrinted => printed::mrt_holistic(network),
            Self::MrtTrajectoryAsPrinted => printed::mrt_trajectory(network, Floor::AsPrinted),
        }
    }
}
