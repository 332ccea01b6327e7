//! What was seen as a table, as CSV and as JSON.

use std::fmt::Write as _;

use hdrhistogram::Histogram;
use serde_json::{Value, json};

use super::run::Seen;
use crate::cli::analyze::table::{Unit, aligned, quoted};

/// Name and version of the JSON format.
const FORMAT: &str = "punctual-simulation-1";
/// Bars of a histogram, and the length of the longest.
const BARS: u64 = 20;
const BAR: u64 = 50;

/// What was seen of all paths.
#[derive(Debug)]
pub(super) struct Report {
    /// In the order of the flows and their paths.
    pub(super) rows: Vec<Row>,
    /// What was done, in a line.
    pub(super) story: String,
}

/// What was seen of a flow to one destination.
#[derive(Debug)]
pub(super) struct Row {
    /// The flow's name.
    pub(super) flow: String,
    /// Index of the path.
    pub(super) path: usize,
    /// The nodes.
    pub(super) route: String,
    /// The flow's priority.
    pub(super) priority: u64,
    /// The flow's deadline, ns.
    pub(super) deadline: u64,
    /// The bound, ns.
    pub(super) bound: Option<u64>,
    /// What was seen.
    pub(super) seen: Seen,
}

impl Row {
    /// The largest response, if a message came.
    fn observed(&self) -> Option<u64> {
        (self.seen.worst.count > 0).then_some(self.seen.worst.response)
    }

    /// Bound over response.
    fn ratio(&self) -> Option<f64> {
        Some(self.bound? as f64 / self.observed().filter(|seen| *seen > 0)? as f64)
    }

    fn is_refuted(&self) -> bool {
        self.bound
            .is_some_and(|bound| self.observed().is_some_and(|seen| seen > bound))
    }
}

impl Report {
    /// A response is above its bound.
    pub(super) fn is_refuted(&self) -> bool {
        self.rows.iter().any(Row::is_refuted)
    }

    /// For people.
    pub(super) fn text(&self) -> String {
        let times = self
            .rows
            .iter()
            .flat_map(|row| row.bound.iter().chain([&row.deadline]));
        let unit = Unit::for_times(times);
        let histograms = self.rows.iter().any(|row| row.seen.histogram.is_some());
        let time = |name: &str| format!("{name} {}", unit.name);
        let mut head = vec!["flow".to_owned(), "path".into(), "prio".into()];
        head.extend([
            time("seen"),
            time("bound"),
            "bound/seen".into(),
            time("deadline"),
        ]);
        head.extend(["messages".into(), "seed".into(), "message".into()]);
        if histograms {
            head.extend(["p50", "p99", "p99.9"].map(time));
        }
        let rows = self.rows.iter().map(|row| {
            let worst = row.seen.worst;
            let dash = || "-".to_owned();
            let mut cells = vec![
                row.flow.clone(),
                row.route.clone(),
                row.priority.to_string(),
            ];
            cells.extend([unit.maybe(row.observed()), unit.maybe(row.bound)]);
            cells.push(row.ratio().map_or_else(dash, |ratio| format!("{ratio:.3}")));
            cells.push(unit.text(row.deadline));
            cells.push(worst.count.to_string());
            cells.push(row.seen.seed.map_or_else(dash, |seed| seed.to_string()));
            cells.push(
                row.observed()
                    .map_or_else(dash, |_| worst.message.to_string()),
            );
            if histograms {
                let at = |quantile: f64| {
                    let histogram = row.seen.histogram.as_ref()?;
                    Some(histogram.value_at_quantile(quantile))
                };
                cells.extend([0.5, 0.99, 0.999].map(|quantile| unit.maybe(at(quantile))));
            }
            cells
        });
        let rows: Vec<_> = rows.collect();
        let mut text = aligned(&head, &rows);
        for row in &self.rows {
            if let Some(histogram) = &row.seen.histogram {
                let _ = write!(
                    text,
                    "\n{} {}\n{}",
                    row.flow,
                    row.route,
                    bars(histogram, unit)
                );
            }
        }
        let _ = writeln!(text, "\n{}", self.summary());
        text
    }

    fn summary(&self) -> String {
        let mut text = self.story.clone();
        let ratios: Vec<f64> = self.rows.iter().filter_map(Row::ratio).collect();
        let largest = ratios.iter().copied().reduce(f64::max);
        if let Some(largest) = largest {
            let mean = ratios.iter().sum::<f64>() / ratios.len() as f64;
            let _ = write!(
                text,
                "\nbound / largest response: mean {mean:.3}, largest {largest:.3}"
            );
        }
        for row in self.rows.iter().filter(|row| row.is_refuted()) {
            let _ = write!(
                text,
                "\n{} path {}: the response is above the bound. This is a fault of Punctual: please report it with the network and the seed",
                row.flow, row.path
            );
        }
        text
    }

    /// Comma-separated, times in whole nanoseconds, empty where there is none.
    pub(super) fn csv(&self) -> String {
        let mut text = String::from(
            "flow,path,route,prio,observed_ns,wcrt_ns,deadline_ns,messages,seed,message\n",
        );
        let number = |number: Option<u64>| number.map_or_else(String::new, |n| n.to_string());
        for row in &self.rows {
            let _ = writeln!(
                text,
                "{},{},{},{},{},{},{},{},{},{}",
                quoted(&row.flow),
                row.path,
                quoted(&row.route),
                row.priority,
                number(row.observed()),
                number(row.bound),
                row.deadline,
                row.seen.worst.count,
                number(row.seen.seed),
                number(row.observed().map(|_| row.seen.worst.message.into())),
            );
        }
        text
    }

    /// For machines; `punctual analyze --observed` reads it.
    pub(super) fn json(&self, scenarios: bool) -> Value {
        let row = |row: &Row| {
            let mut fields = json!({
                "flow": row.flow,
                "path": row.path,
                "route": row.route,
                "prio": row.priority,
                "observed_ns": row.observed(),
                "wcrt_ns": row.bound,
                "deadline_ns": row.deadline,
                "messages": row.seen.worst.count,
                "seed": row.seen.seed,
                "message": row.observed().map(|_| row.seen.worst.message),
            });
            if let Some(histogram) = &row.seen.histogram {
                let counts = histogram.iter_recorded();
                let counts =
                    counts.map(|step| json!([step.value_iterated_to(), step.count_at_value()]));
                fields["histogram_ns"] = counts.collect();
            }
            if scenarios && let Some(scenario) = &row.seen.scenario {
                fields["scenario"] = json!(scenario);
            }
            fields
        };
        json!({
            "format": FORMAT,
            "about": self.story,
            "results": self.rows.iter().map(row).collect::<Vec<_>>(),
        })
    }
}

/// A line for each step from the smallest response to the largest.
fn bars(histogram: &Histogram<u64>, unit: Unit) -> String {
    let width = (histogram.max() - histogram.min()) / BARS + 1;
    let mut counts = vec![0_u64; BARS as usize];
    for step in histogram.iter_recorded() {
        let above = step.value_iterated_to().saturating_sub(histogram.min());
        let at = (above / width).min(BARS - 1) as usize;
        counts[at] += step.count_at_value();
    }
    let most = counts.iter().copied().max().unwrap_or(1).max(1);
    let mut text = String::new();
    for (at, count) in counts.iter().enumerate() {
        let from = histogram.min() + at as u64 * width;
        let bar = "#".repeat((count * BAR).div_ceil(most) as usize);
        let _ = writeln!(text, "  {:>10} {count:>10} {bar}", unit.text(from));
    }
    text
}
