//! A chart as SVG text, in a page or in a file of its own.
//!
//! Colours are CSS classes (`s0` to `s7` for series, `d0` to `d2` for dashes,
//! `l0` to `l3` for loads, `ink`, `grid`): the page defines them, or the file that the chart is in.

use std::fmt::Write;

/// Names of colours, and what they are in light and in dark. The series are Okabe and Ito's, which
/// people who see few colours tell apart.
const COLOURS: [(&str, &str, &str); 12] = [
    ("--ink", "#1d2329", "#e6e9ec"),
    ("--paper", "#ffffff", "#15191d"),
    ("--grid", "#d9dee3", "#343b42"),
    ("--soft", "#f4f6f8", "#1e2429"),
    ("--s0", "#0072b2", "#4aa8e0"),
    ("--s1", "#d55e00", "#f0803c"),
    ("--s2", "#009e73", "#2cc49a"),
    ("--s3", "#cc79a7", "#e0a0c5"),
    ("--s4", "#e69f00", "#e69f00"),
    ("--s5", "#56b4e9", "#56b4e9"),
    ("--s6", "#6b6b6b", "#a0a0a0"),
    ("--s7", "#b8a800", "#b8a800"),
];

/// Approximate width of a letter, pixels.
pub(crate) const LETTER: f64 = 6.2;

/// How the classes look, in terms of [`COLOURS`].
const CLASSES: &str = "
svg text{font:11px system-ui,sans-serif}svg .small{font-size:9px}.ink{fill:var(--ink)}.paper{fill:var(--paper)}
.grid{stroke:var(--grid);stroke-width:1}.curve{fill:none;stroke-width:1.8}
.curve.s0{stroke:var(--s0)}.curve.s1{stroke:var(--s1);stroke-dasharray:6 2}
.curve.s2{stroke:var(--s2);stroke-dasharray:2 2}.curve.s3{stroke:var(--s3);stroke-dasharray:8 2 2 2}
.curve.s4{stroke:var(--s4)}.curve.s5{stroke:var(--s5)}.curve.s6{stroke:var(--s6)}.curve.s7{stroke:var(--s7)}
.curve.d0{stroke-dasharray:none}.curve.d1{stroke-dasharray:8 3}.curve.d2{stroke-dasharray:2 3}
.bar.s0{fill:var(--s0)}.bar.s1{fill:var(--s1)}.bar.s2{fill:var(--s2)}.bar.s3{fill:var(--s3)}
.bar.s4{fill:var(--s4)}.bar.s5{fill:var(--s5)}.bar.s6{fill:var(--s6)}.bar.s7{fill:var(--s7)}
.mark{stroke:var(--ink);stroke-width:1.6}.node{fill:var(--paper);stroke:var(--ink)}.edge{fill:none}
.edge.l0{stroke:var(--s5);stroke-width:1}.edge.l1{stroke:var(--s2);stroke-width:2}
.edge.l2{stroke:var(--s4);stroke-width:3}.edge.l3{stroke:var(--s1);stroke-width:4.5}
";

/// Colours and classes for a page: they follow the reader's theme.
pub(crate) fn style() -> String {
    let colours =
        |of: fn(&(&str, &str, &str)) -> String| -> String { COLOURS.iter().map(of).collect() };
    let light = colours(|(name, light, _)| format!("{name}:{light};"));
    let dark = colours(|(name, _, dark)| format!("{name}:{dark};"));
    format!(
        "\n:root{{color-scheme:light dark;{light}}}\n\
         @media(prefers-color-scheme:dark){{:root{{{dark}}}}}{CLASSES}"
    )
}

/// Classes for a file, which programs without variables must be able to draw.
fn plain_style() -> String {
    let replace = |text: String, (name, light, _): &(&str, &str, &str)| {
        text.replace(&format!("var({name})"), light)
    };
    COLOURS.iter().fold(CLASSES.to_owned(), replace)
}

/// A chart.
#[derive(Debug, Clone, PartialEq)]
pub struct Chart {
    title: String,
    width: f64,
    height: f64,
    body: String,
}

impl Chart {
    /// An empty one of that size.
    pub(crate) fn new(title: &str, width: f64, height: f64) -> Self {
        Self {
            title: title.to_owned(),
            width,
            height,
            body: String::new(),
        }
    }

    /// Adds elements, as those of `write!`.
    pub(crate) fn add(&mut self, elements: std::fmt::Arguments<'_>) {
        // Writing to a String does not fail.
        let _ = self.body.write_fmt(elements);
        self.body.push('\n');
    }

    /// The SVG element for a page that defines the colours.
    pub fn svg(&self) -> String {
        self.element("")
    }

    fn element(&self, attributes: &str) -> String {
        let title = escape(&self.title);
        let Self {
            width,
            height,
            body,
            ..
        } = self;
        format!(
            "<svg viewBox=\"0 0 {width:.0} {height:.0}\" role=\"img\" aria-label=\"{title}\"{attributes}>\
             <title>{title}</title>\n{body}</svg>\n"
        )
    }
}

/// Charts one below the other as an SVG file, each with its caption.
pub fn document(charts: &[(String, Chart)]) -> String {
    const CAPTION: f64 = 26.0;
    let width = charts
        .iter()
        .fold(0.0_f64, |width, (_, p)| width.max(p.width));
    let height: f64 = charts.iter().map(|(_, p)| p.height + CAPTION).sum();
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" \
         width=\"{width:.0}\" height=\"{height:.0}\">\n<style>{}</style>\n\
         <rect class=\"paper\" width=\"100%\" height=\"100%\"/>\n",
        plain_style()
    );
    let mut top = 0.0;
    for (caption, chart) in charts {
        let _ = writeln!(
            text,
            "<text class=\"ink\" x=\"8\" y=\"{:.0}\">{}</text>",
            top + CAPTION - 8.0,
            escape(caption)
        );
        let place = format!(
            " x=\"0\" y=\"{:.0}\" width=\"{:.0}\" height=\"{:.0}\"",
            top + CAPTION,
            chart.width,
            chart.height
        );
        text.push_str(&chart.element(&place));
        top += CAPTION + chart.height;
    }
    text.push_str("</svg>\n");
    text
}

/// Makes text safe between tags and in attributes of HTML and SVG.
pub(crate) fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

/// A time in µs or ms.
pub(crate) fn time(us: f64) -> String {
    if us.abs() >= 1000.0 {
        format!("{} ms", us / 1000.0)
    } else {
        format!("{} µs", (us * 10.0).round() / 10.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_holds_its_charts_one_below_the_other() {
        let mut first = Chart::new("A & B", 100.0, 50.0);
        first.add(format_args!("<rect/>"));
        let second = Chart::new("C", 200.0, 60.0);
        assert!(first.svg().starts_with("<svg viewBox=\"0 0 100 50\""));
        let file = document(&[("a < b".into(), first), ("c".into(), second)]);
        assert!(file.contains("viewBox=\"0 0 200 162\""), "{file}");
        assert!(
            file.contains("aria-label=\"A &amp; B\" x=\"0\" y=\"26\""),
            "{file}"
        );
        assert!(
            file.contains("y=\"102\" width=\"200\" height=\"60\""),
            "{file}"
        );
        assert!(file.contains(">a &lt; b</text>"));
        assert!(file.contains("fill:#1d2329") && !file.contains("var("));
        assert_eq!(file.matches("<svg").count(), file.matches("</svg>").count());
    }
}
