//! More of anything never lowers a bound: flows, jitter, frames, hops, blocking.
#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests may panic; clippy knows only the tests themselves"
)]

use punctual_analysis::{PathBounds, analyze};
use punctual_model::network::{Document, Network};
use punctual_sim::Rng;
use punctual_sim::network::generate;

const NETWORKS: u64 = 80;

fn bounds(document: &Document) -> Vec<Vec<PathBounds>> {
    analyze(&Network::new(document).unwrap()).flows
}

/// How far above its exact value each segment's bound may be, ns.
const ROUNDING: u64 = 16;

/// None is the largest.
fn at_most(less: Option<u64>, more: Option<u64>, tolerance: u64) -> bool {
    more.is_none_or(|more| less.is_some_and(|less| less <= more + tolerance))
}

/// Changes random networks and compares the bounds of the flows that both have,
/// which are the first.
fn compare(name: &str, change: impl Fn(&mut Document, &mut Rng)) {
    let mut lowered = Vec::new();
    for seed in 0..NETWORKS {
        let before = generate::random(seed);
        let mut after = before.clone();
        change(&mut after, &mut Rng::new(seed));
        let (less, more) = (bounds(&before), bounds(&after));
        for (flow, (less, more)) in less.iter().zip(&more).enumerate() {
            for (path, (less, more)) in less.iter().zip(more).enumerate() {
                let rounding = ROUNDING * before.flows[flow].paths[path].len() as u64;
                if !at_most(less.holistic, more.holistic, 0)
                    || !at_most(less.best, more.best, rounding)
                {
                    lowered.push(format!(
                        "seed {seed} f{flow} path {path}: {less:?} {more:?}"
                    ));
                }
            }
        }
    }
    assert!(
        lowered.is_empty(),
        "{name}: {} \n{}",
        lowered.len(),
        lowered.join("\n")
    );
}

#[test]
fn another_flow() {
    compare("flow", |document, rng| {
        let mut flow = rng.pick(&document.flows).clone();
        flow.id = "another".to_owned();
        flow.prio = rng.below(4);
        document.flows.push(flow);
    });
}

#[test]
fn more_jitter() {
    compare("jitter", |document, rng| {
        let flow = rng.below(document.flows.len() as u64) as usize;
        let flow = &mut document.flows[flow];
        flow.jitter_ns += 1 + rng.below(flow.period_ns);
    });
}

#[test]
fn more_frames() {
    compare("frames", |document, rng| {
        let flow = rng.below(document.flows.len() as u64) as usize;
        let flow = &mut document.flows[flow];
        flow.frames = Some(flow.frames.unwrap_or(1) + 1);
    });
}

#[test]
fn more_blocking() {
    compare("blocking", |document, rng| {
        let link = rng.below(document.links.len() as u64) as usize;
        let link = &mut document.links[link];
        match &mut link.be_bytes {
            Some(bytes) => *bytes += 100,
            None => link.be_ns = Some(link.be_ns.unwrap_or(0) + 10_000),
        }
    });
}

#[test]
fn more_delay() {
    compare("delay", |document, rng| {
        let node = rng.below(document.nodes.len() as u64) as usize;
        let node = &mut document.nodes[node];
        node.sd_max_ns = Some(node.sd_max_ns.unwrap_or(node.sd_min_ns) + 10_000);
    });
}
