//! Names of brokers, numbers of links, and the ranking of brokers for the root.

use std::cmp::Ordering;
use std::sync::Arc;

/// Bytes of the longest name of a broker.
pub const MAX_NAME: usize = 64;

/// The name of a broker: unique in the mesh, printable, at most [`MAX_NAME`] bytes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BrokerId(Arc<str>);

impl BrokerId {
    /// A name; `None` if it is empty, longer than [`MAX_NAME`], or contains white space, a control
    /// character, or one of `/`, `+`, `#`.
    pub fn new(name: &str) -> Option<Self> {
        let allowed =
            |c: char| !c.is_control() && !c.is_whitespace() && !matches!(c, '/' | '+' | '#');
        let fits = (1..=MAX_NAME).contains(&name.len());
        (fits && name.chars().all(allowed)).then(|| Self(name.into()))
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Display for BrokerId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// Number of a link to a neighbour, below [`LinkId::MAX`]. It may be reused for another neighbour after
/// the link went down and nothing is queued for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkId(pub u8);

impl LinkId {
    /// Bound on the links of one broker: one bit each in a word, beside one for its own clients.
    pub const MAX: u8 = 63;
}

/// Rank of a broker in the election of the root: higher capacity wins, then the lower name.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Rank {
    /// Capacity, see [`Weights::capacity`].
    pub capacity: u64,
    /// The broker.
    pub id: BrokerId,
}

impl Rank {
    /// Whether this broker wins the election against `other`.
    pub fn is_better_than(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Less
    }
}

impl Ord for Rank {
    /// The better rank is the lesser.
    fn cmp(&self, other: &Self) -> Ordering {
        other
            .capacity
            .cmp(&self.capacity)
            .then_with(|| self.id.cmp(&other.id))
    }
}

impl PartialOrd for Rank {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// Weights of the capacity of a broker, `alpha * memory + beta * cores + gamma`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Weights {
    /// For each mebibyte of memory.
    pub alpha: f64,
    /// For each processor; fractional if the system grants fractions.
    pub beta: f64,
    /// Added constant, by which an operator makes a broker the root.
    pub gamma: f64,
}

impl Default for Weights {
    /// One gibibyte of memory counts as much as one processor.
    fn default() -> Self {
        Self {
            alpha: 1.0,
            beta: 1024.0,
            gamma: 0.0,
        }
    }
}

impl Weights {
    /// Capacity of a broker with that many bytes of memory and processors,
    /// rounded; 0 at least.
    pub fn capacity(&self, memory: u64, cores: f64) -> u64 {
        let mebibytes = memory as f64 / f64::from(1 << 20);
        (self.alpha * mebibytes + self.beta * cores + self.gamma).round() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked() {
        for good in ["a", "berlin-1", "broker.example.org:1883", "ä"] {
            assert_eq!(
                BrokerId::new(good).map(|id| id.to_string()),
                Some(good.into())
            );
        }
        for bad in [
            "",
            "a b",
            "a/b",
            "a+",
            "#",
            "a\n",
            &"x".repeat(MAX_NAME + 1),
        ] {
            assert_eq!(BrokerId::new(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn capacity_decides_then_the_lower_name() {
        let rank = |capacity, name| Rank {
            capacity,
            id: BrokerId::new(name).unwrap(),
        };
        assert!(rank(2, "b").is_better_than(&rank(1, "a")));
        assert!(rank(1, "a").is_better_than(&rank(1, "b")));
        assert!(!rank(1, "a").is_better_than(&rank(1, "a")));
    }

    #[test]
    fn capacity_is_weighted() {
        let weights = Weights::default();
        assert_eq!(weights.capacity(1 << 30, 2.0), 1024 + 2048);
        let chosen = Weights {
            gamma: 1e6,
            ..weights
        };
        assert_eq!(chosen.capacity(0, 0.5), 1_000_512);
        let none = Weights {
            alpha: 0.0,
            beta: 0.0,
            gamma: -5.0,
        };
        assert_eq!(none.capacity(1 << 30, 8.0), 0);
    }
}
