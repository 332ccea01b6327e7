//! Admitted flows: what each was promised beside what was seen of it. The label
//! is the flow's name; the first by name have one.

use punctual_broker::{FlowSight, Nanos};

use super::exposition::{Exposition, Kind};

/// Flows that are shown.
pub(in crate::http) const SHOWN: usize = 1000;

pub(super) fn write(flows: &[FlowSight], out: &mut Exposition) {
    let seconds = |nanos: Nanos| nanos.0 as f64 / 1e9;
    for (name, help, time) in [
        (
            "punctual_flow_bound_seconds",
            "Worst case from end to end, as the publisher was last told.",
            (|flow: &FlowSight| flow.bound) as fn(&FlowSight) -> Option<Nanos>,
        ),
        (
            "punctual_flow_deadline_seconds",
            "Deadline from end to end.",
            |flow| flow.deadline,
        ),
        (
            "punctual_flow_broker_seconds_max",
            "Longest time from the broker's reading of a message to its writing to a receiver.",
            |flow| (flow.latency.count > 0).then_some(flow.latency.max),
        ),
        (
            "punctual_flow_broker_seconds_p99",
            "99 % of these times were not longer.",
            |flow| (flow.latency.count > 0).then(|| flow.latency.percentile(990)),
        ),
    ] {
        out.family(name, Kind::Gauge, help);
        for flow in flows {
            if let Some(time) = time(flow) {
                out.sample(&[("flow", &flow.name)], seconds(time));
            }
        }
    }
    for (name, help, count) in [
        (
            "punctual_flow_sent_total",
            "Messages that were written to receivers when they came.",
            (|flow: &FlowSight| flow.latency.count) as fn(&FlowSight) -> u64,
        ),
        (
            "punctual_flow_misses_total",
            "Messages that were past their deadline when they were written, or dropped for it.",
            |flow| flow.misses,
        ),
        (
            "punctual_flow_held_total",
            "Messages that waited for a client that was away or took no more.",
            |flow| flow.held,
        ),
        (
            "punctual_flow_undeclared_total",
            "Messages that were larger or sooner than the publisher declared.",
            |flow| flow.violations,
        ),
    ] {
        out.family(name, Kind::Counter, help);
        for flow in flows {
            out.sample(&[("flow", &flow.name)], count(flow));
        }
    }
}
