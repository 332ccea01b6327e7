//! A session that comes from another broker, or what is left of one: from when that is asked for it
//! until all of it is safe here, and what it has had, by which what comes twice is known.

use std::cmp::Ordering;
use std::collections::VecDeque;
use std::sync::Arc;

use punctual_codec::QoS;

use super::Part;
use crate::Nanos;
use crate::hub::{Event, Hub, Output};
use crate::journal::{Moved, Round};
use crate::moves::{
    Coming, Errand, Letter, MOST_PATIENCE, MoveTimes, PATIENCE, TRIES, TakenUp, Way, apart,
};
use crate::session::{Delivery, Inflight, Session, Step};
use crate::shard::Shard;

impl Shard {
    /// What came is not the session any more: the client is where it was, or elsewhere.
    pub(super) fn stream_is_void(&mut self, way: &Way, stream: u64, now: Nanos) {
        let Some(coming) = self.hub.moves.coming.get(way) else {
            return;
        };
        if coming.stream != stream || coming.complete {
            return;
        }
        let (at, came, joined) = (coming.at, coming.came && !coming.handed, coming.joined);
        self.hub.forget_coming(way);
        let slot = self.hub.session_named(&way.0);
        let session = slot.and_then(|slot| Some((slot, self.hub.sessions.get(slot)?)));
        if let Some((slot, session)) = session
            && came
            && session.leaving.is_none()
        {
            match session.arrived.cmp(&at) {
                // Its client was not let in with it.
                Ordering::Less if !joined => self.end_session(slot, now),
                Ordering::Equal => self.hub.follow_client(slot, now),
                _ => {}
            }
        }
    }

    pub(super) fn nothing_comes(&mut self, way: &Way, at: u64, now: Nanos) {
        let coming = self.hub.moves.coming.get(way);
        let Some(coming) = coming.filter(|coming| coming.at == at || at == 0) else {
            return;
        };
        let whole = coming.whole && !coming.came;
        self.hub.forget_coming(way);
        if whole && self.hub.awaits(&way.0, at) {
            self.seek_again(&way.0, now);
        }
    }

    /// The client has connected to the other broker later, of which nothing was heard here:
    /// what is here goes there.
    pub(super) fn is_newer_there(&mut self, way: &Way, at: u64, now: Nanos) {
        let (client, to) = way;
        if self.hub.comes_since(way).is_some_and(|since| since > at) {
            // That answers what was asked before.
            return;
        }
        self.hub.forget_coming(way);
        if let Some(federation) = self.hub.directory.federation() {
            federation.heard_arrival(at);
        }
        self.arrived_elsewhere(client, at, false, now);
        let Some(slot) = self.hub.session_named(client) else {
            return;
        };
        let Some(session) = self.hub.sessions.get(slot) else {
            return;
        };
        let (arrived, user) = (session.arrived, session.username.clone());
        if session.leaving.is_some() || session.is_transient() {
            return;
        }
        match arrived.cmp(&at) {
            Ordering::Greater if session.unheard => self.hub.keep_there(way, arrived, user, now),
            // And then here again, which was not heard of there.
            Ordering::Greater => self
                .hub
                .begin_coming(way.clone(), arrived, user, false, now),
            Ordering::Equal => {}
            Ordering::Less => self.hub.begin_leaving(slot, to, at, now),
        }
    }

    /// A part of a session that comes from another broker.
    pub(super) fn part_came(&mut self, way: &Way, part: &Part<'_>, now: Nanos) {
        let hub = &mut self.hub;
        let (client, from) = way;
        let Part { stream, number, .. } = *part;
        let slot = hub.session_named(client);
        let leaves = slot.and_then(|slot| hub.sessions.get(slot)?.leaving.as_ref());
        let waits = hub.moves.awaiting.get(client);
        let since = leaves.map(|it| it.at).max(waits.map(|it| it.number));
        let begins_whole = number == 0 && Round::begins_whole(part.bytes);
        let session = slot.and_then(|slot| hub.sessions.get(slot));
        let is_elsewhere = session.is_some_and(|it| it.elsewhere && it.conn.is_none());
        let coming = hub.moves.coming.get(way).filter(|coming| {
            // What was asked for before what is here began to leave, or its client came here, is not a
            // session that begins now: added to what is here, it might go back to where it comes from,
            // where all of it is known, or be taken for an older one. Nor is what was left when it was
            // asked for, and is a session by now, something of an old copy that its client has left.
            let was_left = is_elsewhere && waits.is_none() && coming.left && !coming.came;
            !(begins_whole && stream > coming.stream && (since > Some(coming.at) || was_left))
        });
        if coming.is_none() {
            if hub.moves.awaiting.contains_key(client) {
                // It is the session, perhaps, and what is left of an old one here does not take it
                // in: it comes again when it is known here who has what.
                return;
            }
            match session {
                // It was asked for when its client was here, and may be newer than what goes on after
                // that client.
                Some(session)
                    if (session.elsewhere || session.leaving.is_some()) && begins_whole =>
                {
                    // Nor is it asked for any more.
                    hub.forget_coming(way);
                    return hub.write(way, &Letter::Lost { stream });
                }
                // This broker has started again since it asked.
                Some(session) if number == 0 && session.link.is_none() => {
                    let (at, user) = (session.arrived, session.username.clone());
                    hub.note_coming(way.clone(), at, user, false, now);
                }
                _ => return hub.write(way, &Letter::Lost { stream }),
            }
        }
        let awaits = hub.moves.awaiting.contains_key(client);
        let whole = hub.moves.coming.get(way).is_some_and(|coming| coming.whole);
        if awaits && !whole && (slot.is_none() || begins_whole) {
            // What is left of a session, and other copies of it, come after it, when they are said again.
            return;
        }
        let Some(mut coming) = hub.moves.coming.remove(way) else {
            return;
        };
        if stream > coming.stream && number == 0 {
            (coming.stream, coming.next) = (stream, 0);
            (coming.round, coming.waits) = (None, None);
            coming.handed |= coming.came && !begins_whole;
            // What ended here was another session.
            coming.gone &= slot.is_none();
        }
        let known = coming.stream == stream;
        let answer = if coming.gone {
            Some(Letter::Gone { stream })
        } else if !known {
            Some(Letter::Lost { stream })
        } else if number != coming.next {
            let next = coming.next;
            let again = number < next && coming.waits.is_none();
            again.then_some(Letter::Got { stream, next })
        } else {
            coming.again = now + PATIENCE.max(MoveTimes::SILENCE);
            coming.patience = PATIENCE.max(MoveTimes::SILENCE);
            let session = slot.filter(|slot| !hub.gives_way(*slot, way, &coming));
            let round = coming.round.take();
            let round =
                round.unwrap_or_else(|| Box::new(Round::new(hub, client, from, session, now)));
            return self.read_part(way, coming, round, part, now);
        };
        hub.moves.coming.insert(way.clone(), coming);
        if let Some(answer) = answer {
            hub.write(way, &answer);
        }
    }

    /// The part that was expected has come.
    fn read_part(
        &mut self,
        way: &Way,
        mut coming: Coming,
        mut round: Box<Round>,
        part: &Part<'_>,
        now: Nanos,
    ) {
        let hub = &mut self.hub;
        let client = &way.0;
        let until = now + hub.move_times().wait;
        if let Some(waits) = hub.moves.awaiting.get_mut(client) {
            waits.until = until;
        }
        let stream = part.stream;
        let awaited = hub.awaits(client, coming.at) && coming.whole && !coming.came;
        let read = round.read(&hub.directory, part.bytes);
        if read.is_some() && !part.round {
            coming.next += 1;
            coming.round = Some(round);
            let next = coming.next;
            hub.moves.coming.insert(way.clone(), coming);
            hub.write(way, &Letter::Got { stream, next });
            return;
        }
        let moved = read.and_then(|()| round.finish());
        let is_left = moved.as_ref().is_some_and(|moved| !moved.whole);
        coming.whole &= !is_left;
        coming.handed |= coming.came && is_left;
        if is_left && !coming.came && hub.session_named(client).is_none() {
            if !hub.moves.awaiting.contains_key(client) {
                // Nor will there be one: its client has gone on.
                hub.moves.errands.remove(&coming.timer);
                return hub.write(way, &Letter::Lost { stream });
            }
            // There is no session any more; this comes again for the new one.
            hub.moves.coming.insert(way.clone(), coming);
            if awaited {
                self.seek_again(client, now);
            }
            return;
        }
        let is_whole = moved.as_ref().is_some_and(|moved| moved.whole);
        if is_whole
            && !coming.came
            && !hub.moves.awaiting.contains_key(client)
            && hub.is_unheard(client)
        {
            // It came too late for its client, which may not know that.
            hub.moves.errands.remove(&coming.timer);
            hub.write(way, &Letter::Lost { stream });
            return hub.keep_there(way, coming.at, coming.user, now);
        }
        let slot = moved.and_then(|moved| self.take_in(way, &mut coming, moved, now));
        let hub = &mut self.hub;
        let Some(slot) = slot else {
            hub.moves.errands.remove(&coming.timer);
            hub.write(way, &Letter::Lost { stream });
            if awaited {
                self.connect_awaiting(client, now);
            }
            return;
        };
        coming.next += 1;
        coming.ending = part.end;
        let durable = hub
            .sessions
            .get(slot)
            .is_some_and(|session| session.durable);
        let ticket = hub.journal.as_ref().map(|journal| journal.latest());
        coming.waits = Some(ticket.filter(|_| durable).unwrap_or(0));
        let ticket = coming.waits.unwrap_or(0);
        hub.moves.unsafe_parts.push_back((ticket, way.clone()));
        hub.moves.coming.insert(way.clone(), coming);
        hub.watch_had(slot, now);
        hub.acknowledge_parts(now);
        match awaited {
            // What is here may be older than what has gone on.
            true if is_left => self.seek_again(client, now),
            true => self.connect_awaiting(client, now),
            false => {}
        }
    }

    /// A round has come; returns the session that has it.
    fn take_in(&mut self, way: &Way, coming: &mut Coming, moved: Moved, now: Nanos) -> Option<u32> {
        let slot = self.hub.session_named(&way.0);
        let gives_way = |slot: &u32| moved.whole && self.hub.gives_way(*slot, way, coming);
        if let Some(slot) = slot.filter(|slot| !gives_way(slot)) {
            let count = self.hub.append(slot, moved, coming.came, now);
            if !coming.came {
                self.hub.stats.messages_moved_late += count;
                self.hub.note_joined(&way.0);
            }
            return Some(slot);
        }
        if coming.came || !moved.whole {
            return None;
        }
        if self.hub.store_trouble().is_some() {
            return None;
        }
        // What is here is older. Its subscriptions are hardly others.
        let wanted = slot
            .map(|slot| self.hub.keep_wanted(slot))
            .unwrap_or_default();
        let taken = self.take_place(way, coming, slot, moved, now);
        self.hub.end_wanted(wanted);
        taken
    }

    /// A session takes the place of what is here.
    fn take_place(
        &mut self,
        way: &Way,
        coming: &mut Coming,
        slot: Option<u32>,
        moved: Moved,
        now: Nanos,
    ) -> Option<u32> {
        let (client, from) = way;
        // Until its client is let in with it, it is older than what that is let in with elsewhere, but newer
        // than where it comes from, which need not hear that it is here, and than what is left here.
        let session = slot.and_then(|slot| self.hub.sessions.get(slot));
        let left = session.filter(|session| !session.unheard);
        let left = left.map_or(0, |session| session.arrived);
        let arrived = coming.arrived.max(left) + 1;
        let had = slot.and_then(|slot| self.hub.take_had(slot));
        let had = had.unwrap_or_default();
        let left = slot.map(|slot| self.leave_behind(slot, now));
        let (own, taken_up) = left.unwrap_or_default();
        let federation = self.hub.directory.federation();
        let apart = apart(federation.map_or("", |mesh| mesh.name()), coming.stream);
        if !self.hub.adopt(moved, arrived, &had, &own, apart, now) {
            return None;
        }
        let slot = self.hub.session_named(client)?;
        coming.joined = !own.is_empty();
        self.hub.append_own(slot, own, now);
        self.hub.take_up(slot, taken_up);
        if let Some(session) = self.hub.sessions.get_mut(slot) {
            let known = session.had.get_or_insert_default();
            known.learn(&had.known());
            known.ahead = Some(VecDeque::new());
        }
        self.hub.had_more(slot);
        if !self.hub.moves.awaiting.contains_key(client) {
            // Its client has gone on.
            self.hub.follow_client(slot, now);
        }
        coming.came = true;
        self.hub.stats.sessions_moved_in += 1;
        self.hub.outputs.push(Output::Event(Event::SessionCame {
            client_id: client.clone(),
            broker: from.clone(),
        }));
        Some(slot)
    }

    /// Ends a session whose place another one takes; returns the messages that wait in it, and
    /// identifiers that its client may remember.
    pub(in crate::shard) fn leave_behind(
        &mut self,
        slot: u32,
        now: Nanos,
    ) -> (Vec<Delivery>, Vec<TakenUp>) {
        self.stop_leaving(slot, now);
        let hub = &mut self.hub;
        hub.end_ahead(slot);
        if hub.take_will(slot).is_some() {
            hub.store_no_will(slot);
        }
        let Some(session) = hub.sessions.get(slot) else {
            return Default::default();
        };
        let exactly = |it: &Inflight<'_>| matches!(it.step, Step::Rec | Step::Comp);
        let taken_up = session.window.unfinished().filter(exactly);
        let taken_up = taken_up.map(|it| (it.packet_id, it.delivery.cloned()));
        let taken_up = taken_up.collect();
        let waiting = session.window.unacknowledged().chain(session.queue.iter());
        let waiting = waiting.cloned().collect();
        let client = session.handle.client_id.clone();
        // What comes for it comes for the next one.
        let ways = hub.moves.ways_of(&client);
        let coming: Vec<_> = ways
            .into_iter()
            .filter_map(|way| Some((hub.moves.coming.remove(&way)?, way)))
            .collect();
        self.end_session(slot, now);
        for (mut coming, way) in coming {
            // It may be the rest of the session that ends here, and is not of the next one.
            coming.came = false;
            self.hub.moves.coming.insert(way, coming);
        }
        (waiting, taken_up)
    }
}

impl Hub {
    /// Whether a session makes room for the one that comes: it is older, or what is left. What
    /// comes late, for a session that has gone on, goes after it.
    fn gives_way(&self, slot: u32, way: &Way, coming: &Coming) -> bool {
        let waits = coming.whole && self.moves.awaiting.contains_key(&way.0);
        let left = self
            .sessions
            .get(slot)
            .filter(|session| session.handed)
            .is_some_and(|it| it.leaving.as_ref().is_none_or(|it| it.at < coming.at));
        !coming.came && (left || waits)
    }

    /// Asks a broker for what it has of a session.
    pub(super) fn begin_coming(
        &mut self,
        way: Way,
        at: u64,
        user: Option<Arc<str>>,
        whole: bool,
        now: Nanos,
    ) {
        self.forget_coming(&way);
        self.ask_for(&way, at, user.as_deref());
        self.note_coming(way, at, user, whole, now);
    }

    /// For a client that connected here when a session is to come on that way; `None` if none is.
    pub(super) fn comes_since(&self, way: &Way) -> Option<u64> {
        let waits = self.moves.awaiting.get(&way.0).map(|waits| waits.number);
        let coming = self.moves.coming.get(way);
        let coming = coming.filter(|_| !self.is_unheard(&way.0));
        let coming = coming.filter(|coming| !coming.complete && !coming.gone);
        waits.max(coming.map(|coming| coming.at))
    }

    /// A client's session has taken in what was elsewhere, also what it had already: that is not kept
    /// there for it any more.
    fn note_joined(&mut self, client: &Arc<str>) {
        for way in self.moves.ways_of(client) {
            if let Some(coming) = self.moves.coming.get_mut(&way) {
                coming.joined |= coming.came;
            }
        }
    }

    /// Whether the broker that a client's session came from need not have heard that it is here, and may
    /// have given it to another one.
    pub(in crate::shard) fn may_be_elsewhere_too(&self, client: &Arc<str>) -> bool {
        if self.moves.is_idle() {
            return false;
        }
        let mut ways = self.moves.ways_of(client).into_iter();
        let coming = |way| self.moves.coming.get(&way);
        ways.any(|way| coming(way).is_some_and(|it| it.came && !it.handed))
    }

    /// Whether a client may not have heard of the session that it has here.
    fn is_unheard(&self, client: &str) -> bool {
        let slot = self.session_named(client);
        let session = slot.and_then(|slot| self.sessions.get(slot));
        session.is_some_and(|session| session.unheard)
    }

    fn ask_for(&self, way: &Way, at: u64, user: Option<&str>) {
        // For one that its client may not have heard of the other one is not to end.
        let at = match self.is_unheard(&way.0) && !self.awaits(&way.0, at) {
            true => 0,
            false => at,
        };
        self.write(way, &Letter::Take { at, user });
    }

    /// Another broker has the session that a client may believe to have.
    fn keep_there(&mut self, way: &Way, at: u64, user: Option<Arc<str>>, now: Nanos) {
        self.forget_coming(way);
        self.note_coming(way.clone(), at, user, false, now);
        if let Some(coming) = self.moves.coming.get_mut(way) {
            coming.held = true;
            coming.again = now + MOST_PATIENCE;
            let (timer, again) = (coming.timer, coming.again);
            self.put_off(timer, again);
        }
    }

    /// The client of a session has sent something since it was told of it: what there is of
    /// another one elsewhere is for this one.
    pub(crate) fn was_heard_of(&mut self, slot: u32, now: Nanos) {
        let Some(session) = self.sessions.get_mut(slot) else {
            return;
        };
        session.unheard = false;
        self.end_inherited(slot);
        let Some(session) = self.sessions.get(slot) else {
            return;
        };
        if self.moves.is_idle() {
            return;
        }
        let (client, at) = (session.handle.client_id.clone(), session.arrived);
        let user = session.username.clone();
        for way in self.moves.ways_of(&client) {
            if self.moves.coming.get(&way).is_some_and(|it| it.held) {
                self.begin_coming(way, at, user.clone(), false, now);
            }
        }
    }

    fn note_coming(&mut self, way: Way, at: u64, user: Option<Arc<str>>, whole: bool, now: Nanos) {
        let timer = self.new_errand(now + PATIENCE, Errand::Coming(way.clone()));
        let coming = Coming::new(at, user, timer, whole, now);
        self.moves.coming.insert(way, coming);
    }

    pub(super) fn forget_coming(&mut self, way: &Way) {
        if let Some(coming) = self.moves.coming.remove(way) {
            self.moves.errands.remove(&coming.timer);
        }
        if let Some(asking) = self.moves.asking.get_mut(&way.1) {
            asking.open.remove(&way.0);
        }
    }

    /// A session has ended to which something may still come.
    pub(in crate::shard) fn end_coming(&mut self, client: &Arc<str>, now: Nanos) {
        if self.moves.is_idle() {
            return;
        }
        let heal = self.move_times().heal;
        for way in self.moves.ways_of(client) {
            let Some(coming) = self.moves.coming.get_mut(&way) else {
                continue;
            };
            // What is not safe here stays where it is.
            if !coming.safe {
                self.forget_coming(&way);
                continue;
            }
            (coming.gone, coming.again) = (true, now + heal);
            let timer = coming.timer;
            self.put_off(timer, now + heal);
        }
    }

    pub(super) fn look_after_coming(&mut self, way: &Way, now: Nanos) {
        let slot = self.session_named(&way.0);
        let session = slot.and_then(|slot| self.sessions.get(slot));
        let leaving = session.and_then(|session| session.leaving.as_ref());
        let Some(coming) = self.moves.coming.get_mut(way) else {
            return;
        };
        let leaves_later = leaving.is_some_and(|leaving| leaving.at > coming.at);
        if coming.gone {
            return self.forget_coming(way);
        }
        if coming.complete {
            return;
        }
        let timer = coming.timer;
        if coming.again > now {
            let again = coming.again;
            return self.put_off(timer, again);
        }
        if coming.held && session.is_some_and(|session| session.unheard) {
            // The client may be there by now.
            coming.again = now + MOST_PATIENCE;
            let (again, at, user) = (coming.again, coming.at, coming.user.clone());
            self.ask_for(way, at, user.as_deref());
            return self.put_off(timer, again);
        }
        if leaves_later {
            // What is asked for would come back from where it goes.
            coming.again = now + coming.patience.max(MoveTimes::SILENCE);
            let again = coming.again;
            return self.put_off(timer, again);
        }
        coming.tries += u32::from(coming.stream == 0);
        if coming.tries > TRIES {
            self.note_unanswered(way);
            return self.forget_coming(way);
        }
        coming.patience = Nanos(coming.patience.0 * 2).min(MOST_PATIENCE);
        coming.again = now + coming.patience;
        let (again, at, user) = (coming.again, coming.at, coming.user.clone());
        self.ask_for(way, at, user.as_deref());
        self.put_off(timer, again);
    }

    /// Tells other brokers which of their parts are committed.
    pub(crate) fn acknowledge_parts(&mut self, now: Nanos) {
        loop {
            let ticket = self.moves.unsafe_parts.front().map(|(ticket, _)| *ticket);
            if !ticket.is_some_and(|ticket| self.is_committed(ticket)) {
                return;
            }
            let Some((ticket, way)) = self.moves.unsafe_parts.pop_front() else {
                return;
            };
            let Some(coming) = self.moves.coming.get_mut(&way) else {
                continue;
            };
            if coming.waits != Some(ticket) {
                continue;
            }
            coming.waits = None;
            coming.safe = true;
            coming.complete = coming.ending;
            let (stream, next) = (coming.stream, coming.next);
            self.write(&way, &Letter::Got { stream, next });
            if let Some(slot) = self.session_named(&way.0) {
                self.watch_had(slot, now);
                if !self.is_coming(&way.0) {
                    self.end_ahead(slot);
                    self.pump(slot, now);
                }
            }
        }
    }

    /// Whether something of a client's session may still come.
    fn is_coming(&self, client: &Arc<str>) -> bool {
        let mut ways = self.moves.ways_of(client).into_iter();
        ways.any(|way| self.moves.coming.get(&way).is_some_and(|it| !it.complete))
    }

    /// Puts what waits for others, and need not after `now` any more or does not lack them any more,
    /// among what waits for the client.
    pub(crate) fn release_ahead(&mut self, slot: u32, now: Nanos) {
        let Some(session) = self.sessions.get_mut(slot) else {
            return;
        };
        let Some(had) = &mut session.had else {
            return;
        };
        let Some(ahead) = had.ahead.as_mut().filter(|ahead| !ahead.is_empty()) else {
            return;
        };
        for waits in std::mem::take(ahead) {
            if waits.until > now && had.lacks(waits.previous) {
                had.ahead.get_or_insert_default().push_back(waits);
            } else {
                session.queue.push(waits.delivery, waits.since);
            }
        }
        session.share_queue_len();
    }

    /// Nothing of a session waits for others any more.
    pub(crate) fn end_ahead(&mut self, slot: u32) {
        self.release_ahead(slot, Nanos::MAX);
        let session = self.sessions.get_mut(slot);
        if let Some(had) = session.and_then(|session| session.had.as_mut()) {
            had.ahead = None;
        }
    }

    /// Sends a session what waited for what it has got.
    pub(crate) fn go_on_ahead(&mut self, slot: u32, now: Nanos) {
        self.release_ahead(slot, now);
        self.pump(slot, now);
    }

    /// Sees to it that nothing of a session waits for others longer than it may.
    pub(crate) fn look_after_ahead(&mut self, slot: u32, until: Nanos) {
        let Some(session) = self.sessions.get(slot) else {
            return;
        };
        if session.had.as_ref().is_none_or(|had| had.timer != 0) {
            return;
        }
        let session = session.handle.number;
        let timer = self.new_errand(until, Errand::Ahead { slot, session });
        let session = self.sessions.get_mut(slot);
        if let Some(had) = session.and_then(|session| session.had.as_mut()) {
            had.timer = timer;
        }
    }

    pub(super) fn ahead_is_due(&mut self, errand: u64, slot: u32, number: u64, now: Nanos) {
        let is_it = |session: &Session| {
            let timer = session.had.as_ref().map(|had| had.timer);
            session.handle.number == number && timer == Some(errand)
        };
        if !self.sessions.get(slot).is_some_and(is_it) {
            self.moves.errands.remove(&errand);
            return;
        }
        self.go_on_ahead(slot, now);
        let session = self.sessions.get_mut(slot);
        let Some(had) = session.and_then(|session| session.had.as_mut()) else {
            return;
        };
        match had.ahead.as_ref().and_then(|ahead| ahead.front()) {
            Some(next) => {
                let until = next.until;
                self.put_off(errand, until);
            }
            None => {
                had.timer = 0;
                self.moves.errands.remove(&errand);
            }
        }
    }

    /// Remembers for a while what a session gets.
    pub(crate) fn watch_had(&mut self, slot: u32, now: Nanos) {
        let MoveTimes { heal, linger, .. } = self.move_times();
        let Some(session) = self.sessions.get_mut(slot) else {
            return;
        };
        if session.handed {
            // Where it went, all of this is recognised.
            return;
        }
        let new = session.had.as_ref().is_none_or(|had| had.until == Nanos(0));
        let had = session.had.get_or_insert_default();
        had.until = now + heal + linger;
        let (until, session) = (had.until, session.handle.number);
        self.store_had(slot);
        if new {
            self.note_waiting(slot);
        }
        if new {
            self.new_errand(until, Errand::Had { slot, session });
        }
    }

    /// Notes what waits for a session as what it has had: it gets it.
    fn note_waiting(&mut self, slot: u32) {
        let Some(session) = self.sessions.get_mut(slot) else {
            return;
        };
        let Some(had) = &mut session.had else {
            return;
        };
        let waiting = session.window.unacknowledged().chain(session.queue.iter());
        for delivery in waiting.filter(|delivery| delivery.message.name != 0) {
            had.note(delivery.message.name, delivery.qos == QoS::ExactlyOnce);
        }
        self.had_more(slot);
    }

    pub(super) fn forget_had(&mut self, errand: u64, slot: u32, number: u64, now: Nanos) {
        let session = self.sessions.get_mut(slot);
        let Some(session) = session.filter(|session| session.handle.number == number) else {
            self.moves.errands.remove(&errand);
            return;
        };
        let client = session.handle.client_id.clone();
        let until = session.had.as_ref().map_or(now, |had| had.until);
        let ways = self.moves.ways_of(&client);
        let comes = |way: &&Way| self.moves.coming.get(*way).is_some_and(|it| !it.complete);
        if until > now {
            self.put_off(errand, until);
        } else if ways.iter().find(comes).is_some() {
            let heal = self.move_times().heal.max(PATIENCE);
            self.put_off(errand, now + heal);
        } else {
            let _ = self.take_had(slot);
            self.pump(slot, now);
            self.moves.errands.remove(&errand);
            ways.iter().for_each(|way| self.forget_coming(way));
        }
    }
}
