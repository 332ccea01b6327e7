//! Bounds and priorities of the networks in `examples/networks`, and how long
//! they take: `cargo bench -p punctual-analysis --bench networks`.
#![allow(clippy::unwrap_used, clippy::print_stdout, missing_docs)]

use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

use punctual_analysis::{Method, analyze, assign};
use punctual_model::network::{Document, Network};

/// Queues of a switch.
const LEVELS: usize = 8;
const RUNS: usize = 5;

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

fn main() {
    println!("| network | flows | analysis | holistic | best | monotonic | optimal | repair |");
    println!("|---|--:|--:|--:|--:|--:|--:|--:|");
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
        let (time, bounds) = median(|| analyze(&network));
        let holistic = bounds.flows.iter();
        let holistic = holistic.map(|paths| paths.iter().map(|path| path.holistic).collect());
        let best = bounds.flows.iter();
        let best = best.map(|paths| paths.iter().map(|path| path.best).collect());
        print!(
            "| {} | {} | {time:.2?} | {} | {} |",
            file.file_stem().unwrap().display(),
            network.flows.len(),
            fullest(&network, holistic),
            fullest(&network, best),
        );
        for method in [Method::DeadlineMonotonic, Method::Optimal, Method::Repair] {
            let start = Instant::now();
            let found = assign(&network, &BTreeSet::new(), LEVELS, method);
            let levels = match found {
                Ok(found) => found.iter().collect::<BTreeSet<_>>().len().to_string(),
                Err(_) => "no".into(),
            };
            print!(" {levels} ({:.2?}) |", start.elapsed());
        }
        println!();
    }
}
