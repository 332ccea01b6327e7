//! What the broker answers to requirements, in the user properties of CONNACK,
//! PUBACK, PUBREC and SUBACK.

use std::time::Duration;

use crate::units::parse_integer;

const STATUS: &str = "rt-status";
const BOUND: &str = "rt-bound";
const REASON: &str = "rt-reason";
const FLOW: &str = "rt-flow";

/// What became of a requirement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Status {
    /// It is promised.
    Admitted,
    /// It cannot be honoured, and messages are refused.
    Rejected,
    /// It cannot be honoured; messages are carried as well as can be.
    BestEffort,
}

impl Status {
    /// As it is written: `admitted`, `rejected`, `best-effort`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Admitted => "admitted",
            Self::Rejected => "rejected",
            Self::BestEffort => "best-effort",
        }
    }
}

/// A broker's answer; `None` where it says nothing.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Answer {
    /// What became of the requirement. `rt-status`.
    pub status: Option<Status>,
    /// Guaranteed worst case of the time from end to end; on the wire in
    /// nanoseconds. `rt-bound`.
    pub bound: Option<Duration>,
    /// Why, in plain words. `rt-reason`.
    pub reason: Option<String>,
    /// Name of the flow in the broker's tables. `rt-flow`.
    pub flow: Option<String>,
}

impl Answer {
    /// Reads an answer from user properties. Values that it does not
    /// understand it leaves out, for they may be those of a later broker.
    /// `None` if nothing is left.
    pub fn read<'a>(user: impl IntoIterator<Item = (&'a str, &'a str)>) -> Option<Self> {
        let mut answer = Self::default();
        for (key, value) in user {
            match key {
                STATUS => {
                    let all = [Status::Admitted, Status::Rejected, Status::BestEffort];
                    answer.status = all.into_iter().find(|status| status.name() == value);
                }
                BOUND => answer.bound = parse_integer(value.as_bytes()).map(Duration::from_nanos),
                REASON => answer.reason = Some(value.to_owned()),
                FLOW => answer.flow = Some(value.to_owned()),
                _ => {}
            }
        }
        (answer != Self::default()).then_some(answer)
    }

    /// The user properties that say the same. A bound above 2^64 - 1
    /// nanoseconds is left out, for it would promise less than it says.
    pub fn user_properties(&self) -> impl Iterator<Item = (&'static str, String)> + use<> {
        let bound = self.bound.and_then(|b| u64::try_from(b.as_nanos()).ok());
        [
            (STATUS, self.status.map(|status| status.name().to_owned())),
            (BOUND, bound.map(|nanos| nanos.to_string())),
            (REASON, self.reason.clone()),
            (FLOW, self.flow.clone()),
        ]
        .into_iter()
        .filter_map(|(key, value)| Some((key, value?)))
    }
}

/// What an admitted flow may send, and how it is to be carried. Whoever carries
/// it holds it to this: the bounds of all flows rest on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Grant {
    /// 0 to 7, 7 most urgent; messages of one priority go in their order.
    pub priority: u8,
    /// Least time between two messages, ns.
    pub period_ns: u64,
    /// How much earlier than that a message may arrive at the broker: release
    /// jitter, and how much the way there varies, ns.
    pub tolerance_ns: u64,
    /// Bits per second that the flow may use.
    pub bandwidth: Option<u64>,
    /// Largest payload that was declared, bytes.
    pub max_payload: Option<u32>,
    /// Largest PUBLISH that was counted with, bytes. A flow that declared no
    /// size is to be decided anew for a larger one.
    pub max_packet: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_read_and_written() {
        for status in [Status::Admitted, Status::Rejected, Status::BestEffort] {
            let answer = Answer {
                status: Some(status),
                bound: Some(Duration::from_nanos(1_234_567)),
                reason: Some("link a-b is 3 us too slow".into()),
                flow: Some("f1".into()),
            };
            let pairs: Vec<(&str, String)> = answer.user_properties().collect();
            assert!(pairs.contains(&("rt-bound", "1234567".into())));
            let pairs = pairs.iter().map(|(key, value)| (*key, value.as_str()));
            assert_eq!(Answer::read(pairs), Some(answer));
        }
    }

    #[test]
    fn no_answer_is_none() {
        assert_eq!(Answer::read([("colour", "blue")]), None);
        assert_eq!(
            Answer::read([("rt-status", "pending"), ("rt-bound", "x")]),
            None
        );
    }
}
