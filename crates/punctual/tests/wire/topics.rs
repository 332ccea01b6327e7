//! Topic names and filters (section 4.7): which match which, and that nothing
//! is normalised.

use crate::build::{Props, Publish, V5, V311, subscribe};
use crate::conn::{Conn, unique};
use crate::fixture::{pair, until};
use crate::parse::Packet;

/// Whether a subscriber of `filter` gets a message on `topic`.
#[track_caller]
fn matches(filter: &str, topic: &str) -> bool {
    let marker = unique("m");
    let mut subscriber = Conn::client(V5);
    subscriber.subscribe(&marker, 0);
    subscriber.subscribe(filter, 0);
    let mut publisher = Conn::client(V5);
    let payload = unique("p");
    publisher.publish(topic, &payload, 0);
    publisher.publish(&marker, "marker", 0);
    let got = until(&mut subscriber, "marker");
    let mine: Vec<_> = got
        .iter()
        .filter(|message| message.text() == payload)
        .collect();
    assert!(mine.iter().all(|message| message.topic == topic));
    !mine.is_empty()
}

/// [MQTT-4.7.1-1] [MQTT-4.7.1-2] [MQTT-3.3.2-3] [3.1.1 MQTT-4.7.1-2]
/// [3.1.1 MQTT-4.7.1-3] [3.1.1 MQTT-3.3.2-3] `+` stands for one whole level,
/// also an empty one; `#` for all remaining ones, also for none.
#[test]
fn wildcards_match_whole_levels() {
    let name = unique("t");
    for (filter, topic, expected) in [
        ("N/#", "N", true),
        ("N/#", "N/", true),
        ("N/#", "N/a", true),
        ("N/#", "N/a/b/c", true),
        ("N/#", "Na", false),
        ("N/+", "N/a", true),
        ("N/+", "N/", true),
        ("N/+", "N", false),
        ("N/+", "N/a/b", false),
        ("N/+/c", "N/a/c", true),
        ("N/+/c", "N//c", true),
        ("N/+/c", "N/a/b/c", false),
        ("+/N", "a/N", true),
        ("+/N", "/N", true),
        ("/N", "/N", true),
        ("/N", "N", false),
        ("N", "N/", false),
        ("N/", "N", false),
        ("N//a", "N/a", false),
        ("+/N/#", "a/N", true),
        ("+/N/+/#", "a/N/b", true),
        ("+/N/+/#", "a/N", false),
    ] {
        let (filter, topic) = (filter.replace('N', &name), topic.replace('N', &name));
        assert_eq!(matches(&filter, &topic), expected, "{filter} and {topic}");
    }
}

/// [MQTT-4.7.3-4] [3.1.1 MQTT-4.7.3-4] [MQTT-1.5.4-3] [3.1.1 MQTT-1.5.3-3]
/// Names are compared byte by byte: case, blanks, composition, and U+FEFF
/// count.
#[test]
fn nothing_is_normalised() {
    let name = unique("t");
    for (filter, topic) in [
        ("N/a", "N/A"),
        ("N/a", "N/a "),
        ("N/a", "N/ a"),
        ("N/\u{E9}", "N/e\u{301}"),
        ("N/a", "N/\u{FEFF}a"),
        ("N/a", "N/a\u{FEFF}"),
        ("N/\u{FF21}", "N/A"),
        ("N/a", "N/a\u{200D}"),
        ("N/.", "N/x/.."),
        ("N/%61", "N/a"),
    ] {
        let (filter, topic) = (filter.replace('N', &name), topic.replace('N', &name));
        assert!(!matches(&filter, &topic), "{filter} and {topic:?}");
        assert!(matches(&topic, &topic), "{topic:?} and itself");
        assert!(
            matches(&format!("{name}/#"), &topic),
            "{name}/# and {topic:?}"
        );
    }
}

/// [MQTT-1.5.4-3] [3.1.1 MQTT-1.5.3-3] [MQTT-1.5.4-1] A topic with U+FEFF, with
/// the characters around the surrogates, or beyond the BMP, arrives as it is.
#[test]
fn unusual_characters_arrive() {
    for level in [V311, V5] {
        let mut subscriber = Conn::client(level);
        let name = unique("t");
        subscriber.subscribe(&format!("{name}/#"), 0);
        let mut publisher = Conn::client(level);
        for text in [
            "\u{FEFF}",
            "\u{FEFF}a\u{FEFF}",
            "\u{D7FF}\u{E000}",
            "\u{FFFD}",
            "\u{10000}\u{10FFFD}",
            "😀",
            " ",
            "a b",
        ] {
            let topic = format!("{name}/{text}");
            publisher.publish(&topic, text, 0);
            subscriber.expect(&topic, text);
        }
    }
}

/// [MQTT-4.7.2-1] [3.1.1 MQTT-4.7.2-1] A filter that begins with a wildcard
/// does not match a name that begins with `$`; one that spells the first level
/// does.
#[test]
fn wildcards_do_not_match_dollar_topics() {
    let name = unique("t");
    let topic = format!("${name}/a");
    for filter in ["#", "+/a", "+/#"] {
        assert!(!matches(filter, &topic), "{filter} and {topic}");
    }
    // A server may keep `$` topics from clients altogether: then nobody gets it.
    let exact = matches(&topic, &topic);
    assert_eq!(matches(&format!("${name}/#"), &topic), exact);
    assert_eq!(matches(&format!("${name}/+"), &topic), exact);
    let mut conn = Conn::client(V5);
    conn.subscribe("$SYS/#", 0);
    assert!(conn.message().topic.starts_with("$SYS/"));
}

/// [MQTT-4.7.3-1] [MQTT-4.7.3-3] [3.1.1 MQTT-4.7.3-1] [3.1.1 MQTT-4.7.3-3] Names
/// from one byte to the longest that can be written are served.
#[test]
fn names_of_every_length_are_served() {
    let long = format!("{}{}", unique("t"), "x".repeat(65_535));
    for level in [V311, V5] {
        let mut subscriber = Conn::client(level);
        let mut publisher = Conn::client(level);
        for topic in ["/", "t", &long[..255], &long[..256], &long[..65_535]] {
            assert_eq!(subscriber.subscribe(topic, 0), 0);
            let payload = unique("p");
            publisher.publish(topic, &payload, 0);
            loop {
                let message = subscriber.message();
                if message.text() == payload {
                    assert!(message.topic == topic);
                    break;
                }
            }
        }
    }
}

/// [MQTT-4.5.0-1] [3.1.1 MQTT-4.5.0-1] [MQTT-3.3.4-2] Every client with a
/// matching subscription gets the message, once for each of its filters at
/// most.
#[test]
fn every_matching_client_gets_the_message() {
    for level in [V311, V5] {
        let (mut one, mut publisher, topic) = pair(level);
        let mut others: Vec<Conn> = Vec::new();
        for filter in [topic.clone(), format!("{topic}/#"), "+".into(), "#".into()] {
            let mut other = Conn::client(level);
            other.subscribe(&filter, 1);
            others.push(other);
        }
        publisher.publish(&topic, "for all", 1);
        one.expect(&topic, "for all");
        for other in &mut others {
            loop {
                let message = other.message();
                other.acknowledge(&message);
                if message.topic == topic && message.text() == "for all" {
                    break;
                }
            }
        }
    }
}

/// [MQTT-4.7.1-1] Filters that only look like wildcards in a wrong place are
/// refused even beside good ones: the answer has a code for each, or the
/// connection ends.
#[test]
fn one_bad_filter_does_not_hide_among_good_ones() {
    for level in [V311, V5] {
        let mut conn = Conn::client(level);
        let good = unique("t");
        let filters = [(good.as_str(), 0), ("a/#/b", 0)];
        conn.send(subscribe(level, 1, &Props::new(), &filters));
        match conn.next_or_end() {
            None => {}
            Some(Packet::SubAck(suback)) => {
                assert_eq!(suback.codes.len(), 2);
                assert!(suback.codes[1] >= 0x80, "{suback:?}");
            }
            Some(Packet::Disconnect(_)) => conn.closed(),
            Some(other) => conn.fail("SUBACK, or the end", &other),
        }
        let mut publisher = Conn::client(level);
        publisher.send(Publish::new(level, "a/b", "p").encode());
        publisher.ping();
    }
}
