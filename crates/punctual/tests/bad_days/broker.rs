//! The broker under test: a process of its own, watched through `/proc`.

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::NamedTempFile;

/// How long anything may take before a test fails.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// Pause between two looks at something that has no event to wait for.
const LOOK: Duration = Duration::from_millis(10);

/// How a broker is started.
#[derive(Default)]
pub(crate) struct Setup<'a> {
    /// The configuration file.
    pub(crate) config: &'a str,
    /// Listeners beside the one by TCP.
    pub(crate) listen: &'a [&'a str],
    /// Limit of open files.
    pub(crate) descriptors: Option<u64>,
    /// Where the log goes in place of a file of its own.
    pub(crate) log: Option<Stdio>,
    pub(crate) variables: &'a [(&'a str, &'a str)],
}

/// A running broker; it ends when this is dropped.
pub(crate) struct Broker {
    process: Child,
    pub(crate) tcp: SocketAddr,
    log: NamedTempFile,
    _config: NamedTempFile,
}

impl Broker {
    pub(crate) fn start(setup: Setup<'_>) -> Self {
        let mut config = NamedTempFile::with_suffix(".toml").unwrap();
        config.write_all(setup.config.as_bytes()).unwrap();
        let log = NamedTempFile::new().unwrap();
        let to_file = || Stdio::from(log.reopen().unwrap());
        let mut command = Command::new(env!("CARGO_BIN_EXE_punctual"));
        command
            .args(["serve", "--listen", "tcp://127.0.0.1:0", "--http", "off"])
            .args(setup.listen.iter().flat_map(|more| ["--listen", *more]))
            .args(["--shards", "2", "--config"])
            .arg(config.path())
            .envs(setup.variables.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(setup.log.unwrap_or_else(to_file));
        let descriptors = setup.descriptors;
        // SAFETY: prctl and setrlimit are async-signal-safe and touch only the child.
        unsafe {
            command.pre_exec(move || {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                if let Some(most) = descriptors {
                    let limit = libc::rlimit {
                        rlim_cur: most,
                        rlim_max: most,
                    };
                    libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit);
                }
                Ok(())
            });
        }
        let mut broker = Self {
            process: command.spawn().unwrap(),
            tcp: (Ipv4Addr::LOCALHOST, 0).into(),
            log,
            _config: config,
        };
        broker.tcp = eventually("the broker listens", || broker.listener());
        broker
    }

    /// The address it listens on, as the kernel knows it: where the log goes
    /// nowhere there is no line that says it.
    fn listener(&mut self) -> Option<SocketAddr> {
        let ended = self.process.try_wait().unwrap();
        assert_eq!(ended, None, "the broker says:\n{}", self.log());
        let sockets: Vec<String> = self
            .descriptors()
            .filter_map(|path| {
                let target = fs::read_link(path).ok()?.to_string_lossy().into_owned();
                let inode = target.strip_prefix("socket:[")?.strip_suffix(']')?;
                Some(inode.to_owned())
            })
            .collect();
        let table = self.proc("net/tcp");
        table.lines().skip(1).find_map(|line| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let [_, local, _, "0A", _, _, _, _, _, inode, ..] = fields[..] else {
                return None;
            };
            let (_, port) = local.split_once(':')?;
            let port = u16::from_str_radix(port, 16).ok()?;
            let ours = sockets.iter().any(|socket| socket == inode);
            ours.then_some((Ipv4Addr::LOCALHOST, port).into())
        })
    }

    fn proc(&self, name: &str) -> String {
        let path = format!("/proc/{}/{name}", self.process.id());
        let mut text = String::new();
        File::open(path)
            .and_then(|mut file| file.read_to_string(&mut text))
            .unwrap();
        text
    }

    fn descriptors(&self) -> impl Iterator<Item = PathBuf> + use<> {
        let directory = format!("/proc/{}/fd", self.process.id());
        let entries = fs::read_dir(directory).into_iter().flatten();
        entries.filter_map(|entry| Some(entry.ok()?.path()))
    }

    /// Files and sockets that it has open.
    pub(crate) fn open_files(&self) -> usize {
        self.descriptors().count()
    }

    /// The most memory that it ever had, in bytes.
    pub(crate) fn peak_memory(&self) -> u64 {
        let status = self.proc("status");
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kib = peak.and_then(|rest| rest.trim().strip_suffix(" kB"));
        kib.and_then(|kib| kib.parse::<u64>().ok()).unwrap() << 10
    }

    /// Everything it has logged.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.log.path()).unwrap()
    }

    /// Tells it to stop, and waits until it has; whether it ended well.
    pub(crate) fn stop(mut self) -> bool {
        let id = self.process.id() as libc::pid_t;
        // SAFETY: the process is a child that was not waited for.
        assert_eq!(unsafe { libc::kill(id, libc::SIGTERM) }, 0);
        self.process.wait().unwrap().success()
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Waits until something has come about that only looking at it tells.
pub(crate) fn eventually<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "not within {PATIENCE:?}: {what}");
        std::thread::sleep(LOOK);
    }
}

/// Lets this process have as many open files as it may, and returns how many
/// that are.
pub(crate) fn raise_own_limit() -> usize {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the pointers are to a live rlimit.
    unsafe {
        assert_eq!(libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit), 0);
        limit.rlim_cur = limit.rlim_max;
        assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit), 0);
    }
    limit.rlim_cur as usize
}
