#![no_main]

#[path = "../src/admission.rs"]
mod checks;

libfuzzer_sys::fuzz_target!(|data: &[u8]| checks::admission(data));
