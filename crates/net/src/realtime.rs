//! Making a thread's timing predictable: fixed priority, a CPU of its own,
//! memory that is not paged out. Each step that lacks a privilege is reported
//! and skipped.

use std::io;

/// Priority of shard threads under SCHED_FIFO: above ordinary threads, below
/// the kernel's own (50) so that interrupts are still served.
const PRIORITY: libc::c_int = 40;

/// Gives the calling thread SCHED_FIFO.
///
/// # Errors
/// Without CAP_SYS_NICE or a sufficient RLIMIT_RTPRIO.
pub fn set_fifo() -> io::Result<()> {
    let parameters = libc::sched_param {
        sched_priority: PRIORITY,
    };
    // SAFETY: the pointer is to a live sched_param; 0 names the calling thread.
    match unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &parameters) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Binds the calling thread to the `n`-th CPU that the process may use, modulo
/// their number.
///
/// # Errors
/// As sched_setaffinity(2).
pub fn pin(n: usize) -> io::Result<()> {
    let size = size_of::<libc::cpu_set_t>();
    // SAFETY: cpu_set_t is plain data for which all zeros is the empty set.
    let mut allowed: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: `allowed` is live and of the size given.
    if unsafe { libc::sched_getaffinity(0, size, &mut allowed) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the index is below CPU_SETSIZE, the set is initialised.
    let is_set = |cpu: &usize| unsafe { libc::CPU_ISSET(*cpu, &allowed) };
    let cpus: Vec<usize> = (0..libc::CPU_SETSIZE as usize).filter(is_set).collect();
    if cpus.is_empty() {
        return Err(io::Error::other("no CPU may be used"));
    }
    // SAFETY: as above.
    let mut one: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the CPU came out of a set of the same size.
    unsafe { libc::CPU_SET(cpus[n % cpus.len()], &mut one) };
    // SAFETY: `one` is live and of the size given.
    match unsafe { libc::sched_setaffinity(0, size, &one) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Locks all memory of the process, now and later.
///
/// # Errors
/// Without CAP_IPC_LOCK or a sufficient RLIMIT_MEMLOCK.
pub fn lock_memory() -> io::Result<()> {
    // SAFETY: takes flags only.
    match unsafe { libc::mlockall(libc::MCL_CURRENT | libc::MCL_FUTURE) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Raises the limit of open files to what the process may have, and returns it.
pub fn raise_file_limit() -> u64 {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the pointer is to a live rlimit.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) } != 0 {
        return 1024;
    }
    let before = limit.rlim_cur;
    limit.rlim_cur = limit.rlim_max;
    // SAFETY: as above.
    if unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) } != 0 {
        return before;
    }
    limit.rlim_cur
}
