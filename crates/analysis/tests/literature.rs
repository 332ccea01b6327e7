//! Worked examples, small enough to be followed by hand.
//!
//! Of the literature only Davis et al. (2007) has figures that could be had.
//! Tindell & Clark (1994) and Martin & Minet (2006) work out examples, too; their
//! full texts were not available, so what they print is not asserted here.

use punctual_analysis::contract::{Row, analyze_json};
use serde_json::{Value, json};

/// A frame takes this long on every link, ns.
const FRAME: u64 = 100_000;
const LONG: u64 = 100 * FRAME;

fn link(from: &str, to: &str, best_effort: u64) -> Value {
    json!({"id": format!("{from}>{to}"), "from": from, "to": to, "rate_bps": 8_000_000_000_u64,
           "be_ns": best_effort})
}

fn flow(id: &str, prio: u64, period: u64, path: &[&str]) -> Value {
    let hops = path.windows(2);
    let links: Vec<_> = hops
        .map(|ends| format!("{}>{}", ends[0], ends[1]))
        .collect();
    json!({"id": id, "prio": prio, "period_ns": period, "wire_bytes": FRAME, "paths": [links]})
}

fn bounds(links: &[Value], flows: &[Value]) -> Vec<Row> {
    let mut names: Vec<_> = links
        .iter()
        .flat_map(|link| [&link["from"], &link["to"]])
        .filter_map(Value::as_str)
        .collect();
    names.sort_unstable();
    names.dedup();
    let nodes: Vec<_> = names.iter().map(|name| json!({"id": name})).collect();
    let network = json!({"nodes": nodes, "links": links, "flows": flows});
    analyze_json(&network.to_string())
        .expect("the network means something")
        .results
}

/// Holistic, trajectory and best bounds, in frames.
fn frames(rows: &[Row]) -> Vec<[Option<u64>; 3]> {
    let frames = |bound: Option<u64>| bound.map(|bound| bound / FRAME);
    rows.iter()
        .map(|row| [row.ha_ns, row.ta_ns, row.wcrt_ns].map(frames))
        .collect()
}

/// Davis, Burns, Bril & Lukkien 2007, section 3.1: the second instance of the
/// lowest priority is the one that responds late, by the push-through of the
/// first. The analysis before them said 3.
#[test]
fn can_refuted_and_revised() {
    let links = [link("x", "y", 0)];
    let flows = [
        flow("a", 3, 250_000, &["x", "y"]),
        flow("b", 2, 350_000, &["x", "y"]),
        flow("c", 1, 350_000, &["x", "y"]),
    ];
    let rows = bounds(&links, &flows);
    let found: Vec<_> = rows.iter().map(|row| row.wcrt_ns.unwrap()).collect();
    assert_eq!(found, [200_000, 300_000, 350_000]);
    assert_eq!(
        rows.iter()
            .map(|row| row.ha_ns.unwrap())
            .collect::<Vec<_>>(),
        found
    );
}

/// A frame that goes along is paid once: at the first port it may be before,
/// and then it is before at the second, too.
#[test]
fn pay_once() {
    let links = [link("a", "b", 0), link("b", "c", 0), link("c", "d", 0)];
    let path = &["a", "b", "c", "d"];
    let rows = bounds(
        &links,
        &[flow("f", 1, LONG, path), flow("g", 1, LONG, path)],
    );
    assert_eq!(frames(&rows), [[Some(6), Some(4), Some(4)]; 2]);
}

/// Undeclared traffic delays once at each port.
#[test]
fn best_effort_blocks_at_every_hop() {
    let links = [link("a", "b", FRAME), link("b", "c", FRAME)];
    let rows = bounds(&links, &[flow("f", 1, LONG, &["a", "b", "c"])]);
    assert_eq!(frames(&rows), [[Some(4); 3]]);
}

/// Frames that come one after the other over a link cannot come at once.
#[test]
fn a_link_shapes_what_comes_over_it() {
    let links = [link("a", "c", 0), link("b", "c", 0), link("c", "d", 0)];
    let flows = [
        flow("f", 1, LONG, &["a", "c", "d"]),
        flow("g", 1, LONG, &["b", "c", "d"]),
        flow("h", 1, LONG, &["b", "c", "d"]),
    ];
    let rows = bounds(&links, &flows);
    assert_eq!(frames(&rows)[0], [Some(4), Some(3), Some(3)]);
}

/// A frame that leaves the path and comes back can be before twice.
#[test]
fn part_and_meet_again() {
    let ends = [("a", "x"), ("x", "y"), ("x", "b"), ("b", "y"), ("y", "z")];
    let links = ends.map(|(from, to)| link(from, to, 0));
    let flows = [
        flow("direct", 1, LONG, &["a", "x", "y", "z"]),
        flow("detour", 2, LONG, &["a", "x", "b", "y", "z"]),
    ];
    let rows = bounds(&links, &flows);
    assert_eq!(frames(&rows)[0][2], Some(5));
}

/// Overload is an answer, for those that share the level and those below.
#[test]
fn overload_has_no_bound() {
    let links = [link("a", "b", 0), link("b", "c", 0)];
    let flows = [
        flow("above", 3, 4 * FRAME, &["a", "b", "c"]),
        flow("too", 2, 2 * FRAME, &["a", "b", "c"]),
        flow("much", 2, 2 * FRAME, &["a", "b", "c"]),
        flow("below", 1, LONG, &["b", "c"]),
    ];
    let rows = bounds(&links, &flows);
    let bounded: Vec<_> = rows.iter().map(|row| row.wcrt_ns.is_some()).collect();
    assert_eq!(bounded, [true, false, false, false]);
    assert!(
        rows.iter()
            .all(|row| row.schedulable == row.wcrt_ns.is_some())
    );
}

/// Where service is by deadline, one frame that is later due may have begun,
/// and those that are due earlier go first, whatever their priority.
#[test]
fn earliest_deadline_first() {
    let mut server = link("a", "b", 0);
    server["edf"] = json!(true);
    let due = |id: &str, prio: u64, frames: u64| {
        let mut flow = flow(id, prio, LONG, &["a", "b"]);
        flow["deadline_ns"] = json!(frames * FRAME);
        flow
    };
    let flows = [due("soon", 1, 3), due("later", 2, 10), due("last", 3, 20)];
    let rows = bounds(&[server], &flows);
    let best: Vec<_> = frames(&rows).iter().map(|bounds| bounds[2]).collect();
    assert_eq!(best, [Some(2), Some(3), Some(3)]);
}

/// On a ring every port comes after every other.
#[test]
fn a_ring_has_bounds() {
    let ends = [("a", "b"), ("b", "c"), ("c", "a")];
    let links = ends.map(|(from, to)| link(from, to, 0));
    let flows = [
        flow("f", 1, LONG, &["a", "b", "c"]),
        flow("g", 1, LONG, &["b", "c", "a"]),
        flow("h", 1, LONG, &["c", "a", "b"]),
    ];
    let rows = bounds(&links, &flows);
    // Each meets one other at its first port and the third at its second.
    for row in frames(&rows) {
        assert!(
            row.iter().all(|bound| (4..=6).contains(&bound.unwrap())),
            "{row:?}"
        );
    }
}
