//! MQTT over QUIC: the state machine of `quinn-proto` on one socket.
//!
//! One bidirectional stream carries MQTT as TCP would. Where both sides agree on it (ALPN
//! `mqtt-datagram`), messages with QoS 0 travel in DATAGRAM frames (RFC 9221): they do
//! not wait for retransmissions, and may be lost, or overtake the stream. To its user it
//! is a transport like the others: packets arrive whole and in a legal order.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use nix::libc;
use punctual_codec::{Split, Version, split};
use punctual_udp::{are_messages, may_be_lost};
use quinn_proto::crypto::rustls::{HandshakeData, QuicClientConfig};
use quinn_proto::{
    ClientConfig, Connection, ConnectionError, ConnectionHandle, DatagramEvent, Dir, Endpoint,
    EndpointConfig, Event, ReadError, SendDatagramError, StreamId, TransportConfig, VarInt,
    WriteError,
};
use socket2::{Domain, Protocol, Socket, Type};

use super::boundary::Boundary;
use super::socket::addresses;
use super::{Transport, tls};
use crate::Error;
use crate::endpoint::{self, TlsVersion};
use crate::marking::{Class, Marker};
use crate::transport::arrival::Arrival;

/// MQTT on the first stream.
const ALPN: &str = "mqtt";
/// The same, with messages in DATAGRAM frames.
const ALPN_DATAGRAM: &str = "mqtt-datagram";
/// Bound on bytes that are unsent or unacknowledged. More output waits in the client's
/// core.
const SEND_WINDOW: u64 = 256 << 10;
/// The same for DATAGRAM frames; and for those received, of which the oldest
/// go first.
const DATAGRAMS: usize = 256 << 10;
/// Bytes of the largest UDP datagram that there can be.
const LARGEST: usize = 65_535;
/// Code of an end in good order.
const DONE: VarInt = VarInt::from_u32(0);

pub(super) struct Quic {
    socket: UdpSocket,
    endpoint: Endpoint,
    handle: ConnectionHandle,
    connection: Connection,
    stream: StreamId,
    version: Version,
    /// Both sides send messages with QoS 0 in DATAGRAM frames.
    datagrams: bool,
    /// Packet boundaries in the received stream.
    read: Boundary,
    /// The rest of a datagram that did not fit into the reader's buffer.
    held: Bytes,
    /// Bytes of a packet of which a part was written to the stream.
    rest: usize,
    /// The server has said something on the stream.
    answered: bool,
    /// A datagram that the system did not take.
    unsent: Option<Vec<u8>>,
    marker: Marker,
    arrival: Arrival,
    buffer: Box<[u8]>,
    /// When the connection wants to be looked at.
    due: Option<Instant>,
    /// The end of the connection.
    lost: Option<ConnectionError>,
}

impl Quic {
    /// Connects to the first address of the endpoint that answers, and does the
    /// handshake, blocking.
    pub(super) fn open(endpoint: &endpoint::Endpoint, version: Version) -> Result<Self, Error> {
        // Files that cannot be read are reported before anything is sent.
        let config = config(endpoint)?;
        let deadline = Instant::now() + endpoint.timeout;
        let usable = addresses(endpoint)?;
        let mut last = Error::Unreachable {
            endpoint: endpoint.to_string(),
            source: io::Error::new(io::ErrorKind::NotFound, "the host has no address"),
        };
        for (tried, address) in usable.iter().enumerate() {
            let now = Instant::now();
            let share = deadline.saturating_duration_since(now) / (usable.len() - tried) as u32;
            match Self::open_at(*address, endpoint, config.clone(), version, now + share) {
                Ok(open) => return Ok(open),
                // A server answered, and its other addresses would answer the same.
                Err(error @ Error::Tls(_)) => return Err(error),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    fn open_at(
        address: SocketAddr,
        endpoint: &endpoint::Endpoint,
        config: ClientConfig,
        version: Version,
        deadline: Instant,
    ) -> Result<Self, Error> {
        let unreachable = |source| Error::Unreachable {
            endpoint: endpoint.to_string(),
            source,
        };
        let socket = connected(address, endpoint).map_err(unreachable)?;
        let name = endpoint.tls.server_name.as_ref().unwrap_or(&endpoint.host);
        let mut state = EndpointConfig::default();
        // The buffer takes the largest there are; paths decide.
        let _ = state.max_udp_payload_size(65_527);
        let mut state = Endpoint::new(Arc::new(state), None, true, None);
        let connecting = state.connect(Instant::now(), config, address, name);
        let (handle, connection) = connecting.map_err(|error| {
            Error::misuse("server name", name, format!("cannot be asked for: {error}"))
        })?;
        let mut quic = Self {
            arrival: Arrival::new(&socket, endpoint.kernel_times).map_err(Error::Lost)?,
            marker: Marker::new(endpoint.marking, address),
            socket,
            endpoint: state,
            handle,
            connection,
            stream: StreamId::new(quinn_proto::Side::Client, Dir::Bi, 0),
            version,
            datagrams: false,
            read: Boundary::default(),
            held: Bytes::new(),
            rest: 0,
            answered: false,
            unsent: None,
            buffer: vec![0; LARGEST].into_boxed_slice(),
            due: None,
            lost: None,
        };
        quic.shake_hands(endpoint, deadline)?;
        quic.socket.set_nonblocking(true).map_err(unreachable)?;
        match quic.connection.streams().open(Dir::Bi) {
            Some(stream) => quic.stream = stream,
            None => {
                let text = format!("{endpoint} allows no stream; is it an MQTT server?");
                return Err(Error::Lost(io::Error::other(text)));
            }
        }
        Ok(quic)
    }

    fn shake_hands(
        &mut self,
        endpoint: &endpoint::Endpoint,
        deadline: Instant,
    ) -> Result<(), Error> {
        let unreachable = |source| Error::Unreachable {
            endpoint: endpoint.to_string(),
            source,
        };
        while self.connection.is_handshaking() && self.lost.is_none() {
            self.send_all().map_err(unreachable)?;
            let now = Instant::now();
            let left = deadline.saturating_duration_since(now);
            if left.is_zero() {
                let silent = io::Error::new(io::ErrorKind::TimedOut, "nothing answers");
                return Err(unreachable(silent));
            }
            let due = self.connection.poll_timeout();
            let wait = due.map_or(left, |due| left.min(due.saturating_duration_since(now)));
            let wait = wait.max(Duration::from_micros(1));
            let patience = self.socket.set_read_timeout(Some(wait));
            patience.map_err(unreachable)?;
            match self.receive_one() {
                Ok(()) => {}
                Err(error)
                    if matches!(
                        error.kind(),
                        io::ErrorKind::WouldBlock
                            | io::ErrorKind::TimedOut
                            | io::ErrorKind::Interrupted
                    ) => {}
                Err(error) => return Err(unreachable(error)),
            }
            self.connection.handle_timeout(Instant::now());
            self.take_events();
        }
        if let Some(lost) = &self.lost {
            return Err(explain(lost, endpoint));
        }
        let data = self.connection.crypto_session().handshake_data();
        let data = data.and_then(|data| data.downcast::<HandshakeData>().ok());
        let agreed = data.and_then(|data| data.protocol);
        self.datagrams = agreed.as_deref() == Some(ALPN_DATAGRAM.as_bytes())
            && self.connection.datagrams().max_size().is_some();
        Ok(())
    }

    /// Receives one datagram.
    fn receive_one(&mut self) -> io::Result<()> {
        let Self {
            socket,
            arrival,
            buffer,
            ..
        } = self;
        let n = arrival.receive(socket, buffer, |buf| socket.recv(buf))?;
        let data = BytesMut::from(&self.buffer[..n]);
        let mut answer = Vec::new();
        let peer = self.connection.remote_address();
        let event = self
            .endpoint
            .handle(Instant::now(), peer, None, None, data, &mut answer);
        match event {
            Some(DatagramEvent::ConnectionEvent(_, event)) => self.connection.handle_event(event),
            // Lost if the system does not take it, as datagrams may be.
            Some(DatagramEvent::Response(_)) => drop(self.socket.send(&answer)),
            Some(DatagramEvent::NewConnection(incoming)) => self.endpoint.ignore(incoming),
            None => {}
        }
        Ok(())
    }

    /// Handles the events of the connection.
    fn take_events(&mut self) {
        while let Some(event) = self.connection.poll() {
            if let Event::ConnectionLost { reason } = event {
                self.lost = Some(reason);
            }
        }
        while let Some(event) = self.connection.poll_endpoint_events() {
            if let Some(answer) = self.endpoint.handle_event(self.handle, event) {
                self.connection.handle_event(answer);
            }
        }
    }

    /// Sends what may be sent.
    fn send_all(&mut self) -> io::Result<()> {
        loop {
            let data = match self.unsent.take() {
                Some(data) => data,
                None => {
                    let mut data = Vec::new();
                    let made = self.connection.poll_transmit(Instant::now(), 1, &mut data);
                    if made.is_none() {
                        self.due = self.connection.poll_timeout();
                        return Ok(());
                    }
                    data
                }
            };
            match self.socket.send(&data) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.unsent = Some(data);
                    self.due = self.connection.poll_timeout();
                    return Err(error);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {
                    self.unsent = Some(data);
                }
                // The port is closed: the error is reported once, at the first call.
                // While connected, only silence ends the connection.
                Err(error) if self.connection.is_handshaking() => return Err(error),
                Err(_) => {}
            }
        }
    }

    /// The next bytes for the reader; `None` if nothing has come.
    fn received(&mut self, buf: &mut [u8]) -> io::Result<Option<usize>> {
        if self.held.is_empty() && self.answered && self.read.at_start() {
            while let Some(datagram) = self.connection.datagrams().recv() {
                if self.datagrams && are_messages(&datagram) {
                    self.held = datagram;
                    break;
                }
            }
        }
        if !self.held.is_empty() {
            let n = self.held.len().min(buf.len());
            buf[..n].copy_from_slice(&self.held.split_to(n));
            return Ok(Some(n));
        }
        let mut stream = self.connection.recv_stream(self.stream);
        if let Ok(mut chunks) = stream.read(true) {
            let mut n = 0;
            let mut end = None;
            while n < buf.len() {
                match chunks.next(buf.len() - n) {
                    Ok(Some(chunk)) => {
                        buf[n..n + chunk.bytes.len()].copy_from_slice(&chunk.bytes);
                        n += chunk.bytes.len();
                    }
                    Ok(None) => {
                        end = Some(Ok(Some(0)));
                        break;
                    }
                    Err(ReadError::Blocked) => break,
                    Err(ReadError::Reset(_)) => {
                        end = Some(Err(io::ErrorKind::ConnectionReset.into()));
                        break;
                    }
                }
            }
            let _ = chunks.finalize();
            if n > 0 {
                self.answered = true;
                self.read.pass(&buf[..n]);
                return Ok(Some(n));
            }
            if let Some(end) = end {
                return end;
            }
        } else if self.lost.is_none() {
            // The end was read before.
            return Ok(Some(0));
        }
        match &self.lost {
            None => Ok(None),
            Some(ConnectionError::ApplicationClosed(close)) if close.error_code == DONE => {
                Ok(Some(0))
            }
            Some(lost) => Err(io::Error::new(
                io::ErrorKind::ConnectionAborted,
                in_words(lost),
            )),
        }
    }

    /// Sends the packet in a DATAGRAM frame; `None` if it belongs on the stream.
    fn send_datagram(&mut self, packet: &[u8]) -> Option<io::Result<()>> {
        let mut datagrams = self.connection.datagrams();
        if datagrams.max_size().is_none_or(|most| packet.len() > most) {
            return None;
        }
        match datagrams.send(Bytes::copy_from_slice(packet), false) {
            Ok(()) => Some(Ok(())),
            Err(SendDatagramError::Blocked(_)) => Some(Err(io::ErrorKind::WouldBlock.into())),
            Err(_) => None,
        }
    }

    fn write_stream(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self.connection.send_stream(self.stream).write(bytes) {
            Ok(n) => {
                self.rest -= n.min(self.rest);
                Ok(n)
            }
            Err(WriteError::Blocked) if self.lost.is_none() => {
                Err(io::ErrorKind::WouldBlock.into())
            }
            Err(error) => {
                let why = self.lost.as_ref().map(in_words);
                let why = why.unwrap_or_else(|| error.to_string());
                Err(io::Error::new(io::ErrorKind::ConnectionAborted, why))
            }
        }
    }

    /// Takes one packet, or a part of one.
    fn write_one(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.rest == 0 {
            self.rest = match split(bytes, u32::MAX) {
                Ok(Split::Frame(frame)) => {
                    if self.datagrams
                        && self.answered
                        && may_be_lost(&frame, self.version)
                        && let Some(result) = self.send_datagram(frame.bytes)
                    {
                        return result.map(|()| frame.bytes.len());
                    }
                    frame.bytes.len()
                }
                Ok(Split::Incomplete { total: Some(total) }) => total,
                _ => bytes.len(),
            };
        }
        self.write_stream(&bytes[..bytes.len().min(self.rest)])
    }
}

/// Has the connection end at the server, too, as soon as that is known here.
impl Drop for Quic {
    fn drop(&mut self) {
        self.connection.close(Instant::now(), DONE, Bytes::new());
        let _ = self.send_all();
    }
}

fn config(endpoint: &endpoint::Endpoint) -> Result<ClientConfig, Error> {
    let options = &endpoint.tls;
    if options.version == Some(TlsVersion::V12) {
        let remedy = "QUIC has TLS 1.3 in it; leave the version out";
        return Err(Error::misuse("TLS version", "1.2", remedy));
    }
    let mut tls = tls::client_config(options)?;
    if tls.alpn_protocols.is_empty() {
        let names = [ALPN_DATAGRAM, ALPN];
        let names = &names[usize::from(!endpoint.datagrams)..];
        tls.alpn_protocols = names.iter().map(|name| name.as_bytes().to_vec()).collect();
    }
    let crypto = QuicClientConfig::try_from(tls).map_err(|e| Error::Tls(e.to_string()))?;
    let mut transport = TransportConfig::default();
    transport
        .max_concurrent_bidi_streams(VarInt::from_u32(0))
        .max_concurrent_uni_streams(VarInt::from_u32(0))
        .send_window(SEND_WINDOW)
        .datagram_send_buffer_size(DATAGRAMS)
        .datagram_receive_buffer_size(Some(DATAGRAMS))
        // MQTT has a keep-alive of its own; the server may have another.
        .max_idle_timeout(None)
        .enable_segmentation_offload(false);
    let mut config = ClientConfig::new(Arc::new(crypto));
    config.transport_config(Arc::new(transport));
    Ok(config)
}

/// A socket whose datagrams are never fragmented (RFC 9000 section 14).
fn connected(address: SocketAddr, endpoint: &endpoint::Endpoint) -> io::Result<UdpSocket> {
    let domain = Domain::for_address(address);
    let socket = Socket::new(domain, Type::DGRAM, Some(Protocol::UDP))?;
    if let Some(bind) = endpoint.bind {
        socket.bind(&SocketAddr::new(bind, 0).into())?;
    }
    match address {
        SocketAddr::V4(_) => {
            let probe = libc::IP_PMTUDISC_PROBE;
            set_option(&socket, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, probe)?;
        }
        SocketAddr::V6(_) => {
            let probe = libc::IPV6_PMTUDISC_PROBE;
            set_option(&socket, libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, probe)?;
        }
    }
    socket.connect(&address.into())?;
    Ok(socket.into())
}

fn set_option(
    socket: &Socket,
    level: libc::c_int,
    name: libc::c_int,
    value: libc::c_int,
) -> io::Result<()> {
    let size = size_of::<libc::c_int>() as libc::socklen_t;
    let value = (&raw const value).cast();
    // SAFETY: the pointer is to a live c_int of the length given.
    match unsafe { libc::setsockopt(socket.as_raw_fd(), level, name, value, size) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// TLS alerts in codes of QUIC (RFC 9001 section 4.8).
fn alert(code: u64) -> Option<u8> {
    (code & !0xFF == 0x100).then_some(code as u8)
}

/// The end of a connection in words.
fn in_words(lost: &ConnectionError) -> String {
    match lost {
        ConnectionError::ConnectionClosed(close) => match alert(close.error_code.into()) {
            Some(116) => "the server wants a client certificate; give one with its key".into(),
            Some(42..=49) => "the server does not accept the client's certificate".into(),
            Some(120) => {
                "the server speaks QUIC, but not MQTT over it (ALPN); is it an MQTT port?".into()
            }
            _ => format!("the server ended the connection: {close}"),
        },
        ConnectionError::ApplicationClosed(close) => {
            format!("the server ended the connection: {close}")
        }
        ConnectionError::TimedOut => "the server does not answer any more".into(),
        ConnectionError::Reset => "the server knows nothing of this connection any more".into(),
        other => other.to_string(),
    }
}

/// Why there is no connection.
fn explain(lost: &ConnectionError, endpoint: &endpoint::Endpoint) -> Error {
    match lost {
        ConnectionError::TransportError(error) if alert(error.code.into()).is_some() => {
            let reason = &error.reason;
            if let Some(why) = tls::if_authority(reason) {
                return Error::Tls(format!("{endpoint}: {why}"));
            }
            let remedy = if reason.contains("UnknownIssuer") {
                "; give the CA file of the authority that signed it"
            } else if reason.contains("NotValidForName") || reason.contains("not valid for name") {
                "; connect by a name that is in the certificate, or give it as the server name"
            } else {
                ""
            };
            Error::Tls(format!("{endpoint}: {reason}{remedy}"))
        }
        ConnectionError::ConnectionClosed(close) if alert(close.error_code.into()).is_some() => {
            Error::Tls(format!("{endpoint}: {}", in_words(lost)))
        }
        other => Error::Unreachable {
            endpoint: endpoint.to_string(),
            source: io::Error::other(in_words(other)),
        },
    }
}

impl AsFd for Quic {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Transport for Quic {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        loop {
            if let Some(n) = self.received(buf)? {
                return Ok(n);
            }
            match self.receive_one() {
                Ok(()) => self.take_events(),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    // Received packets cause acknowledgements, and make space.
                    return match self.send_all() {
                        Err(other) if other.kind() != io::ErrorKind::WouldBlock => Err(other),
                        _ => Err(error),
                    };
                }
                // An ICMP message about an earlier datagram, which is lost.
                Err(_) => {}
            }
        }
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut taken = 0;
        while taken < bytes.len() {
            match self.write_one(&bytes[taken..]) {
                Ok(n) => taken += n,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && taken > 0 => break,
                Err(error) => {
                    // There may be space once buffered bytes are sent.
                    let _ = self.send_all();
                    return Err(error);
                }
            }
        }
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.send_all()
    }

    fn finish(&mut self) -> io::Result<()> {
        // Fails only if the server wants nothing more, or the connection is gone.
        let _ = self.connection.send_stream(self.stream).finish();
        self.send_all()
    }

    fn mark(&mut self, class: Class) {
        self.marker.stream(&self.socket, class, Instant::now());
    }

    fn waited(&self) -> Option<Duration> {
        self.arrival.waited()
    }

    fn timeout(&self) -> Option<Instant> {
        self.due
    }

    fn tick(&mut self) -> io::Result<()> {
        let now = Instant::now();
        if self.due.is_none_or(|due| due > now) {
            return Ok(());
        }
        self.connection.handle_timeout(now);
        self.take_events();
        match self.send_all() {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
            _ => Ok(()),
        }
    }
}
