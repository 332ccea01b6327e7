//! `/api/v1/mesh`: the broker among others: tree, links, tables, neighbours, and the
//! way that a topic takes.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::State;
use axum::http::{StatusCode, Uri};
use punctual_codec::topic;
use punctual_mesh::{BrokerId, ForgetError, MAX_NAME};
use serde::Serialize;

use super::error::ApiError;
use super::json::Json;
use super::query::{Name, Query};
use super::{App, body};
use crate::bridge::{Standing, Standings};
use crate::mesh::{Asker, NotAdded, NotRemoved};

/// State of the broker in the mesh. Times are in microseconds.
#[derive(Debug, Serialize)]
pub(super) struct Overview {
    id: String,
    capacity: u64,
    strategy: &'static str,
    root: String,
    root_capacity: u64,
    /// Epoch of the root.
    epoch: u64,
    /// Cost of the way to the root.
    cost_us: u64,
    /// Links of it.
    hops: u16,
    parent: Option<String>,
    /// Whether the parent has accepted this broker, or it is root.
    attached: bool,
    /// `joining`: clients are refused; `joined`; or `stranded`: publications with QoS 1 and 2 are.
    membership: &'static str,
    links: Vec<Link>,
    /// All of the tree, this one among them.
    brokers: Vec<String>,
    /// Topic filters that somebody wants.
    filters: usize,
    /// Topic filters on which persistent sessions at other brokers await messages, for each broker.
    awaited: usize,
    /// Changes of filters told to neighbours.
    advertised: u64,
    /// Other brokers with members of shared subscriptions, by their filters.
    shared: BTreeMap<String, Vec<String>>,
    /// Neighbours that were lost, and whose messages wait for another way.
    healing: Vec<String>,
    /// Brokers that are away for longer than `mesh.heal`, and for whose persistent sessions messages
    /// are kept here.
    away: Vec<String>,
    /// Clients here whose wills others publish if this broker is lost.
    wills: usize,
    /// Wills that are kept here for other brokers.
    wills_kept: usize,
    /// Sessions that came from other brokers with their clients.
    sessions_in: u64,
    /// Sessions that went to other brokers with their clients.
    sessions_out: u64,
    /// Addresses that are kept connected.
    neighbours: Vec<String>,
    /// Those of them that are not, and why.
    unconnected: BTreeMap<String, String>,
    /// To brokers that are not of the mesh.
    bridges: Vec<Bridge>,
}

#[derive(Debug, Serialize)]
struct Bridge {
    /// Of its section in mesh.bridges.
    name: String,
    address: String,
    /// Whether both its ends are.
    connected: bool,
    /// Why not.
    why: Option<String>,
}

#[derive(Debug, Serialize)]
struct Link {
    peer: String,
    /// spare, joining, parent or child.
    state: &'static str,
    /// Whether this broker connected.
    dialled: bool,
    /// The version of the protocol between brokers that both speak.
    version: u8,
    rtt_us: Option<f64>,
    cost_us: u64,
    /// Root that the neighbour knows, and its cost.
    root: Option<String>,
    root_cost_us: Option<u64>,
    /// Topic filters that it wants.
    filters: usize,
}

impl From<&Standing> for Bridge {
    fn from(standing: &Standing) -> Self {
        let why = standing.trouble();
        Self {
            name: standing.name.clone(),
            address: standing.address.clone(),
            connected: why.is_none(),
            why,
        }
    }
}

fn asker(app: &App) -> Result<&Asker, ApiError> {
    app.parts.mesh.as_ref().ok_or_else(|| {
        ApiError::new(
            StatusCode::CONFLICT,
            "this broker is not in a mesh",
            "start it with mesh.enabled = true",
        )
    })
}

fn ended() -> ApiError {
    ApiError::unavailable("the broker shuts down", "ask again when it runs again")
}

/// `GET /api/v1/mesh`
pub(super) async fn status(
    State(app): State<Arc<App>>,
    uri: Uri,
) -> Result<Json<Overview>, ApiError> {
    Query::new(&uri).finish()?;
    let overview = asker(&app)?.status().await.ok_or_else(ended)?;
    let status = overview.status;
    let links = status.links.into_iter().map(|link| Link {
        peer: link.peer.to_string(),
        state: link.edge.name(),
        dialled: link.dialled,
        version: link.version,
        rtt_us: link.rtt.map(|rtt| rtt.0 as f64 / 1e3),
        cost_us: link.cost,
        root: link.offer.as_ref().map(|(root, _)| root.to_string()),
        root_cost_us: link.offer.map(|(_, cost)| cost),
        filters: link.filters,
    });
    let bridges = app.parts.bridges.iter().flat_map(Standings::iter);
    Ok(Json(Overview {
        id: status.id.to_string(),
        capacity: status.capacity,
        strategy: status.strategy.name(),
        root: status.root.id.to_string(),
        root_capacity: status.root.capacity,
        epoch: status.epoch,
        cost_us: status.cost,
        hops: status.hops,
        parent: status.parent.map(|id| id.to_string()),
        attached: status.attached,
        membership: status.membership.name(),
        links: links.collect(),
        brokers: overview.brokers,
        filters: status.filters,
        awaited: status.awaited,
        advertised: status.advertised,
        shared: status
            .shared
            .iter()
            .map(|(filter, brokers)| {
                let brokers = brokers.iter().map(ToString::to_string);
                (filter.to_string(), brokers.collect())
            })
            .collect(),
        wills: status.wills,
        wills_kept: status.wills_kept,
        sessions_in: overview.moved.0,
        sessions_out: overview.moved.1,
        healing: status.healing.iter().map(ToString::to_string).collect(),
        away: status.away.iter().map(ToString::to_string).collect(),
        neighbours: overview.neighbours,
        unconnected: overview.unconnected,
        bridges: bridges.map(Bridge::from).collect(),
    }))
}

/// What to do about a file of neighbours that cannot be written.
const WRITABLE: &str = "let the broker write that file, and ask again";

/// `POST /api/v1/mesh/neighbours`
pub(super) async fn add(
    State(app): State<Arc<App>>,
    uri: Uri,
    body: Bytes,
) -> Result<StatusCode, ApiError> {
    Query::new(&uri).finish()?;
    let asker = asker(&app)?;
    let neighbour = body::neighbour(&body)?;
    let address = neighbour.address.clone();
    match asker.add(neighbour).await.ok_or_else(ended)? {
        Ok(()) => Ok(StatusCode::NO_CONTENT),
        Err(NotAdded::NoAuthority) => Err(ApiError::new(
            StatusCode::CONFLICT,
            format!("{address} is to be connected by TLS, and no authority is named"),
            "set mesh.ca_file and start the broker again",
        )),
        Err(NotAdded::NotKept(why)) => Err(ApiError::unavailable(
            format!("it is connected until the next start, but cannot be kept: {why}"),
            WRITABLE,
        )),
        Err(NotAdded::Failed(error)) => Err(ApiError::unavailable(error, "try again")),
    }
}

/// `DELETE /api/v1/mesh/neighbours/{address}`
pub(super) async fn remove(
    State(app): State<Arc<App>>,
    Name(address): Name,
    uri: Uri,
) -> Result<StatusCode, ApiError> {
    Query::new(&uri).finish()?;
    let asker = asker(&app)?;
    match asker.remove(address.clone()).await.ok_or_else(ended)? {
        Ok(()) => Ok(StatusCode::NO_CONTENT),
        Err(NotRemoved::Unknown) => Err(ApiError::not_found(
            "address",
            &address,
            "no such neighbour is kept connected",
            "GET /api/v1/mesh has those that are, in neighbours",
        )),
        Err(NotRemoved::StillKept(why)) => Err(ApiError::unavailable(
            format!("it is given up, but comes back at the next start: {why}"),
            WRITABLE,
        )),
    }
}

/// `DELETE /api/v1/mesh/away/{broker}`
pub(super) async fn forget(
    State(app): State<Arc<App>>,
    Name(name): Name,
    uri: Uri,
) -> Result<StatusCode, ApiError> {
    Query::new(&uri).finish()?;
    let asker = asker(&app)?;
    let broker = BrokerId::new(&name).ok_or_else(|| {
        ApiError::value(
            "broker",
            &name,
            "is no name of a broker",
            format!("write its mesh.id: 1 to {MAX_NAME} bytes, without space, '/', '+' and '#'"),
        )
    })?;
    match asker.forget(broker).await.ok_or_else(ended)? {
        Ok(()) => Ok(StatusCode::NO_CONTENT),
        Err(ForgetError::Unknown) => Err(ApiError::not_found(
            "broker",
            &name,
            "nothing is kept at this broker for one of that name",
            "ask one that names it as away in punctual mesh status or GET /api/v1/mesh",
        )),
        Err(ForgetError::Present) => Err(ApiError::new(
            StatusCode::CONFLICT,
            "the broker of that name is not away",
            "stop it first, and wait for two and a half mesh.hello until that is noticed; or cut it off \
             with punctual mesh remove at both ends",
        )
        .about("broker", &name)),
    }
}

/// What one broker says to a trace.
#[derive(Debug, Serialize)]
pub(super) struct Answer {
    broker: String,
    /// Whether its clients have subscribed to the topic.
    subscribed: bool,
    /// Brokers passed, and the round-trip time of the link to the next.
    path: Vec<(String, u64)>,
}

/// `GET /api/v1/mesh/trace/{topic}`
pub(super) async fn trace(
    State(app): State<Arc<App>>,
    Name(name): Name,
    uri: Uri,
) -> Result<Json<Vec<Answer>>, ApiError> {
    Query::new(&uri).finish()?;
    let asker = asker(&app)?;
    topic::validate_name(name.as_bytes()).map_err(|_| {
        ApiError::value(
            "topic",
            &name,
            "is no topic name",
            "write one without + and #",
        )
    })?;
    let answers = asker.trace(name).await.ok_or_else(ended)?;
    let answer = |traced: punctual_mesh::wire::TraceReply| Answer {
        broker: traced
            .path
            .last()
            .map(|(id, _)| id.to_string())
            .unwrap_or_default(),
        subscribed: traced.subscribed,
        path: traced
            .path
            .into_iter()
            .map(|(id, rtt)| (id.to_string(), rtt))
            .collect(),
    };
    Ok(Json(answers.into_iter().map(answer).collect()))
}
