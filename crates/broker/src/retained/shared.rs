//! The digests of retained messages that brokers of a mesh compare: sums by part, updated with
//! every change, and the topics that have lost their message.

use std::collections::BTreeSet;
use std::ops::Bound;

use hashbrown::HashMap;

use crate::Budget;
use crate::base::version::SALT;

/// Number of parts into which the retained messages are divided.
pub(crate) const PARTS: usize = 64;
/// Time, in versions, for which a topic that has lost its message is remembered: a day.
pub(super) const REMEMBERED: u64 = (24 * 3600 * 1_000_000) << SALT;
/// Maximum number of bytes of the names of these topics, each counted as at least
/// [`LEAST_GONE_BYTES`]: so of at most 2^16 topics, and a new one replaces few others.
pub(super) const MAX_GONE_BYTES: usize = 8 << 20;
const LEAST_GONE_BYTES: usize = 128;
/// Maximum number of older topics that are forgotten at once, when one more is remembered.
const FORGOTTEN: usize = 16;

/// A digest of a topic's retained message, the same in every broker.
pub(crate) fn digest(topic: &str, version: u64) -> u64 {
    punctual_model::digest(topic.bytes().chain(version.to_be_bytes()))
}

/// The bit of the part to which a digest belongs.
pub(crate) fn part(digest: u64) -> u64 {
    1 << (digest >> 58)
}

/// The position at which a collection of digests continues.
#[derive(Debug, Clone, Default)]
pub(crate) struct DigestCursor {
    /// The position among the messages.
    pub(super) place: u32,
    /// The last visited topic that has lost its message.
    gone: Option<(u64, Box<str>)>,
}

/// Sums of the current and removed messages of topics that clients see, and the topics that have
/// lost their message, with the version at which they did; the oldest are forgotten first.
#[derive(Debug)]
pub(super) struct Shared {
    sums: [u64; PARTS],
    versions: HashMap<Box<str>, u64, foldhash::fast::RandomState>,
    order: BTreeSet<(u64, Box<str>)>,
    bytes: usize,
}

impl Default for Shared {
    fn default() -> Self {
        Self {
            sums: [0; PARTS],
            versions: HashMap::default(),
            order: BTreeSet::new(),
            bytes: 0,
        }
    }
}

impl Shared {
    pub(super) fn sums(&self) -> &[u64; PARTS] {
        &self.sums
    }

    /// Adds a current or removed message with that version to the sums.
    pub(super) fn add(&mut self, topic: &str, version: u64) {
        self.change(topic, version, u64::wrapping_add);
    }

    /// Takes a message out of the sums.
    pub(super) fn take(&mut self, topic: &str, version: u64) {
        self.change(topic, version, u64::wrapping_sub);
    }

    fn change(&mut self, topic: &str, version: u64, by: impl FnOnce(u64, u64) -> u64) {
        if !topic.starts_with('$') {
            let digest = digest(topic, version);
            let sum = &mut self.sums[(digest >> 58) as usize];
            *sum = by(*sum, digest);
        }
    }

    /// Notes that a topic has lost its message; `latest` is the highest version of all.
    pub(super) fn bury(&mut self, topic: &str, version: u64, latest: u64) {
        self.open(topic);
        self.add(topic, version);
        self.versions.insert(topic.into(), version);
        self.order.insert((version, topic.into()));
        self.bytes += topic.len().max(LEAST_GONE_BYTES);
        let mut older = 0;
        while let Some((oldest, topic)) = self.order.first() {
            let full = self.bytes > MAX_GONE_BYTES;
            older += usize::from(!full);
            if !full && (oldest + REMEMBERED >= latest || older > FORGOTTEN) {
                return;
            }
            let topic = topic.clone();
            self.open(&topic);
        }
    }

    /// Forgets that a topic has lost its message.
    pub(super) fn open(&mut self, topic: &str) {
        if let Some((topic, version)) = self.versions.remove_entry(topic) {
            self.take(&topic, version);
            self.bytes -= topic.len().max(LEAST_GONE_BYTES);
            self.order.remove(&(version, topic));
        }
    }

    /// The version at which a topic lost its message; 0 if that is not known.
    pub(super) fn gone_version(&self, topic: &str) -> u64 {
        self.versions.get(topic).copied().unwrap_or(0)
    }

    /// All topics that have lost their message, with their versions.
    pub(super) fn gone(&self) -> impl Iterator<Item = (&str, u64)> {
        let versions = self.versions.iter();
        versions.map(|(topic, version)| (&**topic, *version))
    }

    /// Visits all topics that have lost their message, in the order of versions; returns whether
    /// the last was reached.
    pub(super) fn visit_gone(
        &self,
        from: &mut DigestCursor,
        budget: &mut Budget,
        mut visit: impl FnMut(&str, u64),
    ) -> bool {
        let after = match &from.gone {
            Some(last) => Bound::Excluded(last),
            None => Bound::Unbounded,
        };
        let mut last = None;
        let mut done = true;
        for each in self.order.range((after, Bound::Unbounded)) {
            if budget.is_spent() {
                done = false;
                break;
            }
            budget.spend(1);
            visit(&each.1, each.0);
            last = Some(each);
        }
        if let Some(last) = last {
            from.gone = Some(last.clone());
        }
        done
    }
}
