//! Delays of each path, computed from captured messages, beside its bounds. Pure.

use std::collections::HashMap;

use punctual_analysis::PathBounds;
use punctual_model::network::Network;
use serde::Serialize;

use super::layout::Layout;
use super::observe::Arrival;

/// Least idle time of the processors, percent. Below it, programs waited for a processor, and the
/// delays are not those of the network.
const LEAST_IDLE: f64 = 10.0;

/// Statistics of measured delays, ns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Delays {
    pub(crate) count: usize,
    pub(crate) p50: u64,
    pub(crate) p99: u64,
    pub(crate) p999: u64,
    pub(crate) max: u64,
}

impl Delays {
    /// Statistics of values in any order; `None` without values.
    pub(crate) fn of(values: &mut [u64]) -> Option<Self> {
        values.sort_unstable();
        let at = |per_mille: usize| {
            let rank = (values.len() * per_mille).div_ceil(1000).max(1);
            values.get(rank - 1).copied()
        };
        Some(Self {
            count: values.len(),
            p50: at(500)?,
            p99: at(990)?,
            p999: at(999)?,
            max: at(1000)?,
        })
    }
}

/// Comparison of a path's delays with its bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Verdict {
    /// No delay exceeds the bound.
    Kept,
    /// At most one delay in a thousand exceeds the bound.
    KeptAtP999,
    /// More than one delay in a thousand exceeds the bound.
    Above,
    /// The path has no bound.
    NoBound,
    /// No message arrived.
    NothingSeen,
}

/// Results of a path.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct PathResult {
    pub(crate) flow: String,
    pub(crate) priority: u64,
    /// Index of the path among the flow's paths.
    pub(crate) path: usize,
    pub(crate) publisher: String,
    pub(crate) broker: String,
    pub(crate) destination: String,
    /// Messages written, and messages captured at the destination, during the measurement.
    pub(crate) sent: u64,
    pub(crate) seen: u64,
    /// Delay from the write until the complete message has reached the destination.
    pub(crate) delay: Option<Delays>,
    /// Delay from the write until the complete message has reached the broker.
    pub(crate) to_broker: Option<Delays>,
    /// Delay from the broker to the destination, including the broker's processing time; `None`
    /// where the path ends at the broker.
    pub(crate) from_broker: Option<Delays>,
    /// Sum of a frame's transmission times on the path, ns. Emulated links do not take these times.
    pub(crate) serialization: u64,
    /// The tightest safe bound, ns, and the bounds by the holistic and by the trajectory approach.
    pub(crate) bound: Option<u64>,
    pub(crate) holistic: Option<u64>,
    pub(crate) trajectory: Option<u64>,
    pub(crate) deadline: u64,
    pub(crate) verdict: Verdict,
}

impl PathResult {
    /// The greatest delay plus the transmission times on the path, ns.
    pub(crate) fn worst(&self) -> Option<u64> {
        self.delay.map(|delay| delay.max + self.serialization)
    }
}

/// Idle and stolen time of all processors.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Processors {
    /// Idle time, percent of all processors' time.
    pub(crate) idle: f64,
    /// Time that the hypervisor gave to other machines, percent of all processors' time.
    pub(crate) stolen: f64,
}

impl Processors {
    /// Computes the times between two readings of the first line of `/proc/stat`; `None` if a
    /// reading is invalid.
    pub(super) fn between(before: &str, after: &str) -> Option<Self> {
        let read = |text: &str| -> Option<Vec<u64>> {
            let line = text.lines().next()?.strip_prefix("cpu ")?;
            line.split_whitespace()
                .map(|word| word.parse().ok())
                .collect()
        };
        let (before, after) = (read(before)?, read(after)?);
        let since = |field: usize| Some(after.get(field)?.saturating_sub(*before.get(field)?));
        // user, nice, system, idle, iowait, irq, softirq, steal (proc(5)).
        let all: u64 = (0..8).filter_map(since).sum();
        let share = |ticks: u64| ticks as f64 * 100.0 / all.max(1) as f64;
        Some(Self {
            idle: share(since(3)? + since(4)?),
            stolen: share(since(7)?),
        })
    }

    /// Whether the idle time is too short for the measured delays to be those of the network.
    pub(crate) fn are_too_busy(self) -> bool {
        self.idle < LEAST_IDLE
    }
}

/// Results of the paths of all publications, in the order of the network.
pub(super) fn paths(
    network: &Network,
    layout: &Layout,
    bounds: &[Vec<PathBounds>],
    sent: &[u64],
    arrivals: &[Arrival],
) -> Vec<PathResult> {
    let mut by_place: HashMap<(usize, u32), HashMap<u32, u64>> = HashMap::new();
    for arrival in arrivals {
        let place = (arrival.host, arrival.stamp.flow);
        let delay = arrival.time.saturating_sub(arrival.stamp.written);
        by_place
            .entry(place)
            .or_default()
            .insert(arrival.stamp.sequence, delay);
    }
    let nothing = HashMap::new();
    let mut results = Vec::new();
    for publication in &layout.publications {
        let flow = &network.flows[publication.flow];
        let stamp = publication.flow as u32;
        for destination in &publication.destinations {
            let at_broker = by_place
                .get(&(destination.broker, stamp))
                .unwrap_or(&nothing);
            let place = (destination.host, stamp);
            let seen = by_place.get(&place).unwrap_or(&nothing);
            let delay = Delays::of(&mut seen.values().copied().collect::<Vec<_>>());
            let to_broker = Delays::of(&mut at_broker.values().copied().collect::<Vec<_>>());
            let mut after: Vec<u64> = seen
                .iter()
                .filter_map(|(sequence, whole)| {
                    Some(whole.saturating_sub(*at_broker.get(sequence)?))
                })
                .collect();
            let bound = bounds
                .get(publication.flow)
                .and_then(|paths| paths.get(destination.path))
                .copied()
                .unwrap_or_default();
            results.push(PathResult {
                flow: flow.id.clone(),
                priority: flow.priority,
                path: destination.path,
                publisher: layout.hosts[publication.publisher].name.clone(),
                broker: layout.hosts[destination.broker].name.clone(),
                destination: layout.hosts[destination.host].name.clone(),
                sent: sent.get(publication.flow).copied().unwrap_or(0),
                seen: seen.len() as u64,
                delay,
                to_broker,
                from_broker: destination
                    .down
                    .as_ref()
                    .and_then(|_| Delays::of(&mut after)),
                serialization: destination.serialization,
                bound: bound.best,
                holistic: bound.holistic,
                trajectory: bound.trajectory,
                deadline: flow.deadline,
                verdict: verdict(delay, destination.serialization, bound.best),
            });
        }
    }
    results
}

fn verdict(delay: Option<Delays>, serialization: u64, bound: Option<u64>) -> Verdict {
    let (Some(delay), Some(bound)) = (delay, bound) else {
        return match delay {
            None => Verdict::NothingSeen,
            Some(_) => Verdict::NoBound,
        };
    };
    if delay.max + serialization <= bound {
        Verdict::Kept
    } else if delay.p999 + serialization <= bound {
        Verdict::KeptAtP999
    } else {
        Verdict::Above
    }
}

#[cfg(test)]
mod tests {
    use super::super::stamp::Stamp;
    use super::*;
    use punctual_analysis::analyze;
    use punctual_sim::network::families;

    #[test]
    fn percentiles_are_values_that_were_measured() {
        let mut values: Vec<u64> = (1..=2000).rev().collect();
        let delays = Delays::of(&mut values).unwrap();
        assert_eq!(
            (delays.p50, delays.p99, delays.p999, delays.max),
            (1000, 1980, 1998, 2000)
        );
        assert_eq!(Delays::of(&mut []), None);
        assert_eq!(Delays::of(&mut [7]).unwrap().p50, 7);
    }

    #[test]
    fn the_time_of_transmission_counts() {
        let delays = Delays::of(&mut [50, 60]);
        assert_eq!(verdict(delays, 40, Some(100)), Verdict::Kept);
        assert_eq!(verdict(delays, 41, Some(100)), Verdict::Above);
        assert_eq!(verdict(delays, 41, None), Verdict::NoBound);
        assert_eq!(verdict(None, 0, Some(1)), Verdict::NothingSeen);
        let mut many = vec![10; 2000];
        many[0] = 1000;
        assert_eq!(
            verdict(Delays::of(&mut many), 0, Some(20)),
            Verdict::KeptAtP999
        );
    }

    #[test]
    fn idle_time_includes_waiting_for_disks() {
        let before = "cpu  100 0 100 1000 0 0 0 0 0 0\ncpu0 1\n";
        let after = "cpu  120 0 110 1050 10 0 0 10 0 0\ncpu0 1\n";
        let processors = Processors::between(before, after).unwrap();
        assert_eq!((processors.idle, processors.stolen), (60.0, 10.0));
        assert!(!processors.are_too_busy());
        assert_eq!(Processors::between("", after), None);
    }

    #[test]
    fn what_goes_through_a_broker_has_two_parts() {
        let network = Network::new(&families::factory_cell()).unwrap();
        let layout = Layout::new(&network).unwrap();
        let publication = &layout.publications[0];
        let written = 1_000_000;
        let arrival = |host, time| Arrival {
            host,
            time,
            stamp: Stamp {
                flow: 0,
                sequence: 3,
                nominal: written,
                written,
            },
        };
        let end = publication.destinations[1].host;
        let arrivals = [
            arrival(publication.ups[0].broker, written + 30),
            arrival(end, written + 100),
        ];
        let bounds = analyze(&network).flows;
        let paths = paths(&network, &layout, &bounds, &[5], &arrivals);
        let path = &paths[1];
        assert_eq!((path.sent, path.seen), (5, 1));
        assert_eq!(path.delay.unwrap().max, 100);
        assert_eq!(path.to_broker.unwrap().max, 30);
        assert_eq!(path.from_broker.unwrap().max, 70);
        assert_eq!(path.verdict, Verdict::Kept);
        // No message was captured at the flow's other destination.
        assert_eq!(paths[0].verdict, Verdict::NothingSeen);
    }
}
