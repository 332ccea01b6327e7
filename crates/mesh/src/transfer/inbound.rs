//! A client that connects, and its session that comes: see the first table of [`super`].

use std::sync::Arc;

use super::action::{
    Action, Answer, Change, Extent, FenceAnswer, PartnerState, Refusal, Timer, TransferMessage,
};
use super::custody::{InboundTransfer, OutboundTransfer, PendingConnect, Step};
use super::identity::{CopyState, HomeId, Located, Mark, Stamp, Stub, TransferId};

impl Step<'_> {
    pub(super) fn connect(&mut self, clean: bool) -> Stamp {
        let at = self.shared.new_stamp();
        self.refuse(Refusal::Superseded);
        let is_sure = |mark: &Mark| mark.confirmed && !mark.blind;
        let peers = &self.shared.peers;
        if !clean && self.session.as_ref().is_some_and(is_sure) && peers.are_all_compared() {
            self.decide(at.clone(), false, &[], false);
            return at;
        }
        if self.shared.totals.connects >= self.shared.settings.bounds.connects {
            self.connack(at.clone(), Answer::Refused(Refusal::Busy));
            return at;
        }
        let is_full = self.shared.totals.active >= self.shared.settings.bounds.active;
        if is_full && !clean && self.shared.queued.len() < self.shared.settings.bounds.connects {
            self.custody.connect = Some(PendingConnect::Queued { at: at.clone() });
            let queued = (Arc::clone(self.client), at.clone());
            self.shared.queued.push_back(queued);
            self.arm(Timer::Queued(at.clone()));
        } else {
            self.begin_look_up(at.clone(), clean);
        }
        at
    }

    fn begin_look_up(&mut self, at: Stamp, clean: bool) {
        let looking = PendingConnect::LookingUp {
            at: at.clone(),
            clean,
        };
        self.custody.connect = Some(looking);
        self.arm(Timer::Connect(at.clone(), 0));
        self.act(Action::Lookup { at, clean });
    }

    /// Others are done, and it is the turn of the client with this stamp, if it still waits.
    pub(super) fn is_next(&mut self, stamp: &Stamp) {
        if self.is_queued(stamp) {
            self.begin_look_up(stamp.clone(), false);
        }
    }

    /// A client has waited for others for long enough.
    pub(super) fn queued_due(&mut self, stamp: &Stamp) {
        if self.is_queued(stamp) {
            self.refuse(Refusal::Busy);
        }
    }

    fn is_queued(&self, stamp: &Stamp) -> bool {
        matches!(&self.custody.connect, Some(PendingConnect::Queued { at }) if at == stamp)
    }

    /// Another home looks for the session.
    pub(super) fn lookup(&mut self, by: HomeId, at: Stamp, clean: bool) {
        if !self.shared.believes(&at) {
            return;
        }
        if (self.custody.connect.as_ref()).is_some_and(|connect| *connect.at() < at) {
            self.refuse(Refusal::Superseded);
        }
        if clean {
            self.discard(&at);
        }
        let located = self.what_is_here();
        self.found(Action::Found { by, at, located });
    }

    pub(super) fn what_is_here(&self) -> Located {
        let custody = &self.custody;
        let state = |it: &InboundTransfer| match self.shared.peers.reaches(it.from()) {
            true => CopyState::Open,
            false => CopyState::Stuck,
        };
        let stub = custody.stub.iter();
        let stub = stub.map(|stub| (stub.target.clone(), stub.target_epoch.clone()));
        let outcomes = custody.outbound.iter().filter_map(|it| match it {
            OutboundTransfer::Committed { id, to } => Some((to.clone(), id.at.clone())),
            OutboundTransfer::Frozen { .. } => None,
        });
        Located {
            session: (self.session.as_ref()).map(|mark| (mark.confirmed, mark.epoch.clone())),
            moved: stub.chain(outcomes).max_by(|a, b| a.1.cmp(&b.1)),
            left: custody.stub.as_ref().map(|stub| stub.for_epoch.clone()),
            connect: custody.connect.as_ref().map(|it| it.at().clone()),
            copy: custody.inbound.iter().map(state).max().unwrap_or_default(),
        }
    }

    pub(super) fn located(&mut self, at: Stamp, answers: &[(HomeId, Located)], extent: Extent) {
        let Some(PendingConnect::LookingUp { at: asked, clean }) = &self.custody.connect else {
            return;
        };
        let clean = *clean;
        if *asked != at {
            return;
        }
        for (_, located) in answers {
            let stamps = located.session.iter().map(|(_, epoch)| epoch);
            let stamps = stamps.chain(located.moved.iter().map(|(_, epoch)| epoch));
            for stamp in stamps.chain(&located.connect) {
                if !self.shared.believes(stamp) {
                    return self.refuse(Refusal::Busy);
                }
            }
        }
        match extent {
            Extent::Incomplete => self.arm(Timer::Lookup(at)),
            Extent::All => {
                let missed = !self.shared.peers.are_all_compared();
                self.decide(at, clean, answers, missed);
            }
            Extent::Reached => self.decide(at, clean, answers, true),
        }
    }

    /// All is known that can be: lets the client in, asks for its session, or refuses it.
    fn decide(&mut self, at: Stamp, clean: bool, answers: &[(HomeId, Located)], missed: bool) {
        if answers.iter().any(|(_, it)| it.newest() > Some(&at)) {
            return self.refuse(Refusal::Superseded);
        }
        if clean {
            return self.begin_clean(at, missed);
        }
        let own = (self.own().clone(), self.what_is_here());
        let all = || answers.iter().chain([&own]);
        let epochs = || all().filter_map(|(_, it)| Some(&it.session.as_ref()?.1));
        let newest = epochs().max();
        let mut unresolved = missed;
        for (target, epoch) in all().filter_map(|(_, it)| it.moved.as_ref()) {
            if newest.is_some_and(|newest| newest >= epoch) {
                continue;
            }
            let there = all().find(|(home, _)| home == target);
            // The session was there and has left, perhaps for a greater one with an earlier epoch.
            let left = there.and_then(|(_, it)| it.left.as_ref());
            if left.is_some_and(|left| left >= epoch) {
                continue;
            }
            let knows = match there {
                Some((home, _)) if *home == own.0 => !self.custody.inbound.is_empty(),
                there => there.is_some_and(|(_, it)| !it.is_nothing()),
            };
            if knows && (*target == own.0 || self.shared.peers.reaches(target)) {
                return self.refuse_or_answer(at, Refusal::OnItsWay);
            }
            unresolved = true;
        }
        // A copy elsewhere counts only if no home has the session.
        let copies = all().filter(|(home, _)| newest.is_none() || *home == own.0);
        match copies.map(|(_, it)| it.copy).max().unwrap_or_default() {
            CopyState::Open => return self.refuse_or_answer(at, Refusal::OnItsWay),
            CopyState::Stuck => unresolved = true,
            CopyState::None => {}
        }
        let sessions = || all().filter_map(|(home, it)| Some((it.session.as_ref()?, home)));
        match sessions().max() {
            None => self.begin(at, unresolved),
            Some((_, home)) if *home == own.0 => self.resume(at),
            Some((_, home)) => {
                let mut others = sessions().filter(|(_, it)| *it != home && **it != own.0);
                let rivals = others.next().is_some();
                self.request(at, &home.clone(), rivals);
            }
        }
    }

    /// Refuses the client with this stamp, which need not be noted as waiting.
    fn refuse_or_answer(&mut self, at: Stamp, why: Refusal) {
        match self.custody.connect {
            Some(_) => self.refuse(why),
            None => self.connack(at, Answer::Refused(why)),
        }
    }

    fn grant(&mut self, at: Stamp, present: bool) {
        self.custody.connect = None;
        self.connack(at, Answer::Granted { present });
    }

    /// The client resumes the session that is here.
    fn resume(&mut self, at: Stamp) {
        self.thaw();
        if let Some(mark) = &mut self.session {
            mark.epoch = at.clone();
            let (mark, present) = (mark.clone(), mark.confirmed);
            self.write(vec![Change::Mark(mark)]);
            self.grant(at, present);
        }
    }

    /// Begins a session, as none was found.
    fn begin(&mut self, at: Stamp, blind: bool) {
        let mark = Mark {
            confirmed: false,
            epoch: at.clone(),
            born: None,
            blind,
        };
        self.session = Some(mark.clone());
        // A stub leads here once it is known that the client has this session.
        self.write(vec![Change::Begin(mark)]);
        self.grant(at, false);
    }

    /// What still comes for sessions that were here goes into the one that is.
    pub(super) fn lead_stub_here(&mut self, epoch: &Stamp) -> Option<Change> {
        let own = self.own().clone();
        let stub = self.custody.stub.as_mut()?;
        (stub.target, stub.target_epoch) = (own, epoch.clone());
        Some(Change::Stub(stub.clone()))
    }

    fn begin_clean(&mut self, at: Stamp, blind: bool) {
        self.discard(&at);
        let mark = Mark {
            confirmed: true,
            epoch: at.clone(),
            born: Some(at.clone()),
            blind,
        };
        self.session = Some(mark.clone());
        self.write(vec![Change::Begin(mark)]);
        self.grant(at, false);
    }

    /// A Clean Start with this stamp: all that is older ends here, and nothing of it is forwarded.
    pub(super) fn discard(&mut self, at: &Stamp) {
        let mut changes = Vec::new();
        if self.session.as_ref().is_some_and(|mark| mark.epoch < *at) {
            self.forget_freeze();
            self.act(Action::Disconnect);
            self.session = None;
            changes.push(Change::End);
        }
        if (self.custody.stub.take_if(|stub| stub.target_epoch < *at)).is_some() {
            changes.push(Change::DropStub);
        }
        self.custody.inbound.retain(|it| match it {
            InboundTransfer::Prepared { id, .. } if id.at < *at => {
                changes.push(Change::DropCopy(id.clone()));
                false
            }
            _ => true,
        });
        self.custody.outbound.retain(|it| match it {
            OutboundTransfer::Committed { id, .. } if id.at < *at => {
                changes.push(Change::DropOutcome(id.clone()));
                false
            }
            _ => true,
        });
        self.write(changes);
    }

    /// Asks the owner for the session.
    fn request(&mut self, at: Stamp, from: &HomeId, rivals: bool) {
        let (totals, bounds) = (&self.shared.totals, self.shared.settings.bounds);
        let is_full = totals.transfers >= bounds.transfers
            || totals.with(from) >= bounds.per_home
            || totals.records >= bounds.records
            || self.custody.inbound.len() >= bounds.per_client;
        if is_full {
            return self.refuse(Refusal::Busy);
        }
        if !self.shared.peers.reaches(from) {
            return self.refuse(Refusal::OwnerSilent);
        }
        let requested = InboundTransfer::Requested {
            at: at.clone(),
            from: from.clone(),
        };
        self.custody.inbound.push(requested);
        self.custody.connect = Some(PendingConnect::Transferring {
            at: at.clone(),
            rivals,
        });
        // The shell adds for which user.
        self.send(from, TransferMessage::Take { at, user: None });
    }

    pub(super) fn refused(&mut self, from: &HomeId, at: &Stamp, newer: bool) {
        let is_it = |it: &InboundTransfer| !it.is_prepared() && it.at() == at && it.from() == from;
        if self.custody.inbound.iter().any(is_it) {
            let why = match newer {
                true => Refusal::Superseded,
                false => Refusal::Busy,
            };
            self.refuse_at(at, why);
        }
    }

    pub(super) fn part(
        &mut self,
        from: &HomeId,
        id: TransferId,
        number: u32,
        last: Option<Mark>,
        bytes: Arc<[u8]>,
    ) {
        let known = self.custody.inbound.iter().position(|it| match it {
            InboundTransfer::Requested { at, from: asked } => *at == id.at && asked == from,
            InboundTransfer::Receiving {
                id: known,
                from: asked,
                ..
            }
            | InboundTransfer::Prepared {
                id: known,
                from: asked,
                ..
            } => *known == id && asked == from,
        });
        let Some(known) = known else {
            return;
        };
        let (next, before) = match &self.custody.inbound[known] {
            InboundTransfer::Requested { .. } => (0, 0),
            InboundTransfer::Receiving { next, bytes, .. } => (*next, *bytes),
            InboundTransfer::Prepared { .. } => {
                return self.send(from, TransferMessage::Stored(id));
            }
        };
        if number < next {
            return self.send(from, TransferMessage::PartAck { id, number });
        }
        if number > next || !self.waits_for(&id.at) {
            return;
        }
        let bounds = self.shared.settings.bounds;
        let size = before + bytes.len();
        if size > bounds.session_bytes || self.shared.totals.bytes + size > bounds.bytes {
            return self.refuse(Refusal::Busy);
        }
        self.act(Action::KeepPart(id.clone(), number, bytes));
        let from = from.clone();
        let Some(mark) = last.filter(|mark| mark.epoch < id.at) else {
            self.custody.inbound[known] = InboundTransfer::Receiving {
                id: id.clone(),
                from: from.clone(),
                next: next + 1,
                bytes: size,
            };
            return self.send(&from, TransferMessage::PartAck { id, number });
        };
        // A lesser session elsewhere may have claimed here before this one came, and at the old owner only
        // after it had left.
        let mark = Mark {
            blind: mark.blind || self.has_rivals(),
            ..mark
        };
        self.custody.inbound[known] = InboundTransfer::Prepared {
            id: id.clone(),
            from: from.clone(),
            mark: mark.clone(),
        };
        let prepare = Change::Prepare {
            id: id.clone(),
            from: from.clone(),
            mark,
        };
        self.write(vec![prepare]);
        self.arm(Timer::Stored(id.clone(), 0));
        self.arm_keep(PartnerState::Copy(id.clone()), &from);
        self.send(&from, TransferMessage::Stored(id));
    }

    pub(super) fn find_copy(&self, from: Option<&HomeId>, id: &TransferId) -> Option<usize> {
        let is_it = |it: &InboundTransfer| {
            matches!(it, InboundTransfer::Prepared { id: known, .. } if known == id)
                && from.is_none_or(|from| from == it.from())
        };
        self.custody.inbound.iter().position(is_it)
    }

    /// The copy is the session.
    pub(super) fn commit(&mut self, from: &HomeId, id: TransferId) {
        let copy = self.find_copy(Some(from), &id);
        if let Some(copy) = copy
            && let InboundTransfer::Prepared { mark, .. } = self.custody.inbound.remove(copy)
        {
            let mark = Mark {
                epoch: id.at.clone(),
                ..mark
            };
            let own = self.session.as_ref();
            match own.is_some_and(|own| own.order() > mark.order()) {
                true => {
                    self.write(vec![Change::Absorb(id.clone())]);
                    self.refuse_at(&id.at, Refusal::Superseded);
                }
                false => self.install(id.clone(), mark),
            }
        }
        self.send(from, TransferMessage::Done(id));
    }

    fn install(&mut self, id: TransferId, mark: Mark) {
        if self.session.is_some() {
            self.forget_freeze();
            self.act(Action::Disconnect);
        }
        let present = mark.confirmed;
        self.session = Some(mark.clone());
        let at = id.at.clone();
        let mut changes = vec![Change::Install(id, mark)];
        changes.extend(self.lead_stub_here(&at));
        self.write(changes);
        if self.waits_for(&at) {
            self.grant(at, present);
        }
    }

    /// The copy is nothing.
    pub(super) fn abort(&mut self, from: &HomeId, id: &TransferId) {
        if let Some(copy) = self.find_copy(Some(from), id) {
            self.custody.inbound.remove(copy);
            self.write(vec![Change::DropCopy(id.clone())]);
            self.refuse_at(&id.at, Refusal::OwnerSilent);
        }
    }

    /// The others are asked once more.
    pub(super) fn look_up_again(&mut self, stamp: &Stamp) {
        if let Some(PendingConnect::LookingUp { at, clean }) = &self.custody.connect
            && at == stamp
        {
            let (at, clean) = (at.clone(), *clean);
            self.act(Action::Lookup { at, clean });
        }
    }

    pub(super) fn connect_due(&mut self, at: Stamp, progress: u32) {
        if (self.custody.connect.as_ref()).is_none_or(|connect| *connect.at() != at) {
            return;
        }
        let transfer = self.custody.inbound.iter().find(|it| *it.at() == at);
        let present = transfer.map_or(0, InboundTransfer::progress);
        match present {
            _ if present > progress => self.arm(Timer::Connect(at, present)),
            _ if self.looks_up() => self.refuse(Refusal::OthersSilent),
            _ => self.refuse(Refusal::OwnerSilent),
        }
    }

    /// The answer to the fence of another home's stub.
    pub(super) fn fence_asked(&mut self, by: &HomeId, theirs: &Stub) -> FenceAnswer {
        if self.looks_up() {
            return FenceAnswer::LookingUp;
        }
        let own = self.own().clone();
        let here = self.session.is_some();
        if let Some(stub) = &mut self.custody.stub
            && stub.target == *by
        {
            // Where theirs leads, this one may lead at once; but to no home that has nothing.
            let further = theirs.target_epoch > stub.target_epoch;
            if further && theirs.target != *by && (theirs.target != own || here) {
                stub.target = theirs.target.clone();
                stub.target_epoch = theirs.target_epoch.clone();
                let changed = Change::Stub(stub.clone());
                self.write(vec![changed]);
            }
            return FenceAnswer::StubLeadsThere;
        }
        FenceAnswer::Clear
    }
}
