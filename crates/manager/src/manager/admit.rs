//! Flows: how they are admitted, changed and removed.
//!
//! Invariant: the flows of the registry are those that the [`Gate`](crate::gate::Gate) analyses, and
//! `received` lists them by their receivers.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use punctual_analysis::Reason;
use punctual_model::network::Flow;
use punctual_model::{Requirements, implied_deadline};

use super::draft::Draft;
use super::{Manager, Record, Request, worst};
use crate::demand::{Demand, assumed_bound};
use crate::gate::Refused;
use crate::name::FlowName;
use crate::quota::{Need, Owner, Quota, check_share};

impl Manager {
    /// Admits a flow; its bound.
    pub(super) fn admit(&mut self, name: &FlowName, request: &Request) -> Result<u64, String> {
        let mut demand = Demand::new(&request.requirements, request.sizes, &self.settings)?;
        let most = self.settings.max_flows;
        self.registry.check_capacity(&name.id, most)?;
        let draft = self.draft(name, &demand, true)?;
        let receivers = draft.receivers.len() + draft.local.len();
        let need = Need {
            bandwidth: draft.bandwidth(&demand),
            ..self.need(receivers, &demand, &request.requirements)
        };
        self.check_quota(name, need, request.quota)?;
        // Without what receivers ask for beyond the publisher.
        let plain = match draft.flow.deadline < demand.deadline_ns {
            true => Some(self.draft(name, &demand, false)?),
            false => None,
        };
        if request.requirements.priority.is_none() {
            let (least, most) = self.settings.priorities;
            let had = request.priority.filter(|had| (least..=most).contains(had));
            demand.priority = had.unwrap_or(demand.priority);
        }
        let own_deadlines_count = plain.is_some();
        let mut first = None;
        for (attempt, mut draft) in [Some(draft), plain].into_iter().flatten().enumerate() {
            let let_in = self.let_in(name, request, demand.priority, &mut draft.flow);
            match let_in {
                Ok(priority) => {
                    demand.priority = priority;
                    let bound = self.accept(name, request, demand, draft);
                    if own_deadlines_count && attempt == 1 {
                        self.no_own_deadline(&name.id, &name.topic);
                    }
                    return Ok(bound);
                }
                Err(Refused(why)) => first = first.or(Some(why)),
            }
        }
        Err(first.unwrap_or_default())
    }

    /// Lets a flow in, in the place of what it was. If it states no priority
    /// and somebody would be late with this one, it gets the nearest with which
    /// nobody is: a higher one while it is late itself, a lower one while others
    /// are. Beyond where that changes there is none, for a flow's bound does not
    /// grow with its priority, and those of others do not shrink.
    fn let_in(
        &mut self,
        name: &FlowName,
        request: &Request,
        mut priority: u8,
        flow: &mut Flow,
    ) -> Result<u8, Refused> {
        let is_known = self.registry.flow(&name.id).is_some();
        let out: &[&str] = if is_known { &[&name.id] } else { &[] };
        let (least, most) = self.settings.priorities;
        let mut first = None;
        let mut up = None;
        loop {
            flow.priority = priority.into();
            let refusal = match self.gate.try_replace(out, vec![flow.clone()]) {
                Ok(()) => return Ok(priority),
                Err(refusal) => refusal,
            };
            let own = refusal.new;
            // Of a link without time somebody has no bound in any order.
            let stop = request.requirements.priority.is_some()
                || refusal.hopeless
                || matches!(refusal.reason, Reason::Overload { .. } | Reason::Taken)
                || *up.get_or_insert(own) != own;
            if first.is_none() {
                first = Some(self.gate.refused(&refusal, out, std::slice::from_ref(flow)));
            }
            let next = match own {
                true => priority.checked_add(1).filter(|next| *next <= most),
                false => priority.checked_sub(1).filter(|next| *next >= least),
            };
            match next {
                Some(next) if !stop => priority = next,
                _ => break,
            }
        }
        Err(first.unwrap_or_else(|| Refused(String::new())))
    }

    /// Receivers of a topic whose own deadline cannot be kept are notified.
    fn no_own_deadline(&mut self, id: &str, topic: &str) {
        let subscriptions = self.registry.subscriptions_to(topic);
        let with_own =
            subscriptions.filter(|(_, _, s)| s.requirements.deadline.is_some() && s.with_deadline);
        let with_own = with_own.map(|(known, filter, _)| (known.client.id.clone(), filter.clone()));
        let with_own: BTreeSet<(Arc<str>, Arc<str>)> = with_own.collect();
        for (client, filter) in with_own {
            let Some(subscriber) = self.registry.subscription_mut(&client, &filter) else {
                continue;
            };
            subscriber.with_deadline = false;
            let served = subscriber.served;
            let reason = format!("flow {id} cannot keep the receiver's own deadline");
            self.registry
                .change_subscription(&client, &filter, served, reason);
            self.touch(&client);
        }
    }

    /// What a flow to so many receivers needs, but for its bandwidth.
    fn need(&self, receivers: usize, demand: &Demand, stated: &Requirements) -> Need {
        let service = self.settings.service;
        let copies = service.send_ns.saturating_mul(receivers as u64);
        let implied = stated.priority.map_or(u64::MAX, implied_deadline);
        Need {
            bandwidth: 0,
            cost_ns: service.receive_ns.saturating_add(copies),
            period_ns: demand.period_ns.max(1),
            window_ns: demand.deadline_ns.min(implied),
        }
    }

    /// Whether the owner of a flow may have it beside its others. Without rights of its own it has
    /// the share of any other, so that nobody takes what there is for all.
    fn check_quota(&self, asking: &FlowName, need: Need, quota: Quota) -> Result<(), String> {
        let has_share = quota == Quota::default();
        let quota = Quota {
            max_flows: quota.max_flows.or(Some(self.settings.max_user_flows)),
            ..quota
        };
        let owner = match has_share {
            true => Owner::of,
            false => Owner::named,
        };
        let Some((own, others)) = self.registry.owner_of(asking, owner) else {
            return Ok(());
        };
        let mut needs = vec![need];
        needs.extend(others.map(|record| {
            let receivers = record.receivers.len() + record.local.len();
            Need {
                bandwidth: record.bandwidth,
                ..self.need(receivers, &record.demand, &record.requirements)
            }
        }));
        let bandwidth = needs
            .iter()
            .fold(0, |sum: u64, need| sum.saturating_add(need.bandwidth));
        quota.check(own, needs.len() as u64, bandwidth)?;
        let share = u64::from(self.settings.max_user_load);
        if has_share && share < 100 {
            check_share(own, &mut needs, share)?;
        }
        Ok(())
    }

    /// Notes a flow that the gate has let in; its bound.
    fn accept(&mut self, name: &FlowName, request: &Request, demand: Demand, draft: Draft) -> u64 {
        let Request {
            requirements,
            sizes,
            ..
        } = *request;
        let bound = worst(&self.gate.bounds(&[&name.id]).concat());
        let assumed = assumed_bound(self.quick_bound(&name.id), draft.flow.deadline);
        let grant = demand.grant(&requirements, demand.priority, draft.tolerance(assumed));
        let known = self.registry.flow(&name.id);
        let fixed = known.is_some_and(|known| known.fixed);
        let record = Record {
            name: name.clone(),
            requirements,
            sizes,
            demand,
            bandwidth: draft.bandwidth(&demand),
            grant,
            assumed,
            admitted: Arc::new(draft.flow),
            receivers: draft.receivers.into(),
            local: draft.local.into(),
            fixed,
        };
        for receiver in record.receivers.iter().chain(&*record.local) {
            add_to(&mut self.received, receiver, &name.id);
        }
        if let Some(before) = self.registry.insert(record) {
            self.no_longer_received(&name.id, &before.receivers, &before.local);
        }
        self.touch(&name.client);
        self.widen();
        bound
    }

    /// Flows whose bound may have grown beyond what they are policed with are
    /// policed with more. It is about everybody, so it goes by quick bounds.
    fn widen(&mut self) {
        let flows = self.registry.flows();
        let ids: Vec<&str> = flows.keys().map(|id| &**id).collect();
        let bounds = self.gate.quick_bounds(&ids);
        let bounds = flows.iter().zip(bounds);
        let wider: Vec<(Arc<str>, u64)> = bounds
            .filter(|((_, record), bound)| *bound > record.assumed)
            .map(|((id, _), bound)| (id.clone(), bound))
            .collect();
        for (id, bound) in wider {
            if let Some(record) = self.registry.flow_mut(&id) {
                let assumed = assumed_bound(bound, record.demand.deadline_ns);
                record.grant.tolerance_ns += assumed - record.assumed;
                record.assumed = assumed;
            }
            self.notify_flow(&id, bound, false);
        }
    }

    fn quick_bound(&self, id: &str) -> u64 {
        self.gate.quick_bounds(&[id]).next().unwrap_or(0)
    }

    /// Admits flows as they are now in the place of what they were, all or
    /// none.
    pub(super) fn redraft(&mut self, ids: &[Arc<str>]) -> Result<(), Refused> {
        let mut drafts = Vec::with_capacity(ids.len());
        for id in ids {
            let Some(record) = self.registry.flow(id) else {
                continue;
            };
            let draft = self
                .draft(&record.name, &record.demand, true)
                .map_err(Refused)?;
            drafts.push((id.clone(), draft));
        }
        if drafts
            .iter()
            .all(|(id, draft)| self.is_same(id, &draft.flow))
        {
            return Ok(());
        }
        let names: Vec<&str> = drafts.iter().map(|(id, _)| &**id).collect();
        let flows: Vec<Flow> = drafts.iter().map(|(_, draft)| draft.flow.clone()).collect();
        self.gate.replace(&names, flows)?;
        let mut policed_anew = Vec::new();
        for (id, draft) in drafts {
            if let Some(record) = self.registry.flow_mut(&id) {
                record.bandwidth = draft.bandwidth(&record.demand);
                // The publisher may be nearer than it was.
                let tolerance = draft.tolerance(record.assumed);
                if std::mem::replace(&mut record.grant.tolerance_ns, tolerance) != tolerance {
                    policed_anew.push(id.clone());
                }
                record.admitted = Arc::new(draft.flow);
                for receiver in draft.receivers.iter().chain(&draft.local) {
                    add_to(&mut self.received, receiver, &id);
                }
                let receivers = std::mem::replace(&mut record.receivers, draft.receivers.into());
                let local = std::mem::replace(&mut record.local, draft.local.into());
                self.no_longer_received(&id, &receivers, &local);
            }
        }
        self.widen();
        for id in policed_anew {
            self.notify_flow(&id, self.quick_bound(&id), false);
        }
        Ok(())
    }

    /// Whether a flow is admitted exactly as it is.
    fn is_same(&self, id: &str, flow: &Flow) -> bool {
        let record = self.registry.flow(id);
        record.is_some_and(|record| *record.admitted == *flow)
    }

    /// A flow went to these receivers; which of them are none any more is noted.
    fn no_longer_received(&mut self, id: &str, receivers: &[Arc<str>], local: &[Arc<str>]) {
        for receiver in receivers.iter().chain(local) {
            let stays = self
                .registry
                .flow(id)
                .is_some_and(|it| it.goes_to(receiver));
            if !stays && let Some(flows) = self.received.get_mut(receiver) {
                flows.remove(id);
                if flows.is_empty() {
                    self.received.remove(receiver);
                }
            }
        }
    }

    /// Takes from flows what they no longer need. That cannot be refused; were
    /// it, they would keep what they have.
    pub(super) fn relax(&mut self, ids: Vec<Arc<str>>) {
        self.released = Some(<(Arc<str>, Arc<str>)>::default());
        let _ = self.redraft(&ids);
    }

    pub(super) fn drop_flow(&mut self, id: &str) -> Option<Record> {
        self.drop_flows(&[id]).pop()
    }

    /// Drops flows: together that is much less work than one after the other.
    pub(super) fn drop_flows(&mut self, ids: &[&str]) -> Vec<Record> {
        let mut dropped = Vec::with_capacity(ids.len());
        for id in ids {
            let Some(record) = self.registry.remove(id) else {
                continue;
            };
            self.no_longer_received(id, &record.receivers, &record.local);
            self.touch(&record.name.client);
            dropped.push(record);
        }
        if !dropped.is_empty() {
            let _ = self.gate.replace(ids, Vec::new());
            self.released = Some(<(Arc<str>, Arc<str>)>::default());
        }
        dropped
    }
}

/// Notes that a client receives a flow.
fn add_to(received: &mut BTreeMap<Arc<str>, BTreeSet<Arc<str>>>, client: &Arc<str>, id: &Arc<str>) {
    let flows = received.entry(client.clone()).or_default();
    flows.insert(id.clone());
}
