//! Clients: publishers that record the result of each message, and subscribers with persistent
//! sessions that record what they receive.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use punctual_codec::{
    Ack, Connect, Packet, PacketType, Properties, PropertyBuf, PropertyId, Publish, QoS,
    ReasonCode, Subscribe, Version, Will,
};
use punctual_model::Nanos;
use punctual_sim::{Decoder, Incoming, Socket};

/// Result of a message, as its publisher knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// The publisher's broker has accepted the message.
    Accepted,
    /// The publisher's broker has refused the message.
    Refused,
    /// The connection was lost before the answer.
    Unknown,
}

#[derive(Debug, Clone)]
pub struct Published {
    pub publisher: usize,
    pub topic: &'static str,
    pub qos: QoS,
    /// Whether the message is retained, or removes the retained message.
    pub retain: bool,
    pub is_empty: bool,
    pub sent: Nanos,
    pub fate: Fate,
}

/// The wills of a client: each connection has a will of its own.
#[derive(Debug, Clone)]
pub struct Bequest {
    pub topic: &'static str,
    pub qos: QoS,
    pub retain: bool,
    /// Will Delay Interval in seconds.
    pub delay: u32,
    /// Numbers of the wills of the client's connections, the last one last.
    pub numbers: Vec<u64>,
}

/// A message that a publisher has sent, and whose handshake is incomplete.
#[derive(Debug)]
struct Sent {
    packet_id: u16,
    number: u64,
    message: Published,
    /// Whether PUBREC has arrived and PUBREL was sent.
    released: bool,
}

/// How a publisher with a persistent session handles messages whose handshake is incomplete when
/// the broker gives it a new session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Anew {
    /// It publishes them as new messages, as the specification requires.
    Publishes,
    /// It continues their handshakes as if the session were present, as paho does.
    GoesOn,
}

/// Most messages of a publisher that are not completely acknowledged.
const WINDOW: usize = 32;

#[derive(Debug)]
pub struct Client {
    pub name: String,
    pub filter: Option<&'static str>,
    /// Whether the session outlives its connection.
    pub lasts: bool,
    /// Whether the next CONNECT has Clean Start 1.
    pub clean_start: bool,
    pub bequest: Option<Bequest>,
    /// Index of the broker to which the client connects.
    pub home: usize,
    pub socket: Option<Socket>,
    decoder: Decoder,
    connected: bool,
    /// Whether the client has received SUBACK for its present session.
    subscribed: bool,
    out: Vec<u8>,
    /// For a publisher with a persistent session: how it handles a new session.
    pub anew: Option<Anew>,
    /// Sent messages in the order of publication.
    sent: VecDeque<Sent>,
    /// Numbers of messages that the client has sent again after it was given a new session, or to a
    /// broker that may have an old copy of the session.
    pub again: BTreeSet<u64>,
    /// Brokers to which it has sent each message.
    pub sent_to: BTreeMap<u64, BTreeSet<usize>>,
    /// Packet identifiers of received QoS 2 messages that are not released, with message numbers.
    unreleased: BTreeSet<u16>,
    /// Number of messages received so far, each time the client was given a new session, or
    /// connected while not all brokers reached each other, as it may have a second session then.
    pub begins: Vec<usize>,
    /// Number of messages received when the client first got a new session in place of its own:
    /// messages that wait in the first session may still arrive.
    pub renewed: Option<usize>,
    /// Whether not all brokers reached each other when the client connected.
    pub parted: bool,
    /// Whether the client was refused temporarily and has to connect again; the value is its Clean
    /// Start.
    pub refused: Option<bool>,
    asked_clean: bool,
    /// The Session Present flag of each CONNACK.
    pub presents: Vec<bool>,
    /// Message numbers in the order of arrival, without repetitions of a packet.
    pub received: Vec<u64>,
    /// Time of arrival of each message in `received`.
    pub times: Vec<Nanos>,
    /// Topics and numbers of messages that arrived because of the subscription.
    pub retained: Vec<(String, u64)>,
    pub answers: Vec<(u64, Fate)>,
}

impl Client {
    pub fn new(name: String, filter: Option<&'static str>, home: usize) -> Self {
        Self {
            name,
            filter,
            lasts: filter.is_some(),
            clean_start: false,
            bequest: None,
            home,
            socket: None,
            decoder: decoder(),
            connected: false,
            subscribed: false,
            out: Vec::new(),
            anew: None,
            sent: VecDeque::new(),
            again: BTreeSet::new(),
            sent_to: BTreeMap::new(),
            unreleased: BTreeSet::new(),
            begins: Vec::new(),
            renewed: None,
            parted: false,
            refused: None,
            asked_clean: false,
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

    /// Number of packet identifiers of received QoS 2 messages that are not released.
    pub fn unreleased(&self) -> usize {
        self.unreleased.len()
    }

    pub fn take_out(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.out)
    }

    /// Sends CONNECT on a new connection.
    pub fn connect(&mut self, socket: Socket) {
        self.socket = Some(socket);
        self.decoder = decoder();
        let mut properties = PropertyBuf::new();
        let lasts = self.lasts;
        if let Some(clean) = self.refused.take() {
            self.clean_start |= clean;
        }
        self.asked_clean = std::mem::take(&mut self.clean_start);
        let clean_start = self.asked_clean || !lasts;
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
            clean_start,
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

    pub fn ping(&mut self) {
        self.put(&Packet::PingReq);
    }

    /// Handles the loss of the connection.
    pub fn lose(&mut self) {
        (self.socket, self.connected) = (None, false);
        self.out.clear();
        if self.anew.is_none() {
            let lost = self.sent.drain(..).filter(|sent| !sent.released);
            let lost = lost.map(|sent| (sent.number, Fate::Unknown));
            self.answers.extend(lost);
        }
    }

    /// Whether the client may send another message.
    pub fn has_room(&self) -> bool {
        self.anew.is_none() || self.sent.len() < WINDOW
    }

    /// Whether the handshakes of all sent messages are complete.
    pub fn has_sent_all(&self) -> bool {
        self.sent.is_empty()
    }

    /// The lowest unused packet identifier, so that many are soon reused.
    fn free_id(&self) -> u16 {
        let mut ids = 1..=u16::MAX;
        let is_free = |id: &u16| self.sent.iter().all(|sent| sent.packet_id != *id);
        ids.find(is_free).unwrap()
    }

    pub fn publish(&mut self, number: u64, message: &Published) {
        let packet_id = match message.qos {
            QoS::AtMostOnce => 0,
            _ => self.free_id(),
        };
        if packet_id != 0 {
            self.sent.push_back(Sent {
                packet_id,
                number,
                message: message.clone(),
                released: false,
            });
        }
        self.put_message(number, message, packet_id, false);
    }

    fn put_message(&mut self, number: u64, message: &Published, packet_id: u16, dup: bool) {
        self.sent_to.entry(number).or_default().insert(self.home);
        let Published {
            topic,
            qos,
            retain,
            is_empty,
            ..
        } = *message;
        let payload = if is_empty {
            String::new()
        } else {
            number.to_string()
        };
        self.put(&Packet::Publish(Publish {
            dup,
            qos,
            retain,
            topic,
            packet_id,
            properties: Properties::default(),
            payload: payload.as_bytes(),
        }));
    }

    /// Repeats messages that are not completely acknowledged (section 4.4).
    fn send_again(&mut self, session_present: bool) {
        let is_anew = !session_present && self.anew == Some(Anew::Publishes);
        if is_anew {
            self.sent.retain(|sent| !sent.released);
            let ids = 1..=u16::MAX;
            for (sent, id) in self.sent.iter_mut().zip(ids) {
                sent.packet_id = id;
            }
        }
        let sent = std::mem::take(&mut self.sent);
        for sent in &sent {
            match sent.released {
                true => self.ack(PacketType::PubRel, sent.packet_id),
                false => {
                    if !session_present || self.parted {
                        self.again.insert(sent.number);
                    }
                    self.put_message(sent.number, &sent.message, sent.packet_id, !is_anew);
                }
            }
        }
        self.sent = sent;
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
                if reason == ReasonCode::ServerUnavailable {
                    self.refused = Some(self.asked_clean);
                    return;
                }
                self.connected = reason == ReasonCode::Success;
                self.presents.push(session_present);
                if !session_present || self.parted {
                    self.begins.push(self.received.len());
                }
                if !session_present && self.presents.len() > 1 {
                    self.renewed.get_or_insert(self.received.len());
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
                if self.connected {
                    self.send_again(session_present);
                }
            }
            Incoming::Reasons {
                kind: PacketType::SubAck,
                ..
            } => self.subscribed = true,
            Incoming::Publish(publish) => {
                let text = String::from_utf8(publish.payload.0).unwrap();
                // A message that removes a retained message has no number.
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
                let is_error = reason.is_error();
                if kind == PacketType::PubRec && !is_error {
                    self.ack(PacketType::PubRel, packet_id);
                }
                let mut all = self.sent.iter();
                let Some(at) = all.position(|sent| sent.packet_id == packet_id) else {
                    return;
                };
                let sent = &mut self.sent[at];
                if !std::mem::replace(&mut sent.released, true) {
                    let fate = match is_error {
                        true => Fate::Refused,
                        false => Fate::Accepted,
                    };
                    self.answers.push((sent.number, fate));
                }
                if kind != PacketType::PubRec || is_error {
                    self.sent.remove(at);
                }
            }
            _ => {}
        }
    }
}

fn decoder() -> Decoder {
    Decoder::new(Version::V5, 1 << 20, 0)
}
