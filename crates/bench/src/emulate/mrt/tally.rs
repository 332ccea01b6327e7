//! Results over all repetitions of a case: delays by topic and broker, and the messages that
//! exceeded their bounds.

use std::collections::BTreeMap;

use punctual_measure::load::Latency;
use punctual_measure::load::meter::Recorder;
use punctual_measure::noise::Gaps;
use serde::Serialize;

use super::super::layout::Layout;
use super::super::load::Sent;
use super::super::observe::Observed;
use super::scenario::{Printed, Scenario, Series};

/// Delays of all publishers of a topic at a broker, including transmission times.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Row {
    /// Topic and edge network of its publishers, such as `alpha-a` for edge network A.
    pub(super) topic: String,
    pub(super) broker: String,
    /// Messages written, and messages captured at the broker, including the warm-up.
    pub(super) written: u64,
    pub(super) seen: u64,
    /// Delays of the messages that were written during the measurement, µs.
    pub(super) delay: Option<Latency>,
    /// Greatest bounds of the publishers, ns: the tightest, by holistic and by trajectory approach.
    pub(super) bound: Option<u64>,
    pub(super) holistic: Option<u64>,
    pub(super) trajectory: Option<u64>,
    /// Greatest results of the paper's formulas for the publishers, ns.
    pub(super) printed_holistic: Option<u64>,
    pub(super) printed_trajectory: Option<u64>,
    pub(super) deadline: u64,
}

/// Messages whose delay exceeded the bound of their path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Above {
    /// Messages that have a bound, and those whose delay exceeded the bound.
    pub(super) of: u64,
    pub(super) count: u64,
    /// Of these, the messages whose excess is at most the time lost in gaps of the machine.
    pub(super) explained: u64,
    /// Greatest excess of the unexplained messages, ns.
    pub(super) unexplained_by: u64,
}

/// Results of a case over all repetitions.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct TallyResult {
    pub(super) rows: Vec<Row>,
    pub(super) above: Above,
    /// Number of paths with a captured message, and number of all paths.
    pub(super) paths: [usize; 2],
    /// Number of gaps, in which a core did not run its most urgent thread, and the longest gap, ns.
    pub(super) gaps: u64,
    pub(super) longest_gap: u64,
    /// Messages written by declared flows, and those that were written too late.
    pub(super) written: u64,
    pub(super) late: u64,
    /// Copies that were not written because a send buffer was full.
    pub(super) withheld: u64,
    /// Datagrams that relays passed on to brokers, datagrams that a relay dropped because its
    /// connection to the broker was full, and messages that subscribers received.
    pub(super) relayed: u64,
    pub(super) not_relayed: u64,
    pub(super) received: u64,
    /// Messages that TCP retransmitted, and packets that captures missed.
    pub(super) repeated: u64,
    pub(super) missed: u64,
}

/// A path of a flow.
struct Path {
    /// Index of the path's row.
    row: usize,
    bound: Option<u64>,
    serialization: u64,
    is_seen: bool,
}

/// Collects the results of repetitions.
pub(super) struct Tally {
    /// Paths by flow number and by index of the broker's host.
    paths: BTreeMap<(u32, usize), Path>,
    rows: Vec<Row>,
    recorders: Vec<Recorder>,
    result: TallyResult,
}

impl Tally {
    pub(super) fn new(
        scenario: &Scenario,
        printed: &Printed,
        layout: &Layout,
        series: Series,
    ) -> Self {
        let mut tally = Self {
            paths: BTreeMap::new(),
            rows: Vec::new(),
            recorders: Vec::new(),
            result: TallyResult::default(),
        };
        for publication in &layout.publications {
            let flow = &scenario.network.flows[publication.flow];
            for destination in &publication.destinations {
                let of =
                    |all: &[Vec<Option<u64>>]| *all.get(publication.flow)?.get(destination.path)?;
                let bounds = scenario.bounds.get(publication.flow);
                let bounds = bounds
                    .and_then(|paths| paths.get(destination.path))
                    .copied();
                let bounds = bounds.unwrap_or_default();
                let row = tally.row(
                    topic(&flow.id),
                    &layout.hosts[destination.broker].name,
                    flow.deadline,
                );
                let this = &mut tally.rows[row];
                let greatest = |known: &mut Option<u64>, value: Option<u64>| {
                    // If one publisher has no bound, the topic has none.
                    *known = known.zip(value).map(|(known, value)| known.max(value));
                };
                greatest(&mut this.bound, bounds.best);
                greatest(&mut this.holistic, bounds.holistic);
                greatest(&mut this.trajectory, bounds.trajectory);
                greatest(&mut this.printed_holistic, of(&printed.holistic));
                greatest(&mut this.printed_trajectory, of(&printed.trajectory));
                tally.paths.insert(
                    (publication.flow as u32, destination.broker),
                    Path {
                        row,
                        // Only the flows of MRT-MQTT were analysed, so other systems have no
                        // bounds.
                        bound: bounds.best.filter(|_| series == Series::MrtMqtt),
                        serialization: destination.serialization,
                        is_seen: false,
                    },
                );
            }
        }
        tally
    }

    fn row(&mut self, topic: &str, broker: &str, deadline: u64) -> usize {
        let is_it = |row: &Row| row.topic == topic && row.broker == broker;
        if let Some(found) = self.rows.iter().position(is_it) {
            return found;
        }
        self.rows.push(Row {
            topic: topic.to_owned(),
            broker: broker.to_owned(),
            written: 0,
            seen: 0,
            delay: None,
            bound: Some(0),
            holistic: Some(0),
            trajectory: Some(0),
            printed_holistic: Some(0),
            printed_trajectory: Some(0),
            deadline,
        });
        self.recorders.push(Recorder::default());
        self.rows.len() - 1
    }

    /// Adds the results of a repetition. `times` are the offset from the monotonic to the real-time
    /// clock, and the start of the measurement, ns.
    pub(super) fn add(&mut self, sent: &Sent, observed: &Observed, gaps: &Gaps, times: [u64; 2]) {
        let [offset, measured_from] = times;
        for arrival in &observed.arrivals {
            let Some(path) = self.paths.get_mut(&(arrival.stamp.flow, arrival.host)) else {
                continue;
            };
            path.is_seen = true;
            self.rows[path.row].seen += 1;
            if arrival.stamp.written < measured_from {
                continue;
            }
            let delay = arrival.time.saturating_sub(arrival.stamp.written) + path.serialization;
            self.recorders[path.row].record(delay);
            let Some(bound) = path.bound else { continue };
            let above = &mut self.result.above;
            above.of += 1;
            let excess = delay.saturating_sub(bound);
            if excess == 0 {
                continue;
            }
            above.count += 1;
            // A gap that delayed earlier messages delays this one too, so count gaps from one bound
            // before the write.
            let from = arrival.stamp.written.saturating_sub(offset + bound);
            if gaps.lost(from, arrival.time.saturating_sub(offset)) >= excess {
                above.explained += 1;
            } else {
                above.unexplained_by = above.unexplained_by.max(excess);
            }
        }
        for ((flow, _), path) in &self.paths {
            let messages = sent.messages.get(*flow as usize).copied().unwrap_or(0);
            self.rows[path.row].written += messages;
        }
        let flows = self.paths.keys().map(|(flow, _)| *flow as usize + 1).max();
        let own = &sent.messages[..flows.unwrap_or(0).min(sent.messages.len())];
        let result = &mut self.result;
        result.written += own.iter().sum::<u64>();
        result.late += sent.late;
        result.withheld += sent.withheld;
        result.relayed += sent.relayed;
        result.not_relayed += sent.not_relayed;
        result.received += sent.received;
        result.repeated += observed.repeated.len() as u64;
        result.missed += observed.missed;
        result.gaps += gaps.count();
        result.longest_gap = result.longest_gap.max(gaps.longest());
    }

    pub(super) fn result(mut self) -> TallyResult {
        for (row, recorder) in self.rows.iter_mut().zip(&mut self.recorders) {
            row.delay = recorder.summary();
        }
        let seen = self.paths.values().filter(|path| path.is_seen).count();
        TallyResult {
            rows: self.rows,
            paths: [seen, self.paths.len()],
            ..self.result
        }
    }
}

/// The topic of a flow of Fig. 15, such as `alpha-a` of `alpha-a-07`.
fn topic(flow: &str) -> &str {
    flow.rsplit_once('-').map_or(flow, |(topic, _)| topic)
}

#[cfg(test)]
mod tests {
    use super::super::super::observe::Arrival;
    use super::super::super::stamp::Stamp;
    use super::super::scenario::{OwnEdge, Setting};
    use super::*;
    use punctual_sim::network::families::Load;

    #[test]
    fn what_is_above_its_bound_is_counted_and_needs_an_explanation() {
        let scenario = Scenario::new(Setting {
            load: Load::Low,
            all_publish: false,
            own_edge: OwnEdge::Group,
            scaled: false,
        });
        let scenario = scenario.unwrap();
        let printed = scenario.printed().unwrap();
        let layout = Layout::new(&scenario.network).unwrap();
        let broker = layout.publications[0].destinations[2].broker;
        let bound = scenario.bounds[0][2].best.unwrap();
        let serialization = layout.publications[0].destinations[2].serialization;
        let arrival = |sequence, delay| Arrival {
            host: broker,
            stamp: Stamp {
                flow: 0,
                sequence,
                nominal: 1_000_000_000,
                written: 1_000_000_000,
            },
            time: 1_000_000_000 + delay,
        };
        let observed = Observed {
            arrivals: vec![
                arrival(0, bound - serialization),
                arrival(1, bound - serialization + 7),
            ],
            ..Observed::default()
        };
        let sent = Sent {
            messages: vec![2],
            ..Sent::default()
        };
        let result = |series, from| {
            let mut tally = Tally::new(&scenario, &printed, &layout, series);
            tally.add(&sent, &observed, &Gaps::default(), [0, from]);
            tally.result()
        };
        let mrt = result(Series::MrtMqtt, 0);
        let expected = Above {
            of: 2,
            count: 1,
            explained: 0,
            unexplained_by: 7,
        };
        assert_eq!((mrt.above, mrt.paths, mrt.written), (expected, [1, 120], 2));
        let row = mrt.rows.iter().find(|row| row.seen > 0).unwrap();
        assert_eq!(
            (row.topic.as_str(), row.broker.as_str()),
            ("alpha-a", "h15")
        );
        assert_eq!(row.delay.unwrap().count, 2);
        assert!(row.bound >= Some(bound) && row.trajectory >= row.bound);
        // Only analysed flows have bounds, and messages before the measurement have no delay.
        assert_eq!(result(Series::Mqtt, 0).above, Above::default());
        let later = result(Series::MrtMqtt, 2_000_000_000);
        assert_eq!(later.above.of, 0);
        assert_eq!(later.rows[row_of(&later)].seen, 2);
    }

    fn row_of(result: &TallyResult) -> usize {
        result.rows.iter().position(|row| row.seen > 0).unwrap()
    }
}
