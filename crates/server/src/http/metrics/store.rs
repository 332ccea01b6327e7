//! What survives the process, and how writing it fares.

use std::ops::RangeInclusive;

use punctual_store::{Histogram, WriterStats};

use super::super::store::seconds;
use super::Exposition;
use super::Kind::{self, Counter, Gauge};

/// Bounds of durations: from about 32 microseconds to about 17 seconds, in nanoseconds.
const DURATIONS: RangeInclusive<u64> = (1 << 15) - 1..=(1 << 34) - 1;
/// Bounds of bytes: from 64 to 64 Mi.
const SIZES: RangeInclusive<u64> = (1 << 6) - 1..=(1 << 26) - 1;

/// `damages` is what the start found damaged.
pub(super) fn write(stats: &WriterStats, damages: u64, out: &mut Exposition) {
    let store = &stats.store;
    out.one(
        "punctual_store_failing",
        Gauge,
        "Whether writing fails; what would have to be stored is refused meanwhile.",
        u8::from(stats.failing.is_some()),
    );
    for (name, kind, help, value) in [
        (
            "punctual_store_failures_total",
            Counter,
            "Attempts to write that failed.",
            stats.failures,
        ),
        (
            "punctual_store_damages",
            Gauge,
            "Places of the files that the start could not read, and left out.",
            damages,
        ),
        (
            "punctual_store_sessions",
            Gauge,
            "Sessions stored.",
            store.sessions,
        ),
        (
            "punctual_store_entries",
            Gauge,
            "Messages stored for sessions, one for each.",
            store.entries,
        ),
        (
            "punctual_store_retained_messages",
            Gauge,
            "Retained messages stored.",
            store.retained,
        ),
        (
            "punctual_store_live_bytes",
            Gauge,
            "Bytes that the stored state needs.",
            store.live_bytes,
        ),
        (
            "punctual_store_disk_bytes",
            Gauge,
            "Bytes that it takes on the disk.",
            store.disk_bytes,
        ),
        (
            "punctual_store_waiting_bytes",
            Gauge,
            "Bytes that wait for a commit.",
            stats.waiting_bytes as u64,
        ),
        (
            "punctual_store_written_bytes_total",
            Counter,
            "Bytes written.",
            store.written_bytes,
        ),
        (
            "punctual_store_moved_bytes_total",
            Counter,
            "Bytes written again to give back room.",
            store.moved_bytes,
        ),
    ] {
        out.one(name, kind, help, value);
    }
    out.one(
        "punctual_store_waiting_seconds",
        Gauge,
        "How long the oldest of them has waited.",
        stats.oldest_wait.unwrap_or_default().as_secs_f64(),
    );
    histogram(
        out,
        "punctual_store_commit_seconds",
        "Duration of commits that had something to write.",
        &stats.commit_nanos,
        DURATIONS,
        seconds,
    );
    histogram(
        out,
        "punctual_store_wait_seconds",
        "From the end of a shard's turn to the commit of what happened in it.",
        &stats.wait_nanos,
        DURATIONS,
        seconds,
    );
    histogram(
        out,
        "punctual_store_group_bytes",
        "Bytes of a group that is committed.",
        &stats.group_bytes,
        SIZES,
        |bytes| bytes as f64,
    );
}

fn histogram(
    out: &mut Exposition,
    name: &'static str,
    help: &str,
    values: &Histogram,
    shown: RangeInclusive<u64>,
    unit: impl Fn(u64) -> f64,
) {
    out.family(name, Kind::Histogram, help);
    let mut below = 0;
    for (bucket, count) in values.buckets.iter().enumerate() {
        below += count;
        let upper = Histogram::upper(bucket);
        if shown.contains(&upper) {
            let upper = unit(upper).to_string();
            out.part("_bucket", &[("le", &upper)], below);
        }
    }
    out.part("_bucket", &[("le", "+Inf")], values.count());
    out.part("_sum", &[], unit(values.sum));
    out.part("_count", &[], values.count());
}
