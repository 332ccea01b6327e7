//! For how long it is remembered what sessions have had.

use punctual_codec::QoS;
use punctual_mesh::transfer::Event::Confirmed;

use crate::Nanos;
use crate::hub::Hub;
use crate::mesh::federation::MoveTimes;
use crate::mesh::moves::Errand;
use crate::timers::Timer;

impl Hub {
    pub(crate) fn move_times(&self) -> MoveTimes {
        let federation = self.directory.federation();
        federation.map_or(MoveTimes::NONE, |federation| federation.move_times())
    }

    /// The client of a session has sent something since it was told of it.
    pub(crate) fn was_heard_of(&mut self, slot: u32, now: Nanos) {
        if let Some(session) = self.sessions.get(slot) {
            let client = session.handle.client_id.clone();
            self.tell_custody(&client, Confirmed, now);
        }
    }

    /// Remembers for a while what a session gets.
    pub(crate) fn watch_had(&mut self, slot: u32, now: Nanos) {
        let MoveTimes { heal, linger, .. } = self.move_times();
        let Some(session) = self.sessions.get_mut(slot) else {
            return;
        };
        let had = session.had.get_or_insert_default();
        let is_new = had.until == Nanos(0);
        let due = now + heal + linger;
        had.until = due;
        let session = session.handle.number;
        self.store_had(slot);
        if is_new {
            self.note_waiting(slot);
            self.links.moves.last += 1;
            let id = self.links.moves.last;
            let errand = Errand { due, slot, session };
            self.links.moves.errands.insert(id, errand);
            self.timers.arm(due, Timer::Errand { id });
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

    /// What a session has had is forgotten, unless more has come meanwhile.
    pub(crate) fn forget_had(&mut self, id: u64, errand: &Errand, now: Nanos) {
        let session = self.sessions.get(errand.slot);
        let session = session.filter(|session| session.handle.number == errand.session);
        let until = session.and_then(|session| Some(session.had.as_ref()?.until));
        match until.filter(|until| *until > now) {
            Some(until) => {
                if let Some(errand) = self.links.moves.errands.get_mut(&id) {
                    errand.due = until;
                    self.timers.arm(until, Timer::Errand { id });
                }
            }
            None => {
                self.links.moves.errands.remove(&id);
                if session.is_some() {
                    let _ = self.take_had(errand.slot);
                    self.pump(errand.slot, now);
                }
            }
        }
    }
}
