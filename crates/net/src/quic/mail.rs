//! What shard 0, which has the endpoints, and the shards that have connections
//! say to each other by their mailboxes.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use punctual_broker::ConnMeta;
use quinn_proto::{ConnectionEvent, ConnectionHandle, EndpointEvent};

use super::link::Link;

/// UDP datagrams that may be under way to one shard: about 12 MB. Further ones
/// are lost, as in a network that is overloaded.
const UNDER_WAY: usize = 8192;

/// Names a connection between shards: listener among those of QUIC, and the
/// endpoint's number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Key {
    pub(super) listener: usize,
    pub(super) handle: ConnectionHandle,
}

/// Between shard 0 and those that have connections.
pub(crate) enum QuicMail {
    /// To the connection's shard: here it is.
    Open {
        key: Key,
        meta: Box<ConnMeta>,
        link: Box<Link>,
    },
    /// To the connections' shard: datagrams of theirs, and what the endpoint
    /// answers them.
    Events(VecDeque<(Key, ConnectionEvent)>),
    /// To shard 0: something for the endpoint.
    Endpoint(Key, EndpointEvent),
    /// To shard 0: an event that came after its connection had left.
    Return {
        key: Key,
        event: ConnectionEvent,
        from: u16,
    },
    /// To shard 0: the connection is to go to the shard of its session.
    Rehome {
        key: Key,
        shard: u16,
        meta: Box<ConnMeta>,
        link: Box<Link>,
    },
}

/// How many datagrams are in the mailbox of each shard.
#[derive(Clone)]
pub(crate) struct UnderWay(Arc<[AtomicUsize]>);

impl UnderWay {
    pub(crate) fn new(shards: u16) -> Self {
        Self((0..shards).map(|_| AtomicUsize::new(0)).collect())
    }

    /// Counts one more; false if there are too many.
    pub(super) fn add(&self, shard: u16) -> bool {
        let count = &self.0[usize::from(shard)];
        let room = count.load(Ordering::Relaxed) < UNDER_WAY;
        if room {
            count.fetch_add(1, Ordering::Relaxed);
        }
        room
    }

    /// Events have arrived. Those that are no datagrams were not counted.
    pub(super) fn take(&self, shard: u16, events: usize) {
        let count = &self.0[usize::from(shard)];
        let _ = count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |now| {
            Some(now.saturating_sub(events))
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shard_that_is_behind_gets_no_more() {
        let under_way = UnderWay::new(2);
        for _ in 0..UNDER_WAY {
            assert!(under_way.add(1));
        }
        assert!(!under_way.add(1) && under_way.add(0));
        under_way.take(1, 1);
        assert!(under_way.add(1) && !under_way.add(1));
        under_way.take(0, 5);
        assert!(under_way.add(0));
    }
}
