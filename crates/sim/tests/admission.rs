//! In random networks, decisions equal those of an analysis from scratch, whatever flows were
//! added, removed and replaced before, one by one and in groups; and promised bounds are safe.
//!
//! `PUNCTUAL_ADMISSION=5000` runs that many networks.
#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests may panic; clippy knows only the tests themselves"
)]

use punctual_analysis::{Admission, Reason, analyze};
use punctual_model::Rng;
use punctual_model::network::{Flow, Network};
use punctual_sim::network::generate;

const STEPS: usize = 12;

/// Numbers of events, so that a test in which nothing happened fails.
#[derive(Debug, Default)]
struct Count {
    accepted: u64,
    refused: u64,
    groups: u64,
    replaced: u64,
    promises: u64,
}

struct Run {
    all: Vec<Flow>,
    empty: Network,
    /// The flows that should be admitted now.
    expected: Vec<Flow>,
    admission: Admission,
    rng: Rng,
}

impl Run {
    fn new(seed: u64) -> Self {
        let mut network = Network::new(&generate::random(seed)).unwrap();
        let mut rng = Rng::new(seed);
        let mut all = std::mem::take(&mut network.flows);
        for flow in &mut all {
            let quarters = rng.within(2..=16);
            flow.deadline = (flow.period / 4).saturating_mul(quarters).max(1);
        }
        Self {
            admission: Admission::new(network.clone()),
            empty: network,
            all,
            expected: Vec::new(),
            rng,
        }
    }

    /// Returns up to three flows that are admitted, or up to three that are not.
    fn some(&mut self, admitted: bool) -> Vec<Flow> {
        let is_in = |flow: &&Flow| self.expected.iter().any(|known| known.id == flow.id);
        let mut from: Vec<_> = self
            .all
            .iter()
            .filter(|flow| is_in(flow) == admitted)
            .collect();
        let wanted = self.rng.within(1..=3) as usize;
        while from.len() > wanted {
            let out = self.rng.below(from.len() as u64) as usize;
            from.swap_remove(out);
        }
        from.into_iter().cloned().collect()
    }

    fn step(&mut self, count: &mut Count) {
        if self.rng.chance(10) {
            // Rebuild the analysis from the admitted flows.
            self.admission = Admission::new(self.admission.network().clone());
        }
        let new = self.some(false);
        let out: Vec<String> = match self.rng.below(10) {
            0..2 => {
                for flow in self.some(true) {
                    assert!(self.admission.remove(&flow.id));
                    self.expected.retain(|known| known.id != flow.id);
                }
                return;
            }
            2..5 => self.some(true).into_iter().map(|flow| flow.id).collect(),
            _ => Vec::new(),
        };
        let mut after = self.expected.clone();
        after.retain(|flow| !out.contains(&flow.id));
        after.extend(new.iter().cloned());
        let kept = is_in_time(&self.with(&after));
        let before = self.admission.network().clone();
        let (groups, replaces) = (new.len() > 1, !out.is_empty());
        let ids: Vec<&str> = out.iter().map(String::as_str).collect();
        let decision = match replaces {
            true => self.admission.replace(&ids, new),
            false => self.admission.add(new),
        };
        assert_eq!(decision.is_ok(), kept, "{decision:?}");
        match decision {
            Ok(()) => {
                self.expected = after;
                count.accepted += 1;
                count.groups += u64::from(groups);
                count.replaced += u64::from(replaces);
            }
            Err(refusal) => {
                assert_ne!(refusal.reason, Reason::Taken);
                assert_eq!(*self.admission.network(), before);
                count.refused += 1;
            }
        }
    }

    fn with(&self, flows: &[Flow]) -> Network {
        Network {
            topology: self.empty.topology.clone(),
            flows: flows.to_vec(),
        }
    }

    /// The admitted flows are the expected ones; promised bounds are no less than the best bounds,
    /// at any effort, and no more than deadlines.
    fn check(&mut self, count: &mut Count) {
        assert_eq!(self.admission.network().flows, self.expected);
        let bounds = analyze(&self.with(&self.expected));
        let ids: Vec<&str> = self.expected.iter().map(|flow| flow.id.as_str()).collect();
        let effort = 1 << self.rng.below(12);
        for effort in [0, effort, u64::MAX] {
            let promises = self.admission.guarantees(&ids, effort);
            for ((flow, bounds), promises) in self.expected.iter().zip(&bounds.flows).zip(&promises)
            {
                assert_eq!(bounds.len(), promises.len());
                for (bounds, promise) in bounds.iter().zip(promises) {
                    let best = bounds.best.unwrap_or(u64::MAX);
                    assert!(
                        (best..=flow.deadline).contains(promise),
                        "{} {best} {promise}",
                        flow.id
                    );
                    assert!(effort < u64::MAX || *promise == best, "{}", flow.id);
                    count.promises += 1;
                }
            }
        }
        if let Some((flow, bounds)) = self.expected.first().zip(bounds.flows.first()) {
            assert_eq!(self.admission.bounds(&flow.id).as_ref(), Some(bounds));
        }
    }
}

fn is_in_time(network: &Network) -> bool {
    let bounds = analyze(network);
    let mut flows = network.flows.iter().zip(&bounds.flows);
    flows.all(|(flow, bounds)| {
        let in_time = |bound: u64| bound <= flow.deadline;
        bounds.iter().all(|bounds| bounds.best.is_some_and(in_time))
    })
}

#[test]
fn decisions_are_those_of_an_analysis_from_scratch() {
    let wished = std::env::var("PUNCTUAL_ADMISSION").ok();
    let networks = wished.and_then(|wished| wished.parse().ok()).unwrap_or(100);
    let mut count = Count::default();
    for seed in 0..networks {
        println!("seed {seed}");
        let mut run = Run::new(seed);
        for _ in 0..STEPS {
            run.step(&mut count);
            run.check(&mut count);
        }
    }
    println!("{count:?}");
    assert!(
        count.accepted > 2 * networks && count.refused > networks,
        "{count:?}"
    );
    assert!(
        count.groups > networks / 2 && count.replaced > networks / 4,
        "{count:?}"
    );
    assert!(count.promises > 20 * networks, "{count:?}");
}
