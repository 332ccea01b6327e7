//! No response that a search finds in a random network exceeds its bound.
//!
//! The bounds come from `punctual-analysis`, the responses from the simulator, which does not use
//! the bounds. A response above its bound is printed as JSON: the network, and the scenario that
//! produces the response.
//!
//! Before a release: `cargo test --release -p punctual-sim --test safety -- --ignored --nocapture`,
//! which checks 100 000 networks on all cores. `PUNCTUAL_SAFETY_NETWORKS` and
//! `PUNCTUAL_SAFETY_SEED` choose other networks, `PUNCTUAL_SAFETY_RUNS` sets the length of each
//! search, and `PUNCTUAL_SAFETY_DIR` the directory for counterexamples.
#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "helpers of tests may panic, and the sums are what a release looks at"
)]

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use punctual_analysis::{Admission, analyze, tfa};
use punctual_model::network::{Document, Network};
use punctual_sim::network::{Effort, SearchResult, generate, search};
use serde_json::json;

/// Ratios of a method's bounds to the largest responses that were found.
#[derive(Debug, Default, Clone, Copy)]
struct Ratios {
    count: u64,
    sum: f64,
    largest: f64,
    /// The seed of the network with the largest ratio.
    seed: u64,
}

impl Ratios {
    fn add(&mut self, other: &Self) {
        self.count += other.count;
        self.sum += other.sum;
        if other.largest > self.largest {
            (self.largest, self.seed) = (other.largest, other.seed);
        }
    }

    fn mean(&self) -> f64 {
        self.sum / self.count.max(1) as f64
    }
}

/// Summary of the checked networks.
#[derive(Debug, Default, Clone)]
struct Sum {
    networks: u64,
    /// Number of pairs of a flow and a destination.
    paths: u64,
    /// Ratios by shape of the network and by method.
    ratios: BTreeMap<(String, Method), Ratios>,
}

impl Sum {
    fn add(&mut self, other: &Self) {
        self.networks += other.networks;
        self.paths += other.paths;
        for (key, ratios) in &other.ratios {
            self.ratios.entry(key.clone()).or_default().add(ratios);
        }
    }

    fn of(&self, method: Method) -> Ratios {
        let mut all = Ratios::default();
        let ratios = self.ratios.iter();
        for (_, ratios) in ratios.filter(|((_, known), _)| *known == method) {
            all.add(ratios);
        }
        all
    }

    fn print(&self) {
        println!(
            "{} networks, {} flows and destinations; bounds / largest response: mean, largest (seed)",
            self.networks, self.paths
        );
        println!("| networks | method | bounds | mean | largest | seed |");
        println!("|---|---|--:|--:|--:|--:|");
        let row = |shape: &str, method: Method, ratios: &Ratios| {
            println!(
                "| {shape} | {method:?} | {} | {:.4} | {:.2} | {} |",
                ratios.count,
                ratios.mean(),
                ratios.largest,
                ratios.seed
            );
        };
        for ((shape, method), ratios) in &self.ratios {
            row(shape, *method, ratios);
        }
        for method in Method::ALL {
            row("all", method, &self.of(method));
        }
    }
}

/// A method that computes bounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Method {
    Best,
    Trajectory,
    Holistic,
    /// The fast bounds by priority levels, which admission control uses.
    Levels,
    Calculus,
}

impl Method {
    const ALL: [Self; 5] = [
        Self::Best,
        Self::Trajectory,
        Self::Holistic,
        Self::Levels,
        Self::Calculus,
    ];
}

/// The fast bounds of admission control. They are computed up to the deadline only, so deadlines
/// are removed, which changes nothing unless links schedule by deadline.
fn levels(network: &Network) -> Option<Vec<Vec<Option<u64>>>> {
    if network.topology.links.iter().any(|link| link.edf) {
        return None;
    }
    let mut network = network.clone();
    for flow in &mut network.flows {
        flow.deadline = u64::MAX;
    }
    let admission = Admission::new(network);
    let flows = admission.network().flows.iter();
    let ids: Vec<&str> = flows.map(|flow| flow.id.as_str()).collect();
    let promises = admission.guarantees(&ids, 0);
    let known = |bound: u64| (bound != u64::MAX).then_some(bound);
    let paths = |paths: Vec<u64>| paths.into_iter().map(known).collect();
    Some(promises.into_iter().map(paths).collect())
}

/// Checks a network; a counterexample is an error.
fn judge(seed: u64, runs: u64) -> Result<Sum, String> {
    let document = generate::random(seed);
    let network = Network::new(&document).map_err(|error| error.to_string())?;
    let bounds = analyze(&network);
    let calculus = tfa(&network);
    let levels = levels(&network);
    let shape = format!("{:?}", generate::shape_of(seed));
    let mut sum = Sum {
        networks: 1,
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
            let bounds = [
                (Method::Best, bound.best),
                (Method::Trajectory, bound.trajectory),
                (Method::Holistic, bound.holistic),
                (Method::Levels, levels.as_ref().and_then(|l| l[flow][path])),
                (Method::Calculus, calculus[flow][path]),
            ];
            compare(seed, &document, (flow, path), bounds, &found)?;
            sum.paths += 1;
            for (method, bound) in bounds {
                if let Some(bound) = bound {
                    let ratio = bound as f64 / found.worst.response as f64;
                    let one = Ratios {
                        count: 1,
                        sum: ratio,
                        largest: ratio,
                        seed,
                    };
                    let ratios = sum.ratios.entry((shape.clone(), method));
                    ratios.or_default().add(&one);
                }
            }
        }
    }
    Ok(sum)
}

fn compare(
    seed: u64,
    document: &Document,
    (flow, path): (usize, usize),
    bounds: [(Method, Option<u64>); 5],
    found: &SearchResult,
) -> Result<(), String> {
    for (method, bound) in bounds {
        if bound.is_some_and(|bound| found.worst.response > bound) {
            let example = json!({
                "seed": seed,
                "flow": document.flows[flow].id,
                "path": path,
                "method": format!("{method:?}"),
                "bound_ns": bound,
                "response_ns": found.worst.response,
                "message": found.worst.message,
                "network": document,
                "scenario": found.scenario,
            });
            if let Some(directory) = std::env::var_os("PUNCTUAL_SAFETY_DIR") {
                let name = format!("seed-{seed}-flow-{flow}-path-{path}-{method:?}.json");
                let text = format!("{example:#}\n");
                fs::write(PathBuf::from(directory).join(name), text).map_err(|e| e.to_string())?;
            }
            return Err(example.to_string());
        }
    }
    Ok(())
}

/// Checks the networks of a range of seeds on all cores.
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
