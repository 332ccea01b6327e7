//! Sessions that move between the brokers of a mesh: the shell of [`punctual_mesh::transfer`].
//!
//! The shell passes events to the transfer machine one after the other, and performs all actions of
//! the machine before it passes the next event, as the machine inspects the present sessions
//! ([`Shard::run_custody`]). Records and the content that belongs to them are emitted in one turn,
//! and so are committed together.
//!
//! A stub has the subscriptions of a session that has left. It queues messages like a session
//! without a client, and forwards them ([`Shard::forward_stubs`]) in the queues of the links, on a
//! topic of its target broker ([`FORWARD`]) to which each link that leads there is subscribed. Each
//! broker on the path acknowledges a forwarded message once it is safe at that broker, and so does
//! the target.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use punctual_codec::{Connect, ReasonCode};
use punctual_mesh::transfer::{
    Action, Answer, Event as TransferEvent, Extent, FenceAnswer, HomeId, Located, PartnerState,
    Refusal as TransferRefusal, Stamp, Stub, Timer, TransferMessage,
};

use crate::Nanos;
use crate::base::connection::ConnId;
use crate::hub::{Awaited, Event, Hub, Output, State};
use crate::mesh::custody::{Custody, TRY_AGAIN, Then, WAKE, Waiting};
use crate::session::Session;
use crate::shard::connect::{LookupState, NO_ROOM};
use crate::shard::refusal::Refusal;
use crate::shard::{Fail, Shard};

/// The reason for the end of a connection whose client has connected to another broker.
const ELSEWHERE: &str = "connected to another broker";

impl Shard {
    /// Another broker looks up the session of a client that has connected there as that user;
    /// `clean` if with Clean Start. This broker answers with [`crate::SessionTransfers::found`],
    /// perhaps later.
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
            // The session of one user is not given to another user with the same client identifier.
            if let Some(federation) = self.hub.directory.federation() {
                federation.found(by, client_id, at, Located::default());
            }
            return;
        }
        self.end_transient(&client, at, now);
        let (by, at) = (by.clone(), at.clone());
        self.tell(&client, TransferEvent::Lookup { by, at, clean }, now);
    }

    /// The answer to [`crate::SessionTransfers::look_up`]: the replies of other brokers, and which
    /// brokers they cover.
    pub fn located(
        &mut self,
        client_id: &str,
        at: &Stamp,
        answers: Vec<(HomeId, Located)>,
        extent: Extent,
        now: Nanos,
    ) {
        let at = at.clone();
        let located = TransferEvent::Located {
            at,
            answers,
            extent,
        };
        self.tell(&client_id.into(), located, now);
    }

    /// Sets the other brokers that are reached now; `away` if some brokers of the mesh are not.
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

    /// Another broker does not return: the shard gives up transfers and messages that wait for that
    /// broker alone, and no longer expects its answers.
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

    /// Another broker puts a fence behind the messages that are in transit to its stub of a client.
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
        // Messages that the stub has not forwarded are in transit, too: the machine puts a further
        // fence behind them.
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

    /// Performs the steps whose fences between shards have passed.
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
                        self.tell(&client, TransferEvent::FencePassed(epoch), now);
                    }
                }
                Then::LeadHere(client, epoch) => self.hub.stubs_lead_here(&client, &epoch, now),
                Then::Begin(slot, number) => self.hub.has_begun(slot, number),
            }
        }
    }

    /// Handles a transfer message of another broker about a client's session.
    pub fn transfer_message(&mut self, from: &str, client_id: &str, body: &[u8], now: Nanos) {
        let Some(from) = HomeId::new(from).filter(|_| self.hub.has_custody()) else {
            return;
        };
        let body = match client_id {
            "" => match self.hub.message_of_no_client(&from, body) {
                Some(body) => body,
                None => return,
            },
            _ => body,
        };
        let Ok(message) = TransferMessage::decode(body) else {
            return;
        };
        let client: Arc<str> = client_id.into();
        // The answer as if there were no session, for a session of another user.
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
        match &message {
            TransferMessage::Take { at, .. } => self.end_transient(&client, at, now),
            TransferMessage::Claim { mark, user } => {
                if let Some(federation) = self.hub.directory.federation() {
                    let is_clean = mark.born.as_ref() == Some(&mark.epoch);
                    federation.claimed(&client, user.as_deref(), is_clean, mark.epoch.micros);
                }
            }
            _ => {}
        }
        self.tell(&client, TransferEvent::Message(from, message), now);
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
                    self.tell(&client, TransferEvent::Due(timer), now);
                }
            }
        }
    }

    /// Passes an event to the machine, and performs its actions.
    fn tell(&mut self, client: &Arc<str>, event: TransferEvent, now: Nanos) {
        if self.hub.has_custody()
            && let Some(custody) = &mut self.hub.links.custody
        {
            custody.events.push_back((client.clone(), event));
            self.run_custody(now);
        }
    }

    /// Lets a client wait for CONNACK until the machine has found its session.
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
                // With Clean Start a client takes over no session, so it need not wait for other
                // brokers, however slow their links are. The look-up ends older sessions there, and
                // so does the claim of the session, which is repeated until each broker has
                // answered.
                let located = TransferEvent::Located {
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

    /// A connection whose client waits for CONNACK is closed.
    pub(crate) fn waiting_is_closed(&mut self, id: ConnId, body: &[u8], now: Nanos) {
        let Ok(connect) = Connect::decode(body) else {
            return;
        };
        let client: Arc<str> = connect.client_id.into();
        let custody = self.hub.links.custody.as_mut();
        let waiting = custody.and_then(|it| it.take_waiting(&client, |it| it.conn == id));
        if let Some(Waiting { at, .. }) = waiting {
            self.hub
                .queue_custody_event(&client, TransferEvent::Closed(at), now);
        }
    }

    /// Passes the records of the store to the machine.
    fn recover_custody(&mut self) {
        let Some(custody) = &mut self.hub.links.custody else {
            return;
        };
        for (client, records) in std::mem::take(&mut custody.records) {
            self.hub
                .with_machine(|machine, marks| machine.recover(&client, records, marks));
        }
    }

    /// Passes events to the machine and performs its actions until there are none of either.
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
                let recorded = |hub: &Hub| hub.journal.as_ref().map_or(0, |it| it.recorded());
                let before = recorded(hub);
                for change in changes {
                    self.change(client, change, now);
                }
                let hub = &mut self.hub;
                let is_stored = recorded(hub) > before;
                let ticket = hub.journal.as_mut().map_or(0, |journal| journal.settle());
                if let Some(custody) = &mut hub.links.custody {
                    // Nothing of this write is stored: it waits only for earlier writes of the
                    // client.
                    let waits = |custody: &Custody| {
                        let mut before = custody.writes.iter();
                        before.any(|(_, other, _)| other == client)
                    };
                    match is_stored || waits(custody) {
                        true => custody.writes.push_back((ticket, client.clone(), number)),
                        false => {
                            let written = TransferEvent::Written(number);
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
                    // If the session ends with its connection, the machine knows that.
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
            // The client has connected again, here or at another broker, while the answer waited
            // for the store.
            let is_over = match mark {
                Some(mark) => mark.epoch != *at || self.hub.is_frozen(client),
                // Without a session: superseded, unless the limit of sessions has prevented its
                // creation.
                None => !self.hub.is_full_of_sessions(),
            };
            let other = session.and_then(|session| session.conn);
            let answer = match answer {
                Answer::Granted { .. } if is_over => Answer::Refused(TransferRefusal::Superseded),
                answer => answer,
            };
            if let (Answer::Granted { .. }, Some(other)) = (answer, other) {
                self.end_taken_over(other, "session taken over", now);
            }
            let refusal = match answer {
                Answer::Granted { present } => {
                    let Awaited { username, auth, .. } = &awaited;
                    let looked = LookupState::Granted {
                        present,
                        at: at.micros,
                    };
                    let (username, auth) = (username.clone(), auth.clone());
                    self.accept(id, &connect, username, auth, looked, now).err()
                }
                Answer::Refused(TransferRefusal::Superseded) => {
                    self.hub.stats.sessions_taken_over += 1;
                    self.end_connection(id.slot, "session taken over", false, now);
                    return;
                }
                Answer::Refused(why) => Some(Refusal::new(
                    ReasonCode::ServerUnavailable,
                    match why {
                        TransferRefusal::OnItsWay => {
                            "the session is on its way between two brokers"
                        }
                        TransferRefusal::OwnerSilent => {
                            "the broker that has the session does not answer"
                        }
                        TransferRefusal::OthersSilent => {
                            "not every broker has said whether it has the session"
                        }
                        TransferRefusal::Busy | TransferRefusal::Superseded => {
                            "too many sessions move at a time"
                        }
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
        // A new session whose client is gone, or was refused, ends.
        let slot = self.hub.sessions.named(client);
        let session = slot.and_then(|slot| Some((slot, self.hub.sessions.get(slot)?)));
        if let Some((slot, session)) = session
            && session.conn.is_none()
            && session.epoch == 0
        {
            self.end_session(slot, now);
        }
    }

    /// Ends a session that would end with its connection: it does not move once its client has
    /// connected to another broker.
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
}

impl Hub {
    /// Whether a session, copy or stub of a client on this broker belongs to another user.
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

    /// Whether the limit of sessions is reached.
    fn is_full_of_sessions(&self) -> bool {
        let sessions = self.directory.sessions.load(Ordering::Relaxed);
        sessions >= self.config.limits.max_sessions
    }

    /// Whether `home` is this broker.
    pub(crate) fn is_own(&self, home: &HomeId) -> bool {
        let federation = self.directory.federation();
        federation.is_some_and(|it| it.name() == home.as_str())
    }

    /// The user name of the waiting CONNECT with this stamp.
    pub(crate) fn user_that_waits(&self, client: &Arc<str>, at: &Stamp) -> Option<Arc<str>> {
        let all = self.links.custody.as_ref()?.waiting.get(client)?;
        let waiting = all.iter().find(|it| it.at == *at)?;
        match &self.outlets.conns.get(waiting.conn.slot)?.state {
            State::Awaiting(awaited) => awaited.username.clone(),
            _ => None,
        }
    }

    /// Sends a transfer message to a broker. A message without a client goes to all shards of that
    /// broker, and ends with the index of the sending shard and the number of shards.
    fn write_to(&self, home: &HomeId, client: &str, message: &TransferMessage) {
        let mut body = message.encode();
        if client.is_empty() {
            body.extend(self.index.to_le_bytes());
            body.extend(self.directory.shards().to_le_bytes());
        }
        if let Some(federation) = self.directory.federation() {
            federation.send_transfer_message(home.as_str(), client, body.into());
        }
    }

    /// The message in a body that concerns no client. `ClaimsDone` is passed on only once all
    /// shards of the other broker have sent it.
    fn message_of_no_client<'a>(&mut self, from: &HomeId, body: &'a [u8]) -> Option<&'a [u8]> {
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

    /// Binds a client to this shard as long as the shard has state of it; otherwise cancels its
    /// timers and releases it.
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
}
