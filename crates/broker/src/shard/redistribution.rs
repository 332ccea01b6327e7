//! Redistribution: messages of shared subscriptions that are given to another member than the
//! chosen one.

use smallvec::{SmallVec, smallvec};

use super::common;
use crate::Nanos;
use crate::base::delivery::Delivery;
use crate::base::durability::Durability;
use crate::base::name::sign;
use crate::base::notes::{Duty, Notes, UrgencyTrust};
use crate::hub::Hub;
use crate::index::matched::{Groups, Matched, TargetList};
use crate::publication::Publication;
use crate::shard::Shard;
use crate::shard::deliver::{DependentSender, deliver_all};
use crate::shard::shares::elsewhere;

/// Lets other brokers give a message to members, instead of this one.
pub(super) fn hand_on(
    hub: &mut Hub,
    matched: &Matched,
    publication: &mut Publication<'_>,
    (duties, trust): (SmallVec<[Duty; 1]>, UrgencyTrust),
    now: Nanos,
) {
    let notes = Notes {
        handed: true,
        duties,
        trust,
        ..Notes::default()
    };
    let targets = common::reach(hub, matched, &notes, false);
    let matched = Matched::new(targets, Groups::new());
    let mut handed = Publication {
        parts: publication.parts.clone(),
        watch: publication.watch.clone(),
        author: publication.author.clone(),
        message: None,
        keeping: hub.keeping(publication.keeping.durability, true),
        // Under another name, also to the neighbour from which it was received.
        name: None,
        publisher: 0,
        frame: None,
        retain: false,
        reserved: 0,
        ..*publication
    };
    // No publisher can be refused, so a full queue causes a counted drop.
    let _ = deliver_all(
        hub,
        &matched,
        &mut handed,
        None,
        now,
        DependentSender::Nobody,
    );
    publication.keeping.awaited |= handed.keeping.awaited;
    publication.keeping.firm |= handed.keeping.awaited;
}

impl Shard {
    /// Gives a message for a member of a shared subscription whose session has ended to another
    /// member, here or at another broker [MQTT-4.8.2]; a member whose queue is full loses it. False
    /// if there is no other member.
    pub(super) fn give_to_another_member(&mut self, delivery: &Delivery, now: Nanos) -> bool {
        let (hub, message) = (&mut self.hub, &delivery.message);
        if message.is_expired(now) {
            hub.stats.expired(message.stamp.class());
            return true;
        }
        let (_, matched) = hub.directory.lookup(message.topic(), 0);
        let mut groups = matched.groups.iter();
        let Some(group) = groups.find(|group| group.sign == delivery.share) else {
            return false;
        };
        let durability = match message.stored {
            0 => Durability::None,
            _ => Durability::Batched,
        };
        // The store treats it as another message, and it is late in any case.
        let mut publication = Publication {
            message: None,
            watch: None,
            keeping: hub.keeping(durability, true),
            queue_full: hub.config.queue_policies.of_topic(message.topic()),
            ..Publication::from_message(message, now)
        };
        publication.keeping.insists = true;
        if group.members().here.is_empty() {
            let Some(duty) = elsewhere(group) else {
                return false;
            };
            let duties = (smallvec![duty], UrgencyTrust::default());
            hand_on(hub, &matched, &mut publication, duties, now);
            return true;
        }
        let only = Matched::new(TargetList::new(), smallvec![group.clone()]);
        // No publisher can be refused, so a full queue causes a counted drop.
        let _ = deliver_all(
            hub,
            &only,
            &mut publication,
            None,
            now,
            DependentSender::Nobody,
        );
        true
    }

    /// Replaces the set of other brokers at which a shared subscription has members.
    pub fn link_members(&mut self, filter: &str, brokers: &[&str]) {
        let signs: Vec<u32> = brokers.iter().map(|broker| sign(broker)).collect();
        let directory = &self.hub.directory;
        let mut index = directory.index_mut();
        index.share_elsewhere(filter, &signs, &directory.generations);
    }
}
