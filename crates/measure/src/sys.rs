//! The few Linux calls that the standard library does not offer: epoll with nanosecond
//! time-outs, CPU clocks of a thread and of another process, pinning, scheduling class.
//!
//! Epoll is level-triggered on purpose: one `recv` per readiness event is enough, there is no
//! second `recv` that only learns `EAGAIN`. All unsafe code of the crate is here and in
//! [`crate::syscalls`].

use std::io;
use std::mem::MaybeUninit;
use std::ops::RangeInclusive;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;

/// Events taken from the kernel per wait.
const EVENTS_PER_WAIT: usize = 1024;

/// Nanoseconds on `CLOCK_MONOTONIC`.
pub fn now_ns() -> u64 {
    clock_ns(libc::CLOCK_MONOTONIC).unwrap_or(0)
}

/// Nanoseconds on `CLOCK_REALTIME`: what the kernel stamps packets with.
pub fn real_time_ns() -> u64 {
    clock_ns(libc::CLOCK_REALTIME).unwrap_or(0)
}

/// CPU nanoseconds (user and system) used by the calling thread so far.
pub fn thread_cpu_ns() -> u64 {
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: getrusage writes one rusage into the buffer given; an all-zero rusage is valid too.
    let usage = unsafe {
        libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr());
        usage.assume_init()
    };
    timeval_ns(usage.ru_utime) + timeval_ns(usage.ru_stime)
}

fn timeval_ns(t: libc::timeval) -> u64 {
    (t.tv_sec as u64) * 1_000_000_000 + (t.tv_usec as u64) * 1_000
}

fn clock_ns(clock: libc::clockid_t) -> io::Result<u64> {
    let mut t = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `t` is a valid timespec to write to.
    check(unsafe { libc::clock_gettime(clock, &raw mut t) })?;
    Ok((t.tv_sec as u64) * 1_000_000_000 + t.tv_nsec as u64)
}

/// The CPU-time clock of a process: all its threads, ended ones included, in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub struct ProcessClock(libc::clockid_t);

impl ProcessClock {
    /// The clock of a process.
    ///
    /// # Errors
    /// There is no such process.
    pub fn of(pid: u32) -> io::Result<Self> {
        let mut clock = 0;
        // SAFETY: `clock` is a valid place for the answer.
        let error = unsafe { libc::clock_getcpuclockid(pid as libc::pid_t, &raw mut clock) };
        if error != 0 {
            return Err(io::Error::from_raw_os_error(error));
        }
        Ok(Self(clock))
    }

    /// What it shows, ns.
    ///
    /// # Errors
    /// The process is gone.
    pub fn cpu_ns(self) -> io::Result<u64> {
        clock_ns(self.0)
    }
}

/// Binds the calling thread (and what it forks) to one core.
pub fn pin_to_core(core: usize) -> io::Result<()> {
    pin_thread(0, core..=core)
}

/// Binds a thread, 0 for the calling one, to a range of cores.
///
/// # Errors
/// There is no such thread or core, or the thread is another user's.
pub fn pin_thread(thread: libc::pid_t, cores: RangeInclusive<usize>) -> io::Result<()> {
    // SAFETY: a zeroed cpu_set_t is an empty set; CPU_SET checks the range of each core.
    let set = unsafe {
        let mut set = MaybeUninit::<libc::cpu_set_t>::zeroed().assume_init();
        for core in cores {
            libc::CPU_SET(core, &mut set);
        }
        set
    };
    // SAFETY: the set outlives the call and its size is given.
    check(unsafe { libc::sched_setaffinity(thread, size_of::<libc::cpu_set_t>(), &raw const set) })
}

/// Gives the calling thread `SCHED_FIFO` at `priority` (1 to 99), or `SCHED_OTHER` for 0.
pub fn set_fifo(priority: u8) -> io::Result<()> {
    let policy = if priority == 0 {
        libc::SCHED_OTHER
    } else {
        libc::SCHED_FIFO
    };
    let param = libc::sched_param {
        sched_priority: i32::from(priority),
    };
    // SAFETY: `param` is valid for the call.
    check(unsafe { libc::sched_setscheduler(0, policy, &raw const param) })
}

/// Makes timed waits of the calling thread end when they are due, not up to 50 µs later.
pub fn set_least_timer_slack() {
    // SAFETY: PR_SET_TIMERSLACK takes one integer and touches no memory.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1) };
}

/// Sleeps until `CLOCK_MONOTONIC` shows so many nanoseconds, or a signal comes.
///
/// # Errors
/// See clock_nanosleep(2).
pub fn sleep_until(ns: u64) -> io::Result<()> {
    let until = libc::timespec {
        tv_sec: (ns / 1_000_000_000) as i64,
        tv_nsec: (ns % 1_000_000_000) as i64,
    };
    // SAFETY: `until` is valid for the call, and an absolute sleep writes nothing back.
    let error = unsafe {
        libc::clock_nanosleep(
            libc::CLOCK_MONOTONIC,
            libc::TIMER_ABSTIME,
            &raw const until,
            ptr::null_mut(),
        )
    };
    match error {
        0 | libc::EINTR => Ok(()),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

/// Raises the soft limit of open files to the hard limit and returns it.
pub fn raise_file_limit() -> io::Result<u64> {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: `limit` is valid for both calls.
    unsafe {
        check(libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit))?;
        limit.rlim_cur = limit.rlim_max;
        check(libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit))?;
    }
    Ok(limit.rlim_cur)
}

fn check(returned: libc::c_int) -> io::Result<()> {
    if returned < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

/// What a descriptor is watched for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interest {
    /// Something can be read.
    pub read: bool,
    /// Something can be written.
    pub write: bool,
}

impl Interest {
    /// To be read only.
    pub const READ: Self = Self {
        read: true,
        write: false,
    };

    fn bits(self) -> u32 {
        let mut bits = 0;
        if self.read {
            bits |= libc::EPOLLIN;
        }
        if self.write {
            bits |= libc::EPOLLOUT;
        }
        bits as u32
    }
}

/// One ready descriptor.
#[derive(Clone, Copy, Debug)]
pub struct Ready {
    /// What it was added with.
    pub token: u32,
    /// Something can be read, or the other side is gone.
    pub readable: bool,
    /// Something can be written.
    pub writable: bool,
}

/// Level-triggered epoll with its event buffer.
pub struct Epoll {
    fd: OwnedFd,
    events: Vec<libc::epoll_event>,
    ready: usize,
}

impl Epoll {
    /// An instance that watches nothing.
    ///
    /// # Errors
    /// The process has no descriptor left.
    pub fn new() -> io::Result<Self> {
        // SAFETY: takes no pointers; the descriptor returned is ours alone.
        let fd = unsafe {
            let fd = libc::epoll_create1(libc::EPOLL_CLOEXEC);
            check(fd)?;
            OwnedFd::from_raw_fd(fd)
        };
        Ok(Self {
            fd,
            events: vec![libc::epoll_event { events: 0, u64: 0 }; EVENTS_PER_WAIT],
            ready: 0,
        })
    }

    /// Watches a descriptor.
    ///
    /// # Errors
    /// See epoll_ctl(2).
    pub fn add(&self, fd: RawFd, token: u32, interest: Interest) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_ADD, fd, token, interest)
    }

    /// Changes what a descriptor is watched for.
    ///
    /// # Errors
    /// See epoll_ctl(2).
    pub fn change(&self, fd: RawFd, token: u32, interest: Interest) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_MOD, fd, token, interest)
    }

    fn control(&self, op: i32, fd: RawFd, token: u32, interest: Interest) -> io::Result<()> {
        let mut event = libc::epoll_event {
            events: interest.bits(),
            u64: u64::from(token),
        };
        // SAFETY: `event` is valid for the call.
        check(unsafe { libc::epoll_ctl(self.fd.as_raw_fd(), op, fd, &raw mut event) })
    }

    /// Waits for events, at most `timeout` nanoseconds (`None`: for ever). Returns their number;
    /// a signal counts as no event.
    pub fn wait(&mut self, timeout: Option<u64>) -> io::Result<usize> {
        let fd = self.fd.as_raw_fd();
        let events = self.events.as_mut_ptr();
        let room = self.events.len() as i32;
        let returned = match timeout {
            // SAFETY: `events` has room for `room` events.
            None => unsafe { libc::epoll_wait(fd, events, room, -1) },
            // SAFETY: as above.
            Some(0) => unsafe { libc::epoll_wait(fd, events, room, 0) },
            Some(ns) => {
                let limit = libc::timespec {
                    tv_sec: (ns / 1_000_000_000) as i64,
                    tv_nsec: (ns % 1_000_000_000) as i64,
                };
                // SAFETY: as above; `limit` is valid and a null mask leaves signals alone.
                unsafe { libc::epoll_pwait2(fd, events, room, &raw const limit, ptr::null()) }
            }
        };
        self.ready = 0;
        if returned < 0 {
            let error = io::Error::last_os_error();
            if error.kind() == io::ErrorKind::Interrupted {
                return Ok(0);
            }
            return Err(error);
        }
        self.ready = returned as usize;
        Ok(self.ready)
    }

    /// The `index`-th event of the last wait. Errors and hang-ups count as readable: the next
    /// `recv` tells.
    pub fn ready(&self, index: usize) -> Ready {
        debug_assert!(index < self.ready);
        let event = self.events[index];
        let bits = event.events as i32;
        Ready {
            token: event.u64 as u32,
            readable: bits & (libc::EPOLLIN | libc::EPOLLHUP | libc::EPOLLERR) != 0,
            writable: bits & libc::EPOLLOUT != 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    #[test]
    fn epoll_reports_only_what_is_ready() {
        let (mut a, b) = UnixStream::pair().unwrap();
        let mut epoll = Epoll::new().unwrap();
        epoll.add(b.as_raw_fd(), 7, Interest::READ).unwrap();
        assert_eq!(epoll.wait(Some(0)).unwrap(), 0);
        assert_eq!(epoll.wait(Some(1_000)).unwrap(), 0);
        a.write_all(b"x").unwrap();
        assert_eq!(epoll.wait(None).unwrap(), 1);
        let ready = epoll.ready(0);
        assert_eq!(ready.token, 7);
        assert!(ready.readable && !ready.writable);
    }

    #[test]
    fn process_clock_exists_for_a_process_and_only_for_one() {
        let clock = ProcessClock::of(std::process::id()).unwrap();
        assert!(clock.cpu_ns().unwrap() > 0);
        // One above the kernel's largest limit of process ids.
        assert!(ProcessClock::of((1 << 22) + 1).is_err());
    }
}
