//! Results that the PrioMQTT paper states in words and tables, to be shown beside the measured
//! ones.
//!
//! The paper's Figs. 6 to 9 are pictures, so only the values that its text states are here. The
//! paper used a PC for the broker and Raspberry Pi 4 devices on copper cables; the emulation uses
//! processes on one machine. Compare the ratios of both columns, not absolute microseconds.

/// Mean and standard deviation of a couple's round trips, ms, for 1000 B and 2 subscribers (Table
/// 3).
#[derive(Clone, Copy, Debug)]
pub(crate) struct MeanAndDeviation {
    pub(crate) mean_ms: f64,
    pub(crate) deviation_ms: f64,
}

const fn row(mean_ms: f64, deviation_ms: f64) -> MeanAndDeviation {
    MeanAndDeviation {
        mean_ms,
        deviation_ms,
    }
}

/// Table 3, PrioMQTT, by module S1 to S4.
pub(crate) const PRIOMQTT: [MeanAndDeviation; 4] = [
    row(1.17, 0.21),
    row(1.03, 0.18),
    row(1.26, 0.20),
    row(1.24, 0.20),
];

/// Table 3, standard MQTT (Mosquitto, its settings not given), by module S1 to S4.
pub(crate) const MQTT: [MeanAndDeviation; 4] = [
    row(2.40, 0.60),
    row(2.94, 0.50),
    row(6.04, 0.11),
    row(4.03, 0.13),
];

/// Share of the round trips that are within a bound.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Within {
    /// Payload bytes.
    pub(crate) payload: usize,
    pub(crate) bound_us: f64,
    /// Percent of the round trips, by module S1 to S4.
    pub(crate) percent: [f64; 4],
}

/// Shares that the paper's text states for Figs. 7 and 8.
pub(crate) const WITHIN: [Within; 2] = [
    Within {
        payload: 500,
        bound_us: 700.0,
        percent: [99.0, 99.6, 97.6, 97.3],
    },
    Within {
        payload: 1000,
        bound_us: 1200.0,
        percent: [89.6, 97.1, 67.5, 74.3],
    },
];

/// Table 2: length of the broker's transmission queue, messages, for payloads of 500 B.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QueueCount {
    pub(crate) subscribers: usize,
    pub(crate) median: u32,
    pub(crate) max: u32,
}

/// Table 2, both rows; the paper states a loss ratio below 10^-7 for both.
pub(crate) const QUEUE: [QueueCount; 2] = [
    QueueCount {
        subscribers: 2,
        median: 3,
        max: 33,
    },
    QueueCount {
        subscribers: 5,
        median: 6,
        max: 79,
    },
];

/// Payloads of Figs. 6, 7 and 8, bytes.
pub(crate) const PAYLOADS: [usize; 3] = [100, 500, 1000];

/// Payload of the queue experiment, bytes.
pub(crate) const QUEUE_PAYLOAD: usize = 500;

/// Samples of each flow of the shortest period in the round-trip experiments.
pub(crate) const ROUND_TRIP_SAMPLES: u64 = 150_000;

/// Samples of each flow of the shortest period in the queue experiment.
pub(crate) const QUEUE_SAMPLES: u64 = 3_600_000;
