//! Links to neighbour brokers, and sessions that move between brokers, as far as a shard keeps them beside
//! the sessions.

use crate::base::notes::Packing;
use crate::flush::Flush;
use crate::mesh::custody::Custody;
use crate::mesh::moves::Moves;
use crate::mesh::passed::PassedOn;

/// What a shard keeps of its links and of sessions that move.
#[derive(Debug, Default)]
pub(crate) struct Links {
    /// Slots of the sessions of neighbours.
    pub(crate) neighbours: Vec<u32>,
    /// A timer is armed that looks how full the queues of neighbours are.
    pub(crate) brakes_armed: bool,
    /// What neighbours sent again and others got because of that.
    pub(crate) passed_on: PassedOn,
    /// What [`crate::Shard::link_flush`] was asked and has not answered.
    pub(crate) flushes: Vec<Flush>,
    /// What [`crate::Shard::link_keep`] was asked last, and the ticket that it waits for.
    pub(crate) wishes: Option<(u64, u64)>,
    /// A neighbour's run is taken apart: for those who do not take it as it is.
    pub(crate) unpacking: Option<Packing>,
    /// Blocked publications of neighbours are being retried.
    pub(crate) unparking: bool,
    /// A retried publication no longer waits for the previous message of its topic.
    pub(crate) ripe: bool,
    pub(crate) moves: Moves,
    /// In a mesh, if sessions move there.
    pub(crate) custody: Option<Box<Custody>>,
}
