//! The path of a packet: tables, actions, groups, ports.
//!
//! Source: OpenFlow 1.3.5, sections 5.1, 5.9 to 5.12.

use punctual_model::Nanos;

use super::frame::{Layers, Tags};
use super::group::choose;
use super::meter::{Verdict, remark};
use super::table::{Packet, told};
use super::{Emission, Switch};
use crate::action::{Action, Instruction};
use crate::{
    BufferId, Cookie, ETH_VLAN, FieldKind, GroupId, Message, OxmField, PacketIn, PacketInReason,
    PacketOut, PortConfig, PortNo, QueueId, TableId,
};

/// Groups one behind the other that a packet passes; as in Open vSwitch.
const MAX_DEPTH: u32 = 64;
/// Groups that a packet and its copies enter in all; as in Open vSwitch.
const MAX_ENTERED: u32 = 4096;

/// A packet on its path.
#[derive(Clone)]
struct Walk {
    frame: Vec<u8>,
    tags: Tags,
    in_port: PortNo,
    metadata: u64,
    queue: Option<QueueId>,
    table: TableId,
    cookie: Cookie,
    reason: PacketInReason,
    depth: u32,
}

/// The packet is gone: nothing more happens to it.
struct PacketDropped;

impl Switch {
    /// A frame enters the tables.
    pub(super) fn receive(&mut self, in_port: PortNo, frame: &[u8], now: Nanos) {
        self.entered = 0;
        let mut walk = Walk::new(in_port, frame);
        // Gone or through: it is over either way.
        self.tables(&mut walk, now).ok();
    }

    /// A packet-out.
    pub(super) fn send(&mut self, packet: &PacketOut, now: Nanos) {
        self.entered = 0;
        let mut walk = Walk::new(packet.in_port, &packet.data);
        self.act(&mut walk, &packet.actions, now).ok();
    }

    fn tables(&mut self, walk: &mut Walk, now: Nanos) -> Result<(), PacketDropped> {
        let mut set = ActionSet::default();
        let mut next = Some(TableId(0));
        while let Some(id) = next {
            let layers = Layers::behind(&walk.frame, walk.tags).ok_or(PacketDropped)?;
            let table = self.state.tables.entry(id).or_default();
            let packet = Packet {
                frame: &walk.frame,
                layers,
                in_port: walk.in_port,
                metadata: walk.metadata,
            };
            let Some((instructions, hit)) = table.lookup(&packet, now) else {
                return Err(PacketDropped);
            };
            let mut instructions = instructions.to_vec();
            instructions.sort_by_key(order);
            walk.table = id;
            walk.cookie = hit.cookie;
            walk.reason = match hit.is_miss {
                true => PacketInReason::NoMatch,
                false => PacketInReason::Action,
            };
            next = None;
            for instruction in &instructions {
                match instruction {
                    Instruction::Meter(meter) => {
                        let meter = self.state.meters.get_mut(meter);
                        match meter.map(|meter| meter.pass(walk.frame.len(), now)) {
                            Some(Verdict::Drop) => return Err(PacketDropped),
                            Some(Verdict::Remark(levels)) => {
                                remark(&mut walk.frame, walk.tags, levels);
                            }
                            Some(Verdict::Pass) | None => {}
                        }
                    }
                    Instruction::ApplyActions(actions) => self.act(walk, actions, now)?,
                    Instruction::ClearActions => set = ActionSet::default(),
                    Instruction::WriteActions(actions) => set.write(actions),
                    Instruction::WriteMetadata { value, mask } => {
                        walk.metadata = walk.metadata & !mask | value & mask;
                    }
                    Instruction::GotoTable(table) => next = Some(*table),
                    Instruction::Other { .. } => {}
                }
            }
        }
        self.act(walk, &set.in_order(), now)
    }

    fn act(
        &mut self,
        walk: &mut Walk,
        actions: &[Action],
        now: Nanos,
    ) -> Result<(), PacketDropped> {
        for action in actions {
            let layers = Layers::behind(&walk.frame, walk.tags).ok_or(PacketDropped)?;
            match action {
                Action::Output { port, .. } => self.output(walk, *port, now),
                Action::Group(group) => self.group(walk, *group, now),
                Action::SetQueue(queue) => walk.queue = Some(*queue),
                Action::PushVlan(eth_type) => walk.tags.push(&mut walk.frame, *eth_type),
                Action::PopVlan => walk.tags.pop(&mut walk.frame),
                Action::SetNwTtl(ttl) => layers.set_ttl(&mut walk.frame, *ttl),
                Action::DecNwTtl => match layers.ttl(&walk.frame) {
                    Some(0 | 1) => {
                        self.packet_in(walk, PacketInReason::InvalidTtl);
                        return Err(PacketDropped);
                    }
                    Some(ttl) => layers.set_ttl(&mut walk.frame, ttl - 1),
                    None => {}
                },
                Action::SetField(OxmField::Metadata(metadata)) => walk.metadata = metadata.value,
                // Entries are checked for a tag, buckets are not: there it makes one.
                Action::SetField(field @ OxmField::VlanVid(_)) if walk.tags == Tags::NONE => {
                    walk.tags.push(&mut walk.frame, ETH_VLAN);
                    let tagged = Layers::behind(&walk.frame, walk.tags).ok_or(PacketDropped)?;
                    tagged.write(&mut walk.frame, field);
                }
                Action::SetField(field) => layers.write(&mut walk.frame, field),
                // Refused when it was to be added.
                _ => {}
            }
        }
        Ok(())
    }

    fn group(&mut self, walk: &Walk, id: GroupId, now: Nanos) {
        if walk.depth >= MAX_DEPTH || self.entered >= MAX_ENTERED {
            return;
        }
        self.entered += 1;
        let ports = &self.ports;
        let is_up = |port| {
            ports
                .get(&port)
                .is_some_and(|found: &super::Port| found.desc.is_up())
        };
        let chosen = choose(&self.state.groups, id, walk.hash(), &is_up);
        let bytes = walk.frame.len() as u64;
        let Some(group) = self.state.groups.get_mut(&id) else {
            return;
        };
        group.packets += 1;
        group.bytes += bytes;
        let mut sets = Vec::new();
        for index in chosen {
            group.count(index, bytes);
            if let Some(bucket) = group.buckets.get(index) {
                let mut set = ActionSet::default();
                set.write(&bucket.actions);
                sets.push(set.in_order());
            }
        }
        for actions in sets {
            // Each copy is on its own.
            let mut copy = walk.clone();
            copy.depth += 1;
            self.act(&mut copy, &actions, now).ok();
        }
    }

    fn output(&mut self, walk: &mut Walk, port: PortNo, now: Nanos) {
        match port {
            PortNo::IN_PORT => self.emit(walk, walk.in_port),
            PortNo::ALL | PortNo::FLOOD => {
                let ports: Vec<_> = self.ports.keys().copied().collect();
                for port in ports {
                    if port != walk.in_port {
                        self.emit(walk, port);
                    }
                }
            }
            PortNo::CONTROLLER => self.packet_in(walk, walk.reason),
            PortNo::TABLE => {
                self.tables(&mut walk.clone(), now).ok();
            }
            port if port == walk.in_port => {}
            PortNo::LOCAL => self.emissions.push(walk.leaving(port)),
            port => self.emit(walk, port),
        }
    }

    /// Out by a port, if it is there and up.
    fn emit(&mut self, walk: &Walk, port: PortNo) {
        let Some(found) = self.ports.get_mut(&port) else {
            return;
        };
        if !found.desc.is_up() || found.desc.config.contains(PortConfig::NO_FWD) {
            found.stats.tx_dropped += 1;
            return;
        }
        let bytes = walk.frame.len() as u64;
        found.stats.tx_packets += 1;
        found.stats.tx_bytes += bytes;
        if let Some(queue) = walk.queue.and_then(|queue| found.queues.get_mut(&queue)) {
            queue.tx_packets += 1;
            queue.tx_bytes += bytes;
        }
        self.emissions.push(walk.leaving(port));
    }

    /// To the controller, whole: there are no buffers for the rest.
    fn packet_in(&mut self, walk: &Walk, reason: PacketInReason) {
        let silent = self
            .ports
            .get(&walk.in_port)
            .is_some_and(|port| port.desc.config.contains(PortConfig::NO_PACKET_IN));
        let Some(matching) = told(walk.in_port, walk.metadata).filter(|_| !silent) else {
            return;
        };
        let packet = PacketIn {
            buffer: BufferId::NONE,
            total_len: u16::try_from(walk.frame.len()).unwrap_or(u16::MAX),
            reason,
            table: walk.table,
            cookie: walk.cookie,
            matching,
            data: walk.frame.clone(),
        };
        let asked = self.asked.packet_in;
        self.tell(asked, reason as u32, Message::PacketIn(packet));
    }
}

/// The order in which instructions of an entry are carried out.
pub(super) fn order(instruction: &Instruction) -> u8 {
    match instruction {
        Instruction::Meter(_) => 0,
        Instruction::ApplyActions(_) => 1,
        Instruction::ClearActions => 2,
        Instruction::WriteActions(_) => 3,
        Instruction::WriteMetadata { .. } => 4,
        Instruction::GotoTable(_) => 5,
        Instruction::Other { .. } => 6,
    }
}

impl Walk {
    fn new(in_port: PortNo, frame: &[u8]) -> Self {
        Self {
            frame: frame.to_vec(),
            tags: Tags::of(frame),
            in_port,
            metadata: 0,
            queue: None,
            table: TableId(0),
            cookie: Cookie(u64::MAX),
            reason: PacketInReason::Action,
            depth: 0,
        }
    }

    fn leaving(&self, port: PortNo) -> Emission {
        Emission {
            port,
            queue: self.queue,
            frame: self.frame.clone(),
        }
    }

    /// The same for packets of a conversation's direction (FNV-1a over addresses and ports).
    fn hash(&self) -> u64 {
        use FieldKind as Kind;
        const KINDS: [FieldKind; 12] = [
            Kind::EthSrc,
            Kind::EthDst,
            Kind::Ipv4Src,
            Kind::Ipv4Dst,
            Kind::Ipv6Src,
            Kind::Ipv6Dst,
            Kind::IpProto,
            Kind::TcpSrc,
            Kind::TcpDst,
            Kind::UdpSrc,
            Kind::UdpDst,
            Kind::VlanVid,
        ];
        let layers = Layers::behind(&self.frame, self.tags);
        let values = KINDS
            .iter()
            .filter_map(|kind| layers?.read(&self.frame, *kind));
        values.flatten().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        })
    }
}

/// At most one action of each kind, done in a fixed order (section 5.10).
#[derive(Default)]
struct ActionSet {
    actions: Vec<Action>,
}

impl ActionSet {
    fn write(&mut self, actions: &[Action]) {
        for action in actions {
            self.actions.retain(|old| slot(old) != slot(action));
            self.actions.push(action.clone());
        }
    }

    /// A group takes the place of an output.
    fn in_order(mut self) -> Vec<Action> {
        let has_group = self.actions.iter().any(|a| matches!(a, Action::Group(_)));
        self.actions
            .retain(|action| !has_group || !matches!(action, Action::Output { .. }));
        self.actions.sort_by_key(|action| slot(action).0);
        self.actions
    }
}

/// Where an action stands in the set, and which field it sets.
fn slot(action: &Action) -> (u8, Option<FieldKind>) {
    let place = match action {
        Action::CopyTtlIn => 0,
        Action::PopVlan => 1,
        Action::PushVlan(_) => 2,
        Action::CopyTtlOut => 3,
        Action::DecNwTtl | Action::DecMplsTtl => 4,
        Action::SetNwTtl(_) | Action::SetMplsTtl(_) => 5,
        Action::SetField(field) => return (6, Some(field.kind())),
        Action::SetQueue(_) => 7,
        Action::Group(_) => 8,
        Action::Output { .. } => 9,
        Action::Other { .. } => 10,
    };
    (place, None)
}
