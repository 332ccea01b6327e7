//! What keeps groups of operations, and the simplest that does.

use std::{fmt, io};

use crate::op::HighestNumbers;
use crate::{Batch, Image, Op};

/// Damages that a [`Report`] names; more are only counted.
const NAMED: usize = 1000;

/// Keeps groups of operations.
///
/// A group that was committed survives whatever happens to the process and the
/// power. One of which that is not known (an error, a crash) is there as a whole
/// or not at all.
pub trait Store {
    /// Keeps the operations of a group; returns when they are safe.
    ///
    /// # Errors
    /// Nothing of the group is kept. The same group, or a longer one that begins
    /// with it, can be tried again.
    fn commit(&mut self, group: &Batch) -> Result<(), StoreError>;

    /// Passes the operations that produce the stored state from an empty store to
    /// `tell`: [`Op::Highest`], flows, contents, retained messages, and then one
    /// session after the other (session, subscriptions, received identifiers,
    /// will, entries in order, each followed by [`Op::Inflight`] if it was sent).
    /// The session's next packet identifier is final.
    ///
    /// # Errors
    /// The store cannot be read at all. Single unreadable items are skipped, and named in
    /// the report.
    fn recover(&mut self, tell: &mut dyn FnMut(Op<'_>)) -> Result<Report, StoreError>;

    /// How much it is.
    fn stats(&self) -> StoreStats;

    /// Whether batches that make the store grow should stop, and why: the remaining space
    /// is needed for batches in flight. Tries to allocate space first.
    fn full(&mut self) -> Option<StoreError> {
        None
    }

    /// Gives back all the room that it can.
    ///
    /// # Errors
    /// Some of it cannot be given back now; nothing is lost.
    fn compact(&mut self) -> Result<(), StoreError>;
}

/// Why something cannot be kept, or read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// There is no room: on the disk, or up to the bound that was set.
    #[error("{what} is full: {needed} bytes more are needed")]
    Full {
        /// Which bound it is.
        what: &'static str,
        /// Bytes.
        needed: u64,
    },
    /// An operation of the disk failed.
    #[error("{what}: {message}")]
    Io {
        /// What could not be done, with which file.
        what: String,
        /// What kind of error it is.
        kind: io::ErrorKind,
        /// What the system says.
        message: String,
    },
    /// Another process has it.
    #[error(
        "{place} is used by another process{}; stop that first, or name another directory",
        .process.map_or(String::new(), |process| format!(" ({process})"))
    )]
    Locked {
        /// Which directory.
        place: String,
        /// Its number, if it is known.
        process: Option<u32>,
    },
    /// It was written by a later version of this program.
    #[error(
        "the store has format {found}{}, and this version knows formats up to {known}: \
         start the version that wrote it, or export there and import here", written(.by)
    )]
    Newer {
        /// Version found.
        found: u32,
        /// Highest version known.
        known: u32,
        /// The program that wrote it, if it says so.
        by: Option<String>,
    },
    /// It uses something of its format that this version does not have.
    #[error(
        "the store uses features (0x{bits:x}{}) that this version does not have: \
         start the version that wrote it, or export there and import here", written(.by)
    )]
    Features {
        /// Which.
        bits: u32,
        /// The program that wrote it.
        by: Option<String>,
    },
    /// It is something else.
    #[error(
        "{0} is not part of a store, or has been overwritten: name a directory of its own, or put \
         the files back from a backup"
    )]
    Foreign(String),
    /// Commits were confirmed, and none of them can be read.
    #[error(
        "the store had {commit} commits or more, and none of them can be read{}; put its files back \
         from a backup, or move the directory away to begin with an empty store",
        .damage.as_ref().map_or(String::new(), |damage| format!(" ({damage})"))
    )]
    Emptied {
        /// Number of one that was confirmed.
        commit: u64,
        /// The first damage, if there is any.
        damage: Option<Damage>,
    },
    /// A file is missing, was replaced, or is used by another process, too.
    #[error("{0}")]
    Lost(String),
}

impl StoreError {
    /// That something failed with what the system says.
    pub fn io(what: impl Into<String>, error: &io::Error) -> Self {
        Self::Io {
            what: what.into(),
            kind: error.kind(),
            message: error.to_string(),
        }
    }
}

fn written(by: &Option<String>) -> String {
    let by = by.as_ref();
    by.map_or(String::new(), |by| format!(", written by {by}"))
}

/// What recovery found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// Sessions that are there again.
    pub sessions: u64,
    /// Messages that wait for them.
    pub entries: u64,
    /// Contents.
    pub messages: u64,
    /// Retained messages.
    pub retained: u64,
    /// Admitted flows.
    pub flows: u64,
    /// Bytes read.
    pub bytes: u64,
    /// Commits read.
    pub commits: u64,
    /// Bytes of commits that are not complete: those before the end of the log were never
    /// confirmed; for the last one see `tail`.
    pub torn: u64,
    /// Where the log ends with such a commit.
    pub tail: Option<Tail>,
    /// Number of incomplete items that were dropped; none of them was confirmed.
    pub unfinished: u64,
    /// What cannot be read, the first of it.
    pub damages: Vec<Damage>,
    /// How much more.
    pub more_damages: u64,
    /// Numbers up to these have been used.
    pub highest: HighestNumbers,
}

impl Report {
    /// Names something that cannot be read.
    pub(crate) fn damage(&mut self, damage: Damage) {
        if self.damages.len() < NAMED {
            self.damages.push(damage);
        } else {
            self.more_damages += 1;
        }
    }

    /// Adds the items of an image.
    pub(crate) fn count<C>(&mut self, image: &Image<C>) {
        self.sessions = image.sessions() as u64;
        self.entries = image.entries();
        self.messages = image.messages() as u64;
        self.retained = image.retained() as u64;
        self.flows = image.flows() as u64;
        self.highest = image.highest;
    }
}

/// An incomplete last commit. As a rule it was being written when the power failed. The
/// files do not distinguish that from a confirmed commit whose end was lost later,
/// perhaps with commits after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tail {
    /// In which segment.
    pub segment: u32,
    /// From which byte.
    pub offset: u64,
    /// Bytes that are there of it.
    pub len: u64,
}

impl fmt::Display for Tail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "segment {}, bytes {} to {}: the last commit is not complete and is left out. If the power \
             failed, or the process was killed, while it was written, it was never confirmed and nothing \
             is missing; if the file has changed since, it may have been confirmed, and so may commits \
             after it of which nothing is there: the files do not tell",
            self.segment,
            self.offset,
            self.offset + self.len
        )
    }
}

/// Something that cannot be read, and was left out.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("segment {segment}, bytes {offset} to {}: {what}", .offset + .len)]
pub struct Damage {
    /// In which segment.
    pub segment: u32,
    /// From which byte.
    pub offset: u64,
    /// How many bytes.
    pub len: u64,
    /// Description.
    pub what: String,
}

/// How much a store has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StoreStats {
    /// Sessions.
    pub sessions: u64,
    /// Messages that wait for them.
    pub entries: u64,
    /// Contents.
    pub messages: u64,
    /// Retained messages.
    pub retained: u64,
    /// Admitted flows.
    pub flows: u64,
    /// Bytes that the state needs.
    pub live_bytes: u64,
    /// Bytes in use on the disk.
    pub disk_bytes: u64,
    /// Commits since the start.
    pub commits: u64,
    /// Operations given to them.
    pub operations: u64,
    /// Those that had to be written.
    pub written_operations: u64,
    /// Bytes written for them.
    pub written_bytes: u64,
    /// Bytes written again to give back room.
    pub moved_bytes: u64,
}

impl StoreStats {
    /// Adds the items of an image.
    pub(crate) fn count<C>(&mut self, image: &Image<C>) {
        self.sessions = image.sessions() as u64;
        self.entries = image.entries();
        self.messages = image.messages() as u64;
        self.retained = image.retained() as u64;
        self.flows = image.flows() as u64;
        self.live_bytes = image.live_bytes();
    }
}

/// Keeps everything in memory: nothing survives the process. For models, and to
/// measure what the rest costs.
#[derive(Debug, Clone, Default)]
pub struct Memory {
    image: Image,
    stats: StoreStats,
}

impl Memory {
    /// The state.
    pub fn image(&self) -> &Image {
        &self.image
    }
}

impl Store for Memory {
    fn commit(&mut self, group: &Batch) -> Result<(), StoreError> {
        self.image.apply(group);
        self.stats.commits += 1;
        self.stats.operations += group.len() as u64;
        Ok(())
    }

    fn recover(&mut self, tell: &mut dyn FnMut(Op<'_>)) -> Result<Report, StoreError> {
        let mut report = Report {
            unfinished: self.image.drop_unfinished(),
            ..Report::default()
        };
        report.count(&self.image);
        self.image.operations(tell);
        Ok(report)
    }

    fn stats(&self) -> StoreStats {
        let mut stats = self.stats;
        stats.count(&self.image);
        stats
    }

    fn compact(&mut self) -> Result<(), StoreError> {
        Ok(())
    }
}
