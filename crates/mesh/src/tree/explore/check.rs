//! What has to be true of a world.

use super::super::{Edge, LinkId};
use super::machine::{Act, MAX, Machine, NONE, cost, each, number, rank};
use super::world::{Budget, Event, World};

/// Deliveries after which a world that never becomes quiet is given up.
const PATIENCE: usize = 10_000;

impl World {
    /// The parent whose link both ends hold.
    fn held(&self, machine: &Machine, child: usize) -> Option<usize> {
        let parent = usize::from(machine.local(self.brokers[child])?.parent?);
        let children = machine.local(self.brokers[parent])?.children;
        (children & 1 << child != 0).then_some(parent)
    }

    /// The invariant of the module, in every state.
    pub(super) fn check_forest(&self, machine: &Machine) -> Result<(), String> {
        for broker in 0..MAX {
            let mut above = broker;
            for _ in 0..MAX {
                match self.held(machine, above) {
                    Some(next) if next == broker => {
                        return Err(format!("a circle through {broker}"));
                    }
                    Some(next) => above = next,
                    None => break,
                }
            }
            if let Some(local) = machine.local(self.brokers[broker])
                && local.children != 0
                && !local.tree.is_attached()
            {
                return Err(format!("{broker} holds a child while it joins"));
            }
        }
        Ok(())
    }

    /// What has to be true where nothing is under way.
    pub(super) fn check_quiet(&self, machine: &mut Machine) -> Result<(), String> {
        if !self.lost {
            self.check_agreement(machine, false)?;
        }
        // A hello repairs what a loss left behind; the next makes ways cheap.
        let mut quiet = Self {
            left: Budget::default(),
            ..*self
        };
        for round in 0..6 {
            for broker in 0..MAX {
                if quiet.brokers[broker] != NONE {
                    quiet.act(machine, broker, Act::Hello);
                    quiet.check_forest(machine)?;
                }
            }
            quiet.deliver_all(machine)?;
            if round > 1 {
                quiet.check_agreement(machine, false)?;
            }
        }
        quiet.check_agreement(machine, true)
    }

    fn deliver_all(&mut self, machine: &mut Machine) -> Result<(), String> {
        for _ in 0..PATIENCE {
            let Some(to) = (0..MAX).find(|to| self.under_way[*to] != 0) else {
                return Ok(());
            };
            let from = self.under_way[to].trailing_zeros() as u8;
            self.step(machine, Event::Deliver(from, to as u8));
            self.check_forest(machine)?;
        }
        Err("never quiet".into())
    }

    /// One root for all that reach each other, the best, and a spanning tree.
    fn check_agreement(&self, machine: &Machine, cheapest: bool) -> Result<(), String> {
        for broker in 0..MAX {
            let Some(local) = machine.local(self.brokers[broker]) else {
                continue;
            };
            let (tree, component) = (&local.tree, self.component(broker));
            let best = each(component).map(rank).min().unwrap();
            if *tree.root() != best {
                return Err(format!("{broker}: root {:?}, not {best:?}", tree.root()));
            }
            let links = each(component).filter_map(|child| self.held(machine, child));
            if links.count() + 1 != component.count_ones() as usize {
                return Err(format!("not all who reach {broker} are held together"));
            }
            for (LinkId(to), neighbour) in &tree.links {
                let to = usize::from(*to);
                let child = self.held(machine, to) == Some(broker);
                let parent = self.held(machine, broker) == Some(to);
                let edge = match (child, parent) {
                    (true, _) => Edge::Child,
                    (_, true) => Edge::Parent,
                    _ => Edge::Spare,
                };
                if neighbour.edge != edge {
                    return Err(format!("{broker} thinks {to} is {:?}", neighbour.edge));
                }
            }
            if cheapest {
                let expected = self.distance(broker, number(&best.id));
                if tree.path().0 != expected {
                    return Err(format!("{broker}: cost {}, not {expected}", tree.path().0));
                }
            }
        }
        Ok(())
    }

    /// Brokers that reach each other by links that are up.
    pub(super) fn component(&self, of: usize) -> u8 {
        let mut found = 1 << of;
        for _ in 0..MAX {
            found |= each(found).fold(0, |near, broker| near | self.up[broker]);
        }
        found
    }

    fn distance(&self, from: usize, to: usize) -> u64 {
        let mut far = [u64::MAX; MAX];
        far[from] = 0;
        for _ in 0..MAX {
            for a in 0..MAX {
                for b in each(self.up[a]) {
                    far[b] = far[b].min(far[a].saturating_add(cost(a, b)));
                }
            }
        }
        far[to]
    }
}
