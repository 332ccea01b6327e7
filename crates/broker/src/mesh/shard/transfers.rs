//! Sessions that move between the brokers of a mesh: the shell of [`punctual_mesh::transfer`].
//!
//! What happens is told to the machine, one event after the other, and what it wants is done before it
//! is told the next one: it looks at the sessions as they are ([`Shard::run_custody`]). Records and
//! the content that goes with them are emitted in one turn, and so are committed together.
//!
//! A stub has the subscriptions of a session that has left, queues what comes for them as a session does
//! that has no client, and forwards it ([`Shard::forward_stubs`]) in the queues of the links, on a topic
//! of its target ([`FORWARD`]) that each link wants which leads there. On the way, and where it is
//! taken in, it is acknowledged once it is safe there.

pub(crate) use crate::shard::connect::{Looked, NO_ROOM};
pub(crate) use crate::shard::deliver::{Whom, deliver_all};

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use hashbrown::HashSet;
use punctual_codec::{Connect, PacketType, QoS, ReasonCode, topic};
use punctual_mesh::transfer::{
    Action, Answer, Change, Event as Told, Extent, FenceAnswer, HomeId, Located, MAX_PART, Mark,
    PartnerState, Record, Refusal as Why, Route, Stamp, Stub, Timer, TransferId, TransferMessage,
};
use punctual_mesh::wire::SessionAddress;

use crate::admission::Ask;
use crate::base::connection::ConnId;
use crate::base::delivery::{Delivery, Load};
use crate::base::durability::Durability;
use crate::base::name::MessageName;
use crate::hub::{Awaited, Event, Hub, Output, State};
use crate::index::generation_slot;
use crate::index::matched::{Groups, Matched};
use crate::index::target::Target;
use crate::journal::Journal;
use crate::mesh::custody::{
    Arriving, Custody, Discarded, FORWARD, Frozen, MAX_TRANSIT, RETRY, Snapshot, TRY_AGAIN, Then,
    Transit, WAKE, Waiting,
};
use crate::mesh::journal::moved::{
    Round, put_delivery, put_inflight, put_session, put_state, put_taken_up, read_delivery,
};
use crate::mesh::moves::{TakenUp, apart};
use crate::message::Parts;
use crate::publication::Publication;
use crate::remains::Remains;
use crate::session::{Session, Step, Stored};
use crate::shard::refusal::Refusal;
use crate::shard::{Fail, Shard};
use crate::tasks::{FILTER, FLOW};
use crate::{Budget, Nanos};

/// What a stub forwards.
#[derive(Debug, Clone)]
enum Next {
    Message(Delivery),
    /// The client may remember it of a message with QoS 2 of a session that has ended.
    Identifier(u16),
}

impl Next {
    /// Whether nobody waits for it.
    fn is_at_most_once(&self) -> bool {
        matches!(self, Self::Message(delivery) if delivery.qos == QoS::AtMostOnce)
    }

    fn is_exactly_once(&self) -> bool {
        matches!(self, Self::Message(delivery) if delivery.qos == QoS::ExactlyOnce)
    }
}

/// Why a connection ends whose client has another one.
const ELSEWHERE: &str = "connected to another broker";
/// Messages of stubs that are forwarded in one piece.
const AT_ONCE: usize = 64;

impl Shard {
    /// Another broker looks for the session of a client that has connected there as that user, with
    /// `clean` if with Clean Start. [`crate::SessionTransfers::found`] is the answer, perhaps later.
    pub fn look_up(
        &mut self,
        by: &HomeId,
        client_id: &str,
        user: Option<&str>,
        (at, clean): (&Stamp, bool),
        now: Nanos,
    ) {
        if !self.hub.has_custody() {
            return;
        }
        let client: Arc<str> = client_id.into();
        if self.hub.is_foreign(&client, user) {
            // What is kept for one user is not for another who uses the same identifier.
            if let Some(federation) = self.hub.directory.federation() {
                federation.found(by, client_id, at, Located::default());
            }
            return;
        }
        self.end_transient(&client, at, now);
        let (by, at) = (by.clone(), at.clone());
        self.tell(&client, Told::Lookup { by, at, clean }, now);
    }

    /// The answer to [`crate::SessionTransfers::look_up`]: what others have, and how much that covers.
    pub fn located(
        &mut self,
        client_id: &str,
        at: &Stamp,
        answers: Vec<(HomeId, Located)>,
        extent: Extent,
        now: Nanos,
    ) {
        let at = at.clone();
        let located = Told::Located {
            at,
            answers,
            extent,
        };
        self.tell(&client_id.into(), located, now);
    }

    /// Other brokers that are reached now; `away` if some of the mesh are not.
    pub fn set_reach(&mut self, reached: &BTreeSet<HomeId>, away: bool, now: Nanos) {
        if self.hub.has_custody() {
            self.recover_custody();
            if let Some(custody) = &mut self.hub.links.custody {
                custody.claims_done.retain(|home, _| reached.contains(home));
                custody.reached.clone_from(reached);
            }
            self.hub
                .with_machine(|machine, _| machine.set_reach(reached, away));
            self.run_custody(now);
            self.forward_stubs(now);
        }
    }

    /// Another broker does not come back: what waits for it alone is given up, and it is not missed.
    pub fn forget_broker(&mut self, broker: &str, now: Nanos) {
        let Some(home) = HomeId::new(broker).filter(|_| self.hub.has_custody()) else {
            return;
        };
        self.run_custody(now);
        let Some(custody) = &self.hub.links.custody else {
            return;
        };
        let copies = custody.copies.keys();
        let all = copies
            .chain(custody.stubs.keys())
            .chain(custody.outcomes.keys());
        let all: BTreeSet<Arc<str>> = all.cloned().collect();
        for client in all {
            self.hub
                .with_machine(|machine, marks| machine.forget(&client, &home, marks));
            self.run_custody(now);
        }
        self.hub
            .with_machine(|machine, _| machine.forget_home(&home));
        self.run_custody(now);
    }

    /// Another broker puts a fence behind what is on its way to its stub of a client.
    pub fn fence_asked(
        &mut self,
        by: &HomeId,
        client_id: &str,
        stub: &Stub,
        now: Nanos,
    ) -> FenceAnswer {
        if !self.hub.has_custody() {
            return FenceAnswer::Clear;
        }
        self.run_custody(now);
        let ask = self
            .hub
            .with_machine(|machine, marks| machine.fence_asked(client_id, by, stub, marks));
        self.run_custody(now);
        ask.unwrap_or(FenceAnswer::LookingUp)
    }

    /// See [`crate::SessionTransfers::fence_stub`].
    pub fn fence_passed(&mut self, client_id: &str, epoch: &Stamp, now: Nanos) {
        self.forward_stubs(now);
        let client: Arc<str> = client_id.into();
        // What it has is on its way to it, too: it is asked again.
        if self.hub.stubs_are_forwarded(&client) {
            let hub = &mut self.hub;
            let fence = hub.outboxes.fence(hub.index);
            if let Some(custody) = &mut hub.links.custody {
                let then = Then::EndStub(client, epoch.clone());
                custody.fenced.push_back((fence, then));
            }
            self.go_on_behind_fences(now);
        }
    }

    /// Does what has waited for other shards.
    fn go_on_behind_fences(&mut self, now: Nanos) {
        while let Some(custody) = &mut self.hub.links.custody
            && let Some((fence, _)) = custody.fenced.front()
            && self.hub.outboxes.fences.is_passed(*fence)
            && let Some((_, then)) = custody.fenced.pop_front()
        {
            match then {
                Then::MakePart(client, id, number) => {
                    self.hub.make_part(&client, id, number, now);
                    self.run_custody(now);
                }
                Then::EndStub(client, epoch) => {
                    self.forward_stubs(now);
                    if self.hub.stubs_are_forwarded(&client) {
                        self.tell(&client, Told::FencePassed(epoch), now);
                    }
                }
                Then::Begin(slot, number) => self.hub.has_begun(slot, number),
            }
        }
    }

    /// See [`crate::SessionTransfers::forward`].
    pub fn take_forwarded(
        &mut self,
        number: u64,
        address: &SessionAddress,
        message: &Arc<[u8]>,
        now: Nanos,
    ) {
        let transit = Transit {
            address: address.clone(),
            message: message.clone(),
            number,
        };
        self.run_custody(now);
        self.pass_forwarded(transit, now);
        self.run_custody(now);
    }

    /// See [`crate::SessionTransfers::forwarded`].
    pub fn forwarded(&mut self, number: u64) {
        let hub = &mut self.hub;
        let custody = hub.links.custody.as_mut();
        let waits = custody.and_then(|it| it.unacknowledged.remove(&number));
        if let Some((conn, packet_id)) = waits
            && hub.outlets.conn(conn).is_some()
        {
            let (kind, reason) = (PacketType::PubAck, ReasonCode::Success);
            hub.answer(conn.slot, kind, packet_id, reason, None);
        }
    }

    /// A neighbour has forwarded a message; false if it is none.
    pub(crate) fn forwarded_packet(&mut self, id: ConnId, packet_id: u16, payload: &[u8]) -> bool {
        self.hub.has_custody();
        let parts = payload.split_first_chunk();
        let parts = parts.and_then(|(length, rest)| {
            let (address, message) = rest.split_at_checked(u16::from_be_bytes(*length).into())?;
            Some((SessionAddress::decode(address).ok()?, message))
        });
        let (Some((address, message)), Some(custody)) = (parts, &mut self.hub.links.custody) else {
            return false;
        };
        custody.last_unacknowledged += 1;
        let number = custody.last_unacknowledged;
        custody.unacknowledged.insert(number, (id, packet_id));
        if let Some(federation) = self.hub.directory.federation() {
            federation.forward(number, &address, message.into());
        }
        true
    }

    /// What another broker has written about a client's session.
    pub fn letter(&mut self, from: &str, client_id: &str, body: &[u8], now: Nanos) {
        let Some(from) = HomeId::new(from).filter(|_| self.hub.has_custody()) else {
            return;
        };
        let body = match client_id {
            "" => match self.hub.letter_of_nobody(&from, body) {
                Some(body) => body,
                None => return,
            },
            _ => body,
        };
        let Ok(message) = TransferMessage::decode(body) else {
            return;
        };
        let client: Arc<str> = client_id.into();
        // Another user's session is as if it were not here.
        let without_session = match &message {
            TransferMessage::Take { at, user } => {
                let (at, newer) = (at.clone(), None);
                Some((user, TransferMessage::Refused { at, newer }))
            }
            TransferMessage::Claim { mark, user } => {
                Some((user, TransferMessage::Yielded(mark.epoch.clone())))
            }
            _ => None,
        };
        if let Some((user, answer)) = without_session
            && self.hub.is_foreign(&client, user.as_deref())
        {
            return self.hub.write_to(&from, &client, &answer);
        }
        if let TransferMessage::Take { at, .. } = &message {
            self.end_transient(&client, at, now);
        }
        self.tell(&client, Told::Message(from, message), now);
    }

    pub(crate) fn transfer_is_due(&mut self, id: u64, now: Nanos) {
        let Some(custody) = &mut self.hub.links.custody else {
            return;
        };
        match id {
            WAKE => {
                custody.is_armed = false;
                self.run_custody(now);
                self.go_on_behind_fences(now);
                self.forward_stubs(now);
            }
            TRY_AGAIN => {
                custody.retries = false;
                self.retry_forwarding(now);
            }
            _ => {
                if let Some((client, timer)) = custody.timers.remove(&id) {
                    if let Some(armed) = custody.armed.get_mut(&client) {
                        armed.retain(|known| *known != id);
                    }
                    self.tell(&client, Told::Due(timer), now);
                }
            }
        }
    }

    /// Tells the machine what has happened, and does what it wants.
    fn tell(&mut self, client: &Arc<str>, event: Told, now: Nanos) {
        if self.hub.has_custody()
            && let Some(custody) = &mut self.hub.links.custody
        {
            custody.events.push_back((client.clone(), event));
            self.run_custody(now);
        }
    }

    /// Lets a client wait until it is known which session it gets.
    pub(crate) fn await_transfer(
        &mut self,
        id: ConnId,
        client: &Arc<str>,
        clean: bool,
        awaited: Awaited,
        now: Nanos,
    ) -> Result<(), Refusal> {
        let directory = self.hub.directory.clone();
        if !directory.reserve(client, self.hub.index) {
            return Err(Refusal::new(
                ReasonCode::ServerBusy,
                "client identifier is being connected elsewhere",
            ));
        }
        if self.hub.sessions.named(client).is_none() && self.hub.is_full_of_sessions() {
            self.hub.settle_home(client);
            return Err(Refusal::new(ReasonCode::QuotaExceeded, NO_ROOM));
        }
        if let Some(conn) = self.hub.outlets.conn(id) {
            conn.state = State::Awaiting(Box::new(awaited));
            conn.paused += 1;
        }
        self.run_custody(now);
        let clock = directory.federation().map_or(0, |mesh| mesh.next_stamp());
        let at = self
            .hub
            .with_machine(|machine, marks| machine.connect(client, clean, clock, marks));
        if let (Some(at), Some(custody)) = (at, &mut self.hub.links.custody) {
            if clean {
                // Nothing of what others have is for it, so it need not wait for them, however slow a
                // link to them is. The look-up ends what is older there, and so does the claim of the
                // session, which is said until each has answered.
                let located = Told::Located {
                    at: at.clone(),
                    answers: Vec::new(),
                    extent: Extent::Reached,
                };
                custody.events.push_back((client.clone(), located));
            }
            let waiting = custody.waiting.entry(client.clone()).or_default();
            waiting.push(Waiting { at, conn: id });
        }
        self.run_custody(now);
        Ok(())
    }

    /// A connection that waits is closed.
    pub(crate) fn waiting_is_closed(&mut self, id: ConnId, body: &[u8], now: Nanos) {
        let Ok(connect) = Connect::decode(body) else {
            return;
        };
        let client: Arc<str> = connect.client_id.into();
        let custody = self.hub.links.custody.as_mut();
        let waiting = custody.and_then(|it| it.take_waiting(&client, |it| it.conn == id));
        if let Some(Waiting { at, .. }) = waiting {
            self.hub.tell_custody(&client, Told::Closed(at), now);
        }
    }

    /// Tells the machine what the store had.
    fn recover_custody(&mut self) {
        let Some(custody) = &mut self.hub.links.custody else {
            return;
        };
        for (client, records) in std::mem::take(&mut custody.records) {
            self.hub
                .with_machine(|machine, marks| machine.recover(&client, records, marks));
        }
    }

    /// Goes on until the machine has been told all, and wants nothing more.
    pub(crate) fn run_custody(&mut self, now: Nanos) {
        self.recover_custody();
        let Some(custody) = &mut self.hub.links.custody else {
            return;
        };
        if std::mem::replace(&mut custody.is_busy, true) {
            return;
        }
        let mut touched: Vec<Arc<str>> = Vec::new();
        while let Some(custody) = &mut self.hub.links.custody {
            if let Some((client, action)) = custody.actions.pop_front() {
                if touched.last() != Some(&client) {
                    touched.push(client.clone());
                }
                self.act(&client, action, now);
            } else if let Some((client, event)) = custody.events.pop_front() {
                let clock = self.hub.mesh_clock();
                self.hub
                    .with_machine(|machine, marks| machine.handle(&client, event, clock, marks));
                touched.push(client);
            } else {
                custody.is_busy = false;
                break;
            }
        }
        for client in touched {
            self.hub.settle_home(&client);
        }
        let custody = self.hub.links.custody.as_ref();
        if custody.is_some_and(|it| !it.unsent.is_empty() && !it.retries) {
            self.hub.wake_custody(now);
        }
        self.share_stats_soon(now);
    }

    fn act(&mut self, client: &Arc<str>, action: Action, now: Nanos) {
        let hub = &mut self.hub;
        match action {
            Action::Write(number, changes) => {
                let emitted = |hub: &Hub| hub.journal.as_ref().map_or(0, |it| it.emitted());
                let before = emitted(hub);
                for change in changes {
                    self.change(client, change, now);
                }
                let hub = &mut self.hub;
                let is_stored = emitted(hub) > before;
                let ticket = hub.journal.as_mut().map_or(0, |journal| journal.settle());
                if let Some(custody) = &mut hub.links.custody {
                    // Nothing of it is stored: it waits only for what was written of the client before.
                    let waits = |custody: &Custody| {
                        let mut before = custody.writes.iter();
                        before.any(|(_, other, _)| other == client)
                    };
                    match is_stored || waits(custody) {
                        true => custody.writes.push_back((ticket, client.clone(), number)),
                        false => {
                            let written = Told::Written(number);
                            custody.events.push_back((client.clone(), written));
                        }
                    }
                }
                hub.custody_committed(now);
            }
            Action::Send(home, message) => {
                let message = match message {
                    TransferMessage::Take { at, .. } => {
                        let user = hub.user_that_waits(client, &at).map(|user| (*user).into());
                        TransferMessage::Take { at, user }
                    }
                    TransferMessage::Claim { mark, .. } => {
                        // A stub repeats the claims of the session that has left.
                        let stubs = hub
                            .links
                            .custody
                            .as_ref()
                            .and_then(|it| it.stubs.get(client));
                        let stub = stubs.and_then(|it| it.last()).copied();
                        let slot = hub.sessions.named(client).or(stub);
                        let session = slot.and_then(|slot| hub.sessions.get(slot));
                        let user = session.and_then(|session| session.username.as_deref());
                        let user = user.map(Into::into);
                        TransferMessage::Claim { mark, user }
                    }
                    message => message,
                };
                hub.write_to(&home, client, &message);
            }
            Action::Lookup { at, clean } => {
                let user = hub.user_that_waits(client, &at);
                if let Some(federation) = hub.directory.federation() {
                    federation.look_up(client, user.as_deref(), &at, clean);
                }
            }
            Action::Found { by, at, located } => {
                if let Some(federation) = hub.directory.federation() {
                    federation.found(&by, client, &at, located);
                }
            }
            Action::Connack { at, answer } => self.answer_connect(client, &at, answer, now),
            Action::Disconnect => {
                let slot = hub.sessions.named(client);
                let conn = slot.and_then(|slot| hub.sessions.get(slot)?.conn);
                if let Some(conn) = conn {
                    // If the session ends with it, the machine knows that.
                    if let Some(custody) = &mut hub.links.custody {
                        custody.is_changing = true;
                    }
                    self.end_taken_over(conn, ELSEWHERE, now);
                    if let Some(custody) = &mut self.hub.links.custody {
                        custody.is_changing = false;
                    }
                }
            }
            Action::Freeze(freeze) => hub.freeze(client, freeze),
            Action::Thaw => hub.thaw(client, now),
            Action::MakePart(id, number) => hub.make_part(client, id, number, now),
            Action::KeepPart(id, number, bytes) => hub.keep_part(client, id, number, &bytes, now),
            Action::DropParts => hub.drop_parts(client),
            Action::Fence(stub) => {
                if let Some(federation) = hub.directory.federation() {
                    federation.fence_stub(client, &stub);
                }
            }
            Action::Arm(timer, after) => hub.arm_transfer(client, timer, now + after),
            Action::GaveUp(kept) => {
                let what = match kept {
                    PartnerState::Copy(_) => "a copy of the session",
                    PartnerState::Outcome(_) => "the outcome of a transfer",
                    PartnerState::Stub(_) => "messages for the session",
                };
                hub.outlets
                    .outputs
                    .push(Output::Event(Event::TransferGivenUp {
                        client_id: client.clone(),
                        what,
                    }));
            }
        }
    }

    fn answer_connect(&mut self, client: &Arc<str>, at: &Stamp, answer: Answer, now: Nanos) {
        let custody = self.hub.links.custody.as_mut();
        let waiting = custody.and_then(|it| it.take_waiting(client, |it| it.at == *at));
        let conn = waiting.map(|waiting| waiting.conn);
        let state = conn.and_then(|id| Some(&mut self.hub.outlets.conn(id)?.state));
        let awaited = match state {
            Some(state @ State::Awaiting(_)) => match std::mem::replace(state, State::Opening) {
                State::Awaiting(awaited) => Some(*awaited),
                _ => None,
            },
            _ => None,
        };
        if let (Some(id), Some(awaited)) = (conn, awaited)
            && let Ok(connect) = Connect::decode(&awaited.body)
        {
            let slot = self.hub.sessions.named(client);
            let session = slot.and_then(|slot| self.hub.sessions.get(slot));
            let mark = session.and_then(Session::mark);
            // While the answer waited for the store, the client has connected again, here or elsewhere.
            let is_over = match mark {
                Some(mark) => mark.epoch != *at || self.hub.is_frozen(client),
                // If it was not made since there was no room, that is the reason.
                None => !self.hub.is_full_of_sessions(),
            };
            let other = session.and_then(|session| session.conn);
            let answer = match answer {
                Answer::Granted { .. } if is_over => Answer::Refused(Why::Superseded),
                answer => answer,
            };
            if let (Answer::Granted { .. }, Some(other)) = (answer, other) {
                self.end_taken_over(other, "session taken over", now);
            }
            let refusal = match answer {
                Answer::Granted { present } => {
                    let Awaited { username, auth, .. } = &awaited;
                    let looked = Looked::Granted {
                        present,
                        at: at.micros,
                    };
                    let (username, auth) = (username.clone(), auth.clone());
                    self.accept(id, &connect, username, auth, looked, now).err()
                }
                Answer::Refused(Why::Superseded) => {
                    self.hub.stats.sessions_taken_over += 1;
                    self.end_connection(id.slot, "session taken over", false, now);
                    return;
                }
                Answer::Refused(why) => Some(Refusal::new(
                    ReasonCode::ServerUnavailable,
                    match why {
                        Why::OnItsWay => "the session is on its way between two brokers",
                        Why::OwnerSilent => "the broker that has the session does not answer",
                        Why::OthersSilent => "not every broker has said whether it has the session",
                        Why::Busy | Why::Superseded => "too many sessions move at a time",
                    },
                )),
            };
            match refusal {
                None => self.hub.resume(vec![id]),
                Some(refusal) => {
                    self.refuse_connect(id, Some(&connect), &refusal);
                    self.fail(id, &Fail::silent(refusal.why), now);
                }
            }
        }
        // One that was made for a client that is gone, or was refused, is nobody's.
        let slot = self.hub.sessions.named(client);
        let session = slot.and_then(|slot| Some((slot, self.hub.sessions.get(slot)?)));
        if let Some((slot, session)) = session
            && session.conn.is_none()
            && session.epoch == 0
        {
            self.end_session(slot, now);
        }
    }

    /// A session that ends with its connection does not move: it ends once its client has connected
    /// elsewhere.
    fn end_transient(&mut self, client: &Arc<str>, at: &Stamp, now: Nanos) {
        self.run_custody(now);
        let hub = &self.hub;
        let slot = hub.sessions.named(client);
        let session = slot.and_then(|slot| Some((slot, hub.sessions.get(slot)?)));
        if let Some((slot, session)) = session
            && session.is_transient()
            && session.mark().is_none_or(|mark| mark.epoch < *at)
        {
            match session.conn {
                Some(conn) => self.end_taken_over(conn, ELSEWHERE, now),
                None => self.end_session(slot, now),
            }
        }
    }

    fn change(&mut self, client: &Arc<str>, change: Change, now: Nanos) {
        if let Some(custody) = &mut self.hub.links.custody {
            custody.is_changing = true;
        }
        let hub = &mut self.hub;
        match change {
            Change::Begin(mark) => self.begin_session(client, mark, now),
            Change::Mark(mark) => {
                if let Some(slot) = hub.sessions.named(client) {
                    hub.set_record(slot, Record::Session(mark));
                }
            }
            Change::End => {
                if let Some(slot) = hub.sessions.named(client) {
                    // Its client is back elsewhere [MQTT-3.1.2-8].
                    if hub.take_will(slot).is_some() {
                        hub.store_no_will(slot);
                    }
                    self.end_session(slot, now);
                }
            }
            Change::Prepare { id, from, mark } => hub.prepare_copy(client, &id, from, mark, now),
            Change::DropCopy(id) => {
                if let Some(slot) = hub.take_copy(client, &id) {
                    hub.discard_copy(slot);
                }
            }
            Change::Install(id, mark) => self.install(client, &id, mark, now),
            Change::Absorb(id) => self.absorb(client, &id, now),
            Change::Depart(id, stub) => self.depart(client, Some(id), stub, now),
            Change::Demote(stub) => self.depart(client, None, stub, now),
            Change::Stub(stub) => hub.lead_stubs(client, &stub, now),
            Change::DropStub => self.drop_stubs(client, now),
            Change::DropOutcome(id) => hub.drop_outcome(client, &id),
        }
        if let Some(custody) = &mut self.hub.links.custody {
            custody.is_changing = false;
        }
        self.hub.wake_custody(now);
    }

    /// A new session; it is its client's once [`Shard::accept`] lets that in.
    fn begin_session(&mut self, client: &Arc<str>, mark: Mark, now: Nanos) {
        if let Some(slot) = self.hub.sessions.named(client) {
            self.end_session(slot, now);
        }
        let hub = &mut self.hub;
        let (directory, index) = (hub.directory.clone(), hub.index);
        if directory
            .claim(client, index, hub.config.limits.max_sessions)
            .is_err()
        {
            // Its client is refused when it is let in.
            return;
        }
        let user = hub.user_that_waits(client, &mark.epoch);
        let slot = hub
            .sessions
            .insert_with(|slot| Session::new(directory.handle(client, index, slot)));
        hub.sessions.name(slot);
        if let Some(session) = hub.sessions.get_mut(slot) {
            session.username = user;
            session.set_began(directory.begins().map(Stored::new));
            // It is not one that has ended with its connection.
            session.expiry = u32::MAX;
            // Others than those of another session that its client may remember.
            let number = apart(mark.epoch.by.as_str(), mark.epoch.micros);
            let first = number % u64::from(u16::MAX) + 1;
            session.window.begin_at(first as u16);
            session.set_record(Stored::new(Record::Session(mark)));
        }
    }

    /// Ends a session whose place another one takes; returns the messages that wait in it, and
    /// identifiers that its client may remember.
    pub(crate) fn leave_behind(&mut self, slot: u32, now: Nanos) -> (Vec<Delivery>, Vec<TakenUp>) {
        let hub = &mut self.hub;
        if hub.take_will(slot).is_some() {
            hub.store_no_will(slot);
        }
        let Some(session) = hub.sessions.get(slot) else {
            return Default::default();
        };
        let taken_up = session.remembered().collect();
        let waiting = session.undelivered().cloned().collect();
        self.end_session(slot, now);
        (waiting, taken_up)
    }

    /// A copy becomes the session of its client.
    fn install(&mut self, client: &Arc<str>, id: &TransferId, mark: Mark, now: Nanos) {
        let Some(slot) = self.hub.take_copy(client, id) else {
            return;
        };
        let record = self.hub.sessions.get(slot).and_then(Session::record);
        let from = match record {
            Some(Record::Copy { from, .. }) => from.as_str(),
            _ => "",
        };
        let broker = from.into();
        self.hub.thaw(client, now);
        let own = self.hub.sessions.named(client);
        let wanted = own.map(|own| self.hub.keep_wanted(own));
        let (left, taken_up) = own
            .map(|own| self.leave_behind(own, now))
            .unwrap_or_default();
        let hub = &mut self.hub;
        hub.activate(slot, now);
        let fence = hub.outboxes.fence(hub.index);
        let number = hub.sessions.get(slot).map(|it| it.handle.number);
        if let (Some(custody), Some(number), true) = (&mut hub.links.custody, number, fence > 0) {
            custody.beginning.insert(slot);
            custody.fenced.push_back((fence, Then::Begin(slot, number)));
        }
        hub.set_record(slot, Record::Session(mark));
        hub.append_own(slot, left, now);
        hub.take_up(slot, taken_up);
        hub.end_wanted(wanted.unwrap_or_default());
        hub.watch_had(slot, now);
        hub.stats.sessions_moved_in += 1;
        hub.outlets.outputs.push(Output::Event(Event::SessionCame {
            client_id: client.clone(),
            broker,
        }));
    }

    /// What a copy has and the session lacks is for the session.
    fn absorb(&mut self, client: &Arc<str>, id: &TransferId, now: Nanos) {
        let Some(copy) = self.hub.take_copy(client, id) else {
            return;
        };
        let hub = &mut self.hub;
        if let (Some(slot), Some(session)) = (hub.sessions.named(client), hub.sessions.get(copy))
            && let Some(Record::Copy { mark, .. }) = session.record()
        {
            let own = hub.sessions.get(slot).and_then(Session::mark);
            let takes = own.is_some_and(|own| own.takes(&mark.epoch));
            let taken_up = session.remembered().collect();
            let waiting = session.undelivered().filter(|_| takes);
            let waiting: Vec<Delivery> = waiting.cloned().collect();
            let count = waiting.len() as u64;
            for delivery in waiting {
                hub.take_in(slot, Next::Message(delivery), now);
            }
            hub.take_up(slot, taken_up);
            hub.watch_had(slot, now);
            hub.stats.messages_moved_late += count;
        }
        self.hub.discard_copy(copy);
    }

    /// A session becomes a stub: after that transfer, with which all has gone but what came since, or
    /// because another one is greater, with all that its client has not got.
    fn depart(&mut self, client: &Arc<str>, id: Option<TransferId>, stub: Stub, now: Nanos) {
        let hub = &mut self.hub;
        let Some(slot) = hub.sessions.named(client) else {
            return;
        };
        match id {
            None => hub.thaw(client, now),
            Some(_) => hub.forget_snapshot(client, slot),
        }
        let mark = hub.sessions.get(slot).and_then(Session::mark);
        let was_later = mark.is_some_and(|mark| mark.epoch > stub.target_epoch);
        if let Some(will) = hub.take_will(slot) {
            // Otherwise its client was elsewhere after it had been here [MQTT-3.1.2-8].
            if was_later {
                self.publish_will(slot, &will, now);
            }
            self.hub.store_no_will(slot);
        }
        let hub = &mut self.hub;
        if hub.sessions.get(slot).is_some_and(|session| session.asked) {
            hub.ask(slot, Ask::Ended);
        }
        let _ = hub.take_had(slot);
        let epoch = hub.sessions.next_epoch();
        let Some(session) = hub.sessions.get_mut(slot) else {
            return;
        };
        // Timers of before are void: it does not expire.
        session.epoch = epoch;
        session.sweep_at = Nanos::MAX;
        session.flows = None;
        session.asked = false;
        // What its client has not got is still to be forwarded.
        let undelivered: Vec<Delivery> = match id {
            None => session.window.unacknowledged().cloned().collect(),
            Some(_) => Vec::new(),
        };
        let remembered = session.remembered().map(|(packet_id, _)| packet_id);
        let remembered = remembered.collect();
        if let Some(custody) = hub.links.custody.as_mut().filter(|_| id.is_none()) {
            custody.remembered.insert(slot, remembered);
        }
        let load = Load::of_all(&undelivered);
        hub.stats.inflight_messages -= u64::from(session.window.open());
        let entries: HashSet<u64> = undelivered.iter().map(|it| it.entry).collect();
        for entry in session.window.clear() {
            if !entries.contains(&entry) {
                Journal::done(&mut hub.journal, session, entry);
            }
        }
        let undelivered = undelivered.into_iter().map(|delivery| (now, delivery));
        session.queue.put_before(undelivered.collect());
        session.share_queue_len();
        let messages = session.queue.len() as u64;
        let incoming = session.incoming.iter().flat_map(|it| it.keys().copied());
        let incoming: Vec<u16> = incoming.collect();
        hub.note_queued(&load);
        for packet_id in incoming {
            hub.forget_received(slot, packet_id);
        }
        if let Some(session) = hub.sessions.get(slot) {
            hub.forget_fullness(session);
        }
        if let Some(session) = hub.sessions.get_mut(slot) {
            (session.incoming, session.losses, session.is_full) = (None, None, false);
        }
        hub.sessions.unname(client, slot);
        hub.directory.vacate();
        let broker: Arc<str> = stub.target.as_str().into();
        if let Some(custody) = &mut hub.links.custody {
            custody.stubs.entry(client.clone()).or_default().push(slot);
            custody.unsent.insert(slot);
            if let Some(id) = id {
                let outcome = (id, stub.target.clone());
                let outcomes = custody.outcomes.entry(client.clone()).or_default();
                outcomes.push(outcome);
            }
        }
        hub.lead_stubs(client, &stub, now);
        hub.stats.sessions_moved_out += 1;
        hub.outlets.outputs.push(Output::Event(Event::SessionLeft {
            client_id: client.clone(),
            broker,
            messages,
        }));
    }

    /// All has passed that was on its way to the stubs of a client, or is given up.
    fn drop_stubs(&mut self, client: &Arc<str>, now: Nanos) {
        let custody = self.hub.links.custody.as_mut();
        let stubs = custody.and_then(|it| it.stubs.remove(client));
        for slot in stubs.unwrap_or_default() {
            if let Some(custody) = &mut self.hub.links.custody {
                custody.unsent.remove(&slot);
            }
            while self.forward_next(slot, now) {}
            if let Some(custody) = &mut self.hub.links.custody {
                custody.remembered.remove(&slot);
            }
            self.end_stub(slot, now);
        }
        self.hub.store_outcomes(client);
    }

    /// Ends a stub.
    fn end_stub(&mut self, slot: u32, now: Nanos) {
        let hub = &mut self.hub;
        let custody = hub.links.custody.as_mut();
        if custody.is_some_and(|it| it.next.contains_key(&slot)) {
            hub.stats.dropped_session_ended += 1;
        }
        if let Some(session) = hub.end_parked(slot) {
            let mut budget = Budget::new(32 * FILTER + FLOW);
            self.clear_away(Remains::of(session), &mut budget, now);
        }
    }

    /// Forwards what stubs have queued, as far as there is room.
    pub(crate) fn forward_stubs(&mut self, now: Nanos) {
        let mut left = AT_ONCE;
        let mut from = 0;
        while let Some(custody) = &mut self.hub.links.custody
            && let Some(slot) = custody.unsent.range(from..).next().copied()
        {
            from = slot + 1;
            left -= 1;
            while left > 0 && self.forward_next(slot, now) {
                left -= 1;
            }
            let is_empty = self.hub.is_forwarded(slot);
            if let Some(custody) = &mut self.hub.links.custody
                && is_empty
            {
                custody.unsent.remove(&slot);
            }
            if left == 0 {
                break;
            }
        }
        self.hub.retry_later(now);
    }

    /// Forwards the next message of a stub; false if there is none, or no room for it.
    fn forward_next(&mut self, slot: u32, now: Nanos) -> bool {
        let hub = &mut self.hub;
        let Some((since, next)) = hub.next_of_stub(slot) else {
            return false;
        };
        // Its publisher sends it again if this broker is killed before: that would be another message.
        if next.is_exactly_once() && !hub.is_stored(since) {
            return false;
        }
        let Some(session) = hub.sessions.get(slot) else {
            return false;
        };
        let client = session.handle.client_id.clone();
        let user = session.username.as_deref().map(Into::into);
        let stub = match session.record() {
            Some(Record::Stub { stub, .. }) => stub.clone(),
            _ => return false,
        };
        let route =
            hub.with_machine(|machine, marks| machine.route(&client, &stub.for_epoch, None, marks));
        let route = match route {
            // The machine has dropped the stub, and this is the rest of it.
            Some(Route::Unknown) if !hub.is_own(&stub.target) => {
                Route::Forward(stub.target.clone(), stub.target_epoch.clone())
            }
            route => route.unwrap_or(Route::Unknown),
        };
        let hub = &mut self.hub;
        match route {
            _ if next.is_at_most_once() => {}
            Route::Session => {
                if let Some(own) = hub.sessions.named(&client) {
                    // Since it is here it gets by itself what it subscribes to.
                    let custody = hub.links.custody.as_ref();
                    let here = custody.and_then(|it| it.here_since.get(&slot));
                    let is_new = here.is_some_and(|here| since > *here);
                    let is_there = match &next {
                        Next::Message(delivery) => is_new && hub.subscribes_to(own, delivery),
                        Next::Identifier(_) => false,
                    };
                    if !is_there {
                        hub.take_in(own, next, now);
                    }
                }
            }
            Route::Copies(ids) => {
                let copies = ids.iter().filter_map(|id| hub.copy(&client, id));
                for copy in copies.collect::<Vec<u32>>() {
                    hub.take_in(copy, next.clone(), now);
                }
            }
            Route::Forward(target, target_epoch) => {
                let address = SessionAddress {
                    client: (*client).into(),
                    user,
                    target,
                    target_epoch,
                    for_epoch: stub.for_epoch,
                };
                let mut bytes = Vec::new();
                match &next {
                    Next::Message(delivery) => put_delivery(&mut bytes, delivery, hub.offset(now)),
                    Next::Identifier(packet_id) => put_taken_up(&mut bytes, *packet_id),
                }
                if !hub.forward_to(&address, &bytes, now) {
                    return false;
                }
            }
            Route::Outdated | Route::Unknown => hub.stats.dropped_session_ended += 1,
        }
        self.pop_forwarded(slot)
    }

    /// The next message of a stub is elsewhere, or nowhere.
    fn pop_forwarded(&mut self, slot: u32) -> bool {
        let hub = &mut self.hub;
        let custody = hub.links.custody.as_mut();
        if let Some(remembered) = custody.and_then(|it| it.remembered.get_mut(&slot))
            && remembered.pop().is_some()
        {
            return true;
        }
        let custody = hub.links.custody.as_mut();
        let next = custody.and_then(|it| it.next.remove(&slot));
        let (Some((_, delivery)), Some(session)) = (next, hub.sessions.get_mut(slot)) else {
            return false;
        };
        Journal::done(&mut hub.journal, session, delivery.entry);
        hub.forget_queued(&Load::of(&delivery.message));
        true
    }

    /// Tries again what could not be forwarded.
    fn retry_forwarding(&mut self, now: Nanos) {
        let custody = self.hub.links.custody.as_mut();
        let transit = custody.map(|it| std::mem::take(&mut it.transit));
        for transit in transit.unwrap_or_default() {
            self.pass_forwarded(transit, now);
        }
        self.forward_stubs(now);
    }

    /// A forwarded message goes where the session is.
    fn pass_forwarded(&mut self, transit: Transit, now: Nanos) {
        let hub = &mut self.hub;
        if !hub.has_custody() {
            return;
        }
        let is_here = hub.is_own(&transit.address.target);
        let Transit {
            mut address,
            message,
            number,
        } = transit;
        let client: Arc<str> = (*address.client).into();
        let route = match is_here {
            false => Some(Route::Forward(
                address.target.clone(),
                address.target_epoch.clone(),
            )),
            // What is here is not for that user.
            true if hub.is_foreign(&client, address.user.as_deref()) => None,
            true => hub.with_machine(|machine, marks| {
                let (for_epoch, to_epoch) = (&address.for_epoch, &address.target_epoch);
                machine.route(&client, for_epoch, Some(to_epoch), marks)
            }),
        };
        let places: Vec<u32> = match route {
            Some(Route::Session) => hub.sessions.named(&client).into_iter().collect(),
            Some(Route::Copies(ids)) => {
                let copies = ids.iter().filter_map(|id| hub.copy(&client, id));
                copies.collect()
            }
            Some(Route::Forward(target, target_epoch)) => {
                (address.target, address.target_epoch) = (target, target_epoch);
                let target = &address.target;
                let custody = hub.links.custody.as_ref();
                let mut before = custody.iter().flat_map(|it| &it.transit);
                // What came before goes first.
                let waits = before.any(|it| it.address.target == *target);
                if waits || !hub.forward_to(&address, &message, now) {
                    // What is not taken is not acknowledged: the neighbour sends it again.
                    if let Some(custody) = &mut hub.links.custody
                        && custody.transit.len() < MAX_TRANSIT
                    {
                        custody.transit.push_back(Transit {
                            address,
                            message,
                            number,
                        });
                    }
                    return hub.retry_later(now);
                }
                Vec::new()
            }
            Some(Route::Outdated | Route::Unknown) | None => {
                hub.stats.dropped_session_ended += 1;
                Vec::new()
            }
        };
        if !places.is_empty() {
            let next = match read_delivery(&hub.directory, &message, hub.offset(now)) {
                Some((_, Some(packet_id))) => Some(Next::Identifier(packet_id)),
                Some((delivery, None)) => Some(Next::Message(delivery)),
                None => None,
            };
            for (slot, next) in places.into_iter().zip(std::iter::repeat(next)) {
                if let Some(next) = next {
                    hub.take_in(slot, next, now);
                }
            }
        }
        let ticket = hub.journal.as_mut().map_or(0, |journal| journal.settle());
        if let Some(custody) = &mut hub.links.custody {
            custody.forwarded.push_back((ticket, number));
        }
        hub.custody_committed(now);
    }
}

impl Hub {
    /// Whether what is here of a client is another user's.
    pub(crate) fn is_foreign(&self, client: &Arc<str>, user: Option<&str>) -> bool {
        let custody = self.links.custody.as_ref();
        let copies = custody.and_then(|it| it.copies.get(client));
        let stubs = custody.and_then(|it| it.stubs.get(client));
        let copies = copies.into_iter().flatten().map(|(_, slot)| *slot);
        let stubs = stubs.into_iter().flatten().copied();
        let mut all = self
            .sessions
            .named(client)
            .into_iter()
            .chain(copies)
            .chain(stubs);
        all.any(|slot| {
            let session = self.sessions.get(slot);
            session.is_some_and(|it| it.username.as_deref() != user)
        })
    }

    /// Whether there is no room for another session.
    fn is_full_of_sessions(&self) -> bool {
        let sessions = self.directory.sessions.load(Ordering::Relaxed);
        sessions >= self.config.limits.max_sessions
    }

    /// Whether a home is that of this broker.
    fn is_own(&self, home: &HomeId) -> bool {
        let federation = self.directory.federation();
        federation.is_some_and(|it| it.name() == home.as_str())
    }

    /// As whom the client has connected that waits with this stamp.
    fn user_that_waits(&self, client: &Arc<str>, at: &Stamp) -> Option<Arc<str>> {
        let all = self.links.custody.as_ref()?.waiting.get(client)?;
        let waiting = all.iter().find(|it| it.at == *at)?;
        match &self.outlets.conns.get(waiting.conn.slot)?.state {
            State::Awaiting(awaited) => awaited.username.clone(),
            _ => None,
        }
    }

    /// Writes to a home. All of its shards get what is about no client, and it says which shard of how
    /// many has written it.
    fn write_to(&self, home: &HomeId, client: &str, message: &TransferMessage) {
        let mut body = message.encode();
        if client.is_empty() {
            body.extend(self.index.to_le_bytes());
            body.extend(self.directory.shards().to_le_bytes());
        }
        if let Some(federation) = self.directory.federation() {
            federation.letter(home.as_str(), client, body.into());
        }
    }

    /// The message of a letter that is about no client. That all claims are answered is one once all
    /// shards of the other broker have said so.
    fn letter_of_nobody<'a>(&mut self, from: &HomeId, body: &'a [u8]) -> Option<&'a [u8]> {
        let (message, shards) = body.split_last_chunk::<4>()?;
        let [a, b, c, d] = *shards;
        let (shard, count) = (u16::from_le_bytes([a, b]), u16::from_le_bytes([c, d]));
        let message_of = TransferMessage::decode(message);
        if matches!(message_of, Ok(TransferMessage::ClaimsDone { .. }))
            && let Some(custody) = &mut self.links.custody
        {
            let said = custody.claims_done.entry(from.clone()).or_default();
            said.insert(shard.min(count));
            if said.len() < usize::from(count) {
                return None;
            }
            custody.claims_done.remove(from);
        }
        Some(message)
    }

    fn arm_transfer(&mut self, client: &Arc<str>, timer: Timer, at: Nanos) {
        if let Some(custody) = &mut self.links.custody {
            custody.last_timer += 1;
            let id = custody.last_timer;
            custody.timers.insert(id, (client.clone(), timer));
            custody.armed.entry(client.clone()).or_default().push(id);
            self.timers.arm(at, crate::timers::Timer::Transfer { id });
        }
    }

    /// As long as something is known of a client, it comes to this shard; otherwise no timer runs for it.
    fn settle_home(&mut self, client: &Arc<str>) {
        let Some(custody) = self.links.custody.as_mut().filter(|_| !client.is_empty()) else {
            return;
        };
        let is_idle = custody.machine.is_idle(client);
        if is_idle {
            for id in custody.armed.remove(client).unwrap_or_default() {
                custody.timers.remove(&id);
            }
        }
        let waits = custody.waiting.contains_key(client);
        if self.directory.shards() == 1 || self.sessions.named(client).is_some() {
            return;
        }
        match is_idle && !waits {
            true => self.directory.give_up_on(client, self.index),
            false => {
                let _ = self.directory.reserve(client, self.index);
            }
        }
    }

    /// What a session, a copy or a stub is from now on.
    pub(crate) fn set_record(&mut self, slot: u32, record: Record) {
        if let Some(session) = self.sessions.get_mut(slot) {
            session.set_record(Stored::new(record));
            self.store_custody(slot);
        }
    }

    /// Where the stubs of a client lead.
    fn lead_stubs(&mut self, client: &Arc<str>, stub: &Stub, now: Nanos) {
        let is_here = self.is_own(&stub.target);
        let Some(custody) = &mut self.links.custody else {
            return;
        };
        let stubs = custody.stubs.get(client).cloned().unwrap_or_default();
        let outcomes = custody.outcomes.get(client).cloned().unwrap_or_default();
        for slot in &stubs {
            match is_here {
                true => _ = custody.here_since.entry(*slot).or_insert(now),
                false => _ = custody.here_since.remove(slot),
            }
        }
        custody.unsent.extend(&stubs);
        for (at, slot) in stubs.iter().enumerate() {
            let is_last = at + 1 == stubs.len();
            let outcomes = if is_last {
                outcomes.clone()
            } else {
                Vec::new()
            };
            let stub = stub.clone();
            self.set_record(*slot, Record::Stub { stub, outcomes });
        }
    }

    fn drop_outcome(&mut self, client: &Arc<str>, id: &TransferId) {
        if let Some(custody) = &mut self.links.custody
            && let Some(outcomes) = custody.outcomes.get_mut(client)
        {
            outcomes.retain(|(known, _)| known != id);
            if outcomes.is_empty() {
                custody.outcomes.remove(client);
            }
        }
        self.store_outcomes(client);
    }

    /// Emits the transfers of a client that are not confirmed, with its last stub.
    fn store_outcomes(&mut self, client: &Arc<str>) {
        let Some(custody) = &self.links.custody else {
            return;
        };
        let all = custody.outcomes.get(client).cloned().unwrap_or_default();
        let last = custody.stubs.get(client).and_then(|it| it.last()).copied();
        let session = last.and_then(|slot| self.sessions.get(slot));
        if let Some(Record::Stub { stub, .. }) = session.and_then(Session::record)
            && let Some(slot) = last
        {
            let (stub, outcomes) = (stub.clone(), all);
            self.set_record(slot, Record::Stub { stub, outcomes });
        }
    }

    /// The slot of a copy.
    fn copy(&self, client: &Arc<str>, id: &TransferId) -> Option<u32> {
        let mut copies = self.links.custody.as_ref()?.copies.get(client)?.iter();
        copies.find(|(known, _)| known == id).map(|(_, slot)| *slot)
    }

    fn take_copy(&mut self, client: &Arc<str>, id: &TransferId) -> Option<u32> {
        let slot = self.copy(client, id)?;
        let custody = self.links.custody.as_mut()?;
        let copies = custody.copies.get_mut(client)?;
        copies.retain(|(known, _)| known != id);
        if copies.is_empty() {
            custody.copies.remove(client);
        }
        Some(slot)
    }

    /// A session gives out nothing any more: what it has is what is sent of it.
    fn freeze(&mut self, client: &Arc<str>, freeze: punctual_mesh::transfer::Freeze) {
        let directory = self.directory.clone();
        let (Some(slot), Some(federation)) = (self.sessions.named(client), directory.federation())
        else {
            return;
        };
        let Some(session) = self.sessions.get_mut(slot) else {
            return;
        };
        session.sweep_at = Nanos::MAX;
        let had = session.had.as_ref();
        let mut known = had.map(|had| had.known()).unwrap_or_default();
        let best = session.subscriptions.iter().map(|it| it.options.qos).max();
        if best > Some(QoS::AtMostOnce) {
            // What passed while it was here may still come to it where it goes.
            let mark = session.began().map_or(0, |began| began.passed);
            let (passed, since) = federation.passed(mark);
            let passed: Vec<u64> = passed.into_iter().map(MessageName::key).collect();
            if best == Some(QoS::ExactlyOnce) {
                let since = passed.len().saturating_sub(since);
                known.passed.extend(&passed[since..]);
            }
            known.given.extend(directory.names_since(session.began()));
        }
        // What other shards have sent until now comes before the snapshot is made.
        let frozen = Frozen {
            freeze,
            known,
            fence: self.outboxes.fence(self.index),
            snapshot: None,
            next: 0,
            bytes: Vec::new(),
            cut: 0,
        };
        if let Some(custody) = &mut self.links.custody {
            custody.frozen.insert(client.clone(), frozen);
        }
    }

    /// All that is to be in a snapshot is in the session; false if it waits for other shards.
    fn take_snapshot(&mut self, client: &Arc<str>) -> bool {
        let directory = self.directory.clone();
        let slot = self.sessions.named(client);
        let session = slot.and_then(|slot| self.sessions.get_mut(slot));
        let (Some(session), Some(custody)) = (session, &mut self.links.custody) else {
            return false;
        };
        let Some(frozen) = custody.frozen.get_mut(client) else {
            return false;
        };
        if frozen.snapshot.is_some() {
            return true;
        }
        if !self.outboxes.fences.is_passed(frozen.fence) {
            return false;
        }
        let in_flight = session.window.deliveries_mut();
        in_flight.for_each(|it| directory.name_delivery(it));
        let unsent = std::mem::take(&mut session.queue);
        session.share_queue_len();
        put_session(&mut frozen.bytes, session);
        put_state(&mut frozen.bytes, session, &frozen.known);
        frozen.snapshot = Some(Snapshot {
            sent: Vec::new(),
            load: unsent.load(),
            unsent,
        });
        true
    }

    /// A frozen session is as it was, but for what has come since.
    fn thaw(&mut self, client: &Arc<str>, now: Nanos) {
        let custody = self.links.custody.as_mut();
        let frozen = custody.and_then(|it| it.frozen.remove(client));
        let slot = self.sessions.named(client);
        let session = slot.and_then(|slot| self.sessions.get_mut(slot));
        let (Some(frozen), Some(slot), Some(session)) = (frozen, slot, session) else {
            return;
        };
        let snapshot = frozen.snapshot.unwrap_or_default();
        let mut queue = snapshot.unsent;
        queue.put_before(snapshot.sent);
        queue.append(std::mem::take(&mut session.queue));
        session.queue = queue;
        session.share_queue_len();
        let epoch = session.epoch;
        if session.conn.is_none() && session.sweep_by(now) {
            let timer = crate::timers::Timer::Sweep { slot, epoch };
            self.timers.arm(session.sweep_at, timer);
        }
    }

    /// What was sent of a frozen session is elsewhere.
    fn forget_snapshot(&mut self, client: &Arc<str>, slot: u32) {
        let custody = self.links.custody.as_mut();
        let frozen = custody.and_then(|it| it.frozen.remove(client));
        let snapshot = frozen.and_then(|it| it.snapshot);
        let (Some(snapshot), Some(session)) = (snapshot, self.sessions.get_mut(slot)) else {
            return;
        };
        // In one piece: after a restart all of them are gone, or none.
        let all = snapshot.sent.iter().map(|(_, delivery)| delivery);
        for delivery in all.chain(snapshot.unsent.iter()) {
            Journal::done(&mut self.journal, session, delivery.entry);
        }
        self.discard_snapshot(snapshot);
    }

    /// Cuts the next part of what is sent of a frozen session.
    fn make_part(&mut self, client: &Arc<str>, id: TransferId, number: u32, now: Nanos) {
        if !self.take_snapshot(client) {
            let custody = self.links.custody.as_mut();
            let frozen = custody.and_then(|it| Some((it.frozen.get(client)?.fence, it)));
            if let Some((fence, custody)) = frozen {
                let then = Then::MakePart(client.clone(), id, number);
                custody.fenced.push_back((fence, then));
            }
            return;
        }
        let (offset, directory) = (self.offset(now), self.directory.clone());
        let slot = self.sessions.named(client);
        let session = slot.and_then(|slot| self.sessions.get(slot));
        let (Some(session), Some(custody)) = (session, &mut self.links.custody) else {
            return;
        };
        let frozen = custody.frozen.get_mut(client);
        let Some(frozen) = frozen.filter(|it| it.freeze == id.freeze) else {
            return;
        };
        let mut is_all = false;
        if frozen.bytes.len() - frozen.cut <= MAX_PART {
            frozen.bytes.drain(..frozen.cut);
            frozen.cut = 0;
        }
        while frozen.bytes.len() - frozen.cut <= MAX_PART && !is_all {
            if let Some(in_flight) = session.window.at(frozen.next) {
                if in_flight.step != Step::Done {
                    put_inflight(&mut frozen.bytes, in_flight, offset);
                }
                frozen.next += 1;
            } else if let Some(snapshot) = &mut frozen.snapshot
                && let Some((since, mut delivery)) = snapshot.unsent.pop()
            {
                directory.name_delivery(&mut delivery);
                put_delivery(&mut frozen.bytes, &delivery, offset);
                snapshot.sent.push((since, delivery));
            } else {
                is_all = true;
            }
        }
        let part = frozen.bytes.len().min(frozen.cut + MAX_PART);
        let bytes = frozen.bytes[frozen.cut..part].into();
        frozen.cut = part;
        let made = Told::PartMade {
            last: is_all && part == frozen.bytes.len(),
            id,
            number,
            bytes,
        };
        custody.events.push_back((client.clone(), made));
    }

    fn keep_part(
        &mut self,
        client: &Arc<str>,
        id: TransferId,
        number: u32,
        bytes: &[u8],
        now: Nanos,
    ) {
        let custody = self.links.custody.as_mut();
        let known = custody.and_then(|it| it.arriving.get(client));
        if known.is_none_or(|it| it.id != id || number == 0) {
            self.drop_parts(client);
        }
        let custody = self.links.custody.as_mut();
        let known = custody.and_then(|it| it.arriving.remove(client));
        let mut arriving = known.unwrap_or_else(|| Arriving {
            id,
            round: Some(Box::new(self.begin_round(client, now))),
        });
        let has_room = self.store_trouble().is_none();
        if let Some(round) = &mut arriving.round
            && (!has_room || self.read_part(round, bytes, now).is_none())
        {
            self.discard_round(arriving.round.take());
        }
        if let Some(custody) = &mut self.links.custody {
            custody.arriving.insert(client.clone(), arriving);
        }
    }

    /// Parts of a session that came are needed no more.
    fn drop_parts(&mut self, client: &Arc<str>) {
        let custody = self.links.custody.as_mut();
        let arriving = custody.and_then(|it| it.arriving.remove(client));
        self.discard_round(arriving.and_then(|it| it.round));
    }

    fn discard_round(&mut self, round: Option<Box<Round>>) {
        if let Some(slot) = round.and_then(|round| round.slot) {
            self.discard_copy(slot);
        }
    }

    /// Ends a copy. What it has is where it came from, too, or in the session that has absorbed it.
    pub(crate) fn discard_copy(&mut self, slot: u32) {
        if let Some(session) = self.end_parked(slot) {
            self.discard(Discarded {
                sent: Vec::new(),
                queue: session.queue,
                window: session.window,
            });
        }
    }

    /// Takes a copy or a stub out of the slab and the store; returns it.
    fn end_parked(&mut self, slot: u32) -> Option<Session> {
        self.store_session_end(slot);
        let session = self.sessions.remove(slot)?;
        session.handle.end();
        let mut load = session.queue.load();
        if let Some(custody) = &mut self.links.custody {
            custody.here_since.remove(&slot);
            custody.beginning.remove(&slot);
            if let Some((_, delivery)) = custody.next.remove(&slot) {
                load.add(&delivery.message);
            }
        }
        self.forget_queued(&load);
        self.stats.inflight_messages -= u64::from(session.window.open());
        Some(session)
    }

    /// All parts are here: they become a copy.
    fn prepare_copy(
        &mut self,
        client: &Arc<str>,
        id: &TransferId,
        from: HomeId,
        mark: Mark,
        now: Nanos,
    ) {
        let custody = self.links.custody.as_mut();
        let arriving = custody.and_then(|it| it.arriving.get(client));
        if arriving.is_none_or(|it| it.id != *id) || self.store_trouble().is_some() {
            self.drop_parts(client);
        }
        let custody = self.links.custody.as_mut();
        let arriving = custody.and_then(|it| it.arriving.remove(client));
        let mut round = arriving.and_then(|it| it.round);
        let slot = round.as_mut().and_then(|round| self.end_parts(round, now));
        match slot {
            Some(slot) => {
                let copy = Record::Copy {
                    id: id.clone(),
                    from,
                    mark,
                };
                self.set_record(slot, copy);
                if let Some(custody) = &mut self.links.custody {
                    let copies = custody.copies.entry(client.clone()).or_default();
                    copies.push((id.clone(), slot));
                }
            }
            None => {
                self.discard_round(round);
                if let Some(custody) = &mut self.links.custody {
                    let failed = Told::CopyFailed(id.clone());
                    custody.events.push_back((client.clone(), failed));
                }
            }
        }
    }

    /// What a stub forwards next, and since when that waits.
    fn next_of_stub(&mut self, slot: u32) -> Option<(Nanos, Next)> {
        let custody = self.links.custody.as_mut()?;
        if let Some(packet_id) = custody.remembered.get(&slot).and_then(|it| it.last()) {
            return Some((Nanos(0), Next::Identifier(*packet_id)));
        }
        if let Some((since, delivery)) = custody.next.get(&slot) {
            return Some((*since, Next::Message(delivery.clone())));
        }
        let session = self.sessions.get_mut(slot)?;
        let (since, mut delivery) = session.queue.pop()?;
        session.share_queue_len();
        self.directory.name_delivery(&mut delivery);
        custody.next.insert(slot, (since, delivery.clone()));
        Some((since, Next::Message(delivery)))
    }

    /// Whether the stubs of a client have nothing to forward.
    fn stubs_are_forwarded(&self, client: &Arc<str>) -> bool {
        let stubs = self
            .links
            .custody
            .as_ref()
            .and_then(|it| it.stubs.get(client));
        let mut stubs = stubs.into_iter().flatten();
        stubs.all(|slot| self.is_forwarded(*slot))
    }

    /// From now on it is known of what passes whether a session that came has queued it: all other
    /// shards know its subscriptions.
    fn has_begun(&mut self, slot: u32, number: u64) {
        let session = self.sessions.get(slot);
        if session.is_some_and(|it| it.handle.number == number) {
            self.begin_here(slot);
            if let Some(custody) = &mut self.links.custody {
                custody.beginning.remove(&slot);
            }
        }
    }

    /// Whether a stub has nothing to forward.
    fn is_forwarded(&self, slot: u32) -> bool {
        let session = self.sessions.get(slot);
        let custody = self.links.custody.as_ref();
        let remembered = custody.and_then(|it| it.remembered.get(&slot));
        session.is_none_or(|it| it.queue.is_empty())
            && remembered.is_none_or(Vec::is_empty)
            && custody.is_none_or(|it| !it.next.contains_key(&slot))
    }

    /// Whether a session has a subscription of its own for a message.
    fn subscribes_to(&self, slot: u32, delivery: &Delivery) -> bool {
        let name = delivery.message.topic();
        let session = self.sessions.get(slot);
        session.is_some_and(|session| {
            let mut all = session.subscriptions.iter();
            all.any(|it| topic::matches(&it.filter, name))
        })
    }

    /// Whether a message was where the session was, at the same time, and so was queued in it.
    fn was_queued(&self, slot: u32, delivery: &Delivery) -> bool {
        let name = delivery.message.name;
        let Some((federation, session)) = self.directory.federation().zip(self.sessions.get(slot))
        else {
            return false;
        };
        if !self.subscribes_to(slot, delivery) {
            return false;
        }
        if session.had.as_ref().is_some_and(|had| had.has_passed(name)) {
            return true;
        }
        let custody = self.links.custody.as_ref();
        let is_beginning = custody.is_some_and(|it| it.beginning.contains(&slot));
        if session.mark().is_none() || is_beginning {
            return false;
        }
        let given = self.directory.names_since(session.began());
        let mark = session.began().map_or(0, |began| began.passed);
        given
            .iter()
            .any(|[after, last]| (*after < name) && name <= *last)
            || MessageName::from_key(name).is_some_and(|it| federation.was_here(it)) && {
                let (passed, since) = federation.passed(mark);
                let from = passed.len().saturating_sub(since);
                passed[from..].iter().any(|it| it.key() == name)
            }
    }

    /// A session, or a copy, takes a message in that was forwarded, unless it had it before.
    fn take_in(&mut self, slot: u32, next: Next, now: Nanos) {
        match next {
            Next::Message(delivery) if self.was_queued(slot, &delivery) => {}
            Next::Message(delivery) => self.append_own(slot, vec![delivery], now),
            Next::Identifier(packet_id) => self.take_up(slot, vec![(packet_id, None)]),
        }
        self.watch_had(slot, now);
    }

    /// Puts a message into the queue of the link that leads to its target; false if there is no room, or
    /// no such link.
    fn forward_to(&mut self, address: &SessionAddress, message: &[u8], now: Nanos) -> bool {
        let topic = format!("{FORWARD}{}", address.target);
        let (_, matched) = self.directory.lookup(&topic, generation_slot(&topic));
        let custody = self.links.custody.as_ref();
        let is_reached = custody.is_some_and(|it| it.reached.contains(&address.target));
        // While the target is not reached, its messages are kept where it was last, and do not go round.
        let leads = |it: &&Target| {
            it.session.link && it.session.carries.load(Ordering::Acquire) == is_reached
        };
        let Some(link) = matched.targets().find(leads).cloned() else {
            return false;
        };
        let matched = Matched::new(vec![link], Groups::new());
        let address = address.encode();
        let length = u16::try_from(address.len()).unwrap_or(u16::MAX);
        let payload = [&length.to_be_bytes()[..], &address, message].concat();
        let parts = Parts {
            topic: topic.as_bytes(),
            properties: &[],
            expiry: None,
            payload: &payload,
            shared: None,
        };
        let mut publication = Publication::plain(parts, 0);
        publication.qos = QoS::AtLeastOnce;
        publication.keeping = self.keeping(Durability::Batched, true);
        publication.keeping.insists = true;
        deliver_all(self, &matched, &mut publication, None, now, Whom::Publisher).is_ok()
    }

    fn retry_later(&mut self, now: Nanos) {
        if let Some(custody) = &mut self.links.custody
            && !(custody.unsent.is_empty() && custody.transit.is_empty())
            && !std::mem::replace(&mut custody.retries, true)
        {
            let timer = crate::timers::Timer::Transfer { id: TRY_AGAIN };
            self.timers.arm(now + RETRY, timer);
        }
    }
}
