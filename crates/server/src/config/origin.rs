//! Where a value of the configuration was written.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

/// Where a value was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// In a file, at this line (from 1).
    File {
        /// Path as the user gave it.
        path: Arc<Path>,
        /// Line, from 1.
        line: usize,
    },
    /// In an environment variable of this name.
    Environment(String),
    /// In a command line argument of this name.
    Argument(&'static str),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { path, line } => write!(f, "{}:{line}", path.display()),
            Self::Environment(name) => f.write_str(name),
            Self::Argument(name) => f.write_str(name),
        }
    }
}
