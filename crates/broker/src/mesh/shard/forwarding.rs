//! Stubs forward messages for sessions that have left this broker. Brokers on the path pass them
//! on, and the broker with the session queues them.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use punctual_codec::{PacketType, QoS, ReasonCode, topic};
use punctual_mesh::transfer::{Record, Route};
use punctual_mesh::wire::SessionAddress;

use crate::Nanos;
use crate::base::connection::ConnId;
use crate::base::delivery::{Delivery, Load};
use crate::base::durability::Durability;
use crate::base::name::MessageName;
use crate::hub::Hub;
use crate::index::generation_slot;
use crate::index::matched::{Groups, Matched};
use crate::index::target::Target;
use crate::journal::Journal;
use crate::mesh::custody::{FORWARD, MAX_TRANSIT, RETRY, TRY_AGAIN, Transit};
use crate::mesh::journal::moved::{put_delivery, put_taken_up, read_delivery};
use crate::message::Parts;
use crate::publication::Publication;
use crate::shard::Shard;
use crate::shard::deliver::{DependentSender, deliver_all};

/// Largest number of steps of [`Shard::forward_stubs`] in one call.
const AT_ONCE: usize = 64;

/// An item that a stub forwards.
#[derive(Debug, Clone)]
pub(crate) enum Next {
    Message(Delivery),
    /// A packet identifier that the client may remember from a QoS 2 message of a session that has
    /// ended.
    Identifier(u16),
}

impl Next {
    /// Whether it is a message with QoS 0.
    fn is_at_most_once(&self) -> bool {
        matches!(self, Self::Message(delivery) if delivery.qos == QoS::AtMostOnce)
    }

    fn is_exactly_once(&self) -> bool {
        matches!(self, Self::Message(delivery) if delivery.qos == QoS::ExactlyOnce)
    }
}

impl Shard {
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

    /// Handles a forwarded message from a neighbour; false if the payload is not one.
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

    /// Forwards messages that stubs have queued, as far as the queues of links have room.
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

    /// Forwards the next item of a stub; false if there is none, if it is not committed yet, or if
    /// there is no room for it.
    pub(crate) fn forward_next(&mut self, slot: u32, now: Nanos) -> bool {
        let hub = &mut self.hub;
        let Some((since, next)) = hub.next_of_stub(slot) else {
            return false;
        };
        // If this broker is killed before the commit, the publisher sends the message again, under
        // another name.
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
            // The machine has dropped the stub; its remaining messages are forwarded to its last
            // target.
            Some(Route::Unknown) if !hub.is_own(&stub.target) => {
                Route::Forward(stub.target.clone(), stub.target_epoch.clone())
            }
            route => route.unwrap_or(Route::Unknown),
        };
        // A message without a name was queued before the session became a stub, when the client had no
        // other session on this broker: it is in no other one. With a name from now on it would seem
        // to have been published later.
        let next = match (&route, next) {
            (Route::Forward(..) | Route::Copies(_), Next::Message(_)) => self.hub.name_next(slot),
            (_, next) => Some(next),
        };
        let Some(next) = next else {
            return false;
        };
        let hub = &mut self.hub;
        match route {
            _ if next.is_at_most_once() => {}
            Route::Session => {
                if let Some(own) = hub.sessions.named(&client) {
                    // Since the session is on this broker, it receives messages for its own
                    // subscriptions directly.
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

    /// Removes the next item of a stub, which has been forwarded or dropped.
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
        Journal::passed_on(&mut hub.journal, session, delivery.entry);
        hub.forget_queued(&Load::of(&delivery.message));
        true
    }

    /// Retries to forward messages that could not be forwarded.
    pub(crate) fn retry_forwarding(&mut self, now: Nanos) {
        let custody = self.hub.links.custody.as_mut();
        let transit = custody.map(|it| std::mem::take(&mut it.transit));
        for transit in transit.unwrap_or_default() {
            self.pass_forwarded(transit, now);
        }
        self.forward_stubs(now);
    }

    /// Passes a forwarded message on to the broker of the session, or queues it if the session is
    /// on this broker.
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
            // The session on this broker belongs to another user.
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
                // Earlier messages for the same broker are forwarded first.
                let waits = before.any(|it| it.address.target == *target);
                if waits || !hub.forward_to(&address, &message, now) {
                    // A message that does not fit is not acknowledged: the neighbour sends it
                    // again.
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
    /// The next item of a stub, and the time since which it waits.
    fn next_of_stub(&mut self, slot: u32) -> Option<(Nanos, Next)> {
        let custody = self.links.custody.as_mut()?;
        if let Some(packet_id) = custody.remembered.get(&slot).and_then(|it| it.last()) {
            return Some((Nanos(0), Next::Identifier(*packet_id)));
        }
        if let Some((since, delivery)) = custody.next.get(&slot) {
            return Some((*since, Next::Message(delivery.clone())));
        }
        let session = self.sessions.get_mut(slot)?;
        let (since, delivery) = session.queue.pop()?;
        session.share_queue_len();
        custody.next.insert(slot, (since, delivery.clone()));
        Some((since, Next::Message(delivery)))
    }

    /// The message that a stub forwards next, with a name by which brokers recognise it.
    fn name_next(&mut self, slot: u32) -> Option<Next> {
        let custody = self.links.custody.as_mut()?;
        let (_, delivery) = custody.next.get_mut(&slot)?;
        self.directory.name_delivery(delivery);
        Some(Next::Message(delivery.clone()))
    }

    /// Whether all stubs of a client have forwarded everything.
    pub(crate) fn stubs_are_forwarded(&self, client: &Arc<str>) -> bool {
        let stubs = self
            .links
            .custody
            .as_ref()
            .and_then(|it| it.stubs.get(client));
        let mut stubs = stubs.into_iter().flatten();
        stubs.all(|slot| self.is_forwarded(*slot))
    }

    /// Whether a stub has forwarded everything.
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

    /// Whether a message passed a broker while the session was there, and so was queued in the
    /// session.
    fn was_queued(&self, slot: u32, delivery: &Delivery) -> bool {
        let name = delivery.message.name;
        let Some((federation, session)) = self.directory.federation().zip(self.sessions.get(slot))
        else {
            return false;
        };
        if !self.subscribes_to(slot, delivery) {
            return false;
        }
        if session
            .history
            .as_ref()
            .is_some_and(|history| history.has_passed(name))
        {
            return true;
        }
        let custody = self.links.custody.as_ref();
        let is_beginning =
            custody.is_some_and(|it| it.beginning.get(&slot) == Some(&session.handle.number));
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

    /// Adds a forwarded item to a session or a copy, unless that has received it before.
    pub(crate) fn take_in(&mut self, slot: u32, next: Next, now: Nanos) {
        match next {
            Next::Message(delivery) if self.was_queued(slot, &delivery) => {}
            Next::Message(delivery) => self.append_own(slot, vec![delivery], now),
            Next::Identifier(packet_id) => self.take_up(slot, vec![(packet_id, None)]),
        }
        self.watch_history(slot, now);
    }

    /// Puts a message into the queue of the link that leads to its target; false if there is no
    /// room, or no such link.
    fn forward_to(&mut self, address: &SessionAddress, message: &[u8], now: Nanos) -> bool {
        let topic = format!("{FORWARD}{}", address.target);
        let (_, matched) = self.directory.lookup(&topic, generation_slot(&topic));
        let custody = self.links.custody.as_ref();
        let is_reached = custody.is_some_and(|it| it.reached.contains(&address.target));
        // While the target is not reached, its messages stay in the queue of a link that carries
        // nothing, and do not circulate.
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
        deliver_all(
            self,
            &matched,
            &mut publication,
            None,
            now,
            DependentSender::Publisher,
        )
        .is_ok()
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
