//! When bytes arrived at this machine: the kernel's time of receipt
//! (`SO_TIMESTAMPNS`, socket(7)), which comes with them.
//!
//! The kernel reports it by the wall clock; the result is how long the bytes have waited
//! until now. If the clock was set in between, the result is wrong by as much, so it is
//! limited to the plausible range from 0 to [`LONGEST`].

use std::io::{self, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd};
use std::time::{Duration, SystemTime};

use nix::sys::socket::sockopt::ReceiveTimestampns;
use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg, setsockopt};
use nix::sys::time::TimeSpec;

/// The longest wait that is believed; a slower reader has other worries.
const LONGEST: Duration = Duration::from_secs(10);

/// Receives, with the time if that is wanted.
#[derive(Debug, Default)]
pub(super) struct Arrival {
    /// Room for the time; empty if it is not wanted.
    space: Vec<u8>,
    waited: Option<Duration>,
}

impl Arrival {
    /// Asks the kernel for times if `wanted`.
    pub(super) fn new(socket: &impl AsFd, wanted: bool) -> io::Result<Self> {
        if !wanted {
            return Ok(Self::default());
        }
        setsockopt(socket, ReceiveTimestampns, &true)?;
        Ok(Self {
            space: nix::cmsg_space!(TimeSpec),
            waited: None,
        })
    }

    /// Receives bytes; `plain` does when no time is wanted.
    pub(super) fn receive(
        &mut self,
        socket: &impl AsRawFd,
        buf: &mut [u8],
        plain: impl FnOnce(&mut [u8]) -> io::Result<usize>,
    ) -> io::Result<usize> {
        if self.space.is_empty() {
            return plain(buf);
        }
        self.waited = None;
        let mut slices = [IoSliceMut::new(buf)];
        let space = Some(&mut *self.space);
        let message = recvmsg::<()>(socket.as_raw_fd(), &mut slices, space, MsgFlags::empty())?;
        for control in message.cmsgs()? {
            if let ControlMessageOwned::ScmTimestampns(time) = control {
                let arrived = SystemTime::UNIX_EPOCH + Duration::from(time);
                let waited = SystemTime::now().duration_since(arrived);
                self.waited = Some(waited.unwrap_or_default().min(LONGEST));
            }
        }
        Ok(message.bytes)
    }

    /// How long the bytes received last had waited.
    pub(super) fn waited(&self) -> Option<Duration> {
        self.waited
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read as _, Write as _};
    use std::net::{TcpListener, TcpStream, UdpSocket};
    use std::time::Instant;

    const PAUSE: Duration = Duration::from_millis(20);

    fn pause() {
        let start = Instant::now();
        while start.elapsed() < PAUSE {
            std::hint::spin_loop();
        }
    }

    /// The kernel begins to note times a moment after the first socket asks
    /// for them; what came before has none, or that of reading.
    #[track_caller]
    fn comes_to_know(mut wait: impl FnMut() -> Duration) {
        let knows = (0..100).any(|_| (PAUSE..LONGEST).contains(&wait()));
        assert!(knows, "the time of arrival is that of reading");
    }

    #[test]
    fn a_datagram_says_how_long_it_waited() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let mut arrival = Arrival::new(&socket, true).unwrap();
        comes_to_know(|| {
            let own = socket.local_addr().unwrap();
            socket.send_to(b"abc", own).unwrap();
            pause();
            let mut buf = [0; 10];
            let n = arrival.receive(&socket, &mut buf, |_| panic!("without time"));
            assert_eq!(&buf[..n.unwrap()], b"abc");
            arrival.waited().unwrap_or_default()
        });
    }

    #[test]
    fn so_do_the_bytes_of_a_stream() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut sender = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (stream, _) = listener.accept().unwrap();
        let mut arrival = Arrival::new(&stream, true).unwrap();
        comes_to_know(|| {
            sender.write_all(b"abc").unwrap();
            pause();
            let mut buf = [0; 10];
            let n = arrival.receive(&stream, &mut buf, |_| panic!("without time"));
            assert_eq!(&buf[..n.unwrap()], b"abc");
            arrival.waited().unwrap_or_default()
        });
    }

    #[test]
    fn unasked_it_only_reads() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut sender = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (stream, _) = listener.accept().unwrap();
        let mut arrival = Arrival::new(&stream, false).unwrap();
        sender.write_all(b"abc").unwrap();
        let mut buf = [0; 10];
        let n = arrival.receive(&stream, &mut buf, |buf| (&stream).read(buf));
        assert_eq!((n.unwrap(), arrival.waited()), (3, None));
    }
}
