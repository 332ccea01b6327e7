//! The few Linux calls that the standard library does not offer: epoll with nanosecond
//! time-outs, CPU clocks of a thread and of another process, pinning, scheduling class.
//!
//! Epoll is level-triggered on purpose: one `recv` per readiness event is enough, there is no
//! second `recv` that only learns `EAGAIN`. All unsafe code of the crate is here and in
//! [`crate::syscalls`].

use std::ffi::CString;
use std::fs::File;
use std::io::{self, Seek as _, Write as _};
use std::mem::MaybeUninit;
use std::net::{Ipv4Addr, UdpSocket};
use std::ops::RangeInclusive;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::ptr;

/// Events taken from the kernel per wait.
const EVENTS_PER_WAIT: usize = 1024;

/// Nanoseconds on `CLOCK_MONOTONIC`.
pub(crate) fn now_ns() -> u64 {
    clock_ns(libc::CLOCK_MONOTONIC).unwrap_or(0)
}

/// Nanoseconds on `CLOCK_REALTIME`: what the kernel stamps packets with.
pub(crate) fn real_time_ns() -> u64 {
    clock_ns(libc::CLOCK_REALTIME).unwrap_or(0)
}

/// CPU nanoseconds (user and system) used by the calling thread so far.
pub(crate) fn thread_cpu_ns() -> u64 {
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
pub(crate) struct ProcessClock(libc::clockid_t);

impl ProcessClock {
    pub(crate) fn of(pid: u32) -> io::Result<Self> {
        let mut clock = 0;
        // SAFETY: `clock` is a valid place for the answer.
        let error = unsafe { libc::clock_getcpuclockid(pid as libc::pid_t, &raw mut clock) };
        if error != 0 {
            return Err(io::Error::from_raw_os_error(error));
        }
        Ok(Self(clock))
    }

    pub(crate) fn cpu_ns(self) -> io::Result<u64> {
        clock_ns(self.0)
    }
}

/// Binds the calling thread (and what it forks) to one core.
pub(crate) fn pin_to_core(core: usize) -> io::Result<()> {
    pin_to(core..=core)
}

/// Binds all threads that a process has to one core, and with them those that they start.
pub(crate) fn pin_process(pid: u32, core: usize) -> io::Result<()> {
    for entry in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        let thread = entry?.file_name().to_str().and_then(|id| id.parse().ok());
        match thread.map_or(Ok(()), |thread| pin_thread(thread, core..=core)) {
            // It has ended meanwhile.
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {}
            result => result?,
        }
    }
    Ok(())
}

fn pin_to(cores: RangeInclusive<usize>) -> io::Result<()> {
    pin_thread(0, cores)
}

/// Binds a thread, 0 for the calling one.
fn pin_thread(thread: libc::pid_t, cores: RangeInclusive<usize>) -> io::Result<()> {
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
pub(crate) fn set_fifo(priority: u8) -> io::Result<()> {
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
pub(crate) fn set_least_timer_slack() {
    // SAFETY: PR_SET_TIMERSLACK takes one integer and touches no memory.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1) };
}

/// Raises the soft limit of open files to the hard limit and returns it.
pub(crate) fn raise_file_limit() -> io::Result<u64> {
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

/// Makes `command` run pinned to `core` (`None`: on any), under `SCHED_FIFO` at `fifo` (0: the
/// normal class), with all the files it may open, and not outlive the calling thread.
pub(crate) fn prepare_child(command: &mut Command, core: Option<usize>, fifo: u8) {
    let most = libc::CPU_SETSIZE as usize - 1;
    let cores = core.map_or(0..=most, |core| core..=core);
    ends_with_thread(command);
    let prepare = move || {
        pin_to(cores.clone())?;
        set_fifo(fifo)?;
        raise_file_limit().map(drop)
    };
    // SAFETY: between fork and exec only system calls are made; nothing allocates or locks.
    unsafe { command.pre_exec(prepare) };
}

/// Makes `command` end when the calling thread does, killed or not.
pub(crate) fn ends_with_thread(command: &mut Command) {
    // SAFETY: PR_SET_PDEATHSIG takes one integer and touches no memory.
    let prepare = || check(unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) });
    // SAFETY: between fork and exec only a system call is made; nothing allocates or locks.
    unsafe { command.pre_exec(prepare) };
}

/// A file that is in memory only, with that content, to be read from its beginning. It is gone
/// with the last descriptor of it, so that nothing stays behind whatever happens.
pub(crate) fn memory_file(name: &str, content: &[u8]) -> io::Result<File> {
    let name = CString::new(name)?;
    // SAFETY: `name` is a valid text for the call; the descriptor returned is ours alone.
    let mut file = unsafe {
        let fd = libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC);
        check(fd)?;
        File::from(OwnedFd::from_raw_fd(fd))
    };
    file.write_all(content)?;
    file.rewind()?;
    Ok(file)
}

/// Gives the packet sockets (AF_PACKET) of another process room for so many bytes that wait to be
/// sent. What they have by default is a setting of the whole machine.
pub(crate) fn packet_send_buffers(pid: u32, bytes: i32) -> io::Result<()> {
    // SAFETY: these system calls take integers; a descriptor that they return is ours alone.
    let open = |number, first: libc::c_long, second: libc::c_long| unsafe {
        match libc::syscall(number, first, second, 0) {
            fd if fd < 0 => Err(io::Error::last_os_error()),
            fd => Ok(OwnedFd::from_raw_fd(fd as RawFd)),
        }
    };
    let process = open(libc::SYS_pidfd_open, pid.into(), 0)?;
    for entry in std::fs::read_dir(format!("/proc/{pid}/fd"))? {
        let number: Option<libc::c_long> = entry?.file_name().to_str().and_then(|n| n.parse().ok());
        let Some(number) = number else { continue };
        // One that was closed meanwhile is none of those that send.
        let Ok(socket) = open(libc::SYS_pidfd_getfd, process.as_raw_fd().into(), number) else {
            continue;
        };
        let (mut domain, mut length) = (0_i32, size_of::<i32>() as libc::socklen_t);
        // SAFETY: the pointers are valid and the length is that of the value.
        let is_known = unsafe {
            libc::getsockopt(
                socket.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_DOMAIN,
                (&raw mut domain).cast(),
                &raw mut length,
            )
        };
        if is_known == 0 && domain == libc::AF_PACKET {
            set_option(&socket, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, bytes)?;
        }
    }
    Ok(())
}

/// Lets the kernel compute the check sums of what leaves by a device of the calling thread's
/// namespace, or (the usual) leave that to the device, which a virtual one never does.
pub(crate) fn transmit_checksums(device: &str, by_device: bool) -> io::Result<()> {
    /// `struct ethtool_value` (linux/ethtool.h).
    #[repr(C)]
    struct Value {
        command: u32,
        data: u32,
    }
    const SET_TRANSMIT_CHECKSUMS: u32 = 0x17;
    let mut value = Value {
        command: SET_TRANSMIT_CHECKSUMS,
        data: u32::from(by_device),
    };
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    // SAFETY: an all-zero ifreq is valid.
    let mut request = unsafe { MaybeUninit::<libc::ifreq>::zeroed().assume_init() };
    // The last byte stays 0.
    let room = request.ifr_name.len() - 1;
    for (to, from) in request.ifr_name[..room].iter_mut().zip(device.bytes()) {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_data = (&raw mut value).cast();
    // SAFETY: the request names a device and points to a value of the command's kind.
    check(unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCETHTOOL, &raw mut request) })
}

/// Marks what leaves by `socket` (IPv4) with a DiffServ code point, 0 to 63.
pub(crate) fn mark(socket: &impl AsRawFd, dscp: u8) -> io::Result<()> {
    set_option(socket, libc::IPPROTO_IP, libc::IP_TOS, i32::from(dscp) << 2)
}

/// Asks for room for so many bytes that arrived and were not read; the system's limit may give
/// less.
pub(crate) fn ask_receive_buffer(socket: &impl AsRawFd, bytes: usize) -> io::Result<()> {
    let bytes = i32::try_from(bytes).unwrap_or(i32::MAX);
    set_option(socket, libc::SOL_SOCKET, libc::SO_RCVBUF, bytes)
}

fn set_option(socket: &impl AsRawFd, level: i32, option: i32, value: i32) -> io::Result<()> {
    let size = size_of::<libc::c_int>() as libc::socklen_t;
    let value: libc::c_int = value;
    // SAFETY: the descriptor is open, and the value is valid and of the size given.
    check(unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            option,
            (&raw const value).cast(),
            size,
        )
    })
}

/// Sends from a file, from `offset` on, without copying; returns how many bytes that were.
pub(crate) fn send_file(
    socket: &impl AsRawFd,
    file: &File,
    offset: usize,
    len: usize,
) -> io::Result<usize> {
    let mut offset = offset as libc::off_t;
    // SAFETY: both descriptors are open, and `offset` is a valid place to read and write.
    let sent =
        unsafe { libc::sendfile(socket.as_raw_fd(), file.as_raw_fd(), &raw mut offset, len) };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error())
}

/// Takes up to `most` bytes from a TCP connection and forgets them, without copying (tcp(7),
/// `MSG_TRUNC`); returns how many there were.
pub(crate) fn discard(socket: &impl AsRawFd, most: usize) -> io::Result<usize> {
    // SAFETY: with MSG_TRUNC nothing is written to the buffer, which may be null.
    let taken = unsafe { libc::recv(socket.as_raw_fd(), ptr::null_mut(), most, libc::MSG_TRUNC) };
    usize::try_from(taken).map_err(|_| io::Error::last_os_error())
}

/// Puts what a file has out of the page cache, as far as it is on disk.
pub(crate) fn forget_cached(file: &File) -> io::Result<()> {
    file.sync_all()?;
    // SAFETY: posix_fadvise takes integers and touches no memory.
    let error = unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
    match error {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

/// Asks a process to end (SIGTERM).
pub(crate) fn terminate(pid: u32) -> io::Result<()> {
    // SAFETY: kill touches no memory.
    check(unsafe { libc::kill(pid as libc::pid_t, libc::SIGTERM) })
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
pub(crate) struct Interest {
    pub(crate) read: bool,
    pub(crate) write: bool,
}

impl Interest {
    pub(crate) const READ: Self = Self {
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
pub(crate) struct Ready {
    pub(crate) token: u32,
    pub(crate) readable: bool,
    pub(crate) writable: bool,
}

/// Level-triggered epoll with its event buffer.
pub(crate) struct Epoll {
    fd: OwnedFd,
    events: Vec<libc::epoll_event>,
    ready: usize,
}

impl Epoll {
    pub(crate) fn new() -> io::Result<Self> {
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

    pub(crate) fn add(&self, fd: RawFd, token: u32, interest: Interest) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_ADD, fd, token, interest)
    }

    pub(crate) fn change(&self, fd: RawFd, token: u32, interest: Interest) -> io::Result<()> {
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
    pub(crate) fn wait(&mut self, timeout: Option<u64>) -> io::Result<usize> {
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
    pub(crate) fn ready(&self, index: usize) -> Ready {
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
