//! A message on its way to one subscriber.

use std::sync::Arc;

use punctual_codec::QoS;

use crate::message::{Form, Message};
use crate::sequence::Number;

/// A message on its way to one subscriber.
#[derive(Debug, Clone)]
pub(crate) struct Delivery {
    pub(crate) message: Arc<Message>,
    pub(crate) subscription_ids: Option<Arc<[u32]>>,
    pub(crate) qos: QoS,
    pub(crate) retain: bool,
    /// The sign of the shared subscription that it goes to the session by; 0: by no such one.
    pub(crate) share: u32,
    /// If the subscriber asked for it.
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

    /// Its Subscription Identifiers.
    pub(crate) fn ids(&self) -> &[u32] {
        self.subscription_ids.as_deref().unwrap_or(&[])
    }
}

/// How much waits, or has left.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Load {
    /// By class.
    pub(crate) messages: [usize; 4],
    pub(crate) bytes: usize,
}

impl Load {
    /// Of these messages.
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

    /// What of it has come since that.
    pub(crate) fn since(&self, before: &Self) -> Self {
        let mut since = *self;
        for (now, before) in since.messages.iter_mut().zip(before.messages) {
            *now -= before;
        }
        since.bytes -= before.bytes;
        since
    }

    /// Messages of all classes.
    pub(crate) fn total(&self) -> usize {
        self.messages.iter().sum()
    }
}
