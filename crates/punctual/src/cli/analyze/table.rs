//! A study as a table for people, as CSV and as JSON.

use std::fmt::Write as _;

use punctual_analysis::LinkLoad;
use serde_json::{Map, Value, json};

use super::method::Method;
use super::study::{Row, Study};

/// Name and version of the JSON format.
const FORMAT: &str = "punctual-analysis-1";

/// The unit in which a table states times.
#[derive(Debug, Clone, Copy)]
pub(in crate::cli) struct Unit {
    /// Its name.
    pub(in crate::cli) name: &'static str,
    nanos: i128,
}

impl Unit {
    /// Milliseconds, or microseconds if every time is below one.
    pub(super) fn of(study: &Study) -> Self {
        let rows = study.rows.iter();
        Self::for_times(rows.flat_map(|row| row.bounds.iter().flatten().chain([&row.deadline])))
    }

    /// Milliseconds, or microseconds if every time is below one.
    pub(in crate::cli) fn for_times<'a>(times: impl Iterator<Item = &'a u64>) -> Self {
        match times.max() {
            Some(longest) if *longest < 1_000_000 => Self {
                name: "µs",
                nanos: 1000,
            },
            _ => Self {
                name: "ms",
                nanos: 1_000_000,
            },
        }
    }

    /// A time with three places after the point.
    pub(in crate::cli) fn text(self, nanos: impl Into<i128>) -> String {
        let nanos = nanos.into();
        let step = self.nanos / 1000;
        let thousandths = (nanos.abs() + step / 2) / step;
        let sign = if nanos < 0 && thousandths > 0 {
            "-"
        } else {
            ""
        };
        format!("{sign}{}.{:03}", thousandths / 1000, thousandths % 1000)
    }

    /// A time, or a dash.
    pub(in crate::cli) fn maybe(self, nanos: Option<impl Into<i128>>) -> String {
        nanos.map_or_else(|| "-".into(), |nanos| self.text(nanos))
    }
}

/// The columns of a study and their cells.
pub(super) fn cells(study: &Study) -> (Vec<String>, Vec<Vec<String>>) {
    let unit = Unit::of(study);
    let time = |name: &str| format!("{name} {}", unit.name);
    let mut head: Vec<String> = vec!["flow".into(), "path".into(), "prio".into()];
    head.extend(study.methods.iter().map(|method| time(method.title())));
    head.extend([time("deadline"), time("slack")]);
    if study.observed {
        head.push(time("observed"));
    }
    head.push("verdict".into());
    let row = |row: &Row| {
        let mut cells = vec![
            row.flow.clone(),
            row.route.clone(),
            row.priority.to_string(),
        ];
        cells.extend(row.bounds.iter().map(|bound| unit.maybe(*bound)));
        cells.push(unit.text(row.deadline));
        cells.push(unit.maybe(row.slack()));
        if study.observed {
            cells.push(unit.maybe(row.observed));
        }
        cells.push(row.verdict().text().into());
        cells
    };
    (head, study.rows.iter().map(row).collect())
}

/// For people: aligned columns, remarks, and the answer in the last line.
pub(super) fn text(study: &Study) -> String {
    let (head, rows) = cells(study);
    let mut text = aligned(&head, &rows);
    text.push('\n');
    for remark in study.remarks() {
        let _ = writeln!(text, "{remark}");
    }
    let _ = writeln!(text, "{}", study.summary());
    text
}

/// Columns of a width; numbers and what stands above them to the right.
pub(in crate::cli) fn aligned(head: &[String], rows: &[Vec<String>]) -> String {
    let lines = || std::iter::once(head).chain(rows.iter().map(Vec::as_slice));
    let width = |cell: &String| cell.chars().count();
    let widths: Vec<usize> = (0..head.len())
        .map(|column| lines().map(|line| width(&line[column])).max().unwrap_or(0))
        .collect();
    let number = |cell: &String| cell == "-" || cell.trim_end_matches(" %").parse::<f64>().is_ok();
    let right: Vec<bool> = (0..head.len())
        .map(|column| rows.iter().all(|row| number(&row[column])))
        .collect();
    let mut text = String::new();
    for line in lines() {
        let mut written = String::new();
        for (column, cell) in line.iter().enumerate() {
            let room = " ".repeat(widths[column] - width(cell));
            let (before, after) = if right[column] {
                (room.as_str(), "")
            } else {
                ("", room.as_str())
            };
            let _ = write!(written, "{before}{cell}{after}  ");
        }
        let _ = writeln!(text, "{}", written.trim_end());
    }
    text
}

/// Comma-separated, times in whole nanoseconds, empty where there is none.
pub(super) fn csv(study: &Study) -> String {
    let mut text = String::from("flow,path,route,prio,period_ns,deadline_ns");
    for method in &study.methods {
        let _ = write!(text, ",{}", method.key());
    }
    text.push_str(",slack_ns,observed_ns,verdict\n");
    let number = |number: Option<i128>| number.map_or_else(String::new, |n| n.to_string());
    for row in &study.rows {
        let _ = write!(
            text,
            "{},{},{},{},{},{}",
            quoted(&row.flow),
            row.path,
            quoted(&row.route),
            row.priority,
            row.period,
            row.deadline
        );
        for bound in &row.bounds {
            let _ = write!(text, ",{}", number(bound.map(i128::from)));
        }
        let _ = writeln!(
            text,
            ",{},{},{}",
            number(row.slack()),
            number(row.observed.map(i128::from)),
            row.verdict().text()
        );
    }
    text
}

/// A field of CSV.
pub(in crate::cli) fn quoted(field: &str) -> String {
    match field.contains(['"', ',', '\n', '\r']) {
        true => format!("\"{}\"", field.replace('"', "\"\"")),
        false => field.to_owned(),
    }
}

/// For machines; the keys are those of the contract where it has them.
pub(super) fn json(study: &Study) -> Value {
    let row = |row: &Row| {
        let mut fields = Map::new();
        let mut set = |key: &str, value: Value| fields.insert(key.to_owned(), value);
        set("flow", json!(row.flow));
        set("path", json!(row.path));
        set("route", json!(row.route));
        set("prio", json!(row.priority));
        set("period_ns", json!(row.period));
        set("deadline_ns", json!(row.deadline));
        for (method, bound) in study.methods.iter().zip(&row.bounds) {
            set(Method::key(*method), json!(bound));
        }
        // Deadline and bound are far below 2^63, unless the file says
        // otherwise; then the nearest number is as good.
        let slack = row
            .slack()
            .map(|slack| i64::try_from(slack).unwrap_or(i64::MAX));
        set("slack_ns", json!(slack));
        set("schedulable", json!(row.verdict().text() == "ok"));
        if study.observed {
            set("observed_ns", json!(row.observed));
        }
        Value::Object(fields)
    };
    let link = |load: &LinkLoad| {
        json!({
            "link": study.network.topology.links[load.link].id,
            "load_percent": (load.percent() * 1e6).round() / 1e6,
            "overloaded_from_prio": load.overloaded_from,
        })
    };
    json!({
        "format": FORMAT,
        "schedulable": study.is_schedulable(),
        "results": study.rows.iter().map(row).collect::<Vec<_>>(),
        "links": study.loads.iter().map(link).collect::<Vec<_>>(),
        "remarks": study.remarks(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_rounded_to_the_nearest() {
        let ms = Unit {
            name: "ms",
            nanos: 1_000_000,
        };
        let cases = [
            (1_965_640, "1.966"),
            (1_739_500, "1.740"),
            (0, "0.000"),
            (-499, "0.000"),
            (-500, "-0.001"),
            (-12_000_000, "-12.000"),
        ];
        for (nanos, text) in cases {
            assert_eq!(ms.text(nanos), text, "{nanos}");
        }
        assert_eq!(ms.maybe(None::<u64>), "-");
    }

    #[test]
    fn columns_of_numbers_stand_to_the_right() {
        let text = |cells: [&str; 3]| cells.map(String::from).to_vec();
        assert_eq!(
            aligned(
                &text(["a", "b ms", "c"]),
                &[text(["→→x", "1.5", "ok"]), text(["y", "-", ""])]
            ),
            "a    b ms  c\n→→x   1.5  ok\ny       -\n"
        );
    }

    #[test]
    fn fields_of_csv_are_quoted_where_they_must() {
        assert_eq!(quoted("a→b"), "a→b");
        assert_eq!(quoted("a,\"b\""), "\"a,\"\"b\"\"\"");
    }
}
