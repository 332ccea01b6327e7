//! One-line scripts for directed tests. Statements end with `;` or a line
//! break; after each, everything that is under way arrives. Clients have one
//! letter or word for a name, which is also their client identifier.
//!
//! | statement | meaning |
//! |---|---|
//! | `broker shards=2 queue=10 policy=oldest ...` | first: settings, see [`Scenario::configure`] |
//! | `conn a v5 resume expiry=60 rm=2 ...` | connect (`sub` and `pub` do it too, with defaults: v5, clean) |
//! | `sub a t/# q1 nl rap rh=1 id=5 fails=0x8F` | subscribe, and how it fails |
//! | `unsub a t/#` | unsubscribe |
//! | `pub a t/x hello q1 retain expiry=5 alias=1 size=900 times=3 fails=0x97 nowait` | publish; `-` is an empty payload |
//! | `expect b t/x hello q1 retain dup ids=1,2 left=5 number=3` | the next message of `b` |
//! | `count b 3`, `none b` | so many messages wait for `b`; forgets them |
//! | `gone b 0x8E`, `gone b` | `b` was disconnected, with that reason |
//! | `stop b`, `read b` | `b` stops reading, and goes on |
//! | `hold b`, `ack b` | `b` keeps its acknowledgements back, and sends them |
//! | `drop b`, `drop b 0x04 expiry=9` | `b` sends DISCONNECT |
//! | `cut b`, `cut b unnoticed` | the network breaks |
//! | `wait 5s` | time passes |
//! | `raw a c000` | `a` sends these bytes |
//! | `pub a t x user=priority:0`, `conn a user=rt-late:drop` | a user property, of SUBSCRIBE too; repeatable |
//! | `idle` | all gauges of the broker are zero |
//! | `idle_queues` | those of queues and messages in flight are |

use std::collections::{BTreeMap, VecDeque};

use punctual_broker::{
    Config, Discipline, Enqueue, Nanos, Overflow, QueueFull, Shares, Urgency, UrgencyRule,
};
use punctual_codec::packet::RetainHandling;
use punctual_codec::{
    Ack, Connect, Disconnect, Packet, PacketType, PropertyBuf, PropertyId, Publish, QoS,
    ReasonCode, Subscribe, SubscribeOptions, Unsubscribe, Version, Will,
};

use crate::wire::{Decoder, Delivered, Incoming};
use crate::world::{LinkId, LinkProfile, Trace, World};

type Outcome = Result<(), String>;

/// A broker with clients that have names, to which statements of scripts are applied.
pub struct Scenario {
    world: World,
    clients: BTreeMap<String, Client>,
}

struct Client {
    link: LinkId,
    version: Version,
    decoder: Decoder,
    next_id: u16,
    holding: bool,
    held: Vec<(PacketType, u16)>,
    inbox: VecDeque<Delivered>,
    /// Packets other than PUBLISH that no statement has consumed, in order.
    answers: VecDeque<Incoming>,
}

/// The words of one statement.
struct Words<'a> {
    words: Vec<&'a str>,
}

impl<'a> Words<'a> {
    fn at(&self, index: usize) -> Result<&'a str, String> {
        self.words
            .get(index)
            .copied()
            .ok_or_else(|| format!("word {index} is missing"))
    }

    fn has(&self, word: &str) -> bool {
        self.words.contains(&word)
    }

    fn value(&self, key: &str) -> Option<&'a str> {
        self.words.iter().find_map(|word| {
            word.strip_prefix(key)
                .and_then(|rest| rest.strip_prefix('='))
        })
    }

    fn number(&self, key: &str) -> Result<Option<u32>, String> {
        self.value(key).map(number).transpose()
    }

    fn qos(&self) -> QoS {
        match (self.has("q1"), self.has("q2")) {
            (_, true) => QoS::ExactlyOnce,
            (true, _) => QoS::AtLeastOnce,
            _ => QoS::AtMostOnce,
        }
    }
}

/// Adds the user properties that the words state.
fn put_user(words: &Words<'_>, key: &str, properties: &mut PropertyBuf) -> Outcome {
    let texts = words.words.iter().filter_map(|word| {
        word.strip_prefix(key)
            .and_then(|rest| rest.strip_prefix('='))
    });
    for text in texts {
        let (name, value) = text.split_once(':').ok_or("user=name:value")?;
        properties
            .push_user(name, value)
            .map_err(|error| error.to_string())?;
    }
    Ok(())
}

/// A rule of the form `alarm/#:priority=0`, or `log/#:bulk`.
fn rule(text: &str) -> Result<UrgencyRule, String> {
    let (filter, stated) = text.split_once(':').ok_or("rule=filter:requirements")?;
    let urgency = match stated {
        "bulk" => Urgency {
            bulk: true,
            ..Urgency::default()
        },
        stated => {
            let value = stated
                .strip_prefix("priority=")
                .ok_or("priority=N or bulk")?;
            Urgency {
                priority: Some(u64::from(number(value)?)),
                ..Urgency::default()
            }
        }
    };
    Ok(UrgencyRule {
        filter: filter.into(),
        urgency,
        requirements: punctual_model::Requirements::NONE,
    })
}

fn number(text: &str) -> Result<u32, String> {
    match text.strip_prefix("0x") {
        Some(hex) => u32::from_str_radix(hex, 16),
        None => text.parse(),
    }
    .map_err(|_| format!("{text:?} is not a number"))
}

fn duration(text: &str) -> Result<Nanos, String> {
    for (unit, nanos) in [("us", 1_000), ("ms", 1_000_000), ("s", 1_000_000_000)] {
        if let Some(count) = text.strip_suffix(unit)
            && let Ok(count) = count.parse::<u64>()
        {
            return Ok(Nanos(count * nanos));
        }
    }
    Err(format!("{text:?} is not a duration"))
}

impl Scenario {
    /// Runs a script.
    ///
    /// # Panics
    /// With the statement, if something is not as the script says.
    pub fn run(script: &str) -> Self {
        let mut scenario = Self::default();
        scenario.go_on(script);
        scenario
    }

    /// Runs more statements.
    ///
    /// # Panics
    /// As [`Self::run`].
    pub fn go_on(&mut self, script: &str) {
        let statements = script.split(['\n', ';']).map(str::trim);
        for (at, statement) in statements.filter(|s| !s.is_empty()).enumerate() {
            if let Err(why) = self.statement(statement) {
                panic!("statement {}, `{statement}`: {why}", at + 1);
            }
        }
    }

    /// The simulation itself, for what statements cannot express.
    pub fn world(&mut self) -> &mut World {
        &mut self.world
    }

    /// The link of a client.
    ///
    /// # Panics
    /// If there is no such client.
    pub fn link(&mut self, name: &str) -> LinkId {
        match self.client(name) {
            Ok(client) => client.link,
            Err(why) => panic!("{why}"),
        }
    }

    /// Takes the messages that a client has received and no statement has consumed.
    ///
    /// # Panics
    /// If there is no such client.
    pub fn take_inbox(&mut self, name: &str) -> Vec<Delivered> {
        match self.client(name) {
            Ok(client) => client.inbox.drain(..).collect(),
            Err(why) => panic!("{why}"),
        }
    }

    fn statement(&mut self, statement: &str) -> Outcome {
        let words = Words {
            words: statement.split_whitespace().collect(),
        };
        match words.at(0)? {
            "broker" => self.configure(&words)?,
            "conn" => self.connect(&words)?,
            "sub" => self.subscribe(&words)?,
            "unsub" => self.unsubscribe(&words)?,
            "pub" => self.publish(&words)?,
            "expect" => self.expect(&words)?,
            "count" => {
                let expected = number(words.at(2)?)? as usize;
                self.count(words.at(1)?, expected)?;
            }
            "none" => self.count(words.at(1)?, 0)?,
            "gone" => self.gone(&words)?,
            "stop" | "read" => {
                let link = self.client(words.at(1)?)?.link;
                self.world.set_reading(link, words.at(0)? == "read");
            }
            "hold" => self.client(words.at(1)?)?.holding = true,
            "ack" => self.release_acks(words.at(1)?)?,
            "drop" => self.disconnect(&words)?,
            "cut" => {
                let link = self.client(words.at(1)?)?.link;
                let noticed = (!words.has("unnoticed")).then_some(Nanos(1000));
                self.world.cut(link, noticed);
            }
            "wait" => {
                let until = self.world.now() + duration(words.at(1)?)?;
                while self.world.step(until) {
                    self.serve_clients()?;
                }
            }
            "raw" => {
                let bytes = hex(words.at(2)?)?;
                let link = self.client(words.at(1)?)?.link;
                self.world.write(link, &bytes);
            }
            "idle" => self.idle(false)?,
            "idle_queues" => self.idle(true)?,
            other => return Err(format!("{other:?} is not a statement")),
        }
        self.settle()
    }

    /// Applies the settings of the statement `broker`: `shards`, `policy` (`refuse`, `oldest`, `new`,
    /// `disconnect`), `queue`, `queue_bytes`, `total_bytes`, `inflight`,
    /// `urgent_reserve`,
    /// `buffer`, `pause`, `hold`, `sessions`, `subs`, `retained`, `retained_bytes`,
    /// `max_expiry`, `max_packet`, `user_properties`, `aliases`, `rm`, `qos`,
    /// `qos0_offline`, `mail` (longest delay between shards).
    fn configure(&mut self, words: &Words<'_>) -> Outcome {
        let mut config = quiet_config();
        let limits = &mut config.limits;
        let mut shards = 1;
        let mut mail = Nanos(20_000);
        for word in &words.words[1..] {
            let (key, value) = word.split_once('=').unwrap_or((word, "1"));
            let count = || number(value).map(|n| n as usize);
            match key {
                "shards" => shards = number(value)? as u16,
                "policy" => {
                    config.queue_full = match value {
                        "refuse" => QueueFull::Refuse,
                        "hold" => QueueFull::Hold,
                        "oldest" => QueueFull::DropOldest,
                        "new" => QueueFull::DropNew,
                        "disconnect" => QueueFull::Disconnect,
                        other => return Err(format!("{other:?} is not a policy")),
                    }
                }
                "queue" => limits.max_queued_messages = count()?,
                "queue_bytes" => limits.max_queued_bytes = count()?,
                "total_bytes" => limits.max_total_queued_bytes = count()?,
                "urgent_reserve" => limits.urgent_reserve = number(value)? as u8,
                "inflight" => limits.max_inflight = number(value)? as u16,
                "buffer" => limits.send_buffer = count()?,
                "pause" => config.max_publisher_pause = duration(value)?,
                "hold" => config.max_publisher_hold = duration(value)?,
                "sessions" => limits.max_sessions = count()?,
                "subs" => limits.max_subscriptions = count()?,
                "retained" => limits.max_retained_messages = count()?,
                "retained_bytes" => limits.max_retained_bytes = count()?,
                "max_expiry" => limits.max_session_expiry = number(value)?,
                "max_packet" => limits.max_packet_size = number(value)?,
                "user_properties" => limits.max_user_properties = count()?,
                "numbered" => limits.max_numbered_topics = count()?,
                "aliases" => limits.topic_alias_maximum = number(value)? as u16,
                "rm" => limits.receive_maximum = number(value)? as u16,
                "egress" => {
                    config.discipline = match value {
                        "fixed" => Discipline::FixedPriority,
                        "edf" => Discipline::Edf,
                        "fifo" => Discipline::Fifo,
                        _ => return Err(format!("no discipline {value:?}")),
                    };
                }
                "rule" => config.rules.push(rule(value)?),
                "lanes" => config.lanes.urgent.messages = count()?,
                "enqueue" => {
                    config.lanes.enqueue = match value {
                        "own" => Enqueue::PerReceiver,
                        "shared" => Enqueue::Shared,
                        _ => return Err(format!("no way to enqueue {value:?}")),
                    };
                }
                "overflow" => {
                    config.lanes.overflow = match value {
                        "evict" => Overflow::EvictOldest,
                        "refuse" => Overflow::RefuseNew,
                        _ => return Err(format!("no overflow policy {value:?}")),
                    };
                }
                "shares" => {
                    let share = number(value)? as u16;
                    config.shares = Shares([0, share, share, share]);
                }
                "qos" => config.maximum_qos = number(value)? as u8,
                "qos0_offline" => config.queue_qos0_offline = true,
                "mail" => mail = duration(value)?,
                other => return Err(format!("{other:?} is not a setting")),
            }
        }
        self.world = World::new(config, shards, 1);
        self.world.set_mail_delay(mail);
        Ok(())
    }

    /// `conn NAME`: `v3`, `v31`, `v5`; `resume` (instead of clean);
    /// `expiry`, `rm`, `max_packet`, `aliases`, `keep`; `will=topic:payload`
    /// with `will_delay`, `will_retain`, `will_expiry`, `will_q1`; `window`
    /// (bytes); `shard`; `present` or `fresh` (expected); `fails=0x97`;
    /// `noid`.
    fn connect(&mut self, words: &Words<'_>) -> Outcome {
        let name = words.at(1)?;
        let version = if words.has("v3") {
            Version::V311
        } else if words.has("v31") {
            Version::V31
        } else {
            Version::V5
        };
        let mut properties = PropertyBuf::new();
        for (key, id) in [
            ("expiry", PropertyId::SessionExpiryInterval),
            ("rm", PropertyId::ReceiveMaximum),
            ("max_packet", PropertyId::MaximumPacketSize),
            ("aliases", PropertyId::TopicAliasMaximum),
        ] {
            if let Some(value) = words.number(key)? {
                properties.push_number(id, value);
            }
        }
        put_user(words, "user", &mut properties)?;
        let mut will_properties = PropertyBuf::new();
        put_user(words, "will_user", &mut will_properties)?;
        for (key, id) in [
            ("will_delay", PropertyId::WillDelayInterval),
            ("will_expiry", PropertyId::MessageExpiryInterval),
        ] {
            if let Some(value) = words.number(key)? {
                will_properties.push_number(id, value);
            }
        }
        let will = words.value("will").and_then(|will| will.split_once(':'));
        let connect = Connect {
            version,
            clean_start: !words.has("resume"),
            keep_alive: words.number("keep")?.unwrap_or(0) as u16,
            client_id: if words.has("noid") { "" } else { name },
            will: will.map(|(topic, payload)| Will {
                topic,
                payload: payload.as_bytes(),
                qos: if words.has("will_q1") {
                    QoS::AtLeastOnce
                } else {
                    QoS::AtMostOnce
                },
                retain: words.has("will_retain"),
                properties: will_properties.as_properties(),
            }),
            username: None,
            password: None,
            properties: properties.as_properties(),
        };
        let mut bytes = Vec::new();
        connect.encode(&mut bytes).map_err(|e| e.to_string())?;
        let profile = LinkProfile {
            window: words
                .number("window")?
                .map_or(usize::MAX, |window| window as usize),
            ..LinkProfile::default()
        };
        let link = match words.number("shard")? {
            Some(shard) => {
                let shard = shard as u16 % self.world.directory().shards();
                self.world.connect_to(shard, profile)
            }
            None => self.world.connect(profile),
        };
        self.world.write(link, &bytes);
        let client = Client {
            link,
            version,
            decoder: Decoder::new(
                version,
                words.number("max_packet")?.unwrap_or(u32::MAX),
                words.number("aliases")?.unwrap_or(0) as u16,
            ),
            next_id: 0,
            holding: words.has("hold"),
            held: Vec::new(),
            inbox: VecDeque::new(),
            answers: VecDeque::new(),
        };
        let old = self.clients.insert(name.to_owned(), client);
        self.settle()?;
        if let Some(mut old) = old {
            // The old connection keeps what it got; see `gone`.
            self.serve_client(&mut old)?;
            self.clients.insert(format!("old-{name}"), old);
        }
        let expected = match words.number("fails")? {
            Some(code) => ReasonCode::from_byte(code as u8),
            None => Some(ReasonCode::Success),
        };
        match self.client(name)?.answers.pop_front() {
            Some(Incoming::ConnAck {
                session_present,
                reason,
                ..
            }) if Some(reason) == expected => {
                let wrong = (words.has("present") && !session_present)
                    || (words.has("fresh") && session_present);
                if wrong {
                    return Err(format!("session present is {session_present}"));
                }
                Ok(())
            }
            other => Err(format!("{other:?} instead of CONNACK")),
        }
    }

    fn subscribe(&mut self, words: &Words<'_>) -> Outcome {
        self.ensure_connected(words.at(1)?)?;
        let client = self.client(words.at(1)?)?;
        let options = SubscribeOptions {
            qos: words.qos(),
            no_local: words.has("nl"),
            retain_as_published: words.has("rap"),
            retain_handling: match words.number("rh")? {
                Some(1) => RetainHandling::SendIfNew,
                Some(2) => RetainHandling::DoNotSend,
                _ => RetainHandling::Send,
            },
        };
        let mut properties = PropertyBuf::new();
        if let Some(id) = words.number("id")? {
            properties.push_number(PropertyId::SubscriptionIdentifier, id);
        }
        put_user(words, "user", &mut properties)?;
        let id = client.id();
        let mut bytes = Vec::new();
        Subscribe::put(
            id,
            properties.as_properties(),
            &[(words.at(2)?, options)],
            client.version,
            &mut bytes,
        )
        .map_err(|e| e.to_string())?;
        let code = match words.number("fails")? {
            Some(code) => code as u8,
            None => options.qos as u8,
        };
        self.ask(words.at(1)?, &bytes, PacketType::SubAck, id, code)
    }

    fn unsubscribe(&mut self, words: &Words<'_>) -> Outcome {
        let client = self.client(words.at(1)?)?;
        let (id, version) = (client.id(), client.version);
        let mut bytes = Vec::new();
        let filters = &[words.at(2)?];
        Unsubscribe::put(
            id,
            PropertyBuf::new().as_properties(),
            filters,
            version,
            &mut bytes,
        )
        .map_err(|e| e.to_string())?;
        let code = words.number("fails")?.unwrap_or(0) as u8;
        self.ask(words.at(1)?, &bytes, PacketType::UnsubAck, id, code)
    }

    fn publish(&mut self, words: &Words<'_>) -> Outcome {
        self.ensure_connected(words.at(1)?)?;
        let qos = words.qos();
        let mut properties = PropertyBuf::new();
        for (key, property) in [
            ("expiry", PropertyId::MessageExpiryInterval),
            ("alias", PropertyId::TopicAlias),
        ] {
            if let Some(value) = words.number(key)? {
                properties.push_number(property, value);
            }
        }
        put_user(words, "user", &mut properties)?;
        let topic = match words.at(2)? {
            "-" => "",
            topic => topic,
        };
        let size = words.number("size")?.unwrap_or(0) as usize;
        for _ in 0..words.number("times")?.unwrap_or(1) {
            let client = self.client(words.at(1)?)?;
            let packet_id = if qos == QoS::AtMostOnce {
                0
            } else {
                client.id()
            };
            let mut payload = match words.at(3)? {
                "-" => Vec::new(),
                payload => payload.as_bytes().to_vec(),
            };
            payload.resize(payload.len().max(size), b'.');
            let publish = Publish {
                dup: words.has("dup"),
                qos,
                retain: words.has("retain"),
                topic,
                packet_id: words.number("pid")?.map_or(packet_id, |id| id as u16),
                properties: properties.as_properties(),
                payload: &payload,
            };
            let mut bytes = Vec::new();
            publish
                .encode(client.version, &mut bytes)
                .map_err(|e| e.to_string())?;
            let link = client.link;
            self.world.write(link, &bytes);
            self.settle()?;
            if qos == QoS::AtMostOnce || words.has("nowait") {
                continue;
            }
            let expected = words.number("fails")?.map(|code| code as u8);
            self.acknowledged(words.at(1)?, publish.packet_id, qos, expected)?;
        }
        Ok(())
    }

    /// Checks the reason code of PUBACK or PUBREC for a PUBLISH: `expected`, otherwise success.
    fn acknowledged(&mut self, name: &str, id: u16, qos: QoS, expected: Option<u8>) -> Outcome {
        let kind = if qos == QoS::AtLeastOnce {
            PacketType::PubAck
        } else {
            PacketType::PubRec
        };
        let client = self.client(name)?;
        let found = client.answers.iter().position(
            |answer| matches!(answer, Incoming::Ack { kind: k, packet_id, .. } if *k == kind && *packet_id == id),
        );
        let reason = match found.and_then(|at| client.answers.remove(at)) {
            Some(Incoming::Ack { reason, .. }) => reason,
            _ => return Err(format!("no {kind:?} for {id}; {:?}", client.answers)),
        };
        if expected.map_or(reason.is_error(), |code| reason.byte() != code) {
            return Err(format!("acknowledged with {reason}"));
        }
        Ok(())
    }

    fn expect(&mut self, words: &Words<'_>) -> Outcome {
        let (topic, payload) = (words.at(2)?, words.at(3)?);
        let payload = if payload == "-" { "" } else { payload };
        let client = self.client(words.at(1)?)?;
        let Some(got) = client.inbox.pop_front() else {
            return Err("no message waits".into());
        };
        let text = String::from_utf8_lossy(&got.payload.0).into_owned();
        let ids = match words.value("ids") {
            None => got.ids.clone(),
            Some(list) => list.split(',').map(number).collect::<Result<_, _>>()?,
        };
        let left = words.number("left")?;
        let numbered = words.number("number")?;
        let right = got.topic == topic
            && text.trim_end_matches('.') == payload
            && got.qos == words.qos()
            && got.retain == words.has("retain")
            && got.dup == words.has("dup")
            && got.ids == ids
            && (left.is_none() || got.expiry == left)
            && (numbered.is_none() || got.number.map(|(_, number)| number) == numbered);
        if right {
            Ok(())
        } else {
            Err(format!(
                "got {} {text} {:?} retain={} dup={} ids={:?} left={:?} number={:?}",
                got.topic, got.qos, got.retain, got.dup, got.ids, got.expiry, got.number
            ))
        }
    }

    fn count(&mut self, name: &str, expected: usize) -> Outcome {
        let inbox = &mut self.client(name)?.inbox;
        let topics: Vec<String> = inbox.iter().take(3).map(|m| m.topic.clone()).collect();
        let count = inbox.len();
        inbox.clear();
        if count == expected {
            Ok(())
        } else {
            Err(format!("{count} messages, the first on {topics:?}"))
        }
    }

    fn gone(&mut self, words: &Words<'_>) -> Outcome {
        let link = self.client(words.at(1)?)?.link;
        if !self.world.is_ended(link) {
            return Err("still connected".into());
        }
        let expected = words.words.get(2).map(|code| number(code)).transpose()?;
        let last = self.client(words.at(1)?)?.answers.pop_back();
        let reason = match last {
            Some(Incoming::Disconnect { reason }) => Some(u32::from(reason.byte())),
            _ => None,
        };
        if reason == expected {
            Ok(())
        } else {
            Err(format!("the last packet was {last:?}"))
        }
    }

    fn disconnect(&mut self, words: &Words<'_>) -> Outcome {
        let mut properties = PropertyBuf::new();
        if let Some(expiry) = words.number("expiry")? {
            properties.push_number(PropertyId::SessionExpiryInterval, expiry);
        }
        let code = match words.words.get(2) {
            Some(word) if !word.contains('=') => number(word)?,
            _ => 0,
        };
        let packet = Packet::Disconnect(Disconnect {
            reason: ReasonCode::from_byte(code as u8).ok_or("no such reason code")?,
            properties: properties.as_properties(),
        });
        let client = self.client(words.at(1)?)?;
        let (link, mut bytes) = (client.link, Vec::new());
        packet
            .encode(client.version, &mut bytes)
            .map_err(|e| e.to_string())?;
        self.world.write(link, &bytes);
        Ok(())
    }

    fn release_acks(&mut self, name: &str) -> Outcome {
        let client = self.client(name)?;
        client.holding = false;
        let held = std::mem::take(&mut client.held);
        let (link, mut bytes) = (client.link, Vec::new());
        for (kind, id) in held {
            put_ack(kind, id, client.version, &mut bytes);
        }
        self.world.write(link, &bytes);
        Ok(())
    }

    fn idle(&mut self, only_queues: bool) -> Outcome {
        for shard in self.world.shards() {
            let stats = shard.stats().clone();
            let gauges = [
                ("connections", stats.connections),
                ("clients_connected", stats.clients_connected),
                ("sessions", stats.sessions),
                ("subscriptions", stats.subscriptions),
                ("shared_subscriptions", stats.shared_subscriptions),
                ("queued_messages", stats.queued_messages),
                ("queued_bytes", stats.queued_bytes),
                ("inflight_messages", stats.inflight_messages),
            ];
            let skip = if only_queues { 5 } else { 0 };
            for (name, value) in gauges.into_iter().skip(skip) {
                if value != 0 {
                    return Err(format!("{name} is {value}"));
                }
            }
        }
        Ok(())
    }

    fn ask(&mut self, name: &str, bytes: &[u8], kind: PacketType, id: u16, code: u8) -> Outcome {
        let client = self.client(name)?;
        let (link, version) = (client.link, client.version);
        self.world.write(link, bytes);
        self.settle()?;
        let expected = if kind == PacketType::UnsubAck && !version.is_v5() {
            Vec::new()
        } else {
            vec![code]
        };
        let expected = Incoming::Reasons {
            kind,
            packet_id: id,
            reasons: expected,
        };
        let client = self.client(name)?;
        match client.answers.iter().position(|answer| *answer == expected) {
            Some(at) => {
                client.answers.remove(at);
                Ok(())
            }
            None => Err(format!("no {expected:?}; {:?}", client.answers)),
        }
    }

    fn client(&mut self, name: &str) -> Result<&mut Client, String> {
        self.clients
            .get_mut(name)
            .ok_or_else(|| format!("no client {name:?}"))
    }

    fn ensure_connected(&mut self, name: &str) -> Outcome {
        if self.clients.contains_key(name) {
            return Ok(());
        }
        self.statement(&format!("conn {name}"))
    }

    /// Lets time pass until nothing is under way.
    fn settle(&mut self) -> Outcome {
        let until = self.world.now() + Nanos::from_millis(1);
        while self.world.step(until) {
            self.serve_clients()?;
        }
        self.serve_clients()
    }

    fn serve_clients(&mut self) -> Outcome {
        let names: Vec<String> = self.clients.keys().cloned().collect();
        for name in names {
            if let Some(mut client) = self.clients.remove(&name) {
                let outcome = self.serve_client(&mut client);
                self.clients.insert(name, client);
                outcome?;
            }
        }
        let mut trace: Vec<Trace> = Vec::new();
        self.world.take_trace(&mut trace);
        Ok(())
    }

    fn serve_client(&mut self, client: &mut Client) -> Outcome {
        self.world
            .take_received(client.link, client.decoder.buffer());
        let mut bytes = Vec::new();
        while let Some(incoming) = client.decoder.next_packet()? {
            let answer = match &incoming {
                Incoming::Publish(publish) => match publish.qos {
                    QoS::AtMostOnce => None,
                    QoS::AtLeastOnce => Some((PacketType::PubAck, publish.packet_id)),
                    QoS::ExactlyOnce => Some((PacketType::PubRec, publish.packet_id)),
                },
                Incoming::Ack {
                    kind: PacketType::PubRel,
                    packet_id,
                    ..
                } => Some((PacketType::PubComp, *packet_id)),
                Incoming::Ack {
                    kind: PacketType::PubRec,
                    packet_id,
                    reason,
                } if !reason.is_error() => Some((PacketType::PubRel, *packet_id)),
                _ => None,
            };
            match answer {
                Some((kind, id)) if kind == PacketType::PubRel || !client.holding => {
                    put_ack(kind, id, client.version, &mut bytes);
                }
                Some(held) => client.held.push(held),
                None => {}
            }
            match incoming {
                Incoming::Publish(publish) => client.inbox.push_back(publish),
                other => client.answers.push_back(other),
            }
        }
        self.world.write(client.link, &bytes);
        Ok(())
    }
}

impl Default for Scenario {
    fn default() -> Self {
        Self {
            world: World::new(quiet_config(), 1, 1),
            clients: BTreeMap::new(),
        }
    }
}

impl Client {
    fn id(&mut self) -> u16 {
        self.next_id += 1;
        self.next_id
    }
}

fn quiet_config() -> Config {
    Config {
        sys_interval: None,
        ..Config::default()
    }
}

fn put_ack(kind: PacketType, id: u16, version: Version, out: &mut Vec<u8>) {
    // An acknowledgement without properties always fits.
    let _ = Ack::new(id, ReasonCode::Success).encode(kind, version, out);
}

fn hex(text: &str) -> Result<Vec<u8>, String> {
    let digits: Option<Vec<u8>> = text
        .as_bytes()
        .chunks(2)
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok())
        .collect();
    digits.ok_or_else(|| format!("{text:?} is not hexadecimal"))
}
