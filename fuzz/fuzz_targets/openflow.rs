#![no_main]

#[path = "../src/openflow.rs"]
mod checks;

libfuzzer_sys::fuzz_target!(|data: &[u8]| checks::openflow(data));
