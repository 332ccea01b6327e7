//! Topic names and filters (section 4.7): validity, levels, matching.

use crate::DecodeError;

/// Longest topic name or filter in bytes: what a two-byte length can say.
pub const MAX_TOPIC_LEN: usize = 65_535;

/// The first level of shared subscriptions (section 4.8.2).
pub const SHARE_PREFIX: &str = "$share/";

/// Checks the bytes of a topic name as received: UTF-8 without U+0000, at
/// least one character [MQTT-4.7.3-1], no wildcard [MQTT-3.3.2-2].
///
/// # Errors
/// `Malformed` for bad UTF-8, `TopicNameInvalid` otherwise.
#[inline]
pub fn validate_name(bytes: &[u8]) -> Result<&str, DecodeError> {
    let topic = crate::wire::valid_str(bytes, "topic name")?;
    // Without early exit, so that it is done many bytes at a time.
    let wildcard = bytes
        .iter()
        .fold(false, |found, b| found | (*b == b'+') | (*b == b'#'));
    if topic.is_empty() || wildcard {
        return Err(DecodeError::TopicNameInvalid);
    }
    Ok(topic)
}

/// Checks a topic filter: not empty, `+` and `#` alone in their level, `#`
/// only in the last [MQTT-4.7.1-1] [MQTT-4.7.1-2]; for `$share/…` a share name
/// without `/`, `+`, `#` and a filter after it [MQTT-4.8.2-1] [MQTT-4.8.2-2].
///
/// # Errors
/// `TopicFilterInvalid`.
pub fn validate_filter(filter: &str) -> Result<(), DecodeError> {
    let plain = match filter.strip_prefix(SHARE_PREFIX) {
        None => filter,
        Some(rest) => match rest.split_once('/') {
            Some((name, plain)) if !name.is_empty() && !name.contains(['+', '#']) => plain,
            _ => return Err(DecodeError::TopicFilterInvalid),
        },
    };
    if plain.is_empty() || plain.len() > MAX_TOPIC_LEN {
        return Err(DecodeError::TopicFilterInvalid);
    }
    let mut levels = plain.split('/').peekable();
    while let Some(level) = levels.next() {
        let ok = match level {
            "+" => true,
            "#" => levels.peek().is_none(),
            other => !other.contains(['+', '#']),
        };
        if !ok {
            return Err(DecodeError::TopicFilterInvalid);
        }
    }
    Ok(())
}

/// Splits a valid filter into its share name, if it is a shared subscription,
/// and the filter that topics are matched against.
pub fn split_share(filter: &str) -> (Option<&str>, &str) {
    match filter
        .strip_prefix(SHARE_PREFIX)
        .and_then(|rest| rest.split_once('/'))
    {
        Some((name, plain)) => (Some(name), plain),
        None => (None, filter),
    }
}

/// Whether a valid filter (without share prefix) has a wildcard.
pub fn has_wildcard(filter: &str) -> bool {
    filter.bytes().any(|b| matches!(b, b'+' | b'#'))
}

/// Most levels of a name or filter that a broker may be configured to take, or takes from another.
pub const MAX_LEVELS: usize = 1024;

/// Number of levels of a name or filter: one more than its slashes.
pub fn levels(topic: &str) -> usize {
    1 + topic.bytes().filter(|b| *b == b'/').count()
}

/// Whether `topic` matches `filter` (both valid; the filter without share
/// prefix). Topics that begin with `$` are not matched by filters that begin
/// with a wildcard [MQTT-4.7.2-1].
pub fn matches(filter: &str, topic: &str) -> bool {
    let (mut filter, mut topic) = (filter.as_bytes(), topic.as_bytes());
    if topic.first() == Some(&b'$') && matches!(filter.first(), Some(b'+' | b'#')) {
        return false;
    }
    loop {
        match (filter, topic) {
            // The level above `#` matches too: `a/#` matches `a`.
            ([b'#'], _) | (b"/#" | [], []) => return true,
            ([b'+', rest @ ..], _) => {
                let level = topic.iter().position(|b| *b == b'/');
                topic = &topic[level.unwrap_or(topic.len())..];
                filter = rest;
            }
            ([f, filter_rest @ ..], [t, topic_rest @ ..]) if f == t => {
                (filter, topic) = (filter_rest, topic_rest);
            }
            _ => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        for good in ["a", "/", "a//b", "$SYS/x", " ", "über/größe"] {
            assert!(validate_name(good.as_bytes()).is_ok(), "{good}");
        }
        for bad in ["", "a/+", "#", "a+b"] {
            assert_eq!(
                validate_name(bad.as_bytes()),
                Err(DecodeError::TopicNameInvalid),
                "{bad}"
            );
        }
        assert!(matches!(
            validate_name(b"a\0b"),
            Err(DecodeError::Malformed(_))
        ));
        assert!(matches!(
            validate_name(b"\xed\xa0\x80"),
            Err(DecodeError::Malformed(_))
        ));
    }

    #[test]
    fn filters() {
        for good in [
            "a",
            "+",
            "#",
            "a/#",
            "+/+",
            "/+",
            "+/",
            "a/+/b",
            "//",
            "$share/g/a",
            "$share/g/#",
            "$share/g//",
            "$SYS/#",
            "$shared",
            "$share",
        ] {
            assert!(validate_filter(good).is_ok(), "{good}");
        }
        for bad in [
            "",
            "a#",
            "#/a",
            "a/#/b",
            "a+",
            "+a/b",
            "a/b+",
            "$share/",
            "$share/g",
            "$share//a",
            "$share/+/a",
            "$share/g#/a",
            "$share/g/",
            "$share/g/a#",
        ] {
            assert!(validate_filter(bad).is_err(), "{bad}");
        }
        assert_eq!(split_share("$share/g/a/b"), (Some("g"), "a/b"));
        assert_eq!(split_share("a/b"), (None, "a/b"));
    }

    #[test]
    fn matching() {
        for (filter, topic, expected) in [
            ("sport/tennis/player1/#", "sport/tennis/player1", true),
            (
                "sport/tennis/player1/#",
                "sport/tennis/player1/ranking",
                true,
            ),
            ("sport/#", "sport", true),
            ("#", "a/b", true),
            ("#", "$SYS/a", false),
            ("+/a", "$SYS/a", false),
            ("$SYS/#", "$SYS/a", true),
            ("$SYS/+", "$SYS/a", true),
            ("sport/+", "sport", false),
            ("sport/+", "sport/", true),
            ("+/+", "/finance", true),
            ("/+", "/finance", true),
            ("+", "/finance", false),
            ("a/b", "a/b/", false),
            ("a", "A", false),
        ] {
            assert_eq!(matches(filter, topic), expected, "{filter} {topic}");
        }
    }
}
