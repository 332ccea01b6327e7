//! Outputs of a node: requests and reports to its shell, which carries them out in order. Nothing in this
//! crate performs I/O.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use crate::id::{BrokerId, LinkId, Rank};
use crate::transfer::{Extent, HomeId, Located, Stamp};
use crate::tree::{Edge, TreeChangeCause};
use crate::wire::{Arrival, ClientStub, ClientWill, Message, TraceReply};

/// Progress of a broker in joining its mesh.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Membership {
    /// The filters of its neighbours are not completely known yet.
    Joining,
    /// Its publications reach all subscribers of the mesh, or are queued for neighbours.
    Joined,
    /// It has reached none of its configured neighbours, and has nothing stored about them.
    Stranded,
}

/// A request or a report of a node to its shell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output {
    /// Send the bytes to the neighbour, on [`crate::wire::TOPIC`].
    Send(LinkId, Vec<u8>),
    /// Close the connection of a link, for this reason. The node counts the link as down already.
    Close(LinkId, String),
    /// From now on publications are sent over the link, or queued for it.
    Carry {
        /// Which.
        link: LinkId,
        /// True: sent. False: queued.
        carries: bool,
    },
    /// Begin or end to hold back new publications for the link while older ones that were queued
    /// elsewhere pass it. Urgent publications are never held back.
    Hold {
        /// Which.
        link: LinkId,
        /// Whether they are held back from now on.
        holds: bool,
    },
    /// The filters that the neighbour on a link wants changed.
    Interest {
        /// Which.
        link: LinkId,
        /// Topic filters.
        add: Vec<Box<str>>,
        /// Topic filters.
        remove: Vec<Box<str>>,
    },
    /// The brokers that a link leads to, its neighbour included; replaces the previous set. To be stored
    /// for [`crate::Node::remember`]. Reported only of links that carry and of lost links.
    Leads {
        /// Which.
        link: LinkId,
        /// Those.
        brokers: Vec<BrokerId>,
    },
    /// Filters of persistent sessions at a broker changed. To be stored for [`crate::Node::remember`],
    /// among the members of the link.
    PersistentInterest {
        /// Which.
        link: LinkId,
        /// The broker with these sessions.
        broker: BrokerId,
        /// Topic filters.
        add: Vec<Box<str>>,
        /// Topic filters.
        remove: Vec<Box<str>>,
    },
    /// Brokers behind this neighbour have been away for longer than [`crate::Settings::heal`]. Its
    /// filters were reduced ([`Output::Interest`]), and publishers are not slowed down for its queue any
    /// more.
    Narrow(BrokerId),
    /// They have been away for as long again: drop the messages queued for this neighbour that match none
    /// of its present filters.
    Trim(BrokerId),
    /// Call [`crate::Node::interest_committed`] with this number once all of [`Output::Interest`] and
    /// [`Output::Leads`] so far is durable; at once if the shell stores nothing.
    CommitInterest(u64),
    /// Brokers came into reach.
    Reached,
    /// Copy the messages queued for one neighbour into the queue of another.
    Copy {
        /// Copy the queue of this neighbour
        from: BrokerId,
        /// into the queue of this one;
        to: BrokerId,
        /// whether the first queue is emptied.
        moves: bool,
    },
    /// Drop the queue and the filters of a neighbour whose link does not carry.
    Forget {
        /// The neighbour.
        peer: BrokerId,
        /// The broker behind it that was forgotten ([`crate::Node::forget`]), if that is the reason.
        forgotten: Option<BrokerId>,
    },
    /// The other brokers where a shared subscription has members; replaces the previous list.
    Members {
        /// The shared filter (`$share/…`).
        filter: Box<str>,
        /// The brokers that are reached; if there are none, those whose link is lost.
        brokers: Vec<BrokerId>,
    },
    /// The other brokers behind a link where a shared subscription has members; replaces the previous
    /// list. To be stored for [`crate::Node::remember`].
    Behind {
        /// Which.
        link: LinkId,
        /// The shared filter (`$share/…`).
        filter: Box<str>,
        /// The brokers; empty if there are none any more.
        brokers: Vec<BrokerId>,
    },
    /// These clients have connected to other brokers. A connection here with the same client identifier
    /// that is older has been taken over.
    Arrived(Vec<Arrival>),
    /// Publish a will, unless its client is connected here.
    Will {
        /// The will.
        will: ClientWill,
        /// Why this broker publishes it.
        turn: WillTurn,
    },
    /// Other brokers have published wills of clients of this broker.
    Published {
        /// Those.
        wills: Vec<ClientWill>,
        /// Whether this broker was running meanwhile, so that the next will of such a client is a new
        /// message.
        same: bool,
    },
    /// Another broker looks up a client: answer with [`crate::Node::found`] what this broker has of it.
    LookUp {
        /// The broker that asks.
        by: HomeId,
        /// Stamp of the CONNECT that caused the look-up.
        at: Stamp,
        /// Client identifier.
        client: Box<str>,
        /// User name with which the client connects.
        user: Option<Box<str>>,
        /// Whether the CONNECT has Clean Start.
        clean: bool,
    },
    /// The answer to [`crate::Node::look_up`].
    Located {
        /// As it was given.
        at: Stamp,
        /// Client identifier.
        client: Box<str>,
        /// What other brokers have of the client; brokers that have nothing are omitted.
        answers: Vec<(HomeId, Located)>,
        /// Which brokers the answers cover.
        extent: Extent,
    },
    /// The other brokers that are reached; replaces the previous set.
    Reach {
        /// Those.
        reached: BTreeSet<BrokerId>,
        /// Whether further brokers of the mesh are away.
        away: bool,
    },
    /// A message about a session from the core of another broker, which called [`crate::Node::envelope`].
    Envelope {
        /// Whose.
        from: BrokerId,
        /// Client identifier.
        client: Box<str>,
        /// The content, opaque to the node.
        body: Arc<[u8]>,
    },
    /// Call [`crate::Node::flushed`] with this number once the neighbour has acknowledged everything that
    /// is queued for it now, unless the connection is lost before.
    Flush {
        /// Which.
        link: LinkId,
        /// Identifies this request.
        number: u64,
    },
    /// Another broker wants to end these stubs: answer with [`crate::Node::fence_answered`] which have to
    /// stay because something here leads to them.
    FenceAsked {
        /// The broker that asks.
        by: HomeId,
        /// Number of the fence at that broker.
        number: u64,
        /// The stubs, with their clients.
        stubs: Arc<[ClientStub]>,
    },
    /// Everything that was in flight to a stub here has arrived, and no broker blocks its end; answers
    /// [`crate::Node::fence_stub`].
    FencePassed {
        /// Client identifier.
        client: Box<str>,
        /// The stub's [`crate::transfer::Stub::target_epoch`].
        epoch: Stamp,
    },
    /// An answer to [`crate::Node::trace`].
    TraceReply(TraceReply),
    /// The membership of this broker changed. It applies after the outputs before this one.
    Membership(Membership),
    /// Something for the log.
    Event(Event),
}

/// Why a will is published here ([`Output::Will`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WillTurn {
    /// Its client was connected to this broker before its restart.
    Own,
    /// Its client was connected to another broker, which is lost.
    Guarded,
    /// As [`Self::Guarded`], but published here before: it is sent again for brokers that came into reach
    /// since. Clients of this broker do not receive it twice.
    Again,
}

/// An event for the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A link to a neighbour is up.
    LinkUp(BrokerId),
    /// A link is down.
    LinkDown(BrokerId, String),
    /// The membership of the broker changed.
    Membership(Membership),
    /// The root changed.
    Root {
        /// Before.
        old: Rank,
        /// Now.
        new: Rank,
        /// Cause.
        why: TreeChangeCause,
    },
    /// The parent changed.
    Parent {
        /// `None` for the root.
        parent: Option<BrokerId>,
        /// Cost of the path to the root in microseconds.
        cost: u64,
        /// Cause.
        why: TreeChangeCause,
    },
    /// The role of the link to this neighbour in the tree changed.
    Edge(BrokerId, Edge),
    /// The filters of this neighbour exceed [`crate::Settings::max_filters`]; all publications are sent
    /// to it.
    TableFull(BrokerId),
    /// Brokers behind a neighbour have been away for longer than [`crate::Settings::heal`]. From now on
    /// only messages for persistent sessions at these brokers are queued for the neighbour.
    Away {
        /// The neighbour.
        peer: BrokerId,
        /// The brokers that are away.
        brokers: Vec<BrokerId>,
        /// How many filters their persistent sessions have.
        filters: usize,
    },
    /// Messages for a broker that is away are not kept any more, see [`crate::Node::forget`].
    Forgotten(BrokerId),
    /// The wills of this neighbour's clients exceed [`crate::Settings::max_will_bytes`]; some are not
    /// stored.
    WillsFull(BrokerId),
    /// This broker's clock is wrong: those of most neighbours are ahead of it by so many microseconds
    /// (behind, if negative). `None`: the clock is right again.
    Clock(Option<i64>),
}

/// Outputs that the shell has not taken yet.
#[derive(Debug, Default)]
pub(super) struct Outputs(VecDeque<Output>);

impl Outputs {
    pub(super) fn push(&mut self, output: Output) {
        self.0.push_back(output);
    }

    pub(super) fn send(&mut self, link: LinkId, message: &Message) {
        self.push(Output::Send(link, message.encode()));
    }

    pub(super) fn log(&mut self, event: Event) {
        self.push(Output::Event(event));
    }

    pub(super) fn take(&mut self) -> VecDeque<Output> {
        std::mem::take(&mut self.0)
    }
}
