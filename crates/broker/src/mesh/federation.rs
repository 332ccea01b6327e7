//! What joins a broker to others: a seam between a shard and whoever keeps the tree
//! and the subscription tables of a mesh.
//!
//! A neighbour broker is a client whose identifier begins with [`LINK_PREFIX`]. Its
//! session is ordinary (queue, window, acknowledgements survive a connection), but
//! lives on the first shard, what it subscribes to is decided by the federation, and
//! messages to it carry a name ([`MessageName`]) as their last user property. What
//! comes from it has one too; a message that was here before is acknowledged and
//! goes nowhere, unless it is sent again on another way: then it goes on to
//! neighbours, one of which may have come here meanwhile, once until something changes.
//!
//! Invariant: what is acknowledged to a neighbour is with all its receivers, and where
//! there is a store, committed for those that survive. While another neighbour has
//! no room for it, it is not acknowledged, nor what comes after it on its topic, and neighbours
//! send less of that ([`crate::mesh::brake`]); so queues are
//! bounded, and what is in them is never given up for lack of room.

use std::fmt::Debug;
use std::num::NonZeroU32;
use std::sync::Arc;

use punctual_mesh::transfer::{HomeId, Located, Stamp, Stub, Times};
use punctual_mesh::wire::SessionAddress;

use crate::Nanos;
use crate::base::connection::ConnId;
use crate::base::name::MessageName;

/// In front of this broker's name in the reason string of a CONNACK that refuses a neighbour which
/// it has a connection to already.
pub const LINKED_ALREADY: &str = "connected already, as ";

/// Who asks to be let in as a neighbour.
#[derive(Clone, Copy)]
pub struct Newcomer<'a> {
    /// The name that it claims.
    pub peer: &'a str,
    /// What it presents as the secret of the mesh, as the password of [`SECRET_USER`](crate::SECRET_USER).
    pub secret: Option<&'a [u8]>,
    /// Whether it has proven to be a user who may be the broker of that name.
    pub is_permitted: bool,
}

/// Why a neighbour is not let in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unwelcome {
    /// It has proven nothing that counts.
    NotPermitted,
    /// It presents another secret, or this mesh has none.
    WrongSecret,
    /// What it claims is no name.
    NoName,
    /// It claims the name of this broker.
    OwnName,
    /// There is a better connection to it.
    Connected,
}

impl Unwelcome {
    /// What it is told.
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

/// What a federation is told of links.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LinkNews<'a> {
    /// A neighbour is connected, and may be one.
    Up {
        /// Whether this broker opened the connection.
        dialled: bool,
    },
    /// A message for the federation.
    Message(&'a [u8]),
    /// Publications of the neighbour wait from now on, here for room or the store or there because
    /// of that, or none does any more; none does when the connection is gone.
    Waits(bool),
    /// The connection is gone.
    Down(&'a str),
}

/// What a client leaves behind, for the case that this broker is lost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WillRecord {
    /// When it connected, see [`SessionTransfers::arrived`].
    pub at: u64,
    /// Seconds between the loss of the client and its will; not beyond the end of its session.
    pub delay: u32,
    /// For [`crate::Shard::link_will`] of another broker.
    pub message: Arc<[u8]>,
}

/// How messages go where all of them go by the root of a tree: up to it, and from
/// there down to everybody.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Relay {
    /// The neighbour that leads to the root; `None` at the root.
    pub parent: Option<Arc<str>>,
}

/// The service that a broker of a mesh offers to clients. It depends on how much the broker knows of the
/// mesh.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(u8)]
pub enum Service {
    /// The broker has not learned the subscriptions at other brokers yet. It refuses every CONNECT.
    None,
    /// The configuration names neighbours, but the broker has reached none and remembers none for which it
    /// could keep messages. It accepts clients, and refuses their publications with QoS 1 and 2.
    Deliveries,
    /// Full service: the broker delivers each message that it acknowledges to all subscribers, or keeps it
    /// for them.
    #[default]
    Full,
}

impl Service {
    /// As stored in one byte by `as u8`; an unknown one promises nothing.
    pub fn from_byte(byte: u8) -> Self {
        match byte {
            1 => Self::Deliveries,
            2 => Self::Full,
            _ => Self::None,
        }
    }
}

/// What of its clients a broker wants from the mesh. Called on shard threads: nothing may block or take
/// long.
pub trait Interest: Debug + Send + Sync {
    /// A client has subscribed to a filter for which it had no subscription; `persistent` if its
    /// session is persistent, and to be sent messages with QoS 1 or 2 also when it is back.
    fn subscribed(&self, filter: &str, persistent: bool);
    /// A client's subscription to a filter, which was told of so, is gone.
    fn unsubscribed(&self, filter: &str, persistent: bool);
    /// The answer to [`crate::Shard::link_keep`].
    fn wishes_kept(&self, _number: u64) {}
    /// The answer to [`crate::Shard::link_flush`].
    fn flushed(&self, _number: u64) {}
}

/// The names of messages that cross links, and which of them were here before. Called on shard threads:
/// nothing may block or take long.
pub trait MessageNames: Debug + Send + Sync {
    /// What messages are called that are taken in here.
    fn origin(&self) -> NonZeroU32;
    /// Whether a message from a neighbour was not here before.
    fn is_new(&self, name: MessageName, at_most_once: bool) -> bool;
    /// Microseconds since 1970, by which brokers agree which of two retained messages
    /// is the newer.
    fn clock(&self) -> u64;
    /// Names of messages that came from neighbours, the last ones, the latest last, and how many of
    /// them came since [`Self::mark_passed`] returned `mark`.
    fn passed(&self, _mark: u64) -> (Vec<MessageName>, usize) {
        (Vec::new(), 0)
    }
    /// How many messages have come from neighbours.
    fn mark_passed(&self) -> u64 {
        0
    }
    /// Whether a message did not pass here before on its way up to the root.
    fn is_new_upwards(&self, _name: MessageName) -> bool {
        true
    }
    /// A message from a neighbour is here now, or was before the last start.
    fn note(&self, name: MessageName);
    /// Like [`Self::is_new`] for a message with QoS 1 that comes for the first time; one that is
    /// new is noted.
    fn note_new(&self, name: MessageName) -> bool {
        let is_new = self.is_new(name, false);
        if is_new {
            self.note(name);
        }
        is_new
    }
    /// Whether that is known of a message, or may be so.
    fn was_here(&self, _name: MessageName) -> bool {
        true
    }
    /// What messages were called that were taken in here before a restart.
    fn was_origin(&self, origin: NonZeroU32);
}

/// Where the sessions of clients are, and what they leave behind. Called on shard threads: nothing may
/// block or take long.
pub trait SessionTransfers: MessageNames {
    /// A client has connected here as that user, and is nowhere else from now on; with `clean_start`, nothing
    /// is to be kept for it elsewhere. Returns when that was: `since`, if its session was looked
    /// for, or now and later than all that was heard of, as [`MessageNames::clock`] counts.
    fn arrived(
        &self,
        _client_id: &str,
        _user: Option<&str>,
        _clean_start: bool,
        since: Option<u64>,
    ) -> u64 {
        since.unwrap_or(0)
    }
    /// Something for [`crate::Shard::letter`] of another broker, about a client's session. It
    /// may be lost.
    fn letter(&self, _to: &str, _client_id: &str, _body: Arc<[u8]>) {}
    /// How long things may take when sessions move.
    fn transfer_times(&self) -> Times {
        Times {
            session_wait: Nanos(0),
            heal: Nanos(0),
            keep: Nanos(0),
        }
    }
    /// A stamp for a CONNECT that comes now: greater than all that were issued or heard of here.
    fn next_stamp(&self) -> u64 {
        self.clock()
    }
    /// Asks all other brokers what they have of a client that connects as that user
    /// ([`crate::Shard::look_up`]); [`crate::Shard::located`] is the answer, with the same stamp.
    fn look_up(&self, _client_id: &str, _user: Option<&str>, _at: &Stamp, _clean: bool) {}
    /// The answer to [`crate::Shard::look_up`].
    fn found(&self, _by: &HomeId, _client_id: &str, _at: &Stamp, _located: Located) {}
    /// Puts a fence behind what is on its way to a stub: [`crate::Shard::fence_passed`] is to be called
    /// with the client and [`Stub::target_epoch`] when all of it has come, and no broker has answered
    /// [`crate::Shard::fence_asked`] with anything but [`FenceAnswer::Clear`]. Otherwise nothing is called.
    ///
    /// [`FenceAnswer::Clear`]: punctual_mesh::transfer::FenceAnswer::Clear
    fn fence_stub(&self, _client_id: &str, _stub: &Stub) {}
    /// A neighbour has forwarded a message for a client's session: [`crate::Shard::take_forwarded`] is to
    /// be called with both on the shard of that client, and answers with [`Self::forwarded`].
    fn forward(&self, _number: u64, _address: &SessionAddress, _message: Arc<[u8]>) {}
    /// What [`Self::forward`] had with that number is safe: [`crate::Shard::forwarded`] is to be called
    /// on the first shard.
    fn forwarded(&self, _number: u64) {}
    /// How long things may take when sessions move.
    fn move_times(&self) -> MoveTimes {
        MoveTimes {
            linger: Nanos(0),
            heal: Nanos(0),
        }
    }
    /// What a client leaves behind from now on if this broker is lost.
    fn left_behind(&self, _client_id: &str, _will: Option<WillRecord>) {}
    /// How long this broker, having started again, waits for clients before it publishes what
    /// they left behind: others may have done so.
    fn will_wait(&self) -> Nanos {
        Nanos(0)
    }
}

/// Who keeps the tree and the tables, and admits neighbours. Called on shard threads: nothing may block
/// or take long.
pub trait Federation: Interest + SessionTransfers {
    /// Whether a neighbour may connect now.
    ///
    /// # Errors
    /// Why not.
    fn admit(&self, newcomer: Newcomer<'_>) -> Result<(), Unwelcome>;
    /// Something about the link on connection `conn` of the first shard; `peer` is
    /// the neighbour's name.
    fn link(&self, conn: ConnId, peer: &str, news: LinkNews<'_>);
    /// What may be promised to clients now.
    fn service(&self) -> Service {
        Service::Full
    }
    /// This broker's name.
    fn name(&self) -> &str;
    /// Topics below `$SYS`, and what they say now.
    fn topics(&self) -> Vec<(String, String)> {
        Vec::new()
    }
    /// The way by the root, if all messages go by it; `None` if they go over every
    /// link on which they are wanted.
    fn relay(&self) -> Option<Relay> {
        None
    }
}

/// What is kept of a neighbour, see [`crate::Shard::links`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeptLink {
    /// Its name.
    pub peer: String,
    /// What it wants.
    pub filters: Vec<Box<str>>,
    /// Brokers behind it with members of shared subscriptions, and the filters of these; and with
    /// persistent sessions, and the plain filters on which these await messages.
    pub members: Vec<(String, Box<str>)>,
    /// Brokers that it leads to, itself among them; none if that is not known.
    pub behind: Vec<String>,
}

/// How long things may take when sessions move between brokers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MoveTimes {
    /// A message is under way in the mesh.
    pub linger: Nanos,
    /// A broker is away until nothing more waits for it.
    pub heal: Nanos,
}

impl MoveTimes {
    /// Without a mesh.
    pub(crate) const NONE: Self = Self {
        linger: Nanos(0),
        heal: Nanos(0),
    };

    /// How long a message waits for the one before it: few are under way for longer than a part of
    /// the time for which they may be, and where one waits it is under way itself.
    pub(crate) fn patience(self) -> Nanos {
        Nanos(self.linger.0 / 4)
    }
}
