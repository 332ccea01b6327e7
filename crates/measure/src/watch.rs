//! What the broker's process costs: CPU time, memory, system calls.

use std::fs;

use crate::error::{Error, Result};
use crate::sys::ProcessClock;
use crate::syscalls::SyscallCounter;

/// A process under observation.
#[derive(Clone, Copy, Debug)]
pub struct Watch {
    pid: u32,
    clock: ProcessClock,
}

/// Memory of a process in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// In main memory, code and other parts of files included.
    pub resident: u64,
    /// Most of it so far.
    pub peak: u64,
    /// What it has made itself: grows with what it has to remember, and not
    /// because a part of its code is run for the first time.
    pub anonymous: u64,
}

impl Watch {
    /// Observes process `pid`.
    pub fn new(pid: u32) -> Result<Self> {
        let clock = ProcessClock::of(pid).map_err(|_| Error::Config {
            field: "--broker-pid",
            value: pid.to_string(),
            remedy: "give the process id of a running broker".to_owned(),
        })?;
        Ok(Self { pid, clock })
    }

    /// User and system time of all its threads so far, in nanoseconds.
    pub fn cpu_ns(self) -> Result<u64> {
        self.clock.cpu_ns().map_err(Error::io(format!(
            "cannot read the CPU time of {}",
            self.pid
        )))
    }

    /// Its memory now.
    ///
    /// # Errors
    /// The process is gone.
    pub fn memory(self) -> Result<Memory> {
        let path = format!("/proc/{}/status", self.pid);
        let status = fs::read_to_string(&path).map_err(Error::io(format!("cannot read {path}")))?;
        Ok(memory_in(&status))
    }

    /// Begins to count system calls; `Err` says why that is not possible here.
    pub fn count_syscalls(self) -> std::result::Result<SyscallCounter, String> {
        SyscallCounter::attach(self.pid)
            .map_err(|e| format!("cannot count the system calls of {}: {e}", self.pid))
    }
}

fn memory_in(status: &str) -> Memory {
    let kib = |key: &str| {
        status
            .lines()
            .find_map(|line| line.strip_prefix(key))
            .and_then(|rest| rest.split_whitespace().next())
            .and_then(|number| number.parse::<u64>().ok())
            .unwrap_or(0)
    };
    Memory {
        resident: kib("VmRSS:") * 1024,
        peak: kib("VmHWM:") * 1024,
        anonymous: kib("RssAnon:") * 1024,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_read_from_status() {
        let status = "Name:\tx\nVmHWM:\t    2048 kB\nVmRSS:\t    1024 kB\nRssAnon:\t     512 kB\n";
        assert_eq!(
            memory_in(status),
            Memory {
                resident: 1 << 20,
                peak: 2 << 20,
                anonymous: 512 << 10
            }
        );
    }

    #[test]
    fn this_process_can_be_watched() {
        let watch = Watch::new(std::process::id()).unwrap();
        assert!(watch.cpu_ns().unwrap() > 0);
        let memory = watch.memory().unwrap();
        assert!(memory.resident > 0 && memory.peak >= memory.resident / 2);
    }
}
