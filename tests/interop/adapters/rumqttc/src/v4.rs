//! A connection of rumqttc's MQTT 3.1.1 client.

use std::time::Duration;

use rumqttc::{
    AsyncClient, ConnectionError, Event, EventLoop, LastWill, MqttOptions, Outgoing, Packet, QoS,
    SubscribeFilter, SubscribeReasonCode,
};
use serde_json::json;
use tokio::sync::mpsc::UnboundedReceiver;

use crate::protocol::{LARGEST_PACKET, Props, Request, fail, message, say};
use crate::tracker::{Answer, Kind, Tracker};

pub async fn connection(connect: Request, mut requests: UnboundedReceiver<Request>) {
    let options = match options(&connect) {
        Ok(options) => options,
        Err(error) => return fail(connect.id, error),
    };
    let (client, mut events) = AsyncClient::new(options, 64);
    match events.poll().await {
        Ok(Event::Incoming(Packet::ConnAck(accepted))) => say(json!({
            "id": connect.id, "code": 0, "session_present": accepted.session_present,
        })),
        Err(ConnectionError::ConnectionRefused(code)) => {
            return say(json!({ "id": connect.id, "code": code as u8 }));
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
    options
        .set_keep_alive(Duration::from_secs(connect.keepalive))
        .set_clean_session(connect.clean)
        .set_max_packet_size(LARGEST_PACKET as usize, LARGEST_PACKET as usize)
        .set_transport(connect.network()?);
    if let (Some(username), Some(password)) = (&connect.username, &connect.password) {
        options.set_credentials(username, password);
    }
    if let Some(window) = connect.window {
        options.set_inflight(window);
    }
    if let Some(will) = &connect.will {
        options.set_last_will(LastWill::new(
            &will.topic,
            will.payload.as_bytes(),
            qos(will.qos),
            will.retain,
        ));
    }
    Ok(options)
}

async fn serve(client: &AsyncClient, tracker: &Tracker, request: Request) {
    let quality = qos(request.qos);
    let each = Answer::Each(request.id);
    match request.op.as_str() {
        "subscribe" => {
            let filters = request
                .subscriptions()
                .map(|s| SubscribeFilter::new(s.filter, qos(s.qos)));
            tracker.expect(Kind::Subscribe, each);
            if let Err(error) = client.subscribe_many(filters).await {
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
            let sent = client
                .publish(&request.topic, quality, request.retain, request.body())
                .await;
            if let Err(error) = sent {
                tracker.reject(Kind::Publish, error);
            }
        }
        "burst" => {
            let answer = Answer::burst(request.id, request.count);
            for number in 0..request.count {
                tracker.expect(Kind::Publish, answer.clone());
                let sent = client
                    .publish(&request.topic, quality, false, number.to_string())
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
                if !tracker.end(&error.to_string()) {
                    say(json!({ "event": "closed", "conn": name }));
                }
                return;
            }
        }
    }
}

fn incoming(name: &str, packet: Packet, tracker: &Tracker) {
    match packet {
        Packet::Publish(p) => {
            let quality = p.qos as u8;
            message(
                name,
                &p.topic,
                &p.payload,
                quality,
                p.retain,
                p.dup,
                Props::default(),
            );
        }
        Packet::PubAck(ack) => tracker.done(Kind::Publish, ack.pkid, json!({})),
        Packet::PubComp(ack) => tracker.done(Kind::Publish, ack.pkid, json!({})),
        Packet::SubAck(ack) => {
            let codes: Vec<u8> = ack
                .return_codes
                .iter()
                .map(|code| match code {
                    SubscribeReasonCode::Success(granted) => *granted as u8,
                    SubscribeReasonCode::Failure => 0x80,
                })
                .collect();
            tracker.done(Kind::Subscribe, ack.pkid, json!({ "codes": codes }));
        }
        Packet::UnsubAck(ack) => tracker.done(Kind::Unsubscribe, ack.pkid, json!({})),
        _ => {}
    }
}

fn qos(number: u8) -> QoS {
    rumqttc::qos(number).expect("the runner sends QoS 0 to 2")
}
