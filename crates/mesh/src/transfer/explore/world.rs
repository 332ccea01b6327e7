//! Two or three brokers in a line, a client that roams, a publisher, and what is under way.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::rc::Rc;

use super::super::{
    Answer, Event, Extent, FenceAnswer, HomeId, Located, Mark, Stamp, Stub, Timer, TransferId,
    TransferMessage, Transfers,
};
use super::flaw::Flaw;

/// The one client.
pub(super) const CLIENT: &str = "c";
/// Brokers at most.
pub(super) const MAX: usize = 3;

/// How much may happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Budget {
    /// CONNECTs to any broker, without and with Clean Start.
    pub(super) moves: u8,
    pub(super) cleans: u8,
    /// CONNECTs to the same broker when nothing else happens.
    pub(super) retries: u8,
    pub(super) messages: u8,
    pub(super) cuts: u8,
    pub(super) crashes: u8,
    /// Connections between brokers that break and are there again at once: what was not acknowledged
    /// is lost, or comes twice.
    pub(super) resets: u8,
    /// Timers of freezes and waiting clients that are due although something is under way.
    pub(super) hasty: u8,
    /// Control messages that come twice.
    pub(super) repeats: u8,
    /// Look-ups that are not waited for any more, with what was answered until then.
    pub(super) silences: u8,
}

/// What does not change.
#[derive(Debug, Clone, Copy)]
pub(super) struct Scope {
    pub(super) brokers: usize,
    /// Where the session is at first, and where messages are published.
    pub(super) home: usize,
    pub(super) publisher: usize,
    /// Brokers, a bit each, with a subscriber that stays.
    pub(super) others: u8,
    /// Brokers, a bit each, that may crash.
    pub(super) frail: u8,
    pub(super) budget: Budget,
    /// Parts of a snapshot.
    pub(super) parts: u32,
    /// Whether control messages overtake each other.
    pub(super) reorder: bool,
    /// Whether clocks agree; otherwise they stand still.
    pub(super) clocks: bool,
    /// Whether writes take time.
    pub(super) slow_disk: bool,
    /// Whether brokers answer fences one by one, twice; otherwise all at one moment.
    pub(super) slow_fence: bool,
    /// Whether brokers learn one by one that reach has changed.
    pub(super) slow_reach: bool,
    /// Whether it takes time to ask for claims; otherwise `Resync` and its answer arrive at once.
    pub(super) slow_resync: bool,
    /// In which order states are looked at; depth first needs a fraction of the memory.
    pub(super) depth_first: bool,
    pub(super) flaw: Flaw,
}

/// What a session has, as bits by message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(super) struct Content {
    pub(super) subscribed: bool,
    pub(super) queue: u8,
    pub(super) sent: u8,
    pub(super) released: u8,
    pub(super) history: u8,
    /// Which line of sessions it is of.
    pub(super) line: u8,
}

impl Content {
    pub(super) fn undelivered(&self) -> u8 {
        self.queue | self.sent
    }

    pub(super) fn queue_new(&mut self, message: u8) {
        self.queue |= message & !self.history;
        self.history |= message;
    }

    pub(super) fn encode(&self) -> [u8; 6] {
        let Self {
            subscribed,
            queue,
            sent,
            released,
            history,
            line,
        } = *self;
        [u8::from(subscribed), queue, sent, released, history, line]
    }

    pub(super) fn decode(bytes: &[u8]) -> Self {
        let [subscribed, queue, sent, released, history, line] = *bytes else {
            return Self::default();
        };
        Self {
            subscribed: subscribed == 1,
            queue,
            sent,
            released,
            history,
            line,
        }
    }
}

/// What is in a link queue.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Packet {
    Publication(u8),
    /// A message, for which broker, accepted for a session of the first epoch, forwarded to the second.
    ForSession(u8, u8, Rc<(Stamp, Stamp)>),
}

/// What survives a crash.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(super) struct Durable {
    pub(super) session: Option<(Mark, Content)>,
    pub(super) copies: BTreeMap<TransferId, (HomeId, Mark, Content)>,
    pub(super) outcomes: BTreeMap<TransferId, HomeId>,
    /// With whether it has the subscription.
    pub(super) stub: Option<(Stub, bool)>,
    pub(super) seen: u8,
    pub(super) out: [Vec<Packet>; MAX],
}

/// A look-up of one broker.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Lookup {
    pub(super) at: Stamp,
    pub(super) clean: bool,
    pub(super) asked: u8,
    pub(super) missing: u8,
    pub(super) answers: Vec<(HomeId, Located)>,
    /// Nobody waits for more answers; the question goes on to all the same.
    pub(super) is_over: bool,
}

/// A fence of one broker.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Fence {
    pub(super) stub: Stub,
    pub(super) round: u8,
    pub(super) answered: u8,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Broker {
    /// `None` while it is down.
    pub(super) machine: Option<Transfers>,
    pub(super) starts: u64,
    pub(super) memory: Durable,
    /// What is on the disk, and what will be, with the number of the write.
    pub(super) disk: Option<Durable>,
    pub(super) writes: VecDeque<(u64, Durable)>,
    /// What a frozen session had when it was frozen.
    pub(super) snapshot: Option<u8>,
    pub(super) parts: Vec<u8>,
    pub(super) connection: Option<Stamp>,
    pub(super) lookup: Option<Lookup>,
    pub(super) fence: Option<Fence>,
    pub(super) timers: BTreeSet<Timer>,
    /// Neighbours that want messages.
    pub(super) wanted: [bool; MAX],
    /// Whom it believes to reach.
    pub(super) reach: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum ClientState {
    Off,
    Waiting,
    Connected,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Client {
    pub(super) at: Stamp,
    pub(super) place: usize,
    pub(super) state: ClientState,
    /// CONNACK on its way, with Session Present.
    pub(super) connack: Option<bool>,
    /// Identifiers of QoS 2 that it has, by line of sessions.
    pub(super) has: [u8; 8],
    pub(super) delivered: [u8; 3],
    /// It has no session, as far as it knows, and is to subscribe.
    pub(super) needs: bool,
    /// It was told so at least once.
    pub(super) anew: bool,
    /// Its session began with its Clean Start.
    pub(super) is_clean: bool,
    /// It got something of a session that it had discarded.
    pub(super) got_old: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct World {
    pub(super) brokers: Vec<Rc<Broker>>,
    /// Whether the link from each to the next is up.
    pub(super) links: [bool; MAX - 1],
    pub(super) control: Vec<(u8, u8, Rc<TransferMessage>)>,
    pub(super) client: Client,
    pub(super) left: Budget,
    pub(super) connects: u8,
    pub(super) lines: u8,
    pub(super) published: u8,
    /// Messages that were acknowledged to the publisher and that the session is owed.
    pub(super) owed: u8,
    /// A message was forwarded to a session that is not later than the one it came for.
    pub(super) is_sent_back: bool,
    /// A message has come where nothing is known of the client.
    pub(super) is_lost: bool,
}

/// What may happen next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    Publish,
    /// The first packet of a link queue arrives; or is to come again, as the connection breaks.
    Carry {
        from: u8,
        to: u8,
        again: bool,
    },
    TellInterest {
        from: u8,
        to: u8,
    },
    /// A control message arrives; or is to come again.
    Deliver {
        index: u8,
        again: bool,
    },
    AskFor {
        by: u8,
        of: u8,
    },
    EndLookup(u8),
    /// Waits for no more answers.
    GiveUp(u8),
    Fence {
        by: u8,
        of: u8,
    },
    PassFence(u8),
    Write(u8),
    NoticeReach(u8),
    /// Its timer with this index is due.
    Due {
        broker: u8,
        index: u8,
    },
    HearConnack,
    Confirm,
    SendMessage(u8),
    SendAgain(u8),
    Acknowledge(u8),
    Release(u8),
    Complete(u8),
    SeeClosed,
    Connect {
        broker: u8,
        clean: bool,
    },
    Retry,
    Cut(u8),
    Heal(u8),
    Crash(u8),
    Restart(u8),
    Reset(u8),
    Hurry {
        broker: u8,
        index: u8,
    },
}

impl Step {
    /// Whether nothing makes it happen.
    pub(super) fn is_voluntary(self) -> bool {
        matches!(
            self,
            Self::Connect { .. }
                | Self::Cut(_)
                | Self::Crash(_)
                | Self::Reset(_)
                | Self::Hurry { .. }
                | Self::GiveUp(_)
                | Self::Carry { again: true, .. }
                | Self::Deliver { again: true, .. }
        )
    }
}

pub(super) fn home(broker: usize) -> HomeId {
    HomeId::new(["0", "1", "2"][broker]).unwrap()
}

pub(super) fn number(home: &HomeId) -> usize {
    home.as_str().parse().unwrap()
}

fn hash(what: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    what.hash(&mut hasher);
    hasher.finish()
}

fn between(a: usize, b: usize) -> (usize, usize) {
    (a.min(b), a.max(b))
}

impl World {
    /// Fingerprints of the brokers; of those that are the same as `before` the same.
    pub(super) fn prints(&self, before: Option<(&Self, [u64; MAX])>) -> [u64; MAX] {
        let mut prints = [0; MAX];
        for (k, broker) in self.brokers.iter().enumerate() {
            let same = before.filter(|(world, _)| Rc::ptr_eq(broker, &world.brokers[k]));
            prints[k] = same.map_or_else(|| hash(broker), |(_, prints)| prints[k]);
        }
        prints
    }

    /// Fingerprint of all, with those of the brokers.
    pub(super) fn print(&self, brokers: [u64; MAX]) -> u64 {
        let Self {
            brokers: _,
            links,
            control,
            client,
            left,
            connects,
            lines,
            published,
            owed,
            is_sent_back,
            is_lost,
        } = self;
        let numbers = (connects, lines, published, owed, is_sent_back, is_lost);
        hash(&(brokers, links, control, client, left, numbers))
    }

    pub(super) fn broker(&mut self, broker: usize) -> &mut Broker {
        Rc::make_mut(&mut self.brokers[broker])
    }

    pub(super) fn is_up(&self, broker: usize) -> bool {
        self.brokers[broker].machine.is_some()
    }

    pub(super) fn reaches(&self, a: usize, b: usize) -> bool {
        let (a, b) = between(a, b);
        (a..=b).all(|k| self.is_up(k)) && (a..b).all(|k| self.links[k])
    }

    pub(super) fn is_all_up(&self) -> bool {
        self.reaches(0, self.brokers.len() - 1)
    }

    pub(super) fn next_hop(from: usize, to: usize) -> usize {
        if to > from { from + 1 } else { from - 1 }
    }

    pub(super) fn neighbours(&self, broker: usize) -> impl Iterator<Item = usize> + use<> {
        let n = self.brokers.len();
        (0..n).filter(move |k| k.abs_diff(broker) == 1)
    }

    fn wants_locally(&self, scope: &Scope, broker: usize) -> bool {
        let memory = &self.brokers[broker].memory;
        let session = memory.session.as_ref();
        scope.others >> broker & 1 == 1
            || session.is_some_and(|(_, content)| content.subscribed)
            || memory
                .stub
                .as_ref()
                .is_some_and(|(_, subscribed)| *subscribed)
    }

    pub(super) fn interest(&self, scope: &Scope, of: usize, told: usize) -> bool {
        let mut others = self.neighbours(of).filter(|k| *k != told);
        self.wants_locally(scope, of) || others.any(|k| self.brokers[of].wanted[k])
    }

    fn is_interest_told(&self, scope: &Scope) -> bool {
        (0..self.brokers.len()).all(|of| {
            let mut to = self.neighbours(of);
            to.all(|to| self.brokers[to].wanted[of] == self.interest(scope, of, to))
        })
    }

    /// Whether a control message is under way between the two.
    fn talk(&self, a: usize, b: usize) -> bool {
        let pair = between(a, b);
        let mut control = self.control.iter();
        control.any(|(from, to, _)| between((*from).into(), (*to).into()) == pair)
    }

    /// Whether a timer is due, and whether it could be although something is under way.
    fn is_due(&self, broker: usize, timer: &Timer) -> (bool, bool) {
        let this = &self.brokers[broker];
        let Some(machine) = &this.machine else {
            return (false, false);
        };
        let silent = |home: &HomeId| {
            let other = number(home);
            self.reaches(broker, other) && !self.talk(broker, other)
        };
        match timer {
            Timer::Connect(at, _) => match machine.waits_for_transfer(CLIENT, at) {
                Some(from) => {
                    let owner = number(&from);
                    let copy = this.memory.copies.keys().any(|id| id.at == *at);
                    let is_due = !(self.talk(broker, owner) || copy && self.reaches(broker, owner));
                    (is_due, true)
                }
                None => (false, false),
            },
            Timer::Frozen(freeze, _) => match machine.frozen_for(CLIENT, *freeze) {
                Some((id, to)) => {
                    let new = number(&to);
                    let copy = self.brokers[new].memory.copies.contains_key(&id);
                    let is_due = !self.reaches(broker, new) || !copy && !self.talk(broker, new);
                    (is_due, true)
                }
                None => (false, false),
            },
            Timer::Stored(id, _) => {
                let copy = this.memory.copies.get(id);
                (copy.is_some_and(|(from, ..)| silent(from)), false)
            }
            Timer::Commit(id, _) => {
                let outcome = this.memory.outcomes.get(id);
                (outcome.is_some_and(silent), false)
            }
            Timer::Claim(_) => {
                let mut open = machine.unanswered_claims(CLIENT).into_iter();
                (open.any(|home| silent(&home)), false)
            }
            Timer::Resync(home, _) => (machine.awaits(home) && silent(home), false),
            Timer::Queued(_) | Timer::Lookup(_) | Timer::Fence(_) => (false, false),
            Timer::Keep(..) | Timer::Sweep | Timer::Next => (false, false),
        }
    }

    /// All that may happen.
    pub(super) fn steps(&self, scope: &Scope) -> Vec<Step> {
        let mut steps = Vec::new();
        let n = self.brokers.len();
        if self.published < scope.budget.messages && self.is_settled(scope.publisher) {
            steps.push(Step::Publish);
        }
        for at in 0..n {
            self.link_steps(scope, at, &mut steps);
            self.broker_steps(scope, at, &mut steps);
        }
        for index in 0..self.control.len() {
            let (from, to, _) = self.control[index];
            let mut before = self.control[..index].iter();
            if scope.reorder || !before.any(|it| (it.0, it.1) == (from, to)) {
                let index = index as u8;
                steps.push(Step::Deliver {
                    index,
                    again: false,
                });
                if self.left.repeats > 0 {
                    steps.push(Step::Deliver { index, again: true });
                }
            }
        }
        self.client_steps(&mut steps);
        let is_quiet = steps.iter().all(|step| step.is_voluntary());
        for k in 0..n - 1 {
            match self.links[k] {
                false => steps.push(Step::Heal(k as u8)),
                true if self.left.cuts > 0 => steps.push(Step::Cut(k as u8)),
                true => {}
            }
            if self.left.resets > 0 && self.reaches(k, k + 1) {
                steps.push(Step::Reset(k as u8));
            }
        }
        for k in 0..n {
            match self.is_up(k) {
                false => steps.push(Step::Restart(k as u8)),
                true if self.left.crashes > 0 && scope.frail >> k & 1 == 1 => {
                    steps.push(Step::Crash(k as u8));
                }
                true => {}
            }
        }
        let is_whole = self.is_all_up() && is_quiet;
        let client = &self.client;
        if is_whole && client.state == ClientState::Off && self.left.retries > 0 {
            steps.push(Step::Retry);
        }
        steps
    }

    /// Up, and with nothing that waits for the disk.
    pub(super) fn is_settled(&self, broker: usize) -> bool {
        self.is_up(broker) && self.brokers[broker].writes.is_empty()
    }

    fn link_steps(&self, scope: &Scope, at: usize, steps: &mut Vec<Step>) {
        for to in self.neighbours(at).filter(|to| self.reaches(at, *to)) {
            let (from, other) = (at as u8, to as u8);
            let settled = self.is_settled(at) && self.is_settled(to);
            if settled && !self.brokers[at].memory.out[to].is_empty() {
                let to = other;
                steps.push(Step::Carry {
                    from,
                    to,
                    again: false,
                });
                if self.left.resets > 0 {
                    steps.push(Step::Carry {
                        from,
                        to,
                        again: true,
                    });
                }
            }
            if self.brokers[to].wanted[at] != self.interest(scope, at, to) {
                steps.push(Step::TellInterest { from, to: other });
            }
        }
    }

    fn broker_steps(&self, scope: &Scope, at: usize, steps: &mut Vec<Step>) {
        let this = &self.brokers[at];
        if this.machine.is_none() {
            return;
        }
        let (n, by) = (self.brokers.len(), at as u8);
        if let Some(lookup) = &this.lookup {
            let others = (0..n).filter(|of| *of != at);
            // Who was asked may answer later, and is asked again if it has crashed meanwhile.
            let has_answered = |of: usize| {
                let mut answers = lookup.answers.iter();
                let is_asked = lookup.is_over && lookup.asked >> of & 1 == 1;
                is_asked
                    || lookup.missing >> of & 1 == 1
                    || answers.any(|(home, _)| number(home) == of)
            };
            let mut is_over = true;
            for of in others.filter(|of| !has_answered(*of)) {
                is_over = false;
                let is_new = lookup.asked >> of & 1 == 0;
                if is_new || !self.reaches(at, of) || self.is_settled(of) {
                    steps.push(Step::AskFor { by, of: of as u8 });
                }
            }
            if is_over {
                steps.push(Step::EndLookup(by));
            } else if !lookup.is_over && self.left.silences > 0 {
                steps.push(Step::GiveUp(by));
            }
        }
        if let Some(fence) = &this.fence
            && self.is_all_up()
        {
            match scope.slow_fence {
                true => {
                    let others = (0..n).filter(|of| *of != at && fence.answered >> of & 1 == 0);
                    for of in others.filter(|of| self.fence_may_be_answered(scope, at, *of)) {
                        steps.push(Step::Fence { by, of: of as u8 });
                    }
                }
                false => self.fence_at_once(scope, at, steps),
            }
        }
        if !this.writes.is_empty() {
            steps.push(Step::Write(by));
        }
        if this.reach != self.reach_of(at) {
            steps.push(Step::NoticeReach(by));
        }
        for (index, timer) in this.timers.iter().enumerate() {
            let (broker, index) = (by, index as u8);
            match self.is_due(at, timer) {
                (true, _) => steps.push(Step::Due { broker, index }),
                (_, true) if self.left.hasty > 0 => steps.push(Step::Hurry { broker, index }),
                _ => {}
            }
        }
        if self.left.moves > 0 || self.left.cleans > 0 {
            let is_there = self.client.place == at && self.client.state == ClientState::Connected;
            if !is_there {
                let connect = |clean| Step::Connect { broker: by, clean };
                steps.extend((self.left.moves > 0).then(|| connect(false)));
                steps.extend((self.left.cleans > 0).then(|| connect(true)));
            }
        }
    }

    pub(super) fn reach_of(&self, broker: usize) -> u8 {
        let others = (0..self.brokers.len()).filter(|k| *k != broker && self.reaches(broker, *k));
        others.fold(0, |set, k| set | 1 << k)
    }

    /// Whether nothing at a broker, or on its way from there, is in the way of the fence of another.
    fn fence_may_be_answered(&self, scope: &Scope, by: usize, of: usize) -> bool {
        let Some(fence) = &self.brokers[by].fence else {
            return false;
        };
        let memory = &self.brokers[of].memory;
        let mut forwarded = memory.out.iter().flatten();
        let is_for = |packet: &Packet| matches!(packet, Packet::ForSession(_, to, _) if usize::from(*to) == by);
        let leads = forwarded.any(is_for);
        let queue = &memory.out[Self::next_hop(of, by)];
        let is_flushed = !queue.iter().any(|it| matches!(it, Packet::Publication(_)));
        let mut behind = (0..self.brokers.len()).filter(|k| match of > by {
            true => *k > of,
            false => *k < of,
        });
        behind.all(|k| fence.answered >> k & 1 == 1)
            && is_flushed
            && !leads
            && self.is_interest_told(scope)
    }

    /// The fence passes where all brokers would answer it at one moment.
    fn fence_at_once(&self, scope: &Scope, by: usize, steps: &mut Vec<Step>) {
        let Some(fence) = &self.brokers[by].fence else {
            return;
        };
        let mut all = self.clone();
        if let Some(fence) = &mut all.broker(by).fence {
            fence.answered = !0;
        }
        let mut is_clear = true;
        for of in (0..self.brokers.len()).filter(|of| *of != by) {
            let mut then = self.clone();
            let answer = then.ask_fence(scope, &home(by), &fence.stub, of);
            if answer != FenceAnswer::Clear && then != *self {
                steps.push(Step::Fence {
                    by: by as u8,
                    of: of as u8,
                });
            }
            is_clear &= scope.flaw.hears(answer) == FenceAnswer::Clear;
            is_clear &= all.fence_may_be_answered(scope, by, of);
        }
        if is_clear {
            steps.push(Step::PassFence(by as u8));
        }
    }

    fn client_steps(&self, steps: &mut Vec<Step>) {
        let client = &self.client;
        let broker = &self.brokers[client.place];
        if client.connack.is_some() {
            steps.push(Step::HearConnack);
        }
        let is_attached =
            broker.machine.is_some() && broker.connection.as_ref() == Some(&client.at);
        if client.state == ClientState::Connected && is_attached {
            if let Some((mark, content)) = &broker.memory.session
                && broker.snapshot.is_none()
                && broker.writes.is_empty()
            {
                self.session_steps(mark, content, steps);
            }
            return;
        }
        let waits = broker
            .machine
            .as_ref()
            .is_some_and(|it| it.waits(CLIENT, &client.at));
        let is_closed = match client.state {
            ClientState::Off => false,
            ClientState::Waiting => client.connack.is_none() && !waits && !broker.holds_connack(),
            ClientState::Connected => true,
        };
        if is_closed {
            steps.push(Step::SeeClosed);
        }
    }

    fn session_steps(&self, mark: &Mark, content: &Content, steps: &mut Vec<Step>) {
        let client = &self.client;
        if client.needs || !mark.confirmed {
            steps.push(Step::Confirm);
        }
        let has = client.has[usize::from(content.line)];
        for message in 0..3u8 {
            let bit = 1 << message;
            if content.queue & bit != 0 {
                steps.push(Step::SendMessage(message));
                break;
            }
            if content.sent & bit != 0 {
                steps.push(match has & bit {
                    0 => Step::SendAgain(message),
                    _ => Step::Acknowledge(message),
                });
            }
            if content.released & bit != 0 {
                steps.push(match has & bit {
                    0 => Step::Complete(message),
                    _ => Step::Release(message),
                });
            }
        }
    }

    /// Events that are of a broker's machine.
    pub(super) fn tell(&mut self, scope: &Scope, broker: usize, event: Event) {
        let clock = self.clock(scope);
        self.drive(scope, broker, |machine, sessions| {
            machine.handle(CLIENT, event, clock, sessions);
        });
    }

    /// What all brokers' clocks show.
    pub(super) fn clock(&self, scope: &Scope) -> u64 {
        match scope.clocks {
            true => 100 * u64::from(self.connects),
            false => 0,
        }
    }

    pub(super) fn end_lookup(&mut self, scope: &Scope, by: usize) {
        let Some(lookup) = self.broker(by).lookup.take() else {
            return;
        };
        if lookup.is_over {
            return;
        }
        let others = (0..self.brokers.len()).filter(|of| lookup.missing >> of & 1 == 1);
        let is_back = others.clone().any(|of| self.reaches(by, of));
        let extent = match lookup.missing {
            _ if is_back => Extent::Incomplete,
            0 => Extent::All,
            _ => Extent::Reached,
        };
        let located = Event::Located {
            at: lookup.at,
            answers: lookup.answers,
            extent,
        };
        self.tell(scope, by, located);
    }

    /// What is answered by now has to do.
    pub(super) fn give_up_lookup(&mut self, scope: &Scope, by: usize) {
        let Some(lookup) = &mut self.broker(by).lookup else {
            return;
        };
        lookup.is_over = true;
        let at = lookup.at.clone();
        let answers = lookup.answers.clone();
        self.left.silences -= 1;
        let located = Event::Located {
            at,
            answers,
            extent: Extent::Reached,
        };
        self.tell(scope, by, located);
    }

    /// What a client is answered; it may have gone.
    pub(super) fn answer(&mut self, broker: usize, at: &Stamp, answer: Answer) {
        let is_it = self.client.at == *at && self.client.place == broker;
        match answer {
            Answer::Granted { present } => {
                self.broker(broker).connection = Some(at.clone());
                if is_it && self.client.state == ClientState::Waiting {
                    self.client.connack = Some(present);
                }
            }
            Answer::Refused(_) if is_it => {
                self.client.state = ClientState::Off;
                self.client.connack = None;
            }
            Answer::Refused(_) => {}
        }
    }
}

impl Broker {
    /// Whether an answer waits for the disk.
    fn holds_connack(&self) -> bool {
        !self.writes.is_empty()
    }
}
