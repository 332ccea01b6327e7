//! The operations of messages: the content once, and for every session that keeps the message an
//! entry and the state of its handshake.

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

/// Uncommitted bytes of a shard from which wills, copies and QoS 2 messages are not stored any more
/// while the store is in trouble.
const MOST_INSISTING: usize = 1 << 20;

impl Journal {
    /// Emits the entry of a message for a session; returns the number of the entry, 0 if it is not
    /// stored.
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
        // The publisher's shard may have emitted the entry already.
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

    /// Like [`Self::keep`], for a publication with a single receiver
    /// ([`Keeping::alone`](crate::journal::keeping::Keeping::alone)); it is sent at once with
    /// `packet_id`, unless that is 0. Returns 0 if the publication is not of that kind.
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

    /// Emits an entry for a session, and the content before the first entry. Returns the number of
    /// the entry, 0 if it is not stored, and its place.
    pub(crate) fn entry(
        &mut self,
        directory: &Directory,
        publication: &mut Publication<'_>,
        session: u64,
        reception: Reception<'_>,
    ) -> (u64, Option<usize>) {
        // Without an entry, the packet identifier of a QoS 2 message could be assigned to another
        // message after a crash.
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

    /// Records that an entry was emitted for a session. With QoS 1 the entry is needless once the
    /// session has finished it; with QoS 2 its packet identifier must be committed before the
    /// receiver sees it.
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

    /// Makes sure that the operations of a publication are committed, even if all receivers
    /// acknowledge it.
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

    /// Emits the content of a publication, once, and again if it was withdrawn; the publisher waits
    /// for it.
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

    /// Makes sure that an entry of one session is stored until its copy for another session is
    /// committed.
    pub(crate) fn insist(journal: &mut Option<Box<Self>>, entry: u64) {
        if let Some(journal) = journal {
            journal.kept.insist(entry);
        }
    }

    /// Emits an entry for a message that was published before: a retained message for a new
    /// subscription, or a copy. The content has been emitted. With `insists`, the entry is emitted
    /// even while the store is in trouble.
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
        // A QoS 2 message needs its entry, see [`Self::entry`].
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

    /// Emits the packet identifier of the last message in flight. True if its PUBLISH is held until
    /// that is committed: with another identifier after a crash, the receiver would take it for
    /// another message.
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

    /// Emits that a packet identifier is in use for a QoS 2 message that is not stored: if it were
    /// assigned to another message after a crash, the receiver could take that for a duplicate.
    /// After a crash the broker sends PUBREL for it, which ends the handshake whether PUBLISH has
    /// arrived or not.
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

    /// Emits that the receiver has acknowledged a QoS 2 message with PUBREC; returns the ticket
    /// that PUBREL waits for.
    pub(crate) fn step(&mut self, session: &Session, entry: u64) -> Option<u64> {
        if entry == 0 || !session.durable {
            return None;
        }
        let session = session.handle.number;
        self.emit(&Op::Step { session, entry });
        Some(self.latest())
    }

    /// Emits that a session has finished an entry.
    #[inline]
    pub(crate) fn done(journal: &mut Option<Box<Self>>, session: &Session, entry: u64) {
        if entry != 0
            && session.durable
            && let Some(journal) = journal
        {
            journal.dropped(session.handle.number, entry);
        }
    }

    /// Like [`Self::done`], for an entry whose message has been passed on. If the broker is killed
    /// before the commit, that has not happened, and the session needs the entry: so it is handed
    /// over, and the publisher of the message is not answered before it is committed.
    pub(crate) fn passed_on(journal: &mut Option<Box<Self>>, session: &Session, entry: u64) {
        Self::insist(journal, entry);
        Self::done(journal, session, entry);
    }

    /// Emits that an entry is finished, withdraws the entry, or lists it for the shard that has
    /// emitted it.
    pub(crate) fn dropped(&mut self, session: u64, entry: u64) {
        match self.kept.done(entry) {
            Done::Needless => {}
            Done::Stored => {
                self.emit(&Op::Done { session, entry });
            }
            Done::Elsewhere(shard) => self.elsewhere.push((shard, [session, entry])),
        }
    }

    /// Emits the new retained message of a topic: `publication`, or none. `version` orders the
    /// changes of a topic; `before` is whether the store may have an earlier message.
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

/// Whether a publication has to be stored, if it is durable.
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
