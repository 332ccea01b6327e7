//! The simulations themselves, on all cores.

use std::io::{self, IsTerminal as _, Write as _};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use hdrhistogram::Histogram;
use punctual_model::network::Network;
use punctual_sim::network::{
    Behaviours, Chances, Drawn, Effort, Engine, Grid, Layout, Nobody, Observer, Scenario, Worst,
};

use crate::cli::Failure;
use crate::cli::input::Input;

/// Most behaviours that are tried one by one.
const MOST_BEHAVIOURS: u64 = 100_000_000;
/// Parts into which they are cut, of which a core does one after the other.
const PARTS: u64 = 256;

/// A flow and one of its paths.
type Path = (usize, usize);

/// What was seen of a flow at a destination.
#[derive(Debug, Clone, Default)]
pub(super) struct Seen {
    /// The largest response, and how many there were.
    pub(super) worst: Worst,
    /// The seed of the run that had it.
    pub(super) seed: Option<u64>,
    /// What brought it about.
    pub(super) scenario: Option<Scenario>,
    /// How often each response was there.
    pub(super) histogram: Option<Histogram<u64>>,
}

/// Counts responses by hop.
struct Counter {
    hops: Vec<Option<Histogram<u64>>>,
}

impl Observer for Counter {
    fn responded(&mut self, hop: usize, _message: u32, response: u64) {
        if let Some(histogram) = &mut self.hops[hop] {
            // It grows as it has to.
            let _ = histogram.record(response);
        }
    }
}

/// Three digits of every response, whatever it is.
fn histogram() -> Option<Histogram<u64>> {
    Histogram::new(3).ok()
}

/// Random behaviours, one for each seed.
pub(super) fn random(
    network: &Network,
    paths: &[Path],
    seed: u64,
    runs: u64,
    duration: u64,
    histograms: bool,
) -> (Vec<Seen>, String) {
    let layout = Layout::new(network);
    let chances = Chances {
        duration,
        ..Chances::default()
    };
    let runs = usize::try_from(runs).unwrap_or(usize::MAX);
    let sum = Mutex::new((vec![Seen::default(); paths.len()], 0_u64));
    parallel(
        "runs",
        runs,
        || Engine::new(&layout),
        |engine, number| {
            let seed = seed.wrapping_add(number as u64);
            let mut behaviour = Drawn::new(&layout, seed, chances);
            let mut counter = Counter {
                hops: vec![None; layout.hop_count()],
            };
            if histograms {
                for (flow, path) in paths {
                    counter.hops[layout.leaf(*flow, *path)] = histogram();
                }
                engine.run(&mut behaviour, &mut counter);
            } else {
                engine.run(&mut behaviour, &mut Nobody);
            }
            let mut sum = sum
                .lock()
                .unwrap_or_else(std::sync::PoisonError::into_inner);
            sum.1 += engine.transmissions();
            for ((flow, path), seen) in paths.iter().zip(&mut sum.0) {
                let worst = engine.worst(*flow, *path);
                let count = seen.worst.count + worst.count;
                // Of equal ones that of the least seed, whichever came first.
                let least = seen.seed.is_none_or(|known| seed < known);
                if worst.response > seen.worst.response
                    || (worst.response == seen.worst.response && least && worst.count > 0)
                {
                    (seen.worst, seen.seed) = (worst, Some(seed));
                }
                seen.worst.count = count;
                if let Some(more) = &counter.hops[layout.leaf(*flow, *path)] {
                    match &mut seen.histogram {
                        Some(histogram) => {
                            let _ = histogram.add(more);
                        }
                        None => seen.histogram = Some(more.clone()),
                    }
                }
            }
        },
    );
    let (seen, frames) = sum
        .into_inner()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    let story = format!(
        "{runs} random runs from seed {seed}, {frames} frames sent; a search (--search) finds worse"
    );
    (seen, story)
}

/// The worst that a search finds for each path.
pub(super) fn search(
    network: &Network,
    paths: &[Path],
    seed: u64,
    runs: u64,
) -> (Vec<Seen>, String) {
    let found = Mutex::new(vec![Seen::default(); paths.len()]);
    let effort = Effort { runs, enough: None };
    parallel(
        "paths",
        paths.len(),
        || (),
        |(), number| {
            let (flow, path) = paths[number];
            let one = punctual_sim::network::search(network, flow, path, seed, effort);
            let mut found = found
                .lock()
                .unwrap_or_else(std::sync::PoisonError::into_inner);
            found[number] = Seen {
                worst: one.worst,
                seed: Some(seed),
                scenario: Some(one.scenario),
                histogram: None,
            };
        },
    );
    let found = found
        .into_inner()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    let story = format!("searched with seed {seed}, {runs} runs for each flow and path");
    (found, story)
}

/// The worst of everything on a grid.
pub(super) fn exhaustive(
    network: &Network,
    paths: &[Path],
    span: u64,
    step: u64,
    messages: u32,
) -> Result<(Vec<Seen>, String), Failure> {
    let grid = Grid {
        step,
        span,
        messages,
        limit: MOST_BEHAVIOURS,
    };
    let behaviours = Behaviours::new(network, grid)?;
    let share = behaviours.count().div_ceil(PARTS);
    let done = Mutex::new(vec![None; PARTS as usize]);
    parallel(
        "parts",
        PARTS as usize,
        || (),
        |(), number| {
            let start = number as u64 * share;
            let part = behaviours.run(start..start + share);
            let mut done = done
                .lock()
                .unwrap_or_else(std::sync::PoisonError::into_inner);
            done[number] = Some(part);
        },
    );
    let done = done
        .into_inner()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    // In order, whichever was ready first: of equal ones the first counts.
    let mut all = behaviours.run(0..0);
    for part in done.into_iter().flatten() {
        all.add(part);
    }
    let seen = paths.iter().map(|(flow, path)| {
        let (worst, scenario) = &all.worst[*flow][*path];
        Seen {
            worst: *worst,
            scenario: Some(scenario.clone()),
            ..Seen::default()
        }
    });
    let story = format!(
        "{} behaviours: beginnings every {step} ns within {span} ns, {messages} messages",
        all.behaviours
    );
    Ok((seen.collect(), story))
}

/// Scenarios of an earlier answer once more.
pub(super) fn replay(
    network: &Network,
    paths: &[Path],
    input: &Input,
) -> Result<(Vec<Seen>, String), Failure> {
    let value = input.value()?;
    let none = Vec::new();
    let results = value["results"].as_array().unwrap_or(&none);
    let layout = Layout::new(network);
    let mut engine = Engine::new(&layout);
    let mut replayed = 0;
    let mut seen = vec![Seen::default(); paths.len()];
    for (index, result) in results.iter().enumerate() {
        if result["scenario"].is_null() {
            continue;
        }
        let fail = |error: &dyn std::fmt::Display| -> Failure {
            format!("{}: results[{index}]: scenario: {error}", input.place()).into()
        };
        let scenario: Scenario =
            serde_json::from_value(result["scenario"].clone()).map_err(|error| fail(&error))?;
        scenario.check(network).map_err(|error| fail(&error))?;
        engine.run(&mut scenario.play(&layout), &mut Nobody);
        replayed += 1;
        for ((flow, path), seen) in paths.iter().zip(&mut seen) {
            let worst = engine.worst(*flow, *path);
            if worst.response > seen.worst.response {
                seen.worst = worst;
                seen.scenario = Some(scenario.clone());
            }
        }
    }
    if replayed == 0 {
        let problem = "has no results with a scenario; write it with --format json --scenarios";
        return Err(format!("{} {problem}", input.place()).into());
    }
    Ok((seen, format!("{replayed} scenarios replayed")))
}

/// Does numbered work on all cores, and says on a terminal how far it is.
fn parallel<S>(
    what: &str,
    count: usize,
    start: impl Fn() -> S + Sync,
    work: impl Fn(&mut S, usize) + Sync,
) {
    let next = AtomicUsize::new(0);
    let done = AtomicUsize::new(0);
    let shown = io::stderr().is_terminal();
    let workers = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        for _ in 0..workers.min(count) {
            scope.spawn(|| {
                let mut state = start();
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= count {
                        break;
                    }
                    work(&mut state, number);
                    let done = done.fetch_add(1, Ordering::Relaxed) + 1;
                    if shown {
                        let _ = write!(io::stderr().lock(), "\r{done} of {count} {what}");
                    }
                }
            });
        }
    });
    if shown {
        // The line gives way to the answer.
        let _ = write!(io::stderr().lock(), "\r\x1b[K");
    }
}
