//! A TCP socket that blocks up to a deadline while it is being set up and not
//! at all afterwards.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream, ToSocketAddrs as _};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use super::arrival::Arrival;
use crate::Error;
use crate::endpoint::Endpoint;
use crate::marking::{Class, Marker};

#[derive(Debug)]
pub(super) struct Socket {
    stream: TcpStream,
    marker: Marker,
    arrival: Arrival,
    /// While it blocks.
    deadline: Option<Instant>,
}

impl Socket {
    /// Connects to the first address of the endpoint that answers.
    pub(super) fn connect(endpoint: &Endpoint, deadline: Instant) -> Result<Self, Error> {
        let unreachable = |source| Error::Unreachable {
            endpoint: endpoint.to_string(),
            source,
        };
        let usable = addresses(endpoint)?;
        let mut last = io::Error::new(io::ErrorKind::NotFound, "the host has no address");
        for (tried, address) in usable.iter().enumerate() {
            // What time is left is shared by the addresses that are left, so
            // that one that never answers does not hide the others.
            let left = deadline.saturating_duration_since(Instant::now());
            let share = left / (usable.len() - tried) as u32;
            match connect_to(*address, endpoint, share) {
                Ok(stream) => {
                    let arrival = Arrival::new(&stream, endpoint.kernel_times);
                    return Ok(Self {
                        arrival: arrival.map_err(Error::Lost)?,
                        marker: Marker::new(endpoint.marking, *address),
                        stream,
                        deadline: Some(deadline),
                    });
                }
                Err(error) => last = error,
            }
        }
        Err(unreachable(last))
    }

    pub(super) fn set_nonblocking(&mut self) -> io::Result<()> {
        self.deadline = None;
        self.stream.set_read_timeout(None)?;
        self.stream.set_write_timeout(None)?;
        self.stream.set_nonblocking(true)
    }

    pub(super) fn waited(&self) -> Option<Duration> {
        self.arrival.waited()
    }

    pub(super) fn mark(&mut self, class: Class) {
        self.marker.stream(&self.stream, class, Instant::now());
    }

    pub(super) fn finish(&self) -> io::Result<()> {
        self.stream.shutdown(Shutdown::Write)
    }

    /// The time left for a blocking call, which must not be zero.
    fn patience(&self) -> io::Result<Option<Duration>> {
        let Some(deadline) = self.deadline else {
            return Ok(None);
        };
        match deadline.saturating_duration_since(Instant::now()) {
            Duration::ZERO => Err(io::ErrorKind::TimedOut.into()),
            left => Ok(Some(left)),
        }
    }

    /// A blocking call that times out returns `WouldBlock`, which here would be
    /// understood as "try again later".
    fn in_time(&self, result: io::Result<usize>) -> io::Result<usize> {
        result.map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock if self.deadline.is_some() => io::ErrorKind::TimedOut.into(),
            _ => error,
        })
    }
}

/// The addresses of the endpoint's host that can be connected to from where it
/// is to be.
pub(super) fn addresses(endpoint: &Endpoint) -> Result<Vec<SocketAddr>, Error> {
    let addresses = (endpoint.host.as_str(), endpoint.port)
        .to_socket_addrs()
        .map_err(|source| Error::UnknownHost {
            host: endpoint.host.clone(),
            source,
        })?;
    let usable = addresses.filter(|address| {
        endpoint
            .bind
            .is_none_or(|bind| bind.is_ipv4() == address.is_ipv4())
    });
    Ok(usable.collect())
}

fn connect_to(
    address: SocketAddr,
    endpoint: &Endpoint,
    timeout: Duration,
) -> io::Result<TcpStream> {
    if timeout.is_zero() {
        return Err(io::ErrorKind::TimedOut.into());
    }
    let domain = socket2::Domain::for_address(address);
    let socket = socket2::Socket::new(domain, socket2::Type::STREAM, None)?;
    if let Some(bind) = endpoint.bind {
        socket.bind(&SocketAddr::new(bind, 0).into())?;
    }
    socket.connect_timeout(&address.into(), timeout)?;
    socket.set_tcp_nodelay(true)?;
    Ok(socket.into())
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

impl Read for Socket {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if let Some(left) = self.patience()? {
            self.stream.set_read_timeout(Some(left))?;
        }
        let Self {
            stream, arrival, ..
        } = self;
        let result = arrival.receive(stream, buf, |buf| (&*stream).read(buf));
        self.in_time(result)
    }
}

impl Write for Socket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if let Some(left) = self.patience()? {
            self.stream.set_write_timeout(Some(left))?;
        }
        let result = self.stream.write(bytes);
        self.in_time(result)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
