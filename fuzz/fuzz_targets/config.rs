//! The configuration is part of a program and not of a library: it is taken in here.
#![no_main]

#[path = "../src/config.rs"]
mod checks;
#[path = "../../crates/punctual/src/config/mod.rs"]
#[allow(dead_code, unused_imports, reason = "the program uses more")]
mod config;

libfuzzer_sys::fuzz_target!(|data: &[u8]| checks::config(data));
