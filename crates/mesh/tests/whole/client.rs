//! Clients: publishers that note what became of each message, and subscribers with
//! sessions that survive, which note what came.

use std::collections::{BTreeMap, BTreeSet};

use punctual_codec::{
    Ack, Connect, Packet, PacketType, Properties, PropertyBuf, PropertyId, Publish, QoS,
    ReasonCode, Subscribe, Version, Will,
};
use punctual_model::Nanos;
use punctual_sim::{Decoder, Incoming};

/// What a publisher knows of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// Its broker took it.
    Accepted,
    /// Its broker did not.
    Refused,
    /// The connection was lost before the answer.
    Unknown,
}

#[derive(Debug, Clone)]
pub struct Published {
    pub publisher: usize,
    pub topic: &'static str,
    pub qos: QoS,
    /// Whether it is retained, or removes what is.
    pub retain: bool,
    pub is_empty: bool,
    pub sent: Nanos,
    pub fate: Fate,
}

/// What a client leaves behind: each connection a message of its own.
#[derive(Debug, Clone)]
pub struct Bequest {
    pub topic: &'static str,
    pub qos: QoS,
    pub retain: bool,
    /// Seconds.
    pub delay: u32,
    /// Of its connections, the last one last.
    pub numbers: Vec<u64>,
}

#[derive(Debug)]
pub struct Client {
    pub name: String,
    pub filter: Option<&'static str>,
    /// Its session survives its connection.
    pub lasts: bool,
    pub bequest: Option<Bequest>,
    /// Broker it connects to.
    pub home: usize,
    pub pipe: Option<usize>,
    decoder: Decoder,
    connected: bool,
    /// It was told that its session subscribes.
    subscribed: bool,
    out: Vec<u8>,
    next_id: u16,
    /// Numbers of messages sent and not answered.
    sent: BTreeMap<u16, u64>,
    /// QoS 2 messages that are not released: identifiers, with numbers.
    unreleased: BTreeSet<u16>,
    /// How much it had received each time when it was given a new session, or came to one while
    /// not all brokers reached each other: there may be another then.
    pub begins: Vec<usize>,
    /// The same when it was first told that its session is not there, and given another one: what
    /// waits in the one that it had may still come.
    pub anew: Option<usize>,
    /// Not all brokers reach each other as it connects.
    pub parted: bool,
    /// Whether it was given a session that there was, each time it connected.
    pub presents: Vec<bool>,
    /// Numbers in the order in which they came; a repetition of a packet is left out.
    pub received: Vec<u64>,
    /// When each of them came.
    pub times: Vec<Nanos>,
    /// What came because it subscribed: topics and numbers.
    pub retained: Vec<(String, u64)>,
    pub answers: Vec<(u64, Fate)>,
}

impl Client {
    pub fn new(name: String, filter: Option<&'static str>, home: usize) -> Self {
        Self {
            name,
            filter,
            lasts: filter.is_some(),
            bequest: None,
            home,
            pipe: None,
            decoder: decoder(),
            connected: false,
            subscribed: false,
            out: Vec::new(),
            next_id: 0,
            sent: BTreeMap::new(),
            unreleased: BTreeSet::new(),
            begins: Vec::new(),
            anew: None,
            parted: false,
            presents: Vec::new(),
            received: Vec::new(),
            times: Vec::new(),
            retained: Vec::new(),
            answers: Vec::new(),
        }
    }

    fn put(&mut self, packet: &Packet<'_>) {
        packet.encode(Version::V5, &mut self.out).unwrap();
    }

    pub fn is_connected(&self) -> bool {
        self.connected
    }

    /// Identifiers of messages with QoS 2 that it has got and that were not released.
    pub fn unreleased(&self) -> usize {
        self.unreleased.len()
    }

    pub fn take_out(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.out)
    }

    /// On a new connection.
    pub fn connect(&mut self, pipe: usize) {
        self.pipe = Some(pipe);
        self.decoder = decoder();
        let mut properties = PropertyBuf::new();
        let lasts = self.lasts;
        if lasts {
            properties.push_number(PropertyId::SessionExpiryInterval, u32::MAX);
        }
        let name = self.name.clone();
        let bequest = self.bequest.clone();
        let mut with = PropertyBuf::new();
        let mut payload = String::new();
        if let Some(bequest) = &bequest {
            with.push_number(PropertyId::WillDelayInterval, bequest.delay);
            payload = bequest.numbers.last().unwrap().to_string();
        }
        self.put(&Packet::Connect(Connect {
            version: Version::V5,
            clean_start: !lasts,
            keep_alive: 0,
            properties: properties.as_properties(),
            client_id: &name,
            will: bequest.as_ref().map(|bequest| Will {
                qos: bequest.qos,
                retain: bequest.retain,
                topic: bequest.topic,
                payload: payload.as_bytes(),
                properties: with.as_properties(),
            }),
            username: None,
            password: None,
        }));
    }

    /// The connection is gone.
    pub fn lose(&mut self) {
        (self.pipe, self.connected) = (None, false);
        self.out.clear();
        for (_, number) in std::mem::take(&mut self.sent) {
            self.answers.push((number, Fate::Unknown));
        }
    }

    pub fn publish(&mut self, number: u64, message: &Published) {
        let Published {
            topic,
            qos,
            retain,
            is_empty,
            ..
        } = *message;
        self.next_id += 1;
        let packet_id = if qos == QoS::AtMostOnce {
            0
        } else {
            self.next_id
        };
        if packet_id != 0 {
            self.sent.insert(packet_id, number);
        }
        let payload = if is_empty {
            String::new()
        } else {
            number.to_string()
        };
        self.put(&Packet::Publish(Publish {
            dup: false,
            qos,
            retain,
            topic,
            packet_id,
            properties: Properties::default(),
            payload: payload.as_bytes(),
        }));
    }

    pub fn receive(&mut self, bytes: &[u8], now: Nanos) {
        self.decoder.buffer().extend_from_slice(bytes);
        while let Some(packet) = self.decoder.next_packet().unwrap() {
            self.handle(packet);
            self.times.resize(self.received.len(), now);
        }
    }

    fn ack(&mut self, kind: PacketType, packet_id: u16) {
        let ack = Ack::new(packet_id, ReasonCode::Success);
        ack.encode(kind, Version::V5, &mut self.out).unwrap();
    }

    fn handle(&mut self, packet: Incoming) {
        match packet {
            Incoming::ConnAck {
                session_present,
                reason,
                ..
            } => {
                self.connected = reason == ReasonCode::Success;
                self.presents.push(session_present);
                if !session_present || self.parted {
                    self.begins.push(self.received.len());
                }
                if !session_present && self.presents.len() > 1 {
                    self.anew.get_or_insert(self.received.len());
                }
                if !session_present {
                    self.unreleased.clear();
                    self.subscribed = false;
                }
                if let Some(filter) = self.filter.filter(|_| !self.subscribed) {
                    let mut body = vec![0, 1, 0];
                    body.extend_from_slice(&(filter.len() as u16).to_be_bytes());
                    body.extend_from_slice(filter.as_bytes());
                    body.push(2);
                    let subscribe = Subscribe::decode(&body, Version::V5).unwrap();
                    self.put(&Packet::Subscribe(subscribe));
                }
            }
            Incoming::Reasons {
                kind: PacketType::SubAck,
                ..
            } => self.subscribed = true,
            Incoming::Publish(publish) => {
                let text = String::from_utf8(publish.payload.0).unwrap();
                // What removes a retained message has no number.
                let number = text.parse().ok();
                if let (Some(number), true) = (number, publish.retain) {
                    self.retained.push((publish.topic.clone(), number));
                }
                match publish.qos {
                    QoS::AtMostOnce => self.received.extend(number),
                    QoS::AtLeastOnce => {
                        self.received.extend(number);
                        self.ack(PacketType::PubAck, publish.packet_id);
                    }
                    QoS::ExactlyOnce => {
                        if self.unreleased.insert(publish.packet_id) {
                            self.received.extend(number);
                        }
                        self.ack(PacketType::PubRec, publish.packet_id);
                    }
                }
            }
            Incoming::Ack {
                kind: PacketType::PubRel,
                packet_id,
                ..
            } => {
                self.unreleased.remove(&packet_id);
                self.ack(PacketType::PubComp, packet_id);
            }
            Incoming::Ack {
                kind,
                packet_id,
                reason,
            } => {
                if kind == PacketType::PubRec && !reason.is_error() {
                    self.ack(PacketType::PubRel, packet_id);
                }
                if let Some(number) = self.sent.remove(&packet_id) {
                    let fate = match reason.is_error() {
                        true => Fate::Refused,
                        false => Fate::Accepted,
                    };
                    self.answers.push((number, fate));
                }
            }
            _ => {}
        }
    }
}

fn decoder() -> Decoder {
    Decoder::new(Version::V5, 1 << 20, 0)
}
