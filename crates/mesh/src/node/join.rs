//! Joining: when a broker that starts knows enough of its mesh to acknowledge anything to clients.
//!
//! Until the filters of the neighbours have arrived, a publication would match local subscriptions only,
//! be acknowledged, and be lost for all other subscribers. So a broker begins in [`Membership::Joining`],
//! in which its shell refuses clients.
//!
//! | state | event | next |
//! |---|---|---|
//! | `Joining` | attached to the tree, and all that the neighbours want is known | `Joined` |
//! | `Joining` | [`super::Settings::join_wait`] is over: a neighbour is reached, or something is kept for one from before the start, or none is named | `Joined` |
//! | `Joining` | it is over, and none of these | `Stranded` |
//! | `Stranded` | attached, and all that the neighbours want is known | `Joined` |
//!
//! The filters of all neighbours are known when each configured neighbour was tried, and each link either
//! carries messages and its table is complete, or leads to a neighbour that is in the same tree by
//! another path and does not ask to become a child of this broker. A broker that has joined stays joined;
//! [`super::lost`] handles links that fail later.

use punctual_model::Nanos;

use super::{Event, Membership, Node, Output};

/// State of the connections that the shell opens to configured neighbours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Dialling {
    /// There are configured neighbours.
    pub named: bool,
    /// For some of them, which are not connected, no attempt to connect has ended yet.
    pub untried: bool,
}

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Join {
    state: Membership,
    until: Nanos,
    dialling: Dialling,
}

impl Join {
    pub(super) fn new(wait: Nanos, now: Nanos) -> Self {
        Self {
            state: match wait {
                Nanos(0) => Membership::Joined,
                _ => Membership::Joining,
            },
            until: now + wait,
            dialling: Dialling::default(),
        }
    }

    /// When [`super::Settings::join_wait`] ends, while joining.
    pub(super) fn next(&self) -> Option<Nanos> {
        (self.state == Membership::Joining).then_some(self.until)
    }
}

impl Membership {
    /// Name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Joining => "joining",
            Self::Joined => "joined",
            Self::Stranded => "stranded",
        }
    }
}

impl Node {
    /// Progress of this broker in joining its mesh.
    pub fn membership(&self) -> Membership {
        self.join.state
    }

    /// Sets the state of the shell's connections. To be called before links come up, and at every change.
    pub fn set_dialling(&mut self, dialling: Dialling, now: Nanos) {
        if self.join.dialling != dialling {
            self.join.dialling = dialling;
            self.settle(now);
        }
    }

    /// Updates the membership.
    pub(super) fn look_at_membership(&mut self, now: Nanos) {
        if self.join.state == Membership::Joined {
            return;
        }
        let is_over = self.join.state == Membership::Joining && self.join.until <= now;
        let next = match self.knows_neighbours_interest() {
            true if is_over || !self.join.dialling.untried => Membership::Joined,
            _ if !is_over => return,
            _ if self.is_known_to_any() || !self.join.dialling.named => Membership::Joined,
            _ => Membership::Stranded,
        };
        self.join.state = next;
        self.report_reach();
        self.outputs.push(Output::Membership(next));
        self.outputs.log(Event::Membership(next));
    }

    /// Whether this broker is attached to the tree, and the filters of all neighbours are known.
    fn knows_neighbours_interest(&self) -> bool {
        let root = self.tree.root();
        let is_known = |(id, link): (_, &super::Link)| match link.edge.carries() {
            true => self.reach.is_ready(id),
            // A neighbour that asks to become a child here is not in the tree by another path.
            false => {
                let offer = self.tree.offer(id).and_then(|(_, offer)| offer);
                offer.is_some_and(|(theirs, _)| theirs.id == root.id) && !self.tree.is_asked(id)
            }
        };
        self.tree.is_attached() && self.links.any_carries() && self.links.iter().all(is_known)
    }

    /// Whether publications are sent to, or queued for, any neighbour. One that is remembered without
    /// a filter may have been lost before it had sent any.
    fn is_known_to_any(&self) -> bool {
        let table = &self.filters.table;
        let is_wanting = |link| table.count_wanted_by(link) > 0 || table.is_overflown(link);
        self.links.any_carries() || self.lost.links().any(is_wanting)
    }
}
