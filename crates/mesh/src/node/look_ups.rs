//! Look-ups: asks all brokers what they have of a client that connects, see [`crate::transfer`].

use std::collections::BTreeSet;

use punctual_model::Nanos;

use super::{Membership, Node, Output};
use crate::id::{BrokerId, LinkId};
use crate::transfer::{Extent, HomeId, Located, Stamp};
use crate::wire::{LookUp, LookUpReply};

/// Look-ups of this broker, and the last report of reached brokers to the shell.
#[derive(Debug, Default)]
pub(super) struct LookUps {
    /// Number of look-ups so far.
    rounds: u64,
    /// The last [`Output::Reach`]: the reached brokers, and whether others are away.
    told: Option<(BTreeSet<BrokerId>, bool)>,
}

impl LookUps {
    /// Whether brokers of the mesh are away.
    fn are_away(&self) -> bool {
        self.told.as_ref().is_none_or(|(_, away)| *away)
    }
}

impl Node {
    /// Asks all other brokers what they have of a client that connects with this user name; `clean` is
    /// its Clean Start flag. [`Output::Located`] answers with the same stamp, within
    /// [`super::Settings::session_wait`].
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

    /// Answers [`Output::LookUp`]: what this broker's core has of the client.
    pub fn found(&mut self, by: &HomeId, at: &Stamp, client: &str, located: Located, now: Nanos) {
        let answer = Some(located).filter(|located| !located.is_nothing());
        self.answer_own(by, at.micros, client, answer, now);
    }

    pub(super) fn heard_look_up(&mut self, from: LinkId, look_up: LookUp, now: Nanos) {
        // A look-up from the future gets no answer: a negative one would be repeated at once.
        if self.clocks.is_past(look_up.at.micros) {
            self.ask(Some(from), look_up, now);
        }
    }

    pub(super) fn heard_look_up_reply(
        &mut self,
        from: LinkId,
        look_up_reply: LookUpReply,
        now: Nanos,
    ) {
        let LookUpReply {
            at,
            round,
            answers,
            extent,
        } = look_up_reply;
        self.heard_answers(from, (at.by, at.micros, round), answers, extent, now);
    }

    /// Which brokers an answer covers, given what the replies covered.
    pub(super) fn extent(&self, answered: Extent) -> Extent {
        match self.look_ups.are_away() {
            // A broker in hold-down may have the session, and be reached again in a moment.
            _ if self.presence.is_held_down() => Extent::Incomplete,
            true => answered.max(Extent::Reached),
            false => answered,
        }
    }

    /// Reports the reached brokers to the shell, and whether others are away, if that has changed.
    pub(super) fn report_reach(&mut self) {
        // Before this broker has joined, unknown neighbours may be missing. Before the persistent
        // interest of all reached brokers is complete, it is unknown for which other brokers they queue
        // messages.
        let away = self.membership() != Membership::Joined
            || !self
                .reach
                .reached()
                .all(|id| self.interest.knows_all_of(id))
            || self.presence.are_away();
        let reached = self.reached();
        let told = self.look_ups.told.as_ref();
        if told.is_none_or(|(who, were)| (who, *were) != (reached, away)) {
            let reached = reached.clone();
            self.look_ups.told = Some((reached.clone(), away));
            self.outputs.push(Output::Reach { reached, away });
        }
    }

    /// Makes the first report after a start, even if nothing has changed yet.
    pub(super) fn report_first_reach(&mut self) {
        if self.look_ups.told.is_none() {
            // The set of missed brokers is empty, so the time does not matter.
            self.note_missed(Nanos(0));
            self.report_reach();
        }
    }
}
