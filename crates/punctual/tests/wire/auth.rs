//! AUTH and enhanced authentication (sections 3.15 and 4.12). The broker has no
//! method built in, so it refuses all of them.

use crate::broker::Broker;
use crate::build::{
    Bytes, Connect, Level, Props, Publish, V5, V311, Will, ack, first, id, subscribe, unsubscribe,
    with_reason,
};
use crate::conn::{Conn, unique};
use crate::fixture::{EITHER, MALFORMED, each_is_an_error, pair};
use crate::parse::{Packet, PropList};

/// [MQTT-4.12.0-1] [MQTT-4.12.0-4] [MQTT-3.2.2-7] [MQTT-3.1.4-2] An
/// authentication method that the server does not have is refused by name, and
/// the connection ends.
#[test]
fn an_unknown_method_is_refused() {
    for data in [Props::new(), Props::new().field(id::AUTH_DATA, "data")] {
        let props = data.field(id::AUTH_METHOD, "no such method");
        let mut conn = Conn::open(V5);
        conn.send(Connect::new(V5, unique("c")).props(props).encode());
        conn.refused(&[0x8C, 0x87]);
    }
}

/// [MQTT-4.12.0-6] [MQTT-4.12.0-7] A client that named no method in CONNECT is
/// told of none, is never sent AUTH, and may not send it.
#[test]
fn auth_without_a_method_is_a_protocol_error() {
    let (_conn, connack) = Conn::connect(&Connect::new(V5, unique("c")));
    assert!(!connack.props.has(id::AUTH_METHOD) && !connack.props.has(id::AUTH_DATA));
    let method = Props::new().field(id::AUTH_METHOD, "m");
    let cases = [
        ("bare", Bytes::new().packet(first::AUTH)),
        ("continue", with_reason(first::AUTH, 0x18, &method)),
        ("again", with_reason(first::AUTH, 0x19, &method)),
        ("success", with_reason(first::AUTH, 0x00, &method)),
    ];
    each_is_an_error(V5, &[0x82], &cases);
}

/// [MQTT-3.15.2-1] [MQTT-4.13.1-1] An AUTH with an undefined reason code, or
/// with foreign properties, is an error.
#[test]
fn a_broken_auth_closes() {
    let foreign = Props::new().two(id::TOPIC_ALIAS, 1);
    let codes = [0x01, 0x17, 0x80, 0x8C, 0xFF];
    let cases = codes.map(|code| ("code", with_reason(first::AUTH, code, &Props::new())));
    each_is_an_error(V5, EITHER, &cases);
    let cases = [("property", with_reason(first::AUTH, 0x18, &foreign))];
    each_is_an_error(V5, MALFORMED, &cases);
}

/// What a client of that user sends, whose password is [`SECRET`]'s.
pub(crate) fn as_user(level: Level, user: &str) -> Connect {
    let connect = Connect::new(level, unique("c"));
    connect.user(user).password("secret")
}

/// Mosquitto's format $7$: PBKDF2 of `secret`, 101 rounds of HMAC-SHA-512.
pub(crate) const SECRET: &str = concat!(
    "$7$101$c2FsdHNhbHRzYWx0$Hd71hnNoKcARd6Fkl1rUE+opfs3V78ZJB2AgXXC1",
    "kaKQiWfi5S5qX7D1mY5b+bIzvyidWMnS8VA+YAsAygq9EA==",
);

/// A broker whose only user `wire` has the password `secret`, may write and
/// read `open/#`, and nothing else.
fn guarded() -> Option<(Broker, tempfile::TempDir)> {
    guarded_by("user wire\ntopic readwrite open/#\n", "")
}

/// A broker with that ACL file and further configuration, for the users `wire` and
/// `loud` with the password `secret`.
pub(crate) fn guarded_by(acl_file: &str, more: &str) -> Option<(Broker, tempfile::TempDir)> {
    guarded_with(acl_file, more, "")
}

/// Like [`guarded_by`], with further keys of the section `[auth]`.
pub(crate) fn guarded_with(
    acl_file: &str,
    more: &str,
    auth: &str,
) -> Option<(Broker, tempfile::TempDir)> {
    let dir = tempfile::tempdir().expect("a directory for the files");
    let passwd = dir.path().join("passwd");
    let acl = dir.path().join("acl");
    let users = format!("wire:{SECRET}\nloud:{SECRET}\n");
    std::fs::write(&passwd, users).expect("write the password file");
    std::fs::write(&acl, acl_file).expect("write the ACL file");
    let config = format!(
        "{more}[auth]\n{auth}password_file = {:?}\nacl_file = {:?}\n",
        passwd.display().to_string(),
        acl.display().to_string(),
    );
    Some((Broker::with_config(&config)?, dir))
}

/// Messages of bulk that wait for the subscriber of [`behind_bulk`].
const LOGS: usize = 100;

/// A subscriber of everything that has more to read than sockets take, and two publishers: "wire",
/// who may state anything, and "loud".
fn behind_bulk(broker: &Broker) -> [Conn; 3] {
    let connect = |user| Conn::connect_to(broker, &as_user(V5, user)).0;
    let mut subscriber = connect("wire");
    subscriber.subscribe("#", 0);
    let (mut wire, loud) = (connect("wire"), connect("loud"));
    let bulk = vec![b'.'; 256 << 10];
    for _ in 0..LOGS {
        wire.send(Publish::new(V5, "log", &bulk).encode());
    }
    wire.ping();
    [subscriber, wire, loud]
}

/// `rt` lines of the ACL file say what may be urgent, by user and by topic. The
/// flood of somebody who may not be urgent stays behind what waits; what the same
/// client may state on other topics is followed, and so is who has the right.
#[test]
fn rt_lines_bind_what_a_flood_may_state() {
    let acl = "user wire\ntopic readwrite #\n\
               user loud\ntopic readwrite #\n\
               rt max-priority=none priority=none\nrt alarm/# priority=3\n";
    let config = "[tcp]\nnotsent_lowat = \"16KiB\"\n\
                  [queue]\nsend_buffer = \"64MiB\"\n";
    let Some((broker, _files)) = guarded_by(acl, config) else {
        return;
    };
    let [mut subscriber, mut wire, mut loud] = behind_bulk(&broker);
    let stated = [
        ("priority", "0"),
        ("rt-priority", "7"),
        ("rt-deadline", "1ms"),
    ];
    let flood = 60;
    for number in 1..=flood {
        let (key, value) = stated[usize::from(number) % stated.len()];
        let publish = Publish::new(V5, "flood", "x").qos(1, number);
        loud.send(publish.props(Props::new().user(key, value)).encode());
        let ack = loud.ack(first::PUBACK, number);
        assert_eq!(ack.code, 0, "it is carried");
        assert_eq!(ack.props.user()[0], ("rt-status", "best-effort"));
    }
    for (number, priority, follows) in [(100, "3", true), (101, "2", false)] {
        let publish = Publish::new(V5, "alarm/loud", priority).qos(1, number);
        loud.send(
            publish
                .props(Props::new().user("priority", priority))
                .encode(),
        );
        let ack = loud.ack(first::PUBACK, number);
        assert_eq!(ack.props.user().is_empty(), follows, "priority {priority}");
    }
    let urgent = Props::new().user("rt-priority", "7");
    wire.send(Publish::new(V5, "alarm/wire", "now").props(urgent).encode());
    wire.ping();
    let mut before = 0;
    let mut early = Vec::new();
    while before < LOGS {
        let message = subscriber.message();
        match &*message.topic {
            "log" => before += 1,
            topic => early.push(format!("{topic} {}", message.text())),
        }
    }
    assert_eq!(early, ["alarm/wire now", "alarm/loud 3"]);
    for _ in 0..flood {
        assert_eq!(subscriber.message().topic, "flood");
    }
    subscriber.expect("alarm/loud", "2");
}

/// A deadline is no way around a right to an `rt-priority`, whether priorities or
/// deadlines give the order, and who tries is told what would be right.
#[test]
fn a_right_to_a_priority_binds_deadlines() {
    let acl = "user wire\ntopic readwrite #\n\
               user loud\ntopic readwrite #\nrt max-priority=3\n";
    for policy in ["fixed-priority", "edf"] {
        let config = format!(
            "[egress]\npolicy = \"{policy}\"\nmin_share_normal = 0\n\
             [tcp]\nnotsent_lowat = \"16KiB\"\n[queue]\nsend_buffer = \"64MiB\"\n"
        );
        let Some((broker, _files)) = guarded_by(acl, &config) else {
            return;
        };
        let [mut subscriber, mut wire, mut loud] = behind_bulk(&broker);
        let mut told = Vec::new();
        let state = |props: Props, (key, value)| props.user(key, value);
        let alone = [("rt-deadline", "1us")];
        let both = [("rt-priority", "3"), ("rt-deadline", "1ns")];
        for (number, stated) in [(1, &alone[..]), (2, &both)] {
            let props = stated.iter().copied().fold(Props::new(), state);
            let publish = Publish::new(V5, "t", number.to_string()).qos(1, number);
            loud.send(publish.props(props).encode());
            let ack = loud.ack(first::PUBACK, number);
            told.extend(ack.props.user().iter().map(|(_, value)| value.to_string()));
        }
        let why = "rt-deadline = 1us on \"t\" implies rt-priority 7: at most 3 (rt max-priority \
                   in the ACL file); state rt-priority = 3 as well";
        assert_eq!(told, ["best-effort", why], "{policy}");
        let urgent = Props::new().user("rt-priority", "6");
        wire.send(Publish::new(V5, "t", "3").props(urgent).encode());
        wire.ping();
        let (mut before, mut order) = (0, Vec::new());
        while order.len() < 3 {
            let message = subscriber.message();
            match &*message.topic {
                "log" => before += 1,
                _ => order.push((message.text().to_owned(), before < LOGS)),
            }
        }
        let order: Vec<_> = order
            .iter()
            .map(|(text, early)| (&**text, *early))
            .collect();
        assert_eq!(order, [("3", true), ("2", true), ("1", false)], "{policy}");
    }
}

/// What a will states without the right is told with CONNACK, and what it may
/// state is not remarked on.
#[test]
fn a_will_without_the_right_is_told_with_connack() {
    let acl = "user loud\ntopic readwrite #\nrt max-priority=3 priority=none\n";
    let Some((broker, _files)) = guarded_by(acl, "") else {
        return;
    };
    let told = |stated: &[(&str, &str)], own: &[(&str, &str)]| {
        let props = |pairs: &[(&str, &str)]| {
            let add = |props: Props, (key, value): &(&str, &str)| props.user(key, value);
            pairs.iter().fold(Props::new(), add)
        };
        let connect = Connect::new(V5, unique("c"))
            .user("loud")
            .password("secret");
        let connect = connect.will(Will::new("gone", "x").props(props(stated)));
        let (_conn, connack) = Conn::connect_to(&broker, &connect.props(props(own)));
        let user = connack.props.user();
        user.iter()
            .map(|(_, value)| value.to_string())
            .collect::<Vec<_>>()
    };
    let why = "will: rt-priority = 4 on \"gone\": at most 3 (rt max-priority in the ACL file)";
    assert_eq!(told(&[("rt-priority", "4")], &[]), ["best-effort", why]);
    let why =
        "will: priority = 1 on \"gone\": none may be stated (rt priority=none in the ACL file)";
    let all = told(&[("priority", "1")], &[("priority", "high")]);
    assert!(
        all[1].contains("high") && all[1].ends_with(&format!("; {why}")),
        "{all:?}"
    );
    assert!(told(&[("rt-priority", "3")], &[]).is_empty());
}

/// [MQTT-3.1.4-2] [MQTT-3.2.2-7] [3.1.1 MQTT-3.2.2-5] A client without the
/// right credentials is refused and closed; one with them is served.
#[test]
fn wrong_credentials_are_refused() {
    let Some((broker, _files)) = guarded() else {
        return;
    };
    for level in [V311, V5] {
        let connect = || Connect::new(level, unique("c"));
        let bad = if level == V5 {
            &[0x86, 0x87]
        } else {
            &[0x04, 0x05]
        };
        for refused in [
            connect(),
            connect().user("wire"),
            connect().user("wire").password("wrong"),
            connect().user("other").password("secret"),
        ] {
            let mut conn = Conn::open_to(&broker, level);
            conn.send(refused.encode());
            conn.refused(bad);
        }
        let right = connect().user("wire").password("secret");
        Conn::connect_to(&broker, &right).0.ping();
    }
}

/// [3.1.1 MQTT-3.3.5-2] [MQTT-3.4.2-1] [MQTT-3.5.2-1] [MQTT-3.8.4-7]
/// [MQTT-4.3.3-9] A PUBLISH without the right to it is refused by reason code
/// (5.0), or else acknowledged or the connection closed; it is not delivered,
/// and its identifier stays free.
#[test]
fn an_unauthorised_publish_is_not_delivered() {
    let Some((broker, _files)) = guarded() else {
        return;
    };
    let connect = |level| {
        let connect = Connect::new(level, unique("c"))
            .user("wire")
            .password("secret");
        Conn::connect_to(&broker, &connect).0
    };
    let mut subscriber = connect(V5);
    assert_eq!(subscriber.subscribe("open/#", 0), 0);
    // As with mosquitto a filter may be granted where reading is not: what
    // counts is that nothing comes.
    assert!([0x00, 0x87].contains(&subscriber.subscribe("closed/#", 0)));

    let mut publisher = connect(V5);
    publisher.send(Publish::new(V5, "closed/a", "p").qos(1, 1).encode());
    assert_eq!(publisher.ack(first::PUBACK, 1).code, 0x87);
    publisher.send(Publish::new(V5, "closed/a", "p").qos(2, 2).encode());
    assert_eq!(publisher.ack(first::PUBREC, 2).code, 0x87);
    publisher.send(Publish::new(V5, "open/a", "p").qos(2, 2).encode());
    assert_eq!(publisher.ack(first::PUBREC, 2).code, 0x00);
    publisher.send(ack(first::PUBREL, 2));
    publisher.ack(first::PUBCOMP, 2);
    subscriber.expect("open/a", "p");

    let mut publisher = connect(V311);
    publisher.send(Publish::new(V311, "closed/a", "p").qos(1, 1).encode());
    match publisher.next_or_end() {
        None => {}
        Some(Packet::Ack(ack)) if ack.kind == first::PUBACK => {}
        Some(other) => publisher.fail("PUBACK or the end", &other),
    }
    connect(V5).publish("open/a", "marker", 0);
    subscriber.expect("open/a", "marker");
}

/// [MQTT-3.4.2-2] [MQTT-3.5.2-2] [MQTT-3.9.2-1] [MQTT-3.9.2-2]
/// [MQTT-3.11.2-1] [MQTT-3.1.2-29] What explains a refusal is left out where it
/// would not fit the client's packet size, and where the client does not want
/// it.
#[test]
fn refusals_fit_and_are_silent_on_request() {
    let Some((broker, _files)) = guarded() else {
        return;
    };
    let unwanted = Props::new().byte(id::REQUEST_PROBLEM_INFO, 0);
    let connect = || {
        Connect::new(V5, unique("c"))
            .user("wire")
            .password("secret")
    };
    let clients = [20, 24, 32, 48].map(|limit| connect().max_packet(limit));
    for (wanted, connect) in clients
        .into_iter()
        .map(|connect| (true, connect))
        .chain([(false, connect().props(unwanted))])
    {
        let (mut conn, _) = Conn::connect_to(&broker, &connect);
        let silent =
            |props: &PropList| wanted || !props.has(id::REASON_STRING) && props.user().is_empty();
        conn.send(subscribe(V5, 1, &Props::new(), &[("closed/a", 0)]));
        assert!(silent(&conn.suback(1).props));
        conn.send(unsubscribe(V5, 2, &Props::new(), &["closed/a"]));
        assert!(silent(&conn.unsuback(2).props));
        for (kind, qos) in [(first::PUBACK, 1), (first::PUBREC, 2)] {
            conn.send(Publish::new(V5, "closed/a", "p").qos(qos, 3).encode());
            let refusal = conn.ack(kind, 3);
            assert!(
                refusal.code >= 0x80 && silent(&refusal.props),
                "{refusal:?}"
            );
        }
        conn.ping();
    }
}

/// [MQTT-4.12.0-6] No server packet of an ordinary exchange is AUTH: the parser
/// would deliver it in place of the answer that is expected.
#[test]
fn an_ordinary_exchange_has_no_auth() {
    let (mut subscriber, mut publisher, topic) = pair(V5);
    publisher.publish(&topic, "p", 2);
    let message = subscriber.expect(&topic, "p");
    subscriber.acknowledge(&message);
    subscriber.ping();
    publisher.ping();
}
