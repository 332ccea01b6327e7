//! The state that the shards of one broker share: the subscription index, retained messages, the
//! shard that owns each session, bounds over all shards, and access rights. A message whose topic a
//! shard has handled before accesses only two counters here, unless it goes to members of shared
//! subscriptions.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::ops::Bound;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, RwLock, RwLockReadGuard, RwLockWriteGuard};

use hashbrown::HashMap;
use punctual_model::latest_instant;

use crate::access::{AccessControl, Permissions};
use crate::alarm::{Alarm, Alarms};
use crate::base::connection::Admits;
use crate::base::delivery::Delivery;
use crate::base::handle::SessionHandle;
use crate::base::name::{LINK_PREFIX, MessageName};
use crate::base::sys_source::SysSource;
use crate::base::version::version_at;
use crate::index::matched::Matched;
use crate::index::{Generation, Generations, Index, Place};
use crate::lock::{lock, read, write};
use crate::mesh::federation::Federation;
use crate::mesh::journal::names::NameLog;
use crate::mesh::moves::Began;
use crate::mesh::throttle::FullClients;
use crate::retained::{Retained, RetainedCursor};
use crate::watch::{FlowSight, Watches};
use crate::{Budget, Message, Nanos, Stats};

/// The reason why a shard cannot create a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ClaimError {
    /// The maximum number of sessions exists already.
    Quota,
    /// Another shard has claimed the identifier in the meantime.
    Elsewhere,
}

/// Sizes of the state that the shards of a broker share.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Totals {
    /// Sessions, connected or not.
    pub sessions: usize,
    /// Client identifiers whose shard is known; 0 with one shard.
    pub homes: usize,
    /// Subscriptions.
    pub subscriptions: usize,
    /// Levels of topic filters in the index.
    pub filter_levels: usize,
    /// Retained messages.
    pub retained_messages: usize,
    /// Bytes of the retained messages.
    pub retained_bytes: usize,
    /// Bytes that wait in queues, or for which capacity is reserved there.
    pub queued_bytes: usize,
}

/// Turns the origin of this broker's messages into the origin of its wills.
const WILLS: u32 = 0x5749_4C4C;

/// The state that all shards of one broker share.
#[derive(Debug)]
pub struct Directory {
    shards: u16,
    index: RwLock<Index>,
    pub(crate) generations: Generations,
    retained: RwLock<Retained>,
    homes: Mutex<HashMap<Arc<str>, u16, foldhash::quality::RandomState>>,
    access: RwLock<Option<Arc<dyn AccessControl>>>,
    /// Admission by listener; a listener without an entry admits clients and brokers.
    admits: RwLock<Vec<Admits>>,
    pub(crate) next_number: AtomicU64,
    /// Next number of a message in the store; [`Self::next_entry`] is that of an entry.
    pub(crate) next_message: AtomicU64,
    pub(crate) next_entry: AtomicU64,
    federation: OnceLock<Arc<dyn Federation>>,
    sys_sources: Mutex<Vec<Arc<dyn SysSource>>>,
    /// Number in the last message name that was assigned.
    next_name: AtomicU32,
    /// Message names that the store keeps.
    names: Mutex<NameLog>,
    pub(crate) sessions: AtomicUsize,
    pub(crate) subscriptions: AtomicUsize,
    /// Bytes of the filters of all subscriptions.
    pub(crate) subscription_bytes: Arc<AtomicUsize>,
    /// Bytes of all wills.
    pub(crate) will_bytes: Arc<AtomicUsize>,
    pub(crate) queued_bytes: AtomicUsize,
    stats: Box<[Mutex<Stats>]>,
    pub(crate) watches: Watches,
    pub(crate) alarms: Alarms,
    /// How many messages sessions have lost because their queues were full, by client identifier.
    lossy: Mutex<BTreeMap<Arc<str>, Arc<AtomicU64>>>,
    /// In a mesh: clients for which messages are refused.
    full: Mutex<FullClients>,
    /// Load of each shard in per mille of a core, as reported by its shell.
    load: Box<[AtomicU32]>,
}

impl Directory {
    /// The directory of a broker with `shards` shards, at least one.
    pub fn new(shards: u16) -> Arc<Self> {
        let shards = shards.max(1);
        Arc::new(Self {
            shards,
            index: RwLock::default(),
            generations: Generations::default(),
            retained: RwLock::default(),
            homes: Mutex::default(),
            access: RwLock::default(),
            admits: RwLock::default(),
            federation: OnceLock::new(),
            sys_sources: Mutex::default(),
            next_name: AtomicU32::new(0),
            names: Mutex::default(),
            next_number: AtomicU64::new(1),
            next_message: AtomicU64::new(1),
            next_entry: AtomicU64::new(1),
            sessions: AtomicUsize::new(0),
            subscriptions: AtomicUsize::new(0),
            subscription_bytes: Arc::default(),
            will_bytes: Arc::default(),
            queued_bytes: AtomicUsize::new(0),
            stats: (0..shards).map(|_| Mutex::default()).collect(),
            watches: Watches::default(),
            alarms: Alarms::default(),
            lossy: Mutex::default(),
            full: Mutex::default(),
            load: (0..shards).map(|_| AtomicU32::new(0)).collect(),
        })
    }

    /// The observations of admitted flows after the name `after`, in the order of names: `most`
    /// flows are considered, and those that have ended are left out. Also returns the name of the
    /// last one considered; `None` if there are no more.
    pub fn flows(&self, after: Option<&str>, most: usize) -> (Vec<FlowSight>, Option<Arc<str>>) {
        let watches = self.watches.after(after, most);
        let last = watches.last().map(|watch| watch.name().clone());
        let flows = watches.iter().filter(|watch| !watch.has_ended());
        (flows.map(|watch| watch.sight()).collect(), last)
    }

    /// In a mesh: clients for which messages are refused.
    pub(crate) fn full_clients(&self) -> MutexGuard<'_, FullClients> {
        lock(&self.full)
    }

    /// Registers a session that has lost messages because its queue was full. `count` is the number
    /// of lost messages. The session shares the counter and increments it with every further loss.
    pub(crate) fn note_lossy(&self, client_id: &Arc<str>, count: &Arc<AtomicU64>) {
        lock(&self.lossy).insert(client_id.clone(), count.clone());
    }

    /// Forgets a session that has ended, identified by its counter.
    pub(crate) fn forget_lossy(&self, client_id: &str, count: &Arc<AtomicU64>) {
        let mut lossy = lock(&self.lossy);
        // The client may have another session by now.
        if lossy
            .get(client_id)
            .is_some_and(|it| Arc::ptr_eq(it, count))
        {
            lossy.remove(client_id);
        }
    }

    /// The next `most` clients, in the order of identifiers after `after`, whose sessions have lost
    /// messages because their queues were full, with the number of lost messages.
    pub fn losses(&self, after: Option<&str>, most: usize) -> Vec<(Arc<str>, u64)> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let lossy = lock(&self.lossy);
        let some = lossy.range::<str, _>((from, Bound::Unbounded)).take(most);
        let count = |count: &AtomicU64| count.load(Ordering::Relaxed);
        some.map(|(id, it)| (id.clone(), count(it))).collect()
    }

    /// The last alarms and when they were raised, the latest first.
    pub fn alarms(&self) -> Vec<(Nanos, Alarm)> {
        self.alarms.latest()
    }

    /// Number of shards.
    pub fn shards(&self) -> u16 {
        self.shards
    }

    /// The counters of all shards, as they last shared them.
    pub fn stats(&self) -> Stats {
        let mut sum = Stats::default();
        for stats in &self.stats {
            sum.add(&lock(stats));
        }
        sum
    }

    pub(crate) fn share_stats(&self, shard: u16, stats: &Stats) {
        lock(&self.stats[usize::from(shard)]).follow(stats);
    }

    /// Makes the broker part of a mesh. Must be called once, before clients connect.
    pub fn set_federation(&self, federation: Arc<dyn Federation>) {
        self.retained_mut().remember_gone();
        // A second federation would lack the updates that the first was sent.
        let _ = self.federation.set(federation);
    }

    /// Adds a source of further topics below `$SYS`.
    pub fn add_sys_source(&self, source: Arc<dyn SysSource>) {
        lock(&self.sys_sources).push(source);
    }

    pub(crate) fn sys_sources(&self) -> Vec<Arc<dyn SysSource>> {
        lock(&self.sys_sources).clone()
    }

    pub(crate) fn federation(&self) -> Option<&Arc<dyn Federation>> {
        self.federation.get()
    }

    /// The name of a message with that number in the store, in a mesh: the same after a restart.
    pub(crate) fn stored_name(&self, stored: u64) -> Option<MessageName> {
        let name = self.federation()?.name();
        let digest = punctual_model::digest(b"stored".iter().copied().chain(name.bytes()));
        Some(MessageName {
            origin: NonZeroU32::new(digest as u32).unwrap_or(NonZeroU32::MAX),
            number: stored as u32,
            again: false,
            back: 0,
        })
    }

    /// Gives a message a name, if it has none and the broker is in a mesh: without a name other
    /// brokers could not recognise a repetition.
    pub(crate) fn name_delivery(&self, delivery: &mut Delivery) {
        let stored = delivery.message.stored;
        if delivery.message.name == 0
            && let Some(name) = match stored {
                0 => self.new_name(),
                _ => self.stored_name(stored),
            }
        {
            delivery.message = delivery.message.called(name.key());
        }
    }

    /// A new name for a message that was published at this broker, in a mesh.
    pub(crate) fn new_name(&self) -> Option<MessageName> {
        let origin = self.federation()?.origin();
        let number = self.next_name.fetch_add(1, Ordering::Relaxed);
        Some(MessageName {
            origin,
            number: number.wrapping_add(1),
            again: false,
            back: 0,
        })
    }

    /// The message names that this broker assigned since `began`, in this run and in earlier ones,
    /// or all if that is `None`: for each origin, the last number before the first such name, and
    /// the last number.
    pub(crate) fn names_since(&self, began: Option<Began>) -> Vec<[u64; 2]> {
        let Some(federation) = self.federation() else {
            return Vec::new();
        };
        let own = federation.origin();
        let before = match began {
            Some(began) if began.origin == own => Vec::new(),
            _ => self.names().origins_before(own),
        };
        // A session that began before the oldest remembered origin has received messages of all of
        // them.
        let first = began.and_then(|began| before.iter().position(|it| *it == began.origin));
        let before = before.into_iter().skip(first.unwrap_or(0));
        let lives = before.map(|origin| (origin, u32::MAX));
        let lives = lives.chain([(own, self.last_number())]);
        let all = lives.map(|(origin, last)| {
            let began = began.filter(|began| began.origin == origin);
            (origin, began.map_or(0, |began| began.given), last)
        });
        let all = all.filter(|(_, after, last)| after < last);
        let both = |(origin, after, last): (NonZeroU32, u32, u32)| {
            [after, last].map(|number| u64::from(origin.get()) << 32 | u64::from(number))
        };
        all.map(both).collect()
    }

    /// Number in the last name that this broker assigned.
    fn last_number(&self) -> u32 {
        self.next_name.load(Ordering::Relaxed)
    }

    /// The names that this broker has received and assigned by now, as a position.
    pub(crate) fn begins(&self) -> Option<Began> {
        let federation = self.federation()?;
        Some(Began {
            passed: federation.mark_passed(),
            stored: self.names().position(),
            origin: federation.origin(),
            given: self.last_number(),
        })
    }

    /// The position at which a restored session began here, from its stored form.
    pub(crate) fn began(&self, stored: u64, origin: NonZeroU32, given: u32) -> Option<Began> {
        let federation = self.federation()?;
        let passed = self.names().passed_at(stored);
        Some(Began {
            passed: passed.unwrap_or_else(|| federation.mark_passed()),
            stored,
            origin,
            given,
        })
    }

    /// A name for a will, by which a broker recognises a will that it has received before. The name
    /// has an origin of its own, since it is old when the will is published, and since the will
    /// comes back to this broker as a new message if other brokers have published it.
    pub(crate) fn will_name(&self) -> Option<MessageName> {
        let origin = self.will_origin()?;
        let name = self.new_name()?;
        Some(MessageName { origin, ..name })
    }

    /// The minimum time for which wills of sessions from before a restart wait.
    pub(crate) fn will_wait(&self) -> Nanos {
        let federation = self.federation();
        federation.map_or(Nanos(0), |federation| federation.will_wait())
    }

    fn will_origin(&self) -> Option<NonZeroU32> {
        let federation = self.federation()?;
        let origin = federation.origin();
        let wills = NonZeroU32::new(origin.get() ^ WILLS).unwrap_or(origin);
        federation.relay().is_none().then_some(wills)
    }

    /// Whether a name is that of a will of a client that has connected to this broker since its
    /// start: other brokers must not publish such a will.
    pub(crate) fn is_own_will(&self, name: MessageName) -> bool {
        self.will_origin() == Some(name.origin)
    }

    pub(crate) fn names(&self) -> MutexGuard<'_, NameLog> {
        lock(&self.names)
    }

    /// Sets the load of a shard, in per mille of its core.
    pub fn set_load(&self, shard: u16, per_mille: u32) {
        self.load[usize::from(shard)].store(per_mille, Ordering::Relaxed);
    }

    /// Replaces the access control; `None` allows everything. Every shard must be notified with
    /// [`crate::Shard::access_changed`].
    pub fn set_access_control(&self, access: Option<Arc<dyn AccessControl>>) {
        *write(&self.access) = access;
        self.generations.bump_all();
    }

    /// Sets which peers may connect at each listener; without it, clients and neighbour brokers may
    /// connect at all. Every shard must be notified with [`crate::Shard::access_changed`].
    pub fn set_admits(&self, admits: Vec<Admits>) {
        *write(&self.admits) = admits;
    }

    /// The peers that may connect at a listener.
    pub(crate) fn admits(&self, listener: u16) -> Admits {
        let admits = read(&self.admits);
        admits
            .get(usize::from(listener))
            .copied()
            .unwrap_or_default()
    }

    /// The rights of a client, by the listener of its last connection.
    pub(crate) fn permissions(
        &self,
        listener: Option<u16>,
        user: Option<&str>,
        client_id: &str,
    ) -> Option<Arc<dyn Permissions>> {
        read(&self.access)
            .as_ref()
            .and_then(|access| access.permissions_at(listener, user, client_id))
    }

    /// See [`AccessControl::permissions_anywhere`].
    pub(crate) fn permissions_anywhere(
        &self,
        user: Option<&str>,
        client_id: &str,
    ) -> Option<Arc<dyn Permissions>> {
        read(&self.access)
            .as_ref()
            .and_then(|access| access.permissions_anywhere(user, client_id))
    }

    /// The current sizes.
    pub fn totals(&self) -> Totals {
        let (retained_messages, retained_bytes) = self.retained_totals();
        Totals {
            sessions: self.sessions.load(Ordering::Relaxed),
            homes: lock(&self.homes).len(),
            subscriptions: self.subscriptions.load(Ordering::Relaxed),
            filter_levels: read(&self.index).len(),
            retained_messages,
            retained_bytes,
            queued_bytes: self.queued_bytes.load(Ordering::Relaxed),
        }
    }

    /// Number and bytes of retained messages.
    pub fn retained_totals(&self) -> (usize, usize) {
        let retained = self.retained();
        (retained.len(), retained.bytes())
    }

    /// Retained messages that match `filter`, sorted by topic: at most `limit`, and as many as are
    /// found within the budget. Also returns the position at which to continue, if there may be
    /// more.
    pub fn retained_page(
        &self,
        filter: &str,
        from: &RetainedCursor,
        limit: usize,
        budget: &mut Budget,
        now: Nanos,
    ) -> (Vec<Arc<Message>>, Option<RetainedCursor>) {
        let piece = self.retained().scan(filter, from, limit, budget, now);
        let messages = piece.found.into_iter().map(|found| found.message);
        (messages.collect(), piece.next)
    }

    /// The clock and the origin from which versions of retained messages are formed in a mesh.
    pub(crate) fn version_clock(&self) -> Option<(u64, u32)> {
        let federation = self.federation();
        federation.map(|it| (it.clock(), it.origin().get()))
    }

    /// The highest plausible version of a retained message, by this broker's
    /// [clock](Self::version_clock).
    pub(crate) fn latest_version(clock: Option<(u64, u32)>) -> u64 {
        clock.map_or(u64::MAX, |(micros, _)| version_at(latest_instant(micros)))
    }

    /// Assigns no more versions of retained messages in the future, where the store contains such
    /// versions, and returns whether it did. A new message of a topic replaces one with such a
    /// version.
    pub fn lower_versions(&self) -> bool {
        let latest = Self::latest_version(self.version_clock());
        self.retained_mut().lower_version(latest)
    }

    /// Takes the topics that have no retained message any more although the store has one, with the
    /// version of that message.
    pub(crate) fn take_unretained(&self) -> Vec<(Box<str>, u64)> {
        if !self.retained().has_gone() {
            return Vec::new();
        }
        self.retained_mut().take_gone()
    }

    pub(crate) fn retained(&self) -> RwLockReadGuard<'_, Retained> {
        read(&self.retained)
    }

    pub(crate) fn retained_mut(&self) -> RwLockWriteGuard<'_, Retained> {
        write(&self.retained)
    }

    pub(crate) fn index_mut(&self) -> RwLockWriteGuard<'_, Index> {
        write(&self.index)
    }

    /// The receivers of a topic, and the generation for which they are valid.
    pub(crate) fn lookup(&self, topic: &str, slot: u8) -> (Generation, Matched) {
        let index = read(&self.index);
        (self.generations.current(slot), index.matches(topic))
    }

    /// As [`Index::clients_after`].
    pub(crate) fn clients_after(
        &self,
        topic: &str,
        after: Place,
        most: usize,
    ) -> (Matched, usize, Option<Place>) {
        read(&self.index).clients_after(topic, after, most)
    }

    /// The shard that owns the session of `client_id`. A client without
    /// session is placed: on `here` unless that shard is busy and another is
    /// not, because a message that stays on one shard costs least.
    pub fn home(&self, client_id: &str, here: u16) -> u16 {
        if self.shards == 1 || client_id.starts_with(LINK_PREFIX) {
            return 0;
        }
        if let Some(home) = lock(&self.homes).get(client_id) {
            return *home;
        }
        self.place(here)
    }

    /// The shard for a new session: the first shard that is not busy.
    fn place(&self, here: u16) -> u16 {
        const BUSY: u32 = 700;
        let load = |shard: &u16| self.load[usize::from(*shard)].load(Ordering::Relaxed);
        let first_idle = (0..self.shards).find(|shard| load(shard) < BUSY);
        first_idle
            .or_else(|| (0..self.shards).min_by_key(load))
            .unwrap_or(here)
    }

    /// Claims a client identifier for a new session on `shard`, unless there
    /// are `max` sessions already or another shard was faster.
    pub(crate) fn claim(
        &self,
        client_id: &Arc<str>,
        shard: u16,
        max: usize,
    ) -> Result<(), ClaimError> {
        if self.sessions.fetch_add(1, Ordering::Relaxed) >= max {
            self.sessions.fetch_sub(1, Ordering::Relaxed);
            return Err(ClaimError::Quota);
        }
        if self.shards > 1 {
            let home = *lock(&self.homes).entry(client_id.clone()).or_insert(shard);
            if home != shard {
                self.sessions.fetch_sub(1, Ordering::Relaxed);
                return Err(ClaimError::Elsewhere);
            }
        }
        Ok(())
    }

    /// Reserves a client identifier for `shard`: all connections of the client go to that shard, to
    /// which its session may be transferred; false if they go to another shard.
    pub(crate) fn reserve(&self, client_id: &Arc<str>, shard: u16) -> bool {
        let home = || *lock(&self.homes).entry(client_id.clone()).or_insert(shard);
        self.shards == 1 || home() == shard
    }

    /// Releases an identifier that was reserved for that shard and has no session.
    pub(crate) fn give_up_on(&self, client_id: &str, shard: u16) {
        if self.shards > 1 {
            let mut homes = lock(&self.homes);
            if homes.get(client_id) == Some(&shard) {
                homes.remove(client_id);
            }
        }
    }

    /// Notes that a session has ended; its identifier stays reserved.
    pub(crate) fn vacate(&self) {
        self.sessions.fetch_sub(1, Ordering::Relaxed);
    }

    /// Creates the handle of a session whose identifier was claimed.
    pub(crate) fn handle(&self, client_id: &Arc<str>, shard: u16, slot: u32) -> Arc<SessionHandle> {
        let number = self.next_number.fetch_add(1, Ordering::Relaxed);
        self.handle_of(client_id, shard, slot, number)
    }

    /// As [`Self::handle`], for a session that has a number already.
    pub(crate) fn handle_of(
        &self,
        client_id: &Arc<str>,
        shard: u16,
        slot: u32,
        number: u64,
    ) -> Arc<SessionHandle> {
        let link = client_id.starts_with(LINK_PREFIX);
        let id = client_id.clone();
        Arc::new(SessionHandle::new(shard, slot, number, id, link))
    }

    /// Releases a claimed identifier.
    pub(crate) fn release(&self, client_id: &str) {
        self.sessions.fetch_sub(1, Ordering::Relaxed);
        if self.shards > 1 {
            lock(&self.homes).remove(client_id);
        }
    }
}
