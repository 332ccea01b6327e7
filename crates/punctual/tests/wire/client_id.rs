//! Client identifiers (section 3.1.3.1).

use crate::build::{Connect, V5, V31, V311, id};
use crate::conn::{Conn, unique};

/// [MQTT-3.1.3-5] [3.1.1 MQTT-3.1.3-5] Identifiers of 1 to 23 letters and
/// digits are all allowed.
#[test]
fn short_alphanumeric_identifiers_are_allowed() {
    const ALL: &str = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
    for level in [V31, V311, V5] {
        let names = ALL.as_bytes().chunks(23).chain([&b"Z"[..]]);
        for name in names {
            let (mut conn, _) = Conn::connect(&Connect::new(level, name));
            conn.ping();
            conn.disconnect();
        }
    }
}

/// [MQTT-3.1.3-2] [3.1.1 MQTT-3.1.3-2] The identifier names the session: each
/// client finds its own again, byte for byte.
#[test]
fn the_identifier_names_the_session() {
    for level in [V311, V5] {
        let name = unique("Id");
        let other = name.to_lowercase();
        let (conn, _) = Conn::connect(&Connect::new(level, &name).lasting(300));
        conn.disconnect();
        let (conn, connack) = Conn::connect(&Connect::new(level, &other).lasting(300));
        assert!(
            !connack.session_present,
            "{other} found the session of {name}"
        );
        conn.disconnect();
        let (_conn, connack) = Conn::connect(&Connect::new(level, &name).lasting(0));
        assert!(connack.session_present, "{name} lost its session");
    }
}

/// [MQTT-3.1.3-6] [MQTT-3.1.3-7] [MQTT-3.2.2-16] [3.1.1 MQTT-3.1.3-6] An empty
/// identifier gets a unique one assigned, which 5.0 reports: two such clients
/// live side by side.
#[test]
fn an_empty_identifier_gets_a_unique_one() {
    for level in [V311, V5] {
        let (mut one, first) = Conn::connect(&Connect::new(level, ""));
        let (mut two, second) = Conn::connect(&Connect::new(level, ""));
        one.ping();
        two.ping();
        if level == V5 {
            let first = first.props.text(id::ASSIGNED_CLIENT_ID);
            let second = second.props.text(id::ASSIGNED_CLIENT_ID);
            assert!(first.is_some_and(|name| !name.is_empty()), "{first:?}");
            assert_ne!(first, second);
        }
    }
}

/// [MQTT-3.1.3-7] The session belongs to the assigned identifier: a client
/// that uses it later finds the session again, also when it began with clean
/// start off.
#[test]
fn an_assigned_identifier_can_be_used_again() {
    let (conn, connack) = Conn::connect(&Connect::new(V5, "").lasting(300));
    assert!(!connack.session_present);
    let name = connack.props.text(id::ASSIGNED_CLIENT_ID);
    let name = name.expect("an assigned identifier").to_owned();
    conn.disconnect();
    let (_conn, connack) = Conn::connect(&Connect::new(V5, &name).lasting(0));
    assert!(connack.session_present);
    assert!(!connack.props.has(id::ASSIGNED_CLIENT_ID));
}

/// [3.1.1 MQTT-3.1.3-8] [3.1.1 MQTT-3.1.3-9] [3.1.1 MQTT-3.1.3-7]
/// [3.1.1 MQTT-3.2.2-4] [3.1.1 MQTT-3.2.2-5] In 3.1.1 an empty identifier
/// cannot ask for a lasting session: identifier rejected (0x02), and the end.
#[test]
fn v311_refuses_an_empty_identifier_without_clean_session() {
    let mut conn = Conn::open(V311);
    conn.send(Connect::new(V311, "").resume().encode());
    conn.refused(&[0x02]);
}

/// [MQTT-3.1.3-8] [MQTT-3.2.2-7] An identifier that the server does not take
/// is refused with 0x85 and the end; one that it takes works.
#[test]
fn a_long_identifier_is_taken_or_refused_by_name() {
    for length in [24, 256, 65_535] {
        let name = format!("{}{}", unique("long"), "x".repeat(length));
        let mut conn = Conn::open(V5);
        conn.send(Connect::new(V5, &name[..length]).encode());
        match conn.connack().code {
            0x00 => conn.ping(),
            0x85 => conn.closed(),
            code => conn.fail("CONNACK 0x00 or 0x85", &code),
        }
    }
}
