//! Time of analyses and decisions: `cargo bench -p punctual-analysis`.
//!
//! A plant of 100 switches around one broker: 90 at the edge, nine between,
//! one in the middle. Every flow goes from a publisher at one edge through the
//! broker to a subscriber at another. Medians of several runs on one core.
#![allow(clippy::unwrap_used, clippy::print_stdout, missing_docs)]

use std::time::{Duration, Instant};

use punctual_analysis::{Admission, Ends, analyze, choose_route};
use punctual_model::Rng;
use punctual_model::network::{Document, Flow, FlowEntry, LinkEntry, Network, NodeEntry};

const EDGES: u64 = 90;
const MIDDLES: u64 = 9;
const FRAME: u64 = 512;

fn link(from: &str, to: &str, rate: u64) -> LinkEntry {
    LinkEntry {
        id: format!("{from}>{to}"),
        from: from.into(),
        to: to.into(),
        rate_bps: Some(rate),
        be_bytes: Some(1538),
        ..LinkEntry::default()
    }
}

fn plant(flows: u64, percent: u64) -> Document {
    let mut document = Document::default();
    let mut node = |id: &str| {
        document.nodes.push(NodeEntry {
            id: id.into(),
            sd_min_ns: 5_000,
            sd_max_ns: Some(10_000),
            ..NodeEntry::default()
        });
    };
    node("core");
    node("broker");
    node("server");
    (0..MIDDLES).for_each(|k| node(&format!("m{k}")));
    (0..EDGES).for_each(|k| node(&format!("e{k}")));
    // Periods of 10 to 100 ms: 24.6 messages a second on average.
    let rate = (flows * FRAME * 8 * 256 / 10 * 100) / percent;
    let middle = |edge: u64| format!("m{}", edge % MIDDLES);
    for k in 0..MIDDLES {
        document.links.push(link(&format!("m{k}"), "core", rate));
        document.links.push(link("core", &format!("m{k}"), rate));
    }
    for k in 0..EDGES {
        document
            .links
            .push(link(&format!("e{k}"), &middle(k), rate / 4));
        document
            .links
            .push(link(&middle(k), &format!("e{k}"), rate / 4));
    }
    document.links.push(link("core", "broker", rate));
    document.links.push(link("server", "core", rate));
    document.links.push(LinkEntry {
        be_bytes: None,
        be_ns: Some(20_000),
        ..link("broker", "server", rate)
    });
    for k in 0..=flows {
        document.flows.push(flow(k, &middle));
    }
    document
}

fn flow(k: u64, middle: &impl Fn(u64) -> String) -> FlowEntry {
    let mut rng = Rng::new(k);
    let (from, to) = (rng.below(EDGES), rng.below(EDGES));
    let period = (10 + rng.below(91)) * 1_000_000;
    let path = [
        format!("e{from}>{}", middle(from)),
        format!("{}>core", middle(from)),
        "core>broker".into(),
        "broker>server".into(),
        "server>core".into(),
        format!("core>{}", middle(to)),
        format!("{}>e{to}", middle(to)),
    ];
    FlowEntry {
        id: format!("f{k}"),
        prio: 7 - (period / 1_000_000 - 10) * 8 / 91,
        period_ns: period,
        jitter_ns: 100_000,
        deadline_ns: Some(5 * period),
        wire_bytes: Some(FRAME),
        paths: vec![path.into()],
        ..FlowEntry::default()
    }
}

/// A flow without its path, and where it goes.
fn ends(network: &Network, mut entry: FlowEntry) -> (FlowEntry, Ends) {
    let topology = &network.topology;
    let path = entry.paths.remove(0);
    let link = |id: &String| &topology.links[topology.link(id).unwrap()];
    let ends = Ends {
        source: link(&path[0]).from,
        via: topology.node("server"),
        receivers: vec![link(path.last().unwrap()).to],
    };
    (entry, ends)
}

fn median(runs: usize, mut run: impl FnMut() -> Duration) -> Duration {
    let mut times: Vec<_> = (0..runs).map(|_| run()).collect();
    times.sort_unstable();
    times[runs / 2]
}

fn timed<T>(run: impl FnOnce() -> T) -> (Duration, T) {
    let start = Instant::now();
    let result = run();
    (start.elapsed(), result)
}

fn main() {
    println!(
        "| flows | load | add one more | accepted | remove it | choose its path | from scratch | late |"
    );
    println!("|--:|--:|--:|---|--:|--:|--:|--:|");
    for percent in [7, 70] {
        for flows in [100, 1_000, 10_000] {
            let mut document = plant(flows, percent);
            let mut network = Network::new(&document).unwrap();
            let (entry, ends) = ends(&network, document.flows.pop().unwrap());
            let last: Flow = network.flows.pop().unwrap();
            let mut admission = Admission::new(network.clone());
            let mut accepted = true;
            let mut removed = Vec::new();
            let runs = if flows > 1_000 { 5 } else { 21 };
            let added = median(runs, || {
                let (time, result) = timed(|| admission.add(vec![last.clone()]));
                accepted = result.is_ok();
                removed.push(timed(|| admission.remove(&last.id)).0);
                time
            });
            removed.sort_unstable();
            let chosen = median(runs.min(5), || {
                timed(|| choose_route(&mut admission, &entry, &ends, &[entry.prio], 4)).0
            });
            let scratch = (flows <= 1_000).then(|| {
                timed(|| {
                    let bounds = analyze(&network);
                    let late = network.flows.iter().zip(&bounds.flows);
                    late.filter(|(flow, bounds)| {
                        bounds[0].best.is_none_or(|bound| bound > flow.deadline)
                    })
                    .count()
                })
            });
            let (time, late) = scratch.map_or(("-".into(), "-".into()), |(time, late)| {
                (format!("{time:.2?}"), late.to_string())
            });
            println!(
                "| {flows} | 0.{percent:02} | {added:.2?} | {accepted} | {:.2?} | {chosen:.2?} | {time} | {late} |",
                removed[removed.len() / 2]
            );
        }
    }
}
