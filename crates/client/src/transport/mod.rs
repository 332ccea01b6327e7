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

/// An open, non-blocking connection that carries packets in order. Its file descriptor
/// signals when reading or writing may be possible again; with edge-triggered polling,
/// read until `WouldBlock`.
pub trait Transport: AsFd + Send {
    /// Reads some bytes; 0 when the peer has ended the connection.
    ///
    /// # Errors
    /// `WouldBlock` when there are none now; anything else is the end.
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize>;

    /// Takes some bytes, which may be buffered; [`flush`](Self::flush) sends them. One
    /// call writes whole packets, preceded by the rest of a packet that was taken in part
    /// before.
    ///
    /// # Errors
    /// `WouldBlock` when it takes none now; anything else is the end.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize>;

    /// Sends buffered bytes.
    ///
    /// # Errors
    /// `WouldBlock` when something is left; anything else is the end.
    fn flush(&mut self) -> io::Result<()>;

    /// Closes the sending direction, in the way of the transport. Reading continues until
    /// the peer does the same.
    ///
    /// # Errors
    /// As for [`flush`](Self::flush).
    fn finish(&mut self) -> io::Result<()>;

    /// Sets the class of bytes written from now on, for the marks of network packets. A
    /// hint: buffered bytes may get the same marks.
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

    /// Does timed work; its results can be read.
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
