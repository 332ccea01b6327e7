//! Clients: two that talk to each other, and bytes for those that do not.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use punctual_client::{Client, Config, Endpoint, Event, Message, Options, Scheme};
use punctual_codec::{Connect, PropertyBuf, Publish, QoS, Subscribe, SubscribeOptions, Version};

use crate::broker::{Broker, PATIENCE};

/// Two clients; what one publishes the other gets.
pub(crate) struct Pair {
    publisher: Client,
    subscriber: Client,
    topic: String,
    exchanged: u32,
}

impl Pair {
    /// Both connect, under names that begin with `name`.
    pub(crate) fn new(broker: &Broker, name: &str) -> Self {
        Self::at(broker.tcp.port(), name)
    }

    /// The same at a port of this machine.
    pub(crate) fn at(port: u16, name: &str) -> Self {
        Self::by(Scheme::Tcp, port, name)
    }

    /// The same by another transport.
    pub(crate) fn by(scheme: Scheme, port: u16, name: &str) -> Self {
        let mut subscriber = client(scheme, port, &format!("{name}-subscriber"));
        let topic = format!("{name}/talk");
        let options = SubscribeOptions {
            qos: QoS::AtLeastOnce,
            ..SubscribeOptions::default()
        };
        subscriber
            .subscribe(&[(&topic, options)], &PropertyBuf::new())
            .unwrap();
        let granted = next(&mut subscriber, |event| match event {
            Event::Subscribed { reasons, .. } => Some(reasons[0]),
            _ => None,
        });
        assert!(!granted.is_error(), "{granted}");
        Self {
            publisher: client(scheme, port, &format!("{name}-publisher")),
            subscriber,
            topic,
            exchanged: 0,
        }
    }

    /// A message is published, acknowledged and received, and it is the next
    /// one.
    pub(crate) fn exchange(&mut self) {
        self.exchanged += 1;
        let payload = self.exchanged.to_string();
        let message = Message::new(&self.topic, payload.as_bytes()).qos(QoS::AtLeastOnce);
        self.hand_over(&message);
        let reason = next(&mut self.publisher, |event| match event {
            Event::Published { reason, .. } => Some(reason),
            _ => None,
        });
        assert!(!reason.is_error(), "{reason}");
    }

    /// The same with QoS 0, and with a priority.
    pub(crate) fn exchange_urgent(&mut self) {
        self.exchange_with(&[("priority", "1")]);
    }

    /// The same with QoS 0 and a deadline, past which it is not sent.
    pub(crate) fn exchange_due(&mut self, deadline: &str) {
        self.exchange_with(&[("rt-deadline", deadline), ("rt-late", "drop")]);
    }

    fn exchange_with(&mut self, properties: &[(&str, &str)]) {
        self.exchanged += 1;
        let payload = self.exchanged.to_string();
        let mut message = Message::new(&self.topic, payload.as_bytes());
        for (name, value) in properties {
            message.properties.push_user(name, value).unwrap();
        }
        self.hand_over(&message);
    }

    fn hand_over(&mut self, message: &Message) {
        self.publisher.publish(message).unwrap();
        let got = next(&mut self.subscriber, |event| match event {
            Event::Message(delivery) => Some(delivery.message.payload),
            _ => None,
        });
        assert_eq!(got, message.payload);
    }
}

/// One without a session that survives.
pub(crate) fn client(scheme: Scheme, port: u16, client_id: &str) -> Client {
    let options = Options {
        endpoint: Endpoint {
            port,
            timeout: PATIENCE,
            ..Endpoint::new(scheme, "127.0.0.1")
        },
        config: Config {
            client_id: client_id.to_owned(),
            // Nobody looks after it between two exchanges.
            keep_alive: 0,
            ..Config::default()
        },
        reconnect: None,
    };
    Client::connect(options).unwrap().0
}

fn next<T>(client: &mut Client, mut wanted: impl FnMut(Event) -> Option<T>) -> T {
    loop {
        let event = client.next(Some(PATIENCE)).unwrap();
        if let Some(found) = wanted(event.expect("an event in time")) {
            return found;
        }
    }
}

/// A connection that has said nothing.
pub(crate) fn open(broker: &Broker) -> TcpStream {
    let stream = TcpStream::connect(broker.tcp).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// A connection that was accepted, without anything that keeps it alive.
pub(crate) fn connected(broker: &Broker, client_id: &str) -> TcpStream {
    let mut stream = open(broker);
    stream.write_all(&connect_packet(client_id)).unwrap();
    expect(&mut stream, &[0x20, 2, 0, 0]);
    stream
}

/// A connection that has subscribed with QoS 0.
pub(crate) fn subscribed(broker: &Broker, client_id: &str, filter: &str) -> TcpStream {
    let mut stream = connected(broker, client_id);
    let mut packet = Vec::new();
    let filters = [(filter, SubscribeOptions::default())];
    let none = PropertyBuf::new();
    Subscribe::put(
        1,
        none.as_properties(),
        &filters,
        Version::V311,
        &mut packet,
    )
    .unwrap();
    stream.write_all(&packet).unwrap();
    expect(&mut stream, &[0x90, 3, 0, 1, 0]);
    stream
}

/// Reads exactly these bytes.
pub(crate) fn expect(stream: &mut TcpStream, bytes: &[u8]) {
    let mut got = vec![0; bytes.len()];
    stream.read_exact(&mut got).unwrap();
    assert_eq!(got, bytes);
}

/// CONNECT of MQTT 3.1.1 for a clean session, without keep-alive.
pub(crate) fn connect_packet(client_id: &str) -> Vec<u8> {
    let mut packet = Vec::new();
    let connect = Connect {
        version: Version::V311,
        clean_start: true,
        keep_alive: 0,
        client_id,
        will: None,
        username: None,
        password: None,
        properties: Default::default(),
    };
    connect.encode(&mut packet).unwrap();
    packet
}

/// PUBLISH of MQTT 3.1.1, with QoS 0 or, with a packet identifier, 1.
pub(crate) fn publish_packet(topic: &str, payload: &[u8], packet_id: Option<u16>) -> Vec<u8> {
    let mut packet = Vec::new();
    let publish = Publish {
        dup: false,
        qos: match packet_id {
            Some(_) => QoS::AtLeastOnce,
            None => QoS::AtMostOnce,
        },
        retain: false,
        topic,
        packet_id: packet_id.unwrap_or(0),
        properties: Default::default(),
        payload,
    };
    publish.encode(Version::V311, &mut packet).unwrap();
    packet
}
