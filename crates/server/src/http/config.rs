//! `GET /api/v1/config`: the values that are in force.
//!
//! No value is a secret: passwords and keys are in files, of which the
//! configuration has the names.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError};

use axum::extract::State;
use axum::http::Uri;
use serde::Serialize;

use super::App;
use super::error::ApiError;
use super::json::Json;
use super::query::Query;
use crate::config::Config;

/// The configuration in force.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Values {
    /// Values as TOML by the full names of their keys. Keys without value are
    /// left out.
    values: BTreeMap<String, String>,
    /// Keys that were changed since the start and wait for the next one.
    restart_needed: Vec<String>,
}

impl Values {
    /// What the broker was started with.
    pub(super) fn started(config: &Config) -> Self {
        Self {
            values: config.values().into_iter().collect(),
            restart_needed: Vec::new(),
        }
    }

    /// What holds after a reload: new values, and old ones of keys that need a
    /// restart. With other addresses no listener is changed.
    pub(super) fn reloaded(started: &Config, config: &Config) -> Self {
        let restart_needed = started.restart_needed(config);
        let is_listener = |key: &str| key.starts_with("listener.");
        let other_listeners = restart_needed.iter().any(|key| is_listener(key));
        let stays =
            |key: &String| restart_needed.contains(key) || (other_listeners && is_listener(key));
        let new = config.values().into_iter().filter(|(key, _)| !stays(key));
        let old = started.values().into_iter().filter(|(key, _)| stays(key));
        Self {
            values: new.chain(old).collect(),
            restart_needed,
        }
    }
}

pub(super) async fn get(State(app): State<Arc<App>>, uri: Uri) -> Result<Json<Values>, ApiError> {
    Query::new(&uri).finish()?;
    let values = app.config.read().unwrap_or_else(PoisonError::into_inner);
    Ok(Json(values.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Auto, Limit};

    #[test]
    fn a_reload_shows_what_holds_and_what_waits() {
        let started = Config::default();
        let mut config = started.clone();
        config.limits.max_sessions = Limit::At(5);
        config.server.shards = Auto::Fixed(3);
        let values = Values::reloaded(&started, &config);
        assert_eq!(values.values["limits.max_sessions"], "5");
        assert_eq!(values.values["server.shards"], "\"auto\"");
        assert_eq!(values.restart_needed, ["server.shards"]);
    }

    #[test]
    fn with_other_addresses_listeners_stay_as_they_are() {
        let started = Config::default();
        let mut config = started.clone();
        config.listeners[0].address.port = 1884;
        config.listeners[0].proxy_protocol = true;
        let values = Values::reloaded(&started, &config);
        assert_eq!(values.values["listener.0.proxy_protocol"], "false");
        assert!(values.values["listener.0.address"].ends_with(":1883\""));
        assert_eq!(values.restart_needed, ["listener.0.address"]);
    }
}
