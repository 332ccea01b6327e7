//! A child process that ends when its owner is dropped.

use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};
use std::{io, thread};

use crate::sys;

/// Longest wait for a process to exit before it is killed.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// Polling interval while waiting for a process to exit.
const POLL: Duration = Duration::from_millis(20);

/// A running child process. Dropping this value stops the process (SIGTERM, then SIGKILL).
#[derive(Debug)]
pub(crate) struct Process(Child);

impl Process {
    /// Starts `command`.
    pub(crate) fn spawn(command: &mut Command) -> io::Result<Self> {
        command.spawn().map(Self)
    }

    pub(crate) fn id(&self) -> u32 {
        self.0.id()
    }

    /// The exit status, if the process has ended.
    pub(crate) fn ended(&mut self) -> Option<ExitStatus> {
        self.0.try_wait().ok().flatten()
    }

    /// Kills the process (SIGKILL) and waits until it has ended.
    pub(crate) fn kill(&mut self) {
        // The process may have ended by itself, so an error means nothing.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }

    /// Asks the process to end (SIGTERM), and kills it after `patience`.
    pub(crate) fn stop(&mut self, patience: Duration) {
        if self.ended().is_some() {
            return;
        }
        let asked = sys::terminate(self.0.id());
        let deadline = Instant::now() + patience;
        while asked.is_ok() && Instant::now() < deadline {
            match self.0.try_wait() {
                Ok(None) => thread::sleep(POLL),
                _ => return,
            }
        }
        self.kill();
    }

    /// The child, for access to its pipes.
    pub(crate) fn child(&mut self) -> &mut Child {
        &mut self.0
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.stop(STOP_TIMEOUT);
    }
}
