//! Lines over an axis of time, with their names beside the plot.

use std::fmt::Write as _;

use crate::bars::{Unit, nice_step};
use crate::chart::{Chart, LETTER, escape};

const PLOT_WIDTH: f64 = 496.0;
const HEIGHT: f64 = 320.0;
const LEFT: f64 = 56.0;
const TOP: f64 = 14.0;
const BOTTOM: f64 = 44.0;
/// Distance between the plot and the names of lines, and height of a name.
const GAP: f64 = 16.0;
const ROW: f64 = 16.0;
/// Length of the sample line before a name.
const SIGN: f64 = 28.0;

/// A line.
#[derive(Debug, Clone)]
pub struct Line {
    /// Name of the line.
    pub name: String,
    /// Colour, 0 to 7.
    pub colour: usize,
    /// Dash style: 0 solid, 1 long dashes, 2 short dashes.
    pub dash: usize,
    /// Points of time in s and value, in ascending order of time.
    pub points: Vec<(f64, f64)>,
}

/// A chart of lines over time.
#[derive(Debug, Clone)]
pub struct Lines {
    /// Title of the chart, for screen readers.
    pub title: String,
    /// Unit of the values.
    pub unit: Unit,
    /// The lines, in the order of their names.
    pub lines: Vec<Line>,
}

/// Draws lines over an axis of time.
pub fn lines(all: &Lines) -> Chart {
    let points = || all.lines.iter().flat_map(|line| line.points.iter());
    let (until, time_step) = axis(points().map(|(seconds, _)| *seconds));
    let (high, step) = axis(points().map(|(_, value)| *value));
    let names = all.lines.iter().map(|line| line.name.chars().count());
    let names = SIGN + LETTER * names.max().unwrap_or(0) as f64;
    let floor = HEIGHT - BOTTOM;
    let (x, y) = (
        |seconds: f64| LEFT + seconds / until * PLOT_WIDTH,
        |value: f64| floor - value / high * (floor - TOP),
    );
    let legend = TOP + ROW * all.lines.len() as f64;
    let mut chart = Chart::new(
        &all.title,
        LEFT + PLOT_WIDTH + GAP + names,
        HEIGHT.max(legend + ROW),
    );
    for value in ticks(high, step) {
        let (at, label) = (y(value), all.unit.label(value));
        chart.add(format_args!(
            "<line class=\"grid\" x1=\"{LEFT}\" y1=\"{at:.1}\" x2=\"{:.1}\" y2=\"{at:.1}\"/>\
             <text class=\"ink\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{label}</text>",
            LEFT + PLOT_WIDTH,
            LEFT - 6.0,
            at + 4.0
        ));
    }
    for seconds in ticks(until, time_step) {
        let at = x(seconds);
        chart.add(format_args!(
            "<line class=\"grid\" x1=\"{at:.1}\" y1=\"{TOP}\" x2=\"{at:.1}\" y2=\"{floor:.1}\"/>\
             <text class=\"ink\" x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{seconds} s</text>",
            floor + 16.0
        ));
    }
    for (row, line) in all.lines.iter().enumerate() {
        let mut path = String::new();
        for (seconds, value) in &line.points {
            let command = if path.is_empty() { 'M' } else { 'L' };
            let _ = write!(path, "{command}{:.1} {:.1}", x(*seconds), y(*value));
        }
        let class = format!("curve s{} d{}", line.colour % 8, line.dash % 3);
        let (left, middle) = (LEFT + PLOT_WIDTH + GAP, TOP + ROW * (row as f64 + 0.5));
        chart.add(format_args!(
            "<path class=\"{class}\" d=\"{path}\"/>\
             <path class=\"{class}\" d=\"M{left:.1} {middle:.1}h22\"/>\
             <text class=\"ink\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            left + SIGN,
            middle + 4.0,
            escape(&line.name)
        ));
    }
    chart
}

/// The end of an axis from 0 that holds all values, and the step of its marks.
fn axis(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let most = values.fold(0.0, f64::max);
    let step = nice_step(most / 5.0);
    (((most / step).ceil() * step).max(step), step)
}

fn ticks(end: f64, step: f64) -> impl Iterator<Item = f64> {
    let count = (end / step).round() as u32;
    (0..=count).map(move |n| (f64::from(n) * step * 1e6).round() / 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(name: &str, points: &[(f64, f64)]) -> Line {
        Line {
            name: name.to_owned(),
            colour: 9,
            dash: 1,
            points: points.to_vec(),
        }
    }

    #[test]
    fn every_line_has_its_name_beside_the_plot_and_stays_within_it() {
        let all = Lines {
            title: "t".into(),
            unit: Unit::Kilobytes,
            lines: vec![
                line("a < b", &[(0.0, 0.0), (4.5, 300.0)]),
                line("empty", &[]),
            ],
        };
        let svg = lines(&all).svg();
        assert!(
            svg.contains(">a &lt; b</text>") && svg.contains(">empty</text>"),
            "{svg}"
        );
        assert_eq!(svg.matches("class=\"curve s1 d1\"").count(), 4);
        // 4.5 of 5 seconds, 300 of 300 kB.
        assert!(svg.contains("d=\"M56.0 276.0L502.4 14.0\""), "{svg}");
        assert!(
            svg.contains(">300 kB</text>") && svg.contains(">5 s</text>"),
            "{svg}"
        );
    }

    #[test]
    fn nothing_to_draw_is_an_empty_plot() {
        let all = Lines {
            title: "t".into(),
            unit: Unit::Percent,
            lines: Vec::new(),
        };
        assert!(lines(&all).svg().contains(">1 %</text>"));
    }

    #[test]
    fn many_names_make_it_high() {
        let all = Lines {
            title: "t".into(),
            unit: Unit::Kilobytes,
            lines: (0..30).map(|n| line(&n.to_string(), &[])).collect(),
        };
        assert!(lines(&all).svg().contains(" 510\""));
    }
}
