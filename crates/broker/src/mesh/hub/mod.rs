//! Methods of a hub for links and for sessions that move.

pub(crate) mod brakes;
mod custody;
mod history;
mod interest;
mod parts;
pub(crate) mod stored;
