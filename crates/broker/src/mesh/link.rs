//! What a session of a neighbour has beyond those of clients.

use std::collections::VecDeque;
use std::sync::Arc;

use hashbrown::{HashMap, HashSet};

use crate::Nanos;
use crate::base::name::MessageName;
use crate::mesh::parked::ParkedPublications;

/// By what a neighbour is one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Entitlement {
    /// This broker has connected to it.
    #[default]
    Dialled,
    /// It knows the secret of the mesh.
    Secret,
    /// Its user has the right to be it.
    Right,
}

/// What a session of a neighbour has beyond those of clients.
#[derive(Debug, Default)]
pub(crate) struct LinkState {
    /// By what it was let in last.
    pub(crate) entitlement: Entitlement,
    /// What the neighbour wants.
    pub(crate) filters: HashSet<Box<str>, foldhash::fast::RandomState>,
    /// Brokers behind it where shared subscriptions have members, by their filters.
    pub(crate) members: HashMap<Box<str>, Vec<Box<str>>, foldhash::fast::RandomState>,
    /// Brokers behind it where persistent sessions await messages, by the filters.
    pub(crate) awaited: HashMap<Box<str>, Vec<Box<str>>, foldhash::fast::RandomState>,
    /// Brokers that it leads to, itself among them, if that is known.
    pub(crate) behind: Vec<Box<str>>,
    /// Messages in flight that the neighbour allows, while none are sent.
    pub(crate) held: Option<u16>,
    /// Publications of the neighbour that are not acknowledged because there is no
    /// room where they have to go.
    pub(crate) parked: ParkedPublications,
    /// The same of those before which another one is to come; in the order in which they came.
    pub(crate) early: VecDeque<Early>,
    /// Retained messages that the neighbour has told it has, since it began to.
    pub(crate) has: Vec<u64>,
    /// Filters on which the neighbour takes only little, as it says.
    pub(crate) brake: Arc<[Box<str>]>,
    /// What it was told of that last, by parts.
    pub(crate) told: Vec<Arc<[Box<str>]>>,
    /// Its filters, while its queue is full: few that match the same and more.
    pub(crate) full: Option<Arc<[Box<str>]>>,
    /// So is what is kept back for it.
    pub(crate) braked_full: bool,
}

impl LinkState {
    /// Whether publications of the neighbour wait, here or there, because there is no room here.
    pub(crate) fn waits(&self) -> bool {
        !self.parked.is_empty() || !self.early.is_empty() || !self.told.is_empty()
    }
}

/// A publication of a neighbour that came before the one that was published before it.
#[derive(Debug)]
pub(crate) struct Early {
    /// What it waits for,
    pub(crate) previous: MessageName,
    /// and how long at most.
    pub(crate) until: Nanos,
    pub(crate) packet: Box<[u8]>,
}
