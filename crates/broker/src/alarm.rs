//! Alarms: messages of admitted flows that were late, and pieces of work that blocked a thread for
//! too long. They go to the log ([`crate::Event::Alarm`]), to `$SYS/rt/alarms/...`, and the last
//! ones are kept for queries.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex};

use crate::Nanos;
use crate::lock::lock;
use crate::watch::Missed;

/// Maximum number of kept alarms; then the oldest is removed.
const KEPT: usize = 256;

/// A violation of a guarantee, or of an assumption of the bounds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Alarm {
    /// Messages of an admitted flow were late.
    Missed(Missed),
    /// A piece of work took longer than the bounds assume.
    Overrun(Overrun),
}

/// A piece of work that took too long.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Overrun {
    /// The kind of work, as named by `punctual_turn_overrun_total`.
    pub work: &'static str,
    /// The time that it took.
    pub took: Nanos,
    /// The client for which it was done.
    pub client: Option<Arc<str>>,
    /// The filter for which it was done.
    pub filter: Option<Box<str>>,
}

impl Alarm {
    /// The topic of the alarm: `$SYS/rt/alarms/missed/FLOW` or `$SYS/rt/alarms/overrun/WORK`, with
    /// `+` and `#` written `_`.
    pub fn topic(&self) -> String {
        match self {
            Self::Missed(missed) => {
                let flow = missed.flow.replace(['+', '#'], "_");
                format!("$SYS/rt/alarms/missed/{flow}")
            }
            Self::Overrun(overrun) => format!("$SYS/rt/alarms/overrun/{}", overrun.work),
        }
    }
}

/// One line for human readers, of words `key=value`; times in microseconds, rounded up.
impl fmt::Display for Alarm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let micros = |nanos: Nanos| nanos.0.div_ceil(1000);
        match self {
            Self::Missed(missed) => {
                let Missed {
                    messages, longest, ..
                } = missed;
                write!(f, "messages={messages} longest_us={}", micros(*longest))?;
                let known = [("bound_us", missed.bound), ("deadline_us", missed.deadline)];
                for (key, value) in known {
                    if let Some(value) = value {
                        write!(f, " {key}={}", micros(value))?;
                    }
                }
            }
            Self::Overrun(overrun) => {
                write!(f, "took_us={}", micros(overrun.took))?;
                if let Some(client) = &overrun.client {
                    write!(f, " client={client:?}")?;
                }
                if let Some(filter) = &overrun.filter {
                    write!(f, " filter={filter:?}")?;
                }
            }
        }
        Ok(())
    }
}

/// The last alarms of a broker.
#[derive(Debug, Default)]
pub(crate) struct Alarms(Mutex<VecDeque<(Nanos, Alarm)>>);

impl Alarms {
    pub(crate) fn add(&self, alarm: Alarm, now: Nanos) {
        let mut alarms = lock(&self.0);
        if alarms.len() >= KEPT {
            alarms.pop_front();
        }
        alarms.push_back((now, alarm));
    }

    /// All kept alarms, the latest first.
    pub(crate) fn latest(&self) -> Vec<(Nanos, Alarm)> {
        lock(&self.0).iter().rev().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn overrun(took: u64) -> Alarm {
        Alarm::Overrun(Overrun {
            work: "filters",
            took: Nanos(took),
            client: Some("press\n".into()),
            filter: Some("a/+".into()),
        })
    }

    #[test]
    fn alarms_are_one_line_each() {
        assert_eq!(
            overrun(1_500_001).to_string(),
            r#"took_us=1501 client="press\n" filter="a/+""#
        );
        let missed = Alarm::Missed(Missed {
            flow: "axis/+@press".into(),
            messages: 2,
            longest: Nanos(7_000),
            bound: Some(Nanos(5_000)),
            deadline: None,
        });
        assert_eq!(missed.to_string(), "messages=2 longest_us=7 bound_us=5");
        assert_eq!(missed.topic(), "$SYS/rt/alarms/missed/axis/_@press");
    }

    #[test]
    fn the_last_ones_are_kept() {
        let alarms = Alarms::default();
        for n in 0..300 {
            alarms.add(overrun(n), Nanos(n));
        }
        let latest = alarms.latest();
        assert_eq!(latest.len(), KEPT);
        assert_eq!(latest[0], (Nanos(299), overrun(299)));
    }
}
