//! The streams between hosts with their paths, and the plan by which switches forward them. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};

use punctual_controller::plan::{
    Entry, FarEnd, Header, Leg, Mac, Mark, Match, Plan, Port, PortNumber,
};
use punctual_model::srt::Protocol;

use super::layout::{FlowPath, Layout, Place, back};

/// A TCP connection, or UDP datagrams in one direction with answers in the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Stream {
    pub(super) from: usize,
    pub(super) to: usize,
    pub(super) protocol: Protocol,
    /// Ports of sender and receiver.
    pub(super) ports: [u16; 2],
    pub(super) path: FlowPath,
    /// Priority levels of the packets of sender and receiver.
    pub(super) levels: [u8; 2],
}

/// The packets of one direction of a stream.
pub(super) struct Direction {
    pub(super) from: usize,
    pub(super) to: usize,
    pub(super) path: FlowPath,
    ports: [u16; 2],
    level: u8,
}

impl Stream {
    pub(super) fn directions(&self) -> [Direction; 2] {
        let [near, far] = self.ports;
        [
            Direction {
                from: self.from,
                to: self.to,
                path: self.path.clone(),
                ports: [near, far],
                level: self.levels[0],
            },
            Direction {
                from: self.to,
                to: self.from,
                path: back(&self.path),
                ports: [far, near],
                level: self.levels[1],
            },
        ]
    }
}

/// A locally administered MAC address that is derived from the host's IP address.
pub(super) fn hardware(address: Ipv4Addr) -> Mac {
    let [a, b, c, d] = address.octets();
    Mac([2, 0, a, b, c, d])
}

/// The port number of each device of each switch.
pub(super) fn numbers(layout: &Layout) -> BTreeMap<(usize, &str), PortNumber> {
    let mut numbers = BTreeMap::new();
    let mut last = vec![0; layout.switches.len()];
    for cable in &layout.cables {
        for (end, device) in cable.ends.iter().zip(&cable.devices) {
            if let Place::Switch(switch) = *end {
                last[switch] += 1;
                numbers.insert((switch, device.as_str()), last[switch]);
            }
        }
    }
    numbers
}

/// The forwarding entries of each switch for the streams. Streams that share hosts, protocol, level
/// and path share their entries; otherwise each stream has its own.
pub(super) fn plan(layout: &Layout, streams: &[Stream]) -> Plan {
    let numbers = numbers(layout);
    let mut plan = bare(layout, &numbers);
    let mut kinds: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
    let all = || {
        streams
            .iter()
            .flat_map(|of| of.directions().map(|to| (of.protocol, to)))
    };
    for (protocol, direction) in all() {
        let pair = (protocol, direction.from, direction.to);
        let kind = (direction.level, direction.path.clone());
        kinds.entry(pair).or_default().insert(kind);
    }
    for (protocol, direction) in all() {
        let Direction {
            from, to, ports, ..
        } = direction;
        let exact = kinds[&(protocol, from, to)].len() > 1;
        let port = |port| exact.then_some(port);
        let header = Header {
            protocol,
            source: IpAddr::V4(layout.hosts[from].address),
            source_port: port(ports[0]),
            destination: IpAddr::V4(layout.hosts[to].address),
            destination_port: port(ports[1]),
        };
        for (index, pair) in direction.path.windows(2).enumerate() {
            let (Place::Switch(switch), device) = layout.receiver(pair[0]) else {
                continue;
            };
            let (_, next) = layout.sender(pair[1]);
            let matching = Match {
                in_port: numbers[&(switch, device)],
                header,
                dscp: None,
                tagged: false,
            };
            let mark = Mark {
                dscp: Mark::code_point(direction.level, 0),
                pcp: None,
            };
            let entry = Entry {
                owner: format!("{from}>{to}"),
                police: None,
                // Packets are marked at the first switch.
                mark: (index == 0).then_some(mark),
                legs: vec![Leg {
                    port: numbers[&(switch, next)],
                    queue: direction.level,
                    hand_over: None,
                    detour: None,
                }],
            };
            if let Some(plan) = plan.switches.get_mut(&layout.switches[switch]) {
                plan.entries.insert(matching, entry);
            }
        }
    }
    plan
}

/// The switches and ports of a layout, without forwarding entries.
fn bare(layout: &Layout, numbers: &BTreeMap<(usize, &str), PortNumber>) -> Plan {
    let mut plan = Plan::default();
    for name in &layout.switches {
        plan.switches.entry(name.clone()).or_default();
    }
    for cable in &layout.cables {
        for end in [0, 1] {
            let (Place::Switch(switch), device) = (cable.ends[end], &cable.devices[end]) else {
                continue;
            };
            let to = match cable.ends[1 - end] {
                Place::Host(host) => FarEnd::Edge(vec![layout.hosts[host].name.clone()]),
                Place::Switch(other) => FarEnd::Switch {
                    name: layout.switches[other].clone(),
                    port: numbers[&(other, cable.devices[1 - end].as_str())],
                },
            };
            let port = Port {
                name: device.clone(),
                link: None,
                rate_bps: cable.rates[end],
                to,
            };
            if let Some(plan) = plan.switches.get_mut(&layout.switches[switch]) {
                plan.ports.insert(numbers[&(switch, device.as_str())], port);
            }
        }
    }
    plan
}

#[cfg(test)]
mod tests {
    use super::*;
    use punctual_model::network::Network;
    use punctual_sim::network::families;

    fn stream(layout: &Layout, index: usize) -> Stream {
        let publication = &layout.publications[index];
        Stream {
            from: publication.publisher,
            to: publication.ups[0].broker,
            protocol: Protocol::Tcp,
            ports: [20_000 + index as u16, 1883],
            path: publication.ups[0].path.clone(),
            levels: [publication.level, 0],
        }
    }

    #[test]
    fn every_switch_on_the_way_forwards_there_and_back() {
        let layout = Layout::new(&Network::new(&families::line()).unwrap()).unwrap();
        let plan = plan(&layout, &[stream(&layout, 0), stream(&layout, 2)]);
        // The motor's path crosses both switches, the camera's only the second.
        let counts: Vec<_> = plan.switches.values().map(|of| of.entries.len()).collect();
        assert_eq!(counts, [2, 4]);
        let queues: Vec<_> = plan
            .entries()
            .map(|(_, _, entry)| entry.legs[0].queue)
            .collect();
        assert_eq!(queues.iter().filter(|queue| **queue == 7).count(), 2);
        assert!(
            plan.entries()
                .all(|(_, matching, _)| matching.header.precision() == 0)
        );
    }

    #[test]
    fn streams_that_differ_are_told_apart_by_ports() {
        let layout = Layout::new(&Network::new(&families::line()).unwrap()).unwrap();
        let first = stream(&layout, 0);
        let mut other = first.clone();
        other.ports[0] += 1;
        other.levels[0] -= 1;
        let plan = plan(&layout, &[first, other]);
        let there = |of: &Header| of.precision() == 2;
        let entries = plan.switches["s1"].entries.iter();
        // With different levels each stream has an entry of its own; those of the answers are
        // shared.
        assert_eq!(entries.clone().count(), 3);
        assert_eq!(entries.filter(|(of, _)| there(&of.header)).count(), 2);
    }
}
