//! No acknowledged message is lost: clients with persistent sessions, a broker that crashes at any
//! moment and stays down for some time, and the store of real brokers on a disk that fills up,
//! fails, and tears and reorders writes.
//!
//! Clients know only from the broker's acknowledgements what is safe, and keep their own state over
//! crashes, as the specification requires. The checks at the end, when no message is in flight:
//! every acknowledged message has arrived at every client that was subscribed before, a QoS 2
//! message once, in order by publisher, topic and QoS; retained messages are the last acknowledged
//! ones or later ones; the members of a shared subscription together have each message, with QoS 2
//! exactly one of them; no message arrives after its expiry, which includes the time in which the
//! broker is down; the will of a client that stays away arrives, and that of a client that was
//! never away or returned in time does not. For a topic with durability `none` only one thing is
//! promised: no packet identifier of its messages is given to another message while the receiver
//! uses it.
//!
//! `PUNCTUAL_SEEDS=100000` runs that many seeds, from `PUNCTUAL_FROM` on; `PUNCTUAL_SEED=7` runs
//! only that one.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test")]

use std::collections::{BTreeMap, HashMap};
use std::panic::{AssertUnwindSafe, catch_unwind};

use punctual_broker::{Config, Durability, DurabilityRule, Enqueue, Nanos, StoreTrouble};
use punctual_codec::{
    Ack, Connect, Packet, PacketType, Properties, PropertyBuf, PropertyId, Publish, QoS,
    ReasonCode, Subscribe, SubscribeOptions, Version,
};
use punctual_model::Rng;
use punctual_sim::{Decoder, Delivered, Incoming, LinkId, LinkProfile, World, seeds, trace_lines};

const TOPICS: u64 = 4;
const SECOND: Nanos = Nanos::from_secs(1);
/// Longer than bytes take to arrive at a client, and than all shards take to learn that the store
/// works again.
const SLACK: Nanos = SECOND;

/// A message by its publisher and number.
type Key = (usize, u32);

/// What a client knows of a message that it publishes.
#[derive(Debug, Clone)]
struct Sent {
    topic: String,
    qos: QoS,
    retain: bool,
    /// Whether the message states a priority.
    urgent: bool,
    packet_id: u16,
    /// Whether PUBREC has arrived.
    received: bool,
    acknowledged: bool,
    refused: bool,
    /// The steps at which the message was published and acknowledged.
    issued: u64,
    at: u64,
    /// Message Expiry Interval in seconds, and when the message was last sent.
    expiry: Option<u32>,
    transmitted: Nanos,
    /// Whether the message was sent more than once.
    again: bool,
    /// Whether the message was in flight while the store failed: the broker may have refused it,
    /// and the refusal may have been lost with the connection.
    exposed: bool,
    /// The state of the will, if the message is one.
    will: Option<Will>,
}

impl Sent {
    /// Whether every client that subscribes to the topic must have received the message at the end.
    fn is_due(&self) -> bool {
        self.acknowledged && !self.refused && self.expiry.is_none_or(|it| it >= LONG)
    }
}

/// An expiry interval, in seconds, that is longer than any story.
const LONG: u32 = 100_000;

#[derive(Debug, Clone, Copy)]
struct Will {
    delay: u32,
    fate: Fate,
}

/// Whether a will may, must or must not be published.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// The will may be published or not.
    Open,
    /// The connection of the will exists.
    Connected,
    /// The connection of the will was lost at this time.
    Lost(Nanos),
    /// The client has connected again before the will was due, so it must not be published.
    Cancelled,
}

/// A client and its session state.
struct Client {
    name: String,
    subscriber: bool,
    /// Whether the client uses a shared subscription.
    shares: bool,
    /// Number of the message that is the will of its connection.
    will: Option<u32>,
    link: Option<(LinkId, Decoder)>,
    connected: bool,
    /// Whether the broker has accepted a CONNECT, so that the session exists.
    session: bool,
    /// The step at which SUBACK arrived.
    subscribed: Option<u64>,
    /// Whether SUBSCRIBE was sent and SUBACK has not arrived.
    subscribing: bool,
    packet_id: u16,
    sent: Vec<Sent>,
    /// Numbers of the client's messages whose handshake is incomplete, in order.
    open: Vec<u32>,
    /// Received QoS 2 messages whose PUBREL has not arrived, by packet identifier.
    pending: HashMap<u16, Key>,
    /// How often the client has received each message.
    got: BTreeMap<Key, u32>,
    /// Number of the last received message, by publisher, topic and QoS.
    order: HashMap<(usize, String, QoS), u32>,
    /// The last retained message that the client has received, by topic.
    retained: BTreeMap<String, Key>,
}

impl Client {
    fn new(n: usize, subscriber: bool) -> Self {
        Self {
            name: format!("c{n}"),
            subscriber,
            shares: false,
            will: None,
            link: None,
            connected: false,
            session: false,
            subscribed: None,
            subscribing: false,
            packet_id: 0,
            sent: Vec::new(),
            open: Vec::new(),
            pending: HashMap::new(),
            got: BTreeMap::new(),
            order: HashMap::new(),
            retained: BTreeMap::new(),
        }
    }
}

fn key(payload: &[u8]) -> Key {
    let text = std::str::from_utf8(payload).unwrap();
    let (publisher, number) = text.split_once('/').unwrap();
    (publisher.parse().unwrap(), number.parse().unwrap())
}

struct Story {
    rng: Rng,
    world: World,
    clients: Vec<Client>,
    /// Number of steps so far; a step is an action of a client, or a packet that it receives.
    step: u64,
    lines: Vec<String>,
    versions: Version,
    /// Whether the disk may fail.
    troubled: bool,
    /// Until when the broker may refuse messages because the disk fails.
    trouble_until: Nanos,
    /// The greatest number of random acts.
    acts: u64,
    /// The number of topics.
    topics: u64,
    /// The topic whose messages need not survive a crash, if there is one.
    light: Option<String>,
}

impl Story {
    fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let mut config = Config {
            sys_interval: None,
            ..Config::default()
        };
        config.limits.max_inflight = *rng.pick(&[1, 3, 20, 1000]);
        config.limits.send_buffer = *rng.pick(&[300, 1 << 20]);
        config.durability.max_uncommitted = *rng.pick(&[200, 1 << 20]);
        config.durability.patience = Nanos(*rng.pick(&[0, 1_000_000, 100_000_000]));
        config.lanes.enqueue = *rng.pick(&[Enqueue::PerReceiver, Enqueue::Shared]);
        if rng.chance(20) {
            config.durability.default = Durability::Sync;
            config.durability.rules = vec![DurabilityRule {
                filter: "t/+".into(),
                durability: Durability::Batched,
            }];
        }
        let light = rng.chance(30).then(|| "t/1".to_owned());
        if let Some(topic) = &light {
            let rule = DurabilityRule {
                filter: topic.clone(),
                durability: Durability::None,
            };
            config.durability.rules.insert(0, rule);
        }
        let shards = rng.within(1..=3) as u16;
        let delay = Nanos(*rng.pick(&[1_000, 1_000_000, 30_000_000]));
        let mut world = World::with_store(config, shards, rng.any(), delay);
        world.set_mail_delay(Nanos(*rng.pick(&[10, 20_000, 2_000_000])));
        let versions = *rng.pick(&[Version::V5, Version::V5, Version::V311]);
        let publishers = rng.within(1..=3);
        let subscribers = rng.within(1..=4);
        let client = |n: u64| Client::new(n as usize, n >= publishers);
        let mut clients: Vec<Client> = (0..publishers + subscribers).map(client).collect();
        for client in &mut clients {
            client.shares = client.subscriber && rng.chance(30);
        }
        let acts = rng.within(50..=400);
        // With a single topic, many messages in a row are on the same topic.
        let topics = *rng.pick(&[1, TOPICS, TOPICS]);
        Self {
            clients,
            troubled: rng.chance(60),
            trouble_until: Nanos(0),
            acts,
            topics,
            light,
            rng,
            world,
            step: 0,
            lines: Vec::new(),
            versions,
        }
    }

    /// Whether a message must survive a crash of the broker.
    fn survives(&self, sent: &Sent) -> bool {
        self.light.as_ref() != Some(&sent.topic)
    }

    fn tell(&mut self, line: String) {
        self.lines.push(format!("{:?} {line}", self.world.now()));
    }

    fn write(&mut self, at: usize, packet: &Packet<'_>) {
        let mut bytes = Vec::new();
        packet.encode(self.versions, &mut bytes).unwrap();
        if let Some((link, _)) = &self.clients[at].link {
            self.world.write(*link, &bytes);
        }
    }

    fn connect(&mut self, at: usize) {
        let profile = LinkProfile {
            latency: Nanos(*self.rng.pick(&[10_000, 1_000_000])),
            jitter: Nanos(100_000),
            piece: *self.rng.pick(&[0, 7]),
            ..LinkProfile::default()
        };
        let link = self.world.connect(profile);
        let decoder = Decoder::new(self.versions, u32::MAX, 0);
        let client = &mut self.clients[at];
        (client.link, client.connected) = (Some((link, decoder)), false);
        client.subscribing = false;
        let name = client.name.clone();
        let mut properties = PropertyBuf::new();
        if self.versions.is_v5() {
            properties.push_number(PropertyId::SessionExpiryInterval, LONG);
        }
        let will = self.rng.chance(40).then(|| self.leave_behind(at));
        self.clients[at].will = will;
        let will = will.map(|number| (number, self.clients[at].sent[number as usize].clone()));
        let payload = will.as_ref().map(|(number, _)| format!("{at}/{number}"));
        let mut will_properties = PropertyBuf::new();
        let will = will
            .as_ref()
            .zip(payload.as_ref())
            .map(|((_, sent), payload)| {
                let delay = sent.will.map_or(0, |will| will.delay);
                if delay > 0 {
                    will_properties.push_number(PropertyId::WillDelayInterval, delay);
                }
                punctual_codec::Will {
                    topic: &sent.topic,
                    payload: payload.as_bytes(),
                    qos: sent.qos,
                    retain: false,
                    properties: will_properties.as_properties(),
                }
            });
        let connect = Connect {
            version: self.versions,
            clean_start: false,
            keep_alive: 0,
            client_id: &name,
            will,
            username: None,
            password: None,
            properties: properties.as_properties(),
        };
        self.tell(format!("{name} connects"));
        self.write(at, &Packet::Connect(connect));
    }

    /// Creates the will for the next connection of a client; returns its number.
    fn leave_behind(&mut self, at: usize) -> u32 {
        let delay = match self.versions {
            Version::V5 => *self.rng.pick(&[0, 1, 10]),
            _ => 0,
        };
        let client = &mut self.clients[at];
        let number = client.sent.len() as u32;
        client.sent.push(Sent {
            topic: format!("t/{}", self.rng.below(TOPICS)),
            qos: *self.rng.pick(&[QoS::AtLeastOnce, QoS::ExactlyOnce]),
            retain: false,
            // The order of wills is not checked, as for urgent messages.
            urgent: true,
            packet_id: 0,
            received: false,
            acknowledged: false,
            refused: false,
            issued: self.step,
            at: 0,
            expiry: None,
            transmitted: Nanos(0),
            again: false,
            exposed: false,
            will: Some(Will {
                delay,
                fate: Fate::Open,
            }),
        });
        number
    }

    /// The will of a client's connection.
    fn will(&mut self, at: usize) -> Option<&mut Will> {
        let client = &mut self.clients[at];
        client.sent[client.will? as usize].will.as_mut()
    }

    /// Notes that the connection of a client is lost, which the broker may notice at any time from
    /// now on.
    fn lose(&mut self, at: usize) {
        let now = self.world.now();
        if let Some(will) = self.will(at) {
            will.fate = match will.fate {
                Fate::Connected => Fate::Lost(now),
                fate => fate,
            };
        }
    }

    /// Notes that a client is connected again: its wills that are not due yet are never published.
    fn cancel(&mut self, at: usize) {
        let (now, own) = (self.world.now(), self.clients[at].will);
        // While the store fails it is unknown which sessions survive.
        if self.troubled {
            return;
        }
        for (number, sent) in self.clients[at].sent.iter_mut().enumerate() {
            let Some(will) = &mut sent.will else {
                continue;
            };
            let due = |lost: Nanos| lost + Nanos::from_secs(u64::from(will.delay));
            match will.fate {
                _ if own == Some(number as u32) => will.fate = Fate::Connected,
                Fate::Lost(lost) if now < due(lost) => will.fate = Fate::Cancelled,
                Fate::Connected | Fate::Lost(_) => will.fate = Fate::Open,
                Fate::Open | Fate::Cancelled => {}
            }
        }
    }

    fn disconnect(&mut self, at: usize) {
        self.lose(at);
        if let Some((link, _)) = self.clients[at].link.take() {
            let noticed = Nanos(self.rng.below(50_000_000));
            self.world.cut(link, Some(noticed));
            self.clients[at].connected = false;
            self.tell(format!("c{at} is cut off"));
        }
    }

    /// Sends SUBSCRIBE, as each subscriber does until it is acknowledged.
    fn subscribe(&mut self, at: usize) {
        let qos = if at.is_multiple_of(3) && !self.clients[at].shares {
            QoS::AtLeastOnce
        } else {
            QoS::ExactlyOnce
        };
        let options = SubscribeOptions {
            qos,
            ..SubscribeOptions::default()
        };
        let packet_id = self.next_packet_id(at);
        self.clients[at].subscribing = true;
        let mut bytes = Vec::new();
        let filter = match self.clients[at].shares {
            true => "$share/g/t/#",
            false => "t/#",
        };
        let filters = [(filter, options)];
        let (version, none) = (self.versions, Properties::EMPTY);
        Subscribe::put(packet_id, none, &filters, version, &mut bytes).unwrap();
        if let Some((link, _)) = &self.clients[at].link {
            self.world.write(*link, &bytes);
        }
        self.tell(format!("c{at} subscribes"));
    }

    fn next_packet_id(&mut self, at: usize) -> u16 {
        let client = &mut self.clients[at];
        client.packet_id = client.packet_id % 60_000 + 1;
        client.packet_id
    }

    fn publish(&mut self, at: usize) {
        let topic = format!("t/{}", self.rng.below(self.topics));
        let qos = match self.rng.chance(50) {
            true => QoS::AtLeastOnce,
            false => QoS::ExactlyOnce,
        };
        let retain = self.rng.chance(20);
        let urgent = self.versions.is_v5() && self.rng.chance(20);
        // An expired message must not have replaced a retained one, so retained messages do not
        // expire.
        let expires = self.versions.is_v5() && !retain && self.rng.chance(20);
        let expiry = expires.then(|| *self.rng.pick(&[1, 20, LONG]));
        let packet_id = self.next_packet_id(at);
        self.step += 1;
        let client = &mut self.clients[at];
        let number = client.sent.len() as u32;
        client.open.push(number);
        client.sent.push(Sent {
            topic,
            qos,
            retain,
            urgent,
            packet_id,
            received: false,
            acknowledged: false,
            refused: false,
            issued: self.step,
            at: 0,
            expiry,
            transmitted: Nanos(0),
            again: false,
            exposed: false,
            will: None,
        });
        self.transmit(at, number, false);
    }

    fn transmit(&mut self, at: usize, number: u32, dup: bool) {
        let sent = &mut self.clients[at].sent[number as usize];
        sent.transmitted = self.world.now();
        sent.again |= dup;
        sent.exposed |= sent.transmitted < self.trouble_until;
        let sent = sent.clone();
        let payload = format!("{at}/{number}");
        let mut properties = PropertyBuf::new();
        if sent.urgent {
            properties.push_user("priority", "1").unwrap();
        }
        if let Some(expiry) = sent.expiry {
            properties.push_number(PropertyId::MessageExpiryInterval, expiry);
        }
        let publish = Publish {
            dup,
            qos: sent.qos,
            retain: sent.retain,
            topic: &sent.topic,
            packet_id: sent.packet_id,
            properties: properties.as_properties(),
            payload: payload.as_bytes(),
        };
        self.tell(format!(
            "c{at} publishes {number} on {} qos {:?} id {} dup {dup} retain {}",
            sent.topic, sent.qos, sent.packet_id, sent.retain
        ));
        self.write(at, &Packet::Publish(publish));
    }

    fn ack(&mut self, at: usize, kind: PacketType, packet_id: u16) {
        let ack = Ack::new(packet_id, ReasonCode::Success);
        let packet = match kind {
            PacketType::PubAck => Packet::PubAck(ack),
            PacketType::PubRec => Packet::PubRec(ack),
            PacketType::PubRel => Packet::PubRel(ack),
            _ => Packet::PubComp(ack),
        };
        self.write(at, &packet);
    }

    /// Lets clients read what has arrived.
    fn read(&mut self) -> Result<(), String> {
        for at in 0..self.clients.len() {
            while let Some((link, decoder)) = &mut self.clients[at].link {
                self.world.take_received(*link, decoder.buffer());
                match decoder.next_packet() {
                    Ok(Some(packet)) => self.handle(at, packet)?,
                    Ok(None) => {
                        let ended = self.world.is_ended(*link);
                        if ended && !self.world.has_received(*link) {
                            // The broker may have closed the connection.
                            if let Some(will) = self.will(at) {
                                will.fate = match will.fate {
                                    Fate::Connected => Fate::Open,
                                    fate => fate,
                                };
                            }
                            let client = &mut self.clients[at];
                            (client.link, client.connected) = (None, false);
                        }
                        break;
                    }
                    Err(why) => return Err(format!("c{at}: {why}")),
                }
            }
        }
        Ok(())
    }

    fn handle(&mut self, at: usize, packet: Incoming) -> Result<(), String> {
        self.step += 1;
        match packet {
            Incoming::ConnAck {
                session_present,
                reason,
                ..
            } => {
                self.tell(format!("c{at}: CONNACK {reason:?} {session_present}"));
                if reason.is_error() {
                    self.clients[at].link = None;
                    return Ok(());
                }
                let client = &mut self.clients[at];
                if client.session && !session_present {
                    return Err(format!("c{at}: its session was lost"));
                }
                (client.session, client.connected) = (true, true);
                self.cancel(at);
                if session_present {
                    // Repeat incomplete handshakes in order (section 4.4).
                    for number in self.clients[at].open.clone() {
                        let sent = &self.clients[at].sent[number as usize];
                        if sent.received {
                            self.ack(at, PacketType::PubRel, sent.packet_id);
                        } else {
                            self.transmit(at, number, true);
                        }
                    }
                }
            }
            Incoming::Reasons {
                kind: PacketType::SubAck,
                reasons,
                ..
            } => {
                let client = &mut self.clients[at];
                client.subscribing = false;
                if reasons[0] < 0x80 && client.subscribed.is_none() {
                    client.subscribed = Some(self.step);
                    self.tell(format!("c{at}: SUBACK"));
                }
            }
            Incoming::Ack {
                kind,
                packet_id,
                reason,
            } => self.handle_ack(at, kind, packet_id, reason)?,
            Incoming::Publish(delivered) => self.handle_publish(at, &delivered)?,
            Incoming::Disconnect { reason } => self.tell(format!("c{at}: DISCONNECT {reason:?}")),
            _ => {}
        }
        Ok(())
    }

    fn handle_ack(
        &mut self,
        at: usize,
        kind: PacketType,
        packet_id: u16,
        reason: ReasonCode,
    ) -> Result<(), String> {
        self.tell(format!("c{at}: {kind:?} {packet_id} {reason:?}"));
        if kind == PacketType::PubRel {
            self.clients[at].pending.remove(&packet_id);
            self.ack(at, PacketType::PubComp, packet_id);
            return Ok(());
        }
        let step = self.step;
        let client = &mut self.clients[at];
        let open = client.open.iter().position(|number| {
            let sent = &client.sent[*number as usize];
            sent.packet_id == packet_id
                && (kind == PacketType::PubAck) == (sent.qos == QoS::AtLeastOnce)
        });
        let Some(open) = open else {
            return Err(format!("c{at}: {kind:?} {packet_id} for nothing"));
        };
        let sent = &mut client.sent[client.open[open] as usize];
        if reason.is_error() && kind != PacketType::PubComp {
            sent.refused = true;
            client.open.remove(open);
            return Ok(());
        }
        if kind != PacketType::PubComp && !sent.acknowledged {
            (sent.acknowledged, sent.at) = (true, step);
        }
        match kind {
            PacketType::PubRec => {
                sent.received = true;
                self.ack(at, PacketType::PubRel, packet_id);
            }
            _ => {
                client.open.remove(open);
            }
        }
        Ok(())
    }

    fn handle_publish(&mut self, at: usize, delivered: &Delivered) -> Result<(), String> {
        let key = key(&delivered.payload.0);
        let id = delivered.packet_id;
        self.tell(format!("c{at}: gets {key:?} id {id} dup {}", delivered.dup));
        let sent = &self.clients[key.0].sent[key.1 as usize];
        let is_away = |will: Will| !matches!(will.fate, Fate::Connected | Fate::Cancelled);
        if !sent.will.is_none_or(is_away) {
            return Err(format!("c{at}: {key:?}: {:?} comes", sent.will));
        }
        // A message that was in flight before may be sent again after its expiry, and a QoS 2
        // message waits until its packet identifier is durable.
        let compared = delivered.qos == QoS::AtLeastOnce && !delivered.dup;
        if let Some(expiry) = sent.expiry.filter(|_| compared) {
            let end = sent.transmitted + Nanos::from_secs(u64::from(expiry)) + SLACK;
            if self.world.now() > end || delivered.expiry.is_none_or(|left| left > expiry) {
                return Err(format!("c{at}: {key:?} comes after its time"));
            }
        }
        let client = &mut self.clients[at];
        let mut new = true;
        if delivered.qos == QoS::ExactlyOnce {
            match client.pending.insert(id, key) {
                Some(before) if before != key => {
                    return Err(format!(
                        "c{at}: {key:?} came with identifier {id}, which {before:?} has"
                    ));
                }
                before => new = before.is_none(),
            }
        }
        if delivered.retain {
            client.retained.insert(delivered.topic.clone(), key);
        }
        if new && !delivered.retain {
            let times = client.got.entry(key).or_default();
            *times += 1;
            let times = *times;
            let sent = &self.clients[key.0].sent[key.1 as usize];
            // The publisher may have to repeat a message that the broker has forgotten.
            let once = delivered.qos == QoS::ExactlyOnce && self.survives(sent);
            if times > 1 && once {
                return Err(format!("c{at}: {key:?} came twice"));
            }
            // Not compared are: messages with a priority, which overtake others; messages published
            // before the subscription, which may be published again after it; messages that may
            // have been refused and were published again, because they follow those accepted
            // meanwhile; and messages published again after their expiry interval, which then
            // restarts: the first copy may have expired during a crash, and the second follows
            // messages that were published between both.
            let client = &self.clients[at];
            let compared = client.subscribed.is_some_and(|since| sent.issued > since);
            let is_new = sent.exposed || sent.expiry.is_some_and(|it| it < LONG);
            let compared = compared && !client.shares && !(is_new && sent.again);
            if times == 1 && !sent.urgent && compared {
                let place = (key.0, delivered.topic.clone(), sent.qos);
                let last = self.clients[at].order.insert(place, key.1);
                if last.is_some_and(|last| last > key.1) {
                    return Err(format!("c{at}: {key:?} after {last:?}"));
                }
            }
        }
        match delivered.qos {
            QoS::AtMostOnce => {}
            QoS::AtLeastOnce => self.ack(at, PacketType::PubAck, id),
            QoS::ExactlyOnce => self.ack(at, PacketType::PubRec, id),
        }
        Ok(())
    }

    fn run_for(&mut self, time: Nanos) -> Result<(), String> {
        let until = self.world.now() + time;
        while self.world.step(until) {
            self.read()?;
        }
        self.read()
    }

    fn act(&mut self) {
        let at = self.rng.below(self.clients.len() as u64) as usize;
        if self.rng.chance(3) {
            self.crash();
            return;
        }
        if self.troubled && self.rng.chance(3) {
            let trouble = *self.rng.pick(&[
                None,
                None,
                Some(StoreTrouble::Full),
                Some(StoreTrouble::Failed),
            ]);
            self.set_trouble(trouble);
        }
        let client = &self.clients[at];
        if client.link.is_none() {
            self.connect(at);
        } else if self.rng.chance(6) {
            self.disconnect(at);
        } else if client.connected {
            if client.subscriber && client.subscribed.is_none() && !client.subscribing {
                self.subscribe(at);
            } else if !client.subscriber && client.open.len() < 50 {
                for _ in 0..self.rng.within(1..=5) {
                    self.publish(at);
                }
            }
        }
    }

    /// Sets how the disk fails from now on; `None` repairs the disk.
    fn set_trouble(&mut self, trouble: Option<StoreTrouble>) {
        self.tell(format!("the store: {trouble:?}"));
        self.world.set_store_trouble(trouble);
        let now = self.world.now();
        match trouble {
            Some(_) => self.trouble_until = Nanos(u64::MAX),
            None => self.trouble_until = self.trouble_until.min(now + SLACK),
        }
        if now < self.trouble_until {
            for client in &mut self.clients {
                for number in &client.open {
                    client.sent[*number as usize].exposed = true;
                }
            }
        }
    }

    fn crash(&mut self) {
        self.tell("the broker crashes".into());
        (0..self.clients.len()).for_each(|at| self.lose(at));
        let down = Nanos(*self.rng.pick(&[0, 500_000_000, 15_000_000_000]));
        self.world.crash(down);
    }

    /// Whether all clients except `away` have completed their handshakes and subscriptions.
    fn is_quiet(&self, away: &[usize]) -> bool {
        self.clients.iter().enumerate().all(|(at, client)| {
            away.contains(&at)
                || client.connected
                    && client.open.is_empty()
                    && client.pending.is_empty()
                    && client.subscriber == client.subscribed.is_some()
        })
    }

    fn run(&mut self) -> Result<(), String> {
        for _ in 0..self.acts {
            self.act();
            let time = *self.rng.pick(&[0, 1_000, 100_000, 5_000_000, 40_000_000]);
            self.run_for(Nanos(time))?;
        }
        self.tell("all is to become quiet".into());
        self.set_trouble(None);
        self.become_quiet(&[])?;
        let gone = self.check_wills()?;
        self.check()?;
        // A new subscriber receives all retained messages.
        let fresh = self.clients.len();
        self.clients.push(Client::new(fresh, true));
        self.become_quiet(&gone)?;
        self.check_retained(fresh)
    }

    /// Lets all clients except `away` connect, and complete handshakes and subscriptions.
    fn become_quiet(&mut self, away: &[usize]) -> Result<(), String> {
        for _ in 0..200 {
            for at in (0..self.clients.len()).filter(|at| !away.contains(at)) {
                let client = &self.clients[at];
                if client.link.is_none() {
                    self.connect(at);
                } else if client.connected
                    && client.subscriber
                    && client.subscribed.is_none()
                    && !client.subscribing
                {
                    self.subscribe(at);
                }
            }
            self.run_for(SECOND)?;
            if self.is_quiet(away) {
                break;
            }
        }
        if !self.is_quiet(away) {
            return Err("it never becomes quiet".into());
        }
        // Run until no more packets arrive.
        let mut before = 0;
        while std::mem::replace(&mut before, self.step) != self.step {
            self.run_for(SECOND)?;
        }
        Ok(())
    }

    /// Disconnects all clients with a will for good; returns their indices.
    fn check_wills(&mut self) -> Result<Vec<usize>, String> {
        let publishers = (0..self.clients.len()).filter(|at| !self.clients[*at].subscriber);
        let gone: Vec<usize> = publishers
            .filter(|at| self.clients[*at].will.is_some())
            .collect();
        for at in &gone {
            self.step += 1;
            let client = &mut self.clients[*at];
            let sent = client.will.map(|number| &mut client.sent[number as usize]);
            if let Some(sent) = sent {
                // From this step on subscribers have to receive the will.
                (sent.acknowledged, sent.issued) = (true, self.step);
                sent.at = self.step;
            }
            self.disconnect(*at);
        }
        if self.rng.chance(50) {
            let time = *self.rng.pick(&[0, 40_000_000, 800_000_000]);
            self.run_for(Nanos(time))?;
            self.crash();
        }
        // Longer than the largest Will Delay Interval, 10 s.
        self.run_for(Nanos::from_secs(12))?;
        self.become_quiet(&gone)?;
        Ok(gone)
    }

    fn check_retained(&self, fresh: usize) -> Result<(), String> {
        let retained = &self.clients[fresh].retained;
        for topic in (0..TOPICS).map(|topic| format!("t/{topic}")) {
            let all = self.clients.iter().flat_map(|client| &client.sent);
            let mut safe = all.filter(|sent| {
                sent.topic == topic
                    && sent.retain
                    && sent.acknowledged
                    && !sent.refused
                    && self.survives(sent)
            });
            match retained.get(&topic) {
                None if safe.next().is_some() => {
                    return Err(format!("nothing is retained on {topic}"));
                }
                None => {}
                Some((publisher, number)) => {
                    let found = &self.clients[*publisher].sent[*number as usize];
                    // A message without an acknowledgement may have been stored at any time.
                    let known = found.acknowledged && !found.refused;
                    if known && let Some(later) = safe.find(|sent| sent.issued > found.at) {
                        return Err(format!("{topic} retains {found:?}, not {later:?}"));
                    }
                }
            }
        }
        Ok(())
    }

    fn check(&mut self) -> Result<(), String> {
        let sharing = || self.clients.iter().filter(|client| client.shares);
        let shared_since = sharing().filter_map(|client| client.subscribed).min();
        for (publisher, other) in self.clients.iter().enumerate() {
            for (number, sent) in other.sent.iter().enumerate() {
                let key = (publisher, number as u32);
                let has = |client: &&Client| client.got.contains_key(&key);
                let due = |since: Option<u64>| {
                    let due = sent.is_due() && self.survives(sent);
                    due && since.is_some_and(|since| sent.issued > since)
                };
                let alone = self.clients.iter().filter(|client| !client.shares);
                if let Some(client) = { alone }.find(|it| due(it.subscribed) && !has(it)) {
                    return Err(format!("{}: {key:?} never came", client.name));
                }
                let takers = sharing().filter(has).count();
                if due(shared_since) && takers == 0 {
                    return Err(format!("none of the group got {key:?}"));
                }
                if sent.qos == QoS::ExactlyOnce && self.survives(sent) && takers > 1 {
                    return Err(format!("{takers} of the group got {key:?}"));
                }
            }
        }
        Ok(())
    }
}

fn run(seed: u64) -> Result<u32, String> {
    let mut story = Story::new(seed);
    // A panic message does not contain the seed.
    let end = catch_unwind(AssertUnwindSafe(|| story.run()));
    let end = end.unwrap_or_else(|_| Err("it panics".into()));
    told(seed, end, &story).map(|()| story.world.crashes())
}

/// Adds the seed and the trace of the story to a failure.
fn told(seed: u64, result: Result<(), String>, story: &Story) -> Result<(), String> {
    match result {
        Ok(()) => Ok(()),
        Err(why) => {
            let lines = trace_lines().unwrap_or(0);
            let from = story.lines.len().saturating_sub(lines);
            Err(format!(
                "seed {seed}: {why}\n{}\nPUNCTUAL_TRACE=200 shows what led to it",
                story.lines[from..].join("\n")
            ))
        }
    }
}

/// Repeats a short story, in which power fails at the first call of the disk, then at the second,
/// and so on.
#[test]
fn the_power_may_fail_at_any_call() {
    let all = seeds(300);
    let few = all.left().div_ceil(50);
    for seed in all.take(few as usize) {
        let mut calls = 0;
        loop {
            let mut story = Story::new(seed);
            story.acts = 12;
            story.world.set_power_failure(calls);
            if let Err(why) = told(seed, story.run(), &story) {
                panic!("the power failed after {calls} calls: {why}");
            }
            if story.world.expects_power_failure() {
                break;
            }
            calls += 1;
        }
        println!("seed {seed}: {calls} calls of the disk");
        assert!(calls > 10, "hardly any calls: the story proves nothing");
    }
}

#[test]
fn nothing_acknowledged_is_lost() {
    let all = seeds(300);
    let seeds = all.left();
    let run = |seed| u64::from(run(seed).unwrap_or_else(|why| panic!("{why}")));
    let crashes: u64 = all.in_parallel(run).iter().sum();
    println!("{seeds} seeds, {crashes} crashes");
    assert!(
        crashes > seeds || seeds == 1,
        "hardly any crashes: the stories prove nothing"
    );
}
