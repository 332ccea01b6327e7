//! The interface between a shell and a shard.

use std::net::SocketAddr;
use std::sync::{Arc, Weak};

use punctual_codec::{ReasonCode, Version};

use crate::admission::AdmissionRequest;
use crate::alarm::Alarm;
use crate::base::connection::ConnId;
use crate::egress::{Rank, Stamp};
use crate::index::matched::Targets;
use crate::index::target::Target;
use crate::sequence::Number;
use crate::{Credential, Message, Nanos};

/// Facts about a connection that the shell passes when it opens the connection.
#[derive(Debug, Clone, Default)]
pub struct ConnMeta {
    /// Address of the peer, if it has one.
    pub peer: Option<SocketAddr>,
    /// Local address of the connection, if known.
    pub local: Option<SocketAddr>,
    /// Number of the listener that accepted the connection.
    pub listener: u16,
    /// Whether a client without user name is accepted.
    pub allow_anonymous: bool,
    /// User name that was authenticated below MQTT, for example by a client certificate.
    pub identity: Option<Arc<str>>,
    /// The certificate of `identity`, or another one that the peer had to present.
    pub credential: Option<Arc<Credential>>,
    /// The credential of clients that this listener accepts without authentication. It is revoked
    /// once the listener no longer accepts them.
    pub unproven: Option<Arc<Credential>>,
    /// Unpredictable bytes, from which the broker makes the client identifier if the client sends
    /// none.
    pub nonce: [u8; 16],
    /// Whether messages whose requirement is rejected are refused; `None` for the value of
    /// [`Admission::refuse`](crate::Admission).
    pub refuse: Option<bool>,
}

/// How a connection is to be treated after [`crate::Shard::receive`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flow {
    /// Continue to read.
    Read,
    /// Stop reading until [`Output::Resume`]; then hand in the bytes that were
    /// not consumed again.
    Pause,
    /// The shard has closed the connection; an [`Output::Close`] follows.
    Closed,
}

/// Result of [`crate::Shard::receive`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Received {
    /// Bytes consumed. The rest is the start of a packet, or packets that are handled later.
    pub consumed: usize,
    /// Size in bytes of the packet that is incomplete, if known: a hint for buffers.
    pub needed: usize,
    /// How to treat the connection next.
    pub flow: Flow,
    /// Whether the last packet was a message of an admitted flow.
    pub promised: bool,
    /// Whether further packets could be handled at once. The shell handles other connections first.
    pub more: bool,
}

/// A request of a shard to its shell.
#[derive(Debug)]
pub enum Output {
    /// Write `tail` if possible, then close. The shard has forgotten the
    /// connection already.
    Close {
        /// The connection.
        conn: ConnId,
        /// The last bytes to write.
        tail: Vec<u8>,
    },
    /// Read again from a connection that was paused.
    Resume(ConnId),
    /// Move the connection, with all unconsumed bytes, to another shard.
    Handover {
        /// The connection, which this shard has forgotten.
        conn: ConnId,
        /// The index of the other shard.
        shard: u16,
        /// The facts with which the connection was opened.
        meta: Box<ConnMeta>,
    },
    /// Check a user name and password, or continue an enhanced
    /// authentication, and answer with [`crate::Shard::authenticated`].
    Authenticate(Box<AuthRequest>),
    /// A request or notification for the admission service; only with [`crate::Config::admission`].
    /// The shell passes them on in order and loses none. There is at most one from every connection
    /// that waits for an answer, one for every flow that QoS 0 messages request, and one for every
    /// session that ends.
    Admission(Box<AdmissionRequest>),
    /// An event for the log.
    Event(Event),
}

/// Whether a client still waits for an authentication. When its connection has ended, the
/// authentication can be abandoned.
#[derive(Debug, Clone, Default)]
pub struct Waits(Option<Weak<()>>);

impl Waits {
    /// The client waits as long as `client` exists.
    pub(crate) fn with(client: &Arc<()>) -> Self {
        Self(Some(Arc::downgrade(client)))
    }

    /// Whether the client no longer waits, for example because its connection has ended.
    pub fn is_over(&self) -> bool {
        let client = self.0.as_ref();
        client.is_some_and(|client| client.strong_count() == 0)
    }
}

/// A client to authenticate.
#[derive(Debug, Clone)]
pub struct AuthRequest {
    /// Its connection.
    pub conn: ConnId,
    /// Number of the listener that accepted the connection.
    pub listener: u16,
    /// Address of the client, if it has one.
    pub peer: Option<SocketAddr>,
    /// Client identifier.
    pub client_id: Arc<str>,
    /// User name, if given.
    pub username: Option<Arc<str>>,
    /// Password, if given.
    pub password: Option<Box<[u8]>>,
    /// Enhanced authentication: method and data.
    pub method: Option<(Box<str>, Box<[u8]>)>,
    /// Whether the client re-authenticates.
    pub again: bool,
    /// Whether the client still waits for the answer.
    pub waits: Waits,
}

/// An event for the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A client connected.
    Connected {
        /// Client identifier.
        client_id: Arc<str>,
        /// Peer address.
        peer: Option<SocketAddr>,
        /// Protocol version.
        version: Version,
        /// User name.
        username: Option<Arc<str>>,
    },
    /// A client has disconnected.
    Disconnected {
        /// Client identifier.
        client_id: Arc<str>,
        /// Why, in words.
        reason: String,
    },
    /// A part of a session that moved is given up, since the other broker was away for too long.
    TransferGivenUp {
        /// Client identifier.
        client_id: Arc<str>,
        /// The lost part, in words.
        what: &'static str,
    },
    /// A session came from another broker of the mesh.
    SessionCame {
        /// Client identifier.
        client_id: Arc<str>,
        /// The broker that had the session.
        broker: Arc<str>,
    },
    /// A session went to another broker of the mesh, to which its client has connected.
    SessionLeft {
        /// Client identifier.
        client_id: Arc<str>,
        /// The broker that has the session now.
        broker: Arc<str>,
        /// Number of messages that are still queued here, to be forwarded.
        messages: u64,
    },
    /// A CONNECT was refused; [`Event::Refused`] follows for its connection.
    ConnectRefused {
        /// Client identifier, unless it could not be read.
        client_id: Option<Arc<str>>,
        /// Peer address.
        peer: Option<SocketAddr>,
        /// User name in CONNECT.
        username: Option<Arc<str>>,
        /// Reason code of CONNACK, in MQTT 5.
        reason: ReasonCode,
        /// Why, in words.
        why: String,
    },
    /// A connection ended before a client was connected.
    Refused {
        /// Peer address.
        peer: Option<SocketAddr>,
        /// Why, in words.
        reason: String,
    },
    /// A receiver is slow.
    SlowConsumer {
        /// Client identifier.
        client_id: Arc<str>,
        /// Bytes in its send buffer.
        buffered: usize,
        /// Messages in its queue.
        queued: usize,
    },
    /// The broker ignores the urgency that a client states for its messages.
    UrgencyIgnored {
        /// Client identifier.
        client_id: Arc<str>,
        /// Why, in words.
        reason: String,
    },
    /// A guarantee is violated.
    Alarm(Alarm),
    /// The queue of this session is full.
    QueueFull {
        /// Client identifier.
        client_id: Arc<str>,
        /// Queued messages.
        queued: usize,
        /// Whether publications are refused because of that; otherwise messages for the session are
        /// dropped.
        refused: bool,
    },
}

/// A message from one shard to another.
#[derive(Debug)]
pub struct RemoteMessage(pub(crate) Remote);

impl RemoteMessage {
    /// Its size in bytes, for the bound of an outbox.
    pub(crate) fn size(&self) -> usize {
        self.message().map_or(0, |message| message.size())
    }

    /// The rank by which urgent messages are handled in order.
    pub fn rank(&self) -> Rank {
        self.message()
            .map_or(Stamp::PLAIN.rank, |message| message.stamp.rank)
    }

    fn message(&self) -> Option<&Message> {
        match &self.0 {
            Remote::Publish { message, .. } | Remote::Share { message, .. } => Some(message),
            Remote::Done { .. } | Remote::Relief | Remote::Fence { .. } | Remote::Passed { .. } => {
                None
            }
        }
    }
}

#[derive(Debug)]
pub(crate) enum Remote {
    /// Deliver a message to these targets; with `promised`, room is reserved for targets with QoS
    /// above 0.
    Publish {
        message: Arc<Message>,
        targets: Targets,
        promised: bool,
        /// Numbers of the targets' entries in the store, 0 for none; `None` if no target has an
        /// entry.
        entries: Option<Box<[u64]>>,
        /// The name of the message in the mesh, if it has one.
        name: Option<Number>,
        /// Index of the sending shard.
        from: u16,
    },
    /// Deliver a message to the chosen member of a shared subscription.
    Share {
        message: Arc<Message>,
        target: Target,
        promised: bool,
        /// Number of the entry in the store; 0 for none.
        entry: u64,
        /// Index of the sending shard.
        from: u16,
    },
    /// Sessions have finished entries that the receiving shard has emitted.
    Done {
        /// Pairs of the number of a session and the number of an entry.
        entries: Box<[[u64; 2]]>,
    },
    /// A congested receiver has caught up, or publishers no longer wait for it.
    Relief,
    /// The shard `from` requests a fence: an answer behind all messages that were sent to it
    /// before.
    Fence { from: u16, number: u64 },
    /// The answer of the shard `from`: all messages that it had sent before the fence was requested
    /// have arrived.
    Passed { from: u16, number: u64 },
}

/// Information about a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientInfo {
    /// Client identifier.
    pub client_id: Arc<str>,
    /// User name.
    pub username: Option<Arc<str>>,
    /// Peer address, while connected.
    pub peer: Option<SocketAddr>,
    /// Protocol version, while connected.
    pub version: Option<Version>,
    /// Listener, while connected.
    pub listener: Option<u16>,
    /// Whether it is connected.
    pub connected: bool,
    /// When it connected last.
    pub connected_at: Nanos,
    /// Keep Alive in seconds, while connected; 0 for none.
    pub keep_alive: u16,
    /// Session Expiry Interval in seconds; `u32::MAX` if the session does not expire.
    pub session_expiry: u32,
    /// Number of subscriptions.
    pub subscriptions: usize,
    /// Queued messages.
    pub queued_messages: usize,
    /// Bytes of the queued messages.
    pub queued_bytes: usize,
    /// Messages that were dropped because its queue was full.
    pub dropped: u64,
    /// Messages in flight.
    pub inflight: usize,
    /// Bytes in its send buffer.
    pub buffered: usize,
    /// Whether it is slow: its publishers no longer wait for it, and its QoS 0 messages may be
    /// dropped.
    pub slow: bool,
    /// Whether retained messages for its subscriptions are still to be sent.
    pub replaying: bool,
    /// Shard that owns it.
    pub shard: u16,
}

/// A subscription of a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SubscriptionInfo {
    /// Client identifier.
    pub client_id: Arc<str>,
    /// Topic filter, with share prefix.
    pub filter: Box<str>,
    /// Granted QoS.
    pub qos: u8,
    /// No Local.
    pub no_local: bool,
    /// Retain As Published.
    pub retain_as_published: bool,
    /// Subscription identifier; 0 for none.
    pub id: u32,
}
