//! A blocking MQTT client connection, for one thread each: packets are sent at once, received
//! packets are handed on one by one, and QoS 1 publications are acknowledged.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use punctual_measure::wire::{self, Frame, Version, kind};
use punctual_measure::{Error, Result};

/// MQTT version of these clients.
pub(crate) const VERSION: Version = Version::V311;

/// A TCP connection, with the client's name for error messages.
pub(crate) struct Connection {
    name: String,
    stream: TcpStream,
    /// Received bytes of a packet that is not complete yet.
    bytes: Vec<u8>,
}

impl Connection {
    pub(crate) fn new(name: String, stream: std::io::Result<TcpStream>) -> Result<Self> {
        let stream = stream.and_then(|stream| stream.set_nodelay(true).map(|()| stream));
        let stream = stream.map_err(Error::io(format!("cannot connect (client {name})")))?;
        Ok(Self {
            name,
            stream,
            bytes: Vec::new(),
        })
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Gives up the TCP stream of the connection.
    pub(crate) fn into_stream(self) -> TcpStream {
        self.stream
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) -> Result<()> {
        let context = format!("cannot send (client {})", self.name);
        self.stream.write_all(bytes).map_err(Error::io(context))
    }

    /// Waits up to `patience` for received bytes; returns false on a timeout. Calls `take` with
    /// each complete packet: its first byte, and the bytes after the remaining length.
    pub(crate) fn read(
        &mut self,
        patience: Duration,
        mut take: impl FnMut(u8, &[u8]),
    ) -> Result<bool> {
        let mut chunk = [0; 64 << 10];
        let timeout = self.stream.set_read_timeout(Some(patience));
        match timeout.and_then(|()| self.stream.read(&mut chunk)) {
            Ok(0) => return Err(self.failure("closed the connection")),
            Ok(len) => self.bytes.extend_from_slice(&chunk[..len]),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                return Ok(false);
            }
            Err(error) => {
                let context = format!("cannot read (client {})", self.name);
                return Err(Error::io(context)(error));
            }
        }
        let (mut at, mut acks) = (0, Vec::new());
        while let Frame::Packet { first, body, end } = wire::frame(&self.bytes[at..]) {
            let body = &self.bytes[at + body..at + end];
            if first >> 4 == kind::PUBLISH
                && let Some(publish) = wire::publish(first, body, VERSION)
                && publish.qos == 1
            {
                wire::put_ack(&mut acks, kind::PUBACK, publish.id);
            }
            take(first, body);
            at += end;
        }
        self.bytes.drain(..at);
        if !acks.is_empty() {
            self.send(&acks)?;
        }
        Ok(true)
    }

    pub(crate) fn failure(&self, what: &str) -> Error {
        Error::Broker {
            client: self.name.clone(),
            what: what.to_owned(),
        }
    }
}
