//! Random clients against a random broker, checked by the [model](crate::model).
//!
//! One seed decides the broker's settings, the network, and what every client
//! does. The clients keep to the protocol; everything else about them is bad
//! luck: they stop reading, acknowledge late and out of turn, lose their
//! connection, fall silent, connect twice. At the end everyone comes back and
//! gets what is due; then everyone leaves and nothing may be left.

mod peer;

use std::collections::HashMap;

use punctual_broker::{ClientInfo, Config, Discipline, Enqueue, Nanos, QueueFull, Shares, Stats};
use punctual_codec::packet::RetainHandling;
use punctual_codec::{
    Connect, Packet, PacketType, PropertyBuf, PropertyId, Publish, QoS, ReasonCode, Split,
    SubscribeOptions, Version, split,
};

use punctual_model::{Rng, SEQUENCE_KEY};

use crate::model::{Model, Violation};
use crate::seeds::trace_lines;
use crate::world::{LinkId, LinkProfile, Trace, World};
use peer::{AckPolicy, Answers, Peer, Plan};

/// The result of the run of one seed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Summary {
    /// The broker's counters at the end, all shards.
    pub stats: Stats,
    /// Messages that clients received.
    pub received: u64,
}

/// Runs the simulation of one seed.
///
/// # Errors
/// What the broker did wrong, with the last events before.
pub fn run(seed: u64) -> Result<Summary, String> {
    Run::new(seed, false).all().map_err(|why| {
        // Everything is repeatable, so the trace is recorded only when needed.
        let mut again = Run::new(seed, true);
        let _ = again.all();
        let lines = trace_lines().unwrap_or(60);
        let from = again.log.len().saturating_sub(lines);
        format!(
            "seed {seed}: {why}\nat {:?}, {:?}\n{}",
            again.world.now(),
            again.config,
            again.log[from..].join("\n"),
        )
    })
}

/// Facts about a link that are needed to describe its packets to the model.
#[derive(Debug, Default)]
struct LinkFacts {
    version: Option<Version>,
    /// Topics by the topic aliases that the client has defined.
    aliases: HashMap<u16, String>,
    /// Number of the session in the model, and whether it existed before CONNECT.
    session: Option<(usize, bool)>,
    answers: Answers,
    /// Whether the broker has a known reason to close the connection.
    ending: bool,
}

struct Run {
    rng: Rng,
    world: World,
    model: Model,
    config: Config,
    peers: Vec<Peer>,
    links: HashMap<LinkId, LinkFacts>,
    /// Whether the last phase has begun, in which clients only read and acknowledge.
    calm: bool,
    next_payload: u64,
    received: u64,
    telling: bool,
    log: Vec<String>,
    trace: Vec<Trace>,
}

const LEVELS: [&str; 4] = ["a", "b", "", "$x"];

impl Run {
    fn new(seed: u64, telling: bool) -> Self {
        let mut rng = Rng::new(seed);
        let config = any_config(&mut rng);
        let shards = *rng.pick(&[1, 1, 2, 3]);
        let mut world = World::new(config.clone(), shards, rng.any());
        world.set_mail_delay(Nanos(*rng.pick(&[0, 10_000, 3_000_000])));
        let limits = &config.limits;
        let tight = limits.max_queued_messages < 100
            || limits.max_queued_bytes < 1 << 20
            || limits.max_total_queued_bytes < 1 << 20
            || limits.max_retained_messages < 100
            || limits.max_retained_bytes < 1 << 20;
        world.set_one_at_a_time(tight || rng.chance(30));
        let peers = (0..rng.within(2..=6))
            .map(|n| Peer::new(format!("c{n}")))
            .collect();
        Self {
            world,
            model: Model::new(config.clone()),
            config,
            peers,
            links: HashMap::new(),
            calm: false,
            next_payload: 0,
            received: 0,
            telling,
            log: Vec::new(),
            trace: Vec::new(),
            rng,
        }
    }

    fn all(&mut self) -> Result<Summary, Violation> {
        for _ in 0..self.rng.within(20..=400) {
            let pause = match self.rng.below(100) {
                0..70 => self.rng.below(2_000_000),
                70..95 => self.rng.within(2_000_000..=50_000_000),
                _ => self.rng.within(300_000_000..=4_000_000_000),
            };
            self.pass(Nanos(pause))?;
            let peer = self.rng.below(self.peers.len() as u64) as usize;
            self.act(peer)?;
            self.check_bounds()?;
        }
        self.reunion()?;
        self.farewell()
    }

    fn tell(&mut self, what: impl FnOnce() -> String) {
        if self.telling {
            let line = format!("{:>13} {}", self.world.now().0, what());
            self.log.push(line);
        }
    }

    /// Lets time pass, and checks what happens meanwhile.
    fn pass(&mut self, time: Nanos) -> Result<(), Violation> {
        let until = self.world.now() + time;
        while self.world.step(until) {
            self.notice()?;
        }
        self.notice()
    }

    /// Describes what the broker did and what clients received to the model, which checks it.
    fn notice(&mut self) -> Result<(), Violation> {
        self.model.advance(self.world.now());
        let mut trace = std::mem::take(&mut self.trace);
        self.world.take_trace(&mut trace);
        for what in trace.drain(..) {
            self.trace(what)?;
        }
        self.trace = trace;
        if self.config.queue_full == QueueFull::Disconnect {
            self.notice_overflows();
        }
        for client in self.model.replaying() {
            let shards = self.world.shards().iter();
            let mut views = shards.filter_map(|shard| shard.client(&client));
            if !views.any(|view| view.info().replaying) {
                self.model.replayed(&client);
            }
        }
        for at in 0..self.peers.len() {
            self.listen(at)?;
        }
        Ok(())
    }

    /// Ends those sessions in the model that the broker has ended because their queues overflowed.
    fn notice_overflows(&mut self) {
        let gone = self.gone();
        self.model.sessions_overflowed(&gone, self.world.now());
    }

    /// Clients that have a session in the model and none at the broker.
    fn gone(&mut self) -> Vec<String> {
        self.model
            .clients()
            .filter(|client| {
                self.world
                    .shards()
                    .iter()
                    .all(|s| s.client(client).is_none())
            })
            .map(str::to_owned)
            .collect()
    }

    fn trace(&mut self, what: Trace) -> Result<(), Violation> {
        match what {
            Trace::Consumed {
                link,
                packets,
                closed,
                refused,
            } => self.consumed(link, &packets, closed, refused),
            Trace::Lost(link) => {
                self.tell(|| format!("{link:?} lost"));
                self.facts(link).ending = true;
                Ok(())
            }
            Trace::Closed(link) => self.closed(link),
            Trace::Asked(..) | Trace::Answered(..) | Trace::Event(_) => Ok(()),
        }
    }

    fn facts(&mut self, link: LinkId) -> &mut LinkFacts {
        self.links.entry(link).or_default()
    }

    /// Checks that the broker had a reason to close a connection.
    fn closed(&mut self, link: LinkId) -> Result<(), Violation> {
        self.tell(|| format!("{link:?} closed"));
        if !self.model.is_connected(link) {
            return Ok(());
        }
        let now = self.world.now();
        let patience = self.model.patience(link);
        let heard = self.world.last_heard(link);
        let silent = patience.0 > 0 && heard.is_none_or(|at| now - at >= patience);
        let known =
            self.facts(link).ending || silent || self.config.queue_full == QueueFull::Disconnect;
        if !known {
            return Err(format!("the broker closed {link:?} without reason"));
        }
        if self.config.queue_full == QueueFull::Disconnect {
            // Sessions that overflowed together get each other's wills, so none
            // may end before the wills of all are known.
            let gone = self.gone();
            if gone
                .iter()
                .any(|client| self.model.client(link) == Some(client))
            {
                self.model.sessions_overflowed(&gone, now);
                return Ok(());
            }
        }
        self.model.connection_ended(link, true, now);
        Ok(())
    }

    fn consumed(
        &mut self,
        link: LinkId,
        packets: &[u8],
        closed: bool,
        refused: u64,
    ) -> Result<(), Violation> {
        let version = self.facts(link).version.ok_or("a link of nobody")?;
        let mut rest = packets;
        while !rest.is_empty() {
            let Ok(Split::Frame(frame)) = split(rest, u32::MAX) else {
                return Err("the broker consumed half a packet".into());
            };
            rest = &rest[frame.bytes.len()..];
            let packet = Packet::decode(frame, version).map_err(|e| e.to_string())?;
            let last = closed && rest.is_empty();
            let refused = match packet {
                // Single packets are handed in where some may be refused.
                Packet::Publish(_) if frame.bytes.len() == packets.len() => refused > 0,
                Packet::Publish(_) if refused > 0 => {
                    return Err(format!(
                        "{refused} publications refused although there is room"
                    ));
                }
                // What is refused is a will.
                _ => false,
            };
            self.packet(link, version, &packet, last, refused)?;
        }
        Ok(())
    }

    fn packet(
        &mut self,
        link: LinkId,
        version: Version,
        packet: &Packet<'_>,
        closed: bool,
        refused: bool,
    ) -> Result<(), Violation> {
        let now = self.world.now();
        self.tell(|| format!("{link:?} -> {}", brief(packet)));
        match packet {
            Packet::Connect(connect) => {
                if closed {
                    return Err(format!("refused {connect:?}"));
                }
                let session = self.model.connected(link, connect, now);
                self.facts(link).session = Some(session);
            }
            Packet::Publish(publish) => {
                if closed && (version.is_v5() || !refused) {
                    return Err(format!("disconnected for {publish:?}"));
                }
                self.facts(link).ending |= closed;
                let publish = self.without_alias(link, publish)?;
                let publish = publish.borrow();
                let number = self.model.published(link, &publish, refused, now);
                let answers = &mut self.facts(link).answers;
                answers.publications.insert(publish.packet_id, number);
            }
            Packet::PubRel(ack) => self.model.released(link, ack.packet_id),
            Packet::Subscribe(subscribe) => {
                let id = subscribe
                    .properties
                    .number(PropertyId::SubscriptionIdentifier);
                let numbered = subscribe.properties.user_value(SEQUENCE_KEY) == Some("on");
                let mut reasons = Vec::new();
                for (filter, options) in subscribe.filters() {
                    let id = id.unwrap_or(0);
                    let reason = self
                        .model
                        .subscribed(link, filter, options, id, numbered, now);
                    reasons.push(reason);
                }
                let key = (PacketType::SubAck, subscribe.packet_id);
                self.facts(link).answers.reasons.insert(key, reasons);
            }
            Packet::Unsubscribe(unsubscribe) => {
                let mut reasons = Vec::new();
                for filter in unsubscribe.filters() {
                    reasons.push(self.model.unsubscribed(link, filter));
                }
                if !version.is_v5() {
                    reasons.clear();
                }
                let key = (PacketType::UnsubAck, unsubscribe.packet_id);
                self.facts(link).answers.reasons.insert(key, reasons);
            }
            Packet::Disconnect(disconnect) => {
                let expiry = disconnect
                    .properties
                    .number(PropertyId::SessionExpiryInterval);
                self.facts(link).ending = true;
                self.model.disconnect(link, disconnect.reason, expiry, now);
            }
            _ if closed => return Err(format!("disconnected for {packet:?}")),
            _ => {}
        }
        Ok(())
    }

    /// Copies a publication, and replaces its topic alias by the topic.
    fn without_alias(
        &mut self,
        link: LinkId,
        publish: &Publish<'_>,
    ) -> Result<OwnedPublish, Violation> {
        let aliases = &mut self.facts(link).aliases;
        let alias = publish.properties.number(PropertyId::TopicAlias);
        let topic = match alias {
            Some(alias) if publish.topic.is_empty() => aliases
                .get(&(alias as u16))
                .ok_or("the client used an unknown alias")?
                .clone(),
            Some(alias) => {
                aliases.insert(alias as u16, publish.topic.to_owned());
                publish.topic.to_owned()
            }
            None => publish.topic.to_owned(),
        };
        Ok(OwnedPublish {
            topic,
            properties: publish.properties.as_bytes().to_vec(),
            payload: publish.payload.to_vec(),
            qos: publish.qos,
            retain: publish.retain,
            dup: publish.dup,
            packet_id: publish.packet_id,
        })
    }

    /// Lets a client decode and check what has arrived.
    fn listen(&mut self, at: usize) -> Result<(), Violation> {
        let Some(link) = self.peers[at].link() else {
            return Ok(());
        };
        if self.world.has_received(link) {
            let Self {
                world,
                model,
                peers,
                links,
                rng,
                ..
            } = self;
            let peer = &mut peers[at];
            world.take_received(link, peer.buffer());
            let facts = links.entry(link).or_default();
            let now = world.now();
            let mut told = Vec::new();
            while let Some(incoming) = peer.next_packet()? {
                if self.telling {
                    told.push(format!("{link:?} <- {incoming:?}"));
                }
                if let Some(message) = peer.receive(incoming, facts, rng)? {
                    self.received += 1;
                    let version = facts.version.ok_or("a link of nobody")?;
                    model.delivered(link, &message, version, now)?;
                }
                for (number, reason) in facts.answers.outcomes.drain(..) {
                    let version = facts.version.ok_or("a link of nobody")?;
                    model.acknowledged(number, reason, version)?;
                }
            }
            for line in told {
                self.tell(|| line);
            }
            let bytes = self.peers[at].take_output();
            self.world.write(link, &bytes);
        }
        if self.world.is_ended(link) {
            self.peers[at].lost();
        }
        Ok(())
    }

    /// Lets a client do something at random.
    fn act(&mut self, at: usize) -> Result<(), Violation> {
        let Some(link) = self.peers[at].link() else {
            if self.rng.chance(60) {
                self.connect(at, false);
            }
            return Ok(());
        };
        match self.rng.below(100) {
            0..45 => {
                for _ in 0..*self.rng.pick(&[1, 1, 1, 2, 5, 20]) {
                    self.publish(at);
                }
            }
            45..60 => self.subscribe(at),
            60..65 => self.unsubscribe(at),
            65..77 => {
                let Self { peers, rng, .. } = self;
                peers[at].acknowledge_some(rng);
            }
            77..82 => {
                let reading = self.rng.chance(50);
                self.tell(|| format!("{link:?} reads: {reading}"));
                self.world.set_reading(link, reading);
            }
            82..85 => self.peers[at].ping(),
            85..89 => self.disconnect(at),
            89..93 => {
                let noticed = match self.rng.below(10) {
                    0..5 => Some(Nanos(self.rng.below(1_000_000))),
                    5..8 => Some(Nanos(self.rng.below(2_000_000_000))),
                    _ => None,
                };
                self.tell(|| format!("{link:?} cut, noticed {noticed:?}"));
                self.world.cut(link, noticed);
                self.peers[at].lost();
            }
            93..95 => {
                // A second connection of the same client.
                self.connect(at, false);
            }
            95..97 => {
                self.world.finish(link);
                self.peers[at].lost();
            }
            _ => {}
        }
        self.speak(at);
        Ok(())
    }

    fn speak(&mut self, at: usize) {
        let bytes = self.peers[at].take_output();
        if let Some(link) = self.peers[at].link() {
            self.world.write(link, &bytes);
        }
    }

    fn connect(&mut self, at: usize, for_good: bool) {
        let rng = &mut self.rng;
        let profile = LinkProfile {
            latency: Nanos(*rng.pick(&[10_000, 100_000, 5_000_000])),
            jitter: Nanos(*rng.pick(&[0, 2_000_000])),
            piece: *rng.pick(&[0, 0, 1, 7, 100]),
            window: if for_good {
                usize::MAX
            } else {
                *rng.pick(&[200, 3000, usize::MAX])
            },
        };
        let old = self.peers[at].version();
        let version = if for_good || (old.is_some() && rng.chance(90)) {
            old.unwrap_or(Version::V5)
        } else {
            *rng.pick(&[Version::V311, Version::V5, Version::V5])
        };
        let v5 = version.is_v5();
        let clean_start = !for_good && rng.chance(40);
        let mut properties = PropertyBuf::new();
        let mut plan = Plan {
            version,
            receive_max: u16::MAX,
            max_packet: u32::MAX,
            alias_max: 0,
            server_aliases: self.config.limits.topic_alias_maximum,
            // Before MQTT 5 there is none, but the next connection may be MQTT 5.
            server_receive_max: self.config.limits.receive_maximum,
            acknowledging: *rng.pick(&[
                AckPolicy::AtOnce,
                AckPolicy::AtOnce,
                AckPolicy::Later,
                AckPolicy::OutOfTurn,
            ]),
        };
        if for_good {
            plan.acknowledging = AckPolicy::AtOnce;
        }
        if v5 {
            let expiry = if for_good {
                u32::MAX
            } else {
                *rng.pick(&[0, 0, 2, 100, u32::MAX])
            };
            properties.push_number(PropertyId::SessionExpiryInterval, expiry);
            if rng.chance(40) {
                plan.receive_max = *rng.pick(&[1, 2, 20]);
                properties.push_number(PropertyId::ReceiveMaximum, u32::from(plan.receive_max));
            }
            if rng.chance(40) {
                plan.alias_max = *rng.pick(&[1, 3, 100]);
                properties.push_number(PropertyId::TopicAliasMaximum, u32::from(plan.alias_max));
            }
            if rng.chance(10) && !for_good {
                plan.max_packet = *rng.pick(&[100, 500]);
                properties.push_number(PropertyId::MaximumPacketSize, plan.max_packet);
            }
        }
        let keep_alive = *rng.pick(&[0, 0, 1, 2, 60]);
        let mut will_properties = PropertyBuf::new();
        let will = (!for_good && rng.chance(30)).then(|| {
            if v5 {
                any_properties(rng, &mut will_properties);
                if rng.chance(50) {
                    let delay = rng.below(4) as u32;
                    will_properties.push_number(PropertyId::WillDelayInterval, delay);
                }
            }
            let qos = any_qos(rng);
            (any_topic(rng), qos, rng.chance(30))
        });
        let payload = any_payload(rng, &mut self.next_payload, false);
        let name = self.peers[at].name().to_owned();
        let connect = Connect {
            version,
            clean_start,
            keep_alive: if for_good { 0 } else { keep_alive },
            client_id: &name,
            will: will
                .as_ref()
                .map(|(topic, qos, retain)| punctual_codec::Will {
                    topic,
                    payload: &payload,
                    qos: *qos,
                    retain: *retain,
                    properties: will_properties.as_properties(),
                }),
            username: None,
            password: None,
            properties: properties.as_properties(),
        };
        let link = self.world.connect(profile);
        self.facts(link).version = Some(version);
        self.tell(|| format!("{name} opens {link:?} {profile:?}"));
        self.peers[at].connect(link, plan, &connect);
        self.speak(at);
        if clean_start && self.rng.chance(20) {
            // Without waiting for CONNACK. A client that may find a session
            // would not know what that still has open.
            self.subscribe(at);
            self.publish(at);
            self.speak(at);
        }
    }

    fn publish(&mut self, at: usize) {
        let Self {
            rng,
            peers,
            next_payload,
            ..
        } = self;
        let peer = &mut peers[at];
        let topic = any_topic(rng);
        let retain = rng.chance(20);
        let payload = any_payload(rng, next_payload, retain);
        let mut properties = PropertyBuf::new();
        // Empty payloads can only be told apart by their topics.
        if peer.is_v5() && !payload.is_empty() && rng.chance(30) {
            any_properties(rng, &mut properties);
        }
        let qos = any_qos(rng);
        peer.publish(rng, &topic, qos, retain, properties, payload);
    }

    fn subscribe(&mut self, at: usize) {
        let Self { rng, peers, .. } = self;
        let peer = &mut peers[at];
        let v5 = peer.is_v5();
        let mut filters = Vec::new();
        for _ in 0..*rng.pick(&[1, 1, 2, 3]) {
            let filter = any_filter(rng);
            let mut options = SubscribeOptions {
                qos: any_qos(rng),
                ..SubscribeOptions::default()
            };
            if v5 {
                options.no_local = rng.chance(20) && !filter.starts_with("$share");
                options.retain_as_published = rng.chance(30);
                options.retain_handling = *rng.pick(&[
                    RetainHandling::Send,
                    RetainHandling::SendIfNew,
                    RetainHandling::DoNotSend,
                ]);
            }
            filters.push((filter, options));
        }
        let mut properties = PropertyBuf::new();
        if v5 && rng.chance(40) {
            let id = rng.within(1..=300) as u32;
            properties.push_number(PropertyId::SubscriptionIdentifier, id);
        }
        if v5 && rng.chance(40) {
            let wish = *rng.pick(&["on", "on", "off", "?"]);
            let _ = properties.push_user(SEQUENCE_KEY, wish);
        }
        peer.subscribe(&filters, &properties);
    }

    fn unsubscribe(&mut self, at: usize) {
        let Self { rng, peers, .. } = self;
        let peer = &mut peers[at];
        let filter = peer.some_filter(rng).unwrap_or_else(|| any_filter(rng));
        peer.unsubscribe(&filter);
    }

    fn disconnect(&mut self, at: usize) {
        let Self { rng, peers, .. } = self;
        let peer = &mut peers[at];
        let reason = *rng.pick(&[
            ReasonCode::Success,
            ReasonCode::Success,
            ReasonCode::DisconnectWithWill,
            ReasonCode::UnspecifiedError,
        ]);
        let expiry = rng.chance(20).then(|| *rng.pick(&[0, 1, 50]));
        peer.disconnect(reason, expiry);
        self.speak(at);
        if let Some(link) = self.peers[at].link() {
            self.world.finish(link);
        }
        self.peers[at].lost();
    }

    fn clients(&mut self) -> Vec<ClientInfo> {
        let mut infos = Vec::new();
        for shard in self.world.shards() {
            let _ = shard.scan_clients(Default::default(), u32::MAX, |c| infos.push(c.info()));
        }
        infos
    }

    fn check_bounds(&mut self) -> Result<(), Violation> {
        let infos = self.clients();
        let limits = &self.config.limits;
        // A publisher may have handed in one message more before it is held
        // back, and one is in pieces of 64 KiB at most.
        let slack = 70_000 + 12_000 * self.peers.len();
        for info in infos {
            let within = info.queued_messages <= limits.max_queued_messages
                && info.queued_bytes <= limits.max_queued_bytes
                && info.buffered <= limits.send_buffer.saturating_add(slack)
                && info.inflight <= usize::from(limits.max_inflight);
            if !within {
                return Err(format!("out of bounds: {info:?}"));
            }
        }
        let totals = self.world.directory().totals();
        if totals.queued_bytes > limits.max_total_queued_bytes
            || totals.retained_messages > limits.max_retained_messages
            || totals.retained_bytes > limits.max_retained_bytes
        {
            return Err(format!("out of bounds: {totals:?}"));
        }
        Ok(())
    }

    /// Lets all clients connect, read and acknowledge, and checks that all messages arrive that must.
    fn reunion(&mut self) -> Result<(), Violation> {
        self.calm = true;
        self.tell(|| "reunion".into());
        for at in 0..self.peers.len() {
            match self.peers[at].link() {
                Some(link) => {
                    self.world.set_reading(link, true);
                    self.peers[at].acknowledge_all();
                    self.speak(at);
                }
                None => self.connect(at, true),
            }
        }
        // Each round is longer than any pause and shorter than any keep alive.
        // Two in which nothing is on its way are enough.
        let mut quiet = 0;
        for _ in 0..500 {
            self.pass(Nanos::from_millis(60))?;
            for at in 0..self.peers.len() {
                if self.peers[at].link().is_none() {
                    // Refused before MQTT 5: repeating it would not help.
                    self.peers[at].give_up();
                    self.connect(at, true);
                }
                self.peers[at].ping();
                self.speak(at);
            }
            let stats = self.stats();
            let settled = self.peers.iter().all(|peer| peer.check_settled().is_ok());
            // An answer may overtake messages.
            let sent = self.clients().iter().all(|client| client.buffered == 0);
            if settled && sent && stats.queued_messages + stats.inflight_messages == 0 {
                quiet += 1;
            } else {
                quiet = 0;
            }
            if quiet == 2 {
                break;
            }
        }
        let missing = self.model.missing(self.world.now())?;
        let stats = self.stats();
        let dropped = stats.dropped_queue_full;
        if missing.droppable as u64 > dropped {
            return Err(format!("{missing:?}, {dropped} were dropped"));
        }
        let dropped = dropped + stats.dropped_slow_consumer + stats.dropped_too_large;
        if missing.unacknowledged as u64 > dropped {
            return Err(format!("{missing:?}, {dropped} were dropped"));
        }
        for peer in &self.peers {
            peer.check_settled()?;
        }
        Ok(())
    }

    fn stats(&mut self) -> Stats {
        let mut sum = Stats::default();
        for shard in self.world.shards() {
            sum.add(shard.stats());
        }
        sum
    }

    /// Ends all sessions, and checks that the broker keeps nothing.
    fn farewell(&mut self) -> Result<Summary, Violation> {
        self.tell(|| "farewell".into());
        for at in 0..self.peers.len() {
            if self.peers[at].link().is_none() {
                self.connect(at, true);
            }
        }
        self.pass(Nanos::from_millis(50))?;
        for at in 0..self.peers.len() {
            if self.peers[at].is_v5() {
                self.peers[at].disconnect(ReasonCode::Success, Some(0));
                self.speak(at);
                self.peers[at].lost();
            } else {
                // Only a clean session ends before MQTT 5.
                self.peers[at].disconnect(ReasonCode::Success, None);
                self.speak(at);
                self.peers[at].lost();
                self.pass(Nanos::from_millis(50))?;
                let link = self.world.connect(LinkProfile::default());
                self.facts(link).version = Some(Version::V5);
                let name = self.peers[at].name().to_owned();
                let mut bytes = Vec::new();
                let _ = Connect {
                    version: Version::V5,
                    clean_start: true,
                    keep_alive: 0,
                    client_id: &name,
                    will: None,
                    username: None,
                    password: None,
                    properties: PropertyBuf::new().as_properties(),
                }
                .encode(&mut bytes);
                self.world.write(link, &bytes);
                self.world.finish(link);
            }
        }
        self.pass(Nanos::from_secs(200))?;
        let stats = self.stats();
        let gauges = [
            stats.connections,
            stats.clients_connected,
            stats.sessions,
            stats.subscriptions,
            stats.shared_subscriptions,
            stats.queued_messages,
            stats.queued_bytes,
            stats.inflight_messages,
        ];
        if gauges != [0; 8] {
            return Err(format!("left over: {stats:?}"));
        }
        if self.world.directory().stats() != stats {
            return Err("the shared statistics are not the latest".into());
        }
        let totals = self.world.directory().totals();
        let left = [
            totals.sessions,
            totals.homes,
            totals.subscriptions,
            totals.filter_levels,
            totals.queued_bytes,
        ];
        if left != [0; 5] {
            return Err(format!("left over: {totals:?}"));
        }
        for shard in self.world.shards() {
            if shard.timers() > 5000 {
                return Err(format!("{} timers are left", shard.timers()));
            }
        }
        Ok(Summary {
            stats,
            received: self.received,
        })
    }
}

struct OwnedPublish {
    topic: String,
    properties: Vec<u8>,
    payload: Vec<u8>,
    qos: QoS,
    retain: bool,
    dup: bool,
    packet_id: u16,
}

impl OwnedPublish {
    fn borrow(&self) -> Publish<'_> {
        Publish {
            dup: self.dup,
            qos: self.qos,
            retain: self.retain,
            topic: &self.topic,
            packet_id: self.packet_id,
            properties: punctual_codec::Properties::check(
                &self.properties,
                punctual_codec::PropertySet::PUBLISH,
            )
            .unwrap_or_default(),
            payload: &self.payload,
        }
    }
}

fn brief(packet: &Packet<'_>) -> String {
    match packet {
        Packet::Publish(p) => format!(
            "PUBLISH {} {:?} dup={} retain={} id={} {:02x?} {} bytes",
            p.topic,
            p.qos,
            p.dup,
            p.retain,
            p.packet_id,
            p.payload.get(..8),
            p.payload.len()
        ),
        Packet::Subscribe(p) => format!("{:?} {:?}", p, p.filters().collect::<Vec<_>>()),
        Packet::Unsubscribe(p) => format!("{:?} {:?}", p, p.filters().collect::<Vec<_>>()),
        other => format!("{other:?}"),
    }
}

fn any_config(rng: &mut Rng) -> Config {
    let mut config = Config {
        sys_interval: None,
        queue_full: *rng.pick(&[
            QueueFull::Refuse,
            QueueFull::Refuse,
            QueueFull::Hold,
            QueueFull::DropOldest,
            QueueFull::DropNew,
            QueueFull::Disconnect,
        ]),
        queue_qos0_offline: rng.chance(30),
        max_publisher_pause: Nanos::from_millis(*rng.pick(&[0, 1, 20])),
        max_publisher_hold: Nanos::from_millis(30),
        discipline: *rng.pick(&[
            Discipline::FixedPriority,
            Discipline::FixedPriority,
            Discipline::Edf,
            Discipline::Fifo,
        ]),
        shares: Shares([0; 4].map(|_: u16| *rng.pick(&[0, 10, 160]))),
        ..Config::default()
    };
    config.lanes.enqueue = *rng.pick(&[Enqueue::PerReceiver, Enqueue::Shared]);
    let limits = &mut config.limits;
    limits.max_numbered_topics = *rng.pick(&[1, 3, 1_024]);
    limits.max_queued_messages = *rng.pick(&[1, 3, 10, 10_000, 10_000]);
    limits.urgent_reserve = *rng.pick(&[0, 10, 50]);
    limits.max_queued_bytes = *rng.pick(&[2_000, 64 << 20, 64 << 20]);
    limits.max_total_queued_bytes = *rng.pick(&[5_000, 1 << 30, 1 << 30]);
    limits.max_inflight = *rng.pick(&[1, 2, 10, 1000]);
    limits.receive_maximum = *rng.pick(&[1, 3, 1000]);
    limits.topic_alias_maximum = *rng.pick(&[0, 2, 64]);
    limits.topic_cache = *rng.pick(&[1, 3, 65_536]);
    limits.send_buffer = *rng.pick(&[500, 3_000, 1 << 20]);
    limits.max_retained_messages = *rng.pick(&[3, 1_000_000, 1_000_000]);
    limits.max_retained_bytes = *rng.pick(&[3_000, 1 << 30, 1 << 30]);
    limits.max_subscriptions_per_session = *rng.pick(&[3, 10_000, 10_000]);
    limits.max_session_expiry = *rng.pick(&[3, u32::MAX, u32::MAX]);
    config
}

fn any_qos(rng: &mut Rng) -> QoS {
    *rng.pick(&[QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce])
}

fn any_levels(rng: &mut Rng, wildcards: bool) -> String {
    let mut levels: Vec<&str> = Vec::new();
    for _ in 0..*rng.pick(&[1, 1, 2, 2, 3]) {
        if wildcards && rng.chance(30) {
            levels.push("+");
        } else {
            let level: &&str = rng.pick(&LEVELS);
            levels.push(level);
        }
    }
    if wildcards && rng.chance(30) {
        levels.pop();
        levels.push("#");
    }
    match levels.join("/") {
        empty if empty.is_empty() => "a".into(),
        topic => topic,
    }
}

fn any_topic(rng: &mut Rng) -> String {
    any_levels(rng, false)
}

fn any_filter(rng: &mut Rng) -> String {
    let share = *rng.pick(&["", "", "", "", "$share/g/", "$share/h/"]);
    format!("{share}{}", any_levels(rng, true))
}

/// Returns a payload that no other message has, or an empty one.
fn any_payload(rng: &mut Rng, next: &mut u64, may_be_empty: bool) -> Vec<u8> {
    if may_be_empty && rng.chance(25) {
        return Vec::new();
    }
    *next += 1;
    let mut payload = next.to_be_bytes().to_vec();
    let size = *rng.pick(&[8, 8, 8, 40, 40, 300, 300, 2_000, 10_000]);
    payload.resize(size, *next as u8);
    payload
}

fn any_properties(rng: &mut Rng, properties: &mut PropertyBuf) {
    if rng.chance(40) {
        properties.push_number(
            PropertyId::MessageExpiryInterval,
            *rng.pick(&[0, 1, 2, 5, 1000]),
        );
    }
    if rng.chance(30) {
        properties.push_number(PropertyId::PayloadFormatIndicator, rng.below(2) as u32);
    }
    for (id, value) in [
        (PropertyId::ContentType, "text/plain"),
        (PropertyId::ResponseTopic, "answers/here"),
        (PropertyId::CorrelationData, "\u{1}\u{2}"),
    ] {
        if rng.chance(20) {
            let _ = properties.push_data(id, value.as_bytes());
        }
    }
    for _ in 0..*rng.pick(&[0, 0, 1, 3]) {
        let value = format!("{}", rng.below(100));
        let _ = properties.push_user("key", &value);
    }
    if rng.chance(40) {
        let (key, value) = *rng.pick(&[
            ("priority", "0"),
            ("priority", "7"),
            ("rt-priority", "3"),
            ("rt-deadline", "5ms"),
            ("rt-deadline", "2s"),
            ("priority", "none"),
        ]);
        let _ = properties.push_user(key, value);
    }
}
