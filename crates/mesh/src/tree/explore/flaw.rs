//! Brokers that do one thing wrong, to see that it is found.

use std::collections::VecDeque;

use super::super::{Advert, LinkId, Tree, TreeOutput};
use punctual_model::Nanos;

/// Cost of a way that is none.
const FAR: u64 = 16;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Flaw {
    None,
    /// Any offer may be chosen: what was advertised before is forgotten.
    Infeasible,
    /// The same, unless the way is far too long.
    Endless,
    // The others are of links; as no way leads back, there would be nothing to find, so
    // ways are endless, too.
    /// Who asks for another parent keeps its children.
    KeepsChildren,
    /// Who asks to be a child holds the link at once.
    HoldsUnanswered,
    /// An answer to an earlier attempt counts for the latest.
    TakesOldAnswers,
}

impl Flaw {
    /// Lets a broker act, by its flaw.
    pub(super) fn around(
        self,
        tree: &mut Tree,
        mut advert: Option<Advert>,
        act: impl FnOnce(&mut Tree, Option<Advert>),
    ) -> VecDeque<TreeOutput> {
        let held = tree.links.iter().filter(|(_, n)| n.held);
        let held: Vec<LinkId> = held.map(|(link, _)| *link).collect();
        if self != Self::None {
            tree.known.clear();
        }
        if !matches!(self, Self::None | Self::Infeasible)
            && let Some(advert) = advert.as_mut().filter(|advert| advert.cost > FAR)
        {
            advert.root.capacity = 0;
        }
        if self == Self::TakesOldAnswers
            && let Some(advert) = advert.as_mut().filter(|advert| advert.held)
        {
            advert.answered = tree.attempts;
        }
        act(tree, advert);
        match self {
            Self::KeepsChildren => {
                for link in held {
                    let child = tree.links.get_mut(&link);
                    if let Some(child) = child.filter(|n| n.asks != 0 && n.asks == n.answered) {
                        child.held = true;
                    }
                }
                tree.settle(Nanos(0));
            }
            Self::HoldsUnanswered => {
                tree.parent.iter_mut().for_each(|p| p.accepted = true);
                tree.settle(Nanos(0));
            }
            _ => {}
        }
        tree.take_outputs()
    }
}
