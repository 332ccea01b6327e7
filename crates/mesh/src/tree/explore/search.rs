//! Visits every state that can be reached by the steps that a way of searching allows.

use std::collections::HashSet;
use std::hash::{BuildHasherDefault, Hasher};

use super::machine::Machine;
use super::world::World;

/// A run of more events counts as one that never ends.
const LONGEST: usize = 2_000;

/// Which steps are looked at.
pub(super) trait Steps {
    type State: Copy;
    type Step: Copy + std::fmt::Debug;
    fn world(state: &Self::State) -> &World;
    fn print(machine: &Machine, state: &Self::State) -> u128;
    fn steps(&self, machine: &mut Machine, state: &Self::State, steps: &mut Vec<Self::Step>);
    fn step(machine: &mut Machine, state: &Self::State, step: Self::Step) -> Self::State;
}

/// What was found, after which steps.
#[derive(Debug)]
pub(super) struct Violation {
    pub(super) why: String,
    pub(super) trace: String,
}

#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Count {
    pub(super) states: usize,
    pub(super) quiet: usize,
}

impl Count {
    pub(super) fn add(&mut self, other: Self) {
        self.states += other.states;
        self.quiet += other.quiet;
    }
}

impl std::fmt::Display for Count {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} states, {} of them quiet", self.states, self.quiet)
    }
}

/// A state on the way, and which of its steps are still to be looked at.
struct Frame<S> {
    state: S,
    print: u128,
    first: usize,
    next: usize,
}

/// Visits every state, depth first; a state that comes again in its own run would be
/// a run without an end.
pub(super) fn search<S: Steps>(
    how: &S,
    machine: &mut Machine,
    start: S::State,
) -> Result<Count, Violation> {
    let (mut seen, mut quiet, mut run) = (Prints::default(), Prints::default(), Prints::default());
    let mut steps: Vec<S::Step> = Vec::new();
    let mut frames: Vec<Frame<S::State>> = Vec::new();
    let mut arrived = Some((start, S::print(machine, &start)));
    loop {
        if let Some((state, print)) = arrived.take() {
            let checked = if seen.insert(print) {
                run.insert(print);
                let first = steps.len();
                how.steps(machine, &state, &mut steps);
                frames.push(Frame {
                    state,
                    print,
                    first,
                    next: steps.len(),
                });
                let checked = check(machine, S::world(&state), &mut quiet);
                checked.and_then(|()| match frames.len() < LONGEST {
                    true => Ok(()),
                    false => Err("never quiet: a run without an end".into()),
                })
            } else if run.contains(&print) {
                Err("never quiet: a state comes again".into())
            } else {
                Ok(())
            };
            checked.map_err(|why| {
                let trace: Vec<&S::Step> =
                    frames.iter().filter_map(|f| steps.get(f.next)).collect();
                let trace = format!("{trace:?}, then {:#?}", S::world(&state));
                Violation { why, trace }
            })?;
        }
        let Some(frame) = frames.last_mut() else {
            let (states, quiet) = (seen.len(), quiet.len());
            return Ok(Count { states, quiet });
        };
        if frame.next == frame.first {
            run.remove(&frame.print);
            steps.truncate(frame.first);
            frames.pop();
            continue;
        }
        frame.next -= 1;
        let next = S::step(machine, &frame.state, steps[frame.next]);
        arrived = Some((next, S::print(machine, &next)));
    }
}

fn check(machine: &mut Machine, world: &World, quiet: &mut Prints) -> Result<(), String> {
    world.check_forest(machine)?;
    if machine.is_endless {
        return Err("never quiet: counters grow without end".into());
    }
    if !world.is_quiet() {
        return Ok(());
    }
    // What may still go wrong makes no difference for what is checked.
    let settled = World {
        left: Default::default(),
        ..*world
    };
    if quiet.insert(machine.print(&settled)) {
        world.check_quiet(machine)?;
    }
    Ok(())
}

pub(super) type Prints = HashSet<u128, BuildHasherDefault<IdentityHasher>>;

/// Fingerprints are hashes already.
#[derive(Debug, Default)]
pub(super) struct IdentityHasher(u64);

impl Hasher for IdentityHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("only numbers of 128 bits");
    }

    fn write_u128(&mut self, n: u128) {
        self.0 = n as u64 ^ (n >> 64) as u64;
    }
}
