//! Shared subscriptions (section 4.8.2).

use crate::broker::Broker;
use crate::build::{
    Connect, Props, Publish, V5, ack_with, first, id, pingreq, subscribe, unsubscribe,
};
use crate::conn::{Conn, unique};
use crate::fixture::{PROTOCOL, each_is_an_error};
use crate::parse::Packet;
use crate::subscribe::refused_filter;

/// Reads what is there, acknowledging it, up to a PINGRESP.
#[track_caller]
fn drain(conn: &mut Conn) -> Vec<String> {
    let mut payloads = Vec::new();
    conn.send(pingreq());
    loop {
        match conn.next() {
            Packet::PingResp => return payloads,
            Packet::Publish(message) => {
                conn.acknowledge(&message);
                payloads.push(message.text());
            }
            other => conn.fail("PUBLISH or PINGRESP", &other),
        }
    }
}

/// A topic, and a filter that shares it in a group of its own.
fn shared_topic() -> (String, String) {
    let topic = unique("t");
    let filter = format!("$share/{}/{topic}", unique("g"));
    (topic, filter)
}

/// [MQTT-4.8.2-1] [MQTT-4.8.2-2] [MQTT-4.5.0-1] Each message goes to exactly
/// one client of the group, and also to those who do not share.
#[test]
fn each_message_goes_to_one_of_the_group() {
    let (topic, filter) = shared_topic();
    let mut group: Vec<Conn> = (0..3).map(|_| Conn::client(V5)).collect();
    for member in &mut group {
        assert_eq!(member.subscribe(&filter, 1), 1);
    }
    let mut other_group = Conn::client(V5);
    other_group.subscribe(&format!("$share/{}/{topic}", unique("g")), 1);
    let mut plain = Conn::client(V5);
    plain.subscribe(&topic, 1);
    let mut publisher = Conn::client(V5);
    let expected: Vec<String> = (10..70).map(|number| number.to_string()).collect();
    for payload in &expected {
        publisher.publish(&topic, payload, 1);
    }
    for whole in [&mut plain, &mut other_group] {
        for payload in &expected {
            let message = whole.expect(&topic, payload);
            whole.acknowledge(&message);
        }
    }
    // Whoever is sent a message has it before the last of them is answered.
    let mut all = Vec::new();
    while all.len() < expected.len() {
        let before = all.len();
        for member in &mut group {
            all.extend(drain(member));
        }
        assert!(all.len() > before, "messages are missing: {all:?}");
    }
    all.sort();
    assert_eq!(all, expected, "each once");
}

/// [MQTT-4.8.2-3] The QoS granted to the member that gets it limits a message.
#[test]
fn the_members_granted_qos_holds() {
    for granted in [0, 1, 2] {
        let (topic, filter) = shared_topic();
        let mut member = Conn::client(V5);
        assert_eq!(member.subscribe(&filter, granted), granted);
        let mut publisher = Conn::client(V5);
        for qos in [0, 1, 2] {
            publisher.publish(&topic, "p", qos);
            let message = member.expect(&topic, "p");
            assert_eq!(message.qos, qos.min(granted));
            member.acknowledge(&message);
        }
    }
}

/// [MQTT-4.8.2-4] [MQTT-4.8.2-5] What was begun with one member is finished
/// with it when it returns; if its session ends before, a QoS 2 message goes to
/// nobody else.
#[test]
fn a_begun_delivery_stays_with_its_member() {
    let (topic, filter) = shared_topic();
    let name = unique("c");
    let connect = Connect::new(V5, &name).lasting(300);
    let (mut away, _) = Conn::connect(&connect);
    away.subscribe(&filter, 2);
    let mut publisher = Conn::client(V5);
    publisher.publish(&topic, "begun", 2);
    let begun = away.expect(&topic, "begun");
    drop(away);
    let mut stays = Conn::client(V5);
    stays.subscribe(&filter, 2);
    let (mut away, _) = Conn::connect(&connect);
    let again = away.expect(&topic, "begun");
    assert_eq!((again.id, again.dup), (begun.id, true));
    drop(away);
    // Ends the session with the exchange still open.
    Conn::connect(&Connect::new(V5, &name)).0.disconnect();
    publisher.publish(&topic, "marker", 2);
    stays.expect(&topic, "marker");
}

/// [MQTT-4.8.2-6] A message that a member refuses is discarded, and goes to no
/// other.
#[test]
fn a_refused_message_goes_to_nobody_else() {
    for (kind, qos) in [(first::PUBACK, 1), (first::PUBREC, 2)] {
        let (topic, filter) = shared_topic();
        let mut one = Conn::client(V5);
        one.subscribe(&filter, 2);
        let mut publisher = Conn::client(V5);
        publisher.publish(&topic, "refused", qos);
        let refused = one.expect(&topic, "refused");
        let mut two = Conn::client(V5);
        two.subscribe(&filter, 2);
        one.send(ack_with(kind, refused.id, 0x83));
        one.send(unsubscribe(V5, 1, &Props::new(), &[&filter]));
        one.unsuback(1);
        publisher.publish(&topic, "marker", qos);
        two.expect(&topic, "marker");
    }
}

/// [MQTT-3.8.3-4] No Local on a shared subscription is a protocol error.
#[test]
fn no_local_on_a_shared_subscription_closes() {
    let bytes = subscribe(V5, 1, &Props::new(), &[("$share/g/t", 0x04)]);
    each_is_an_error(V5, PROTOCOL, &[("no local", bytes)]);
}

/// [MQTT-4.8.2-1] [MQTT-4.8.2-2] A share needs a name without wildcards and a
/// filter behind it; what has not is refused.
#[test]
fn impossible_shares_are_refused() {
    for filter in [
        "$share/",
        "$share//t",
        "$share/g",
        "$share/g/",
        "$share/+/t",
        "$share/#/t",
        "$share/g+/t",
        "$share/g#/t",
        "$share/#",
        "$share/g/a#",
        "$share/g/#/a",
    ] {
        let mut conn = Conn::client(V5).named(filter);
        conn.send(subscribe(V5, 1, &Props::new(), &[(filter, 0)]));
        refused_filter(&mut conn);
    }
}

/// [MQTT-3.3.1-9] A shared subscription is sent no retained messages (section
/// 4.8.2), and its filter matches names without the `$share` part.
#[test]
fn retained_messages_are_not_shared() {
    let (topic, filter) = shared_topic();
    let mut publisher = Conn::client(V5);
    publisher.retain(&topic, "kept", 1);
    let mut member = Conn::client(V5);
    member.subscribe(&filter, 1);
    publisher.publish(&topic, "live", 1);
    member.expect(&topic, "live");
    publisher.retain(&topic, "", 0);
}

/// [MQTT-3.10.4-1] [MQTT-3.10.4-4] A member leaves by the whole filter, and
/// the others go on with all messages.
#[test]
fn a_member_can_leave() {
    let (topic, filter) = shared_topic();
    let (mut goes, mut stays) = (Conn::client(V5), Conn::client(V5));
    goes.subscribe(&filter, 0);
    stays.subscribe(&filter, 0);
    goes.send(unsubscribe(V5, 1, &Props::new(), &[&topic, &filter]));
    assert_eq!(goes.unsuback(1).codes, [0x11, 0x00]);
    let mut publisher = Conn::client(V5);
    for number in 0..6 {
        publisher.publish(&topic, number.to_string(), 0);
        stays.expect(&topic, number.to_string());
    }
    goes.ping();
}

/// [MQTT-4.8.2-1] A member that goes leaves its share to those who stay, and
/// the next messages with them.
#[test]
fn members_that_disconnect_get_nothing() {
    let (topic, filter) = shared_topic();
    let (mut goes, mut stays) = (Conn::client(V5), Conn::client(V5));
    goes.subscribe(&filter, 1);
    stays.subscribe(&filter, 1);
    goes.disconnect();
    let mut publisher = Conn::client(V5);
    for number in 0..6 {
        let publish = Publish::new(V5, &topic, number.to_string());
        publisher.send_publish(publish, 1);
        let message = stays.expect(&topic, number.to_string());
        stays.acknowledge(&message);
    }
}

/// [MQTT-4.8.2-5] Messages on their way to a member whose session ends, in flight with
/// QoS 1 or queued, go to another member, also on another thread; one with QoS 2 that was begun goes
/// to nobody else.
#[test]
fn what_a_member_leaves_goes_to_others() {
    for shards in [1, 2] {
        let config = format!("[server]\nshards = {shards}\n");
        let Some(broker) = Broker::with_config(&config) else {
            return;
        };
        let client = |name: &str| Connect::new(V5, unique(name));
        for round in 0..4 {
            let (topic, filter) = shared_topic();
            // The usual one, whose session ends with its connection; and one that is ended later.
            let lasts = round % 2 == 1;
            let props = Props::new().two(id::RECEIVE_MAXIMUM, 3);
            let crashing = match lasts {
                true => client("a")
                    .lasting(300)
                    .props(props.four(id::SESSION_EXPIRY, 300)),
                false => client("a").props(props),
            };
            let (mut member, _) = Conn::connect_to(&broker, &crashing);
            member.subscribe(&filter, 1);
            let (mut publisher, _) = Conn::connect_to(&broker, &client("p"));
            let sent: Vec<String> = (10..20).map(|number| number.to_string()).collect();
            for payload in &sent {
                publisher.publish(&topic, payload, 1);
            }
            for payload in &sent[..3] {
                member.expect(&topic, payload);
            }
            let (mut other, _) = Conn::connect_to(&broker, &client("o"));
            other.subscribe(&filter, 1);
            drop(member);
            if lasts {
                // It connects anew.
                let _ = Conn::connect_to(&broker, &Connect::new(V5, crashing.client_id()));
            }
            for payload in &sent {
                let message = other.expect(&topic, payload);
                other.acknowledge(&message);
            }

            let (topic, filter) = shared_topic();
            let crashing = client("a");
            let (mut member, _) = Conn::connect_to(&broker, &crashing);
            member.subscribe(&filter, 2);
            publisher.publish(&topic, "begun", 2);
            member.expect(&topic, "begun");
            other.subscribe(&filter, 2);
            // When it has connected anew, the session before has ended.
            let (_again, _) = Conn::connect_to(&broker, &crashing);
            publisher.publish(&topic, "next", 2);
            other.expect(&topic, "next");
        }
    }
}
