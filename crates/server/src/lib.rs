//! The broker of Punctual as a library: what `punctual serve` runs, to be embedded in another program.
//!
//! ```no_run
//! use punctual_server::{Server, Source};
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
//! [`Server`] is a broker with all that its [configuration](config) asks for; it logs by `tracing`, and
//! [`Logging`] writes that to standard error. [`run`] is a broker that listens to signals, as a process
//! does. That is the whole interface: what is not in this documentation belongs to the commands of
//! `punctual`, and changes with them.
#![forbid(unsafe_code)]

mod bridge;
pub mod config;
mod error;
mod logging;
mod mesh;
#[cfg(test)]
#[path = "../../../fuzz/seeds.rs"]
mod seeds;
mod serve;

// For `punctual store`, which reads and writes flows.
#[doc(hidden)]
pub mod admission;
// For commands that show what clients have chosen.
#[doc(hidden)]
pub mod escape;
// For `punctual passwd`.
#[doc(hidden)]
pub mod files;
// For `punctual controller`, whose HTTP interface is made of the same parts.
#[doc(hidden)]
pub mod http;
// For commands that serve.
#[doc(hidden)]
pub mod panics;
// For `punctual manager`.
#[doc(hidden)]
pub mod proxy;
// For `punctual controller`.
#[doc(hidden)]
pub mod realtime;
// For `punctual store`.
#[doc(hidden)]
pub mod store;

pub use config::Config;
pub use error::Error;
pub use logging::Logging;
pub use serve::{Server, Source, run};
