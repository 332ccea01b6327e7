//! The three hash formats and their cost bounds.
//!
//! - `$6$salt$hash`: SHA-512 over password and salt (mosquitto 1.x). Fast, hence weak.
//! - `$7$iterations$salt$hash`: PBKDF2-HMAC-SHA512 (mosquitto 2.0).
//! - `$argon2id$v=19$m=…,t=…,p=…$salt$hash`: the PHC string of Argon2id (RFC 9106; mosquitto 2.1).
//!
//! The file decides how much work and memory a check takes, and anybody who can reach the broker can
//! ask for checks; hence the bounds below, applied when the file is read.

use argon2::{Algorithm, Argon2, Params, Version};
use base64::Engine as _;
use base64::alphabet::STANDARD;
use base64::engine::DecodePaddingMode;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig, STANDARD_NO_PAD};
use sha2::{Digest, Sha512};
use subtle::ConstantTimeEq;

/// Most PBKDF2 iterations accepted from a file.
const MAX_ITERATIONS: u32 = 1_000_000;
/// Most Argon2 memory accepted from a file, in KiB.
const MAX_MEMORY_KIB: u32 = 256 * 1024;
/// Most Argon2 work accepted from a file: memory in KiB times passes.
const MAX_MEMORY_PASSES: u32 = 1024 * 1024;
/// Most Argon2 lanes accepted from a file.
const MAX_LANES: u32 = 16;
/// Shortest and longest salt accepted, in bytes.
const SALT_BYTES: std::ops::RangeInclusive<usize> = 8..=64;
/// Shortest and longest Argon2 output accepted, in bytes.
const ARGON2_BYTES: std::ops::RangeInclusive<usize> = 16..=64;

/// Parameters of new hashes, one of the equivalent choices of the OWASP Password Storage Cheat
/// Sheet; the one with the least memory that needs only two passes, for brokers on small machines.
const NEW_MEMORY_KIB: u32 = 19 * 1024;
const NEW_PASSES: u32 = 2;
const NEW_LANES: u32 = 1;
const NEW_BYTES: usize = 32;

const REWRITE: &str = "set the password again with `punctual passwd`";

/// Padding is checked by nobody who writes these files, so it is not checked here.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// Hashes a password for a password file: an `$argon2id$` PHC string with 19 MiB of memory, two
/// passes, one lane and a 32-byte hash.
///
/// `salt` must be fresh random bytes for every call. Mosquitto reads this format from version 2.1.
pub fn hash_argon2id(password: &[u8], salt: [u8; 16]) -> String {
    let mut hash = [0; NEW_BYTES];
    argon2id(
        NEW_MEMORY_KIB,
        NEW_PASSES,
        NEW_LANES,
        password,
        &salt,
        &mut hash,
    )
    .expect("constant parameters are valid, which a test shows");
    format!(
        "$argon2id$v=19$m={NEW_MEMORY_KIB},t={NEW_PASSES},p={NEW_LANES}${}${}",
        STANDARD_NO_PAD.encode(salt),
        STANDARD_NO_PAD.encode(hash)
    )
}

/// A hash from a file, with parameters within the bounds.
#[derive(Clone, PartialEq, Eq)]
pub(super) enum StoredHash {
    Sha512 {
        salt: Box<[u8]>,
        hash: [u8; 64],
    },
    Pbkdf2 {
        iterations: u32,
        salt: Box<[u8]>,
        hash: [u8; 64],
    },
    Argon2id {
        memory_kib: u32,
        passes: u32,
        lanes: u32,
        salt: Box<[u8]>,
        hash: Box<[u8]>,
    },
}

/// Why a hash cannot be used. Never holds the hash, which may be a plain-text password.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Fault {
    pub(super) problem: String,
    pub(super) remedy: &'static str,
}

impl StoredHash {
    pub(super) fn parse(text: &str) -> Result<Self, Fault> {
        let Some(rest) = text.strip_prefix('$') else {
            return Err(fault(
                "is missing: the text after the colon does not begin with '$'",
                "a password file holds no plain passwords, set this one with `punctual passwd`",
            ));
        };
        let mut parts = rest.split('$');
        let stored = match parts.next() {
            Some("6") => Self::Sha512 {
                salt: salt(parts.next())?,
                hash: sha512_bytes(parts.next())?,
            },
            Some("7") => Self::Pbkdf2 {
                iterations: number("iterations", parts.next(), 1, MAX_ITERATIONS)?,
                salt: salt(parts.next())?,
                hash: sha512_bytes(parts.next())?,
            },
            Some("argon2id") => parse_argon2id(&mut parts)?,
            Some("argon2i" | "argon2d") => {
                return Err(fault(
                    "is of an Argon2 variant other than argon2id",
                    REWRITE,
                ));
            }
            _ => {
                return Err(fault(
                    "is of an unknown kind; known are $6$, $7$ and $argon2id$",
                    REWRITE,
                ));
            }
        };
        match parts.next() {
            None => Ok(stored),
            Some(_) => Err(fault("goes on after its end", REWRITE)),
        }
    }

    /// Hashes the password at this entry's cost and compares in constant time.
    pub(super) fn matches(&self, password: &[u8]) -> bool {
        match self {
            Self::Sha512 { salt, hash } => {
                let found = Sha512::new()
                    .chain_update(password)
                    .chain_update(salt)
                    .finalize();
                found.as_slice().ct_eq(hash).into()
            }
            Self::Pbkdf2 {
                iterations,
                salt,
                hash,
            } => {
                let mut found = [0; 64];
                pbkdf2::pbkdf2_hmac::<Sha512>(password, salt, *iterations, &mut found);
                found.ct_eq(hash).into()
            }
            Self::Argon2id {
                memory_kib,
                passes,
                lanes,
                salt,
                hash,
            } => {
                let mut found = vec![0; hash.len()];
                argon2id(*memory_kib, *passes, *lanes, password, salt, &mut found).is_ok()
                    && bool::from(found.ct_eq(hash))
            }
        }
    }
}

fn parse_argon2id<'a>(parts: &mut impl Iterator<Item = &'a str>) -> Result<StoredHash, Fault> {
    if parts.next() != Some("v=19") {
        return Err(fault("is not of Argon2 version 19", REWRITE));
    }
    let mut parameters = parts.next().unwrap_or_default().split(',');
    let mut parameter = |name: &'static str, min: u32, max: u32| {
        let value = parameters
            .next()
            .and_then(|text| text.strip_prefix(name)?.strip_prefix('='));
        number(name, value, min, max)
    };
    let memory_kib = parameter("m", 8, MAX_MEMORY_KIB)?;
    let passes = parameter("t", 1, MAX_MEMORY_PASSES)?;
    let lanes = parameter("p", 1, MAX_LANES)?;
    if parameters.next().is_some() {
        return Err(fault("has parameters other than m, t and p", REWRITE));
    }
    if memory_kib.saturating_mul(passes) > MAX_MEMORY_PASSES {
        return Err(fault(
            format!("takes too much work: m times t is more than {MAX_MEMORY_PASSES}"),
            REWRITE,
        ));
    }
    if memory_kib < 8 * lanes {
        return Err(fault("has an m of less than 8 times its p", REWRITE));
    }
    let salt = salt(parts.next())?;
    let hash = bytes("hash", parts.next())?;
    if !ARGON2_BYTES.contains(&hash.len()) {
        return Err(fault(
            format!("has a hash of {} bytes, not 16 to 64", hash.len()),
            REWRITE,
        ));
    }
    Ok(StoredHash::Argon2id {
        memory_kib,
        passes,
        lanes,
        salt,
        hash,
    })
}

fn argon2id(
    memory_kib: u32,
    passes: u32,
    lanes: u32,
    password: &[u8],
    salt: &[u8],
    out: &mut [u8],
) -> Result<(), argon2::Error> {
    let params = Params::new(memory_kib, passes, lanes, Some(out.len()))?;
    Argon2::new(Algorithm::Argon2id, Version::V0x13, params).hash_password_into(password, salt, out)
}

fn salt(part: Option<&str>) -> Result<Box<[u8]>, Fault> {
    let salt = bytes("salt", part)?;
    if SALT_BYTES.contains(&salt.len()) {
        Ok(salt)
    } else {
        Err(fault(
            format!("has a salt of {} bytes, not 8 to 64", salt.len()),
            REWRITE,
        ))
    }
}

fn sha512_bytes(part: Option<&str>) -> Result<[u8; 64], Fault> {
    let hash = bytes("hash", part)?;
    hash.as_ref().try_into().map_err(|_| {
        fault(
            format!("has a hash of {} bytes, not 64", hash.len()),
            REWRITE,
        )
    })
}

fn bytes(what: &str, part: Option<&str>) -> Result<Box<[u8]>, Fault> {
    let part = part.ok_or_else(|| fault(format!("has no {what}"), REWRITE))?;
    BASE64
        .decode(part)
        .map(Into::into)
        .map_err(|_| fault(format!("has a {what} that is not base64"), REWRITE))
}

fn number(what: &str, part: Option<&str>, min: u32, max: u32) -> Result<u32, Fault> {
    part.and_then(|text| text.parse().ok())
        .filter(|value| (min..=max).contains(value))
        .ok_or_else(|| {
            fault(
                format!("needs a number {what} from {min} to {max}"),
                REWRITE,
            )
        })
}

fn fault(problem: impl Into<String>, remedy: &'static str) -> Fault {
    Fault {
        problem: problem.into(),
        remedy,
    }
}
