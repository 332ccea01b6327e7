//! Who is reached, and what brokers' cores write to each other about sessions that move.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use punctual_model::Nanos;

use super::keeping::Keeping;
use super::{Node, Output};
use crate::id::{BrokerId, LinkId};
use crate::wire::{Letter, Message};

/// Letters that wait for [`super::Node::kept`]; those beyond are lost, and written again.
const MAX_LETTERS: usize = 1 << 10;

/// Brokers of which it is remembered since when they are away.
const MAX_AWAY: usize = 1 << 12;

/// Who is not reached for less than this may only have changed its place in the tree: look-ups wait for it
/// (*hold-down*).
const HOLD_DOWN: Nanos = Nanos::from_secs(1);

/// Who is reached, and letters.
#[derive(Debug, Default)]
pub(super) struct Presence {
    /// Brokers that are reached.
    present: BTreeSet<BrokerId>,
    /// Those that were, and since when they are not.
    away: BTreeMap<BrokerId, Nanos>,
    /// Those of them that are held down, and until when; at most as many.
    held: BTreeMap<BrokerId, Nanos>,
    /// Letters on their way to others, and where they come from: they wait until so many
    /// wishes are kept.
    letters: VecDeque<(u64, LinkId, Letter)>,
}

impl Presence {
    /// Brokers that were reached, and are not.
    pub(super) fn away(&self) -> impl Iterator<Item = &BrokerId> {
        self.away.keys()
    }

    /// Whether brokers were reached just now, and are not.
    pub(super) fn is_held_down(&self) -> bool {
        !self.held.is_empty()
    }

    /// When the next of them is not any more.
    pub(super) fn next(&self) -> Option<Nanos> {
        self.held.values().copied().min()
    }

    /// Who is not reached for long enough is away.
    pub(super) fn release(&mut self, now: Nanos) {
        self.held.retain(|_, until| *until > now);
    }

    /// One of them does not come back; false if it is none.
    pub(super) fn forget(&mut self, broker: &BrokerId) -> bool {
        self.held.remove(broker);
        self.away.remove(broker).is_some()
    }

    pub(super) fn has_letters(&self) -> bool {
        !self.letters.is_empty()
    }

    /// A letter that came over a link waits until so many wishes are kept.
    fn put_off(&mut self, wished: u64, from: LinkId, letter: Letter) {
        if self.letters.len() < MAX_LETTERS {
            self.letters.push_back((wished, from, letter));
        }
    }

    /// A letter that does not wait any more, and where it came from.
    fn next_letter(&mut self, keeping: &Keeping) -> Option<(LinkId, Letter)> {
        let is_kept = |(wished, ..): &mut (u64, LinkId, Letter)| keeping.is_kept(*wished);
        let (_, from, letter) = self.letters.pop_front_if(is_kept)?;
        Some((from, letter))
    }
}

impl Node {
    /// Something for another broker's core about a session. It is lost if that broker is not
    /// reached.
    pub fn letter(&mut self, to: &BrokerId, client: &str, body: Arc<[u8]>, now: Nanos) {
        let letter = Letter {
            to: to.clone(),
            from: self.settings.id.clone(),
            client: client.into(),
            body,
        };
        self.pass_letter(None, letter, now);
    }

    pub(super) fn pass_letter(&mut self, from: Option<LinkId>, letter: Letter, now: Nanos) {
        if letter.to == self.settings.id {
            let Letter {
                from, client, body, ..
            } = letter;
            self.outputs.push(Output::Letter { from, client, body });
            return;
        }
        match from {
            Some(link) if !self.keeping.is_all_kept() || self.presence.has_letters() => {
                self.presence.put_off(self.keeping.wished(), link, letter);
            }
            _ => self.send_letter(from, letter, now),
        }
    }

    /// Passes on letters that wait for nothing any more.
    pub(super) fn pass_letters(&mut self, now: Nanos) {
        while let Some((from, letter)) = self.presence.next_letter(&self.keeping) {
            self.send_letter(Some(from), letter, now);
        }
    }

    /// Sends a letter once all filters are told that are wanted by now: who hears that a session is safe
    /// here knows what is wanted for it.
    fn send_letter(&mut self, from: Option<LinkId>, letter: Letter, now: Nanos) {
        self.pace.add_letter(from, letter);
        self.tell(now);
    }

    /// Sends a letter that waits for nothing any more to where its receiver is.
    pub(super) fn post_letter(&mut self, from: Option<LinkId>, letter: Letter) {
        let (links, _) = self.reach.where_are(&BTreeSet::from([letter.to.clone()]));
        let mut links = links.into_iter().filter(|link| Some(*link) != from);
        if let Some(link) = links.find(|link| self.links.carries(*link)) {
            self.outputs.send(link, &Message::Letter(letter));
        }
    }

    /// Other brokers to which the tree leads from here: what is published finds its way there.
    pub fn reached(&self) -> &BTreeSet<BrokerId> {
        &self.presence.present
    }

    /// Notes who is reached now, and tells who was not before.
    pub(super) fn note_presence(&mut self, now: Nanos) {
        self.reach_of_questions_changed();
        let own = &self.settings.id;
        let reached = self.reach.reached().filter(|id| *id != own);
        let present: BTreeSet<BrokerId> = reached.cloned().collect();
        let presence = &mut self.presence;
        for gone in presence.present.difference(&present) {
            // So long it may have been away before that was noticed.
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
