//! A broker in a namespace.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};

use punctual_bench::netns::Namespace;

/// Port of every broker: the namespace is its own.
pub(crate) const PORT: u16 = 1883;

/// A running broker; it ends when this is dropped.
pub(crate) struct Broker {
    process: Child,
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
             [server]\nhttp = \"off\"\nshards = 1\n{configuration}"
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
        let log = process.stderr.take().unwrap();
        let broker = Self {
            process,
            _directory: directory,
        };
        let mut lines = BufReader::new(log).lines().map_while(Result::ok);
        let listening = lines.any(|line| line.contains("listening on tcp://"));
        assert!(listening, "the broker ended before it listened");
        // Whoever writes to a pipe that nobody reads is stopped.
        std::thread::spawn(move || lines.for_each(drop));
        broker
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
