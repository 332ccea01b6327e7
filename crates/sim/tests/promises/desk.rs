//! A broker's connection to the manager in virtual time: it forwards the shards' requests, and
//! checks every decision.

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};
use std::rc::Rc;
use std::sync::Arc;

use punctual_analysis::analyze;
use punctual_broker::{AdmissionRequest, FilterVerdict, FlowInfo, Shard};
use punctual_manager::{Change, Decision, FlowView, Manager, Reply, Settings, State};
use punctual_model::network::Flow;
use punctual_model::wire::Transport;
use punctual_model::{Answer, Requirements, Status};
use punctual_sim::ShardCall;

/// The answer about a flow that a shard has received.
#[derive(Debug)]
pub(crate) struct FlowAnswer {
    pub(crate) client: Arc<str>,
    pub(crate) topic: Arc<str>,
    pub(crate) answer: Answer,
}

/// The decision on a topic filter.
#[derive(Debug)]
pub(crate) struct Verdicted {
    pub(crate) client: Arc<str>,
    pub(crate) filter: Box<str>,
    pub(crate) verdict: FilterVerdict,
    pub(crate) answer: Option<Answer>,
}

pub(crate) struct Office {
    pub(crate) manager: Manager,
    shards: u16,
    checked: Vec<Flow>,
    /// Answers in the order in which shards have received them.
    pub(crate) told: Vec<FlowAnswer>,
    pub(crate) verdicts: Vec<Verdicted>,
    pub(crate) decisions: u64,
    /// For each flow its session, the admitted requirements, and the number of violations up to
    /// their admission: if a change is rejected, the requirements admitted before remain, and the
    /// publisher continues to send as it has requested.
    declared: HashMap<FlowOf, (u64, Requirements, u64)>,
}

/// Client and topic.
type FlowOf = (Arc<str>, Arc<str>);

/// The office, shared with the world, which sends the shards' requests to it.
pub(crate) type Shared = Rc<RefCell<Office>>;

impl Office {
    pub(crate) fn open(settings: Settings, shards: u16) -> Shared {
        Rc::new(RefCell::new(Self {
            manager: Manager::new(settings).unwrap(),
            shards,
            checked: Vec::new(),
            told: Vec::new(),
            verdicts: Vec::new(),
            decisions: 0,
            declared: HashMap::new(),
        }))
    }

    /// Number of violations of a flow since its current requirements were admitted.
    pub(crate) fn violations(&self, client: &str, topic: &str, flow: &FlowInfo) -> u64 {
        let declared = self.declared.get(&(client.into(), topic.into()));
        let before = declared.map_or(0, |(.., before)| *before);
        flow.violations.saturating_sub(before)
    }

    /// Creates a manager with the stored state, as after a restart. Returns descriptions of the
    /// flows that could not be admitted again.
    pub(crate) fn reopen(&mut self, settings: Settings, state: &State, shards: u16) -> Vec<String> {
        self.manager = Manager::new(settings).unwrap();
        self.shards = shards;
        self.told.clear();
        self.verdicts.clear();
        self.declared.clear();
        let lost = self.manager.restore(state);
        self.check();
        lost
    }

    /// In an analysis from scratch all flows meet their deadlines, and no promised bound is below
    /// the one of that analysis.
    pub(crate) fn check(&mut self) {
        let network = self.manager.network();
        if network.flows == self.checked {
            return;
        }
        assert_eq!(network.flows.len(), self.manager.len());
        let bounds = analyze(network);
        let views = self.manager.views(None, usize::MAX).into_iter();
        let views: HashMap<String, FlowView> = views.map(|v| (v.id.clone(), v)).collect();
        for (flow, bounds) in network.flows.iter().zip(bounds.flows) {
            let view = views.get(&flow.id).expect("an admitted flow");
            for bounds in bounds {
                let best = bounds.best.unwrap_or(u64::MAX);
                assert!(best <= flow.deadline, "{} may be late: {best} ns", flow.id);
                assert!(
                    best <= view.bound_ns,
                    "{} was promised {} ns",
                    flow.id,
                    view.bound_ns
                );
            }
            assert!(view.bound_ns <= view.deadline_ns, "{view:?}");
        }
        let names: BTreeSet<_> = network.flows.iter().map(|flow| &flow.id).collect();
        assert_eq!(names.len(), network.flows.len());
        self.checked = network.flows.clone();
    }
}

/// Handles a shard's request: first the consequences for other flows, then the answer.
pub(crate) fn decide(
    shared: &Shared,
    shard: u16,
    request: AdmissionRequest,
) -> Vec<(u16, ShardCall)> {
    let mut office = shared.borrow_mut();
    office.decisions += 1;
    let reply = office.manager.answer(request, Transport::Tcp);
    office.check();
    let changes = office.manager.take_changes();
    let shards = office.shards;
    drop(office);
    let mut calls = Vec::new();
    for change in changes {
        for shard in 0..shards {
            calls.push((shard, call_of(shared, change.clone())));
        }
    }
    match reply {
        None => {}
        Some(Reply::GoOn { conn }) => {
            calls.push((shard, ShardCall::new(move |shard, _| shard.go_on(conn))));
        }
        Some(Reply::Flow {
            client,
            topic,
            requirements,
            decision,
        }) => {
            let change = Change::Flow {
                client: client.id,
                session: client.session,
                topic,
                requirements,
                decision: Some(decision),
                notify: false,
            };
            calls.push((shard, call_of(shared, change)));
        }
        Some(Reply::Subscription {
            conn,
            client,
            decision,
        }) => {
            let shared = shared.clone();
            let call = ShardCall::new(move |shard, _| {
                let filters: Vec<_> = decision.verdicts.clone();
                let answer = decision.answer.clone();
                let made = shard.decide_subscription(conn, decision).is_ok();
                let mut office = shared.borrow_mut();
                let gone = filters.iter().map(|(filter, _)| filter);
                let gone: Vec<_> = gone
                    .filter(|filter| !made && !shard.is_subscribed(&client.id, filter))
                    .collect();
                office
                    .manager
                    .unsubscribe(&client.id, client.session, &gone);
                office
                    .verdicts
                    .extend(filters.iter().map(|(filter, verdict)| Verdicted {
                        client: client.id.clone(),
                        filter: filter.clone(),
                        verdict: *verdict,
                        answer: answer.clone(),
                    }));
            });
            calls.push((shard, call));
        }
    }
    calls
}

/// A change on its way to a shard.
pub(crate) fn call_of(shared: &Shared, change: Change) -> ShardCall {
    let shared = shared.clone();
    ShardCall::new(move |shard, now| apply(&shared, change, shard, now))
}

/// Applies a change to a shard.
fn apply(shared: &Shared, change: Change, shard: &mut Shard, now: punctual_broker::Nanos) {
    match change {
        Change::Flow {
            client,
            session,
            topic,
            requirements,
            decision,
            notify,
        } => {
            if let Some(Decision { answer, .. }) = &decision {
                shared.borrow_mut().told.push(FlowAnswer {
                    client: client.clone(),
                    topic: topic.clone(),
                    answer: answer.clone(),
                });
            }
            let answer = decision.as_ref().map(|decision| &decision.answer);
            let admitted = answer.is_some_and(|answer| answer.status == Some(Status::Admitted));
            let decision = decision.map(Into::into);
            shard.decide_flow(
                &client,
                session,
                &topic,
                requirements,
                decision,
                notify,
                now,
            );
            if let Some(flow) = shard.flow(&client, &topic).filter(|_| admitted) {
                let declared = &mut shared.borrow_mut().declared;
                let now = (session, requirements, flow.violations);
                let known = declared.entry((client, topic)).or_insert(now);
                if (known.0, known.1) != (session, requirements) {
                    *known = now;
                }
            }
        }
        Change::Subscription {
            client,
            session,
            filter,
            served,
            reason,
        } => {
            shard.decide_receiver(&client, session, &filter, served, &reason, now);
        }
    }
}

/// The answer that clients receive: if rejected messages are forwarded all the same, their status
/// is best effort.
pub(crate) fn as_carried(answer: &Answer, refuse: bool) -> Answer {
    let mut answer = answer.clone();
    if answer.status == Some(Status::Rejected) && !refuse {
        answer.status = Some(Status::BestEffort);
    }
    answer
}
