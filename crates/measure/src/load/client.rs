//! One client connection of the generator: blocking handshake, then batched traffic.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use super::publisher::PacketIds;
use super::track::Track;
use crate::error::{Error, Result};
use crate::io::{self, Outbox, Tail};
use crate::wire::{self, Connack, Frame, Version, kind};

/// Longest wait for CONNACK or SUBACK.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// Who connects and what it subscribes to.
pub struct Handshake<'a> {
    /// Where the broker listens.
    pub address: SocketAddr,
    /// Protocol version.
    pub version: Version,
    /// Client identifier.
    pub client_id: &'a str,
    /// Filters to subscribe to; none sends no SUBSCRIBE.
    pub filters: &'a [String],
    /// QoS of the subscriptions.
    pub qos: u8,
    /// The session outlives the connection, and is taken up if it is there.
    pub persistent: bool,
}

impl Handshake<'_> {
    /// Connects, subscribes if there is something to subscribe to, and leaves the socket
    /// non-blocking.
    pub fn run(&self) -> Result<(TcpStream, Connack)> {
        let context = format!(
            "cannot connect (client {}, {})",
            self.client_id, self.address
        );
        self.greet(TcpStream::connect(self.address).map_err(Error::io(context))?)
    }

    /// The same with a connection that is there.
    pub fn greet(&self, mut stream: TcpStream) -> Result<(TcpStream, Connack)> {
        let context = |what: &str| format!("{what} (client {}, {})", self.client_id, self.address);
        io::prepare(&stream)
            .and_then(|()| stream.set_nonblocking(false))
            .and_then(|()| stream.set_read_timeout(Some(ANSWER_TIMEOUT)))
            .map_err(Error::io(context("cannot prepare a socket")))?;

        let mut request = Vec::with_capacity(64);
        wire::put_connect_with(&mut request, self.version, self.client_id, self.persistent);
        let body = self.exchange(&mut stream, &request, kind::CONNACK, "CONNACK")?;
        let connack = wire::connack(&body, self.version)
            .ok_or_else(|| self.refusal("sent a malformed CONNACK"))?;
        if connack.code != 0 {
            return Err(self.refusal(&format!(
                "refused the connection with code {:#04x}",
                connack.code
            )));
        }

        if !self.filters.is_empty() {
            request.clear();
            wire::put_subscribe(&mut request, self.version, 1, self.filters, self.qos);
            let body = self.exchange(&mut stream, &request, kind::SUBACK, "SUBACK")?;
            // The granted values are the last bytes in both versions.
            let granted = body.len().checked_sub(self.filters.len());
            let granted = granted.and_then(|at| body.get(at..)).unwrap_or(&[]);
            if granted.is_empty() || granted.iter().any(|&code| code != self.qos) {
                return Err(self.refusal(&format!(
                    "granted {granted:02x?} for a subscription at QoS {}",
                    self.qos
                )));
            }
        }
        stream
            .set_nonblocking(true)
            .map_err(Error::io(context("cannot set a socket non-blocking")))?;
        Ok((stream, connack))
    }

    fn exchange(
        &self,
        stream: &mut TcpStream,
        request: &[u8],
        expected: u8,
        name: &str,
    ) -> Result<Vec<u8>> {
        stream.write_all(request).map_err(Error::io(format!(
            "cannot send (client {})",
            self.client_id
        )))?;
        let mut bytes = Vec::with_capacity(64);
        let mut chunk = [0; 256];
        loop {
            match wire::frame(&bytes) {
                Frame::Packet { first, body, end }
                    if first >> 4 == expected && end == bytes.len() =>
                {
                    return Ok(bytes.split_off(body));
                }
                Frame::Incomplete => {}
                // A message right behind the answer: whatever is measured would not be this run's.
                Frame::Packet { first, .. } if first >> 4 == expected => {
                    return Err(self.refusal(&format!(
                        "sent more right after {name}: another run publishes to the same topics, \
                         or a message is retained there"
                    )));
                }
                _ => return Err(self.refusal(&format!("sent {bytes:02x?} instead of {name}"))),
            }
            match stream.read(&mut chunk) {
                Ok(0) => return Err(self.refusal(&format!("closed the connection before {name}"))),
                Ok(n) => bytes.extend_from_slice(&chunk[..n]),
                Err(e) => {
                    let context = format!("no {name} (client {})", self.client_id);
                    return Err(Error::io(context)(e));
                }
            }
        }
    }

    fn refusal(&self, what: &str) -> Error {
        Error::Broker {
            client: self.client_id.to_owned(),
            what: what.to_owned(),
        }
    }
}

/// A connected client.
pub struct Client {
    /// Client identifier.
    pub id: String,
    /// Its connection.
    pub stream: TcpStream,
    /// The incomplete packet at the end of what was read.
    pub tail: Tail,
    /// What it still has to send.
    pub out: Outbox,
    /// The last `send` came back short.
    pub blocked: bool,
    /// It stands in the engine's list of clients to flush.
    pub in_dirty: bool,
    /// Publisher that the first track belongs to.
    pub first_publisher: u32,
    /// One per publisher whose messages this client receives.
    pub tracks: Vec<Track>,
    /// Identifiers of its unacknowledged publications; none at QoS 0.
    pub ids: Option<PacketIds>,
}
