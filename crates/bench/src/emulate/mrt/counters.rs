//! Traffic of each link: all bytes by the counters of the sending port, and bytes of declared flows
//! by the counters of the switches' forwarding rules.

use std::collections::BTreeMap;
use std::fs;
use std::net::Ipv4Addr;

use serde::Serialize;

use super::super::fabric::Fabric;
use super::super::layout::{Layout, Place};
use punctual_measure::{Error, Result};

/// Bytes that a link carried in one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Carried {
    /// Bytes of all frames that the port sent, including the Ethernet header.
    pub(super) port: u64,
    /// Bytes of IP packets from hosts of declared flows, including the IP header and
    /// acknowledgements.
    pub(super) declared: u64,
}

/// Bytes by link, such as `s1>s4`.
pub(super) type Links = BTreeMap<String, Carried>;

/// Reads all counters; `sources` are the indexes of the hosts that publish declared flows.
pub(super) fn read(layout: &Layout, fabric: &Fabric, sources: &[usize]) -> Result<Links> {
    let sources: Vec<Ipv4Addr> = sources
        .iter()
        .map(|host| layout.hosts[*host].address)
        .collect();
    // Counted bytes that each device of a switch sent, and that it received.
    let (mut sent, mut came) = (BTreeMap::new(), BTreeMap::new());
    for switch in 0..layout.switches.len() {
        let list = ["list", "chain", "netdev", "punctual", "forward"];
        let rules = fabric.switch(switch).run("nft", &list)?;
        for rule in rules.lines().filter_map(|line| Rule::parse(line, &sources)) {
            *came.entry(rule.from).or_insert(0) += rule.bytes;
            for device in rule.to {
                *sent.entry(device).or_insert(0) += rule.bytes;
            }
        }
    }
    let name = |place: Place| match place {
        Place::Host(host) => &layout.hosts[host].name,
        Place::Switch(switch) => &layout.switches[switch],
    };
    let mut links = Links::new();
    for cable in &layout.cables {
        for end in [0, 1] {
            let (from, to) = (cable.ends[end], cable.ends[1 - end]);
            let device = &cable.devices[end];
            let namespace = match from {
                Place::Host(host) => fabric.host(host),
                Place::Switch(switch) => fabric.switch(switch),
            };
            let table = namespace
                .enter(|| fs::read_to_string("/proc/thread-self/net/dev"))?
                .map_err(Error::io("cannot read what devices have sent"))?;
            let declared = match from {
                Place::Switch(_) => sent.get(device),
                Place::Host(_) => came.get(&cable.devices[1 - end]),
            };
            links.insert(
                format!("{}>{}", name(from), name(to)),
                Carried {
                    port: transmitted(&table, device),
                    declared: declared.copied().unwrap_or(0),
                },
            );
        }
    }
    Ok(links)
}

/// Bytes between two readings.
pub(super) fn since(before: &Links, after: &Links) -> Links {
    let each = after.iter().map(|(link, after)| {
        let before = before.get(link).copied().unwrap_or_default();
        let carried = Carried {
            port: after.port.saturating_sub(before.port),
            declared: after.declared.saturating_sub(before.declared),
        };
        (link.clone(), carried)
    });
    each.collect()
}

/// Bytes that a device has sent, from `/proc/net/dev`; 0 if the device is not listed.
fn transmitted(table: &str, device: &str) -> u64 {
    let mut devices = table.lines().filter_map(|line| line.split_once(':'));
    let found = devices.find(|(name, _)| name.trim() == device);
    // The first eight columns are about received packets (proc_net_dev(5)).
    let bytes = found.and_then(|(_, counts)| counts.split_whitespace().nth(8)?.parse().ok());
    bytes.unwrap_or(0)
}

/// A rule that forwards packets from hosts of declared flows.
#[derive(Debug, PartialEq, Eq)]
struct Rule {
    from: String,
    to: Vec<String>,
    bytes: u64,
}

impl Rule {
    /// Parses a line of `nft list`; `None` unless the line is such a rule.
    fn parse(line: &str, sources: &[Ipv4Addr]) -> Option<Self> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let after = |key: &str| {
            let at = words.iter().position(|word| *word == key)?;
            words.get(at + 1).copied()
        };
        let plain = |word: &str| word.trim_matches('"').to_owned();
        let source: Ipv4Addr = after("saddr")?.parse().ok()?;
        let to = words.windows(3).filter_map(|words| match words {
            ["dup" | "fwd", "to", device] => Some(plain(device)),
            _ => None,
        });
        sources.contains(&source).then_some(())?;
        Some(Self {
            from: plain(after("iifname")?),
            to: to.collect(),
            bytes: after("bytes")?.parse().ok()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_of_declared_flows_are_counted_for_every_copy() {
        let line = "\t\tiifname \"p0\" ip saddr 10.0.1.4 ip daddr 239.192.0.1 udp dport 1883 \
                    counter packets 3 bytes 4500 meta priority set 1:12 ip dscp set cs2 \
                    dup to \"p4\" meta priority set 1:12 ip daddr set 10.0.1.1 fwd to \"p1\"";
        let source = Ipv4Addr::new(10, 0, 1, 4);
        let rule = Rule::parse(line, &[source]).unwrap();
        assert_eq!(rule.from, "p0");
        assert_eq!(rule.to, ["p4", "p1"]);
        assert_eq!(rule.bytes, 4500);
        assert_eq!(Rule::parse(line, &[Ipv4Addr::LOCALHOST]), None);
        assert_eq!(Rule::parse("\tchain forward {", &[source]), None);
    }

    #[test]
    fn what_a_device_sent_is_the_ninth_column() {
        let table = "Inter-|   Receive  |  Transmit\n face |bytes packets\n    \
                     lo: 1 1 0 0 0 0 0 0 2 1 0 0 0 0 0 0\n   p10: 7 1 0 0 0 0 0 0 99 1 0 0 0 0 0 0\n";
        assert_eq!(transmitted(table, "p10"), 99);
        assert_eq!(transmitted(table, "p1"), 0);
    }
}
