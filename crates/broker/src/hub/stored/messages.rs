//! Emits the operations of the messages of a shard's sessions.

use punctual_codec::QoS;
use punctual_store::Op;

use crate::Nanos;
use crate::base::durability::{Durability, StoreTrouble};
use crate::hub::{Hub, Remote};
use crate::index::delivered_qos;
use crate::index::matched::Matched;
use crate::index::target::Target;
use crate::journal::answers::After;
use crate::journal::keeping::{Keeping, Nature, Reception};
use crate::journal::messages::is_to_be_stored;
use crate::publication::Publication;
use crate::retained::RetainedEntry;

impl Hub {
    /// The condition that the answer to a publication waits for.
    #[inline]
    pub(crate) fn after(&self, keeping: &Keeping) -> Option<After> {
        let journal = self.journal.as_ref().filter(|_| keeping.awaited)?;
        let ticket = journal.latest();
        Some(match keeping.firm {
            true => After::ticket(ticket),
            false => After::needed(keeping.content, ticket),
        })
    }

    /// The condition that all operations until now are committed; `None` if they are.
    pub(crate) fn after_all(&self) -> Option<After> {
        let journal = self.journal.as_ref()?;
        let after = After::ticket(journal.latest());
        (!after.is_over(journal)).then_some(after)
    }

    /// Why a publication has to be refused: it has to be stored, and the store is in trouble.
    #[inline]
    pub(crate) fn trouble_for(
        &self,
        matched: &Matched,
        publication: &Publication<'_>,
    ) -> Option<StoreTrouble> {
        if publication.keeping.message == 0 {
            return None;
        }
        let nature = Nature {
            qos: publication.qos,
            retain: publication.retain,
            publisher: publication.publisher,
            relayed: publication.relayed,
        };
        self.trouble_with(matched, nature)
    }

    /// Like [`Self::trouble_for`], for a publication that is durable.
    pub(crate) fn trouble_with(&self, matched: &Matched, nature: Nature) -> Option<StoreTrouble> {
        let trouble = self.journal.as_ref()?.trouble()?;
        is_to_be_stored(matched, nature).then_some(trouble)
    }

    /// How a publication is stored. A rule or the publisher's listener has the setting
    /// `durability`.
    #[inline]
    pub(crate) fn keeping(&self, durability: Durability, needed: bool) -> Keeping {
        match &self.journal {
            Some(_) if needed => Keeping::new(durability, &self.directory),
            _ => Keeping::NOT,
        }
    }

    /// Emits entries for those receivers of another shard whose sessions survive a restart; `None`
    /// if there are none. That shard emits how they end, or notifies this shard to do so
    /// ([`Hub::came`]).
    pub(crate) fn keep_elsewhere(
        &mut self,
        publication: &mut Publication<'_>,
        targets: &[Target],
    ) -> Option<Box<[u64]>> {
        // The name must be the same on all paths, also after a restart.
        if self.directory.federation().is_some() && targets.iter().any(|to| to.session.link) {
            publication.named(&self.directory);
        }
        let journal = self.journal.as_mut()?;
        if publication.keeping.message == 0 {
            return None;
        }
        let entries: Box<[u64]> = targets
            .iter()
            .map(|target| {
                let own = target.no_local && target.session.number == publication.publisher;
                let reception = Reception {
                    qos: delivered_qos(publication.qos, target.qos),
                    retain: publication.retain && target.retain_as_published,
                    number: publication.name.filter(|_| target.session.link),
                    subscription_ids: target.ids(),
                };
                if own || reception.qos == QoS::AtMostOnce || !target.session.is_durable() {
                    return 0;
                }
                let session = target.session.number;
                let directory = &self.directory;
                let (entry, place) = journal.entry(directory, publication, session, reception);
                if entry != 0 {
                    journal.may_be_done(publication, reception.qos, entry, place);
                }
                entry
            })
            .collect();
        entries.iter().any(|entry| *entry != 0).then_some(entries)
    }

    /// Releases the packet identifier of a received QoS 2 message; returns the ticket of that
    /// operation, 0 if the identifier is not stored, `None` if it is unknown.
    pub(crate) fn forget_received(&mut self, session: u32, packet_id: u16) -> Option<u64> {
        let session = self.sessions.get_mut(session)?;
        if !session.incoming.as_mut()?.remove(&packet_id)?.stored {
            return Some(0);
        }
        let journal = self.journal.as_mut()?;
        let session = session.handle.number;
        journal.emit(&Op::Released { session, packet_id });
        Some(journal.latest())
    }

    /// Records the packet identifier of a received QoS 2 message; also in the store if its PUBREC
    /// waits for a commit and the session survives a restart. `gist` is a digest by which a
    /// duplicate is recognised. Returns the condition that PUBREC waits for.
    pub(crate) fn note_received(
        &mut self,
        session: u32,
        packet_id: u16,
        gist: u32,
        after: Option<After>,
    ) -> Option<After> {
        let Some(session) = self.sessions.get_mut(session) else {
            return after;
        };
        let (after, stored) = match (&mut self.journal, after) {
            (Some(journal), Some(_)) if session.durable => {
                journal.emit(&Op::Received {
                    session: session.handle.number,
                    packet_id,
                    gist,
                });
                (Some(After::ticket(journal.latest())), true)
            }
            _ => (after, false),
        };
        let incoming = session.incoming.get_or_insert_default();
        let known = incoming.entry(packet_id).or_default();
        known.ticket = known.ticket.max(after.map_or(0, |after| after.ticket));
        known.stored |= stored;
        (known.earlier, known.gist) = (false, gist);
        after
    }

    /// Emits the removal of retained messages of topics that have none any more.
    pub(crate) fn emit_retained_changes(&mut self) {
        if let Some(journal) = &mut self.journal {
            for (topic, version) in self.directory.take_unretained() {
                journal.emit_gone(&topic, version);
            }
        }
    }

    /// Records an entry that another shard has emitted for a session of this shard.
    pub(crate) fn came(&mut self, entry: u64, qos: QoS, from: u16) {
        let stays = self.config.durability.patience > Nanos(0);
        // The entry of a QoS 2 message was handed over at once.
        if let Some(journal) = &mut self.journal
            && stays
            && entry != 0
            && qos == QoS::AtLeastOnce
        {
            journal.kept.add_foreign(entry, from);
        }
    }

    /// Notifies other shards of their entries that sessions of this shard have finished.
    pub(crate) fn notify_shards_of_finished(&mut self) {
        let Some(journal) = &mut self.journal else {
            return;
        };
        if journal.elsewhere.is_empty() {
            return;
        }
        let mut done = std::mem::take(&mut journal.elsewhere);
        // A stable sort: entries of one shard stay in the order in which they were finished.
        done.sort_by_key(|(shard, _)| *shard);
        for of_shard in done.chunk_by(|a, b| a.0 == b.0) {
            let entries = of_shard.iter().map(|(_, entry)| *entry).collect();
            self.outboxes.post(of_shard[0].0, Remote::Done { entries });
        }
        done.clear();
        if let Some(journal) = &mut self.journal {
            // For the next.
            journal.elsewhere = done;
        }
    }

    /// Sessions of another shard have finished entries that this shard has emitted.
    pub(crate) fn done_elsewhere(&mut self, entries: &[[u64; 2]]) {
        if let Some(journal) = &mut self.journal {
            for [session, entry] in entries {
                journal.dropped(*session, *entry);
            }
            self.let_needless_go();
        }
    }

    /// Emits the origin of names, if this shard stores something, and on the first shard the names of
    /// messages from neighbours of which something is stored.
    pub(crate) fn emit_names(&mut self) {
        if let (Some(journal), Some(federation)) = (&mut self.journal, self.directory.federation())
            && journal.has_begun()
            && (self.index == 0 || !journal.knows_origin)
        {
            let mut names = self.directory.names();
            names.emit_origin(journal, federation.origin());
            if self.index == 0 {
                names.emit(journal);
            }
        }
    }

    /// Stores a retained message that could not be stored when it was published.
    pub(super) fn store_retained(&mut self, kept: &RetainedEntry) {
        let Some(journal) = &mut self.journal else {
            return;
        };
        let mut publication = Publication::from_message(&kept.message, Nanos(0));
        publication.author.clone_from(&kept.author);
        publication.keeping = Keeping {
            durability: Durability::Batched,
            message: kept.message.stored,
            ..Keeping::NOT
        };
        journal.retain(&mut publication, kept.version, false);
    }
}
