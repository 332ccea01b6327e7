#![no_main]

use punctual_net::{rehearsal, tls};

#[path = "../src/quic.rs"]
mod checks;

libfuzzer_sys::fuzz_target!(|data: &[u8]| checks::quic(data));
