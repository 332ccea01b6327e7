//! When a broker that starts knows enough of its mesh to confirm anything to clients.
//!
//! Until the neighbours' wishes are here a publication would match local subscriptions only, be
//! acknowledged, and be lost for everybody else. So a broker begins in [`Membership::Joining`], in
//! which its shell lets no client in.
//!
//! | state | event | next |
//! |---|---|---|
//! | `Joining` | attached to the tree, and all that the neighbours want is known | `Joined` |
//! | `Joining` | [`super::Settings::join_wait`] is over: a neighbour is reached, or something is kept for one from before the start, or none is named | `Joined` |
//! | `Joining` | it is over, and none of these | `Stranded` |
//! | `Stranded` | attached, and all that the neighbours want is known | `Joined` |
//!
//! All is known when each named neighbour was tried, and each link either carries messages and its
//! table is complete, or leads to a neighbour that is in the same tree by another way, and not just
//! about to be a child of this broker. A broker that
//! has joined stays so: what happens to its links later is the matter of [`super::lost`].

use punctual_model::Nanos;

use super::{Event, Membership, Node, Output};

/// What the shell knows of the neighbours that it is to connect to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Dialling {
    /// There are some.
    pub named: bool,
    /// Some are not connected, and no attempt to connect to them has ended.
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

    /// When waiting ends.
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
    /// How far this broker is a member of its mesh.
    pub fn membership(&self) -> Membership {
        self.join.state
    }

    /// Which neighbours the shell connects to; to be told before links come up, and when it changes.
    pub fn set_dialling(&mut self, dialling: Dialling, now: Nanos) {
        if self.join.dialling != dialling {
            self.join.dialling = dialling;
            self.settle(now);
        }
    }

    /// Sees whether this broker has joined by now.
    pub(super) fn look_at_membership(&mut self, now: Nanos) {
        if self.join.state == Membership::Joined {
            return;
        }
        let is_over = self.join.state == Membership::Joining && self.join.until <= now;
        let next = match self.knows_wishes() {
            true if is_over || !self.join.dialling.untried => Membership::Joined,
            _ if !is_over => return,
            _ if self.is_known_to_any() || !self.join.dialling.named => Membership::Joined,
            _ => Membership::Stranded,
        };
        self.join.state = next;
        self.tell_reach();
        self.outputs.push(Output::Membership(next));
        self.outputs.log(Event::Membership(next));
    }

    /// Whether it is attached, and what all neighbours want is known.
    fn knows_wishes(&self) -> bool {
        let root = self.tree.root();
        let is_known = |(id, link): (_, &super::Link)| match link.edge.carries() {
            true => self.reach.is_ready(id),
            // A neighbour that asks to be a child here is not part of the tree by another way.
            false => {
                let offer = self.tree.offer(id).and_then(|(_, offer)| offer);
                offer.is_some_and(|(theirs, _)| theirs.id == root.id) && !self.tree.is_asked(id)
            }
        };
        self.tree.is_attached() && self.links.any_carries() && self.links.iter().all(is_known)
    }

    /// Whether publications are carried to, or kept for, any neighbour.
    fn is_known_to_any(&self) -> bool {
        self.links.any_carries() || self.lost.links().next().is_some()
    }
}
