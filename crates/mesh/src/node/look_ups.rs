//! Look-ups: what all brokers know of a client that connects, see [`crate::transfer`].

use std::collections::BTreeSet;

use punctual_model::Nanos;

use super::{Membership, Node, Output};
use crate::id::{BrokerId, LinkId};
use crate::transfer::{Extent, HomeId, Located, Stamp};
use crate::wire::{LookUp, LookedUp};

/// Look-ups of this broker, and what the shell was told of whom it reaches.
#[derive(Debug, Default)]
pub(super) struct LookUps {
    /// How many there were.
    rounds: u64,
    /// Who is reached, and whether others are not, as [`Output::Reach`] said last.
    told: Option<(BTreeSet<BrokerId>, bool)>,
}

impl LookUps {
    /// Whether brokers of the mesh are not reached.
    fn are_away(&self) -> bool {
        self.told.as_ref().is_none_or(|(_, away)| *away)
    }
}

impl Node {
    /// Asks all other brokers what they have of a client that connects as that user, with `clean` if
    /// with Clean Start; [`Output::Located`] is the answer, with the same stamp, in
    /// [`super::Settings::session_wait`] at the latest.
    pub fn look_up(
        &mut self,
        at: &Stamp,
        client: &str,
        user: Option<&str>,
        clean: bool,
        now: Nanos,
    ) {
        self.look_ups.rounds += 1;
        let wait = self.settings.session_wait.0 / 1_000_000;
        let look_up = LookUp {
            at: at.clone(),
            round: self.look_ups.rounds,
            client: client.into(),
            user: user.map(Into::into),
            clean,
            wait: wait.min(u64::from(u32::MAX)) as u32,
        };
        self.ask(None, look_up, now);
        self.settle(now);
    }

    /// What this broker's core has of a client that it was asked for with [`Output::LookUp`].
    pub fn found(&mut self, by: &HomeId, at: &Stamp, client: &str, located: Located, now: Nanos) {
        let answer = Some(located).filter(|located| !located.is_nothing());
        self.answer_own(by, at.micros, client, answer, now);
    }

    pub(super) fn heard_look_up(&mut self, from: LinkId, look_up: LookUp, now: Nanos) {
        // Were it answered with no, it would be asked again at once.
        if self.clocks.is_past(look_up.at.micros) {
            self.ask(Some(from), look_up, now);
        }
    }

    pub(super) fn heard_looked_up(&mut self, from: LinkId, looked_up: LookedUp, now: Nanos) {
        let LookedUp {
            at,
            round,
            answers,
            extent,
        } = looked_up;
        self.heard_answers(from, (at.by, at.micros, round), answers, extent, now);
    }

    /// How much an answer covers.
    pub(super) fn extent(&self, answered: Extent) -> Extent {
        match self.look_ups.are_away() {
            // Who is back in a moment may have the session.
            _ if self.presence.is_held_down() => Extent::Incomplete,
            true => answered.max(Extent::Reached),
            false => answered,
        }
    }

    /// Tells the shell who is reached, and whether others are not, if it was not told so last.
    pub(super) fn tell_reach(&mut self) {
        // Before it has joined, neighbours may be missing of which nothing is known; and others, before it
        // is known for whom those keep messages that are reached.
        let away = self.membership() != Membership::Joined
            || !self.reach.reached().all(|id| self.lasting.knows_all_of(id))
            || self.presence.are_away();
        let reached = self.reached();
        let told = self.look_ups.told.as_ref();
        if told.is_none_or(|(who, were)| (who, *were) != (reached, away)) {
            let reached = reached.clone();
            self.look_ups.told = Some((reached.clone(), away));
            self.outputs.push(Output::Reach { reached, away });
        }
    }

    /// After a start, also if nothing has changed yet.
    pub(super) fn tell_first_reach(&mut self) {
        if self.look_ups.told.is_none() {
            // Nobody was missed before: it does not matter how late it is.
            self.note_missed(Nanos(0));
            self.tell_reach();
        }
    }
}
