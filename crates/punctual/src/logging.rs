//! The log: events to standard error, as text with the time or as JSON.
//!
//! Everything is written by the thread that logs it, so nothing that handles
//! messages may log; it counts instead. The level can change while running.

use std::env;
use std::io::{self, IsTerminal as _};

use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::{SubscriberInitExt as _, TryInitError};
use tracing_subscriber::{Layer as _, Registry, fmt, reload};

use crate::config::{Log, LogFormat, LogLevel};

/// Changes the level of the running log.
#[derive(Clone, Debug)]
pub(crate) struct Logging(reload::Handle<LevelFilter, Registry>);

impl Logging {
    /// Starts the log.
    ///
    /// # Errors
    ///
    /// It was started before.
    pub(crate) fn start(log: &Log) -> Result<Self, TryInitError> {
        let (filter, handle) = reload::Layer::new(filter(log.level));
        let colour = io::stderr().is_terminal() && env::var_os("NO_COLOR").is_none();
        let text = fmt::layer().with_writer(io::stderr).with_ansi(colour);
        let layer = match log.format {
            LogFormat::Text => text.with_target(false).boxed(),
            LogFormat::Json => text.json().flatten_event(true).boxed(),
        };
        tracing_subscriber::registry()
            .with(filter)
            .with(layer)
            .try_init()?;
        Ok(Self(handle))
    }

    /// Sets the level from now on, for all threads.
    pub(crate) fn set_level(&self, level: LogLevel) {
        // This fails only when the subscriber is gone, and with it the log.
        let _ = self.0.reload(filter(level));
    }
}

fn filter(level: LogLevel) -> LevelFilter {
    match level {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Trace => LevelFilter::TRACE,
    }
}
