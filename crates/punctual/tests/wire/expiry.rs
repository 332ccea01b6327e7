//! Message expiry (section 3.3.2.3.3). For retained messages see there.

use crate::build::{Connect, Props, Publish, V5, V311, ack, first, id};
use crate::conn::{Conn, unique};
use crate::fixture::{let_pass, pair};
use crate::parse::Packet;

fn expiring(topic: &str, payload: &str, seconds: u32) -> Publish {
    let props = Props::new().four(id::MESSAGE_EXPIRY, seconds);
    Publish::new(V5, topic, payload).props(props)
}

/// [MQTT-3.3.2-5] [MQTT-3.3.2-6] A message whose time has passed while its
/// subscriber was away is deleted; one that still lives says for how long; one
/// without a limit stays.
#[test]
fn messages_expire_while_they_wait() {
    let topic = unique("t");
    let clients = [V311, V5].map(|level| Connect::new(level, unique("c")).lasting(300));
    for connect in &clients {
        let (mut sleeper, _) = Conn::connect(connect);
        sleeper.subscribe(&topic, 1);
        sleeper.disconnect();
    }
    let mut publisher = Conn::client(V5);
    publisher.send_publish(expiring(&topic, "short", 1), 1);
    publisher.send_publish(expiring(&topic, "long", 600), 1);
    publisher.publish(&topic, "for ever", 1);
    let_pass(3);
    for connect in &clients {
        let (mut sleeper, _) = Conn::connect(connect);
        let long = sleeper.expect(&topic, "long");
        let left = long.props.number(id::MESSAGE_EXPIRY);
        if connect.level() == V5 {
            let aged = left.is_some_and(|left| (1..=598).contains(&left));
            assert!(aged, "{left:?}");
        }
        let for_ever = sleeper.expect(&topic, "for ever");
        assert!(!for_ever.props.has(id::MESSAGE_EXPIRY));
    }
}

/// [MQTT-3.3.2-6] A message that does not wait carries the interval on.
#[test]
fn a_live_message_carries_its_interval() {
    let (mut subscriber, mut publisher, topic) = pair(V5);
    for seconds in [100, u32::MAX] {
        publisher.send_publish(expiring(&topic, "p", seconds), 1);
        let message = subscriber.expect(&topic, "p");
        let left = message.props.number(id::MESSAGE_EXPIRY).unwrap_or(0);
        assert!(
            (seconds - 30..=seconds).contains(&left),
            "{left} of {seconds}"
        );
        subscriber.acknowledge(&message);
    }
}

/// [MQTT-3.3.2-5] A message that waits behind a full window expires as well.
#[test]
fn messages_expire_behind_a_full_window() {
    let topic = unique("t");
    let props = Props::new().two(id::RECEIVE_MAXIMUM, 1);
    let (mut subscriber, _) = Conn::connect(&Connect::new(V5, unique("c")).props(props));
    subscriber.subscribe(&topic, 1);
    let mut publisher = Conn::client(V5);
    publisher.publish(&topic, "first", 1);
    let first = subscriber.expect(&topic, "first");
    publisher.send_publish(expiring(&topic, "expires", 1), 1);
    publisher.publish(&topic, "last", 1);
    let_pass(3);
    subscriber.acknowledge(&first);
    subscriber.expect(&topic, "last");
}

/// [MQTT-4.3.3-7] Once a PUBLISH was sent its expiry does not matter any more:
/// it is sent again after reconnecting, and QoS 2 goes on to its end.
#[test]
fn a_message_once_sent_does_not_expire() {
    let topic = unique("t");
    let connect = Connect::new(V5, unique("c")).lasting(300);
    let (mut subscriber, _) = Conn::connect(&connect);
    subscriber.subscribe(&topic, 2);
    let mut publisher = Conn::client(V5);
    publisher.send_publish(expiring(&topic, "received", 1), 2);
    publisher.send_publish(expiring(&topic, "sent", 1), 2);
    let received = subscriber.expect(&topic, "received");
    let sent = subscriber.expect(&topic, "sent");
    subscriber.send(ack(first::PUBREC, received.id));
    subscriber.ack(first::PUBREL, received.id);
    drop(subscriber);
    let_pass(3);
    let (mut subscriber, _) = Conn::connect(&connect);
    let (mut pubrel, mut publish) = (false, false);
    while !(pubrel && publish) {
        match subscriber.next() {
            Packet::Ack(ack) if ack.id == received.id => pubrel = true,
            Packet::Publish(again) if again.id == sent.id => {
                assert!(again.dup);
                subscriber.acknowledge(&again);
                publish = true;
            }
            other => subscriber.fail("PUBREL and PUBLISH again", &other),
        }
    }
    subscriber.send(ack(first::PUBCOMP, received.id));
    subscriber.ping();
}

/// [MQTT-4.3.3-13] The server completes the exchange of a QoS 2 message that
/// expires meanwhile.
#[test]
fn qos_2_is_completed_after_expiry() {
    let mut publisher = Conn::client(V5);
    let publish = expiring(&unique("t"), "p", 1);
    publisher.send(publish.clone().qos(2, 8).encode());
    publisher.ack(first::PUBREC, 8);
    let_pass(3);
    publisher.send(publish.qos(2, 8).dup().encode());
    publisher.ack(first::PUBREC, 8);
    publisher.send(ack(first::PUBREL, 8));
    assert_eq!(publisher.ack(first::PUBCOMP, 8).code, 0);
}
