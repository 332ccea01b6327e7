//! Bounds and priorities of the networks in `examples/networks`, and how long
//! they take, medians beside the goals:
//! `cargo bench -p punctual-analysis --bench networks`.
#![allow(clippy::unwrap_used, clippy::print_stdout, missing_docs)]

use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

use punctual_analysis::{Method, analyze, assign, holistic};
use punctual_model::network::{Document, Network};

/// Queues of a switch.
const LEVELS: usize = 8;
const RUNS: usize = 21;
/// Longest medians that are aimed at, of holistic and of best bounds.
const GOALS: &[(&str, Option<Duration>, Duration)] = &[
    (
        "fig2-high",
        Some(Duration::from_millis(2)),
        Duration::from_millis(20),
    ),
    ("fig15-high", None, Duration::from_secs(1)),
];

fn median<T>(mut run: impl FnMut() -> T) -> (Duration, T) {
    let mut timed = || {
        let start = Instant::now();
        let result = run();
        (start.elapsed(), result)
    };
    let mut all: Vec<_> = (0..RUNS).map(|_| timed()).collect();
    all.sort_by_key(|(time, _)| *time);
    all.swap_remove(RUNS / 2)
}

/// The largest part of a deadline that a bound takes, in per cent.
fn fullest(network: &Network, bounds: impl Iterator<Item = Vec<Option<u64>>>) -> String {
    let flows = network.flows.iter().zip(bounds);
    let parts = flows.flat_map(|(flow, bounds)| {
        let part = |bound: Option<u64>| Some(bound? * 100 / flow.deadline);
        bounds.into_iter().map(part).collect::<Vec<_>>()
    });
    let all: Option<Vec<_>> = parts.collect();
    all.and_then(|all| all.into_iter().max())
        .map_or("none".into(), |most| format!("{most} %"))
}

/// A median, and the goal if there is one.
fn beside(time: Duration, goal: Option<Duration>) -> String {
    match goal {
        None => format!("{time:.2?}"),
        Some(goal) if time <= goal => format!("{time:.2?} (at most {goal:?}: kept)"),
        Some(goal) => format!("{time:.2?} (at most {goal:?}: MISSED)"),
    }
}

fn main() {
    println!("Medians of {RUNS}; assignments with {LEVELS} levels, and their medians.\n");
    println!("| network | flows | holistic | | all, with best | | monotonic | optimal | repair |");
    println!("|---|--:|--:|--:|--:|--:|--:|--:|--:|");
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/networks");
    let files = std::fs::read_dir(folder).unwrap();
    let mut files: Vec<_> = files.map(|entry| entry.unwrap().path()).collect();
    files.sort_unstable();
    for file in files
        .iter()
        .filter(|file| file.extension().is_some_and(|ending| ending == "toml"))
    {
        let document = Document::from_toml(&std::fs::read_to_string(file).unwrap()).unwrap();
        let network = Network::new(&document).unwrap();
        let name = file.file_stem().unwrap().to_str().unwrap();
        let goals = GOALS.iter().find(|(known, ..)| *known == name);
        let (first, first_bounds) = median(|| holistic(&network));
        let (all, all_bounds) = median(|| analyze(&network));
        let best = all_bounds.flows.iter();
        let best = best.map(|paths| paths.iter().map(|path| path.best).collect());
        print!(
            "| {name} | {} | {} | {} | {} | {} |",
            network.flows.len(),
            beside(first, goals.and_then(|(_, holistic, _)| *holistic)),
            fullest(&network, first_bounds.into_iter()),
            beside(all, goals.map(|(.., best)| *best)),
            fullest(&network, best),
        );
        for method in [Method::DeadlineMonotonic, Method::Optimal, Method::Repair] {
            let (time, found) = median(|| assign(&network, &BTreeSet::new(), LEVELS, method));
            let levels = match found {
                Ok(found) => found.iter().collect::<BTreeSet<_>>().len().to_string(),
                Err(_) => "no".into(),
            };
            print!(" {levels} ({time:.2?}) |");
        }
        println!();
    }
}
