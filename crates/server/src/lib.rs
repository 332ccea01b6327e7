//! The broker of Punctual as a library: what `punctual serve` runs, to be embedded in another program.
//!
//! ```no_run
//! use punctual_server::{Server, Source, config::Arguments};
//!
//! let source = Source {
//!     file: Some("broker.toml".into()),
//!     ..Source::default()
//! };
//! let server = Server::start(source.load()?)?;
//! println!("clients connect to {}", server.urls().join(" or "));
//! server.stop();
//! # Ok::<(), punctual_server::Error>(())
//! ```
//!
//! [`Server`] is a broker with all that its [configuration](config) asks for. [`run`] is one that listens to
//! signals, as a process does. The other modules are what the commands of `punctual` need beside it.
#![forbid(unsafe_code)]

pub mod admission;
mod bridge;
pub mod config;
mod error;
pub mod escape;
pub mod files;
pub mod http;
mod logging;
mod mesh;
pub mod panics;
pub mod proxy;
pub mod realtime;
#[cfg(test)]
#[path = "../../../fuzz/seeds.rs"]
mod seeds;
mod serve;
pub mod store;

pub use error::Error;
pub use logging::Logging;
pub use serve::{Server, Source, run};
