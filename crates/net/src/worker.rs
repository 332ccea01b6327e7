//! One shard's thread: epoll, reads, the broker's state machine, writes.
//!
//! A turn reads at most once from every socket that has something, handles
//! every packet of it, and flushes every connection that got something to say
//! once at the end. Sockets are registered once, edge-triggered for both
//! directions; a short read or write says that the edge is used up, so at low
//! load a message costs three system calls: wait, read, write.
//!
//! Clients that sent something urgent lately are read first, and what is urgent
//! is written, most urgent first, before other clients are read. A turn reads
//! a bounded number of bytes, so that what becomes urgent meanwhile waits for
//! no more than that.
//!
//! All work is done in pieces ([`PIECE`], [`Shard::work`]). While clients are connected that send
//! something urgent, sockets are asked between them after [`Worker::slice`], and these clients are read
//! before the next piece; all others have their turn after [`TURN_TIME`]. Where deadlines are
//! promised, messages of admitted flows are handled one at a time, each written before the next is
//! read, the most urgent first. `docs/admission.md` says what bounds assume of that.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io::{self, IoSlice, Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Sender, SyncSender};
use std::time::Duration;

use bytes::Bytes;
use mio::event::Event as MioEvent;
use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token};
use punctual_broker::{
    Budget, Class, ConnId, Event, Flow, LinkLimits, Nanos, Need, Output, Ready, RemoteMessage,
    Scope, Shard,
};

use crate::alarm::{ALARM, Alarm};
use crate::clock::Clock;
use crate::counters::Counters;
use crate::layer::{Layer, Received as LayerReceived};
use crate::lingering::{LINGER, Lingering};
use crate::load::Load;
use crate::logins::Logins;
use crate::mailbox::{Connection, Mail, Mailbox, WAKE};
use crate::marking::Marking;
use crate::overrun::{Piece, Reports};
use crate::pace::Pace;
use crate::quic::{QUIC, Quic};
use crate::rest::{REST, Rest};
use crate::services::{AdmissionDesk, StoreDesk, StoreNews};
use crate::shared::Shared;
use crate::tcp::{TcpOptions, acknowledge, read_behind, takes_more};
use crate::udp::{UDP, Udp};
use crate::unwritten::Unwritten;

/// What comes from a neighbour within this after something else has TCP's acknowledgement sent once
/// it is handled: the broker's own is not before several have come.
const APART: Nanos = Nanos::from_millis(5);

/// Shared read buffer: how much is read from one socket in one turn. With half as much, a message
/// to a neighbour took a tenth more of the processor, by what follows from each call.
const READ: usize = 512 << 10;
/// An incomplete packet above this size gets a buffer of its own.
const OWN_BUFFER: usize = 64 << 10;
/// How much such a buffer grows ahead of what has arrived.
const GROW: usize = 256 << 10;
/// Wire bytes of a layered connection that are made ahead of the socket.
const WIRE: usize = 64 << 10;
/// Bytes that are read in one turn before sockets are asked again.
const TURN: usize = 512 << 10;
/// Who waits for less has not slept: what it waited for was there.
const AWAKE: Nanos = Nanos(3_000);
/// Reads after which the clock is looked at.
const AT_A_TIME: usize = 8;
/// Messages of another shard that are delivered at once.
const AT_ONCE_REMOTE: usize = 32;
/// How long one kind of work goes on in a turn before the others have theirs.
const TURN_TIME: Nanos = Nanos(1_000_000);
/// For so long after a client has sent something urgent there may be more of it.
const URGENT: Nanos = Nanos::from_secs(2);
/// Bytes that are written in one call to a client that is sent nothing urgent.
const WRITE: usize = 512 << 10;
/// Where deadlines are promised: bytes that are read or written in one call, instead. Also
/// what is read in one where much waits already, by [`WAITING`].
const CALL: usize = 256 << 10;
/// One in so many of the bytes that may wait to be handled is much.
const WAITING: usize = 8;
/// Where deadlines are promised: bytes of one client that are handled before the
/// clock is looked at.
const PIECE: usize = 32 << 10;
/// The same elsewhere: what is handled in a row costs less.
const LONG_PIECE: usize = 128 << 10;
/// Bytes that are read at a time from who sends messages of admitted flows.
const AT_ONCE: usize = 16 << 10;
/// Messages of admitted flows after which everything else has a turn, whatever comes.
const PROMISED: usize = 4096;
/// Tokens of lingering connections have this bit set.
const LINGERING: usize = 1 << 40;

/// A connection of this thread.
struct Link {
    id: ConnId,
    listener: u16,
    stream: TcpStream,
    /// `None`: bytes pass through unchanged.
    layer: Option<Box<Layer>>,
    /// Application bytes received and not consumed.
    unread: Vec<u8>,
    /// Bytes of the packet that `unread` begins with, as far as that is known; less than all of them
    /// are there. Else 0.
    needed: u32,
    /// What was read last was of a large packet.
    sends_large: bool,
    /// Wire bytes made and not written (layered connections).
    wire: Unwritten,
    /// The socket may have something to read.
    readable: bool,
    /// The peer has closed its side: read until the end shows.
    closing: bool,
    /// The end was read: the peer has closed its side, and nothing of it is left in the kernel.
    ended: bool,
    /// The socket takes no more for now.
    blocked: bool,
    /// The broker does not want to read.
    paused: bool,
    /// In the list of links to read from.
    listed: bool,
    /// In the list of links to write to. It must not be there twice: each entry puts it back while it
    /// has more to be written, so that entries would multiply.
    dirty: bool,
    /// There is more to be handled of what was read.
    again: bool,
    /// The class that the socket is marked with.
    class: Class,
    /// The socket is set up for what is urgent.
    tuned: bool,
    /// When what can be read came, at the earliest: the socket was empty before.
    arrived: Nanos,
    /// What came last from a neighbour is not acknowledged yet: nothing went the other way since.
    owes_ack: bool,
    /// When something came from a neighbour last.
    read_at: Nanos,
}

/// Why a connection ends whose client does not wait for CONNACK.
const LEFT: &str = "connection closed by peer before CONNACK";

impl Link {
    /// Has it read from, unless it is paused.
    fn list(&mut self, ready: &mut Ready, shard: &Shard) {
        if !self.paused && !self.listed {
            self.listed = true;
            ready.push(self.id.slot, shard.need(self.id));
        }
    }

    /// Whether the peer has closed its side, and everything that it sent was handled. What lies under
    /// a layer cannot tell.
    fn has_left(&self) -> bool {
        self.closing
            && self.layer.is_none()
            && self.unread.is_empty()
            && matches!(self.stream.peek(&mut [0]), Ok(0))
    }

    /// Whether its client has left while it waits for the answer whether it is who it says.
    fn gives_up(&self, shard: &Shard) -> bool {
        self.paused && self.has_left() && shard.is_proving(self.id)
    }

    /// Marks it as one of those to be written to; false if it was.
    fn becomes_dirty(&mut self) -> bool {
        !std::mem::replace(&mut self.dirty, true)
    }
}

/// What a shard thread needs.
pub(crate) struct Worker {
    pub(crate) index: u16,
    pub(crate) shard: Shard,
    pub(crate) udp: Udp,
    pub(crate) quic: Quic,
    pub(crate) shared: Arc<Shared>,
    pub(crate) poll: Poll,
    pub(crate) clock: Clock,
    pub(crate) mailboxes: Arc<[Mailbox]>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) connected: Arc<[AtomicU64]>,
    pub(crate) directory: Arc<punctual_broker::Directory>,
    pub(crate) logins: Logins,
    pub(crate) events: SyncSender<Event>,
    pub(crate) admission: Option<Arc<dyn AdmissionDesk>>,
    pub(crate) store: Option<Arc<dyn StoreDesk>>,
    pub(crate) max_unread: usize,
    pub(crate) shutdown_timeout: Nanos,
    pub(crate) tcp: TcpOptions,
    pub(crate) marking: Marking,
    /// How long pieces of other work are done before sockets are asked again, while there may be
    /// something urgent. Asking costs half a microsecond.
    pub(crate) slice: Nanos,
    /// The thread has real-time priority, if that was allowed.
    pub(crate) is_realtime: bool,
    /// How long to look for events without sleeping, after the last one.
    pub(crate) busy_poll: Nanos,
}

pub(crate) struct State {
    /// Boxed: growing the list moves one word a connection.
    links: Vec<Option<Box<Link>>>,
    lingering: Vec<Option<Lingering>>,
    /// Slots of links to read from.
    ready: Ready,
    /// Deadlines are promised here.
    promises: bool,
    /// Little is read at a time: it is between other work.
    brief: bool,
    /// Until when something urgent may come.
    urgent_until: Nanos,
    /// When sockets were asked last.
    asked: Nanos,
    /// When they were asked before that: what they have now came later.
    asked_before: Nanos,
    /// Of these, when they were asked between other work.
    events: Option<Events>,
    /// How long a unit of the broker's work takes.
    pace: Pace,
    /// When pieces that took too long were reported.
    reports: Reports,
    /// How much sleep is due under SCHED_FIFO; `None` for an ordinary thread.
    rest: Option<Rest>,
    /// They have said what is not done at once: there is to be another turn.
    again: bool,
    urgent: Vec<ConnId>,
    /// Links to write to.
    dirty: Vec<ConnId>,
    /// Reused for those that the broker has something for.
    given: Vec<ConnId>,
    /// Links to neighbours that were read from, and may owe an acknowledgement.
    owing: Vec<ConnId>,
    outputs: Vec<Output>,
    mail: VecDeque<Mail>,
    /// Reused for urgent messages of other shards.
    urgent_mail: Vec<RemoteMessage>,
    buffer: Box<[u8]>,
    app: Vec<u8>,
    /// Bytes in `unread` buffers of all links.
    unread: usize,
    /// When it returns at the latest; `None` until it is told to shut down.
    stop_at: Option<Nanos>,
    /// Until what was sent for connections that are being ended is on its way.
    ending: Option<Sender<Infallible>>,
    /// No other shard has more to send by this one.
    may_return: bool,
}

impl Worker {
    /// Serves until told to shut down.
    pub(crate) fn run(mut self) {
        let promises = self.shard.promises();
        let mut state = State {
            links: Vec::new(),
            lingering: Vec::new(),
            ready: Ready::default(),
            promises,
            brief: false,
            urgent_until: Nanos(0),
            asked: Nanos(0),
            asked_before: Nanos(0),
            events: Some(Events::with_capacity(256)),
            pace: Pace::default(),
            reports: Reports::default(),
            rest: self.is_realtime.then(|| Rest::new(self.clock.now())),
            again: false,
            urgent: Vec::new(),
            dirty: Vec::new(),
            given: Vec::new(),
            owing: Vec::new(),
            outputs: Vec::new(),
            mail: VecDeque::new(),
            urgent_mail: Vec::new(),
            buffer: vec![0; if promises { CALL } else { READ }].into_boxed_slice(),
            app: Vec::new(),
            unread: 0,
            stop_at: None,
            ending: None,
            may_return: false,
        };
        let mut events = Events::with_capacity(1024);
        let mut alarm = match Alarm::new(self.poll.registry()) {
            Ok(alarm) => alarm,
            Err(error) => {
                tracing::error!(%error, "the system has no timer, shard stops");
                return;
            }
        };
        let mut load = Load::default();
        let mut next_linger_check = Nanos::MAX;
        let mut busy_until = Nanos(0);
        loop {
            self.rest(&mut state);
            let before = self.clock.now();
            if let Some(rest) = &mut state.rest {
                rest.worked(before);
            }
            load.busy_until(before, &self.directory, &self.counters, self.index);
            let timeout = match self.next_turn(&mut state, before, next_linger_check) {
                Some(at) if at <= before => Some(Duration::ZERO),
                _ if before < busy_until => Some(Duration::ZERO),
                at => {
                    alarm.set(at.unwrap_or(Nanos::MAX), before);
                    None
                }
            };
            match self.poll.poll(&mut events, timeout) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                // Nothing but a programming error can make epoll_wait fail;
                // serving on without it would spin.
                Err(error) => {
                    tracing::error!(%error, "waiting for sockets failed, shard stops");
                    return;
                }
            }
            let now = self.clock.now();
            if let Some(rest) = &mut state.rest {
                rest.slept(now);
            }
            load.idle_until(now);
            if !events.is_empty() {
                busy_until = now + self.busy_poll;
            }
            // Who has slept was woken by what came first.
            let slept = timeout.is_none() && now - before > AWAKE;
            state.asked_before = if slept { now } else { state.asked };
            state.asked = now;
            for event in &events {
                self.note(&mut state, event, now);
            }
            self.read_urgent_mail(&mut state);
            self.read_mail(&mut state);
            self.read_promised(&mut state);
            let now = now.max(state.asked);
            if !self.udp.listeners.is_empty() {
                self.udp_turn(&mut state, now);
            }
            if !self.quic.is_off() {
                let now = self.clock.now();
                self.quic_turn(&mut state, now);
            }
            self.flush_urgent(&mut state);
            self.read_others(&mut state, now);
            self.work(&mut state);
            let now = now.max(state.asked);
            self.flush(&mut state, now);
            // Flushing may have let publishers go on, or ended connections.
            self.act(&mut state, now);
            state.acknowledge();
            self.keep(now);
            self.post();
            state.ending = None;
            if !state.lingering.is_empty() && now >= next_linger_check.min(now + LINGER) {
                state.drop_lingering(now);
            }
            next_linger_check = if state.lingering.iter().any(Option::is_some) {
                now + Nanos::from_millis(500)
            } else {
                state.lingering.clear();
                Nanos::MAX
            };
            if let Some(stop_at) = state.stop_at
                && ((state.may_return && state.lingering.is_empty() && self.quic.is_idle())
                    || now >= stop_at)
            {
                self.directory_is_final();
                return;
            }
        }
    }

    /// Handles messages of admitted flows, one after the other, the most urgent of
    /// those that are there first.
    #[inline]
    fn read_promised(&mut self, state: &mut State) {
        // Most turns have none, and are to run through little code.
        if state.ready.has_promised() {
            self.read_all_promised(state);
        }
    }

    #[inline(never)]
    fn read_all_promised(&mut self, state: &mut State) {
        for _ in 0..PROMISED {
            let Some(slot) = state.ready.pop_promised() else {
                break;
            };
            let now = self.clock.now();
            self.read(state, slot, now);
            self.flush_urgent(state);
            self.read_urgent_mail(state);
            self.ask(state);
        }
    }

    /// Handles mail that has come, as much as one turn has time for.
    fn read_mail(&mut self, state: &mut State) {
        let mailbox = &self.mailboxes[usize::from(self.index)];
        if state.mail.is_empty() && mailbox.is_pending() {
            mailbox.take(&mut state.mail);
        }
        let until = state.asked + TURN_TIME;
        let mut now = self.clock.now();
        while let Some(mail) = state.mail.pop_front() {
            self.handle(state, mail, now);
            // Before the next mail: it may bring a connection that gets
            // the slot of one that was just ended.
            now = self.end_mail(state, now);
            if now >= until {
                break;
            }
        }
    }

    /// Ends a piece of mail that began at a time; returns when the next one may begin.
    fn end_mail(&mut self, state: &mut State, began: Nanos) -> Nanos {
        self.act(state, began);
        self.took(state, Piece::Mail, began, None);
        self.flush_urgent(state);
        self.give_way(state);
        self.clock.now()
    }

    /// Does what is due and what the broker does in slices, as much as one turn has time for.
    #[inline]
    fn work(&mut self, state: &mut State) {
        // Most turns have nothing.
        if self.shard.has_work(state.asked) {
            self.work_in_slices(state);
        }
    }

    #[inline(never)]
    fn work_in_slices(&mut self, state: &mut State) {
        let begun = self.clock.now();
        let mut now = begun;
        loop {
            let mut budget = Budget::new(state.pace.units(self.slice));
            let Some(work) = self.shard.work(now, &mut budget) else {
                break;
            };
            let then = self.took(state, Piece::Work(work), now, None);
            state.pace.learn(budget.spent(), then - now);
            let overruns = &self.counters.overruns;
            overruns.note_units(Piece::Work(work), budget.spent());
            self.act(state, then);
            self.flush_urgent(state);
            self.give_way(state);
            now = self.clock.now();
            if now >= begun + TURN_TIME {
                break;
            }
        }
    }

    /// A piece of work that began at a time is done, for that connection if for one. Returns the
    /// time.
    fn took(
        &mut self,
        state: &mut State,
        piece: Piece,
        began: Nanos,
        conn: Option<ConnId>,
    ) -> Nanos {
        let now = self.clock.now();
        let limit = match state.is_watched() {
            true => self.slice + self.slice,
            false => TURN_TIME,
        };
        let is_over = self.counters.overruns.note(piece, now - began, limit);
        if is_over && state.is_watched() && state.reports.is_due(piece, now) {
            self.shard.overran(piece.name(), now - began, conn, now);
        }
        now
    }

    /// Does a piece of work, and then lets clients go first that have sent something urgent.
    pub(crate) fn piece(
        &mut self,
        state: &mut State,
        piece: Piece,
        work: impl FnOnce(&mut Self, &mut State),
    ) {
        let began = state.is_watched().then(|| self.clock.now());
        work(self, state);
        if let Some(began) = began {
            self.took(state, piece, began, None);
        }
        self.give_way(state);
    }

    /// Lets clients go first that have sent something urgent since sockets were asked, if that
    /// was long ago. To be called after each piece of other work.
    #[inline]
    fn give_way(&mut self, state: &mut State) {
        if self.is_interrupted(state) || state.ready.has_promised() {
            self.read_urgent_mail(state);
            self.read_all_promised(state);
            self.read_urgent(state);
        }
    }

    /// Whether something urgent may have come since sockets were asked, if that was long ago.
    fn is_interrupted(&mut self, state: &mut State) -> bool {
        // Most brokers have no such clients, and do not look at the clock for them.
        if !state.is_watched() {
            return false;
        }
        let now = self.clock.now();
        if now < state.asked + self.slice {
            return false;
        }
        if !state.promises && now >= state.urgent_until {
            state.urgent_until = Nanos(0);
            return false;
        }
        self.ask(state);
        let mailbox = &self.mailboxes[usize::from(self.index)];
        let is_urgent =
            state.ready.has_promised() || state.ready.urgent() > 0 || mailbox.has_urgent();
        if !is_urgent {
            self.rest(state);
        }
        is_urgent
    }

    /// Sleeps for a moment if the system would otherwise stop the thread for a long one.
    #[inline]
    fn rest(&mut self, state: &mut State) {
        if let Some(rest) = &mut state.rest {
            rest.worked(self.clock.now());
            if rest.is_due() {
                std::thread::sleep(Duration::from_nanos(REST.0));
                rest.slept(self.clock.now());
            }
        }
    }

    /// Reads a little from clients that sent something urgent lately and have something: who sends
    /// very much of it does not keep the others from their turn for longer than they do.
    fn read_urgent(&mut self, state: &mut State) {
        let mut now = self.clock.now();
        let until = now + self.slice;
        state.brief = true;
        for _ in 0..state.ready.urgent() {
            if now >= until {
                break;
            }
            if let Some(slot) = state.ready.pop_urgent() {
                state.urgent_until = now + URGENT;
                self.read(state, slot, now);
                self.flush_urgent(state);
                now = self.clock.now();
            }
        }
        state.brief = false;
    }

    /// Asks sockets without waiting.
    fn ask(&mut self, state: &mut State) {
        let Some(mut events) = state.events.take() else {
            return;
        };
        // What fails here fails where the turn waits, which deals with it.
        if self.poll.poll(&mut events, Some(Duration::ZERO)).is_ok() {
            let now = self.clock.now();
            (state.asked_before, state.asked) = (state.asked, now);
            for event in &events {
                state.again |= event.token().0 >= LINGERING;
                self.note(state, event, now);
            }
        }
        state.events = Some(events);
    }

    /// Reads from clients that have something, once from each at most: first from
    /// those that sent something urgent lately.
    fn read_others(&mut self, state: &mut State, now: Nanos) {
        let until = now + TURN_TIME;
        for _ in 0..state.ready.urgent() {
            if let Some(slot) = state.ready.pop_urgent() {
                state.urgent_until = now + URGENT;
                self.read(state, slot, now.max(state.asked));
                self.give_way(state);
            }
        }
        self.flush_urgent(state);
        let mut read = 0;
        // Those not reached keep their turn.
        for count in 1..=state.ready.plain() {
            if read >= TURN || count % AT_A_TIME == 0 && self.clock.now() >= until {
                break;
            }
            if let Some(slot) = state.ready.pop_plain() {
                read += self.read(state, slot, now.max(state.asked));
                self.flush_urgent(state);
                self.give_way(state);
            }
        }
    }

    fn directory_is_final(&mut self) {
        let now = self.clock.now();
        self.shard.tick(now + Nanos::from_secs(1));
        self.keep(now);
    }

    /// Hands what is to survive to the store.
    #[inline]
    fn keep(&mut self, now: Nanos) {
        if let Some(store) = &self.store
            && let Some(operations) = self.shard.take_operations(now)
        {
            store.post(self.index, operations);
        }
    }

    /// When the next turn is due, should no socket ask for one earlier.
    fn next_turn(&mut self, state: &mut State, now: Nanos, linger: Nanos) -> Option<Nanos> {
        let mailbox = &self.mailboxes[usize::from(self.index)];
        if std::mem::take(&mut state.again)
            || !state.mail.is_empty()
            || mailbox.is_pending()
            || mailbox.has_urgent()
            || !state.ready.is_empty()
            || !state.dirty.is_empty()
            || self.shard.has_outputs()
            || self.shard.has_dirty()
        {
            return Some(now);
        }
        let mut at = self.shard.next_timeout().unwrap_or(Nanos::MAX).min(linger);
        if let Some(due) = self.udp.next_turn(now) {
            at = at.min(due);
        }
        if let Some(due) = self.quic.next_turn(now) {
            at = at.min(due);
        }
        if let Some(stop_at) = state.stop_at {
            at = at.min(stop_at);
        }
        let mut others = (0..self.mailboxes.len() as u16).filter(|other| *other != self.index);
        if others.any(|other| self.shard.has_outbox(other)) {
            // The other shard is behind; try again soon.
            at = at.min(now + Nanos(200_000));
        }
        (at < Nanos::MAX).then_some(at)
    }

    fn note(&mut self, state: &mut State, event: &MioEvent, now: Nanos) {
        let token = event.token();
        if token == WAKE || token == ALARM {
            return;
        }
        if token.0 & LINGERING != 0 {
            state.write_lingering(token.0 & !LINGERING);
            return;
        }
        if token.0 & UDP != 0 {
            let readable = event.is_readable() || event.is_error();
            self.udp.note(token.0, readable, event.is_writable());
            return;
        }
        if token.0 & QUIC != 0 {
            let readable = event.is_readable() || event.is_error();
            let registry = self.poll.registry();
            self.quic
                .note(token.0, readable, event.is_writable(), registry);
            return;
        }
        let Some(link) = state.links.get_mut(token.0).and_then(Option::as_deref_mut) else {
            return;
        };
        // Nothing that comes can be read while it is paused; else what came before the
        // error counts, a DISCONNECT above all, and reading ends with the error.
        if event.is_error() && link.paused {
            let id = link.id;
            let why = match link.stream.take_error() {
                Ok(Some(error)) => error.to_string(),
                _ => "connection error".to_owned(),
            };
            self.lose(state, id, &why, now);
            return;
        }
        let closing = event.is_read_closed() || event.is_error();
        link.closing |= closing;
        if link.gives_up(&self.shard) {
            let id = link.id;
            self.lose(state, id, LEFT, now);
            return;
        }
        if event.is_readable() || closing {
            if !link.readable {
                link.arrived = state.asked_before;
            }
            link.readable = true;
            link.list(&mut state.ready, &self.shard);
        }
        if event.is_writable() && link.blocked {
            link.blocked = false;
            if link.becomes_dirty() {
                state.dirty.push(link.id);
            }
        }
    }

    fn handle(&mut self, state: &mut State, mail: Mail, now: Nanos) {
        match mail {
            Mail::Connection(connection) => self.adopt(state, *connection, None, now),
            Mail::Link(connection, peer, limits) => {
                self.adopt(state, *connection, Some((peer, limits)), now);
            }
            Mail::Messages(messages) => self.remote(state, messages, now),
            Mail::Authenticated(id, answer) => self.shard.authenticated(id, answer, now),
            Mail::Call(call) => call(&mut self.shard, now),
            Mail::Stored(StoreNews::Committed(ticket)) => self.shard.committed(ticket, now),
            Mail::Stored(StoreNews::Failed(trouble)) => self.shard.store_failed(trouble, now),
            Mail::Stored(StoreNews::Full(why)) => self.shard.store_full(why, now),
            Mail::Udp(mail) => self.udp_mail(state, mail, now),
            Mail::Quic(mail) => self.quic_mail(state, mail, now),
            Mail::ShutDown(ending) => {
                state.stop_at = Some(now + self.shutdown_timeout);
                state.ending = Some(ending);
                self.quic.stop();
                self.shard.shut_down(now);
            }
            Mail::Return => state.may_return = true,
        }
    }

    /// Delivers messages of another shard, a few at a time.
    fn remote(&mut self, state: &mut State, messages: Vec<RemoteMessage>, mut now: Nanos) {
        let mut messages = messages.into_iter();
        loop {
            self.shard
                .remote(messages.by_ref().take(AT_ONCE_REMOTE), now);
            if messages.as_slice().is_empty() {
                return;
            }
            now = self.end_mail(state, now);
        }
    }

    /// Delivers urgent messages of other shards, the most urgent first, each written before the next
    /// one is handled.
    #[inline]
    fn read_urgent_mail(&mut self, state: &mut State) {
        if self.mailboxes[usize::from(self.index)].has_urgent() {
            self.read_all_urgent_mail(state);
        }
    }

    #[inline(never)]
    fn read_all_urgent_mail(&mut self, state: &mut State) {
        let mut messages = std::mem::take(&mut state.urgent_mail);
        self.mailboxes[usize::from(self.index)].take_urgent(&mut messages);
        messages.sort_by_key(RemoteMessage::rank);
        for message in messages.drain(..) {
            let now = self.clock.now();
            state.urgent_until = now + URGENT;
            self.shard.remote(std::iter::once(message), now);
            self.flush_urgent(state);
            self.act(state, now);
        }
        state.urgent_mail = messages;
    }

    /// Takes a connection; with `link`, one to that broker.
    fn adopt(
        &mut self,
        state: &mut State,
        connection: Connection,
        link: Option<(Box<str>, LinkLimits)>,
        now: Nanos,
    ) {
        let Connection {
            stream,
            meta,
            layer,
            unread,
            unwritten,
            class,
            tuned,
        } = connection;
        let mut stream = TcpStream::from_std(stream);
        let listener = meta.listener;
        let id = match link {
            Some((peer, limits)) => self.shard.open_link(*meta, &peer, limits, now),
            None => self.shard.open(*meta, now),
        };
        let registered = self.poll.registry().register(
            &mut stream,
            Token(id.slot as usize),
            Interest::READABLE | Interest::WRITABLE,
        );
        if let Err(error) = registered {
            self.shard.closed(id, &error.to_string(), now);
            self.counters.closed(listener);
            return;
        }
        let slot = id.slot as usize;
        if state.links.len() <= slot {
            state.links.resize_with(slot + 1, || None);
        }
        state.unread += unread.len();
        let refeed = !unread.is_empty();
        let dirty = !unwritten.rest().is_empty();
        if dirty {
            state.dirty.push(id);
        }
        state.links[slot] = Some(Box::new(Link {
            id,
            listener,
            stream,
            layer: (!layer.is_plain()).then(|| Box::new(layer)),
            unread,
            needed: 0,
            sends_large: false,
            wire: unwritten,
            readable: refeed,
            closing: false,
            ended: false,
            blocked: false,
            paused: false,
            listed: refeed,
            dirty,
            again: false,
            class,
            tuned,
            arrived: now,
            owes_ack: false,
            read_at: Nanos(0),
        }));
        if refeed {
            state.ready.push(id.slot, self.shard.need(id));
        }
    }

    /// Reads once from a link, or hands in again what was not consumed, and
    /// lets the broker handle it. Returns how many bytes that were.
    fn read(&mut self, state: &mut State, slot: u32, now: Nanos) -> usize {
        let began = state.is_watched().then(|| self.clock.now());
        let link = state.links.get(slot as usize).and_then(Option::as_deref);
        let conn = link.map(|link| link.id);
        let mut buffer = std::mem::take(&mut state.buffer);
        let mut app = std::mem::take(&mut state.app);
        let consumed = self.read_into(state, slot, &mut buffer, &mut app, now);
        (state.buffer, state.app) = (buffer, app);
        if let Some(began) = began {
            self.took(state, Piece::Read, began, conn);
        }
        consumed
    }

    fn read_into(
        &mut self,
        state: &mut State,
        slot: u32,
        buffer: &mut [u8],
        app: &mut Vec<u8>,
        now: Nanos,
    ) -> usize {
        let State {
            links,
            unread: total_unread,
            dirty,
            owing,
            ..
        } = state;
        let Some(link) = links.get_mut(slot as usize).and_then(Option::as_deref_mut) else {
            return 0;
        };
        link.listed = false;
        // Who does not take what it is sent is not read from: its handshakes,
        // pings and requests would only make more to send.
        if link.paused || link.wire.rest().len() > WIRE {
            return 0;
        }
        let (id, arrived) = (link.id, link.arrived);
        *total_unread -= link.unread.len();

        // Where the bytes end up: the shared buffer after what was left over,
        // or the link's own buffer for a large packet.
        let mut own = std::mem::take(&mut link.unread);
        let before = own.len();
        let plain = link.layer.is_none();
        let needed = std::mem::take(&mut link.needed) as usize;
        let use_own = plain && before > 0 && before.max(needed) > OWN_BUFFER;
        // What is not handled, since the client has to wait, is of that.
        let most = match *total_unread + READ <= self.max_unread / WAITING {
            true => buffer.len(),
            false => buffer.len().min(CALL),
        };
        let space = match (plain, use_own) {
            // Up to the end of the packet, so that receivers can share this buffer.
            (true, true) => match needed.saturating_sub(before) {
                0 => GROW,
                missing => missing.min(GROW),
            },
            // What remains of it is copied after each message.
            _ if state.brief || matches!(self.shard.need(id), Need::Promised(_)) => AT_ONCE,
            // The shared buffer is copied to the packet's own one: little is read of the beginning.
            (true, false) if link.sends_large => AT_ONCE,
            (true, false) => most - before,
            (false, _) => most,
        };
        if plain && !use_own {
            buffer[..before].copy_from_slice(&own);
        }
        let outcome = if std::mem::take(&mut link.again) {
            Err(io::ErrorKind::Interrupted.into())
        } else if use_own {
            make_room(&mut own, space, needed);
            read_behind(&link.stream, &mut own, space)
        } else if plain {
            link.stream.read(&mut buffer[before..before + space])
        } else {
            link.stream.read(&mut buffer[..space])
        };
        let mut lost: Option<String> = None;
        let n = match outcome {
            Ok(0) => {
                link.ended = true;
                lost = Some("connection closed by peer".into());
                0
            }
            Ok(n) => {
                link.readable = n == space || link.closing;
                n
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                link.readable = false;
                0
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => 0,
            Err(error) => {
                lost = Some(error.to_string());
                0
            }
        };

        let complete = use_own && own.len() == needed;
        let whole = complete.then(|| Bytes::from(std::mem::take(&mut own)));
        link.sends_large = use_own;
        let data: &[u8] = if let Some(whole) = &whole {
            whole
        } else if use_own {
            &own
        } else if plain {
            &buffer[..before + n]
        } else {
            app.clear();
            app.extend_from_slice(&own);
            if n > 0 {
                let layer = link.layer.as_mut().expect("checked above");
                let before = link.wire.rest().len();
                let result = layer.received(&buffer[..n], app, link.wire.end());
                if link.wire.rest().len() > before && link.becomes_dirty() {
                    dirty.push(id);
                }
                link.wire.release();
                match result {
                    Ok(LayerReceived::Open) => {}
                    Ok(LayerReceived::Ended) => {
                        lost = Some("connection closed by peer".into());
                    }
                    Err(error) => {
                        self.counters.layer_errors.fetch_add(1, Ordering::Relaxed);
                        lost = Some(error.to_string());
                    }
                }
            }
            app
        };
        if n > 0 && self.shard.is_link(id) {
            let follows = now < link.read_at + APART;
            link.read_at = now;
            // Else there is soon an answer, or the next message, which takes that of TCP along.
            if follows || data.first().is_some_and(|byte| is_unanswered(*byte)) {
                link.owes_ack = true;
                owing.push(id);
            }
        }

        let mut flow = Flow::Read;
        // Fewer bytes than this are no complete packet.
        let known = needed;
        let (mut consumed, mut needed) = (0, 0);
        // Whether there is more to be handled, after what is more urgent.
        let mut again = false;
        let (mut end, mut more) = (0, false);
        while end < data.len() || more {
            if !more {
                end = data.len().min(match state.promises {
                    true => end + PIECE,
                    false => end + LONG_PIECE,
                });
                end = end.max(known.min(data.len()));
            }
            let now = now.max(state.asked);
            let received = match &whole {
                Some(whole) => self.shard.receive_whole(id, whole, arrived, now),
                None => (self.shard).receive_promised(id, &data[consumed..end], arrived, now),
            };
            consumed += received.consumed;
            (flow, needed, more) = (received.flow, received.needed, received.more);
            again = consumed < data.len()
                && (received.promised || (end < data.len() || more) && self.is_interrupted(state));
            if flow != Flow::Read || again {
                break;
            }
        }
        let rest = data.len() - consumed;
        let State {
            links,
            ready,
            unread: total_unread,
            ..
        } = state;
        let link = links.get_mut(slot as usize).and_then(Option::as_deref_mut);
        let Some(link) = link.filter(|link| link.id == id) else {
            return consumed;
        };
        if flow == Flow::Closed {
            // The broker's outputs say what becomes of the link; what a
            // handover needs is kept.
            link.unread = data[consumed..].to_vec();
            *total_unread += rest;
            return consumed;
        }
        if rest > 0 {
            if *total_unread + rest > self.max_unread {
                link.unread = Vec::new();
                self.counters
                    .receive_memory_exceeded
                    .fetch_add(1, Ordering::Relaxed);
                let why = "limits.max_receive_bytes of incomplete packets reached";
                self.lose(state, id, why, now);
                return consumed;
            }
            link.unread = match whole {
                Some(whole) => whole.slice(consumed..).into(),
                None if use_own => {
                    own.drain(..consumed);
                    own
                }
                None => {
                    let mut left = Vec::with_capacity(rest.max(needed.min(OWN_BUFFER)));
                    left.extend_from_slice(&data[consumed..]);
                    left
                }
            };
            link.needed = u32::try_from(needed).unwrap_or(0);
            *total_unread += rest;
        }
        if link.layer.as_ref().is_some_and(|layer| layer.is_plain()) {
            link.layer = None;
        }
        // What came before the end is handled first; the end shows again.
        if let Some(why) = lost.filter(|_| !again) {
            self.lose(state, id, &why, now);
            return consumed;
        }
        link.paused = flow == Flow::Pause;
        link.again = again;
        if link.gives_up(&self.shard) {
            self.lose(state, id, LEFT, now);
            return consumed;
        }
        if link.readable || again {
            link.list(ready, &self.shard);
        }
        consumed
    }

    /// Tells the broker that a connection is gone; its answer closes it.
    fn lose(&mut self, state: &mut State, id: ConnId, why: &str, now: Nanos) {
        self.shard.closed(id, why, now);
        self.act(state, now);
    }

    /// Does what the broker asks for.
    #[inline]
    pub(crate) fn act(&mut self, state: &mut State, now: Nanos) {
        if self.shard.has_outputs() {
            self.act_on_all(state, now);
        }
    }

    #[inline(never)]
    fn act_on_all(&mut self, state: &mut State, now: Nanos) {
        while self.shard.has_outputs() {
            let mut outputs = std::mem::take(&mut state.outputs);
            self.shard.take_outputs(&mut outputs);
            for output in outputs.drain(..) {
                match output {
                    Output::Close { conn, tail } => self.close(state, conn, tail, now),
                    Output::Resume(conn) => {
                        if let Some((link, ready)) = state.link_and_ready(conn) {
                            link.paused = false;
                            // Nothing is promised for the time in which it was not read.
                            link.arrived = now;
                            if link.readable || !link.unread.is_empty() {
                                link.list(ready, &self.shard);
                            }
                        } else if self.quic.has(conn) {
                            self.quic_resume(conn);
                        } else {
                            self.udp_resume(conn, now);
                        }
                    }
                    Output::Handover { conn, shard, meta } => {
                        if let Some(link) = state.remove(conn) {
                            self.hand_over(link, shard, meta);
                        } else if self.quic.has(conn) {
                            self.quic_hand_over(state, conn, shard, meta, now);
                        } else {
                            self.udp_hand_over(conn, shard, meta);
                        }
                    }
                    Output::Authenticate(request) => {
                        let conn = request.conn;
                        if !self.logins.ask(self.index, request) {
                            let answer = punctual_broker::AuthAnswer::Deny {
                                reason: punctual_codec::ReasonCode::ServerBusy,
                            };
                            self.shard.authenticated(conn, answer, now);
                        }
                    }
                    Output::Admission(request) => {
                        if let Some(desk) = &self.admission {
                            desk.ask(self.index, *request);
                        }
                    }
                    Output::Event(event) => {
                        if self.events.try_send(event).is_err() {
                            self.counters.events_lost.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                }
            }
            state.outputs = outputs;
            let connected = self.shard.clients_connected();
            self.connected[usize::from(self.index)].store(connected, Ordering::Relaxed);
        }
    }

    fn hand_over(&mut self, mut link: Link, shard: u16, meta: Box<punctual_broker::ConnMeta>) {
        let _ = self.poll.registry().deregister(&mut link.stream);
        self.mailboxes[usize::from(shard)].post(Mail::Connection(Box::new(Connection {
            stream: link.stream.into(),
            meta,
            layer: link.layer.map_or_else(Layer::plain, |layer| *layer),
            unread: link.unread,
            unwritten: link.wire,
            class: link.class,
            tuned: link.tuned,
        })));
    }

    /// Closes a link after its last bytes, at once if they fit.
    fn close(&mut self, state: &mut State, id: ConnId, tail: Vec<u8>, now: Nanos) {
        let Some(mut link) = state.remove(id) else {
            if self.quic.has(id) {
                self.quic_close(id, tail, now);
            } else {
                self.udp_close(id, tail, now);
            }
            return;
        };
        self.counters.closed(link.listener);
        let mut bytes = link.wire;
        match &mut link.layer {
            None if tail.is_empty() => {}
            None => bytes.end().extend_from_slice(&tail),
            Some(layer) => {
                // Who has said goodbye does not hear it.
                let _ = layer.send(&tail, bytes.end());
                layer.close(bytes.end());
            }
        }
        let mut lingering = Lingering::new(link.stream, bytes, link.ended, now + LINGER);
        if lingering.write() {
            return;
        }
        let at = match state.lingering.iter().position(Option::is_none) {
            Some(at) => at,
            None => {
                state.lingering.push(None);
                state.lingering.len() - 1
            }
        };
        let token = Token(LINGERING | at);
        if self
            .poll
            .registry()
            .reregister(&mut lingering.stream, token, Interest::WRITABLE)
            .is_ok()
        {
            state.lingering[at] = Some(lingering);
        }
    }

    /// Writes what the connections that got something have to say. Writing may
    /// make more to say, for these or for others: that is the second round; the
    /// rest waits for the next turn.
    fn flush(&mut self, state: &mut State, now: Nanos) {
        let mut dirty = std::mem::take(&mut state.dirty);
        let mut given = std::mem::take(&mut state.given);
        for _ in 0..2 {
            self.shard.take_dirty(&mut given);
            dirty.extend(given.drain(..).filter(|id| state.becomes_dirty(*id)));
            for id in dirty.drain(..) {
                if let Some((link, _)) = state.link_and_ready(id) {
                    link.dirty = false;
                }
                let began = state.is_watched().then(|| self.clock.now());
                self.flush_link(state, id, Scope::All, now);
                if let Some(began) = began {
                    self.took(state, Piece::Write, began, Some(id));
                }
                self.give_way(state);
            }
        }
        // Who has not been written all it is to be sent, or can be written again.
        dirty.append(&mut state.dirty);
        (state.dirty, state.given) = (dirty, given);
        self.udp_flush(now);
        if !self.quic.is_off() {
            self.quic_flush(Scope::All, now);
        }
    }

    /// Writes what is urgent, the most urgent first.
    #[inline]
    fn flush_urgent(&mut self, state: &mut State) {
        if self.shard.posts_urgent() {
            self.post_urgent();
        }
        if self.shard.has_urgent() {
            self.flush_all_urgent(state);
        }
    }

    /// Sends urgent messages to other shards.
    #[inline(never)]
    fn post_urgent(&mut self) {
        let Self {
            mailboxes,
            shard,
            index,
            ..
        } = self;
        for (other, mailbox) in (0_u16..).zip(mailboxes.iter()) {
            if other != *index {
                mailbox.post_urgent(|urgent| shard.take_urgent_outbox(other, urgent));
            }
        }
    }

    #[inline(never)]
    fn flush_all_urgent(&mut self, state: &mut State) {
        let now = self.clock.now();
        let mut urgent = std::mem::take(&mut state.urgent);
        self.shard.take_urgent(&mut urgent);
        for id in urgent.drain(..) {
            // How long it waited includes the writes before its own.
            let now = self.clock.now();
            self.flush_link(state, id, Scope::Urgent, now);
        }
        state.urgent = urgent;
        self.udp_flush(now);
        self.quic_flush(Scope::Urgent, now);
        self.act(state, now);
    }

    fn flush_link(&mut self, state: &mut State, id: ConnId, scope: Scope, now: Nanos) {
        let in_turns = scope == Scope::All && (state.promises || now < state.urgent_until);
        let until = state.asked + self.slice;
        let most = match in_turns {
            true => CALL,
            false => WRITE,
        };
        let Some((link, ready)) = state.link_and_ready(id) else {
            if self.quic.has(id) {
                self.quic.wants_to_send(id);
            } else {
                self.udp.wants_to_send(&mut self.shard, id);
            }
            return;
        };
        if link.blocked {
            return;
        }
        let class = self.shard.class(id);
        if class != link.class {
            link.classify(class, &self.marking, &self.tcp);
        }
        let step = if link.tuned {
            self.tcp.urgent_step()
        } else {
            usize::MAX
        };
        // Whether others are to have their turn between two calls.
        let clock = &self.clock;
        let is_over = || in_turns && clock.now() >= until;
        let result = match link.layer {
            None if link.wire.rest().is_empty() => {
                flush_plain(&mut self.shard, link, scope, (most, step), is_over, now)
            }
            _ => flush_layered(&mut self.shard, link, scope, step, is_over, now),
        };
        let all = match result {
            Ok(all) => all,
            Err(error) => {
                let is_reset = matches!(
                    error.kind(),
                    io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe
                );
                // What came before counts here, too: reading ends with the end.
                if is_reset && !link.paused {
                    link.wire = Unwritten::default();
                    link.closing = true;
                    link.readable = true;
                    link.blocked = true;
                    link.list(ready, &self.shard);
                } else {
                    self.lose(state, id, &error.to_string(), now);
                }
                return;
            }
        };
        if !all && state.becomes_dirty(id) {
            state.dirty.push(id);
        }
        let Some((link, ready)) = state.link_and_ready(id) else {
            return;
        };
        if link.layer.is_some() && link.readable {
            // It may not have been read from because of what it had to send.
            link.list(ready, &self.shard);
        }
    }

    /// Sends messages to other shards that can take them.
    fn post(&mut self) {
        for other in 0..self.mailboxes.len() as u16 {
            let mailbox = &self.mailboxes[usize::from(other)];
            if other != self.index && self.shard.has_outbox(other) && mailbox.has_room() {
                let mut messages = Vec::new();
                self.shard.take_outbox(other, &mut messages);
                mailbox.post(Mail::Messages(messages));
            }
        }
    }
}

/// Writes a plain connection's bytes straight from the broker's buffers, at most
/// `most` of them in one call and `step` before it asks whether the kernel wants
/// more. False if there may be more, and the time is over.
fn flush_plain(
    shard: &mut Shard,
    link: &mut Link,
    scope: Scope,
    (most, step): (usize, usize),
    is_over: impl Fn() -> bool,
    now: Nanos,
) -> io::Result<bool> {
    loop {
        let (result, wanted, cut) = {
            let mut slices = [IoSlice::new(&[]); 32];
            let filled = shard.pending(link.id, scope, now, &mut slices);
            if filled == 0 {
                return Ok(true);
            }
            let (mut count, mut all) = (1, slices[0].len().min(most));
            for slice in &slices[1..filled] {
                if all + slice.len() > most {
                    break;
                }
                (count, all) = (count + 1, all + slice.len());
            }
            if count == 1 || all > step {
                let piece = &slices[0][..slices[0].len().min(all).min(step)];
                (link.stream.write(piece), piece.len(), piece.len() < all)
            } else {
                let result = link.stream.write_vectored(&slices[..count]);
                (result, all, false)
            }
        };
        match result {
            Ok(n) => {
                link.owes_ack = false;
                let more = shard.sent(link.id, n, now);
                if n < wanted || (cut && !takes_more(&link.stream)) {
                    link.blocked = true;
                    return Ok(true);
                }
                if !more {
                    return Ok(true);
                }
                if is_over() {
                    return Ok(false);
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                link.blocked = true;
                return Ok(true);
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Writes a layered connection's bytes through its layer. False if there may be
/// more, and the time is over.
fn flush_layered(
    shard: &mut Shard,
    link: &mut Link,
    scope: Scope,
    step: usize,
    is_over: impl Fn() -> bool,
    now: Nanos,
) -> io::Result<bool> {
    // What is in its wire form cannot be overtaken any more.
    let ahead = step.min(WIRE);
    loop {
        if let Some(layer) = &mut link.layer
            && layer.established()
        {
            while link.wire.rest().len() < ahead {
                let (result, taken) = {
                    let mut slices = [IoSlice::new(&[]); 1];
                    if shard.pending(link.id, scope, now, &mut slices) == 0 {
                        break;
                    }
                    let piece = &slices[0][..slices[0].len().min(ahead)];
                    (layer.send(piece, link.wire.end()), piece.len())
                };
                result.map_err(io::Error::other)?;
                shard.sent(link.id, taken, now);
            }
        }
        if link.wire.rest().is_empty() {
            link.wire.release();
            return Ok(true);
        }
        match link.stream.write(link.wire.rest()) {
            Ok(n) => {
                link.owes_ack = false;
                link.wire.advance(n);
                if link.wire.rest().is_empty() && link.layer.is_none() {
                    return Ok(true);
                }
                if is_over() {
                    return Ok(false);
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                link.blocked = true;
                return Ok(true);
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Whether a packet that begins so is a PUBLISH with QoS 0 (MQTT 5.0, 3.3.1).
fn is_unanswered(first: u8) -> bool {
    first & 0b1111_0110 == 0b0011_0000
}

impl Link {
    /// Sets the socket up for what it is about to send.
    #[cold]
    fn classify(&mut self, class: Class, marking: &Marking, tcp: &TcpOptions) {
        // What was allowed at the start cannot fail on an open socket, and a
        // broken one shows when it is written to.
        let _ = marking.change(&self.stream, self.class, class);
        self.class = class;
        if !self.tuned && matches!(class, Class::RealTime | Class::Priority) {
            self.tuned = true;
            tcp.urgent(&self.stream);
        }
    }
}

impl State {
    /// Whether somebody here is to be served between other work.
    fn is_watched(&self) -> bool {
        self.promises || self.urgent_until > Nanos(0)
    }

    /// Bytes that were received and not consumed.
    pub(crate) fn unread(&self) -> usize {
        self.unread
    }

    /// Marks a connection that is about to be put into the list of those to be written to; false for a
    /// link that is in the list.
    fn becomes_dirty(&mut self, id: ConnId) -> bool {
        let link = self.link_and_ready(id);
        link.is_none_or(|(link, _)| link.becomes_dirty())
    }

    fn link_and_ready(&mut self, id: ConnId) -> Option<(&mut Link, &mut Ready)> {
        let link = self.links.get_mut(id.slot as usize)?.as_deref_mut()?;
        (link.id == id).then_some((link, &mut self.ready))
    }

    /// Has what came from neighbours acknowledged, now that it has been passed on.
    fn acknowledge(&mut self) {
        let mut owing = std::mem::take(&mut self.owing);
        for id in owing.drain(..) {
            if let Some((link, _)) = self.link_and_ready(id)
                && std::mem::take(&mut link.owes_ack)
            {
                acknowledge(&link.stream);
            }
        }
        self.owing = owing;
    }

    fn remove(&mut self, id: ConnId) -> Option<Link> {
        let link = self.links.get_mut(id.slot as usize)?;
        let link = link.take_if(|link| link.id == id)?;
        self.unread -= link.unread.len();
        Some(*link)
    }

    fn write_lingering(&mut self, at: usize) {
        if let Some(entry) = self.lingering.get_mut(at)
            && entry.as_mut().is_some_and(Lingering::write)
        {
            *entry = None;
        }
    }

    fn drop_lingering(&mut self, now: Nanos) {
        for entry in &mut self.lingering {
            if entry
                .as_ref()
                .is_some_and(|lingering| lingering.until <= now)
            {
                *entry = None;
            }
        }
    }
}

/// Makes room for `more` bytes: for all that a packet needs, but for four times what is there at most,
/// as a length is only claimed.
fn make_room(bytes: &mut Vec<u8>, more: usize, needed: usize) {
    let len = bytes.len();
    let wanted = needed.min(4 * len).max(len + more);
    if wanted > bytes.capacity() {
        bytes.reserve_exact(wanted - len);
    }
}
