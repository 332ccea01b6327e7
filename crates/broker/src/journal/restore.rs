//! Makes sessions, queues and retained messages from the operations that a store returns after a
//! restart.
//!
//! Invariant: a restored shard continues as the lost one would have if all its connections had been
//! lost at the time of restoring; expiry intervals run while the broker is down.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use hashbrown::{HashMap, HashSet};
use punctual_codec::{QoS, SubscribeOptions, Version, topic};
use punctual_store::op::{Content, HighestNumbers, SessionOp, SubscriptionOp};
use punctual_store::{ByNumber, Op, Wall};

use super::sessions::{AWAITED, BEHIND, BETWEEN, DEMOTED, NUMBERED, OWED};
use super::wall::{Offset, StoredStamp};
use crate::base::author::Author;
use crate::base::delivery::Delivery;
use crate::base::name::{peer_of, sign};
use crate::mesh::federation::MessageNames;
use crate::mesh::journal::{history, names};
use crate::message::{Parts, Traits};
use crate::sequence::Number;
use crate::session::{Replays, Session, Step, Subscription, Will, first_step};
use crate::{Directory, Message, Nanos};

/// Collects the operations that a store returns on recovery, for all shards of a broker.
///
/// The store returns numbers, contents and retained messages first, then one session after the
/// other.
#[derive(Debug)]
pub struct Restorer {
    offset: Offset,
    directory: Arc<Directory>,
    messages: ByNumber<Arc<Message>>,
    /// Publishers of retained messages, each once.
    authors: HashSet<Arc<Author>, foldhash::fast::RandomState>,
    /// The publishers of messages that may be retained, by the messages' numbers.
    authored: HashMap<u64, Arc<Author>, foldhash::fast::RandomState>,
    /// Delivery histories by the number of the session; the sessions come later.
    history: HashMap<u64, history::Restored, foldhash::fast::RandomState>,
    session: Option<RestoredSession>,
    /// Messages of `session`.
    waiting: Vec<Waiting>,
}

/// A message of the session that is being read.
#[derive(Debug)]
struct Waiting {
    message: u64,
    subscription_ids: Option<Arc<[u32]>>,
    qos: QoS,
    retain: bool,
    number: Option<Number>,
    entry: u64,
    /// Packet identifier, if the message was sent, and whether PUBREC has arrived.
    sent: Option<(u16, bool)>,
}

/// A session as it was stored.
#[derive(Debug)]
pub struct RestoredSession {
    pub(crate) number: u64,
    pub(crate) client_id: Arc<str>,
    pub(crate) user: Option<Arc<str>>,
    pub(crate) expiry: u32,
    pub(crate) detached: Option<Wall>,
    pub(crate) next_packet_id: u16,
    pub(crate) subscriptions: Vec<Subscription>,
    /// For a neighbour: filters of shared subscriptions, [`AWAITED`] filters and [`BEHIND`], each
    /// with brokers behind the neighbour.
    pub(crate) members: Vec<(Box<str>, Vec<Box<str>>)>,
    pub(crate) replays: Replays,
    pub(crate) classes: Option<u8>,
    /// Packet identifiers of unreleased QoS 2 messages from its client, each with a digest of the
    /// message.
    pub(crate) received: Vec<(u16, u32)>,
    /// The will, and when it is to be published, if that is known.
    pub(crate) will: Option<(Will, Option<Wall>)>,
    pub(crate) entries: Vec<RestoredEntry>,
    pub(crate) history: history::Restored,
}

#[derive(Debug)]
pub(crate) struct RestoredEntry {
    pub(crate) delivery: Delivery,
    /// Packet identifier, if the message was sent, and whether PUBREC has arrived.
    pub(crate) sent: Option<(u16, bool)>,
}

impl Restorer {
    /// A restorer for the shards of `directory`; `wall` as in [`crate::Shard::attach_store`].
    pub fn new(directory: Arc<Directory>, wall: u64) -> Self {
        Self {
            offset: Offset(wall),
            directory,
            messages: ByNumber::default(),
            authors: HashSet::default(),
            authored: HashMap::default(),
            history: HashMap::default(),
            session: None,
            waiting: Vec::new(),
        }
    }

    /// Reads the next operation. Returns the complete session when the next one begins.
    pub fn take(&mut self, op: &Op<'_>) -> Option<RestoredSession> {
        match op {
            Op::Highest(highest) => self.directory.resume(*highest),
            Op::Message { message, content } => {
                let made = self.message(*message, content);
                if let Some(author) = StoredStamp::author(content.stamp) {
                    let shared = |author: &Author| Arc::new(author.clone());
                    let author = self.authors.get_or_insert_with(&author, shared);
                    self.authored.insert(*message, author.clone());
                }
                self.messages.insert(*message, made);
            }
            Op::Retain {
                message, version, ..
            } => {
                let author = self.authored.remove(message);
                if let Some(message) = self.messages.get(message) {
                    let mut retained = self.directory.retained_mut();
                    let entry = retained.entry(message.topic());
                    entry.set(message.to_be_retained(), *version, author);
                }
            }
            Op::Flow { key, value } => {
                if let Some((session, number)) = history::parse(key) {
                    self.history.entry(session).or_default().take(number, value);
                    return None;
                }
                let federation = self.directory.federation();
                let mut names = self.directory.names();
                names.restore(
                    key,
                    value,
                    federation.map(|it| -> &dyn MessageNames { &**it }),
                );
            }
            Op::Session(session) => {
                let complete = self.complete();
                self.session = Some(RestoredSession::new(session));
                return complete;
            }
            _ => self.detail(op),
        }
        None
    }

    /// Whether a message of the current session is complete: another message has followed it.
    pub(crate) fn has_messages(&self) -> bool {
        self.waiting.len() > 1
    }

    /// Takes the operations of the current session that were read since the last call. The last
    /// message stays for the next call, since operations on it may follow, and so does the content
    /// with that number, since its entry may follow.
    pub(crate) fn take_so_far(&mut self, content: u64) -> Option<RestoredSession> {
        let last = self.waiting.pop();
        let session = self.complete()?;
        self.session = Some(session.continued());
        let kept = [Some(content), last.as_ref().map(|last| last.message)];
        self.messages
            .retain(|number, _| kept.contains(&Some(*number)));
        self.authored.clear();
        self.waiting.extend(last);
        Some(session)
    }

    /// Like [`Self::take_so_far`], including the last message.
    pub(crate) fn take_all(&mut self) -> Option<RestoredSession> {
        self.complete()
    }

    /// Returns the last session.
    pub fn finish(mut self) -> Option<RestoredSession> {
        self.complete()
    }

    /// The session that was read, with its messages.
    fn complete(&mut self) -> Option<RestoredSession> {
        let mut session = self.session.take()?;
        session.history = self.history.remove(&session.number).unwrap_or_default();
        // All messages are looked up before one is accessed: they are scattered in memory, and in
        // this way the processor loads many at the same time.
        let waiting = std::mem::take(&mut self.waiting);
        let found: Vec<Option<&Arc<Message>>> = waiting
            .iter()
            .map(|it| self.messages.get(&it.message))
            .collect();
        let entries = waiting.into_iter().zip(found);
        session.entries = entries
            .map(|(waiting, message)| RestoredEntry {
                delivery: Delivery {
                    // A message that only waits for PUBCOMP needs no content.
                    message: message.cloned().unwrap_or_else(|| self.empty()),
                    subscription_ids: waiting.subscription_ids,
                    qos: waiting.qos,
                    retain: waiting.retain,
                    share: 0,
                    number: waiting.number,
                    entry: waiting.entry,
                },
                sent: waiting.sent,
            })
            .collect();
        Some(session)
    }

    fn message(&self, number: u64, content: &Content<'_>) -> Arc<Message> {
        let parts = Parts {
            topic: content.topic.as_bytes(),
            properties: content.properties,
            expiry: None,
            payload: content.payload,
            shared: None,
        };
        let traits = Traits {
            qos: qos(content.qos),
            retain: content.retain,
            expires: self.offset.nanos_or_never(content.expires),
            publisher: content.publisher,
            stamp: self.offset.stamp_from(content.stamp),
            watch: None,
            stored: number,
            name: StoredStamp::name(content.stamp),
        };
        Message::from_parts(&parts, traits)
    }

    /// Reads an operation on the present session.
    fn detail(&mut self, op: &Op<'_>) {
        let Some(own) = &mut self.session else {
            return;
        };
        match op {
            Op::Subscription(it) if it.session == own.number => own.subscribe(it),
            Op::Received {
                session,
                packet_id,
                gist,
            } if *session == own.number => own.received.push((*packet_id, *gist)),
            Op::Will(will) if will.session == own.number => {
                let content = &will.content;
                let message = Message::will(
                    content.topic,
                    content.properties,
                    content.payload,
                    qos(content.qos),
                    content.retain,
                    will.expiry,
                );
                let delay = will.delay;
                let name = content.stamp.try_into().ok().and_then(names::name_of);
                let restored = Will {
                    message,
                    delay,
                    name,
                    due: None,
                    reserved: None,
                };
                own.will = Some((restored, will.due));
            }
            Op::Entry(entry) if entry.session == own.number => {
                let ids: Vec<u32> = entry.subscription_ids.iter().collect();
                self.waiting.push(Waiting {
                    message: entry.message,
                    subscription_ids: (!ids.is_empty()).then(|| ids.into()),
                    qos: qos(entry.qos),
                    retain: entry.retain,
                    number: entry.number.and_then(Number::from_parts),
                    entry: entry.entry,
                    sent: None,
                });
            }
            Op::Inflight {
                session,
                entry,
                packet_id,
                step,
            } if *session == own.number => {
                if let Some(last) = self.waiting.last_mut()
                    && last.entry == *entry
                {
                    last.sent = Some((*packet_id, *step));
                }
            }
            _ => {}
        }
    }

    fn empty(&self) -> Arc<Message> {
        let content = Content {
            topic: "",
            properties: &[],
            payload: &[],
            publisher: 0,
            qos: 0,
            retain: false,
            expires: None,
            stamp: &[],
        };
        self.message(0, &content)
    }
}

impl RestoredSession {
    fn new(session: &SessionOp<'_>) -> Self {
        Self {
            number: session.session,
            client_id: session.client_id.into(),
            user: session.user.map(Into::into),
            expiry: session.expiry,
            detached: session.detached,
            next_packet_id: session.next_packet_id,
            subscriptions: Vec::new(),
            members: Vec::new(),
            replays: Replays::default(),
            classes: None,
            received: Vec::new(),
            will: None,
            entries: Vec::new(),
            history: history::Restored::default(),
        }
    }

    /// A session with the same number, client and user, and nothing else.
    fn continued(&self) -> Self {
        Self::new(&SessionOp {
            session: self.number,
            client_id: &self.client_id,
            user: self.user.as_deref(),
            version: 0,
            expiry: self.expiry,
            detached: self.detached,
            next_packet_id: self.next_packet_id,
        })
    }

    /// The index of the shard for this session, of that many shards.
    pub fn home(&self, shards: u16) -> u16 {
        match peer_of(&self.client_id) {
            Some(_) => 0,
            // Session, copies and stubs of a client are on one shard.
            None => {
                let client = punctual_model::digest(self.client_id.bytes());
                (client % u64::from(shards.max(1))) as u16
            }
        }
    }

    fn subscribe(&mut self, subscription: &SubscriptionOp<'_>) {
        let options = SubscribeOptions::from_byte(subscription.options, Version::V5);
        // A broker does not store an invalid subscription.
        let (Ok(options), Ok(())) = (options, topic::validate_filter(subscription.filter)) else {
            return;
        };
        let shared = topic::split_share(subscription.filter).0.is_some();
        let is_own = subscription.filter == BEHIND || subscription.filter.starts_with(AWAITED);
        if (shared || is_own) && peer_of(&self.client_id).is_some() {
            let brokers = std::str::from_utf8(subscription.properties).unwrap_or_default();
            let brokers = brokers.split(BETWEEN).map(Into::into).collect();
            self.members.push((subscription.filter.into(), brokers));
            return;
        }
        let flags = subscription.properties.first().copied().unwrap_or(0);
        self.classes = subscription.properties.get(1).copied().or(self.classes);
        let mut subscription = Subscription {
            filter: subscription.filter.into(),
            options,
            id: subscription.id.unwrap_or(0),
            numbered: flags & NUMBERED != 0,
            demoted: flags & DEMOTED != 0,
            persistent: false,
            replay: 0,
            reserved: None,
        };
        if flags & OWED != 0 {
            // All retained messages that are still to be sent count as older than the subscription.
            self.replays.begin(&mut subscription, u64::MAX, 0);
        }
        self.subscriptions.push(subscription);
    }
}

/// Upper bound of the number of uncommitted messages: the bound of uncommitted bytes allows far
/// fewer.
const MOST_UNCOMMITTED: u64 = 1 << 24;

impl Directory {
    /// Raises all counters, so that numbers of before the restart are not used again.
    fn resume(&self, highest: HighestNumbers) {
        let raise = |next: &AtomicU64, highest: u64| {
            next.fetch_max(highest.saturating_add(1), Ordering::Relaxed);
        };
        raise(&self.next_number, highest.session);
        // Numbers of uncommitted messages are not used again, either: they are part of names that
        // were sent.
        let message = match highest.message {
            0 => 0,
            highest => highest.saturating_add(MOST_UNCOMMITTED),
        };
        raise(&self.next_message, message);
        raise(&self.next_entry, highest.entry);
        self.retained_mut().raise_version(highest.version);
    }
}

/// The slot of a restored session, its subscriptions, and the brokers behind it if it is a
/// neighbour's.
pub(crate) type PlacedSession = (u32, Vec<Subscription>, Vec<(Box<str>, Vec<Box<str>>)>);

/// Largest number of subscriptions of a session for which the subscription of each message is
/// determined.
const MOST_MATCHED: usize = 64;

/// The sign of the shared subscription that matched a message, if that is the only subscription of
/// the session that matches; otherwise 0.
fn share_of(subscriptions: &[Subscription], delivery: &Delivery) -> u32 {
    let name = delivery.message.topic();
    let filters = subscriptions.iter().map(|it| &it.filter);
    let mut filters = filters.filter(|it| topic::matches(topic::split_share(it).1, name));
    match (filters.next(), filters.next()) {
        (Some(only), None) if only.starts_with(topic::SHARE_PREFIX) => sign(only),
        _ => 0,
    }
}

/// A message in flight: its packet identifier, the step of the handshake that it waits for, and the
/// delivery.
pub(crate) type InFlight = (u16, Step, Delivery);

/// Puts restored messages into the queue of a session; returns the messages in flight.
pub(crate) fn queue_entries(
    session: &mut Session,
    subscriptions: &[Subscription],
    entries: Vec<RestoredEntry>,
    now: Nanos,
) -> Vec<InFlight> {
    let mut in_flight = Vec::new();
    let shares =
        subscriptions.len() <= MOST_MATCHED && subscriptions.iter().any(Subscription::is_shared);
    for RestoredEntry { mut delivery, sent } in entries {
        if !session.durable {
            delivery.entry = 0;
        }
        if session.handle.link {
            delivery.number = delivery.number.map(Number::as_name);
        } else if shares {
            delivery.share = share_of(subscriptions, &delivery);
        }
        let (packet_id, step) = match sent {
            None => {
                session.queue.push(delivery, now);
                continue;
            }
            Some((packet_id, true)) => (packet_id, Step::Comp),
            Some((packet_id, false)) => (packet_id, first_step(delivery.qos)),
        };
        in_flight.push((packet_id, step, delivery));
    }
    in_flight
}

/// Removes the entries of a session for messages of which it has another entry, and returns their
/// numbers. The shard of a publisher emits entries for sessions of other shards, which may have
/// received the message before by another path, and then discard the entry. If the broker is killed
/// between these commits, there are two entries.
pub(crate) fn remove_duplicates(entries: &mut Vec<RestoredEntry>) -> Vec<u64> {
    // A message that was sent keeps its packet identifier.
    let sent = entries.iter().filter(|it| it.sent.is_some());
    let mut names: HashSet<u64, foldhash::fast::RandomState> =
        sent.map(|it| it.delivery.message.name).collect();
    let is_duplicate = |it: &mut RestoredEntry| {
        let name = it.delivery.message.name;
        name != 0 && it.sent.is_none() && !names.insert(name)
    };
    let duplicates = entries.extract_if(.., is_duplicate);
    duplicates.map(|it| it.delivery.entry).collect()
}

fn qos(bits: u8) -> QoS {
    QoS::from_bits(bits).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(entry: u64, name: u64, sent: Option<(u16, bool)>) -> RestoredEntry {
        let mut delivery = Delivery::example(entry);
        delivery.message = delivery.message.called(name);
        RestoredEntry { delivery, sent }
    }

    #[test]
    fn a_message_of_which_there_are_two_entries_keeps_the_one_that_was_sent() {
        let mut entries = vec![
            entry(1, 7, None),
            entry(2, 8, Some((5, false))),
            entry(3, 7, None),
            entry(4, 0, None),
            entry(5, 0, None),
            entry(6, 8, None),
            entry(7, 9, None),
            entry(8, 9, Some((6, true))),
        ];
        assert_eq!(remove_duplicates(&mut entries), [3, 6, 7]);
        let left = entries.iter().map(|it| it.delivery.entry);
        assert_eq!(left.collect::<Vec<u64>>(), [1, 2, 4, 5, 8]);
    }
}
