//! Groups: which buckets a packet goes to.

use std::collections::{BTreeMap, BTreeSet};

use punctual_model::Nanos;

use crate::action::Action;
use crate::multipart::{BucketStats, GroupDesc, GroupStats};
use crate::{Bucket, GroupId, GroupMod, GroupType, PortNo};

#[derive(Clone, Debug)]
pub(super) struct Group {
    pub(super) kind: GroupType,
    pub(super) buckets: Vec<Bucket>,
    pub(super) created: Nanos,
    pub(super) packets: u64,
    pub(super) bytes: u64,
    counts: Vec<BucketStats>,
}

impl Group {
    pub(super) fn new(change: &GroupMod, now: Nanos) -> Self {
        let none = BucketStats {
            packets: 0,
            bytes: 0,
        };
        Self {
            kind: change.kind,
            buckets: change.buckets.clone(),
            created: now,
            packets: 0,
            bytes: 0,
            counts: vec![none; change.buckets.len()],
        }
    }

    /// Groups that its buckets lead to.
    pub(super) fn next(&self) -> impl Iterator<Item = GroupId> {
        let actions = self.buckets.iter().flat_map(|bucket| &bucket.actions);
        actions.filter_map(|action| match action {
            Action::Group(group) => Some(*group),
            _ => None,
        })
    }

    /// Counts a packet of `bytes` bytes into a bucket.
    pub(super) fn count(&mut self, bucket: usize, bytes: u64) {
        if let Some(count) = self.counts.get_mut(bucket) {
            count.packets += 1;
            count.bytes += bytes;
        }
    }

    pub(super) fn stats(&self, group: GroupId, references: u32, now: Nanos) -> GroupStats {
        GroupStats {
            group,
            references,
            packets: self.packets,
            bytes: self.bytes,
            duration: (now - self.created).into(),
            buckets: self.counts.clone(),
        }
    }

    pub(super) fn desc(&self, group: GroupId) -> GroupDesc {
        GroupDesc {
            kind: self.kind,
            group,
            buckets: self.buckets.clone(),
        }
    }
}

/// The buckets for a packet whose headers hash to `hash`.
pub(super) fn choose(
    groups: &BTreeMap<GroupId, Group>,
    id: GroupId,
    hash: u64,
    is_up: &dyn Fn(PortNo) -> bool,
) -> Vec<usize> {
    let Some(group) = groups.get(&id) else {
        return Vec::new();
    };
    let alive = |bucket: &Bucket| is_alive(groups, bucket, is_up);
    let all = group.buckets.iter().enumerate();
    match group.kind {
        GroupType::All | GroupType::Indirect => (0..group.buckets.len()).collect(),
        GroupType::FastFailover => {
            let first = all.into_iter().find(|(_, bucket)| alive(bucket));
            first.map(|(index, _)| index).into_iter().collect()
        }
        GroupType::Select => {
            let alive: Vec<_> = all.filter(|(_, bucket)| alive(bucket)).collect();
            let weights = alive.iter().map(|(_, bucket)| u64::from(bucket.weight));
            let total: u64 = weights.sum();
            let mut place = hash.checked_rem(total).unwrap_or(0);
            let chosen = alive.iter().find(|(_, bucket)| {
                let weight = u64::from(bucket.weight);
                let here = place < weight;
                place = place.saturating_sub(weight);
                here
            });
            chosen.map(|(index, _)| *index).into_iter().collect()
        }
    }
}

/// Whether what the bucket watches lives: a port, or a group with a bucket that does. Groups that
/// watch one another in a circle keep nobody alive.
fn is_alive(
    groups: &BTreeMap<GroupId, Group>,
    bucket: &Bucket,
    is_up: &dyn Fn(PortNo) -> bool,
) -> bool {
    let (mut open, mut seen) = (vec![bucket], BTreeSet::new());
    while let Some(bucket) = open.pop() {
        let (port, group) = (bucket.watch_port, bucket.watch_group);
        if port == PortNo::ANY && group == GroupId::ANY {
            return true;
        }
        if port != PortNo::ANY && is_up(port) {
            return true;
        }
        if group != GroupId::ANY && seen.insert(group) {
            open.extend(
                groups
                    .get(&group)
                    .into_iter()
                    .flat_map(|group| &group.buckets),
            );
        }
    }
    false
}
