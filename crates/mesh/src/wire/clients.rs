//! Messages about clients: where they connect, and their wills.

use std::sync::Arc;

use punctual_model::LAST_INSTANT;

use super::{Reader, WireError, Writer};
use crate::id::BrokerId;

/// Prefix of the client identifiers of neighbour brokers.
const NEIGHBOURS: &str = "$mesh/";

/// The will of a client, which a neighbour stores in case the client's broker is lost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientWill {
    /// Client identifier.
    pub client: Box<str>,
    /// When the client connected, as [`Arrival::at`].
    pub at: u64,
    /// Will delay in seconds, at most until the end of the session.
    pub delay: u32,
    /// The message, in the encoding of the broker's core.
    pub message: Arc<[u8]>,
}

impl ClientWill {
    /// Approximate size in bytes.
    pub(crate) fn size(&self) -> usize {
        self.client.len() + self.message.len() + 64
    }
}

/// A client has connected to a broker: older connections to other brokers are taken over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Arrival {
    /// Client identifier.
    pub client: Box<str>,
    /// Its user name, if it has one; sessions of another user are not affected.
    pub user: Option<Box<str>>,
    /// When it connected: microseconds since 1970, and later than every such instant that its broker
    /// knew.
    pub at: u64,
    /// Whether it connected with Clean Start, so that older sessions end.
    pub clean: bool,
}

/// Report of a guard to a broker that was lost and is reached again, about the wills of its clients.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GuardReport {
    /// The broker to which it is forwarded.
    pub to: BrokerId,
    /// The [`crate::Settings::instance`] of that broker for which the wills were stored.
    pub instance: u64,
    /// For how many milliseconds the broker was lost.
    pub lost: u64,
    /// Wills that were not published.
    pub wills: Vec<ClientWill>,
    /// Wills that were published.
    pub published: Vec<ClientWill>,
    /// Its clients that have connected elsewhere meanwhile.
    pub moved: Vec<Arrival>,
}

impl Writer {
    pub(super) fn clients(&mut self, clients: &[Box<str>]) {
        self.filters(clients);
    }

    pub(super) fn client_wills(&mut self, wills: &[ClientWill]) {
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

    pub(super) fn left(&mut self, left: &GuardReport) {
        self.id(&left.to);
        self.number(left.instance);
        self.number(left.lost);
        self.client_wills(&left.wills);
        self.client_wills(&left.published);
        self.arrivals(&left.moved);
    }
}

impl Reader<'_> {
    /// The client that an envelope is about; empty if there is none.
    pub(super) fn client_or_nobody(&mut self) -> Result<Box<str>, WireError> {
        match self.0 {
            [0, ..] => Ok(self.text()?.into()),
            _ => self.client(),
        }
    }

    pub(super) fn client(&mut self) -> Result<Box<str>, WireError> {
        let client = self.text()?;
        // Identifiers of neighbours are rejected: they have no sessions or arrivals.
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

    fn client_will(&mut self) -> Result<ClientWill, WireError> {
        let client = self.client()?;
        let at = self.instant()?;
        let delay = u32::try_from(self.number()?).map_err(|_| WireError::Field("delay"))?;
        let length = self.count(1)?;
        let (message, rest) = self.0.split_at(length);
        self.0 = rest;
        Ok(ClientWill {
            client,
            at,
            delay,
            message: message.into(),
        })
    }

    pub(super) fn client_wills(&mut self) -> Result<Vec<ClientWill>, WireError> {
        let count = self.count(5)?;
        (0..count).map(|_| self.client_will()).collect()
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

    pub(super) fn left(&mut self) -> Result<GuardReport, WireError> {
        Ok(GuardReport {
            to: self.id()?,
            instance: self.number()?,
            lost: self.number()?,
            wills: self.client_wills()?,
            published: self.client_wills()?,
            moved: self.arrivals()?,
        })
    }
}
