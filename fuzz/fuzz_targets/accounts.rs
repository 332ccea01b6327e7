#![no_main]

#[path = "../src/accounts.rs"]
mod checks;

libfuzzer_sys::fuzz_target!(|data: &[u8]| checks::accounts(data));
