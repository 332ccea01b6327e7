//! All receivers of the messages of a topic, by shard: the answer of the index.

use std::ops::Deref;
use std::sync::Arc;

use crate::index::group::Group;
use crate::index::target::Target;
use punctual_codec::QoS;
use smallvec::SmallVec;

/// Shared subscriptions of one topic.
pub(crate) type Groups = SmallVec<[Arc<Group>; 1]>;

/// Receivers that are collected for a [`Matched`].
pub(crate) type TargetList = SmallVec<[Target; 1]>;

/// The receivers of one topic on one shard: most often one, which takes no memory of its own.
#[derive(Debug, Clone)]
pub(crate) enum Targets {
    One(Target),
    Many(Arc<[Target]>),
}

impl Targets {
    /// The neighbours among them.
    pub(crate) fn links(&self) -> Self {
        let links = self.iter().filter(|target| target.session.link);
        Self::Many(links.cloned().collect())
    }
}

impl Deref for Targets {
    type Target = [Target];

    #[inline]
    fn deref(&self) -> &[Target] {
        match self {
            Self::One(target) => std::slice::from_ref(target),
            Self::Many(targets) => targets,
        }
    }
}

/// All receivers of one topic.
#[derive(Debug, Default)]
pub(crate) struct Matched {
    /// By shard, each list in the order of session numbers.
    pub(crate) shards: SmallVec<[(u16, Targets); 1]>,
    pub(crate) groups: Groups,
    /// Whether there are more clients than one piece of work can serve: then none is in the lists,
    /// and [`Directory::clients_after`] finds them.
    pub(crate) crowd: bool,
    /// Highest QoS of any receiver; with groups, whose members change, or with a crowd, the highest
    /// QoS of all.
    pub(crate) max_qos: QoS,
}

impl Matched {
    /// Takes targets sorted by shard.
    pub(crate) fn new(targets: impl Into<TargetList>, groups: Groups) -> Self {
        let mut targets = targets.into();
        let max_qos = match groups.is_empty() {
            true => targets.iter().map(|t| t.qos).max().unwrap_or_default(),
            false => QoS::ExactlyOnce,
        };
        let mut shards = SmallVec::new();
        match (targets.len(), targets.pop()) {
            (1, Some(only)) => shards.push((only.session.shard, Targets::One(only))),
            (_, last) => {
                targets.extend(last);
                let chunks = targets.chunk_by(|a, b| a.session.shard == b.session.shard);
                let many = |chunk: &[Target]| Targets::Many(Arc::from(chunk));
                shards.extend(chunks.map(|chunk| (chunk[0].session.shard, many(chunk))));
            }
        }
        Self {
            shards,
            groups,
            crowd: false,
            max_qos,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.shards.is_empty() && self.groups.is_empty() && !self.crowd
    }

    /// The same receivers, with or without a crowd of clients.
    pub(crate) fn with_crowd(self, crowd: bool) -> Self {
        Self {
            crowd,
            max_qos: match crowd {
                true => QoS::ExactlyOnce,
                false => self.max_qos,
            },
            ..self
        }
    }

    /// All receivers except members of groups and clients of a crowd.
    pub(crate) fn targets(&self) -> impl Iterator<Item = &Target> {
        self.shards.iter().flat_map(|(_, targets)| targets.iter())
    }

    /// Bytes that lists of targets take.
    pub(crate) fn weight(&self) -> usize {
        let targets = self.shards.iter().map(|(_, targets)| targets.len());
        targets.sum::<usize>() * size_of::<Target>()
    }
}
