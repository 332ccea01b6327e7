//! An application message that outlives the buffer it arrived in: queued, in
//! flight, retained, or on its way to another shard. Stored once however many
//! receivers it has.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use punctual_codec::{Properties, PropertyId, PropertySet, Publish, QoS, varint_len};

use crate::Nanos;
use crate::egress::{OutBuf, Pool, SHARE_FROM, Stamp};
use crate::sequence::Number;
use crate::watch::Watch;

/// Messages of one shard that are used again.
const REUSED: usize = 1024;
/// Messages that are made at most without looking whether one can be used
/// again.
const LONGEST_PAUSE: u32 = 63;

/// Bytes of a message.
#[derive(Debug, Clone)]
enum Data {
    /// Small, and used again for a later message.
    Own(Vec<u8>),
    /// Large, and shared by those it is written to; boxed, so that it does not
    /// push what every delivery reads out of the first cache line.
    Shared(Box<Bytes>),
}

impl Data {
    fn new(bytes: Vec<u8>, payload: usize) -> Self {
        match payload >= SHARE_FROM {
            true => Self::Shared(Box::new(bytes.into())),
            false => Self::Own(bytes),
        }
    }
}

impl std::ops::Deref for Data {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        match self {
            Self::Own(bytes) => bytes,
            Self::Shared(bytes) => bytes,
        }
    }
}

/// A message, immutable once made.
///
/// In this order because thousands may wait, each in memory that was not looked
/// at for long: sending a plain one reads up to the class in `stamp`, which
/// makes, with the counters before it, 64 bytes.
#[derive(Debug)]
#[repr(C)]
pub struct Message {
    /// Topic, forwarded properties and payload, one after the other.
    data: Data,
    topic_len: u32,
    properties_len: u32,
    /// When it expires; [`Nanos::MAX`] for never.
    pub expires: Nanos,
    /// How urgent it is.
    pub stamp: Stamp,
    /// Identity of the publishing session, for No Local; 0 for the broker.
    pub publisher: u64,
    /// Quality of service it was published with.
    pub qos: QoS,
    /// Whether it was published with the retain flag.
    pub retain: bool,
    /// The admitted flow that it is of.
    pub(crate) watch: Option<Arc<Watch>>,
    /// Its number in the store; 0 for none.
    pub(crate) stored: u64,
}

/// Bytes before a message where it is kept: the counters of [`Arc`].
const COUNTERS: usize = 2 * size_of::<usize>();
const _: () = assert!(COUNTERS + std::mem::offset_of!(Message, stamp) < 64);

/// What is known of a publication beside its bytes.
#[derive(Debug, Clone)]
pub(crate) struct Traits {
    pub(crate) qos: QoS,
    pub(crate) retain: bool,
    pub(crate) expires: Nanos,
    pub(crate) publisher: u64,
    pub(crate) stamp: Stamp,
    pub(crate) watch: Option<Arc<Watch>>,
    pub(crate) stored: u64,
}

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
        let mut data =
            Vec::with_capacity(topic.len() + properties.as_bytes().len() + payload.len());
        data.extend_from_slice(topic);
        put_forwarded(properties, &mut data);
        let properties_len = (data.len() - topic.len()) as u32;
        data.extend_from_slice(payload);
        Arc::new(Self {
            data: Data::new(data, payload.len()),
            topic_len: topic.len() as u32,
            properties_len,
            qos,
            retain,
            expires: expiry(properties.number(PropertyId::MessageExpiryInterval), now),
            publisher,
            stamp: Stamp::PLAIN,
            watch: None,
            stored: 0,
        })
    }

    /// Copies a publication that is being routed.
    pub(crate) fn from_parts(parts: &Parts<'_>, traits: Traits) -> Arc<Self> {
        let Traits {
            qos,
            retain,
            expires,
            publisher,
            stamp,
            watch,
            stored,
        } = traits;
        let data = [parts.topic, parts.properties, parts.payload].concat();
        Arc::new(Self {
            data: Data::new(data, parts.payload.len()),
            topic_len: parts.topic.len() as u32,
            properties_len: parts.properties.len() as u32,
            qos,
            retain,
            expires,
            publisher,
            stamp,
            watch,
            stored,
        })
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
        };
        Self::from_parts(&parts, traits)
    }

    /// The same message published at `now`, when `expires` is still an
    /// interval; for wills.
    pub(crate) fn published_at(&self, now: Nanos, stamp: Stamp) -> Arc<Self> {
        Arc::new(Self {
            data: self.data.clone(),
            stamp,
            watch: None,
            expires: if self.expires == Nanos::MAX {
                Nanos::MAX
            } else {
                now + self.expires
            },
            ..*self
        })
    }

    /// The message as it is retained: without a deadline, which is over when
    /// someone subscribes.
    pub(crate) fn to_be_retained(self: &Arc<Self>) -> Arc<Self> {
        let timeless = self.stamp.deadline == Nanos::MAX && !self.stamp.drop_late;
        if timeless && self.watch.is_none() {
            return self.clone();
        }
        Arc::new(Self {
            data: self.data.clone(),
            stamp: Stamp {
                deadline: Nanos::MAX,
                drop_late: false,
                ..self.stamp
            },
            watch: None,
            ..**self
        })
    }

    /// Topic name; valid.
    pub fn topic(&self) -> &str {
        std::str::from_utf8(self.topic_bytes()).unwrap_or_default()
    }

    pub(crate) fn topic_bytes(&self) -> &[u8] {
        &self.data[..self.topic_len as usize]
    }

    /// Properties to forward, without alias and expiry.
    pub fn properties(&self) -> Properties<'_> {
        let end = (self.topic_len + self.properties_len) as usize;
        Properties::check(
            &self.data[self.topic_len as usize..end],
            PropertySet::PUBLISH,
        )
        .unwrap_or_default()
    }

    /// Application message.
    pub fn payload(&self) -> &[u8] {
        &self.data[(self.topic_len + self.properties_len) as usize..]
    }

    /// Bytes it occupies, as the bounds count them.
    pub fn size(&self) -> usize {
        self.data.len()
    }

    /// Whether it has expired.
    #[inline]
    pub fn is_expired(&self, now: Nanos) -> bool {
        self.expires <= now
    }

    /// The parts to encode at `now`.
    pub(crate) fn parts(&self, now: Nanos) -> Parts<'_> {
        let (topic_len, end) = (
            self.topic_len as usize,
            (self.topic_len + self.properties_len) as usize,
        );
        Parts {
            topic: &self.data[..topic_len],
            properties: &self.data[topic_len..end],
            expiry: (self.expires < Nanos::MAX).then(|| (self.expires - now).as_secs_ceil() as u32),
            payload: &self.data[end..],
            shared: match &self.data {
                Data::Shared(data) => Some(data.slice(end..)),
                Data::Own(_) => None,
            },
        }
    }
}

/// Small messages that nobody holds any more are made into new ones, so that
/// keeping one costs no allocation as long as they are given up in the order
/// in which they were made.
#[derive(Debug, Default)]
pub(crate) struct Messages {
    list: VecDeque<Arc<Message>>,
    /// Messages that are made before the first is looked at again.
    pause: u32,
    /// Length of the last such pause; 0 since one could be used again.
    last_pause: u32,
}

impl Messages {
    /// Copies a publication that is being routed.
    pub(crate) fn make(&mut self, parts: &Parts<'_>, traits: Traits) -> Arc<Message> {
        if self.pause > 0 {
            self.pause -= 1;
            return Message::from_parts(parts, traits);
        }
        if parts.payload.len() < SHARE_FROM
            && let Some(arc) = self.list.front_mut()
        {
            // The count first: asking for exclusive access takes a lock.
            if Arc::strong_count(arc) == 1
                && let Some(message) = Arc::get_mut(arc)
                && let Data::Own(data) = &mut message.data
            {
                data.clear();
                data.extend_from_slice(parts.topic);
                data.extend_from_slice(parts.properties);
                data.extend_from_slice(parts.payload);
                message.topic_len = parts.topic.len() as u32;
                message.properties_len = parts.properties.len() as u32;
                message.qos = traits.qos;
                message.retain = traits.retain;
                message.expires = traits.expires;
                message.publisher = traits.publisher;
                message.stamp = traits.stamp;
                message.watch = traits.watch;
                message.stored = traits.stored;
                let arc = arc.clone();
                self.list.rotate_left(1);
                self.last_pause = 0;
                return arc;
            }
            // Perhaps it is held for long, and others are not. Where thousands
            // wait, though, each look is at memory that is far away and in
            // vain.
            self.list.rotate_left(1);
            if self.list.len() == REUSED {
                self.last_pause = (2 * self.last_pause + 1).min(LONGEST_PAUSE);
                self.pause = self.last_pause;
            }
        }
        let message = Message::from_parts(parts, traits);
        if matches!(message.data, Data::Own(_)) && self.list.len() < REUSED {
            self.list.push_back(message.clone());
        }
        message
    }
}

/// When a publication with that Message Expiry Interval expires.
#[inline]
pub(crate) fn expiry(interval: Option<u32>, now: Nanos) -> Nanos {
    match interval {
        Some(secs) => now + Nanos::from_secs(u64::from(secs)),
        None => Nanos::MAX,
    }
}

/// Appends the properties that are forwarded as they are: all but Topic Alias,
/// which belongs to a connection, and Message Expiry Interval, which changes.
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

/// What a PUBLISH to a subscriber is made of.
#[derive(Debug, Clone)]
pub(crate) struct Parts<'a> {
    pub(crate) topic: &'a [u8],
    /// Encoded, without alias and expiry.
    pub(crate) properties: &'a [u8],
    /// Remaining seconds.
    pub(crate) expiry: Option<u32>,
    pub(crate) payload: &'a [u8],
    /// The payload again, if it is to be shared rather than copied.
    pub(crate) shared: Option<Bytes>,
}

/// How a PUBLISH goes to one subscriber.
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

impl Parts<'_> {
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

    /// Appends the PUBLISH, unless it exceeds `max` bytes; says whether it did.
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
