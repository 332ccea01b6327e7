//! One TCP connection of a shard.

use std::io;

use mio::net::TcpStream;
use punctual_broker::{Class, ConnId, Nanos, Need, Ready, Shard};

use super::TcpOptions;
use super::unwritten::WriteBuffer;
use crate::layer::Layer;
use crate::marking::Marking;

/// Why a connection ends whose client does not wait for CONNACK.
pub(super) const LEFT: &str = "connection closed by peer before CONNACK";

/// A connection of this shard.
pub(super) struct Link {
    pub(super) id: ConnId,
    /// Number of its listener among all.
    pub(super) listener: u16,
    pub(super) stream: TcpStream,
    /// `None`: bytes pass through unchanged.
    pub(super) layer: Option<Box<Layer>>,
    /// Application bytes received and not consumed.
    pub(super) unread: Vec<u8>,
    /// Bytes of the packet that `unread` begins with, as far as that is known; less than all of them
    /// are there. Else 0.
    pub(super) needed: u32,
    /// What was read last was of a large packet.
    pub(super) sends_large: bool,
    /// Wire bytes made and not written (layered connections).
    pub(super) wire: WriteBuffer,
    /// The socket may have something to read.
    pub(super) readable: bool,
    /// The peer has closed its side: read until the end shows.
    pub(super) closing: bool,
    /// The end was read: the peer has closed its side, and nothing of it is left in the kernel.
    pub(super) ended: bool,
    /// The socket takes no more for now.
    pub(super) blocked: bool,
    /// The broker does not want to read.
    pub(super) paused: bool,
    /// In the list of links to read from.
    pub(super) listed: bool,
    /// There is more to be handled of what was read.
    pub(super) again: bool,
    /// The class that the socket is marked with.
    pub(super) class: Class,
    /// The socket is set up for what is urgent.
    pub(super) tuned: bool,
    /// When what can be read came, at the earliest: the socket was empty before.
    pub(super) arrived: Nanos,
    /// What came last from a neighbour is not acknowledged yet: nothing went the other way since.
    pub(super) owes_ack: bool,
    /// When something came from a neighbour last.
    pub(super) read_at: Nanos,
}

impl Link {
    /// Has it read from, unless it is paused.
    pub(super) fn list(&mut self, ready: &mut Ready, shard: &Shard) {
        if !self.paused && !self.listed {
            self.listed = true;
            ready.push(self.id.slot, shard.need(self.id));
        }
    }

    /// Whether what comes is of admitted flows.
    pub(super) fn is_promised(&self, shard: &Shard) -> bool {
        matches!(shard.need(self.id), Need::Promised(_))
    }

    /// Whether the peer has closed its side, and everything that it sent was handled. What lies under
    /// a layer cannot tell.
    fn has_left(&self) -> bool {
        self.closing
            && self.layer.is_none()
            && self.unread.is_empty()
            && matches!(self.stream.peek(&mut [0]), Ok(0))
    }

    /// Whether its client has left while it waits for the answer whether it is who it says.
    pub(super) fn gives_up(&self, shard: &Shard) -> bool {
        self.paused && self.has_left() && shard.is_proving(self.id)
    }

    /// Takes note of what reading up to `space` bytes has come to: how many there are, and why there
    /// are no more, if the connection is lost.
    pub(super) fn has_read(
        &mut self,
        outcome: io::Result<usize>,
        space: usize,
    ) -> (usize, Option<String>) {
        match outcome {
            Ok(0) => {
                self.ended = true;
                (0, Some("connection closed by peer".into()))
            }
            Ok(n) => {
                self.readable = n == space || self.closing;
                (n, None)
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.readable = false;
                (0, None)
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => (0, None),
            Err(error) => (0, Some(error.to_string())),
        }
    }

    /// Sets the socket up for what it is about to send.
    #[cold]
    pub(super) fn classify(&mut self, class: Class, marking: &Marking, tcp: &TcpOptions) {
        // What was allowed at the start cannot fail on an open socket, and a
        // broken one shows when it is written to.
        let _ = marking.change(&self.stream, self.class, class);
        self.class = class;
        if !self.tuned && matches!(class, Class::RealTime | Class::Priority) {
            self.tuned = true;
            tcp.urgent(&self.stream);
        }
    }
}
