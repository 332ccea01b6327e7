#![no_main]

#[path = "../src/layer.rs"]
mod checks;

libfuzzer_sys::fuzz_target!(|data: &[u8]| checks::layer(data));
