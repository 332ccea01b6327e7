//! What the threads of the server count.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::overrun::Overruns;
use crate::quic::QuicCounters;
use crate::udp::UdpCounters;

/// Counters of the shell.
#[derive(Debug, Default)]
pub struct Counters {
    /// Connections open.
    pub open: AtomicUsize,
    /// Connections open, by listener.
    pub per_listener: Vec<AtomicUsize>,
    /// Connections closed because a listener has its maximum.
    pub connections_refused: AtomicU64,
    /// Failed attempts to accept.
    pub accept_errors: AtomicU64,
    /// Times that accepting waited: rate, overload.
    pub accept_delays: AtomicU64,
    /// Connections ended by TLS, WebSocket or PROXY errors.
    pub layer_errors: AtomicU64,
    /// Connections ended because incomplete packets took too much memory.
    pub receive_memory_exceeded: AtomicU64,
    /// Events that the log could not take.
    pub events_lost: AtomicU64,
    /// Longest turn of a shard's loop lately, in nanoseconds.
    pub drift: AtomicU64,
    /// Longest turn of a shard's loop ever, in nanoseconds.
    pub max_drift: AtomicU64,
    /// Pieces of work of the shards' threads that took too long.
    pub overruns: Overruns,
    /// What the UDP listeners have counted.
    pub udp: Arc<UdpCounters>,
    /// What the QUIC listeners have counted.
    pub quic: Arc<QuicCounters>,
}

impl Counters {
    pub(crate) fn opened(&self, listener: u16) {
        self.open.fetch_add(1, Ordering::Relaxed);
        self.per_listener[usize::from(listener)].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn closed(&self, listener: u16) {
        self.open.fetch_sub(1, Ordering::Relaxed);
        self.per_listener[usize::from(listener)].fetch_sub(1, Ordering::Relaxed);
    }
}
