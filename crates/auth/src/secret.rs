//! A secret that machines share: one line of a file.

use std::fmt;

use subtle::ConstantTimeEq as _;

use crate::FileError;
use crate::error::BYTE_ORDER_MARK;

/// Least length in bytes, so that it cannot be guessed.
const FEWEST_BYTES: usize = 16;
/// Most bytes, so that it fits into the first packet of a connection.
const MOST_BYTES: usize = 1024;

/// A secret shared by the brokers of a mesh.
#[derive(Clone)]
pub struct Secret(Box<str>);

impl Secret {
    /// Takes the first line of a file, without the space around it.
    ///
    /// # Errors
    /// It has fewer than 16 bytes or more than 1024. The error does not show it.
    pub fn parse(text: &str) -> Result<Self, FileError> {
        let text = text.strip_prefix(BYTE_ORDER_MARK).unwrap_or(text);
        let line = text.lines().next().unwrap_or_default().trim();
        let problem = match line.len() {
            FEWEST_BYTES..=MOST_BYTES => return Ok(Self(line.into())),
            0 => "is missing",
            1..FEWEST_BYTES => "is shorter than 16 bytes",
            _ => "is longer than 1024 bytes",
        };
        let remedy = "write one with `openssl rand -hex 32 > FILE`";
        Err(FileError::new(1, "secret", "", problem, remedy))
    }

    /// Compares it with another value in a time that depends only on its length.
    pub fn is(&self, presented: &[u8]) -> bool {
        self.0.as_bytes().ct_eq(presented).into()
    }

    /// To be presented.
    pub fn as_bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_line_is_known_to_who_presents_it() {
        let secret = Secret::parse("  0123456789abcdef \r\nmore\n").unwrap();
        assert!(secret.is(b"0123456789abcdef") && secret.is(secret.as_bytes()));
        for other in [
            "",
            "0123456789abcde",
            "0123456789abcdeF",
            "0123456789abcdef ",
        ] {
            assert!(!secret.is(other.as_bytes()), "{other:?}");
        }
        assert!(!format!("{secret:?}").contains("0123"));
    }

    #[test]
    fn what_can_be_guessed_is_refused_and_not_shown() {
        for (text, problem) in [
            ("", "is missing"),
            ("\n0123456789abcdef", "is missing"),
            ("short-secret", "is shorter"),
            (&*"x".repeat(1025), "is longer"),
        ] {
            let error = Secret::parse(text).unwrap_err();
            assert!(error.problem.starts_with(problem), "{error}");
            assert!(!error.to_string().contains("short-secret"), "{error}");
        }
    }
}
