//! Replication of retained messages in a mesh: every broker has all of them, so that a new
//! subscriber receives the newest ones from its own broker, at once.
//!
//! A retained publication goes to every neighbour on the tree, without regard to filters, as an
//! ordinary message with its version ([`Notes`]); each broker keeps the highest version. When a
//! link begins to carry messages, both ends send the sums of 64 partitions of their retained
//! messages, then the digests of all messages in partitions that differ, and each sends the
//! messages that the other lacks; tombstones of removed messages are compared, too. A received
//! message is passed on to other brokers that lack it, and to their subscribers.

use punctual_codec::ReasonCode;

use crate::base::notes::Notes;
use crate::index::matched::{Groups, Matched};
use crate::publication::Publication;
use crate::retained::lack::{Lack, removal};
use crate::retained::{DigestCursor, PARTS};
use crate::shard::common::{TOPIC, is_common, reach};
use crate::shard::deliver::{DependentSender, deliver_all};
use crate::shard::retain::retain;
use crate::shard::{Fail, Shard};
use crate::{Budget, Nanos};

/// Largest number of digests in one message, and of units of work to find them.
const BATCH: u64 = 4096;

/// First byte of a message: its kind.
const SUMS: u8 = 0;
const HAS: u8 = 1;
const HAS_AND_MORE: u8 = 2;

impl Shard {
    /// Removes the retained message of a topic, on all shards and all brokers of a mesh; returns
    /// whether there was one. Subscribers of this broker receive nothing.
    pub fn remove_retained(&mut self, topic: &str, now: Nanos) -> bool {
        let hub = &mut self.hub;
        let directory = hub.directory.clone();
        let mut retained = directory.retained_mut();
        let mut entry = retained.entry(topic);
        if !entry.is_there() {
            return false;
        }
        let empty = removal(topic, now);
        let mut publication = Publication::from_message(&empty, now);
        let version = entry.next_version(directory.version_clock());
        retain(hub, entry, &mut publication, version);
        drop(retained);
        if is_common(hub, topic.as_bytes()) {
            let nobody = Matched::new(Vec::new(), Groups::new());
            let notes = Notes {
                version,
                ..Notes::default()
            };
            let neighbours = Matched::new(reach(hub, &nobody, &notes, true), Groups::new());
            // There is no publisher to refuse: for a full queue the message is dropped, and
            // counted.
            let _ = deliver_all(
                hub,
                &neighbours,
                &mut publication,
                None,
                now,
                DependentSender::Nobody,
            );
        }
        self.share_stats_soon(now);
        true
    }

    /// Compares the retained messages of both ends when a link begins to carry messages.
    pub(crate) fn compare_retained(&mut self, slot: u32) {
        let sums = self.hub.directory.retained().sums();
        let mut message = vec![SUMS];
        message.extend(sums.iter().flat_map(|sum| sum.to_be_bytes()));
        self.send_to_neighbour(slot, &message);
    }

    /// Handles a neighbour's message about its retained messages.
    pub(crate) fn told_of_retained(
        &mut self,
        slot: u32,
        message: &[u8],
        now: Nanos,
    ) -> Result<(), Fail> {
        let wrong = || {
            let why = "what a neighbour says of retained messages is not understood";
            Fail::new(ReasonCode::ProtocolError, why)
        };
        let (kind, rest) = message.split_first().ok_or_else(wrong)?;
        let (words, []) = rest.as_chunks() else {
            return Err(wrong());
        };
        let mut words = words.iter().copied().map(u64::from_be_bytes);
        match *kind {
            SUMS if words.len() == PARTS => {
                let own = self.hub.directory.retained().sums();
                let differ = words.zip(own).enumerate();
                let differ = differ.filter(|(_, (theirs, own))| theirs != own);
                let parts = differ.fold(0u64, |parts, (at, _)| parts | 1 << at);
                self.send_digests(slot, parts);
            }
            HAS | HAS_AND_MORE => {
                let parts = words.next().ok_or_else(wrong)?;
                let most = self.hub.config.limits.max_retained_messages;
                let Some(session) = self.hub.sessions.get_mut(slot) else {
                    return Ok(());
                };
                let Some(link) = &mut session.link else {
                    return Ok(());
                };
                let room = most.saturating_sub(link.has.len());
                link.has.extend(words.take(room));
                if *kind == HAS {
                    let has = std::mem::take(&mut link.has).into_iter().collect();
                    session.replays.begin_for_neighbour(Lack::new(parts, has));
                    self.hub.pump(slot, now);
                }
            }
            _ => return Err(wrong()),
        }
        Ok(())
    }

    /// Sends a neighbour the digests of this broker's retained messages in some partitions, a bit
    /// for each.
    fn send_digests(&mut self, slot: u32, parts: u64) {
        if parts == 0 {
            return;
        }
        let mut from = DigestCursor::default();
        loop {
            // Other shards may change retained messages between two messages to the neighbour.
            let mut budget = Budget::new(BATCH);
            let mut own = Vec::new();
            let retained = self.hub.directory.retained();
            let done = retained.digests(parts, &mut from, &mut budget, &mut own);
            drop(retained);
            if own.is_empty() && !done {
                continue;
            }
            let mut message = vec![if done { HAS } else { HAS_AND_MORE }];
            message.extend_from_slice(&parts.to_be_bytes());
            message.extend(own.iter().flat_map(|digest| digest.to_be_bytes()));
            self.send_to_neighbour(slot, &message);
            if done {
                return;
            }
        }
    }

    fn send_to_neighbour(&mut self, slot: u32, message: &[u8]) {
        let hub = &mut self.hub;
        if let Some(conn) = hub.sessions.get(slot).and_then(|session| session.conn) {
            hub.tell(conn, TOPIC, message);
        }
    }
}
