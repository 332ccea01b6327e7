//! The reply sink of the proxy: a mailbox that its thread takes from.

use std::sync::{Arc, Mutex, PoisonError};

use mio::Waker;
use punctual_broker::{FilterVerdict, Nanos};
use punctual_manager::proxy::Proxy;
use punctual_manager::{Change, Reply};

use crate::admission::{AdmissionService, ReplySink, ShardReply};

/// What is brought to the proxy's thread.
pub(super) enum Delivery {
    /// An answer.
    Reply(Reply),
    /// What has changed for somebody who did not ask.
    Change(Change),
    /// The process is to end.
    Stop,
}

/// From other threads to the proxy's.
#[derive(Clone)]
pub(super) struct Mailbox {
    shared: Arc<Mutex<Vec<Delivery>>>,
    waker: Arc<Waker>,
}

impl Mailbox {
    pub(super) fn new(waker: Arc<Waker>) -> Self {
        Self {
            shared: Arc::default(),
            waker,
        }
    }

    pub(super) fn sink(&self) -> impl ReplySink + use<> {
        self.clone()
    }

    /// Bounded by what may be asked: an answer for each connection and flow.
    pub(super) fn post(&self, delivery: Delivery) {
        let mut all = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        all.push(delivery);
        if all.len() == 1 {
            // Fails only without an epoll, and then nobody waits.
            let _ = self.waker.wake();
        }
    }

    pub(super) fn take(&self) -> Vec<Delivery> {
        std::mem::take(&mut self.shared.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl ReplySink for Mailbox {
    fn reply(&self, _: &AdmissionService, reply: ShardReply) {
        self.post(Delivery::Reply(reply.reply));
    }

    fn notify(&self, change: Change) {
        self.post(Delivery::Change(change));
    }
}

/// Hands a delivery to the proxy.
pub(super) fn deliver(
    delivery: Delivery,
    proxy: &mut Proxy,
    service: &AdmissionService,
    now: Nanos,
) {
    match delivery {
        // The proxy lets a client go on without waiting for what is kept for it:
        // the broker behind it has answered already.
        Delivery::Reply(Reply::GoOn { .. }) | Delivery::Stop => {}
        Delivery::Reply(Reply::Flow {
            client,
            topic,
            requirements,
            decision,
        }) => {
            let decision = Some(decision.into());
            let (id, session) = (&client.id, client.session);
            proxy.decide_flow(id, session, &topic, requirements, decision, false, now);
        }
        Delivery::Reply(Reply::Subscription {
            conn,
            client,
            decision,
        }) => {
            let served = decision.verdicts.iter();
            let filters: Vec<_> = served
                .filter(|(_, verdict)| *verdict != FilterVerdict::Refused)
                .map(|(filter, _)| filter.clone())
                .collect();
            if !proxy.decide_subscription(conn, decision, now) && !proxy.is_open(conn) {
                service.give_up(client, filters);
            }
        }
        Delivery::Change(Change::Flow {
            client,
            session,
            topic,
            requirements,
            decision,
            notify,
        }) => {
            let decision = decision.map(Into::into);
            proxy.decide_flow(
                &client,
                session,
                &topic,
                requirements,
                decision,
                notify,
                now,
            );
        }
        Delivery::Change(Change::Subscription {
            client,
            session,
            filter,
            served,
            reason,
        }) => proxy.decide_receiver(&client, session, &filter, served, &reason),
    }
}
