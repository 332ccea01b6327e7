//! Which brokers are reached, and envelopes: messages between the cores of two brokers about a session
//! transfer.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use punctual_model::Nanos;

use super::commit::InterestCommit;
use super::{Node, Output};
use crate::id::{BrokerId, LinkId};
use crate::wire::{Envelope, Message};

/// Bound on envelopes that wait for [`super::Node::interest_committed`]; more are dropped, and repeated by
/// their senders.
const MAX_LETTERS: usize = 1 << 10;

/// Bound on the brokers that are remembered as away.
const MAX_AWAY: usize = 1 << 12;

/// A broker that ceased to be reached less than this ago may only have changed its place in the tree:
/// look-ups count as incomplete (*hold-down*).
const HOLD_DOWN: Nanos = Nanos::from_secs(1);

/// Reached brokers, and envelopes.
#[derive(Debug, Default)]
pub(super) struct Presence {
    /// Brokers that are reached.
    present: BTreeSet<BrokerId>,
    /// Brokers that ceased to be reached, and since when.
    away: BTreeMap<BrokerId, Nanos>,
    /// Brokers that are not reached, and that a link has led to or will lead to, or for which messages are
    /// kept somewhere (`None`). Neighbours stop keeping messages for a broker a little before it is reached
    /// here, so it counts as away for some more time: until the instant in the entry.
    missed: BTreeMap<BrokerId, Option<Nanos>>,
    /// Brokers in hold-down, and until when; at most [`MAX_AWAY`].
    held: BTreeMap<BrokerId, Nanos>,
    /// Envelopes to be forwarded: the change of interest that has to be durable first (see
    /// [`super::commit`]), and the link on which each came.
    envelopes: VecDeque<(u64, LinkId, Envelope)>,
}

impl Presence {
    /// Whether any known broker is not reached.
    pub(super) fn are_away(&self) -> bool {
        !self.away.is_empty() || !self.missed.is_empty()
    }

    /// Sets which brokers are missed now. A broker that was missed before, and is not reached, counts as
    /// away until the given time.
    fn set_missed(&mut self, missed: BTreeSet<BrokerId>, until: Nanos) {
        self.missed.retain(|id, _| !self.present.contains(id));
        for (id, ends) in &mut self.missed {
            match missed.contains(id) {
                true => *ends = None,
                false => _ = ends.get_or_insert(until),
            }
        }
        for id in missed {
            if self.missed.len() < MAX_AWAY {
                self.missed.insert(id, None);
            }
        }
    }

    /// Whether any broker is in hold-down.
    pub(super) fn is_held_down(&self) -> bool {
        !self.held.is_empty()
    }

    /// When [`Self::release`] is due.
    pub(super) fn next(&self) -> Option<Nanos> {
        let missed = self.missed.values().flatten();
        self.held.values().chain(missed).copied().min()
    }

    /// Ends the hold-down of brokers that were not reached for long enough, and forgets brokers that were
    /// not missed for long enough. Returns whether a broker was forgotten.
    pub(super) fn release(&mut self, now: Nanos) -> bool {
        self.held.retain(|_, until| *until > now);
        let before = self.missed.len();
        let is_due = |until: &Option<Nanos>| until.is_some_and(|until| until <= now);
        self.missed.retain(|_, until| !is_due(until));
        self.missed.len() < before
    }

    /// Forgets a broker; returns whether it was away.
    pub(super) fn forget(&mut self, broker: &BrokerId) -> bool {
        self.held.remove(broker);
        self.missed.remove(broker);
        self.away.remove(broker).is_some()
    }

    pub(super) fn has_envelopes(&self) -> bool {
        !self.envelopes.is_empty()
    }

    /// Queues an envelope until the change of interest with this number is durable.
    fn put_off(&mut self, noted: u64, from: LinkId, envelope: Envelope) {
        if self.envelopes.len() < MAX_LETTERS {
            self.envelopes.push_back((noted, from, envelope));
        }
    }

    /// Takes an envelope that need not wait any more, and its link.
    fn next_envelope(&mut self, commit: &InterestCommit) -> Option<(LinkId, Envelope)> {
        let is_committed = |(noted, ..): &mut (u64, LinkId, Envelope)| commit.is_committed(*noted);
        let (_, from, envelope) = self.envelopes.pop_front_if(is_committed)?;
        Some((from, envelope))
    }
}

impl Node {
    /// Sends a message to another broker's core about a session; `body` is opaque to the mesh. It is lost
    /// if that broker is not reached.
    pub fn envelope(&mut self, to: &BrokerId, client: &str, body: Arc<[u8]>, now: Nanos) {
        let envelope = Envelope {
            to: to.clone(),
            from: self.settings.id.clone(),
            client: client.into(),
            body,
        };
        self.pass_envelope(None, envelope, now);
    }

    pub(super) fn pass_envelope(&mut self, from: Option<LinkId>, envelope: Envelope, now: Nanos) {
        if envelope.to == self.settings.id {
            let Envelope {
                from, client, body, ..
            } = envelope;
            self.outputs.push(Output::Envelope { from, client, body });
            return;
        }
        match from {
            Some(link) if !self.commit.is_all_committed() || self.presence.has_envelopes() => {
                self.presence.put_off(self.commit.noted(), link, envelope);
            }
            _ => self.send_envelope(from, envelope, now),
        }
    }

    /// Forwards the envelopes that need not wait any more.
    pub(super) fn pass_envelopes(&mut self, now: Nanos) {
        while let Some((from, envelope)) = self.presence.next_envelope(&self.commit) {
            self.send_envelope(Some(from), envelope, now);
        }
    }

    /// Sends an envelope after all present filters were advertised, so that a broker which learns that a
    /// session is stored here also knows the filters of that session.
    fn send_envelope(&mut self, from: Option<LinkId>, envelope: Envelope, now: Nanos) {
        self.pace.add_envelope(from, envelope);
        self.tell(now);
    }

    /// Sends an envelope over the link that leads to its receiver.
    pub(super) fn post_envelope(&mut self, from: Option<LinkId>, envelope: Envelope) {
        let (links, _) = self.reach.where_are(&BTreeSet::from([envelope.to.clone()]));
        let mut links = links.into_iter().filter(|link| Some(*link) != from);
        if let Some(link) = links.find(|link| self.links.carries(*link)) {
            self.outputs.send(link, &Message::Envelope(envelope));
        }
    }

    /// Other brokers that are reached: publications from here arrive there.
    pub fn reached(&self) -> &BTreeSet<BrokerId> {
        &self.presence.present
    }

    /// Whether known brokers of the mesh are not reached, or were not until a moment ago.
    pub fn are_brokers_away(&self) -> bool {
        self.presence.are_away()
    }

    /// Updates which known brokers are not reached.
    pub(super) fn note_missed(&mut self, now: Nanos) {
        let mut others = self.led_to();
        let lost = self.lost.links().filter_map(|link| self.links.peer(link));
        others.extend(lost.cloned());
        others.extend(self.interest.kept_for());
        others.remove(&self.settings.id);
        let missed = self.reach.not_reached(others);
        self.presence.set_missed(missed, now + self.settings.heal);
    }

    /// Updates which brokers are reached.
    pub(super) fn note_presence(&mut self, now: Nanos) {
        self.reach_of_questions_changed();
        let own = &self.settings.id;
        let reached = self.reach.reached().filter(|id| *id != own);
        let present: BTreeSet<BrokerId> = reached.cloned().collect();
        let presence = &mut self.presence;
        for gone in presence.present.difference(&present) {
            // It may have been lost for this long before that was noticed.
            let patience = self.settings.tree.patience();
            let since = Nanos(now.0.saturating_sub(patience.0));
            presence.away.insert(gone.clone(), since);
            if presence.held.len() < MAX_AWAY {
                presence.held.insert(gone.clone(), now + HOLD_DOWN);
            }
        }
        for came in present.difference(&presence.present) {
            presence.away.remove(came);
            presence.held.remove(came);
            self.clients.wills.came(came, now);
        }
        presence.present = present;
        while presence.away.len() > MAX_AWAY {
            let first = presence.away.iter().min_by_key(|(_, since)| **since);
            let Some(first) = first.map(|(id, _)| id.clone()) else {
                return;
            };
            presence.away.remove(&first);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(names: &[&str]) -> BTreeSet<BrokerId> {
        let id = |name: &&str| BrokerId::new(name).unwrap();
        names.iter().map(id).collect()
    }

    #[test]
    fn who_is_not_missed_any_more_is_away_until_it_comes_or_for_a_while() {
        let mut presence = Presence::default();
        assert!(!presence.are_away());
        presence.set_missed(ids(&["a", "b"]), Nanos(10));
        assert_eq!(presence.next(), None);
        // Nothing is kept for "a" any more: it is about to come.
        presence.set_missed(ids(&["b"]), Nanos(20));
        assert_eq!(presence.next(), Some(Nanos(20)));
        presence.set_missed(ids(&["b"]), Nanos(25));
        assert_eq!(presence.next(), Some(Nanos(20)), "the first time counts");
        presence.present = ids(&["b"]);
        presence.set_missed(ids(&[]), Nanos(30));
        assert!(presence.are_away());
        assert!(!presence.release(Nanos(19)) && presence.release(Nanos(20)));
        assert!(!presence.are_away());
        // One that is missed again stays.
        presence.set_missed(ids(&["c"]), Nanos(40));
        presence.set_missed(ids(&[]), Nanos(50));
        presence.set_missed(ids(&["c"]), Nanos(60));
        assert!(!presence.release(Nanos(99)) && presence.are_away());
        presence.forget(&BrokerId::new("c").unwrap());
        assert!(!presence.are_away());
    }
}
