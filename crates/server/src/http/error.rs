//! What a request is refused with: one JSON object that names what is wrong and
//! what to do.

use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use super::json::Json;

/// A refusal.
#[derive(Debug, Serialize)]
pub(super) struct ApiError {
    #[serde(skip)]
    status: StatusCode,
    /// What is wrong.
    error: String,
    /// Parameter or header that is wrong.
    #[serde(skip_serializing_if = "Option::is_none")]
    field: Option<String>,
    /// Its value.
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<String>,
    /// What to do.
    remedy: String,
}

impl ApiError {
    pub(super) fn new(
        status: StatusCode,
        error: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self {
            status,
            error: error.into(),
            field: None,
            value: None,
            remedy: remedy.into(),
        }
    }

    /// A parameter has a value that it cannot have.
    pub(super) fn value(
        field: &str,
        value: &str,
        error: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self::new(StatusCode::BAD_REQUEST, error, remedy).about(field, value)
    }

    /// What was asked for does not exist.
    pub(super) fn not_found(field: &str, value: &str, error: &str, remedy: &str) -> Self {
        Self::new(StatusCode::NOT_FOUND, error, remedy).about(field, value)
    }

    /// Something the answer needs is not to be had now.
    pub(super) fn unavailable(error: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, error, remedy)
    }

    /// Names the field and its value.
    pub(super) fn about(mut self, field: &str, value: &str) -> Self {
        self.field = Some(field.to_owned());
        self.value = Some(value.to_owned());
        self
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        (self.status, Json(self)).into_response()
    }
}
