//! Cumulative curves over a logarithmic axis of time.

use std::fmt::Write as _;

use crate::chart::{Chart, escape, time};

const WIDTH: f64 = 560.0;
const HEIGHT: f64 = 320.0;
const LEFT: f64 = 52.0;
const RIGHT: f64 = 12.0;
const TOP: f64 = 14.0;
const BOTTOM: f64 = 44.0;

/// A named line of points.
#[derive(Debug, Clone)]
pub struct Curve {
    /// Its name.
    pub name: String,
    /// µs and percent, ascending.
    pub points: Vec<(f64, f64)>,
}

/// Draws cumulative curves; `from_us` to `to_us` is the axis of time.
pub fn cumulative(title: &str, curves: &[Curve], from_us: f64, to_us: f64) -> Chart {
    let mut chart = Chart::new(title, WIDTH, HEIGHT);
    let (low, high) = (from_us.log10(), to_us.log10());
    let x = |us: f64| LEFT + (us.max(from_us).log10() - low) / (high - low) * plot_width();
    let y = |percent: f64| TOP + (1.0 - percent / 100.0) * plot_height();
    for percent in [0.0, 25.0, 50.0, 75.0, 100.0] {
        horizontal(&mut chart, y(percent), &format!("{percent:.0} %"));
    }
    for tick in ticks(from_us, to_us) {
        let at = x(tick);
        let (top, bottom) = (TOP, TOP + plot_height());
        chart.add(format_args!(
            "<line class=\"grid\" x1=\"{at:.1}\" y1=\"{top}\" x2=\"{at:.1}\" y2=\"{bottom:.1}\"/>\
             <text class=\"ink\" x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            bottom + 16.0,
            time(tick)
        ));
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
        chart.add(format_args!(
            "<path class=\"curve s{index}\" d=\"{path}\"/>"
        ));
    }
    let names = curves.iter().map(|curve| curve.name.as_str());
    // The lower right is free: all curves have ended at the top by then.
    let at = (
        WIDTH - RIGHT - 150.0,
        TOP + plot_height() - 16.0 * curves.len() as f64,
    );
    legend(&mut chart, names, at);
    chart
}

fn plot_width() -> f64 {
    WIDTH - LEFT - RIGHT
}

fn plot_height() -> f64 {
    HEIGHT - TOP - BOTTOM
}

fn horizontal(chart: &mut Chart, y: f64, label: &str) {
    chart.add(format_args!(
        "<line class=\"grid\" x1=\"{LEFT}\" y1=\"{y:.1}\" x2=\"{:.1}\" y2=\"{y:.1}\"/>\
         <text class=\"ink\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{label}</text>",
        WIDTH - RIGHT,
        LEFT - 6.0,
        y + 4.0
    ));
}

fn legend<'a>(chart: &mut Chart, names: impl Iterator<Item = &'a str>, (x, top): (f64, f64)) {
    for (index, name) in names.enumerate() {
        let y = top + 16.0 * index as f64;
        chart.add(format_args!(
            "<path class=\"curve s{index}\" d=\"M{x:.1} {y:.1}h22\"/>\
             <text class=\"ink\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            x + 28.0,
            y + 4.0,
            escape(name)
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

    #[test]
    fn ticks_are_round_numbers_within_the_axis() {
        assert_eq!(
            ticks(50.0, 2000.0),
            [50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0]
        );
        assert_eq!((time(0.5), time(100.0), time(2000.0)).2, "2 ms");
    }

    #[test]
    fn a_curve_stays_within_the_chart_and_names_are_escaped() {
        let curve = Curve {
            name: "T1 < T2 & \"x\"".to_owned(),
            points: vec![(10.0, 50.0), (100.0, 99.0), (9e9, 100.0)],
        };
        let svg = cumulative("a", &[curve], 50.0, 1000.0).svg();
        assert!(svg.contains("T1 &lt; T2 &amp; &quot;x&quot;"));
        let path = svg.split("d=\"").nth(1).unwrap().split('"').next().unwrap();
        let numbers = path.split(['M', 'L', ' ']).filter(|n| !n.is_empty());
        for number in numbers {
            let number: f64 = number.parse().unwrap();
            assert!((0.0..=WIDTH).contains(&number), "{path}");
        }
        assert!(svg.ends_with("</svg>\n"));
    }
}
