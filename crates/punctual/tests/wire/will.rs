//! Wills (sections 3.1.2.5, 3.1.3.2 and 3.14.4).

use std::net::TcpStream;

use crate::broker::Broker;
use crate::build::{
    Connect, Level, Props, Publish, V5, V31, V311, Will, disconnect, first, id, pingreq,
    with_reason,
};
use crate::conn::{Conn, Stream, unique};
use crate::fixture::let_pass;
use crate::websocket::WebSocket;

/// A client with that will, and a watcher of its topic.
struct Scene {
    topic: String,
    watcher: Conn,
    name: String,
    conn: Conn,
}

impl Scene {
    #[track_caller]
    fn new(level: Level, will: impl Fn(&str) -> Will) -> Self {
        Self::with(level, |name, topic| {
            Connect::new(level, name).will(will(topic))
        })
    }

    #[track_caller]
    fn with(level: Level, connect: impl Fn(&str, &str) -> Connect) -> Self {
        let (topic, name) = (unique("w"), unique("c"));
        let mut watcher = Conn::client(level);
        watcher.subscribe(&topic, 2);
        let (conn, _) = Conn::connect(&connect(&name, &topic));
        Self {
            topic,
            watcher,
            name,
            conn,
        }
    }

    /// No will was published: a marker comes first.
    #[track_caller]
    fn no_will(mut self) {
        Conn::client(V5).publish(&self.topic, "marker", 0);
        self.watcher.expect(&self.topic, "marker");
    }
}

fn plain(topic: &str) -> Will {
    Will::new(topic, "will")
}

/// [MQTT-3.1.2-7] [MQTT-3.1.2-8] [MQTT-3.1.2-10] [3.1.1 MQTT-3.1.2-8]
/// [3.1.1 MQTT-3.1.2-10] When the network fails the will is published, at its
/// QoS, and once.
#[test]
fn a_network_failure_publishes_the_will() {
    for level in [V31, V311, V5] {
        for qos in [0, 1, 2] {
            let mut scene = Scene::new(level, |topic| plain(topic).qos(qos));
            drop(scene.conn);
            let message = scene.watcher.expect(&scene.topic, "will");
            assert_eq!((message.qos, message.retain), (qos, false));
            scene.watcher.acknowledge(&message);
            let (conn, _) = Conn::connect(&Connect::new(level, &scene.name));
            scene.conn = conn;
            drop(scene.conn);
            Conn::client(level).publish(&scene.topic, "marker", 0);
            scene.watcher.expect(&scene.topic, "marker");
        }
    }
}

/// [MQTT-3.14.4-3] [MQTT-3.1.2-10] [MQTT-3.1.2-8] [3.1.1 MQTT-3.14.4-3]
/// [3.1.1 MQTT-3.1.2-10] A normal DISCONNECT discards the will.
#[test]
fn a_normal_disconnect_discards_the_will() {
    for level in [V31, V311, V5] {
        let mut scene = Scene::new(level, plain);
        scene.conn.send(disconnect());
        scene.conn.closed();
        scene.no_will();
    }
    let mut scene = Scene::new(V5, plain);
    scene
        .conn
        .send(with_reason(first::DISCONNECT, 0x00, &Props::new()));
    scene.conn.closed();
    scene.no_will();
}

/// [MQTT-3.14.4-3] The same for a client that closes with something unread, which
/// resets the connection: what came before the reset counts.
#[test]
fn a_disconnect_before_a_reset_discards_the_will() {
    let Some(broker) = Broker::with_config("[server]\nshards = 1\n") else {
        return;
    };
    let (mut watcher, _) = Conn::connect_to(&broker, &Connect::new(V5, "watcher"));
    watcher.subscribe("#", 0);
    // Also if something urgent is written to it before it is read, and over another layer.
    let cases = [(V311, false), (V5, false), (V311, true), (V5, true)];
    let addresses = [(broker.tcp(), false), (broker.ws().unwrap(), true)];
    for ((level, is_written), (address, is_web)) in cases
        .iter()
        .flat_map(|case| addresses.map(|address| (*case, address)))
    {
        let stream = TcpStream::connect(address).unwrap();
        let tcp = stream.try_clone().unwrap();
        let over: Box<dyn Stream> = match is_web {
            true => Box::new(WebSocket::upgrade(tcp, usize::MAX)),
            false => Box::new(tcp),
        };
        let mut leaver = Conn::over(over, &broker, level);
        leaver.send(Connect::new(level, "leaver").will(plain("w")).encode());
        leaver.connack();
        leaver.subscribe("urgent", 0);
        leaver.send(pingreq());
        // PINGRESP is there, and stays there.
        stream.peek(&mut [0]).unwrap();
        broker.while_held(|| {
            let urgent = Props::new().user("priority", "0");
            if is_written {
                watcher.send_publish(Publish::new(V5, "urgent", "").props(urgent), 0);
            }
            leaver.send(disconnect());
            drop((leaver, stream));
        });
        if is_written {
            watcher.expect("urgent", "");
        }
        watcher.publish("marker", "", 0);
        watcher.expect("marker", "");
    }
}

/// [MQTT-3.1.2-8] DISCONNECT with Will Message (0x04), and one with an error,
/// publish the will.
#[test]
fn other_disconnects_publish_the_will() {
    for code in [0x04, 0x80, 0x81, 0x82, 0x83, 0x97] {
        let mut scene = Scene::new(V5, plain);
        scene
            .conn
            .send(with_reason(first::DISCONNECT, code, &Props::new()));
        scene.conn.closed();
        scene.watcher.expect(&scene.topic, "will");
    }
}

/// [MQTT-3.1.2-8] [3.1.1 MQTT-3.1.2-8] A protocol error publishes the will.
#[test]
fn a_protocol_error_publishes_the_will() {
    for level in [V311, V5] {
        let mut scene = Scene::new(level, plain);
        scene.conn.send([first::SUBSCRIBE & 0xF0, 0]);
        scene.conn.error(&[0x81]);
        scene.watcher.expect(&scene.topic, "will");
    }
}

/// [MQTT-3.1.2-8] [MQTT-3.1.4-3] [3.1.1 MQTT-3.1.2-8] Taking over a session
/// that ends with it publishes the old connection's will.
#[test]
fn a_takeover_publishes_the_will() {
    for level in [V311, V5] {
        let mut scene = Scene::new(level, plain);
        let (mut new, _) = Conn::connect(&Connect::new(level, &scene.name));
        scene.conn.error(&[0x8E]);
        scene.watcher.expect(&scene.topic, "will");
        new.ping();
    }
}

/// [3.1.1 MQTT-3.1.2-12] [MQTT-3.1.2-11] Without the flag there is no will.
#[test]
fn without_a_will_nothing_is_published() {
    for level in [V311, V5] {
        let scene = Scene::with(level, |name, _| Connect::new(level, name));
        let mut conn = scene.conn;
        conn.send([first::SUBSCRIBE & 0xF0, 0]);
        conn.error(&[0x81]);
        let scene = Scene { conn, ..scene };
        scene.no_will();
    }
}

/// [MQTT-3.1.2-14] [MQTT-3.1.2-15] [3.1.1 MQTT-3.1.2-16]
/// [3.1.1 MQTT-3.1.2-17] Will Retain decides whether the will is retained.
#[test]
fn will_retain_decides_about_retaining() {
    for level in [V311, V5] {
        for retain in [false, true] {
            let mut scene = Scene::new(level, |topic| match retain {
                true => plain(topic).retain(),
                false => plain(topic),
            });
            drop(scene.conn);
            assert!(!scene.watcher.expect(&scene.topic, "will").retain);
            let mut late = Conn::client(level);
            late.subscribe(&scene.topic, 0);
            if retain {
                assert!(late.expect(&scene.topic, "will").retain);
            }
            late.ping();
            Conn::client(level).retain(&scene.topic, "", 0);
        }
    }
}

/// An empty will is a message like any other.
#[test]
fn an_empty_will_is_published() {
    for level in [V311, V5] {
        let mut scene = Scene::new(level, |topic| Will::new(topic, ""));
        drop(scene.conn);
        scene.watcher.expect(&scene.topic, "");
    }
}

/// [MQTT-3.1.3-10] The will keeps its properties, user properties in order;
/// the delay is not among them.
#[test]
fn the_will_keeps_its_properties() {
    let mut scene = Scene::new(V5, |topic| {
        let props = Props::new()
            .user("b", "1")
            .byte(id::PAYLOAD_FORMAT, 1)
            .four(id::MESSAGE_EXPIRY, 600)
            .field(id::CONTENT_TYPE, "text/plain")
            .field(id::RESPONSE_TOPIC, "reply")
            .field(id::CORRELATION_DATA, [0, 9])
            .user("a", "2")
            .user("b", "1");
        plain(topic).props(props)
    });
    drop(scene.conn);
    let got = scene.watcher.expect(&scene.topic, "will").props;
    assert_eq!(got.number(id::PAYLOAD_FORMAT), Some(1));
    assert!(
        got.number(id::MESSAGE_EXPIRY)
            .is_some_and(|left| left <= 600)
    );
    assert_eq!(got.text(id::CONTENT_TYPE), Some("text/plain"));
    assert_eq!(got.text(id::RESPONSE_TOPIC), Some("reply"));
    assert_eq!(got.data(id::CORRELATION_DATA), Some(&[0, 9][..]));
    assert_eq!(got.user(), [("b", "1"), ("a", "2"), ("b", "1")]);
}

/// [MQTT-3.1.2-8] A will with a delay waits for it: another with a shorter
/// delay, left behind later, comes first.
#[test]
fn a_delayed_will_waits() {
    let mut scene = Scene::with(V5, |name, topic| {
        Connect::new(V5, name)
            .lasting(300)
            .will(plain(topic).delay(4))
    });
    drop(scene.conn);
    let topic = scene.topic.clone();
    let sooner = Connect::new(V5, unique("c")).lasting(300);
    drop(Conn::connect(
        &sooner.will(Will::new(&topic, "sooner").delay(1)),
    ));
    let mut watcher = scene.watcher.patient(15);
    watcher.expect(&topic, "sooner");
    watcher.expect(&topic, "will");
    scene.conn = watcher;
}

/// [MQTT-3.1.3-9] [MQTT-3.1.2-8] A client that returns to its session before
/// the delay has passed has no will published.
#[test]
fn returning_before_the_delay_cancels_the_will() {
    let connect = |name: &str| Connect::new(V5, name).lasting(300);
    let mut scene = Scene::with(V5, |name, topic| connect(name).will(plain(topic).delay(2)));
    let (conn, connack) = Conn::connect(&connect(&scene.name));
    assert!(connack.session_present);
    scene.conn.error(&[0x8E]);
    scene.conn = conn;
    let_pass(4);
    scene.no_will();
}

/// [MQTT-3.1.2-8] The will comes at the latest when the session ends, before
/// its delay has passed: with the connection, by a clean start, or by expiry.
#[test]
fn the_end_of_the_session_publishes_a_delayed_will() {
    let delayed = |topic: &str| plain(topic).delay(3000);
    let mut scene = Scene::new(V5, delayed);
    drop(scene.conn);
    scene.watcher.expect(&scene.topic, "will");

    let mut scene = Scene::with(V5, |name, topic| {
        Connect::new(V5, name).lasting(300).will(delayed(topic))
    });
    drop(scene.conn);
    let (_conn, _) = Conn::connect(&Connect::new(V5, &scene.name));
    scene.watcher.expect(&scene.topic, "will");

    let scene = Scene::with(V5, |name, topic| {
        Connect::new(V5, name).lasting(1).will(delayed(topic))
    });
    drop(scene.conn);
    scene.watcher.patient(15).expect(&scene.topic, "will");
}

/// [MQTT-3.1.2-10] A new connection without a will has none, whatever the
/// session's earlier connections had.
#[test]
fn a_will_does_not_outlive_its_connection() {
    for level in [V311, V5] {
        let mut scene = Scene::with(level, |name, topic| {
            Connect::new(level, name).lasting(300).will(plain(topic))
        });
        scene.conn.send(disconnect());
        scene.conn.closed();
        let connect = Connect::new(level, &scene.name).lasting(300);
        let (mut conn, _) = Conn::connect(&connect);
        conn.send([first::SUBSCRIBE & 0xF0, 0]);
        conn.error(&[0x81]);
        scene.conn = conn;
        scene.no_will();
    }
}
