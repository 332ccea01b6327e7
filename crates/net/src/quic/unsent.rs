//! How many of the stream's bytes that were handed to QUIC it may still hold
//! back, unsent.
//!
//! What is handed over can no longer be overtaken, so little is handed over at a
//! time; QUIC does not tell how much of it has left. It tells enough for an upper
//! bound: what it sends, and that a packet in which it left room was the last of
//! what it had. The bound never falls below the truth. Where it is too high QUIC
//! runs dry, and a byte that is handed over beyond the bound shows it: if nothing
//! holds QUIC back, a packet with much room in it leaves at once.

use super::settings::AHEAD;

/// Room that QUIC may leave in a packet although it has more: a STREAM frame's
/// header, and that of a packet that is longer than thought.
const SLACK: usize = 40;
/// Bytes of a packet that are no stream data, at most: headers, tag, and the
/// frame's own header.
const OVERHEAD: usize = 1 + 20 + 4 + 16 + 25;
/// More of them if there is an acknowledgement in it.
const ACK: usize = 256;
/// The size that every path carries, and the largest of a probe for loss.
const SMALLEST_MTU: usize = 1200;

/// What is known of a datagram that QUIC has made.
#[derive(Debug, Clone, Copy)]
pub(super) struct SentDatagram {
    /// Its bytes.
    pub(super) size: usize,
    /// STREAM frames in it.
    pub(super) stream_frames: u64,
    /// Whether there are acknowledgements in it.
    pub(super) acks: bool,
    /// Packets that QUIC has found lost so far.
    pub(super) lost: u64,
}

/// The bound.
#[derive(Debug, Default)]
pub(super) struct UnsentBound {
    most: usize,
    /// Packets lost when the bound was last zero. Once there are more, what is
    /// sent may be repetitions.
    lost: u64,
    /// A byte beyond the bound was handed over, and no packet was made since.
    probed: bool,
}

impl UnsentBound {
    /// Bytes that may be unsent.
    #[cfg(test)]
    pub(super) fn most(&self) -> usize {
        self.most
    }

    /// Bytes that may be handed over now.
    pub(super) fn room(&self) -> usize {
        match AHEAD.saturating_sub(self.most) {
            0 => usize::from(!self.probed),
            room => room,
        }
    }

    /// Bytes were handed over.
    pub(super) fn handed(&mut self, bytes: usize) {
        self.probed = self.most >= AHEAD;
        self.most += bytes;
    }

    /// A datagram was made.
    pub(super) fn made(&mut self, made: SentDatagram) {
        if made.stream_frames == 0 {
            return;
        }
        self.probed = false;
        if made.size + SLACK < SMALLEST_MTU {
            self.most = 0;
            self.lost = made.lost;
        } else if made.lost == self.lost {
            let overhead = OVERHEAD + if made.acks { ACK } else { 0 };
            self.most = self.most.saturating_sub(made.size.saturating_sub(overhead));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(size: usize) -> SentDatagram {
        SentDatagram {
            size,
            stream_frames: 1,
            acks: false,
            lost: 0,
        }
    }

    #[test]
    fn a_packet_with_room_is_the_last() {
        let mut unsent = UnsentBound::default();
        unsent.handed(10_000);
        unsent.made(made(1200));
        assert_eq!(unsent.most, 10_000 - (1200 - OVERHEAD));
        unsent.made(made(300));
        assert_eq!(unsent.most, 0);
    }

    #[test]
    fn at_the_bound_a_byte_shows_whether_quic_has_run_dry() {
        let mut unsent = UnsentBound::default();
        unsent.handed(AHEAD);
        assert_eq!(unsent.room(), 1);
        unsent.handed(1);
        assert_eq!(unsent.room(), 0, "nothing has left since");
        // It was held back, and what it had until then fills packets.
        let repeated = SentDatagram {
            lost: 1,
            ..made(1452)
        };
        unsent.made(repeated);
        assert_eq!(unsent.room(), 1);
        unsent.handed(1);
        unsent.made(SentDatagram {
            size: 45,
            ..repeated
        });
        assert_eq!(unsent.room(), AHEAD);
    }

    #[test]
    fn packets_without_stream_data_say_nothing() {
        let mut unsent = UnsentBound::default();
        unsent.handed(100);
        unsent.made(SentDatagram {
            stream_frames: 0,
            ..made(40)
        });
        assert_eq!(unsent.most, 100);
    }

    #[test]
    fn repetitions_do_not_count() {
        let mut unsent = UnsentBound::default();
        unsent.handed(5000);
        let repeated = SentDatagram {
            lost: 1,
            ..made(1452)
        };
        unsent.made(repeated);
        assert_eq!(unsent.most, 5000);
        unsent.made(SentDatagram {
            size: 200,
            ..repeated
        });
        assert_eq!(unsent.most, 0);
        unsent.handed(5000);
        unsent.made(repeated);
        assert!(unsent.most < 5000, "lost before these were handed over");
    }
}
