//! The operations of sessions beside their messages: identity, subscriptions and wills.

use punctual_codec::Version;
use punctual_store::Op;
use punctual_store::op::{Content, SessionOp, SubscriptionOp, WillOp};

use super::Journal;
use crate::Nanos;
use crate::mesh::journal::names;
use crate::session::{Session, Subscription, Will};

/// Bits of the first of two bytes that are stored with a subscription beside its options; the
/// second byte has the classes that the session accepts.
pub(super) const NUMBERED: u8 = 1;
pub(super) const DEMOTED: u8 = 2;
/// Some retained messages for the new subscription have not been sent or queued.
pub(super) const OWED: u8 = 4;

/// The filter under which the brokers behind a neighbour are stored; no client subscribes to it.
pub(crate) const BEHIND: &str = "$mesh/behind";
/// Prefix of a filter on which persistent sessions at brokers behind a neighbour await messages.
pub(crate) const AWAITED: &str = "$mesh/awaited/";

/// Separator of the names of brokers, which do not contain it.
pub(crate) const BETWEEN: &str = "/";

impl Journal {
    pub(crate) fn session(&mut self, session: &Session, version: Version) {
        self.emit(&Op::Session(SessionOp {
            session: session.handle.number,
            client_id: &session.handle.client_id,
            user: session.username.as_deref(),
            version: if version.is_v5() { 5 } else { 4 },
            expiry: session.expiry,
            detached: session.detached,
            next_packet_id: session.window.next_id(),
        }));
    }

    /// Records that a session has changed while the store fails. It is emitted later, so that
    /// clients that come and go do not fill the memory.
    pub(crate) fn defer(&mut self, session: &mut Session, slot: u32) {
        if !std::mem::replace(&mut session.stale, true) {
            self.stale_sessions.push(slot);
        }
    }

    pub(crate) fn subscription(&mut self, session: &Session, subscription: &Subscription) {
        Self::with_subscription(session, subscription, |op| {
            self.emit(&Op::Subscription(op));
        });
    }

    /// Calls `say` with the operation of a subscription.
    pub(crate) fn with_subscription(
        session: &Session,
        subscription: &Subscription,
        say: impl FnOnce(SubscriptionOp<'_>),
    ) {
        let Subscription {
            filter,
            options,
            id,
            numbered,
            demoted,
            persistent: _,
            replay: _,
            reserved: _,
        } = subscription;
        let flag = |set: bool, flag: u8| if set { flag } else { 0 };
        let flags = flag(*numbered, NUMBERED)
            | flag(*demoted, DEMOTED)
            | flag(session.replays.has(subscription), OWED);
        say(SubscriptionOp {
            session: session.handle.number,
            filter,
            options: options.byte(),
            id: (*id != 0).then_some(*id),
            properties: &[flags, session.classes],
        });
    }

    /// Emits that all retained messages for a subscription were sent or queued. While the store is
    /// in trouble, nothing is emitted, and they are sent again after a restart.
    pub(crate) fn replayed(journal: &mut Option<Box<Self>>, session: &Session, filter: &str) {
        if let Some(journal) = journal
            && session.durable
            && journal.trouble().is_none()
            && let Some(known) = session.subscriptions.find(filter)
        {
            journal.subscription(session, known);
        }
    }

    pub(crate) fn will(&mut self, session: u64, will: &Will) {
        let message = &will.message;
        // Until a will is published, its expiry is an interval.
        let interval = (message.expires < Nanos::MAX).then(|| message.expires.as_secs() as u32);
        self.emit(&Op::Will(WillOp {
            session,
            delay: will.delay,
            due: will.due.map(|at| self.offset.wall(at)),
            expiry: interval,
            content: Content {
                topic: message.topic(),
                payload: message.payload(),
                properties: message.properties().as_bytes(),
                publisher: session,
                qos: message.qos as u8,
                retain: message.retain,
                expires: None,
                // A will has no stamp yet, but may have a name.
                stamp: &will.name.map(names::bytes).unwrap_or_default(),
            },
        }));
    }
}
