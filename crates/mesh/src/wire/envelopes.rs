//! Envelopes: messages between the cores of two brokers about session transfers.

use std::sync::Arc;

use super::{Reader, WireError, Writer};
use crate::id::BrokerId;

/// A message from one broker's core to another's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Envelope {
    /// The receiver.
    pub to: BrokerId,
    /// The sender.
    pub from: BrokerId,
    /// The client whose session it is about; empty if there is none.
    pub client: Box<str>,
    /// The content, opaque to brokers on the path.
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

    pub(super) fn envelope(&mut self, envelope: &Envelope) {
        self.id(&envelope.to);
        self.id(&envelope.from);
        self.text(&envelope.client);
        self.bytes(&envelope.body);
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

    pub(super) fn envelope(&mut self) -> Result<Envelope, WireError> {
        let (to, from, client) = (self.id()?, self.id()?, self.client_or_nobody()?);
        let length = self.count(1)?;
        let (body, rest) = self.0.split_at(length);
        self.0 = rest;
        Ok(Envelope {
            to,
            from,
            client,
            body: body.into(),
        })
    }
}
