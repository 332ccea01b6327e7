//! The manager as a transparent proxy before any MQTT broker.
//!
//! A [`Proxy`] stands between the connections of clients and those to a broker.
//! Its events ([`Proxy::open`], [`Proxy::client_sent`], [`Proxy::broker_sent`],
//! [`Proxy::closed`], [`Proxy::tick`]) result in bytes for both sides and in
//! requests for whoever admits flows ([`Proxy::take_asks`]), who answers with
//! [`Proxy::decide_flow`], [`Proxy::decide_subscription`] and
//! [`Proxy::decide_receiver`]. Requirements are read from CONNECT, PUBLISH and
//! SUBSCRIBE of MQTT 5, and from rules for everything else. An acknowledgement
//! waits for the decision, at most for [`Config::decision_timeout`], and carries
//! the answer.
//!
//! Invariants: a packet that states no requirement passes byte for byte and in
//! order, in both directions, and so does a stream that is not MQTT; payloads are
//! never kept; each queue has a bound. Pure: no socket, clock, thread or random
//! source.
//!
//! Sources: RT-MQTT's network manager; OASIS MQTT 5.0 and 3.1.1.

mod config;
mod cut;
mod down;
mod flows;
mod hello;
mod relay;
#[cfg(test)]
mod tests;
mod up;

use std::collections::{BTreeSet, HashMap};
use std::net::SocketAddr;
use std::sync::Arc;

use punctual_broker::{
    AdmissionRequest, Ask, Asker, ConnId, FlowDecision, FlowQuota, Nanos, SubscriptionDecision,
    answers,
};
use punctual_model::{Answer, Requirements};

pub use self::config::{Config, Stats};
use self::down::Welcome;
use self::flows::Acks;
use self::relay::{Context, Peer, Relay, Stage};

#[derive(Debug)]
struct Session {
    number: u64,
    username: Option<Arc<str>>,
    state: Presence,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Presence {
    Connected(u64),
    Gone { until: Nanos },
}

/// The proxy: see the module.
#[derive(Debug)]
pub struct Proxy {
    config: Config,
    stats: Stats,
    relays: HashMap<u64, Relay, foldhash::fast::RandomState>,
    opened: u64,
    sessions: HashMap<Arc<str>, Session, foldhash::fast::RandomState>,
    numbered: u64,
    expiries: BTreeSet<(Nanos, Arc<str>)>,
    /// When each connection is to be looked at without an event.
    deadlines: BTreeSet<(Nanos, u64)>,
    /// The same by connection.
    armed: HashMap<u64, Nanos, foldhash::fast::RandomState>,
    asks: Vec<AdmissionRequest>,
    dirty: Vec<ConnId>,
}

impl Proxy {
    /// A proxy without connections.
    pub fn new(config: Config) -> Self {
        Self {
            config,
            stats: Stats::default(),
            relays: HashMap::default(),
            opened: 0,
            sessions: HashMap::default(),
            numbered: 0,
            expiries: BTreeSet::new(),
            deadlines: BTreeSet::new(),
            armed: HashMap::default(),
            asks: Vec::new(),
            dirty: Vec::new(),
        }
    }

    /// What has been done so far.
    pub fn stats(&self) -> Stats {
        self.stats
    }

    /// A client has connected from that address to that local one, of the
    /// listener with that number, and there is a connection to the broker for it.
    pub fn open(
        &mut self,
        address: Option<SocketAddr>,
        local: Option<SocketAddr>,
        listener: u16,
    ) -> ConnId {
        let conn = ConnId::from_number(self.opened);
        self.relays
            .insert(self.opened, Relay::new(conn, address, local, listener));
        self.opened += 1;
        self.stats.connections += 1;
        conn
    }

    /// The client has sent bytes. What cannot go on yet is kept: bytes that
    /// come although [`Proxy::reads_client`] says no are kept, too.
    pub fn client_sent(&mut self, conn: ConnId, bytes: &[u8], now: Nanos) {
        self.with(conn, now, |relay, context| {
            relay.client_sent(context, bytes);
        });
    }

    /// The broker has sent bytes.
    pub fn broker_sent(&mut self, conn: ConnId, bytes: &[u8], now: Nanos) {
        let welcome = self.with(conn, now, |relay, context| {
            relay.broker_sent(context, bytes)
        });
        if let Some(welcome) = welcome.flatten() {
            self.welcome(conn, *welcome);
            self.with(conn, now, |relay, context| {
                relay.connected(context);
                // What came with CONNACK.
                relay.broker_sent(context, &[])
            });
        }
    }

    /// One of the sides has gone, and what there was for the other is sent.
    pub fn closed(&mut self, conn: ConnId, now: Nanos) {
        let Some(relay) = self.relays.remove(&conn.number()) else {
            return;
        };
        if let Some(at) = self.armed.remove(&conn.number()) {
            self.deadlines.remove(&(at, conn.number()));
        }
        let (Stage::Open(peer) | Stage::Foreign(Some(peer))) = relay.stage else {
            return;
        };
        let taken_over = match self.sessions.get(&peer.client_id) {
            Some(session) => session.state != Presence::Connected(conn.number()),
            None => true,
        };
        if taken_over {
            return;
        }
        if peer.session_expiry == 0 {
            self.end(&peer.client_id);
            return;
        }
        let lasts = match peer.session_expiry {
            u32::MAX => self.config.max_session,
            seconds => Nanos::from_secs(seconds.into()).min(self.config.max_session),
        };
        let until = now + lasts;
        if let Some(session) = self.sessions.get_mut(&peer.client_id) {
            session.state = Presence::Gone { until };
            self.expiries.insert((until, peer.client_id.clone()));
        }
        while self.expiries.len() > self.config.max_sessions {
            let Some((_, first)) = self.expiries.pop_first() else {
                break;
            };
            self.end(&first);
        }
    }

    /// When [`Proxy::tick`] is to be called.
    pub fn next_tick(&self) -> Option<Nanos> {
        let deadline = self.deadlines.first().map(|(at, _)| *at);
        let expiry = self.expiries.first().map(|(at, _)| *at);
        [deadline, expiry].into_iter().flatten().min()
    }

    /// Nothing waits longer than it may, and sessions end.
    pub fn tick(&mut self, now: Nanos) {
        while let Some((at, conn)) = self.deadlines.first().copied() {
            if at > now {
                break;
            }
            self.deadlines.pop_first();
            self.armed.remove(&conn);
            self.with(ConnId::from_number(conn), now, Relay::tick);
        }
        while let Some((at, _)) = self.expiries.first() {
            if *at > now {
                break;
            }
            if let Some((_, client)) = self.expiries.pop_first() {
                self.end(&client);
            }
        }
    }

    /// Whether bytes of the client are wanted now.
    pub fn reads_client(&self, conn: ConnId) -> bool {
        self.relays
            .get(&conn.number())
            .is_some_and(Relay::reads_client)
    }

    /// Whether bytes of the broker are wanted now.
    pub fn reads_broker(&self, conn: ConnId) -> bool {
        self.relays
            .get(&conn.number())
            .is_some_and(Relay::reads_broker)
    }

    /// Bytes for the client; the caller takes away what it has sent.
    pub fn to_client(&mut self, conn: ConnId) -> Option<&mut Vec<u8>> {
        Some(&mut self.relays.get_mut(&conn.number())?.to_client)
    }

    /// Bytes for the broker; the caller takes away what it has sent.
    pub fn to_broker(&mut self, conn: ConnId) -> Option<&mut Vec<u8>> {
        Some(&mut self.relays.get_mut(&conn.number())?.to_broker)
    }

    /// Whether there is such a connection.
    pub fn is_open(&self, conn: ConnId) -> bool {
        self.relays.contains_key(&conn.number())
    }

    /// Whether packets of the client wait for a decision, or for their time.
    pub fn waits(&self, conn: ConnId) -> bool {
        let relay = self.relays.get(&conn.number());
        relay.is_some_and(|relay| relay.wait.is_some() && !relay.up.inbox.is_empty())
    }

    /// Connections that may have bytes, or may be read again.
    pub fn take_dirty(&mut self) -> Vec<ConnId> {
        std::mem::take(&mut self.dirty)
    }

    /// Questions and news for whoever admits flows, in their order.
    pub fn take_asks(&mut self) -> Vec<AdmissionRequest> {
        std::mem::take(&mut self.asks)
    }

    /// What becomes of a flow of a session (0 for any), asked for or not;
    /// without a decision there is no such flow any more. With `notify`, or if
    /// it was asked for, subscribers of `$SYS/rt/clients/...` are notified.
    #[allow(clippy::too_many_arguments, reason = "the parts of one decision")]
    pub fn decide_flow(
        &mut self,
        client_id: &str,
        session: u64,
        topic: &str,
        requirements: Requirements,
        decision: Option<FlowDecision>,
        notify: bool,
        now: Nanos,
    ) {
        let Some(conn) = self.connected(client_id, session) else {
            return;
        };
        let answer = self.with(conn, now, |relay, context| {
            relay.decide_flow(context, topic, requirements, decision, notify)
        });
        if let Some(answer) = answer.flatten() {
            self.publish_answer(client_id, topic, &answer);
        }
    }

    /// What becomes of a SUBSCRIBE that waits. False if none does any more: then
    /// its filters are nobody's, unless the broker knows them from before.
    pub fn decide_subscription(
        &mut self,
        conn: ConnId,
        decision: SubscriptionDecision,
        now: Nanos,
    ) -> bool {
        let decided = self.with(conn, now, |relay, context| {
            relay.decide_subscription(context, decision)
        });
        decided.unwrap_or(false)
    }

    /// A receiver is served in another way than it was notified of.
    pub fn decide_receiver(
        &mut self,
        client_id: &str,
        session: u64,
        filter: &str,
        served: bool,
        reason: &str,
    ) {
        if self.connected(client_id, session).is_some() {
            let answer = answers::to_receiver(served, reason).under(self.config.conditions);
            self.publish_answer(client_id, filter, &answer);
        }
    }

    fn connected(&self, client_id: &str, session: u64) -> Option<ConnId> {
        let known = self.sessions.get(client_id)?;
        match known.state {
            Presence::Connected(conn) if session == 0 || known.number == session => {
                Some(ConnId::from_number(conn))
            }
            _ => None,
        }
    }

    fn publish_answer(&mut self, client_id: &str, about: &str, answer: &Answer) {
        let news = answers::Notification::new(client_id, about, answer);
        for (conn, relay) in &mut self.relays {
            if relay.peer().is_some_and(|peer| !peer.news.is_empty()) {
                relay.notify(&news);
                self.dirty.push(ConnId::from_number(*conn));
            }
        }
    }

    /// Does something with a relay; what follows is noted.
    fn with<T>(
        &mut self,
        conn: ConnId,
        now: Nanos,
        work: impl FnOnce(&mut Relay, &mut Context<'_>) -> T,
    ) -> Option<T> {
        let relay = self.relays.get_mut(&conn.number())?;
        let mut context = Context {
            config: &self.config,
            stats: &mut self.stats,
            asks: &mut self.asks,
            now,
        };
        let result = work(relay, &mut context);
        let deadline = relay.deadline();
        let armed = self.armed.get(&conn.number()).copied();
        if deadline != armed {
            if let Some(at) = armed {
                self.deadlines.remove(&(at, conn.number()));
                self.armed.remove(&conn.number());
            }
            if let Some(at) = deadline {
                self.deadlines.insert((at, conn.number()));
                self.armed.insert(conn.number(), at);
            }
        }
        self.dirty.push(conn);
        Some(result)
    }

    /// The broker has accepted a client.
    fn welcome(&mut self, conn: ConnId, welcome: Welcome) {
        let hello = welcome.hello;
        let client_id: Arc<str> = match (welcome.client_id, hello.client_id.is_empty()) {
            (Some(assigned), true) => assigned.into(),
            // 3.1.1 does not say which one the broker chose.
            (None, true) => format!("anonymous-{}", conn.number()).into(),
            (_, false) => hello.client_id.into(),
        };
        let username: Option<Arc<str>> = hello.username.map(Into::into);
        let access = self.config.access.as_ref();
        let permissions =
            access.and_then(|access| access.permissions(username.as_deref(), &client_id));
        let before = self.sessions.get(&client_id);
        if let Some(Presence::Gone { until }) = before.map(|session| session.state) {
            self.expiries.remove(&(until, client_id.clone()));
        }
        let number = match before {
            Some(session) if welcome.session_present => session.number,
            Some(_) => {
                self.end(&client_id);
                self.next_number()
            }
            None => self.next_number(),
        };
        let session = Session {
            number,
            username: username.clone(),
            state: Presence::Connected(conn.number()),
        };
        self.sessions.insert(client_id.clone(), session);
        let Some(relay) = self.relays.get_mut(&conn.number()) else {
            return;
        };
        relay.stage = Stage::Open(Box::new(Peer {
            version: hello.version,
            client_id,
            username,
            session: number,
            session_expiry: welcome.session_expiry,
            default: hello.default,
            problem_information: hello.problem_information,
            max_packet: hello.max_packet,
            permissions,
            refuse: self
                .config
                .refuse_at
                .get(usize::from(relay.listener))
                .copied()
                .flatten(),
            aliases: vec![None; usize::from(welcome.alias_maximum) + 1],
            flows: HashMap::default(),
            acks: Acks::default(),
            decided: None,
            subscribing: HashMap::new(),
            unsubscribing: HashMap::new(),
            news: Vec::new(),
        }));
        let mut context = Context {
            config: &self.config,
            stats: &mut self.stats,
            asks: &mut self.asks,
            now: Nanos(0),
        };
        relay.ask(&mut context, Ask::Connected { conn });
    }

    fn next_number(&mut self) -> u64 {
        self.numbered += 1;
        self.numbered
    }

    /// A session is over.
    fn end(&mut self, client_id: &Arc<str>) {
        let Some(session) = self.sessions.remove(client_id) else {
            return;
        };
        let asker = Asker {
            client_id: client_id.clone(),
            session: session.number,
            username: session.username,
            is_proven: false,
            peer: None,
            local: None,
            listener: None,
            quota: FlowQuota::default(),
        };
        let ask = Ask::Ended;
        self.asks.push(AdmissionRequest { asker, ask });
    }
}
