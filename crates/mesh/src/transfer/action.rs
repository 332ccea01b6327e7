//! What happens to a home, what it does, and what it says to others.

use std::sync::Arc;

use punctual_model::Nanos;

use super::identity::{Freeze, HomeId, Located, Mark, Stamp, Stub, TransferId};

/// One home's message to another about a client's session. Each may be lost, repeated, and overtaken.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum TransferMessage {
    /// Asks the owner for the session.
    Take {
        /// Stamp of the CONNECT.
        at: Stamp,
        /// Whose session it has to be.
        user: Option<Box<str>>,
    },
    /// Answer: not this one.
    Refused {
        /// Of the CONNECT.
        at: Stamp,
        /// A later CONNECT has the session; `None` if there is none or the owner is busy.
        newer: Option<Stamp>,
    },
    /// A piece of the snapshot.
    Part {
        /// Which transfer.
        id: TransferId,
        /// Counts up from 0.
        number: u32,
        /// With the last: the session's mark.
        last: Option<Mark>,
        /// As the shells write and read it.
        bytes: Arc<[u8]>,
    },
    /// Parts up to this one have come; not said of the last.
    PartAck {
        /// Which transfer.
        id: TransferId,
        /// Which part.
        number: u32,
    },
    /// The copy is durable; what is its fate?
    Stored(TransferId),
    /// The copy is the session.
    Commit(TransferId),
    /// The copy is nothing.
    Abort(TransferId),
    /// The copy was made the session, durably, or is not known any more.
    Done(TransferId),
    /// The sender has a session that was created while some homes could not be asked.
    Claim {
        /// Of the session.
        mark: Mark,
        /// Whose it is: what is another user's is not concerned.
        user: Option<Box<str>>,
    },
    /// Answer to a [`Self::Claim`] of that epoch: the sender has no session of the client that is
    /// greater.
    Yielded(Stamp),
    /// Asks for [`Self::ClaimsDone`]; of no client.
    Resync,
    /// The receiver has answered every claim of the sender; of no client.
    ClaimsDone {
        /// Homes that the sender knows and does not reach, at most [`MAX_AWAY`](super::MAX_AWAY).
        away: Vec<HomeId>,
    },
}

/// What happens to what a home has of a client.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Event {
    /// Another home looks for the session ([`Action::Found`] is the answer).
    Lookup {
        /// The home that asks.
        by: HomeId,
        /// For a CONNECT with this stamp.
        at: Stamp,
        /// With Clean Start: sessions that are older end here.
        clean: bool,
    },
    /// The answers to [`Action::Lookup`] with the same stamp.
    Located {
        /// Of which CONNECT.
        at: Stamp,
        /// What other homes have; homes that have nothing may be omitted.
        answers: Vec<(HomeId, Located)>,
        /// Whether that is all.
        extent: Extent,
    },
    /// Another home has sent this.
    Message(HomeId, TransferMessage),
    /// The part that [`Action::MakePart`] asked for.
    PartMade {
        /// Which transfer.
        id: TransferId,
        /// Which part.
        number: u32,
        /// Whether it is the last.
        last: bool,
        /// Its content.
        bytes: Arc<[u8]>,
    },
    /// An [`Action::Arm`] is due.
    Due(Timer),
    /// The copy of [`Change::Prepare`] could not be made: there is no room for it, or its parts are not
    /// those of a session. To be said before [`Self::Written`] of it.
    CopyFailed(TransferId),
    /// An [`Action::Write`] is durable.
    Written(u64),
    /// The client that waits for CONNACK has closed its connection.
    Closed(Stamp),
    /// The client has sent something, and so has heard of the session it was given.
    Confirmed,
    /// The session has ended by itself: it has expired, or its client wanted no other.
    Ended,
    /// The fence of [`Action::Fence`] with this epoch has passed.
    FencePassed(Stamp),
}

/// How much the answers to a look-up cover, in falling order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Extent {
    /// Every broker of the mesh has answered.
    #[default]
    All,
    /// Every one that is to be waited for; some are not reached, or have not answered for long.
    Reached,
    /// Not every broker that is to be waited for, or the reached brokers have changed meanwhile.
    Incomplete,
}

/// What the shell has to do, in this order.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Action {
    /// Make these changes in memory at once, and durable in one write; say [`Event::Written`] with the
    /// number when they are.
    Write(u64, Vec<Change>),
    /// Pass a message on to another home; lost if that is not reached.
    Send(HomeId, TransferMessage),
    /// Ask every other home what it has of the client, see [`Event::Located`].
    Lookup {
        /// Stamp of the CONNECT.
        at: Stamp,
        /// See [`Event::Lookup`].
        clean: bool,
    },
    /// Answer to [`Event::Lookup`].
    Found {
        /// The home that asked.
        by: HomeId,
        /// With which stamp.
        at: Stamp,
        /// What is here.
        located: Located,
    },
    /// Answer the CONNECT with this stamp, and attach its connection to the session if it is let in.
    Connack {
        /// Of which CONNECT.
        at: Stamp,
        /// The answer.
        answer: Answer,
    },
    /// The session has another connection now: end that of its client here (0x8E).
    Disconnect,
    /// The session stops delivery and continues to queue. The parts are made of its present
    /// content.
    Freeze(Freeze),
    /// It gives out what it has again.
    Thaw,
    /// Cut the next part of the snapshot, see [`Event::PartMade`].
    MakePart(TransferId, u32),
    /// Keep a part of a session that comes until [`Change::Prepare`] or [`Self::DropParts`].
    KeepPart(TransferId, u32, Arc<[u8]>),
    /// Parts of a session that comes no further.
    DropParts,
    /// Send a fence behind the messages in flight to the stub, see [`Event::FencePassed`]; the
    /// fence names the client and the stub.
    Fence(Stub),
    /// Say [`Event::Due`] with this after so long.
    Arm(Timer, Nanos),
    /// To be logged: a partner was away for too long.
    GaveUp(PartnerState),
}

/// What changes durably.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Change {
    /// A new session without anything begins.
    Begin(Mark),
    /// The session's mark is another one.
    Mark(Mark),
    /// The session ends, with all it has.
    End,
    /// The parts that were kept become a copy.
    Prepare {
        /// Of which transfer.
        id: TransferId,
        /// The old owner, which decides its fate.
        from: HomeId,
        /// Of the session as it was there.
        mark: Mark,
    },
    /// A copy ends, with all it has.
    DropCopy(TransferId),
    /// A copy becomes the session. If another one is here, it ends, and its undelivered messages are
    /// queued like those of [`Self::Absorb`].
    Install(TransferId, Mark),
    /// A copy ends. Its undelivered messages are queued in the session that is here, but for those that
    /// the session has queued before (its history) or does not take ([`Mark::takes`]).
    Absorb(TransferId),
    /// The session ends here, and this stub remains with its subscriptions (and those of an older
    /// stub); what it has queued since the snapshot goes to the stub's target. The outcome of the
    /// transfer is kept.
    Depart(TransferId, Stub),
    /// The session ends here and a stub remains, as above; its undelivered messages go to the target.
    Demote(Stub),
    /// The stub leads there from now on.
    Stub(Stub),
    /// The stub ends, and its subscriptions.
    DropStub,
    /// An outcome need not be known any more.
    DropOutcome(TransferId),
}

/// Answer to a CONNECT.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Answer {
    /// CONNACK 0x00.
    Granted {
        /// Session Present.
        present: bool,
    },
    /// CONNACK 0x88 (3.1.1: 0x03), or DISCONNECT 0x8E for [`Refusal::Superseded`].
    Refused(Refusal),
}

/// Why a client is not let in; it may try again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Refusal {
    /// A bound is reached, here or at the owner.
    Busy,
    /// The session is being transferred between two brokers.
    OnItsWay,
    /// The client has connected again, here or elsewhere.
    Superseded,
    /// The owner was lost, or nothing came from it in time.
    OwnerSilent,
    /// Not every other home has said in time what it has.
    OthersSilent,
}

/// A timer. It does nothing if its purpose has ended when it is due.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Timer {
    /// A client waits for CONNACK; the number is the progress of its transfer when the timer was armed.
    Connect(Stamp, u32),
    /// A client waits until others are done.
    Queued(Stamp),
    /// Look up again what was answered incompletely.
    Lookup(Stamp),
    /// A session is frozen; with how many parts were acknowledged then.
    Frozen(Freeze, u32),
    /// Say `Stored` again, for so many times now.
    Stored(TransferId, u8),
    /// Say `Commit` again.
    Commit(TransferId, u8),
    /// Claim again.
    Claim(u8),
    /// Ask for a fence again for the stub with this epoch.
    Fence(Stamp),
    /// Give up what is kept for a partner that was away since the timer was armed. The number is that of its
    /// absence at that time; `None` if the partner was reached then.
    Keep(PartnerState, Option<u64>),
    /// Look at more clients after a change of reach; of no client.
    Sweep,
    /// Do something for clients that wait for others; of no client.
    Next,
    /// Ask this home again for `ClaimsDone`; of no client.
    Resync(HomeId, u8),
}

/// What is given up if its partner is away for long.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PartnerState {
    /// A copy that comes.
    Copy(TransferId),
    /// An outcome.
    Outcome(TransferId),
    /// The stub with this target epoch.
    Stub(Stamp),
}

/// Where a message goes that was accepted for a client's session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Route {
    /// Into the session here, unless its history has it.
    Session,
    /// Into each of these copies, unless the copy's history has it.
    Copies(Vec<TransferId>),
    /// On to this home, addressed to the session of this epoch.
    Forward(HomeId, Stamp),
    /// It was for an earlier line of sessions: it ends.
    Outdated,
    /// Nothing is known of the client, as its session has ended: the message is dropped and counted. While
    /// there is a session, fences see to it that this does not happen.
    Unknown,
}

/// What a home answers to the fence of another one's stub.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FenceAnswer {
    /// Nothing here leads there any more.
    Clear,
    /// A stub here leads there.
    StubLeadsThere,
    /// A client that connects here may be looking for the session.
    LookingUp,
}

/// Bounds, each with what happens there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Bounds {
    /// Clients that wait for CONNACK; others are refused.
    pub connects: usize,
    /// Those of them, without Clean Start, for which others do something at a time; more wait for these.
    /// Were all looked for at once, none would be found in time.
    pub active: usize,
    /// Sessions that are copied to or from here; others are refused.
    pub transfers: usize,
    /// Of these, with one neighbour.
    pub per_home: usize,
    /// Copies and outcomes of one client, each; others are refused.
    pub per_client: usize,
    /// Stubs, outcomes and copies in all; beyond, no session leaves or comes.
    pub records: usize,
    /// Bytes of one session that comes; a larger one stays where it is.
    pub session_bytes: usize,
    /// Bytes of all sessions of which not all parts are here; others are refused.
    pub bytes: usize,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            connects: 1 << 16,
            active: 32,
            transfers: 1 << 12,
            per_home: 1 << 10,
            per_client: 8,
            records: 1 << 20,
            session_bytes: 256 << 20,
            bytes: 512 << 20,
        }
    }
}
