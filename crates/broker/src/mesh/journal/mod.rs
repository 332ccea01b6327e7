//! What is stored, and sent to other brokers, of messages and sessions of a mesh.

pub(crate) mod history;
pub(crate) mod moved;
pub(crate) mod names;
