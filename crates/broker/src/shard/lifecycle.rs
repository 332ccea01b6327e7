//! The ends of connections and sessions: DISCONNECT, errors, takeover, expiry, shutdown.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use punctual_codec::{Disconnect, PropertyId, ReasonCode, topic};

use super::{Fail, Shard};
use crate::admission::Ask;
use crate::base::connection::ConnId;
use crate::base::handle::SessionHandle;
use crate::hub::{Event, Hub, Output, State};
use crate::remains::Remains;
use crate::session::{Queue, Subscription, Window};
use crate::tasks::{FILTER, FLOW, Task};
use crate::timers::Timer;
use crate::{Budget, Nanos};

impl Shard {
    /// Notes that the network connection was closed, or failed.
    pub fn closed(&mut self, id: ConnId, why: &str, now: Nanos) {
        if self.hub.outlets.conn(id).is_some() {
            self.lose_connection(id.slot, why, (true, true), now);
        }
    }

    /// Ends a connection because of an error or a timeout of its peer.
    pub(crate) fn fail(&mut self, id: ConnId, fail: &Fail, now: Nanos) {
        let Some(conn) = self.hub.outlets.conn(id) else {
            return;
        };
        let connected = matches!(conn.state, State::Connected);
        match fail.reason {
            Some(reason) if connected => self.dismiss(id.slot, reason, &fail.why),
            Some(reason) => self.hub.stats.count_disconnect(reason),
            None => {}
        }
        self.end_connection(id.slot, &fail.why, true, now);
    }

    /// Sends a client the reason for which the broker is about to end its connection, and counts
    /// the reason.
    pub(super) fn dismiss(&mut self, slot: u32, reason: ReasonCode, why: &str) {
        self.hub.stats.count_disconnect(reason);
        self.hub.send_disconnect(slot, reason, why);
    }

    /// Ends a client's connection on behalf of the operator. False if the client is not connected
    /// here.
    pub fn kick(&mut self, client_id: &str, reason: ReasonCode, now: Nanos) -> bool {
        let hub = &self.hub;
        let conn = hub
            .sessions
            .named(client_id)
            .and_then(|slot| hub.sessions.get(slot)?.conn);
        let Some(slot) = conn else {
            return false;
        };
        self.dismiss(slot, reason, "");
        self.end_connection(slot, reason.name(), true, now);
        true
    }

    /// Ends a session that is not connected. False if this shard has no such session.
    pub fn forget(&mut self, client_id: &str, now: Nanos) -> bool {
        let slot = self.hub.sessions.named(client_id);
        let Some(slot) = slot else {
            return false;
        };
        if self
            .hub
            .sessions
            .get(slot)
            .is_none_or(|session| session.conn.is_some())
        {
            return false;
        }
        self.end_session(slot, now);
        true
    }

    /// Notifies every client that the broker shuts down, and ends its connection. Wills are
    /// published, and store operations do not wait any more.
    pub fn shut_down(&mut self, now: Nanos) {
        if let Some(journal) = &mut self.hub.journal {
            journal.end();
        }
        let slots: Vec<u32> = self
            .hub
            .outlets
            .conns
            .iter()
            .map(|(slot, _)| slot)
            .collect();
        for slot in slots {
            let Some(conn) = self.hub.outlets.conns.get(slot) else {
                continue;
            };
            if matches!(conn.state, State::Connected) {
                self.dismiss(slot, ReasonCode::ServerShuttingDown, "");
            }
            self.end_connection(slot, "server shutting down", true, now);
        }
    }

    /// Handles DISCONNECT from the client.
    pub(super) fn disconnect_packet(
        &mut self,
        id: ConnId,
        packet: Disconnect<'_>,
        now: Nanos,
    ) -> Result<(), Fail> {
        let hub = &mut self.hub;
        let Some(slot) = hub.outlets.conns.get(id.slot).map(|conn| conn.session) else {
            return Ok(());
        };
        if packet.properties.contains(PropertyId::ServerReference) {
            return Err(Fail::new(
                ReasonCode::ProtocolError,
                "Server Reference from a client",
            ));
        }
        let expiry = packet.properties.number(PropertyId::SessionExpiryInterval);
        if let (Some(expiry), Some(session)) = (expiry, hub.sessions.get_mut(slot)) {
            if session.is_transient() && expiry != 0 {
                return Err(Fail::new(
                    ReasonCode::ProtocolError,
                    "session expiry of a session without one",
                ));
            }
            session.expiry = expiry.min(hub.config.limits.max_session_expiry);
            hub.notify_federation_of_lasting(slot);
        }
        let with_will = packet.reason != ReasonCode::Success;
        self.end_connection(id.slot, packet.reason.name(), with_will, now);
        Ok(())
    }

    /// Removes a connection, detaches its session, and starts the will delay and the session
    /// expiry.
    pub(crate) fn end_connection(&mut self, slot: u32, why: &str, with_will: bool, now: Nanos) {
        self.lose_connection(slot, why, (with_will, false), now);
    }

    /// As [`Self::end_connection`], for a peer that may be gone.
    fn lose_connection(
        &mut self,
        slot: u32,
        why: &str,
        (with_will, gone): (bool, bool),
        now: Nanos,
    ) {
        let hub = &mut self.hub;
        let Some(conn) = hub.outlets.conns.get(slot) else {
            return;
        };
        let (session_slot, peer) = (conn.session, conn.meta.peer());
        let generation = conn.generation;
        let connected = matches!(conn.state, State::Connected);
        if let State::Awaiting(awaited) = &conn.state
            && hub.links.custody.is_some()
        {
            let body = awaited.body.clone();
            self.waiting_is_closed(ConnId { slot, generation }, &body, now);
        }
        let hub = &mut self.hub;
        hub.drop_conn(slot, gone, now);
        self.share_stats_soon(now);
        let hub = &mut self.hub;
        if !connected {
            hub.outlets.outputs.push(Output::Event(Event::Refused {
                peer,
                reason: why.to_owned(),
            }));
            return;
        }
        hub.stats.clients_connected -= 1;
        let epoch = hub.sessions.next_epoch();
        let mut will_gone = !with_will && hub.take_will(session_slot).is_some();
        let Some(session) = hub.sessions.get_mut(session_slot) else {
            return;
        };
        session.conn = None;
        session.epoch = epoch;
        session.handle.connected.store(false, Ordering::Release);
        session.handle.congested.store(false, Ordering::Release);
        session.window.rewind();
        session.end_hold(now);
        session.set_throttle(Arc::default());
        let (client_id, expiry) = (session.handle.client_id.clone(), session.expiry);
        if session.link.is_some() {
            hub.link_is_down(ConnId { slot, generation }, session_slot, why);
        }
        hub.outlets.outputs.push(Output::Event(Event::Disconnected {
            client_id,
            reason: why.to_owned(),
        }));
        if expiry == 0 {
            self.end_session(session_slot, now);
            return;
        }
        hub.store_session(session_slot, now);
        if let Some(will) = hub.will_of(session_slot, now) {
            will_gone = true;
            self.publish_will(session_slot, &will, now);
        }
        let hub = &mut self.hub;
        if will_gone {
            hub.store_no_will(session_slot);
        }
        if expiry != u32::MAX {
            let timer = Timer::SessionExpiry {
                slot: session_slot,
                epoch,
            };
            hub.timers
                .arm(now + Nanos::from_secs(u64::from(expiry)), timer);
        }
        if let Some(admission) = hub.config.admission
            && hub
                .sessions
                .get(session_slot)
                .is_some_and(|session| session.flows.is_some())
        {
            let timer = Timer::Absent {
                slot: session_slot,
                epoch,
            };
            hub.timers.arm(now + admission.absent_after, timer);
        }
        // Queued messages may expire; a first sweep determines when.
        if let Some(session) = hub.sessions.get_mut(session_slot)
            && !session.queue.is_empty()
            && session.sweep_by(now)
        {
            let timer = Timer::Sweep {
                slot: session_slot,
                epoch,
            };
            hub.timers.arm(session.sweep_at, timer);
        }
        self.compact_timers();
    }

    /// Takes over the session of a client that connects: its old connection ends [MQTT-3.1.4-3],
    /// and with `clean_start` the session, too.
    pub(super) fn take_over(&mut self, slot: u32, clean_start: bool, now: Nanos) {
        let Some(session) = self.hub.sessions.get(slot) else {
            return;
        };
        let client_id = session.handle.client_id.clone();
        if let Some(old) = session.conn {
            self.end_taken_over(old, "session taken over", now);
        }
        if clean_start && self.hub.sessions.named(&client_id).is_some() {
            self.end_session(slot, now);
        }
    }

    /// Ends a connection whose client has a newer one.
    pub(crate) fn end_taken_over(&mut self, conn: u32, why: &str, now: Nanos) {
        self.hub.stats.sessions_taken_over += 1;
        self.dismiss(conn, ReasonCode::SessionTakenOver, "");
        self.end_connection(conn, why, true, now);
    }

    /// Ends the session of a connecting client of which only the will was stored: the session has
    /// ended with its connection. In a mesh that will is void, as other brokers may know that the
    /// client is back.
    pub(super) fn end_session_of_stored_will(&mut self, client_id: &str, now: Nanos) {
        let slot = self.hub.sessions.named(client_id);
        let session = slot.and_then(|slot| Some((slot, self.hub.sessions.get(slot)?)));
        if let Some((slot, session)) = session
            && session.conn.is_none()
            && session.expiry == 0
        {
            if self.hub.directory.federation().is_some() {
                self.hub.take_will(slot);
            }
            self.end_session(slot, now);
        }
    }

    pub(super) fn session_expired(&mut self, slot: u32, epoch: u64, now: Nanos) {
        let hub = &mut self.hub;
        let Some(session) = hub.sessions.get(slot).filter(|s| s.epoch == epoch) else {
            return;
        };
        if hub.is_frozen(&session.handle.client_id) {
            // The session is gone once it has been transferred; otherwise it thaws soon.
            let timer = Timer::SessionExpiry { slot, epoch };
            hub.timers.arm(now + Nanos::from_secs(1), timer);
            return;
        }
        // The session is connected only if its queue overflowed and the policy is to end it.
        if let Some(conn) = session.conn {
            self.dismiss(conn, ReasonCode::QuotaExceeded, "queue is full");
            self.end_connection(conn, "queue is full", true, now);
            return;
        }
        hub.stats.sessions_expired += 1;
        self.end_session(slot, now);
    }

    /// Ends the flows of a client that has been away for long, so that others can use their
    /// capacity.
    pub(super) fn publisher_is_absent(&mut self, slot: u32, epoch: u64, now: Nanos) {
        let hub = &mut self.hub;
        let Some(session) = hub.sessions.get_mut(slot).filter(|s| s.epoch == epoch) else {
            return;
        };
        let Some(flows) = session.flows.take() else {
            return;
        };
        let remains = Remains {
            handle: session.handle.clone(),
            subscriptions: Vec::new(),
            flows: (*flows).into_iter(),
            window: Window::default(),
            queue: Queue::default(),
        };
        hub.ask(slot, Ask::Absent);
        self.clear_away(remains, &mut Budget::new(AT_ONCE), now);
    }

    /// Ends a session that is not connected: a waiting will is published, subscriptions and
    /// messages are removed.
    pub(crate) fn end_session(&mut self, slot: u32, now: Nanos) {
        self.share_stats_soon(now);
        if let Some(will) = self.hub.take_will(slot) {
            self.publish_will(slot, &will, now);
        }
        self.end_link(slot);
        let hub = &mut self.hub;
        hub.store_session_end(slot);
        if hub.sessions.get(slot).is_some_and(|session| session.asked) {
            hub.ask(slot, Ask::Ended);
        }
        let Some(session) = hub.sessions.remove(slot) else {
            return;
        };
        session.handle.end();
        hub.forget_fullness(&session);
        hub.sessions.unname(&session.handle.client_id, slot);
        hub.forget_queued(&session.queue.load());
        hub.stats.inflight_messages -= u64::from(session.window.open());
        // The identifier is released last, so that no other shard takes it before the old session
        // is gone.
        let client_id: Arc<str> = session.handle.client_id.clone();
        hub.directory.release(&client_id);
        hub.session_ends(&client_id, now);
        self.clear_away(Remains::of(session), &mut Budget::new(AT_ONCE), now);
    }

    /// Removes the remains of an ended session, as far as the budget allows; a task does the rest.
    pub(crate) fn clear_away(&mut self, mut remains: Remains, budget: &mut Budget, now: Nanos) {
        let Remains {
            handle,
            subscriptions,
            flows,
            window,
            queue,
        } = &mut remains;
        let hub = &mut self.hub;
        while !budget.is_spent() && !subscriptions.is_empty() {
            let some = subscriptions.len().min(UNDER_LOCK);
            let gone = subscriptions.split_off(subscriptions.len() - some);
            budget.spend(FILTER * some as u64);
            hub.forget_subscriptions(handle, &gone);
        }
        while !budget.is_spent() && flows.next().is_some() {
            budget.spend(FLOW);
        }
        let mut is_left = !subscriptions.is_empty() || flows.len() > 0;
        // Once the session is no member of shared subscriptions any more, other members get the
        // messages that were being sent to it.
        while !is_left {
            if budget.is_spent() {
                is_left = true;
                break;
            }
            let (was_queued, delivery) = match window.take_first() {
                Some(in_flight) => (false, in_flight),
                None => match queue.pop() {
                    Some((_, delivery)) => (true, Some(delivery)),
                    None => break,
                },
            };
            budget.spend(1);
            let shared = delivery.filter(|delivery| delivery.share != 0);
            if shared.is_some() {
                budget.spend(SHARED);
            }
            if !shared.is_some_and(|it| self.give_to_another_member(&it, now)) && was_queued {
                self.hub.stats.dropped_session_ended += 1;
            }
        }
        if is_left {
            self.hub.work.tasks.push(Task::Remains(Box::new(remains)));
        }
        self.share_stats_soon(now);
    }
}

impl Hub {
    /// Removes subscriptions of a session from the index, and notifies the federation.
    fn forget_subscriptions(
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
        let count = subscriptions.len();
        self.stats.subscriptions -= count as u64;
        directory.subscriptions.fetch_sub(count, Ordering::Relaxed);
        self.end_interest(subscriptions);
    }
}

/// Units of work for giving a message to another member of a shared subscription.
const SHARED: u64 = 16;
/// Units of work for an ended session that are done at once: most sessions need less.
const AT_ONCE: u64 = 32 * FILTER;
/// Number of subscriptions that are removed in one hold of the index lock.
const UNDER_LOCK: usize = 16;
