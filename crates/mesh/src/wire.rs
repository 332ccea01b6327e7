//! Messages between brokers, and their encoding.
//!
//! A message is the payload of a PUBLISH packet with QoS 0 on [`TOPIC`], on the ordinary MQTT 5
//! connection between two brokers; clients may neither publish nor subscribe there. The first message in
//! each direction is [`Message::Open`], which is the same in all versions and contains the range of
//! versions that the sender supports; the highest version in both ranges is used. Decoding is strict:
//! numbers in their shortest form, nothing after the end, no unknown kinds or flags, every length within
//! its bound. A message that does not decode ends the link.

mod clients;
mod envelopes;
mod fences;
mod interest;
mod look_ups;
mod transfers;

use std::ops::RangeInclusive;

use punctual_codec::topic;
use punctual_model::Nanos;

pub use self::clients::{Arrival, ClientWill, GuardReport};
pub use self::envelopes::Envelope;
pub use self::fences::{ClientStub, Fence, FenceCondition, FenceReply, MAX_STUBS};
pub use self::interest::InterestUpdate;
pub use self::look_ups::{LookUp, LookUpReply};
pub use self::transfers::SessionAddress;

use crate::id::{BrokerId, MAX_NAME, Rank};
use crate::strategy::Strategy;
use crate::tree::{Advert, EpochRequest};

/// Topic of all messages between brokers.
pub const TOPIC: &str = "$mesh/1";
/// Versions that this library supports.
pub const VERSIONS: RangeInclusive<u8> = 1..=1;
/// Prefix of a pseudo-filter in [`InterestUpdate`], followed by the name of a broker for which messages
/// are queued.
pub const KEEPS: &str = "$mesh/keeps/";
/// Number of parts into which filters are divided when tables are compared.
pub const BUCKETS: usize = 64;
/// Bytes of the longest message.
pub const MAX_MESSAGE: usize = 1 << 20;
/// Bound on the levels of a topic or filter between brokers. For a client's filter with more levels, its
/// broker advertises the first levels followed by `#`.
pub const MAX_LEVELS: usize = topic::MAX_LEVELS;
/// Bound on the brokers of a path that a trace follows.
pub const MAX_TRACE: usize = 255;

/// The version that two brokers use with each other: the highest in both ranges; `None` if there is none.
pub fn common_version(ours: &RangeInclusive<u8>, theirs: &RangeInclusive<u8>) -> Option<u8> {
    let highest = *ours.end().min(theirs.end());
    (ours.contains(&highest) && theirs.contains(&highest)).then_some(highest)
}

/// One message between two brokers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Message {
    /// Identity and versions of the sender.
    Open(Open),
    /// State of the tree, and times from which the receiver computes the round-trip time.
    Hello(Hello),
    /// Changes of the filters that the sender wants; the receiver applies additions first.
    Filters {
        /// Wanted from now on.
        add: Vec<Box<str>>,
        /// Not wanted any more.
        remove: Vec<Box<str>>,
    },
    /// Checksums of the filters that the sender wants: the sum of [`crate::table::digest`] for each part.
    Digest(Box<[u64; BUCKETS]>),
    /// Requests the parts of the receiver's filters, a bit each, whose checksums differ.
    Want(u64),
    /// All filters of one part that the sender wants; replaces those sent before.
    Bucket {
        /// Which part, below [`BUCKETS`].
        index: u8,
        /// The filters.
        filters: Vec<Box<str>>,
    },
    /// Asks all brokers that a publication would reach to reply.
    Trace(Trace),
    /// Reply to a trace.
    TraceReply(TraceReply),
    /// Brokers that the sender reaches over its other links, itself included.
    Here {
        /// Whether this replaces everything sent before.
        all: bool,
        /// Reached from now on.
        add: Vec<BrokerId>,
        /// Not reached any more.
        remove: Vec<BrokerId>,
    },
    /// Shared subscriptions with members at brokers that the sender reaches over its other
    /// links, itself included.
    Members {
        /// Whether this replaces everything sent before.
        all: bool,
        /// Have members from now on.
        add: Vec<Member>,
        /// Have none any more.
        remove: Vec<Member>,
    },
    /// Wills of the sender's clients, which the receiver publishes if the sender is lost.
    Wills {
        /// Whether this replaces everything sent before.
        all: bool,
        /// How many other guards publish before the receiver.
        turn: u8,
        /// To be stored, each in place of an older will of the same client.
        add: Vec<ClientWill>,
        /// Clients without a will from now on.
        remove: Vec<Box<str>>,
    },
    /// Clients that have connected to brokers that the sender reaches over its other links,
    /// itself included.
    Arrived(Vec<Arrival>),
    /// Report of a guard to a broker that was lost.
    GuardReport(GuardReport),
    /// A message between the cores of two brokers about a session transfer, to be forwarded.
    Envelope(Envelope),
    /// The sender leads to these brokers, and sends updates of their persistent interest from now on;
    /// with the sum of [`crate::table::digest`] over the filters of each.
    Sums(Vec<(BrokerId, u64)>),
    /// Requests all filters of persistent sessions at these brokers; an empty list requests
    /// [`Self::Sums`] of all brokers that the receiver leads to.
    Ask(Vec<BrokerId>),
    /// Changes of the persistent interest of one broker.
    PersistentInterest(InterestUpdate),
    /// Asks for a reply once all messages in flight from the receiver, and the brokers behind it, have
    /// arrived.
    Fence(Fence),
    /// Reply to a fence.
    FenceReply(FenceReply),
    /// Asks the receiver, and all brokers behind it, what they have of a client.
    LookUp(LookUp),
    /// Their common reply.
    LookUpReply(LookUpReply),
}

/// A broker, and the filter of a shared subscription that has members there.
pub type Member = (BrokerId, Box<str>);

/// The first message on a link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Open {
    /// Lowest and highest supported version.
    pub versions: (u8, u8),
    /// The sender.
    pub id: BrokerId,
    /// Different after every start of the sender.
    pub instance: u64,
    /// Forwarding strategy; has to be the same in the whole mesh.
    pub strategy: Strategy,
    /// Whether the sender opened the connection.
    pub dialled: bool,
}

/// State of the tree, and times.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hello {
    /// State of the tree.
    pub advert: Advert,
    /// The sender's clock when it sent this, in microseconds.
    pub sent: u64,
    /// `sent` of the last hello that the sender received, and how many microseconds ago it received it.
    pub echo: Option<(u64, u64)>,
    /// The sender's wall clock in microseconds since 1970, if known.
    pub clock: Option<u64>,
}

/// Follows the path of a topic through the tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trace {
    /// The broker that started the trace.
    pub origin: BrokerId,
    /// Number of the trace there.
    pub number: u64,
    /// Topic name.
    pub topic: Box<str>,
    /// Brokers on the path, the origin first, each with the round-trip time in microseconds of the link
    /// to the next.
    pub path: Vec<(BrokerId, u64)>,
}

/// Reply of one broker to a [`Trace`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TraceReply {
    /// Number of the trace.
    pub number: u64,
    /// The path from the origin to the broker that replies, as in [`Trace`]; the last time is 0.
    pub path: Vec<(BrokerId, u64)>,
    /// Remaining links of the path back: the reply goes to `path[left - 1]` next.
    pub left: u8,
    /// Whether clients of the replying broker have subscribed to the topic.
    pub subscribed: bool,
    /// To how many neighbours the replying broker has forwarded the trace.
    pub next: u8,
}

impl TraceReply {
    /// Whether these are all replies to a trace: one of each broker to which it was forwarded.
    pub fn are_all(answers: &[Self]) -> bool {
        let next: usize = answers.iter().map(|traced| usize::from(traced.next)).sum();
        next + 1 == answers.len()
    }
}

/// Why bytes are not a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// It ends too early.
    #[error("message is incomplete")]
    Incomplete,
    /// Bytes follow its end.
    #[error("bytes follow the end of the message")]
    Trailing,
    /// A kind that this version does not have.
    #[error("message of unknown kind {0}")]
    Kind(u8),
    /// A topic or filter has more than [`MAX_LEVELS`] levels.
    #[error("a topic or filter has more than {MAX_LEVELS} levels")]
    Levels,
    /// A field has an invalid value.
    #[error("{0} is not valid")]
    Field(&'static str),
}

impl Message {
    /// The bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Writer(Vec::new());
        match self {
            Self::Open(open) => {
                out.byte(0);
                out.byte(open.versions.0);
                out.byte(open.versions.1);
                out.id(&open.id);
                out.number(open.instance);
                out.byte(open.strategy as u8);
                out.byte(u8::from(open.dialled));
            }
            Self::Hello(hello) => {
                out.byte(1);
                out.hello(hello);
            }
            Self::Filters { add, remove } => {
                out.byte(2);
                out.filters(add);
                out.filters(remove);
            }
            Self::Digest(sums) => {
                out.byte(3);
                let used = sums.iter().enumerate().filter(|(_, sum)| **sum != 0);
                out.number(used.clone().fold(0, |bits, (i, _)| bits | 1 << i));
                for (_, sum) in used {
                    out.0.extend_from_slice(&sum.to_be_bytes());
                }
            }
            Self::Want(bits) => {
                out.byte(4);
                out.number(*bits);
            }
            Self::Bucket { index, filters } => {
                out.byte(5);
                out.byte(*index);
                out.filters(filters);
            }
            Self::Trace(trace) => {
                out.byte(6);
                out.id(&trace.origin);
                out.number(trace.number);
                out.text(&trace.topic);
                out.path(&trace.path);
            }
            Self::TraceReply(traced) => {
                out.byte(7);
                out.number(traced.number);
                out.path(&traced.path);
                out.byte(traced.left);
                out.byte(u8::from(traced.subscribed));
                out.byte(traced.next);
            }
            Self::Here { all, add, remove } => {
                out.byte(8);
                out.byte(u8::from(*all));
                out.ids(add);
                out.ids(remove);
            }
            Self::Members { all, add, remove } => {
                out.byte(9);
                out.byte(u8::from(*all));
                out.members(add);
                out.members(remove);
            }
            Self::Wills {
                all,
                turn,
                add,
                remove,
            } => {
                out.byte(10);
                out.byte(u8::from(*all));
                out.byte(*turn);
                out.client_wills(add);
                out.clients(remove);
            }
            Self::Arrived(arrivals) => {
                out.byte(11);
                out.arrivals(arrivals);
            }
            Self::GuardReport(left) => {
                out.byte(12);
                out.left(left);
            }
            Self::Envelope(envelope) => {
                out.byte(13);
                out.envelope(envelope);
            }
            Self::Sums(sums) => {
                out.byte(14);
                out.sums(sums);
            }
            Self::Ask(about) => {
                out.byte(15);
                out.ids(about);
            }
            Self::PersistentInterest(told) => {
                out.byte(16);
                out.interest(told);
            }
            Self::Fence(fence) => {
                out.byte(17);
                out.fence(fence);
            }
            Self::FenceReply(fenced) => {
                out.byte(18);
                out.fenced(fenced);
            }
            Self::LookUp(look_up) => {
                out.byte(19);
                out.look_up(look_up);
            }
            Self::LookUpReply(look_up_reply) => {
                out.byte(20);
                out.look_up_reply(look_up_reply);
            }
        }
        out.0
    }

    /// Reads a message.
    ///
    /// # Errors
    /// See [`WireError`].
    pub fn decode(bytes: &[u8]) -> Result<Self, WireError> {
        if bytes.len() > MAX_MESSAGE {
            return Err(WireError::Field("length"));
        }
        let mut from = Reader(bytes);
        let message = match from.byte()? {
            0 => {
                let versions = (from.byte()?, from.byte()?);
                if versions.0 == 0 || versions.0 > versions.1 {
                    return Err(WireError::Field("versions"));
                }
                Self::Open(Open {
                    versions,
                    id: from.id()?,
                    instance: from.number()?,
                    strategy: Strategy::from_byte(from.byte()?)
                        .ok_or(WireError::Field("strategy"))?,
                    dialled: from.flag()?,
                })
            }
            1 => Self::Hello(from.hello()?),
            2 => Self::Filters {
                add: from.filters()?,
                remove: from.filters()?,
            },
            3 => {
                let bits = from.number()?;
                let mut sums = Box::new([0; BUCKETS]);
                for (i, sum) in sums.iter_mut().enumerate() {
                    if bits & 1 << i != 0 {
                        *sum = from.fixed()?;
                        if *sum == 0 {
                            return Err(WireError::Field("digest"));
                        }
                    }
                }
                Self::Digest(sums)
            }
            4 => Self::Want(from.number()?),
            5 => {
                let index = from.byte()?;
                if usize::from(index) >= BUCKETS {
                    return Err(WireError::Field("bucket"));
                }
                let filters = from.filters()?;
                Self::Bucket { index, filters }
            }
            6 => Self::Trace(Trace {
                origin: from.id()?,
                number: from.number()?,
                topic: from.topic()?,
                path: from.path()?,
            }),
            7 => {
                let number = from.number()?;
                let path = from.path()?;
                let left = from.byte()?;
                if usize::from(left) >= path.len() {
                    return Err(WireError::Field("path"));
                }
                Self::TraceReply(TraceReply {
                    number,
                    path,
                    left,
                    subscribed: from.flag()?,
                    next: from.byte()?,
                })
            }
            8 => Self::Here {
                all: from.flag()?,
                add: from.ids()?,
                remove: from.ids()?,
            },
            9 => Self::Members {
                all: from.flag()?,
                add: from.members()?,
                remove: from.members()?,
            },
            10 => Self::Wills {
                all: from.flag()?,
                turn: from.byte()?,
                add: from.client_wills()?,
                remove: from.clients()?,
            },
            11 => Self::Arrived(from.arrivals()?),
            12 => Self::GuardReport(from.left()?),
            13 => Self::Envelope(from.envelope()?),
            14 => Self::Sums(from.sums()?),
            15 => Self::Ask(from.ids()?),
            16 => Self::PersistentInterest(from.interest()?),
            17 => Self::Fence(from.fence()?),
            18 => Self::FenceReply(from.fenced()?),
            19 => Self::LookUp(from.look_up()?),
            20 => Self::LookUpReply(from.look_up_reply()?),
            kind => return Err(WireError::Kind(kind)),
        };
        match from.0 {
            [] => Ok(message),
            _ => Err(WireError::Trailing),
        }
    }
}

struct Writer(Vec<u8>);

impl Writer {
    fn byte(&mut self, byte: u8) {
        self.0.push(byte);
    }

    /// Seven bits a byte, the lowest first.
    fn number(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.byte(number as u8 | 0x80);
            number >>= 7;
        }
        self.byte(number as u8);
    }

    fn text(&mut self, text: &str) {
        self.number(text.len() as u64);
        self.0.extend_from_slice(text.as_bytes());
    }

    fn id(&mut self, id: &BrokerId) {
        self.text(id.as_str());
    }

    fn filters(&mut self, filters: &[Box<str>]) {
        self.number(filters.len() as u64);
        filters.iter().for_each(|filter| self.text(filter));
    }

    fn ids(&mut self, ids: &[BrokerId]) {
        self.number(ids.len() as u64);
        ids.iter().for_each(|id| self.id(id));
    }

    fn members(&mut self, members: &[Member]) {
        self.number(members.len() as u64);
        for (id, filter) in members {
            self.id(id);
            self.text(filter);
        }
    }

    fn path(&mut self, path: &[(BrokerId, u64)]) {
        self.number(path.len() as u64);
        for (id, micros) in path {
            self.id(id);
            self.number(*micros);
        }
    }

    fn hello(&mut self, hello: &Hello) {
        let advert = &hello.advert;
        let flags = u8::from(advert.held)
            | u8::from(advert.epoch_request.is_some()) << 1
            | u8::from(hello.echo.is_some()) << 2
            | u8::from(hello.clock.is_some()) << 3;
        self.byte(flags);
        self.number(advert.number);
        self.id(&advert.root.id);
        self.number(advert.root.capacity);
        self.number(advert.epoch);
        self.number(advert.cost);
        self.number(u64::from(advert.hops));
        self.number(advert.age.0 / 1_000_000);
        self.number(advert.asks);
        self.number(advert.answered);
        if let Some(epoch_request) = &advert.epoch_request {
            self.id(&epoch_request.root);
            self.number(epoch_request.above);
        }
        self.number(hello.sent);
        if let Some((sent, ago)) = hello.echo {
            self.number(sent);
            self.number(ago);
        }
        if let Some(clock) = hello.clock {
            self.number(clock);
        }
    }
}

fn check_levels(topic: &str) -> Result<(), WireError> {
    match topic::levels(topic) {
        ..=MAX_LEVELS => Ok(()),
        _ => Err(WireError::Levels),
    }
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn byte(&mut self) -> Result<u8, WireError> {
        let (first, rest) = self.0.split_first().ok_or(WireError::Incomplete)?;
        self.0 = rest;
        Ok(*first)
    }

    fn flag(&mut self) -> Result<bool, WireError> {
        match self.byte()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(WireError::Field("flag")),
        }
    }

    fn fixed(&mut self) -> Result<u64, WireError> {
        let (bytes, rest) = self.0.split_first_chunk().ok_or(WireError::Incomplete)?;
        self.0 = rest;
        Ok(u64::from_be_bytes(*bytes))
    }

    fn number(&mut self) -> Result<u64, WireError> {
        let mut number = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7F);
            if bits << shift >> shift != bits || (byte == 0 && shift > 0) {
                return Err(WireError::Field("number"));
            }
            number |= bits << shift;
            if byte < 0x80 {
                return Ok(number);
            }
        }
        Err(WireError::Field("number"))
    }

    /// A count of things that take at least `size` bytes each.
    fn count(&mut self, size: usize) -> Result<usize, WireError> {
        let count = self.number()?;
        let left = (self.0.len() / size) as u64;
        match count <= left {
            true => Ok(count as usize),
            false => Err(WireError::Incomplete),
        }
    }

    fn text(&mut self) -> Result<&'a str, WireError> {
        let length = self.count(1)?;
        let (text, rest) = self.0.split_at(length);
        self.0 = rest;
        std::str::from_utf8(text).map_err(|_| WireError::Field("text"))
    }

    fn id(&mut self) -> Result<BrokerId, WireError> {
        let name = self.text()?;
        BrokerId::new(name).ok_or(WireError::Field("name"))
    }

    fn topic(&mut self) -> Result<Box<str>, WireError> {
        let name = self.text()?;
        let name = topic::validate_name(name.as_bytes()).map_err(|_| WireError::Field("topic"))?;
        check_levels(name)?;
        Ok(name.into())
    }

    fn filters(&mut self) -> Result<Vec<Box<str>>, WireError> {
        self.filters_and(|_| false)
    }

    /// Plain filters, and other text that `may_be` accepts.
    fn filters_and(&mut self, may_be: impl Fn(&str) -> bool) -> Result<Vec<Box<str>>, WireError> {
        let count = self.count(2)?;
        let mut filters = Vec::with_capacity(count.min(4096));
        for _ in 0..count {
            let filter = self.text()?;
            let plain = topic::validate_filter(filter).is_ok() && !filter.starts_with('$');
            if !plain && !may_be(filter) || filter.len() > usize::from(u16::MAX) {
                return Err(WireError::Field("filter"));
            }
            check_levels(filter)?;
            filters.push(filter.into());
        }
        Ok(filters)
    }

    fn ids(&mut self) -> Result<Vec<BrokerId>, WireError> {
        let count = self.count(2)?;
        (0..count).map(|_| self.id()).collect()
    }

    fn members(&mut self) -> Result<Vec<Member>, WireError> {
        let count = self.count(4)?;
        let mut members = Vec::with_capacity(count.min(4096));
        for _ in 0..count {
            let id = self.id()?;
            let filter = self.text()?;
            let shared =
                topic::validate_filter(filter).is_ok() && topic::split_share(filter).0.is_some();
            if !shared || filter.len() > usize::from(u16::MAX) {
                return Err(WireError::Field("shared filter"));
            }
            check_levels(topic::split_share(filter).1)?;
            members.push((id, filter.into()));
        }
        Ok(members)
    }

    fn path(&mut self) -> Result<Vec<(BrokerId, u64)>, WireError> {
        let count = self.count(3)?;
        if !(1..=MAX_TRACE).contains(&count) {
            return Err(WireError::Field("path"));
        }
        (0..count)
            .map(|_| Ok((self.id()?, self.number()?)))
            .collect()
    }

    fn hello(&mut self) -> Result<Hello, WireError> {
        let flags = self.byte()?;
        if flags & !15 != 0 {
            return Err(WireError::Field("flags"));
        }
        let number = self.number()?;
        let id = self.id()?;
        let capacity = self.number()?;
        let epoch = self.number()?;
        let cost = self.number()?;
        let hops = u16::try_from(self.number()?).map_err(|_| WireError::Field("hops"))?;
        let age = self.number()?;
        let age = age.checked_mul(1_000_000).ok_or(WireError::Field("age"))?;
        let asks = self.number()?;
        let answered = self.number()?;
        let epoch_request = match flags & 2 {
            0 => None,
            _ => Some(EpochRequest {
                root: self.id()?,
                above: self.number()?,
            }),
        };
        let advert = Advert {
            number,
            root: Rank { capacity, id },
            epoch,
            cost,
            hops,
            age: Nanos(age),
            asks,
            answered,
            held: flags & 1 != 0,
            epoch_request,
        };
        let sent = self.number()?;
        let echo = match flags & 4 {
            0 => None,
            _ => Some((self.number()?, self.number()?)),
        };
        let clock = match flags & 8 {
            0 => None,
            _ => Some(self.number()?),
        };
        Ok(Hello {
            advert,
            sent,
            echo,
            clock,
        })
    }
}

const _: () = assert!(MAX_NAME < 0x80, "a name's length takes one byte");

#[cfg(test)]
mod tests {
    use super::transfers::tests::{home, located, stamp, stub};
    use super::*;
    use crate::strategy::Strategy as RoutingStrategy;
    use crate::transfer::{Extent, HomeId, Stamp};
    use proptest::prelude::*;
    use proptest::strategy::Strategy;

    fn id() -> impl Strategy<Value = BrokerId> {
        "[a-z][a-z0-9.-]{0,20}".prop_map(|name| BrokerId::new(&name).unwrap())
    }

    fn filters() -> impl Strategy<Value = Vec<Box<str>>> {
        let filter = "([a-z]{1,5}|\\+)(/([a-z]{1,5}|\\+)){0,3}(/#)?";
        proptest::collection::vec(filter.prop_map(|f| f.into_boxed_str()), 0..20)
    }

    fn interest() -> impl Strategy<Value = Vec<Box<str>>> {
        let kept = ids().prop_map(|ids| ids.into_iter().map(|id| format!("{KEEPS}{id}").into()));
        (filters(), kept).prop_map(|(filters, kept)| filters.into_iter().chain(kept).collect())
    }

    fn ids() -> impl Strategy<Value = Vec<BrokerId>> {
        proptest::collection::vec(id(), 0..6)
    }

    fn members() -> impl Strategy<Value = Vec<Member>> {
        let filter = "\\$share/[a-z]{1,3}/([a-z]{1,5}|\\+)(/#)?";
        let member = (id(), filter.prop_map(|filter| filter.into_boxed_str()));
        proptest::collection::vec(member, 0..6)
    }

    fn path() -> impl Strategy<Value = Vec<(BrokerId, u64)>> {
        proptest::collection::vec((id(), any::<u64>()), 1..6)
    }

    fn hello() -> impl Strategy<Value = Message> {
        let epoch_request = proptest::option::of((id(), any::<u64>()));
        let numbers = any::<[u64; 6]>();
        let echo = any::<Option<(u64, u64)>>();
        (
            id(),
            numbers,
            any::<u16>(),
            0..1u64 << 40,
            any::<bool>(),
            epoch_request,
            echo,
        )
            .prop_map(
                |(
                    id,
                    [number, capacity, epoch, cost, asks, answered],
                    hops,
                    age,
                    held,
                    epoch_request,
                    echo,
                )| {
                    let advert = Advert {
                        number,
                        root: Rank { capacity, id },
                        epoch,
                        cost,
                        hops,
                        age: Nanos::from_millis(age % 1_000_000),
                        asks,
                        answered,
                        held,
                        epoch_request: epoch_request
                            .map(|(root, above)| EpochRequest { root, above }),
                    };
                    Message::Hello(Hello {
                        advert,
                        sent: number ^ cost,
                        echo,
                        clock: (asks % 2 == 0).then_some(epoch),
                    })
                },
            )
    }

    fn instant() -> impl Strategy<Value = u64> {
        0..=punctual_model::LAST_INSTANT
    }

    #[expect(clippy::too_many_lines, reason = "one strategy for each message")]
    fn message() -> impl Strategy<Value = Message> {
        let open =
            (id(), 1..5u8, 0..3u8, any::<bool>()).prop_map(|(id, low, strategy, dialled)| {
                Message::Open(Open {
                    versions: (low, low + 1),
                    id,
                    instance: u64::from(low) << 60,
                    strategy: RoutingStrategy::from_byte(strategy).unwrap(),
                    dialled,
                })
            });
        let traced = (path(), any::<u64>(), any::<u8>()).prop_map(|(path, number, next)| {
            Message::TraceReply(TraceReply {
                number,
                left: path.len() as u8 - 1,
                path,
                subscribed: number % 2 == 0,
                next,
            })
        });
        let trace = (id(), any::<u64>(), path()).prop_map(|(origin, number, path)| {
            Message::Trace(Trace {
                origin,
                number,
                topic: "a/b".into(),
                path,
            })
        });
        let clients = || {
            let client = "[a-zä/ ]{1,20}".prop_map(|client| client.into_boxed_str());
            proptest::collection::vec(client, 0..6)
        };
        let wills = || {
            let will = ("[a-z]{1,9}", instant(), any::<u32>(), any::<Vec<u8>>());
            let will = will.prop_map(|(client, at, delay, message)| ClientWill {
                client: client.into(),
                at,
                delay,
                message: message.into(),
            });
            proptest::collection::vec(will, 0..4)
        };
        let told = (any::<bool>(), any::<u8>(), wills(), clients());
        let left = (id(), (any::<u64>(), instant()), wills(), wills());
        let body = proptest::collection::vec(any::<u8>(), 0..40);
        let stub = ("[a-zä/ ]{1,20}", stub()).prop_map(|(client, stub)| (client.into(), stub));
        let stubs = proptest::collection::vec(stub, 0..4);
        let places = proptest::collection::btree_set(0..MAX_STUBS as u32, 0..5);
        let numbers = any::<(u64, u32, bool)>();
        let user = proptest::option::of("[a-z]{0,9}");
        let looked_for = (stamp(), numbers, "[a-zä/ ]{1,20}", user);
        let located = proptest::collection::vec((home(), located()), 0..4);
        prop_oneof![
            (id(), any::<u64>(), 0..3u8, stubs).prop_map(|(by, number, after, stubs)| {
                Message::Fence(Fence {
                    by,
                    number,
                    after: [
                        FenceCondition::Nothing,
                        FenceCondition::PassedOn,
                        FenceCondition::Settled,
                    ][usize::from(after)],
                    stubs: stubs.into(),
                })
            }),
            (id(), any::<u64>(), places).prop_map(|(by, number, places)| {
                Message::FenceReply(FenceReply {
                    by,
                    number,
                    blocked: places.into_iter().collect(),
                })
            }),
            looked_for.prop_map(|(at, (round, wait, clean), client, user)| {
                Message::LookUp(LookUp {
                    at,
                    round,
                    client: client.into(),
                    user: user.map(Into::into),
                    clean,
                    wait,
                })
            }),
            (stamp(), any::<u64>(), located, extent()).prop_map(|(at, round, answers, extent)| {
                Message::LookUpReply(LookUpReply {
                    at,
                    round,
                    answers,
                    extent,
                })
            }),
            (id(), id(), body).prop_map(|(to, from, body)| Message::Envelope(Envelope {
                to,
                from,
                client: "c".into(),
                body: body.into(),
            })),
            told.prop_map(|(all, turn, add, remove)| Message::Wills {
                all,
                turn,
                add,
                remove
            }),
            (clients(), instant()).prop_map(|(clients, at)| {
                let arrivals = clients.into_iter();
                let clean = at % 2 == 0;
                let user = || (at % 3 == 0).then(|| "user".into());
                let arrival = |client| Arrival {
                    client,
                    user: user(),
                    at,
                    clean,
                };
                Message::Arrived(arrivals.map(arrival).collect())
            }),
            left.prop_map(|(to, (instance, lost), wills, published)| {
                let moved = published.iter().map(|will| Arrival {
                    client: will.client.clone(),
                    user: None,
                    at: lost,
                    clean: false,
                });
                Message::GuardReport(GuardReport {
                    moved: moved.collect(),
                    to,
                    instance,
                    lost,
                    wills,
                    published,
                })
            }),
            open,
            hello(),
            (filters(), filters()).prop_map(|(add, remove)| Message::Filters { add, remove }),
            proptest::collection::vec(0..3u64, BUCKETS)
                .prop_map(|sums| Message::Digest(Box::new(sums.try_into().unwrap()))),
            any::<u64>().prop_map(Message::Want),
            (0..64u8, filters()).prop_map(|(index, filters)| Message::Bucket { index, filters }),
            trace,
            traced,
            (any::<bool>(), ids(), ids()).prop_map(|(all, add, remove)| Message::Here {
                all,
                add,
                remove
            }),
            (any::<bool>(), members(), members()).prop_map(|(all, add, remove)| Message::Members {
                all,
                add,
                remove
            }),
            proptest::collection::vec((id(), any::<u64>()), 0..6).prop_map(Message::Sums),
            ids().prop_map(Message::Ask),
            (id(), any::<[bool; 2]>(), interest(), interest()).prop_map(
                |(of, [all, more], add, remove)| Message::PersistentInterest(InterestUpdate {
                    of,
                    all,
                    more,
                    add,
                    remove
                })
            ),
        ]
    }

    fn extent() -> impl Strategy<Value = Extent> {
        prop_oneof![
            Just(Extent::All),
            Just(Extent::Reached),
            Just(Extent::Incomplete)
        ]
    }

    proptest! {
        /// What was written is read, in one way only.
        #[test]
        fn messages_survive(message in message()) {
            let bytes = message.encode();
            prop_assert_eq!(Message::decode(&bytes), Ok(message));
            for end in 0..bytes.len() {
                prop_assert!(Message::decode(&bytes[..end]).is_err());
            }
            let more = [&bytes[..], &[0]].concat();
            prop_assert_eq!(Message::decode(&more), Err(WireError::Trailing));
        }

        /// Other bytes are refused, or are how the message is written.
        #[test]
        fn bytes_survive(message in message(), at in any::<prop::sample::Index>(), byte: u8) {
            let mut bytes = message.encode();
            let at = at.index(bytes.len());
            bytes[at] = byte;
            if let Ok(message) = Message::decode(&bytes) {
                prop_assert_eq!(message.encode(), bytes);
            }
        }
    }

    #[test]
    fn claims_that_cannot_be_true_are_refused() {
        let client = |client: &str, at| {
            Message::Arrived(vec![Arrival {
                client: client.into(),
                user: None,
                at,
                clean: false,
            }])
        };
        let look_up = |user: &str, micros| {
            let by = HomeId::new("b").unwrap();
            Message::LookUp(LookUp {
                at: Stamp { micros, by },
                round: 1,
                client: "c".into(),
                user: Some(user.into()),
                clean: false,
                wait: 1,
            })
        };
        let last = punctual_model::LAST_INSTANT;
        for (message, field) in [
            (client("$mesh/a", 1), "client identifier"),
            (client("a\0", 1), "client identifier"),
            (client(&"x".repeat(1 << 16), 1), "client identifier"),
            (client("c", last + 1), "instant"),
            (client("c", u64::MAX), "instant"),
            (look_up("u\0", 1), "user name"),
            (look_up(&"x".repeat(1 << 16), 1), "user name"),
            (look_up("u", u64::MAX), "instant"),
        ] {
            let decoded = Message::decode(&message.encode());
            assert_eq!(decoded, Err(WireError::Field(field)));
        }
        assert!(Message::decode(&client("$mesh", last).encode()).is_ok());
    }

    /// An envelope with the largest part of a session fits into a message, and so does a fence with the largest
    /// number of stubs.
    #[test]
    fn what_is_said_of_sessions_that_move_fits() {
        let id = |n: usize| BrokerId::new(&"b".repeat(n)).unwrap();
        let client: Box<str> = "c".repeat(usize::from(u16::MAX)).into();
        let envelope = |length| {
            Message::Envelope(Envelope {
                to: id(MAX_NAME),
                from: id(MAX_NAME),
                client: client.clone(),
                body: vec![0; length].into(),
            })
        };
        let longest = envelope(crate::transfer::MAX_PART + 1024);
        assert_eq!(Message::decode(&longest.encode()), Ok(longest));

        let stamp = || Stamp {
            micros: 1,
            by: id(1).into(),
        };
        let stub = || crate::transfer::Stub {
            target: id(1).into(),
            target_epoch: stamp(),
            for_epoch: stamp(),
        };
        let fence = |stubs: usize| {
            Message::Fence(Fence {
                by: id(1),
                number: 1,
                after: FenceCondition::Settled,
                stubs: (0..stubs).map(|_| ("c".into(), stub())).collect(),
            })
        };
        for (stubs, fits) in [(0, true), (MAX_STUBS, true), (MAX_STUBS + 1, false)] {
            let decoded = Message::decode(&fence(stubs).encode());
            assert_eq!(decoded.is_ok(), fits, "{stubs}");
        }
        for (blocked, fits) in [
            (vec![0, 255], true),
            (vec![255, 0], false),
            (vec![1, 1], false),
            (vec![256], false),
        ] {
            let (by, number) = (id(1), 1);
            let fenced = Message::FenceReply(FenceReply {
                by,
                number,
                blocked,
            });
            assert_eq!(Message::decode(&fenced.encode()).is_ok(), fits);
        }
    }

    #[test]
    fn the_highest_version_of_both_is_spoken() {
        for (ours, theirs, common) in [
            (1..=1, 1..=1, Some(1)),
            (1..=1, 1..=2, Some(1)),
            (1..=2, 1..=2, Some(2)),
            (1..=2, 2..=3, Some(2)),
            (1..=9, 3..=5, Some(5)),
            (1..=1, 2..=2, None),
            (1..=2, 3..=255, None),
        ] {
            assert_eq!(common_version(&ours, &theirs), common);
            assert_eq!(common_version(&theirs, &ours), common);
        }
    }

    #[test]
    fn depth_is_bounded_whatever_the_message() {
        let id = || BrokerId::new("b").unwrap();
        let messages = |levels: usize| {
            let deep: Box<str> = ("a/".repeat(levels - 1) + "a").into();
            let shared: Box<str> = format!("$share/g/{deep}").into();
            [
                Message::Filters {
                    add: vec![deep.clone()],
                    remove: vec![],
                },
                Message::Bucket {
                    index: 1,
                    filters: vec![deep.clone()],
                },
                Message::Members {
                    all: true,
                    add: vec![(id(), shared)],
                    remove: vec![],
                },
                Message::PersistentInterest(InterestUpdate {
                    of: id(),
                    all: true,
                    more: false,
                    add: vec![deep.clone()],
                    remove: vec![],
                }),
                Message::Trace(Trace {
                    origin: id(),
                    number: 1,
                    topic: deep,
                    path: vec![(id(), 0)],
                }),
            ]
        };
        for message in messages(MAX_LEVELS) {
            assert_eq!(Message::decode(&message.encode()), Ok(message));
        }
        for levels in [MAX_LEVELS + 1, 30_000] {
            for message in messages(levels) {
                assert_eq!(Message::decode(&message.encode()), Err(WireError::Levels));
            }
        }
    }

    #[test]
    fn numbers_have_one_form() {
        assert_eq!(
            Message::decode(&[4, 0x80, 0]),
            Err(WireError::Field("number"))
        );
        assert_eq!(Message::decode(&[4, 0]), Ok(Message::Want(0)));
        let most = Message::Want(u64::MAX).encode();
        assert_eq!(Message::decode(&most), Ok(Message::Want(u64::MAX)));
        let mut more = most;
        more[10] = 2;
        assert_eq!(Message::decode(&more), Err(WireError::Field("number")));
    }

    #[test]
    fn what_is_not_for_others_is_refused() {
        for filter in ["$SYS/#", "$share/g/a", "a/#/b", ""] {
            let add = vec![filter.into(), "padding".into()];
            let remove = Vec::new();
            let bytes = Message::Filters { add, remove }.encode();
            assert_eq!(
                Message::decode(&bytes),
                Err(WireError::Field("filter")),
                "{filter}"
            );
        }
    }
}
