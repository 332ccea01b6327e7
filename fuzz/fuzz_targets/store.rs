#![no_main]

#[path = "../src/store.rs"]
mod checks;

libfuzzer_sys::fuzz_target!(|data: &[u8]| checks::store(data));
