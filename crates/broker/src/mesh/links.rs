//! State of a shard about links to neighbour brokers and about sessions that move between brokers,
//! beside the sessions themselves.

use crate::base::notes::Packing;
use crate::flush::Flush;
use crate::mesh::custody::Custody;
use crate::mesh::moves::Moves;
use crate::mesh::passed::PassedOn;

/// State of a shard about its links and about sessions that move.
#[derive(Debug, Default)]
pub(crate) struct Links {
    /// Slots of the sessions of neighbours.
    pub(crate) neighbours: Vec<u32>,
    /// Whether the timer is armed that checks how full the queues of neighbours are.
    pub(crate) throttles_armed: bool,
    /// Messages that neighbours sent again, and that were passed on to other neighbours because of
    /// that.
    pub(crate) passed_on: PassedOn,
    /// Requests of [`crate::Shard::link_flush`] that are not answered.
    pub(crate) flushes: Vec<Flush>,
    /// The last unanswered request of [`crate::Shard::link_keep`]: the ticket that it waits for,
    /// and its number.
    pub(crate) wishes: Option<(u64, u64)>,
    /// While a neighbour's run is unpacked, for receivers that do not accept it as one message: its
    /// packing.
    pub(crate) unpacking: Option<Packing>,
    /// Whether blocked publications of neighbours are being retried.
    pub(crate) unparking: bool,
    /// Whether the publication that is being retried no longer waits for the previous message of
    /// its topic.
    pub(crate) ripe: bool,
    pub(crate) moves: Moves,
    /// `None` without a mesh, or if sessions do not move between its brokers.
    pub(crate) custody: Option<Box<Custody>>,
}
