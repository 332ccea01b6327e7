//! Reads what `/metrics` says: the text format of Prometheus, version 0.0.4, and the few sums
//! and quantiles that are made of it.
//!
//! Lines that cannot be read are skipped: a broker that says more than we know is none the worse.

/// One number with its name and labels.
#[derive(Clone, Debug, PartialEq)]
struct Sample {
    name: String,
    labels: Vec<(String, String)>,
    value: f64,
}

/// All numbers of one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Samples(Vec<Sample>);

/// A distribution in cumulative buckets.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Distribution {
    /// Upper bound and count of what is at most that, ascending; the last bound is infinite.
    buckets: Vec<(f64, f64)>,
    /// Sum of all values.
    pub sum: f64,
    /// Number of values.
    pub count: f64,
}

impl Samples {
    /// Reads the text of `/metrics`.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        Self(text.lines().filter_map(sample).collect())
    }

    /// The sum of the samples of that name which have these labels among theirs; `None` if there
    /// is no such sample.
    #[must_use]
    pub fn sum(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        let mut values = self.matching(name, labels).map(|sample| sample.value);
        let first = values.next()?;
        Some(values.fold(first, |sum, value| sum + value))
    }

    /// The values that `label` has in samples of that name, in their order.
    #[must_use]
    pub fn label_values(&self, name: &str, label: &str) -> Vec<&str> {
        let mut values = Vec::new();
        for sample in self.matching(name, &[]) {
            if let Some(value) = sample.label(label)
                && !values.contains(&value)
            {
                values.push(value);
            }
        }
        values
    }

    /// The histogram of that name with these labels, several of them added up; `None` if there
    /// is none.
    #[must_use]
    pub fn distribution(&self, name: &str, labels: &[(&str, &str)]) -> Option<Distribution> {
        let mut distribution = Distribution {
            buckets: Vec::new(),
            sum: self.sum(&format!("{name}_sum"), labels)?,
            count: self.sum(&format!("{name}_count"), labels)?,
        };
        for sample in self.matching(&format!("{name}_bucket"), labels) {
            let bound = sample.label("le")?.parse().ok()?;
            distribution.put(bound, sample.value);
        }
        Some(distribution)
    }

    fn matching(&self, name: &str, labels: &[(&str, &str)]) -> impl Iterator<Item = &Sample> {
        self.0.iter().filter(move |sample| {
            let has = |(key, value): &(&str, &str)| sample.label(key) == Some(*value);
            sample.name == name && labels.iter().all(has)
        })
    }
}

impl Sample {
    fn label(&self, name: &str) -> Option<&str> {
        let found = self.labels.iter().find(|(key, _)| key == name)?;
        Some(&found.1)
    }
}

impl Distribution {
    fn put(&mut self, bound: f64, count: f64) {
        let at = self.buckets.partition_point(|(other, _)| *other < bound);
        match self.buckets.get_mut(at) {
            Some((other, sum)) if *other == bound => *sum += count,
            _ => self.buckets.insert(at, (bound, count)),
        }
    }

    /// The arithmetic mean, if there is a value.
    #[must_use]
    pub fn mean(&self) -> Option<f64> {
        (self.count > 0.0).then(|| self.sum / self.count)
    }

    /// The value below which a share `q` (0 to 1) of all values lies, interpolated within its
    /// bucket as Prometheus does; the largest finite bound for what lies above it.
    #[must_use]
    pub fn quantile(&self, q: f64) -> Option<f64> {
        let (_, total) = *self.buckets.last()?;
        if total <= 0.0 {
            return None;
        }
        let rank = q * total;
        let at = self.buckets.iter().position(|(_, count)| *count >= rank)?;
        let (bound, count) = self.buckets[at];
        let (below, fewer) = match at.checked_sub(1) {
            Some(before) => self.buckets[before],
            None => (0.0, 0.0),
        };
        if bound.is_infinite() {
            return Some(below);
        }
        let within = if count > fewer {
            (rank - fewer) / (count - fewer)
        } else {
            1.0
        };
        Some(below + (bound - below) * within)
    }

    /// What came since an earlier look at the same histogram.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let before = |bound: f64| {
            let same = earlier.buckets.iter().find(|(other, _)| *other == bound);
            same.map_or(0.0, |(_, count)| *count)
        };
        let buckets = self.buckets.iter();
        Self {
            buckets: buckets
                .map(|&(bound, count)| (bound, (count - before(bound)).max(0.0)))
                .collect(),
            sum: (self.sum - earlier.sum).max(0.0),
            count: (self.count - earlier.count).max(0.0),
        }
    }
}

/// Reads one line; `None` for comments and what is no sample.
fn sample(line: &str) -> Option<Sample> {
    let line = line.trim();
    let end = line.find(|c: char| c == '{' || c.is_whitespace())?;
    let (name, rest) = line.split_at(end);
    if name.is_empty() || name.starts_with('#') {
        return None;
    }
    let (labels, rest) = match rest.strip_prefix('{') {
        Some(rest) => labels(rest)?,
        None => (Vec::new(), rest),
    };
    // A time stamp may follow.
    let value = rest.split_whitespace().next()?.parse().ok()?;
    Some(Sample {
        name: name.to_owned(),
        labels,
        value,
    })
}

/// Reads labels up to the closing brace, and what comes after it.
fn labels(mut rest: &str) -> Option<(Vec<(String, String)>, &str)> {
    let mut labels = Vec::new();
    loop {
        rest = rest.trim_start_matches([',', ' ']);
        if let Some(rest) = rest.strip_prefix('}') {
            return Some((labels, rest));
        }
        let (name, quoted) = rest.split_once("=\"")?;
        let mut value = String::new();
        let mut chars = quoted.char_indices();
        rest = loop {
            match chars.next()? {
                (at, '"') => break &quoted[at + 1..],
                (_, '\\') => match chars.next()?.1 {
                    'n' => value.push('\n'),
                    other => value.push(other),
                },
                (_, other) => value.push(other),
            }
        };
        labels.push((name.trim().to_owned(), value));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
# HELP wait_seconds Time.
# TYPE wait_seconds histogram
wait_seconds_bucket{class=\"a\",le=\"0.001\"} 2
wait_seconds_bucket{class=\"a\",le=\"0.01\"} 6
wait_seconds_bucket{class=\"a\",le=\"+Inf\"} 8
wait_seconds_sum{class=\"a\"} 0.04
wait_seconds_count{class=\"a\"} 8
wait_seconds_bucket{class=\"b\",le=\"0.001\"} 0
wait_seconds_bucket{class=\"b\",le=\"0.01\"} 4
wait_seconds_bucket{class=\"b\",le=\"+Inf\"} 4
wait_seconds_sum{class=\"b\"} 0.02
wait_seconds_count{class=\"b\"} 4
clients 3
odd{x=\"a\\\"b,}\\\\c\\nd\", y=\"2\"} 1.5e3 1700000000
broken{x=\"
nothing
";

    #[test]
    fn numbers_are_found_by_name_and_labels() {
        let samples = Samples::parse(TEXT);
        assert_eq!(samples.sum("clients", &[]), Some(3.0));
        assert_eq!(samples.sum("client", &[]), None);
        assert_eq!(samples.sum("wait_seconds_count", &[]), Some(12.0));
        assert_eq!(
            samples.sum("wait_seconds_count", &[("class", "b")]),
            Some(4.0)
        );
        assert_eq!(samples.sum("wait_seconds_count", &[("class", "c")]), None);
        assert_eq!(
            samples.sum("odd", &[("x", "a\"b,}\\c\nd"), ("y", "2")]),
            Some(1500.0)
        );
        assert_eq!(
            samples.label_values("wait_seconds_sum", "class"),
            ["a", "b"]
        );
    }

    #[test]
    fn quantiles_are_interpolated_within_their_bucket() {
        let samples = Samples::parse(TEXT);
        let one = samples
            .distribution("wait_seconds", &[("class", "a")])
            .unwrap();
        let near = |value: Option<f64>, expected: f64| (value.unwrap() - expected).abs() < 1e-9;
        assert!(near(one.mean(), 0.005));
        assert!(near(one.quantile(0.25), 0.001));
        assert!(near(one.quantile(0.5), 0.001 + 0.009 / 2.0));
        // Above the largest bound nothing more is known.
        assert!(near(one.quantile(0.99), 0.01));
        let both = samples.distribution("wait_seconds", &[]).unwrap();
        assert_eq!(
            both.buckets,
            [(0.001, 2.0), (0.01, 10.0), (f64::INFINITY, 12.0)]
        );
        assert_eq!(samples.distribution("clients", &[]), None);
    }

    #[test]
    fn what_came_since_is_the_difference() {
        let samples = Samples::parse(TEXT);
        let one = samples
            .distribution("wait_seconds", &[("class", "b")])
            .unwrap();
        let both = samples.distribution("wait_seconds", &[]).unwrap();
        let other = samples
            .distribution("wait_seconds", &[("class", "a")])
            .unwrap();
        assert_eq!(both.since(&one).buckets, other.buckets);
        let none = both.since(&both);
        assert_eq!((none.mean(), none.quantile(0.5)), (None, None));
    }
}
