//! System calls of the benchmarks: child processes that end with their parent thread, packet
//! sockets, DiffServ marks, files. Those of the load generator are in [`punctual_measure::sys`].

use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::ptr;

pub(crate) use punctual_measure::sys::{
    Epoll, Interest, now_ns, pin_thread, pin_to_core, raise_file_limit, real_time_ns, set_fifo,
    set_least_timer_slack, thread_cpu_ns,
};

/// Pins all current threads of a process to one core. Threads that they start inherit the core.
pub(crate) fn pin_process(pid: u32, core: usize) -> io::Result<()> {
    for entry in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        let thread = entry?.file_name().to_str().and_then(|id| id.parse().ok());
        match thread.map_or(Ok(()), |thread| pin_thread(thread, core..=core)) {
            // The thread has ended in the meantime.
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {}
            result => result?,
        }
    }
    Ok(())
}

/// Makes `command` run pinned to `core` (`None`: any core), under `SCHED_FIFO` at priority `fifo`
/// (0: the normal class), with the highest allowed limit of open files. The kernel kills the
/// process when the calling thread ends.
pub(crate) fn prepare_child(command: &mut Command, core: Option<usize>, fifo: u8) {
    let most = libc::CPU_SETSIZE as usize - 1;
    let cores = core.map_or(0..=most, |core| core..=core);
    ends_with_thread(command);
    let prepare = move || {
        pin_thread(0, cores.clone())?;
        set_fifo(fifo)?;
        raise_file_limit().map(drop)
    };
    // SAFETY: only system calls are made between fork and exec; none allocates or locks.
    unsafe { command.pre_exec(prepare) };
}

/// Makes the kernel kill the process of `command` when the calling thread ends, however it ends.
pub(crate) fn ends_with_thread(command: &mut Command) {
    // SAFETY: PR_SET_PDEATHSIG takes one integer and touches no memory.
    let prepare = || check(unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) });
    // SAFETY: only one system call is made between fork and exec; it neither allocates nor locks.
    unsafe { command.pre_exec(prepare) };
}

/// Sets the send buffers of another process's packet sockets (AF_PACKET) to `bytes`. Their default
/// size is a setting of the whole machine.
pub(crate) fn packet_send_buffers(pid: u32, bytes: i32) -> io::Result<()> {
    // SAFETY: these system calls take integers; no other code owns a descriptor that they return.
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
        // A descriptor that has been closed in the meantime is no longer used to send.
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

/// Chooses who computes the check sums of packets sent by a device of the calling thread's
/// namespace: the kernel, or (the default) the device. A virtual device never computes them.
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
    // The last byte of the name stays 0.
    let room = request.ifr_name.len() - 1;
    for (to, from) in request.ifr_name[..room].iter_mut().zip(device.bytes()) {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_data = (&raw mut value).cast();
    // SAFETY: the request names a device and points to a value of the type that the command takes.
    check(unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCETHTOOL, &raw mut request) })
}

/// Marks the packets that `socket` (IPv4) sends with a DiffServ code point, 0 to 63.
pub(crate) fn mark(socket: &impl AsRawFd, dscp: u8) -> io::Result<()> {
    set_option(socket, libc::IPPROTO_IP, libc::IP_TOS, i32::from(dscp) << 2)
}

/// Limits the sending rate of a TCP connection, bit/s (socket(7), `SO_MAX_PACING_RATE`).
pub(crate) fn pace(socket: &impl AsRawFd, rate: u64) -> io::Result<()> {
    let bytes = i32::try_from(rate / 8).unwrap_or(i32::MAX).max(1);
    set_option(socket, libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE, bytes)
}

/// Requests a receive buffer of `bytes`; the limit of the system may reduce it.
pub(crate) fn ask_receive_buffer(socket: &impl AsRawFd, bytes: usize) -> io::Result<()> {
    let bytes = i32::try_from(bytes).unwrap_or(i32::MAX);
    set_option(socket, libc::SOL_SOCKET, libc::SO_RCVBUF, bytes)
}

fn set_option(socket: &impl AsRawFd, level: i32, option: i32, value: i32) -> io::Result<()> {
    let size = size_of::<libc::c_int>() as libc::socklen_t;
    let value: libc::c_int = value;
    // SAFETY: the descriptor is open, and the value is valid and of the given size.
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

/// Sends from a file, from `offset` on, without copying; returns the number of bytes sent.
pub(crate) fn send_file(
    socket: &impl AsRawFd,
    file: &File,
    offset: usize,
    len: usize,
) -> io::Result<usize> {
    let mut offset = offset as libc::off_t;
    // SAFETY: both descriptors are open, and `offset` is valid for reads and writes.
    let sent =
        unsafe { libc::sendfile(socket.as_raw_fd(), file.as_raw_fd(), &raw mut offset, len) };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error())
}

/// Receives up to `most` bytes from a TCP connection and discards them without copying (tcp(7),
/// `MSG_TRUNC`); returns the number of bytes.
pub(crate) fn discard(socket: &impl AsRawFd, most: usize) -> io::Result<usize> {
    // SAFETY: with MSG_TRUNC nothing is written to the buffer, which may be null.
    let taken = unsafe { libc::recv(socket.as_raw_fd(), ptr::null_mut(), most, libc::MSG_TRUNC) };
    usize::try_from(taken).map_err(|_| io::Error::last_os_error())
}

/// Drops the content of a file from the page cache, as far as it has been written to disk.
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
    signal(pid, libc::SIGTERM)
}

/// Sends a signal to a process.
pub(crate) fn signal(pid: u32, signal: libc::c_int) -> io::Result<()> {
    // SAFETY: kill touches no memory.
    check(unsafe { libc::kill(pid as libc::pid_t, signal) })
}

fn check(returned: libc::c_int) -> io::Result<()> {
    if returned < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}
