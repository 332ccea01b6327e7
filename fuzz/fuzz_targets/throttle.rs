#![no_main]

#[path = "../src/throttle.rs"]
mod checks;

libfuzzer_sys::fuzz_target!(|data: &[u8]| checks::throttle(data));
