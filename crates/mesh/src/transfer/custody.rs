//! What one home has of one client besides an idle session, and what every step on it shares.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use punctual_model::{Nanos, latest_instant};

use super::action::{Action, Answer, Change, Event, Refusal, Timer, TransferMessage};
use super::identity::{Freeze, HomeId, Mark, Stamp, Stub, TransferId};
use super::peers::Peers;
use super::{Settings, totals::Totals};

/// After which what was not answered is said again; twice as long each time.
const REPEAT: Nanos = Nanos::from_millis(200);
/// Longest time in the queue of CONNECTs, as a multiple of `session_wait`.
const PATIENCE: u64 = 16;
/// Pause before an incomplete look-up is repeated.
const LOOK_UP_AGAIN: Nanos = Nanos::from_millis(25);
/// The longest of these times.
const LONGEST_REPEAT: Nanos = Nanos::from_secs(30);
/// Actions of one client that wait for a write; of more the first messages are lost.
const MAX_HELD: usize = 64;

/// When what was said so many times before is said again.
pub(super) fn repeat(rounds: u8) -> Nanos {
    let longer = REPEAT.0.checked_shl(rounds.min(16).into());
    longer.map_or(LONGEST_REPEAT, Nanos).min(LONGEST_REPEAT)
}

/// A client that waits for CONNACK.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum PendingConnect {
    /// As many CONNECTs as [`super::Bounds::active`] allows are looked up or transferred; this one waits.
    Queued { at: Stamp },
    /// The others are asked for its session.
    LookingUp { at: Stamp, clean: bool },
    /// The session comes, see the [`InboundTransfer`] with the same stamp; `rivals` if lesser ones were
    /// found.
    Transferring { at: Stamp, rivals: bool },
}

impl PendingConnect {
    pub(super) fn at(&self) -> &Stamp {
        match self {
            Self::Queued { at } | Self::LookingUp { at, .. } | Self::Transferring { at, .. } => at,
        }
    }

    /// Whether others do something for it.
    pub(super) fn is_active(&self) -> bool {
        !matches!(self, Self::Queued { .. })
    }
}

/// A session that comes. At most one of a client is not prepared, and ends with its
/// [`PendingConnect`].
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum InboundTransfer {
    /// The owner was asked.
    Requested { at: Stamp, from: HomeId },
    /// Some parts are here.
    Receiving {
        id: TransferId,
        from: HomeId,
        next: u32,
        bytes: usize,
    },
    /// All of it is, durably.
    Prepared {
        id: TransferId,
        from: HomeId,
        mark: Mark,
    },
}

impl InboundTransfer {
    pub(super) fn from(&self) -> &HomeId {
        match self {
            Self::Requested { from, .. }
            | Self::Receiving { from, .. }
            | Self::Prepared { from, .. } => from,
        }
    }

    pub(super) fn at(&self) -> &Stamp {
        match self {
            Self::Requested { at, .. } => at,
            Self::Receiving { id, .. } | Self::Prepared { id, .. } => &id.at,
        }
    }

    pub(super) fn is_prepared(&self) -> bool {
        matches!(self, Self::Prepared { .. })
    }

    /// A number that rises with each message of the owner, from 1.
    pub(super) fn progress(&self) -> u32 {
        match self {
            Self::Requested { .. } => 1,
            Self::Receiving { next, .. } => next.saturating_add(1),
            Self::Prepared { .. } => u32::MAX,
        }
    }
}

/// A session that leaves.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum OutboundTransfer {
    /// A snapshot goes there; the session here is frozen. At most one of a client.
    Frozen {
        id: TransferId,
        to: HomeId,
        /// Parts that were asked of the shell, and acknowledged.
        made: u32,
        acknowledged: u32,
    },
    /// It has left: the outcome, until the other end has confirmed it.
    Committed { id: TransferId, to: HomeId },
}

/// Writes in progress, and actions that wait for them.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(super) struct PendingWrites {
    issued: u64,
    durable: u64,
    held: VecDeque<(u64, Action)>,
}

/// What a home has of a client besides its session.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(super) struct Custody {
    pub(super) connect: Option<PendingConnect>,
    pub(super) inbound: Vec<InboundTransfer>,
    pub(super) outbound: Vec<OutboundTransfer>,
    pub(super) stub: Option<Stub>,
    /// The stub's epoch for which a fence is asked.
    pub(super) fence: Option<Stamp>,
    /// Of a blind session: the homes that have answered its claim, with the number of their visit.
    pub(super) compared: Option<BTreeMap<HomeId, u64>>,
    /// Homes that have not answered the claim of a session that is or was here, with its mark. One that
    /// yields to it leads here, so the stub stays until then, as long as the home is reached.
    pub(super) claimed: BTreeMap<HomeId, Mark>,
    pub(super) writes: PendingWrites,
}

impl Custody {
    pub(super) fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Homes that are reached and have not answered the claim of the session that is here, or was.
    pub(super) fn unanswered(&self, peers: &Peers) -> BTreeSet<HomeId> {
        let claimed = self.claimed.keys().filter(|home| peers.reaches(home));
        let mut open: BTreeSet<HomeId> = claimed.cloned().collect();
        if let Some(compared) = &self.compared {
            let more = peers
                .reached()
                .filter(|(home, visit)| compared.get(*home) != Some(visit));
            open.extend(more.map(|(home, _)| home.clone()));
        }
        open
    }

    pub(super) fn has_outcome(&self) -> bool {
        let is_outcome = |it: &OutboundTransfer| matches!(it, OutboundTransfer::Committed { .. });
        self.outbound.iter().any(is_outcome)
    }
}

/// What all clients of a home share.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct HomeState {
    pub(super) settings: Settings,
    /// Microseconds since 1970.
    pub(super) clock: u64,
    /// The greatest stamp that was heard or issued.
    pub(super) last: u64,
    /// Freezes so far.
    pub(super) freezes: u64,
    pub(super) peers: Peers,
    pub(super) totals: Totals,
    /// Clients that wait until others are done, with the stamps of their CONNECTs; not all still do.
    pub(super) queued: VecDeque<(Arc<str>, Stamp)>,
    /// Whether [`Timer::Next`] runs.
    pub(super) is_starting: bool,
    pub(super) actions: VecDeque<(Arc<str>, Action)>,
}

impl HomeState {
    fn hear(&mut self, stamp: &Stamp) {
        self.last = self.last.max(stamp.micros);
    }

    pub(super) fn new_stamp(&mut self) -> Stamp {
        self.last = self.clock.max(self.last + 1);
        Stamp {
            micros: self.last,
            by: self.settings.own.clone(),
        }
    }

    pub(super) fn new_freeze(&mut self) -> Freeze {
        self.freezes += 1;
        Freeze {
            instance: self.settings.instance,
            number: self.freezes,
        }
    }

    /// Notes a stamp that another home has stated. One that is too far in the future is not believed:
    /// it would win against all others for as long.
    pub(super) fn believes(&mut self, stamp: &Stamp) -> bool {
        let is_past = stamp.micros <= latest_instant(self.clock);
        if is_past {
            self.hear(stamp);
        }
        is_past
    }
}

/// One thing that happens to one client.
pub(super) struct Step<'a> {
    pub(super) client: &'a Arc<str>,
    /// Of the session that is here; follows what is done.
    pub(super) session: Option<Mark>,
    pub(super) custody: &'a mut Custody,
    pub(super) shared: &'a mut HomeState,
}

impl Step<'_> {
    pub(super) fn own(&self) -> &HomeId {
        &self.shared.settings.own
    }

    /// Does something at once.
    pub(super) fn act(&mut self, action: Action) {
        let client = Arc::clone(self.client);
        self.shared.actions.push_back((client, action));
    }

    /// Does something that other homes or the client can see, once all earlier changes are durable.
    /// So a crash never undoes what was made visible.
    fn act_when_durable(&mut self, action: Action) {
        let writes = &mut self.custody.writes;
        if writes.durable == writes.issued {
            return self.act(action);
        }
        if writes.held.iter().any(|(_, held)| *held == action) {
            return;
        }
        if writes.held.len() >= MAX_HELD {
            let is_message = |(_, held): &(u64, Action)| matches!(held, Action::Send(..));
            let first = writes.held.iter().position(is_message);
            first.and_then(|first| writes.held.remove(first));
        }
        writes.held.push_back((writes.issued, action));
    }

    pub(super) fn send(&mut self, to: &HomeId, message: TransferMessage) {
        self.act_when_durable(Action::Send(to.clone(), message));
    }

    pub(super) fn found(&mut self, found: Action) {
        self.act_when_durable(found);
    }

    pub(super) fn connack(&mut self, at: Stamp, answer: Answer) {
        self.act_when_durable(Action::Connack { at, answer });
    }

    pub(super) fn write(&mut self, changes: Vec<Change>) {
        if !changes.is_empty() {
            self.custody.writes.issued += 1;
            self.act(Action::Write(self.custody.writes.issued, changes));
        }
    }

    /// A copy could not be made: `Stored` must not be sent for it.
    fn copy_failed(&mut self, id: &TransferId) {
        if let Some(copy) = self.find_copy(None, id) {
            self.custody.inbound.remove(copy);
            let stored = TransferMessage::Stored(id.clone());
            let held = &mut self.custody.writes.held;
            held.retain(|(_, it)| !matches!(it, Action::Send(_, message) if *message == stored));
            self.refuse_at(&id.at, Refusal::Busy);
        }
    }

    pub(super) fn written(&mut self, number: u64) {
        let writes = &mut self.custody.writes;
        writes.durable = writes.durable.max(number.min(writes.issued));
        let durable = writes.durable;
        while let Some((_, action)) =
            (self.custody.writes.held).pop_front_if(|(after, _)| *after <= durable)
        {
            self.act(action);
        }
        if self.custody.writes.durable == self.custody.writes.issued {
            self.custody.writes = PendingWrites::default();
        }
    }

    pub(super) fn arm(&mut self, timer: Timer) {
        let times = self.shared.settings.times;
        let after = match &timer {
            Timer::Connect(..) | Timer::Frozen(..) => times.session_wait,
            Timer::Queued(_) => Nanos(times.session_wait.0.saturating_mul(PATIENCE)),
            Timer::Lookup(_) => LOOK_UP_AGAIN,
            Timer::Stored(_, round)
            | Timer::Commit(_, round)
            | Timer::Claim(round)
            | Timer::Resync(_, round) => repeat(*round),
            Timer::Fence(_) => times.heal,
            Timer::Keep(..) => times.keep,
            Timer::Sweep | Timer::Next => Nanos(0),
        };
        self.act(Action::Arm(timer, after));
    }

    /// The client that waits is not let in.
    pub(super) fn refuse(&mut self, why: Refusal) {
        if let Some(connect) = self.custody.connect.take() {
            self.forget_parts();
            self.connack(connect.at().clone(), Answer::Refused(why));
        }
    }

    /// The same, if it is the one with this stamp.
    pub(super) fn refuse_at(&mut self, at: &Stamp, why: Refusal) {
        if (self.custody.connect.as_ref()).is_some_and(|connect| connect.at() == at) {
            self.refuse(why);
        }
    }

    /// Whether a client waits for a look-up.
    pub(super) fn looks_up(&self) -> bool {
        matches!(self.custody.connect, Some(PendingConnect::LookingUp { .. }))
    }

    /// Whether the client that waits for a transfer has this stamp.
    pub(super) fn waits_for(&self, stamp: &Stamp) -> bool {
        matches!(&self.custody.connect, Some(PendingConnect::Transferring { at, .. }) if at == stamp)
    }

    /// Whether others than the session that comes were found.
    pub(super) fn has_rivals(&self) -> bool {
        matches!(self.custody.connect, Some(PendingConnect::Transferring { rivals, .. }) if rivals)
    }

    pub(super) fn forget_parts(&mut self) {
        let inbound = &mut self.custody.inbound;
        let some = inbound
            .iter()
            .any(|it| matches!(it, InboundTransfer::Receiving { .. }));
        inbound.retain(InboundTransfer::is_prepared);
        if some {
            self.act(Action::DropParts);
        }
    }

    /// The session is not frozen any more, if it was; it may be at its end.
    pub(super) fn forget_freeze(&mut self) -> bool {
        let before = self.custody.outbound.len();
        let is_frozen = |it: &OutboundTransfer| matches!(it, OutboundTransfer::Frozen { .. });
        self.custody.outbound.retain(|it| !is_frozen(it));
        self.custody.outbound.len() < before
    }

    pub(super) fn thaw(&mut self) {
        if self.forget_freeze() {
            self.act(Action::Thaw);
        }
    }

    /// Something happens.
    pub(super) fn event(&mut self, event: Event) {
        match event {
            Event::Lookup { by, at, clean } => self.lookup(by, at, clean),
            Event::Located {
                at,
                answers,
                extent,
            } => self.located(at, &answers, extent),
            Event::Message(from, message) => self.message(&from, message),
            Event::PartMade {
                id,
                number,
                last,
                bytes,
            } => self.part_made(id, number, last, bytes),
            Event::Due(timer) => self.due(timer),
            Event::CopyFailed(id) => self.copy_failed(&id),
            Event::Written(number) => self.written(number),
            Event::Closed(at) => {
                if (self.custody.connect.as_ref()).is_some_and(|connect| *connect.at() == at) {
                    self.custody.connect = None;
                    self.forget_parts();
                }
            }
            Event::Confirmed => self.confirmed(),
            Event::Ended => self.ended(),
            Event::FencePassed(epoch) => self.fence_passed(&epoch),
        }
    }

    fn message(&mut self, from: &HomeId, message: TransferMessage) {
        if !self.can_be_true(&message) {
            return;
        }
        match message {
            TransferMessage::Take { at, .. } => self.take(from, at),
            TransferMessage::Refused { at, newer } => self.refused(from, &at, newer.is_some()),
            TransferMessage::Part {
                id,
                number,
                last,
                bytes,
            } => self.part(from, id, number, last, bytes),
            TransferMessage::PartAck { id, number } => self.part_ack(from, &id, number),
            TransferMessage::Stored(id) => self.stored(from, id),
            TransferMessage::Commit(id) => self.commit(from, id),
            TransferMessage::Abort(id) => self.abort(from, &id),
            TransferMessage::Done(id) => self.done(from, &id),
            TransferMessage::Claim { mark, .. } => self.claim(from, mark),
            TransferMessage::Yielded(epoch) => self.yielded(from, &epoch),
            // Of no client.
            TransferMessage::Resync | TransferMessage::ClaimsDone { .. } => {}
        }
    }

    /// Whether all instants that a message states can be past; notes them.
    fn can_be_true(&mut self, message: &TransferMessage) -> bool {
        let marked = |mark: &Mark| [Some(mark.epoch.clone()), mark.born.clone()];
        let [a, b, c] = match message {
            TransferMessage::Take { at, .. } => [Some(at.clone()), None, None],
            TransferMessage::Refused { at, newer } => [Some(at.clone()), newer.clone(), None],
            TransferMessage::Part { id, last, .. } => {
                let [epoch, born] = last.as_ref().map_or([None, None], marked);
                [Some(id.at.clone()), epoch, born]
            }
            TransferMessage::PartAck { id, .. }
            | TransferMessage::Stored(id)
            | TransferMessage::Commit(id)
            | TransferMessage::Abort(id)
            | TransferMessage::Done(id) => [Some(id.at.clone()), None, None],
            TransferMessage::Claim { mark, .. } => {
                let [epoch, born] = marked(mark);
                [epoch, born, None]
            }
            TransferMessage::Yielded(epoch) => [Some(epoch.clone()), None, None],
            TransferMessage::Resync | TransferMessage::ClaimsDone { .. } => [None, None, None],
        };
        [a, b, c]
            .iter()
            .flatten()
            .all(|stamp| self.shared.believes(stamp))
    }
}
