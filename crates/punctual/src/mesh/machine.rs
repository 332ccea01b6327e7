//! How much this machine is worth as root: memory and processors that the process
//! may use, cgroups respected.

use std::fs;
use std::thread;

use punctual_mesh::Weights;

use crate::config::Mesh as Keys;

/// Capacity by the weights of the configuration.
pub(super) fn capacity(keys: &Keys) -> u64 {
    let weights = Weights {
        alpha: f64::from(keys.alpha),
        beta: f64::from(keys.beta),
        gamma: f64::from(keys.gamma),
    };
    // This respects affinity and the processor quota of a cgroup.
    let cores = thread::available_parallelism().map_or(1, usize::from);
    weights.capacity(memory(), cores as f64)
}

/// Bytes that the process may use: of the machine, or less if a cgroup says so.
fn memory() -> u64 {
    let limits = [
        "/sys/fs/cgroup/memory.max",
        "/sys/fs/cgroup/memory/memory.limit_in_bytes",
    ];
    let limit = |path: &&str| fs::read_to_string(path).ok()?.trim().parse::<u64>().ok();
    let machine = fs::read_to_string("/proc/meminfo").ok();
    let machine = machine.as_deref().and_then(total).unwrap_or(0);
    limits
        .iter()
        .filter_map(limit)
        .fold(machine, |least, limit| least.min(limit))
}

/// `MemTotal` in bytes.
fn total(meminfo: &str) -> Option<u64> {
    let line = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_read() {
        assert_eq!(
            total("MemTotal:        2048 kB\nMemFree: 1 kB\n"),
            Some(2 << 20)
        );
        assert_eq!(total("MemFree: 1 kB\n"), None);
    }
}
