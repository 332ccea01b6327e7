//! The password file: one `user:hash` per line, in mosquitto's format.
//!
//! Blank lines and lines that begin with `#` are kept as they are. Hashes of mosquitto 1.x (`$6$`),
//! 2.0 (`$7$`) and 2.1 (`$argon2id$`) are read; new ones are written as `$argon2id$`. Where mosquitto
//! drops a bad entry with a log line, the whole file is refused here, because a user who silently
//! cannot log in is worse than a reload that names the line.
//!
//! Invariant: a check takes the same work whether the user exists or not, see
//! [`PasswordFile::verify`].

mod hash;

use std::collections::HashMap;
use std::fmt;
use std::hint::black_box;

use sha2::{Digest, Sha256};

use self::hash::StoredHash;
pub use self::hash::hash_argon2id;
use crate::FileError;
use crate::error::BYTE_ORDER_MARK;
use crate::topic::MAX_BYTES;

/// Outcome of [`PasswordFile::verify`]. For the log only: a client must not learn which of the two
/// refusals it met.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Verdict {
    /// The user exists and the password is the user's.
    Accepted,
    /// The user exists, the password is another one (or empty).
    WrongPassword,
    /// The file has no such user.
    UnknownUser,
}

impl Verdict {
    /// True for [`Verdict::Accepted`] only.
    pub fn is_accepted(self) -> bool {
        self == Self::Accepted
    }
}

/// A parsed password file, for checking passwords and for editing.
///
/// `Display` gives the file's text back, with comments, blank lines and order as they were; line
/// ends become `\n`. `Debug` shows no hash.
#[derive(Clone, Default)]
pub struct PasswordFile {
    lines: Vec<Line>,
    /// User name to index in `lines`.
    index: HashMap<Box<str>, usize>,
    /// Decides which entry's cost stands in for an unknown user. Made of the salts and hashes, so
    /// that a client cannot compute it.
    decoy_key: [u8; 32],
}

#[derive(Clone)]
enum Line {
    /// A comment or a blank line.
    Verbatim(Box<str>),
    Entry {
        user: Box<str>,
        hash: Box<str>,
        stored: StoredHash,
    },
}

impl PasswordFile {
    /// Reads a password file.
    ///
    /// # Errors
    ///
    /// One [`FileError`] per line that is neither blank, nor a comment, nor a `user:hash` with a
    /// known, complete and affordable hash, and per user that occurs again.
    pub fn parse(text: &str) -> Result<Self, Vec<FileError>> {
        let mut file = Self::default();
        let mut errors = Vec::new();
        for (index, text) in text
            .strip_prefix(BYTE_ORDER_MARK)
            .unwrap_or(text)
            .lines()
            .enumerate()
        {
            match parse_line(text, index + 1) {
                Ok(line) => {
                    if let Line::Entry { user, .. } = &line
                        && let Some(first) = file.index.insert(user.clone(), index)
                    {
                        errors.push(FileError::new(
                            index + 1,
                            "user name",
                            user,
                            format!("already has a password in line {}", first + 1),
                            "remove one of the two lines",
                        ));
                    }
                    file.mix_decoy_key(&line);
                    file.lines.push(line);
                }
                Err(error) => {
                    errors.push(error);
                    // Keeps line numbers and indices the same for the lines that follow.
                    file.lines.push(Line::Verbatim("".into()));
                }
            }
        }
        if errors.is_empty() {
            Ok(file)
        } else {
            Err(errors)
        }
    }

    /// Checks a password. Slow on purpose (see [`hash_argon2id`]); call it on a worker thread.
    ///
    /// Hashes are compared in constant time. For an unknown user the password is hashed at the cost
    /// of one of the file's entries, always the same one for the same name, so that timing does not
    /// tell which names exist. An empty password is never accepted, as a CONNECT without a password
    /// would otherwise pass for one.
    pub fn verify(&self, user: &str, password: &[u8]) -> Verdict {
        if let Some(stored) = self.index.get(user).and_then(|&line| self.stored(line)) {
            if stored.matches(password) && !password.is_empty() {
                Verdict::Accepted
            } else {
                Verdict::WrongPassword
            }
        } else {
            if let Some(decoy) = self.decoy(user) {
                black_box(decoy.matches(password));
            }
            Verdict::UnknownUser
        }
    }

    /// The users in the order of the file.
    pub fn users(&self) -> impl Iterator<Item = &str> {
        self.lines.iter().filter_map(|line| match line {
            Line::Entry { user, .. } => Some(&**user),
            Line::Verbatim(_) => None,
        })
    }

    /// Gives a user a new hash, in place if the user exists, else in a new last line. Returns
    /// whether the user existed.
    ///
    /// # Errors
    ///
    /// If the name breaks the rules of [`check_user_name`] or the hash is not one that
    /// [`PasswordFile::parse`] reads. Nothing is changed then.
    pub fn set(&mut self, user: &str, hash: &str) -> Result<bool, FileError> {
        let known = self.index.get(user).copied();
        let at = known.unwrap_or(self.lines.len());
        let line = entry(user, hash, at + 1)?;
        self.mix_decoy_key(&line);
        if known.is_some() {
            self.lines[at] = line;
        } else {
            self.index.insert(user.into(), at);
            self.lines.push(line);
        }
        Ok(known.is_some())
    }

    /// Removes a user and the user's line. Returns whether the user existed.
    pub fn remove(&mut self, user: &str) -> bool {
        let Some(removed) = self.index.remove(user) else {
            return false;
        };
        self.lines.remove(removed);
        for line in self.index.values_mut().filter(|line| **line > removed) {
            *line -= 1;
        }
        true
    }

    /// Whether a user is in both files with the same hash, so that a password that one has accepted is
    /// the other's, too.
    pub fn agrees_with(&self, other: &Self, user: &str) -> bool {
        let own = self.hash_of(user);
        own.is_some() && own == other.hash_of(user)
    }

    fn hash_of(&self, user: &str) -> Option<&str> {
        match self.lines.get(*self.index.get(user)?)? {
            Line::Entry { hash, .. } => Some(hash),
            Line::Verbatim(_) => None,
        }
    }

    fn stored(&self, line: usize) -> Option<&StoredHash> {
        match self.lines.get(line)? {
            Line::Entry { stored, .. } => Some(stored),
            Line::Verbatim(_) => None,
        }
    }

    /// The entry whose cost an unknown user pays; `None` for a file without users.
    fn decoy(&self, user: &str) -> Option<&StoredHash> {
        let digest = Sha256::new()
            .chain_update(self.decoy_key)
            .chain_update(user)
            .finalize();
        let pick = digest
            .iter()
            .take(8)
            .fold(0, |pick, byte| pick << 8 | u64::from(*byte));
        let start = (pick % (self.lines.len().max(1) as u64)) as usize;
        (start..self.lines.len())
            .chain(0..start)
            .find_map(|line| self.stored(line))
    }

    fn mix_decoy_key(&mut self, line: &Line) {
        if let Line::Entry { hash, .. } = line {
            let key = Sha256::new()
                .chain_update(self.decoy_key)
                .chain_update(hash.as_bytes());
            self.decoy_key = key.finalize().into();
        }
    }
}

impl fmt::Display for PasswordFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.lines.iter().try_for_each(|line| match line {
            Line::Verbatim(text) => writeln!(f, "{text}"),
            Line::Entry { user, hash, .. } => writeln!(f, "{user}:{hash}"),
        })
    }
}

impl fmt::Debug for PasswordFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PasswordFile")
            .field("users", &self.index.len())
            .finish_non_exhaustive()
    }
}

/// Checks a user name for use in a password file.
///
/// It must have 1 to 65535 bytes and no colon, control character or surrounding white space, and
/// must not begin with `#`, which would make its line a comment, or with a byte order mark.
///
/// # Errors
///
/// What is wrong with the name, in words that read on after it.
pub fn check_user_name(user: &str) -> Result<(), &'static str> {
    if user.is_empty() {
        Err("is empty")
    } else if user.len() > MAX_BYTES {
        Err("is longer than 65535 bytes")
    } else if user.contains(':') {
        Err("holds a colon, which ends the name in a password file")
    } else if user.contains(char::is_control) {
        Err("holds a control character")
    } else if user.starts_with(BYTE_ORDER_MARK) {
        Err("begins with a byte order mark")
    } else if user.trim() != user {
        Err("begins or ends with white space")
    } else if user.starts_with('#') {
        Err("begins with '#', which makes the line a comment")
    } else {
        Ok(())
    }
}

fn parse_line(text: &str, number: usize) -> Result<Line, FileError> {
    let trimmed = text.trim();
    if trimmed.is_empty() || trimmed.starts_with('#') {
        return Ok(Line::Verbatim(text.into()));
    }
    let Some((user, hash)) = trimmed.split_once(':') else {
        // The text may be a password, so that it is not shown.
        return Err(FileError::new(
            number,
            "entry",
            "",
            "has no colon",
            "write user:hash (`punctual passwd` does), or begin a comment with '#'",
        ));
    };
    entry(user.trim_end(), hash.trim_start(), number)
}

fn entry(user: &str, hash: &str, number: usize) -> Result<Line, FileError> {
    check_user_name(user).map_err(|problem| {
        FileError::new(number, "user name", user, problem, "choose another name")
    })?;
    let stored = StoredHash::parse(hash).map_err(|fault| {
        FileError::new(
            number,
            "password hash of user",
            user,
            fault.problem,
            fault.remedy,
        )
    })?;
    Ok(Line::Entry {
        user: user.into(),
        hash: hash.into(),
        stored,
    })
}

#[cfg(test)]
mod tests;
