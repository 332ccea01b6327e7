//! An application message that outlives the buffer in which it arrived: queued, in flight,
//! retained, or being sent to another shard. It is stored once, however many receivers it has.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use punctual_codec::{Properties, PropertyId, PropertySet, Publish, QoS, varint_len};

use crate::Nanos;
use crate::egress::{OutBuf, Pool, SHARE_FROM, Stamp};
use crate::sequence::Number;
use crate::watch::Watch;

/// Maximum number of bytes that a message holds in its own allocation.
const MOST_WITHIN: usize = 1024;
/// Maximum number of messages of one shard that are kept for reuse.
const REUSED: usize = 1024;
/// Maximum number of messages that are made before the next search for a reusable one.
const LONGEST_PAUSE: u32 = 63;

/// Bytes of a message that do not fit into its own allocation.
#[derive(Debug, Clone)]
enum Apart {
    /// Owned by the message, and reused for a later one.
    Own(Vec<u8>),
    /// Shared by the receivers to which they are written.
    Shared(Bytes),
}

/// A message, immutable once made.
///
/// Thousands of messages may wait, each in memory that was not accessed recently. So messages of a
/// common size are one piece of memory, with space (`B`) for topic, forwarded properties and
/// payload at its end; the other fields that are read when a plain message is sent are at its
/// start.
#[derive(Debug)]
#[repr(C)]
pub struct Message<B: ?Sized = [u8]> {
    /// The bytes, if they do not fit into `bytes`.
    apart: Option<Box<Apart>>,
    topic_len: u32,
    properties_len: u32,
    /// Length of topic, properties and payload.
    len: u32,
    /// Quality of service with which it was published.
    pub qos: QoS,
    /// Whether it was published with the retain flag.
    pub retain: bool,
    /// The time at which it expires; [`Nanos::MAX`] for never.
    pub expires: Nanos,
    /// Its rank and deadline.
    pub stamp: Stamp,
    /// Identity of the publishing session, for No Local; 0 for the broker.
    pub publisher: u64,
    /// The admitted flow to which it belongs.
    pub(crate) watch: Option<Arc<Watch>>,
    /// Its number in the store; 0 for none.
    pub(crate) stored: u64,
    /// Its name in the mesh, as [`MessageName::key`]; 0 for none.
    pub(crate) name: u64,
    /// Topic, forwarded properties and payload, one after the other, and unused space.
    bytes: B,
}

/// Bytes before a message in its allocation: the counters of [`Arc`].
const COUNTERS: usize = 2 * size_of::<usize>();
const _: () = assert!(COUNTERS + std::mem::offset_of!(Message<[u8; 0]>, stamp) < 64);

/// The attributes of a publication beside its bytes.
#[derive(Debug, Clone)]
pub(crate) struct Traits {
    pub(crate) qos: QoS,
    pub(crate) retain: bool,
    pub(crate) expires: Nanos,
    pub(crate) publisher: u64,
    pub(crate) stamp: Stamp,
    pub(crate) watch: Option<Arc<Watch>>,
    pub(crate) stored: u64,
    pub(crate) name: u64,
}

/// Topic, forwarded properties and payload.
type Pieces<'a> = [&'a [u8]; 3];

impl Message {
    /// Copies a publication. Topic Alias and Message Expiry Interval are left
    /// out of the stored properties; everything else is kept byte for byte.
    pub fn new(
        topic: &[u8],
        properties: Properties<'_>,
        payload: &[u8],
        qos: QoS,
        retain: bool,
        now: Nanos,
        publisher: u64,
    ) -> Arc<Self> {
        let mut forwarded = Vec::new();
        put_forwarded(properties, &mut forwarded);
        let traits = Traits {
            qos,
            retain,
            expires: expiry(properties.number(PropertyId::MessageExpiryInterval), now),
            publisher,
            stamp: Stamp::PLAIN,
            watch: None,
            stored: 0,
            name: 0,
        };
        Self::from_pieces([topic, &forwarded, payload], traits)
    }

    /// Copies a publication that is being routed.
    pub(crate) fn from_parts(parts: &Parts<'_>, traits: Traits) -> Arc<Self> {
        Self::from_pieces(parts.pieces(), traits)
    }

    fn from_pieces(pieces: Pieces<'_>, traits: Traits) -> Arc<Self> {
        match length(pieces) {
            0..=32 => Self::within::<32>(pieces, traits),
            33..=64 => Self::within::<64>(pieces, traits),
            65..=96 => Self::within::<96>(pieces, traits),
            97..=128 => Self::within::<128>(pieces, traits),
            129..=192 => Self::within::<192>(pieces, traits),
            193..=256 => Self::within::<256>(pieces, traits),
            257..=384 => Self::within::<384>(pieces, traits),
            385..=512 => Self::within::<512>(pieces, traits),
            513..=768 => Self::within::<768>(pieces, traits),
            769..=MOST_WITHIN => Self::within::<MOST_WITHIN>(pieces, traits),
            _ => {
                let bytes = pieces.concat();
                let apart = match pieces[2].len() >= SHARE_FROM {
                    true => Apart::Shared(bytes.into()),
                    false => Apart::Own(bytes),
                };
                Self::around(pieces, Some(apart), [], traits)
            }
        }
    }

    fn within<const ROOM: usize>(pieces: Pieces<'_>, traits: Traits) -> Arc<Self> {
        let mut bytes = [0; ROOM];
        put_pieces(pieces, &mut bytes);
        Self::around(pieces, None, bytes, traits)
    }

    /// A message with the lengths of `pieces`, which are in `apart` or in `bytes`.
    #[inline]
    fn around<const ROOM: usize>(
        pieces: Pieces<'_>,
        apart: Option<Apart>,
        bytes: [u8; ROOM],
        traits: Traits,
    ) -> Arc<Self> {
        let Traits {
            qos,
            retain,
            expires,
            publisher,
            stamp,
            watch,
            stored,
            name,
        } = traits;
        Arc::new(Message {
            apart: apart.map(Box::new),
            topic_len: pieces[0].len() as u32,
            properties_len: pieces[1].len() as u32,
            len: length(pieces) as u32,
            qos,
            retain,
            expires,
            stamp,
            publisher,
            watch,
            stored,
            name,
            bytes,
        })
    }

    /// The same message with other traits; shared bytes stay shared.
    fn with(&self, traits: Traits) -> Arc<Self> {
        match self.apart.as_deref() {
            Some(apart @ Apart::Shared(_)) => {
                Self::around(self.pieces(), Some(apart.clone()), [], traits)
            }
            _ => Self::from_pieces(self.pieces(), traits),
        }
    }

    /// Whether [`Self::fill`] accepts that many bytes.
    fn has_room_for(&self, len: usize) -> bool {
        match self.apart.as_deref() {
            None => len <= self.bytes.len(),
            Some(Apart::Own(_)) => len > MOST_WITHIN,
            Some(Apart::Shared(_)) => false,
        }
    }

    /// Turns the message into another one that fits into its memory.
    #[inline]
    fn fill(&mut self, pieces: Pieces<'_>, traits: Traits) {
        match self.apart.as_deref_mut() {
            Some(Apart::Own(bytes)) => {
                bytes.clear();
                for piece in pieces {
                    bytes.extend_from_slice(piece);
                }
            }
            _ => put_pieces(pieces, &mut self.bytes),
        }
        self.topic_len = pieces[0].len() as u32;
        self.properties_len = pieces[1].len() as u32;
        self.len = length(pieces) as u32;
        self.qos = traits.qos;
        self.retain = traits.retain;
        self.expires = traits.expires;
        self.stamp = traits.stamp;
        self.publisher = traits.publisher;
        self.watch = traits.watch;
        self.stored = traits.stored;
        self.name = traits.name;
    }

    fn data(&self) -> &[u8] {
        match self.apart.as_deref() {
            None => &self.bytes[..self.len as usize],
            Some(Apart::Own(bytes)) => bytes,
            Some(Apart::Shared(bytes)) => bytes,
        }
    }

    /// The attributes of the message, without its flow.
    fn traits(&self) -> Traits {
        Traits {
            qos: self.qos,
            retain: self.retain,
            expires: self.expires,
            publisher: self.publisher,
            stamp: self.stamp,
            watch: None,
            stored: self.stored,
            name: self.name,
        }
    }

    fn pieces(&self) -> Pieces<'_> {
        let (topic, rest) = self.data().split_at(self.topic_len as usize);
        let (properties, payload) = rest.split_at(self.properties_len as usize);
        [topic, properties, payload]
    }

    /// A will message: `expires` is an interval until [`Self::published_at`].
    pub(crate) fn will(
        topic: &str,
        properties: &[u8],
        payload: &[u8],
        qos: QoS,
        retain: bool,
        expiry: Option<u32>,
    ) -> Arc<Self> {
        let parts = Parts {
            topic: topic.as_bytes(),
            properties,
            expiry: None,
            payload,
            shared: None,
        };
        let traits = Traits {
            qos,
            retain,
            expires: expiry.map_or(Nanos::MAX, |secs| Nanos::from_secs(u64::from(secs))),
            publisher: 0,
            stamp: Stamp::PLAIN,
            watch: None,
            stored: 0,
            name: 0,
        };
        Self::from_parts(&parts, traits)
    }

    /// The same message published at `now`, when `expires` is still an
    /// interval; for wills.
    pub(crate) fn published_at(&self, now: Nanos, stamp: Stamp) -> Arc<Self> {
        let expires = match self.expires {
            Nanos::MAX => Nanos::MAX,
            interval => now + interval,
        };
        self.with(Traits {
            expires,
            stamp,
            ..self.traits()
        })
    }

    /// The same message with that name.
    pub(crate) fn called(&self, name: u64) -> Arc<Self> {
        self.with(Traits {
            name,
            ..self.traits()
        })
    }

    /// The same message with that number in the store.
    pub(crate) fn stored_as(&self, stored: u64) -> Arc<Self> {
        self.with(Traits {
            stored,
            publisher: 0,
            ..self.traits()
        })
    }

    /// The message as it is retained: without a deadline, which will have passed when a client
    /// subscribes.
    pub(crate) fn to_be_retained(self: &Arc<Self>) -> Arc<Self> {
        let timeless = self.stamp.deadline == Nanos::MAX && !self.stamp.drop_late;
        if timeless && self.watch.is_none() {
            return self.clone();
        }
        self.with(Traits {
            stamp: Stamp {
                deadline: Nanos::MAX,
                drop_late: false,
                ..self.stamp
            },
            ..self.traits()
        })
    }

    /// Topic name; valid.
    pub fn topic(&self) -> &str {
        std::str::from_utf8(self.topic_bytes()).unwrap_or_default()
    }

    pub(crate) fn topic_bytes(&self) -> &[u8] {
        self.pieces()[0]
    }

    /// Properties to forward, without alias and expiry.
    pub fn properties(&self) -> Properties<'_> {
        Properties::check(self.pieces()[1], PropertySet::PUBLISH).unwrap_or_default()
    }

    /// Application message.
    pub fn payload(&self) -> &[u8] {
        self.pieces()[2]
    }

    /// Size in bytes, as the bounds count it.
    #[inline]
    pub fn size(&self) -> usize {
        self.len as usize
    }

    /// Whether it has expired.
    #[inline]
    pub fn is_expired(&self, now: Nanos) -> bool {
        self.expires <= now
    }

    /// The parts to encode at `now`.
    pub(crate) fn parts(&self, now: Nanos) -> Parts<'_> {
        let [topic, properties, payload] = self.pieces();
        Parts {
            topic,
            properties,
            expiry: (self.expires < Nanos::MAX).then(|| (self.expires - now).as_secs_ceil() as u32),
            payload,
            shared: match self.apart.as_deref() {
                Some(Apart::Shared(bytes)) => Some(bytes.slice(topic.len() + properties.len()..)),
                _ => None,
            },
        }
    }
}

fn length(pieces: Pieces<'_>) -> usize {
    pieces.iter().map(|piece| piece.len()).sum()
}

/// Writes the pieces one after the other; `room` must be large enough.
fn put_pieces(pieces: Pieces<'_>, mut room: &mut [u8]) {
    for piece in pieces {
        // Most have no properties.
        if !piece.is_empty() {
            let (at, rest) = room.split_at_mut(piece.len());
            at.copy_from_slice(piece);
            room = rest;
        }
    }
}

/// Reuses small messages that have no holder any more, so that keeping one costs no allocation as
/// long as messages are released in the order in which they were made.
#[derive(Debug, Default)]
pub(crate) struct Messages {
    list: VecDeque<Arc<Message>>,
    /// Messages returned by their only holder.
    free: Vec<Arc<Message>>,
    /// Number of messages to be made before the first is checked again.
    pause: u32,
    /// Length of the last such pause; 0 since a message could be reused.
    last_pause: u32,
}

impl Messages {
    /// Copies a publication for one receiver, which may [give it back](Self::give_back).
    #[inline]
    pub(crate) fn make_for_one(&mut self, parts: &Parts<'_>, traits: Traits) -> Arc<Message> {
        let pieces = parts.pieces();
        if parts.payload.len() < MOST_WITHIN
            && let Some(mut arc) = self.free.pop()
            && let Some(message) = Arc::get_mut(&mut arc)
            && message.has_room_for(length(pieces))
        {
            message.fill(pieces, traits);
            return arc;
        }
        Message::from_parts(parts, traits)
    }

    /// Takes back a message for reuse.
    #[inline]
    pub(crate) fn give_back(&mut self, message: Arc<Message>) {
        if Arc::strong_count(&message) == 1 && self.free.len() < REUSED && message.apart.is_none() {
            self.free.push(message);
        }
    }

    /// Copies a publication that is being routed.
    pub(crate) fn make(&mut self, parts: &Parts<'_>, traits: Traits) -> Arc<Message> {
        if self.pause > 0 {
            self.pause -= 1;
            return Message::from_parts(parts, traits);
        }
        let pieces = parts.pieces();
        if parts.payload.len() < SHARE_FROM
            && let Some(arc) = self.list.front_mut()
        {
            // The count first: asking for exclusive access takes a lock.
            if Arc::strong_count(arc) == 1
                && let Some(message) = Arc::get_mut(arc)
                && message.has_room_for(length(pieces))
            {
                message.fill(pieces, traits);
                let arc = arc.clone();
                self.list.rotate_left(1);
                self.last_pause = 0;
                return arc;
            }
            // This message may be held for long, and others not. Where thousands wait, though, each
            // check accesses distant memory in vain.
            self.list.rotate_left(1);
            if self.list.len() == REUSED {
                self.last_pause = (2 * self.last_pause + 1).min(LONGEST_PAUSE);
                self.pause = self.last_pause;
            }
        }
        let message = Message::from_parts(parts, traits);
        if parts.payload.len() < SHARE_FROM && self.list.len() < REUSED {
            self.list.push_back(message.clone());
        }
        message
    }
}

/// The time at which a publication with that Message Expiry Interval expires.
#[inline]
pub(crate) fn expiry(interval: Option<u32>, now: Nanos) -> Nanos {
    match interval {
        Some(secs) => now + Nanos::from_secs(u64::from(secs)),
        None => Nanos::MAX,
    }
}

/// Appends the properties that are forwarded unchanged: all but Topic Alias, which belongs to a
/// connection, and Message Expiry Interval, which changes.
pub(crate) fn put_forwarded(properties: Properties<'_>, out: &mut Vec<u8>) {
    if properties.contains(PropertyId::TopicAlias)
        || properties.contains(PropertyId::MessageExpiryInterval)
        || properties.contains(PropertyId::WillDelayInterval)
    {
        for property in properties.iter() {
            if !matches!(
                property.id,
                PropertyId::TopicAlias
                    | PropertyId::MessageExpiryInterval
                    | PropertyId::WillDelayInterval
            ) {
                out.extend_from_slice(property.bytes);
            }
        }
    } else {
        out.extend_from_slice(properties.as_bytes());
    }
}

/// The content of a PUBLISH to a subscriber.
#[derive(Debug, Clone)]
pub(crate) struct Parts<'a> {
    pub(crate) topic: &'a [u8],
    /// Encoded, without alias and expiry.
    pub(crate) properties: &'a [u8],
    /// Remaining Message Expiry Interval in seconds.
    pub(crate) expiry: Option<u32>,
    pub(crate) payload: &'a [u8],
    /// The payload again, if it is to be shared rather than copied.
    pub(crate) shared: Option<Bytes>,
}

/// The form of a PUBLISH to one subscriber.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Form<'a> {
    pub(crate) v5: bool,
    pub(crate) dup: bool,
    pub(crate) qos: QoS,
    pub(crate) retain: bool,
    pub(crate) packet_id: u16,
    pub(crate) subscription_ids: &'a [u32],
    pub(crate) number: Option<Number>,
    /// Topic alias, and whether the topic itself is left out.
    pub(crate) alias: Option<(u16, bool)>,
}

impl<'a> Parts<'a> {
    fn pieces(&self) -> Pieces<'a> {
        [self.topic, self.properties, self.payload]
    }

    /// Length of the properties, and of the whole packet.
    #[inline]
    fn lengths(&self, form: &Form<'_>) -> (usize, usize, usize) {
        let topic = match form.alias {
            Some((_, true)) => 0,
            _ => self.topic.len(),
        };
        let mut body = 2 + topic + self.payload.len();
        if form.qos != QoS::AtMostOnce {
            body += 2;
        }
        let mut properties = 0;
        if form.v5 {
            properties = self.properties.len();
            if self.expiry.is_some() {
                properties += 5;
            }
            if form.alias.is_some() {
                properties += 3;
            }
            for id in form.subscription_ids {
                properties += 1 + varint_len(*id as usize);
            }
            properties += form.number.map_or(0, Number::encoded_len);
            body += varint_len(properties) + properties;
        }
        (properties, body, 1 + varint_len(body) + body)
    }

    /// Appends the PUBLISH, unless it exceeds `max` bytes; returns whether it was appended.
    #[inline]
    pub(crate) fn put(&self, form: &Form<'_>, max: u32, out: &mut OutBuf, pool: &mut Pool) -> bool {
        let (properties, body, total) = self.lengths(form);
        if total > max as usize {
            return false;
        }
        let buffer = out.tail(pool);
        buffer.reserve(total.min(64 << 10));
        buffer.push(Publish::first_byte(form.dup, form.qos, form.retain));
        punctual_codec::put_varint(buffer, body);
        let topic = match form.alias {
            Some((_, true)) => &[][..],
            _ => self.topic,
        };
        buffer.extend_from_slice(&(topic.len() as u16).to_be_bytes());
        buffer.extend_from_slice(topic);
        if form.qos != QoS::AtMostOnce {
            buffer.extend_from_slice(&form.packet_id.to_be_bytes());
        }
        if form.v5 {
            punctual_codec::put_varint(buffer, properties);
            buffer.extend_from_slice(self.properties);
            if let Some(expiry) = self.expiry {
                buffer.push(PropertyId::MessageExpiryInterval as u8);
                buffer.extend_from_slice(&expiry.to_be_bytes());
            }
            if let Some((alias, _)) = form.alias {
                buffer.push(PropertyId::TopicAlias as u8);
                buffer.extend_from_slice(&alias.to_be_bytes());
            }
            for id in form.subscription_ids {
                buffer.push(PropertyId::SubscriptionIdentifier as u8);
                punctual_codec::put_varint(buffer, *id as usize);
            }
            if let Some(number) = form.number {
                number.encode(buffer);
            }
        }
        match &self.shared {
            Some(payload) => out.splice(payload.clone()),
            None => buffer.extend_from_slice(self.payload),
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn made(messages: &mut Messages, topic: &[u8], payload: &[u8]) -> Arc<Message> {
        let parts = Parts {
            topic,
            properties: &[38, 0, 1, b'k', 0, 1, b'v'],
            expiry: None,
            payload,
            shared: None,
        };
        let traits = Traits {
            qos: QoS::AtLeastOnce,
            retain: false,
            expires: Nanos::MAX,
            publisher: 7,
            stamp: Stamp::PLAIN,
            watch: None,
            stored: 0,
            name: 0,
        };
        messages.make(&parts, traits)
    }

    fn check(message: &Message, topic: &[u8], payload: &[u8]) {
        assert_eq!(message.topic_bytes(), topic);
        assert_eq!(message.properties().as_bytes().len(), 7);
        assert_eq!(message.payload(), payload);
        assert_eq!(message.size(), topic.len() + 7 + payload.len());
        let parts = message.parts(Nanos::from_secs(0));
        assert_eq!((parts.topic, parts.payload), (topic, payload));
        assert_eq!(parts.shared.is_some(), payload.len() >= SHARE_FROM);
    }

    proptest! {
        /// Checks the content of messages of all sizes, whether or not earlier messages are still
        /// held.
        #[test]
        fn messages_hold_what_they_are_made_of(
            sizes in proptest::collection::vec((1..40_usize, 0..1300_usize, any::<bool>()), 1..40),
            large in SHARE_FROM - 2..SHARE_FROM + 2,
        ) {
            let mut messages = Messages::default();
            let mut held = Vec::new();
            let sizes = sizes.into_iter().chain([(1, large, true)]);
            for (i, (topic, payload, hold)) in sizes.enumerate() {
                let (topic, payload) = (vec![b'a'; topic], vec![i as u8; payload]);
                let message = made(&mut messages, &topic, &payload);
                check(&message, &topic, &payload);
                let later = message.published_at(Nanos::from_secs(1), Stamp::PLAIN);
                check(&later, &topic, &payload);
                if hold {
                    held.push((message, topic, payload));
                }
            }
            for (message, topic, payload) in &held {
                check(message, topic, payload);
            }
        }
    }
}
