//! The contract for machines: `analyze --wcrt` and `admit --wcrt`, JSON in and
//! JSON out. The statements are those of section 10 of the specification of
//! the bounds.

use serde_json::{Value, json};

use crate::{run, run_with};

/// Two publishers, a switch, a receiver; 1538 bytes take 123.04 us.
fn network() -> Value {
    json!({
        "nodes": [
            {"id": "a"},
            {"id": "b"},
            {"id": "s", "sd_min_ns": 10_000, "sd_max_ns": 30_000, "copy_max_ns": 0, "colour": "red"},
            {"id": "c"},
            {"id": "d"},
        ],
        "links": [
            {"id": "a>s", "from": "a", "to": "s", "rate_bps": 100_000_000, "prop_ns": 500},
            {"id": "b>s", "from": "b", "to": "s", "rate_bps": 100_000_000, "fifo": false},
            {"id": "s>c", "from": "s", "to": "c", "rate_bps": 100_000_000, "be_bytes": 1538},
            {"id": "s>d", "from": "s", "to": "d", "be_ns": 7},
            {"id": "d>s", "from": "d", "to": "s"},
        ],
        "flows": [
            {"id": "m1", "prio": 7, "period_ns": 10_000_000, "jitter_ns": 400_000,
             "deadline_ns": 5_000_000, "wire_bytes": 1538, "paths": [["a>s", "s>c"]]},
            {"id": "m2", "prio": 1, "period_ns": 10_000_000, "wire_bytes": 1538,
             "paths": [["b>s", "s>c"], ["b>s", "s>d"]], "cost_ns": {"s>d": 1000}, "note": null},
        ],
        "author": {"unknown": true},
    })
}

fn analyze(network: &Value) -> Value {
    let run = run_with(["analyze", "--wcrt"], &network.to_string());
    serde_json::from_str(&run.ok()).unwrap()
}

fn admit(sequence: &Value) -> Value {
    let run = run_with(["admit", "--wcrt"], &sequence.to_string());
    serde_json::from_str(&run.ok()).unwrap()
}

#[test]
fn an_answer_has_an_entry_per_flow_and_path() {
    // m1: jitter, its frame, the switch, then a best-effort frame and its own.
    let m1 = 400_000 + 123_040 + 500 + 30_000 + 2 * 123_040;
    // m2: m1 and a best-effort frame wait before it.
    let m2 = 123_040 + 30_000 + 3 * 123_040;
    let row = |flow, path, bound: u64| {
        json!({"flow": flow, "path": path, "wcrt_ns": bound, "schedulable": true,
               "ha_ns": bound, "ta_ns": bound})
    };
    assert_eq!(
        analyze(&network()),
        json!({
            "format": "wcrt-result-1",
            "schedulable": true,
            "results": [
                row("m1", 0, m1),
                row("m2", 0, m2),
                row("m2", 1, 123_040 + 30_000 + 7 + 1000),
            ],
        })
    );
}

#[test]
fn numbers_that_are_absent_have_their_defaults() {
    let network = json!({
        "nodes": [{"id": "a"}, {"id": "s", "sd_min_ns": 5}, {"id": "b"}],
        "links": [{"id": "a>s", "from": "a", "to": "s", "rate_bps": 8_000_000_000_u64},
                  {"id": "s>b", "from": "s", "to": "b", "rate_bps": 8_000_000_000_u64}],
        "flows": [{"id": "m", "period_ns": 205, "wire_bytes": 100, "paths": [["a>s", "s>b"]]}],
    });
    let result = analyze(&network);
    // The deadline is the period, the greatest switching delay the least.
    assert_eq!(result["results"][0]["wcrt_ns"], 205);
    assert_eq!(result["schedulable"], true);
}

#[test]
fn unschedulable_is_an_answer() {
    let mut late = network();
    late["flows"][0]["deadline_ns"] = json!(1000);
    let result = analyze(&late);
    assert_eq!(result["schedulable"], false);
    assert_eq!(result["results"][0]["schedulable"], false);
    assert_eq!(result["results"][1]["schedulable"], true);

    let mut overloaded = network();
    overloaded["flows"][0]["period_ns"] = json!(123_000);
    let result = analyze(&overloaded);
    assert_eq!(result["schedulable"], false);
    for (row, bounded) in [(0, false), (1, false), (2, true)] {
        for key in ["wcrt_ns", "ha_ns"] {
            assert_eq!(result["results"][row][key].is_u64(), bounded, "{row} {key}");
            assert_eq!(
                result["results"][row][key].is_null(),
                !bounded,
                "{row} {key}"
            );
        }
        assert_eq!(result["results"][row]["schedulable"], bounded);
    }
}

#[test]
fn a_network_without_flows_is_schedulable() {
    for input in ["{}", r#"{"nodes":[{"id":"a"}],"links":[],"flows":[]}"#] {
        assert_eq!(
            run_with(["analyze", "--wcrt"], input).ok(),
            "{\"format\":\"wcrt-result-1\",\"schedulable\":true,\"results\":[]}\n"
        );
    }
}

/// A change of the network that makes it mean nothing, and a word of the
/// message.
type Fault = (fn(&mut Value), &'static str);

/// Everything that 10.2 calls invalid.
const FAULTS: &[Fault] = &[
    (|n| n["nodes"][0]["id"] = json!("b"), "twice"),
    (|n| n["links"][0]["id"] = json!("s>c"), "twice"),
    (|n| n["flows"][0]["id"] = json!("m2"), "twice"),
    (|n| n["links"][0]["from"] = json!("x"), "\"x\""),
    (|n| n["links"][0]["to"] = json!("x"), "\"x\""),
    (|n| n["flows"][0]["paths"][0][1] = json!("x"), "\"x\""),
    (|n| n["flows"][0]["cost_ns"] = json!({"x": 1}), "\"x\""),
    (|n| n["flows"][0]["fanout_node"] = json!("x"), "\"x\""),
    (
        |n| n["flows"][0]["paths"] = json!([["a>s", "b>s"]]),
        "does not start at",
    ),
    (
        |n| {
            n["flows"][0]["paths"] = json!([["a>s", "s>d", "d>s", "s>d"]]);
            n["flows"][0]["cost_ns"] = json!({"s>d": 1, "d>s": 1});
        },
        "twice",
    ),
    (
        |n| n["flows"][0]["paths"] = json!([["a>s", "s>c"], ["b>s", "s>c"]]),
        "predecessor",
    ),
    (
        |n| n["flows"][0]["paths"] = json!([["a>s", "s>c"], ["b>s"]]),
        "one publisher",
    ),
    (
        |n| {
            n["flows"][0]["paths"] = json!([["a>s", "s>c"], ["a>s", "s>d", "d>s", "s>c"]]);
            n["flows"][0]["cost_ns"] = json!({"s>d": 1, "d>s": 1});
        },
        "must be a tree",
    ),
    (|n| n["flows"][0]["paths"] = json!([]), "destination"),
    (|n| n["flows"][0]["paths"] = json!([[]]), "empty"),
    (|n| n["flows"][0]["period_ns"] = json!(0), "period_ns"),
    (|n| n["flows"][0]["period_ns"] = json!(-5), "negative"),
    (|n| n["flows"][0]["jitter_ns"] = json!(-1), "negative"),
    (|n| n["flows"][0]["deadline_ns"] = json!(-1), "negative"),
    (|n| n["flows"][0]["wire_bytes"] = json!(-1), "negative"),
    (|n| n["flows"][0]["prio"] = json!(-1), "negative"),
    (|n| n["flows"][1]["cost_ns"]["s>d"] = json!(-1), "negative"),
    (|n| n["nodes"][2]["sd_min_ns"] = json!(-1), "negative"),
    (|n| n["nodes"][2]["sd_max_ns"] = json!(-1), "negative"),
    (|n| n["nodes"][2]["copy_max_ns"] = json!(-1), "negative"),
    (|n| n["links"][0]["rate_bps"] = json!(-1), "negative"),
    (|n| n["links"][0]["prop_ns"] = json!(-1), "negative"),
    (|n| n["links"][2]["be_bytes"] = json!(-1), "negative"),
    (|n| n["links"][3]["be_ns"] = json!(-1), "negative"),
    (|n| n["flows"][0]["wire_bytes"] = json!(0), "wire_bytes"),
    (|n| n["flows"][1]["cost_ns"]["s>d"] = json!(0), "cost_ns"),
    (
        |n| n["flows"][1]["fanout_node"] = json!("c"),
        "must leave it once",
    ),
    (
        |n| {
            n["flows"][0]["paths"] = json!([["a>s", "s>d", "d>s", "s>c"]]);
            n["flows"][0]["cost_ns"] = json!({"s>d": 1, "d>s": 1});
            n["flows"][0]["fanout_node"] = json!("s");
        },
        "2 times",
    ),
    // No rate and no cost; numbers and lists of another kind.
    (|n| n["flows"][1]["cost_ns"] = json!({}), "no time is known"),
    (|n| n["flows"][0]["period_ns"] = Value::Null, "period_ns"),
    (|n| n["flows"][0]["period_ns"] = json!(0.5), "whole number"),
    (
        |n| n["flows"][0]["period_ns"] = json!("10ms"),
        "whole number",
    ),
    (|n| n["flows"] = json!({}), "list"),
    (|n| n["flows"][0] = json!(1), "object"),
];

#[test]
fn what_is_invalid_is_refused_with_2_and_a_message() {
    for (index, (fault, word)) in FAULTS.iter().enumerate() {
        let mut network = network();
        fault(&mut network);
        let text = network.to_string();
        println!("fault {index}: {word}");
        run_with(["analyze", "--wcrt"], &text).fails(2, &["punctual: standard input: ", word]);
        let sequence = json!({"network": network, "ops": []});
        run_with(["admit", "--wcrt"], &sequence.to_string()).fails(2, &[word]);
    }
}

#[test]
fn what_is_no_network_is_refused_with_2() {
    for (text, word) in [
        ("", "JSON"),
        ("{", "JSON"),
        ("[]", "object"),
        ("nodes = []", "JSON"),
    ] {
        run_with(["analyze", "--wcrt"], text).fails(2, &[word]);
    }
    for text in ["", "{", "[]", "{}"] {
        run_with(["admit", "--wcrt"], text).fails(2, &["punctual: standard input"]);
    }
    let deep = "[".repeat(100_000);
    run_with(["analyze", "--wcrt"], &deep).fails(2, &["standard input is not JSON"]);
}

#[test]
fn admission_answers_each_change() {
    let mut network = network();
    // So late that only the frame before it can wait.
    network["flows"][0]["deadline_ns"] = json!(900_000);
    let flow = |id, prio, wire_bytes| {
        json!({"id": id, "prio": prio, "period_ns": 10_000_000, "wire_bytes": wire_bytes,
               "paths": [["b>s", "s>c"]]})
    };
    let sequence = json!({
        "network": network,
        "ops": [
            {"op": "add", "flow": flow("low", 0, 1538)},
            {"op": "add", "flow": flow("high", 8, 1538)},
            {"op": "add", "flow": flow("small", 8, 125), "why": "unknown"},
            {"op": "remove", "id": "small"},
            {"op": "remove", "id": "nobody"},
            {"op": "remove", "id": "m2"},
            {"op": "add", "flow": flow("m1", 0, 125)},
        ],
    });
    let answer = admit(&sequence);
    let accepted: Vec<_> = answer["decisions"]
        .as_array()
        .unwrap()
        .iter()
        .map(|decision| decision["accepted"].as_bool().unwrap())
        .collect();
    assert_eq!(accepted, [true, false, true, true, true, true, false]);
    let left: Vec<_> = answer["results"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| row["flow"].as_str().unwrap())
        .collect();
    assert_eq!(left, ["m1", "low"]);

    // The bounds are those of the final set.
    network["flows"][1] = flow("low", 0, 1538);
    assert_eq!(answer["results"], analyze(&network)["results"]);
}

#[test]
fn a_change_that_means_nothing_is_refused_with_2() {
    let m2 = &network()["flows"][1];
    let mut without_period = m2.clone();
    without_period["period_ns"] = json!(0);
    for (change, word) in [
        (json!({"op": "rename", "id": "m1"}), "op"),
        (json!({"id": "m1"}), "op"),
        (json!({"op": "add"}), "flow"),
        (json!({"op": "remove"}), "id"),
        (json!({"op": "add", "flow": without_period}), "period_ns"),
    ] {
        let sequence = json!({"network": network(), "ops": [change]});
        run_with(["admit", "--wcrt"], &sequence.to_string()).fails(2, &[word]);
    }
}

#[test]
fn admit_says_it_in_words_for_people() {
    let flow = json!({"id": "more", "prio": 0, "period_ns": 1_000_000, "wire_bytes": 1538,
                      "paths": [["b>s", "s>c"]]});
    let mut ops = vec![json!({"op": "add", "flow": flow})];
    let text = |ops: &[Value]| json!({"network": network(), "ops": ops}).to_string();
    assert_eq!(
        run_with(["admit", "-"], &text(&ops)).ok(),
        "accepted  add     more\n3 flows keep their deadlines\n"
    );
    ops.push(ops[0].clone());
    ops.push(json!({"op": "remove", "id": "m1"}));
    let refused = run_with(["admit", "-"], &text(&ops));
    assert_eq!(refused.code, Some(1));
    assert_eq!(
        refused.out,
        "accepted  add     more\nrefused   add     more: a flow \"more\" is admitted already; remove it first\naccepted  remove  m1\n\
         2 flows keep their deadlines\n"
    );
    run(["admit", "/no/such.json"]).fails(2, &["/no/such.json"]);
    run(["admit"]).fails(2, &["<FILE>"]);
    run(["admit", "--wcrt", "x"]).fails(2, &["cannot be used with"]);
}
