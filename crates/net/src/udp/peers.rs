//! Where the session of each peer of a listener lives, by the peer's slot.

use punctual_broker::ConnId;
use punctual_udp::PeerId;

/// Where a peer's session lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Home {
    /// On this shard.
    Local(ConnId),
    /// On another one; bytes that are on their way there.
    Remote { shard: u16, under_way: usize },
}

/// The peers that the broker knows.
#[derive(Debug, Default)]
pub(super) struct Peers(Vec<Option<(PeerId, Home)>>);

impl Peers {
    pub(super) fn get(&self, peer: PeerId) -> Option<Home> {
        let (owner, home) = (*self.0.get(peer.slot as usize)?)?;
        (owner == peer).then_some(home)
    }

    pub(super) fn get_mut(&mut self, peer: PeerId) -> Option<&mut Home> {
        let (owner, home) = self.0.get_mut(peer.slot as usize)?.as_mut()?;
        (*owner == peer).then_some(home)
    }

    /// Notes a peer. One that had the slot before has ended.
    pub(super) fn insert(&mut self, peer: PeerId, home: Home) {
        let at = peer.slot as usize;
        if at >= self.0.len() {
            self.0.resize(at + 1, None);
        }
        self.0[at] = Some((peer, home));
    }

    /// Forgets a peer; whether it was known.
    pub(super) fn remove(&mut self, peer: PeerId) -> bool {
        let entry = self.0.get_mut(peer.slot as usize);
        entry.is_some_and(|entry| entry.take_if(|(owner, _)| *owner == peer).is_some())
    }
}
