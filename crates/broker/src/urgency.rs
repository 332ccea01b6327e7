//! Urgency: the requirements that publishers state, the rights to state them, and the rules for
//! publications without any.
//!
//! Requirements in the user properties of a PUBLISH take precedence over those that CONNECT states
//! for all publications, and these over the rule of the topic. Requirements that cannot be decoded,
//! or may not be stated, are counted, reported to the publisher, and otherwise ignored: the message
//! is still carried.

use punctual_codec::{Properties, PropertyId, topic};
use punctual_model::{
    Late, MAX_PRIORITY, RequirementError, Requirements, deadline_monotonic, format_duration,
    is_requirement_key, shortest_deadline,
};

use crate::Nanos;
use crate::base::notes::UrgencyTrust;
use crate::egress::{Class, Urgency};

/// The urgency that a client may state on a topic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct UrgencyRights {
    /// Highest `rt-priority`, 0..=7, stated or implied by an `rt-deadline`
    /// without it; `None` for neither of them.
    pub max_rt_priority: Option<u8>,
    /// Most urgent (lowest) `priority`; `None` for none.
    pub min_priority: Option<u64>,
}

impl UrgencyRights {
    /// All rights.
    pub const ALL: Self = Self {
        max_rt_priority: Some(7),
        min_priority: Some(0),
    };

    /// The first stated requirement that exceeds these rights, if any does.
    fn exceeded_by(&self, urgency: &Urgency) -> Option<Excess> {
        let most = self.max_rt_priority;
        let is_above = |wanted: u8| most.is_none_or(|most| wanted > most);
        let rt = match (urgency.rt_priority, urgency.deadline) {
            (Some(stated), _) => is_above(stated).then_some(Excess::RtPriority { stated, most }),
            (None, Some(stated)) => {
                let implied = deadline_monotonic(stated.0);
                is_above(implied).then_some(Excess::Deadline {
                    stated,
                    implied,
                    most,
                })
            }
            (None, None) => None,
        };
        rt.or_else(|| {
            let (stated, least) = (urgency.priority?, self.min_priority);
            let is_below = least.is_none_or(|least| stated < least);
            is_below.then_some(Excess::Priority { stated, least })
        })
    }

    /// The effective requirements and urgency within these rights. Where deadlines alone give the
    /// order, or a flow's priority is determined by its admission, the right to a priority has to
    /// limit the deadline as well.
    fn bind(
        &self,
        mut requirements: Requirements,
        mut urgency: Urgency,
    ) -> (Requirements, Urgency) {
        let most = self.max_rt_priority.unwrap_or(0);
        if urgency.class() == Class::RealTime && most < MAX_PRIORITY {
            urgency.least_deadline = Nanos(shortest_deadline(most));
            let implied = urgency
                .deadline
                .map(|deadline| deadline_monotonic(deadline.0));
            requirements.priority = requirements.priority.or(implied);
        }
        (requirements, urgency)
    }
}

/// A stated requirement that exceeds the publisher's rights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Excess {
    /// An `rt-priority`.
    RtPriority {
        /// Its value.
        stated: u8,
        /// The highest allowed; `None` if none is.
        most: Option<u8>,
    },
    /// An `rt-deadline` without `rt-priority`.
    Deadline {
        /// Its value.
        stated: Nanos,
        /// The priority that it implies.
        implied: u8,
        /// The highest allowed; `None` if none is.
        most: Option<u8>,
    },
    /// A `priority`.
    Priority {
        /// Its value.
        stated: u64,
        /// The most urgent allowed; `None` if none is.
        least: Option<u64>,
    },
}

impl Excess {
    /// A text that states the requirement on that topic, the limit, and the setting that imposes
    /// it.
    pub fn on(&self, topic: &str) -> String {
        let end = topic.char_indices().nth(MAX_TOLD).map(|(end, _)| end);
        let (topic, cut) = match end {
            Some(end) => (&topic[..end], "..."),
            None => (topic, ""),
        };
        let at = format!("on {topic:?}{cut}");
        let none = |key| format!("none may be stated (rt {key}=none in the ACL file)");
        let most_of = |most: Option<u8>| match most {
            Some(most) => format!("at most {most} (rt max-priority in the ACL file)"),
            None => none("max-priority"),
        };
        match *self {
            Self::RtPriority { stated, most } => {
                format!("rt-priority = {stated} {at}: {}", most_of(most))
            }
            Self::Deadline {
                stated,
                implied,
                most,
            } => {
                let stated = format_duration(std::time::Duration::from_nanos(stated.0));
                let limit = most_of(most);
                match most {
                    Some(most) => format!(
                        "rt-deadline = {stated} {at} implies rt-priority {implied}: {limit}; \
                         state rt-priority = {most} as well"
                    ),
                    None => format!("rt-deadline = {stated} {at}: {limit}"),
                }
            }
            Self::Priority { stated, least } => {
                let limit = match least {
                    Some(least) => format!("at least {least} (rt priority in the ACL file)"),
                    None => none("priority"),
                };
                format!("priority = {stated} {at}: {limit}")
            }
        }
    }
}

/// Maximum number of characters of a topic that are repeated in a report to its publisher.
const MAX_TOLD: usize = 200;

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
    /// The urgency of messages on these topics.
    pub urgency: Urgency,
    /// The same as requirements, including those that only admission uses.
    pub requirements: Requirements,
}

/// The rule of a topic: the first whose filter matches.
pub fn of_topic<'a>(rules: &'a [UrgencyRule], name: &str) -> Option<&'a UrgencyRule> {
    rules.iter().find(|rule| topic::matches(&rule.filter, name))
}

/// The remaining urgency where real time must be admitted and is not.
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
/// The first requirement that cannot be decoded.
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
/// A description, if the value is not a list of 0 to 3.
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
/// A description, if the value is neither `on` nor `off`.
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
        ..Urgency::default()
    }
}

/// The effective requirements of a publication.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Asked {
    /// The stated requirements, or else those of the rule.
    pub requirements: Requirements,
    /// The same as urgency.
    pub urgency: Urgency,
    /// The requirement that exceeds the publisher's rights, and has no effect.
    pub refused: Option<Excess>,
}

/// The effective requirements of a publication: the `stated` ones if these are allowed, else those
/// of the topic's rule. `rights` is called only if the rights matter.
pub fn asked(
    stated: Requirements,
    rule: Option<&UrgencyRule>,
    rights: impl FnOnce() -> UrgencyRights,
) -> Asked {
    let urgency = urgency_of(&stated);
    let mut refused = None;
    if urgency.class() != Class::Normal {
        let rights = rights();
        refused = rights.exceeded_by(&urgency);
        if refused.is_none() {
            let (requirements, urgency) = rights.bind(stated, urgency);
            return Asked {
                requirements,
                urgency,
                refused,
            };
        }
    }
    let without_rule = match refused {
        Some(_) => Requirements::NONE,
        None => stated,
    };
    Asked {
        requirements: rule.map_or(without_rule, |rule| rule.requirements),
        urgency: rule.map(|rule| rule.urgency).unwrap_or_default(),
        refused,
    }
}

impl UrgencyTrust {
    /// The trust that the rights of the publisher imply.
    pub(crate) fn of(asked: &Asked) -> Self {
        match asked.urgency.least_deadline {
            _ if asked.refused.is_some() => Self::Nothing,
            Nanos(0) => Self::All,
            Nanos(least) => Self::UpTo(deadline_monotonic(least)),
        }
    }

    /// The rights that remain of those of the neighbour from which the message was received.
    pub(crate) fn limit(self, rights: UrgencyRights) -> UrgencyRights {
        let most = match self {
            Self::All | Self::Nothing => MAX_PRIORITY,
            Self::UpTo(most) => most,
        };
        UrgencyRights {
            max_rt_priority: rights.max_rt_priority.map(|own| own.min(most)),
            ..rights
        }
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
            (asked.urgency.priority, asked.refused.is_some())
        };
        assert_eq!(priority(&stated, rule, Some(2)), (Some(2), false));
        assert_eq!(priority(&stated, rule, Some(3)), (Some(9), true));
        assert_eq!(priority(&stated, None, None), (None, true));
        assert_eq!(priority(&Requirements::NONE, rule, None), (Some(9), false));
        let realtime = Requirements {
            priority: Some(7),
            ..Requirements::NONE
        };
        assert!(asked(realtime, None, || rights(Some(0))).refused.is_some());
        assert_eq!(asked(realtime, None, || UrgencyRights::ALL).refused, None);
    }

    fn asked_with(stated: &str, most: u8) -> Asked {
        let rights = UrgencyRights {
            max_rt_priority: Some(most),
            min_priority: Some(4),
        };
        asked(stated.parse().unwrap(), None, || rights)
    }

    #[test]
    fn a_deadline_needs_the_right_to_the_priority_that_it_implies() {
        for (most, shortest) in [(6, "1000001ns"), (3, "30000001ns"), (0, "1000000001ns")] {
            assert_eq!(
                asked_with(&format!("deadline={shortest}"), most).refused,
                None
            );
            let shorter = asked_with("deadline=1ms", most);
            assert!(shorter.refused.is_some());
            assert_eq!(shorter.urgency, Urgency::default());
        }
        assert_eq!(asked_with("deadline=1ns", 7).refused, None);
        assert_eq!(asked_with("rt-priority=3, deadline=1ns", 3).refused, None);
    }

    /// Neither an order by deadlines nor the admission of flows makes more of a
    /// deadline than the right to a priority.
    #[test]
    fn a_deadline_counts_no_more_than_the_right_says() {
        let bound = asked_with("rt-priority=2, deadline=1ns", 3);
        assert_eq!(bound.urgency.deadline, Some(Nanos(1)));
        assert_eq!(bound.urgency.least_deadline, Nanos(30_000_001));
        let implied = asked_with("deadline=2s, period=2s", 3);
        assert_eq!(implied.requirements.priority, Some(0));
        assert_eq!(implied.urgency.rt_priority, None);
        let free = asked_with("deadline=2s, period=2s", 7);
        assert_eq!(free.requirements.priority, None);
        assert_eq!(free.urgency.least_deadline, Nanos(0));
    }

    #[test]
    fn what_is_refused_is_said_with_its_topic_and_limit() {
        let told = |stated, most| {
            let excess = asked_with(stated, most).refused.unwrap();
            excess.on("a")
        };
        assert_eq!(
            told("rt-priority=4", 3),
            "rt-priority = 4 on \"a\": at most 3 (rt max-priority in the ACL file)"
        );
        assert_eq!(
            told("deadline=800us", 3),
            "rt-deadline = 800us on \"a\" implies rt-priority 7: at most 3 (rt max-priority in \
             the ACL file); state rt-priority = 3 as well"
        );
        assert_eq!(
            told("priority=2", 3),
            "priority = 2 on \"a\": at least 4 (rt priority in the ACL file)"
        );
        let none = UrgencyRights {
            max_rt_priority: None,
            min_priority: None,
        };
        let refused = |stated: &str| {
            let asked = asked(stated.parse().unwrap(), None, || none);
            asked.refused.unwrap().on(&"x".repeat(1000))
        };
        let told = refused("deadline=5ms");
        assert!(told.starts_with("rt-deadline = 5ms on \"xxx") && told.len() < 400);
        assert!(told.ends_with(": none may be stated (rt max-priority=none in the ACL file)"));
        let told = refused("priority=2");
        assert!(told.ends_with(": none may be stated (rt priority=none in the ACL file)"));
    }
}
