//! The running controller: the pure one, between the table and the switches.
//!
//! One task passes events to the controller and carries out its effects. Others read its state
//! under a lock that is held for one batch of events at a time. Admitted flows stay on the switches
//! when this service ends, when the database is unreachable, or when managers are.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use punctual_controller::plan::Plan;
use punctual_controller::{Controller, Effect, Event, Notice, Settings};
use punctual_model::Nanos;
use punctual_model::srt::{Channel, Request};
use serde::Serialize;
use tokio::select;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use crate::local::Local;
use crate::openflow::{Sender, SwitchEvent, Switches};
use crate::srt::{ControllerSide, Inbox, Letter};

/// Bound on the events in one batch.
const BATCH: usize = 512;
/// Notices that are remembered.
const NOTICES: usize = 256;

/// What has been counted since the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Counts {
    /// Requests that were made or changed.
    pub requests: u64,
    /// Requests that were withdrawn.
    pub withdrawn: u64,
    /// Answers that were written.
    pub answers: u64,
    /// Messages to switches.
    pub sent: u64,
    /// Messages from switches.
    pub received: u64,
    /// Switches that connected.
    pub switches_up: u64,
    /// Switches that went away.
    pub switches_down: u64,
    /// Flows that lost their promise.
    pub lost: u64,
    /// Times that a switch refused something or did not answer.
    pub trouble: u64,
    /// Longest time that one batch of events took, ns.
    pub longest_ns: u64,
}

/// What there is to see of a running controller. Clones see the same.
#[derive(Debug, Clone)]
pub struct Observer(Arc<Mutex<Inner>>);

#[derive(Debug)]
struct Inner {
    controller: Controller,
    counts: Counts,
    notices: VecDeque<(Nanos, Notice)>,
    /// Why the database is away.
    away: Option<String>,
}

impl Observer {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks at the controller; it waits meanwhile.
    pub fn look<T>(&self, look: impl FnOnce(&Controller) -> T) -> T {
        look(&self.lock().controller)
    }

    /// What has been counted.
    pub fn counts(&self) -> Counts {
        self.lock().counts
    }

    /// What happened lately, the oldest first, with the time since the start.
    pub fn notices(&self) -> Vec<(Nanos, Notice)> {
        self.lock().notices.iter().cloned().collect()
    }

    /// Why the database is away; `None`: it is there.
    pub fn away(&self) -> Option<String> {
        self.lock().away.clone()
    }
}

/// The switches.
#[derive(Debug)]
enum Fabric {
    /// They connect, and speak OpenFlow.
    Remote(Switches, Sender),
    /// They are stated, and take plans.
    Local(Local),
}

impl Fabric {
    /// What a switch says next.
    async fn next(&mut self) -> Option<SwitchEvent> {
        match self {
            Self::Remote(switches, _) => switches.next().await,
            Self::Local(_) => std::future::pending().await,
        }
    }

    fn try_next(&mut self) -> Option<SwitchEvent> {
        match self {
            Self::Remote(switches, _) => switches.try_next(),
            Self::Local(_) => None,
        }
    }
}

/// The controller before it runs.
#[derive(Debug)]
pub struct Service {
    observer: Observer,
    table: ControllerSide,
    inbox: Inbox,
    fabric: Fabric,
    started: Instant,
    /// All existing requests have been passed to the controller.
    synchronised: bool,
    /// Requests that came before that.
    early: Vec<Request>,
    /// Answers without a request are removed.
    strict: bool,
    effects: Vec<Effect>,
}

impl Service {
    /// A controller of these switches that answers what is in that table.
    pub fn new(settings: &Settings, table: (ControllerSide, Inbox), switches: Switches) -> Self {
        let sender = switches.sender();
        Self::of(settings, table, Fabric::Remote(switches, sender))
    }

    /// The same for a network that is stated.
    pub fn local(settings: &Settings, table: (ControllerSide, Inbox), local: Local) -> Self {
        Self::of(settings, table, Fabric::Local(local))
    }

    fn of(settings: &Settings, (table, inbox): (ControllerSide, Inbox), fabric: Fabric) -> Self {
        let inner = Inner {
            controller: Controller::new(settings),
            counts: Counts::default(),
            notices: VecDeque::new(),
            away: Some("it has not been reached yet".into()),
        };
        Self {
            observer: Observer(Arc::new(Mutex::new(inner))),
            table,
            inbox,
            fabric,
            started: Instant::now(),
            synchronised: false,
            early: Vec::new(),
            strict: false,
            effects: Vec::new(),
        }
    }

    /// Read access for others.
    pub fn observer(&self) -> Observer {
        self.observer.clone()
    }

    /// Runs until it is stopped; then writes pending decisions, within `grace`.
    pub async fn run(mut self, mut stop: watch::Receiver<bool>, grace: Duration) {
        if let Fabric::Local(local) = &mut self.fabric {
            let begin = local.begin();
            self.tell(begin);
        }
        loop {
            let tick = self.observer.lock().controller.next_tick();
            let alarm = self.started + Duration::from_nanos(tick.0.min(MAX_WAIT));
            select! {
                event = self.fabric.next() => match event {
                    Some(event) => self.of_switches(event),
                    None => return,
                },
                letter = self.inbox.next() => self.of_table(letter),
                () = sleep_until(alarm) => self.tell([Event::Tick]),
                _ = stop.wait_for(|stop| *stop) => break,
            }
        }
        let written = async {
            while self.table.unsettled() > 0 {
                tokio::time::sleep(POLL).await;
            }
        };
        // What could not be written is decided anew at the next start.
        let _ = tokio::time::timeout(grace, written).await;
    }

    fn of_switches(&mut self, first: SwitchEvent) {
        let mut events = Vec::new();
        let mut next = Some(first);
        while let Some(event) = next {
            events.push(self.event(event));
            next = match events.len() < BATCH {
                true => self.fabric.try_next(),
                false => None,
            };
        }
        self.tell(events);
    }

    fn event(&self, event: SwitchEvent) -> Event {
        let mut inner = self.observer.lock();
        match &event {
            SwitchEvent::Up { .. } => inner.counts.switches_up += 1,
            SwitchEvent::Message { .. } => inner.counts.received += 1,
            SwitchEvent::Down { datapath, why } => {
                inner.counts.switches_down += 1;
                tracing::warn!("switch {datapath:016x} is away: {why}");
            }
        }
        event.into()
    }

    fn of_table(&mut self, first: Letter) {
        let mut events = Vec::new();
        let mut next = Some(first);
        while let Some(letter) = next {
            match letter {
                Letter::Asked(request) => {
                    self.observer.lock().counts.requests += 1;
                    match self.synchronised {
                        true => events.push(Event::Request(request)),
                        false => self.early.push(request),
                    }
                }
                Letter::Withdrawn { manager, flow } => {
                    self.observer.lock().counts.withdrawn += 1;
                    events.push(Event::Withdrawn { manager, flow });
                }
                Letter::Reached => {
                    self.observer.lock().away = None;
                    tracing::info!("the database of requirements is there");
                    if !std::mem::replace(&mut self.synchronised, true) {
                        // What was decided before comes first, or it would be
                        // decided anew.
                        events.extend(self.table.channels().into_iter().map(Event::Known));
                        events.extend(self.early.drain(..).map(Event::Request));
                        events.push(Event::Synchronised);
                    }
                }
                Letter::Away(why) => {
                    tracing::warn!("the database of requirements is away: {why}");
                    self.observer.lock().away = Some(why);
                }
            }
            next = match events.len() < BATCH {
                true => self.inbox.try_next(),
                false => None,
            };
        }
        self.tell(events);
    }

    fn tell(&mut self, events: impl IntoIterator<Item = Event>) {
        let began = Instant::now();
        let mut inner = self.observer.lock();
        let now = nanos(began - self.started);
        for event in events {
            inner.controller.handle(event, now, &mut self.effects);
        }
        let mut effects = VecDeque::from(std::mem::take(&mut self.effects));
        while let Some(effect) = effects.pop_front() {
            match effect {
                Effect::Send {
                    datapath,
                    xid,
                    message,
                } => {
                    if let Fabric::Remote(_, sender) = &self.fabric {
                        inner.counts.sent += 1;
                        // One that is not there any more is told of.
                        sender.send(datapath, xid, message);
                    }
                }
                Effect::Apply { datapath, step, .. } => {
                    if let Fabric::Local(local) = &mut self.fabric {
                        inner.counts.sent += 1;
                        let applied = local.apply(inner.controller.plan(), datapath, step);
                        let mut more = Vec::new();
                        inner.controller.handle(applied, now, &mut more);
                        effects.extend(more);
                    }
                }
                Effect::Write(channel) => {
                    inner.counts.answers += 1;
                    self.table.answer(&channel);
                }
                Effect::Erase { manager, flow } => self.table.retract(&manager, &flow),
                Effect::Notice(notice) => inner.notice(now, notice),
            }
        }
        let took = nanos(began.elapsed()).0;
        inner.counts.longest_ns = inner.counts.longest_ns.max(took);
        if self.synchronised && !self.strict && inner.controller.is_settled() {
            self.strict = true;
            self.table.settled();
        }
    }
}

/// Longest wait for a tick, ns: a year.
const MAX_WAIT: u64 = 365 * 86_400 * 1_000_000_000;
/// Time between two looks at what is still to be written at the end.
const POLL: Duration = Duration::from_millis(5);

impl Inner {
    fn notice(&mut self, now: Nanos, notice: Notice) {
        match &notice {
            Notice::Lost {
                manager,
                flow,
                reason,
            } => {
                self.counts.lost += 1;
                tracing::warn!("flow {flow:?} of {manager:?} lost its guarantee: {reason}");
            }
            Notice::Trouble { switch, reason } => {
                self.counts.trouble += 1;
                tracing::warn!("switch {switch}: {reason}");
            }
            other => tracing::info!("{other}"),
        }
        if self.notices.len() == NOTICES {
            self.notices.pop_front();
        }
        self.notices.push_back((now, notice));
    }
}

/// What would become of these requests in a network that is stated, where
/// `known` was answered before; and what its switches would do. Nothing is
/// carried out.
pub fn rehearse(
    settings: &Settings,
    mut local: Local,
    known: Vec<Channel>,
    requests: Vec<Request>,
) -> (Vec<Channel>, Plan) {
    let mut controller = Controller::new(settings);
    let mut events: VecDeque<Event> = local.begin().into();
    events.extend(known.into_iter().map(Event::Known));
    events.extend(requests.into_iter().map(Event::Request));
    events.push_back(Event::Synchronised);
    let mut answers = BTreeMap::new();
    let mut effects = Vec::new();
    let mut now = Nanos(0);
    // Time does not pass by itself, and some ticks are only to look around.
    for _ in 0..MOST_TICKS {
        while let Some(event) = events.pop_front() {
            controller.handle(event, now, &mut effects);
            for effect in effects.drain(..) {
                match effect {
                    Effect::Apply { datapath, step, .. } => {
                        events.push_back(local.apply(controller.plan(), datapath, step));
                    }
                    Effect::Write(channel) => {
                        let key = (channel.manager.clone(), channel.flow.clone());
                        answers.insert(key, channel);
                    }
                    Effect::Erase { manager, flow } => {
                        answers.remove(&(manager, flow));
                    }
                    Effect::Send { .. } | Effect::Notice(_) => {}
                }
            }
        }
        if controller.is_settled() {
            break;
        }
        now = now.max(controller.next_tick());
        events.push_back(Event::Tick);
    }
    (answers.into_values().collect(), controller.plan().clone())
}

/// Ticks of a rehearsal: those of some minutes.
const MOST_TICKS: usize = 10_000;

fn nanos(time: Duration) -> Nanos {
    Nanos(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
}
