//! What can be set for a UDP listener, and what is counted.

use std::sync::atomic::{AtomicU64, Ordering};

use punctual_broker::Nanos;

/// A UDP listener.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UdpOptions {
    /// Whether an address has to be proven by a cookie first.
    pub cookie: bool,
    /// Whether every datagram of a session has to have a token.
    pub seal: bool,
    /// Largest datagram in bytes; `None` for what Ethernet carries unfragmented
    /// by IPv4 or IPv6.
    pub max_datagram: Option<usize>,
    /// Rate of the link in bits a second, to which sending is paced; `None`:
    /// not at all.
    pub rate: Option<u64>,
    /// Send buffer of each class' socket, in bytes.
    pub send_buffer: usize,
    /// Silence after which a client without keep-alive is gone.
    pub idle: Nanos,
}

impl Default for UdpOptions {
    fn default() -> Self {
        Self {
            cookie: true,
            seal: false,
            max_datagram: None,
            rate: None,
            send_buffer: 16 << 10,
            idle: Nanos::from_secs(300),
        }
    }
}

macro_rules! counters {
    ($($(#[doc = $doc:literal])+ $name:ident),+ $(,)?) => {
        /// Counters of all UDP listeners, as of a moment ago.
        #[derive(Debug, Default)]
        pub struct UdpCounters {
            /// Datagrams that the system has refused to send, or that were too
            /// many to wait.
            pub unsent: AtomicU64,
            $($(#[doc = $doc])+ pub $name: AtomicU64,)+
        }

        impl UdpCounters {
            /// Takes over the sums of what the endpoints have counted.
            pub(super) fn set<'a>(&self, endpoints: impl Iterator<Item = (punctual_udp::Counters, &'a u64)>) {
                let mut sum = punctual_udp::Counters::default();
                let mut refused = 0;
                for (counters, by_system) in endpoints {
                    $(sum.$name += counters.$name;)+
                    refused += by_system;
                }
                $(self.$name.store(sum.$name, Ordering::Relaxed);)+
                self.unsent.store(refused, Ordering::Relaxed);
            }

            /// Name as a metric, meaning and value of each counter.
            pub fn all(&self) -> Vec<(&'static str, &'static str, u64)> {
                vec![
                    (
                        "punctual_udp_unsent_total",
                        "Datagrams that the system refused to send, or that were too many to wait.",
                        self.unsent.load(Ordering::Relaxed),
                    ),
                    $((
                        concat!("punctual_udp_", stringify!($name), "_total"),
                        concat!($($doc),+).trim_ascii(),
                        self.$name.load(Ordering::Relaxed),
                    ),)+
                ]
            }
        }
    };
}

counters! {
    /// Datagrams received.
    received,
    /// Bytes received.
    received_bytes,
    /// Datagrams sent.
    sent,
    /// Bytes sent.
    sent_bytes,
    /// Cookies sent instead of an answer.
    retries,
    /// Datagrams that are not whole packets.
    malformed,
    /// Datagrams without connection.
    unknown,
    /// Datagrams whose token is forged, replayed or missing.
    unproven,
    /// Cookies that came again after their connection had ended.
    replayed_cookies,
    /// Packets that clients have repeated.
    repeated_received,
    /// Packets that were repeated to clients.
    repeated_sent,
    /// Messages not repeated any more because their lifetime was over.
    expired,
    /// Packets too large for a datagram.
    too_large,
    /// Times that a path took only smaller datagrams than were sent to it.
    narrowed,
    /// Datagrams dropped because their sender is held back.
    inbox_full,
    /// Connections refused because there are as many as there may be.
    refused,
    /// Changes of a client's address.
    moves,
}
