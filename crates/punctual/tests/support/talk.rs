//! What tests say as clients, and hear: each waits for the answer.

use std::fmt::Display;
use std::time::Duration;

use punctual_client::{
    Client, Config, Event, Message, Options, PropertyBuf, QoS, SubscribeOptions, Url,
};

/// How long an answer may take on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
/// After which nothing more comes.
const QUIET: Duration = Duration::from_millis(300);

/// A client of the broker at `address`.
pub(crate) fn connect(address: impl Display, config: Config) -> Client {
    returning(address, config).0
}

/// The same, and whether it found its session.
pub(crate) fn returning(address: impl Display, config: Config) -> (Client, bool) {
    let options = Options {
        endpoint: Url::parse(&format!("mqtt://{address}")).unwrap().endpoint,
        config,
        reconnect: None,
    };
    let (client, connected) = Client::connect(options).unwrap();
    (client, connected.session_present)
}

/// Subscribes with QoS 2.
pub(crate) fn subscribed(mut client: Client, filter: &str) -> Client {
    let options = SubscribeOptions {
        qos: QoS::ExactlyOnce,
        ..SubscribeOptions::default()
    };
    client
        .subscribe(&[(filter, options)], &PropertyBuf::new())
        .unwrap();
    while !matches!(
        client.next(Some(PATIENCE)).unwrap(),
        Some(Event::Subscribed { .. })
    ) {}
    client
}

#[track_caller]
pub(crate) fn publish(client: &mut Client, topic: &str, payload: &str, qos: QoS) {
    client
        .publish(&Message::new(topic, payload.to_owned()).qos(qos))
        .unwrap();
    while !matches!(
        client.next(Some(PATIENCE)).unwrap(),
        Some(Event::Published { .. })
    ) {}
}

/// Messages until nothing more comes.
pub(crate) fn received(client: &mut Client, at_least: usize) -> Vec<Message> {
    let mut messages = Vec::new();
    loop {
        let enough = messages.len() >= at_least;
        let patience = if enough { QUIET } else { PATIENCE };
        match client.next(Some(patience)).unwrap() {
            Some(Event::Message(delivery)) => messages.push(delivery.message),
            Some(_) => {}
            None => return messages,
        }
    }
}

/// Their payloads.
pub(crate) fn payloads(client: &mut Client, at_least: usize) -> Vec<String> {
    let messages = received(client, at_least).into_iter();
    messages
        .map(|message| String::from_utf8(message.payload).unwrap())
        .collect()
}
