//! Answers of the controller, and the managers that ask.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::peer::Peer;
use super::request::{Request, SrtError, number, text};
use super::{MAX_FLOW, MAX_INTEGER, MAX_MANAGER, MAX_REASON, MAX_SUBSCRIBERS};
use crate::{Answer, Conditions, MAX_PRIORITY, Status};

/// Largest code point of differentiated services (RFC 2474).
const MAX_DSCP: u8 = 63;

/// What became of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// The controller has it and has not decided.
    #[default]
    Pending,
    /// Every deadline is proven, and every switch is set up.
    Admitted,
    /// It cannot be honoured; nothing is reserved.
    Rejected,
    /// It is carried as well as can be; nothing is proven.
    BestEffort,
    /// It was admitted, and the network can no longer honour it or could not be
    /// set up.
    Failed,
}

impl State {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::Pending,
        Self::Admitted,
        Self::Rejected,
        Self::BestEffort,
        Self::Failed,
    ];

    /// As it is written: `pending`, `admitted`, `rejected`, `best-effort`,
    /// `failed`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Admitted => "admitted",
            Self::Rejected => "rejected",
            Self::BestEffort => "best-effort",
            Self::Failed => "failed",
        }
    }

    /// The state with that name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.name() == name)
    }

    /// The status for the client; `None` before a decision.
    pub fn status(self) -> Option<Status> {
        match self {
            Self::Pending => None,
            Self::Admitted => Some(Status::Admitted),
            Self::Rejected => Some(Status::Rejected),
            Self::BestEffort | Self::Failed => Some(Status::BestEffort),
        }
    }
}

/// The controller's answer to a request.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Channel {
    /// Whose request it answers.
    pub manager: String,
    /// Which of them.
    pub flow: String,
    /// The generation of the request that it answers.
    pub generation: u64,
    /// What became of it.
    pub state: State,
    /// Why, in plain words; empty where there is nothing to say.
    pub reason: String,
    /// Guaranteed worst case for each subscriber, ns.
    pub bounds_ns: BTreeMap<Peer, u64>,
    /// Links to each subscriber from the publisher on, in order.
    pub paths: BTreeMap<Peer, Vec<String>>,
    /// Priority and queue at every port, 0 to 7, 7 most urgent.
    pub queue: Option<u8>,
    /// Mark that its packets carry, 0 to 63.
    pub dscp: Option<u8>,
    /// Number of its group on the switches.
    pub group: Option<u32>,
    /// Multicast address of the group.
    pub group_address: Option<IpAddr>,
    /// Name of the switch where its tree begins.
    pub rendezvous: Option<String>,
}

impl Channel {
    /// An answer to a request that reserves nothing.
    pub fn of(request: &Request, state: State, reason: impl Into<String>) -> Self {
        let mut reason = reason.into();
        if let Some((end, _)) = reason.char_indices().nth(MAX_REASON) {
            reason.truncate(end);
        }
        Self {
            manager: request.manager.clone(),
            flow: request.flow.clone(),
            generation: request.generation,
            state,
            reason,
            ..Self::default()
        }
    }

    /// Whether it answers this very request.
    pub fn answers(&self, request: &Request) -> bool {
        self.manager == request.manager
            && self.flow == request.flow
            && self.generation == request.generation
    }

    /// Greatest bound of all subscribers, ns.
    pub fn bound_ns(&self) -> Option<u64> {
        self.bounds_ns.values().copied().max()
    }

    /// The answer for the client; `None` before a decision.
    pub fn answer(&self) -> Option<Answer> {
        let status = self.state.status()?;
        let bound = self.bound_ns().filter(|_| status == Status::Admitted);
        Some(Answer {
            status: Some(status),
            bound: bound.map(Duration::from_nanos),
            conditions: Conditions::NONE,
            reason: (!self.reason.is_empty()).then(|| self.reason.clone()),
            flow: Some(self.flow.clone()),
        })
    }

    /// Whether every value is in its range.
    ///
    /// # Errors
    /// The field, the value and the remedy.
    pub fn check(&self) -> Result<(), SrtError> {
        text("manager", &self.manager, 1, MAX_MANAGER)?;
        text("flow", &self.flow, 1, MAX_FLOW)?;
        text("reason", &self.reason, 0, MAX_REASON)?;
        number("generation", self.generation, 0, MAX_INTEGER)?;
        let most = MAX_SUBSCRIBERS as u64;
        number("bounds_ns", self.bounds_ns.len() as u64, 0, most)?;
        number("paths", self.paths.len() as u64, 0, most)?;
        for bound in self.bounds_ns.values() {
            number("bounds_ns", *bound, 0, MAX_INTEGER)?;
        }
        if let Some(queue) = self.queue {
            number("queue", queue.into(), 0, MAX_PRIORITY.into())?;
        }
        if let Some(dscp) = self.dscp {
            number("dscp", dscp.into(), 0, MAX_DSCP.into())?;
        }
        if self.group_address.is_some_and(|a| !a.is_multicast()) {
            let problem = "must be a multicast address";
            return Err(SrtError::new("group_address", problem));
        }
        Ok(())
    }
}

/// A manager.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manager {
    /// Its name; 1 to 64 characters.
    pub name: String,
    /// Where it can be asked, for people.
    pub address: String,
    /// Grows with every start of it.
    pub generation: u64,
    /// When it was last there, ms since 1970 (UTC).
    pub last_seen_ms: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_have_names() {
        for state in State::ALL {
            assert_eq!(State::named(state.name()), Some(state));
            assert_eq!(
                serde_json::to_value(state).unwrap(),
                serde_json::json!(state.name())
            );
        }
        assert_eq!(State::named("maybe"), None);
    }

    #[test]
    fn a_channel_is_an_answer() {
        let far = Peer::tcp([10, 0, 0, 3], 1);
        let mut channel = Channel {
            manager: "m".into(),
            flow: "f".into(),
            state: State::Admitted,
            bounds_ns: [(Peer::tcp([10, 0, 0, 2], 1), 5), (far, 7)].into(),
            ..Channel::default()
        };
        let answer = channel.answer().unwrap();
        assert_eq!(answer.status, Some(Status::Admitted));
        assert_eq!(answer.bound, Some(Duration::from_nanos(7)));
        assert_eq!(answer.reason, None);

        channel.state = State::Failed;
        channel.reason = "link a-b is down".into();
        let answer = channel.answer().unwrap();
        assert_eq!(answer.status, Some(Status::BestEffort));
        assert_eq!(answer.bound, None, "a bound of the past is no promise");
        channel.state = State::Pending;
        assert_eq!(channel.answer(), None);
    }

    #[test]
    fn ranges_are_enforced() {
        let good = Channel {
            manager: "m".into(),
            flow: "f".into(),
            ..Channel::default()
        };
        assert_eq!(good.check(), Ok(()));
        type Change = fn(&mut Channel);
        let wrong: &[(&str, Change)] = &[
            ("queue", |c| c.queue = Some(8)),
            ("dscp", |c| c.dscp = Some(64)),
            ("reason", |c| c.reason = "x".repeat(1025)),
            ("group_address", |c| {
                c.group_address = Some([10, 0, 0, 1].into());
            }),
        ];
        for (field, change) in wrong {
            let mut channel = good.clone();
            change(&mut channel);
            assert_eq!(channel.check().unwrap_err().field(), *field);
        }
    }
}
