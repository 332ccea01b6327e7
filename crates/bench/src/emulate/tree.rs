//! Multicast of datagrams to several brokers: a publisher sends to a group address, switches copy
//! the datagrams where paths part, and the last switch rewrites the destination to the broker's own
//! address, so that brokers need no IGMP. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};

use punctual_controller::plan::{
    Entry, HandOver, Header, Leg, Mark, Match, Plan, PortNumber, Rewrite,
};
use punctual_model::srt::Protocol;

use super::flows::{hardware, numbers};
use super::layout::{Layout, Place, Up};

/// UDP port of the brokers' relays.
pub(super) const PORT: u16 = super::broker::PORT;

/// Address of the first group; further groups get the following addresses (RFC 2365,
/// organisation-local scope).
const FIRST_GROUP: u32 = u32::from_be_bytes([239, 192, 0, 1]);

/// A multicast tree from one host to a set of brokers, with one priority level.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Tree {
    pub(super) group: Ipv4Addr,
    /// Index of the publishers' host.
    pub(super) from: usize,
    pub(super) ups: Vec<Up>,
    /// Priority level of the datagrams, which also determines their DiffServ mark.
    pub(super) level: u8,
    /// Priority level at ports between switches.
    pub(super) between_switches: u8,
}

/// All multicast trees, each with a group, in the order of creation.
#[derive(Clone, Debug, Default)]
pub(super) struct Trees(pub(super) Vec<Tree>);

impl Trees {
    /// The group address for messages of a host with `levels` at hosts and between switches.
    /// Publishers share a group if host, levels and brokers are equal.
    pub(super) fn group(&mut self, from: usize, ups: &[Up], levels: [u8; 2]) -> Ipv4Addr {
        let known = self.0.iter().find(|tree| {
            tree.from == from && tree.ups == ups && [tree.level, tree.between_switches] == levels
        });
        if let Some(tree) = known {
            return tree.group;
        }
        let group = Ipv4Addr::from(FIRST_GROUP.wrapping_add(self.0.len() as u32));
        let [level, between_switches] = levels;
        self.0.push(Tree {
            group,
            from,
            ups: ups.to_vec(),
            level,
            between_switches,
        });
        group
    }

    /// Indexes of the hosts of all brokers that are members of a group.
    pub(super) fn members(&self) -> BTreeSet<usize> {
        let ups = self.0.iter().flat_map(|tree| &tree.ups);
        ups.map(|up| up.broker).collect()
    }

    /// Adds entries to a plan, by which switches copy datagrams to the groups.
    pub(super) fn enter(&self, layout: &Layout, plan: &mut Plan) {
        let numbers = numbers(layout);
        for tree in &self.0 {
            for ((switch, matching), (is_first, legs)) in tree.copies(layout, &numbers) {
                let mark = Mark {
                    dscp: Mark::code_point(tree.level, 0),
                    pcp: None,
                };
                let entry = Entry {
                    owner: tree.group.to_string(),
                    police: None,
                    // Packets are marked at the first switch.
                    mark: is_first.then_some(mark),
                    legs: legs.into_values().collect(),
                };
                if let Some(plan) = plan.switches.get_mut(&layout.switches[switch]) {
                    plan.entries.insert(matching, entry);
                }
            }
        }
    }
}

/// The copies that each switch makes, by output port, and whether the packets enter the network at
/// this switch.
type Copies = BTreeMap<(usize, Match), (bool, BTreeMap<PortNumber, Leg>)>;

impl Tree {
    fn copies(&self, layout: &Layout, numbers: &BTreeMap<(usize, &str), PortNumber>) -> Copies {
        let header = Header {
            protocol: Protocol::Udp,
            source: IpAddr::V4(layout.hosts[self.from].address),
            source_port: None,
            destination: IpAddr::V4(self.group),
            destination_port: Some(PORT),
        };
        let mut copies = Copies::new();
        for up in &self.ups {
            let last = up.path.len().saturating_sub(2);
            for (index, pair) in up.path.windows(2).enumerate() {
                let (Place::Switch(switch), device) = layout.receiver(pair[0]) else {
                    continue;
                };
                let matching = Match {
                    in_port: numbers[&(switch, device)],
                    header,
                    dscp: None,
                    tagged: false,
                };
                let (_, next) = layout.sender(pair[1]);
                let address = layout.hosts[up.broker].address;
                let hand_over = HandOver {
                    dscp: Mark::code_point(self.level, 0),
                    untag: false,
                    address: Some(Rewrite {
                        mac: hardware(address),
                        ip: IpAddr::V4(address),
                        port: Some(PORT),
                    }),
                };
                let leg = Leg {
                    port: numbers[&(switch, next)],
                    queue: match index == last {
                        true => self.level,
                        false => self.between_switches,
                    },
                    hand_over: (index == last).then_some(hand_over),
                    detour: None,
                };
                let (_, legs) = copies
                    .entry((switch, matching))
                    .or_insert_with(|| (index == 0, BTreeMap::new()));
                legs.insert(leg.port, leg);
            }
        }
        copies
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::emulate::flows::plan;
    use punctual_model::network::Network;
    use punctual_sim::network::families::{self, Load};

    #[test]
    fn publishers_of_a_host_share_entries_and_each_switch_makes_one_copy_for_a_port() {
        let layout = Layout::new(&Network::new(&families::fig15(Load::Low, false)).unwrap());
        let layout = layout.unwrap();
        let mut trees = Trees::default();
        for publication in &layout.publications {
            let levels = [publication.level, publication.level];
            trees.group(publication.publisher, &publication.ups, levels);
        }
        // Two topics, with twenty publishers each.
        let groups: Vec<_> = trees.0.iter().map(|tree| tree.group.to_string()).collect();
        assert_eq!(groups, ["239.192.0.1", "239.192.0.2"]);
        assert_eq!(trees.members().len(), 3);
        let mut plan = plan(&layout, &[]);
        trees.enter(&layout, &mut plan);
        let legs = |switch: &str| {
            let entries = plan.switches[switch].entries.values();
            let legs = entries.map(|entry| entry.legs.len());
            legs.collect::<Vec<_>>()
        };
        // s1 copies to h5 and s4, s4 to s2 and s5; s5 forwards to s3, s2 and s3 to h10 and h15.
        assert_eq!(legs("s1"), [2, 2]);
        assert_eq!(legs("s4"), [2, 2]);
        assert_eq!(legs("s5"), [1, 1]);
        assert_eq!((legs("s2"), legs("s3")), (vec![1, 1], vec![1, 1]));
        assert!(legs("s6").is_empty());
        for (_, _, entry) in plan.entries() {
            let handed = entry.legs.iter().filter_map(|leg| leg.hand_over);
            for address in handed.filter_map(|hand_over| hand_over.address) {
                assert_eq!(address.port, Some(PORT));
            }
        }
        // The first switch sets the mark, and the other switches leave it unchanged.
        assert!(
            plan.switches["s1"]
                .entries
                .values()
                .all(|of| of.mark.is_some())
        );
        assert!(
            plan.switches["s4"]
                .entries
                .values()
                .all(|of| of.mark.is_none())
        );
    }
}
