//! The queues of a port as commands for `tc -batch`.

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
    let mut text = String::new();
    // An HTB that is there cannot be replaced by another, but what is no HTB can. (Writing to a
    // string cannot fail.)
    let _ = writeln!(
        text,
        "qdisc replace dev {device} root handle 2: pfifo\n\
         qdisc replace dev {device} root handle 1: htb default 10\n\
         class replace dev {device} parent 1: classid 1:1 htb rate {rate}bit ceil {rate}bit \
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
}
