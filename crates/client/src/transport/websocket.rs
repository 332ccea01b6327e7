//! MQTT in binary WebSocket frames (section 6). Frames and packets need not
//! align [MQTT-6.0.0-2], so this is a byte stream like the others.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use tungstenite::client::{IntoClientRequest as _, client_with_config};
use tungstenite::handshake::HandshakeError;
use tungstenite::http::HeaderValue;
use tungstenite::protocol::WebSocketConfig;
use tungstenite::{Bytes, Message, WebSocket};

use super::Transport;
use super::tls::Stream;
use crate::endpoint::Endpoint;
use crate::marking::Class;
use crate::{Error, Version};

/// Bytes of MQTT in one frame that we send, at most.
const FRAME: usize = 64 * 1024;

/// Bytes of one message from the server, at most: an MQTT packet of the
/// largest size fits. Memory grows only as they come.
const MESSAGE_LIMIT: usize = 268_435_460;

pub(super) struct WebSocketStream {
    socket: WebSocket<Stream>,
    /// The message being read, and how far.
    message: Bytes,
    read: usize,
    /// A frame waits inside to be sent.
    unsent: bool,
}

impl WebSocketStream {
    /// Does the handshake, blocking.
    pub(super) fn new(
        stream: Stream,
        endpoint: &Endpoint,
        version: Version,
    ) -> Result<Self, Error> {
        let mut request = endpoint.to_string().into_client_request().map_err(|_| {
            Error::misuse("WebSocket URL", endpoint.to_string(), "is not a valid URL")
        })?;
        let protocol = match version {
            Version::V31 => "mqttv3.1",
            Version::V311 | Version::V5 => "mqtt",
        };
        let headers = request.headers_mut();
        headers.insert("Sec-WebSocket-Protocol", HeaderValue::from_static(protocol));
        let config = WebSocketConfig::default()
            .max_message_size(Some(MESSAGE_LIMIT))
            .max_frame_size(Some(MESSAGE_LIMIT))
            .write_buffer_size(0);
        let (mut socket, _) = client_with_config(request, stream, Some(config))
            .map_err(|error| refused(error, endpoint))?;
        let stream = socket.get_mut();
        stream.socket().set_nonblocking().map_err(Error::Lost)?;
        Ok(Self {
            socket,
            message: Bytes::new(),
            read: 0,
            unsent: false,
        })
    }
}

fn refused<R: tungstenite::handshake::HandshakeRole>(
    error: HandshakeError<R>,
    endpoint: &Endpoint,
) -> Error {
    let source = match error {
        HandshakeError::Interrupted(_) => return timed_out(),
        HandshakeError::Failure(tungstenite::Error::Io(error)) => match error.kind() {
            io::ErrorKind::TimedOut => return timed_out(),
            _ => error,
        },
        HandshakeError::Failure(error) => io::Error::other(format!(
            "no WebSocket for MQTT there: {error}; check port and path"
        )),
    };
    Error::Unreachable {
        endpoint: endpoint.to_string(),
        source,
    }
}

fn timed_out() -> Error {
    Error::TimedOut("the WebSocket handshake did not end")
}

fn into_io(error: tungstenite::Error) -> io::Error {
    match error {
        tungstenite::Error::Io(error) => error,
        other => io::Error::new(io::ErrorKind::InvalidData, other.to_string()),
    }
}

impl AsFd for WebSocketStream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.get_ref().as_fd()
    }
}

impl Transport for WebSocketStream {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        while self.read == self.message.len() {
            match self.socket.read() {
                Ok(Message::Binary(message)) => {
                    self.message = message;
                    self.read = 0;
                }
                // tungstenite answers pings by itself.
                Ok(Message::Ping(_) | Message::Pong(_) | Message::Frame(_)) => {}
                Ok(Message::Close(_)) => return Ok(0),
                // [MQTT-6.0.0-1]
                Ok(Message::Text(_)) => {
                    let what = "the server sent a WebSocket text frame";
                    return Err(io::Error::new(io::ErrorKind::InvalidData, what));
                }
                Err(tungstenite::Error::ConnectionClosed | tungstenite::Error::AlreadyClosed) => {
                    return Ok(0);
                }
                Err(error) => return Err(into_io(error)),
            }
        }
        let n = buf.len().min(self.message.len() - self.read);
        buf[..n].copy_from_slice(&self.message[self.read..self.read + n]);
        self.read += n;
        Ok(n)
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.unsent {
            self.flush()?;
        }
        let n = bytes.len().min(FRAME);
        let frame = Message::binary(bytes[..n].to_vec());
        match self.socket.write(frame) {
            Ok(()) => {}
            // The frame is taken even so, and waits.
            Err(tungstenite::Error::Io(error)) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(into_io(error)),
        }
        self.unsent = true;
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.socket.flush().map_err(into_io)?;
        self.unsent = false;
        Ok(())
    }

    fn finish(&mut self) -> io::Result<()> {
        match self.socket.close(None) {
            Ok(()) | Err(tungstenite::Error::ConnectionClosed) => {}
            Err(error) => return Err(into_io(error)),
        }
        self.socket.flush().map_err(into_io)
    }

    fn mark(&mut self, class: Class) {
        self.socket.get_mut().mark(class);
    }

    fn waited(&self) -> Option<Duration> {
        self.socket.get_ref().waited()
    }
}
