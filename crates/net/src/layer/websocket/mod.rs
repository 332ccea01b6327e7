//! MQTT over WebSocket, server side (RFC 6455; MQTT 5.0 section 6).
//!
//! An HTTP upgrade, then binary frames as a stream: payload is unmasked and handed on as it comes,
//! whatever the frame and message boundaries, since MQTT packets may span frames and frames may hold
//! several packets [MQTT-6.0.0-2]. Frame parsing is our own because the libraries for it hand out
//! whole frames or messages, which would let a peer choose how much is buffered.

mod frame;
mod handshake;
mod origin;

use std::sync::Arc;

pub use handshake::MAX_UPGRADE_BYTES;
pub use origin::Origins;

use super::{FrameError, LayerError, Received};
use frame::{Event, FrameHeader, FrameReader, write_close, write_pong};
use handshake::Upgrade;

/// Close code: done, nothing went wrong (RFC 6455 section 7.4.1).
const NORMAL: u16 = 1000;

/// What a WebSocket listener accepts. Cloning is cheap.
#[derive(Debug, Clone, Default)]
pub struct WebSocketOptions {
    /// The path that clients have to ask for, such as `/mqtt`; a query after it is ignored.
    /// `None`: any path, as mosquitto does.
    pub path: Option<Arc<str>>,
    /// Pages that may connect. Clients that send no `Origin`, thus are no browsers, always may.
    pub origins: Origins,
}

#[derive(Debug)]
pub(super) struct WebSocket {
    state: State,
}

#[derive(Debug)]
enum State {
    Upgrading(Upgrade),
    Open(FrameReader),
    /// We sent Close, or refused the upgrade.
    Closed,
}

impl WebSocket {
    pub(super) fn new(options: WebSocketOptions) -> Self {
        Self {
            state: State::Upgrading(Upgrade::new(options)),
        }
    }

    /// Takes bytes of the connection below; `wire` gets what answers them.
    pub(super) fn received(
        &mut self,
        bytes: &[u8],
        app: &mut Vec<u8>,
        wire: &mut Vec<u8>,
    ) -> Result<Received, LayerError> {
        match &mut self.state {
            State::Closed => Ok(Received::Open),
            State::Upgrading(upgrade) => match upgrade.received(bytes, wire) {
                Ok(None) => Ok(Received::Open),
                Ok(Some(used)) => {
                    self.state = State::Open(FrameReader::default());
                    self.received(&bytes[used..], app, wire)
                }
                Err(error) => {
                    self.state = State::Closed;
                    Err(error.into())
                }
            },
            State::Open(reader) => {
                let result = read_frames(reader, bytes, app, wire);
                if let Err(error) = &result {
                    write_close(error.close_code(), wire);
                }
                if !matches!(result, Ok(Received::Open)) {
                    self.state = State::Closed;
                }
                Ok(result?)
            }
        }
    }

    /// The header of a binary frame with `length` bytes of payload.
    pub(super) fn frame(&self, length: usize) -> Result<FrameHeader, LayerError> {
        if !self.established() {
            return Err(LayerError::NotEstablished);
        }
        Ok(FrameHeader::binary(length))
    }

    pub(super) fn close(&mut self, wire: &mut Vec<u8>) {
        if self.established() {
            write_close(NORMAL, wire);
        }
        self.state = State::Closed;
    }

    pub(super) fn established(&self) -> bool {
        matches!(self.state, State::Open(_))
    }
}

fn read_frames(
    reader: &mut FrameReader,
    mut bytes: &[u8],
    app: &mut Vec<u8>,
    wire: &mut Vec<u8>,
) -> Result<Received, FrameError> {
    while let Some((event, rest)) = reader.next(bytes, app)? {
        bytes = rest;
        match event {
            Event::Data => {}
            Event::Ping(payload) => write_pong(&payload, wire),
            Event::Close(code) => {
                write_close(code, wire);
                return Ok(Received::Ended);
            }
        }
    }
    Ok(Received::Open)
}
