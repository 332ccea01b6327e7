//! An increase of any input never lowers a bound: number of flows, jitter, frames, frame lengths,
//! hops, blocking, delay.
//!
//! `PUNCTUAL_MONOTONE=3000` compares that many random networks.
#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests may panic; clippy knows only the tests themselves"
)]

use punctual_analysis::{PathBounds, analyze};
use punctual_model::Rng;
use punctual_model::network::{Document, LinkEntry, Network, NodeEntry};
use punctual_sim::network::generate;

/// Number of networks for each kind of change.
fn networks() -> u64 {
    let wished = std::env::var("PUNCTUAL_MONOTONE").ok();
    wished.and_then(|wished| wished.parse().ok()).unwrap_or(200)
}

fn bounds(document: &Document) -> Vec<Vec<PathBounds>> {
    analyze(&Network::new(document).unwrap()).flows
}

/// How far above its exact value each segment's bound may be, ns.
const ROUNDING: u64 = 16;

/// Compares bounds, where `None` (no bound) is the largest.
fn at_most(less: Option<u64>, more: Option<u64>, tolerance: u64) -> bool {
    more.is_none_or(|more| less.is_some_and(|less| less <= more + tolerance))
}

/// The bounds that are compared.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Those {
    All,
    /// Only bounds that do not use the order and spacing of frames from a common link.
    Plain,
}

/// Changes random networks, and compares the bounds of the flows that both networks have, which
/// come first. `known` are seeds that once had a lower bound after the change.
fn compare(name: &str, those: Those, known: &[u64], change: impl Fn(&mut Document, &mut Rng)) {
    let mut lowered = Vec::new();
    for seed in (0..networks()).chain(known.iter().copied()) {
        let before = generate::random(seed);
        let mut after = before.clone();
        change(&mut after, &mut Rng::new(seed));
        let (less, more) = (bounds(&before), bounds(&after));
        for (flow, (less, more)) in less.iter().zip(&more).enumerate() {
            for (path, (less, more)) in less.iter().zip(more).enumerate() {
                let rounding = ROUNDING * before.flows[flow].paths[path].len() as u64;
                let plain = at_most(less.holistic, more.holistic, 0);
                let others = at_most(less.best, more.best, rounding)
                    && at_most(less.trajectory, more.trajectory, rounding);
                if !plain || those == Those::All && !others {
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
    compare(
        "flow",
        Those::All,
        &[5873, 16809, 18729, 19765, 26323],
        |document, rng| {
            let mut flow = rng.pick(&document.flows).clone();
            flow.id = "another".to_owned();
            flow.prio = rng.below(4);
            document.flows.push(flow);
        },
    );
}

#[test]
fn more_jitter() {
    compare("jitter", Those::All, &[16809, 20512], |document, rng| {
        let flow = rng.below(document.flows.len() as u64) as usize;
        let flow = &mut document.flows[flow];
        flow.jitter_ns += 1 + rng.below(flow.period_ns);
    });
}

#[test]
fn more_frames() {
    compare("frames", Those::All, &[5873], |document, rng| {
        let flow = rng.below(document.flows.len() as u64) as usize;
        let flow = &mut document.flows[flow];
        flow.frames = Some(flow.frames.unwrap_or(1) + 1);
    });
}

#[test]
fn more_blocking() {
    compare("blocking", Those::All, &[22347, 24626], |document, rng| {
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
    compare(
        "delay",
        Those::All,
        &[2073, 5529, 10092, 11414, 14472, 18009, 20065, 25007],
        |document, rng| {
            let node = rng.below(document.nodes.len() as u64) as usize;
            let node = &mut document.nodes[node];
            node.sd_max_ns = Some(node.sd_max_ns.unwrap_or(node.sd_min_ns) + 10_000);
        },
    );
}

/// Longer frames of one flow space the frames of others on a common link further apart, so that
/// they interfere less behind it. This also holds before a processor whose time does not depend on
/// the frame length, and behind slow replication, during which frames are received: such flows are
/// left unchanged.
#[test]
fn longer_frames() {
    compare("length", Those::Plain, &[], |document, rng| {
        let flow = rng.below(document.flows.len() as u64) as usize;
        let slow = document.nodes.iter().any(|node| node.copy_max_ns > 0);
        let replicas = document.flows.iter().any(|flow| flow.paths.len() > 1);
        let flow = &mut document.flows[flow];
        if slow && replicas || !flow.cost_ns.is_empty() {
            return;
        }
        flow.wire_bytes = flow.wire_bytes.map(|bytes| bytes + 1 + rng.below(200));
    });
}

/// A flow gets a further hop behind its destination.
#[test]
fn another_hop_at_the_end() {
    compare(
        "last hop",
        Those::All,
        &[615, 2931, 8920, 16581, 17756, 20065, 27719, 35057],
        |document, rng| {
            let flow = rng.below(document.flows.len() as u64) as usize;
            let path = rng.below(document.flows[flow].paths.len() as u64) as usize;
            let last = document.flows[flow].paths[path].last().unwrap();
            let last = document.links.iter().find(|link| link.id == *last).unwrap();
            let link = LinkEntry {
                id: "on".to_owned(),
                from: last.to.clone(),
                to: "beyond".to_owned(),
                rate_bps: Some(100_000_000),
                ..LinkEntry::default()
            };
            document.nodes.push(NodeEntry {
                id: "beyond".to_owned(),
                ..NodeEntry::default()
            });
            document.links.push(link);
            document.flows[flow].paths[path].push("on".to_owned());
        },
    );
}

/// A node without any delay is inserted in the middle of a link.
#[test]
fn another_hop_on_the_way() {
    compare(
        "hop",
        Those::All,
        &[833, 1039, 8769, 9774, 11436, 13944, 29859, 31296, 38253],
        |document, rng| {
            let link = rng.below(document.links.len() as u64) as usize;
            let mut second = document.links[link].clone();
            if second.rate_bps.is_none() {
                return;
            }
            document.nodes.push(NodeEntry {
                id: "between".to_owned(),
                ..NodeEntry::default()
            });
            let first = std::mem::replace(&mut document.links[link].to, "between".to_owned());
            second.from = "between".to_owned();
            second.to = first;
            let before = std::mem::replace(&mut second.id, "second".to_owned());
            document.links.push(second);
            for path in document.flows.iter_mut().flat_map(|flow| &mut flow.paths) {
                if let Some(at) = path.iter().position(|link| *link == before) {
                    path.insert(at + 1, "second".to_owned());
                }
            }
        },
    );
}
