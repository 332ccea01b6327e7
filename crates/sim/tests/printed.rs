//! Responses in networks that exceed the papers' formulas as printed, and stay below our bounds.
#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests may panic; clippy knows only the tests themselves"
)]

use punctual_analysis::analyze;
use punctual_analysis::printed::{Floor, mrt_holistic, mrt_trajectory};
use punctual_model::network::{Document, Network};
use punctual_sim::network::{Effort, families, search};

fn read(text: &str) -> Network {
    Network::new(&Document::from_json(text).unwrap()).unwrap()
}

/// One publisher, a switch that takes up to 400 us for each replication, two receivers; frames take
/// 100 us. Flow `slow` goes to both receivers, flow `quick` to the first.
fn one_switch() -> Network {
    read(
        r#"{"nodes":[{"id":"p"},{"id":"s","copy_max_ns":400000},{"id":"y"},{"id":"z"}],
        "links":[
          {"id":"ps","from":"p","to":"s","rate_bps":100000000},
          {"id":"sy","from":"s","to":"y","rate_bps":100000000},
          {"id":"sz","from":"s","to":"z","rate_bps":100000000}],
        "flows":[
          {"id":"quick","prio":2,"period_ns":20000000,"wire_bytes":1250,"paths":[["ps","sy"]]},
          {"id":"slow","prio":1,"period_ns":20000000,"wire_bytes":1250,"paths":[["ps","sy"],["ps","sz"]]}]}"#,
    )
}

#[test]
fn a_frame_behind_a_slow_copy_exceeds_the_printed_response() {
    let network = one_switch();
    let printed = mrt_holistic(&network)[0][0].unwrap();
    let effort = Effort {
        runs: 300,
        enough: None,
    };
    let seen = search(&network, 0, 0, 1, effort).worst.response;
    let best = analyze(&network).flows[0][0].best.unwrap();
    // By hand: a frame arrives a nanosecond after a frame of `slow` (100 us), whose copy takes 400
    // us more, and then takes 100 us on the second link.
    assert_eq!(seen, 599_999);
    // A frame of lower priority at each link, and twice the frame's own time.
    assert_eq!(printed, 400_000);
    assert!(best >= seen, "{best}");
}

/// The printed formula takes the switch delay from frames that take four times as long.
#[test]
fn many_publishers_exceed_the_printed_trajectory() {
    let network = Network::new(&families::fig15(families::Load::Low, false)).unwrap();
    let effort = Effort {
        runs: 20,
        enough: None,
    };
    for path in 0..3 {
        let seen = search(&network, 0, path, 1, effort).worst.response;
        for floor in [Floor::AsPrinted, Floor::Repaired] {
            let printed = mrt_trajectory(&network, floor)[0][path].unwrap();
            assert!(printed < seen, "{path}: {printed}");
        }
    }
}

/// Algorithm 3 gives the first branch its own bound, and the second branch the sum of both.
#[test]
fn totals_are_carried_from_branch_to_branch() {
    let mut network = one_switch();
    network.flows.remove(0);
    // 100 us to the switch, and for each branch 400 us for the copy and 100 us on the link; no
    // other flow uses the port.
    let printed = mrt_holistic(&network);
    assert_eq!(printed, [[Some(600_000), Some(1_100_000)]]);
    let bounds = analyze(&network).flows;
    assert_eq!(bounds[0][1].best, Some(600_000));
}

/// Without multicast the second paper's formulas equal those of the first, except for a term of the
/// trajectory bound that applies to switches.
#[test]
fn without_multicast_algorithm_3_is_algorithm_1() {
    let network = Network::new(&families::fig2(families::Load::High)).unwrap();
    assert_eq!(
        mrt_holistic(&network),
        punctual_analysis::printed::holistic(&network)
    );
}
