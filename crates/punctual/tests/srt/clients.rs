//! What clients say and hear.

use std::time::Duration;

use punctual_client::{
    Answer, Client, Delivery, Event, Message, PropertyBuf, QoS, SubscribeOptions,
};

use crate::LONG;

pub(crate) fn subscribe(client: &mut Client, filter: &str) {
    let filters = [(filter, SubscribeOptions::default())];
    client.subscribe(&filters, &PropertyBuf::new()).unwrap();
    while !matches!(next(client), Event::Subscribed { .. }) {}
}

/// What the acknowledgement of a message says.
pub(crate) fn publish(client: &mut Client, message: &Message) -> Option<Answer> {
    client.publish(message).unwrap();
    loop {
        if let Event::Published {
            reason, properties, ..
        } = next(client)
        {
            assert!(!reason.is_error(), "{reason:?}");
            return Answer::read(properties.as_properties().user());
        }
    }
}

/// The next message.
pub(crate) fn hear(client: &mut Client) -> Delivery {
    loop {
        if let Event::Message(delivery) = next(client) {
            return delivery;
        }
    }
}

/// Waits until the client is told what begins so on its `$SYS` topic.
pub(crate) fn told(client: &mut Client, what: &str) {
    while !hear(client).message.payload.starts_with(what.as_bytes()) {}
}

fn next(client: &mut Client) -> Event {
    client.next(Some(LONG)).unwrap().expect("nothing came")
}

pub(crate) fn plain(topic: &str) -> Message {
    Message::new(topic, "17").qos(QoS::AtLeastOnce)
}

pub(crate) fn asking(topic: &str, deadline: Duration) -> Message {
    plain(topic)
        .deadline(deadline)
        .period(Duration::from_secs(1))
}
