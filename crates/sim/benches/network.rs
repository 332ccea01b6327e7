//! Packet hops per second of the network simulator, on one core: the median of
//! five runs, and the least and the most. `cargo bench -p punctual-sim --bench network`.

#![allow(clippy::print_stdout, reason = "a benchmark prints what it measured")]

use std::time::Instant;

use punctual_model::network::{Network, NetworkError};
use punctual_sim::network::families::{Load, factory_cell, fig2, fig15, line};
use punctual_sim::network::{Chances, Drawn, Engine, Layout, Nobody};

/// Runs of each network; odd.
const ROUNDS: u64 = 5;

fn main() -> Result<(), NetworkError> {
    let networks = [
        ("line", line()),
        ("factory cell", factory_cell()),
        ("Fig. 2 High", fig2(Load::High)),
        ("Fig. 15 High", fig15(Load::High, false)),
    ];
    for (name, document) in networks {
        let network = Network::new(&document)?;
        let layout = Layout::new(&network);
        let mut engine = Engine::new(&layout);
        let chances = Chances {
            duration: 50_000_000_000,
            ..Chances::default()
        };
        let mut rates = Vec::new();
        for seed in 0..ROUNDS {
            let mut behaviour = Drawn::new(&layout, seed, chances);
            let start = Instant::now();
            engine.run(&mut behaviour, &mut Nobody);
            rates.push(engine.transmissions() as f64 / start.elapsed().as_secs_f64() / 1e6);
        }
        rates.sort_unstable_by(f64::total_cmp);
        let (median, most) = (rates[rates.len() / 2], rates[rates.len() - 1]);
        println!(
            "{name:<13} {median:6.2} million packet hops/s ({:.2} to {most:.2})",
            rates[0]
        );
    }
    Ok(())
}
