//! The cases of a comparison, which every broker runs.

use std::time::Duration;

use punctual_measure::load::{Pace, Scenario};
use punctual_measure::wire::Version;

/// The quantity that a case measures, which decides its table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Subject {
    /// Highest rate of messages.
    Throughput,
    /// Latency of messages at a fixed rate.
    Latency,
    /// Time from a request to its response in the factory cell.
    RoundTrip,
    /// Cost of idle connections.
    Idle,
}

/// One run of one broker.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    /// Heading of its column, unique.
    pub(crate) title: String,
    pub(crate) subject: Subject,
    pub(crate) scenario: Scenario,
    pub(crate) pace: Pace,
    pub(crate) version: Version,
    pub(crate) qos: u8,
    pub(crate) payload: usize,
    /// Whether broker and generator run under `SCHED_FIFO`.
    pub(crate) realtime: bool,
    /// Goal of our broker: least share of the floor's throughput.
    pub(crate) target: Option<f64>,
}

/// Duration and size of the runs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Extent {
    /// Measured time of throughput cases.
    pub(crate) duration: Duration,
    /// Measured time of latency and round-trip cases.
    pub(crate) paced_duration: Duration,
    pub(crate) warm_up: Duration,
    pub(crate) syscalls: Duration,
    pub(crate) connections: u32,
}

/// Draws up the cases in the order of their columns.
pub(crate) fn cases(quick: bool, payload: usize) -> Vec<Case> {
    let one = Scenario::Fan {
        publishers: 1,
        subscribers: 1,
    };
    let many_in = Scenario::Fan {
        publishers: 50,
        subscribers: 1,
    };
    let many_out = Scenario::Fan {
        publishers: 1,
        subscribers: 100,
    };
    let pairs = Scenario::Pairs(50);
    let case = |title: &str, subject, scenario: Scenario, qos| Case {
        title: title.to_owned(),
        subject,
        scenario,
        pace: scenario.default_pace(),
        version: Version::V311,
        qos,
        payload,
        realtime: false,
        target: None,
    };
    let throughput = |title: &str, scenario, qos| case(title, Subject::Throughput, scenario, qos);
    let target = |share, case: Case| Case {
        target: Some(share),
        ..case
    };
    let paced = |pace, case: Case| Case { pace, ..case };
    let realtime = |case: Case| Case {
        realtime: true,
        ..case
    };
    let factory = |bytes: usize| Case {
        payload: bytes,
        ..case(
            &format!("factory {bytes} B"),
            Subject::RoundTrip,
            Scenario::Factory,
            0,
        )
    };

    let mut cases = vec![target(0.75, throughput("1→1 Q0", one, 0))];
    if !quick {
        cases.extend([
            paced(Pace::Window(10_000), throughput("1→1 Q0 W10k", one, 0)),
            paced(Pace::FlatOut, throughput("1→1 Q0 flat out", one, 0)),
            Case {
                version: Version::V5,
                ..throughput("1→1 Q0 v5", one, 0)
            },
            throughput("1→1 Q1", one, 1),
            throughput("1→1 Q2", one, 2),
        ]);
    }
    cases.extend([
        target(0.95, throughput("50→1 Q0", many_in, 0)),
        target(0.85, throughput("1→100 Q0", many_out, 0)),
        target(0.75, throughput("50 pairs Q0", pairs, 0)),
        target(0.65, throughput("50 pairs Q1", pairs, 1)),
    ]);
    let rate = |title: &str, qos| case(title, Subject::Latency, Scenario::Rate, qos);
    cases.push(rate("5k/s Q0", 0));
    if !quick {
        cases.push(rate("5k/s Q1", 1));
        cases.push(realtime(rate("5k/s Q0 FIFO", 0)));
        cases.push(factory(100));
    }
    cases.push(factory(500));
    if !quick {
        cases.push(factory(1000));
        cases.push(realtime(Case {
            title: "factory 500 B FIFO".to_owned(),
            ..factory(500)
        }));
    }
    cases.push(case("idle", Subject::Idle, Scenario::Idle, 0));
    cases
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn titles_are_unique_and_quick_is_a_part_of_all() {
        let all = cases(false, 64);
        let titles: HashSet<_> = all.iter().map(|case| case.title.clone()).collect();
        assert_eq!(titles.len(), all.len());
        let quick = cases(true, 64);
        assert!(quick.len() < all.len());
        assert!(quick.iter().all(|case| titles.contains(&case.title)));
    }
}
