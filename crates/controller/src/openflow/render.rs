//! A switch's part of the plan as OpenFlow.
//!
//! Table 0 has the entries of flows, and the handling of other packets where they
//! enter the network; table 1 forwards these. An entry with several legs, or with
//! a detour, uses a group. Groups are identified by their actions: two entries
//! with the same actions share one, and a group found after a restart is used
//! again. Entries of this controller are recognised by the upper half of their
//! cookie, groups and meters by their numbers.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use punctual_model::srt::Protocol;
use punctual_openflow::{
    Action, Bucket, Cookie, ETH_ARP, ETH_IPV4, ETH_IPV6, ETH_LLDP, ETH_VLAN, GroupId, GroupType,
    IP_TCP, IP_UDP, Instruction, Masked, Match as Fields, MeterId, OxmField, PortNo, QueueId,
    TableId, VLAN_PRESENT,
};

use crate::plan::{Base, Entry, Header, Leg, Mac, Match, PortNumber};
use crate::streams::hash;

/// Upper half of the cookies of our entries: `PUNC`.
pub(crate) const OURS: u64 = 0x5055_4e43_0000_0000;
/// Which bits of a cookie say whose it is.
pub(crate) const OURS_MASK: u64 = 0xffff_ffff_0000_0000;
/// The group by which packets for all go.
pub(crate) const FLOOD: GroupId = GroupId(0x5f00_0001);
/// All IPv4 groups (RFC 5771), as address and mask.
const GROUPS_V4: (Ipv4Addr, Ipv4Addr) = (Ipv4Addr::new(224, 0, 0, 0), Ipv4Addr::new(240, 0, 0, 0));
/// Those of protocols that stay on a link: routing, names, memberships.
const LINK_GROUPS_V4: (Ipv4Addr, Ipv4Addr) =
    (Ipv4Addr::new(224, 0, 0, 0), Ipv4Addr::new(255, 255, 255, 0));
/// All IPv6 groups (RFC 4291).
const GROUPS_V6: (Ipv6Addr, Ipv6Addr) = (
    Ipv6Addr::new(0xff00, 0, 0, 0, 0, 0, 0, 0),
    Ipv6Addr::new(0xff00, 0, 0, 0, 0, 0, 0, 0),
);
/// Those whose scope is a link; neighbour discovery uses them.
const LINK_GROUPS_V6: (Ipv6Addr, Ipv6Addr) = (
    Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 0),
    Ipv6Addr::new(0xff0f, 0, 0, 0, 0, 0, 0, 0),
);
/// Numbers of other groups that are ours.
pub(crate) const GROUPS: std::ops::Range<u32> = 0x5000_0000..0x5f00_0000;
/// Numbers of meters that are ours.
pub(crate) const METERS: std::ops::Range<u32> = 0x8000..0x1_0000;

const FLOWS: TableId = TableId(0);
const FORWARD: TableId = TableId(1);
/// Priorities in the first table, the more exact the higher.
const STREAM: u16 = 0x4000;
const PROBE: u16 = 0x7000;
const RESOLVE: u16 = 0x1001;
const UNMARK: u16 = 0x1000;

/// A flow entry without its counters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Rule {
    pub(crate) cookie: Cookie,
    pub(crate) instructions: Vec<Instruction>,
}

/// Where an entry is: one place has one entry.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Place {
    pub(crate) table: TableId,
    pub(crate) priority: u16,
    pub(crate) fields: Fields,
}

/// What a group does.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Work {
    pub(crate) kind: GroupType,
    pub(crate) buckets: Vec<Bucket>,
}

impl Work {
    /// The number that it gets, unless that is taken.
    pub(crate) fn number(&self) -> u32 {
        let text = format!("{self:?}");
        let range = u64::from(GROUPS.end - GROUPS.start);
        GROUPS.start + (hash(text.as_bytes(), 0) % range) as u32
    }
}

/// Gives out the groups and meters that entries need.
pub(crate) trait Numbers {
    /// The number of a group that does this.
    fn group(&mut self, work: Work) -> GroupId;
}

/// The cookie of all entries of an owner.
pub(crate) fn cookie(owner: &str) -> Cookie {
    Cookie(OURS | (hash(owner.as_bytes(), 0) & !OURS_MASK))
}

/// Where the entry of a match is.
pub(crate) fn place(matching: &Match) -> Place {
    let mut fields = vec![OxmField::InPort(PortNo(matching.in_port))];
    fields.extend(header_fields(&matching.header));
    // Without this a switch takes no entry that removes the tag.
    let tag = OxmField::VlanVid(Masked::exact(VLAN_PRESENT));
    fields.extend(matching.tagged.then_some(tag));
    fields.extend(matching.dscp.map(OxmField::IpDscp));
    Place {
        table: FLOWS,
        priority: STREAM + u16::from(matching.header.precision()),
        fields: fields_of(fields),
    }
}

/// Fields that presuppose nothing that is not among them.
fn fields_of(fields: Vec<OxmField>) -> Fields {
    Fields::new(fields).unwrap_or_default().normalized()
}

fn header_fields(header: &Header) -> Vec<OxmField> {
    let mut fields = Vec::with_capacity(6);
    match (header.source, header.destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => fields.extend([
            OxmField::EthType(ETH_IPV4),
            OxmField::Ipv4Src(source.into()),
            OxmField::Ipv4Dst(destination.into()),
        ]),
        (source, destination) => {
            let v6 = |address: IpAddr| match address {
                IpAddr::V4(address) => address.to_ipv6_mapped(),
                IpAddr::V6(address) => address,
            };
            fields.extend([
                OxmField::EthType(ETH_IPV6),
                OxmField::Ipv6Src(v6(source).into()),
                OxmField::Ipv6Dst(v6(destination).into()),
            ]);
        }
    }
    let (source, destination) = (header.source_port, header.destination_port);
    match header.protocol {
        Protocol::Tcp => {
            fields.push(OxmField::IpProto(IP_TCP));
            fields.extend(source.map(|port| OxmField::TcpSrc(port.into())));
            fields.extend(destination.map(|port| OxmField::TcpDst(port.into())));
        }
        Protocol::Udp => {
            fields.push(OxmField::IpProto(IP_UDP));
            fields.extend(source.map(|port| OxmField::UdpSrc(port.into())));
            fields.extend(destination.map(|port| OxmField::UdpDst(port.into())));
        }
    }
    fields
}

/// The header of an entry of ours, and the mark that it gives; `None` if it is
/// not one where packets of a stream enter.
pub(crate) fn ingress(place: &Place, rule: &Rule) -> Option<(Header, u8)> {
    if place.table != FLOWS || !(STREAM..STREAM + 3).contains(&place.priority) {
        return None;
    }
    let (mut source, mut destination, mut protocol) = (None, None, None);
    let (mut source_port, mut destination_port) = (None, None);
    for field in place.fields.fields() {
        match field {
            OxmField::Ipv4Src(address) => source = Some(IpAddr::V4(address.value)),
            OxmField::Ipv4Dst(address) => destination = Some(IpAddr::V4(address.value)),
            OxmField::Ipv6Src(address) => source = Some(IpAddr::V6(address.value)),
            OxmField::Ipv6Dst(address) => destination = Some(IpAddr::V6(address.value)),
            OxmField::IpProto(IP_TCP) => protocol = Some(Protocol::Tcp),
            OxmField::IpProto(IP_UDP) => protocol = Some(Protocol::Udp),
            OxmField::TcpSrc(port) | OxmField::UdpSrc(port) => source_port = Some(port.value),
            OxmField::TcpDst(port) | OxmField::UdpDst(port) => destination_port = Some(port.value),
            OxmField::IpDscp(_) => return None,
            _ => {}
        }
    }
    let dscp = rule
        .instructions
        .iter()
        .find_map(|instruction| match instruction {
            Instruction::ApplyActions(actions) => actions.iter().find_map(|action| match action {
                Action::SetField(OxmField::IpDscp(dscp)) => Some(*dscp),
                _ => None,
            }),
            _ => None,
        })?;
    let header = Header {
        protocol: protocol?,
        source: source?,
        source_port,
        destination: destination?,
        destination_port,
    };
    Some((header, dscp))
}

/// A host that appears in entries of an earlier run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Resident {
    pub(crate) mac: Option<Mac>,
    pub(crate) address: Option<IpAddr>,
    /// The port towards it.
    pub(crate) port: PortNumber,
}

/// The port whose marks an entry takes off: packets enter the network there.
pub(crate) fn unmarked(place: &Place) -> Option<PortNumber> {
    let is_it = place.table == FLOWS && place.priority == UNMARK;
    let port = place.fields.in_port().filter(|_| is_it)?;
    Some(port.0)
}

/// The ports by which actions send packets.
pub(crate) fn outputs(actions: &[Action]) -> impl Iterator<Item = PortNumber> {
    actions.iter().filter_map(|action| match action {
        Action::Output { port, .. } if *port <= PortNo::MAX => Some(port.0),
        _ => None,
    })
}

/// Hosts in an entry.
pub(crate) fn residents(place: &Place, rule: &Rule, all: &mut Vec<Resident>) {
    let actions = rule
        .instructions
        .iter()
        .find_map(|instruction| match instruction {
            Instruction::ApplyActions(actions) => Some(actions.as_slice()),
            _ => None,
        });
    let actions = actions.unwrap_or_default();
    let output = outputs(actions).next();
    let fields = place.fields.fields();
    if place.table == FORWARD {
        let mac = fields.iter().find_map(|field| match field {
            OxmField::EthDst(mac) if mac.mask.is_none() => Some(Mac(mac.value.0)),
            _ => None,
        });
        all.extend(mac.zip(output).map(|(mac, port)| Resident {
            mac: Some(mac),
            address: None,
            port,
        }));
        return;
    }
    rewritten(actions, all);
    let mut enters = true;
    for field in fields {
        let (address, port) = match field {
            OxmField::IpDscp(_) => {
                enters = false;
                continue;
            }
            OxmField::Ipv4Dst(address) => (IpAddr::V4(address.value), output),
            OxmField::Ipv6Dst(address) => (IpAddr::V6(address.value), output),
            _ => continue,
        };
        let known = port.filter(|_| !address.is_multicast());
        all.extend(known.map(|port| Resident {
            mac: None,
            address: Some(address),
            port,
        }));
    }
    let source = fields.iter().find_map(|field| match field {
        OxmField::Ipv4Src(address) => Some(IpAddr::V4(address.value)),
        OxmField::Ipv6Src(address) => Some(IpAddr::V6(address.value)),
        _ => None,
    });
    if let (true, Some(address), Some(port)) = (enters, source, place.fields.in_port()) {
        all.push(Resident {
            mac: None,
            address: Some(address),
            port: port.0,
        });
    }
}

/// Hosts to which actions rewrite a packet that was sent to a group address.
pub(crate) fn rewritten(actions: &[Action], all: &mut Vec<Resident>) {
    let (mut mac, mut address) = (None, None);
    for action in actions {
        match action {
            Action::SetField(OxmField::EthDst(to)) => mac = Some(Mac(to.value.0)),
            Action::SetField(OxmField::Ipv4Dst(to)) => address = Some(IpAddr::V4(to.value)),
            Action::SetField(OxmField::Ipv6Dst(to)) => address = Some(IpAddr::V6(to.value)),
            Action::Output { port, .. } if mac.is_some() && *port <= PortNo::MAX => {
                all.push(Resident {
                    mac,
                    address,
                    port: port.0,
                });
            }
            _ => {}
        }
    }
}

/// The entry of a match; its meter is `meter`.
pub(crate) fn rule(
    matching: &Match,
    entry: &Entry,
    meter: Option<MeterId>,
    numbers: &mut dyn Numbers,
) -> Rule {
    let mut actions = Vec::new();
    if let Some(mark) = entry.mark {
        if let Some(pcp) = mark.pcp {
            actions.push(Action::PushVlan(ETH_VLAN));
            // A tag with a priority and no VLAN.
            actions.push(Action::SetField(OxmField::VlanVid(Masked::exact(
                VLAN_PRESENT,
            ))));
            actions.push(Action::SetField(OxmField::VlanPcp(pcp)));
        }
        actions.push(Action::SetField(OxmField::IpDscp(mark.dscp)));
    }
    let protocol = matching.header.protocol;
    match entry.legs.as_slice() {
        [leg] if leg.detour.is_none() => {
            actions.extend(leg_actions(leg, matching.in_port, protocol));
        }
        [leg] => actions.push(Action::Group(failover(
            leg,
            matching.in_port,
            protocol,
            numbers,
        ))),
        legs => {
            let buckets = legs.iter().map(|leg| match leg.detour {
                None => Bucket::new(leg_actions(leg, matching.in_port, protocol)),
                Some(_) => {
                    let group = failover(leg, matching.in_port, protocol, numbers);
                    Bucket::new(vec![Action::Group(group)])
                }
            });
            let work = Work {
                kind: GroupType::All,
                buckets: buckets.collect(),
            };
            actions.push(Action::Group(numbers.group(work)));
        }
    }
    let meter = meter.map(Instruction::Meter);
    Rule {
        cookie: cookie(&entry.owner),
        instructions: meter
            .into_iter()
            .chain([Instruction::ApplyActions(actions)])
            .collect(),
    }
}

fn failover(
    leg: &Leg,
    in_port: PortNumber,
    protocol: Protocol,
    numbers: &mut dyn Numbers,
) -> GroupId {
    let mut buckets = vec![Bucket::watching(
        PortNo(leg.port),
        leg_actions(leg, in_port, protocol),
    )];
    buckets.extend(leg.detour.map(|detour| {
        let actions = vec![
            Action::SetField(OxmField::IpDscp(detour.dscp)),
            Action::SetQueue(QueueId(detour.queue.into())),
            output(detour.port, in_port),
        ];
        Bucket::watching(PortNo(detour.port), actions)
    }));
    numbers.group(Work {
        kind: GroupType::FastFailover,
        buckets,
    })
}

fn leg_actions(leg: &Leg, in_port: PortNumber, protocol: Protocol) -> Vec<Action> {
    let mut actions = Vec::new();
    if let Some(last) = leg.hand_over {
        if let Some(address) = last.address {
            actions.push(Action::SetField(OxmField::EthDst(mac(address.mac).into())));
            actions.push(Action::SetField(match address.ip {
                IpAddr::V4(ip) => OxmField::Ipv4Dst(ip.into()),
                IpAddr::V6(ip) => OxmField::Ipv6Dst(ip.into()),
            }));
            let port = address.port.map(Masked::exact);
            actions.extend(port.map(|port| {
                Action::SetField(match protocol {
                    Protocol::Tcp => OxmField::TcpDst(port),
                    Protocol::Udp => OxmField::UdpDst(port),
                })
            }));
        }
        actions.push(Action::SetField(OxmField::IpDscp(last.dscp)));
        if last.untag {
            actions.push(Action::PopVlan);
        }
    }
    actions.push(Action::SetQueue(QueueId(leg.queue.into())));
    actions.push(output(leg.port, in_port));
    actions
}

fn output(port: PortNumber, in_port: PortNumber) -> Action {
    // A switch sends a packet back through its ingress port only with `IN_PORT`.
    Action::output(if port == in_port {
        PortNo::IN_PORT
    } else {
        PortNo(port)
    })
}

fn mac(mac: Mac) -> punctual_openflow::Mac {
    punctual_openflow::Mac(mac.0)
}

/// Probes go to the controller.
pub(crate) fn probes() -> (Place, Rule) {
    let place = Place {
        table: FLOWS,
        priority: PROBE,
        fields: fields_of(vec![OxmField::EthType(ETH_LLDP)]),
    };
    let rule = Rule {
        cookie: cookie("base"),
        instructions: vec![Instruction::ApplyActions(vec![Action::to_controller()])],
    };
    (place, rule)
}

/// Rules for packets that belong to no flow.
pub(crate) fn base_rules(base: &Base) -> Vec<(Place, Rule)> {
    let cookie = cookie("base");
    let mut rules = vec![probes()];
    let mut rule = |table, priority, fields, instructions| {
        let place = Place {
            table,
            priority,
            fields: fields_of(fields),
        };
        rules.push((
            place,
            Rule {
                cookie,
                instructions,
            },
        ));
    };
    let apply = |actions| Instruction::ApplyActions(actions);
    let on = Instruction::GotoTable(FORWARD);
    let ask = || Action::to_controller();
    for port in &base.edge {
        let from = OxmField::InPort(PortNo(*port));
        for version in [ETH_IPV4, ETH_IPV6] {
            let unmark = apply(vec![Action::SetField(OxmField::IpDscp(0))]);
            let fields = vec![from.clone(), OxmField::EthType(version)];
            rule(FLOWS, UNMARK, fields, vec![unmark, on.clone()]);
        }
        let fields = vec![from, OxmField::EthType(ETH_ARP)];
        rule(FLOWS, RESOLVE, fields, vec![apply(vec![ask()]), on.clone()]);
    }
    rule(FLOWS, 0, vec![], vec![on]);
    for (host, port) in &base.hosts {
        let out = vec![Action::SetQueue(QueueId(0)), Action::output(PortNo(*port))];
        rule(
            FORWARD,
            2,
            vec![OxmField::EthDst(mac(*host).into())],
            vec![apply(out)],
        );
    }
    let group_bit = punctual_openflow::Mac([1, 0, 0, 0, 0, 0]);
    let to_groups = OxmField::EthDst(Masked::with_mask(group_bit, group_bit));
    let flood = || {
        let actions = vec![Action::SetQueue(QueueId(0)), Action::Group(FLOOD)];
        vec![apply(actions)]
    };
    rule(FORWARD, 1, vec![to_groups], flood());
    // A group of which nobody has said who receives it would take capacity of every link.
    let (v4, v6) = ([LINK_GROUPS_V4, GROUPS_V4], [LINK_GROUPS_V6, GROUPS_V6]);
    let v4 = v4.map(|(address, mask)| OxmField::Ipv4Dst(Masked::with_mask(address, mask)));
    let v6 = v6.map(|(address, mask)| OxmField::Ipv6Dst(Masked::with_mask(address, mask)));
    for (version, [on_link, all]) in [(ETH_IPV4, v4), (ETH_IPV6, v6)] {
        let is_ip = OxmField::EthType(version);
        rule(FORWARD, 4, vec![is_ip.clone(), on_link], flood());
        rule(FORWARD, 3, vec![is_ip, all], Vec::new());
    }
    rule(FORWARD, 0, vec![], vec![apply(vec![ask()])]);
    rules
}

/// What the group does by which packets for all go.
pub(crate) fn flood(base: &Base) -> Work {
    let bucket = |port: &PortNumber| Bucket::new(vec![Action::output(PortNo(*port))]);
    Work {
        kind: GroupType::All,
        buckets: base.flood.iter().map(bucket).collect(),
    }
}
