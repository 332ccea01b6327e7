//! What can go wrong in a benchmark run, said so that the user can act on it.
//!
//! Variants follow blame: the caller's options, the operating system, or the broker under test.

use std::io;

/// Result of everything in this crate that can fail.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a run could not be done.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An option has a value that cannot be used.
    #[error("{field} = {value}: {remedy}")]
    Config {
        /// The option's name as typed on the command line.
        field: &'static str,
        /// The value that was given.
        value: String,
        /// What to write instead.
        remedy: String,
    },
    /// The operating system refused something.
    #[error("{context}: {source}")]
    Io {
        /// What was being attempted.
        context: String,
        /// The refusal.
        source: io::Error,
    },
    /// The broker answered in a way that ends the run.
    #[error("the broker {what} (client {client})")]
    Broker {
        /// Which of the generator's clients saw it.
        client: String,
        /// What the broker did, as a predicate.
        what: String,
    },
    /// A peer could not be started or did not listen in time.
    #[error("{peer} did not start: {why}")]
    Peer {
        /// The peer's name in the table of peers.
        peer: String,
        /// What was observed.
        why: String,
    },
    /// Messages were lost, duplicated or reordered and `--strict` was given.
    #[error("{what}")]
    Strict {
        /// The counts.
        what: String,
    },
}

impl Error {
    /// Wraps an [`io::Error`] with what was being attempted, for `map_err`.
    pub fn io(context: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let context = context.into();
        move |source| Self::Io { context, source }
    }
}
