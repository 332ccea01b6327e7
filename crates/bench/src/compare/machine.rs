//! Description of the machine that ran the comparison, from `/proc`.

use std::fs;
use std::io::Read as _;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;

/// The machine, and the date of the comparison.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Machine {
    pub(crate) cpu: String,
    pub(crate) cores: usize,
    pub(crate) memory_gib: f64,
    /// Release of Linux, and whether a limit on the wake-up latency of CPUs is set.
    pub(crate) kernel: String,
    /// Default TCP congestion control.
    pub(crate) congestion_control: String,
    /// Mean number of runnable tasks in the minute before the comparison: above about 0.5, other
    /// programs disturb it.
    pub(crate) load_average: String,
    /// Date in UTC, as 2026-11-21.
    pub(crate) date: String,
}

impl Machine {
    pub(crate) fn read() -> Self {
        let file = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let after = |text: &str, key: &str| {
            text.lines()
                .find(|line| line.starts_with(key))
                .and_then(|line| line.split_once(':'))
                .map_or_else(
                    || "unknown".to_owned(),
                    |(_, value)| value.trim().to_owned(),
                )
        };
        let kib = after(&file("/proc/meminfo"), "MemTotal");
        let kib = kib.split_whitespace().next().and_then(|n| n.parse().ok());
        let today = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |time| time.as_secs() / 86_400);
        Self {
            cpu: after(&file("/proc/cpuinfo"), "model name"),
            // All CPUs, and not only the one to which this thread is pinned.
            cores: file("/proc/cpuinfo")
                .lines()
                .filter(|line| line.starts_with("processor"))
                .count(),
            memory_gib: kib.unwrap_or(0.0) / (1024.0 * 1024.0),
            kernel: {
                let release = file("/proc/sys/kernel/osrelease").trim().to_owned();
                match most_to_wake_us() {
                    Some(0) => release + " with CPUs that do not sleep",
                    _ => release,
                }
            },
            congestion_control: file("/proc/sys/net/ipv4/tcp_congestion_control")
                .trim()
                .to_owned(),
            load_average: file("/proc/loadavg")
                .split_whitespace()
                .next()
                .unwrap_or("unknown")
                .to_owned(),
            date: civil_date(today),
        }
    }
}

/// Longest wake-up latency of a CPU in µs that any process has requested (PM QoS).
fn most_to_wake_us() -> Option<i32> {
    let mut bytes = [0; 4];
    let mut file = fs::File::open("/dev/cpu_dma_latency").ok()?;
    file.read_exact(&mut bytes).ok()?;
    Some(i32::from_ne_bytes(bytes))
}

/// The Gregorian date of a day that is counted from 1970-01-01.
fn civil_date(mut day: u64) -> String {
    let mut year = 1970;
    let leap = |year: u64| {
        year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
    };
    loop {
        let length = if leap(year) { 366 } else { 365 };
        if day < length {
            break;
        }
        day -= length;
        year += 1;
    }
    let february = if leap(year) { 29 } else { 28 };
    let mut month = 1;
    for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
        if day < length {
            break;
        }
        day -= length;
        month += 1;
    }
    format!("{year}-{month:02}-{:02}", day + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_gregorian() {
        for (day, date) in [
            (0, "1970-01-01"),
            (11_016, "2000-02-29"),
            (11_017, "2000-03-01"),
            (20_453, "2025-12-31"),
            (20_778, "2026-11-21"),
        ] {
            assert_eq!(civil_date(day), date);
        }
    }
}
