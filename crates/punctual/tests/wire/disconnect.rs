//! DISCONNECT (section 3.14). What it does to wills and sessions is tested
//! with those; that its reserved bits are checked, with malformed packets.

use crate::broker::Broker;
use crate::build::{
    Connect, Props, Publish, V5, V31, V311, disconnect, first, id, pingreq, with_reason,
};
use crate::conn::{Conn, unique};
use crate::fixture::{EITHER, PROTOCOL, each_is_an_error, pair};

/// [MQTT-3.14.4-2] [3.1.1 MQTT-3.14.4-1] After DISCONNECT the connection ends,
/// without an answer.
#[test]
fn disconnect_has_no_answer() {
    for level in [V31, V311, V5] {
        Conn::client(level).disconnect();
    }
    for code in [0x00, 0x04, 0x80, 0x83, 0x97] {
        let mut conn = Conn::client(V5);
        let props = Props::new().field(id::REASON_STRING, "why").user("a", "b");
        conn.send(with_reason(first::DISCONNECT, code, &props));
        conn.closed();
    }
}

/// [MQTT-3.14.4-1] [3.1.1 MQTT-3.14.4-2] What follows DISCONNECT is not
/// processed.
#[test]
fn nothing_behind_disconnect_is_processed() {
    for level in [V311, V5] {
        let (mut subscriber, mut publisher, topic) = pair(level);
        let mut conn = Conn::client(level);
        let mut bytes = disconnect();
        bytes.extend(Publish::new(level, &topic, "late").encode());
        conn.send(bytes);
        conn.closed();
        publisher.publish(&topic, "marker", 0);
        subscriber.expect(&topic, "marker");
    }
}

/// [MQTT-3.14.4-1] [MQTT-3.14.4-2] [MQTT-3.14.2-1] [MQTT-4.13.2-1]
/// [MQTT-3.14.2-2] The server's own DISCONNECT is its last packet: the
/// connection ends, and a request sent with the error is not answered.
#[test]
fn the_servers_disconnect_is_its_last_packet() {
    let mut conn = Conn::client(V5);
    let mut bytes = Publish::new(V5, "a/#", "p").encode();
    bytes.extend(pingreq());
    conn.send(bytes);
    if let Some(reason) = conn.error(&[0x81, 0x82, 0x90]) {
        assert!(!reason.props.has(id::SERVER_REFERENCE), "{reason:?}");
    }
}

/// [MQTT-3.14.2-1] [MQTT-3.14.4-1] [MQTT-3.14.4-2] A server that is told to stop
/// says so (0x8B) and closes; before 5.0 it closes.
#[test]
fn a_server_that_stops_says_so() {
    let Some(broker) = Broker::with_config("") else {
        return;
    };
    let mut clients = [V31, V311, V5].map(|level| {
        let connect = Connect::new(level, unique("c"));
        let mut conn = Conn::connect_to(&broker, &connect).0;
        conn.ping();
        conn
    });
    broker.stop();
    for conn in &mut clients {
        conn.error(&[0x8B]);
    }
}

/// [MQTT-3.14.2-3] [MQTT-3.14.2-4] [MQTT-3.1.2-24] The server's DISCONNECT fits
/// the client's maximum packet size.
#[test]
fn the_servers_disconnect_fits() {
    for limit in [24, 32, 48] {
        let connect = Connect::new(V5, unique("c")).max_packet(limit);
        let (mut conn, _) = Conn::connect(&connect);
        conn.send(Publish::new(V5, "a/#", "p").encode());
        conn.error(&[0x81, 0x82, 0x90]);
    }
}

/// [MQTT-4.13.1-1] Codes and properties of DISCONNECT that are the server's
/// alone are errors from a client.
#[test]
fn what_only_a_server_may_say_is_refused() {
    let reference = Props::new().field(id::SERVER_REFERENCE, "elsewhere");
    let twice = Props::new()
        .four(id::SESSION_EXPIRY, 0)
        .four(id::SESSION_EXPIRY, 0);
    let cases = [
        (
            "server reference",
            with_reason(first::DISCONNECT, 0, &reference),
        ),
        (
            "session expiry twice",
            with_reason(first::DISCONNECT, 0, &twice),
        ),
    ];
    each_is_an_error(V5, EITHER, &cases[..1]);
    each_is_an_error(V5, PROTOCOL, &cases[1..]);
}
