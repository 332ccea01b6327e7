//! What is stored of messages: content once, an entry for every session that
//! keeps it, and how far its handshake is.

use std::sync::atomic::Ordering;

use punctual_codec::QoS;
use punctual_store::Op;
use punctual_store::op::{Content, EntryOp};

use super::kept::{Done, Light};
use super::wall::Offset;
use super::{After, Journal};
use crate::base::connection::ConnId;
use crate::base::durability::{Durability, StoreTrouble};
use crate::egress::Class;
use crate::hub::{Hub, Publication, Remote};
use crate::index::delivered_qos;
use crate::index::matched::Matched;
use crate::index::target::Target;
use crate::message::Messages;
use crate::retained::Kept;
use crate::sequence::Number;
use crate::session::Session;
use crate::{Directory, Message, Nanos};

/// Bytes of a shard that may wait for their commit while the store fails, before
/// wills are not stored any more.
const MOST_INSISTING: usize = 1 << 20;

/// How a publication is stored.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Keeping {
    pub(crate) durability: Durability,
    /// Number of the message in the store; 0 for none.
    pub(crate) message: u64,
    /// Whether its content was emitted.
    pub(crate) written: bool,
    /// Whether anything was emitted that its publisher waits for.
    pub(crate) awaited: bool,
    /// Whether nobody could be told that it is refused.
    pub(crate) insists: bool,
    /// Number of the entry that the publisher's shard has emitted for the only
    /// receiver of this copy; 0 for none.
    pub(crate) entry: u64,
    /// Number of its content among what is kept in the shard; 0 for none.
    pub(crate) content: u64,
    /// Whether something was emitted that acknowledgements of receivers do not make
    /// needless, as far as this shard knows.
    pub(crate) firm: bool,
    /// Connection that published it, if one session of this shard receives it, and nobody
    /// else, and there is nothing about it that most messages have not.
    pub(crate) alone: Option<ConnId>,
    /// Number of the entry if that is kept together with the message; 0 otherwise.
    pub(crate) light: u64,
}

impl Keeping {
    /// Of what is not stored.
    pub(crate) const NOT: Self = Self {
        durability: Durability::None,
        message: 0,
        written: false,
        awaited: false,
        insists: false,
        entry: 0,
        content: 0,
        firm: false,
        alone: None,
        light: 0,
    };

    /// Of a new publication with that durability.
    pub(crate) fn new(durability: Durability, directory: &Directory) -> Self {
        match durability {
            Durability::None => Self::NOT,
            Durability::Batched | Durability::Sync => Self {
                durability,
                message: directory.next_message.fetch_add(1, Ordering::Relaxed),
                ..Self::NOT
            },
        }
    }
}

/// How a session receives a message.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reception<'a> {
    pub(crate) qos: QoS,
    pub(crate) retain: bool,
    pub(crate) number: Option<Number>,
    pub(crate) subscription_ids: &'a [u32],
}

impl Journal {
    /// Emits that a session keeps a message; returns the number of the entry, 0
    /// if it is not stored.
    #[inline]
    pub(crate) fn keep(
        journal: &mut Option<Box<Self>>,
        directory: &Directory,
        publication: &mut Publication<'_>,
        session: &mut Session,
        reception: Reception<'_>,
    ) -> u64 {
        match journal {
            None => 0,
            Some(journal) => journal.keep_here(directory, publication, session, reception),
        }
    }

    #[inline(never)]
    fn keep_here(
        &mut self,
        directory: &Directory,
        publication: &mut Publication<'_>,
        session: &mut Session,
        reception: Reception<'_>,
    ) -> u64 {
        // Its publisher's shard has emitted it already.
        let entry = std::mem::take(&mut publication.keeping.entry);
        if entry != 0 && !session.durable {
            self.dropped(session.handle.number, entry);
            return 0;
        }
        if entry != 0 || !session.durable {
            return entry;
        }
        let number = session.handle.number;
        let (entry, place) = self.entry(directory, publication, number, reception);
        if entry != 0 {
            self.may_be_done(publication, reception.qos, entry, place);
        }
        entry
    }

    /// The same for a publication that nobody else receives ([`Keeping::alone`]); with
    /// `packet_id` it is sent at once. Returns 0 if it is one like others.
    #[inline]
    pub(crate) fn keep_alone(
        journal: &mut Option<Box<Self>>,
        directory: &Directory,
        publication: &mut Publication<'_>,
        messages: &mut Messages,
        session: &Session,
        packet_id: u16,
    ) -> u64 {
        let (Some(journal), Some(publisher)) = (journal, publication.keeping.alone) else {
            return 0;
        };
        if !session.durable {
            return 0;
        }
        let entry = directory.next_entry.fetch_add(1, Ordering::Relaxed);
        publication.keeping.light = entry;
        publication.keeping.awaited = true;
        let light = Light {
            session: session.handle.number,
            packet_id,
            publisher,
            message: publication.message(messages),
        };
        journal.kept.keep_light(entry, light);
        entry
    }

    /// Emits an entry for a session, and the content before the first. Returns its
    /// number, 0 if it is not stored, and its place.
    fn entry(
        &mut self,
        directory: &Directory,
        publication: &mut Publication<'_>,
        session: u64,
        reception: Reception<'_>,
    ) -> (u64, Option<usize>) {
        // A QoS 2 message of which nothing is stored would be sent with an identifier
        // that may be another's after a crash.
        let insists = publication.keeping.insists && self.uncommitted() < MOST_INSISTING;
        if publication.keeping.message == 0 || (self.trouble().is_some() && !insists) {
            return (0, None);
        }
        self.write(publication);
        let entry = directory.next_entry.fetch_add(1, Ordering::Relaxed);
        let message = publication.keeping.message;
        let place = self.emit_entry(session, entry, message, reception);
        (entry, place)
    }

    /// Notes that an entry was emitted for a session. With QoS 1 it is
    /// needless once that has done with it; with QoS 2 its identifier is to be safe
    /// before it is seen.
    fn may_be_done(
        &mut self,
        publication: &mut Publication<'_>,
        qos: QoS,
        entry: u64,
        place: Option<usize>,
    ) {
        match qos {
            QoS::ExactlyOnce => self.make_firm(publication),
            _ => self
                .kept
                .add_entry(entry, publication.keeping.content, place),
        }
    }

    /// What was emitted of a publication has to be committed, whatever its receivers
    /// say.
    pub(super) fn make_firm(&mut self, publication: &mut Publication<'_>) {
        publication.keeping.firm = true;
        self.kept.pin(publication.keeping.content);
    }

    pub(super) fn emit_entry(
        &mut self,
        session: u64,
        entry: u64,
        message: u64,
        reception: Reception<'_>,
    ) -> Option<usize> {
        self.emit(&Op::Entry(EntryOp {
            session,
            entry,
            message,
            qos: reception.qos as u8,
            retain: reception.retain,
            subscription_ids: reception.subscription_ids.into(),
            number: reception.number.map(Number::parts),
        }))
    }

    /// Emits the content of a publication, once, and again if nothing that referred to
    /// it is left; its publisher waits for it.
    pub(super) fn write(&mut self, publication: &mut Publication<'_>) {
        let keeping = &mut publication.keeping;
        keeping.awaited = true;
        let sync = keeping.durability == Durability::Sync;
        self.sync |= sync;
        self.hurry |= sync || publication.stamp.class().is_urgent();
        if std::mem::replace(&mut keeping.written, true) && self.kept.has_content(keeping.content) {
            return;
        }
        let message = publication.keeping.message;
        let place = with_content(publication, self.offset, |content| {
            self.emit(&Op::Message { message, content })
        });
        publication.keeping.content = self.kept.add_content(message, place);
    }

    /// What one session has is to be copied to another, as [`Self::keep_retained`] says: until
    /// that is committed, it is with the first.
    pub(crate) fn insist(journal: &mut Option<Box<Self>>, entry: u64) {
        if let Some(journal) = journal {
            journal.kept.insist(entry);
        }
    }

    /// Emits an entry for a message that a session gets later than others: a retained one,
    /// because it has subscribed, or a copy; its content is there already. With `insists`
    /// also while nothing can be stored.
    pub(crate) fn keep_retained(
        journal: &mut Option<Box<Self>>,
        directory: &Directory,
        message: &Message,
        session: &Session,
        reception: Reception<'_>,
        insists: bool,
    ) -> u64 {
        let Some(journal) = journal else {
            return 0;
        };
        // What was begun with QoS 2 goes on, see `Self::entry`.
        let insists = insists || reception.qos == QoS::ExactlyOnce;
        let insists = insists && journal.uncommitted() < MOST_INSISTING;
        if !session.durable || message.stored == 0 || journal.trouble().is_some() && !insists {
            return 0;
        }
        let entry = directory.next_entry.fetch_add(1, Ordering::Relaxed);
        let place = journal.emit_entry(session.handle.number, entry, message.stored, reception);
        let content = journal.kept.content_of(message.stored);
        match reception.qos {
            QoS::ExactlyOnce => journal.kept.pin(content),
            _ => journal.kept.add_entry(entry, content, place),
        }
        entry
    }

    /// Emits the packet identifier of the message that was put into flight last. True if its
    /// PUBLISH is held until that is committed: another identifier after a crash would
    /// be another message for the receiver.
    #[inline]
    pub(crate) fn sent(
        journal: &mut Option<Box<Self>>,
        directory: &Directory,
        session: &mut Session,
        conn: ConnId,
        flight: Flight,
    ) -> bool {
        let Some(journal) = journal else {
            return false;
        };
        let Flight {
            entry,
            packet_id,
            qos,
            class,
        } = flight;
        match (entry, qos) {
            (0, QoS::ExactlyOnce) if session.durable => {
                journal.identifier(directory, session, packet_id);
            }
            (0, _) => return false,
            _ => {
                let place = journal.emit(&Op::Sent {
                    session: session.handle.number,
                    entry,
                    packet_id,
                });
                journal.kept.was_sent(entry, place);
            }
        }
        if qos == QoS::ExactlyOnce {
            journal.hold_publish(conn, packet_id, class);
        }
        qos == QoS::ExactlyOnce
    }

    /// Emits that a packet identifier is in use for a QoS 2 message of which nothing else is
    /// stored: given to another one after a crash, the receiver could take that for a repetition.
    /// What is left of it after one is PUBREL, which ends it whether PUBLISH has come or not.
    #[cold]
    fn identifier(&mut self, directory: &Directory, session: &mut Session, packet_id: u16) {
        let entry = directory.next_entry.fetch_add(1, Ordering::Relaxed);
        let number = session.handle.number;
        self.emit(&Op::Entry(released(number, entry)));
        self.emit(&Op::Sent {
            session: number,
            entry,
            packet_id,
        });
        self.emit(&Op::Step {
            session: number,
            entry,
        });
        session.window.name_last(entry);
    }

    /// Emits that the receiver has a QoS 2 message; returns the ticket that its
    /// PUBREL waits for.
    pub(crate) fn step(&mut self, session: &Session, entry: u64) -> Option<u64> {
        if entry == 0 || !session.durable {
            return None;
        }
        let session = session.handle.number;
        self.emit(&Op::Step { session, entry });
        Some(self.latest())
    }

    /// Emits that a session has done with an entry.
    #[inline]
    pub(crate) fn done(journal: &mut Option<Box<Self>>, session: &Session, entry: u64) {
        if entry != 0
            && session.durable
            && let Some(journal) = journal
        {
            journal.dropped(session.handle.number, entry);
        }
    }

    /// Emits that nobody keeps an entry, or notes that another shard is to do so.
    pub(crate) fn dropped(&mut self, session: u64, entry: u64) {
        match self.kept.done(entry) {
            Done::Needless => {}
            Done::Stored => {
                self.emit(&Op::Done { session, entry });
            }
            Done::Elsewhere(shard) => self.elsewhere.push((shard, [session, entry])),
        }
    }

    /// Emits what a topic retains now: `publication`, or nothing. `version` says
    /// which came last, `before` whether something of it may be stored.
    pub(crate) fn retain(&mut self, publication: &mut Publication<'_>, version: u64, before: bool) {
        let topic = topic_of(publication);
        if publication.parts.payload.is_empty() || publication.keeping.message == 0 {
            if before {
                publication.keeping.awaited = true;
                publication.keeping.firm = true;
                self.emit_gone(topic, version);
            }
            return;
        }
        if self.trouble().is_some() {
            self.stale_topics.insert(topic.into());
            return;
        }
        self.write(publication);
        self.make_firm(publication);
        self.emit(&Op::Retain {
            topic: topic_of(publication),
            message: publication.keeping.message,
            version,
        });
    }

    pub(crate) fn emit_gone(&mut self, topic: &str, version: u64) {
        self.emit(&Op::RetainGone { topic, version });
    }
}

/// What a session has of a QoS 2 message without its content: it only waits for PUBCOMP.
pub(super) fn released(session: u64, entry: u64) -> EntryOp<'static> {
    EntryOp {
        session,
        entry,
        message: 0,
        qos: QoS::ExactlyOnce as u8,
        retain: false,
        subscription_ids: (&[][..]).into(),
        number: None,
    }
}

/// What decides whether something of a publication would have to be stored.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Nature {
    pub(crate) qos: QoS,
    pub(crate) retain: bool,
    pub(crate) publisher: u64,
    pub(crate) relayed: bool,
}

/// Whether something of a publication would have to be stored.
pub(super) fn is_to_be_stored(matched: &Matched, nature: Nature) -> bool {
    if nature.qos == QoS::AtMostOnce {
        return false;
    }
    let mut plain = matched.targets();
    let is_stored = |target: &Target| {
        let own = target.no_local && target.session.number == nature.publisher;
        let passed_over = nature.relayed && !target.session.link;
        target.qos != QoS::AtMostOnce && !own && !passed_over && target.session.is_durable()
    };
    let mut groups = matched.groups.iter();
    nature.retain
        || matched.crowd && !nature.relayed
        || plain.any(is_stored)
        || groups.any(|group| group.members().here.iter().any(is_stored))
}

/// Says what is stored of the content of a publication.
pub(super) fn with_content<R>(
    publication: &Publication<'_>,
    offset: Offset,
    say: impl FnOnce(Content<'_>) -> R,
) -> R {
    let parts = &publication.parts;
    let name = publication.name.and_then(Number::name_key);
    let name = name.or_else(|| Some(publication.message.as_ref()?.name));
    let stamp = offset.stamp(publication.stamp).named(name.unwrap_or(0));
    let stamp = stamp.by(publication.author.as_deref());
    say(Content {
        topic: topic_of(publication),
        payload: parts.payload,
        properties: parts.properties,
        publisher: publication.publisher,
        qos: publication.qos as u8,
        retain: publication.retain,
        expires: offset.deadline(publication.expires),
        stamp: stamp.bytes(),
    })
}

/// Routed topics are valid.
fn topic_of<'a>(publication: &Publication<'a>) -> &'a str {
    std::str::from_utf8(publication.parts.topic).unwrap_or_default()
}

/// A message that gets a packet identifier.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Flight {
    pub(crate) entry: u64,
    pub(crate) packet_id: u16,
    pub(crate) qos: QoS,
    pub(crate) class: Class,
}

impl Hub {
    /// What the answer to a publication waits for.
    #[inline]
    pub(crate) fn after(&self, keeping: &Keeping) -> Option<After> {
        let journal = self.journal.as_ref().filter(|_| keeping.awaited)?;
        let ticket = journal.latest();
        Some(match keeping.firm {
            true => After::ticket(ticket),
            false => After::needed(keeping.content, ticket),
        })
    }

    /// What waits for all that was emitted until now; `None` if that is committed.
    pub(crate) fn after_all(&self) -> Option<After> {
        let journal = self.journal.as_ref()?;
        let after = After::ticket(journal.latest());
        (!after.is_over(journal)).then_some(after)
    }

    /// Why a publication has to be refused: it cannot be stored now as it would
    /// have to be.
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

    /// The same for a publication that is durable if it has to be stored.
    pub(crate) fn trouble_with(&self, matched: &Matched, nature: Nature) -> Option<StoreTrouble> {
        let trouble = self.journal.as_ref()?.trouble()?;
        is_to_be_stored(matched, nature).then_some(trouble)
    }

    /// What is promised about a publication, of which a rule or its publisher's
    /// listener says `durability`.
    #[inline]
    pub(crate) fn keeping(&self, durability: Durability, needed: bool) -> Keeping {
        match &self.journal {
            Some(_) if needed => Keeping::new(durability, &self.directory),
            _ => Keeping::NOT,
        }
    }

    /// Emits entries for those of another shard's receivers whose sessions
    /// survive; `None` if there is none. What becomes of them that shard knows, and says,
    /// or lets this one say ([`Hub::came`]).
    pub(crate) fn keep_elsewhere(
        &mut self,
        publication: &mut Publication<'_>,
        targets: &[Target],
    ) -> Option<Box<[u64]>> {
        // The same on all ways, also after a restart.
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

    /// Forgets that a QoS 2 message came; returns the ticket of what says so, 0
    /// if nothing is stored of it, `None` if it is not known.
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

    /// Notes that a QoS 2 message came, and in the store too if its PUBREC waits for
    /// something and the session survives. Returns what PUBREC waits for, also if the
    /// message comes again, as its `gist` says.
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

    /// Emits that a topic has no retained message any more, unless it has.
    pub(crate) fn emit_retained_changes(&mut self) {
        if let Some(journal) = &mut self.journal {
            for (topic, version) in self.directory.take_unretained() {
                journal.emit_gone(&topic, version);
            }
        }
    }

    /// Notes an entry that another shard has emitted for a session of this one.
    pub(crate) fn came(&mut self, entry: u64, qos: QoS, from: u16) {
        let stays = self.config.durability.patience > Nanos(0);
        // With QoS 2 it was handed over before it came here.
        if let Some(journal) = &mut self.journal
            && stays
            && entry != 0
            && qos == QoS::AtLeastOnce
        {
            journal.kept.add_foreign(entry, from);
        }
    }

    /// Tells other shards which of the entries that they have emitted sessions of this one
    /// have done with.
    pub(crate) fn tell_elsewhere(&mut self) {
        let Some(journal) = &mut self.journal else {
            return;
        };
        if journal.elsewhere.is_empty() {
            return;
        }
        let mut done = std::mem::take(&mut journal.elsewhere);
        // In the order in which they were done with.
        done.sort_by_key(|(shard, _)| *shard);
        for of_shard in done.chunk_by(|a, b| a.0 == b.0) {
            let entries = of_shard.iter().map(|(_, entry)| *entry).collect();
            self.post(of_shard[0].0, Remote::Done { entries });
        }
        done.clear();
        if let Some(journal) = &mut self.journal {
            // For the next.
            journal.elsewhere = done;
        }
    }

    /// Sessions of another shard have done with entries that this one has emitted.
    pub(crate) fn done_elsewhere(&mut self, entries: &[[u64; 2]]) {
        if let Some(journal) = &mut self.journal {
            for [session, entry] in entries {
                journal.dropped(*session, *entry);
            }
            self.let_needless_go();
        }
    }

    /// Emits what messages from neighbours are called that something is stored of.
    pub(crate) fn emit_names(&mut self) {
        if let (Some(journal), Some(federation)) = (&mut self.journal, self.directory.federation())
            && journal.has_begun()
        {
            let origin = federation.origin();
            self.directory.names().emit(journal, origin);
        }
    }

    /// Stores a retained message that could not be stored when it came.
    pub(super) fn store_retained(&mut self, kept: &Kept) {
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
