//! The same loads measured without a clock: the most units of work that the broker does in one
//! piece, which does not depend on the speed or load of the machine.

use std::io::Write;
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::{Duration, Instant};

use punctual_measure::{Api, Error, Result, Samples};

use super::NeighboursArgs;
use super::kinds::Kind;

/// Units of a slice ([Architecture](../../../../ARCHITECTURE.md#pieces-of-work)), and the most
/// units of an operation that may begin just before they are spent.
const MOST: f64 = (512 + 128) as f64;
/// Time limit of a slice that no machine reaches, so that slices always end by their number of
/// units.
const SLICE: &str = "10ms";
/// Each kind of neighbour does a tenth of the operations that it does in a timed run.
const PART: usize = 10;
/// Least duration of a neighbour's load; at least two operations are performed.
const LEAST: Duration = Duration::from_millis(200);
/// Interval between two checks whether the broker has finished its work.
const LOOK: Duration = Duration::from_millis(20);

/// Units of work that one kind of neighbour causes in one piece.
struct Row {
    kind: &'static str,
    times: u64,
    units: Units,
}

/// Most units in one piece, by the name of the work.
#[derive(Debug, PartialEq)]
struct Units(Vec<(String, f64)>);

impl Units {
    /// Parses the broker's metrics.
    fn parse(metrics: &str) -> Self {
        const NAME: &str = "punctual_turn_longest_units";
        let samples = Samples::parse(metrics);
        let works = samples.label_values(NAME, "work").into_iter();
        let most = |work: &str| Some((work.to_owned(), samples.sum(NAME, &[("work", work)])?));
        Self(works.filter_map(most).collect())
    }

    /// Reads the metrics of the broker when they no longer change.
    fn at_rest(http: &Api) -> Result<Self> {
        let look = || Ok::<_, Error>(Self::parse(&http.get("/metrics")?));
        let mut before = look()?;
        loop {
            thread::sleep(LOOK);
            let now = look()?;
            if now == before {
                return Ok(now);
            }
            before = now;
        }
    }

    /// Kinds of work with a piece above the limit.
    fn too_long(&self) -> impl Iterator<Item = &(String, f64)> {
        self.0.iter().filter(|(_, units)| *units > MOST)
    }
}

impl NeighboursArgs {
    /// Runs the kinds; returns whether no piece of work was above the limit.
    pub(super) fn check_units(&self, kinds: &[&'static Kind], out: &mut dyn Write) -> Result<bool> {
        let mut rows = Vec::new();
        for kind in kinds {
            eprintln!("{}: {}", kind.name, kind.what);
            rows.push(self.units_of(kind)?);
        }
        write(&rows, out).map_err(Error::io("cannot write the table"))?;
        let complaints = complaints(&rows);
        for complaint in &complaints {
            eprintln!("{complaint}");
        }
        Ok(complaints.is_empty())
    }

    fn units_of(&self, kind: &'static Kind) -> Result<Row> {
        let started = self.start(Some(kind), SLICE)?;
        let stop = AtomicBool::new(false);
        let place = started.place(&self.directory, &stop, PART);
        (kind.prepare)(&place)?;
        let begun = Instant::now();
        let mut times = 0;
        while times < 2 || begun.elapsed() < LEAST {
            (kind.once)(&place, times)?;
            times += 1;
        }
        Ok(Row {
            kind: kind.name,
            times,
            units: Units::at_rest(place.http)?,
        })
    }
}

/// Pieces above the limit, one line each.
fn complaints(rows: &[Row]) -> Vec<String> {
    let complain = |row: &Row| {
        let of_row = row.units.too_long().map(|(work, units)| {
            format!(
                "{}: {units} units of {work} in one piece, and at most {MOST} may be",
                row.kind
            )
        });
        of_row.collect::<Vec<_>>()
    };
    rows.iter().flat_map(complain).collect()
}

fn write(rows: &[Row], out: &mut dyn Write) -> std::io::Result<()> {
    writeln!(out, "| neighbour | times | most units in one piece |")?;
    writeln!(out, "|---|--:|---|")?;
    for row in rows {
        let each = row.units.0.iter();
        let each: Vec<_> = each
            .map(|(work, units)| format!("{work} {units}"))
            .collect();
        writeln!(
            out,
            "| {} | {} | {} |",
            row.kind,
            row.times,
            each.join(", ")
        )?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(metrics: &str) -> Row {
        Row {
            kind: "subscribe",
            times: 2,
            units: Units::parse(metrics),
        }
    }

    #[test]
    fn a_piece_that_is_too_long_is_named_with_its_kind() {
        let metrics = |units: u32| {
            format!(
                "punctual_turn_longest_seconds{{work=\"filters\"}} 700\n\
                 punctual_turn_longest_units{{work=\"timers\"}} 16\n\
                 punctual_turn_longest_units{{work=\"filters\"}} {units}\n"
            )
        };
        assert!(complaints(&[row(&metrics(640)), row("")]).is_empty());
        let said = complaints(&[row(&metrics(641))]);
        let wanted = "subscribe: 641 units of filters in one piece, and at most 640 may be";
        assert_eq!(said, [wanted]);
        let mut table = Vec::new();
        write(&[row(&metrics(7))], &mut table).unwrap();
        let table = String::from_utf8(table).unwrap();
        assert!(
            table.ends_with("| subscribe | 2 | timers 16, filters 7 |\n"),
            "{table}"
        );
    }
}
