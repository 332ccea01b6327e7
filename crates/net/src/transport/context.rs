//! What a shard's thread lends its transports.

use std::sync::Arc;

use mio::Registry;
use punctual_broker::{ConnId, ConnMeta, LinkLimits, Nanos, Shard};

use super::{Connections, TransportKind};
use crate::clock::Clock;
use crate::counters::Counters;
use crate::mailbox::{Mail, Mailbox};
use crate::shared::Shared;

/// For so long after a client has sent something urgent there may be more of it.
const URGENT: Nanos = Nanos::from_secs(2);

/// See the module.
pub(crate) struct Context {
    /// Number of the shard.
    pub(crate) index: u16,
    /// The broker of the shard.
    pub(crate) shard: Shard,
    pub(crate) connections: Connections,
    /// The thread's epoll.
    pub(crate) registry: Registry,
    pub(crate) clock: Clock,
    /// Of all shards.
    pub(crate) mailboxes: Arc<[Mailbox]>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) shared: Arc<Shared>,
    /// Bytes that were received and not consumed, of all connections of the shard.
    pub(crate) unread: usize,
    /// How many of them there may be; a connection that would exceed it is closed.
    pub(crate) max_unread: usize,
    /// Deadlines are promised here.
    pub(crate) promises: bool,
    /// How long pieces of other work are done before sockets are asked again, while there may be
    /// something urgent. Asking costs half a microsecond.
    pub(crate) slice: Nanos,
    /// When sockets were asked last.
    pub(crate) asked: Nanos,
    /// When they were asked before that: what they have now came later.
    pub(crate) asked_before: Nanos,
    /// Until when something urgent may come; 0: not before somebody sends it.
    pub(crate) urgent_until: Nanos,
}

impl Context {
    /// Opens a connection of a transport in the broker.
    pub(crate) fn open(&mut self, kind: TransportKind, meta: ConnMeta, now: Nanos) -> ConnId {
        let conn = self.shard.open(meta, now);
        self.connections.insert(conn, kind);
        conn
    }

    /// Opens a connection to another broker, `peer`.
    pub(crate) fn open_link(
        &mut self,
        kind: TransportKind,
        meta: ConnMeta,
        peer: &str,
        limits: LinkLimits,
        now: Nanos,
    ) -> ConnId {
        let conn = self.shard.open_link(meta, peer, limits, now);
        self.connections.insert(conn, kind);
        conn
    }

    /// Tells the broker that a connection is gone. Its output closes it.
    pub(crate) fn lose(&mut self, conn: ConnId, why: &str, now: Nanos) {
        self.shard.closed(conn, why, now);
    }

    /// Sends mail to a shard.
    pub(crate) fn post(&self, shard: u16, mail: impl Into<Mail>) {
        self.mailboxes[usize::from(shard)].post(mail.into());
    }

    /// Somebody sends something urgent: there may be more of it.
    pub(crate) fn expect_urgent(&mut self, now: Nanos) {
        self.urgent_until = now + URGENT;
    }

    /// Whether somebody here is to be served between other work.
    #[inline]
    pub(crate) fn is_watched(&self) -> bool {
        self.promises || self.urgent_until > Nanos(0)
    }

    /// Whether `bytes` more may be kept that were received and not consumed; counts them then, and
    /// else that it was too much.
    pub(crate) fn keep_unread(&mut self, bytes: usize) -> bool {
        let is_kept = self.unread + bytes <= self.max_unread;
        if is_kept {
            self.unread += bytes;
        } else {
            let exceeded = &self.counters.receive_memory_exceeded;
            exceeded.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        }
        is_kept
    }
}

/// Why a connection ends for which [`Context::keep_unread`] has no room.
pub(crate) const TOO_MUCH_UNREAD: &str = "limits.max_receive_bytes of incomplete packets reached";
