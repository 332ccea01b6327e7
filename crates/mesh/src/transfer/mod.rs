//! Transfer of sessions between the brokers of a mesh: the protocol, as a state machine.
//!
//! A client may connect to any broker, and resumes its session from wherever that is. Every session
//! has one *owner*. When its client connects elsewhere, the owner ends the client's old connection,
//! *freezes* the session (it continues to queue, and delivers nothing), and sends a snapshot of it
//! in parts. The new broker stores the snapshot durably as a *copy* and says so (`Stored`). Then
//! the owner decides, in one durable write: the session is removed, and a *stub* remains, which
//! forwards messages that still arrive for it, with the *outcome* of the transfer. With `Commit`
//! the copy becomes the session, and the client gets its CONNACK. Whatever is lost before that
//! write leaves the session where it was; whatever is lost after it is repeated until the new owner
//! has confirmed (`Done`). A copy whose outcome its old owner does not know was never committed
//! (presumed abort). So there is one session at every moment, or none and a copy with an outcome,
//! whichever broker crashes.
//!
//! *Stamps.* Every CONNECT gets a stamp, hybrid clock and name of the broker. The stamp of the CONNECT
//! that a session was given to last is its *epoch*. A request with a stamp that is not greater is
//! refused: its client has connected elsewhere since. Of several CONNECTs that wait, the one with the
//! greatest stamp wins: a look-up ends the older ones at the brokers that it passes.
//!
//! *Look-up.* A broker that receives a CONNECT asks all brokers of the mesh what they have of the
//! client, unless it owns the session and no other can have a greater one. If a session is found,
//! it is resumed or taken. While it is known to be on its way between brokers that are reached, the
//! client is refused (0x88; 3.1.1: 0x03) and tries again. Only if no reached broker has it, a new
//! session begins. A client with Clean Start need not wait: its look-up continues and ends older
//! sessions. So does the look-up of a client that is not waited for any more, because a home hangs.
//!
//! *Stub and fence.* Messages on their way to the old owner are forwarded by its stub, addressed to
//! the session and not as publications: they are checked against the session's own history of what
//! it has queued, and against nothing else. The stub ends once a fence has passed everything that
//! was on its way, no other stub leads there, no client is looking for the session, and no claim is
//! open. The shell ensures two properties of the fence: it is sent after the present filters were
//! advertised to all brokers, and no broker answers while a forwarded message for the asking broker
//! is in its queue.
//!
//! *After a partition or a crash* there may be two sessions. Of these the greater in the order
//! (`confirmed`, epoch) survives: one whose client is known to have heard of it beats one that was
//! answered with Session Present 0 and never used. A session that was made while somebody was not
//! reached is *blind*: its owner claims the client at each broker that it reaches, until each has
//! answered. A lesser session that hears a claim is demoted: what it has not delivered is forwarded,
//! and a stub remains. A broker that comes into reach is asked whether all of its claims
//! are answered (`Resync`, `ClaimsDone`); until it is, every CONNECT is looked up.
//!
//! # A client that connects: `PendingConnect` and `InboundTransfer`
//!
//! | state | event | does | next |
//! |---|---|---|---|
//! | – | CONNECT; own session is confirmed and not blind, all are reached and compared | resume | – |
//! | – | CONNECT | look up; an older one that waits here is refused | `LookingUp` |
//! | – | CONNECT without Clean Start, others are looked up or taken, as many as may be | wait for these | `Queued` |
//! | `Queued` | another one is done | look up | `LookingUp` |
//! | `Queued` | 16 times `session_wait` | refuse | – |
//! | `LookingUp` | the answers are not of all that are reached now | look up again in a moment | `LookingUp` |
//! | `LookingUp` | Clean Start; whoever answered has ended what is older | new session, born now | – |
//! | `LookingUp` | a stub or outcome leads, beyond every session found, to a reached home that has something, unless that session has been there and has left | refuse | – |
//! | `LookingUp` | somebody knows of a later CONNECT | refuse | – |
//! | `LookingUp` | own copy, or with no session found anybody's, whose old owner is reached | refuse | – |
//! | `LookingUp` | greatest session is here | thaw it, epoch = stamp | – |
//! | `LookingUp` | greatest session elsewhere, epoch < stamp, reached | `Take`; the copy is blind if there are lesser ones | `Transferring`, `Requested` |
//! | `LookingUp` | none | new session, not confirmed; blind if somebody is away, a stub leads nowhere, or a copy's old owner is away | – |
//! | any of these | look-up with a greater stamp, or later CONNECT here | refuse | – |
//! | `Requested`, `Receiving` | next part | keep it, `PartAck` | `Receiving` |
//! | `Requested`, `Receiving` | last part | write the copy, then `Stored` | `Prepared` |
//! | `Requested`, `Receiving` | `Refused`, owner lost, nothing for `session_wait`, too large | refuse, drop the parts | – |
//! | `Prepared` | part of the same transfer, timer, restart, its owner comes | `Stored` again | `Prepared` |
//! | `Prepared` | nothing for `session_wait` | refuse the client | `Prepared` |
//! | `Prepared` | `Commit`; no greater session here | the copy is the session; `Done`, CONNACK if it waits | – |
//! | `Prepared` | `Commit`; a greater session here | absorb the copy; `Done`, refuse if it waits | – |
//! | `Prepared` | `Abort` | drop the copy, refuse if it waits | – |
//! | none of these | `Commit` | `Done` | – |
//! | any | part that repeats one before | `PartAck` again | same |
//! | any | anything else from another home, or of another transfer | nothing | same |
//!
//! # A session that leaves: `OutboundTransfer` and `Stub`
//!
//! | state | event | does | next |
//! |---|---|---|---|
//! | owner | `Take`, stamp > epoch | disconnect (0x8E), freeze, first parts | `Frozen` |
//! | owner, `Frozen` | `Take`, stamp not greater | `Refused`; nothing if it is the frozen one's | same |
//! | `Frozen` | `Take`, greater stamp | thaw, freeze anew | `Frozen` |
//! | `Frozen` | `PartAck` | next parts | `Frozen` |
//! | `Frozen` | nothing for `session_wait`, receiver lost, own client gets it, restart | thaw | owner |
//! | `Frozen` | `Stored` | write: session out, stub and outcome in, what was queued since the snapshot to the target; then `Commit` | `Committed`, stub |
//! | `Committed` | `Stored`, timer, restart, the other home comes | `Commit` again | `Committed` |
//! | `Committed` | `Done` | drop the outcome | – |
//! | not `Frozen` or `Committed` for it | `Stored` | `Abort` | same |
//! | stub | a session is installed here, or one that began here is confirmed | lead here | stub |
//! | stub | fence of its target's stub, which leads further | lead there | stub |
//! | stub | fence passed, no outcome, all claims answered; where it leads here, the session is confirmed | end | – |
//! | stub | a claim of its session was not answered by a home that is reached | `Claim` again | stub |
//! | stub, `Committed`, `Prepared` | partner away all the time for `keep` (twice at most), or forgotten | give up, log | – |
//! | owner | `Claim`, greater, born ≤ epoch | write: session out, stub in, what is undelivered to the target; disconnect | stub |
//! | owner | `Claim`, greater, born > epoch; look-up with Clean Start, stamp > epoch | end all that is older, forward nothing | – |
//! | owner | `Claim`, lesser | own `Claim` | owner |
//! | no session, nothing comes, no look-up | `Claim` | `Yielded` | same |
//! | something comes, or a look-up is open | `Claim` | as above, but no `Yielded` yet | same |
//!
//! # Durability
//!
//! The machine changes at once, and what others see of it waits until all is durable that was
//! changed before ([`Action::Write`], [`Event::Written`]): messages, answers to look-ups, CONNACK.
//! So a crash undoes only changes that no other party has seen. Durable are sessions with their
//! marks, copies, stubs and outcomes ([`Transfers::recover`]). Freezes, waiting clients and parts
//! are not.
//!
//! # Why some of the rules are there
//!
//! Each of these was found as an order of events with a loss, a circle, or a session too many.
//!
//! - A forwarded message names the epoch of the session to which it goes, and a stub that leads no
//!   further does not send it back: while a client goes back to where it was, two stubs lead to each
//!   other until `Commit` has arrived. The message waits in the copy of that epoch.
//! - A CONNECT is refused where anybody answers with a later stamp, of a session, a stub or a waiting
//!   CONNECT, also with Clean Start. Otherwise two sessions remain, and neither is blind.
//! - Clean Start ends what is older with its look-up, which is repeated until it is answered. A
//!   message of its own might be lost, and the old session would remain.
//! - A Clean Start that is overtaken by a later CONNECT may have ended an outcome and not yet the
//!   copy. So a copy counts in a look-up although no stub leads there.
//! - A claim is answered only when nothing comes that could still become a lesser session.
//! - The owner of a lesser session claims at one home after the other. If the greater session moves
//!   from a home that has not heard the claim yet to one that has answered it, no claim meets it. So a session
//!   that moves claims itself if its look-up has found others.
//! - A home yields to a claim even if the claim arrives late. Then its stub leads to the sender of the claim.
//!   So the stub of the sender stays until all homes that are reached have answered the claims of its session,
//!   including claims that were the answer to a lesser one. (The list of these homes is not durable: a
//!   claim that was sent before a restart, and arrives after the stub has ended, leads to nothing.)
//! - A stub ends at no moment at which its own broker looks for the session: the answers may be older
//!   than the `Commit` that its end waited for.
//! - A broker that has just started assumes that others are away until the set of reached brokers
//!   is reported.
//! - A session that its client need not have heard of may end at once. Until it is confirmed, messages for
//!   the session that is away do not go into it.
//! - An action that waits for a write is held once, however often it is repeated.
//!
//! # What is given up
//!
//! If the owner is not reached, the client gets a new session (Session Present 0), and a message of
//! QoS 2 that the old one had sent and not completed may be delivered again by the new one. A client that goes back
//! to the old owner during a partition gets the old session, and the subscriptions of the one that it
//! had meanwhile end when both are compared. Clean Start discards what is reached; the rest when it
//! is heard of. Across partitions stamps order CONNECTs as well as the clocks agree: a wrong order costs one
//! disconnect more, and the later session's subscriptions. Order of messages is kept over a transfer
//! on one path only. A partner that is away for longer than `keep` loses what waits for it alone, and a
//! message is recognised as a duplicate as long as the bounded history of the session has it.
//!
//! # Shell
//!
//! The content of sessions is the shell's: queue, window, subscriptions, history, will. It says what
//! happens ([`Transfers::connect`], [`Transfers::handle`], [`Transfers::set_reach`]), and does what
//! [`Transfers::take_actions`] says. A look-up or `Take` for another user than the session's it answers
//! itself, with nothing and `Refused`. Sources: EMQX and VerneMQ (take-over in phases), presumed abort
//! (Mohan, Lindsay, Obermarck 1986), hybrid logical clocks (Kulkarni and others, 2014).

mod action;
mod custody;
#[cfg(test)]
mod explore;
mod identity;
mod inbound;
mod outbound;
mod peers;
#[cfg(test)]
mod tests;
mod totals;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Bound;
use std::sync::Arc;

use punctual_model::Nanos;

pub use action::{
    Action, Answer, Bounds, Change, Event, Extent, FenceAnswer, PartnerState, Refusal, Route,
    Timer, TransferMessage,
};
pub use identity::{CopyState, Freeze, HomeId, Located, Mark, Record, Stamp, Stub, TransferId};

use custody::{Custody, HomeState, InboundTransfer, OutboundTransfer, Step};
use peers::Peers;
use totals::Totals;

/// Bytes of a part of a snapshot at most.
pub const MAX_PART: usize = 16 << 10;

/// Homes that are said to be away in one message at most; where there are more, others are away all
/// the same.
pub const MAX_AWAY: usize = 256;

/// Clients that are looked at in one piece after a change of reach.
const SWEEP: usize = 256;

/// How long things may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Times {
    /// A client waits so long for the next step of its session's transfer (the owner is found, a part
    /// arrives, the transfer is committed), and a session stays frozen.
    pub session_wait: Nanos,
    /// A fence is asked again after this.
    pub heal: Nanos,
    /// What waits for a home that is away is kept for this long.
    pub keep: Nanos,
}

/// What a home is.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Settings {
    /// Its name.
    pub own: HomeId,
    /// Greater after every start.
    pub instance: u64,
    /// See [`Times`].
    pub times: Times,
    /// See [`Bounds`].
    pub bounds: Bounds,
}

/// The sessions of a home's shell.
pub trait Sessions {
    /// Mark of the session of a client, if there is one here.
    fn mark(&self, client: &str) -> Option<Mark>;
}

/// What was durable of one client besides its session, see [`Transfers::recover`].
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Records {
    /// Of [`Change::Prepare`].
    pub copies: Vec<(TransferId, HomeId, Mark)>,
    /// Of [`Change::Depart`]: with whom the transfer was.
    pub outcomes: Vec<(TransferId, HomeId)>,
    /// See [`Stub`].
    pub stub: Option<Stub>,
}

/// All that one home knows of sessions that move.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Transfers {
    clients: BTreeMap<Arc<str>, Custody>,
    shared: HomeState,
    /// The client after which clients are still to be looked at.
    sweep: Option<Bound<Arc<str>>>,
    /// Homes that have not answered every claim, as found since the sweep began.
    claimed: BTreeSet<HomeId>,
}

impl Transfers {
    /// A home that reaches nobody yet.
    pub fn new(settings: Settings) -> Self {
        Self {
            clients: BTreeMap::new(),
            shared: HomeState {
                settings,
                clock: 0,
                last: 0,
                freezes: 0,
                peers: Peers::default(),
                totals: Totals::default(),
                queued: VecDeque::new(),
                is_starting: false,
                actions: VecDeque::new(),
            },
            sweep: None,
            claimed: BTreeSet::new(),
        }
    }

    /// What the store has of a client. To be said of each that has a record or a blind session, before
    /// all else.
    pub fn recover(&mut self, client: &str, records: Records, sessions: &(impl Sessions + ?Sized)) {
        self.step(client, sessions, |step| {
            if let Some(mark) = &step.session {
                step.shared.last = step.shared.last.max(mark.epoch.micros);
            }
            for (id, from, mark) in records.copies {
                step.shared.last = step.shared.last.max(id.at.micros);
                step.arm(Timer::Stored(id.clone(), 0));
                step.arm_keep(PartnerState::Copy(id.clone()), &from);
                let prepared = InboundTransfer::Prepared { id, from, mark };
                step.custody.inbound.push(prepared);
            }
            for (id, to) in records.outcomes {
                step.shared.last = step.shared.last.max(id.at.micros);
                step.arm(Timer::Commit(id.clone(), 0));
                step.arm_keep(PartnerState::Outcome(id.clone()), &to);
                let committed = OutboundTransfer::Committed { id, to };
                step.custody.outbound.push(committed);
            }
            if let Some(stub) = records.stub {
                step.shared.last = step.shared.last.max(stub.target_epoch.micros);
                step.arm_keep(PartnerState::Stub(stub.target_epoch.clone()), &stub.target);
                step.custody.stub = Some(stub);
            }
        });
    }

    /// A client connects. Returns the stamp of its CONNECT, by which [`Action::Connack`] answers.
    pub fn connect(
        &mut self,
        client: &str,
        clean: bool,
        clock: u64,
        sessions: &(impl Sessions + ?Sized),
    ) -> Stamp {
        self.shared.clock = clock;
        self.step(client, sessions, |step| step.connect(clean))
    }

    /// Something happens that concerns a client; `clock` in microseconds since 1970.
    pub fn handle(
        &mut self,
        client: &str,
        event: Event,
        clock: u64,
        sessions: &(impl Sessions + ?Sized),
    ) {
        self.shared.clock = clock;
        match event {
            Event::Message(from, TransferMessage::Resync) => {
                self.shared.peers.ask(&from);
                self.begin_sweep();
            }
            Event::Message(from, TransferMessage::ClaimsDone { away }) => {
                self.shared
                    .peers
                    .claims_done(&from, away, &self.shared.settings.own);
                self.begin_sweep();
            }
            Event::Due(Timer::Resync(home, round)) => self.resync(&home, round),
            Event::Due(Timer::Sweep) => self.sweep(sessions),
            Event::Due(Timer::Next) => self.start_next(sessions),
            event => self.step(client, sessions, |step| step.event(event)),
        }
    }

    /// Other homes that are reached now; `away` if some of the mesh are not.
    pub fn set_reach(&mut self, reached: &BTreeSet<HomeId>, away: bool) {
        for home in self.shared.peers.set(reached, away) {
            self.resync(&home, 0);
        }
        self.begin_sweep();
    }

    /// A home does not come back: it is not missed any more.
    pub fn forget_home(&mut self, home: &HomeId) {
        self.shared.peers.forget(home);
        self.begin_sweep();
    }

    /// The same for what is known of a client.
    pub fn forget(&mut self, client: &str, home: &HomeId, sessions: &(impl Sessions + ?Sized)) {
        self.step(client, sessions, |step| step.forget(home));
    }

    /// Where a message goes that was accepted for a session of one epoch and forwarded to that of
    /// another; `None` if it was not forwarded yet.
    pub fn route(
        &mut self,
        client: &str,
        for_epoch: &Stamp,
        to_epoch: Option<&Stamp>,
        sessions: &(impl Sessions + ?Sized),
    ) -> Route {
        self.step(client, sessions, |step| step.route(for_epoch, to_epoch))
    }

    /// The stub of a client: what is published for its subscriptions takes the [`Self::route`] of a
    /// message for [`Stub::for_epoch`] that was not forwarded yet.
    pub fn stub(&self, client: &str) -> Option<&Stub> {
        self.clients.get(client)?.stub.as_ref()
    }

    /// Another home puts a fence behind what is on its way to its stub.
    pub fn fence_asked(
        &mut self,
        client: &str,
        by: &HomeId,
        stub: &Stub,
        sessions: &(impl Sessions + ?Sized),
    ) -> FenceAnswer {
        self.step(client, sessions, |step| step.fence_asked(by, stub))
    }

    /// Whether nothing is known of a client, or only a session that is idle here.
    pub fn is_idle(&self, client: &str) -> bool {
        !self.clients.contains_key(client)
    }

    /// What is to be done, in this order.
    pub fn take_actions(&mut self) -> VecDeque<(Arc<str>, Action)> {
        std::mem::take(&mut self.shared.actions)
    }

    fn step<R>(
        &mut self,
        client: &str,
        sessions: &(impl Sessions + ?Sized),
        act: impl FnOnce(&mut Step<'_>) -> R,
    ) -> R {
        let known = self.clients.remove_entry(client);
        let (client, mut custody) = known.unwrap_or_else(|| (client.into(), Custody::default()));
        self.shared.totals.remove(&custody);
        let mut step = Step {
            session: sessions.mark(&client),
            client: &client,
            custody: &mut custody,
            shared: &mut self.shared,
        };
        let result = act(&mut step);
        step.settle();
        self.shared.totals.add(&custody);
        if !custody.is_empty() {
            self.clients.insert(client, custody);
        }
        self.start_soon();
        result
    }

    /// Sees to it that clients that wait for others go on when these are done.
    fn start_soon(&mut self) {
        let shared = &mut self.shared;
        let has_room = shared.totals.active < shared.settings.bounds.active;
        if has_room && !shared.queued.is_empty() && !shared.is_starting {
            shared.is_starting = true;
            let soon = Action::Arm(Timer::Next, Nanos(0));
            shared.actions.push_back(("".into(), soon));
        }
    }

    /// Goes on with clients that wait for others.
    fn start_next(&mut self, sessions: &(impl Sessions + ?Sized)) {
        for _ in 0..self.shared.settings.bounds.active {
            let totals = &self.shared.totals;
            if totals.active >= self.shared.settings.bounds.active {
                break;
            }
            let Some((client, at)) = self.shared.queued.pop_front() else {
                break;
            };
            self.step(&client, sessions, |step| step.is_next(&at));
        }
        self.shared.is_starting = false;
        self.start_soon();
    }

    /// Asks a home that is reached whether all of its claims are answered, until it says so.
    fn resync(&mut self, home: &HomeId, round: u8) {
        if self.shared.peers.awaits(home) {
            let nobody: Arc<str> = "".into();
            let ask = Action::Send(home.clone(), TransferMessage::Resync);
            self.shared.actions.push_back((nobody.clone(), ask));
            let again = Timer::Resync(home.clone(), round.saturating_add(1));
            let again = Action::Arm(again, custody::repeat(round));
            self.shared.actions.push_back((nobody, again));
        }
    }

    fn begin_sweep(&mut self) {
        self.sweep = Some(Bound::Unbounded);
        self.claimed.clear();
        self.sweep_soon();
    }

    fn sweep_soon(&mut self) {
        let soon = Action::Arm(Timer::Sweep, Nanos(0));
        self.shared.actions.push_back(("".into(), soon));
    }

    /// Looks at the next clients after a change of reach; at the end those are answered whose claims
    /// were asked for.
    fn sweep(&mut self, sessions: &(impl Sessions + ?Sized)) {
        let Some(after) = self.sweep.take() else {
            return;
        };
        let next = self.clients.range::<Arc<str>, _>((after, Bound::Unbounded));
        let next: Vec<Arc<str>> = next.take(SWEEP).map(|(client, _)| client.clone()).collect();
        for client in &next {
            let open = self.step(client, sessions, |step| {
                step.reach_changed();
                step.unanswered()
            });
            self.claimed.extend(open);
        }
        if next.len() == SWEEP {
            self.sweep = next.last().cloned().map(Bound::Excluded);
            return self.sweep_soon();
        }
        for home in self.shared.peers.take_asking() {
            if !self.claimed.contains(&home) {
                let away = self.shared.peers.absent().cloned().collect();
                let done = Action::Send(home, TransferMessage::ClaimsDone { away });
                self.shared.actions.push_back(("".into(), done));
            }
        }
    }
}
