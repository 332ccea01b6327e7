//! The report of invented runs contains every table and figure, with the expected values.

use super::super::brokers::PUNCTUAL;
use super::super::queue::{QueueReport, Wait};
use super::super::results::{Bulk, Case, CoupleResult, RunResult};
use super::*;

fn run(us: u64) -> RunResult {
    let couple = |c| CoupleResult::new(c, [100, 100], vec![(us * 1000, 99), (us * 2000, 1)]);
    RunResult {
        couples: COUPLES.iter().map(couple).collect(),
        faults: Faults {
            expected: 1000,
            ..Faults::default()
        },
        ..RunResult::default()
    }
}

fn results() -> Results {
    let mut results = Results::default();
    let mut add = |experiment, broker, payload, run| {
        let case = Case {
            experiment,
            broker,
            payload,
            subscribers: 2,
        };
        results.add(&case, run);
    };
    add(Experiment::RoundTrip, PUNCTUAL, 1000, Ok(run(100)));
    add(Experiment::RoundTrip, MOSQUITTO, 1000, Ok(run(400)));
    let wait = Wait {
        of: "priority 1".to_owned(),
        messages: 10.0,
        mean_us: 3.5,
        p50_us: 3.0,
        p99_us: 9.0,
    };
    let queue = QueueReport {
        waits: vec![wait],
        median_entries: Some(1.0),
        max_entries: Some(12.0),
    };
    let queued = RunResult {
        queue: Some(queue),
        ..run(100)
    };
    add(Experiment::Queue, PUNCTUAL, 500, Ok(queued));
    add(Experiment::Idle, PUNCTUAL, 500, Ok(run(100)));
    let bulk = Bulk {
        delivered_mbit_per_s: 60.0,
        faults: Faults::default(),
    };
    let beside = RunResult {
        bulk: Some(bulk),
        ..run(150)
    };
    add(Experiment::Bulk, PUNCTUAL, 500, Ok(beside));
    add(
        Experiment::RoundTrip,
        "floor",
        1000,
        Err("it ended".to_owned()),
    );
    results
}

#[test]
fn tables_hold_medians_ratios_and_the_papers_figures() {
    let results = results();
    let machine = Machine::read();
    let report = Report {
        machine: &machine,
        setting: Setting {
            round_trip_s: 1.0,
            queue_s: 1.0,
            bulk_s: 1.0,
            warm_up_s: 0.1,
            repetitions: 1,
            payloads: vec![1000],
            bulk_payload: 1400,
            link_bit_per_s: RATE,
            scheduling: "nothing pinned".to_owned(),
        },
        brokers: Vec::new(),
        results: &results.cells,
        all: &results,
        absent: vec!["`rumqttd`: not found".to_owned()],
    };
    let text = report.markdown();
    for line in [
        "| topics | priority | punctual | mosquitto | paper: PrioMQTT | paper: MQTT |",
        "| T5, T6 | 5 | 101 ± 9.9 / 100 | 404 ± 40 / 400 | 1260 ± 200 | 6040 ± 110 |",
        "| punctual against mosquitto | 1000 B | 4.00 | 4.00 | 4.00 | 4.00 | 4.00 |",
        "| paper | 1000 B | – | 2.05 | 2.85 | 3.25 | 4.79 |",
        "| punctual, 2 subscribers | priority 1 | 10 | 3.5 | 3.0 | 9.0 |",
        "| punctual | 2 | 1 | 12 | < 1e-3 |",
        "| paper | 5 | 6 | 79 | < 1e-7 |",
        "- `rumqttd`: not found",
        "- `floor`, round trips, 1000 B: it ended",
    ] {
        assert!(text.lines().any(|l| l == line), "{line}\n{text}");
    }
    let html = report.html();
    assert_eq!(
        html.matches("<svg").count(),
        2,
        "one of curves, one of bars"
    );
    for panel in ["Fig. 8, 1000 B: punctual", "Fig. 8, 1000 B: mosquitto"] {
        assert!(html.contains(panel), "{panel}");
    }
    assert_eq!(html.matches("T5, T6 (priority 5)").count(), 1, "one legend");
    let json = serde_json::to_value(&report).unwrap();
    assert_eq!(json["cases"][0]["case"]["broker"], "punctual");
    assert_eq!(
        json["cases"][0]["runs"][0]["couples"][3]["topics"],
        "T7, T8"
    );
}

#[test]
fn nothing_lost_is_less_than_one_of_all() {
    let faults = |expected, lost| Faults {
        expected,
        lost,
        ..Faults::default()
    };
    assert_eq!(loss_ratio(&faults(10_000_000, 0)), "< 1e-7");
    assert_eq!(loss_ratio(&faults(1000, 5)), "5.0e-3");
    assert_eq!(loss_ratio(&faults(0, 0)), "–");
}
