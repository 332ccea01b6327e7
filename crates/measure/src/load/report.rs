//! The result of a run, for people and for programs.

use std::fmt;

use serde::Serialize;

use super::engine::Engine;
use super::{Latency, Mark, Options, Pace, Scenario};
use crate::watch::Memory;
use crate::wire::Version;

/// What a run found.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Shape of the traffic, as typed.
    pub scenario: String,
    /// Protocol version.
    pub version: Version,
    /// QoS of publications and subscriptions.
    pub qos: u8,
    /// When publishers sent.
    pub pace: Pace,
    /// Payload bytes.
    pub payload: usize,
    /// Length of the measured interval, s.
    pub measured_s: f64,
    /// Messages received in the measured interval per second.
    pub delivered_per_s: f64,
    /// Messages published in the whole run.
    pub sent: u64,
    /// Deliveries due in the whole run: messages times receivers.
    pub expected: u64,
    /// Deliveries due that never came.
    pub lost: u64,
    /// Deliveries that came after a later one of the same publisher.
    pub out_of_order: u64,
    /// Deliveries that came twice.
    pub duplicates: u64,
    /// Messages nobody asked for.
    pub strays: u64,
    /// Publications refused with a version 5 reason code.
    pub refused: u64,
    /// Times that nothing arrived for a second although windows were full.
    pub stalls: u64,
    /// From send (windows) or intended send (rates) to receipt.
    pub latency: Option<Latency>,
    /// When messages were sent (or meant to be sent) and received, ns on `CLOCK_MONOTONIC`, of as many
    /// as [`Options::keep`] says.
    #[serde(skip)]
    pub times: Vec<(u64, u64)>,
    /// Factory: (TD - TA) - (TC - TB).
    pub round_trip: Option<Latency>,
    /// From send (or intended send) to the end of the acknowledgement, where it was asked for.
    pub acks: Option<Latency>,
    /// Publications acknowledged in the measured interval per second, where they were timed.
    pub acknowledged_per_s: Option<f64>,
    /// CPU time of the generator's thread as a share of the measured interval.
    pub generator_cpu_share: f64,
    /// CPU time, system calls and memory of the broker in the run, if its process was known.
    pub broker: Option<BrokerCost>,
    /// What idle connections cost (scenario `idle`).
    pub idle: Option<IdleCost>,
}

/// What a run cost the broker.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct BrokerCost {
    /// CPU time as a share of the measured interval; above 1 with several threads.
    pub cpu_share: f64,
    /// CPU seconds per million delivered messages.
    pub cpu_s_per_million: Option<f64>,
    /// System calls per delivered message, counted after the measured interval.
    pub syscalls_per_message: Option<f64>,
    /// Resident memory at the end, bytes.
    pub rss: u64,
    /// Largest resident memory so far, bytes.
    pub rss_peak: u64,
}

/// What idle connections cost.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct IdleCost {
    /// Connections made.
    pub connections: u32,
    /// Connections made per second, one after the other, SUBACK included.
    pub connects_per_s: f64,
    /// Growth of the memory that the broker has made itself (not code or other
    /// parts of files) per connection, bytes.
    pub bytes_per_connection: Option<f64>,
    /// Resident memory before, bytes.
    pub rss_before: Option<u64>,
    /// Resident memory after, bytes.
    pub rss_after: Option<u64>,
    /// CPU use of the broker while all connections idle, percent of a core.
    pub broker_cpu_percent: Option<f64>,
}

impl Report {
    pub(super) fn of_traffic(
        options: &Options,
        engine: &mut Engine,
        begin: &Mark,
        end: &Mark,
        syscalls: Option<f64>,
        memory: Option<Memory>,
    ) -> Self {
        let seconds = (end.time - begin.time) as f64 / 1e9;
        let delivered = (end.delivered - begin.delivered) as f64;
        let cpu = begin
            .broker_cpu
            .zip(end.broker_cpu)
            .map(|(begin, end)| (end - begin) as f64 / 1e9);
        let mut report = Self {
            measured_s: seconds,
            delivered_per_s: delivered / seconds,
            sent: engine.sent(),
            expected: engine.expected,
            strays: engine.meter.strays,
            refused: engine.meter.refused,
            stalls: engine.stalls,
            latency: engine.meter.latency.summary(),
            times: std::mem::take(&mut engine.meter.times),
            round_trip: engine.meter.round_trip.summary(),
            acks: engine.meter.acks.summary(),
            acknowledged_per_s: (options.acks && options.qos > 0)
                .then(|| engine.meter.acknowledged as f64 / seconds),
            generator_cpu_share: (end.own_cpu - begin.own_cpu) as f64 / 1e9 / seconds,
            broker: cpu.zip(memory).map(|(cpu, memory)| BrokerCost {
                cpu_share: cpu / seconds,
                cpu_s_per_million: (delivered > 0.0).then(|| cpu * 1e6 / delivered),
                syscalls_per_message: syscalls,
                rss: memory.resident,
                rss_peak: memory.peak,
            }),
            ..Self::empty(options)
        };
        let mut unique = 0;
        for track in engine.tracks() {
            unique += track.unique();
            report.out_of_order += track.out_of_order();
            report.duplicates += track.duplicates();
        }
        report.lost = engine.expected.saturating_sub(unique);
        report
    }

    pub(super) fn of_idle(options: &Options, cost: IdleCost) -> Self {
        Self {
            idle: Some(cost),
            ..Self::empty(options)
        }
    }

    /// A report of nothing.
    pub fn empty(options: &Options) -> Self {
        Self {
            scenario: options.scenario.to_string(),
            version: options.version,
            qos: options.qos,
            pace: options.pace,
            payload: options.payload,
            measured_s: 0.0,
            delivered_per_s: 0.0,
            sent: 0,
            expected: 0,
            lost: 0,
            out_of_order: 0,
            duplicates: 0,
            strays: 0,
            refused: 0,
            stalls: 0,
            latency: None,
            times: Vec::new(),
            round_trip: None,
            acks: None,
            acknowledged_per_s: None,
            generator_cpu_share: 0.0,
            broker: None,
            idle: None,
        }
    }

    /// Whether every message arrived once and in order.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.lost + self.out_of_order + self.duplicates + self.strays + self.refused + self.stalls
            == 0
    }

    /// The counts of what went wrong, in words.
    #[must_use]
    pub fn faults(&self) -> String {
        let counts = [
            (self.lost, "lost"),
            (self.out_of_order, "out of order"),
            (self.duplicates, "duplicated"),
            (self.strays, "stray"),
            (self.refused, "refused"),
            (self.stalls, "stalls"),
        ];
        let faults: Vec<String> = counts
            .iter()
            .filter(|(count, _)| *count > 0)
            .map(|(count, what)| format!("{count} {what}"))
            .collect();
        if faults.is_empty() {
            "none lost, reordered or duplicated".to_owned()
        } else {
            faults.join(", ")
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pace = match self.pace {
            _ if self.scenario == Scenario::Factory.to_string() => "paced".to_owned(),
            Pace::Window(window) => format!("window {window}"),
            Pace::FlatOut => "flat out".to_owned(),
            Pace::Rate(rate) => format!("{rate} msg/s"),
        };
        writeln!(
            f,
            "{} MQTT {} QoS {} {} payload {} B",
            self.scenario, self.version, self.qos, pace, self.payload
        )?;
        if let Some(idle) = &self.idle {
            return idle.fmt(f);
        }
        writeln!(
            f,
            "  delivered   {:.0} msg/s over {:.2} s ({} sent in all, {})",
            self.delivered_per_s,
            self.measured_s,
            self.sent,
            self.faults()
        )?;
        if let Some(latency) = &self.latency {
            writeln!(f, "  latency     {latency}")?;
        }
        if let Some(round_trip) = &self.round_trip {
            writeln!(f, "  round trip  {round_trip}")?;
        }
        if let Some(acks) = &self.acks {
            writeln!(f, "  acks        {acks}")?;
        }
        write!(
            f,
            "  generator   {:.0} % of a core",
            100.0 * self.generator_cpu_share
        )?;
        if let Some(broker) = &self.broker {
            write!(
                f,
                "\n  broker      {:.0} % of a core",
                100.0 * broker.cpu_share
            )?;
            if let Some(cpu) = broker.cpu_s_per_million {
                write!(f, ", {cpu:.3} CPU s per million")?;
            }
            if let Some(calls) = broker.syscalls_per_message {
                write!(f, ", {calls:.3} system calls per message")?;
            }
            write!(
                f,
                ", {:.1} MiB resident (peak {:.1})",
                mib(broker.rss),
                mib(broker.rss_peak)
            )?;
        }
        Ok(())
    }
}

impl fmt::Display for Latency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "mean {:.1} ± {:.1}, p50 {:.1}, p99 {:.1}, p99.9 {:.1}, max {:.1} µs",
            self.mean_us, self.stdev_us, self.p50_us, self.p99_us, self.p999_us, self.max_us
        )
    }
}

impl fmt::Display for IdleCost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "  {} connections at {:.0} per second",
            self.connections, self.connects_per_s
        )?;
        if let Some(bytes) = self.bytes_per_connection {
            write!(f, ", {bytes:.0} bytes each")?;
        }
        if let Some((before, after)) = self.rss_before.zip(self.rss_after) {
            write!(f, " ({:.1} to {:.1} MiB)", mib(before), mib(after))?;
        }
        if let Some(cpu) = self.broker_cpu_percent {
            write!(f, ", {cpu:.2} % CPU while idle")?;
        }
        Ok(())
    }
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / (1024.0 * 1024.0)
}
