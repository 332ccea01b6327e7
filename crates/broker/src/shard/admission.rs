//! Flows of publishers: when to request admission for them, how to carry their messages, and the
//! effects of decisions.

use punctual_codec::QoS;
use punctual_model::{Answer, Conditions, Conformity, Requirements};

use super::{Shard, common};
use crate::admission::{
    Admission, AdmissionRequest, Ask, Asker, Flow, FlowDecision, FlowInfo, Policing,
    SubscriptionDecision,
};
use crate::answers::{Notification, as_carried, best_effort, to_receiver, violation};
use crate::base::connection::ConnId;
use crate::base::durability::Durability;
use crate::base::notes::UrgencyTrust;
use crate::egress::Stamp;
use crate::hub::{Conn, Hub, Output};
use crate::index::subscriber::Subscriber;
use crate::shard::stated::{StatedRequirements, UrgencyDecision, requirements_of};
use crate::tasks::Task;
use crate::timers::Timer;
use crate::watch::Watched;
use crate::{Message, Nanos};

/// Whether a publication has to wait before it is handled: for a decision about its flow, or until
/// its flow may send again. Its connection is not read meanwhile, and the publication is handled
/// again afterwards.
pub(super) fn must_wait(
    hub: &mut Hub,
    id: ConnId,
    stated: &StatedRequirements<'_>,
    qos: QoS,
    now: Nanos,
) -> bool {
    let Some(admission) = hub.config.admission else {
        return false;
    };
    let Some(topic) = std::str::from_utf8(stated.topic).ok() else {
        return false;
    };
    let asked = requirements_of(hub, id, stated);
    let Some(conn) = hub.outlets.conns.get_mut(id.slot) else {
        return false;
    };
    let slot = conn.session;
    let Some(session) = hub.sessions.get_mut(slot) else {
        return false;
    };
    let known = session.flows.as_deref_mut().and_then(|f| f.get_mut(topic));
    let held = known.as_ref().and_then(|flow| flow.state.holds());
    let held = held.filter(|_| stated.trust != UrgencyTrust::Nothing);
    let Some(wanted) = asked.or(held) else {
        return false;
    };
    let size = stated.sizes.message;
    if let Some(flow) = known {
        if flow.state.pending && flow.state.requirements == wanted {
            // Admission was requested by an earlier message with QoS 0.
            let waits = qos != QoS::AtMostOnce;
            conn.paused += u32::from(waits && flow.lets_wait(id));
            return waits;
        }
        if !flow.state.is_new(wanted, size) {
            if admission.policing == Policing::Shape
                && let Some(grant) = flow.state.grant().copied()
                && let Conformity::TooEarly(until) =
                    flow.state.meter.judge(&grant, size.payload, now.0)
            {
                flow.violations += 1;
                if let Some(watch) = &flow.watch {
                    watch.violated();
                }
                conn.paused += 1;
                hub.stats.flow_violations += 1;
                hub.stats.flow_messages_shaped += 1;
                let timer = Timer::Shape {
                    slot: id.slot,
                    generation: id.generation,
                };
                hub.timers.arm(Nanos(until), timer);
                return true;
            }
            return false;
        }
    }
    let flows = session.flows.get_or_insert_default();
    if !flows.contains_key(topic) && flows.len() >= admission.max_flows_per_session {
        return false;
    }
    let flow = flows
        .entry(topic.into())
        .or_insert_with(|| Flow::new(wanted));
    let ask = flow.state.ask(topic, wanted, size, qos);
    let waits = qos != QoS::AtMostOnce;
    conn.states = true;
    conn.paused += u32::from(waits && flow.lets_wait(id));
    hub.ask(slot, ask);
    waits
}

/// The decision how a message is carried where real time must be admitted: as its flow, if it has
/// one, else with the stamp `plain`.
pub(super) fn carry(
    hub: &mut Hub,
    id: ConnId,
    admission: Admission,
    stated: &StatedRequirements<'_>,
    plain: Stamp,
    real_time: bool,
    now: Nanos,
) -> UrgencyDecision {
    let topic = std::str::from_utf8(stated.topic).unwrap_or_default();
    let sizes = stated.sizes;
    let conn = hub.outlets.conns.get_mut(id.slot);
    let flow = conn
        .as_ref()
        .and_then(|conn| hub.sessions.get_mut(conn.session)?.flows.as_deref_mut())
        .and_then(|flows| flows.get_mut(topic));
    let Some(flow) = flow else {
        hub.stats.flow_messages_best_effort += u64::from(real_time);
        return UrgencyDecision::Go(plain, None, real_time.then(|| too_many(admission)));
    };
    let is_granted = flow.state.grant().is_some();
    let is_of_it = is_granted && stated.trust != UrgencyTrust::Nothing;
    if !real_time && !is_of_it {
        return UrgencyDecision::Go(plain, None, None);
    }
    flow.messages += 1;
    let rejected = flow.state.rejection().is_some();
    let refuse = rejected && refuses(admission, conn.as_deref(), topic);
    let leaves = common::first_of(&hub.directory, stated.matched);
    if is_granted && leaves != flow.leaves.as_ref() {
        flow.leaves = leaves.cloned();
        flow.state.told = false;
        if let (Some(conn), false) = (&conn, std::mem::replace(&mut flow.to_be_told, true)) {
            hub.work.tasks.push(Task::Tell {
                slot: conn.session,
                topic: topic.into(),
            });
        }
    }
    let answer = flow.state.untold();
    let answer = answer.map(|answer| as_carried(&flow.as_promised(answer), refuse));
    flow.state.told |= answer.is_some();
    if let (Some(answer), true) = (flow.state.rejection(), refuse) {
        hub.stats.flow_messages_refused += 1;
        return UrgencyDecision::Refuse(answer.clone());
    }
    let Some(grant) = flow.state.grant().copied() else {
        hub.stats.flow_messages_best_effort += 1;
        return UrgencyDecision::Go(plain, None, answer);
    };
    let conformity = flow.state.meter.judge(&grant, sizes.message.payload, now.0);
    if conformity != Conformity::Conforms {
        // Under `Shape`, a message that was too early has waited, and conforms now.
        flow.violations += 1;
        if let Some(watch) = &flow.watch {
            watch.violated();
        }
        hub.stats.flow_violations += 1;
        match admission.policing {
            Policing::Off => {}
            Policing::Demote | Policing::Shape => {
                hub.stats.flow_messages_demoted += 1;
                return UrgencyDecision::Go(plain, None, answer);
            }
            Policing::Drop => {
                hub.stats.flow_messages_dropped += 1;
                return UrgencyDecision::Refuse(violation(conformity));
            }
        }
    }
    flow.state.meter.spend(&grant, sizes.packet, now.0);
    if let Some(conn) = conn {
        conn.promised = Some(grant.priority);
    }
    hub.stats.flow_messages_admitted += 1;
    let asked = &flow.state.requirements;
    let deadline = asked.deadline.or(asked.period);
    let deadline = deadline.map(|d| Nanos(u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)));
    let late = asked.late == Some(punctual_model::Late::Drop);
    // The deadline counts from the arrival of the message, whatever else was done since then.
    let stamp = Stamp::admitted(grant.priority, deadline, late, hub.arrived.min(now));
    UrgencyDecision::Go(stamp, flow.watch.as_ref().map(Watched::numbers), answer)
}

/// Whether messages on a topic are refused if their requirements are rejected: by the publisher's
/// rights, else by its listener, else by the configuration.
fn refuses(admission: Admission, conn: Option<&Conn>, topic: &str) -> bool {
    let own = |conn: &Conn| {
        let rights = conn.permissions.as_ref().and_then(|p| p.refuses(topic));
        rights.or(conn.meta.refuse)
    };
    conn.and_then(own).unwrap_or(admission.refuse)
}

fn too_many(admission: Admission) -> Answer {
    let most = admission.max_flows_per_session;
    best_effort(format!(
        "the session has {most} flows, as many as it may (admission.max_flows_per_session)"
    ))
}

impl Hub {
    /// The conditions that the bounds assume and the configuration does not guarantee.
    fn conditions(&self) -> Conditions {
        let admission = self.config.admission;
        admission.map_or(Conditions::NONE, |admission| admission.conditions)
    }

    /// Sends a request or notification to the admission service.
    pub(crate) fn ask(&mut self, slot: u32, ask: Ask) {
        let Some(session) = self.sessions.get_mut(slot) else {
            return;
        };
        session.asked = true;
        let conn = session.conn.and_then(|slot| self.outlets.conns.get(slot));
        let permissions = conn.and_then(|conn| conn.permissions.as_ref());
        let asker = Asker {
            quota: permissions.map_or_else(Default::default, |p| p.quota()),
            client_id: session.handle.client_id.clone(),
            session: session.handle.number,
            username: session.username.clone(),
            is_proven: session.username.is_some()
                && conn.is_some_and(|conn| conn.is_proven(&self.config)),
            peer: conn.and_then(|conn| conn.meta.peer()),
            local: conn.and_then(|conn| conn.meta.local()),
            listener: conn.map(|conn| conn.meta.listener),
        };
        self.outlets
            .outputs
            .push(Output::Admission(Box::new(AdmissionRequest { asker, ask })));
    }
}

impl Shard {
    /// Applies a decision about a flow of a session, requested or not; without a decision the flow
    /// no longer exists. With `tell`, or if the decision was requested, the client is notified on
    /// `$SYS/rt/clients/...`, and by the next acknowledgement.
    #[allow(
        clippy::too_many_arguments,
        reason = "the parts of one decision, used once"
    )]
    pub fn decide_flow(
        &mut self,
        client_id: &str,
        session: u64,
        topic: &str,
        requirements: Requirements,
        decision: Option<FlowDecision>,
        tell: bool,
        now: Nanos,
    ) {
        let hub = &mut self.hub;
        let Some(slot) = hub.sessions.named(client_id) else {
            return;
        };
        let conditions = hub.conditions();
        let leaves = common::first_of(&hub.directory, &hub.directory.lookup(topic, 0).1).cloned();
        let Some(known) = hub.sessions.get_mut(slot) else {
            return;
        };
        if session != 0 && known.handle.number != session {
            return;
        }
        let conn = known.conn;
        let flows = known.flows.get_or_insert_default();
        let Some(mut decision) = decision else {
            let gone = flows.remove(topic);
            if let Some(waiting) = gone.and_then(|flow| flow.waiting) {
                hub.resume(vec![waiting]);
            }
            return;
        };
        let flow = flows
            .entry(topic.into())
            .or_insert_with(|| Flow::new(requirements));
        decision.answer = decision.answer.under(conditions);
        flow.leaves = leaves;
        let answer = flow.as_promised(&decision.answer);
        let granted = decision.grant.as_ref().map(|grant| grant.priority);
        let Some(asked) = flow.state.decide(requirements, decision, now) else {
            return;
        };
        flow.watch(&hub.directory.watches, || format!("{topic}@{client_id}"));
        flow.state.told &= !tell;
        let waiting = flow.waiting.take();
        if let Some(conn) = conn.and_then(|slot| hub.outlets.conns.get_mut(slot)) {
            conn.states = true;
            conn.promised = conn.promised.max(granted);
        }
        if let Some(waiting) = waiting {
            hub.resume(vec![waiting]);
        }
        if (asked || tell)
            && let Some(admission) = hub.config.admission
        {
            let conn = conn.and_then(|slot| hub.outlets.conns.get(slot));
            let answer = as_carried(&answer, refuses(admission, conn, topic));
            self.publish_answer(client_id, topic, &answer, now);
        }
    }

    /// Notifies a publisher of the current state of its flow.
    pub(super) fn notify_flow_publisher(&mut self, slot: u32, topic: &str, now: Nanos) {
        let hub = &mut self.hub;
        let Some(session) = hub.sessions.get_mut(slot) else {
            return;
        };
        let (client_id, conn) = (session.handle.client_id.clone(), session.conn);
        let flow = session
            .flows
            .as_deref_mut()
            .and_then(|it| it.get_mut(topic));
        let Some(flow) = flow else {
            return;
        };
        flow.to_be_told = false;
        let decided = flow.state.decision.as_ref();
        let answer = decided.map(|decision| flow.as_promised(&decision.answer));
        if let (Some(answer), Some(admission)) = (answer, hub.config.admission)
            && answer != Answer::default()
        {
            let conn = conn.and_then(|slot| hub.outlets.conns.get(slot));
            let answer = as_carried(&answer, refuses(admission, conn, topic));
            self.publish_answer(&client_id, topic, &answer, now);
        }
    }

    /// Resumes a client that has connected and waits for the admission service.
    pub fn go_on(&mut self, conn: ConnId) {
        self.hub.resume(vec![conn]);
    }

    /// Applies the decision about a SUBSCRIBE that waits.
    ///
    /// # Errors
    /// Returns the decision if the connection is gone.
    pub fn decide_subscription(
        &mut self,
        conn: ConnId,
        decision: SubscriptionDecision,
    ) -> Result<(), SubscriptionDecision> {
        let conditions = self.hub.conditions();
        let Some(waiting) = self.hub.outlets.conn(conn) else {
            return Err(decision);
        };
        waiting.extra().subscribed = Some(SubscriptionDecision {
            answer: decision.answer.map(|answer| answer.under(conditions)),
            ..decision
        });
        self.hub.resume(vec![conn]);
        Ok(())
    }

    /// Whether a session has a subscription to that filter.
    pub fn is_subscribed(&self, client_id: &str, filter: &str) -> bool {
        let slot = self.hub.sessions.named(client_id);
        let session = slot.and_then(|slot| self.hub.sessions.get(slot));
        session.is_some_and(|session| session.subscriptions.find(filter).is_some())
    }

    /// Applies a change of the service that a receiver gets.
    pub fn decide_receiver(
        &mut self,
        client_id: &str,
        session: u64,
        filter: &str,
        served: bool,
        reason: &str,
        now: Nanos,
    ) {
        let hub = &mut self.hub;
        let Some(known) = hub
            .sessions
            .named(client_id)
            .and_then(|slot| hub.sessions.get(slot))
            .filter(|known| session == 0 || known.handle.number == session)
        else {
            return;
        };
        let own = known.subscriptions.find(filter);
        let Some(own) = own else {
            return;
        };
        let subscriber = Subscriber {
            session: known.handle.clone(),
            options: own.options,
            id: own.id,
            demoted: !served,
            numbered: own.numbered,
        };
        let (index, generations) = (&hub.directory, &hub.directory.generations);
        index.index_mut().subscribe(filter, subscriber, generations);
        let answer = to_receiver(served, reason).under(hub.conditions());
        self.publish_answer(client_id, filter, &answer, now);
    }

    /// A flow of a session of this shard.
    pub fn flow(&self, client_id: &str, topic: &str) -> Option<FlowInfo> {
        let slot = self.hub.sessions.named(client_id)?;
        let session = self.hub.sessions.get(slot)?;
        let flow = session.flows.as_deref()?.get(topic)?;
        Some(FlowInfo {
            answer: flow
                .state
                .decision
                .as_ref()
                .map(|decision| flow.as_promised(&decision.answer)),
            messages: flow.messages,
            violations: flow.violations,
            seen: flow.watch.as_ref().map(|watch| watch.sight()),
        })
    }

    /// Publishes the answer to a client's request on a topic of its own.
    fn publish_answer(&mut self, client_id: &str, about: &str, answer: &Answer, now: Nanos) {
        let notification = Notification::new(client_id, about, answer);
        let message = Message::new(
            notification.topic.as_bytes(),
            notification.properties(),
            notification.text.as_bytes(),
            QoS::AtMostOnce,
            false,
            now,
            0,
        );
        self.publish_message(&message, Durability::None, now);
    }
}
