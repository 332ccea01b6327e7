//! Batched non-blocking reading and writing, the same for the generator and the floor.
//!
//! Reading takes what the socket has into one buffer shared by all connections; only the tail
//! of an incomplete packet is kept per connection. Writing appends to the connection's buffer
//! and one `send` per loop turn takes all of it. So an idle connection owns no buffer worth
//! mentioning, and a busy one pays few system calls per message.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;

/// Bytes asked of the kernel by one `recv`; small enough to stay in the second-level cache.
pub const READ_CHUNK: usize = 256 * 1024;

/// What a read brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadOutcome {
    /// The first so many bytes of the shared buffer, kept tail included, are to be handled.
    Bytes(usize),
    /// Nothing at the moment.
    Nothing,
    /// The other side has closed or the connection broke.
    Closed,
}

/// The incomplete packet at the end of what was read last.
#[derive(Debug, Default)]
pub struct Tail(Vec<u8>);

impl Tail {
    /// Reads once from `stream` into `shared`, behind the kept tail. The tail counts as taken;
    /// hand what is left over back with [`Tail::keep`].
    #[inline]
    pub fn read(&mut self, stream: &TcpStream, shared: &mut [u8]) -> ReadOutcome {
        let kept = self.0.len();
        let Some(room) = shared.get_mut(kept..).filter(|room| !room.is_empty()) else {
            // A packet larger than the buffer; nothing here sends or accepts one.
            return ReadOutcome::Closed;
        };
        let mut stream = stream;
        match stream.read(room) {
            Ok(0) => ReadOutcome::Closed,
            Ok(n) => {
                shared[..kept].copy_from_slice(&self.0);
                self.0.clear();
                ReadOutcome::Bytes(kept + n)
            }
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
                ReadOutcome::Nothing
            }
            Err(_) => ReadOutcome::Closed,
        }
    }

    /// Keeps the bytes that are not yet a whole packet.
    #[inline]
    pub fn keep(&mut self, rest: &[u8]) {
        debug_assert!(self.0.is_empty());
        if rest.is_empty() {
            if self.0.capacity() > 4096 {
                self.0 = Vec::new();
            }
        } else {
            self.0.extend_from_slice(rest);
        }
    }
}

/// What became of a flush.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlushOutcome {
    /// Everything is with the kernel.
    All,
    /// The socket is full: wait until it is writable.
    Blocked,
    /// The connection broke.
    Closed,
}

/// Bytes on their way to one peer.
#[derive(Debug, Default)]
pub struct Outbox {
    bytes: Vec<u8>,
    sent: usize,
}

impl Outbox {
    /// Bytes not yet with the kernel.
    #[inline]
    pub fn pending(&self) -> usize {
        self.bytes.len() - self.sent
    }

    /// The buffer to append to.
    #[inline]
    pub fn buffer(&mut self) -> &mut Vec<u8> {
        // Move the unsent part to the front before the buffer would have to grow for the sake
        // of bytes that are gone.
        if self.sent > 0 && self.sent >= self.bytes.len() / 2 {
            self.bytes.drain(..self.sent);
            self.sent = 0;
        }
        &mut self.bytes
    }

    /// Hands everything to the kernel with one `send`.
    pub fn flush(&mut self, stream: &TcpStream) -> FlushOutcome {
        let mut stream = stream;
        loop {
            match stream.write(&self.bytes[self.sent..]) {
                Ok(n) => {
                    self.sent += n;
                    if self.sent < self.bytes.len() {
                        return FlushOutcome::Blocked;
                    }
                    self.bytes.clear();
                    self.sent = 0;
                    if self.bytes.capacity() > 4 * READ_CHUNK {
                        self.bytes = Vec::new();
                    }
                    return FlushOutcome::All;
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => return FlushOutcome::Blocked,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(_) => return FlushOutcome::Closed,
            }
        }
    }
}

/// Sets what every socket of a benchmark needs: no Nagle, no blocking.
pub fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_nonblocking(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let a = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (b, _) = listener.accept().unwrap();
        (a, b)
    }

    #[test]
    fn tail_joins_what_two_reads_brought() {
        let (mut a, b) = pair();
        let mut shared = vec![0; 64];
        let mut tail = Tail::default();
        a.write_all(b"hello").unwrap();
        assert_eq!(tail.read(&b, &mut shared), ReadOutcome::Bytes(5));
        let rest = shared[3..5].to_vec();
        tail.keep(&rest);
        a.write_all(b"!").unwrap();
        assert_eq!(tail.read(&b, &mut shared), ReadOutcome::Bytes(3));
        assert_eq!(&shared[..3], b"lo!");
        tail.keep(&[]);
        drop(a);
        assert_eq!(tail.read(&b, &mut shared), ReadOutcome::Closed);
    }

    #[test]
    fn outbox_stops_at_a_full_socket_and_loses_nothing() {
        let (a, mut b) = pair();
        prepare(&a).unwrap();
        let mut outbox = Outbox::default();
        let mut put = 0u32;
        while outbox.flush(&a) != FlushOutcome::Blocked {
            for _ in 0..100_000 {
                outbox.buffer().extend_from_slice(&put.to_be_bytes());
                put += 1;
            }
        }
        assert!(outbox.pending() > 0);
        let reader = std::thread::spawn(move || {
            let mut bytes = Vec::new();
            b.read_to_end(&mut bytes).unwrap();
            bytes
        });
        a.set_nonblocking(false).unwrap();
        while outbox.flush(&a) == FlushOutcome::Blocked {}
        drop(a);
        let bytes = reader.join().unwrap();
        assert_eq!(bytes.len(), 4 * put as usize);
        for (i, word) in bytes.chunks_exact(4).enumerate() {
            assert_eq!(word, (i as u32).to_be_bytes());
        }
    }
}
