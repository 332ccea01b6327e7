//! `/api/v1/alarms`: what was not as it was promised.

use std::sync::Arc;

use axum::extract::State;
use axum::http::Uri;
use punctual_broker::{Alarm, Missed, Nanos, Overrun};
use serde::Serialize;

use super::App;
use super::error::ApiError;
use super::json::Json;
use super::query::Query;

/// The last alarms, the latest first.
#[derive(Serialize)]
pub(super) struct Answer {
    alarms: Vec<Raised>,
}

#[derive(Serialize)]
struct Raised {
    /// How long ago, milliseconds.
    age_ms: u64,
    #[serde(flatten)]
    what: What,
}

/// Times in microseconds, rounded up.
#[derive(Serialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
enum What {
    /// Messages of an admitted flow were late.
    Missed {
        flow: String,
        messages: u64,
        longest_us: u64,
        bound_us: Option<u64>,
        deadline_us: Option<u64>,
    },
    /// A piece of work kept a thread for longer than bounds assume.
    Overrun {
        work: &'static str,
        took_us: u64,
        client: Option<String>,
        filter: Option<Box<str>>,
    },
}

impl From<Alarm> for What {
    fn from(alarm: Alarm) -> Self {
        let micros = |nanos: Nanos| nanos.0.div_ceil(1000);
        match alarm {
            Alarm::Missed(Missed {
                flow,
                messages,
                longest,
                bound,
                deadline,
            }) => Self::Missed {
                flow: flow.to_string(),
                messages,
                longest_us: micros(longest),
                bound_us: bound.map(micros),
                deadline_us: deadline.map(micros),
            },
            Alarm::Overrun(Overrun {
                work,
                took,
                client,
                filter,
            }) => Self::Overrun {
                work,
                took_us: micros(took),
                client: client.map(|id| id.to_string()),
                filter,
            },
        }
    }
}

/// `GET /api/v1/alarms`: at most 256, so there are no pages.
pub(super) async fn list(State(app): State<Arc<App>>, uri: Uri) -> Result<Json<Answer>, ApiError> {
    Query::new(&uri).finish()?;
    let now = app.clock.now();
    let alarms = app.directory.alarms().into_iter();
    let raised = |(at, alarm): (Nanos, Alarm)| Raised {
        age_ms: (now - at).0 / 1_000_000,
        what: alarm.into(),
    };
    Ok(Json(Answer {
        alarms: alarms.map(raised).collect(),
    }))
}
