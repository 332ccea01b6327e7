//! SIGHUP to a running server: what is said about a changed configuration.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use tempfile::tempdir;

use crate::command;

/// A server, ended with the test.
struct Server {
    process: Child,
    log: Receiver<String>,
}

impl Server {
    fn start(file: &Path) -> Self {
        let mut process = command(["serve".as_ref(), "--config".as_ref(), file.as_os_str()])
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let stderr = BufReader::new(process.stderr.take().unwrap());
        let (sender, log) = channel();
        thread::spawn(move || {
            let mut lines = stderr.lines().map_while(Result::ok);
            lines.all(|line| sender.send(line).is_ok())
        });
        Self { process, log }
    }

    fn signal(&self, name: &str) {
        let pid = self.process.id().to_string();
        let status = Command::new("kill").args(["-s", name, &pid]).status();
        assert!(status.unwrap().success());
    }

    /// The log up to the line with `words`, which must come.
    #[track_caller]
    fn until(&self, words: &str) -> String {
        let mut log = String::new();
        while !log.contains(words) {
            match self.log.recv_timeout(Duration::from_secs(30)) {
                Ok(line) => log = log + &line + "\n",
                Err(_) => panic!("{words:?} is not in: {log}"),
            }
        }
        log
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn a_reload_names_what_is_wrong_and_what_needs_a_restart() {
    let directory = tempdir().unwrap();
    let file = directory.path().join("p.toml");
    let write = |rest: &str| {
        let listener = "[[listener]]\naddress = \"tcp://127.0.0.1:0\"\n";
        let text = format!("{listener}[server]\nhttp = \"off\"\nshards = 1\n{rest}");
        fs::write(&file, text).unwrap();
    };
    write("");
    let mut server = Server::start(&file);
    server.until("listening on tcp://127.0.0.1:");

    write("[limits]\nmax_sesions = 1\n");
    server.signal("HUP");
    let said = server.until("1 problem");
    assert!(said.contains("the old configuration stays"), "{said}");
    assert!(said.contains("did you mean limits.max_sessions?"), "{said}");

    write("[auth]\npassword_file = \"/no/such/file\"\n");
    server.signal("HUP");
    let said = server.until("/no/such/file");
    assert!(said.contains("the old configuration stays"), "{said}");

    write("shutdown_timeout = \"1s\"\n[limits]\nmax_sessions = 5\n");
    for _ in 0..2 {
        server.signal("HUP");
        let said = server.until("configuration reloaded");
        assert!(
            said.contains("server.shutdown_timeout is changed"),
            "{said}"
        );
        assert!(!said.contains("max_sessions"), "{said}");
    }

    server.signal("TERM");
    server.until("shutting down");
    assert!(server.process.wait().unwrap().success());
}
