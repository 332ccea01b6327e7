//! Every order of events with few delays.
//!
//! Where there are too many orders for all of them, those come first that differ
//! little from how a network behaves (Emmi, Qadeer, Rakamarić, Delay-Bounded
//! Scheduling, POPL 2011): link by link, in turn, the message that is first
//! arrives; where a delay is left, the link whose turn it is may be passed over
//! once, or waits until nothing else is under way. So one delay lets messages on
//! other links overtake those of a link by one, or by all there are. What goes wrong
//! does so at any step, and costs no delay.

use super::machine::{MAX, Machine, each};
use super::print::Mix;
use super::search::Steps;
use super::world::{Event, World};

#[derive(Debug, Clone, Copy)]
pub(super) struct Turns {
    world: World,
    print: u128,
    delays: u8,
    /// The link whose turn it is, by receiver and sender; 0 if nothing is under way.
    turn: u8,
    /// Links that wait, senders by receiver.
    waiting: [u8; MAX],
}

#[derive(Debug, Clone, Copy)]
pub(super) enum Step {
    Happens(Event),
    PassOver,
    Wait,
}

#[derive(Debug)]
pub(super) struct Delays;

impl Steps for Delays {
    type State = Turns;
    type Step = Step;

    fn world(state: &Turns) -> &World {
        &state.world
    }

    fn print(_: &Machine, state: &Turns) -> u128 {
        let mut print = Mix(state.print);
        let waiting = state.waiting.iter();
        let waiting = waiting.fold(0, |key, from| key << 5 | u64::from(*from));
        print.add(waiting << 16 | u64::from(state.delays) << 8 | u64::from(state.turn));
        print.0
    }

    fn steps(&self, machine: &mut Machine, state: &Turns, steps: &mut Vec<Step>) {
        if !state.world.is_quiet() {
            let (from, to) = state.link();
            steps.push(Step::Happens(Event::Deliver(from, to)));
            if state.delays > 0 && state.ready().count() > 1 {
                steps.extend([Step::PassOver, Step::Wait]);
            }
        }
        let push = &mut |event| steps.push(Step::Happens(event));
        state.world.faults(machine, push);
    }

    fn step(machine: &mut Machine, state: &Turns, step: Step) -> Turns {
        let mut next = *state;
        let (from, to) = state.link();
        match step {
            Step::Happens(event) => {
                next.world.step(machine, event);
                next.print = machine.print(&next.world);
                next.turn += u8::from(matches!(event, Event::Deliver(..)));
            }
            Step::PassOver => {
                next.turn += 1;
                next.delays -= 1;
            }
            Step::Wait => {
                next.waiting[usize::from(to)] |= 1 << from;
                next.delays -= 1;
            }
        }
        next.go_on();
        next
    }
}

impl Turns {
    pub(super) fn new(machine: &Machine, world: World, delays: u8) -> Self {
        let mut turns = Self {
            print: machine.print(&world),
            world,
            delays,
            turn: 0,
            waiting: [0; MAX],
        };
        turns.go_on();
        turns
    }

    /// Sender and receiver of the link whose turn it is.
    fn link(&self) -> (u8, u8) {
        (self.turn % MAX as u8, self.turn / MAX as u8)
    }

    /// Links on which something may arrive, in their order.
    fn ready(&self) -> impl Iterator<Item = u8> {
        let (under_way, waiting) = (self.world.under_way, self.waiting);
        (0..MAX).flat_map(move |to| {
            each(under_way[to] & !waiting[to]).map(move |from| (to * MAX + from) as u8)
        })
    }

    /// Gives the turn to the next link that is ready.
    fn go_on(&mut self) {
        for (waiting, under_way) in self.waiting.iter_mut().zip(self.world.under_way) {
            *waiting &= under_way;
        }
        if self.ready().next().is_none() {
            self.waiting = [0; MAX];
        }
        let later = self.ready().find(|link| *link >= self.turn);
        self.turn = later.or_else(|| self.ready().next()).unwrap_or(0);
    }
}
