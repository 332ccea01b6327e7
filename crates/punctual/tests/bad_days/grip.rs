//! Takes hold of one thread of another process, as a debugger does, to make the
//! disk behave badly for it alone: what it wants to make safe takes for ever, or
//! fails. Everything else in that process goes on.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// Between two looks at the thread.
const LOOK: Duration = Duration::from_millis(1);

/// What becomes of `fdatasync`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Disk {
    /// It does not return.
    StandsStill,
    /// It returns `EIO`, and so does `pwrite`.
    Fails,
}

/// A thread that is held, as long as it lives.
pub(crate) struct Grip {
    release: Arc<AtomicBool>,
    tracer: Option<JoinHandle<()>>,
}

impl Grip {
    /// Takes the thread of that name, and returns when the disk behaves so for it.
    /// Where that is not allowed: `None`, and says so, or fails where
    /// PUNCTUAL_REQUIRE_NETNS is set.
    pub(crate) fn take(process: u32, name: &str, disk: Disk) -> Option<Self> {
        let thread = thread_of(process, name);
        let release = Arc::new(AtomicBool::new(false));
        let (sender, held) = channel();
        // Whoever traces a thread must go on to be the same thread.
        let tracer = {
            let release = release.clone();
            thread::spawn(move || match trace::seize(thread) {
                Ok(()) => trace::hold(thread, disk, &release, &sender),
                Err(error) => sender.send(Err(error)).unwrap(),
            })
        };
        match held.recv().unwrap() {
            Ok(()) => Some(Self {
                release,
                tracer: Some(tracer),
            }),
            Err(error) => {
                let required = std::env::var_os("PUNCTUAL_REQUIRE_NETNS").is_some();
                assert!(!required, "a thread cannot be traced: {error}");
                eprintln!("skipped: a thread of another process cannot be traced: {error}");
                None
            }
        }
    }
}

impl Drop for Grip {
    fn drop(&mut self) {
        self.release.store(true, Ordering::Relaxed);
        if let Some(tracer) = self.tracer.take() {
            let ended = tracer.join();
            assert!(thread::panicking() || ended.is_ok());
        }
    }
}

fn thread_of(process: u32, name: &str) -> libc::pid_t {
    let tasks = std::fs::read_dir(format!("/proc/{process}/task")).unwrap();
    let mut tasks = tasks.map(|task| task.unwrap().path());
    let task = tasks.find(|task| {
        let comm = std::fs::read_to_string(task.join("comm"));
        comm.is_ok_and(|comm| comm.trim() == name)
    });
    let task = task.unwrap_or_else(|| panic!("no thread {name}"));
    task.file_name().unwrap().to_str().unwrap().parse().unwrap()
}

#[cfg(target_arch = "x86_64")]
mod trace {
    use super::*;

    static NEVER: AtomicBool = AtomicBool::new(false);

    /// What the thread did.
    enum Stop {
        /// It is before or after a system call.
        Call,
        /// Something else made it stop.
        Other,
        /// It is gone.
        End,
    }

    fn ask(
        request: libc::c_uint,
        thread: libc::pid_t,
        data: *mut libc::user_regs_struct,
    ) -> io::Result<()> {
        let none = std::ptr::null_mut::<libc::c_void>();
        // SAFETY: the requests used here read or write one user_regs_struct at `data`, or
        // take it as a number.
        match unsafe { libc::ptrace(request, thread, none, data) } {
            -1 => Err(io::Error::last_os_error()),
            _ => Ok(()),
        }
    }

    fn ask_for(request: libc::c_uint, thread: libc::pid_t, number: usize) -> io::Result<()> {
        ask(request, thread, std::ptr::without_provenance_mut(number))
    }

    pub(super) fn seize(thread: libc::pid_t) -> io::Result<()> {
        let options = libc::PTRACE_O_TRACESYSGOOD as usize;
        ask_for(libc::PTRACE_SEIZE, thread, options)?;
        ask_for(libc::PTRACE_INTERRUPT, thread, 0)
    }

    /// The next time that the thread stops; `None` if it is to be released first.
    fn stop(thread: libc::pid_t, release: &AtomicBool) -> Option<Stop> {
        loop {
            let mut status = 0;
            // SAFETY: `status` is an integer.
            let found =
                unsafe { libc::waitpid(thread, &raw mut status, libc::__WALL | libc::WNOHANG) };
            return match found {
                0 if release.load(Ordering::Relaxed) => None,
                0 => {
                    thread::sleep(LOOK);
                    continue;
                }
                -1 => Some(Stop::End),
                _ if !libc::WIFSTOPPED(status) => Some(Stop::End),
                _ if libc::WSTOPSIG(status) == libc::SIGTRAP | 0x80 => Some(Stop::Call),
                _ => Some(Stop::Other),
            };
        }
    }

    /// Until it is released or gone. That the disk behaves as it should is said
    /// once it did for the first time.
    pub(super) fn hold(
        thread: libc::pid_t,
        disk: Disk,
        release: &AtomicBool,
        held: &Sender<io::Result<()>>,
    ) {
        let mut told = false;
        let mut tell = || {
            if !std::mem::replace(&mut told, true) {
                held.send(Ok(())).unwrap();
            }
        };
        let mut failing = false;
        loop {
            // A call that was taken away gets its result first.
            match stop(thread, if failing { &NEVER } else { release }) {
                Some(Stop::End) => return tell(),
                Some(Stop::Other) => {}
                Some(Stop::Call) => {
                    // SAFETY: the structure has numbers only.
                    let mut registers: libc::user_regs_struct = unsafe { std::mem::zeroed() };
                    if ask(libc::PTRACE_GETREGS, thread, &raw mut registers).is_err() {
                        continue;
                    }
                    let call = registers.orig_rax as libc::c_long;
                    // What the register of the result has before a call.
                    let before = registers.rax as i64 == -i64::from(libc::ENOSYS);
                    if std::mem::take(&mut failing) {
                        registers.rax = -i64::from(libc::EIO) as u64;
                        let _ = ask(libc::PTRACE_SETREGS, thread, &raw mut registers);
                        tell();
                    } else if before && disk == Disk::StandsStill && call == libc::SYS_fdatasync {
                        tell();
                        // The thread stays where it is: the next news is its end.
                        if let Some(Stop::End) = stop(thread, release) {
                            return;
                        }
                    } else if before
                        && disk == Disk::Fails
                        && [libc::SYS_fdatasync, libc::SYS_pwrite64].contains(&call)
                        && !release.load(Ordering::Relaxed)
                    {
                        // No call at all; its result is made up afterwards.
                        registers.orig_rax = u64::MAX;
                        let changed = ask(libc::PTRACE_SETREGS, thread, &raw mut registers);
                        failing = changed.is_ok();
                    }
                }
                None => {
                    // It has to stop to be let go.
                    let _ = ask_for(libc::PTRACE_INTERRUPT, thread, 0);
                    if let Some(Stop::End) = stop(thread, &NEVER) {
                        return;
                    }
                }
            }
            if release.load(Ordering::Relaxed) && !failing {
                let _ = ask_for(libc::PTRACE_DETACH, thread, 0);
                return;
            }
            let _ = ask_for(libc::PTRACE_SYSCALL, thread, 0);
        }
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod trace {
    use super::*;

    pub(super) fn seize(_: libc::pid_t) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(super) fn hold(_: libc::pid_t, _: Disk, _: &AtomicBool, _: &Sender<io::Result<()>>) {}
}
