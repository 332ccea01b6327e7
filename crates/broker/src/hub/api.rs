//! What a shell and a shard say to each other.

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

/// What the shell knows of a connection when it is opened.
#[derive(Debug, Clone, Default)]
pub struct ConnMeta {
    /// Peer, if it has an address.
    pub peer: Option<SocketAddr>,
    /// Address of this machine that the peer has connected to, if known.
    pub local: Option<SocketAddr>,
    /// Which listener accepted it.
    pub listener: u16,
    /// Whether a client without user name is let in.
    pub allow_anonymous: bool,
    /// User name proven below MQTT, for example by a client certificate.
    pub identity: Option<Arc<str>>,
    /// That certificate, or another one that the peer had to have.
    pub credential: Option<Arc<Credential>>,
    /// What clients have that this listener lets in although they prove nothing: revoked once it does
    /// so no more.
    pub unproven: Option<Arc<Credential>>,
    /// Unpredictable; the client identifier is made of it if none is given.
    pub nonce: [u8; 16],
    /// Whether messages whose requirement is rejected are refused; `None`: as
    /// [`Admission::refuse`](crate::Admission) says.
    pub refuse: Option<bool>,
}

/// How a connection is to be treated after [`crate::Shard::receive`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flow {
    /// Read on.
    Read,
    /// Stop reading until [`Output::Resume`]; then hand in the bytes that were
    /// not consumed again.
    Pause,
    /// The connection is gone for the shard; an [`Output::Close`] says more.
    Closed,
}

/// Result of [`crate::Shard::receive`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Received {
    /// Bytes consumed. The rest is the start of a packet, or waits.
    pub consumed: usize,
    /// Size of the packet that is incomplete, if known: a hint for buffers.
    pub needed: usize,
    /// What to do next.
    pub flow: Flow,
    /// Whether the last of it was a message of an admitted flow.
    pub promised: bool,
    /// Whether there is more that could be handled at once: others are to have their turn.
    pub more: bool,
}

/// What a shell is asked to do.
#[derive(Debug)]
pub enum Output {
    /// Write `tail` if possible, then close. The shard has forgotten the
    /// connection already.
    Close {
        /// Which.
        conn: ConnId,
        /// What was still to be written.
        tail: Vec<u8>,
    },
    /// Read again from a connection that was paused.
    Resume(ConnId),
    /// Move the connection, with all unconsumed bytes, to another shard.
    Handover {
        /// Which; forgotten by this shard.
        conn: ConnId,
        /// To which shard.
        shard: u16,
        /// What it was opened with.
        meta: Box<ConnMeta>,
    },
    /// Check a user name and password, or continue an enhanced
    /// authentication, and answer with [`crate::Shard::authenticated`].
    Authenticate(Box<AuthRequest>),
    /// Ask or tell whoever admits flows; only with [`crate::Config::admission`].
    /// To be handed on in order, and none to be lost: there is at most one from
    /// every connection that waits for an answer, one for every flow that QoS 0
    /// messages ask for, and one for every session that ends.
    Admission(Box<AdmissionRequest>),
    /// Something for the log.
    Event(Event),
}

/// Whether a client still waits for the answer to a question: an answer that nobody waits for needs no
/// work.
#[derive(Debug, Clone, Default)]
pub struct Waits(Option<Weak<()>>);

impl Waits {
    /// As long as that is there.
    pub(crate) fn with(client: &Arc<()>) -> Self {
        Self(Some(Arc::downgrade(client)))
    }

    /// Whether its connection has ended.
    pub fn is_over(&self) -> bool {
        let client = self.0.as_ref();
        client.is_some_and(|client| client.strong_count() == 0)
    }
}

/// A client that wants to prove who it is.
#[derive(Debug, Clone)]
pub struct AuthRequest {
    /// Which connection.
    pub conn: ConnId,
    /// Listener it came by.
    pub listener: u16,
    /// Where the client is, if it has an address.
    pub peer: Option<SocketAddr>,
    /// Client identifier.
    pub client_id: Arc<str>,
    /// User name, if given.
    pub username: Option<Arc<str>>,
    /// Password, if given.
    pub password: Option<Box<[u8]>>,
    /// Enhanced authentication: method and data.
    pub method: Option<(Box<str>, Box<[u8]>)>,
    /// Whether an authenticated client does it again.
    pub again: bool,
    /// Whether it still waits.
    pub waits: Waits,
}

/// Something worth a line in the log.
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
    /// A client is gone.
    Disconnected {
        /// Client identifier.
        client_id: Arc<str>,
        /// Why, in words.
        reason: String,
    },
    /// Something of a session that moved is given up, since the other broker was away for too long.
    TransferGivenUp {
        /// Client identifier.
        client_id: Arc<str>,
        /// What is lost.
        what: &'static str,
    },
    /// A session came from another broker of the mesh.
    SessionCame {
        /// Client identifier.
        client_id: Arc<str>,
        /// Where it was.
        broker: Arc<str>,
    },
    /// A session went to another broker of the mesh, to which its client has connected.
    SessionLeft {
        /// Client identifier.
        client_id: Arc<str>,
        /// Where it is.
        broker: Arc<str>,
        /// Messages that went with it.
        messages: u64,
    },
    /// A CONNECT was refused; [`Event::Refused`] comes for its connection, too.
    ConnectRefused {
        /// Client identifier, unless it could not be read.
        client_id: Option<Arc<str>>,
        /// Peer address.
        peer: Option<SocketAddr>,
        /// User name that was given.
        username: Option<Arc<str>>,
        /// What CONNACK says, in MQTT 5.
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
    /// A receiver does not keep up.
    SlowConsumer {
        /// Client identifier.
        client_id: Arc<str>,
        /// Bytes that wait in its buffer.
        buffered: usize,
        /// Messages that wait in its queue.
        queued: usize,
    },
    /// What a client states about the urgency of its messages is not followed.
    UrgencyIgnored {
        /// Client identifier.
        client_id: Arc<str>,
        /// Why, in words.
        reason: String,
    },
    /// Something is not as it was promised.
    Alarm(Alarm),
    /// The queue of this session is full.
    QueueFull {
        /// Client identifier.
        client_id: Arc<str>,
        /// Messages that wait.
        queued: usize,
        /// Whether publications are refused for that; else messages for it are dropped.
        refused: bool,
    },
}

/// A message from one shard to another.
#[derive(Debug)]
pub struct RemoteMessage(pub(crate) Remote);

impl RemoteMessage {
    /// Its bytes that count.
    pub(crate) fn size(&self) -> usize {
        self.message().map_or(0, |message| message.size())
    }

    /// In which order urgent ones are to be handled.
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
    /// Deliver to these; with `promised`, places are reserved for those with
    /// QoS above 0.
    Publish {
        message: Arc<Message>,
        targets: Targets,
        promised: bool,
        /// Numbers of their entries in the store, 0 for none; `None` if there are
        /// none at all.
        entries: Option<Box<[u64]>>,
        /// What it is called in the mesh, if it has a name.
        name: Option<Number>,
        /// Shard that it comes from.
        from: u16,
    },
    /// Deliver to the one member of a shared subscription that was chosen.
    Share {
        message: Arc<Message>,
        target: Target,
        promised: bool,
        /// Number of its entry in the store; 0 for none.
        entry: u64,
        /// Shard that it comes from.
        from: u16,
    },
    /// Sessions have done with entries that the receiver of this has emitted.
    Done {
        /// Numbers of the sessions, and of the entries.
        entries: Box<[[u64; 2]]>,
    },
    /// A congested receiver has caught up, or nobody waits for it any more.
    Relief,
    /// The shard `from` wants to know when all has come that was sent to it before.
    Fence { from: u16, number: u64 },
    /// All has come that the shard `from` had sent when it was asked.
    Passed { from: u16, number: u64 },
}

/// What is known about a client.
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
    /// When it connected.
    pub connected_at: Nanos,
    /// Keep alive in seconds, while connected; 0 for none.
    pub keep_alive: u16,
    /// Seconds its session outlives the connection; `u32::MAX` for ever.
    pub session_expiry: u32,
    /// Subscriptions.
    pub subscriptions: usize,
    /// Messages that wait.
    pub queued_messages: usize,
    /// Their bytes.
    pub queued_bytes: usize,
    /// Messages that it has lost because its queue was full.
    pub dropped: u64,
    /// Messages in flight.
    pub inflight: usize,
    /// Bytes that wait to be written.
    pub buffered: usize,
    /// Whether it counts as slow.
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
