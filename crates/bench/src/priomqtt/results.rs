//! Results of single runs, and statistics over several runs of one case.

use serde::Serialize;

use super::cell::Couple;
use super::queue::QueueReport;
use super::talk::Buckets;
use crate::compare::results::median;
use punctual_measure::load::Latency;
use punctual_measure::load::meter::Recorder;

/// Largest number of points of a cumulative curve.
const CURVE_POINTS: usize = 400;

/// The result of one run.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct RunResult {
    /// Results of the couples, in the order of the modules S1 to S4.
    pub(crate) couples: Vec<CoupleResult>,
    /// Faults of the cell's own messages, without bulk.
    pub(crate) faults: Faults,
    /// Time from when periodic messages were due until they were sent.
    pub(crate) lateness: Option<Latency>,
    /// CPU time of the broker as a share of the measured interval.
    pub(crate) broker_cpu_share: f64,
    pub(crate) queue: Option<QueueReport>,
    pub(crate) bulk: Option<Bulk>,
}

/// Expected deliveries and their faults, including the warm-up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Faults {
    /// Sum of the numbers of subscribers of all messages.
    pub(crate) expected: u64,
    pub(crate) lost: u64,
    pub(crate) out_of_order: u64,
    pub(crate) duplicates: u64,
    /// Messages received by a station that should not receive them.
    pub(crate) strays: u64,
}

/// Results of the bulk flow.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Bulk {
    /// Payload rate received by the bulk sink, Mbit/s.
    pub(crate) delivered_mbit_per_s: f64,
    pub(crate) faults: Faults,
}

/// Results of one couple of topics in one run.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct CoupleResult {
    pub(crate) topics: String,
    pub(crate) priority: u64,
    /// Messages sent on the data and on the command topic, the warm-up included.
    pub(crate) sent: [u64; 2],
    /// Round-trip time, (TD - TA) - (TC - TB), in the notation of the paper.
    pub(crate) round_trip: Option<Latency>,
    #[serde(skip)]
    pub(crate) buckets: Buckets,
}

impl CoupleResult {
    pub(crate) fn new(couple: &Couple, sent: [u64; 2], buckets: Buckets) -> Self {
        let mut recorder = Recorder::default();
        recorder.add(&buckets);
        Self {
            topics: couple.name(),
            priority: couple.priority,
            sent,
            round_trip: recorder.summary(),
            buckets,
        }
    }
}

impl Faults {
    /// The share of expected deliveries that were lost.
    pub(crate) fn loss_ratio(&self) -> f64 {
        self.lost as f64 / self.expected.max(1) as f64
    }

    /// Whether every message was delivered exactly once and in order.
    pub(crate) fn is_clean(&self) -> bool {
        self.lost + self.out_of_order + self.duplicates + self.strays == 0
    }

    pub(crate) fn add(&mut self, other: &Self) {
        self.expected += other.expected;
        self.lost += other.lost;
        self.out_of_order += other.out_of_order;
        self.duplicates += other.duplicates;
        self.strays += other.strays;
    }
}

/// The experiments, by the parameters that they vary.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Experiment {
    /// Figs 6 to 8, Table 3.
    RoundTrip,
    /// Fig. 9, Table 2.
    Queue,
    /// The cell alone on switches with priorities.
    Idle,
    /// The cell beside a saturating bulk flow, on switches with priorities.
    Bulk,
}

/// The parameters that runs of one case share.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Case {
    pub(crate) experiment: Experiment,
    pub(crate) broker: &'static str,
    /// Payload bytes.
    pub(crate) payload: usize,
    pub(crate) subscribers: usize,
}

/// All runs of one case.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Cell {
    pub(crate) case: Case,
    pub(crate) runs: Vec<RunResult>,
    /// Error messages of failed runs.
    pub(crate) errors: Vec<String>,
}

/// Runs by case, in the order in which the cases began.
#[derive(Debug, Default)]
pub(crate) struct Results {
    pub(crate) cells: Vec<Cell>,
}

impl Results {
    pub(crate) fn add(&mut self, case: &Case, outcome: Result<RunResult, String>) {
        let at = match self.cells.iter().position(|cell| cell.case == *case) {
            Some(at) => at,
            None => {
                self.cells.push(Cell {
                    case: case.clone(),
                    runs: Vec::new(),
                    errors: Vec::new(),
                });
                self.cells.len() - 1
            }
        };
        match outcome {
            Ok(run) => self.cells[at].runs.push(run),
            Err(error) => self.cells[at].errors.push(error),
        }
    }

    /// The runs of a case, if at least one of them succeeded.
    pub(crate) fn find(
        &self,
        experiment: Experiment,
        broker: &str,
        payload: usize,
        subscribers: usize,
    ) -> Option<&Cell> {
        self.of(experiment).find(|cell| {
            let case = &cell.case;
            case.broker == broker && case.payload == payload && case.subscribers == subscribers
        })
    }

    /// The cases of an experiment with at least one successful run.
    pub(crate) fn of(&self, experiment: Experiment) -> impl Iterator<Item = &Cell> {
        let cells = self.cells.iter();
        cells.filter(move |cell| cell.case.experiment == experiment && !cell.runs.is_empty())
    }
}

impl Cell {
    /// The median over the runs of a statistic of the round trips of couple `index`, µs.
    pub(crate) fn median(&self, index: usize, number: impl Fn(&Latency) -> f64) -> Option<f64> {
        let couples = self.runs.iter().filter_map(|run| run.couples.get(index));
        median(couples.filter_map(|couple| couple.round_trip.as_ref().map(&number)))
    }

    /// The share of the round trips of couple `index`, over all runs, that took at most `us` µs.
    pub(crate) fn share_within(&self, index: usize, us: f64) -> Option<f64> {
        let all = self.pooled(index);
        let total: u64 = all.iter().map(|(_, count)| count).sum();
        let within = all.iter().filter(|(ns, _)| *ns as f64 <= 1000.0 * us);
        (total > 0).then(|| within.map(|(_, count)| count).sum::<u64>() as f64 / total as f64)
    }

    /// The cumulative distribution of the round trips of couple `index`, over all runs: time in µs,
    /// and percent of round trips that took at most this time.
    pub(crate) fn curve(&self, index: usize) -> Vec<(f64, f64)> {
        let all = self.pooled(index);
        let total: u64 = all.iter().map(|(_, count)| count).sum();
        let mut curve = Vec::new();
        let mut sum = 0;
        let mut drawn = 0;
        for &(ns, count) in &all {
            sum += count;
            // Adds a point when the curve has risen visibly, and for the last value.
            if (sum - drawn) as usize * CURVE_POINTS >= total as usize || sum == total {
                drawn = sum;
                curve.push((ns as f64 / 1000.0, 100.0 * sum as f64 / total as f64));
            }
        }
        curve
    }

    /// Statistics of the broker's queue in the last run.
    pub(crate) fn queue(&self) -> Option<&QueueReport> {
        self.runs.last()?.queue.as_ref()
    }

    /// Sums of the faults over all runs.
    pub(crate) fn faults(&self) -> Faults {
        let mut faults = Faults::default();
        for run in &self.runs {
            faults.add(&run.faults);
        }
        faults
    }

    fn pooled(&self, index: usize) -> Buckets {
        let mut recorder = Recorder::default();
        for couple in self.runs.iter().filter_map(|run| run.couples.get(index)) {
            recorder.add(&couple.buckets);
        }
        recorder.buckets()
    }
}

#[cfg(test)]
mod tests {
    use super::super::cell::COUPLES;
    use super::*;

    fn run(buckets: Buckets) -> RunResult {
        RunResult {
            couples: vec![CoupleResult::new(&COUPLES[0], [1, 1], buckets)],
            faults: Faults {
                expected: 10,
                lost: 1,
                ..Faults::default()
            },
            ..RunResult::default()
        }
    }

    fn case(broker: &'static str) -> Case {
        Case {
            experiment: Experiment::RoundTrip,
            broker,
            payload: 100,
            subscribers: 2,
        }
    }

    #[test]
    fn medians_are_over_runs_and_curves_over_all_round_trips() {
        let mut results = Results::default();
        for us in [100, 300, 200] {
            results.add(&case("a"), Ok(run(vec![(us * 1000, 10)])));
        }
        results.add(&case("b"), Err("it ended".to_owned()));
        assert!(results.find(Experiment::RoundTrip, "b", 100, 2).is_none());
        assert!(results.find(Experiment::RoundTrip, "a", 500, 2).is_none());
        let cell = results.find(Experiment::RoundTrip, "a", 100, 2).unwrap();
        let mean = cell.median(0, |l| l.mean_us).unwrap();
        assert!((mean - 200.0).abs() < 1.0, "{mean}");
        assert_eq!(cell.median(1, |l| l.mean_us), None);
        let share = cell.share_within(0, 250.0).unwrap();
        assert!((share - 2.0 / 3.0).abs() < 1e-9);
        let curve = cell.curve(0);
        assert_eq!(curve.len(), 3);
        assert!((curve[0].1 - 100.0 / 3.0).abs() < 1e-9);
        assert!((curve[2].1 - 100.0).abs() < 1e-9);
        assert!(curve.is_sorted_by(|a, b| a.0 < b.0 && a.1 < b.1));
        assert_eq!((cell.faults().expected, cell.faults().lost), (30, 3));
    }

    #[test]
    fn a_curve_has_few_points_however_many_values() {
        let mut results = Results::default();
        let buckets = (1..100_000).map(|ns| (ns * 100, 1)).collect();
        results.add(&case("a"), Ok(run(buckets)));
        let curve = results.cells[0].curve(0);
        assert!(curve.len() <= CURVE_POINTS + 1, "{}", curve.len());
        assert_eq!(curve.last().map(|point| point.1), Some(100.0));
    }
}
