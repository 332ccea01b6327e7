//! The queues of a port as commands for `tc -batch`, and what it must not do by itself as
//! commands for `ip -batch`.

use std::fmt::Write as _;

/// Strict priority levels of a port; HTB has no more.
pub const LEVELS: u8 = 8;

/// Frames that wait in one level at most.
const LIMIT: u32 = 1000;

/// Limits what leaves by `device` to `rate` bits per second on the wire (preamble, check
/// sequence and gap included) and serves what waits there by eight strict priorities, those of
/// the upper three bits of the DiffServ code point: 7 first, unmarked traffic in 0.
///
/// A level's own rate is next to nothing, because HTB serves a class within its own rate before
/// all that borrow, whatever their order.
pub fn queues(device: &str, rate: u64) -> String {
    // An HTB that is there cannot be replaced by another, but what is no HTB can.
    format!(
        "qdisc replace dev {device} root handle 2: pfifo\n\
         qdisc replace dev {device} root handle 1: htb default 10\n{}",
        levels(device, rate)
    )
}

/// Whether a device has [`queues`] already, of whatever rate: by what `tc qdisc show` says of all
/// devices.
pub(super) fn are_there(device: &str, shown: &str) -> bool {
    let begin = format!("qdisc htb 1: dev {device} root ");
    let mut lines = shown.lines();
    lines.any(|line| line.starts_with(&begin) && line.contains(" default 0x10 "))
}

/// As [`queues`] for a device that has some: what waits there goes on waiting.
pub(super) fn levels(device: &str, rate: u64) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = writeln!(
        text,
        "class replace dev {device} parent 1: classid 1:1 htb rate {rate}bit ceil {rate}bit \
         burst 1600 cburst 1600 quantum 1514 overhead 24"
    );
    for level in 0..LEVELS {
        let class = class(level);
        let order = LEVELS - 1 - level;
        let field = level << 5;
        let _ = writeln!(
            text,
            "class replace dev {device} parent 1:1 classid 1:{class:x} htb rate 8kbit \
             ceil {rate}bit prio {order} burst 1600 cburst 1600 quantum 1514 overhead 24\n\
             qdisc replace dev {device} parent 1:{class:x} pfifo limit {LIMIT}\n\
             filter replace dev {device} parent 1: protocol ip prio 1 handle 800::80{level} u32 \
             match ip dsfield {field:#x} 0xe0 flowid 1:{class:x}"
        );
    }
    text
}

/// Gives a level of a device that has [`queues`] of `port_rate` bits per second a rate of its own,
/// which nobody else can take, and beyond it the same right as unmarked traffic. So it has reserved
/// bandwidth and no priority.
pub fn reserve(device: &str, level: u8, rate: u64, port_rate: u64) -> String {
    let (class, rate) = (class(level), rate.clamp(1, port_rate.max(1)));
    let order = LEVELS - 1;
    format!(
        "class change dev {device} parent 1:1 classid 1:{class:x} htb rate {rate}bit \
         ceil {port_rate}bit prio {order} burst 1600 cburst 1600 quantum 1514 overhead 24\n"
    )
}

/// Lets a port handle no more than a frame at a time: packets that are to be cut into frames on
/// their way out (GSO, TSO) or were put together from frames on their way in (GRO) count as one
/// in the queues, and 64 KiB would hold a link of 100 Mbit/s for 5 ms whatever waits.
///
/// Hosts at virtual cables have to do the same at their ends: a packet that they leave whole
/// crosses the cable whole.
pub fn frames_only(device: &str) -> String {
    format!("link set dev {device} gso_max_segs 1 gro_max_size 1\n")
}

/// The minor number of a level's class.
pub(super) fn class(level: u8) -> u8 {
    0x10 + level.min(LEVELS - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_level_has_a_class_a_queue_and_a_filter() {
        let text = queues("eth0", 100_000_000);
        assert_eq!(text.lines().count(), 3 + 3 * usize::from(LEVELS));
        let of = |level: &str| -> Vec<&str> {
            text.lines().filter(|line| line.contains(level)).collect()
        };
        let [class, queue, filter] = of("1:17")[..] else {
            panic!("{text}");
        };
        assert!(class.contains("rate 8kbit ceil 100000000bit prio 0 "));
        assert!(queue.ends_with("pfifo limit 1000"));
        assert!(filter.contains("dsfield 0xe0 0xe0 flowid 1:17"));
        assert!(of("1:10")[0].contains("prio 7 "));
        assert!(text.contains("htb default 10"));
    }

    #[test]
    fn a_reserved_level_has_a_rate_and_the_order_of_unmarked_traffic() {
        let text = reserve("p1", 4, 28_000_000, 100_000_000);
        assert!(text.contains("classid 1:14 htb rate 28000000bit ceil 100000000bit prio 7 "));
        // No more than there is.
        assert!(reserve("p1", 4, 2, 1).contains("rate 1bit ceil 1bit"));
    }

    #[test]
    fn queues_that_are_there_are_told_from_others() {
        let shown = "qdisc noqueue 0: dev lo root refcnt 2\n\
                     qdisc htb 1: dev eth0 root refcnt 2 r2q 10 default 0x10 direct_qlen 1000\n\
                     qdisc htb 1: dev eth1 root refcnt 2 r2q 10 default 0 direct_qlen 1000\n";
        let there = ["eth0", "eth1", "eth", "lo"].map(|device| are_there(device, shown));
        assert_eq!(there, [true, false, false, false]);
        assert!(!levels("eth0", 1).contains("root"));
    }
}
