#![no_main]

#[path = "../src/network.rs"]
mod checks;

libfuzzer_sys::fuzz_target!(|data: &[u8]| checks::network(data));
