//! `punctual analyze FILE` for people: tables, formats, exit codes.

use std::fs;
use std::path::PathBuf;

use serde_json::{Value, json};
use tempfile::tempdir;

use crate::{Run, run, run_with};

/// A network of the repository.
pub(crate) fn example(name: &str) -> String {
    let directory = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../examples/networks");
    directory.join(name).to_string_lossy().into_owned()
}

/// What a run that answered no printed.
#[track_caller]
pub(crate) fn answered_no(run: Run) -> String {
    assert_eq!((run.code, run.err.as_str()), (Some(1), ""), "{}", run.out);
    run.out
}

/// Holistic, trajectory and best bound in ms of the published table.
const FIG2_HIGH: [(&str, [&str; 3]); 18] = [
    ("m1", ["1.966", "1.966", "1.740"]),
    ("m4", ["4.919", "4.181", "4.181"]),
    ("m7", ["7.872", "6.396", "6.396"]),
    ("m9", ["2.612", "2.243", "2.243"]),
    ("m12", ["7.041", "4.457", "4.457"]),
    ("m15", ["11.471", "6.672", "6.672"]),
    ("m17", ["2.336", "1.966", "1.966"]),
    ("m20", ["6.396", "4.181", "4.181"]),
    ("m23", ["10.456", "6.396", "6.396"]),
    ("m25", ["2.213", "1.966", "1.863"]),
    ("m28", ["5.904", "4.181", "4.181"]),
    ("m31", ["9.595", "6.396", "6.396"]),
    ("m33", ["2.090", "1.966", "1.863"]),
    ("m36", ["5.412", "4.181", "4.181"]),
    ("m39", ["8.734", "6.396", "6.396"]),
    ("m41", ["1.813", "1.690", "1.587"]),
    ("m44", ["4.766", "3.905", "3.905"]),
    ("m47", ["7.719", "6.120", "6.120"]),
];

#[test]
fn the_table_has_the_bounds_of_the_literatures_network() {
    let table = run(["analyze", &example("fig2-high.toml")]).ok();
    for (flow, bounds) in FIG2_HIGH {
        let row = table
            .lines()
            .find(|line| line.split(' ').next() == Some(flow))
            .unwrap();
        let cells: Vec<_> = row.split_whitespace().collect();
        assert_eq!(cells[3..6], bounds, "{row}");
        assert_eq!(cells.last(), Some(&"ok"));
    }
    let head = "flow  path                  prio  holistic ms  trajectory ms  best ms  deadline ms";
    assert!(table.starts_with(head), "{table}");
    assert!(
        table.contains("\nm1    h1→s1→s8→s7→h49          7 "),
        "{table}"
    );
    assert!(
        table.ends_with(
            "\n42 flows to 42 destinations: every deadline is kept; fullest link s7>h49, 35.1 %\n"
        ),
        "{table}"
    );
}

#[test]
fn a_deadline_that_may_be_missed_is_exit_code_1() {
    let table = answered_no(run(["analyze", &example("factory-cell-late.toml")]));
    assert!(
        table.contains("  late\n") && table.contains("  ok\n"),
        "{table}"
    );
    assert!(
        table.contains("8 flows to 16 destinations: 2 may be late"),
        "{table}"
    );
}

#[test]
fn an_overloaded_link_is_named_with_its_load() {
    let table = answered_no(run(["analyze", &example("fig15-abc-medium.toml")]));
    assert!(table.contains("  no bound\n"), "{table}");
    assert!(
        table.contains("link s3>h15 loaded 170 %: no bound there at priority 1 and below\n"),
        "{table}"
    );
}

#[test]
fn methods_are_columns_and_the_tightest_decides() {
    let file = example("fig2-low.toml");
    let table = run(["analyze", "--method", "holistic", &file]).ok();
    assert!(table.contains("holistic ms  deadline"), "{table}");
    let both = run(["analyze", "--method", "trajectory,holistic", &file]).ok();
    assert!(
        both.contains("trajectory ms  holistic ms  deadline"),
        "{both}"
    );
    run(["analyze", "--method", "guess", &file]).fails(2, &["trajectory"]);
}

#[test]
fn the_printed_formulas_are_shown_with_a_warning_and_decide_nothing() {
    let file = example("fig2-high.toml");
    let methods = "holistic-as-printed,trajectory-as-printed,trajectory-repaired";
    let table = run(["analyze", "--method", methods, &file]).ok();
    let row = table.lines().find(|line| line.starts_with("m15 ")).unwrap();
    let cells: Vec<_> = row.split_whitespace().collect();
    // The slack is that of the best bound, 6.672 ms.
    assert_eq!(
        cells[3..],
        ["11.471", "1.105", "2.335", "20.000", "13.328", "ok"],
        "{row}"
    );
    assert!(
        table.contains("\ntrajectory as printed is no bound"),
        "{table}"
    );

    let calculus = run([
        "analyze",
        "--method",
        "tfa,holistic",
        "--format",
        "csv",
        &file,
    ])
    .ok();
    assert!(
        calculus.contains(",deadline_ns,tfa_ns,ha_ns,slack_ns,"),
        "{calculus}"
    );
    assert!(
        calculus.contains("\nm4,0,h4→s1→s8→s7→h49,4,16000000,16000000,58"),
        "{calculus}"
    );
}

#[test]
fn json_has_the_keys_of_the_contract_and_more() {
    let file = example("fig2-high.toml");
    let text = run(["analyze", "--format", "json", &file]).ok();
    let value: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(value["schedulable"], true);
    assert_eq!(value["results"].as_array().unwrap().len(), 42);
    assert_eq!(
        value["results"][0],
        json!({"flow": "m1", "path": 0, "route": "h1→s1→s8→s7→h49", "prio": 7,
               "period_ns": 10_000_000, "deadline_ns": 10_000_000, "ha_ns": 1_966_480,
               "ta_ns": 1_966_480, "wcrt_ns": 1_740_400, "slack_ns": 8_259_600,
               "schedulable": true})
    );
    let links = value["links"].as_array().unwrap();
    let last = links.iter().find(|link| link["link"] == "s7>h49").unwrap();
    assert_eq!(last["overloaded_from_prio"], Value::Null);
    assert!((last["load_percent"].as_f64().unwrap() - 35.1).abs() < 0.05);

    let csv = run(["analyze", "--format", "csv", &file]).ok();
    let lines: Vec<_> = csv.lines().take(2).collect();
    assert_eq!(
        lines,
        [
            "flow,path,route,prio,period_ns,deadline_ns,ha_ns,ta_ns,wcrt_ns,slack_ns,observed_ns,verdict",
            "m1,0,h1→s1→s8→s7→h49,7,10000000,10000000,1966480,1966480,1740400,8259600,,ok",
        ]
    );
}

#[test]
fn a_file_is_read_by_its_name_or_by_its_content() {
    let toml = fs::read_to_string(example("line.toml")).unwrap();
    let table = run(["analyze", &example("line.toml")]).ok();
    assert_eq!(run_with(["analyze", "-"], &toml).ok(), table);

    let directory = tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).to_string_lossy().into_owned();
    let json = json!({
        "nodes": [{"id": "a"}, {"id": "b"}],
        "links": [{"id": "a>b", "from": "a", "to": "b", "rate_bps": 1_000_000_000}],
        "flows": [{"id": "m", "period_ns": 100_000, "wire_bytes": 1538, "paths": [["a>b"]]}],
    });
    fs::write(path("network.json"), json.to_string()).unwrap();
    let table = run(["analyze", &path("network.json")]).ok();
    assert!(
        table.contains("best µs") && table.contains("12.304"),
        "{table}"
    );
    assert_eq!(run_with(["analyze", "-"], &json.to_string()).ok(), table);

    fs::write(path("wrong.json"), &toml).unwrap();
    run(["analyze", &path("wrong.json")]).fails(2, &["wrong.json is not JSON"]);
    run_with(["analyze", "-"], "nodes = 5").fails(2, &["standard input: nodes: must be a list"]);
    run(["analyze", &path("missing.toml")]).fails(2, &["missing.toml cannot be read"]);
    run(["analyze"]).fails(2, &["<FILE>"]);
    run(["analyze", "--wcrt", "x"]).fails(2, &["cannot be used with"]);
}

#[test]
fn what_was_observed_stands_beside_the_bounds() {
    let directory = tempdir().unwrap();
    let seen = directory.path().join("seen.json");
    let file = example("fig2-high.toml");
    let results = json!({"results": [
        {"flow": "m1", "path": 0, "observed_ns": 1_732_000},
        {"flow": "m4", "path": 0, "observed_ns": 5_000_000},
    ]});
    fs::write(&seen, results.to_string()).unwrap();
    let table = run(["analyze", "--observed", seen.to_str().unwrap(), &file]).ok();
    assert!(table.contains("slack ms  observed ms  verdict"), "{table}");
    assert!(table.contains("   8.260        1.732  ok\n"), "{table}");
    assert!(
        table.contains("m4 path 0: more was observed than the bound allows"),
        "{table}"
    );

    fs::write(&seen, "{}").unwrap();
    run(["analyze", "--observed", seen.to_str().unwrap(), &file])
        .fails(2, &["seen.json: results: must be a list"]);
}

#[test]
fn pictures_are_a_page_or_a_file_of_their_own() {
    let directory = tempdir().unwrap();
    let plot = directory.path().join("plot.svg");
    let html = run([
        "analyze",
        "--format",
        "html",
        "--plot",
        plot.to_str().unwrap(),
        &example("fig2-low.toml"),
    ])
    .ok();
    assert!(
        html.contains("<h1>Response times of fig2-low</h1>"),
        "{html}"
    );
    assert!(html.contains("12 flows to 12 destinations: every deadline is kept"));
    assert_eq!(html.matches("<svg").count(), 4);
    assert!(!html.contains("http"), "the page needs nothing else");

    let svg = fs::read_to_string(&plot).unwrap();
    assert!(svg.starts_with("<svg xmlns=\"http://www.w3.org/2000/svg\""));
    assert_eq!(svg.matches("<svg").count(), 5);
    for name in ["m41", "s7&gt;h49: ", "h49"] {
        assert!(svg.contains(name), "{name} is in no picture");
    }
    let nowhere = directory.path().join("none/plot.svg");
    let run = run([
        "analyze",
        "--plot",
        nowhere.to_str().unwrap(),
        &example("fig2-low.toml"),
    ]);
    assert_eq!(run.code, Some(2));
    assert!(
        run.err.contains("plot.svg cannot be written"),
        "{}",
        run.err
    );
}

#[test]
fn an_explanation_adds_up_to_the_bound() {
    let file = example("fig2-high.toml");
    let json = run(["analyze", "--explain", "m15", "--format", "json", &file]).ok();
    let value: Value = serde_json::from_str(&json).unwrap();
    let path = &value["paths"][0];
    let parts = path["parts"].as_array().unwrap().iter();
    let sum: i64 = parts.map(|part| part["ns"].as_i64().unwrap()).sum();
    assert_eq!(Some(sum), path["wcrt_ns"].as_i64());
    assert_eq!((sum + 500) / 1000, 6672);

    let text = run(["analyze", "--explain", "m15", &file]).ok();
    assert!(
        text.starts_with("m15 h15→s2→s3→s10→s7→h49: at most 6.672 ms, deadline 20.000 ms\n"),
        "{text}"
    );
    assert!(
        text.contains("release jitter") && text.contains("s7>h49"),
        "{text}"
    );
    run(["analyze", "--explain", "x", &file])
        .fails(2, &["--explain \"x\": is not among the flows"]);
}
