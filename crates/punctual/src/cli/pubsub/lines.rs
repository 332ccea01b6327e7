//! `pub -l`: the lines of standard input, read by a thread of its own so that
//! the connection is served while no line comes.
//!
//! What has been read and not taken is bounded: two batches, each of what one
//! read returned. A reader that waits for room leaves the rest in the pipe.

use std::io::{self, Read as _};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};

use punctual_client::Waker;

/// Bytes read at a time.
const READ: usize = 64 * 1024;

/// Largest line: what MQTT can carry.
const LONGEST: usize = 268_435_455;

type Batch = io::Result<Vec<Vec<u8>>>;

/// The lines, one after the other.
pub(super) struct Lines {
    batches: Receiver<Batch>,
    current: std::vec::IntoIter<Vec<u8>>,
    ended: bool,
}

impl Lines {
    /// Starts reading; `waker` is used when there is something new.
    pub(super) fn start(waker: Waker) -> io::Result<Self> {
        let (sender, batches) = sync_channel(1);
        let thread = std::thread::Builder::new().name("stdin".into());
        thread.spawn(move || {
            read(&sender, &waker);
            drop(sender);
            waker.wake();
        })?;
        Ok(Self {
            batches,
            current: Vec::new().into_iter(),
            ended: false,
        })
    }

    /// The next line, without its end; `None` if there is none yet, or if
    /// [`has_ended`](Self::has_ended).
    pub(super) fn next(&mut self) -> io::Result<Option<Vec<u8>>> {
        loop {
            if let Some(line) = self.current.next() {
                return Ok(Some(line));
            }
            match self.batches.try_recv() {
                Ok(batch) => self.current = batch?.into_iter(),
                Err(TryRecvError::Empty) => return Ok(None),
                Err(TryRecvError::Disconnected) => {
                    self.ended = true;
                    return Ok(None);
                }
            }
        }
    }

    /// Whether the input has ended and every line was taken.
    pub(super) fn has_ended(&self) -> bool {
        self.ended
    }
}

fn read(sender: &SyncSender<Batch>, waker: &Waker) {
    let mut input = io::stdin().lock();
    let mut splitter = Splitter::default();
    let mut buffer = vec![0; READ];
    loop {
        let batch = match input.read(&mut buffer) {
            Ok(0) => break,
            Ok(n) => splitter.split(&buffer[..n]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => Err(error),
        };
        let failed = batch.is_err();
        if sender.send(batch).is_err() || failed {
            return;
        }
        waker.wake();
    }
    if !splitter.rest.is_empty() {
        // The receiver may be gone already; then nobody misses the line.
        let _ = sender.send(Ok(vec![splitter.rest]));
    }
}

/// Cuts a stream into lines.
#[derive(Default)]
struct Splitter {
    /// The beginning of a line whose end has not come.
    rest: Vec<u8>,
}

impl Splitter {
    fn split(&mut self, bytes: &[u8]) -> Batch {
        let mut lines = Vec::new();
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            match piece.strip_suffix(b"\n") {
                Some(end) => {
                    self.rest.extend_from_slice(end);
                    lines.push(std::mem::take(&mut self.rest));
                }
                None => self.rest.extend_from_slice(piece),
            }
        }
        if self.rest.len() > LONGEST {
            let what = format!("a line is longer than the {LONGEST} bytes that MQTT can carry");
            return Err(io::Error::new(io::ErrorKind::InvalidData, what));
        }
        Ok(lines)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_survive_any_cut() {
        let text = b"one\n\nthree\r\nfour";
        for cut in 0..=text.len() {
            let mut splitter = Splitter::default();
            let mut lines = splitter.split(&text[..cut]).unwrap();
            lines.extend(splitter.split(&text[cut..]).unwrap());
            assert_eq!(lines, [&b"one"[..], b"", b"three\r"]);
            assert_eq!(splitter.rest, b"four");
        }
    }
}
