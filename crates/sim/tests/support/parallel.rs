//! Seeds of a simulation on all processors.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

/// What `run` returns for each seed, in no order. Once one panics no other begins, and this panics
/// as that did.
pub(crate) fn each<T: Send>(seeds: Range<u64>, run: impl Fn(u64) -> T + Sync) -> Vec<T> {
    let next = AtomicU64::new(seeds.start);
    let work = || {
        let mut results = Vec::new();
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.end {
                return Ok(results);
            }
            match catch_unwind(AssertUnwindSafe(|| run(seed))) {
                Ok(result) => results.push(result),
                Err(panic) => {
                    next.store(seeds.end, Ordering::Relaxed);
                    return Err(panic);
                }
            }
        }
    };
    let threads = thread::available_parallelism().map_or(2, |n| n.get());
    thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        let results = workers.into_iter().map(|worker| worker.join().flatten());
        let results = results.flat_map(|results| results.unwrap_or_else(|it| resume_unwind(it)));
        results.collect()
    })
}
