//! Nanoseconds per call: `cargo bench -p punctual-model [FILTER]`.
//!
//! Each line is the fastest of several batches, which is what the code costs
//! when nothing else disturbs it; run on an otherwise idle machine. Inputs go
//! through `black_box`, so that nothing is computed at compile time.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a program for developers"
)]

use std::hint::black_box;
use std::time::{Duration, Instant};

use punctual_model::{Requirements, is_requirement_key};

const BATCHES: u32 = 500;
const BATCH: Duration = Duration::from_micros(200);

/// Prints what one call of `op` takes.
fn measure<R>(name: &str, mut op: impl FnMut() -> R) {
    if let Some(filter) = std::env::args().skip(1).find(|arg| !arg.starts_with('-'))
        && !name.contains(&filter)
    {
        return;
    }
    let mut time = |calls: u32| {
        let start = Instant::now();
        for _ in 0..calls {
            black_box(op());
        }
        start.elapsed()
    };
    let mut calls = 1;
    while time(calls) < BATCH {
        calls *= 2;
    }
    let best = (0..BATCHES).map(|_| time(calls)).min().unwrap();
    let nanos = best.as_secs_f64() * 1e9 / f64::from(calls);
    println!("{name:48} {nanos:8.1} ns");
}

fn read(pairs: &[(&str, &str)]) -> Requirements {
    let mut requirements = Requirements::NONE;
    for (key, value) in black_box(pairs) {
        if is_requirement_key(key.as_bytes()) {
            requirements.set(key.as_bytes(), value.as_bytes()).unwrap();
        }
    }
    requirements
}

fn main() {
    measure("look at 5 other user properties", || {
        read(&[("origin", "a"); 5])
    });
    measure("read priority", || read(&[("priority", "3")]));
    measure("read rt-deadline", || read(&[("rt-deadline", "1.5ms")]));
    measure("read deadline, period, priority", || {
        read(&[
            ("rt-deadline", "10ms"),
            ("rt-period", "100ms"),
            ("rt-priority", "7"),
        ])
    });
    measure("refuse an unknown key", || {
        Requirements::default().set(black_box(b"rt-deadlin"), black_box(b"1ms"))
    });
}
