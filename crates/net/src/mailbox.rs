//! How threads talk to a shard: a list behind a mutex that is taken whole, and
//! a wake-up when it was empty. Messages travel in batches, so the lock is
//! taken once per batch and held for a few pointer moves.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::Sender;

use mio::{Token, Waker};
use punctual_broker::lock::lock;
use punctual_broker::{AuthAnswer, ConnId, Nanos, RemoteMessage, Shard};

use crate::quic::QuicMail;
use crate::services::StoreNews;
use crate::tcp::TcpMail;
use crate::udp::UdpMail;

/// Token by which a thread is woken.
pub(crate) const WAKE: Token = Token(usize::MAX);

/// Batches of one shard for another that may wait before it keeps the next
/// ones, and so holds its publishers back.
const BATCHES: usize = 64;
/// Urgent messages that may wait for a shard before another one keeps the next ones.
const URGENT: usize = 4096;

/// Something for a shard thread.
pub(crate) enum Mail {
    /// For a transport.
    Transport(TransportMail),
    /// Messages from another shard.
    Messages(Vec<RemoteMessage>),
    /// An authentication was decided.
    Authenticated(ConnId, AuthAnswer),
    /// Something to do with the broker, from the management side.
    Call(Call),
    /// What has become of operations that were handed to the store.
    Stored(StoreNews),
    /// End all connections and flush. Dropped once what the other shards have to
    /// send for these connections is on its way to them.
    ShutDown(Sender<Infallible>),
    /// All shards have ended their connections: return once the rest is sent.
    Return,
}

/// For the transport of that name.
pub(crate) enum TransportMail {
    Tcp(TcpMail),
    Udp(UdpMail),
    Quic(QuicMail),
}

impl From<TcpMail> for Mail {
    fn from(mail: TcpMail) -> Self {
        Self::Transport(TransportMail::Tcp(mail))
    }
}

impl From<UdpMail> for Mail {
    fn from(mail: UdpMail) -> Self {
        Self::Transport(TransportMail::Udp(mail))
    }
}

impl From<QuicMail> for Mail {
    fn from(mail: QuicMail) -> Self {
        Self::Transport(TransportMail::Quic(mail))
    }
}

/// Work for a shard's thread.
pub(crate) type Call = Box<dyn FnOnce(&mut Shard, Nanos) + Send>;

/// Mail for one shard.
pub(crate) struct Mailbox {
    mail: Mutex<VecDeque<Mail>>,
    batches: AtomicUsize,
    pending: AtomicBool,
    /// Urgent messages of other shards, which do not wait for the other mail.
    urgent: Mutex<Vec<RemoteMessage>>,
    urgent_pending: AtomicBool,
    waker: Waker,
}

impl Mailbox {
    pub(crate) fn new(waker: Waker) -> Self {
        Self {
            mail: Mutex::default(),
            batches: AtomicUsize::new(0),
            pending: AtomicBool::new(false),
            urgent: Mutex::default(),
            urgent_pending: AtomicBool::new(false),
            waker,
        }
    }

    /// Whether another batch of messages may be posted.
    pub(crate) fn has_room(&self) -> bool {
        self.batches.load(Ordering::Relaxed) < BATCHES
    }

    pub(crate) fn post(&self, mail: Mail) {
        if matches!(mail, Mail::Messages(_)) {
            self.batches.fetch_add(1, Ordering::Relaxed);
        }
        lock(&self.mail).push_back(mail);
        self.wake();
    }

    /// Posts connections, all at once, with one wake-up.
    pub(crate) fn post_all(&self, connections: &mut Vec<Mail>) {
        if connections.is_empty() {
            return;
        }
        lock(&self.mail).extend(connections.drain(..));
        self.wake();
    }

    /// Has the shard look for mail.
    fn wake(&self) {
        if !self.pending.swap(true, Ordering::AcqRel) {
            // A failed wake-up means that the shard is gone, and with it
            // everyone who could miss the mail.
            let _ = self.waker.wake();
        }
    }

    /// Posts the urgent messages that `fill` puts at the end of a list, if there is room.
    pub(crate) fn post_urgent(&self, fill: impl FnOnce(&mut Vec<RemoteMessage>)) {
        let mut urgent = lock(&self.urgent);
        if urgent.len() >= URGENT {
            return;
        }
        let before = urgent.len();
        fill(&mut urgent);
        let is_more = urgent.len() > before;
        drop(urgent);
        if is_more && !self.urgent_pending.swap(true, Ordering::AcqRel) {
            // As above.
            let _ = self.waker.wake();
        }
    }

    /// Whether there may be something for [`Self::take_urgent`]; costs one load.
    #[inline]
    pub(crate) fn has_urgent(&self) -> bool {
        self.urgent_pending.load(Ordering::Acquire)
    }

    /// Moves all urgent messages to `list`, which is empty.
    pub(crate) fn take_urgent(&self, list: &mut Vec<RemoteMessage>) {
        self.urgent_pending.store(false, Ordering::Release);
        std::mem::swap(&mut *lock(&self.urgent), list);
    }

    /// Whether there may be something to take; costs one load.
    #[inline]
    pub(crate) fn is_pending(&self) -> bool {
        self.pending.load(Ordering::Acquire)
    }

    /// Moves all mail to `list`, which is empty.
    pub(crate) fn take(&self, list: &mut VecDeque<Mail>) {
        self.pending.store(false, Ordering::Release);
        std::mem::swap(&mut *lock(&self.mail), list);
        self.batches.store(0, Ordering::Relaxed);
    }
}
