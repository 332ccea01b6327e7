//! The secret by which the brokers of a mesh know each other in tests.

/// Where brokers read it.
pub(crate) const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/mesh.secret");
/// What is there.
pub(crate) const SECRET: &str = "known to the brokers of a mesh in tests";
/// The user name that goes with it.
pub(crate) const USER: &str = "$mesh";
