//! Value types that every other part of the broker may use. They depend on no other part.

pub(crate) mod author;
pub(crate) mod connection;
pub(crate) mod delivery;
pub(crate) mod durability;
pub(crate) mod handle;
pub(crate) mod name;
pub(crate) mod notes;
pub(crate) mod queue_full;
pub(crate) mod sys_source;
pub(crate) mod version;
