//! Connections of a shard that came by UDP, by the broker's slot.

use std::collections::HashMap;

use punctual_broker::ConnId;
use punctual_udp::PeerId;

/// Names a peer between shards: listener among shard 0's, and peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct PeerKey {
    pub(super) listener: usize,
    pub(super) peer: PeerId,
}

/// How a connection's packets travel.
#[derive(Debug)]
pub(super) enum Route {
    /// The sockets are this shard's.
    Local { listener: usize, peer: PeerId },
    /// By shard 0.
    Forwarded {
        remote: PeerKey,
        /// Packets that the broker has not taken yet.
        unread: Vec<u8>,
        /// Bytes of packets that one datagram carries.
        capacity: usize,
    },
}

#[derive(Debug)]
pub(super) struct Link {
    pub(super) conn: ConnId,
    pub(super) route: Route,
}

/// By slot, and by peer those that go by another shard.
#[derive(Debug, Default)]
pub(super) struct Links {
    slots: Vec<Option<Link>>,
    through: HashMap<PeerKey, ConnId>,
}

impl Links {
    #[inline]
    pub(super) fn get(&self, conn: ConnId) -> Option<&Link> {
        self.at(conn.slot).filter(|link| link.conn == conn)
    }

    pub(super) fn get_mut(&mut self, conn: ConnId) -> Option<&mut Link> {
        self.slots
            .get_mut(conn.slot as usize)?
            .as_mut()
            .filter(|link| link.conn == conn)
    }

    /// The connection with that slot.
    #[inline]
    pub(super) fn at(&self, slot: u32) -> Option<&Link> {
        self.slots.get(slot as usize)?.as_ref()
    }

    pub(super) fn insert(&mut self, conn: ConnId, route: Route) {
        let slot = conn.slot as usize;
        if self.slots.len() <= slot {
            self.slots.resize_with(slot + 1, || None);
        }
        if let Route::Forwarded { remote, .. } = &route {
            self.through.insert(*remote, conn);
        }
        self.slots[slot] = Some(Link { conn, route });
    }

    pub(super) fn remove(&mut self, conn: ConnId) -> Option<Route> {
        let link = self.slots.get_mut(conn.slot as usize)?;
        let route = link.take_if(|link| link.conn == conn)?.route;
        if let Route::Forwarded { remote, .. } = &route {
            self.through.remove(remote);
        }
        Some(route)
    }

    /// The connection of a peer whose sockets are another shard's.
    pub(super) fn through(&self, remote: PeerKey) -> Option<ConnId> {
        self.through.get(&remote).copied()
    }
}
