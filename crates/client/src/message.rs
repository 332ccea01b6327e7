//! Application messages as their owner sees them.

use std::time::Duration;

use punctual_codec::{PropertyBuf, QoS};
use punctual_model::{DELIVERY_KEY, Requirements};
use punctual_udp::Stamp;

use crate::RealTimeProperties as _;

/// An application message to publish, or a Will.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Message {
    /// Topic name, without wildcards.
    pub topic: String,
    /// Content, at most 268 435 455 bytes less what topic and properties take.
    pub payload: Vec<u8>,
    /// Quality of service.
    pub qos: QoS,
    /// Whether the server keeps it for later subscribers.
    pub retain: bool,
    /// Properties of PUBLISH (of the Will, for a Will); empty before MQTT 5.
    pub properties: PropertyBuf,
}

impl Message {
    /// A message with QoS 0, not retained, without properties.
    pub fn new(topic: impl Into<String>, payload: impl Into<Vec<u8>>) -> Self {
        Self {
            topic: topic.into(),
            payload: payload.into(),
            ..Self::default()
        }
    }

    /// The same with that quality of service.
    #[must_use]
    pub fn qos(mut self, qos: QoS) -> Self {
        self.qos = qos;
        self
    }

    /// The same, retained.
    #[must_use]
    pub fn retained(mut self) -> Self {
        self.retain = true;
        self
    }

    /// The same with this PrioMQTT priority, 0 the most urgent. It orders messages in the
    /// broker, and guarantees nothing. MQTT 5 only, like all methods below.
    #[must_use]
    pub fn priority(self, priority: u64) -> Self {
        self.requirements(&Requirements {
            message_priority: Some(priority),
            ..Requirements::NONE
        })
    }

    /// The same with that deadline, above 0: the time from sending to the
    /// subscriber's receipt.
    #[must_use]
    pub fn deadline(self, deadline: Duration) -> Self {
        self.requirements(&Requirements {
            deadline: Some(deadline),
            ..Requirements::NONE
        })
    }

    /// The same with that period, above 0: the shortest time between two
    /// messages on its topic.
    #[must_use]
    pub fn period(self, period: Duration) -> Self {
        self.requirements(&Requirements {
            period: Some(period),
            ..Requirements::NONE
        })
    }

    /// The same with a number in its topic's sequence, by which receivers see
    /// loss and reordering; for those, see
    /// [`SequenceTracker`](crate::SequenceTracker). Once a message.
    #[must_use]
    pub fn sequence(mut self, stamp: Stamp) -> Self {
        // Some thirty bytes are never too long.
        let _ = self.properties.push_user(Stamp::KEY, &stamp.to_string());
        self
    }

    /// The same with the fields that are set in `requirements`; other fields stay. They
    /// are sent as user properties; to read them, see
    /// [`RealTimeProperties::requirements`](crate::RealTimeProperties::requirements).
    #[must_use]
    pub fn requirements(mut self, requirements: &Requirements) -> Self {
        self.properties.require(requirements);
        self
    }
}

/// A message that arrived.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delivery {
    /// The message. A topic alias has been replaced by its topic.
    pub message: Message,
    /// Whether the server may have sent it before.
    pub dup: bool,
    /// Packet identifier; 0 exactly for QoS 0.
    pub packet_id: u16,
    /// When its last byte was read (or, with
    /// [`Endpoint::kernel_times`](crate::Endpoint::kernel_times), arrived at
    /// this machine), on the clock of the [`Core`](crate::Core)'s owner;
    /// [`Client`](crate::Client)'s counts from
    /// [`Client::epoch`](crate::Client::epoch).
    pub received: Duration,
}

impl Delivery {
    /// Its number in its topic's sequence, if its publisher gave one.
    pub fn sequence(&self) -> Option<Stamp> {
        let properties = self.message.properties.as_properties();
        properties.user_value(Stamp::KEY).and_then(Stamp::parse)
    }

    /// Its number among the messages that the server sends to this session on its topic,
    /// if the subscription requested numbers
    /// ([`number_deliveries`](crate::RealTimeProperties::number_deliveries)). A
    /// [`SequenceTracker`](crate::SequenceTracker) for each topic and source detects
    /// messages that were dropped by the server or lost after it.
    pub fn number(&self) -> Option<Stamp> {
        let properties = self.message.properties.as_properties();
        // What the server adds comes after what the publisher said.
        let numbers = properties.user().filter(|(key, _)| *key == DELIVERY_KEY);
        numbers.last().and_then(|(_, value)| Stamp::parse(value))
    }
}
