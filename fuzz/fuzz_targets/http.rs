//! The HTTP interface is part of a program and not of a library: what reads requests is taken in here.
#![no_main]

#[path = "../../crates/punctual/src/http/body.rs"]
#[allow(dead_code, reason = "the program uses more")]
mod body;
#[path = "../src/http.rs"]
mod checks;
#[path = "../../crates/punctual/src/config/mod.rs"]
#[allow(dead_code, unused_imports, reason = "the program uses more")]
mod config;
#[path = "../../crates/punctual/src/http/error.rs"]
#[allow(dead_code, reason = "the program uses more")]
mod error;
#[path = "../../crates/punctual/src/escape.rs"]
#[allow(dead_code, reason = "the program uses more")]
mod escape;
#[path = "../../crates/punctual/src/http/guard.rs"]
#[allow(dead_code, reason = "the program uses more")]
mod guard;
#[path = "../../crates/punctual/src/http/json.rs"]
#[allow(dead_code, reason = "the program uses more")]
mod json;
#[path = "../../crates/punctual/src/http/query.rs"]
#[allow(dead_code, reason = "the program uses more")]
mod query;

use query::{Name, Query};

libfuzzer_sys::fuzz_target!(|data: &[u8]| checks::http(data));
