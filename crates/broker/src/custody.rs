//! What a shard keeps of sessions that move between the brokers of a mesh, beside the sessions.
//!
//! The protocol is [`punctual_mesh::transfer`]; [`crate::shard`] does what that says. A session, a copy of
//! one that comes, and the stub of one that has left are all a [`Session`](crate::session::Session) in the
//! slab, stored in the same way, and tell by their [`Record`] which of these they are. Only a session has a
//! client that finds it by its identifier; a copy has no subscriptions in the index; a stub has no client,
//! and what it queues is forwarded.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use hashbrown::HashMap;
use punctual_mesh::transfer::{
    Action, Event, Freeze, HomeId, Mark, Record, Records, Sessions, Settings, Stamp, Stub, Timer,
    Times, TransferId, Transfers,
};
use punctual_mesh::wire::SessionAddress;

use crate::Nanos;
use crate::hub::{ConnId, Hub};
use crate::journal::{Known, Round};
use crate::session::Delivery;

/// Messages of neighbours that wait until they can be forwarded; those beyond are dropped and counted.
pub(crate) const MAX_TRANSIT: usize = 1 << 10;
/// The timer by which the machine is told what has happened, and by which forwarding is tried again;
/// others are the machine's.
pub(crate) const WAKE: u64 = 0;
/// See [`WAKE`].
pub(crate) const TRY_AGAIN: u64 = u64::MAX;
/// After which what could not be forwarded is tried again.
pub(crate) const RETRY: Nanos = Nanos::from_millis(20);
/// Topic on which neighbours forward messages to the sessions of a broker, whose name follows.
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
    /// Names of what had passed here when it was frozen.
    pub(crate) known: Known,
    /// All has come when this is passed that other shards had sent then.
    pub(crate) fence: u64,
    /// What was queued by then; what comes later is in the queue of the session. `None` before.
    pub(crate) kept: Option<Vec<Delivery>>,
    /// The next message of its window, and of these, that is to be sent.
    pub(crate) next: (usize, usize),
    /// What is not cut into parts.
    pub(crate) bytes: Vec<u8>,
}

/// The parts of a session that comes, as far as they are here.
#[derive(Debug)]
pub(crate) struct Arriving {
    pub(crate) id: TransferId,
    /// `None` if they are not those of a session.
    pub(crate) round: Option<Box<Round>>,
}

/// A message for a session of another broker, or on its way there.
#[derive(Debug)]
pub(crate) struct Transit {
    pub(crate) address: SessionAddress,
    pub(crate) message: Arc<[u8]>,
    /// By which [`crate::Federation::forwarded`] is told that it is safe.
    pub(crate) number: u64,
}

/// What waits until all has come that other shards of this broker had sent.
#[derive(Debug)]
pub(crate) enum Then {
    /// A part of a frozen session is made.
    MakePart(Arc<str>, TransferId, u32),
    /// All has passed that was on its way to a stub with that epoch.
    EndStub(Arc<str>, Stamp),
    /// What passes from now on is known to be queued in a session, with its slot and number.
    Begin(u32, u64),
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Custody {
    pub(crate) machine: Transfers,
    /// What the machine is still to be told, and what it wants done before.
    pub(crate) events: VecDeque<(Arc<str>, Event)>,
    pub(crate) actions: VecDeque<(Arc<str>, Action)>,
    /// One of these is under way.
    pub(crate) is_busy: bool,
    /// A session ends because the machine wants it.
    pub(crate) is_changing: bool,
    /// A timer sees to it that the machine is told what has happened.
    pub(crate) is_armed: bool,
    /// The latest last.
    pub(crate) waiting: Map<Arc<str>, Vec<Waiting>>,
    pub(crate) frozen: Map<Arc<str>, Frozen>,
    pub(crate) arriving: Map<Arc<str>, Arriving>,
    /// Slots of copies, by client.
    pub(crate) copies: Map<Arc<str>, Vec<(TransferId, u32)>>,
    /// Slots of stubs, the latest last: each has the subscriptions of another session that has left.
    pub(crate) stubs: Map<Arc<str>, Vec<u32>>,
    /// Transfers that are not confirmed.
    pub(crate) outcomes: Map<Arc<str>, Vec<(TransferId, HomeId)>>,
    /// What waits for commits, in order of tickets: writes of the machine,
    pub(crate) writes: VecDeque<(u64, Arc<str>, u64)>,
    /// and messages that neighbours have forwarded.
    pub(crate) forwarded: VecDeque<(u64, u64)>,
    pub(crate) timers: Map<u64, (Arc<str>, Timer)>,
    /// Those of each client.
    pub(crate) armed: Map<Arc<str>, Vec<u64>>,
    pub(crate) last_timer: u64,
    /// What waits for fences between shards, in their order.
    pub(crate) fenced: VecDeque<(u64, Then)>,
    /// Sessions of which it is not known yet what was queued since they are here.
    pub(crate) beginning: BTreeSet<u32>,
    /// What a stub forwards next, since when it was queued.
    pub(crate) next: Map<u32, (Nanos, Delivery)>,
    /// Since when stubs lead to the session that is here.
    pub(crate) here_since: Map<u32, Nanos>,
    /// Stubs that have queued something.
    pub(crate) unsent: BTreeSet<u32>,
    /// Packet identifiers that a client may remember of the session that a stub was, of messages with QoS 2:
    /// the session that it has now releases them.
    pub(crate) remembered: Map<u32, Vec<u16>>,
    pub(crate) transit: VecDeque<Transit>,
    /// Whether a timer tries again to forward.
    pub(crate) retries: bool,
    /// On the first shard: messages that neighbours have forwarded, which are not acknowledged.
    pub(crate) unacknowledged: Map<u64, (ConnId, u16)>,
    pub(crate) last_unacknowledged: u64,
    /// Other brokers that are reached.
    pub(crate) reached: BTreeSet<HomeId>,
    /// Shards of other brokers of which this one has answered all claims.
    pub(crate) claims_done: BTreeMap<HomeId, BTreeSet<u16>>,
    /// What the store had, which the machine is told first.
    pub(crate) records: BTreeMap<Arc<str>, Records>,
}

impl Custody {
    fn new(own: HomeId, instance: u64, times: Times) -> Self {
        let settings = Settings {
            own,
            instance,
            times,
            bounds: Default::default(),
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
            beginning: BTreeSet::new(),
            next: Map::default(),
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
}

/// The sessions of a shard, as the machine sees them.
struct Marks<'a>(&'a Hub);

impl Sessions for Marks<'_> {
    fn mark(&self, client: &str) -> Option<Mark> {
        let slot = self.0.session_named(client)?;
        self.0.sessions.get(slot)?.mark().cloned()
    }
}

impl Hub {
    /// Whether the broker is one of a mesh, so that sessions move; makes what that needs.
    pub(crate) fn has_custody(&mut self) -> bool {
        if self.custody.is_none()
            && let Some(federation) = self.directory.federation()
            && let Some(own) = HomeId::new(federation.name())
        {
            let shards = u64::from(self.directory.shards());
            // No two shards, nor two starts, freeze a session with the same number.
            let instance = federation.clock() * shards + u64::from(self.index);
            self.custody = Some(Box::new(Custody::new(
                own,
                instance,
                federation.transfer_times(),
            )));
        }
        self.custody.is_some()
    }

    /// Calls the machine, and takes what it wants done.
    pub(crate) fn with_machine<R>(
        &mut self,
        call: impl FnOnce(&mut Transfers, &dyn Sessions) -> R,
    ) -> Option<R> {
        let mut custody = self.custody.take()?;
        let result = call(&mut custody.machine, &Marks(self));
        custody.actions.extend(custody.machine.take_actions());
        self.custody = Some(custody);
        Some(result)
    }

    /// Something has happened that the machine is told when it is its turn.
    pub(crate) fn tell_custody(&mut self, client: &Arc<str>, event: Event, now: Nanos) {
        let Some(custody) = &mut self.custody else {
            return;
        };
        custody.events.push_back((client.clone(), event));
        self.wake_custody(now);
    }

    pub(crate) fn wake_custody(&mut self, now: Nanos) {
        if let Some(custody) = &mut self.custody
            && !custody.is_busy
            && !std::mem::replace(&mut custody.is_armed, true)
        {
            self.timers
                .arm(now, crate::timers::Timer::Transfer { id: WAKE });
        }
    }

    /// A session ends: unless the machine wants that, it is told.
    pub(crate) fn session_ends(&mut self, client: &Arc<str>, now: Nanos) {
        let Some(custody) = &mut self.custody else {
            return;
        };
        let kept = custody.frozen.remove(client).and_then(|it| it.kept);
        let is_changing = custody.is_changing;
        if let Some(kept) = kept {
            self.forget_kept(&kept);
        }
        if !is_changing {
            self.tell_custody(client, Event::Ended, now);
        }
    }

    /// A stub has something that is to be forwarded.
    pub(crate) fn stub_has_queued(&mut self, slot: u32, now: Nanos) {
        if let Some(custody) = &mut self.custody {
            custody.unsent.insert(slot);
            self.wake_custody(now);
        }
    }

    /// Whether a snapshot of the client's session is sent.
    pub(crate) fn is_frozen(&self, client: &Arc<str>) -> bool {
        let custody = self.custody.as_ref();
        custody.is_some_and(|it| it.frozen.contains_key(client))
    }

    /// What was queued in a session that was frozen is not there any more.
    pub(crate) fn forget_kept(&mut self, kept: &[Delivery]) {
        let mut load = crate::session::Load::default();
        kept.iter().for_each(|it| load.add(&it.message));
        self.forget_queued(&load);
    }

    /// Tells the machine of writes that are durable, and neighbours of forwarded messages that are.
    pub(crate) fn custody_committed(&mut self, now: Nanos) {
        let journal = self.journal.as_ref();
        let is_committed = |ticket: u64| journal.is_none_or(|it| it.is_committed(ticket));
        let Some(custody) = &mut self.custody else {
            return;
        };
        let mut written = Vec::new();
        while let Some((_, client, number)) = custody
            .writes
            .pop_front_if(|(ticket, ..)| is_committed(*ticket))
        {
            written.push((client, number));
        }
        while let Some((_, number)) =
            (custody.forwarded).pop_front_if(|(ticket, _)| is_committed(*ticket))
        {
            if let Some(federation) = self.directory.federation() {
                federation.forwarded(number);
            }
        }
        for (client, number) in written {
            self.tell_custody(&client, Event::Written(number), now);
        }
    }
}

/// What the store had of a client besides its session.
pub(crate) fn note_record(records: &mut Records, record: &Record) {
    match record {
        Record::Session(_) => {}
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
