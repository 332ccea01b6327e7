#![no_main]

#[path = "../src/brake.rs"]
mod checks;

libfuzzer_sys::fuzz_target!(|data: &[u8]| checks::brake(data));
