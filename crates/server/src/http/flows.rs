//! `/api/v1/flows`, `/api/v1/network`, `/api/v1/what-if`: what is promised to
//! whom, over which network, and what would be.
//!
//! Decisions are made by the manager in its thread, where requests wait for their
//! turn, and this server does not; analyses are made of a copy. What shards know of
//! flows is asked of them in small pieces. A request that changes something has a JSON body, which
//! a web page of another site cannot send (see [`super::guard`]).

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::State;
use axum::http::{StatusCode, Uri};
use punctual_analysis::link_loads;
use punctual_broker::{FlowSight, Nanos};
use punctual_manager::{Client, Decision, ExplanationView, FlowView, Manager, Publication, Quota};
use punctual_model::network::Network;
use punctual_model::{Condition, Requirements, Status};
use serde::Serialize;

use super::App;
use super::body::Wanted;
use super::error::ApiError;
use super::json::Json;
use super::query::{Name, Query};
use crate::admission::{AdmissionService, Unavailable};

/// Flows that a shard is asked about at once.
const PIECE: usize = 64;

/// A flow, and what has been seen of it.
#[derive(Debug, Serialize)]
pub(super) struct Flow {
    #[serde(flatten)]
    view: FlowView,
    /// What its publisher is told: `admitted`, or `best-effort` while its messages leave the broker
    /// by ways that no bound covers. Absent while its publisher has no session.
    status: Option<&'static str>,
    /// Why it is not admitted.
    reason: Option<String>,
    /// What its bound takes for granted and the configuration does not guarantee.
    conditions: Vec<&'static str>,
    /// Messages of it; absent while its publisher has no session.
    messages: Option<u64>,
    /// Messages that were not as declared.
    violations: Option<u64>,
    /// What was seen of those that went as promised.
    observed: Option<Observed>,
}

/// What was seen of a flow, for each receiver of each message. Times are of the
/// broker's own stage, in microseconds rounded up: from its reading of a message
/// to its writing to a receiver.
#[derive(Debug, Serialize)]
struct Observed {
    messages: u64,
    broker_mean_us: u64,
    broker_p50_us: u64,
    broker_p99_us: u64,
    broker_p99_9_us: u64,
    broker_max_us: u64,
    /// Upper ends and how many messages were faster; ends where all were.
    broker_histogram_us: Vec<(u64, u64)>,
    /// Past the deadline when written, or dropped for it.
    misses: u64,
    /// Waited for a client that was away or took no more; not among the times.
    held: u64,
}

impl From<FlowSight> for Observed {
    fn from(sight: FlowSight) -> Self {
        let micros = |nanos: Nanos| nanos.0.div_ceil(1000);
        let latency = sight.latency;
        let mut histogram = Vec::new();
        for (end, faster) in latency.cumulative() {
            let all = faster == latency.count;
            if faster > 0 {
                histogram.push((micros(end), faster));
            }
            if all {
                break;
            }
        }
        Self {
            messages: latency.count,
            broker_mean_us: micros(latency.mean()),
            broker_p50_us: micros(latency.percentile(500)),
            broker_p99_us: micros(latency.percentile(990)),
            broker_p99_9_us: micros(latency.percentile(999)),
            broker_max_us: micros(latency.max),
            broker_histogram_us: histogram,
            misses: sight.misses,
            held: sight.held,
        }
    }
}

/// A page of flows.
#[derive(Serialize)]
pub(super) struct Page {
    flows: Vec<Flow>,
    /// What `after` is for the next page.
    next: Option<String>,
}

/// What becomes of it.
#[derive(Serialize)]
pub(super) struct Answer {
    status: &'static str,
    flow: Option<String>,
    bound_ns: Option<u64>,
    reason: Option<String>,
    /// Changes with which it would be admitted, each alone.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    remedies: Vec<String>,
}

/// What the bounds of a flow are made of.
#[derive(Serialize)]
pub(super) struct Explained {
    flow: String,
    deadline_ns: u64,
    paths: Vec<ExplanationView>,
}

/// A flow, or what its bounds are made of.
#[derive(Serialize)]
#[serde(untagged)]
pub(super) enum Shown {
    Flow(Box<Flow>),
    Explained(Explained),
}

/// What would become of it, and of others.
#[derive(Serialize)]
pub(super) struct Prospect {
    #[serde(flatten)]
    answer: Answer,
    /// Flows whose bound would be another one.
    changed: Vec<FlowView>,
}

/// The network.
#[derive(Serialize)]
pub(super) struct NetworkView {
    nodes: Vec<NodeView>,
    links: Vec<LinkView>,
}

#[derive(Serialize)]
struct NodeView {
    id: String,
    sd_min_ns: u64,
    sd_max_ns: u64,
}

#[derive(Serialize)]
struct LinkView {
    id: String,
    from: String,
    to: String,
    /// 0: flows have costs of their own here.
    rate_bps: u64,
    /// Part of its time that admitted flows may take, in per cent.
    load_percent: f64,
    /// How many flows pass it.
    flows: usize,
}

/// `GET /api/v1/flows`, sorted by name.
pub(super) async fn list(State(app): State<Arc<App>>, uri: Uri) -> Result<Json<Page>, ApiError> {
    let mut query = Query::new(&uri);
    let limit = query.limit()?;
    let after = query.take("after")?;
    query.finish()?;
    let admission = admission(&app)?;
    let (views, more) = admission.page(after, limit).await?;
    let next = views.last().filter(|_| more).map(|last| last.id.clone());
    let mut flows = Vec::with_capacity(views.len());
    for piece in views.chunks(PIECE) {
        flows.extend(observed(&app, piece.to_vec()).await);
    }
    Ok(Json(Page { flows, next }))
}

/// `GET /api/v1/flows/{id}`, and `GET /api/v1/flows/{id}/explain`: a name may have
/// slashes, and one that ends so is that of the flow first.
pub(super) async fn get(
    State(app): State<Arc<App>>,
    Name(id): Name,
    uri: Uri,
) -> Result<Json<Shown>, ApiError> {
    Query::new(&uri).finish()?;
    let admission = admission(&app)?;
    let Some(view) = admission.view(id.clone()).await? else {
        let explained = id.strip_suffix("/explain").filter(|id| !id.is_empty());
        let id = explained.ok_or_else(|| unknown(&id))?;
        let explained = explain(admission, id).await?;
        return Ok(Json(Shown::Explained(explained)));
    };
    let flow = observed(&app, vec![view]).await.pop();
    let flow = flow.ok_or_else(|| unknown(&id))?;
    Ok(Json(Shown::Flow(Box::new(flow))))
}

/// What the bounds of a flow are made of.
async fn explain(admission: &AdmissionService, id: &str) -> Result<Explained, ApiError> {
    let name = id.to_owned();
    let copy = move |manager: &Manager| {
        let (client, topic) = manager.about(&name)?;
        Some((manager.excerpt(client, topic), name))
    };
    let analyse = |copied: Option<(Manager, String)>| {
        let (manager, id) = copied?;
        Some((manager.view(&id)?, manager.explain(&id)))
    };
    let explained = admission.analyse(copy, analyse).await?;
    let (view, paths) = explained.ok_or_else(|| unknown(id))?;
    let paths = paths.ok_or_else(|| {
        ApiError::unavailable(
            "the network has more flows than can be analysed for this",
            "write it to a file, and explain the flow with punctual analyze --explain",
        )
    })?;
    Ok(Explained {
        flow: view.id,
        deadline_ns: view.deadline_ns,
        paths,
    })
}

/// `POST /api/v1/flows`: a flow for a client that cannot state it.
pub(super) async fn create(
    State(app): State<Arc<App>>,
    uri: Uri,
    body: Bytes,
) -> Result<(StatusCode, Json<Answer>), ApiError> {
    Query::new(&uri).finish()?;
    let admission = admission(&app)?;
    let wanted = Wanted::read(&body)?;
    let requirements = wanted.requirements()?;
    let asked = wanted.clone();
    let decision = admission
        .change(move |manager| manager.reserve(&asked.client(), asked.publication(requirements)))
        .await?;
    let mut answer = Answer::from(decision);
    answer.find_remedies(admission, &wanted, requirements).await;
    tracing::info!(
        client = wanted.client,
        topic = wanted.topic,
        status = answer.status,
        "flow asked for over HTTP"
    );
    let status = match answer.status {
        "admitted" => StatusCode::CREATED,
        _ => StatusCode::CONFLICT,
    };
    Ok((status, Json(answer)))
}

/// `DELETE /api/v1/flows/{id}`. A client that states it again asks for it
/// again.
pub(super) async fn delete(
    State(app): State<Arc<App>>,
    Name(id): Name,
    uri: Uri,
) -> Result<Json<FlowView>, ApiError> {
    Query::new(&uri).finish()?;
    let name = id.clone();
    let removed = admission(&app)?.change(move |manager| {
        let view = manager.view(&name);
        manager.remove(&name).then_some(view).flatten()
    });
    let removed = removed.await?;
    let removed = removed.ok_or_else(|| unknown(&id))?;
    tracing::info!(flow = id, "flow removed over HTTP");
    Ok(Json(removed))
}

/// `POST /api/v1/what-if`: nothing changes.
pub(super) async fn what_if(
    State(app): State<Arc<App>>,
    uri: Uri,
    body: Bytes,
) -> Result<Json<Prospect>, ApiError> {
    Query::new(&uri).finish()?;
    let admission = admission(&app)?;
    let wanted = Wanted::read(&body)?;
    let requirements = wanted.requirements()?;
    let asked = wanted.clone();
    let (decision, changed) = admission
        .analyse(wanted.excerpt(), move |manager| {
            manager.what_if(&asked.client(), asked.publication(requirements))
        })
        .await?;
    let mut answer = Answer::from(decision);
    answer.find_remedies(admission, &wanted, requirements).await;
    Ok(Json(Prospect { answer, changed }))
}

/// `GET /api/v1/network`.
pub(super) async fn network(
    State(app): State<Arc<App>>,
    uri: Uri,
) -> Result<Json<NetworkView>, ApiError> {
    Query::new(&uri).finish()?;
    let copy = |manager: &Manager| manager.network().clone();
    let network = admission(&app)?.analyse(copy, |network| NetworkView::new(&network));
    Ok(Json(network.await?))
}

impl Wanted {
    fn client(&self) -> Client {
        Client {
            id: self.client.as_str().into(),
            session: 0,
            user: self.user.as_deref().map(Arc::from),
            is_proven: true,
            address: self.address,
            transport: Default::default(),
        }
    }

    /// What of a manager is needed to say what becomes of it.
    fn excerpt(&self) -> impl FnOnce(&Manager) -> Manager + Send + use<> {
        let (client, topic) = (self.client.clone(), self.topic.clone());
        move |manager| manager.excerpt(&client, &topic)
    }

    fn publication(&self, requirements: Requirements) -> Publication<'_> {
        Publication {
            topic: &self.topic,
            requirements,
            payload: self.payload_bytes,
            properties: 0,
            // Who has the role operate decides about quotas, too.
            quota: Quota::UNLIMITED,
        }
    }
}

impl Answer {
    /// If it is rejected: what would help.
    async fn find_remedies(
        &mut self,
        admission: &AdmissionService,
        wanted: &Wanted,
        requirements: Requirements,
    ) {
        if self.status == Status::Admitted.name() {
            return;
        }
        let asked = wanted.clone();
        let search = move |manager: Manager| {
            manager.remedies(&asked.client(), asked.publication(requirements))
        };
        let found = admission.analyse(wanted.excerpt(), search).await;
        self.remedies = found.unwrap_or_default();
    }
}

impl From<Decision> for Answer {
    fn from(decision: Decision) -> Self {
        let answer = decision.answer;
        let bound = answer.bound.map(|bound| bound.as_nanos());
        Self {
            status: answer.status.unwrap_or(Status::Rejected).name(),
            flow: answer.flow,
            bound_ns: bound.and_then(|nanos| u64::try_from(nanos).ok()),
            reason: answer.reason,
            remedies: Vec::new(),
        }
    }
}

impl NetworkView {
    fn new(network: &Network) -> Self {
        let mut loads = vec![(0.0, 0); network.topology.links.len()];
        for load in link_loads(network) {
            loads[load.link] = (load.percent(), load.flows);
        }
        let name = |node: usize| network.topology.nodes[node].id.clone();
        let links = network.topology.links.iter().zip(loads);
        Self {
            nodes: network
                .topology
                .nodes
                .iter()
                .map(|node| NodeView {
                    id: node.id.clone(),
                    sd_min_ns: node.sd_min,
                    sd_max_ns: node.sd_max,
                })
                .collect(),
            links: links
                .map(|(link, (load_percent, flows))| LinkView {
                    id: link.id.clone(),
                    from: name(link.from),
                    to: name(link.to),
                    rate_bps: link.rate,
                    load_percent,
                    flows,
                })
                .collect(),
        }
    }
}

/// What the shards have seen of flows.
async fn observed(app: &App, views: Vec<FlowView>) -> Vec<Flow> {
    let names: Arc<[(String, String)]> = views
        .iter()
        .map(|view| (view.client.clone(), view.topic.clone()))
        .collect();
    let answers = app
        .shards
        .ask_all(move |shard, _| {
            let flows = names
                .iter()
                .map(|(client, topic)| shard.flow(client, topic));
            flows.collect::<Vec<_>>()
        })
        .await;
    let mut seen: Vec<_> = views.iter().map(|_| None).collect();
    for answer in answers.into_iter().flatten() {
        for (seen, flow) in seen.iter_mut().zip(answer) {
            *seen = seen.take().or(flow);
        }
    }
    views
        .into_iter()
        .zip(seen)
        .map(|(view, seen)| Flow {
            status: seen
                .as_ref()
                .and_then(|flow| Some(flow.answer.as_ref()?.status?.name())),
            reason: seen
                .as_ref()
                .and_then(|flow| flow.answer.as_ref()?.reason.clone()),
            conditions: seen
                .iter()
                .flat_map(|flow| &flow.answer)
                .flat_map(|answer| answer.conditions.iter())
                .map(Condition::name)
                .collect(),
            messages: seen.as_ref().map(|flow| flow.messages),
            violations: seen.as_ref().map(|flow| flow.violations),
            observed: seen.and_then(|flow| flow.seen).map(Observed::from),
            view,
        })
        .collect()
}

fn admission(app: &App) -> Result<&AdmissionService, ApiError> {
    app.parts.admission.as_ref().ok_or_else(|| {
        ApiError::new(
            StatusCode::CONFLICT,
            "this broker admits no flows",
            "set admission.enabled = true",
        )
        .about("admission.enabled", "false")
    })
}

impl From<Unavailable> for ApiError {
    fn from(unavailable: Unavailable) -> Self {
        match unavailable {
            Unavailable::Remote => Self::new(
                StatusCode::CONFLICT,
                "the controller of the network decides about flows, and this broker asks it",
                "ask the controller (/api/v1/controller), or write a request into its table",
            ),
            Unavailable::Stopped => Self::unavailable(
                "nobody decides about flows any more",
                "the broker is shutting down: wait until it is there again",
            ),
        }
    }
}

fn unknown(id: &str) -> ApiError {
    ApiError::not_found(
        "id",
        id,
        "there is no admitted flow of that name",
        "GET /api/v1/flows lists them",
    )
}
