//! Tables for each rule, and a naive list of rules as the reference for the trie. The comparison
//! with mosquitto itself is in `tests/mosquitto.rs`.

use proptest::prelude::*;

use super::*;
use crate::topic::tests::{any_filter, small_topics, topics_over};

fn acl(text: &str) -> Acl {
    Acl::parse(text).expect(text)
}

/// Rights on a topic as text: `r`, `w`, `rw` or nothing.
fn rights(client: &ClientAcl, topic: &str) -> String {
    let mut rights = String::new();
    if client.may_receive(topic) {
        rights.push('r');
    }
    if client.may_publish(topic) {
        rights.push('w');
    }
    rights
}

#[track_caller]
fn check(acl: &Acl, user: Option<&str>, client_id: &str, expected: &[(&str, &str)]) {
    let client = acl.for_client(user, client_id);
    for (topic, wanted) in expected {
        assert_eq!(
            rights(&client, topic),
            *wanted,
            "{user:?} {client_id:?} on {topic:?}"
        );
    }
}

fn only_error(text: &str) -> FileError {
    let mut errors = Acl::parse(text).expect_err(text);
    assert_eq!(errors.len(), 1, "{errors:?}");
    errors.remove(0)
}

#[test]
fn rt_lines_may_name_topics() {
    let acl = Acl::parse(
        "user robot
         rt priority=100 max-priority=none
         rt alarm/# priority=0 max-priority=7
         rt alarm/test priority=none
         rt log/+ priority=none
         user guest
         rt priority=none max-priority=none",
    )
    .unwrap();
    let on = |user, topic| acl.for_client(Some(user), "c").rt_rights_on(topic);
    let robot = on("robot", "state");
    assert_eq!((robot.min_priority, robot.no_real_time), (Some(100), true));
    for topic in ["alarm/fire", "alarm/test"] {
        let alarm = on("robot", topic);
        assert_eq!((alarm.min_priority, alarm.max_priority), (Some(0), Some(7)));
        assert!(!alarm.no_real_time && !alarm.no_priority);
    }
    assert!(on("robot", "log/1").no_priority);
    assert!(on("robot", "log/1").no_real_time);
    assert!(on("guest", "alarm/fire").no_priority);
    assert_eq!(on("someone", "alarm/fire"), RtRights::default());
    for wrong in [
        "rt alarm/#/x priority=1",
        "rt a priority=-1",
        "rt a priority=none priority=1",
    ] {
        assert!(Acl::parse(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn the_example_file_of_mosquitto_means_what_it_says() {
    let acl = acl(
        "# This affects access control for clients with no username.\n\
                   topic read $SYS/#\n\n\
                   # This only affects clients with username \"roger\".\n\
                   user roger\ntopic foo/bar\n\n\
                   # This affects all clients.\n\
                   pattern write $SYS/broker/connection/%c/state\n",
    );
    let own_state = "$SYS/broker/connection/c1/state";
    check(
        &acl,
        None,
        "c1",
        &[
            ("$SYS/broker/uptime", "r"),
            ("foo/bar", ""),
            (own_state, "rw"),
        ],
    );
    check(
        &acl,
        Some("roger"),
        "c1",
        &[
            ("$SYS/broker/uptime", ""),
            ("foo/bar", "rw"),
            (own_state, "w"),
            ("$SYS/broker/connection/c2/state", ""),
        ],
    );
    check(
        &acl,
        Some("jim"),
        "c1",
        &[("foo/bar", ""), ("$SYS/broker/uptime", "")],
    );
}

#[test]
fn access_words_and_their_default() {
    let acl =
        acl("user u\ntopic read r\ntopic write w\ntopic readwrite rw\ntopic d\ntopic deny n\n");
    check(
        &acl,
        Some("u"),
        "c",
        &[
            ("r", "r"),
            ("w", "w"),
            ("rw", "rw"),
            ("d", "rw"),
            ("n", ""),
            ("x", ""),
        ],
    );
}

#[test]
fn deny_wins_over_every_grant_of_its_section_wherever_it_stands() {
    for text in [
        "user u\ntopic readwrite a/#\ntopic deny a/b/#\n",
        "user u\ntopic deny a/b/#\ntopic readwrite a/#\n",
        "user u\ntopic deny a/b/#\nuser v\ntopic x\nuser u\ntopic readwrite a/#\n",
        "pattern deny a/b/#\npattern readwrite a/#\n",
    ] {
        check(
            &acl(text),
            Some("u"),
            "c",
            &[("a", "rw"), ("a/c", "rw"), ("a/b", ""), ("a/b/c", "")],
        );
    }
}

#[test]
fn a_users_own_rules_come_before_patterns() {
    let acl =
        acl("user u\ntopic read a\ntopic deny b\npattern deny a\npattern b\npattern write a/x\n");
    check(&acl, Some("u"), "c", &[("a", "r"), ("b", ""), ("a/x", "w")]);
    check(
        &acl,
        Some("v"),
        "c",
        &[("a", ""), ("b", "rw"), ("a/x", "w")],
    );
    check(&acl, None, "c", &[("a", ""), ("b", "rw")]);
}

#[test]
fn lines_before_the_first_user_are_for_anonymous_clients_only() {
    let acl = acl("topic read a\nuser u\ntopic read b\n");
    check(&acl, None, "c", &[("a", "r"), ("b", "")]);
    check(&acl, Some("u"), "c", &[("a", ""), ("b", "r")]);
    // Mosquitto takes an empty user name for none.
    check(&acl, Some(""), "c", &[("a", "r"), ("b", "")]);
}

#[test]
fn a_file_without_rules_denies_and_no_file_allows() {
    for text in ["", "# nothing\n\n", "user u\n"] {
        check(&acl(text), Some("u"), "c", &[("a", ""), ("$SYS/x", "")]);
        check(&acl(text), None, "c", &[("a", "")]);
        assert!(!acl(text).for_client(None, "c").may_subscribe("#"));
    }
    let open = ClientAcl::unrestricted();
    assert_eq!(rights(&open, "a"), "rw");
    assert_eq!(rights(&open, "$SYS/broker/uptime"), "r");
    assert!(open.may_subscribe("#"));
    assert_eq!(open.rt_rights(), None);
}

#[test]
fn dollar_topics_need_a_rule_that_begins_so() {
    let acl = acl("user u\ntopic #\ntopic +/x\nuser v\ntopic $SYS/#\ntopic $share/#\ntopic $x/#\n");
    check(
        &acl,
        Some("u"),
        "c",
        &[("a", "rw"), ("a/$x", "rw"), ("$SYS/x", ""), ("$x/x", "")],
    );
    check(
        &acl,
        Some("v"),
        "c",
        &[
            ("$SYS/broker/uptime", "r"),
            ("$SYS/broker/connection/b/state", "rw"),
            ("$SYS/broker/connection/b/c/state", "r"),
            ("$share/x", "r"),
            ("$x/x", "rw"),
            ("a", ""),
        ],
    );
    assert_eq!(
        rights(&ClientAcl::unrestricted(), "$SYS/broker/connection/b/state"),
        "rw"
    );
    assert_eq!(rights(&ClientAcl::unrestricted(), "$share/g/a"), "r");
}

#[test]
fn names_are_substituted_once_and_anywhere() {
    let acl = acl("pattern read %u/%c\npattern write x-%c-y/%%c%\npattern read 100%/%x/%\n");
    check(
        &acl,
        Some("u"),
        "c",
        &[("u/c", "r"), ("x-c-y/%c%", "w"), ("100%/%x/%", "r")],
    );
    check(
        &acl,
        Some("%c"),
        "%u",
        &[("%c/%u", "r"), ("%u/%u", ""), ("x-%u-y/%%u%", "w")],
    );
    check(&acl, Some("ü"), "€", &[("ü/€", "r")]);
}

#[test]
fn patterns_with_a_user_name_pass_over_anonymous_clients() {
    let acl = acl("pattern read %u/a\npattern read %c/b\npattern deny %u/b\n");
    check(
        &acl,
        None,
        "c",
        &[("%u/a", ""), ("/a", ""), ("c/a", ""), ("c/b", "r")],
    );
    check(&acl, Some("c"), "c", &[("c/a", "r"), ("c/b", "")]);
    check(&acl, Some(""), "c", &[("/a", ""), ("c/b", "r")]);
}

#[test]
fn names_with_wildcards_get_nothing_from_any_pattern() {
    let acl = acl("user +\ntopic own\nuser u\ntopic own\npattern %u/x\npattern common\n");
    check(
        &acl,
        Some("u"),
        "c",
        &[("own", "rw"), ("u/x", "rw"), ("common", "rw")],
    );
    for (user, client_id) in [("+", "c"), ("u", "+"), ("u", "a#b"), ("u", "#")] {
        check(
            &acl,
            Some(user),
            client_id,
            &[("own", "rw"), ("u/x", ""), ("common", "")],
        );
    }
    check(&acl, None, "#", &[("common", "")]);
    // As in mosquitto 2.0, a slash is no wildcard.
    check(&acl, Some("u/v"), "c", &[("u/v/x", "rw"), ("common", "rw")]);
}

#[test]
fn names_do_not_reach_dollar_topics_through_a_pattern() {
    let acl = acl("pattern read %c/#\npattern read $SYS/%u\n");
    check(
        &acl,
        Some("u"),
        "$SYS",
        &[("$SYS/broker", ""), ("$SYS/u", "r")],
    );
    // A denial by such a name still holds.
    let acl = self::acl("pattern deny %c/#\npattern read $SYS/#\n");
    check(&acl, None, "$SYS", &[("$SYS/broker", "")]);
    check(&acl, None, "c", &[("$SYS/broker", "r")]);
}

#[test]
fn names_too_deep_for_a_filter_get_nothing_from_any_pattern() {
    let acl = acl("pattern read %c/#\npattern read common\n");
    check(
        &acl,
        None,
        &"/".repeat(199),
        &[("common", "r"), (&*"/".repeat(199), "r")],
    );
    check(&acl, None, &"/".repeat(200), &[("common", "")]);
    check(
        &acl,
        None,
        &"/".repeat(65_535),
        &[("common", ""), (&*"/".repeat(65_535), "")],
    );
}

#[test]
fn subscribing_fails_only_where_nothing_could_be_delivered() {
    let acl = acl(
        "user u\ntopic read a/#\ntopic deny a/b/#\npattern deny p/#\n\
                   user v\ntopic write w\n",
    );
    let client = acl.for_client(Some("u"), "c");
    for (filter, granted) in [
        ("#", true),
        ("a/#", true),
        ("a/+", true),
        ("+/+/c", true),
        ("a/+/c", true),
        ("+", true),
        ("a/b/c/#", false),
        ("a/b", false),
        ("x", false),
        ("secret/+/x", false),
        ("$SYS/#", false),
        ("p/q", false),
    ] {
        assert_eq!(client.may_subscribe(filter), granted, "{filter}");
        assert_eq!(
            client.may_subscribe(&format!("$share/g/{filter}")),
            granted,
            "{filter}"
        );
    }
    for filter in ["w", "#", "p/q"] {
        assert!(!acl.for_client(Some("v"), "c").may_subscribe(filter));
    }
    assert!(!acl.for_client(None, "c").may_subscribe("$share/g/p"));
}

#[test]
fn several_denials_may_leave_nothing_of_a_filter() {
    let denied = |text: &str, filter: &str| !acl(text).for_client(None, "c").may_subscribe(filter);
    let text = "topic read a/#\ntopic deny a\ntopic deny a/+/#\n";
    assert!(denied(text, "a/#") && denied(text, "#") && denied(text, "+/x/+"));
    let text = "topic read a/#\ntopic deny a\ntopic deny a/+\n";
    assert!(!denied(text, "a/#") && denied(text, "a/x"));
    // Names that no rule has are not denied.
    let text = "topic read +\ntopic deny x\n";
    assert!(!denied(text, "+") && denied(text, "x"));
    // A client's own grants come before denials by pattern.
    let text = "topic read a/b\npattern read #\npattern deny a/#\n";
    assert!(!denied(text, "a/+") && denied(text, "a/c"));
}

#[test]
fn names_of_clients_are_in_patterns() {
    let acl = acl("pattern read dev/%u/%c/#\n");
    let may = |filter| acl.for_client(Some("u"), "c").may_subscribe(filter);
    assert!(may("dev/u/c/x") && may("dev/+/c") && may("#"));
    assert!(!may("dev/v/#") && !may("dev/u/d/#") && !may("+"));
}

#[test]
fn deep_and_many_rules_take_bounded_work() {
    let deep = "+/".repeat(150);
    let rules: Vec<String> = (0..150)
        .map(|level| {
            format!(
                "topic read {}x/#\ntopic deny {}#\n",
                "+/".repeat(level),
                "+/".repeat(level)
            )
        })
        .collect();
    let client = acl(&rules.concat()).for_client(None, "c");
    assert!(!client.may_subscribe("#"));
    // Nobody waits for an answer to this one.
    let _ = client.may_subscribe(&(deep + "#"));
    let wide: Vec<String> = (0..5000)
        .map(|n| format!("topic read a/{n}\ntopic deny a/{n}\n"))
        .collect();
    let client = acl(&wide.concat()).for_client(None, "c");
    assert!(client.may_subscribe("a/+"), "each message is looked at");
}

#[test]
fn brokers_are_named() {
    let acl = acl("user berlin\nbroker\nuser sites\nbroker a b\nuser any\nbroker *\nuser u\n");
    let may = |user: &str, name| acl.for_client(Some(user), "c").may_be_broker(name);
    assert!(may("berlin", "berlin") && !may("berlin", "a"));
    assert!(may("sites", "a") && may("sites", "b") && !may("sites", "sites"));
    assert!(may("any", "a") && may("any", "any"));
    assert!(!may("u", "u") && !may("nobody", "nobody"));
    assert!(!acl.for_client(None, "berlin").may_be_broker("berlin"));
    assert!(!ClientAcl::unrestricted().may_be_broker("berlin"));
    assert!(acl.has_brokers());
    for (text, value, remedy) in [
        ("broker\n", "", "below user"),
        ("user u\nbroker a/b\n", "a/b", "mesh.id"),
        ("user u\nbroker a #\n", "#", "mesh.id"),
    ] {
        let error = only_error(text);
        assert_eq!((error.field, &*error.value), ("broker line", value));
        assert!(error.remedy.contains(remedy), "{error}");
    }
}

#[test]
fn lines_are_read_as_mosquitto_reads_them() {
    let acl = acl(
        "\u{feff}  user  roger smith \t\r\n#topic deny #\n  # indented\n\t\n \
                   topic   read   two words/+ \n topic read\ntopic  deny \t b\r\n\
                   user roger\ntopic c",
    );
    check(
        &acl,
        Some("roger smith"),
        "c",
        &[("two words/x", "r"), ("read", "rw"), ("b", ""), ("c", "")],
    );
    check(&acl, Some("roger"), "c", &[("c", "rw"), ("read", "")]);
}

#[test]
fn every_bad_line_is_named_with_its_remedy() {
    let text = "user u\ntopic\ntopic rw a\ntopic read a#\n# fine\nuser\npattern deny a/#/b\nfoo bar\n\
                topic two words\nrt\nuser a\u{7}b\ntopic\tread a\n";
    let errors = Acl::parse(text).expect_err("many bad lines");
    let found: Vec<_> = errors
        .iter()
        .map(|error| (error.line, error.field, &*error.value))
        .collect();
    assert_eq!(
        found,
        [
            (2, "topic filter", ""),
            (3, "access", "rw"),
            (4, "topic filter", "a#"),
            (6, "user name", ""),
            (7, "topic filter", "a/#/b"),
            (8, "keyword", "foo"),
            (9, "access", "two"),
            (10, "rt key", ""),
            (11, "user name", "a\u{7}b"),
            (12, "keyword", "topic\tread"),
        ]
    );
    assert_eq!(
        errors[2].to_string(),
        "line 4: topic filter \"a#\" has a wildcard that is not alone in its level; write a topic \
         filter: levels separated by '/', '+' alone for one level, '#' alone and last for all that \
         follow"
    );
    let long = "x".repeat(65_536);
    assert_eq!(
        only_error(&format!("user {long}")).problem,
        "is longer than 65535 bytes"
    );
}

#[test]
fn likely_mistakes_are_warnings() {
    let acl =
        acl("user u\ntopic read %c/a\ntopic b\npattern read c\npattern read x%c\npattern d/%u\n");
    let lines: Vec<usize> = acl.warnings().iter().map(|warning| warning.line).collect();
    assert_eq!(lines, [2, 4, 5]);
    check(
        &acl,
        Some("u"),
        "c",
        &[("%c/a", "r"), ("c/a", ""), ("c", "r"), ("xc", "r")],
    );
}

#[test]
fn rt_lines_belong_to_their_section() {
    let acl = acl("rt max-flows=0\n\
                   user arm\ntopic arm/#\nrt max-priority=7  max-bandwidth=2Mbit max-flows=10\n\
                   user leg\nrt max-priority=0\nuser head\ntopic head\nuser leg\nrt max-bandwidth=1\n");
    let rt = |user| acl.for_client(user, "c").rt_rights();
    let all = RtRights {
        max_priority: Some(7),
        max_bandwidth: Some(2_000_000),
        max_flows: Some(10),
        ..RtRights::default()
    };
    assert_eq!(rt(Some("arm")), Some(all));
    let two = RtRights {
        max_priority: Some(0),
        max_bandwidth: Some(1),
        max_flows: None,
        ..RtRights::default()
    };
    assert_eq!(rt(Some("leg")), Some(two));
    assert_eq!(
        rt(None),
        Some(RtRights {
            max_flows: Some(0),
            ..RtRights::default()
        })
    );
    assert_eq!(rt(Some("head")), None);
    assert_eq!(rt(Some("nobody")), None);
}

#[test]
fn http_lines_give_a_user_a_role() {
    let acl = acl("user a\nhttp read\nuser b\nhttp operate\nhttp administer\nuser c\ntopic #\n");
    assert_eq!(acl.http_role("a"), Some(HttpRole::Read));
    assert_eq!(acl.http_role("b"), Some(HttpRole::Administer));
    for user in ["c", "d", ""] {
        assert_eq!(acl.http_role(user), None, "{user}");
    }
    for (text, line, value) in [
        ("user a\nhttp\n", 2, ""),
        ("user a\nhttp write\n", 2, "write"),
        ("user a\nhttp read read\n", 2, "read read"),
        ("http read\n", 1, "read"),
    ] {
        let error = only_error(text);
        let found = (error.line, error.field, &*error.value);
        assert_eq!(found, (line, "http role", value));
    }
}

#[test]
fn what_is_refused_may_depend_on_the_topic() {
    let acl = acl(
        "user arm\nrt rejected=refuse\nrt log/# rejected=best-effort\n\
                   user leg\nrt alarm/# rejected=refuse\n",
    );
    let refuse = |user, topic| acl.for_client(Some(user), "c").rt_rights_on(topic).refuse;
    assert_eq!(refuse("arm", "alarm/1"), Some(true));
    assert_eq!(refuse("arm", "log/1"), Some(false));
    assert_eq!(refuse("leg", "alarm/1"), Some(true));
    assert_eq!(refuse("leg", "log/1"), None);
}

#[test]
fn bandwidths_have_decimal_units() {
    for (text, expected) in [
        ("9600", 9_600),
        ("9600bit", 9_600),
        ("500kbit", 500_000),
        ("500Kbit", 500_000),
        ("2Mbit", 2_000_000),
        ("1Gbit", 1_000_000_000),
        ("18446744073gbit", 18_446_744_073_000_000_000),
    ] {
        let acl = acl(&format!("rt max-bandwidth={text}"));
        let rt = acl
            .for_client(None, "c")
            .rt_rights()
            .expect("a line was given");
        assert_eq!(rt.max_bandwidth, Some(expected), "{text}");
    }
}

#[test]
fn bad_rt_items_name_line_key_and_remedy() {
    for (item, field, value, remedy) in [
        (
            "max-prio=3",
            "rt key",
            "max-prio",
            "max-priority, priority, max-bandwidth, max-flows or rejected",
        ),
        ("=3", "rt key", "", "max-priority"),
        ("max-flows", "rt key", "max-flows", "key=value"),
        ("max-priority=8", "max-priority", "8", "0 to 7"),
        ("max-priority=-1", "max-priority", "-1", "0 to 7"),
        (
            "max-flows=4294967296",
            "max-flows",
            "4294967296",
            "0 to 4294967295",
        ),
        ("max-bandwidth=0", "max-bandwidth", "0", "2Mbit"),
        ("max-bandwidth=2MB", "max-bandwidth", "2MB", "2Mbit"),
        ("max-bandwidth=Mbit", "max-bandwidth", "Mbit", "2Mbit"),
        ("max-bandwidth=1.5Mbit", "max-bandwidth", "1.5Mbit", "2Mbit"),
        (
            "max-bandwidth=18446744074gbit",
            "max-bandwidth",
            "18446744074gbit",
            "2Mbit",
        ),
        ("max-flows=1 max-flows=2", "max-flows", "2", "keep one"),
        ("rejected=yes", "rejected", "yes", "refuse or best-effort"),
    ] {
        let error = only_error(&format!("user u\nrt {item}\n"));
        assert_eq!(
            (error.line, error.field, &*error.value),
            (2, field, value),
            "{item}"
        );
        assert!(error.remedy.contains(remedy), "{error}");
    }
}

#[test]
fn rights_are_shared_between_threads() {
    fn shared<T: Send + Sync + Clone + 'static>() {}
    shared::<Acl>();
    shared::<ClientAcl>();
}

/// A rule as the reference keeps it.
#[derive(Debug, Clone)]
struct Rule {
    access: &'static str,
    filter: String,
}

prop_compose! {
    fn any_rule()(
        access in prop::sample::select(vec!["read", "write", "readwrite", "deny"]),
        filter in any_filter(),
    ) -> Rule {
        Rule { access, filter }
    }
}

/// Mosquitto's way: denials first, then the first rule that gives the access.
fn reference(rules: &[Rule], topic: &str, wanted: &str) -> Option<bool> {
    let mut matching = rules.iter().filter(|rule| matches(&rule.filter, topic));
    if matching.clone().any(|rule| rule.access == "deny") {
        return Some(false);
    }
    matching
        .any(|rule| rule.access == "readwrite" || rule.access == wanted)
        .then_some(true)
}

proptest! {
    #[test]
    fn decisions_agree_with_a_list_of_rules(
        own in prop::collection::vec(any_rule(), 0..8),
        patterns in prop::collection::vec(any_rule(), 0..4),
        filters in prop::collection::vec(any_filter(), 8),
    ) {
        let mut text = String::from("user u\n");
        for Rule { access, filter } in &own {
            text += &format!("topic {access} {filter}\n");
        }
        for Rule { access, filter } in &patterns {
            text += &format!("pattern {access} {filter}\n");
        }
        let client = acl(&text).for_client(Some("u"), "c");
        for topic in small_topics() {
            let expected = |wanted| {
                reference(&own, &topic, wanted)
                    .or_else(|| reference(&patterns, &topic, wanted))
                    .unwrap_or(false)
            };
            prop_assert_eq!(client.may_receive(&topic), expected("read"), "{} on {}", text, topic);
            prop_assert_eq!(client.may_publish(&topic), expected("write"), "{} on {}", text, topic);
        }
        for filter in &filters {
            let delivered = topics_over(&["", "a", "b", "$s", "other"])
                .into_iter()
                .find(|topic| matches(filter, topic) && client.may_receive(topic));
            prop_assert_eq!(client.may_subscribe(filter), delivered.is_some(), "{} of {}", filter, text);
        }
    }

    #[test]
    fn any_text_parses_or_fails_without_panic(
        lines in prop::collection::vec("(user|topic|pattern|rt|broker)? ?(read|deny|max-flows=)? ?.{0,12}", 0..6),
        user in ".{0,6}",
        client_id in ".{0,6}",
        topic in "[a-c/$%]{0,8}",
    ) {
        if let Ok(acl) = Acl::parse(&lines.join("\n")) {
            let client = acl.for_client(Some(&user), &client_id);
            let _ = (client.may_publish(&topic), client.may_receive(&topic));
            let _ = (client.may_subscribe(&topic), client.may_be_broker(&user));
        }
    }
}
