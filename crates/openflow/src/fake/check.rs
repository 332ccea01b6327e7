//! What a switch refuses to be told, and how it says so.
//!
//! Codes and their order are those of Open vSwitch 3.1 where the specification leaves a choice
//! (lib/ofp-actions.c, lib/ofp-group.c, ofproto/ofproto.c); `tests/ovs.rs` compares.

use std::collections::{BTreeMap, BTreeSet};

use super::Limits;
use super::frame::Tags;
use super::group::Group;
use super::meter::Meter;
use super::run::order;
use crate::action::{Action, Instruction};
use crate::error_code::{
    BadAction, BadInstruction, BadRequest, ErrorCode, FlowModFailed, GroupModFailed, MeterModFailed,
};
use crate::matching::{Need, in_range, needs};
use crate::oxm::{FieldKind, VLAN_PRESENT};
use crate::{
    ETH_IPV4, ETH_IPV6, ETH_VLAN, FlowCommand, FlowMod, GroupCommand, GroupId, GroupMod, GroupType,
    Match, MeterBand, MeterFlags, MeterId, MeterMod, OxmField, PortNo, TableId,
};

pub(super) type CheckResult = Result<(), ErrorCode>;

/// What actions may refer to.
pub(super) struct ActionScope<'a> {
    pub(super) limits: &'a Limits,
    pub(super) groups: &'a BTreeMap<GroupId, Group>,
    pub(super) meters: &'a BTreeMap<MeterId, Meter>,
}

impl ActionScope<'_> {
    pub(super) fn flow_mod(&self, change: &FlowMod) -> CheckResult {
        let deletes = matches!(
            change.command,
            FlowCommand::Delete | FlowCommand::DeleteStrict
        );
        if change.table == TableId::ALL {
            if !deletes {
                return Err(FlowModFailed::BadTableId.into());
            }
        } else if change.table.0 >= self.limits.tables {
            return Err(BadRequest::BadTableId.into());
        }
        change.matching.check().map_err(|error| error.reply())?;
        if deletes {
            return Ok(());
        }
        let mut course = PacketState {
            matching: Some(&change.matching),
            tags: tags(&change.matching),
            inconsistent: false,
        };
        let mut instructions: Vec<&Instruction> = change.instructions.iter().collect();
        instructions.sort_by_key(|instruction| order(instruction));
        for instruction in &instructions {
            match instruction {
                Instruction::ApplyActions(actions) => course.take(actions, false)?,
                Instruction::WriteActions(actions) => course.take(actions, true)?,
                Instruction::GotoTable(next) => {
                    if *next <= change.table || next.0 >= self.limits.tables {
                        return Err(BadInstruction::BadTableId.into());
                    }
                }
                Instruction::Meter(_)
                | Instruction::ClearActions
                | Instruction::WriteMetadata { .. } => {}
                Instruction::Other { .. } => return Err(BadInstruction::UnknownInst.into()),
            }
        }
        course.end()?;
        for instruction in instructions {
            match instruction {
                Instruction::ApplyActions(actions) | Instruction::WriteActions(actions) => {
                    self.groups_of(actions)?;
                }
                Instruction::Meter(meter) if !self.meters.contains_key(meter) => {
                    return Err(MeterModFailed::InvalidMeter.into());
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Actions of no entry: everything that a packet could have is taken to be there.
    pub(super) fn actions(&self, actions: &[Action]) -> CheckResult {
        let mut course = PacketState {
            matching: None,
            tags: 1,
            inconsistent: false,
        };
        course.take(actions, false)?;
        self.groups_of(actions)
    }

    fn groups_of(&self, actions: &[Action]) -> CheckResult {
        let unknown = |action: &Action| match action {
            Action::Group(group) => !self.groups.contains_key(group),
            _ => false,
        };
        match actions.iter().any(unknown) {
            true => Err(BadAction::BadOutGroup.into()),
            false => Ok(()),
        }
    }

    pub(super) fn group_mod(&self, change: &GroupMod) -> CheckResult {
        if change.group > GroupId::MAX
            && !(change.command == GroupCommand::Delete && change.group == GroupId::ALL)
        {
            return Err(GroupModFailed::InvalidGroup.into());
        }
        if change.command == GroupCommand::Delete {
            return Ok(());
        }
        if change.kind == GroupType::Indirect && change.buckets.len() != 1 {
            return Err(GroupModFailed::InvalidGroup.into());
        }
        if change.buckets.len() > self.limits.buckets {
            return Err(GroupModFailed::OutOfBuckets.into());
        }
        for bucket in &change.buckets {
            let watches = bucket.watch_port != PortNo::ANY || bucket.watch_group != GroupId::ANY;
            if bucket.weight != 0 && change.kind != GroupType::Select {
                return Err(GroupModFailed::InvalidGroup.into());
            }
            match change.kind {
                GroupType::All | GroupType::Indirect if watches => {
                    return Err(GroupModFailed::WatchUnsupported.into());
                }
                GroupType::FastFailover if !watches => {
                    return Err(GroupModFailed::InvalidGroup.into());
                }
                _ => {}
            }
            self.actions(&bucket.actions)?;
            let leads = |action: &Action| match action {
                Action::Group(group) => Some(*group),
                _ => None,
            };
            if bucket
                .actions
                .iter()
                .filter_map(leads)
                .any(|next| self.reaches(next, change.group))
            {
                return Err(GroupModFailed::Loop.into());
            }
        }
        match (change.command, self.groups.contains_key(&change.group)) {
            (GroupCommand::Add, true) => Err(GroupModFailed::GroupExists.into()),
            (GroupCommand::Modify, false) => Err(GroupModFailed::UnknownGroup.into()),
            (GroupCommand::Add, _) if self.groups.len() >= self.limits.groups => {
                Err(GroupModFailed::OutOfGroups.into())
            }
            _ => Ok(()),
        }
    }

    /// Whether packets in `from` come to `to`.
    fn reaches(&self, from: GroupId, to: GroupId) -> bool {
        let (mut open, mut seen) = (vec![from], BTreeSet::new());
        while let Some(group) = open.pop() {
            if group == to {
                return true;
            }
            if seen.insert(group) {
                open.extend(self.groups.get(&group).into_iter().flat_map(Group::next));
            }
        }
        false
    }

    pub(super) fn meter_mod(&self, change: &MeterMod) -> CheckResult {
        let known = self.meters.contains_key(&change.meter);
        if change.command == crate::MeterCommand::Delete {
            let valid = change.meter == MeterId::ALL || is_meter(change.meter);
            return match valid {
                true => Ok(()),
                false => Err(MeterModFailed::InvalidMeter.into()),
            };
        }
        if !is_meter(change.meter) {
            return Err(MeterModFailed::InvalidMeter.into());
        }
        match (change.command, known) {
            (crate::MeterCommand::Add, true) => return Err(MeterModFailed::MeterExists.into()),
            (crate::MeterCommand::Modify, false) => {
                return Err(MeterModFailed::UnknownMeter.into());
            }
            (crate::MeterCommand::Add, _) if self.meters.len() >= self.limits.meters => {
                return Err(MeterModFailed::OutOfMeters.into());
            }
            _ => {}
        }
        let units = MeterFlags::KBPS | MeterFlags::PKTPS;
        if change.flags.contains(units) || change.flags.bits() > 0xf {
            return Err(MeterModFailed::BadFlags.into());
        }
        if change.bands.len() > self.limits.bands {
            return Err(MeterModFailed::OutOfBands.into());
        }
        for band in &change.bands {
            if matches!(band, MeterBand::Experimenter { .. }) {
                return Err(MeterModFailed::BadBand.into());
            }
            if band.limits().0 == 0 {
                return Err(MeterModFailed::BadRate.into());
            }
        }
        Ok(())
    }
}

/// What is known of a packet on its path through the actions of an entry.
struct PacketState<'a> {
    matching: Option<&'a Match>,
    tags: usize,
    /// An action needs what the packet is not known to have. That is said last.
    inconsistent: bool,
}

impl PacketState<'_> {
    /// Actions one by one, with the tags that those before have left. When those that are written
    /// are carried out is not known here; of them only fields that are set have to be there.
    fn take(&mut self, actions: &[Action], written: bool) -> CheckResult {
        let matching = self.matching;
        for action in actions {
            match action {
                Action::Output { port, .. } => match *port {
                    PortNo::ANY | PortNo(0) => return Err(BadAction::BadOutPort.into()),
                    PortNo::NORMAL => return Err(BadAction::BadOutPort.into()),
                    PortNo::TABLE if matching.is_some() => {
                        return Err(BadAction::BadOutPort.into());
                    }
                    port if port > PortNo::MAX && port < PortNo::IN_PORT => {
                        return Err(BadAction::BadOutPort.into());
                    }
                    _ => {}
                },
                Action::PushVlan(eth_type) => {
                    if !matches!(*eth_type, ETH_VLAN | super::frame::ETH_QINQ) {
                        return Err(BadAction::BadArgument.into());
                    }
                    if matching.is_some() && self.tags >= Tags::MAX {
                        return Err(BadAction::BadTag.into());
                    }
                    self.tags += 1;
                }
                Action::PopVlan => {
                    self.inconsistent |= self.tags == 0 && !written;
                    self.tags = self.tags.saturating_sub(1);
                }
                Action::SetNwTtl(_) | Action::DecNwTtl => {
                    let is_ip = |matching| is_ip(matching, &[ETH_IPV4, ETH_IPV6]);
                    self.inconsistent |= !matching.is_none_or(is_ip) && !written;
                }
                Action::SetField(field) => set_field(field, matching, self.tags > 0)?,
                Action::Group(_) | Action::SetQueue(_) => {}
                _ => return Err(BadAction::BadType.into()),
            }
        }
        Ok(())
    }

    fn end(&self) -> CheckResult {
        match self.inconsistent && self.matching.is_some() {
            true => Err(BadAction::MatchInconsistent.into()),
            false => Ok(()),
        }
    }
}

fn is_meter(meter: MeterId) -> bool {
    (MeterId(1)..=MeterId::MAX).contains(&meter)
}

/// Tags that packets of a match are known to have.
fn tags(matching: &Match) -> usize {
    match matching.get(FieldKind::VlanVid) {
        Some(OxmField::VlanVid(vid)) => {
            usize::from(vid.value & vid.mask.unwrap_or(u16::MAX) & VLAN_PRESENT != 0)
        }
        _ => 0,
    }
}

fn is_ip(matching: &Match, types: &[u16]) -> bool {
    match matching.get(FieldKind::EthType) {
        Some(OxmField::EthType(found)) => types.contains(found),
        _ => false,
    }
}

fn set_field(field: &OxmField, matching: Option<&Match>, tagged: bool) -> CheckResult {
    use FieldKind as Kind;
    let kind = field.kind();
    let read_only = matches!(
        kind,
        Kind::InPort
            | Kind::InPhyPort
            | Kind::EthType
            | Kind::IpProto
            | Kind::SctpSrc
            | Kind::SctpDst
            | Kind::Other { .. }
    );
    if read_only {
        return Err(BadAction::BadSetType.into());
    }
    let absent = matches!(field, OxmField::VlanVid(vid) if vid.value & VLAN_PRESENT == 0);
    if !in_range(field) || absent {
        return Err(BadAction::BadSetArgument.into());
    }
    let Some(matching) = matching else {
        return Ok(());
    };
    let fits = match kind {
        Kind::VlanVid | Kind::VlanPcp => tagged,
        kind => needs(kind).iter().all(|need: &Need| {
            matching
                .get(need.kind())
                .is_some_and(|found| need.holds(found))
        }),
    };
    match fits {
        true => Ok(()),
        false => Err(BadAction::MatchInconsistent.into()),
    }
}
