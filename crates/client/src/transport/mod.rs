//! Ways to a server, behind one trait: TCP, TLS, WebSocket, WebSocket over TLS,
//! UDP and QUIC.
//!
//! Name look-up, connecting and handshakes block, up to the endpoint's
//! time-out; after that nothing does.

mod arrival;
mod boundary;
mod quic;
mod socket;
pub(crate) mod tls;
mod udp;
mod websocket;

use std::io;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use crate::endpoint::{Endpoint, Scheme};
use crate::marking::Class;
use crate::{Error, Version};
use quic::Quic;
use socket::Socket;
use tls::Stream;
pub(crate) use tls::explain_io;
use udp::Datagrams;
use websocket::WebSocketStream;

/// An open, non-blocking connection that carries packets in order. Its file
/// descriptor tells when it may be possible to go on reading or writing; who
/// waits for that edge-triggered reads until `WouldBlock`.
pub trait Transport: AsFd + Send {
    /// Reads some bytes; 0 when the peer has ended the connection.
    ///
    /// # Errors
    /// `WouldBlock` when there are none now; anything else is the end.
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize>;

    /// Takes some bytes, which may wait inside; [`flush`](Self::flush) sends
    /// them. What is written at a time is whole packets, except for what is
    /// left of the ones before.
    ///
    /// # Errors
    /// `WouldBlock` when it takes none now; anything else is the end.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize>;

    /// Sends what waits inside.
    ///
    /// # Errors
    /// `WouldBlock` when something is left; anything else is the end.
    fn flush(&mut self) -> io::Result<()>;

    /// Tells the peer that nothing more will be sent, in the words of the
    /// transport. Reading goes on until the peer does the same.
    ///
    /// # Errors
    /// As for [`flush`](Self::flush).
    fn finish(&mut self) -> io::Result<()>;

    /// Bytes written from now on are of that class, for the marks on the
    /// network's packets. A hint: what is under way may get them, too.
    fn mark(&mut self, class: Class);

    /// How long the bytes that were read last had waited, if the kernel says.
    fn waited(&self) -> Option<Duration> {
        None
    }

    /// Bytes of the largest packet that it can carry, if there is a bound.
    fn max_packet(&self) -> Option<usize> {
        None
    }

    /// When [`tick`](Self::tick) has something to do, if it ever has.
    fn timeout(&self) -> Option<Instant> {
        None
    }

    /// Does what is due; what came of it can be read.
    ///
    /// # Errors
    /// As for [`flush`](Self::flush).
    fn tick(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Opens a connection, blocking.
///
/// # Errors
/// `Unreachable`, `Tls`, `TimedOut`, `ApiMisuse`.
pub fn open(endpoint: &Endpoint, version: Version) -> Result<Box<dyn Transport>, Error> {
    if endpoint.scheme == Scheme::Udp {
        return Ok(Box::new(Datagrams::open(endpoint)?));
    }
    if endpoint.scheme == Scheme::Quic {
        return Ok(Box::new(Quic::open(endpoint, version)?));
    }
    // Files that cannot be read are reported before anything is connected.
    let tls = match endpoint.scheme.is_tls() {
        true => Some(tls::session(endpoint)?),
        false => None,
    };
    let deadline = Instant::now() + endpoint.timeout;
    let socket = Socket::connect(endpoint, deadline)?;
    let mut stream = Stream::new(socket, tls, endpoint)?;
    if !endpoint.scheme.is_websocket() {
        stream.socket().set_nonblocking().map_err(Error::Lost)?;
        return Ok(Box::new(stream));
    }
    Ok(Box::new(WebSocketStream::new(stream, endpoint, version)?))
}
