//! Options of TCP sockets: what keeps messages out of the kernel's buffers, so
//! that the broker still decides which goes first.
//!
//! `TCP_NODELAY` is always on: the broker flushes once per turn, and Nagle's
//! algorithm would hold the last segment back until the peer's delayed
//! acknowledgement, 40 ms later. Everything else is in [`TcpOptions`].
//! Sources: tcp(7), socket(7), RFC 5482.

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use socket2::SockRef;

/// How the sockets of clients are set up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TcpOptions {
    /// Bytes that every connection may hand to the kernel ahead of what the
    /// network takes; the rest waits in the broker. `None`: as much as the
    /// send buffer has room for.
    pub notsent_lowat: Option<u32>,
    /// The same for connections that have been sent an urgent message (classes
    /// `RealTime` and `Priority`).
    pub urgent_notsent_lowat: Option<u32>,
    /// Send buffer of these connections, bytes: also bounds what is on its way,
    /// in the queues of devices and switches. `None`: Linux adapts it to the
    /// path; a fixed one ends that for good.
    pub urgent_send_buffer: Option<u32>,
    /// How long sent bytes may stay unacknowledged before the connection is
    /// given up. `None`: the system's, about 15 minutes.
    pub user_timeout: Option<Duration>,
}

impl TcpOptions {
    /// Sets up a socket that is about to listen: connections inherit the options, which so take
    /// no calls for each of them. Without an option that the system refuses they work, only later.
    /// Source: `tcp_create_openreq_child` of Linux.
    pub(crate) fn listening(&self, socket: &impl AsFd) {
        let socket = SockRef::from(socket);
        let _ = socket.set_tcp_nodelay(true);
        if let Some(bytes) = self.notsent_lowat {
            let _ = socket.set_tcp_notsent_lowat(bytes);
        }
        if self.user_timeout.is_some() {
            let _ = socket.set_tcp_user_timeout(self.user_timeout);
        }
    }

    /// Bytes that are handed over in one step on connections that are sent urgent
    /// messages. The kernel looks at its limit of unsent bytes only where it
    /// begins a buffer, which has room for up to 64 KiB where the device takes
    /// super-packets.
    pub(super) fn urgent_step(&self) -> usize {
        self.urgent_notsent_lowat.map_or(usize::MAX, |n| n as usize)
    }

    /// Sets up a connection that is sent urgent messages, once for its life.
    pub(super) fn urgent(&self, stream: &impl AsFd) {
        let socket = SockRef::from(stream);
        if let Some(bytes) = self.urgent_notsent_lowat {
            let _ = socket.set_tcp_notsent_lowat(bytes);
        }
        if let Some(bytes) = self.urgent_send_buffer {
            // The kernel doubles the value for its own bookkeeping.
            let _ = socket.set_send_buffer_size(bytes as usize);
        }
    }
}

/// Reads at most so many bytes and appends them. What they are written over is not cleared before,
/// which takes a tenth of the time of a large message.
///
/// # Errors
/// See recv(2).
pub(super) fn read_behind(
    stream: &impl AsFd,
    bytes: &mut Vec<u8>,
    most: usize,
) -> io::Result<usize> {
    bytes.reserve(most);
    let before = bytes.len();
    let (read, _) = rustix::io::read(stream, &mut bytes.spare_capacity_mut()[..most])?;
    let n = read.len();
    // SAFETY: these are within the capacity, and were just written.
    unsafe { bytes.set_len(before + n) };
    Ok(n)
}

/// Whether the kernel wants more of a connection, by its limit of unsent bytes;
/// if not, epoll tells when it does, edge-triggered or not (`tcp_poll` arms it).
pub(super) fn takes_more(stream: &impl AsFd) -> bool {
    let mut asked = libc::pollfd {
        fd: stream.as_fd().as_raw_fd(),
        events: libc::POLLOUT,
        revents: 0,
    };
    // SAFETY: the pointer is to one live pollfd, and zero means not to wait.
    let ready = unsafe { libc::poll(&mut asked, 1, 0) };
    // A broken connection shows when it is written to.
    ready != 0
}

/// Has the kernel acknowledge what has come and was read, and what comes next not while it is
/// read: without this Linux makes and sends the acknowledgement of a small segment within the read
/// that takes it, unless data went the other way lately, and on the loopback delivers it, too. That
/// takes as long as all else that is done for a message of a few hundred bytes. Whoever calls this
/// after each read has the message handled first; who does not call it any more is acknowledged
/// for after 40 ms. Source: `tcp_cleanup_rbuf` of Linux.
pub(super) fn acknowledge(stream: &impl AsFd) {
    let socket = SockRef::from(stream);
    // Acknowledged a little earlier or later it works, too.
    let _ = socket.set_tcp_quickack(true);
    let _ = socket.set_tcp_quickack(false);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};
    use std::time::Instant;

    fn accepted(options: &TcpOptions) -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        options.listening(&listener);
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (listener.accept().unwrap().0, client)
    }

    #[test]
    fn nagle_is_off_whatever_is_configured() {
        let (stream, _client) = accepted(&TcpOptions::default());
        assert!(stream.nodelay().unwrap());
    }

    #[test]
    fn what_is_configured_reaches_the_socket() {
        let options = TcpOptions {
            notsent_lowat: Some(131_072),
            urgent_notsent_lowat: Some(16_384),
            urgent_send_buffer: Some(65_536),
            user_timeout: Some(Duration::from_secs(20)),
        };
        let (stream, _client) = accepted(&options);
        let socket = SockRef::from(&stream);
        assert_eq!(socket.tcp_notsent_lowat().unwrap(), 131_072);
        let timeout = socket.tcp_user_timeout().unwrap();
        assert_eq!(timeout, Some(Duration::from_secs(20)));
        options.urgent(&stream);
        assert_eq!(socket.tcp_notsent_lowat().unwrap(), 16_384);
        assert_eq!(socket.send_buffer_size().unwrap(), 131_072);
    }

    #[test]
    fn what_is_read_is_appended() {
        use std::io::Write;
        let (stream, mut client) = accepted(&TcpOptions::default());
        let mut bytes = b"ab".to_vec();
        client.write_all(b"cdefg").unwrap();
        for (most, all) in [(3, "abcde"), (9, "abcdefg")] {
            read_behind(&stream, &mut bytes, most).unwrap();
            assert_eq!(bytes, all.as_bytes());
        }
        stream.set_nonblocking(true).unwrap();
        let nothing = read_behind(&stream, &mut bytes, 9).unwrap_err();
        assert_eq!(nothing.kind(), io::ErrorKind::WouldBlock);
        drop(client);
        stream.set_nonblocking(false).unwrap();
        assert_eq!(read_behind(&stream, &mut bytes, 9).unwrap(), 0);
        assert_eq!(bytes, b"abcdefg");
    }

    #[test]
    fn the_kernel_says_whether_it_wants_more() {
        use std::io::{Read, Write};
        let (mut stream, mut client) = accepted(&TcpOptions {
            notsent_lowat: Some(16_384),
            ..TcpOptions::default()
        });
        stream.set_nonblocking(true).unwrap();
        assert!(takes_more(&stream));
        let mut written = 0;
        while takes_more(&stream) {
            written += stream.write(&[0; 4096]).unwrap();
        }
        // The peer makes room by reading.
        client.read_exact(&mut vec![0; written]).unwrap();
        let started = Instant::now();
        while !takes_more(&stream) {
            assert!(started.elapsed() < Duration::from_secs(60));
            std::thread::yield_now();
        }
    }

    /// Bytes that the peer has not acknowledged.
    fn unacknowledged(stream: &TcpStream) -> libc::c_int {
        let mut bytes = 0;
        // SAFETY: the request writes one int, to one that lives.
        let result = unsafe { libc::ioctl(stream.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
        assert_eq!(result, 0);
        bytes
    }

    #[test]
    fn what_was_read_is_acknowledged_and_the_next_read_does_not_do_it() {
        use std::io::{Read, Write};
        let (mut stream, mut client) = accepted(&TcpOptions::default());
        for _ in 0..3 {
            client.write_all(b"small").unwrap();
            stream.read_exact(&mut [0; 5]).unwrap();
            acknowledge(&stream);
            let started = Instant::now();
            while unacknowledged(&client) > 0 {
                assert!(started.elapsed() < Duration::from_secs(60));
                std::thread::yield_now();
            }
            assert!(!SockRef::from(&stream).tcp_quickack().unwrap());
        }
    }

    #[test]
    fn an_unsent_limit_leaves_the_rest_with_the_writer() {
        use std::io::Write;
        let written = |options: TcpOptions| {
            let (mut stream, client) = accepted(&options);
            stream.set_nonblocking(true).unwrap();
            let chunk = [0; 4096];
            let mut total = 0;
            // The peer does not read, so what it has no window for stays unsent.
            while let Ok(n) = stream.write(&chunk) {
                total += n;
            }
            drop(client);
            total
        };
        let unlimited = written(TcpOptions::default());
        let limited = written(TcpOptions {
            notsent_lowat: Some(16_384),
            ..TcpOptions::default()
        });
        assert!(limited < unlimited, "{limited} of {unlimited}");
    }
}
