//! Exchanges that the peer has begun, to recognise what it repeats.
//!
//! A PUBLISH with QoS 1 or 2, SUBSCRIBE or UNSUBSCRIBE is a repetition if one with the same
//! identifier and the same content (but for DUP) was among the last [`REMEMBERED`] and came within
//! [`REPEAT_WINDOW`]. It is answered as the first was and goes no further. This is the rule of CoAP
//! (RFC 7252 section 4.5): a peer that reuses an identifier within the window for an identical
//! packet is taken to repeat it.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use punctual_codec::{Frame, PacketType};

use crate::packet::{digest, packet_id};
use crate::{REMEMBERED, REPEAT_WINDOW};

#[derive(Debug)]
struct Exchange {
    kind: PacketType,
    digest: u64,
    begun: Duration,
    heard: Duration,
    /// The packet that answered it; empty as long as there is none.
    answer: Box<[u8]>,
    /// PUBREL has come; the PUBCOMP that answered it, if any.
    released: Option<Box<[u8]>>,
}

/// What the peer has begun lately.
#[derive(Debug, Default)]
pub(crate) struct Inbound {
    exchanges: HashMap<u16, Exchange>,
    /// Oldest first; an identifier that was used again is there twice.
    order: VecDeque<(u16, Duration)>,
    last_auth: Option<u64>,
    auth_answer: Box<[u8]>,
}

/// What a received packet is.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ReceivedPacket<'a> {
    /// It is for the packets above.
    New,
    /// It was there before; this is the answer to give again, if not empty.
    Again(&'a [u8]),
}

impl Inbound {
    /// PUBLISH with QoS above 0, SUBSCRIBE or UNSUBSCRIBE.
    pub(crate) fn request(&mut self, frame: &Frame<'_>, now: Duration) -> ReceivedPacket<'_> {
        let Some(id) = packet_id(frame) else {
            return ReceivedPacket::New;
        };
        let digest = digest(frame);
        let known = self.exchanges.get(&id).is_some_and(|exchange| {
            (exchange.kind, exchange.digest) == (frame.kind, digest)
                && now.saturating_sub(exchange.heard) <= REPEAT_WINDOW
        });
        if !known {
            self.forget(now);
            self.order.push_back((id, now));
            self.exchanges.insert(
                id,
                Exchange {
                    kind: frame.kind,
                    digest,
                    begun: now,
                    heard: now,
                    answer: Box::default(),
                    released: None,
                },
            );
            return ReceivedPacket::New;
        }
        match self.exchanges.get_mut(&id) {
            // If released, it was sent before the PUBREL, and wandered.
            Some(exchange) if exchange.released.is_none() => {
                exchange.heard = now;
                ReceivedPacket::Again(&exchange.answer)
            }
            _ => ReceivedPacket::Again(&[]),
        }
    }

    /// Makes room for one more.
    fn forget(&mut self, now: Duration) {
        while let Some(&(id, begun)) = self.order.front() {
            let exchange = self.exchanges.get(&id).filter(|e| e.begun == begun);
            let old = exchange.is_none_or(|e| now.saturating_sub(e.heard) > REPEAT_WINDOW);
            if !old && self.order.len() < REMEMBERED {
                break;
            }
            if exchange.is_some() {
                self.exchanges.remove(&id);
            }
            self.order.pop_front();
        }
    }

    /// PUBREL.
    pub(crate) fn release(&mut self, frame: &Frame<'_>, now: Duration) -> ReceivedPacket<'_> {
        let exchange = packet_id(frame)
            .and_then(|id| self.exchanges.get_mut(&id))
            .filter(|exchange| exchange.kind == PacketType::Publish);
        match exchange {
            Some(exchange) => {
                exchange.heard = now;
                if exchange.released.is_none() {
                    exchange.released = Some(Box::default());
                    return ReceivedPacket::New;
                }
                ReceivedPacket::Again(exchange.released.as_deref().unwrap_or_default())
            }
            // Its PUBLISH came by an earlier connection.
            None => ReceivedPacket::New,
        }
    }

    /// AUTH from a client.
    pub(crate) fn auth(&mut self, frame: &Frame<'_>) -> ReceivedPacket<'_> {
        let digest = digest(frame);
        if self.last_auth == Some(digest) {
            return ReceivedPacket::Again(&self.auth_answer);
        }
        self.last_auth = Some(digest);
        self.auth_answer = Box::default();
        ReceivedPacket::New
    }

    /// Notes an answer that is being sent.
    pub(crate) fn answered(&mut self, frame: &Frame<'_>) {
        let asked = match frame.kind {
            PacketType::PubAck | PacketType::PubRec | PacketType::PubComp => PacketType::Publish,
            PacketType::SubAck => PacketType::Subscribe,
            PacketType::UnsubAck => PacketType::Unsubscribe,
            PacketType::Auth => {
                self.auth_answer = frame.bytes.into();
                return;
            }
            _ => return,
        };
        let exchange = packet_id(frame)
            .and_then(|id| self.exchanges.get_mut(&id))
            .filter(|exchange| exchange.kind == asked);
        if let Some(exchange) = exchange {
            match frame.kind {
                PacketType::PubComp => exchange.released = Some(frame.bytes.into()),
                _ => exchange.answer = frame.bytes.into(),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::frames;

    fn frame(packet: &[u8]) -> Frame<'_> {
        frames(packet, packet.len()).next().unwrap()
    }

    /// PUBLISH of MQTT 3.1.1 with topic "t" and that payload.
    fn publish(first: u8, id: u16, payload: u8) -> Vec<u8> {
        let [high, low] = id.to_be_bytes();
        vec![first, 6, 0, 1, b't', high, low, payload]
    }

    #[test]
    fn a_repetition_gets_the_same_answer() {
        let mut inbound = Inbound::default();
        let (first, again) = (publish(0x32, 7, 1), publish(0x3A, 7, 1));
        let now = Duration::ZERO;
        assert_eq!(inbound.request(&frame(&first), now), ReceivedPacket::New);
        assert_eq!(
            inbound.request(&frame(&again), now),
            ReceivedPacket::Again(&[])
        );
        let ack = [0x40, 2, 0, 7];
        inbound.answered(&frame(&ack));
        assert_eq!(
            inbound.request(&frame(&again), now),
            ReceivedPacket::Again(&ack)
        );
        // Another content under the same identifier is another message.
        assert_eq!(
            inbound.request(&frame(&publish(0x32, 7, 2)), now),
            ReceivedPacket::New
        );
        assert_eq!(inbound.request(&frame(&first), now), ReceivedPacket::New);
    }

    #[test]
    fn exactly_once() {
        let mut inbound = Inbound::default();
        let message = publish(0x34, 7, 1);
        let (rec, rel, comp) = ([0x50, 2, 0, 7], [0x62, 2, 0, 7], [0x70, 2, 0, 7]);
        let now = Duration::ZERO;
        assert_eq!(inbound.request(&frame(&message), now), ReceivedPacket::New);
        inbound.answered(&frame(&rec));
        assert_eq!(
            inbound.request(&frame(&message), now),
            ReceivedPacket::Again(&rec)
        );
        assert_eq!(inbound.release(&frame(&rel), now), ReceivedPacket::New);
        inbound.answered(&frame(&comp));
        assert_eq!(
            inbound.release(&frame(&rel), now),
            ReceivedPacket::Again(&comp)
        );
        assert_eq!(
            inbound.request(&frame(&message), now),
            ReceivedPacket::Again(&[]),
            "a copy that was under way all the time"
        );
        let unknown = [0x62, 2, 0, 9];
        assert_eq!(inbound.release(&frame(&unknown), now), ReceivedPacket::New);
    }

    #[test]
    fn memory_is_bounded_in_number_and_time() {
        let mut inbound = Inbound::default();
        let now = Duration::from_secs(1);
        for id in 1..=3000 {
            assert_eq!(
                inbound.request(&frame(&publish(0x32, id, 1)), now),
                ReceivedPacket::New
            );
        }
        assert!(inbound.exchanges.len() <= REMEMBERED && inbound.order.len() <= REMEMBERED);
        let last = publish(0x32, 3000, 1);
        assert_eq!(
            inbound.request(&frame(&last), now),
            ReceivedPacket::Again(&[])
        );
        let later = now + REPEAT_WINDOW + Duration::from_nanos(1);
        assert_eq!(inbound.request(&frame(&last), later), ReceivedPacket::New);
        assert_eq!(inbound.exchanges.len(), 1);
    }

    #[test]
    fn authentication_goes_step_by_step() {
        let mut inbound = Inbound::default();
        let (one, two, answer) = ([0xF0, 2, 0x18, 0], [0xF0, 2, 0x19, 0], [0xF0, 0]);
        assert_eq!(inbound.auth(&frame(&one)), ReceivedPacket::New);
        inbound.answered(&frame(&answer));
        assert_eq!(inbound.auth(&frame(&one)), ReceivedPacket::Again(&answer));
        assert_eq!(inbound.auth(&frame(&two)), ReceivedPacket::New);
        assert_eq!(inbound.auth(&frame(&two)), ReceivedPacket::Again(&[]));
    }
}
