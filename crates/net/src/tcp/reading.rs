//! Reading: which link is next, how much is read of it, and how the broker gets it.
//!
//! One read takes a link in hand ([`Reading`]). The broker gets what was read in pieces of [`PIECE`] or
//! [`LONG_PIECE`] bytes; between two of them the thread may put back the rest. Where the bytes are:
//! in the buffer that all links share; in the link's own, for a large packet; or, behind a layer, in the
//! buffer for application bytes.

use std::io::{self, Read as _};
use std::sync::atomic::Ordering;

use bytes::Bytes;
use punctual_broker::{ConnId, Flow, Nanos, Ready};

use super::Tcp;
use super::link::{LEFT, Link};
use super::options::read_behind;
use crate::layer::Received;
use crate::transport::{Context, Input, Progress, TOO_MUCH_UNREAD};

/// What comes from a neighbour within this after something else has TCP's acknowledgement sent once
/// it is handled: the broker's own is not before several have come.
const APART: Nanos = Nanos::from_millis(5);

/// Shared read buffer: how much is read from one socket in one turn. With half as much, a message
/// to a neighbour took a tenth more of the processor, by what follows from each call.
pub(super) const READ: usize = 512 << 10;
/// Where deadlines are promised: bytes that are read or written in one call, instead. Also
/// what is read in one where much waits already, by [`WAITING`].
pub(super) const CALL: usize = 256 << 10;
/// One in so many of the bytes that may wait to be handled is much.
const WAITING: usize = 8;
/// An incomplete packet above this size gets a buffer of its own.
const OWN_BUFFER: usize = 64 << 10;
/// How much such a buffer grows ahead of what has arrived.
const GROW: usize = 256 << 10;
/// Bytes that are read at a time from who sends messages of admitted flows.
const AT_ONCE: usize = 16 << 10;
/// Where deadlines are promised: bytes of one client that are handled before the
/// clock is looked at.
const PIECE: usize = 32 << 10;
/// The same elsewhere: what is handled in a row costs less.
const LONG_PIECE: usize = 128 << 10;
/// Bytes that are read in one turn before sockets are asked again.
const TURN: usize = 512 << 10;
/// How long links are read in one turn.
const TURN_TIME: Nanos = Nanos(1_000_000);
/// Reads after which the clock is looked at.
const AT_A_TIME: usize = 8;
/// Wire bytes of a layered connection that are made ahead of the socket.
pub(super) const WIRE: usize = 64 << 10;

/// The rest of a turn. Each link that was ready when it began is read once; those not reached keep
/// their place.
#[derive(Debug, Default)]
pub(super) struct Turn {
    /// Links that sent something urgent lately.
    urgent: usize,
    /// Others; known once the urgent ones were read.
    plain: Option<usize>,
    /// How many of these had their turn, and their bytes.
    links: usize,
    bytes: usize,
    until: Nanos,
}

impl Turn {
    pub(super) fn new(ready: &Ready, now: Nanos) -> Self {
        Self {
            urgent: ready.urgent(),
            until: now + TURN_TIME,
            ..Self::default()
        }
    }
}

/// A link to be read from.
struct Next {
    slot: u32,
    /// See [`Progress::Handled`].
    flush: bool,
    /// It sends nothing urgent, and this is its turn.
    is_plain: bool,
}

/// A link in hand.
pub(super) struct Reading {
    id: ConnId,
    /// See [`Progress::Handled`].
    flush: bool,
    /// Its bytes count in those of the turn.
    is_plain: bool,
    /// When the bytes came, at the earliest.
    arrived: Nanos,
    data: Data,
    /// Fewer bytes than this are no complete packet.
    known: usize,
    /// Bytes that the broker has taken.
    consumed: usize,
    /// Bytes that it was given.
    end: usize,
    /// It could take more of these at once.
    more: bool,
    /// Size of the packet that is incomplete.
    needed: usize,
    flow: Flow,
    /// Why there is nothing more after this.
    lost: Option<String>,
}

/// Where the bytes of a link in hand are.
enum Data {
    /// So many in the shared buffer.
    Shared(usize),
    /// In the buffer of application bytes.
    Layered,
    /// In the link's own buffer: the beginning of a large packet.
    Own(Vec<u8>),
    /// A large packet, complete, which messages may keep.
    Whole(Bytes),
}

impl Data {
    #[inline]
    fn bytes<'a>(&'a self, shared: &'a [u8], app: &'a [u8]) -> &'a [u8] {
        match self {
            Self::Shared(len) => &shared[..*len],
            Self::Layered => app,
            Self::Own(own) => own,
            Self::Whole(whole) => whole,
        }
    }
}

impl Tcp {
    /// Reads once from the next link, or hands in again what was not consumed, and lets the broker
    /// handle it; or continues with the link in hand.
    pub(super) fn read(&mut self, cx: &mut Context, input: Input, now: Nanos) -> Progress {
        // It is handled where it was made: to move so large a value costs as much as the rest here.
        let mut flush = false;
        let mut reading = if self.reading.is_some() {
            self.reading.take()
        } else {
            let Some(next) = self.next_link(cx, input, now) else {
                return Progress::Done;
            };
            flush = next.flush;
            self.take_in(cx, next, input, now)
        };
        let Some(in_hand) = &mut reading else {
            return Progress::Handled { conn: None, flush };
        };
        let progress = self.handle(cx, in_hand, now);
        if matches!(progress, Progress::InHand) {
            self.reading = reading;
        }
        progress
    }

    /// The next link to read from.
    fn next_link(&mut self, cx: &mut Context, input: Input, now: Nanos) -> Option<Next> {
        let next = |slot, flush, is_plain| Next {
            slot,
            flush,
            is_plain,
        };
        match input {
            Input::Promised => return Some(next(self.ready.pop_promised()?, true, false)),
            Input::Urgent => {
                let slot = self.ready.pop_urgent()?;
                cx.expect_urgent(now);
                return Some(next(slot, true, false));
            }
            Input::Turn => {}
        }
        while self.turn.urgent > 0 {
            self.turn.urgent -= 1;
            if let Some(slot) = self.ready.pop_urgent() {
                cx.expect_urgent(now);
                return Some(next(slot, self.turn.urgent == 0, false));
            }
        }
        let turn = &mut self.turn;
        let left = turn.plain.get_or_insert(self.ready.plain());
        while *left > 0 {
            *left -= 1;
            turn.links += 1;
            let is_over = turn.bytes >= TURN
                || turn.links.is_multiple_of(AT_A_TIME) && cx.clock.now() >= turn.until;
            if is_over {
                *left = 0;
                break;
            }
            if let Some(slot) = self.ready.pop_plain() {
                return Some(next(slot, true, true));
            }
        }
        None
    }

    /// Takes a link in hand: what was left over, and what a read brings. `None` if it is not to be
    /// read.
    fn take_in(
        &mut self,
        cx: &mut Context,
        next: Next,
        input: Input,
        now: Nanos,
    ) -> Option<Reading> {
        let (buffer, app) = (&mut self.buffer, &mut self.app);
        let link = self.links.get_mut(next.slot as usize)?.as_deref_mut()?;
        link.listed = false;
        // Who does not take what it is sent is not read from: its handshakes,
        // pings and requests would only make more to send.
        if link.paused || link.wire.rest().len() > WIRE {
            return None;
        }
        cx.unread -= link.unread.len();
        let mut own = std::mem::take(&mut link.unread);
        let before = own.len();
        let plain = link.layer.is_none();
        let known = std::mem::take(&mut link.needed) as usize;
        let use_own = plain && before > 0 && before.max(known) > OWN_BUFFER;
        // What is not handled, since the client has to wait, is of that.
        let most = match cx.unread + READ <= cx.max_unread / WAITING {
            true => buffer.len(),
            false => buffer.len().min(CALL),
        };
        let space = match (plain, use_own) {
            // Up to the end of the packet, so that receivers can share this buffer.
            (true, true) => match known.saturating_sub(before) {
                0 => GROW,
                missing => missing.min(GROW),
            },
            // What remains of it is copied after each message.
            _ if input == Input::Urgent || link.is_promised(&cx.shard) => AT_ONCE,
            // The shared buffer is copied to the packet's own one: little is read of the beginning.
            (true, false) if link.sends_large => AT_ONCE,
            (true, false) => most - before,
            (false, _) => most,
        };
        let start = if plain && !use_own {
            buffer[..before].copy_from_slice(&own);
            before
        } else {
            0
        };
        let outcome = if std::mem::take(&mut link.again) {
            Err(io::ErrorKind::Interrupted.into())
        } else if use_own {
            make_room(&mut own, space, known);
            read_behind(&link.stream, &mut own, space)
        } else {
            link.stream.read(&mut buffer[start..start + space])
        };
        let (n, mut lost) = link.has_read(outcome, space);
        link.sends_large = use_own;
        let data = if use_own && own.len() == known {
            Data::Whole(own.into())
        } else if use_own {
            Data::Own(own)
        } else if plain {
            Data::Shared(before + n)
        } else {
            app.clear();
            app.extend_from_slice(&own);
            if n > 0 {
                unwrap_layer(link, cx, &buffer[..n], app, &mut lost);
            }
            Data::Layered
        };
        if n > 0 && cx.shard.is_link(link.id) {
            let follows = now < link.read_at + APART;
            link.read_at = now;
            // Else there is soon an answer, or the next message, which takes that of TCP along.
            let first = data.bytes(buffer, app).first();
            if follows || first.is_some_and(|byte| is_unanswered(*byte)) {
                link.owes_ack = true;
                self.owing.push(link.id);
            }
        }
        Some(Reading {
            id: link.id,
            flush: next.flush,
            is_plain: next.is_plain,
            arrived: link.arrived,
            data,
            known,
            consumed: 0,
            end: 0,
            more: false,
            needed: 0,
            flow: Flow::Read,
            lost,
        })
    }

    /// Gives the broker what is in hand: all of it, or a piece where somebody may have to be served
    /// first.
    fn handle(&mut self, cx: &mut Context, reading: &mut Reading, now: Nanos) -> Progress {
        let data = reading.data.bytes(&self.buffer, &self.app);
        // Whether there is more to be handled, after what is more urgent.
        let mut again = false;
        while reading.end < data.len() || reading.more {
            if !reading.more {
                let end = reading.end + if cx.promises { PIECE } else { LONG_PIECE };
                reading.end = end.max(reading.known).min(data.len());
            }
            let (id, arrived, now) = (reading.id, reading.arrived, now.max(cx.asked));
            let received = match &reading.data {
                Data::Whole(whole) => cx.shard.receive_whole(id, whole, arrived, now),
                _ => {
                    let piece = &data[reading.consumed..reading.end];
                    cx.shard.receive_promised(id, piece, arrived, now)
                }
            };
            reading.consumed += received.consumed;
            reading.flow = received.flow;
            (reading.needed, reading.more) = (received.needed, received.more);
            let is_rest = reading.consumed < data.len();
            again = is_rest && received.promised;
            if reading.flow != Flow::Read || again {
                break;
            }
            if is_rest && (reading.end < data.len() || reading.more) && cx.is_watched() {
                return Progress::InHand;
            }
        }
        let handled = Progress::Handled {
            conn: Some(reading.id),
            flush: reading.flush,
        };
        self.put_back(cx, reading, again, now);
        handled
    }

    /// Keeps the rest of what is in hand; `again` if it can be handled at once.
    pub(super) fn put_back(
        &mut self,
        cx: &mut Context,
        reading: &mut Reading,
        again: bool,
        now: Nanos,
    ) {
        let (id, consumed) = (reading.id, reading.consumed);
        if reading.is_plain {
            self.turn.bytes += consumed;
        }
        let bytes = reading.data.bytes(&self.buffer, &self.app);
        let rest = bytes.len() - consumed;
        let link = self.links.get_mut(id.slot as usize);
        let link = link.and_then(Option::as_deref_mut);
        let Some(link) = link.filter(|link| link.id == id) else {
            return;
        };
        if reading.flow == Flow::Closed {
            // The broker's outputs say what becomes of the link; what a
            // handover needs is kept.
            link.unread = bytes[consumed..].to_vec();
            cx.unread += rest;
            return;
        }
        if rest > 0 {
            if !cx.keep_unread(rest) {
                cx.lose(id, TOO_MUCH_UNREAD, now);
                return;
            }
            link.unread = match &mut reading.data {
                Data::Whole(whole) => whole.slice(consumed..).into(),
                Data::Own(own) => {
                    own.drain(..consumed);
                    std::mem::take(own)
                }
                Data::Shared(len) => beginning(&self.buffer[consumed..*len], reading.needed),
                Data::Layered => beginning(&self.app[consumed..], reading.needed),
            };
            link.needed = u32::try_from(reading.needed).unwrap_or(0);
        }
        if link.layer.as_ref().is_some_and(|layer| layer.is_plain()) {
            link.layer = None;
        }
        // What came before the end is handled first; the end shows again.
        if let Some(why) = reading.lost.as_ref().filter(|_| !again) {
            cx.lose(id, why, now);
            return;
        }
        link.paused = reading.flow == Flow::Pause;
        link.again = again;
        if link.gives_up(&cx.shard) {
            cx.lose(id, LEFT, now);
        } else if link.readable || again {
            link.list(&mut self.ready, &cx.shard);
        }
    }
}

/// The beginning of a packet of `needed` bytes, with room for the rest of it.
fn beginning(bytes: &[u8], needed: usize) -> Vec<u8> {
    let mut beginning = Vec::with_capacity(bytes.len().max(needed.min(OWN_BUFFER)));
    beginning.extend_from_slice(bytes);
    beginning
}

/// Has a link's layer take what was read, which is not empty: appends application bytes to `app`, and
/// says in `lost` if the connection ends with them.
fn unwrap_layer(
    link: &mut Link,
    cx: &mut Context,
    read: &[u8],
    app: &mut Vec<u8>,
    lost: &mut Option<String>,
) {
    let Some(layer) = &mut link.layer else {
        return;
    };
    let before = link.wire.rest().len();
    let result = layer.received(read, app, link.wire.end());
    if link.wire.rest().len() > before {
        cx.connections.mark(link.id);
    }
    link.wire.release();
    match result {
        Ok(Received::Open) => {}
        Ok(Received::Ended) => *lost = Some("connection closed by peer".into()),
        Err(error) => {
            cx.counters.layer_errors.fetch_add(1, Ordering::Relaxed);
            *lost = Some(error.to_string());
        }
    }
}

/// Whether a packet that begins so is a PUBLISH with QoS 0 (MQTT 5.0, 3.3.1).
fn is_unanswered(first: u8) -> bool {
    first & 0b1111_0110 == 0b0011_0000
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
