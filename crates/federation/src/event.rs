//! What shards report to the member.

use std::sync::Arc;

use punctual_broker::ConnId;
use punctual_mesh::BrokerId;
use punctual_mesh::transfer::{HomeId, Located, Stamp, Stub};
use punctual_mesh::wire::{Arrival, ClientWill, SessionAddress};

/// A change of a link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LinkEvent {
    /// The neighbour is connected and admitted.
    Up {
        /// Whether this broker opened the connection.
        dialled: bool,
    },
    /// The neighbour has sent a message for the node.
    Message(Box<[u8]>),
    /// Whether publications of the neighbour are blocked from now on.
    Waits(bool),
    /// The connection is gone, and why.
    Down(String),
}

/// A report of a shard, for [`Member::take`](crate::Member::take).
#[derive(Debug)]
pub enum ShardEvent {
    /// A client has subscribed to a filter to which it was not subscribed; `true` if its session is
    /// persistent and receives messages with QoS 1 or 2 after a reconnection as well. Reported for each
    /// client.
    Subscribed(Box<str>, bool),
    /// A subscription that was reported with the same values is gone.
    Unsubscribed(Box<str>, bool),
    /// A client has connected.
    Arrived(Arrival),
    /// Another broker claims the session of a client that has connected there.
    Claimed(Arrival),
    /// The will of a client, which other brokers publish if this one is lost.
    Will(Box<str>, Option<ClientWill>),
    /// A client connects: other brokers are asked for its session.
    LookUp {
        /// The stamp of its CONNECT.
        at: Stamp,
        /// Its client identifier.
        client: Box<str>,
        /// The user as which it is authenticated.
        user: Option<Box<str>>,
        /// Whether it wants no earlier session.
        clean: bool,
    },
    /// The answer of a shard to such a question of another broker.
    Found {
        /// The broker that asked.
        by: HomeId,
        /// The stamp of the CONNECT.
        at: Stamp,
        /// The client identifier.
        client: Box<str>,
        /// What there is of its session.
        located: Located,
    },
    /// A neighbour has forwarded a message for a client's session to the first shard.
    Forward {
        /// Its number there.
        number: u64,
        /// The session.
        address: Box<SessionAddress>,
        /// The encoded message.
        message: Arc<[u8]>,
    },
    /// The forwarded message with that number is safe.
    Forwarded(u64),
    /// A message about a client's session, for another broker.
    Envelope {
        /// That broker.
        to: BrokerId,
        /// The client identifier.
        client: Box<str>,
        /// The encoded message.
        body: Arc<[u8]>,
    },
    /// The changes of interest up to that number are committed.
    InterestCommitted(u64),
    /// A neighbour has acknowledged all that was queued for it up to that number.
    Flushed(u64),
    /// A fence is to be put behind the messages in transit to a stub.
    FenceStub {
        /// The client of the session that has moved.
        client: Box<str>,
        /// The stub.
        stub: Stub,
    },
    /// The answer of the shards to the fence of another broker.
    FenceAnswered {
        /// That broker.
        by: HomeId,
        /// The number of its question.
        number: u64,
        /// Places of the stubs that have to stay.
        blocked: Vec<u32>,
    },
    /// A change of a link.
    Link {
        /// Its connection, on the first shard.
        conn: ConnId,
        /// The neighbour.
        peer: BrokerId,
        /// The change.
        event: LinkEvent,
    },
    /// Messages in the queue of a neighbour are dropped.
    Dropped(DroppedMessages),
}

/// Messages that were queued for a neighbour and are dropped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DroppedMessages {
    /// The neighbour.
    pub peer: BrokerId,
    /// The number of messages.
    pub messages: u64,
    /// The reason.
    pub cause: DropCause,
}

/// Why messages for a neighbour are dropped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DropCause {
    /// No persistent session at the neighbour, or at a broker behind it, awaits them.
    Unwanted,
    /// The neighbour was away for too long.
    Away,
    /// An operator has said that this broker does not come back.
    Forgotten(BrokerId),
}
