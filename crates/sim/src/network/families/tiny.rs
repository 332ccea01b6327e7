//! Networks that are small enough to try everything: two or three flows with
//! frames of 100 us over one to three common ports.

use punctual_model::network::{Document, FlowEntry};

use super::{Builder, FULL_FRAME, MICRO, MILLI};

/// Bytes of a frame that takes 100 us at 100 Mbit/s.
const FRAME: u64 = 1250;

/// Makes a network of flows, each given by priority and route. With `best_effort`, links between switches and
/// to the node `end` carry undeclared traffic in frames of [`FRAME`].
fn network(best_effort: bool, flows: &[(u64, &[&str])]) -> Document {
    let mut network = Builder::default();
    for (number, (prio, route)) in flows.iter().enumerate() {
        for node in *route {
            network.host(node);
        }
        let path = route.windows(2).enumerate().map(|(hop, pair)| {
            let best_effort = if best_effort && hop > 0 { FRAME } else { 0 };
            network.link(pair[0], pair[1], best_effort)
        });
        let path: Vec<_> = path.collect();
        network.flow(FlowEntry {
            id: format!("f{number}"),
            prio: *prio,
            period_ns: 10 * MILLI,
            wire_bytes: Some(FRAME),
            paths: vec![path],
            ..FlowEntry::default()
        });
    }
    network.document
}

/// Two flows of one priority that share two ports, with undeclared traffic.
pub fn two_fifo_flows() -> Document {
    network(
        true,
        &[
            (1, &["a", "s1", "s2", "end"]),
            (1, &["b", "s1", "s2", "end"]),
        ],
    )
}

/// Two flows, of which the one of higher priority joins at the second port, with undeclared traffic.
pub fn joining() -> Document {
    network(
        true,
        &[(1, &["a", "s1", "s2", "end"]), (2, &["b", "s2", "end"])],
    )
}

/// Three flows over three ports: a low one, a high one, and a low one that
/// joins at the second port. No best effort.
pub fn three_flows() -> Document {
    network(
        false,
        &[
            (1, &["a", "s1", "s2", "s3", "end"]),
            (2, &["b", "s1", "s2", "s3", "end"]),
            (1, &["c", "s2", "s3", "end"]),
        ],
    )
}

/// Two flows part after the first port, one makes a detour, and they meet again
/// at the last. Of one priority without best effort, or the one with the detour
/// higher and best effort.
pub fn part_and_meet(higher: bool) -> Document {
    network(
        higher,
        &[
            (1, &["a", "s1", "s2", "s4", "end"]),
            (
                if higher { 2 } else { 1 },
                &["b", "s1", "s2", "s3", "s4", "end"],
            ),
        ],
    )
}

/// Two flows of one priority whose frames meet with jitter in the releases and
/// in the switches; frames of two sizes.
pub fn with_jitter() -> Document {
    let mut document = two_fifo_flows();
    document.flows[0].jitter_ns = 60 * MICRO;
    document.flows[1].jitter_ns = 150 * MICRO;
    document.flows[1].wire_bytes = Some(FULL_FRAME);
    document.flows[1].period_ns = 400 * MICRO;
    for node in &mut document.nodes {
        if node.id == "s2" {
            (node.sd_min_ns, node.sd_max_ns) = (0, Some(50 * MICRO));
        }
    }
    document
}
