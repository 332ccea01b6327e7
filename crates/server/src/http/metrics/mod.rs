//! `GET /metrics`: the numbers for Prometheus, in its text format 0.0.4.
//!
//! Names are in base units, counters end in `_total`, labels have few values
//! that do not depend on clients, except for those of admitted flows, of which
//! there is a bounded number.

mod classes;
mod exposition;
mod families;
mod flows;
mod mesh;
mod store;

use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderName, Uri};

pub(super) use self::exposition::{Exposition, Kind};
pub(super) use self::flows::SHOWN as FLOWS_SHOWN;
use super::App;
use super::authorization::Caller;
use super::error::ApiError;
use super::query::Query;
use super::stats::{Network, Numbers, Realtime, Snapshot, VERSION};
use Kind::{Counter, Gauge};

const TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";

pub(super) async fn get(
    State(app): State<Arc<App>>,
    Extension(Caller(role)): Extension<Caller>,
    uri: Uri,
) -> Result<([(HeaderName, &'static str); 1], String), ApiError> {
    Query::new(&uri).finish()?;
    let mut snapshot = Snapshot::take(&app).await;
    if role.is_none() {
        // Their names have topics and client identifiers in them.
        snapshot.flows.clear();
    }
    let mut text = write(&snapshot);
    if let Some(mesh) = &app.parts.mesh
        && let Some(overview) = mesh.status().await
    {
        text.push_str(&mesh::text(&overview));
    }
    if let Some(bridges) = &app.parts.bridges {
        text.push_str(&mesh::bridges(bridges));
    }
    Ok(([(CONTENT_TYPE, TEXT)], text))
}

fn write(snapshot: &Snapshot) -> String {
    let mut out = Exposition::default();
    out.family(
        "punctual_build_info",
        Gauge,
        "Version of the broker; always 1.",
    );
    out.sample(&[("version", VERSION)], 1);
    out.family(
        "punctual_shard_up",
        Gauge,
        "Whether a shard answers. What is counted of one that does not is what it last said.",
    );
    for (shard, up) in snapshot.answering.iter().enumerate() {
        out.sample(&[("shard", &shard.to_string())], u8::from(*up));
    }
    families::write(&snapshot.broker, &mut out);
    classes::write(&snapshot.broker, &mut out);
    out.family(
        "punctual_disconnects_total",
        Counter,
        "Connections ended by the broker, by MQTT reason.",
    );
    for (reason, count) in snapshot.disconnects() {
        out.sample(&[("reason", &reason)], count);
    }
    let (messages, bytes) = snapshot.retained;
    out.one(
        "punctual_retained_messages",
        Gauge,
        "Retained messages.",
        messages,
    );
    out.one(
        "punctual_retained_bytes",
        Gauge,
        "Size of the retained messages.",
        bytes,
    );
    if let Some(numbers) = &snapshot.admission {
        admission(numbers, &mut out);
        flows::write(&snapshot.flows, &mut out);
    }
    if let Some((stats, damages)) = &snapshot.store {
        store::write(stats, *damages, &mut out);
    }
    network(&snapshot.network, &mut out);
    if let Some(status) = &snapshot.realtime {
        realtime(status, &mut out);
    }
    process(snapshot, &mut out);
    out.finish()
}

fn admission(numbers: &Numbers, out: &mut Exposition) {
    out.one(
        "punctual_flows_admitted",
        Gauge,
        "Flows whose deadlines are promised.",
        numbers.admitted,
    );
    out.one(
        "punctual_flows_waiting",
        Gauge,
        "Flows that were rejected and are looked at again when others go.",
        numbers.waiting,
    );
    out.one(
        "punctual_flow_rejections_total",
        Counter,
        "Requirements that were rejected.",
        numbers.rejected,
    );
    out.one(
        "punctual_admission_decisions_total",
        Counter,
        "Questions and news that were dealt with.",
        numbers.decisions,
    );
    out.one(
        "punctual_admission_seconds_total",
        Counter,
        "Time that this took.",
        numbers.seconds,
    );
    out.one(
        "punctual_admission_longest_seconds",
        Gauge,
        "Longest time that one of them took.",
        numbers.longest_seconds,
    );
}

fn network(network: &Network, out: &mut Exposition) {
    out.family(
        "punctual_listener_connections",
        Gauge,
        "Connections open, by listener.",
    );
    for listener in &network.listeners {
        out.sample(&[("listener", &listener.listener)], listener.connections);
    }
    for (name, help, value) in [
        (
            "punctual_connections_refused_total",
            "Connections closed because there were too many.",
            network.connections_refused,
        ),
        (
            "punctual_accept_errors_total",
            "Failed attempts to accept a connection, for example without free file descriptors.",
            network.accept_errors,
        ),
        (
            "punctual_accept_delays_total",
            "Times that accepting waited: rate, half-open connections, overload.",
            network.accept_delays,
        ),
        (
            "punctual_layer_errors_total",
            "Connections ended by errors of TLS, WebSocket or the PROXY protocol.",
            network.layer_errors,
        ),
        (
            "punctual_receive_memory_exceeded_total",
            "Connections ended because incomplete packets took too much memory.",
            network.receive_memory_exceeded,
        ),
        (
            "punctual_events_lost_total",
            "Events that the log could not take.",
            network.events_lost,
        ),
    ] {
        out.one(name, Counter, help, value);
    }
    for (name, help, value) in network.udp.iter().chain(&network.quic) {
        out.one(name, Counter, help, value);
    }
    out.one(
        "punctual_event_loop_drift_seconds",
        Gauge,
        "Longest turn of a shard's event loop lately: how late a message may be served.",
        network.event_loop_drift_seconds,
    );
    out.one(
        "punctual_event_loop_drift_max_seconds",
        Gauge,
        "Longest turn of a shard's event loop since the start.",
        network.event_loop_drift_max_seconds,
    );
    out.family(
        "punctual_turn_overrun_total",
        Counter,
        "Pieces of work in a shard's event loop that took longer than they may.",
    );
    for one in &network.turn_overruns {
        out.sample(&[("work", one.work)], one.overruns);
    }
    out.family(
        "punctual_turn_longest_seconds",
        Gauge,
        "Longest piece of work in a shard's event loop since the start.",
    );
    for one in &network.turn_overruns {
        out.sample(&[("work", one.work)], one.longest_seconds);
    }
    out.family(
        "punctual_turn_longest_units",
        Gauge,
        "Most units of work that the broker has done in one piece since the start; 0 where they \
         are not counted.",
    );
    for one in &network.turn_overruns {
        out.sample(&[("work", one.work)], one.longest_units);
    }
}

/// What of `server.realtime` was obtained; nothing where it is off.
fn realtime(realtime: &Realtime, out: &mut Exposition) {
    out.family(
        "punctual_shard_realtime_priority",
        Gauge,
        "Priority of a shard's thread under SCHED_FIFO; 0: an ordinary thread.",
    );
    for (shard, status) in realtime.shards.iter().enumerate() {
        out.sample(&[("shard", &shard.to_string())], status.priority);
    }
    out.one(
        "punctual_memory_locked",
        Gauge,
        "Whether all memory of the process is locked.",
        u8::from(realtime.memory_locked),
    );
    if let Some(most) = realtime.cpu_latency_us {
        out.one(
            "punctual_cpu_latency_limit_seconds",
            Gauge,
            "How long CPUs that sleep may take to wake up.",
            most as f64 / 1e6,
        );
    }
}

fn process(snapshot: &Snapshot, out: &mut Exposition) {
    out.one(
        "punctual_uptime_seconds",
        Gauge,
        "Time since the start.",
        snapshot.uptime_seconds,
    );
    let process = &snapshot.process;
    if let Some(seconds) = process.cpu_seconds {
        let help = "Processor time, user and system.";
        out.one("process_cpu_seconds_total", Counter, help, seconds);
    }
    if let Some(bytes) = process.resident_memory_bytes {
        out.one(
            "process_resident_memory_bytes",
            Gauge,
            "Memory in RAM.",
            bytes,
        );
    }
    if let Some(files) = process.open_fds {
        out.one("process_open_fds", Gauge, "Open file descriptors.", files);
    }
    if let Some(files) = process.max_fds {
        let help = "Largest number of open file descriptors.";
        out.one("process_max_fds", Gauge, help, files);
    }
    if let Some(time) = process.start_time_seconds {
        let help = "Unix time of the start of the process.";
        out.one("process_start_time_seconds", Gauge, help, time);
    }
}
