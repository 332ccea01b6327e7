//! The bodies of requests: JSON, checked as far as that needs nothing but the body.

use std::net::IpAddr;

use axum::http::StatusCode;
use punctual_codec::topic;
use punctual_model::Requirements;
use serde::Deserialize;

use super::error::ApiError;
use crate::config::Neighbour;

/// Bytes of a body that cannot be read which an error repeats.
const SHOWN: usize = 200;

/// A flow that is asked for.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Wanted {
    pub(super) client: String,
    pub(super) topic: String,
    requirements: String,
    #[serde(default)]
    pub(super) payload_bytes: u32,
    pub(super) user: Option<String>,
    pub(super) address: Option<IpAddr>,
}

impl Wanted {
    pub(super) fn read(body: &[u8]) -> Result<Self, ApiError> {
        let wanted: Self = serde_json::from_slice(body).map_err(|error| {
            ApiError::new(
                StatusCode::BAD_REQUEST,
                format!("the body is not what is expected: {error}"),
                "send a JSON object with client, topic and requirements, such as \
                 {\"client\":\"press\",\"topic\":\"axis/1\",\
                 \"requirements\":\"deadline=5ms, period=10ms, size=64\"}",
            )
        })?;
        if topic::validate_name(wanted.topic.as_bytes()).is_err() {
            return Err(ApiError::value(
                "topic",
                &wanted.topic,
                "this is not a topic name",
                "write the topic that is published on, without wildcards",
            ));
        }
        if wanted.client.is_empty() {
            return Err(ApiError::value(
                "client",
                "",
                "the client has no identifier",
                "write the identifier that it connects with",
            ));
        }
        Ok(wanted)
    }

    pub(super) fn requirements(&self) -> Result<Requirements, ApiError> {
        let text = &self.requirements;
        let wrong = |error: String| {
            let remedy = "write them as in a configuration: deadline=5ms, period=10ms, size=64";
            ApiError::value("requirements", text, error, remedy)
        };
        let requirements: Requirements = text
            .parse()
            .map_err(|error: punctual_model::RequirementError| wrong(error.to_string()))?;
        if !requirements.is_real_time() {
            return Err(wrong(
                "neither a deadline nor an rt-priority is stated".into(),
            ));
        }
        Ok(requirements)
    }
}

/// A neighbour that is to be connected.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Neighbouring {
    /// As in mesh.neighbours.
    neighbour: String,
}

/// Reads which neighbour is to be connected.
pub(super) fn neighbour(body: &[u8]) -> Result<Neighbour, ApiError> {
    let remedy = "send {\"neighbour\": \"host:port\"}";
    let wanted: Neighbouring = serde_json::from_slice(body).map_err(|error| {
        let sent = String::from_utf8_lossy(&body[..body.len().min(SHOWN)]);
        ApiError::value("body", &sent, error.to_string(), remedy)
    })?;
    let text = &wanted.neighbour;
    let wrong = |error: String| ApiError::value("neighbour", text, error, remedy);
    text.parse().map_err(wrong)
}
