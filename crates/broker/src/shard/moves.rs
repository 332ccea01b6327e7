//! How sessions go to other brokers of a mesh and come from there, see [`crate::moves`].
//!
//! Each part has its module: [`asking`], [`coming`] and [`leaving`]. Here is what hands them letters of
//! other brokers and errands that are due, and what they share.

mod asking;
mod coming;
mod leaving;

use super::Shard;
use crate::Nanos;
use crate::hub::Hub;
use crate::moves::{Errand, Letter, MoveTimes, Way};
use crate::session::Session;
use crate::timers::Timer;

/// A part of a stream.
struct Part<'a> {
    stream: u64,
    number: u32,
    round: bool,
    end: bool,
    bytes: &'a [u8],
}

impl Shard {
    /// What the core of another broker has written about a client's session.
    pub fn letter(&mut self, from: &str, client_id: &str, body: &[u8], now: Nanos) {
        let way: Way = (client_id.into(), from.into());
        match Letter::decode(body) {
            Some(Letter::Take { at, user }) => self.take_away(&way, at, user, now),
            Some(Letter::Nothing { at }) => self.nothing_comes(&way, at, now),
            Some(Letter::Newer { at }) => self.is_newer_there(&way, at, now),
            Some(Letter::Part {
                stream,
                number,
                round,
                end,
                bytes,
            }) => {
                let part = Part {
                    stream,
                    number,
                    round,
                    end,
                    bytes,
                };
                self.part_came(&way, &part, now);
            }
            Some(Letter::Got { stream, next }) => self.part_is_there(&way, stream, next, now),
            Some(Letter::Lost { stream }) => self.stream_is_lost(&way, stream, now),
            Some(Letter::Gone { stream }) => {
                if let Some(slot) = self.hub.leaves_with(&way, stream) {
                    self.end_session(slot, now);
                }
            }
            Some(Letter::Void { stream }) => self.stream_is_void(&way, stream, now),
            // It cannot be read.
            None => {}
        }
        self.hub.answered(&way);
        self.hub.ask_on(&way.1, now);
        self.share_stats_soon(now);
    }

    pub(super) fn run_errand(&mut self, id: u64, now: Nanos) {
        let hub = &mut self.hub;
        let Some((due, errand)) = hub.moves.errands.get_mut(&id) else {
            return;
        };
        if *due > now {
            return;
        }
        *due = Nanos::MAX;
        match errand.clone() {
            Errand::Awaiting(client) => {
                let until = hub.moves.awaiting.get(&client).map(|waits| waits.until);
                match until {
                    Some(until) if until > now => hub.put_off(id, until),
                    _ => self.connect_awaiting(&client, now),
                }
            }
            Errand::Leaving { slot, session } => {
                let is_it = |it: &Session| it.handle.number == session;
                if hub.sessions.get(slot).is_some_and(is_it) {
                    hub.look_after_leaving(slot, now);
                }
            }
            Errand::Coming(way) => hub.look_after_coming(&way, now),
            Errand::Unsure {
                slot,
                session,
                again,
            } => {
                hub.moves.errands.remove(&id);
                hub.ask_once_more(slot, session, again, now);
            }
            Errand::Asking(broker) => hub.look_after_asking(id, &broker, now),
            Errand::Had { slot, session } => hub.forget_had(id, slot, session, now),
            Errand::Ahead { slot, session } => hub.ahead_is_due(id, slot, session, now),
            Errand::Inherited { slot, session } => hub.inherited_is_due(id, slot, session, now),
            Errand::Orphan { slot, session } => hub.look_after_orphan(id, slot, session, now),
        }
    }
}

impl Hub {
    pub(crate) fn move_times(&self) -> MoveTimes {
        let federation = self.directory.federation();
        federation.map_or(MoveTimes::NONE, |federation| federation.move_times())
    }

    /// Writes to the other broker about a client's session.
    fn write(&self, (client, broker): &Way, letter: &Letter<'_>) {
        if let Some(federation) = self.directory.federation() {
            federation.letter(broker, client, letter.encode());
        }
    }

    fn new_errand(&mut self, at: Nanos, errand: Errand) -> u64 {
        self.moves.last += 1;
        let id = self.moves.last;
        self.moves.errands.insert(id, (at, errand));
        self.timers.arm(at, Timer::Errand { id });
        id
    }

    fn put_off(&mut self, id: u64, at: Nanos) {
        if let Some((due, _)) = self.moves.errands.get_mut(&id)
            && *due != at
        {
            *due = at;
            self.timers.arm(at, Timer::Errand { id });
        }
    }

    /// Sends other brokers what waited for a commit here, and tells them which of their
    /// parts are committed.
    pub(crate) fn go_on_moving(&mut self, now: Nanos) {
        while let Some((ticket, slot, number)) = self.moves.unsafe_rounds.front().copied()
            && self.is_committed(ticket)
        {
            self.moves.unsafe_rounds.pop_front();
            let session = self.sessions.get(slot);
            if session.is_some_and(|session| session.handle.number == number) {
                self.send_on(slot, now);
            }
        }
        self.acknowledge_parts(now);
    }

    fn is_committed(&self, ticket: u64) -> bool {
        let journal = self.journal.as_ref();
        journal.is_none_or(|journal| journal.is_committed(ticket))
    }
}
