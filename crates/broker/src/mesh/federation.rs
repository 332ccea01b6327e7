//! The interface between a shard and the federation, which maintains the tree and the subscription
//! tables of a mesh.
//!
//! A neighbour broker is a client whose identifier begins with [`LINK_PREFIX`]. Its session is
//! ordinary (queue, window, acknowledgements survive a connection), but is on the first shard, the
//! federation decides its subscriptions, and messages to it carry a name ([`MessageName`]) as their
//! last user property, as do messages from it. A message that was here before is acknowledged and
//! not delivered, unless it is sent again on another path: then it is passed on to neighbours, as a
//! new neighbour may have connected meanwhile, once until the topology changes.
//!
//! Invariant: a message that is acknowledged to a neighbour is queued for all its receivers, and
//! where there is a store, committed for those that survive. While another neighbour has no room
//! for a message, neither that message nor later ones on its topic are acknowledged, and flow
//! control makes neighbours send fewer of them ([`crate::mesh::throttle`]). So queues are bounded, and
//! queued messages are never dropped for lack of room.

use std::fmt::Debug;
use std::num::NonZeroU32;
use std::sync::Arc;

use punctual_mesh::transfer::{HomeId, Located, Stamp, Stub, Times};
use punctual_mesh::wire::SessionAddress;

use crate::Nanos;
use crate::base::connection::ConnId;
use crate::base::name::MessageName;

/// Prefix of this broker's name in the reason string of a CONNACK that refuses a neighbour because
/// the two brokers are connected already.
pub const LINKED_ALREADY: &str = "connected already, as ";

/// A broker that asks to be admitted as a neighbour.
#[derive(Clone, Copy)]
pub struct Newcomer<'a> {
    /// The claimed name of the broker.
    pub peer: &'a str,
    /// The presented secret of the mesh: the password of [`SECRET_USER`](crate::SECRET_USER).
    pub secret: Option<&'a [u8]>,
    /// Whether it is authenticated as a user with the right to be the broker of that name.
    pub is_permitted: bool,
}

/// Why a neighbour is not admitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unwelcome {
    /// The broker has presented neither a user with the right to be it nor a secret.
    NotPermitted,
    /// The broker presents another secret, or this mesh has none.
    WrongSecret,
    /// The claimed name is not a valid broker name.
    NoName,
    /// The claimed name is that of this broker.
    OwnName,
    /// This broker has a better connection to the neighbour.
    Connected,
}

impl Unwelcome {
    /// The reason string for the neighbour.
    pub(crate) fn why(self) -> &'static str {
        match self {
            Self::NotPermitted => "not allowed to connect as a neighbour broker of that name",
            Self::WrongSecret => "its secret is not that of this mesh (mesh.secret_file)",
            Self::NoName => "what follows $mesh/ in its client identifier is no name of a broker",
            Self::OwnName => "this broker has the same name: give each its own (mesh.id)",
            Self::Connected => LINKED_ALREADY,
        }
    }
}

/// A notification of the federation about a link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LinkNews<'a> {
    /// A neighbour is connected and admitted.
    Up {
        /// Whether this broker opened the connection.
        dialled: bool,
    },
    /// The neighbour has sent a message for the federation.
    Message(&'a [u8]),
    /// Whether publications of the neighbour are blocked from now on: here, for lack of room or of
    /// the store, or at the neighbour because of flow control. None is blocked when the connection
    /// is gone.
    Waits(bool),
    /// The connection is gone.
    Down(&'a str),
}

/// The will of a client, which another broker publishes if this broker is lost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WillRecord {
    /// When the client connected, see [`SessionTransfers::arrived`].
    pub at: u64,
    /// Seconds between the loss of the client and its will; not beyond the end of its session.
    pub delay: u32,
    /// The encoded will, for [`crate::Shard::link_will`] of another broker.
    pub message: Arc<[u8]>,
}

/// The path of messages where all of them are routed by the root of a tree: up to the root, and
/// from there down to all brokers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Relay {
    /// The neighbour that leads to the root; `None` at the root.
    pub parent: Option<Arc<str>>,
}

/// The service that a broker of a mesh offers to clients. It depends on how much the broker knows
/// of the mesh.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(u8)]
pub enum Service {
    /// The broker has not learned the subscriptions at other brokers yet. It refuses every CONNECT.
    None,
    /// The configuration names neighbours, but the broker has reached none and remembers none for
    /// which it could keep messages. It accepts clients, and refuses their publications with QoS 1
    /// and 2.
    Deliveries,
    /// Full service: the broker delivers each message that it acknowledges to all subscribers, or
    /// keeps it for them.
    #[default]
    Full,
}

impl Service {
    /// The value that `as u8` has stored in a byte; [`Self::None`] for an unknown byte.
    pub fn from_byte(byte: u8) -> Self {
        match byte {
            1 => Self::Deliveries,
            2 => Self::Full,
            _ => Self::None,
        }
    }
}

/// Receives the interest of a broker: the filters of its clients. Called on shard threads: no
/// method may block or take long.
pub trait Interest: Debug + Send + Sync {
    /// A client has subscribed to a filter for which it had no subscription; `persistent` if its
    /// session is persistent and receives messages with QoS 1 or 2 after a reconnection as well.
    fn subscribed(&self, filter: &str, persistent: bool);
    /// A subscription that was reported with the same arguments is gone.
    fn unsubscribed(&self, filter: &str, persistent: bool);
    /// The answer to [`crate::Shard::link_keep`].
    fn wishes_kept(&self, _number: u64) {}
    /// The answer to [`crate::Shard::link_flush`].
    fn flushed(&self, _number: u64) {}
}

/// The names of messages that cross links, and the record of those that were here before. Called on
/// shard threads: no method may block or take long.
pub trait MessageNames: Debug + Send + Sync {
    /// The origin in the names of messages that clients publish to this broker.
    fn origin(&self) -> NonZeroU32;
    /// Whether a message from a neighbour has not been at this broker before.
    fn is_new(&self, name: MessageName, at_most_once: bool) -> bool;
    /// Microseconds since 1970. Brokers compare them to decide which of two retained messages is
    /// newer.
    fn clock(&self) -> u64;
    /// Names of the most recent messages from neighbours, the latest last, and how many of them
    /// came since [`Self::mark_passed`] returned `mark`.
    fn passed(&self, _mark: u64) -> (Vec<MessageName>, usize) {
        (Vec::new(), 0)
    }
    /// Number of messages from neighbours so far.
    fn mark_passed(&self) -> u64 {
        0
    }
    /// Whether a message has not passed this broker before on the path up to the root.
    fn is_new_upwards(&self, _name: MessageName) -> bool {
        true
    }
    /// Records that a message from a neighbour is here now, or was before the last start.
    fn note(&self, name: MessageName);
    /// Like [`Self::is_new`] for a message with QoS 1 that comes for the first time; records a new
    /// one with [`Self::note`].
    fn note_new(&self, name: MessageName) -> bool {
        let is_new = self.is_new(name, false);
        if is_new {
            self.note(name);
        }
        is_new
    }
    /// Whether a message was here before, or may have been.
    fn was_here(&self, _name: MessageName) -> bool {
        true
    }
    /// The origin in the names of messages that clients published to this broker before a restart.
    fn was_origin(&self, origin: NonZeroU32);
}

/// The locations of sessions, their transfers between brokers, and wills. Called on shard threads:
/// no method may block or take long.
pub trait SessionTransfers: MessageNames {
    /// A client has connected here as that user, so connections at other brokers end; with
    /// `clean_start`, other brokers discard its session as well. Returns the time of that: `since`
    /// after a look-up of its session; otherwise now, and later than all stamps received so far, on
    /// the clock of [`MessageNames::clock`].
    fn arrived(
        &self,
        _client_id: &str,
        _user: Option<&str>,
        _clean_start: bool,
        since: Option<u64>,
    ) -> u64 {
        since.unwrap_or(0)
    }
    /// Sends a message about a client's session to [`crate::Shard::transfer_message`] of another broker. It
    /// may be lost.
    fn send_transfer_message(&self, _to: &str, _client_id: &str, _body: Arc<[u8]>) {}
    /// Time limits of session transfers.
    fn transfer_times(&self) -> Times {
        Times {
            session_wait: Nanos(0),
            heal: Nanos(0),
            keep: Nanos(0),
        }
    }
    /// A stamp for a CONNECT that comes now: greater than all stamps that this broker has issued or
    /// received.
    fn next_stamp(&self) -> u64 {
        self.clock()
    }
    /// Asks all other brokers for the state that they have of a client that connects as that user
    /// ([`crate::Shard::look_up`]); [`crate::Shard::located`] is the answer, with the same stamp.
    fn look_up(&self, _client_id: &str, _user: Option<&str>, _at: &Stamp, _clean: bool) {}
    /// The answer to [`crate::Shard::look_up`].
    fn found(&self, _by: &HomeId, _client_id: &str, _at: &Stamp, _located: Located) {}
    /// Puts a fence behind the messages that are in transit to a stub: the federation calls
    /// [`crate::Shard::fence_passed`] with the client and [`Stub::target_epoch`] when all of them
    /// have arrived, and every broker has answered [`crate::Shard::fence_asked`] with
    /// [`FenceAnswer::Clear`]. Otherwise it calls nothing.
    ///
    /// [`FenceAnswer::Clear`]: punctual_mesh::transfer::FenceAnswer::Clear
    fn fence_stub(&self, _client_id: &str, _stub: &Stub) {}
    /// A neighbour has forwarded a message for a client's session: the federation calls
    /// [`crate::Shard::take_forwarded`] with these arguments on the shard of that client, which
    /// answers with [`Self::forwarded`].
    fn forward(&self, _number: u64, _address: &SessionAddress, _message: Arc<[u8]>) {}
    /// The message that [`Self::forward`] received with that number is safe: the federation calls
    /// [`crate::Shard::forwarded`] on the first shard.
    fn forwarded(&self, _number: u64) {}
    /// A client has connected to another broker at that time, as that broker's claim to its session
    /// says; with `clean_start` if the session began then. Older wills of it are not published: the
    /// arrival itself may have been lost with a broker on its path.
    fn claimed(&self, _client_id: &str, _user: Option<&str>, _clean_start: bool, _at: u64) {}
    /// Time limits of session transfers.
    fn move_times(&self) -> MoveTimes {
        MoveTimes {
            linger: Nanos(0),
            heal: Nanos(0),
        }
    }
    /// Sets the will that another broker publishes for a client if this broker is lost; `None` for
    /// no will.
    fn left_behind(&self, _client_id: &str, _will: Option<WillRecord>) {}
    /// How long this broker waits for clients after a restart before it publishes their wills:
    /// other brokers may have published them.
    fn will_wait(&self) -> Nanos {
        Nanos(0)
    }
}

/// Maintains the tree and the subscription tables, and admits neighbours. Called on shard threads:
/// no method may block or take long.
pub trait Federation: Interest + SessionTransfers {
    /// Whether a neighbour may connect now.
    ///
    /// # Errors
    /// Why the neighbour is not admitted.
    fn admit(&self, newcomer: Newcomer<'_>) -> Result<(), Unwelcome>;
    /// A notification about the link on connection `conn` of the first shard; `peer` is the
    /// neighbour's name.
    fn link(&self, conn: ConnId, peer: &str, news: LinkNews<'_>);
    /// The service that this broker offers to clients now.
    fn service(&self) -> Service {
        Service::Full
    }
    /// This broker's name.
    fn name(&self) -> &str;
    /// Topics below `$SYS`, and their present values.
    fn topics(&self) -> Vec<(String, String)> {
        Vec::new()
    }
    /// The path by the root, if all messages are routed by the root; `None` if messages go over
    /// every link with a matching filter.
    fn relay(&self) -> Option<Relay> {
        None
    }
}

/// The stored state of a neighbour, see [`crate::Shard::links`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeptLink {
    /// Name of the neighbour.
    pub peer: String,
    /// Filters of the messages that the neighbour receives.
    pub filters: Vec<Box<str>>,
    /// Pairs of a broker behind the neighbour and a filter: that of a shared subscription with
    /// members at the broker, or a plain one on which persistent sessions at the broker await
    /// messages.
    pub members: Vec<(String, Box<str>)>,
    /// Brokers that the neighbour leads to, itself among them; empty if they are not known.
    pub behind: Vec<String>,
}

/// Time limits of session transfers between brokers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MoveTimes {
    /// Longest time for which a message is in transit in the mesh.
    pub linger: Nanos,
    /// Absence of a broker after which nothing waits for it any more.
    pub heal: Nanos,
}

impl MoveTimes {
    /// The times without a mesh.
    pub(crate) const NONE: Self = Self {
        linger: Nanos(0),
        heal: Nanos(0),
    };

    /// How long a message waits for the one before it: a quarter of [`Self::linger`], as few
    /// messages are in transit for longer, and the waiting message has been in transit, too.
    pub(crate) fn patience(self) -> Nanos {
        Nanos(self.linger.0 / 4)
    }
}
