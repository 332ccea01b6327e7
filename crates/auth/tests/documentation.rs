//! The example of docs/authentication.md is valid and means what the text around it says.

use punctual_auth::{Acl, RtRights};

const PAGE: &str = include_str!("../../../docs/authentication.md");

#[test]
fn the_acl_example_works_without_warnings() {
    let (_, rest) = PAGE
        .split_once("```acl\n")
        .expect("the page has an example");
    let (example, _) = rest.split_once("```").expect("the example ends");
    let acl = Acl::parse(example).expect("the example is valid");
    assert_eq!(acl.warnings(), []);

    let anonymous = acl.for_client(None, "c");
    assert!(anonymous.may_receive("public/news"));
    assert!(!anonymous.may_publish("public/news"));
    let alice = acl.for_client(Some("alice"), "c");
    assert!(alice.may_publish("plant/line/1"));
    assert!(!alice.may_receive("plant/safety/stop"));
    assert!(!alice.may_receive("public/news"));
    let robot = acl.for_client(Some("robot"), "c");
    assert!(robot.may_publish("devices/robot/state"));
    assert!(!robot.may_publish("devices/alice/state"));
    assert!(robot.may_receive("devices/robot/command/go"));
    let rights = RtRights {
        max_priority: Some(5),
        max_bandwidth: Some(2_000_000),
        max_flows: Some(10),
        ..RtRights::default()
    };
    assert_eq!(robot.rt_rights(), Some(rights));
}

#[test]
fn the_warning_about_client_identifiers_is_true() {
    assert!(PAGE.contains("`pattern write cmd/%c`"));
    let acl = Acl::parse("pattern write cmd/%c").expect("valid");
    assert!(acl.for_client(None, "x/reset").may_publish("cmd/x/reset"));
}
