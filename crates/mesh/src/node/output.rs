//! What a node asks its shell to do, and tells it: in order, as nothing here touches the world.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use crate::id::{BrokerId, LinkId, Rank};
use crate::transfer::{Extent, HomeId, Located, Stamp};
use crate::tree::{Edge, Why};
use crate::wire::{Arrival, ClientStub, Message, Testament, Traced};

/// How far a broker is a member of its mesh.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Membership {
    /// It does not know yet what its neighbours want.
    Joining,
    /// Its publications reach all subscribers of the mesh, or are kept for neighbours.
    Joined,
    /// It has reached none of the neighbours that are named, and knows nothing of them.
    Stranded,
}

/// What a node asks its shell to do, or tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output {
    /// Send the bytes to the neighbour, on [`crate::wire::TOPIC`].
    Send(LinkId, Vec<u8>),
    /// Close the connection of a link; it is down already.
    Close(LinkId, String),
    /// From now on messages go over the link, or are kept for it.
    Carry {
        /// Which.
        link: LinkId,
        /// Whether they go.
        carries: bool,
    },
    /// From now on what comes for the link and is newer than what others have kept for it waits, while
    /// that passes; or does not wait any more. What is urgent never does.
    Hold {
        /// Which.
        link: LinkId,
        /// Whether it waits.
        holds: bool,
    },
    /// The neighbour wants these as well, and those not any more.
    Interest {
        /// Which.
        link: LinkId,
        /// Topic filters.
        add: Vec<Box<str>>,
        /// Topic filters.
        remove: Vec<Box<str>>,
    },
    /// Brokers that a link leads to, its neighbour among them, instead of those before; for
    /// [`crate::Node::remember`].
    Leads {
        /// Which.
        link: LinkId,
        /// Those.
        brokers: Vec<BrokerId>,
    },
    /// Persistent sessions at a broker await these as well, and those not any more; for
    /// [`crate::Node::remember`], among the members of a link.
    Lasting {
        /// Which.
        link: LinkId,
        /// Which broker.
        broker: BrokerId,
        /// Topic filters.
        add: Vec<Box<str>>,
        /// Topic filters.
        remove: Vec<Box<str>>,
    },
    /// Brokers behind a neighbour are away for long: it wants less by now ([`Output::Interest`]), and
    /// publishers are not held for it any more.
    Narrow(BrokerId),
    /// They are away for as long again: what is kept for it and does not match the filters that are
    /// wanted of it by now is dropped.
    Trim(BrokerId),
    /// When all of [`Output::Interest`] and [`Output::Leads`] so far is kept over a restart, if
    /// anything is, [`crate::Node::kept`] is to be called with that number.
    Keep(u64),
    /// Brokers are behind a link that were not before.
    Reached,
    /// Put what is kept for one neighbour into the queue of another.
    Copy {
        /// What is kept for this one,
        from: BrokerId,
        /// goes to this one,
        to: BrokerId,
        /// and is not kept any more.
        moves: bool,
    },
    /// Nothing is kept any more for a neighbour whose link does not carry, and it
    /// wants nothing.
    Forget {
        /// The neighbour.
        peer: BrokerId,
        /// Who was behind it and was to be forgotten ([`crate::Node::forget`]), if it is for that.
        forgotten: Option<BrokerId>,
    },
    /// Other brokers where a shared subscription has members, instead of those before.
    Members {
        /// Its filter.
        filter: Box<str>,
        /// Those that are reached, if any is.
        brokers: Vec<BrokerId>,
    },
    /// Other brokers behind a link where a shared subscription has members, instead of those
    /// before; for [`crate::Node::remember`].
    Behind {
        /// Which.
        link: LinkId,
        /// Its filter.
        filter: Box<str>,
        /// Those, if there are any.
        brokers: Vec<BrokerId>,
    },
    /// These clients have connected to other brokers: whoever has connected here before with
    /// the same identifier has been taken over.
    Arrived(Vec<Arrival>),
    /// Publish a will, unless its client is connected here.
    Will {
        /// What to publish.
        will: Testament,
        /// Whose it is, and for which time.
        turn: WillTurn,
    },
    /// Others have published wills of clients of this broker.
    Published {
        /// Those.
        wills: Vec<Testament>,
        /// Whether this broker ran meanwhile: what these clients leave behind next is
        /// another message.
        same: bool,
    },
    /// See what this broker has of a client, and say so with [`crate::Node::found`].
    LookUp {
        /// Who asks.
        by: HomeId,
        /// Stamp of the CONNECT that it is for.
        at: Stamp,
        /// Client identifier.
        client: Box<str>,
        /// As whom the client connects.
        user: Option<Box<str>>,
        /// With Clean Start.
        clean: bool,
    },
    /// The answer to [`crate::Node::look_up`].
    Located {
        /// As it was given.
        at: Stamp,
        /// Client identifier.
        client: Box<str>,
        /// What others have; who has nothing is not in it.
        answers: Vec<(HomeId, Located)>,
        /// How much that covers.
        extent: Extent,
    },
    /// Other brokers that are reached, instead of those before.
    Reach {
        /// Those.
        reached: BTreeSet<BrokerId>,
        /// Whether others of the mesh are not.
        away: bool,
    },
    /// What another broker's core has written about a session, see [`crate::Node::letter`].
    Letter {
        /// Whose.
        from: BrokerId,
        /// Client identifier.
        client: Box<str>,
        /// As it was written.
        body: Arc<[u8]>,
    },
    /// When the neighbour has acknowledged all that is queued for it now,
    /// [`crate::Node::flushed`] is to be called with that number, unless its connection is lost before.
    Flush {
        /// Which.
        link: LinkId,
        /// Of this order.
        number: u64,
    },
    /// See which of these stubs, which another broker has, are to stay, as something here leads there,
    /// and say so with [`crate::Node::fence_answered`].
    FenceAsked {
        /// Who asks.
        by: HomeId,
        /// Which question.
        number: u64,
        /// Those, with their clients.
        stubs: Arc<[ClientStub]>,
    },
    /// All has come that was on its way to a stub here, and no broker blocks its end; the answer to
    /// [`crate::Node::fence_stub`].
    FencePassed {
        /// Client identifier.
        client: Box<str>,
        /// The stub's [`crate::transfer::Stub::target_epoch`].
        epoch: Stamp,
    },
    /// An answer to [`crate::Node::trace`].
    Traced(Traced),
    /// From now on this broker is so far a member; after all orders about neighbours before this one.
    Membership(Membership),
    /// Something for the log.
    Event(Event),
}

/// Whose will [`Output::Will`] is, and for which time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WillTurn {
    /// Of a client of this broker before it started again.
    Own,
    /// Of a client of another broker, which is lost.
    Guarded,
    /// The same, published here before, for brokers that are reached now and were not then. Nobody
    /// here gets it again.
    Again,
}

/// Something worth a line in the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A link to a neighbour is up.
    LinkUp(BrokerId),
    /// A link is down.
    LinkDown(BrokerId, String),
    /// The broker has joined its mesh, or is stranded.
    Membership(Membership),
    /// Another root.
    Root {
        /// Before.
        old: Rank,
        /// Now.
        new: Rank,
        /// Cause.
        why: Why,
    },
    /// Another parent.
    Parent {
        /// `None` for the root.
        parent: Option<BrokerId>,
        /// Cost of the way to the root in microseconds.
        cost: u64,
        /// Cause.
        why: Why,
    },
    /// Messages over this link begin or end.
    Edge(BrokerId, Edge),
    /// A neighbour's subscriptions do not fit; it is sent everything.
    TableFull(BrokerId),
    /// Brokers are away for longer than [`crate::Settings::heal`]: for who is behind a neighbour only
    /// what persistent sessions there await is kept, so many filters.
    Away {
        /// The neighbour.
        peer: BrokerId,
        /// Those that are away.
        brokers: Vec<BrokerId>,
        /// How much they await.
        filters: usize,
    },
    /// A broker that is away is not waited for any more, see [`crate::Node::forget`].
    Forgotten(BrokerId),
    /// The wills of a neighbour's clients do not fit; some are not kept.
    WillsFull(BrokerId),
    /// This broker's clock is wrong: those of most neighbours are ahead by so many microseconds; or
    /// with `None`, it is right again.
    Clock(Option<i64>),
}

/// Outputs that the shell has not taken.
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
