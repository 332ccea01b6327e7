//! What reads the configuration is no part of the interface of `punctual-server`: it is taken in here.
#![no_main]

#[path = "../src/config.rs"]
mod checks;
#[path = "../../crates/server/src/config/mod.rs"]
#[allow(dead_code, unused_imports, reason = "the library uses more")]
mod config;

libfuzzer_sys::fuzz_target!(|data: &[u8]| checks::config(data));
