//! CONNACK (section 3.2). Its flags, codes and properties are checked by the
//! parser in every test; here is what depends on the CONNECT.

use crate::broker::Broker;
use crate::build::{
    Connect, Props, Publish, V5, V31, V311, Will, ack, first, id, subscribe, unsubscribe,
};
use crate::conn::{Conn, unique};
use crate::parse::PropList;

/// [MQTT-3.2.0-1] [3.1.1 MQTT-3.2.0-1] [MQTT-3.2.0-2] [MQTT-3.1.4-5]
/// [3.1.1 MQTT-3.1.4-4] [MQTT-3.2.2-1] [MQTT-3.2.2-8] CONNACK with success and
/// nothing in its reserved flags comes first and once, also when the client did
/// not wait for it.
#[test]
fn connack_comes_first_and_once() {
    for level in [V31, V311, V5] {
        let topic = unique("t");
        let mut bytes = Connect::new(level, unique("c")).encode();
        bytes.extend(subscribe(level, 1, &Props::new(), &[(&topic, 0)]));
        bytes.extend(Publish::new(level, &topic, "p").encode());
        let mut conn = Conn::open(level);
        conn.send(bytes);
        assert_eq!(conn.connack().code, 0);
        conn.suback(1);
        conn.expect(&topic, "p");
        conn.ping();
    }
}

/// [MQTT-3.2.0-1] [3.1.1 MQTT-3.2.0-1] CONNACK precedes the messages that wait
/// in a resumed session.
#[test]
fn connack_precedes_waiting_messages() {
    for level in [V311, V5] {
        let connect = Connect::new(level, unique("c")).lasting(300);
        let (mut sleeper, _) = Conn::connect(&connect);
        let topic = unique("t");
        sleeper.subscribe(&topic, 1);
        sleeper.disconnect();
        Conn::client(level).publish(&topic, "waiting", 1);
        let (mut sleeper, connack) = Conn::connect(&connect);
        assert!(connack.session_present);
        let message = sleeper.expect(&topic, "waiting");
        sleeper.acknowledge(&message);
    }
}

/// [MQTT-3.2.2-2] [MQTT-3.2.2-3] [MQTT-3.1.4-4] [3.1.1 MQTT-3.2.2-1]
/// [3.1.1 MQTT-3.2.2-2] [3.1.1 MQTT-3.2.2-3] [3.1.1 MQTT-3.1.4-3] Session
/// Present says whether the server had a session and the client wants it.
#[test]
fn session_present_tells_the_truth() {
    for level in [V311, V5] {
        let name = unique("c");
        let clean = Connect::new(level, &name);
        let lasting = Connect::new(level, &name).lasting(300);
        let steps = [
            ("nothing stored", &lasting, false),
            ("stored", &lasting, true),
            ("stored, but clean", &clean, false),
            ("cleaned", &lasting, false),
        ];
        for (step, connect, expected) in steps {
            let (conn, connack) = Conn::connect(connect);
            assert_eq!(connack.session_present, expected, "{level:?}: {step}");
            conn.disconnect();
        }
    }
}

/// [3.1.1 MQTT-3.2.2-1] MQTT 3.1 has no Session Present: that byte stays zero
/// even when a session is resumed.
#[test]
fn v31_has_no_session_present() {
    let connect = Connect::new(V31, unique("c")).resume();
    Conn::connect(&connect).0.disconnect();
    let (_conn, connack) = Conn::connect(&connect);
    assert!(!connack.session_present);
}

/// [MQTT-3.2.2-6] [MQTT-3.2.2-7] [MQTT-4.13.2-1] [3.1.1 MQTT-3.2.2-4]
/// [3.1.1 MQTT-3.2.2-5] A refusal has Session Present zero, even where there is
/// a session, and closes the connection.
#[test]
fn a_refusal_never_says_session_present() {
    let name = unique("c");
    let connect = Connect::new(V5, &name).lasting(300);
    Conn::connect(&connect).0.disconnect();
    let props = Props::new().field(id::AUTH_METHOD, "no such method");
    let mut conn = Conn::open(V5);
    conn.send(connect.props(props).encode());
    conn.refused(&[0x8C, 0x87]);
}

/// [MQTT-3.2.2-9] [MQTT-3.2.2-10] [MQTT-3.2.2-12] [MQTT-3.2.2-13] The server
/// does what CONNACK leaves unrestricted: QoS 2, retained messages, and a will
/// with both. (Where CONNACK restricts, the refusal of such a will is tested.)
#[test]
fn what_connack_does_not_restrict_is_served() {
    let (mut conn, connack) = Conn::connect(&Connect::new(V5, unique("c")));
    let max_qos = connack.props.number(id::MAXIMUM_QOS).unwrap_or(2) as u8;
    let retain = connack.props.number(id::RETAIN_AVAILABLE) != Some(0);
    let topic = unique("t");
    assert!(
        conn.subscribe(&topic, 2) <= 2,
        "SUBSCRIBE at QoS 2 is accepted"
    );
    conn.publish(&unique("u"), "p", max_qos);
    if retain {
        let topic = unique("r");
        conn.retain(&topic, "p", 0);
        conn.retain(&topic, "", 0);
    }
    let mut will = Will::new(unique("w"), "p").qos(2);
    let mut codes = Vec::new();
    if max_qos < 2 {
        codes.push(0x9B);
    }
    if !retain {
        codes.push(0x9A);
        will = will.retain();
    }
    let connect = Connect::new(V5, unique("c")).will(will);
    if codes.is_empty() {
        Conn::connect(&connect).0.disconnect();
    } else {
        let mut conn = Conn::open(V5);
        conn.send(connect.encode());
        conn.refused(&codes);
    }
}

/// [MQTT-3.2.2-19] [MQTT-3.2.2-20] [MQTT-3.1.2-24] Reason string and user
/// properties are left out of a CONNACK that they would make larger than the
/// client takes.
#[test]
fn connack_respects_the_maximum_packet_size() {
    for limit in [24, 40, 64, 128] {
        let connect = Connect::new(V5, unique("c"));
        Conn::connect(&connect.clone().max_packet(limit)).0.ping();
        let props = Props::new().field(id::AUTH_METHOD, "no such method");
        let mut conn = Conn::ask(Broker::shared(), &connect.props(props).max_packet(limit));
        conn.refused(&[0x8C, 0x87]);
    }
}

/// [MQTT-3.1.2-24] A client that takes no packet of CONNACK's size cannot be let in: it is told so
/// if it takes that, and nothing else is sent. A large acknowledgement that it does not take ends
/// the connection, instead of leaving it waiting.
#[test]
fn a_client_that_takes_no_connack_is_refused() {
    let Some(broker) = Broker::with_config("") else {
        return;
    };
    for limit in (1..16).rev() {
        let asks = Connect::new(V5, unique("c")).max_packet(limit);
        let answer = Conn::ask(&broker, &asks).rest();
        match limit {
            0..5 => assert!(answer.is_empty(), "{answer:?}"),
            _ => assert_eq!(answer, [first::CONNACK, 3, 0, 0x95, 0], "{limit}"),
        }
    }
    let why = "Maximum Packet Size of 15 bytes is too small for CONNACK, which has 16";
    broker.log().until(0, why);

    let none = Props::new();
    let many: Vec<String> = (0..13).map(|n| format!("t/{n}")).collect();
    let all: Vec<(&str, u8)> = many.iter().map(|filter| (&**filter, 0)).collect();
    let names: Vec<&str> = many.iter().map(|filter| &**filter).collect();
    let asks = Connect::new(V5, unique("c")).max_packet(16);
    let (mut conn, _) = Conn::connect_to(&broker, &asks);
    conn.send(subscribe(V5, 1, &none, &all[..11]));
    assert_eq!(conn.suback(1).codes, [0; 11]);
    for packet in [
        subscribe(V5, 1, &none, &all[..12]),
        unsubscribe(V5, 1, &none, &names[..12]),
    ] {
        let (mut conn, _) = Conn::connect_to(&broker, &asks);
        conn.send(packet);
        conn.error(&[0x95]);
    }
}

/// [MQTT-3.1.2-28] Without a request for it there is no response information.
#[test]
fn response_information_is_only_given_on_request() {
    for props in [
        Props::new(),
        Props::new().byte(id::REQUEST_RESPONSE_INFO, 0),
    ] {
        let connect = Connect::new(V5, unique("c")).props(props);
        let (_conn, connack) = Conn::connect(&connect);
        assert!(!connack.props.has(id::RESPONSE_INFO), "{connack:?}");
    }
}

/// [MQTT-3.1.2-29] A client that does not want problem information gets reason
/// string and user properties at most on CONNACK, DISCONNECT and PUBLISH.
#[test]
fn problem_information_is_withheld_on_request() {
    let props = Props::new().byte(id::REQUEST_PROBLEM_INFO, 0);
    let (mut conn, _) = Conn::connect(&Connect::new(V5, unique("c")).props(props));
    let silent = |props: &PropList| !props.has(id::REASON_STRING) && props.user().is_empty();
    // Refused filters, unknown subscriptions and identifiers, no subscribers:
    // whatever the server might want to explain.
    let filters = [("$share/g/never/+", 1), ("a", 1)];
    conn.send(subscribe(V5, 1, &Props::new(), &filters));
    assert!(silent(&conn.suback(1).props));
    let none = unsubscribe(V5, 2, &Props::new(), &["never/subscribed"]);
    conn.send(none);
    assert!(silent(&conn.unsuback(2).props));
    conn.send(Publish::new(V5, unique("nobody"), "p").qos(1, 3).encode());
    assert!(silent(&conn.ack(first::PUBACK, 3).props));
    conn.send(Publish::new(V5, unique("nobody"), "p").qos(2, 4).encode());
    assert!(silent(&conn.ack(first::PUBREC, 4).props));
    conn.send(ack(first::PUBREL, 4));
    assert!(silent(&conn.ack(first::PUBCOMP, 4).props));
    conn.send(ack(first::PUBREL, 5));
    assert!(silent(&conn.ack(first::PUBCOMP, 5).props));
}
