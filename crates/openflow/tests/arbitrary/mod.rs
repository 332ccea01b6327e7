//! Messages with any values, for property tests.

use std::net::{Ipv4Addr, Ipv6Addr};

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use punctual_openflow::error_code::ErrorCode;
use punctual_openflow::multipart::*;
use punctual_openflow::*;

use crate::compatible;

fn masked<T: Clone + std::fmt::Debug>(
    value: impl Strategy<Value = T> + Clone,
) -> impl Strategy<Value = Masked<T>> {
    (value.clone(), option::of(value)).prop_map(|(value, mask)| Masked { value, mask })
}

fn mac() -> impl Strategy<Value = Mac> + Clone {
    any::<[u8; 6]>().prop_map(Mac)
}

fn v4() -> impl Strategy<Value = Ipv4Addr> + Clone {
    any::<u32>().prop_map(Ipv4Addr::from)
}

fn v6() -> impl Strategy<Value = Ipv6Addr> + Clone {
    any::<u128>().prop_map(Ipv6Addr::from)
}

fn port() -> impl Strategy<Value = PortNo> {
    prop_oneof![
        1..20_u32,
        any::<u32>(),
        Just(PortNo::CONTROLLER.0),
        Just(PortNo::ANY.0)
    ]
    .prop_map(PortNo)
}

fn bytes(most: usize) -> impl Strategy<Value = Vec<u8>> {
    vec(any::<u8>(), 0..=most)
}

fn other_field() -> impl Strategy<Value = OxmField> {
    let parts = (any::<u16>(), 0..128_u8, any::<bool>(), bytes(40));
    parts.prop_filter_map(
        "the basic class has types",
        |(class, number, masked, data)| {
            OtherField::new(class, number, masked, data).map(OxmField::Other)
        },
    )
}

fn field() -> impl Strategy<Value = OxmField> {
    use OxmField as F;
    let link = prop_oneof![
        port().prop_map(F::InPort),
        port().prop_map(F::InPhyPort),
        masked(any::<u64>()).prop_map(F::Metadata),
        masked(mac()).prop_map(F::EthDst),
        masked(mac()).prop_map(F::EthSrc),
        any::<u16>().prop_map(F::EthType),
        masked(any::<u16>()).prop_map(F::VlanVid),
        any::<u8>().prop_map(F::VlanPcp),
        any::<u8>().prop_map(F::IpDscp),
        any::<u8>().prop_map(F::IpEcn),
    ];
    let network = prop_oneof![
        any::<u8>().prop_map(F::IpProto),
        masked(v4()).prop_map(F::Ipv4Src),
        masked(v4()).prop_map(F::Ipv4Dst),
        any::<u8>().prop_map(F::Icmpv4Type),
        any::<u8>().prop_map(F::Icmpv4Code),
        any::<u16>().prop_map(F::ArpOp),
        masked(v4()).prop_map(F::ArpSpa),
        masked(v4()).prop_map(F::ArpTpa),
        masked(mac()).prop_map(F::ArpSha),
        masked(mac()).prop_map(F::ArpTha),
    ];
    let six = prop_oneof![
        masked(v6()).prop_map(F::Ipv6Src),
        masked(v6()).prop_map(F::Ipv6Dst),
        masked(any::<u32>()).prop_map(F::Ipv6Flabel),
        any::<u8>().prop_map(F::Icmpv6Type),
        any::<u8>().prop_map(F::Icmpv6Code),
        v6().prop_map(F::Ipv6NdTarget),
        mac().prop_map(F::Ipv6NdSll),
        mac().prop_map(F::Ipv6NdTll),
    ];
    let rest = prop_oneof![
        masked(any::<u16>()).prop_map(F::TcpSrc),
        masked(any::<u16>()).prop_map(F::TcpDst),
        masked(any::<u16>()).prop_map(F::UdpSrc),
        masked(any::<u16>()).prop_map(F::UdpDst),
        masked(any::<u16>()).prop_map(F::SctpSrc),
        masked(any::<u16>()).prop_map(F::SctpDst),
        any::<u32>().prop_map(F::MplsLabel),
        any::<u8>().prop_map(F::MplsTc),
        any::<u8>().prop_map(F::MplsBos),
        masked(any::<u64>()).prop_map(F::TunnelId),
    ];
    prop_oneof![10 => link, 10 => network, 8 => six, 10 => rest, 2 => other_field()]
}

fn matching() -> impl Strategy<Value = Match> {
    compatible::matching(field(), 6)
}

fn action() -> impl Strategy<Value = Action> {
    prop_oneof![
        (port(), any::<u16>()).prop_map(|(port, max_len)| Action::Output { port, max_len }),
        Just(Action::CopyTtlOut),
        Just(Action::CopyTtlIn),
        any::<u8>().prop_map(Action::SetMplsTtl),
        Just(Action::DecMplsTtl),
        any::<u16>().prop_map(Action::PushVlan),
        Just(Action::PopVlan),
        any::<u32>().prop_map(|queue| Action::SetQueue(QueueId(queue))),
        any::<u32>().prop_map(|group| Action::Group(GroupId(group))),
        any::<u8>().prop_map(Action::SetNwTtl),
        Just(Action::DecNwTtl),
        field()
            .prop_filter("set-field takes no mask", |field| !field.is_masked())
            .prop_map(Action::SetField),
        (26..60_u16, any::<[u8; 12]>()).prop_map(|(kind, body)| Action::Other {
            kind,
            body: body.to_vec()
        }),
    ]
}

fn actions() -> impl Strategy<Value = Vec<Action>> {
    vec(action(), 0..5)
}

fn instruction() -> impl Strategy<Value = Instruction> {
    prop_oneof![
        any::<u8>().prop_map(|table| Instruction::GotoTable(TableId(table))),
        any::<(u64, u64)>().prop_map(|(value, mask)| Instruction::WriteMetadata { value, mask }),
        actions().prop_map(Instruction::WriteActions),
        actions().prop_map(Instruction::ApplyActions),
        Just(Instruction::ClearActions),
        any::<u32>().prop_map(|meter| Instruction::Meter(MeterId(meter))),
        (7..u16::MAX, any::<[u8; 4]>()).prop_map(|(kind, body)| Instruction::Other {
            kind,
            body: body.to_vec()
        }),
    ]
}

fn flow_mod() -> impl Strategy<Value = FlowMod> {
    let command = prop_oneof![
        Just(FlowCommand::Add),
        Just(FlowCommand::Modify),
        Just(FlowCommand::ModifyStrict),
        Just(FlowCommand::Delete),
        Just(FlowCommand::DeleteStrict)
    ];
    (
        any::<(u64, u64, u8, u16, u16, u16, u32, u32, u16)>(),
        command,
        port(),
        matching(),
        vec(instruction(), 0..4),
    )
        .prop_map(|(n, command, out_port, matching, instructions)| FlowMod {
            cookie: Cookie(n.0),
            cookie_mask: n.1,
            table: TableId(n.2),
            command,
            idle_timeout: n.3,
            hard_timeout: n.4,
            priority: n.5,
            buffer: BufferId(n.6),
            out_port,
            out_group: GroupId(n.7),
            flags: FlowFlags::from_bits_retain(n.8),
            matching,
            instructions,
        })
}

fn bucket() -> impl Strategy<Value = Bucket> {
    (any::<u16>(), port(), any::<u32>(), actions()).prop_map(
        |(weight, watch_port, watch_group, actions)| Bucket {
            weight,
            watch_port,
            watch_group: GroupId(watch_group),
            actions,
        },
    )
}

fn group_type() -> impl Strategy<Value = GroupType> {
    prop_oneof![
        Just(GroupType::All),
        Just(GroupType::Select),
        Just(GroupType::Indirect),
        Just(GroupType::FastFailover)
    ]
}

fn group_mod() -> impl Strategy<Value = GroupMod> {
    let command = prop_oneof![
        Just(GroupCommand::Add),
        Just(GroupCommand::Modify),
        Just(GroupCommand::Delete)
    ];
    (command, group_type(), any::<u32>(), vec(bucket(), 0..4)).prop_map(
        |(command, kind, group, buckets)| GroupMod {
            command,
            kind,
            group: GroupId(group),
            buckets,
        },
    )
}

fn band() -> impl Strategy<Value = MeterBand> {
    (any::<(u32, u32)>(), 0..3, any::<u32>(), bytes(20)).prop_map(
        |((rate, burst), kind, number, data)| match kind {
            0 => MeterBand::Drop { rate, burst },
            1 => MeterBand::DscpRemark {
                rate,
                burst,
                levels: number as u8,
            },
            _ => MeterBand::Experimenter {
                rate,
                burst,
                experimenter: number,
                data,
            },
        },
    )
}

fn meter_mod() -> impl Strategy<Value = MeterMod> {
    let command = prop_oneof![
        Just(MeterCommand::Add),
        Just(MeterCommand::Modify),
        Just(MeterCommand::Delete)
    ];
    (command, any::<(u16, u32)>(), vec(band(), 0..4)).prop_map(|(command, n, bands)| MeterMod {
        command,
        flags: MeterFlags::from_bits_retain(n.0),
        meter: MeterId(n.1),
        bands,
    })
}

fn port_desc() -> impl Strategy<Value = PortDesc> {
    (port(), mac(), any::<[u8; 16]>(), any::<[u32; 8]>()).prop_map(|(port, mac, name, n)| {
        PortDesc {
            port,
            mac,
            name: Text(name),
            config: PortConfig::from_bits_retain(n[0]),
            state: PortState::from_bits_retain(n[1]),
            current: PortFeatures::from_bits_retain(n[2]),
            advertised: PortFeatures::from_bits_retain(n[3]),
            supported: PortFeatures::from_bits_retain(n[4]),
            peer: PortFeatures::from_bits_retain(n[5]),
            current_kbps: n[6],
            max_kbps: n[7],
        }
    })
}

fn elapsed() -> impl Strategy<Value = Elapsed> {
    any::<(u32, u32)>().prop_map(|(seconds, nanos)| Elapsed { seconds, nanos })
}

fn hello() -> impl Strategy<Value = Hello> {
    let element = prop_oneof![
        vec(any::<u32>(), 0..3).prop_map(HelloElement::VersionBitmap),
        (2..u16::MAX, bytes(9)).prop_map(|(kind, data)| HelloElement::Other { kind, data }),
    ];
    (any::<u8>(), vec(element, 0..3)).prop_map(|(version, elements)| Hello { version, elements })
}

fn error() -> impl Strategy<Value = ErrorReport> {
    let code = (0..16_u16, 0..20_u16).prop_map(|(kind, code)| ErrorCode::Other { kind, code });
    // Codes that have a name come back with it: those go through the unit test beside them.
    let code = code.prop_filter("has no name", |code| {
        let ErrorCode::Other { kind, code } = code else {
            return false;
        };
        *kind > 13 || *code > 15
    });
    (code, bytes(70)).prop_map(|(code, data)| ErrorReport { code, data })
}

fn packets() -> impl Strategy<Value = Message> {
    let reason = prop_oneof![
        Just(PacketInReason::NoMatch),
        Just(PacketInReason::Action),
        Just(PacketInReason::InvalidTtl)
    ];
    let packet_in = (any::<(u32, u16, u8, u64)>(), reason, matching(), bytes(80)).prop_map(
        |(n, reason, matching, data)| {
            Message::PacketIn(PacketIn {
                buffer: BufferId(n.0),
                total_len: n.1,
                reason,
                table: TableId(n.2),
                cookie: Cookie(n.3),
                matching,
                data,
            })
        },
    );
    let packet_out = (any::<u32>(), port(), actions(), bytes(80)).prop_map(
        |(buffer, in_port, actions, data)| {
            Message::PacketOut(PacketOut {
                buffer: BufferId(buffer),
                in_port,
                actions,
                data,
            })
        },
    );
    let reason = prop_oneof![
        Just(FlowRemovedReason::IdleTimeout),
        Just(FlowRemovedReason::HardTimeout),
        Just(FlowRemovedReason::Delete),
        Just(FlowRemovedReason::GroupDelete)
    ];
    let removed = (
        any::<(u64, u16, u8, u16, u16, u64, u64)>(),
        reason,
        elapsed(),
        matching(),
    )
        .prop_map(|(n, reason, duration, matching)| {
            Message::FlowRemoved(FlowRemoved {
                cookie: Cookie(n.0),
                priority: n.1,
                reason,
                table: TableId(n.2),
                duration,
                idle_timeout: n.3,
                hard_timeout: n.4,
                packets: n.5,
                bytes: n.6,
                matching,
            })
        });
    prop_oneof![packet_in, packet_out, removed]
}

fn control() -> impl Strategy<Value = Message> {
    use Message as M;
    let role = prop_oneof![
        Just(Role::NoChange),
        Just(Role::Equal),
        Just(Role::Master),
        Just(Role::Slave)
    ];
    let role = (role, any::<u64>()).prop_map(|(role, generation)| RoleMessage { role, generation });
    let sets = any::<[[u32; 2]; 3]>().prop_map(|n| AsyncConfig {
        packet_in: n[0],
        port_status: n[1],
        flow_removed: n[2],
    });
    let config = any::<(u16, u16)>().prop_map(|(flags, miss_send_len)| SwitchConfig {
        flags,
        miss_send_len,
    });
    let features = any::<(u64, u32, u8, u8, u32, u32)>().prop_map(|n| Features {
        datapath: DatapathId(n.0),
        buffers: n.1,
        tables: n.2,
        auxiliary: n.3,
        capabilities: Capabilities::from_bits_retain(n.4),
        reserved: n.5,
    });
    let reason = prop_oneof![
        Just(PortReason::Add),
        Just(PortReason::Delete),
        Just(PortReason::Modify)
    ];
    let port_mod = (port(), mac(), any::<[u32; 3]>()).prop_map(|(port, mac, n)| PortMod {
        port,
        mac,
        config: PortConfig::from_bits_retain(n[0]),
        mask: PortConfig::from_bits_retain(n[1]),
        advertise: PortFeatures::from_bits_retain(n[2]),
    });
    let property = prop_oneof![
        any::<u16>().prop_map(QueueProperty::MinRate),
        any::<u16>().prop_map(QueueProperty::MaxRate),
        (3..u16::MAX, bytes(9)).prop_map(|(kind, data)| QueueProperty::Other { kind, data }),
    ];
    let queue =
        (any::<u32>(), port(), vec(property, 0..3)).prop_map(|(queue, port, properties)| {
            QueueDesc {
                queue: QueueId(queue),
                port,
                properties,
            }
        });
    let experimenter = (1..u32::MAX, any::<u32>(), bytes(30)).prop_filter_map(
        "bundles have a type",
        |(experimenter, kind, data)| {
            (experimenter != error_code::ONF).then_some(Experimenter {
                experimenter,
                kind,
                data,
            })
        },
    );
    let plain = prop_oneof![
        Just(M::FeaturesRequest),
        Just(M::GetConfigRequest),
        Just(M::BarrierRequest),
        Just(M::BarrierReply),
        Just(M::GetAsyncRequest)
    ];
    prop_oneof![
        4 => plain,
        1 => hello().prop_map(M::Hello),
        1 => error().prop_map(M::Error),
        1 => bytes(30).prop_map(M::EchoRequest),
        1 => bytes(30).prop_map(M::EchoReply),
        1 => features.prop_map(M::FeaturesReply),
        1 => config.clone().prop_map(M::GetConfigReply),
        1 => config.prop_map(M::SetConfig),
        1 => (reason, port_desc())
            .prop_map(|(reason, port)| M::PortStatus(PortStatus { reason, port })),
        1 => port_mod.prop_map(M::PortMod),
        1 => any::<(u8, u32)>().prop_map(|(table, config)| M::TableMod(TableMod {
            table: TableId(table),
            config,
        })),
        1 => port().prop_map(|port| M::QueueConfigRequest(QueueConfigRequest { port })),
        1 => (port(), vec(queue, 0..3))
            .prop_map(|(port, queues)| M::QueueConfigReply(QueueConfigReply { port, queues })),
        1 => role.clone().prop_map(M::RoleRequest),
        1 => role.prop_map(M::RoleReply),
        1 => sets.clone().prop_map(M::GetAsyncReply),
        1 => sets.prop_map(M::SetAsync),
        1 => experimenter.prop_map(M::Experimenter),
    ]
}

fn request() -> impl Strategy<Value = Message> {
    use MultipartRequest as R;
    let flows = (any::<(u8, u32, u64, u64)>(), port(), matching())
        .prop_map(|(n, out_port, matching)| FlowStatsRequest {
            table: TableId(n.0),
            out_port,
            out_group: GroupId(n.1),
            cookie: Cookie(n.2),
            cookie_mask: n.3,
            matching,
        })
        .boxed();
    prop_oneof![
        Just(R::Desc),
        flows.clone().prop_map(R::Flow),
        flows.prop_map(R::Aggregate),
        Just(R::Table),
        port().prop_map(R::PortStats),
        (port(), any::<u32>()).prop_map(|(port, queue)| R::Queue(QueueStatsRequest {
            port,
            queue: QueueId(queue),
        })),
        any::<u32>().prop_map(|group| R::Group(GroupId(group))),
        Just(R::GroupDesc),
        Just(R::GroupFeatures),
        any::<u32>().prop_map(|meter| R::Meter(MeterId(meter))),
        any::<u32>().prop_map(|meter| R::MeterConfig(MeterId(meter))),
        Just(R::MeterFeatures),
        bytes(30).prop_map(R::TableFeatures),
        Just(R::PortDesc),
        (any::<(u32, u32)>(), bytes(30)).prop_map(|(n, data)| {
            R::Experimenter(MultipartExperimenter {
                experimenter: n.0,
                kind: n.1,
                data,
            })
        }),
    ]
    .prop_map(Message::MultipartRequest)
}

fn flow_stats() -> impl Strategy<Value = FlowStats> {
    (
        any::<(u8, u16, u16, u16, u16, u64, u64, u64)>(),
        elapsed(),
        matching(),
        vec(instruction(), 0..3),
    )
        .prop_map(|(n, duration, matching, instructions)| FlowStats {
            table: TableId(n.0),
            duration,
            priority: n.1,
            idle_timeout: n.2,
            hard_timeout: n.3,
            flags: FlowFlags::from_bits_retain(n.4),
            cookie: Cookie(n.5),
            packets: n.6,
            bytes: n.7,
            matching,
            instructions,
        })
}

#[expect(clippy::too_many_lines, reason = "one strategy for each reply")]
fn reply() -> impl Strategy<Value = Message> {
    use MultipartBody as B;
    let text = "[a-z]{0,31}";
    let desc = [text; 5].prop_map(|t| {
        B::Desc(Box::new(SwitchDesc {
            manufacturer: Text::new(&t[0]),
            hardware: Text::new(&t[1]),
            software: Text::new(&t[2]),
            serial: Text::new(&t[3]),
            datapath: Text::new(&t[4]),
        }))
    });
    let ports = (port(), any::<[u64; 12]>(), elapsed()).prop_map(|(port, n, duration)| PortStats {
        port,
        rx_packets: n[0],
        tx_packets: n[1],
        rx_bytes: n[2],
        tx_bytes: n[3],
        rx_dropped: n[4],
        tx_dropped: n[5],
        rx_errors: n[6],
        tx_errors: n[7],
        rx_frame_errors: n[8],
        rx_overruns: n[9],
        rx_crc_errors: n[10],
        collisions: n[11],
        duration,
    });
    let queues =
        (port(), any::<(u32, u64, u64, u64)>(), elapsed()).prop_map(|(port, n, duration)| {
            QueueStats {
                port,
                queue: QueueId(n.0),
                tx_bytes: n.1,
                tx_packets: n.2,
                tx_errors: n.3,
                duration,
            }
        });
    let pair = any::<(u64, u64)>();
    let groups = (any::<(u32, u32, u64, u64)>(), elapsed(), vec(pair, 0..4)).prop_map(
        |(n, duration, buckets)| GroupStats {
            group: GroupId(n.0),
            references: n.1,
            packets: n.2,
            bytes: n.3,
            duration,
            buckets: buckets
                .into_iter()
                .map(|(packets, bytes)| BucketStats { packets, bytes })
                .collect(),
        },
    );
    let descs =
        (group_type(), any::<u32>(), vec(bucket(), 0..3)).prop_map(|(kind, group, buckets)| {
            GroupDesc {
                kind,
                group: GroupId(group),
                buckets,
            }
        });
    let meters = (any::<(u32, u32, u64, u64)>(), elapsed(), vec(pair, 0..4)).prop_map(
        |(n, duration, bands)| MeterStats {
            meter: MeterId(n.0),
            flows: n.1,
            packets: n.2,
            bytes: n.3,
            duration,
            bands: bands
                .into_iter()
                .map(|(packets, bytes)| BandStats { packets, bytes })
                .collect(),
        },
    );
    let configs = (any::<(u16, u32)>(), vec(band(), 0..3)).prop_map(|(n, bands)| MeterConfig {
        flags: MeterFlags::from_bits_retain(n.0),
        meter: MeterId(n.1),
        bands,
    });
    let tables = any::<(u8, u32, u64, u64)>().prop_map(|n| TableStats {
        table: TableId(n.0),
        active: n.1,
        lookups: n.2,
        matched: n.3,
    });
    let body = prop_oneof![
        desc,
        vec(flow_stats(), 0..3).prop_map(B::Flow),
        any::<(u64, u64, u32)>().prop_map(|n| B::Aggregate(AggregateStats {
            packets: n.0,
            bytes: n.1,
            flows: n.2,
        })),
        vec(tables, 0..3).prop_map(B::Table),
        vec(ports, 0..3).prop_map(B::PortStats),
        vec(queues, 0..3).prop_map(B::Queue),
        vec(groups, 0..3).prop_map(B::Group),
        vec(descs, 0..3).prop_map(B::GroupDesc),
        any::<(u32, u32, [u32; 4], [u32; 4])>().prop_map(|n| B::GroupFeatures(GroupFeatures {
            types: n.0,
            capabilities: GroupCapabilities::from_bits_retain(n.1),
            max_groups: n.2,
            actions: n.3,
        })),
        vec(meters, 0..3).prop_map(B::Meter),
        vec(configs, 0..3).prop_map(B::MeterConfig),
        any::<(u32, u32, u32, u8, u8)>().prop_map(|n| B::MeterFeatures(MeterFeatures {
            max_meters: n.0,
            band_types: n.1,
            capabilities: n.2,
            max_bands: n.3,
            max_color: n.4,
        })),
        bytes(30).prop_map(B::TableFeatures),
        vec(port_desc(), 0..3).prop_map(B::PortDesc),
        (any::<(u32, u32)>(), bytes(30)).prop_map(|(n, data)| {
            B::Experimenter(MultipartExperimenter {
                experimenter: n.0,
                kind: n.1,
                data,
            })
        }),
    ];
    (any::<bool>(), body)
        .prop_map(|(more, body)| Message::MultipartReply(MultipartReply { more, body }))
}

fn change() -> impl Strategy<Value = Message> {
    prop_oneof![
        flow_mod().prop_map(Message::FlowMod),
        group_mod().prop_map(Message::GroupMod),
        meter_mod().prop_map(Message::MeterMod),
    ]
}

fn bundle() -> impl Strategy<Value = Message> {
    use BundleControlType as T;
    let kind = prop_oneof![
        Just(T::OpenRequest),
        Just(T::OpenReply),
        Just(T::CloseRequest),
        Just(T::CloseReply),
        Just(T::CommitRequest),
        Just(T::CommitReply),
        Just(T::DiscardRequest),
        Just(T::DiscardReply)
    ];
    let control = (any::<(u32, u16)>(), kind, bytes(16)).prop_map(|(n, kind, properties)| {
        Message::BundleControl(BundleControl {
            bundle: BundleId(n.0),
            kind,
            flags: BundleFlags::from_bits_retain(n.1),
            properties,
        })
    });
    let add =
        (any::<(u32, u16, u32)>(), change(), bytes(16)).prop_map(|(n, message, properties)| {
            Message::BundleAdd(BundleAdd {
                bundle: BundleId(n.0),
                flags: BundleFlags::from_bits_retain(n.1),
                message: Box::new(Envelope::new(Xid(n.2), message)),
                properties,
            })
        });
    prop_oneof![control, add]
}

/// Any message.
pub(crate) fn envelope() -> impl Strategy<Value = Envelope> {
    let message = prop_oneof![
        3 => control(),
        2 => packets(),
        3 => change(),
        2 => request(),
        3 => reply(),
        1 => bundle(),
    ];
    (any::<u32>(), message).prop_map(|(xid, message)| Envelope::new(Xid(xid), message))
}
