//! What a packet meets in a switch.

use punctual_model::Nanos;

use super::example::{DESTINATION, arp, v4};
use super::{Emission, Limits, Switch};
use crate::error_code::{BadRequest, BundleFailed, ErrorCode, FlowModFailed, RoleRequestFailed};
use crate::multipart::{Assembly, FlowStats, FlowStatsRequest};
use crate::{
    Action, Bucket, BundleAdd, BundleControl, BundleControlType, BundleFlags, BundleId, Cookie,
    DatapathId, ETH_ARP, ETH_IPV4, Envelope, FlowFlags, FlowMod, FlowRemovedReason, GroupId,
    GroupMod, GroupType, IP_UDP, Instruction, Mac, Masked, Match, Message, MeterId, MeterMod,
    MultipartBody, MultipartRequest, OxmField as F, PacketInReason, PacketOut, PortNo, QueueId,
    Role, RoleMessage, TableId, VLAN_PRESENT, Xid, apply,
};

const ZERO: Nanos = Nanos(0);

fn seconds(n: u64) -> Nanos {
    Nanos::from_secs(n)
}

/// Ports 1 to 4, each with queues 0 to 7.
fn switch() -> Switch {
    let mut switch = Switch::new(DatapathId(7), [], ZERO);
    for port in 1..=4 {
        switch.add_port(PortNo(port), (0..8).map(QueueId), ZERO);
    }
    switch.take_messages();
    switch
}

fn tell(switch: &mut Switch, message: Message, now: Nanos) -> Vec<Message> {
    let said = switch.handle(&Envelope::new(Xid(9), message), now);
    said.into_iter().map(|envelope| envelope.message).collect()
}

/// Gives the switch changes that it takes.
fn change(switch: &mut Switch, changes: impl IntoIterator<Item = Message>) {
    for change in changes {
        assert_eq!(tell(switch, change, ZERO), []);
    }
}

fn refusal(said: &[Message]) -> Option<ErrorCode> {
    match said {
        [Message::Error(error)] => Some(error.code),
        _ => None,
    }
}

fn matching(fields: impl IntoIterator<Item = F>) -> Match {
    Match::new(fields).unwrap()
}

fn flow(table: u8, priority: u16, fields: &[F], instructions: Vec<Instruction>) -> Message {
    let matching = matching(fields.iter().cloned());
    Message::FlowMod(FlowMod::add(
        TableId(table),
        priority,
        matching,
        instructions,
    ))
}

fn out(port: u32) -> Action {
    Action::output(PortNo(port))
}

fn group(kind: GroupType, id: u32, buckets: Vec<Bucket>) -> Message {
    Message::GroupMod(GroupMod::add(kind, GroupId(id), buckets))
}

fn ports(emissions: &[Emission]) -> Vec<u32> {
    emissions.iter().map(|emission| emission.port.0).collect()
}

/// Where a UDP packet that comes in by port 1 leaves.
fn leaves_by(switch: &mut Switch) -> Vec<u32> {
    ports(&switch.packet(PortNo(1), &v4(IP_UDP, b"x"), ZERO))
}

fn flows(switch: &mut Switch, now: Nanos) -> Vec<FlowStats> {
    let request = MultipartRequest::Flow(FlowStatsRequest::all());
    let mut assembly = Assembly::new(1, 1000);
    for message in tell(switch, Message::MultipartRequest(request), now) {
        let Message::MultipartReply(part) = message else {
            panic!("{message:?}");
        };
        match assembly.push(Xid(9), part).unwrap() {
            Some(MultipartBody::Flow(flows)) => return flows,
            Some(other) => panic!("{other:?}"),
            None => {}
        }
    }
    panic!("the answer has no end")
}

#[test]
fn the_highest_priority_that_applies_decides() {
    let mut switch = switch();
    assert_eq!(leaves_by(&mut switch), [0; 0]);
    let net = Masked::network([10, 0, 0, 0].into(), 8);
    change(
        &mut switch,
        [
            flow(0, 1, &[], apply([out(2)])),
            flow(0, 9, &[F::EthType(ETH_ARP)], apply([out(4)])),
            flow(0, 5, &[F::Ipv4Dst(net)], apply([out(3), out(1)])),
        ],
    );
    assert_eq!(leaves_by(&mut switch), [3]);
    assert_eq!(ports(&switch.packet(PortNo(2), &arp(), ZERO)), [4]);
    let six = super::example::v6(IP_UDP, b"x");
    assert_eq!(ports(&switch.packet(PortNo(1), &six, ZERO)), [2]);
    let counts: Vec<_> = flows(&mut switch, seconds(3))
        .iter()
        .map(|flow| (flow.priority, flow.packets, flow.duration.seconds))
        .collect();
    assert_eq!(counts, [(9, 1, 3), (5, 1, 3), (1, 1, 3)]);
}

#[test]
fn marks_and_queues_are_those_of_the_actions_before() {
    let mut switch = switch();
    let actions = [
        Action::SetField(F::IpDscp(40)),
        out(2),
        Action::SetQueue(QueueId(5)),
        Action::PushVlan(0x8100),
        Action::SetField(F::VlanVid((VLAN_PRESENT | 7).into())),
        Action::SetField(F::VlanPcp(5)),
        out(3),
    ];
    change(
        &mut switch,
        [flow(0, 1, &[F::EthType(ETH_IPV4)], apply(actions))],
    );
    let sent = switch.packet(PortNo(1), &v4(IP_UDP, b"x"), ZERO);
    assert_eq!(ports(&sent), [2, 3]);
    assert_eq!(sent[0].queue, None);
    assert_eq!(sent[0].frame[15], 40 << 2);
    assert_eq!(sent[1].queue, Some(QueueId(5)));
    assert_eq!(sent[1].frame[12..16], [0x81, 0, 5 << 5, 7]);
    assert_eq!(sent[1].frame[19], 40 << 2);
}

#[test]
fn tables_hand_on_metadata_and_the_action_set() {
    let mut switch = switch();
    let first = vec![
        Instruction::WriteActions(vec![out(2)]),
        Instruction::WriteMetadata { value: 5, mask: 7 },
        Instruction::GotoTable(TableId(4)),
    ];
    let metadata = F::Metadata(Masked::with_mask(1, 1));
    let write = |actions: &[Action]| vec![Instruction::WriteActions(actions.to_vec())];
    change(
        &mut switch,
        [
            flow(0, 1, &[], first),
            flow(4, 2, std::slice::from_ref(&metadata), write(&[out(3)])),
        ],
    );
    assert_eq!(leaves_by(&mut switch), [3]);
    change(
        &mut switch,
        [flow(4, 2, std::slice::from_ref(&metadata), write(&[]))],
    );
    assert_eq!(leaves_by(&mut switch), [2]);
    change(
        &mut switch,
        [flow(4, 2, &[metadata], vec![Instruction::ClearActions])],
    );
    assert_eq!(leaves_by(&mut switch), [0; 0]);
}

#[test]
fn groups_copy_and_go_around_dead_ports() {
    let mut switch = switch();
    let to = Action::SetField(F::EthDst(Mac([2, 0, 0, 0, 0, 9]).into()));
    change(
        &mut switch,
        [
            group(
                GroupType::All,
                1,
                vec![Bucket::new(vec![out(2)]), Bucket::new(vec![out(3), to])],
            ),
            group(
                GroupType::FastFailover,
                2,
                vec![
                    Bucket::watching(PortNo(2), vec![out(2)]),
                    Bucket::watching(PortNo(3), vec![out(3)]),
                ],
            ),
            flow(0, 1, &[], apply([Action::Group(GroupId(1))])),
        ],
    );
    let sent = switch.packet(PortNo(1), &v4(IP_UDP, b"x"), ZERO);
    assert_eq!(ports(&sent), [2, 3]);
    assert_eq!(sent[0].frame[..6], DESTINATION.0);
    assert_eq!(sent[1].frame[..6], [2, 0, 0, 0, 0, 9]);

    change(
        &mut switch,
        [flow(0, 1, &[], apply([Action::Group(GroupId(2))]))],
    );
    assert_eq!(leaves_by(&mut switch), [2]);
    switch.set_link(PortNo(2), false);
    assert_eq!(leaves_by(&mut switch), [3]);
    switch.set_link(PortNo(3), false);
    assert_eq!(leaves_by(&mut switch), [0; 0]);
    switch.set_link(PortNo(2), true);
    assert_eq!(leaves_by(&mut switch), [2]);
    assert_eq!(switch.take_messages().len(), 3);

    // The entries that lead to a group go with it.
    change(
        &mut switch,
        [Message::GroupMod(GroupMod::delete(GroupId::ALL))],
    );
    assert_eq!(flows(&mut switch, ZERO), []);
}

#[test]
fn a_conversation_stays_in_its_bucket_and_weights_share() {
    let mut switch = switch();
    let buckets = vec![
        Bucket::weighted(3, vec![out(2)]),
        Bucket::weighted(1, vec![out(3)]),
        Bucket::weighted(0, vec![out(4)]),
    ];
    change(
        &mut switch,
        [
            group(GroupType::Select, 1, buckets),
            flow(0, 1, &[], apply([Action::Group(GroupId(1))])),
        ],
    );
    let mut count = [0; 5];
    for port in 0..400 {
        let (a, b) = ([10, 0, 0, 1].into(), [10, 0, 0, 2].into());
        let frame = super::example::v4_between(a, b, IP_UDP, (port, 1883), b"x");
        let first = ports(&switch.packet(PortNo(1), &frame, ZERO));
        assert_eq!(ports(&switch.packet(PortNo(1), &frame, ZERO)), first);
        count[first[0] as usize] += 1;
    }
    assert!(count[4] == 0 && (240..360).contains(&count[2]), "{count:?}");
}

#[test]
fn meters_drop_what_is_above_their_rate() {
    let mut switch = switch();
    // 8 kbit/s and 8 kbit at once: one kilobyte a second.
    let metered = vec![
        Instruction::Meter(MeterId(1)),
        Instruction::ApplyActions(vec![out(2)]),
    ];
    change(
        &mut switch,
        [
            Message::MeterMod(MeterMod::drop_above(MeterId(1), 8, 8)),
            flow(0, 1, &[], metered),
        ],
    );
    let frame = v4(IP_UDP, &[0; 458]);
    assert_eq!(frame.len(), 500);
    let passed = |switch: &mut Switch, now, packets: usize| {
        let sent = (0..packets).map(|_| switch.packet(PortNo(1), &frame, now).len());
        sent.sum::<usize>()
    };
    assert_eq!(passed(&mut switch, ZERO, 5), 2);
    assert_eq!(passed(&mut switch, seconds(1), 5), 2);
    assert_eq!(passed(&mut switch, seconds(9), 5), 2);
    change(
        &mut switch,
        [Message::MeterMod(MeterMod::delete(MeterId(1)))],
    );
    assert_eq!(flows(&mut switch, seconds(9)), []);
}

#[test]
fn entries_end_when_their_time_is_over_and_say_so() {
    let mut switch = switch();
    let entry = |priority, idle_timeout, hard_timeout| {
        Message::FlowMod(FlowMod {
            idle_timeout,
            hard_timeout,
            flags: FlowFlags::SEND_FLOW_REMOVED,
            ..FlowMod::add(TableId(0), priority, Match::any(), apply([out(2)]))
        })
    };
    change(&mut switch, [entry(2, 10, 0), entry(1, 0, 30)]);
    assert_eq!(switch.next_end(), Some(seconds(10)));
    let frame = v4(IP_UDP, b"x");
    assert_eq!(switch.packet(PortNo(1), &frame, seconds(8)).len(), 1);
    assert_eq!(switch.next_end(), Some(seconds(18)));
    switch.advance(seconds(17));
    assert_eq!(switch.take_messages(), []);
    switch.advance(seconds(40));
    let reasons: Vec<_> = switch
        .take_messages()
        .into_iter()
        .map(|envelope| match envelope.message {
            Message::FlowRemoved(gone) => (gone.priority, gone.reason, gone.packets),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(
        reasons,
        [
            (2, FlowRemovedReason::IdleTimeout, 1),
            (1, FlowRemovedReason::HardTimeout, 0)
        ]
    );
    assert_eq!(switch.next_end(), None);
}

#[test]
fn deletes_and_changes_take_what_they_mean() {
    let mut switch = switch();
    let tcp = [F::EthType(ETH_IPV4), F::TcpDst(1883.into())];
    change(
        &mut switch,
        [
            flow(0, 1, &[], apply([out(2)])),
            flow(0, 2, &[F::EthType(ETH_IPV4)], apply([out(3)])),
            flow(0, 3, &tcp, apply([out(3)])),
            flow(1, 3, &tcp, apply([out(3)])),
        ],
    );
    let left = |switch: &mut Switch| {
        let flows = flows(switch, ZERO);
        let found = flows.iter().map(|flow| (flow.table.0, flow.priority));
        found.collect::<Vec<_>>()
    };
    let ip = || matching([F::EthType(ETH_IPV4)]);
    let mut to_port = FlowMod::delete(TableId::ALL, Match::any());
    to_port.out_port = PortNo(2);
    let mut marked = FlowMod::delete(TableId::ALL, Match::any()).with_cookie(Cookie(5));
    marked.cookie_mask = u64::MAX;
    change(&mut switch, [Message::FlowMod(marked)]);
    assert_eq!(left(&mut switch).len(), 4);
    change(
        &mut switch,
        [Message::FlowMod(FlowMod::delete_strict(
            TableId(0),
            3,
            ip(),
        ))],
    );
    assert_eq!(left(&mut switch).len(), 4);
    change(
        &mut switch,
        [Message::FlowMod(FlowMod::delete(TableId(0), ip()))],
    );
    assert_eq!(left(&mut switch), [(0, 1), (1, 3)]);
    change(&mut switch, [Message::FlowMod(to_port)]);
    assert_eq!(left(&mut switch), [(1, 3)]);
}

#[test]
fn a_full_table_and_overlaps_are_refused() {
    let limits = Limits {
        flows: 2,
        ..Limits::default()
    };
    let mut switch = switch().with_limits(limits);
    let port = |n| [F::InPort(PortNo(n))];
    change(&mut switch, [flow(0, 1, &port(1), Vec::new())]);
    let mut overlapping = FlowMod::add(TableId(0), 1, Match::any(), Vec::new());
    overlapping.flags = FlowFlags::CHECK_OVERLAP;
    let said = tell(&mut switch, Message::FlowMod(overlapping), ZERO);
    assert_eq!(refusal(&said), Some(FlowModFailed::Overlap.into()));
    change(
        &mut switch,
        [
            flow(0, 1, &port(2), Vec::new()),
            flow(0, 1, &port(2), Vec::new()),
        ],
    );
    let said = tell(&mut switch, flow(0, 1, &port(3), Vec::new()), ZERO);
    assert_eq!(refusal(&said), Some(FlowModFailed::TableFull.into()));
    assert_eq!(flows(&mut switch, ZERO).len(), 2);
}

#[test]
fn a_bundle_happens_wholly_or_not_at_all() {
    let mut switch = switch();
    let flags = BundleFlags::ATOMIC;
    let control = |kind| Message::BundleControl(BundleControl::new(BundleId(1), kind, flags));
    let add = |message| {
        Message::BundleAdd(BundleAdd {
            bundle: BundleId(1),
            flags,
            message: Box::new(Envelope::new(Xid(9), message)),
            properties: Vec::new(),
        })
    };
    let unknown = apply([Action::Group(GroupId(99))]);
    for (last, count) in [(unknown, 0), (apply([out(2)]), 2)] {
        let said = tell(&mut switch, control(BundleControlType::OpenRequest), ZERO);
        assert_eq!(said, [control(BundleControlType::OpenReply)]);
        change(
            &mut switch,
            [
                add(flow(0, 1, &[], apply([out(2)]))),
                add(flow(0, 2, &[], last)),
            ],
        );
        assert_eq!(flows(&mut switch, ZERO), []);
        let said = tell(&mut switch, control(BundleControlType::CommitRequest), ZERO);
        assert_eq!(flows(&mut switch, ZERO).len(), count);
        if count > 0 {
            assert_eq!(said, [control(BundleControlType::CommitReply)]);
        } else {
            assert_eq!(said.len(), 2);
            let failed = refusal(&said[1..]);
            assert_eq!(failed, Some(BundleFailed::MsgFailed.into()));
        }
    }
}

#[test]
fn a_slave_may_only_look() {
    let mut switch = switch();
    let role = |role, generation| Message::RoleRequest(RoleMessage { role, generation });
    assert!(matches!(
        tell(&mut switch, role(Role::Slave, 5), ZERO)[..],
        [Message::RoleReply(RoleMessage {
            role: Role::Slave,
            generation: 5
        })]
    ));
    let said = tell(&mut switch, flow(0, 1, &[], Vec::new()), ZERO);
    assert_eq!(refusal(&said), Some(BadRequest::IsSlave.into()));
    switch.set_link(PortNo(1), false);
    assert_eq!(switch.take_messages().len(), 1);
    let said = tell(&mut switch, role(Role::Master, 4), ZERO);
    assert_eq!(refusal(&said), Some(RoleRequestFailed::Stale.into()));
    tell(&mut switch, role(Role::Master, 6), ZERO);
    change(&mut switch, [flow(0, 1, &[], Vec::new())]);
}

#[test]
fn packets_come_from_and_go_to_the_controller() {
    let mut switch = switch();
    let entries = [
        flow(0, 0, &[], apply([Action::to_controller()])),
        flow(
            0,
            5,
            &[F::EthType(ETH_IPV4)],
            apply([Action::DecNwTtl, out(2)]),
        ),
    ];
    change(&mut switch, entries);
    let mut dying = v4(IP_UDP, b"x");
    dying[22] = 1;
    for (frame, reason) in [
        (arp(), PacketInReason::NoMatch),
        (dying, PacketInReason::InvalidTtl),
    ] {
        assert_eq!(switch.packet(PortNo(3), &frame, ZERO), []);
        let said = switch.take_messages();
        let [
            Envelope {
                message: Message::PacketIn(packet),
                ..
            },
        ] = &said[..]
        else {
            panic!("{said:?}");
        };
        assert_eq!((packet.reason, &packet.data), (reason, &frame));
        assert_eq!(packet.matching.in_port(), Some(PortNo(3)));
    }
    let all = PacketOut::new(vec![Action::output(PortNo::ALL)], arp());
    change(&mut switch, [Message::PacketOut(all)]);
    assert_eq!(ports(&switch.take_emissions()), [1, 2, 3, 4]);
    let tables = PacketOut::new(vec![Action::output(PortNo::TABLE)], v4(IP_UDP, b"x"));
    change(&mut switch, [Message::PacketOut(tables)]);
    let sent = switch.take_emissions();
    assert_eq!(ports(&sent), [2]);
    assert_eq!(sent[0].frame[22], 63);
}

#[test]
fn long_answers_come_in_parts() {
    let mut switch = switch();
    change(
        &mut switch,
        (0..1000).map(|priority| flow(0, priority, &[], apply([out(2)]))),
    );
    let request = MultipartRequest::Flow(FlowStatsRequest::all());
    let parts = tell(&mut switch, Message::MultipartRequest(request), ZERO);
    assert!(parts.len() > 3, "{}", parts.len());
    for part in parts {
        Envelope::new(Xid(1), part).to_bytes().unwrap();
    }
    assert_eq!(flows(&mut switch, ZERO).len(), 1000);
}
