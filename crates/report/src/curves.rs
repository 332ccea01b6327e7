//! Cumulative curves over a logarithmic axis of time, in panels that share their axes and a legend.

use std::fmt::Write as _;

use crate::chart::{Chart, LETTER, escape, time};

/// Width and height of a panel's plot, in pixels like all lengths here.
const PLOT: (f64, f64) = (290.0, 190.0);
/// Distance between panels, and margins of a plot.
const GAP: f64 = 22.0;
const LEFT: f64 = 52.0;
const RIGHT: f64 = 12.0;
/// Height of the legend, one row above the panels.
const LEGEND: f64 = 30.0;
/// Height of the title above a panel.
const TITLE: f64 = 20.0;
const BOTTOM: f64 = 24.0;
/// Least distance between two labels of the time axis.
const LABELS: f64 = 36.0;

/// A chart of cumulative distributions.
#[derive(Debug, Clone)]
pub struct Cumulative {
    /// Title of the chart, for screen readers.
    pub title: String,
    /// Names of the curves of each panel, up to eight.
    pub series: Vec<String>,
    /// Name of the marks in the legend, which has it if a panel has marks.
    pub mark: String,
    /// Panels side by side; at least one.
    pub columns: usize,
    /// The panels, row by row.
    pub panels: Vec<Panel>,
    /// Least and greatest time of the horizontal axis, µs.
    pub axis_us: (f64, f64),
}

/// Curves that share a plot.
#[derive(Debug, Clone)]
pub struct Panel {
    /// Title above the plot.
    pub title: String,
    /// A curve for each of the series: points of time in µs and percent, in ascending order. A curve
    /// without points is left out.
    pub curves: Vec<Vec<(f64, f64)>>,
    /// Marks: the index of the series, the time in µs and percent.
    pub marks: Vec<(usize, f64, f64)>,
}

/// Position of a panel in the chart.
struct Place {
    left: f64,
    top: f64,
    /// Logarithms of the ends of the time axis.
    low: f64,
    high: f64,
}

impl Place {
    fn x(&self, us: f64) -> f64 {
        let share = (us.log10() - self.low) / (self.high - self.low);
        self.left + share.clamp(0.0, 1.0) * PLOT.0
    }

    fn y(&self, percent: f64) -> f64 {
        self.top + (1.0 - percent / 100.0) * PLOT.1
    }
}

/// Draws cumulative curves.
pub fn cumulative(all: &Cumulative) -> Chart {
    let columns = all.columns.max(1);
    let rows = all.panels.len().div_ceil(columns);
    let (from, to) = all.axis_us;
    let width = LEFT + RIGHT + (PLOT.0 + GAP) * columns as f64 - GAP;
    let height = LEGEND + (TITLE + PLOT.1 + BOTTOM) * rows as f64;
    let mut chart = Chart::new(&all.title, width, height);
    legend(&mut chart, all);
    for (number, panel) in all.panels.iter().enumerate() {
        let (row, column) = (number / columns, number % columns);
        let place = Place {
            left: LEFT + (PLOT.0 + GAP) * column as f64,
            top: LEGEND + TITLE + (TITLE + PLOT.1 + BOTTOM) * row as f64,
            low: from.log10(),
            high: to.log10(),
        };
        axes(&mut chart, &place, column == 0, all.axis_us);
        draw(&mut chart, &place, panel, all.axis_us);
    }
    chart
}

/// In a line above the panels.
fn legend(chart: &mut Chart, all: &Cumulative) {
    let y = LEGEND / 2.0;
    let mut x = LEFT;
    for (index, name) in all.series.iter().enumerate() {
        chart.add(format_args!(
            "<path class=\"curve s{index}\" d=\"M{x:.1} {y:.1}h22\"/>\
             <text class=\"ink\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            x + 28.0,
            y + 4.0,
            escape(name)
        ));
        x += 46.0 + LETTER * name.chars().count() as f64;
    }
    if all.panels.iter().any(|panel| !panel.marks.is_empty()) {
        chart.add(format_args!(
            "<circle class=\"node\" cx=\"{:.1}\" cy=\"{y:.1}\" r=\"4\"/>\
             <text class=\"ink\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            x + 5.0,
            x + 14.0,
            y + 4.0,
            escape(&all.mark)
        ));
    }
}

fn axes(chart: &mut Chart, place: &Place, is_first: bool, (from, to): (f64, f64)) {
    let right = place.left + PLOT.0;
    let bottom = place.top + PLOT.1;
    for percent in [0.0, 25.0, 50.0, 75.0, 100.0] {
        let y = place.y(percent);
        chart.add(format_args!(
            "<line class=\"grid\" x1=\"{:.1}\" y1=\"{y:.1}\" x2=\"{right:.1}\" y2=\"{y:.1}\"/>",
            place.left
        ));
        if is_first {
            chart.add(format_args!(
                "<text class=\"ink\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{percent:.0} %</text>",
                place.left - 6.0,
                y + 4.0
            ));
        }
    }
    let mut labels: Vec<f64> = Vec::new();
    let (mut decades, others): (Vec<f64>, Vec<f64>) = ticks(from, to)
        .into_iter()
        .partition(|tick| (tick.log10() - tick.log10().round()).abs() < 1e-9);
    decades.extend(others);
    // Powers of ten have their labels first, the others where there is room.
    for tick in decades {
        let x = place.x(tick);
        chart.add(format_args!(
            "<line class=\"grid\" x1=\"{x:.1}\" y1=\"{:.1}\" x2=\"{x:.1}\" y2=\"{bottom:.1}\"/>",
            place.top
        ));
        if labels.iter().all(|other| (other - x).abs() >= LABELS) {
            labels.push(x);
            chart.add(format_args!(
                "<text class=\"ink\" x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
                bottom + 16.0,
                time(tick)
            ));
        }
    }
}

fn draw(chart: &mut Chart, place: &Place, panel: &Panel, (_, to): (f64, f64)) {
    chart.add(format_args!(
        "<text class=\"ink\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
        place.left,
        place.top - 6.0,
        escape(&panel.title)
    ));
    for (index, points) in panel.curves.iter().enumerate() {
        let mut path = String::new();
        let mut last = 0.0;
        for &(us, percent) in points {
            if us > to {
                break;
            }
            let command = if path.is_empty() { 'M' } else { 'L' };
            // Steps: the share grows where the value is.
            let _ = write!(path, "{command}{:.1} {:.1}", place.x(us), place.y(last));
            let _ = write!(path, "L{:.1} {:.1}", place.x(us), place.y(percent));
            last = percent;
        }
        chart.add(format_args!(
            "<path class=\"curve s{index}\" d=\"{path}\"/>"
        ));
    }
    for &(index, us, percent) in &panel.marks {
        chart.add(format_args!(
            "<circle class=\"node curve s{index} d0\" cx=\"{:.1}\" cy=\"{:.1}\" r=\"4\"/>",
            place.x(us),
            place.y(percent)
        ));
    }
}

/// 1, 2 and 5 times the powers of ten from `from` to `to`.
fn ticks(from: f64, to: f64) -> Vec<f64> {
    let mut ticks = Vec::new();
    let mut decade = 10_f64.powf(from.log10().floor());
    while decade <= to {
        for factor in [1.0, 2.0, 5.0] {
            let tick = decade * factor;
            if tick >= from * 0.999 && tick <= to * 1.001 {
                ticks.push(tick);
            }
        }
        decade *= 10.0;
    }
    ticks
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example(panels: usize) -> Cumulative {
        let panel = |number: usize| Panel {
            title: format!("<{number}>"),
            curves: vec![
                vec![(10.0, 50.0), (100.0, 99.0), (9e9, 100.0)],
                vec![(200.0, 100.0)],
            ],
            marks: vec![(1, 700.0, 97.3)],
        };
        Cumulative {
            title: "a".to_owned(),
            series: vec!["T1 < T2 & \"x\"".to_owned(), "b".to_owned()],
            mark: "the paper".to_owned(),
            columns: 3,
            panels: (0..panels).map(panel).collect(),
            axis_us: (50.0, 1000.0),
        }
    }

    #[test]
    fn ticks_are_round_numbers_within_the_axis() {
        assert_eq!(
            ticks(50.0, 2000.0),
            [50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0]
        );
        assert_eq!((time(0.5), time(100.0), time(2000.0)).2, "2 ms");
    }

    #[test]
    fn curves_stay_within_the_chart_and_names_are_escaped() {
        let svg = cumulative(&example(1)).svg();
        assert!(svg.contains("T1 &lt; T2 &amp; &quot;x&quot;"));
        let paths = svg.split(" d=\"").skip(1);
        for path in paths.map(|path| path.split('"').next().unwrap()) {
            let numbers = path.split(['M', 'L', 'h', ' ']).filter(|n| !n.is_empty());
            for number in numbers {
                let number: f64 = number.parse().unwrap();
                assert!((0.0..=LEFT + PLOT.0 + RIGHT).contains(&number), "{path}");
            }
        }
        assert!(svg.ends_with("</svg>\n"));
    }

    #[test]
    fn panels_share_one_legend_and_the_shares_at_the_left() {
        let svg = cumulative(&example(6)).svg();
        assert_eq!(svg.matches(">b</text>").count(), 1);
        assert_eq!(svg.matches(">the paper</text>").count(), 1);
        // Six panels of two curves, and the two signs of the legend; a mark each, and its sign.
        assert_eq!(svg.matches("<path").count(), 14);
        assert_eq!(svg.matches("<circle").count(), 7);
        assert_eq!(svg.matches(">50 %</text>").count(), 2, "one for each row");
        assert!(svg.contains(">&lt;5&gt;</text>"));
    }
}
