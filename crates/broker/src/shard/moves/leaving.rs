//! A session that is given to another broker: round after round, until all is safe there and it ends
//! here, or it stays after all.

use std::collections::VecDeque;
use std::sync::Arc;

use punctual_codec::{QoS, ReasonCode, topic};

use crate::Nanos;
use crate::directory::SessionHandle;
use crate::federation::MessageName;
use crate::hub::{Event, Hub, Output};
use crate::journal::{
    Journal, Known, offset, put_delivery, put_inflight, put_session, put_state, put_taken_up,
};
use crate::moves::{
    Errand, Fence, GATHER, Leaving, Letter, MOST_PATIENCE, MoveTimes, PART, PATIENCE, WINDOW, Way,
    last_of_each,
};
use crate::session::{Delivery, Load, Queue, Session, Step, Subscription};
use crate::shard::Shard;
use crate::timers::Timer;

impl Shard {
    /// Another broker wants a session.
    pub(super) fn take_away(&mut self, way: &Way, at: u64, user: Option<&str>, now: Nanos) {
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
        let has = self.sought(client, user, at);
        if at == 0 || has.is_none_or(|(arrived, _)| arrived > at) {
            let session = slot.and_then(|slot| self.hub.sessions.get(slot));
            let own = session.filter(|it| it.username.as_deref() == user);
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
    pub(in crate::shard) fn stop_leaving(&mut self, slot: u32, now: Nanos) {
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

    /// All has come here that was on its way when [`crate::Federation::fence`] was called with that
    /// client and number.
    pub fn fenced(&mut self, client_id: &str, number: u64, now: Nanos) {
        let slot = self.hub.session_named(client_id);
        if let Some(slot) = slot
            && let Some(leaving) = self.hub.leaving(slot)
            && leaving.stream == number
        {
            leaving.fence = Fence::Passed;
            self.hub.look_after_leaving(slot, now);
        }
    }

    /// Parts below `next` are where they went.
    pub(super) fn part_is_there(&mut self, way: &Way, stream: u64, next: u32, now: Nanos) {
        let Some(slot) = self.hub.leaves_with(way, stream) else {
            let slot = self.hub.session_named(&way.0);
            let session = slot.and_then(|slot| self.hub.sessions.get(slot));
            // Once it was handed over, what is there is the session, wherever the rest goes; and so it is
            // if all of it goes there once more.
            let is_there = |session: &Session| {
                let leaving = session.leaving.as_ref();
                session.handed || leaving.is_some_and(|leaving| leaving.to == way.1)
            };
            if !session.is_some_and(is_there) {
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
    pub(super) fn stream_is_lost(&mut self, way: &Way, stream: u64, now: Nanos) {
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
}

impl Hub {
    /// The session that leaves on that way with that stream.
    pub(super) fn leaves_with(&self, (client, to): &Way, stream: u64) -> Option<u32> {
        let slot = self.session_named(client)?;
        let leaving = self.sessions.get(slot)?.leaving.as_ref()?;
        (leaving.to == *to && leaving.stream == stream).then_some(slot)
    }

    fn leaving(&mut self, slot: u32) -> Option<&mut Leaving> {
        self.sessions.get_mut(slot)?.leaving.as_deref_mut()
    }

    /// Begins to send a session.
    pub(super) fn begin_leaving(&mut self, slot: u32, to: &Arc<str>, at: u64, now: Nanos) {
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
            let mark = session.began().map_or(0, |began| began.passed);
            let (passed, since) = federation.passed(mark);
            let passed: Vec<u64> = passed.into_iter().map(MessageName::key).collect();
            if best == QoS::ExactlyOnce {
                let since = passed.len().saturating_sub(since);
                known.passed.extend(&passed[since..]);
            }
            let all = passed.into_iter().chain(directory.last_name());
            known.reached.extend(last_of_each(all));
            known.given.extend(directory.names_since(session.began()));
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
            fence: Fence::Unasked,
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
    pub(super) fn send_on(&mut self, slot: u32, now: Nanos) {
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
    pub(super) fn look_after_leaving(&mut self, slot: u32, now: Nanos) {
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
        if ends && leaving.fence == Fence::Unasked {
            let client = &session.handle.client_id;
            leaving.fence = match federation.fence(client, leaving.stream) {
                true => Fence::Asked,
                false => Fence::Passed,
            };
        }
        let ends = ends && leaving.fence == Fence::Passed;
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
    pub(in crate::shard) fn withdraw(&mut self, slot: u32) -> Vec<Subscription> {
        let session = self.sessions.get_mut(slot);
        let all = session.map(|session| std::mem::take(&mut session.subscriptions));
        let all: Vec<Subscription> = all.unwrap_or_default().into_iter().collect();
        self.end_subscriptions(slot, &all);
        all
    }

    /// Those of a session have ended.
    fn end_subscriptions(&mut self, slot: u32, subscriptions: &[Subscription]) {
        if let Some(session) = self.sessions.get(slot) {
            let handle = session.handle.clone();
            self.forget_subscriptions(&handle, subscriptions);
        }
    }

    /// Takes subscriptions of a session out of the index, and tells the federation.
    pub(in crate::shard) fn forget_subscriptions(
        &mut self,
        handle: &Arc<SessionHandle>,
        subscriptions: &[Subscription],
    ) {
        if subscriptions.is_empty() {
            return;
        }
        let directory = &self.directory;
        let mut index = directory.index_mut();
        for Subscription { filter, .. } in subscriptions {
            index.unsubscribe(filter, handle, &directory.generations);
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
    }

    /// Nobody is to hear that the subscriptions of a session end before those of the next one have
    /// begun: that is told by [`Self::end_wanted`].
    pub(in crate::shard) fn keep_wanted(&self, slot: u32) -> Vec<Wanted> {
        let (federation, session) = (self.directory.federation(), self.sessions.get(slot));
        let (Some(federation), Some(session)) = (federation, session) else {
            return Vec::new();
        };
        let wanted = session.subscriptions.iter().map(|subscription| {
            federation.subscribed(&subscription.filter, subscription.lasting);
            (subscription.filter.clone(), subscription.lasting)
        });
        wanted.collect()
    }

    pub(in crate::shard) fn end_wanted(&self, wanted: Vec<Wanted>) {
        if let Some(federation) = self.directory.federation() {
            for (filter, lasting) in wanted {
                federation.unsubscribed(&filter, lasting);
            }
        }
    }

    /// A new session has the subscriptions of what was left of the one that was here before until
    /// its client has heard of it, and as long as these would have stayed.
    pub(in crate::shard) fn inherit(
        &mut self,
        slot: u32,
        mut subscriptions: Vec<Subscription>,
        now: Nanos,
    ) {
        // Nobody waits for what is not acknowledged.
        subscriptions.retain(|it| it.options.qos > QoS::AtMostOnce);
        if subscriptions.is_empty() {
            return;
        }
        let clock = self.directory.federation().map(|mesh| mesh.clock());
        let (Some(clock), Some(session)) = (clock, self.sessions.get_mut(slot)) else {
            return;
        };
        session.set_began(self.directory.begins());
        let session = session.handle.number;
        subscriptions.iter_mut().for_each(|it| it.inherited = true);
        self.restore_subscriptions(slot, subscriptions, offset(clock, now).0);
        let MoveTimes { heal, linger, .. } = self.move_times();
        // What is left waits so long for those that are away, and then for the fence.
        let until = now + linger + heal + heal;
        self.new_errand(until, Errand::Inherited { slot, session });
    }

    pub(super) fn inherited_is_due(&mut self, errand: u64, slot: u32, number: u64, now: Nanos) {
        let session = self.sessions.get(slot);
        let session = session.filter(|session| session.handle.number == number);
        if session.is_some_and(|session| session.leaving.is_some()) {
            // They end with it, if it does not stay after all.
            let heal = self.move_times().heal.max(PATIENCE);
            return self.put_off(errand, now + heal);
        }
        self.moves.errands.remove(&errand);
        if session.is_some() {
            self.end_inherited(slot);
        }
    }

    /// A client subscribes, or ends that: if it may not have heard that it has a new session, to that.
    pub(in crate::shard) fn subscribes(&mut self, slot: u32) {
        if self.sessions.get(slot).is_some_and(|it| it.unheard) {
            self.end_inherited(slot);
        }
    }

    /// The client of a session knows that it is a new one.
    pub(super) fn end_inherited(&mut self, slot: u32) {
        let Some(session) = self.sessions.get_mut(slot) else {
            return;
        };
        let inherited = session.subscriptions.take_inherited();
        self.end_subscriptions(slot, &inherited);
    }
}

/// A filter that stays wanted, and whether the federation knows it as one of a persistent session.
pub(in crate::shard) type Wanted = (Box<str>, bool);

/// Takes all that waits, in the order in which it would be sent.
fn take_all(queue: &mut Queue, change: impl Fn(&mut Delivery)) -> Vec<Delivery> {
    let mut all = Vec::with_capacity(queue.len());
    while let Some((_, mut delivery)) = queue.pop() {
        change(&mut delivery);
        all.push(delivery);
    }
    all
}
