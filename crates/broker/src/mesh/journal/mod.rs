//! Stored and transferred forms of messages and sessions of a mesh.

pub(crate) mod history;
pub(crate) mod moved;
pub(crate) mod names;
