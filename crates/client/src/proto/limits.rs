//! What the server has said in CONNACK that it takes (section 3.2.2.3).

use punctual_codec::{Properties, PropertyId, Publish, QoS, ReasonCode};

/// The server's limits; before MQTT 5 there are none.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    pub(super) receive_maximum: u16,
    pub(super) topic_alias_maximum: u16,
    maximum_packet_size: u32,
    maximum_qos: QoS,
    retain: bool,
    wildcards: bool,
    subscription_ids: bool,
    shared: bool,
}

impl Limits {
    pub(super) fn from_connack(properties: Properties<'_>) -> Self {
        let number = |id| properties.number(id);
        let available = |id| number(id) != Some(0);
        Self {
            receive_maximum: number(PropertyId::ReceiveMaximum).unwrap_or(65_535) as u16,
            topic_alias_maximum: number(PropertyId::TopicAliasMaximum).unwrap_or(0) as u16,
            maximum_packet_size: number(PropertyId::MaximumPacketSize).unwrap_or(u32::MAX),
            maximum_qos: match number(PropertyId::MaximumQoS) {
                Some(0) => QoS::AtMostOnce,
                Some(_) => QoS::AtLeastOnce,
                None => QoS::ExactlyOnce,
            },
            retain: available(PropertyId::RetainAvailable),
            wildcards: available(PropertyId::WildcardSubscriptionAvailable),
            subscription_ids: available(PropertyId::SubscriptionIdentifierAvailable),
            shared: available(PropertyId::SharedSubscriptionAvailable),
        }
    }

    /// No packet above that many bytes can be carried.
    pub(super) fn carry(&mut self, most: Option<usize>) {
        let most = most.and_then(|most| u32::try_from(most).ok());
        self.maximum_packet_size = self.maximum_packet_size.min(most.unwrap_or(u32::MAX));
    }

    /// Whether a packet of that many bytes may be sent [MQTT-3.2.2-15].
    pub(super) fn packet(&self, bytes: usize) -> Result<(), ReasonCode> {
        match bytes as u64 > u64::from(self.maximum_packet_size) {
            true => Err(ReasonCode::PacketTooLarge),
            false => Ok(()),
        }
    }

    /// Whether such a PUBLISH may be sent [MQTT-3.2.2-11] [MQTT-3.2.2-14].
    pub(super) fn publish(&self, publish: &Publish<'_>) -> Result<(), ReasonCode> {
        if publish.qos > self.maximum_qos {
            return Err(ReasonCode::QosNotSupported);
        }
        if publish.retain && !self.retain {
            return Err(ReasonCode::RetainNotSupported);
        }
        Ok(())
    }

    /// Whether such a subscription may be asked for.
    pub(super) fn filter(&self, filter: &str, with_id: bool) -> Result<(), ReasonCode> {
        let (share, filter) = punctual_codec::topic::split_share(filter);
        if share.is_some() && !self.shared {
            return Err(ReasonCode::SharedSubscriptionsNotSupported);
        }
        if !self.wildcards && punctual_codec::topic::has_wildcard(filter) {
            return Err(ReasonCode::WildcardSubscriptionsNotSupported);
        }
        if with_id && !self.subscription_ids {
            return Err(ReasonCode::SubscriptionIdentifiersNotSupported);
        }
        Ok(())
    }
}
