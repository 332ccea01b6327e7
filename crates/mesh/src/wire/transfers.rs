//! Messages of session transfers: the bodies of [`super::Envelope`]s.

use std::sync::Arc;

use super::{Reader, WireError, Writer};
use crate::transfer::{
    CopyState, Freeze, HomeId, Located, MAX_AWAY, MAX_PART, Mark, Record, Stamp, Stub, TransferId,
    TransferMessage,
};

/// Destination of a message that a stub forwards.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionAddress {
    /// The client whose session it is for.
    pub client: Box<str>,
    /// User name of that session; a session of another user does not receive the message.
    pub user: Option<Box<str>>,
    /// The home of that session when the message was sent.
    pub target: HomeId,
    /// Its epoch there.
    pub target_epoch: Stamp,
    /// Epoch of the session that the message was accepted for.
    pub for_epoch: Stamp,
}

impl TransferMessage {
    /// The bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Writer(Vec::new());
        match self {
            Self::Take { at, user } => {
                out.byte(0);
                out.stamp(at);
                out.user(user.as_deref());
            }
            Self::Refused { at, newer } => {
                out.byte(1);
                out.stamp(at);
                out.optional(newer.as_ref(), Writer::stamp);
            }
            Self::Part {
                id,
                number,
                last,
                bytes,
            } => {
                out.byte(2);
                out.transfer(id);
                out.number((*number).into());
                out.optional(last.as_ref(), Writer::mark);
                out.bytes(bytes);
            }
            Self::PartAck { id, number } => {
                out.byte(3);
                out.transfer(id);
                out.number((*number).into());
            }
            Self::Stored(id) => out.kind_and(4, id, Writer::transfer),
            Self::Commit(id) => out.kind_and(5, id, Writer::transfer),
            Self::Abort(id) => out.kind_and(6, id, Writer::transfer),
            Self::Done(id) => out.kind_and(7, id, Writer::transfer),
            Self::Claim { mark, user } => {
                out.byte(8);
                out.mark(mark);
                out.user(user.as_deref());
            }
            Self::Yielded(epoch) => out.kind_and(9, epoch, Writer::stamp),
            Self::Resync => out.byte(10),
            Self::ClaimsDone { away } => {
                out.byte(11);
                out.number(away.len() as u64);
                away.iter().for_each(|home| out.text(home.as_str()));
            }
        }
        out.0
    }

    /// Reads what [`Self::encode`] wrote, and nothing else.
    ///
    /// # Errors
    /// See [`WireError`].
    pub fn decode(bytes: &[u8]) -> Result<Self, WireError> {
        let mut from = Reader(bytes);
        let message = match from.byte()? {
            0 => Self::Take {
                at: from.stamp()?,
                user: from.user()?,
            },
            1 => Self::Refused {
                at: from.stamp()?,
                newer: from.optional(Reader::stamp)?,
            },
            2 => Self::Part {
                id: from.transfer()?,
                number: from.part_number()?,
                last: from.optional(Reader::mark)?,
                bytes: from.part()?,
            },
            3 => Self::PartAck {
                id: from.transfer()?,
                number: from.part_number()?,
            },
            4 => Self::Stored(from.transfer()?),
            5 => Self::Commit(from.transfer()?),
            6 => Self::Abort(from.transfer()?),
            7 => Self::Done(from.transfer()?),
            8 => Self::Claim {
                mark: from.mark()?,
                user: from.user()?,
            },
            9 => Self::Yielded(from.stamp()?),
            10 => Self::Resync,
            11 => {
                let count = from.count(2)?;
                if count > MAX_AWAY {
                    return Err(WireError::Field("away"));
                }
                let away = (0..count).map(|_| from.home()).collect::<Result<_, _>>()?;
                Self::ClaimsDone { away }
            }
            kind => return Err(WireError::Kind(kind)),
        };
        from.end(message)
    }
}

impl Located {
    /// The bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Writer(Vec::new());
        out.located(self);
        out.0
    }

    /// Reads what [`Self::encode`] wrote, and nothing else.
    ///
    /// # Errors
    /// See [`WireError`].
    pub fn decode(bytes: &[u8]) -> Result<Self, WireError> {
        let mut from = Reader(bytes);
        let located = from.located()?;
        from.end(located)
    }
}

impl Record {
    /// The bytes, as a store keeps them.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Writer(Vec::new());
        match self {
            Self::Session(mark) => out.kind_and(0, mark, Writer::mark),
            Self::Copy { id, from, mark } => {
                out.byte(1);
                out.transfer(id);
                out.text(from.as_str());
                out.mark(mark);
            }
            Self::Stub { stub, outcomes } => {
                out.byte(2);
                out.text(stub.target.as_str());
                out.stamp(&stub.target_epoch);
                out.stamp(&stub.for_epoch);
                for (id, to) in outcomes {
                    out.transfer(id);
                    out.text(to.as_str());
                }
            }
            Self::Incomplete => out.byte(3),
        }
        out.0
    }

    /// Reads what [`Self::encode`] wrote, and nothing else.
    ///
    /// # Errors
    /// See [`WireError`].
    pub fn decode(bytes: &[u8]) -> Result<Self, WireError> {
        let mut from = Reader(bytes);
        let record = match from.byte()? {
            0 => Self::Session(from.mark()?),
            1 => Self::Copy {
                id: from.transfer()?,
                from: from.home()?,
                mark: from.mark()?,
            },
            2 => {
                let stub = Stub {
                    target: from.home()?,
                    target_epoch: from.stamp()?,
                    for_epoch: from.stamp()?,
                };
                let mut outcomes = Vec::new();
                while !from.0.is_empty() {
                    outcomes.push((from.transfer()?, from.home()?));
                }
                Self::Stub { stub, outcomes }
            }
            3 => Self::Incomplete,
            kind => return Err(WireError::Kind(kind)),
        };
        from.end(record)
    }
}

impl SessionAddress {
    /// The bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Writer(Vec::new());
        out.text(&self.client);
        out.user(self.user.as_deref());
        out.text(self.target.as_str());
        out.stamp(&self.target_epoch);
        out.stamp(&self.for_epoch);
        out.0
    }

    /// Reads what [`Self::encode`] wrote, and nothing else.
    ///
    /// # Errors
    /// See [`WireError`].
    pub fn decode(bytes: &[u8]) -> Result<Self, WireError> {
        let mut from = Reader(bytes);
        let address = Self {
            client: from.client()?,
            user: from.user()?,
            target: from.home()?,
            target_epoch: from.stamp()?,
            for_epoch: from.stamp()?,
        };
        from.end(address)
    }
}

impl Writer {
    pub(super) fn stamp(&mut self, stamp: &Stamp) {
        self.number(stamp.micros);
        self.text(stamp.by.as_str());
    }

    pub(super) fn located(&mut self, located: &Located) {
        self.optional(located.session.as_ref(), |out, (confirmed, epoch)| {
            out.byte(u8::from(*confirmed));
            out.stamp(epoch);
        });
        self.optional(located.moved.as_ref(), |out, (target, epoch)| {
            out.text(target.as_str());
            out.stamp(epoch);
        });
        self.optional(located.left.as_ref(), Self::stamp);
        self.optional(located.connect.as_ref(), Self::stamp);
        self.byte(match located.copy {
            CopyState::None => 0,
            CopyState::Stuck => 1,
            CopyState::Open => 2,
        });
    }

    pub(super) fn stub(&mut self, stub: &Stub) {
        self.text(stub.target.as_str());
        self.stamp(&stub.target_epoch);
        self.stamp(&stub.for_epoch);
    }

    fn transfer(&mut self, id: &TransferId) {
        self.stamp(&id.at);
        self.number(id.freeze.instance);
        self.number(id.freeze.number);
    }

    fn mark(&mut self, mark: &Mark) {
        self.byte(u8::from(mark.confirmed) | u8::from(mark.blind) << 1);
        self.stamp(&mark.epoch);
        self.optional(mark.born.as_ref(), Self::stamp);
    }

    fn optional<T>(&mut self, what: Option<&T>, write: impl Fn(&mut Self, &T)) {
        self.byte(u8::from(what.is_some()));
        if let Some(what) = what {
            write(self, what);
        }
    }

    fn kind_and<T>(&mut self, kind: u8, what: &T, write: impl Fn(&mut Self, &T)) {
        self.byte(kind);
        write(self, what);
    }
}

impl Reader<'_> {
    pub(super) fn home(&mut self) -> Result<HomeId, WireError> {
        Ok(self.id()?.into())
    }

    pub(super) fn located(&mut self) -> Result<Located, WireError> {
        Ok(Located {
            session: self.optional(|from| Ok((from.flag()?, from.stamp()?)))?,
            moved: self.optional(|from| Ok((from.home()?, from.stamp()?)))?,
            left: self.optional(Reader::stamp)?,
            connect: self.optional(Reader::stamp)?,
            copy: match self.byte()? {
                0 => CopyState::None,
                1 => CopyState::Stuck,
                2 => CopyState::Open,
                _ => return Err(WireError::Field("copy")),
            },
        })
    }

    pub(super) fn stamp(&mut self) -> Result<Stamp, WireError> {
        Ok(Stamp {
            micros: self.instant()?,
            by: self.home()?,
        })
    }

    pub(super) fn stub(&mut self) -> Result<Stub, WireError> {
        Ok(Stub {
            target: self.home()?,
            target_epoch: self.stamp()?,
            for_epoch: self.stamp()?,
        })
    }

    fn transfer(&mut self) -> Result<TransferId, WireError> {
        Ok(TransferId {
            at: self.stamp()?,
            freeze: Freeze {
                instance: self.number()?,
                number: self.number()?,
            },
        })
    }

    fn mark(&mut self) -> Result<Mark, WireError> {
        let flags = self.byte()?;
        if flags & !3 != 0 {
            return Err(WireError::Field("flags"));
        }
        Ok(Mark {
            confirmed: flags & 1 != 0,
            blind: flags & 2 != 0,
            epoch: self.stamp()?,
            born: self.optional(Self::stamp)?,
        })
    }

    fn optional<T>(
        &mut self,
        read: impl Fn(&mut Self) -> Result<T, WireError>,
    ) -> Result<Option<T>, WireError> {
        match self.flag()? {
            true => read(self).map(Some),
            false => Ok(None),
        }
    }

    fn part_number(&mut self) -> Result<u32, WireError> {
        u32::try_from(self.number()?).map_err(|_| WireError::Field("part"))
    }

    fn part(&mut self) -> Result<Arc<[u8]>, WireError> {
        let length = self.count(1)?;
        if length > MAX_PART {
            return Err(WireError::Field("part"));
        }
        let (bytes, rest) = self.0.split_at(length);
        self.0 = rest;
        Ok(bytes.into())
    }

    /// Nothing follows.
    fn end<T>(self, read: T) -> Result<T, WireError> {
        match self.0 {
            [] => Ok(read),
            _ => Err(WireError::Trailing),
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use proptest::prelude::*;

    pub(in crate::wire) fn home() -> impl Strategy<Value = HomeId> {
        "[a-z][a-z0-9.-]{0,20}".prop_map(|name| HomeId::new(&name).unwrap())
    }

    pub(in crate::wire) fn stamp() -> impl Strategy<Value = Stamp> {
        let micros = 0..=punctual_model::LAST_INSTANT;
        (micros, home()).prop_map(|(micros, by)| Stamp { micros, by })
    }

    fn transfer() -> impl Strategy<Value = TransferId> {
        let freeze = any::<(u64, u64)>();
        (stamp(), freeze).prop_map(|(at, (instance, number))| TransferId {
            at,
            freeze: Freeze { instance, number },
        })
    }

    fn mark() -> impl Strategy<Value = Mark> {
        let flags = any::<(bool, bool)>();
        let stamps = (stamp(), proptest::option::of(stamp()));
        (flags, stamps).prop_map(|((confirmed, blind), (epoch, born))| Mark {
            confirmed,
            blind,
            epoch,
            born,
        })
    }

    fn message() -> impl Strategy<Value = TransferMessage> {
        use TransferMessage as It;
        let bytes = proptest::collection::vec(any::<u8>(), 0..40);
        let part = (
            transfer(),
            any::<u32>(),
            proptest::option::of(mark()),
            bytes,
        );
        prop_oneof![
            (stamp(), user()).prop_map(|(at, user)| It::Take { at, user }),
            (stamp(), proptest::option::of(stamp()))
                .prop_map(|(at, newer)| It::Refused { at, newer }),
            part.prop_map(|(id, number, last, bytes)| It::Part {
                id,
                number,
                last,
                bytes: bytes.into()
            }),
            (transfer(), any::<u32>()).prop_map(|(id, number)| It::PartAck { id, number }),
            transfer().prop_map(It::Stored),
            transfer().prop_map(It::Commit),
            transfer().prop_map(It::Abort),
            transfer().prop_map(It::Done),
            (mark(), user()).prop_map(|(mark, user)| It::Claim { mark, user }),
            stamp().prop_map(It::Yielded),
            Just(It::Resync),
            proptest::collection::vec(home(), 0..3).prop_map(|away| It::ClaimsDone { away }),
        ]
    }

    pub(in crate::wire) fn located() -> impl Strategy<Value = Located> {
        let session = proptest::option::of((any::<bool>(), stamp()));
        let moved = proptest::option::of((home(), stamp()));
        let copy = prop_oneof![
            Just(CopyState::None),
            Just(CopyState::Stuck),
            Just(CopyState::Open)
        ];
        let option = || proptest::option::of(stamp());
        (session, moved, option(), option(), copy).prop_map(
            |(session, moved, left, connect, copy)| Located {
                session,
                moved,
                left,
                connect,
                copy,
            },
        )
    }

    fn record() -> impl Strategy<Value = Record> {
        let copy = (transfer(), home(), mark());
        let outcomes = proptest::collection::vec((transfer(), home()), 0..3);
        prop_oneof![
            mark().prop_map(Record::Session),
            Just(Record::Incomplete),
            copy.prop_map(|(id, from, mark)| Record::Copy { id, from, mark }),
            (stub(), outcomes).prop_map(|(stub, outcomes)| Record::Stub { stub, outcomes }),
        ]
    }

    pub(in crate::wire) fn stub() -> impl Strategy<Value = Stub> {
        (home(), stamp(), stamp()).prop_map(|(target, target_epoch, for_epoch)| Stub {
            target,
            target_epoch,
            for_epoch,
        })
    }

    fn user() -> impl Strategy<Value = Option<Box<str>>> {
        proptest::option::of("[a-z]{0,9}".prop_map(Into::into))
    }

    fn address() -> impl Strategy<Value = SessionAddress> {
        ("[a-z]{1,9}", user(), home(), stamp(), stamp()).prop_map(
            |(client, user, target, target_epoch, for_epoch)| SessionAddress {
                client: client.into(),
                user,
                target,
                target_epoch,
                for_epoch,
            },
        )
    }

    proptest! {
        /// What was written is read, in one way only; other bytes are refused, or are how what they
        /// say is written.
        #[test]
        fn messages_survive(message in message(), at in any::<prop::sample::Index>(), byte: u8) {
            let mut bytes = message.encode();
            prop_assert_eq!(TransferMessage::decode(&bytes), Ok(message));
            for end in 0..bytes.len() {
                prop_assert!(TransferMessage::decode(&bytes[..end]).is_err());
            }
            let more = [&bytes[..], &[0]].concat();
            prop_assert_eq!(TransferMessage::decode(&more), Err(WireError::Trailing));
            let at = at.index(bytes.len());
            bytes[at] = byte;
            if let Ok(other) = TransferMessage::decode(&bytes) {
                prop_assert_eq!(other.encode(), bytes);
            }
        }

        #[test]
        fn records_survive(record in record()) {
            let bytes = record.encode();
            prop_assert_eq!(Record::decode(&bytes), Ok(record.clone()));
            for end in 0..bytes.len() {
                prop_assert_ne!(Record::decode(&bytes[..end]), Ok(record.clone()));
            }
        }

        #[test]
        fn locations_survive(located in located()) {
            let bytes = located.encode();
            prop_assert_eq!(Located::decode(&bytes), Ok(located));
            for end in 0..bytes.len() {
                prop_assert!(Located::decode(&bytes[..end]).is_err());
            }
        }

        #[test]
        fn addresses_survive(address in address()) {
            let bytes = address.encode();
            prop_assert_eq!(SessionAddress::decode(&bytes), Ok(address));
            for end in 0..bytes.len() {
                prop_assert!(SessionAddress::decode(&bytes[..end]).is_err());
            }
        }
    }

    #[test]
    fn parts_are_bounded() {
        let id = TransferId {
            at: Stamp {
                micros: 1,
                by: HomeId::new("b").unwrap(),
            },
            freeze: Freeze {
                instance: 1,
                number: 1,
            },
        };
        let part = |length| TransferMessage::Part {
            id: id.clone(),
            number: 0,
            last: None,
            bytes: vec![0; length].into(),
        };
        for (length, fits) in [(MAX_PART, true), (MAX_PART + 1, false)] {
            let decoded = TransferMessage::decode(&part(length).encode());
            assert_eq!(decoded.is_ok(), fits, "{length}");
        }
    }
}
