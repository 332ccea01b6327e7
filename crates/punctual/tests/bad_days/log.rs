//! The log cannot be written: its disk is full, or nobody takes it any more.

use std::fs::OpenOptions;
use std::io::pipe;
use std::process::Stdio;

use crate::broker::{Broker, Setup};
use crate::client::Pair;

/// Everything that is worth a line, at the level that has a line for most.
const TALKATIVE: &str = "[log]\nlevel = \"trace\"\n";

fn serves_all_the_same(log: Stdio) {
    let broker = Broker::start(Setup {
        config: TALKATIVE,
        log: Some(log),
        ..Setup::default()
    });
    let mut pair = Pair::new(&broker, "early");
    for round in 0..20 {
        pair.exchange();
        Pair::new(&broker, &format!("round{round}")).exchange();
    }
    assert!(broker.stop(), "it ends in good order");
}

#[test]
fn the_disk_is_full() {
    let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
    serves_all_the_same(full.into());
}

#[test]
fn the_reader_of_the_log_is_gone() {
    let (reader, writer) = pipe().unwrap();
    drop(reader);
    serves_all_the_same(writer.into());
}
