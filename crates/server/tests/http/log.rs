//! The log of the brokers in this process.

use std::io;
use std::sync::{Condvar, Mutex, Once, PoisonError};
use std::time::Instant;

use tracing_subscriber::filter::LevelFilter;

use crate::support::PATIENCE;

static START: Once = Once::new();
static LINES: Mutex<String> = Mutex::new(String::new());
static MORE: Condvar = Condvar::new();

/// What all brokers log from now on. Tests look for words that no other test causes.
pub(crate) struct Log(());

/// Where the lines go.
struct Lines;

impl io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut lines = LINES.lock().unwrap_or_else(PoisonError::into_inner);
        lines.push_str(&String::from_utf8_lossy(bytes));
        MORE.notify_all();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Log {
    /// To be called before the broker starts.
    pub(crate) fn of_all() -> Self {
        START.call_once(|| {
            tracing_subscriber::fmt()
                .with_max_level(LevelFilter::DEBUG)
                .with_ansi(false)
                .with_writer(|| Lines)
                .init();
        });
        Self(())
    }

    /// Waits for a line with all these words; the line.
    #[track_caller]
    pub(crate) fn logged(&self, words: &[&str]) -> String {
        let end = Instant::now() + PATIENCE;
        let mut lines = LINES.lock().unwrap();
        loop {
            let has_all = |line: &&str| words.iter().all(|word| line.contains(word));
            if let Some(line) = lines.lines().find(has_all) {
                return line.to_owned();
            }
            let left = end.saturating_duration_since(Instant::now());
            assert!(
                !left.is_zero(),
                "the log never has {words:?}, but:\n{lines}"
            );
            lines = MORE.wait_timeout(lines, left).unwrap().0;
        }
    }
}
