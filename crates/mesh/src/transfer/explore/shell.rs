//! What the shells of the brokers do: content of sessions, link queues, disks.

use std::rc::Rc;

use punctual_model::Nanos;

use super::super::{
    Action, Bounds, Change, Event, Extent, FenceAnswer, HomeId, Located, Mark, Records, Route,
    Sessions, Settings, Stamp, Stub, Timer, Times, TransferMessage, Transfers,
};
use super::flaw::Flaw;
use super::world::{
    Broker, CLIENT, Client, ClientState, Content, Durable, Fence, Lookup, MAX, Packet, Scope, Step,
    World, home, number,
};

/// The epochs of the session that a message was accepted for, and of that to which it goes.
type Epochs = Rc<(Stamp, Stamp)>;

/// The session of the one client.
pub(super) struct ClientSession(Option<Mark>);

impl Sessions for ClientSession {
    fn mark(&self, client: &str) -> Option<Mark> {
        self.0.clone().filter(|_| client == CLIENT)
    }
}

fn machine(broker: usize, instance: u64) -> Transfers {
    Transfers::new(Settings {
        own: home(broker),
        instance,
        times: Times {
            session_wait: Nanos::from_secs(5),
            heal: Nanos::from_secs(5),
            keep: Nanos::from_secs(3600),
        },
        bounds: Bounds::default(),
    })
}

impl Broker {
    fn here(&self) -> ClientSession {
        ClientSession((self.memory.session.as_ref()).map(|(mark, _)| mark.clone()))
    }

    fn change(&mut self, change: Change, flaw: Flaw) -> Vec<(u8, HomeId, Epochs)> {
        let memory = &mut self.memory;
        let session = memory.session.as_ref().map(|(_, content)| *content);
        match change {
            Change::Begin(mark) => {
                let content = Content::default();
                memory.session = Some((flaw.mark(mark), content));
                self.snapshot = None;
                if let Some((_, subscribed)) = &mut memory.stub {
                    *subscribed &= flaw != Flaw::StubEndsWithNewSession;
                }
            }
            Change::Mark(mark) => {
                if let Some((known, _)) = &mut memory.session {
                    *known = flaw.mark(mark);
                }
            }
            Change::End => {
                memory.session = None;
                self.snapshot = None;
            }
            Change::Prepare { id, from, mark } => {
                let content = Content::decode(&std::mem::take(&mut self.parts));
                memory.copies.insert(id, (from, mark, content));
            }
            Change::DropCopy(id) => {
                memory.copies.remove(&id);
            }
            Change::Install(id, mark) => {
                if let Some((_, _, mut content)) = memory.copies.remove(&id) {
                    if let Some((old, lesser)) = &memory.session
                        && mark.takes(&old.epoch)
                    {
                        content.queue_new(lesser.undelivered());
                    }
                    memory.session = Some((flaw.mark(mark), content));
                    self.snapshot = None;
                }
            }
            Change::Absorb(id) => {
                if let Some((_, lesser, content)) = memory.copies.remove(&id)
                    && let Some((mark, into)) = &mut memory.session
                    && mark.takes(&lesser.epoch)
                {
                    into.queue_new(content.undelivered());
                }
            }
            Change::Depart(id, stub) => {
                let session = session.unwrap_or_default();
                let residue = session.queue & !self.snapshot.take().unwrap_or(0);
                memory.outcomes.insert(id, stub.target.clone());
                return self.leave(stub, session.subscribed, residue);
            }
            Change::Demote(stub) => {
                let session = session.unwrap_or_default();
                self.snapshot = None;
                let subscribed = session.subscribed && flaw != Flaw::DemotedStubIsEmpty;
                return self.leave(stub, subscribed, session.undelivered());
            }
            Change::Stub(stub) => {
                if let Some((known, _)) = &mut memory.stub {
                    *known = stub;
                }
            }
            Change::DropStub => memory.stub = None,
            Change::DropOutcome(id) => {
                memory.outcomes.remove(&id);
            }
        }
        Vec::new()
    }

    /// The session leaves a stub, and these messages go after it.
    fn leave(&mut self, stub: Stub, subscribed: bool, messages: u8) -> Vec<(u8, HomeId, Epochs)> {
        let memory = &mut self.memory;
        memory.session = None;
        let before = memory.stub.as_ref().is_some_and(|(_, before)| *before);
        memory.stub = Some((stub.clone(), subscribed || before));
        let each = (0..3).filter(|m| messages >> m & 1 == 1);
        let epochs = Rc::new((stub.for_epoch.clone(), stub.target_epoch.clone()));
        let to = |m| (m, stub.target.clone(), Rc::clone(&epochs));
        each.map(to).collect()
    }

    /// What is of no use any more is the same as nothing.
    fn forget_idle_timers(&mut self) {
        let Some(machine) = &self.machine else {
            self.timers.clear();
            return;
        };
        let memory = &self.memory;
        self.timers.retain(|timer| match timer {
            Timer::Connect(at, _) => machine.waits(CLIENT, at),
            Timer::Frozen(freeze, _) => machine.frozen_for(CLIENT, *freeze).is_some(),
            Timer::Stored(id, _) => memory.copies.contains_key(id),
            Timer::Commit(id, _) => memory.outcomes.contains_key(id),
            Timer::Claim(_) => !machine.unanswered_claims(CLIENT).is_empty(),
            Timer::Resync(home, _) => machine.awaits(home),
            Timer::Queued(_) | Timer::Lookup(_) | Timer::Fence(_) => false,
            Timer::Keep(..) | Timer::Sweep | Timer::Next => false,
        });
        let waits = |lookup: &Lookup| lookup.is_over || machine.waits(CLIENT, &lookup.at);
        if !self.lookup.as_ref().is_some_and(waits) {
            self.lookup = None;
        }
        let stub = memory.stub.as_ref().map(|(stub, _)| stub);
        let is_asked =
            |fence: &Fence| machine.fence_of(CLIENT) == stub && stub == Some(&fence.stub);
        if !self.fence.as_ref().is_some_and(is_asked) {
            self.fence = None;
        }
    }
}

impl World {
    pub(super) fn new(scope: &Scope) -> Self {
        let n = scope.brokers;
        let at = Stamp {
            micros: 1,
            by: home(scope.home),
        };
        let mark = Mark {
            confirmed: true,
            epoch: at.clone(),
            born: None,
            blind: false,
        };
        let broker = |k: usize| {
            let content = Content {
                subscribed: true,
                ..Content::default()
            };
            let session = (k == scope.home).then(|| (mark.clone(), content));
            let memory = Durable {
                session,
                ..Durable::default()
            };
            Rc::new(Broker {
                machine: None,
                starts: 0,
                disk: scope.slow_disk.then(|| memory.clone()),
                memory,
                writes: Default::default(),
                snapshot: None,
                parts: Vec::new(),
                connection: (k == scope.home).then(|| at.clone()),
                lookup: None,
                fence: None,
                timers: Default::default(),
                wanted: [false; MAX],
                reach: 0,
            })
        };
        let mut world = Self {
            brokers: (0..n).map(broker).collect(),
            links: [true; MAX - 1],
            control: Vec::new(),
            client: Client {
                at: at.clone(),
                place: scope.home,
                state: ClientState::Connected,
                connack: None,
                has: [0; 8],
                delivered: [0; 3],
                needs: false,
                anew: false,
                is_clean: false,
                got_old: false,
            },
            left: scope.budget,
            connects: 1,
            lines: 0,
            published: 0,
            owed: 0,
            is_sent_back: false,
            is_lost: false,
        };
        let instant = Scope {
            slow_disk: false,
            slow_reach: false,
            slow_resync: false,
            flaw: Flaw::None,
            ..*scope
        };
        for k in 0..n {
            world.start(&instant, k);
        }
        for _ in 0..n {
            for of in 0..n {
                for to in world.neighbours(of) {
                    world.broker(to).wanted[of] = world.interest(scope, of, to);
                }
            }
        }
        world
    }

    fn start(&mut self, scope: &Scope, k: usize) {
        let this = self.broker(k);
        this.starts += 1;
        let mut machine = machine(k, this.starts);
        let memory = &this.memory;
        let records = Records {
            copies: (memory.copies.iter())
                .map(|(id, (from, mark, _))| (id.clone(), from.clone(), mark.clone()))
                .collect(),
            outcomes: (memory.outcomes.iter())
                .map(|(id, to)| (id.clone(), to.clone()))
                .collect(),
            stub: memory.stub.as_ref().map(|(stub, _)| stub.clone()),
        };
        let here = this.here();
        machine.recover(CLIENT, records, &here);
        this.machine = Some(machine);
        self.drive(scope, k, |_, _| {});
        self.reach_may_have_changed(scope);
    }

    fn reach_may_have_changed(&mut self, scope: &Scope) {
        for k in 0..self.brokers.len() {
            let is_new = self.brokers[k].reach != self.reach_of(k);
            if !scope.slow_reach && is_new && self.is_up(k) {
                self.notice_reach(scope, k);
            }
        }
    }

    fn notice_reach(&mut self, scope: &Scope, k: usize) {
        let (reach, n) = (self.reach_of(k), self.brokers.len());
        let this = self.broker(k);
        this.reach = reach;
        if let Some(fence) = &mut this.fence {
            (fence.round, fence.answered) = (0, 0);
        }
        let reached = (0..n).filter(|other| reach >> other & 1 == 1).map(home);
        let reached = reached.collect();
        let away = (reach.count_ones() as usize) < n - 1;
        self.drive(scope, k, |machine, _| machine.set_reach(&reached, away));
    }

    /// Lets a broker's machine do something, and does what it says.
    pub(super) fn drive<R>(
        &mut self,
        scope: &Scope,
        k: usize,
        act: impl FnOnce(&mut Transfers, &ClientSession) -> R,
    ) -> Option<R> {
        let this = self.broker(k);
        let here = this.here();
        let mut machine = this.machine.take()?;
        if scope.flaw == Flaw::OneFreeze {
            machine.forget_freezes();
        }
        let result = act(&mut machine, &here);
        let mut actions = machine.take_actions();
        self.broker(k).machine = Some(machine);
        while let Some((_, action)) = actions.pop_front() {
            if let Some(event) = self.perform(scope, k, action) {
                let clock = self.clock(scope);
                let this = self.broker(k);
                let here = this.here();
                if let Some(machine) = &mut this.machine {
                    machine.handle(CLIENT, event, clock, &here);
                    // What follows from it comes before what was said after it.
                    for action in machine.take_actions().into_iter().rev() {
                        actions.push_front(action);
                    }
                }
            }
        }
        self.broker(k).forget_idle_timers();
        Some(result)
    }

    /// Does what a machine says; returns what it is to be told of at once.
    fn perform(&mut self, scope: &Scope, k: usize, action: Action) -> Option<Event> {
        match action {
            Action::Write(number, changes) => return self.write(scope, k, number, changes),
            Action::Send(to, message) => self.send(scope, k, &to, message),
            Action::Lookup { at, clean } => {
                // With Clean Start nothing of what others have is waited for.
                let located = clean.then(|| Event::Located {
                    at: at.clone(),
                    answers: Vec::new(),
                    extent: Extent::Reached,
                });
                self.broker(k).lookup = Some(Lookup {
                    at,
                    clean,
                    asked: 0,
                    missing: 0,
                    answers: Vec::new(),
                    is_over: clean,
                });
                return located;
            }
            Action::Found { by, at, located } => self.found(k, &by, &at, located),
            Action::Connack { at, answer } => self.answer(k, &at, answer),
            Action::Disconnect => {
                let at = self.broker(k).connection.take();
                if at.as_ref() == Some(&self.client.at) && self.client.place == k {
                    self.client.state = ClientState::Off;
                    self.client.connack = None;
                }
            }
            Action::Freeze(_) => {
                let this = self.broker(k);
                let session = this.memory.session.as_ref();
                this.snapshot = session.map(|(_, it)| it.undelivered() | it.released);
            }
            Action::Thaw => self.broker(k).snapshot = None,
            Action::MakePart(id, number) => {
                let last = number + 1 == scope.parts;
                let mut content = self.brokers[k].memory.session.as_ref()?.1;
                if scope.flaw == Flaw::NoHistory {
                    content.history = content.undelivered() | content.released;
                }
                let bytes = match last {
                    true => content.encode().as_slice().into(),
                    false => [].into(),
                };
                return Some(Event::PartMade {
                    id,
                    number,
                    last,
                    bytes,
                });
            }
            Action::KeepPart(_, _, bytes) => self.broker(k).parts.extend_from_slice(&bytes),
            Action::DropParts => self.broker(k).parts.clear(),
            Action::Fence(stub) => {
                self.broker(k).fence = Some(Fence {
                    stub,
                    round: 0,
                    answered: 0,
                });
            }
            Action::Arm(timer @ (Timer::Sweep | Timer::Lookup(_)), _) => {
                return Some(Event::Due(timer));
            }
            Action::Arm(timer, _) => {
                let timer = match timer {
                    Timer::Stored(id, _) => Timer::Stored(id, 0),
                    Timer::Commit(id, _) => Timer::Commit(id, 0),
                    Timer::Claim(_) => Timer::Claim(0),
                    Timer::Resync(home, _) => Timer::Resync(home, 0),
                    timer => timer,
                };
                self.broker(k).timers.insert(timer);
            }
            Action::GaveUp(_) => {}
        }
        None
    }

    fn send(&mut self, scope: &Scope, from: usize, to: &HomeId, message: TransferMessage) {
        let to = number(to);
        if self.reaches(from, to) && from != to {
            let committed = match &message {
                TransferMessage::Commit(id) => Some(id.clone()),
                _ => None,
            };
            let is_quick = match message {
                TransferMessage::Resync | TransferMessage::ClaimsDone { .. } => !scope.slow_resync,
                _ => false,
            };
            if is_quick {
                return self.tell(scope, to, Event::Message(home(from), message));
            }
            self.control.push((from as u8, to as u8, Rc::new(message)));
            // The order between different pairs makes no difference.
            self.control.sort_by_key(|(from, to, _)| (*from, *to));
            if let Some(id) = committed.filter(|_| scope.flaw == Flaw::ForgetsOutcomes) {
                let done = Event::Message(home(to), TransferMessage::Done(id));
                self.tell(scope, from, done);
            }
        }
    }

    fn write(
        &mut self,
        scope: &Scope,
        k: usize,
        number: u64,
        changes: Vec<Change>,
    ) -> Option<Event> {
        let this = self.broker(k);
        if this.disk.is_some() && this.writes.is_empty() {
            // What changes without a machine's doing is durable at once.
            this.disk = Some(this.memory.clone());
        }
        for change in changes {
            if matches!(change, Change::Begin(_)) {
                self.lines += 1;
            }
            let line = self.lines;
            let this = self.broker(k);
            let is_new = matches!(change, Change::Begin(_));
            let forwarded = this.change(change, scope.flaw);
            if let Some((_, content)) = this.memory.session.as_mut().filter(|_| is_new) {
                content.line = line;
            }
            for (message, to, epochs) in forwarded {
                self.forward(scope, k, message, &to, epochs);
            }
        }
        let this = self.broker(k);
        if this.disk.is_none() {
            return Some(Event::Written(number));
        }
        this.writes.push_back((number, this.memory.clone()));
        (scope.flaw == Flaw::SpeaksBeforeWriting).then_some(Event::Written(number))
    }

    fn found(&mut self, k: usize, by: &HomeId, at: &Stamp, located: Located) {
        if let Some(lookup) = &mut self.broker(number(by)).lookup
            && lookup.at == *at
        {
            lookup.answers.retain(|(home, _)| number(home) != k);
            lookup.answers.push((home(k), located));
            lookup.answers.sort_by(|a, b| a.0.cmp(&b.0));
        }
    }

    pub(super) fn ask_fence(
        &mut self,
        scope: &Scope,
        by: &HomeId,
        stub: &Stub,
        of: usize,
    ) -> FenceAnswer {
        let answer = self.drive(scope, of, |machine, here| {
            machine.fence_asked(CLIENT, by, stub, here)
        });
        answer.unwrap_or(FenceAnswer::LookingUp)
    }

    fn forward(&mut self, scope: &Scope, k: usize, message: u8, to: &HomeId, epochs: Epochs) {
        let target = number(to);
        if target == k {
            return self.for_session(scope, k, message, &epochs.0, Some(&epochs.1));
        }
        let packet = match scope.flaw {
            Flaw::ForwardsPublications => Packet::Publication(message),
            _ => Packet::ForSession(message, target as u8, epochs),
        };
        self.broker(k).memory.out[Self::next_hop(k, target)].push(packet);
    }

    /// A message that was accepted for a session of one epoch, and perhaps forwarded to another.
    fn for_session(
        &mut self,
        scope: &Scope,
        k: usize,
        message: u8,
        of: &Stamp,
        to: Option<&Stamp>,
    ) {
        let taken = match scope.flaw {
            Flaw::NeverBorn => Stamp {
                micros: u64::MAX,
                ..of.clone()
            },
            _ => of.clone(),
        };
        let addressed = to.filter(|_| scope.flaw != Flaw::ForwardsInCircles);
        let route = self.drive(scope, k, |machine, here| {
            machine.route(CLIENT, &taken, addressed, here)
        });
        let memory = &mut self.broker(k).memory;
        match route {
            Some(Route::Session) => {
                if let Some((_, content)) = &mut memory.session {
                    content.queue_new(1 << message);
                }
            }
            Some(Route::Copies(ids)) => {
                for id in ids {
                    if let Some((_, _, content)) = memory.copies.get_mut(&id) {
                        content.queue_new(1 << message);
                    }
                }
            }
            Some(Route::Forward(home, epoch)) => {
                self.is_sent_back |= to.is_some_and(|to| epoch <= *to);
                let epochs = Rc::new((of.clone(), epoch));
                self.forward(scope, k, message, &home, epochs);
            }
            Some(Route::Outdated) => {}
            Some(Route::Unknown) | None => self.is_lost = true,
        }
    }

    /// Returns whether it is stored anywhere.
    fn publication(&mut self, scope: &Scope, k: usize, from: Option<usize>, message: u8) -> bool {
        let neighbours = self.neighbours(k).filter(|to| Some(*to) != from);
        let this = self.broker(k);
        if this.memory.seen >> message & 1 == 1 {
            return false;
        }
        this.memory.seen |= 1 << message;
        let mut is_stored = false;
        for to in neighbours {
            if this.wanted[to] {
                this.memory.out[to].push(Packet::Publication(message));
                is_stored = true;
            }
        }
        let stub = this
            .memory
            .stub
            .clone()
            .filter(|(_, subscribed)| *subscribed);
        match (&mut this.memory.session, stub) {
            (Some((_, content)), _) if content.subscribed => {
                content.queue_new(1 << message);
                true
            }
            (_, Some((stub, _))) => {
                self.for_session(scope, k, message, &stub.for_epoch, None);
                true
            }
            _ => is_stored,
        }
    }

    fn carry(&mut self, scope: &Scope, from: usize, to: usize, again: bool) {
        let packet = self.brokers[from].memory.out[to][0].clone();
        match again {
            true => self.break_connection(from.min(to)),
            false => {
                self.broker(from).memory.out[to].remove(0);
            }
        }
        match packet {
            Packet::Publication(message) => {
                self.publication(scope, to, Some(from), message);
            }
            Packet::ForSession(message, target, epochs) => {
                self.forward(scope, to, message, &home(target.into()), epochs);
            }
        }
    }

    /// A connection breaks and is there again: control messages on it are lost.
    fn break_connection(&mut self, link: usize) {
        self.left.resets -= 1;
        self.lose_control(|low, high| low <= link && link < high);
    }

    fn lose_control(&mut self, is_lost: impl Fn(usize, usize) -> bool) {
        self.control.retain(|(from, to, _)| {
            let (low, high) = ((*from).min(*to), (*from).max(*to));
            !is_lost(low.into(), high.into())
        });
    }

    fn crash(&mut self, scope: &Scope, k: usize) {
        self.left.crashes -= 1;
        let this = self.broker(k);
        this.machine = None;
        if let Some(disk) = &this.disk {
            // Link queues are as durable as the rest, and do not change while something is written.
            let (seen, is_written) = (this.memory.seen, this.writes.is_empty());
            let memory = match is_written {
                true => this.memory.clone(),
                false => disk.clone(),
            };
            this.memory = Durable { seen, ..memory };
        }
        this.writes.clear();
        this.snapshot = None;
        this.parts.clear();
        this.connection = None;
        this.lookup = None;
        this.fence = None;
        this.timers.clear();
        this.reach = 0;
        self.lose_control(|low, high| low <= k && k <= high);
        if self.client.place == k {
            self.client.connack = None;
        }
        self.reach_may_have_changed(scope);
    }

    fn connect(&mut self, scope: &Scope, k: usize, clean: bool) {
        self.connects += 1;
        let clock = self.clock(scope);
        let (old, place) = (self.client.at.clone(), self.client.place);
        let state = self.client.state;
        if self.brokers[place].connection.as_ref() == Some(&old) && state == ClientState::Connected
        {
            self.broker(place).connection = None;
        }
        self.broker(k).connection = None;
        self.client.place = k;
        self.client.state = ClientState::Waiting;
        self.client.connack = None;
        // So that what is answered at once finds the client that waits.
        let this = self.broker(k);
        let here = this.here();
        let Some(mut machine) = this.machine.take() else {
            return;
        };
        if scope.flaw == Flaw::OneFreeze {
            machine.forget_freezes();
        }
        self.client.at = machine.connect(CLIENT, clean, clock, &here);
        self.broker(k).machine = Some(machine);
        self.drive(scope, k, |_, _| {});
    }

    fn ask_for(&mut self, scope: &Scope, by: usize, of: usize) {
        let is_reached = self.reaches(by, of);
        let Some(lookup) = &mut self.broker(by).lookup else {
            return;
        };
        lookup.asked |= 1 << of;
        let (at, clean) = (lookup.at.clone(), lookup.clean);
        if !is_reached {
            lookup.missing |= 1 << of;
            return;
        }
        let event = Event::Lookup {
            by: home(by),
            at,
            clean,
        };
        self.tell(scope, of, event);
    }

    fn hear_connack(&mut self) {
        let Some(present) = self.client.connack.take() else {
            return;
        };
        self.client.state = ClientState::Connected;
        self.client.is_clean = false;
        if !present {
            let session = &self.brokers[self.client.place].memory.session;
            let born = session.as_ref().and_then(|(mark, _)| mark.born.as_ref());
            self.client.is_clean = born == Some(&self.client.at);
            self.client.has = [0; 8];
            self.client.needs = true;
            self.client.anew = true;
        }
    }

    /// What the client and its broker do with a message.
    fn session_step(&mut self, scope: &Scope, step: Step) {
        let place = self.client.place;
        if step == Step::Confirm {
            self.tell(scope, place, Event::Confirmed);
        }
        let client = &mut self.client;
        let Some((_, content)) = &mut Rc::make_mut(&mut self.brokers[place]).memory.session else {
            return;
        };
        let has = &mut client.has[usize::from(content.line)];
        let mut receive = |message: u8| {
            if *has >> message & 1 == 0 {
                let delivered = &mut client.delivered[usize::from(message)];
                *delivered = (*delivered + 1).min(2);
            }
            *has |= 1 << message;
        };
        match step {
            Step::Confirm => {
                content.subscribed |= client.needs;
                client.needs = false;
            }
            Step::SendMessage(message) => {
                content.queue &= !(1 << message);
                content.sent |= 1 << message;
                client.got_old |= client.is_clean && client.needs;
                receive(message);
            }
            Step::SendAgain(message) => receive(message),
            Step::Acknowledge(message) => {
                content.sent &= !(1 << message);
                content.released |= 1 << message;
            }
            Step::Release(message) => *has &= !(1 << message),
            Step::Complete(message) => content.released &= !(1 << message),
            _ => {}
        }
    }

    pub(super) fn apply(&mut self, scope: &Scope, step: Step) {
        match step {
            Step::Publish => {
                let message = self.published;
                self.published += 1;
                if self.publication(scope, scope.publisher, None, message) {
                    self.owed |= 1 << message;
                }
            }
            Step::Carry { from, to, again } => self.carry(scope, from.into(), to.into(), again),
            Step::TellInterest { from, to } => {
                let (of, to) = (usize::from(from), usize::from(to));
                self.broker(to).wanted[of] = self.interest(scope, of, to);
            }
            Step::Deliver { index, again } => {
                let index = usize::from(index);
                let (from, to, message) = match again {
                    true => self.control[index].clone(),
                    false => self.control.remove(index),
                };
                self.left.repeats -= u8::from(again);
                let message = Event::Message(home(from.into()), (*message).clone());
                self.tell(scope, to.into(), message);
            }
            Step::AskFor { by, of } => self.ask_for(scope, by.into(), of.into()),
            Step::EndLookup(by) => self.end_lookup(scope, by.into()),
            Step::GiveUp(by) => self.give_up_lookup(scope, by.into()),
            Step::Fence { by, of } => self.answer_fence(scope, by.into(), of.into()),
            Step::PassFence(by) => self.pass_fence(scope, by.into()),
            Step::Write(broker) => {
                let this = self.broker(broker.into());
                if let Some((number, disk)) = this.writes.pop_front() {
                    this.disk = Some(disk);
                    self.tell(scope, broker.into(), Event::Written(number));
                }
            }
            Step::NoticeReach(broker) => self.notice_reach(scope, broker.into()),
            Step::Due { broker, index } | Step::Hurry { broker, index } => {
                self.left.hasty -= u8::from(matches!(step, Step::Hurry { .. }));
                let this = self.broker(broker.into());
                let timer = this.timers.iter().nth(index.into()).cloned();
                if let Some(timer) = timer {
                    this.timers.remove(&timer);
                    self.tell(scope, broker.into(), Event::Due(timer));
                }
            }
            Step::HearConnack => self.hear_connack(),
            Step::Confirm
            | Step::SendMessage(_)
            | Step::SendAgain(_)
            | Step::Acknowledge(_)
            | Step::Release(_)
            | Step::Complete(_) => self.session_step(scope, step),
            Step::SeeClosed => self.client.state = ClientState::Off,
            Step::Connect { broker, clean } => {
                match clean {
                    true => {
                        self.left.cleans -= 1;
                        self.owed = 0;
                        // The client forgets its own part of the session as it asks for a new one.
                        self.client.has = [0; 8];
                        self.client.needs = true;
                    }
                    false => self.left.moves -= 1,
                }
                self.connect(scope, broker.into(), clean);
            }
            Step::Retry => {
                self.left.retries -= 1;
                self.connect(scope, self.client.place, false);
            }
            Step::Cut(link) => {
                self.left.cuts -= 1;
                self.links[usize::from(link)] = false;
                let link = usize::from(link);
                self.lose_control(|low, high| low <= link && link < high);
                self.reach_may_have_changed(scope);
            }
            Step::Heal(link) => {
                self.links[usize::from(link)] = true;
                self.reach_may_have_changed(scope);
            }
            Step::Crash(broker) => self.crash(scope, broker.into()),
            Step::Restart(broker) => self.start(scope, broker.into()),
            Step::Reset(link) => self.break_connection(link.into()),
        }
    }

    fn answer_fence(&mut self, scope: &Scope, by: usize, of: usize) {
        let Some(fence) = self.brokers[by].fence.clone() else {
            return;
        };
        let answer = self.ask_fence(scope, &home(by), &fence.stub, of);
        if !scope.slow_fence || scope.flaw.hears(answer) != FenceAnswer::Clear {
            return;
        }
        let all = (1u8 << self.brokers.len()) - 1;
        let Some(fence) = &mut self.broker(by).fence else {
            return;
        };
        fence.answered |= 1 << of;
        if (fence.answered | 1 << by) & all == all {
            (fence.round, fence.answered) = (fence.round + 1, 0);
            if fence.round == 2 {
                self.pass_fence(scope, by);
            }
        }
    }

    fn pass_fence(&mut self, scope: &Scope, by: usize) {
        if let Some(fence) = self.broker(by).fence.take() {
            self.tell(scope, by, Event::FencePassed(fence.stub.target_epoch));
        }
    }
}
