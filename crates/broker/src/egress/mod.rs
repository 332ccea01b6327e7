//! The output of one connection, and the order in which it is sent.
//!
//! Control packets go first, then messages by [`Rank`]: lanes 0 and 1 sorted, lanes 2 and 3 in the
//! order of arrival, with a minimum share for lanes 1 to 3 ([`Shares`]). Lanes 2 and 3, and control
//! packets, are buffers of encoded packets. A message of lanes 0 or 1 is encoded when it is
//! written; messages that the socket did not accept go back to their lane, except for a message of
//! which the socket accepted a part. So an urgent message waits for at most one packet, however
//! many bytes are in the buffers.
//!
//! An urgent message waits in the lanes of its connection, or with
//! [`Enqueue::Shared`] in a queue of the shard until its turn comes there.
//!
//! A connection without urgent messages pays for this with a comparison: its
//! bytes are written straight from the one buffer that it has.

mod departure;
pub(crate) mod lane;
pub(crate) mod outbuf;
pub(crate) mod rank;
mod shared;
mod shares;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod world;

pub use lane::Lane;
pub(crate) use outbuf::{OutBuf, Pool, SHARE_FROM};
pub use rank::{Class, Discipline, Edf, Fifo, FixedPriority, Level, Policy, Rank, Stamp, Urgency};
pub(crate) use shared::{Seat, Shared};
pub use shares::{Credits, Heads, Shares};

use std::collections::VecDeque;
use std::io::IoSlice;

use punctual_codec::QoS;
use shared::Place;

use crate::Nanos;
use crate::base::delivery::Delivery;
use crate::message::Form;
use crate::stats::Stats;

/// Maximum number of bytes that one plan chooses when several lanes compete.
const ROUND: usize = 64 << 10;
/// Maximum number of times that [`ROUND`] is halved for a socket that accepts few bytes.
const LEAST: u32 = 8;
/// Maximum number of pieces in a plan: more than a shell writes at once.
const PIECES: usize = 32;
/// Lanes with capacity for more entries are not pooled.
const POOLED_ENTRIES: usize = 1024;
/// Maximum number of bytes of a PUBLISH beside the content of its message.
const OVERHEAD: usize = 64;

/// A waiting urgent message.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) delivery: Delivery,
    /// Packet identifier; 0 with QoS 0.
    pub(crate) packet_id: u16,
    /// The time at which the message began to wait.
    pub(crate) since: Nanos,
    pub(crate) attempt: Attempt,
}

/// Which attempt to deliver a message put it into an urgent lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Attempt {
    /// The message was just published.
    First,
    /// The message waited in the session's queue.
    Queued,
    /// The message was sent on an earlier connection, which is gone. It is sent with DUP, and is
    /// neither dropped as late nor expires: with QoS 2 the receiver may hold its packet identifier.
    Redelivery,
}

impl Entry {
    /// Whether the message may be dropped: with QoS 0 there is no guarantee that it is kept.
    fn may_go(&self) -> bool {
        self.delivery.qos == QoS::AtMostOnce
    }

    fn size(&self) -> usize {
        self.delivery.message.size() + OVERHEAD
    }
}

/// An encoded entry, and the data needed to put it back into its lane.
#[derive(Debug)]
struct Sending {
    entry: Entry,
    class: Class,
    key: u64,
    arrival: u64,
    len: usize,
}

/// The buffer that holds the bytes of a piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Control,
    Express,
    Plain,
    Bulk,
}

/// Consecutive bytes of one buffer.
#[derive(Debug, Clone, Copy)]
struct Piece {
    part: Part,
    len: usize,
    /// The lane for which the bytes count.
    class: Option<Class>,
}

/// Messages for one connection that wait in the shared queue.
#[derive(Debug, Default, Clone, Copy)]
struct Awaited {
    messages: usize,
    /// The place of the most urgent one.
    first: Option<Place>,
}

/// The load of one lane: its waiting messages.
#[derive(Debug, Default, Clone, Copy)]
struct Load {
    bytes: usize,
    /// Number of these messages that may be dropped, and their bytes.
    loose: usize,
    loose_bytes: usize,
}

impl Load {
    fn add(&mut self, entry: &Entry) {
        self.bytes += entry.size();
        if entry.may_go() {
            self.loose += 1;
            self.loose_bytes += entry.size();
        }
    }

    fn remove(&mut self, entry: &Entry) {
        self.bytes -= entry.size();
        if entry.may_go() {
            self.loose -= 1;
            self.loose_bytes -= entry.size();
        }
    }
}

/// The lanes and buffers of a connection beside its plain buffer, while it has other output than
/// plain messages.
#[derive(Debug, Default)]
pub(crate) struct Lanes {
    control: OutBuf,
    bulk: OutBuf,
    urgent: [Lane<Entry>; 2],
    /// Messages of the same lanes that wait in the shared queue.
    awaited: [Awaited; 2],
    /// The load of each of these lanes, in both places together.
    urgent_load: [Load; 2],
    /// Urgent messages encoded for the current write, and after the write the rest of the message
    /// that was written in part.
    express: OutBuf,
    /// Class of the message that was written in part.
    cut: Option<Class>,
    sending: VecDeque<Sending>,
    /// The pieces that the last call of [`Egress::plan`] chose, in order.
    plan: VecDeque<Piece>,
    /// For each lane, the largest packet that the last plan considered, in bytes. A credit must be
    /// able to grow to this size, even if by a byte at a time.
    largest: [usize; 4],
    /// Number of times that the size of a plan is halved: messages that were encoded and not
    /// written must be put back, so no more is chosen than the socket accepts.
    halved: u32,
    credits: Credits,
}

impl Lanes {
    fn is_empty(&self) -> bool {
        self.control.is_empty()
            && self.bulk.is_empty()
            && self.express.is_empty()
            && !self.has_urgent(Class::RealTime)
            && !self.has_urgent(Class::Priority)
    }

    /// Whether a message of that class waits, in its lane or in the shared
    /// queue.
    #[inline]
    fn has_urgent(&self, class: Class) -> bool {
        let lane = class as usize & 1;
        !self.urgent[lane].is_empty() || self.awaited[lane].messages > 0
    }

    /// Whether the bounds leave no capacity for another message of that class and of `size` bytes
    /// that may be dropped.
    fn is_full_for(&self, class: Class, size: usize, limits: &LaneLimits) -> bool {
        let is_full = |lanes: &[Class], bound: Bound| {
            let loads = lanes.iter().map(|lane| self.urgent_load[*lane as usize]);
            let (messages, bytes) = loads.fold((0, size), |(messages, bytes), load| {
                (messages + load.loose, bytes + load.loose_bytes)
            });
            messages >= bound.messages || bytes > bound.bytes
        };
        is_full(&[Class::RealTime, Class::Priority], limits.urgent)
            || class == Class::Priority && is_full(&[Class::Priority], limits.priority)
    }

    /// Whether the lanes hold little memory and may be pooled.
    fn is_small(&self) -> bool {
        self.urgent
            .iter()
            .all(|lane| lane.capacity() <= POOLED_ENTRIES)
    }

    fn buffer(&mut self, part: Part) -> Option<&mut OutBuf> {
        match part {
            Part::Control => Some(&mut self.control),
            Part::Express => Some(&mut self.express),
            Part::Bulk => Some(&mut self.bulk),
            Part::Plain => None,
        }
    }

    fn add(&mut self, part: Part, len: usize, class: Option<Class>) {
        match self.plan.back_mut() {
            Some(piece) if piece.part == part && piece.class == class => piece.len += len,
            _ => self.plan.push_back(Piece { part, len, class }),
        }
    }
}

/// The encoding of urgent messages for a connection.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Encoding {
    pub(crate) v5: bool,
    pub(crate) max_packet: u32,
}

/// The part of the waiting output that is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// Everything.
    All,
    /// Output that goes before plain messages: the rest of a packet, control packets, messages of
    /// lanes 0 and 1.
    Urgent,
}

/// The place where messages of lanes 0 and 1 wait, and their bounds for one connection. Bounds
/// apply to messages with QoS 0 and count only these: messages with QoS 1 and 2 cannot be dropped,
/// and are bounded by the window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LaneLimits {
    /// The place where the messages wait.
    pub enqueue: Enqueue,
    /// Bound of both lanes together, so that lane 0 can use all of it.
    pub urgent: Bound,
    /// The part of this bound that lane 1 can use.
    pub priority: Bound,
    /// The policy when the lanes are full.
    pub overflow: Overflow,
}

/// A bound of waiting messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bound {
    /// Messages.
    pub messages: usize,
    /// Bytes of messages.
    pub bytes: usize,
}

impl Bound {
    /// No bound.
    pub const NONE: Self = Self {
        messages: usize::MAX,
        bytes: usize::MAX,
    };
}

impl Default for LaneLimits {
    fn default() -> Self {
        let bound = Bound {
            messages: 10_000,
            bytes: 4 << 20,
        };
        Self {
            enqueue: Enqueue::default(),
            urgent: bound,
            priority: bound,
            overflow: Overflow::default(),
        }
    }
}

/// The place where a message of lanes 0 and 1 waits for its receivers: the two methods of the
/// PrioMQTT paper. With either, each receiver is sent the same messages in the same order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Enqueue {
    /// An entry for each receiver, in a lane of its own.
    #[default]
    PerReceiver,
    /// One entry with the set of its receivers, in a queue of the shard.
    Shared,
}

/// Policy for full lanes 0 and 1. With either, a message is never dropped while one of lower
/// priority stays.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Overflow {
    /// The oldest message of the lowest priority is dropped.
    #[default]
    EvictOldest,
    /// The new message is dropped, unless others have a lower priority.
    RefuseNew,
}

/// A message that was removed from the egress without being sent, and must be removed from the
/// window of messages in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Dropped {
    pub(crate) packet_id: u16,
    pub(crate) qos: QoS,
}

/// The outgoing packets of one connection.
#[derive(Debug, Default)]
pub(crate) struct Egress {
    plain: OutBuf,
    /// Bytes of control packets at the front of `plain`.
    lead: usize,
    lanes: Option<Box<Lanes>>,
}

impl Egress {
    /// Number of waiting bytes, including those of urgent messages.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        let others = self.lanes.as_ref().map_or(0, |lanes| {
            let urgent: usize = lanes.urgent_load.iter().map(|load| load.bytes).sum();
            lanes.control.len() + lanes.bulk.len() + lanes.express.len() + urgent
        });
        self.plain.len() + others
    }

    /// Number of waiting bytes in the order of arrival, without urgent messages.
    #[inline]
    pub(crate) fn backlog(&self) -> usize {
        let others = self
            .lanes
            .as_ref()
            .map_or(0, |lanes| lanes.control.len() + lanes.bulk.len());
        self.plain.len() + others
    }

    /// The part of [`Self::backlog`] behind which a message of that class would wait: each lane has
    /// a bound of its own, so that bulk leaves capacity for normal messages.
    #[inline]
    pub(crate) fn backlog_before(&self, class: Class) -> usize {
        match class {
            Class::Bulk => self.backlog(),
            _ => self.plain.len() + self.lanes.as_ref().map_or(0, |lanes| lanes.control.len()),
        }
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.plain.is_empty() && self.lanes.as_ref().is_none_or(|lanes| lanes.is_empty())
    }

    /// The buffer for whole packets of class Normal.
    #[inline]
    pub(crate) fn plain(&mut self) -> &mut OutBuf {
        &mut self.plain
    }

    /// The buffer for whole packets of class Bulk.
    pub(crate) fn bulk(&mut self, pool: &mut Pool) -> &mut OutBuf {
        &mut self.lanes(pool).bulk
    }

    fn lanes(&mut self, pool: &mut Pool) -> &mut Lanes {
        self.lanes
            .get_or_insert_with(|| pool.lanes.pop().unwrap_or_default())
    }

    /// Appends a control packet with `write`, ahead of all messages.
    #[inline(always)]
    pub(crate) fn control(&mut self, pool: &mut Pool, write: impl FnOnce(&mut Vec<u8>)) {
        // If no message waits, the plain buffer serves as the control buffer.
        let alone = self.lanes.is_none() && self.lead == self.plain.len();
        let buffer = match alone {
            true => self.plain.tail(pool),
            false => self.control_buffer(pool),
        };
        let before = buffer.len();
        write(buffer);
        let written = buffer.len() - before;
        self.lead += if alone { written } else { 0 };
    }

    #[inline(never)]
    fn control_buffer(&mut self, pool: &mut Pool) -> &mut Vec<u8> {
        self.lanes(pool);
        match &mut self.lanes {
            Some(lanes) => lanes.control.tail(pool),
            None => self.plain.tail(pool),
        }
    }

    /// Adds an urgent message. When its lanes are full, `limits` determine which message is
    /// dropped.
    pub(crate) fn push(
        &mut self,
        entry: Entry,
        limits: &LaneLimits,
        seat: &mut Seat<'_>,
        pool: &mut Pool,
        stats: &mut Stats,
    ) -> bool {
        let lanes = self.lanes(pool);
        let size = entry.size();
        let rank = entry.delivery.message.stamp.rank;
        let class = rank.class;
        while entry.may_go() && lanes.is_full_for(class, size, limits) {
            let Some((worst, victim)) = lanes.give_up(rank, limits.overflow, seat) else {
                stats.class(class).dropped_full += 1;
                return false;
            };
            lanes.urgent_load[worst as usize & 1].remove(&victim);
            stats.class(worst).dropped_full += 1;
            stats.class(worst).waiting -= 1;
        }
        let lane = class as usize & 1;
        let mut load = lanes.urgent_load[lane];
        load.add(&entry);
        let awaited = &mut lanes.awaited[lane];
        // The message also goes behind those in the shared queue if the method was changed
        // meanwhile.
        if limits.enqueue == Enqueue::Shared || awaited.messages > 0 {
            let place = seat.push(class, rank.key, entry);
            awaited.messages += 1;
            awaited.first = Some(awaited.first.map_or(place, |first| first.min(place)));
        } else if lanes.urgent[lane]
            .push(rank.key, entry.may_go(), entry)
            .is_err()
        {
            stats.class(class).dropped_full += 1;
            return false;
        }
        lanes.urgent_load[lane] = load;
        stats.class(class).arrived();
        true
    }

    /// Whether lane 0 or 1 has capacity for another message.
    pub(crate) fn has_room(&self, class: Class, limits: &LaneLimits) -> bool {
        let lanes = self.lanes.as_ref();
        lanes.is_none_or(|lanes| !lanes.is_full_for(class, 1, limits))
    }

    /// Rank of the packet that is sent next; control packets count as the most urgent.
    pub(crate) fn rank(&mut self) -> Option<Rank> {
        if self.lead > 0 {
            return Some(Rank::CONTROL);
        }
        if let Some(lanes) = &mut self.lanes {
            if !lanes.control.is_empty() || !lanes.express.is_empty() {
                return Some(Rank::CONTROL);
            }
            for class in [Class::RealTime, Class::Priority] {
                let own = lanes.urgent[class as usize].peek().map(|(key, _)| key);
                let first = lanes.awaited[class as usize].first.map(|place| place.key);
                if let Some(key) = own.into_iter().chain(first).min() {
                    return Some(Rank { class, key });
                }
            }
        }
        let class = if !self.plain.is_empty() {
            Class::Normal
        } else if self.lanes.as_ref().is_some_and(|l| !l.bulk.is_empty()) {
            Class::Bulk
        } else {
            return None;
        };
        Some(Rank { class, key: 0 })
    }

    /// Chooses the output that is written next. Must be called before [`Self::slices`]. Messages
    /// that may not be sent any more are dropped; those among them with QoS above 0 are added to
    /// `dropped`.
    #[inline]
    #[expect(
        clippy::too_many_arguments,
        reason = "parts of the hub, borrowed apart"
    )]
    pub(crate) fn plan(
        &mut self,
        scope: Scope,
        encoding: Encoding,
        shares: &Shares,
        seat: &mut Seat<'_>,
        pool: &mut Pool,
        stats: &mut Stats,
        dropped: &mut Vec<Dropped>,
        now: Nanos,
    ) {
        if self.lanes.is_some() {
            self.plan_lanes(scope, encoding, shares, seat, pool, stats, dropped, now);
        }
    }

    #[expect(
        clippy::too_many_arguments,
        reason = "parts of the hub, borrowed apart"
    )]
    fn plan_lanes(
        &mut self,
        scope: Scope,
        encoding: Encoding,
        shares: &Shares,
        seat: &mut Seat<'_>,
        pool: &mut Pool,
        stats: &mut Stats,
        dropped: &mut Vec<Dropped>,
        now: Nanos,
    ) {
        self.recall(pool);
        let Some(lanes) = &mut self.lanes else { return };
        // The packet that was written in part comes first.
        let bulk_cut = lanes.bulk.cut();
        let plain_cut = match self.lead {
            0 => self.plain.cut(),
            lead => lead,
        };
        let control_first = lanes.control.cut() > 0;
        let control = lanes.control.len();
        let normal = (self.lead == 0).then_some(Class::Normal);
        let (first, second) = match control_first {
            true => (control, 0),
            false => (0, control),
        };
        let rests = [
            (Part::Express, lanes.express.len(), lanes.cut),
            (Part::Bulk, bulk_cut, Some(Class::Bulk)),
            (Part::Control, first, None),
            (Part::Plain, plain_cut, normal),
            (Part::Control, second, None),
        ];
        let mut rests = rests.into_iter().filter(|(_, len, _)| *len > 0);
        for (part, len, class) in rests.clone() {
            lanes.add(part, len, class);
        }
        let mut credits = lanes.credits;
        let mut plain = self.plain.place(plain_cut);
        let mut bulk = lanes.bulk.place(bulk_cut);
        let mut plain_left = self.plain.len() - plain_cut;
        let mut bulk_left = lanes.bulk.len() - bulk_cut;
        let mut chosen = 0;
        let round = ROUND >> lanes.halved;
        lanes.largest = [OVERHEAD; 4];
        while chosen < round && lanes.plan.len() < PIECES {
            lanes.draw(seat);
            let heads: Heads = [
                lanes.urgent[0].peek().map(|(_, entry)| entry.size()),
                lanes.urgent[1].peek().map(|(_, entry)| entry.size()),
                self.plain.next_packet(&mut plain.clone()),
                lanes.bulk.next_packet(&mut bulk.clone()),
            ];
            for (largest, head) in lanes.largest.iter_mut().zip(heads) {
                *largest = head.map_or(*largest, |head| head.max(*largest));
            }
            let nothing_urgent = heads[0].is_none() && heads[1].is_none();
            if nothing_urgent && scope == Scope::Urgent {
                break;
            }
            if nothing_urgent && (bulk_left == 0 || shares.0[3] == 0) {
                if plain_left > 0 {
                    lanes.add(Part::Plain, plain_left, Some(Class::Normal));
                }
                if bulk_left > 0 {
                    lanes.add(Part::Bulk, bulk_left, Some(Class::Bulk));
                }
                break;
            }
            // The rests of packets are charged before the next packet is chosen.
            for (_, len, class) in rests.by_ref() {
                if let Some(class) = class {
                    credits.sent_rest(shares, &heads, class, len);
                }
            }
            let Some(class) = credits.pick(shares, &heads) else {
                break;
            };
            let len = match class {
                Class::Normal => {
                    let len = self.plain.next_packet(&mut plain).unwrap_or(0);
                    plain_left -= len;
                    lanes.add(Part::Plain, len, Some(class));
                    len
                }
                Class::Bulk => {
                    let len = lanes.bulk.next_packet(&mut bulk).unwrap_or(0);
                    bulk_left -= len;
                    lanes.add(Part::Bulk, len, Some(class));
                    len
                }
                Class::RealTime | Class::Priority => {
                    match lanes.encode_next(class, encoding, pool, stats, dropped, now) {
                        Some(len) => {
                            lanes.add(Part::Express, len, Some(class));
                            len
                        }
                        None => continue,
                    }
                }
            };
            credits.sent(shares, &heads, class, len);
            chosen += len;
        }
    }

    /// Puts urgent messages that were encoded, and of which no byte was written, back into their
    /// lanes.
    fn recall(&mut self, pool: &mut Pool) {
        let Some(lanes) = &mut self.lanes else { return };
        lanes.plan.clear();
        if lanes.sending.is_empty() {
            return;
        }
        let whole: usize = lanes.sending.iter().map(|sending| sending.len).sum();
        let cut = lanes.express.len() - whole;
        while let Some(sending) = lanes.sending.pop_back() {
            let lane = sending.class as usize & 1;
            lanes.urgent_load[lane].add(&sending.entry);
            let may_go = sending.entry.may_go();
            lanes.urgent[lane].push_back(sending.key, sending.arrival, may_go, sending.entry);
        }
        lanes.express.keep_front(cut, pool);
    }

    /// The first slices to be written, as [`Self::plan`] chose them; returns how many were filled
    /// in.
    #[inline]
    pub(crate) fn slices<'a>(&'a self, scope: Scope, slices: &mut [IoSlice<'a>]) -> usize {
        let Some(lanes) = &self.lanes else {
            // Without lanes only control packets are urgent.
            let limit = match scope {
                Scope::All => usize::MAX,
                Scope::Urgent => self.lead,
            };
            return self.plain.slices(0, limit, slices);
        };
        let mut filled = 0;
        let mut skips = [0; 4];
        for piece in &lanes.plan {
            let buffer = match piece.part {
                Part::Control => &lanes.control,
                Part::Express => &lanes.express,
                Part::Bulk => &lanes.bulk,
                Part::Plain => &self.plain,
            };
            let skip = &mut skips[piece.part as usize];
            filled += buffer.slices(*skip, piece.len, &mut slices[filled..]);
            *skip += piece.len;
        }
        filled
    }

    /// Notes that the first `n` bytes of [`Self::slices`] were written.
    #[inline]
    pub(crate) fn advance(
        &mut self,
        n: usize,
        shares: &Shares,
        pool: &mut Pool,
        stats: &mut Stats,
        now: Nanos,
    ) {
        if self.lanes.is_some() {
            return self.advance_lanes(n, shares, pool, stats, now);
        }
        self.plain.advance(n, pool);
        self.lead = self.lead.saturating_sub(n);
    }

    fn advance_lanes(
        &mut self,
        mut n: usize,
        shares: &Shares,
        pool: &mut Pool,
        stats: &mut Stats,
        now: Nanos,
    ) {
        let Some(lanes) = &mut self.lanes else { return };
        let planned: usize = lanes.plan.iter().map(|piece| piece.len).sum();
        lanes.halved = match n < planned {
            true => (ROUND / n.max(1)).checked_ilog2().unwrap_or(0).min(LEAST),
            false => lanes.halved.saturating_sub(1),
        };
        let sending: usize = lanes.sending.iter().map(|sending| sending.len).sum();
        let cut = lanes.express.len() - sending;
        let mut express = 0;
        while let Some(piece) = lanes.plan.pop_front() {
            let written = piece.len.min(n);
            n -= written;
            if let Some(class) = piece.class
                && written > 0
            {
                let waits = [
                    lanes.has_urgent(Class::RealTime),
                    lanes.has_urgent(Class::Priority),
                    !self.plain.is_empty(),
                    !lanes.bulk.is_empty(),
                ];
                let heads: Heads =
                    std::array::from_fn(|lane| waits[lane].then_some(lanes.largest[lane]));
                match piece.part == Part::Express && express + written <= cut {
                    true => lanes.credits.sent_rest(shares, &heads, class, written),
                    false => lanes.credits.sent(shares, &heads, class, written),
                }
            }
            match lanes.buffer(piece.part) {
                Some(buffer) => {
                    buffer.advance(written, pool);
                    if piece.part == Part::Express {
                        express += written;
                    }
                }
                None => {
                    self.plain.advance(written, pool);
                    self.lead = self.lead.saturating_sub(written);
                }
            }
        }
        // Urgent messages that were written, even in part, have left.
        express = express.saturating_sub(cut);
        while express > 0
            && let Some(sending) = lanes.sending.pop_front()
        {
            express = express.saturating_sub(sending.len);
            lanes.cut = Some(sending.class);
            stats.departed(&sending.entry, now);
        }
        if lanes.is_empty() {
            self.give_lanes_back(pool);
            return;
        }
        self.recall(pool);
        if let Some(lanes) = &mut self.lanes
            && !lanes.has_urgent(Class::RealTime)
        {
            lanes.credits.lane_0_is_empty();
        }
    }

    fn give_lanes_back(&mut self, pool: &mut Pool) {
        if let Some(mut lanes) = self.lanes.take() {
            lanes.credits = Credits::default();
            lanes.plan.clear();
            pool.give_lanes(lanes);
        }
    }

    /// Takes all output that is still to be written, in order.
    pub(crate) fn take_all(
        &mut self,
        encoding: Encoding,
        shares: &Shares,
        seat: &mut Seat<'_>,
        pool: &mut Pool,
        stats: &mut Stats,
        now: Nanos,
    ) -> Vec<u8> {
        let mut all = Vec::with_capacity(self.len());
        let mut dropped = Vec::new();
        while !self.is_empty() {
            self.plan(
                Scope::All,
                encoding,
                shares,
                seat,
                pool,
                stats,
                &mut dropped,
                now,
            );
            let mut slices = [IoSlice::new(&[]); PIECES];
            let filled = self.slices(Scope::All, &mut slices);
            let before = all.len();
            for slice in &slices[..filled] {
                all.extend_from_slice(slice);
            }
            let n = all.len() - before;
            if n == 0 && dropped.is_empty() {
                break;
            }
            dropped.clear();
            self.advance(n, shares, pool, stats, now);
        }
        self.release(seat, pool, stats);
        all
    }

    /// Drops all output and returns the memory to the pool.
    fn release(&mut self, seat: &mut Seat<'_>, pool: &mut Pool, stats: &mut Stats) {
        self.drop_urgent(seat, pool, stats);
        self.plain.release(pool);
        self.lead = 0;
        if let Some(lanes) = &mut self.lanes {
            lanes.control.release(pool);
            lanes.bulk.release(pool);
            lanes.express.release(pool);
            self.give_lanes_back(pool);
        }
    }

    /// Drops the urgent messages of which no byte was written, as their receiver is gone. Those
    /// with QoS above 0 are still in the window.
    pub(crate) fn drop_urgent(&mut self, seat: &mut Seat<'_>, pool: &mut Pool, stats: &mut Stats) {
        self.recall(pool);
        let Some(lanes) = &mut self.lanes else { return };
        for class in [Class::RealTime, Class::Priority] {
            lanes.draw(seat);
            while let Some((_, _, entry)) = lanes.urgent[class as usize].pop() {
                let stats = stats.class(class);
                stats.waiting -= 1;
                stats.dropped_gone += u64::from(entry.may_go());
                lanes.draw(seat);
            }
        }
        lanes.urgent_load = [Load::default(); 2];
    }

    /// Appends whole packets, at most `max` bytes and messages of one class only, to `out`. Must be
    /// called after [`Self::plan`]. Returns the class; that of control packets alone is the most
    /// urgent.
    pub(crate) fn next_packets(
        &mut self,
        max: usize,
        out: &mut Vec<u8>,
        shares: &Shares,
        pool: &mut Pool,
        stats: &mut Stats,
        now: Nanos,
    ) -> Option<Class> {
        let (mut bytes, mut class) = (0, None);
        let mut fits = |len: usize| {
            let fits = bytes + len <= max;
            bytes += if fits { len } else { 0 };
            fits
        };
        let mut place = self.plain.place(0);
        let mut first = None;
        match &self.lanes {
            None => {
                let mut left = self.lead;
                while let Some(len) = self.plain.next_packet(&mut place) {
                    let control = left > 0;
                    left = left.saturating_sub(len);
                    first = first.or(Some(len));
                    if !fits(len) {
                        break;
                    }
                    if !control {
                        class = Some(Class::Normal);
                    }
                }
            }
            Some(lanes) => {
                let mut bulk = lanes.bulk.place(0);
                let mut control = lanes.control.place(0);
                let mut express = lanes.sending.iter();
                'pieces: for piece in &lanes.plan {
                    if class.is_some() && piece.class != class {
                        break;
                    }
                    let mut left = piece.len;
                    while left > 0 {
                        let len = match piece.part {
                            Part::Plain => self.plain.next_packet(&mut place),
                            Part::Bulk => lanes.bulk.next_packet(&mut bulk),
                            Part::Control => lanes.control.next_packet(&mut control),
                            Part::Express => express.next().map(|sending| sending.len),
                        };
                        let Some(len) = len else { break 'pieces };
                        first = first.or(Some(len));
                        if !fits(len) {
                            break 'pieces;
                        }
                        class = class.or(piece.class);
                        left = left.saturating_sub(len);
                    }
                }
            }
        }
        let first = first?;
        if bytes == 0 {
            // No datagram can carry the packet.
            stats.dropped_too_large += 1;
            self.advance(first, shares, pool, stats, now);
            return None;
        }
        let from = out.len();
        match self.plain.in_a_row() {
            Some(data) if self.lanes.is_none() => out.extend_from_slice(&data[..bytes]),
            _ => {
                let mut slices = [IoSlice::new(&[]); 2 * PIECES];
                let filled = self.slices(Scope::All, &mut slices);
                for slice in &slices[..filled] {
                    let missing = bytes - (out.len() - from);
                    out.extend_from_slice(&slice[..slice.len().min(missing)]);
                }
            }
        }
        self.advance(out.len() - from, shares, pool, stats, now);
        Some(class.unwrap_or(Class::RealTime))
    }
}

impl Lanes {
    /// Takes messages that go before those in lanes 0 and 1 out of the shared queue. Of messages
    /// with equal keys, those in the lanes are older.
    #[inline]
    fn draw(&mut self, seat: &mut Seat<'_>) {
        for class in [Class::RealTime, Class::Priority] {
            let lane = class as usize;
            let Some(first) = self.awaited[lane].first else {
                continue;
            };
            let own = self.urgent[lane].peek();
            if own.is_none_or(|(key, _)| key > first.key)
                && let Some(entry) = self.leave_shared(class, first, false, seat)
            {
                // There is capacity: one bound holds for both places together.
                let may_go = entry.may_go();
                let _ = match self.sending.is_empty() {
                    true => self.urgent[lane].push(first.key, may_go, entry),
                    false => self.urgent[lane].append(first.key, may_go, entry),
                };
            }
        }
    }

    /// Takes one message out of the shared queue.
    fn leave_shared(
        &mut self,
        class: Class,
        place: Place,
        give_up: bool,
        seat: &mut Seat<'_>,
    ) -> Option<Entry> {
        let awaited = &mut self.awaited[class as usize & 1];
        let entry = seat.take(class, place, give_up);
        awaited.messages -= usize::from(entry.is_some());
        if awaited.messages == 0 {
            awaited.first = None;
        } else if awaited.first == Some(place) {
            awaited.first = seat.next(class, place);
        }
        entry
    }

    /// Removes the oldest of the least urgent messages that may be dropped, if it is dropped in
    /// favour of a message with that rank.
    fn give_up(
        &mut self,
        rank: Rank,
        overflow: Overflow,
        seat: &mut Seat<'_>,
    ) -> Option<(Class, Entry)> {
        for worst in [Class::Priority, Class::RealTime] {
            let lane = &mut self.urgent[worst as usize];
            let own = lane.worst_key();
            let awaited = match self.urgent_load[worst as usize].loose - lane.loose() {
                0 => None,
                _ => seat.worst(worst),
            };
            let Some(key) = own.max(awaited.map(|place| place.key)) else {
                continue;
            };
            let order = (worst, key).cmp(&(rank.class, rank.key));
            if order.is_lt() || (order.is_eq() && overflow == Overflow::RefuseNew) {
                return None;
            }
            let entry = match awaited {
                Some(place) if own.is_none_or(|own| own < place.key) => {
                    self.leave_shared(worst, place, true, seat)
                }
                _ => lane.give_up().map(|(_, entry)| entry),
            };
            return entry.map(|entry| (worst, entry));
        }
        None
    }

    /// Encodes the next message of a lane; `None` if the message may not be sent any more and was
    /// dropped.
    fn encode_next(
        &mut self,
        class: Class,
        encoding: Encoding,
        pool: &mut Pool,
        stats: &mut Stats,
        dropped: &mut Vec<Dropped>,
        now: Nanos,
    ) -> Option<usize> {
        let lane = class as usize & 1;
        let (key, arrival, entry) = self.urgent[lane].pop()?;
        self.urgent_load[lane].remove(&entry);
        let delivery = &entry.delivery;
        let message = &delivery.message;
        let fresh = entry.attempt != Attempt::Redelivery;
        let late = fresh && message.stamp.drop_late && message.stamp.deadline < now;
        let before = self.express.len();
        let form = Form {
            v5: encoding.v5,
            dup: entry.attempt == Attempt::Redelivery,
            qos: delivery.qos,
            retain: delivery.retain,
            packet_id: entry.packet_id,
            subscription_ids: delivery.ids(),
            number: delivery.number,
            alias: None,
        };
        if late {
            stats.class(class).dropped_late += 1;
            if let Some(watch) = &message.watch {
                watch.missed(now - message.stamp.admitted_at());
            }
        } else if fresh && message.is_expired(now) {
            stats.expired(class);
        } else if message
            .parts(now)
            .put(&form, encoding.max_packet, &mut self.express, pool)
        {
            let len = self.express.len() - before;
            self.sending.push_back(Sending {
                entry,
                class,
                key,
                arrival,
                len,
            });
            return Some(len);
        } else {
            stats.dropped_too_large += 1;
        }
        stats.class(class).waiting -= 1;
        if delivery.qos != QoS::AtMostOnce {
            dropped.push(Dropped {
                packet_id: entry.packet_id,
                qos: delivery.qos,
            });
        }
        None
    }
}
