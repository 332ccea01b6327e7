//! What the tests of the core share: a server that keeps one session.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use punctual_codec::{
    Ack, ConnAck, Packet, PacketType, Properties, PropertyBuf, PropertyId, Publish, QoS,
    ReasonCode, Split, SubAck, Version, split,
};

/// A message as the server sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Taken {
    pub(crate) topic: String,
    pub(crate) payload: Vec<u8>,
    pub(crate) qos: QoS,
}

/// A server with one client and one session that never expires. Written from
/// the specification's tables, without a look at the client.
pub(crate) struct Server {
    version: Version,
    receive_maximum: u16,
    alias_maximum: u16,
    input: Vec<u8>,
    pub(crate) output: Vec<u8>,
    connected: bool,
    has_session: bool,
    /// QoS 2 received, not released.
    unreleased: BTreeSet<u16>,
    aliases: BTreeMap<u16, String>,
    /// All that the client published, as routed onward.
    pub(crate) taken: Vec<Taken>,
    /// QoS 1 and 2 from the client that it has not seen the end of.
    pub(crate) open: BTreeSet<u16>,
    /// To the client: not sent yet.
    queue: VecDeque<Taken>,
    /// To the client: identifier and message awaiting PUBACK or PUBREC.
    unacknowledged: VecDeque<(u16, Taken)>,
    /// To the client: awaiting PUBCOMP.
    released: VecDeque<u16>,
    next_id: u16,
}

impl Server {
    pub(crate) fn new(version: Version, receive_maximum: u16, alias_maximum: u16) -> Self {
        Self {
            version,
            receive_maximum,
            alias_maximum,
            input: Vec::new(),
            output: Vec::new(),
            connected: false,
            has_session: false,
            unreleased: BTreeSet::new(),
            aliases: BTreeMap::new(),
            taken: Vec::new(),
            open: BTreeSet::new(),
            queue: VecDeque::new(),
            unacknowledged: VecDeque::new(),
            released: VecDeque::new(),
            next_id: 0,
        }
    }

    pub(crate) fn connection_lost(&mut self) {
        self.input.clear();
        self.output.clear();
        self.aliases.clear();
        self.open.clear();
        self.connected = false;
    }

    /// The session ends, as if it had expired.
    pub(crate) fn forget_session(&mut self) {
        self.has_session = false;
        self.unreleased.clear();
        self.queue.clear();
        self.unacknowledged.clear();
        self.released.clear();
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.unacknowledged.is_empty() && self.released.is_empty()
    }

    pub(crate) fn deliver(&mut self, message: Taken) {
        self.queue.push_back(message);
        self.pump();
    }

    fn put(&mut self, packet: Packet<'_>) {
        packet.encode(self.version, &mut self.output).unwrap();
    }

    fn ack(&mut self, kind: PacketType, id: u16) {
        let ack = Ack::new(id, ReasonCode::Success);
        ack.encode(kind, self.version, &mut self.output).unwrap();
    }

    fn put_publish(&mut self, id: u16, message: &Taken, dup: bool) {
        let publish = Publish {
            dup,
            qos: message.qos,
            retain: false,
            topic: &message.topic,
            packet_id: id,
            properties: Properties::EMPTY,
            payload: &message.payload,
        };
        self.put(Packet::Publish(publish));
    }

    fn pump(&mut self) {
        const WINDOW: usize = 7;
        while self.connected && self.unacknowledged.len() + self.released.len() < WINDOW {
            let Some(message) = self.queue.pop_front() else {
                break;
            };
            let mut id = 0;
            if message.qos != QoS::AtMostOnce {
                self.next_id = self.next_id % 200 + 1;
                id = self.next_id;
                self.unacknowledged.push_back((id, message.clone()));
            }
            self.put_publish(id, &message, false);
        }
    }

    pub(crate) fn receive(&mut self, bytes: &[u8]) {
        self.input.extend_from_slice(bytes);
        let input = std::mem::take(&mut self.input);
        let mut rest = &input[..];
        while let Split::Frame(frame) = split(rest, u32::MAX).unwrap() {
            let packet = Packet::decode(frame, self.version).unwrap();
            self.on_packet(packet);
            rest = &rest[frame.bytes.len()..];
        }
        self.input = rest.to_vec();
        self.pump();
    }

    fn on_packet(&mut self, packet: Packet<'_>) {
        match packet {
            Packet::Connect(connect) => {
                assert!(!self.connected, "second CONNECT");
                assert_eq!(connect.version, self.version);
                if connect.clean_start {
                    self.forget_session();
                }
                self.connected = true;
                let mut properties = PropertyBuf::new();
                if self.version.is_v5() {
                    properties
                        .push_number(PropertyId::ReceiveMaximum, self.receive_maximum.into())
                        .push_number(PropertyId::TopicAliasMaximum, self.alias_maximum.into());
                }
                self.put(Packet::ConnAck(ConnAck {
                    session_present: self.has_session,
                    reason: ReasonCode::Success,
                    properties: properties.as_properties(),
                }));
                self.has_session = true;
                for id in self.released.clone() {
                    self.ack(PacketType::PubRel, id);
                }
                for (id, message) in self.unacknowledged.clone() {
                    self.put_publish(id, &message, true);
                }
            }
            Packet::Publish(publish) => self.on_publish(publish),
            Packet::PubRel(ack) => {
                self.unreleased.remove(&ack.packet_id);
                self.open.remove(&ack.packet_id);
                self.ack(PacketType::PubComp, ack.packet_id);
            }
            Packet::PubAck(ack) => self.unacknowledged.retain(|(id, _)| *id != ack.packet_id),
            Packet::PubRec(ack) => {
                let before = self.unacknowledged.len();
                self.unacknowledged.retain(|(id, _)| *id != ack.packet_id);
                if self.unacknowledged.len() < before {
                    self.released.push_back(ack.packet_id);
                }
                self.ack(PacketType::PubRel, ack.packet_id);
            }
            Packet::PubComp(ack) => self.released.retain(|id| *id != ack.packet_id),
            Packet::Subscribe(subscribe) => {
                let reasons: Vec<u8> = subscribe.filters().map(|(_, o)| o.qos as u8).collect();
                self.put(Packet::SubAck(SubAck {
                    packet_id: subscribe.packet_id,
                    properties: Properties::EMPTY,
                    reasons: &reasons,
                }));
            }
            Packet::PingReq => self.put(Packet::PingResp),
            Packet::Disconnect(_) => self.connected = false,
            other => panic!("unexpected {other:?}"),
        }
    }

    fn on_publish(&mut self, publish: Publish<'_>) {
        let id = publish.packet_id;
        let topic = match publish.properties.number(PropertyId::TopicAlias) {
            None => publish.topic.to_owned(),
            Some(alias) => {
                let alias = alias as u16;
                assert!(alias <= self.alias_maximum, "alias {alias}");
                if !publish.topic.is_empty() {
                    self.aliases.insert(alias, publish.topic.to_owned());
                }
                self.aliases[&alias].clone()
            }
        };
        let message = Taken {
            topic,
            payload: publish.payload.to_vec(),
            qos: publish.qos,
        };
        match publish.qos {
            QoS::AtMostOnce => self.taken.push(message),
            QoS::AtLeastOnce => {
                self.taken.push(message);
                self.ack(PacketType::PubAck, id);
            }
            QoS::ExactlyOnce => {
                if self.unreleased.insert(id) {
                    self.taken.push(message);
                }
                self.open.insert(id);
                if self.version.is_v5() {
                    assert!(
                        self.open.len() <= usize::from(self.receive_maximum),
                        "Receive Maximum {} exceeded",
                        self.receive_maximum
                    );
                }
                self.ack(PacketType::PubRec, id);
            }
        }
    }
}
