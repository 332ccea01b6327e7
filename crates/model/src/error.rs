//! Why a requirement was refused, for the person who wrote it.

use std::borrow::Cow;
use std::error::Error;
use std::fmt;

/// Characters of a key or a value that an error repeats: enough to recognise
/// it, and short enough for a log line and a Reason String.
const SHOWN: usize = 64;

/// A user property that looks like a requirement and is none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequirementError {
    key: String,
    value: String,
    remedy: Cow<'static, str>,
}

impl RequirementError {
    pub(crate) fn new(key: &[u8], value: &[u8], remedy: impl Into<Cow<'static, str>>) -> Self {
        Self {
            key: shown(key),
            value: shown(value),
            remedy: remedy.into(),
        }
    }

    /// The key, at most 64 characters of it.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// The value, at most 64 characters of it.
    pub fn value(&self) -> &str {
        &self.value
    }

    /// What to write instead.
    pub fn remedy(&self) -> &str {
        &self.remedy
    }
}

impl fmt::Display for RequirementError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key, value, remedy } = self;
        write!(f, "{key} = {value:?}: {remedy}")
    }
}

impl Error for RequirementError {}

/// The beginning of a text that may be no text and may be 65 535 bytes long.
fn shown(bytes: &[u8]) -> String {
    // A character has at most four bytes, so this loses none that is shown.
    let start = &bytes[..bytes.len().min(4 * SHOWN + 4)];
    let text = String::from_utf8_lossy(start);
    match text.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.into_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_repeated_is_short() {
        let error = RequirementError::new(b"rt-x", "ü".repeat(1000).as_bytes(), "say less");
        assert_eq!(error.value(), format!("{}…", "ü".repeat(64)));
        let error = RequirementError::new(b"rt-\xff", b"1", "say it in UTF-8");
        assert_eq!(error.to_string(), "rt-\u{fffd} = \"1\": say it in UTF-8");
    }
}
