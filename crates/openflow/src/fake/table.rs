//! A flow table: entries by priority, found by match, ended by time.
//!
//! Invariant: `order` and `index` name the same entries; no two entries have the same priority
//! and normal match. Source: OpenFlow 1.3.5, sections 5.2 and 6.4.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};

use punctual_model::Nanos;

use super::frame::Layers;
use crate::action::{Action, Instruction};
use crate::multipart::FlowStats;
use crate::oxm::{FieldKind, OxmField};
use crate::{
    Cookie, FlowFlags, FlowMod, FlowRemovedReason, GroupId, Match, MeterId, PortNo, TableId,
};

/// Where an entry is in the order of lookup: high priorities first, then the oldest.
pub(super) type Rank = (Reverse<u16>, u64);

/// A flow entry.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) priority: u16,
    /// As it was sent.
    pub(super) matching: Match,
    /// One way of saying it.
    normal: Match,
    tests: Vec<Test>,
    pub(super) cookie: Cookie,
    pub(super) flags: FlowFlags,
    pub(super) idle_timeout: u16,
    pub(super) hard_timeout: u16,
    pub(super) instructions: Vec<Instruction>,
    pub(super) created: Nanos,
    /// When it was last used or changed.
    used: Nanos,
    pub(super) packets: u64,
    pub(super) bytes: u64,
}

/// A field that must have a value where the mask has ones.
#[derive(Clone, Debug)]
struct Test {
    kind: FieldKind,
    value: Vec<u8>,
    mask: Vec<u8>,
}

/// What an entry is compared with.
pub(super) struct Packet<'a> {
    pub(super) frame: &'a [u8],
    pub(super) layers: Layers,
    pub(super) in_port: PortNo,
    pub(super) metadata: u64,
}

impl Packet<'_> {
    fn read(&self, kind: FieldKind) -> Option<Vec<u8>> {
        match kind {
            FieldKind::InPort | FieldKind::InPhyPort => Some(self.in_port.0.to_be_bytes().to_vec()),
            FieldKind::Metadata => Some(self.metadata.to_be_bytes().to_vec()),
            FieldKind::TunnelId => Some(vec![0; 8]),
            kind => self.layers.read(self.frame, kind),
        }
    }
}

impl Entry {
    fn new(change: &FlowMod, now: Nanos) -> Self {
        let normal = change.matching.normalized();
        let tests = normal
            .fields()
            .iter()
            .map(|field| {
                let (value, mask) = field.bytes();
                let kind = field.kind();
                Test { kind, value, mask }
            })
            .collect();
        Self {
            priority: change.priority,
            matching: change.matching.clone(),
            normal,
            tests,
            cookie: change.cookie,
            flags: change.flags,
            idle_timeout: change.idle_timeout,
            hard_timeout: change.hard_timeout,
            instructions: change.instructions.clone(),
            created: now,
            used: now,
            packets: 0,
            bytes: 0,
        }
    }

    fn applies(&self, packet: &Packet<'_>) -> bool {
        self.tests.iter().all(|test| {
            packet.read(test.kind).is_some_and(|found| {
                let bits = found.iter().zip(&test.value).zip(&test.mask);
                found.len() == test.value.len()
                    && bits
                        .into_iter()
                        .all(|((found, value), mask)| found & mask == *value)
            })
        })
    }

    /// Whether every packet it applies to is one that `general` applies to.
    fn is_inside(&self, general: &Match) -> bool {
        general.fields().iter().all(|field| {
            let (value, mask) = field.bytes();
            let own = self.tests.iter().find(|test| test.kind == field.kind());
            own.is_some_and(|own| {
                let bits = own.value.iter().zip(&own.mask).zip(value.iter().zip(&mask));
                bits.into_iter().all(|((own, own_mask), (value, mask))| {
                    own_mask & mask == *mask && own & mask == *value
                })
            })
        })
    }

    /// Whether some packet could be one that both apply to.
    fn overlaps(&self, other: &Self) -> bool {
        self.tests.iter().all(|test| {
            let found = other.tests.iter().find(|found| found.kind == test.kind);
            found.is_none_or(|found| {
                let own = test.value.iter().zip(&test.mask);
                own.zip(found.value.iter().zip(&found.mask)).all(
                    |((value, mask), (found, found_mask))| (value ^ found) & mask & found_mask == 0,
                )
            })
        })
    }

    /// All its actions, done at once or later.
    pub(super) fn actions(&self) -> impl Iterator<Item = &Action> {
        self.instructions
            .iter()
            .flat_map(|instruction| match instruction {
                Instruction::ApplyActions(actions) | Instruction::WriteActions(actions) => {
                    actions.as_slice()
                }
                _ => &[],
            })
    }

    pub(super) fn leads_to(&self, group: GroupId) -> bool {
        self.actions().any(|action| *action == Action::Group(group))
    }

    pub(super) fn uses(&self, meter: MeterId) -> bool {
        self.instructions.contains(&Instruction::Meter(meter))
    }

    fn is_timed(&self) -> bool {
        self.idle_timeout > 0 || self.hard_timeout > 0
    }

    /// When it ends if no packet comes, and why.
    fn end(&self) -> Option<(Nanos, FlowRemovedReason)> {
        let after = |start: Nanos, seconds: u16, reason| {
            (seconds > 0).then(|| (start + Nanos::from_secs(seconds.into()), reason))
        };
        let hard = after(
            self.created,
            self.hard_timeout,
            FlowRemovedReason::HardTimeout,
        );
        let idle = after(self.used, self.idle_timeout, FlowRemovedReason::IdleTimeout);
        hard.into_iter().chain(idle).min_by_key(|(time, _)| *time)
    }

    pub(super) fn stats(&self, table: TableId, now: Nanos) -> FlowStats {
        FlowStats {
            table,
            duration: (now - self.created).into(),
            priority: self.priority,
            idle_timeout: self.idle_timeout,
            hard_timeout: self.hard_timeout,
            flags: self.flags,
            cookie: self.cookie,
            packets: self.packets,
            bytes: self.bytes,
            matching: self.matching.clone(),
            instructions: self.instructions.clone(),
        }
    }
}

/// Which entries a request means.
pub(super) struct Selection {
    pub(super) matching: Match,
    pub(super) out_port: PortNo,
    pub(super) out_group: GroupId,
    pub(super) cookie: Cookie,
    pub(super) cookie_mask: u64,
}

impl Selection {
    fn takes(&self, entry: &Entry) -> bool {
        let to = |port| {
            let port_of = |action: &Action| match action {
                Action::Output { port, .. } => Some(*port),
                _ => None,
            };
            entry
                .actions()
                .filter_map(port_of)
                .any(|found| found == port)
        };
        (entry.cookie.0 ^ self.cookie.0) & self.cookie_mask == 0
            && (self.out_port == PortNo::ANY || to(self.out_port))
            && (self.out_group == GroupId::ANY || entry.leads_to(self.out_group))
            && entry.is_inside(&self.matching)
    }
}

/// The entries of a table.
#[derive(Clone, Debug, Default)]
pub(super) struct FlowTable {
    order: BTreeMap<Rank, Entry>,
    index: HashMap<(u16, Match), Rank>,
    next: u64,
    /// Entries that end by themselves.
    timed: usize,
    pub(super) lookups: u64,
    pub(super) matched: u64,
}

impl FlowTable {
    pub(super) fn len(&self) -> usize {
        self.order.len()
    }

    pub(super) fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.order.values()
    }

    pub(super) fn has(&self, change: &FlowMod) -> bool {
        self.rank(change).is_some()
    }

    fn rank(&self, change: &FlowMod) -> Option<Rank> {
        let key = (change.priority, change.matching.normalized());
        self.index.get(&key).copied()
    }

    /// Whether an entry of the same priority, other than the same one, overlaps.
    pub(super) fn overlaps(&self, change: &FlowMod) -> bool {
        let new = Entry::new(change, Nanos(0));
        let level = (Reverse(change.priority), 0)..=(Reverse(change.priority), u64::MAX);
        self.order
            .range(level)
            .any(|(_, entry)| entry.normal != new.normal && entry.overlaps(&new))
    }

    /// Adds an entry in place of the same one, whose counts it takes over unless it resets them.
    pub(super) fn add(&mut self, change: &FlowMod, now: Nanos) {
        let mut entry = Entry::new(change, now);
        let rank = match self.rank(change) {
            Some(rank) => rank,
            None => {
                self.next += 1;
                (Reverse(change.priority), self.next)
            }
        };
        if let Some(old) = self.order.get(&rank)
            && !change.flags.contains(FlowFlags::RESET_COUNTS)
        {
            (entry.packets, entry.bytes) = (old.packets, old.bytes);
        }
        self.index
            .insert((change.priority, entry.normal.clone()), rank);
        self.timed += usize::from(entry.is_timed());
        if let Some(old) = self.order.insert(rank, entry) {
            self.timed -= usize::from(old.is_timed());
        }
    }

    /// Entries that the request means; `strict`: the one with this priority and match.
    pub(super) fn select(&self, selection: &Selection, strict: Option<u16>) -> Vec<Rank> {
        match strict {
            Some(priority) => {
                let key = (priority, selection.matching.normalized());
                let found = self.index.get(&key).copied();
                let taken = |rank: &Rank| {
                    self.order
                        .get(rank)
                        .is_some_and(|entry| selection.takes(entry))
                };
                found.into_iter().filter(taken).collect()
            }
            None => self.which(|entry| selection.takes(entry)),
        }
    }

    pub(super) fn which(&self, mut taken: impl FnMut(&Entry) -> bool) -> Vec<Rank> {
        let all = self.order.iter();
        all.filter(|(_, entry)| taken(entry))
            .map(|(rank, _)| *rank)
            .collect()
    }

    pub(super) fn get(&self, rank: Rank) -> Option<&Entry> {
        self.order.get(&rank)
    }

    pub(super) fn modify(&mut self, rank: Rank, change: &FlowMod) {
        if let Some(entry) = self.order.get_mut(&rank) {
            entry.instructions.clone_from(&change.instructions);
            if change.flags.contains(FlowFlags::RESET_COUNTS) {
                (entry.packets, entry.bytes) = (0, 0);
            }
        }
    }

    pub(super) fn remove(&mut self, rank: Rank) -> Option<Entry> {
        let entry = self.order.remove(&rank)?;
        self.timed -= usize::from(entry.is_timed());
        self.index.remove(&(entry.priority, entry.normal.clone()));
        Some(entry)
    }

    /// Entries whose time is over.
    pub(super) fn ended(&self, now: Nanos) -> Vec<(Rank, FlowRemovedReason)> {
        if self.timed == 0 {
            return Vec::new();
        }
        let ended = |(rank, entry): (&Rank, &Entry)| match entry.end() {
            Some((time, reason)) if time <= now => Some((*rank, reason)),
            _ => None,
        };
        self.order.iter().filter_map(ended).collect()
    }

    /// When the next entry ends.
    pub(super) fn next_end(&self) -> Option<Nanos> {
        let ends = self.order.values().filter_map(Entry::end);
        ends.map(|(time, _)| time).min()
    }

    /// Counts a packet and returns the instructions for it, with the entry's cookie.
    pub(super) fn lookup(
        &mut self,
        packet: &Packet<'_>,
        now: Nanos,
    ) -> Option<(&[Instruction], Hit)> {
        self.lookups += 1;
        let entry = self
            .order
            .values_mut()
            .find(|entry| entry.applies(packet))?;
        self.matched += 1;
        entry.used = now;
        if !entry.flags.contains(FlowFlags::NO_PACKET_COUNTS) {
            entry.packets += 1;
        }
        if !entry.flags.contains(FlowFlags::NO_BYTE_COUNTS) {
            entry.bytes += packet.frame.len() as u64;
        }
        let hit = Hit {
            cookie: entry.cookie,
            is_miss: entry.priority == 0 && entry.tests.is_empty(),
        };
        Some((&entry.instructions, hit))
    }
}

/// The entry that a packet found.
#[derive(Clone, Copy)]
pub(super) struct Hit {
    pub(super) cookie: Cookie,
    /// Whether it is the one for packets that no other entry applies to.
    pub(super) is_miss: bool,
}

/// The fields of a packet that a packet-in tells.
pub(super) fn told(in_port: PortNo, metadata: u64) -> Option<Match> {
    let mut fields = vec![OxmField::InPort(in_port)];
    if metadata != 0 {
        fields.push(OxmField::Metadata(metadata.into()));
    }
    Match::new(fields).ok()
}
