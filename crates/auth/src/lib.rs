//! Authentication and authorisation: password and ACL files in mosquitto's
//! formats, a [`Secret`] that machines share, and the tokens of the HTTP
//! interface.
//!
//! Pure: text comes in, decisions go out. There is no file, clock, socket, thread or random source
//! here; the caller reads the files, hands in salts, and runs [`PasswordFile::verify`] away from the
//! data path because it is slow on purpose.
//!
//! Invariants: a file with any bad line is refused as a whole and every bad line is named
//! ([`FileError`]); no password or hash ever appears in an error, a warning or a `Debug` output;
//! [`ClientAcl`] checks of topics do not allocate. Sources: `mosquitto_passwd(1)`, `mosquitto.conf(5)` and the
//! observed behaviour of mosquitto 2.0.11 (`tests/mosquitto.rs`); `rt`, `broker` and `http` lines and the
//! token file are Punctual's own.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod acl;
mod error;
pub mod passwd;
mod remembered;
mod role;
mod secret;
mod token;
pub mod topic;

pub use acl::{Acl, ClientAcl, RtRights};
pub use error::FileError;
pub use passwd::{PasswordFile, Verdict, check_user_name, hash_argon2id};
pub use remembered::Remembered;
pub use role::{HttpRole, UnknownRole};
pub use secret::Secret;
pub use token::{TOKEN_BYTES, TokenFile};
