//! Connections that are over but for their last bytes.

use std::io::Read;

use mio::net::TcpStream;
use punctual_broker::Nanos;

use super::unwritten::WriteBuffer;

/// How long a closed connection may take to accept its last bytes.
pub(crate) const LINGER: Nanos = Nanos::from_secs(5);

/// A connection that nobody else knows any more and whose last bytes are still to be written.
pub(crate) struct LingeringSocket {
    pub(super) stream: TcpStream,
    bytes: WriteBuffer,
    /// The peer has closed its side, and all was read that it had sent.
    ended: bool,
    /// When it is given up.
    until: Nanos,
}

impl LingeringSocket {
    pub(crate) fn new(stream: TcpStream, bytes: WriteBuffer, ended: bool, until: Nanos) -> Self {
        Self {
            stream,
            bytes,
            ended,
            until,
        }
    }

    /// Writes on; true when done or hopeless.
    pub(crate) fn write(&mut self) -> bool {
        if self.bytes.write_to(&mut self.stream).is_err() {
            return true;
        }
        if !self.bytes.rest().is_empty() {
            return false;
        }
        if self.ended {
            return true;
        }
        let _ = self.stream.shutdown(std::net::Shutdown::Write);
        // Closing a socket with unread bytes resets the connection, and the
        // peer may lose what was just written.
        let mut discarded = [0; 4096];
        for _ in 0..64 {
            if !matches!(self.stream.read(&mut discarded), Ok(n) if n > 0) {
                break;
            }
        }
        true
    }
}

/// Those of a shard, by number. A number is reused.
#[derive(Default)]
pub(super) struct LingeringList {
    entries: Vec<Option<LingeringSocket>>,
    /// No entry has to be given up before.
    next_check: Option<Nanos>,
}

impl LingeringList {
    /// A number for another one.
    pub(super) fn place(&mut self) -> usize {
        let free = self.entries.iter().position(Option::is_none);
        free.unwrap_or_else(|| {
            self.entries.push(None);
            self.entries.len() - 1
        })
    }

    /// Keeps one, with a number of [`Self::place`].
    pub(super) fn put(&mut self, at: usize, lingering: LingeringSocket) {
        self.next_check = Some(lingering.until.min(self.next_check.unwrap_or(Nanos::MAX)));
        self.entries[at] = Some(lingering);
    }

    /// Writes on with one.
    pub(super) fn write(&mut self, at: usize) {
        if let Some(entry) = self.entries.get_mut(at)
            && entry.as_mut().is_some_and(LingeringSocket::write)
        {
            *entry = None;
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.iter().all(Option::is_none)
    }

    /// When [`Self::drop_late`] may have something to do.
    pub(super) fn next_check(&self) -> Option<Nanos> {
        self.next_check
    }

    /// Gives up those whose time is over.
    pub(super) fn drop_late(&mut self, now: Nanos) {
        if self.next_check.is_none_or(|at| at > now) {
            return;
        }
        for entry in &mut self.entries {
            entry.take_if(|it| it.until <= now);
        }
        self.next_check = self.entries.iter().flatten().map(|it| it.until).min();
        if self.next_check.is_none() {
            self.entries.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn a_socket_that_is_not_written_to_is_given_up_in_time() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let stream = TcpStream::from_std(stream);
        let mut bytes = WriteBuffer::default();
        bytes.end().push(0);
        let until = Nanos::from_secs(10);
        let mut list = LingeringList::default();
        assert_eq!((list.is_empty(), list.next_check()), (true, None));
        let at = list.place();
        list.put(at, LingeringSocket::new(stream, bytes, false, until));
        for now in 1..10 {
            list.drop_late(Nanos::from_secs(now));
            assert_eq!((list.is_empty(), list.next_check()), (false, Some(until)));
        }
        list.drop_late(until);
        assert_eq!((list.is_empty(), list.next_check()), (true, None));
    }
}
