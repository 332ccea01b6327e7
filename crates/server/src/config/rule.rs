//! Urgency by topic: `alarm/#: priority=0, deadline=5ms`.

use std::fmt;
use std::str::FromStr;

use punctual_auth::topic::covers;
use punctual_broker::Urgency;
use punctual_codec::topic;
use punctual_model::{Late, Requirements};

use super::value::Listed;
use super::wiring::nanos;

/// What a rule of a bulk topic says.
const BULK: &str = "bulk";

/// Urgency of the messages on some topics.
#[derive(Clone, Debug, PartialEq)]
pub struct Rule {
    /// Topic filter.
    pub filter: Box<str>,
    /// `None`: bulk.
    requirements: Option<Requirements>,
}

impl Rule {
    /// What the broker makes of it.
    pub(crate) fn urgency(&self) -> Urgency {
        let Some(requirements) = &self.requirements else {
            return Urgency {
                bulk: true,
                ..Urgency::default()
            };
        };
        Urgency {
            rt_priority: requirements.priority,
            deadline: requirements.deadline.map(nanos),
            priority: requirements.message_priority,
            drop_late: requirements.late == Some(Late::Drop),
            ..Urgency::default()
        }
    }
}

impl Rule {
    /// The first of the rules before the one `at` that leaves it no topic.
    pub(crate) fn hidden_by(rules: &[Self], at: usize) -> Option<&Self> {
        let (before, rest) = rules.split_at_checked(at)?;
        let filter = &rest.first()?.filter;
        before.iter().find(|rule| covers(&rule.filter, filter))
    }

    /// The requirements; none of a bulk topic.
    pub(crate) fn requirements(&self) -> Requirements {
        self.requirements.unwrap_or_default()
    }
}

impl FromStr for Rule {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // A filter may have colons, requirements have none.
        let (filter, stated) = text
            .rsplit_once(':')
            .ok_or("a rule is a topic filter, a colon and requirements")?;
        let (filter, stated) = (filter.trim(), stated.trim());
        topic::validate_filter(filter).map_err(|_| format!("{filter:?} is no topic filter"))?;
        if topic::split_share(filter).0.is_some() {
            return Err(format!(
                "{filter:?} matches no topic: leave out $share and the name behind it"
            ));
        }
        let requirements = match stated {
            BULK => None,
            stated => Some(stated.parse::<Requirements>().map_err(|e| e.to_string())?),
        };
        let rule = Self {
            filter: filter.into(),
            requirements,
        };
        let stated = rule.urgency();
        if stated.class() == punctual_broker::Class::Normal {
            return Err("a rule states priority, rt-priority, rt-deadline or bulk".into());
        }
        Ok(rule)
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.requirements {
            Some(requirements) => write!(f, "{}: {requirements}", self.filter),
            None => write!(f, "{}: {BULK}", self.filter),
        }
    }
}

impl Listed for Rule {
    const EXPECTS: &'static str =
        "a list of rules such as [\"alarm/#: priority=0\", \"log/#: bulk\"]";
}

#[cfg(test)]
mod tests {
    use super::*;
    use punctual_broker::{Class, Nanos};

    #[test]
    fn rules_are_read_and_shown() {
        for (text, class) in [
            ("alarm/#: priority=0", Class::Priority),
            (
                "axis/+/set: rt-deadline=2ms, rt-priority=7",
                Class::RealTime,
            ),
            ("urn:x/#: bulk", Class::Bulk),
        ] {
            let rule: Rule = text.parse().unwrap();
            assert_eq!(rule.urgency().class(), class);
            assert_eq!(rule.to_string().parse::<Rule>().unwrap(), rule);
        }
        let rule: Rule = "a:deadline=5ms,late=drop".parse().unwrap();
        assert_eq!(rule.urgency().deadline, Some(Nanos::from_millis(5)));
        assert!(rule.urgency().drop_late);
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, word) in [
            ("alarm", "colon"),
            ("a/#/b: priority=0", "topic filter"),
            ("$share/g/a: priority=0", "leave out $share"),
            ("a: priority=high", "priority"),
            ("a: rt-period=5ms", "states"),
            ("a: urgent", "KEY=VALUE"),
        ] {
            let error = text.parse::<Rule>().unwrap_err();
            assert!(error.contains(word), "{text}: {error}");
        }
    }
}
