//! An OpenFlow 1.3 switch as the controller sees it: its installed entries, the
//! pending changes, and the messages that apply them.
//!
//! When a switch connects, its entries, groups and meters are read. Those of
//! other controllers are not touched; of this controller's, only those that
//! differ from the plan are changed. From then on the switch is taken to have the
//! entries it was sent, and every step ends with a barrier.

mod render;

use std::collections::{BTreeMap, BTreeSet, HashMap};

use punctual_openflow::multipart::{FlowStats, FlowStatsRequest, GroupDesc, MeterConfig};
use punctual_openflow::{
    Cookie, ErrorReport, FlowMod, GroupCommand, GroupId, GroupMod, Instruction, Message, MeterBand,
    MeterCommand, MeterId, MeterMod, MultipartBody, MultipartRequest,
};

use crate::event::Change;
use crate::plan::{Base, Header, Match, Police, PortNumber, SwitchPlan};
use crate::streams::hash;

pub(crate) use render::{FLOOD, OURS, OURS_MASK, Resident};
use render::{GROUPS, METERS, Numbers, Place, Rule, Work};

/// Errors of one step that are remembered.
const MAX_PROBLEM: usize = 200;

/// A switch that speaks OpenFlow.
#[derive(Debug, Clone)]
pub(crate) struct Session {
    /// Progress of reading its tables; `None` once they are known.
    reading: Option<Reading>,
    tables: Tables,
    /// Barriers that were not answered, with the steps that they end.
    barriers: BTreeMap<u32, u64>,
    /// The step to which a message belongs.
    sent: BTreeMap<u32, u64>,
    problems: HashMap<u64, String>,
    next_xid: u32,
}

/// Answers about a switch's tables.
#[derive(Debug, Clone, Default)]
struct Reading {
    flows: (Vec<FlowStats>, bool),
    groups: (Vec<GroupDesc>, bool),
    meters: (Vec<MeterConfig>, bool),
}

impl Reading {
    fn is_complete(&self) -> bool {
        self.flows.1 && self.groups.1 && self.meters.1
    }

    fn outcome(&self) -> SwitchReport {
        match self.is_complete() {
            true => SwitchReport::Read,
            false => SwitchReport::Nothing,
        }
    }
}

/// For what a switch used its ports in an earlier life.
#[derive(Debug, Clone, Default)]
pub(crate) struct PortUses {
    /// Packets entered the network there.
    pub(crate) edge: BTreeSet<PortNumber>,
    /// Packets left by these.
    pub(crate) out: BTreeSet<PortNumber>,
}

/// This controller's entries, groups and meters on a switch.
#[derive(Debug, Clone, Default)]
struct Tables {
    /// Entries of the plan, with the groups and the meter that they use.
    entries: HashMap<Match, Installed>,
    groups: HashMap<Work, (GroupId, usize)>,
    group_numbers: BTreeMap<u32, ()>,
    meters: HashMap<String, Metered>,
    meter_numbers: BTreeMap<u32, ()>,
    base: Base,
    /// Meters that it has.
    max_meters: u32,
}

#[derive(Debug, Clone, Default, PartialEq)]
struct Installed {
    groups: Vec<Work>,
    owner: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Metered {
    number: u32,
    police: Police,
    users: usize,
}

/// Meaning of a message from a switch.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum SwitchReport {
    Nothing,
    /// Its tables are known: [`Session::reconcile`] is to be called.
    Read,
    /// A step is finished, perhaps with a problem.
    Done(u64, Option<String>),
    /// It refused something that belongs to no step.
    Trouble(String),
}

impl Session {
    /// A switch that connected; the questions that are to be sent.
    pub(crate) fn new(meters: u32, out: &mut Vec<(u32, Message)>) -> Self {
        let mut session = Self {
            reading: Some(Reading {
                meters: (Vec::new(), meters == 0),
                ..Reading::default()
            }),
            tables: Tables {
                max_meters: meters,
                ..Tables::default()
            },
            barriers: BTreeMap::new(),
            sent: BTreeMap::new(),
            problems: HashMap::new(),
            next_xid: 1,
        };
        let ours = FlowStatsRequest {
            cookie: Cookie(OURS),
            cookie_mask: OURS_MASK,
            ..FlowStatsRequest::all()
        };
        session.ask(MultipartRequest::Flow(ours), out);
        session.ask(MultipartRequest::GroupDesc, out);
        if meters > 0 {
            session.ask(MultipartRequest::MeterConfig(MeterId::ALL), out);
        }
        session
    }

    /// Whether it can be changed.
    pub(crate) fn is_ready(&self) -> bool {
        self.reading.is_none()
    }

    /// Whether its tables are known and were not compared yet.
    pub(crate) fn is_read(&self) -> bool {
        self.reading.as_ref().is_some_and(Reading::is_complete)
    }

    pub(crate) fn xid(&mut self) -> u32 {
        let xid = self.next_xid;
        self.next_xid = self.next_xid.wrapping_add(1).max(1);
        xid
    }

    pub(crate) fn ask(&mut self, request: MultipartRequest, out: &mut Vec<(u32, Message)>) {
        let xid = self.xid();
        out.push((xid, Message::MultipartRequest(request)));
    }

    /// Takes what a switch says about its tables and steps.
    pub(crate) fn hear(&mut self, xid: u32, message: &Message) -> SwitchReport {
        match message {
            Message::MultipartReply(reply) => {
                let Some(reading) = &mut self.reading else {
                    return SwitchReport::Nothing;
                };
                match &reply.body {
                    MultipartBody::Flow(flows) => {
                        reading.flows.0.extend(flows.iter().cloned());
                        reading.flows.1 |= !reply.more;
                    }
                    MultipartBody::GroupDesc(groups) => {
                        reading.groups.0.extend(groups.iter().cloned());
                        reading.groups.1 |= !reply.more;
                    }
                    MultipartBody::MeterConfig(meters) => {
                        reading.meters.0.extend(meters.iter().cloned());
                        reading.meters.1 |= !reply.more;
                    }
                    _ => return SwitchReport::Nothing,
                }
                reading.outcome()
            }
            Message::BarrierReply => match self.barriers.remove(&xid) {
                Some(step) => {
                    self.sent.retain(|_, of| *of != step);
                    SwitchReport::Done(step, self.problems.remove(&step))
                }
                None => SwitchReport::Nothing,
            },
            Message::Error(report) => self.error(xid, report),
            _ => SwitchReport::Nothing,
        }
    }

    fn error(&mut self, xid: u32, report: &ErrorReport) -> SwitchReport {
        let mut text = format!("{:?}", report.code);
        text.truncate(MAX_PROBLEM);
        // A switch without meters says so when it is asked for them.
        if let Some(reading) = &mut self.reading
            && !self.sent.contains_key(&xid)
            && !reading.meters.1
        {
            reading.meters.1 = true;
            self.tables.max_meters = 0;
            return reading.outcome();
        }
        match self.sent.get(&xid) {
            Some(step) => {
                self.problems.entry(*step).or_insert(text);
                SwitchReport::Nothing
            }
            None => SwitchReport::Trouble(text),
        }
    }

    /// The marks that its entries put on streams: they say which version of
    /// their paths is in use.
    pub(crate) fn marks(&self) -> Vec<(Header, u8)> {
        let flows = self.reading.iter().flat_map(|reading| &reading.flows.0);
        flows
            .filter_map(|stats| render::ingress(&place_of(stats), &rule_of(stats)))
            .collect()
    }

    /// Before anything is decided: lets probes through to the controller, if
    /// they are not let through already.
    pub(crate) fn prepare(&mut self, out: &mut Vec<(u32, Message)>) {
        let Some(reading) = &self.reading else {
            return;
        };
        let (place, rule) = render::probes();
        let is_there = |stats: &FlowStats| place_of(stats) == place && rule_of(stats) == rule;
        if !reading.flows.0.iter().any(is_there) {
            let xid = self.xid();
            out.push((xid, add(place, rule)));
        }
    }

    /// Whether nothing of ours was found on it.
    pub(crate) fn is_blank(&self) -> bool {
        self.reading
            .as_ref()
            .is_some_and(|reading| reading.flows.0.is_empty() && reading.groups.0.is_empty())
    }

    /// For what its entries and groups use its ports; `None` if nothing of ours was found.
    pub(crate) fn port_uses(&self) -> Option<PortUses> {
        let reading = self.reading.as_ref().filter(|_| !self.is_blank())?;
        let mut uses = PortUses::default();
        for stats in &reading.flows.0 {
            let (place, rule) = (place_of(stats), rule_of(stats));
            uses.edge.extend(render::unmarked(&place));
            for instruction in &rule.instructions {
                if let Instruction::ApplyActions(actions) = instruction {
                    uses.out.extend(render::outputs(actions));
                }
            }
        }
        for group in &reading.groups.0 {
            for bucket in &group.buckets {
                uses.out.extend(render::outputs(&bucket.actions));
            }
        }
        Some(uses)
    }

    /// Hosts in its entries: their addresses, and their ports where these lead to
    /// hosts.
    pub(crate) fn residents(&self) -> Vec<Resident> {
        let mut all = Vec::new();
        let Some(reading) = &self.reading else {
            return all;
        };
        for stats in &reading.flows.0 {
            render::residents(&place_of(stats), &rule_of(stats), &mut all);
        }
        for group in &reading.groups.0 {
            for bucket in &group.buckets {
                render::rewritten(&bucket.actions, &mut all);
            }
        }
        all
    }

    /// The tables are known: makes them what the plan says. Returns how many
    /// changes that takes.
    pub(crate) fn reconcile(
        &mut self,
        plan: &SwitchPlan,
        step: u64,
        out: &mut Vec<(u32, Message)>,
    ) -> usize {
        let Some(reading) = self.reading.take() else {
            return 0;
        };
        let before = out.len();
        let mut found: HashMap<Place, Rule> = HashMap::new();
        for stats in &reading.flows.0 {
            if stats.cookie.0 & OURS_MASK == OURS {
                found.insert(place_of(stats), rule_of(stats));
            }
        }
        let mut mods = Mods::default();
        let tables = &mut self.tables;
        // Groups that are there are used again; none has users yet.
        let mut flood = None;
        for desc in reading.groups.0 {
            let work = Work {
                kind: desc.kind,
                buckets: desc.buckets,
            };
            if desc.group == FLOOD {
                flood = Some(work);
            } else if GROUPS.contains(&desc.group.0) {
                tables.group_numbers.insert(desc.group.0, ());
                tables.groups.insert(work, (desc.group, 0));
            }
        }
        let there: Vec<Work> = tables.groups.keys().cloned().collect();
        let meters = reading
            .meters
            .0
            .into_iter()
            .filter(|meter| METERS.contains(&meter.meter.0));
        let meters: BTreeMap<u32, MeterConfig> =
            meters.map(|meter| (meter.meter.0, meter)).collect();
        tables
            .meter_numbers
            .extend(meters.keys().map(|number| (*number, ())));
        let mut used_meters = BTreeMap::new();
        for (matching, entry) in &plan.entries {
            let place = render::place(matching);
            // The meter that the entry has, if it has one.
            let meter = found
                .get(&place)
                .and_then(|rule| meter_of(&rule.instructions));
            if let (Some(police), Some(meter)) = (entry.police, meter)
                && let Some(config) = meters.get(&meter)
            {
                let metered = Metered {
                    number: meter,
                    police,
                    users: 0,
                };
                tables.meters.entry(entry.owner.clone()).or_insert(metered);
                used_meters.insert(meter, ());
                if !does(config, police) {
                    mods.push(meter_mod(MeterCommand::Modify, meter, police));
                }
            }
            let rule = tables.enter(matching, entry, &mut mods);
            match found.remove(&place) {
                Some(there) if there == rule => {}
                _ => mods.push(add(place, rule)),
            }
        }
        let work = render::flood(&plan.base);
        let command = match &flood {
            None => Some(GroupCommand::Add),
            Some(there) if *there != work => Some(GroupCommand::Modify),
            Some(_) => None,
        };
        if let Some(command) = command {
            mods.first(group_mod(command, FLOOD, &work));
        }
        for (place, rule) in render::base_rules(&plan.base) {
            match found.remove(&place) {
                Some(there) if there == rule => {}
                _ => mods.push(add(place, rule)),
            }
        }
        tables.base = plan.base.clone();
        for place in found.into_keys() {
            mods.push(delete(place));
        }
        for work in there {
            if let Some((group, 0)) = tables.groups.get(&work).copied() {
                tables.groups.remove(&work);
                tables.group_numbers.remove(&group.0);
                mods.push(Message::GroupMod(GroupMod::delete(group)));
            }
        }
        for number in meters
            .keys()
            .filter(|number| !used_meters.contains_key(number))
        {
            tables.meter_numbers.remove(number);
            mods.push(Message::MeterMod(MeterMod::delete(MeterId(*number))));
        }
        self.send(mods, step, out);
        // The barrier is no change.
        out.len() - before - 1
    }

    /// Carries out a step. It is confirmed by [`SwitchReport::Done`].
    pub(crate) fn apply(
        &mut self,
        changes: &[Change],
        plan: &SwitchPlan,
        step: u64,
        out: &mut Vec<(u32, Message)>,
    ) {
        let mut mods = Mods::default();
        for change in changes {
            match change {
                Change::Set(matching, entry) => {
                    let old = self.tables.entries.remove(matching);
                    let rule = self.tables.enter(matching, entry, &mut mods);
                    mods.push(add(render::place(matching), rule));
                    if let Some(old) = old {
                        self.tables.leave(old, &mut mods);
                    }
                }
                Change::Unset(matching) => {
                    if let Some(old) = self.tables.entries.remove(matching) {
                        mods.push(delete(render::place(matching)));
                        self.tables.leave(old, &mut mods);
                    }
                }
                // It was read and compared.
                Change::Reset => {}
                Change::Base => self.tables.rebase(&plan.base, &mut mods),
            }
        }
        self.send(mods, step, out);
    }

    fn send(&mut self, mods: Mods, step: u64, out: &mut Vec<(u32, Message)>) {
        let all = mods.first.into_iter().chain(mods.then).chain(mods.last);
        for message in all.chain([Message::BarrierRequest]) {
            let xid = self.xid();
            match message {
                Message::BarrierRequest => self.barriers.insert(xid, step),
                _ => self.sent.insert(xid, step),
            };
            out.push((xid, message));
        }
    }
}

/// The messages, with their numbers, that make a switch do what a plan says on
/// which nothing of ours is yet; the last is a barrier. `meters` are those that
/// it has.
pub fn openflow_messages(plan: &SwitchPlan, meters: u32) -> Vec<(u32, Message)> {
    let mut session = Session::new(meters, &mut Vec::new());
    let mut messages = Vec::new();
    session.reconcile(plan, 0, &mut messages);
    messages
}

/// Messages in the order in which they are safe: groups and meters before the
/// entries that use them, and after those that do no more.
#[derive(Debug, Default)]
struct Mods {
    first: Vec<Message>,
    then: Vec<Message>,
    last: Vec<Message>,
}

impl Mods {
    fn first(&mut self, message: Message) {
        self.first.push(message);
    }

    fn push(&mut self, message: Message) {
        match &message {
            Message::GroupMod(group) if group.command == GroupCommand::Delete => {
                self.last.push(message);
            }
            Message::MeterMod(meter) if meter.command == MeterCommand::Delete => {
                self.last.push(message);
            }
            Message::GroupMod(_) | Message::MeterMod(_) => self.first.push(message),
            _ => self.then.push(message),
        }
    }
}

/// Groups that an entry needs, as they are given out.
struct GroupAllocator<'a> {
    groups: &'a mut HashMap<Work, (GroupId, usize)>,
    numbers: &'a mut BTreeMap<u32, ()>,
    mods: &'a mut Mods,
    used: Vec<Work>,
}

impl Numbers for GroupAllocator<'_> {
    fn group(&mut self, work: Work) -> GroupId {
        self.used.push(work.clone());
        if let Some((group, users)) = self.groups.get_mut(&work) {
            *users += 1;
            return *group;
        }
        let number = free(work.number(), &GROUPS, self.numbers);
        self.numbers.insert(number, ());
        let group = GroupId(number);
        self.mods.push(group_mod(GroupCommand::Add, group, &work));
        self.groups.insert(work, (group, 1));
        group
    }
}

/// The first free number from here on, around the range; ranges are far larger
/// than what a switch holds.
fn free(from: u32, range: &std::ops::Range<u32>, taken: &BTreeMap<u32, ()>) -> u32 {
    let mut all = (from..range.end).chain(range.start..from);
    all.find(|number| !taken.contains_key(number))
        .unwrap_or(from)
}

impl Tables {
    /// An entry is to be there: its groups and its meter are, and it is known.
    fn enter(&mut self, matching: &Match, entry: &crate::plan::Entry, mods: &mut Mods) -> Rule {
        let meter = entry
            .police
            .and_then(|police| self.meter(&entry.owner, police, mods));
        let mut giving = GroupAllocator {
            groups: &mut self.groups,
            numbers: &mut self.group_numbers,
            mods,
            used: Vec::new(),
        };
        let rule = render::rule(matching, entry, meter, &mut giving);
        let installed = Installed {
            groups: giving.used,
            owner: meter.is_some().then(|| entry.owner.clone()),
        };
        self.entries.insert(*matching, installed);
        rule
    }

    /// An entry is gone.
    fn leave(&mut self, installed: Installed, mods: &mut Mods) {
        // A group of groups goes first.
        for work in installed.groups.into_iter().rev() {
            if let Some((group, users)) = self.groups.get_mut(&work) {
                *users = users.saturating_sub(1);
                if *users == 0 {
                    mods.push(Message::GroupMod(GroupMod::delete(*group)));
                    self.group_numbers.remove(&group.0);
                    self.groups.remove(&work);
                }
            }
        }
        if let Some(owner) = installed.owner
            && let Some(metered) = self.meters.get_mut(&owner)
        {
            metered.users = metered.users.saturating_sub(1);
            if metered.users == 0 {
                mods.push(Message::MeterMod(MeterMod::delete(MeterId(metered.number))));
                self.meter_numbers.remove(&metered.number);
                self.meters.remove(&owner);
            }
        }
    }

    fn meter(&mut self, owner: &str, police: Police, mods: &mut Mods) -> Option<MeterId> {
        if let Some(metered) = self.meters.get_mut(owner) {
            metered.users += 1;
            if metered.police != police {
                metered.police = police;
                mods.push(meter_mod(MeterCommand::Modify, metered.number, police));
            }
            return Some(MeterId(metered.number));
        }
        let range = METERS.start..METERS.end.min(self.max_meters.saturating_add(1));
        let size = range
            .end
            .checked_sub(range.start)
            .filter(|size| *size > 0)?;
        if self.meter_numbers.len() as u32 >= size {
            return None;
        }
        let start = range.start + (hash(owner.as_bytes(), 1) % u64::from(size)) as u32;
        let number = free(start, &range, &self.meter_numbers);
        self.meter_numbers.insert(number, ());
        let metered = Metered {
            number,
            police,
            users: 1,
        };
        self.meters.insert(owner.to_owned(), metered);
        mods.push(meter_mod(MeterCommand::Add, number, police));
        Some(MeterId(number))
    }

    fn rebase(&mut self, base: &Base, mods: &mut Mods) {
        if self.base == *base {
            return;
        }
        if self.base.flood != base.flood {
            let work = render::flood(base);
            mods.push(group_mod(GroupCommand::Modify, FLOOD, &work));
        }
        let old: HashMap<Place, Rule> = render::base_rules(&self.base).into_iter().collect();
        let mut gone = old.clone();
        for (place, rule) in render::base_rules(base) {
            gone.remove(&place);
            if old.get(&place) != Some(&rule) {
                mods.push(add(place, rule));
            }
        }
        for place in gone.into_keys() {
            mods.push(delete(place));
        }
        self.base = base.clone();
    }
}

fn place_of(stats: &FlowStats) -> Place {
    Place {
        table: stats.table,
        priority: stats.priority,
        fields: stats.matching.normalized(),
    }
}

fn rule_of(stats: &FlowStats) -> Rule {
    Rule {
        cookie: stats.cookie,
        instructions: stats.instructions.clone(),
    }
}

fn meter_of(instructions: &[Instruction]) -> Option<u32> {
    instructions
        .iter()
        .find_map(|instruction| match instruction {
            Instruction::Meter(meter) => Some(meter.0),
            _ => None,
        })
}

fn add(place: Place, rule: Rule) -> Message {
    let flow = FlowMod::add(place.table, place.priority, place.fields, rule.instructions);
    Message::FlowMod(flow.with_cookie(rule.cookie))
}

fn delete(place: Place) -> Message {
    let flow = FlowMod::delete_strict(place.table, place.priority, place.fields);
    Message::FlowMod(FlowMod {
        cookie_mask: OURS_MASK,
        ..flow.with_cookie(Cookie(OURS))
    })
}

fn group_mod(command: GroupCommand, group: GroupId, work: &Work) -> Message {
    Message::GroupMod(GroupMod {
        command,
        ..GroupMod::add(work.kind, group, work.buckets.clone())
    })
}

fn limits(police: Police) -> (u32, u32) {
    let kilo = |bits: u64| {
        u32::try_from(bits.div_ceil(1_000))
            .unwrap_or(u32::MAX)
            .max(1)
    };
    (
        kilo(police.rate_bps),
        kilo(police.burst_bytes.saturating_mul(8)),
    )
}

fn meter_mod(command: MeterCommand, number: u32, police: Police) -> Message {
    let (rate, burst) = limits(police);
    Message::MeterMod(MeterMod {
        command,
        ..MeterMod::drop_above(MeterId(number), rate, burst)
    })
}

/// Whether a meter holds to this.
fn does(config: &MeterConfig, police: Police) -> bool {
    let (rate, burst) = limits(police);
    config.bands == [MeterBand::Drop { rate, burst }]
}
