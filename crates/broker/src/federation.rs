//! What joins a broker to others: a seam between a shard and whoever keeps the tree
//! and the subscription tables of a mesh.
//!
//! A neighbour broker is a client whose identifier begins with [`LINK_PREFIX`]. Its
//! session is ordinary (queue, window, acknowledgements survive a connection), but
//! lives on the first shard, what it subscribes to is decided by the federation, and
//! messages to it carry a name ([`MessageName`]) as their last user property. What
//! comes from it has one too; a message that was here before is acknowledged and
//! goes nowhere, unless it is sent again on another way: then it goes on to
//! neighbours, one of which may have come here meanwhile, once until something changes.
//!
//! Invariant: what is acknowledged to a neighbour is with all its receivers, and where
//! there is a store, committed for those that survive. While another neighbour has
//! no room for it, it is not acknowledged, nor what comes after it on its topic, and neighbours
//! send less of that ([`crate::brake`]); so queues are
//! bounded, and what is in them is never given up for lack of room.

use std::collections::VecDeque;
use std::fmt::Debug;
use std::num::NonZeroU32;
use std::sync::Arc;

use hashbrown::{HashMap, HashSet};
use punctual_codec::Properties;
use punctual_mesh::transfer::{HomeId, Located, Stamp, Stub, Times};
use punctual_mesh::wire::SessionAddress;
use punctual_model::{MAX_PRIORITY, deadline_monotonic};
use smallvec::SmallVec;

use crate::Nanos;
use crate::base::connection::ConnId;
use crate::base::name::MessageName;
use crate::base::version::VERSION_BITS;
use crate::parked::Parked;
use crate::urgency::{Asked, UrgencyRights};

/// In front of this broker's name in the reason string of a CONNACK that refuses a neighbour which
/// it has a connection to already.
pub const LINKED_ALREADY: &str = "connected already, as ";

/// What a neighbour is told of a message beside its name.
///
/// Subscription Identifiers carry it, which have no other meaning between brokers and
/// are kept wherever a message for a session is: how far it is followed, if not in all, then
/// what there is, then pairs of numbers of [`Self::WORD`] bits, each with a bit above them
/// because 0 cannot be written.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Notes {
    /// The version of what its topic retains with it; 0 for none.
    pub(crate) version: u64,
    /// It is not published now: a comparison found that the neighbour lacks it.
    pub(crate) missing: bool,
    /// It is for members of shared subscriptions only.
    pub(crate) handed: bool,
    /// Which broker is to give it to a member of which shared subscription.
    pub(crate) duties: SmallVec<[Duty; 1]>,
    /// The payload is not that of a message, but whole PUBLISH packets.
    pub(crate) packing: Option<Packing>,
    /// How far it is followed in what it states.
    pub(crate) heed: Heed,
}

/// How far what a message states about its urgency is followed, as the broker found that took
/// it in: by the rights of its publisher.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Heed {
    /// As any broker finds.
    #[default]
    All,
    /// A deadline counts as what this `rt-priority`, 0..=6, allows.
    UpTo(u8),
    /// As if it stated nothing.
    Nothing,
}

impl Heed {
    /// As rights bind what is asked for.
    pub(crate) fn of(asked: &Asked) -> Self {
        match asked.urgency.least_deadline {
            _ if asked.refused.is_some() => Self::Nothing,
            Nanos(0) => Self::All,
            Nanos(least) => Self::UpTo(deadline_monotonic(least)),
        }
    }

    /// What is left of the rights of a neighbour on whose way it comes.
    pub(crate) fn limit(self, rights: UrgencyRights) -> UrgencyRights {
        let most = match self {
            Self::All | Self::Nothing => MAX_PRIORITY,
            Self::UpTo(most) => most,
        };
        UrgencyRights {
            max_rt_priority: rights.max_rt_priority.map(|own| own.min(most)),
            ..rights
        }
    }

    /// As a small number; 0 for all.
    pub(crate) fn code(self) -> u8 {
        match self {
            Self::All => 0,
            Self::Nothing => 1,
            Self::UpTo(most) => 2 + most,
        }
    }

    /// Reads what [`Self::code`] wrote, and nothing else.
    pub(crate) fn from_code(code: u32) -> Option<Self> {
        match code {
            0 => Some(Self::All),
            1 => Some(Self::Nothing),
            2..=8 => Some(Self::UpTo(code as u8 - 2)),
            _ => None,
        }
    }
}

/// Packets that go to a neighbour as one: with QoS 0, on one topic, without properties.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Packing {
    /// They are those of MQTT 5.
    pub(crate) v5: bool,
}

/// That a broker is to give a message to a member of a shared subscription.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Duty {
    /// [`sign`] of the broker's name.
    pub(crate) broker: u32,
    /// [`sign`] of the subscription's filter.
    pub(crate) group: u32,
}

impl Notes {
    const WORD: u32 = VERSION_BITS / 2;
    const TOP: u32 = 1 << Self::WORD;
    const VERSION: u32 = 1;
    const MISSING: u32 = 2;
    const HANDED: u32 = 4;
    const RUN: u32 = 8;
    const RUN_5: u32 = 16;
    const HEED: u32 = 32;

    /// Of a retained message that a neighbour lacks.
    pub(crate) fn missing(version: u64) -> Self {
        Self {
            version,
            missing: true,
            ..Self::default()
        }
    }

    /// Of packets that go as one.
    pub(crate) fn packed(packing: Packing) -> Self {
        Self {
            packing: Some(packing),
            ..Self::default()
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    pub(crate) fn ids(&self) -> Arc<[u32]> {
        let heed = (self.heed != Heed::All).then(|| Self::HEED | u32::from(self.heed.code()));
        let rest = Self {
            heed: Heed::All,
            ..self.clone()
        };
        let flags = (heed.is_none() || !rest.is_empty()).then(|| self.flags());
        let word = |at: u32| (self.version >> (Self::WORD * at)) as u32 % Self::TOP;
        let version = (self.version > 0).then(|| [word(1), word(0)]);
        let duties = self.duties.iter().map(|duty| [duty.broker, duty.group]);
        let pairs = version.into_iter().chain(duties);
        let first = heed.into_iter().chain(flags);
        first
            .chain(pairs.flatten())
            .map(|word| word | Self::TOP)
            .collect()
    }

    fn flags(&self) -> u32 {
        let flags = [
            (self.version > 0, Self::VERSION),
            (self.missing, Self::MISSING),
            (self.handed, Self::HANDED),
            (self.packing == Some(Packing { v5: false }), Self::RUN),
            (self.packing == Some(Packing { v5: true }), Self::RUN_5),
        ];
        let flags = flags.iter().filter(|(is, _)| *is).map(|(_, flag)| flag);
        flags.sum()
    }

    /// Reads what [`Self::ids`] wrote, and nothing else.
    pub(crate) fn read(properties: Properties<'_>) -> Option<Self> {
        let mut words = properties.subscription_ids().peekable();
        let Some(first) = words.peek() else {
            return Some(Self::default());
        };
        let first = first.checked_sub(Self::TOP)?;
        let mut heed = Heed::All;
        if first & Self::HEED != 0 {
            heed = Heed::from_code(first ^ Self::HEED).filter(|heed| *heed != Heed::All)?;
            words.next();
            if words.peek().is_none() {
                return Some(Self {
                    heed,
                    ..Self::default()
                });
            }
        }
        let mut next = || words.next()?.checked_sub(Self::TOP);
        let flags = next()?;
        if flags == Self::RUN || flags == Self::RUN_5 {
            let v5 = flags == Self::RUN_5;
            let alone = words.next().is_none() && heed == Heed::All;
            return alone.then(|| Self::packed(Packing { v5 }));
        }
        if flags & !(Self::VERSION | Self::MISSING | Self::HANDED) != 0 {
            return None;
        }
        let mut notes = Self {
            missing: flags & Self::MISSING != 0,
            handed: flags & Self::HANDED != 0,
            heed,
            ..Self::default()
        };
        if flags & Self::VERSION != 0 {
            notes.version = u64::from(next()?) << Self::WORD | u64::from(next()?);
        }
        while let Some(broker) = next() {
            let group = next()?;
            notes.duties.push(Duty { broker, group });
        }
        let says_nothing = flags == 0 && notes.duties.is_empty();
        (heed == Heed::All || !says_nothing).then_some(notes)
    }
}

/// Who asks to be let in as a neighbour.
#[derive(Clone, Copy)]
pub struct Newcomer<'a> {
    /// The name that it claims.
    pub peer: &'a str,
    /// What it presents as the secret of the mesh, as the password of [`SECRET_USER`](crate::SECRET_USER).
    pub secret: Option<&'a [u8]>,
    /// Whether it has proven to be a user who may be the broker of that name.
    pub is_permitted: bool,
}

/// Why a neighbour is not let in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unwelcome {
    /// It has proven nothing that counts.
    NotPermitted,
    /// It presents another secret, or this mesh has none.
    WrongSecret,
    /// What it claims is no name.
    NoName,
    /// It claims the name of this broker.
    OwnName,
    /// There is a better connection to it.
    Connected,
}

impl Unwelcome {
    /// What it is told.
    pub(crate) fn why(self) -> &'static str {
        match self {
            Self::NotPermitted => "not allowed to connect as a neighbour broker of that name",
            Self::WrongSecret => "its secret is not that of this mesh (mesh.secret_file)",
            Self::NoName => "what follows $mesh/ in its client identifier is no name of a broker",
            Self::OwnName => "this broker has the same name: give each its own (mesh.id)",
            Self::Connected => LINKED_ALREADY,
        }
    }
}

/// What a federation is told of links.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LinkNews<'a> {
    /// A neighbour is connected, and may be one.
    Up {
        /// Whether this broker opened the connection.
        dialled: bool,
    },
    /// A message for the federation.
    Message(&'a [u8]),
    /// Publications of the neighbour wait from now on, here for room or the store or there because
    /// of that, or none does any more; none does when the connection is gone.
    Waits(bool),
    /// The connection is gone.
    Down(&'a str),
}

/// What a client leaves behind, for the case that this broker is lost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Testament {
    /// When it connected, see [`Federation::arrived`].
    pub at: u64,
    /// Seconds between the loss of the client and its will; not beyond the end of its session.
    pub delay: u32,
    /// For [`crate::Shard::link_will`] of another broker.
    pub message: Arc<[u8]>,
}

/// How messages go where all of them go by the root of a tree: up to it, and from
/// there down to everybody.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Relay {
    /// The neighbour that leads to the root; `None` at the root.
    pub parent: Option<Arc<str>>,
}

/// The service that a broker of a mesh offers to clients. It depends on how much the broker knows of the
/// mesh.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(u8)]
pub enum Service {
    /// The broker has not learned the subscriptions at other brokers yet. It refuses every CONNECT.
    None,
    /// The configuration names neighbours, but the broker has reached none and remembers none for which it
    /// could keep messages. It accepts clients, and refuses their publications with QoS 1 and 2.
    Deliveries,
    /// Full service: the broker delivers each message that it acknowledges to all subscribers, or keeps it
    /// for them.
    #[default]
    Full,
}

impl Service {
    /// As stored in one byte by `as u8`; an unknown one promises nothing.
    pub fn from_byte(byte: u8) -> Self {
        match byte {
            1 => Self::Deliveries,
            2 => Self::Full,
            _ => Self::None,
        }
    }
}

/// Who keeps the tree and the tables. Called on shard threads: nothing may block or
/// take long.
pub trait Federation: Debug + Send + Sync {
    /// A client has subscribed to a filter for which it had no subscription; `lasting` if its
    /// session is persistent, and to be sent messages with QoS 1 or 2 also when it is back.
    fn subscribed(&self, filter: &str, lasting: bool);
    /// A client's subscription to a filter, which was told of so, is gone.
    fn unsubscribed(&self, filter: &str, lasting: bool);
    /// Whether a neighbour may connect now.
    ///
    /// # Errors
    /// Why not.
    fn admit(&self, newcomer: Newcomer<'_>) -> Result<(), Unwelcome>;
    /// Something about the link on connection `conn` of the first shard; `peer` is
    /// the neighbour's name.
    fn link(&self, conn: ConnId, peer: &str, news: LinkNews<'_>);
    /// What messages are called that are taken in here.
    fn origin(&self) -> NonZeroU32;
    /// What may be promised to clients now.
    fn service(&self) -> Service {
        Service::Full
    }
    /// Whether a message from a neighbour was not here before.
    fn is_new(&self, name: MessageName, at_most_once: bool) -> bool;
    /// This broker's name.
    fn name(&self) -> &str;
    /// Microseconds since 1970, by which brokers agree which of two retained messages
    /// is the newer.
    fn clock(&self) -> u64;
    /// A client has connected here as that user, and is nowhere else from now on; with `clean_start`, nothing
    /// is to be kept for it elsewhere. Returns when that was: `since`, if its session was looked
    /// for, or now and later than all that was heard of, as [`Self::clock`] counts.
    fn arrived(
        &self,
        _client_id: &str,
        _user: Option<&str>,
        _clean_start: bool,
        since: Option<u64>,
    ) -> u64 {
        since.unwrap_or(0)
    }
    /// Something for [`crate::Shard::letter`] of another broker, about a client's session. It
    /// may be lost.
    fn letter(&self, _to: &str, _client_id: &str, _body: Arc<[u8]>) {}
    /// The answer to [`crate::Shard::link_keep`].
    fn wishes_kept(&self, _number: u64) {}
    /// The answer to [`crate::Shard::link_flush`].
    fn flushed(&self, _number: u64) {}
    /// How long things may take when sessions move.
    fn transfer_times(&self) -> Times {
        Times {
            session_wait: Nanos(0),
            heal: Nanos(0),
            keep: Nanos(0),
        }
    }
    /// A stamp for a CONNECT that comes now: greater than all that were issued or heard of here.
    fn next_stamp(&self) -> u64 {
        self.clock()
    }
    /// Asks all other brokers what they have of a client that connects as that user
    /// ([`crate::Shard::look_up`]); [`crate::Shard::located`] is the answer, with the same stamp.
    fn look_up(&self, _client_id: &str, _user: Option<&str>, _at: &Stamp, _clean: bool) {}
    /// The answer to [`crate::Shard::look_up`].
    fn found(&self, _by: &HomeId, _client_id: &str, _at: &Stamp, _located: Located) {}
    /// Puts a fence behind what is on its way to a stub: [`crate::Shard::fence_passed`] is to be called
    /// with the client and [`Stub::target_epoch`] when all of it has come, and no broker has answered
    /// [`crate::Shard::fence_asked`] with anything but [`FenceAnswer::Clear`]. Otherwise nothing is called.
    ///
    /// [`FenceAnswer::Clear`]: punctual_mesh::transfer::FenceAnswer::Clear
    fn fence_stub(&self, _client_id: &str, _stub: &Stub) {}
    /// A neighbour has forwarded a message for a client's session: [`crate::Shard::take_forwarded`] is to
    /// be called with both on the shard of that client, and answers with [`Self::forwarded`].
    fn forward(&self, _number: u64, _address: &SessionAddress, _message: Arc<[u8]>) {}
    /// What [`Self::forward`] had with that number is safe: [`crate::Shard::forwarded`] is to be called
    /// on the first shard.
    fn forwarded(&self, _number: u64) {}
    /// Names of messages that came from neighbours, the last ones, the latest last, and how many of
    /// them came since [`Self::mark_passed`] returned `mark`.
    fn passed(&self, _mark: u64) -> (Vec<MessageName>, usize) {
        (Vec::new(), 0)
    }
    /// How many messages have come from neighbours.
    fn mark_passed(&self) -> u64 {
        0
    }
    /// How long things may take when sessions move.
    fn move_times(&self) -> MoveTimes {
        MoveTimes {
            linger: Nanos(0),
            heal: Nanos(0),
        }
    }
    /// What a client leaves behind from now on if this broker is lost.
    fn left_behind(&self, _client_id: &str, _will: Option<Testament>) {}
    /// How long this broker, having started again, waits for clients before it publishes what
    /// they left behind: others may have done so.
    fn will_wait(&self) -> Nanos {
        Nanos(0)
    }
    /// Topics below `$SYS`, and what they say now.
    fn topics(&self) -> Vec<(String, String)> {
        Vec::new()
    }
    /// The way by the root, if all messages go by it; `None` if they go over every
    /// link on which they are wanted.
    fn relay(&self) -> Option<Relay> {
        None
    }
    /// Whether a message did not pass here before on its way up to the root.
    fn is_new_upwards(&self, _name: MessageName) -> bool {
        true
    }
    /// A message from a neighbour is here now, or was before the last start.
    fn note(&self, name: MessageName);
    /// Like [`Self::is_new`] for a message with QoS 1 that comes for the first time; one that is
    /// new is noted.
    fn note_new(&self, name: MessageName) -> bool {
        let is_new = self.is_new(name, false);
        if is_new {
            self.note(name);
        }
        is_new
    }
    /// Whether that is known of a message, or may be so.
    fn was_here(&self, _name: MessageName) -> bool {
        true
    }
    /// What messages were called that were taken in here before a restart.
    fn was_origin(&self, origin: NonZeroU32);
}

/// What is kept of a neighbour, see [`crate::Shard::links`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeptLink {
    /// Its name.
    pub peer: String,
    /// What it wants.
    pub filters: Vec<Box<str>>,
    /// Brokers behind it with members of shared subscriptions, and the filters of these; and with
    /// persistent sessions, and the plain filters on which these await messages.
    pub members: Vec<(String, Box<str>)>,
    /// Brokers that it leads to, itself among them; none if that is not known.
    pub behind: Vec<String>,
}

/// By what a neighbour is one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Entitlement {
    /// This broker has connected to it.
    #[default]
    Dialled,
    /// It knows the secret of the mesh.
    Secret,
    /// Its user has the right to be it.
    Right,
}

/// What a session of a neighbour has beyond those of clients.
#[derive(Debug, Default)]
pub(crate) struct LinkState {
    /// By what it was let in last.
    pub(crate) entitlement: Entitlement,
    /// What the neighbour wants.
    pub(crate) filters: HashSet<Box<str>, foldhash::fast::RandomState>,
    /// Brokers behind it where shared subscriptions have members, by their filters.
    pub(crate) members: HashMap<Box<str>, Vec<Box<str>>, foldhash::fast::RandomState>,
    /// Brokers behind it where persistent sessions await messages, by the filters.
    pub(crate) awaited: HashMap<Box<str>, Vec<Box<str>>, foldhash::fast::RandomState>,
    /// Brokers that it leads to, itself among them, if that is known.
    pub(crate) behind: Vec<Box<str>>,
    /// Messages in flight that the neighbour allows, while none are sent.
    pub(crate) held: Option<u16>,
    /// Publications of the neighbour that are not acknowledged because there is no
    /// room where they have to go.
    pub(crate) parked: Parked,
    /// The same of those before which another one is to come; in the order in which they came.
    pub(crate) early: VecDeque<Early>,
    /// Retained messages that the neighbour has told it has, since it began to.
    pub(crate) has: Vec<u64>,
    /// Filters on which the neighbour takes only little, as it says.
    pub(crate) brake: Arc<[Box<str>]>,
    /// What it was told of that last, by parts.
    pub(crate) told: Vec<Arc<[Box<str>]>>,
    /// Its filters, while its queue is full: few that match the same and more.
    pub(crate) full: Option<Arc<[Box<str>]>>,
    /// So is what is kept back for it.
    pub(crate) braked_full: bool,
}

impl LinkState {
    /// Whether publications of the neighbour wait, here or there, because there is no room here.
    pub(crate) fn waits(&self) -> bool {
        !self.parked.is_empty() || !self.early.is_empty() || !self.told.is_empty()
    }
}

/// A publication of a neighbour that came before the one that was published before it.
#[derive(Debug)]
pub(crate) struct Early {
    /// What it waits for,
    pub(crate) previous: MessageName,
    /// and how long at most.
    pub(crate) until: Nanos,
    pub(crate) packet: Box<[u8]>,
}

/// How long things may take when sessions move between brokers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MoveTimes {
    /// A message is under way in the mesh.
    pub linger: Nanos,
    /// A broker is away until nothing more waits for it.
    pub heal: Nanos,
}

impl MoveTimes {
    /// Without a mesh.
    pub(crate) const NONE: Self = Self {
        linger: Nanos(0),
        heal: Nanos(0),
    };

    /// How long a message waits for the one before it: few are under way for longer than a part of
    /// the time for which they may be, and where one waits it is under way itself.
    pub(crate) fn patience(self) -> Nanos {
        Nanos(self.linger.0 / 4)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use punctual_codec::{PropertyBuf, PropertyId};

    proptest! {
        #[test]
        fn notes_are_read_as_written(
            version in 0..1u64 << VERSION_BITS,
            missing: bool,
            handed: bool,
            signs in proptest::collection::vec((0..Notes::TOP, 0..Notes::TOP), 0..4),
            heed in (0..9u32).prop_map(|code| Heed::from_code(code).unwrap()),
        ) {
            let duties = signs.into_iter().map(|(broker, group)| Duty { broker, group });
            let duties = duties.collect();
            let notes = match version % 3 {
                0 => Notes::packed(Packing { v5: missing }),
                1 => Notes { heed, ..Notes::default() },
                _ => Notes { version, missing, handed, duties, packing: None, heed },
            };
            let mut properties = PropertyBuf::new();
            for id in &*notes.ids() {
                properties.push_number(PropertyId::SubscriptionIdentifier, *id);
            }
            prop_assert_eq!(Notes::read(properties.as_properties()), Some(notes));
            properties.push_number(PropertyId::SubscriptionIdentifier, Notes::TOP);
            prop_assert_eq!(Notes::read(properties.as_properties()), None);
        }

        #[test]
        fn names_are_read_as_written(
            origin in 1..=u32::MAX,
            number: u32,
            again: bool,
            back in prop_oneof![0..3u16, any::<u16>()],
            whole: bool,
        ) {
            let name = MessageName {
                origin: NonZeroU32::new(origin).unwrap(),
                number,
                again,
                back,
            };
            let mut text = [0; MessageName::LONGEST];
            let len = name.put_text(whole, &mut text);
            let text = &text[..len];
            let known = || (!whole).then_some(name.origin);
            prop_assert_eq!(MessageName::parse(text, known), Some(name));
            prop_assert_eq!(MessageName::parse(text, || None), whole.then_some(name));
            prop_assert_eq!(name.text_len(whole), len);
            prop_assert_eq!(MessageName::parse(&[text, b"0"].concat(), known), None);
            let plain = MessageName { back: 0, ..name };
            prop_assert_eq!(text.len() == plain.text_len(whole), back < 2);
        }

        #[test]
        fn other_text_is_refused_or_one_way_to_write_a_name(text in "[.!,;0-9A-Za-z_-]{0,18}") {
            let mut whole = true;
            let known = || {
                whole = false;
                Some(NonZeroU32::MIN)
            };
            if let Some(name) = MessageName::parse(text.as_bytes(), known) {
                let mut again = [0; MessageName::LONGEST];
                let len = name.put_text(whole, &mut again);
                prop_assert_eq!(&again[..len], text.as_bytes());
            }
        }
    }
}
