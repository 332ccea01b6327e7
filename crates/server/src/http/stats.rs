//! All numbers of the broker: collected here for `/metrics` and `/api/v1/stats`.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};

use axum::extract::State;
use axum::http::Uri;
use punctual_broker::{Directory, FlowSight, Stats};
use punctual_codec::{PacketType, ReasonCode};
use punctual_net::Piece;
use punctual_net::realtime::RealtimeStatus;
use punctual_store::WriterStats;
use serde::Serialize;

use super::App;
use super::error::ApiError;
use super::json::Json;
use super::metrics::FLOWS_SHOWN;
use super::process::Process;
use super::query::Query;
use crate::admission::AdmissionService;

/// Version of the broker.
pub(super) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The numbers at one moment.
pub(super) struct Snapshot {
    /// Sum over the shards.
    pub(super) broker: Stats,
    /// Whether each shard answered. What is shown of one that did not is what
    /// it said last.
    pub(super) answering: Vec<bool>,
    /// Retained messages, and their bytes.
    pub(super) retained: (u64, u64),
    /// Of the shell.
    pub(super) network: Network,
    /// Of the process.
    pub(super) process: Process,
    /// What the shards obtained, if real time was asked for.
    pub(super) realtime: Option<Realtime>,
    /// Of flows, where they are admitted.
    pub(super) admission: Option<Numbers>,
    /// The first admitted flows by name.
    pub(super) flows: Vec<FlowSight>,
    /// Of the store, if there is one, and what its start found damaged.
    pub(super) store: Option<(WriterStats, u64)>,
    /// Since the start.
    pub(super) uptime_seconds: u64,
}

/// What `server.realtime` has led to.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Realtime {
    /// All memory of the process is locked.
    pub(super) memory_locked: bool,
    /// How long CPUs may take to wake up, us.
    pub(super) cpu_latency_us: Option<u64>,
    /// By shard.
    pub(super) shards: Vec<RealtimeShard>,
}

/// What one shard's thread has.
#[derive(Clone, Debug, Serialize)]
pub(super) struct RealtimeShard {
    /// Priority under SCHED_FIFO; 0: an ordinary thread.
    pub(super) priority: u8,
    /// The CPU that it is bound to.
    pub(super) cpu: Option<usize>,
}

impl From<&RealtimeStatus> for Realtime {
    fn from(status: &RealtimeStatus) -> Self {
        let shards = status.shards.iter().map(|shard| RealtimeShard {
            priority: shard.priority.unwrap_or(0),
            cpu: shard.cpu,
        });
        Self {
            memory_locked: status.memory_locked,
            cpu_latency_us: status.cpu_latency.map(|most| most.as_micros() as u64),
            shards: shards.collect(),
        }
    }
}

/// Numbers of the shell around the shards.
#[derive(Debug, Serialize)]
pub(super) struct Network {
    pub(super) connections: u64,
    pub(super) listeners: Vec<ListenerConnections>,
    pub(super) connections_refused: u64,
    pub(super) accept_errors: u64,
    pub(super) accept_delays: u64,
    pub(super) layer_errors: u64,
    pub(super) receive_memory_exceeded: u64,
    pub(super) events_lost: u64,
    pub(super) event_loop_drift_seconds: f64,
    pub(super) event_loop_drift_max_seconds: f64,
    pub(super) turn_overruns: Vec<TurnOverruns>,
    /// Counters of UDP: name, meaning, value; for the metrics alone.
    #[serde(skip)]
    pub(super) udp: Vec<(&'static str, &'static str, u64)>,
    /// The same of QUIC.
    #[serde(skip)]
    pub(super) quic: Vec<(&'static str, &'static str, u64)>,
}

/// Pieces of one kind of work in the shards' event loops.
#[derive(Debug, Serialize)]
pub(super) struct TurnOverruns {
    pub(super) work: &'static str,
    /// How many took longer than they may.
    pub(super) overruns: u64,
    /// The longest since the start.
    pub(super) longest_seconds: f64,
    /// The most units of work in one; 0 where they are not counted.
    pub(super) longest_units: u64,
}

/// Connections of one listener.
#[derive(Debug, Serialize)]
pub(super) struct ListenerConnections {
    pub(super) listener: String,
    pub(super) connections: u64,
}

impl Snapshot {
    pub(super) async fn take(app: &App) -> Self {
        let answers = app.shards.ask_all(|shard, _| shard.stats().clone()).await;
        let answering = answers.iter().map(Result::is_ok).collect();
        let mut broker = Stats::default();
        let mut counted = app.counted.write().unwrap_or_else(PoisonError::into_inner);
        for (last, answer) in counted.iter_mut().zip(answers) {
            if let Ok(answer) = answer {
                *last = answer;
            }
            broker.add(last);
        }
        drop(counted);
        let (messages, bytes) = app.directory.retained_totals();
        Self {
            broker,
            answering,
            retained: (messages as u64, bytes as u64),
            network: Network::now(app),
            process: Process::now(),
            realtime: app.realtime.as_ref().map(Realtime::from),
            admission: app.parts.admission.as_ref().map(Numbers::now),
            flows: flows(&app.directory),
            store: app
                .parts
                .keeper
                .as_ref()
                .and_then(|keeper| Some((keeper.stats()?, keeper.found().count))),
            uptime_seconds: app.started.elapsed().as_secs(),
        }
    }

    /// Connections that the broker ended, by reason; those that can be a reason
    /// are there from the start.
    pub(super) fn disconnects(&self) -> BTreeMap<String, u64> {
        let possible = ReasonCode::ALL
            .iter()
            .filter(|reason| reason.is_error() && reason.allowed_in(PacketType::Disconnect));
        let possible = possible.map(|reason| (reason_label(reason.byte()), 0));
        let counted = self.broker.disconnects.iter();
        let counted = counted.map(|(reason, count)| (reason_label(*reason), *count));
        possible.chain(counted).collect()
    }
}

/// How flows fare.
pub(super) struct Numbers {
    pub(super) admitted: u64,
    pub(super) waiting: u64,
    pub(super) rejected: u64,
    pub(super) decisions: u64,
    pub(super) seconds: f64,
    pub(super) longest_seconds: f64,
}

impl Numbers {
    fn now(admission: &AdmissionService) -> Self {
        let timing = admission.timing();
        let seconds = |nanos: &AtomicU64| nanos.load(Ordering::Relaxed) as f64 / 1e9;
        let (admitted, waiting, rejected) = admission.numbers();
        Self {
            admitted,
            waiting,
            rejected,
            decisions: timing.decisions.load(Ordering::Relaxed),
            seconds: seconds(&timing.total_ns),
            longest_seconds: seconds(&timing.longest_ns),
        }
    }
}

impl Network {
    fn now(app: &App) -> Self {
        let counters = &app.counters;
        let seconds = |nanos: u64| nanos as f64 / 1e9;
        let listeners = app.listeners.iter().zip(&counters.per_listener);
        Self {
            connections: counters.open.load(Ordering::Relaxed) as u64,
            listeners: listeners
                .map(|(listener, connections)| ListenerConnections {
                    listener: listener.clone(),
                    connections: connections.load(Ordering::Relaxed) as u64,
                })
                .collect(),
            connections_refused: counters.connections_refused.load(Ordering::Relaxed),
            accept_errors: counters.accept_errors.load(Ordering::Relaxed),
            accept_delays: counters.accept_delays.load(Ordering::Relaxed),
            layer_errors: counters.layer_errors.load(Ordering::Relaxed),
            receive_memory_exceeded: counters.receive_memory_exceeded.load(Ordering::Relaxed),
            events_lost: counters.events_lost.load(Ordering::Relaxed),
            event_loop_drift_seconds: seconds(counters.drift.load(Ordering::Relaxed)),
            event_loop_drift_max_seconds: seconds(counters.max_drift.load(Ordering::Relaxed)),
            turn_overruns: Piece::ALL
                .map(|piece| TurnOverruns {
                    work: piece.name(),
                    overruns: counters.overruns.count(piece),
                    longest_seconds: seconds(counters.overruns.longest(piece).0),
                    longest_units: counters.overruns.most_units(piece),
                })
                .into(),
            udp: counters.udp.all(),
            quic: counters.quic.all(),
        }
    }
}

/// The first admitted flows by name, a few at a time: shards wait for the list while it is read.
fn flows(directory: &Directory) -> Vec<FlowSight> {
    const PIECE: usize = 64;
    let (mut flows, mut after) = (Vec::new(), None);
    while flows.len() < FLOWS_SHOWN {
        let most = PIECE.min(FLOWS_SHOWN - flows.len());
        let (next, last) = directory.flows(after.as_deref(), most);
        flows.extend(next);
        if last.is_none() {
            break;
        }
        after = last;
    }
    flows
}

/// The name that the specification gives a reason, in the form that labels have.
fn reason_label(reason: u8) -> String {
    match ReasonCode::from_byte(reason) {
        Some(reason) => reason.name().to_lowercase().replace([' ', '-'], "_"),
        None => format!("0x{reason:02x}"),
    }
}

/// `GET /api/v1/stats`.
#[derive(Serialize)]
pub(super) struct Answer {
    version: &'static str,
    uptime_seconds: u64,
    /// Whether each shard answers.
    shards: Vec<bool>,
    /// Counters and gauges of the broker.
    broker: BTreeMap<&'static str, u64>,
    disconnects: BTreeMap<String, u64>,
    retained: Retained,
    network: Network,
    process: Process,
    /// Absent without `server.realtime`.
    #[serde(skip_serializing_if = "Option::is_none")]
    realtime: Option<Realtime>,
}

#[derive(Serialize)]
struct Retained {
    messages: u64,
    bytes: u64,
}

pub(super) async fn get(State(app): State<Arc<App>>, uri: Uri) -> Result<Json<Answer>, ApiError> {
    Query::new(&uri).finish()?;
    let snapshot = Snapshot::take(&app).await;
    Ok(Json(Answer {
        version: VERSION,
        uptime_seconds: snapshot.uptime_seconds,
        broker: snapshot.broker.fields().collect(),
        disconnects: snapshot.disconnects(),
        shards: snapshot.answering,
        retained: Retained {
            messages: snapshot.retained.0,
            bytes: snapshot.retained.1,
        },
        network: snapshot.network,
        process: snapshot.process,
        realtime: snapshot.realtime,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_labels() {
        assert_eq!(reason_label(0x98), "administrative_action");
        assert_eq!(reason_label(0x8D), "keep_alive_timeout");
        assert_eq!(reason_label(0x77), "0x77");
        for reason in ReasonCode::ALL {
            let label = reason_label(reason.byte());
            let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
            assert!(label.chars().all(plain), "{label}");
        }
    }
}
