//! The least of MQTT 5 that these tests need, over a blocking socket.

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::Duration;

use punctual_testbed::netns::Namespace;

use crate::broker::PORT;

/// How long anything may take before a test fails.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A connected client.
pub(crate) struct Client {
    stream: TcpStream,
}

impl Client {
    /// Connects from `host` to the broker at `address`.
    pub(crate) fn connect(host: &Namespace, address: IpAddr, id: &str) -> Self {
        Self::connect_with(host, address, id, &[])
    }

    /// Connects with user properties.
    pub(crate) fn connect_with(
        host: &Namespace,
        address: IpAddr,
        id: &str,
        properties: &[(&str, &str)],
    ) -> Self {
        let to = SocketAddr::new(address, PORT);
        let stream = host.enter(|| TcpStream::connect(to)).unwrap().unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut client = Self { stream };
        let mut body = text("MQTT");
        body.extend([5, 2, 0, 0]);
        body.extend(user_properties(properties));
        body.extend(text(id));
        client.send(0x10, &body);
        let (first, body) = client.receive();
        assert_eq!((first, body[1]), (0x20, 0), "CONNACK");
        client
    }

    /// Subscribes at QoS 0.
    pub(crate) fn subscribe(&mut self, filter: &str) {
        let mut body = vec![0, 1, 0];
        body.extend(text(filter));
        body.push(0);
        self.send(0x82, &body);
        let (first, body) = self.receive();
        assert_eq!((first, body.last()), (0x90, Some(&0)), "SUBACK");
    }

    /// Publishes at QoS 0 with user properties.
    pub(crate) fn publish(&mut self, topic: &str, properties: &[(&str, &str)], payload: &str) {
        let mut body = text(topic);
        body.extend(user_properties(properties));
        body.extend(payload.as_bytes());
        self.send(0x30, &body);
    }

    /// Waits for a message that ends with `payload`.
    pub(crate) fn expect(&mut self, payload: &str) {
        assert!(self.next_ends_with(payload));
    }

    /// Waits for a message; whether it ends with `payload`.
    pub(crate) fn next_ends_with(&mut self, payload: &str) -> bool {
        let (first, body) = self.receive();
        assert_eq!(first >> 4, 3, "PUBLISH");
        body.ends_with(payload.as_bytes())
    }

    /// The client's port.
    pub(crate) fn port(&self) -> u16 {
        self.stream.local_addr().unwrap().port()
    }

    fn send(&mut self, first: u8, body: &[u8]) {
        let mut packet = vec![first];
        packet.extend(length(body.len()));
        packet.extend(body);
        self.stream.write_all(&packet).unwrap();
    }

    fn receive(&mut self) -> (u8, Vec<u8>) {
        let mut byte = [0];
        self.stream.read_exact(&mut byte).unwrap();
        let first = byte[0];
        let (mut size, mut shift) = (0, 0);
        loop {
            self.stream.read_exact(&mut byte).unwrap();
            size |= usize::from(byte[0] & 0x7f) << shift;
            shift += 7;
            if byte[0] < 0x80 {
                break;
            }
        }
        let mut body = vec![0; size];
        self.stream.read_exact(&mut body).unwrap();
        (first, body)
    }
}

fn user_properties(properties: &[(&str, &str)]) -> Vec<u8> {
    let mut encoded = Vec::new();
    for (key, value) in properties {
        encoded.push(0x26);
        encoded.extend(text(key));
        encoded.extend(text(value));
    }
    [length(encoded.len()), encoded].concat()
}

fn text(text: &str) -> Vec<u8> {
    let mut bytes = (text.len() as u16).to_be_bytes().to_vec();
    bytes.extend(text.as_bytes());
    bytes
}

fn length(mut value: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    while value > 0x7f {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
    bytes
}
