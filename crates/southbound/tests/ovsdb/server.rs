//! `ovsdb-server`s of the tests: in a temporary directory, killed with the test.

use std::net::{Ipv4Addr, SocketAddrV4, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use punctual_southbound::ovsdb::Endpoint;
use punctual_southbound::srt::SCHEMA;
use tempfile::TempDir;

/// A directory with a database that a server may serve.
pub(crate) struct Server {
    directory: TempDir,
    remotes: Vec<String>,
    arguments: Vec<String>,
    child: Option<Child>,
}

impl Server {
    /// A server that runs, with an empty database of our schema.
    pub(crate) fn start() -> Self {
        let mut server = Self::prepare();
        let (database, schema) = (server.path("db"), server.path("schema"));
        tool(&["create", &database, &schema]);
        server.run();
        server
    }

    /// A directory with the schema, and no database yet.
    pub(crate) fn prepare() -> Self {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("schema"), SCHEMA).unwrap();
        let socket = directory.path().join("socket");
        Self {
            remotes: vec![format!("punix:{}", socket.display())],
            arguments: Vec::new(),
            directory,
            child: None,
        }
    }

    /// A file of its directory.
    pub(crate) fn path(&self, name: &str) -> String {
        self.directory.path().join(name).display().to_string()
    }

    /// Listens there, too, when it runs again.
    pub(crate) fn listen(&mut self, remote: String, arguments: Vec<String>) {
        self.remotes.push(remote);
        self.arguments.extend(arguments);
    }

    pub(crate) fn run(&mut self) {
        let log = std::fs::File::create(self.directory.path().join("log")).unwrap();
        // Not even a test that is killed leaves one behind.
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "ovsdb-server"]);
        command.args(
            self.remotes
                .iter()
                .map(|remote| format!("--remote={remote}")),
        );
        command
            .arg(format!("--unixctl={}", self.path("control")))
            .args(&self.arguments)
            .arg(self.path("db"))
            .env("OVS_RUNDIR", self.directory.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log);
        self.child = Some(command.spawn().unwrap());
    }

    /// As a power cut.
    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        // A killed server leaves its sockets.
        for name in ["socket", "control"] {
            let _ = std::fs::remove_file(self.directory.path().join(name));
        }
    }

    pub(crate) fn endpoint(&self) -> Endpoint {
        Endpoint::Unix(PathBuf::from(self.path("socket")))
    }

    /// What it says to `ovs-appctl`.
    pub(crate) fn control(&self, words: &[&str]) -> Option<String> {
        let output = Command::new("ovs-appctl")
            .args(["-t", &self.path("control")])
            .args(words)
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        output.status.success().then_some(text)
    }

    pub(crate) fn directory(&self) -> &Path {
        self.directory.path()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Runs `ovsdb-tool`.
pub(crate) fn tool(words: &[&str]) {
    let output = Command::new("ovsdb-tool").args(words).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "ovsdb-tool {words:?}: {said}");
}

/// An address of the loopback interface and a port below those that the kernel
/// gives to connections: nobody else takes it between now and its use.
pub(crate) fn free_address() -> SocketAddrV4 {
    use std::hash::{BuildHasher, RandomState};
    loop {
        let [a, b, c, ..] = RandomState::new().hash_one(0).to_be_bytes();
        let address = SocketAddrV4::new(Ipv4Addr::new(127, a, b, c), 26_641);
        if TcpListener::bind(address).is_ok() {
            return address;
        }
    }
}
