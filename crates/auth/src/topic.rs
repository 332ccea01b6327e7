//! Topic filters: validity, matching and covering.
//!
//! Rules of MQTT 5.0 section 4.7: `+` stands for exactly one level, `#` for its parent level and
//! everything below it, and a filter that begins with a wildcard never matches a topic that begins
//! with `$` [MQTT-4.7.2-1]. Nothing here allocates.

/// Most levels a filter may have. Mosquitto's limit as well (its `TOPIC_HIERARCHY_LIMIT` counts the
/// slashes); it bounds the depth of every walk over filters.
pub(crate) const MAX_LEVELS: usize = 201;

/// Most bytes an MQTT string may have.
pub(crate) const MAX_BYTES: usize = 65_535;

/// Says whether `topic` (a topic name, without wildcards) matches `filter` (a valid topic filter).
///
/// ```
/// use punctual_auth::topic::matches;
/// assert!(matches("plant/+/speed", "plant/7/speed"));
/// assert!(matches("plant/#", "plant"));
/// assert!(!matches("#", "$SYS/broker/uptime"));
/// ```
pub fn matches(filter: &str, topic: &str) -> bool {
    if topic.is_empty() || (topic.starts_with('$') && filter.starts_with(['+', '#'])) {
        return false;
    }
    let (mut filter, mut topic) = (filter.split('/'), topic.split('/'));
    loop {
        match (filter.next(), topic.next()) {
            (Some("#"), _) | (None, None) => return true,
            (Some("+"), Some(_)) => {}
            (Some(wanted), Some(level)) if wanted == level => {}
            _ => return false,
        }
    }
}

/// Says whether every topic that matches `narrow` also matches `wide`. Both are valid filters.
pub fn covers(wide: &str, narrow: &str) -> bool {
    if narrow.starts_with('$') && wide.starts_with(['+', '#']) {
        return false;
    }
    // A topic has at least one level, so that at the start of a filter both mean "all".
    let wide = if wide == "+/#" { "#" } else { wide };
    let (mut wide, mut narrow) = (wide.split('/'), narrow.split('/'));
    loop {
        match (wide.next(), narrow.next()) {
            (Some("#"), _) | (None, None) => return true,
            (Some("+"), Some(level)) if level != "#" => {}
            (Some(wanted), Some(level)) if wanted == level => {}
            _ => return false,
        }
    }
}

/// Checks a filter; the error says what is wrong with it and reads on after the filter.
pub(crate) fn check_filter(filter: &str) -> Result<(), &'static str> {
    if filter.is_empty() {
        return Err("is empty");
    }
    if filter.len() > MAX_BYTES {
        return Err("is longer than 65535 bytes");
    }
    if filter.contains('\0') {
        return Err("holds a NUL character");
    }
    let mut levels = filter.split('/').peekable();
    let mut count = 0;
    while let Some(level) = levels.next() {
        count += 1;
        if level == "#" && levels.peek().is_some() {
            return Err("has levels after '#'");
        }
        if level.len() > 1 && level.contains(['+', '#']) {
            return Err("has a wildcard that is not alone in its level");
        }
    }
    if count > MAX_LEVELS {
        return Err("has more than 201 levels");
    }
    Ok(())
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The specification again, as plain recursion over levels.
    fn reference(filter: &[&str], topic: &[&str]) -> bool {
        match (filter, topic) {
            ([], []) | (["#"], _) => true,
            (["+", filter @ ..], [_, topic @ ..]) => reference(filter, topic),
            ([wanted, filter @ ..], [level, topic @ ..]) => {
                wanted == level && reference(filter, topic)
            }
            _ => false,
        }
    }

    fn reference_matches(filter: &str, topic: &str) -> bool {
        let filter: Vec<&str> = filter.split('/').collect();
        if topic.starts_with('$') && (filter[0] == "+" || filter[0] == "#") {
            return false;
        }
        reference(&filter, &topic.split('/').collect::<Vec<_>>())
    }

    /// Every topic of one to four levels over a small alphabet, for exhaustive comparisons.
    pub(crate) fn small_topics() -> Vec<String> {
        topics_over(&["", "a", "b", "$s"])
    }

    /// Every topic of one to four levels that have these names.
    pub(crate) fn topics_over(levels: &[&str]) -> Vec<String> {
        let mut topics: Vec<String> = levels.iter().map(ToString::to_string).collect();
        let mut longest = topics.clone();
        for _ in 0..3 {
            longest = longest
                .iter()
                .flat_map(|head| levels.iter().map(move |level| format!("{head}/{level}")))
                .collect();
            topics.extend(longest.iter().cloned());
        }
        topics.retain(|topic| !topic.is_empty());
        topics
    }

    prop_compose! {
        pub(crate) fn any_filter()(
            levels in prop::collection::vec(prop::sample::select(vec!["", "a", "b", "$s", "+"]), 1..4),
            rest in any::<bool>(),
        ) -> String {
            let mut filter = levels.join("/");
            if rest {
                filter = if filter.is_empty() { "#".to_owned() } else { filter + "/#" };
            }
            if filter.is_empty() { "a".to_owned() } else { filter }
        }
    }

    proptest! {
        #[test]
        fn matching_agrees_with_the_reference(filter in any_filter()) {
            prop_assert_eq!(check_filter(&filter), Ok(()));
            for topic in small_topics() {
                prop_assert_eq!(
                    matches(&filter, &topic), reference_matches(&filter, &topic),
                    "{:?} on {:?}", filter, topic
                );
            }
        }

        #[test]
        fn covering_means_that_no_topic_escapes(wide in any_filter(), narrow in any_filter()) {
            let escape = small_topics()
                .into_iter()
                .find(|topic| matches(&narrow, topic) && !matches(&wide, topic));
            // Four levels suffice to show an escape from filters of at most four levels, except
            // where "everything below" needs one level more than the topics have.
            if covers(&wide, &narrow) {
                prop_assert_eq!(escape, None, "{:?} covers {:?}", wide, narrow);
            } else if wide.split('/').count() < 4 && narrow.split('/').count() < 4 {
                let empty = !small_topics().iter().any(|topic| matches(&narrow, topic));
                prop_assert!(escape.is_some() || empty, "{:?} does not cover {:?}", wide, narrow);
            }
        }
    }

    #[test]
    fn examples_of_the_specification_match() {
        // MQTT 5.0, 4.7.1.2 and 4.7.1.3.
        for topic in ["sport/tennis/player1", "sport/tennis/player1/ranking"] {
            assert!(matches("sport/tennis/player1/#", topic), "{topic}");
        }
        assert!(matches("sport/#", "sport"));
        assert!(matches("sport/tennis/+", "sport/tennis/player1"));
        assert!(!matches("sport/tennis/+", "sport/tennis/player1/ranking"));
        assert!(!matches("sport/+", "sport"));
        assert!(matches("sport/+", "sport/"));
        assert!(matches("+/+", "/finance"));
        assert!(matches("/+", "/finance"));
        assert!(!matches("+", "/finance"));
    }

    #[test]
    fn wildcards_at_the_start_never_match_dollar_topics() {
        assert!(!matches("#", "$SYS/broker"));
        assert!(!matches("+/broker", "$SYS/broker"));
        assert!(matches("$SYS/#", "$SYS/broker"));
        assert!(matches("a/#", "a/$SYS"));
        assert!(matches("a/+", "a/$SYS"));
        assert!(!covers("#", "$SYS/broker"));
        assert!(covers("$SYS/#", "$SYS/broker/+"));
    }

    #[test]
    fn bad_filters_are_refused_with_the_reason() {
        for (filter, reason) in [
            ("", "empty"),
            ("a/#/b", "after '#'"),
            ("#/", "after '#'"),
            ("a#", "alone"),
            ("a/b+/c", "alone"),
            ("++", "alone"),
            ("a\0b", "NUL"),
            (&*"/".repeat(201), "levels"),
            (&*"a".repeat(MAX_BYTES + 1), "bytes"),
        ] {
            let problem = check_filter(filter).expect_err(filter);
            assert!(problem.contains(reason), "{filter:?}: {problem}");
        }
        for filter in [
            "#",
            "+",
            "/",
            "a//b",
            "+/+/#",
            "a b/ü",
            "$SYS/#",
            &*"/".repeat(200),
        ] {
            assert_eq!(check_filter(filter), Ok(()), "{filter:?}");
        }
    }
}
