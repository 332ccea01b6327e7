//! Operations: what changes in the state that survives a broker, and how that
//! is written.
//!
//! An operation is encoded as a tag and its fields (integers in base 128, the
//! low digits first and never longer than needed; bytes after their number); a
//! record puts the length and the checksum of that before it. Tags are never
//! used for something else: an operation that changes gets a new one, and the
//! format of the log that it is written to rises.
//!
//! Invariant: decoding an encoded operation gives the same operation, and encoding a
//! decoded one gives the same bytes.

use std::fmt::Debug;

/// Nanoseconds since the UNIX epoch.
pub type Wall = u64;

/// Bytes before each operation in a record: its length and its checksum.
pub const RECORD_HEADER: usize = 8;

/// A change of what survives.
///
/// Numbers of sessions, messages and entries are the broker's own, rise, and
/// never come again. Operations may be repeated. What names something that is
/// not there is remembered or ignored, as each one says; batches of different
/// shards may be applied in another order than they arose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op<'a> {
    /// A session exists with these properties; its subscriptions and entries stay.
    Session(SessionOp<'a>),
    /// A session and all that it has is gone.
    SessionEnd {
        /// Its number.
        session: u64,
    },
    /// A session subscribes; replaces one with the same filter.
    Subscription(SubscriptionOp<'a>),
    /// A session has unsubscribed.
    Unsubscription {
        /// Whose it was.
        session: u64,
        /// As it was subscribed, with `$share/`.
        filter: &'a str,
    },
    /// The content that entries and retained messages refer to. It is kept
    /// while something refers to it, and given up at the end of the group in
    /// which it came if nothing does.
    Message {
        /// Its number.
        message: u64,
        /// The content.
        content: Content<'a>,
    },
    /// A message waits for a session. It may come before its session, and is
    /// dropped at recovery if that or its message never came.
    Entry(EntryOp<'a>),
    /// A queued message was sent. The session's next packet identifier is the
    /// one after it (unless its `Done` comes in the same group: then neither
    /// need be kept). Before its entry it is remembered until that comes.
    Sent {
        /// The receiving session.
        session: u64,
        /// Number of the entry.
        entry: u64,
        /// With which packet identifier, from 1.
        packet_id: u16,
    },
    /// PUBREC arrived for a message that was sent: PUBREL is due, and the content is not
    /// needed any more. If it precedes its entry, it is remembered.
    Step {
        /// The publishing session.
        session: u64,
        /// Number of the entry.
        entry: u64,
    },
    /// A message is not queued for a session any more, for whatever reason. If it
    /// precedes its entry, it is remembered, and the entry is never stored.
    Done {
        /// Whose it was.
        session: u64,
        /// Number of the entry.
        entry: u64,
    },
    /// A publication with QoS 2 was accepted; replaces an earlier one with this
    /// identifier.
    Received {
        /// The publishing session.
        session: u64,
        /// Its packet identifier, from 1.
        packet_id: u16,
        /// Digest of topic and content, which distinguishes it from another publication
        /// with this identifier; 0 if unknown, which takes no space.
        gist: u32,
    },
    /// The publisher has released it.
    Released {
        /// The publishing session.
        session: u64,
        /// Its packet identifier, from 1.
        packet_id: u16,
    },
    /// A session has a will; replaces another.
    Will(WillOp<'a>),
    /// The will of a session was removed.
    WillGone {
        /// Whose it was.
        session: u64,
    },
    /// A message is retained on a topic, instead of another. Ignored if a higher
    /// version is known of the topic.
    Retain {
        /// On which topic.
        topic: &'a str,
        /// Number of the message.
        message: u64,
        /// Rises with each change of any retained message.
        version: u64,
    },
    /// The retained message of a topic was removed. Ignored if a higher version of the
    /// topic is known.
    RetainGone {
        /// On which topic.
        topic: &'a str,
        /// Rises with each change of any retained message.
        version: u64,
    },
    /// Something small under a key: a flow that is admitted, or, under keys that begin
    /// with `mesh/`, names of messages that came from neighbour brokers.
    Flow {
        /// Its key.
        key: &'a str,
        /// Whatever its owner wants to know again.
        value: &'a [u8],
    },
    /// That is over.
    FlowGone {
        /// Its key.
        key: &'a str,
    },
    /// State of a message that was sent; recovery passes it after its entry.
    Inflight {
        /// The receiving session.
        session: u64,
        /// Number of the entry.
        entry: u64,
        /// With which packet identifier, from 1. The session's next one stays.
        packet_id: u16,
        /// Whether PUBREC came.
        step: bool,
    },
    /// Numbers up to these have been used.
    Highest(HighestNumbers),
    /// A segment of the log, and those before it, have no live records: a missing file of
    /// them is no damage.
    GivenBack {
        /// Its number.
        segment: u32,
    },
}

/// A session, without its subscriptions and entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SessionOp<'a> {
    /// Its number.
    pub session: u64,
    /// The client that it is of.
    pub client_id: &'a str,
    /// User name of the client, by which its rights are decided.
    pub user: Option<&'a str>,
    /// Protocol level: 4 or 5.
    pub version: u8,
    /// Seconds that it outlives its connection; [`u32::MAX`] for ever.
    pub expiry: u32,
    /// Since when it has no connection.
    pub detached: Option<Wall>,
    /// What the next message sent to it will have, from 1.
    pub next_packet_id: u16,
}

/// A subscription.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SubscriptionOp<'a> {
    /// Whose.
    pub session: u64,
    /// As it was subscribed, with `$share/`.
    pub filter: &'a str,
    /// The options of SUBSCRIBE.
    pub options: u8,
    /// Subscription identifier.
    pub id: Option<u32>,
    /// Whatever else the core wants to know again.
    pub properties: &'a [u8],
}

/// The content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Content<'a> {
    /// On which topic.
    pub topic: &'a str,
    /// Encoded, as they are forwarded.
    pub properties: &'a [u8],
    /// Application message.
    pub payload: &'a [u8],
    /// Session of the publisher; 0 for the broker itself.
    pub publisher: u64,
    /// As published, 0 to 2.
    pub qos: u8,
    /// As published.
    pub retain: bool,
    /// When it expires.
    pub expires: Option<Wall>,
    /// Urgency, as the core writes it.
    pub stamp: &'a [u8],
}

/// A message that waits for a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EntryOp<'a> {
    /// The receiving session.
    pub session: u64,
    /// Its number, which rises broker-wide and is the order of the queue.
    pub entry: u64,
    /// Number of the message.
    pub message: u64,
    /// As it is to be sent, 0 to 2.
    pub qos: u8,
    /// As it is to be sent.
    pub retain: bool,
    /// Of the subscriptions that matched.
    pub subscription_ids: Ids<'a>,
    /// Source and count, where the subscriber asked for numbers.
    pub number: Option<(u32, u32)>,
}

/// The will of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WillOp<'a> {
    /// Whose.
    pub session: u64,
    /// Seconds between the loss of the connection and its publication.
    pub delay: u32,
    /// When it is to be published, once the connection is lost.
    pub due: Option<Wall>,
    /// Seconds after its publication that it is of use.
    pub expiry: Option<u32>,
    /// The message; `expires` is not set.
    pub content: Content<'a>,
}

/// The highest numbers that were ever used; 0 for none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct HighestNumbers {
    /// Of sessions.
    pub session: u64,
    /// Of messages.
    pub message: u64,
    /// Of entries.
    pub entry: u64,
    /// Versions of retained messages.
    pub version: u64,
}

impl HighestNumbers {
    /// Takes notice of the numbers in an operation.
    pub fn see(&mut self, op: &Op<'_>) {
        let raise = |highest: &mut u64, number: u64| *highest = (*highest).max(number);
        match *op {
            Op::Session(SessionOp { session, .. }) | Op::SessionEnd { session } => {
                raise(&mut self.session, session);
            }
            Op::Message { message, .. } => raise(&mut self.message, message),
            Op::Entry(EntryOp { entry, message, .. }) => {
                raise(&mut self.entry, entry);
                raise(&mut self.message, message);
            }
            Op::Sent { entry, .. }
            | Op::Step { entry, .. }
            | Op::Done { entry, .. }
            | Op::Inflight { entry, .. } => {
                raise(&mut self.entry, entry);
            }
            Op::Retain { version, .. } | Op::RetainGone { version, .. } => {
                raise(&mut self.version, version);
            }
            Op::Highest(other) => {
                raise(&mut self.session, other.session);
                raise(&mut self.message, other.message);
                raise(&mut self.entry, other.entry);
                raise(&mut self.version, other.version);
            }
            _ => {}
        }
    }
}

/// Subscription identifiers.
#[derive(Clone, Copy)]
pub struct Ids<'a>(IdsIn<'a>);

#[derive(Clone, Copy)]
enum IdsIn<'a> {
    Memory(&'a [u32]),
    /// Four bytes each.
    Record(&'a [u8]),
}

impl<'a> Ids<'a> {
    /// None.
    pub const NONE: Ids<'static> = Ids(IdsIn::Memory(&[]));

    /// One after the other.
    pub fn iter(self) -> impl Iterator<Item = u32> + 'a {
        let (memory, record): (&[u32], &[u8]) = match self.0 {
            IdsIn::Memory(ids) => (ids, &[]),
            IdsIn::Record(bytes) => (&[], bytes),
        };
        let encoded = record.as_chunks().0.iter().copied().map(u32::from_le_bytes);
        memory.iter().copied().chain(encoded)
    }

    /// How many.
    pub fn len(self) -> usize {
        match self.0 {
            IdsIn::Memory(ids) => ids.len(),
            IdsIn::Record(bytes) => bytes.len() / 4,
        }
    }

    /// Whether there are none.
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }
}

impl<'a> From<&'a [u32]> for Ids<'a> {
    fn from(ids: &'a [u32]) -> Self {
        Self(IdsIn::Memory(ids))
    }
}

impl Debug for Ids<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

impl PartialEq for Ids<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl Eq for Ids<'_> {}

/// Why bytes are not an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum OpError {
    /// They end too early.
    #[error("the record ends within its {0}")]
    Short(&'static str),
    /// Bytes follow the last field.
    #[error("{0} bytes too many")]
    Long(usize),
    /// A field has no such value.
    #[error("the {0} is not one")]
    Value(&'static str),
    /// Nothing is written like that by this version.
    #[error("there is no operation {0}")]
    Tag(u8),
    /// They have changed since they were written.
    #[error("the checksum is wrong")]
    Checksum,
}

mod tag {
    pub(super) const SESSION: u8 = 1;
    pub(super) const SESSION_END: u8 = 2;
    pub(super) const SUBSCRIPTION: u8 = 3;
    pub(super) const UNSUBSCRIPTION: u8 = 4;
    pub(super) const MESSAGE: u8 = 5;
    pub(super) const ENTRY: u8 = 6;
    pub(super) const SENT: u8 = 7;
    pub(super) const STEP: u8 = 8;
    pub(super) const DONE: u8 = 9;
    pub(super) const RECEIVED: u8 = 10;
    pub(super) const RELEASED: u8 = 11;
    pub(super) const WILL: u8 = 12;
    pub(super) const WILL_GONE: u8 = 13;
    pub(super) const RETAIN: u8 = 14;
    pub(super) const RETAIN_GONE: u8 = 15;
    pub(super) const FLOW: u8 = 16;
    pub(super) const FLOW_GONE: u8 = 17;
    pub(super) const INFLIGHT: u8 = 18;
    pub(super) const HIGHEST: u8 = 19;
    pub(super) const GIVEN_BACK: u8 = 20;
    /// With a gist.
    pub(super) const RECEIVED_AS: u8 = 21;
}

impl<'a> Op<'a> {
    /// Appends the operation, without a record's header.
    #[expect(clippy::too_many_lines, reason = "one arm for each operation")]
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Op::Session(session) => {
                put_key(out, tag::SESSION, session.session);
                put_bytes(out, session.client_id.as_bytes());
                put_option(out, session.user, |out, user| {
                    put_bytes(out, user.as_bytes());
                });
                out.push(session.version);
                put_number(out, u64::from(session.expiry));
                put_option(out, session.detached, put_number);
                put_number(out, u64::from(session.next_packet_id));
            }
            Op::SessionEnd { session } => put_key(out, tag::SESSION_END, *session),
            Op::Subscription(subscription) => {
                put_key(out, tag::SUBSCRIPTION, subscription.session);
                put_bytes(out, subscription.filter.as_bytes());
                out.push(subscription.options);
                put_option(out, subscription.id.map(u64::from), put_number);
                put_bytes(out, subscription.properties);
            }
            Op::Unsubscription { session, filter } => {
                put_key(out, tag::UNSUBSCRIPTION, *session);
                put_bytes(out, filter.as_bytes());
            }
            Op::Message { message, content } => {
                put_key(out, tag::MESSAGE, *message);
                content.encode(out);
            }
            Op::Entry(entry) => {
                put_key(out, tag::ENTRY, entry.session);
                put_number(out, entry.entry);
                put_number(out, entry.message);
                out.push(qos_flags(entry.qos, entry.retain));
                put_number(out, entry.subscription_ids.len() as u64);
                for id in entry.subscription_ids.iter() {
                    out.extend_from_slice(&id.to_le_bytes());
                }
                put_option(out, entry.number, |out, (source, count)| {
                    put_number(out, u64::from(source));
                    put_number(out, u64::from(count));
                });
            }
            Op::Sent {
                session,
                entry,
                packet_id,
            } => {
                put_key(out, tag::SENT, *session);
                put_number(out, *entry);
                put_number(out, u64::from(*packet_id));
            }
            Op::Step { session, entry } => {
                put_key(out, tag::STEP, *session);
                put_number(out, *entry);
            }
            Op::Done { session, entry } => {
                put_key(out, tag::DONE, *session);
                put_number(out, *entry);
            }
            Op::Received {
                session,
                packet_id,
                gist,
            } => {
                let tag = match gist {
                    0 => tag::RECEIVED,
                    _ => tag::RECEIVED_AS,
                };
                put_key(out, tag, *session);
                put_number(out, u64::from(*packet_id));
                if *gist != 0 {
                    out.extend_from_slice(&gist.to_le_bytes());
                }
            }
            Op::Released { session, packet_id } => {
                put_key(out, tag::RELEASED, *session);
                put_number(out, u64::from(*packet_id));
            }
            Op::Will(will) => {
                put_key(out, tag::WILL, will.session);
                put_number(out, u64::from(will.delay));
                put_option(out, will.due, put_number);
                put_option(out, will.expiry.map(u64::from), put_number);
                will.content.encode(out);
            }
            Op::WillGone { session } => put_key(out, tag::WILL_GONE, *session),
            Op::Retain {
                topic,
                message,
                version,
            } => {
                put_key(out, tag::RETAIN, *version);
                put_number(out, *message);
                put_bytes(out, topic.as_bytes());
            }
            Op::RetainGone { topic, version } => {
                put_key(out, tag::RETAIN_GONE, *version);
                put_bytes(out, topic.as_bytes());
            }
            Op::Flow { key, value } => {
                out.push(tag::FLOW);
                put_bytes(out, key.as_bytes());
                put_bytes(out, value);
            }
            Op::FlowGone { key } => {
                out.push(tag::FLOW_GONE);
                put_bytes(out, key.as_bytes());
            }
            Op::Inflight {
                session,
                entry,
                packet_id,
                step,
            } => {
                put_key(out, tag::INFLIGHT, *session);
                put_number(out, *entry);
                put_number(out, u64::from(*packet_id));
                out.push(u8::from(*step));
            }
            Op::Highest(highest) => {
                put_key(out, tag::HIGHEST, highest.session);
                put_number(out, highest.message);
                put_number(out, highest.entry);
                put_number(out, highest.version);
            }
            Op::GivenBack { segment } => put_key(out, tag::GIVEN_BACK, u64::from(*segment)),
        }
    }

    /// Reads what [`Op::encode`] wrote, to the last byte.
    ///
    /// # Errors
    /// Names the invalid field.
    #[expect(clippy::too_many_lines, reason = "one arm for each operation")]
    pub fn decode(bytes: &'a [u8]) -> Result<Self, OpError> {
        let mut reader = Reader(bytes);
        let op = match reader.byte("tag")? {
            tag::SESSION => Op::Session(SessionOp {
                session: reader.number("session")?,
                client_id: reader.text("client identifier")?,
                user: reader.option("user", |reader| reader.text("user"))?,
                version: reader.byte("protocol level")?,
                expiry: reader.small("session expiry")?,
                detached: reader.option("time", |reader| reader.number("time"))?,
                next_packet_id: reader.packet_id()?,
            }),
            tag::SESSION_END => Op::SessionEnd {
                session: reader.number("session")?,
            },
            tag::SUBSCRIPTION => Op::Subscription(SubscriptionOp {
                session: reader.number("session")?,
                filter: reader.text("filter")?,
                options: reader.byte("options")?,
                id: reader.option("identifier", |reader| reader.small("identifier"))?,
                properties: reader.bytes("properties")?,
            }),
            tag::UNSUBSCRIPTION => Op::Unsubscription {
                session: reader.number("session")?,
                filter: reader.text("filter")?,
            },
            tag::MESSAGE => Op::Message {
                message: reader.number("message")?,
                content: Content::decode(&mut reader)?,
            },
            tag::ENTRY => {
                let session = reader.number("session")?;
                let entry = reader.number("entry")?;
                let message = reader.number("message")?;
                let (qos, retain) = reader.qos()?;
                let ids = reader.number("number of identifiers")?;
                let ids = usize::try_from(ids).ok().and_then(|ids| ids.checked_mul(4));
                let ids = ids.ok_or(OpError::Value("number of identifiers"))?;
                Op::Entry(EntryOp {
                    session,
                    entry,
                    message,
                    qos,
                    retain,
                    subscription_ids: Ids(IdsIn::Record(reader.take(ids, "identifiers")?)),
                    number: reader.option("number", |reader| {
                        Ok((reader.small("source")?, reader.small("count")?))
                    })?,
                })
            }
            tag::SENT => Op::Sent {
                session: reader.number("session")?,
                entry: reader.number("entry")?,
                packet_id: reader.packet_id()?,
            },
            tag::STEP => Op::Step {
                session: reader.number("session")?,
                entry: reader.number("entry")?,
            },
            tag::DONE => Op::Done {
                session: reader.number("session")?,
                entry: reader.number("entry")?,
            },
            tag::RECEIVED => Op::Received {
                session: reader.number("session")?,
                packet_id: reader.packet_id()?,
                gist: 0,
            },
            tag::RECEIVED_AS => Op::Received {
                session: reader.number("session")?,
                packet_id: reader.packet_id()?,
                gist: reader.gist()?,
            },
            tag::RELEASED => Op::Released {
                session: reader.number("session")?,
                packet_id: reader.packet_id()?,
            },
            tag::WILL => Op::Will(WillOp {
                session: reader.number("session")?,
                delay: reader.small("delay")?,
                due: reader.option("time", |reader| reader.number("time"))?,
                expiry: reader.option("expiry", |reader| reader.small("expiry"))?,
                content: Content::decode(&mut reader)?,
            }),
            tag::WILL_GONE => Op::WillGone {
                session: reader.number("session")?,
            },
            tag::RETAIN => Op::Retain {
                version: reader.number("version")?,
                message: reader.number("message")?,
                topic: reader.text("topic")?,
            },
            tag::RETAIN_GONE => Op::RetainGone {
                version: reader.number("version")?,
                topic: reader.text("topic")?,
            },
            tag::FLOW => Op::Flow {
                key: reader.text("key")?,
                value: reader.bytes("value")?,
            },
            tag::FLOW_GONE => Op::FlowGone {
                key: reader.text("key")?,
            },
            tag::INFLIGHT => Op::Inflight {
                session: reader.number("session")?,
                entry: reader.number("entry")?,
                packet_id: reader.packet_id()?,
                step: reader.flag("step")?,
            },
            tag::HIGHEST => Op::Highest(HighestNumbers {
                session: reader.number("session")?,
                message: reader.number("message")?,
                entry: reader.number("entry")?,
                version: reader.number("version")?,
            }),
            tag::GIVEN_BACK => Op::GivenBack {
                segment: reader.small("segment")?,
            },
            other => return Err(OpError::Tag(other)),
        };
        match reader.0.len() {
            0 => Ok(op),
            more => Err(OpError::Long(more)),
        }
    }
}

impl<'a> Content<'a> {
    fn encode(&self, out: &mut Vec<u8>) {
        put_bytes(out, self.topic.as_bytes());
        put_bytes(out, self.properties);
        put_bytes(out, self.payload);
        put_number(out, self.publisher);
        out.push(qos_flags(self.qos, self.retain));
        put_option(out, self.expires, put_number);
        put_bytes(out, self.stamp);
    }

    fn decode(reader: &mut Reader<'a>) -> Result<Self, OpError> {
        let topic = reader.text("topic")?;
        let properties = reader.bytes("properties")?;
        let payload = reader.bytes("payload")?;
        let publisher = reader.number("publisher")?;
        let (qos, retain) = reader.qos()?;
        Ok(Self {
            topic,
            properties,
            payload,
            publisher,
            qos,
            retain,
            expires: reader.option("time", |reader| reader.number("time"))?,
            stamp: reader.bytes("stamp")?,
        })
    }
}

fn qos_flags(qos: u8, retain: bool) -> u8 {
    (qos.min(2) << 1) | u8::from(retain)
}

fn put_key(out: &mut Vec<u8>, tag: u8, number: u64) {
    out.push(tag);
    put_number(out, number);
}

fn put_number(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_number(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

fn put_option<T>(out: &mut Vec<u8>, value: Option<T>, put: impl FnOnce(&mut Vec<u8>, T)) {
    out.push(u8::from(value.is_some()));
    if let Some(value) = value {
        put(out, value);
    }
}

/// A cursor over one operation.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, len: usize, what: &'static str) -> Result<&'a [u8], OpError> {
        let (head, tail) = self.0.split_at_checked(len).ok_or(OpError::Short(what))?;
        self.0 = tail;
        Ok(head)
    }

    fn byte(&mut self, what: &'static str) -> Result<u8, OpError> {
        let (first, tail) = self.0.split_first().ok_or(OpError::Short(what))?;
        self.0 = tail;
        Ok(*first)
    }

    fn number(&mut self, what: &'static str) -> Result<u64, OpError> {
        let mut number = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte(what)?;
            let digit = u64::from(byte & 0x7F);
            // The tenth byte has room for one bit; none but the only one is zero.
            if (shift == 63 && byte > 1) || (byte == 0 && shift > 0) {
                return Err(OpError::Value(what));
            }
            number |= digit << shift;
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err(OpError::Value(what))
    }

    fn small(&mut self, what: &'static str) -> Result<u32, OpError> {
        u32::try_from(self.number(what)?).map_err(|_| OpError::Value(what))
    }

    fn packet_id(&mut self) -> Result<u16, OpError> {
        let what = "packet identifier";
        match u16::try_from(self.number(what)?) {
            Ok(0) | Err(_) => Err(OpError::Value(what)),
            Ok(id) => Ok(id),
        }
    }

    fn gist(&mut self) -> Result<u32, OpError> {
        let what = "gist";
        let bytes = self.take(4, what)?.try_into();
        match bytes.map_or(0, u32::from_le_bytes) {
            0 => Err(OpError::Value(what)),
            gist => Ok(gist),
        }
    }

    fn qos(&mut self) -> Result<(u8, bool), OpError> {
        match self.byte("QoS")? {
            flags @ 0..=5 => Ok((flags >> 1, flags & 1 != 0)),
            _ => Err(OpError::Value("QoS")),
        }
    }

    fn bytes(&mut self, what: &'static str) -> Result<&'a [u8], OpError> {
        let len = usize::try_from(self.number(what)?).map_err(|_| OpError::Value(what))?;
        self.take(len, what)
    }

    fn text(&mut self, what: &'static str) -> Result<&'a str, OpError> {
        std::str::from_utf8(self.bytes(what)?).map_err(|_| OpError::Value(what))
    }

    fn option<T>(
        &mut self,
        what: &'static str,
        read: impl FnOnce(&mut Self) -> Result<T, OpError>,
    ) -> Result<Option<T>, OpError> {
        match self.flag(what)? {
            true => read(self).map(Some),
            false => Ok(None),
        }
    }

    fn flag(&mut self, what: &'static str) -> Result<bool, OpError> {
        match self.byte(what)? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(OpError::Value(what)),
        }
    }
}

/// Operations in their order, as records that get their checksums when they are
/// written: most are done with before.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Batch {
    pub(crate) bytes: Vec<u8>,
    pub(crate) len: usize,
}

impl Batch {
    /// Without operations.
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends an operation.
    ///
    /// One whose record has more than 4 GiB cannot be written, and is left out:
    /// the core's bounds on packets are far below.
    pub fn push(&mut self, op: &Op<'_>) {
        self.len += usize::from(put_record(&mut self.bytes, op));
    }

    /// Appends the operations of another.
    pub fn append(&mut self, other: &Batch) {
        self.bytes.extend_from_slice(&other.bytes);
        self.len += other.len;
    }

    /// Empties it and keeps its memory.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.len = 0;
    }

    /// Number of operations.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The records, one after the other.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The operations in their order.
    pub fn iter(&self) -> impl Iterator<Item = Op<'_>> {
        self.records().filter_map(|record| record.op().ok())
    }

    /// The records in their order.
    pub(crate) fn records(&self) -> Records<'_> {
        Records { rest: &self.bytes }
    }
}

impl<'a> Extend<Op<'a>> for Batch {
    fn extend<I: IntoIterator<Item = Op<'a>>>(&mut self, ops: I) {
        for op in ops {
            self.push(&op);
        }
    }
}

impl<'a> FromIterator<Op<'a>> for Batch {
    fn from_iter<I: IntoIterator<Item = Op<'a>>>(ops: I) -> Self {
        let mut batch = Self::new();
        batch.extend(ops);
        batch
    }
}

/// Appends an operation as a record without its checksum. False, and nothing is
/// appended, if it is too long for one.
pub(crate) fn put_record(out: &mut Vec<u8>, op: &Op<'_>) -> bool {
    let start = out.len();
    out.extend_from_slice(&[0; RECORD_HEADER]);
    op.encode(out);
    let body = start + RECORD_HEADER;
    let Ok(len) = u32::try_from(out.len() - body) else {
        out.truncate(start);
        return false;
    };
    out[start..start + 4].copy_from_slice(&len.to_le_bytes());
    true
}

/// Gives records their checksums. These depend on `salt`, so that nothing else
/// passes for a record of the same place.
pub(crate) fn seal_records(mut records: &mut [u8], salt: u32) {
    while let Some((header, rest)) = records.split_first_chunk_mut::<RECORD_HEADER>() {
        let [a, b, c, d, ..] = *header;
        let len = u32::from_le_bytes([a, b, c, d]);
        let Some((body, rest)) = rest.split_at_mut_checked(len as usize) else {
            return;
        };
        header[4..].copy_from_slice(&checksum(salt, len, body).to_le_bytes());
        records = rest;
    }
}

/// Cuts bytes into records. Ends where no whole record follows.
#[derive(Debug, Clone)]
pub(crate) struct Records<'a> {
    rest: &'a [u8],
}

impl<'a> Records<'a> {
    /// Of bytes that may be damaged.
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }
}

impl<'a> Iterator for Records<'a> {
    type Item = Record<'a>;

    fn next(&mut self) -> Option<Record<'a>> {
        let len = u32::from_le_bytes(*self.rest.first_chunk()?);
        let (bytes, rest) = self
            .rest
            .split_at_checked(RECORD_HEADER.checked_add(len as usize)?)?;
        self.rest = rest;
        Some(Record { bytes })
    }
}

/// A record, perhaps damaged.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Record<'a> {
    /// With its header.
    pub(crate) bytes: &'a [u8],
}

impl<'a> Record<'a> {
    /// Its operation, without a look at the checksum.
    pub(crate) fn op(self) -> Result<Op<'a>, OpError> {
        Op::decode(self.bytes.get(RECORD_HEADER..).unwrap_or_default())
    }

    /// The number of the message whose content it is, if it is one.
    pub(crate) fn message(self) -> Option<u64> {
        let body = self.bytes.get(RECORD_HEADER..)?;
        let (&tag::MESSAGE, rest) = body.split_first()? else {
            return None;
        };
        Reader(rest).number("message").ok()
    }

    /// Its operation, if the record is intact under this salt.
    pub(crate) fn checked(self, salt: u32) -> Result<Op<'a>, OpError> {
        match self.is_intact(salt) {
            true => self.op(),
            false => Err(OpError::Checksum),
        }
    }

    /// Whether the record is intact under this salt.
    pub(crate) fn is_intact(self, salt: u32) -> bool {
        let Some((header, body)) = self.bytes.split_first_chunk::<RECORD_HEADER>() else {
            return false;
        };
        let [a, b, c, d, e, f, g, h] = *header;
        let len = u32::from_le_bytes([a, b, c, d]);
        checksum(salt, len, body) == u32::from_le_bytes([e, f, g, h])
    }
}

fn checksum(salt: u32, len: u32, body: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new_with_initial(salt ^ len);
    hasher.update(body);
    hasher.finalize()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::arbitrary;

    #[test]
    fn a_record_is_as_short_as_it_can_be() {
        let mut batch = Batch::new();
        batch.push(&Op::Done {
            session: 1,
            entry: 300,
        });
        assert_eq!(batch.as_bytes().len(), RECORD_HEADER + 1 + 1 + 2);
    }

    #[test]
    fn numbers_are_not_longer_than_needed() {
        let long = [tag::SESSION_END, 0x81, 0x00];
        assert_eq!(Op::decode(&long), Err(OpError::Value("session")));
        let mut large = vec![tag::SESSION_END];
        put_number(&mut large, u64::MAX);
        assert_eq!(Op::decode(&large), Ok(Op::SessionEnd { session: u64::MAX }));
        *large.last_mut().expect("a byte") = 2;
        assert_eq!(Op::decode(&large), Err(OpError::Value("session")));
    }

    #[test]
    fn what_is_not_an_operation_is_said() {
        assert_eq!(Op::decode(&[]), Err(OpError::Short("tag")));
        assert_eq!(Op::decode(&[200]), Err(OpError::Tag(200)));
        let long = [tag::SESSION_END, 1, 0];
        assert_eq!(Op::decode(&long), Err(OpError::Long(1)));
        let zero = [tag::RECEIVED, 1, 0];
        assert_eq!(Op::decode(&zero), Err(OpError::Value("packet identifier")));
        let without = [tag::RECEIVED_AS, 1, 5, 0, 0, 0, 0];
        assert_eq!(Op::decode(&without), Err(OpError::Value("gist")));
        let short = [tag::RECEIVED_AS, 1, 5, 7, 0, 0];
        assert_eq!(Op::decode(&short), Err(OpError::Short("gist")));
        let huge = [
            tag::ENTRY,
            1,
            1,
            1,
            0,
            0xFF,
            0xFF,
            0xFF,
            0xFF,
            0xFF,
            0xFF,
            0xFF,
            0xFF,
            0xFF,
            1,
        ];
        assert_eq!(
            Op::decode(&huge),
            Err(OpError::Value("number of identifiers"))
        );
    }

    #[test]
    fn a_publication_without_a_gist_takes_no_room_for_it() {
        let received = |gist| {
            let mut bytes = Vec::new();
            let op = Op::Received {
                session: 1,
                packet_id: 300,
                gist,
            };
            op.encode(&mut bytes);
            assert_eq!(Op::decode(&bytes), Ok(op));
            bytes
        };
        assert_eq!(received(0), [tag::RECEIVED, 1, 0xAC, 2]);
        let with = [tag::RECEIVED_AS, 1, 0xAC, 2, 4, 3, 2, 1];
        assert_eq!(received(0x0102_0304), with);
    }

    #[test]
    fn the_highest_numbers_are_seen() {
        let mut highest = HighestNumbers::default();
        highest.see(&Op::SessionEnd { session: 7 });
        highest.see(&Op::Done {
            session: 1,
            entry: 9,
        });
        highest.see(&Op::RetainGone {
            topic: "t",
            version: 3,
        });
        highest.see(&Op::Highest(HighestNumbers {
            message: 4,
            ..HighestNumbers::default()
        }));
        let seen = HighestNumbers {
            session: 7,
            message: 4,
            entry: 9,
            version: 3,
        };
        assert_eq!(highest, seen);
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(ops in proptest::collection::vec(arbitrary::owned(), 0..20)) {
            let batch: Batch = ops.iter().map(arbitrary::Owned::op).collect();
            prop_assert_eq!(batch.len(), ops.len());
            let read: Vec<Op<'_>> = batch.iter().collect();
            let written: Vec<Op<'_>> = ops.iter().map(arbitrary::Owned::op).collect();
            prop_assert_eq!(&read, &written);
            let again: Batch = read.into_iter().collect();
            prop_assert_eq!(&again, &batch);
        }

        #[test]
        fn every_flipped_bit_is_noticed(op in arbitrary::owned(), at in any::<prop::sample::Index>()) {
            let mut bytes = Vec::new();
            put_record(&mut bytes, &op.op());
            seal_records(&mut bytes, 7);
            prop_assert_eq!(Records::new(&bytes).next().map(|it| it.checked(7)), Some(Ok(op.op())));
            let bit = at.index(bytes.len() * 8);
            bytes[bit / 8] ^= 1 << (bit % 8);
            let mut records = Records::new(&bytes);
            if let Some(record) = records.next() {
                prop_assert!(record.checked(7).is_err() || !records.rest.is_empty());
            }
        }

        #[test]
        fn any_bytes_are_refused_or_written_the_same(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            if let Ok(op) = Op::decode(&bytes) {
                let mut again = Vec::new();
                op.encode(&mut again);
                prop_assert_eq!(again, bytes);
            }
        }
    }
}
