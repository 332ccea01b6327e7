//! Methods of a hub for links and for sessions that move.

mod custody;
mod history;
mod interest;
mod parts;
pub(crate) mod stored;
pub(crate) mod throttles;
