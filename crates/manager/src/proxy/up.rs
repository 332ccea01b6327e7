//! From the client to the broker.

use punctual_broker::{
    Ask, FilterVerdict, FlowState, Nanos, Policing, UrgencyRights, UrgencyRule, answers, urgency,
};
use punctual_codec::{
    Ack, Connect, Disconnect, PacketType, Properties, PropertyId, QoS, RawPublish, ReasonCode,
    SubAck, Subscribe, Unsubscribe,
};
use punctual_model::{Answer, Conformity, MessageSize, Requirements};

use super::cut::{Cut, Head, Want, cut};
use super::flows::{Flow, Note};
use super::hello::Hello;
use super::relay::{Context, Peer, Relay, Stage, Subscribing, Wait};

/// What is done with a packet.
enum PacketDecision {
    /// It passes as it is.
    Pass,
    /// It goes nowhere; what there is to say about it is said.
    Swallow,
    /// It is looked at again when there is an answer.
    Wait(Wait),
    /// This is not MQTT as we know it.
    Foreign,
}

impl Relay {
    /// Bytes from the client.
    pub(crate) fn client_sent(&mut self, context: &mut Context<'_>, bytes: &[u8]) {
        if self.up.inbox.is_empty() {
            let used = self.take_client(context, bytes);
            self.up.inbox.extend_from_slice(&bytes[used..]);
        } else {
            self.up.inbox.extend_from_slice(bytes);
            self.resume(context);
        }
    }

    /// Goes on with what had to wait.
    pub(crate) fn resume(&mut self, context: &mut Context<'_>) {
        let mut inbox = std::mem::take(&mut self.up.inbox);
        let used = self.take_client(context, &inbox);
        inbox.drain(..used);
        self.up.inbox = inbox;
    }

    /// Takes what can be taken, and returns how much that is.
    fn take_client(&mut self, context: &mut Context<'_>, bytes: &[u8]) -> usize {
        let mut at = 0;
        while at < bytes.len() {
            let left = &bytes[at..];
            if self.up.rest > 0 {
                let n = self.up.rest.min(left.len());
                if !self.up.skip {
                    self.to_broker.extend_from_slice(&left[..n]);
                }
                self.up.rest -= n;
                at += n;
                continue;
            }
            if let Stage::Foreign(_) = self.stage {
                self.to_broker.extend_from_slice(left);
                return bytes.len();
            }
            if self.wait.is_some() {
                break;
            }
            let (kind, head) = match cut(left, |kind| self.wanted(kind)) {
                Cut::Incomplete => break,
                Cut::Foreign => {
                    self.is_foreign(context.stats);
                    continue;
                }
                Cut::Packet(kind, head) => (kind, head),
            };
            let course = match head.complete {
                true => self.client_packet(context, kind, head, &left[..head.head]),
                false => PacketDecision::Pass,
            };
            match course {
                PacketDecision::Pass => self.to_broker.extend_from_slice(&left[..head.head]),
                PacketDecision::Swallow => {}
                PacketDecision::Wait(wait) => {
                    self.wait = Some(wait);
                    break;
                }
                PacketDecision::Foreign => {
                    self.is_foreign(context.stats);
                    continue;
                }
            }
            context.stats.publishes += u64::from(kind == PacketType::Publish);
            self.up.skip = matches!(course, PacketDecision::Swallow);
            self.up.rest = head.total - head.head;
            at += head.head;
        }
        at
    }

    fn wanted(&self, kind: PacketType) -> Want {
        match (&self.stage, kind) {
            (Stage::First, PacketType::Connect) => Want::Whole,
            (Stage::Open(peer), PacketType::Publish) => Want::Publish(peer.version),
            (
                Stage::Open(_),
                PacketType::Subscribe | PacketType::Unsubscribe | PacketType::Disconnect,
            ) => Want::Whole,
            _ => Want::Header,
        }
    }

    fn client_packet(
        &mut self,
        context: &mut Context<'_>,
        kind: PacketType,
        head: Head,
        bytes: &[u8],
    ) -> PacketDecision {
        let body = &bytes[head.header..];
        match (&mut self.stage, kind) {
            (Stage::First, PacketType::Connect) if head.first == 0x10 => {
                match Connect::decode(body) {
                    Ok(connect) => {
                        self.stage = Stage::Connecting(Box::new(Hello::of(&connect)));
                        PacketDecision::Pass
                    }
                    Err(_) => PacketDecision::Foreign,
                }
            }
            (Stage::First, _) => PacketDecision::Foreign,
            (
                Stage::Connecting(_),
                PacketType::Auth | PacketType::Disconnect | PacketType::PingReq,
            ) => PacketDecision::Pass,
            // It may be sent before CONNACK, and cannot be judged before.
            (Stage::Connecting(_), _) => PacketDecision::Wait(Wait::ConnAck),
            (Stage::Open(_), PacketType::Publish) => self.publish(context, head, body),
            (Stage::Open(peer), PacketType::Subscribe) => {
                match Subscribe::decode(body, peer.version) {
                    Ok(subscribe) => self.subscribe(context, &subscribe),
                    Err(_) => PacketDecision::Pass,
                }
            }
            (Stage::Open(peer), PacketType::Unsubscribe) => {
                if let Ok(unsubscribe) = Unsubscribe::decode(body, peer.version) {
                    let filters = unsubscribe.filters().map(Into::into).collect();
                    peer.unsubscribing.insert(unsubscribe.packet_id, filters);
                }
                PacketDecision::Pass
            }
            (Stage::Open(peer), PacketType::Disconnect) => {
                if let Ok(goodbye) = Disconnect::decode(body, peer.version)
                    && let Some(expiry) =
                        goodbye.properties.number(PropertyId::SessionExpiryInterval)
                {
                    peer.session_expiry = expiry;
                }
                PacketDecision::Pass
            }
            (Stage::Open(_) | Stage::Foreign(_), _) => PacketDecision::Pass,
        }
    }

    fn publish(&mut self, context: &mut Context<'_>, head: Head, body: &[u8]) -> PacketDecision {
        let Stage::Open(peer) = &mut self.stage else {
            return PacketDecision::Pass;
        };
        let Ok(raw) = RawPublish::decode(head.first, body, peer.version) else {
            return PacketDecision::Pass;
        };
        peer.acks.forget(raw.packet_id);
        let sets_alias = remember_alias(peer, &raw);
        let states = raw.properties.contains(PropertyId::UserProperty);
        let config = context.config;
        if !states
            && peer.flows.is_empty()
            && config.rules.is_empty()
            && peer.default == Requirements::NONE
        {
            return PacketDecision::Pass;
        }
        let Some(topic) = topic_of(peer, &raw) else {
            return PacketDecision::Pass;
        };
        let asked = asked(peer, &config.rules, &topic, &raw);
        let length = |len: usize| u32::try_from(len).unwrap_or(u32::MAX);
        let size = MessageSize {
            payload: length(head.total - head.head),
            properties: length(raw.properties.as_bytes().len()),
        };
        let message = Message {
            raw,
            topic,
            size,
            packet: head.total,
            sets_alias,
        };
        let known = peer.flows.get(&*message.topic).map(|flow| &flow.state);
        let held = known.and_then(FlowState::holds);
        let Some(wanted) = asked.requirements.or(held) else {
            if let Some(remark) = asked.remark {
                context.stats.remarks += 1;
                attach(peer, &message.raw, answers::best_effort(remark));
            }
            return PacketDecision::Pass;
        };
        if known.is_none_or(|flow| flow.is_new(wanted, size)) {
            let Some(ask) = peer.ask(&message, wanted, config.max_flows) else {
                context.stats.remarks += 1;
                let most = config.max_flows;
                let why = format!(
                    "the connection has {most} flows, as many as it may \
                     (admission.max_flows_per_session)"
                );
                attach(peer, &message.raw, answers::best_effort(why));
                return PacketDecision::Pass;
            };
            self.ask(context, ask);
        }
        self.carry(context, &message, asked.remark)
    }

    /// What is done with a message of a flow that has been asked about.
    fn carry(
        &mut self,
        context: &mut Context<'_>,
        message: &Message<'_>,
        remark: Option<String>,
    ) -> PacketDecision {
        let config = context.config;
        let Stage::Open(peer) = &mut self.stage else {
            return PacketDecision::Pass;
        };
        let takes_answers = peer.takes_answers();
        let state = peer.flows.get(&*message.topic).map(|flow| &flow.state);
        let matters = state.is_some_and(|s| s.pending || s.rejection().is_some());
        let refuse = matters && peer.refuses(config, &message.topic);
        let Some(flow) = peer.flows.get_mut(&*message.topic) else {
            return PacketDecision::Pass;
        };
        let acknowledged = message.raw.qos != QoS::AtMostOnce;
        if flow.state.pending && !flow.overdue && acknowledged {
            let topic = message.topic.clone();
            let until = context.now + config.decision_timeout;
            if refuse {
                return PacketDecision::Wait(Wait::Flow { topic, until });
            }
            if takes_answers {
                context.stats.held += 1;
                let note = Note::Pending { topic, until };
                peer.acks.note(message.raw.packet_id, note);
            }
        }
        if let (Some(answer), true) = (flow.state.rejection(), refuse) {
            let answer = answer.clone();
            return self.refuse(context, message, answer);
        }
        let answer = flow.state.untold();
        let answer = answer.map(|answer| answers::as_carried(answer, refuse));
        match flow.judge(message.size.payload, message.packet, context.now) {
            Conformity::Conforms => {}
            // One that is looked at again after its time conforms.
            Conformity::TooEarly(until) if config.policing == Policing::Shape => {
                context.stats.violations += 1;
                context.stats.shaped += 1;
                let until = Nanos(until);
                return PacketDecision::Wait(Wait::Shape { until });
            }
            conformity => {
                context.stats.violations += 1;
                if config.policing == Policing::Drop {
                    return self.refuse(context, message, answers::violation(conformity));
                }
            }
        }
        if let Some(answer) = remark.map(answers::best_effort).or(answer)
            && acknowledged
        {
            flow.state.told = true;
            attach(peer, &message.raw, answer);
        }
        PacketDecision::Pass
    }

    /// A message is not passed on, where that can be said to its publisher: not
    /// before MQTT 5, and not if a topic alias would be lost with it.
    fn refuse(
        &mut self,
        context: &mut Context<'_>,
        message: &Message<'_>,
        answer: Answer,
    ) -> PacketDecision {
        let Stage::Open(peer) = &mut self.stage else {
            return PacketDecision::Pass;
        };
        let version = peer.version;
        let kind = match message.raw.qos {
            _ if message.sets_alias => return PacketDecision::Pass,
            QoS::AtMostOnce => {
                context.stats.refused += 1;
                return PacketDecision::Swallow;
            }
            _ if !version.is_v5() => return PacketDecision::Pass,
            QoS::AtLeastOnce => PacketType::PubAck,
            QoS::ExactlyOnce => PacketType::PubRec,
        };
        context.stats.refused += 1;
        let mut ack = Ack::new(message.raw.packet_id, ReasonCode::QuotaExceeded);
        let properties = match peer.takes_answers() {
            true => peer.with_answer(ack.properties, &answer, 4),
            false => None,
        };
        if let Some(properties) = &properties {
            ack.properties = properties.as_properties();
        }
        let mut packet = Vec::new();
        // In the order of the messages, should others be waiting.
        if ack.encode(kind, version, &mut packet).is_ok() {
            peer.acks.hold(kind, &ack, &packet);
            self.release_acks();
        }
        PacketDecision::Swallow
    }

    fn subscribe(
        &mut self,
        context: &mut Context<'_>,
        subscribe: &Subscribe<'_>,
    ) -> PacketDecision {
        let conn = self.id;
        let Stage::Open(peer) = &mut self.stage else {
            return PacketDecision::Pass;
        };
        let stated = urgency::stated(subscribe.properties);
        let Some(decision) = peer.decided.take() else {
            let requirements = *stated.as_ref().unwrap_or(&Requirements::NONE);
            let filters = subscribe.filters().map(|(filter, _)| filter);
            let filters: Vec<Box<str>> = filters
                .filter(|filter| !filter.starts_with('$') || filter.starts_with("$share/"))
                .map(Into::into)
                .collect();
            if filters.is_empty() {
                let all = subscribe
                    .filters()
                    .map(|(filter, _)| (filter.into(), false));
                let subscribing = Subscribing {
                    filters: all.collect(),
                    answer: None,
                };
                peer.subscribing.insert(subscribe.packet_id, subscribing);
                return PacketDecision::Pass;
            }
            let ask = Ask::Subscribe {
                conn,
                filters,
                requirements,
            };
            self.ask(context, ask);
            let until = context.now + context.config.decision_timeout;
            return PacketDecision::Wait(Wait::Subscribe { until });
        };
        let refused = |filter: &str| {
            let mut verdicts = decision.verdicts.iter();
            verdicts
                .any(|(about, verdict)| **about == *filter && *verdict == FilterVerdict::Refused)
        };
        let filters: Vec<_> = subscribe.filters().collect();
        let left: Vec<_> = filters
            .iter()
            .filter(|(f, _)| !refused(f))
            .copied()
            .collect();
        let answer = match stated {
            Err(error) => Some(answers::best_effort(error.to_string())),
            Ok(_) => decision.answer.clone(),
        };
        let subscribing = Subscribing {
            filters: filters
                .iter()
                .map(|(f, _)| ((*f).into(), refused(f)))
                .collect(),
            answer,
        };
        let (version, packet_id) = (peer.version, subscribe.packet_id);
        peer.subscribing.insert(packet_id, subscribing);
        if left.len() == filters.len() {
            return PacketDecision::Pass;
        }
        context.stats.refused += 1;
        if left.is_empty() {
            // Nothing is left that the broker could answer.
            let none = SubAck {
                packet_id,
                properties: Properties::EMPTY,
                reasons: &[],
            };
            let mut packet = Vec::new();
            if self.suback(context, &none, &mut packet) {
                self.insert(&packet);
            }
            return PacketDecision::Swallow;
        }
        let put = Subscribe::put(
            packet_id,
            subscribe.properties,
            &left,
            version,
            &mut self.to_broker,
        );
        match put {
            Ok(()) => PacketDecision::Swallow,
            Err(_) => PacketDecision::Pass,
        }
    }
}

/// A PUBLISH whose requirements are looked at.
struct Message<'a> {
    raw: RawPublish<'a>,
    topic: Box<str>,
    size: MessageSize,
    /// Bytes of the packet.
    packet: usize,
    sets_alias: bool,
}

impl Peer {
    /// The question about the flow of a message; `None` if it has as many flows
    /// as it may.
    fn ask(&mut self, message: &Message<'_>, wanted: Requirements, most: usize) -> Option<Ask> {
        let topic = &message.topic;
        if !self.flows.contains_key(topic) && self.flows.len() >= most {
            return None;
        }
        let flow = self.flows.entry(topic.clone());
        let flow = flow.or_insert_with(|| Flow::new(wanted));
        flow.overdue = false;
        Some(flow.state.ask(topic, wanted, message.size, message.raw.qos))
    }
}

/// What a publication asks for.
struct Asked {
    /// In real time, if it may have that.
    requirements: Option<Requirements>,
    /// What is wrong with what it states.
    remark: Option<String>,
}

fn asked(peer: &Peer, rules: &[UrgencyRule], topic: &str, raw: &RawPublish<'_>) -> Asked {
    let mut remark = None;
    let own = urgency::stated(raw.properties).unwrap_or_else(|wrong| {
        remark = Some(wrong.to_string());
        Requirements::NONE
    });
    let rights = || match &peer.permissions {
        Some(permissions) => permissions.urgency(topic),
        None => UrgencyRights::ALL,
    };
    let rule = urgency::of_topic(rules, topic);
    let asked = urgency::asked(own.or(peer.default), rule, rights);
    if let Some(excess) = asked.refused {
        remark = Some(excess.on(topic));
    }
    let requirements = asked.requirements;
    Asked {
        requirements: requirements.is_real_time().then_some(requirements),
        remark,
    }
}

/// Keeps the topic of a new alias; whether there is one.
fn remember_alias(peer: &mut Peer, raw: &RawPublish<'_>) -> bool {
    if raw.topic.is_empty() || !raw.properties.contains(PropertyId::TopicAlias) {
        return false;
    }
    let alias = raw.properties.number(PropertyId::TopicAlias).unwrap_or(0) as usize;
    if let Some(place) = peer.aliases.get_mut(alias) {
        *place = std::str::from_utf8(raw.topic).ok().map(Into::into);
    }
    true
}

fn topic_of(peer: &Peer, raw: &RawPublish<'_>) -> Option<Box<str>> {
    if !raw.topic.is_empty() {
        return std::str::from_utf8(raw.topic).ok().map(Into::into);
    }
    let alias = raw.properties.number(PropertyId::TopicAlias)? as usize;
    peer.aliases.get(alias)?.clone()
}

/// The acknowledgement of a message is to carry an answer.
fn attach(peer: &mut Peer, raw: &RawPublish<'_>, answer: Answer) {
    if raw.qos != QoS::AtMostOnce && peer.takes_answers() {
        peer.acks.note(raw.packet_id, Note::Answer(answer));
    }
}
