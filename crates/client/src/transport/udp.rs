//! MQTT over UDP: the state machine of `punctual-udp` on one socket.
//!
//! To its owner it is a transport like the others: packets go in and come out
//! in a legal order, from which QoS 0 messages may be missing. One socket,
//! because the server knows a client by its address; the marks of a class are
//! set before its datagrams are sent.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use punctual_codec::{Split, split};
use punctual_udp::{Client, ClientConfig, ClientState, MAX_DATAGRAM_V4, MAX_DATAGRAM_V6, Transmit};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use super::Transport;
use super::arrival::Arrival;
use super::socket::addresses;
use crate::Error;
use crate::endpoint::Endpoint;
use crate::marking::{Class, Marker};

/// Bytes of the largest datagram that there can be.
const DATAGRAM: usize = 65_535;

pub(super) struct Datagrams {
    socket: UdpSocket,
    client: Client,
    config: ClientConfig,
    epoch: Instant,
    marker: Marker,
    /// Class of the bytes that are written.
    class: Class,
    /// A datagram that the system did not take.
    unsent: Option<Transmit<()>>,
    buffer: Box<[u8]>,
    arrival: Arrival,
    /// Further addresses of the server, the next one last.
    others: Vec<SocketAddr>,
    /// CONNECT, to be said again at another address.
    connect: Vec<u8>,
    finished: bool,
}

impl Datagrams {
    /// A socket for a connection that begins with the first packet.
    pub(super) fn open(endpoint: &Endpoint) -> Result<Self, Error> {
        let unreachable = |source| Error::Unreachable {
            endpoint: endpoint.to_string(),
            source,
        };
        let mut others = addresses(endpoint)?;
        let socket = socket_for(&mut others).map_err(unreachable)?;
        if let Some(bind) = endpoint.bind {
            let bind = SocketAddr::new(bind, 0).into();
            socket.bind(&bind).map_err(unreachable)?;
        }
        socket.set_nonblocking(true).map_err(unreachable)?;
        others.reverse();
        let peer = connect_next(&socket, &mut others).map_err(unreachable)?;
        let longest = match peer.ip().to_canonical().is_ipv4() {
            true => MAX_DATAGRAM_V4,
            false => MAX_DATAGRAM_V6,
        };
        let arrival = Arrival::new(&socket, endpoint.kernel_times).map_err(Error::Lost)?;
        let config = ClientConfig {
            max_datagram: endpoint.max_datagram.map_or(longest, usize::from),
            ..ClientConfig::default()
        };
        Ok(Self {
            marker: Marker::new(endpoint.marking, peer),
            socket: socket.into(),
            client: Client::new(config.clone(), nonce()?),
            config,
            epoch: Instant::now(),
            class: Class::Normal,
            unsent: None,
            buffer: vec![0; DATAGRAM].into_boxed_slice(),
            arrival,
            others,
            connect: Vec::new(),
            finished: false,
        })
    }

    fn now(&self) -> Duration {
        self.epoch.elapsed()
    }

    fn is_connecting(&self) -> bool {
        self.client.state() == ClientState::Connecting
    }

    /// What the system says about the socket. While nothing has come from the
    /// server, that it does not listen at an address leads to the next;
    /// afterwards anything may be passing, as the loss of a datagram is.
    fn failed(&mut self, error: io::Error) -> io::Result<()> {
        if !self.is_connecting() {
            return Ok(());
        }
        let socket = socket2::SockRef::from(&self.socket);
        if self.others.is_empty() || connect_next(&socket, &mut self.others).is_err() {
            return Err(error);
        }
        let nonce = nonce().map_err(io::Error::other)?;
        self.client = Client::new(self.config.clone(), nonce);
        self.unsent = None;
        let now = self.now();
        self.client
            .send(&self.connect, self.class as u8, now)
            .map_err(io::Error::other)
    }
}

/// Addresses to which one socket can be connected one after the other: of
/// either family through an IPv6 socket, if there is such a thing here.
fn socket_for(addresses: &mut Vec<SocketAddr>) -> io::Result<Socket> {
    let new = |domain| Socket::new(domain, Type::DGRAM, Some(Protocol::UDP));
    let both =
        addresses.iter().any(SocketAddr::is_ipv4) && addresses.iter().any(SocketAddr::is_ipv6);
    if both {
        let socket = new(Domain::IPV6).and_then(|socket| {
            socket.set_only_v6(false)?;
            Ok(socket)
        });
        if let Ok(socket) = socket {
            for address in addresses.iter_mut() {
                if let SocketAddr::V4(v4) = address {
                    *address = (v4.ip().to_ipv6_mapped(), v4.port()).into();
                }
            }
            return Ok(socket);
        }
        addresses.retain(SocketAddr::is_ipv4);
    }
    match addresses.first() {
        Some(first) => new(Domain::for_address(*first)),
        None => Err(io::Error::new(
            io::ErrorKind::NotFound,
            "the host has no address",
        )),
    }
}

/// Connects to the last address that can be connected to; those that cannot
/// are left out.
fn connect_next(socket: &Socket, addresses: &mut Vec<SocketAddr>) -> io::Result<SocketAddr> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the host has no address");
    while let Some(address) = addresses.pop() {
        match socket.connect(&SockAddr::from(address)) {
            Ok(()) => return Ok(address),
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn nonce() -> Result<[u8; 8], Error> {
    let nonce = getrandom::u64().map_err(|error| Error::Lost(error.into()))?;
    Ok(nonce.to_be_bytes())
}

/// Bytes of the whole packets at the beginning.
fn whole(bytes: &[u8]) -> usize {
    let mut rest = bytes;
    while let Ok(Split::Frame(frame)) = split(rest, u32::MAX) {
        rest = &rest[frame.bytes.len()..];
    }
    bytes.len() - rest.len()
}

impl AsFd for Datagrams {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Transport for Datagrams {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        loop {
            let received = self.client.received();
            if !received.is_empty() {
                let n = received.len().min(buf.len());
                buf[..n].copy_from_slice(&received[..n]);
                self.client.take_received(n);
                return Ok(n);
            }
            match self.client.state() {
                ClientState::Closed(_) if self.finished => return Ok(0),
                ClientState::Closed(why) => {
                    return Err(io::Error::new(io::ErrorKind::ConnectionAborted, why));
                }
                _ => {}
            }
            let Self {
                socket,
                arrival,
                buffer,
                ..
            } = self;
            match arrival.receive(socket, buffer, |buf| socket.recv(buf)) {
                Ok(n) => {
                    let now = self.now();
                    self.client.handle(&self.buffer[..n], now);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Err(error),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => self.failed(error)?,
            }
            match self.flush() {
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(error),
                _ => {}
            }
        }
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.unsent.is_some() {
            self.flush()?;
        }
        if let ClientState::Closed(why) = self.client.state() {
            return Err(io::Error::new(io::ErrorKind::ConnectionAborted, why));
        }
        let n = whole(bytes);
        if self.is_connecting() && self.connect.is_empty() {
            self.connect = bytes[..n].to_vec();
        }
        let now = self.now();
        match self.client.send(&bytes[..n], self.class as u8, now) {
            Ok(()) => Ok(n),
            Err(_) => Err(io::ErrorKind::WouldBlock.into()),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        while let Some(transmit) = self.unsent.take().or_else(|| self.client.poll_transmit()) {
            self.marker
                .datagram(&self.socket, Class::from(transmit.class));
            match self.socket.send(&transmit.data) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.unsent = Some(transmit);
                    return Err(error);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {
                    self.unsent = Some(transmit);
                }
                Err(error) => self.failed(error)?,
            }
        }
        Ok(())
    }

    fn finish(&mut self) -> io::Result<()> {
        // DISCONNECT was written; the server's confirmation is the end.
        self.finished = true;
        self.flush()
    }

    fn mark(&mut self, class: Class) {
        self.class = class;
    }

    fn waited(&self) -> Option<Duration> {
        self.arrival.waited()
    }

    fn max_packet(&self) -> Option<usize> {
        Some(self.client.capacity())
    }

    fn timeout(&self) -> Option<Instant> {
        self.client.next_timeout().map(|at| self.epoch + at)
    }

    fn tick(&mut self) -> io::Result<()> {
        let now = self.now();
        if self.client.next_timeout().is_some_and(|at| at <= now) {
            self.client.handle_timeout(now);
            match self.flush() {
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }
}
