//! Limits and features that the configuration sets: what the server announces
//! it enforces, with the reason code the specification has for it. Each test
//! starts a broker of its own.

use crate::broker::Broker;
use crate::build::{Bytes, Connect, Props, Publish, V5, V311, Will, first, id, subscribe};
use crate::conn::{Conn, unique};
use crate::parse::Packet;

/// A configuration in which full queues, which are short, refuse.
const REFUSE: &str = "[queue]\nfull = \"refuse\"\n[limits]\nmax_queued_messages = 5\n";

fn connect() -> Connect {
    Connect::new(V5, unique("c"))
}

/// [MQTT-3.2.2-15] [MQTT-4.13.1-1] A packet above the announced maximum size is
/// refused with 0x95 as soon as its header says so; up to it all is well.
#[test]
fn packets_above_the_maximum_size_close() {
    let Some(broker) = Broker::with_config("[limits]\nmax_packet_size = 1000\n") else {
        return;
    };
    let (mut conn, connack) = Conn::connect_to(&broker, &connect());
    assert_eq!(connack.props.number(id::MAXIMUM_PACKET_SIZE), Some(1000));
    // Three bytes of header; topic, its length and the property length.
    let room = 1000 - 3 - 3 - 1;
    conn.send(Publish::new(V5, "t", "x".repeat(room)).encode());
    conn.ping();
    let too_large = Publish::new(V5, "t", "x".repeat(room + 1)).encode();
    conn.send(&too_large[..3]);
    conn.error(&[0x95]);
    let (mut conn, _) = Conn::connect_to(&broker, &Connect::new(V311, unique("c")));
    conn.send(Bytes::new().u8(first::PUBLISH).var(268_435_455).done());
    conn.error(&[]);
    let mut conn = Conn::open_to(&broker, V5);
    conn.send(Bytes::new().u8(first::CONNECT).var(268_435_455).done());
    conn.rejected();
    Conn::connect_to(&broker, &connect()).0.ping();
}

/// Wills and filters have bounds in bytes: one beyond is refused with 0x97, and there is room again
/// when others have gone.
#[test]
fn wills_and_filters_have_bounds_in_bytes() {
    let config = "[limits]\nmax_will_size = 100\nmax_will_bytes = 150\n\
                  max_subscription_bytes_per_session = 20\nmax_subscription_bytes = 30\n";
    let Some(broker) = Broker::with_config(config) else {
        return;
    };
    let will = |bytes: usize| connect().will(Will::new("w", "x".repeat(bytes - 1)));
    Conn::ask(&broker, &will(101)).refused(&[0x97]);
    let (first, _) = Conn::connect_to(&broker, &will(100));
    Conn::ask(&broker, &will(51)).refused(&[0x97]);
    let (_second, _) = Conn::connect_to(&broker, &will(50));
    Conn::ask(&broker, &will(2)).refused(&[0x97]);
    first.disconnect();
    let (_third, _) = Conn::connect_to(&broker, &will(100));

    let (mut one, _) = Conn::connect_to(&broker, &connect());
    let (mut other, _) = Conn::connect_to(&broker, &connect());
    let filter = |name: &str, bytes: usize| format!("{name:-<bytes$}");
    assert_eq!(one.subscribe(&filter("a", 20), 0), 0);
    assert_eq!(one.subscribe("b", 0), 0x97);
    assert_eq!(one.subscribe(&filter("a", 20), 1), 1, "it is there already");
    assert_eq!(other.subscribe(&filter("c", 11), 0), 0x97);
    assert_eq!(other.subscribe(&filter("c", 10), 0), 0);
    one.disconnect();
    // What a session leaves is cleared away in pieces.
    let granted = (0..1000).any(|_| other.subscribe(&filter("d", 10), 0) == 0);
    assert!(granted);
}

/// A session whose queue is full holds nobody up who writes what it may not read, whatever it has
/// subscribed to.
#[test]
fn a_full_queue_does_not_stop_writers_of_what_it_may_not_read() {
    let mut rights = tempfile::NamedTempFile::new().expect("a file");
    let lines = b"topic readwrite dev/#\ntopic write plant/#\n";
    std::io::Write::write_all(&mut rights, lines).expect("the rights");
    let config = format!("{REFUSE}[auth]\nacl_file = {:?}\n", rights.path());
    let Some(broker) = Broker::with_config(&config) else {
        return;
    };
    let (mut stale, _) = Conn::connect_to(&broker, &connect().lasting(300));
    stale.subscribe("#", 1);
    stale.subscribe("dev/#", 1);
    drop(stale);
    let (mut writer, _) = Conn::connect_to(&broker, &connect());
    let mut write = |topic: &str| {
        writer.send(Publish::new(V5, topic, "p").qos(1, 1).encode());
        writer.ack(first::PUBACK, 1).code
    };
    assert!((0..100).any(|_| write("dev/1") == 0x97));
    for _ in 0..10 {
        let code = write("plant/1");
        assert!(code < 0x80, "{code:#x}");
    }
}

/// [MQTT-3.2.2-9] [MQTT-3.2.2-10] [MQTT-3.2.2-11] [MQTT-3.2.2-12] A server
/// limited to QoS 0 or 1 says so, accepts any QoS in SUBSCRIBE, and refuses a
/// PUBLISH or a will above it with 0x9B.
#[test]
fn maximum_qos_is_announced_and_enforced() {
    for maximum in [0u8, 1] {
        let config = format!("[mqtt]\nmaximum_qos = {maximum}\n");
        let Some(broker) = Broker::with_config(&config) else {
            return;
        };
        let (mut conn, connack) = Conn::connect_to(&broker, &connect());
        assert_eq!(
            connack.props.number(id::MAXIMUM_QOS),
            Some(u32::from(maximum))
        );
        let filters = [("a", 0), ("b", 1), ("c", 2)];
        conn.send(subscribe(V5, 1, &Props::new(), &filters));
        assert_eq!(conn.suback(1).codes, [0, 1.min(maximum), 2.min(maximum)]);
        conn.publish("elsewhere", "p", maximum);
        conn.send(Publish::new(V5, "a", "p").qos(maximum + 1, 1).encode());
        conn.error(&[0x9B]);
        let will = Will::new("w", "p").qos(maximum + 1);
        let mut conn = Conn::open_to(&broker, V5);
        conn.send(connect().will(will).encode());
        conn.refused(&[0x9B]);
    }
}

/// [MQTT-3.2.2-13] [MQTT-3.2.2-14] A server without retained messages says so,
/// and refuses them in PUBLISH and in a will with 0x9A.
#[test]
fn retain_unavailable_is_announced_and_enforced() {
    let Some(broker) = Broker::with_config("[mqtt]\nretain = false\n") else {
        return;
    };
    let (mut conn, connack) = Conn::connect_to(&broker, &connect());
    assert_eq!(connack.props.number(id::RETAIN_AVAILABLE), Some(0));
    conn.send(Publish::new(V5, "t", "p").retain().encode());
    conn.error(&[0x9A]);
    let mut conn = Conn::open_to(&broker, V5);
    conn.send(connect().will(Will::new("w", "p").retain()).encode());
    conn.refused(&[0x9A]);
}

/// [MQTT-3.9.3-2] [3.1.1 MQTT-3.8.3-2] [MQTT-4.13.1-1] Kinds of subscriptions
/// that are switched off are announced, and refused with their code: in SUBACK
/// or by closing the connection.
#[test]
fn subscription_kinds_switched_off_are_refused() {
    let config = "[mqtt]\nwildcard_subscriptions = false\nshared_subscriptions = false\n\
                  subscription_identifiers = false\n";
    let Some(broker) = Broker::with_config(config) else {
        return;
    };
    let (_conn, connack) = Conn::connect_to(&broker, &connect());
    for feature in [
        id::WILDCARD_AVAILABLE,
        id::SHARED_AVAILABLE,
        id::SUBSCRIPTION_IDS_AVAILABLE,
    ] {
        assert_eq!(connack.props.number(feature), Some(0), "{feature:#04x}");
    }
    let none = Props::new();
    let number = Props::new().var(id::SUBSCRIPTION_IDENTIFIER, 1);
    for (props, filter, code) in [
        (&none, "a/#", 0xA2),
        (&none, "+/a", 0xA2),
        (&none, "$share/g/a", 0x9E),
        (&number, "a", 0xA1),
    ] {
        let mut conn = Conn::connect_to(&broker, &connect()).0.named(filter);
        conn.send(subscribe(V5, 1, props, &[(filter, 0)]));
        match conn.next() {
            Packet::SubAck(suback) => assert_eq!(suback.codes, [code]),
            Packet::Disconnect(reason) => assert_eq!(reason.code, code),
            other => conn.fail("SUBACK or DISCONNECT", &other),
        }
    }
    let (mut old, _) = Conn::connect_to(&broker, &Connect::new(V311, unique("c")));
    assert_eq!(old.subscribe("a/#", 0), 0x80);
    assert_eq!(old.subscribe("a", 0), 0);
}

/// [MQTT-3.1.3-8] [3.1.1 MQTT-3.1.3-9] [MQTT-3.2.2-7] A server that wants
/// identifiers refuses a client without one: 0x85, or 0x02 before 5.0.
#[test]
fn an_empty_identifier_can_be_refused() {
    let Some(broker) = Broker::with_config("[mqtt]\nempty_client_id = false\n") else {
        return;
    };
    for (level, code) in [(V5, 0x85), (V311, 0x02)] {
        let mut conn = Conn::open_to(&broker, level);
        conn.send(Connect::new(level, "").encode());
        conn.refused(&[code]);
    }
    Conn::connect_to(&broker, &connect()).0.ping();
}

/// [MQTT-3.1.2-21] [MQTT-3.2.2-21] [MQTT-3.1.2-22] The server's keep-alive,
/// once announced, replaces the client's, also where the client wanted none.
#[test]
fn the_servers_keep_alive_is_enforced() {
    let Some(broker) = Broker::with_config("[mqtt]\nkeep_alive = \"1s\"\n") else {
        return;
    };
    for asked in [0, 600] {
        let (conn, connack) = Conn::connect_to(&broker, &connect().keep_alive(asked));
        assert_eq!(connack.props.number(id::SERVER_KEEP_ALIVE), Some(1));
        conn.patient(15).error(&[0x8D]);
    }
}

/// [MQTT-3.2.2-21] [MQTT-3.2.2-22] A keep-alive above the server's longest is
/// cut to it; one below stays the client's and is not mentioned.
#[test]
fn a_long_keep_alive_is_cut() {
    let Some(broker) = Broker::with_config("[limits]\nmax_keep_alive = \"100s\"\n") else {
        return;
    };
    for (asked, announced) in [(0, Some(100)), (101, Some(100)), (100, None), (50, None)] {
        let (_conn, connack) = Conn::connect_to(&broker, &connect().keep_alive(asked));
        let told = connack.props.number(id::SERVER_KEEP_ALIVE);
        assert!(
            told == announced || told == Some(u32::from(asked)),
            "{asked}: {told:?}"
        );
    }
}

/// [MQTT-3.1.2-28] Response information is given on request, and only then.
#[test]
fn response_information_is_given_on_request() {
    let Some(broker) = Broker::with_config("[mqtt]\nresponse_information = \"reply/%c\"\n") else {
        return;
    };
    for (asked, given) in [(Some(1), true), (Some(0), false), (None, false)] {
        let props = match asked {
            Some(asked) => Props::new().byte(id::REQUEST_RESPONSE_INFO, asked),
            None => Props::new(),
        };
        let (_conn, connack) = Conn::connect_to(&broker, &Connect::new(V5, "me").props(props));
        let information = connack.props.text(id::RESPONSE_INFO);
        assert_eq!(information, given.then_some("reply/me"));
    }
}

/// [MQTT-3.2.2-17] [MQTT-3.2.2-18] [MQTT-3.3.2-9] [MQTT-3.3.2-12] The announced
/// number of aliases is taken, none where it is zero.
#[test]
fn topic_alias_maximum_is_announced_and_enforced() {
    for maximum in [0u16, 3] {
        let config = format!("[limits]\ntopic_alias_maximum = {maximum}\n");
        let Some(broker) = Broker::with_config(&config) else {
            return;
        };
        let (mut conn, connack) = Conn::connect_to(&broker, &connect());
        let announced = connack.props.number(id::TOPIC_ALIAS_MAXIMUM).unwrap_or(0);
        assert_eq!(announced, u32::from(maximum));
        for alias in 1..=maximum + 1 {
            let props = Props::new().two(id::TOPIC_ALIAS, alias);
            conn.send(Publish::new(V5, "t", "p").props(props).encode());
            if alias <= maximum {
                conn.ping();
            }
        }
        conn.error(&[0x94]);
    }
}

/// [MQTT-3.1.2-23] A session expiry above the server's longest is cut, and the
/// client told so.
#[test]
fn a_long_session_expiry_is_cut() {
    let Some(broker) = Broker::with_config("[limits]\nmax_session_expiry = \"60s\"\n") else {
        return;
    };
    for (asked, announced) in [(61, Some(60)), (u32::MAX, Some(60)), (60, None), (0, None)] {
        let (_conn, connack) = Conn::connect_to(&broker, &connect().lasting(asked));
        let told = connack.props.number(id::SESSION_EXPIRY);
        assert!(
            told == announced || told == Some(asked.min(60)),
            "{asked}: {told:?}"
        );
    }
}

/// [MQTT-3.8.4-7] [MQTT-3.4.2-1] [3.1.1 MQTT-3.8.4-5] Topics with more levels
/// than are allowed are refused: a filter in SUBACK, a name by reason code.
#[test]
fn too_many_topic_levels_are_refused() {
    let Some(broker) = Broker::with_config("[limits]\nmax_topic_levels = 4\n") else {
        return;
    };
    let (mut conn, _) = Conn::connect_to(&broker, &connect());
    assert_eq!(conn.subscribe("a/b/c/d", 0), 0);
    conn.publish("a/b/c/d", "p", 0);
    conn.expect("a/b/c/d", "p");
    let code = conn.subscribe("a/b/c/d/e", 0);
    assert!(
        [0x80, 0x83, 0x87, 0x8F, 0x97].contains(&code),
        "{code:#04x}"
    );
    conn.send(Publish::new(V5, "a/b/c/d/e", "p").qos(1, 1).encode());
    match conn.next() {
        Packet::Ack(ack) => assert!(
            [0x80, 0x83, 0x87, 0x90, 0x97].contains(&ack.code),
            "{ack:?}"
        ),
        Packet::Disconnect(reason) => assert!([0x90, 0x97].contains(&reason.code), "{reason:?}"),
        other => conn.fail("PUBACK or DISCONNECT that refuses", &other),
    }
}

/// [MQTT-3.9.3-2] [3.1.1 MQTT-3.9.3-2] [MQTT-3.8.4-7] A subscription above the
/// allowed number is refused with 0x97 (0x80 before 5.0), the others stay.
#[test]
fn too_many_subscriptions_are_refused() {
    let config = "[limits]\nmax_subscriptions_per_session = 2\n";
    let Some(broker) = Broker::with_config(config) else {
        return;
    };
    for (level, code) in [(V5, 0x97), (V311, 0x80)] {
        let (mut conn, _) = Conn::connect_to(&broker, &Connect::new(level, unique("c")));
        let filters = [("a", 0), ("b", 0), ("c", 0)];
        conn.send(subscribe(level, 1, &Props::new(), &filters));
        assert_eq!(conn.suback(1).codes, [0, 0, code]);
        assert_eq!(conn.subscribe("a", 0), 0, "replacing one is no new one");
        conn.publish("b", "p", 0);
        conn.expect("b", "p");
    }
}

/// [MQTT-4.5.0-1] [MQTT-4.3.2-4] [3.1.1 MQTT-4.5.0-1] What does not fit into a
/// waiting session's queue is refused with 0x97 and never acknowledged as
/// success: exactly the acknowledged messages arrive.
#[test]
fn a_message_that_is_acknowledged_is_kept() {
    let Some(broker) = Broker::with_config(REFUSE) else {
        return;
    };
    let sleeper = connect().lasting(300);
    let (mut conn, _) = Conn::connect_to(&broker, &sleeper);
    conn.subscribe("t", 1);
    conn.disconnect();
    let (mut publisher, _) = Conn::connect_to(&broker, &connect());
    let mut kept = Vec::new();
    for number in 1..=10u16 {
        publisher.send(
            Publish::new(V5, "t", number.to_string())
                .qos(1, number)
                .encode(),
        );
        match publisher.ack(first::PUBACK, number).code {
            0x00 => kept.push(number.to_string()),
            0x97 => {}
            code => publisher.fail("PUBACK 0x00 or 0x97", &code),
        }
    }
    assert_eq!(kept, ["1", "2", "3", "4", "5"]);
    let (mut conn, _) = Conn::connect_to(&broker, &sleeper);
    for payload in &kept {
        let message = conn.expect("t", payload);
        conn.acknowledge(&message);
    }
    conn.ping();
}

/// [3.1.1 MQTT-4.8.0-2] [3.1.1 MQTT-4.3.2-2] Before 5.0 there is no code to
/// refuse a message with: the connection is closed, and what was acknowledged
/// arrives.
#[test]
fn v311_publishers_are_closed_where_a_message_cannot_be_kept() {
    let Some(broker) = Broker::with_config(REFUSE) else {
        return;
    };
    let sleeper = Connect::new(V311, unique("c")).resume();
    let (mut conn, _) = Conn::connect_to(&broker, &sleeper);
    conn.subscribe("t", 1);
    conn.disconnect();
    let (mut publisher, _) = Conn::connect_to(&broker, &Connect::new(V311, unique("c")));
    for number in 1..=5u16 {
        publisher.send(
            Publish::new(V311, "t", number.to_string())
                .qos(1, number)
                .encode(),
        );
        publisher.ack(first::PUBACK, number);
    }
    publisher.send(Publish::new(V311, "t", "6").qos(1, 6).encode());
    publisher.closed();
    let (mut conn, _) = Conn::connect_to(&broker, &sleeper);
    for number in 1..=5 {
        let message = conn.expect("t", number.to_string());
        conn.acknowledge(&message);
    }
    conn.ping();
}

/// [MQTT-3.1.4-2] [MQTT-3.2.2-7] [3.1.1 MQTT-3.2.2-5] A client for which there
/// is no room is refused with a code that says so, and those inside stay.
#[test]
fn too_many_connections_are_refused() {
    let Some(broker) = Broker::with_config("[limits]\nmax_connections = 2\n") else {
        return;
    };
    let (mut one, _) = Conn::connect_to(&broker, &connect());
    let (two, _) = Conn::connect_to(&broker, &connect());
    for (level, codes) in [(V5, &[0x88, 0x89, 0x97, 0x9F][..]), (V311, &[0x03][..])] {
        let mut conn = Conn::open_to(&broker, level);
        conn.send(Connect::new(level, unique("c")).encode());
        match conn.next_or_end() {
            None => {}
            Some(Packet::ConnAck(connack)) if codes.contains(&connack.code) => conn.closed(),
            Some(other) => conn.fail("CONNACK that refuses, or the end", &other),
        }
    }
    one.ping();
    two.disconnect();
    Conn::connect_to(&broker, &connect()).0.ping();
}

/// A client that connects and says nothing, or half a CONNECT, is closed when
/// its time is up; the others are served meanwhile.
#[test]
fn a_client_that_never_finishes_connecting_is_closed() {
    let Some(broker) = Broker::with_config("[server]\nconnect_timeout = \"500ms\"\n") else {
        return;
    };
    let silent = Conn::open_to(&broker, V5);
    let mut half = Conn::open_to(&broker, V5);
    let bytes = connect().encode();
    half.send(&bytes[..bytes.len() - 1]);
    let (mut conn, _) = Conn::connect_to(&broker, &connect());
    silent.patient(15).closed();
    half.patient(15).closed();
    conn.ping();
}
