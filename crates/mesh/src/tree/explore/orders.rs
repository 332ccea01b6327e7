//! Every order of events, but not twice where order makes no difference.
//!
//! A delivery changes its receiver, takes what is first from one link to it, and
//! appends to links from it. So deliveries to different brokers commute, unless one
//! of them sends the other one its message; a crash and a hello are likewise an
//! affair of one broker, a lost message of its receiver, and a cut of both ends. In
//! each state it is enough to look at what happens to a set of brokers that is
//! *closed*: who may, without them, send to one of them on a link where nothing is
//! under way is one of them, and so is who shares a fault with one of them (the
//! persistent sets of Godefroid, Partial-Order Methods, 1996). Whatever happens to
//! others first then neither forbids, nor changes, nor adds to what happens to the
//! set.
//!
//! *Nothing is missed.* Let a run lead from a state to a bad or quiet one, and take
//! the first of its events that happens to the set: it may as well come first. If
//! there is none, all the set may do is still possible at the end, so the end is
//! not quiet, for a set is chosen to which something is under way. If it is bad,
//! some event of the set can be put in front and the end is bad still: there is a
//! circle of links that are held, and a set is only taken if none of its events
//! takes from a broker a link by which circles may lead through it (see
//! `Local::lets_through`). As every run ends, which the search checks, this
//! arrives. What is asked of a single broker it does in every order anyway.

use super::machine::{MAX, Machine, NONE, each};
use super::search::Steps;
use super::world::{Event, World};

#[derive(Debug)]
pub(super) struct Orders {
    /// Whether orders that make no difference are left out.
    pub(super) reduced: bool,
}

impl Steps for Orders {
    type State = World;
    type Step = Event;

    fn world(state: &World) -> &World {
        state
    }

    fn print(machine: &Machine, state: &World) -> u128 {
        machine.print(state)
    }

    fn step(machine: &mut Machine, state: &World, event: Event) -> World {
        let mut next = *state;
        next.step(machine, event);
        next
    }

    fn steps(&self, machine: &mut Machine, state: &World, steps: &mut Vec<Event>) {
        let first = steps.len();
        state.events(machine, &mut |event| steps.push(event));
        if !self.reduced || steps.len() - first < 2 {
            return;
        }
        let mut sets = [0u8; MAX];
        let (mut least, mut best) = (steps.len() - first, None);
        for seed in 0..MAX {
            if state.under_way[seed] == 0 {
                continue;
            }
            let set = state.close(1 << seed);
            if sets[..seed].contains(&set) {
                continue;
            }
            sets[seed] = set;
            let of_set = steps[first..]
                .iter()
                .filter(|event| state.whom(**event) & set != 0);
            let count = of_set.clone().count();
            if count < least
                && of_set
                    .copied()
                    .all(|event| state.hides_nothing(machine, event))
            {
                (least, best) = (count, Some(set));
            }
        }
        if let Some(set) = best {
            let mut kept = first;
            for at in first..steps.len() {
                if state.whom(steps[at]) & set != 0 {
                    steps.swap(kept, at);
                    kept += 1;
                }
            }
            steps.truncate(kept);
        }
    }
}

impl World {
    /// To whom an event happens.
    fn whom(&self, event: Event) -> u8 {
        match event {
            Event::Deliver(_, to) | Event::Lose(_, to) => 1 << to,
            Event::Crash(broker) | Event::Hello(broker) => 1 << broker,
            Event::Start(broker) => 1 << broker | self.edges[usize::from(broker)],
            Event::Cut(a, b) => 1 << a | 1 << b,
        }
    }

    /// Brokers who share what may still go wrong, a set for each kind.
    fn shared(&self) -> [u8; 4] {
        let (left, places) = (&self.left, &self.places);
        let all = self.edges.iter().fold(0, |all, near| all | near);
        let mut shared = [0; 4];
        if left.crashes > 0 {
            shared[0] = places.crashes & all;
        }
        if left.hellos > 0 {
            shared[1] = places.hellos & all;
        }
        for a in 0..MAX {
            if left.lost > 0 && places.lost[a] & self.edges[a] != 0 {
                shared[2] |= 1 << a;
            }
            let cuts = places.cuts[a] & self.up[a] & !0 << a;
            if left.cuts > 0 && cuts != 0 {
                shared[3] |= 1 << a | cuts;
            }
        }
        if left.starts > 0 {
            // Who crashes may start, and so be the one who does.
            let down = (0..MAX).filter(|broker| self.brokers[*broker] == NONE);
            shared[0] |= down.fold(0, |down, broker| down | 1 << broker) & all;
        }
        if left.one {
            shared[0] |= shared[2] | shared[3];
            (shared[2], shared[3]) = (0, 0);
        }
        shared
    }

    /// Who may be linked to a broker, now or later.
    fn near(&self, broker: usize) -> u8 {
        match self.left.starts {
            0 => self.up[broker],
            _ => self.edges[broker],
        }
    }

    /// The least closed set of brokers that contains `set`.
    fn close(&self, mut set: u8) -> u8 {
        let shared = self.shared();
        loop {
            let before = set;
            for group in shared {
                if group & set != 0 {
                    set |= group;
                }
            }
            let active = self.active(set, &shared);
            for broker in each(set) {
                set |= self.near(broker) & active & !self.under_way[broker];
                if self.brokers[broker] == NONE && self.left.starts > 0 {
                    set |= self.edges[broker];
                }
            }
            if set == before {
                return set;
            }
        }
    }

    /// Who may do something without any of `set`.
    fn active(&self, set: u8, shared: &[u8; 4]) -> u8 {
        let mut active = shared.iter().fold(0, |all, group| all | group);
        for broker in 0..MAX {
            let may_start = self.brokers[broker] == NONE && self.left.starts > 0;
            if self.under_way[broker] != 0 || may_start {
                active |= 1 << broker;
            }
        }
        active &= !set;
        for _ in 0..MAX {
            active |= each(active).fold(0, |near, broker| near | self.near(broker)) & !set;
        }
        active
    }

    /// Whether circles of links that were held are there after an event, too.
    fn hides_nothing(&self, machine: &mut Machine, event: Event) -> bool {
        let mut next = *self;
        next.step(machine, event);
        each(self.whom(event)).all(|broker| {
            let Some(before) = machine.local(self.brokers[broker]) else {
                return true;
            };
            match machine.local(next.brokers[broker]) {
                Some(after) => after.lets_through(before),
                None => before.parent.is_none() || before.children == 0,
            }
        })
    }
}
