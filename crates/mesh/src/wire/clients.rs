//! What brokers say to each other about clients: where they are, and what they leave
//! behind if their broker is lost.

use std::sync::Arc;

use punctual_model::LAST_INSTANT;

use super::{Reader, WireError, Writer};
use crate::id::BrokerId;

/// What client identifiers of neighbour brokers begin with.
const NEIGHBOURS: &str = "$mesh/";

/// The will of a client, which a neighbour keeps in case that the client's broker is lost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Testament {
    /// Client identifier.
    pub client: Box<str>,
    /// When it connected, as [`Arrival::at`].
    pub at: u64,
    /// Seconds between the loss of the client and its will; not beyond the end of its session.
    pub delay: u32,
    /// What is published, as the broker's core makes and reads it.
    pub message: Arc<[u8]>,
}

impl Testament {
    /// Bytes that it takes, about.
    pub(crate) fn size(&self) -> usize {
        self.client.len() + self.message.len() + 64
    }
}

/// A client has connected to a broker: others have it no more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Arrival {
    /// Client identifier.
    pub client: Box<str>,
    /// Its user name, if it has one: a session of another user is not its own.
    pub user: Option<Box<str>>,
    /// When: microseconds since 1970, and later than all that the broker had heard of.
    pub at: u64,
    /// It begins anew: what others keep for it is void.
    pub clean: bool,
}

/// What was left with a neighbour of a broker that was lost and is back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Left {
    /// Whose it is, to be passed on to.
    pub to: BrokerId,
    /// Which start of it left this.
    pub instance: u64,
    /// For how many milliseconds it was lost.
    pub lost: u64,
    /// Wills that are not published.
    pub wills: Vec<Testament>,
    /// Those that are.
    pub published: Vec<Testament>,
    /// Clients that have connected elsewhere.
    pub moved: Vec<Arrival>,
}

impl Writer {
    pub(super) fn clients(&mut self, clients: &[Box<str>]) {
        self.filters(clients);
    }

    pub(super) fn testaments(&mut self, wills: &[Testament]) {
        self.number(wills.len() as u64);
        for will in wills {
            self.text(&will.client);
            self.number(will.at);
            self.number(u64::from(will.delay));
            self.number(will.message.len() as u64);
            self.0.extend_from_slice(&will.message);
        }
    }

    pub(super) fn arrivals(&mut self, arrivals: &[Arrival]) {
        self.number(arrivals.len() as u64);
        for arrival in arrivals {
            self.text(&arrival.client);
            self.user(arrival.user.as_deref());
            self.number(arrival.at);
            self.byte(u8::from(arrival.clean));
        }
    }

    pub(super) fn left(&mut self, left: &Left) {
        self.id(&left.to);
        self.number(left.instance);
        self.number(left.lost);
        self.testaments(&left.wills);
        self.testaments(&left.published);
        self.arrivals(&left.moved);
    }
}

impl Reader<'_> {
    /// The client that a letter is about; empty if it is about none.
    pub(super) fn client_or_nobody(&mut self) -> Result<Box<str>, WireError> {
        match self.0 {
            [0, ..] => Ok(self.text()?.into()),
            _ => self.client(),
        }
    }

    pub(super) fn client(&mut self) -> Result<Box<str>, WireError> {
        let client = self.text()?;
        // Neighbours are no clients: nobody tells where they are, or has a session of theirs.
        let fits = (1..=usize::from(u16::MAX)).contains(&client.len());
        match fits && !client.contains('\0') && !client.starts_with(NEIGHBOURS) {
            true => Ok(client.into()),
            false => Err(WireError::Field("client identifier")),
        }
    }

    /// Microseconds since 1970.
    pub(super) fn instant(&mut self) -> Result<u64, WireError> {
        let instant = self.number()?;
        (instant <= LAST_INSTANT)
            .then_some(instant)
            .ok_or(WireError::Field("instant"))
    }

    pub(super) fn clients(&mut self) -> Result<Vec<Box<str>>, WireError> {
        let count = self.count(2)?;
        (0..count).map(|_| self.client()).collect()
    }

    fn testament(&mut self) -> Result<Testament, WireError> {
        let client = self.client()?;
        let at = self.instant()?;
        let delay = u32::try_from(self.number()?).map_err(|_| WireError::Field("delay"))?;
        let length = self.count(1)?;
        let (message, rest) = self.0.split_at(length);
        self.0 = rest;
        Ok(Testament {
            client,
            at,
            delay,
            message: message.into(),
        })
    }

    pub(super) fn testaments(&mut self) -> Result<Vec<Testament>, WireError> {
        let count = self.count(5)?;
        (0..count).map(|_| self.testament()).collect()
    }

    pub(super) fn arrivals(&mut self) -> Result<Vec<Arrival>, WireError> {
        let count = self.count(5)?;
        let arrival = |reader: &mut Self| {
            Ok(Arrival {
                client: reader.client()?,
                user: reader.user()?,
                at: reader.instant()?,
                clean: reader.flag()?,
            })
        };
        (0..count).map(|_| arrival(self)).collect()
    }

    pub(super) fn left(&mut self) -> Result<Left, WireError> {
        Ok(Left {
            to: self.id()?,
            instance: self.number()?,
            lost: self.number()?,
            wills: self.testaments()?,
            published: self.testaments()?,
            moved: self.arrivals()?,
        })
    }
}
