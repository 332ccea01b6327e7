//! The subscribers to one filter, in the order of [`Place`]: in a list while they are few, in a
//! tree when they are many, so that adding or removing one costs at most the logarithm of their
//! number.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use crate::base::handle::SessionHandle;
use crate::index::subscriber::Subscriber;

/// Maximum number of members that are kept in a list.
const FEW: usize = 32;

/// The place of a session among those that receive a message: neighbours of a mesh come before
/// clients, and sessions in the order of their numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place(u64);

impl Place {
    /// The place before all clients and after all neighbours.
    pub(crate) const FIRST_CLIENT: Self = Self(1 << 63);

    pub(crate) fn of(session: &SessionHandle) -> Self {
        match session.link {
            true => Self(session.number),
            false => Self(Self::FIRST_CLIENT.0 | session.number),
        }
    }
}

/// Sessions with a subscription.
#[derive(Debug)]
pub(super) enum Members {
    Few(Vec<Subscriber>),
    #[allow(
        clippy::box_collection,
        reason = "as large as the list, which nearly every filter has"
    )]
    Many(Box<BTreeMap<Place, Subscriber>>),
}

impl Default for Members {
    fn default() -> Self {
        Self::Few(Vec::new())
    }
}

impl Members {
    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn len(&self) -> usize {
        match self {
            Self::Few(list) => list.len(),
            Self::Many(tree) => tree.len(),
        }
    }

    /// Number of members that are no neighbours.
    pub(super) fn clients(&self) -> usize {
        self.len() - self.links().count()
    }

    /// Adds or replaces the subscription of a session. Returns whether it is new.
    pub(super) fn insert(&mut self, subscriber: Subscriber) -> bool {
        let place = Place::of(&subscriber.session);
        match self {
            Self::Many(tree) => tree.insert(place, subscriber).is_none(),
            Self::Few(list) => match find(list, place) {
                Ok(at) => {
                    list[at] = subscriber;
                    false
                }
                Err(at) if list.len() < FEW => {
                    if list.is_empty() {
                        list.reserve_exact(1);
                    }
                    list.insert(at, subscriber);
                    true
                }
                Err(_) => {
                    let all = list.drain(..).chain([subscriber]);
                    let tree = all.map(|it| (Place::of(&it.session), it)).collect();
                    *self = Self::Many(Box::new(tree));
                    true
                }
            },
        }
    }

    /// Removes the subscription of a session. Returns whether it existed.
    pub(super) fn remove(&mut self, session: &Arc<SessionHandle>) -> bool {
        let place = Place::of(session);
        match self {
            Self::Few(list) => find(list, place).map(|at| list.remove(at)).is_ok(),
            Self::Many(tree) => {
                let removed = tree.remove(&place).is_some();
                // Well below the bound, or a member that is added and removed repeatedly would copy
                // all each time.
                if tree.len() <= FEW / 2 {
                    *self = Self::Few(std::mem::take(&mut **tree).into_values().collect());
                }
                removed
            }
        }
    }

    /// The subscriptions of neighbours.
    pub(super) fn links(&self) -> impl Iterator<Item = &Subscriber> {
        self.range(Bound::Unbounded)
            .take_while(|it| it.session.link)
    }

    /// The subscriptions with a place after `place`.
    pub(super) fn after(&self, place: Place) -> impl Iterator<Item = &Subscriber> {
        self.range(Bound::Excluded(place))
    }

    fn range(&self, from: Bound<Place>) -> impl Iterator<Item = &Subscriber> {
        let (list, tree) = match self {
            Self::Few(list) => {
                let at = match from {
                    Bound::Excluded(place) => find(list, place).map_or_else(|at| at, |at| at + 1),
                    _ => 0,
                };
                (&list[at..], None)
            }
            Self::Many(tree) => (&[][..], Some(tree.range((from, Bound::Unbounded)))),
        };
        let tree = tree.into_iter().flatten().map(|(_, subscriber)| subscriber);
        list.iter().chain(tree)
    }
}

/// The index of the subscription of that place in a list, or where it would be.
fn find(list: &[Subscriber], place: Place) -> Result<usize, usize> {
    list.binary_search_by_key(&place, |it| Place::of(&it.session))
}
