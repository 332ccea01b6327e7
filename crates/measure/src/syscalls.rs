//! Counts the system calls of another process through the kernel's `raw_syscalls:sys_enter`
//! tracepoint, as `perf stat` does, without starting a program.
//!
//! Reading the tracepoint slows every system call of the machine a little, so it is done in an
//! interval of its own. `strace` is no substitute: it slows a broker so much that the sizes of
//! its batches, and with them the count per message, change.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::{FromRawFd, OwnedFd};

const TRACEPOINT_ID_FILES: [&str; 2] = [
    "/sys/kernel/tracing/events/raw_syscalls/sys_enter/id",
    "/sys/kernel/debug/tracing/events/raw_syscalls/sys_enter/id",
];

const PERF_TYPE_TRACEPOINT: u32 = 2;

/// Bit of `perf_event_attr` that extends a counter to threads started later.
const INHERIT: u64 = 1 << 1;

/// Version 0 of the kernel's `perf_event_attr` (`include/uapi/linux/perf_event.h`).
#[repr(C)]
#[derive(Default)]
struct PerfEventAttr {
    kind: u32,
    size: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup_events: u32,
    breakpoint_kind: u32,
    config1: u64,
}

/// Counts from its creation until it is dropped.
pub struct SyscallCounter {
    /// One counter per thread of the process.
    counters: Vec<File>,
}

impl SyscallCounter {
    /// Begins to count the calls of all threads of process `pid`.
    pub fn attach(pid: u32) -> io::Result<Self> {
        let id = tracepoint_id()?;
        let mut counters = Vec::new();
        for task in fs::read_dir(format!("/proc/{pid}/task"))? {
            let name = task?.file_name();
            let Some(tid) = name.to_str().and_then(|name| name.parse().ok()) else {
                continue;
            };
            match open_counter(id, tid) {
                Ok(counter) => counters.push(counter),
                // The thread ended between listing and opening.
                Err(e) if e.raw_os_error() == Some(libc::ESRCH) => {}
                Err(e) => return Err(e),
            }
        }
        Ok(Self { counters })
    }

    /// Calls made since [`SyscallCounter::attach`].
    pub fn total(&self) -> io::Result<u64> {
        let mut total = 0;
        for mut counter in &self.counters {
            let mut bytes = [0; 8];
            counter.read_exact(&mut bytes)?;
            total += u64::from_ne_bytes(bytes);
        }
        Ok(total)
    }
}

fn tracepoint_id() -> io::Result<u64> {
    let mut last = io::Error::from(io::ErrorKind::NotFound);
    for path in TRACEPOINT_ID_FILES {
        match fs::read_to_string(path) {
            Ok(text) => {
                return text
                    .trim()
                    .parse()
                    .map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e));
            }
            Err(e) => last = e,
        }
    }
    Err(last)
}

fn open_counter(tracepoint: u64, tid: libc::pid_t) -> io::Result<File> {
    let attr = PerfEventAttr {
        kind: PERF_TYPE_TRACEPOINT,
        size: size_of::<PerfEventAttr>() as u32,
        config: tracepoint,
        flags: INHERIT,
        ..PerfEventAttr::default()
    };
    let any_cpu: libc::c_int = -1;
    let no_group: libc::c_int = -1;
    let flags: libc::c_ulong = 0;
    // SAFETY: `attr` has the layout and size the kernel expects; a descriptor returned is ours.
    unsafe {
        let fd = libc::syscall(
            libc::SYS_perf_event_open,
            &raw const attr,
            tid,
            any_cpu,
            no_group,
            flags,
        );
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(File::from(OwnedFd::from_raw_fd(fd as libc::c_int)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attr_has_the_kernels_size() {
        assert_eq!(size_of::<PerfEventAttr>(), 64);
    }

    #[test]
    fn a_process_that_is_not_there_is_an_error() {
        assert!(SyscallCounter::attach((1 << 22) + 1).is_err());
    }
}
