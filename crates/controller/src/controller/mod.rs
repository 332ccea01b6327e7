//! The controller as a state machine: handles events and returns actions.
//!
//! An event first updates the topology or the ledger. Then affected requests are decided again, in
//! the order of importance. Then changed streams are installed on the switches, and a request is
//! answered when every switch has confirmed. No request is decided before all requests are known
//! and the tables of the switches were read, so that a restart does not change entries that are
//! correct.

mod again;
mod improve;
mod protect;
mod recovery;
mod status;
mod switches;

use std::collections::{BTreeMap, BTreeSet};

use punctual_model::Nanos;
use punctual_model::srt::{Channel, Request, State};

use crate::base::bases;
use crate::event::{Change, Effect, Event, Notice, SwitchProtocol, soonest};
use crate::monitor::Monitor;
use crate::openflow::Session;
use crate::plan::{FarEnd, Header, Plan, Port, SwitchPlan};
use crate::settings::{Intervals, Settings};
use crate::streams::{Compiler, DecisionInput, Key, Ledger, Outcome};
use crate::topology::{Change as Found, End, Map, Topology};
use crate::updates::{Progress, Target, Updates};

use again::RetryQueue;
use improve::Improvement;
use protect::Protection;
use recovery::Recovery;
pub use status::{HostStatus, LinkStatus, Status, SwitchStatus, UncoveredFlows};
pub use switches::port_state;

/// Delay after which the entries for other packets are recomputed: hosts and links often appear
/// many at a time, and one computation is enough for all of them.
const BASE_DELAY: Nanos = Nanos::from_millis(5);
/// Pause between two steps of background work.
const BACKGROUND: Nanos = Nanos::from_millis(20);
/// Time from the admission of a flow to the recomputation of published bounds.
const REFRESH: Nanos = Nanos::from_secs(1);
/// Most bounds recomputed in one step: an event that arrives meanwhile has to wait.
const REFRESHED: usize = 16;
/// Pause between two such steps.
const REFRESH_PAUSE: Nanos = Nanos::from_millis(10);

/// Computes the switches' plans from requests, as a state machine.
#[derive(Debug)]
pub struct Controller {
    topology: Topology,
    map: Map,
    ledger: Ledger,
    plan: Plan,
    updates: Updates<Key>,
    switches: BTreeMap<u64, Link>,
    monitor: Monitor,
    protection: Protection,
    compiler: Compiler,
    /// Answers from an earlier run of the controller, for requests that have not arrived yet.
    known: BTreeMap<Key, Channel>,
    /// The last answer to each request.
    written: BTreeMap<Key, Channel>,
    /// Requests that cannot be decided before more is known, such as the location of a host.
    waiting: BTreeSet<Key>,
    /// Requests that lost their guarantee.
    lost: BTreeSet<Key>,
    again: RetryQueue,
    improvement: Improvement,
    intervals: Intervals,
    max_flows: usize,
    begun: bool,
    /// When all requests became known.
    synchronised: Option<Nanos>,
    recovery: Recovery,
    steps: u64,
    next_probe: Nanos,
    next_statistics: Nanos,
    base_due: Option<Nanos>,
    background_due: Option<Nanos>,
    refresh_due: Option<Nanos>,
    floods: u32,
    live: BTreeSet<End>,
}

/// How the controller configures a switch.
#[derive(Debug)]
enum Link {
    OpenFlow(Box<Session>),
    /// By plans; whether the switch has received its whole plan since this controller started.
    /// Until then it forwards by the plan of an earlier run.
    Plans(bool),
}

impl Controller {
    /// A controller without requests and switches.
    pub fn new(settings: &Settings) -> Self {
        let intervals = settings.intervals;
        Self {
            topology: Topology::new(settings),
            map: Map::new(settings),
            ledger: Ledger::new(settings),
            plan: Plan::default(),
            updates: Updates::new(intervals.drain, intervals.confirm),
            switches: BTreeMap::new(),
            monitor: Monitor::new(intervals.window),
            protection: Protection::new(settings.protect),
            compiler: Compiler {
                tags: settings.tags,
            },
            known: BTreeMap::new(),
            written: BTreeMap::new(),
            waiting: BTreeSet::new(),
            lost: BTreeSet::new(),
            again: RetryQueue::default(),
            improvement: Improvement::default(),
            intervals,
            max_flows: settings.max_flows,
            begun: false,
            synchronised: None,
            recovery: Recovery::default(),
            steps: 1 << 48,
            next_probe: Nanos(0),
            next_statistics: Nanos(0),
            base_due: None,
            background_due: None,
            refresh_due: None,
            floods: 0,
            live: BTreeSet::new(),
        }
    }

    /// Handles an event at `now`; appends the resulting actions to `effects`.
    pub fn handle(&mut self, event: Event, now: Nanos, effects: &mut Vec<Effect>) {
        let mut found = Vec::new();
        match event {
            Event::Connected {
                datapath,
                speaks,
                meters,
                ports,
            } => {
                if !self.topology.connected(datapath, ports, now, &mut found) {
                    effects.push(Effect::Notice(Notice::SwitchRefused { datapath }));
                    return;
                }
                self.connected(datapath, speaks, meters, now, effects);
                found.push(Found::Edge);
            }
            Event::Disconnected { datapath } => {
                if self.switches.remove(&datapath).is_none() {
                    return;
                }
                self.topology.disconnected(datapath);
                self.recovery.left(datapath);
                self.monitor.forget(datapath);
                let switch = self.name(datapath);
                effects.push(Effect::Notice(Notice::SwitchDown { switch }));
                let mut progress = Progress::default();
                self.updates.away(datapath, now, &mut progress);
                self.perform(progress, now, effects);
            }
            Event::Message {
                datapath,
                xid,
                message,
            } => {
                self.heard(datapath, xid, &message, now, &mut found, effects);
            }
            Event::Port { datapath, port } => self.topology.port(datapath, port, now, &mut found),
            Event::Liveness { end, alive } => self.topology.liveness(end, alive, &mut found),
            Event::Link { from, to } => self.topology.stated(from, to, now, &mut found),
            Event::Host { mac, address, at } => {
                self.topology.state_edge(at, &mut found);
                self.topology.heard(mac, address, at, &mut found);
            }
            Event::Known(channel) => {
                let key = (channel.manager.clone(), channel.flow.clone());
                self.known.insert(key, channel);
            }
            Event::Request(request) => self.requested(request, now, effects),
            Event::Withdrawn { manager, flow } => self.withdrawn((manager, flow), now, effects),
            Event::Synchronised => self.synchronised = Some(now),
            Event::Applied {
                datapath,
                step,
                problem,
            } => {
                if let Some(reason) = problem.clone() {
                    let switch = self.name(datapath);
                    effects.push(Effect::Notice(Notice::Trouble { switch, reason }));
                }
                let mut progress = Progress::default();
                self.updates
                    .done(datapath, step, problem, now, &mut progress);
                self.perform(progress, now, effects);
            }
            Event::Tick => self.tick(now, &mut found, effects),
        }
        self.react(&found, now, effects);
        self.begin(now, effects);
        self.plan_improvement(now);
    }

    /// When [`Event::Tick`] is due; the caller may send it earlier.
    pub fn next_tick(&self) -> Nanos {
        let times = [
            Some(self.next_probe),
            Some(self.next_statistics),
            self.base_due,
            self.background_due,
            self.refresh_due,
            self.again.due(),
            self.improvement.due(),
            self.updates.next(),
            self.recovery.due(),
        ];
        soonest(times).unwrap_or(Nanos::MAX)
    }

    /// The current plan of every switch.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The last answer to a request.
    pub fn channel(&self, manager: &str, flow: &str) -> Option<&Channel> {
        self.written.get(&(manager.to_owned(), flow.to_owned()))
    }

    /// Whether no change is in progress, and all switches and requests are in their final state.
    pub fn is_settled(&self) -> bool {
        let ready = |link: &Link| match link {
            Link::OpenFlow(session) => session.is_ready(),
            Link::Plans(told) => *told,
        };
        self.begun
            && self.updates.is_idle()
            && self.base_due.is_none()
            && self.background_due.is_none()
            && self.again.due().is_none()
            && self.switches.values().all(ready)
    }

    fn name(&self, datapath: u64) -> String {
        let switch = self.topology.switches.get(&datapath);
        switch.map_or_else(|| format!("{datapath:016x}"), |switch| switch.name.clone())
    }

    fn requested(&mut self, request: Request, now: Nanos, effects: &mut Vec<Effect>) {
        let key = (request.manager.clone(), request.flow.clone());
        if let Err(error) = request.check() {
            let channel = Channel::of(&request, State::Rejected, error.to_string());
            return self.write(channel, effects);
        }
        let held = self.ledger.flows.get(&key);
        if held.is_none() && self.ledger.flows.len() >= self.max_flows {
            let reason = format!(
                "{} flows are requested, the most that this controller serves; withdraw others first",
                self.max_flows
            );
            let channel = Channel::of(&request, State::Rejected, reason);
            return self.write(channel, effects);
        }
        let same =
            held.is_some_and(|held| held.granted.is_some() && held.request.same_demand(&request));
        let hint = self.known.remove(&key);
        let frees = !same && held.is_some_and(|held| held.granted.is_some());
        if frees {
            self.ledger.release([&key]);
        }
        self.ledger.insert(request, hint);
        if !self.begun {
            self.recovery.changed();
            return;
        }
        if same {
            if !self.updates.will_answer(&key) {
                self.answer(&key, effects);
            }
            return;
        }
        self.lost.remove(&key);
        self.again.forget(&key);
        self.decide(vec![key.clone()], now, effects);
        if self.waiting.contains(&key) {
            self.ask_for(&key, effects);
        }
        if frees {
            self.freed(now, effects);
        }
    }

    /// Retries lost and refused requests after capacity became free.
    fn freed(&mut self, now: Nanos, effects: &mut Vec<Effect>) {
        let lost: Vec<Key> = self.lost.iter().cloned().collect();
        if self.begun && !lost.is_empty() {
            self.decide(lost, now, effects);
        }
        self.try_again(now);
    }

    fn withdrawn(&mut self, key: Key, now: Nanos, effects: &mut Vec<Effect>) {
        let was_known = self.known.remove(&key).is_some();
        self.waiting.remove(&key);
        self.lost.remove(&key);
        self.again.forget(&key);
        let held = self.ledger.flows.get(&key);
        let had = held.is_some_and(|held| held.granted.is_some());
        let was_held = self.ledger.remove(&key);
        if was_held {
            self.lay(Vec::new(), now, effects);
        }
        if had {
            self.freed(now, effects);
        }
        let was_written = self.written.remove(&key).is_some();
        if was_known || was_held || was_written {
            let (manager, flow) = key;
            effects.push(Effect::Erase { manager, flow });
        }
    }

    /// Begins decisions when the state of the network is known, or takes in switches that arrived
    /// later.
    fn begin(&mut self, now: Nanos, effects: &mut Vec<Effect>) {
        if self.begun {
            if self.recovery.due().is_some_and(|due| due <= now) {
                self.join(now, effects);
            }
            return;
        }
        if !self.is_recovered(now, effects) {
            return;
        }
        self.begun = true;
        self.recall_hosts();
        self.renew_map(effects);
        self.renew_base(effects);
        let all: Vec<Key> = self.ledger.flows.keys().cloned().collect();
        // Requests with a guarantee from an earlier run come first.
        let (guaranteed, others): (Vec<_>, Vec<_>) = all
            .into_iter()
            .partition(|key| self.ledger.had_guarantee(key));
        self.decide_all(guaranteed, now, effects);
        // A switch that cannot be read keeps the entries of an earlier run until
        // it receives its whole plan, so that plan has to contain all guaranteed
        // flows.
        let (unread, read): (Vec<u64>, Vec<u64>) = self
            .switches
            .keys()
            .partition(|datapath| matches!(self.switches[*datapath], Link::Plans(_)));
        if unread.is_empty() {
            self.decide_all(others, now, effects);
            self.protect_now(now);
            self.lay_answers(now, effects);
        } else {
            self.protect_now(now);
            self.lay_answers(now, effects);
            for datapath in unread {
                self.reconcile(datapath, effects);
            }
            self.decide(others, now, effects);
        }
        for key in std::mem::take(&mut self.known).into_keys() {
            let (manager, flow) = key;
            effects.push(Effect::Erase { manager, flow });
        }
        for datapath in read {
            self.reconcile(datapath, effects);
        }
        self.took_in(now);
    }

    /// Handles changes of the topology.
    fn react(&mut self, found: &[Found], now: Nanos, effects: &mut Vec<Effect>) {
        if found.is_empty() {
            return;
        }
        self.base_due.get_or_insert(now + BASE_DELAY);
        self.recovery.changed();
        let changed = self.begun && self.renew_map(effects);
        for change in found {
            self.tell(*change, effects);
        }
        if !self.begun {
            return;
        }
        let world = DecisionInput {
            map: &self.map,
            topology: &self.topology,
        };
        let mut again: BTreeSet<Key> = BTreeSet::new();
        if changed {
            again = self.ledger.broken(world);
            self.ledger.release(&again);
            self.lost.extend(again.iter().cloned());
        }
        let better =
            |change: &Found| matches!(change, Found::LinkUp(..) | Found::Host(_) | Found::Edge);
        if found.iter().any(better) {
            again.extend(self.waiting.iter().cloned());
            again.extend(self.lost.iter().cloned());
        }
        if !again.is_empty() {
            self.decide(again.into_iter().collect(), now, effects);
        }
        if changed || found.iter().any(better) {
            self.try_again(now);
        }
        if changed {
            self.protect_anew(now);
        }
    }

    fn tell(&self, change: Found, effects: &mut Vec<Effect>) {
        let link =
            |from: End, to: End| format!("{}>{}", self.name(from.datapath), self.name(to.datapath));
        let notice = match change {
            Found::LinkUp(from, to) => Notice::LinkUp {
                link: link(from, to),
            },
            Found::LinkDown(from, to) => Notice::LinkDown {
                link: link(from, to),
            },
            Found::Host(mac) => match self.topology.hosts.get(&mac) {
                Some(host) => match host.at {
                    Some(at) => Notice::Host {
                        host: host.name.clone(),
                        switch: self.name(at.datapath),
                        port: at.port,
                    },
                    None => return,
                },
                None => return,
            },
            Found::Edge => return,
        };
        effects.push(Effect::Notice(notice));
    }

    /// Copies the topology into the network of the analysis. True if that network has changed.
    fn renew_map(&mut self, effects: &mut Vec<Effect>) -> bool {
        match self.map.update(&self.topology) {
            Ok(changed) => {
                if changed {
                    self.improvement.stale = true;
                    self.ledger.network_changed(&self.map);
                }
                changed
            }
            Err(error) => {
                let problem = error.to_string();
                effects.push(Effect::Notice(Notice::Document { problem }));
                false
            }
        }
    }

    /// Decides requests and installs changed streams.
    fn decide(&mut self, keys: Vec<Key>, now: Nanos, effects: &mut Vec<Effect>) {
        self.decide_all(keys, now, effects);
        self.lay_answers(now, effects);
    }

    fn decide_all(&mut self, keys: Vec<Key>, now: Nanos, effects: &mut Vec<Effect>) {
        let mut brokers = false;
        for end in self.ledger.brokers(&keys, &self.topology) {
            if let Some(node) = self.map.node_at(end)
                && self.map.service_of(node).is_none()
            {
                self.map.server(node);
                brokers = true;
            }
        }
        if brokers {
            self.renew_map(effects);
        }
        let world = DecisionInput {
            map: &self.map,
            topology: &self.topology,
        };
        let outcomes = self.ledger.decide(keys, world);
        for (key, outcome) in outcomes {
            self.waiting.remove(&key);
            self.again.forget(&key);
            let was_lost = self.lost.remove(&key);
            let Some(held) = self.ledger.flows.get(&key) else {
                continue;
            };
            match outcome {
                Outcome::Admitted => {
                    self.protection.answers.push(key);
                    self.refresh_due.get_or_insert(now + REFRESH);
                }
                Outcome::Waiting(reason) if was_lost => {
                    let channel = Channel::of(&held.request, State::Failed, reason);
                    self.lose(key, channel, effects);
                }
                Outcome::Waiting(reason) => {
                    let channel = Channel::of(&held.request, State::Pending, reason);
                    self.waiting.insert(key);
                    self.write(channel, effects);
                }
                Outcome::Refused(reason) if was_lost => {
                    let channel = Channel::of(&held.request, State::Failed, reason);
                    self.lose(key, channel, effects);
                }
                Outcome::Refused(reason) => {
                    let channel = Channel::of(&held.request, State::Rejected, reason);
                    self.again.refused(key);
                    self.write(channel, effects);
                }
            }
        }
    }

    /// Handles a flow that lost its guarantee; it is retried when capacity becomes free.
    fn lose(&mut self, key: Key, channel: Channel, effects: &mut Vec<Effect>) {
        if self
            .written
            .get(&key)
            .is_none_or(|written| written.state != State::Failed)
        {
            effects.push(Effect::Notice(Notice::Lost {
                manager: channel.manager.clone(),
                flow: channel.flow.clone(),
                reason: channel.reason.clone(),
            }));
        }
        self.lost.insert(key);
        self.write(channel, effects);
    }

    fn lay_answers(&mut self, now: Nanos, effects: &mut Vec<Effect>) {
        let answers = std::mem::take(&mut self.protection.answers);
        self.lay(answers, now, effects);
    }

    /// Installs changed streams; when switches have confirmed, the requests in `answer` are
    /// answered.
    fn lay(&mut self, answer: Vec<Key>, now: Nanos, effects: &mut Vec<Effect>) {
        let touched = self.ledger.take_touched();
        if touched.is_empty() && answer.is_empty() {
            return;
        }
        let target = |header: Header| {
            let compile = |stream| {
                let police = self.ledger.police(stream);
                self.compiler.compile(stream, &self.map, police)
            };
            let entries = self.ledger.streams.get(&header).map(compile);
            Target {
                header,
                entries: entries.unwrap_or_default(),
                // Multicast copies and tagged packets need the entries of the next switches to be
                // installed first.
                at_once: !header.destination.is_multicast() && !self.compiler.tags,
            }
        };
        let targets = touched.into_iter().map(target).collect();
        let mut progress = Progress::default();
        self.updates.start(targets, answer, now, &mut progress);
        self.perform(progress, now, effects);
        self.protect_anew(now);
    }

    /// Emits the effects of an update.
    fn perform(&mut self, mut progress: Progress<Key>, now: Nanos, effects: &mut Vec<Effect>) {
        loop {
            if progress.is_empty() {
                return;
            }
            let Progress {
                work,
                answers,
                removed,
                given_up,
            } = std::mem::take(&mut progress);
            for (datapath, step, changes) in work {
                self.record(datapath, &changes);
                if !self.send(datapath, step, changes, effects) {
                    self.updates.done(datapath, step, None, now, &mut progress);
                }
            }
            for header in removed {
                if !self.ledger.streams.contains_key(&header) {
                    self.ledger.forget(&header);
                }
            }
            let mut failed = Vec::new();
            for (key, problem) in answers {
                match problem {
                    None if self.updates.will_answer(&key) => {}
                    None => self.answer(&key, effects),
                    Some(problem) => failed.push((key, problem)),
                }
            }
            if failed.is_empty() {
                continue;
            }
            self.ledger.release(failed.iter().map(|(key, _)| key));
            // An abandoned stream may carry other flows as well: it is installed again for them.
            self.ledger.touch(given_up);
            for (key, problem) in failed {
                if let Some(held) = self.ledger.flows.get(&key) {
                    let reason = format!("the network could not be set up: {problem}");
                    let channel = Channel::of(&held.request, State::Failed, reason);
                    self.lose(key, channel, effects);
                }
            }
            self.lay(Vec::new(), now, effects);
        }
    }

    /// Records changes in the plan of a switch.
    fn record(&mut self, datapath: u64, changes: &[Change]) {
        let name = self.name(datapath);
        let switch = self.plan.switches.entry(name).or_default();
        for change in changes {
            match change {
                Change::Set(matching, entry) => {
                    switch.entries.insert(*matching, entry.clone());
                }
                Change::Unset(matching) => {
                    switch.entries.remove(matching);
                }
                // The plan contains this change before it is sent.
                Change::Reset | Change::Base => {}
            }
        }
    }

    /// Sends changes to a switch. False if the switch is not connected: it is compared with the
    /// plan when it connects.
    fn send(
        &mut self,
        datapath: u64,
        step: u64,
        changes: Vec<Change>,
        effects: &mut Vec<Effect>,
    ) -> bool {
        let name = self.name(datapath);
        match self.switches.get_mut(&datapath) {
            Some(Link::OpenFlow(session)) if session.is_ready() => {
                let Some(plan) = self.plan.switches.get(&name) else {
                    return false;
                };
                let mut out = Vec::new();
                session.apply(&changes, plan, step, &mut out);
                effects.extend(out.into_iter().map(|(xid, message)| Effect::Send {
                    datapath,
                    xid,
                    message,
                }));
                true
            }
            Some(Link::Plans(true)) => {
                effects.push(Effect::Apply {
                    datapath,
                    step,
                    changes,
                });
                true
            }
            Some(Link::OpenFlow(_) | Link::Plans(false)) | None => false,
        }
    }

    fn answer(&mut self, key: &Key, effects: &mut Vec<Effect>) {
        if let Some(channel) = self.ledger.channel(key, &self.map, &self.topology) {
            self.write(channel, effects);
        }
    }

    fn write(&mut self, channel: Channel, effects: &mut Vec<Effect>) {
        let key = (channel.manager.clone(), channel.flow.clone());
        if self.written.get(&key) != Some(&channel) {
            self.written.insert(key, channel.clone());
            effects.push(Effect::Write(channel));
        }
    }

    fn tick(&mut self, now: Nanos, found: &mut Vec<Found>, effects: &mut Vec<Effect>) {
        self.topology.tick(now, found);
        if now >= self.next_probe {
            self.next_probe = now + self.intervals.probe;
            self.floods = 0;
            self.probe(effects);
            self.ask_hosts(effects);
        }
        if now >= self.next_statistics {
            self.next_statistics = now + self.intervals.statistics;
            self.ask_counters(effects);
        }
        if self.base_due.is_some_and(|due| due <= now) {
            self.base_due = None;
            self.renew_base(effects);
        }
        let mut progress = Progress::default();
        self.updates.tick(now, &mut progress);
        self.perform(progress, now, effects);
        if self.refresh_due.is_some_and(|due| due <= now) {
            self.refresh(now, effects);
        }
        if self.background_due.is_some_and(|due| due <= now) {
            self.background_due = None;
            self.protect(now, effects);
        }
        if let Some(key) = self.again.next(now) {
            self.decide(vec![key], now, effects);
        }
        self.improve(now, effects);
    }

    /// Recomputes some of the published bounds, and publishes those that have grown.
    fn refresh(&mut self, now: Nanos, effects: &mut Vec<Effect>) {
        let world = DecisionInput {
            map: &self.map,
            topology: &self.topology,
        };
        for key in self.ledger.refresh_bounds(REFRESHED, world) {
            if !self.updates.will_answer(&key) {
                self.answer(&key, effects);
            }
        }
        self.refresh_due = match self.ledger.is_refreshing() {
            true => Some(now + REFRESH_PAUSE),
            false => self.ledger.is_outgrown().then(|| now + REFRESH),
        };
    }

    /// Recomputes ports, and the entries for packets that belong to no flow.
    fn renew_base(&mut self, effects: &mut Vec<Effect>) {
        let mut hosts: BTreeMap<End, Vec<String>> = BTreeMap::new();
        for host in self.topology.hosts.values() {
            if let Some(at) = host.at {
                hosts.entry(at).or_default().push(host.name.clone());
            }
        }
        let mut changed = Vec::new();
        for (datapath, base) in bases(&self.topology) {
            let Some(switch) = self.topology.switches.get(&datapath) else {
                continue;
            };
            let port = |(number, port): (&u32, &crate::topology::Port)| {
                let end = End {
                    datapath,
                    port: *number,
                };
                let link = self.map.link_at(end);
                let rate = link
                    .and_then(|link| self.map.model().links.get(link))
                    .map(|link| link.rate);
                let to = match self.topology.far(end) {
                    Some(far) => FarEnd::Switch {
                        name: self.name(far.datapath),
                        port: far.port,
                    },
                    None => FarEnd::Edge(hosts.get(&end).cloned().unwrap_or_default()),
                };
                let port = Port {
                    name: port.state.name.clone(),
                    link: link.map(|link| self.map.link_name(link).to_owned()),
                    rate_bps: rate.unwrap_or(port.state.rate_bps),
                    to,
                };
                (*number, port)
            };
            let ports = switch.ports.iter().map(port).collect();
            let plan = self.plan.switches.entry(switch.name.clone()).or_default();
            let known = SwitchPlan {
                datapath: Some(datapath),
                ports,
                entries: std::mem::take(&mut plan.entries),
                base,
            };
            if (plan.datapath, &plan.ports, &plan.base)
                != (known.datapath, &known.ports, &known.base)
            {
                changed.push(datapath);
            }
            *plan = known;
        }
        for datapath in changed {
            self.steps += 1;
            let step = self.steps;
            self.send(datapath, step, vec![Change::Base], effects);
        }
    }
}

impl SwitchProtocol {
    /// Whether the switch is controlled by OpenFlow messages.
    fn is_openflow(self) -> bool {
        self == Self::OpenFlow
    }
}
