//! What shard 0, which has the sockets, and the shard of a session say to each
//! other by their mailboxes.
//!
//! Both directions are bounded: shard 0 sends on no more than [`UNDER_WAY`]
//! bytes of a peer that were not taken yet, the rest stays in the endpoint's
//! inbox; and a shard hands shard 0 no more than [`CREDIT`] bytes that were not
//! sent yet, the rest stays ordered in the broker.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use punctual_broker::{ConnMeta, Rank};

use super::link::PeerKey;

/// Bytes of one peer that may be under way to its session's shard.
pub(super) const UNDER_WAY: usize = 64 << 10;
/// Bytes that one shard may have waiting at shard 0.
const CREDIT: usize = 128 << 10;

/// Between shard 0 and the others.
pub(crate) enum UdpMail {
    /// To the session's shard: a connection, with its first packets.
    Open {
        remote: PeerKey,
        meta: Box<ConnMeta>,
        packets: Vec<u8>,
        capacity: usize,
    },
    /// To the session's shard: packets of the client.
    Packets { remote: PeerKey, packets: Vec<u8> },
    /// To the session's shard: the connection has ended.
    Lost { remote: PeerKey, why: &'static str },
    /// To the session's shard: the client has another address.
    Moved { remote: PeerKey, to: SocketAddr },
    /// To the session's shard: a datagram carries less than was said.
    Narrowed { remote: PeerKey, capacity: usize },
    /// To a session's shard: there is credit again.
    Room,
    /// To shard 0: so many bytes of packets were taken.
    Taken { remote: PeerKey, bytes: usize },
    /// To shard 0: to be sent, in the order of urgency.
    Send { from: u16, list: Vec<QueuedPackets> },
    /// To shard 0: the session lives on that shard.
    Rehome {
        remote: PeerKey,
        shard: u16,
        meta: Box<ConnMeta>,
        packets: Vec<u8>,
    },
}

/// Something to send for another shard.
pub(crate) struct QueuedPackets {
    pub(super) remote: PeerKey,
    pub(super) class: u8,
    /// Of the most urgent that is in it.
    pub(super) rank: Rank,
    pub(super) from: u16,
    pub(super) packets: Vec<u8>,
    /// Whether the connection ends with these packets.
    pub(super) last: bool,
}

/// How much each shard has waiting at shard 0.
#[derive(Clone)]
pub(crate) struct Credit(Arc<[AtomicUsize]>);

impl Credit {
    pub(crate) fn new(shards: u16) -> Self {
        Self((0..shards).map(|_| AtomicUsize::new(0)).collect())
    }

    /// Whether a shard may hand over more.
    pub(super) fn is_left(&self, shard: u16) -> bool {
        self.0[usize::from(shard)].load(Ordering::Acquire) < CREDIT
    }

    pub(super) fn use_up(&self, shard: u16, bytes: usize) {
        self.0[usize::from(shard)].fetch_add(bytes, Ordering::AcqRel);
    }

    /// Gives back; true if the shard has to be notified that it may continue.
    pub(super) fn give_back(&self, shard: u16, bytes: usize) -> bool {
        let before = self.0[usize::from(shard)].fetch_sub(bytes, Ordering::AcqRel);
        before >= CREDIT && before - bytes < CREDIT
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credit_is_used_up_and_given_back() {
        let credit = Credit::new(2);
        credit.use_up(1, CREDIT - 1);
        assert!(credit.is_left(1));
        credit.use_up(1, 1000);
        assert!(!credit.is_left(1) && credit.is_left(0));
        assert!(!credit.give_back(1, 999), "still nothing left");
        assert!(credit.give_back(1, 1), "notified once");
        assert!(!credit.give_back(1, 1000));
    }
}
