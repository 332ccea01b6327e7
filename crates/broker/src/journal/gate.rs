//! Packets that wait until what they say is on disk.

use punctual_codec::ReasonCode;

use super::Journal;
use super::answers::Answer;
use crate::base::connection::ConnId;
use crate::base::durability::StoreTrouble;
use crate::egress::Class;

/// Connections that may have ended and are of no account.
pub(crate) const FEW: usize = 64;

/// A packet that waits, but for the answers of which an order is kept.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) ticket: u64,
    pub(crate) conn: ConnId,
    pub(crate) what: What,
}

/// Which packet.
#[derive(Debug)]
pub(crate) enum What {
    Answer(Answer),
    /// The PUBLISH of a QoS 2 message in flight.
    Publish {
        packet_id: u16,
        class: Class,
        dup: bool,
    },
    /// CONNACK, and with it everything that comes after it: the connection is
    /// corked. Whether its session is new.
    Connection {
        new: bool,
    },
}

impl Journal {
    /// Packets that are held, but for the answers of which an order is kept.
    pub(crate) fn gate(&self) -> usize {
        self.gate.len()
    }

    /// Holds a packet until a ticket is committed, and all before it.
    pub(crate) fn hold(&mut self, ticket: u64, conn: ConnId, what: What) {
        self.hurry |= self.kept.has(ticket);
        let last = self.gate.back().map_or(0, |held| held.ticket);
        self.gate.push_back(Held {
            ticket: ticket.max(last),
            conn,
            what,
        });
    }

    /// Holds the PUBLISH of a message in flight until what was emitted last is
    /// committed.
    pub(super) fn hold_publish(&mut self, conn: ConnId, packet_id: u16, class: Class) {
        let what = What::Publish {
            packet_id,
            class,
            dup: false,
        };
        self.hold(self.latest(), conn, what);
    }

    /// Holds what is sent again while commits fail: perhaps it is what they
    /// would say. False if it may be sent.
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
    /// For MQTT 5.
    pub(crate) fn reason(self) -> ReasonCode {
        match self {
            Self::Full => ReasonCode::QuotaExceeded,
            Self::Failed => ReasonCode::ImplementationSpecificError,
        }
    }
}
