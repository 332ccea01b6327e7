//! Connections that are over but for their last bytes.

use std::io::Read;

use mio::net::TcpStream;
use punctual_broker::Nanos;

use crate::unwritten::Unwritten;

/// How long a closed connection may take to accept its last bytes.
pub(crate) const LINGER: Nanos = Nanos::from_secs(5);

/// A connection that nobody else knows any more and whose last bytes are still to be written.
pub(crate) struct Lingering {
    pub(crate) stream: TcpStream,
    bytes: Unwritten,
    /// The peer has closed its side, and all was read that it had sent.
    ended: bool,
    /// When it is given up.
    pub(crate) until: Nanos,
}

impl Lingering {
    pub(crate) fn new(stream: TcpStream, bytes: Unwritten, ended: bool, until: Nanos) -> Self {
        Self {
            stream,
            bytes,
            ended,
            until,
        }
    }

    /// Writes on; true when done or hopeless.
    pub(crate) fn write(&mut self) -> bool {
        if self.bytes.write_to(&mut self.stream).is_err() {
            return true;
        }
        if !self.bytes.rest().is_empty() {
            return false;
        }
        if self.ended {
            return true;
        }
        let _ = self.stream.shutdown(std::net::Shutdown::Write);
        // Closing a socket with unread bytes resets the connection, and the
        // peer may lose what was just written.
        let mut discarded = [0; 4096];
        for _ in 0..64 {
            if !matches!(self.stream.read(&mut discarded), Ok(n) if n > 0) {
                break;
            }
        }
        true
    }
}
