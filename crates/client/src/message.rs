//! Application messages as their owner sees them.

use punctual_codec::{PropertyBuf, QoS};

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
}
