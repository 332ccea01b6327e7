//! What `punctual store` leaves when it is killed, before each of its system calls that may change a
//! file: what was there, or all that is to be there.

use std::collections::HashSet;
use std::ffi::OsString;
use std::fs;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use tempfile::{TempDir, tempdir};

use super::store::{backup, store};
use super::{command, run};

/// How a command ended.
#[derive(Debug, PartialEq, Eq)]
enum End {
    Killed,
    Done,
}

/// System calls that change no file, of those that a program makes often.
const HARMLESS: [libc::c_long; 31] = [
    libc::SYS_brk,
    libc::SYS_clock_gettime,
    libc::SYS_clone3,
    libc::SYS_close,
    libc::SYS_faccessat,
    libc::SYS_fcntl,
    libc::SYS_fstat,
    libc::SYS_futex,
    libc::SYS_getdents64,
    libc::SYS_getpid,
    libc::SYS_getrandom,
    libc::SYS_gettid,
    libc::SYS_lseek,
    libc::SYS_madvise,
    libc::SYS_mmap,
    libc::SYS_mprotect,
    libc::SYS_mremap,
    libc::SYS_munmap,
    libc::SYS_newfstatat,
    libc::SYS_pread64,
    libc::SYS_prlimit64,
    libc::SYS_read,
    libc::SYS_readlinkat,
    libc::SYS_rseq,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_sched_getaffinity,
    libc::SYS_set_robust_list,
    libc::SYS_set_tid_address,
    libc::SYS_sigaltstack,
    libc::SYS_statx,
];

/// Whether a child that is stopped at a system call is about to make one that may change a file.
fn may_change(child: libc::pid_t) -> bool {
    // SAFETY: all of it is numbers, for which zeros are values.
    let mut info: libc::ptrace_syscall_info = unsafe { std::mem::zeroed() };
    let (request, size) = (libc::PTRACE_GET_SYSCALL_INFO, size_of_val(&info));
    // SAFETY: the child has stopped, and the kernel writes no more than this size.
    let read = unsafe { libc::ptrace(request, child, size, &raw mut info) };
    assert!(read > 0, "{}", io::Error::last_os_error());
    if info.op != libc::PTRACE_SYSCALL_INFO_ENTRY {
        return false;
    }
    // SAFETY: the kernel has said that these are the numbers of an entry.
    let entry = unsafe { info.u.entry };
    let call = entry.nr as libc::c_long;
    if call == libc::SYS_openat {
        return entry.args[2] & (libc::O_CREAT | libc::O_TRUNC) as u64 != 0;
    }
    !HARMLESS.contains(&call)
}

/// Runs the binary and kills it after so many system calls that may change a file, before the next.
fn run_until(calls: usize, arguments: &[OsString]) -> io::Result<End> {
    let mut command = command(arguments);
    command.stdin(Stdio::null()).stdout(Stdio::null());
    // SAFETY: ptrace is async-signal-safe and touches only the child.
    unsafe {
        command.pre_exec(|| match libc::ptrace(libc::PTRACE_TRACEME) {
            -1 => Err(io::Error::last_os_error()),
            _ => Ok(()),
        });
    }
    let child = command.spawn()?;
    let child = child.id() as libc::pid_t;
    let wait = || {
        let mut status = 0;
        // SAFETY: `status` is an integer, and nobody else waits for the child.
        let found = unsafe { libc::waitpid(child, &raw mut status, libc::__WALL) };
        assert_eq!(found, child);
        status
    };
    // SAFETY: these requests take numbers, and the child has stopped.
    let ask = |request, number: usize| unsafe {
        let data = std::ptr::without_provenance_mut::<libc::c_void>(number);
        libc::ptrace(request, child, std::ptr::null_mut::<libc::c_void>(), data)
    };
    // It has begun the program.
    assert!(libc::WIFSTOPPED(wait()));
    let options = libc::PTRACE_O_TRACESYSGOOD | libc::PTRACE_O_EXITKILL;
    assert_eq!(ask(libc::PTRACE_SETOPTIONS, options as usize), 0);
    let mut left = calls;
    let mut signal = 0;
    loop {
        assert_eq!(ask(libc::PTRACE_SYSCALL, signal as usize), 0);
        let status = wait();
        if libc::WIFEXITED(status) {
            assert_eq!(libc::WEXITSTATUS(status), 0);
            return Ok(End::Done);
        }
        assert!(libc::WIFSTOPPED(status), "{status:#x}");
        signal = libc::WSTOPSIG(status);
        if signal == libc::SIGTRAP | 0x80 {
            signal = 0;
            // It stops before each call, and after it.
            if !may_change(child) {
                continue;
            }
            if left == 0 {
                // SAFETY: it is a child that has not been waited for.
                assert_eq!(unsafe { libc::kill(child, libc::SIGKILL) }, 0);
                assert!(libc::WIFSIGNALED(wait()));
                return Ok(End::Killed);
            }
            left -= 1;
        }
    }
}

/// Names, sizes and beginnings of all files.
fn state(place: &Path) -> Vec<(PathBuf, u64, Vec<u8>)> {
    const BEGINNING: u64 = 64 << 10;
    let mut state = Vec::new();
    let mut places = vec![place.to_owned()];
    while let Some(place) = places.pop() {
        for entry in fs::read_dir(place).unwrap() {
            let path = entry.unwrap().path();
            let size = path.metadata().unwrap().len();
            if path.is_dir() {
                places.push(path.clone());
            }
            // Numbers of processes.
            let is_file = path.is_file() && path.file_name().unwrap() != "lock";
            let mut beginning = Vec::new();
            if is_file {
                let file = fs::File::open(&path).unwrap();
                file.take(BEGINNING).read_to_end(&mut beginning).unwrap();
            }
            state.push((path, size, beginning));
        }
    }
    let named = |(path, size, bytes): (PathBuf, u64, Vec<u8>)| {
        (path.strip_prefix(place).unwrap().to_owned(), size, bytes)
    };
    let mut state: Vec<_> = state.into_iter().map(named).collect();
    state.sort();
    state
}

/// Kills the command before each of its system calls since it has found the directory, which
/// is as `prepare` makes it, and lets `look` see each different state that it leaves.
fn before_each_call(
    prepare: impl Fn() -> TempDir,
    arguments: impl Fn(&Path) -> Vec<OsString>,
    look: impl Fn(&Path),
) {
    let kill = |calls: usize| {
        let place = prepare();
        run_until(calls, &arguments(place.path())).map(|end| (place, end))
    };
    if let Err(error) = kill(0) {
        let required = std::env::var_os("PUNCTUAL_REQUIRE_NETNS").is_some();
        assert!(!required, "a process cannot be traced: {error}");
        eprintln!("skipped: a process cannot be traced: {error}");
        return;
    }
    // Before it takes the lock it has changed nothing.
    let (mut first, mut last) = (0, 1);
    let has_begun = |calls| kill(calls).unwrap().0.path().join("lock").exists();
    while !has_begun(last) {
        (first, last) = (last, 2 * last);
    }
    while first + 1 < last {
        let middle = first.midpoint(last);
        match has_begun(middle) {
            true => last = middle,
            false => first = middle,
        }
    }
    let mut seen = HashSet::new();
    for calls in first.. {
        let (place, end) = kill(calls).unwrap();
        if seen.insert(state(place.path())) {
            look(place.path());
        }
        if end == End::Done {
            assert!(seen.len() > 5, "{} of {calls} calls", seen.len());
            return;
        }
    }
}

fn arguments<const N: usize>(words: [&str; N], paths: &[&Path]) -> Vec<OsString> {
    let words = words.into_iter().map(OsString::from);
    words.chain(paths.iter().map(OsString::from)).collect()
}

/// A broker starts with what is there.
fn serve(place: &Path) {
    let mut serve = arguments(["serve", "--http", "off", "--data"], &[place]);
    serve.extend(["--listen", "tcp://127.0.0.1:0"].map(OsString::from));
    let mut broker = command(serve)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let log = BufReader::new(broker.stderr.take().unwrap());
    let lines = log.lines().map_while(Result::ok);
    let mut said = Vec::new();
    let restored = lines
        .inspect(|line| said.push(line.clone()))
        .find(|line| line.contains("restored from"));
    broker.kill().unwrap();
    broker.wait().unwrap();
    let restored = restored.unwrap_or_else(|| panic!("{said:?}"));
    assert!(restored.contains("sessions=2"), "{restored}");
    assert!(!said.iter().any(|line| line.contains("ERROR")), "{said:?}");
}

fn import(place: &Path) -> Vec<OsString> {
    arguments(["store", "import"], &[place, &backup()])
}

#[test]
fn compaction_that_is_killed_changes_nothing_of_what_is_kept() {
    let expected = fs::read_to_string(backup()).unwrap();
    let template = tempdir().unwrap();
    run(import(template.path())).ok();
    // What they have been given and not used takes long to copy.
    let files = state(template.path());
    let imported = || {
        let place = tempdir().unwrap();
        for (name, size, beginning) in &files {
            let mut file = fs::File::create(place.path().join(name)).unwrap();
            file.write_all(beginning).unwrap();
            file.set_len(*size).unwrap();
        }
        place
    };
    before_each_call(
        imported,
        |place| arguments(["store", "compact"], &[place]),
        |place| {
            assert!(store("check", place).ok().contains("2 sessions"));
            assert_eq!(store("export", place).ok(), expected);
            serve(place);
            store("compact", place).ok();
            assert_eq!(store("export", place).ok(), expected);
        },
    );
}

#[test]
fn an_import_that_is_killed_has_filled_a_directory_or_left_no_store() {
    let expected = fs::read_to_string(backup()).unwrap();
    before_each_call(
        || tempdir().unwrap(),
        import,
        |place| {
            let check = store("check", place);
            if check.code != Some(0) {
                check.fails(1, &["has no store"]);
                run(import(place)).ok();
            } else {
                run(import(place)).fails(1, &["name a new directory"]);
            }
            assert_eq!(store("export", place).ok(), expected);
            serve(place);
        },
    );
}
