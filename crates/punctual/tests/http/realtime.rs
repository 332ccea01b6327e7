//! What `--realtime` gives to the process, by its numbers and by the kernel's.

use crate::broker::Broker;

#[test]
fn what_real_time_has_led_to_is_shown_with_or_without_the_privileges() {
    let broker = Broker::with_arguments(&["--realtime"]);
    let realtime = &broker.get("/api/v1/stats").ok()["realtime"];
    let shards = realtime["shards"].as_array().unwrap();
    assert_eq!(shards.len(), 2);
    let metrics = broker.get("/metrics").body;
    for (number, shard) in shards.iter().enumerate() {
        let priority = shard["priority"].as_u64().unwrap();
        assert!(priority == 0 || priority == 40, "{priority}");
        let sample = format!("punctual_shard_realtime_priority{{shard=\"{number}\"}} {priority}\n");
        assert!(metrics.contains(&sample), "{metrics}");
    }
    let locked = u8::from(realtime["memory_locked"].as_bool().unwrap());
    let sample = format!("punctual_memory_locked {locked}\n");
    assert!(metrics.contains(&sample), "{metrics}");
    let bounded = metrics.contains("\npunctual_cpu_latency_limit_seconds 0\n");
    assert_eq!(bounded, realtime["cpu_latency_us"] == 0, "{metrics}");
}

/// The capability to lock memory, as a bit of `CapEff`.
const CAP_IPC_LOCK: u64 = 1 << 14;

/// Whether this process may have real-time priority and lock memory, tried on a
/// thread that ends.
fn has_privileges() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let capabilities = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let capabilities = u64::from_str_radix(capabilities.unwrap().trim(), 16).unwrap();
    let tried = std::thread::spawn(|| {
        let wanted = libc::sched_param { sched_priority: 40 };
        // SAFETY: the structure outlives the call; 0 is this thread.
        unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const wanted) == 0 }
    });
    tried.join().unwrap() && capabilities & CAP_IPC_LOCK != 0
}

/// What the kernel says of the running broker, not what it says itself.
#[test]
fn threads_have_real_time_and_memory_is_locked() {
    if !has_privileges() {
        let why = "CAP_SYS_NICE or CAP_IPC_LOCK is missing";
        punctual_testbed::skip("PUNCTUAL_REQUIRE_REALTIME", why);
        return;
    }
    let broker = Broker::with_arguments(&["--realtime"]);
    let shards = broker.shard_threads();
    assert_eq!(shards.len(), 2);
    for shard in shards {
        // proc(5): fields after the name, from the third on.
        let stat = broker.proc(&format!("task/{shard}/stat"));
        let (_, fields) = stat.rsplit_once(") ").unwrap();
        let fields: Vec<i32> = fields
            .split(' ')
            .map(|f| f.trim().parse().unwrap_or(0))
            .collect();
        let (priority, rt_priority, policy) = (fields[18 - 3], fields[40 - 3], fields[41 - 3]);
        assert_eq!((priority, rt_priority, policy), (-41, 40, libc::SCHED_FIFO));
        let status = broker.proc(&format!("task/{shard}/status"));
        let mut lines = status.lines();
        let cpus = lines.find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
        let cpus = cpus.unwrap().trim();
        assert!(cpus.parse::<u32>().is_ok(), "one CPU, not {cpus}");
    }
    let status = broker.proc("status");
    let kib = |name: &str| -> u64 {
        let value = status
            .lines()
            .find_map(|line| line.strip_prefix(name))
            .unwrap();
        value.trim_end_matches("kB").trim().parse().unwrap()
    };
    let (locked, resident) = (kib("VmLck:"), kib("VmRSS:"));
    assert!(locked >= resident / 10 * 9, "{locked} of {resident} KiB");
}
