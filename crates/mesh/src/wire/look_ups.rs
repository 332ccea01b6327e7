//! Messages of look-ups: brokers ask each other for the session of a client that connects.

use super::{Reader, WireError, Writer};
use crate::transfer::{Extent, HomeId, Located, Stamp};

/// Asks what the receiver, and the brokers behind it, have of a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LookUp {
    /// Stamp of the CONNECT that caused it: the broker with the CONNECT, and its time.
    pub at: Stamp,
    /// Distinguishes it from earlier look-ups for the same CONNECT.
    pub round: u64,
    /// Client identifier.
    pub client: Box<str>,
    /// User name with which the client connects; sessions of other users do not count.
    pub user: Option<Box<str>>,
    /// Whether the CONNECT has Clean Start, so that older sessions end.
    pub clean: bool,
    /// Time for the reply in milliseconds.
    pub wait: u32,
}

/// Common reply of several brokers to a [`LookUp`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LookUpReply {
    /// As in the [`LookUp`].
    pub at: Stamp,
    /// As in the [`LookUp`].
    pub round: u64,
    /// What each broker has; brokers that have nothing are omitted.
    pub answers: Vec<(HomeId, Located)>,
    /// Which brokers it covers, of the sender and the brokers behind it.
    pub extent: Extent,
}

impl Writer {
    pub(super) fn look_up(&mut self, look_up: &LookUp) {
        self.stamp(&look_up.at);
        self.number(look_up.round);
        self.text(&look_up.client);
        self.user(look_up.user.as_deref());
        self.byte(u8::from(look_up.clean));
        self.number(u64::from(look_up.wait));
    }

    pub(super) fn look_up_reply(&mut self, look_up_reply: &LookUpReply) {
        self.stamp(&look_up_reply.at);
        self.number(look_up_reply.round);
        self.byte(look_up_reply.extent as u8);
        self.number(look_up_reply.answers.len() as u64);
        for (home, located) in &look_up_reply.answers {
            self.text(home.as_str());
            self.located(located);
        }
    }
}

impl Reader<'_> {
    pub(super) fn look_up(&mut self) -> Result<LookUp, WireError> {
        Ok(LookUp {
            at: self.stamp()?,
            round: self.number()?,
            client: self.client()?,
            user: self.user()?,
            clean: self.flag()?,
            wait: u32::try_from(self.number()?).map_err(|_| WireError::Field("wait"))?,
        })
    }

    pub(super) fn look_up_reply(&mut self) -> Result<LookUpReply, WireError> {
        let (at, round) = (self.stamp()?, self.number()?);
        let extent = match self.byte()? {
            0 => Extent::All,
            1 => Extent::Reached,
            2 => Extent::Incomplete,
            _ => return Err(WireError::Field("extent")),
        };
        let count = self.count(6)?;
        let answer = |reader: &mut Self| Ok((reader.home()?, reader.located()?));
        let answers = (0..count).map(|_| answer(self)).collect::<Result<_, _>>()?;
        Ok(LookUpReply {
            at,
            round,
            answers,
            extent,
        })
    }
}
