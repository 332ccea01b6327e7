//! TLS of one connection, over memory: rustls does the work, this moves bytes.
//!
//! Records are decrypted as they become complete and handed on at once, so that rustls never keeps
//! more than one partial record; what it wants to send is moved to the caller's buffer in the same
//! call.

use std::fmt;
use std::io::{self, BufRead, IoSlice, Read, Write};
use std::ops::ControlFlow;

use rustls::{ClientConnection, Connection, ServerConnection};
use rustls_pki_types::CertificateDer;

use super::client_hello::record_limit;
use super::{LayerError, PeerInfo, Received, identity};
use crate::tls::TlsAcceptor;

/// Application bytes in one record: the most that TLS allows (RFC 8446 section 5.1).
const RECORD_BYTES: usize = 16 * 1024;
/// First byte of every client's first record (handshake).
const HANDSHAKE: u8 = 22;

pub(super) struct Tls {
    connection: Connection,
    state: State,
}

enum State {
    /// The ClientHello is not complete.
    New(Box<Greeting>),
    Running,
    /// We sent close_notify, or failed.
    Closed,
}

/// What came of a ClientHello.
struct Greeting {
    acceptor: TlsAcceptor,
    bytes: Vec<u8>,
}

impl Tls {
    pub(super) fn accept(acceptor: &TlsAcceptor) -> Result<Self, LayerError> {
        let connection = ServerConnection::new(acceptor.config())?;
        let greeting = Greeting {
            acceptor: acceptor.clone(),
            bytes: Vec::new(),
        };
        Ok(Self::new(connection.into(), State::New(Box::new(greeting))))
    }

    /// A connection that was opened here, its handshake done.
    pub(super) fn opened(connection: ClientConnection) -> Self {
        Self::new(connection.into(), State::Running)
    }

    fn new(mut connection: Connection, state: State) -> Self {
        connection.set_buffer_limit(Some(RECORD_BYTES));
        Self { connection, state }
    }

    /// Takes bytes from the socket and calls `deliver` with decrypted bytes, until it refuses.
    pub(super) fn received(
        &mut self,
        bytes: &[u8],
        wire: &mut Vec<u8>,
        deliver: impl FnMut(&[u8]) -> Result<Received, LayerError>,
    ) -> Result<Received, LayerError> {
        let State::New(greeting) = &mut self.state else {
            return self.decrypt(bytes, wire, deliver);
        };
        greeting.bytes.extend_from_slice(bytes);
        match greeting.bytes.first() {
            Some(&first) if first != HANDSHAKE => {
                self.state = State::Closed;
                return Err(LayerError::NotTls { first });
            }
            _ => {}
        }
        let ControlFlow::Break(limit) = record_limit(&greeting.bytes) else {
            return Ok(Received::Open);
        };
        let all = std::mem::take(&mut greeting.bytes);
        let limited = limit.and_then(|limit| greeting.acceptor.limited(limit));
        self.state = State::Running;
        if let Some(config) = limited {
            self.connection = ServerConnection::new(config)?.into();
            self.connection.set_buffer_limit(Some(RECORD_BYTES));
        }
        self.decrypt(&all, wire, deliver)
    }

    fn decrypt(
        &mut self,
        mut bytes: &[u8],
        wire: &mut Vec<u8>,
        mut deliver: impl FnMut(&[u8]) -> Result<Received, LayerError>,
    ) -> Result<Received, LayerError> {
        while !bytes.is_empty() && !self.is_closed() {
            let taken = self.connection.read_tls(&mut bytes);
            let processed = match taken {
                // After close_notify nothing counts any more.
                Ok(0) => break,
                Ok(_) => self.connection.process_new_packets(),
                Err(error) => Err(rustls::Error::General(error.to_string())),
            };
            // Also the alert that explains an error.
            self.flush(wire);
            let ended = match processed {
                Ok(state) => state.peer_has_closed(),
                Err(error) => {
                    self.state = State::Closed;
                    return Err(error.into());
                }
            };
            let mut reader = self.connection.reader();
            while let Ok(chunk) = reader.fill_buf()
                && !chunk.is_empty()
            {
                let length = chunk.len();
                if deliver(chunk)? == Received::Ended {
                    return Ok(Received::Ended);
                }
                reader.consume(length);
            }
            if ended {
                return Ok(Received::Ended);
            }
        }
        // rustls gives the memory of a large record back only when it is asked to read again.
        let _ = self.connection.read_tls(&mut NothingYet);
        Ok(Received::Open)
    }

    /// Encrypts `head` and `body` as one stream.
    pub(super) fn send(
        &mut self,
        head: &[u8],
        body: &[u8],
        wire: &mut Vec<u8>,
    ) -> Result<(), LayerError> {
        if self.is_closed() || !self.established() {
            return Err(LayerError::NotEstablished);
        }
        let (mut head, mut body) = (head, body);
        while !head.is_empty() || !body.is_empty() {
            let part = &body[..body.len().min(RECORD_BYTES - head.len())];
            let written = if head.is_empty() {
                self.connection.writer().write(part)
            } else {
                let parts = [IoSlice::new(head), IoSlice::new(part)];
                self.connection.writer().write_vectored(&parts)
            };
            let written = match written {
                Ok(written) if written > 0 => written,
                _ => return Err(LayerError::NotEstablished),
            };
            self.flush(wire);
            let of_head = written.min(head.len());
            head = &head[of_head..];
            body = &body[written - of_head..];
        }
        Ok(())
    }

    pub(super) fn close(&mut self, wire: &mut Vec<u8>) {
        if !self.is_closed() {
            self.state = State::Closed;
            self.connection.send_close_notify();
            self.flush(wire);
        }
    }

    fn is_closed(&self) -> bool {
        matches!(self.state, State::Closed)
    }

    pub(super) fn established(&self) -> bool {
        !self.connection.is_handshaking()
    }

    pub(super) fn describe(&self, info: &mut PeerInfo) {
        info.tls_version = self
            .connection
            .protocol_version()
            .map(|version| match version {
                rustls::ProtocolVersion::TLSv1_2 => "TLSv1.2".to_owned(),
                rustls::ProtocolVersion::TLSv1_3 => "TLSv1.3".to_owned(),
                other => format!("{other:?}"),
            });
        info.cipher = self
            .connection
            .negotiated_cipher_suite()
            .and_then(|suite| suite.suite().as_str())
            // The library has names of its own for TLS 1.3; the registry's are what others show.
            .map(|name| name.replacen("TLS13_", "TLS_", 1));
        if let Connection::Server(connection) = &self.connection {
            info.server_name = connection.server_name().map(str::to_owned);
        }
        if let Some(certificate) = self.certificates().first() {
            identity::describe(certificate, info);
        }
    }

    /// Those of the peer, which count only once the handshake has proven that it has the key.
    pub(super) fn certificates(&self) -> &[CertificateDer<'static>] {
        let certificates = self.connection.peer_certificates();
        certificates.filter(|_| self.established()).unwrap_or(&[])
    }

    fn flush(&mut self, wire: &mut Vec<u8>) {
        // Writing to memory cannot fail.
        while self.connection.wants_write() && self.connection.write_tls(wire).is_ok() {}
    }
}

/// A source that has nothing now, which is not its end.
struct NothingYet;

impl Read for NothingYet {
    fn read(&mut self, _buffer: &mut [u8]) -> io::Result<usize> {
        Err(io::ErrorKind::WouldBlock.into())
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls")
            .field("established", &self.established())
            .field("closed", &self.is_closed())
            .finish_non_exhaustive()
    }
}
