//! Forwarding of packets that belong to no flow: shortest paths to known hosts,
//! and one spanning tree for broadcasts.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::plan::{Base, PortNumber};
use crate::topology::{End, Topology};

/// The base of every switch.
pub(crate) fn bases(topology: &Topology) -> BTreeMap<u64, Base> {
    let mut leaving: BTreeMap<u64, Vec<(PortNumber, End)>> = BTreeMap::new();
    for (from, to) in topology.links() {
        // Packets and their answers take the same path.
        if topology.far(to) == Some(from) {
            leaving
                .entry(from.datapath)
                .or_default()
                .push((from.port, to));
        }
    }
    let mut bases: BTreeMap<u64, Base> = BTreeMap::new();
    for (datapath, switch) in &topology.switches {
        let edge = switch
            .ports
            .iter()
            .filter(|(_, port)| port.edge && port.works());
        let edge: Vec<PortNumber> = edge.map(|(number, _)| *number).collect();
        let base = Base {
            flood: edge.clone(),
            edge,
            ..Base::default()
        };
        bases.insert(*datapath, base);
    }
    for end in spanning(topology, &leaving) {
        if let Some(base) = bases.get_mut(&end.datapath) {
            base.flood.push(end.port);
        }
    }
    let mut by_switch: BTreeMap<u64, Vec<_>> = BTreeMap::new();
    for (mac, host) in &topology.hosts {
        if let Some(at) = host.at {
            by_switch
                .entry(at.datapath)
                .or_default()
                .push((*mac, at.port));
        }
    }
    for (datapath, hosts) in by_switch {
        if let Some(base) = bases.get_mut(&datapath) {
            base.hosts.extend(hosts.iter().copied());
        }
        for (from, port) in towards(datapath, &leaving) {
            if let Some(base) = bases.get_mut(&from) {
                base.hosts.extend(hosts.iter().map(|(mac, _)| (*mac, port)));
            }
        }
    }
    for base in bases.values_mut() {
        base.flood.sort_unstable();
    }
    bases
}

/// For each other switch the port of the shortest path to this one.
fn towards(
    datapath: u64,
    leaving: &BTreeMap<u64, Vec<(PortNumber, End)>>,
) -> BTreeMap<u64, PortNumber> {
    let mut ports = BTreeMap::new();
    let mut queue = VecDeque::from([datapath]);
    while let Some(at) = queue.pop_front() {
        for (_, to) in leaving.get(&at).into_iter().flatten() {
            if to.datapath != datapath && !ports.contains_key(&to.datapath) {
                ports.insert(to.datapath, to.port);
                queue.push_back(to.datapath);
            }
        }
    }
    ports
}

/// The ports of a tree that spans all switches that can be reached.
fn spanning(topology: &Topology, leaving: &BTreeMap<u64, Vec<(PortNumber, End)>>) -> Vec<End> {
    let mut seen = BTreeSet::new();
    let mut ends = Vec::new();
    for root in topology.switches.keys() {
        if !seen.insert(*root) {
            continue;
        }
        let mut queue = VecDeque::from([*root]);
        while let Some(datapath) = queue.pop_front() {
            for (port, to) in leaving.get(&datapath).into_iter().flatten() {
                if seen.insert(to.datapath) {
                    ends.extend([
                        End {
                            datapath,
                            port: *port,
                        },
                        *to,
                    ]);
                    queue.push_back(to.datapath);
                }
            }
        }
    }
    ends
}
