//! Operations that were emitted and have not been handed over to the store, and the messages that
//! need them.
//!
//! A message that all its receivers acknowledge in time need not be stored. So the operations of a
//! turn, a *chunk*, stay here for a limited time ([`PendingOperations::take`]): an entry that is finished before
//! its chunk is handed over is withdrawn together with later operations on it, and the content with
//! its last entry. The publisher is answered at once when nothing of a message has to survive, even
//! if its operations were handed over.
//!
//! Invariant: chunks are handed over whole and in order, except for withdrawn operations, so that
//! the state on disk is that of some moment, without messages that were finished soon afterwards. A
//! content is withdrawn only with all entries that refer to it, and an entry only if its session
//! has finished the message: an entry that is copied stays ([`PendingOperations::insist`]), since a store
//! discards a content without entries.
//!
//! A message with a single receiver, a session of this shard, is encoded into operations only when
//! it is handed over ([`light`]).
//!
//! An entry of a session of another shard is treated like one of this shard: that shard notifies
//! this one when the session has finished it, unless that shard has handed over operations on it
//! itself, or the message is copied.
//!
//! A chunk stays about as long as receivers have taken recently, within bounds, and not at all
//! while most of them take longer: then waiting would only delay commits.

mod foreign;
mod light;

pub(super) use self::light::Light;

use std::collections::VecDeque;

use punctual_store::{Batch, Op, RisingMap, TentativeBatch};

use self::foreign::Foreign;
use super::wall::Offset;
use crate::Nanos;
use crate::base::connection::ConnId;

/// Least number of turns that a chunk stays: under load a message that is sent in one turn is
/// acknowledged two turns later at the earliest.
const TURNS: u64 = 3;
/// Bytes below which slow receivers are not a sign of load, and no publisher waits longer than a
/// commit takes.
const LITTLE: usize = 64 << 10;
/// Divisor of the longest time that a chunk stays: the quotient is the shortest time under load,
/// and the longest time otherwise.
const SHORT: u64 = 16;
/// Number of entries after which the shard decides again whether deferring operations is useful.
const SAMPLE: u32 = 1024;
/// Number of messages with one receiver for which memory stays allocated while there are none.
const SPARE_LIGHTS: usize = 4096;
/// Largest memory of a chunk, in bytes, that is reused for another chunk.
const SPARE: usize = 1 << 20;

/// Operations of one turn.
#[derive(Debug, Default)]
struct Chunk {
    ticket: u64,
    ops: TentativeBatch,
    /// Number of [`Light`] messages of the chunk, bytes of their operations, and number of the
    /// first entry of them.
    light: usize,
    light_bytes: usize,
    first_light: u64,
    /// Time and number of the turn in which the chunk began.
    at: Nanos,
    turn: u64,
}

impl Chunk {
    fn is_empty(&self) -> bool {
        self.ops.is_empty() && self.light == 0
    }

    fn bytes(&self) -> usize {
        self.ops.bytes() + self.light_bytes
    }
}

/// A content that was emitted.
#[derive(Debug)]
struct Content {
    /// Number of its message in the store.
    message: u64,
    /// Ticket of its chunk, and its place there.
    ticket: u64,
    place: Option<usize>,
    /// Number of references to the content.
    needs: u32,
    /// Connection to notify when there is no reference any more.
    publisher: Option<ConnId>,
}

/// An entry that this shard has emitted.
#[derive(Debug)]
struct Entry {
    /// Number of its content in [`PendingOperations`]; 0 if that was committed before.
    content: u64,
    at: Nanos,
    ticket: u64,
    place: Option<usize>,
    /// Ticket and place of the operation with its packet identifier.
    sent: Option<(u64, usize)>,
}

/// The notification that is needed for an entry that a session has finished.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Done {
    /// None: the entry was not handed over, and never will be.
    Needless,
    /// An [`Op::Done`] of this shard.
    Stored,
    /// A message to the shard that has emitted the entry.
    Elsewhere(u16),
}

/// Operations to hand over.
#[derive(Debug)]
pub(super) struct Taken {
    /// Ticket of the last chunk.
    pub(super) ticket: u64,
    /// Empty if all operations were withdrawn.
    pub(super) batch: Batch,
    /// When the first chunk in the batch began.
    pub(super) since: Nanos,
}

/// Operations of one shard that are not handed over, and the messages that need them.
#[derive(Debug)]
pub(crate) struct PendingOperations {
    /// The chunk of this turn.
    open: Chunk,
    begun: bool,
    /// Operations and light messages since the start.
    recorded: u64,
    /// Chunks of earlier turns, the oldest first; their tickets are consecutive.
    closed: VecDeque<Chunk>,
    /// Ticket up to which all chunks were handed over.
    handed: u64,
    /// Bytes of all chunks that were not handed over.
    bytes: usize,
    contents: RisingMap<Content>,
    last_content: u64,
    /// Least message number of all contents.
    least_message: u64,
    entries: RisingMap<Entry>,
    lights: RisingMap<light::LightRecord>,
    foreign: Foreign,
    /// Publishers with messages that are not needed any more.
    pub(crate) freed: Vec<ConnId>,
    now: Nanos,
    turn: u64,
    /// Longest time that a chunk stays; 0 to hand over at once.
    patience: Nanos,
    habits: Habits,
    spare: TentativeBatch,
}

/// Recent times of receivers and commits.
#[derive(Debug)]
struct Habits {
    /// Numbers of recent entries that were finished in time, and of others.
    quick: u32,
    slow: u32,
    /// Time within which nearly all of the quick entries were finished.
    answer: Nanos,
    /// Average time from handing over to commit.
    commit: Nanos,
    /// Whether waiting for receivers is useful.
    useful: bool,
}

impl PendingOperations {
    /// Empty; the first chunk has that ticket.
    pub(super) fn new(ticket: u64) -> Self {
        Self {
            open: Chunk {
                ticket,
                ..Chunk::default()
            },
            begun: false,
            recorded: 0,
            closed: VecDeque::new(),
            handed: ticket - 1,
            bytes: 0,
            contents: RisingMap::default(),
            last_content: 0,
            least_message: u64::MAX,
            entries: RisingMap::default(),
            lights: RisingMap::with_spare(SPARE_LIGHTS),
            foreign: Foreign::default(),
            freed: Vec::new(),
            now: Nanos(0),
            turn: 0,
            patience: Nanos(0),
            habits: Habits {
                quick: 0,
                slow: 0,
                answer: Nanos(0),
                commit: Nanos::MAX,
                useful: true,
            },
            spare: TentativeBatch::default(),
        }
    }

    /// Ticket of the operation that was emitted last.
    pub(super) fn latest(&self) -> u64 {
        self.open.ticket - u64::from(!self.begun)
    }

    /// Whether an operation was emitted in this turn.
    pub(super) fn has_begun(&self) -> bool {
        self.begun
    }

    /// Number of operations and light messages recorded since the start.
    pub(super) fn recorded(&self) -> u64 {
        self.recorded
    }

    /// Whether there are operations to hand over, now or later.
    pub(super) fn has_some(&self) -> bool {
        self.begun || !self.closed.is_empty()
    }

    /// Whether the operations with that ticket were not handed over.
    pub(super) fn has(&self, ticket: u64) -> bool {
        ticket > self.handed
    }

    /// Bytes of the operations that were not handed over to the writer.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Sets the present time.
    pub(super) fn see(&mut self, now: Nanos) {
        self.now = self.now.max(now);
    }

    fn begin(&mut self) {
        self.recorded += 1;
        if !std::mem::replace(&mut self.begun, true) {
            (self.open.at, self.open.turn) = (self.now, self.turn);
        }
    }

    /// Appends an operation; returns its place in the chunk of this turn.
    pub(super) fn emit(&mut self, op: &Op<'_>) -> Option<usize> {
        self.begin();
        let before = self.open.ops.bytes();
        let place = self.open.ops.push(op);
        self.bytes += self.open.ops.bytes() - before;
        place
    }

    /// Records that the content of a message was emitted; returns the content's number.
    pub(super) fn add_content(&mut self, message: u64, place: Option<usize>) -> u64 {
        if self.contents.is_empty() {
            self.least_message = u64::MAX;
        }
        self.least_message = self.least_message.min(message);
        self.last_content += 1;
        let content = Content {
            message,
            ticket: self.open.ticket,
            place,
            needs: 0,
            publisher: None,
        };
        self.contents.insert(self.last_content, content);
        self.last_content
    }

    /// Whether a content is recorded. Otherwise it was withdrawn, or is committed.
    pub(super) fn has_content(&self, content: u64) -> bool {
        self.contents.get(content).is_some()
    }

    /// The number of the content of a message, by the message's number in the store; 0 if it is not
    /// recorded, and so is committed if it is stored.
    pub(super) fn content_of(&self, message: u64) -> u64 {
        // Mostly the content was committed long before.
        if message < self.least_message {
            return 0;
        }
        let mut contents = self.contents.iter();
        contents
            .find(|(_, content)| content.message == message)
            .map_or(0, |(number, _)| number)
    }

    /// Whether something of a message has to survive, as far as this shard knows.
    pub(super) fn is_needed(&self, content: u64) -> bool {
        let content = self.contents.get(content);
        content.is_some_and(|content| content.needs > 0)
    }

    /// Adds a reference to a content, so that it is not withdrawn.
    pub(super) fn pin(&mut self, content: u64) {
        if let Some(content) = self.contents.get_mut(content) {
            content.needs += 1;
        }
    }

    /// Sets the publisher to notify when a message is not needed any more.
    pub(crate) fn tell(&mut self, content: u64, publisher: ConnId) {
        if let Some(content) = self.contents.get_mut(content) {
            content.publisher = Some(publisher);
        }
    }

    /// Records an emitted entry, which is withdrawn if its session finishes it soon.
    pub(super) fn add_entry(&mut self, entry: u64, content: u64, place: Option<usize>) {
        self.pin(content);
        let known = Entry {
            content,
            at: self.now,
            ticket: self.open.ticket,
            place,
            sent: None,
        };
        self.entries.insert(entry, known);
    }

    /// Records an entry of a session of this shard that another shard has emitted, and may not have
    /// handed over.
    pub(crate) fn add_foreign(&mut self, entry: u64, home: u16) {
        self.foreign.add(entry, home, self.now);
    }

    /// Whether entries that other shards have emitted are recorded.
    pub(crate) fn has_foreign(&self) -> bool {
        !self.foreign.is_empty()
    }

    /// Whether another shard has emitted that entry, and may not have handed it over.
    pub(crate) fn is_foreign(&self, entry: u64) -> bool {
        self.foreign.has(entry)
    }

    /// Records the place of the operation with the packet identifier of an entry, and withdraws an
    /// earlier one.
    pub(super) fn was_sent(&mut self, entry: u64, place: Option<usize>) {
        let ticket = self.open.ticket;
        let foreign = self.foreign.get_mut(entry).map(|known| &mut known.sent);
        let own = self.entries.get_mut(entry).map(|known| &mut known.sent);
        let light = self.lights.get_mut(entry).map(|known| &mut known.sent);
        let Some(sent) = foreign.or(own).or(light) else {
            return;
        };
        let before = std::mem::replace(sent, place.map(|place| (ticket, place)));
        if let Some((ticket, place)) = before {
            self.withdraw(ticket, Some(place));
        }
    }

    /// A session has finished an entry; returns the notification that is needed.
    pub(super) fn done(&mut self, entry: u64) -> Done {
        if let Some(done) = self.light_done(entry) {
            return done;
        }
        if let Some(known) = self.foreign.remove(entry) {
            self.habits.answered(self.now - known.at, self.patience);
            if known.insisted {
                return Done::Stored;
            }
            if let Some((ticket, place)) = known.sent {
                if ticket <= self.handed {
                    return Done::Stored;
                }
                self.withdraw(ticket, Some(place));
            }
            return Done::Elsewhere(known.home);
        }
        let Some(known) = self.entries.remove(entry) else {
            return Done::Stored;
        };
        self.habits.answered(self.now - known.at, self.patience);
        let here = known.ticket > self.handed;
        if here {
            self.withdraw(known.ticket, known.place);
            if let Some((ticket, place)) = known.sent {
                self.withdraw(ticket, Some(place));
            }
        }
        self.release(known.content);
        match here {
            true => Done::Needless,
            false => Done::Stored,
        }
    }

    /// Makes sure that an entry is handed over, even if its session finishes it: it is to be
    /// copied, and has to be in the store until the copy is committed. Its content stays with it.
    pub(super) fn insist(&mut self, entry: u64) {
        let foreign = self.foreign.get_mut(entry).map(|known| &mut known.insisted);
        let light = self.lights.get_mut(entry).map(|known| &mut known.insisted);
        match foreign.or(light) {
            Some(insisted) => *insisted = true,
            None => {
                self.entries.remove(entry);
            }
        }
    }

    fn release(&mut self, number: u64) {
        let Some(content) = self.contents.get_mut(number) else {
            return;
        };
        content.needs = content.needs.saturating_sub(1);
        if content.needs > 0 {
            return;
        }
        if let Some(content) = self.contents.remove(number) {
            self.withdraw(content.ticket, content.place);
            if let Some(publisher) = content.publisher {
                self.free(publisher);
            }
        }
    }

    /// Lists the publisher of a message that is not needed any more.
    fn free(&mut self, publisher: ConnId) {
        if self.freed.last() != Some(&publisher) {
            self.freed.push(publisher);
        }
    }

    /// The chunk with that ticket, if it was not handed over.
    fn chunk_mut(&mut self, ticket: u64) -> Option<&mut Chunk> {
        if ticket == self.open.ticket {
            return Some(&mut self.open);
        }
        let first = self.closed.front()?.ticket;
        self.closed.get_mut(ticket.checked_sub(first)? as usize)
    }

    /// Withdraws an operation unless it was handed over.
    fn withdraw(&mut self, ticket: u64, place: Option<usize>) {
        if let (Some(chunk), Some(place)) = (self.chunk_mut(ticket), place) {
            self.bytes -= chunk.ops.withdraw(place);
        }
    }

    /// Ends a turn, and hands over the chunks that have stayed long enough; all of them with `all`.
    /// `offset` converts times to those of the wall clock.
    pub(super) fn take(
        &mut self,
        now: Nanos,
        patience: Nanos,
        all: bool,
        offset: Offset,
    ) -> Option<Taken> {
        self.see(now);
        self.patience = patience;
        self.turn += 1;
        if std::mem::take(&mut self.begun) {
            let next = Chunk {
                ticket: self.open.ticket + 1,
                ops: std::mem::take(&mut self.spare),
                ..Chunk::default()
            };
            let chunk = std::mem::replace(&mut self.open, next);
            self.closed.push_back(chunk);
        }
        // Twice the time for which an entry may stay at another shard.
        let before = Nanos(now.0.saturating_sub(2 * patience.0));
        self.habits.slow += self.foreign.forget(before);
        self.habits.judge();
        let all = all || patience == Nanos(0) || !self.habits.useful;
        let stay = self.stay();
        let mut taken: Option<Taken> = None;
        while let Some(chunk) = self.closed.pop_front_if(|chunk| {
            let long = now >= chunk.at + stay && self.turn >= chunk.turn + TURNS;
            all || long || chunk.is_empty()
        }) {
            self.handed = chunk.ticket;
            self.bytes -= chunk.bytes();
            let taken = taken.get_or_insert(Taken {
                ticket: chunk.ticket,
                batch: Batch::new(),
                since: chunk.at,
            });
            taken.ticket = chunk.ticket;
            if chunk.is_empty() {
                self.reuse(chunk.ops);
            } else if taken.batch.is_empty() {
                taken.since = chunk.at;
                taken.batch = chunk.hand_over(&mut self.lights, offset);
            } else {
                taken
                    .batch
                    .append(&chunk.hand_over(&mut self.lights, offset));
            }
        }
        taken
    }

    fn reuse(&mut self, mut ops: TentativeBatch) {
        if (self.spare.capacity()..SPARE).contains(&ops.capacity()) {
            ops.clear();
            self.spare = ops;
        }
    }

    /// How long chunks stay now.
    fn stay(&self) -> Nanos {
        let least = Nanos(self.patience.0 / SHORT);
        match self.bytes < LITTLE {
            true => self.habits.commit.min(least),
            false => Nanos(2 * self.habits.answer.0).clamp(least, self.patience),
        }
    }

    /// When the oldest chunk is to be handed over.
    pub(super) fn due(&self) -> Option<Nanos> {
        Some(self.closed.front()?.at + self.stay())
    }

    /// Operations with tickets up to `ticket` are committed; they were handed over `took` ago.
    pub(super) fn committed(&mut self, ticket: u64, took: Nanos) {
        self.habits.commit = match self.habits.commit {
            Nanos::MAX => took,
            usual => Nanos((usual.0 * 7 + took.0) / 8),
        };
        self.forget(ticket);
    }

    /// Forgets contents and entries with tickets up to `ticket`, which are committed or not needed.
    pub(crate) fn forget(&mut self, ticket: u64) {
        self.contents.pop_while(|content| content.ticket <= ticket);
        let late = self.entries.pop_while(|entry| entry.ticket <= ticket)
            + self.lights.pop_while(|light| light.ticket <= ticket);
        self.habits.slow += late as u32;
    }
}

impl Habits {
    /// Records that an entry was finished after the time `took`.
    fn answered(&mut self, took: Nanos, patience: Nanos) {
        if took > patience {
            self.slow += 1;
            return;
        }
        self.quick += 1;
        // An estimate near the longest time: it rises fast and falls slowly.
        self.answer = match took > self.answer {
            true => self.answer + Nanos((took - self.answer).0 / 4),
            false => self.answer - Nanos((self.answer - took).0 / 256),
        };
    }

    /// Decides whether waiting is useful, by the recent entries.
    fn judge(&mut self) {
        let all = self.quick.saturating_add(self.slow);
        if all < SAMPLE {
            return;
        }
        if self.quick >= all / 2 {
            self.useful = true;
        } else if self.quick < all / 4 {
            self.useful = false;
        }
        // Earlier entries count half.
        (self.quick, self.slow) = (self.quick / 2, self.slow / 2);
    }
}

#[cfg(test)]
mod tests;
