//! `/api/v1/clients`: who is connected or has a session, and ending both.

use std::sync::Arc;

use axum::extract::State;
use axum::http::Uri;
use punctual_broker::{ClientInfo, ScanPosition};
use punctual_codec::{ReasonCode, Version};
use serde::Serialize;

use super::App;
use super::error::ApiError;
use super::health::explain;
use super::json::Json;
use super::page::Page;
use super::query::{Name, Query};
use super::shards::STEP;

/// A client, connected or not.
#[derive(Debug, Serialize)]
pub(super) struct Client {
    client_id: String,
    connected: bool,
    username: Option<String>,
    /// IP address and port of its side.
    address: Option<String>,
    /// URL of the listener.
    listener: Option<String>,
    protocol: Option<&'static str>,
    /// Since it connected.
    connected_seconds: Option<u64>,
    /// 0: none.
    keep_alive_seconds: Option<u16>,
    /// After the end of the connection; absent: for ever.
    session_expiry_seconds: Option<u32>,
    subscriptions: usize,
    queued_messages: usize,
    queued_bytes: usize,
    dropped: u64,
    inflight_messages: usize,
    /// Bytes that wait to be written to it.
    unsent_bytes: usize,
    slow: bool,
    shard: u16,
}

impl Client {
    fn new(info: ClientInfo, app: &App) -> Self {
        let connected = |n: u16| info.connected.then_some(n);
        let since = app.clock.now() - info.connected_at;
        Self {
            connected: info.connected,
            username: info.username.map(|name| name.as_ref().to_owned()),
            address: info.peer.map(|peer| peer.to_string()),
            listener: info.listener.and_then(|number| app.listener(number)),
            protocol: info.version.map(|version| match version {
                Version::V31 => "3.1",
                Version::V311 => "3.1.1",
                Version::V5 => "5.0",
            }),
            connected_seconds: info.connected.then_some(since.as_secs()),
            keep_alive_seconds: connected(info.keep_alive),
            session_expiry_seconds: Some(info.session_expiry).filter(|secs| *secs < u32::MAX),
            subscriptions: info.subscriptions,
            queued_messages: info.queued_messages,
            queued_bytes: info.queued_bytes,
            dropped: info.dropped,
            inflight_messages: info.inflight,
            unsent_bytes: info.buffered,
            slow: info.slow,
            shard: info.shard,
            client_id: info.client_id.as_ref().to_owned(),
        }
    }
}

/// A page of clients.
#[derive(Serialize)]
pub(super) struct Clients {
    clients: Vec<Client>,
    /// What `after` is for the next page.
    next: Option<String>,
}

/// `GET /api/v1/clients`, sorted by identifier.
pub(super) async fn list(State(app): State<Arc<App>>, uri: Uri) -> Result<Json<Clients>, ApiError> {
    let mut query = Query::new(&uri);
    let limit = query.limit()?;
    let after = query.take("after")?;
    let wanted = query.flag("connected")?;
    query.finish()?;
    let after = after.map(|after| (after.into(), "".into()));
    let step = move |shard: &punctual_broker::Shard, from: ScanPosition, page: &mut Page<_>| {
        shard.scan_clients(from, STEP, |client| {
            if wanted.is_none_or(|wanted| wanted == client.is_connected())
                && page.wants(client.client_id(), "")
            {
                page.add((client.client_id().clone(), "".into()), client.info());
            }
        })
    };
    let page = app.shards.list(Page::new(after, limit), step).await;
    let (clients, next) = page.map_err(|silent| explain(&app, silent))?.finish();
    let clients = clients.into_iter().map(|info| Client::new(info, &app));
    Ok(Json(Clients {
        clients: clients.collect(),
        next: next.map(|(client_id, _)| client_id.as_ref().to_owned()),
    }))
}

/// `GET /api/v1/clients/{id}`.
pub(super) async fn get(
    State(app): State<Arc<App>>,
    Name(id): Name,
    uri: Uri,
) -> Result<Json<Client>, ApiError> {
    Query::new(&uri).finish()?;
    let wanted = id.clone();
    let answers = app
        .shards
        .ask_all(move |shard, _| shard.client(&wanted).map(|client| client.info()))
        .await;
    match found(&app, answers)? {
        Some(info) => Ok(Json(Client::new(info, &app))),
        None => Err(unknown(&id)),
    }
}

/// What has been done to a client.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct Ended {
    /// It was connected, and is not any more.
    disconnected: bool,
    /// It had a session, and has none any more.
    session_ended: bool,
}

/// `DELETE /api/v1/clients/{id}`: ends the connection, and with
/// `?session=true` the session.
pub(super) async fn delete(
    State(app): State<Arc<App>>,
    Name(id): Name,
    uri: Uri,
) -> Result<Json<Ended>, ApiError> {
    let mut query = Query::new(&uri);
    let with_session = query.flag("session")?.unwrap_or(false);
    query.finish()?;
    let wanted = id.clone();
    let answers = app
        .shards
        .ask_all(move |shard, now| {
            shard.client(&wanted)?;
            let disconnected = shard.kick(&wanted, ReasonCode::AdministrativeAction, now);
            if with_session {
                shard.forget(&wanted, now);
            }
            Some(Ended {
                disconnected,
                session_ended: shard.client(&wanted).is_none(),
            })
        })
        .await;
    let Some(ended) = found(&app, answers)? else {
        return Err(unknown(&id));
    };
    tracing::info!(
        client = %id,
        disconnected = ended.disconnected,
        session_ended = ended.session_ended,
        "client ended over HTTP"
    );
    Ok(Json(ended))
}

/// What one of the shards has found. A shard that is silent may have it, unless
/// another one has.
fn found<T>(
    app: &App,
    answers: Vec<Result<Option<T>, super::shards::NoAnswer>>,
) -> Result<Option<T>, ApiError> {
    let mut silent = None;
    for answer in answers {
        match answer {
            Ok(Some(found)) => return Ok(Some(found)),
            Ok(None) => {}
            Err(no_answer) => silent = Some(no_answer),
        }
    }
    silent.map_or(Ok(None), |silent| Err(explain(app, silent)))
}

fn unknown(id: &str) -> ApiError {
    ApiError::not_found(
        "client_id",
        id,
        "there is no client with this identifier, connected or with a session",
        "GET /api/v1/clients lists them; write / in identifiers as %2F",
    )
}
