//! One publisher: what it may send now, and the packets of it.

use super::scenario::PublisherPace;
use super::stamp::{STAMP_LEN, Stamp};
use crate::wire::PublishTemplate;

/// Most QoS 1 and 2 messages left unacknowledged by one client when the broker does not say
/// less. Below 65 535, so that a free identifier exists whenever there is room.
const MOST_UNACKNOWLEDGED: u32 = 10_000;

/// The sending side of one flow.
#[derive(Debug)]
pub struct Publisher {
    /// Index of the client that sends.
    pub client: u32,
    /// Receiving clients and the place of this flow among each one's tracks.
    pub receivers: Vec<(u32, u32)>,
    /// When it sends.
    pub pace: PublisherPace,
    /// Intended send time of the next message of a periodic publisher.
    pub next_due: u64,
    index: u32,
    template: PublishTemplate,
    /// Messages still to be sent.
    left: u64,
    sent: u64,
    /// Messages below this number no longer count as undelivered: a stall was written off.
    forgiven: u64,
}

impl Publisher {
    /// `limit`: messages in all.
    pub fn new(
        index: u32,
        client: u32,
        receivers: Vec<(u32, u32)>,
        pace: PublisherPace,
        template: PublishTemplate,
        limit: u64,
    ) -> Self {
        Self {
            client,
            receivers,
            pace,
            next_due: 0,
            index,
            template,
            left: limit,
            sent: 0,
            forgiven: 0,
        }
    }

    /// Messages sent so far.
    pub fn sent(&self) -> u64 {
        self.sent
    }

    /// Nanoseconds between messages of a periodic publisher, else 0.
    pub fn period(&self) -> u64 {
        match self.pace {
            PublisherPace::Every { period, .. } => period,
            _ => 0,
        }
    }

    /// Whether the limit of messages is reached.
    pub fn finished(&self) -> bool {
        self.left == 0
    }

    /// How many messages may go out now when the slowest receiver has got all below `delivered`
    /// and the client's identifiers are `ids` (none at QoS 0).
    #[inline]
    pub fn room(&self, delivered: u64, ids: Option<&PacketIds>) -> u64 {
        let window = match self.pace {
            PublisherPace::Window(window) => {
                let undelivered = self.sent - delivered.max(self.forgiven).min(self.sent);
                u64::from(window).saturating_sub(undelivered)
            }
            _ => u64::MAX,
        };
        let ids = ids.map_or(u64::MAX, PacketIds::room);
        window.min(ids).min(self.left)
    }

    /// Stops waiting for what has not arrived.
    pub fn forgive(&mut self) {
        self.forgiven = self.sent;
    }

    /// Bytes of one message on the wire.
    pub fn wire_len(&self) -> usize {
        self.template.bytes.len()
    }

    /// Appends `count` messages, all stamped `time`, to `out`. At most [`Publisher::room`].
    #[inline]
    pub fn put(
        &mut self,
        out: &mut Vec<u8>,
        mut ids: Option<&mut PacketIds>,
        count: u64,
        time: u64,
        extra: u64,
    ) {
        let payload_at = self.template.payload_at;
        out.reserve(count as usize * self.template.bytes.len());
        for _ in 0..count {
            let at = out.len();
            out.extend_from_slice(&self.template.bytes);
            let stamp = Stamp {
                time,
                seq: self.sent,
                extra,
                publisher: self.index,
            };
            out[at + payload_at..at + payload_at + STAMP_LEN].copy_from_slice(&stamp.to_bytes());
            if let (Some(ids), Some(id_at)) = (&mut ids, self.template.id_at) {
                out[at + id_at..at + id_at + 2].copy_from_slice(&ids.take(time).to_be_bytes());
            }
            self.sent += 1;
        }
        self.left -= count;
    }
}

/// Packet identifiers of one client that await their acknowledgement, 1 to 65 535.
#[derive(Debug)]
pub struct PacketIds {
    used: Box<[u64; 1024]>,
    last: u16,
    in_use: u32,
    most: u32,
    /// When the message with each identifier was sent, where that is asked for.
    times: Option<Box<[u64]>>,
}

impl PacketIds {
    /// For a broker that takes `receive_maximum` unacknowledged messages; `timed` remembers when
    /// each was sent.
    pub fn new(receive_maximum: u16, timed: bool) -> Self {
        Self {
            used: Box::new([0; 1024]),
            last: 0,
            in_use: 0,
            most: u32::from(receive_maximum).clamp(1, MOST_UNACKNOWLEDGED),
            times: timed.then(|| vec![0; 1 << 16].into()),
        }
    }

    fn room(&self) -> u64 {
        u64::from(self.most.saturating_sub(self.in_use))
    }

    fn take(&mut self, time: u64) -> u16 {
        loop {
            self.last = self.last.checked_add(1).unwrap_or(1);
            let word = &mut self.used[usize::from(self.last >> 6)];
            let bit = 1 << (self.last & 63);
            if *word & bit == 0 {
                *word |= bit;
                self.in_use += 1;
                if let Some(times) = &mut self.times {
                    times[usize::from(self.last)] = time;
                }
                return self.last;
            }
        }
    }

    /// Frees the identifier of an acknowledged message; returns when that was sent, where it is
    /// remembered.
    pub fn free(&mut self, id: u16) -> Option<u64> {
        let word = &mut self.used[usize::from(id >> 6)];
        let bit = 1 << (id & 63);
        if *word & bit == 0 {
            return None;
        }
        *word &= !bit;
        self.in_use -= 1;
        self.times.as_ref().map(|times| times[usize::from(id)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{self, Frame, Version};

    fn publisher(qos: u8, pace: PublisherPace, limit: u64) -> Publisher {
        let template = PublishTemplate::new(Version::V5, "t", qos, &[0; STAMP_LEN]);
        Publisher::new(3, 0, Vec::new(), pace, template, limit)
    }

    #[test]
    fn window_counts_undelivered_messages() {
        let mut p = publisher(0, PublisherPace::Window(10), u64::MAX);
        assert_eq!(p.room(0, None), 10);
        p.put(&mut Vec::new(), None, 7, 1, 0);
        assert_eq!(p.room(0, None), 3);
        assert_eq!(p.room(5, None), 8);
        p.put(&mut Vec::new(), None, 3, 2, 0);
        assert_eq!(p.room(0, None), 0);
        p.forgive();
        assert_eq!(p.room(0, None), 10);
        // A receiver cannot be ahead of what was sent, whatever a broker invents.
        assert_eq!(p.room(99, None), 10);
    }

    #[test]
    fn limit_and_receive_maximum_close_the_window() {
        let mut p = publisher(1, PublisherPace::Window(10), 6);
        let mut ids = PacketIds::new(4, true);
        assert_eq!(p.room(0, Some(&ids)), 4);
        p.put(&mut Vec::new(), Some(&mut ids), 4, 1, 0);
        assert_eq!(p.room(4, Some(&ids)), 0);
        let freed = [1, 2, 2, 9].map(|id| ids.free(id));
        assert_eq!(freed, [Some(1), Some(1), None, None]);
        assert_eq!(p.room(4, Some(&ids)), 2);
        p.put(&mut Vec::new(), Some(&mut ids), 2, 1, 0);
        assert!(p.finished());
        assert_eq!(p.room(6, Some(&ids)), 0);
    }

    #[test]
    fn messages_carry_stamp_and_fresh_identifiers() {
        let mut p = publisher(1, PublisherPace::FlatOut, u64::MAX);
        let mut ids = PacketIds::new(u16::MAX, false);
        p.put(&mut Vec::new(), Some(&mut ids), 1, 0, 0);
        let mut seen = 1;
        // 1 stays in use when the numbers come round.
        for round in 1..=8 {
            let mut out = Vec::new();
            p.put(&mut out, Some(&mut ids), 9_000, round, 5);
            let mut at = 0;
            while let Frame::Packet { first, body, end } = wire::frame(&out[at..]) {
                let publish = wire::publish(first, &out[at + body..at + end], Version::V5).unwrap();
                let stamp = Stamp::read(publish.payload).unwrap();
                assert_eq!((stamp.time, stamp.extra, stamp.publisher), (round, 5, 3));
                assert_eq!(stamp.seq, seen);
                assert!(publish.id > 1);
                ids.free(publish.id);
                seen += 1;
                at += end;
            }
            assert_eq!(at, out.len());
        }
        assert_eq!(seen, 72_001);
    }
}
