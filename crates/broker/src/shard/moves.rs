//! How sessions go to other brokers of a mesh and come from there, see [`crate::moves`].

use std::cmp::Ordering;
use std::collections::VecDeque;
use std::sync::Arc;

use punctual_codec::{Connect, QoS, ReasonCode, topic};

use super::connect::Looked;
use super::{Fail, Shard};
use crate::Nanos;
use crate::federation::MessageName;
use crate::hub::{Awaited, ConnId, Event, Hub, Output, State};
use crate::journal::{
    Journal, Known, Moved, Round, offset, put_delivery, put_inflight, put_session, put_state,
    put_taken_up,
};
use crate::moves::{
    ASK_ON, Asking, Awaiting, Coming, Errand, GATHER, Holder, Leaving, Letter, MOST_PATIENCE,
    MoveTimes, ORPHANED, PART, PATIENCE, TRIES, TakenUp, WINDOW, Way, apart, last_of_each,
};
use crate::session::{Delivery, Inflight, Load, Queue, Session, Step, Subscription};
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
    /// Whether the session of a client is here, as another broker asks that the client has
    /// connected to at that time ([`crate::Federation::seek`]): when it connected here last, 0
    /// if the session has gone on from here, or the client may not have heard of it, and whether it is
    /// the whole session. To be asked on the shard that has it.
    pub fn sought(&self, client_id: &str, user: Option<&str>, number: u64) -> Option<(u64, bool)> {
        let session = self.hub.sessions.get(self.hub.session_named(client_id)?)?;
        // What waits for one user is not for another who uses the same identifier.
        let is_foreign = session.username.is_some() && session.username.as_deref() != user;
        let goes_later = session.leaving.as_ref().is_some_and(|it| it.at > number);
        let is_here = session.arrived > number || session.is_transient() || goes_later;
        let goes = session.link.is_none() && !is_foreign && !is_here;
        let whole = session.is_whole();
        // Where it has gone from, its client is not any more, and perhaps not where it does not
        // know of it.
        let at = if whole { session.arrived } else { 0 };
        goes.then_some((at, whole))
    }

    /// The answer to [`crate::Federation::seek`]: who has something of the session. It is `incomplete`
    /// if others may have, who have not been heard: they are asked again later.
    pub fn found(
        &mut self,
        client_id: &str,
        number: u64,
        holders: &[Holder],
        incomplete: bool,
        now: Nanos,
    ) {
        let hub = &mut self.hub;
        let client: Arc<str> = client_id.into();
        let mut waits = hub.moves.awaiting.get_mut(&client);
        if waits.as_ref().is_some_and(|it| it.number != number) {
            // It has asked again since then.
            return;
        }
        if let Some(waits) = &mut waits {
            waits.unsure = incomplete;
        }
        let conn = waits.map(|it| it.conn);
        if let Some(conn) = conn
            && hub.conn(conn).is_none()
        {
            // Who does not wait any more finds it there the next time.
            self.forget_awaiting(&client, now);
            return;
        }
        let session = hub.session_named(client_id);
        let session = session.and_then(|slot| hub.sessions.get(slot));
        let user = match (conn, session) {
            (Some(conn), _) => hub.conns.get(conn.slot).and_then(|conn| match &conn.state {
                State::Awaiting(awaited) => awaited.username.clone(),
                _ => None,
            }),
            (None, Some(session)) => session.username.clone(),
            (None, None) => return,
        };
        let here = session.map(|session| session.arrived);
        if conn.is_none() && session.is_some_and(Session::is_orphan) {
            let newer = holders.iter().filter(|holder| Some(holder.at) > here);
            if let (Some(slot), Some(newest)) = (
                hub.session_named(client_id),
                newer.max_by_key(|holder| (holder.whole, holder.at)),
            ) {
                hub.begin_leaving(slot, &Arc::from(&*newest.broker), newest.at, now);
            }
            return;
        }
        // What the client has not heard of is older than all that it may believe to have.
        let heard = session.filter(|session| !session.unheard);
        let heard = heard.map(|session| session.arrived);
        let newer = |holder: &&Holder| holder.whole && heard.is_none_or(|at| holder.at > at);
        let whole = holders.iter().filter(newer).max_by(|a, b| {
            let order = a.at.cmp(&b.at);
            order.then_with(|| b.broker.cmp(&a.broker))
        });
        let whole = whole.filter(|_| conn.is_some());
        let at = match conn {
            Some(_) => number,
            // It has got another one meanwhile.
            None => here.unwrap_or(number),
        };
        for holder in holders {
            let way = (client.clone(), Arc::from(&*holder.broker));
            let is_whole = whole == Some(holder);
            self.hub.begin_coming(way, at, user.clone(), is_whole, now);
        }
        if conn.is_some() && whole.is_none() {
            self.connect_awaiting(&client, now);
        }
    }

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
            // Of a version that this broker does not know.
            None => {}
        }
        self.hub.answered(&way);
        self.hub.ask_on(&way.1, now);
        self.share_stats_soon(now);
    }

    /// A broker is reached again that was not since `away`: what could not be asked for is
    /// asked for from now on, few sessions at a time. To be called on each shard.
    pub fn broker_came(&mut self, broker: &str, away: Nanos, now: Nanos) {
        let hub = &mut self.hub;
        let mut errands = Vec::new();
        for (way, coming) in &mut hub.moves.coming {
            if *way.1 == *broker {
                coming.again = now;
                errands.push(coming.timer);
            }
        }
        for session in hub.sessions.iter_mut() {
            if let Some(leaving) = &mut session.leaving
                && *leaving.to == *broker
            {
                leaving.again = now;
                errands.push(leaving.timer);
            }
        }
        errands.into_iter().for_each(|id| hub.put_off(id, now));
        hub.begin_asking(&broker.into(), away, now);
    }

    /// Lets a client wait until its session has come from wherever it is; false if it need not.
    pub(super) fn await_session(
        &mut self,
        id: ConnId,
        client: &Arc<str>,
        awaited: Awaited,
        now: Nanos,
    ) -> bool {
        let directory = self.hub.directory.clone();
        let Some(federation) = directory.federation() else {
            return false;
        };
        self.end_awaiting(client, now);
        let hub = &mut self.hub;
        if !directory.reserve(client, hub.index) {
            return false;
        }
        let Some(number) = federation.seek(client, awaited.username.as_deref()) else {
            hub.give_up_reserved(client);
            return false;
        };
        let until = now + hub.move_times().wait;
        let timer = hub.new_errand(until, Errand::Awaiting(client.clone()));
        let waits = Awaiting {
            conn: id,
            number,
            timer,
            until,
            // Until there is an answer.
            unsure: true,
        };
        hub.moves.awaiting.insert(client.clone(), waits);
        if let Some(conn) = hub.conn(id) {
            conn.state = State::Awaiting(Box::new(awaited));
            conn.paused += 1;
        }
        true
    }

    /// Another connection of a client that waits takes its place.
    pub(super) fn end_awaiting(&mut self, client: &Arc<str>, now: Nanos) {
        if let Some(conn) = self.forget_awaiting(client, now)
            && self.hub.conn(conn).is_some()
        {
            self.hub.stats.sessions_taken_over += 1;
            self.end_connection(conn.slot, "session taken over", false, now);
        }
    }

    fn forget_awaiting(&mut self, client: &Arc<str>, now: Nanos) -> Option<ConnId> {
        let hub = &mut self.hub;
        let waits = hub.moves.awaiting.remove(client)?;
        hub.moves.errands.remove(&waits.timer);
        hub.give_up_reserved(client);
        hub.follow_who_is_gone(client, now);
        Some(waits.conn)
    }

    /// Lets a client in that has waited for its session.
    fn connect_awaiting(&mut self, client: &Arc<str>, now: Nanos) {
        let Some(waits) = self.hub.moves.awaiting.remove(client) else {
            return;
        };
        self.hub.moves.errands.remove(&waits.timer);
        let id = waits.conn;
        let state = self.hub.conn(id).map(|conn| &mut conn.state);
        if let Some(state @ State::Awaiting(_)) = state
            && let State::Awaiting(awaited) = std::mem::replace(state, State::Opening)
        {
            let Awaited {
                body,
                username,
                auth,
            } = *awaited;
            if let Ok(connect) = Connect::decode(&body) {
                let looked = Looked::Since(waits.number);
                self.let_in(id, &connect, username, auth, looked, now);
            }
        }
        self.hub.give_up_reserved(client);
        self.hub.follow_who_is_gone(client, now);
        let slot = self.hub.session_named(client);
        if waits.unsure
            && let Some(slot) = slot
            && let Some(session) = self.hub.sessions.get(slot)
            && session.conn == Some(id.slot)
        {
            let session = session.handle.number;
            let again = true;
            let errand = Errand::Unsure {
                slot,
                session,
                again,
            };
            self.hub.new_errand(now + ORPHANED, errand);
        }
    }

    /// The client has connected to another broker, later: what was asked for here is not
    /// wanted any more.
    pub(super) fn awaited_elsewhere(&mut self, client_id: &str, at: u64, now: Nanos) {
        if self.hub.moves.is_idle() {
            return;
        }
        let client: Arc<str> = client_id.into();
        let waits = self.hub.moves.awaiting.get(&client);
        if waits.is_some_and(|waits| waits.number < at)
            && let Some(conn) = self.forget_awaiting(&client, now)
            && self.hub.conn(conn).is_some()
        {
            self.end_connection(conn.slot, "connected to another broker", false, now);
        }
        for way in self.hub.moves.ways_of(&client) {
            let coming = self.hub.moves.coming.get(&way);
            if coming.is_some_and(|coming| coming.at < at && !coming.safe) {
                self.hub.forget_coming(&way);
            }
        }
    }

    /// Another broker wants a session.
    fn take_away(&mut self, way: &Way, at: u64, user: Option<&str>, now: Nanos) {
        let (client, to) = way;
        self.awaited_elsewhere(client, at, now);
        if let Some(at) = self.hub.comes_since(way).filter(|since| *since > at) {
            // Two sessions that change places would each take the other broker to have what it has.
            self.hub.write(way, &Letter::Newer { at });
            return;
        }
        let slot = self.hub.session_named(client);
        if let Some(slot) = slot
            && let Some(session) = self.hub.sessions.get_mut(slot)
            && let Some(leaving) = &mut session.leaving
            && leaving.to == *to
            // Who has started again does not know since when.
            && leaving.at >= at
        {
            leaving.again = now;
            let timer = leaving.timer;
            self.hub.put_off(timer, now);
            return;
        }
        if at == 0 || self.sought(client, user, at).is_none() {
            let session = slot.and_then(|slot| self.hub.sessions.get(slot));
            let own = session.filter(|it| it.username.is_none() || it.username.as_deref() == user);
            let newer = own.filter(|it| at == 0 || it.arrived > at);
            let letter = match newer {
                Some(session) if session.unheard && at != 0 => {
                    let (arrived, user) = (session.arrived, session.username.clone());
                    let coming = self.hub.moves.coming.get(way);
                    if coming.is_none_or(|coming| coming.complete) {
                        self.hub
                            .begin_coming(way.clone(), arrived, user, false, now);
                    }
                    Letter::Nothing { at }
                }
                Some(session) => Letter::Newer {
                    at: session.arrived,
                },
                None => Letter::Nothing { at },
            };
            self.hub.write(way, &letter);
            return;
        }
        if let Some(slot) = slot {
            self.stop_leaving(slot, now);
            if let Some(conn) = self.hub.sessions.get(slot).and_then(|session| session.conn) {
                self.hub.stats.sessions_taken_over += 1;
                self.dismiss(conn, ReasonCode::SessionTakenOver, "");
                self.end_connection(conn, "connected to another broker", true, now);
            }
        }
        let Some(slot) = self.hub.session_named(client) else {
            self.hub.write(way, &Letter::Nothing { at });
            return;
        };
        if self.hub.take_will(slot).is_some() {
            self.hub.store_no_will(slot);
        }
        self.hub.begin_leaving(slot, to, at, now);
    }

    /// A session does not leave any more: it is here as it was, but for what has gone.
    pub(super) fn stop_leaving(&mut self, slot: u32, now: Nanos) {
        let hub = &mut self.hub;
        let clock = hub.directory.federation().map_or(0, |mesh| mesh.clock());
        let Some(session) = hub.sessions.get_mut(slot) else {
            return;
        };
        let Some(leaving) = session.leaving.take() else {
            return;
        };
        hub.moves.errands.remove(&leaving.timer);
        let mut later = std::mem::take(&mut session.queue);
        for delivery in leaving.kept {
            session.queue.push(delivery, now);
        }
        while let Some((since, delivery)) = later.pop() {
            session.queue.push(delivery, since);
        }
        session.share_queue_len();
        let (epoch, expiry) = (session.epoch, session.expiry);
        if session.sweep_by(now) {
            let timer = Timer::Sweep { slot, epoch };
            hub.timers.arm(session.sweep_at, timer);
        }
        if expiry != u32::MAX {
            let timer = Timer::SessionExpiry { slot, epoch };
            hub.timers
                .arm(now + Nanos::from_secs(u64::from(expiry)), timer);
        }
        if let Some(subscriptions) = leaving.subscriptions {
            let wall = offset(clock, now).0;
            hub.restore_subscriptions(slot, subscriptions, wall);
        }
        hub.take_up(slot, leaving.taken_up);
    }

    /// Parts below `next` are where they went.
    fn part_is_there(&mut self, way: &Way, stream: u64, next: u32, now: Nanos) {
        let Some(slot) = self.hub.leaves_with(way, stream) else {
            let slot = self.hub.session_named(&way.0);
            let session = slot.and_then(|slot| self.hub.sessions.get(slot));
            // Once it was handed over, what is there is the session, wherever the rest goes.
            if session.is_none_or(|session| !session.handed) {
                self.hub.write(way, &Letter::Void { stream });
            }
            return;
        };
        let hub = &mut self.hub;
        let Some(leaving) = hub.leaving(slot) else {
            return;
        };
        while leaving.first < next && leaving.parts.pop_front().is_some() {
            leaving.first += 1;
            leaving.patience = PATIENCE;
            leaving.again = now + PATIENCE;
        }
        match leaving.parts.is_empty() && leaving.cut {
            true => self.round_is_safe(slot, now),
            false => hub.send_on(slot, now),
        }
    }

    /// All that was sent is safe where it went, and is forgotten here.
    fn round_is_safe(&mut self, slot: u32, now: Nanos) {
        let hub = &mut self.hub;
        let MoveTimes { heal, linger, .. } = hub.move_times();
        let Some(session) = hub.sessions.get_mut(slot) else {
            return;
        };
        let Some(leaving) = &mut session.leaving else {
            return;
        };
        let mut load = Load::default();
        let kept = std::mem::take(&mut leaving.kept);
        leaving.messages += kept.len() as u64;
        let (timer, ending, is_first) = (leaving.timer, leaving.ending, leaving.ends.is_none());
        let (to, messages) = (leaving.to.clone(), leaving.messages);
        if is_first {
            leaving.ends = Some(now + linger);
            leaving.ends_by = now + linger + heal;
        }
        for delivery in kept {
            load.add(&delivery.message);
            Journal::done(&mut hub.journal, session, delivery.entry);
        }
        if is_first {
            session.handed = true;
            for entry in session.window.clear() {
                hub.stats.inflight_messages -= 1;
                Journal::done(&mut hub.journal, session, entry);
            }
        }
        let client_id = session.handle.client_id.clone();
        let came = !session.queue.is_empty();
        let came = came
            || session
                .leaving
                .as_ref()
                .is_some_and(|it| !it.taken_up.is_empty());
        hub.forget_queued(&load);
        if is_first {
            let _ = hub.take_had(slot);
            hub.store_left(slot);
        }
        if !ending || came {
            hub.put_off(timer, now + GATHER.min(linger));
            return;
        }
        hub.stats.sessions_moved_out += 1;
        // What still comes for it has to go on, too: here it is not known any more.
        for way in hub.moves.ways_of(&client_id) {
            hub.forget_coming(&way);
        }
        hub.outputs.push(Output::Event(Event::SessionLeft {
            client_id,
            broker: to,
            messages,
        }));
        self.end_session(slot, now);
    }

    /// The other broker knows nothing of what it was sent.
    fn stream_is_lost(&mut self, way: &Way, stream: u64, now: Nanos) {
        let Some(slot) = self.hub.leaves_with(way, stream) else {
            return;
        };
        let Some((at, had_some)) = self.hub.leaving(slot).map(|it| (it.at, it.first > 0)) else {
            return;
        };
        self.stop_leaving(slot, now);
        match had_some {
            // It has started again, and may have what was safe there.
            true => self.hub.begin_leaving(slot, &way.1, at, now),
            // Or the session has gone on from there.
            false => self.hub.follow_client(slot, now),
        }
    }

    /// What came is not the session any more: the client is where it was, or elsewhere.
    fn stream_is_void(&mut self, way: &Way, stream: u64, now: Nanos) {
        let Some(coming) = self.hub.moves.coming.get(way) else {
            return;
        };
        if coming.stream != stream || coming.complete {
            return;
        }
        let came = coming.came;
        self.hub.forget_coming(way);
        let slot = self.hub.session_named(&way.0);
        let session = slot.and_then(|slot| Some((slot, self.hub.sessions.get(slot)?)));
        if let Some((slot, session)) = session
            && came
            && session.arrived == 0
            && session.leaving.is_none()
        {
            self.end_session(slot, now);
        }
    }

    fn nothing_comes(&mut self, way: &Way, at: u64, now: Nanos) {
        let coming = self.hub.moves.coming.get(way);
        let Some(coming) = coming.filter(|coming| coming.at == at || at == 0) else {
            return;
        };
        let whole = coming.whole && !coming.came;
        self.hub.forget_coming(way);
        if whole && self.hub.awaits(&way.0, at) {
            self.connect_awaiting(&way.0, now);
        }
    }

    /// The client has connected to the other broker later, of which nothing was heard here:
    /// what is here goes there.
    fn is_newer_there(&mut self, way: &Way, at: u64, now: Nanos) {
        let (client, to) = way;
        if self.hub.comes_since(way).is_some_and(|since| since > at) {
            // That answers what was asked before.
            return;
        }
        self.hub.forget_coming(way);
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
    fn part_came(&mut self, way: &Way, part: &Part<'_>, now: Nanos) {
        let hub = &mut self.hub;
        let (client, from) = way;
        let Part { stream, number, .. } = *part;
        let slot = hub.session_named(client);
        if !hub.moves.coming.contains_key(way) {
            let session = slot.and_then(|slot| hub.sessions.get(slot));
            match session {
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
        if slot.is_none() && awaits && !whole {
            // What is left of a session comes after it, when it is said again.
            return;
        }
        let Some(mut coming) = hub.moves.coming.remove(way) else {
            return;
        };
        if stream > coming.stream && number == 0 {
            (coming.stream, coming.next) = (stream, 0);
            (coming.round, coming.waits) = (None, None);
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
        if is_left && !coming.came && hub.session_named(client).is_none() {
            // There is no session any more; this comes again for the new one.
            coming.whole = false;
            hub.moves.coming.insert(way.clone(), coming);
            if awaited {
                self.connect_awaiting(client, now);
            }
            return;
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
        if awaited {
            self.connect_awaiting(client, now);
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
            }
            return Some(slot);
        }
        if coming.came || !moved.whole {
            return None;
        }
        if self.hub.store_trouble().is_some() {
            return None;
        }
        // What is here is older. Its subscriptions are hardly others: nobody is to hear that they
        // end before those of the next one begin.
        let session = slot.and_then(|slot| self.hub.sessions.get(slot));
        let subscriptions = session.map(|session| session.subscriptions.iter());
        let filters = subscriptions
            .into_iter()
            .flatten()
            .map(|it| it.filter.clone());
        let filters: Vec<_> = filters.collect();
        let directory = self.hub.directory.clone();
        if let Some(federation) = directory.federation() {
            filters
                .iter()
                .for_each(|filter| federation.subscribed(filter, false));
        }
        let taken = self.take_place(way, coming, slot, moved, now);
        if let Some(federation) = directory.federation() {
            filters
                .iter()
                .for_each(|filter| federation.unsubscribed(filter, false));
        }
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
        let had = slot.and_then(|slot| self.hub.take_had(slot));
        let had = had.unwrap_or_default();
        let left = slot.map(|slot| self.leave_behind(slot, now));
        let (own, taken_up) = left.unwrap_or_default();
        let federation = self.hub.directory.federation();
        let apart = apart(federation.map_or("", |mesh| mesh.name()), coming.stream);
        if !self.hub.adopt(moved, &had, &own, apart, now) {
            return None;
        }
        let slot = self.hub.session_named(client)?;
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
    pub(super) fn leave_behind(&mut self, slot: u32, now: Nanos) -> (Vec<Delivery>, Vec<TakenUp>) {
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
            Errand::Orphan { slot, session } => hub.look_after_orphan(id, slot, session, now),
        }
    }

    /// Decides about CONNECT as after an authentication.
    fn let_in(
        &mut self,
        id: ConnId,
        connect: &Connect<'_>,
        username: Option<Arc<str>>,
        auth: Option<(Box<str>, Box<[u8]>)>,
        looked: Looked<'_>,
        now: Nanos,
    ) {
        match self.accept(id, connect, username, auth, looked, now) {
            Ok(()) => self.hub.resume(vec![id]),
            Err(refusal) => {
                self.refuse_connect(id, Some(connect), &refusal);
                self.fail(id, &Fail::silent(refusal.why), now);
            }
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

    /// Whether a client waits since that time.
    fn awaits(&self, client: &str, number: u64) -> bool {
        let waits = self.moves.awaiting.get(client);
        waits.is_some_and(|waits| waits.number == number)
    }

    fn give_up_reserved(&self, client: &str) {
        if self.session_named(client).is_none() && !self.moves.awaiting.contains_key(client) {
            self.directory.give_up(client);
        }
    }

    /// The client of a session is elsewhere, and the session has to go there.
    pub(super) fn follow_client(&mut self, slot: u32, now: Nanos) {
        if let Some(session) = self.sessions.get_mut(slot) {
            session.elsewhere = true;
        }
        self.store_elsewhere(slot, true);
        self.note_orphan(slot, now);
    }

    /// A session that came for a client that waited goes after it if it does not wait any more and
    /// was not let in.
    fn follow_who_is_gone(&mut self, client: &str, now: Nanos) {
        if let Some(slot) = self.session_named(client)
            && self.sessions.get(slot).is_some_and(Session::is_orphan)
        {
            self.follow_client(slot, now);
        }
    }

    /// Sees to it that a session goes where its client is.
    pub(crate) fn note_orphan(&mut self, slot: u32, now: Nanos) {
        if let Some(session) = self.sessions.get(slot) {
            let session = session.handle.number;
            self.new_errand(now + ORPHANED, Errand::Orphan { slot, session });
        }
    }

    /// Asks for what a session's client may have elsewhere, now that who did not answer is known to be
    /// away, or is where it goes, and once more later.
    fn ask_once_more(&mut self, slot: u32, number: u64, again: bool, now: Nanos) {
        let session = self.sessions.get(slot);
        let session = session.filter(|session| session.handle.number == number);
        let (Some(session), Some(federation)) = (session, self.directory.federation()) else {
            return;
        };
        let user = session.username.as_deref();
        federation.seek(&session.handle.client_id, user);
        if again {
            let errand = Errand::Unsure {
                slot,
                session: number,
                again: false,
            };
            self.new_errand(now + MOST_PATIENCE, errand);
        }
    }

    fn look_after_orphan(&mut self, errand: u64, slot: u32, number: u64, now: Nanos) {
        let session = self.sessions.get(slot);
        let session = session.filter(|it| it.handle.number == number && it.elsewhere);
        let Some(session) = session.filter(|session| session.conn.is_none()) else {
            self.moves.errands.remove(&errand);
            return;
        };
        if let (true, Some(federation)) = (session.is_orphan(), self.directory.federation()) {
            let user = session.username.as_deref();
            federation.seek(&session.handle.client_id, user);
        }
        self.put_off(errand, now + MOST_PATIENCE);
    }

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
    fn begin_coming(&mut self, way: Way, at: u64, user: Option<Arc<str>>, whole: bool, now: Nanos) {
        self.forget_coming(&way);
        self.ask_for(&way, at, user.as_deref());
        self.note_coming(way, at, user, whole, now);
    }

    /// For a client that connected here when a session is to come on that way; `None` if none is.
    fn comes_since(&self, way: &Way) -> Option<u64> {
        let waits = self.moves.awaiting.get(&way.0).map(|waits| waits.number);
        let coming = self.moves.coming.get(way);
        let coming = coming.filter(|_| !self.is_unheard(&way.0));
        let coming = coming.filter(|coming| !coming.complete && !coming.gone);
        waits.max(coming.map(|coming| coming.at))
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

    fn forget_coming(&mut self, way: &Way) {
        if let Some(coming) = self.moves.coming.remove(way) {
            self.moves.errands.remove(&coming.timer);
        }
        if let Some(asking) = self.moves.asking.get_mut(&way.1) {
            asking.open.remove(&way.0);
        }
    }

    /// Asks a broker for the sessions that were missed since `away`, and for those that it has not
    /// answered about.
    fn begin_asking(&mut self, broker: &Arc<str>, away: Nanos, now: Nanos) {
        let before = self.moves.asking.remove(broker);
        let mut asking = before.unwrap_or_else(|| Asking::nothing(away));
        asking.since = asking.since.min(away);
        (asking.until, asking.next, asking.unanswered) = (now, 0, false);
        if asking.timer == 0 {
            asking.timer = self.new_errand(now + ASK_ON, Errand::Asking(broker.clone()));
        }
        self.moves.asking.insert(broker.clone(), asking);
        self.ask_on(broker, now);
    }

    /// Asks a broker for the next sessions, as many as may be asked for at a time.
    fn ask_on(&mut self, broker: &Arc<str>, now: Nanos) {
        let most = self.config.limits.sessions_asked;
        while let Some(asking) = self.moves.asking.get_mut(broker)
            && asking.open.len() < most
        {
            if asking.next >= self.sessions.places() {
                if asking.open.is_empty() && !asking.unanswered {
                    let timer = asking.timer;
                    self.moves.asking.remove(broker);
                    self.moves.errands.remove(&timer);
                }
                return;
            }
            let (slot, missed) = (asking.next, asking.since..=asking.until);
            asking.next += 1;
            let Some(session) = self.sessions.get(slot) else {
                continue;
            };
            let leaves = session.leaving.as_ref().is_some_and(|it| it.to == *broker);
            if leaves || !missed.contains(&session.missed) {
                continue;
            }
            let way: Way = (session.handle.client_id.clone(), broker.clone());
            let (at, user) = (session.arrived, session.username.clone());
            let coming = self.moves.coming.get(&way);
            // What has come from there came for a session before.
            if coming.is_none_or(|coming| coming.complete || coming.at < at) {
                let client = way.0.clone();
                self.begin_coming(way, at, user, false, now);
                if let Some(asking) = self.moves.asking.get_mut(broker) {
                    asking.open.insert(client);
                }
            }
        }
    }

    /// Something about a session has come from a broker that may have been asked for it.
    fn answered(&mut self, way: &Way) {
        let coming = self.moves.coming.get(way);
        if coming.is_none_or(|coming| coming.held || coming.stream != 0)
            && let Some(asking) = self.moves.asking.get_mut(&way.1)
        {
            asking.open.remove(&way.0);
        }
    }

    /// A broker is not asked any more that has not answered about a session: it is when it comes again.
    fn note_unanswered(&mut self, (client, broker): &Way) {
        let slot = self.session_named(client);
        let session = slot.and_then(|slot| self.sessions.get(slot));
        let Some(missed) = session.map(|session| session.missed) else {
            return;
        };
        if missed == Nanos::MAX {
            return;
        }
        let asking = self.moves.asking.entry(broker.clone());
        let asking = asking.or_insert_with(|| Asking::nothing(missed));
        asking.since = asking.since.min(missed);
        asking.unanswered = true;
    }

    /// Goes on where answers do not come, or what was asked for is not wanted any more.
    fn look_after_asking(&mut self, errand: u64, broker: &Arc<str>, now: Nanos) {
        self.ask_on(broker, now);
        let places = self.sessions.places();
        let Some(asking) = self.moves.asking.get_mut(broker) else {
            self.moves.errands.remove(&errand);
            return;
        };
        if asking.next >= places && asking.open.is_empty() {
            asking.timer = 0;
            self.moves.errands.remove(&errand);
        } else {
            self.put_off(errand, now + ASK_ON);
        }
    }

    /// A session has ended to which something may still come.
    pub(super) fn end_coming(&mut self, client: &Arc<str>, now: Nanos) {
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

    fn look_after_coming(&mut self, way: &Way, now: Nanos) {
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

    fn ahead_is_due(&mut self, errand: u64, slot: u32, number: u64, now: Nanos) {
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

    fn forget_had(&mut self, errand: u64, slot: u32, number: u64, now: Nanos) {
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

    /// The session that leaves on that way with that stream.
    fn leaves_with(&self, (client, to): &Way, stream: u64) -> Option<u32> {
        let slot = self.session_named(client)?;
        let leaving = self.sessions.get(slot)?.leaving.as_ref()?;
        (leaving.to == *to && leaving.stream == stream).then_some(slot)
    }

    fn leaving(&mut self, slot: u32) -> Option<&mut Leaving> {
        self.sessions.get_mut(slot)?.leaving.as_deref_mut()
    }

    /// Begins to send a session.
    fn begin_leaving(&mut self, slot: u32, to: &Arc<str>, at: u64, now: Nanos) {
        let directory = self.directory.clone();
        let Some(federation) = directory.federation() else {
            return;
        };
        self.end_ahead(slot);
        // Timers of before are void: it neither expires nor is swept while it leaves.
        let epoch = self.epoch();
        let stream = federation.clock().max(self.moves.stream + 1);
        self.moves.stream = stream;
        let number = self.sessions.get(slot).map(|session| session.handle.number);
        let Some(number) = number else {
            return;
        };
        let errand = Errand::Leaving {
            slot,
            session: number,
        };
        let timer = self.new_errand(now + PATIENCE, errand);
        let Some(session) = self.sessions.get_mut(slot) else {
            return;
        };
        session.epoch = epoch;
        session.sweep_at = Nanos::MAX;
        // Whatever has no name here could not be recognised there.
        let name = |delivery: &mut Delivery| {
            if delivery.message.name == 0
                && let Some(name) = directory.new_name()
            {
                delivery.message = delivery.message.called(name.key());
            }
        };
        session.window.deliveries_mut().for_each(name);
        let kept = take_all(&mut session.queue, name);
        session.share_queue_len();
        let best = session.subscriptions.iter().map(|it| it.options.qos).max();
        let best = best.unwrap_or(QoS::AtMostOnce);
        let mut bytes = Vec::new();
        put_session(&mut bytes, session);
        let had = session.had.as_ref();
        let mut known = had.map(|had| had.known()).unwrap_or_default();
        if session.handed {
            // What it has had is where it went, and perhaps nowhere else.
            known = Known::default();
        } else if best > QoS::AtMostOnce {
            // What passed before it was here may still come to it, where it goes or where it was.
            let mark = session.began.map_or(0, |began| began.passed);
            let (passed, since) = federation.passed(mark);
            let passed: Vec<u64> = passed.into_iter().map(MessageName::key).collect();
            if best == QoS::ExactlyOnce {
                let since = passed.len().saturating_sub(since);
                known.passed.extend(&passed[since..]);
            }
            let all = passed.into_iter().chain(directory.last_name());
            known.reached.extend(last_of_each(all));
            known.given.extend(directory.names_since(session.began));
        }
        put_state(&mut bytes, session, &known);
        session.leaving = Some(Box::new(Leaving {
            to: to.clone(),
            at,
            stream,
            timer,
            ending: false,
            ends: None,
            ends_by: Nanos(0),
            subscriptions: None,
            after: 0,
            kept,
            next: (0, 0),
            bytes,
            parts: VecDeque::new(),
            first: 0,
            cut: false,
            again: now + PATIENCE,
            patience: PATIENCE,
            messages: 0,
            taken_up: Vec::new(),
        }));
        self.begin_round(slot, now);
    }

    /// Sends a round when what is to be safe before is.
    fn begin_round(&mut self, slot: u32, now: Nanos) {
        if let (Some(journal), Some(session)) = (&mut self.journal, self.sessions.get_mut(slot))
            && let Some(leaving) = &mut session.leaving
        {
            let exactly = |delivery: &Delivery| delivery.qos == QoS::ExactlyOnce;
            let first = leaving.ends.is_none();
            let identifiers = session.incoming.as_ref().is_some_and(|it| !it.is_empty());
            let in_flight = || session.window.unacknowledged().any(exactly);
            if first && (identifiers || in_flight()) || leaving.kept.iter().any(exactly) {
                leaving.after = journal.settle();
                let round = (leaving.after, slot, session.handle.number);
                let rounds = &mut self.moves.unsafe_rounds;
                if rounds.len() > 2 * self.sessions.len() {
                    // Sessions that did not leave after all.
                    rounds.retain(|(ticket, slot, _)| {
                        let session = self.sessions.get(*slot);
                        let leaving = session.and_then(|session| session.leaving.as_deref());
                        leaving.is_some_and(|leaving| leaving.after == *ticket)
                    });
                }
                rounds.push_back(round);
                return self.go_on_moving(now);
            }
        }
        self.send_on(slot, now);
    }

    /// Sends the parts of the round that may be under way.
    fn send_on(&mut self, slot: u32, now: Nanos) {
        let directory = self.directory.clone();
        let committed = |leaving: &Leaving| self.is_committed(leaving.after);
        let session = self.sessions.get(slot);
        let leaving = session.and_then(|session| session.leaving.as_deref());
        if !leaving.is_some_and(committed) {
            return;
        }
        let (Some(federation), Some(session)) =
            (directory.federation(), self.sessions.get_mut(slot))
        else {
            return;
        };
        let Some(mut leaving) = session.leaving.take() else {
            return;
        };
        let offset = offset(federation.clock(), now);
        while leaving.parts.len() < WINDOW && !leaving.cut {
            let (first, next) = leaving.next;
            if leaving.bytes.len() < PART {
                let inflight = session.window.at(first);
                if let (Some(inflight), None) = (inflight, leaving.ends) {
                    if inflight.step != Step::Done {
                        put_inflight(&mut leaving.bytes, inflight, offset);
                        leaving.messages += 1;
                    }
                    leaving.next.0 += 1;
                    continue;
                }
                if let Some(delivery) = leaving.kept.get(next) {
                    put_delivery(&mut leaving.bytes, delivery, offset);
                    leaving.next.1 += 1;
                    continue;
                }
                leaving.cut = true;
            }
            let rest = leaving.bytes.split_off(leaving.bytes.len().min(PART));
            let bytes = std::mem::replace(&mut leaving.bytes, rest);
            let letter = Letter::Part {
                stream: leaving.stream,
                number: leaving.first + leaving.parts.len() as u32,
                round: leaving.cut,
                end: leaving.cut && leaving.ending,
                bytes: &bytes,
            };
            let letter = letter.encode();
            leaving.parts.push_back(letter.clone());
            federation.letter(&leaving.to, &session.handle.client_id, letter);
            leaving.again = now + leaving.patience;
        }
        let (timer, again) = (leaving.timer, leaving.again);
        session.leaving = Some(leaving);
        self.put_off(timer, again);
    }

    /// Says again what was not answered, and begins another round if something came.
    fn look_after_leaving(&mut self, slot: u32, now: Nanos) {
        let directory = self.directory.clone();
        let linger = self.move_times().linger;
        let (Some(federation), Some(session)) =
            (directory.federation(), self.sessions.get_mut(slot))
        else {
            return;
        };
        let Some(leaving) = &mut session.leaving else {
            return;
        };
        let timer = leaving.timer;
        if !leaving.parts.is_empty() {
            if leaving.again <= now {
                for letter in &leaving.parts {
                    federation.letter(&leaving.to, &session.handle.client_id, letter.clone());
                }
                leaving.patience = Nanos(leaving.patience.0 * 2).min(MOST_PATIENCE);
                leaving.again = now + leaving.patience;
            }
            let again = leaving.again;
            return self.put_off(timer, again);
        }
        if !leaving.cut {
            // It is sent with a commit.
            return self.put_off(timer, now + PATIENCE);
        }
        let may_wait = leaving.subscriptions.is_none() && federation.are_away();
        if let Some(ends) = leaving.ends.filter(|_| may_wait) {
            // They may keep something for it until they are back and hear where it is.
            leaving.ends = Some(ends.max((now + linger).min(leaving.ends_by)));
        }
        let ends = leaving.ends.is_some_and(|ends| ends <= now);
        if ends && leaving.subscriptions.is_none() {
            let subscriptions = self.withdraw(slot);
            if let Some(leaving) = self.leaving(slot) {
                leaving.subscriptions = Some(subscriptions);
            }
            // From now on nothing comes but what other shards have sent already.
            return self.put_off(timer, now + GATHER);
        }
        if !ends && session.queue.is_empty() && leaving.taken_up.is_empty() {
            return self.put_off(timer, now + GATHER);
        }
        let Some(session) = self.sessions.get_mut(slot) else {
            return;
        };
        let kept = take_all(&mut session.queue, |delivery| {
            if delivery.message.name == 0
                && let Some(name) = directory.new_name()
            {
                delivery.message = delivery.message.called(name.key());
            }
        });
        session.share_queue_len();
        let mut bytes = Vec::new();
        put_session(&mut bytes, session);
        if let Some(leaving) = &mut session.leaving {
            for (packet_id, _) in leaving.taken_up.drain(..) {
                put_taken_up(&mut bytes, packet_id);
            }
            (leaving.kept, leaving.bytes, leaving.cut) = (kept, bytes, false);
            leaving.next.1 = 0;
            leaving.ending = ends;
            leaving.patience = PATIENCE;
        }
        self.begin_round(slot, now);
    }

    /// Ends the subscriptions of a session, and returns them.
    pub(super) fn withdraw(&mut self, slot: u32) -> Vec<Subscription> {
        let Some(session) = self.sessions.get_mut(slot) else {
            return Vec::new();
        };
        let subscriptions = std::mem::take(&mut session.subscriptions);
        if subscriptions.is_empty() {
            return subscriptions;
        }
        let directory = &self.directory;
        let mut index = directory.index_mut();
        for Subscription { filter, .. } in &subscriptions {
            index.unsubscribe(filter, &session.handle, &directory.generations);
            let shared = filter.starts_with(topic::SHARE_PREFIX);
            self.stats.shared_subscriptions -= u64::from(shared);
        }
        drop(index);
        if let Some(federation) = directory.federation() {
            let gone = subscriptions.iter();
            gone.for_each(|gone| federation.unsubscribed(&gone.filter, gone.lasting));
        }
        let count = subscriptions.len();
        self.stats.subscriptions -= count as u64;
        let all = &directory.subscriptions;
        all.fetch_sub(count, std::sync::atomic::Ordering::Relaxed);
        subscriptions
    }
}

/// Takes all that waits, in the order in which it would be sent.
fn take_all(queue: &mut Queue, change: impl Fn(&mut Delivery)) -> Vec<Delivery> {
    let mut all = Vec::with_capacity(queue.len());
    while let Some((_, mut delivery)) = queue.pop() {
        change(&mut delivery);
        all.push(delivery);
    }
    all
}
