//! From the broker to the client.

use punctual_broker::{Ask, answers};
use punctual_codec::{Ack, ConnAck, PacketType, PropertyId, ReasonCode, SubAck, UnsubAck};

use super::cut::{Cut, Head, Want, cut};
use super::hello::Hello;
use super::relay::{Context, Relay, Stage, Wait};

/// What the broker says to a CONNECT.
pub(crate) struct Welcome {
    pub(crate) hello: Hello,
    pub(crate) session_present: bool,
    /// Chosen by the broker.
    pub(crate) client_id: Option<String>,
    pub(crate) session_expiry: u32,
    pub(crate) alias_maximum: u16,
}

impl Relay {
    /// Bytes from the broker. With a welcome the relay is to be opened
    /// ([`Relay::open`]) before it is given more.
    pub(crate) fn broker_sent(
        &mut self,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Option<Box<Welcome>> {
        let mut welcome = None;
        if self.down.inbox.is_empty() {
            let used = self.take_broker(context, bytes, &mut welcome);
            self.down.inbox.extend_from_slice(&bytes[used..]);
        } else {
            self.down.inbox.extend_from_slice(bytes);
            let mut inbox = std::mem::take(&mut self.down.inbox);
            let used = self.take_broker(context, &inbox, &mut welcome);
            inbox.drain(..used);
            self.down.inbox = inbox;
        }
        welcome
    }

    /// Takes what can be taken, and returns how much that is. It ends with a
    /// welcome.
    fn take_broker(
        &mut self,
        context: &mut Context<'_>,
        bytes: &[u8],
        welcome: &mut Option<Box<Welcome>>,
    ) -> usize {
        let mut at = 0;
        while at < bytes.len() && welcome.is_none() {
            let left = &bytes[at..];
            if self.down.rest > 0 {
                let n = self.down.rest.min(left.len());
                self.to_client.extend_from_slice(&left[..n]);
                self.down.rest -= n;
                at += n;
                if self.down.rest == 0 {
                    self.between_packets();
                }
                continue;
            }
            if let Stage::Foreign(_) = self.stage {
                self.to_client.extend_from_slice(left);
                return bytes.len();
            }
            let (kind, head) = match cut(left, |kind| self.wanted_of_broker(kind)) {
                Cut::Incomplete => break,
                Cut::Foreign => {
                    self.is_foreign(context.stats);
                    continue;
                }
                Cut::Packet(kind, head) => (kind, head),
            };
            let packet = &left[..head.head];
            if !head.complete || !self.broker_packet(context, kind, head, packet, welcome) {
                self.to_client.extend_from_slice(packet);
            }
            self.down.rest = head.total - head.head;
            at += head.head;
        }
        at
    }

    fn wanted_of_broker(&self, kind: PacketType) -> Want {
        match (&self.stage, kind) {
            (Stage::Connecting(_), PacketType::ConnAck) => Want::Whole,
            (Stage::Open(peer), PacketType::PubAck | PacketType::PubRec)
                if !peer.acks.are_plain() =>
            {
                Want::Whole
            }
            (Stage::Open(_), PacketType::SubAck | PacketType::UnsubAck) => Want::Whole,
            _ => Want::Header,
        }
    }

    /// Whether something else than the packet has been sent, or will be.
    fn broker_packet(
        &mut self,
        context: &mut Context<'_>,
        kind: PacketType,
        head: Head,
        packet: &[u8],
        welcome: &mut Option<Box<Welcome>>,
    ) -> bool {
        let body = &packet[head.header..];
        match (&mut self.stage, kind) {
            (Stage::Connecting(hello), PacketType::ConnAck) => {
                let version = hello.version;
                let Ok(connack) = ConnAck::decode(body, version) else {
                    return false;
                };
                if connack.reason != ReasonCode::Success {
                    return false;
                }
                let properties = connack.properties;
                let number = |id| properties.number(id);
                *welcome = Some(Box::new(Welcome {
                    session_present: connack.session_present,
                    client_id: properties
                        .text(PropertyId::AssignedClientIdentifier)
                        .map(Into::into),
                    session_expiry: number(PropertyId::SessionExpiryInterval)
                        .unwrap_or(hello.session_expiry),
                    alias_maximum: number(PropertyId::TopicAliasMaximum)
                        .map_or(0, |most| u16::try_from(most).unwrap_or(u16::MAX)),
                    hello: (**hello).clone(),
                }));
                let Some(remark) = hello.remark.take().filter(|_| version.is_v5()) else {
                    return false;
                };
                let mut all = punctual_codec::PropertyBuf::new();
                for property in properties.iter() {
                    all.push(property);
                }
                let rest = 2 + properties.as_bytes().len();
                let answer = answers::best_effort(remark);
                if !answers::put_answer(&mut all, &answer, rest, hello.max_packet) {
                    return false;
                }
                let connack = ConnAck {
                    properties: all.as_properties(),
                    ..connack
                };
                connack.encode(version, &mut self.to_client).is_ok()
            }
            (Stage::Open(peer), PacketType::PubAck | PacketType::PubRec) => {
                let Ok(ack) = Ack::decode(kind, body, peer.version) else {
                    return false;
                };
                peer.acks.hold(kind, &ack, packet);
                self.release_acks();
                true
            }
            (Stage::Open(peer), PacketType::SubAck) => {
                let Ok(suback) = SubAck::decode(body, peer.version) else {
                    return false;
                };
                let mut rewritten = Vec::new();
                let changed = self.suback(context, &suback, &mut rewritten);
                self.to_client.extend_from_slice(&rewritten);
                changed
            }
            (Stage::Open(peer), PacketType::UnsubAck) => {
                let Ok(unsuback) = UnsubAck::decode(body, peer.version) else {
                    return false;
                };
                let Some(mut filters) = peer.unsubscribing.remove(&unsuback.packet_id) else {
                    return false;
                };
                let mut reasons = unsuback.reasons.iter();
                filters.retain(|_| reasons.next().is_none_or(|reason| *reason < 0x80));
                peer.news.retain(|filter| !filters.contains(filter));
                if !filters.is_empty() {
                    self.ask(context, Ask::Unsubscribed { filters });
                }
                false
            }
            _ => false,
        }
    }

    /// Takes an answer to SUBSCRIBE, with one reason for each filter that was
    /// not refused here. Whether `out` has got what the client is to be sent
    /// instead.
    pub(crate) fn suback(
        &mut self,
        context: &mut Context<'_>,
        suback: &SubAck<'_>,
        out: &mut Vec<u8>,
    ) -> bool {
        let Stage::Open(peer) = &mut self.stage else {
            return false;
        };
        let Some(subscribing) = peer.subscribing.remove(&suback.packet_id) else {
            return false;
        };
        let refusal = match peer.version.is_v5() {
            true => ReasonCode::QuotaExceeded.byte(),
            false => 0x80,
        };
        let mut granted = suback.reasons.iter();
        let (mut reasons, mut lost) = (Vec::new(), Vec::new());
        let mut refuses = false;
        for (filter, refused) in &subscribing.filters {
            let reason = match refused {
                true => refusal,
                false => granted.next().copied().unwrap_or(refusal),
            };
            refuses |= refused;
            reasons.push(reason);
            if !refused && reason >= 0x80 {
                lost.push(filter.clone());
            } else if !refused {
                peer.wants_news(filter);
            }
        }
        let rest = 4 + reasons.len();
        let properties = match subscribing.answer.filter(|_| peer.takes_answers()) {
            Some(answer) => peer.with_answer(suback.properties, &answer, rest),
            None => None,
        };
        let rewritten = SubAck {
            packet_id: suback.packet_id,
            properties: properties
                .as_ref()
                .map_or(suback.properties, |all| all.as_properties()),
            reasons: &reasons,
        };
        let changed = refuses || properties.is_some();
        let changed = changed && rewritten.encode(peer.version, out).is_ok();
        if !lost.is_empty() {
            // The broker would not have them.
            self.ask(context, Ask::Unsubscribed { filters: lost });
        }
        changed
    }

    /// Sends acknowledgements that need not wait any more.
    pub(crate) fn release_acks(&mut self) {
        loop {
            let Stage::Open(peer) = &mut self.stage else {
                return;
            };
            let Some((kind, packet, answer)) = peer.acks.release() else {
                return;
            };
            let rewritten = answer.filter(|_| peer.takes_answers()).and_then(|answer| {
                let Cut::Packet(_, head) = cut(&packet, |_| Want::Whole) else {
                    return None;
                };
                let ack = Ack::decode(kind, &packet[head.header..], peer.version).ok()?;
                let all = peer.with_answer(ack.properties, &answer, 4)?;
                let ack = Ack {
                    properties: all.as_properties(),
                    ..ack
                };
                let mut bytes = Vec::new();
                ack.encode(kind, peer.version, &mut bytes).ok()?;
                Some(bytes)
            });
            self.insert(&rewritten.unwrap_or(packet));
        }
    }

    /// CONNACK has come: what was waiting for it goes on.
    pub(crate) fn connected(&mut self, context: &mut Context<'_>) {
        if let Some(Wait::ConnAck) = self.wait {
            self.wait = None;
            self.resume(context);
        }
    }
}
