//! What brokers are compared with: a thread in each of their namespaces that reads from one
//! connection and writes to the next, on the same cables.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::thread::{self, JoinHandle};

use super::network::Brokers;
use crate::error::{Error, Result};
use crate::sys::{self, Epoll, Interest};

/// From A to E: brokers of the line, and the number of the cable to the next.
const WAY: [(usize, u8); 4] = [(0, 1), (1, 2), (3, 3), (4, 0)];
const PORT: u16 = 7000;
/// Bytes that are read at once.
const BUFFER: usize = 256 << 10;

/// How a relay waits for what comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Waits {
    /// In `read`: it can wait for one connection only.
    InRead,
    /// In `epoll_wait`, and then it reads: as one does that has many.
    InEpoll,
}

/// Relays in a line that begins at A, and what leads into the first and out of the last.
pub(super) struct Relays {
    pub(super) into: TcpStream,
    pub(super) out: TcpStream,
    threads: Vec<JoinHandle<io::Result<()>>>,
}

impl Relays {
    /// So many, each pinned to the core that `cores` names for it, if it does.
    pub(super) fn start(
        brokers: &Brokers,
        number: usize,
        cores: &[usize],
        waits: Waits,
    ) -> Result<Self> {
        let context = || Error::io("cannot relay");
        let listen = |at: usize| {
            let address = (Ipv4Addr::UNSPECIFIED, PORT);
            brokers.space(at).enter(|| TcpListener::bind(address))
        };
        let way = &WAY[..number];
        let listeners = way
            .iter()
            .map(|(at, _)| listen(*at)?.map_err(context()))
            .collect::<Result<Vec<_>>>()?;
        // The receiver listens where the last relay is.
        let (last, _) = way[number - 1];
        let local = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let end = brokers
            .space(last)
            .enter(|| TcpListener::bind(local(PORT + 1)))?
            .map_err(context())?;
        let mut threads = Vec::new();
        for (index, listener) in listeners.into_iter().enumerate() {
            let (at, cable) = way[index];
            let next = match index + 1 == number {
                true => local(PORT + 1),
                // Who is further from the root has .1 on each cable.
                false => SocketAddr::from((Ipv4Addr::new(10, 9, cable, 1), PORT)),
            };
            let space = brokers.space(at).clone();
            let core = cores.get(index).copied();
            threads.push(thread::spawn(move || -> io::Result<()> {
                if let Some(core) = core {
                    sys::pin_to_core(core)?;
                }
                let mut to = space
                    .enter(|| TcpStream::connect(next))
                    .map_err(io::Error::other)??;
                to.set_nodelay(true)?;
                let (mut from, _) = listener.accept()?;
                let mut epoll = match waits {
                    Waits::InRead => None,
                    Waits::InEpoll => {
                        let epoll = Epoll::new()?;
                        epoll.add(from.as_raw_fd(), 0, Interest::READ)?;
                        Some(epoll)
                    }
                };
                let mut bytes = vec![0; BUFFER];
                loop {
                    if let Some(epoll) = &mut epoll {
                        epoll.wait(None)?;
                    }
                    match from.read(&mut bytes)? {
                        0 => return Ok(()),
                        n => to.write_all(&bytes[..n])?,
                    }
                }
            }));
        }
        let into = brokers
            .space(0)
            .enter(|| TcpStream::connect(local(PORT)))?
            .map_err(context())?;
        into.set_nodelay(true).map_err(context())?;
        let (out, _) = end.accept().map_err(context())?;
        Ok(Self { into, out, threads })
    }

    /// Waits until they have ended, which they do one after the other once nothing leads into
    /// the first any more, and the last has given away what they still had.
    pub(super) fn end(mut self) -> Result<()> {
        drop(self.into);
        // Whoever has read from it may not have waited for long.
        let drained = self.out.set_read_timeout(None);
        drained
            .and_then(|()| io::copy(&mut self.out, &mut io::sink()))
            .map_err(Error::io("cannot relay"))?;
        let panicked = |_| io::Error::other("a thread panicked");
        for thread in self.threads {
            let ended = thread.join().map_err(panicked).flatten();
            ended.map_err(Error::io("cannot relay"))?;
        }
        Ok(())
    }
}
