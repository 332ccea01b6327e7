//! The one error of this crate: a line of a file that cannot be used, and how to repair it.

use std::borrow::Cow;
use std::fmt;

/// Values longer than this are cut in errors, so that a wrong file does not fill the log.
const SHOWN_CHARS: usize = 64;

/// Some editors begin files with it; it is no part of the first line.
pub(crate) const BYTE_ORDER_MARK: char = '\u{feff}';

/// A line of a password or ACL file that cannot be used.
///
/// Displays as `line 3: access "rw" is unknown; write read, write, readwrite or deny`. The value
/// never holds a password or a hash.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileError {
    /// Line number, counted from 1.
    pub line: usize,
    /// What the bad part of the line is, such as `topic filter` or `max-priority`.
    pub field: &'static str,
    /// The text found there, cut to a length that a log can take. For a bad password hash this is
    /// the user's name.
    pub value: String,
    /// What is wrong with the value; reads on after it.
    pub problem: Cow<'static, str>,
    /// What to write instead.
    pub remedy: Cow<'static, str>,
}

impl FileError {
    pub(crate) fn new(
        line: usize,
        field: &'static str,
        value: &str,
        problem: impl Into<Cow<'static, str>>,
        remedy: impl Into<Cow<'static, str>>,
    ) -> Self {
        let mut value: String = value.to_owned();
        if let Some((end, _)) = value.char_indices().nth(SHOWN_CHARS) {
            value.truncate(end);
            value.push('…');
        }
        Self {
            line,
            field,
            value,
            problem: problem.into(),
            remedy: remedy.into(),
        }
    }
}

impl fmt::Display for FileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            line,
            field,
            value,
            problem,
            remedy,
        } = self;
        // `{value:?}` also keeps control characters out of logs and terminals.
        write!(f, "line {line}: {field} {value:?} {problem}; {remedy}")
    }
}

impl std::error::Error for FileError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn display_names_line_field_value_and_remedy() {
        let error = FileError::new(3, "access", "rw", "is unknown", "write read or write");
        assert_eq!(
            error.to_string(),
            "line 3: access \"rw\" is unknown; write read or write"
        );
    }

    #[test]
    fn long_values_are_cut_on_a_character_and_control_characters_are_escaped() {
        let error = FileError::new(1, "topic filter", &"é".repeat(1000), "is long", "cut it");
        assert_eq!(error.value, "é".repeat(SHOWN_CHARS) + "…");
        let error = FileError::new(1, "user name", "a\u{1b}[2J", "is bad", "change it");
        assert!(!error.to_string().contains('\u{1b}'), "{error}");
    }
}
