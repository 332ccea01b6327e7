//! What is stored of messages: content once, an entry for every session that
//! keeps it, and how far its handshake is.

use std::sync::atomic::Ordering;

use punctual_codec::QoS;
use punctual_store::Op;
use punctual_store::op::EntryOp;

use super::Journal;
use super::kept::{Done, Light};
use crate::base::connection::ConnId;
use crate::base::durability::Durability;
use crate::index::matched::Matched;
use crate::index::target::Target;
use crate::journal::content::{released, topic_of, with_content};
use crate::journal::keeping::{Flight, Nature, Reception};
use crate::message::Messages;
use crate::publication::Publication;
use crate::sequence::Number;
use crate::session::Session;
use crate::{Directory, Message};

/// Bytes of a shard that may wait for their commit while the store fails, before
/// wills are not stored any more.
const MOST_INSISTING: usize = 1 << 20;

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
    pub(crate) fn entry(
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
    pub(crate) fn may_be_done(
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
    pub(crate) fn make_firm(&mut self, publication: &mut Publication<'_>) {
        publication.keeping.firm = true;
        self.kept.pin(publication.keeping.content);
    }

    pub(crate) fn emit_entry(
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
    pub(crate) fn write(&mut self, publication: &mut Publication<'_>) {
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

/// Whether something of a publication would have to be stored.
pub(crate) fn is_to_be_stored(matched: &Matched, nature: Nature) -> bool {
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
