//! Delivery of a message to one subscriber.

use std::sync::Arc;

use punctual_codec::QoS;

use crate::message::{Form, Message};
use crate::sequence::Number;

/// A message that is being delivered to one subscriber.
#[derive(Debug, Clone)]
pub(crate) struct Delivery {
    pub(crate) message: Arc<Message>,
    pub(crate) subscription_ids: Option<Arc<[u32]>>,
    pub(crate) qos: QoS,
    pub(crate) retain: bool,
    /// The sign of the shared subscription by which the session gets the message; 0 for none.
    pub(crate) share: u32,
    /// The number or name of the message, if the subscriber asked for it.
    pub(crate) number: Option<Number>,
    /// Number of the entry in the store; 0 for none.
    pub(crate) entry: u64,
}

impl Delivery {
    /// The PUBLISH that its subscriber gets, without a topic alias.
    pub(crate) fn form(&self, v5: bool, packet_id: u16, dup: bool) -> Form<'_> {
        Form {
            v5,
            dup,
            qos: self.qos,
            retain: self.retain,
            packet_id,
            subscription_ids: self.ids(),
            number: self.number,
            alias: None,
        }
    }

    /// A message with QoS 2 on the topic `t`, with that entry.
    #[cfg(test)]
    pub(crate) fn example(entry: u64) -> Self {
        let (qos, none) = (QoS::ExactlyOnce, punctual_codec::Properties::EMPTY);
        Self {
            message: Message::new(b"t", none, &[], qos, false, crate::Nanos(0), 1),
            subscription_ids: None,
            qos,
            retain: false,
            share: 0,
            number: None,
            entry,
        }
    }

    /// The Subscription Identifiers of the delivery.
    pub(crate) fn ids(&self) -> &[u32] {
        self.subscription_ids.as_deref().unwrap_or(&[])
    }
}

/// Number of messages that wait, or have left, and their bytes.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Load {
    /// Number of messages by class.
    pub(crate) messages: [usize; 4],
    pub(crate) bytes: usize,
}

impl Load {
    /// The load of the given messages.
    pub(crate) fn of_all<'a>(deliveries: impl IntoIterator<Item = &'a Delivery>) -> Self {
        let mut load = Self::default();
        deliveries.into_iter().for_each(|it| load.add(&it.message));
        load
    }

    pub(crate) fn of(message: &Message) -> Self {
        let mut load = Self::default();
        load.add(message);
        load
    }

    pub(crate) fn add(&mut self, message: &Message) {
        self.messages[message.stamp.class() as usize] += 1;
        self.bytes += message.size();
    }

    /// The load that was added since `before`.
    pub(crate) fn since(&self, before: &Self) -> Self {
        let mut since = *self;
        for (now, before) in since.messages.iter_mut().zip(before.messages) {
            *now -= before;
        }
        since.bytes -= before.bytes;
        since
    }

    /// Number of messages of all classes.
    pub(crate) fn total(&self) -> usize {
        self.messages.iter().sum()
    }
}
