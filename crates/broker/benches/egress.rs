//! What ordering by urgency costs: `cargo bench -p punctual-broker [FILTER]`.
//!
//! Lanes hold a number of entries, and each step adds one and removes the most
//! urgent, so the number stays. Then both enqueueing methods of the PrioMQTT
//! paper: one entry per receiver, in a lane of its own as the broker has it,
//! against one entry with a list of receivers in a lane of all. Each line is the
//! fastest of several batches; run on an otherwise idle machine.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a program for developers"
)]

use std::collections::BTreeMap;
use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use punctual_broker::{Discipline, Lane, Nanos, Policy, Urgency};

const BATCHES: u32 = 30;
const STEPS: u32 = 20_000;

/// Prints what one of `per` messages of a step takes.
fn measure(name: &str, per: u32, mut step: impl FnMut()) {
    if let Some(filter) = std::env::args().skip(1).find(|arg| !arg.starts_with('-'))
        && !name.contains(&filter)
    {
        return;
    }
    let steps = (STEPS / per).max(100);
    let best = (0..BATCHES)
        .map(|_| {
            let start = Instant::now();
            for _ in 0..steps {
                step();
            }
            start.elapsed()
        })
        .min()
        .unwrap();
    let nanos = best.as_secs_f64() * 1e9 / f64::from(steps * per);
    println!("{name:56} {nanos:8.1} ns");
}

/// Keys in an order that no heap likes, from a small generator.
struct Keys(u64);

impl Keys {
    fn next(&mut self, below: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % below
    }
}

/// A message as the broker keeps it waiting: a reference and some words.
type Waiting = (Arc<[u8; 100]>, u64, u64);

fn lanes() {
    let message = Arc::new([0; 100]);
    for (keys, below) in [("8 keys", 8), ("distinct keys", u64::MAX)] {
        for queued in [10, 1_000, 1_000_000] {
            let mut random = Keys(88_172_645_463_325_252);
            let mut lane: Lane<Waiting> = Lane::default();
            for _ in 0..queued {
                let key = random.next(below);
                let _ = lane.push(key, (message.clone(), 0, 0));
            }
            measure(&format!("lane, {queued} queued, {keys}"), 1, || {
                let key = random.next(below);
                let _ = lane.push(key, (message.clone(), 0, 0));
                black_box(lane.pop());
            });
            measure(
                &format!("lane that overflows, {queued} queued, {keys}"),
                1,
                || {
                    let key = random.next(below);
                    let _ = lane.push(key, (message.clone(), 0, 0));
                    black_box(lane.give_up(|_| true));
                },
            );
        }
    }
    // A sorted map as yardstick.
    for queued in [10, 1_000, 1_000_000] {
        let mut random = Keys(88_172_645_463_325_252);
        let mut map: BTreeMap<(u64, u64), Waiting> = BTreeMap::new();
        let mut arrivals = 0;
        for _ in 0..queued {
            arrivals += 1;
            map.insert((random.next(8), arrivals), (message.clone(), 0, 0));
        }
        measure(&format!("sorted map, {queued} queued, 8 keys"), 1, || {
            arrivals += 1;
            map.insert((random.next(8), arrivals), (message.clone(), 0, 0));
            black_box(map.pop_first());
        });
    }
}

fn enqueueing() {
    let message = Arc::new([0; 100]);
    for receivers in [2u32, 5, 50] {
        for queued in [10, 1_000] {
            let mut random = Keys(88_172_645_463_325_252);
            let mut lanes: Vec<Lane<Waiting>> = (0..receivers).map(|_| Lane::default()).collect();
            for _ in 0..queued {
                let key = random.next(8);
                for lane in &mut lanes {
                    let _ = lane.push(key, (message.clone(), 0, 0));
                }
            }
            let name = format!("an entry per receiver, {receivers} receivers, {queued} queued");
            measure(&name, receivers, || {
                let key = random.next(8);
                for lane in &mut lanes {
                    let _ = lane.push(key, (message.clone(), 0, 0));
                }
                for lane in &mut lanes {
                    black_box(lane.pop());
                }
            });

            let list: Arc<[u32]> = (0..receivers).collect();
            let mut lane: Lane<(Waiting, Arc<[u32]>)> = Lane::default();
            for _ in 0..queued {
                let _ = lane.push(random.next(8), ((message.clone(), 0, 0), list.clone()));
            }
            let name = format!("an entry for all, {receivers} receivers, {queued} queued");
            measure(&name, receivers, || {
                let key = random.next(8);
                let _ = lane.push(key, ((message.clone(), 0, 0), list.clone()));
                if let Some((_, _, ((message, _, _), receivers))) = lane.pop() {
                    for receiver in receivers.iter() {
                        black_box((message.clone(), receiver));
                    }
                }
            });
        }
    }
}

fn policies() {
    let urgency = Urgency {
        rt_priority: Some(5),
        deadline: Some(Nanos::from_millis(5)),
        ..Urgency::default()
    };
    for discipline in [Discipline::FixedPriority, Discipline::Edf] {
        measure(&format!("rank, {discipline:?}"), 1, || {
            black_box(discipline.rank(black_box(&urgency), black_box(Nanos(7))));
        });
    }
}

fn main() {
    lanes();
    enqueueing();
    policies();
}
