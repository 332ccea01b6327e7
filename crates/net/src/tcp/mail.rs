//! Connections on their way to a shard.

use punctual_broker::{Class, ConnMeta, LinkLimits};

use super::unwritten::WriteBuffer;
use crate::layer::Layer;

/// To the shard of a connection.
pub(crate) enum TcpMail {
    /// A connection: new, or handed over by another shard.
    Connection(Box<Connection>),
    /// A connection to another broker, of that name, that this one has opened.
    Link(Box<Connection>, Box<str>, LinkLimits),
}

/// A connection on its way to a shard.
pub(crate) struct Connection {
    pub(crate) stream: std::net::TcpStream,
    pub(crate) meta: Box<ConnMeta>,
    pub(crate) layer: Layer,
    /// Application bytes that were received and not consumed.
    pub(crate) unread: Vec<u8>,
    /// Bytes in wire form that were not written.
    pub(super) unwritten: WriteBuffer,
    /// The class that the socket is marked with.
    pub(super) class: Class,
    /// The socket is set up for what is urgent.
    pub(super) tuned: bool,
}

impl Connection {
    /// One that nothing was read from or written to.
    pub(crate) fn new(stream: std::net::TcpStream, meta: Box<ConnMeta>, layer: Layer) -> Self {
        Self {
            stream,
            meta,
            layer,
            unread: Vec::new(),
            unwritten: WriteBuffer::default(),
            // It has the listener's mark.
            class: Class::Normal,
            tuned: false,
        }
    }

    /// The same with application bytes that were received behind the handshakes.
    pub(crate) fn with_unread(self, unread: Vec<u8>) -> Self {
        Self { unread, ..self }
    }
}
