//! What brokers say to each other about sessions that follow their clients.

use std::sync::Arc;

use super::{Reader, WireError, Writer};
use crate::id::BrokerId;

/// Who has the session of a client?
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seek {
    /// Where the client has connected.
    pub by: BrokerId,
    /// When, as [`super::Arrival::at`]; tells this question from others of the same broker.
    pub number: u64,
    /// Client identifier.
    pub client: Box<str>,
    /// Whose session it has to be.
    pub user: Option<Box<str>>,
    /// Milliseconds in which the answer is of use.
    pub wait: u32,
}

/// A broker that has something of a client's session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// Which broker.
    pub broker: BrokerId,
    /// When the client connected there last, as [`super::Arrival::at`]; 0 if that is not known.
    pub at: u64,
    /// It is the session. If not, it is what was left when that went to another broker.
    pub whole: bool,
}

/// Those who answered a [`Seek`] with yes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// Who asked.
    pub by: BrokerId,
    /// Which question.
    pub number: u64,
    /// Who has something.
    pub holders: Vec<Holder>,
    /// Others may have something: not all could be asked, or have answered.
    pub incomplete: bool,
}

/// From one broker's core to another's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Letter {
    /// To be passed on to.
    pub to: BrokerId,
    /// Who has written it.
    pub from: BrokerId,
    /// About the session of this client.
    pub client: Box<str>,
    /// As the cores write and read it.
    pub body: Arc<[u8]>,
}

impl Writer {
    pub(super) fn bytes(&mut self, bytes: &[u8]) {
        self.number(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }

    /// A user name, if there is one.
    pub(super) fn user(&mut self, user: Option<&str>) {
        self.byte(u8::from(user.is_some()));
        if let Some(user) = user {
            self.text(user);
        }
    }

    pub(super) fn seek(&mut self, seek: &Seek) {
        self.id(&seek.by);
        self.number(seek.number);
        self.text(&seek.client);
        self.user(seek.user.as_deref());
        self.number(u64::from(seek.wait));
    }

    pub(super) fn found(&mut self, found: &Found) {
        self.id(&found.by);
        self.number(found.number);
        self.number(found.holders.len() as u64);
        for holder in &found.holders {
            self.id(&holder.broker);
            self.number(holder.at);
            self.byte(u8::from(holder.whole));
        }
        self.byte(u8::from(found.incomplete));
    }

    pub(super) fn letter(&mut self, letter: &Letter) {
        self.id(&letter.to);
        self.id(&letter.from);
        self.text(&letter.client);
        self.bytes(&letter.body);
    }
}

impl Reader<'_> {
    pub(super) fn user(&mut self) -> Result<Option<Box<str>>, WireError> {
        if !self.flag()? {
            return Ok(None);
        }
        let user = self.text()?;
        match user.len() <= usize::from(u16::MAX) && !user.contains('\0') {
            true => Ok(Some(user.into())),
            false => Err(WireError::Field("user name")),
        }
    }

    pub(super) fn seek(&mut self) -> Result<Seek, WireError> {
        Ok(Seek {
            by: self.id()?,
            number: self.instant()?,
            client: self.client()?,
            user: self.user()?,
            wait: u32::try_from(self.number()?).map_err(|_| WireError::Field("wait"))?,
        })
    }

    pub(super) fn found(&mut self) -> Result<Found, WireError> {
        let (by, number) = (self.id()?, self.instant()?);
        let count = self.count(4)?;
        let holder = |reader: &mut Self| {
            Ok(Holder {
                broker: reader.id()?,
                at: reader.instant()?,
                whole: reader.flag()?,
            })
        };
        let holders = (0..count).map(|_| holder(self)).collect::<Result<_, _>>()?;
        Ok(Found {
            by,
            number,
            holders,
            incomplete: self.flag()?,
        })
    }

    pub(super) fn letter(&mut self) -> Result<Letter, WireError> {
        let (to, from, client) = (self.id()?, self.id()?, self.client()?);
        let length = self.count(1)?;
        let (body, rest) = self.0.split_at(length);
        self.0 = rest;
        Ok(Letter {
            to,
            from,
            client,
            body: body.into(),
        })
    }
}
