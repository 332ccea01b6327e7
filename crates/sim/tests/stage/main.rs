//! Response times from publishers through a real broker to subscribers, frame by frame, compared
//! with the promised bounds.
//!
//! Clients request admission from a real shard and a real manager, in a star with links of several
//! rates. Then all admitted flows are sent: the network simulator runs hosts, links and switches,
//! and the broker is a shard whose processor takes the declared time for each message and each copy
//! ([`punctual_sim::stage`]). Releases are random, or such that all messages meet at the broker's
//! entrance, made worse by hill climbing. No response may exceed `rt-bound`, no message may be
//! lost, and no client that sends as declared may be policed.
//!
//! `PUNCTUAL_SEEDS=1000` runs that many networks, from seed `PUNCTUAL_FROM` on.
#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "helpers of tests may panic, and what is above or close to a bound is printed"
)]

#[path = "../promises/desk.rs"]
#[allow(dead_code, reason = "another test uses all of it")]
mod desk;
mod plant;
mod traffic;

use plant::Plant;
use punctual_model::Rng;
use punctual_sim::seeds;
use punctual_sim::stage::Order;
use traffic::{Pattern, Steps, Traffic};

/// Random patterns for each network, and the messages of each flow in a pattern.
const RANDOM: usize = 10;
const MESSAGES: usize = 12;
/// Changes that hill climbing tries for each critical pattern.
const CHANGES: usize = 30;

/// Numbers of checks, so that a test in which nothing happened fails.
#[derive(Debug, Default)]
struct Count {
    paths: u64,
    responses: u64,
    /// Ratios of bound to largest response: the sum and the minimum.
    ratios: f64,
    least: f64,
}

/// Checks one network. Returns descriptions of the responses that exceed their bound.
fn look(seed: u64, order: Order, steps: Steps, count: &mut Count) -> Vec<String> {
    let mut rng = Rng::new(seed);
    let mut plant = Plant::new(seed);
    let mut traffic = Traffic::new(&mut plant, order, steps);
    for _ in 0..RANDOM {
        let pattern = Pattern::random(traffic.flows(), MESSAGES, &mut rng);
        traffic.run(&pattern, &mut rng);
    }
    for target in 0..traffic.flows().len() {
        for variant in 0..4 {
            let mut pattern = Pattern::critical(traffic.flows(), target, variant, &mut rng);
            let mut best = traffic.run(&pattern, &mut rng)[target];
            for _ in 0..CHANGES / 4 {
                let changed = pattern.changed(traffic.flows(), target, &mut rng);
                let response = traffic.run(&changed, &mut rng)[target];
                if response >= best {
                    (pattern, best) = (changed, response);
                }
            }
        }
    }
    count.responses += traffic.responses();
    let mut above = Vec::new();
    for flow in traffic.flows() {
        for receiver in &flow.receivers {
            let (seen, bound) = (receiver.largest, receiver.bound);
            if seen > bound {
                above.push(format!(
                    "seed {seed}: {} to {}: {seen} ns, promised {bound}",
                    flow.id, receiver.client
                ));
            }
            let ratio = bound as f64 / seen as f64;
            count.paths += 1;
            count.ratios += ratio;
            count.least = match count.paths {
                1 => ratio,
                _ => count.least.min(ratio),
            };
        }
    }
    traffic.check();
    above
}

fn look_at_all(order: Order, steps: Steps, networks: u64) -> Vec<String> {
    let seeds = seeds(networks);
    let networks = seeds.left();
    let mut count = Count::default();
    let above: Vec<String> = seeds
        .flat_map(|seed| look(seed, order, steps, &mut count))
        .collect();
    let mean = count.ratios / count.paths as f64;
    println!(
        "{order:?}, {steps:?}: {} paths, {} responses, promised / seen: mean {mean:.3}, least {:.3}",
        count.paths, count.responses, count.least
    );
    assert!(
        count.paths > 3 * networks && count.responses > 1000 * networks,
        "{count:?}"
    );
    above
}

#[test]
fn packets_keep_what_the_broker_promised() {
    let above = look_at_all(Order::Shell, Steps::AsDeclared, 10);
    assert!(above.is_empty(), "{}", above.join("\n"));
}

#[test]
fn a_broker_that_is_quicker_at_times_keeps_it_too() {
    let above = look_at_all(Order::Shell, Steps::AtMost, 5);
    assert!(above.is_empty(), "{}", above.join("\n"));
}

#[test]
fn the_order_of_connections_that_are_as_urgent_does_not_matter() {
    let above = look_at_all(Order::Latest, Steps::AsDeclared, 10);
    assert!(above.is_empty(), "{}", above.join("\n"));
}

/// Messages of several frames, with a copy for each of two receivers: the broker handles such a
/// message when its last frame has arrived, after messages that arrived between its frames, and
/// then sends all frames of all copies at once. With the broker modelled as a link that takes
/// longer for each frame, a packet of `t/6@p6` exceeded its bound: 3 144 602 ns.
#[test]
fn messages_of_several_frames_with_several_copies_keep_what_was_promised() {
    let mut count = Count::default();
    let above = look(951_088_652, Order::Shell, Steps::AsDeclared, &mut count);
    assert!(above.is_empty(), "{}", above.join("\n"));
}
