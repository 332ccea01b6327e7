//! One connection's packets in both directions: what a received packet is, and
//! what a sent one calls for. Client and server share it.

use std::time::Duration;

use punctual_codec::{Frame, PacketType, QoS, Version};

use crate::Side;
use crate::inbound::{Inbound, ReceivedPacket};
use crate::outbound::{Answer, Outbound, RepeatOutcome, refuse_publish};
use crate::packet::{lifetime, packet_id, publish_qos};

/// State of one connection above its datagrams.
#[derive(Debug)]
pub(crate) struct Flow {
    side: Side,
    version: Version,
    pub(crate) outbound: Outbound,
    inbound: Inbound,
}

impl Flow {
    pub(crate) fn new(side: Side, version: Version) -> Self {
        Self {
            side,
            version,
            outbound: Outbound::default(),
            inbound: Inbound::default(),
        }
    }

    pub(crate) fn version(&self) -> Version {
        self.version
    }

    /// Takes in a packet from the peer: what is for the packets above goes to
    /// `inbox`, what is answered here to `replies`. False for a repetition or
    /// a stray.
    pub(crate) fn receive(
        &mut self,
        frame: &Frame<'_>,
        now: Duration,
        inbox: &mut Vec<u8>,
        replies: &mut Vec<u8>,
    ) -> bool {
        let seen = match frame.kind {
            PacketType::Publish if publish_qos(frame) == Some(QoS::AtMostOnce) => {
                ReceivedPacket::New
            }
            PacketType::Publish | PacketType::Subscribe | PacketType::Unsubscribe => {
                self.inbound.request(frame, now)
            }
            PacketType::PubRel => self.inbound.release(frame, now),
            PacketType::Auth if self.side == Side::Server => self.inbound.auth(frame),
            PacketType::PubAck
            | PacketType::PubRec
            | PacketType::PubComp
            | PacketType::SubAck
            | PacketType::UnsubAck
            | PacketType::PingResp
            | PacketType::Auth => match self.outbound.answer(frame, now) {
                Answer::Awaited => ReceivedPacket::New,
                Answer::Stray => ReceivedPacket::Again(&[]),
            },
            _ => ReceivedPacket::New,
        };
        match seen {
            ReceivedPacket::New => {
                inbox.extend_from_slice(frame.bytes);
                true
            }
            ReceivedPacket::Again(answer) => {
                replies.extend_from_slice(answer);
                false
            }
        }
    }

    /// Notes a packet that is being sent.
    pub(crate) fn sending(&mut self, frame: &Frame<'_>, class: u8, now: Duration) {
        match frame.kind {
            PacketType::Publish if frame.first & 0x06 == 0 => {}
            PacketType::Publish => {
                let lifetime = lifetime(frame, self.version);
                self.outbound.sending(frame, class, lifetime, now);
            }
            PacketType::Auth if self.side == Side::Server => self.inbound.answered(frame),
            PacketType::PubRel
            | PacketType::Subscribe
            | PacketType::Unsubscribe
            | PacketType::PingReq
            | PacketType::Auth => self.outbound.sending(frame, class, None, now),
            _ => self.inbound.answered(frame),
        }
    }

    /// Tells the packets above, if they care, that a packet cannot be sent.
    pub(crate) fn unsendable(&mut self, frame: &Frame<'_>, inbox: &mut Vec<u8>) {
        if frame.kind == PacketType::Publish
            && let (Some(qos), Some(id)) = (publish_qos(frame), packet_id(frame))
        {
            refuse_publish(qos, id, self.version, inbox);
        }
    }

    /// See [`Outbound::repeat`].
    pub(crate) fn repeat(
        &mut self,
        heard: Duration,
        now: Duration,
        inbox: &mut Vec<u8>,
        send: impl FnMut(&[u8], u8),
    ) -> RepeatOutcome {
        let version = self.version;
        self.outbound.repeat(version, heard, now, inbox, send)
    }
}
