//! Asks the installed mosquitto 2.0 the same questions as this crate: which ACL files it accepts,
//! what they allow, and which passwords its password files hold.
//!
//! Without mosquitto the tests say so loudly and pass; `PUNCTUAL_REQUIRE_MOSQUITTO=1` makes that an
//! error. Deliberate differences have a test of their own, so that they stay the only ones.
#![cfg(unix)]

mod support;

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use punctual_auth::{Acl, PasswordFile, Verdict, hash_argon2id};

use support::{Broker, Listener, Start, installed};

/// Published by the broker itself, retained.
const VERSION_TOPIC: &str = "$SYS/broker/version";

/// `mosquitto_passwd -b FILE empty ''`.
const EMPTY_PASSWORD: &str = "empty:$7$101$B0tBCe5mcI/0uYg3$dfqpshQS8baK0rmdTpTbx7/MDz26ZxWd1oGSsehi\
                              LZIlWT0s0pG1LaDD5hpZ7YfQFGZC0tN6G5uegEmEC/vAVA==";

/// A client that asks: user name, client identifier.
type Name = (Option<&'static str>, &'static str);

/// Asks for every client and topic whether it may receive and publish, and compares.
fn compare(acls: &[String], clients: &[Name], topics: &[String]) {
    let parsed: Vec<Acl> = acls
        .iter()
        .map(|text| Acl::parse(text).expect(text))
        .collect();
    let mut listeners: Vec<Listener<'_>> = acls
        .iter()
        .map(|text| Listener {
            acl: Some(text),
            ..Listener::default()
        })
        .collect();
    // One without rules for the client that publishes what the others may receive.
    listeners.push(Listener::default());
    let broker = match Broker::start(&listeners) {
        Start::Running(broker) => broker,
        Start::Refused => panic!("mosquitto refuses one of {acls:#?}"),
        Start::Missing => return,
    };
    let mut publisher = broker
        .connect(acls.len(), "publisher", None, None)
        .expect("no rules");
    let published: BTreeSet<&str> = topics
        .iter()
        .filter(|topic| publisher.publish(topic))
        .map(String::as_str)
        .chain([VERSION_TOPIC])
        .collect();
    for (listener, acl) in parsed.iter().enumerate() {
        for &(user, client_id) in clients {
            let rights = acl.for_client(user, client_id);
            let mut client = broker
                .connect(listener, client_id, user, None)
                .expect("everybody may connect");
            for topic in topics {
                assert_eq!(
                    client.subscribe(topic),
                    0,
                    "mosquitto grants every subscription"
                );
            }
            for topic in published.iter().filter(|topic| **topic != VERSION_TOPIC) {
                publisher.publish(topic);
            }
            let received: BTreeSet<String> = client.delivered().into_iter().collect();
            for topic in topics {
                let context = || {
                    format!(
                        "user {user:?}, client {client_id:?}, {topic:?} with\n{}",
                        acls[listener]
                    )
                };
                if published.contains(&**topic) {
                    let expected = received.contains(topic);
                    assert_eq!(
                        rights.may_receive(topic),
                        expected,
                        "receive: {}",
                        context()
                    );
                    assert!(
                        !expected || rights.may_subscribe(topic),
                        "subscribe: {}",
                        context()
                    );
                }
                assert_eq!(
                    rights.may_publish(topic),
                    client.publish(topic),
                    "publish: {}",
                    context()
                );
            }
        }
    }
}

fn strings(items: &[&str]) -> Vec<String> {
    items.iter().map(ToString::to_string).collect()
}

#[test]
fn chosen_rules_mean_the_same() {
    let acls = strings(&[
        "",
        "# only a comment\n",
        "user u\n",
        "topic #\ntopic $SYS/#\n",
        "topic read a/#\nuser u\ntopic write a/+\nuser v\ntopic a\ntopic deny a/b\n",
        "user u\ntopic deny a/#\ntopic a/b\nuser u\ntopic b\n",
        "user u\ntopic read a\npattern deny a\npattern b\npattern write a/b\n",
        "pattern %u/%c\npattern read %c/#\npattern deny %u/b/#\n",
        "pattern read x%c/%%u%\npattern write %c%u\npattern 100%/%x/%\n",
        "user u\ntopic #\npattern deny #\n",
        "pattern read $SYS/broker/%u\npattern write $SYS/broker/connection/%c/state\n",
        "user v\ntopic write $SYS/#\ntopic $share/#\ntopic $x/#\ntopic +/b\n",
        "user two words\ntopic read two words/+\ntopic read\n   topic    write  \ta \n",
        "user +\ntopic own/#\nuser u\ntopic own/#\npattern read #\n",
        "user %u\ntopic %c/%u\npattern read %u/%c\n",
    ]);
    let clients = [
        (None, "c"),
        (None, "b"),
        (Some(""), "c"),
        (Some("u"), "c"),
        (Some("u"), "+"),
        (Some("u"), "c#"),
        (Some("u"), "a/b"),
        (Some("v"), "b"),
        (Some("a"), "u"),
        (Some("a/b"), "c"),
        (Some("+"), "c"),
        (Some("%u"), "%c"),
        (Some("%c"), "%u"),
        (Some("two words"), "c"),
        (Some("version"), "c"),
    ];
    let topics = strings(&[
        "a",
        "b",
        "c",
        "a/b",
        "a/b/c",
        "b/c",
        "b/b",
        "u/c",
        "a/u",
        "a/b/c/d",
        "/",
        "/a",
        "a/",
        "cu",
        "xc/%u%",
        "xc/%%u%",
        "xc/%%",
        "xc/%u%%",
        "100%/%x/%",
        "own/x",
        "two words/x",
        "read",
        "two words",
        "%c/%u",
        "%u/%c",
        "%u/%u",
        "$x/b",
        "$x",
        "$SYS/broker/connection/c/state",
        "$SYS/broker/connection/b/state",
        "$SYS/broker/connection/c/d/state",
        VERSION_TOPIC,
        "$SYSx",
        "$SYS",
        "$shar",
    ]);
    compare(&acls, &clients, &topics);
}

#[test]
fn generated_rules_mean_the_same() {
    const FILES: usize = 25;
    const ROUNDS: usize = 8;
    let name = |names: &[&'static str]| prop::sample::select(names.to_vec());
    let first = name(&["", "a", "b", "%c", "%u", "x%c", "$x", "+"]);
    let level = name(&["", "a", "b", "c", "%c", "%u", "%", "$x", "+"]);
    let filter = (first, prop::collection::vec(level, 0..3), any::<bool>()).prop_map(
        |(first, levels, rest)| {
            let levels = [first].into_iter().chain(levels).chain(rest.then_some("#"));
            levels.collect::<Vec<_>>().join("/")
        },
    );
    let filter = prop_oneof![9 => filter, 1 => Just("#".to_owned())]
        .prop_filter("empty", |filter| !filter.is_empty());
    let access = name(&["", "read", "write", "readwrite", "deny"]);
    let user = name(&["u", "a", "a/b", "+", "x y"]).prop_map(|user| format!("user {user}\n"));
    let rule = (name(&["topic", "topic", "pattern"]), access, filter)
        .prop_map(|(keyword, access, filter)| format!("{keyword} {access} {filter}\n"));
    let line = prop_oneof![1 => user, 3 => rule];
    let file = prop::collection::vec(line, 1..12).prop_map(|lines| lines.concat());
    let topic_level = name(&["", "a", "b", "c", "u", "xc", "%c", "%", "$x"]);
    let topic = prop::collection::vec(topic_level, 1..4)
        .prop_map(|levels| levels.join("/"))
        .prop_filter("empty", |topic| !topic.is_empty());
    let round = (
        prop::collection::vec(file, FILES),
        prop::collection::vec(topic, 24),
    );
    let clients = [
        (None, "c"),
        (None, "a/b"),
        (Some("u"), "c"),
        (Some("a"), "%u"),
        (Some("a/b"), "a"),
        (Some("+"), "b"),
        (Some("x y"), "c"),
    ];
    let mut runner = TestRunner::deterministic();
    for _ in 0..ROUNDS {
        let (acls, topics) = round
            .new_tree(&mut runner)
            .expect("nothing is rejected")
            .current();
        compare(&acls, &clients, &topics);
    }
}

#[test]
fn nobody_publishes_to_shared_subscriptions() {
    let acl = "topic $share/#\ntopic $shared/#\ntopic $share\n";
    let broker = match Broker::start(&[Listener {
        acl: Some(acl),
        ..Listener::default()
    }]) {
        Start::Running(broker) => broker,
        Start::Refused => panic!("mosquitto refuses {acl}"),
        Start::Missing => return,
    };
    let rights = Acl::parse(acl).expect(acl).for_client(None, "c");
    for topic in ["$share/x", "$shared/x", "$share"] {
        let mut client = broker
            .connect(0, "c", None, None)
            .expect("everybody may connect");
        assert_eq!(rights.may_publish(topic), client.publish(topic), "{topic}");
    }
}

#[test]
fn the_same_acl_lines_are_accepted() {
    let deep = "/".repeat(200);
    let deeper = "/".repeat(201);
    for line in [
        "topic a",
        "topic",
        "topic  ",
        "topic read",
        "topic rw a",
        "topic READ a",
        "topic read a b",
        "topic a b",
        "topic read a#",
        "topic read #/a",
        "topic read a/b+",
        "topic read +/+/#",
        "topic read ++",
        "pattern",
        "pattern a",
        "pattern deny %c+/a",
        "pattern read $SYS/#/%u",
        "user",
        "user   ",
        "user two words",
        "user u:v",
        "users u",
        "User u",
        "topic\ta",
        "topic read\ta",
        "#comment",
        "foo",
        "   ",
        "\t",
        "  topic a  ",
        "topic a\r",
        &format!("topic read {deep}"),
        &format!("topic read {deeper}"),
    ] {
        let acl = format!("{line}\n");
        let accepted = match Broker::start(&[Listener {
            acl: Some(&acl),
            ..Listener::default()
        }]) {
            Start::Running(_) => true,
            Start::Refused => false,
            Start::Missing => return,
        };
        assert_eq!(Acl::parse(&acl).is_ok(), accepted, "{line:?}");
    }
}

#[test]
fn deliberate_differences_are_these() {
    let acls = ["pattern read %c/#\n", "user u\ntopic a/#\ntopic deny a/b\n"];
    let broker = match Broker::start(&acls.map(|acl| Listener {
        acl: Some(acl),
        ..Listener::default()
    })) {
        Start::Running(broker) => broker,
        Start::Refused => panic!("mosquitto refuses {acls:?}"),
        Start::Missing => return,
    };
    let ours = acls.map(|acl| Acl::parse(acl).expect(acl));

    // A client identifier of "$SYS" opens the broker's own topics to it in mosquitto.
    let mut client = broker
        .connect(0, "$SYS", None, None)
        .expect("everybody may connect");
    client.subscribe(VERSION_TOPIC);
    assert_eq!(client.delivered(), [VERSION_TOPIC]);
    assert!(!ours[0].for_client(None, "$SYS").may_receive(VERSION_TOPIC));

    // Mosquitto grants a subscription that can never deliver anything.
    let mut client = broker
        .connect(1, "c", Some("u"), None)
        .expect("everybody may connect");
    assert_eq!(client.subscribe("a/b"), 0);
    assert!(!ours[1].for_client(Some("u"), "c").may_subscribe("a/b"));

    // Mosquitto passes over password entries that it cannot use.
    let passwords = format!("{EMPTY_PASSWORD}\nplain:secret\nno colon\n");
    let listener = Listener {
        passwords: Some(&passwords),
        ..Listener::default()
    };
    assert!(
        matches!(Broker::start(&[listener]), Start::Running(_)),
        "{passwords}"
    );
    let errors = PasswordFile::parse(&passwords).expect_err("two bad lines");
    assert_eq!(
        errors.iter().map(|error| error.line).collect::<Vec<_>>(),
        [2, 3]
    );

    // Lines that mosquitto does not know.
    for acl in ["rt max-flows=1\n", "  # indented comment\n"] {
        let start = Broker::start(&[Listener {
            acl: Some(acl),
            ..Listener::default()
        }]);
        assert!(matches!(start, Start::Refused), "{acl}");
        assert!(Acl::parse(acl).is_ok(), "{acl}");
    }
}

#[test]
fn files_of_mosquitto_passwd_verify_and_edited_files_still_work_for_mosquitto() {
    let Some(program) = installed("mosquitto_passwd") else {
        return;
    };
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = dir.path().join("passwords");
    // `mosquitto_passwd` does not take comments, the broker does.
    fs::write(&path, "").expect("the temporary directory is writable");
    let users = [
        ("alice", "secret", "sha512-pbkdf2"),
        ("bob", "pa$$:wörd ", "sha512"),
        ("two words", "x", "sha512-pbkdf2"),
        ("grün/+", "$7$", "sha512"),
        ("removed", "secret", "sha512"),
    ];
    for (user, password, kind) in users {
        let mut run = Command::new(&program);
        run.args(["-H", kind, "-b"])
            .arg(&path)
            .args([user, password]);
        let status = run.status().expect("mosquitto_passwd runs");
        assert!(status.success(), "{user}");
    }
    let text = fs::read_to_string(&path).expect("mosquitto_passwd wrote the file");
    let mut passwords = PasswordFile::parse(&format!("# staff\n\n{text}")).expect(&text);
    assert_eq!(
        passwords.users().collect::<Vec<_>>(),
        users.map(|(user, ..)| user)
    );
    for (user, password, _) in users {
        assert_eq!(
            passwords.verify(user, password.as_bytes()),
            Verdict::Accepted,
            "{user}"
        );
        assert_eq!(
            passwords.verify(user, b"other"),
            Verdict::WrongPassword,
            "{user}"
        );
    }

    // The other way round. Mosquitto 2.0 passes over the argon2id entry.
    assert!(passwords.remove("removed"));
    passwords
        .set("new", &hash_argon2id(b"secret", [7; 16]))
        .expect("a valid entry");
    let alice = text
        .lines()
        .find_map(|line| line.strip_prefix("alice:"))
        .expect("alice is there");
    passwords.set("alice too", alice).expect("a valid entry");
    let edited = format!("{passwords}{EMPTY_PASSWORD}\n");
    let passwords = PasswordFile::parse(&edited).expect(&edited);
    assert!(edited.starts_with("# staff\n\nalice:$7$"), "{edited}");
    let broker = match Broker::start(&[Listener {
        passwords: Some(&edited),
        acl: None,
    }]) {
        Start::Running(broker) => broker,
        Start::Refused => panic!("mosquitto refuses {edited}"),
        Start::Missing => return,
    };
    let attempts = users.map(|(user, password, _)| (user, password));
    for (user, password) in attempts.into_iter().chain([
        ("alice too", "secret"),
        ("alice", "Secret"),
        ("bob", "pa$$:wörd"),
        ("Alice", "secret"),
        ("#", "secret"),
        ("empty", ""),
        ("", "secret"),
    ]) {
        let theirs = broker
            .connect(0, "c", Some(user), Some(password.as_bytes()))
            .is_ok();
        let ours = passwords.verify(user, password.as_bytes()).is_accepted();
        assert_eq!(ours, theirs, "{user:?} with {password:?}");
    }
}
