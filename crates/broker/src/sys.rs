//! The `$SYS` topics, with mosquitto's names (mosquitto(8), "Broker status").

use std::collections::{BTreeSet, VecDeque};
use std::fmt::Debug;
use std::sync::Arc;

use hashbrown::HashMap;
use punctual_codec::{Properties, QoS};

use crate::answers::{client_topic, plain};
use crate::egress::Class;
use crate::{Budget, Config, Directory, Message, Nanos, Stats};

/// Time constants of the load averages, in minutes.
const AVERAGES: [(f64, &str); 3] = [(1.0, "1min"), (5.0, "5min"), (15.0, "15min")];

/// Maximum number of admitted flows that have a topic, the first by name.
const FLOWS: usize = 1000;
/// Maximum number of clients that have a topic for their lost messages, the first by identifier.
const CLIENTS: usize = 1000;
/// Number of flows or clients whose topics are created at a time.
const PIECE: usize = 16;
/// Units of work for a topic: to write its value, and to publish it.
const TOPIC: u64 = 16;

/// The values published last, so that only changed ones are published.
#[derive(Debug)]
pub(crate) struct SysTopics {
    started: Nanos,
    last: Option<(Nanos, Stats)>,
    maximum_clients: u64,
    averages: HashMap<&'static str, [f64; 3], foldhash::fast::RandomState>,
    published: HashMap<String, String, foldhash::fast::RandomState>,
    /// Topics of admitted flows, of clients, of the federation and of other parts, which may appear
    /// and disappear.
    passing: BTreeSet<String>,
    round: Round,
}

/// The progress of a round of publishing, which continues between other work.
#[derive(Debug, Default)]
struct Round {
    /// Topics and their values, including unchanged ones.
    topics: VecDeque<(String, String)>,
    turn: Turn,
    /// Topics that appeared earlier and are not named in this round: they are removed at its end.
    gone: BTreeSet<String>,
}

/// The part of a round that is done.
#[derive(Debug, Default)]
enum Turn {
    /// The round has named this number of admitted flows, the last of them with this name.
    Flows(usize, Option<Arc<str>>),
    /// The round has named the flows, at most [`FLOWS`], and this number of clients, the last of them
    /// with this identifier.
    Clients(usize, Option<Arc<str>>),
    /// All.
    #[default]
    Done,
}

impl SysTopics {
    pub(crate) fn new(now: Nanos) -> Self {
        Self {
            started: now,
            last: None,
            maximum_clients: 0,
            averages: HashMap::default(),
            published: HashMap::default(),
            passing: BTreeSet::new(),
            round: Round::default(),
        }
    }

    /// Begins a round; the rest of the last one is not published.
    pub(crate) fn begin(&mut self, directory: &Directory, config: &Config, now: Nanos) {
        let stats = directory.stats();
        let (retained, retained_bytes) = directory.retained_totals();
        let total = stats.sessions;
        self.maximum_clients = self.maximum_clients.max(total);
        let mut topics: Vec<(String, String)> = Vec::with_capacity(64);
        let mut number = |name: &str, value: u64| {
            topics.push((format!("$SYS/broker/{name}"), value.to_string()));
        };
        number("clients/total", total);
        number("clients/connected", stats.clients_connected);
        number("clients/active", stats.clients_connected);
        let offline = total.saturating_sub(stats.clients_connected);
        number("clients/disconnected", offline);
        number("clients/inactive", offline);
        number("clients/maximum", self.maximum_clients);
        number("clients/expired", stats.sessions_expired);
        number("messages/received", stats.packets_received);
        number("messages/sent", stats.packets_sent);
        let stored = stats.queued_messages + retained as u64;
        number("messages/stored", stored);
        number("messages/inflight", stats.inflight_messages);
        number("store/messages/count", stored);
        number(
            "store/messages/bytes",
            stats.queued_bytes + retained_bytes as u64,
        );
        number("retained messages/count", retained as u64);
        number("subscriptions/count", stats.subscriptions);
        number("shared_subscriptions/count", stats.shared_subscriptions);
        number("bytes/received", stats.bytes_received);
        number("bytes/sent", stats.bytes_sent);
        number("publish/messages/received", stats.publishes_received());
        number("publish/messages/sent", stats.publishes_sent());
        number("publish/messages/dropped", stats.dropped());
        number("publish/bytes/received", stats.publish_bytes_received);
        number("publish/bytes/sent", stats.publish_bytes_sent);
        for (class, of) in Class::ALL.iter().zip(&stats.classes) {
            let mut number = |name: &str, value: u64| {
                let topic = format!("$SYS/rt/egress/{}/{name}", class.name());
                topics.push((topic, value.to_string()));
            };
            number("sent", of.sent);
            number("queued", of.queued);
            number("dropped/queue", of.dropped_queue);
            number("dropped/expired", of.dropped_expired);
            if class.is_urgent() {
                number("waiting", of.waiting);
                number("dropped/full", of.dropped_full);
                number("dropped/late", of.dropped_late);
                number("dropped/gone", of.dropped_gone);
                number("missed", of.missed);
            }
            let micros = |nanos: Nanos| nanos.0.div_ceil(1000);
            let lanes = class.is_urgent().then_some(("wait", &of.wait));
            let all = [("held", &of.held), ("passage", &of.passage)];
            for (name, wait) in lanes.into_iter().chain(all) {
                number(&format!("{name}/mean"), micros(wait.mean()));
                number(&format!("{name}/p50"), micros(wait.percentile(500)));
                number(&format!("{name}/p99"), micros(wait.percentile(990)));
                number(&format!("{name}/p99.9"), micros(wait.percentile(999)));
                number(&format!("{name}/max"), micros(wait.max));
            }
        }
        let mut gone = std::mem::take(&mut self.round.gone);
        gone.append(&mut self.passing);
        let federation = directory.federation().map(|federation| federation.topics());
        let others = directory.sys_sources();
        let others = others.iter().map(|source| source.topics());
        let others = federation.into_iter().chain(others).flatten();
        for (topic, value) in others {
            gone.remove(&topic);
            self.passing.insert(topic.clone());
            topics.push((topic, value));
        }
        topics.push(("$SYS/broker/version".into(), config.version.clone()));
        let uptime = (now - self.started).as_secs();
        topics.push(("$SYS/broker/uptime".into(), format!("{uptime} seconds")));
        self.load(&stats, now, &mut topics);
        self.last = Some((now, stats));
        self.round = Round {
            topics: topics.into(),
            turn: Turn::Flows(0, None),
            gone,
        };
    }

    /// The next retained message of the round, for a topic whose value has changed; `None` if the
    /// budget is spent, or the round is over.
    pub(crate) fn next(
        &mut self,
        directory: &Directory,
        budget: &mut Budget,
        now: Nanos,
    ) -> Option<Arc<Message>> {
        while !budget.is_spent() {
            budget.spend(TOPIC);
            let Some((topic, value)) = self.round.topics.pop_front() else {
                if !self.name_more(directory) {
                    return None;
                }
                continue;
            };
            if self.published.get(&topic) == Some(&value) {
                continue;
            }
            let message = Message::new(
                topic.as_bytes(),
                Properties::EMPTY,
                value.as_bytes(),
                QoS::AtMostOnce,
                true,
                now,
                0,
            );
            match value.is_empty() {
                true => self.published.remove(&topic),
                false => self.published.insert(topic, value),
            };
            return Some(message);
        }
        None
    }

    /// Whether the round continues.
    pub(crate) fn is_amid(&self) -> bool {
        !self.round.topics.is_empty() || !matches!(self.round.turn, Turn::Done)
    }

    /// Adds topics of flows and clients to the round, and finally those that have disappeared.
    /// False if there are no more.
    fn name_more(&mut self, directory: &Directory) -> bool {
        match std::mem::take(&mut self.round.turn) {
            Turn::Flows(seen, last) => self.name_flows(directory, seen, last),
            Turn::Clients(seen, last) => self.name_clients(directory, seen, last),
            Turn::Done => return false,
        }
        true
    }

    fn name_flows(&mut self, directory: &Directory, seen: usize, last: Option<Arc<str>>) {
        let most = PIECE.min(FLOWS.saturating_sub(seen));
        let (flows, last) = directory.flows(last.as_deref(), most);
        let Some(last) = last else {
            self.round.turn = Turn::Clients(0, None);
            return;
        };
        self.round.turn = Turn::Flows(seen + flows.len(), Some(last));
        for flow in &flows {
            self.name(
                format!("$SYS/rt/flows/{}", plain(&flow.name)),
                flow.to_string(),
            );
        }
    }

    fn name_clients(&mut self, directory: &Directory, seen: usize, last: Option<Arc<str>>) {
        let most = PIECE.min(CLIENTS.saturating_sub(seen));
        let losses = directory.losses(last.as_deref(), most);
        let Some((last, _)) = losses.last() else {
            // An empty message removes a retained one.
            let gone = std::mem::take(&mut self.round.gone).into_iter();
            self.round
                .topics
                .extend(gone.map(|topic| (topic, String::new())));
            return;
        };
        self.round.turn = Turn::Clients(seen + losses.len(), Some(last.clone()));
        for (client_id, dropped) in &losses {
            let topic = client_topic(client_id);
            // An identifier may be as long as a topic.
            if topic.len() <= usize::from(u16::MAX) {
                self.name(topic, format!("dropped={dropped}"));
            }
        }
    }

    /// Adds a topic that may disappear to the round.
    fn name(&mut self, topic: String, value: String) {
        self.round.gone.remove(&topic);
        self.passing.insert(topic.clone());
        self.round.topics.push_back((topic, value));
    }

    /// Moving averages per minute.
    fn load(&mut self, stats: &Stats, now: Nanos, topics: &mut Vec<(String, String)>) {
        let Some((then, before)) = &self.last else {
            return;
        };
        let minutes = (now - *then).0 as f64 / 60e9;
        if minutes <= 0.0 {
            return;
        }
        for (name, counter) in [
            (
                "messages/received",
                stats.packets_received - before.packets_received,
            ),
            ("messages/sent", stats.packets_sent - before.packets_sent),
            (
                "publish/received",
                stats.publishes_received() - before.publishes_received(),
            ),
            (
                "publish/sent",
                stats.publishes_sent() - before.publishes_sent(),
            ),
            ("publish/dropped", stats.dropped() - before.dropped()),
            (
                "bytes/received",
                stats.bytes_received - before.bytes_received,
            ),
            ("bytes/sent", stats.bytes_sent - before.bytes_sent),
            (
                "sockets",
                stats
                    .connections_opened
                    .saturating_sub(before.connections_opened),
            ),
            (
                "connections",
                stats
                    .connects_received
                    .saturating_sub(before.connects_received),
            ),
        ] {
            let rate = counter as f64 / minutes;
            let averages = self.averages.entry(name).or_default();
            for (average, (constant, label)) in averages.iter_mut().zip(AVERAGES) {
                let keep = (-minutes / constant).exp();
                *average = *average * keep + rate * (1.0 - keep);
                topics.push((
                    format!("$SYS/broker/load/{name}/{label}"),
                    format!("{average:.2}"),
                ));
            }
        }
    }
}
