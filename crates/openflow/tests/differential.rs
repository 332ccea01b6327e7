//! Packets leave the fake switch by the ports and with the bytes with which they leave Open
//! vSwitch: random entries, groups and packets through both.
//!
//! One difference is left out: where a table behind the first has no entry for a packet, Open
//! vSwitch still carries out the actions that were written before, and the fake switch drops the
//! packet, as OpenFlow 1.3.5 says (section 5.4). So each table has an entry for all packets.
//!
//! The cases are always the same; with `PUNCTUAL_CASES` they are so many others.
#![allow(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]

mod compatible;
#[allow(dead_code, reason = "not every test binary needs all of it")]
mod live;

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use live::Connection;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::{RngSeed, TestRunner};
use punctual_model::Nanos;
use punctual_openflow::error_code::ErrorCode;
use punctual_openflow::fake::{Switch, example};
use punctual_openflow::{
    Action, Bucket, DatapathId, ETH_ARP, ETH_IPV4, ETH_IPV6, Envelope, FlowMod, GroupId, GroupMod,
    GroupType, IP_ICMP, IP_TCP, IP_UDP, Instruction, Mac, Masked, Match, Message, OxmField as F,
    PortNo, QueueId, TableId, VLAN_PRESENT, Xid,
};
use punctual_testbed::{Datapath, Ovs};

const PORTS: u32 = 4;
const TABLES: u8 = 3;

/// Entries and groups, then packets by port.
type Case = (Vec<Message>, Vec<(u32, Vec<u8>)>);

fn address() -> impl Strategy<Value = Ipv4Addr> {
    select(vec![1_u8, 2, 3]).prop_map(|last| Ipv4Addr::new(10, 0, 0, last))
}

/// Fields that packets here have, with values that they often have.
fn field() -> impl Strategy<Value = F> {
    prop_oneof![
        (1..=PORTS).prop_map(|port| F::InPort(PortNo(port))),
        Just(F::EthDst(example::DESTINATION.into())),
        Just(F::EthDst(Masked::with_mask(
            Mac([0; 6]),
            Mac([1, 0, 0, 0, 0, 0])
        ))),
        Just(F::EthSrc(example::SOURCE.into())),
        select(vec![ETH_IPV4, ETH_IPV6, ETH_ARP]).prop_map(F::EthType),
        Just(F::VlanVid(0.into())),
        Just(F::VlanVid(Masked::with_mask(VLAN_PRESENT, VLAN_PRESENT))),
        (0..3_u16).prop_map(|vid| F::VlanVid((VLAN_PRESENT | vid).into())),
        (0..3_u8).prop_map(F::VlanPcp),
        select(vec![0, 10, 46]).prop_map(F::IpDscp),
        (0..2_u8).prop_map(F::IpEcn),
        select(vec![IP_TCP, IP_UDP, IP_ICMP]).prop_map(F::IpProto),
        address().prop_map(|address| F::Ipv4Src(address.into())),
        address().prop_map(|address| F::Ipv4Dst(address.into())),
        (29..=32_u8).prop_map(|bits| F::Ipv4Dst(Masked::network([10, 0, 0, 2].into(), bits))),
        select(vec![1000, 2000]).prop_map(|port| F::UdpDst(Masked::exact(port))),
        select(vec![1000, 2000]).prop_map(|port| F::TcpSrc(Masked::exact(port))),
        Just(F::UdpDst(Masked::with_mask(0x0700, 0xff00))),
        (0..2_u64).prop_map(|value| F::Metadata(Masked::with_mask(value, 1))),
        Just(F::ArpOp(1)),
        address().prop_map(|address| F::ArpTpa(address.into())),
    ]
}

fn matching() -> impl Strategy<Value = Match> {
    compatible::matching(field(), 4)
}

fn output() -> impl Strategy<Value = Action> {
    prop_oneof![
        6 => (1..=PORTS).prop_map(|port| Action::output(PortNo(port))),
        1 => Just(Action::output(PortNo::IN_PORT)),
        1 => Just(Action::output(PortNo::ALL)),
        1 => Just(Action::output(PortNo::FLOOD)),
    ]
}

fn rewrite() -> impl Strategy<Value = Action> {
    prop_oneof![
        (0..64_u8).prop_map(|dscp| Action::SetField(F::IpDscp(dscp))),
        (0..4_u8).prop_map(|ecn| Action::SetField(F::IpEcn(ecn))),
        address().prop_map(|address| Action::SetField(F::Ipv4Src(address.into()))),
        any::<[u8; 4]>().prop_map(|to| Action::SetField(F::Ipv4Dst(Ipv4Addr::from(to).into()))),
        any::<u16>().prop_map(|port| Action::SetField(F::UdpDst(port.into()))),
        any::<u16>().prop_map(|port| Action::SetField(F::TcpSrc(port.into()))),
        any::<[u8; 6]>().prop_map(|mac| Action::SetField(F::EthDst(Mac(mac).into()))),
        (0..4096_u16).prop_map(|vid| Action::SetField(F::VlanVid((VLAN_PRESENT | vid).into()))),
        (0..8_u8).prop_map(|pcp| Action::SetField(F::VlanPcp(pcp))),
        (0..8_u32).prop_map(|queue| Action::SetQueue(QueueId(queue))),
        Just(Action::PushVlan(0x8100)),
        Just(Action::PopVlan),
        Just(Action::DecNwTtl),
        (1..255_u8).prop_map(Action::SetNwTtl),
    ]
}

fn action() -> impl Strategy<Value = Action> {
    prop_oneof![
        5 => output(),
        5 => rewrite(),
        2 => (1..4_u32).prop_map(|group| Action::Group(GroupId(group))),
    ]
}

fn instructions(table: u8) -> impl Strategy<Value = Vec<Instruction>> {
    let actions = || vec(action(), 0..5);
    let maybe = proptest::option::weighted::<BoxedStrategy<Instruction>>;
    (
        maybe(0.8, actions().prop_map(Instruction::ApplyActions).boxed()),
        maybe(0.1, Just(Instruction::ClearActions).boxed()),
        maybe(0.4, actions().prop_map(Instruction::WriteActions).boxed()),
        maybe(
            0.3,
            (0..2_u64)
                .prop_map(|value| Instruction::WriteMetadata { value, mask: 1 })
                .boxed(),
        ),
        maybe(
            0.6,
            (0..TABLES)
                .prop_map(|next| Instruction::GotoTable(TableId(next)))
                .boxed(),
        ),
    )
        .prop_map(move |(a, b, c, d, e)| {
            let forward = |step: &Instruction| match step {
                Instruction::GotoTable(next) => next.0 > table,
                _ => true,
            };
            [a, b, c, d, e]
                .into_iter()
                .flatten()
                .filter(forward)
                .collect()
        })
}

fn flow() -> impl Strategy<Value = FlowMod> {
    (0..TABLES, matching()).prop_flat_map(|(table, matching)| {
        instructions(table).prop_map(move |instructions| {
            FlowMod::add(TableId(table), 0, matching.clone(), instructions)
        })
    })
}

/// Groups 1 to 3; port 9 does not exist, so what watches it is dead.
fn groups() -> impl Strategy<Value = Vec<Message>> {
    let actions = || vec(prop_oneof![2 => output(), 1 => rewrite()], 1..4);
    let watched = select(vec![1, 2, 3, 4, 9]);
    let all = vec(actions().prop_map(Bucket::new), 0..4);
    let one = actions().prop_map(|actions| vec![Bucket::new(actions)]);
    let live = vec(
        (watched, actions()).prop_map(|(port, actions)| Bucket::watching(PortNo(port), actions)),
        0..4,
    );
    (all, one, live).prop_map(|(all, one, live)| {
        [
            GroupMod::add(GroupType::All, GroupId(1), all),
            GroupMod::add(GroupType::Indirect, GroupId(2), one),
            GroupMod::add(GroupType::FastFailover, GroupId(3), live),
        ]
        .map(Message::GroupMod)
        .to_vec()
    })
}

fn packet() -> impl Strategy<Value = (u32, Vec<u8>)> {
    let v4 = (
        address(),
        address(),
        select(vec![IP_TCP, IP_UDP, IP_ICMP]),
        select(vec![0_u8, 10 << 2, 46 << 2 | 1]),
        select(vec![1_u8, 2, 64]),
        vec(any::<u8>(), 18..40),
    )
        .prop_map(|(from, to, proto, class, ttl, payload)| {
            let ports = if proto == IP_ICMP {
                (8, 0)
            } else {
                (1000, 2000)
            };
            let mut frame = example::v4_between(from, to, proto, ports, &payload);
            (frame[15], frame[22]) = (class, ttl);
            example::finish_v4(&mut frame);
            frame
        });
    let frame = prop_oneof![
        5 => v4,
        1 => vec(any::<u8>(), 18..40).prop_map(|payload| example::v6(IP_UDP, &payload)),
        1 => Just(example::arp()),
    ];
    let tag = proptest::option::of((0..3_u16, 0..3_u16));
    (1..=PORTS, frame, tag).prop_map(|(port, mut frame, tag)| {
        if let Some((vid, pcp)) = tag {
            let [high, low] = (pcp << 13 | vid).to_be_bytes();
            frame.splice(12..12, [0x81, 0, high, low]);
        }
        (port, frame)
    })
}

fn case() -> impl Strategy<Value = Case> {
    let changes = (groups(), vec(flow(), 1..12)).prop_map(|(mut changes, flows)| {
        let rest = |table| FlowMod::add(TableId(table), 0, Match::any(), Vec::new());
        // Which of two entries of one priority counts is not defined.
        let ranked = flows.into_iter().zip(1..);
        let ranked = ranked.map(|(flow, priority)| FlowMod { priority, ..flow });
        let all = (0..TABLES).map(rest).chain(ranked);
        changes.extend(all.map(Message::FlowMod));
        changes
    });
    (changes, vec(packet(), 1..6))
}

/// What leaves by each port, in order.
type Sent = BTreeMap<u32, Vec<Vec<u8>>>;

struct Live {
    ovs: Ovs,
    connection: Connection,
    /// How much of each port's file was read.
    read: BTreeMap<u32, usize>,
}

impl Live {
    fn start() -> Self {
        let ovs = Ovs::start(Datapath::Dummy).unwrap();
        ovs.bridge("br0", 1).unwrap();
        for port in 1..=PORTS {
            ovs.port("br0", &format!("p{port}"), port).unwrap();
        }
        // Behind the header of the file.
        let read = (1..=PORTS).map(|port| (port, 24)).collect();
        Self {
            connection: Connection::open(&ovs, "br0"),
            ovs,
            read,
        }
    }

    fn set_up(&mut self, changes: &[Message]) -> Vec<(usize, ErrorCode)> {
        let clear = [
            Message::FlowMod(FlowMod::delete(TableId::ALL, Match::any())),
            Message::GroupMod(GroupMod::delete(GroupId::ALL)),
        ];
        assert_eq!(self.connection.apply(clear), []);
        let refused = self.connection.apply(changes.to_vec());
        // Else the datapath goes on for a while with what it cached of the entries before.
        self.ovs.appctl(["revalidator/purge"]).unwrap();
        refused
    }

    fn packet(&mut self, port: u32, frame: &[u8]) -> Sent {
        self.ovs.inject(&format!("p{port}"), frame).unwrap();
        // Answered in a later turn of the daemon, after the packet.
        self.ovs.appctl(["version"]).unwrap();
        let mut sent = Sent::new();
        for (port, read) in &mut self.read {
            let file = std::fs::read(self.ovs.sent(&format!("p{port}"))).unwrap();
            let mut records = &file[*read..];
            *read = file.len();
            while let [_, _, _, _, _, _, _, _, a, b, c, d, _, _, _, _, rest @ ..] = records {
                let length = u32::from_ne_bytes([*a, *b, *c, *d]) as usize;
                sent.entry(*port).or_default().push(rest[..length].to_vec());
                records = &rest[length..];
            }
        }
        sent
    }
}

struct Faked(Switch);

impl Faked {
    fn start() -> Self {
        let ports = (1..=PORTS).map(PortNo);
        Self(Switch::new(DatapathId(1), ports, Nanos(0)))
    }

    fn set_up(&mut self, changes: &[Message]) -> Vec<(usize, ErrorCode)> {
        let mut refused = Vec::new();
        for (number, change) in changes.iter().enumerate() {
            let envelope = Envelope::new(Xid(1), change.clone());
            for answer in self.0.handle(&envelope, Nanos(0)) {
                if let Message::Error(error) = answer.message {
                    refused.push((number, error.code));
                }
            }
        }
        refused
    }

    fn packet(&mut self, port: u32, frame: &[u8]) -> Sent {
        let mut sent = Sent::new();
        for emission in self.0.packet(PortNo(port), frame, Nanos(0)) {
            sent.entry(emission.port.0)
                .or_default()
                .push(emission.frame);
        }
        sent
    }
}

#[test]
fn packets_leave_as_they_leave_open_vswitch() {
    if Ovs::is_missing() {
        return;
    }
    let wanted = std::env::var("PUNCTUAL_CASES").ok();
    let config = ProptestConfig {
        rng_seed: match wanted {
            Some(_) => RngSeed::Random,
            None => RngSeed::Fixed(1),
        },
        cases: wanted.map_or(60, |cases| cases.parse().unwrap()),
        max_shrink_iters: 400,
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    let mut live = Live::start();
    let mut forwarded = 0;
    let (live, count) = (std::cell::RefCell::new(&mut live), &mut forwarded);
    let count = std::cell::RefCell::new(count);
    TestRunner::new(config)
        .run(&case(), |(changes, packets)| {
            let mut live = live.borrow_mut();
            let mut faked = Faked::start();
            prop_assert_eq!(
                faked.set_up(&changes),
                live.set_up(&changes),
                "fake and live"
            );
            for (port, frame) in packets {
                let (fake, real) = (faked.packet(port, &frame), live.packet(port, &frame));
                prop_assert_eq!(
                    &fake,
                    &real,
                    "{:02x?} into port {}, fake and live",
                    frame,
                    port
                );
                **count.borrow_mut() += fake.len();
            }
            Ok(())
        })
        .unwrap();
    assert!(forwarded > 0);
}
