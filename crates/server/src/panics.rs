//! What a panic leads to in a program that serves.
//!
//! A thread that has panicked is gone, and with it the HTTP interface, admission, the store or the
//! links to neighbours, while the rest goes on as if nothing had happened. The process ends instead,
//! so that whoever supervises it starts it again with all of its parts.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::io::Write as _;
use std::panic::{self, PanicHookInfo};
use std::thread;

use crate::escape::visible;

/// From now on a panic of any thread is reported with the thread's name, and ends the process.
pub fn abort() {
    panic::set_hook(Box::new(|info| {
        let text = report(info);
        // Nobody is left to be told if this fails.
        let _ = writeln!(std::io::stderr().lock(), "{text}");
        std::process::abort();
    }));
}

fn report(info: &PanicHookInfo<'_>) -> String {
    let thread = thread::current();
    let name = thread.name().unwrap_or("without a name");
    let said = info.payload_as_str().unwrap_or("no message");
    let place = info.location().map(ToString::to_string).unwrap_or_default();
    let mut text = format!(
        "punctual: thread {name:?} has failed at {place}: {}; the process ends, because it cannot serve \
         without this thread. This is a mistake in the program: please report it",
        visible(said)
    );
    let trace = Backtrace::capture();
    if trace.status() == BacktraceStatus::Captured {
        text += &format!("\n{trace}");
    }
    text
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;
    use std::process::Command;

    /// The test below runs this in a process of its own.
    #[test]
    #[ignore = "it ends the process"]
    fn a_service_thread_fails() {
        super::abort();
        let service = std::thread::Builder::new().name("http".into());
        let service = service.spawn(|| panic!("forged\nline")).unwrap();
        let _ = service.join();
        println!("it goes on");
    }

    #[test]
    fn a_panic_in_a_thread_ends_the_process_and_names_the_thread() {
        let test = concat!(module_path!(), "::a_service_thread_fails");
        let (_, name) = test.split_once("::").unwrap();
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", name, "--ignored", "--nocapture"])
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        // SIGABRT.
        assert_eq!(output.status.signal(), Some(6), "{output:?}");
        assert!(said.contains("thread \"http\" has failed at "), "{said}");
        assert!(said.contains("panics.rs"), "{said}");
        assert!(said.contains("forged\\nline"), "{said}");
        assert!(!String::from_utf8_lossy(&output.stdout).contains("it goes on"));
    }
}
