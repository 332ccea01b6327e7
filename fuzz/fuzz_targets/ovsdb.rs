#![no_main]

#[path = "../src/ovsdb.rs"]
mod checks;

libfuzzer_sys::fuzz_target!(|data: &[u8]| checks::ovsdb(data));
