//! Whether the broker lives, and whether it wants clients.

use std::sync::Arc;

use axum::extract::State;
use axum::http::Uri;
use punctual_broker::Service;
use serde::Serialize;

use super::error::ApiError;
use super::json::Json;
use super::query::Query;
use super::shards::NoAnswer;
use super::{App, store};
use crate::mesh::Overview;
use crate::store::status;

/// Answer of both questions when all is well.
#[derive(Serialize)]
pub(super) struct Health {
    status: &'static str,
    /// Why nothing can be stored now, if it cannot.
    #[serde(skip_serializing_if = "Option::is_none")]
    store: Option<String>,
    /// What of the store could not be read at the start, if something could not.
    #[serde(skip_serializing_if = "Option::is_none")]
    damage: Option<String>,
}

/// `GET /healthz`: every shard answers. During a shutdown they may, or may not:
/// who asks would restart what is about to end, so it counts as alive. A store
/// that cannot be written is told, and no reason to restart: that makes no room. So
/// is one of which the start could not read something.
pub(super) async fn live(State(app): State<Arc<App>>, uri: Uri) -> Result<Json<Health>, ApiError> {
    Query::new(&uri).finish()?;
    if !app.is_stopping() {
        let answers = app.shards.ask_all(|_, _| ()).await;
        if let Some(silent) = answers.into_iter().find_map(Result::err)
            && !app.is_stopping()
        {
            return Err(silent.into());
        }
    }
    let (store, damage) = (store::trouble(&app), store::damage(&app));
    let status = status(store.is_some() || damage.is_some());
    Ok(Json(Health {
        status,
        store,
        damage,
    }))
}

/// `GET /readyz`: the listeners are open, which they are before this interface
/// answers at all, until the shutdown begins; in a mesh, the broker has joined and
/// is attached to its tree; and what has to survive can be stored, unless `store=optional` says
/// that clients may come all the same.
pub(super) async fn ready(State(app): State<Arc<App>>, uri: Uri) -> Result<Json<Health>, ApiError> {
    let mut query = Query::new(&uri);
    let store_is_optional = match query.take("store")?.as_deref() {
        None | Some("required") => false,
        Some("optional") => true,
        Some(other) => {
            return Err(ApiError::value(
                "store",
                other,
                "store is required or optional",
                "write store=optional for 200 also while the store cannot be written",
            ));
        }
    };
    query.finish()?;
    if app.is_stopping() {
        return Err(ApiError::unavailable(
            "the broker shuts down",
            "connect to another one, or to this one when it runs again",
        ));
    }
    if let Some(mesh) = &app.parts.mesh
        && let Some(overview) = mesh.status().await
        && let Some((what, remedy)) = why_not_ready(&overview)
    {
        return Err(ApiError::unavailable(what, remedy));
    }
    let store = store::trouble(&app);
    if let Some(why) = store.as_ref().filter(|_| !store_is_optional) {
        return Err(ApiError::unavailable(
            format!("what has to survive cannot be stored: {why}"),
            "make room or mend the disk, the broker goes on by itself; until then it serves what \
             need not survive, also with readiness if asked with store=optional",
        ));
    }
    Ok(Json(Health {
        status: "ready",
        store,
        damage: store::damage(&app),
    }))
}

/// What keeps clients away from a broker of a mesh, and what to do about it.
fn why_not_ready(overview: &Overview) -> Option<(&'static str, &'static str)> {
    match overview.service {
        Service::None => Some((
            "the broker has not joined its mesh yet",
            "this takes mesh.join_wait at most; GET /api/v1/mesh says more",
        )),
        Service::Deliveries => Some((
            "the broker reaches none of its neighbours, and knows nothing of them: it takes no \
             publications with QoS 1 and 2",
            "see that they run and are reached (unconnected in GET /api/v1/mesh); where it is to serve \
             alone, set mesh.join_wait = \"0s\"",
        )),
        Service::Full if !overview.status.attached => Some((
            "the broker is not attached to the tree of its mesh",
            "this takes a moment when a neighbour was lost; GET /api/v1/mesh says more",
        )),
        Service::Full => None,
    }
}

/// A shard that is not there any more is no surprise during a shutdown.
pub(super) fn explain(app: &App, silent: NoAnswer) -> ApiError {
    if app.is_stopping() {
        ApiError::unavailable(
            "the broker shuts down",
            "ask again when the broker runs again",
        )
    } else {
        silent.into()
    }
}
