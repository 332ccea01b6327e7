//! Urgency by user properties: forwarded unchanged, followed, and answered
//! where it is not.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use crate::broker::Broker;
use crate::build::{Connect, Props, Publish, V5, V311, first, id, subscribe};
use crate::conn::{Conn, unique};
use crate::fixture::{pair, subscribe_with};

#[test]
fn what_is_stated_is_forwarded_unchanged() {
    let (mut subscriber, mut publisher, topic) = pair(V5);
    let stated = [("priority", "3"), ("unit", "K"), ("rt-deadline", "5ms")];
    let props = stated
        .iter()
        .fold(Props::new(), |props, (name, value)| props.user(name, value));
    publisher.send(Publish::new(V5, &topic, "p").props(props).encode());
    let message = subscriber.expect(&topic, "p");
    assert_eq!(message.props.user(), stated);
}

#[test]
fn what_is_not_understood_is_told_with_the_acknowledgement() {
    let (mut subscriber, mut publisher, topic) = pair(V5);
    for (number, qos, kind) in [(1, 1, first::PUBACK), (2, 2, first::PUBREC)] {
        let props = Props::new().user("rt-deadline", "soon");
        let publish = Publish::new(V5, &topic, "p").qos(qos, number).props(props);
        publisher.send(publish.encode());
        let ack = publisher.ack(kind, number);
        assert_eq!(ack.code, 0, "the message is carried");
        let told = ack.props.user();
        assert_eq!(told[0], ("rt-status", "best-effort"));
        assert_eq!(told[1].0, "rt-reason");
        assert!(told[1].1.contains("rt-deadline") && told[1].1.contains("soon"));
        let message = subscriber.expect(&topic, "p");
        subscriber.acknowledge(&message);
    }
}

#[test]
fn connect_tells_what_it_does_not_understand() {
    let props = Props::new().user("priority", "high");
    let connect = Connect::new(V5, unique("c")).props(props);
    let (_, connack) = Conn::connect(&connect);
    let told = connack.props.user();
    assert_eq!(told[0], ("rt-status", "best-effort"));
    assert!(told[1].1.contains("priority"), "{told:?}");
}

/// A subscriber that does not read has more waiting for it than the system
/// takes; what is urgent comes before the end of it.
#[test]
fn what_is_urgent_overtakes_what_waits() {
    let config = |enqueue| {
        format!(
            "[egress]\nrules = [\"alarm/#: priority=0\"]\nenqueue = \"{enqueue}\"\n\
             [tcp]\nnotsent_lowat = \"16KiB\"\n\
             [queue]\nsend_buffer = \"64MiB\"\n"
        )
    };
    for enqueue in ["per-receiver", "shared"] {
        let Some(broker) = Broker::with_config(&config(enqueue)) else {
            return;
        };
        urgent_overtakes_what_waits(&broker);
    }
}

fn urgent_overtakes_what_waits(broker: &Broker) {
    let (mut subscriber, _) = Conn::connect_to(broker, &Connect::new(V311, unique("s")));
    subscriber.subscribe("#", 0);
    let (mut publisher, _) = Conn::connect_to(broker, &Connect::new(V311, unique("p")));
    let bulk = vec![b'.'; 256 << 10];
    let count = 100;
    for _ in 0..count {
        publisher.send(Publish::new(V311, "log", &bulk).encode());
    }
    publisher.ping();
    publisher.send(Publish::new(V311, "alarm/1", "now").encode());
    publisher.ping();
    let mut before = 0;
    while subscriber.message().topic != "alarm/1" {
        before += 1;
    }
    assert!(before < count, "all {before} bulk messages came before");
    for _ in before..count {
        assert_eq!(subscriber.message().topic, "log");
    }
}

/// One of two subscribers does not read: the other gets everything meanwhile,
/// by priority, and so does the first once it reads.
#[test]
fn a_shared_queue_waits_for_nobody() {
    let config = "[egress]\nenqueue = \"shared\"\nmin_share_normal = 0\n\
                  [tcp]\nnotsent_lowat = \"16KiB\"\n\
                  [queue]\nsend_buffer = \"64MiB\"\n";
    let Some(broker) = Broker::with_config(config) else {
        return;
    };
    let subscribe = |filters: &[&str]| {
        let (mut conn, _) = Conn::connect_to(&broker, &Connect::new(V5, unique("s")));
        for filter in filters {
            conn.subscribe(filter, 1);
        }
        conn
    };
    let (mut idle, mut eager) = (subscribe(&["log", "alarm"]), subscribe(&["alarm"]));
    let (mut publisher, _) = Conn::connect_to(&broker, &Connect::new(V5, unique("p")));
    let bulk = vec![b'.'; 256 << 10];
    let count = 100;
    for _ in 0..count {
        publisher.send(Publish::new(V5, "log", &bulk).encode());
    }
    publisher.ping();
    for number in 0..100u16 {
        let priority = (number % 7).to_string();
        let props = Props::new().user("priority", &priority);
        let publish = Publish::new(V5, "alarm", number.to_string())
            .qos(number as u8 % 2, number + 1)
            .props(props);
        publisher.send(publish.encode());
        let message = eager.message();
        assert_eq!(message.payload, number.to_string().as_bytes());
        eager.acknowledge(&message);
    }
    let (mut logs, mut alarms) = (0, Vec::new());
    while logs < count || alarms.len() < 100 {
        let message = idle.message();
        idle.acknowledge(&message);
        if message.topic == "log" {
            logs += 1;
            assert!(
                logs < count || alarms.len() == 100,
                "alarms came after all logs"
            );
        } else {
            alarms.push(message.text().parse::<u16>().unwrap());
        }
    }
    let mut expected: Vec<u16> = (0..100).collect();
    expected.sort_by_key(|number| number % 7);
    assert_eq!(alarms, expected);
}

#[test]
fn a_subscriber_may_have_what_it_is_sent_numbered() {
    let (_, mut publisher, topic) = pair(V5);
    let mut numbered = Conn::client(V5);
    let mut plain = Conn::client(V5);
    let on = Props::new().user("rt-sequence", "on");
    assert_eq!(subscribe_with(&mut numbered, &on, &[(&topic, 2)]), [2]);
    plain.subscribe(&topic, 2);
    let mut source = String::new();
    for number in 0..9u16 {
        let props = Props::new()
            .user("rt-sequence", "0000002a/7")
            .user("unit", "K");
        let publish = Publish::new(V5, &topic, number.to_string());
        publisher.send(
            publish
                .qos(number as u8 % 3, number + 1)
                .props(props)
                .encode(),
        );
        for (conn, own) in [(&mut numbered, true), (&mut plain, false)] {
            let message = conn.message();
            conn.acknowledge(&message);
            let user = message.props.user();
            assert_eq!(user[..2], [("rt-sequence", "0000002a/7"), ("unit", "K")]);
            assert_eq!(user.len(), 2 + usize::from(own));
            if !own {
                continue;
            }
            let (drawn, count) = user[2].1.split_once('/').unwrap();
            assert_eq!((user[2].0, count), ("rt-delivery", &*number.to_string()));
            assert!(source.is_empty() || source == drawn);
            source = drawn.to_owned();
        }
    }
}

#[test]
fn subscribe_tells_what_it_does_not_understand() {
    let (_, mut publisher, topic) = pair(V5);
    let mut subscriber = Conn::client(V5);
    let wrong = Props::new().user("rt-sequence", "yes");
    let id = subscriber.fresh_id();
    subscriber.send(subscribe(V5, id, &wrong, &[(&topic, 0)]));
    let suback = subscriber.suback(id);
    assert_eq!(suback.codes, [0], "the subscription is made");
    let told = suback.props.user();
    assert_eq!(told[0], ("rt-status", "best-effort"));
    assert!(told[1].1.contains("rt-sequence = \"yes\"") && told[1].1.contains("on"));
    publisher.send(Publish::new(V5, &topic, "p").encode());
    assert!(subscriber.expect(&topic, "p").props.user().is_empty());
}

/// What is sent, waits, has expired and was held back is told by class.
/// They are counted as dropped, and no deadline as missed.
#[test]
fn messages_that_are_lost_with_a_connection_were_not_sent() {
    let Some(broker) = Broker::with_config("[server]\nsys_interval = \"1s\"\n") else {
        return;
    };
    let (mut deaf, _) = Conn::connect_to(&broker, &Connect::new(V5, unique("d")));
    deaf.subscribe("t", 0);
    let (mut publisher, _) = Conn::connect_to(&broker, &Connect::new(V5, unique("p")));
    // More than sockets take.
    let payload = "x".repeat(64 * 1024);
    for _ in 0..256 {
        let props = Props::new().user("rt-deadline", "60s");
        publisher.send(Publish::new(V5, "t", &payload).props(props).encode());
    }
    publisher.ping();
    drop(deaf);
    let (mut watcher, _) = Conn::connect_to(&broker, &Connect::new(V5, unique("w")));
    watcher.subscribe("$SYS/rt/egress/realtime/#", 0);
    let mut told = BTreeMap::new();
    let number = |told: &BTreeMap<String, u64>, name: &str| {
        let topic = format!("$SYS/rt/egress/realtime/{name}");
        told.get(&topic).copied()
    };
    while number(&told, "dropped/gone").is_none_or(|gone| gone == 0)
        || number(&told, "waiting") != Some(0)
        || number(&told, "sent").is_none()
    {
        let message = watcher.message();
        told.insert(message.topic.clone(), message.text().parse().unwrap());
    }
    let all = ["sent", "dropped/gone", "dropped/full"].map(|name| number(&told, name));
    assert_eq!(all.iter().flatten().sum::<u64>(), 256, "{told:?}");
    assert_eq!(number(&told, "missed"), Some(0));
}

#[test]
fn what_happens_to_classes_is_told_on_sys_topics() {
    let Some(broker) = Broker::with_config("[server]\nsys_interval = \"1s\"\n") else {
        return;
    };
    let sleeper = Connect::new(V5, unique("s")).lasting(300);
    let (mut asleep, _) = Conn::connect_to(&broker, &sleeper);
    asleep.subscribe("t", 1);
    asleep.disconnect();
    let (mut awake, _) = Conn::connect_to(&broker, &Connect::new(V5, unique("c")));
    awake.subscribe("t", 0);
    let (mut publisher, _) = Conn::connect_to(&broker, &Connect::new(V5, unique("p")));
    let urgent = || Props::new().user("priority", "0");
    for (number, props) in [
        (1, urgent()),
        (2, urgent()),
        (3, urgent().four(id::MESSAGE_EXPIRY, 1)),
        (4, Props::new().user("rt-priority", "3")),
    ] {
        let publish = Publish::new(V5, "t", "x").qos(1, number).props(props);
        publisher.send(publish.encode());
        publisher.ack(first::PUBACK, number);
        awake.expect("t", "x");
    }
    let (mut watcher, _) = Conn::connect_to(&broker, &Connect::new(V5, unique("w")));
    watcher.subscribe("$SYS/rt/egress/#", 0);
    let mut told = BTreeMap::new();
    let mut until = |wanted: &[(&str, RangeInclusive<u64>)]| {
        let is_told = |told: &BTreeMap<String, u64>| {
            let mut wanted = wanted.iter();
            wanted.all(|(topic, range)| told.get(*topic).is_some_and(|n| range.contains(n)))
        };
        while !is_told(&told) {
            let message = watcher.message();
            let topic = message.topic.strip_prefix("$SYS/rt/egress/").unwrap();
            told.insert(topic.to_owned(), message.text().parse().unwrap());
        }
    };
    until(&[
        ("priority/sent", 3..=3),
        ("priority/queued", 2..=2),
        ("priority/dropped/expired", 1..=1),
        ("priority/dropped/full", 0..=0),
        ("priority/waiting", 0..=0),
        ("realtime/sent", 1..=1),
        ("realtime/queued", 1..=1),
        ("realtime/missed", 0..=0),
    ]);
    let (mut asleep, _) = Conn::connect_to(&broker, &sleeper);
    for _ in 0..3 {
        let message = asleep.expect("t", "x");
        asleep.acknowledge(&message);
    }
    // The one that expired waited for a second, and they were there before it.
    let more_than_a_second = 1_000_000..=u64::MAX;
    until(&[
        ("priority/sent", 5..=5),
        ("priority/queued", 0..=0),
        ("priority/held/p50", more_than_a_second.clone()),
        ("realtime/sent", 2..=2),
        ("realtime/queued", 0..=0),
        ("realtime/held/max", more_than_a_second),
    ]);
}
