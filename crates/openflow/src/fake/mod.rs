//! A switch to test against: what happens to a packet, without a network.
//!
//! [`Switch::handle`] takes messages as a switch does, [`Switch::packet`] asks by which ports, in
//! which queues and with which marks a frame leaves. Time is an argument, counted from any fixed
//! moment, and never goes back. Invariants: a refused message changes nothing; what is committed
//! in a bundle happens wholly or not at all.
//!
//! Not there: forwarding without OpenFlow ([`PortNo::NORMAL`] is refused), packets kept in
//! buffers, several controllers, MPLS. Sources: OpenFlow 1.3.5, section 5; where it leaves a
//! choice, Open vSwitch 3.1.

mod answer;
mod bundle;
mod check;
pub mod example;
mod frame;
mod group;
mod meter;
mod run;
mod table;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use punctual_model::Nanos;

use self::bundle::Bundle;
use self::check::{ActionScope, CheckResult};
use self::group::Group;
use self::meter::Meter;
use self::table::{Entry, FlowTable, Rank, Selection};
use crate::error_code::{BadRequest, ErrorCode, FlowModFailed, PortModFailed, RoleRequestFailed};
use crate::multipart::{PortStats, QueueStats};
use crate::{
    AsyncConfig, BufferId, BundleId, Capabilities, DatapathId, Elapsed, Envelope, ErrorReport,
    Features, FlowCommand, FlowFlags, FlowMod, FlowRemoved, FlowRemovedReason, GroupCommand,
    GroupId, GroupMod, Hello, Mac, Message, MeterCommand, MeterId, MeterMod, PacketOut, PortConfig,
    PortDesc, PortFeatures, PortMod, PortNo, PortReason, PortState, PortStatus, QueueConfigReply,
    QueueDesc, QueueId, QueueProperty, Role, RoleMessage, SwitchConfig, TableId, Text, Xid,
};

/// How much a switch holds; beyond that it refuses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Tables, up to 254.
    pub tables: u8,
    /// Entries of a table.
    pub flows: usize,
    /// Groups.
    pub groups: usize,
    /// Buckets of a group.
    pub buckets: usize,
    /// Meters.
    pub meters: usize,
    /// Bands of a meter.
    pub bands: usize,
    /// Bundles that are open.
    pub bundles: usize,
    /// Messages of a bundle.
    pub bundled: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            tables: 254,
            flows: 1_000_000,
            groups: 65_536,
            buckets: 1_024,
            meters: 65_536,
            bands: 8,
            bundles: 16,
            bundled: 1_000_000,
        }
    }
}

/// A frame that leaves the switch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Emission {
    /// By which port; [`PortNo::LOCAL`] is the switch's own network stack.
    pub port: PortNo,
    /// In which queue, if an action chose one.
    pub queue: Option<QueueId>,
    /// Its bytes as they leave.
    pub frame: Vec<u8>,
}

/// A switch with one controller.
#[derive(Debug)]
pub struct Switch {
    datapath: DatapathId,
    limits: Limits,
    ports: BTreeMap<PortNo, Port>,
    state: State,
    bundles: BTreeMap<BundleId, Bundle>,
    config: SwitchConfig,
    asked: AsyncConfig,
    role: Role,
    generation: Option<u64>,
    messages: Vec<Envelope>,
    emissions: Vec<Emission>,
    /// Groups that the packet at hand and its copies have entered.
    entered: u32,
}

/// What bundles change.
#[derive(Clone, Debug, Default)]
struct State {
    tables: BTreeMap<TableId, FlowTable>,
    groups: BTreeMap<GroupId, Group>,
    meters: BTreeMap<MeterId, Meter>,
}

#[derive(Debug)]
struct Port {
    desc: PortDesc,
    stats: PortStats,
    queues: BTreeMap<QueueId, QueueStats>,
    created: Nanos,
}

/// What a switch sends without being asked until told otherwise: everything as master or equal,
/// ports only as slave (section 6.3.6).
const ASKED: AsyncConfig = AsyncConfig {
    packet_in: [0b111, 0],
    port_status: [0b111, 0b111],
    flow_removed: [0b1111, 0],
};

impl Switch {
    /// A switch with ports and no entries, switched on at `now`.
    pub fn new(datapath: DatapathId, ports: impl IntoIterator<Item = PortNo>, now: Nanos) -> Self {
        let mut switch = Self {
            datapath,
            limits: Limits::default(),
            ports: BTreeMap::new(),
            state: State::default(),
            bundles: BTreeMap::new(),
            config: SwitchConfig {
                flags: 0,
                miss_send_len: 128,
            },
            asked: ASKED,
            role: Role::Equal,
            generation: None,
            messages: Vec::new(),
            emissions: Vec::new(),
            entered: 0,
        };
        for port in ports {
            switch.add_port(port, [], now);
        }
        switch.messages.clear();
        switch
    }

    /// The same with other limits.
    #[must_use]
    pub fn with_limits(self, limits: Limits) -> Self {
        Self { limits, ..self }
    }

    /// Its number.
    pub fn datapath(&self) -> DatapathId {
        self.datapath
    }

    /// Takes a message from the controller; returns all that the switch then says, in order: the
    /// answer, and before it what it had to say by itself.
    pub fn handle(&mut self, envelope: &Envelope, now: Nanos) -> Vec<Envelope> {
        self.advance(now);
        if let Err(code) = self.obey(envelope, now) {
            self.refuse(envelope, code);
        }
        self.take_messages()
    }

    /// What the switch has to say by itself: packet-ins, entries that are gone, changes of ports.
    pub fn take_messages(&mut self) -> Vec<Envelope> {
        std::mem::take(&mut self.messages)
    }

    /// A frame comes in by a port: what leaves because of it. What goes to the controller is in
    /// [`Self::take_messages`].
    pub fn packet(&mut self, port: PortNo, frame: &[u8], now: Nanos) -> Vec<Emission> {
        self.advance(now);
        if let Some(found) = self.ports.get_mut(&port)
            && found.desc.is_up()
        {
            found.stats.rx_packets += 1;
            found.stats.rx_bytes += frame.len() as u64;
            if found.desc.config.contains(PortConfig::NO_RECV) {
                found.stats.rx_dropped += 1;
            } else {
                self.receive(port, frame, now);
            }
        }
        self.take_emissions()
    }

    /// What left because of packet-outs.
    pub fn take_emissions(&mut self) -> Vec<Emission> {
        std::mem::take(&mut self.emissions)
    }

    /// Lets time pass: entries end.
    pub fn advance(&mut self, now: Nanos) {
        let ended: Vec<_> = self
            .state
            .tables
            .iter()
            .map(|(id, table)| (*id, table.ended(now)))
            .collect();
        for (table, entries) in ended {
            for (rank, reason) in entries {
                self.remove(table, rank, reason, now);
            }
        }
    }

    /// When the next entry ends if no packet comes.
    pub fn next_end(&self) -> Option<Nanos> {
        let tables = self.state.tables.values();
        tables.filter_map(FlowTable::next_end).min()
    }

    /// Adds a port with queues that is up, at 100 Mbit/s.
    pub fn add_port(
        &mut self,
        port: PortNo,
        queues: impl IntoIterator<Item = QueueId>,
        now: Nanos,
    ) {
        let [.., e, f, g, h] = self.datapath.0.to_be_bytes();
        let desc = PortDesc {
            port,
            mac: Mac([2 | e << 2, f, g, h, (port.0 >> 8) as u8, port.0 as u8]),
            name: Text::new(&format!("port{port}")),
            config: PortConfig::empty(),
            state: PortState::LIVE,
            current: PortFeatures::MB_100_FD,
            advertised: PortFeatures::empty(),
            supported: PortFeatures::empty(),
            peer: PortFeatures::empty(),
            current_kbps: 100_000,
            max_kbps: 100_000,
        };
        let duration = Elapsed::default();
        let counts = |queue| QueueStats {
            port,
            queue,
            tx_bytes: 0,
            tx_packets: 0,
            tx_errors: 0,
            duration,
        };
        let stats = PortStats {
            port,
            rx_packets: 0,
            tx_packets: 0,
            rx_bytes: 0,
            tx_bytes: 0,
            rx_dropped: 0,
            tx_dropped: 0,
            rx_errors: 0,
            tx_errors: 0,
            rx_frame_errors: 0,
            rx_overruns: 0,
            rx_crc_errors: 0,
            collisions: 0,
            duration,
        };
        let added = Port {
            desc,
            stats,
            queues: queues
                .into_iter()
                .map(|queue| (queue, counts(queue)))
                .collect(),
            created: now,
        };
        self.report_port(PortReason::Add, added.desc.clone());
        self.ports.insert(port, added);
    }

    /// Takes a port away.
    pub fn remove_port(&mut self, port: PortNo) {
        if let Some(gone) = self.ports.remove(&port) {
            self.report_port(PortReason::Delete, gone.desc);
        }
    }

    /// Plugs or unplugs the cable of a port.
    pub fn set_link(&mut self, port: PortNo, up: bool) {
        let Some(found) = self.ports.get_mut(&port) else {
            return;
        };
        let before = found.desc.state;
        found.desc.state.set(PortState::LINK_DOWN, !up);
        found.desc.state.set(PortState::LIVE, up);
        if found.desc.state != before {
            let desc = found.desc.clone();
            self.report_port(PortReason::Modify, desc);
        }
    }

    fn report_port(&mut self, reason: PortReason, port: PortDesc) {
        let status = PortStatus { reason, port };
        self.tell(
            self.asked.port_status,
            reason as u32,
            Message::PortStatus(status),
        );
    }

    /// Says something by itself if it is to be said for that reason.
    fn tell(&mut self, asked: [u32; 2], reason: u32, message: Message) {
        let [active, slave] = asked;
        let mask = match self.role {
            Role::Slave => slave,
            _ => active,
        };
        if mask & (1 << reason) != 0 {
            self.messages.push(Envelope::new(Xid(0), message));
        }
    }

    fn answer(&mut self, xid: Xid, message: Message) {
        self.messages.push(Envelope::new(xid, message));
    }

    fn refuse(&mut self, request: &Envelope, code: ErrorCode) {
        let mut data = Vec::new();
        request.put(&mut data);
        data.truncate(64);
        self.answer(request.xid, Message::Error(ErrorReport { code, data }));
    }

    fn obey(&mut self, envelope: &Envelope, now: Nanos) -> CheckResult {
        let xid = envelope.xid;
        let writes = matches!(
            envelope.message,
            Message::FlowMod(_)
                | Message::GroupMod(_)
                | Message::MeterMod(_)
                | Message::PortMod(_)
                | Message::TableMod(_)
                | Message::PacketOut(_)
                | Message::BundleControl(_)
                | Message::BundleAdd(_)
        );
        if writes && self.role == Role::Slave {
            return Err(BadRequest::IsSlave.into());
        }
        match &envelope.message {
            Message::Hello(_) => self.answer(xid, Message::Hello(Hello::new())),
            Message::EchoRequest(data) => self.answer(xid, Message::EchoReply(data.clone())),
            Message::EchoReply(_) | Message::Error(_) => {}
            Message::FeaturesRequest => {
                let features = self.features();
                self.answer(xid, Message::FeaturesReply(features));
            }
            Message::GetConfigRequest => self.answer(xid, Message::GetConfigReply(self.config)),
            Message::SetConfig(config) => self.config = *config,
            Message::BarrierRequest => self.answer(xid, Message::BarrierReply),
            Message::GetAsyncRequest => self.answer(xid, Message::GetAsyncReply(self.asked)),
            Message::SetAsync(asked) => self.asked = *asked,
            Message::RoleRequest(request) => {
                let role = self.take_role(*request)?;
                self.answer(xid, Message::RoleReply(role));
            }
            Message::FlowMod(change) => return self.flow_mod(change, now),
            Message::GroupMod(change) => return self.group_mod(change, now),
            Message::MeterMod(change) => return self.meter_mod(change, now),
            Message::PortMod(change) => return self.port_mod(change),
            Message::TableMod(_) => {}
            Message::PacketOut(packet) => return self.packet_out(packet, now),
            Message::MultipartRequest(request) => return self.report(xid, request, now),
            Message::QueueConfigRequest(request) => {
                let queues = self.queues(request.port)?;
                let port = request.port;
                self.answer(
                    xid,
                    Message::QueueConfigReply(QueueConfigReply { port, queues }),
                );
            }
            Message::BundleControl(control) => return self.bundle_control(xid, control, now),
            Message::BundleAdd(add) => return self.bundle_add(xid, add),
            Message::Experimenter(_) => return Err(BadRequest::BadExperimenter.into()),
            Message::FeaturesReply(_)
            | Message::GetConfigReply(_)
            | Message::PacketIn(_)
            | Message::FlowRemoved(_)
            | Message::PortStatus(_)
            | Message::MultipartReply(_)
            | Message::BarrierReply
            | Message::QueueConfigReply(_)
            | Message::RoleReply(_)
            | Message::GetAsyncReply(_) => return Err(BadRequest::BadType.into()),
        }
        Ok(())
    }

    fn features(&self) -> Features {
        Features {
            datapath: self.datapath,
            buffers: 0,
            tables: self.limits.tables,
            auxiliary: 0,
            capabilities: Capabilities::FLOW_STATS
                | Capabilities::TABLE_STATS
                | Capabilities::PORT_STATS
                | Capabilities::GROUP_STATS
                | Capabilities::QUEUE_STATS,
            reserved: 0,
        }
    }

    /// Generations are compared around zero (section 6.3.4).
    fn take_role(&mut self, request: RoleMessage) -> Result<RoleMessage, ErrorCode> {
        if matches!(request.role, Role::Master | Role::Slave) {
            let stale = self
                .generation
                .is_some_and(|seen| (request.generation.wrapping_sub(seen) as i64) < 0);
            if stale {
                return Err(RoleRequestFailed::Stale.into());
            }
            self.generation = Some(request.generation);
        }
        if request.role != Role::NoChange {
            self.role = request.role;
        }
        Ok(RoleMessage {
            role: self.role,
            generation: self.generation.unwrap_or(u64::MAX),
        })
    }

    fn queues(&self, asked: PortNo) -> Result<Vec<QueueDesc>, ErrorCode> {
        if asked != PortNo::ANY && !self.ports.contains_key(&asked) {
            return Err(crate::error_code::QueueOpFailed::BadPort.into());
        }
        let ports = self.ports.values();
        Ok(ports
            .filter(|port| asked == PortNo::ANY || port.desc.port == asked)
            .flat_map(|port| port.queues.values())
            .map(|queue| QueueDesc {
                queue: queue.queue,
                port: queue.port,
                properties: vec![QueueProperty::MaxRate(1000)],
            })
            .collect())
    }

    fn known(&self) -> ActionScope<'_> {
        ActionScope {
            limits: &self.limits,
            groups: &self.state.groups,
            meters: &self.state.meters,
        }
    }

    fn flow_mod(&mut self, change: &FlowMod, now: Nanos) -> CheckResult {
        self.known().flow_mod(change)?;
        if change.buffer != BufferId::NONE {
            return Err(BadRequest::BufferUnknown.into());
        }
        if change.command == FlowCommand::Add {
            let table = self.state.tables.entry(change.table).or_default();
            if change.flags.contains(FlowFlags::CHECK_OVERLAP) && table.overlaps(change) {
                return Err(FlowModFailed::Overlap.into());
            }
            if table.len() >= self.limits.flows && !table.has(change) {
                return Err(FlowModFailed::TableFull.into());
            }
            table.add(change, now);
            return Ok(());
        }
        let deletes = matches!(
            change.command,
            FlowCommand::Delete | FlowCommand::DeleteStrict
        );
        let strict = matches!(
            change.command,
            FlowCommand::ModifyStrict | FlowCommand::DeleteStrict
        )
        .then_some(change.priority);
        let any = (PortNo::ANY, GroupId::ANY);
        let (out_port, out_group) = match deletes {
            true => (change.out_port, change.out_group),
            false => any,
        };
        let selection = Selection {
            matching: change.matching.clone(),
            out_port,
            out_group,
            cookie: change.cookie,
            cookie_mask: change.cookie_mask,
        };
        let meant: Vec<_> = self
            .state
            .tables
            .iter()
            .filter(|(id, _)| change.table == TableId::ALL || change.table == **id)
            .flat_map(|(id, table)| {
                table
                    .select(&selection, strict)
                    .into_iter()
                    .map(|r| (*id, r))
            })
            .collect();
        for (id, rank) in meant {
            if deletes {
                self.remove(id, rank, FlowRemovedReason::Delete, now);
            } else if let Some(table) = self.state.tables.get_mut(&id) {
                table.modify(rank, change);
            }
        }
        Ok(())
    }

    /// Removes an entry and says so if it wants that.
    fn remove(&mut self, id: TableId, rank: Rank, reason: FlowRemovedReason, now: Nanos) {
        let table = self.state.tables.get_mut(&id);
        let Some(entry) = table.and_then(|table| table.remove(rank)) else {
            return;
        };
        if entry.flags.contains(FlowFlags::SEND_FLOW_REMOVED) {
            let removed = FlowRemoved {
                cookie: entry.cookie,
                priority: entry.priority,
                reason,
                table: id,
                duration: (now - entry.created).into(),
                idle_timeout: entry.idle_timeout,
                hard_timeout: entry.hard_timeout,
                packets: entry.packets,
                bytes: entry.bytes,
                matching: entry.matching,
            };
            self.tell(
                self.asked.flow_removed,
                reason as u32,
                Message::FlowRemoved(removed),
            );
        }
    }

    /// Removes all entries that are so, in all tables.
    fn remove_where(
        &mut self,
        reason: FlowRemovedReason,
        now: Nanos,
        mut taken: impl FnMut(&Entry) -> bool,
    ) {
        let meant: Vec<_> = self
            .state
            .tables
            .iter()
            .flat_map(|(id, table)| table.which(&mut taken).into_iter().map(|r| (*id, r)))
            .collect();
        for (id, rank) in meant {
            self.remove(id, rank, reason, now);
        }
    }

    fn group_mod(&mut self, change: &GroupMod, now: Nanos) -> CheckResult {
        self.known().group_mod(change)?;
        if change.command != GroupCommand::Delete {
            let mut group = Group::new(change, now);
            if let Some(old) = self.state.groups.get(&change.group) {
                group.created = old.created;
            }
            self.state.groups.insert(change.group, group);
            return Ok(());
        }
        let all: Vec<_> = self.state.groups.keys().copied().collect();
        for id in all {
            if change.group == GroupId::ALL || change.group == id {
                self.state.groups.remove(&id);
                self.remove_where(FlowRemovedReason::GroupDelete, now, |entry| {
                    entry.leads_to(id)
                });
            }
        }
        Ok(())
    }

    fn meter_mod(&mut self, change: &MeterMod, now: Nanos) -> CheckResult {
        self.known().meter_mod(change)?;
        if change.command != MeterCommand::Delete {
            self.state
                .meters
                .insert(change.meter, Meter::new(change, now));
            return Ok(());
        }
        let all: Vec<_> = self.state.meters.keys().copied().collect();
        for id in all {
            if change.meter == MeterId::ALL || change.meter == id {
                self.state.meters.remove(&id);
                self.remove_where(FlowRemovedReason::Delete, now, |entry| entry.uses(id));
            }
        }
        Ok(())
    }

    fn port_mod(&mut self, change: &PortMod) -> CheckResult {
        let Some(port) = self.ports.get_mut(&change.port) else {
            return Err(PortModFailed::BadPort.into());
        };
        if port.desc.mac != change.mac {
            return Err(PortModFailed::BadHwAddr.into());
        }
        let config = (port.desc.config - change.mask) | (change.config & change.mask);
        if config != port.desc.config {
            port.desc.config = config;
            let desc = port.desc.clone();
            self.report_port(PortReason::Modify, desc);
        }
        Ok(())
    }

    fn packet_out(&mut self, packet: &PacketOut, now: Nanos) -> CheckResult {
        if packet.buffer != BufferId::NONE {
            return Err(BadRequest::BufferUnknown.into());
        }
        self.known().actions(&packet.actions)?;
        self.send(packet, now);
        Ok(())
    }
}
