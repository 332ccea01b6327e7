//! State of a neighbour's session beyond that of clients' sessions.

use std::collections::VecDeque;
use std::sync::Arc;

use hashbrown::{HashMap, HashSet};

use crate::Nanos;
use crate::base::name::MessageName;
use crate::mesh::parked::ParkedPublications;

/// The reason for which a broker is accepted as a neighbour.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Entitlement {
    /// This broker has opened the connection.
    #[default]
    Dialled,
    /// The neighbour has presented the secret of the mesh.
    Secret,
    /// The user of the neighbour has the right to be the broker of that name.
    Right,
}

/// State of a neighbour's session beyond that of clients' sessions.
#[derive(Debug, Default)]
pub(crate) struct LinkState {
    /// Why the neighbour was accepted on its last connection.
    pub(crate) entitlement: Entitlement,
    /// Filters of the messages that the neighbour receives.
    pub(crate) filters: HashSet<Box<str>, foldhash::fast::RandomState>,
    /// Brokers behind the neighbour with members of shared subscriptions, by the filters of these.
    pub(crate) members: HashMap<Box<str>, Vec<Box<str>>, foldhash::fast::RandomState>,
    /// Brokers behind the neighbour with persistent sessions that await messages, by the filters of
    /// these.
    pub(crate) awaited: HashMap<Box<str>, Vec<Box<str>>, foldhash::fast::RandomState>,
    /// Brokers that the neighbour leads to, itself among them; empty if they are not known.
    pub(crate) behind: Vec<Box<str>>,
    /// Receive Maximum of the neighbour, while the link carries no messages; `None` while it
    /// carries messages.
    pub(crate) held: Option<u16>,
    /// Blocked publications of the neighbour: they are not acknowledged, as a receiver has no room
    /// or the store does not accept them.
    pub(crate) parked: ParkedPublications,
    /// Publications of the neighbour that wait for an earlier one on their topic, in the order of
    /// arrival.
    pub(crate) early: VecDeque<Early>,
    /// Retained messages that the neighbour has reported to have, in the present comparison.
    pub(crate) has: Vec<u64>,
    /// Filters on which the neighbour has asked for few messages.
    pub(crate) throttle: Arc<[Box<str>]>,
    /// The lists of filters that were last sent to the neighbour for flow control.
    pub(crate) told: Vec<Arc<[Box<str>]>>,
    /// While its queue is full: a short list of filters that match at least all that its own
    /// filters match.
    pub(crate) full: Option<Arc<[Box<str>]>>,
    /// Whether the held-back part of its queue is full, too.
    pub(crate) throttled_full: bool,
}

impl LinkState {
    /// Whether publications of the neighbour wait, on this broker or on the neighbour, because
    /// there is no room here.
    pub(crate) fn waits(&self) -> bool {
        !self.parked.is_empty() || !self.early.is_empty() || !self.told.is_empty()
    }
}

/// A publication of a neighbour that arrived before the preceding one on its topic.
#[derive(Debug)]
pub(crate) struct Early {
    /// The preceding message, for which it waits.
    pub(crate) previous: MessageName,
    /// When it is delivered without the preceding message.
    pub(crate) until: Nanos,
    pub(crate) packet: Box<[u8]>,
}
