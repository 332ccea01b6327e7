//! A `punctual` process under test, on a free port of the loopback.

use std::io::{BufRead as _, BufReader, Lines};
use std::process::{Child, ChildStderr, Command, Stdio};

pub(crate) const PUNCTUAL: &str = env!("CARGO_BIN_EXE_punctual");

/// A `punctual` that listens, for as long as the value lives.
pub(crate) struct Process {
    pub(crate) child: Child,
    lines: Option<Lines<BufReader<ChildStderr>>>,
    pub(crate) port: u16,
}

impl Process {
    /// Starts it; it listens with that scheme first.
    pub(crate) fn start(scheme: &str, arguments: &[&str]) -> Self {
        let mut child = Command::new(PUNCTUAL)
            .args(arguments)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let listening = format!("listening on {scheme}://127.0.0.1:");
        let port = lines.by_ref().map_while(Result::ok).find_map(|line| {
            let rest = line.split(&listening).nth(1)?;
            let digits = rest.split(|c: char| !c.is_ascii_digit()).next()?;
            digits.parse().ok()
        });
        Self {
            child,
            lines: Some(lines),
            port: port.expect("it does not listen"),
        }
    }

    /// A broker with one listener.
    pub(crate) fn serve(scheme: &str) -> Self {
        let listen = format!("{scheme}://127.0.0.1:0");
        Self::start(scheme, &["serve", "--listen", &listen, "--http", "off"]).quiet()
    }

    /// Nobody reads what else it says.
    pub(crate) fn quiet(mut self) -> Self {
        let lines = self.lines.take().unwrap();
        // Keeps the pipe empty; ends with the process.
        std::thread::spawn(move || lines.map_while(Result::ok).for_each(drop));
        self
    }

    /// Waits until it says something.
    #[track_caller]
    pub(crate) fn until(&mut self, words: &str) -> String {
        let mut seen = String::new();
        for line in self.lines.as_mut().unwrap().map_while(Result::ok) {
            if line.contains(words) {
                return line;
            }
            seen.push_str(&line);
            seen.push('\n');
        }
        panic!("ended without {words:?}: {seen}");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
