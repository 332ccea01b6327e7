//! A few MQTT 5 packets.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};

use super::PATIENCE;

/// A client.
pub(crate) struct Mqtt(TcpStream);

impl Mqtt {
    /// Connects with a new session that lasts `expiry` seconds longer than the
    /// connection.
    pub(crate) fn connect(broker: SocketAddr, client_id: &str, expiry: u32) -> Self {
        let stream = TcpStream::connect(broker).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut client = Self(stream);
        let mut body = b"\0\x04MQTT\x05\x02\0\x3c\x05\x11".to_vec();
        body.extend_from_slice(&expiry.to_be_bytes());
        body.extend_from_slice(&text(client_id));
        client.send(0x10, &body);
        let (first, body) = client.receive();
        assert_eq!((first, &body[..2]), (0x20, &b"\0\0"[..]));
        client
    }

    /// Subscribes with QoS 1.
    pub(crate) fn subscribe(&mut self, filter: &str) {
        let body = [b"\0\x01\0", &text(filter)[..], b"\x01"].concat();
        self.send(0x82, &body);
        assert_eq!(self.receive(), (0x90, b"\0\x01\0\x01".to_vec()));
    }

    /// Publishes a retained message with QoS 1.
    pub(crate) fn retain(&mut self, topic: &str, payload: &[u8]) {
        let body = [&text(topic)[..], b"\0\x02\0", payload].concat();
        self.send(0x33, &body);
        assert_eq!(self.receive().0, 0x40);
    }

    /// The first byte of the next packet, and its body.
    pub(crate) fn receive(&mut self) -> (u8, Vec<u8>) {
        let mut head = [0; 2];
        self.0.read_exact(&mut head).unwrap();
        let mut length = usize::from(head[1]);
        if head[1] >= 0x80 {
            let mut more = [0];
            self.0.read_exact(&mut more).unwrap();
            assert!(more[0] < 0x80, "no packet of these tests is that long");
            length = usize::from(head[1] & 0x7F) | usize::from(more[0]) << 7;
        }
        let mut body = vec![0; length];
        self.0.read_exact(&mut body).unwrap();
        (head[0], body)
    }

    /// Whether the broker has closed the connection.
    pub(crate) fn is_closed(&mut self) -> bool {
        self.0.read(&mut [0]).unwrap() == 0
    }

    /// Ends the connection, and waits for the broker to do so too.
    pub(crate) fn disconnect(mut self) {
        self.send(0xE0, b"");
        assert!(self.is_closed());
    }

    fn send(&mut self, first: u8, body: &[u8]) {
        let mut packet = vec![first];
        let mut length = body.len();
        while length >= 0x80 {
            packet.push(length as u8 | 0x80);
            length >>= 7;
        }
        packet.push(length as u8);
        packet.extend_from_slice(body);
        self.0.write_all(&packet).unwrap();
    }
}

fn text(text: &str) -> Vec<u8> {
    [&(text.len() as u16).to_be_bytes(), text.as_bytes()].concat()
}
