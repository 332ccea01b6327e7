//! `GET /api/v1/store`: what survives the process, and how writing it fares.

use std::sync::Arc;

use axum::extract::State;
use axum::http::{StatusCode, Uri};
use punctual_store::{Damage, Histogram, WriterStats};
use serde::Serialize;

use super::App;
use super::error::ApiError;
use super::json::Json;
use super::query::Query;
use crate::store::{StartDamage, trouble_of};

/// Why what has to survive cannot be stored now; `None` if it can, or nothing is
/// stored.
pub(super) fn trouble(app: &App) -> Option<String> {
    trouble_of(&app.parts.keeper.as_ref()?.stats()?)
}

/// What the start found damaged; `None` if nothing is, or nothing is stored.
pub(super) fn damage(app: &App) -> Option<String> {
    app.parts.keeper.as_ref()?.found().summary()
}

/// Damages that an answer names.
const NAMED: usize = 20;

/// The answer.
#[derive(Serialize)]
pub(super) struct Answer {
    /// Why writing fails now, if it does.
    failing: Option<String>,
    /// What the start found damaged and left out: how much, and the first of it.
    damages: u64,
    damaged: Vec<Damaged>,
    sessions: u64,
    /// Messages that wait for sessions.
    entries: u64,
    /// Contents of messages.
    messages: u64,
    retained: u64,
    /// Bytes that the state needs, and that it takes on the disk.
    live_bytes: u64,
    disk_bytes: u64,
    commits: u64,
    failures: u64,
    operations: u64,
    /// Those that had to be written: others ended within their group.
    written_operations: u64,
    written_bytes: u64,
    /// Bytes written again to give back room.
    moved_bytes: u64,
    /// Bytes that wait for a commit.
    waiting_bytes: usize,
    /// For how long, since the oldest of them.
    waiting_seconds: f64,
    commit_seconds: Times,
    /// From the end of a shard's turn to the commit.
    wait_seconds: Times,
}

/// A place of the files that could not be read.
#[derive(Serialize)]
pub(super) struct Damaged {
    segment: u32,
    offset: u64,
    bytes: u64,
    what: String,
}

/// Durations; quantiles are rounded up by a quarter at most.
#[derive(Serialize)]
pub(super) struct Times {
    mean: f64,
    p50: f64,
    p99: f64,
}

pub(super) async fn get(State(app): State<Arc<App>>, uri: Uri) -> Result<Json<Answer>, ApiError> {
    Query::new(&uri).finish()?;
    let keeper = app.parts.keeper.as_ref();
    let stats = keeper.and_then(|keeper| Some((keeper.stats()?, keeper.found())));
    let (stats, found) = stats.ok_or_else(|| {
        ApiError::new(
            StatusCode::CONFLICT,
            "the broker has no store",
            "start it with --data DIR (server.data)",
        )
    })?;
    Ok(Json(Answer::of(&stats, found)))
}

impl Answer {
    fn of(stats: &WriterStats, found: StartDamage) -> Self {
        let store = &stats.store;
        let damaged = found.damages.into_iter().take(NAMED);
        Self {
            failing: stats.failing.as_ref().map(ToString::to_string),
            damages: found.count,
            damaged: damaged.map(Damaged::from).collect(),
            sessions: store.sessions,
            entries: store.entries,
            messages: store.messages,
            retained: store.retained,
            live_bytes: store.live_bytes,
            disk_bytes: store.disk_bytes,
            commits: store.commits,
            failures: stats.failures,
            operations: store.operations,
            written_operations: store.written_operations,
            written_bytes: store.written_bytes,
            moved_bytes: store.moved_bytes,
            waiting_bytes: stats.waiting_bytes,
            waiting_seconds: stats.oldest_wait.unwrap_or_default().as_secs_f64(),
            commit_seconds: Times::of(&stats.commit_nanos),
            wait_seconds: Times::of(&stats.wait_nanos),
        }
    }
}

impl From<Damage> for Damaged {
    fn from(damage: Damage) -> Self {
        Self {
            segment: damage.segment,
            offset: damage.offset,
            bytes: damage.len,
            what: damage.what,
        }
    }
}

impl Times {
    fn of(nanos: &Histogram) -> Self {
        let count = nanos.count();
        let at = |per_cent: u64| {
            if count == 0 {
                return 0.0;
            }
            let rank = (count * per_cent).div_ceil(100);
            let mut seen = 0;
            let bucket = nanos.buckets.iter().position(|n| {
                seen += n;
                seen >= rank
            });
            bucket.map_or(0.0, |bucket| seconds(Histogram::upper(bucket)))
        };
        Self {
            mean: seconds(nanos.sum) / count.max(1) as f64,
            p50: at(50),
            p99: at(99),
        }
    }
}

/// Of nanoseconds.
pub(super) fn seconds(nanos: u64) -> f64 {
    nanos as f64 / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_of_nothing_are_nothing() {
        let mut nanos = Histogram::default();
        let times = Times::of(&nanos);
        assert_eq!([times.mean, times.p50, times.p99], [0.0; 3]);
        nanos.buckets[8] = 1;
        let times = Times::of(&nanos);
        assert_eq!([times.p50, times.p99], [seconds(Histogram::upper(8)); 2]);
    }
}
