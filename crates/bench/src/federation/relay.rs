//! The baseline of brokers: a process in the place of each broker that copies bytes from one
//! connection to the next, in both directions, on the same cables.

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::thread;

use clap::{Args, ValueEnum};

use super::network::Brokers;
use crate::process::Process;
use crate::sys::{self, Epoll, Interest};
use punctual_measure::{Error, Result};

/// Subcommand of a relay.
pub(crate) const RELAY_COMMAND: &str = "federation-relay";
const PORT: u16 = 7000;
/// Most bytes of one read.
const BUFFER: usize = 256 << 10;

/// How a relay waits for data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Waits {
    /// In `read`, which can wait for one connection only.
    InRead,
    /// In `epoll_wait` before each read, as a server with many connections does.
    InEpoll,
}

/// A relay between the connection on its standard input and the one on its standard output, both
/// ways, until the first of them ends.
#[derive(Args, Debug)]
pub(crate) struct RelayArgs {
    /// How the relay waits for data
    #[arg(long, value_enum)]
    waits: Waits,
    /// The processor to which the relay is pinned
    #[arg(long)]
    core: Option<usize>,
}

impl RelayArgs {
    /// Relays until a connection is closed.
    ///
    /// # Errors
    /// If a connection breaks.
    pub(crate) fn run(&self) -> Result<()> {
        self.relay().map_err(Error::io("cannot relay"))
    }

    fn relay(&self) -> io::Result<()> {
        if let Some(core) = self.core {
            sys::pin_to_core(core)?;
        }
        // The buffered standard streams of the library would delay data.
        let ends = [
            io::stdin().as_fd().try_clone_to_owned()?,
            io::stdout().as_fd().try_clone_to_owned()?,
        ];
        let way = |from: usize, to: usize| -> io::Result<ForwardPath> {
            Ok(ForwardPath {
                from: File::from(ends[from].try_clone()?),
                to: File::from(ends[to].try_clone()?),
                bytes: vec![0; BUFFER],
            })
        };
        let (mut there, mut back) = (way(0, 1)?, way(1, 0)?);
        match self.waits {
            Waits::InRead => {
                // This thread ends with the process; the other direction reports a broken
                // connection.
                thread::spawn(move || while back.carry().is_ok_and(|more| more) {});
                while there.carry()? {}
                Ok(())
            }
            Waits::InEpoll => {
                let mut epoll = Epoll::new()?;
                epoll.add(there.from.as_raw_fd(), 0, Interest::READ)?;
                epoll.add(back.from.as_raw_fd(), 1, Interest::READ)?;
                loop {
                    for index in 0..epoll.wait(None)? {
                        let way = match epoll.ready(index).token {
                            0 => &mut there,
                            _ => &mut back,
                        };
                        if !way.carry()? {
                            return Ok(());
                        }
                    }
                }
            }
        }
    }
}

/// One direction of a relay.
struct ForwardPath {
    from: File,
    to: File,
    bytes: Vec<u8>,
}

impl ForwardPath {
    /// Reads bytes once and writes them. Returns false at the end of the stream.
    fn carry(&mut self) -> io::Result<bool> {
        let n = self.from.read(&mut self.bytes)?;
        self.to.write_all(&self.bytes[..n])?;
        Ok(n > 0)
    }
}

/// Relays in a row, with the connection into the first and the one out of the last.
pub(super) struct Relays {
    pub(super) into: TcpStream,
    pub(super) out: TcpStream,
    processes: Vec<Process>,
}

impl Relays {
    /// Starts one relay in the place of each of these brokers, of which each has a cable to the
    /// next; a relay is pinned to the core that `cores` names for it, if any.
    pub(super) fn start(
        brokers: &Brokers,
        way: &[usize],
        cores: &[usize],
        waits: Waits,
    ) -> Result<Self> {
        let first = way[0];
        let (into, mut from) = connection(brokers, [first, first], Ipv4Addr::LOCALHOST)?;
        let mut processes = Vec::new();
        for (index, at) in way.iter().enumerate() {
            let (next, address) = match way.get(index + 1) {
                Some(next) => (*next, brokers.address_from(*at, *next)),
                None => (*at, Ipv4Addr::LOCALHOST),
            };
            let (to, after) = connection(brokers, [*at, next], address)?;
            let mut command = brokers.own_command()?;
            command.args([RELAY_COMMAND, "--waits"]).arg(match waits {
                Waits::InRead => "in-read",
                Waits::InEpoll => "in-epoll",
            });
            if let Some(core) = cores.get(index) {
                command.arg("--core").arg(core.to_string());
            }
            let before = std::mem::replace(&mut from, after);
            command.stdin(OwnedFd::from(before));
            command.stdout(OwnedFd::from(to));
            sys::ends_with_thread(&mut command);
            let process = Process::spawn(&mut command);
            processes.push(process.map_err(Error::io(format!("cannot start {command:?}")))?);
        }
        Ok(Self {
            into,
            out: from,
            processes,
        })
    }

    /// Closes the connection into the first relay, and waits until all have forwarded their data
    /// and ended.
    pub(super) fn end(mut self) -> Result<()> {
        drop(self.into);
        // A caller may have set a read timeout.
        let drained = self.out.set_read_timeout(None);
        drained
            .and_then(|()| io::copy(&mut self.out, &mut io::sink()))
            .map_err(Error::io("cannot relay"))?;
        for process in &mut self.processes {
            let status = process.child().wait();
            let status = status.map_err(Error::io("cannot wait for a relay"))?;
            if !status.success() {
                return Err(Error::Peer {
                    peer: "a relay".into(),
                    why: format!("it ended with {status}"),
                });
            }
        }
        Ok(())
    }
}

/// The two ends of a connection from one broker's place to an address at another's.
fn connection(
    brokers: &Brokers,
    [from, to]: [usize; 2],
    address: Ipv4Addr,
) -> Result<(TcpStream, TcpStream)> {
    let context = || Error::io("cannot relay");
    let listener = brokers
        .space(to)
        .enter(|| TcpListener::bind(SocketAddr::from((address, PORT))))?
        .map_err(context())?;
    let near = brokers
        .space(from)
        .enter(|| TcpStream::connect((address, PORT)))?
        .map_err(context())?;
    let (far, _) = listener.accept().map_err(context())?;
    for end in [&near, &far] {
        end.set_nodelay(true).map_err(context())?;
    }
    Ok((near, far))
}
