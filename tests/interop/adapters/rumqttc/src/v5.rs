//! A connection of rumqttc's MQTT 5 client.

use std::time::Duration;

use rumqttc::Outgoing;
use rumqttc::v5::mqttbytes::v5::{
    ConnectProperties, ConnectReturnCode, Filter, LastWill, Packet, PubAckReason, PubRecReason,
    Publish, PublishProperties, SubscribeProperties, SubscribeReasonCode, UnsubAckReason,
};
use rumqttc::v5::mqttbytes::{QoS, qos as known_qos};
use rumqttc::v5::{AsyncClient, ConnectionError, Event, EventLoop, MqttOptions, StateError};
use serde_json::json;
use tokio::sync::mpsc::UnboundedReceiver;

use crate::protocol::{LARGEST_PACKET, Props, Request, decode, encode, fail, message, say};
use crate::tracker::{Answer, Kind, Tracker};

/// Messages in flight, unless the broker's Receive Maximum is smaller.
const IN_FLIGHT: u16 = 100;

pub async fn connection(connect: Request, mut requests: UnboundedReceiver<Request>) {
    let options = match options(&connect) {
        Ok(options) => options,
        Err(error) => return fail(connect.id, error),
    };
    let (client, mut events) = AsyncClient::new(options, 64);
    match events.poll().await {
        Ok(Event::Incoming(Packet::ConnAck(accepted))) => {
            let assigned = accepted
                .properties
                .and_then(|properties| properties.assigned_client_identifier);
            say(json!({
                "id": connect.id, "code": 0, "session_present": accepted.session_present,
                "assigned_id": assigned,
            }));
        }
        Err(ConnectionError::ConnectionRefused(code)) => {
            return match refusal(code) {
                Some(number) => say(json!({ "id": connect.id, "code": number })),
                None => fail(connect.id, format!("{code:?}")),
            };
        }
        other => return fail(connect.id, format!("{other:?}")),
    }
    let tracker = Tracker::default();
    let poller = tokio::spawn(poll(connect.conn, events, tracker.clone()));
    while let Some(request) = requests.recv().await {
        if poller.is_finished() {
            fail(request.id, "the connection has ended");
        } else {
            serve(&client, &tracker, request).await;
        }
    }
}

fn options(connect: &Request) -> std::io::Result<MqttOptions> {
    let mut options = MqttOptions::new(&connect.client_id, connect.address(), connect.port);
    let mut properties = ConnectProperties::new();
    properties.session_expiry_interval = Some(connect.session_expiry);
    properties.max_packet_size = Some(LARGEST_PACKET);
    options
        .set_keep_alive(Duration::from_secs(connect.keepalive))
        .set_clean_start(connect.clean)
        .set_connect_properties(properties)
        .set_outgoing_inflight_upper_limit(IN_FLIGHT)
        .set_transport(connect.network()?);
    if let (Some(username), Some(password)) = (&connect.username, &connect.password) {
        options.set_credentials(username, password);
    }
    if let Some(will) = &connect.will {
        options.set_last_will(LastWill::new(
            &will.topic,
            will.payload.as_bytes(),
            qos(will.qos),
            will.retain,
            None,
        ));
    }
    Ok(options)
}

async fn serve(client: &AsyncClient, tracker: &Tracker, request: Request) {
    let quality = qos(request.qos);
    let each = Answer::Each(request.id);
    match request.op.as_str() {
        "subscribe" => {
            let id = request.subscriptions().find_map(|s| s.identifier);
            let filters = request.subscriptions().map(|s| {
                let mut filter = Filter::new(s.filter, qos(s.qos));
                filter.nolocal = s.no_local;
                filter.preserve_retain = s.retain_as_published;
                filter
            });
            tracker.expect(Kind::Subscribe, each);
            let properties = SubscribeProperties {
                id,
                user_properties: Vec::new(),
            };
            let sent = client
                .subscribe_many_with_properties(filters, properties)
                .await;
            if let Err(error) = sent {
                tracker.reject(Kind::Subscribe, error);
            }
        }
        "unsubscribe" => {
            tracker.expect(Kind::Unsubscribe, each);
            if let Err(error) = client.unsubscribe(request.unsubscription()).await {
                tracker.reject(Kind::Unsubscribe, error);
            }
        }
        "publish" => {
            tracker.expect(Kind::Publish, each);
            let (topic, retain, body) = (&request.topic, request.retain, request.body());
            let properties = properties(&request.props);
            let sent = client
                .publish_with_properties(topic, quality, retain, body, properties)
                .await;
            if let Err(error) = sent {
                tracker.reject(Kind::Publish, error);
            }
        }
        "burst" => {
            let answer = Answer::burst(request.id, request.count);
            let aliased = request.props.topic_alias.is_some();
            for number in 0..request.count {
                let topic = if aliased && number > 0 {
                    ""
                } else {
                    &request.topic
                };
                let (body, properties) = (number.to_string(), properties(&request.props));
                tracker.expect(Kind::Publish, answer.clone());
                let sent = client
                    .publish_with_properties(topic, quality, false, body, properties)
                    .await;
                if let Err(error) = sent {
                    return tracker.reject(Kind::Publish, error);
                }
            }
        }
        "disconnect" => {
            tracker.disconnecting(request.id);
            if let Err(error) = client.disconnect().await {
                fail(request.id, error);
            }
        }
        other => fail(request.id, format!("unknown request {other}")),
    }
}

fn properties(props: &Props) -> PublishProperties {
    PublishProperties {
        payload_format_indicator: props.format,
        message_expiry_interval: props.expiry,
        topic_alias: props.topic_alias,
        response_topic: props.response_topic.clone(),
        correlation_data: props.correlation.as_deref().map(|data| decode(data).into()),
        user_properties: props.user.clone(),
        subscription_identifiers: Vec::new(),
        content_type: props.content_type.clone(),
    }
}

async fn poll(name: String, mut events: EventLoop, tracker: Tracker) {
    loop {
        match events.poll().await {
            Ok(Event::Incoming(packet)) => incoming(&name, packet, &tracker),
            Ok(Event::Outgoing(Outgoing::Publish(id))) => tracker.sent(Kind::Publish, id),
            Ok(Event::Outgoing(Outgoing::Subscribe(id))) => tracker.sent(Kind::Subscribe, id),
            Ok(Event::Outgoing(Outgoing::Unsubscribe(id))) => tracker.sent(Kind::Unsubscribe, id),
            Ok(Event::Outgoing(Outgoing::Disconnect)) => {
                tracker.end("the client disconnected");
                return;
            }
            Ok(Event::Outgoing(_)) => {}
            Err(error) => {
                let code = match &error {
                    ConnectionError::MqttState(StateError::ServerDisconnect {
                        reason_code,
                        ..
                    }) => Some(*reason_code as u8),
                    _ => None,
                };
                if !tracker.end(&error.to_string()) {
                    say(json!({ "event": "closed", "conn": name, "code": code }));
                }
                return;
            }
        }
    }
}

fn incoming(name: &str, packet: Packet, tracker: &Tracker) {
    match packet {
        Packet::Publish(publish) => received(name, publish),
        Packet::PubAck(ack) => {
            tracker.done(
                Kind::Publish,
                ack.pkid,
                json!({ "code": puback(ack.reason) }),
            );
        }
        // A refusal ends the handshake; success goes on to PUBCOMP.
        Packet::PubRec(ack) if pubrec(ack.reason) >= 0x80 => {
            tracker.done(
                Kind::Publish,
                ack.pkid,
                json!({ "code": pubrec(ack.reason) }),
            );
        }
        Packet::PubComp(ack) => {
            tracker.done(Kind::Publish, ack.pkid, json!({ "code": 0 }));
        }
        Packet::SubAck(ack) => {
            let codes: Vec<u8> = ack.return_codes.into_iter().map(suback).collect();
            tracker.done(Kind::Subscribe, ack.pkid, json!({ "codes": codes }));
        }
        Packet::UnsubAck(ack) => {
            let codes: Vec<u8> = ack.reasons.into_iter().map(unsuback).collect();
            tracker.done(Kind::Unsubscribe, ack.pkid, json!({ "codes": codes }));
        }
        _ => {}
    }
}

fn received(name: &str, publish: Publish) {
    let properties = publish.properties.unwrap_or_default();
    let props = Props {
        user: properties.user_properties,
        expiry: properties.message_expiry_interval,
        content_type: properties.content_type,
        format: properties.payload_format_indicator,
        topic_alias: properties.topic_alias,
        response_topic: properties.response_topic,
        correlation: properties.correlation_data.map(|data| encode(&data)),
        identifiers: properties.subscription_identifiers,
    };
    let topic = String::from_utf8_lossy(&publish.topic);
    let (quality, retain, dup) = (publish.qos as u8, publish.retain, publish.dup);
    message(name, &topic, &publish.payload, quality, retain, dup, props);
}

fn qos(number: u8) -> QoS {
    known_qos(number).expect("the runner sends QoS 0 to 2")
}

/// The CONNACK codes that the cases look at.
fn refusal(code: ConnectReturnCode) -> Option<u8> {
    match code {
        ConnectReturnCode::BadUserNamePassword => Some(0x86),
        ConnectReturnCode::NotAuthorized => Some(0x87),
        ConnectReturnCode::QuotaExceeded => Some(0x97),
        _ => None,
    }
}

fn puback(reason: PubAckReason) -> u8 {
    match reason {
        PubAckReason::Success => 0x00,
        PubAckReason::NoMatchingSubscribers => 0x10,
        PubAckReason::UnspecifiedError => 0x80,
        PubAckReason::ImplementationSpecificError => 0x83,
        PubAckReason::NotAuthorized => 0x87,
        PubAckReason::TopicNameInvalid => 0x90,
        PubAckReason::PacketIdentifierInUse => 0x91,
        PubAckReason::QuotaExceeded => 0x97,
        PubAckReason::PayloadFormatInvalid => 0x99,
    }
}

fn pubrec(reason: PubRecReason) -> u8 {
    match reason {
        PubRecReason::Success => 0x00,
        PubRecReason::NoMatchingSubscribers => 0x10,
        PubRecReason::UnspecifiedError => 0x80,
        PubRecReason::ImplementationSpecificError => 0x83,
        PubRecReason::NotAuthorized => 0x87,
        PubRecReason::TopicNameInvalid => 0x90,
        PubRecReason::PacketIdentifierInUse => 0x91,
        PubRecReason::QuotaExceeded => 0x97,
        PubRecReason::PayloadFormatInvalid => 0x99,
    }
}

fn suback(code: SubscribeReasonCode) -> u8 {
    match code {
        SubscribeReasonCode::Success(granted) => granted as u8,
        SubscribeReasonCode::Failure | SubscribeReasonCode::Unspecified => 0x80,
        SubscribeReasonCode::ImplementationSpecific => 0x83,
        SubscribeReasonCode::NotAuthorized => 0x87,
        SubscribeReasonCode::TopicFilterInvalid => 0x8F,
        SubscribeReasonCode::PkidInUse => 0x91,
        SubscribeReasonCode::QuotaExceeded => 0x97,
        SubscribeReasonCode::SharedSubscriptionsNotSupported => 0x9E,
        SubscribeReasonCode::SubscriptionIdNotSupported => 0xA1,
        SubscribeReasonCode::WildcardSubscriptionsNotSupported => 0xA2,
    }
}

fn unsuback(reason: UnsubAckReason) -> u8 {
    match reason {
        UnsubAckReason::Success => 0x00,
        UnsubAckReason::NoSubscriptionExisted => 0x11,
        UnsubAckReason::UnspecifiedError => 0x80,
        UnsubAckReason::ImplementationSpecificError => 0x83,
        UnsubAckReason::NotAuthorized => 0x87,
        UnsubAckReason::TopicFilterInvalid => 0x8F,
        UnsubAckReason::PacketIdentifierInUse => 0x91,
    }
}
