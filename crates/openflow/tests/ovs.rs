//! A live Open vSwitch understands what we encode, and we understand what it sends.
#![allow(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]

#[allow(dead_code, reason = "not every test binary needs all of it")]
mod live;

use std::net::Ipv4Addr;

use live::Connection;
use punctual_openflow::error_code::{BundleFailed, ErrorCode, FlowModFailed};
use punctual_openflow::multipart::{FlowStatsRequest, GroupDesc, MeterConfig, QueueStatsRequest};
use punctual_openflow::{
    Action, AsyncConfig, BundleAdd, BundleControl, BundleControlType, BundleFlags, BundleId,
    Cookie, DatapathId, ETH_ARP, ETH_IPV4, ETH_IPV6, Envelope, FlowFlags, FlowMod,
    FlowRemovedReason, GroupId, GroupMod, GroupType, Instruction, Mac, Masked, Match, Message,
    MeterBand, MeterFlags, MeterId, MeterMod, MultipartBody, MultipartRequest, OxmField as F,
    PacketInReason, PacketOut, PortNo, QueueId, Role, RoleMessage, TableId, VLAN_PRESENT, Xid,
    apply, fake,
};
use punctual_testbed::{Datapath, Ovs};

const DATAPATH: DatapathId = DatapathId(0xa1);

/// A bridge with ports 1 to 4.
fn switch() -> Option<(Ovs, Connection)> {
    if Ovs::is_missing() {
        return None;
    }
    let ovs = Ovs::start(Datapath::Dummy).unwrap();
    ovs.bridge("br0", DATAPATH.0).unwrap();
    for port in 1..=4 {
        ovs.port("br0", &format!("p{port}"), port).unwrap();
    }
    let connection = Connection::open(&ovs, "br0");
    Some((ovs, connection))
}

fn matching(fields: impl IntoIterator<Item = F>) -> Match {
    Match::new(fields).unwrap()
}

fn out(port: u32) -> Action {
    Action::output(PortNo(port))
}

fn groups() -> Vec<GroupMod> {
    let set = Action::SetField(F::EthDst(Mac([2, 0, 0, 0, 0, 9]).into()));
    let bucket = |actions: &[Action]| punctual_openflow::Bucket::new(actions.to_vec());
    let watching = |port| punctual_openflow::Bucket::watching(PortNo(port), vec![out(port)]);
    let weighted = |weight, port| punctual_openflow::Bucket::weighted(weight, vec![out(port)]);
    vec![
        GroupMod::add(
            GroupType::All,
            GroupId(1),
            vec![bucket(&[out(1)]), bucket(&[set.clone(), out(2)])],
        ),
        GroupMod::add(
            GroupType::Select,
            GroupId(2),
            vec![weighted(1, 1), weighted(3, 2)],
        ),
        GroupMod::add(GroupType::Indirect, GroupId(3), vec![bucket(&[set])]),
        GroupMod::add(
            GroupType::FastFailover,
            GroupId(4),
            vec![watching(9), watching(3)],
        ),
    ]
}

fn meters() -> Vec<MeterMod> {
    let mut packets = MeterMod::drop_above(MeterId(2), 500, 50);
    packets.flags = MeterFlags::PKTPS | MeterFlags::BURST;
    vec![MeterMod::drop_above(MeterId(1), 10_000, 100), packets]
}

/// Entries that use every field, action and instruction which Open vSwitch takes.
fn flows() -> Vec<FlowMod> {
    let net = Masked::network(Ipv4Addr::new(10, 1, 2, 3), 16);
    let host = Ipv4Addr::new(10, 0, 0, 2);
    let six = "fd00::2".parse::<std::net::Ipv6Addr>().unwrap();
    let mac = Mac([2, 0, 0, 0, 0, 2]);
    let matches = [
        matching([F::InPort(PortNo(1))]),
        matching([
            F::EthDst(mac.into()),
            F::EthSrc(Masked::with_mask(mac, mac)),
        ]),
        matching([F::VlanVid((VLAN_PRESENT | 7).into()), F::VlanPcp(5)]),
        matching([F::VlanVid(0.into())]),
        matching([F::VlanPcp(3)]),
        matching([
            F::Ipv4Src(net),
            F::Ipv4Dst(host.into()),
            F::IpDscp(46),
            F::IpEcn(1),
        ]),
        matching([
            F::EthType(ETH_IPV4),
            F::TcpSrc(1883.into()),
            F::TcpDst(9.into()),
        ]),
        matching([
            F::EthType(ETH_IPV6),
            F::UdpSrc(1883.into()),
            F::UdpDst(9.into()),
        ]),
        matching([
            F::EthType(ETH_IPV4),
            F::UdpDst(Masked::with_mask(0x0700, 0xff00)),
        ]),
        matching([
            F::EthType(ETH_IPV4),
            F::SctpSrc(1.into()),
            F::SctpDst(2.into()),
        ]),
        matching([F::Icmpv4Type(8), F::Icmpv4Code(0)]),
        matching([F::Icmpv6Type(128), F::Icmpv6Code(0)]),
        matching([
            F::Ipv6Src(six.into()),
            F::Ipv6Dst(Masked::with_mask(six, six)),
        ]),
        matching([F::Ipv6Flabel(7.into())]),
        matching([F::Icmpv6Type(135), F::Ipv6NdTarget(six), F::Ipv6NdSll(mac)]),
        matching([F::Ipv6NdTll(mac)]),
        matching([F::ArpOp(1), F::ArpSpa(host.into()), F::ArpTpa(net)]),
        matching([
            F::ArpSha(mac.into()),
            F::ArpTha(Masked::with_mask(mac, mac)),
        ]),
        matching([
            F::Metadata(Masked::with_mask(5, 0xff)),
            F::TunnelId(9.into()),
        ]),
        matching([
            F::EthType(0x8847),
            F::MplsLabel(77),
            F::MplsTc(3),
            F::MplsBos(1),
        ]),
        matching([F::EthType(ETH_ARP)]),
    ];
    let mut all: Vec<_> = matches
        .into_iter()
        .zip(100..)
        .map(|(matching, priority)| {
            FlowMod::add(TableId(0), priority, matching, apply([out(2)]))
                .with_cookie(Cookie(u64::from(priority) << 32))
        })
        .collect();
    let udp = || matching([F::EthType(ETH_IPV4), F::UdpDst(1883.into())]);
    let marked = [
        Action::SetQueue(QueueId(6)),
        Action::SetField(F::IpDscp(48)),
        Action::SetField(F::Ipv4Dst(host.into())),
        Action::SetField(F::UdpDst(1884.into())),
        Action::DecNwTtl,
        Action::SetNwTtl(9),
        Action::PushVlan(0x8100),
        Action::SetField(F::VlanVid((VLAN_PRESENT | 7).into())),
        Action::SetField(F::VlanPcp(6)),
        out(3),
        Action::PopVlan,
        Action::output(PortNo::IN_PORT),
        Action::output(PortNo::FLOOD),
        Action::output(PortNo::ALL),
        Action::Output {
            port: PortNo::CONTROLLER,
            max_len: 128,
        },
        Action::Group(GroupId(1)),
    ];
    let steps = vec![
        Instruction::Meter(MeterId(1)),
        Instruction::ApplyActions(marked.to_vec()),
        Instruction::ClearActions,
        Instruction::WriteActions(vec![Action::Group(GroupId(4))]),
        Instruction::WriteMetadata {
            value: 5,
            mask: 0xff,
        },
        Instruction::GotoTable(TableId(3)),
    ];
    all.push(FlowMod {
        idle_timeout: 60,
        hard_timeout: 600,
        flags: FlowFlags::SEND_FLOW_REMOVED | FlowFlags::CHECK_OVERLAP,
        ..FlowMod::add(TableId(2), 65535, udp(), steps)
    });
    all.push(FlowMod::add(TableId(3), 0, Match::any(), Vec::new()));
    all
}

fn changes() -> Vec<Message> {
    let groups = groups().into_iter().map(Message::GroupMod);
    let meters = meters().into_iter().map(Message::MeterMod);
    let flows = flows().into_iter().map(Message::FlowMod);
    groups.chain(meters).chain(flows).collect()
}

#[test]
fn what_is_sent_is_what_the_switch_has() {
    let Some((ovs, mut connection)) = switch() else {
        return;
    };
    assert_eq!(connection.apply(changes()), []);

    let MultipartBody::Flow(have) =
        connection.report(MultipartRequest::Flow(FlowStatsRequest::all()))
    else {
        panic!("not flows");
    };
    assert_eq!(have.len(), flows().len());
    for sent in flows() {
        let same = |found: &&punctual_openflow::multipart::FlowStats| {
            (found.table, found.priority) == (sent.table, sent.priority)
        };
        let found = have.iter().find(same).unwrap();
        assert_eq!(found.matching.normalized(), sent.matching.normalized());
        assert_eq!(found.matching.check(), Ok(()));
        assert_eq!(found.instructions, sent.instructions);
        assert_eq!(found.cookie, sent.cookie);
        assert_eq!(found.flags, sent.flags);
        assert_eq!(found.idle_timeout, sent.idle_timeout);
        assert_eq!(found.hard_timeout, sent.hard_timeout);
    }
    let MultipartBody::GroupDesc(mut have) = connection.report(MultipartRequest::GroupDesc) else {
        panic!("not groups");
    };
    have.sort_by_key(|group| group.group);
    let sent = groups().into_iter().map(|sent| GroupDesc {
        kind: sent.kind,
        group: sent.group,
        buckets: sent.buckets,
    });
    assert_eq!(have, sent.collect::<Vec<_>>());
    let request = MultipartRequest::MeterConfig(MeterId::ALL);
    let MultipartBody::MeterConfig(mut have) = connection.report(request) else {
        panic!("not meters");
    };
    have.sort_by_key(|meter| meter.meter);
    let sent = meters().into_iter().map(|sent| MeterConfig {
        flags: sent.flags,
        meter: sent.meter,
        bands: sent.bands,
    });
    assert_eq!(have, sent.collect::<Vec<_>>());

    // And in the words of its own tools.
    let shown = ovs
        .ofctl("dump-flows", "br0", ["--no-stats", "--no-names"])
        .unwrap();
    for line in [
        "cookie=0x6400000000, priority=100,in_port=1 actions=output:2",
        "priority=102,dl_vlan=7,dl_vlan_pcp=5 actions=output:2",
        "priority=105,ip,nw_src=10.1.0.0/16,nw_dst=10.0.0.2,nw_tos=184,nw_ecn=1 actions=output:2",
        "priority=106,tcp,tp_src=1883,tp_dst=9 actions=output:2",
        "priority=116,arp,arp_spa=10.0.0.2,arp_tpa=10.1.0.0/16,arp_op=1 actions=output:2",
        "table=2, idle_timeout=60, hard_timeout=600, send_flow_rem check_overlap \
         priority=65535,udp,tp_dst=1883 actions=meter:1,set_queue:6,set_field:48->ip_dscp,\
         set_field:10.0.0.2->ip_dst,set_field:1884->udp_dst,dec_ttl,mod_nw_ttl:9,\
         push_vlan:0x8100,set_field:4103->vlan_vid,set_field:6->vlan_pcp,output:3,pop_vlan,\
         IN_PORT,FLOOD,ALL,CONTROLLER:128,group:1,clear_actions,write_actions(group:4),\
         write_metadata:0x5/0xff,goto_table:3",
    ] {
        assert!(shown.contains(line), "{line} is not in\n{shown}");
    }
    let shown = ovs.ofctl("dump-groups", "br0", ["--no-names"]).unwrap();
    for line in [
        "group_id=1,type=all,bucket=actions=output:1,\
         bucket=actions=set_field:02:00:00:00:00:09->eth_dst,output:2",
        "group_id=4,type=ff,bucket=watch_port:9,actions=output:9,bucket=watch_port:3,\
         actions=output:3",
    ] {
        assert!(shown.contains(line), "{line} is not in\n{shown}");
    }
    let shown = ovs.ofctl("dump-meters", "br0", [""; 0]).unwrap();
    assert!(shown.contains("meter=1 kbps burst stats bands="), "{shown}");
    assert!(shown.contains("rate=10000 burst_size=100"), "{shown}");
}

#[test]
fn every_answer_is_read_and_written_again_bit_for_bit() {
    let Some((ovs, mut connection)) = switch() else {
        return;
    };
    connection.apply(changes());
    ovs.inject("p1", &fake::example::arp()).unwrap();
    let Message::FeaturesReply(features) = connection.ask(Message::FeaturesRequest) else {
        panic!("not features");
    };
    assert_eq!((features.datapath, features.tables), (DATAPATH, 254));
    let every = QueueStatsRequest {
        port: PortNo::ANY,
        queue: QueueId::ALL,
    };
    for request in [
        MultipartRequest::Desc,
        MultipartRequest::Aggregate(FlowStatsRequest::all()),
        MultipartRequest::Table,
        MultipartRequest::PortStats(PortNo::ANY),
        MultipartRequest::PortStats(PortNo(1)),
        MultipartRequest::Queue(every),
        MultipartRequest::Group(GroupId::ALL),
        MultipartRequest::GroupFeatures,
        MultipartRequest::Meter(MeterId::ALL),
        MultipartRequest::MeterFeatures,
        MultipartRequest::TableFeatures(Vec::new()),
        MultipartRequest::PortDesc,
    ] {
        // Compared in `receive`.
        connection.report(request);
    }
    let MultipartBody::PortDesc(ports) = connection.report(MultipartRequest::PortDesc) else {
        panic!("not ports");
    };
    let named = |port: &&punctual_openflow::PortDesc| port.name.to_string() == "p3";
    let port = ports.iter().find(named).unwrap();
    assert!(port.port == PortNo(3) && port.is_up());
    let MultipartBody::PortStats(stats) = connection.report(MultipartRequest::PortStats(PortNo(1)))
    else {
        panic!("not counters of ports");
    };
    assert_eq!((stats[0].rx_packets, stats[0].rx_bytes), (1, 42));

    let reply = connection.ask(Message::EchoRequest(b"there?".to_vec()));
    assert_eq!(reply, Message::EchoReply(b"there?".to_vec()));
    let Message::GetConfigReply(config) = connection.ask(Message::GetConfigRequest) else {
        panic!("not a configuration");
    };
    connection.send(Message::SetConfig(config));
    let everything = AsyncConfig {
        packet_in: [7, 0],
        port_status: [7, 7],
        flow_removed: [15, 0],
    };
    connection.send(Message::SetAsync(everything));
    let asked = connection.ask(Message::GetAsyncRequest);
    assert_eq!(asked, Message::GetAsyncReply(everything));
    let master = RoleMessage {
        role: Role::Master,
        generation: 3,
    };
    let role = connection.ask(Message::RoleRequest(master));
    assert_eq!(role, Message::RoleReply(master));
    let stale = RoleMessage {
        generation: 2,
        ..master
    };
    let Message::Error(error) = connection.ask(Message::RoleRequest(stale)) else {
        panic!("not refused");
    };
    assert!(error.code.to_string().contains("older"), "{}", error.code);
}

#[test]
fn what_a_switch_says_by_itself_arrives() {
    let Some((ovs, mut connection)) = switch() else {
        return;
    };
    let to_us = FlowMod {
        flags: FlowFlags::SEND_FLOW_REMOVED,
        ..FlowMod::add(
            TableId(0),
            7,
            matching([F::EthType(ETH_ARP)]),
            apply([Action::to_controller()]),
        )
        .with_cookie(Cookie(77))
    };
    // A connection to this socket hears nothing until it asks to.
    let everything = AsyncConfig {
        packet_in: [7, 0],
        port_status: [7, 7],
        flow_removed: [15, 0],
    };
    connection.send(Message::SetAsync(everything));
    assert_eq!(connection.apply([Message::FlowMod(to_us.clone())]), []);
    let frame = fake::example::arp();
    ovs.inject("p2", &frame).unwrap();
    let Message::PacketIn(packet) = connection.receive().message else {
        panic!("not a packet");
    };
    assert_eq!(packet.data, frame);
    assert_eq!(packet.matching.in_port(), Some(PortNo(2)));
    assert_eq!(packet.reason, PacketInReason::Action);
    assert_eq!(packet.cookie, Cookie(77));

    let sent = PacketOut::new(vec![out(3)], frame.clone());
    assert_eq!(connection.apply([Message::PacketOut(sent)]), []);
    ovs.appctl(["version"]).unwrap();
    assert!(std::fs::read(ovs.sent("p3")).unwrap().ends_with(&frame));

    let delete = FlowMod::delete(TableId::ALL, Match::any());
    connection.send(Message::FlowMod(delete));
    let Message::FlowRemoved(gone) = connection.receive().message else {
        panic!("not an entry that is gone");
    };
    assert_eq!(gone.reason, FlowRemovedReason::Delete);
    assert_eq!((gone.cookie, gone.packets, gone.bytes), (Cookie(77), 1, 42));
    assert_eq!(gone.matching.normalized(), to_us.matching.normalized());

    ovs.vsctl(["del-port", "p4"]).unwrap();
    let Message::PortStatus(status) = connection.receive().message else {
        panic!("not a port");
    };
    assert_eq!(status.port.port, PortNo(4));
}

fn bundle(kind: BundleControlType) -> Message {
    let flags = BundleFlags::ATOMIC | BundleFlags::ORDERED;
    Message::BundleControl(BundleControl::new(BundleId(5), kind, flags))
}

/// Flags of a reply have no meaning.
fn assert_bundle(reply: &Message, kind: BundleControlType) {
    match reply {
        Message::BundleControl(control) => {
            assert_eq!((control.bundle, control.kind), (BundleId(5), kind));
        }
        other => panic!("{other:?}"),
    }
}

/// Adds changes to a bundle and commits it; the answer to the commit.
fn commit(connection: &mut Connection, changes: Vec<Message>) -> Message {
    use BundleControlType as Type;
    assert_bundle(&connection.ask(bundle(Type::OpenRequest)), Type::OpenReply);
    for change in changes {
        let xid = Xid(connection.last_xid() + 1);
        connection.send(Message::BundleAdd(BundleAdd {
            bundle: BundleId(5),
            flags: BundleFlags::ATOMIC | BundleFlags::ORDERED,
            message: Box::new(Envelope::new(xid, change)),
            properties: Vec::new(),
        }));
    }
    connection.ask(bundle(Type::CommitRequest))
}

#[test]
fn bundles_happen_wholly_or_not_at_all() {
    let Some((_ovs, mut connection)) = switch() else {
        return;
    };
    let count = |connection: &mut Connection| {
        let request = MultipartRequest::Aggregate(FlowStatsRequest::all());
        match connection.report(request) {
            MultipartBody::Aggregate(sums) => sums.flows as usize,
            other => panic!("{other:?}"),
        }
    };
    let flows = |from: u16| {
        (from..from + 100)
            .map(|priority| {
                let only = matching([F::InPort(PortNo(1))]);
                Message::FlowMod(FlowMod::add(TableId(0), priority, only, apply([out(2)])))
            })
            .collect::<Vec<_>>()
    };
    let done = commit(&mut connection, flows(1));
    assert_bundle(&done, BundleControlType::CommitReply);
    assert_eq!(count(&mut connection), 100);

    let mut bad = flows(1000);
    let unknown = apply([Action::Group(GroupId(99))]);
    bad.push(Message::FlowMod(FlowMod::add(
        TableId(0),
        1,
        Match::any(),
        unknown,
    )));
    let Message::Error(error) = commit(&mut connection, bad) else {
        panic!("not refused");
    };
    assert_eq!(error.code, ErrorCode::BundleFailed(BundleFailed::MsgFailed));
    assert_eq!(count(&mut connection), 100);
    let told = connection.unasked.iter().any(|message| {
        matches!(message, Message::Error(error) if error.code.to_string().contains("no such group"))
    });
    assert!(told, "{:?}", connection.unasked);
}

/// Requests that are wrong in one way each.
fn wrong() -> Vec<Message> {
    let flow = |fields: &[F], instructions: Vec<Instruction>| {
        let matching = matching(fields.iter().cloned());
        Message::FlowMod(FlowMod::add(TableId(0), 1, matching, instructions))
    };
    let acts = |fields: &[F], action: Action| flow(fields, apply([action]));
    let bucket = || punctual_openflow::Bucket::new(vec![out(1)]);
    let group = |kind, buckets| Message::GroupMod(GroupMod::add(kind, GroupId(50), buckets));
    let ip = [F::EthType(ETH_IPV4)];
    let mut both = MeterMod::drop_above(MeterId(9), 1, 1);
    both.flags = MeterFlags::KBPS | MeterFlags::PKTPS;
    let mut none = MeterMod::drop_above(MeterId(9), 1, 1);
    none.meter = MeterId(0);
    let mut zero = MeterMod::drop_above(MeterId(9), 0, 1);
    zero.bands = vec![MeterBand::Drop { rate: 0, burst: 1 }];
    let modified = |mut change: MeterMod| {
        change.command = punctual_openflow::MeterCommand::Modify;
        Message::MeterMod(change)
    };
    let changed = |mut change: GroupMod| {
        change.command = punctual_openflow::GroupCommand::Modify;
        Message::GroupMod(change)
    };
    let indirect = GroupMod::add(GroupType::Indirect, GroupId(51), vec![bucket()]);
    let mut high = GroupMod::delete(GroupId(0xffff_ff01));
    high.command = punctual_openflow::GroupCommand::Add;
    let watched = punctual_openflow::Bucket::watching(PortNo(1), vec![out(1)]);
    vec![
        acts(&[], Action::Group(GroupId(99))),
        acts(&[], Action::output(PortNo::ANY)),
        acts(&[], Action::output(PortNo(0xffff_ff01))),
        acts(&[], Action::SetField(F::IpDscp(1))),
        acts(&ip, Action::SetField(F::UdpDst(1.into()))),
        acts(&ip, Action::SetField(F::VlanPcp(1))),
        acts(&ip, Action::SetField(F::IpDscp(64))),
        acts(&[], Action::DecNwTtl),
        acts(&[], Action::PopVlan),
        acts(&[], Action::PushVlan(0x0800)),
        flow(&[], vec![Instruction::GotoTable(TableId(0))]),
        flow(&[], vec![Instruction::Meter(MeterId(99))]),
        group(GroupType::Indirect, vec![bucket(), bucket()]),
        group(GroupType::FastFailover, vec![bucket()]),
        group(GroupType::All, vec![watched]),
        group(
            GroupType::All,
            vec![punctual_openflow::Bucket::weighted(1, vec![out(1)])],
        ),
        Message::GroupMod(high),
        changed(indirect),
        Message::GroupMod(groups().remove(0)),
        Message::MeterMod(meters().remove(0)),
        modified(MeterMod::drop_above(MeterId(77), 1, 1)),
        Message::MeterMod(both),
        Message::MeterMod(none),
        Message::MeterMod(zero),
    ]
}

#[test]
fn the_fake_refuses_as_a_live_switch_does() {
    let Some((_ovs, mut connection)) = switch() else {
        return;
    };
    let zero = punctual_model::Nanos(0);
    let mut fake = fake::Switch::new(DATAPATH, (1..=4).map(PortNo), zero);
    let setup: Vec<_> = changes();
    let mut overlapping = FlowMod::add(TableId(9), 5, Match::any(), Vec::new());
    let mut all = setup;
    all.push(Message::FlowMod(overlapping.clone()));
    all.extend(wrong());
    overlapping.matching = matching([F::InPort(PortNo(1))]);
    overlapping.flags = FlowFlags::CHECK_OVERLAP;
    all.push(Message::FlowMod(overlapping));
    let live = connection.apply(all.clone());
    let mut faked = Vec::new();
    for (number, message) in all.iter().enumerate() {
        for answer in fake.handle(&Envelope::new(Xid(1), message.clone()), zero) {
            if let Message::Error(error) = answer.message {
                faked.push((number, error.code));
            }
        }
    }
    let mut differences = Vec::new();
    for (number, message) in all.iter().enumerate() {
        let of = |list: &[(usize, ErrorCode)]| {
            let found = list.iter().find(|(refused, _)| *refused == number);
            found.map(|(_, code)| *code)
        };
        if of(&faked) != of(&live) {
            differences.push((message, of(&faked), of(&live)));
        }
    }
    assert!(differences.is_empty(), "fake and live: {differences:#?}");
    assert_eq!(live.len(), wrong().len() + 1);
    let overlap = ErrorCode::FlowModFailed(FlowModFailed::Overlap);
    assert_eq!(live.last().unwrap().1, overlap);
}
