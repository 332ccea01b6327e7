//! The two sockets of one connection.

use std::io::{self, Read, Write};
use std::net::SocketAddr;

use mio::event::Event;
use mio::net::TcpStream;
use mio::{Interest, Registry, Token};
use proxy_header::{ProxiedAddress, ProxyHeader};
use punctual_broker::{ConnId, Nanos};
use punctual_manager::proxy::Proxy;
use punctual_net::layer::{Layer, Received};

/// Reads of each side in one turn, so that others get theirs.
const TURNS: usize = 8;
/// Encoded bytes for a client above which no more are encoded.
const WIRE: usize = 256 * 1024;

/// How a turn ended.
pub(super) enum Progress {
    /// Nothing can be done without an event.
    Waits,
    /// There is more to do.
    Again,
    /// A side has gone, and something is left for the other.
    Ending,
    /// It is over; why, if that is unusual.
    Ended(Option<String>),
}

/// What a socket is ready for.
#[derive(Debug, Default)]
struct Ready {
    read: bool,
    write: bool,
    /// The peer will send nothing more.
    ended: bool,
}

/// A client's socket and the one to the broker for it.
pub(super) struct Conn {
    client: TcpStream,
    upstream: TcpStream,
    layer: Layer,
    at_client: Ready,
    at_broker: Ready,
    /// Encoded for the client's socket.
    wire: Vec<u8>,
    /// To be sent to the broker before everything else.
    introduction: Vec<u8>,
    /// Until when it is kept, one side having gone.
    pub(super) until: Option<Nanos>,
}

impl Conn {
    pub(super) fn new(client: TcpStream, upstream: TcpStream, layer: Layer) -> Self {
        // Both carry small packets that somebody waits for.
        let _ = client.set_nodelay(true);
        let _ = upstream.set_nodelay(true);
        Self {
            client,
            upstream,
            layer,
            at_client: Ready::default(),
            at_broker: Ready::default(),
            wire: Vec::new(),
            introduction: Vec::new(),
            until: None,
        }
    }

    /// `token` is the client's, the next the broker's.
    pub(super) fn register(&mut self, registry: &Registry, token: usize) -> io::Result<()> {
        let both = Interest::READABLE | Interest::WRITABLE;
        registry.register(&mut self.client, Token(token), both)?;
        registry.register(&mut self.upstream, Token(token + 1), both)
    }

    pub(super) fn deregister(&mut self, registry: &Registry) {
        let _ = registry.deregister(&mut self.client);
        let _ = registry.deregister(&mut self.upstream);
    }

    /// Tells the broker where the client is (PROXY protocol, version 2).
    pub(super) fn introduce(&mut self, from: SocketAddr, to: SocketAddr) {
        let header = ProxyHeader::with_address(ProxiedAddress::stream(from, to));
        let mut bytes = [0; 256];
        if let Ok(len) = header.encode_to_slice_v2(&mut bytes) {
            self.introduction = bytes[..len].to_vec();
        }
    }

    /// For the log.
    pub(super) fn name(&self) -> String {
        match self.client.peer_addr() {
            Ok(address) => address.to_string(),
            Err(_) => "a client that has gone".into(),
        }
    }

    pub(super) fn is_ready(&mut self, of_client: bool, event: &Event) {
        let ready = match of_client {
            true => &mut self.at_client,
            false => &mut self.at_broker,
        };
        ready.read |= event.is_readable() || event.is_read_closed() || event.is_error();
        ready.write |= event.is_writable() || event.is_error();
    }

    /// Does what can be done now.
    pub(super) fn serve(
        &mut self,
        id: ConnId,
        proxy: &mut Proxy,
        buffer: &mut [u8],
        now: Nanos,
    ) -> Progress {
        match self.turn(id, proxy, buffer, now) {
            Ok(progress) => progress,
            Err(why) => Progress::Ended(Some(why)),
        }
    }

    fn turn(
        &mut self,
        id: ConnId,
        proxy: &mut Proxy,
        buffer: &mut [u8],
        now: Nanos,
    ) -> Result<Progress, String> {
        let mut app = Vec::new();
        for _ in 0..TURNS {
            let mut moved = false;
            if self.at_client.read && !self.at_client.ended && proxy.reads_client(id) {
                let read = self.client.read(buffer);
                if let Some(n) = self.at_client.took(read, "the client")? {
                    moved = true;
                    if self.layer.is_plain() {
                        proxy.client_sent(id, &buffer[..n], now);
                    } else {
                        app.clear();
                        let received = self.layer.received(&buffer[..n], &mut app, &mut self.wire);
                        proxy.client_sent(id, &app, now);
                        match received {
                            Ok(Received::Open) => {}
                            Ok(Received::Ended) => self.at_client.ended = true,
                            Err(error) => {
                                let _ = self.client.write(&self.wire);
                                return Err(error.to_string());
                            }
                        }
                    }
                }
            }
            moved |= self.send_to_broker(id, proxy)?;
            if self.at_broker.read && !self.at_broker.ended && proxy.reads_broker(id) {
                let read = self.upstream.read(buffer);
                if let Some(n) = self.at_broker.took(read, "the broker")? {
                    moved = true;
                    proxy.broker_sent(id, &buffer[..n], now);
                }
            }
            moved |= self.send_to_client(id, proxy)?;
            if !moved {
                return Ok(self.state(id, proxy));
            }
        }
        Ok(Progress::Again)
    }

    /// How it stands when nothing more can be done.
    fn state(&mut self, id: ConnId, proxy: &mut Proxy) -> Progress {
        let for_client = proxy.to_client(id).map_or(0, |bytes| bytes.len()) + self.wire.len();
        if self.at_broker.ended {
            // Whatever the client sends now, nobody takes it.
            if for_client > 0 {
                return Progress::Ending;
            }
            self.layer.close(&mut self.wire);
            let _ = self.client.write(&self.wire);
            return Progress::Ended(None);
        }
        if self.at_client.ended {
            let for_broker = proxy.to_broker(id).map_or(0, |bytes| bytes.len());
            // What waits for its time or for a decision was sent all the same.
            return match for_broker > 0 || proxy.waits(id) || !self.introduction.is_empty() {
                true => Progress::Ending,
                false => Progress::Ended(None),
            };
        }
        Progress::Waits
    }

    fn send_to_broker(&mut self, id: ConnId, proxy: &mut Proxy) -> Result<bool, String> {
        if !self.at_broker.write {
            return Ok(false);
        }
        if !self.introduction.is_empty() {
            let sent = send(
                &mut self.upstream,
                &mut self.introduction,
                &mut self.at_broker,
            );
            sent.map_err(|error| format!("the broker: {error}"))?;
            if !self.introduction.is_empty() {
                return Ok(false);
            }
        }
        let Some(bytes) = proxy.to_broker(id) else {
            return Ok(false);
        };
        send(&mut self.upstream, bytes, &mut self.at_broker)
            .map_err(|error| format!("the broker: {error}"))
    }

    fn send_to_client(&mut self, id: ConnId, proxy: &mut Proxy) -> Result<bool, String> {
        let Some(bytes) = proxy.to_client(id) else {
            return Ok(false);
        };
        let told = |error: io::Error| format!("the client: {error}");
        if self.layer.is_plain() && self.wire.is_empty() {
            return match self.at_client.write {
                true => send(&mut self.client, bytes, &mut self.at_client).map_err(told),
                false => Ok(false),
            };
        }
        if !bytes.is_empty() && self.wire.len() < WIRE && self.layer.established() {
            let sent = self.layer.send(bytes, &mut self.wire);
            sent.map_err(|error| error.to_string())?;
            bytes.clear();
        }
        match self.at_client.write {
            true => send(&mut self.client, &mut self.wire, &mut self.at_client).map_err(told),
            false => Ok(false),
        }
    }
}

impl Ready {
    /// What became of a read: bytes, or nothing more for now.
    fn took(&mut self, read: io::Result<usize>, who: &str) -> Result<Option<usize>, String> {
        match read {
            Ok(0) => {
                self.ended = true;
                Ok(None)
            }
            Ok(n) => Ok(Some(n)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.read = false;
                Ok(None)
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(Some(0)),
            Err(error) => Err(format!("{who}: {error}")),
        }
    }
}

/// Sends what the socket takes; whether that was anything.
fn send(socket: &mut TcpStream, bytes: &mut Vec<u8>, ready: &mut Ready) -> io::Result<bool> {
    let mut sent = 0;
    while sent < bytes.len() {
        match socket.write(&bytes[sent..]) {
            Ok(n) => sent += n,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                ready.write = false;
                break;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    bytes.drain(..sent);
    Ok(sent > 0)
}
