//! What joins a broker to others: a seam between a shard and whoever keeps the tree
//! and the subscription tables of a mesh.
//!
//! A neighbour broker is a client whose identifier begins with [`LINK_PREFIX`]. Its
//! session is ordinary (queue, window, acknowledgements survive a connection), but
//! lives on the first shard, what it subscribes to is decided by the federation, and
//! messages to it carry a name ([`MessageName`]) as their last user property. What
//! comes from it has one too; a message that was here before is acknowledged and
//! goes nowhere, unless it is sent again on another way: then it goes on to
//! neighbours, one of which may have come here meanwhile.
//!
//! Invariant: what is acknowledged to a neighbour is with all its receivers, and where
//! there is a store, committed for those that survive. While another neighbour has
//! no room for it, it is not acknowledged, and nothing after it; so queues are
//! bounded, and what is in them is never given up for lack of room.

use std::collections::VecDeque;
use std::fmt::Debug;
use std::num::NonZeroU32;
use std::sync::Arc;

use hashbrown::HashSet;
use punctual_codec::Properties;

use crate::hub::ConnId;
use crate::retained::VERSION_BITS;

/// Client identifiers of neighbour brokers begin with this.
pub const LINK_PREFIX: &str = "$mesh/";
/// Topics on which neighbours speak to each other begin with this.
pub const LINK_TOPIC: &[u8] = b"$mesh/";
/// Key of the user property with a message's name.
pub(crate) const NAME_KEY: &str = "@";
/// Digits of numbers in a name.
const DIGITS: &[u8; 64] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz-";

/// What a message is called throughout the mesh.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct MessageName {
    /// The broker instance that took it in.
    pub origin: NonZeroU32,
    /// Counts up there.
    pub number: u32,
    /// Whether it was sent over another link before.
    pub again: bool,
}

impl MessageName {
    /// Text, and how long it is: digits of 6 bits each, the lowest first.
    pub(crate) fn text(self) -> ([u8; 14], usize) {
        let mut text = [0; 14];
        let mut len = 0;
        let mut put = |byte: u8| {
            text[len] = byte;
            len += 1;
        };
        for (i, mut number) in [self.origin.get(), self.number].into_iter().enumerate() {
            if i == 1 {
                put(if self.again { b'!' } else { b'.' });
            }
            while number > 0 {
                put(DIGITS[(number & 63) as usize]);
                number >>= 6;
            }
        }
        (text, len)
    }

    /// Reads what [`Self::text`] wrote, and nothing else.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (origin, number) = text.split_once(['.', '!'])?;
        let read = |digits: &str| {
            let mut number = 0u64;
            for (i, digit) in digits.bytes().enumerate().take(7) {
                let value = DIGITS.iter().position(|known| *known == digit)?;
                number |= (value as u64) << (6 * i);
            }
            let canonical = digits.len() <= 6 && !digits.ends_with('0');
            u32::try_from(number).ok().filter(|_| canonical)
        };
        Some(Self {
            origin: NonZeroU32::new(read(origin)?)?,
            number: read(number)?,
            again: text.as_bytes().get(origin.len()) == Some(&b'!'),
        })
    }
}

/// What a neighbour is told of a message beside its name.
///
/// Subscription Identifiers carry it, which have no other meaning between brokers and
/// are kept wherever a message for a session is: first what there is, then numbers of
/// [`Self::WORD`] bits, each with a bit above them because 0 cannot be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Notes {
    /// The version of what its topic retains with it; 0 for none.
    pub(crate) version: u64,
    /// It is not published now: a comparison found that the neighbour lacks it.
    pub(crate) missing: bool,
}

impl Notes {
    const WORD: u32 = VERSION_BITS / 2;
    const TOP: u32 = 1 << Self::WORD;
    const VERSION: u32 = 1;
    const MISSING: u32 = 2;

    pub(crate) fn ids(self) -> Arc<[u32]> {
        let missing = if self.missing { Self::MISSING } else { 0 };
        let word = |at: u32| (self.version >> (Self::WORD * at)) as u32 % Self::TOP;
        let words = [Self::VERSION | missing, word(1), word(0)];
        words.map(|word| word | Self::TOP).into()
    }

    /// Reads what [`Self::ids`] wrote, and nothing else.
    pub(crate) fn read(properties: Properties<'_>) -> Option<Self> {
        let mut words = properties.subscription_ids();
        let mut next = || words.next().filter(|word| *word >= Self::TOP);
        let Some(flags) = next() else {
            let none = properties.subscription_ids().next().is_none();
            return none.then(Self::default);
        };
        let flags = flags - Self::TOP;
        if flags & !Self::MISSING != Self::VERSION {
            return None;
        }
        let [high, low] = [next()?, next()?].map(|word| u64::from(word - Self::TOP));
        let notes = Self {
            version: high << Self::WORD | low,
            missing: flags & Self::MISSING != 0,
        };
        words.next().is_none().then_some(notes)
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
    /// The connection is gone.
    Down(&'a str),
}

/// How messages go where all of them go by the root of a tree: up to it, and from
/// there down to everybody.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Relay {
    /// The neighbour that leads to the root; `None` at the root.
    pub parent: Option<Arc<str>>,
}

/// Who keeps the tree and the tables. Called on shard threads: nothing may block or
/// take long.
pub trait Federation: Debug + Send + Sync {
    /// A client has subscribed to a filter for which it had no subscription.
    fn subscribed(&self, filter: &str);
    /// A client's subscription to a filter is gone.
    fn unsubscribed(&self, filter: &str);
    /// Whether a neighbour of that name may connect now; not while there is a better
    /// connection to it.
    fn may_connect(&self, peer: &str) -> bool;
    /// Something about the link on connection `conn` of the first shard; `peer` is
    /// the neighbour's name.
    fn link(&self, conn: ConnId, peer: &str, news: LinkNews<'_>);
    /// What messages are called that are taken in here.
    fn origin(&self) -> NonZeroU32;
    /// Whether a message from a neighbour was not here before.
    fn is_new(&self, name: MessageName, at_most_once: bool) -> bool;
    /// Microseconds since 1970, by which brokers agree which of two retained messages
    /// is the newer.
    fn clock(&self) -> u64;
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
    /// What messages were called that were taken in here before a restart.
    fn was_origin(&self, origin: NonZeroU32);
}

/// What a session of a neighbour has beyond those of clients.
#[derive(Debug, Default)]
pub(crate) struct LinkState {
    /// What the neighbour wants.
    pub(crate) filters: HashSet<Box<str>, foldhash::fast::RandomState>,
    /// Messages in flight that the neighbour allows, while none are sent.
    pub(crate) held: Option<u16>,
    /// Publications of the neighbour that are not acknowledged because there is no
    /// room where they have to go; whole packets, in their order.
    pub(crate) parked: VecDeque<Box<[u8]>>,
    /// Retained messages that the neighbour has told it has, since it began to.
    pub(crate) has: Vec<u64>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use punctual_codec::{PropertyBuf, PropertyId};

    proptest! {
        #[test]
        fn notes_are_read_as_written(version in 1..1u64 << VERSION_BITS, missing: bool) {
            let notes = Notes { version, missing };
            let mut properties = PropertyBuf::new();
            for id in &*notes.ids() {
                properties.push_number(PropertyId::SubscriptionIdentifier, *id);
            }
            prop_assert_eq!(Notes::read(properties.as_properties()), Some(notes));
            properties.push_number(PropertyId::SubscriptionIdentifier, 1);
            prop_assert_eq!(Notes::read(properties.as_properties()), None);
        }

        #[test]
        fn names_are_read_as_written(origin in 1..=u32::MAX, number: u32, again: bool) {
            let name = MessageName {
                origin: NonZeroU32::new(origin).unwrap(),
                number,
                again,
            };
            let (text, len) = name.text();
            let text = std::str::from_utf8(&text[..len]).unwrap();
            prop_assert_eq!(MessageName::parse(text), Some(name));
            let longer = format!("{text}0");
            prop_assert_eq!(MessageName::parse(&longer), None);
        }

        #[test]
        fn other_text_is_refused_or_one_way_to_write_a_name(text in "[.!0-9A-Za-z_-]{0,14}") {
            if let Some(name) = MessageName::parse(&text) {
                let (again, len) = name.text();
                prop_assert_eq!(&again[..len], text.as_bytes());
            }
        }
    }
}
