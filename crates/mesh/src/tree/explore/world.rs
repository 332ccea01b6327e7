//! All brokers, all links and what is under way on each, and what may happen next.
//!
//! Messages on one link keep their order (they travel on one TCP connection); those
//! on different links do not.

use super::machine::{Act, Id, MAX, Machine, NONE, each};

/// How much may go wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Budget {
    pub(super) lost: u8,
    pub(super) crashes: u8,
    pub(super) starts: u8,
    pub(super) cuts: u8,
    pub(super) hellos: u8,
    /// Only one of messages, brokers and links is lost.
    pub(super) one: bool,
}

/// Where it may.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Places {
    /// Brokers that may crash, and those that may say hello.
    pub(super) crashes: u8,
    pub(super) hellos: u8,
    /// By receiver, whose messages may be lost.
    pub(super) lost: [u8; MAX],
    /// By the lower end, the other ends of links that may be cut.
    pub(super) cuts: [u8; MAX],
}

impl Places {
    pub(super) const NOWHERE: Self = Self {
        crashes: 0,
        hellos: 0,
        lost: [0; MAX],
        cuts: [0; MAX],
    };
    pub(super) const ANYWHERE: Self = Self {
        crashes: u8::MAX,
        hellos: u8::MAX,
        lost: [u8::MAX; MAX],
        cuts: [u8::MAX; MAX],
    };

    pub(super) fn lose(mut self, from: usize, to: usize) -> Self {
        self.lost[to] |= 1 << from;
        self
    }

    /// Of the link between `a` and a higher `b`.
    pub(super) fn cut(mut self, a: usize, b: usize) -> Self {
        self.cuts[a] |= 1 << b;
        self
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Event {
    /// What is first on the link from one to the other arrives, or is lost.
    Deliver(u8, u8),
    Lose(u8, u8),
    Crash(u8),
    Start(u8),
    Cut(u8, u8),
    Hello(u8),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct World {
    pub(super) brokers: [Id; MAX],
    /// What is under way, by receiver and sender, and where something is.
    pub(super) queues: [[Id; MAX]; MAX],
    pub(super) under_way: [u8; MAX],
    /// Neighbours by links that are up, and by those that may be.
    pub(super) up: [u8; MAX],
    pub(super) edges: [u8; MAX],
    pub(super) left: Budget,
    pub(super) places: Places,
    pub(super) lost: bool,
}

impl World {
    /// Brokers that have just started and connected.
    pub(super) fn new(
        machine: &mut Machine,
        n: usize,
        edges: &[(usize, usize)],
        (left, places): (Budget, Places),
    ) -> Self {
        let mut world = Self {
            brokers: [NONE; MAX],
            queues: [[NONE; MAX]; MAX],
            under_way: [0; MAX],
            up: [0; MAX],
            edges: [0; MAX],
            left,
            places,
            lost: false,
        };
        for broker in 0..n {
            world.act(machine, broker, Act::Start);
        }
        for (a, b) in edges {
            world.edges[*a] |= 1 << b;
            world.edges[*b] |= 1 << a;
            world.connect(machine, *a, *b);
        }
        world
    }

    pub(super) fn is_quiet(&self) -> bool {
        self.under_way == [0; MAX]
    }

    /// What a fingerprint takes from here: all that is not brokers, queues or the same for ever.
    pub(super) fn key(&self) -> u64 {
        let links = self.up.iter().fold(0, |key, up| key << 5 | u64::from(*up));
        let left = self.left;
        let left = [left.lost, left.crashes, left.starts, left.cuts, left.hellos];
        let left = left.iter().fold(0, |key, n| key << 4 | u64::from(*n));
        links << 32 | left << 1 | u64::from(self.lost)
    }

    /// All that may happen, deliveries first.
    pub(super) fn events(&self, machine: &Machine, push: &mut impl FnMut(Event)) {
        for to in 0..MAX {
            each(self.under_way[to]).for_each(|from| push(Event::Deliver(from as u8, to as u8)));
        }
        self.faults(machine, push);
    }

    /// What may go wrong, and hellos.
    pub(super) fn faults(&self, machine: &Machine, push: &mut impl FnMut(Event)) {
        let (left, places) = (&self.left, &self.places);
        let start = left.starts > 0;
        for broker in 0..MAX {
            let n = broker as u8;
            if left.lost > 0 {
                for from in each(self.under_way[broker] & places.lost[broker]) {
                    // The end of a connection is noticed in any case.
                    if machine.queue(self.queues[broker][from])[0] != NONE {
                        push(Event::Lose(from as u8, n));
                    }
                }
            }
            if left.cuts > 0 {
                let later = !0 << broker;
                let to = self.up[broker] & places.cuts[broker] & later;
                each(to).for_each(|to| push(Event::Cut(n, to as u8)));
            }
            if self.brokers[broker] == NONE {
                let ended = self.under_way.iter().all(|from| from & 1 << broker == 0);
                if start && ended && self.edges[broker] != 0 {
                    push(Event::Start(n));
                }
                continue;
            }
            if left.crashes > 0 && places.crashes & 1 << broker != 0 {
                push(Event::Crash(n));
            }
            if left.hellos > 0 && places.hellos & 1 << broker != 0 {
                push(Event::Hello(n));
            }
        }
    }

    pub(super) fn step(&mut self, machine: &mut Machine, event: Event) {
        match event {
            Event::Deliver(from, to) => {
                let act = match self.take(machine, from, to) {
                    NONE => Act::LinkDown(from),
                    advert => Act::Receive(from, advert),
                };
                self.act(machine, usize::from(to), act);
            }
            Event::Lose(from, to) => {
                self.take(machine, from, to);
                self.left.lost -= 1;
                self.lost = true;
                self.fault_was();
            }
            Event::Crash(broker) => {
                self.crash(machine, usize::from(broker));
                self.left.crashes -= 1;
                self.fault_was();
            }
            Event::Start(broker) => {
                self.start(machine, usize::from(broker));
                self.left.starts -= 1;
            }
            Event::Cut(a, b) => {
                self.cut(machine, a.into(), b.into());
                self.left.cuts -= 1;
                self.fault_was();
            }
            Event::Hello(broker) => {
                self.act(machine, broker.into(), Act::Hello);
                self.left.hellos -= 1;
            }
        }
    }

    fn fault_was(&mut self) {
        if self.left.one {
            (self.left.lost, self.left.crashes, self.left.cuts) = (0, 0, 0);
            if self
                .brokers
                .iter()
                .zip(self.edges)
                .all(|(b, e)| *b != NONE || e == 0)
            {
                self.left.starts = 0;
            }
        }
    }

    fn take(&mut self, machine: &mut Machine, from: u8, to: u8) -> Id {
        let queue = &mut self.queues[usize::from(to)][usize::from(from)];
        let (item, rest) = machine.pop(*queue);
        *queue = rest;
        if rest == NONE {
            self.under_way[usize::from(to)] &= !(1 << from);
        }
        item
    }

    fn put(&mut self, machine: &mut Machine, from: usize, to: usize, item: Id) {
        let queue = &mut self.queues[to][from];
        *queue = machine.push(*queue, item);
        self.under_way[to] |= 1 << from;
    }

    /// Lets a broker act, and puts what it says under way.
    pub(super) fn act(&mut self, machine: &mut Machine, broker: usize, act: Act) {
        let effect = machine.effect(broker, self.brokers[broker], act);
        self.brokers[broker] = effect.then;
        for to in each(self.up[broker]) {
            if effect.sends[to] != NONE {
                self.put(machine, broker, to, effect.sends[to]);
            }
        }
    }

    fn connect(&mut self, machine: &mut Machine, a: usize, b: usize) {
        self.up[a] |= 1 << b;
        self.up[b] |= 1 << a;
        self.act(machine, a, Act::LinkUp(b as u8));
        self.act(machine, b, Act::LinkUp(a as u8));
    }

    fn cut(&mut self, machine: &mut Machine, a: usize, b: usize) {
        self.up[a] &= !(1 << b);
        self.up[b] &= !(1 << a);
        for (from, to) in [(a, b), (b, a)] {
            if self.brokers[to] != NONE {
                self.put(machine, from, to, NONE);
            }
        }
    }

    fn crash(&mut self, machine: &mut Machine, broker: usize) {
        self.brokers[broker] = NONE;
        self.queues[broker] = [NONE; MAX];
        self.under_way[broker] = 0;
        for neighbour in each(self.up[broker]) {
            self.cut(machine, broker, neighbour);
        }
    }

    fn start(&mut self, machine: &mut Machine, broker: usize) {
        self.act(machine, broker, Act::Start);
        for other in each(self.edges[broker]) {
            if self.brokers[other] != NONE {
                self.connect(machine, broker.min(other), broker.max(other));
            }
        }
    }
}
