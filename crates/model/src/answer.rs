//! What the broker answers to requirements, in the user properties of CONNACK,
//! PUBACK, PUBREC and SUBACK.

use std::time::Duration;

use crate::units::parse_integer;

const STATUS: &str = "rt-status";
const BOUND: &str = "rt-bound";
const REASON: &str = "rt-reason";
const FLOW: &str = "rt-flow";
const CONDITION: &str = "rt-condition";

/// What became of a requirement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Status {
    /// Its bounds are guaranteed.
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

/// What a bound takes for granted and the broker's configuration does not guarantee.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Condition {
    /// What the broker costs was not measured on its machine (`punctual calibrate`).
    NotCalibrated,
    /// The threads that carry messages have no real-time priority, or their memory is not locked.
    NoRealtime,
    /// Clients over UDP or QUIC share a socket, whose datagrams are handled in the order in which
    /// they come.
    SharedSocket,
}

impl Condition {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::NotCalibrated, Self::NoRealtime, Self::SharedSocket];

    /// As it is written: `not-calibrated`, `no-realtime`, `shared-socket`.
    pub fn name(self) -> &'static str {
        match self {
            Self::NotCalibrated => "not-calibrated",
            Self::NoRealtime => "no-realtime",
            Self::SharedSocket => "shared-socket",
        }
    }
}

/// A set of [`Condition`]s.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Conditions(u8);

impl Conditions {
    /// None: all that bounds take for granted is guaranteed.
    pub const NONE: Self = Self(0);

    /// These and that one.
    #[must_use]
    pub fn with(self, condition: Condition) -> Self {
        Self(self.0 | 1 << condition as u8)
    }

    /// Those in it, in their order.
    pub fn iter(self) -> impl Iterator<Item = Condition> {
        let all = Condition::ALL.into_iter();
        all.filter(move |condition| self.0 & 1 << *condition as u8 != 0)
    }
}

impl FromIterator<Condition> for Conditions {
    fn from_iter<T: IntoIterator<Item = Condition>>(conditions: T) -> Self {
        conditions.into_iter().fold(Self::NONE, Self::with)
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
    /// What the bound takes for granted and is not guaranteed; none with another status than
    /// admitted. `rt-condition`, one property each.
    pub conditions: Conditions,
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
                CONDITION => {
                    let known = Condition::ALL.into_iter();
                    let known = known.filter(|condition| condition.name() == value);
                    answer.conditions = known.fold(answer.conditions, Conditions::with);
                }
                REASON => answer.reason = Some(value.to_owned()),
                FLOW => answer.flow = Some(value.to_owned()),
                _ => {}
            }
        }
        (answer != Self::default()).then_some(answer)
    }

    /// The user properties that encode this answer. A bound above 2^64 - 1 nanoseconds is
    /// omitted, as it would guarantee less than it says.
    pub fn user_properties(&self) -> impl Iterator<Item = (&'static str, String)> + use<> {
        let bound = self.bound.and_then(|b| u64::try_from(b.as_nanos()).ok());
        let conditions = self.conditions.iter();
        let conditions = conditions.map(|it| (CONDITION, it.name().to_owned()));
        [
            (STATUS, self.status.map(|status| status.name().to_owned())),
            (BOUND, bound.map(|nanos| nanos.to_string())),
            (REASON, self.reason.clone()),
            (FLOW, self.flow.clone()),
        ]
        .into_iter()
        .filter_map(|(key, value)| Some((key, value?)))
        .chain(conditions)
    }

    /// With the conditions under which the bounds of an admitted flow are guaranteed.
    #[must_use]
    pub fn under(mut self, conditions: Conditions) -> Self {
        if self.status == Some(Status::Admitted) {
            self.conditions = conditions;
        }
        self
    }
}

/// The traffic that an admitted flow may send, and how it is carried. The network polices
/// this, as the bounds of all flows depend on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Grant {
    /// 0 to 7, 7 most urgent; messages of one priority go in their order.
    pub priority: u8,
    /// Least time between two messages, ns.
    pub period_ns: u64,
    /// How much earlier than that a message may arrive at the broker: release
    /// jitter, and how much the path there varies, ns.
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
                conditions: Conditions::from_iter([
                    Condition::SharedSocket,
                    Condition::NotCalibrated,
                ]),
                reason: Some("link a-b is 3 us too slow".into()),
                flow: Some("f1".into()),
            };
            let pairs: Vec<(&str, String)> = answer.user_properties().collect();
            assert!(pairs.contains(&("rt-bound", "1234567".into())));
            assert!(pairs.contains(&("rt-condition", "not-calibrated".into())));
            assert!(pairs.contains(&("rt-condition", "shared-socket".into())));
            let pairs = pairs.iter().map(|(key, value)| (*key, value.as_str()));
            assert_eq!(Answer::read(pairs), Some(answer));
        }
    }

    #[test]
    fn only_what_is_admitted_has_conditions() {
        let conditions = Conditions::NONE.with(Condition::NoRealtime);
        for status in [Status::Admitted, Status::Rejected, Status::BestEffort] {
            let answer = Answer {
                status: Some(status),
                ..Answer::default()
            };
            let is_guaranteed = status == Status::Admitted;
            let under = answer.under(conditions);
            assert_eq!(under.conditions == conditions, is_guaranteed);
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
