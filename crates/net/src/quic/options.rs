//! What can be set for a QUIC listener, and what is counted.

use std::sync::atomic::{AtomicU64, Ordering};

use punctual_broker::Nanos;

/// A QUIC listener. Its TLS is that of the listener's policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QuicOptions {
    /// Whether every new connection has to prove its address by a Retry first
    /// (RFC 9000 section 8.1.2); if not, only while many handshakes of unproven
    /// addresses are under way.
    pub retry: bool,
    /// Send buffer of each class' socket, in bytes.
    pub send_buffer: usize,
    /// Silence after which a client is gone. A client that lives is not silent:
    /// it is asked for a sign of life three times in that time.
    pub idle: Nanos,
}

impl Default for QuicOptions {
    fn default() -> Self {
        Self {
            retry: true,
            send_buffer: 16 << 10,
            idle: Nanos::from_secs(300),
        }
    }
}

macro_rules! counters {
    ($($(#[doc = $doc:literal])+ $name:ident),+ $(,)?) => {
        /// Counters of all QUIC listeners.
        #[derive(Debug, Default)]
        pub struct QuicCounters {
            $($(#[doc = $doc])+ pub $name: AtomicU64,)+
        }

        impl QuicCounters {
            /// Name as a metric, meaning and value of each counter.
            pub fn all(&self) -> Vec<(&'static str, &'static str, u64)> {
                vec![$((
                    concat!("punctual_quic_", stringify!($name), "_total"),
                    concat!($($doc),+).trim_ascii(),
                    self.$name.load(Ordering::Relaxed),
                ),)+]
            }
        }
    };
}

counters! {
    /// UDP datagrams received.
    received,
    /// UDP datagrams sent.
    sent,
    /// UDP datagrams that the system has refused to send.
    unsent,
    /// Handshakes completed.
    connected,
    /// Connections that ended before their handshake was complete.
    handshakes_failed,
    /// Retries sent instead of an answer.
    retries,
    /// Connections refused because there are as many as there may be.
    refused,
    /// Beginnings of connections left without answer: too many in a second, or overload.
    ignored,
    /// Changes of a client's address.
    moves,
    /// Messages received in DATAGRAM frames.
    messages_received,
    /// Messages sent in DATAGRAM frames.
    messages_sent,
    /// DATAGRAM frames that are not whole messages with QoS 0, or of clients that have not asked for them.
    malformed,
    /// UDP datagrams dropped because a thread is behind.
    behind,
}

/// Adds to a counter.
pub(super) fn count(counter: &AtomicU64, n: usize) {
    counter.fetch_add(n as u64, Ordering::Relaxed);
}
