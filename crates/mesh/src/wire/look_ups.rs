//! What brokers ask each other when a client connects whose session may be elsewhere.

use super::{Reader, WireError, Writer};
use crate::transfer::{Extent, HomeId, Located, Stamp};

/// What is known of a client?
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LookUp {
    /// Stamp of the CONNECT that it is for: where that is, and when it came.
    pub at: Stamp,
    /// Tells this question from earlier ones for the same CONNECT.
    pub round: u64,
    /// Client identifier.
    pub client: Box<str>,
    /// Whose session it has to be.
    pub user: Option<Box<str>>,
    /// Whether the CONNECT has Clean Start: sessions that are older end.
    pub clean: bool,
    /// Milliseconds in which the answer is of use.
    pub wait: u32,
}

/// What those know who answered a [`LookUp`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LookedUp {
    /// As in the question.
    pub at: Stamp,
    /// As in the question.
    pub round: u64,
    /// What each has; who has nothing is not in it.
    pub answers: Vec<(HomeId, Located)>,
    /// Of whom that is, among the sender and those behind it.
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

    pub(super) fn looked_up(&mut self, looked_up: &LookedUp) {
        self.stamp(&looked_up.at);
        self.number(looked_up.round);
        self.byte(looked_up.extent as u8);
        self.number(looked_up.answers.len() as u64);
        for (home, located) in &looked_up.answers {
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

    pub(super) fn looked_up(&mut self) -> Result<LookedUp, WireError> {
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
        Ok(LookedUp {
            at,
            round,
            answers,
            extent,
        })
    }
}
