//! Bytes that brokers send each other, and their processor time, in the course of an experiment.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;

use super::network::Brokers;
use punctual_measure::Result;

/// Sampling interval. The thesis' peaks are of one second each; here a broker may use less than a
/// second for a whole test.
const INTERVAL: Duration = Duration::from_millis(100);

/// Bytes of one interval.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(super) struct Traffic {
    /// End of the interval, milliseconds after the first publication.
    pub(super) until_ms: u64,
    /// Bytes of the frames that all brokers sent to others in the interval.
    pub(super) bytes: u64,
}

/// Processor time of a broker.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub(super) struct Cpu {
    /// Total processor time, ms.
    pub(super) ms: f64,
    /// Busiest interval, percent of one processor.
    pub(super) peak_percent: f64,
    /// Mean over the experiment, percent of one processor.
    pub(super) average_percent: f64,
}

/// Bytes and processor time of an experiment.
#[derive(Debug, Clone, Default, Serialize)]
pub(super) struct Usage {
    pub(super) traffic: Vec<Traffic>,
    /// By broker.
    pub(super) cpu: Vec<Cpu>,
}

impl Usage {
    /// Total bytes that all brokers sent to others.
    pub(super) fn bytes(&self) -> u64 {
        self.traffic.iter().map(|traffic| traffic.bytes).sum()
    }

    fn of(samples: &[Sample]) -> Self {
        let (Some(first), Some(last)) = (samples.first(), samples.last()) else {
            return Self::default();
        };
        let intervals = || samples.windows(2).map(|pair| (&pair[0], &pair[1]));
        let traffic = intervals().map(|(before, after)| Traffic {
            until_ms: (after.seconds * 1e3).round() as u64,
            bytes: after.bytes - before.bytes,
        });
        let share = |before: &Sample, after: &Sample, broker: usize| {
            let spent = after.cpu[broker] - before.cpu[broker];
            100.0 * spent / (after.seconds - before.seconds).max(1e-9)
        };
        let cpu = (0..first.cpu.len()).map(|broker| Cpu {
            ms: (last.cpu[broker] - first.cpu[broker]) * 1e3,
            peak_percent: intervals()
                .map(|(before, after)| share(before, after, broker))
                .fold(0.0, f64::max),
            average_percent: share(first, last, broker),
        });
        Self {
            traffic: traffic.collect(),
            cpu: cpu.collect(),
        }
    }
}

/// Counters at one time.
#[derive(Debug, Clone)]
struct Sample {
    /// Seconds since the first sample.
    seconds: f64,
    /// Bytes sent by all brokers so far.
    bytes: u64,
    /// Processor time of each broker so far, in seconds.
    cpu: Vec<f64>,
}

impl Sample {
    fn take(brokers: &Brokers, start: Instant) -> Result<Self> {
        Ok(Self {
            seconds: start.elapsed().as_secs_f64(),
            bytes: brokers.bytes()?.iter().sum(),
            cpu: brokers.cpu(),
        })
    }
}

/// Runs `work` and samples the counters meanwhile.
pub(super) fn during<T>(brokers: &Brokers, work: impl FnOnce() -> Result<T>) -> Result<(T, Usage)> {
    let start = Instant::now();
    let first = Sample::take(brokers, start)?;
    let done = AtomicBool::new(false);
    let (result, samples) = thread::scope(|scope| {
        let looking = scope.spawn(|| -> Result<Vec<Sample>> {
            let mut samples = vec![first];
            let mut due = start + INTERVAL;
            while !done.load(Ordering::Acquire) {
                thread::park_timeout(due.saturating_duration_since(Instant::now()));
                if Instant::now() >= due {
                    samples.push(Sample::take(brokers, start)?);
                    // After a late sample the next one is not taken at once: an interval much
                    // shorter than the others would show false peaks.
                    due = (due + INTERVAL).max(Instant::now() + INTERVAL / 2);
                }
            }
            let end = Sample::take(brokers, start)?;
            let is_short =
                |last: &Sample| end.seconds - last.seconds < INTERVAL.as_secs_f64() / 2.0;
            if samples.len() > 1 && samples.last().is_some_and(is_short) {
                samples.pop();
            }
            samples.push(end);
            Ok(samples)
        });
        let result = work();
        done.store(true, Ordering::Release);
        looking.thread().unpark();
        let samples = looking.join();
        (
            result,
            samples.unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
        )
    });
    Ok((result?, Usage::of(&samples?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peaks_are_of_intervals_and_averages_of_the_whole_time() {
        let sample = |seconds, bytes, cpu: [f64; 2]| Sample {
            seconds,
            bytes,
            cpu: cpu.to_vec(),
        };
        let usage = Usage::of(&[
            sample(0.0, 100, [1.0, 2.0]),
            sample(0.1, 150, [1.05, 2.0]),
            sample(0.2, 150, [1.06, 2.0]),
            sample(0.4, 400, [1.08, 2.1]),
        ]);
        let traffic: Vec<_> = usage
            .traffic
            .iter()
            .map(|traffic| (traffic.until_ms, traffic.bytes))
            .collect();
        assert_eq!(traffic, [(100, 50), (200, 0), (400, 250)]);
        assert_eq!(usage.bytes(), 300);
        let rounded: Vec<_> = usage
            .cpu
            .iter()
            .map(|cpu| [cpu.ms, cpu.peak_percent, cpu.average_percent].map(|n| n.round() as u64))
            .collect();
        assert_eq!(rounded, [[80, 50, 20], [100, 50, 25]]);
        assert_eq!(Usage::of(&[]).bytes(), 0);
    }
}
