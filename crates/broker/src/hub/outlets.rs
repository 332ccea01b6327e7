//! Connections, and the packets to write to them.
//!
//! Invariant: each of `dirty` and `urgent` has a connection at most once.

use std::collections::VecDeque;

use crate::base::connection::ConnId;
use crate::egress::outbuf::Pool;
use crate::egress::rank::Rank;
use crate::egress::{Dropped, Shared};
use crate::hub::api::Output;
use crate::hub::conn::Conn;
use crate::slab::Slab;

/// The connections of a shard, and the packets that wait to be written to them.
#[derive(Debug, Default)]
pub(crate) struct Outlets {
    pub(crate) conns: Slab<Conn>,
    /// Connections in the order in which they were opened, including some that have closed or
    /// connected since.
    pub(crate) opening: VecDeque<ConnId>,
    next_generation: u32,
    pub(crate) outputs: Vec<Output>,
    pub(crate) dirty: Vec<ConnId>,
    /// Connections with urgent messages to write.
    pub(crate) urgent: Vec<ConnId>,
    /// Reused memory to sort them.
    pub(crate) ranked: Vec<(Rank, usize, ConnId)>,
    /// Reused memory for messages that [`crate::egress::Egress::plan`] dropped.
    pub(crate) dropped: Vec<Dropped>,
    pub(crate) pool: Pool,
    /// Urgent messages that are stored once for several connections.
    pub(crate) shared: Shared,
}

impl Outlets {
    /// The connection, if it is still open.
    #[inline]
    pub(crate) fn conn(&mut self, id: ConnId) -> Option<&mut Conn> {
        self.conns
            .get_mut(id.slot)
            .filter(|conn| conn.generation == id.generation)
    }

    /// A generation for a new connection.
    pub(crate) fn next_generation(&mut self) -> u32 {
        self.next_generation = self.next_generation.wrapping_add(1);
        self.next_generation
    }

    /// Lists a connection as one with bytes to write.
    #[inline]
    pub(crate) fn mark_dirty(conn: &mut Conn, slot: u32, dirty: &mut Vec<ConnId>) {
        if !conn.dirty {
            conn.dirty = true;
            dirty.push(ConnId {
                slot,
                generation: conn.generation,
            });
        }
    }

    /// Lists a connection as one with messages to write before plain ones.
    #[inline]
    pub(crate) fn mark_urgent(conn: &mut Conn, slot: u32, urgent: &mut Vec<ConnId>) {
        if !conn.urgent {
            conn.urgent = true;
            urgent.push(ConnId {
                slot,
                generation: conn.generation,
            });
        }
    }
}
