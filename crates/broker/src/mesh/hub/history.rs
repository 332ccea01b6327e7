//! Lifetime of the delivery histories of sessions.

use punctual_codec::QoS;
use punctual_mesh::transfer::Event::Confirmed;

use crate::Nanos;
use crate::hub::Hub;
use crate::mesh::federation::MoveTimes;
use crate::mesh::moves::HistoryExpiry;
use crate::timers::Timer;

impl Hub {
    pub(crate) fn move_times(&self) -> MoveTimes {
        let federation = self.directory.federation();
        federation.map_or(MoveTimes::NONE, |federation| federation.move_times())
    }

    /// The client of a session has sent a packet after CONNACK, and so knows of the session.
    pub(crate) fn is_known_to_client(&mut self, slot: u32, now: Nanos) {
        if let Some(session) = self.sessions.get(slot) {
            let client = session.handle.client_id.clone();
            self.queue_custody_event(&client, Confirmed, now);
        }
    }

    /// Records the messages that a session receives, for a limited time from `now`.
    pub(crate) fn watch_history(&mut self, slot: u32, now: Nanos) {
        let MoveTimes { heal, linger, .. } = self.move_times();
        let Some(session) = self.sessions.get_mut(slot) else {
            return;
        };
        let history = session.history.get_or_insert_default();
        let is_new = history.until == Nanos(0);
        let due = now + heal + linger;
        history.until = due;
        let session = session.handle.number;
        self.store_history(slot);
        if is_new {
            self.note_waiting(slot);
            self.links.moves.last += 1;
            let id = self.links.moves.last;
            let expiry = HistoryExpiry { due, slot, session };
            self.links.moves.expiries.insert(id, expiry);
            self.timers.arm(due, Timer::HistoryExpiry { id });
        }
    }

    /// Records the queued and unacknowledged messages of a session as received, as they will be
    /// delivered.
    fn note_waiting(&mut self, slot: u32) {
        let Some(session) = self.sessions.get_mut(slot) else {
            return;
        };
        let Some(history) = &mut session.history else {
            return;
        };
        let waiting = session.window.unacknowledged().chain(session.queue.iter());
        for delivery in waiting.filter(|delivery| delivery.message.name != 0) {
            history.note(delivery.message.name, delivery.qos == QoS::ExactlyOnce);
        }
        self.history_grew(slot);
    }

    /// Drops the delivery history of a session, unless its lifetime was extended meanwhile.
    pub(crate) fn forget_history(&mut self, id: u64, expiry: &HistoryExpiry, now: Nanos) {
        let session = self.sessions.get(expiry.slot);
        let session = session.filter(|session| session.handle.number == expiry.session);
        let until = session.and_then(|session| Some(session.history.as_ref()?.until));
        match until.filter(|until| *until > now) {
            Some(until) => {
                if let Some(expiry) = self.links.moves.expiries.get_mut(&id) {
                    expiry.due = until;
                    self.timers.arm(until, Timer::HistoryExpiry { id });
                }
            }
            None => {
                self.links.moves.expiries.remove(&id);
                if session.is_some() {
                    let _ = self.take_history(expiry.slot);
                    self.pump(expiry.slot, now);
                }
            }
        }
    }
}
