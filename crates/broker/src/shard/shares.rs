//! Shared subscriptions over a mesh: of all members at all brokers one gets a message.
//!
//! The broker that takes a message in decides for each shared subscription: a member of
//! its own that is connected and keeps up, else a broker that has members, in turn, and
//! notes that duty with the message. Others pass the notes on; whoever's duty it is gives
//! the message to a member. So the decision stays with the message on whatever way it
//! goes, or goes again, and as its name is recognised there, it is carried out once. Where
//! the last member has left meanwhile, the message is handed on to another broker.

use smallvec::SmallVec;

use super::publish::{deliver_all, has_room};
use super::{Shard, replica};
use crate::Nanos;
use crate::federation::{Duty, Heed, Notes, sign};
use crate::hub::{Hub, Publication};
use crate::route::{Group, Matched, Target};
use std::sync::atomic::Ordering;

/// What becomes of a message for shared subscriptions.
pub(super) struct Sharing {
    /// Members of these get it here.
    here: Vec<Group>,
    /// For other brokers, as noted for neighbours.
    duties: SmallVec<[Duty; 1]>,
    /// For other brokers, instead of this one.
    handed: SmallVec<[Duty; 1]>,
}

impl Sharing {
    /// Of a message that was taken in here, or came from a neighbour that decides nothing.
    pub(super) fn decide(hub: &Hub, matched: &Matched, publication: &Publication<'_>) -> Self {
        let mut sharing = Self {
            here: Vec::new(),
            duties: SmallVec::new(),
            handed: SmallVec::new(),
        };
        for group in &matched.groups {
            let mut members = group.members.iter();
            let keeps_up = |target: &Target| {
                let connected = target.session.connected.load(Ordering::Acquire);
                connected && has_room(hub, target, publication)
            };
            match elsewhere(group) {
                Some(duty) if !members.any(keeps_up) => sharing.duties.push(duty),
                _ => sharing.here.push(group.clone()),
            }
        }
        sharing
    }

    /// Of a message about which it was decided where it was taken in.
    pub(super) fn follow(own: &str, matched: &Matched, notes: &Notes) -> Self {
        let own = sign(own);
        let mut sharing = Self {
            here: Vec::new(),
            duties: notes.duties.clone(),
            handed: SmallVec::new(),
        };
        for duty in notes.duties.iter().filter(|duty| duty.broker == own) {
            let mut groups = matched.groups.iter();
            match groups.find(|group| group.sign == duty.group) {
                Some(group) if group.members.is_empty() => {
                    sharing.handed.extend(elsewhere(group));
                }
                Some(group) => sharing.here.push(group.clone()),
                // It has no members any more anywhere.
                None => {}
            }
        }
        sharing
    }

    /// Who gets the message: those of `matched`, and every neighbour with `all`; the
    /// neighbours with its notes.
    pub(super) fn reach(
        self,
        hub: &Hub,
        matched: &Matched,
        notes: &mut Notes,
        all: bool,
    ) -> (Matched, SmallVec<[Duty; 1]>) {
        notes.duties = self.duties;
        let targets = replica::reach(hub, matched, notes, all);
        (Matched::new(targets, self.here), self.handed)
    }
}

/// The next broker that is to give a message to a member.
fn elsewhere(group: &Group) -> Option<Duty> {
    if group.elsewhere.is_empty() {
        return None;
    }
    let turn = group.cursor.fetch_add(1, Ordering::Relaxed) as usize;
    Some(Duty {
        broker: group.elsewhere[turn % group.elsewhere.len()],
        group: group.sign,
    })
}

/// Lets other brokers give a message to members, instead of this one.
pub(super) fn hand_on(
    hub: &mut Hub,
    matched: &Matched,
    publication: &mut Publication<'_>,
    (duties, heed): (SmallVec<[Duty; 1]>, Heed),
    now: Nanos,
) {
    let notes = Notes {
        handed: true,
        duties,
        heed,
        ..Notes::default()
    };
    let mut targets = replica::reach(hub, matched, &notes, false);
    targets.retain(|target| target.session.takes_notes());
    let matched = Matched::new(targets, Vec::new());
    let mut handed = Publication {
        parts: publication.parts.clone(),
        watch: publication.watch.clone(),
        message: None,
        keeping: hub.keeping(publication.keeping.durability, true),
        // Under another name, also to where it came from.
        name: None,
        publisher: 0,
        frame: None,
        retain: false,
        reserved: 0,
        ..*publication
    };
    // Without anyone to refuse it to, a full queue is a counted drop.
    let _ = deliver_all(hub, &matched, &mut handed, None, now, false);
    publication.keeping.awaited |= handed.keeping.awaited;
    publication.keeping.firm |= handed.keeping.awaited;
}

impl Shard {
    /// Notes at which other brokers a shared subscription has members, instead of those
    /// before.
    pub fn link_members(&mut self, filter: &str, brokers: &[&str]) {
        let signs: Vec<u32> = brokers.iter().map(|broker| sign(broker)).collect();
        let directory = &self.hub.directory;
        let mut index = directory.index_mut();
        index.share_elsewhere(filter, &signs, &directory.generations);
    }
}
