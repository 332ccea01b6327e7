//! Decisions are those of an analysis from scratch, whatever came and went
//! before.

use proptest::prelude::*;
use punctual_analysis::{Admission, Reason, analyze};
use punctual_model::network::{Document, Flow, Network};

const FIG2: &str = include_str!("../../../examples/networks/fig2-high.toml");

/// Four nodes in a ring, and every way round that visits no link twice.
fn ring() -> Document {
    let nodes = ["a", "b", "c", "d"];
    let mut text = String::new();
    for node in nodes {
        text += &format!("[[nodes]]\nid = \"{node}\"\nsd_max = \"7us\"\ncopy_max = \"9us\"\n");
    }
    for (from, to) in nodes.iter().zip(nodes.iter().cycle().skip(1)) {
        text += &format!("[[links]]\nid = \"{from}{to}\"\nfrom = \"{from}\"\nto = \"{to}\"\n");
        text += "rate = \"100Mbit\"\nbe_bytes = 1538\n";
    }
    let links = ["ab", "bc", "cd", "da"];
    for (index, start) in (0..16).zip((0..4).cycle()) {
        let length = 1 + index / 4;
        let path: Vec<_> = (start..start + length).map(|k| links[k % 4]).collect();
        text += &format!("[[flows]]\nid = \"f{index}\"\nprio = {}\n", index % 3);
        text += &format!(
            "period = \"{}us\"\njitter = \"100us\"\n",
            1000 + 300 * index
        );
        text += &format!("wire_bytes = {}\npaths = [{path:?}]\n", 400 + 50 * index);
    }
    Document::from_toml(&text).expect("the ring is a network")
}

/// Every flow of a document is there or not; a step adds it, or takes it out.
fn check(document: &Document, deadlines: &[u64], steps: &[(usize, u64)]) {
    let all = Network::new(document).expect("the document is a network");
    let empty = Network {
        topology: all.topology.clone(),
        flows: Vec::new(),
    };
    let mut admission = Admission::new(empty.clone());
    let mut expected: Vec<Flow> = Vec::new();
    for (step, (index, urgency)) in steps.iter().enumerate() {
        if step % 10 == 9 {
            admission = Admission::new(admission.network().clone());
        }
        let mut flow = all.flows[index % all.flows.len()].clone();
        if let Some(place) = expected.iter().position(|known| known.id == flow.id) {
            expected.remove(place);
            assert!(admission.remove(&flow.id));
            continue;
        }
        flow.deadline = deadlines[(urgency % deadlines.len() as u64) as usize];
        let mut with = empty.clone();
        with.flows = expected.clone();
        with.flows.push(flow.clone());
        let bounds = analyze(&with);
        let kept = with.flows.iter().zip(&bounds.flows).all(|(flow, bounds)| {
            let kept = |bound: u64| bound <= flow.deadline;
            bounds.iter().all(|bounds| bounds.best.is_some_and(kept))
        });
        let accepted = admission.add(vec![flow.clone()]).is_ok();
        assert_eq!(accepted, kept, "{}", flow.id);
        if kept {
            assert_eq!(
                admission.bounds(&flow.id).as_deref(),
                bounds.flows.last().map(|b| &b[..])
            );
            expected.push(flow);
        }
    }
    assert_eq!(admission.network().flows, expected);
    assert_eq!(
        admission.loads(),
        Admission::new(admission.network().clone()).loads()
    );
    // All but some at once, as one by one.
    let out: Vec<&str> = expected.iter().map(|flow| flow.id.as_str()).collect();
    let out: Vec<&str> = out
        .into_iter()
        .skip(1)
        .step_by(2)
        .chain(["nobody"])
        .collect();
    let mut one_by_one = admission.clone();
    for id in &out[..out.len() - 1] {
        assert!(one_by_one.remove(id));
    }
    assert_eq!(admission.remove_all(&out), out.len() - 1);
    assert_eq!(admission.network(), one_by_one.network());
    assert_eq!(admission.loads(), one_by_one.loads());
    for effort in [0, u64::MAX] {
        assert_eq!(
            all_guarantees(&admission, effort),
            all_guarantees(&one_by_one, effort)
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(12) })]

    #[test]
    fn on_a_tree(steps in prop::collection::vec((0_usize..42, 0_u64..8), 40)) {
        let document = Document::from_toml(FIG2).expect("the example is a network");
        check(&document, &[300_000, 1_700_000, 2_500_000, 4_000_000, 7_000_000], &steps);
    }

    #[test]
    fn on_a_ring(steps in prop::collection::vec((0_usize..16, 0_u64..8), 40)) {
        check(&ring(), &[600_000, 1_200_000, 3_000_000], &steps);
    }
}

fn fig2() -> (Network, Vec<Flow>) {
    let document = Document::from_toml(FIG2).expect("the example is a network");
    let mut network = Network::new(&document).expect("the example is a network");
    let flows = std::mem::take(&mut network.flows);
    (network, flows)
}

#[test]
fn all_or_none() {
    let (network, mut flows) = fig2();
    let mut admission = Admission::new(network);
    admission.add(flows[..10].to_vec()).expect("there is room");
    flows[12].deadline = 1_000;
    let refusal = admission
        .add(flows[10..14].to_vec())
        .expect_err("one is too late");
    assert_eq!(
        (refusal.flow.as_str(), refusal.new),
        (flows[12].id.as_str(), true)
    );
    assert!(
        refusal.hopeless,
        "a microsecond is less than the frame takes"
    );
    assert_eq!(admission.network().flows, flows[..10]);
    admission
        .add(flows[13..].to_vec())
        .expect("the others have room");
    assert_eq!(admission.network().flows.len(), flows.len() - 3);
}

#[test]
fn a_name_is_taken_once() {
    let (network, flows) = fig2();
    let mut admission = Admission::new(network);
    let twice = vec![flows[0].clone(), flows[0].clone()];
    assert_eq!(
        admission.add(twice).map_err(|refusal| refusal.reason),
        Err(Reason::Taken)
    );
    admission.add(flows[..1].to_vec()).expect("there is room");
    let again = admission.add(flows[..1].to_vec());
    assert_eq!(again.map_err(|refusal| refusal.reason), Err(Reason::Taken));
    assert!(admission.remove(&flows[0].id) && !admission.remove(&flows[0].id));
}

#[test]
fn overload_names_the_link() {
    let (network, mut flows) = fig2();
    let mut admission = Admission::new(network);
    admission.add(flows[..5].to_vec()).expect("there is room");
    flows[5].period = 100_000;
    let refusal = admission
        .add(flows[5..6].to_vec())
        .expect_err("it is too much");
    assert!(
        matches!(refusal.reason, Reason::Overload { percent: 124.., .. }),
        "{refusal}"
    );
    assert!(
        !refusal.hopeless && refusal.to_string().contains(" loaded 12"),
        "{refusal}"
    );
}

#[test]
fn a_replacement_is_all_or_nothing() {
    let (network, flows) = fig2();
    let mut admission = Admission::new(network);
    admission.add(flows[..20].to_vec()).expect("there is room");
    let before = admission.network().clone();
    let guarantees = all_guarantees(&admission, u64::MAX);
    let mut slow = flows[30].clone();
    slow.deadline = 1_000;
    let out = [flows[3].id.as_str(), "nobody", flows[17].id.as_str()];
    admission
        .replace(&out, vec![flows[25].clone(), slow])
        .expect_err("one is too late");
    assert_eq!(admission.network(), &before);
    assert_eq!(all_guarantees(&admission, u64::MAX), guarantees);
    admission
        .replace(&out, vec![flows[25].clone()])
        .expect("there is room");
    let names: Vec<_> = admission
        .network()
        .flows
        .iter()
        .map(|flow| &flow.id)
        .collect();
    assert_eq!(names.len(), 19);
    assert_eq!(names.last(), Some(&&flows[25].id));
}

fn all_guarantees(admission: &Admission, effort: u64) -> Vec<Vec<u64>> {
    let flows = admission.network().flows.iter();
    let ids: Vec<&str> = flows.map(|flow| flow.id.as_str()).collect();
    admission.guarantees(&ids, effort)
}

#[test]
fn guarantees_are_the_closer_the_more_may_be_looked_at() {
    let (network, flows) = fig2();
    let mut admission = Admission::new(network);
    admission.add(flows.clone()).expect("there is room");
    let best = all_guarantees(&admission, u64::MAX);
    let quick = all_guarantees(&admission, 0);
    let mut between = 0;
    for ((flow, best), quick) in flows.iter().zip(best).zip(quick) {
        assert!(quick[0] <= flow.deadline, "{}", flow.id);
        let mut last = quick.clone();
        for effort in (0..32).map(|power| 1 << power) {
            let guarantee = admission.guarantees(&[&flow.id], effort).concat();
            assert!(
                best[0] <= guarantee[0] && guarantee[0] <= last[0],
                "{}: {effort}",
                flow.id
            );
            between += usize::from(best[0] < guarantee[0] && guarantee[0] < quick[0]);
            last = guarantee;
        }
        assert_eq!(last, best, "{}", flow.id);
    }
    assert!(between > 0, "segments on a flow's own path help");
    assert!(admission.guarantees(&["nobody"], 0)[0].is_empty());
}
