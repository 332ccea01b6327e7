//! `/api/v1/retained`: retained messages, and removing them.
//!
//! They are read from what the shards share, piece by piece under its lock,
//! without asking a shard. Pages are bounded in messages and in bytes.

use std::sync::Arc;

use axum::extract::State;
use axum::http::{StatusCode, Uri};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use punctual_broker::{Budget, Message, Nanos, RetainedCursor};
use punctual_codec::topic;
use serde::Serialize;
use tokio::task::yield_now;

use super::App;
use super::error::ApiError;
use super::json::Json;
use super::page::PAGE_BYTES;
use super::query::{Name, Query, check_topic};

/// Payloads above this size are left out.
const PAYLOAD: usize = 1 << 20;
/// Work of one search under the lock, see [`Budget`].
const SEARCH: u64 = 4096;

/// A retained message.
#[derive(Debug, Serialize)]
pub(super) struct Retained {
    topic: String,
    qos: u8,
    payload_bytes: usize,
    /// In Base64; absent if it is too large to be shown.
    payload: Option<String>,
    /// The payload again, if it is text.
    text: Option<String>,
    /// Until it expires; absent: never.
    expires_seconds: Option<u64>,
}

impl Retained {
    fn new(message: &Message, now: Nanos) -> Self {
        let payload = message.payload();
        let shown = (payload.len() <= PAYLOAD).then_some(payload);
        let text = shown.and_then(|payload| std::str::from_utf8(payload).ok());
        Self {
            topic: message.topic().to_owned(),
            qos: message.qos as u8,
            payload_bytes: payload.len(),
            payload: shown.map(|payload| STANDARD.encode(payload)),
            text: text.map(str::to_owned),
            expires_seconds: (message.expires < Nanos::MAX)
                .then(|| (message.expires - now).as_secs_ceil()),
        }
    }
}

/// A page of retained messages.
#[derive(Serialize)]
pub(super) struct Page {
    messages: Vec<Retained>,
    /// What `after` is for the next page.
    next: Option<String>,
}

/// `GET /api/v1/retained`, sorted by topic.
pub(super) async fn list(State(app): State<Arc<App>>, uri: Uri) -> Result<Json<Page>, ApiError> {
    let mut query = Query::new(&uri);
    let limit = query.limit()?;
    let after = query.take("after")?;
    let filter = query.filter()?.unwrap_or_else(|| "#".into());
    query.finish()?;
    if let (Some(_), _) = topic::split_share(&filter) {
        return Err(ApiError::value(
            "filter",
            &filter,
            "a shared subscription is sent no retained messages",
            "leave out $share and the name",
        ));
    }
    let now = app.clock.now();
    let (messages, more) = collect(&app, &filter, after.as_deref(), limit, now).await;
    let next = messages.last().filter(|_| more);
    Ok(Json(Page {
        next: next.map(|last| last.topic().to_owned()),
        messages: messages
            .iter()
            .map(|message| Retained::new(message, now))
            .collect(),
    }))
}

/// The next messages after the topic `after`, and whether more follow.
async fn collect(
    app: &App,
    filter: &str,
    after: Option<&str>,
    limit: usize,
    now: Nanos,
) -> (Vec<Arc<Message>>, bool) {
    let mut from = after.map(RetainedCursor::after).unwrap_or_default();
    let (mut found, mut bytes) = (Vec::new(), 0);
    loop {
        // One more shows whether there is one.
        let room = limit + 1 - found.len();
        let mut budget = Budget::new(SEARCH);
        let page = app
            .directory
            .retained_page(filter, &from, room, &mut budget, now);
        let (messages, next) = page;
        for message in messages {
            bytes += message.topic().len() + message.payload().len().min(PAYLOAD);
            if found.len() == limit || (bytes > PAGE_BYTES && !found.is_empty()) {
                return (found, true);
            }
            found.push(message);
        }
        match next {
            Some(next) => from = next,
            None => return (found, false),
        }
        yield_now().await;
    }
}

/// `GET /api/v1/retained/{topic}`.
pub(super) async fn get(
    State(app): State<Arc<App>>,
    Name(topic): Name,
    uri: Uri,
) -> Result<Json<Retained>, ApiError> {
    Query::new(&uri).finish()?;
    check_topic("topic", &topic)?;
    let now = app.clock.now();
    let (from, mut budget) = (RetainedCursor::default(), Budget::new(SEARCH));
    let page = app
        .directory
        .retained_page(&topic, &from, 1, &mut budget, now);
    match page.0.first() {
        Some(message) => Ok(Json(Retained::new(message, now))),
        None => Err(unknown(&topic)),
    }
}

/// The message that was removed.
#[derive(Serialize)]
pub(super) struct Removed {
    topic: String,
}

/// `DELETE /api/v1/retained/{topic}`. Subscribers are not told: they have had
/// the message.
pub(super) async fn delete(
    State(app): State<Arc<App>>,
    Name(topic): Name,
    uri: Uri,
) -> Result<Json<Removed>, ApiError> {
    Query::new(&uri).finish()?;
    check_topic("topic", &topic)?;
    if topic.starts_with("$SYS/") {
        return Err(ApiError::new(
            StatusCode::FORBIDDEN,
            "this message is the broker's own",
            "set server.sys_interval to \"off\" to be without $SYS topics",
        )
        .about("topic", &topic));
    }
    let wanted = topic.clone();
    let removed = app
        .shards
        .ask_all(move |shard, now| shard.remove_retained(&wanted, now))
        .await;
    if !removed.into_iter().any(|removed| removed.unwrap_or(false)) {
        return Err(unknown(&topic));
    }
    tracing::info!(%topic, "retained message removed over HTTP");
    Ok(Json(Removed { topic }))
}

fn unknown(topic: &str) -> ApiError {
    ApiError::not_found(
        "topic",
        topic,
        "there is no retained message with this topic",
        "GET /api/v1/retained lists them",
    )
}
