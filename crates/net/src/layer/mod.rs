//! What lies between a socket and the MQTT packets on it: PROXY header, TLS, WebSocket.
//!
//! A [`Layer`] is a state machine without a socket: bytes go in, application bytes and bytes for the
//! socket come out, in any split. One call never keeps more than a partial TLS record (at most
//! 16 KiB and a header; 64 KiB for a handshake message; 16 KiB of a ClientHello), a partial upgrade request
//! ([`MAX_UPGRADE_BYTES`]), a partial PROXY header ([`MAX_PROXY_BYTES`]) or a partial WebSocket
//! control frame (125 bytes), and never hands out more application bytes than came in.
//! Sources: RFC 8446, RFC 6455, MQTT 5.0 section 6, the PROXY protocol specification of HAProxy.

mod client_hello;
mod error;
mod identity;
mod proxy;
mod tls;
mod websocket;

use rustls::ClientConnection;
use rustls_pki_types::CertificateDer;

use crate::tls::TlsAcceptor;

pub use error::{FrameError, LayerError, ProxyError, UpgradeError};
pub use proxy::{ClientAddress, MAX_PROXY_BYTES};
pub use websocket::{MAX_UPGRADE_BYTES, Origins, WebSocketOptions};

use proxy::{Proxied, ProxyReader};
use tls::Tls;
use websocket::WebSocket;

/// What a listener puts between its sockets and MQTT. Cloning is cheap.
#[derive(Debug, Clone, Default)]
pub struct LayerConfig {
    /// Every connection begins with a PROXY protocol header (version 1 or 2). Only for listeners
    /// that nobody but the proxy can reach: the header is believed.
    pub proxy: bool,
    /// TLS, below WebSocket if both are set.
    pub tls: Option<TlsAcceptor>,
    /// MQTT in WebSocket frames.
    pub websocket: Option<WebSocketOptions>,
}

impl LayerConfig {
    /// The layer of a connection that was just accepted.
    ///
    /// # Errors
    /// [`LayerError::Tls`] if the TLS library refuses to begin.
    pub fn accept(&self) -> Result<Layer, LayerError> {
        let stage = if self.proxy {
            Stage::Proxy(Box::new(ProxyStage {
                reader: ProxyReader::default(),
                then: self.clone(),
            }))
        } else {
            self.without_proxy()?
        };
        Ok(Layer {
            stage,
            proxied: None,
        })
    }

    fn without_proxy(&self) -> Result<Stage, LayerError> {
        let websocket = |options: &WebSocketOptions| Box::new(WebSocket::new(options.clone()));
        Ok(match (&self.tls, &self.websocket) {
            (None, None) => Stage::Plain,
            (None, Some(options)) => Stage::WebSocket(websocket(options)),
            (Some(acceptor), None) => Stage::Tls(Box::new(Tls::accept(acceptor)?)),
            (Some(acceptor), Some(options)) => {
                Stage::SecureWebSocket(Box::new(Tls::accept(acceptor)?), websocket(options))
            }
        })
    }
}

/// Whether the peer may send more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "an ended connection has to be closed"]
pub enum Received {
    /// The connection stays open.
    Open,
    /// The peer said goodbye (TLS close_notify, WebSocket Close). The application bytes before it
    /// were delivered. Call [`Layer::close`], flush and close the socket.
    Ended,
}

/// The protocols of one connection between its socket and MQTT.
#[derive(Debug)]
pub struct Layer {
    stage: Stage,
    /// What the PROXY header said, kept for [`Layer::peer`].
    proxied: Option<Box<Proxied>>,
}

/// Boxed, so that a plain connection costs a few words.
#[derive(Debug)]
enum Stage {
    Proxy(Box<ProxyStage>),
    Plain,
    Tls(Box<Tls>),
    WebSocket(Box<WebSocket>),
    SecureWebSocket(Box<Tls>, Box<WebSocket>),
    /// The PROXY header was refused.
    Refused,
}

#[derive(Debug)]
struct ProxyStage {
    reader: ProxyReader,
    then: LayerConfig,
}

impl Layer {
    /// A layer that passes bytes through.
    pub fn plain() -> Self {
        Self {
            stage: Stage::Plain,
            proxied: None,
        }
    }

    /// The layer of a TLS connection that was opened here, its handshake done.
    pub(crate) fn client(connection: ClientConnection) -> Self {
        Self {
            stage: Stage::Tls(Box::new(Tls::opened(connection))),
            proxied: None,
        }
    }

    /// Takes bytes from the socket: appends application bytes to `app` and what must go out
    /// (handshake, pong, close) to `wire`. `app` grows by no more than `bytes` and the partial
    /// record kept from before.
    ///
    /// # Errors
    /// The peer broke a protocol. `app` holds what came before the fault; `wire` the last words to
    /// the peer (alert, HTTP answer, close frame): flush it, then close the socket. Nothing is
    /// taken or sent after an error.
    pub fn received(
        &mut self,
        bytes: &[u8],
        app: &mut Vec<u8>,
        wire: &mut Vec<u8>,
    ) -> Result<Received, LayerError> {
        match &mut self.stage {
            Stage::Plain => {
                app.extend_from_slice(bytes);
                Ok(Received::Open)
            }
            Stage::Tls(tls) => tls.received(bytes, wire, |plain| {
                app.extend_from_slice(plain);
                Ok(Received::Open)
            }),
            Stage::WebSocket(websocket) => websocket.received(bytes, app, wire),
            Stage::SecureWebSocket(tls, websocket) => {
                // Empty, thus without allocation, unless there is something to answer.
                let mut replies = Vec::new();
                let result = tls.received(bytes, wire, |plain| {
                    websocket.received(plain, app, &mut replies)
                });
                if !replies.is_empty() {
                    tls.send(&[], &replies, wire)?;
                }
                if result.is_err() {
                    tls.close(wire);
                }
                result
            }
            Stage::Proxy(stage) => {
                let read = stage.reader.received(bytes).map_err(LayerError::from);
                let next = match read {
                    Ok(None) => return Ok(Received::Open),
                    Ok(Some(read)) => stage.then.without_proxy().map(|next| (read, next)),
                    Err(error) => Err(error),
                };
                let ((proxied, used), next) = next.inspect_err(|_| self.stage = Stage::Refused)?;
                self.stage = next;
                self.proxied = Some(Box::new(proxied));
                self.received(&bytes[used..], app, wire)
            }
            Stage::Refused => Ok(Received::Open),
        }
    }

    /// Appends application bytes to `wire` in the form that the socket needs. Over WebSocket each
    /// call makes one binary frame; an empty `app` makes nothing.
    ///
    /// # Errors
    /// [`LayerError::NotEstablished`] before the handshake is done and after [`Layer::close`] or an
    /// error: there is nobody who could read the bytes.
    pub fn send(&mut self, app: &[u8], wire: &mut Vec<u8>) -> Result<(), LayerError> {
        if app.is_empty() {
            return Ok(());
        }
        match &mut self.stage {
            Stage::Plain => {
                wire.extend_from_slice(app);
                Ok(())
            }
            Stage::Tls(tls) => tls.send(&[], app, wire),
            Stage::WebSocket(websocket) => {
                let header = websocket.frame(app.len())?;
                wire.reserve(header.as_slice().len() + app.len());
                wire.extend_from_slice(header.as_slice());
                wire.extend_from_slice(app);
                Ok(())
            }
            Stage::SecureWebSocket(tls, websocket) => {
                let header = websocket.frame(app.len())?;
                tls.send(header.as_slice(), app, wire)
            }
            Stage::Proxy(_) | Stage::Refused => Err(LayerError::NotEstablished),
        }
    }

    /// Says goodbye: WebSocket Close with code 1000 if none was sent, TLS close_notify. Does
    /// nothing the second time.
    pub fn close(&mut self, wire: &mut Vec<u8>) {
        match &mut self.stage {
            Stage::Plain | Stage::Proxy(_) | Stage::Refused => {}
            Stage::Tls(tls) => tls.close(wire),
            Stage::WebSocket(websocket) => websocket.close(wire),
            Stage::SecureWebSocket(tls, websocket) => {
                let mut goodbye = Vec::new();
                websocket.close(&mut goodbye);
                if !goodbye.is_empty() && tls.send(&[], &goodbye, wire).is_err() {
                    // The TLS connection is gone already; nobody waits for a goodbye.
                    return;
                }
                tls.close(wire);
            }
        }
    }

    /// Whether bytes pass through unchanged, now and from now on.
    pub fn is_plain(&self) -> bool {
        matches!(self.stage, Stage::Plain)
    }

    /// Whether all handshakes are done, so that application bytes can be sent.
    pub fn established(&self) -> bool {
        match &self.stage {
            Stage::Plain => true,
            Stage::Proxy(_) | Stage::Refused => false,
            Stage::Tls(tls) => tls.established(),
            Stage::WebSocket(websocket) => websocket.established(),
            Stage::SecureWebSocket(tls, websocket) => tls.established() && websocket.established(),
        }
    }

    /// Where the client is, as far as it is known by now.
    pub(crate) fn client_address(&self) -> ClientAddress {
        let proxied = self.proxied.as_ref();
        proxied.map_or(ClientAddress::Socket, |it| it.client)
    }

    /// The certificate that the peer has proven to have, and those that it sent with it; empty if it
    /// has none.
    pub(crate) fn certificates(&self) -> Vec<CertificateDer<'static>> {
        match &self.stage {
            Stage::Tls(tls) | Stage::SecureWebSocket(tls, _) => tls.certificates().to_vec(),
            Stage::Plain | Stage::Proxy(_) | Stage::WebSocket(_) | Stage::Refused => Vec::new(),
        }
    }

    /// What the handshakes said about the peer. Complete once [`Layer::established`]; it parses the
    /// client certificate, so ask once.
    pub fn peer(&self) -> PeerInfo {
        let mut info = PeerInfo::default();
        if let Some(proxied) = &self.proxied {
            proxied.describe(&mut info);
        }
        match &self.stage {
            Stage::Tls(tls) | Stage::SecureWebSocket(tls, _) => tls.describe(&mut info),
            Stage::Plain | Stage::Proxy(_) | Stage::WebSocket(_) | Stage::Refused => {}
        }
        info
    }
}

/// What the handshakes said about the peer. What our own TLS layer saw goes before what a PROXY
/// header claims.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PeerInfo {
    /// Where the client is according to the PROXY header.
    pub client: ClientAddress,
    /// Common name of the verified client certificate (the first one; not empty, without NUL).
    pub common_name: Option<String>,
    /// Subject of the verified client certificate as OpenSSL's `-nameopt RFC2253` prints it, which
    /// is what mosquitto's `use_subject_as_username` compares.
    pub subject: Option<String>,
    /// TLS version such as `TLSv1.3`. `None`: the connection is not encrypted.
    pub tls_version: Option<String>,
    /// Cipher suite, such as `TLS_AES_256_GCM_SHA384`.
    pub cipher: Option<String>,
    /// Host name that the client asked for (SNI).
    pub server_name: Option<String>,
}

impl PeerInfo {
    /// What a client certificate says that was verified elsewhere.
    pub(crate) fn of_certificate(certificate: &CertificateDer<'_>) -> Self {
        let mut info = Self::default();
        identity::describe(certificate, &mut info);
        info
    }
}
