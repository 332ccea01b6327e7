//! One connection: a client on one side, the broker on the other.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;

use punctual_broker::{
    AdmissionRequest, Ask, Asker, ConnId, FlowDecision, FlowQuota, Nanos, Permissions,
    SubscriptionDecision, answers,
};
use punctual_codec::{Properties, PropertyBuf, Publish, QoS, Version, topic};
use punctual_model::{Answer, Requirements};

use super::config::{Config, Stats};
use super::flows::{Acks, Flow};
use super::hello::Hello;

/// Bytes for one side above which the other is not read.
pub(crate) const HIGH_WATER: usize = 1 << 20;
/// Bytes of our own for a client above which it is not read.
const MAX_OWN: usize = 64 * 1024;
/// Filters for news about flows that a client may have.
const MAX_NEWS: usize = 16;

/// What a relay needs of the proxy.
pub(crate) struct Context<'a> {
    pub(crate) config: &'a Config,
    pub(crate) stats: &'a mut Stats,
    pub(crate) asks: &'a mut Vec<AdmissionRequest>,
    pub(crate) now: Nanos,
}

/// One direction of a stream.
#[derive(Debug, Default)]
pub(crate) struct Stream {
    /// What cannot be cut yet, or has to wait.
    pub(crate) inbox: Vec<u8>,
    /// Bytes of the packet under way that are still to come.
    pub(crate) rest: usize,
    /// They go nowhere.
    pub(crate) skip: bool,
}

/// What a client waits for before the next packet is looked at.
#[derive(Debug)]
pub(crate) enum Wait {
    /// CONNACK.
    ConnAck,
    /// The decision about a flow.
    Flow { topic: Box<str>, until: Nanos },
    /// The decision about a SUBSCRIBE.
    Subscribe { until: Nanos },
    /// Until its flow may send again.
    Shape { until: Nanos },
}

/// How far a connection is.
#[derive(Debug)]
pub(crate) enum Stage {
    /// Before CONNECT.
    First,
    /// Before CONNACK.
    Connecting(Box<Hello>),
    /// Connected.
    Open(Box<Peer>),
    /// What goes over it is not looked at, or not any more.
    Foreign(Option<Box<Peer>>),
}

/// A SUBSCRIBE that has been sent to the broker.
#[derive(Debug)]
pub(crate) struct Subscribing {
    /// All filters of the client's packet; whether we refuse it.
    pub(crate) filters: Vec<(Box<str>, bool)>,
    pub(crate) answer: Option<Answer>,
}

/// A client that is connected.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) version: Version,
    pub(crate) client_id: Arc<str>,
    pub(crate) username: Option<Arc<str>>,
    pub(crate) session: u64,
    pub(crate) session_expiry: u32,
    pub(crate) default: Requirements,
    pub(crate) problem_information: bool,
    pub(crate) max_packet: u32,
    pub(crate) permissions: Option<Arc<dyn Permissions>>,
    /// Whether its listener refuses what is rejected, if that is stated.
    pub(crate) refuse: Option<bool>,
    /// Topics by alias.
    pub(crate) aliases: Vec<Option<Box<str>>>,
    pub(crate) flows: HashMap<Box<str>, Flow, foldhash::fast::RandomState>,
    pub(crate) acks: Acks,
    /// The SUBSCRIBE that waits has been decided about.
    pub(crate) decided: Option<SubscriptionDecision>,
    pub(crate) subscribing: HashMap<u16, Subscribing>,
    pub(crate) unsubscribing: HashMap<u16, Vec<Box<str>>>,
    /// Its filters for news about flows.
    pub(crate) news: Vec<Box<str>>,
}

impl Peer {
    /// Whether acknowledgements may carry answers.
    pub(crate) fn takes_answers(&self) -> bool {
        self.version.is_v5() && self.problem_information
    }

    /// Whether its messages on a topic are refused if what is asked for them is
    /// rejected.
    pub(crate) fn refuses(&self, config: &Config, topic: &str) -> bool {
        let rights = self.permissions.as_ref().and_then(|p| p.refuses(topic));
        rights.or(self.refuse).unwrap_or(config.refuse)
    }

    /// The properties of an acknowledgement with an answer; `None` if it does
    /// not fit.
    pub(crate) fn with_answer(
        &self,
        properties: Properties<'_>,
        answer: &Answer,
        rest: usize,
    ) -> Option<PropertyBuf> {
        let mut all = PropertyBuf::new();
        for property in properties.iter() {
            all.push(property);
        }
        let rest = rest + properties.as_bytes().len();
        answers::put_answer(&mut all, answer, rest, self.max_packet).then_some(all)
    }

    /// It subscribes to news about flows.
    pub(crate) fn wants_news(&mut self, filter: &str) {
        if filter.starts_with("$SYS/rt/")
            && self.news.len() < MAX_NEWS
            && !self.news.iter().any(|known| **known == *filter)
        {
            self.news.push(filter.into());
        }
    }
}

/// A connection.
#[derive(Debug)]
pub(crate) struct Relay {
    pub(crate) id: ConnId,
    pub(crate) address: Option<SocketAddr>,
    pub(crate) local: Option<SocketAddr>,
    pub(crate) listener: u16,
    pub(crate) up: Stream,
    pub(crate) down: Stream,
    pub(crate) to_broker: Vec<u8>,
    pub(crate) to_client: Vec<u8>,
    /// Packets of our own that wait until one of the broker's is complete.
    own: Vec<u8>,
    pub(crate) wait: Option<Wait>,
    pub(crate) stage: Stage,
}

impl Relay {
    pub(crate) fn new(
        id: ConnId,
        address: Option<SocketAddr>,
        local: Option<SocketAddr>,
        listener: u16,
    ) -> Self {
        Self {
            id,
            address,
            local,
            listener,
            up: Stream::default(),
            down: Stream::default(),
            to_broker: Vec::new(),
            to_client: Vec::new(),
            own: Vec::new(),
            wait: None,
            stage: Stage::First,
        }
    }

    /// Whether bytes of the client are taken.
    pub(crate) fn reads_client(&self) -> bool {
        self.wait.is_none() && self.to_broker.len() < HIGH_WATER && self.own.len() < MAX_OWN
    }

    /// Whether bytes of the broker are taken.
    pub(crate) fn reads_broker(&self) -> bool {
        self.to_client.len() < HIGH_WATER
    }

    pub(crate) fn peer(&mut self) -> Option<&mut Peer> {
        match &mut self.stage {
            Stage::Open(peer) => Some(peer),
            _ => None,
        }
    }

    /// Sends a request or news to whoever admits flows.
    pub(crate) fn ask(&self, context: &mut Context<'_>, ask: Ask) {
        let Stage::Open(peer) = &self.stage else {
            return;
        };
        let quota = peer.permissions.as_ref().map(|rights| rights.quota());
        let asker = Asker {
            client_id: peer.client_id.clone(),
            session: peer.session,
            username: peer.username.clone(),
            // Only the broker knows.
            is_proven: false,
            peer: self.address,
            local: self.local,
            listener: Some(self.listener),
            quota: quota.unwrap_or(FlowQuota::default()),
        };
        context.asks.push(AdmissionRequest { asker, ask });
    }

    /// A packet of our own for the client: between two of the broker's.
    pub(crate) fn insert(&mut self, packet: &[u8]) {
        match self.down.rest {
            0 => self.to_client.extend_from_slice(packet),
            _ => self.own.extend_from_slice(packet),
        }
    }

    /// A packet of the broker's is complete.
    pub(crate) fn between_packets(&mut self) {
        if !self.own.is_empty() {
            self.to_client.append(&mut self.own);
        }
    }

    /// What goes over this connection is not MQTT as we know it: from now on
    /// everything passes.
    pub(crate) fn is_foreign(&mut self, stats: &mut Stats) {
        stats.foreign += 1;
        if let Some(peer) = self.peer() {
            let held: Vec<u8> = peer.acks.give_up().flatten().collect();
            self.insert(&held);
        }
        self.wait = None;
        self.stage = match std::mem::replace(&mut self.stage, Stage::First) {
            Stage::Open(peer) => Stage::Foreign(Some(peer)),
            _ => Stage::Foreign(None),
        };
        self.to_broker.append(&mut self.up.inbox);
        self.to_client.append(&mut self.down.inbox);
    }

    /// What becomes of a flow. Returns the answer that is to be published under `$SYS`.
    pub(crate) fn decide_flow(
        &mut self,
        context: &mut Context<'_>,
        about: &str,
        requirements: Requirements,
        decision: Option<FlowDecision>,
        notify: bool,
    ) -> Option<Answer> {
        let peer = self.peer()?;
        let Some(mut decision) = decision else {
            peer.flows.remove(about);
            peer.acks.decided(about, None);
            self.flow_is_decided(context, about);
            return None;
        };
        if !peer.flows.contains_key(about) && peer.flows.len() >= context.config.max_flows {
            return None;
        }
        let refuse = peer.refuses(context.config, about);
        let flow = peer
            .flows
            .entry(about.into())
            .or_insert_with(|| Flow::new(requirements));
        decision.answer = decision.answer.under(context.config.conditions);
        let answer = answers::as_carried(&decision.answer, refuse);
        let asked = flow.state.decide(requirements, decision, context.now)?;
        flow.overdue = false;
        flow.state.told = peer.acks.decided(about, Some(&answer)) || flow.state.told && !notify;
        self.flow_is_decided(context, about);
        (asked || notify).then_some(answer)
    }

    fn flow_is_decided(&mut self, context: &mut Context<'_>, about: &str) {
        self.release_acks();
        if matches!(&self.wait, Some(Wait::Flow { topic, .. }) if **topic == *about) {
            self.wait = None;
            self.resume(context);
        }
    }

    /// What becomes of the SUBSCRIBE that waits.
    pub(crate) fn decide_subscription(
        &mut self,
        context: &mut Context<'_>,
        decision: SubscriptionDecision,
    ) -> bool {
        let waits = matches!(self.wait, Some(Wait::Subscribe { .. }));
        let Some(peer) = self.peer().filter(|_| waits) else {
            return false;
        };
        peer.decided = Some(SubscriptionDecision {
            answer: decision
                .answer
                .map(|answer| answer.under(context.config.conditions)),
            ..decision
        });
        self.wait = None;
        self.resume(context);
        true
    }

    /// Notifies the client of news about flows, if it wants them and keeps up.
    pub(crate) fn notify(&mut self, news: &answers::Notification) {
        let crowded = self.to_client.len() + self.own.len() >= MAX_OWN;
        let Some(peer) = self.peer().filter(|_| !crowded) else {
            return;
        };
        let (version, max_packet) = (peer.version, peer.max_packet as usize);
        let mut filters = peer.news.iter();
        if !filters.any(|filter| topic::matches(filter, &news.topic)) {
            return;
        }
        let publish = Publish {
            dup: false,
            qos: QoS::AtMostOnce,
            retain: false,
            topic: &news.topic,
            packet_id: 0,
            properties: news.properties(),
            payload: news.text.as_bytes(),
        };
        let size = 10 + news.topic.len() + news.text.len() + news.properties().as_bytes().len();
        let mut packet = Vec::with_capacity(size);
        if size <= max_packet && publish.encode(version, &mut packet).is_ok() {
            self.insert(&packet);
        }
    }

    /// When something is to be done without an event.
    pub(crate) fn deadline(&self) -> Option<Nanos> {
        let waits = match &self.wait {
            Some(Wait::Flow { until, .. } | Wait::Subscribe { until } | Wait::Shape { until }) => {
                Some(*until)
            }
            Some(Wait::ConnAck) | None => None,
        };
        let acks = match &self.stage {
            Stage::Open(peer) => peer.acks.deadline(),
            _ => None,
        };
        [waits, acks].into_iter().flatten().min()
    }

    /// Nothing is waited for longer than it may be.
    pub(crate) fn tick(&mut self, context: &mut Context<'_>) {
        let now = context.now;
        let timeout = context.config.decision_timeout;
        let mut overdue = match self.peer() {
            Some(peer) => peer.acks.overdue(now),
            None => return,
        };
        let mut go_on = false;
        match &self.wait {
            Some(Wait::Flow { topic, until }) if *until <= now => {
                overdue.push(topic.clone());
                go_on = true;
            }
            Some(Wait::Subscribe { until }) if *until <= now => {
                context.stats.undecided += 1;
                let decision = SubscriptionDecision {
                    verdicts: Vec::new(),
                    answer: Some(undecided(timeout)),
                };
                if let Some(peer) = self.peer() {
                    peer.decided = Some(decision);
                }
                go_on = true;
            }
            Some(Wait::Shape { until }) if *until <= now => go_on = true,
            _ => {}
        }
        if let Some(peer) = self.peer() {
            for topic in overdue {
                if let Some(flow) = peer.flows.get_mut(&topic).filter(|flow| !flow.overdue) {
                    context.stats.undecided += 1;
                    flow.overdue = true;
                }
                peer.acks.decided(&topic, Some(&undecided(timeout)));
            }
        }
        self.release_acks();
        if go_on {
            self.wait = None;
            self.resume(context);
        }
    }
}

fn undecided(timeout: Nanos) -> Answer {
    answers::best_effort(format!(
        "no decision within {} ms: it is carried as well as can be, and told when it is decided",
        timeout.0 / 1_000_000
    ))
}
