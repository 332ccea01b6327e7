//! A broker in a namespace.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::process::{Child, Command, Stdio};

use punctual_testbed::netns::Namespace;

#[path = "../support/log.rs"]
#[allow(dead_code, reason = "no test here looks at all of it")]
mod log;

use log::Log;

/// Port of every broker: the namespace is its own.
pub(crate) const PORT: u16 = 1883;

/// And its HTTP interface.
pub(crate) const HTTP: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 8080);

/// A running broker; it ends when this is dropped.
pub(crate) struct Broker {
    process: Child,
    log: Log,
    _directory: tempfile::TempDir,
}

impl Broker {
    /// Starts a broker in `host`, for IPv4 and IPv6, with further
    /// configuration, and waits until it listens.
    pub(crate) fn start(host: &Namespace, configuration: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("punctual.toml");
        let text = format!(
            "[[listener]]\naddress = \"tcp://*:{PORT}\"\nallow_anonymous = true\n\
             [server]\nhttp = \"{HTTP}\"\nshards = 1\n{configuration}"
        );
        fs::write(&file, text).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_punctual"));
        command
            .args(["serve", "--config"])
            .arg(&file)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        host.place(&mut command);
        let mut process = command.spawn().unwrap();
        let log = Log::of(process.stderr.take().unwrap());
        let broker = Self {
            process,
            log,
            _directory: directory,
        };
        broker.logged("listening on tcp://");
        broker.logged("listening on http://");
        broker
    }

    /// Waits for a line of the log; what follows the text in it.
    #[track_caller]
    pub(crate) fn logged(&self, text: &str) -> String {
        self.log.logged(text)
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
