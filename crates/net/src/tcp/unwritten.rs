//! Bytes that are ready for a socket which has not taken them.

use std::io::{self, Write};

/// Bytes in wire form that are made and not written, in order. A connection that has none pays one word.
#[derive(Debug, Default)]
pub(super) struct WriteBuffer(Option<Box<Bytes>>);

#[derive(Debug, Default)]
struct Bytes {
    all: Vec<u8>,
    /// How many of them were written.
    written: usize,
}

impl WriteBuffer {
    pub(super) fn rest(&self) -> &[u8] {
        match &self.0 {
            Some(bytes) => &bytes.all[bytes.written..],
            None => &[],
        }
    }

    /// The buffer to which further bytes are appended.
    pub(super) fn end(&mut self) -> &mut Vec<u8> {
        &mut self.0.get_or_insert_default().all
    }

    /// The socket has taken `n` bytes, at most as many as there are.
    pub(super) fn advance(&mut self, n: usize) {
        if let Some(bytes) = &mut self.0 {
            bytes.written += n;
        }
        self.release();
    }

    /// Gives the memory back if nothing is left to be written.
    pub(super) fn release(&mut self) {
        if self.rest().is_empty() {
            self.0 = None;
        }
    }

    /// Writes as much as the socket takes without blocking.
    ///
    /// # Errors
    /// The connection is broken.
    pub(super) fn write_to(&mut self, socket: &mut impl Write) -> io::Result<()> {
        while !self.rest().is_empty() {
            match socket.write(self.rest()) {
                Ok(n) => self.advance(n),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_is_what_was_appended_and_not_written() {
        let mut bytes = WriteBuffer::default();
        assert_eq!(bytes.rest(), b"");
        bytes.end().extend_from_slice(b"abc");
        bytes.advance(1);
        bytes.end().extend_from_slice(b"de");
        assert_eq!(bytes.rest(), b"bcde");
        bytes.advance(4);
        assert!(bytes.0.is_none(), "nothing is kept for nothing");
        bytes.end();
        bytes.release();
        assert!(bytes.0.is_none(), "also where nothing was appended");
        bytes.end().extend_from_slice(b"xyz");
        bytes.advance(2);
        assert_eq!(bytes.rest(), b"z");
    }

    /// Takes two bytes, is interrupted, takes two more, and then blocks or is broken.
    struct Socket(Vec<u8>, u8, io::ErrorKind);

    impl Write for Socket {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.1 += 1;
            match self.1 {
                1 | 3 => {
                    self.0.extend_from_slice(&bytes[..2]);
                    Ok(2)
                }
                2 => Err(io::ErrorKind::Interrupted.into()),
                _ => Err(self.2.into()),
            }
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn what_the_socket_does_not_take_is_kept() {
        for (end, is_ok) in [
            (io::ErrorKind::WouldBlock, true),
            (io::ErrorKind::ConnectionReset, false),
        ] {
            let mut bytes = WriteBuffer::default();
            bytes.end().extend_from_slice(b"abcdef");
            let mut socket = Socket(Vec::new(), 0, end);
            assert_eq!(bytes.write_to(&mut socket).is_ok(), is_ok);
            assert_eq!((&socket.0[..], bytes.rest()), (&b"abcd"[..], &b"ef"[..]));
        }
    }
}
