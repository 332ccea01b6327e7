//! A session that leaves, the stub that remains, and claims: see the second table of [`super`].

use std::collections::BTreeSet;
use std::sync::Arc;

use super::action::{Action, Change, PartnerState, Refusal, Route, Timer, TransferMessage};
use super::custody::{InboundTransfer, OutboundTransfer, Step};
use super::identity::{HomeId, Mark, Stamp, Stub, TransferId};

/// Parts that are not acknowledged.
const WINDOW: u32 = 16;

impl Step<'_> {
    fn frozen(&self) -> Option<(&TransferId, &HomeId)> {
        self.custody.outbound.iter().find_map(|it| match it {
            OutboundTransfer::Frozen { id, to, .. } => Some((id, to)),
            OutboundTransfer::Committed { .. } => None,
        })
    }

    /// Another home wants the session.
    pub(super) fn take(&mut self, from: &HomeId, at: Stamp) {
        let epoch = self.session.as_ref().map(|mark| mark.epoch.clone());
        let frozen = self.frozen().map(|(id, _)| id.at.clone());
        let newer = frozen.max(epoch.clone());
        if epoch.is_some() && newer == Some(at.clone()) {
            // Said again; a snapshot is not made anew.
            return;
        }
        if epoch.is_none() || newer > Some(at.clone()) || self.is_full(from) {
            let newer = newer.filter(|newer| *newer > at);
            return self.send(from, TransferMessage::Refused { at, newer });
        }
        self.thaw();
        if (self.custody.connect.as_ref()).is_some_and(|connect| *connect.at() < at) {
            self.refuse(Refusal::Superseded);
        }
        self.act(Action::Disconnect);
        let freeze = self.shared.new_freeze();
        let id = TransferId { at, freeze };
        let frozen = OutboundTransfer::Frozen {
            id: id.clone(),
            to: from.clone(),
            made: 1,
            acknowledged: 0,
        };
        self.custody.outbound.push(frozen);
        self.act(Action::Freeze(freeze));
        self.arm(Timer::Frozen(freeze, 0));
        self.act(Action::MakePart(id, 0));
    }

    fn is_full(&self, home: &HomeId) -> bool {
        let (totals, bounds) = (&self.shared.totals, self.shared.settings.bounds);
        totals.transfers >= bounds.transfers
            || totals.with(home) >= bounds.per_home
            || totals.records >= bounds.records
            || self.custody.outbound.len() >= bounds.per_client
    }

    pub(super) fn part_made(&mut self, id: TransferId, number: u32, last: bool, bytes: Arc<[u8]>) {
        let Some(mark) = self.session.clone() else {
            return;
        };
        let Some((known, to)) = self.frozen() else {
            return;
        };
        if *known != id {
            return;
        }
        let to = to.clone();
        let part = TransferMessage::Part {
            id: id.clone(),
            number,
            last: last.then_some(mark),
            bytes,
        };
        self.send(&to, part);
        match last {
            true => self.made(&id, u32::MAX, 0),
            false => self.make_next(&id),
        }
    }

    /// Notes how many parts were made and acknowledged, if that is more.
    fn made(&mut self, id: &TransferId, parts: u32, acks: u32) {
        for outbound in &mut self.custody.outbound {
            if let OutboundTransfer::Frozen {
                id: known,
                made,
                acknowledged,
                ..
            } = outbound
                && known == id
            {
                *made = parts.max(*made);
                *acknowledged = acks.max(*acknowledged);
            }
        }
    }

    /// Asks for the next part, if the window is open.
    fn make_next(&mut self, id: &TransferId) {
        let next = self.custody.outbound.iter().find_map(|it| match it {
            OutboundTransfer::Frozen {
                id: known,
                made,
                acknowledged,
                ..
            } if known == id && *made < acknowledged.saturating_add(WINDOW) => Some(*made),
            _ => None,
        });
        if let Some(next) = next {
            self.made(id, next + 1, 0);
            self.act(Action::MakePart(id.clone(), next));
        }
    }

    pub(super) fn part_ack(&mut self, from: &HomeId, id: &TransferId, number: u32) {
        if (self.frozen()).is_some_and(|(known, to)| known == id && to == from) {
            self.made(id, 0, number.saturating_add(1));
            self.make_next(id);
        }
    }

    pub(super) fn frozen_due(&mut self, freeze: super::Freeze, progress: u32) {
        let acknowledged = self.custody.outbound.iter().find_map(|it| match it {
            OutboundTransfer::Frozen {
                id, acknowledged, ..
            } if id.freeze == freeze => Some(*acknowledged),
            _ => None,
        });
        match acknowledged {
            Some(more) if more > progress => self.arm(Timer::Frozen(freeze, more)),
            Some(_) => self.thaw(),
            None => {}
        }
    }

    /// The copy is durable there: this is where its fate is decided.
    pub(super) fn stored(&mut self, from: &HomeId, id: TransferId) {
        let is_frozen = (self.frozen()).is_some_and(|(known, to)| *known == id && to == from);
        if is_frozen && let Some(mark) = self.session.take() {
            self.forget_freeze();
            let stub = Stub {
                target: from.clone(),
                target_epoch: id.at.clone(),
                for_epoch: mark.epoch,
            };
            self.custody.stub = Some(stub.clone());
            let outcome = OutboundTransfer::Committed {
                id: id.clone(),
                to: from.clone(),
            };
            self.custody.outbound.push(outcome);
            self.write(vec![Change::Depart(id.clone(), stub)]);
            self.arm_claim();
            self.arm_keep(PartnerState::Stub(id.at.clone()), from);
            self.arm_keep(PartnerState::Outcome(id.clone()), from);
            self.arm(Timer::Commit(id.clone(), 0));
        }
        let message = match self.find_outcome(Some(from), &id) {
            Some(_) => TransferMessage::Commit(id),
            None => TransferMessage::Abort(id),
        };
        self.send(from, message);
    }

    pub(super) fn find_outcome(&self, with: Option<&HomeId>, id: &TransferId) -> Option<usize> {
        self.custody.outbound.iter().position(|it| match it {
            OutboundTransfer::Committed { id: known, to } => {
                known == id && with.is_none_or(|with| with == to)
            }
            OutboundTransfer::Frozen { .. } => false,
        })
    }

    pub(super) fn done(&mut self, from: &HomeId, id: &TransferId) {
        if let Some(outcome) = self.find_outcome(Some(from), id) {
            self.custody.outbound.remove(outcome);
            self.write(vec![Change::DropOutcome(id.clone())]);
        }
    }

    /// Another home has a session that was created while some homes could not be asked.
    pub(super) fn claim(&mut self, from: &HomeId, mark: Mark) {
        if let Some(own) = self.session.clone() {
            if own.order() > mark.order() {
                return self.claim_at(from, own);
            }
            let (by, epoch) = (&mark.epoch, &own.epoch);
            match &mark.born {
                Some(born) if born > epoch => self.discard(by),
                _ => self.demote(from, by),
            }
        } else if let Some(born) = &mark.born {
            self.discard(born);
        }
        // That home has a greater session than the one that was claimed there: it will not yield to it.
        let claimed = self.custody.claimed.get(from);
        if claimed.is_some_and(|claimed| claimed.order() < mark.order()) {
            self.custody.claimed.remove(from);
        }
        // What may still become a session here has not yielded yet; the claim is said again.
        if self.custody.inbound.is_empty() && !self.looks_up() {
            self.send(from, TransferMessage::Yielded(mark.epoch));
        }
    }

    /// The session here yields to another one.
    fn demote(&mut self, to: &HomeId, target_epoch: &Stamp) {
        if let Some(own) = self.session.take() {
            self.forget_freeze();
            self.act(Action::Disconnect);
            let stub = Stub {
                target: to.clone(),
                target_epoch: target_epoch.clone(),
                for_epoch: own.epoch,
            };
            self.custody.stub = Some(stub.clone());
            self.write(vec![Change::Demote(stub)]);
            self.arm_claim();
            self.arm_keep(PartnerState::Stub(target_epoch.clone()), to);
        }
    }

    pub(super) fn yielded(&mut self, from: &HomeId, epoch: &Stamp) {
        let claimed = self.custody.claimed.get(from);
        if claimed.is_some_and(|mark| mark.epoch == *epoch) {
            self.custody.claimed.remove(from);
        }
        let is_it = self.session.as_ref().is_some_and(|own| own.epoch == *epoch);
        if is_it
            && let Some(visit) = self.shared.peers.visit(from)
            && let Some(compared) = &mut self.custody.compared
        {
            compared.insert(from.clone(), visit);
        }
    }

    /// Homes that are reached and have not answered the claim of the session that is here, or was.
    pub(super) fn unanswered(&self) -> BTreeSet<HomeId> {
        self.custody.unanswered(&self.shared.peers)
    }

    fn claim_at(&mut self, home: &HomeId, mark: Mark) {
        if self.shared.peers.reaches(home) {
            self.custody.claimed.insert(home.clone(), mark.clone());
        }
        // The shell adds for which user.
        self.send(home, TransferMessage::Claim { mark, user: None });
    }

    /// Repeats claims of a session that has left until they are answered: its stub waits for that. While the
    /// session is here that is not needed: a home with a lesser session repeats its own claim.
    fn arm_claim(&mut self) {
        if !self.custody.claimed.is_empty() {
            self.arm(Timer::Claim(0));
        }
    }

    /// Claims again where that was not answered.
    pub(super) fn claim_again(&mut self, round: u8) {
        let open = self.unanswered();
        if open.is_empty() {
            return;
        }
        for home in open {
            let claimed = self.custody.claimed.get(&home);
            if let Some(mark) = self.session.as_ref().or(claimed).cloned() {
                self.claim_at(&home, mark);
            }
        }
        self.arm(Timer::Claim(round.saturating_add(1)));
    }

    pub(super) fn confirmed(&mut self) {
        if let Some(mark) = self.session.as_mut().filter(|mark| !mark.confirmed) {
            mark.confirmed = true;
            let mark = mark.clone();
            let epoch = mark.epoch.clone();
            let mut changes = vec![Change::Mark(mark)];
            changes.extend(self.lead_stub_here(&epoch));
            self.write(changes);
        }
    }

    /// The session has ended by itself: nothing is forwarded any more, but outcomes remain.
    pub(super) fn ended(&mut self) {
        self.forget_freeze();
        self.session = None;
        if (self
            .custody
            .stub
            .take_if(|stub| stub.target == self.shared.settings.own))
        .is_some()
        {
            self.write(vec![Change::DropStub]);
        }
    }

    /// The stub, if only messages in flight may still need it.
    fn ready_stub(&self) -> Option<&Stub> {
        let stub = self.custody.stub.as_ref()?;
        let is_sure = match &self.session {
            Some(mark) => mark.confirmed,
            None => stub.target != *self.own(),
        };
        let is_here = stub.target == *self.own();
        let is_ready =
            !self.looks_up() && !self.custody.has_outcome() && self.unanswered().is_empty();
        (is_ready && (is_sure || !is_here)).then_some(stub)
    }

    pub(super) fn fence_passed(&mut self, epoch: &Stamp) {
        let is_it = (self.ready_stub()).is_some_and(|stub| stub.target_epoch == *epoch);
        if is_it && self.custody.fence.as_ref() == Some(epoch) {
            self.custody.stub = None;
            self.write(vec![Change::DropStub]);
        }
    }

    /// Forgets claims of a session of which nothing is here any more, and of homes that do not come back.
    fn forget_claims(&mut self) {
        let is_here = self.session.is_some() || self.custody.stub.is_some();
        let peers = &self.shared.peers;
        let claimed = &mut self.custody.claimed;
        claimed.retain(|home, _| is_here && peers.knows(home));
    }

    /// What follows from every step: fences that may be asked, and claims of a blind session.
    pub(super) fn settle(&mut self) {
        self.forget_claims();
        let is_blind = self.session.as_ref().is_some_and(|mark| mark.blind);
        if !is_blind {
            self.custody.compared = None;
        } else if self.custody.compared.is_none() {
            self.custody.compared = Some(Default::default());
            self.claim_again(0);
        }
        if is_blind
            && self.shared.peers.are_all_compared()
            && self.unanswered().is_empty()
            && let Some(mark) = &mut self.session
        {
            mark.blind = false;
            let mark = mark.clone();
            self.custody.compared = None;
            self.write(vec![Change::Mark(mark)]);
        }
        let ready = self.ready_stub().cloned();
        let epoch = ready.as_ref().map(|stub| stub.target_epoch.clone());
        if let Some(stub) = ready.filter(|_| self.custody.fence != epoch) {
            self.arm(Timer::Fence(stub.target_epoch.clone()));
            self.act(Action::Fence(stub));
        }
        self.custody.fence = epoch;
    }

    /// The set of reached homes has changed.
    pub(super) fn reach_changed(&mut self) {
        let peers = &self.shared.peers;
        if (self.frozen()).is_some_and(|(_, to)| !peers.reaches(to)) {
            self.thaw();
        }
        let peers = &self.shared.peers;
        let is_lost = |it: &InboundTransfer| !it.is_prepared() && !peers.reaches(it.from());
        if self.custody.inbound.iter().any(is_lost) {
            self.refuse(Refusal::OwnerSilent);
        }
        for (home, message) in self.open_questions() {
            self.send(&home, message);
        }
        self.forget_claims();
        self.claim_again(0);
        if let Some(stub) = self.ready_stub().cloned() {
            self.act(Action::Fence(stub));
        }
    }

    /// What is repeated until it is answered.
    fn open_questions(&self) -> Vec<(HomeId, TransferMessage)> {
        let copies = self.custody.inbound.iter().filter_map(|it| match it {
            InboundTransfer::Prepared { id, from, .. } => {
                Some((from.clone(), TransferMessage::Stored(id.clone())))
            }
            _ => None,
        });
        let outcomes = self.custody.outbound.iter().filter_map(|it| match it {
            OutboundTransfer::Committed { id, to } => {
                Some((to.clone(), TransferMessage::Commit(id.clone())))
            }
            OutboundTransfer::Frozen { .. } => None,
        });
        let all = copies.chain(outcomes);
        all.filter(|(home, _)| self.shared.peers.reaches(home))
            .collect()
    }

    pub(super) fn due(&mut self, timer: Timer) {
        match timer {
            Timer::Connect(at, progress) => self.connect_due(at, progress),
            Timer::Queued(at) => self.queued_due(&at),
            Timer::Lookup(at) => self.look_up_again(&at),
            Timer::Frozen(freeze, progress) => self.frozen_due(freeze, progress),
            Timer::Stored(id, round) => {
                if let Some(copy) = self.find_copy(None, &id) {
                    let from = self.custody.inbound[copy].from().clone();
                    self.send(&from, TransferMessage::Stored(id.clone()));
                    self.arm(Timer::Stored(id, round.saturating_add(1)));
                }
            }
            Timer::Commit(id, round) => {
                if let Some(outcome) = self.find_outcome(None, &id)
                    && let OutboundTransfer::Committed { to, .. } = &self.custody.outbound[outcome]
                {
                    let to = to.clone();
                    self.send(&to, TransferMessage::Commit(id.clone()));
                    self.arm(Timer::Commit(id, round.saturating_add(1)));
                }
            }
            Timer::Claim(round) => self.claim_again(round),
            Timer::Fence(epoch) => {
                if let Some(stub) = self.ready_stub().filter(|it| it.target_epoch == epoch) {
                    let stub = stub.clone();
                    self.arm(Timer::Fence(epoch));
                    self.act(Action::Fence(stub));
                }
            }
            Timer::Keep(kept, before) => self.keep_due(kept, before),
            // Of no client.
            Timer::Sweep | Timer::Next | Timer::Resync(..) => {}
        }
    }

    /// Sees later whether a partner is away for as long as anything is kept.
    pub(super) fn arm_keep(&mut self, kept: PartnerState, with: &HomeId) {
        let away = self.shared.peers.away_since(with);
        self.arm(Timer::Keep(kept, away.filter(|_| with != self.own())));
    }

    /// Gives up what is kept for a partner that was away all the time; `before` as in [`Timer::Keep`].
    fn keep_due(&mut self, kept: PartnerState, before: Option<u64>) {
        let with = match &kept {
            PartnerState::Copy(id) => {
                let copy = self.find_copy(None, id);
                copy.map(|copy| self.custody.inbound[copy].from().clone())
            }
            PartnerState::Outcome(id) => {
                let outcome = self.find_outcome(None, id);
                outcome.and_then(|outcome| match &self.custody.outbound[outcome] {
                    OutboundTransfer::Committed { to, .. } => Some(to.clone()),
                    OutboundTransfer::Frozen { .. } => None,
                })
            }
            PartnerState::Stub(epoch) => {
                let stub = self.custody.stub.as_ref();
                let stub = stub.filter(|stub| stub.target_epoch == *epoch);
                stub.map(|stub| stub.target.clone())
            }
        };
        if let Some(with) = with {
            let away = self.shared.peers.away_since(&with);
            match with != *self.own() && away.is_some() && away == before {
                true => self.give_up(kept),
                false => self.arm_keep(kept, &with),
            }
        }
    }

    fn give_up(&mut self, kept: PartnerState) {
        let dropped = match &kept {
            PartnerState::Copy(id) => self.find_copy(None, id).map(|copy| {
                self.custody.inbound.remove(copy);
                Change::DropCopy(id.clone())
            }),
            PartnerState::Outcome(id) => self.find_outcome(None, id).map(|outcome| {
                self.custody.outbound.remove(outcome);
                Change::DropOutcome(id.clone())
            }),
            PartnerState::Stub(_) => self.custody.stub.take().map(|_| Change::DropStub),
        };
        self.write(dropped.into_iter().collect());
        self.act(Action::GaveUp(kept));
    }

    /// A home will not return: records that wait for it alone are given up.
    pub(super) fn forget(&mut self, home: &HomeId) {
        let copies = self.custody.inbound.iter().filter_map(|it| match it {
            InboundTransfer::Prepared { id, from, .. } if from == home => {
                Some(PartnerState::Copy(id.clone()))
            }
            _ => None,
        });
        let outcomes = self.custody.outbound.iter().filter_map(|it| match it {
            OutboundTransfer::Committed { id, to } if to == home => {
                Some(PartnerState::Outcome(id.clone()))
            }
            _ => None,
        });
        let stub = self.custody.stub.iter().filter(|stub| stub.target == *home);
        let stub = stub.map(|stub| PartnerState::Stub(stub.target_epoch.clone()));
        let all: Vec<PartnerState> = copies.chain(outcomes).chain(stub).collect();
        all.into_iter().for_each(|kept| self.give_up(kept));
    }

    /// Where a message goes that was accepted for a session of one epoch, and is addressed to one of
    /// another. A stub that leads no further than that does not send it back.
    pub(super) fn route(&self, for_epoch: &Stamp, to_epoch: Option<&Stamp>) -> Route {
        if let Some(stub) = &self.custody.stub
            && stub.target != *self.own()
            && to_epoch.is_none_or(|to_epoch| *to_epoch < stub.target_epoch)
        {
            return Route::Forward(stub.target.clone(), stub.target_epoch.clone());
        }
        if let Some(mark) = &self.session {
            return match mark.takes(for_epoch) {
                true => Route::Session,
                false => Route::Outdated,
            };
        }
        let copies = self.custody.inbound.iter().filter_map(|it| match it {
            InboundTransfer::Prepared { id, mark, .. } => Some((id, mark)),
            _ => None,
        });
        let is_addressed = |id: &TransferId| to_epoch == Some(&id.at);
        let mut known = copies.clone().peekable();
        let any = known.peek().is_some();
        let addressed = known.any(|(id, _)| is_addressed(id));
        let taking =
            copies.filter(|(id, mark)| (is_addressed(id) || !addressed) && mark.takes(for_epoch));
        let taking: Vec<TransferId> = taking.map(|(id, _)| id.clone()).collect();
        match (any, taking.is_empty()) {
            (false, _) => Route::Unknown,
            (true, true) => Route::Outdated,
            (true, false) => Route::Copies(taking),
        }
    }
}
