//! How many flows keep their deadlines as deadlines, load or their number
//! change; points are computed on all cores.

use std::fmt::Write as _;
use std::io::{self, IsTerminal as _, Write as _};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use clap::ValueEnum;
use punctual_analysis::analyze;
use punctual_model::network::Network;
use punctual_report::{Bars, Chart, Group, Unit, bars};
use serde_json::{Value, json};

use super::table::aligned;

/// Name and version of the JSON format.
const FORMAT: &str = "punctual-sweep-1";

/// What changes from point to point.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Sweep {
    /// All deadlines, in percent of what the file says.
    Deadline,
    /// All rates, in percent of what the file says: periods become shorter.
    Load,
    /// The number of flows: the first of the file.
    Flows,
}

impl Sweep {
    fn title(self) -> &'static str {
        match self {
            Self::Deadline => "deadlines %",
            Self::Load => "load %",
            Self::Flows => "flows",
        }
    }

    fn key(self) -> &'static str {
        match self {
            Self::Deadline => "deadline_percent",
            Self::Load => "load_percent",
            Self::Flows => "flows",
        }
    }

    /// From and to, if the user does not say.
    pub(super) fn range(self, network: &Network) -> (u64, u64) {
        match self {
            Self::Deadline | Self::Load => (10, 200),
            Self::Flows => (1, network.flows.len() as u64),
        }
    }

    /// The network at a point.
    fn apply(self, network: &Network, x: u64) -> Network {
        let mut network = network.clone();
        let scaled = |nanos: u64, by: u64, of: u64| {
            let nanos = u128::from(nanos) * u128::from(by) / u128::from(of.max(1));
            u64::try_from(nanos).unwrap_or(u64::MAX)
        };
        match self {
            Self::Deadline => {
                for flow in &mut network.flows {
                    flow.deadline = scaled(flow.deadline, x, 100);
                }
            }
            Self::Load => {
                for flow in &mut network.flows {
                    flow.period = scaled(flow.period, 100, x).max(1);
                }
            }
            Self::Flows => network
                .flows
                .truncate(usize::try_from(x).unwrap_or(usize::MAX)),
        }
        network
    }
}

/// What a point says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Point {
    x: u64,
    /// Flow and destination pairs.
    paths: u64,
    /// Those whose deadline is kept, and those without a bound.
    kept: u64,
    unbounded: u64,
    /// Greatest bound in per mille of its deadline; none if one is missing.
    worst: Option<u64>,
}

impl Point {
    fn new(network: &Network, x: u64) -> Self {
        let bounds = analyze(network);
        let mut point = Self {
            x,
            paths: 0,
            kept: 0,
            unbounded: 0,
            worst: Some(0),
        };
        for (flow, bounds) in network.flows.iter().zip(&bounds.flows) {
            for bound in bounds.iter().map(|bounds| bounds.best) {
                point.paths += 1;
                point.kept += u64::from(bound.is_some_and(|bound| bound <= flow.deadline));
                point.unbounded += u64::from(bound.is_none());
                let share = bound.map(|bound| {
                    let share = u128::from(bound) * 1000 / u128::from(flow.deadline.max(1));
                    u64::try_from(share).unwrap_or(u64::MAX)
                });
                point.worst = point.worst.zip(share).map(|(a, b)| a.max(b));
            }
        }
        point
    }

    fn kept_percent(&self) -> f64 {
        self.kept as f64 / self.paths.max(1) as f64 * 100.0
    }
}

/// A finished sweep.
#[derive(Debug)]
pub(super) struct Swept {
    sweep: Sweep,
    points: Vec<Point>,
}

impl Swept {
    /// Computes `steps` points from `from` to `to`.
    pub(super) fn new(sweep: Sweep, network: &Network, (from, to): (u64, u64), steps: u64) -> Self {
        let points = steps.clamp(1, to.saturating_sub(from) + 1);
        let place = |index: u64| match points {
            1 => from,
            _ => from + (to - from) * index / (points - 1),
        };
        let xs: Vec<u64> = (0..points).map(place).collect();
        let next = AtomicUsize::new(0);
        let progress = Mutex::new(Progress::new(xs.len()));
        let found = Mutex::new(Vec::with_capacity(xs.len()));
        let workers = thread::available_parallelism().map_or(1, usize::from);
        thread::scope(|scope| {
            for _ in 0..workers.min(xs.len()) {
                scope.spawn(|| {
                    while let Some(x) = xs.get(next.fetch_add(1, Ordering::Relaxed)) {
                        let point = Point::new(&sweep.apply(network, *x), *x);
                        found
                            .lock()
                            .unwrap_or_else(PoisonError::into_inner)
                            .push(point);
                        progress
                            .lock()
                            .unwrap_or_else(PoisonError::into_inner)
                            .step();
                    }
                });
            }
        });
        let mut points = found.into_inner().unwrap_or_else(PoisonError::into_inner);
        points.sort_by_key(|point| point.x);
        Self { sweep, points }
    }

    /// Every point keeps every deadline.
    pub(super) fn is_schedulable(&self) -> bool {
        self.points.iter().all(|point| point.kept == point.paths)
    }

    pub(super) fn text(&self) -> String {
        let head = [
            self.sweep.title(),
            "destinations",
            "kept",
            "kept %",
            "no bound",
            "worst bound / deadline",
        ];
        let row = |point: &Point| {
            vec![
                point.x.to_string(),
                point.paths.to_string(),
                point.kept.to_string(),
                format!("{:.1}", point.kept_percent()),
                point.unbounded.to_string(),
                point.worst.map_or_else(
                    || "-".into(),
                    |worst| format!("{:.3}", worst as f64 / 1000.0),
                ),
            ]
        };
        let rows: Vec<_> = self.points.iter().map(row).collect();
        aligned(&head.map(String::from), &rows)
    }

    pub(super) fn csv(&self) -> String {
        let mut text = format!(
            "{},destinations,kept,unbounded,worst_bound_per_mille_of_deadline\n",
            self.sweep.key()
        );
        for Point {
            x,
            paths,
            kept,
            unbounded,
            worst,
        } in &self.points
        {
            let worst = worst.map_or_else(String::new, |worst| worst.to_string());
            let _ = writeln!(text, "{x},{paths},{kept},{unbounded},{worst}");
        }
        text
    }

    pub(super) fn json(&self) -> Value {
        let point = |point: &Point| {
            json!({
                self.sweep.key(): point.x,
                "destinations": point.paths,
                "kept": point.kept,
                "unbounded": point.unbounded,
                "worst_bound_per_mille_of_deadline": point.worst,
            })
        };
        let points: Vec<_> = self.points.iter().map(point).collect();
        json!({"format": FORMAT, "sweep": self.sweep.key(), "points": points})
    }

    pub(super) fn charts(&self) -> Vec<(String, Chart)> {
        let group = |point: &Point| Group {
            name: point.x.to_string(),
            values: vec![Some(point.kept_percent())],
            mark: None,
        };
        let chart = bars(&Bars {
            title: "Sweep".into(),
            series: vec!["destinations that keep their deadline".into()],
            mark: String::new(),
            unit: Unit::Percent,
            groups: self.points.iter().map(group).collect(),
        });
        vec![(format!("Deadlines kept by {}", self.sweep.title()), chart)]
    }
}

/// A bar on standard error, if somebody looks.
struct Progress {
    done: usize,
    of: usize,
    shown: bool,
}

impl Progress {
    const WIDTH: usize = 40;

    fn new(of: usize) -> Self {
        Self {
            done: 0,
            of,
            shown: io::stderr().is_terminal(),
        }
    }

    fn step(&mut self) {
        self.done += 1;
        if !self.shown {
            return;
        }
        let full = self.done * Self::WIDTH / self.of;
        let bar = format!("{}{}", "#".repeat(full), " ".repeat(Self::WIDTH - full));
        let end = if self.done == self.of { "\n" } else { "" };
        // A terminal that has gone is no reason to stop.
        let _ = write!(
            io::stderr().lock(),
            "\r[{bar}] {} of {}{end}",
            self.done,
            self.of
        );
    }
}

#[cfg(test)]
mod tests {
    use punctual_model::network::Document;

    use super::*;

    fn network() -> Network {
        let text = r#"{"nodes":[{"id":"a"},{"id":"b"}],"links":[{"id":"l","from":"a","to":"b"}],
            "flows":[
              {"id":"x","prio":1,"period_ns":1000,"cost_ns":{"l":400},"paths":[["l"]]},
              {"id":"y","prio":0,"period_ns":1000,"cost_ns":{"l":400},"paths":[["l"]]}]}"#;
        Network::new(&Document::from_json(text).unwrap()).unwrap()
    }

    #[test]
    fn points_lie_evenly_and_both_ends_are_there() {
        let swept = Swept::new(Sweep::Deadline, &network(), (10, 100), 4);
        assert_eq!(
            swept.csv(),
            "deadline_percent,destinations,kept,unbounded,worst_bound_per_mille_of_deadline\n\
             10,2,0,0,8000\n40,2,0,0,2000\n70,2,0,0,1142\n100,2,2,0,800\n"
        );
        assert!(!swept.is_schedulable());
        // More steps than there are values.
        assert_eq!(
            Swept::new(Sweep::Flows, &network(), (1, 2), 20)
                .points
                .len(),
            2
        );
        assert_eq!(
            Swept::new(Sweep::Flows, &network(), (2, 2), 20)
                .points
                .len(),
            1
        );
    }

    #[test]
    fn more_load_ends_in_overload() {
        let swept = Swept::new(Sweep::Load, &network(), (50, 250), 3);
        let unbounded: Vec<_> = swept.points.iter().map(|point| point.unbounded).collect();
        assert_eq!(unbounded, [0, 1, 2], "{swept:?}");
        assert_eq!(swept.json()["points"][0]["kept"], 2);
        assert!(swept.text().starts_with("load %  destinations  kept"));
    }
}
