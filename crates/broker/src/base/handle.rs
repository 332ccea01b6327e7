//! Session handles: the state of a session that other shards know.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, RwLock};

use crate::access::{Permissions, may_receive};
use crate::lock::{read, write};
use crate::mesh::throttle::Throttle;

/// The state of a session that other shards know.
#[derive(Debug)]
pub(crate) struct SessionHandle {
    pub(crate) shard: u16,
    pub(crate) slot: u32,
    /// Never used for another session.
    pub(crate) number: u64,
    pub(crate) client_id: Arc<str>,
    /// Whether the session is that of a neighbour broker.
    pub(crate) link: bool,
    /// Whether its messages are forwarded to another broker as soon as they are queued. It is true
    /// for the session of a neighbour broker, and for a stub, whose session is at another broker.
    pub(crate) carries: AtomicBool,
    /// Whether a connection is attached.
    pub(crate) connected: AtomicBool,
    /// Number of messages in the queue, as last published by the owning shard.
    pub(crate) queued: AtomicU32,
    /// Bytes of the queued messages.
    pub(crate) queued_bytes: AtomicUsize,
    /// Number of messages for which other shards have reserved capacity.
    pub(crate) reserved: AtomicU32,
    /// Bytes of these messages.
    pub(crate) reserved_bytes: AtomicUsize,
    /// State of the remote flow control of a neighbour; `None` for a client. Boxed, so that it
    /// takes one word in the session of a client.
    pub(crate) throttling: Option<Box<Throttling>>,
    /// Whether publishers on other shards must pause.
    pub(crate) congested: AtomicBool,
    /// Policies for a full queue that the configuration has for this session and for its listener,
    /// as [`crate::overflow`] encodes them.
    pub(crate) queue_full: AtomicU8,
    /// Whether the store has the session.
    durable: AtomicBool,
    /// Whether there are messages that the session may not receive.
    restricted: AtomicBool,
    /// The rights that determine these messages.
    permissions: RwLock<Option<Arc<dyn Permissions>>>,
}

/// The state of deferred messages for a neighbour that other shards know; see
/// [`crate::mesh::throttle`].
#[derive(Debug, Default)]
pub(crate) struct Throttling {
    /// Whether brokers behind that neighbour are away for long: then no publisher waits for
    /// capacity here.
    away: AtomicBool,
    /// Number of deferred messages in the queue.
    messages: AtomicU32,
    /// Bytes of these messages.
    bytes: AtomicUsize,
    /// Whether the link holds newer messages until older ones, which other brokers have kept, have
    /// passed.
    holds: AtomicBool,
    /// Whether remote flow control is in force.
    is_on: AtomicBool,
    /// The filters under remote flow control.
    throttle: RwLock<Throttle>,
}

impl Throttling {
    /// Number of deferred messages, and their bytes, as last published by the owning shard.
    pub(crate) fn load(&self) -> (usize, usize) {
        let messages = self.messages.load(Ordering::Acquire) as usize;
        (messages, self.bytes.load(Ordering::Acquire))
    }

    pub(crate) fn share(&self, messages: usize, bytes: usize) {
        self.messages.store(messages as u32, Ordering::Release);
        self.bytes.store(bytes, Ordering::Release);
    }

    #[cold]
    fn has_throttle_on(&self, topic: &[u8], retain: bool) -> bool {
        let topic = std::str::from_utf8(topic);
        retain || topic.is_ok_and(|topic| read(&self.throttle).has(topic))
    }
}

impl SessionHandle {
    /// The handle of a new session; `link` if it is that of a neighbour broker.
    pub(crate) fn new(shard: u16, slot: u32, number: u64, client_id: Arc<str>, link: bool) -> Self {
        Self {
            shard,
            slot,
            number,
            client_id,
            link,
            carries: AtomicBool::new(false),
            connected: AtomicBool::new(false),
            queued: AtomicU32::new(0),
            queued_bytes: AtomicUsize::new(0),
            reserved: AtomicU32::new(0),
            reserved_bytes: AtomicUsize::new(0),
            throttling: link.then(Box::default),
            congested: AtomicBool::new(false),
            queue_full: AtomicU8::new(0),
            durable: AtomicBool::new(false),
            restricted: AtomicBool::new(false),
            permissions: RwLock::new(None),
        }
    }

    /// Whether messages on a topic may be delivered to the session.
    #[inline]
    pub(crate) fn may_receive(&self, topic: &[u8]) -> bool {
        !self.is_restricted() || self.is_permitted(topic)
    }

    fn is_permitted(&self, topic: &[u8]) -> bool {
        may_receive(read(&self.permissions).as_deref(), topic)
    }

    /// Whether messages for the session are stored.
    #[inline]
    pub(crate) fn is_durable(&self) -> bool {
        self.durable.load(Ordering::Acquire)
    }

    /// Whether the session is that of a neighbour behind which brokers are away for long.
    #[inline]
    pub(crate) fn is_away(&self) -> bool {
        let throttling = self.throttling.as_ref();
        throttling.is_some_and(|throttling| throttling.away.load(Ordering::Acquire))
    }

    pub(crate) fn set_away(&self, away: bool) {
        if let Some(throttling) = &self.throttling {
            throttling.away.store(away, Ordering::Release);
        }
    }

    /// Whether the link holds newer messages until older ones, which other brokers have kept for
    /// the neighbour, have passed.
    #[inline]
    pub(crate) fn holds(&self) -> bool {
        let throttling = self.throttling.as_ref();
        throttling.is_some_and(|throttling| throttling.holds.load(Ordering::Acquire))
    }

    /// Begins or ends to hold newer messages. Returns whether the link held them before.
    pub(crate) fn set_holds(&self, holds: bool) -> bool {
        let throttling = self.throttling.as_ref();
        throttling.is_some_and(|throttling| throttling.holds.swap(holds, Ordering::AcqRel))
    }

    /// Whether a message with QoS 1 or 2 for that neighbour is deferred. While the link holds newer
    /// messages, these are; otherwise those on topics of which the neighbour takes only few at a
    /// time.
    #[inline]
    pub(crate) fn is_kept_back(&self, topic: &[u8], retain: bool, is_older: bool) -> bool {
        match self.holds() {
            true => !is_older,
            false => self.is_throttled(topic, retain),
        }
    }

    /// Whether the neighbour takes only few messages with QoS 1 or 2 on that topic at a time.
    #[inline]
    fn is_throttled(&self, topic: &[u8], retain: bool) -> bool {
        self.throttling.as_ref().is_some_and(|throttling| {
            throttling.is_on.load(Ordering::Acquire) && throttling.has_throttle_on(topic, retain)
        })
    }

    pub(crate) fn set_throttle(&self, throttle: Throttle) {
        if let Some(throttling) = &self.throttling {
            throttling
                .is_on
                .store(!throttle.is_empty(), Ordering::Release);
            *write(&throttling.throttle) = throttle;
        }
    }

    pub(crate) fn set_durable(&self, durable: bool) {
        self.durable.store(durable, Ordering::Release);
    }

    /// Marks the session as ended: it receives no message any more, even where its subscriptions
    /// have not been removed yet.
    pub(crate) fn end(&self) {
        self.set_permissions(Some(Arc::new(Ended)));
    }

    /// Whether the rights of the session are restricted.
    pub(crate) fn is_restricted(&self) -> bool {
        self.restricted.load(Ordering::Acquire)
    }

    pub(crate) fn set_permissions(&self, permissions: Option<Arc<dyn Permissions>>) {
        let restricted = permissions.is_some();
        *write(&self.permissions) = permissions;
        self.restricted.store(restricted, Ordering::Release);
    }
}

/// The rights of a session that has ended.
#[derive(Debug)]
struct Ended;

impl Permissions for Ended {
    fn may_publish(&self, _topic: &str) -> bool {
        false
    }

    fn may_receive(&self, _topic: &str) -> bool {
        false
    }

    fn may_subscribe(&self, _filter: &str) -> bool {
        false
    }
}
