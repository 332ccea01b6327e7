//! `GET /api/v1/role`: what whoever asks may do.

use axum::Extension;
use axum::http::Uri;
use serde::Serialize;

use super::authorization::Caller;
use super::error::ApiError;
use super::json::Json;
use super::query::Query;

/// The role of who asks.
#[derive(Debug, Serialize)]
pub(super) struct Role {
    /// read, operate or administer.
    role: &'static str,
}

pub(super) async fn get(
    Extension(Caller(role)): Extension<Caller>,
    uri: Uri,
) -> Result<Json<Role>, ApiError> {
    Query::new(&uri).finish()?;
    // The route takes one.
    let role = role.map_or("read", punctual_auth::HttpRole::name);
    Ok(Json(Role { role }))
}
