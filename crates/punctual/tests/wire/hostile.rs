//! Clients that mean harm, or are broken in ways of their own: the broker
//! reacts to them alone, and a bystander is served as before.

use punctual_model::Rng;

use crate::build::{Connect, Props, Publish, V5, V311, first, id, subscribe};
use crate::conn::{Conn, unique};
use crate::fixture::{Bystander, pair};

/// Bytes that look random.
fn noise(rng: &mut Rng, count: usize) -> Vec<u8> {
    (0..count).map(|_| rng.any() as u8).collect()
}

/// [MQTT-4.13.1-1] [MQTT-3.1.0-1] [3.1.1 MQTT-4.8.0-1] Noise, before CONNECT
/// and after it, harms nobody.
#[test]
fn noise_harms_nobody() {
    let mut bystander = Bystander::new();
    let mut rng = Rng::new(1);
    for level in [V311, V5] {
        for _ in 0..100 {
            let size = rng.index(300);
            Conn::open(level).send(noise(&mut rng, size));
            Conn::client(level).send(noise(&mut rng, size));
        }
        bystander.check();
    }
}

/// [MQTT-4.13.1-1] [3.1.1 MQTT-4.8.0-1] Good packets with one byte changed harm
/// nobody, whatever they become.
#[test]
fn changed_bytes_harm_nobody() {
    let mut bystander = Bystander::new();
    let mut rng = Rng::new(2);
    for level in [V311, V5] {
        let props = Props::new().user("name", "value");
        // Names of this test alone, so that no other test sees what comes of it.
        let name = unique("noise");
        let mut good = Connect::new(level, &name).user("u").password("p").encode();
        let connect = good.len();
        good.extend(subscribe(level, 1, &Props::new(), &[(&name, 1)]));
        good.extend(
            Publish::new(level, &name, "p")
                .qos(1, 2)
                .props(props)
                .encode(),
        );
        for at in 0..good.len() {
            let mut bytes = good.clone();
            bytes[at] = rng.any() as u8;
            let mut conn = Conn::open(level);
            conn.send(&bytes[..connect]);
            conn.send(&bytes[connect..]);
        }
        bystander.check();
    }
}

/// A few hundred connections that say nothing keep nobody out.
#[test]
fn silent_connections_keep_nobody_out() {
    let mut bystander = Bystander::new();
    let silent: Vec<Conn> = (0..300).map(|_| Conn::open(V5)).collect();
    bystander.check();
    drop(silent);
    bystander.check();
}

/// A hundred clients under one identifier throw each other out, and the last
/// one stays.
#[test]
fn a_crowd_under_one_identifier_leaves_one() {
    let mut bystander = Bystander::new();
    let connect = Connect::new(V5, unique("c")).lasting(60);
    let mut crowd: Vec<Conn> = (0..100).map(|_| Conn::connect(&connect).0).collect();
    let mut last = crowd.pop().expect("a hundred");
    for mut thrown_out in crowd {
        thrown_out.error(&[0x8E]);
    }
    last.ping();
    bystander.check();
}

/// [MQTT-4.5.0-1] A subscriber that never reads does not keep messages from the
/// others, nor the publisher from going on.
#[test]
fn a_subscriber_that_never_reads_harms_nobody() {
    for level in [V311, V5] {
        let mut bystander = Bystander::new();
        let (reader, publisher, topic) = pair(level);
        let mut stuck = Conn::client(level);
        stuck.subscribe(&topic, 0);
        let payload = "x".repeat(20_000);
        let reading = std::thread::spawn(move || {
            let mut reader = reader.patient(60);
            while reader.message().payload != b"end" {}
            reader
        });
        let mut publisher = publisher.patient(60);
        for _ in 0..500 {
            publisher.publish(&topic, &payload, 0);
        }
        bystander.check();
        publisher.publish(&topic, "end", 1);
        reading.join().expect("the reader got the end").ping();
        bystander.check();
        drop(stuck);
    }
}

/// [MQTT-3.1.4-1] A CONNECT that announces more than anybody would need is not
/// waited for.
#[test]
fn an_enormous_connect_is_rejected() {
    let mut bystander = Bystander::new();
    for level in [V311, V5] {
        let mut conn = Conn::open(level);
        conn.send([first::CONNECT, 0xFF, 0xFF, 0xFF, 0x7F]);
        conn.rejected();
        bystander.check();
    }
}

/// [MQTT-3.3.2-17] [MQTT-3.3.2-18] Hundreds of user properties are carried, or
/// refused by name.
#[test]
fn many_user_properties_are_carried() {
    let (mut subscriber, mut publisher, topic) = pair(V5);
    let mut props = Props::new();
    for number in 0..500 {
        props = props.user("name", number.to_string());
    }
    publisher.send_publish(Publish::new(V5, &topic, "p").props(props), 1);
    let message = subscriber.expect(&topic, "p");
    let got = message.props.user();
    assert_eq!(got.len(), 500);
    for (number, (name, value)) in got.iter().enumerate() {
        assert_eq!((*name, *value), ("name", number.to_string().as_str()));
    }
}

/// [MQTT-4.1.0-2] Hundreds of sessions that come and go leave nothing in the
/// way of the next.
#[test]
fn sessions_come_and_go() {
    let mut bystander = Bystander::new();
    let name = unique("c");
    for round in 0..200 {
        let connect = Connect::new(V5, format!("{name}x{}", round % 10));
        let lasting = connect.props(Props::new().four(id::SESSION_EXPIRY, round % 3));
        let (mut conn, connack) = Conn::connect(&lasting);
        assert!(!connack.session_present);
        conn.subscribe(&unique("t"), 1);
        if round % 2 == 0 {
            conn.disconnect();
        }
    }
    bystander.check();
}
