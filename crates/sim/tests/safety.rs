//! No response that a search finds in a random network is above a bound.
//!
//! The bounds come from `punctual-analysis`, the responses from the simulator,
//! which knows nothing of them. A response above a bound is printed as JSON:
//! the network and the scenario that brings it about.
//!
//! Before a release: `cargo test --release -p punctual-sim --test safety --
//! --ignored --nocapture`, which looks at 100 000 networks on all cores;
//! `PUNCTUAL_SAFETY_NETWORKS` and `PUNCTUAL_SAFETY_SEED` say how many others,
//! and `PUNCTUAL_SAFETY_DIR` where counterexamples are written to.
#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "helpers of tests may panic, and the sums are what a release looks at"
)]

use std::fs;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use punctual_analysis::{PathBounds, analyze, tfa};
use punctual_model::network::{Document, Network};
use punctual_sim::network::{Effort, Found, generate, search};
use serde_json::json;

/// What was looked at.
#[derive(Debug, Default, Clone, Copy)]
struct Sum {
    networks: u64,
    paths: u64,
    /// Of bound / response.
    ratios: f64,
    largest: f64,
    /// The seed of the network with the largest.
    seed: u64,
    unbounded: u64,
}

impl Sum {
    fn add(&mut self, other: &Self) {
        self.networks += other.networks;
        self.paths += other.paths;
        self.ratios += other.ratios;
        self.unbounded += other.unbounded;
        if other.largest > self.largest {
            (self.largest, self.seed) = (other.largest, other.seed);
        }
    }

    fn print(&self) {
        println!(
            "{} networks, {} paths with a bound, {} without; bound / largest response: mean {:.4}, largest {:.4} (seed {})",
            self.networks,
            self.paths,
            self.unbounded,
            self.ratios / self.paths.max(1) as f64,
            self.largest,
            self.seed
        );
    }
}

/// Looks at a network; a counterexample is an error.
fn judge(seed: u64, runs: u64) -> Result<Sum, String> {
    let document = generate::random(seed);
    let network = Network::new(&document).map_err(|error| error.to_string())?;
    let bounds = analyze(&network);
    let calculus = tfa(&network);
    let mut sum = Sum {
        networks: 1,
        seed,
        ..Sum::default()
    };
    for (flow, paths) in bounds.flows.iter().enumerate() {
        for (path, bound) in paths.iter().enumerate() {
            let effort = Effort { runs, enough: None };
            let found = search(&network, flow, path, seed, effort);
            found
                .scenario
                .check(&network)
                .map_err(|error| format!("seed {seed}: {error}"))?;
            let bounds = methods(bound, calculus[flow][path]);
            compare(seed, &document, (flow, path), bounds, &found)?;
            match bound.best {
                Some(best) => {
                    let ratio = best as f64 / found.worst.response as f64;
                    sum.paths += 1;
                    sum.ratios += ratio;
                    sum.largest = sum.largest.max(ratio);
                }
                None => sum.unbounded += 1,
            }
        }
    }
    Ok(sum)
}

/// What must not lie below a response.
fn methods(bounds: &PathBounds, calculus: Option<u64>) -> [(&'static str, Option<u64>); 4] {
    [
        ("best", bounds.best),
        ("holistic", bounds.holistic),
        ("trajectory", bounds.trajectory),
        ("network calculus", calculus),
    ]
}

fn compare(
    seed: u64,
    document: &Document,
    (flow, path): (usize, usize),
    bounds: [(&str, Option<u64>); 4],
    found: &Found,
) -> Result<(), String> {
    for (method, bound) in bounds {
        if bound.is_some_and(|bound| found.worst.response > bound) {
            let example = json!({
                "seed": seed,
                "flow": document.flows[flow].id,
                "path": path,
                "method": method,
                "bound_ns": bound,
                "response_ns": found.worst.response,
                "message": found.worst.message,
                "network": document,
                "scenario": found.scenario,
            });
            if let Some(directory) = std::env::var_os("PUNCTUAL_SAFETY_DIR") {
                let name = format!("seed-{seed}-flow-{flow}-path-{path}-{method}.json");
                let text = format!("{example:#}\n");
                fs::write(PathBuf::from(directory).join(name), text).map_err(|e| e.to_string())?;
            }
            return Err(example.to_string());
        }
    }
    Ok(())
}

/// Judges the networks of seeds, on all cores.
fn judge_all(first: u64, count: u64, runs: u64) {
    let next = AtomicU64::new(0);
    let failed = AtomicBool::new(false);
    let total = Mutex::new((Sum::default(), Vec::new()));
    let workers = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                let mut sum = Sum::default();
                let mut failures = Vec::new();
                while !failed.load(Ordering::Relaxed) {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= count {
                        break;
                    }
                    if number > 0 && number.is_multiple_of(1_000) {
                        eprintln!("{number} of {count} networks");
                    }
                    match judge(first + number, runs) {
                        Ok(one) => sum.add(&one),
                        Err(example) => {
                            failed.store(true, Ordering::Relaxed);
                            failures.push(example);
                        }
                    }
                }
                let mut total = total.lock().unwrap();
                total.0.add(&sum);
                total.1.append(&mut failures);
            });
        }
    });
    let (sum, failures) = total.into_inner().unwrap();
    sum.print();
    assert!(
        failures.is_empty(),
        "a response is above its bound:\n{}",
        failures.join("\n")
    );
    assert!(sum.paths > sum.networks, "{sum:?}");
}

fn number(name: &str, default: u64) -> u64 {
    let value = std::env::var(name).ok();
    value.map_or(default, |text| text.parse().expect("a number"))
}

#[test]
fn random_networks_keep_their_bounds() {
    judge_all(number("PUNCTUAL_SAFETY_SEED", 1), 1_000, 40);
}

#[test]
#[ignore = "for releases: takes long"]
fn many_random_networks_keep_their_bounds() {
    let count = number("PUNCTUAL_SAFETY_NETWORKS", 100_000);
    let runs = number("PUNCTUAL_SAFETY_RUNS", 200);
    judge_all(number("PUNCTUAL_SAFETY_SEED", 1_000_000), count, runs);
}
