//! What to require of messages whose publisher says nothing.

use std::fmt;
use std::str::FromStr;

use punctual_codec::topic;
use punctual_model::Requirements;

use crate::Error;

/// `alarm/#: priority=0, deadline=5ms`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    filter: String,
    requirements: Requirements,
}

impl Rule {
    /// A rule for the topics that match a filter.
    ///
    /// # Errors
    /// `ApiMisuse` for a filter that is none, or is for shared subscriptions,
    /// and for requirements that ask for nothing.
    pub fn new(filter: &str, requirements: Requirements) -> Result<Self, Error> {
        let valid = !filter.contains('\0') && topic::validate_filter(filter).is_ok();
        if !valid || topic::split_share(filter).0.is_some() {
            return Err(Error::misuse(
                "rule's topic filter",
                filter,
                "+ and # must stand alone between slashes, # only at the end, it must not be \
                 empty nor begin with $share/",
            ));
        }
        if requirements.is_empty() {
            return Err(Error::misuse(
                "rule",
                filter,
                "asks for nothing; say for example priority=0, deadline=5ms",
            ));
        }
        Ok(Self {
            filter: filter.to_owned(),
            requirements,
        })
    }

    /// Which topics it is for.
    pub fn filter(&self) -> &str {
        &self.filter
    }

    /// Its requirements.
    pub fn requirements(&self) -> &Requirements {
        &self.requirements
    }
}

/// `FILTER: KEY=VALUE, …`; see [`Requirements`] for keys and values.
impl FromStr for Rule {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        // A topic may have colons in it, requirements have none.
        let Some((filter, requirements)) = text.rsplit_once(':') else {
            return Err(Error::misuse(
                "rule",
                text,
                "must be FILTER: KEY=VALUE, several of them separated by commas, such as \
                 alarm/#: priority=0, deadline=5ms",
            ));
        };
        let requirements: Requirements = requirements
            .parse()
            .map_err(|error| Error::misuse("rule", text, format!("{error}")))?;
        Self::new(filter.trim(), requirements)
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.filter, self.requirements)
    }
}

/// Rules in order; the first whose filter matches counts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rules(Vec<Rule>);

impl Rules {
    /// The requirements for messages on a topic.
    pub(super) fn find(&self, name: &str) -> Requirements {
        let rule = self
            .0
            .iter()
            .find(|rule| topic::matches(&rule.filter, name));
        rule.map_or(Requirements::NONE, |rule| rule.requirements)
    }
}

impl From<Vec<Rule>> for Rules {
    fn from(rules: Vec<Rule>) -> Self {
        Self(rules)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn the_first_match_wins() {
        let rules = [
            "alarm/+/fire: priority=0, deadline=5ms",
            "alarm/#: priority=9",
        ];
        let rules: Vec<Rule> = rules.iter().map(|rule| rule.parse().unwrap()).collect();
        assert_eq!(rules[1].to_string(), "alarm/#: priority=9");
        let rules = Rules::from(rules);
        let fire = rules.find("alarm/1/fire");
        assert_eq!(fire.message_priority, Some(0));
        assert_eq!(fire.deadline, Some(Duration::from_millis(5)));
        assert_eq!(rules.find("alarm/2").message_priority, Some(9));
        assert!(rules.find("other").is_empty());
    }

    #[test]
    fn colons_may_be_in_topics() {
        let rule: Rule = "urn:cell/#:rt-priority=7".parse().unwrap();
        assert_eq!(rule.filter(), "urn:cell/#");
        assert_eq!(rule.requirements().priority, Some(7));
    }

    #[test]
    fn wrong_rules_are_refused_with_the_remedy() {
        for (text, why) in [
            ("alarm/#", "must be FILTER: KEY=VALUE"),
            ("alarm/#:", "must be KEY=VALUE"),
            ("alarm/#: priority=x", "priority = \"x\": must be 0"),
            ("alarm/#/x: priority=1", "topic filter"),
            ("$share/g/a: priority=1", "$share/"),
            (": priority=1", "topic filter"),
        ] {
            let error = text.parse::<Rule>().unwrap_err().to_string();
            assert!(error.contains(why), "{text}: {error}");
        }
        assert!(Rule::new("a", Requirements::NONE).is_err());
    }
}
