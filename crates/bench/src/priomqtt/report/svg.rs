//! Two kinds of pictures as SVG text: cumulative curves over a logarithmic axis of time, and
//! groups of bars.
//!
//! Colours come from the page (CSS classes `s0` to `s7` and `ink`, `grid`), so that a picture
//! follows the reader's light or dark theme; curves also differ in their dashes.

use std::fmt::Write;

const WIDTH: f64 = 560.0;
const HEIGHT: f64 = 320.0;
const LEFT: f64 = 52.0;
const RIGHT: f64 = 12.0;
const TOP: f64 = 14.0;
const BOTTOM: f64 = 44.0;

/// A named line of points.
pub(crate) struct Curve {
    pub(crate) name: String,
    /// µs and percent, ascending.
    pub(crate) points: Vec<(f64, f64)>,
}

/// Bars that stand together.
pub(crate) struct Group {
    pub(crate) name: String,
    /// One value per series; `None` leaves its place empty.
    pub(crate) values: Vec<Option<f64>>,
}

/// Draws cumulative curves; `from_us` to `to_us` is the axis of time.
pub(crate) fn cumulative(title: &str, curves: &[Curve], from_us: f64, to_us: f64) -> String {
    let mut svg = open(title);
    let (low, high) = (from_us.log10(), to_us.log10());
    let x = |us: f64| LEFT + (us.max(from_us).log10() - low) / (high - low) * plot_width();
    let y = |percent: f64| TOP + (1.0 - percent / 100.0) * plot_height();
    for percent in [0.0, 25.0, 50.0, 75.0, 100.0] {
        horizontal(&mut svg, y(percent), &format!("{percent:.0} %"));
    }
    for tick in ticks(from_us, to_us) {
        let at = x(tick);
        let (top, bottom) = (TOP, TOP + plot_height());
        let _ = writeln!(
            svg,
            "<line class=\"grid\" x1=\"{at:.1}\" y1=\"{top}\" x2=\"{at:.1}\" y2=\"{bottom:.1}\"/>\
             <text class=\"ink\" x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            bottom + 16.0,
            time(tick)
        );
    }
    for (index, curve) in curves.iter().enumerate() {
        let mut path = String::new();
        let mut last = 0.0;
        for &(us, percent) in &curve.points {
            if us > to_us {
                break;
            }
            let command = if path.is_empty() { 'M' } else { 'L' };
            // Steps: the share grows where the value is.
            let _ = write!(path, "{command}{:.1} {:.1}", x(us), y(last));
            let _ = write!(path, "L{:.1} {:.1}", x(us), y(percent));
            last = percent;
        }
        let _ = writeln!(svg, "<path class=\"curve s{index}\" d=\"{path}\"/>");
    }
    let names = curves.iter().map(|curve| curve.name.as_str());
    // The lower right is free: all curves have ended at the top by then.
    let at = (
        WIDTH - RIGHT - 150.0,
        TOP + plot_height() - 16.0 * curves.len() as f64,
    );
    legend(&mut svg, names, at, true);
    svg.push_str("</svg>\n");
    svg
}

/// Draws groups of bars with their values in µs on top. `series` names the bars of a group.
pub(crate) fn bars(title: &str, series: &[String], groups: &[Group]) -> String {
    let mut svg = open(title);
    let values = || groups.iter().flat_map(|group| &group.values).flatten();
    let highest = values().fold(0.0_f64, |highest, value| highest.max(*value));
    let step = nice_step(highest / 4.0);
    let top = (highest / step).ceil().max(1.0) * step;
    let y = |value: f64| TOP + (1.0 - value / top) * plot_height();
    let mut value = 0.0;
    while value <= top + step / 2.0 {
        horizontal(&mut svg, y(value), &time(value));
        value += step;
    }
    let group_width = plot_width() / groups.len().max(1) as f64;
    let bar_width = group_width * 0.8 / series.len().max(1) as f64;
    for (place, group) in groups.iter().enumerate() {
        let left = LEFT + group_width * (place as f64 + 0.1);
        for (index, value) in group.values.iter().enumerate() {
            let Some(value) = value else { continue };
            let x = left + bar_width * index as f64;
            let _ = writeln!(
                svg,
                "<rect class=\"bar s{index}\" x=\"{x:.1}\" y=\"{:.1}\" width=\"{:.1}\" \
                 height=\"{:.1}\"/><text class=\"ink small\" x=\"{:.1}\" y=\"{:.1}\" \
                 text-anchor=\"middle\">{value:.1}</text>",
                y(*value),
                bar_width * 0.92,
                TOP + plot_height() - y(*value),
                x + bar_width * 0.46,
                y(*value) - 3.0
            );
        }
        let _ = writeln!(
            svg,
            "<text class=\"ink\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            left + group_width * 0.4,
            TOP + plot_height() + 16.0,
            escape(&group.name)
        );
    }
    let names = series.iter().map(String::as_str);
    legend(
        &mut svg,
        names,
        (LEFT + plot_width() / 2.0, TOP + 14.0),
        false,
    );
    svg.push_str("</svg>\n");
    svg
}

/// Makes text safe between tags and in attributes of HTML and SVG.
pub(crate) fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

fn open(title: &str) -> String {
    let title = escape(title);
    format!(
        "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{title}\">\
         <title>{title}</title>\n"
    )
}

fn plot_width() -> f64 {
    WIDTH - LEFT - RIGHT
}

fn plot_height() -> f64 {
    HEIGHT - TOP - BOTTOM
}

fn horizontal(svg: &mut String, y: f64, label: &str) {
    let _ = writeln!(
        svg,
        "<line class=\"grid\" x1=\"{LEFT}\" y1=\"{y:.1}\" x2=\"{:.1}\" y2=\"{y:.1}\"/>\
         <text class=\"ink\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{label}</text>",
        WIDTH - RIGHT,
        LEFT - 6.0,
        y + 4.0
    );
}

fn legend<'a>(
    svg: &mut String,
    names: impl Iterator<Item = &'a str>,
    (x, top): (f64, f64),
    lines: bool,
) {
    for (index, name) in names.enumerate() {
        let y = top + 16.0 * index as f64;
        let sign = if lines {
            format!("<path class=\"curve s{index}\" d=\"M{x:.1} {y:.1}h22\"/>")
        } else {
            format!(
                "<rect class=\"bar s{index}\" x=\"{:.1}\" y=\"{:.1}\" width=\"10\" height=\"10\"/>",
                x + 8.0,
                y - 6.0
            )
        };
        let _ = writeln!(
            svg,
            "{sign}<text class=\"ink\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            x + 28.0,
            y + 4.0,
            escape(name)
        );
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

/// The next of 1, 2 and 5 times a power of ten that is not below `value`.
fn nice_step(value: f64) -> f64 {
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

/// A time in µs or ms.
fn time(us: f64) -> String {
    if us >= 1000.0 {
        format!("{} ms", us / 1000.0)
    } else {
        format!("{} µs", (us * 10.0).round() / 10.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_numbers_within_the_axis() {
        assert_eq!(
            ticks(50.0, 2000.0),
            [50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0]
        );
        assert_eq!(nice_step(13.0), 20.0);
        assert_eq!(nice_step(20.0), 20.0);
        assert_eq!(nice_step(0.0), 1.0);
        assert_eq!((time(0.5), time(100.0), time(2000.0)).2, "2 ms");
    }

    #[test]
    fn a_curve_stays_within_the_picture_and_names_are_escaped() {
        let curve = Curve {
            name: "T1 < T2 & \"x\"".to_owned(),
            points: vec![(10.0, 50.0), (100.0, 99.0), (9e9, 100.0)],
        };
        let svg = cumulative("a", &[curve], 50.0, 1000.0);
        assert!(svg.contains("T1 &lt; T2 &amp; &quot;x&quot;"));
        let path = svg.split("d=\"").nth(1).unwrap().split('"').next().unwrap();
        let numbers = path.split(['M', 'L', ' ']).filter(|n| !n.is_empty());
        for number in numbers {
            let number: f64 = number.parse().unwrap();
            assert!((0.0..=WIDTH).contains(&number), "{path}");
        }
        assert!(svg.ends_with("</svg>\n"));
    }

    #[test]
    fn every_value_that_is_there_has_a_bar() {
        let groups = [
            Group {
                name: "1".to_owned(),
                values: vec![Some(3.0), None],
            },
            Group {
                name: "2".to_owned(),
                values: vec![Some(5.0), Some(7.5)],
            },
        ];
        let svg = bars("t", &["a".to_owned(), "b".to_owned()], &groups);
        // Three bars and two signs of the legend.
        assert_eq!(svg.matches("<rect").count(), 5);
        assert!(svg.contains(">7.5</text>"));
    }
}
