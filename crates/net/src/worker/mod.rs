//! One shard's thread: epoll, input, the broker's state machine, output.
//!
//! A turn handles what has come by each transport, at most once from every connection, and writes to
//! every connection that got something to say once at the end. How a transport reads and writes is
//! behind [`Transport`](crate::transport::Transport).
//!
//! What clients have sent that sent something urgent lately is handled first, and what is urgent is
//! written, most urgent first, before the input of others is handled.
//!
//! All work is done in pieces ([`Transport::receive`](crate::transport::Transport::receive),
//! [`Shard::work`](punctual_broker::Shard::work)). While clients are connected that send something
//! urgent, sockets are asked between pieces after [`Context::slice`], and these clients are read
//! before the next piece; all others have their turn after [`TURN_TIME`]. Where deadlines are
//! promised, messages of admitted flows are handled one at a time, each written before the next is
//! read, the most urgent first. `docs/admission.md` says what bounds assume of that.
//!
//! The parts: [`reading`] (what is handled when), [`mail`] (of other threads), [`pieces`] (how long they
//! take, and the broker's own), [`writing`] (what is written when), [`outputs`] (what the broker asks for).

mod mail;
mod outputs;
mod pieces;
mod reading;
mod transports;
mod writing;

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::mpsc::{Sender, SyncSender};
use std::time::Duration;

use mio::{Events, Poll};
use punctual_broker::{ConnId, Directory, Event, Nanos, Output, RemoteMessage};

use crate::alarm::Alarm;
use crate::load::Load;
use crate::logins::Logins;
use crate::mailbox::Mail;
use crate::overrun::Reports;
use crate::pace::Pace;
use crate::rest::{REST, Rest};
use crate::services::{AdmissionDesk, StoreDesk};
use crate::transport::{Context, TransportKind};
pub(crate) use transports::Transports;
use transports::earliest;

/// A thread that waits for less has not slept: what it waited for was there.
const AWAKE: Nanos = Nanos(3_000);
/// How long one kind of work continues in a turn before the others have theirs.
const TURN_TIME: Nanos = Nanos(1_000_000);
/// When a shard is asked again that had no room for messages of this one.
const BEHIND: Nanos = Nanos(200_000);

/// What a shard thread needs.
pub(crate) struct Worker {
    pub(crate) cx: Context,
    pub(crate) transports: Transports,
    pub(crate) poll: Poll,
    pub(crate) connected: Arc<[AtomicU64]>,
    pub(crate) directory: Arc<Directory>,
    pub(crate) logins: Logins,
    pub(crate) events: SyncSender<Event>,
    pub(crate) admission: Option<Arc<dyn AdmissionDesk>>,
    pub(crate) store: Option<Arc<dyn StoreDesk>>,
    pub(crate) shutdown_timeout: Nanos,
    /// How long to look for events without sleeping, after the last one.
    pub(crate) busy_poll: Nanos,
    pub(crate) state: State,
}

/// What the thread keeps between and within its turns.
pub(crate) struct State {
    /// When sockets are asked between other work.
    asked_events: Option<Events>,
    /// How long a unit of the broker's work takes.
    pace: Pace,
    /// When pieces that took too long were reported.
    reports: Reports,
    /// How much sleep is due under SCHED_FIFO; `None` for an ordinary thread.
    rest: Option<Rest>,
    /// There is to be another turn: a timer or a mailbox was noted in the middle of this one.
    again: bool,
    /// Reused for connections that have something urgent to be written.
    urgent: Vec<ConnId>,
    /// Reused for connections that are written to.
    dirty: Vec<ConnId>,
    /// Reused for those that the broker has something for.
    given: Vec<ConnId>,
    /// Reused for what the broker asks for.
    outputs: Vec<Output>,
    mail: VecDeque<Mail>,
    /// Reused for urgent messages of other shards.
    urgent_mail: Vec<RemoteMessage>,
    /// When it returns at the latest; `None` until it is asked to shut down.
    stop_at: Option<Nanos>,
    /// Until what was sent for connections that are being ended is on its way.
    ending: Option<Sender<Infallible>>,
    /// No other shard has more to send by this one.
    may_return: bool,
}

impl State {
    /// `rest`: of a thread that has real-time priority, if that was allowed.
    pub(crate) fn new(rest: Option<Rest>) -> Self {
        Self {
            asked_events: Some(Events::with_capacity(256)),
            pace: Pace::default(),
            reports: Reports::default(),
            rest,
            again: false,
            urgent: Vec::new(),
            dirty: Vec::new(),
            given: Vec::new(),
            outputs: Vec::new(),
            mail: VecDeque::new(),
            urgent_mail: Vec::new(),
            stop_at: None,
            ending: None,
            may_return: false,
        }
    }
}

/// How the thread waits.
struct Waiting {
    alarm: Alarm,
    load: Load,
    /// Until then it does not sleep.
    busy_until: Nanos,
}

impl Worker {
    /// Serves until asked to shut down.
    pub(crate) fn run(mut self) {
        let mut events = Events::with_capacity(1024);
        let mut waiting = match Alarm::new(&self.cx.registry) {
            Ok(alarm) => Waiting {
                alarm,
                load: Load::default(),
                busy_until: Nanos(0),
            },
            Err(error) => {
                tracing::error!(%error, "the system has no timer, shard stops");
                return;
            }
        };
        loop {
            match self.wait(&mut events, &mut waiting) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                // Nothing but a programming error can make epoll_wait fail;
                // serving on without it would spin.
                Err(error) => {
                    tracing::error!(%error, "waiting for sockets failed, shard stops");
                    return;
                }
            }
            let now = self.cx.asked;
            for event in &events {
                self.transports.note(&mut self.cx, event, now);
            }
            self.act(now);
            self.turn(now);
            if self.is_over(now) {
                self.directory_is_final();
                return;
            }
        }
    }

    /// Waits for something to do, and asks the sockets.
    fn wait(&mut self, events: &mut Events, waiting: &mut Waiting) -> io::Result<()> {
        self.rest();
        let before = self.cx.clock.now();
        if let Some(rest) = &mut self.state.rest {
            rest.worked(before);
        }
        let (directory, counters) = (&self.directory, &self.cx.counters);
        let load = &mut waiting.load;
        load.busy_until(before, directory, counters, self.cx.index);
        let timeout = match self.next_turn(before) {
            Some(at) if at <= before => Some(Duration::ZERO),
            _ if before < waiting.busy_until => Some(Duration::ZERO),
            at => {
                waiting.alarm.set(at.unwrap_or(Nanos::MAX), before);
                None
            }
        };
        self.poll.poll(events, timeout)?;
        let now = self.cx.clock.now();
        if let Some(rest) = &mut self.state.rest {
            rest.slept(now);
        }
        waiting.load.idle_until(now);
        if !events.is_empty() {
            waiting.busy_until = now + self.busy_poll;
        }
        // A thread that has slept was woken by the first event.
        let slept = timeout.is_none() && now - before > AWAKE;
        self.cx.asked_before = if slept { now } else { self.cx.asked };
        self.cx.asked = now;
        Ok(())
    }

    /// One turn, which begins with what was noted.
    fn turn(&mut self, now: Nanos) {
        self.read_urgent_mail();
        self.read_mail();
        self.read_promised();
        for kind in TransportKind::ALL {
            self.read_turn(kind, now.max(self.cx.asked));
        }
        self.work();
        let now = now.max(self.cx.asked);
        self.flush(now);
        // Flushing may have let publishers go on, or ended connections.
        self.act(now);
        self.transports.end_turn(&mut self.cx, now);
        self.keep(now);
        self.post();
        self.state.ending = None;
    }

    /// When the next turn is due, should no socket ask for one earlier.
    fn next_turn(&mut self, now: Nanos) -> Option<Nanos> {
        let (shard, index) = (&self.cx.shard, self.cx.index);
        let mailbox = &self.cx.mailboxes[usize::from(index)];
        if std::mem::take(&mut self.state.again)
            || !self.state.mail.is_empty()
            || mailbox.is_pending()
            || mailbox.has_urgent()
            || self.cx.connections.has_marked()
            || shard.has_outputs()
            || shard.has_dirty()
        {
            return Some(now);
        }
        let mut others = (0..self.cx.mailboxes.len() as u16).filter(|other| *other != index);
        let is_behind = others.any(|other| shard.has_outbox(other));
        let behind = is_behind.then(|| now + BEHIND);
        let own = earliest(shard.next_timeout(), self.state.stop_at);
        earliest(earliest(own, behind), self.transports.next_turn(now))
    }

    /// Sleeps for a moment if the system would otherwise stop the thread for a long one.
    #[inline]
    fn rest(&mut self) {
        if let Some(rest) = &mut self.state.rest {
            rest.worked(self.cx.clock.now());
            if rest.is_due() {
                std::thread::sleep(Duration::from_nanos(REST.0));
                rest.slept(self.cx.clock.now());
            }
        }
    }

    /// Whether the thread was asked to shut down, and has nothing more to do, or no time.
    fn is_over(&mut self, now: Nanos) -> bool {
        let Some(stop_at) = self.state.stop_at else {
            return false;
        };
        self.state.may_return && self.transports.is_idle() || now >= stop_at
    }

    fn directory_is_final(&mut self) {
        let now = self.cx.clock.now();
        self.cx.shard.tick(now + Nanos::from_secs(1));
        self.keep(now);
    }

    /// Hands what is to survive to the store.
    #[inline]
    fn keep(&mut self, now: Nanos) {
        if let Some(store) = &self.store
            && let Some(operations) = self.cx.shard.take_operations(now)
        {
            store.post(self.cx.index, operations);
        }
    }
}
