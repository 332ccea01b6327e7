#![no_main]

#[path = "../src/datagram.rs"]
mod checks;

libfuzzer_sys::fuzz_target!(|data: &[u8]| checks::datagram(data));
