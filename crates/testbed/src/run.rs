//! A program that was run to its end, and what a test expects of it.

use std::io::Write as _;
use std::process::{Command, Output, Stdio};

/// What a run of a program left.
#[derive(Debug)]
pub struct Run {
    /// Its exit code; `None` if a signal ended it.
    pub code: Option<i32>,
    /// What it wrote to standard output.
    pub out: String,
    /// What it wrote to standard error.
    pub err: String,
}

impl Run {
    /// Runs `command` with nothing on standard input.
    ///
    /// # Panics
    /// If it cannot be started or does not write text.
    pub fn of(command: &mut Command) -> Self {
        let output = command.stdin(Stdio::null()).output();
        Self::from_output(output.unwrap_or_else(|error| panic!("{command:?}: {error}")))
    }

    /// Runs `command` with `input` on standard input.
    ///
    /// # Panics
    /// As [`Run::of`].
    pub fn with_input(command: &mut Command, input: &str) -> Self {
        let child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        let mut child = child.unwrap_or_else(|error| panic!("{command:?}: {error}"));
        if let Some(mut stdin) = child.stdin.take() {
            // The program may be done before it reads; the pipe is broken then.
            let _ = stdin.write_all(input.as_bytes());
        }
        let output = child.wait_with_output();
        Self::from_output(output.unwrap_or_else(|error| panic!("{command:?}: {error}")))
    }

    fn from_output(output: Output) -> Self {
        let text = |bytes| String::from_utf8(bytes).unwrap_or_else(|error| panic!("{error}"));
        Self {
            code: output.status.code(),
            out: text(output.stdout),
            err: text(output.stderr),
        }
    }

    /// What it wrote, if it succeeded in silence on standard error.
    ///
    /// # Panics
    /// Unless it did.
    #[track_caller]
    pub fn ok(self) -> String {
        let left = (self.code, self.err.as_str());
        assert_eq!(left, (Some(0), ""), "{}", self.out);
        self.out
    }

    /// Expects that it failed with `code` and said `words`, and nothing on standard output.
    ///
    /// # Panics
    /// Unless it did.
    #[track_caller]
    pub fn fails(self, code: i32, words: &[&str]) {
        assert_eq!(self.code, Some(code), "{}{}", self.out, self.err);
        assert_eq!(self.out, "");
        for word in words {
            assert!(self.err.contains(word), "{word:?} is not in: {}", self.err);
        }
        assert!(!self.err.contains("panicked"), "{}", self.err);
    }
}

/// A program whose surroundings say nothing to punctual's programs: no `PUNCTUAL…` variables.
pub fn plain_command(program: &str) -> Command {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("PUNCTUAL") {
            command.env_remove(name);
        }
    }
    command
}
