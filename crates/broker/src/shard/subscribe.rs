//! Handling of SUBSCRIBE and UNSUBSCRIBE.

use std::sync::atomic::Ordering;

use punctual_codec::packet::{RetainHandling, SubscribeFilters, UnsubscribeFilters};
use punctual_codec::{
    Packet, PacketType, PropertyBuf, PropertyId, QoS, ReasonCode, SubAck, Subscribe,
    SubscribeOptions, UnsubAck, Unsubscribe, Version, topic, varint_len,
};
use punctual_model::Answer;

use super::{Fail, Next, Shard};
use crate::admission::{Ask, FilterVerdict, SubscriptionDecision};
use crate::answers::{best_effort, put_answer};
use crate::base::connection::ConnId;
use crate::filter_request::{FilterRequest, Inquiry, Kind, Request};
use crate::hub::Hub;
use crate::index::subscriber::Subscriber;
use crate::reserved::Reserved;
use crate::sequence::Sequences;
use crate::session::{Stored, Subscription};
use crate::shard::stated::report_urgency;
use crate::tasks::{FILTER, Task};
use crate::{Budget, Federation, Nanos, urgency};

/// Number of filters of a packet that are handled immediately; the others are handled in slices.
const AT_ONCE: u64 = 32;

/// Units of work for including a filter in an admission request.
const ASK: u64 = 4;

/// Bytes above which the filters of a packet may have to wait for those of other packets.
const SHORT: usize = 4096;

impl Shard {
    pub(super) fn subscribe(
        &mut self,
        id: ConnId,
        packet: &Subscribe<'_>,
        now: Nanos,
    ) -> Result<Next, Fail> {
        let hub = &mut self.hub;
        let Some(conn) = hub.outlets.conns.get(id.slot) else {
            return Ok(Next::Closed);
        };
        if conn.link {
            return Err(Fail::new(
                ReasonCode::ProtocolError,
                "neighbour brokers do not subscribe: the mesh tells what they want",
            ));
        }
        let (version, slot) = (conn.version, conn.session);
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
        let (max, bridge) = (conn.max_packet, conn.bridge);
        has_room_for_answer(packet.payload(), max, || packet.filters().count())?;
        if hub.waits_for_others(id, packet.payload()) {
            return Ok(Next::Hold);
        }
        let stated = urgency::stated(packet.properties);
        let mut decided = None;
        if hub.config.admission.is_some() {
            let conn = hub.outlets.conns.get_mut(id.slot);
            decided = conn.and_then(|conn| conn.extra.as_mut()?.subscribed.take());
            if decided.is_none() {
                let inquiry = Inquiry {
                    version,
                    requirements: stated.as_ref().copied().unwrap_or_default(),
                    filters: Vec::new(),
                };
                let kind = Kind::Ask(Box::new(inquiry));
                let request = FilterRequest::new(id, slot, packet.packet_id, kind);
                if self.begin_to_ask(request, packet.payload()) {
                    return Ok(Next::Hold);
                }
            }
        }
        let is_decided = decided.is_some();
        let (verdicts, answer) = decided.map_or((Vec::new(), None), |it| (it.verdicts, it.answer));
        let request = Request {
            version,
            bridge,
            id: identifier,
            numbered: urgency::numbered(packet.properties),
            misstated: stated.err().map(|error| error.to_string()),
            verdicts: verdicts.into_iter().peekable(),
            answer,
            decided: is_decided,
            given_up: Vec::new(),
        };
        let kind = Kind::Subscribe(Box::new(request));
        Ok(self.begin_filters(id, slot, packet.packet_id, kind, packet.payload(), now))
    }

    pub(super) fn unsubscribe(
        &mut self,
        id: ConnId,
        packet: &Unsubscribe<'_>,
        now: Nanos,
    ) -> Result<Next, Fail> {
        let hub = &mut self.hub;
        let Some(conn) = hub.outlets.conns.get(id.slot) else {
            return Ok(Next::Closed);
        };
        let (slot, version) = (conn.session, conn.version);
        if version.is_v5() {
            let max = conn.max_packet;
            has_room_for_answer(packet.payload(), max, || packet.filters().count())?;
        }
        if hub.waits_for_others(id, packet.payload()) {
            return Ok(Next::Hold);
        }
        let (packet_id, payload) = (packet.packet_id, packet.payload());
        Ok(self.begin_filters(id, slot, packet_id, Kind::Unsubscribe, payload, now))
    }

    /// Handles the first filters of a packet, and the others in slices if there are many.
    fn begin_filters(
        &mut self,
        conn: ConnId,
        session: u32,
        packet_id: u16,
        kind: Kind,
        payload: &[u8],
        now: Nanos,
    ) -> Next {
        let mut request = FilterRequest::new(conn, session, packet_id, kind);
        let mut budget = Budget::new(AT_ONCE * FILTER);
        let handled = request.handle(&mut self.hub, payload, &mut budget);
        let rest = &payload[handled..];
        if rest.is_empty() {
            self.end_filters(request, now);
            return Next::Packet;
        }
        request.payload = rest.into();
        if let Some(conn) = self.hub.outlets.conn(conn) {
            conn.paused += 1;
        }
        self.hub.work.tasks.push(Task::Filters(Box::new(request)));
        Next::Pause
    }

    /// Begins an admission request for the filters of a packet; the connection is not read
    /// meanwhile. False if there is no filter to ask about.
    fn begin_to_ask(&mut self, mut request: FilterRequest, payload: &[u8]) -> bool {
        let mut budget = Budget::new(AT_ONCE * FILTER);
        let handled = request.handle(&mut self.hub, payload, &mut budget);
        let rest = &payload[handled..];
        let conn = request.conn;
        let waits = match rest.is_empty() {
            true => self.ask_about(request),
            false => {
                request.payload = rest.into();
                self.hub.work.tasks.push(Task::Filters(Box::new(request)));
                true
            }
        };
        if let (Some(conn), true) = (self.hub.outlets.conn(conn), waits) {
            conn.paused += 1;
        }
        waits
    }

    /// Requests admission for the collected filters. False if there are none.
    fn ask_about(&mut self, request: FilterRequest) -> bool {
        let Kind::Ask(inquiry) = request.kind else {
            return false;
        };
        let Inquiry {
            requirements,
            filters,
            ..
        } = *inquiry;
        let asks = !filters.is_empty();
        if asks {
            let ask = Ask::Subscribe {
                conn: request.conn,
                filters,
                requirements,
            };
            self.hub.ask(request.session, ask);
        }
        asks
    }

    /// Handles more filters of a packet whose client is still connected.
    pub(super) fn continue_filters(
        &mut self,
        mut request: Box<FilterRequest>,
        budget: &mut Budget,
        now: Nanos,
    ) {
        let (hub, conn) = (&mut self.hub, request.conn);
        if hub.outlets.conn(conn).is_some() {
            let payload = std::mem::take(&mut request.payload);
            let rest = &payload[request.handled..];
            request.handled += request.handle(hub, rest, budget);
            if request.handled < payload.len() {
                request.payload = payload;
                hub.work.tasks.push(Task::Filters(request));
                return;
            }
            let waits = match &request.kind {
                Kind::Ask(_) => {
                    let waits = self.ask_about(*request);
                    if let (Some(conn), false) = (self.hub.outlets.conn(conn), waits) {
                        // The packet is handled without an admission request.
                        conn.extra().subscribed = Some(SubscriptionDecision {
                            verdicts: Vec::new(),
                            answer: None,
                        });
                    }
                    waits
                }
                Kind::Subscribe(_) | Kind::Unsubscribe => {
                    self.end_filters(*request, now);
                    false
                }
            };
            if !waits {
                self.hub.resume(vec![conn]);
            }
        }
        let waiting = self.hub.work.tasks.take_waiting();
        self.hub.resume(waiting);
    }

    /// Acknowledges a packet all of whose filters were handled.
    fn end_filters(&mut self, request: FilterRequest, now: Nanos) {
        let FilterRequest {
            conn: id,
            session: slot,
            packet_id,
            kind,
            reasons,
            ..
        } = request;
        let hub = &mut self.hub;
        let after = hub.ticket_of(slot);
        match kind {
            Kind::Subscribe(request) => {
                let mut properties = PropertyBuf::new();
                if let Some(answer) = request.answer(hub, id, now)
                    && let Some(conn) = hub.outlets.conns.get(id.slot)
                    && conn.v5()
                    && conn.problem_information
                {
                    put_answer(&mut properties, &answer, 4 + reasons.len(), conn.max_packet);
                }
                let ack = SubAck {
                    packet_id,
                    properties: properties.as_properties(),
                    reasons: &reasons,
                };
                let about = (PacketType::SubAck, packet_id, true);
                hub.answer_with(id.slot, &Packet::SubAck(ack), about, after);
                hub.pump(slot, now);
            }
            Kind::Ask(_) => {}
            Kind::Unsubscribe => {
                let ack = UnsubAck {
                    packet_id,
                    properties: Default::default(),
                    reasons: &reasons,
                };
                let about = (PacketType::UnsubAck, packet_id, true);
                hub.answer_with(id.slot, &Packet::UnsubAck(ack), about, after);
                // Messages may have waited for retained messages of a subscription that has ended.
                hub.pump(slot, now);
            }
        }
    }
}

impl FilterRequest {
    /// Handles filters at the front of `payload` until the budget is spent. Returns the number of
    /// bytes that these filters take.
    fn handle(&mut self, hub: &mut Hub, payload: &[u8], budget: &mut Budget) -> usize {
        let slot = self.session;
        let rest = match &mut self.kind {
            Kind::Subscribe(request) => {
                let mut filters = SubscribeFilters::new(payload, request.version);
                while !budget.is_spent()
                    && let Some((filter, options)) = filters.next()
                {
                    budget.spend(FILTER);
                    let reason = request.subscribe(hub, self.conn, slot, filter, options);
                    self.reasons
                        .push(match (request.version, reason.is_error()) {
                            (Version::V5, _) | (_, false) => reason.byte(),
                            (_, true) => 0x80,
                        });
                }
                if !request.given_up.is_empty() {
                    let filters = std::mem::take(&mut request.given_up);
                    hub.ask(slot, Ask::Unsubscribed { filters });
                }
                filters.rest()
            }
            Kind::Ask(inquiry) => {
                let mut filters = SubscribeFilters::new(payload, inquiry.version);
                while !budget.is_spent()
                    && let Some((filter, _)) = filters.next()
                {
                    budget.spend(ASK);
                    if check(hub, self.conn, slot, filter).is_ok() {
                        inquiry.filters.push(filter.into());
                    }
                }
                filters.rest()
            }
            Kind::Unsubscribe => {
                let mut filters = UnsubscribeFilters::new(payload);
                let mut ended = Vec::new();
                while !budget.is_spent()
                    && let Some(filter) = filters.next()
                {
                    budget.spend(FILTER);
                    self.reasons.push(unsubscribe(hub, slot, filter).byte());
                    if hub.config.admission.is_some() {
                        ended.push(Box::from(filter));
                    }
                }
                if !ended.is_empty() {
                    hub.ask(slot, Ask::Unsubscribed { filters: ended });
                }
                filters.rest()
            }
        };
        payload.len() - rest.len()
    }
}

impl Request {
    fn subscribe(
        &mut self,
        hub: &mut Hub,
        conn: ConnId,
        slot: u32,
        filter: &str,
        options: SubscribeOptions,
    ) -> ReasonCode {
        let verdict = self.verdicts.next_if(|(of, _)| **of == *filter);
        let verdict = verdict.map(|(_, verdict)| verdict);
        let checked = match check(hub, conn, slot, filter) {
            Ok(()) if verdict == Some(FilterVerdict::Refused) => Err(ReasonCode::QuotaExceeded),
            other => other,
        };
        if let Err(reason) = checked {
            hub.stats.refused_subscriptions += 1;
            if self.decided {
                self.given_up.push(filter.into());
            }
            return reason;
        }
        let options = match self.bridge {
            true => options.of_bridge(filter),
            false => options,
        };
        let wish = Wish {
            options,
            id: self.id,
            demoted: verdict == Some(FilterVerdict::BestEffort),
            numbered: matches!(self.numbered, Ok(true)),
        };
        add(hub, slot, filter, wish)
    }

    /// The answer to the client about its stated requirements.
    fn answer(self, hub: &mut Hub, id: ConnId, now: Nanos) -> Option<Answer> {
        let mut answer = match (self.misstated, hub.config.admission) {
            (Some(error), Some(_)) => Some(best_effort(error)),
            _ => self.answer,
        };
        if let Err(error) = self.numbered {
            hub.stats.bad_requirements += 1;
            report_urgency(hub, id, &error, now);
            let told = answer.get_or_insert_with(|| best_effort(String::new()));
            told.reason = Some(match told.reason.as_deref() {
                None | Some("") => error,
                Some(reason) => format!("{reason}; {error}"),
            });
        }
        answer
    }
}

impl Hub {
    /// Whether a long packet of filters has to wait because such packets of other clients already hold
    /// many bytes.
    fn waits_for_others(&mut self, id: ConnId, payload: &[u8]) -> bool {
        if payload.len() <= SHORT || self.work.tasks.takes(id, payload.len()) {
            return false;
        }
        if let Some(conn) = self.outlets.conn(id) {
            conn.paused += 1;
        }
        true
    }
}

/// Checks that an acknowledgement with a reason code for each filter does not exceed the client's
/// Maximum Packet Size: a client would wait for ever for an acknowledgement that cannot be sent.
fn has_room_for_answer(
    payload: &[u8],
    max: u32,
    filters: impl FnOnce() -> usize,
) -> Result<(), Fail> {
    /// Fixed header, packet identifier and no properties.
    const HEAD: usize = 5 + 2 + 1;
    // The shortest filter of UNSUBSCRIBE.
    const SHORTEST: usize = 3;
    let max = max as usize;
    if HEAD + payload.len() / SHORTEST <= max {
        return Ok(());
    }
    let length = 2 + 1 + filters();
    let size = 1 + varint_len(length) + length;
    if size <= max {
        return Ok(());
    }
    let why = format!(
        "Maximum Packet Size of {max} bytes is too small for the acknowledgement, which has {size}"
    );
    Err(Fail::new(ReasonCode::PacketTooLarge, why))
}

/// Ends a subscription.
fn unsubscribe(hub: &mut Hub, slot: u32, filter: &str) -> ReasonCode {
    let Some(session) = hub.sessions.get_mut(slot) else {
        return ReasonCode::UnspecifiedError;
    };
    let Some(subscription) = session.subscriptions.remove(filter) else {
        return ReasonCode::NoSubscriptionExisted;
    };
    session.replays.cancel(&subscription);
    hub.store_unsubscription(slot, filter);
    let Some(session) = hub.sessions.get(slot) else {
        return ReasonCode::UnspecifiedError;
    };
    hub.directory
        .index_mut()
        .unsubscribe(filter, &session.handle, &hub.directory.generations);
    if let Some(federation) = hub.directory.federation() {
        federation.unsubscribed(filter, subscription.persistent);
    }
    hub.directory.subscriptions.fetch_sub(1, Ordering::Relaxed);
    hub.stats.subscriptions -= 1;
    hub.stats.shared_subscriptions -= u64::from(filter.starts_with(topic::SHARE_PREFIX));
    ReasonCode::Success
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
        .outlets
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
    let known = session.subscriptions.find(filter).is_some();
    // A full store still accepts the replacement of an existing subscription.
    if session.durable
        && let Some(trouble) = hub.store_trouble()
        && (!known || hub.is_store_failing())
    {
        return Err(trouble.reason());
    }
    let bytes = session.subscriptions.bytes() + filter.len();
    let total = &hub.directory.subscription_bytes;
    if !known
        && (session.subscriptions.len() >= limits.max_subscriptions_per_session
            || hub.directory.subscriptions.load(Ordering::Relaxed) >= limits.max_subscriptions
            || bytes > limits.max_subscription_bytes_per_session
            || total.load(Ordering::Relaxed) + filter.len() > limits.max_subscription_bytes)
    {
        return Err(ReasonCode::QuotaExceeded);
    }
    Ok(())
}

/// The options of a subscription, as requested and granted.
struct Wish {
    options: SubscribeOptions,
    id: u32,
    demoted: bool,
    numbered: bool,
}

impl Hub {
    /// Notifies the federation which subscriptions belong to a persistent session now.
    pub(crate) fn notify_federation_of_lasting(&mut self, slot: u32) {
        let (federation, session) = (self.directory.federation(), self.sessions.get_mut(slot));
        let (Some(federation), Some(session)) = (federation, session) else {
            return;
        };
        let lasts = !session.is_transient();
        for subscription in session.subscriptions.iter_mut() {
            subscription.notify_federation_of_lasting(lasts, &**federation);
        }
    }
}

impl Subscription {
    /// Whether messages for this subscription are queued while the client is away. The session
    /// outlives its connection if it `lasts`.
    pub(crate) fn is_lasting(lasts: bool, qos: QoS) -> bool {
        lasts && qos != QoS::AtMostOnce
    }

    /// Notifies the federation whether the subscription is persistent, if that has changed.
    fn notify_federation_of_lasting(&mut self, lasts: bool, federation: &dyn Federation) {
        let persistent = Self::is_lasting(lasts, self.options.qos);
        if persistent != self.persistent {
            // In this order there is no moment without any interest in the filter.
            federation.subscribed(&self.filter, persistent);
            federation.unsubscribed(&self.filter, self.persistent);
            self.persistent = persistent;
        }
    }
}

/// Number of subscriptions of a session with which a new one is compared; with more, the new one is
/// assumed to overlap.
const MOST_COMPARED: usize = 64;

/// Whether there may be a topic that both filters match.
fn overlap(one: &str, other: &str) -> bool {
    let [mut one, mut other] = [one, other].map(|filter| topic::split_share(filter).1.split('/'));
    loop {
        match (one.next(), other.next()) {
            (None, None) | (Some("#"), _) | (_, Some("#")) => return true,
            (None, _) | (_, None) => return false,
            (Some(one), Some(other)) if one == other || one == "+" || other == "+" => {}
            _ => return false,
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
        let conn = session.conn.and_then(|slot| hub.outlets.conns.get(slot));
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
    let (share, _) = topic::split_share(filter);
    let sends = share.is_none() && options.retain_handling != RetainHandling::DoNotSend;
    // While the lock is held, no message is retained: so for each retained message it is known
    // whether the subscription existed before it.
    let retained = sends.then(|| hub.directory.retained());
    hub.directory
        .index_mut()
        .subscribe(filter, subscriber, &hub.directory.generations);
    let retained = retained.map(|retained| (retained.len(), retained.changes()));
    let others = &session.subscriptions;
    // Usually there are no retained messages, and no filters have to be compared.
    let overlaps = retained.is_some_and(|(messages, _)| messages > 0)
        && (others.len() > MOST_COMPARED || others.iter().any(|it| overlap(&it.filter, filter)));
    let lasts = !session.is_transient();
    let persistent = Subscription::is_lasting(lasts, options.qos);
    let new = match session.subscriptions.find_mut(filter) {
        Some(known) => {
            (known.options, known.id) = (options, id);
            (known.numbered, known.demoted) = (numbered, demoted);
            if let Some(federation) = hub.directory.federation() {
                known.notify_federation_of_lasting(lasts, &**federation);
            }
            false
        }
        None => {
            if session.subscriptions.is_empty() && lasts && !session.handle.link {
                session.set_began(hub.directory.begins().map(Stored::new));
            }
            session.subscriptions.insert(Subscription {
                filter: filter.into(),
                options,
                id,
                numbered,
                demoted,
                persistent,
                replay: 0,
                reserved: Some(Reserved::count(
                    &hub.directory.subscription_bytes,
                    filter.len(),
                )),
            });
            if let Some(federation) = hub.directory.federation() {
                federation.subscribed(filter, persistent);
            }
            hub.directory.subscriptions.fetch_add(1, Ordering::Relaxed);
            hub.stats.subscriptions += 1;
            hub.stats.shared_subscriptions += u64::from(share.is_some());
            true
        }
    };
    let replay = match options.retain_handling {
        RetainHandling::Send => true,
        RetainHandling::SendIfNew => new,
        RetainHandling::DoNotSend => false,
    };
    if replay
        && let Some((messages, began)) = retained
        && let Some(subscription) = session.subscriptions.find_mut(filter)
    {
        // Usually there are no retained messages, and no replay has to be stored.
        if messages == 0 {
            session.replays.cancel(subscription);
        } else {
            // Messages that another subscription of the session matched may be on their path from
            // other shards.
            let fence = match overlaps {
                true => hub.outboxes.fence(hub.index),
                false => 0,
            };
            session.replays.begin(subscription, began, fence);
        }
    }
    hub.store_subscription(slot, filter);
    match options.qos {
        QoS::AtMostOnce => ReasonCode::Success,
        QoS::AtLeastOnce => ReasonCode::GrantedQos1,
        QoS::ExactlyOnce => ReasonCode::GrantedQos2,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_overlap_where_a_topic_matches_both() {
        let filters = [
            "a",
            "a/b",
            "+",
            "+/b",
            "a/#",
            "#",
            "a/+/c",
            "b/+",
            "$share/g/a/b",
        ];
        let topics = ["a", "b", "a/b", "a/b/c", "b/b", "b/c", "a/c", "c/b"];
        for one in filters {
            for other in filters {
                let matches =
                    |filter| move |it: &&str| topic::matches(topic::split_share(filter).1, it);
                let both = topics
                    .iter()
                    .filter(|it| matches(one)(it))
                    .any(|it| matches(other)(it));
                assert_eq!(overlap(one, other), both, "{one} {other}");
            }
        }
    }
}
