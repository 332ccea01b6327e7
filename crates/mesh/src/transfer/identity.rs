//! What names owners, instants, transfers and sessions.

use std::fmt;

use crate::id::BrokerId;

/// The place that owns sessions: today one for each broker, with the broker's name. It names an
/// owner and is no address, so that a home may be served by another machine later.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HomeId(BrokerId);

impl HomeId {
    /// The home of that name; the same rules as for [`BrokerId::new`].
    pub fn new(name: &str) -> Option<Self> {
        BrokerId::new(name).map(Self)
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        self.0.as_str()
    }
}

impl From<BrokerId> for HomeId {
    fn from(broker: BrokerId) -> Self {
        Self(broker)
    }
}

impl fmt::Display for HomeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// When a home took a CONNECT: its hybrid clock, then its name, so that any two differ and all are in
/// order. The clock never falls behind a stamp that was heard.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Stamp {
    /// Microseconds since 1970, and more where the clock stood still.
    pub micros: u64,
    /// The home that issued it.
    pub by: HomeId,
}

/// Tells one freeze of a session from every other at its owner, over restarts too.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Freeze {
    /// Greater after every start of the broker.
    pub instance: u64,
    /// Counts up from 1.
    pub number: u64,
}

/// One transfer of a client's session.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TransferId {
    /// Stamp of the CONNECT that it serves: the epoch of the session where it goes.
    pub at: Stamp,
    /// Of the session where it comes from.
    pub freeze: Freeze,
}

/// What decides between two sessions of one client. Durable with the session, and moves with it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Mark {
    /// Whether the client has received a CONNACK for this session and sent a packet since, so that
    /// it knows of the session. False is always safe, and is answered with Session Present 0.
    pub confirmed: bool,
    /// Stamp of the last CONNECT that the session was given to.
    pub epoch: Stamp,
    /// Stamp of the Clean Start with which its line of sessions began, if one did: nothing that was
    /// accepted for an earlier session is delivered to it.
    pub born: Option<Stamp>,
    /// Whether it was created while a home that might have a greater session could not be asked,
    /// and was not compared with all such homes since.
    pub blind: bool,
}

impl Mark {
    /// Sessions of one client are in this order, and the greatest survives.
    pub fn order(&self) -> (bool, &Stamp) {
        (self.confirmed, &self.epoch)
    }

    /// Whether a message may be delivered to it that was accepted for a session of that epoch.
    pub fn takes(&self, for_epoch: &Stamp) -> bool {
        self.born.as_ref().is_none_or(|born| born <= for_epoch)
    }
}

/// Where messages go that still come for a session that has left.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Stub {
    /// The home that has the session now, or receives it.
    pub target: HomeId,
    /// Its epoch there.
    pub target_epoch: Stamp,
    /// The epoch that it had here: what these messages are accepted for.
    pub for_epoch: Stamp,
}

/// What something that a shell keeps like a session is: what the store has beside its content.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Record {
    /// The client's session.
    Session(Mark),
    /// A copy of which parts are missing, see [`Action::KeepPart`](super::Action::KeepPart). It means
    /// nothing after a restart.
    Incomplete,
    /// A copy that may become the session, see [`Change::Prepare`](super::Change::Prepare).
    Copy {
        /// Of which transfer.
        id: TransferId,
        /// The old owner, which decides its fate.
        from: HomeId,
        /// Of the session as it was there.
        mark: Mark,
    },
    /// What remains of a session that has left: its subscriptions, whose messages are forwarded.
    Stub {
        /// Where that goes.
        stub: Stub,
        /// Transfers that are not confirmed, with their new owners.
        outcomes: Vec<(TransferId, HomeId)>,
    },
}

/// What a home has of a client, as it answers a look-up.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Located {
    /// The order of its session, see [`Mark::order`].
    pub session: Option<(bool, Stamp)>,
    /// Where the session has gone, and its epoch there.
    pub moved: Option<(HomeId, Stamp)>,
    /// The epoch of the last session that has left this home. A stub elsewhere that leads here with this epoch
    /// or an earlier one is out of date.
    pub left: Option<Stamp>,
    /// Stamp of a CONNECT that waits there.
    pub connect: Option<Stamp>,
    /// Whether it has something that comes from elsewhere.
    pub copy: CopyState,
}

/// What a home has of sessions that come to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum CopyState {
    /// Nothing.
    #[default]
    None,
    /// Something whose old owner is not reached: it may be the session, or nothing.
    Stuck,
    /// Something whose old owner is reached: what it is will soon be known.
    Open,
}

impl Located {
    /// Whether it knows nothing of the client.
    pub fn is_nothing(&self) -> bool {
        *self == Self::default()
    }

    /// The last CONNECT of the client that is known there.
    pub fn newest(&self) -> Option<&Stamp> {
        let session = self.session.as_ref().map(|(_, epoch)| epoch);
        let moved = self.moved.as_ref().map(|(_, epoch)| epoch);
        session.max(moved).max(self.connect.as_ref())
    }
}
