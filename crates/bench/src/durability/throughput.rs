//! Throughput, and latency of acknowledgements, of each durability level and peer, with QoS 1 and
//! subscribers whose sessions outlive their connections.

use std::time::Duration;

use serde::Serialize;

use super::systems::{Commits, System};
use punctual_measure::Result;
use punctual_measure::load::{self, Options, Pace, Report, Scenario};

/// A pattern of traffic.
#[derive(Clone, Copy, Debug)]
pub(super) struct Case {
    pub(super) title: &'static str,
    scenario: Scenario,
    pace: Pace,
    payload: usize,
    /// Whether sessions of subscribers outlive their connections.
    persistent: bool,
    /// Delay of the subscribers' acknowledgements.
    ack_delay: Duration,
    /// Whether the latency from publication to acknowledgement is measured.
    acks: bool,
}

const fn saturated(title: &'static str, scenario: Scenario, pace: Pace) -> Case {
    Case {
        title,
        scenario,
        pace,
        payload: 64,
        persistent: true,
        ack_delay: Duration::ZERO,
        acks: false,
    }
}

const ONE: Scenario = Scenario::Fan {
    publishers: 1,
    subscribers: 1,
};

/// All cases.
pub(super) const CASES: [Case; 7] = [
    saturated("1→1", ONE, Pace::Window(1000)),
    saturated("50 pairs", Scenario::Pairs(50), Pace::Window(20)),
    Case {
        payload: 1024,
        ..saturated("50 pairs, 1 KiB", Scenario::Pairs(50), Pace::Window(20))
    },
    Case {
        ack_delay: LATE,
        ..saturated("50 pairs, late", Scenario::Pairs(50), Pace::Window(500))
    },
    Case {
        acks: true,
        ..saturated(PACED, Scenario::Rate, Pace::Rate(5000.0))
    },
    Case {
        acks: true,
        ack_delay: LATE,
        ..saturated(PACED_LATE, Scenario::Rate, Pace::Rate(5000.0))
    },
    Case {
        persistent: false,
        ..saturated(CLEAN, Scenario::Pairs(50), Pace::Window(20))
    },
];

/// Titles of the cases that measure the latency of acknowledgements.
pub(super) const PACED: &str = "5k/s";
pub(super) const PACED_LATE: &str = "5k/s, late";
/// The case whose sessions end with their connections.
pub(super) const CLEAN: &str = "50 pairs, clean";

/// Acknowledgement delay of slow subscribers: longer than a commit, so that every message has to be
/// written.
pub(super) const LATE: Duration = Duration::from_millis(20);

/// Results of one run.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Run {
    pub(super) report: Report,
    pub(super) commits: Option<Commits>,
}

impl Case {
    /// Performs one run with a fresh broker.
    pub(super) fn run(
        &self,
        system: &System,
        duration: Duration,
        generator_core: usize,
    ) -> Result<Run> {
        let broker = system.start_empty()?;
        let report = load::run(&Options {
            qos: 1,
            pace: self.pace,
            payload: self.payload,
            persistent: self.persistent,
            ack_delay: self.ack_delay,
            acks: self.acks,
            warm_up: duration / 4,
            duration,
            broker_pid: Some(broker.pid()),
            core: Some(generator_core),
            ..Options::new(self.scenario, broker.address)
        })?;
        let commits = broker.commits()?;
        drop(broker);
        system.remove_data()?;
        Ok(Run { report, commits })
    }
}
