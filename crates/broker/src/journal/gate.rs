//! Packets that wait for the commit of operations.

use punctual_codec::ReasonCode;

use super::Journal;
use super::answers::Answer;
use crate::base::connection::ConnId;
use crate::base::durability::StoreTrouble;
use crate::egress::Class;

/// Number of ended connections that may stay in the list of connections with waiting answers.
pub(crate) const FEW: usize = 64;

/// A held packet that is not an ordered answer.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) ticket: u64,
    pub(crate) conn: ConnId,
    pub(crate) what: What,
}

/// The kind of a held packet.
#[derive(Debug)]
pub(crate) enum What {
    Answer(Answer),
    /// The PUBLISH of a QoS 2 message in flight.
    Publish {
        packet_id: u16,
        class: Class,
        dup: bool,
    },
    /// CONNACK, and with it all later packets: the connection is corked. `new` is whether its
    /// session is new.
    Connection {
        new: bool,
    },
}

impl Journal {
    /// Number of held packets that are not ordered answers.
    pub(crate) fn gate(&self) -> usize {
        self.gate.len()
    }

    /// Holds a packet until `ticket` is committed, and until the packets before it are sent.
    pub(crate) fn hold(&mut self, ticket: u64, conn: ConnId, what: What) {
        self.hurry |= self.kept.has(ticket);
        let last = self.gate.back().map_or(0, |held| held.ticket);
        self.gate.push_back(Held {
            ticket: ticket.max(last),
            conn,
            what,
        });
    }

    /// Holds the PUBLISH of a message in flight until the last operation is committed.
    pub(super) fn hold_publish(&mut self, conn: ConnId, packet_id: u16, class: Class) {
        let what = What::Publish {
            packet_id,
            class,
            dup: false,
        };
        self.hold(self.latest(), conn, what);
    }

    /// Holds a redelivery while commits fail: the uncommitted operations may be those of its packet
    /// identifier. False if it may be sent.
    pub(crate) fn hold_again(
        &mut self,
        conn: ConnId,
        packet_id: u16,
        entry: u64,
        class: Class,
    ) -> bool {
        let hold = self.is_failing() && entry != 0;
        if hold {
            let what = What::Publish {
                packet_id,
                class,
                dup: true,
            };
            self.hold(self.latest(), conn, what);
        }
        hold
    }
}

impl StoreTrouble {
    /// The reason code for MQTT 5 clients.
    pub(crate) fn reason(self) -> ReasonCode {
        match self {
            Self::Full => ReasonCode::QuotaExceeded,
            Self::Failed => ReasonCode::ImplementationSpecificError,
        }
    }
}
