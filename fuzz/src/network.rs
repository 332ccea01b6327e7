//! What must hold for any text that should be a network: the check of the fuzz
//! target `network`, which `crates/sim/tests/replay.rs` also runs over the seeds.

use punctual_analysis::printed::{self, Floor};
use punctual_analysis::{Selection, analyze, choose_paths, contract, tfa};
use punctual_model::network::{Document, Network};
use punctual_sim::network::to_toml;

/// More is not analysed: what takes long is found by other tests.
const LARGEST: usize = 12;

/// Reads the input as JSON, as TOML and as the contract's inputs.
pub fn network(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    for read in [Document::from_json, Document::from_toml] {
        match read(text) {
            Ok(document) => written(document),
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    }
    // Refused or answered; both say so.
    if text.len() < 4_000 {
        let _ = contract::analyze_json(text).map_err(|error| error.to_string());
        let _ = contract::admit_json(text).map_err(|error| error.to_string());
    }
}

/// What is read survives being written; what is checked can be analysed.
fn written(mut document: Document) {
    let json = serde_json::to_string(&document).expect("a document is JSON");
    let again = Document::from_json(&json).expect("what was written can be read");
    match (Network::new(&document), Network::new(&again)) {
        (Ok(network), Ok(again)) => {
            assert_eq!(network, again);
            let toml = to_toml(&document);
            let again = Document::from_toml(&toml).map(|document| Network::new(&document));
            assert_eq!(again, Ok(Ok(network.clone())), "{toml}");
            if document.flows.len() <= LARGEST && document.links.len() <= LARGEST {
                analysed(&network);
            }
        }
        (network, again) => assert_eq!(network.is_err(), again.is_err()),
    }
    if document.links.len() > LARGEST || document.flows.len() > LARGEST {
        return;
    }
    for selection in [Selection::Paper, Selection::Admission] {
        if choose_paths(&mut document, &[], selection).is_ok() {
            assert!(
                document
                    .flows
                    .iter()
                    .all(|flow| flow.from.is_none() || !flow.paths.is_empty())
            );
        }
    }
}

fn analysed(network: &Network) {
    let bounds = analyze(network);
    assert_eq!(bounds.flows.len(), network.flows.len());
    for (flow, bounds) in network.flows.iter().zip(&bounds.flows) {
        assert_eq!(bounds.len(), flow.leaves.len());
        for bounds in bounds {
            // The best is at most the others, and at least what the way takes.
            let best = bounds.best.unwrap_or(u64::MAX);
            assert!(best <= bounds.holistic.unwrap_or(u64::MAX));
            assert!(best >= flow.jitter);
        }
    }
    // No bounds, or others: they answer, that is all.
    let answers = [
        tfa(network),
        printed::holistic(network),
        printed::trajectory(network, Floor::AsPrinted),
        printed::trajectory(network, Floor::Repaired),
        printed::mrt_holistic(network),
        printed::mrt_trajectory(network, Floor::AsPrinted),
    ];
    for answers in answers {
        for (flow, answers) in network.flows.iter().zip(&answers) {
            assert_eq!(answers.len(), flow.leaves.len());
        }
    }
}
