//! A client that keeps to the protocol, and checks that the broker does:
//! receive maximum, packet identifiers, aliases, packet sizes, one answer to
//! everything and no answer to nothing.

use std::collections::{HashMap, HashSet, VecDeque};

use punctual_codec::{
    Ack, Connect, Disconnect, Packet, PacketType, PropertyBuf, PropertyId, Publish, QoS,
    ReasonCode, Subscribe, SubscribeOptions, Unsubscribe, Version,
};

use super::LinkFacts;
use crate::model::Violation;
use crate::wire::{Blob, Decoder, Delivered, Incoming};
use crate::world::LinkId;
use punctual_model::Rng;

/// When a client acknowledges what it receives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AckPolicy {
    AtOnce,
    Later,
    OutOfTurn,
}

/// The limits and the behaviour that a client chooses for one connection.
#[derive(Debug, Clone, Copy)]
pub(super) struct Plan {
    pub(super) version: Version,
    pub(super) receive_max: u16,
    pub(super) max_packet: u32,
    pub(super) alias_max: u16,
    /// The Topic Alias Maximum of the broker.
    pub(super) server_aliases: u16,
    pub(super) server_receive_max: u16,
    pub(super) acknowledging: AckPolicy,
}

/// The answers that the broker must send on a link, by the model.
#[derive(Debug, Default)]
pub(super) struct Answers {
    /// Reason codes of SUBACK and UNSUBACK, by kind and packet identifier.
    pub(super) reasons: HashMap<(PacketType, u16), Vec<u8>>,
    /// Numbers of publications by packet identifier; `None` for repetitions.
    pub(super) publications: HashMap<u16, Option<usize>>,
    /// Acknowledged publications with their reason codes, to be checked by the model.
    pub(super) outcomes: Vec<(usize, ReasonCode)>,
}

/// A publication that is not completely acknowledged.
#[derive(Debug)]
struct Outgoing {
    packet_id: u16,
    qos: QoS,
    topic: String,
    retain: bool,
    properties: PropertyBuf,
    payload: Blob,
    /// Whether PUBREC was received.
    released: bool,
    /// Whether it was sent before CONNACK.
    early: bool,
}

#[derive(Debug)]
struct Line {
    link: LinkId,
    plan: Plan,
    decoder: Decoder,
    connected: bool,
    /// Messages with QoS above 0 that are not completely acknowledged.
    unacknowledged: HashSet<u16>,
    held: VecDeque<(PacketType, u16)>,
    aliases: HashMap<String, u16>,
    pings: usize,
    output: Vec<u8>,
}

/// A client that behaves at random, within the protocol.
#[derive(Debug)]
pub(super) struct Peer {
    name: String,
    version: Option<Version>,
    line: Option<Line>,
    /// Number of the session in the model that the client was told of last.
    session: Option<usize>,
    next_id: u16,
    outgoing: VecDeque<Outgoing>,
    /// QoS 2 messages that were received and not released.
    incoming: HashSet<u16>,
    filters: Vec<String>,
}

impl Peer {
    pub(super) fn new(name: String) -> Self {
        Self {
            name,
            version: None,
            line: None,
            session: None,
            next_id: 0,
            outgoing: VecDeque::new(),
            incoming: HashSet::new(),
            filters: Vec::new(),
        }
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn link(&self) -> Option<LinkId> {
        self.line.as_ref().map(|line| line.link)
    }

    pub(super) fn version(&self) -> Option<Version> {
        self.version
    }

    pub(super) fn is_v5(&self) -> bool {
        self.version.is_some_and(Version::is_v5)
    }

    /// Takes the bytes that the client wants to send.
    pub(super) fn take_output(&mut self) -> Vec<u8> {
        match &mut self.line {
            Some(line) => std::mem::take(&mut line.output),
            None => Vec::new(),
        }
    }

    /// The buffer to which received bytes are appended.
    pub(super) fn buffer(&mut self) -> &mut Vec<u8> {
        self.line
            .as_mut()
            .map(|line| line.decoder.buffer())
            .expect("only connected clients receive")
    }

    pub(super) fn connect(&mut self, link: LinkId, plan: Plan, connect: &Connect<'_>) {
        let mut output = Vec::new();
        // Everything in it is short.
        let _ = connect.encode(&mut output);
        self.version = Some(plan.version);
        if connect.clean_start {
            self.outgoing.clear();
            self.incoming.clear();
        }
        for outgoing in &mut self.outgoing {
            outgoing.early = false;
        }
        self.line = Some(Line {
            link,
            plan,
            decoder: Decoder::new(plan.version, plan.max_packet, plan.alias_max),
            connected: false,
            unacknowledged: HashSet::new(),
            held: VecDeque::new(),
            aliases: HashMap::new(),
            pings: 0,
            output,
        });
    }

    /// Notes that the connection is lost.
    pub(super) fn lost(&mut self) {
        self.line = None;
    }

    /// Forgets the publications that are not acknowledged.
    pub(super) fn give_up(&mut self) {
        self.outgoing.clear();
    }

    fn id(&mut self) -> u16 {
        self.next_id += 1;
        self.next_id
    }

    fn put(&mut self, packet: &Packet<'_>) {
        if let Some(line) = &mut self.line {
            // Nothing here is too long.
            let _ = packet.encode(line.plan.version, &mut line.output);
        }
    }

    pub(super) fn ping(&mut self) {
        self.put(&Packet::PingReq);
        if let Some(line) = &mut self.line {
            line.pings += 1;
        }
    }

    pub(super) fn disconnect(&mut self, reason: ReasonCode, expiry: Option<u32>) {
        let mut properties = PropertyBuf::new();
        if let Some(expiry) = expiry {
            properties.push_number(PropertyId::SessionExpiryInterval, expiry);
        }
        self.put(&Packet::Disconnect(Disconnect {
            reason,
            properties: properties.as_properties(),
        }));
    }

    pub(super) fn publish(
        &mut self,
        rng: &mut Rng,
        topic: &str,
        qos: QoS,
        retain: bool,
        properties: PropertyBuf,
        payload: Vec<u8>,
    ) {
        let Some(line) = &self.line else {
            return;
        };
        let open = self.outgoing.iter().filter(|o| o.qos != QoS::AtMostOnce);
        if qos != QoS::AtMostOnce && open.count() >= usize::from(line.plan.server_receive_max) {
            return;
        }
        let early = !line.connected;
        let packet_id = if qos == QoS::AtMostOnce { 0 } else { self.id() };
        let outgoing = Outgoing {
            packet_id,
            qos,
            topic: topic.to_owned(),
            retain,
            properties,
            payload: Blob(payload),
            released: false,
            early,
        };
        self.send(&outgoing, false, !early && rng.chance(30));
        if qos != QoS::AtMostOnce {
            self.outgoing.push_back(outgoing);
        }
    }

    fn send(&mut self, outgoing: &Outgoing, dup: bool, alias: bool) {
        let Some(line) = &mut self.line else {
            return;
        };
        let mut properties = outgoing.properties.clone();
        let mut topic = outgoing.topic.as_str();
        let v5 = line.plan.version.is_v5();
        if alias && v5 && line.plan.server_aliases > 0 {
            let next = line.aliases.len() as u16 % line.plan.server_aliases + 1;
            match line.aliases.get(topic) {
                Some(alias) => {
                    properties.push_number(PropertyId::TopicAlias, u32::from(*alias));
                    topic = "";
                }
                None => {
                    line.aliases.retain(|_, alias| *alias != next);
                    line.aliases.insert(topic.to_owned(), next);
                    properties.push_number(PropertyId::TopicAlias, u32::from(next));
                }
            }
        }
        let publish = Packet::Publish(Publish {
            dup,
            qos: outgoing.qos,
            retain: outgoing.retain,
            topic,
            packet_id: outgoing.packet_id,
            properties: properties.as_properties(),
            payload: &outgoing.payload.0,
        });
        let _ = publish.encode(line.plan.version, &mut line.output);
    }

    pub(super) fn subscribe(
        &mut self,
        filters: &[(String, SubscribeOptions)],
        properties: &PropertyBuf,
    ) {
        let packet_id = self.id();
        let Some(line) = &mut self.line else {
            return;
        };
        let borrowed: Vec<(&str, SubscribeOptions)> = filters
            .iter()
            .map(|(filter, options)| (filter.as_str(), *options))
            .collect();
        let _ = Subscribe::put(
            packet_id,
            properties.as_properties(),
            &borrowed,
            line.plan.version,
            &mut line.output,
        );
        self.filters
            .extend(filters.iter().map(|(filter, _)| filter.clone()));
    }

    /// A filter to which the client has subscribed before, at random.
    pub(super) fn some_filter(&self, rng: &mut Rng) -> Option<String> {
        if self.filters.is_empty() {
            return None;
        }
        Some(rng.pick(&self.filters).clone())
    }

    pub(super) fn unsubscribe(&mut self, filter: &str) {
        let packet_id = self.id();
        if let Some(line) = &mut self.line {
            let _ = Unsubscribe::put(
                packet_id,
                PropertyBuf::new().as_properties(),
                &[filter],
                line.plan.version,
                &mut line.output,
            );
        }
    }

    /// Sends some of the acknowledgements that were held back.
    pub(super) fn acknowledge_some(&mut self, rng: &mut Rng) {
        let Some(line) = &mut self.line else {
            return;
        };
        for _ in 0..rng.within(1..=20) {
            let at = match line.plan.acknowledging {
                AckPolicy::OutOfTurn => rng.below(line.held.len() as u64) as usize,
                _ => 0,
            };
            let Some((kind, id)) = line.held.remove(at) else {
                return;
            };
            line.acknowledge(kind, id);
        }
    }

    /// Sends all acknowledgements that were held back, and from now on each at once.
    pub(super) fn acknowledge_all(&mut self) {
        if let Some(line) = &mut self.line {
            line.plan.acknowledging = AckPolicy::AtOnce;
            while let Some((kind, id)) = line.held.pop_front() {
                line.acknowledge(kind, id);
            }
        }
    }

    pub(super) fn next_packet(&mut self) -> Result<Option<Incoming>, Violation> {
        match &mut self.line {
            Some(line) => line.decoder.next_packet(),
            None => Ok(None),
        }
    }

    /// Handles a packet from the broker; returns the message of a PUBLISH that is not a known repetition.
    pub(super) fn receive(
        &mut self,
        incoming: Incoming,
        facts: &mut LinkFacts,
        rng: &mut Rng,
    ) -> Result<Option<Delivered>, Violation> {
        match incoming {
            Incoming::ConnAck {
                session_present,
                reason,
                ..
            } => {
                if reason != ReasonCode::Success {
                    return Err(format!("{} refused: {reason}", self.name));
                }
                let (number, present) = facts.session.ok_or("CONNACK without CONNECT")?;
                if present != session_present {
                    return Err(format!(
                        "Session Present is {session_present} for {}",
                        self.name
                    ));
                }
                // It may be the session of a connection whose CONNACK was lost;
                // then what was received in an earlier one does not count.
                if self.session.replace(number) != Some(number) {
                    self.incoming.clear();
                }
                self.resume(present);
            }
            Incoming::Publish(message) => return self.message(message, rng),
            Incoming::Ack {
                kind,
                packet_id,
                reason,
            } => self.ack(kind, packet_id, reason, &mut facts.answers)?,
            Incoming::Reasons {
                kind,
                packet_id,
                reasons,
            } => {
                let expected = facts.answers.reasons.remove(&(kind, packet_id));
                if expected.as_ref() != Some(&reasons) {
                    return Err(format!("{kind:?} {reasons:?} instead of {expected:?}"));
                }
            }
            Incoming::PingResp => {
                let pings = self.line.as_mut().map_or(0, |line| {
                    let pings = line.pings;
                    line.pings = pings.saturating_sub(1);
                    pings
                });
                if pings == 0 {
                    return Err("PINGRESP without PINGREQ".into());
                }
            }
            Incoming::Disconnect { reason } => {
                let known = matches!(
                    reason,
                    ReasonCode::SessionTakenOver
                        | ReasonCode::KeepAliveTimeout
                        | ReasonCode::QuotaExceeded
                        | ReasonCode::ProtocolError
                );
                if !known {
                    return Err(format!("{} disconnected: {reason}", self.name));
                }
            }
            Incoming::Auth { .. } => return Err("AUTH out of the blue".into()),
        }
        Ok(None)
    }

    /// After CONNACK, sends everything that is not acknowledged again, in order.
    fn resume(&mut self, present: bool) {
        let Some(line) = &mut self.line else {
            return;
        };
        line.connected = true;
        if !present {
            self.outgoing.retain(|outgoing| outgoing.early);
        }
        let outgoing = std::mem::take(&mut self.outgoing);
        for outgoing in &outgoing {
            if outgoing.released {
                let ack = Ack::new(outgoing.packet_id, ReasonCode::Success);
                self.put(&Packet::PubRel(ack));
            } else if !outgoing.early {
                self.send(outgoing, true, false);
            }
        }
        self.outgoing = outgoing;
        for outgoing in &mut self.outgoing {
            outgoing.early = false;
        }
    }

    fn message(
        &mut self,
        message: Delivered,
        rng: &mut Rng,
    ) -> Result<Option<Delivered>, Violation> {
        let Some(line) = &mut self.line else {
            return Ok(None);
        };
        let id = message.packet_id;
        if message.qos == QoS::AtMostOnce {
            return Ok(Some(message));
        }
        if !line.unacknowledged.insert(id) {
            return Err(format!("packet identifier {id} is in use: {message:?}"));
        }
        if line.unacknowledged.len() > usize::from(line.plan.receive_max) {
            return Err(format!("above Receive Maximum: {message:?}"));
        }
        let kind = match message.qos {
            QoS::ExactlyOnce => PacketType::PubRec,
            _ => PacketType::PubAck,
        };
        if line.plan.acknowledging == AckPolicy::AtOnce || rng.chance(10) {
            line.acknowledge(kind, id);
        } else {
            line.held.push_back((kind, id));
        }
        if message.qos == QoS::ExactlyOnce && !self.incoming.insert(id) {
            if !message.dup {
                return Err(format!("identifier {id} is not released: {message:?}"));
            }
            // Known, whatever happened to the first answer.
            return Ok(None);
        }
        Ok(Some(message))
    }

    fn ack(
        &mut self,
        kind: PacketType,
        id: u16,
        reason: ReasonCode,
        answers: &mut Answers,
    ) -> Result<(), Violation> {
        let at = self.outgoing.iter().position(|o| o.packet_id == id);
        let outgoing = at.and_then(|at| self.outgoing.get_mut(at));
        let wrong = || Err(format!("{kind:?} {id} {reason} without cause"));
        match (kind, outgoing) {
            (PacketType::PubAck, Some(o)) if o.qos == QoS::AtLeastOnce => {
                let known = answers.publications.remove(&id);
                answers
                    .outcomes
                    .extend(known.flatten().map(|n| (n, reason)));
                self.outgoing.retain(|o| o.packet_id != id);
            }
            (PacketType::PubRec, Some(o)) if o.qos == QoS::ExactlyOnce && !o.released => {
                let known = answers.publications.remove(&id);
                answers
                    .outcomes
                    .extend(known.flatten().map(|n| (n, reason)));
                if reason.is_error() {
                    self.outgoing.retain(|o| o.packet_id != id);
                } else {
                    o.released = true;
                    self.put(&Packet::PubRel(Ack::new(id, ReasonCode::Success)));
                }
            }
            (PacketType::PubComp, Some(o)) if o.released => {
                self.outgoing.retain(|o| o.packet_id != id);
            }
            (PacketType::PubRel, _) => {
                self.incoming.remove(&id);
                let Some(line) = &mut self.line else {
                    return Ok(());
                };
                if line.plan.acknowledging == AckPolicy::AtOnce {
                    line.acknowledge(PacketType::PubComp, id);
                } else {
                    line.held.push_back((PacketType::PubComp, id));
                }
            }
            _ => return wrong(),
        }
        Ok(())
    }

    /// Checks that the broker has answered everything.
    pub(super) fn check_settled(&self) -> Result<(), Violation> {
        let pings = self.line.as_ref().map_or(0, |line| line.pings);
        if self.outgoing.is_empty() && pings <= 1 {
            return Ok(());
        }
        Err(format!(
            "{} waits for answers to {:?} and {pings} pings",
            self.name, self.outgoing
        ))
    }
}

impl Line {
    fn acknowledge(&mut self, kind: PacketType, id: u16) {
        if kind != PacketType::PubRec {
            self.unacknowledged.remove(&id);
        }
        // An acknowledgement without properties always fits.
        let _ = Ack::new(id, ReasonCode::Success).encode(kind, self.plan.version, &mut self.output);
    }
}
