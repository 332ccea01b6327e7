//! What is counted by traffic class: waiting, sent, dropped, missed.

use punctual_broker::{Class, ClassStats, Nanos, Stats, Wait};

use super::exposition::{Exposition, Kind};

pub(super) fn write(stats: &Stats, out: &mut Exposition) {
    let classes = || {
        let all = Class::ALL.iter().zip(&stats.classes);
        all.map(|(class, stats)| (class.name(), stats))
    };
    let mut family = |name, kind, help: &str, value: fn(&ClassStats) -> u64| {
        out.family(name, kind, help);
        for (class, stats) in classes() {
            out.sample(&[("class", class)], value(stats));
        }
    };
    family(
        "punctual_egress_sent_total",
        Kind::Counter,
        "Messages sent, by traffic class.",
        |class| class.sent,
    );
    family(
        "punctual_egress_waiting_messages",
        Kind::Gauge,
        "Messages with a priority or a requirement that wait for their connections.",
        |class| class.waiting,
    );
    family(
        "punctual_egress_queued_messages",
        Kind::Gauge,
        "Messages that wait in queues of sessions.",
        |class| class.queued,
    );
    family(
        "punctual_deadline_misses_total",
        Kind::Counter,
        "Messages sent after their deadline.",
        |class| class.missed,
    );
    out.family(
        "punctual_egress_dropped_total",
        Kind::Counter,
        "Messages dropped before they were sent: the connection's lanes were full, the \
         message was late and rt-late is drop, it had expired, the session's queue was \
         full or the receiver too slow, or the connection was lost.",
    );
    for (class, stats) in classes() {
        for (reason, count) in [
            ("full", stats.dropped_full),
            ("late", stats.dropped_late),
            ("expired", stats.dropped_expired),
            ("queue", stats.dropped_queue),
            ("gone", stats.dropped_gone),
        ] {
            out.sample(&[("class", class), ("reason", reason)], count);
        }
    }
    out.family(
        "punctual_egress_wait_seconds",
        Kind::Histogram,
        "Time that messages with a priority or a requirement waited in the broker.",
    );
    for (class, stats) in classes() {
        histogram(out, ("class", class), &stats.wait);
    }
    out.family(
        "punctual_egress_held_seconds",
        Kind::Histogram,
        "Time that messages waited in queues of sessions before they came to the lanes.",
    );
    for (class, stats) in classes() {
        histogram(out, ("class", class), &stats.held);
    }
    out.family(
        "punctual_egress_passage_seconds",
        Kind::Histogram,
        "Time from the arrival of messages to their writing to a receiver, by samples.",
    );
    for (class, stats) in classes() {
        histogram(out, ("class", class), &stats.passage);
    }
    out.family(
        "punctual_egress_depth_messages",
        Kind::Histogram,
        "How many messages of their class waited, counted each time one was added.",
    );
    for (class, stats) in classes() {
        let (class, depth) = (("class", class), &stats.depth);
        for (bound, count) in depth.cumulative() {
            out.part("_bucket", &[class, ("le", &bound.to_string())], count);
        }
        out.part("_bucket", &[class, ("le", "+Inf")], depth.count);
        out.part("_sum", &[class], depth.sum);
        out.part("_count", &[class], depth.count);
    }
    out.family(
        "punctual_egress_depth_messages_max",
        Kind::Gauge,
        "Most messages that waited at one time since the start.",
    );
    for (class, stats) in classes() {
        out.sample(&[("class", class)], stats.depth.max);
    }
    let used = || {
        let all = stats.priorities.iter().enumerate();
        all.filter(|(_, wait)| wait.count > 0)
    };
    if used().next().is_none() {
        return;
    }
    out.family(
        "punctual_egress_priority_wait_seconds",
        Kind::Histogram,
        "The same by the value of priority; 15 stands for 15 and more.",
    );
    for (priority, wait) in used() {
        histogram(out, ("priority", &priority.to_string()), wait);
    }
}

fn histogram(out: &mut Exposition, label: (&str, &str), wait: &Wait) {
    let seconds = |nanos: Nanos| nanos.0 as f64 / 1e9;
    for (bound, count) in wait.cumulative() {
        let bound = seconds(bound).to_string();
        out.part("_bucket", &[label, ("le", &bound)], count);
    }
    out.part("_bucket", &[label, ("le", "+Inf")], wait.count);
    out.part("_sum", &[label], seconds(Nanos(wait.sum)));
    out.part("_count", &[label], wait.count);
}
