//! The order of one topic's messages in a mesh: the previous message of each one that is published
//! here and sent to neighbours, and the last messages of other brokers that clients here were
//! given.
//!
//! The name of a message refers to the previous one, of the same origin and with the same QoS. When
//! the mesh heals, the two may take different paths. If a broker has delivered the message before
//! the missing one to clients, and has not received the missing one, the latter is on its path, and
//! the newer message waits for it ([`crate::shard`]). Nothing is known of the past where clients
//! have begun to subscribe: then no message waits. Urgent messages are not ordered by this, as they
//! have an order of their own; nor are messages that expire, which may end anywhere on their path.

use punctual_codec::QoS;

use crate::base::name::MessageName;
use crate::egress::Class;

/// Maximum number of remembered streams of other brokers; of more, the latest.
const STREAMS: usize = 16;

/// The order of one topic's messages, as far as known.
#[derive(Debug, Default)]
pub(crate) struct Order {
    /// The last numbers that were assigned here to messages for neighbours; 0 for none.
    given: [u32; 4],
    heard: [Option<LastMessage>; STREAMS],
    /// The position in `heard` that is replaced next.
    next: u8,
}

/// The last message of a stream.
#[derive(Debug, Clone, Copy)]
struct LastMessage {
    origin: u32,
    number: u32,
    qos: QoS,
}

/// The stream of a message that is published here; `None` if it has no order.
pub(crate) fn stream(qos: QoS, class: Class, fleeting: bool) -> Option<usize> {
    let class = match class {
        Class::Normal => 0,
        Class::Bulk => 2,
        Class::RealTime | Class::Priority => return None,
    };
    match qos {
        _ if fleeting => None,
        QoS::AtMostOnce => None,
        QoS::AtLeastOnce => Some(class),
        QoS::ExactlyOnce => Some(class + 1),
    }
}

impl Order {
    /// The number of the last message of a stream that was published here and sent to neighbours; 0
    /// for none.
    pub(crate) fn last_given(&self, stream: usize) -> u32 {
        self.given[stream]
    }

    /// Notes a message that was published here and sent to neighbours.
    pub(crate) fn give(&mut self, stream: usize, number: u32) {
        self.given[stream] = number;
    }

    /// The message before the given one, unless that is the last one that clients were given;
    /// `None` if the given message need not wait.
    #[inline]
    pub(crate) fn missing(&self, name: MessageName, qos: QoS) -> Option<MessageName> {
        let previous = name.previous()?;
        let mut heard = self.heard.iter().flatten();
        let last = heard.find(|heard| heard.is(name, qos))?;
        (last.number != previous.number).then_some(previous)
    }

    /// Notes a message that clients are given.
    #[inline]
    pub(crate) fn hear(&mut self, name: MessageName, qos: QoS) {
        let mut heard = self.heard.iter_mut().flatten();
        if let Some(known) = heard.find(|heard| heard.is(name, qos)) {
            known.number = name.number;
            return;
        }
        self.heard[usize::from(self.next)] = Some(LastMessage {
            origin: name.origin.get(),
            number: name.number,
            qos,
        });
        self.next = (self.next + 1) % STREAMS as u8;
    }

    /// Forgets all streams, because clients have subscribed: it is not known which past messages
    /// these clients would have been given.
    pub(crate) fn forget(&mut self) {
        self.heard = [None; STREAMS];
    }
}

impl LastMessage {
    fn is(&self, name: MessageName, qos: QoS) -> bool {
        self.origin == name.origin.get() && self.qos == qos
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use super::*;

    const QOS: QoS = QoS::ExactlyOnce;

    fn name(origin: u32, number: u32, back: u16) -> MessageName {
        MessageName {
            origin: NonZeroU32::new(origin).unwrap(),
            number,
            again: false,
            back,
        }
    }

    #[test]
    fn what_is_between_two_messages_of_a_stream_is_missing() {
        let mut order = Order::default();
        assert_eq!(order.missing(name(1, 5, 3), QOS), None, "no past is known");
        order.hear(name(1, 5, 3), QOS);
        assert_eq!(order.missing(name(1, 9, 4), QOS), None);
        let missing = MessageName {
            again: true,
            ..name(1, 7, 0)
        };
        assert_eq!(order.missing(name(1, 9, 2), QOS), Some(missing));
        assert_eq!(order.missing(name(1, 9, 0), QOS), None, "it does not say");
        for (origin, qos) in [(2, QOS), (1, QoS::AtLeastOnce)] {
            assert_eq!(order.missing(name(origin, 9, 2), qos), None);
        }
        order.forget();
        assert_eq!(order.missing(name(1, 9, 2), QOS), None);
    }

    #[test]
    fn the_streams_that_were_heard_last_are_known() {
        let mut order = Order::default();
        let most = STREAMS as u32;
        (1..=most + 1).for_each(|origin| order.hear(name(origin, 1, 0), QOS));
        let is_known = |origin: &u32| order.missing(name(*origin, 3, 1), QOS).is_some();
        let known: Vec<u32> = (1..=most + 1).filter(is_known).collect();
        assert_eq!(known, (2..=most + 1).collect::<Vec<u32>>());
    }

    #[test]
    fn what_is_urgent_or_ends_on_its_way_has_no_order() {
        let streams = [Class::Normal, Class::Bulk].map(|class| {
            [QoS::AtLeastOnce, QoS::ExactlyOnce].map(|qos| stream(qos, class, false).unwrap())
        });
        assert_eq!(streams.concat(), [0, 1, 2, 3]);
        assert_eq!(stream(QoS::AtMostOnce, Class::Normal, false), None);
        assert_eq!(stream(QOS, Class::Normal, true), None);
        assert_eq!(stream(QOS, Class::RealTime, false), None);
        assert_eq!(stream(QOS, Class::Priority, false), None);
    }
}
