//! The port of the member: what the shards call.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use punctual_auth::Secret;
use punctual_broker::{
    ConnId, Federation, Interest, LinkNews, MessageName, MessageNames, MoveTimes, Nanos, Newcomer,
    Relay, Service, SessionTransfers, Unwelcome, WillRecord,
};
use punctual_mesh::seen::{Name, SeenMessages, Verdict};
use punctual_mesh::transfer::{HomeId, Located, Stamp, Stub, Times};
use punctual_mesh::wire::{Arrival, ClientWill, SessionAddress};
use punctual_mesh::{BrokerId, Settings, Strategy};
use punctual_model::latest_instant;

use crate::event::{LinkEvent, ShardEvent};

/// Names of messages that are remembered.
const REMEMBERED: usize = 1 << 17;
/// Those of them that go with a session to another broker.
const PASSED: usize = 1 << 12;

/// The federation of a broker, as its shards see it. Shared by their threads and that of the
/// [`Member`](crate::Member).
pub struct Port {
    own: BrokerId,
    origin: NonZeroU32,
    /// Admits neighbours that have no right of their own.
    secret: Option<Secret>,
    clock: Box<dyn Fn() -> u64 + Send + Sync>,
    report: Box<dyn Fn(ShardEvent) + Send + Sync>,
    known: Mutex<KnownMessages>,
    /// Where messages are routed by the root: the path there, and the messages that passed on it.
    relay: Option<Mutex<(Relay, SeenMessages)>>,
    /// Neighbours with a link, and whether this broker opened it.
    linked: Mutex<BTreeMap<BrokerId, bool>>,
    topics: Mutex<Vec<(String, String)>>,
    /// The latest time at which a client arrived at a broker, as far as that is known.
    arrived: AtomicU64,
    /// A [`Service`].
    service: AtomicU8,
    will_wait: Nanos,
    move_times: MoveTimes,
    transfer_times: Times,
}

/// The messages that were here.
#[derive(Debug)]
struct KnownMessages {
    /// From neighbours.
    seen: SeenMessages,
    /// Origins of the messages that clients published here before a restart.
    before: BTreeSet<NonZeroU32>,
}

impl Port {
    /// The port of the broker with these settings.
    ///
    /// * `origin`: in the names of messages that clients publish here; another one after each
    ///   start.
    /// * `secret`: admits neighbours that present it; without, only those with a right to their
    ///   name are.
    /// * `clock`: microseconds since 1970.
    /// * `report`: passes an event on to the member. It may be called by several threads at once,
    ///   and may not block.
    pub fn new(
        settings: &Settings,
        origin: NonZeroU32,
        secret: Option<Secret>,
        clock: impl Fn() -> u64 + Send + Sync + 'static,
        report: impl Fn(ShardEvent) + Send + Sync + 'static,
    ) -> Self {
        let relay = || Mutex::new((Relay { parent: None }, SeenMessages::new(REMEMBERED)));
        Self {
            own: settings.id.clone(),
            origin,
            secret,
            clock: Box::new(clock),
            report: Box::new(report),
            known: Mutex::new(KnownMessages {
                seen: SeenMessages::new(REMEMBERED),
                before: BTreeSet::new(),
            }),
            relay: (settings.strategy == Strategy::RootRelay).then(relay),
            linked: Mutex::default(),
            topics: Mutex::default(),
            arrived: AtomicU64::new(0),
            service: AtomicU8::new(match settings.join_wait {
                Nanos(0) => Service::Full,
                _ => Service::None,
            } as u8),
            will_wait: settings.will_wait,
            move_times: MoveTimes {
                linger: settings.linger,
                heal: settings.heal,
            },
            transfer_times: Times {
                session_wait: settings.session_wait,
                heal: settings.heal,
                keep: settings.keep,
            },
        }
    }

    /// Whether there is a link to a neighbour.
    pub fn is_linked(&self, peer: &BrokerId) -> bool {
        lock(&self.linked).contains_key(peer)
    }

    /// Sets the topics below `$SYS`, and their values.
    pub fn set_topics(&self, topics: Vec<(String, String)>) {
        *lock(&self.topics) = topics;
    }

    /// There is a link to a neighbour now; whether this broker opened it.
    pub(crate) fn linked(&self, peer: &BrokerId, dialled: bool) {
        lock(&self.linked).insert(peer.clone(), dialled);
    }

    /// There is no link to a neighbour any more.
    pub(crate) fn unlinked(&self, peer: &BrokerId) {
        lock(&self.linked).remove(peer);
    }

    /// Sets the neighbour that leads to the root, where messages are routed by the root.
    pub(crate) fn set_parent(&self, parent: Option<&BrokerId>) {
        if let Some(relay) = &self.relay {
            lock(relay).0.parent = parent.map(|parent| Arc::from(parent.as_str()));
        }
    }

    /// Sets the service that clients are offered.
    pub(crate) fn set_service(&self, service: Service) {
        // The interest of neighbours is in the index before.
        self.service.store(service as u8, Ordering::Release);
    }

    /// A client has arrived at another broker at that time.
    pub(crate) fn note_arrival(&self, at: u64) {
        let at = at.min(latest_instant((self.clock)()));
        self.arrived.fetch_max(at, Ordering::Relaxed);
    }

    pub(crate) fn report(&self, event: ShardEvent) {
        (self.report)(event);
    }

    /// A time later than those of all arrivals so far.
    fn next_arrival(&self) -> u64 {
        let clock = (self.clock)();
        let later = |last: u64| clock.max(last.saturating_add(1));
        let order = Ordering::Relaxed;
        let last = self
            .arrived
            .fetch_update(order, order, |last| Some(later(last)));
        later(last.unwrap_or_else(|last| last))
    }

    /// Whether a client published a message here, and it does not come back from the root.
    fn is_own(&self, known: &KnownMessages, name: MessageName) -> bool {
        let own = name.origin == self.origin || known.before.contains(&name.origin);
        own && self.relay.is_none()
    }
}

impl fmt::Debug for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Port")
            .field("own", &self.own)
            .field("origin", &self.origin)
            .finish_non_exhaustive()
    }
}

impl Interest for Port {
    fn subscribed(&self, filter: &str, persistent: bool) {
        self.report(ShardEvent::Subscribed(filter.into(), persistent));
    }

    fn unsubscribed(&self, filter: &str, persistent: bool) {
        self.report(ShardEvent::Unsubscribed(filter.into(), persistent));
    }

    fn wishes_kept(&self, number: u64) {
        self.report(ShardEvent::InterestCommitted(number));
    }

    fn flushed(&self, number: u64) {
        self.report(ShardEvent::Flushed(number));
    }
}

impl MessageNames for Port {
    fn origin(&self) -> NonZeroU32 {
        self.origin
    }

    fn is_new(&self, name: MessageName, at_most_once: bool) -> bool {
        let known = lock(&self.known);
        if self.is_own(&known, name) {
            return false;
        }
        match known.seen.judge(called(name), name.again) {
            Verdict::New => true,
            Verdict::Seen => false,
            Verdict::Unknown => !at_most_once,
        }
    }

    fn clock(&self) -> u64 {
        (self.clock)()
    }

    fn mark_passed(&self) -> u64 {
        lock(&self.known).seen.mark()
    }

    fn passed(&self, mark: u64) -> (Vec<MessageName>, usize) {
        let known = lock(&self.known);
        let since = usize::try_from(known.seen.since(mark)).unwrap_or(usize::MAX);
        let names = known.seen.latest(PASSED).filter_map(|name| {
            Some(MessageName {
                origin: NonZeroU32::new(name.origin)?,
                number: name.number,
                again: false,
                back: 0,
            })
        });
        (names.collect(), since)
    }

    fn is_new_upwards(&self, name: MessageName) -> bool {
        let Some(relay) = &self.relay else {
            return true;
        };
        let passed = &mut lock(relay).1;
        let verdict = passed.judge(called(name), name.again);
        passed.note(called(name));
        verdict != Verdict::Seen
    }

    fn was_here(&self, name: MessageName) -> bool {
        !self.is_new(name, true)
    }

    fn note(&self, name: MessageName) {
        lock(&self.known).seen.note(called(name));
    }

    fn note_new(&self, name: MessageName) -> bool {
        let mut known = lock(&self.known);
        !self.is_own(&known, name) && known.seen.note(called(name))
    }

    fn was_origin(&self, origin: NonZeroU32) {
        lock(&self.known).before.insert(origin);
    }
}

impl SessionTransfers for Port {
    fn arrived(&self, client_id: &str, user: Option<&str>, clean: bool, since: Option<u64>) -> u64 {
        let at = since.unwrap_or_else(|| self.next_arrival());
        self.report(ShardEvent::Arrived(Arrival {
            client: client_id.into(),
            user: user.map(Into::into),
            at,
            clean,
        }));
        at
    }

    fn left_behind(&self, client_id: &str, will: Option<WillRecord>) {
        let client: Box<str> = client_id.into();
        let will = will.map(|WillRecord { at, delay, message }| ClientWill {
            client: client.clone(),
            at,
            delay,
            message,
        });
        self.report(ShardEvent::Will(client, will));
    }

    fn claimed(&self, client_id: &str, user: Option<&str>, clean: bool, at: u64) {
        self.report(ShardEvent::Claimed(Arrival {
            client: client_id.into(),
            user: user.map(Into::into),
            at,
            clean,
        }));
    }

    fn will_wait(&self) -> Nanos {
        self.will_wait
    }

    fn send_transfer_message(&self, to: &str, client_id: &str, body: Arc<[u8]>) {
        if let Some(to) = BrokerId::new(to) {
            let client = client_id.into();
            self.report(ShardEvent::Envelope { to, client, body });
        }
    }

    fn move_times(&self) -> MoveTimes {
        self.move_times
    }

    fn transfer_times(&self) -> Times {
        self.transfer_times
    }

    fn next_stamp(&self) -> u64 {
        self.next_arrival()
    }

    fn look_up(&self, client_id: &str, user: Option<&str>, at: &Stamp, clean: bool) {
        self.report(ShardEvent::LookUp {
            at: at.clone(),
            client: client_id.into(),
            user: user.map(Into::into),
            clean,
        });
    }

    fn found(&self, by: &HomeId, client_id: &str, at: &Stamp, located: Located) {
        self.report(ShardEvent::Found {
            by: by.clone(),
            at: at.clone(),
            client: client_id.into(),
            located,
        });
    }

    fn fence_stub(&self, client_id: &str, stub: &Stub) {
        let (client, stub) = (client_id.into(), stub.clone());
        self.report(ShardEvent::FenceStub { client, stub });
    }

    fn forward(&self, number: u64, address: &SessionAddress, message: Arc<[u8]>) {
        let address = Box::new(address.clone());
        self.report(ShardEvent::Forward {
            number,
            address,
            message,
        });
    }

    fn forwarded(&self, number: u64) {
        self.report(ShardEvent::Forwarded(number));
    }
}

impl Federation for Port {
    /// Admits a neighbour that may use its name, or knows the secret of the mesh. If two brokers
    /// connect to each other, the connection of the one with the lower name stays.
    fn admit(&self, newcomer: Newcomer<'_>) -> Result<(), Unwelcome> {
        let Newcomer {
            peer,
            secret,
            is_permitted,
        } = newcomer;
        let knows = |secret| self.secret.as_ref().is_some_and(|own| own.is(secret));
        match secret {
            _ if is_permitted => {}
            None => return Err(Unwelcome::NotPermitted),
            Some(secret) if !knows(secret) => return Err(Unwelcome::WrongSecret),
            Some(_) => {}
        }
        let peer = BrokerId::new(peer).ok_or(Unwelcome::NoName)?;
        if peer == self.own {
            return Err(Unwelcome::OwnName);
        }
        let dialled = lock(&self.linked).get(&peer).copied();
        match dialled {
            Some(true) if self.own < peer => Err(Unwelcome::Connected),
            _ => Ok(()),
        }
    }

    fn link(&self, conn: ConnId, peer: &str, news: LinkNews<'_>) {
        let event = match news {
            LinkNews::Up { dialled } => LinkEvent::Up { dialled },
            LinkNews::Message(bytes) => LinkEvent::Message(bytes.into()),
            LinkNews::Waits(waits) => LinkEvent::Waits(waits),
            LinkNews::Down(why) => LinkEvent::Down(why.into()),
        };
        if let Some(peer) = BrokerId::new(peer) {
            self.report(ShardEvent::Link { conn, peer, event });
        }
    }

    fn service(&self) -> Service {
        Service::from_byte(self.service.load(Ordering::Acquire))
    }

    fn name(&self) -> &str {
        self.own.as_str()
    }

    fn topics(&self) -> Vec<(String, String)> {
        lock(&self.topics).clone()
    }

    fn relay(&self) -> Option<Relay> {
        self.relay.as_ref().map(|relay| lock(relay).0.clone())
    }
}

/// The name of a message without the notes of its way.
fn called(name: MessageName) -> Name {
    Name {
        origin: name.origin.get(),
        number: name.number,
    }
}

/// What a lock guards is consistent after a panic, too.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
