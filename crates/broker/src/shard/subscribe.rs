//! SUBSCRIBE and UNSUBSCRIBE.

use std::sync::atomic::Ordering;

use punctual_codec::packet::RetainHandling;
use punctual_codec::{
    Packet, PacketType, PropertyBuf, PropertyId, QoS, ReasonCode, SubAck, Subscribe,
    SubscribeOptions, UnsubAck, Unsubscribe, topic,
};

use super::publish::report_urgency;
use super::{Fail, Next, Shard};
use crate::admission::{Ask, FilterVerdict};
use crate::answers::{best_effort, put_answer};
use crate::hub::{ConnId, Hub};
use crate::index::Subscriber;
use crate::sequence::Sequences;
use crate::session::{Replay, Subscription};
use crate::urgency;
use crate::{Federation, Nanos};

impl Shard {
    pub(super) fn subscribe(
        &mut self,
        id: ConnId,
        packet: &Subscribe<'_>,
        now: Nanos,
    ) -> Result<Next, Fail> {
        let hub = &mut self.hub;
        let Some(conn) = hub.conns.get(id.slot) else {
            return Ok(Next::Closed);
        };
        if conn.link {
            return Err(Fail::new(
                ReasonCode::ProtocolError,
                "neighbour brokers do not subscribe: the mesh tells what they want",
            ));
        }
        let (v5, slot) = (conn.v5(), conn.session);
        hub.subscribes(slot);
        let identifier = packet
            .properties
            .number(PropertyId::SubscriptionIdentifier)
            .unwrap_or(0);
        if identifier != 0 && !hub.config.subscription_ids_available {
            return Err(Fail::new(
                ReasonCode::SubscriptionIdentifiersNotSupported,
                "subscription identifiers not supported",
            ));
        }
        if packet.properties.user_count() > hub.config.limits.max_user_properties {
            return Err(Fail::new(
                ReasonCode::QuotaExceeded,
                "more user properties than limits.max_user_properties",
            ));
        }
        let stated = urgency::stated(packet.properties);
        let numbered = urgency::numbered(packet.properties);
        let mut decided = None;
        if hub.config.admission.is_some() {
            let conn = hub.conns.get_mut(id.slot);
            decided = conn.and_then(|conn| conn.extra.as_mut()?.subscribed.take());
            if decided.is_none() {
                let filters = packet.filters().map(|(filter, _)| filter);
                let allowed = filters.filter(|filter| check(hub, id, slot, filter).is_ok());
                let filters: Vec<Box<str>> = allowed.map(Box::from).collect();
                if !filters.is_empty() {
                    let ask = Ask::Subscribe {
                        conn: id,
                        filters,
                        requirements: stated.unwrap_or_default(),
                    };
                    if let Some(conn) = hub.conns.get_mut(id.slot) {
                        conn.paused += 1;
                    }
                    hub.ask(slot, ask);
                    return Ok(Next::Hold);
                }
            }
        }
        let verdict = |filter: &str| {
            let verdicts = decided.iter().flat_map(|decided| &decided.verdicts);
            let mut own = verdicts.filter(|(asked, _)| **asked == *filter);
            own.next().map_or(FilterVerdict::Served, |(_, v)| *v)
        };
        let mut reasons = Vec::new();
        let mut given_up = Vec::new();
        for (filter, options) in packet.filters() {
            let verdict = verdict(filter);
            let checked = match check(hub, id, slot, filter) {
                Ok(()) if verdict == FilterVerdict::Refused => Err(ReasonCode::QuotaExceeded),
                other => other,
            };
            let reason = match checked {
                Err(reason) => {
                    hub.stats.refused_subscriptions += 1;
                    if decided.is_some() {
                        given_up.push(Box::from(filter));
                    }
                    reason
                }
                Ok(()) => {
                    let demoted = verdict == FilterVerdict::BestEffort;
                    let numbered = matches!(numbered, Ok(true));
                    let wish = Wish {
                        options,
                        id: identifier,
                        demoted,
                        numbered,
                    };
                    add(hub, slot, filter, wish)
                }
            };
            reasons.push(match (v5, reason.is_error()) {
                (false, true) => 0x80,
                _ => reason.byte(),
            });
        }
        // What was refused here although it had been asked about.
        if !given_up.is_empty() {
            hub.ask(slot, Ask::Unsubscribed { filters: given_up });
        }
        let mut properties = PropertyBuf::new();
        let mut answer = match (&stated, hub.config.admission) {
            (Err(error), Some(_)) => Some(best_effort(error.to_string())),
            _ => decided.and_then(|decided| decided.answer),
        };
        if let Err(error) = numbered {
            hub.stats.bad_requirements += 1;
            report_urgency(hub, id, &error, now);
            let told = answer.get_or_insert_with(|| best_effort(String::new()));
            told.reason = Some(match told.reason.as_deref() {
                None | Some("") => error,
                Some(reason) => format!("{reason}; {error}"),
            });
        }
        if let Some(answer) = answer
            && let Some(conn) = hub.conns.get(id.slot)
            && conn.v5()
            && conn.problem_information
        {
            put_answer(&mut properties, &answer, 4 + reasons.len(), conn.max_packet);
        }
        let ack = SubAck {
            packet_id: packet.packet_id,
            properties: properties.as_properties(),
            reasons: &reasons,
        };
        let about = (PacketType::SubAck, packet.packet_id, true);
        let after = hub.ticket_of(slot);
        hub.answer_with(id.slot, &Packet::SubAck(ack), about, after);
        hub.pump(slot, now);
        Ok(Next::Packet)
    }

    pub(super) fn unsubscribe(&mut self, id: ConnId, packet: &Unsubscribe<'_>) {
        let hub = &mut self.hub;
        let Some(session_slot) = hub.conns.get(id.slot).map(|conn| conn.session) else {
            return;
        };
        hub.subscribes(session_slot);
        let mut reasons = Vec::new();
        for filter in packet.filters() {
            let Some(session) = hub.sessions.get_mut(session_slot) else {
                return;
            };
            let at = session
                .subscriptions
                .iter()
                .position(|s| *s.filter == *filter);
            reasons.push(match at {
                None => ReasonCode::NoSubscriptionExisted.byte(),
                Some(at) => {
                    let Subscription { lasting, .. } = session.subscriptions.swap_remove(at);
                    session.replays.remove(filter);
                    hub.store_unsubscription(session_slot, filter);
                    let Some(session) = hub.sessions.get(session_slot) else {
                        return;
                    };
                    hub.directory.index_mut().unsubscribe(
                        filter,
                        &session.handle,
                        &hub.directory.generations,
                    );
                    if let Some(federation) = hub.directory.federation() {
                        federation.unsubscribed(filter, lasting);
                    }
                    hub.directory.subscriptions.fetch_sub(1, Ordering::Relaxed);
                    hub.stats.subscriptions -= 1;
                    hub.stats.shared_subscriptions -=
                        u64::from(filter.starts_with(topic::SHARE_PREFIX));
                    ReasonCode::Success.byte()
                }
            });
        }
        let ack = UnsubAck {
            packet_id: packet.packet_id,
            properties: Default::default(),
            reasons: &reasons,
        };
        let about = (PacketType::UnsubAck, packet.packet_id, true);
        let after = hub.ticket_of(session_slot);
        hub.answer_with(id.slot, &Packet::UnsubAck(ack), about, after);
        if hub.config.admission.is_some() {
            let filters = packet.filters().map(Box::from).collect();
            hub.ask(session_slot, Ask::Unsubscribed { filters });
        }
    }
}

/// Whether a session may subscribe to a filter.
fn check(hub: &Hub, id: ConnId, session: u32, filter: &str) -> Result<(), ReasonCode> {
    let (share, plain) = topic::split_share(filter);
    let config = &hub.config;
    let limits = &config.limits;
    if share.is_some() && !config.shared_available {
        return Err(ReasonCode::SharedSubscriptionsNotSupported);
    }
    if topic::has_wildcard(plain) && !config.wildcard_available {
        return Err(ReasonCode::WildcardSubscriptionsNotSupported);
    }
    if plain.len() > limits.max_topic_length || topic::levels(plain) > limits.max_topic_levels {
        return Err(ReasonCode::TopicFilterInvalid);
    }
    let permitted = hub
        .conns
        .get(id.slot)
        .and_then(|conn| conn.permissions.as_ref())
        .is_none_or(|permissions| permissions.may_subscribe(plain));
    if !permitted {
        return Err(ReasonCode::NotAuthorized);
    }
    let Some(session) = hub.sessions.get(session) else {
        return Err(ReasonCode::UnspecifiedError);
    };
    let known = session.subscriptions.iter().any(|s| *s.filter == *filter);
    // A full store has room for what takes the place of what it has.
    if session.durable
        && let Some(trouble) = hub.store_trouble()
        && (!known || hub.is_store_failing())
    {
        return Err(trouble.reason());
    }
    if !known
        && (session.subscriptions.len() >= limits.max_subscriptions_per_session
            || hub.directory.subscriptions.load(Ordering::Relaxed) >= limits.max_subscriptions)
    {
        return Err(ReasonCode::QuotaExceeded);
    }
    Ok(())
}

/// What is asked for with a topic filter, and given.
struct Wish {
    options: SubscribeOptions,
    id: u32,
    demoted: bool,
    numbered: bool,
}

impl Hub {
    /// Tells the federation which subscriptions are those of a persistent session now.
    pub(crate) fn tell_lasting(&mut self, slot: u32) {
        let (federation, session) = (self.directory.federation(), self.sessions.get_mut(slot));
        let (Some(federation), Some(session)) = (federation, session) else {
            return;
        };
        let lasts = !session.is_transient();
        for subscription in &mut session.subscriptions {
            subscription.tell_lasting(lasts, &**federation);
        }
    }
}

impl Subscription {
    /// Whether messages are to wait for a session with it, which outlives its connection if it `lasts`.
    pub(crate) fn is_lasting(lasts: bool, qos: QoS) -> bool {
        lasts && qos != QoS::AtMostOnce
    }

    /// Tells the federation whether that is so, if it knows it otherwise.
    fn tell_lasting(&mut self, lasts: bool, federation: &dyn Federation) {
        let lasting = Self::is_lasting(lasts, self.options.qos);
        if lasting != self.lasting {
            // In this order there is no moment in which nobody wants it.
            federation.subscribed(&self.filter, lasting);
            federation.unsubscribed(&self.filter, self.lasting);
            self.lasting = lasting;
        }
    }
}

/// Adds or replaces a subscription and starts the replay of retained messages.
fn add(hub: &mut Hub, slot: u32, filter: &str, wish: Wish) -> ReasonCode {
    let Wish {
        mut options,
        id,
        demoted,
        numbered,
    } = wish;
    let Some(session) = hub.sessions.get_mut(slot) else {
        return ReasonCode::UnspecifiedError;
    };
    options.qos = QoS::from_bits(hub.config.maximum_qos)
        .unwrap_or_default()
        .min(options.qos);
    if numbered && session.sequences.is_none() {
        let conn = session.conn.and_then(|slot| hub.conns.get(slot));
        let [a, b, c, d, ..] = conn.map_or([0; 16], |conn| conn.meta.nonce);
        let seed = u32::from_be_bytes([a, b, c, d]);
        session.sequences = Some(Box::new(Sequences::new(seed)));
    }
    let subscriber = Subscriber {
        session: session.handle.clone(),
        options,
        id,
        demoted,
        numbered,
    };
    hub.directory
        .index_mut()
        .subscribe(filter, subscriber, &hub.directory.generations);
    let (share, _) = topic::split_share(filter);
    let lasts = !session.is_transient();
    let lasting = Subscription::is_lasting(lasts, options.qos);
    let known = session
        .subscriptions
        .iter_mut()
        .find(|s| *s.filter == *filter);
    let new = known.is_none();
    match known {
        Some(known) => {
            (known.options, known.id) = (options, id);
            (known.numbered, known.demoted) = (numbered, demoted);
            if let Some(federation) = hub.directory.federation() {
                known.tell_lasting(lasts, &**federation);
            }
        }
        None => {
            if session.subscriptions.is_empty() {
                session.subscriptions.reserve_exact(1);
                if lasts && !session.handle.link {
                    (session.began, session.began_stored) = (hub.directory.begins(), false);
                }
            }
            session.subscriptions.push(Subscription {
                filter: filter.into(),
                options,
                id,
                numbered,
                demoted,
                lasting,
                inherited: false,
            });
            if let Some(federation) = hub.directory.federation() {
                federation.subscribed(filter, lasting);
            }
            hub.directory.subscriptions.fetch_add(1, Ordering::Relaxed);
            hub.stats.subscriptions += 1;
            hub.stats.shared_subscriptions += u64::from(share.is_some());
        }
    }
    let replay = match options.retain_handling {
        RetainHandling::Send => true,
        RetainHandling::SendIfNew => new,
        RetainHandling::DoNotSend => false,
    };
    if replay && share.is_none() {
        session.replays.remove(filter);
        // Usually there is nothing, and nothing has to be stored of it.
        if hub.directory.retained().len() > 0
            && let Some(subscription) = session.subscriptions.iter().find(|s| *s.filter == *filter)
        {
            session.replays.push_back(Replay::new(subscription));
        }
    }
    hub.store_subscription(slot, filter);
    match options.qos {
        QoS::AtMostOnce => ReasonCode::Success,
        QoS::AtLeastOnce => ReasonCode::GrantedQos1,
        QoS::ExactlyOnce => ReasonCode::GrantedQos2,
    }
}
