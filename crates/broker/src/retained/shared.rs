//! What brokers of a mesh compare of what they retain: sums over parts of it, kept up to date with
//! every change, and which topics have nothing any more.

use std::collections::BTreeSet;
use std::ops::Bound;

use hashbrown::HashMap;

use crate::Budget;
use crate::base::version::SALT;

/// Parts of what is retained.
pub(crate) const PARTS: usize = 64;
/// For how many versions, which are times in a mesh, it is remembered that a topic has
/// none any more: a day.
pub(super) const REMEMBERED: u64 = (24 * 3600 * 1_000_000) << SALT;
/// Bytes of their names, each counted as the least at least: so of 2^16 topics at most, and one
/// that takes the place of others takes that of few.
pub(super) const MAX_GONE_BYTES: usize = 8 << 20;
const LEAST_GONE_BYTES: usize = 128;
/// How many that are older are forgotten at once at most, when one more is remembered.
const FORGOTTEN: usize = 16;

/// A number for what a topic retains, the same in every broker.
pub(crate) fn digest(topic: &str, version: u64) -> u64 {
    punctual_model::digest(topic.bytes().chain(version.to_be_bytes()))
}

/// The bit of the part that a digest is in.
pub(crate) fn part(digest: u64) -> u64 {
    1 << (digest >> 58)
}

/// Where digests go on.
#[derive(Debug, Clone, Default)]
pub(crate) struct DigestCursor {
    /// Of messages.
    pub(super) place: u32,
    /// The last topic that has none any more.
    gone: Option<(u64, Box<str>)>,
}

/// Sums of what topics have and had that clients see, and topics that have no message any more,
/// since which version; the oldest are forgotten first.
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

    /// A topic has, or had, something with that version.
    pub(super) fn add(&mut self, topic: &str, version: u64) {
        self.change(topic, version, u64::wrapping_add);
    }

    /// It has not any more.
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

    /// Notes that a topic has none any more; `latest` is the highest version of all.
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

    /// Forgets it.
    pub(super) fn open(&mut self, topic: &str) {
        if let Some((topic, version)) = self.versions.remove_entry(topic) {
            self.take(&topic, version);
            self.bytes -= topic.len().max(LEAST_GONE_BYTES);
            self.order.remove(&(version, topic));
        }
    }

    /// Since which version a topic has none; 0 if that is not known.
    pub(super) fn gone_version(&self, topic: &str) -> u64 {
        self.versions.get(topic).copied().unwrap_or(0)
    }

    /// All of them.
    pub(super) fn gone(&self) -> impl Iterator<Item = (&str, u64)> {
        let versions = self.versions.iter();
        versions.map(|(topic, version)| (&**topic, *version))
    }

    /// Comes to all of them in the order of their versions; whether to the last.
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
