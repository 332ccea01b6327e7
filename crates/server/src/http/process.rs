//! What the kernel says about this process, from proc(5).

use std::fs;
use std::sync::OnceLock;

use serde::Serialize;

/// Unit of the times in /proc/self/stat (USER_HZ), which Linux fixes at a
/// hundredth of a second on every architecture in use.
const TICKS_PER_SECOND: f64 = 100.0;

/// Use of resources; what cannot be read is left out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub(super) struct Process {
    /// Memory that is in RAM.
    pub(super) resident_memory_bytes: Option<u64>,
    /// Processor time of all threads, user and system.
    pub(super) cpu_seconds: Option<f64>,
    /// File descriptors in use.
    pub(super) open_fds: Option<u64>,
    /// File descriptors that may be in use.
    pub(super) max_fds: Option<u64>,
    /// Unix time of the start.
    pub(super) start_time_seconds: Option<f64>,
}

impl Process {
    /// Looks now.
    pub(super) fn now() -> Self {
        let read = |name: &str| fs::read_to_string(format!("/proc/self/{name}")).ok();
        let stat = read("stat");
        let stat = stat.as_deref().and_then(Stat::parse);
        Self {
            resident_memory_bytes: read("status").and_then(|text| resident(&text)),
            cpu_seconds: stat.map(|stat| stat.cpu_seconds),
            open_fds: open_files(),
            max_fds: read("limits").and_then(|text| max_files(&text)),
            start_time_seconds: boot_time()
                .zip(stat)
                .map(|(boot, stat)| boot + stat.started),
        }
    }
}

/// Parts of /proc/self/stat, in seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Stat {
    cpu_seconds: f64,
    /// Since the system was booted.
    started: f64,
}

impl Stat {
    fn parse(text: &str) -> Option<Self> {
        // The second field is a name that may contain spaces and parentheses.
        let (_, after_name) = text.rsplit_once(')')?;
        let field = |number: usize| -> Option<f64> {
            let ticks: u64 = after_name
                .split_whitespace()
                .nth(number - 3)?
                .parse()
                .ok()?;
            Some(ticks as f64 / TICKS_PER_SECOND)
        };
        Some(Self {
            cpu_seconds: field(14)? + field(15)?,
            started: field(22)?,
        })
    }
}

fn resident(status: &str) -> Option<u64> {
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

fn max_files(limits: &str) -> Option<u64> {
    let line = limits
        .lines()
        .find_map(|line| line.strip_prefix("Max open files"))?;
    line.split_whitespace().next()?.parse().ok()
}

fn open_files() -> Option<u64> {
    // Since Linux 6.2 the size of the directory is the number, which spares
    // reading one entry for each client.
    let size = fs::metadata("/proc/self/fd").ok()?.len();
    if size > 0 {
        return Some(size);
    }
    // Reading the directory opens it.
    let entries = fs::read_dir("/proc/self/fd").ok()?.count() as u64;
    Some(entries.saturating_sub(1))
}

/// Unix time of the system's start; read once, so that it does not change.
fn boot_time() -> Option<f64> {
    static BOOT_TIME: OnceLock<Option<f64>> = OnceLock::new();
    *BOOT_TIME.get_or_init(|| {
        let text = fs::read_to_string("/proc/stat").ok()?;
        let line = text.lines().find_map(|line| line.strip_prefix("btime "))?;
        line.trim().parse().ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_the_kernel_writes() {
        let stat = "12 (a (b) c) S 1 12 12 0 -1 4194304 1 0 0 0 250 50 0 0 20 0 5 0 12345 1 2";
        assert_eq!(
            Stat::parse(stat),
            Some(Stat {
                cpu_seconds: 3.0,
                started: 123.45
            })
        );
        assert_eq!(Stat::parse("12 (x"), None);
        assert_eq!(
            resident("VmHWM:\t 9 kB\nVmRSS:\t    2048 kB\n"),
            Some(2 << 20)
        );
        let limits = "Limit  Soft  Hard\nMax open files            1024   4096   files\n";
        assert_eq!(max_files(limits), Some(1024));
    }

    #[test]
    fn knows_this_process() {
        let process = Process::now();
        assert!(
            process
                .resident_memory_bytes
                .is_some_and(|bytes| bytes > 100_000)
        );
        assert!(process.cpu_seconds.is_some());
        assert!(process.open_fds.is_some_and(|files| files >= 3));
        assert!(process.max_fds >= process.open_fds);
        // The year 2020 is past.
        assert!(
            process
                .start_time_seconds
                .is_some_and(|time| time > 1.577e9)
        );
    }
}
