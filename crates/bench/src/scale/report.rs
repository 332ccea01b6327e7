//! Results of the runs: medians, ratios, tables.

use serde::Serialize;

use crate::compare::results::median;
use crate::compare::table::{count, dash, write_table};

/// Results of one run as names with unit, and values, in the order of the table.
pub(super) type Measures = Vec<(&'static str, f64)>;

/// One quantity of one case in one size.
#[derive(Debug, Serialize)]
pub(super) struct Row {
    size: u64,
    measure: &'static str,
    /// Values by system, in the order of the case, and by pair; `None` where a run failed.
    values: Vec<Vec<Option<f64>>>,
}

/// A run that failed.
#[derive(Debug, Serialize)]
pub(super) struct Failure {
    size: u64,
    system: &'static str,
    pair: usize,
    why: String,
}

/// All runs of one case.
#[derive(Debug, Serialize)]
pub(super) struct Outcome {
    case: &'static str,
    what: &'static str,
    /// Unit of the sizes.
    of: &'static str,
    systems: Vec<&'static str>,
    rows: Vec<Row>,
    failures: Vec<Failure>,
}

impl Outcome {
    pub(super) fn new(
        case: &'static str,
        what: &'static str,
        of: &'static str,
        systems: Vec<&'static str>,
    ) -> Self {
        Self {
            case,
            what,
            of,
            systems,
            rows: Vec::new(),
            failures: Vec::new(),
        }
    }

    /// Adds one run; `system` is an index into the systems of the case.
    pub(super) fn add(
        &mut self,
        size: u64,
        system: usize,
        pair: usize,
        run: Result<Measures, String>,
    ) {
        match run {
            Ok(measures) => {
                for (measure, value) in measures {
                    self.row(size, measure).put(system, pair, value);
                }
            }
            Err(why) => self.failures.push(Failure {
                size,
                system: self.systems[system],
                pair,
                why,
            }),
        }
    }

    /// Whether a run of a system in that size has failed already.
    pub(super) fn has_failed(&self, size: u64, system: usize) -> bool {
        let mut failures = self.failures.iter();
        failures.any(|it| it.size == size && it.system == self.systems[system])
    }

    fn row(&mut self, size: u64, measure: &'static str) -> &mut Row {
        let find = |row: &Row| row.size == size && row.measure == measure;
        let at = self.rows.iter().position(find).unwrap_or_else(|| {
            self.rows.push(Row {
                size,
                measure,
                values: vec![Vec::new(); self.systems.len()],
            });
            self.rows.len() - 1
        });
        &mut self.rows[at]
    }

    /// The table and the failed runs. Rows of one quantity stand together, by size.
    pub(super) fn markdown(&self) -> String {
        let pairs = self.ratios();
        let mut header = vec!["measure".to_owned(), self.of.to_owned()];
        header.extend(self.systems.iter().map(|&name| name.to_owned()));
        for &(a, b) in &pairs {
            header.push(format!("{} / {}", self.systems[a], self.systems[b]));
        }
        let mut measures: Vec<&str> = Vec::new();
        for row in &self.rows {
            if !measures.contains(&row.measure) {
                measures.push(row.measure);
            }
        }
        let rows = measures.into_iter().flat_map(|measure| {
            let rows = self.rows.iter().filter(move |row| row.measure == measure);
            rows.map(|row| row.cells(self.systems.len(), &pairs))
        });
        let mut text = String::new();
        let title = format!("{}: {}", self.case, self.what);
        write_table(&mut text, &title, &header, &rows.collect::<Vec<_>>());
        if !self.failures.is_empty() {
            text.push_str("\nRuns that failed:\n\n");
        }
        for it in &self.failures {
            text += &format!("- {}, {} {}: {}\n", it.system, it.size, self.of, it.why);
        }
        text
    }

    /// Pairs of systems that are compared: each system with those after it.
    fn ratios(&self) -> Vec<(usize, usize)> {
        let count = self.systems.len();
        let pairs = (0..count).flat_map(|a| (a + 1..count).map(move |b| (a, b)));
        pairs.collect()
    }
}

impl Row {
    fn put(&mut self, system: usize, pair: usize, value: f64) {
        let values = &mut self.values[system];
        if values.len() <= pair {
            values.resize(pair + 1, None);
        }
        values[pair] = Some(value);
    }

    fn value(&self, system: usize, pair: usize) -> Option<f64> {
        self.values.get(system)?.get(pair).copied().flatten()
    }

    fn median(&self, system: usize) -> Option<f64> {
        median(self.values.get(system)?.iter().copied().flatten())
    }

    /// The median over the pairs of `a`'s value divided by `b`'s, without pairs where `b`'s value
    /// is not above zero.
    fn ratio(&self, a: usize, b: usize) -> Option<f64> {
        let pairs = 0..self.values.get(a)?.len();
        let ratio = |pair| {
            let below = self.value(b, pair).filter(|&below| below > 0.0)?;
            Some(self.value(a, pair)? / below)
        };
        median(pairs.filter_map(ratio))
    }

    fn cells(&self, systems: usize, pairs: &[(usize, usize)]) -> Vec<String> {
        let cell = |value: Option<f64>| value.map_or_else(dash, number);
        let mut cells = vec![self.measure.to_owned(), self.size.to_string()];
        cells.extend((0..systems).map(|system| cell(self.median(system))));
        cells.extend(pairs.iter().map(|&(a, b)| cell(self.ratio(a, b))));
        cells
    }
}

/// Formats a number with about three significant digits.
fn number(value: f64) -> String {
    match value.abs() {
        v if v >= 1000.0 => count(value),
        v if v >= 100.0 => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        v if v >= 1.0 || v == 0.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

/// Parses a size for clap: 1000, or 10^3.
pub(super) fn size(text: &str) -> Result<u64, String> {
    /// From the smallest size at which every case is meaningful, to more than a run can finish in
    /// reasonable time.
    const SIZES: std::ops::RangeInclusive<u64> = 10..=10_000_000;
    let number = match text.split_once('^') {
        Some((base, power)) => base
            .parse()
            .ok()
            .zip(power.parse().ok())
            .and_then(|(base, power): (u64, u32)| base.checked_pow(power)),
        None => text.parse().ok(),
    };
    let wrong = || "give a number from 10 to 10000000, such as 1000 or 10^3".to_owned();
    number
        .filter(|number| SIZES.contains(number))
        .ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_numbers_or_powers() {
        for (text, n) in [("100", 100), ("10^2", 100), ("10^6", 1_000_000)] {
            assert_eq!(size(text), Ok(n));
        }
        for text in [
            "", "9", "-100", "1e3", "10^", "10^8", "10^99", "2^x", "1000 ",
        ] {
            assert!(size(text).is_err(), "{text}");
        }
    }

    #[test]
    fn numbers_have_three_digits() {
        for (value, text) in [
            (4_130_000.0, "4.13M"),
            (1234.0, "1.2k"),
            (-1234.0, "-1234"),
            (421.4, "421"),
            (42.14, "42.1"),
            (1.0, "1.00"),
            (0.0, "0.00"),
            (0.5, "0.500"),
        ] {
            assert_eq!(number(value), text);
        }
    }

    fn outcome() -> Outcome {
        Outcome::new("topics", "all", "n", vec!["a", "b", "c"])
    }

    #[test]
    fn ratios_are_medians_of_pairs() {
        let mut outcome = outcome();
        // The machine is twice as fast in the second pair, and a system fails in the third pair.
        for (pair, a, b) in [(0, 10.0, 20.0), (1, 20.0, 40.0)] {
            outcome.add(100, 0, pair, Ok(vec![("x", a)]));
            outcome.add(100, 1, pair, Ok(vec![("x", b)]));
            outcome.add(100, 2, pair, Ok(vec![("x", 0.0)]));
        }
        outcome.add(100, 0, 2, Ok(vec![("x", 90.0)]));
        outcome.add(100, 1, 2, Err("it ended".to_owned()));
        let row = &outcome.rows[0];
        assert_eq!(row.median(0), Some(20.0));
        assert_eq!(row.ratio(0, 1), Some(0.5));
        assert_eq!(row.ratio(1, 0), Some(2.0));
        assert_eq!(row.ratio(0, 2), None);
        assert!(outcome.has_failed(100, 1) && !outcome.has_failed(100, 0));
    }

    #[test]
    fn curves_stand_together_and_failures_below() {
        let mut outcome = outcome();
        for size in [100, 1000] {
            outcome.add(size, 0, 0, Ok(vec![("x", 2.0), ("y", 3.0)]));
        }
        outcome.add(1000, 1, 0, Ok(vec![("x", 4.0)]));
        outcome.add(1000, 2, 0, Err("it ended".to_owned()));
        let lines = [
            "### topics: all",
            "",
            "| measure | n | a | b | c | a / b | a / c | b / c |",
            "|---|--:|--:|--:|--:|--:|--:|--:|",
            "| x | 100 | 2.00 | – | – | – | – | – |",
            "| x | 1000 | 2.00 | 4.00 | – | 0.500 | – | – |",
            "| y | 100 | 3.00 | – | – | – | – | – |",
            "| y | 1000 | 3.00 | – | – | – | – | – |",
            "",
            "Runs that failed:",
            "",
            "- c, 1000 n: it ended",
        ];
        assert_eq!(outcome.markdown().trim().lines().collect::<Vec<_>>(), lines);
    }
}
