//! What reads requests is no part of the interface of `punctual-server`: it is taken in here.
#![no_main]

#[path = "../../crates/server/src/http/body.rs"]
#[allow(dead_code, reason = "the library uses more")]
mod body;
#[path = "../src/http.rs"]
mod checks;
#[path = "../../crates/server/src/config/mod.rs"]
#[allow(dead_code, unused_imports, reason = "the library uses more")]
mod config;
#[path = "../../crates/server/src/http/error.rs"]
#[allow(dead_code, reason = "the library uses more")]
mod error;
#[path = "../../crates/server/src/escape.rs"]
#[allow(dead_code, reason = "the library uses more")]
mod escape;
#[path = "../../crates/server/src/http/guard.rs"]
#[allow(dead_code, reason = "the library uses more")]
mod guard;
#[path = "../../crates/server/src/http/json.rs"]
#[allow(dead_code, reason = "the library uses more")]
mod json;
#[path = "../../crates/server/src/http/query.rs"]
#[allow(dead_code, reason = "the library uses more")]
mod query;

use query::{Name, Query};

libfuzzer_sys::fuzz_target!(|data: &[u8]| checks::http(data));
