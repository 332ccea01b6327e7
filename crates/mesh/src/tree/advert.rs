//! What neighbours tell each other about the tree.

use punctual_model::Nanos;

use crate::id::{BrokerId, Rank};

/// State of a broker as one neighbour is to know it: its way to the root, and
/// what becomes of the link between the two.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Advert {
    /// Increases by one with each advert on a link, from 1.
    pub number: u64,
    /// Root of the sender.
    pub root: Rank,
    /// The root's epoch.
    pub epoch: u64,
    /// Cost of the sender's way to the root in microseconds.
    pub cost: u64,
    /// Links of that way.
    pub hops: u16,
    /// Time since the root began the epoch, as far as known; carried in
    /// milliseconds.
    pub age: Nanos,
    /// Attempt with which the sender asks the receiver to be its parent; 0 if it
    /// does not.
    pub asks: u64,
    /// The receiver's last attempt that the sender has answered; 0 for none.
    pub answered: u64,
    /// Whether the sender holds the receiver as its child for that attempt.
    pub held: bool,
    /// What is missing to a way.
    pub seek: Option<Seek>,
}

impl Advert {
    /// Whether both say the same, but for number and age.
    pub(super) fn says_same(&self, other: &Self) -> bool {
        let aligned = Self {
            number: self.number,
            age: self.age,
            ..other.clone()
        };
        *self == aligned
    }
}

/// A root is asked for a newer epoch, because the ways to it that are known may
/// lead back to who asks.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Seek {
    /// Which root.
    pub root: BrokerId,
    /// The epoch has to be above.
    pub above: u64,
}
