//! Subscriptions: what becomes of a filter, and of the flows that it matches.
//!
//! Invariant: a flow that is admitted stays admitted; a filter that would make it late is served as
//! well as can be, or refused.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::{LOOKS, Manager, Subscriber};
use crate::decision::{Subscribed, Verdict};
use crate::gate::Refused;
use crate::request::Subscription;

/// What has been decided about filters of a SUBSCRIBE.
#[derive(Debug, Clone, Default)]
pub(super) struct Joining {
    pub(super) verdicts: Vec<Verdict>,
    pub(super) reasons: Vec<String>,
    /// Flows that the filters match.
    pub(super) flows: BTreeSet<Arc<str>>,
}

impl Manager {
    /// Decides about a filter of a SUBSCRIBE. What that cost, if no flows had to be
    /// drawn up anew for it.
    pub(super) fn subscribe_one(
        &mut self,
        client: &Arc<str>,
        subscription: &Subscription,
        joining: &mut Joining,
    ) -> Option<u64> {
        let (affected, cost) = self.flows_matching(&subscription.filter);
        let (verdict, reason) = self.decide_subscription(client, subscription, &affected);
        joining.verdicts.push(verdict);
        joining.reasons.extend(reason);
        let cost = affected.is_empty().then_some(1 + cost);
        joining.flows.extend(affected);
        cost
    }

    /// What becomes of a SUBSCRIBE of which each filter has been decided about.
    pub(super) fn joined(&self, client: &str, joining: Joining) -> Subscribed {
        let Joining {
            verdicts,
            reasons,
            flows,
        } = joining;
        let bound = self.bound_to(client, flows);
        Subscribed::of(verdicts, &reasons, bound)
    }

    /// Takes filters away until the units are used up.
    pub(super) fn unsubscribe_some<'a>(
        &mut self,
        client: &str,
        session: u64,
        filters: &mut impl Iterator<Item = &'a str>,
        units: &mut u64,
    ) {
        let is_this = self.registry.is_registered(client, session);
        let mut affected = BTreeSet::new();
        let mut any = false;
        while *units > 0
            && let Some(filter) = filters.next()
        {
            *units = units.saturating_sub(1);
            if is_this && self.registry.unsubscribe(client, filter).is_some() {
                any = true;
                let (flows, cost) = self.flows_matching(filter);
                affected.extend(flows);
                *units = units.saturating_sub(cost);
            }
        }
        if any {
            self.touch(client);
            self.relax(affected.into_iter().collect());
            self.forget_if_idle(client);
        }
    }

    fn decide_subscription(
        &mut self,
        client: &Arc<str>,
        subscription: &Subscription,
        affected: &[Arc<str>],
    ) -> (Verdict, Option<String>) {
        let filter = &subscription.filter;
        let Some(known) = self.registry.client(client) else {
            return (Verdict::BestEffort, None);
        };
        let before = known.subscriptions().get(filter).copied();
        let homeless = known.place.clone().err();
        let mut subscriber = Subscriber {
            requirements: subscription.requirements,
            served: homeless.is_none(),
            with_deadline: true,
        };
        self.registry.subscribe(client, filter, subscriber);
        self.touch(client);
        let mut reason = match self.redraft(affected) {
            Ok(()) => match homeless {
                Some(why) if !affected.is_empty() => return (Verdict::BestEffort, Some(why)),
                _ => return (Verdict::Served, None),
            },
            Err(Refused(why)) => why,
        };
        let mut retry = |subscriber: Subscriber| {
            self.registry.subscribe(client, filter, subscriber);
            self.redraft(affected)
        };
        if subscription.requirements.deadline.is_some() {
            subscriber.with_deadline = false;
            if retry(subscriber).is_ok() {
                reason.push_str("; the publisher's deadline is kept, not the receiver's own");
                return (Verdict::BestEffort, Some(reason));
            }
        }
        subscriber.served = false;
        if retry(subscriber).is_ok() {
            return (Verdict::BestEffort, Some(reason));
        }
        match before {
            Some(before) => self.registry.subscribe(client, filter, before),
            None => {
                self.registry.unsubscribe(client, filter);
            }
        }
        (Verdict::Refused, Some(reason))
    }

    /// Flows with topics that a filter matches, by name; and what it cost to find
    /// them, in units of a filter that needs but a few looks.
    pub(super) fn flows_matching(&self, filter: &str) -> (Vec<Arc<str>>, u64) {
        let (flows, looks) = self.registry.flows_matching([filter]);
        (flows.into_iter().collect(), looks / LOOKS)
    }
}
