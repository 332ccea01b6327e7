//! Fan-out of a message to a crowd: to more clients than one piece of work can serve.
//!
//! Neighbours of a mesh and shared subscriptions get such a message at once, as any other. A task
//! then delivers it to the clients in slices, in the order of [`Place`], and queries the index for
//! the next clients each time. So a client that subscribes meanwhile may get the message or not,
//! and one that was subscribed before gets it once. The publisher is acknowledged when all clients
//! have the message, and is not read until then: its messages stay in order, and only one message
//! of each client is being fanned out. Messages of clients that are gone, and of the broker itself,
//! wait for each other, at most [`MOST_WAITING`] of one publisher.
//!
//! Capacity cannot be reserved in all queues of a crowd while other clients are served: where the
//! policy for full queues is to refuse, a crowd's message is dropped for receivers with full
//! queues, and counted.

use punctual_codec::{Properties, QoS, RawPublish, ReasonCode};

use super::Shard;
use crate::base::connection::ConnId;
use crate::egress::SHARE_FROM;
use crate::fanouts::{FanOut, MOST_WAITING, Receipt};
use crate::hub::Hub;
use crate::index::Place;
use crate::publication::Publication;
use crate::shard::acknowledge::{acknowledge, acknowledge_with, note_reception};
use crate::shard::deliver::{DependentSender, deliver_all};
use crate::tasks::{COPY, Task};
use crate::{Budget, Nanos};

/// Units of work for offering a message to a client, with QoS 0 and above: memory that was not used
/// recently.
const OFFER: [u64; 2] = [2, 8];
/// Clients that are looked up at once, with QoS 0 and above: a queue may have to grow, which takes as
/// long as it is long, and those of a crowd grow with the same message.
const STEP: [usize; 2] = [64, 1];

impl Hub {
    /// Starts a task that delivers a publication to the crowd of clients that receive it. The
    /// connection `conn` of the publisher is not read until all have it, if it `waits`.
    #[cold]
    pub(super) fn fan_out(
        &mut self,
        publication: &mut Publication<'_>,
        (conn, waits): (Option<ConnId>, bool),
        receipt: Option<Receipt>,
    ) {
        let publisher = publication.publisher;
        let message = publication.message(&mut self.messages);
        let queue = self.work.fanouts.queues.entry(publisher).or_default();
        if queue.messages.len() >= MOST_WAITING && conn.is_none() {
            return self.stats.not_queued(publication.stamp.class());
        }
        if queue.messages.is_empty() {
            self.work.tasks.push(Task::FanOut { publisher });
        }
        queue.messages.push_back(FanOut {
            message,
            name: publication.name,
            keeping: publication.keeping,
            after: Place::FIRST_CLIENT,
            waits,
            receipt,
        });
        if let Some(conn) = conn {
            self.wait_for_fan_out(publisher, conn);
        }
    }

    /// Pauses a connection until the messages of its publisher have been fanned out.
    pub(super) fn wait_for_fan_out(&mut self, publisher: u64, id: ConnId) {
        let Some(queue) = self.work.fanouts.queues.get_mut(&publisher) else {
            return;
        };
        // A session has at most one current connection, and those that this one replaced.
        if !queue.paused.contains(&id)
            && let Some(conn) = self.outlets.conns.get_mut(id.slot)
            && conn.generation == id.generation
        {
            queue.paused.push(id);
            conn.paused += 1;
        }
    }
}

impl Shard {
    /// Delivers the publisher's oldest waiting message to the next clients of a crowd.
    pub(super) fn continue_fan_out(&mut self, publisher: u64, budget: &mut Budget, now: Nanos) {
        let hub = &mut self.hub;
        let Some(mut queue) = hub.work.fanouts.queues.remove(&publisher) else {
            return;
        };
        if let Some(first) = queue.messages.front_mut()
            && hub.offer_to_crowd(first, budget, now)
            && let Some(first) = queue.messages.pop_front()
        {
            hub.is_given_out(first);
        }
        if queue.messages.is_empty() {
            hub.resume(queue.paused);
        } else {
            hub.work.fanouts.queues.insert(publisher, queue);
            hub.work.tasks.push(Task::FanOut { publisher });
        }
        self.share_stats_soon(now);
    }
}

impl Hub {
    /// Offers a message to the next clients of a crowd; returns whether these were the last.
    fn offer_to_crowd(&mut self, fan_out: &mut FanOut, budget: &mut Budget, now: Nanos) -> bool {
        let message = fan_out.message.clone();
        let directory = self.directory.clone();
        let mut publication = Publication::from_message(&message, now);
        publication.name = fan_out.name;
        publication.keeping = fan_out.keeping;
        let policies = &self.config.queue_policies;
        publication.queue_full = policies.of_topic(message.topic());
        let publisher = fan_out.receipt.as_ref().filter(|_| fan_out.waits);
        let publisher = publisher.map(|receipt| receipt.conn);
        let copied = match message.payload().len() {
            length if length >= SHARE_FROM => 0,
            length => (length / COPY) as u64,
        };
        let acknowledged = usize::from(message.qos != QoS::AtMostOnce);
        let cost = OFFER[acknowledged] + copied;
        let mut is_over = false;
        while !is_over && !budget.is_spent() {
            // One step holds the lock of the index only for a short time.
            let most = usize::try_from(budget.left() / cost).unwrap_or(usize::MAX);
            let most = most.clamp(1, STEP[acknowledged]);
            let before = self.work.offered;
            let (matched, looked_at, next) =
                directory.clients_after(message.topic(), fan_out.after, most);
            // No publisher can be refused, so a full queue causes a counted drop.
            let _ = deliver_all(
                self,
                &matched,
                &mut publication,
                publisher,
                now,
                DependentSender::Nobody,
            );
            budget.spend(1 + looked_at as u64 * cost + (self.work.offered - before));
            match next {
                Some(place) => fan_out.after = place,
                None => is_over = true,
            }
        }
        fan_out.keeping = publication.keeping;
        is_over
    }

    /// Acknowledges a message to its publisher after all clients of the crowd have it.
    fn is_given_out(&mut self, fan_out: FanOut) {
        let FanOut {
            message,
            keeping,
            receipt: Some(receipt),
            ..
        } = fan_out
        else {
            return;
        };
        let after = self.after(&keeping);
        // The publisher's session may have ended, and another session use its slot.
        let session = self.sessions.get(receipt.session);
        if session.is_none_or(|session| session.handle.number != message.publisher) {
            return;
        }
        let raw = RawPublish {
            dup: false,
            qos: message.qos,
            retain: message.retain,
            topic: message.topic_bytes(),
            packet_id: receipt.packet_id,
            properties: Properties::EMPTY,
            payload: message.payload(),
        };
        let (id, slot) = (receipt.conn, receipt.session);
        if self.outlets.conn(id).is_none() {
            if raw.qos == QoS::ExactlyOnce {
                note_reception(self, &raw, slot, after);
            }
            return;
        }
        if keeping.awaited {
            self.pace(id, message.stamp.class());
        }
        let reason = ReasonCode::Success;
        match &receipt.answer {
            Some(answer) => acknowledge_with(self, id, &raw, slot, reason, answer, after),
            None => acknowledge(self, id, &raw, slot, reason, after),
        };
    }
}
