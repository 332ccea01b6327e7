//! What survives the process, by topic: `log/#: none`.

use std::fmt;
use std::str::FromStr;

use punctual_auth::topic::covers;
use punctual_broker::{Durability, DurabilityRule};
use punctual_codec::topic;

use super::keys::Durable;
use super::value::{Listed, Scalar, Setting};

/// What is promised about the messages on some topics.
#[derive(Clone, Debug, PartialEq)]
pub struct DurableRule {
    filter: Box<str>,
    durable: Durable,
}

impl DurableRule {
    /// The first of the rules before the one `at` that leaves it no topic.
    pub(crate) fn hidden_by(rules: &[Self], at: usize) -> Option<&Self> {
        let (before, rest) = rules.split_at_checked(at)?;
        let filter = &rest.first()?.filter;
        before.iter().find(|rule| covers(&rule.filter, filter))
    }

    /// What the broker makes of it.
    pub(crate) fn rule(&self) -> DurabilityRule {
        DurabilityRule {
            filter: self.filter.to_string(),
            durability: self.durable.into(),
        }
    }
}

impl From<Durable> for Durability {
    fn from(durable: Durable) -> Self {
        match durable {
            Durable::None => Self::None,
            Durable::Batched => Self::Batched,
            Durable::Sync => Self::Sync,
        }
    }
}

impl FromStr for DurableRule {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // A filter may have colons.
        let (filter, durable) = text
            .rsplit_once(':')
            .ok_or("a rule is a topic filter, a colon and none, batched or sync")?;
        let (filter, durable) = (filter.trim(), durable.trim());
        topic::validate_filter(filter).map_err(|_| format!("{filter:?} is no topic filter"))?;
        if topic::split_share(filter).0.is_some() {
            return Err(format!(
                "{filter:?} matches no topic: leave out $share and the name behind it"
            ));
        }
        let durable = Durable::read(&Scalar::Untyped(durable.into()))
            .map_err(|_| format!("{durable:?} is not none, batched or sync"))?;
        Ok(Self {
            filter: filter.into(),
            durable,
        })
    }
}

impl fmt::Display for DurableRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = match self.durable {
            Durable::None => "none",
            Durable::Batched => "batched",
            Durable::Sync => "sync",
        };
        write!(f, "{}: {word}", self.filter)
    }
}

impl Listed for DurableRule {
    const EXPECTS: &'static str = "a list of rules such as [\"log/#: none\", \"order/#: sync\"]";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_read_and_shown() {
        for (text, durability) in [
            ("log/#: none", Durability::None),
            ("a:b/+: batched", Durability::Batched),
            ("order/#: sync", Durability::Sync),
        ] {
            let rule: DurableRule = text.parse().unwrap();
            assert_eq!(rule.to_string(), text);
            assert_eq!(rule.rule().durability, durability);
        }
        for wrong in ["log/#", "log/#: maybe", "a#b: none"] {
            assert!(wrong.parse::<DurableRule>().is_err(), "{wrong}");
        }
    }
}
