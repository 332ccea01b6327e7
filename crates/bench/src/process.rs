//! A child process that ends with its owner.

use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};
use std::{io, thread};

use crate::sys;

/// Longest wait for a process to end before it is killed.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// Pause between looks at a process that ends.
const POLL: Duration = Duration::from_millis(20);

/// A running child. Dropping it asks it to end (SIGTERM) and sees to it.
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

    /// How it ended, if it has.
    pub(crate) fn ended(&mut self) -> Option<ExitStatus> {
        self.0.try_wait().ok().flatten()
    }

    /// Ends it at once (SIGKILL) and waits until it is gone.
    pub(crate) fn kill(&mut self) {
        // It may have ended by itself; there is nobody to tell.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }

    /// Asks it to end (SIGTERM) and waits for so long before it is killed.
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

    /// Its pipes.
    pub(crate) fn child(&mut self) -> &mut Child {
        &mut self.0
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.stop(STOP_TIMEOUT);
    }
}
