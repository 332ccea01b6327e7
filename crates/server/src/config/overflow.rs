//! What happens at a full queue, by topic and by session: `order/#: refuse`.

use std::fmt;
use std::str::FromStr;

use punctual_auth::topic::covers;
use punctual_broker::{QueueFull, SessionPolicy, TopicPolicy};
use punctual_codec::topic;

use super::keys::WhenFull;
use super::value::{Listed, Scalar, Setting};

/// What happens to the messages on some topics at a full queue.
#[derive(Clone, Debug, PartialEq)]
pub struct QueueRule {
    filter: Box<str>,
    full: WhenFull,
}

/// What happens at the full queues of some sessions.
#[derive(Clone, Debug, PartialEq)]
pub struct SessionRule {
    /// Perhaps with `*` at its end.
    client_id: Box<str>,
    full: WhenFull,
}

impl QueueRule {
    /// The first of the rules before the one `at` that leaves it no topic.
    pub(crate) fn hidden_by(rules: &[Self], at: usize) -> Option<&Self> {
        let (before, rest) = rules.split_at_checked(at)?;
        let filter = &rest.first()?.filter;
        before.iter().find(|rule| covers(&rule.filter, filter))
    }

    /// What the broker makes of it.
    pub(crate) fn policy(&self) -> TopicPolicy {
        TopicPolicy {
            filter: self.filter.to_string(),
            full: self.full.into(),
        }
    }
}

impl SessionRule {
    /// The first of the rules before the one `at` that leaves it no session.
    pub(crate) fn hidden_by(rules: &[Self], at: usize) -> Option<&Self> {
        let (before, rest) = rules.split_at_checked(at)?;
        let own = &rest.first()?.client_id;
        let hides = |rule: &&Self| match rule.client_id.strip_suffix('*') {
            Some(start) => own.starts_with(start),
            None => rule.client_id == *own,
        };
        before.iter().find(hides)
    }

    /// What the broker makes of it.
    pub(crate) fn policy(&self) -> SessionPolicy {
        SessionPolicy {
            client_id: self.client_id.to_string(),
            full: self.full.into(),
        }
    }
}

impl From<WhenFull> for QueueFull {
    fn from(full: WhenFull) -> Self {
        match full {
            WhenFull::DropOldest => Self::DropOldest,
            WhenFull::DropNew => Self::DropNew,
            WhenFull::Refuse => Self::Refuse,
            WhenFull::Hold => Self::Hold,
            WhenFull::Disconnect => Self::Disconnect,
        }
    }
}

/// The policies, as they are written.
const WORDS: &str = "drop-oldest, drop-new, refuse, hold or disconnect";

const fn word(full: WhenFull) -> &'static str {
    match full {
        WhenFull::DropOldest => "drop-oldest",
        WhenFull::DropNew => "drop-new",
        WhenFull::Refuse => "refuse",
        WhenFull::Hold => "hold",
        WhenFull::Disconnect => "disconnect",
    }
}

/// What a rule is for, and its policy. What it is for may have colons.
fn parts<'a>(text: &'a str, what: &str) -> Result<(&'a str, WhenFull), String> {
    let (subject, full) = text
        .rsplit_once(':')
        .ok_or_else(|| format!("a rule is {what}, a colon and {WORDS}"))?;
    let full = full.trim();
    let policy = WhenFull::read(&Scalar::Untyped(full.into()))
        .map_err(|_| format!("{full:?} is not {WORDS}"))?;
    Ok((subject.trim(), policy))
}

impl FromStr for QueueRule {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (filter, full) = parts(text, "a topic filter")?;
        topic::validate_filter(filter).map_err(|_| format!("{filter:?} is no topic filter"))?;
        if topic::split_share(filter).0.is_some() {
            return Err(format!(
                "{filter:?} matches no topic: leave out $share and the name behind it"
            ));
        }
        Ok(Self {
            filter: filter.into(),
            full,
        })
    }
}

impl FromStr for SessionRule {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (client_id, full) = parts(text, "a client id, perhaps with * at its end")?;
        if client_id.is_empty() {
            return Err("the client id is missing before the colon; * stands for all".into());
        }
        if client_id
            .strip_suffix('*')
            .unwrap_or(client_id)
            .contains('*')
        {
            return Err(format!("{client_id:?} has a * that is not at its end"));
        }
        Ok(Self {
            client_id: client_id.into(),
            full,
        })
    }
}

impl fmt::Display for QueueRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.filter, word(self.full))
    }
}

impl fmt::Display for SessionRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.client_id, word(self.full))
    }
}

impl Listed for QueueRule {
    const EXPECTS: &'static str =
        "a list of rules such as [\"order/#: refuse\", \"log/#: drop-new\"]";
}

impl Listed for SessionRule {
    const EXPECTS: &'static str =
        "a list of rules such as [\"history: refuse\", \"panel-*: drop-new\"]";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_read_and_shown() {
        for text in [
            "a:b/+: drop-oldest",
            "order/#: refuse",
            "log: hold",
            "x: disconnect",
        ] {
            assert_eq!(text.parse::<QueueRule>().unwrap().to_string(), text);
        }
        let rule: QueueRule = "log/#: drop-new".parse().unwrap();
        assert_eq!(rule.policy().full, QueueFull::DropNew);
        for wrong in ["log/#", "log/#: maybe", "a#b: refuse", "$share/g/a: refuse"] {
            assert!(wrong.parse::<QueueRule>().is_err(), "{wrong}");
        }
        for text in [
            "history: refuse",
            "panel-*: drop-new",
            "a:b: hold",
            "*: drop-new",
        ] {
            assert_eq!(text.parse::<SessionRule>().unwrap().to_string(), text);
        }
        for wrong in ["history", "a*b: refuse", ": refuse", "history: no"] {
            assert!(wrong.parse::<SessionRule>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn rules_that_never_apply_are_found() {
        let rules = ["a*: hold", "b: hold", "ab: refuse", "b: refuse", "b*: hold"];
        let rules: Vec<SessionRule> = rules.iter().map(|rule| rule.parse().unwrap()).collect();
        let hidden = |at| SessionRule::hidden_by(&rules, at).is_some();
        assert_eq!(
            [0, 1, 2, 3, 4].map(hidden),
            [false, false, true, true, false]
        );
    }
}
