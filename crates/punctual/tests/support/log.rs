//! What a process under test says.

use std::cell::RefCell;
use std::io::{BufRead as _, BufReader, Read};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

/// How long a line may take before a test fails.
const PATIENCE: Duration = Duration::from_secs(60);

/// The lines of a log that no test took yet.
pub(crate) struct Log {
    coming: Receiver<String>,
    /// Lines that were passed over while another one was waited for: threads
    /// of a process log in no order.
    passed: RefCell<Vec<String>>,
}

impl Log {
    /// Lines from here, read whether somebody looks or not: who writes to a
    /// full pipe is stopped.
    pub(crate) fn of(source: impl Read + Send + 'static) -> Self {
        let lines = BufReader::new(source).lines().map_while(Result::ok);
        let (send, coming) = channel();
        std::thread::spawn(move || lines.for_each(|line| drop(send.send(line))));
        Self {
            coming,
            passed: RefCell::default(),
        }
    }

    /// Waits for a line with this text, and takes the first; what follows the
    /// text in it. Lines before and after it stay.
    #[track_caller]
    pub(crate) fn logged(&self, text: &str) -> String {
        let mut passed = self.passed.borrow_mut();
        let mut next = 0;
        loop {
            if next == passed.len() {
                match self.coming.recv_timeout(PATIENCE) {
                    Ok(line) => passed.push(line),
                    Err(_) => panic!("the log never says {text:?}, but:\n{}", passed.join("\n")),
                }
            }
            if let Some((_, rest)) = passed[next].split_once(text) {
                let rest = rest.to_owned();
                passed.remove(next);
                return rest;
            }
            next += 1;
        }
    }

    /// Takes all lines that are there.
    pub(crate) fn take(&self) -> Vec<String> {
        let mut lines = self.passed.take();
        lines.extend(self.coming.try_iter());
        lines
    }
}
