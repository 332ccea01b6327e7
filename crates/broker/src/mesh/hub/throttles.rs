//! Remote flow control of neighbours.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use foldhash::fast::RandomState;
use hashbrown::HashSet;
use punctual_codec::topic;

use crate::Nanos;
use crate::base::connection::ConnId;
use crate::base::name::peer_of;
use crate::hub::Hub;
use crate::mesh::federation::LinkNews;
use crate::mesh::parked::{BlockReason, PARKED};
use crate::mesh::throttle::{HIGH, LOW, TOPIC, encode, gist};
use crate::room::fullness;
use crate::timers::Timer;

/// Time between two checks of full clients while their filters are sent to neighbours.
pub(crate) const CLIENTS: Nanos = Nanos::from_millis(20);

impl Hub {
    /// Arms the timer that checks at the end of the turn how full the queues of neighbours are.
    pub(crate) fn look_at_throttles(&mut self, now: Nanos) {
        if !self.links.throttles_armed {
            self.links.throttles_armed = true;
            self.timers.arm(now, Timer::Throttles);
        }
    }

    /// Sends neighbours the filters on which this broker accepts few messages now, if they have
    /// changed; checks again soon while there are any.
    pub(crate) fn send_throttles(&mut self, now: Nanos) {
        self.links.throttles_armed = false;
        let slots = self.links.neighbours.clone();
        let links = slots.iter().filter_map(|slot| {
            let session = self.sessions.get(*slot)?;
            session.link.as_deref()
        });
        let causes: HashSet<BlockReason, RandomState> =
            links.flat_map(|link| link.parked.causes()).collect();
        let mut parts = Vec::new();
        for slot in &slots {
            let part = self.throttled_for(*slot, &causes);
            parts.extend(part.into_iter().flatten().map(|part| (*slot, part)));
        }
        let clients = self.directory.full_clients().parts();
        let mut is_any = !parts.is_empty();
        for slot in slots {
            let others = parts.iter().filter(|(of, _)| *of != slot);
            let others = others.map(|(_, part)| part).chain(&clients);
            is_any |= self.send_throttle(slot, others.cloned().collect());
        }
        if is_any {
            self.links.throttles_armed = true;
            // A client may be away for long.
            let pause = match parts.is_empty() {
                true => CLIENTS,
                false => PARKED,
            };
            self.timers.arm(now + pause, Timer::Throttles);
        }
    }

    /// In a mesh: records whether the queue of a client with the policy to refuse is nearly full.
    #[cold]
    pub(crate) fn look_how_full(&mut self, slot: u32) {
        if self.directory.federation().is_none() {
            return;
        }
        let Some(session) = self.sessions.get_mut(slot) else {
            return;
        };
        let [eighths, _] = fullness(&self.config.limits, session);
        let was_full = session.is_full;
        let is_full = eighths >= HIGH || was_full && eighths >= LOW;
        session.is_full = is_full;
        if was_full == is_full {
            return;
        }
        let mut full = self.directory.full_clients();
        match is_full {
            true => {
                let filters = session.subscriptions.iter();
                let filters = filters.map(|it| topic::split_share(&it.filter).1);
                full.add(session.handle.number, filters);
            }
            false => full.remove(session.handle.number),
        }
    }

    /// The lists of filters for other neighbours, because this neighbour has little room; `causes`
    /// are those for which publications of the others are blocked already.
    fn throttled_for(
        &mut self,
        slot: u32,
        causes: &HashSet<BlockReason, RandomState>,
    ) -> [Option<Arc<[Box<str>]>>; 2] {
        let Some(session) = self.sessions.get_mut(slot) else {
            return [None, None];
        };
        let [open, throttled] = fullness(&self.config.limits, session);
        let number = session.handle.number;
        // Publishers do not wait for a neighbour behind which brokers have been away for long.
        let is_away = session.handle.is_away();
        let Some(link) = &mut session.link else {
            return [None, None];
        };
        let is_full = |was: bool, eighths: usize, cause: BlockReason| {
            let is_high = eighths >= HIGH || was && eighths >= LOW;
            !is_away && (is_high || causes.contains(&cause))
        };
        let cause = BlockReason::Receiver(self.index, number);
        link.full = match is_full(link.full.is_some(), open, cause) {
            true => Some(link.full.take().unwrap_or_else(|| link.gist())),
            false => None,
        };
        let cause = BlockReason::Throttle(self.index, number);
        link.throttled_full = is_full(link.throttled_full, throttled, cause);
        let passed_on = link.throttled_full.then(|| link.throttle.clone());
        [link.full.clone(), passed_on].map(|part| part.filter(|part| !part.is_empty()))
    }

    /// Sends a neighbour the filters on which this broker accepts few messages, unless it sent the
    /// same lists last. Returns whether there are any.
    fn send_throttle(&mut self, slot: u32, parts: Vec<Arc<[Box<str>]>>) -> bool {
        let Some(session) = self.sessions.get_mut(slot) else {
            return false;
        };
        let handle = session.handle.clone();
        let (Some(link), Some(conn)) = (&mut session.link, session.conn) else {
            return false;
        };
        let parts = match handle.carries.load(Ordering::Acquire) {
            true => parts,
            false => Vec::new(),
        };
        let mut both = parts.iter().zip(&link.told);
        if parts.len() == link.told.len() && both.all(|(part, told)| Arc::ptr_eq(part, told)) {
            return !parts.is_empty();
        }
        let filters = gist(parts.iter().flat_map(|part| part.iter()).map(|it| &**it));
        let waited = link.waits();
        link.told = parts;
        let (waits, is_any) = (link.waits(), !link.told.is_empty());
        self.tell(conn, TOPIC, &encode(&filters));
        if waits != waited
            && let Some(id) = self.outlets.conns.get(conn).map(|it| it.id(conn))
        {
            report_waits(self, id, waits);
        }
        is_any
    }
}

/// Notifies the federation whether publications of a neighbour wait.
pub(crate) fn report_waits(hub: &Hub, id: ConnId, waits: bool) {
    let session = hub.outlets.conns.get(id.slot).map(|conn| conn.session);
    let session = session.and_then(|slot| hub.sessions.get(slot));
    if let (Some(federation), Some(peer)) = (
        hub.directory.federation(),
        session.and_then(|session| peer_of(&session.handle.client_id)),
    ) {
        federation.link(id, peer, LinkNews::Waits(waits));
    }
}
