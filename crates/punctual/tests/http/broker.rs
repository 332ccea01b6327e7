//! A broker with an HTTP interface, both on free loopback ports, and requests.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use punctual_auth::{HttpRole, TokenFile};
use serde_json::Value;

#[path = "../support/log.rs"]
#[allow(dead_code, reason = "no test here looks at all of it")]
pub(crate) mod log;

use log::Log;

/// How long anything may take before a test fails.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A running broker; it ends when this is dropped.
pub(crate) struct Broker {
    process: Child,
    /// Where its tokens are.
    tokens: tempfile::TempDir,
    pub(crate) log: Log,
    pub(crate) http: SocketAddr,
    pub(crate) tcp: SocketAddr,
}

/// What the interface says.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    head: String,
    pub(crate) body: String,
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
        let mut broker = Self {
            process,
            tokens,
            log,
            http: ([127, 0, 0, 1], 0).into(),
            tcp: ([127, 0, 0, 1], 0).into(),
        };
        broker.tcp = broker.logged("listening on tcp://").parse().unwrap();
        broker.http = broker.logged("listening on http://").parse().unwrap();
        broker
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

    /// The nice value of a thread with that name.
    pub(crate) fn nice_of_thread(&self, name: &str) -> Option<i32> {
        let threads = std::fs::read_dir(format!("/proc/{}/task", self.process.id())).unwrap();
        threads.flatten().find_map(|thread| {
            let stat = std::fs::read_to_string(thread.path().join("stat")).ok()?;
            let (before, after) = stat.rsplit_once(')')?;
            let is_it = before.split_once('(')?.1 == name;
            // Field 19 of proc_pid_stat(5); those after the name begin with the third.
            let nice = after.split_ascii_whitespace().nth(16)?;
            is_it.then(|| nice.parse().ok()).flatten()
        })
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

    pub(crate) fn get(&self, path: &str) -> Answer {
        self.request("GET", path)
    }

    pub(crate) fn delete(&self, path: &str) -> Answer {
        self.request("DELETE", path)
    }

    pub(crate) fn request(&self, method: &str, path: &str) -> Answer {
        self.send(&format!(
            "{method} {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n",
            self.http
        ))
    }

    /// The file with its tokens.
    pub(crate) fn token_file(&self) -> PathBuf {
        self.tokens.path().join("tokens")
    }

    /// A header that shows the role.
    pub(crate) fn credentials(&self, role: HttpRole) -> String {
        let text = std::fs::read_to_string(self.token_file()).unwrap();
        let tokens = TokenFile::parse(&text).unwrap();
        let token = tokens.token_for(role).unwrap();
        format!("Authorization: Bearer {token}\r\n")
    }

    /// Sends anything as an administrator, and reads until the broker closes.
    pub(crate) fn send(&self, request: &str) -> Answer {
        let (line, rest) = request.split_once("\r\n").unwrap();
        let credentials = self.credentials(HttpRole::Administer);
        self.send_as_it_is(&format!("{line}\r\n{credentials}{rest}"))
    }

    /// Sends anything, and reads until the broker closes.
    pub(crate) fn send_as_it_is(&self, request: &str) -> Answer {
        let mut stream = TcpStream::connect(self.http).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
        let answer = Answer {
            status: head.split(' ').nth(1).unwrap().parse().unwrap(),
            head: head.to_owned(),
            body: body.to_owned(),
        };
        let length = answer.header("content-length").map(str::parse);
        // RFC 9110 section 8.6: an answer without content has no length.
        let expected = (answer.status != 204).then_some(Ok(body.len()));
        assert_eq!(length, expected, "{answer:?}");
        assert_eq!(answer.header("cache-control"), Some("no-store"));
        assert_eq!(answer.header("access-control-allow-origin"), None);
        answer
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let mut headers = self.head.lines().filter_map(|line| line.split_once(": "));
        let (_, value) = headers.find(|(other, _)| other.eq_ignore_ascii_case(name))?;
        Some(value)
    }

    /// The body of an answer with status 200.
    pub(crate) fn ok(&self) -> Value {
        assert_eq!(self.status, 200, "{self:?}");
        self.json()
    }

    /// The refusal of an answer with that status; it says what to do.
    pub(crate) fn refused(&self, status: u16) -> Value {
        assert_eq!(self.status, status, "{self:?}");
        let error = self.json();
        for part in ["error", "remedy"] {
            assert!(
                error[part].as_str().is_some_and(|text| !text.is_empty()),
                "{self:?}"
            );
        }
        error
    }

    fn json(&self) -> Value {
        assert_eq!(self.header("content-type"), Some("application/json"));
        serde_json::from_str(&self.body).unwrap()
    }
}
