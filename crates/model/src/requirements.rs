//! Requirements: eight keys of RT-MQTT's kind and PrioMQTT's `priority`.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::error::RequirementError;
use crate::units::{
    format_bandwidth, format_duration, parse_bandwidth, parse_duration, parse_integer,
};

/// Most urgent `rt-priority`; the least urgent is 0.
pub const MAX_PRIORITY: u8 = 7;

/// Key of CONNECT that names the traffic classes a connection receives: known
/// to [`Requirements::set`], but no requirement.
pub const CLASSES_KEY: &str = "rt-classes";

/// Key of PUBLISH that numbers the messages of a flow, so that its receivers
/// see loss and reordering: known to [`Requirements::set`], but no
/// requirement.
///
/// Key of SUBSCRIBE, too: `on` requests that the broker numbers its messages for the
/// subscription, with [`DELIVERY_KEY`].
pub const SEQUENCE_KEY: &str = "rt-sequence";

/// Key of PUBLISH with which a broker numbers its messages to a subscriber that requested
/// it. [`Requirements::set`] accepts it, but it is no requirement.
pub const DELIVERY_KEY: &str = "rt-delivery";

const MESSAGE_PRIORITY: &str = "priority";
const DEADLINE: &str = "rt-deadline";
const PERIOD: &str = "rt-period";
const PRIORITY: &str = "rt-priority";
const SIZE: &str = "rt-size";
const TRANSMISSION_TIME: &str = "rt-transmission-time";
const BANDWIDTH: &str = "rt-bandwidth";
const JITTER: &str = "rt-jitter";
const LATE: &str = "rt-late";

/// Whether a user property of that name is for [`Requirements::set`]:
/// `priority`, or anything that begins with `rt-`. To be asked first, because
/// it is cheaper.
#[inline]
pub fn is_requirement_key(key: &[u8]) -> bool {
    match key {
        [b'r', b't', b'-', ..] => true,
        _ => key == MESSAGE_PRIORITY.as_bytes(),
    }
}

/// Handling of a message whose deadline is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Late {
    /// It is delivered all the same.
    #[default]
    Deliver,
    /// It is dropped and counted.
    Drop,
}

impl Late {
    /// `deliver` or `drop`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Deliver => "deliver",
            Self::Drop => "drop",
        }
    }
}

/// Requirements of a flow; `None` where a field is not stated.
///
/// Every field that [`set`](Self::set) fills is in its range; code that fills fields
/// otherwise has to ensure that, too.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Requirements {
    /// Time from the publisher's sending to the subscriber's receipt, above 0.
    /// `rt-deadline`.
    pub deadline: Option<Duration>,
    /// Shortest time between two messages of the flow, above 0. `rt-period`.
    pub period: Option<Duration>,
    /// 0 to 7, 7 most urgent. `rt-priority`.
    pub priority: Option<u8>,
    /// Bytes of an application message, at most. `rt-size`.
    pub size: Option<u32>,
    /// Time on the wire at the reference link rate, above 0.
    /// `rt-transmission-time`.
    pub transmission_time: Option<Duration>,
    /// Bits per second that the flow may use, above 0. `rt-bandwidth`.
    pub bandwidth: Option<u64>,
    /// How much later than its period a message may be released. `rt-jitter`.
    pub jitter: Option<Duration>,
    /// What to do with a message that is already late. `rt-late`.
    pub late: Option<Late>,
    /// PrioMQTT's message priority, 0 the most urgent: orders messages in the broker, and
    /// guarantees nothing. `priority`.
    pub message_priority: Option<u64>,
}

impl Requirements {
    /// Nothing asked for.
    pub const NONE: Self = Self {
        deadline: None,
        period: None,
        priority: None,
        size: None,
        transmission_time: None,
        bandwidth: None,
        jitter: None,
        late: None,
        message_priority: None,
    };

    /// Takes a user property. False, and nothing done, if it has nothing to do
    /// with requirements ([`CLASSES_KEY`] and [`SEQUENCE_KEY`] have not).
    ///
    /// # Errors
    /// The value is malformed or out of range, the key was given before, or
    /// begins with `rt-` and does not exist. Nothing changes then.
    pub fn set(&mut self, key: &[u8], value: &[u8]) -> Result<bool, RequirementError> {
        if !is_requirement_key(key) {
            return Ok(false);
        }
        let wrong = |remedy| RequirementError::new(key, value, remedy);
        let duration = || parse_duration(value).map_err(wrong);
        let positive = || match duration()? {
            Duration::ZERO => Err(wrong("must be above 0".into())),
            duration => Ok(duration),
        };
        let number = |most: u64, remedy: &'static str| {
            let number = parse_integer(value).filter(|number| *number <= most);
            number.ok_or_else(|| wrong(remedy.into()))
        };
        let filled = match key {
            b"priority" => {
                const RANGE: &str = "must be 0 (most urgent) to 18446744073709551615";
                put(&mut self.message_priority, number(u64::MAX, RANGE))
            }
            b"rt-deadline" => put(&mut self.deadline, positive()),
            b"rt-period" => put(&mut self.period, positive()),
            b"rt-priority" => {
                const RANGE: &str = "must be 0 to 7 (most urgent)";
                let priority = number(MAX_PRIORITY.into(), RANGE);
                put(&mut self.priority, priority.map(|number| number as u8))
            }
            b"rt-size" => {
                const RANGE: &str = "must be a number of bytes, 0 to 268435455";
                let size = number(268_435_455, RANGE);
                put(&mut self.size, size.map(|number| number as u32))
            }
            b"rt-transmission-time" => put(&mut self.transmission_time, positive()),
            b"rt-bandwidth" => {
                let bandwidth = match parse_bandwidth(value) {
                    Ok(0) => Err(wrong("must be above 0".into())),
                    other => other.map_err(wrong),
                };
                put(&mut self.bandwidth, bandwidth)
            }
            b"rt-jitter" => put(&mut self.jitter, duration()),
            b"rt-late" => {
                let late = match value {
                    b"deliver" => Ok(Late::Deliver),
                    b"drop" => Ok(Late::Drop),
                    _ => Err(wrong("must be deliver or drop".into())),
                };
                put(&mut self.late, late)
            }
            b"rt-classes" | b"rt-sequence" | b"rt-delivery" => return Ok(false),
            b"rt-status" | b"rt-bound" | b"rt-reason" | b"rt-flow" => {
                Err(wrong("is an answer of the broker; leave it out".into()))
            }
            _ => Err(wrong(
                format!("there is no such key; there are {KEYS}").into(),
            )),
        };
        match filled? {
            true => Ok(true),
            false => Err(wrong("is given twice; leave one out".into())),
        }
    }

    /// Takes a requirement of a configuration or a command line: a key of the
    /// user properties, of which all but `priority` may be without `rt-`.
    ///
    /// # Errors
    /// As for [`set`](Self::set), and for keys that are no requirements.
    pub fn set_named(&mut self, key: &str, value: &str) -> Result<(), RequirementError> {
        let known = match key.starts_with("rt-") || key == MESSAGE_PRIORITY {
            true => self.set(key.as_bytes(), value.as_bytes())?,
            false => self.set(format!("rt-{key}").as_bytes(), value.as_bytes())?,
        };
        match known {
            true => Ok(()),
            false => {
                let remedy = format!("is no requirement; there are {KEYS}");
                Err(RequirementError::new(
                    key.as_bytes(),
                    value.as_bytes(),
                    remedy,
                ))
            }
        }
    }

    /// Whether nothing is asked for.
    pub fn is_empty(&self) -> bool {
        *self == Self::NONE
    }

    /// Whether it asks for real time (`rt-priority` or `rt-deadline`) and not
    /// only for an order.
    pub fn is_real_time(&self) -> bool {
        self.priority.is_some() || self.deadline.is_some()
    }

    /// These, and where they say nothing those of `default`.
    #[must_use]
    pub fn or(self, default: Self) -> Self {
        Self {
            deadline: self.deadline.or(default.deadline),
            period: self.period.or(default.period),
            priority: self.priority.or(default.priority),
            size: self.size.or(default.size),
            transmission_time: self.transmission_time.or(default.transmission_time),
            bandwidth: self.bandwidth.or(default.bandwidth),
            jitter: self.jitter.or(default.jitter),
            late: self.late.or(default.late),
            message_priority: self.message_priority.or(default.message_priority),
        }
    }

    /// The user properties that encode these requirements. [`set`](Self::set) reads them
    /// back, if the fields are in range.
    pub fn user_properties(&self) -> impl Iterator<Item = (&'static str, String)> + use<> {
        let duration = |duration: Option<Duration>| duration.map(format_duration);
        [
            (
                MESSAGE_PRIORITY,
                self.message_priority.map(|n| n.to_string()),
            ),
            (DEADLINE, duration(self.deadline)),
            (PERIOD, duration(self.period)),
            (PRIORITY, self.priority.map(|n| n.to_string())),
            (SIZE, self.size.map(|n| n.to_string())),
            (TRANSMISSION_TIME, duration(self.transmission_time)),
            (BANDWIDTH, self.bandwidth.map(format_bandwidth)),
            (JITTER, duration(self.jitter)),
            (LATE, self.late.map(|late| late.name().to_owned())),
        ]
        .into_iter()
        .filter_map(|(key, value)| Some((key, value?)))
    }
}

/// All keys of requirements.
const KEYS: &str = "priority, rt-deadline, rt-period, rt-priority, rt-size, \
                    rt-transmission-time, rt-bandwidth, rt-jitter, rt-late";

/// Fills a field; false if it was full.
fn put<T>(
    field: &mut Option<T>,
    value: Result<T, RequirementError>,
) -> Result<bool, RequirementError> {
    let value = value?;
    if field.is_some() {
        return Ok(false);
    }
    *field = Some(value);
    Ok(true)
}

/// `priority=0, deadline=5ms`: for configurations and command lines. The keys
/// are those of the user properties; where it is not `priority`, `rt-` may be
/// left out.
impl FromStr for Requirements {
    type Err = RequirementError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut requirements = Self::NONE;
        for item in text.split(',').map(str::trim) {
            let Some((key, value)) = item.split_once('=') else {
                let remedy = "must be KEY=VALUE, several of them separated by commas, \
                              such as priority=0, deadline=5ms";
                return Err(RequirementError::new(
                    b"requirement",
                    item.as_bytes(),
                    remedy,
                ));
            };
            requirements.set_named(key.trim(), value.trim())?;
        }
        Ok(requirements)
    }
}

/// As [`FromStr`] reads it.
impl fmt::Display for Requirements {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, (key, value)) in self.user_properties().enumerate() {
            let comma = if at > 0 { ", " } else { "" };
            write!(f, "{comma}{key}={value}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(pairs: &[(&str, &str)]) -> Result<Requirements, RequirementError> {
        let mut requirements = Requirements::default();
        for (key, value) in pairs {
            requirements.set(key.as_bytes(), value.as_bytes())?;
        }
        Ok(requirements)
    }

    #[test]
    fn every_key_has_its_field() {
        let requirements = set(&[
            ("priority", "18446744073709551615"),
            ("rt-deadline", "10"),
            ("rt-period", "1.5ms"),
            ("rt-priority", "7"),
            ("rt-size", "100"),
            ("rt-transmission-time", "12us"),
            ("rt-bandwidth", "2Mbit"),
            ("rt-jitter", "0"),
            ("rt-late", "drop"),
            ("rt-classes", "0,1"),
            ("rt-sequence", "17"),
            ("rt-delivery", "0000002a/17"),
            ("colour", "blue"),
        ]);
        let expected = Requirements {
            deadline: Some(Duration::from_millis(10)),
            period: Some(Duration::from_micros(1_500)),
            priority: Some(7),
            size: Some(100),
            transmission_time: Some(Duration::from_micros(12)),
            bandwidth: Some(2_000_000),
            jitter: Some(Duration::ZERO),
            late: Some(Late::Drop),
            message_priority: Some(u64::MAX),
        };
        assert_eq!(requirements, Ok(expected));
    }

    #[test]
    fn set_tells_ours_from_others() {
        let mut requirements = Requirements::NONE;
        assert_eq!(requirements.set(b"priority", b"0"), Ok(true));
        assert_eq!(requirements.set(b"rt-classes", b"0"), Ok(false));
        assert_eq!(requirements.set(b"Priority", b"high"), Ok(false));
        assert!(is_requirement_key(b"rt-"));
        assert!(is_requirement_key(b"priority"));
        for key in [&b""[..], b"rt", b"rt_deadline", b"priority2", b"RT-late"] {
            assert!(!is_requirement_key(key));
        }
    }

    #[test]
    fn errors_name_key_value_and_remedy() {
        for (pairs, expected) in [
            (
                &[("rt-deadline", "0")][..],
                r#"rt-deadline = "0": must be above 0"#,
            ),
            (
                &[("rt-priority", "8")],
                r#"rt-priority = "8": must be 0 to 7 (most urgent)"#,
            ),
            (
                &[("rt-priority", "-1")],
                r#"rt-priority = "-1": must be 0 to 7 (most urgent)"#,
            ),
            (
                &[("priority", "18446744073709551616")],
                r#"priority = "18446744073709551616": must be 0 (most urgent) to 18446744073709551615"#,
            ),
            (
                &[("rt-late", "maybe")],
                r#"rt-late = "maybe": must be deliver or drop"#,
            ),
            (
                &[("rt-bandwidth", "0Mbit")],
                r#"rt-bandwidth = "0Mbit": must be above 0"#,
            ),
            (
                &[("rt-period", "1ms"), ("rt-period", "1ms")],
                r#"rt-period = "1ms": is given twice; leave one out"#,
            ),
            (
                &[("rt-status", "admitted")],
                r#"rt-status = "admitted": is an answer of the broker; leave it out"#,
            ),
            (
                &[("rt-dealine", "1ms")],
                "rt-dealine = \"1ms\": there is no such key; there are priority, rt-deadline, \
                 rt-period, rt-priority, rt-size, rt-transmission-time, rt-bandwidth, \
                 rt-jitter, rt-late",
            ),
        ] {
            let error = set(pairs).map_err(|error| error.to_string());
            assert_eq!(error, Err(expected.to_owned()));
        }
    }

    #[test]
    fn an_error_changes_nothing() {
        let mut requirements = Requirements::NONE;
        assert!(requirements.set(b"rt-deadline", b"x").is_err());
        assert!(requirements.is_empty());
        assert_eq!(requirements.set(b"rt-deadline", b"1ms"), Ok(true));
        assert!(requirements.set(b"rt-deadline", b"2ms").is_err());
        assert_eq!(requirements.deadline, Some(Duration::from_millis(1)));
    }

    #[test]
    fn texts_for_people() {
        let requirements: Requirements = "priority=0, deadline = 5ms,rt-late=drop".parse().unwrap();
        assert_eq!(requirements.message_priority, Some(0));
        assert_eq!(requirements.priority, None);
        assert_eq!(requirements.deadline, Some(Duration::from_millis(5)));
        assert_eq!(
            requirements.to_string(),
            "priority=0, rt-deadline=5ms, rt-late=drop"
        );
        for (text, why) in [
            ("", "must be KEY=VALUE"),
            ("priority=0,", "must be KEY=VALUE"),
            ("urgent", "must be KEY=VALUE"),
            ("colour=1", "rt-colour = \"1\": there is no such key"),
            ("classes=1", "classes = \"1\": is no requirement"),
            ("priority=0, priority=1", "given twice"),
        ] {
            let error = text.parse::<Requirements>().unwrap_err().to_string();
            assert!(error.contains(why), "{text}: {error}");
        }
    }

    #[test]
    fn what_is_said_goes_before_the_default() {
        let said: Requirements = "deadline=5ms".parse().unwrap();
        let default: Requirements = "deadline=9ms, priority=3".parse().unwrap();
        let both = said.or(default);
        assert_eq!(both.deadline, Some(Duration::from_millis(5)));
        assert_eq!(both.message_priority, Some(3));
        assert!(both.is_real_time());
        assert!(
            !Requirements {
                deadline: None,
                ..both
            }
            .is_real_time()
        );
    }
}
