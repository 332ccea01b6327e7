//! The notes on a message that a broker sends to a neighbour beside the message's name.

use std::sync::Arc;

use punctual_codec::Properties;
use smallvec::SmallVec;

use crate::base::version::VERSION_BITS;

/// Notes on a message for a neighbour, beside the message's name.
///
/// Notes are encoded as Subscription Identifiers, which have no other meaning between brokers and
/// are kept wherever a message for a session is: the trust level, if not [`UrgencyTrust::All`],
/// then the fields that are present, then pairs of numbers of [`Self::WORD`] bits, each with a bit
/// above them because 0 cannot be encoded.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Notes {
    /// The version of the retained message that the publication sets; 0 for none.
    pub(crate) version: u64,
    /// The message is not newly published: a comparison found that the neighbour lacks it.
    pub(crate) missing: bool,
    /// The message is for members of shared subscriptions only.
    pub(crate) handed: bool,
    /// The brokers that must deliver it to a member of a shared subscription.
    pub(crate) duties: SmallVec<[Duty; 1]>,
    /// The payload is not that of a message, but contains whole PUBLISH packets.
    pub(crate) packing: Option<Packing>,
    /// How far the stated urgency is followed.
    pub(crate) trust: UrgencyTrust,
}

/// How far the stated urgency of a message is followed, as decided by the broker to which the
/// message was published, by the rights of its publisher.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum UrgencyTrust {
    /// Without a limit beyond the broker's own.
    #[default]
    All,
    /// A deadline has the effect that this `rt-priority`, 0..=6, allows.
    UpTo(u8),
    /// As if the message stated nothing.
    Nothing,
}

impl UrgencyTrust {
    /// The trust as a small number; 0 for all.
    pub(crate) fn code(self) -> u8 {
        match self {
            Self::All => 0,
            Self::Nothing => 1,
            Self::UpTo(most) => 2 + most,
        }
    }

    /// Decodes the output of [`Self::code`], and nothing else.
    pub(crate) fn from_code(code: u32) -> Option<Self> {
        match code {
            0 => Some(Self::All),
            1 => Some(Self::Nothing),
            2..=8 => Some(Self::UpTo(code as u8 - 2)),
            _ => None,
        }
    }
}

/// Packets that are sent to a neighbour as one: with QoS 0, on one topic, without properties.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Packing {
    /// Whether the packets are of MQTT 5.
    pub(crate) v5: bool,
}

/// The duty of a broker to deliver a message to a member of a shared subscription.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Duty {
    /// [`sign`](crate::base::name::sign) of the broker's name.
    pub(crate) broker: u32,
    /// [`sign`](crate::base::name::sign) of the subscription's filter.
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
    const TRUST: u32 = 32;

    /// Notes on a retained message that a neighbour lacks.
    pub(crate) fn missing(version: u64) -> Self {
        Self {
            version,
            missing: true,
            ..Self::default()
        }
    }

    /// Notes on packets that are sent as one.
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
        let trust =
            (self.trust != UrgencyTrust::All).then(|| Self::TRUST | u32::from(self.trust.code()));
        let rest = Self {
            trust: UrgencyTrust::All,
            ..self.clone()
        };
        let flags = (trust.is_none() || !rest.is_empty()).then(|| self.flags());
        let word = |at: u32| (self.version >> (Self::WORD * at)) as u32 % Self::TOP;
        let version = (self.version > 0).then(|| [word(1), word(0)]);
        let duties = self.duties.iter().map(|duty| [duty.broker, duty.group]);
        let pairs = version.into_iter().chain(duties);
        let first = trust.into_iter().chain(flags);
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

    /// Decodes the output of [`Self::ids`], and nothing else.
    pub(crate) fn read(properties: Properties<'_>) -> Option<Self> {
        let mut words = properties.subscription_ids().peekable();
        let Some(first) = words.peek() else {
            return Some(Self::default());
        };
        let first = first.checked_sub(Self::TOP)?;
        let mut trust = UrgencyTrust::All;
        if first & Self::TRUST != 0 {
            trust = UrgencyTrust::from_code(first ^ Self::TRUST)
                .filter(|trust| *trust != UrgencyTrust::All)?;
            words.next();
            if words.peek().is_none() {
                return Some(Self {
                    trust,
                    ..Self::default()
                });
            }
        }
        let mut next = || words.next()?.checked_sub(Self::TOP);
        let flags = next()?;
        if flags == Self::RUN || flags == Self::RUN_5 {
            let v5 = flags == Self::RUN_5;
            let alone = words.next().is_none() && trust == UrgencyTrust::All;
            return alone.then(|| Self::packed(Packing { v5 }));
        }
        if flags & !(Self::VERSION | Self::MISSING | Self::HANDED) != 0 {
            return None;
        }
        let mut notes = Self {
            missing: flags & Self::MISSING != 0,
            handed: flags & Self::HANDED != 0,
            trust,
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
        (trust == UrgencyTrust::All || !says_nothing).then_some(notes)
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
            trust in (0..9u32).prop_map(|code| UrgencyTrust::from_code(code).unwrap()),
        ) {
            let duties = signs.into_iter().map(|(broker, group)| Duty { broker, group });
            let duties = duties.collect();
            let notes = match version % 3 {
                0 => Notes::packed(Packing { v5: missing }),
                1 => Notes { trust, ..Notes::default() },
                _ => Notes { version, missing, handed, duties, packing: None, trust },
            };
            let mut properties = PropertyBuf::new();
            for id in &*notes.ids() {
                properties.push_number(PropertyId::SubscriptionIdentifier, *id);
            }
            prop_assert_eq!(Notes::read(properties.as_properties()), Some(notes));
            properties.push_number(PropertyId::SubscriptionIdentifier, Notes::TOP);
            prop_assert_eq!(Notes::read(properties.as_properties()), None);
        }
    }
}
