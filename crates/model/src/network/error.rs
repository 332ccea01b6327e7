//! Why a network is invalid, for the person who wrote it.

use std::error::Error;
use std::fmt;

/// A network, or a part of one, that means nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetworkError {
    place: String,
    problem: String,
}

impl NetworkError {
    /// An error at a place, which may be empty.
    pub fn new(place: impl Into<String>, problem: impl Into<String>) -> Self {
        Self {
            place: place.into(),
            problem: problem.into(),
        }
    }

    /// The entry and field, such as `flows "m1": period_ns`; empty if the text
    /// as a whole cannot be read.
    pub fn place(&self) -> &str {
        &self.place
    }

    /// The problem, and what to write instead.
    pub fn problem(&self) -> &str {
        &self.problem
    }
}

impl fmt::Display for NetworkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.place.as_str() {
            "" => f.write_str(&self.problem),
            place => write!(f, "{place}: {}", self.problem),
        }
    }
}

impl Error for NetworkError {}
