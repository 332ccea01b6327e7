//! Groups of bars, each perhaps with a mark, over an axis of times or shares.

use crate::chart::{Chart, escape, time};

const HEIGHT: f64 = 320.0;
const LEAST_WIDTH: f64 = 560.0;
const LEFT: f64 = 52.0;
const RIGHT: f64 = 12.0;
const TOP: f64 = 34.0;
/// Below the axis: names that stand, and names that lie.
const BOTTOM: f64 = 44.0;
const BOTTOM_TURNED: f64 = 96.0;
/// Room for a bar, where there are many.
const BAR: f64 = 7.0;
/// So many bars have their values on top of them.
const VALUES: usize = 24;
/// So many groups have their names side by side.
const NAMES: usize = 8;

/// A chart of bars in groups.
#[derive(Debug, Clone)]
pub struct Bars {
    /// Title of the chart, for screen readers.
    pub title: String,
    /// Names of the bars of a group.
    pub series: Vec<String>,
    /// Name of the mark in the legend, which has it if a group has a mark.
    pub mark: String,
    /// Unit of the values.
    pub unit: Unit,
    /// The bars.
    pub groups: Vec<Group>,
}

/// Unit of values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// Times in µs.
    Micros,
    /// Shares in percent.
    Percent,
    /// Amounts in thousands of bytes.
    Kilobytes,
}

impl Unit {
    pub(crate) fn label(self, value: f64) -> String {
        match self {
            Self::Micros => time(value),
            Self::Percent => format!("{value} %"),
            Self::Kilobytes => format!("{value} kB"),
        }
    }
}

/// Bars that stand together.
#[derive(Debug, Clone)]
pub struct Group {
    /// Its name.
    pub name: String,
    /// One value per series, which may be negative; `None`
    /// leaves its place empty.
    pub values: Vec<Option<f64>>,
    /// A line across the group.
    pub mark: Option<f64>,
}

/// Where things are.
struct Axes {
    width: f64,
    height: f64,
    bottom: f64,
    low: f64,
    high: f64,
}

impl Axes {
    fn of(bars: &Bars) -> (Self, f64) {
        let values = || {
            let groups = bars.groups.iter();
            groups.flat_map(|group| group.values.iter().chain([&group.mark]).flatten().copied())
        };
        let (low, high) = (values().fold(0.0, f64::min), values().fold(0.0, f64::max));
        let step = nice_step((high - low) / 4.0);
        let turned = bars.groups.len() > NAMES;
        let bottom = if turned { BOTTOM_TURNED } else { BOTTOM };
        let room = (bars.series.len() as f64 + 1.0) * BAR * bars.groups.len() as f64;
        let axes = Self {
            width: LEAST_WIDTH.max(LEFT + RIGHT + room).max(legend_width(bars)),
            height: HEIGHT + bottom - BOTTOM,
            bottom,
            low: (low / step).floor() * step,
            high: ((high / step).ceil() * step).max(step),
        };
        (axes, step)
    }

    fn plot_width(&self) -> f64 {
        self.width - LEFT - RIGHT
    }

    fn floor(&self) -> f64 {
        self.height - self.bottom
    }

    fn y(&self, value: f64) -> f64 {
        let share = (value - self.low) / (self.high - self.low);
        self.floor() - share * (self.floor() - TOP)
    }
}

/// Draws groups of bars; the chart is as wide as they need.
pub fn bars(bars: &Bars) -> Chart {
    let (axes, step) = Axes::of(bars);
    let mut chart = Chart::new(&bars.title, axes.width, axes.height);
    let mut value = axes.low;
    while value <= axes.high + step / 2.0 {
        let y = axes.y(value);
        let label = bars.unit.label(value);
        chart.add(format_args!(
            "<line class=\"grid\" x1=\"{LEFT}\" y1=\"{y:.1}\" x2=\"{:.1}\" y2=\"{y:.1}\"/>\
             <text class=\"ink\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{label}</text>",
            axes.width - RIGHT,
            LEFT - 6.0,
            y + 4.0
        ));
        value += step;
    }
    let width = axes.plot_width() / bars.groups.len().max(1) as f64;
    for (place, group) in bars.groups.iter().enumerate() {
        draw(
            &mut chart,
            bars,
            group,
            &axes,
            (LEFT + width * place as f64, width),
        );
    }
    legend(&mut chart, bars);
    chart
}

/// A group that begins at `left`.
fn draw(chart: &mut Chart, bars: &Bars, group: &Group, axes: &Axes, (left, width): (f64, f64)) {
    let number = bars.series.len().max(1) as f64;
    let bar = width * 0.8 / number;
    let start = left + width * 0.1;
    let with_values = bars.series.len() * bars.groups.len() <= VALUES;
    for (index, value) in group.values.iter().enumerate() {
        let Some(value) = value else { continue };
        let x = start + bar * index as f64;
        let (top, bottom) = (axes.y(value.max(0.0)), axes.y(value.min(0.0)));
        let name = escape(&group.name);
        chart.add(format_args!(
            "<rect class=\"bar s{index}\" x=\"{x:.1}\" y=\"{top:.1}\" width=\"{:.1}\" \
             height=\"{:.1}\"><title>{name}: {value:.1}</title></rect>",
            bar * 0.92,
            bottom - top
        ));
        if with_values {
            chart.add(format_args!(
                "<text class=\"ink small\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{value:.1}</text>",
                x + bar * 0.46,
                top - 3.0
            ));
        }
    }
    if let Some(mark) = group.mark {
        let y = axes.y(mark);
        chart.add(format_args!(
            "<line class=\"mark\" x1=\"{start:.1}\" y1=\"{y:.1}\" x2=\"{:.1}\" y2=\"{y:.1}\"/>",
            start + width * 0.8
        ));
    }
    let (x, y, name) = (
        start + width * 0.4,
        axes.floor() + 16.0,
        escape(&group.name),
    );
    let place = match axes.bottom > BOTTOM {
        true => format!("text-anchor=\"end\" transform=\"rotate(-60 {x:.1} {y:.1})\""),
        false => "text-anchor=\"middle\"".to_owned(),
    };
    chart.add(format_args!(
        "<text class=\"ink\" x=\"{x:.1}\" y=\"{y:.1}\" {place}>{name}</text>"
    ));
}

/// Room for a name of the legend with its sign.
fn named(name: &str) -> f64 {
    30.0 + 6.2 * name.chars().count() as f64
}

fn legend_width(bars: &Bars) -> f64 {
    let names = bars.series.iter().chain([&bars.mark]);
    LEFT + names.map(|name| named(name)).sum::<f64>()
}

/// In a line above the plot.
fn legend(chart: &mut Chart, bars: &Bars) {
    let y = TOP - 16.0;
    let mut x = LEFT;
    for (index, name) in bars.series.iter().enumerate() {
        chart.add(format_args!(
            "<rect class=\"bar s{index}\" x=\"{x:.1}\" y=\"{:.1}\" width=\"10\" height=\"10\"/>\
             <text class=\"ink\" x=\"{:.1}\" y=\"{y:.1}\">{}</text>",
            y - 9.0,
            x + 14.0,
            escape(name)
        ));
        x += named(name);
    }
    if bars.groups.iter().any(|group| group.mark.is_some()) {
        chart.add(format_args!(
            "<line class=\"mark\" x1=\"{x:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\"/>\
             <text class=\"ink\" x=\"{:.1}\" y=\"{y:.1}\">{}</text>",
            y - 4.0,
            x + 14.0,
            y - 4.0,
            x + 18.0,
            escape(&bars.mark)
        ));
    }
}

/// The next of 1, 2 and 5 times a power of ten that is not below `value`.
pub(crate) fn nice_step(value: f64) -> f64 {
    if value <= 0.0 {
        return 1.0;
    }
    let decade = 10_f64.powf(value.log10().floor());
    let factors = [1.0, 2.0, 5.0, 10.0];
    let found = factors
        .iter()
        .find(|factor| decade * **factor >= value * 0.999);
    decade * found.unwrap_or(&10.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example(groups: usize) -> Bars {
        let group = |index: usize| Group {
            name: format!("m<{index}"),
            values: vec![Some(3.0), None, Some(-1.5)],
            mark: Some(7.5),
        };
        Bars {
            title: "t".into(),
            series: vec!["a".into(), "b".into(), "c".into()],
            mark: "deadline".into(),
            unit: Unit::Micros,
            groups: (0..groups).map(group).collect(),
        }
    }

    #[test]
    fn every_value_that_is_there_has_a_bar() {
        let svg = bars(&example(2)).svg();
        // Four bars and three signs of the legend; two marks and their sign.
        assert_eq!(svg.matches("<rect").count(), 7, "{svg}");
        assert_eq!(svg.matches("class=\"mark\"").count(), 3);
        assert!(svg.contains(">3.0</text>") && svg.contains(">-1.5</text>"));
        assert!(svg.contains(">m&lt;1</text>") && !svg.contains("rotate"));
        assert!(svg.starts_with("<svg viewBox=\"0 0 560 320\""), "{svg}");
    }

    #[test]
    fn many_groups_make_it_wide_and_turn_their_names() {
        let svg = bars(&example(100)).svg();
        assert!(
            svg.starts_with("<svg viewBox=\"0 0 2864 372\""),
            "{}",
            &svg[..60]
        );
        assert_eq!(svg.matches("rotate").count(), 100);
        assert!(!svg.contains("small"), "no values on so many bars");
    }

    #[test]
    fn a_long_legend_makes_it_wide() {
        let mut long = example(1);
        long.series = vec!["a rather long name".into(); 5];
        let svg = bars(&long).svg();
        // Five names of 18 letters and one of 8, behind 52.
        assert!(svg.starts_with("<svg viewBox=\"0 0 840 320\""), "{svg}");
    }

    #[test]
    fn nothing_to_draw_is_an_empty_plot() {
        let mut nothing = example(0);
        nothing.unit = Unit::Percent;
        assert!(bars(&nothing).svg().contains(">1 %</text>"));
        nothing.unit = Unit::Kilobytes;
        assert!(bars(&nothing).svg().contains(">1 kB</text>"));
    }

    #[test]
    fn steps_are_round_numbers() {
        assert_eq!(nice_step(13.0), 20.0);
        assert_eq!(nice_step(20.0), 20.0);
        assert_eq!(nice_step(0.0), 1.0);
    }
}
