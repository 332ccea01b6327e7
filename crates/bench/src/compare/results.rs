//! Results of a comparison, with medians over repetitions.

use serde::Serialize;

use punctual_measure::load::Report;

/// All runs of one case on one broker.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Cell {
    /// Title of the case.
    pub(crate) case: String,
    /// Name of the broker.
    pub(crate) broker: String,
    pub(crate) reports: Vec<Report>,
    /// Errors of the runs that failed.
    pub(crate) errors: Vec<String>,
}

impl Cell {
    /// Median over the runs of the value that `value` takes from a report; `None` if no run has
    /// one.
    pub(crate) fn median(&self, value: impl Fn(&Report) -> Option<f64>) -> Option<f64> {
        median(self.reports.iter().filter_map(value))
    }

    pub(crate) fn throughput(&self) -> Option<f64> {
        self.median(|report| Some(report.delivered_per_s))
    }

    /// Shares of the expected messages that were lost, and that were out of order, over all runs.
    pub(crate) fn faults(&self) -> (f64, f64) {
        let sum = |count: fn(&Report) -> u64| self.reports.iter().map(count).sum::<u64>() as f64;
        let due = sum(|r| r.expected).max(1.0);
        (sum(|r| r.lost) / due, sum(|r| r.out_of_order) / due)
    }
}

/// All results.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Results {
    pub(crate) cells: Vec<Cell>,
}

impl Results {
    /// Adds the outcome of one run.
    pub(crate) fn add(&mut self, case: &str, broker: &str, outcome: Result<Report, String>) {
        let at = self
            .cells
            .iter()
            .position(|cell| cell.case == case && cell.broker == broker)
            .unwrap_or_else(|| {
                self.cells.push(Cell {
                    case: case.to_owned(),
                    broker: broker.to_owned(),
                    reports: Vec::new(),
                    errors: Vec::new(),
                });
                self.cells.len() - 1
            });
        let cell = &mut self.cells[at];
        match outcome {
            Ok(report) => cell.reports.push(report),
            Err(error) => cell.errors.push(error),
        }
    }

    pub(crate) fn cell(&self, case: &str, broker: &str) -> Option<&Cell> {
        self.cells
            .iter()
            .find(|cell| cell.case == case && cell.broker == broker)
    }
}

/// The middle value, or the mean of the two in the middle.
pub(crate) fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => None,
        n if n % 2 == 1 => Some(values[middle]),
        _ => Some(f64::midpoint(values[middle - 1], values[middle])),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use punctual_measure::load::{Options, Scenario};

    fn report(rate: f64, lost: u64) -> Report {
        Report {
            delivered_per_s: rate,
            expected: 100,
            lost,
            ..Report::empty(&Options::new(Scenario::Rate, ([127, 0, 0, 1], 1).into()))
        }
    }

    #[test]
    fn medians_leave_failed_runs_out() {
        let mut results = Results::default();
        results.add("a", "b", Err("refused".to_owned()));
        assert_eq!(results.cell("a", "b").unwrap().throughput(), None);
        for rate in [9.0, 1.0, 5.0] {
            results.add("a", "b", Ok(report(rate, 2)));
        }
        let cell = results.cell("a", "b").unwrap();
        assert_eq!(cell.throughput(), Some(5.0));
        assert_eq!(cell.faults(), (0.02, 0.0));
        results.add("a", "b", Ok(report(7.0, 0)));
        assert_eq!(results.cell("a", "b").unwrap().throughput(), Some(6.0));
        assert!(results.cell("a", "c").is_none());
    }

    #[test]
    fn the_median_of_an_even_number_lies_between_the_middle_two() {
        assert_eq!(median([3.0, 1.0, 2.0].into_iter()), Some(2.0));
        assert_eq!(median([4.0, 1.0].into_iter()), Some(2.5));
        assert_eq!(median(std::iter::empty()), None);
    }
}
