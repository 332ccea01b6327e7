//! State of a shard about sessions that move between the brokers of a mesh, beside the sessions
//! themselves.
//!
//! The protocol is [`punctual_mesh::transfer`]; [`crate::shard`] performs its actions. A session, a
//! copy of an arriving session, and the stub of one that has left are all a
//! [`Session`](crate::session::Session) in the slab, stored in the same form, and differ by their
//! [`Record`]. Only a session is found by a client identifier; a copy has no subscriptions in the
//! index; a stub has no client, and forwards the messages that it queues.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use hashbrown::HashMap;
use punctual_mesh::transfer::{
    Action, Bounds, Event, Freeze, HomeId, Record, Records, Settings, Stamp, Stub, Timer, Times,
    TransferId, Transfers,
};
use punctual_mesh::wire::SessionAddress;

use crate::base::connection::ConnId;
use crate::base::delivery::{Delivery, Load};
use crate::mesh::journal::moved::Round;
use crate::mesh::moves::KnownMessages;
use crate::session::{Queue, Window};
use crate::{Budget, Nanos};

/// Largest number of neighbours' messages that wait until the broker can forward them. Further
/// messages are not acknowledged, and the neighbour sends them again over its next connection.
pub(crate) const MAX_TRANSIT: usize = 1 << 10;
/// Largest number of entries of [`Custody::storing`]; the last one stands for all later ones.
pub(crate) const MAX_STORING: usize = 1 << 10;
/// Number of the timer that runs [`crate::Shard::run_custody`]. Timers of the machine have other
/// numbers.
pub(crate) const WAKE: u64 = 0;
/// Number of the timer that tries again to forward messages.
pub(crate) const TRY_AGAIN: u64 = u64::MAX;
/// Time between two attempts to forward a message.
pub(crate) const RETRY: Nanos = Nanos::from_millis(20);
/// Prefix of the topics on which brokers forward messages for sessions. The name of the broker that
/// has the session follows.
pub(crate) const FORWARD: &str = "$mesh/session/";

type Map<K, V> = HashMap<K, V, foldhash::quality::RandomState>;

/// A client that waits for CONNACK.
#[derive(Debug)]
pub(crate) struct Waiting {
    /// Stamp of its CONNECT.
    pub(crate) at: Stamp,
    pub(crate) conn: ConnId,
}

/// A session of which a snapshot is sent.
#[derive(Debug)]
pub(crate) struct Frozen {
    pub(crate) freeze: Freeze,
    /// Names of the messages that had passed here when the session was frozen.
    pub(crate) known: KnownMessages,
    /// The fence between shards behind which the snapshot is taken: messages that other shards had
    /// sent when the session was frozen are in the snapshot.
    pub(crate) fence: u64,
    /// The queued messages of the snapshot; `None` until it is taken. Later messages are in the
    /// queue of the session.
    pub(crate) snapshot: Option<Snapshot>,
    /// Position in the window of the next message to send; those that are queued follow.
    pub(crate) next: usize,
    /// Encoded bytes; those up to `cut` are in a part already.
    pub(crate) bytes: Vec<u8>,
    pub(crate) cut: usize,
}

/// The queued messages of a frozen session.
#[derive(Debug, Default)]
pub(crate) struct Snapshot {
    /// Those that are encoded, each with the time since which it waits.
    pub(crate) sent: Vec<(Nanos, Delivery)>,
    pub(crate) unsent: Queue,
    /// Number and bytes of all of them.
    pub(crate) load: Load,
}

/// The received parts of an arriving session.
#[derive(Debug)]
pub(crate) struct Arriving {
    pub(crate) id: TransferId,
    /// `None` if the parts do not encode a session, or if there is no room for it.
    pub(crate) round: Option<Box<Round>>,
}

/// Messages that another broker has now, or that no session needs any more: their memory is freed
/// in slices.
#[derive(Debug)]
pub(crate) struct Discarded {
    pub(crate) sent: Vec<(Nanos, Delivery)>,
    pub(crate) queue: Queue,
    pub(crate) window: Window,
}

impl Discarded {
    /// Frees messages within the budget; returns whether some are left.
    pub(crate) fn free(&mut self, budget: &mut Budget) -> bool {
        while !budget.is_spent() {
            let is_one = self.sent.pop().is_some()
                || self.queue.pop().is_some()
                || self.window.take_first().is_some();
            if !is_one {
                return false;
            }
            budget.spend(1);
        }
        true
    }
}

/// A message for a session of another broker, which waits to be forwarded or queued.
#[derive(Debug)]
pub(crate) struct Transit {
    pub(crate) address: SessionAddress,
    pub(crate) message: Arc<[u8]>,
    /// The number for [`crate::SessionTransfers::forwarded`] once the message is safe.
    pub(crate) number: u64,
}

/// A step that waits for a fence between the shards of this broker.
#[derive(Debug)]
pub(crate) enum Then {
    /// Make this part of a snapshot.
    MakePart(Arc<str>, TransferId, u32),
    /// Tell the machine that the fence of the stub with that epoch has passed.
    EndStub(Arc<str>, Stamp),
    /// Note that the client's stubs lead to the session on this broker with that epoch.
    LeadHere(Arc<str>, Stamp),
    /// Note that the session in that slot, with that number, queues each message that passes here
    /// and that it subscribes to.
    Begin(u32, u64),
}

/// The transfer machine of a shard, and the state of its shell, see the [module](self).
#[derive(Debug)]
pub(crate) struct Custody {
    pub(crate) machine: Transfers,
    /// Events that the machine has not handled.
    pub(crate) events: VecDeque<(Arc<str>, Event)>,
    /// Actions of the machine that the shell has not performed. They come before the next event.
    pub(crate) actions: VecDeque<(Arc<str>, Action)>,
    /// Whether an event or an action is being handled.
    pub(crate) is_busy: bool,
    /// Whether the shell ends a session for the machine, which therefore is not notified of the
    /// end.
    pub(crate) is_changing: bool,
    /// Whether the timer [`WAKE`] runs.
    pub(crate) is_armed: bool,
    /// Clients that wait for CONNACK, each with its latest CONNECT last.
    pub(crate) waiting: Map<Arc<str>, Vec<Waiting>>,
    pub(crate) frozen: Map<Arc<str>, Frozen>,
    pub(crate) arriving: Map<Arc<str>, Arriving>,
    /// Slots of copies, by client.
    pub(crate) copies: Map<Arc<str>, Vec<(TransferId, u32)>>,
    /// Slots of stubs, the latest last: each has the subscriptions of another session that has
    /// left.
    pub(crate) stubs: Map<Arc<str>, Vec<u32>>,
    /// Outcomes of transfers that the new owner has not confirmed.
    pub(crate) outcomes: Map<Arc<str>, Vec<(TransferId, HomeId)>>,
    /// Writes of the machine that are not committed: ticket, client and number, by ticket.
    pub(crate) writes: VecDeque<(u64, Arc<str>, u64)>,
    /// Forwarded messages that are not committed: ticket and number, by ticket.
    pub(crate) forwarded: VecDeque<(u64, u64)>,
    pub(crate) timers: Map<u64, (Arc<str>, Timer)>,
    /// Numbers of the timers of each client.
    pub(crate) armed: Map<Arc<str>, Vec<u64>>,
    pub(crate) last_timer: u64,
    /// Steps that wait for fences between shards, each with the number of its fence, in their
    /// order.
    pub(crate) fenced: VecDeque<(u64, Then)>,
    /// Slots and numbers of sessions that wait for [`Then::Begin`].
    pub(crate) beginning: BTreeMap<u32, u64>,
    /// By slot of a stub: the message that it forwards next, and the time at which it was queued.
    pub(crate) next: Map<u32, (Nanos, Delivery)>,
    /// Instants at which stubs have queued messages that are not committed, each with the ticket of
    /// their commit.
    pub(crate) storing: VecDeque<(Nanos, u64)>,
    /// By slot of a stub: a time since which it leads to a session on this broker, and since which no
    /// shard sends the stub a message that it does not send the session.
    pub(crate) here_since: Map<u32, Nanos>,
    /// Slots of stubs that may have messages to forward.
    pub(crate) unsent: BTreeSet<u32>,
    /// By slot of a stub: packet identifiers of QoS 2 messages that the client may remember of the
    /// session that the stub was. The client's present session releases them.
    pub(crate) remembered: Map<u32, Vec<u16>>,
    pub(crate) transit: VecDeque<Transit>,
    /// Whether the timer [`TRY_AGAIN`] runs.
    pub(crate) retries: bool,
    /// On the first shard: connection and packet identifier of each message that a neighbour has
    /// forwarded and that is not acknowledged. Bounded by the Receive Maximum of each connection,
    /// with which the entries end.
    pub(crate) unacknowledged: Map<u64, (ConnId, u16)>,
    pub(crate) last_unacknowledged: u64,
    /// Other brokers that are reached.
    pub(crate) reached: BTreeSet<HomeId>,
    /// Shards of other brokers that have reported that all their claims are answered.
    pub(crate) claims_done: BTreeMap<HomeId, BTreeSet<u16>>,
    /// Records of the store that the machine receives before any event.
    pub(crate) records: BTreeMap<Arc<str>, Records>,
}

impl Custody {
    pub(crate) fn new(own: HomeId, instance: u64, times: Times, max_queued_bytes: usize) -> Self {
        let bounds = Bounds::default();
        // Any session within the broker's limits can be moved, in its encoded form.
        let session_bytes = bounds.session_bytes.max(max_queued_bytes.saturating_mul(2));
        let settings = Settings {
            own,
            instance,
            times,
            bounds: Bounds {
                session_bytes,
                bytes: bounds.bytes.max(session_bytes.saturating_mul(2)),
                ..bounds
            },
        };
        Self {
            machine: Transfers::new(settings),
            events: VecDeque::new(),
            actions: VecDeque::new(),
            is_busy: false,
            is_changing: false,
            is_armed: false,
            waiting: Map::default(),
            frozen: Map::default(),
            arriving: Map::default(),
            copies: Map::default(),
            stubs: Map::default(),
            outcomes: Map::default(),
            writes: VecDeque::new(),
            forwarded: VecDeque::new(),
            timers: Map::default(),
            armed: Map::default(),
            last_timer: 0,
            fenced: VecDeque::new(),
            beginning: BTreeMap::new(),
            next: Map::default(),
            storing: VecDeque::new(),
            here_since: Map::default(),
            unsent: BTreeSet::new(),
            remembered: Map::default(),
            transit: VecDeque::new(),
            retries: false,
            unacknowledged: Map::default(),
            last_unacknowledged: 0,
            reached: BTreeSet::new(),
            claims_done: BTreeMap::new(),
            records: BTreeMap::new(),
        }
    }

    /// Removes and returns a client that no longer waits for CONNACK.
    pub(crate) fn take_waiting(
        &mut self,
        client: &str,
        is_it: impl Fn(&Waiting) -> bool,
    ) -> Option<Waiting> {
        let all = self.waiting.get_mut(client)?;
        let place = all.iter().position(is_it)?;
        let waiting = all.remove(place);
        if all.is_empty() {
            self.waiting.remove(client);
        }
        Some(waiting)
    }
}

/// Adds a record of the store to those of its client.
pub(crate) fn note_record(records: &mut Records, record: &Record) {
    match record {
        Record::Session(_) | Record::Incomplete => {}
        Record::Copy { id, from, mark } => {
            records
                .copies
                .push((id.clone(), from.clone(), mark.clone()));
        }
        Record::Stub { stub, outcomes } => {
            records.outcomes.extend(outcomes.iter().cloned());
            let newer = |known: &Stub| known.target_epoch < stub.target_epoch;
            if records.stub.as_ref().is_none_or(newer) {
                records.stub = Some(stub.clone());
            }
        }
    }
}
