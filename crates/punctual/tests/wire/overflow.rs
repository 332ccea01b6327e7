//! Full queues: by default the session whose queue is full loses its oldest messages, is told so,
//! and nobody else notices; other policies by topic, session and listener. Each test starts a
//! broker of its own.

use std::collections::BTreeSet;

use crate::broker::Broker;
use crate::build::{Connect, Level, Props, Publish, V5, V311, first, id, subscribe};
use crate::conn::{Conn, unique};
use crate::parse::Packet;

/// Messages that a queue holds, and that are published.
const QUEUE: u16 = 20;
const MESSAGES: u16 = 50;

/// A broker with short queues and that configuration.
fn broker(config: &str) -> Option<Broker> {
    Broker::with_config(&format!(
        "{config}\n[limits]\nmax_queued_messages = {QUEUE}\n"
    ))
}

/// A client that stays away with its session, subscribed to that; as it connects again.
fn away(broker: &Broker, level: Level, filter: &str) -> Connect {
    let connect = match level {
        V5 => Connect::new(V5, unique("away")).lasting(300),
        _ => Connect::new(level, unique("away")).resume(),
    };
    subscribed(broker, &connect, filter);
    connect
}

fn subscribed(broker: &Broker, connect: &Connect, filter: &str) {
    let (mut conn, _) = Conn::connect_to(broker, connect);
    assert_eq!(conn.subscribe(filter, 1), 1);
    conn.disconnect();
}

/// Publishes all messages; returns those that are acknowledged as taken.
fn publish(broker: &Broker, topic: &str) -> Vec<String> {
    let (mut publisher, _) = Conn::connect_to(broker, &Connect::new(V5, unique("p")));
    let mut taken = Vec::new();
    for number in 1..=MESSAGES {
        let payload = number.to_string();
        publisher.send(Publish::new(V5, topic, &payload).qos(1, number).encode());
        match publisher.ack(first::PUBACK, number).code {
            0x00 => taken.push(payload),
            0x97 => {}
            code => publisher.fail("PUBACK 0x00 or 0x97", &code),
        }
    }
    taken
}

/// What CONNACK says that was lost, and what waits for a client.
fn received(broker: &Broker, connect: &Connect) -> (usize, Vec<String>) {
    let (mut conn, connack) = Conn::connect_to(broker, connect);
    let told = connack.props.user();
    let told = told.iter().find(|(key, _)| *key == "punctual-dropped");
    let told = told.map_or(0, |(_, count)| count.parse().expect("a number"));
    let end = unique("end");
    let level = connect.level();
    conn.send(subscribe(level, 1, &Props::new(), &[(&end, 0)]));
    conn.send(Publish::new(level, &end, "").encode());
    let mut payloads = Vec::new();
    loop {
        match conn.next() {
            Packet::SubAck(_) => {}
            Packet::Publish(message) if message.topic == end => break,
            Packet::Publish(message) => {
                conn.acknowledge(&message);
                payloads.push(message.text());
            }
            other => conn.fail("a message", &other),
        }
    }
    conn.disconnect();
    (told, payloads)
}

fn numbers(range: impl Iterator<Item = u16>) -> Vec<String> {
    range.map(|number| number.to_string()).collect()
}

/// [3.1.1 MQTT-4.3.2-2] A session that stays away loses its own oldest messages. Its publishers are
/// acknowledged, whatever their protocol version, others get everything, and what was acknowledged is
/// delivered or counted.
#[test]
fn who_stays_away_loses_its_oldest_messages_and_nobody_else_notices() {
    let Some(broker) = broker("[queue]\nurgent_reserve = 0\n[server]\nsys_interval = \"1s\"\n")
    else {
        return;
    };
    let lost = usize::from(MESSAGES - QUEUE);
    for level in [V311, V5] {
        let topic = unique("t");
        let forgotten = away(&broker, level, &topic);
        let (mut reader, _) = Conn::connect_to(&broker, &Connect::new(level, unique("r")));
        reader.subscribe(&topic, 1);
        let (mut publisher, _) = Conn::connect_to(&broker, &Connect::new(level, unique("p")));
        for number in 1..=MESSAGES {
            let payload = number.to_string();
            publisher.send(
                Publish::new(level, &topic, &payload)
                    .qos(1, number)
                    .encode(),
            );
            let code = publisher.ack(first::PUBACK, number).code;
            assert_eq!(code, 0x00, "message {number}");
            let message = reader.expect(&topic, &payload);
            reader.acknowledge(&message);
        }
        let name = String::from_utf8(forgotten.client_id().to_vec()).expect("text");
        reader.subscribe(&format!("$SYS/rt/clients/{name}"), 0);
        let said = format!("dropped={lost}");
        while reader.message().text() != said {}

        let (told, kept) = received(&broker, &forgotten);
        assert_eq!(told, if level == V5 { lost } else { 0 });
        assert_eq!(kept, numbers(MESSAGES - QUEUE + 1..=MESSAGES));
        // It knows now.
        let (told, kept) = received(&broker, &forgotten);
        assert_eq!((told, kept.len()), (0, 0));
    }
}

/// What nobody has acknowledged on an earlier connection is in flight: it is not among what is
/// dropped, and comes again first.
#[test]
fn what_is_in_flight_stays() {
    let Some(broker) = broker("[queue]\nurgent_reserve = 0\n") else {
        return;
    };
    let slow = Connect::new(V5, unique("slow")).lasting(300);
    let (mut conn, _) = Conn::connect_to(&broker, &slow);
    conn.subscribe("t", 1);
    let (mut publisher, _) = Conn::connect_to(&broker, &Connect::new(V5, unique("p")));
    publisher.publish("t", "in flight", 1);
    conn.expect("t", "in flight");
    drop(conn);
    assert_eq!(publish(&broker, "t").len(), usize::from(MESSAGES));
    let (told, kept) = received(&broker, &slow);
    assert_eq!(kept[0], "in flight");
    assert_eq!(told + kept.len(), usize::from(MESSAGES) + 1);
}

/// What was dropped does not come back with the store, and what was kept does.
#[test]
fn what_was_dropped_does_not_come_back_after_a_restart() {
    let data = tempfile::tempdir().expect("a directory");
    let config = format!(
        "[queue]\nurgent_reserve = 0\n[server]\ndata = {:?}\n",
        data.path()
    );
    let Some(first) = broker(&config) else {
        return;
    };
    let forgotten = away(&first, V5, "t");
    assert_eq!(publish(&first, "t").len(), usize::from(MESSAGES));
    drop(first);
    let Some(second) = broker(&config) else {
        return;
    };
    let (_, kept) = received(&second, &forgotten);
    assert_eq!(kept, numbers(MESSAGES - QUEUE + 1..=MESSAGES));
}

/// Each policy as it is documented: what was acknowledged is delivered or counted.
#[test]
fn each_policy_does_what_it_says() {
    let all = || numbers(1..=MESSAGES);
    let last = || numbers(MESSAGES - QUEUE + 1..=MESSAGES);
    let first = || numbers(1..=QUEUE);
    for (policy, taken, kept) in [
        ("drop-oldest", all(), last()),
        ("drop-new", all(), first()),
        ("refuse", first(), first()),
        ("hold", first(), first()),
    ] {
        let config = format!("[queue]\nurgent_reserve = 0\nfull = {policy:?}\n");
        let Some(broker) = broker(&config) else {
            return;
        };
        let forgotten = away(&broker, V5, "t");
        assert_eq!(publish(&broker, "t"), taken, "{policy}");
        let (told, received) = received(&broker, &forgotten);
        assert_eq!(received, kept, "{policy}");
        assert_eq!(told + received.len(), taken.len(), "{policy}");
    }
}

/// A session's own policy comes first, then that of the topic, then that of the listener. One that
/// refuses concerns all receivers of what it refuses, and nothing else.
#[test]
fn policies_are_set_by_session_topic_and_listener() {
    let Some(broker) = broker(
        "[queue]\nurgent_reserve = 0\nrules = [\"order/#: refuse\"]\n\
         sessions = [\"history-*: refuse\", \"panel-*: drop-new\"]\n\
         [[listener]]\naddress = \"tcp://127.0.0.1:0\"\n\
         [[listener]]\naddress = \"tcp://127.0.0.1:0\"\nqueue_full = \"drop-new\"\n",
    ) else {
        return;
    };
    let lasting = |prefix: &str| Connect::new(V5, unique(prefix)).lasting(300);
    let by_topic = away(&broker, V5, "order/1");
    assert_eq!(publish(&broker, "order/1"), numbers(1..=QUEUE));
    let (told, kept) = received(&broker, &by_topic);
    assert_eq!((told, kept), (0, numbers(1..=QUEUE)));

    let history = lasting("history-");
    subscribed(&broker, &history, "log/1");
    let other = away(&broker, V5, "log/#");
    assert_eq!(publish(&broker, "log/1"), numbers(1..=QUEUE));
    // What does not go to that session is not its matter.
    assert_eq!(publish(&broker, "log/2"), numbers(1..=MESSAGES));
    let (told, kept) = received(&broker, &other);
    assert_eq!(told + kept.len(), usize::from(QUEUE + MESSAGES));
    assert_eq!(received(&broker, &history), (0, numbers(1..=QUEUE)));

    // Before the topic's.
    let panel = lasting("panel-");
    subscribed(&broker, &panel, "order/2");
    assert_eq!(publish(&broker, "order/2"), numbers(1..=MESSAGES));
    assert_eq!(received(&broker, &panel).1, numbers(1..=QUEUE));

    let guest = lasting("guest");
    let stream = std::net::TcpStream::connect(broker.listener(1)).expect("the second listener");
    let mut conn = Conn::over(Box::new(stream), &broker, V5);
    conn.send(guest.encode());
    conn.connack();
    conn.subscribe("t", 1);
    conn.disconnect();
    assert_eq!(publish(&broker, "t"), numbers(1..=MESSAGES));
    assert_eq!(received(&broker, &guest).1, numbers(1..=QUEUE));
}

/// Where a topic's policy is to refuse, what was acknowledged of it stays in a queue that drops
/// other messages.
#[test]
fn what_must_not_be_dropped_stays_among_what_may_be() {
    let Some(broker) = broker("[queue]\nurgent_reserve = 0\nrules = [\"order/#: refuse\"]\n")
    else {
        return;
    };
    let forgotten = away(&broker, V5, "#");
    let orders = |from: u16| {
        let (mut publisher, _) = Conn::connect_to(&broker, &Connect::new(V5, unique("p")));
        for number in from..from + 5 {
            publisher.publish("order/1", number.to_string(), 1);
        }
    };
    let log = || publish(&broker, "log").len();
    orders(1001);
    assert_eq!(log(), usize::from(MESSAGES));
    let (told, kept) = received(&broker, &forgotten);
    let kept: BTreeSet<String> = kept.into_iter().collect();
    assert_eq!(told + kept.len(), usize::from(MESSAGES) + 5);
    assert!(numbers(1001..1006).iter().all(|order| kept.contains(order)));
}

/// A session expiry beyond the default bound of a week is cut, and MQTT 5 clients are told.
#[test]
fn sessions_end_a_week_after_their_clients_by_default() {
    let broker = Broker::shared();
    let forever = Connect::new(V5, unique("c")).lasting(u32::MAX);
    let (_conn, connack) = Conn::connect_to(broker, &forever);
    let told = connack.props.number(id::SESSION_EXPIRY);
    assert_eq!(told, Some(7 * 86_400));
}
