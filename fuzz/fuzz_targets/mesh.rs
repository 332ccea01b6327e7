#![no_main]

#[path = "../src/mesh.rs"]
mod checks;

libfuzzer_sys::fuzz_target!(|data: &[u8]| checks::mesh(data));
