//! Asking other brokers: for the session of a client that connects here and waits for it, again for
//! those that were not heard then or have been away, and where the client of a session is that has
//! to go there; and what is answered when others ask.

use std::sync::Arc;

use punctual_codec::Connect;

use crate::Nanos;
use crate::federation::Seeker;
use crate::hub::{Awaited, ConnId, Hub, State};
use crate::moves::{ASK_ON, Asking, Awaiting, Errand, Holder, MOST_PATIENCE, ORPHANED, Way};
use crate::session::Session;
use crate::shard::connect::Looked;
use crate::shard::{Fail, Shard};

impl Shard {
    /// Whether the session of a client is here, as another broker asks that the client has
    /// connected to at that time ([`crate::Federation::seek`]): when it connected here last, 0
    /// if the session has gone on from here, or the client may not have heard of it, and whether it is
    /// the whole session. If the client has connected here later, and the whole session is here and stays, who
    /// asks hears of that, and when it asks for the session it does not get it. To be asked on the shard that
    /// has it.
    pub fn sought(&self, client_id: &str, user: Option<&str>, number: u64) -> Option<(u64, bool)> {
        let session = self.hub.sessions.get(self.hub.session_named(client_id)?)?;
        // What waits for one user is not for another who uses the same identifier.
        let is_foreign = session.username.as_deref() != user;
        let goes_later = session.leaving.as_ref().is_some_and(|it| it.at > number);
        let whole = session.is_whole();
        let is_here = session.arrived > number && !whole || session.is_transient() || goes_later;
        let goes = session.link.is_none() && !is_foreign && !is_here;
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
        if let Some(federation) = hub.directory.federation() {
            // It may be later than what was asked.
            let last = holders.iter().map(|holder| holder.at).max();
            federation.heard_arrival(last.unwrap_or(0));
        }
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
            let user = user.clone();
            self.hub.begin_coming(way.clone(), at, user, is_whole, now);
            if let Some(coming) = self.hub.moves.coming.get_mut(&way) {
                (coming.arrived, coming.left) = (holder.at, !holder.whole);
            }
        }
        if conn.is_none() || whole.is_some() {
            return;
        }
        // It may have gone on from one broker to another while these were asked, one after the other.
        let is_left = holders.iter().any(|holder| !holder.whole);
        match self.hub.moves.awaiting.get_mut(&client) {
            Some(waits) if is_left && !waits.missed => {
                waits.missed = true;
                self.seek_again(&client, now);
            }
            _ => self.connect_awaiting(&client, now),
        }
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
    pub(in crate::shard) fn await_session(
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
        let Some(number) = federation.seek(client, awaited.username.as_deref(), Seeker::Client)
        else {
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
            missed: false,
        };
        hub.moves.awaiting.insert(client.clone(), waits);
        if let Some(conn) = hub.conn(id) {
            conn.state = State::Awaiting(Box::new(awaited));
            conn.paused += 1;
        }
        true
    }

    /// The session that a client waits for has gone on from where it was to come from: all others are
    /// asked once more who has it.
    pub(super) fn seek_again(&mut self, client: &Arc<str>, now: Nanos) {
        let directory = self.hub.directory.clone();
        let hub = &mut self.hub;
        let waits = hub.moves.awaiting.get_mut(client);
        if let (Some(waits), Some(federation)) = (waits, directory.federation())
            && let Some(conn) = hub.conns.get(waits.conn.slot)
            && let State::Awaiting(awaited) = &conn.state
        {
            let user = awaited.username.as_deref();
            let seeker = Seeker::Waiting(waits.number);
            if federation.seek(client, user, seeker).is_some() {
                waits.unsure = true;
                return;
            }
        }
        self.connect_awaiting(client, now);
    }

    /// Another connection of a client that waits takes its place.
    pub(in crate::shard) fn end_awaiting(&mut self, client: &Arc<str>, now: Nanos) {
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
    pub(super) fn connect_awaiting(&mut self, client: &Arc<str>, now: Nanos) {
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
    pub(in crate::shard) fn awaited_elsewhere(&mut self, client_id: &str, at: u64, now: Nanos) {
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
    /// Whether a client waits since that time.
    pub(super) fn awaits(&self, client: &str, number: u64) -> bool {
        let waits = self.moves.awaiting.get(client);
        waits.is_some_and(|waits| waits.number == number)
    }

    fn give_up_reserved(&self, client: &str) {
        if self.session_named(client).is_none() && !self.moves.awaiting.contains_key(client) {
            self.directory.give_up(client);
        }
    }

    /// The client of a session is elsewhere, and the session has to go there.
    pub(in crate::shard) fn follow_client(&mut self, slot: u32, now: Nanos) {
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
        let Some(session) = self.sessions.get(slot) else {
            return;
        };
        let (number, errand) = (session.handle.number, session.orphaned());
        let at = now + ORPHANED;
        match self.moves.errands.get(&errand).map(|(due, _)| *due) {
            Some(due) if due <= at => {}
            Some(_) => self.put_off(errand, at),
            None => {
                let orphan = Errand::Orphan {
                    slot,
                    session: number,
                };
                let errand = self.new_errand(at, orphan);
                if let Some(session) = self.sessions.get_mut(slot) {
                    session.past().orphaned = errand;
                }
            }
        }
    }

    /// Asks for what a session's client may have elsewhere, now that who did not answer is known to be
    /// away, or is where it goes, and once more later.
    pub(super) fn ask_once_more(&mut self, slot: u32, number: u64, again: bool, now: Nanos) {
        let session = self.sessions.get(slot);
        let session = session.filter(|session| session.handle.number == number);
        let (Some(session), Some(federation)) = (session, self.directory.federation()) else {
            return;
        };
        let user = session.username.as_deref();
        federation.seek(&session.handle.client_id, user, Seeker::Session);
        if again {
            let errand = Errand::Unsure {
                slot,
                session: number,
                again: false,
            };
            self.new_errand(now + MOST_PATIENCE, errand);
        }
    }

    pub(super) fn look_after_orphan(&mut self, errand: u64, slot: u32, number: u64, now: Nanos) {
        let session = self.sessions.get(slot);
        let session = session.filter(|it| it.handle.number == number && it.elsewhere);
        let Some(session) = session.filter(|session| session.conn.is_none()) else {
            self.moves.errands.remove(&errand);
            return;
        };
        if let (true, Some(federation)) = (session.is_orphan(), self.directory.federation()) {
            let user = session.username.as_deref();
            federation.seek(&session.handle.client_id, user, Seeker::Session);
        }
        self.put_off(errand, now + MOST_PATIENCE);
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
    pub(super) fn ask_on(&mut self, broker: &Arc<str>, now: Nanos) {
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
            if leaves || !missed.contains(&session.missed()) {
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
    pub(super) fn answered(&mut self, way: &Way) {
        let coming = self.moves.coming.get(way);
        if coming.is_none_or(|coming| coming.held || coming.stream != 0)
            && let Some(asking) = self.moves.asking.get_mut(&way.1)
        {
            asking.open.remove(&way.0);
        }
    }

    /// A broker is not asked any more that has not answered about a session: it is when it comes again.
    pub(super) fn note_unanswered(&mut self, (client, broker): &Way) {
        let slot = self.session_named(client);
        let session = slot.and_then(|slot| self.sessions.get(slot));
        let Some(missed) = session.map(|session| session.missed()) else {
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
    pub(super) fn look_after_asking(&mut self, errand: u64, broker: &Arc<str>, now: Nanos) {
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
}
