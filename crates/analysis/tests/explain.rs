//! Bounds explain themselves, and refusals say what helps.

use punctual_analysis::{Admission, Cause, Remedy, analyze, explain};
use punctual_model::network::{Document, Network};

fn example(text: &str) -> Network {
    let document = Document::from_toml(text).expect("the example is TOML");
    Network::new(&document).expect("the example is a network")
}

fn examples() -> [Network; 3] {
    [
        example(include_str!("../../../examples/networks/fig2-medium.toml")),
        example(include_str!("../../../examples/networks/fig15-low.toml")),
        example(include_str!("../../../examples/networks/factory-cell.toml")),
    ]
}

#[test]
fn the_parts_are_the_bound() {
    for network in examples() {
        let bounds = analyze(&network);
        for (flow, bounds) in network.flows.iter().zip(bounds.flows) {
            for (path, bounds) in bounds.iter().enumerate() {
                let explanation = explain(&network, &flow.id, path).expect("it has a bound");
                assert_eq!(Some(explanation.bound_ns), bounds.best);
                let sum: i64 = explanation.parts.iter().map(|part| part.nanos).sum();
                assert_eq!(u64::try_from(sum), Ok(explanation.bound_ns));
                // Little is left that nothing explains.
                let better = explanation
                    .parts
                    .iter()
                    .filter(|part| part.cause == Cause::Better);
                assert_eq!(better.count(), 0, "{} {path}", flow.id);
            }
        }
    }
}

#[test]
fn what_meets_the_frame_is_named() {
    let [network, ..] = examples();
    let explanation = explain(&network, "m1", 0).expect("it has a bound");
    let of = |cause: &Cause| {
        let parts = explanation.parts.iter().filter(|part| part.cause == *cause);
        parts.map(|part| part.nanos).sum::<i64>()
    };
    assert_eq!(of(&Cause::ReleaseJitter), 400_000);
    assert_eq!(
        of(&Cause::Transmission),
        123_040 * explanation.segments() as i64
    );
    assert!(
        explanation
            .parts
            .iter()
            .any(|part| matches!(part.cause, Cause::Same { .. }))
    );
    assert!(explain(&network, "m1", 1).is_none() && explain(&network, "nobody", 0).is_none());
}

#[test]
fn remedies_help() {
    let [network, ..] = examples();
    let mut late = network.flows[0].clone();
    late.id = "late".into();
    late.deadline = 1_000_000;
    let mut admission = Admission::new(network);
    admission
        .add(vec![late.clone()])
        .expect_err("it is too late");
    let remedies = admission.remedies(&late);
    let [Remedy::Deadline(deadline), ..] = remedies[..] else {
        panic!("{remedies:?} has no deadline");
    };
    assert!(deadline > late.deadline, "{remedies:?}");
    assert_eq!(
        remedies[0]
            .to_string()
            .split(' ')
            .take(3)
            .collect::<Vec<_>>(),
        ["a", "deadline", "of"]
    );
    // One nanosecond less does not help.
    late.deadline = deadline - 1;
    admission
        .add(vec![late.clone()])
        .expect_err("it is still too late");
    late.deadline = deadline;
    admission.add(vec![late.clone()]).expect("it helps");
    assert_eq!(
        admission.remedies(&admission.network().flows[3].clone()),
        []
    );
}
