//! The text format of Prometheus: families of samples, each with HELP and TYPE.

use std::fmt::{Display, Write as _};

use crate::escape::visible_lines;

/// What a number means to whoever adds it up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::http) enum Kind {
    /// Only grows, until the next start.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Counts by size, cumulative.
    Histogram,
}

/// Text that grows family by family.
#[derive(Debug, Default)]
pub(in crate::http) struct Exposition {
    text: String,
    name: &'static str,
}

impl Exposition {
    /// Begins a family; its samples follow.
    pub(in crate::http) fn family(&mut self, name: &'static str, kind: Kind, help: &str) {
        self.name = name;
        let kind = match kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        };
        let _ = writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    /// A sample of the current family.
    pub(in crate::http) fn sample(&mut self, labels: &[(&str, &str)], value: impl Display) {
        self.part("", labels, value);
    }

    /// A sample of the current family, which has several with suffixes.
    pub(in crate::http) fn part(
        &mut self,
        suffix: &str,
        labels: &[(&str, &str)],
        value: impl Display,
    ) {
        self.text.push_str(self.name);
        self.text.push_str(suffix);
        for (i, (label, text)) in labels.iter().enumerate() {
            let _ = write!(self.text, "{}{label}=\"", if i == 0 { '{' } else { ',' });
            // Names of flows are what clients have chosen.
            for c in visible_lines(text).chars() {
                match c {
                    '\\' => self.text.push_str("\\\\"),
                    '"' => self.text.push_str("\\\""),
                    '\n' => self.text.push_str("\\n"),
                    c => self.text.push(c),
                }
            }
            self.text.push('"');
        }
        if !labels.is_empty() {
            self.text.push('}');
        }
        let _ = writeln!(self.text, " {value}");
    }

    /// A family of one sample without labels.
    pub(in crate::http) fn one(
        &mut self,
        name: &'static str,
        kind: Kind,
        help: &str,
        value: impl Display,
    ) {
        self.family(name, kind, help);
        self.sample(&[], value);
    }

    pub(in crate::http) fn finish(self) -> String {
        self.text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_families_and_escapes_labels() {
        let mut out = Exposition::default();
        out.family("a_total", Kind::Counter, "Things.");
        out.sample(&[("x", "1"), ("y", "a\"b\\c\nd\u{1b}[2J")], 3);
        out.one("b_seconds", Kind::Gauge, "Time.", 0.25);
        assert_eq!(
            out.finish(),
            "# HELP a_total Things.\n# TYPE a_total counter\n\
             a_total{x=\"1\",y=\"a\\\"b\\\\c\\nd\\\\u{1b}[2J\"} 3\n\
             # HELP b_seconds Time.\n# TYPE b_seconds gauge\nb_seconds 0.25\n"
        );
    }
}
