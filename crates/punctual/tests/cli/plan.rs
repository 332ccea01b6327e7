//! `punctual analyze` with ways and priorities that it chooses.

use std::fs;

use serde_json::{Value, json};
use tempfile::tempdir;

use crate::analyze::{answered_no, example};
use crate::{run, run_with};

/// Three flows on one link: late in the order of deadlines, in time in another.
fn tight() -> String {
    let flow = |id: &str, cost: u64, period: u64| {
        json!({"id": id, "period_ns": period * 1_000_000, "cost_ns": {"a>b": cost * 1_000_000},
               "paths": [["a>b"]]})
    };
    json!({
        "nodes": [{"id": "a"}, {"id": "b"}],
        "links": [{"id": "a>b", "from": "a", "to": "b"}],
        "flows": [flow("x", 1, 4), flow("y", 3, 5), flow("z", 1, 8)],
    })
    .to_string()
}

/// A flow that says where it goes, and two ways there.
fn square() -> Value {
    let link = |from: &str, to: &str| json!({"id": format!("{from}>{to}"), "from": from, "to": to, "rate_bps": 100_000_000});
    json!({
        "nodes": [{"id": "p"}, {"id": "u"}, {"id": "v"}, {"id": "q"}],
        "links": [link("p", "u"), link("u", "q"), link("p", "v"), link("v", "q")],
        "flows": [
            {"id": "old", "prio": 2, "period_ns": 1_000_000, "wire_bytes": 3125, "paths": [["p>u", "u>q"]]},
            {"id": "new", "prio": 1, "period_ns": 2_000_000, "wire_bytes": 1250, "from": "p", "to": ["q"]},
        ],
    })
}

#[test]
fn priorities_are_found_where_the_order_of_deadlines_fails() {
    let refused = run_with(["analyze", "--assign", "dm", "-"], &tight());
    assert_eq!((refused.code, refused.out.as_str()), (Some(1), ""));
    assert!(
        refused.err.contains("no priorities were found for x, z"),
        "{}",
        refused.err
    );
    for how in ["opa", "repair"] {
        let table = run_with(["analyze", "--assign", how, "-"], &tight()).ok();
        assert!(
            table.contains("of 3 flows have another one than before"),
            "{table}"
        );
        assert!(table.contains("every deadline is kept"), "{table}");
    }
    let kept = ["analyze", "--assign", "opa", "--keep", "y", "-"];
    let table = run_with(kept, &tight()).ok();
    assert!(table.contains("\ny     a→b      0 "), "{table}");
    run_with(["analyze", "--assign", "opa", "--keep", "n", "-"], &tight())
        .fails(2, &["--keep \"n\": is not among the flows"]);
    run_with(
        ["analyze", "--assign", "opa", "--levels", "0", "-"],
        &tight(),
    )
    .fails(2, &["levels: 0 is too few"]);
    run_with(["analyze", "--keep", "y", "-"], &tight()).fails(2, &["--assign"]);
}

#[test]
fn a_link_without_time_is_named_and_no_order_is_tried() {
    let refused = run([
        "analyze",
        "--assign",
        "repair",
        &example("fig15-abc-medium.toml"),
    ]);
    assert_eq!(refused.code, Some(1));
    assert!(
        refused
            .err
            .contains("link s1>h5 loaded 170 %: no priorities help"),
        "{}",
        refused.err
    );
}

#[test]
fn a_flow_that_says_where_it_goes_gets_its_way() {
    let directory = tempdir().unwrap();
    for ending in ["json", "toml"] {
        let file = directory.path().join(format!("out.{ending}"));
        let file = file.to_str().unwrap();
        let table = run_with(["analyze", "--write", file, "-"], &square().to_string()).ok();
        assert!(table.contains("new goes p→v→q\n"), "{table}");
        // What was written has the way, and says the same.
        let again = run(["analyze", file]).ok();
        assert!(
            again.contains("p→v→q") && !again.contains("goes"),
            "{again}"
        );
    }
    let text = fs::read_to_string(directory.path().join("out.toml")).unwrap();
    assert!(
        text.contains(r#"paths = [["p>v", "v>q"]], from = "p", to = ["q"]"#),
        "{text}"
    );

    // The way that is there counts until it is asked for.
    let mut network = square();
    network["flows"][1]["paths"] = json!([["p>u", "u>q"]]);
    let table = run_with(["analyze", "-"], &network.to_string()).ok();
    assert!(!table.contains("p→v→q"), "{table}");
    let table = run_with(["analyze", "--route", "new", "-"], &network.to_string()).ok();
    assert!(table.contains("new goes p→v→q\n"), "{table}");
    let json = run_with(
        [
            "analyze", "--route", "new", "--paths", "paper", "--format", "json", "-",
        ],
        &network.to_string(),
    )
    .ok();
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["remarks"][0], "new goes p→v→q");
    run_with(["analyze", "--route", "none", "-"], &network.to_string())
        .fails(2, &["flows \"none\": is not among the flows"]);
}

#[test]
fn a_flow_without_a_way_that_keeps_deadlines_is_refused() {
    let mut network = square();
    network["flows"][1]["deadline_ns"] = json!(150_000);
    let refused = answered_no_aloud(&network);
    assert!(
        refused.contains("flows \"new\": no path keeps every deadline"),
        "{refused}"
    );
    // The paper does not ask; the analysis says it.
    let table = answered_no(run_with(
        ["analyze", "--paths", "paper", "-"],
        &network.to_string(),
    ));
    assert!(
        table.contains("new goes p→v→q") && table.contains("  late\n"),
        "{table}"
    );
    network["flows"][1]["from"] = json!("x");
    run_with(["analyze", "-"], &network.to_string())
        .fails(2, &["flows \"new\": from: \"x\" is not among the nodes"]);
}

fn answered_no_aloud(network: &Value) -> String {
    let refused = run_with(["analyze", "-"], &network.to_string());
    assert_eq!((refused.code, refused.out.as_str()), (Some(1), ""));
    refused.err
}
