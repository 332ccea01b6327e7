//! Packet hops per second of the network simulator, on one core.

#![allow(clippy::print_stdout, reason = "a benchmark prints what it measured")]

use std::time::Instant;

use punctual_model::network::{Network, NetworkError};
use punctual_sim::network::families::{Load, factory_cell, fig2, fig15, line};
use punctual_sim::network::{Chances, Drawn, Engine, Layout, Nobody};

/// Best of so many: others use the machine, too.
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
        let mut best = 0.0_f64;
        for seed in 0..ROUNDS {
            let mut behaviour = Drawn::new(&layout, seed, chances);
            let start = Instant::now();
            engine.run(&mut behaviour, &mut Nobody);
            let rate = engine.transmissions() as f64 / start.elapsed().as_secs_f64();
            best = best.max(rate);
        }
        println!("{name:<13} {:6.2} million packet hops/s", best / 1e6);
    }
    Ok(())
}
