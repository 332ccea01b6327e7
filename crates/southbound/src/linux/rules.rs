//! What a switch is to do as an nftables ruleset.
//!
//! The queue of a leg is put into the packet's priority as the handle of an HTB class, which HTB
//! obeys before it looks at its filters, so a queue may differ from what the code point says. A
//! rule's statements work on one packet, and each copy is made of what it is at that point:
//! copies that are changed come after those that are not.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::net::IpAddr;

use punctual_controller::plan::{Entry, Leg, Match, PortNumber, SwitchPlan};

use super::queues::class;

/// The table that holds the rules; no other is touched.
const TABLE: &str = "punctual";

/// A transaction that makes the table with a hook for each port and no rules. A table of that
/// name that is there goes in the same moment.
pub fn hooks<'a>(ports: impl IntoIterator<Item = &'a str>) -> String {
    let mut text = format!(
        "table netdev {TABLE} {{}}\ndelete table netdev {TABLE}\n\
         table netdev {TABLE} {{\n\tchain forward {{\n\t}}\n"
    );
    // Names of devices are no names of chains.
    for (index, port) in ports.into_iter().enumerate() {
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "\tchain in_{index} {{\n\t\ttype filter hook ingress device \"{port}\" \
             priority 0; policy accept;\n\t\tjump forward\n\t}}"
        );
    }
    text.push_str("}\n");
    text
}

/// A transaction that puts these rules in the place of those that are there.
pub fn replace(rules: &[String]) -> String {
    let mut text = format!("flush chain netdev {TABLE} forward\n");
    for rule in rules {
        let _ = writeln!(text, "add rule netdev {TABLE} forward {rule}");
    }
    text
}

/// The rules of a switch while some ports are down, the first that forwards a packet decides:
/// flows by exact headers, flows by hosts, then what belongs to no flow. Tags of 802.1Q are left
/// out, because Linux needs none to tell queues apart. What no rule forwards is left to the
/// system.
pub fn rules(plan: &SwitchPlan, down: &BTreeSet<PortNumber>) -> Vec<String> {
    let mut entries: Vec<_> = plan.entries.iter().collect();
    entries.sort_by_key(|(matching, _)| std::cmp::Reverse(matching.header.precision()));
    let mut rules = Vec::new();
    for (matching, entry) in entries {
        flow(plan, matching, entry, down, &mut rules);
    }
    base(plan, down, &mut rules);
    rules
}

fn flow(
    plan: &SwitchPlan,
    matching: &Match,
    entry: &Entry,
    down: &BTreeSet<PortNumber>,
    rules: &mut Vec<String>,
) {
    let Some(conditions) = conditions(plan, matching) else {
        return;
    };
    if let Some(police) = entry.police {
        rules.push(format!(
            "{conditions}limit rate over {} bytes/second burst {} bytes counter drop",
            (police.rate_bps / 8).max(1),
            police.burst_bytes.max(1)
        ));
    }
    let v6 = matching.header.source.is_ipv6();
    let ip = if v6 { "ip6" } else { "ip" };
    let mark = entry.mark.map(|mark| mark.dscp);
    let mut statements = Vec::new();
    let mut legs: Vec<&Leg> = entry.legs.iter().collect();
    legs.sort_by_key(|leg| {
        let hand_over = leg.hand_over.as_ref();
        let rewritten = hand_over.is_some_and(|hand_over| hand_over.address.is_some());
        (rewritten, hand_over.is_some())
    });
    for leg in legs {
        let detour = leg.detour.filter(|_| down.contains(&leg.port));
        let (port, queue) = detour.map_or((leg.port, leg.queue), |to| (to.port, to.queue));
        let (false, Some(device)) = (down.contains(&port), device(plan, port)) else {
            continue;
        };
        let mut statement = format!("meta priority set 1:{:x} ", class(queue));
        let dscp = match (detour, leg.hand_over) {
            (Some(detour), _) => Some(detour.dscp),
            (None, Some(hand_over)) => Some(hand_over.dscp),
            (None, None) => mark,
        };
        if let Some(dscp) = dscp {
            let _ = write!(statement, "{ip} dscp set {dscp} ");
        }
        let rewrite = leg.hand_over.filter(|_| detour.is_none());
        if let Some(to) = rewrite.and_then(|hand_over| hand_over.address) {
            let _ = write!(
                statement,
                "ether daddr set {} {ip} daddr set {} ",
                to.mac, to.ip
            );
            if let Some(port) = to.port {
                let protocol = matching.header.protocol.name();
                let _ = write!(statement, "{protocol} dport set {port} ");
            }
        }
        statements.push((statement, device));
    }
    let mut rule = format!("{conditions}counter ");
    match statements.split_last() {
        None => rule.push_str("drop"),
        Some(((statement, device), others)) => {
            for (statement, device) in others {
                let _ = write!(rule, "{statement}dup to \"{device}\" ");
            }
            let _ = write!(rule, "{statement}fwd to \"{device}\"");
        }
    }
    rules.push(rule);
}

/// What a packet has to be, each condition with a blank behind it; `None` if it cannot come.
fn conditions(plan: &SwitchPlan, matching: &Match) -> Option<String> {
    let header = &matching.header;
    let ip = match (header.source, header.destination) {
        (IpAddr::V4(_), IpAddr::V4(_)) => "ip",
        (IpAddr::V6(_), IpAddr::V6(_)) => "ip6",
        _ => return None,
    };
    let device = device(plan, matching.in_port)?;
    let (source, destination) = (header.source, header.destination);
    let protocol = header.protocol.name();
    let mut text = format!(
        "iifname \"{device}\" {ip} saddr {source} {ip} daddr {destination} \
         meta l4proto {protocol} "
    );
    if let Some(port) = header.source_port {
        let _ = write!(text, "{protocol} sport {port} ");
    }
    if let Some(port) = header.destination_port {
        let _ = write!(text, "{protocol} dport {port} ");
    }
    if let Some(dscp) = matching.dscp {
        let _ = write!(text, "{ip} dscp {dscp} ");
    }
    Some(text)
}

/// IP groups of which nobody has said who receives them; not those whose scope is a link (RFC 5771, RFC 4291).
const UNKNOWN_GROUPS: [&str; 2] = [
    "ip daddr 224.0.0.0/4 ip daddr != 224.0.0.0/24",
    "ip6 daddr ff00::/8 ip6 daddr & ff0f:: != ff02::",
];

/// What belongs to no flow: it loses its mark where it enters, and waits in the last queue.
fn base(plan: &SwitchPlan, down: &BTreeSet<PortNumber>, rules: &mut Vec<String>) {
    let base = &plan.base;
    let up = |port: &&PortNumber| !down.contains(*port);
    for edge in base.edge.iter().filter_map(|port| device(plan, *port)) {
        rules.push(format!("iifname \"{edge}\" ip dscp set 0"));
        rules.push(format!("iifname \"{edge}\" ip6 dscp set 0"));
    }
    if !base.hosts.is_empty() || !base.flood.is_empty() {
        rules.push(format!("meta priority set 1:{:x}", class(0)));
    }
    for (mac, port) in base.hosts.iter().filter(|(_, port)| up(port)) {
        if let Some(device) = device(plan, *port) {
            rules.push(format!(
                "iifname != \"{device}\" ether daddr {mac} counter fwd to \"{device}\""
            ));
        }
    }
    let flood = base
        .flood
        .iter()
        .filter(up)
        .filter_map(|port| device(plan, *port));
    let flood: Vec<&str> = flood.collect();
    for from in &flood {
        for groups in UNKNOWN_GROUPS {
            rules.push(format!("iifname \"{from}\" {groups} counter drop"));
        }
        let others: Vec<_> = flood.iter().filter(|device| *device != from).collect();
        if let Some((last, others)) = others.split_last() {
            let mut rule = format!(
                "iifname \"{from}\" ether daddr & 01:00:00:00:00:00 == 01:00:00:00:00:00 counter "
            );
            for other in others {
                let _ = write!(rule, "dup to \"{other}\" ");
            }
            let _ = write!(rule, "fwd to \"{last}\"");
            rules.push(rule);
        }
    }
}

fn device(plan: &SwitchPlan, port: PortNumber) -> Option<&str> {
    plan.ports.get(&port).map(|port| port.name.as_str())
}
