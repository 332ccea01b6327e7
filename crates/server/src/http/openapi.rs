//! `GET /api/v1/openapi.json`: the description of the interface.

use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderName, Uri};

use super::error::ApiError;
use super::query::Query;

/// The document, OpenAPI 3.1.
pub const DOCUMENT: &str = include_str!("openapi.json");

pub(super) async fn get(
    uri: Uri,
) -> Result<([(HeaderName, &'static str); 1], &'static str), ApiError> {
    Query::new(&uri).finish()?;
    Ok(([(CONTENT_TYPE, "application/json")], DOCUMENT))
}
