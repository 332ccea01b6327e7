//! The settings of a broker, with default, unit and policy. Every bound of the broker is one of
//! these fields.

use crate::Nanos;
use crate::admission::Admission;
use crate::base::durability::DurabilityPolicy;
use crate::base::queue_full::{QueueFull, QueuePolicies};
use crate::egress::{Discipline, LaneLimits, Shares};
use crate::identifiers::ClientIds;
use crate::urgency::UrgencyRule;

/// Settings of a broker. All sizes are bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Bounds.
    pub limits: Limits,
    /// The policy for a QoS 1 or 2 message whose receiver's queue is full.
    pub queue_full: QueueFull,
    /// Exceptions to that policy.
    pub queue_policies: QueuePolicies,
    /// Whether QoS 0 messages are queued for persistent sessions that are not
    /// connected.
    pub queue_qos0_offline: bool,
    /// Maximum time for which one receiver that does not keep up may block a publisher; after that
    /// the receiver counts as slow until it has caught up.
    pub max_publisher_pause: Nanos,
    /// As [`Self::max_publisher_pause`], where the policy is [`QueueFull::Hold`] and the queue is
    /// half full.
    pub max_publisher_hold: Nanos,
    /// Time between two publications of the `$SYS` topics; `None` for never.
    pub sys_interval: Option<Nanos>,
    /// Time that a connection may take from its opening to a complete CONNECT, and for an enhanced
    /// authentication.
    pub connect_timeout: Nanos,
    /// Highest quality of service clients may publish or subscribe with: 0..=2.
    pub maximum_qos: u8,
    /// Whether messages can be retained.
    pub retain_available: bool,
    /// Whether a retained message is kept from subscribers once its publisher has lost the right to
    /// its topic.
    pub check_retain_source: bool,
    /// Whether filters may have wildcards.
    pub wildcard_available: bool,
    /// Whether `$share/` subscriptions are accepted.
    pub shared_available: bool,
    /// Whether subscription identifiers are accepted.
    pub subscription_ids_available: bool,
    /// Keep alive that MQTT 5 clients are given instead of their own, in seconds.
    pub server_keep_alive: Option<u16>,
    /// Whether a client may let the broker assign its identifier.
    pub assign_client_ids: bool,
    /// The rules for the identifiers that a user may use, and for the ownership of sessions.
    pub client_ids: ClientIds,
    /// Answer to Request Response Information; `%c` is the client identifier.
    pub response_information: Option<String>,
    /// Whether the shell checks user names and passwords. If not, a client that may be anonymous
    /// may give any user name.
    pub check_passwords: bool,
    /// As [`Self::check_passwords`], by the number of the listener, where listeners differ.
    pub check_passwords_at: Vec<bool>,
    /// Enhanced authentication methods that the shell's hook understands.
    pub auth_methods: Vec<String>,
    /// The discipline that orders messages by urgency.
    pub discipline: Discipline,
    /// Minimum shares of lanes 1 to 3.
    pub shares: Shares,
    /// Bounds of the queues for urgent messages (lanes 0 and 1) of each receiver.
    pub lanes: LaneLimits,
    /// Urgency of topics whose publishers state none.
    pub rules: Vec<UrgencyRule>,
    /// Whether and how deadlines are guaranteed. `None`: not at all, and every message that asks
    /// for real time goes into lane 0. The choice between `None` and admission cannot be changed
    /// while the broker runs.
    pub admission: Option<Admission>,
    /// The state that survives the process, if there is a store.
    pub durability: DurabilityPolicy,
    /// Version string for `$SYS/broker/version`.
    pub version: String,
}

/// Bounds. A count of `usize::MAX` (or `u32::MAX`) means unlimited.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Largest packet accepted, fixed header included: 64..=268 435 460 bytes. A larger one ends
    /// the connection with 0x95.
    pub max_packet_size: u32,
    /// Largest CONNECT packet, in bytes.
    pub max_connect_size: u32,
    /// Connections of one shard that have not completed CONNECT. Past it the
    /// oldest of them is closed, so that clients that do connect need not wait.
    pub max_half_open: usize,
    /// Sessions, connected or not. A new one beyond is refused with 0x97.
    pub max_sessions: usize,
    /// Subscriptions of one session. One beyond is refused with 0x97.
    pub max_subscriptions_per_session: usize,
    /// Subscriptions of all sessions. One beyond is refused with 0x97.
    pub max_subscriptions: usize,
    /// Bytes of the filters of one session. A subscription beyond is refused with 0x97.
    pub max_subscription_bytes_per_session: usize,
    /// Bytes of the filters of all sessions. A subscription beyond is refused with 0x97.
    pub max_subscription_bytes: usize,
    /// Bytes of one will (topic, properties, payload). CONNECT with a larger one is refused with
    /// 0x97.
    pub max_will_size: usize,
    /// Bytes of all wills. CONNECT with one beyond is refused with 0x97.
    pub max_will_bytes: usize,
    /// Levels of a topic name or filter. Beyond: 0x90 or 0x8F.
    pub max_topic_levels: usize,
    /// Bytes of a topic name or filter. Beyond: 0x90 or 0x8F.
    pub max_topic_length: usize,
    /// QoS 1 and 2 messages waiting in one session beyond those in flight.
    pub max_queued_messages: usize,
    /// As [`Self::max_queued_messages`], for a neighbour broker that is away for long, if that is
    /// more.
    pub max_kept_messages: usize,
    /// Bytes of the messages waiting in one session.
    pub max_queued_bytes: usize,
    /// Bytes of the messages waiting in all sessions; a message counts once
    /// for every session it waits in.
    pub max_total_queued_bytes: usize,
    /// Per cent of the three bounds above that only urgent messages (lanes 0 and
    /// 1) may fill, rounded down: 0..=50.
    pub urgent_reserve: u8,
    /// Unacknowledged QoS 1 and 2 messages to one client: 1..=65 535. A
    /// smaller Receive Maximum of the client wins.
    pub max_inflight: u16,
    /// Receive Maximum that clients are given: the most unacknowledged QoS 2 messages from one
    /// client. A client that exceeds it is disconnected with 0x93.
    pub receive_maximum: u16,
    /// Topic aliases a client may define, and the broker defines to a client.
    pub topic_alias_maximum: u16,
    /// Retained messages. A new one beyond is refused with 0x97.
    pub max_retained_messages: usize,
    /// Bytes of all retained messages (topic, properties, payload).
    pub max_retained_bytes: usize,
    /// Longest session expiry in seconds; a longer request is reduced, and CONNACK states the
    /// reduced value. `u32::MAX`: sessions may last for ever.
    pub max_session_expiry: u32,
    /// Longest keep alive in seconds; MQTT 5 clients with a longer one (or none) are given this
    /// one. 0: any.
    pub max_keep_alive: u16,
    /// Topics of one session whose messages are numbered for a subscription with `rt-sequence` =
    /// `on`. Beyond it, the numbering of all topics starts again.
    pub max_numbered_topics: usize,
    /// User properties in one packet; beyond: 0x97.
    pub max_user_properties: usize,
    /// Bytes that may wait to be written to one connection before the publishers of its messages
    /// are paused.
    pub send_buffer: usize,
    /// Topics whose subscribers are cached, per shard; fewer if they take more than 1 KiB each on
    /// average.
    pub topic_cache: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_packet_size: 16 << 20,
            max_connect_size: 256 << 10,
            max_half_open: 4096,
            max_sessions: 100_000,
            max_subscriptions_per_session: 10_000,
            max_subscriptions: 1_000_000,
            max_subscription_bytes_per_session: 4 << 20,
            max_subscription_bytes: 256 << 20,
            max_will_size: 64 << 10,
            max_will_bytes: 64 << 20,
            max_topic_levels: 128,
            max_topic_length: 65_535,
            max_queued_messages: 10_000,
            max_kept_messages: 100_000,
            max_queued_bytes: 64 << 20,
            max_total_queued_bytes: 1 << 30,
            urgent_reserve: 10,
            max_inflight: 1_000,
            receive_maximum: 1_000,
            topic_alias_maximum: 64,
            max_retained_messages: 1_000_000,
            max_retained_bytes: 1 << 30,
            max_session_expiry: 7 * 86_400,
            max_keep_alive: 0,
            max_numbered_topics: 1_024,
            max_user_properties: 1_000,
            send_buffer: 1 << 20,
            topic_cache: 65_536,
        }
    }
}

impl Config {
    /// Whether the shell checks user names and passwords of clients of that listener.
    pub(crate) fn checks_passwords(&self, listener: u16) -> bool {
        let own = self.check_passwords_at.get(usize::from(listener));
        own.copied().unwrap_or(self.check_passwords)
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            limits: Limits::default(),
            queue_full: QueueFull::default(),
            queue_policies: QueuePolicies::default(),
            queue_qos0_offline: false,
            max_publisher_pause: Nanos::from_millis(100),
            max_publisher_hold: Nanos::from_secs(30),
            sys_interval: Some(Nanos::from_secs(10)),
            connect_timeout: Nanos::from_secs(10),
            maximum_qos: 2,
            retain_available: true,
            check_retain_source: true,
            wildcard_available: true,
            shared_available: true,
            subscription_ids_available: true,
            server_keep_alive: None,
            assign_client_ids: true,
            client_ids: ClientIds::default(),
            response_information: None,
            check_passwords: false,
            check_passwords_at: Vec::new(),
            auth_methods: Vec::new(),
            discipline: Discipline::default(),
            shares: Shares::default(),
            lanes: LaneLimits::default(),
            rules: Vec::new(),
            admission: None,
            durability: DurabilityPolicy::default(),
            version: concat!("punctual ", env!("CARGO_PKG_VERSION")).to_owned(),
        }
    }
}
