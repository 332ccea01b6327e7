//! Deadlines that are promised, or not: what clients are told on the wire.

use std::io::Write as _;

use crate::broker::Broker;
use crate::build::{Connect, Props, Publish, V5, V311, first, subscribe};
use crate::conn::{Conn, unique};
use crate::parse::PropList;

/// Everyone is a host with a link of 100 Mbit/s; a message costs the broker
/// 100 us and 50 us for each receiver.
const CONFIG: &str = "[server]\nshards = 1\n[admission]\nenabled = true\n\
                      places = [\"client *: hosts\"]\n";

const DECLARED: &[(&str, &str)] = &[("rt-deadline", "20ms"), ("rt-period", "50ms")];

fn props(pairs: &[(&str, &str)]) -> Props {
    pairs
        .iter()
        .fold(Props::new(), |props, (key, value)| props.user(key, value))
}

/// The value of a user property; empty if there is none.
fn told<'a>(props: &'a PropList, key: &str) -> &'a str {
    let pairs = props.user();
    let found = pairs.into_iter().find(|(name, _)| *name == key);
    found.map_or("", |(_, value)| value)
}

fn client(broker: &Broker, id: &str) -> Conn {
    Conn::connect_to(broker, &Connect::new(V5, id)).0
}

/// Publishes with QoS 1 and returns the reason code and the properties of the
/// acknowledgement.
#[track_caller]
fn ask(conn: &mut Conn, topic: &str, payload: &str, pairs: &[(&str, &str)]) -> (u8, PropList) {
    let id = conn.fresh_id();
    let publish = Publish::new(V5, topic, payload)
        .qos(1, id)
        .props(props(pairs));
    conn.send(publish.encode());
    let ack = conn.ack(first::PUBACK, id);
    (ack.code, ack.props)
}

#[test]
fn a_deadline_that_is_met_is_admitted_with_its_bound() {
    let Some(broker) = Broker::with_config(CONFIG) else {
        return;
    };
    let mut subscriber = client(&broker, "s");
    assert_eq!(subscriber.subscribe("axis/+", 1), 1);
    let mut publisher = client(&broker, "p");
    let (code, answer) = ask(&mut publisher, "axis/1", "17", DECLARED);
    assert_eq!(code, 0);
    assert_eq!(told(&answer, "rt-status"), "admitted");
    assert_eq!(told(&answer, "rt-flow"), "axis/1@p");
    let bound: u64 = told(&answer, "rt-bound").parse().unwrap();
    assert!((500_000..20_000_000).contains(&bound), "{bound}");
    let message = subscriber.expect("axis/1", "17");
    subscriber.acknowledge(&message);
    // Said once; the same again is known, with the properties or without.
    for pairs in [DECLARED, &[]] {
        let (code, answer) = ask(&mut publisher, "axis/1", "18", pairs);
        assert_eq!((code, answer.user().len()), (0, 0));
        let message = subscriber.expect("axis/1", "18");
        subscriber.acknowledge(&message);
    }
    // Another requirement is another question.
    let (_, answer) = ask(
        &mut publisher,
        "axis/1",
        "19",
        &[("rt-deadline", "30ms"), ("rt-period", "50ms")],
    );
    assert_eq!(told(&answer, "rt-status"), "admitted");
    // Who comes now is told what it can count on.
    let mut late = client(&broker, "late");
    let id = late.fresh_id();
    late.send(subscribe(V5, id, &Props::new(), &[("axis/1", 0)]));
    let ack = late.suback(id);
    assert_eq!(told(&ack.props, "rt-status"), "admitted");
    let with_both: u64 = told(&ack.props, "rt-bound").parse().unwrap();
    assert!(with_both > bound);
}

#[test]
fn a_bound_comes_with_what_it_takes_for_granted() {
    let conditions = |config: &str| -> Option<Vec<String>> {
        let broker = Broker::with_config(config)?;
        let mut publisher = client(&broker, "p");
        let (_, answer) = ask(&mut publisher, "axis/1", "17", DECLARED);
        assert_eq!(told(&answer, "rt-status"), "admitted");
        let pairs = answer.user().into_iter();
        let said = pairs.filter(|(key, _)| *key == "rt-condition");
        Some(said.map(|(_, value)| value.to_owned()).collect())
    };
    let Some(by_default) = conditions(CONFIG) else {
        return;
    };
    assert_eq!(by_default, ["not-calibrated", "no-realtime"]);
    let calibrated = format!("{CONFIG}receive_time = \"90us\"\n");
    assert_eq!(conditions(&calibrated).unwrap(), ["no-realtime"]);
}

#[test]
fn the_flow_that_does_not_fit_is_told_why_and_carried() {
    // One client may ask for all that there is.
    let config = format!("{CONFIG}max_user_load = 100\n");
    let Some(broker) = Broker::with_config(&config) else {
        return;
    };
    let mut subscriber = client(&broker, "s");
    subscriber.subscribe("#", 0);
    let mut publisher = client(&broker, "p");
    let pairs = [("rt-deadline", "2500us"), ("rt-period", "3ms")];
    let mut admitted = 0;
    let rejected = (0..50).find_map(|n| {
        let topic = format!("t/{n}");
        let (code, answer) = ask(&mut publisher, &topic, "p", &pairs);
        assert_eq!(code, 0, "it is carried");
        subscriber.expect(&topic, "p");
        match told(&answer, "rt-status") {
            "admitted" => {
                admitted += 1;
                None
            }
            _ => Some(answer),
        }
    });
    let answer = rejected.expect("the broker cannot promise everything");
    assert!(admitted > 3);
    assert_eq!(told(&answer, "rt-status"), "best-effort");
    let reason = told(&answer, "rt-reason");
    let flow = format!("t/{admitted}@p");
    for word in [&*flow, "too long", "broker.cpu", "%"] {
        assert!(reason.contains(word), "{reason}");
    }
    // Room comes when the others go; a session that ends takes its flows.
    publisher.disconnect();
    let mut next = client(&broker, "q");
    let (_, answer) = ask(&mut next, "t/0", "p", &pairs);
    assert_eq!(told(&answer, "rt-status"), "admitted");
}

#[test]
fn rejected_messages_are_refused_where_that_is_configured() {
    let config = format!("{CONFIG}rejected = \"refuse\"\n");
    let Some(broker) = Broker::with_config(&config) else {
        return;
    };
    let mut subscriber = client(&broker, "s");
    subscriber.subscribe("#", 0);
    let mut publisher = client(&broker, "p");
    for _ in 0..2 {
        let (code, answer) = ask(
            &mut publisher,
            "a",
            "never",
            &[("rt-deadline", "10us"), ("rt-period", "50ms")],
        );
        assert_eq!(code, 0x97);
        // Said with the first; the others are refused without words.
        let _ = told(&answer, "rt-status");
    }
    // QoS 2: the refusal ends the handshake.
    let publish = Publish::new(V5, "a", "never").qos(2, 7);
    let pairs = [("rt-deadline", "11us"), ("rt-period", "50ms")];
    publisher.send(publish.props(props(&pairs)).encode());
    let ack = publisher.ack(first::PUBREC, 7);
    assert_eq!(ack.code, 0x97);
    assert_eq!(told(&ack.props, "rt-status"), "rejected");
    publisher.publish("a", "plain", 1);
    subscriber.expect("a", "plain");
}

/// Rights say what is refused on which topics, whatever holds for everybody.
#[test]
fn rejected_messages_are_refused_as_rights_say() {
    let mut acl = tempfile::NamedTempFile::new().expect("create the ACL file");
    let lines = "topic #\nrt rejected=refuse\nrt log/# rejected=best-effort\n";
    acl.write_all(lines.as_bytes()).expect("write the ACL file");
    let path = acl.path().display();
    let config = format!("{CONFIG}[auth]\nacl_file = \"{path}\"\n");
    let Some(broker) = Broker::with_config(&config) else {
        return;
    };
    let mut subscriber = client(&broker, "s");
    subscriber.subscribe("#", 0);
    let mut publisher = client(&broker, "p");
    let pairs = [("rt-deadline", "10us"), ("rt-period", "50ms")];
    let (code, answer) = ask(&mut publisher, "alarm/1", "never", &pairs);
    assert_eq!((code, told(&answer, "rt-status")), (0x97, "rejected"));
    let (code, answer) = ask(&mut publisher, "log/1", "carried", &pairs);
    assert_eq!((code, told(&answer, "rt-status")), (0, "best-effort"));
    subscriber.expect("log/1", "carried");
}

/// QoS 0 has no acknowledgement, and MQTT 3.1.1 no properties: both are told on
/// a topic of their own.
#[test]
fn who_cannot_be_answered_is_told_on_its_topic() {
    let config = format!("{CONFIG}[egress]\nrules = [\"press/+: deadline=9ms, period=50ms\"]\n");
    let Some(broker) = Broker::with_config(&config) else {
        return;
    };
    let mut watcher = client(&broker, "w");
    watcher.subscribe("$SYS/rt/clients/+", 0);
    let mut publisher = client(&broker, "p");
    let publish = Publish::new(V5, "axis/1", "17");
    publisher.send(publish.props(props(DECLARED)).encode());
    let message = watcher.message();
    assert_eq!(message.topic, "$SYS/rt/clients/p");
    assert_eq!(told(&message.props, "rt-status"), "admitted");
    assert_eq!(told(&message.props, "rt-flow"), "axis/1@p");
    let old = Connect::new(V311, "old");
    let (mut old, _) = Conn::connect_to(&broker, &old);
    old.publish("press/7", "x", 1);
    let message = watcher.message();
    assert_eq!(message.topic, "$SYS/rt/clients/old");
    assert_eq!(told(&message.props, "rt-status"), "admitted");
    let text = String::from_utf8(message.payload).unwrap();
    assert!(text.starts_with("press/7 rt-status=admitted"), "{text}");
}

#[test]
fn what_is_missing_is_named() {
    let Some(broker) = Broker::with_config(CONFIG) else {
        return;
    };
    let connect = Connect::new(V5, unique("c")).props(props(&[("rt-deadline", "5ms")]));
    let (mut conn, connack) = Conn::connect_to(&broker, &connect);
    assert_eq!(told(&connack.props, "rt-status"), "best-effort");
    assert!(told(&connack.props, "rt-reason").contains("rt-period"));
    let (_, answer) = ask(&mut conn, "a", "b", &[]);
    assert_eq!(told(&answer, "rt-status"), "best-effort");
    assert!(told(&answer, "rt-reason").contains("rt-period"));
}

/// Messages that come faster than declared go with the plain ones, behind what
/// waits; those of the flow's rate do not.
#[test]
fn flows_are_held_to_what_they_declared() {
    let config = format!("{CONFIG}policing = \"drop\"\n");
    let Some(broker) = Broker::with_config(&config) else {
        return;
    };
    let mut publisher = client(&broker, "p");
    let pairs = [
        ("rt-deadline", "20ms"),
        ("rt-period", "60s"),
        ("rt-size", "4"),
    ];
    let (code, answer) = ask(&mut publisher, "a", "1", &pairs);
    assert_eq!((code, told(&answer, "rt-status")), (0x10, "admitted"));
    let (code, answer) = ask(&mut publisher, "a", "2", &[]);
    assert_eq!(code, 0x97);
    assert!(told(&answer, "rt-reason").contains("rt-period"));
    let (code, answer) = ask(&mut publisher, "a", "too large", &[]);
    assert_eq!(code, 0x97);
    assert!(told(&answer, "rt-reason").contains("rt-size"));
}

/// Publishes with QoS 0, all at once.
fn send_all(conn: &mut Conn, topic: &str, payloads: &[String]) {
    let publish = |payload: &String| Publish::new(V5, topic, payload).encode();
    let bytes: Vec<u8> = payloads.iter().flat_map(publish).collect();
    conn.send(bytes);
}

#[test]
fn of_what_is_there_the_most_urgent_is_sent_first() {
    let config = format!("{CONFIG}policing = \"off\"\n");
    let Some(broker) = Broker::with_config(&config) else {
        return;
    };
    let mut subscriber = client(&broker, "s");
    subscriber.subscribe("#", 0);
    let mut publisher = |id: &str, priority: &str| {
        let mut conn = client(&broker, id);
        let mut pairs = DECLARED.to_vec();
        pairs.push(("rt-priority", priority));
        let (_, answer) = ask(&mut conn, id, "first", &pairs);
        assert_eq!(told(&answer, "rt-status"), "admitted");
        subscriber.expect(id, "first");
        conn
    };
    let (mut low, mut high) = (publisher("low", "2"), publisher("high", "6"));
    let mut plain = client(&broker, "plain");
    let payloads: Vec<String> = (0..3).map(|n| n.to_string()).collect();
    // More than once: where it is not seen to, it may happen to be right.
    for _ in 0..5 {
        broker.while_held(|| {
            send_all(&mut plain, "plain", &payloads);
            send_all(&mut low, "low", &payloads);
            send_all(&mut high, "high", &payloads);
        });
        for topic in ["high", "low", "plain"] {
            for payload in &payloads {
                subscriber.expect(topic, payload);
            }
        }
    }
}

/// They are handled one by one, the last ones after the end was seen.
#[test]
fn what_comes_before_the_end_of_a_connection_is_carried() {
    let config = format!("{CONFIG}policing = \"off\"\n");
    let Some(broker) = Broker::with_config(&config) else {
        return;
    };
    let mut subscriber = client(&broker, "s");
    subscriber.subscribe("#", 0);
    let mut publisher = client(&broker, "p");
    let (_, answer) = ask(&mut publisher, "a", "first", DECLARED);
    assert_eq!(told(&answer, "rt-status"), "admitted");
    subscriber.expect("a", "first");
    let mut payloads: Vec<String> = (0..20).map(|n| n.to_string()).collect();
    // More than is read at once.
    payloads.push("x".repeat(100_000));
    payloads.extend((20..40).map(|n| n.to_string()));
    broker.while_held(|| {
        send_all(&mut publisher, "a", &payloads[..20]);
        drop(publisher);
    });
    let mut publisher = client(&broker, "other");
    send_all(&mut publisher, "b", &payloads[20..]);
    drop(publisher);
    for payload in &payloads[..20] {
        subscriber.expect("a", payload);
    }
    for payload in &payloads[20..] {
        subscriber.expect("b", payload);
    }
}

#[test]
fn what_was_seen_of_a_flow_is_published_beside_its_bound() {
    let server = "[server]\nsys_interval = \"1s\"\n";
    let config = CONFIG.replacen("[server]\n", server, 1) + "policing = \"off\"\n";
    let Some(broker) = Broker::with_config(&config) else {
        return;
    };
    // With a Receive Maximum of 1 the second message waits for the first's
    // acknowledgement, and is none of those that keep their promise.
    let props = Props::new().two(0x21, 1);
    let connect = Connect::new(V5, "s").props(props);
    let mut subscriber = Conn::connect_to(&broker, &connect).0;
    subscriber.subscribe("axis/+", 1);
    let mut watcher = client(&broker, "w").patient(20);
    let mut publisher = client(&broker, "p");
    for payload in ["1", "2"] {
        assert_eq!(ask(&mut publisher, "axis/1", payload, DECLARED).0, 0);
    }
    for payload in ["1", "2"] {
        let message = subscriber.expect("axis/1", payload);
        subscriber.acknowledge(&message);
    }
    watcher.subscribe("$SYS/rt/flows/#", 0);
    let line = loop {
        let message = watcher.message();
        assert_eq!(message.topic, "$SYS/rt/flows/axis/1@p");
        let text = message.text();
        if text.contains(" messages=1 ") && text.contains(" held=1 ") {
            break text;
        }
    };
    let value = |key: &str| {
        let word = line
            .split(' ')
            .find_map(|word| word.strip_prefix(key)?.strip_prefix('='));
        word.unwrap().parse::<u64>().unwrap()
    };
    assert_eq!(value("deadline_us"), 20_000);
    assert!(value("broker_max_us") > 0 && value("broker_max_us") < value("bound_us"));
    assert_eq!((value("misses"), value("violations")), (0, 1), "{line}");
    publisher.disconnect();
    while !watcher.message().payload.is_empty() {}
}
