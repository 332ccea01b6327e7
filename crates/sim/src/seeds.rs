//! Which seeds a simulation is run with, by variables of the environment: `PUNCTUAL_SEED` names
//! the only one, `PUNCTUAL_SEEDS` says how many there are and `PUNCTUAL_FROM` the first of them.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

/// The seeds of a simulation, one after the other. If the thread panics, standard error shows how to
/// repeat the run with the seed that was taken last.
#[derive(Debug)]
pub struct Seeds {
    left: Range<u64>,
    taken: Option<u64>,
}

/// The seeds that the environment names, or `few` seeds from 0 on.
pub fn seeds(few: u64) -> Seeds {
    seeds_from(0, few)
}

/// The seeds that the environment names, or `few` seeds from `first` on.
pub fn seeds_from(first: u64, few: u64) -> Seeds {
    let (first, count) = match variable("PUNCTUAL_SEED") {
        Some(seed) => (seed, 1),
        None => (
            variable("PUNCTUAL_FROM").unwrap_or(first),
            variable("PUNCTUAL_SEEDS").unwrap_or(few),
        ),
    };
    Seeds {
        left: first..first.saturating_add(count),
        taken: None,
    }
}

impl Seeds {
    /// Number of seeds that have not been taken.
    pub fn left(&self) -> u64 {
        self.left.end - self.left.start
    }

    /// Calls `run` with each seed, on all processors, and returns the results in no order. If a run panics,
    /// no other run begins, and the panic is resumed here.
    pub fn in_parallel<T: Send>(self, run: impl Fn(u64) -> T + Sync) -> Vec<T> {
        let end = self.left.end;
        let next = AtomicU64::new(self.left.start);
        let work = || {
            let mut results = Vec::new();
            loop {
                let seed = next.fetch_add(1, Ordering::Relaxed);
                if seed >= end {
                    return Ok(results);
                }
                let one = || {
                    let _told = Self {
                        left: seed..seed,
                        taken: Some(seed),
                    };
                    run(seed)
                };
                match catch_unwind(AssertUnwindSafe(one)) {
                    Ok(result) => results.push(result),
                    Err(panic) => {
                        next.store(end, Ordering::Relaxed);
                        return Err(panic);
                    }
                }
            }
        };
        let threads = thread::available_parallelism().map_or(2, |n| n.get());
        thread::scope(|scope| {
            let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
            let results = workers.into_iter().map(|worker| worker.join().flatten());
            let results =
                results.flat_map(|results| results.unwrap_or_else(|it| resume_unwind(it)));
            results.collect()
        })
    }
}

impl Iterator for Seeds {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        self.taken = self.left.next();
        self.taken
    }
}

impl Drop for Seeds {
    #[expect(clippy::print_stderr, reason = "how to repeat a test that fails")]
    fn drop(&mut self) {
        if let Some(seed) = self.taken.filter(|_| thread::panicking()) {
            eprintln!("PUNCTUAL_SEED={seed} repeats the run that failed");
        }
    }
}

/// Whether the seeds were chosen from outside: in few others something may never happen that the
/// fixed ones are known to bring about.
pub fn are_seeds_chosen() -> bool {
    let keys = ["PUNCTUAL_SEED", "PUNCTUAL_FROM"];
    keys.iter().any(|key| variable(key).is_some())
}

/// How many lines a failure tells of what led to it: `PUNCTUAL_TRACE`.
pub fn trace_lines() -> Option<usize> {
    variable("PUNCTUAL_TRACE").map(|lines| lines as usize)
}

fn variable(key: &str) -> Option<u64> {
    std::env::var(key).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn some() -> Seeds {
        Seeds {
            left: 3..9,
            taken: None,
        }
    }

    #[test]
    fn each_seed_runs_once_in_turn_or_in_parallel() {
        assert_eq!(some().left(), 6);
        let all: Vec<u64> = some().collect();
        assert_eq!(all, [3, 4, 5, 6, 7, 8]);
        let mut squares = some().in_parallel(|seed| seed * seed);
        squares.sort_unstable();
        assert_eq!(squares, [9, 16, 25, 36, 49, 64]);
    }

    #[test]
    fn a_run_that_fails_in_parallel_is_not_lost() {
        let failed = catch_unwind(|| some().in_parallel(|seed| assert_ne!(seed, 5)));
        assert!(failed.is_err());
    }
}
