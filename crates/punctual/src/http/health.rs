//! Whether the broker lives, and whether it wants clients.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::Uri;
use serde::Serialize;

use super::App;
use super::error::ApiError;
use super::query::Query;
use super::shards::NoAnswer;

/// Answer of both questions when all is well.
#[derive(Serialize)]
pub(super) struct Health {
    status: &'static str,
}

/// `GET /healthz`: every shard answers. During a shutdown they may, or may not:
/// who asks would restart what is about to end, so it counts as alive.
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
    Ok(Json(Health { status: "ok" }))
}

/// `GET /readyz`: the listeners are open, which they are before this interface
/// answers at all, until the shutdown begins; and in a mesh, the broker is attached to
/// its tree.
pub(super) async fn ready(State(app): State<Arc<App>>, uri: Uri) -> Result<Json<Health>, ApiError> {
    Query::new(&uri).finish()?;
    if app.is_stopping() {
        return Err(ApiError::unavailable(
            "the broker shuts down",
            "connect to another one, or to this one when it runs again",
        ));
    }
    if let Some(mesh) = &app.mesh
        && let Some(overview) = mesh.status().await
        && !overview.status.attached
    {
        return Err(ApiError::unavailable(
            "the broker is not attached to the tree of its mesh",
            "this takes a moment when a neighbour was lost; GET /api/v1/mesh says more",
        ));
    }
    Ok(Json(Health { status: "ready" }))
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
