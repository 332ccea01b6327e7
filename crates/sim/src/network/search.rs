//! Looks for bad behaviours: the largest response of one flow at one
//! destination.
//!
//! Starts are critical instants, put together port by port along the path: at
//! each port a frame of every flow that joins there comes with the frame under
//! test. Hill climbing follows: frames are moved so that they meet others
//! exactly or one nanosecond before, jitters, delays, residuals, gaps and the
//! order at one instant are changed, and what is not worse is kept. A seed and a
//! number of runs determine everything. What is found is something that the
//! network can do, and so a lower limit of the worst case.

use punctual_model::network::Network;

use super::engine::{Engine, Observer, Worst};
use super::layout::{Layout, NONE};
use super::scenario::{FlowChoices, LinkChoices, Message, RepeatedChoice, Scenario};
use punctual_model::Rng;

/// The greatest number of messages of one flow in a scenario.
const MOST_MESSAGES: usize = 48;
/// The greatest number of transmissions in a scenario with which a search starts, over all flows.
const MOST_WORK: u64 = 60_000;

/// The worst behaviour that was found.
#[derive(Debug, Clone)]
pub struct SearchResult {
    /// The largest response and the message that had it.
    pub worst: Worst,
    /// A scenario that leads to it.
    pub scenario: Scenario,
    /// How many behaviours were run.
    pub runs: u64,
}

/// How long a search goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Effort {
    /// The greatest number of behaviours to run.
    pub runs: u64,
    /// A response time, ns, at which the search stops earlier.
    pub enough: Option<u64>,
}

/// Searches for the largest response time of a flow at the end of one of its paths. Equal arguments lead to
/// equal results.
pub fn search(
    network: &Network,
    flow: usize,
    path: usize,
    seed: u64,
    effort: Effort,
) -> SearchResult {
    let layout = Layout::new(network);
    Search::new(network, &layout, flow, path, seed).run(effort)
}

/// When a message came to a hop, and when it went on.
#[derive(Debug, Clone, Copy)]
struct Step {
    arrived: u64,
    started: u64,
}

const NEVER: Step = Step {
    arrived: u64::MAX,
    started: u64::MAX,
};

/// The times of all messages at all hops.
#[derive(Debug)]
struct Trace {
    hops: Vec<Vec<Step>>,
}

impl Trace {
    fn new(layout: &Layout) -> Self {
        Self {
            hops: vec![Vec::new(); layout.hops.len()],
        }
    }

    fn at(&self, hop: u32, message: u32) -> Option<Step> {
        let step = self.hops[hop as usize].get(message as usize)?;
        (step.started != u64::MAX).then_some(*step)
    }
}

impl Observer for Trace {
    fn arrived(&mut self, hop: usize, message: u32, now: u64) {
        let steps = &mut self.hops[hop];
        if steps.len() <= message as usize {
            steps.resize(message as usize + 1, NEVER);
        }
        let step = &mut steps[message as usize];
        // Of a message of several frames the first arrival counts.
        step.arrived = step.arrived.min(now);
    }

    fn started(&mut self, hop: usize, message: u32, now: u64) {
        if let Some(step) = self.hops[hop].get_mut(message as usize) {
            step.started = now;
        }
    }
}

/// What is needed to undo one change of a scenario.
enum Undo {
    Flow(usize, FlowChoices),
    Link(usize, LinkChoices),
}

/// The parameters of a scenario with which a search starts.
#[derive(Debug, Clone, Copy)]
struct Start {
    /// How long before the frame under test the frames of other flows come, ns.
    ahead: u64,
    /// With which delays frames of other flows come to the port that they share with the path.
    pace: Pace,
    /// Whether frames of higher priority come when the frame under test would begin to be sent, and not when
    /// it arrives.
    at_start: bool,
    /// How many messages of each other flow come before the one that is aligned with the frame under test.
    before: u64,
}

/// Delays of frames of another flow at the nodes before the shared port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pace {
    /// The greatest delays.
    Slow,
    /// The least delays.
    Fast,
    /// The greatest delays for the aligned message, the least for those after it.
    Bunched,
}

impl Start {
    /// A start in which all frames come at the same time.
    const PLAIN: Self = Self {
        ahead: 0,
        pace: Pace::Bunched,
        at_start: false,
        before: 0,
    };
}

struct Search<'a> {
    network: &'a Network,
    layout: &'a Layout,
    engine: Engine<'a>,
    trace: Trace,
    /// The trace of the scenario before the last change.
    spare: Trace,
    rng: Rng,
    flow: usize,
    path: usize,
    hops: Vec<u32>,
    /// For each hop of the path: the hops of other flows on the same link.
    others: Vec<Vec<u32>>,
    /// Flows that share links with the path, each with its first hop on a shared link and the index of that link
    /// on the path.
    meeting: Vec<(usize, u32, usize)>,
    runs: u64,
}

impl<'a> Search<'a> {
    fn new(network: &'a Network, layout: &'a Layout, flow: usize, path: usize, seed: u64) -> Self {
        let hops = layout.path(flow, path);
        let mut others = Vec::new();
        let mut meeting: Vec<(usize, u32, usize)> = Vec::new();
        for (place, hop) in hops.iter().enumerate() {
            let link = layout.hops[*hop as usize].link;
            let mut here = Vec::new();
            for (number, row) in layout.hops.iter().enumerate() {
                let other = row.flow as usize;
                if row.link != link || other == flow {
                    continue;
                }
                here.push(number as u32);
                if !meeting.iter().any(|(known, _, _)| *known == other) {
                    meeting.push((other, number as u32, place));
                }
            }
            others.push(here);
        }
        Self {
            network,
            layout,
            engine: Engine::new(layout),
            trace: Trace::new(layout),
            spare: Trace::new(layout),
            rng: Rng::new(seed),
            flow,
            path,
            hops,
            others,
            meeting,
            runs: 0,
        }
    }

    fn run(mut self, effort: Effort) -> SearchResult {
        let mut best: Option<(Worst, Scenario)> = None;
        let mut starts = self.starts();
        for part in [6, 8, 10] {
            let stop = (effort.runs * part / 10).max(1);
            let mut candidate: Option<(Worst, Scenario)> = None;
            for start in starts {
                let scenario = self.build(start);
                let worst = self.play(&scenario);
                if candidate
                    .as_ref()
                    .is_none_or(|(known, _)| worst.response > known.response)
                {
                    candidate = Some((worst, scenario));
                }
                // Climbing needs runs, too.
                if self.runs >= stop.saturating_sub(effort.runs / 4) {
                    break;
                }
            }
            let Some((_, scenario)) = candidate else {
                break;
            };
            let climbed = self.climb(scenario, stop, effort.enough);
            if best
                .as_ref()
                .is_none_or(|(known, _)| climbed.0.response > known.response)
            {
                best = Some(climbed);
            }
            let found = best.as_ref().map_or(0, |(worst, _)| worst.response);
            if effort.enough.is_some_and(|enough| found >= enough) {
                break;
            }
            starts = (0..4).map(|_| self.random_start()).collect();
        }
        let (worst, scenario) =
            best.unwrap_or_else(|| (Worst::default(), Scenario::silent(self.network)));
        SearchResult {
            worst,
            scenario,
            runs: self.runs,
        }
    }

    /// Runs a scenario and keeps its trace.
    fn play(&mut self, scenario: &Scenario) -> Worst {
        self.runs += 1;
        for steps in &mut self.trace.hops {
            steps.clear();
        }
        let mut play = scenario.play(self.layout);
        self.engine.run(&mut play, &mut self.trace);
        self.engine.worst(self.flow, self.path)
    }

    fn starts(&self) -> Vec<Start> {
        let mut starts = Vec::new();
        for (pace, at_start) in [
            (Pace::Bunched, false),
            (Pace::Fast, false),
            (Pace::Bunched, true),
            (Pace::Slow, true),
        ] {
            starts.push(Start {
                pace,
                at_start,
                ..Start::PLAIN
            });
        }
        let period = self.layout.flows[self.flow].period;
        for ahead in [1, 2, 4, 8].map(|k| k * period) {
            starts.push(Start {
                ahead,
                ..Start::PLAIN
            });
        }
        starts
    }

    fn random_start(&mut self) -> Start {
        let own = &self.layout.flows[self.flow];
        let ahead = match self.rng.below(4) {
            0 => 0,
            // Any length of backlog, the short ones as likely as the long.
            1 | 2 => {
                let doublings = self.rng.below(8);
                self.rng.below((own.period << doublings) / 8 + 1)
            }
            _ if self.meeting.is_empty() => 0,
            _ => {
                // When a later message of another flow comes with the one
                // under test.
                let (other, _, _) = *self.rng.pick(&self.meeting);
                let other = &self.layout.flows[other];
                let later = other.period * self.rng.within(1..=4);
                later.saturating_sub(other.jitter)
            }
        };
        Start {
            ahead,
            pace: *self
                .rng
                .pick(&[Pace::Bunched, Pace::Bunched, Pace::Fast, Pace::Slow]),
            at_start: self.rng.chance(30),
            before: *self.rng.pick(&[0, 0, 1, 2]),
        }
    }

    /// The time that a message takes from the queue at its source to the queue of a hop without other traffic, ns.
    fn latency(&self, scenario: &Scenario, hop: u32, pace: Pace) -> u64 {
        let rows = &self.layout.hops;
        let mut latency = 0;
        let mut row = &rows[hop as usize];
        while row.parent != NONE {
            let before = &rows[row.parent as usize];
            latency += before.cost
                + self.layout.links[before.link as usize].prop
                + if pace == Pace::Fast {
                    row.delay.0
                } else {
                    row.delay.1
                }
                + scenario.links[before.link as usize].residual.usual;
            row = before;
        }
        latency
    }

    /// Builds a scenario in which frames of other flows meet the frame under test.
    fn build(&mut self, start: Start) -> Scenario {
        let mut scenario = Scenario::silent(self.network);
        let layout = self.layout;
        let own = &layout.flows[self.flow];
        let longest = layout.flows.iter().map(|f| f.period + f.jitter).max();
        let origin = longest.unwrap_or(0).saturating_mul(8) + start.ahead + 1_000_000;
        // The flow itself: as late as it may be, and what of it is before.
        let earlier = (start.ahead / own.period).min(MOST_MESSAGES as u64 / 2);
        let test = origin - own.jitter;
        scenario.flows[self.flow].messages = (0..=earlier)
            .rev()
            .map(|k| Message {
                nominal_ns: test - k * own.period,
                late_ns: own.jitter,
            })
            .collect();
        scenario.flows[self.flow].rank = 1 << 20;
        scenario.flows[self.flow].rotation = self.last_copy();
        let message = earlier as u32;
        for place in 0..self.hops.len() {
            let joining: Vec<_> = self
                .meeting
                .iter()
                .filter(|(_, _, at)| *at == place)
                .copied()
                .collect();
            if joining.is_empty() {
                continue;
            }
            self.play(&scenario);
            let hop = self.hops[place];
            let Some(step) = self.trace.at(hop, message) else {
                continue;
            };
            for (_, first, _) in joining {
                let level = layout.hops[first as usize].level;
                let own_level = layout.hops[hop as usize].level;
                let meet = if level < own_level {
                    step.arrived.saturating_sub(1)
                } else if level > own_level && start.at_start {
                    step.started.saturating_sub(start.ahead)
                } else {
                    step.arrived.saturating_sub(start.ahead)
                };
                let end = step.started + own.period;
                self.fill(&mut scenario, first, meet, end, start);
            }
        }
        scenario
    }

    /// Gives the flow of a hop a message that comes to the hop at `meet` and is as late as its jitter allows; and
    /// further messages until `end`, which are not late.
    fn fill(&self, scenario: &mut Scenario, hop: u32, meet: u64, end: u64, start: Start) {
        let flow = self.layout.hops[hop as usize].flow as usize;
        let row = &self.layout.flows[flow];
        let queued = meet.saturating_sub(self.latency(scenario, hop, start.pace));
        let nominal = queued.saturating_sub(row.jitter);
        let hops = u64::from(row.hop_count) * u64::from(row.frames);
        let most =
            (MOST_WORK / hops / self.layout.flows.len() as u64).clamp(2, MOST_MESSAGES as u64);
        let after = (end.saturating_sub(queued) / row.period + 1).min(most);
        let before = start.before.min(nominal / row.period);
        let choices = &mut scenario.flows[flow];
        choices.messages = (0..=before + after)
            .map(|k| Message {
                nominal_ns: nominal - before * row.period + k * row.period,
                late_ns: if k <= before { row.jitter } else { 0 },
            })
            .collect();
        let rows = self.layout.hops.iter().skip(row.first_hop as usize);
        for (delays, row) in choices.delays.iter_mut().zip(rows) {
            let (least, most) = row.delay;
            *delays = match start.pace {
                Pace::Slow => RepeatedChoice::always(most),
                Pace::Fast => RepeatedChoice::always(least),
                Pace::Bunched => RepeatedChoice {
                    first: Some((before as u32 + 1, most)),
                    ..RepeatedChoice::always(least)
                },
            };
        }
    }

    /// The rotation with which the copy for the path is made last.
    fn last_copy(&self) -> u32 {
        for pair in self.hops.windows(2) {
            let (start, end) = self.layout.hops[pair[0] as usize].children;
            let children = &self.layout.children[start as usize..end as usize];
            if children.len() > 1
                && let Some(at) = children.iter().position(|child| *child == pair[1])
            {
                return at as u32 + 1;
            }
        }
        0
    }

    /// Changes the scenario as long as runs are left, and keeps each change that does not make the response time
    /// smaller.
    fn climb(
        &mut self,
        mut scenario: Scenario,
        stop: u64,
        enough: Option<u64>,
    ) -> (Worst, Scenario) {
        // The trace is still that of the last start.
        let mut worst = self.play(&scenario);
        let mut last_gain = self.runs;
        let patience = (stop / 3).max(400);
        while self.runs < stop
            && self.runs - last_gain <= patience
            && enough.is_none_or(|enough| worst.response < enough)
        {
            let mut undo = Vec::new();
            let changes = match self.rng.below(10) {
                0..6 => 1,
                6..9 => 2,
                _ => 4,
            };
            for _ in 0..changes {
                self.change(&mut scenario, worst.message, &mut undo);
            }
            if undo.is_empty() {
                // It counts, so that this ends where nothing can be changed.
                self.runs += 1;
                continue;
            }
            std::mem::swap(&mut self.trace, &mut self.spare);
            let now = self.play(&scenario);
            if now.response >= worst.response {
                if now.response > worst.response {
                    last_gain = self.runs;
                }
                worst = now;
                continue;
            }
            std::mem::swap(&mut self.trace, &mut self.spare);
            for change in undo.into_iter().rev() {
                match change {
                    Undo::Flow(index, choices) => scenario.flows[index] = choices,
                    Undo::Link(index, choices) => scenario.links[index] = choices,
                }
            }
        }
        (worst, scenario)
    }

    fn change(&mut self, scenario: &mut Scenario, message: u32, undo: &mut Vec<Undo>) {
        let kind = self.rng.below(100);
        if kind < 8 {
            self.change_residual(scenario, undo);
            return;
        }
        let flow = self.some_flow(kind < 20);
        let before = scenario.flows[flow].clone();
        match kind {
            8..20 => self.change_delay(&mut scenario.flows[flow], flow),
            20..30 => self.refill(scenario, flow, message),
            30..55 => self.meet(&mut scenario.flows[flow], flow, message),
            55..65 => self.shift(&mut scenario.flows[flow], flow),
            65..73 => self.change_gap(&mut scenario.flows[flow], flow),
            73..87 => self.change_jitter(&mut scenario.flows[flow], flow),
            87..94 => self.change_messages(&mut scenario.flows[flow], flow),
            _ => {
                let choices = &mut scenario.flows[flow];
                if self.rng.chance(70) {
                    choices.rank = self.rng.below(1 << 21) as u32;
                } else {
                    choices.rotation = self.rng.below(16) as u32;
                }
            }
        }
        if scenario.flows[flow] != before {
            undo.push(Undo::Flow(flow, before));
        }
    }

    /// Chooses a flow to change, mostly one that shares links with the path.
    fn some_flow(&mut self, own: bool) -> usize {
        let all = self.layout.flows.len() as u64;
        if self.rng.chance(if own { 25 } else { 6 }) || self.meeting.is_empty() {
            return self.flow;
        }
        if self.rng.chance(8) {
            return self.rng.below(all) as usize;
        }
        self.rng.pick(&self.meeting).0
    }

    fn change_residual(&mut self, scenario: &mut Scenario, undo: &mut Vec<Undo>) {
        let link = if self.rng.chance(70) {
            let hop = *self.rng.pick(&self.hops);
            self.layout.hops[hop as usize].link as usize
        } else {
            self.rng.below(self.layout.links.len() as u64) as usize
        };
        let most = self.layout.links[link].best_effort.saturating_sub(1);
        if most == 0 {
            return;
        }
        let value = match self.rng.below(3) {
            0 => 0,
            1 => most,
            _ => self.rng.below(most + 1),
        };
        let before = scenario.links[link].clone();
        let residual = &mut scenario.links[link].residual;
        if self.rng.chance(30) {
            *residual = RepeatedChoice::always(value);
        } else {
            except(residual, self.rng.below(6) as u32, value);
        }
        if scenario.links[link] != before {
            undo.push(Undo::Link(link, before));
        }
    }

    fn change_delay(&mut self, choices: &mut FlowChoices, flow: usize) {
        let row = &self.layout.flows[flow];
        let number = self.rng.below(u64::from(row.hop_count)) as usize;
        let (least, most) = self.layout.hops[row.first_hop as usize + number].delay;
        if least == most {
            return;
        }
        let value = match self.rng.below(5) {
            0 | 1 => least,
            2 | 3 => most,
            _ => self.rng.within(least..=most),
        };
        let messages = choices.messages.len() as u64;
        let message = self.rng.below(messages + 1) as u32;
        let delays = &mut choices.delays[number];
        match self.rng.below(10) {
            0..3 => *delays = RepeatedChoice::always(value),
            3..6 => {
                *delays = RepeatedChoice {
                    first: Some((message, most)),
                    ..RepeatedChoice::always(least)
                }
            }
            _ => except(delays, message, value),
        }
    }

    /// Replaces the messages of a flow that shares links with the path.
    fn refill(&mut self, scenario: &mut Scenario, flow: usize, message: u32) {
        let Some((_, first, place)) = self.meeting.iter().find(|(f, _, _)| *f == flow).copied()
        else {
            return;
        };
        let Some(step) = self.trace.at(self.hops[place], message) else {
            return;
        };
        let start = self.random_start();
        let meet = if start.at_start {
            step.started
        } else {
            step.arrived
        };
        let meet = meet.saturating_sub(start.ahead + self.rng.below(2));
        let end = step.started + self.layout.flows[flow].period;
        self.fill(scenario, first, meet, end, start);
    }

    /// Moves a flow in time so that one of its messages comes to a port together with another message, just
    /// before it, or when the transmission of that begins.
    fn meet(&mut self, choices: &mut FlowChoices, flow: usize, message: u32) {
        let row = &self.layout.flows[flow];
        if choices.messages.is_empty() {
            return;
        }
        let mine = self.rng.below(choices.messages.len() as u64) as u32;
        // Where: mostly on the path, with the frame under test.
        let (hop, other, their) = if self.rng.chance(75) && flow != self.flow {
            let place = self.rng.below(self.hops.len() as u64) as usize;
            let here: Vec<u32> = self.others[place]
                .iter()
                .copied()
                .filter(|hop| self.layout.hops[*hop as usize].flow as usize == flow)
                .collect();
            if here.is_empty() {
                return;
            }
            (*self.rng.pick(&here), self.hops[place], message)
        } else {
            let hop = row.first_hop + self.rng.below(u64::from(row.hop_count)) as u32;
            let link = self.layout.hops[hop as usize].link;
            let rows = self.layout.hops.iter().enumerate();
            let here: Vec<u32> = rows
                .filter(|(_, other)| other.link == link && other.flow as usize != flow)
                .map(|(number, _)| number as u32)
                .collect();
            if here.is_empty() {
                return;
            }
            let other = *self.rng.pick(&here);
            let count = self.trace.hops[other as usize].len() as u64;
            if count == 0 {
                return;
            }
            (hop, other, self.rng.below(count) as u32)
        };
        let (Some(now), Some(then)) = (self.trace.at(hop, mine), self.trace.at(other, their))
        else {
            return;
        };
        let target = match self.rng.below(6) {
            0 => then.arrived,
            1 => then.arrived.saturating_sub(1),
            2 => then.started,
            3 => then.started.saturating_sub(1),
            4 => then.arrived + 1,
            _ => self.rng.within(then.arrived..=then.started),
        };
        let by = target as i64 - now.arrived as i64;
        match self.rng.below(4) {
            // Only what comes later, or what came before.
            0 if by > 0 => move_messages(&mut choices.messages[mine as usize..], by),
            0 if by < 0 => move_messages(&mut choices.messages[..=mine as usize], by),
            _ => move_messages(&mut choices.messages, by),
        }
    }

    fn shift(&mut self, choices: &mut FlowChoices, flow: usize) {
        let row = &self.layout.flows[flow];
        let range = match self.rng.below(4) {
            0 => 2,
            1 => self.layout.hops[row.first_hop as usize].cost * 2,
            2 => row.jitter + 1,
            _ => row.period,
        };
        let by = self.rng.within(0..=2 * range) as i64 - range as i64;
        move_messages(&mut choices.messages, by);
    }

    /// Makes the pause between two messages longer or shorter.
    fn change_gap(&mut self, choices: &mut FlowChoices, flow: usize) {
        let row = &self.layout.flows[flow];
        let count = choices.messages.len();
        if count < 2 {
            return;
        }
        let at = self.rng.within(1..=count as u64 - 1) as usize;
        let pause = choices.messages[at].nominal_ns - choices.messages[at - 1].nominal_ns;
        let by = match self.rng.below(3) {
            0 => row.period as i64 - pause as i64,
            1 => self.rng.below(row.period) as i64,
            _ => self
                .rng
                .below(2 * self.layout.hops[row.first_hop as usize].cost) as i64,
        };
        if self.rng.chance(50) {
            move_messages(&mut choices.messages[at..], by);
        } else {
            move_messages(&mut choices.messages[..at], -by);
        }
    }

    /// Makes all messages up to one late and those after it not; or changes whether one message is late. That
    /// message is queued at the same time as before.
    fn change_jitter(&mut self, choices: &mut FlowChoices, flow: usize) {
        let row = &self.layout.flows[flow];
        let count = choices.messages.len();
        if row.jitter == 0 || count == 0 {
            return;
        }
        let at = self.rng.below(count as u64) as usize;
        let before = choices.messages[at].late_ns;
        match self.rng.below(6) {
            0 | 1 => {
                for (number, message) in choices.messages.iter_mut().enumerate() {
                    message.late_ns = if number <= at { row.jitter } else { 0 };
                }
            }
            2 => {
                for message in &mut choices.messages {
                    message.late_ns = row.jitter;
                }
            }
            3 => choices.messages[at].late_ns = row.jitter,
            4 => choices.messages[at].late_ns = 0,
            _ => choices.messages[at].late_ns = self.rng.within(0..=row.jitter),
        }
        let by = before as i64 - choices.messages[at].late_ns as i64;
        if self.rng.chance(60) {
            move_messages(&mut choices.messages, by);
        }
    }

    /// Adds or removes a message.
    fn change_messages(&mut self, choices: &mut FlowChoices, flow: usize) {
        let row = &self.layout.flows[flow];
        let messages = &mut choices.messages;
        let (Some(first), Some(last)) = (messages.first().copied(), messages.last().copied())
        else {
            return;
        };
        let full = messages.len() >= MOST_MESSAGES;
        match self.rng.below(4) {
            0 if !full => messages.push(Message {
                nominal_ns: last.nominal_ns + row.period,
                late_ns: 0,
            }),
            1 if !full => {
                if let Some(nominal_ns) = first.nominal_ns.checked_sub(row.period) {
                    let late_ns = row.jitter;
                    messages.insert(
                        0,
                        Message {
                            nominal_ns,
                            late_ns,
                        },
                    );
                    // The exceptions are for the same messages as before.
                    for delays in &mut choices.delays {
                        let except = delays.except.iter_mut().map(|(message, _)| message);
                        for message in except.chain(delays.first.as_mut().map(|(count, _)| count)) {
                            *message += 1;
                        }
                    }
                }
            }
            _ if messages.len() > 1 => {
                let at = self.rng.below(messages.len() as u64) as usize;
                messages.remove(at);
            }
            _ => {}
        }
    }
}

/// Moves messages in time, unless one would be released before 0. Messages that are not moved keep the
/// least distance to the moved ones only if these are moved away from them.
fn move_messages(messages: &mut [Message], by: i64) {
    let moved = |message: &Message| message.nominal_ns.checked_add_signed(by);
    if messages.iter().all(|message| moved(message).is_some()) {
        for message in messages {
            if let Some(time) = moved(message) {
                message.nominal_ns = time;
            }
        }
    }
}

fn except(varying: &mut RepeatedChoice, index: u32, value: u64) {
    varying.except.retain(|(at, _)| *at != index);
    if value != varying.usual {
        varying.except.push((index, value));
    }
}
