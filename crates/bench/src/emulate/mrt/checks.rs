//! Checks that each case has to pass on any machine: they compare measured values with each other,
//! never with absolute times. Pure.

use serde::Serialize;

use super::run::CaseResult;
use super::scenario::Series;
use super::tally::Row;

/// Expected range of the ratio of multicast to unicast bytes on the link between edge networks:
/// multicast sends one copy where unicast sends two.
const ONE_OF_TWO: [f64; 2] = [0.45, 0.55];

/// The link that all copies for other edge networks cross, and the brokers behind this link.
const TRUNK: &str = "s1>s4";
const REMOTE: [&str; 2] = ["h10", "h15"];

/// Topics of edge network A: `beta` has a higher priority than `alpha`.
const URGENT: &str = "beta-a";
const OTHER: &str = "alpha-a";

/// A check and its result.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Check {
    pub(super) setting: String,
    pub(super) what: String,
    /// The measured values, as text.
    pub(super) found: String,
    pub(super) passed: bool,
}

/// All checks of the cases of one setting; checks whose cases were not run are left out.
pub(super) fn of(cases: &[CaseResult]) -> Vec<Check> {
    let mut checks = Vec::new();
    let mut settings: Vec<&str> = cases.iter().map(|case| case.setting.as_str()).collect();
    settings.dedup();
    for setting in settings {
        let of = |series: Series| {
            let mut cases = cases.iter();
            cases.find(|case| case.setting == setting && case.series == series)
        };
        let mut add = |what: String, (passed, found): (bool, String)| {
            checks.push(Check {
                setting: setting.to_owned(),
                what,
                found,
                passed,
            });
        };
        let all = [Series::MrtMqtt, Series::DmMqtt, Series::Mqtt].map(of);
        if let [Some(mrt), Some(dm), Some(mqtt)] = all {
            for broker in REMOTE {
                let what = format!("p99 of {URGENT} at {broker}: MRT-MQTT < DM-MQTT < MQTT");
                let values = [mrt, dm, mqtt].map(|case| p99(case, URGENT, broker));
                add(what, ascending(values, true));
            }
        }
        if let Some(mrt) = of(Series::MrtMqtt) {
            for broker in ["h5", "h10", "h15"] {
                let what = format!("p99 with MRT-MQTT at {broker}: {URGENT} <= {OTHER}");
                let values = [URGENT, OTHER].map(|topic| p99(mrt, topic, broker));
                add(what, ascending(values, false));
            }
            let what = "no delay above its bound but where the machine lost the time".to_owned();
            add(what, kept(mrt));
            let what = "every path was measured".to_owned();
            let [seen, paths] = mrt.tally.paths;
            add(what, (seen == paths, format!("{seen} of {paths}")));
        }
        for series in [Series::MrtMqtt, Series::DmMqtt] {
            if let (Some(group), Some(mqtt)) = (of(series), of(Series::Mqtt)) {
                let what = format!(
                    "{TRUNK} carries one copy with {} where it carries two with mqtt",
                    series.name()
                );
                add(what, saving(group, mqtt));
            }
        }
    }
    checks
}

fn row<'a>(case: &'a CaseResult, topic: &str, broker: &str) -> Option<&'a Row> {
    let mut rows = case.tally.rows.iter();
    rows.find(|row| row.topic == topic && row.broker == broker)
}

/// The 99th percentile of the delays of a topic at a broker, µs.
fn p99(case: &CaseResult, topic: &str, broker: &str) -> Option<f64> {
    Some(row(case, topic, broker)?.delay?.p99_us)
}

/// Whether all values are present and in ascending order; `strictly` excludes equal values.
fn ascending<const N: usize>(values: [Option<f64>; N], strictly: bool) -> (bool, String) {
    let in_order = values.windows(2).all(|pair| match (pair[0], pair[1]) {
        (Some(first), Some(second)) => first < second || (!strictly && first == second),
        _ => false,
    });
    let shown = values.map(|value| value.map_or("-".to_owned(), |us| format!("{us:.0}")));
    (in_order, format!("{} us", shown.join(", ")))
}

fn kept(case: &CaseResult) -> (bool, String) {
    let above = case.tally.above;
    let unexplained = above.count - above.explained;
    let found = format!(
        "{} of {} above, {} of them explained by {} gaps of the machine of at most {:.1} ms; the \
         worst other one by {:.0} us",
        above.count,
        above.of,
        above.explained,
        case.tally.gaps,
        case.tally.longest_gap as f64 / 1e6,
        above.unexplained_by as f64 / 1e3
    );
    (above.of > 0 && unexplained == 0, found)
}

/// Bytes on `link` for each published message, counted by its arrivals at `brokers`.
pub(super) fn bytes_for_a_message(case: &CaseResult, link: &str, brokers: &[&str]) -> Option<f64> {
    let bytes = case.links.get(link)?.declared;
    let rows = case.tally.rows.iter();
    let rows = rows.filter(|row| brokers.contains(&row.broker.as_str()) && is_of_a(row));
    let seen: u64 = rows.map(|row| row.seen).sum();
    (seen > 0).then(|| bytes as f64 * brokers.len() as f64 / seen as f64)
}

/// Whether edge network A published the row's messages; the trunk carries no others in this
/// direction.
fn is_of_a(row: &Row) -> bool {
    row.topic.ends_with("-a")
}

fn saving(group: &CaseResult, mqtt: &CaseResult) -> (bool, String) {
    let of = |case| bytes_for_a_message(case, TRUNK, &REMOTE);
    let (Some(group), Some(mqtt)) = (of(group), of(mqtt)) else {
        return (false, "nothing came".to_owned());
    };
    let ratio = group / mqtt.max(1.0);
    let found = format!("{group:.0} and {mqtt:.0} bytes a message, ratio {ratio:.2}");
    ((ONE_OF_TWO[0]..=ONE_OF_TWO[1]).contains(&ratio), found)
}

#[cfg(test)]
mod tests {
    use super::super::counters::{Carried, Links};
    use super::super::tally::{Above, TallyResult};
    use super::*;
    use punctual_measure::load::Latency;

    fn case(series: Series, p99: impl Fn(&str) -> f64, trunk: u64) -> CaseResult {
        let places = [URGENT, OTHER]
            .into_iter()
            .flat_map(|topic| ["h5", "h10", "h15"].map(|broker| (topic, broker)));
        let rows = places.map(|(topic, broker)| Row {
            topic: topic.to_owned(),
            broker: broker.to_owned(),
            written: 10,
            seen: 10,
            delay: Some(Latency {
                p99_us: p99(topic),
                ..Latency::default()
            }),
            bound: Some(1),
            holistic: None,
            trajectory: None,
            printed_holistic: None,
            printed_trajectory: None,
            deadline: 1,
        });
        let carried = Carried {
            port: 0,
            declared: trunk,
        };
        CaseResult {
            setting: "low".to_owned(),
            series,
            repeats: 1,
            tally: TallyResult {
                rows: rows.collect(),
                above: Above {
                    of: 60,
                    ..Above::default()
                },
                paths: [6, 6],
                written: 20,
                ..TallyResult::default()
            },
            links: Links::from([(TRUNK.to_owned(), carried)]),
            background: Vec::new(),
            stopped: std::collections::BTreeMap::new(),
            idle: None,
            set_up_ms: 0,
            took_s: 0.0,
        }
    }

    fn cases() -> [CaseResult; 3] {
        [
            case(Series::Mqtt, |_| 30.0, 60_000),
            case(Series::DmMqtt, |_| 20.0, 30_000),
            case(
                Series::MrtMqtt,
                |topic| if topic == URGENT { 5.0 } else { 10.0 },
                30_000,
            ),
        ]
    }

    fn failed(cases: &[CaseResult]) -> Vec<String> {
        let failed = of(cases).into_iter().filter(|check| !check.passed);
        failed.map(|check| check.what).collect()
    }

    #[test]
    fn what_the_paper_says_passes_and_each_exception_fails() {
        let cases = cases();
        assert_eq!((of(&cases).len(), failed(&cases)), (9, Vec::new()));
        let [mqtt, dm, mrt] = cases;
        let slow = case(Series::MrtMqtt, |_| 25.0, 30_000);
        assert_eq!(failed(&[mqtt.clone(), dm.clone(), slow]).len(), 2);
        let wrong = case(Series::MrtMqtt, |topic| topic.len() as f64, 30_000);
        // Each delay is the length of the topic's name, and `alpha-a` is longer than `beta-a`.
        assert!(failed(&[mqtt.clone(), dm.clone(), wrong]).is_empty());
        let wrong = case(Series::MrtMqtt, |topic| 10.0 - topic.len() as f64, 30_000);
        assert_eq!(failed(&[wrong]).len(), 3);
        let twice = case(Series::DmMqtt, |_| 20.0, 60_000);
        assert_eq!(failed(&[mqtt.clone(), twice, mrt.clone()]).len(), 1);
        let mut late = mrt.clone();
        late.tally.above.count = 2;
        late.tally.above.explained = 1;
        assert_eq!(failed(&[mqtt.clone(), dm.clone(), late]).len(), 1);
        let mut blind = mrt;
        blind.tally.paths = [5, 6];
        assert_eq!(failed(&[mqtt, dm, blind]), ["every path was measured"]);
    }
}
