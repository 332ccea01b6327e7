//! The message by which neighbours build the tree.

use punctual_model::Nanos;

use crate::id::{BrokerId, Rank};

/// State of a broker for one neighbour: its path to the root, and the state of the link between the two.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Advert {
    /// Increases by one with each advert on a link, from 1.
    pub number: u64,
    /// The root that the sender believes in.
    pub root: Rank,
    /// The root's epoch.
    pub epoch: u64,
    /// Cost of the sender's path to the root in microseconds.
    pub cost: u64,
    /// Number of links of that path.
    pub hops: u16,
    /// Time since the root began the epoch, as far as known; encoded in milliseconds.
    pub age: Nanos,
    /// Number of the attempt with which the sender asks the receiver to become its parent; 0 if it does
    /// not.
    pub asks: u64,
    /// The receiver's last attempt that the sender has accepted; 0 for none.
    pub answered: u64,
    /// Whether the sender holds the link to the receiver as its child, for that attempt.
    pub held: bool,
    /// Asks for a newer epoch, if the sender has no path that it may choose.
    pub epoch_request: Option<EpochRequest>,
}

impl Advert {
    /// Whether both are equal except for number and age.
    pub(super) fn says_same(&self, other: &Self) -> bool {
        let aligned = Self {
            number: self.number,
            age: self.age,
            ..other.clone()
        };
        *self == aligned
    }
}

/// Asks a root for a newer epoch, because the known paths to it may lead back to the broker that asks (a
/// *sequence number request* in Babel, RFC 8966).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct EpochRequest {
    /// The root that is asked.
    pub root: BrokerId,
    /// The new epoch has to be above this one.
    pub above: u64,
}
