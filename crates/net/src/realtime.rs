//! Making the shard threads' timing predictable: fixed priority, a CPU each,
//! memory that is there before it is needed and is not paged out, and CPUs that wake
//! up soon.
//!
//! Each step is independent: one that lacks a privilege is skipped and reported
//! as [`Refused`], with the remedy, once for all threads. Sources: sched(7),
//! mlock(2), mallopt(3), the kernel's `power/pm_qos_interface`.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::hint::black_box;
use std::io::{self, Write as _};
use std::path::Path;
use std::time::Duration;

/// Stack of a shard thread that is touched ahead: several times what its
/// deepest call needs.
const STACK: usize = 256 << 10;

/// Piece of memory in which the heap is touched ahead.
const PIECE: usize = 1 << 20;

/// What shard threads are given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RealtimeOptions {
    /// SCHED_FIFO priority, 1 to 98: above all ordinary threads. The kernel's
    /// own interrupt threads have 50.
    pub priority: u8,
    /// Whether each thread is bound to a CPU.
    pub pin: bool,
    /// Bytes of heap that each thread has in memory before it serves, and that
    /// are not given back.
    pub heap: usize,
    /// How long a thread looks for the next event without sleeping, after the
    /// last one. Zero: not at all.
    pub busy_poll: Duration,
    /// How long any CPU of the machine may take to wake up, to the microsecond,
    /// while the process runs. `None`: as the machine is set up.
    pub cpu_latency: Option<Duration>,
}

/// What of it was obtained.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RealtimeStatus {
    /// All memory of the process is locked.
    pub memory_locked: bool,
    /// How long CPUs may take to wake up; `None` if that was not obtained.
    pub cpu_latency: Option<Duration>,
    /// By shard.
    pub shards: Vec<ShardStatus>,
}

impl RealtimeStatus {
    /// Whether nothing that was asked for is missing which bounds rest on: locked memory, and
    /// real-time priority of every shard's thread.
    pub fn is_complete(&self) -> bool {
        self.memory_locked && self.shards.iter().all(|shard| shard.priority.is_some())
    }
}

/// What one shard's thread obtained.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ShardStatus {
    /// Its SCHED_FIFO priority.
    pub priority: Option<u8>,
    /// The CPU that it is bound to.
    pub cpu: Option<usize>,
    /// Bytes of its heap that were touched ahead.
    pub heap: usize,
}

/// One line: what was obtained, and on how many shards.
impl fmt::Display for RealtimeStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let total = self.shards.len();
        let priorities = self.shards.iter().filter_map(|shard| shard.priority);
        let cpus: Vec<String> = self
            .shards
            .iter()
            .filter_map(|shard| Some(shard.cpu?.to_string()))
            .collect();
        match priorities.clone().max() {
            Some(priority) => {
                let count = priorities.count();
                write!(f, "SCHED_FIFO {priority} for {count} of {total} shards")?;
            }
            None => write!(f, "no real-time priority for {total} shards")?,
        }
        match cpus.as_slice() {
            [] => write!(f, ", no CPU of their own")?,
            cpus => write!(f, ", CPU {}", cpus.join(", "))?,
        }
        let locked = if self.memory_locked { "" } else { "not " };
        write!(f, ", memory {locked}locked")?;
        if let Some(most) = self.cpu_latency {
            write!(f, ", CPUs awake within {} us", most.as_micros())?;
        }
        let heap: usize = self.shards.iter().map(|shard| shard.heap).sum();
        write!(f, ", {} MiB of heap ready", heap >> 20)
    }
}

/// A step that was not possible, and what to do about it.
#[derive(Debug, thiserror::Error)]
#[error("{what}: {source}; {remedy}")]
pub struct Refused {
    what: &'static str,
    remedy: &'static str,
    source: io::Error,
}

/// Prepares the process, before its threads are started: keeps freed memory,
/// takes large blocks from the heap as well, and locks all memory, now and
/// later.
///
/// # Errors
/// If memory cannot be locked (CAP_IPC_LOCK or RLIMIT_MEMLOCK); the rest is done.
pub fn prepare_process() -> Result<(), Refused> {
    keep_freed_memory();
    // SAFETY: takes flags only.
    match unsafe { libc::mlockall(libc::MCL_CURRENT | libc::MCL_FUTURE) } {
        0 => Ok(()),
        _ => Err(Refused {
            what: "real time: memory is not locked, it may be paged out",
            source: io::Error::last_os_error(),
            remedy: "give the process CAP_IPC_LOCK, or raise LimitMEMLOCK (systemd) or ulimit -l \
                     to unlimited",
        }),
    }
}

/// A bound on how long the CPUs of the machine may take to wake up, while it lives.
#[derive(Debug)]
#[must_use = "the bound ends with it"]
pub struct Awake {
    _request: File,
}

/// Where the kernel takes that bound: 32 bits, in microseconds, for as long as the file
/// is open.
const CPU_LATENCY: &str = "/dev/cpu_dma_latency";

/// Keeps the CPUs of the machine from sleeping so deeply that waking up takes longer
/// than `most`, to the microsecond; zero keeps them from sleeping at all, which costs
/// power. All processes profit.
///
/// # Errors
/// If the kernel has no such interface or the process no right to it.
pub fn keep_awake(most: Duration) -> Result<Awake, Refused> {
    ask_to_wake(Path::new(CPU_LATENCY), most).map_err(|source| Refused {
        what: "real time: CPUs that sleep may take their time to wake up",
        source,
        remedy: "let its user write to /dev/cpu_dma_latency (a udev rule, DeviceAllow= in \
                 systemd, --device of a container), or set realtime.cpu_latency = \"off\"",
    })
}

fn ask_to_wake(path: &Path, most: Duration) -> io::Result<Awake> {
    let micros = i32::try_from(most.as_micros()).unwrap_or(i32::MAX);
    let mut request = OpenOptions::new().write(true).open(path)?;
    request.write_all(&micros.to_ne_bytes())?;
    Ok(Awake { _request: request })
}

/// Gives the calling thread what `options` say, as thread `n`; then what it got
/// and what it did not get.
pub fn prepare_thread(options: &RealtimeOptions, n: usize) -> (ShardStatus, Vec<Refused>) {
    let mut status = ShardStatus::default();
    let mut refused = Vec::new();
    if options.pin {
        match pin(n) {
            Ok(cpu) => status.cpu = Some(cpu),
            Err(source) => refused.push(Refused {
                what: "real time: the shards have no CPU each",
                source,
                remedy: "allow the process its CPUs (CPUAffinity in systemd, taskset, cpuset), or \
                         set realtime.pin = false",
            }),
        }
    }
    // Before the priority: touching memory takes milliseconds.
    touch_stack();
    touch_heap(options.heap);
    status.heap = options.heap;
    match set_fifo(options.priority) {
        Ok(()) => status.priority = Some(options.priority),
        Err(source) => refused.push(Refused {
            what: "real time: the shards have no real-time priority",
            source,
            remedy: "give the process CAP_SYS_NICE, or a LimitRTPRIO (systemd) or ulimit -r of at \
                     least realtime.priority",
        }),
    }
    (status, refused)
}

/// Gives the calling thread SCHED_FIFO at `priority`.
///
/// # Errors
/// Without CAP_SYS_NICE or a sufficient RLIMIT_RTPRIO.
pub fn set_fifo(priority: u8) -> io::Result<()> {
    let parameters = libc::sched_param {
        sched_priority: priority.into(),
    };
    // SAFETY: the pointer is to a live sched_param; 0 names the calling thread.
    match unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &parameters) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Has the calling thread go before all others without real-time priority (nice -20).
///
/// # Errors
/// Without CAP_SYS_NICE or a sufficient RLIMIT_NICE.
pub fn set_least_nice() -> io::Result<()> {
    // SAFETY: no memory is passed; 0 names the calling thread.
    match unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, -20) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Has the calling thread run after others (nice 10, unless it has less precedence already).
///
/// # Errors
/// As setpriority(2); it needs no privilege.
pub fn set_nice() -> io::Result<()> {
    const NICE: libc::c_int = 10;
    // SAFETY: no memory is passed; 0 names the calling thread. An error is -1, which is a valid
    // value, too, and less than what is set then.
    let own = unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) };
    // SAFETY: as above.
    match unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, own.max(NICE)) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Binds the calling thread to the `n`-th CPU that the process may use, modulo
/// their number, and returns which that is.
///
/// # Errors
/// As sched_setaffinity(2).
pub fn pin(n: usize) -> io::Result<usize> {
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
    let cpu = cpus[n % cpus.len()];
    // SAFETY: as above.
    let mut one: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the CPU came out of a set of the same size.
    unsafe { libc::CPU_SET(cpu, &mut one) };
    // SAFETY: `one` is live and of the size given.
    match unsafe { libc::sched_setaffinity(0, size, &one) } {
        0 => Ok(cpu),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Makes the allocator keep what is freed, and take large blocks from the heap
/// too, where they are in memory already, not from the kernel one by one.
fn keep_freed_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: mallopt changes settings of the allocator under its own lock.
    unsafe {
        libc::mallopt(libc::M_TRIM_THRESHOLD, -1);
        libc::mallopt(libc::M_MMAP_MAX, 0);
    }
}

/// Has pages for the deepest calls to come.
#[inline(never)]
fn touch_stack() {
    black_box(&mut [1_u8; STACK]);
}

/// Has pages for `bytes` of this thread's heap: what was touched and freed is
/// what the allocator hands out next.
fn touch_heap(bytes: usize) {
    let pieces = (0..bytes.div_ceil(PIECE)).map(|_| vec![1_u8; PIECE]);
    drop(black_box(pieces.collect::<Vec<_>>()));
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    /// Page faults of the calling thread so far that needed no disk.
    fn faults() -> i64 {
        // SAFETY: all zeros is a valid rusage.
        let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
        // SAFETY: the pointer is to a live rusage.
        let failed = unsafe { libc::getrusage(libc::RUSAGE_THREAD, &mut usage) };
        assert_eq!(failed, 0);
        usage.ru_minflt
    }

    #[test]
    #[cfg(target_env = "gnu")]
    fn memory_that_was_touched_ahead_costs_no_page_fault() {
        keep_freed_memory();
        let work = || -> i64 {
            let before = faults();
            let blocks: Vec<Vec<u8>> = (0..64).map(|_| vec![1; 64 << 10]).collect();
            black_box(blocks);
            faults() - before
        };
        let cold = thread::spawn(work).join().unwrap();
        let warm = thread::spawn(move || {
            touch_heap(8 << 20);
            work()
        });
        let warm = warm.join().unwrap();
        assert!(warm < cold / 4, "{warm} faults instead of {cold}");
    }

    #[test]
    fn the_status_is_a_line_that_says_what_is_missing() {
        let shard = |priority, cpu| ShardStatus {
            priority,
            cpu,
            heap: 16 << 20,
        };
        let full = RealtimeStatus {
            memory_locked: true,
            cpu_latency: Some(Duration::ZERO),
            shards: vec![shard(Some(40), Some(2)), shard(Some(40), Some(3))],
        };
        assert_eq!(
            full.to_string(),
            "SCHED_FIFO 40 for 2 of 2 shards, CPU 2, 3, memory locked, \
             CPUs awake within 0 us, 32 MiB of heap ready"
        );
        let nothing = RealtimeStatus {
            memory_locked: false,
            cpu_latency: None,
            shards: vec![shard(None, None)],
        };
        assert_eq!(
            nothing.to_string(),
            "no real-time priority for 1 shards, no CPU of their own, memory not locked, \
             16 MiB of heap ready"
        );
    }

    #[test]
    fn the_kernel_is_told_microseconds_in_32_bits() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("cpu_dma_latency");
        assert!(ask_to_wake(&path, Duration::ZERO).is_err());
        for (most, told) in [
            (Duration::from_micros(70), 70),
            (Duration::from_secs(9_999), i32::MAX),
        ] {
            std::fs::write(&path, "").unwrap();
            let _awake = ask_to_wake(&path, most).unwrap();
            assert_eq!(std::fs::read(&path).unwrap(), i32::to_ne_bytes(told));
        }
    }

    #[test]
    fn a_thread_gets_one_of_the_cpus_it_may_use() {
        let pinned = thread::spawn(|| {
            let cpu = pin(7).unwrap();
            // SAFETY: takes no arguments.
            (cpu, unsafe { libc::sched_getcpu() })
        });
        let (cpu, running) = pinned.join().unwrap();
        assert_eq!(i32::try_from(cpu), Ok(running));
    }

    #[test]
    fn what_is_refused_is_said_with_a_remedy_and_the_rest_is_done() {
        let options = RealtimeOptions {
            // No such priority: refused to everybody.
            priority: 100,
            pin: true,
            heap: PIECE,
            busy_poll: Duration::ZERO,
            cpu_latency: None,
        };
        let (status, refused) = thread::spawn(move || prepare_thread(&options, 0))
            .join()
            .unwrap();
        assert_eq!(status.priority, None);
        assert!(status.cpu.is_some());
        assert_eq!(status.heap, PIECE);
        let [refused] = refused.as_slice() else {
            panic!("{refused:?}");
        };
        assert!(refused.to_string().contains("CAP_SYS_NICE"), "{refused}");
    }
}
