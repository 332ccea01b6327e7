//! What was emitted and is not committed: operations that have not been handed over
//! yet, and which messages need them.
//!
//! A message that all its receivers acknowledge in time need not be stored. So the
//! operations of a turn, a *chunk*, stay here for a while ([`Kept::take`]): an entry
//! that is done with before its chunk is handed over is withdrawn together with
//! what was said of it, and the content with the last of them. Its publisher is told
//! at once when nothing of a message has to survive, also if it was handed over
//! already.
//!
//! Invariant: chunks are handed over whole and in their order, but for what was
//! withdrawn, so that what is on disk is the state at some moment, without what was
//! over soon afterwards. A content is withdrawn only with all entries that refer to it, and
//! an entry only if its session has done with the message: one that is copied stays
//! ([`Kept::insist`]), for a store gives up a content that comes without entries.
//!
//! A message that one session of this shard receives, and nobody else, is not even made into
//! operations before it is handed over ([`light`]).
//!
//! An entry of a session of another shard is treated like one of this shard: that shard
//! tells this one when the session has done with it, unless it has handed over something
//! about it itself, or the message is copied.
//!
//! How long a chunk stays is as long as receivers take lately, within bounds, and
//! not at all while most of them take longer: then waiting would only delay commits.

mod foreign;
mod light;

pub(super) use self::light::Light;

use std::collections::VecDeque;

use punctual_store::{Batch, Op, RisingMap, TentativeBatch};

use self::foreign::Foreign;
use super::wall::Offset;
use crate::Nanos;
use crate::base::connection::ConnId;

/// Turns that a chunk stays at least: what is sent in one is acknowledged in the next
/// but one at the earliest, if all are busy.
const TURNS: u64 = 3;
/// Bytes up to which it is not load that makes receivers slow, and nobody is to wait
/// longer than commits take.
const LITTLE: usize = 64 << 10;
/// The part of the longest time that a chunk stays which is the shortest under load, and
/// the longest otherwise.
const SHORT: u64 = 16;
/// Number of entries after which the shard decides anew whether it pays to keep operations back.
const SAMPLE: u32 = 1024;
/// Messages with one receiver for which there is memory while there is none.
const SPARE_LIGHTS: usize = 4096;
/// Bytes of memory of a chunk that are kept for another.
const SPARE: usize = 1 << 20;

/// Operations of one turn.
#[derive(Debug, Default)]
struct Chunk {
    ticket: u64,
    ops: TentativeBatch,
    /// Messages beside these, bytes of their operations, and the first of their entries.
    light: usize,
    light_bytes: usize,
    first_light: u64,
    /// When it began, and in which turn.
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
    /// Chunk, and its place there.
    ticket: u64,
    place: Option<usize>,
    /// What refers to it.
    needs: u32,
    /// Whom to tell when nothing does any more.
    publisher: Option<ConnId>,
}

/// An entry that this shard has emitted.
#[derive(Debug)]
struct Entry {
    /// Number of its content here; 0 if that was committed before.
    content: u64,
    at: Nanos,
    ticket: u64,
    place: Option<usize>,
    /// Where its packet identifier was said.
    sent: Option<(u64, usize)>,
}

/// What has to be said about an entry that a session has done with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Done {
    /// Nothing: it was not handed over, and never will be.
    Needless,
    /// That.
    Stored,
    /// That, to the shard that has emitted it.
    Elsewhere(u16),
}

/// What is to be handed over.
#[derive(Debug)]
pub(super) struct Taken {
    /// Of its last chunk.
    pub(super) ticket: u64,
    /// Empty if all of it was withdrawn.
    pub(super) batch: Batch,
    /// When the first of it came.
    pub(super) since: Nanos,
}

/// Operations and messages of one shard.
#[derive(Debug)]
pub(crate) struct Kept {
    /// Of this turn.
    open: Chunk,
    begun: bool,
    /// Operations since the start.
    emitted: u64,
    /// The oldest first; their tickets are consecutive.
    closed: VecDeque<Chunk>,
    /// Ticket up to which all were handed over.
    handed: u64,
    /// Bytes of all that were not.
    bytes: usize,
    contents: RisingMap<Content>,
    last_content: u64,
    /// No content has a lower number in the store.
    least_message: u64,
    entries: RisingMap<Entry>,
    lights: RisingMap<light::Known>,
    foreign: Foreign,
    /// Whose messages are not needed any more.
    pub(crate) freed: Vec<ConnId>,
    now: Nanos,
    turn: u64,
    /// How long a chunk stays at most; 0 for not at all.
    patience: Nanos,
    habits: Habits,
    spare: TentativeBatch,
}

/// What receivers and commits take lately.
#[derive(Debug)]
struct Habits {
    /// Entries that were done with in time, and others, lately.
    quick: u32,
    slow: u32,
    /// Time until nearly all of the quick ones were done with.
    answer: Nanos,
    /// Time until what was handed over is committed.
    commit: Nanos,
    /// Whether it is of use to wait for them.
    useful: bool,
}

impl Kept {
    /// Whose first chunk has that ticket.
    pub(super) fn new(ticket: u64) -> Self {
        Self {
            open: Chunk {
                ticket,
                ..Chunk::default()
            },
            begun: false,
            emitted: 0,
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

    /// Of the operation that was emitted last.
    pub(super) fn latest(&self) -> u64 {
        self.open.ticket - u64::from(!self.begun)
    }

    /// Whether something was emitted in this turn.
    pub(super) fn has_begun(&self) -> bool {
        self.begun
    }

    /// Number of operations emitted since the start.
    pub(super) fn emitted(&self) -> u64 {
        self.emitted
    }

    /// Whether there is something to hand over, now or later.
    pub(super) fn has_some(&self) -> bool {
        self.begun || !self.closed.is_empty()
    }

    /// Whether what has that ticket was not handed over.
    pub(super) fn has(&self, ticket: u64) -> bool {
        ticket > self.handed
    }

    /// Bytes that were not handed over.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Time passes.
    pub(super) fn see(&mut self, now: Nanos) {
        self.now = self.now.max(now);
    }

    fn begin(&mut self) {
        if !std::mem::replace(&mut self.begun, true) {
            (self.open.at, self.open.turn) = (self.now, self.turn);
        }
    }

    /// Appends an operation; returns where it is in the chunk of this turn.
    pub(super) fn emit(&mut self, op: &Op<'_>) -> Option<usize> {
        self.begin();
        self.emitted += 1;
        let before = self.open.ops.bytes();
        let place = self.open.ops.push(op);
        self.bytes += self.open.ops.bytes() - before;
        place
    }

    /// Notes that the content of a message was emitted; returns its number here.
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

    /// Whether a content is there. If not it was withdrawn, or is committed.
    pub(super) fn has_content(&self, content: u64) -> bool {
        self.contents.get(content).is_some()
    }

    /// The content of a message by its number in the store; 0 if it is not here, and
    /// so is committed if it is stored.
    pub(super) fn content_of(&self, message: u64) -> u64 {
        // Mostly it was there long before.
        if message < self.least_message {
            return 0;
        }
        let mut contents = self.contents.iter();
        contents
            .find(|(_, content)| content.message == message)
            .map_or(0, |(number, _)| number)
    }

    /// Whether something of a message has to survive, as far as it is known here.
    pub(super) fn is_needed(&self, content: u64) -> bool {
        let content = self.contents.get(content);
        content.is_some_and(|content| content.needs > 0)
    }

    /// Something refers to a content that is not withdrawn.
    pub(super) fn pin(&mut self, content: u64) {
        if let Some(content) = self.contents.get_mut(content) {
            content.needs += 1;
        }
    }

    /// Tells a publisher when a message is not needed any more.
    pub(crate) fn tell(&mut self, content: u64, publisher: ConnId) {
        if let Some(content) = self.contents.get_mut(content) {
            content.publisher = Some(publisher);
        }
    }

    /// Notes that an entry was emitted, which is withdrawn if its session has done
    /// with it soon.
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

    /// Notes an entry of a session of this shard that another shard has emitted, and
    /// that may stay there for a while.
    pub(crate) fn add_foreign(&mut self, entry: u64, home: u16) {
        self.foreign.add(entry, home, self.now);
    }

    /// Whether it knows entries that other shards have emitted.
    pub(crate) fn has_foreign(&self) -> bool {
        !self.foreign.is_empty()
    }

    /// Whether another shard has emitted an entry, and may not have handed it over.
    pub(crate) fn is_foreign(&self, entry: u64) -> bool {
        self.foreign.has(entry)
    }

    /// Notes where the packet identifier of an entry was said.
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

    /// A session has done with an entry; what has to be said of that.
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

    /// An entry is handed over, whatever its session says: another one is to take its place,
    /// and until that is committed this one has to be there. Its content stays with it.
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

    /// A message is not needed any more.
    fn free(&mut self, publisher: ConnId) {
        if self.freed.last() != Some(&publisher) {
            self.freed.push(publisher);
        }
    }

    /// One that was not handed over.
    fn chunk_mut(&mut self, ticket: u64) -> Option<&mut Chunk> {
        if ticket == self.open.ticket {
            return Some(&mut self.open);
        }
        let first = self.closed.front()?.ticket;
        self.closed.get_mut(ticket.checked_sub(first)? as usize)
    }

    /// Takes back an operation unless it was handed over.
    fn withdraw(&mut self, ticket: u64, place: Option<usize>) {
        if let (Some(chunk), Some(place)) = (self.chunk_mut(ticket), place) {
            self.bytes -= chunk.ops.withdraw(place);
        }
    }

    /// Ends a turn, and hands over what has stayed for long enough; with `all`,
    /// everything. Times are stored as `offset` says.
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
        // As long as it may stay there, and some more.
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

    /// How long chunks stay.
    fn stay(&self) -> Nanos {
        let least = Nanos(self.patience.0 / SHORT);
        match self.bytes < LITTLE {
            true => self.habits.commit.min(least),
            false => Nanos(2 * self.habits.answer.0).clamp(least, self.patience),
        }
    }

    /// When something is to be handed over that stays now.
    pub(super) fn due(&self) -> Option<Nanos> {
        Some(self.closed.front()?.at + self.stay())
    }

    /// What has a ticket up to that is committed, of what was handed over `took` ago.
    pub(super) fn committed(&mut self, ticket: u64, took: Nanos) {
        self.habits.commit = match self.habits.commit {
            Nanos::MAX => took,
            usual => Nanos((usual.0 * 7 + took.0) / 8),
        };
        self.forget(ticket);
    }

    /// What has a ticket up to that is safe or not needed.
    pub(crate) fn forget(&mut self, ticket: u64) {
        self.contents.pop_while(|content| content.ticket <= ticket);
        let late = self.entries.pop_while(|entry| entry.ticket <= ticket)
            + self.lights.pop_while(|light| light.ticket <= ticket);
        self.habits.slow += late as u32;
    }
}

impl Habits {
    /// An entry was done with after that time.
    fn answered(&mut self, took: Nanos, patience: Nanos) {
        if took > patience {
            self.slow += 1;
            return;
        }
        self.quick += 1;
        // Near the longest: it rises soon and falls slowly.
        self.answer = match took > self.answer {
            true => self.answer + Nanos((took - self.answer).0 / 4),
            false => self.answer - Nanos((self.answer - took).0 / 256),
        };
    }

    /// Decides whether it is of use to wait, by what was seen lately.
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
        // What was before counts half.
        (self.quick, self.slow) = (self.quick / 2, self.slow / 2);
    }
}

#[cfg(test)]
mod tests;
