//! In random networks: the parts of a bound add up to the bound; a flow is admitted after the
//! change that its refusal proposes, and is not admitted after a slightly smaller change.
#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests may panic; clippy knows only the tests themselves"
)]

use std::collections::BTreeMap;

use punctual_analysis::{Admission, Cause, Remedy, analyze, explain};
use punctual_model::Rng;
use punctual_model::network::{Flow, FlowEntry, Network};
use punctual_sim::network::generate;

const NETWORKS: u64 = 250;

#[test]
fn the_parts_are_the_bound() {
    let (mut paths, mut bounded, mut unexplained) = (0, 0, 0);
    for seed in 0..NETWORKS {
        let network = Network::new(&generate::random(seed)).unwrap();
        let bounds = analyze(&network).flows;
        for (flow, bounds) in network.flows.iter().zip(bounds) {
            for (path, bounds) in bounds.iter().enumerate() {
                paths += 1;
                let explanation = explain(&network, &flow.id, path);
                let bound = explanation.as_ref().map(|explanation| explanation.bound_ns);
                assert_eq!(bound, bounds.best, "seed {seed} {} {path}", flow.id);
                let Some(explanation) = explanation else {
                    continue;
                };
                let parts = &explanation.parts;
                let sum: i64 = parts.iter().map(|part| part.nanos).sum();
                assert_eq!(u64::try_from(sum), Ok(explanation.bound_ns), "seed {seed}");
                bounded += 1;
                let is_better = |cause: &Cause| *cause == Cause::Better;
                unexplained += u64::from(parts.iter().any(|part| is_better(&part.cause)));
            }
        }
    }
    println!(
        "{bounded} of {paths} ways have a bound, \
         and {unexplained} of these a part that nothing explains"
    );
    // Overloaded links have no bound.
    assert!(paths > 4 * NETWORKS && bounded > paths / 10 * 9);
    // For cyclic routes a further pass of the analysis may have lowered the bound.
    assert!(unexplained < bounded / 20, "{unexplained} of {bounded}");
}

/// A refusal: some flows of a network, and the flows that were admitted before.
struct Case {
    admission: Admission,
    flows: Vec<Flow>,
}

impl Case {
    /// Whether the flows are admitted after `change` to one of them.
    fn admits(&self, place: usize, change: impl FnOnce(&mut Flow)) -> bool {
        let mut flows = self.flows.clone();
        change(&mut flows[place]);
        self.admission.clone().add(flows).is_ok()
    }

    /// Checks that the remedy is sufficient, and that slightly less is not.
    fn check(&self, place: usize, remedy: &Remedy) {
        let links = &self.admission.network().topology.links;
        let own = &self.flows[place];
        match remedy {
            Remedy::Deadline(nanos) => {
                assert!(self.admits(place, |flow| flow.deadline = *nanos));
                assert!(!self.admits(place, |flow| flow.deadline = *nanos - 1));
            }
            Remedy::Priority(priority) => {
                assert!(self.admits(place, |flow| flow.priority = *priority));
                assert_ne!(*priority, own.priority);
            }
            Remedy::Size(percent) => {
                let shrunk = |percent: u64| {
                    self.admits(place, |flow| {
                        let hops = flow.hops.iter_mut();
                        for hop in hops.filter(|hop| links[hop.link].rate > 0) {
                            hop.cost = (hop.cost * percent / 100).max(1);
                        }
                    })
                };
                assert!(shrunk(*percent) && !shrunk(*percent + 1), "{percent} %");
            }
            Remedy::Period(nanos) => {
                assert!(self.admits(place, |flow| flow.period = *nanos));
                let step = 15 * own.period / 128 + 1;
                let less = (*nanos - step).max(own.period);
                assert!(!self.admits(place, |flow| flow.period = less));
            }
            Remedy::Path(paths) => {
                let topology = &self.admission.network().topology;
                let names = |hop: usize| links[own.hops[hop].link].id.clone();
                let server = links.iter().filter(|link| link.rate == 0);
                let entry = FlowEntry {
                    id: own.id.clone(),
                    prio: own.priority,
                    period_ns: own.period,
                    wire_bytes: Some(1),
                    fanout_node: own.fanout.map(|node| topology.nodes[node].id.clone()),
                    fanout_prio: own.fanout_priorities(),
                    cost_ns: server.map(|link| (link.id.clone(), 1)).collect(),
                    paths: paths.clone(),
                    ..FlowEntry::default()
                };
                let other = topology.flow(&entry).unwrap();
                let ends = |flow: &Flow| -> Vec<usize> {
                    let leaves = flow.leaves.iter();
                    leaves.map(|leaf| links[flow.hops[*leaf].link].to).collect()
                };
                assert_eq!(ends(&other), ends(own), "it goes to the same receivers");
                assert_eq!(links[other.hops[0].link].from, links[own.hops[0].link].from);
                let way = |flow: &Flow| flow.hops.iter().map(|hop| hop.link).collect::<Vec<_>>();
                assert_ne!(way(&other), way(own), "{}", names(0));
                // Compare sizes by the time they take on links that both flows use.
                let cost = |link: usize| {
                    let known = own.hops.iter().find(|hop| hop.link == link);
                    let nanos = |hop: &punctual_model::network::Hop| match links[hop.link].rate {
                        0 => None,
                        rate => Some(
                            hop.cost * (rate / 1_000_000) / (links[link].rate / 1_000_000).max(1),
                        ),
                    };
                    let like = || own.hops.iter().find_map(nanos);
                    known.map(|hop| hop.cost).or_else(like).unwrap_or(1)
                };
                let mut moved = own.clone();
                moved.hops.clone_from(&other.hops);
                moved.leaves.clone_from(&other.leaves);
                for hop in &mut moved.hops {
                    hop.cost = cost(hop.link);
                }
                assert!(self.admits(place, |flow| *flow = moved));
            }
            Remedy::Demote { flow, priority } => {
                let admit = |priority: u64| {
                    let mut admission = self.admission.clone();
                    let known = admission.network().flows.iter();
                    let mut other = known
                        .clone()
                        .find(|known| known.id == *flow)
                        .unwrap()
                        .clone();
                    assert!(other.priority > priority || other.priority == own.priority);
                    other.priority = priority;
                    admission.remove(flow);
                    let mut flows = self.flows.clone();
                    flows.push(other);
                    admission.add(flows).is_ok()
                };
                assert!(admit(*priority));
                assert!(*priority == own.priority || !admit(*priority + 1));
            }
        }
    }
}

fn kind(remedy: &Remedy) -> &'static str {
    match remedy {
        Remedy::Deadline(_) => "deadline",
        Remedy::Priority(_) => "priority",
        Remedy::Size(_) => "size",
        Remedy::Period(_) => "period",
        Remedy::Path(_) => "path",
        Remedy::Demote { .. } => "demote",
    }
}

#[test]
fn remedies_help_and_less_does_not() {
    let mut kinds: BTreeMap<&str, u64> = BTreeMap::new();
    let (mut refused, mut groups) = (0, 0);
    for seed in 0..NETWORKS {
        let mut rng = Rng::new(seed);
        let mut network = Network::new(&generate::random(seed)).unwrap();
        let mut flows = std::mem::take(&mut network.flows);
        for flow in &mut flows {
            flow.deadline = flow.period.saturating_mul(3);
        }
        let mut admission = Admission::new(network);
        flows.retain(|flow| admission.add(vec![flow.clone()]).is_ok());
        // One or two flows are requested again, the first with a deadline below its bound, or with
        // a shorter period.
        let group = rng.within(1..=2) as usize;
        let mut again = Vec::new();
        while again.len() < group && flows.len() > 1 {
            let place = rng.below(flows.len() as u64) as usize;
            let mut flow = flows.swap_remove(place);
            let bounds = admission.bounds(&flow.id).unwrap();
            let bound = bounds.iter().filter_map(|bound| bound.best).max().unwrap();
            if again.is_empty() {
                match rng.chance(70) {
                    true => flow.deadline = bound / 100 * rng.within(60..=99),
                    false => flow.period = (flow.period / rng.within(2..=20)).max(1),
                }
            }
            again.push(flow);
        }
        for flow in &again {
            admission.remove(&flow.id);
        }
        let case = Case {
            admission,
            flows: again,
        };
        if case.flows.is_empty() || case.admits(0, |_| {}) {
            continue;
        }
        refused += 1;
        let remedies = case.admission.remedies_of(&case.flows);
        groups += u64::from(case.flows.len() > 1 && !remedies.is_empty());
        for (place, remedy) in &remedies {
            println!("seed {seed}: {} {remedy}", case.flows[*place].id);
            *kinds.entry(kind(remedy)).or_default() += 1;
            case.check(*place, remedy);
        }
    }
    println!("{refused} refused: {kinds:?}, {groups} groups");
    assert!(
        refused > NETWORKS / 2 && groups > NETWORKS / 8,
        "{refused} {groups}"
    );
    for kind in ["deadline", "priority", "size", "period", "path", "demote"] {
        assert!(kinds.get(kind).is_some_and(|count| *count > 0), "{kind}");
    }
}
