//! The controller's part of the interface: health, metrics, what there is, the
//! plan, and what a bound is made of.

use std::sync::Arc;

use axum::extract::{RawQuery, State};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use punctual_southbound::service::Observer;
use serde::Serialize;
use serde_json::json;
use tokio::sync::watch;

use super::authorization::{Access, Authorizer};
use super::error::ApiError;
use super::guard::Hosts;
use super::json::Json;
use super::metrics::{Exposition, Kind};
use super::routes::{Route, assemble};
use super::server::{Bound, Bounds, serve};
use crate::config::HttpAddress;

/// What there is, and what it takes. What is known of flows and hosts takes `read`.
#[rustfmt::skip]
fn routes() -> Vec<Route<Observer>> {
    vec![
        Route::get("/healthz", Access::Health, || async { Json(json!({"status": "ok"})) }),
        Route::get("/readyz", Access::Health, ready),
        Route::get("/metrics", Access::Open, metrics),
        Route::get("/api/v1/openapi.json", Access::Open, describe),
        Route::get("/api/v1/controller", Access::READ, status),
        Route::get("/api/v1/controller/plan", Access::READ, plan),
        Route::get("/api/v1/controller/explain", Access::READ, explain),
    ]
}

/// Opens the address and answers until told to stop.
///
/// # Errors
///
/// The address cannot be listened on.
pub async fn open(
    address: &HttpAddress,
    authorizer: &Arc<Authorizer>,
    observer: Observer,
    stop: watch::Receiver<bool>,
) -> std::io::Result<tokio::task::JoinHandle<()>> {
    let (bound, address) = Bound::open(address)?;
    let listener = bound.listen()?;
    tracing::info!("listening on {}", address.url());
    let router = assemble(routes(), authorizer, Arc::new(Hosts::new(&[]))).with_state(observer);
    Ok(tokio::spawn(serve(
        listener,
        router,
        Bounds::default(),
        stop,
    )))
}

/// The description of this part, OpenAPI 3.1.
async fn describe() -> Response {
    ([(CONTENT_TYPE, "application/json")], DOCUMENT).into_response()
}

const DOCUMENT: &str = include_str!("controller.json");

/// Whether decisions are made: the database is there and has been read.
async fn ready(State(observer): State<Observer>) -> Result<Response, ApiError> {
    if let Some(why) = observer.away() {
        return Err(ApiError::unavailable(
            format!("the database of requirements is away: {why}"),
            "what was admitted goes on; new requests wait until it is back",
        ));
    }
    Ok(Json(json!({"status": "ready"})).into_response())
}

#[derive(Serialize)]
struct Overview {
    #[serde(flatten)]
    status: punctual_controller::Status,
    counts: punctual_southbound::service::Counts,
    /// Why the database is away.
    database_away: Option<String>,
    /// The oldest first; times in ns since the start.
    notices: Vec<ControllerNotice>,
}

#[derive(Serialize)]
struct ControllerNotice {
    at_ns: u64,
    #[serde(flatten)]
    notice: punctual_controller::Notice,
}

async fn status(State(observer): State<Observer>) -> Response {
    let notices = observer.notices().into_iter();
    let overview = Overview {
        status: observer.look(punctual_controller::Controller::status),
        counts: observer.counts(),
        database_away: observer.away(),
        notices: notices
            .map(|(at, notice)| ControllerNotice {
                at_ns: at.0,
                notice,
            })
            .collect(),
    };
    Json(overview).into_response()
}

async fn plan(State(observer): State<Observer>) -> Response {
    Json(observer.look(|controller| controller.plan().clone())).into_response()
}

/// `?manager=M&flow=F`: the answer to a request, and what its bounds are made of.
async fn explain(
    State(observer): State<Observer>,
    RawQuery(query): RawQuery,
) -> Result<Response, ApiError> {
    let query = query.unwrap_or_default();
    let value = |name: &str| {
        let mut pairs = form_urlencoded::parse(query.as_bytes());
        let found = pairs.find(|(key, _)| key == name);
        found.map(|(_, value)| value.into_owned()).ok_or_else(|| {
            ApiError::value(
                name,
                "",
                "it is missing",
                "ask with ?manager=NAME&flow=NAME",
            )
        })
    };
    let (manager, flow) = (value("manager")?, value("flow")?);
    let known = observer.look(|controller| {
        let channel = controller.channel(&manager, &flow).cloned()?;
        Some((channel, controller.explain(&manager, &flow)))
    });
    let Some((channel, parts)) = known else {
        return Err(ApiError::new(
            StatusCode::NOT_FOUND,
            "nothing was answered to this request",
            "GET /api/v1/controller says how many requests there are",
        )
        .about("flow", &flow));
    };
    Ok(Json(json!({"channel": channel, "parts": parts})).into_response())
}

async fn metrics(State(observer): State<Observer>) -> String {
    let status = observer.look(punctual_controller::Controller::status);
    let counts = observer.counts();
    let mut out = Exposition::default();
    let connected = status.switches.iter().filter(|s| s.connected).count();
    for (name, help, value) in [
        (
            "punctual_controller_requests",
            "Requests in the table.",
            status.requests,
        ),
        (
            "punctual_controller_requests_admitted",
            "Requests that are admitted.",
            status.admitted,
        ),
        (
            "punctual_controller_requests_waiting",
            "Requests that wait for something to be known.",
            status.waiting,
        ),
        (
            "punctual_controller_requests_lost",
            "Requests that lost what they had.",
            status.lost,
        ),
        (
            "punctual_controller_switches",
            "Switches that are connected.",
            connected,
        ),
        (
            "punctual_controller_hosts",
            "Hosts that are known.",
            status.hosts.len(),
        ),
        (
            "punctual_controller_database_up",
            "Whether the database of requirements is there.",
            usize::from(observer.away().is_none()),
        ),
    ] {
        out.one(name, Kind::Gauge, help, value);
    }
    for (name, help, value) in [
        (
            "punctual_controller_asked_total",
            "Requests that were made or changed.",
            counts.requests,
        ),
        (
            "punctual_controller_withdrawn_total",
            "Requests that were withdrawn.",
            counts.withdrawn,
        ),
        (
            "punctual_controller_answers_total",
            "Answers that were written.",
            counts.answers,
        ),
        (
            "punctual_controller_messages_sent_total",
            "Messages to switches.",
            counts.sent,
        ),
        (
            "punctual_controller_messages_received_total",
            "Messages from switches.",
            counts.received,
        ),
        (
            "punctual_controller_switches_lost_total",
            "Times that a switch went away.",
            counts.switches_down,
        ),
        (
            "punctual_controller_guarantees_lost_total",
            "Times that a flow lost its guarantee.",
            counts.lost,
        ),
        (
            "punctual_controller_trouble_total",
            "Times that a switch refused something or was silent.",
            counts.trouble,
        ),
    ] {
        out.one(name, Kind::Counter, help, value);
    }
    out.one(
        "punctual_controller_longest_decision_seconds",
        Kind::Gauge,
        "Longest time that one batch of events took.",
        counts.longest_ns as f64 / 1e9,
    );
    out.family(
        "punctual_controller_link_guaranteed_ratio",
        Kind::Gauge,
        "Share of a link that is reserved for guaranteed flows.",
    );
    for link in &status.links {
        out.sample(&[("link", &link.name)], link.guaranteed);
    }
    out.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_description_says_what_each_path_takes() {
        let document: serde_json::Value = serde_json::from_str(DOCUMENT).unwrap();
        let paths = document["paths"].as_object().unwrap();
        assert_eq!(paths.len(), routes().len());
        for route in routes() {
            let described = &paths[route.path][&route.method.to_string().to_lowercase()];
            assert_eq!(described["x-access"], route.access.name(), "{}", route.path);
        }
    }
}
