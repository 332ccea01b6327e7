//! Bounds and searches compared with all schedules of tiny networks.
#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests may panic; clippy knows only the tests themselves"
)]

use punctual_analysis::analyze;
use punctual_model::network::{Document, Network};
use punctual_sim::network::families::tiny;
use punctual_sim::network::{Effort, Grid, exhaust, generate, search};

/// The worst response of each flow over all schedules on a grid, ns.
fn worst(document: &Document, step: u64, messages: u32) -> Vec<u64> {
    let network = Network::new(document).unwrap();
    let bounds = analyze(&network);
    let grid = Grid {
        step,
        span: 400_000,
        messages,
        limit: 2_000_000,
    };
    let all = exhaust(&network, grid).unwrap();
    let mut responses = Vec::new();
    for (flow, paths) in all.worst.iter().enumerate() {
        for (path, (worst, scenario)) in paths.iter().enumerate() {
            scenario.check(&network).unwrap();
            let bound = &bounds.flows[flow][path];
            for bound in [bound.best, bound.holistic, bound.trajectory] {
                assert!(
                    bound.is_none_or(|bound| bound >= worst.response),
                    "f{flow}: {bound:?} is below {worst:?} in {scenario:?}"
                );
            }
            let effort = Effort {
                runs: 600,
                enough: None,
            };
            let found = search(&network, flow, path, 1, effort);
            assert!(
                found.worst.response >= worst.response,
                "f{flow}: the search found {}, there is {}",
                found.worst.response,
                worst.response
            );
            responses.push(worst.response);
        }
    }
    responses
}

/// The worst cases equal the published values, minus one nanosecond where undeclared traffic has to
/// begin before the frame.
#[test]
fn tiny_networks_have_the_published_worst_cases() {
    let cases = [
        (tiny::two_fifo_flows(), vec![599_998, 599_998]),
        (tiny::joining(), vec![599_998, 299_999]),
        (tiny::part_and_meet(false), vec![600_000, 600_000]),
    ];
    for (document, expected) in cases {
        assert_eq!(worst(&document, 50_000, 1), expected);
    }
    let three = worst(&tiny::three_flows(), 50_000, 1);
    assert_eq!((three[0], three[2]), (600_000, 500_000));
    assert!(three[1] >= 550_000, "{three:?}");
}

#[test]
fn searches_are_not_behind_where_there_is_jitter() {
    worst(&tiny::with_jitter(), 25_000, 2);
    worst(&tiny::part_and_meet(true), 50_000, 1);
}

/// Random networks of two flows: no bound is below the worst response on a coarse grid.
#[test]
fn bounds_of_random_pairs_are_not_below_the_grid() {
    let (mut judged, mut ratios) = (0, 0.0);
    for seed in 0..2_000 {
        let mut document = generate::random(seed);
        document.flows.truncate(2);
        let network = Network::new(&document).unwrap();
        let longest = network.flows.iter().map(|flow| flow.period + flow.jitter);
        let span = longest.max().unwrap();
        let grid = Grid {
            step: span / 8 + 1,
            span,
            messages: 3,
            limit: 3_000,
        };
        let Ok(all) = exhaust(&network, grid) else {
            continue;
        };
        let bounds = analyze(&network);
        for (flow, paths) in all.worst.iter().enumerate() {
            for (path, (worst, scenario)) in paths.iter().enumerate() {
                let bound = bounds.flows[flow][path];
                for bound in [bound.best, bound.holistic, bound.trajectory]
                    .into_iter()
                    .flatten()
                {
                    assert!(
                        bound >= worst.response,
                        "seed {seed}: {bound} is below {worst:?} in {}",
                        serde_json::to_string(scenario).unwrap()
                    );
                }
                if let Some(best) = bound.best {
                    judged += 1;
                    ratios += best as f64 / worst.response as f64;
                }
            }
        }
    }
    assert!(judged > 500, "{judged}");
    let mean = ratios / f64::from(judged);
    eprintln!("{judged} paths, bound / largest on the grid: mean {mean:.3}");
    assert!(mean < 1.1, "{mean}");
}
