//! How much this machine is worth as root: memory and processors that the process
//! may use, cgroups respected.

use std::fs;
use std::path::Path;
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
    let machine = fs::read_to_string("/proc/meminfo").ok();
    let machine = machine.as_deref().and_then(total).unwrap_or(0);
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    least_limit(&groups, Path::new("/sys/fs/cgroup")).map_or(machine, |limit| limit.min(machine))
}

/// The lowest limit of memory of the cgroups that a process is in: its own, as a service manager
/// makes one for each service, and all above it. `groups` is `/proc/self/cgroup`.
fn least_limit(groups: &str, mount: &Path) -> Option<u64> {
    let mut limits = Vec::new();
    for line in groups.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(group)) = (fields.next(), fields.next()) else {
            continue;
        };
        let (hierarchy, file) = match controllers {
            "" => (mount.to_owned(), "memory.max"),
            _ if controllers.split(',').any(|name| name == "memory") => {
                (mount.join("memory"), "memory.limit_in_bytes")
            }
            _ => continue,
        };
        // In a container the group may be named as the host sees it, which is not there; what
        // limits the container is in the hierarchy's root then.
        for group in Path::new(group.trim_start_matches('/')).ancestors() {
            let limit = fs::read_to_string(hierarchy.join(group).join(file));
            // "max" is none.
            limits.extend(
                limit
                    .ok()
                    .and_then(|limit| limit.trim().parse::<u64>().ok()),
            );
        }
    }
    limits.into_iter().min()
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

    #[test]
    fn the_lowest_limit_of_all_groups_counts() {
        let mount = tempfile::tempdir().unwrap();
        let limit = |file: &str, text: &str| {
            let file = mount.path().join(file);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        };
        let least = |groups: &str| least_limit(groups, mount.path());
        assert_eq!(least("0::/system.slice/punctual.service\n"), None);
        limit("system.slice/memory.max", "max\n");
        limit("system.slice/punctual.service/memory.max", "536870912\n");
        assert_eq!(
            least("0::/system.slice/punctual.service\n"),
            Some(512 << 20)
        );
        limit("system.slice/memory.max", "268435456\n");
        assert_eq!(
            least("0::/system.slice/punctual.service\n"),
            Some(256 << 20)
        );
        assert_eq!(least("0::/user.slice\n"), None);
        // In a container its limit is in the root.
        limit("memory.max", "1073741824\n");
        assert_eq!(least("0::/\n"), Some(1 << 30));
        assert_eq!(least("0::/docker/0123\n"), Some(1 << 30));
    }

    #[test]
    fn limits_of_the_first_version_count() {
        let mount = tempfile::tempdir().unwrap();
        let group = mount.path().join("memory/service");
        fs::create_dir_all(&group).unwrap();
        fs::write(group.join("memory.limit_in_bytes"), "1048576\n").unwrap();
        let groups = "4:cpu,cpuacct:/service\n3:hugetlb,memory:/service\nno line\n";
        assert_eq!(least_limit(groups, mount.path()), Some(1 << 20));
        assert_eq!(least_limit("4:cpu:/service\n", mount.path()), None);
    }
}
