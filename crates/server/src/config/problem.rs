//! What is wrong with a configuration: every problem names the place, the key,
//! the value and the remedy, and all of them are reported at once.

use std::fmt;

use super::origin::Origin;

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Where it was written, where it was written anywhere.
    pub origin: Option<Origin>,
    /// The full name of the key, as in `limits.max_packet_size`; empty where
    /// the problem has none.
    pub key: String,
    /// The value as written.
    pub value: Option<String>,
    /// What is wrong.
    pub what: String,
    /// What to do about it.
    pub remedy: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(origin) = &self.origin {
            write!(f, "{origin}: ")?;
        }
        match (self.key.as_str(), &self.value) {
            ("", _) => {}
            (key, None) => write!(f, "{key}: ")?,
            (key, Some(value)) => write!(f, "{key} = {value}: ")?,
        }
        write!(f, "{}\n  remedy: {}", self.what, self.remedy)
    }
}

/// All that is wrong. Never shown empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Problems(Vec<Problem>);

impl Problems {
    /// Adds one.
    pub(crate) fn push(&mut self, problem: Problem) {
        self.0.push(problem);
    }

    /// Whether nothing is wrong.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Nothing wrong, or all that is.
    pub(crate) fn into_result(self) -> Result<(), Self> {
        if self.is_empty() { Ok(()) } else { Err(self) }
    }

    /// The problems in the order in which they were found.
    pub fn iter(&self) -> impl Iterator<Item = &Problem> {
        self.0.iter()
    }
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, problem) in self.iter().enumerate() {
            if i > 0 {
                f.write_str("\n")?;
            }
            problem.fmt(f)?;
        }
        match self.0.len() {
            1 => f.write_str("\n1 problem"),
            n => write!(f, "\n{n} problems"),
        }
    }
}

impl std::error::Error for Problems {}

/// The word of `known` nearest to `word`, if any is near enough to be meant.
pub(crate) fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let plain = |text: &str| text.to_lowercase().replace('-', "_");
    let word = plain(word);
    known
        .into_iter()
        .map(|candidate| (distance(&word, &plain(candidate)), candidate))
        .filter(|(distance, candidate)| *distance <= 1 + candidate.len().min(word.len()) / 4)
        .min()
        .map(|(_, candidate)| candidate)
}

/// Edits (insert, delete, replace, swap of neighbours) between two words: the
/// optimal string alignment distance, by dynamic programming over three rows.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut before: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=b.len()).collect();
    for i in 0..a.len() {
        let mut row = vec![i + 1];
        for j in 0..b.len() {
            let replace = last[j] + usize::from(a[i] != b[j]);
            let mut best = replace.min(last[j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && a[i] == b[j - 1] && a[i - 1] == b[j] {
                best = best.min(before[j - 1] + 1);
            }
            row.push(best);
        }
        before = std::mem::replace(&mut last, row);
    }
    last[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distance_counts_edits() {
        for (a, b, edits) in [
            ("", "", 0),
            ("", "abc", 3),
            ("listen", "lisetn", 1),
            ("max_packet_sise", "max_packet_size", 1),
            ("abc", "xyz", 3),
        ] {
            assert_eq!(distance(a, b), edits, "{a} {b}");
            assert_eq!(distance(b, a), edits, "{b} {a}");
        }
    }

    #[test]
    fn the_nearest_word_is_named_only_when_it_is_near() {
        let known = ["max_packet_size", "max_sessions", "level"];
        assert_eq!(nearest("max-packet-sise", known), Some("max_packet_size"));
        assert_eq!(nearest("LEVEL", known), Some("level"));
        assert_eq!(nearest("colour", known), None);
    }
}
