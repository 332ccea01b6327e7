//! The token file: tokens that give access to the HTTP interface.
//!
//! One `role token` per line; blank lines and lines that begin with `#` are passed over. A token is
//! compared by its SHA-256 in constant time, so that neither the duration of a check nor a `Debug`
//! output says anything about it.

use std::fmt::{self, Write as _};

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use sha2::{Digest as _, Sha256};
use subtle::{Choice, ConditionallySelectable as _, ConstantTimeEq as _};

use crate::error::BYTE_ORDER_MARK;
use crate::{FileError, HttpRole};

/// Random bytes of a token that is made.
pub const TOKEN_BYTES: usize = 32;
/// Fewest characters of a token that is accepted: 128 bits in Base64.
const SHORTEST: usize = 22;
/// Most characters of a token.
const LONGEST: usize = 512;
/// Most lines with a token.
const MOST: usize = 256;

/// A parsed token file.
#[derive(Clone, Default)]
pub struct TokenFile(Vec<Token>);

#[derive(Clone)]
struct Token {
    role: HttpRole,
    text: Box<str>,
    hash: [u8; 32],
}

impl TokenFile {
    /// Reads a token file.
    ///
    /// # Errors
    ///
    /// One [`FileError`] per line that is neither blank, nor a comment, nor a role and a token of 22
    /// to 512 visible ASCII characters; and for the first line past 256 tokens. No error has a token
    /// in it.
    pub fn parse(text: &str) -> Result<Self, Vec<FileError>> {
        let text = text.strip_prefix(BYTE_ORDER_MARK).unwrap_or(text);
        let mut tokens = Vec::new();
        let mut errors = Vec::new();
        for (index, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            if tokens.len() == MOST {
                let problem = "comes after 256 others";
                let error = FileError::new(index + 1, "token", "", problem, "remove some");
                errors.push(error);
                break;
            }
            match Token::parse(line, index + 1) {
                Ok(token) => tokens.push(token),
                Err(error) => errors.push(error),
            }
        }
        if errors.is_empty() {
            Ok(Self(tokens))
        } else {
            Err(errors)
        }
    }

    /// The role of a token: the greatest, if several lines have it. The time does
    /// not depend on which line it is, or on whether there is one.
    pub fn role_of(&self, token: &str) -> Option<HttpRole> {
        let hash: [u8; 32] = Sha256::digest(token.as_bytes()).into();
        let mut found = 0u8;
        for line in &self.0 {
            let number = line.role as u8 + 1;
            let better = Choice::from(u8::from(number > found));
            found.conditional_assign(&number, line.hash.ct_eq(&hash) & better);
        }
        let all = HttpRole::ALL.into_iter();
        all.rev().find(|role| *role as u8 + 1 == found)
    }

    /// A token for what takes `role`: of those that suffice, one with the least role.
    pub fn token_for(&self, role: HttpRole) -> Option<&str> {
        let suffice = self.0.iter().filter(|token| token.role >= role);
        suffice
            .min_by_key(|token| token.role)
            .map(|token| &*token.text)
    }

    /// The text of a new file, with a token for each role made of these random bytes.
    pub fn generate(random: &[[u8; TOKEN_BYTES]; HttpRole::ALL.len()]) -> String {
        let mut text = String::from(
            "# Tokens of the HTTP interface, one \"role token\" a line. Each role includes those before it.\n\
             # Keep this file readable by its owner only. Delete it and start again for new tokens.\n",
        );
        for (role, random) in HttpRole::ALL.into_iter().zip(random) {
            let _ = writeln!(text, "{role} {}", BASE64_URL_SAFE_NO_PAD.encode(random));
        }
        text
    }
}

impl fmt::Debug for TokenFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let roles = self.0.iter().map(|token| token.role);
        f.debug_list().entries(roles).finish()
    }
}

impl Token {
    fn parse(line: &str, number: usize) -> Result<Self, FileError> {
        let (role, token) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        let wrong = |problem: &'static str| {
            let remedy = "write a role and 22 to 512 random visible ASCII characters";
            // The value may be a secret.
            FileError::new(number, "token", "", problem, remedy)
        };
        let Ok(role) = role.parse::<HttpRole>() else {
            return Err(wrong("does not follow read, operate or administer"));
        };
        let token = token.trim_start();
        if !token.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(wrong("holds something else than visible ASCII characters"));
        }
        if !(SHORTEST..=LONGEST).contains(&token.len()) {
            return Err(wrong("is too short to be a secret, or too long"));
        }
        Ok(Self {
            role,
            text: token.into(),
            hash: Sha256::digest(token.as_bytes()).into(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_generated_file_has_a_token_for_each_role() {
        let text = TokenFile::generate(&[[1; 32], [2; 32], [3; 32]]);
        let file = TokenFile::parse(&text).unwrap();
        for role in HttpRole::ALL {
            let token = file.token_for(role).unwrap();
            assert_eq!(token.len(), 43);
            assert_eq!(file.role_of(token), Some(role));
            assert_eq!(file.role_of(&token[1..]), None);
            assert!(!format!("{file:?}").contains(token));
        }
        assert_eq!(file.role_of(""), None);
        assert_eq!(TokenFile::default().role_of(""), None);
    }

    #[test]
    fn the_least_sufficient_token_is_shown_and_the_greatest_role_counts() {
        let (a, b) = ("a".repeat(22), "b".repeat(22));
        let text = format!("administer {a}\n\n# note\noperate {b}\nread {b}\n");
        let file = TokenFile::parse(&text).unwrap();
        assert_eq!(file.token_for(HttpRole::Read), Some(&*b));
        assert_eq!(file.token_for(HttpRole::Administer), Some(&*a));
        assert_eq!(file.role_of(&b), Some(HttpRole::Operate));
        let file = TokenFile::parse(&format!("read {a}")).unwrap();
        assert_eq!(file.token_for(HttpRole::Operate), None);
    }

    #[test]
    fn bad_lines_are_named_without_their_secret() {
        let long = "s".repeat(513);
        let good = "s".repeat(30);
        for line in [
            format!("root {good}"),
            good.clone(),
            "read".into(),
            "read short-secret".into(),
            format!("read {good} {good}"),
            format!("read {long}"),
            format!("read {good}\u{7}"),
        ] {
            let errors = TokenFile::parse(&format!("# c\n{line}\n")).unwrap_err();
            assert_eq!(errors.len(), 1, "{line}");
            assert_eq!(errors[0].line, 2);
            assert!(!errors[0].to_string().contains("sss"), "{}", errors[0]);
            assert!(!errors[0].to_string().contains("secret\""), "{}", errors[0]);
        }
        let many = format!("read {good}\n").repeat(MOST + 1);
        assert_eq!(TokenFile::parse(&many).unwrap_err()[0].line, MOST + 1);
    }
}
