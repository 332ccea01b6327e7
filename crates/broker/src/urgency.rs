//! What publishers state about urgency, what they may state, and what rules
//! say where nothing is stated.
//!
//! What a PUBLISH states in its user properties comes before what CONNECT
//! states for all publications, that before the rule of the topic. What cannot
//! be understood, or may not be stated, is counted, told to the publisher, and
//! treated as if it were not there: the message is carried all the same.

use punctual_codec::{Properties, PropertyId, topic};
use punctual_model::{Late, RequirementError, Requirements, is_requirement_key};

use crate::Nanos;
use crate::egress::{Class, Urgency};

/// What a client may state on a topic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct UrgencyRights {
    /// Highest `rt-priority`, 0..=7, and whether a deadline may be stated at
    /// all; `None` for neither.
    pub max_rt_priority: Option<u8>,
    /// Most urgent (lowest) `priority`; `None` for none.
    pub min_priority: Option<u64>,
}

impl UrgencyRights {
    /// Everything.
    pub const ALL: Self = Self {
        max_rt_priority: Some(7),
        min_priority: Some(0),
    };

    fn allow(&self, urgency: &Urgency) -> bool {
        let realtime = urgency.class() != Class::RealTime
            || self
                .max_rt_priority
                .is_some_and(|max| urgency.rt_priority.is_none_or(|wanted| wanted <= max));
        let priority = urgency
            .priority
            .is_none_or(|wanted| self.min_priority.is_some_and(|min| wanted >= min));
        realtime && priority
    }
}

impl Default for UrgencyRights {
    fn default() -> Self {
        Self::ALL
    }
}

/// Urgency of topics whose publishers state none. The first rule whose filter
/// matches applies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UrgencyRule {
    /// Topic filter, with wildcards.
    pub filter: Box<str>,
    /// What holds for messages on these topics.
    pub urgency: Urgency,
    /// The same as requirements, with what only admission looks at.
    pub requirements: Requirements,
}

/// The rule of a topic: the first whose filter matches.
pub fn of_topic<'a>(rules: &'a [UrgencyRule], name: &str) -> Option<&'a UrgencyRule> {
    rules.iter().find(|rule| topic::matches(&rule.filter, name))
}

/// What remains where real time has to be admitted and is not.
pub(crate) fn without_real_time(urgency: Urgency) -> Urgency {
    match urgency.class() {
        Class::RealTime => Urgency {
            rt_priority: None,
            deadline: None,
            ..urgency
        },
        _ => urgency,
    }
}

/// The requirements among user properties.
///
/// # Errors
/// The first that cannot be understood.
pub fn stated(properties: Properties<'_>) -> Result<Requirements, RequirementError> {
    let mut requirements = Requirements::NONE;
    if properties.contains(PropertyId::UserProperty) {
        for (key, value) in properties.user() {
            if is_requirement_key(key.as_bytes()) {
                requirements.set(key.as_bytes(), value.as_bytes())?;
            }
        }
    }
    Ok(requirements)
}

/// Traffic classes named by `rt-classes` in CONNECT, a bit each; all without.
///
/// # Errors
/// Says what is wrong if it is not a list of 0 to 3.
pub(crate) fn classes(properties: Properties<'_>) -> Result<u8, String> {
    let Some(value) = properties.user_value(punctual_model::CLASSES_KEY) else {
        return Ok(ALL_CLASSES);
    };
    let mut classes = 0;
    for class in value.split(',') {
        match class.trim() {
            "0" => classes |= 1,
            "1" => classes |= 2,
            "2" => classes |= 4,
            "3" => classes |= 8,
            _ => {
                return Err(format!(
                    "rt-classes = {value:?}: must be a list of traffic classes, \
                     0 (most urgent) to 3, such as 0,1"
                ));
            }
        }
    }
    Ok(classes)
}

/// Whether SUBSCRIBE asks for numbers (`rt-sequence`).
///
/// # Errors
/// Says what is wrong if it is neither `on` nor `off`.
pub(crate) fn numbered(properties: Properties<'_>) -> Result<bool, String> {
    match properties.user_value(punctual_model::SEQUENCE_KEY) {
        None | Some("off") => Ok(false),
        Some("on") => Ok(true),
        Some(value) => Err(format!(
            "rt-sequence = {value:?}: must be on, or off, which is the same as leaving it out"
        )),
    }
}

/// Every traffic class.
pub(crate) const ALL_CLASSES: u8 = 0b1111;

fn urgency_of(requirements: &Requirements) -> Urgency {
    let nanos = |duration: std::time::Duration| {
        Nanos(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX))
    };
    Urgency {
        rt_priority: requirements.priority,
        deadline: requirements.deadline.map(nanos),
        priority: requirements.message_priority,
        drop_late: requirements.late == Some(Late::Drop),
        bulk: false,
    }
}

/// What a publication asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Asked {
    /// What is stated, or else what the rule says.
    pub requirements: Requirements,
    /// The same as urgency.
    pub urgency: Urgency,
    /// There was no right to what is stated.
    pub refused: bool,
}

/// What a publication asks for: what is `stated` if that is allowed, else the
/// rule of its topic. Rights are asked for only if they matter.
pub fn asked(
    stated: Requirements,
    rule: Option<&UrgencyRule>,
    rights: impl FnOnce() -> UrgencyRights,
) -> Asked {
    let urgency = urgency_of(&stated);
    let silent = urgency.class() == Class::Normal;
    let refused = !silent && !rights().allow(&urgency);
    if !silent && !refused {
        return Asked {
            requirements: stated,
            urgency,
            refused,
        };
    }
    let without_rule = if refused { Requirements::NONE } else { stated };
    Asked {
        requirements: rule.map_or(without_rule, |rule| rule.requirements),
        urgency: rule.map(|rule| rule.urgency).unwrap_or_default(),
        refused,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use punctual_codec::PropertyBuf;

    fn user(pairs: &[(&str, &str)]) -> PropertyBuf {
        let mut properties = PropertyBuf::new();
        for (key, value) in pairs {
            properties.push_user(key, value).unwrap();
        }
        properties
    }

    #[test]
    fn user_properties_state_requirements() {
        let properties = user(&[("unit", "K"), ("priority", "3"), ("rt-deadline", "5ms")]);
        let requirements = stated(properties.as_properties()).unwrap();
        let urgency = urgency_of(&requirements);
        assert_eq!(urgency.deadline, Some(Nanos::from_millis(5)));
        assert_eq!(urgency.priority, Some(3));
        let properties = user(&[("rt-deadline", "soon")]);
        let error = stated(properties.as_properties()).unwrap_err().to_string();
        assert!(
            error.contains("rt-deadline") && error.contains("soon"),
            "{error}"
        );
    }

    #[test]
    fn classes_are_a_list() {
        let parse = |value| classes(user(&[("rt-classes", value)]).as_properties());
        assert_eq!(parse("0, 1").unwrap(), 3);
        assert_eq!(parse("3").unwrap(), 8);
        assert!(parse("4").is_err());
        assert!(parse("").is_err());
        assert_eq!(classes(Properties::default()).unwrap(), ALL_CLASSES);
    }

    #[test]
    fn numbers_are_on_or_off() {
        let parse = |value| numbered(user(&[("rt-sequence", value)]).as_properties());
        assert_eq!((parse("on"), parse("off")), (Ok(true), Ok(false)));
        assert_eq!(numbered(Properties::default()), Ok(false));
        let error = parse("yes").unwrap_err();
        assert!(error.contains("rt-sequence") && error.contains("yes") && error.contains("on"));
    }

    #[test]
    fn stated_urgency_needs_the_right_and_a_rule_fills_in() {
        let rules = [UrgencyRule {
            filter: "alarm/#".into(),
            urgency: Urgency {
                priority: Some(9),
                ..Urgency::default()
            },
            requirements: Requirements::NONE,
        }];
        let rule = of_topic(&rules, "alarm/fire");
        assert_eq!(of_topic(&rules, "log"), None);
        let stated = Requirements {
            message_priority: Some(2),
            ..Requirements::NONE
        };
        let rights = |min_priority| UrgencyRights {
            max_rt_priority: None,
            min_priority,
        };
        let priority = |stated: &Requirements, rule, min| {
            let asked = asked(*stated, rule, || rights(min));
            (asked.urgency.priority, asked.refused)
        };
        assert_eq!(priority(&stated, rule, Some(2)), (Some(2), false));
        assert_eq!(priority(&stated, rule, Some(3)), (Some(9), true));
        assert_eq!(priority(&stated, None, None), (None, true));
        assert_eq!(priority(&Requirements::NONE, rule, None), (Some(9), false));
        let realtime = Requirements {
            priority: Some(7),
            ..Requirements::NONE
        };
        assert!(asked(realtime, None, || rights(Some(0))).refused);
        assert!(!asked(realtime, None, || UrgencyRights::ALL).refused);
    }
}
