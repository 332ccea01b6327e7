//! The process of a broker with an HTTP interface, both on free loopback ports.

use std::net::SocketAddr;
use std::ops::Deref;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};

#[path = "../support/log.rs"]
#[allow(dead_code, reason = "no test here looks at all of it")]
pub(crate) mod log;
#[path = "../../../server/tests/support/mod.rs"]
pub(crate) mod support;

use log::Log;
use support::Interface;
pub(crate) use support::PATIENCE;

/// A running broker; it ends when this is dropped.
pub(crate) struct Broker {
    process: Child,
    interface: Interface,
    /// Where its tokens are.
    _tokens: tempfile::TempDir,
    pub(crate) log: Log,
    pub(crate) tcp: SocketAddr,
}

impl Broker {
    pub(crate) fn start() -> Self {
        Self::with_arguments(&[])
    }

    pub(crate) fn with_arguments(arguments: &[&str]) -> Self {
        // Without $SYS topics the retained messages are those of the test.
        Self::with_sys(arguments, "off")
    }

    /// With $SYS topics that often.
    pub(crate) fn with_sys(arguments: &[&str], interval: &str) -> Self {
        Self::launch(arguments, interval, None)
    }

    /// That may have so many files open.
    pub(crate) fn with_descriptors(most: libc::rlim_t) -> Self {
        Self::launch(&[], "off", Some(most))
    }

    fn launch(arguments: &[&str], interval: &str, descriptors: Option<libc::rlim_t>) -> Self {
        let tokens = tempfile::tempdir().unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_punctual"));
        command
            .args([
                "serve",
                "--listen",
                "tcp://127.0.0.1:0",
                "--http",
                "127.0.0.1:0",
            ])
            .args(["--shards", "2"])
            .args(arguments)
            .env("PUNCTUAL__SERVER__SYS_INTERVAL", interval)
            .env(
                "PUNCTUAL__SERVER__HTTP_TOKEN_FILE",
                tokens.path().join("tokens"),
            )
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        if let Some(most) = descriptors {
            let limit = libc::rlimit {
                rlim_cur: most,
                rlim_max: most,
            };
            // SAFETY: setrlimit is async-signal-safe and touches only the child.
            unsafe {
                command.pre_exec(move || {
                    match libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) {
                        0 => Ok(()),
                        _ => Err(std::io::Error::last_os_error()),
                    }
                });
            }
        }
        let mut process = command.spawn().unwrap();
        let log = Log::of(process.stderr.take().unwrap());
        let tcp = log.logged("listening on tcp://").parse().unwrap();
        Self {
            process,
            interface: Interface {
                http: log.logged("listening on http://").parse().unwrap(),
                tokens: tokens.path().join("tokens"),
            },
            _tokens: tokens,
            log,
            tcp,
        }
    }

    /// Waits for a line of the log; what follows the text in it.
    #[track_caller]
    pub(crate) fn logged(&self, text: &str) -> String {
        self.log.logged(text)
    }

    /// A file that the kernel has about the process.
    pub(crate) fn proc(&self, file: &str) -> String {
        let path = format!("/proc/{}/{file}", self.process.id());
        std::fs::read_to_string(path).unwrap()
    }

    /// The threads that serve clients, by identifier.
    pub(crate) fn shard_threads(&self) -> Vec<String> {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.process.id())).unwrap();
        tasks
            .map(|task| task.unwrap().file_name().into_string().unwrap())
            .filter(|task| {
                self.proc(&format!("task/{task}/comm"))
                    .starts_with("shard-")
            })
            .collect()
    }

    pub(crate) fn signal(&self, signal: libc::c_int) {
        let id = self.process.id() as libc::pid_t;
        // SAFETY: the process is a child that was not waited for.
        assert_eq!(unsafe { libc::kill(id, signal) }, 0);
    }

    /// Waits for its end; whether it ended well.
    pub(crate) fn ended_well(&mut self) -> bool {
        self.process.wait().unwrap().success()
    }
}

impl Deref for Broker {
    type Target = Interface;

    fn deref(&self) -> &Interface {
        &self.interface
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
