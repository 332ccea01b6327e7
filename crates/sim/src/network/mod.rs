//! Networks in virtual time: what they can do, and how badly.
//!
//! [`families`] has the networks of the literature.

pub mod families;
mod write;

pub use write::to_toml;
